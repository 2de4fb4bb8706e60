//! The models of one host, or of two that are joined by a wire.

use crate::{
    choices::Choices,
    switch::{Model, Outcome},
};

/// Names of the trunks of networks 1 and 2, host by host: counters are charged to them.
pub const TRUNKS: [[&str; 2]; 2] = [["one/vni-1", "one/vni-2"], ["two/vni-1", "two/vni-2"]];
/// Names of the uplinks: counters of frames that belong to no network.
const UPLINKS: [&str; 2] = ["one/uplink", "two/uplink"];

/// One host alone, or two that know of each other what frames tell.
pub fn hosts(number: usize) -> Vec<Model> {
    let model =
        |host: usize| if number > 1 { Model::with_trunks(&TRUNKS[host]) } else { Model::new() };
    (0..number).map(model).collect()
}

/// One frame of a network that comes from the other host.
pub fn arrive(
    model: &mut Model,
    host: usize,
    vni: u32,
    frame: &[u8],
    choices: &mut Choices,
) -> Outcome {
    let trunk = TRUNKS[host][vni as usize - 1];
    if model.vnic(trunk).is_none() {
        return Outcome {
            receivers: Vec::new(),
            drops: vec![vec![(UPLINKS[host], "unknown-vni")]],
            becomes: None,
            waits: false,
        };
    }
    let outcome = model.send(trunk, frame, choices);
    assert!(!outcome.receivers.contains(&trunk), "nothing returns to where it came from");
    outcome
}

/// One frame from a vnic of a host. What gets to the trunk of its network arrives at the other
/// host. What happens on each.
pub fn send(
    hosts: &mut [Model],
    host: usize,
    from: &str,
    frame: &[u8],
    choices: &mut Choices,
) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); hosts.len()];
    outcomes[host] = hosts[host].send(from, frame, choices);
    let network = TRUNKS[host].iter().position(|trunk| outcomes[host].receivers.contains(trunk));
    if let Some(network) = network {
        let other = 1 - host;
        outcomes[other] = arrive(&mut hosts[other], other, network as u32 + 1, frame, choices);
    }
    outcomes
}

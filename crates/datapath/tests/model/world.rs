//! The models of one host, or of two that are joined by a wire.

use crate::{
    choices::Choices,
    router,
    switch::{Mistake, Model, Outcome},
};

/// Names of the trunks of networks 1 and 2, host by host: counters are charged to them.
pub const TRUNKS: [[&str; 4]; 2] = [
    ["one/vni-1", "one/vni-2", "one/vni-3", "one/vni-4"],
    ["two/vni-1", "two/vni-2", "two/vni-3", "two/vni-4"],
];
/// Names of the ways to a host that is not there, by the trunks of each host.
pub const ELSEWHERE: [[&str; 4]; 2] = [
    ["one/away-1", "one/away-2", "one/away-3", "one/away-4"],
    ["two/away-1", "two/away-2", "two/away-3", "two/away-4"],
];
/// Names of the uplinks: counters of frames that belong to no network.
const UPLINKS: [&str; 2] = ["one/uplink", "two/uplink"];

/// One host alone, or two that know of each other what frames tell.
pub fn hosts(number: usize) -> Vec<Model> {
    let model = |host: usize| if number > 1 { Model::of_host(host) } else { Model::new() };
    (0..number).map(model).collect()
}

/// One frame of a network that comes from a host of this number.
pub fn arrive(
    model: &mut Model,
    (host, from): (usize, u8),
    vni: u32,
    frame: &[u8],
    choices: &mut Choices,
) -> Outcome {
    let trunk = TRUNKS[host][vni as usize - 1];
    if model.vnic(trunk).is_none() {
        let drops = vec![vec![(UPLINKS[host], "unknown-vni")]];
        return Outcome { drops, ..Outcome::default() };
    }
    // A router's address names the host that sent it on.
    if frame.len() >= 12
        && frame[6..8] == [0xb2, 0xf1]
        && frame[6..12] != router::host_mac(from)
        && model.mistake() != Some(Mistake::ForgedIsBelieved)
    {
        let drops = vec![vec![(trunk, "forged-router")]];
        return Outcome { drops, ..Outcome::default() };
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
    if let (Some(network), true) = (network, hosts.len() > 1) {
        let (other, from) = (1 - host, host as u8 + 1);
        let vni = network as u32 + 1;
        for (n, frame) in outcomes[host].arrives(frame).iter().enumerate() {
            let next = arrive(&mut hosts[other], (other, from), vni, frame, choices);
            if n == 0 {
                outcomes[other] = next;
                continue;
            }
            // Fragments of one packet have the receivers of the first one, or none.
            if !next.receivers.is_empty() {
                outcomes[other].more.extend(next.arrives(frame));
            }
            outcomes[other].drops.extend(next.drops);
        }
    }
    outcomes
}

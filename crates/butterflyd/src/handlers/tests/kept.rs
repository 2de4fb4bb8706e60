//! Declarations that a process before left.

use super::{BYPASS, NIC, host::Host};
use crate::{handlers::keep::encoded, keeper::Keeper};
use butterfly_api::{Action, Handler};
use butterfly_control::{Change, TunnelPeer};
use std::{process::Command, time::Instant};

/// Objects that this host does not take any more are told by name, and all others are there: those
/// before it as those after it.
#[test]
fn one_object_that_is_refused_leaves_the_others_alone() {
    let mut former = Host::new();
    for request in [NIC, BYPASS, "nic_add { id: \"z\" mac: \"42:00:00:00:00:03\" vni: 3 }"] {
        former.succeeds(request);
    }
    let bytes = former.envelope.handler_mut().declaration_bytes().unwrap();
    let all = former.declared();

    // Groups first, then the vnics in their order.
    for (refused, id) in [(0, "n"), (1, "bypass"), (2, "z")] {
        let mut host = Host::new();
        let fake = host.fake();
        fake.refusals = (0..refused).map(|_| None).chain([Some("no memory")]).collect();
        let lost = host.envelope.handler_mut().take_up_bytes(&bytes).unwrap();
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert!(lost[0].contains(id) && lost[0].contains("no memory"), "{lost:?}");
        let there: Vec<String> = host.fake().vnics.keys().cloned().collect();
        let expected: Vec<&str> = ["bypass", "n", "z"].into_iter().filter(|it| *it != id).collect();
        assert_eq!(there, expected);
    }

    // One that cannot be read.
    let mut broken = bytes.clone();
    let at = bytes.windows(17).position(|it| it == b"42:00:00:00:00:02").unwrap();
    broken[at] = b'x';
    let mut host = Host::new();
    let lost = host.envelope.handler_mut().take_up_bytes(&broken).unwrap();
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0].contains("bypass"), "{lost:?}");
    assert_eq!(host.fake().vnics.len(), 2);

    // A field of a release that is newer, in a vnic or beside: told, and no harm.
    let newer = [&bytes[..], &[0x98, 0x3f, 1]].concat();
    let mut host = Host::new();
    let lost = host.envelope.handler_mut().take_up_bytes(&newer).unwrap();
    assert_eq!(lost, ["fields that this release does not know"]);
    assert_eq!(host.declared(), all);

    // And all of it, if nothing is wrong.
    let mut host = Host::new();
    assert!(host.envelope.handler_mut().take_up_bytes(&bytes).unwrap().is_empty());
    assert_eq!(host.declared(), all);
    // What is no declaration at all says so.
    assert!(Host::new().envelope.handler_mut().take_up_bytes(&[0xff; 9]).is_err());
}

/// A host whose store is open, and keeps nothing that it is not given.
fn stored() -> Host {
    let mut host = Host::new();
    for request in [NIC, BYPASS] {
        host.succeeds(request);
    }
    // It reads until the connection ends, and never answers.
    let client = butterfly_store::Client::start(|| Command::new("cat")).unwrap();
    let daemon = host.envelope.handler_mut();
    let state = daemon.desired.clone();
    let mut keeper = Keeper::new(client, "/nowhere".into(), state, encoded);
    keeper.read = true;
    daemon.keeper = Some(keeper);
    host.fake().take_calls();
    host
}

/// A vnic that a refused change cost stays declared, the store hears nothing of it, and it is made
/// again.
#[test]
fn what_a_refused_change_costs_stays_declared() {
    let changed = NIC.replace("vni: 1", "vni: 9");
    assert_ne!(changed, NIC);
    let whole = format!("apply {{ {} }}", changed.replacen("nic_add", "nic", 1));
    for request in [changed, whole] {
        let mut host = stored();
        let before = host.declared();
        host.fake().refusals = [Some("no"), Some("never"), Some("never")].into();
        let (_, help) = host.fails(&request);
        assert!(help.contains("again"), "{help}");
        assert_eq!(host.fake().vnics.keys().collect::<Vec<_>>(), ["bypass"]);
        let declaration = host.envelope.handler_mut().declaration_bytes().unwrap();
        let keeper = host.envelope.handler_mut().keeper.as_mut().unwrap();
        assert!(!keeper.differs() && keeper.in_store.is_none(), "the store hears nothing of it");
        assert_eq!(keeper.committed.vnics().len(), 2);
        // A successor has it, too.
        let mut next = Host::new();
        assert!(next.envelope.handler_mut().take_up_bytes(&declaration).unwrap().is_empty());
        assert_eq!(next.declared(), before);
        // Meanwhile changes are refused by name, as long as this host does not take it.
        let (why, _) = host.fails("nic_del: \"bypass\"");
        assert!(why.contains("this host does not take what the store has"), "{why}");
        let keeper = host.envelope.handler_mut().keeper.as_mut().unwrap();
        keeper.missing.as_mut().unwrap().again = Instant::now();
        host.fake().refusals.clear();
        assert!(host.envelope.handler_mut().outcome().is_none());
        assert_eq!((host.fake().vnics.len(), host.declared()), (2, before));
        let keeper = host.envelope.handler_mut().keeper.as_ref().unwrap();
        assert!(!keeper.differs() && keeper.missing.is_none());
    }
}

/// A vnic that this host will never take can be deleted, in the store, too.
#[test]
fn a_vnic_that_is_missing_can_be_deleted() {
    let mut host = stored();
    host.fake().refusals = [Some("no"), Some("never"), Some("never")].into();
    host.fails(&NIC.replace("vni: 1", "vni: 9"));
    host.fails("nic_del: \"bypass\"");
    let daemon = host.envelope.handler_mut();
    assert!(daemon.gives_up(&Action::NicDel("n")));
    assert!(!daemon.gives_up(&Action::NicDel("n")), "it is gone");
    let keeper = daemon.keeper.as_ref().unwrap();
    assert!(matches!(&keeper.changes[..], [Change::RemoveVnic(id)] if id.as_str() == "n"));
    assert!(daemon.outcome().is_none());
    let keeper = daemon.keeper.as_ref().unwrap();
    assert!(keeper.missing.is_none() && keeper.trouble().is_none());
    assert_eq!(host.fake().vnics.keys().collect::<Vec<_>>(), ["bypass"]);
}

/// A peer that the configuration names meanwhile stays when the vnic is there again.
#[test]
fn the_configuration_goes_on_while_a_vnic_is_missing() {
    let mut host = stored();
    host.fake().refusals = [Some("no"), Some("never")].into();
    host.fails(&NIC.replace("vni: 1", "vni: 9"));
    let daemon = host.envelope.handler_mut();
    let peer = TunnelPeer::new("192.0.2.77".parse().unwrap(), None).unwrap();
    let prepared = daemon.desired.prepare(Change::NamePeer(peer)).unwrap();
    daemon.configuring(true);
    daemon.commit(prepared);
    daemon.configuring(false);
    daemon.keeper.as_mut().unwrap().missing.as_mut().unwrap().again = Instant::now();
    assert!(daemon.outcome().is_none());
    assert_eq!(daemon.desired.peers().iter().collect::<Vec<_>>(), [peer]);
    assert_eq!(host.fake().vnics.len(), 2);
}

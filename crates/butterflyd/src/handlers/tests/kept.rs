//! Declarations that a process before left.

use super::{BYPASS, NIC, host::Host};

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

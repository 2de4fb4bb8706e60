//! Exports of vnics, as a hostile client hands them to another host.

use std::net::IpAddr;

use butterfly_datapath::{
    Mac, SessionConfig, SessionFilter, TunnelConfig, VnicPolicy, harness::Host,
};
use butterfly_packet::{
    build::{self, Tcp},
    tcp::{ACK, SYN},
};
use butterfly_vhost::net::NetHeader;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const FAR: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// Two texts, with a byte 255 between them: one from before the machine runs here, one from after
/// that. A text that begins with `[` is the list of sessions of a sound one.
pub fn run(data: &[u8]) {
    let mut texts = data.splitn(2, |byte| *byte == 255).map(whole);
    let mut host = host();
    let first = texts.next().unwrap_or_default();
    let before = host.import_vnic(&first);
    if let Ok(Some(imported)) = &before {
        // Again, the same: nothing is added.
        let count = sessions(&host);
        let again = host.import_vnic(&first).expect("it was read").expect("it is there");
        assert_eq!(again.sessions.refused, imported.sessions.refused);
        assert_eq!((again.sessions.taken, sessions(&host)), (imported.sessions.taken, count));
    }
    // Only sessions of the vnic, with other hosts or with what is not filtered.
    let (count, rows) = host.sessions(&SessionFilter::default(), 4096);
    assert!(count <= 512, "a share of the table");
    let ip = IpAddr::from([10, 0, 0, 1]);
    for row in rows {
        let ends = [&row.opener, &row.responder];
        let own = ends.iter().find(|end| end.nic.as_deref() == Some("a")).expect("the vnic");
        assert_eq!(own.address, ip);
        assert!(ends.iter().all(|end| end.nic.as_deref() != Some("b")), "{row:?}");
    }
    host.arrives("a").expect("room for a guest");
    talk(&mut host);
    if let Some(second) = texts.next() {
        let _ = host.import_vnic(&second);
    }
    talk(&mut host);
    host.pass(40);
    talk(&mut host);
    // All that is there can be written and read again.
    let exported = host.export_vnic("a").expect("it is there");
    let imported = self::host().import_vnic(&exported.text).expect("our own text");
    assert!(imported.is_some());
    host.flush_sessions(&SessionFilter::default());
    assert_eq!(sessions(&host), 0);
}

fn sessions(host: &Host) -> u64 {
    host.sessions(&SessionFilter::default(), 0).0
}

fn whole(text: &[u8]) -> Vec<u8> {
    if text.first() != Some(&b'[') {
        return text.to_vec();
    }
    let head = br#"{"kind":"butterfly-vnic","layout":1,"vnic":{"id":"a","mac":"","vni":1,"addresses":[],"groups":[],"bypass":false},"sessions":"#;
    [head, text, b"}"].concat()
}

/// "a" comes from another host, "b" is filtered and here, "c" is here and not filtered.
fn host() -> Host {
    let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
    let sessions = SessionConfig { capacity: 1024, ..SessionConfig::default() };
    let mut host = Host::with_tunnel(sessions, Some(&config)).expect("memory");
    let policy = |last: u8, bypass| VnicPolicy {
        bypass,
        ips: vec![[10, 0, 0, last].into()],
        ..VnicPolicy::default()
    };
    host.declare("a", OWN, 1, &policy(1, false)).expect("room");
    host.vnic("b", OTHER, 1, &policy(2, false)).expect("room");
    host.vnic("c", Mac([2, 0, 0, 0, 0, 3]), 1, &policy(3, true)).expect("room");
    host.settle();
    host
}

/// Frames of conversations that a text may have invented: none may reach "b".
fn talk(host: &mut Host) {
    let _ = host.received();
    for to in [(OTHER, 2), (Mac([2, 0, 0, 0, 0, 3]), 3), (FAR, 9)] {
        let ip = build::ethernet(OWN, to.0).ipv4([10, 0, 0, 1], [10, 0, 0, to.1]);
        let segment = |flags| Tcp { sequence: 7, acknowledgement: 9, ..Tcp::new(9, 9, flags) };
        let frames = [ip.udp(9, 9, b"x"), ip.tcp(&segment(ACK), b"x"), ip.tcp(&segment(SYN), b"")];
        for frame in frames {
            host.send("a", &frame, NetHeader::default()).expect("room in the ring");
        }
    }
    let received = host.received().expect("a ring");
    assert!(received.get("b").is_none_or(Vec::is_empty), "a text opened another vnic");
    let _ = host.left();
}

//! What is said of a packet that a router passes on.

use butterfly_datapath::{Fate, Origin, Question, Target};
use butterfly_packet::protocol::UDP;

use crate::net::*;

fn question(reply: bool) -> Question {
    Question {
        from: Origin::Vnic("a".into()),
        to: Target::Address(B.3.into()),
        source: None,
        source_mac: None,
        destination_mac: None,
        protocol: UDP,
        source_port: Some(1000),
        destination_port: Some(53),
        flags: None,
        icmp: None,
        length: None,
        reply,
    }
}

/// Without a MAC address in the question it goes to the gateway, as the guest's would; and the
/// answer finds its session.
#[test]
fn a_packet_is_followed_through_the_router_and_back() {
    let mut net = Net::new(&[A, B], false);
    net.admit("10.0.0.0/24");
    for round in 0..2 {
        let told = net.host.explain(&question(true)).unwrap();
        assert_eq!(told.destination_mac, gateway());
        let [there, back] = &told.walks[..] else { panic!("{told:?}") };
        assert_eq!(there.fate, Fate::Delivered("b".into()), "{round}: {there:?}");
        assert_eq!(back.fate, Fate::Delivered("a".into()), "{round}: {back:?}");
        let stages: Vec<_> = there.steps.iter().map(|step| step.stage).collect();
        assert!(stages.contains(&"route") && stages.contains(&"masquerade"), "{stages:?}");
        assert_eq!(net.sessions(), round, "nothing was sent");
        let [sent, arrives] = routed(A, B, |ip| ip.udp(1000, 53, b"?"));
        net.passes(A, &sent, B, &arrives);
    }
}

#[test]
fn a_drop_of_the_router_is_named() {
    let net = Net::new(&[A, B], true);
    let to = Target::Address([192, 0, 2, 1].into());
    let told = net.host.explain(&Question { to, ..question(false) }).unwrap();
    let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
    assert_eq!((refused.reason.name, refused.charged.as_str()), ("no-route", "a"));
}

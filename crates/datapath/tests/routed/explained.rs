//! Explanations of packets for routers.

use butterfly_datapath::{Fate, GroupChange, Mac, Origin, Question, Target};
use butterfly_model::{Cidr, Direction, GroupName, Rule};
use butterfly_packet::{
    build,
    protocol::{TCP, UDP},
    tcp::{ACK, SYN},
};

use crate::net::*;

/// Asks about UDP from A to B.
pub fn question(reply: bool) -> Question {
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

/// A machine speaks to a group itself, and so it does by IPv6 where no gateway has an address of
/// that.
#[test]
fn what_is_not_for_the_gateway_goes_to_none() {
    let net = Net::new(&[A, B], true);
    let to = |to: [u8; 4]| Question { to: Target::Address(to.into()), ..question(false) };
    for (group, mac) in
        [([224, 0, 0, 251], Mac([1, 0, 0x5e, 0, 0, 251])), ([255; 4], Mac::BROADCAST)]
    {
        let told = net.host.explain(&to(group)).unwrap();
        assert_eq!(told.destination_mac, mac, "{told:?}");
    }
    let six = |last| std::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last]);
    let question = Question { source: Some(six(1)), ..to([0; 4]) };
    let told = net.host.explain(&Question { to: Target::Address(six(2)), ..question }).unwrap();
    assert_eq!(told.walks[0].fate, Fate::NoAddress, "{told:?}");
}

/// Its address is one of the network, but no vnic's.
#[test]
fn a_packet_for_a_gateway_goes_to_it() {
    let net = Net::new(&[A, B], true);
    let to = Target::Address(GATEWAYS[0].into());
    let told = net.host.explain(&Question { to, ..question(false) }).unwrap();
    assert_eq!(told.destination_mac, gateway());
    let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
    assert_eq!(refused.reason.name, "gateway-no-service");
}

/// Without a router between them, the answer says so.
#[test]
fn networks_without_a_router_do_not_meet() {
    let told = Net::apart(&[A, B], true).host.explain(&question(false)).unwrap();
    let [walk] = &told.walks[..] else { panic!("{told:?}") };
    assert_eq!(walk.fate, Fate::NoAddress);
    assert_eq!(walk.steps[0].details, ["b has it, in VNI 50: no router leads there"]);
}

/// From either end: the record that is copied for the question is asked for the numbers, too.
#[test]
fn a_segment_of_a_known_connection_is_told_as_one() {
    let mut net = Net::new(&[A, B], false);
    let block = Cidr::new("10.0.0.0", 24).unwrap();
    let rule =
        Rule::new(Direction::Inbound, TCP.into(), (Some(80), Some(80)), Some(block), None).unwrap();
    let open = GroupName::new("open").unwrap();
    net.host.change_group(&open, GroupChange::AddRule(rule)).unwrap();
    let tcp = |from, to, flags, sequence, acknowledgement| build::Tcp {
        sequence,
        acknowledgement,
        ..build::Tcp::new(from, to, flags)
    };
    for (from, to, segment) in [
        (A, B, tcp(1000, 80, SYN, 77_000_000, 0)),
        (B, A, tcp(80, 1000, SYN | ACK, 3_000_000_000, 77_000_001)),
        (A, B, tcp(1000, 80, ACK, 77_000_001, 3_000_000_001)),
    ] {
        let [sent, arrives] = routed(from, to, |ip| ip.tcp(&segment, b""));
        net.passes(from, &sent, to, &arrives);
    }
    for (from, to, ports) in [(A, B, (1000, 80)), (B, A, (80, 1000))] {
        let asked = Question {
            from: Origin::Vnic(from.0.into()),
            to: Target::Address(to.3.into()),
            protocol: TCP,
            source_port: Some(ports.0),
            destination_port: Some(ports.1),
            flags: Some(ACK),
            ..question(false)
        };
        let told = net.host.explain(&asked).unwrap();
        assert_eq!(told.walks[0].fate, Fate::Delivered(to.0.into()), "{told:?}");
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

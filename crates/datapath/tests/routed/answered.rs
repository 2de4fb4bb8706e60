//! Routers' own words: echo, errors, and when they say nothing.

use butterfly_datapath::{Fate, GroupChange, Mac, Origin, Question, Target};
use butterfly_model::{Cidr, Direction, GroupName, Rule};
use butterfly_packet::{build, checksum::Sum, protocol::ICMP, tcp::ACK};
use butterfly_vhost::net::NetHeader;

use crate::net::*;

fn to_gateway(from: Machine, at: [u8; 4]) -> build::Ip {
    build::ethernet(from.1, gateway()).ipv4(from.3, at)
}

fn from_gateway(to: Machine, at: [u8; 4]) -> build::Ip {
    build::ethernet(gateway(), to.1).ipv4(at, to.3).dont_fragment()
}

/// Its own gateway and that in the other network; also with the last hop.
#[test]
fn gateways_answer_an_echo() {
    for bypass in [true, false] {
        let mut net = Net::new(&[A, B, C], bypass);
        for at in GATEWAYS {
            for len in [0, 56, 1472] {
                let payload = vec![0x5a; len];
                let ask = to_gateway(A, at).ttl(1).ping(7, 1, &payload);
                let answer = from_gateway(A, at).icmp(0, 0, 7 << 16 | 1, &payload);
                net.passes(A, &ask, A, &answer);
            }
        }
        assert_eq!(net.sessions(), 0);
    }
}

/// A filtered machine may ask what its rules let out, and needs none for the answer.
#[test]
fn an_echo_needs_the_senders_rules() {
    let mut net = Net::new(&[A, B], false);
    let ports = (Some(1), Some(65535));
    let everybody = Cidr::new("0.0.0.0", 0).unwrap();
    let rule = Rule::new(Direction::Outbound, 17, ports, Some(everybody), None).unwrap();
    let name = GroupName::new("open").unwrap();
    net.host.change_group(&name, GroupChange::AddRule(rule)).unwrap();
    let ask = to_gateway(A, GATEWAYS[0]).ping(7, 1, b"there?");
    net.drops(A, &ask, "egress-denied");
}

#[test]
fn a_spoofed_echo_gets_no_answer() {
    let mut net = Net::new(&[A, B, C], false);
    let spoofed = build::ethernet(A.1, gateway()).ipv4(C.3, GATEWAYS[0]).ping(7, 1, b"x");
    net.drops(A, &spoofed, "spoofed-ip");
    // Nor an error.
    let spoofed = build::ethernet(A.1, gateway()).ipv4(C.3, B.3).ttl(1).udp(1, 2, b"x");
    net.drops(A, &spoofed, "spoofed-ip");
    let mut net = Net::new(&[A, B, C], true);
    let foreign = build::ethernet(A.1, gateway()).ipv4(B.3, GATEWAYS[0]).ping(7, 1, b"x");
    net.drops(A, &foreign, "foreign-source");
}

/// RFC 1812, 4.3.2.7.
#[test]
fn no_error_about_errors_groups_or_later_fragments() {
    let mut net = Net::new(&[A, B, C], true);
    let last = |ip: build::Ip| ip.ttl(1);
    let to_b = || last(to_gateway(A, B.3));
    let quoted = build::ethernet(B.1, A.1).ipv4(B.3, A.3).udp(1, 2, b"x");
    net.drops(A, &to_b().icmp(3, 3, 0, &quoted[14..]), "ttl-expired");
    net.drops(A, &to_b().icmp(5, 1, 0, &quoted[14..]), "ttl-expired");
    net.drops(A, &to_b().fragment(1, 1480, false).payload(17, &[0; 64]), "ttl-expired");
    // From a group address no error goes anywhere; to one nothing is routed.
    let all = build::ethernet(A.1, gateway()).ipv4(A.3, [224, 0, 0, 5]).ttl(1).udp(1, 2, b"x");
    net.drops(A, &all, "route-group");
    // The first fragment gets one.
    let first = to_b().fragment(1, 0, true).payload(17, &[0; 64]);
    net.refuses(A, &first, "ttl-expired", (11, 0, 0));
}

/// A hundred answers a second for a machine, of which ARP has a fifth for itself: who floods its
/// gateway with echo still finds it.
#[test]
fn answers_are_bounded_and_arp_has_its_part() {
    let mut net = Net::new(&[A, B, C], true);
    let ping = to_gateway(A, GATEWAYS[0]).ping(7, 1, b"x");
    let expired = to_gateway(A, B.3).ttl(1).udp(1, 2, b"x");
    let mut answered = 0;
    for _ in 0..100 {
        answered += net.send(A, &ping).len() + net.send(A, &expired).len();
    }
    assert!((80..=84).contains(&answered), "{answered} answers");
    let moved = net.host.moved();
    assert!(moved.get("a.drop.born-full").is_some_and(|full| *full >= 58), "{moved:?}");
    assert_eq!(
        moved.get("a.drop.ttl-expired"),
        Some(&100),
        "an error that is not sent is one drop"
    );
    let ask = build::ethernet(A.1, Mac::BROADCAST).arp_request(A.3, GATEWAYS[0]);
    assert_eq!(net.send(A, &ask).len(), 1);
    // Others have answers of their own.
    assert_eq!(net.send(C, &to_gateway(C, GATEWAYS[0]).ping(7, 1, b"x")).len(), 1);
}

/// Sixteen for frames that the switch sees at once.
#[test]
fn a_burst_of_questions_is_answered() {
    for (asked, answered) in [(16, 16), (20, 16)] {
        let mut net = Net::new(&[A, B, C], true);
        let guest = net.host.guest("a").unwrap();
        for number in 0..asked {
            let ask = to_gateway(A, GATEWAYS[0]).ping(7, number, b"x");
            guest.enqueue(&ask, NetHeader::default()).unwrap();
        }
        guest.flush();
        while net.host.turn() {}
        assert_eq!(net.host.received().unwrap()["a"].len(), answered);
        let full = net.host.moved().get("a.drop.born-full").copied().unwrap_or(0);
        assert_eq!(answered as u64 + full, u64::from(asked));
    }
}

/// A machine that asks and does not read: what finds no room in its ring is a drop with a name.
#[test]
fn an_answer_that_finds_no_room_is_counted() {
    let mut net = Net::new(&[A, B, C], true);
    let ping = to_gateway(A, GATEWAYS[0]).ping(7, 1, b"x");
    let mut asked = 0;
    for _ in 0..20 {
        for _ in 0..5 {
            let guest = net.host.guest("a").unwrap();
            guest.reclaim().unwrap();
            for _ in 0..16 {
                guest.enqueue(&ping, NetHeader::default()).unwrap();
            }
            guest.flush();
            while net.host.turn() {}
            asked += 16;
        }
        net.host.pass(1);
    }
    let moved = net.host.moved();
    let count = |name: &str| moved.get(name).copied().unwrap_or(0);
    let got = net.host.received().unwrap()["a"].len() as u64;
    assert!(count("a.drop.ring-full") > 0, "{got} of {asked}: {moved:?}");
    assert_eq!(got + count("a.drop.ring-full") + count("a.drop.born-full"), asked, "{moved:?}");
}

/// A frame of several segments passes if each fits, and else its sender hears of the MTU.
#[test]
fn segments_fit_one_by_one() {
    let mut net = Net::new(&[A, B, C], true);
    for (segment, fits) in [(1360, true), (1361, false)] {
        let ack =
            build::Tcp { sequence: 1, acknowledgement: 1, ..build::Tcp::new(4000, 5001, ACK) };
        let payload = vec![0x5a; segment * 4];
        let mut frame = to_gateway(A, B.3).dont_fragment().tcp(&ack, &payload);
        let len = (frame.len() - 34) as u16;
        let sum = Sum::pseudo_v4(A.3.into(), B.3.into(), 6, len).fold();
        frame[50..52].copy_from_slice(&sum.to_be_bytes());
        let header = NetHeader {
            flags: NetHeader::FLAG_NEEDS_CSUM,
            gso_type: NetHeader::GSO_TCPV4,
            hdr_len: 54,
            gso_size: segment as u16,
            csum_start: 34,
            csum_offset: 16,
            ..NetHeader::NONE
        };
        net.host.send(A.0, &frame, header).unwrap();
        let got = net.host.received().unwrap();
        let moved = net.host.moved();
        let to: Vec<_> = got.keys().map(String::as_str).collect();
        if fits {
            assert_eq!(to, ["b"], "{moved:?}");
            let bytes: usize = got["b"].iter().map(|(_, frame)| frame.len() - 54).sum();
            assert_eq!(bytes, payload.len());
            assert!(got["b"].iter().all(|(_, frame)| frame[22] == 63));
        } else {
            assert_eq!(to, ["a"], "{moved:?}");
            let (_, error) = &got["a"][0];
            assert_eq!((&error[34..36], &error[40..42]), (&[3, 4][..], &1400u16.to_be_bytes()[..]));
            assert_eq!(moved.get("a.drop.route-too-big"), Some(&1), "{moved:?}");
        }
    }
}

#[test]
fn an_echo_is_explained() {
    let net = Net::new(&[A, B], false);
    for at in GATEWAYS {
        let question = Question {
            from: Origin::Vnic("a".into()),
            to: Target::Address(at.into()),
            source: None,
            source_mac: None,
            destination_mac: None,
            protocol: ICMP,
            source_port: None,
            destination_port: None,
            flags: None,
            icmp: None,
            length: None,
            reply: false,
        };
        let told = net.host.explain(&question).unwrap();
        assert_eq!(told.destination_mac, gateway());
        assert_eq!(told.walks[0].fate, Fate::Answered, "{told:?}");
    }
}

//! The same by IPv6: what passes, what does not, and what routers say.

use std::net::Ipv6Addr;

use butterfly_datapath::{
    Fate, GroupChange, Mac, Origin, Question, RoutingChange, Target, VnicPolicy,
};
use butterfly_model::{Cidr, Direction, GroupName, Network, Rule, Subnet};
use butterfly_packet::{
    build::{self, Ip},
    icmp::v6,
    neighbour,
    protocol::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMPV6, ROUTING, UDP},
    tcp::SYN,
};

use crate::net::*;

type Six = [u16; 8];

const SIX_A: Six = [0xfd00, 0x42, 0, 0, 0, 0, 0, 0xa];
const SIX_B: Six = [0xfd00, 0x50, 0, 0, 0, 0, 0, 0xb];
const SIX_C: Six = [0xfd00, 0x42, 0, 0, 0, 0, 0, 0xc];
const OWN: [Six; 2] = [[0xfd00, 0x42, 0, 0, 0, 0, 0, 1], [0xfd00, 0x50, 0, 0, 0, 0, 0, 1]];

/// Machines in networks 42 and 50, with both families, which a router joins. None of them gets what
/// a test does not name.
fn net(bypass: bool) -> Net {
    let mut net = Net::apart(&[], bypass);
    for ((id, mac, vni, ip), six) in [(A, SIX_A), (B, SIX_B), (C, SIX_C)] {
        let ips = vec![ip.into(), Ipv6Addr::from(six).into()];
        let policy = VnicPolicy { ips, ..policy(ip, bypass) };
        net.host.vnic(id, mac, vni, &policy).unwrap();
    }
    for (number, four, gateway, six, own, mtu) in [
        (42, "10.0.0.0/24", "10.0.0.1", "fd00:42::/64", "fd00:42::1", None),
        (50, "10.1.0.0/24", "10.1.0.1", "fd00:50::/64", "fd00:50::1", Some(1400)),
    ] {
        let subnets = [(four, gateway), (six, own)];
        let subnets = subnets.map(|(block, own)| Subnet::parse(block, Some(own)).unwrap());
        let network = Network::new(vni(number), subnets.into(), mtu).unwrap();
        net.host.change_routing(RoutingChange::DeclareNetwork(network));
    }
    net.host.change_routing(router("r", &[42, 50]));
    net.host.settle();
    net.host.moved();
    net
}

fn from_a(to: Six) -> Ip {
    build::ethernet(A.1, gateway()).ipv6(SIX_A, to)
}

/// A packet, and the one that a router makes of it.
fn passed(from: (Machine, Six), to: (Machine, Six), make: impl Fn(Ip) -> Vec<u8>) -> [Vec<u8>; 2] {
    let sent = make(build::ethernet(from.0.1, gateway()).ipv6(from.1, to.1));
    let arrives = make(build::ethernet(gateway(), to.0.1).ipv6(from.1, to.1).ttl(63));
    [sent, arrives]
}

/// Asserts that a frame is dropped for this reason, and that its sender hears of it.
#[track_caller]
fn refuses(net: &mut Net, frame: &[u8], reason: &str, (kind, code, rest): (u8, u8, u32)) {
    let quote = &frame[14..frame.len().min(14 + 1280 - 48)];
    let error = build::ethernet(gateway(), A.1).ipv6(OWN[0], SIX_A).icmp(kind, code, rest, quote);
    let got = net.send(A, frame);
    assert_eq!(got, [("a".to_owned(), vec![error])].into());
    net.counts_one(A, reason);
}

fn solicited_node(target: Six) -> (Mac, Six) {
    let [.., high, low] = target;
    let group = [0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low];
    (Mac::of_group_v6(group.into()), group)
}

/// Body of a neighbour message: its target, and an option with a MAC address.
fn about(target: Six, option: Option<(u8, Mac)>) -> Vec<u8> {
    let mut body = Ipv6Addr::from(target).octets().to_vec();
    if let Some((kind, mac)) = option {
        body.extend([kind, 1]);
        body.extend(mac.0);
    }
    body
}

/// Neighbour solicitation of an address, with the sender's MAC address if it has an address.
fn solicitation(from: Six, target: Six) -> Vec<u8> {
    let (mac, group) = solicited_node(target);
    let option = (from != [0; 8]).then_some((1, A.1));
    build::ethernet(A.1, mac).ipv6(from, group).ttl(255).icmp(135, 0, 0, &about(target, option))
}

/// Lets out TCP and nothing else.
fn tcp_alone(net: &mut Net) {
    let (ports, all) = ((Some(1), Some(65535)), Cidr::new("::", 0).unwrap());
    let rule = Rule::new(Direction::Outbound, 6, ports, Some(all), None).unwrap();
    let open = GroupName::new("open").unwrap();
    net.host.change_group(&open, GroupChange::AddRule(rule)).unwrap();
}

#[test]
fn a_packet_passes_both_ways() {
    let mut net = net(true);
    for payload in [&b""[..], &[7; 1300]] {
        let [sent, arrives] = passed((A, SIX_A), (B, SIX_B), |ip| ip.udp(1000, 53, payload));
        net.passes(A, &sent, B, &arrives);
        // Between two packets of IPv4, whose way is known, too.
        let [four, four_arrives] = routed(A, B, |ip| ip.udp(1000, 53, payload));
        net.passes(A, &four, B, &four_arrives);
        let [sent, arrives] = passed((B, SIX_B), (A, SIX_A), |ip| ip.udp(53, 1000, payload));
        net.passes(B, &sent, A, &arrives);
    }
}

/// Both families in one batch, each with two ends: none is taken for another.
#[test]
fn each_packet_of_a_batch_has_its_own_way() {
    let mut net = net(true);
    let [six, six_arrives] = passed((A, SIX_A), (B, SIX_B), |ip| ip.udp(1, 2, b"x"));
    let [four, four_arrives] = routed(A, B, |ip| ip.udp(1, 2, b"x"));
    let nobody = from_a([0xfd00, 0x50, 0, 0, 0, 0, 0, 0x77]).udp(1, 2, b"x");
    for frame in [&six, &four, &nobody, &six, &four, &six] {
        let guest = net.host.guest("a").unwrap();
        guest.enqueue(frame, Default::default()).unwrap();
    }
    net.host.guest("a").unwrap().flush();
    while net.host.turn() {}
    let got = net.host.received().unwrap();
    let frames: Vec<_> = got["b"].iter().map(|(_, frame)| frame.clone()).collect();
    let mut expected = vec![
        six_arrives.clone(),
        four_arrives.clone(),
        six_arrives.clone(),
        four_arrives,
        six_arrives,
    ];
    let mut frames = frames;
    frames.sort();
    expected.sort();
    assert_eq!(frames, expected);
    assert_eq!(got["a"].len(), 1, "an error about one");
}

/// A way that is known is for packets that may go it.
#[test]
fn a_known_way_is_not_for_all() {
    let [good, arrives] = passed((A, SIX_A), (B, SIX_B), |ip| ip.udp(1, 2, b"x"));
    let to_b = || from_a(SIX_B);
    let mut cut = to_b().udp(1, 2, b"x");
    cut[19] += 1;
    let via = to_b().extension(ROUTING, &[0, 0, 0, 0, 0, 0]).udp(1, 2, b"x");
    let mut other_type = good.clone();
    other_type[12..14].copy_from_slice(&[0x88, 0xb5]);
    let mut other_version = good.clone();
    other_version[14] = 0x50;
    for (bad, reason) in [
        (to_b().ttl(1).udp(1, 2, b"x"), "ttl-expired"),
        (to_b().ttl(0).udp(1, 2, b"x"), "ttl-expired"),
        (to_b().udp(1, 2, &[0; 1353]), "route-too-big"),
        (cut, "ip-checksum"),
        (via, "source-routed"),
        (other_type, "gateway-not-ip"),
        (other_version, "gateway-tagged"),
        (build::ethernet(A.1, gateway()).ipv6(SIX_B, SIX_B).udp(1, 2, b"x"), "foreign-source"),
        (from_a([0xfd00, 0x50, 0, 0, 0, 0, 0, 0x77]).udp(1, 2, b"x"), "next-hop-unknown"),
        (build::ethernet(C.1, gateway()).ipv6(SIX_C, SIX_C).udp(1, 2, b"x"), "route-back"),
    ] {
        let mut net = net(true);
        let guest = net.host.guest("a").unwrap();
        for frame in [&good, &bad, &good] {
            guest.enqueue(frame, Default::default()).unwrap();
        }
        guest.flush();
        while net.host.turn() {}
        let got = net.host.received().unwrap();
        let frames: Vec<_> = got["b"].iter().map(|(_, frame)| frame).collect();
        assert_eq!(frames, [&arrives, &arrives], "{reason}");
        net.counts_one(A, reason);
    }
}

#[test]
fn both_ways_are_one_session() {
    let mut net = net(false);
    net.admit("fd00:42::/64");
    let [there, there_arrives] = passed((A, SIX_A), (B, SIX_B), |ip| ip.udp(1000, 53, b"?"));
    let [back, back_arrives] = passed((B, SIX_B), (A, SIX_A), |ip| ip.udp(53, 1000, b"!"));
    assert_eq!(net.send(B, &back).len(), 0);
    assert_eq!(net.host.moved().get("a.drop.ingress-denied"), Some(&1));
    net.passes(A, &there, B, &there_arrives);
    net.passes(B, &back, A, &back_arrives);
    assert_eq!(net.sessions(), 1);
}

/// Also a filtered machine whose rules let out nothing of the kind: without its gateway's MAC
/// address it could send nothing at all.
#[test]
fn a_gateway_answers_who_asks_for_it() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        if !bypass {
            tcp_alone(&mut net);
        }
        let ends = ((A.1, SIX_A.into()), (gateway(), OWN[0].into()));
        let answer = neighbour::advertisement(ends.0, ends.1);
        net.passes(A, &solicitation(SIX_A, OWN[0]), A, &answer);
        // Who probes hears that it is taken.
        let taken = neighbour::advertisement((A.1, Ipv6Addr::UNSPECIFIED), ends.1);
        net.passes(A, &solicitation([0; 8], OWN[0]), A, &taken);
        // And who asks by the gateway's own MAC address whether it is still there.
        let still = from_a(OWN[0]).ttl(255).icmp(135, 0, 0, &about(OWN[0], Some((1, A.1))));
        net.passes(A, &still, A, &answer);
        // An answer that nobody asked for.
        let told = from_a(OWN[0]).ttl(255).icmp(136, 0, 0, &about(SIX_A, Some((2, A.1))));
        assert_eq!(net.send(A, &told), [].into());
        assert!(net.host.moved().keys().all(|name| !name.contains(".drop.")));
    }
}

/// RFC 4861, 7.1.1: what is not as it should be is no question. It is a frame like any other: it
/// goes to its neighbour, and if it is for the gateway's MAC address, to nobody.
#[test]
fn what_is_no_question_gets_no_answer() {
    let mut net = net(true);
    let good = solicitation(SIX_A, OWN[0]);
    let (mac, group) = solicited_node(OWN[0]);
    let from = |source: Six, to: Six| build::ethernet(A.1, mac).ipv6(source, to);
    let own = || about(OWN[0], Some((1, A.1)));
    let mut wrong_sum = good.clone();
    *wrong_sum.last_mut().unwrap() ^= 1;
    for frame in [
        from(SIX_A, group).ttl(254).icmp(135, 0, 0, &own()),
        from(SIX_A, group).ttl(255).icmp(135, 1, 0, &own()),
        from(SIX_A, group).ttl(255).icmp(135, 0, 0, &own()[..15]),
        from(SIX_A, group).ttl(255).icmp(135, 0, 0, &[&own()[..], &[14, 0, 0, 0]].concat()),
        // Who has no address yet gives no MAC address, and asks the group of the address alone.
        from([0; 8], group).ttl(255).icmp(135, 0, 0, &own()),
        from([0; 8], OWN[0]).ttl(255).icmp(135, 0, 0, &about(OWN[0], None)),
        from([0xff02, 0, 0, 0, 0, 0, 0, 1], group).ttl(255).icmp(135, 0, 0, &own()),
        // Of another network, and of nobody.
        solicitation(SIX_A, OWN[1]),
        solicitation(SIX_A, SIX_C),
        wrong_sum,
    ] {
        net.passes(A, &frame, C, &frame);
    }
    let direct = |hops| from_a(OWN[0]).ttl(hops).icmp(135, 0, 0, &own());
    net.drops(A, &direct(254), "gateway-no-service");
    let mut wrong_sum = direct(255);
    *wrong_sum.last_mut().unwrap() ^= 1;
    net.drops(A, &wrong_sum, "gateway-no-service");
    let tagged = build::ethernet(A.1, mac).vlan(5).ipv6(SIX_A, group).ttl(255);
    net.drops(A, &tagged.icmp(135, 0, 0, &own()), "gateway-tagged");
}

/// A filtered machine asks from its own address.
#[test]
fn nobody_asks_as_another() {
    let mut net = net(false);
    net.drops(A, &solicitation(SIX_C, OWN[0]), "ip-claimed");
    let nobody = [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x77];
    net.drops(A, &solicitation(nobody, OWN[0]), "bad-discovery");
}

#[test]
fn gateways_answer_an_echo() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        for own in OWN {
            let ask = from_a(own).ttl(1).ping(7, 1, b"there?");
            let answer = build::ethernet(gateway(), A.1).ipv6(own, SIX_A);
            net.passes(A, &ask, A, &answer.icmp(v6::ECHO_REPLY, 0, 7 << 16 | 1, b"there?"));
        }
    }
}

/// Which machine sends it, with a filter or without, makes no difference.
#[test]
fn what_goes_no_further_is_told() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        net.admit("fd00:42::/64");
        let to_b = || from_a(SIX_B);
        refuses(&mut net, &to_b().ttl(1).udp(1, 2, b"x"), "ttl-expired", (3, 0, 0));
        refuses(&mut net, &to_b().ttl(0).udp(1, 2, &[7; 1300]), "ttl-expired", (3, 0, 0));
        let nowhere = [0xfd00, 0x99, 0, 0, 0, 0, 0, 1];
        refuses(&mut net, &from_a(nowhere).udp(1, 2, b"x"), "no-route", (1, 0, 0));
        let nobody = [0xfd00, 0x50, 0, 0, 0, 0, 0, 0x77];
        refuses(&mut net, &from_a(nobody).udp(1, 2, b"x"), "next-hop-unknown", (1, 3, 0));
        refuses(&mut net, &to_b().udp(1, 2, &[0; 1353]), "route-too-big", (2, 0, 1400));
        let [sent, arrives] = passed((A, SIX_A), (B, SIX_B), |ip| ip.udp(1, 2, &[0; 1352]));
        net.passes(A, &sent, B, &arrives);
        refuses(&mut net, &from_a(OWN[0]).udp(1, 53, b"?"), "gateway-no-service", (1, 4, 0));
        let ospf = from_a(OWN[1]).payload(89, &[2; 24]);
        refuses(&mut net, &ospf, "gateway-no-service", (4, 1, 6));
        // Behind other headers, too, whose last one names the protocol.
        let behind = || from_a(OWN[0]).extension(DESTINATION_OPTIONS, &[1, 4]);
        let dns = behind().udp(1, 53, b"?");
        refuses(&mut net, &dns, "gateway-no-service", (1, 4, 0));
        refuses(&mut net, &behind().payload(89, &[2; 24]), "gateway-no-service", (4, 1, 40));
        // The first fragment gets one, the others do not.
        let piece = |offset| to_b().ttl(1).fragment(7, offset, true).payload(UDP, &[1; 64]);
        refuses(&mut net, &piece(0), "ttl-expired", (3, 0, 0));
        net.drops(A, &piece(64), "ttl-expired");
    }
}

#[test]
fn what_is_not_routed_has_a_name() {
    let from = |source: Six, to: Six| build::ethernet(A.1, gateway()).ipv6(source, to);
    let udp = |ip: Ip| ip.udp(1, 2, b"x");
    let mapped = |d: u16| [0, 0, 0, 0, 0, 0xffff, 0x0a00, d];
    let local = [0xfe80, 0, 0, 0, 0, 0, 0, 1];
    for bypass in [true, false] {
        let mut net = net(bypass);
        for source in [
            SIX_B,
            local,
            [0; 8],
            [0, 0, 0, 0, 0, 0, 0, 1],
            [0xff02, 0, 0, 0, 0, 0, 0, 1],
            mapped(10),
            OWN[0],
        ] {
            net.drops(A, &udp(from(source, SIX_B)), "foreign-source");
            net.drops(A, &from(source, OWN[1]).ping(1, 1, b"x"), "foreign-source");
        }
        for to in [
            [0xff0e, 0, 0, 0, 0, 0, 0, 1],
            [0xff02, 0, 0, 0, 0, 0, 0, 1],
            local,
            [0; 8],
            [0, 0, 0, 0, 0, 0, 0, 1],
            [0, 0, 0, 0, 0, 0xffff, 0x0a01, 10],
        ] {
            net.drops(A, &udp(from_a(to)), "route-group");
        }
        let back = [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x77];
        net.drops(A, &udp(from_a(back)), "route-back");
        // Longer than the frame, and cut in its header.
        let mut long = udp(from_a(SIX_B));
        long[19] += 1;
        net.drops(A, &long, "ip-checksum");
        net.drops(A, &udp(from_a(SIX_B))[..50], "ip-checksum");
        // No errors about errors.
        let quoted = build::ethernet(B.1, A.1).ipv6(SIX_B, SIX_A).udp(1, 2, b"x");
        for kind in [1, 4, 100, 127, 137] {
            let error = from_a(SIX_B).ttl(1).icmp(kind, 0, 0, &quoted[14..]);
            let got = net.send(A, &error);
            assert_eq!(got, [].into(), "{kind}: {:?}", net.host.moved());
            net.host.moved();
        }
        // A router speaks ICMPv6, if only the echo of it, and behind the last header is nothing.
        let other = from_a(OWN[0]).icmp(144, 0, 0, &[0; 24]);
        net.drops(A, &other, "gateway-no-service");
        let tagged = build::ethernet(A.1, gateway()).vlan(5).ipv6(SIX_A, SIX_B);
        net.drops(A, &udp(tagged), "gateway-tagged");
    }
}

/// RFC 5095. Wherever the header stands, and if it is where no frame has its first bytes at hand.
#[test]
fn source_routed() {
    for bypass in [true, false] {
        let mut net = net(bypass);
        net.admit("fd00:42::/64");
        let padding = [1, 100].into_iter().chain([0; 100]).collect::<Vec<u8>>();
        let via = |kind: u8| [&[kind, 1, 0, 0, 0, 0][..], &[0xfd; 16]].concat();
        let udp = |ip: Ip| ip.udp(1, 2, b"x");
        let chains: [&[(u8, &[u8])]; 4] = [
            &[],
            &[(HOP_BY_HOP, &[1, 4]), (DESTINATION_OPTIONS, &[1, 4])],
            &[(DESTINATION_OPTIONS, &padding)],
            &[(FRAGMENT, &[])],
        ];
        for chain in chains {
            for (kind, routed) in [(0, false), (2, true), (4, true)] {
                let make = |ip: Ip| {
                    let ip = chain.iter().fold(ip, |ip, (kind, bytes)| match *kind {
                        FRAGMENT => ip.fragment(7, 0, false),
                        _ => ip.extension(*kind, bytes),
                    });
                    udp(ip.extension(ROUTING, &via(kind)))
                };
                let [sent, arrives] = passed((A, SIX_A), (B, SIX_B), make);
                match routed {
                    true => net.passes(A, &sent, B, &arrives),
                    false => net.drops(A, &sent, "source-routed"),
                }
            }
        }
        // So many that nobody sees their end; and one that is no header at all.
        let long: Vec<u8> = [1, 220].into_iter().chain([0; 220]).collect();
        net.drops(A, &udp(from_a(SIX_B).extension(DESTINATION_OPTIONS, &long)), "headers-too-long");
        let mut cut = udp(from_a(SIX_B).extension(DESTINATION_OPTIONS, &[1, 4]));
        cut[55] = 9;
        net.drops(A, &cut, "malformed-ip");
    }
}

/// Errors of the router, and its answers, tell nobody what its rules keep from it.
#[test]
fn words_of_the_router_need_the_senders_rules() {
    let mut net = net(false);
    tcp_alone(&mut net);
    for frame in [
        from_a(SIX_B).ttl(1).udp(1, 2, b"x"),
        from_a([0xfd00, 0x99, 0, 0, 0, 0, 0, 1]).udp(1, 2, b"x"),
        from_a(OWN[0]).udp(1, 53, b"x"),
        from_a(OWN[0]).ping(7, 1, b"there?"),
    ] {
        net.drops(A, &frame, "egress-denied");
    }
    let syn = build::Tcp::new(1, 2, SYN);
    let frame = from_a(SIX_B).ttl(1).tcp(&syn, b"");
    refuses(&mut net, &frame, "ttl-expired", (3, 0, 0));
}

/// A machine that pings its gateway without end still finds it.
#[test]
fn answers_are_bounded_and_discovery_has_its_part() {
    let mut net = net(true);
    let ping = from_a(OWN[0]).ping(7, 1, b"x");
    let expired = from_a(SIX_B).ttl(1).udp(1, 2, b"x");
    let mut answered = 0;
    for _ in 0..100 {
        answered += net.send(A, &ping).len() + net.send(A, &expired).len();
    }
    assert!((80..=84).contains(&answered), "{answered} answers");
    let moved = net.host.moved();
    assert!(moved.get("a.drop.born-full").is_some_and(|full| *full >= 58), "{moved:?}");
    assert_eq!(moved.get("a.drop.ttl-expired"), Some(&100));
    assert_eq!(net.send(A, &solicitation(SIX_A, OWN[0])).len(), 1);
}

/// An error of a machine passes by the session of the packet that it quotes.
#[test]
fn an_error_of_a_machine_passes_by_its_session() {
    let mut net = net(false);
    net.admit("fd00:42::/64");
    let [there, there_arrives] = passed((A, SIX_A), (B, SIX_B), |ip| ip.udp(1000, 53, b"?"));
    net.passes(A, &there, B, &there_arrives);
    let quote = there_arrives[14..].to_vec();
    let make = |ip: Ip| ip.icmp(1, 4, 0, &quote);
    let [error, error_arrives] = passed((B, SIX_B), (A, SIX_A), make);
    net.passes(B, &error, A, &error_arrives);
    // Another packet's is let in by no rule.
    let mut other = quote.clone();
    other[41] ^= 1;
    let [forged, _] = passed((B, SIX_B), (A, SIX_A), |ip| ip.icmp(1, 4, 0, &other));
    assert_eq!(net.send(B, &forged), [].into());
    assert_eq!(net.host.moved().get("a.drop.ingress-denied"), Some(&1));
}

/// A message of neighbour discovery for a machine of another network is a packet like any other,
/// and by its hops that machine knows that it is none of its link (RFC 4861, 3.1).
#[test]
fn a_message_of_a_link_is_none_of_another() {
    let mut net = net(false);
    for kind in [ICMPV6, UDP] {
        let block = Cidr::new("::", 0).unwrap();
        let ports = if kind == UDP { (Some(1), Some(65535)) } else { (None, None) };
        let rule = Rule::new(Direction::Inbound, kind.into(), ports, Some(block), None).unwrap();
        let open = GroupName::new("open").unwrap();
        net.host.change_group(&open, GroupChange::AddRule(rule)).unwrap();
    }
    for kind in 133..=137 {
        let body = about(SIX_A, Some((2, A.1)));
        let make = |ip: Ip, hops| ip.ttl(hops).icmp(kind, 0, 0, &body);
        let sent = make(from_a(SIX_B), 255);
        let arrives = make(build::ethernet(gateway(), B.1).ipv6(SIX_A, SIX_B), 254);
        net.passes(A, &sent, B, &arrives);
    }
}

#[test]
fn gateway_claimed() {
    let all = Mac::of_group_v6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let to_all = [0xff02, 0, 0, 0, 0, 0, 0, 1];
    let local = [0xfe80, 0, 0, 0, 0xff, 0xfe00, 0, 0xa];
    let own = about(OWN[0], Some((2, A.1)));
    let from = |source: Six| build::ethernet(A.1, all).ipv6(source, to_all).ttl(255);
    let redirect = |option: &[u8]| {
        let target = Ipv6Addr::from(OWN[0]).octets();
        [&target[..], &Ipv6Addr::from(SIX_B).octets(), option].concat()
    };
    let link = [&[2, 1][..], &A.1.0].concat();
    let advertised = [&[0; 8][..], &[1, 1], &gateway().0].concat();
    for bypass in [true, false] {
        for frame in [
            // It has the address; it says so as its own source; it has a router's MAC address.
            from(SIX_A).icmp(136, 0, 0x2000_0000, &own),
            from(SIX_A).icmp(136, 0, 0x2000_0000, &own[..16]),
            from(OWN[0]).icmp(136, 0, 0x2000_0000, &own),
            from(SIX_A).icmp(136, 0, 0x2000_0000, &about(SIX_A, Some((2, gateway())))),
            solicitation(OWN[0], SIX_C),
            from(local).icmp(134, 0, 0, &advertised),
            from(OWN[0]).icmp(134, 0, 0, &advertised[..8]),
            from(OWN[0]).icmp(133, 0, 0, &[]),
            // It is the better way to somewhere, with another MAC address.
            from(local).icmp(137, 0, 0, &redirect(&link)),
        ] {
            let mut net = net(bypass);
            net.drops(A, &frame, "gateway-claimed");
            // Nobody is bound to it: the gateway still is where it was.
            let ends = ((A.1, SIX_A.into()), (gateway(), OWN[0].into()));
            let answer = neighbour::advertisement(ends.0, ends.1);
            net.passes(A, &solicitation(SIX_A, OWN[0]), A, &answer);
        }
        // A sum that is wrong makes no claim less of one: nobody gets it.
        let mut wrong = from(SIX_A).icmp(136, 0, 0x2000_0000, &own);
        wrong[56] ^= 1;
        net(bypass).drops(A, &wrong, "gateway-claimed");
    }
}

/// The question goes to the gateway, as the guest's packet would, and its steps are told: also of
/// what the gateway answers, and of what goes no further.
#[test]
fn a_packet_is_explained() {
    let mut net = net(false);
    net.admit("fd00:42::/64");
    let question = |to: Six, protocol: u8| Question {
        from: Origin::Vnic("a".into()),
        to: Target::Address(Ipv6Addr::from(to).into()),
        source: Some(Ipv6Addr::from(SIX_A).into()),
        source_mac: None,
        destination_mac: None,
        protocol,
        source_port: (protocol == UDP).then_some(1000),
        destination_port: (protocol == UDP).then_some(53),
        flags: None,
        icmp: None,
        length: None,
        reply: protocol == UDP,
    };
    let told = net.host.explain(&question(SIX_B, UDP)).unwrap();
    assert_eq!(told.destination_mac, gateway());
    let fates: Vec<_> = told.walks.iter().map(|walk| walk.fate.clone()).collect();
    assert_eq!(fates, [Fate::Delivered("b".into()), Fate::Delivered("a".into())], "{told:?}");
    for walk in &told.walks {
        let stages: Vec<_> = walk.steps.iter().map(|step| step.stage).collect();
        assert!(stages.contains(&"route") && stages.contains(&"masquerade"), "{stages:?}");
    }
    for own in OWN {
        let told = net.host.explain(&question(own, ICMPV6)).unwrap();
        assert_eq!(told.destination_mac, gateway());
        assert_eq!(told.walks[0].fate, Fate::Answered, "{told:?}");
    }
    let nowhere = [0xfd00, 0x99, 0, 0, 0, 0, 0, 1];
    let told = net.host.explain(&question(nowhere, UDP)).unwrap();
    let Fate::Dropped(refused) = &told.walks[0].fate else { panic!("{told:?}") };
    assert_eq!((refused.reason.name, refused.charged.as_str()), ("no-route", "a"));
    assert_eq!(net.sessions(), 0, "nothing was sent");
}

//! Packets that do not pass, by name. Nobody gets a byte of it.

use butterfly_datapath::Mac;
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

use crate::net::*;

fn net() -> Net {
    Net::new(&[A, B, C], true)
}

/// Whichever network the packet is from; the sender is told.
#[test]
fn route_blackhole() {
    let mut net = Net::new(&[A, B], true);
    net.host.change_routing(leading("r", &[42, 50], &[("192.0.2.0/24", &[])]));
    let far = ("far", B.1, 50, [192, 0, 2, 5]);
    for _ in 0..2 {
        let [sent, _] = routed(A, far, |ip| ip.udp(1000, 53, b"x"));
        net.refuses(A, &sent, "route-blackhole", (3, 0, 0));
    }
    // It leads from the other network, too.
    let [sent, _] = routed(B, far, |ip| ip.udp(1000, 53, b"x"));
    net.refuses(B, &sent, "route-blackhole", (3, 0, 0));
}

#[test]
fn no_route() {
    let frame = build::ethernet(A.1, gateway()).ipv4(A.3, [192, 0, 2, 1]).udp(1, 2, b"x");
    net().refuses(A, &frame, "no-route", (3, 0, 0));
}

#[test]
fn next_hop_unknown() {
    let frame = build::ethernet(A.1, gateway()).ipv4(A.3, [10, 1, 0, 77]).udp(1, 2, b"x");
    net().refuses(A, &frame, "next-hop-unknown", (3, 1, 0));
    let mut net = net();
    net.host.detach("b");
    net.host.moved();
    let [sent, _] = routed(A, B, |ip| ip.udp(1, 2, b"x"));
    net.refuses(A, &sent, "next-hop-unknown", (3, 1, 0));
}

#[test]
fn foreign_source() {
    for source in [[10, 1, 0, 11], [192, 0, 2, 1], [10, 0, 0, 255], [10, 0, 0, 0]] {
        let frame = build::ethernet(A.1, gateway()).ipv4(source, B.3).udp(1, 2, b"x");
        net().drops(A, &frame, "foreign-source");
    }
}

#[test]
fn route_group() {
    for destination in [[224, 0, 0, 1], [255; 4], [127, 0, 0, 1], [0; 4], [10, 1, 0, 255]] {
        let frame = build::ethernet(A.1, gateway()).ipv4(A.3, destination).udp(1, 2, b"x");
        net().drops(A, &frame, "route-group");
    }
}

#[test]
fn route_back() {
    let [sent, _] = routed(A, C, |ip| ip.udp(1, 2, b"x"));
    net().drops(A, &sent, "route-back");
}

#[test]
fn ttl_expired() {
    for ttl in [0, 1] {
        let [mut sent, _] = routed(A, B, |ip| ip.udp(1, 2, b"x"));
        sent[22] = ttl;
        sent[24..26].copy_from_slice(&[0, 0]);
        let sum = butterfly_packet::checksum::Sum::of(&sent[14..34]).checksum();
        sent[24..26].copy_from_slice(&sum.to_be_bytes());
        net().refuses(A, &sent, "ttl-expired", (11, 0, 0));
    }
}

#[test]
fn ip_checksum() {
    for (at, bit) in [(24, 1), (16, 1), (22, 4), (14, 1)] {
        let [mut sent, _] = routed(A, B, |ip| ip.udp(1, 2, b"x"));
        sent[at] ^= bit;
        net().drops(A, &sent, "ip-checksum");
    }
}

#[test]
fn route_too_big() {
    let mut net = net();
    let [sent, arrives] = routed(A, B, |ip| ip.udp(1, 2, &[7; 1400 - 28]));
    net.passes(A, &sent, B, &arrives);
    // Without this flag it is cut: `cuts.rs`.
    let [sent, _] = routed(A, B, |ip| ip.dont_fragment().udp(1, 2, &[7; 1400 - 27]));
    net.refuses(A, &sent, "route-too-big", (3, 4, 1400));
}

/// A frame of several segments is as long as the longest of them: 1,400 bytes fit.
#[test]
fn route_too_big_is_said_of_segments() {
    let tcp = |ip: build::Ip| {
        let tcp = build::Tcp::new(1, 2, butterfly_packet::tcp::ACK);
        ip.dont_fragment().checksum(build::Checksum::Partial).tcp(&tcp, &[7; 1450])
    };
    for (size, fits) in [(1360, true), (1361, false), (1448, false), (1450, false)] {
        let mut net = net();
        let [sent, arrives] = routed(A, B, tcp);
        let header = NetHeader {
            flags: NetHeader::FLAG_NEEDS_CSUM,
            csum_start: 34,
            csum_offset: 16,
            gso_type: NetHeader::GSO_TCPV4,
            gso_size: size,
            ..NetHeader::default()
        };
        net.host.send(A.0, &sent, header).unwrap();
        let got = net.host.received().unwrap();
        let got: Vec<_> = got.get("b").into_iter().flatten().map(|(_, frame)| frame).collect();
        let moved = net.host.moved();
        if fits {
            assert_eq!(got, [&arrives], "{size}: {moved:?}");
        } else {
            assert!(got.is_empty() && moved["a.drop.route-too-big"] == 1, "{size}: {moved:?}");
        }
    }
}

#[test]
fn gateway_claimed() {
    let me = |to| build::ethernet(A.1, to).arp_reply(GATEWAYS[0], C.3);
    for frame in [
        me(C.1),
        me(gateway()),
        build::ethernet(A.1, Mac::BROADCAST).arp_request(GATEWAYS[0], GATEWAYS[0]),
    ] {
        net().drops(A, &frame, "gateway-claimed");
    }
}

/// As any machine would read it: Linux takes the hardware type of IEEE 802, too (6).
#[test]
fn gateway_claimed_in_other_words() {
    let mut other_type = build::ethernet(A.1, Mac::BROADCAST).arp_reply(GATEWAYS[0], C.3);
    other_type[15] = 6;
    net().drops(A, &other_type, "gateway-claimed");
    for mac in [gateway(), Mac([0xb2, 0xf1, 10, 0, 0, 1])] {
        let mut frame = build::ethernet(A.1, Mac::BROADCAST).arp_reply(A.3, C.3);
        frame[22..28].copy_from_slice(&mac.0);
        net().drops(A, &frame, "gateway-claimed");
    }
}

#[test]
fn gateway_tagged() {
    let [sent, _] = routed(A, B, |ip| ip.udp(1, 2, b"x"));
    let tagged = [&sent[..12], &[0x81, 0, 0, 5], &sent[12..]].concat();
    net().drops(A, &tagged, "gateway-tagged");
    for to in [gateway(), Mac::BROADCAST] {
        let frame = build::ethernet(A.1, to).vlan(5).arp_request(A.3, GATEWAYS[0]);
        net().drops(A, &frame, "gateway-tagged");
    }
    let answer = build::ethernet(A.1, gateway()).vlan(5).arp_reply(A.3, GATEWAYS[0]);
    net().drops(A, &answer, "gateway-tagged");
}

#[test]
fn gateway_not_ip() {
    let frame = build::ethernet(A.1, gateway()).payload(0x88b5, &[0; 46]);
    net().drops(A, &frame, "gateway-not-ip");
}

/// Not flooded, whatever it is, and with and without routers in the network.
#[test]
fn gateway_not_here() {
    let other = Mac([0xb2, 0xf0, 9, 9, 9, 9]);
    let frame = build::ethernet(A.1, other).ipv4(A.3, B.3).udp(1, 2, b"x");
    net().drops(A, &frame, "gateway-not-here");
    Net::apart(&[A, B, C], true).drops(A, &frame, "gateway-not-here");
}

#[test]
fn gateway_no_service() {
    let to = |at: [u8; 4]| build::ethernet(A.1, gateway()).ipv4(A.3, at);
    for at in GATEWAYS {
        let mut net = net();
        net.refuses(A, &to(at).udp(1000, 53, b"?"), "gateway-no-service", (3, 3, 0));
        let syn = build::Tcp::new(1000, 22, butterfly_packet::tcp::SYN);
        net.refuses(A, &to(at).tcp(&syn, b""), "gateway-no-service", (3, 3, 0));
        net.refuses(A, &to(at).payload(89, &[2; 24]), "gateway-no-service", (3, 2, 0));
        // Errors, echo in parts, and echo with more behind it than is kept get no answer.
        let padded = [to(at).ping(1, 1, &[0; 1400]), vec![0; 200]].concat();
        net.drops(A, &padded, "gateway-no-service");
        net.drops(A, &to(at).icmp(3, 3, 0, &[0x45; 28]), "gateway-no-service");
        let part = to(at).fragment(7, 1480, false).payload(1, &[0; 64]);
        net.drops(A, &part, "gateway-no-service");
    }
}

#[test]
fn born_full() {
    let mut net = net();
    let ask = build::ethernet(A.1, Mac::BROADCAST).arp_request(A.3, GATEWAYS[0]);
    let answered = (0..150).filter(|_| !net.send(A, &ask).is_empty()).count();
    let full = net.host.moved().get("a.drop.born-full").copied().unwrap_or(0);
    assert_eq!(answered as u64 + full, 150);
    assert!((100..=110).contains(&answered), "{answered} answers");
}

/// In networks with and without a router. A filtered vnic has one address, which is none of them.
#[test]
fn router_mac() {
    for source in [gateway(), Mac([0xb2, 0xf1, 10, 0, 0, 1])] {
        for to in [C.1, Mac::BROADCAST, gateway()] {
            let frame = build::ethernet(source, to).ipv4(A.3, C.3).udp(1, 2, b"x");
            net().drops(A, &frame, "router-mac");
            Net::apart(&[A, B, C], true).drops(A, &frame, "router-mac");
            Net::new(&[A, B, C], false).drops(A, &frame, "spoofed-mac");
        }
    }
}

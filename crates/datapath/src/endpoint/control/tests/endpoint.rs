//! ARP, neighbour solicitations and pings for the endpoint.

use std::net::Ipv4Addr;

use butterfly_packet::{arp::Arp, icmp::Icmp, ipv4::Ipv4};

use super::*;
use crate::endpoint::silence::Refusal;

const ME: [u8; 4] = [10, 1, 0, 1];
const ME6: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 1];
const YOU6: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 2];
const GROUP6: [u16; 8] = [0xff02, 0, 0, 0, 0, 1, 0xff00, 1];
const GROUP_MAC: Mac = Mac([0x33, 0x33, 0xff, 0, 0, 1]);

fn solicitation(source: [u16; 8], option: &[u8]) -> Vec<u8> {
    let target = Ipv6Addr::from(ME6).octets();
    build::ethernet(B, GROUP_MAC).ipv6(source, GROUP6).ttl(255).icmp(
        135,
        0,
        0,
        &[&target[..], option].concat(),
    )
}

#[test]
fn arp_is_answered_for_the_endpoint_alone() {
    let mut host = Host::new(false, true);
    let link = build::ethernet(B, Mac::BROADCAST);
    for sender in [[10, 1, 0, 2], [0; 4]] {
        let out = host.hears(&link.arp_request(sender, ME));
        assert_eq!(
            out.frames,
            [build::ethernet(A, B).arp(2, (A, ME.into()), (B, Ipv4Addr::from(sender)))]
        );
    }
    assert_eq!(host.hears(&link.clone().vlan(0).arp_request([10, 1, 0, 2], ME)).frames.len(), 1);
    assert_eq!(host.count(Count::Answered), 3);
    host.refuses(&link.arp_request([10, 1, 0, 2], [10, 1, 0, 3]), Count::Ignored, "another's");
    host.refuses(
        &link.clone().vlan(0).vlan(0).arp_request([10, 1, 0, 2], ME),
        Count::Ignored,
        "two tags",
    );
    host.refuses(
        &link.arp(1, (Mac::BROADCAST, [10, 1, 0, 2].into()), (Mac::ZERO, ME.into())),
        Count::Malformed,
        "from everyone",
    );
    host.refuses(
        &build::ethernet(B, C).arp_request([10, 1, 0, 2], ME),
        Count::Misdirected,
        "to another",
    );
    host.refuses(&link.arp_request([10, 1, 0, 2], ME)[..41], Count::Malformed, "cut short");
    host.refuses(
        &build::ethernet(A, Mac::BROADCAST).arp_request(ME, ME),
        Count::Own,
        "heard ourselves",
    );
    let mut silent = Host::new(false, false);
    silent.refuses(&link.arp_request([10, 1, 0, 2], ME), Count::Ignored, "somebody else answers");
    Host::new(true, true).refuses(
        &link.arp_request([10, 1, 0, 2], ME),
        Count::Ignored,
        "an IPv6 endpoint",
    );
}

#[test]
fn solicitations_are_answered_for_the_endpoint_alone() {
    let mut host = Host::new(true, true);
    let with = [1, 1, 2, 0xbf, 0, 0, 0, 0xb];
    let reply = |mac: Mac, destination: [u16; 8], flags: u32| {
        let body = [&Ipv6Addr::from(ME6).octets()[..], &[2, 1], &A.0].concat();
        build::ethernet(A, mac).ipv6(ME6, destination).ttl(255).icmp(136, 0, flags, &body)
    };
    assert_eq!(host.hears(&solicitation(YOU6, &with)).frames, [reply(B, YOU6, 0x6000_0000)]);
    assert_eq!(host.hears(&solicitation(YOU6, &[])).frames, [reply(B, YOU6, 0x6000_0000)]);
    // Another host probes whether our address is free.
    let all_nodes = [0xff02, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(
        host.hears(&solicitation([0; 8], &[])).frames,
        [reply(Mac([0x33, 0x33, 0, 0, 0, 1]), all_nodes, 0x2000_0000)]
    );
    let target = Ipv6Addr::from(ME6).octets();
    let body = [&target[..], &with].concat();
    let unicast = build::ethernet(B, A).ipv6(YOU6, ME6).ttl(255);
    assert_eq!(host.hears(&unicast.icmp(135, 0, 0, &body)).frames.len(), 1);
    assert_eq!(host.count(Count::Answered), 4);

    let mut corrupt = solicitation(YOU6, &with);
    corrupt[60] ^= 1;
    let other = Ipv6Addr::from(YOU6).octets();
    for (frame, count, what) in [
        (corrupt, Count::BadChecksum, "checksum"),
        (unicast.clone().ttl(254).icmp(135, 0, 0, &body), Count::NotLocal, "hop limit"),
        (unicast.icmp(135, 1, 0, &body), Count::Malformed, "code"),
        (unicast.icmp(135, 0, 0, &target[..15]), Count::Malformed, "cut short"),
        (
            unicast.icmp(135, 0, 0, &[&target[..], &[1, 0, 2, 0, 0, 0, 0, 1]].concat()),
            Count::Malformed,
            "an option without length",
        ),
        (
            unicast.icmp(135, 0, 0, &[&target[..], &[1, 1, 1, 0, 0, 0, 0, 1]].concat()),
            Count::Malformed,
            "a group's MAC",
        ),
        (
            unicast.icmp(135, 0, 0, &Ipv6Addr::from(GROUP6).octets()),
            Count::Malformed,
            "for a group",
        ),
        (unicast.icmp(135, 0, 0, &[&other[..], &with].concat()), Count::Ignored, "another's"),
        (solicitation([0; 8], &with), Count::Malformed, "from nobody, with a MAC"),
        (
            build::ethernet(B, A).ipv6([0; 8], ME6).ttl(255).icmp(135, 0, 0, &target),
            Count::Malformed,
            "from nobody, to us",
        ),
        (
            unicast.clone().fragment(1, 0, false).payload(58, &[135; 24]),
            Count::Fragment,
            "a fragment",
        ),
    ] {
        host.refuses(&frame, count, what);
    }
    Host::new(true, false).refuses(
        &solicitation(YOU6, &with),
        Count::Ignored,
        "somebody else answers",
    );
    Host::new(false, true).refuses(&solicitation(YOU6, &with), Count::Ignored, "an IPv4 endpoint");
}

#[test]
fn pings_are_answered() {
    let mut host = Host::new(false, true);
    let ping = build::ethernet(B, A).ipv4([192, 0, 2, 7], ME).tos(8).ping(77, 3, b"data");
    let out = host.hears(&ping);
    let reply = build::ethernet(A, B).ipv4(ME, [192, 0, 2, 7]).tos(8).identification(1).icmp(
        0,
        0,
        77 << 16 | 3,
        b"data",
    );
    assert_eq!(out.frames, [reply]);
    let bad_ip = {
        let mut frame = ping.clone();
        frame[22] ^= 1;
        frame
    };
    let bad_icmp = {
        let mut frame = ping.clone();
        *frame.last_mut().unwrap() ^= 1;
        frame
    };
    let link = build::ethernet(B, A);
    for (frame, count, what) in [
        (bad_ip, Count::BadChecksum, "IP checksum"),
        (bad_icmp, Count::BadChecksum, "ICMP checksum"),
        (
            link.clone().ipv4([10, 1, 0, 2], ME).fragment(1, 0, true).ping(1, 1, b""),
            Count::Fragment,
            "a fragment",
        ),
        (link.clone().ipv4([10, 1, 0, 2], ME).icmp(0, 0, 0, b""), Count::Ignored, "a reply"),
        (
            link.clone().ipv4([10, 1, 0, 2], [10, 1, 0, 3]).ping(1, 1, b""),
            Count::Misdirected,
            "to another",
        ),
        (link.clone().ipv4([255; 4], ME).ping(1, 1, b""), Count::Misdirected, "from everyone"),
        (
            link.clone().ipv4([10, 1, 0, 255], ME).ping(1, 1, b""),
            Count::Misdirected,
            "from our network",
        ),
        (link.clone().ipv4(ME, ME).ping(1, 1, b""), Count::Misdirected, "from us"),
        (
            build::ethernet(B, Mac::BROADCAST).ipv4([10, 1, 0, 2], ME).ping(1, 1, b""),
            Count::Misdirected,
            "by broadcast",
        ),
        (link.clone().ipv4([10, 1, 0, 2], ME).udp(1, 4789, b""), Count::Ignored, "UDP"),
        (ping[..40].to_vec(), Count::Malformed, "cut short"),
    ] {
        host.refuses(&frame, count, what);
    }
    Host::new(false, false).refuses(&ping, Count::Ignored, "somebody else answers");

    let mut host = Host::new(true, true);
    let ping = build::ethernet(B, A).ipv6(YOU6, ME6).ping(77, 3, b"data");
    assert_eq!(
        host.hears(&ping).frames,
        [build::ethernet(A, B).ipv6(ME6, YOU6).icmp(129, 0, 77 << 16 | 3, b"data")]
    );
    host.refuses(
        &build::ethernet(B, GROUP_MAC).ipv6(YOU6, GROUP6).ping(1, 1, b""),
        Count::Misdirected,
        "to a group",
    );
    host.refuses(
        &build::ethernet(B, A).ipv6([0; 8], ME6).ping(1, 1, b""),
        Count::Misdirected,
        "from nobody",
    );
    host.refuses(
        &build::ethernet(B, A).ipv6(ME6, ME6).ping(1, 1, b""),
        Count::Misdirected,
        "from us",
    );
    host.refuses(
        &build::ethernet(B, GROUP_MAC).ipv6(YOU6, GROUP6).icmp(133, 0, 0, b""),
        Count::Ignored,
        "for routers",
    );
    Host::new(true, false).refuses(&ping, Count::Ignored, "somebody else answers");
}

/// ICMP errors of hosts and routers about VXLAN that the endpoint sent become events; others do
/// not.
#[test]
fn who_cannot_be_reached_is_told() {
    let mut host = Host::new(false, false);
    let (peer, router) = ([10, 1, 0, 2], [10, 1, 0, 254]);
    let sent = |from: [u8; 4], to: [u8; 4], port: u16| {
        let frame = build::ethernet(A, B).ipv4(from, to).udp(50_000, port, &[0; 16]);
        frame[14..14 + 28].to_vec()
    };
    let quoted = sent(ME, peer, 4789);
    let error = |from: [u8; 4], code: u8, quoted: &[u8]| {
        build::ethernet(B, A).ipv4(from, ME).icmp(3, code, 0, quoted)
    };
    for (from, code, why) in [
        (peer, 3, Refusal::NobodyListens),
        (peer, 2, Refusal::NobodyListens),
        (router, 1, Refusal::Unreachable),
        (router, 13, Refusal::Forbidden),
    ] {
        let events = host.hears(&error(from, code, &quoted)).events;
        assert_eq!(events, [ControlEvent::Refused(IpAddr::from(peer), why)], "code {code}");
    }
    for (frame, count, what) in [
        (error(router, 3, &quoted), Count::Misdirected, "a router knows no ports of others"),
        (error(peer, 3, &sent(ME, peer, 53)), Count::Misdirected, "not VXLAN"),
        (error(peer, 3, &sent(peer, ME, 4789)), Count::Misdirected, "not ours"),
        (error(peer, 3, &quoted[..22]), Count::Misdirected, "without ports"),
        (error(peer, 3, &quoted[..19]), Count::Malformed, "cut short"),
        (error(peer, 4, &quoted), Count::Ignored, "too large"),
    ] {
        assert_eq!(host.hears(&frame).events, [], "{what}");
        host.refuses(&frame, count, what);
    }

    let mut host = Host::new(true, false);
    let frame = build::ethernet(A, B).ipv6(ME6, YOU6).udp(50_000, 4789, &[0; 16]);
    for (code, why) in
        [(4, Refusal::NobodyListens), (0, Refusal::Unreachable), (1, Refusal::Forbidden)]
    {
        let error = build::ethernet(B, A).ipv6(YOU6, ME6).icmp(1, code, 0, &frame[14..]);
        let events = host.hears(&error).events;
        assert_eq!(events, [ControlEvent::Refused(std::net::Ipv6Addr::from(YOU6).into(), why)]);
    }
}

#[test]
fn pings_are_limited() {
    for (v6, ping) in [
        (false, build::ethernet(B, A).ipv4([10, 1, 0, 2], ME).ping(1, 1, b"")),
        (true, build::ethernet(B, A).ipv6(YOU6, ME6).ping(1, 1, b"")),
    ] {
        let mut host = Host::new(v6, true);
        let answered =
            |host: &mut Host| (0..1000).filter(|_| !host.hears(&ping).frames.is_empty()).count();
        assert_eq!(answered(&mut host), 100);
        host.pass(7);
        assert_eq!(answered(&mut host), 7);
        host.pass(60_000);
        assert_eq!(answered(&mut host), 100);
        assert_eq!((host.count(Count::Echo), host.count(Count::EchoLimit)), (207, 2793));
    }
}

#[test]
fn it_says_that_it_is_there_and_defends_its_address() {
    for v6 in [false, true] {
        let fresh = Host::new(v6, true);
        let config = ControlConfig {
            mac: A,
            endpoint: fresh.control.link.endpoint,
            prefix: None,
            answers: true,
            gateways: Vec::new(),
            group6: Ipv6Addr::UNSPECIFIED,
        };
        let mut host = Host { control: Control::new(config.clone()), now: 70 };
        let announcement = host.control.link.announcement();
        let said = host.pass(30_000);
        let times: Vec<u64> = said
            .iter()
            .filter(|(_, out)| out.frames.contains(&announcement))
            .map(|(at, _)| *at)
            .collect();
        assert_eq!(times, [0, 2000]);
        // The announcement comes again for stations that may not have heard it.
        host.call(|control, now, _| control.returned(now));
        let said = host.pass(30_000);
        let times: Vec<u64> = said
            .iter()
            .filter(|(_, out)| out.frames.contains(&announcement))
            .map(|(at, _)| *at)
            .collect();
        assert_eq!(times, [0, 2000]);
        let rival = claim(B, if v6 { "fd00::1" } else { "10.1.0.1" });
        assert_eq!(host.hears(&rival).frames, [announcement]);
        host.pass(9_999);
        host.refuses(&rival, Count::Conflict, "defended just now");
        host.pass(1);
        assert_eq!(host.hears(&rival).frames.len(), 1);
        if v6 {
            let frame = solicitation(ME6, &[1, 1, 2, 0xbf, 0, 0, 0, 0xb]);
            host.refuses(&frame, Count::Conflict, "it asks with our address");
            let ours = solicitation(YOU6, &[1, 1, 2, 0xbf, 0, 0, 0, 0xa]);
            host.refuses(&ours, Count::Own, "it says that it has our MAC address");
        }
        // An endpoint that does not answer for its address does not defend it either.
        let mut silent =
            Host { control: Control::new(ControlConfig { answers: false, ..config }), now: 70 };
        silent.call(|control, now, _| control.returned(now));
        assert!(silent.pass(100_000).is_empty() && silent.control.next_tick().is_none());
        silent.refuses(&rival, Count::Conflict, "not defended");
    }
}

#[test]
fn replies_are_what_the_views_say() {
    let mut host = Host::new(false, true);
    let out = host.hears(&build::ethernet(B, Mac::BROADCAST).arp_request([10, 1, 0, 2], ME));
    let arp = Arp::parse(&out.frames[0][14..]).unwrap();
    assert_eq!((arp.sender_mac(), arp.sender_ip(), arp.target_mac()), (A, ME.into(), B));
    let out = host
        .hears(&build::ethernet(B, A).ipv4([10, 1, 0, 2], ME).options(&[1; 8]).ping(7, 9, b"x"));
    let ip = Ipv4::parse(&out.frames[0][14..]).unwrap();
    let echo = Icmp::parse(ip.payload().unwrap()).unwrap();
    assert_eq!(
        (ip.header_len(), ip.ttl(), echo.echo_id(), echo.echo_sequence(), echo.body()),
        (20, 64, 7, 9, &b"x"[..])
    );
}

//! The verdicts of the program in the kernel, on real frames. Needs root.

use std::os::fd::{AsFd, OwnedFd};

use butterfly_packet::{
    Mac,
    build::{Ip, Link, ethernet},
};
use rustix::net::{AddressFamily, SocketType};

use super::*;
use crate::xdp::bpf;

const XDP_REDIRECT: u32 = 4;
const XDP_PASS: u32 = 2;

const US4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 129);
const GROUP4: Ipv4Addr = Ipv4Addr::new(230, 0, 0, 42);
const US6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xfe, 0xdcba);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 42);

struct Filter {
    program: OwnedFd,
    _map: OwnedFd,
    _socket: OwnedFd,
}

impl Filter {
    fn new(endpoint: impl Into<IpAddr>, answers: bool) -> Filter {
        Filter::in_vlan(endpoint, answers, 0)
    }

    fn in_vlan(endpoint: impl Into<IpAddr>, answers: bool, vlan: u16) -> Filter {
        let group6 = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0);
        Filter::of(&XdpConfig { answers, group6, vlan, ..XdpConfig::new(endpoint.into()) })
    }

    fn of(config: &XdpConfig) -> Filter {
        let map = bpf::socket_map(1).unwrap_or_else(|error| {
            panic!("cannot make a BPF map: {error}; these tests need root")
        });
        // A test run says that it came in by queue 0.
        let socket = rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
        bpf::set_socket(map.as_fd(), 0, socket.as_fd()).unwrap();
        let program = bpf::load(&program(config, map.as_fd()).unwrap()).unwrap();
        Filter { program, _map: map, _socket: socket }
    }

    fn takes(&self, frame: &[u8]) -> bool {
        match bpf::test_run::run(self.program.as_fd(), frame) {
            XDP_REDIRECT => true,
            XDP_PASS => false,
            verdict => panic!("verdict {verdict}"),
        }
    }
}

/// The four filters there can be: with and without answers.
fn filters(endpoint: impl Into<IpAddr> + Copy) -> [Filter; 2] {
    [Filter::new(endpoint, false), Filter::new(endpoint, true)]
}

fn link() -> Link {
    ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
}

fn to4(destination: impl Into<Ipv4Addr>) -> Ip {
    link().ipv4([192, 0, 2, 1], destination)
}

fn to6(destination: impl Into<Ipv6Addr>) -> Ip {
    link().ipv6([0xfe80, 0, 0, 0, 0, 0, 0, 1], destination)
}

fn vxlan(ip: Ip) -> Vec<u8> {
    ip.udp(50_000, 4789, &[8; 50])
}

#[test]
fn vxlan_to_the_endpoint_and_to_groups_is_ours() {
    for filter in filters(US4) {
        assert!(filter.takes(&vxlan(to4(US4))));
        assert!(filter.takes(&vxlan(to4(GROUP4))));
        assert!(
            filter.takes(&vxlan(to4([230, 0, 0, 0])))
                && filter.takes(&vxlan(to4([230, 255, 255, 255])))
        );
    }
    for filter in filters(US6) {
        assert!(filter.takes(&vxlan(to6(US6))));
        assert!(filter.takes(&vxlan(to6(GROUP6))));
        assert!(filter.takes(&vxlan(to6([0xff05, 0, 0, 0, 0, 0, 0xff, 0xffff]))));
    }
}

/// Another program on this host may have VXLAN of its own, or anything else on that port.
#[test]
fn groups_that_no_network_has_are_the_hosts() {
    for filter in filters(US4) {
        for other in [
            [224, 0, 0, 1],
            [229, 255, 255, 255],
            [231, 0, 0, 0],
            [239, 1, 1, 1],
            [239, 255, 255, 255],
        ] {
            assert!(!filter.takes(&vxlan(to4(other))), "{other:?}");
            assert!(!filter.takes(&vxlan(to4(other).fragment(1, 0, true))), "{other:?}");
        }
    }
    for filter in filters(US6) {
        for bit in 32..128 {
            let other = Ipv6Addr::from_bits(GROUP6.to_bits() ^ 1 << bit);
            assert!(!filter.takes(&vxlan(to6(other))), "{other}");
            assert!(!filter.takes(&vxlan(to6(other).fragment(1, 0, true))), "{other}");
        }
    }
}

#[test]
fn other_addresses_are_the_hosts() {
    for filter in filters(US4) {
        for other in [
            [192, 0, 2, 128],
            [191, 0, 2, 129],
            [129, 2, 0, 192],
            [223, 255, 255, 255],
            [240, 0, 0, 1],
            [255; 4],
        ] {
            assert!(!filter.takes(&vxlan(to4(other))), "{other:?}");
        }
        assert!(!filter.takes(&vxlan(to6(US6))) && !filter.takes(&vxlan(to6(GROUP6))));
    }
    for filter in filters(US6) {
        for bit in 0..128 {
            let other = Ipv6Addr::from_bits(US6.to_bits() ^ 1 << bit);
            assert!(!filter.takes(&vxlan(to6(other))), "{other}");
        }
        assert!(!filter.takes(&vxlan(to6([0xfe00, 0, 0, 0, 0, 0, 0, 1]))));
        assert!(!filter.takes(&vxlan(to4(US4))) && !filter.takes(&vxlan(to4(GROUP4))));
    }
}

#[test]
fn other_ports_and_protocols_are_the_hosts() {
    for (filter, ip) in filters(US4)
        .iter()
        .zip([to4(US4), to4(GROUP4)])
        .chain(filters(US6).iter().zip([to6(US6), to6(GROUP6)]))
    {
        for port in [0, 4788, 4790, 46354, 22] {
            assert!(!filter.takes(&ip.udp(4789, port, b"x")), "{port}");
        }
        assert!(!filter.takes(&ip.payload(
            protocol::TCP,
            &[0x12, 0xb5, 0x12, 0xb5, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]
        )));
        assert!(!filter.takes(&ip.payload(136, &[0x12, 0xb5, 0x12, 0xb5, 0, 8, 0, 0])), "UDP-Lite");
    }
}

#[test]
fn one_tag_is_tolerated() {
    let tagged = || ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])).vlan(7);
    for filter in filters(US4) {
        assert!(filter.takes(&tagged().ipv4([192, 0, 2, 1], US4).udp(1, 4789, b"x")));
        assert!(!filter.takes(&tagged().ipv4([192, 0, 2, 1], [192, 0, 2, 2]).udp(1, 4789, b"x")));
        assert!(!filter.takes(&tagged().ipv6([0; 8], US6).udp(1, 4789, b"x")));
        assert!(!filter.takes(&tagged().vlan(8).ipv4([192, 0, 2, 1], US4).udp(1, 4789, b"x")));
    }
    for filter in filters(US6) {
        assert!(filter.takes(&tagged().ipv6([0; 8], US6).udp(1, 4789, b"x")));
        assert!(!filter.takes(&tagged().vlan(8).ipv6([0; 8], US6).udp(1, 4789, b"x")));
    }
}

/// VXLAN of another VLAN is taken to be counted; what else is for the endpoint there is the host's.
#[test]
fn other_vlans_are_not_the_underlay() {
    let link = |vlan: Option<u16>| {
        let link = link();
        vlan.map_or(link.clone(), |vlan| link.vlan(vlan))
    };
    for (underlay, tag, ours) in [
        (0, None, true),
        (0, Some(0), true),
        (0, Some(0xe000), true),
        (0, Some(7), false),
        (42, Some(42), true),
        (42, Some(0xe02a), true),
        (42, None, false),
        (42, Some(0), false),
        (42, Some(43), false),
        (42, Some(42 << 8 | 1), false),
    ] {
        let v4 = Filter::in_vlan(US4, true, underlay);
        let v6 = Filter::in_vlan(US6, true, underlay);
        let (to4, to6) = (
            link(tag).ipv4([192, 0, 2, 1], US4),
            link(tag).ipv6([0xfe80, 0, 0, 0, 0, 0, 0, 1], US6),
        );
        assert!(
            v4.takes(&vxlan(to4.clone())) && v6.takes(&vxlan(to6.clone())),
            "{underlay} {tag:?}"
        );
        assert_eq!(v4.takes(&to4.ping(1, 1, b"hello")), ours, "{underlay} {tag:?}");
        assert_eq!(v6.takes(&to6.ping(1, 1, b"hello")), ours, "{underlay} {tag:?}");
    }
}

#[test]
fn ip_options_move_the_port() {
    for filter in filters(US4) {
        for words in 1..=10 {
            // Options that look like the port: only the right place counts.
            let options = [0x12, 0xb5].repeat(2 * words);
            assert!(filter.takes(&vxlan(to4(US4).options(&options))), "{words}");
            assert!(!filter.takes(&to4(US4).options(&options).udp(4789, 4790, b"x")), "{words}");
        }
    }
    for filter in filters(US6) {
        assert!(
            !filter.takes(&vxlan(to6(US6).extension(60, &[0; 6]))),
            "extension headers are the host's"
        );
    }
}

#[test]
fn headers_that_lie_are_the_hosts() {
    for filter in filters(US4) {
        for first in [0x44, 0x40, 0x55, 0x65, 0x05] {
            let mut frame = vxlan(to4(US4));
            frame[14] = first;
            assert!(!filter.takes(&frame), "{first:x}");
        }
        // Points beyond the frame.
        let mut frame = to4(US4).udp(1, 4789, b"");
        frame[14] = 0x4f;
        assert!(!filter.takes(&frame));
    }
    for filter in filters(US6) {
        let mut frame = vxlan(to6(US6));
        frame[14] = 0x40;
        assert!(!filter.takes(&frame));
    }
}

#[test]
fn short_frames_are_the_hosts() {
    for (filter, frame, enough) in filters(US4)
        .iter()
        .map(|filter| (filter, vxlan(to4(US4)), 14 + 20 + 4))
        .chain(filters(US6).iter().map(|filter| (filter, vxlan(to6(US6)), 14 + 40 + 4)))
    {
        // The kernel makes no shorter frame.
        for len in 14..frame.len() {
            assert_eq!(filter.takes(&frame[..len]), len >= enough, "{len}");
        }
    }
}

#[test]
fn first_fragments_are_ours_by_their_port_and_later_ones_if_the_host_has_no_use_for_them() {
    let [quiet, answering] = filters(US4);
    for filter in [&quiet, &answering] {
        assert!(filter.takes(&vxlan(to4(US4).fragment(1, 0, true))));
        assert!(!filter.takes(&to4(US4).fragment(1, 0, true).udp(4789, 53, &[0; 8])));
        assert!(!filter.takes(&vxlan(to4([192, 0, 2, 2]).fragment(1, 8, false))));
    }
    for offset in [8, 1480, 65_528] {
        let frame = vxlan(to4(US4).fragment(1, offset, false));
        assert!(!quiet.takes(&frame) && answering.takes(&frame), "{offset}");
        assert!(!answering.takes(&vxlan(to4(GROUP4).fragment(1, offset, false))), "{offset}");
        assert!(
            !answering.takes(&to4(US4).fragment(1, offset, false).payload(protocol::TCP, &[0; 8])),
            "{offset}"
        );
    }
    let [quiet, answering] = filters(US6);
    for filter in [&quiet, &answering] {
        assert!(filter.takes(&vxlan(to6(US6).fragment(1, 0, true))));
        assert!(filter.takes(&vxlan(to6(GROUP6).fragment(1, 0, true))));
        assert!(!filter.takes(&to6(US6).fragment(1, 0, true).udp(4789, 53, &[0; 8])));
    }
    for offset in [8, 1480, 65_528] {
        let frame = vxlan(to6(US6).fragment(1, offset, false));
        assert!(!quiet.takes(&frame) && answering.takes(&frame), "{offset}");
        assert!(!answering.takes(&vxlan(to6(GROUP6).fragment(1, offset, false))), "{offset}");
    }
}

#[test]
fn who_answers_for_an_address_gets_what_asks_for_it() {
    let [quiet, answering] = filters(US4);
    let ping = to4(US4).ping(1, 1, b"hello");
    assert!(!quiet.takes(&ping) && answering.takes(&ping));
    let part = to4(US4).fragment(1, 8, false).payload(protocol::ICMP, &[0; 8]);
    assert!(!quiet.takes(&part) && answering.takes(&part));
    for filter in [&quiet, &answering] {
        assert!(!filter.takes(&to4([192, 0, 2, 2]).ping(1, 1, b"hello")));
        assert!(!filter.takes(&to4([224, 0, 0, 1]).ping(1, 1, b"hello")));
        assert!(
            !filter.takes(&to4(GROUP4).payload(protocol::IGMP, &[0x16, 0, 0, 0, 230, 0, 0, 42]))
        );
        assert!(
            !filter.takes(&link().arp_request([192, 0, 2, 1], US4)),
            "ARP is copied, not taken"
        );
    }

    let [quiet, answering] = filters(US6);
    let node = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xfffe, 0xdcba);
    let solicitation = |to: Ipv6Addr, target: Ipv6Addr| to6(to).icmp(135, 0, 0, &target.octets());
    for frame in [
        to6(US6).ping(1, 1, b"hello"),
        solicitation(US6, US6),
        solicitation(node, US6),
        to6(US6).icmp(136, 0, 0, &[0; 16]),
        to6(US6).fragment(1, 8, false).payload(protocol::ICMPV6, &[0; 8]),
    ] {
        assert!(!quiet.takes(&frame) && answering.takes(&frame), "{frame:02x?}");
    }
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for filter in [&quiet, &answering] {
        // Another address with the same last three bytes: the host's.
        assert!(
            !filter.takes(&solicitation(node, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xfe, 0xdcba)))
        );
        assert!(!filter.takes(&solicitation(node, US6)[..14 + 40 + 23]));
        assert!(!filter.takes(&to6(all_nodes).icmp(134, 0, 0, &US6.octets())));
        assert!(!filter.takes(&to6(all_nodes).ping(1, 1, b"hello")));
        assert!(
            !filter
                .takes(&to6(all_nodes).extension(0, &[5, 2, 0, 0, 1, 0]).icmp(130, 0, 0, &[0; 16]))
        );
    }
}

#[test]
fn a_queue_without_a_socket_leaves_frames_to_the_host() {
    let map = bpf::socket_map(1).unwrap();
    let program = bpf::load(&program(&XdpConfig::new(US4.into()), map.as_fd()).unwrap()).unwrap();
    assert_eq!(bpf::test_run::run(program.as_fd(), &vxlan(to4(US4))), XDP_PASS);
}

/// Of a wire all frames of its VLAN are ours, and none of another.
#[test]
fn a_wire_takes_what_its_vlan_has() {
    let tagged = |kind: u16, tag: u16| {
        let [[k0, k1], [t0, t1]] = [kind, tag].map(u16::to_be_bytes);
        let mut frame = link().payload(0x88b5, &[0; 46]);
        frame.splice(12..12, [k0, k1, t0, t1]);
        frame
    };
    let vlan = butterfly_packet::ethernet::VLAN;
    let untagged = [
        link().payload(0x88b5, &[0; 46]),
        link().ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, b""),
        // Of priority, which names no VLAN.
        tagged(vlan, 0xe000),
    ];
    let others = [tagged(vlan, 100), tagged(vlan, 0x6064), tagged(0x88a8, 100)];
    let none = Filter::of(&XdpConfig::wire(0));
    assert!(untagged.iter().all(|frame| none.takes(frame)));
    assert!(!others.iter().any(|frame| none.takes(frame)));
    let hundred = Filter::of(&XdpConfig::wire(100));
    assert!(!untagged.iter().any(|frame| hundred.takes(frame)));
    assert_eq!(others.each_ref().map(|frame| hundred.takes(frame)), [true, true, false]);
    assert!(!hundred.takes(&tagged(vlan, 101)));
}

//! Packets that are longer than the network to which a router leads: fragments of IPv4.

use std::collections::BTreeSet;

use butterfly_datapath::{
    Fate, Mac, RoutingChange,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, Shape},
    memory::MemoryConfig,
};
use butterfly_model::{Network, Subnet};
use butterfly_packet::{
    build::{self, Checksum, Ip, Tcp},
    checksum::Sum,
    ipv4::Ipv4,
    tcp::ACK,
};
use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    explained::question,
    hosts::{host, outer},
    nat::{SHARED, WORLD, X, external, ip, router_mac, shared, snat, text, translate},
    net::*,
};

/// Longest packet of [`B`]'s network.
const MTU: usize = 1400;

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 13) >> 2) as u8).collect()
}

/// Puts fragments together as a receiver does, and returns the frame that they were. Asserts that
/// each is as long as may be, and right.
#[track_caller]
fn together(mut fragments: Vec<Vec<u8>>, mtu: usize) -> Vec<u8> {
    let parse = |frame: &[u8]| {
        let ip = Ipv4::parse(&frame[14..]).unwrap();
        assert!(ip.checksum_is_valid() && ip.total_len() == frame.len() - 14);
        (ip.fragment_offset(), ip.more_fragments(), ip.header_len(), ip.identification())
    };
    fragments.sort_by_key(|frame| parse(frame).0);
    let (start, .., len, id) = parse(&fragments[0]);
    let mut whole = fragments[0][..14 + len].to_vec();
    let mut more = false;
    for (n, frame) in fragments.iter().enumerate() {
        assert!(frame.len() <= 14 + mtu, "{} bytes", frame.len());
        let (offset, follows, header, own) = parse(frame);
        assert_eq!((offset - start + 14 + len, own), (whole.len(), id));
        let is_last = n + 1 == fragments.len();
        assert!(is_last || follows && mtu - (frame.len() - 14) < 8, "{n}");
        assert_eq!(frame[..14], fragments[0][..14]);
        whole.extend(&frame[14 + header..]);
        more = follows;
    }
    let total = (whole.len() - 14) as u16;
    whole[16..18].copy_from_slice(&total.to_be_bytes());
    let place = u16::from(more) << 13 | (start / 8) as u16;
    whole[20..22].copy_from_slice(&place.to_be_bytes());
    whole[24..26].copy_from_slice(&[0, 0]);
    let sum = Sum::of(&whole[14..14 + len]).checksum();
    whole[24..26].copy_from_slice(&sum.to_be_bytes());
    whole
}

fn names(net: &mut Net) -> Vec<(String, u64)> {
    net.host.moved().into_iter().filter(|(name, _)| name.contains(".drop.")).collect()
}

/// Sends a frame. Asserts that what one machine gets of it is, put together, this frame.
#[track_caller]
fn arrives_cut(net: &mut Net, from: Machine, frame: &[u8], to: Machine, as_: &[u8], mtu: usize) {
    let mut got = net.send(from, frame);
    let fragments = got.remove(to.0).unwrap_or_default();
    assert!(got.is_empty(), "{got:?}");
    assert_eq!(names(net), []);
    assert!(fragments.len() > 1 || frame.len() <= 14 + mtu);
    let whole = together(fragments, mtu);
    assert_eq!(whole, numbered(as_, &whole));
}

/// Returns a frame with the identification that another has, if it has none itself.
fn numbered(frame: &[u8], other: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame[18..20] == [0, 0] {
        frame[18..20].copy_from_slice(&other[18..20]);
        frame[24..26].copy_from_slice(&[0, 0]);
        let end = 14 + usize::from(frame[14] & 15) * 4;
        let sum = Sum::of(&frame[14..end]).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

#[test]
fn a_long_packet_arrives_in_fragments() {
    for bypass in [true, false] {
        let mut net = Net::new(&[A, B, C], bypass);
        net.admit("10.0.0.0/8");
        for len in [MTU - 28, MTU - 27, 1472, 1473, 2800, 4000, 9000] {
            let [sent, arrives] = routed(A, B, |ip| ip.identification(7).udp(1, 2, &data(len)));
            arrives_cut(&mut net, A, &sent, B, &arrives, MTU);
        }
        // One session, one packet in, many out.
        assert_eq!(net.sessions(), u64::from(!bypass));
        let [sent, _] = routed(A, B, |ip| ip.udp(1, 2, &data(2800)));
        net.host.send(A.0, &sent, NetHeader::default()).unwrap();
        let moved = net.host.moved();
        assert_eq!((moved["a.in.packets"], moved["b.out.packets"]), (1, 3));
        assert_eq!(moved["b.out.bytes"], (sent.len() + 2 * 34) as u64);
        net.host.received().unwrap();
    }
}

/// The filter decides on the whole: none of what it refuses arrives.
#[test]
fn what_is_refused_is_refused_whole() {
    let mut net = Net::new(&[A, B], false);
    let [sent, _] = routed(A, B, |ip| ip.udp(1, 2, &data(4000)));
    net.drops_at(A, &sent, B, "ingress-denied");
    assert_eq!(net.sessions(), 0);
}

/// A fragment keeps its place in its packet, and whether others follow.
#[test]
fn fragments_are_cut_again() {
    for bypass in [true, false] {
        let mut net = Net::new(&[A, B], bypass);
        net.admit("10.0.0.0/8");
        let all = build::ethernet(A.1, gateway()).ipv4(A.3, B.3).udp(1, 2, &data(6000));
        let all = &all[34..];
        for (n, piece) in all.chunks(1480).enumerate() {
            let more = (n + 1) * 1480 < all.len();
            let [sent, arrives] =
                routed(A, B, |ip| ip.fragment(9, n * 1480, more).payload(17, piece));
            arrives_cut(&mut net, A, &sent, B, &arrives, MTU);
        }
    }
}

#[test]
fn options_are_in_the_fragments_that_need_them() {
    let mut net = Net::new(&[A, B], true);
    // A record of the route, which is in the first alone, and a stream id.
    let options = [7, 7, 4, 0, 0, 0, 0, 136, 4, 0, 9, 0];
    let [sent, mut arrives] =
        routed(A, B, |ip| ip.identification(7).options(&options).udp(1, 2, &data(3000)));
    arrives[24..26].copy_from_slice(&[0, 0]);
    let sum = Sum::of(&arrives[14..46]).checksum();
    arrives[24..26].copy_from_slice(&sum.to_be_bytes());
    let got = net.send(A, &sent);
    let fragments = got["b"].clone();
    assert_eq!(fragments[0][34..46], options);
    assert!(fragments[1..].iter().all(|it| it[14] == 0x46 && it[34..38] == [136, 4, 0, 9]));
    assert_eq!(together(fragments, MTU), arrives);
}

#[test]
fn what_cannot_be_cut_is_malformed() {
    let mut net = Net::new(&[A, B], true);
    let long = data(2000);
    let odd = |ip: Ip| ip.fragment(1, 0, true).payload(17, &long[..1501]);
    let beyond = |ip: Ip| ip.fragment(1, 64_800, false).payload(17, &long);
    let option = |ip: Ip| ip.options(&[130, 0, 1, 1]).payload(17, &long);
    for make in [&odd as &dyn Fn(Ip) -> Vec<u8>, &beyond, &option] {
        let [sent, _] = routed(A, B, make);
        net.drops(A, &sent, "malformed-ip");
    }
    // All of these pass where they fit.
    net.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", Some(9000)));
    for make in [&odd as &dyn Fn(Ip) -> Vec<u8>, &beyond] {
        let [sent, arrives] = routed(A, B, make);
        net.passes(A, &sent, B, &arrives);
    }
}

/// Only the packet goes on: it is as long as its header says.
#[test]
fn what_is_behind_a_packet_is_left_behind() {
    let mut net = Net::new(&[A, B], true);
    for len in [MTU - 28, 100] {
        for forbids in [true, false] {
            let [mut sent, arrives] = routed(A, B, |ip| {
                let ip = if forbids { ip.dont_fragment() } else { ip };
                ip.udp(1, 2, &data(len))
            });
            sent.resize(1500, 0xee);
            net.passes(A, &sent, B, &arrives);
        }
    }
    let [mut sent, arrives] = routed(A, B, |ip| ip.udp(1, 2, &data(3000)));
    sent.extend([0xee; 500]);
    arrives_cut(&mut net, A, &sent, B, &arrives, MTU);
}

/// One that asks its device to complete the sum: no fragment asks for it any more.
#[test]
fn a_sum_that_was_left_to_others_is_complete() {
    for bypass in [true, false] {
        let mut net = Net::new(&[A, B], bypass);
        net.admit("10.0.0.0/8");
        for len in [1473, 1500, 2999, 9000] {
            let make = |sum| move |ip: Ip| ip.identification(7).checksum(sum).udp(1, 2, &data(len));
            let [sent, _] = routed(A, B, make(Checksum::Partial));
            let [_, arrives] = routed(A, B, make(Checksum::Complete));
            let header = NetHeader {
                flags: NetHeader::FLAG_NEEDS_CSUM,
                csum_start: 34,
                csum_offset: 6,
                ..NetHeader::NONE
            };
            net.host.send(A.0, &sent, header).unwrap();
            let got = net.host.received().unwrap().remove("b").unwrap();
            assert!(got.len() > 1 && got.iter().all(|(net, _)| net.flags == 0), "{len}");
            let fragments = got.into_iter().map(|(_, frame)| frame).collect();
            assert_eq!(together(fragments, MTU), arrives, "{len}");
        }
    }
}

/// Several datagrams in one frame: each is a packet of its own, with its own number.
#[test]
fn each_datagram_of_a_frame_is_cut() {
    let mut net = Net::new(&[A, B], true);
    let (size, count) = (2000, 4);
    let all = data(size * count - 700);
    let make = |ip: Ip| ip.identification(40).checksum(Checksum::Partial).udp(1, 2, &all);
    let [sent, _] = routed(A, B, make);
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_UDP_L4,
        gso_size: size as u16,
        hdr_len: 42,
        csum_start: 34,
        csum_offset: 6,
        ..NetHeader::NONE
    };
    net.host.send(A.0, &sent, header).unwrap();
    let got = net.host.received().unwrap().remove("b").unwrap();
    assert_eq!((names(&mut net), got.len()), (vec![], 7));
    for (n, piece) in all.chunks(size).enumerate() {
        let id = 40 + n as u16;
        let is_of = |frame: &&Vec<u8>| frame[18..20] == id.to_be_bytes();
        let own = got.iter().map(|(_, frame)| frame).filter(is_of).cloned().collect();
        let [_, arrives] = routed(A, B, |ip| ip.identification(id).udp(1, 2, piece));
        assert_eq!(together(own, MTU), arrives, "{n}");
    }
}

/// The sender left it to others to cut its stream, so that is done to a length that fits.
#[test]
fn segments_are_cut_to_what_fits() {
    for takes in [true, false] {
        let mut net = Net::apart(&[A], true);
        let features = if takes { LINUX } else { Features::VERSION_1 };
        let config = GuestConfig::default();
        net.host.declare(B.0, B.1, B.2, &policy(B.3, true)).unwrap();
        let memory = MemoryConfig::new(config.memory_needed());
        net.host.attach(B.0, features, &config, &memory).unwrap();
        net.join();
        let send = |net: &mut Net, forbids: bool| {
            let make = |ip: Ip| {
                let ip = if forbids { ip.dont_fragment() } else { ip };
                ip.checksum(Checksum::Partial).tcp(&Tcp::new(1, 2, ACK), &data(4000))
            };
            let [sent, _] = routed(A, B, make);
            let header = NetHeader {
                flags: NetHeader::FLAG_NEEDS_CSUM,
                gso_type: NetHeader::GSO_TCPV4,
                gso_size: 1448,
                hdr_len: 54,
                csum_start: 34,
                csum_offset: 16,
                ..NetHeader::NONE
            };
            net.host.send(A.0, &sent, header).unwrap();
            net.host.received().unwrap()
        };
        let got = send(&mut net, false).remove("b").unwrap();
        if takes {
            assert_eq!((got.len(), got[0].0.gso_size), (1, 1360));
        } else {
            let lens: Vec<_> = got.iter().map(|(_, frame)| frame.len() - 54).collect();
            assert_eq!(lens, [1360, 1360, 1280]);
        }
        // Who forbids it looks for the length by itself.
        let got = send(&mut net, true);
        assert_eq!((got.contains_key("b"), got["a"].len()), (false, 1));
        net.host.moved();
        // Segments of any length would be many.
        net.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", Some(471)));
        assert!(send(&mut net, false).is_empty());
        assert_eq!(names(&mut net), [("a.drop.cut-limit".to_owned(), 1)]);
    }
}

/// To another host, which has another router's part: each fits the tunnel, and all take one way.
#[test]
fn fragments_leave_for_another_host() {
    for bypass in [true, false] {
        let (mut one, mut two) = (host(1, &[A], bypass), host(2, &[B], bypass));
        for (net, machine, other) in [(&mut one, B, 2), (&mut two, A, 1)] {
            net.host.change_routing(network(42, "10.0.0.0/24", "10.0.0.1", None));
            net.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", None));
            net.host.change_routing(router("r", &[42, 50]));
            net.neighbour(machine, Some(other));
            net.reaches(other);
            net.admit("10.0.0.0/8");
            net.host.moved();
        }
        for len in [1423, 1472, 5000] {
            let [sent, arrives] =
                routed(A, B, |ip| ip.identification(len as u16).udp(1, 2, &data(len)));
            let left = one.leaves(A, &sent);
            assert!(left.len() > 1);
            // 1,450 bytes fit inside.
            let inner = left.iter().map(|frame| frame[50..].to_vec()).collect();
            together(inner, 1450);
            let ports: BTreeSet<_> = left.iter().map(|frame| frame[34..36].to_vec()).collect();
            assert_eq!(ports.len(), 1, "in order on the way");
            let got = two.gets(&left).remove("b").unwrap();
            assert_eq!((one.drops_counted(), two.drops_counted()), (vec![], vec![]));
            assert_eq!(together(got, 1450), arrives);
        }
    }
}

/// A machine of another network of the same router.
const D: Machine = ("d", Mac([2, 0, 0, 0, 0, 0xd]), 43, [10, 3, 0, 10]);
/// The wire by which [`second_hop`] leads out.
const WIRE: &str = "wire/world";

/// A host that leads out for host 2, by a wire that takes so long packets. [`A`], [`C`] and [`D`]
/// are there.
fn second_hop(mtu: u32) -> Net {
    let mut one = host(1, &[], true);
    one.host.change_routing(network(42, "10.0.0.0/24", "10.0.0.1", None));
    one.host.change_routing(network(43, "10.3.0.0/24", "10.3.0.1", None));
    let subnets = vec![Subnet::parse("192.0.2.0/24", None).unwrap()];
    let outside = Network::new(vni(77), subnets, Some(mtu)).unwrap();
    one.host.change_routing(RoutingChange::DeclareNetwork(outside));
    let id = butterfly_model::ExternalId::new("world").unwrap();
    let external =
        butterfly_model::External::parse(id, vni(77), ["192.0.2.7/24"], ["192.0.2.1"]).unwrap();
    one.host.lay_wire(&external, Mac([2, 0xbf, 0, 0, 0, 0x77])).unwrap();
    let mut router = butterfly_model::Router::new(butterfly_model::RouterId::new("r").unwrap());
    for number in [42, 43, 77] {
        router.attach(vni(number), butterfly_model::RouterAddresses::default());
    }
    external.default_routes().into_iter().for_each(|route| drop(router.add_route(route)));
    one.host.change_routing(RoutingChange::DeclareRouter(router));
    translate(&one, "r", &[snat(SHARED)]);
    [A, C, D].into_iter().for_each(|machine| one.neighbour(machine, Some(2)));
    one.neighbour((WIRE, X.1, 77, X.3), None);
    one.reaches(2);
    one.host.settle();
    one.host.moved();
    one
}

/// A packet of a machine on host 2, as it arrives at [`second_hop`].
fn led_out(from: Machine, make: impl Fn(Ip) -> Vec<u8>) -> Vec<u8> {
    let link = build::ethernet(gateway(), crate::hosts::router_of(1));
    outer((2, 1), from.2, &make(link.ipv4(from.3, [198, 51, 100, 9]).ttl(63)))
}

/// A packet of another host that is led out by the wire of this one, which takes less.
#[test]
fn a_second_hop_cuts_for_its_wire() {
    let mut one = second_hop(600);
    let got = one.gets(&[led_out(A, |ip| ip.udp(5000, 53, &data(1300)))]);
    assert_eq!(one.drops_counted(), []);
    let whole = together(got[WIRE].clone(), 600);
    assert_eq!((whole.len(), &whole[26..30]), (1342, &[192, 0, 2, 9][..]));
    let sum = Sum::pseudo_v4([192, 0, 2, 9].into(), [198, 51, 100, 9].into(), 17, 1308);
    assert!(sum.push(&whole[34..]).is_valid());
}

/// A turn cuts 512 fragments of what other hosts sent, whatever networks it is of: nothing of it
/// can be put back. Each sender leaves as much to others as it has.
#[test]
fn other_hosts_have_so_many_fragments_in_a_turn() {
    let frame = |from, len| led_out(from, |ip| ip.udp(5000, 53, &data(len)));
    // Frames that were not cut. One of 1,300 bytes is 11 fragments; the wire is short of buffers.
    let refused = |frames: Vec<Vec<u8>>| {
        let mut one = second_hop(150);
        one.host.arrive_together(&frames).unwrap();
        let drops = one.drops_counted();
        let of = |reason| drops.iter().filter(move |(name, _)| name.ends_with(reason));
        let full = of(".drop.ring-full").count();
        assert_eq!(of(".drop.cut-limit").count() + full, drops.len(), "{drops:?}");
        of(".drop.cut-limit").map(|(_, n)| *n).sum::<u64>()
    };
    let alone = 512 / 11 / 2;
    assert_eq!(refused(vec![frame(A, 1300); 60]), 60 - alone);
    // Runs of other networks in between begin nothing anew.
    let mixed = [frame(A, 1300), frame(D, 1300)];
    let cut = 60 - refused(mixed.iter().cycle().take(60).cloned().collect());
    assert!(cut > alone && cut * 11 <= 512, "{cut}");
    // Who sends little beside it loses nothing, be it in the same network or in another.
    for innocent in [C, D] {
        let mut frames = vec![frame(A, 1300); 50];
        frames.extend(vec![frame(innocent, 1200); 5]);
        assert_eq!(refused(frames), 50 - alone, "{}", innocent.0);
    }
}

/// Options of what another host sent are in the fragments that need them.
#[test]
fn a_second_hop_cuts_packets_with_options() {
    let mut one = second_hop(600);
    let options = [7, 7, 4, 0, 0, 0, 0, 136, 4, 0, 9, 0];
    let got = one.gets(&[led_out(A, |ip| ip.options(&options).udp(5000, 53, &data(1300)))]);
    assert_eq!(one.drops_counted(), []);
    let fragments = got[WIRE].clone();
    assert_eq!(fragments[0][34..46], options);
    assert!(fragments[1..].iter().all(|it| it[14] == 0x46 && it[34..38] == [136, 4, 0, 9]));
    together(fragments, 600);
}

/// Header of a frame whose sum is left to others.
const UDP_SUM: NetHeader = NetHeader {
    flags: NetHeader::FLAG_NEEDS_CSUM,
    csum_start: 34,
    csum_offset: 6,
    ..NetHeader::NONE
};

/// Datagrams of one frame, behind an address that machines share: each has a number, and its sum.
#[test]
fn each_datagram_is_translated_and_cut() {
    let mut net = shared(true);
    let subnets = external().network().subnets().to_vec();
    let outside = Network::new(vni(77), subnets, Some(1400)).unwrap();
    net.host.change_routing(RoutingChange::DeclareNetwork(outside));
    let all = data(2000 * 3);
    let make = |ip: Ip| ip.identification(7).checksum(Checksum::Partial).udp(5000, 53, &all);
    let sent = make(ip((A.1, router_mac("r")), &text(A), WORLD));
    let header =
        NetHeader { gso_type: NetHeader::GSO_UDP_L4, gso_size: 2000, hdr_len: 42, ..UDP_SUM };
    net.host.send(A.0, &sent, header).unwrap();
    let got = net.host.received().unwrap().remove(X.0).unwrap();
    assert_eq!((names(&mut net), got.len()), (vec![], 6));
    let got: Vec<_> = got.into_iter().map(|(_, frame)| frame).collect();
    let first = u16::from_be_bytes([got[0][18], got[0][19]]);
    let port = u16::from_be_bytes([got[0][34], got[0][35]]);
    for (n, (piece, own)) in all.chunks(2000).zip(got.chunks(2)).enumerate() {
        let arrives = ip((router_mac("r"), X.1), SHARED, WORLD).ttl(63);
        let arrives = arrives.identification(first.wrapping_add(n as u16)).udp(port, 53, piece);
        assert_eq!(together(own.to_vec(), 1400), arrives, "{n}");
    }
}

/// The sender counts fewer segments than it gets.
#[test]
fn shorter_segments_have_numbers_of_their_own() {
    let mut net = Net::apart(&[A], true);
    let config = GuestConfig::default();
    net.host.declare(B.0, B.1, B.2, &policy(B.3, true)).unwrap();
    let memory = MemoryConfig::new(config.memory_needed());
    net.host.attach(B.0, Features::VERSION_1, &config, &memory).unwrap();
    net.join();
    net.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", Some(600)));
    let mut ids = Vec::new();
    for n in 0..4 {
        let make = |ip: Ip| {
            let ip = ip.identification(100 + 3 * n).checksum(Checksum::Partial);
            ip.tcp(&Tcp::new(1, 2, ACK), &data(4000))
        };
        let [sent, _] = routed(A, B, make);
        let header = NetHeader {
            gso_type: NetHeader::GSO_TCPV4,
            gso_size: 1448,
            hdr_len: 54,
            csum_offset: 16,
            ..UDP_SUM
        };
        net.host.send(A.0, &sent, header).unwrap();
        let got = net.host.received().unwrap().remove("b").unwrap();
        assert_eq!((got.len(), names(&mut net)), (8, vec![]));
        ids.extend(got.iter().map(|(_, frame)| u16::from_be_bytes([frame[18], frame[19]])));
        for (_, frame) in &got {
            assert!(Ipv4::parse(&frame[14..]).unwrap().checksum_is_valid());
        }
    }
    assert!(ids.windows(2).all(|ids| ids[1] == ids[0].wrapping_add(1)), "{ids:?}");
}

/// A sender that numbers nothing: its packets are kept apart all the same. Who numbers, or has an
/// address for itself, goes on to.
#[test]
fn packets_without_a_number_get_one() {
    let mut net = Net::new(&[A, B], true);
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        let [sent, _] = routed(A, B, |ip| ip.identification(0).udp(1, 2, &data(2800)));
        let whole = together(net.send(A, &sent).remove("b").unwrap(), MTU);
        let id = u16::from_be_bytes([whole[18], whole[19]]);
        let [_, arrives] = routed(A, B, |ip| ip.identification(id).udp(1, 2, &data(2800)));
        assert_eq!(whole, arrives);
        ids.insert(id);
    }
    assert_eq!(ids.len(), 3);
    let mut net = crate::nat::net(true);
    let subnets = external().network().subnets().to_vec();
    let outside = Network::new(vni(77), subnets, Some(1400)).unwrap();
    net.host.change_routing(RoutingChange::DeclareNetwork(outside));
    let sent = ip((A.1, router_mac("r")), &text(A), WORLD);
    let arrives = ip((router_mac("r"), X.1), crate::nat::OUTSIDE, WORLD).ttl(63);
    let [sent, arrives] = [sent, arrives].map(|ip| ip.identification(7).udp(5000, 53, &data(3000)));
    arrives_cut(&mut net, A, &sent, X, &arrives, 1400);
}

/// Machines behind one address, and one identification of both: the fragments of one are none of
/// the other's. Those of one packet have one.
#[test]
fn translated_packets_have_identifications_of_their_own() {
    for bypass in [true, false] {
        let mut net = shared(bypass);
        let subnets = external().network().subnets().to_vec();
        let outside = Network::new(vni(77), subnets, Some(1400)).unwrap();
        net.host.change_routing(RoutingChange::DeclareNetwork(outside));
        let mut ids = BTreeSet::new();
        for from in [A, C, A, C] {
            let make = |ip: Ip| ip.identification(7).udp(5000, 53, &data(3000));
            let sent = make(ip((from.1, router_mac("r")), &text(from), WORLD));
            let mut got = net.send(from, &sent);
            assert_eq!(names(&mut net), []);
            let whole = together(got.remove(X.0).unwrap(), 1400);
            ids.insert(u16::from_be_bytes([whole[18], whole[19]]));
            let port = u16::from_be_bytes([whole[34], whole[35]]);
            let id = u16::from_be_bytes([whole[18], whole[19]]);
            let arrives = ip((router_mac("r"), X.1), SHARED, WORLD).ttl(63);
            let arrives = arrives.identification(id).udp(port, 53, &data(3000));
            assert_eq!(whole, arrives);
        }
        assert_eq!(ids.len(), 4);
        // What came in fragments, and is cut again, has one as well, and follows its first one.
        let all = ip((A.1, router_mac("r")), &text(A), WORLD).udp(5000, 53, &data(2900));
        let mut fragments = Vec::new();
        for (n, piece) in all[34..].chunks(1480).enumerate() {
            let link = ip((A.1, router_mac("r")), &text(A), WORLD);
            let more = (n + 1) * 1480 < all.len() - 34;
            let sent = link.fragment(9, n * 1480, more).payload(17, piece);
            fragments.extend(net.send(A, &sent).remove(X.0).unwrap());
        }
        assert_eq!((names(&mut net), fragments.len()), (vec![], 4));
        let ids: BTreeSet<_> = fragments.iter().map(|frame| frame[18..20].to_vec()).collect();
        assert_eq!(ids.len(), 1);
    }
}

/// From the outside to a network that takes less.
#[test]
fn what_comes_from_outside_is_cut() {
    let mut net = shared(true);
    let blocks = [("10.0.0.0/24", "10.0.0.1"), ("fd00:42::/64", "fd00:42::1")];
    let subnets = blocks.map(|(block, own)| Subnet::parse(block, Some(own)).unwrap());
    let network = Network::new(vni(42), subnets.into(), Some(1300)).unwrap();
    net.host.change_routing(RoutingChange::DeclareNetwork(network));
    let port = crate::nat::leaves(&mut net, A, WORLD, 17, 5000);
    let link = || ip((X.1, router_mac("r")), WORLD, SHARED);
    let sent = link().identification(3).udp(53, port, &data(2000));
    let arrives = ip((router_mac("r"), A.1), WORLD, &text(A)).ttl(63).identification(3);
    arrives_cut(&mut net, X, &sent, A, &arrives.udp(53, 5000, &data(2000)), 1300);
    // Nobody outside gets errors.
    net.drops(X, &link().dont_fragment().udp(53, port, &data(2000)), "route-too-big");
}

/// A machine with frames of 64 KiB, and one in a network of this MTU.
fn large(mtu: u32, workers: usize) -> Net {
    let mut host = Host::with_workers(workers).unwrap();
    for (id, mac, vni, ip) in [A, B] {
        host.declare(id, mac, vni, &policy(ip, true)).unwrap();
        let config = GuestConfig { max_frame: 65_550, ..GuestConfig::default() }.rings(1024);
        let memory = MemoryConfig::new(config.memory_needed());
        host.attach(id, LINUX, &config, &memory).unwrap();
    }
    let mut net = Net { host };
    net.join();
    net.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", Some(mtu)));
    net.host.settle();
    net.host.moved();
    net
}

#[test]
fn a_frame_has_a_bounded_number_of_fragments() {
    let mut net = large(68, 1);
    // 48 bytes in each, of which 8 are the header of UDP.
    for (len, passes) in [(152 * 48 - 8, true), (152 * 48 - 7, false), (65_000, false)] {
        let [sent, arrives] = routed(A, B, |ip| ip.udp(1, 2, &data(len)));
        if passes {
            arrives_cut(&mut net, A, &sent, B, &arrives, 68);
        } else {
            net.drops(A, &sent, "cut-limit");
        }
    }
    let mut net = large(576, 1);
    let [sent, arrives] = routed(A, B, |ip| ip.udp(1, 2, &data(65_507)));
    arrives_cut(&mut net, A, &sent, B, &arrives, 576);
}

/// The whole header of TCP is in the first one, whatever room there is (RFC 1858).
#[test]
fn no_header_is_cut() {
    let mut net = large(68, 1);
    let tcp = |options: &[u8]| Tcp { options: options.to_vec().leak(), ..Tcp::new(1, 2, ACK) };
    for (options, passes) in [(&[1; 28][..], true), (&[1; 32], false)] {
        let [sent, arrives] = routed(A, B, |ip| ip.tcp(&tcp(options), &data(200)));
        if passes {
            arrives_cut(&mut net, A, &sent, B, &arrives, 68);
        } else {
            net.drops(A, &sent, "cut-limit");
        }
    }
}

/// A turn makes as many copies as of anything else: what does not fit stays in its ring, and others
/// have their turns in between. All of it arrives, in order.
#[test]
fn fragments_are_the_work_of_many_turns() {
    for workers in [1, 2] {
        let mut net = large(576, workers);
        let frames: Vec<_> = (0..32_u16)
            .map(|n| routed(A, B, |ip| ip.identification(n + 1).udp(1, 2, &data(20_000))))
            .collect();
        let guest = net.host.guest(A.0).unwrap();
        for [sent, _] in &frames {
            guest.enqueue(sent, NetHeader::default()).unwrap();
        }
        guest.flush();
        let mut all: Vec<Vec<u8>> = Vec::new();
        let mut most = 0;
        for _ in 0..100 {
            net.host.turn();
            let got = net.host.received().unwrap().remove("b").unwrap_or_default();
            most = most.max(got.len());
            all.extend(got.into_iter().map(|(_, frame)| frame));
        }
        // 37 of each frame, 4 copies each, and 1,024 copies in a turn. A look at the harness may be
        // of several turns.
        assert_eq!((names(&mut net), all.len()), (vec![], 37 * 32));
        assert!(most <= 1024 / 4, "{most} in one turn");
        for ([_, arrives], fragments) in frames.iter().zip(all.chunks(37)) {
            assert_eq!(&together(fragments.to_vec(), 576), arrives);
        }
    }
}

/// A sender's limit in packets counts fragments, and what is above a second's number is dropped.
#[test]
fn a_sender_has_so_many_fragments_a_second() {
    let mut net = large(576, 1);
    let [sent, _] = routed(A, B, |ip| ip.udp(1, 2, &data(65_507)));
    let mut fragments = 0;
    let mut drops = 0;
    while drops == 0 {
        let got = net.send(A, &sent);
        fragments += got.get("b").map_or(0, Vec::len);
        drops = names(&mut net)
            .iter()
            .map(|(name, n)| {
                assert_eq!(name, "a.drop.cut-limit");
                *n
            })
            .sum();
        assert!(fragments <= 500_000);
    }
    // The clock may have gone on.
    assert!((249_000..500_000).contains(&fragments), "{fragments}");
    // What fits is not concerned.
    let [short, arrives] = routed(A, B, |ip| ip.udp(1, 2, &data(500)));
    net.passes(A, &short, B, &arrives);
    net.host.pass(1);
    assert_eq!(net.send(A, &sent)["b"].len(), 119);
}

/// A receiver without room for all gets none: without one the others are worth nothing.
#[test]
fn a_full_ring_takes_no_part_of_a_packet() {
    let mut net = Net::apart(&[A], true);
    let config = GuestConfig::default().rings(4);
    net.host.declare(B.0, B.1, B.2, &policy(B.3, true)).unwrap();
    let memory = MemoryConfig::new(config.memory_needed());
    net.host.attach(B.0, LINUX, &config, &memory).unwrap();
    net.join();
    net.host.settle();
    net.host.moved();
    for (len, arrive) in [(9000, 0), (5600, 0), (5400, 4)] {
        let question = butterfly_datapath::Question { length: Some(len as u16), ..question(false) };
        let fate = net.host.explain(&question).unwrap().walks[0].fate.clone();
        match (&fate, arrive) {
            (Fate::Delivered(id), 4) => assert_eq!(id, "b"),
            (Fate::Dropped(refused), 0) => assert_eq!(refused.reason.name, "ring-full"),
            _ => panic!("{fate:?}"),
        }
        let [sent, _] = routed(A, B, |ip| ip.udp(1, 2, &data(len - 42)));
        net.host.send(A.0, &sent, NetHeader::default()).unwrap();
        let moved = net.host.moved();
        let of = |name: &str| moved.get(name).copied().unwrap_or(0);
        let dropped = u64::from(arrive == 0);
        assert_eq!((of("b.drop.ring-full"), of("b.out.packets")), (dropped, arrive), "{moved:?}");
    }
}

/// Packets that are to be cut do not wait for a next hop, and `explain` says so. One that fits
/// without the bytes behind it does.
#[test]
fn what_is_cut_does_not_wait_for_a_next_hop() {
    let make = || {
        let mut one = host(1, &[A], true);
        one.host.change_routing(network(42, "10.0.0.0/24", "10.0.0.1", None));
        one.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", None));
        one.host.change_routing(router("r", &[42, 50]));
        one.neighbour(B, Some(2));
        one.host.settle();
        one.host.moved();
        one
    };
    for (len, waits) in [(3000_u16, false), (1400, true)] {
        let mut one = make();
        let question = butterfly_datapath::Question { length: Some(len), ..question(false) };
        let fate = one.host.explain(&question).unwrap().walks[0].fate.clone();
        match &fate {
            Fate::Dropped(refused) if !waits => assert_eq!(refused.reason.name, "no-neighbour"),
            _ => assert!(waits && matches!(fate, Fate::Leaves(_) | Fate::Waits), "{fate:?}"),
        }
        let [sent, _] = routed(A, B, |ip| ip.udp(1, 2, &data(usize::from(len) - 42)));
        assert_eq!(one.leaves(A, &sent), Vec::<Vec<u8>>::new());
        let dropped = one.drops_counted().iter().any(|(name, _)| name.ends_with("no-neighbour"));
        assert_eq!(dropped, !waits, "{len}");
    }
    let mut one = make();
    let [mut sent, arrives] = routed(A, B, |ip| ip.udp(1, 2, &data(1000)));
    sent.resize(3000, 0xee);
    assert_eq!(one.leaves(A, &sent), Vec::<Vec<u8>>::new());
    assert_eq!(one.drops_counted(), []);
    let waiting = one.host.punted();
    let [kept] = &waiting[..] else { panic!("{waiting:?}") };
    assert_eq!(kept.len(), 50 + arrives.len());
    assert_eq!(kept[50 + 14..], arrives[14..]);
}

/// As above, of frames in many descriptors whose sums are left to others: each fragment is looked
/// for among the pieces, and a sum reads them all.
#[test]
fn frames_in_many_pieces_are_the_work_of_more_turns() {
    let mut net = large(576, 1);
    let frames: Vec<_> = (0..12_u16)
        .map(|n| {
            let make =
                |sum| move |ip: Ip| ip.identification(n + 1).checksum(sum).udp(1, 2, &data(20_000));
            let [sent, _] = routed(A, B, make(Checksum::Partial));
            let [_, arrives] = routed(A, B, make(Checksum::Complete));
            [sent, arrives]
        })
        .collect();
    let guest = net.host.guest(A.0).unwrap();
    guest.set_tx_shape(Shape { pieces: 80, ..Shape::HEADER_APART });
    for [sent, _] in &frames {
        guest.enqueue(sent, UDP_SUM).unwrap();
    }
    guest.flush();
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut most = 0;
    for _ in 0..50 {
        net.host.turn();
        let got = net.host.received().unwrap().remove("b").unwrap_or_default();
        most = most.max(got.len());
        all.extend(got.into_iter().map(|(_, frame)| frame));
    }
    assert_eq!((names(&mut net), all.len()), (vec![], 37 * 12));
    // 5 copies for each fragment, and 19 for the sum: 4 frames in a turn, not 6.
    assert!(most <= 4 * 37, "{most} in one turn");
    for ([_, arrives], fragments) in frames.iter().zip(all.chunks(37)) {
        assert_eq!(&together(fragments.to_vec(), 576), arrives);
    }
}

#[test]
fn an_explanation_tells_of_the_fragments() {
    let mut net = Net::new(&[A, B], false);
    net.admit("10.0.0.0/8");
    let question = butterfly_datapath::Question { length: Some(3000), ..question(false) };
    let told = net.host.explain(&question).unwrap();
    let walk = &told.walks[0];
    let texts: Vec<_> = walk.steps.iter().map(|step| step.text.clone()).collect();
    let told = texts.iter().any(|text| text.contains("in 3 fragments, as 1400 bytes fit"));
    assert!(told, "{texts:?}");
    assert_eq!(walk.fate, Fate::Delivered("b".into()));
}

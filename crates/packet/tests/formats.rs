//! The views read what the builders write; and no bytes make a view panic.

use std::net::{Ipv4Addr, Ipv6Addr};

use butterfly_packet::{
    Mac,
    arp::Arp,
    build::{self, Checksum},
    checksum::Sum,
    ethernet::{self, Ethernet, Llc, Tag},
    icmp::Icmp,
    igmp::Igmp,
    ipv4::Ipv4,
    ipv6::Ipv6,
    mld::{self, Mld},
    protocol,
    sctp::Sctp,
    tcp::Tcp,
    udp::Udp,
    vxlan::{self, Vxlan},
};
use proptest::{collection::vec, prelude::*};

fn mac() -> impl Strategy<Value = Mac> {
    any::<[u8; 6]>().prop_map(Mac)
}

fn tags() -> impl Strategy<Value = Vec<Tag>> {
    let old = prop::sample::select(&ethernet::OLD_SERVICE_VLANS[..]);
    let tpid = prop_oneof![Just(ethernet::VLAN), Just(ethernet::SERVICE_VLAN), old];
    vec((tpid, any::<u16>()).prop_map(|(tpid, tci)| Tag { tpid, tci }), 0..4)
}

fn link(source: Mac, destination: Mac, tags: &[Tag]) -> build::Link {
    tags.iter().fold(build::ethernet(source, destination), |link, tag| link.tag(*tag))
}

/// Ethertype and payload behind the tags.
fn network(frame: &[u8]) -> (u16, &[u8]) {
    let mut walk = Ethernet::parse(frame).unwrap().tags();
    walk.by_ref().for_each(drop);
    (walk.ethertype(), walk.rest())
}

proptest! {
    #[test]
    fn ethernet_and_tags(a in mac(), b in mac(), tags in tags(), payload in vec(any::<u8>(), 0..100)) {
        let frame = link(a, b, &tags).payload(0x1234, &payload);
        let view = Ethernet::parse(&frame).unwrap();
        prop_assert_eq!((view.source(), view.destination()), (a, b));
        prop_assert_eq!(view.tags().collect::<Vec<_>>(), tags);
        prop_assert_eq!(network(&frame), (0x1234, &payload[..]));
    }

    #[test]
    fn llc(dsap: u8, ssap: u8, control: u8, snap in proptest::option::of((0u32..1 << 24, any::<u16>())), payload in vec(any::<u8>(), 0..100)) {
        let llc = match snap {
            Some(_) => Llc { dsap: 0xaa, ssap: 0xaa, control: 3, snap, payload: &payload },
            None => Llc { dsap: dsap & 0x7f, ssap, control, snap, payload: &payload },
        };
        let frame = build::ethernet(Mac::ZERO, Mac::BROADCAST).llc(&llc);
        let (len, rest) = network(&frame);
        prop_assert_eq!(usize::from(len), rest.len());
        prop_assert_eq!(Llc::parse(rest), Ok(llc));
    }

    #[test]
    fn arp(op: u16, a in mac(), b in mac(), from: [u8; 4], to: [u8; 4]) {
        let frame = build::ethernet(a, b).arp(op, (a, from.into()), (b, to.into()));
        let (ethertype, rest) = network(&frame);
        let view = Arp::parse(rest).unwrap();
        prop_assert_eq!((ethertype, view.operation()), (ethernet::ARP, op));
        prop_assert_eq!((view.sender_mac(), view.sender_ip()), (a, Ipv4Addr::from(from)));
        prop_assert_eq!((view.target_mac(), view.target_ip()), (b, Ipv4Addr::from(to)));
    }

    #[test]
    fn ipv4(from: [u8; 4], to: [u8; 4], ttl: u8, tos: u8, id: u16, units in 0usize..0x2000, more: bool, df: bool,
            options in vec(any::<u8>(), 0..=40), proto: u8, payload in vec(any::<u8>(), 0..100), padding in 0usize..20) {
        let mut ip = build::ethernet(Mac::ZERO, Mac::ZERO).ipv4(from, to).ttl(ttl).tos(tos).options(&options);
        ip = ip.fragment(id.into(), units * 8, more);
        if df {
            ip = ip.dont_fragment();
        }
        let mut frame = ip.payload(proto, &payload);
        frame.resize(frame.len() + padding, 0);
        let view = Ipv4::parse(network(&frame).1).unwrap();
        prop_assert!(view.checksum_is_valid());
        prop_assert_eq!((view.source(), view.destination()), (Ipv4Addr::from(from), Ipv4Addr::from(to)));
        prop_assert_eq!((view.ttl(), view.tos(), view.identification(), view.protocol()), (ttl, tos, id, proto));
        prop_assert_eq!((view.fragment_offset(), view.more_fragments(), view.dont_fragment()), (units * 8, more, df));
        prop_assert_eq!(view.is_fragment(), more || units != 0);
        prop_assert_eq!(&view.options()[..options.len()], &options[..]);
        prop_assert_eq!(view.payload(), Ok(&payload[..]));
    }

    #[test]
    fn ipv6(from: [u8; 16], to: [u8; 16], ttl: u8, tos: u8, fragment in proptest::option::of((any::<u32>(), any::<bool>())),
            bodies in vec(vec(any::<u8>(), 0..30), 0..4), payload in vec(any::<u8>(), 0..100), padding in 0usize..20) {
        let kinds = [protocol::HOP_BY_HOP, protocol::DESTINATION_OPTIONS, protocol::ROUTING, protocol::DESTINATION_OPTIONS];
        let mut ip = build::ethernet(Mac::ZERO, Mac::ZERO).ipv6(from, to).ttl(ttl).tos(tos);
        for (kind, body) in kinds.into_iter().zip(&bodies) {
            ip = ip.extension(kind, body);
        }
        if let Some((id, more)) = fragment {
            ip = ip.fragment(id, 0, more);
        }
        let mut frame = ip.payload(protocol::SCTP, &payload);
        frame.resize(frame.len() + padding, 0);
        let packet = network(&frame).1;
        let view = Ipv6::parse(packet).unwrap();
        prop_assert_eq!((view.source(), view.destination()), (Ipv6Addr::from(from), Ipv6Addr::from(to)));
        prop_assert_eq!((view.hop_limit(), view.traffic_class(), view.flow_label()), (ttl, tos, 0));
        prop_assert_eq!(view.payload().unwrap().len() + padding, packet.len() - 40);
        let upper = view.upper_layer().unwrap();
        prop_assert_eq!(upper.protocol, protocol::SCTP);
        prop_assert_eq!(upper.fragment.map(|f| (f.identification, f.more())), fragment);
        prop_assert_eq!(&packet[upper.offset..packet.len() - padding], &payload[..]);
        let mut walk = view.extensions();
        for (kind, body) in kinds.into_iter().zip(&bodies) {
            let extension = walk.take_next().unwrap().unwrap();
            prop_assert_eq!((extension.kind, &extension.bytes[2..2 + body.len()]), (kind, &body[..]));
        }
    }

    #[test]
    fn transports_v4(from: [u8; 4], to: [u8; 4], sport: u16, dport: u16, seq: u32, ack: u32, flags: u8, window: u16,
                     options in vec(any::<u8>(), 0..=40), payload in vec(any::<u8>(), 0..100)) {
        let ip = build::ethernet(Mac::ZERO, Mac::ZERO).ipv4(from, to);
        let pseudo = |proto, len: usize| Sum::pseudo_v4(from.into(), to.into(), proto, len as u16);

        let frame = ip.udp(sport, dport, &payload);
        let datagram = Ipv4::parse(network(&frame).1).unwrap().payload().unwrap();
        let udp = Udp::parse(datagram).unwrap();
        prop_assert_eq!((udp.source_port(), udp.destination_port(), udp.payload()), (sport, dport, Ok(&payload[..])));
        prop_assert!(udp.checksum() != 0 && pseudo(protocol::UDP, datagram.len()).push(datagram).is_valid());

        let segment = build::Tcp { source_port: sport, destination_port: dport, sequence: seq, acknowledgement: ack, flags, window, options: &options };
        let frame = ip.tcp(&segment, &payload);
        let bytes = Ipv4::parse(network(&frame).1).unwrap().payload().unwrap();
        let tcp = Tcp::parse(bytes).unwrap();
        prop_assert_eq!((tcp.source_port(), tcp.destination_port(), tcp.sequence(), tcp.acknowledgement()), (sport, dport, seq, ack));
        prop_assert_eq!((tcp.flags(), tcp.window(), tcp.payload()), (flags, window, &payload[..]));
        prop_assert_eq!(&tcp.options().as_bytes()[..options.len()], &options[..]);
        prop_assert!(pseudo(protocol::TCP, bytes.len()).push(bytes).is_valid());

        // A device that completes a partial checksum gets the complete one.
        let frame = ip.clone().checksum(Checksum::Partial).tcp(&segment, &payload);
        let partial = Ipv4::parse(network(&frame).1).unwrap().payload().unwrap();
        prop_assert_eq!(Sum::of(partial).checksum(), tcp.checksum());

        let frame = ip.icmp(8, 0, u32::from(sport) << 16 | u32::from(dport), &payload);
        let message = Ipv4::parse(network(&frame).1).unwrap().payload().unwrap();
        let icmp = Icmp::parse(message).unwrap();
        prop_assert_eq!((icmp.kind(), icmp.echo_id(), icmp.echo_sequence(), icmp.body()), (8, sport, dport, &payload[..]));
        prop_assert!(Sum::of(message).is_valid());

        let frame = ip.sctp((sport, dport), seq, 1, &payload);
        let sctp = Sctp::parse(Ipv4::parse(network(&frame).1).unwrap().payload().unwrap()).unwrap();
        prop_assert_eq!((sctp.source_port(), sctp.destination_port(), sctp.verification_tag(), sctp.first_chunk_type()), (sport, dport, seq, Some(1)));
    }

    #[test]
    fn transports_v6(from: [u8; 16], to: [u8; 16], kind: u8, rest: u32, payload in vec(any::<u8>(), 0..100)) {
        let ip = build::ethernet(Mac::ZERO, Mac::ZERO).ipv6(from, to);
        let frame = ip.icmp(kind, 3, rest, &payload);
        let message = Ipv6::parse(network(&frame).1).unwrap().payload().unwrap();
        let icmp = Icmp::parse(message).unwrap();
        prop_assert_eq!((icmp.kind(), icmp.code(), icmp.rest_of_header(), icmp.body()), (kind, 3, rest, &payload[..]));
        prop_assert!(Sum::pseudo_v6(from.into(), to.into(), protocol::ICMPV6, message.len() as u32).push(message).is_valid());
    }

    #[test]
    fn vxlan(vni in 0..=vxlan::MAX_VNI, port: u16, frame in vec(any::<u8>(), 0..100)) {
        let ip = build::ethernet(Mac::ZERO, Mac::ZERO).ipv4([10, 1, 0, 1], [10, 1, 0, 2]).checksum(Checksum::Zero);
        let outer = ip.vxlan(port, vni, &frame);
        let udp = Udp::parse(Ipv4::parse(network(&outer).1).unwrap().payload().unwrap()).unwrap();
        prop_assert_eq!((udp.source_port(), udp.destination_port(), udp.checksum()), (port, vxlan::PORT, 0));
        let view = Vxlan::parse(udp.payload().unwrap()).unwrap();
        prop_assert_eq!((view.vni(), view.frame()), (vni, &frame[..]));
    }

    /// Every view over every truncation of every frame: any answer, but no panic.
    #[test]
    fn no_bytes_make_a_view_panic(mut bytes in vec(any::<u8>(), 0..120), version in 0usize..5) {
        let first = [0x45, 0x4f, 0x60, 0xaa, 0x00][version];
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        for end in 0..=bytes.len() {
            look(&bytes[..end]);
        }
    }
}

fn look(bytes: &[u8]) {
    if let Ok(view) = Ethernet::parse(bytes) {
        let mut tags = view.tags();
        tags.by_ref().for_each(drop);
        let _ = (view.source(), view.destination(), tags.rest());
    }
    let _ = Llc::parse(bytes);
    if let Ok(view) = Arp::parse(bytes) {
        let _ = (
            view.operation(),
            view.sender_mac(),
            view.sender_ip(),
            view.target_mac(),
            view.target_ip(),
        );
    }
    if let Ok(view) = Ipv4::parse(bytes) {
        let _ = (
            view.header(),
            view.options(),
            view.payload(),
            view.checksum_is_valid(),
            view.source(),
            view.destination(),
        );
    }
    if let Ok(view) = Ipv6::parse(bytes) {
        let _ = (
            view.payload(),
            view.upper_layer(),
            view.source(),
            view.destination(),
            view.flow_label(),
        );
    }
    if let Ok(view) = Tcp::parse(bytes) {
        let _ = (view.options().count(), view.payload(), view.checksum());
    }
    if let Ok(view) = Udp::parse(bytes) {
        let _ = view.payload();
    }
    if let Ok(view) = Sctp::parse(bytes) {
        let _ = (view.first_chunk_type(), view.chunks());
    }
    if let Ok(view) = Icmp::parse(bytes) {
        let mut options = view.options(16);
        while let Ok(Some((_, value))) = options.take_next() {
            let _ = butterfly_packet::icmp::link_address(value);
        }
        let _ = view.target();
    }
    let _ = Vxlan::parse(bytes);
    if let Ok(view) = Igmp::parse(bytes) {
        let _ = (view.query(), view.group(), view.checksum_is_valid());
    }
    if let Ok(view) = Mld::parse(bytes) {
        let _ = (view.query(), view.group());
    }
    let _ = mld::has_router_alert(bytes);
}

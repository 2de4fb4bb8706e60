//! Frames with any virtio-net header: the parsers one by one, then the whole packet path to
//! receivers of every kind.

use butterfly_datapath::{
    Mac, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{GuestConfig, MemoryConfig, SendError};
use butterfly_packet::{arp, ethernet, icmp, ipv4, ipv6, sctp, tcp, udp};
use butterfly_vhost::net::{Features, NetHeader};

use crate::input::Input;

const SENDER: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// Receivers with every way of taking a frame.
const RECEIVERS: [(&str, u8, Features, bool); 4] = [
    ("linux", 2, LINUX, true),
    // Segments are cut, checksums computed.
    ("plain", 3, Features(Features::VERSION_1.0 | Features::MRG_RXBUF.0), true),
    // As above, but the receiver completes checksums itself.
    ("partial", 4, Features(Features::VERSION_1.0 | Features::GUEST_CSUM.0), true),
    ("filtered", 5, LINUX, false),
];

/// One byte of choices, ten of header, then the frame; its first six bytes are the destination.
pub fn run(data: &[u8]) {
    parsers(data);
    let mut input = Input::new(data);
    let choice = input.u8();
    let mut header = [0; NetHeader::LEN];
    header.iter_mut().take(NetHeader::LEGACY_LEN).for_each(|byte| *byte = input.u8());
    let header = NetHeader::from_bytes(header);
    let mut frame = input.rest().to_vec();
    // Large segments need more bytes than a small input has.
    frame.resize(frame.len().max(usize::from(choice >> 4) * 300), choice);
    frame.truncate(4000);
    if choice & 8 != 0 {
        well_addressed(&mut frame, choice);
    }
    walk(&frame, header, choice & 4 != 0);
}

/// Makes it likely that someone receives it.
fn well_addressed(frame: &mut [u8], choice: u8) {
    if let Some(to) = frame.first_chunk_mut::<6>() {
        *to = [2, 0, 0, 0, 0, 2 + choice % 4];
    }
    if let Some(from) = frame.get_mut(6..12) {
        from.copy_from_slice(&SENDER.0);
    }
}

fn walk(frame: &[u8], header: NetHeader, filtered: bool) {
    let mut host = Host::new().expect("a host");
    let config =
        GuestConfig { max_frame: 4096, rx_buffer: 4096 + NetHeader::LEN, ..GuestConfig::default() }
            .rings(64);
    let memory = || MemoryConfig::new(config.memory_needed());
    let policy = |bypass, ip: &str| VnicPolicy {
        bypass,
        ip_anti_spoof: !bypass,
        ips: vec![ip.parse().expect("an address")],
        ..VnicPolicy::default()
    };
    host.declare("sender", SENDER, 1, &policy(!filtered, "10.0.0.1")).expect("a vnic");
    host.attach("sender", LINUX, &config, &memory()).expect("a guest");
    for (id, last, features, bypass) in RECEIVERS {
        host.declare(id, Mac([2, 0, 0, 0, 0, last]), 1, &policy(bypass, "10.0.0.2"))
            .expect("a vnic");
        host.attach(id, features, &config, &memory()).expect("a guest");
    }
    host.declare("elsewhere", Mac([2, 0, 0, 0, 0, 2]), 2, &policy(true, "10.0.0.2"))
        .expect("a vnic");
    host.attach("elsewhere", LINUX, &config, &memory()).expect("a guest");

    match host.guest("sender").expect("a guest").send(frame, header) {
        Ok(()) => host.settle(),
        Err(SendError::TooLong(_)) => return,
        Err(error) => panic!("{error}"),
    }
    let received = host.received().expect("a sound device");
    let moved = host.moved();
    let count = |name: &str| moved.get(name).copied().unwrap_or(0);
    assert_eq!(count("sender.in.packets"), 1);
    assert!(!received.contains_key("elsewhere"), "a frame crossed networks");
    assert!(!received.contains_key("sender"), "a frame came back");
    assert!(!moved.keys().any(|name| name.starts_with("elsewhere.")), "{moved:?}");
    let dropped: u64 =
        moved.iter().filter(|(name, _)| name.contains(".drop.")).map(|(_, n)| n).sum();
    assert!(!received.is_empty() || dropped > 0, "a frame vanished without a name: {moved:?}");
    let asks =
        header.flags & NetHeader::FLAG_NEEDS_CSUM != 0 || header.gso_type != NetHeader::GSO_NONE;
    for (id, frames) in &received {
        assert_eq!(frames.len() as u64, count(&format!("{id}.out.packets")));
        let (_, _, features, bypass) =
            RECEIVERS.iter().find(|(name, ..)| name == id).expect("a receiver");
        for (got, bytes) in frames {
            if !asks {
                assert_eq!(
                    (NetHeader { num_buffers: 0, ..*got }, bytes.as_slice()),
                    (NetHeader::default(), frame),
                    "{id}"
                );
            }
            let needs = |feature: Features, when: bool| {
                assert!(!when || features.has(feature), "{id} cannot take {got:?}")
            };
            needs(Features::GUEST_CSUM, got.flags != 0);
            needs(Features::GUEST_TSO4, got.gso_type & !NetHeader::GSO_ECN == NetHeader::GSO_TCPV4);
            needs(Features::GUEST_TSO6, got.gso_type & !NetHeader::GSO_ECN == NetHeader::GSO_TCPV6);
            assert!(matches!(
                got.gso_type & !NetHeader::GSO_ECN,
                NetHeader::GSO_NONE | NetHeader::GSO_TCPV4 | NetHeader::GSO_TCPV6
            ));
            if got.flags & NetHeader::FLAG_NEEDS_CSUM != 0 {
                let field = usize::from(got.csum_start) + usize::from(got.csum_offset);
                assert!(field + 2 <= bytes.len(), "{id}: a checksum field outside of the frame");
            }
            let ethertype = Option::zip(bytes.get(12), bytes.get(13))
                .map(|(a, b)| u16::from_be_bytes([*a, *b]));
            let at = |place: usize, len: usize| bytes.get(place..place + len).unwrap_or_default();
            if !bypass {
                // Without groups nothing gets in but discovery.
                assert_ne!(ethertype, Some(ethernet::IPV4), "IPv4 passed a filter without a rule");
                let discovery =
                    at(20, 1) == [58] && matches!(at(54, 1), [130..=132 | 134..=136 | 143]);
                // Behind extension headers discovery is not looked for here.
                assert!(
                    ethertype != Some(ethernet::IPV6)
                        || discovery
                        || at(20, 1) == [0]
                        || at(20, 1) == [60],
                    "IPv6 passed a filter"
                );
            }
            if filtered {
                let own_v4 = at(26, 4) == [10, 0, 0, 1] || at(26, 4) == [0; 4];
                assert!(ethertype != Some(ethernet::IPV4) || own_v4, "a forged IPv4 source passed");
                let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1];
                let own_v6 = at(22, 16) == link_local || at(22, 16) == [0; 16];
                assert!(ethertype != Some(ethernet::IPV6) || own_v6, "a forged IPv6 source passed");
                assert_eq!(bytes.get(6..12), Some(&SENDER.0[..]), "a forged source passed");
            }
        }
    }
}

/// Every parser on the same bytes. They promise neither to panic nor to read beyond their input.
fn parsers(data: &[u8]) {
    if let Ok(link) = ethernet::Ethernet::parse(data) {
        let mut tags = link.tags();
        assert!(tags.by_ref().count() <= data.len() / 4);
        let (ethertype, rest) = (tags.ethertype(), tags.rest());
        assert!(rest.len() < data.len());
        match ethertype {
            ethernet::IPV4 => ip4(rest),
            ethernet::IPV6 => ip6(rest),
            _ => drop(arp::Arp::parse(rest)),
        }
    }
    ip4(data);
    ip6(data);
    let _ = ethernet::Llc::parse(data).map(|llc| format!("{llc:?}"));
    let _ = arp::Arp::parse(data).map(|arp| format!("{arp:?}"));
    transport(data);
}

fn ip4(data: &[u8]) {
    let Ok(ip) = ipv4::Ipv4::parse(data) else { return };
    assert!(ip.header().len() + ip.payload().map_or(0, <[u8]>::len) <= data.len());
    let _ = (format!("{ip:?}"), ip.checksum_is_valid(), ip.options());
    let _ = ip.payload().map(transport);
}

fn ip6(data: &[u8]) {
    let Ok(ip) = ipv6::Ipv6::parse(data) else { return };
    let mut extensions = ip.extensions();
    let mut count = 0;
    while let Ok(Some(extension)) = extensions.take_next() {
        let _ = format!("{extension:?}");
        count += 1;
        assert!(count <= data.len() / 8, "more extension headers than there is room for");
    }
    if let (Ok(upper), Ok(payload)) = (ip.upper_layer(), ip.payload()) {
        transport(payload.get(upper.offset.saturating_sub(ipv6::LEN)..).unwrap_or_default());
    }
}

fn transport(data: &[u8]) {
    if let Ok(tcp) = tcp::Tcp::parse(data) {
        assert!(tcp.payload().len() + tcp::MIN_LEN <= data.len());
        assert!(tcp.options().count() <= 40);
    }
    let _ = udp::Udp::parse(data).map(|udp| format!("{:?}", udp.payload()));
    let _ = sctp::Sctp::parse(data).map(|sctp| sctp.first_chunk_type());
    if let Ok(icmp) = icmp::Icmp::parse(data) {
        let _ = (format!("{icmp:?}"), icmp.target());
        let mut options = icmp.options(0);
        let mut count = 0;
        while let Ok(Some((kind, option))) = options.take_next() {
            let _ = (kind, icmp::link_address(option));
            count += 1;
            assert!(count <= data.len() / 8, "more options than there is room for");
        }
    }
}

//! DHCP requests of vnics, by the codec alone and through the packet path.

use std::net::Ipv4Addr;

use butterfly_datapath::{Mac, RoutingChange, SessionConfig, VnicPolicy, harness::Host};
use butterfly_model::{Dhcp, DhcpRoute, Network, Subnet, Vni};
use butterfly_packet::{
    build,
    dhcp::{MAX_ANSWER, DhcpOptions, Reply, Request, Terms, answer},
    ethernet::Ethernet,
    ipv4::Ipv4,
    udp::Udp,
};
use butterfly_vhost::net::NetHeader;

use crate::input::Input;

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const FROM: Mac = Mac([0xb2, 0xf0, 0, 0, 0, 1]);
const LEASED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 10);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Offset of the client's MAC address in a message.
const CHADDR: usize = 28;

/// A byte that says how the message is sent, the room for the codec's answer, the message. With bit
/// 0 the message has the sender's own MAC address, which fuzzers seldom find.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (how, room) = (input.u8(), usize::from(input.u16()));
    let mut message = input.rest().to_vec();
    message.truncate(2000);
    if let Some(mac) = message.get_mut(CHADDR..CHADDR + 6).filter(|_| how & 1 == 1) {
        mac.copy_from_slice(&OWN.0);
    }
    by_codec(&message, room % (MAX_ANSWER + 1));
    by_path(&message, how);
}

fn by_codec(message: &[u8], room: usize) {
    let Ok(request) = Request::parse(message) else { return };
    let routes = [16, 10, 9, 10, 0, 0, 7, 0, 10, 0, 0, 1];
    let terms = Terms {
        gateway: GATEWAY,
        mask: [255, 255, 255, 0].into(),
        broadcast: Some([10, 0, 0, 255].into()),
        lease: 3600,
        mtu: Some(1450),
        dns: &[9, 9, 9, 9],
        search: b"\x07example\x03com\0",
        domain: b"example.com",
        routes: &routes,
        next_server: [10, 0, 0, 105].into(),
        boot_file: b"pxelinux.0",
    };
    for reply in
        [Reply::Offer(LEASED), Reply::Acknowledge(LEASED), Reply::Parameters, Reply::Refuse]
    {
        let mut whole = [0; MAX_ANSWER];
        let len = answer(&request, reply, &terms, FROM, &mut whole).expect("there is room");
        check(&whole[..len], request.longest);
        let mut short = vec![0; room];
        if let Some(len) = answer(&request, reply, &terms, FROM, &mut short) {
            check(&short[..len], request.longest);
        }
    }
}

/// An answer is whole, fits, and says nothing twice. Returns its kind and address.
fn check(frame: &[u8], longest: u16) -> (u8, Ipv4Addr) {
    let ip = Ipv4::parse(Ethernet::parse(frame).expect("a frame").payload()).expect("IPv4");
    assert!(ip.checksum_is_valid() && ip.total_len() + 14 == frame.len());
    assert!(ip.total_len() <= usize::from(longest));
    let udp = Udp::parse(ip.payload().expect("whole")).expect("UDP");
    assert_eq!((udp.source_port(), udp.destination_port()), (67, 68));
    let message = udp.payload().expect("whole");
    let mut seen = [false; 256];
    let mut kind = 0;
    for option in DhcpOptions::of_message(message).expect("options") {
        let (code, value) = option.expect("options end");
        assert!(!std::mem::replace(&mut seen[usize::from(code)], true), "{code} twice");
        if code == 53 {
            kind = value[0];
        }
    }
    assert!(seen[53] && seen[54] && !(seen[3] && seen[121]));
    (kind, Ipv4Addr::from(*message[16..].first_chunk::<4>().expect("an address")))
}

fn by_path(message: &[u8], how: u8) {
    let mut host = host();
    let ip = match how & 2 {
        0 => build::ethernet(OWN, Mac::BROADCAST).ipv4([0; 4], [255; 4]),
        _ => build::ethernet(OWN, FROM).ipv4([10, 0, 0, 10], [10, 0, 0, 1]),
    };
    let ip = if how & 4 == 0 { ip } else { ip.options(&[1; 40]) };
    let mut frame = ip.udp(if how & 8 == 0 { 68 } else { 67 }, 67, message);
    if how & 16 != 0 {
        frame.splice(12..12, [0x81, 0, 0xe0, 0]);
    }
    if how & 32 != 0 {
        frame.truncate(frame.len() / 2);
    }
    host.send("a", &frame, NetHeader::default()).expect("room for a frame");
    let received = host.received().expect("sound rings");
    for (id, frames) in received {
        for (_, got) in frames {
            if got == frame {
                continue; // it was no request
            }
            assert_eq!(id, "a", "nobody else hears an answer");
            let (kind, address) = check(&got, u16::MAX);
            let leases = matches!(kind, 2) || kind == 5 && !address.is_unspecified();
            assert_eq!(address, if leases { LEASED } else { Ipv4Addr::UNSPECIFIED });
        }
    }
}

/// Two vnics of a network that leases addresses.
fn host() -> Host {
    let sessions = SessionConfig { capacity: 64, ..SessionConfig::default() };
    let mut host = Host::with_sessions(sessions).expect("memory");
    for (id, mac, last) in [("a", OWN, 10), ("b", OTHER, 11)] {
        let ips = vec![[10, 0, 0, last].into()];
        let policy = VnicPolicy { bypass: true, ips, ..VnicPolicy::default() };
        host.vnic(id, mac, 42, &policy).expect("room for a vnic");
    }
    let subnet = Subnet::parse("10.0.0.0/24", Some("10.0.0.1")).expect("a subnet");
    let route = DhcpRoute::parse("10.9.0.0/16=10.0.0.7").expect("a route");
    let dhcp = Dhcp::new(None).and_then(|dhcp| dhcp.with_routes(&[route])).expect("terms");
    let network = Network::new(Vni::new(42).expect("a VNI"), vec![subnet], None).expect("a network");
    let network = network.with_dhcp(Some(dhcp)).expect("a gateway");
    host.change_routing(RoutingChange::DeclareNetwork(network));
    host.settle();
    let _ = host.received();
    host
}

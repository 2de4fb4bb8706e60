//! Frames that leave the host, field by field, as every VXLAN endpoint expects them.

use std::net::IpAddr;

use butterfly_datapath::{
    Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_packet::{build, ipv4::Ipv4};
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const LINK: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);
const VNI: u32 = 1337;

/// Broadcasts of a machine, as it may send them: tags are its own business.
fn frames() -> [Vec<u8>; 3] {
    let plain = build::ethernet(A, Mac::BROADCAST);
    let tagged = build::ethernet(A, Mac::BROADCAST).vlan(7);
    let twice = build::ethernet(A, Mac::BROADCAST).vlan(7).vlan(8);
    [plain, tagged, twice].map(|link| link.arp_request([10, 0, 0, 1], [10, 0, 0, 2]))
}

/// Returns the frames that leave after this frame was sent in the network, twice.
fn broadcasts(endpoint: &str, frame: &[u8]) -> [Vec<u8>; 2] {
    let endpoint: IpAddr = endpoint.parse().unwrap();
    let tunnel = TunnelConfig::new(endpoint, LINK);
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut host = Host::with_tunnel(sessions, Some(&tunnel)).unwrap();
    host.declare("a", A, VNI, &VnicPolicy { bypass: true, ..VnicPolicy::default() }).unwrap();
    let guest = GuestConfig::default();
    host.attach("a", LINUX, &guest, &MemoryConfig::new(guest.memory_needed())).unwrap();
    host.settle();
    [(); 2].map(|()| {
        host.send("a", frame, NetHeader::default()).unwrap();
        let mut left = host.left().unwrap();
        assert_eq!(left.len(), 1, "one packet for the group, whoever is in it");
        left.remove(0)
    })
}

/// A field: its name, where it begins, and what is in it.
type Row = (&'static str, usize, &'static [u8]);

#[track_caller]
fn check(packet: &[u8], rows: &[Row]) {
    for (field, at, expected) in rows {
        assert_eq!(&packet[*at..at + expected.len()], *expected, "{field} of {packet:02x?}");
    }
}

fn port(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

#[test]
fn over_ipv4() {
    const ROWS: &[Row] = &[
        // 230.0.5.57 and its low 23 bits.
        ("outer destination MAC", 0, &[1, 0, 0x5e, 0, 5, 57]),
        ("outer source MAC", 6, &LINK.0),
        ("EtherType, without a tag", 12, &[8, 0]),
        ("version and header length", 14, &[0x45]),
        ("type of service", 15, &[0]),
        ("flags and fragment offset: DF is clear", 20, &[0, 0]),
        ("time to live", 22, &[64]),
        ("protocol", 23, &[17]),
        ("source", 26, &[192, 0, 2, 1]),
        ("destination", 30, &[230, 0, 5, 57]),
        ("destination port", 36, &[0x12, 0xb5]),
        ("UDP checksum", 40, &[0, 0]),
        ("VXLAN flags", 42, &[8, 0, 0, 0]),
        ("VNI, and a byte of zero", 46, &[0, 5, 57, 0]),
    ];
    for frame in frames() {
        let [first, second] = broadcasts("192.0.2.1", &frame);
        for packet in [&first, &second] {
            check(packet, ROWS);
            assert_eq!(packet.len(), frame.len() + 50, "overhead");
            assert_eq!(packet[50..], frame);
            assert_eq!(usize::from(port(packet, 16)), packet.len() - 14, "total length");
            assert_eq!(usize::from(port(packet, 38)), packet.len() - 34, "UDP length");
            assert!(Ipv4::parse(&packet[14..]).unwrap().checksum_is_valid());
            assert!(port(packet, 34) >= 49152, "source port");
        }
        assert_eq!(port(&second, 18), port(&first, 18).wrapping_add(1), "identification");
        assert_eq!(port(&second, 34), port(&first, 34), "one flow, one source port");
    }
}

#[test]
fn over_ipv6() {
    const ROWS: &[Row] = &[
        ("outer destination MAC", 0, &[0x33, 0x33, 0, 0, 5, 57]),
        ("outer source MAC", 6, &LINK.0),
        ("EtherType, without a tag", 12, &[0x86, 0xdd]),
        ("version, class and flow label", 14, &[0x60, 0, 0, 0]),
        ("next header", 20, &[17]),
        ("hop limit", 21, &[255]),
        ("source", 22, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ("destination", 38, &[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 57]),
        ("destination port", 56, &[0x12, 0xb5]),
        ("UDP checksum", 60, &[0, 0]),
        ("VXLAN flags", 62, &[8, 0, 0, 0]),
        ("VNI, and a byte of zero", 66, &[0, 5, 57, 0]),
    ];
    for frame in frames() {
        for packet in &broadcasts("2001:db8::1", &frame) {
            check(packet, ROWS);
            assert_eq!(packet.len(), frame.len() + 70, "overhead");
            assert_eq!(packet[70..], frame);
            // Twenty less than the original says, whose length is wrong.
            assert_eq!(usize::from(port(packet, 18)), packet.len() - 54, "payload length");
            assert_eq!(usize::from(port(packet, 58)), packet.len() - 54, "UDP length");
            assert!(port(packet, 54) >= 49152, "source port");
        }
    }
}

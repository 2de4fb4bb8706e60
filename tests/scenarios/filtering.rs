//! A vnic with a filter and without security groups: it receives no IP but answers, sends with its
//! own addresses only, and everything else passes. `security_groups` tests vnics with groups.

use butterfly_packet::{
    arp,
    build::{self, Link},
    ethernet,
    ethernet::Llc,
    mac::Mac,
};
use butterfly_tests::{
    Host, Nic, Station, eventually,
    frames::{mac, numbered},
    station::usual,
    traffic::Stream,
};

const F: u32 = 1;
const B: u32 = 2;

struct Pair {
    host: Host,
    filtered: Station,
    open: Station,
    before: std::collections::BTreeMap<String, u64>,
}

impl Pair {
    fn new(filtered: Nic) -> Pair {
        let host = Host::new();
        let filtered = host.station(&filtered, &usual());
        let open = host.station(&Nic::bypass("b", mac(B), 1), &usual());
        Pair { before: host.counters(), host, filtered, open }
    }

    /// Sends a frame from the filtered vnic, which drops it for this reason.
    #[track_caller]
    fn refused(&mut self, frame: &[u8], reason: &str) {
        self.filtered.send(frame);
        self.host.settle(&mut [&mut self.filtered]);
        assert_eq!(self.open.pending().len(), 0);
        self.host.moved(&mut self.before, &[("f.in", 1), (&format!("f.drop.{reason}"), 1)]);
    }

    /// Sends a frame from the filtered vnic to the open one, which receives it.
    #[track_caller]
    fn passes(&mut self, frame: &[u8]) {
        self.passes_flooded(frame, frame[0] & 1 == 1);
    }

    /// As [`Self::passes`], for a frame that is `flooded` or not.
    #[track_caller]
    fn passes_flooded(&mut self, frame: &[u8], flooded: bool) {
        self.filtered.send(frame);
        self.open.expect(frame);
        self.host.settle(&mut [&mut self.filtered]);
        let flooded = if flooded { vec![("f.flooded", 1)] } else { vec![] };
        self.host.moved(&mut self.before, &[&[("f.in", 1), ("b.out", 1)], &flooded[..]].concat());
    }

    /// Sends a frame from the open vnic to the filtered one, which receives it.
    #[track_caller]
    fn passes_in(&mut self, frame: &[u8]) {
        self.open.send(frame);
        self.filtered.expect(frame);
        self.host.settle(&mut [&mut self.open]);
        let flooded = if frame[0] & 1 == 1 { vec![("b.flooded", 1)] } else { vec![] };
        self.host.moved(&mut self.before, &[&[("b.in", 1), ("f.out", 1)], &flooded[..]].concat());
    }

    /// Sends a frame from the open vnic. It is dropped, and this counter moves.
    #[track_caller]
    fn refused_in(&mut self, frame: &[u8], counted: &str) {
        self.open.send(frame);
        self.host.settle(&mut [&mut self.open]);
        assert_eq!(self.filtered.pending().len(), 0);
        let flooded = if frame[0] & 1 == 1 { vec![("b.flooded", 1)] } else { vec![] };
        self.host.moved(&mut self.before, &[&[("b.in", 1), (counted, 1)], &flooded[..]].concat());
    }
}

/// Returns IP packets of every kind, each with its drop reason on the way out of a vnic that owns
/// 10.0.0.1 and fd00::1. "": the packet passes.
fn ip(link: &Link) -> Vec<(Vec<u8>, &'static str)> {
    let v6 = |a: &str, b: &str| {
        let [a, b] = [a, b].map(|ip| ip.parse::<std::net::Ipv6Addr>().unwrap());
        link.clone().ipv6(a, b)
    };
    let v4 = || link.clone().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let first = [&[0, 1, 0, 2, 0, 128, 0, 0][..], &[0; 56]].concat();
    vec![
        (v4().ping(1, 1, b"x"), ""),
        (v4().udp(68, 67, &[0; 300]), ""),
        (v4().tcp(&build::Tcp::new(1, 22, 2), b""), ""),
        (v4().fragment(1, 0, true).payload(17, &first), ""),
        (v4().fragment(1, 64, false).payload(17, &[0; 64]), ""),
        (v4().payload(2, &[0; 8]), ""),
        (v6("fd00::1", "fd00::2").ping(1, 1, b"x"), ""),
        (link.clone().vlan(5).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ping(1, 1, b"x"), ""),
        // Source addresses that are not its own.
        (link.clone().ipv4([10, 0, 0, 9], [10, 0, 0, 2]).ping(1, 1, b"x"), "spoofed-ip"),
        (link.clone().ipv4([0, 0, 0, 0], [255, 255, 255, 255]).udp(68, 67, &[0; 300]), "bad-dhcp"),
        (v6("fd00::9", "fd00::2").ping(1, 1, b"x"), "spoofed-ip"),
        (v6("fe80::1", "ff02::1:2").udp(546, 547, &[1; 20]), "spoofed-ip"),
        // Discovery from beyond the link, by its hop limit.
        (v6("fe80::1", "ff02::2").icmp(133, 0, 0, &[]), "bad-discovery"),
        (v6("fe80::1", "fe80::2").icmp(135, 0, 0, &[0; 16]), "bad-discovery"),
    ]
}

/// Returns packets that are cut off, and packets with invalid headers.
fn unreadable(link: &Link) -> Vec<(Vec<u8>, &'static str)> {
    let v4 = || link.clone().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let mut cut = v4().udp(1, 2, &[0; 100]);
    cut.truncate(cut.len() - 1);
    let mut short_header = v4().udp(1, 2, &[0; 100]);
    let at = short_header.len() - 128;
    short_header[at] = 0x44;
    vec![
        (link.clone().payload(ethernet::IPV4, &[0x45]), "truncated"),
        (link.clone().payload(ethernet::IPV4, &[0x4f; 46]), "truncated"),
        (short_header, "malformed-ip"),
        (link.clone().payload(ethernet::IPV6, &[0x60; 46]), "truncated"),
        (cut, "truncated"),
        (v4().fragment(2, 0, true).payload(6, &[0; 16]), "tiny-fragment"),
        (v4().fragment(3, 64, false).payload(17, &[0; 64]), "fragment-orphan"),
    ]
}

/// Returns frames with IP where filters do not look for it, and frames that only claim to be IP.
fn hidden(link: &Link) -> Vec<Vec<u8>> {
    let snap = |kind| Llc {
        dsap: 0xaa,
        ssap: 0xaa,
        control: 3,
        snap: Some((0, kind)),
        payload: &[0x45; 40],
    };
    let packet = [0x45; 46];
    vec![
        link.clone().vlan(5).vlan(6).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).ping(1, 1, b"x"),
        link.clone().vlan(1).vlan(2).vlan(3).payload(ethernet::IPV6, &[0x60; 46]),
        link.clone().llc(&snap(ethernet::IPV4)),
        link.clone().llc(&snap(ethernet::IPV6)),
        link.clone().vlan(4).llc(&snap(ethernet::IPV4)),
        link.clone().llc(&Llc { dsap: 6, ssap: 6, control: 3, snap: None, payload: &packet }),
        link.clone().payload(ethernet::IPV4, &[0x60; 46]),
        link.clone().payload(ethernet::IPV6, &packet),
        link.clone().payload(ethernet::IPV4, &[]),
        (0..40).fold(link.clone(), |link, tag| link.vlan(tag)).payload(ethernet::ARP, &[0; 46]),
    ]
}

fn other(link: &Link) -> Vec<Vec<u8>> {
    vec![
        link.payload(ethernet::LLDP, &[0; 46]),
        link.payload(0x88b5, &[0x45; 46]),
        link.clone().vlan(9).payload(0x88b5, &[0x45; 1000]),
        link.llc(&Llc { dsap: 0x42, ssap: 0x42, control: 3, snap: None, payload: &[0; 40] }),
        link.arp_request([10, 0, 0, 1], [10, 0, 0, 2]),
        link.clone().vlan(1).vlan(2).payload(0x88b5, &[0; 46]),
    ]
}

#[test]
fn what_is_its_own_leaves() {
    let mut pair = Pair::new(Nic::filtered("f", mac(F), 1).ips(&["10.0.0.1", "fd00::1"]));
    for to in [mac(B), Mac::BROADCAST, mac(77)] {
        let link = build::ethernet(mac(F), to);
        for (frame, reason) in ip(&link).into_iter().chain(unreadable(&link)) {
            match reason {
                "" => pair.passes_flooded(&frame, to != mac(B)),
                reason => pair.refused(&frame, reason),
            }
        }
        for frame in hidden(&link) {
            pair.refused(&frame, "ip-hidden");
        }
    }
    for frame in other(&build::ethernet(mac(F), mac(B))) {
        pair.passes(&frame);
    }
}

#[test]
fn nothing_of_ip_arrives() {
    // Not the addresses that the frames come from: no vnic has those.
    let mut pair = Pair::new(Nic::filtered("f", mac(F), 1).ips(&["10.0.0.201", "fd00::201"]));
    for to in [mac(F), Mac::BROADCAST] {
        let link = build::ethernet(mac(B), to);
        // The first fragment of a flood may have other receivers. A unicast one had one receiver,
        // which refused it.
        let (first, rest): (Vec<_>, Vec<_>) =
            ip(&link).into_iter().partition(|(frame, _)| to != mac(F) || !is_later_fragment(frame));
        for (frame, _) in first {
            let solicits = frame.get(54) == Some(&133) && frame.get(20..22) == Some(&[58, 255]);
            pair.refused_in(
                &frame,
                if solicits { "f.drop.for-routers" } else { "f.drop.ingress-denied" },
            );
        }
        for (frame, _) in rest {
            pair.refused_in(&frame, "b.drop.fragment-orphan");
        }
        for (frame, reason) in unreadable(&link) {
            pair.refused_in(&frame, &format!("b.drop.{reason}"));
        }
        for frame in hidden(&link) {
            pair.refused_in(&frame, "b.drop.ip-hidden");
        }
        for frame in other(&link) {
            pair.passes_in(&frame);
        }
    }
}

/// Returns true for an untagged IPv4 packet that is a later fragment.
fn is_later_fragment(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0] && (frame[20] & 0x1f, frame[21]) != (0, 0)
}

/// Frames to unknown addresses are not flooded to a filtered vnic, which has one MAC address.
#[test]
fn unknown_addresses_are_none_of_its_business() {
    let host = Host::new();
    let mut filtered = host.station(&Nic::filtered("f", mac(F), 1), &usual());
    let mut open = host.station(&Nic::bypass("b", mac(B), 1), &usual());
    let mut before = host.counters();
    open.send(&numbered(mac(B), mac(77), 1, 1, 60));
    host.settle(&mut [&mut open]);
    host.moved(&mut before, &[("b.in", 1), ("b.flooded", 1), ("b.drop.no-receiver", 1)]);
    let mut third = host.station(&Nic::bypass("c", mac(3), 1), &usual());
    let frame = numbered(mac(B), mac(77), 1, 2, 60);
    open.send(&frame);
    third.expect(&frame);
    host.settle(&mut [&mut open]);
    assert_eq!(filtered.pending().len(), 0);
    host.moved(&mut before, &[("b.in", 1), ("b.flooded", 1), ("c.out", 1)]);
}

#[test]
fn it_speaks_with_its_own_address_only() {
    let mut pair = Pair::new(Nic::filtered("f", mac(F), 1).ips(&["10.0.0.1"]));
    for from in [mac(B), mac(99), Mac::BROADCAST, Mac::ZERO] {
        for link in [build::ethernet(from, mac(B)), build::ethernet(from, Mac::BROADCAST)] {
            let ip = ip(&link).into_iter().map(|(frame, _)| frame);
            for frame in other(&link).into_iter().chain(ip).chain(hidden(&link)) {
                pair.refused(&frame, "spoofed-mac");
            }
        }
    }
    for link in [build::ethernet(mac(F), mac(B)), build::ethernet(mac(F), mac(B)).vlan(3)] {
        pair.refused(&link.payload(ethernet::RARP, &[0; 46]), "rarp");
    }
    // No address was learnt.
    assert!(pair.host.learnt(1).is_empty());
}

/// ARP by the contract, 4.5 (3).
#[test]
fn arp_of_an_address_that_it_owns() {
    let nic = Nic::filtered("f", mac(F), 1).ips(&["10.0.0.1", "10.0.0.3", "fd00::1"]).anti_spoof();
    let mut pair = Pair::new(nic);
    let to = |mac_to| build::ethernet(mac(F), mac_to);
    for link in [to(Mac::BROADCAST), to(mac(B)), to(mac(B)).vlan(5)] {
        for own in [[10, 0, 0, 1], [10, 0, 0, 3]] {
            pair.passes(&link.arp_request(own, [10, 0, 0, 2]));
            pair.passes(&link.arp_request(own, own)); // an announcement (RFC 5227)
            pair.passes(&link.arp(
                arp::REPLY,
                (mac(F), own.into()),
                (mac(B), [10, 0, 0, 2].into()),
            ));
        }
        for foreign in [[10, 0, 0, 2], [0, 0, 0, 0], [253, 0, 0, 0], [10, 0, 0, 4]] {
            pair.refused(&link.arp_request(foreign, [10, 0, 0, 2]), "spoofed-arp");
            pair.refused(
                &link.arp(arp::REPLY, (mac(F), foreign.into()), (mac(B), [10, 0, 0, 2].into())),
                "spoofed-arp",
            );
        }
        pair.refused(
            &link.arp(arp::REPLY, (mac(9), [10, 0, 0, 1].into()), (mac(B), [10, 0, 0, 2].into())),
            "spoofed-arp",
        );
        // Other ARP than for IPv4 over Ethernet, or cut off.
        let whole = link.arp_request([10, 0, 0, 1], [10, 0, 0, 2]);
        let at = whole.len() - arp::LEN - (whole.len() - link.payload(0, &[]).len() - arp::LEN);
        let start = whole.windows(6).position(|bytes| bytes == [0, 1, 8, 0, 6, 4]).unwrap_or(at);
        for (byte, value) in [(1, 6), (2, 0x86), (4, 8), (5, 16)] {
            let mut changed = whole.clone();
            changed[start + byte] = value;
            pair.refused(&changed, "spoofed-arp");
        }
        let mut cut = whole.clone();
        cut.truncate(start + 27);
        pair.refused(&cut, "spoofed-arp");
    }
    // Addresses change while the guest runs.
    pair.host.update("f", &["10.0.0.4"], true).unwrap();
    pair.passes(&to(mac(B)).arp_request([10, 0, 0, 4], [10, 0, 0, 2]));
    pair.refused(&to(mac(B)).arp_request([10, 0, 0, 1], [10, 0, 0, 2]), "spoofed-arp");
    pair.host.update("f", &[], true).unwrap();
    pair.refused(&to(mac(B)).arp_request([10, 0, 0, 4], [10, 0, 0, 2]), "spoofed-arp");
    pair.host.update("f", &["fd00::4"], true).unwrap();
    pair.refused(&to(mac(B)).arp_request([10, 0, 0, 4], [10, 0, 0, 2]), "spoofed-arp");
    pair.host.update("f", &[], false).unwrap();
    pair.passes(&to(mac(B)).arp_request([10, 0, 0, 4], [10, 0, 0, 2]));
    assert_eq!(pair.host.show("f").attach_count, 1, "the guest stayed");
}

/// No other vnic can send with a filtered vnic's MAC address, and the vnic gets frames to it.
#[test]
fn its_address_is_claimed() {
    let host = Host::new();
    let mut filtered = host.station(&Nic::filtered("f", mac(F), 1), &usual());
    let mut open = host.station(&Nic::bypass("b", mac(B), 1), &usual());
    let mut third = host.station(&Nic::bypass("c", mac(3), 1), &usual());
    let mut elsewhere = host.station(&Nic::bypass("e", mac(4), 2), &usual());
    let mut before = host.counters();
    for to in [mac(3), Mac::BROADCAST, mac(77), mac(F)] {
        open.send(&numbered(mac(F), to, 1, 1, 60));
        host.settle(&mut [&mut open]);
        host.moved(&mut before, &[("b.in", 1), ("b.drop.mac-claimed", 1)]);
    }
    let frame = numbered(mac(3), mac(F), 1, 2, 60);
    third.send(&frame);
    filtered.expect(&frame);
    // In another network the address is free.
    elsewhere.send(&numbered(mac(F), mac(5), 1, 3, 60));
    host.settle(&mut [&mut elsewhere, &mut third]);
    host.moved(
        &mut before,
        &[("c.in", 1), ("f.out", 1), ("e.in", 1), ("e.flooded", 1), ("e.drop.no-receiver", 1)],
    );
    assert_eq!(host.learnt(2).len(), 1);
}

/// No other vnic can claim a vnic's IP address, in ARP or in a packet to that vnic. An address that
/// is given up is free.
#[test]
fn its_ip_address_is_claimed() {
    let host = Host::new();
    let mut filtered = host.station(&Nic::filtered("f", mac(F), 1).ips(&["10.0.0.1"]), &usual());
    let mut open = host.station(&Nic::bypass("b", mac(B), 1), &usual());
    let mut before = host.counters();
    let all = build::ethernet(mac(B), Mac::BROADCAST);
    let announcement = all.arp_request([10, 0, 0, 1], [10, 0, 0, 1]);
    let claims = [
        announcement.clone(),
        all.arp_request([0, 0, 0, 0], [10, 0, 0, 1]),
        all.clone().vlan(5).arp_request([10, 0, 0, 1], [10, 0, 0, 9]),
        build::ethernet(mac(B), mac(F)).ipv4([10, 0, 0, 1], [10, 0, 0, 1]).udp(1, 2, b"claimed"),
    ];
    for frame in &claims {
        open.send(frame);
        host.settle(&mut [&mut open, &mut filtered]);
        host.moved(&mut before, &[("b.in", 1), ("b.drop.ip-claimed", 1)]);
    }
    host.update("f", &["10.0.0.9"], false).unwrap();
    open.send(&announcement);
    filtered.expect(&announcement);
}

/// Of two vnics with one MAC address in a network, the first owns it. The other gets nothing until
/// the first is removed, although its guest is attached.
#[test]
fn one_address_two_vnics() {
    let host = Host::new();
    let mut first = host.station(&Nic::bypass("first", mac(1), 1), &usual());
    let mut other = host.station(&Nic::bypass("other", mac(2), 1), &usual());
    let mut second = host.station(&Nic::filtered("second", mac(1), 1), &usual());
    let mut stream = Stream::new(1, other.mac(), first.mac());
    assert!(stream.send(&mut other, 100));
    host.settle(&mut [&mut other, &mut first, &mut second]);
    assert_eq!(stream.take_all(&mut first), 1);
    let mut claimed = Stream::new(2, second.mac(), other.mac());
    assert!(claimed.send(&mut second, 100));
    eventually("it is dropped", || host.show("second").drops("mac-claimed") == 1);
    host.remove("first");
    let mut stream = Stream::new(3, second.mac(), other.mac());
    assert!(stream.send(&mut second, 100));
    host.settle(&mut [&mut other, &mut second]);
    assert_eq!(stream.take_all(&mut other), 1);
}

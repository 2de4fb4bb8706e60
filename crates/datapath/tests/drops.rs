//! Reports of drops are true: the vnic that is charged, the number, the packet and the time.

use std::{collections::BTreeMap, time::Duration};

use butterfly_datapath::{
    DropPlace, DropReport, DroppedPacket, Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_packet::{build, summary::Summary, tcp::ACK};
use butterfly_vhost::net::NetHeader;
use proptest::prelude::*;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);
const VNI: u32 = 42;

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

fn filtered(ip: &str) -> VnicPolicy {
    VnicPolicy { ip_anti_spoof: true, ips: vec![ip.parse().unwrap()], ..VnicPolicy::default() }
}

/// Makes a host: a may send anything, b and c are filtered, and c has no guest.
fn host() -> Host {
    let mut host = Host::new().unwrap();
    host.vnic("a", A, VNI, &bypass()).unwrap();
    host.vnic("b", B, VNI, &filtered("10.0.0.2")).unwrap();
    host.declare("c", C, VNI, &bypass()).unwrap();
    host.settle();
    host
}

/// Count, recent ones and last packet.
type Row = (u64, Option<u64>, Option<DroppedPacket>);

/// By place and reason.
fn rows(report: &DropReport) -> BTreeMap<(String, &'static str), Row> {
    let name = |place: &DropPlace| match place {
        DropPlace::Vnic { id, vni } => {
            assert_eq!(*vni, VNI);
            id.clone()
        }
        other => format!("{other:?}"),
    };
    let all = report
        .places
        .iter()
        .flat_map(|place| place.rows.iter().map(move |row| (name(&place.place), row)));
    all.map(|(place, row)| ((place, row.info.name), (row.count, row.recent, row.last.clone())))
        .collect()
}

#[track_caller]
fn assert_last(host: &Host, place: &str, reason: &'static str, age: u64, frame: &[u8]) {
    let report = host.drop_report(None).unwrap();
    let rows = rows(&report);
    let (_, _, last) = rows
        .get(&(place.to_owned(), reason))
        .unwrap_or_else(|| panic!("no {place} {reason}: {rows:?}"));
    let summary = Some(format!(
        "vni {VNI}: {}",
        Summary::new(&frame[..frame.len().min(104)], frame.len() as u32)
    ));
    assert_eq!(
        *last,
        Some(DroppedPacket { age: Duration::from_millis(age * 100), summary }),
        "{place} {reason}"
    );
}

/// Returns drops: sender, vnic that is charged, reason, frame.
fn cases() -> Vec<(&'static str, &'static str, &'static str, Vec<u8>)> {
    let ab = || build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let ba = || build::ethernet(B, A).ipv4([10, 0, 0, 2], [10, 0, 0, 1]);
    let stacked = build::ethernet(A, B).vlan(1).vlan(2);
    vec![
        ("a", "b", "ingress-denied", ab().udp(1, 2, b"hello")),
        ("a", "a", "mac-claimed", build::ethernet(B, C).payload(0x88b5, &[1; 60])),
        ("a", "a", "same-port", build::ethernet(A, A).payload(0x88b5, &[2; 60])),
        (
            "a",
            "a",
            "link-local-group",
            build::ethernet(A, Mac([1, 0x80, 0xc2, 0, 0, 0])).payload(0x88cc, &[3; 60]),
        ),
        ("a", "c", "not-attached", build::ethernet(A, C).payload(0x88b5, &[4; 1400])),
        ("a", "a", "ip-hidden", stacked.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(3, 4, b"x")),
        ("b", "b", "spoofed-mac", build::ethernet(C, A).payload(0x88b5, &[5; 60])),
        (
            "b",
            "b",
            "spoofed-ip",
            build::ethernet(B, A).ipv4([10, 0, 0, 9], [10, 0, 0, 1]).udp(5, 6, b""),
        ),
        (
            "b",
            "b",
            "spoofed-arp",
            build::ethernet(B, Mac::BROADCAST).arp_request([10, 0, 0, 9], [10, 0, 0, 1]),
        ),
        ("b", "b", "rarp", build::ethernet(B, Mac::BROADCAST).payload(0x8035, &[0; 46])),
        ("b", "b", "tcp-no-session", ba().tcp(&build::Tcp::new(7, 8, ACK), &[6; 500])),
    ]
}

#[test]
fn the_packet_that_is_told_is_the_one_that_was_dropped() {
    let mut host = host();
    // Nothing is picked up mid-stream.
    host.pass(1000);
    let start = host.drop_report(None).unwrap();
    assert!(start.places.is_empty());
    for (n, (from, place, reason, frame)) in (1..).zip(cases()) {
        host.pass_tenths(1);
        host.send(from, &frame, NetHeader::default()).unwrap();
        assert_last(&host, place, reason, 0, &frame);
        let report = host.drop_report(None).unwrap();
        assert_eq!(report.at - start.at, Duration::from_millis(n * 100));
        assert_eq!(rows(&report).values().map(|(count, ..)| count).sum::<u64>(), n, "{reason}");
    }
    // Of a vnic alone, the same.
    let (all, of_b) = (host.drop_report(None).unwrap(), host.drop_report(Some("b")).unwrap());
    assert_eq!(rows(&of_b).len(), 6);
    assert!(rows(&of_b).into_iter().all(|(key, row)| rows(&all).get(&key) == Some(&row)));
    assert!(host.drop_report(Some("nobody")).is_err());
}

#[test]
fn a_full_ring_tells_what_did_not_fit() {
    let mut host = Host::new().unwrap();
    host.vnic("a", A, VNI, &bypass()).unwrap();
    host.declare("b", B, VNI, &bypass()).unwrap();
    let config = GuestConfig::default().rings(4);
    host.attach("b", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
    let frame = |n: u8| build::ethernet(A, B).payload(0x88b5, &[n; 60]);
    let mut first = None;
    for n in 0..20 {
        let guest = host.guest("a").unwrap();
        guest.send(&frame(n), NetHeader::default()).unwrap();
        host.settle();
        let dropped = host.moved().get("b.drop.ring-full").copied().unwrap_or(0);
        if dropped > 0 && first.is_none() {
            first = Some(n);
        }
    }
    let first = first.expect("it was never full");
    // The first of that tenth of a second.
    assert_last(&host, "b", "ring-full", 0, &frame(first));
    host.pass_tenths(3);
    assert_last(&host, "b", "ring-full", 3, &frame(first));
    host.send("a", &frame(99), NetHeader::default()).unwrap();
    assert_last(&host, "b", "ring-full", 0, &frame(99));
}

/// A slot still holds earlier bytes: they may not be reported as another packet's.
#[test]
fn what_could_not_be_read_is_not_told() {
    let mut host = host();
    host.send(
        "a",
        &build::ethernet(A, C).payload(0x88b5, b"somebody's secret"),
        NetHeader::default(),
    )
    .unwrap();
    let guest = host.guest("b").unwrap();
    let outside = butterfly_guest_driver::Buffer { addr: 0x10, len: 100, writable: false };
    guest.tx_mut().add(&[outside], butterfly_guest_driver::Placement::Direct, u64::MAX).unwrap();
    guest.flush();
    host.settle();
    let report = host.drop_report(Some("b")).unwrap();
    let (count, _, last) = rows(&report).remove(&("b".to_owned(), "bad-chain")).unwrap();
    assert_eq!((count, last), (1, Some(DroppedPacket { age: Duration::ZERO, summary: None })));
}

#[test]
fn what_is_gone_is_told_as_such_and_rates_are_of_the_last_seconds() {
    let mut host = host();
    let frame = build::ethernet(A, C).payload(0x88b5, &[1; 60]);
    let send = |host: &mut Host, n: usize| {
        (0..n).for_each(|_| host.send("a", &frame, NetHeader::default()).unwrap())
    };
    send(&mut host, 3);
    let of_c = ("c".to_owned(), "not-attached");
    let recent = |host: &Host| {
        let report = host.drop_report(None).unwrap();
        (report.window.as_millis(), rows(&report).get(&of_c).map(|row| (row.0, row.1)))
    };
    assert_eq!(recent(&host), (0, Some((3, Some(3)))));
    host.pass_tenths(50);
    assert_eq!(recent(&host), (5000, Some((3, Some(3)))));
    send(&mut host, 2);
    host.pass_tenths(50);
    assert_eq!(recent(&host), (5000, Some((5, Some(2)))));
    host.pass_tenths(7);
    send(&mut host, 1);
    assert_eq!(recent(&host), (5700, Some((6, Some(3)))));
    host.remove("c");
    let report = host.drop_report(None).unwrap();
    let gone = ("Gone".to_owned(), "not-attached");
    assert_eq!(rows(&report), BTreeMap::from([(gone.clone(), (6, None, None))]));
    // Its successor starts at zero.
    host.declare("c", C, VNI, &bypass()).unwrap();
    host.settle();
    send(&mut host, 1);
    let report = host.drop_report(None).unwrap();
    let now: Vec<_> =
        rows(&report).into_iter().map(|(key, (count, recent, _))| (key, count, recent)).collect();
    assert_eq!(now, [(gone, 6, None), (of_c, 1, Some(1))]);
}

/// Drops towards other hosts that are no vnic's fault count at the network, or at the uplink.
#[test]
fn networks_and_the_uplink_tell_their_packets() {
    let mut config = TunnelConfig::new([192, 0, 2, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
    config.mtu = 1500;
    let mut host = Host::with_tunnel(
        SessionConfig { capacity: 1024, ..SessionConfig::default() },
        Some(&config),
    )
    .unwrap();
    host.vnic("a", A, VNI, &bypass()).unwrap();
    host.settle();
    // From another host: for a network that is not here, for no vnic here, no VXLAN at all.
    let inner = build::ethernet(C, B).ipv4([10, 0, 0, 3], [10, 0, 0, 2]).udp(1, 2, b"x");
    let outer = build::ethernet(Mac([2, 0xbf, 0, 0, 0, 2]), Mac([2, 0xbf, 0, 0, 0, 1]))
        .ipv4([192, 0, 2, 2], [192, 0, 2, 1]);
    let (unknown, looped) = (
        outer.vxlan(50_000, 7, &inner),
        outer.vxlan(50_000, VNI, &build::ethernet(C, C).payload(0x88b5, b"")),
    );
    let foreign = outer.udp(1, 53, b"a question");
    let large = build::ethernet(A, C).ipv4([10, 0, 0, 1], [10, 0, 0, 3]).udp(1, 2, &[0; 1460]);
    host.arrive(&[unknown.clone(), looped, foreign.clone()]).unwrap();
    host.send("a", &large, NetHeader::default()).unwrap();
    let report = host.drop_report(None).unwrap();
    let rows = rows(&report);
    let told = |place: &str, reason| {
        let row = rows
            .get(&(place.to_owned(), reason))
            .unwrap_or_else(|| panic!("no {place} {reason}: {rows:#?}"));
        row.2.as_ref().and_then(|last| last.summary.clone()).unwrap_or_default()
    };
    let network = format!("Network({VNI})");
    let summary =
        |frame: &[u8]| Summary::new(&frame[..frame.len().min(104)], frame.len() as u32).to_string();
    assert_eq!(told("Uplink", "unknown-vni"), summary(&unknown));
    let words = "udp 192.0.2.2:50000 > 192.0.2.1:4789, vxlan vni 7: 02:00:00:00:00:0c > 02:00:00:00:00:0b, udp 10.0.0.3:1 > 10.0.0.2:2";
    assert!(told("Uplink", "unknown-vni").contains(words), "{}", told("Uplink", "unknown-vni"));
    assert_eq!(told("Uplink", "not-ours"), summary(&foreign));
    assert_eq!(
        told(&network, "same-port"),
        "vni 42: 02:00:00:00:00:0c > 02:00:00:00:00:0c, type 0x88b5, 14 bytes"
    );
    assert_eq!(told("a", "too-big"), format!("vni {VNI}: {}", summary(&large)));
    // The network goes with its last vnic, and what it counted does not.
    host.remove("a");
    let report = host.drop_report(None).unwrap();
    let places: Vec<_> = report.places.iter().map(|place| place.place.clone()).collect();
    assert_eq!(places, [DropPlace::Uplink, DropPlace::Gone]);
    let gone: Vec<_> = report.places[1].rows.iter().map(|row| (row.info.name, row.count)).collect();
    assert_eq!(gone, [("same-port", 1), ("too-big", 1)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames in any order: reports agree with the counters, and each reason shows the first of its
    /// packets in the last tenth of a second in which it had one.
    #[test]
    fn every_reason_tells_its_last_packet(steps in proptest::collection::vec((0usize..11, 0u32..3, 0usize..4), 1..60)) {
        let mut host = host();
        host.pass(1000);
        let cases = cases();
        let mut counts: BTreeMap<(String, &str), u64> = BTreeMap::new();
        let mut last: BTreeMap<(String, &str), (u32, Vec<u8>)> = BTreeMap::new();
        let mut now = 0;
        for (case, pause, more) in steps {
            host.pass_tenths(pause);
            now += pause;
            let (from, place, reason, frame) = &cases[case];
            // Unlike ones: what is behind Ethernet and IP is no matter for these drops.
            let mut frame = frame.clone();
            frame.extend(std::iter::repeat_n(7, more));
            host.send(from, &frame, NetHeader::default()).unwrap();
            let key = ((*place).to_owned(), *reason);
            *counts.entry(key.clone()).or_default() += 1;
            match last.get(&key) {
                Some((when, _)) if *when == now => {}
                _ => drop(last.insert(key, (now, frame))),
            }
        }
        let report = host.drop_report(None).unwrap();
        let rows = rows(&report);
        prop_assert_eq!(rows.iter().map(|(key, row)| (key.clone(), row.0)).collect::<BTreeMap<_, _>>(), counts);
        for (key, (when, frame)) in last {
            let summary = Summary::new(&frame[..frame.len().min(104)], frame.len() as u32);
            let packet = DroppedPacket {
                age: Duration::from_millis(u64::from(now - when) * 100),
                summary: Some(format!("vni {VNI}: {summary}")),
            };
            prop_assert_eq!(rows[&key].2.as_ref(), Some(&packet), "{:?}", key);
        }
    }
}

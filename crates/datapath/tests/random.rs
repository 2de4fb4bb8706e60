//! Random traffic over random rings: properties that hold for all behaviour of guests.

use std::collections::BTreeMap;

use butterfly_datapath::{
    Mac, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{
    DirtyLog,
    guest::{GuestConfig, Shape},
    memory::MemoryConfig,
    queue::Placement,
};
use butterfly_vhost::net::{Features, NetHeader};
use proptest::prelude::*;

const MACS: [Mac; 4] = [
    Mac([2, 0, 0, 0, 0, 0xa]),
    Mac([2, 0, 0, 0, 0, 0xb]),
    Mac([2, 0, 0, 0, 0, 0xc]),
    Mac([2, 0, 0, 0, 0, 0xd]),
];
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const LARGEST: usize = 3000;

/// Reasons for not getting a frame into the ring of a guest that is sent more than it takes.
const LOSSES: [&str; 3] = ["ring-full", "rx-too-large", "rx-slow"];

#[derive(Clone, Debug)]
struct Layout {
    features: Features,
    config: GuestConfig,
    split: bool,
}

impl Layout {
    fn memory(&self) -> MemoryConfig {
        let need = self.config.memory_needed();
        if self.split {
            MemoryConfig::split(6, (need / 3).next_multiple_of(4096))
        } else {
            MemoryConfig::new(need)
        }
    }

    /// Returns whether a frame may take more descriptors of this receiver than are normal: 20, and
    /// one for every 128 bytes.
    fn may_cost_much(&self) -> bool {
        let GuestConfig { rx_shape, rx_buffer, .. } = self.config;
        // The table of an indirect buffer is one more.
        let each = rx_shape.pieces + usize::from(rx_shape.header_apart) + 1;
        (18..=LARGEST).any(|len| (len + 12).div_ceil(rx_buffer) * each > 20 + len / 128)
    }
}

fn shape(indirect: bool) -> impl Strategy<Value = Shape> {
    let placement = prop_oneof![
        Just(Placement::Direct),
        Just(Placement::Indirect),
        (1u16..3).prop_map(Placement::IndirectAfter)
    ];
    (any::<bool>(), 1usize..6, placement).prop_map(move |(header_apart, pieces, placement)| Shape {
        header_apart,
        pieces,
        placement: if indirect { placement } else { Placement::Direct },
    })
}

/// A guest that can receive frames of [`LARGEST`] bytes, of any kind.
fn layout() -> impl Strategy<Value = Layout> {
    const OPTIONAL: [Features; 5] = [
        Features::VERSION_1,
        Features::MRG_RXBUF,
        Features::EVENT_IDX,
        Features::IN_ORDER,
        Features::ANY_LAYOUT,
    ];
    let features = (any::<[bool; 5]>(), any::<bool>()).prop_map(|(chosen, indirect)| {
        let all = OPTIONAL
            .iter()
            .zip(chosen)
            .filter(|(_, on)| *on)
            .fold(Features::NONE, |all, (one, _)| all.with(*one));
        if indirect { all.with(Features::INDIRECT_DESC) } else { all }
    });
    features.prop_flat_map(|features| {
        let indirect = features.has(Features::INDIRECT_DESC);
        let buffer = if features.has(Features::MRG_RXBUF) {
            24usize..2500
        } else {
            LARGEST + 12..LARGEST + 500
        };
        (shape(indirect), shape(indirect), buffer, 4u32..9, any::<bool>()).prop_map(
            move |(rx_shape, tx_shape, rx_buffer, log, split)| {
                let config = GuestConfig {
                    rx_buffer,
                    rx_shape,
                    tx_shape,
                    max_frame: LARGEST,
                    cross_regions: split,
                    ..GuestConfig::default()
                };
                Layout { features, config: config.rings(1 << log), split }
            },
        )
    })
}

/// Destination of a frame.
#[derive(Clone, Copy, Debug)]
enum To {
    One(usize),
    All,
}

fn frames() -> impl Strategy<Value = Vec<(usize, To, usize)>> {
    let to = prop_oneof![4 => (0usize..3).prop_map(To::One), 1 => Just(To::All)];
    let len = prop_oneof![18usize..200, 18usize..=LARGEST];
    proptest::collection::vec((0usize..3, to, len), 1..60)
}

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

/// Returns a frame whose contents follow from its number.
fn numbered(from: usize, to: To, len: usize, number: u32) -> Vec<u8> {
    let destination = match to {
        To::One(to) => MACS[to],
        To::All => Mac::BROADCAST,
    };
    let mut frame =
        [&destination.0[..], &MACS[from].0, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.extend((18..len).map(|i| (i as u32 * 31 + number * 17) as u8));
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Frames arrive unchanged and in order; those that do not are counted where they were lost.
    #[test]
    fn frames_arrive_as_they_were_sent(
        layouts in proptest::collection::vec(layout(), 3),
        frames in frames(),
        burst in 1usize..20,
    ) {
        let mut host = Host::new().unwrap();
        for (i, layout) in layouts.iter().enumerate() {
            host.declare(NAMES[i], MACS[i], 1, &bypass()).unwrap();
            host.attach(NAMES[i], layout.features, &layout.config, &layout.memory()).unwrap();
        }
        host.settle();
        host.moved();
        let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
        let mut sent: Vec<(usize, To, Vec<u8>)> = Vec::new();
        let mut got: BTreeMap<String, u64> = BTreeMap::new();
        // Order is kept between each pair of addresses.
        let mut last: BTreeMap<(String, bool, u8), u32> = BTreeMap::new();
        for (i, (from, to, len)) in frames.iter().copied().enumerate() {
            let frame = numbered(from, to, len, sent.len() as u32);
            // No room in the sender's own ring: a smaller burst.
            if host.guest(NAMES[from]).unwrap().send(&frame, NetHeader::default()).is_ok() {
                *expected.entry("in").or_default() += 1;
                match to {
                    To::One(to) if to == from => *expected.entry("same").or_default() += 1,
                    To::One(to) => *expected.entry(NAMES[to]).or_default() += 1,
                    To::All => (0..3).filter(|to| *to != from).for_each(|to| *expected.entry(NAMES[to]).or_default() += 1),
                }
                sent.push((from, to, frame));
            }
            if i % burst == 0 || i + 1 == frames.len() {
                host.settle();
                for (name, frames) in host.received().unwrap() {
                    for (header, bytes) in frames {
                        prop_assert!(bytes.len() >= 18);
                        let number = number(&bytes);
                        let (from, to, frame) = &sent[number as usize];
                        prop_assert!(bytes == *frame, "frame {number} arrived changed at {name}");
                        prop_assert_eq!((header.flags, header.gso_type, header.csum_start), (0, 0, 0));
                        let before = last.insert((name.clone(), matches!(to, To::All), *from as u8), number);
                        prop_assert!(before < Some(number), "{name}: {number} after {before:?}");
                        *got.entry(name.clone()).or_default() += 1;
                    }
                }
            }
        }
        let moved = host.moved();
        let count = |name: String| moved.get(&name).copied().unwrap_or(0);
        prop_assert_eq!(NAMES[..3].iter().map(|n| count(format!("{n}.in.packets"))).sum::<u64>(), *expected.get("in").unwrap_or(&0));
        prop_assert_eq!(NAMES[..3].iter().map(|n| count(format!("{n}.drop.same-port"))).sum::<u64>(), *expected.get("same").unwrap_or(&0));
        for name in &NAMES[..3] {
            let out = count(format!("{name}.out.packets"));
            prop_assert_eq!(out, got.get(*name).copied().unwrap_or(0));
            let lost = LOSSES.iter().map(|reason| count(format!("{name}.drop.{reason}"))).sum::<u64>();
            prop_assert_eq!(out + lost, *expected.get(name).unwrap_or(&0), "{}: {:?}", name, moved);
        }
        // Nothing else was dropped.
        let known = |reason: &str| reason == "same-port" || LOSSES.contains(&reason);
        prop_assert!(moved.keys().filter_map(|n| n.split(".drop.").nth(1)).all(known), "{moved:?}");
        // Only buffers of many small pieces cost more than their receiver is given.
        for (name, layout) in NAMES.iter().zip(&layouts) {
            let slow = count(format!("{name}.drop.rx-slow"));
            prop_assert!(slow == 0 || layout.may_cost_much(), "{name}: {slow} of {layout:?}");
        }
    }
}

/// All memory of a guest, by region.
fn memory_of(host: &mut Host, name: &str) -> Vec<(u64, Vec<u8>)> {
    let memory = host.guest(name).unwrap().memory().clone();
    memory
        .regions()
        .iter()
        .map(|region| {
            (region.guest_addr, memory.read_vec(region.guest_addr, region.size as usize).unwrap())
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Live migration copies what was marked: whatever the switch stores, in rings or buffers, its
    /// page is.
    #[test]
    fn every_store_is_logged(
        layouts in proptest::collection::vec(layout(), 2),
        frames in proptest::collection::vec((0usize..2, 18usize..=LARGEST, any::<bool>()), 1..40),
        burst in 4usize..30,
    ) {
        let mut host = Host::new().unwrap();
        let mut logs = Vec::new();
        for (i, layout) in layouts.iter().enumerate() {
            host.declare(NAMES[i], MACS[i], 1, &bypass()).unwrap();
            host.attach(NAMES[i], layout.features, &layout.config, &layout.memory()).unwrap();
            let log = DirtyLog::new(host.guest(NAMES[i]).unwrap().memory()).unwrap();
            host.log(NAMES[i], &log).unwrap();
            logs.push(log);
        }
        for some in frames.chunks(burst) {
            for (number, (from, len, flood)) in some.iter().copied().enumerate() {
                let to = if flood { To::All } else { To::One(1 - from) };
                let frame = numbered(from, to, len, number as u32);
                // Its own ring may be full, and that is fine.
                let _ = host.guest(NAMES[from]).unwrap().send(&frame, NetHeader::default());
            }
            // Only the switch writes in each step: first it moves frames, then its rings leave the
            // poll set, which takes stores, too.
            for leave in [false, true] {
                let before: Vec<_> = NAMES[..2].iter().map(|name| memory_of(&mut host, name)).collect();
                logs.iter().for_each(DirtyLog::clear);
                let start = std::time::Instant::now();
                let mut turns = 0;
                while host.turn() || leave && (turns < 80 || start.elapsed().as_micros() < 200) {
                    turns += 1;
                }
                for (i, before) in before.iter().enumerate() {
                    let after = memory_of(&mut host, NAMES[i]);
                    for ((at, old), (_, new)) in before.iter().zip(&after) {
                        for (page, (old, new)) in old.chunks(4096).zip(new.chunks(4096)).enumerate() {
                            let addr = at + 4096 * page as u64;
                            prop_assert!(old == new || logs[i].is_dirty(addr), "page {addr:#x} of {} changed unmarked", NAMES[i]);
                        }
                    }
                }
            }
            host.received().unwrap();
        }
        prop_assert!(host.moved().values().any(|n| *n > 0));
    }
}

/// Returns whether a frame carries IP, by looking at all of it. Written separately from the switch,
/// and simpler.
fn carries_ip(frame: &[u8]) -> bool {
    let mut at = 12;
    loop {
        let Some(&[a, b]) = frame.get(at..at + 2) else { return false };
        match u16::from_be_bytes([a, b]) {
            0x8100 | 0x88a8 | 0x9100 | 0x9200 | 0x9300 => at += 4,
            0x0800 | 0x86dd => return frame.len() > at + 2,
            0..0x600 => {
                return match frame.get(at + 2..).unwrap_or_default() {
                    [0xaa | 0xab, 0xaa | 0xab, _, _, _, _, hi, lo, _, ..] => {
                        matches!([*hi, *lo], [0x08, 0x00] | [0x86, 0xdd])
                    }
                    [6 | 7, _, _, _, ..] | [_, 6 | 7, _, _, ..] => true,
                    _ => false,
                };
            }
            _ => return false,
        }
    }
}

#[derive(Clone, Debug)]
struct Garbage {
    from: usize,
    bytes: Vec<u8>,
    header: NetHeader,
}

fn garbage() -> impl Strategy<Value = Garbage> {
    let mac = || prop_oneof![8 => (0usize..4).prop_map(|i| MACS[i].0), 1 => Just([0xff; 6]), 1 => any::<[u8; 6]>()];
    let ethertype = prop_oneof![
        Just(vec![0x08, 0x00]),
        Just(vec![0x86, 0xdd]),
        Just(vec![0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]),
        Just(vec![0x80, 0x35]),
        Just(vec![0x88, 0xcc]),
        Just(vec![0, 80, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0]),
        Just(vec![0, 80, 0xab, 0xaa, 0x13, 0, 0, 0, 0x86, 0xdd]),
        Just(vec![5, 0xff, 6, 6, 3]),
        proptest::collection::vec(any::<u8>(), 0..10),
    ];
    let tpid = prop_oneof![Just([0x81, 0]), Just([0x88, 0xa8]), Just([0x91, 0])];
    let tags = prop_oneof![
        4 => proptest::collection::vec(tpid.clone(), 0..3),
        1 => proptest::collection::vec(tpid, 20..70),
    ];
    let ip = prop_oneof![
        Just(vec![0x45, 0, 0, 100, 0, 0, 0, 0, 64, 6, 0, 0]),
        Just(vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17]),
        Just(vec![0x60, 0, 0, 0, 0, 60, 6, 64]),
        Just(vec![0x60, 0, 0, 0, 0, 60, 0, 64]),
        proptest::collection::vec(any::<u8>(), 0..12),
    ];
    let rest = prop_oneof![4 => proptest::collection::vec(any::<u8>(), 0..400), 1 => proptest::collection::vec(any::<u8>(), 400..LARGEST - 400)];
    let start = prop_oneof![Just(34u16), Just(38), Just(54), any::<u16>()];
    let offset = prop_oneof![Just(16u16), Just(6), any::<u16>()];
    let kind = prop_oneof![Just(0u8), Just(1), Just(4), Just(0x81), any::<u8>()];
    let size = prop_oneof![Just(48u16), Just(100), any::<u16>()];
    let header = (prop_oneof![Just(0u8), Just(1), any::<u8>()], kind, size, start, offset)
        .prop_map(|(flags, gso_type, gso_size, csum_start, csum_offset)| NetHeader {
            flags,
            gso_type,
            gso_size,
            csum_start,
            csum_offset,
            ..NetHeader::default()
        });
    // A source that is the sender's own is what gets furthest.
    (
        0usize..4,
        mac(),
        prop_oneof![4 => Just(None), 1 => mac().prop_map(Some)],
        (tags, ethertype, ip, rest),
        header,
    )
        .prop_map(|(from, destination, source, (tags, ethertype, ip, rest), header)| {
            let source = source.unwrap_or(MACS[from].0);
            let mut bytes = [&destination[..], &source].concat();
            tags.iter().for_each(|tpid| bytes.extend([tpid[0], tpid[1], 0, 5]));
            bytes.extend(ethertype);
            bytes.extend(ip);
            bytes.extend(rest);
            Garbage { from, bytes, header }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Two vnics that bypass filters and two that do not: no IP gets to or from the latter, and
    /// none speaks with another's address.
    #[test]
    fn garbage_is_survived_and_ip_is_filtered(batch in proptest::collection::vec(garbage(), 1..80), burst in 1usize..20) {
        let mut host = Host::new().unwrap();
        for (i, name) in NAMES.iter().enumerate() {
            let ips = vec!["10.0.0.1".parse().unwrap()];
            let policy = if i < 2 { bypass() } else { VnicPolicy { ip_anti_spoof: i == 2, ips, ..VnicPolicy::default() } };
            host.declare(name, MACS[i], 1, &policy).unwrap();
            let config = GuestConfig { rx_buffer: 1024, ..GuestConfig::default() };
            // One of each kind takes no offloads: everything is computed for it.
            let features = if i % 2 == 0 { LINUX } else { Features::VERSION_1.with(Features::MRG_RXBUF) };
            host.attach(name, features, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        }
        host.settle();
        host.moved();
        let mut to_filtered = Vec::new();
        for (i, Garbage { from, bytes, header }) in batch.iter().enumerate() {
            host.guest(NAMES[*from]).unwrap().send(bytes, *header).unwrap();
            if (i + 1) % burst == 0 || i + 1 == batch.len() {
                host.settle();
                for (name, frames) in host.received().unwrap() {
                    for (header, bytes) in frames {
                        let source = &bytes[6..12];
                        let filtered = |i: usize| source == MACS[i].0;
                        if name == "c" || name == "d" {
                            prop_assert!(!carries_ip(&bytes), "{name} got IP: {bytes:02x?}");
                            to_filtered.push(bytes.clone());
                        }
                        if filtered(2) || filtered(3) {
                            prop_assert!(!carries_ip(&bytes), "{name} got IP of a filtered vnic: {bytes:02x?}");
                        }
                        prop_assert!(header.flags & !NetHeader::FLAG_NEEDS_CSUM == 0);
                        if name == "b" || name == "d" {
                            prop_assert_eq!((header.flags, header.gso_type), (0, 0));
                        }
                    }
                }
            }
        }
        // Only the owner of a filtered address sends from it.
        for bytes in to_filtered {
            let sender = batch.iter().find(|garbage| garbage.bytes == bytes);
            if let (Some(sender), Some(owner)) = (sender, (2..4).find(|i| bytes[6..12] == MACS[*i].0)) {
                prop_assert_eq!(sender.from, owner);
            }
        }
        let moved = host.moved();
        let taken: u64 = NAMES.iter().map(|name| moved.get(&format!("{name}.in.packets")).copied().unwrap_or(0)).sum();
        prop_assert_eq!(taken, batch.len() as u64);
        let ended: u64 = moved.iter().filter(|(name, _)| name.ends_with("out.packets") || name.contains(".drop.")).map(|(_, n)| n).sum();
        prop_assert!(ended >= taken, "{} frames taken, {} delivered or dropped: {:?}", taken, ended, moved);
    }
}

//! Turns: one guest's rings cost others no more than a bounded part of the worker's time.

use std::time::{Duration, Instant};

use butterfly_datapath::{
    Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{
    guest::{GuestConfig, Shape},
    memory::MemoryConfig,
    queue::{Buffer, Placement},
};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const C: Mac = Mac([2, 0, 0, 0, 0, 0xc]);

fn bypass() -> VnicPolicy {
    VnicPolicy { bypass: true, ..VnicPolicy::default() }
}

/// A host with a sound sender `a` and a sound receiver `c`, and `b`, which has receive buffers of
/// this shape.
fn host(evil: &GuestConfig) -> Host {
    let mut host = Host::new().unwrap();
    host.vnic("a", A, 1, &bypass()).unwrap();
    host.vnic("c", C, 1, &bypass()).unwrap();
    host.declare("b", B, 1, &bypass()).unwrap();
    host.attach("b", LINUX, evil, &MemoryConfig::new(evil.memory_needed() + (4 << 20))).unwrap();
    host.settle();
    host.moved();
    host
}

/// Has `a` send as one batch.
fn send(host: &mut Host, frames: &[Vec<u8>]) {
    let guest = host.guest("a").unwrap();
    guest.reclaim().unwrap();
    for frame in frames {
        guest.enqueue(frame, NetHeader::default()).unwrap();
    }
    guest.flush();
    host.turn();
}

fn to(mac: Mac) -> Vec<u8> {
    build::ethernet(A, mac).payload(0x88b5, &[0x5a; 46])
}

#[test]
fn a_chain_ends_after_a_few_empty_descriptors() {
    for (empty, fits) in [(4, true), (5, false), (1000, false)] {
        let config = GuestConfig { rx_fill: Some(0), ..GuestConfig::default() };
        let mut host = host(&config);
        let guest = host.guest("b").unwrap();
        let addr = guest.memory().alloc(2048, 64).unwrap();
        let mut chain = vec![Buffer { addr, len: 0, writable: true }; empty];
        chain.push(Buffer { addr, len: 2048, writable: true });
        for token in 0..64 {
            guest.rx_mut().add(&chain, Placement::Indirect, token).unwrap();
        }
        guest.rx_mut().publish();
        send(&mut host, &vec![to(B); 64]);
        let moved = host.moved();
        let counted = if fits { "b.out.packets" } else { "b.drop.rx-bad-chain" };
        assert_eq!(moved.get(counted), Some(&64), "{empty} empty descriptors: {moved:?}");
    }
}

/// Each chain has 500 descriptors: two walks are the ring's debt, all others of a batch are not
/// made.
#[test]
fn buffers_in_tiny_pieces_are_their_own_guests_debt() {
    let shape = Shape { pieces: 500, ..Shape::HEADER_APART }.indirect();
    let mut host = host(&GuestConfig { rx_shape: shape, ..GuestConfig::default() });
    let batch: Vec<Vec<u8>> = [to(B), to(C)].into_iter().cycle().take(64).collect();
    let begun = Instant::now();
    send(&mut host, &batch);
    let paid = begun.elapsed().as_millis() as u64 * 200 / 480;
    let moved = host.moved();
    let (got, slow) = (moved["b.out.packets"], moved["b.drop.rx-slow"]);
    assert!(got >= 1 && got + slow == 32 && got <= 3 + paid, "{moved:?}");
    assert_eq!(moved["c.out.packets"], 32, "the sound receiver of the same batch loses nothing");
    // Debt is paid with time.
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        send(&mut host, &[to(B)]);
        if host.moved().contains_key("b.out.packets") {
            return;
        }
    }
    panic!("the ring stays slow for ever");
}

/// Without mergeable buffers Linux makes chains of 19 descriptors for every frame; none of them is
/// too many.
#[test]
fn the_longest_chains_of_real_drivers_are_free() {
    let shape = Shape { pieces: 18, ..Shape::HEADER_APART };
    let config = GuestConfig { rx_shape: shape, ..GuestConfig::default() }.rings(1024);
    let mut host = host(&GuestConfig { rx_shape: shape.indirect(), ..config });
    for _ in 0..20 {
        send(&mut host, &vec![to(B); 64]);
        host.received().unwrap();
    }
    let moved = host.moved();
    assert_eq!(moved.get("b.out.packets"), Some(&(20 * 64)), "{moved:?}");
}

/// `a`, and `n` sound receivers with small rings.
fn crowd(n: usize, size: u16) -> Host {
    let mut host = Host::new().unwrap();
    host.vnic("a", A, 1, &bypass()).unwrap();
    let config = GuestConfig { max_frame: 1514, ..GuestConfig::default() }.rings(size);
    for i in 0..n {
        let id = format!("r{i:04}");
        host.declare(&id, Mac([2, 0, 0, 1, (i >> 8) as u8, i as u8]), 1, &bypass()).unwrap();
        host.attach(&id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    host.settle();
    host.moved();
    host
}

/// Returns the work of a turn: copies, and rings that were visited.
fn done(host: &mut Host, per_receiver: &mut std::collections::BTreeMap<String, u64>) -> (u64, u64) {
    let moved = host.moved();
    let copies =
        moved.iter().filter(|(name, _)| name.starts_with('r') && name.ends_with(".out.packets"));
    let mut sum = (0, 0);
    for (name, n) in copies {
        sum = (sum.0 + n, sum.1 + 1);
        *per_receiver.entry(name.clone()).or_default() += n;
    }
    for name in ["a.in.packets", "a.flooded", "a.drop.flood-limit"] {
        *per_receiver.entry(name.to_owned()).or_default() += moved.get(name).copied().unwrap_or(0);
    }
    sum
}

/// 64 interrupts and 1,024 copies are a turn; what is left goes on in the next one, and nothing
/// arrives twice.
#[test]
fn floods_take_as_many_turns_as_they_need() {
    for (vnics, floods) in [(300, 1), (300, 3), (40, 64), (10, 64), (63, 64)] {
        let mut host = crowd(vnics, 128);
        let guest = host.guest("a").unwrap();
        for n in 0..floods {
            guest
                .enqueue(
                    &build::ethernet(A, Mac::BROADCAST).payload(0x88b5, &[n as u8; 46]),
                    NetHeader::default(),
                )
                .unwrap();
        }
        guest.flush();
        let mut all = std::collections::BTreeMap::new();
        let mut turns = 0;
        while host.turn() {
            let (copies, rings) = done(&mut host, &mut all);
            assert!(
                copies <= 1024 && rings <= 64,
                "{copies} copies into {rings} rings in one turn"
            );
            turns += 1;
            assert!(turns < 400, "it ends");
        }
        let most = (vnics * floods).div_ceil(64 * if vnics > 63 { 1 } else { 4 }) + floods;
        assert!(turns <= most, "{turns} turns for {floods} floods to {vnics}");
        assert_eq!(all.remove("a.in.packets"), Some(floods as u64));
        assert_eq!(all.remove("a.flooded"), Some(floods as u64));
        assert_eq!(all.remove("a.drop.flood-limit"), Some(0));
        assert_eq!(all.len(), vnics);
        assert!(all.values().all(|n| *n == floods as u64), "{all:?}");
        for (id, frames) in host.received().unwrap() {
            let order: Vec<u8> = frames.iter().map(|(_, frame)| frame[20]).collect();
            assert_eq!(order, (0..floods as u8).collect::<Vec<_>>(), "{id}");
        }
    }
}

/// Frames behind a flood that is under way wait for it, and are judged once.
#[test]
fn frames_behind_a_flood_keep_their_order_and_are_counted_once() {
    let mut host = crowd(200, 128);
    let first = Mac([2, 0, 0, 1, 0, 0]);
    let frame = |to, n| build::ethernet(A, to).payload(0x88b5, &[n; 46]);
    send(
        &mut host,
        &[
            frame(first, 1),
            frame(Mac::BROADCAST, 2),
            frame(first, 3),
            frame(Mac([2, 0, 9, 9, 9, 9]), 4),
        ],
    );
    host.settle();
    let moved = host.moved();
    assert_eq!(
        (moved["a.in.packets"], moved["a.flooded"], moved["r0000.out.packets"]),
        (4, 2, 4),
        "{moved:?}"
    );
    let received = host.received().unwrap();
    let order: Vec<u8> = received["r0000"].iter().map(|(_, frame)| frame[20]).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    assert!((1..200).all(|n| received[&format!("r{n:04}")].len() == 2));
}

/// Large frames that are cut for their receiver: 256 segments a turn.
#[test]
fn segments_count() {
    let mut host = Host::new().unwrap();
    let large = GuestConfig { max_frame: 65_000, ..GuestConfig::default() };
    host.declare("a", A, 1, &bypass()).unwrap();
    host.attach("a", LINUX, &large, &MemoryConfig::new(large.memory_needed())).unwrap();
    let plain = butterfly_vhost::net::Features(
        butterfly_vhost::net::Features::VERSION_1.0 | butterfly_vhost::net::Features::MRG_RXBUF.0,
    );
    let config = GuestConfig::default().rings(1024);
    host.declare("r", B, 1, &bypass()).unwrap();
    host.attach("r", plain, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
    host.moved();
    let ip =
        build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).checksum(build::Checksum::Partial);
    let frame = ip.tcp(&build::Tcp::new(1, 2, 0), &vec![7; 64_800]);
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        gso_size: 432,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::default()
    };
    for _ in 0..5 {
        host.guest("a").unwrap().enqueue(&frame, header).unwrap();
    }
    host.guest("a").unwrap().flush();
    let mut all = 0;
    while host.turn() {
        let segments = host.moved().get("r.out.packets").copied().unwrap_or(0);
        assert!(segments <= 256, "{segments} in one turn");
        all += segments;
        host.received().unwrap();
    }
    assert_eq!(all, 5 * 150);
}

/// A host with `n` receivers in network 1 and one in network 2, and what other hosts send to its
/// endpoint.
fn crowd_of_a_tunnel(n: usize) -> Host {
    let config = TunnelConfig::new([192, 168, 0, 2].into(), Mac([2, 0xbf, 0, 0, 0, 2]));
    let mut host = Host::with_tunnel(
        SessionConfig { capacity: 4096, ..SessionConfig::default() },
        Some(&config),
    )
    .unwrap();
    let config = GuestConfig { max_frame: 1514, ..GuestConfig::default() }.rings(128);
    for i in 0..n {
        let id = format!("r{i:04}");
        host.declare(&id, Mac([2, 0, 0, 1, (i >> 8) as u8, i as u8]), 1, &bypass()).unwrap();
        host.attach(&id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    host.declare("c", C, 2, &bypass()).unwrap();
    host.attach("c", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
    host.moved();
    host
}

fn outer(vni: u32, inner: &[u8]) -> Vec<u8> {
    let vxlan = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), inner].concat();
    let link = build::ethernet(Mac([2, 0xbf, 0, 0, 0, 1]), Mac([2, 0xbf, 0, 0, 0, 2]));
    link.ipv4([192, 168, 0, 1], [192, 168, 0, 2]).udp(50_000, 4789, &vxlan)
}

/// A frame of another host cannot stay in a ring: it waits in a queue, behind which no other frame
/// waits.
#[test]
fn floods_of_other_hosts_take_turns_too() {
    for (vnics, floods) in [(300, 1), (300, 8), (63, 20)] {
        let mut host = crowd_of_a_tunnel(vnics);
        let flood = |n: usize| {
            outer(1, &build::ethernet(A, Mac::BROADCAST).payload(0x88b5, &[n as u8; 46]))
        };
        let behind = outer(2, &build::ethernet(A, C).payload(0x88b5, &[0x5a; 46]));
        let wire = host.wire().unwrap();
        for frame in (0..floods).map(flood).chain([behind]) {
            wire.enqueue(&frame, NetHeader::default()).unwrap();
        }
        wire.flush();
        assert!(host.turn());
        let mut all = std::collections::BTreeMap::new();
        let first = host.moved();
        assert_eq!(
            first.get("c.out.packets"),
            Some(&1),
            "the frame behind the floods does not wait: {first:?}"
        );
        assert_eq!(
            first.get("vni-1.in.packets"),
            Some(&(floods as u64)),
            "each is counted once, when it comes"
        );
        let rings = first
            .iter()
            .filter(|(name, _)| name.starts_with('r') && name.ends_with(".out.packets"))
            .count();
        assert!(rings <= 128, "{rings} rings in a turn of the uplink and one of the queue");
        for (name, n) in
            first.iter().filter(|(name, _)| name.starts_with('r') && name.ends_with(".out.packets"))
        {
            *all.entry(name.clone()).or_insert(0) += n;
        }
        let mut turns = 0;
        while host.turn() {
            let moved = host.moved();
            let copies = moved
                .iter()
                .filter(|(name, _)| name.starts_with('r') && name.ends_with(".out.packets"));
            let mut rings = 0;
            for (name, n) in copies {
                rings += 1;
                *all.entry(name.clone()).or_insert(0) += n;
            }
            assert!(rings <= 64, "{rings} rings in one turn");
            assert!(
                !moved.contains_key("vni-1.in.packets")
                    && !moved.contains_key("vni-1.drop.flood-limit"),
                "{moved:?}"
            );
            turns += 1;
            assert!(turns < 200, "it ends");
        }
        assert_eq!(all.len(), vnics);
        assert!(all.values().all(|n| *n == floods as u64), "{all:?}");
        for (id, frames) in
            host.received().unwrap().into_iter().filter(|(id, _)| id.starts_with('r'))
        {
            let order: Vec<u8> = frames.iter().map(|(_, frame)| frame[20]).collect();
            assert_eq!(order, (0..floods as u8).collect::<Vec<_>>(), "{id}");
        }
    }
}

/// A network has eight places, so that what one has too many of finds room for another's.
#[test]
fn floods_that_find_no_place_are_their_networks_drops() {
    let mut host = crowd_of_a_tunnel(300);
    let wire = host.wire().unwrap();
    for n in 0..20u8 {
        let inner = build::ethernet(A, Mac::BROADCAST).payload(0x88b5, &[n; 46]);
        wire.enqueue(&outer(1, &inner), NetHeader::default()).unwrap();
    }
    wire.flush();
    host.settle();
    let moved = host.moved();
    assert_eq!(
        (moved["vni-1.in.packets"], moved["vni-1.drop.flood-limit"], moved["vni-1.flooded"]),
        (20, 12, 8),
        "{moved:?}"
    );
    assert_eq!(moved["r0299.out.packets"], 8);
}

/// Sixty-four receivers with buffers in tiny pieces cost one batch no more than two of them do, and
/// sound receivers lose nothing.
#[test]
fn many_slow_receivers_share_what_a_turn_has_for_them() {
    let shape = Shape { pieces: 300, ..Shape::HEADER_APART }.indirect();
    let evil = GuestConfig { rx_shape: shape, max_frame: 1514, ..GuestConfig::default() }.rings(16);
    let mut host = Host::new().unwrap();
    host.vnic("a", A, 1, &bypass()).unwrap();
    host.vnic("c", C, 1, &bypass()).unwrap();
    let mac = |n: u8| Mac([2, 0, 0, 2, 0, n]);
    for n in 0..63 {
        let id = format!("e{n:02}");
        host.declare(&id, mac(n), 1, &bypass()).unwrap();
        host.attach(&id, LINUX, &evil, &MemoryConfig::new(evil.memory_needed() + (1 << 20)))
            .unwrap();
    }
    host.settle();
    host.moved();
    let batch: Vec<Vec<u8>> = (0..63).map(|n| to(mac(n))).chain([to(C)]).collect();
    let begun = Instant::now();
    send(&mut host, &batch);
    // Each frame takes 281 descriptors above the normal: seven make the 2,048 that all have
    // together; time pays 1,000 a millisecond.
    let paid = begun.elapsed().as_millis() as u64 * 1000 / 281;
    let moved = host.moved();
    let sum = |what: &str| {
        moved
            .iter()
            .filter(|(name, _)| name.starts_with('e') && name.ends_with(what))
            .map(|(_, n)| n)
            .sum::<u64>()
    };
    let (got, slow) = (sum(".out.packets"), sum(".drop.rx-slow"));
    assert!(got >= 1 && got + slow == 63 && got <= 8 + paid, "{got} of 63, {paid} paid meanwhile");
    assert_eq!(moved["c.out.packets"], 1);
}

/// A ring whose buffers need a little more than the normal gets as many frames as its time pays
/// for, with any number of frames waiting.
#[test]
fn a_slow_ring_gets_its_part_under_a_steady_stream() {
    let shape = Shape { pieces: 60, ..Shape::HEADER_APART }.indirect();
    let mut host = host(&GuestConfig { rx_shape: shape, ..GuestConfig::default() });
    let begun = Instant::now();
    let mut got = 0;
    while got < 26 + 500 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{got} frames in ten seconds");
        send(&mut host, &vec![to(B); 8]);
        got += host.moved().get("b.out.packets").copied().unwrap_or(0);
        host.received().unwrap();
    }
    // Its debt is 41 descriptors a frame, and a millisecond pays 200 of them.
    let paid = begun.elapsed().as_millis() as u64 * 200 / 41;
    assert!(got <= 26 + paid + 8, "{got} frames, {paid} paid");
}

/// Copies for mirrors of the sender are copies of its turn, too.
#[test]
fn mirrors_of_the_sender_count() {
    const MIRRORS: u8 = 20;
    let config = GuestConfig { max_frame: 1514, ..GuestConfig::default() }.rings(256);
    let mut host = Host::new().unwrap();
    host.vnic("a", A, 1, &bypass()).unwrap();
    host.vnic("c", C, 1, &bypass()).unwrap();
    for n in 0..MIRRORS {
        let id = format!("m{n:02}");
        host.declare_mirror(&id, Mac([2, 0, 0, 3, 0, n]), 1, "a").unwrap();
        host.attach(&id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    host.settle();
    host.moved();
    let guest = host.guest("a").unwrap();
    for _ in 0..128 {
        guest.enqueue(&to(C), NetHeader::default()).unwrap();
    }
    guest.flush();
    let (mut got, mut seen) = (0, 0);
    while host.turn() {
        let moved = host.moved();
        let copies: u64 = moved
            .iter()
            .filter(|(name, _)| name.starts_with('m') && name.ends_with(".out.packets"))
            .map(|(_, n)| *n)
            .sum();
        let frames = moved.get("c.out.packets").copied().unwrap_or(0);
        assert!(
            frames + copies <= 1024 && copies == frames * u64::from(MIRRORS),
            "{frames} frames, {copies} copies in one turn"
        );
        got += frames;
        seen += copies;
    }
    assert_eq!((got, seen), (128, 128 * u64::from(MIRRORS)));
}

//! A hostile guest writes any bytes into its descriptors, rings and memory, with any features, as
//! sender and as receiver. Sound guests in its network and in another one must not notice.

use std::sync::atomic::Ordering::{Relaxed, Release};

use butterfly_datapath::{
    Mac, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{
    AnyRing, Desc, Guest, GuestConfig, MemoryConfig, PackedDesc, PackedEvent, PackedRing, RX, Ring,
    SendError, Shape, TX,
    memory::DEFAULT_GUEST_ADDR,
    ring::{PACKED_AVAIL, PACKED_USED},
};
use butterfly_packet::build;
use butterfly_vhost::net::{Features, NetHeader};

use crate::input::Input;

const HOSTILE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const SOUND: Mac = Mac([2, 0, 0, 0, 0, 2]);
const PAL: Mac = Mac([2, 0, 0, 0, 0, 3]);
const REGION: u64 = 64 * 1024;
const REGIONS: u64 = 3;

/// Features that guests may negotiate.
const CHOICES: [Features; 8] = [
    Features::VERSION_1,
    Features::MRG_RXBUF,
    Features::INDIRECT_DESC,
    Features::EVENT_IDX,
    Features::IN_ORDER,
    Features(Features::CSUM.0 | Features::HOST_TSO4.0 | Features::HOST_TSO6.0),
    Features(
        Features::GUEST_CSUM.0
            | Features::GUEST_TSO4.0
            | Features::GUEST_TSO6.0
            | Features::GUEST_ECN.0,
    ),
    Features::ANY_LAYOUT,
];

fn features(bits: u8) -> Features {
    let chosen = CHOICES.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
    chosen.fold(Features::NONE, |all, (_, feature)| all.with(*feature))
}

/// Features of the guest: those of its bits, and packed rings if its setup asks for the largest.
fn features_of(bits: u8, setup: u8) -> Features {
    let packed = Features::VERSION_1.with(Features::RING_PACKED);
    if setup & 7 == 7 { features(bits).with(packed) } else { features(bits) }
}

/// Runs an input: two bytes of configuration, then one operation after the other.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut host = Host::new().expect("a host");
    let bits = input.u8();
    let setup = input.u8();
    let filtered = setup & 0x80 != 0;
    let policy = |bypass| VnicPolicy { bypass, ..VnicPolicy::default() };
    host.declare("hostile", HOSTILE, 1, &policy(!filtered)).expect("a vnic");
    attach_hostile(&mut host, features_of(bits, setup), setup);
    let config = GuestConfig { max_frame: 2048, ..GuestConfig::default() }.rings(64);
    for (id, mac, vni, features) in [
        ("sound", SOUND, 1, LINUX),
        ("pal", PAL, 1, Features::VERSION_1.with(Features::MRG_RXBUF)),
        ("far", SOUND, 2, LINUX),
        ("peer", PAL, 2, LINUX),
    ] {
        host.declare(id, mac, vni, &policy(true)).expect("a vnic");
        host.attach(id, features, &config, &MemoryConfig::new(config.memory_needed()))
            .expect("a guest");
    }
    host.moved();
    // Bounded, as each operation may cost a turn of the switch.
    for _ in 0..200 {
        let Some(operation) = input.next() else { break };
        step(&mut host, operation, &mut input);
    }
    host.settle();
    check(&mut host);
}

fn attach_hostile(host: &mut Host, features: Features, setup: u8) {
    let size = 1 << (setup & 7).min(5);
    let config = GuestConfig {
        rx_buffer: if setup & 8 == 0 { 256 } else { 2060 },
        max_frame: 512,
        cross_regions: setup & 16 != 0,
        rx_shape: Shape::default().pieces(1 + usize::from(setup >> 5 & 1)),
        ..GuestConfig::default()
    }
    .rings(size);
    let mut memory = MemoryConfig::split(REGIONS as usize, 2 * REGION);
    memory.separate_files = setup & 64 != 0;
    host.attach("hostile", features, &config, &memory).expect("a guest");
}

fn guest<'a>(host: &'a mut Host, id: &str) -> &'a mut Guest {
    host.guest(id).expect("a guest")
}

/// Returns an address, most often in the guest's memory.
fn addr(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        // Around the borders of regions.
        kind @ 0..=31 => (DEFAULT_GUEST_ADDR + u64::from(kind % 4) * 2 * REGION)
            .wrapping_add(u64::from(input.u8()))
            .wrapping_sub(128),
        32..=39 => input.u64(),
        _ => DEFAULT_GUEST_ADDR + u64::from(input.u32()) % (REGIONS * 2 * REGION),
    }
}

fn len(input: &mut Input<'_>) -> u32 {
    match input.u8() {
        0..=7 => input.u32(),
        8..=127 => u32::from(input.u16()),
        short => u32::from(short),
    }
}

fn desc(input: &mut Input<'_>) -> Desc {
    Desc {
        addr: addr(input),
        len: len(input),
        flags: u16::from(input.u8() & 0x1f),
        next: u16::from(input.u8()),
    }
}

/// Makes one chain available that starts at a descriptor.
fn offer(ring: &Ring, head: u16) {
    let at = ring.avail_idx().load(Relaxed);
    ring.avail_entry(at).store(head, Relaxed);
    ring.avail_idx().store(at.wrapping_add(1), Release);
}

fn packed_desc(input: &mut Input<'_>) -> PackedDesc {
    let (flags, lap) = (u16::from(input.u8() & 7), input.u8());
    // Mostly available, in one of both laps.
    let lap = match lap & 7 {
        0 => u16::from(lap >> 3 & 1) * (PACKED_AVAIL | PACKED_USED),
        1..=4 => PACKED_AVAIL,
        _ => PACKED_USED,
    };
    PackedDesc { addr: addr(input), len: len(input), id: input.u8().into(), flags: flags | lap }
}

/// The same by a guest with packed rings, as far as it is about them.
fn spoil_packed(ring: &PackedRing, operation: u8, input: &mut Input<'_>) {
    let more = u16::from(operation >> 4 & 7);
    let at = |input: &mut Input<'_>| u16::from(input.u8()) % ring.size();
    match operation & 15 {
        0..=2 => {
            let first = at(input);
            (0..=more).for_each(|n| ring.set_desc((first + n) % ring.size(), packed_desc(input)));
        }
        3 => ring.set_word(at(input), input.u64()),
        4 => ring.set_addr(at(input), addr(input)),
        5 => {
            let event = PackedEvent { off_wrap: input.u16(), flags: input.u8().into() };
            if more & 1 == 0 { ring.set_driver_event(event) } else { ring.set_device_event(event) }
        }
        // An indirect table, and a descriptor that leads to it.
        _ => {
            let to = DEFAULT_GUEST_ADDR + u64::from(input.u16()) * 4;
            for n in 0..u64::from(more) {
                let _ = ring.memory().write(to + n * 16, &packed_desc(input).to_bytes());
            }
            let (len, kind) = (u32::from(more) * 16 + u32::from(input.u8() & 3), input.u8());
            let flags = 4 | u16::from(kind & 3) | PACKED_AVAIL;
            ring.set_desc(at(input), PackedDesc { addr: to, len, id: kind.into(), flags });
        }
    }
}

fn step(host: &mut Host, operation: u8, input: &mut Input<'_>) {
    let queue = if operation >> 7 == 0 { TX } else { RX };
    let ring_of = match guest(host, "hostile").queue(queue).any_ring().clone() {
        AnyRing::Split(ring) => ring,
        AnyRing::Packed(ring) if matches!(operation & 15, 0..=5 | 8) => {
            return spoil_packed(&ring, operation, input);
        }
        AnyRing::Packed(_) => return step_of_any(host, operation, input),
    };
    match operation & 15 {
        // A chain of one descriptor, and a number of chains after it.
        0 | 1 => {
            let head = u16::from(input.u8());
            let more = u16::from(operation >> 4 & 7);
            for at in 0..=more {
                let mut desc = desc(input);
                if at < more && operation & 1 == 0 {
                    (desc.flags, desc.next) = (desc.flags | 1, (head + at + 1) % ring_of.size());
                }
                ring_of.set_desc(head.wrapping_add(at), desc);
            }
            offer(&ring_of, head % if operation & 1 == 0 { ring_of.size() } else { u16::MAX });
        }
        2 => ring_of.set_desc(input.u16(), desc(input)),
        3 => ring_of.avail_entry(u16::from(input.u8())).store(input.u16(), Relaxed),
        4 => {
            let by = input.u8() as i8;
            let at = ring_of.avail_idx().load(Relaxed);
            ring_of.avail_idx().store(at.wrapping_add_signed(by.into()), Release);
        }
        5 => {
            let field = [
                ring_of.avail_flags(),
                ring_of.used_event(),
                ring_of.used_idx(),
                ring_of.avail_event(),
            ];
            field[usize::from(operation >> 4 & 3)].store(input.u16(), Relaxed);
        }
        // An indirect table, and a chain that leads to it.
        8 => {
            let to = DEFAULT_GUEST_ADDR + u64::from(input.u16()) * 4;
            let count = u64::from(operation >> 4 & 7);
            let memory = guest(host, "hostile").memory().clone();
            for at in 0..count {
                let _ = memory.write(to + at * 16, &desc(input).to_bytes());
            }
            let head = u16::from(input.u8());
            let len = (count * 16) as u32 + u32::from(input.u8() & 3);
            ring_of.set_desc(
                head,
                Desc { addr: to, len, flags: 4 | u16::from(input.u8() & 3), next: 0 },
            );
            offer(&ring_of, head % ring_of.size());
        }
        _ => step_of_any(host, operation, input),
    }
}

/// A step for which the layout of rings does not matter.
fn step_of_any(host: &mut Host, operation: u8, input: &mut Input<'_>) {
    match operation & 15 {
        // Any bytes into the guest's own memory, rings included.
        6 | 7 => {
            let (to, len) = (addr(input), usize::from(input.u8() & 63));
            let _ = guest(host, "hostile").memory().clone().write(to, input.bytes(len));
        }
        // A frame sent as a driver does, with a virtio-net header that may be wrong.
        9 | 10 => {
            let frame =
                frame(input, HOSTILE, if operation & 16 == 0 { SOUND } else { Mac::BROADCAST });
            let header = header(input);
            let guest = guest(host, "hostile");
            // An error is fine: the guest's rings may hold nonsense by now.
            let _ =
                guest.send(&frame, if operation & 1 == 0 { header } else { NetHeader::default() });
        }
        // A sound guest sends to the hostile guest.
        11 | 12 => {
            let to = if operation & 16 == 0 { HOSTILE } else { Mac::BROADCAST };
            let frame = frame(input, SOUND, to);
            let header = if operation & 1 == 0 { header(input) } else { NetHeader::default() };
            match guest(host, "sound").send(&frame, header) {
                Ok(()) | Err(SendError::Full) => {}
                Err(error) => panic!("a sound guest: {error}"),
            }
        }
        // The hostile guest comes back with other features.
        13 if operation & 0x40 != 0 => {
            host.detach("hostile");
            let (bits, setup) = (input.u8(), input.u8());
            attach_hostile(host, features_of(bits, setup), setup);
        }
        _ => {
            host.turn();
        }
    }
}

fn frame(input: &mut Input<'_>, from: Mac, to: Mac) -> Vec<u8> {
    let choice = input.u8();
    let payload = vec![choice; usize::from(input.u8()) + if choice & 128 == 0 { 0 } else { 150 }];
    let link = build::ethernet(from, to);
    match choice & 3 {
        0 => link.payload(0x88b5, &payload),
        1 => link.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, &payload),
        2 => link.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(&build::Tcp::new(1, 2, 16), &payload),
        _ => {
            let address = |last| std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
            link.ipv6(address(1), address(2)).tcp(&build::Tcp::new(1, 2, 16), &payload)
        }
    }
}

fn header(input: &mut Input<'_>) -> NetHeader {
    let choice = input.u8();
    NetHeader {
        flags: choice & 3,
        gso_type: [0, 1, 4, 0x81, 3, choice, 1, 4][usize::from(choice >> 2 & 7)],
        hdr_len: u16::from(input.u8()),
        gso_size: u16::from(input.u8()),
        csum_start: [34, 54, 14, u16::from(choice)][usize::from(choice >> 5 & 3)],
        csum_offset: if choice & 128 == 0 { 16 } else { u16::from(input.u8()) },
        num_buffers: 0,
    }
}

/// Checks that the hostile guest did not change anything for the sound guests.
fn check(host: &mut Host) {
    for id in ["sound", "pal", "far", "peer"] {
        let guest = guest(host, id);
        guest.reclaim().expect("a sound transmit ring");
        while let Some((_, frame)) = guest.recv().expect("a sound receive ring") {
            assert!(
                !matches!(id, "far" | "peer"),
                "{id} is in another network and received {frame:02x?}"
            );
            assert!(frame.len() >= 14, "a frame of {} bytes", frame.len());
        }
    }
    let moved = host.moved();
    for (name, count) in &moved {
        assert!(!name.starts_with("far.") && !name.starts_with("peer."), "{name} moved by {count}");
    }
    let got = |id: &str| moved.get(&format!("{id}.out.packets")).copied().unwrap_or(0);
    let received = |host: &mut Host, id: &str| guest(host, id).stats().received;
    assert_eq!(
        [got("sound"), got("pal")],
        [received(host, "sound"), received(host, "pal")],
        "deliveries that were counted"
    );
    for (from, to) in [("sound", "pal"), ("far", "peer")] {
        let frame =
            build::ethernet(SOUND, PAL).ipv4([10, 0, 0, 2], [10, 0, 0, 3]).udp(7, 8, &[0x5a; 300]);
        host.send(from, &frame, NetHeader::default()).expect("a sound guest");
        let (_, got) = guest(host, to)
            .recv()
            .expect("a sound receive ring")
            .expect("a frame from a sound guest");
        assert!(got == frame, "a frame between sound guests was changed");
        assert!(
            guest(host, to).recv().expect("a sound receive ring").is_none(),
            "{to} received more than was sent"
        );
    }
}

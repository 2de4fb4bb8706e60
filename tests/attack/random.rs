//! Random attacks, from a seed. Their outcome is not known, but no other guest may notice them.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use butterfly_guest_driver::{
    Connection, Desc, Guest, Memory, MemoryConfig, RX, TX, Vm, memory::DEFAULT_GUEST_ADDR, raw,
};
use butterfly_packet::{build, mac::Mac};
use butterfly_tests::frames::Choices;
use butterfly_vhost::net::{Features, NetHeader};
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::villain::{Place, REGION, RING, config, full_eventfd, raw_connection};

/// Ring entries of a third of the hostile guests.
const LARGE_RING: u16 = 1024;

/// Counts of what hostile guests did.
#[derive(Default)]
pub struct Tally {
    /// Guests that attached and left.
    pub guests: u64,
    /// Steps that these guests took.
    pub steps: u64,
}

/// Runs one hostile guest after the other on this vnic, until `stop` is set.
pub fn run(place: &Place, seed: u64, stop: &AtomicBool) -> Tally {
    let mut choices = Choices::new(seed);
    let mut tally = Tally::default();
    while !stop.load(Relaxed) {
        tally.guests += 1;
        match choices.below(8) {
            0 => garbage(place, &mut choices, &mut tally),
            1 | 2 => trapper(place, &mut choices, &mut tally, stop),
            _ => guest(place, &mut choices, &mut tally, stop),
        }
    }
    tally
}

/// Connects and sends noise, with vhost-user headers now and then.
fn garbage(place: &Place, choices: &mut Choices, tally: &mut Tally) {
    let Ok(stream) = raw_connection(&place.path) else { return };
    let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
    for _ in 0..choices.between(1, 30) {
        let len = choices.below(300);
        let mut bytes = noise(choices, len);
        if choices.below(2) == 0 {
            let size = if choices.below(2) == 0 { bytes.len() } else { choices.below(5000) };
            let header =
                raw::header(choices.below(48) as u32, choices.one(&[1, 9, 5, 0]), size as u32);
            bytes.splice(0..0, header);
        }
        tally.steps += 1;
        if raw::send_bytes(&stream, &bytes, &[]).is_err() {
            return;
        }
    }
    // Sometimes the connection then stays open for a while, silent.
    if choices.below(4) == 0 {
        std::thread::sleep(Duration::from_millis(choices.below(1200) as u64));
    }
}

fn noise(choices: &mut Choices, len: usize) -> Vec<u8> {
    (0..len).map(|_| choices.below(256) as u8).collect()
}

/// Runs a guest that keeps its receive ring costly to use while others send to it.
fn trapper(place: &Place, choices: &mut Choices, tally: &mut Tally, stop: &AtomicBool) {
    let mut config = config(butterfly_tests::features::LINUX.with(Features::INDIRECT_DESC));
    config.guest = config.guest.rings(LARGE_RING);
    let Ok(connection) = Connection::connect(&place.path, Duration::from_secs(3)) else { return };
    let Ok(vm) = Vm::attach(connection, &config) else { return };
    let end = Instant::now() + Duration::from_millis(choices.between(100, 1000) as u64);
    while !stop.load(Relaxed) && Instant::now() < end && trap(&vm, choices) {
        tally.steps += 1;
        std::thread::sleep(Duration::from_millis(choices.between(1, 100) as u64));
    }
    vm.connection.disconnect();
}

/// Runs a guest that attaches properly and then takes random steps.
fn guest(place: &Place, choices: &mut Choices, tally: &mut Tally, stop: &AtomicBool) {
    let mut features = Features::VERSION_1;
    for feature in
        [Features::MRG_RXBUF, Features::INDIRECT_DESC, Features::EVENT_IDX, Features::IN_ORDER]
    {
        if choices.below(2) == 0 {
            features = features.with(feature);
        }
    }
    if choices.below(2) == 0 {
        features = features.with(butterfly_tests::features::LINUX);
    }
    let mut config = config(features);
    config.guest.rx_buffer = choices.one(&[64, 1526, 2048]);
    config.guest = config.guest.rings(choices.one(&[RING, RING, LARGE_RING]));
    let Ok(connection) = Connection::connect(&place.path, Duration::from_secs(3)) else { return };
    // The daemon serves earlier connections first, and may have to wait for one of them.
    let _ = connection.set_timeout(Duration::from_secs(3));
    let Ok(mut vm) = Vm::attach(connection, &config) else { return };
    let mut alive = true;
    // After a memory file is truncated, this process must not touch its mapping either.
    let mut cut = false;
    for _ in 0..choices.between(1, 400) {
        if !alive || stop.load(Relaxed) {
            break;
        }
        tally.steps += 1;
        alive = match choices.below(40) {
            0..=4 if !cut => descriptors(&vm, choices),
            5 | 39 if !cut => trap(&vm, choices),
            6..=8 if !cut => chain(&vm, choices),
            9..=11 if !cut => indices(&vm, choices),
            12..=15 if !cut => memory(vm.guest.memory(), choices),
            16..=23 if !cut => frame(&mut vm, place, choices),
            24 if !cut => storm(&vm, choices),
            25..=27 if !cut => receive(&mut vm),
            28..=36 => message(&mut vm, choices),
            37 if !cut && choices.below(20) == 0 => {
                cut = true;
                truncate(&vm, choices)
            }
            38 => {
                std::thread::sleep(Duration::from_millis(choices.below(3) as u64));
                true
            }
            _ => !vm.connection.is_closed(),
        };
        if choices.below(4) == 0 {
            for index in [RX, TX] {
                kick(&vm.guest, index);
            }
        }
    }
    vm.connection.disconnect();
}

fn kick(guest: &Guest, index: usize) {
    let _ = rustix::io::write(&**guest.queue(index).kick_fd(), &1u64.to_ne_bytes());
}

fn address(choices: &mut Choices) -> u64 {
    match choices.below(8) {
        0 => choices.below(usize::MAX) as u64,
        1 => (DEFAULT_GUEST_ADDR + choices.below(3) as u64 * REGION)
            .wrapping_add(choices.below(200) as u64)
            .wrapping_sub(100),
        _ => DEFAULT_GUEST_ADDR + choices.below(2 * REGION as usize) as u64,
    }
}

fn desc(choices: &mut Choices) -> Desc {
    let len = match choices.below(8) {
        0 => choices.below(1 << 32) as u32,
        1 => choices.below(70000) as u32,
        2 => choices.below(14) as u32,
        _ => choices.below(2000) as u32,
    };
    let flags = choices.one(&[0, 0, 1, 1, 2, 3, 4, 5, 7, 0xffff]);
    let ring = choices.one(&[RING, LARGE_RING]);
    Desc { addr: address(choices), len, flags, next: choices.below(usize::from(ring) + 2) as u16 }
}

fn descriptors(vm: &Vm, choices: &mut Choices) -> bool {
    let ring = vm.guest.queue(choices.below(2)).ring().clone();
    for _ in 0..choices.between(1, 10) {
        ring.set_desc(choices.below(ring.size().into()) as u16, desc(choices));
    }
    true
}

fn chain(vm: &Vm, choices: &mut Choices) -> bool {
    let index = choices.below(2);
    let ring = vm.guest.queue(index).ring().clone();
    let at = ring.avail_idx().load(Relaxed);
    let count = choices.between(1, 8) as u16;
    for n in 0..count {
        ring.avail_entry(at.wrapping_add(n))
            .store(choices.below(usize::from(ring.size()) + 2) as u16, Relaxed);
    }
    ring.avail_idx().store(at.wrapping_add(count), std::sync::atomic::Ordering::Release);
    kick(&vm.guest, index);
    true
}

/// Fills the receive ring with buffers that are costly to find: many empty descriptors come before
/// each, in chains or in large indirect tables.
fn trap(vm: &Vm, choices: &mut Choices) -> bool {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    let ring = vm.guest.queue(RX).ring().clone();
    let size = ring.size();
    let room = choices.one(&[0, 1, 64, 2048]);
    if choices.below(2) == 0 {
        // One chain through all descriptors of the ring.
        for at in 0..size {
            let last = at + 1 == size;
            let (len, flags) =
                if last { (room, WRITE) } else { (choices.one(&[0, 0, 0, 1]), WRITE | NEXT) };
            ring.set_desc(at, Desc { addr: DEFAULT_GUEST_ADDR + REGION, len, flags, next: at + 1 });
        }
    } else {
        let table = DEFAULT_GUEST_ADDR + REGION;
        let entries = choices.between(2, 4000) as u16;
        for at in 0..entries {
            let (len, flags) = if at + 1 == entries { (room, WRITE) } else { (0, WRITE | NEXT) };
            let desc = Desc { addr: table + (1 << 20), len, flags, next: at + 1 };
            let _ = vm.guest.memory().write(table + u64::from(at) * 16, &desc.to_bytes());
        }
        let desc = Desc { addr: table, len: u32::from(entries) * 16, flags: INDIRECT, next: 0 };
        (0..size).for_each(|at| ring.set_desc(at, desc));
    }
    let at = ring.avail_idx().load(Relaxed);
    for n in 0..size {
        ring.avail_entry(at.wrapping_add(n)).store(choices.one(&[0, n]), Relaxed);
    }
    ring.avail_idx().store(
        ring.used_idx().load(Relaxed).wrapping_add(size),
        std::sync::atomic::Ordering::Release,
    );
    true
}

fn indices(vm: &Vm, choices: &mut Choices) -> bool {
    let ring = vm.guest.queue(choices.below(2)).ring().clone();
    let value = choices.below(1 << 16) as u16;
    match choices.below(12) {
        0 => ring.avail_idx().store(value, Relaxed),
        1..=3 => ring.used_event().store(value, Relaxed),
        4..=6 => ring.avail_flags().store(value, Relaxed),
        7 => ring.used_idx().store(value, Relaxed),
        8 => ring.avail_event().store(value, Relaxed),
        _ => ring.avail_entry(value).store(value, Relaxed),
    }
    true
}

fn memory(memory: &Memory, choices: &mut Choices) -> bool {
    let len = choices.between(1, 200);
    let at = DEFAULT_GUEST_ADDR + choices.below(2 * REGION as usize - len) as u64;
    let _ = memory.write(at, &noise(choices, len));
    // Descriptors, in case a chain leads here.
    for n in 0..choices.below(20) as u64 {
        let _ = memory.write(at + n * 16, &desc(choices).to_bytes());
    }
    true
}

/// Sends a frame properly, with random content.
fn frame(vm: &mut Vm, place: &Place, choices: &mut Choices) -> bool {
    // To the bystanders of this network, to all, to an unknown address, to itself. Never with the
    // EtherType of the bystanders' frames, which they check.
    let to = choices.one(&[
        butterfly_tests::frames::mac(0x10_0000 + crate::villain::VNI * 2),
        butterfly_tests::frames::mac(0x10_0000 + crate::villain::VNI * 2 + 1),
        Mac::BROADCAST,
        Mac([1, 0x80, 0xc2, 0, 0, 0]),
        Mac([2, 0xff, 0, 0, 0, 0]),
        place.mac,
    ]);
    let from = if choices.below(3) == 0 {
        Mac([2, 0xee, 0, 0, choices.below(256) as u8, choices.below(256) as u8])
    } else {
        place.mac
    };
    let len = choices.below(1400);
    let payload = noise(choices, len.min(60)).into_iter().cycle().take(len).collect::<Vec<u8>>();
    let link = build::ethernet(from, to);
    let mut frame = match choices.below(5) {
        0 => link.payload(0x88b6, &payload),
        1 => link
            .vlan(choices.below(4096) as u16)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .udp(1, 2, &payload),
        2 => link.arp_request([10, 0, 0, 1], [10, 0, 0, 2]),
        _ => link.ipv4([10, 0, 0, 1], [10, 0, 0, 2]).tcp(&build::Tcp::new(1, 2, 16), &payload),
    };
    // Random bytes in the headers, but not in the MAC addresses.
    for _ in 0..choices.below(4) {
        let at = 14 + choices.below(frame.len());
        if let Some(byte) = frame.get_mut(at) {
            *byte = choices.below(256) as u8;
        }
    }
    frame.truncate(choices.one(&[usize::MAX, 14, 20, 40]).max(14));
    let header = NetHeader {
        flags: choices.below(4) as u8,
        gso_type: choices.one(&[0, 0, 1, 4, 0x81, 3, 77]),
        hdr_len: choices.below(1 << 16) as u16,
        gso_size: choices.one(&[0, 1, 48, 500, 1448, u16::MAX]),
        csum_start: choices.one(&[34, 54, 0, 1000, u16::MAX]),
        csum_offset: choices.one(&[16, 6, 0, u16::MAX]),
        num_buffers: 0,
    };
    let header = if choices.below(2) == 0 { NetHeader::default() } else { header };
    // An error is expected: the guest's rings may hold nonsense by now.
    let _ = vm.guest.send(&frame, header);
    true
}

fn storm(vm: &Vm, choices: &mut Choices) -> bool {
    for _ in 0..choices.below(20_000) {
        kick(&vm.guest, TX);
    }
    true
}

fn receive(vm: &mut Vm) -> bool {
    for _ in 0..RING {
        if !matches!(vm.guest.recv(), Ok(Some(_))) {
            break;
        }
    }
    true
}

fn truncate(vm: &Vm, choices: &mut Choices) -> bool {
    let regions = vm.guest.memory().regions();
    let region = &regions[choices.below(regions.len())];
    let _ = region.file.set_len(choices.below(3) as u64 * 4096);
    for index in [RX, TX] {
        kick(&vm.guest, index);
    }
    true
}

/// Sends a random request, which may be valid or not at this time. Returns false when the
/// connection is gone.
fn message(vm: &mut Vm, choices: &mut Choices) -> bool {
    let Vm { guest, connection, .. } = vm;
    // Rings of further pairs lie where those of the first do: the guest harms itself.
    let index = if choices.below(3) == 0 { choices.below(40) } else { choices.below(2) };
    let queue = index % 2;
    let result = match choices.below(24) {
        0 | 1 => connection
            .set_features(Features(Features::OFFERED.0 & choices.below(usize::MAX) as u64)),
        2 => connection.set_mem_table(&guest.memory().regions()),
        3 => connection.add_region(&guest.memory().regions()[choices.below(2)]),
        4 => connection.remove_region(&guest.memory().regions()[choices.below(2)]),
        5 | 6 => connection.set_vring_addr(index, guest.queue(queue), choices.below(2) == 0),
        7 => {
            return request(
                connection,
                raw::FrontendReq::SET_VRING_NUM,
                &raw::vring_state(index as u32, 1 << choices.below(17)),
                &[],
            );
        }
        8 => {
            return request(
                connection,
                raw::FrontendReq::SET_VRING_BASE,
                &raw::vring_state(index as u32, choices.below(1 << 16) as u32),
                &[],
            );
        }
        9 => connection.set_vring_kick(
            index,
            (choices.below(3) > 0).then(|| guest.queue(queue).kick_fd().as_fd()),
        ),
        10 => connection.set_vring_call(
            index,
            (choices.below(3) > 0).then(|| guest.queue(queue).call_fd().as_fd()),
        ),
        11 => connection.set_vring_call(index, Some(full_eventfd().as_fd())),
        12 | 13 => connection.enable(index, choices.below(2) == 0),
        14 | 15 => connection.stop_queue(index).map(drop),
        16 => connection.reset_device(),
        17 => log(connection, guest.memory(), choices),
        18 if choices.below(4) == 0 => return wrong_descriptor(connection, choices),
        19 if choices.below(4) == 0 => {
            let len = choices.below(64);
            let body = noise(choices, len);
            let header =
                raw::header(choices.below(48) as u32, choices.one(&[1, 9]), body.len() as u32);
            return raw::send_bytes(connection.stream(), &[&header[..], &body].concat(), &[])
                .is_ok();
        }
        // Stops and starts the rings, as a reboot or a migration does.
        20 => connection.stop(choices.between(1, 16)).map(drop),
        21 => connection.start(guest, &butterfly_guest_driver::Start::default()),
        _ => connection.sync(),
    };
    result.is_ok() || !connection.is_closed()
}

fn request(
    connection: &Connection,
    request: raw::FrontendReq,
    body: &[u8],
    fds: &[BorrowedFd<'_>],
) -> bool {
    raw::send_bytes(connection.stream(), &raw::message(request, raw::VERSION, body), fds).is_ok()
}

fn log(
    connection: &Connection,
    memory: &Memory,
    choices: &mut Choices,
) -> Result<(), butterfly_guest_driver::ControlError> {
    use butterfly_guest_driver::DirtyLog;
    let log = if choices.below(2) == 0 {
        DirtyLog::new(memory)
    } else {
        DirtyLog::with_len(choices.below(5000) as u64)
    };
    let log = log.expect("memory for a log");
    let set = connection.set_log(&log);
    if choices.below(4) == 0 {
        let _ = log.region().file.set_len(0);
    }
    set
}

fn wrong_descriptor(connection: &Connection, choices: &mut Choices) -> bool {
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let pipe = rustix::pipe::pipe().expect("a pipe");
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
    let memory = Memory::new(&MemoryConfig::new(4096)).expect("memory").regions().remove(0);
    let one = match choices.below(6) {
        0 => event.as_fd(),
        1 => pipe.0.as_fd(),
        2 => pipe.1.as_fd(),
        3 => epoll.as_fd(),
        4 => connection.stream().as_fd(),
        _ => memory.file.as_fd(),
    };
    use raw::FrontendReq::*;
    let what = choices.one(&[
        SET_VRING_KICK,
        SET_VRING_CALL,
        SET_VRING_ERR,
        SET_MEM_TABLE,
        SET_LOG_BASE,
        ADD_MEM_REG,
    ]);
    let body = match what {
        SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR => raw::words(&[choices.below(2) as u64]),
        SET_LOG_BASE => raw::words(&[4096, 0]),
        SET_MEM_TABLE => raw::words(&[1, 0, 4096, 0, 0]),
        _ => raw::words(&[0, 0, 4096, 0, 0]),
    };
    request(connection, what, &body, &vec![one; choices.one(&[1, 1, 1, 2, 8])])
}

/// Sleeps until the deadline, and calls `between` every 100 ms.
pub fn sleep_until(end: Instant, mut between: impl FnMut()) {
    while Instant::now() < end {
        std::thread::sleep(
            Duration::from_millis(100).min(end.saturating_duration_since(Instant::now())),
        );
        between();
    }
}

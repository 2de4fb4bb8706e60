//! Valid messages in orders that no front end would choose, and in numbers that none needs. One
//! test at a time: open files are counted for the whole process.

mod control_support;

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use butterfly_guest_driver::{
    Connection, ControlError, DirtyLog, Guest, GuestConfig, Memory, MemoryConfig, ProtocolFeatures,
    RX, Start, VmConfig,
    raw::{self, FrontendReq},
};
use butterfly_vhost::{
    net::Features,
    port::Queue,
    ring::{BATCH, FrameStore, Gathered},
};
use control_support::{Bed, eventually, open_files, settled, shared_mappings};
use rustix::event::{EventfdFlags, eventfd};
use vhost::VhostBackend;

fn small() -> VmConfig {
    VmConfig { guest: GuestConfig::default().rings(256), ..VmConfig::default() }
}

/// A small generator (xorshift) with a fixed seed: a failure happens again.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn ring(result: Result<(), vhost::Error>) -> Result<(), ControlError> {
    result.map_err(|source| ControlError::Request { what: "ring", source })
}

/// One message, or what a guest or a worker does meanwhile.
fn step(
    bed: &Bed,
    connection: &mut Connection,
    memory: &Memory,
    guest: &Guest,
    random: &mut Random,
) -> Result<(), ControlError> {
    let index = random.below(2) as usize;
    let queue = guest.queue(index);
    match random.below(16) {
        0 => connection.set_features(Features(
            small().features.0 & (random.below(u64::MAX) | random.below(u64::MAX)),
        )),
        1 => connection.set_mem_table(&memory.regions()),
        2 if random.one_in(4) => connection.add_region(&memory.regions()[0]),
        3 if random.one_in(2) => connection.remove_region(&memory.regions()[0]),
        4 => ring(connection.frontend().set_vring_num(index, 1 << random.below(9))),
        5 => ring(connection.frontend().set_vring_base(index, random.below(65536) as u16)),
        6 => connection.set_vring_addr(index, queue, random.one_in(2)),
        7 => connection.set_vring_kick(index, (!random.one_in(3)).then(|| queue.kick_fd().as_fd())),
        8 => connection.set_vring_call(index, (!random.one_in(3)).then(|| queue.call_fd().as_fd())),
        9 => connection.enable(index, random.one_in(2)),
        10 => connection.stop_queue(index).map(drop),
        11 => connection.reset_device(),
        12 => connection.set_log(&DirtyLog::new(memory).unwrap()),
        13 => connection.set_vring_err(index, None),
        14 => {
            // Anything may become available.
            memory
                .write(queue.ring().addr().avail + 2, &(random.below(1 << 10) as u16).to_le_bytes())
                .unwrap();
            Ok(())
        }
        _ => {
            work(bed);
            Ok(())
        }
    }
}

/// Works on the rings as a worker does, without trusting anything.
fn work(bed: &Bed) {
    let mut store = FrameStore::default();
    let mut tx = bed.port.tx();
    let Some(tx) = tx.as_mut() else { return };
    for _ in 0..4 {
        if tx.available().unwrap_or(0) == 0 {
            break;
        }
        let Gathered::Frames(mut frames) = tx.gather(&mut store, BATCH as u16, |_| {}) else {
            break;
        };
        if let Some(call) = frames.release() {
            call.signal();
        }
    }
    tx.arm();
}

/// Every connection ends with a reason, leaves nothing, and the next front end is served.
fn messages_in_any_order() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 1);
    drop(vm);
    bed.events.detached(1);
    let memory = Memory::new(&MemoryConfig::new(8 << 20)).unwrap();
    let guest = Guest::new(&memory, small().features, &small().guest).unwrap();
    let (files, mappings) = settled();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut closed, mut refused, mut ran) = (0, 0, 0);
    for round in 1..=200 {
        let mut connection = bed.connect();
        // With acknowledgements the first refusal is seen here; without them more messages are on
        // their way already.
        let all = Connection::usual_protocol();
        let protocol = if random.one_in(2) { all } else { all & !ProtocolFeatures::REPLY_ACK };
        connection.negotiate(small().features, protocol).unwrap();
        if random.one_in(2) {
            // A guest's available index may be anything after an earlier round.
            connection.start(&guest, &Start::default()).unwrap();
        }
        for _ in 0..random.below(60) {
            if step(&bed, &mut connection, &memory, &guest, &mut random).is_err() {
                break;
            }
            ran += usize::from(bed.port.status(Queue::TX).is_some());
        }
        work(&bed);
        drop(connection);
        let reason = bed.events.detached(1 + round);
        match reason.as_str() {
            "the front end closed the connection"
            | "the front end closed the connection without reading our answers" => closed += 1,
            reason if reason.contains(" was refused: ") => refused += 1,
            reason => panic!("round {round}: {reason}"),
        }
    }
    assert!(
        closed > 20 && refused > 20 && ran > 200,
        "{closed} left, {refused} were refused, {ran} steps with a ring: too little was tried"
    );
    eventually("no file left", || open_files().len() == files.len());
    assert_eq!(shared_mappings(), mappings);
    let mut vm = bed.vm(&small());
    bed.ping(&mut vm, 100);
}

/// Messages without pause cost a bounded share of a processor, and the guest's own frames still
/// pass.
fn a_flood_of_messages_is_paced() {
    let bed = Bed::server();
    let mut vm = bed.vm(&small());
    let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let message =
        raw::message(FrontendReq::SET_VRING_CALL, raw::VERSION, &raw::words(&[RX as u64]));
    vm.connection.set_timeout(Duration::from_millis(200)).unwrap();
    let start = Instant::now();
    let mut sent = 0u64;
    while start.elapsed() < Duration::from_secs(4) {
        if raw::send_bytes(vm.connection.stream(), &message, &[call.as_fd()]).is_ok() {
            sent += 1;
        }
        if sent.is_multiple_of(1000) {
            bed.ping(&mut vm, 1);
        }
    }
    // 4096 at once, then 2000 a second, and what the socket's buffer holds.
    assert!((6_000..16_000).contains(&sent), "{sent} messages in {:?}", start.elapsed());
    bed.ping(&mut vm, 10);
    assert_eq!(bed.status().attach_count, 1);
    let start = Instant::now();
    drop(bed);
    assert!(start.elapsed() < control_support::PROMPT, "stopped after {:?}", start.elapsed());
}

#[test]
fn disorder_and_floods() {
    messages_in_any_order();
    a_flood_of_messages_is_paced();
}

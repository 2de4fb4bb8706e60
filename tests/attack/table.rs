//! Attacks whose outcome is known: each is a named drop, a named detachment, a ring that rests, or
//! nothing.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering::{Relaxed, Release},
};

use butterfly_guest_driver::{
    Desc, RX, TX, VmConfig,
    raw::{self, FrontendReq, FrontendReq::*},
    ring::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE},
};
use butterfly_tests::{Station, features, wait::PATIENCE};
use butterfly_vhost::{
    net::{Features, NetHeader},
    ring::MAX_FRAME,
};
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::{
    switch::{Switch, dropped},
    villain::{END, Place, REGION, RING, Scene, config},
};

/// What the operator sees of an attack.
enum Outcome {
    /// This drop reason counts, and no other.
    Drop(&'static str),
    /// The guest is detached for this reason.
    Detach(&'static str),
    /// This ring rests (`broken`).
    Rests(&'static str),
    /// This ring does not run, for this reason.
    Stopped(&'static str, &'static str),
    /// It is allowed: nothing is counted, and the guest stays.
    Harmless,
}
use Outcome::{Detach, Drop, Harmless, Rests, Stopped};

type Attack = (&'static str, fn(&mut Scene<'_>), Outcome);

const LINUX: Features = features::LINUX;

fn d(addr: u64, len: u32, flags: u16, next: u16) -> Desc {
    Desc { addr, len, flags, next }
}

fn csum(gso_type: u8, gso_size: u16) -> NetHeader {
    NetHeader {
        flags: 1,
        gso_type,
        gso_size,
        csum_start: 34,
        csum_offset: 16,
        hdr_len: 54,
        num_buffers: 0,
    }
}

/// Into the transmit ring.
#[rustfmt::skip]
const SENDING: &[Attack] = &[
    ("a chain that is its own next", |s| { let len = s.place_frame(60); s.send(&[d(s.buffer, len, DESC_NEXT, 0)]) }, Drop("bad-chain")),
    ("a loop of two", |s| { let len = s.place_frame(60); s.send(&[d(s.buffer, len, DESC_NEXT, 1), d(s.buffer, 1, DESC_NEXT, 0)]) }, Drop("bad-chain")),
    ("a loop of empty descriptors", |s| s.send(&[d(s.buffer, 0, DESC_NEXT, 1), d(s.buffer, 0, DESC_NEXT, 0)]), Drop("bad-chain")),
    ("a next behind the table", |s| { let len = s.place_frame(60); s.send(&[d(s.buffer, len, DESC_NEXT, RING)]) }, Drop("bad-chain")),
    ("a next far behind the table", |s| s.send(&[d(s.buffer, 100, DESC_NEXT, u16::MAX)]), Drop("bad-chain")),
    ("a head behind the table", |s| s.offer(TX, RING), Drop("bad-chain")),
    ("a head far behind the table", |s| s.offer(TX, u16::MAX), Drop("bad-chain")),
    ("memory at address 0", |s| s.send(&[d(0, 100, 0, 0)]), Drop("bad-chain")),
    ("memory behind the last region", |s| s.send(&[d(END, 100, 0, 0)]), Drop("bad-chain")),
    ("one byte behind the last region", |s| s.send(&[d(END - 99, 100, 0, 0)]), Drop("bad-chain")),
    ("one byte in front of the first region", |s| s.send(&[d(END - 2 * REGION - 1, 100, 0, 0)]), Drop("bad-chain")),
    ("memory around the end of addresses", |s| s.send(&[d(u64::MAX - 50, 100, 0, 0)]), Drop("bad-chain")),
    ("a length of 4 GiB", |s| s.send(&[d(s.buffer, u32::MAX, 0, 0)]), Drop("oversized")),
    ("a second piece outside of memory", |s| { let len = s.place_frame(60); s.send(&[d(s.buffer, len, DESC_NEXT, 1), d(1, 8, 0, 0)]) }, Drop("bad-chain")),
    ("writable where readable is due", |s| { let len = s.place_frame(60); s.send(&[d(s.buffer, len, DESC_WRITE, 0)]) }, Drop("bad-chain")),
    ("writable behind readable", |s| { let len = s.place_frame(60); s.send(&[d(s.buffer, len, DESC_NEXT, 1), d(s.buffer, 8, DESC_WRITE, 0)]) }, Drop("bad-chain")),
    ("nothing", |s| s.send(&[d(s.buffer, 0, 0, 0)]), Drop("short")),
    ("half a header", |s| s.send(&[d(s.buffer, 11, 0, 0)]), Drop("short")),
    ("a header alone", |s| s.send(&[d(s.buffer, 12, 0, 0)]), Drop("short")),
    ("half an Ethernet header", |s| s.send(&[d(s.buffer, 25, 0, 0)]), Drop("short")),
    ("one byte too long", |s| { s.place_frame(60); s.send(&[d(s.buffer, 12 + MAX_FRAME + 1, 0, 0)]) }, Drop("oversized")),
    ("too long in pieces", |s| { s.place_frame(60); s.send(&[d(s.buffer, 40000, DESC_NEXT, 1), d(s.buffer, 40000, 0, 0)]) }, Drop("oversized")),
    ("a table of 17 bytes", |s| { let len = s.place_frame(60); let b = s.buffer; s.send_table(&[d(b, len, 0, 0)], 1, 0) }, Drop("bad-chain")),
    ("a table of no bytes", |s| { let len = s.place_frame(60); let b = s.buffer; s.send_table(&[d(b, len, 0, 0)], -16, 0) }, Drop("bad-chain")),
    ("a table with NEXT", |s| { let len = s.place_frame(60); let b = s.buffer; s.send_table(&[d(b, len, 0, 0)], 0, DESC_NEXT) }, Drop("bad-chain")),
    ("a table in a table", |s| { let b = s.buffer; s.send_table(&[d(b + (64 << 10), 16, DESC_INDIRECT, 0)], 0, 0) }, Drop("bad-chain")),
    ("a next behind an indirect table", |s| { let len = s.place_frame(60); let b = s.buffer; s.send_table(&[d(b, len, DESC_NEXT, 1)], 0, 0) }, Drop("bad-chain")),
    ("a loop in a table", |s| { let b = s.buffer; s.send_table(&[d(b, 100, DESC_NEXT, 1), d(b, 1, DESC_NEXT, 0)], 0, 0) }, Drop("bad-chain")),
    ("a table outside of memory", |s| s.send(&[d(END, 64, DESC_INDIRECT, 0)]), Drop("bad-chain")),
    ("a table that ends outside of memory", |s| s.send(&[d(END - 8, 64, DESC_INDIRECT, 0)]), Drop("bad-chain")),
    ("a table of 4 GiB", |s| s.send(&[d(s.buffer, !15, DESC_INDIRECT, 0)]), Drop("short")),
    ("1,100 descriptors", |s| {
        let (len, b) = (s.place_frame(60), s.buffer);
        let all: Vec<Desc> = (1..=1100).map(|next| d(b, if next == 1 { len } else { 1 }, if next == 1100 { 0 } else { DESC_NEXT }, next)).collect();
        s.send_table(&all, 0, 0);
    }, Drop("bad-chain")),
    ("an index one too far", |s| { s.ring(TX).avail_idx().store(RING + 1, Release); s.kick(TX) }, Rests("tx")),
    ("an index that goes back", |s| { s.ring(TX).avail_idx().store(u16::MAX, Release); s.kick(TX) }, Rests("tx")),
    ("an index half way round", |s| { s.ring(TX).avail_idx().store(0x8000, Release); s.kick(TX) }, Rests("tx")),
    // What virtio-net headers say.
    ("a checksum behind the frame", |s| s.send_tcp(NetHeader { csum_start: 9000, ..csum(0, 0) }, 100), Drop("bad-offload")),
    ("a checksum that is not where it starts", |s| s.send_tcp(NetHeader { csum_start: 33, ..csum(0, 0) }, 100), Drop("bad-offload")),
    ("a checksum in the address", |s| s.send_tcp(NetHeader { csum_start: 0, csum_offset: 0, ..csum(0, 0) }, 100), Drop("bad-offload")),
    ("a checksum around the end", |s| s.send_tcp(NetHeader { csum_start: u16::MAX, csum_offset: u16::MAX, ..csum(0, 0) }, 100), Drop("bad-offload")),
    ("UDP's checksum in TCP", |s| s.send_tcp(NetHeader { csum_offset: 6, ..csum(0, 0) }, 100), Drop("bad-offload")),
    ("segments without a checksum", |s| s.send_tcp(NetHeader { flags: 0, ..csum(1, 500) }, 1400), Drop("bad-offload")),
    ("segments of no bytes", |s| s.send_tcp(csum(1, 0), 1400), Drop("bad-offload")),
    ("segments of one byte", |s| s.send_tcp(csum(1, 1), 1400), Drop("bad-offload")),
    ("segments longer than the frame", |s| s.send_tcp(csum(1, u16::MAX), 1400), Drop("bad-offload")),
    ("IPv6 segments of IPv4", |s| s.send_tcp(csum(4, 500), 1400), Drop("bad-offload")),
    ("UDP fragments, never offered", |s| s.send_tcp(csum(3, 500), 1400), Drop("bad-offload")),
    ("segments of an unknown kind", |s| s.send_tcp(csum(0x7f, 500), 1400), Drop("bad-offload")),
    ("ECN without segments", |s| s.send_tcp(csum(0x80, 500), 1400), Drop("bad-offload")),
    ("a checksum in what is not IP", |s| { let mut f = s.frame(100); f[12] = 0x88; s.vm.guest.send(&f, csum(0, 0)).expect("room") }, Drop("bad-offload")),
    ("a header length that lies", |s| s.send_tcp(NetHeader { hdr_len: u16::MAX, ..csum(1, 500) }, 1400), Harmless),
    ("a number of buffers when sending", |s| s.send_tcp(NetHeader { num_buffers: 999, ..csum(0, 0) }, 100), Harmless),
    // What is allowed.
    ("one buffer many times", |s| { let len = s.place_frame(60); s.send(&[d(s.buffer, len, DESC_NEXT, 1), d(s.buffer, 40, DESC_NEXT, 2), d(s.buffer, 40, 0, 0)]) }, Harmless),
    ("a frame across regions", |s| {
        let frame = [&[0; 12][..], &s.frame(200)].concat();
        s.vm.guest.memory().write(END - REGION - 100, &frame).expect("in memory");
        s.send(&[d(END - REGION - 100, frame.len() as u32, 0, 0)]);
    }, Harmless),
    ("the ring itself as a frame", |s| { let ring = s.ring(TX).addr(); s.send(&[d(ring.desc, 1024, 0, 0)]) }, Drop("bad-offload")),
    ("kicks without pause", |s| for _ in 0..20_000 { s.kick(TX) }, Harmless),
];

/// Into the receive ring, before the sound guest sends.
#[rustfmt::skip]
const RECEIVING: &[Attack] = &[
    ("readable where writable is due", |s| { let b = s.buffer; s.receive(d(b, 4096, 0, 0), 100) }, Drop("rx-bad-chain")),
    ("a buffer behind memory", |s| s.receive(d(END, 4096, DESC_WRITE, 0), 100), Drop("rx-bad-chain")),
    ("a buffer that ends behind memory", |s| s.receive(d(END - 4095, 4096, DESC_WRITE, 0), 100), Drop("rx-bad-chain")),
    ("a buffer around the end of addresses", |s| s.receive(d(u64::MAX - 100, 4096, DESC_WRITE, 0), 100), Drop("rx-bad-chain")),
    ("a buffer of 4 GiB", |s| { let b = s.buffer; s.receive(d(b, u32::MAX, DESC_WRITE, 0), 100) }, Drop("rx-bad-chain")),
    ("a loop of buffers", |s| { let b = s.buffer; s.receive(d(b, 1, DESC_WRITE | DESC_NEXT, 0), 100) }, Drop("rx-bad-chain")),
    ("a loop of empty buffers", |s| { let b = s.buffer; s.receive(d(b, 0, DESC_WRITE | DESC_NEXT, 3), 100) }, Drop("rx-bad-chain")),
    ("a next buffer behind the table", |s| { let b = s.buffer; s.receive(d(b, 10, DESC_WRITE | DESC_NEXT, RING), 100) }, Drop("rx-bad-chain")),
    ("a buffer of no bytes", |s| { let b = s.buffer; s.receive(d(b, 0, DESC_WRITE, 0), 100) }, Drop("rx-too-large")),
    ("a buffer shorter than the header", |s| { let b = s.buffer; s.receive(d(b, 11, DESC_WRITE, 0), 100) }, Drop("rx-too-large")),
    ("a ring of tiny buffers", |s| { let b = s.buffer; s.receive(d(b, 16, DESC_WRITE, 0), 1500) }, Drop("rx-too-large")),
    ("heads behind the table", |s| { let ring = s.ring(RX); (0..RING).for_each(|at| ring.avail_entry(at).store(RING, Relaxed)); s.feed(100) }, Drop("rx-bad-chain")),
    ("an indirect table as a loop", |s| { let b = s.buffer; s.write(0, &d(b, 4, DESC_WRITE | DESC_NEXT, 0).to_bytes()); s.receive(d(b, 16, DESC_INDIRECT, 0), 100) }, Drop("rx-bad-chain")),
    ("not reading", |s| for _ in 0..RING + 40 { s.feed(1000) }, Drop("ring-full")),
    ("an index too far", |s| { s.ring(RX).avail_idx().store(RING * 2, Release); s.feed(100) }, Rests("rx")),
    ("a disabled ring", |s| { s.vm.connection.enable(RX, false).expect("it is disabled"); s.feed(100) }, Drop("not-attached")),
    ("all buffers the same", |s| { let b = s.buffer; s.receive(d(b, 2048, DESC_WRITE, 0), 1500) }, Harmless),
    ("the used ring as a buffer", |s| { let used = s.ring(RX).addr().used; s.receive(d(used, 256, DESC_WRITE, 0), 100) }, Harmless),
];

fn send(s: &Scene<'_>, request: FrontendReq, body: &[u8], fds: &[BorrowedFd<'_>]) {
    // It may be refused while it is being sent.
    let _ =
        raw::send_bytes(s.vm.connection.stream(), &raw::message(request, raw::VERSION, body), fds);
}

fn bytes(s: &Scene<'_>, bytes: &[u8]) {
    let _ = raw::send_bytes(s.vm.connection.stream(), bytes, &[]);
}

fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("hostile", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    rustix::fs::ftruncate(&fd, size).expect("a size");
    fd
}

/// Blocking, and at its largest value: who writes to it waits.
pub fn full_eventfd() -> OwnedFd {
    let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).expect("room for it");
    fd
}

fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut body = [(regions.len() as u32).to_ne_bytes(), [0; 4]].concat();
    regions.iter().for_each(|region| body.extend(raw::words(region)));
    body
}

fn kick_as(s: &Scene<'_>, fd: &impl AsFd) {
    send(s, SET_VRING_KICK, &raw::words(&[TX as u64]), &[fd.as_fd()]);
}

fn call_as(s: &Scene<'_>, fd: &impl AsFd) {
    send(s, SET_VRING_CALL, &raw::words(&[RX as u64]), &[fd.as_fd()]);
}

fn addresses(s: &Scene<'_>, index: u32, [desc, used, avail]: [u64; 3]) {
    send(
        s,
        SET_VRING_ADDR,
        &[raw::vring_state(index, 0), raw::words(&[desc, used, avail, 0])].concat(),
        &[],
    );
}

/// On the control channel, and with what was handed over there.
#[rustfmt::skip]
const CONTROLLING: &[Attack] = &[
    ("truncated memory, then a frame", |s| {
        let regions = s.vm.guest.memory().regions();
        s.place_frame(100);
        // The buffer is in the first region, the file of the other one is cut.
        let last = regions.last().expect("a region");
        last.file.set_len(0).expect("it is cut");
        s.send(&[d(last.guest_addr + 4096, 200, 0, 0)]);
    }, Detach("guest memory was truncated")),
    ("truncated rings", |s| {
        let regions = s.vm.guest.memory().regions();
        s.kick(TX);
        regions.first().expect("a region").file.set_len(0).expect("it is cut");
        for _ in 0..4 { s.kick(TX); s.feed(200); }
    }, Detach("guest memory was truncated")),
    ("truncated receive buffers", |s| {
        let last = s.vm.guest.memory().regions().pop().expect("a region");
        last.file.set_len(4096).expect("it is cut");
        s.receive(d(last.guest_addr + 8192, 4096, DESC_WRITE, 0), 1000);
    }, Detach("guest memory was truncated")),
    ("garbage", |s| bytes(s, b"GET / HTTP/1.1\r\n\r\n"), Detach("is not a vhost-user request")),
    ("ones", |s| bytes(s, &[0xff; 64]), Detach("is not a vhost-user request")),
    ("an unknown request", |s| bytes(s, &raw::header(4711, raw::VERSION, 0)), Detach("request 4711 was refused")),
    ("a message of 4 GiB", |s| bytes(s, &raw::header(5, raw::VERSION, u32::MAX)), Detach("announced a SET_MEM_TABLE of 4294967295 bytes")),
    ("half a message", |s| bytes(s, &raw::header(2, raw::VERSION, 8)), Detach("half a message and then nothing more")),
    ("leaving within a message", |s| { bytes(s, &raw::header(2, raw::VERSION, 8)); let _ = s.vm.connection.stream().shutdown(std::net::Shutdown::Both); }, Detach("in the middle of a message")),
    ("a hot disconnect", |s| { s.place_frame(60); for _ in 0..RING { s.offer(TX, 0) } let _ = s.vm.connection.stream().shutdown(std::net::Shutdown::Both); }, Detach("closed the connection")),
    ("features never offered", |s| send(s, SET_FEATURES, &raw::words(&[u64::MAX]), &[]), Detach("were not offered")),
    ("a third ring", |s| send(s, SET_VRING_NUM, &raw::vring_state(2, 64), &[]), Detach("there is no ring 2")),
    ("a ring of 0", |s| send(s, SET_VRING_NUM, &raw::vring_state(0, 0), &[]), Detach("a ring of 0 descriptors")),
    ("a ring of 100", |s| send(s, SET_VRING_NUM, &raw::vring_state(0, 100), &[]), Detach("a ring of 100 descriptors")),
    ("a ring of 65536", |s| send(s, SET_VRING_NUM, &raw::vring_state(1, 65536), &[]), Detach("a ring of 65536 descriptors")),
    ("a position of 17 bits", |s| send(s, SET_VRING_BASE, &raw::vring_state(1, 1 << 16), &[]), Detach("a ring at 65536")),
    ("a pipe as kick", |s| kick_as(s, &rustix::pipe::pipe().expect("a pipe").0), Detach("kick descriptor")),
    ("a socket as kick", |s| kick_as(s, &UnixStream::pair().expect("sockets").0), Detach("kick descriptor")),
    ("a file as kick", |s| kick_as(s, &File::open("/etc/passwd").expect("a file")), Detach("kick descriptor")),
    ("an epoll as kick", |s| kick_as(s, &epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll")), Detach("kick descriptor")),
    ("a pipe as call", |s| call_as(s, &rustix::pipe::pipe().expect("a pipe").1), Detach("call descriptor")),
    ("a socket as call", |s| call_as(s, &UnixStream::pair().expect("sockets").0), Detach("call descriptor")),
    ("memory as call", |s| call_as(s, &memfd(4096)), Detach("call descriptor")),
    ("an epoll as call", |s| call_as(s, &epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll")), Detach("call descriptor")),
    ("a call that would block", |s| { let full = full_eventfd(); call_as(s, &full); s.vm.connection.sync().expect("an answer"); for _ in 0..10 { s.feed(100) } }, Harmless),
    ("a kick that is always there", |s| { let len = s.place_frame(60); s.send(&[d(s.buffer, len, 0, 0)]); let full = full_eventfd(); kick_as(s, &full) }, Harmless),
    ("memory from a pipe", |s| send(s, SET_MEM_TABLE, &table(&[[0, 4096, 0, 0]]), &[rustix::pipe::pipe().expect("a pipe").0.as_fd()]), Detach("is not backed by a regular file")),
    ("memory from procfs", |s| send(s, SET_MEM_TABLE, &table(&[[0, 4096, 0, 0]]), &[File::open("/proc/self/maps").expect("procfs").as_fd()]), Detach("that may make the switch wait")),
    ("memory longer than its file", |s| send(s, SET_MEM_TABLE, &table(&[[0, 8192, 0, 0]]), &[memfd(8191).as_fd()]), Detach("the file is too small")),
    ("regions that overlap", |s| { let f = memfd(1 << 20); send(s, SET_MEM_TABLE, &table(&[[0, 8192, 0, 0], [4096, 8192, 1 << 30, 0]]), &[f.as_fd(), f.as_fd()]) }, Detach("memory regions overlap")),
    ("more memory than there are addresses", |s| send(s, SET_MEM_TABLE, &table(&[[0, 1 << 46, 0, 0]]), &[memfd(1 << 46).as_fd()]), Detach("bytes of guest memory: at most")),
    ("other memory under running rings", |s| send(s, SET_MEM_TABLE, &table(&[[0, 4096, 0, 0]]), &[memfd(4096).as_fd()]), Stopped("tx", "is outside of the guest's memory")),
    ("a ring outside of memory", |s| addresses(s, 1, [64, 64, 64]), Stopped("tx", "is outside of the guest's memory")),
    ("a ring that ends outside of memory", |s| {
        let last = s.vm.guest.memory().regions().pop().expect("a region");
        let end = last.user_addr + last.size;
        addresses(s, 1, [end - 16, end - 4, end - 2]);
    }, Stopped("tx", "is not inside one memory region")),
    ("a crooked used ring", |s| { let at = s.ring(RX).user_addr(); addresses(s, 0, [at.desc, at.used + 4, at.avail + 1]) }, Detach("SET_VRING_ADDR was refused")),
    ("a ring over another", |s| { let at = s.ring(RX).user_addr(); addresses(s, 1, [at.desc, at.used, at.avail]) }, Drop("bad-chain")),
    ("a ring that grows while it runs", |s| send(s, SET_VRING_NUM, &raw::vring_state(1, 32768), &[]), Harmless),
    ("a log that is too short", |s| send(s, SET_LOG_BASE, &raw::words(&[8192, 0]), &[memfd(4096).as_fd()]), Detach("the dirty log needs")),
    ("other features under traffic", |s| {
        s.place_frame(60);
        for features in [Features::NONE, LINUX, Features::VERSION_1] {
            s.send(&[d(s.buffer, 72, 0, 0)]);
            send(s, SET_FEATURES, &raw::words(&[features.with(Features::PROTOCOL_FEATURES).0]), &[]);
        }
    }, Harmless),
    ("not reading answers", |s| {
        let _ = s.vm.connection.set_timeout(std::time::Duration::from_secs(5));
        let ask = raw::message(GET_FEATURES, raw::VERSION, &[]);
        while raw::send_bytes(s.vm.connection.stream(), &ask, &[]).is_ok() {}
    }, Detach("does not read our answers")),
];

/// Runs the whole table. Returns the number of attacks.
pub fn run(switch: &Switch, place: &Place, feeder: &mut Station) -> usize {
    let (mut count, mut failed) = (0, Vec::new());
    let mut attempt = |config: &VmConfig, attack: &Attack| {
        count += 1;
        // All of them, even if one fails: its message says what came instead.
        let outcome = catch_unwind(AssertUnwindSafe(|| one(switch, place, feeder, config, attack)));
        if outcome.is_err() {
            failed.push(attack.0);
        }
    };
    for attack in SENDING.iter().chain(RECEIVING).chain(CONTROLLING) {
        attempt(&config(LINUX), attack);
    }
    // Without features they are not allowed to use.
    let plain = config(Features::VERSION_1);
    let single: Attack = (
        "a table that was not negotiated",
        |s| {
            let len = s.place_frame(60);
            let b = s.buffer;
            s.send_table(&[d(b, len, 0, 0)], 0, 0);
        },
        Drop("bad-chain"),
    );
    let small: Attack = (
        "a buffer too small for a frame",
        |s| {
            let b = s.buffer;
            s.receive(d(b, 100, DESC_WRITE, 0), 1000)
        },
        Drop("rx-too-large"),
    );
    for attack in [&single, &small] {
        attempt(&plain, attack);
    }
    assert!(
        failed.is_empty(),
        "{} of {count} attacks did not have their outcome: {failed:?}",
        failed.len()
    );
    count
}

fn one(switch: &Switch, place: &Place, feeder: &mut Station, config: &VmConfig, attack: &Attack) {
    let (name, act, outcome) = attack;
    // What was sent to the villain before this one may still be on its way, and is counted when it
    // finds nobody there.
    assert!(
        feeder.vm.guest.drain(PATIENCE).expect("a sound ring"),
        "{name:?}: the sound guest's frames are not taken"
    );
    let before = switch.show(&place.id);
    let mut scene = Scene::open(place, feeder, config);
    act(&mut scene);
    let fail = |what: &str, show: &butterfly_api::proto::NicShow| -> ! {
        let queues: Vec<String> = show.queues.iter().map(ToString::to_string).collect();
        panic!(
            "attack {name:?}: {what}; drops before {:?}, now {:?}; attached {}, last detach {:?}, queues {queues:?}",
            dropped(&before),
            dropped(show),
            show.attached(),
            show.last_detach_reason(),
        )
    };
    let counted = |show: &butterfly_api::proto::NicShow| {
        let old = dropped(&before);
        let mut moved: Vec<String> = dropped(show)
            .into_iter()
            .filter(|(reason, n)| old.get(reason) != Some(n))
            .map(|(reason, _)| reason)
            .collect();
        moved.sort();
        moved
    };
    let queue = |show: &butterfly_api::proto::NicShow,
                 which: &str,
                 holds: fn(&butterfly_api::proto::nic_show::Queue) -> bool| {
        show.queues.iter().any(|queue| queue.name() == which && holds(queue))
    };
    match outcome {
        Drop(reason) => {
            let show = switch.wait(&place.id, |show| counted(show) == [*reason]);
            let show = show.unwrap_or_else(|show| {
                fail(&format!("is not the drop {reason} and nothing else"), &show)
            });
            if !show.attached() {
                fail("the guest was detached for it", &show);
            }
        }
        Detach(reason) => {
            let gone = switch.wait(&place.id, |show| {
                show.attach_count() > before.attach_count() && !show.attached()
            });
            let show = gone.unwrap_or_else(|show| fail("the guest was not detached", &show));
            if !show.last_detach_reason().contains(reason) {
                fail(&format!("detached for another reason than {reason:?}"), &show);
            }
        }
        Rests(ring) => {
            let rests = switch.wait(&place.id, |show| queue(show, ring, |queue| queue.broken()));
            rests.unwrap_or_else(|show| fail(&format!("the {ring} ring does not rest"), &show));
        }
        Stopped(ring, why) => {
            let found = |show: &butterfly_api::proto::NicShow| {
                show.queues.iter().any(|queue| {
                    queue.name() == *ring && !queue.running() && queue.trouble().contains(why)
                })
            };
            let stopped = switch.wait(&place.id, found);
            stopped.unwrap_or_else(|show| {
                fail(
                    &format!("the {ring} ring runs, or stopped for another reason than {why:?}"),
                    &show,
                )
            });
        }
        Harmless => {
            scene
                .vm
                .connection
                .sync()
                .unwrap_or_else(|error| fail(&format!("{error}"), &switch.show(&place.id)));
            // Everything that was offered is worked off.
            let worked = switch.wait(&place.id, |show| {
                show.queues.iter().any(|queue| {
                    queue.name() == "tx" && queue.used() == queue.guest_avail() && !queue.broken()
                })
            });
            let show = worked.unwrap_or_else(|show| fail("its frames are not taken", &show));
            if !counted(&show).is_empty() {
                fail("is allowed and was counted as a drop", &show);
            }
        }
    }
    let expected = !matches!(outcome, Detach(_));
    scene.vm.connection.disconnect();
    if expected {
        let gone = switch.wait(&place.id, |show| !show.attached());
        gone.unwrap_or_else(|show| fail("the guest left and is still there", &show));
    }
}

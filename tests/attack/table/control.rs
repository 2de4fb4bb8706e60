//! Attacks on the control channel: malformed requests, and descriptors that are not what they
//! should be.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::net::UnixStream,
};

use butterfly_guest_driver::{
    RX, TX,
    raw::{self, FrontendReq, FrontendReq::*},
    ring::DESC_WRITE,
};
use butterfly_tests::features::LINUX;
use butterfly_vhost::net::Features;
use rustix::event::epoll;

use super::{
    Attack,
    Outcome::{Detach, Drop, Harmless, Stopped},
    d,
};
use crate::villain::{RING, Scene, full_eventfd};

fn send(s: &Scene<'_>, request: FrontendReq, body: &[u8], fds: &[BorrowedFd<'_>]) {
    // An error is expected: the daemon may detach the guest while this is being sent.
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

/// Attacks by requests on the control channel, and by the descriptors passed with them.
pub const ATTACKS: &[Attack] = &[
    (
        "truncated memory, then a frame",
        |s| {
            let regions = s.vm.guest.memory().regions();
            s.place_frame(100);
            // The buffer is in the first region, the file of the other one is cut.
            let last = regions.last().expect("a region");
            last.file.set_len(0).expect("it is cut");
            s.send(&[d(last.guest_addr + 4096, 200, 0, 0)]);
        },
        Detach("guest memory was truncated"),
    ),
    (
        "truncated rings",
        |s| {
            let regions = s.vm.guest.memory().regions();
            s.kick(TX);
            regions.first().expect("a region").file.set_len(0).expect("it is cut");
            for _ in 0..4 {
                s.kick(TX);
                s.feed(200);
            }
        },
        Detach("guest memory was truncated"),
    ),
    (
        "truncated receive buffers",
        |s| {
            let last = s.vm.guest.memory().regions().pop().expect("a region");
            last.file.set_len(4096).expect("it is cut");
            s.receive(d(last.guest_addr + 8192, 4096, DESC_WRITE, 0), 1000);
        },
        Detach("guest memory was truncated"),
    ),
    ("garbage", |s| bytes(s, b"GET / HTTP/1.1\r\n\r\n"), Detach("is not a vhost-user request")),
    ("ones", |s| bytes(s, &[0xff; 64]), Detach("is not a vhost-user request")),
    (
        "an unknown request",
        |s| bytes(s, &raw::header(4711, raw::VERSION, 0)),
        Detach("request 4711 was refused"),
    ),
    (
        "a message of 4 GiB",
        |s| bytes(s, &raw::header(5, raw::VERSION, u32::MAX)),
        Detach("announced a SET_MEM_TABLE of 4294967295 bytes"),
    ),
    (
        "half a message",
        |s| bytes(s, &raw::header(2, raw::VERSION, 8)),
        Detach("half a message and then nothing more"),
    ),
    (
        "leaving within a message",
        |s| {
            bytes(s, &raw::header(2, raw::VERSION, 8));
            let _ = s.vm.connection.stream().shutdown(std::net::Shutdown::Both);
        },
        Detach("in the middle of a message"),
    ),
    (
        "a hot disconnect",
        |s| {
            s.place_frame(60);
            for _ in 0..RING {
                s.offer(TX, 0)
            }
            let _ = s.vm.connection.stream().shutdown(std::net::Shutdown::Both);
        },
        Detach("closed the connection"),
    ),
    (
        "features never offered",
        |s| send(s, SET_FEATURES, &raw::words(&[u64::MAX]), &[]),
        Detach("were not offered"),
    ),
    (
        "a ring beyond the last",
        |s| send(s, SET_VRING_NUM, &raw::vring_state(32, 64), &[]),
        Detach("there is no ring 32"),
    ),
    (
        "a ring of 0",
        |s| send(s, SET_VRING_NUM, &raw::vring_state(0, 0), &[]),
        Detach("a ring of 0 descriptors"),
    ),
    (
        "a ring of 100",
        |s| send(s, SET_VRING_NUM, &raw::vring_state(0, 100), &[]),
        Detach("a ring of 100 descriptors"),
    ),
    (
        "a ring of 65536",
        |s| send(s, SET_VRING_NUM, &raw::vring_state(1, 65536), &[]),
        Detach("a ring of 65536 descriptors"),
    ),
    (
        "a position of 17 bits",
        |s| send(s, SET_VRING_BASE, &raw::vring_state(1, 1 << 16), &[]),
        Detach("a ring at 65536"),
    ),
    (
        "a pipe as kick",
        |s| kick_as(s, &rustix::pipe::pipe().expect("a pipe").0),
        Detach("kick descriptor"),
    ),
    (
        "a socket as kick",
        |s| kick_as(s, &UnixStream::pair().expect("sockets").0),
        Detach("kick descriptor"),
    ),
    (
        "a file as kick",
        |s| kick_as(s, &File::open("/etc/passwd").expect("a file")),
        Detach("kick descriptor"),
    ),
    (
        "an epoll as kick",
        |s| kick_as(s, &epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll")),
        Detach("kick descriptor"),
    ),
    (
        "a pipe as call",
        |s| call_as(s, &rustix::pipe::pipe().expect("a pipe").1),
        Detach("call descriptor"),
    ),
    (
        "a socket as call",
        |s| call_as(s, &UnixStream::pair().expect("sockets").0),
        Detach("call descriptor"),
    ),
    ("memory as call", |s| call_as(s, &memfd(4096)), Detach("call descriptor")),
    (
        "an epoll as call",
        |s| call_as(s, &epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll")),
        Detach("call descriptor"),
    ),
    (
        "a call that would block",
        |s| {
            call_as(s, &full_eventfd());
            s.vm.connection.sync().expect("an answer");
            for _ in 0..10 {
                s.feed(100)
            }
        },
        Harmless,
    ),
    (
        "a kick that is always there",
        |s| {
            s.send(&[d(s.buffer, s.place_frame(60), 0, 0)]);
            kick_as(s, &full_eventfd())
        },
        Harmless,
    ),
    (
        "memory from a pipe",
        |s| {
            send(
                s,
                SET_MEM_TABLE,
                &table(&[[0, 4096, 0, 0]]),
                &[rustix::pipe::pipe().expect("a pipe").0.as_fd()],
            )
        },
        Detach("is not backed by a regular file"),
    ),
    (
        "memory from procfs",
        |s| {
            send(
                s,
                SET_MEM_TABLE,
                &table(&[[0, 4096, 0, 0]]),
                &[File::open("/proc/self/maps").expect("procfs").as_fd()],
            )
        },
        Detach("that may make the switch wait"),
    ),
    (
        "memory longer than its file",
        |s| send(s, SET_MEM_TABLE, &table(&[[0, 8192, 0, 0]]), &[memfd(8191).as_fd()]),
        Detach("the file is too small"),
    ),
    (
        "regions that overlap",
        |s| {
            let f = memfd(1 << 20);
            send(
                s,
                SET_MEM_TABLE,
                &table(&[[0, 8192, 0, 0], [4096, 8192, 1 << 30, 0]]),
                &[f.as_fd(), f.as_fd()],
            )
        },
        Detach("memory regions overlap"),
    ),
    (
        "more memory than there are addresses",
        |s| send(s, SET_MEM_TABLE, &table(&[[0, 1 << 46, 0, 0]]), &[memfd(1 << 46).as_fd()]),
        Detach("bytes of guest memory: at most"),
    ),
    (
        "other memory under running rings",
        |s| send(s, SET_MEM_TABLE, &table(&[[0, 4096, 0, 0]]), &[memfd(4096).as_fd()]),
        Stopped("tx", "is outside of the guest's memory"),
    ),
    (
        "a ring outside of memory",
        |s| addresses(s, 1, [64, 64, 64]),
        Stopped("tx", "is outside of the guest's memory"),
    ),
    (
        "a ring that ends outside of memory",
        |s| {
            let last = s.vm.guest.memory().regions().pop().expect("a region");
            let end = last.user_addr + last.size;
            addresses(s, 1, [end - 16, end - 4, end - 2]);
        },
        Stopped("tx", "is not inside one memory region"),
    ),
    (
        "a crooked used ring",
        |s| {
            let at = s.ring(RX).user_addr();
            addresses(s, 0, [at.desc, at.used + 4, at.avail + 1])
        },
        Detach("SET_VRING_ADDR was refused"),
    ),
    (
        "a ring over another",
        |s| {
            let at = s.ring(RX).user_addr();
            addresses(s, 1, [at.desc, at.used, at.avail])
        },
        Drop("bad-chain"),
    ),
    (
        "a ring that grows while it runs",
        |s| send(s, SET_VRING_NUM, &raw::vring_state(1, 32768), &[]),
        Harmless,
    ),
    (
        "a log that is too short",
        |s| send(s, SET_LOG_BASE, &raw::words(&[8192, 0]), &[memfd(4096).as_fd()]),
        Detach("the dirty log needs"),
    ),
    (
        "other features under traffic",
        |s| {
            s.place_frame(60);
            for features in [Features::NONE, LINUX, Features::VERSION_1] {
                s.send(&[d(s.buffer, 72, 0, 0)]);
                send(
                    s,
                    SET_FEATURES,
                    &raw::words(&[features.with(Features::PROTOCOL_FEATURES).0]),
                    &[],
                );
            }
        },
        Harmless,
    ),
    (
        "not reading answers",
        |s| {
            let _ = s.vm.connection.set_timeout(std::time::Duration::from_secs(5));
            let ask = raw::message(GET_FEATURES, raw::VERSION, &[]);
            while raw::send_bytes(s.vm.connection.stream(), &ask, &[]).is_ok() {}
        },
        Detach("does not read our answers"),
    ),
];

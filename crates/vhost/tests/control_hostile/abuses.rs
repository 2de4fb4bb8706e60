//! The abuses: requests that no sound front end sends, and the reasons for detaching their senders.

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use butterfly_guest_driver::{
    Connection, GuestConfig, VmConfig,
    raw::{self, FrontendReq, FrontendReq::*},
};
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, ftruncate, memfd_create},
};

const V: u32 = raw::VERSION;
const ACK: u32 = raw::VERSION | raw::NEED_REPLY;

/// Returns a VM with short rings.
pub fn small() -> VmConfig {
    VmConfig { guest: GuestConfig::default().rings(256), ..VmConfig::default() }
}

fn file(size: u64) -> OwnedFd {
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, size).unwrap();
    file
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// Returns the body of SET_MEM_TABLE.
fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut body = [(regions.len() as u32).to_ne_bytes(), [0; 4]].concat();
    body.extend(raw::words(regions.as_flattened()));
    body
}

/// Returns the body of ADD_MEM_REG and of REM_MEM_REG.
fn slot(region: [u64; 4]) -> Vec<u8> {
    raw::words(&[0, region[0], region[1], region[2], region[3]])
}

fn vring_addr(index: u32, flags: u32, [desc, used, avail, log]: [u64; 4]) -> Vec<u8> {
    [[index.to_ne_bytes(), flags.to_ne_bytes()].concat(), raw::words(&[desc, used, avail, log])]
        .concat()
}

/// A front end that breaks the rules.
pub struct Hostile {
    /// The connection to the device.
    pub connection: Connection,
}

impl Hostile {
    fn bytes(&self, bytes: &[u8]) {
        // An error is expected: the device may have closed the connection already.
        let _ = raw::send_bytes(self.connection.stream(), bytes, &[]);
    }

    fn send(&self, request: FrontendReq, body: &[u8], fds: &[BorrowedFd<'_>]) {
        self.send_flags(request, V, body, fds);
    }

    fn send_flags(&self, request: FrontendReq, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        let _ = raw::send_bytes(self.connection.stream(), &raw::message(request, flags, body), fds);
    }

    /// Negotiates features as a well-behaved front end does.
    fn negotiate(&mut self) {
        self.connection.negotiate(small().features, Connection::usual_protocol()).unwrap();
        self.connection.set_features(small().features).unwrap();
    }
}

/// An abuse: its name, its deed, and a part of the reason for which the front end is detached.
pub type Abuse = (&'static str, fn(&mut Hostile), &'static str);

const REGION: [u64; 4] = [0, 1 << 20, 0x7000_0000, 0];

/// Every abuse after which the device detaches the front end.
pub const ABUSES: &[Abuse] = &[
    // Not a message.
    (
        "garbage",
        |h| h.bytes(b"GET / HTTP/1.1\r\nHost: vnic\r\n\r\n"),
        "is not a vhost-user request (number 0x20544547,",
    ),
    ("zeroes", |h| h.bytes(&[0; 12]), "is not a vhost-user request"),
    ("ones", |h| h.bytes(&[0xff; 12]), "is not a vhost-user request"),
    ("a reply", |h| h.bytes(&raw::header(1, V | raw::REPLY, 0)), "is not a vhost-user request"),
    ("another version", |h| h.bytes(&raw::header(1, 2, 0)), "is not a vhost-user request"),
    ("reserved flags", |h| h.bytes(&raw::header(1, V | 16, 0)), "is not a vhost-user request"),
    ("request 0", |h| h.bytes(&raw::header(0, V, 0)), "request 0 was refused"),
    ("an unknown request", |h| h.bytes(&raw::header(4711, V, 0)), "request 4711 was refused"),
    // Half a message.
    (
        "half a header",
        |h| h.bytes(&raw::header(1, V, 0)[..7]),
        "half a message and then nothing more",
    ),
    (
        "a header without its body",
        |h| h.bytes(&raw::header(2, V, 8)),
        "half a message and then nothing more",
    ),
    (
        "half a body",
        |h| h.bytes(&raw::message(SET_FEATURES, V, &[0; 8])[..17]),
        "half a message and then nothing more",
    ),
    (
        "one byte at a time, too slowly",
        |h| {
            for byte in raw::message(SET_FEATURES, V, &[0; 8]) {
                h.bytes(&[byte]);
                std::thread::sleep(Duration::from_millis(100));
            }
        },
        "half a message and then nothing more",
    ),
    (
        "leaving within a message",
        |h| {
            h.bytes(&raw::header(2, V, 8));
            h.connection.stream().shutdown(std::net::Shutdown::Write).unwrap();
        },
        "in the middle of a message",
    ),
    // Sizes.
    (
        "4 GiB",
        |h| h.bytes(&raw::header(5, V, u32::MAX)),
        "announced a SET_MEM_TABLE of 4294967295 bytes",
    ),
    (
        "a byte too much",
        |h| h.bytes(&raw::header(5, V, 4097)),
        "announced a SET_MEM_TABLE of 4097 bytes",
    ),
    (
        "a body where none is",
        |h| h.send(GET_FEATURES, &[0; 8], &[]),
        "GET_FEATURES was refused: its size",
    ),
    (
        "no body where one is",
        |h| h.send(SET_FEATURES, &[], &[]),
        "SET_FEATURES was refused: its size",
    ),
    (
        "a short body",
        |h| h.send(SET_VRING_ADDR, &[0; 39], &[]),
        "SET_VRING_ADDR was refused: its size",
    ),
    (
        "a long body",
        |h| h.send(SET_VRING_NUM, &[0; 4096], &[]),
        "SET_VRING_NUM was refused: its size",
    ),
    // Descriptors.
    (
        "a descriptor with a message that has none",
        |h| h.send(GET_FEATURES, &[], &[event().as_fd()]),
        "GET_FEATURES was refused: its size",
    ),
    (
        "32 descriptors",
        |h| {
            let e = event();
            h.send(SET_VRING_CALL, &raw::words(&[0]), &[e.as_fd(); 32])
        },
        "SET_VRING_CALL was refused: its size",
    ),
    ("33 descriptors", |h| many_fds(h, 33), "more than 32 descriptors"),
    ("253 descriptors", |h| many_fds(h, 253), "more than 32 descriptors"),
    (
        "descriptors with every byte",
        |h| {
            let e = event();
            for byte in raw::header(5, V, 4000) {
                let _ = raw::send_bytes(h.connection.stream(), &[byte], &[e.as_fd(); 8]);
            }
        },
        "more than 32 descriptors",
    ),
    (
        "a kick without its descriptor",
        |h| h.send(SET_VRING_KICK, &raw::words(&[0]), &[]),
        "SET_VRING_KICK was refused",
    ),
    (
        "a descriptor that is said to be missing",
        |h| h.send(SET_VRING_KICK, &raw::words(&[raw::NO_FD]), &[event().as_fd()]),
        "SET_VRING_KICK was refused",
    ),
    (
        "two kicks",
        |h| {
            let e = event();
            h.send(SET_VRING_KICK, &raw::words(&[0]), &[e.as_fd(), e.as_fd()])
        },
        "SET_VRING_KICK was refused",
    ),
    (
        "the socket itself as a kick",
        |h| {
            let s = h.connection.stream().try_clone().unwrap();
            h.send(SET_VRING_KICK, &raw::words(&[1]), &[s.as_fd()])
        },
        "not an eventfd but socket:",
    ),
    // Features.
    (
        "features that were not offered",
        |h| h.send(SET_FEATURES, &raw::words(&[1 << 23 | 1 << 34]), &[]),
        "were not offered: bit-23 ring-packed",
    ),
    (
        "all features",
        |h| h.send_flags(SET_FEATURES, ACK, &raw::words(&[u64::MAX]), &[]),
        "SET_FEATURES was refused: these features were not offered: ",
    ),
    (
        "protocol features that were not offered",
        |h| h.send(SET_PROTOCOL_FEATURES, &raw::words(&[1 << 9]), &[]),
        "these protocol features were not offered: 0x200",
    ),
    (
        "a request that was not negotiated",
        |h| h.send(GET_QUEUE_NUM, &[], &[]),
        "GET_QUEUE_NUM was refused: it was not negotiated",
    ),
    (
        "a memory slot that was not negotiated",
        |h| h.send(ADD_MEM_REG, &slot(REGION), &[file(1 << 20).as_fd()]),
        "ADD_MEM_REG was refused: it was not negotiated",
    ),
    (
        "another device's request",
        |h| h.send(CREATE_CRYPTO_SESSION, &[0; 8], &[]),
        "CREATE_CRYPTO_SESSION was refused",
    ),
    ("an IOMMU", |h| h.send(IOTLB_MSG, &[0; 32], &[]), "IOTLB_MSG was refused"),
    (
        "a display",
        |h| {
            let s = h.connection.stream().try_clone().unwrap();
            h.send(GPU_SET_SOCKET, &[], &[s.as_fd()])
        },
        "GPU_SET_SOCKET was refused: a vnic has no display",
    ),
    // Rings.
    ("ring 32", |h| h.send(SET_VRING_NUM, &raw::vring_state(32, 256), &[]), "there is no ring 32"),
    (
        "ring 4294967295",
        |h| h.send(GET_VRING_BASE, &raw::vring_state(u32::MAX, 0), &[]),
        "there is no ring 4294967295",
    ),
    (
        "a ring of 1000",
        |h| h.send(SET_VRING_NUM, &raw::vring_state(0, 1000), &[]),
        "a ring of 1000 descriptors",
    ),
    (
        "a ring of none",
        |h| h.send(SET_VRING_NUM, &raw::vring_state(0, 0), &[]),
        "a ring of 0 descriptors",
    ),
    (
        "a ring of 65536",
        |h| h.send(SET_VRING_NUM, &raw::vring_state(0, 65536), &[]),
        "a ring of 65536 descriptors",
    ),
    (
        "a position of 17 bits",
        |h| h.send(SET_VRING_BASE, &raw::vring_state(0, 65536), &[]),
        "a ring at 65536",
    ),
    (
        "a crooked descriptor table",
        |h| h.send(SET_VRING_ADDR, &vring_addr(0, 0, [8, 0, 0, 0]), &[]),
        "SET_VRING_ADDR was refused",
    ),
    (
        "unknown ring flags",
        |h| h.send(SET_VRING_ADDR, &vring_addr(0, 2, [0; 4]), &[]),
        "SET_VRING_ADDR was refused",
    ),
    (
        "enabled twice as much",
        |h| {
            h.negotiate();
            h.send(SET_VRING_ENABLE, &raw::vring_state(0, 2), &[])
        },
        "SET_VRING_ENABLE was refused",
    ),
    // Memory.
    ("no region", |h| h.send(SET_MEM_TABLE, &table(&[]), &[]), "SET_MEM_TABLE was refused"),
    (
        "33 regions",
        |h| h.send(SET_MEM_TABLE, &table(&[REGION; 33]), &[file(1 << 20).as_fd()]),
        "SET_MEM_TABLE was refused",
    ),
    (
        "more regions than descriptors",
        |h| h.send(SET_MEM_TABLE, &table(&[REGION; 2]), &[file(1 << 20).as_fd()]),
        "SET_MEM_TABLE was refused",
    ),
    (
        "fewer regions than descriptors",
        |h| {
            let f = file(1 << 20);
            h.send(SET_MEM_TABLE, &table(&[REGION]), &[f.as_fd(), f.as_fd()])
        },
        "SET_MEM_TABLE was refused",
    ),
    (
        "fewer regions than said",
        |h| {
            let mut body = table(&[REGION]);
            body[0] = 2;
            h.send(SET_MEM_TABLE, &body, &[file(1 << 20).as_fd()])
        },
        "SET_MEM_TABLE was refused",
    ),
    (
        "a region twice",
        |h| {
            let f = file(1 << 20);
            h.send(SET_MEM_TABLE, &table(&[REGION; 2]), &[f.as_fd(), f.as_fd()])
        },
        "memory regions overlap",
    ),
    (
        "a region twice after it was there once",
        |h| {
            let f = file(1 << 20);
            h.send(SET_MEM_TABLE, &table(&[REGION]), &[f.as_fd()]);
            h.send(SET_MEM_TABLE, &table(&[REGION; 2]), &[f.as_fd(), f.as_fd()]);
        },
        "memory regions overlap",
    ),
    (
        "an empty region",
        |h| h.send(SET_MEM_TABLE, &table(&[[0, 0, 0, 0]]), &[file(4096).as_fd()]),
        "SET_MEM_TABLE was refused",
    ),
    (
        "a region around the end",
        |h| h.send(SET_MEM_TABLE, &table(&[[u64::MAX - 4095, 8192, 0, 0]]), &[file(8192).as_fd()]),
        "SET_MEM_TABLE was refused",
    ),
    (
        "more than its file",
        |h| h.send(SET_MEM_TABLE, &table(&[[0, 8192, 0, 0]]), &[file(8191).as_fd()]),
        "needs 8192 bytes of its file, which has 8191",
    ),
    (
        "an offset behind its file",
        |h| h.send(SET_MEM_TABLE, &table(&[[0, 4096, 0, 1 << 62]]), &[file(8192).as_fd()]),
        "the file is too small",
    ),
    (
        "all addresses",
        |h| h.send(SET_MEM_TABLE, &table(&[[0, 1 << 46, 0, 0]]), &[file(1 << 46).as_fd()]),
        "bytes of guest memory: at most",
    ),
    (
        "a device as memory",
        |h| h.send(SET_MEM_TABLE, &table(&[REGION]), &[File::open("/dev/zero").unwrap().as_fd()]),
        "is not backed by a regular file",
    ),
    (
        "a directory as memory",
        |h| h.send(SET_MEM_TABLE, &table(&[REGION]), &[File::open("/").unwrap().as_fd()]),
        "is not backed by a regular file",
    ),
    (
        "procfs as memory",
        |h| {
            h.send(
                SET_MEM_TABLE,
                &table(&[REGION]),
                &[File::open("/proc/self/mem").unwrap().as_fd()],
            )
        },
        "that may make the switch wait",
    ),
    (
        "memory that may not be written",
        |h| {
            let writable = file(1 << 20);
            let read_only = File::open(format!("/proc/self/fd/{}", writable.as_raw_fd())).unwrap();
            h.send(SET_MEM_TABLE, &table(&[REGION]), &[read_only.as_fd()]);
        },
        "cannot map the memory region",
    ),
    (
        "a slot that is not there",
        |h| {
            h.negotiate();
            h.send(REM_MEM_REG, &slot(REGION), &[])
        },
        "no memory region with guest address 0x0",
    ),
    (
        "a slot twice",
        |h| {
            h.negotiate();
            let f = file(1 << 20);
            h.send(ADD_MEM_REG, &slot(REGION), &[f.as_fd()]);
            h.send(ADD_MEM_REG, &slot(REGION), &[f.as_fd()]);
        },
        "memory regions overlap",
    ),
    (
        "more slots than there are",
        |h| {
            h.negotiate();
            let f = file(4096);
            for n in 0..=509 {
                h.send(ADD_MEM_REG, &slot([n * 4096, 4096, n * 4096, 0]), &[f.as_fd()]);
            }
        },
        "510 memory regions, at most 509",
    ),
    // Dirty log.
    (
        "a log without a descriptor",
        |h| {
            h.negotiate();
            h.send(SET_LOG_BASE, &raw::words(&[4096, 0]), &[])
        },
        "SET_LOG_BASE was refused",
    ),
    (
        "an empty log",
        |h| {
            h.negotiate();
            h.send(SET_LOG_BASE, &raw::words(&[0, 0]), &[file(4096).as_fd()])
        },
        "SET_LOG_BASE was refused",
    ),
    (
        "a log longer than its file",
        |h| {
            h.negotiate();
            h.send(SET_LOG_BASE, &raw::words(&[4096, 1]), &[file(4096).as_fd()])
        },
        "the dirty log needs 4097 bytes",
    ),
    (
        "a huge log",
        |h| {
            h.negotiate();
            h.send(SET_LOG_BASE, &raw::words(&[1 << 40, 0]), &[file(1 << 40).as_fd()])
        },
        "a dirty log of 1099511627776 bytes",
    ),
    (
        "a pipe as a log",
        |h| {
            h.negotiate();
            h.send(
                SET_LOG_BASE,
                &raw::words(&[4096, 0]),
                &[rustix::pipe::pipe().unwrap().0.as_fd()],
            )
        },
        "the dirty log is not backed by a regular file",
    ),
    // Time.
    (
        "not reading answers",
        |h| {
            h.connection.set_timeout(Duration::from_secs(5)).unwrap();
            let ask = raw::message(GET_FEATURES, V, &[]);
            while raw::send_bytes(h.connection.stream(), &ask, &[]).is_ok() {}
        },
        "the front end does not read our answers",
    ),
];

/// Sends a SET_VRING_CALL with `count` descriptors, more than `raw` can send.
fn many_fds(h: &Hostile, count: usize) {
    let event = event();
    let fds = vec![event.as_fd(); count];
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let message = raw::message(SET_VRING_CALL, V, &raw::words(&[0]));
    let sent = rustix::net::sendmsg(
        h.connection.stream(),
        &[std::io::IoSlice::new(&message)],
        &mut control,
        rustix::net::SendFlags::NOSIGNAL,
    );
    assert_eq!(sent.unwrap(), message.len());
}

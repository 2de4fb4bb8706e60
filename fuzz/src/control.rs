//! A hostile front end: messages of any kind in any order, with any descriptors, whole or in part.
//! Meanwhile a worker takes frames from whatever rings there are.

use std::{
    fs::File,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use butterfly_guest_driver::raw;
use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceEvents, DeviceState, Role},
    net::{Features, NetHeader},
    port::{Pair, Port, PortEvents, Queue},
    ring::{BATCH, Delivery, Finish, FrameStore, Gathered},
};
use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    fs::MemfdFlags,
};

use crate::input::Input;

/// GET_FEATURES: its answer says that everything before it was worked off.
const GET_FEATURES: u32 = 1;
const BASE: u64 = 0x10_0000;
const SIZE: u64 = 0x4000;

struct Nobody;

impl PortEvents for Nobody {
    fn tx_started(&self, _: usize, _: Option<&Arc<OwnedFd>>) {}
    fn tx_stopped(&self, _: usize, kick: Option<&Arc<OwnedFd>>) {
        if let Some(fd) = kick {
            rustix::io::fcntl_getfd(fd).expect("an open descriptor");
        }
    }
}

impl DeviceEvents for Nobody {
    fn attached(&self) {}
    fn detached(&self, reason: &str) {
        assert!(!reason.is_empty() && !reason.contains("internal error"), "{reason}");
    }
}

/// Descriptors of every kind a front end may hand over.
struct Descriptors {
    memory: File,
    short: File,
    event: OwnedFd,
    full: OwnedFd,
    pipe: (OwnedFd, OwnedFd),
    epoll: OwnedFd,
    socket: (UnixStream, UnixStream),
}

impl Descriptors {
    fn new() -> rustix::io::Result<Descriptors> {
        let file = |size| {
            let fd = rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&fd, size)?;
            Ok::<File, rustix::io::Errno>(fd.into())
        };
        // Blocking and at its largest value: writing to it would wait.
        let full = eventfd(0, EventfdFlags::CLOEXEC)?;
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes())?;
        Ok(Descriptors {
            memory: file(2 * SIZE)?,
            short: file(100)?,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            full,
            pipe: rustix::pipe::pipe()?,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            socket: UnixStream::pair().map_err(|_| rustix::io::Errno::MFILE)?,
        })
    }

    fn get(&self, which: u8) -> BorrowedFd<'_> {
        match which % 16 {
            0..=4 => self.memory.as_fd(),
            5..=8 => self.event.as_fd(),
            9 => self.full.as_fd(),
            10 => self.short.as_fd(),
            11 => self.pipe.0.as_fd(),
            12 => self.pipe.1.as_fd(),
            13 => self.epoll.as_fd(),
            14 => self.socket.0.as_fd(),
            _ => self.event.as_fd(),
        }
    }
}

/// One message after the other.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    for timeout in [UnixStream::set_read_timeout, UnixStream::set_write_timeout] {
        timeout(&ours, Some(Duration::from_secs(10))).expect("a time-out");
    }
    let port = Arc::new(Port::default());
    let config = DeviceConfig {
        notes: None,
        name: "fuzz".to_owned(),
        role: Role::Client,
        path: PathBuf::from("/nonexistent/butterfly-fuzz"),
        port: port.clone(),
        offered: Features::OFFERED,
        events: Arc::new(Nobody),
    };
    let device = Device::resume(config, theirs.into(), DeviceState::default()).expect("a device");
    let descriptors = Descriptors::new().expect("descriptors");
    let mut open = true;
    for _ in 0..100 {
        let Some(operation) = input.next() else { break };
        open = match operation {
            0..=223 => message(&ours, operation, &descriptors, &mut input),
            // Anything, and then the end: half of a message that stays so is refused after a
            // second, which is too long here.
            224..=231 => {
                let len = usize::from(input.u8());
                let _ = raw::send_bytes(&ours, input.bytes(len), &[]);
                let _ = ours.shutdown(std::net::Shutdown::Write);
                while raw::recv(&ours).is_ok() {}
                false
            }
            232..=239 => {
                let at = u64::from(input.u16()) % (2 * SIZE);
                let len = usize::from(input.u8() & 63);
                rustix::io::pwrite(&descriptors.memory, input.bytes(len), at).is_ok()
            }
            240..=253 => {
                work(&port);
                true
            }
            _ => {
                // Truncated: a worker that touches it gets a SIGBUS.
                descriptors.memory.set_len(u64::from(input.u8() & 3) * 4096).expect("a size");
                true
            }
        };
        if !open {
            break;
        }
    }
    work(&port);
    if open {
        let _ = ours.shutdown(std::net::Shutdown::Both);
    }
    // Ends the thread and with it everything the front end gave.
    device.stop();
    assert!(
        Queue::all().all(|queue| port.status(queue).is_none()),
        "rings outlived their front end"
    );
    for fd in [descriptors.memory.as_fd(), descriptors.event.as_fd()] {
        rustix::io::fcntl_getfd(fd).expect("the front end's own descriptors stay open");
    }
}

/// Sends a message and waits until it was worked off. False: the connection is gone.
fn message(
    to: &UnixStream,
    operation: u8,
    descriptors: &Descriptors,
    input: &mut Input<'_>,
) -> bool {
    let request = if operation >= 200 { input.u32() } else { u32::from(operation % 44) };
    let choice = input.u8();
    let index = match choice & 3 {
        2 => 2 + u32::from(choice >> 2) % 32, // of a further pair, or of none
        first => u32::from(first % 3),
    };
    let address = |input: &mut Input<'_>| match input.u8() {
        0..=7 => input.u64(),
        _ => BASE + u64::from(input.u16()) % (SIZE + 64) & !u64::from(input.u8() % 2 * 3),
    };
    let region = |input: &mut Input<'_>| match input.u8() {
        0..=15 => [input.u64(), input.u64(), input.u64(), input.u64()],
        near @ 16..=63 => {
            let shift = u64::from(near) * 256;
            [BASE + shift, SIZE - shift % SIZE, BASE + shift, u64::from(input.u8() & 7) * 2048]
        }
        _ => [BASE, SIZE, BASE, 0],
    };
    let small = |input: &mut Input<'_>| match input.u8() {
        value @ 0..=31 => 1u32 << value,
        value @ 32..=127 => u32::from(value),
        _ => u32::from(input.u16()),
    };
    let mut body = match request {
        // SET_FEATURES, SET_PROTOCOL_FEATURES
        2 | 16 if choice & 0x10 == 0 => {
            let all = if request == 2 {
                Features::OFFERED.0
            } else {
                1 | 1 << 1 | 1 << 3 | 1 << 13 | 1 << 15
            };
            raw::words(&[all
                & (input.u64()
                    | if choice & 0x20 == 0 { Features::PROTOCOL_FEATURES.0 } else { 0 })])
        }
        2 | 16 => raw::words(&[input.u64()]),
        // SET_MEM_TABLE
        5 => {
            let count = u32::from(choice & 3);
            let mut body = [count.to_ne_bytes(), [0; 4]].concat();
            (0..count).for_each(|_| body.extend(raw::words(&region(input))));
            body
        }
        // SET_LOG_BASE
        6 => raw::words(&[u64::from(input.u16()), u64::from(choice & 1) * 4096]),
        // SET_VRING_NUM, SET_VRING_BASE, GET_VRING_BASE, SET_VRING_ENABLE
        8 | 10 | 11 => raw::vring_state(index, small(input)),
        18 => raw::vring_state(index, u32::from(choice >> 4)),
        // SET_VRING_ADDR
        9 => {
            let flags = u32::from(choice >> 5 & 1);
            let words =
                raw::words(&[address(input), address(input), address(input), address(input)]);
            [&raw::vring_state(index, flags)[..], &words].concat()
        }
        // SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR
        12..=14 => {
            raw::words(&[u64::from(index) | if choice & 0x40 == 0 { 0 } else { raw::NO_FD }])
        }
        // ADD_MEM_REG, REM_MEM_REG
        37 | 38 => [raw::words(&[0]), raw::words(&region(input))].concat(),
        1 | 3 | 4 | 15 | 17 | 34 | 36 => Vec::new(),
        _ => {
            let len = usize::from(input.u8());
            input.bytes(len).to_vec()
        }
    };
    let mut size = body.len() as u32;
    let mut fds = match request {
        5 => u32::from(choice & 3),
        6 | 37 => 1,
        12..=14 if choice & 0x40 == 0 => 1,
        _ => 0,
    };
    let mut flags = raw::VERSION | if choice & 0x80 == 0 { 0 } else { raw::NEED_REPLY };
    // One time in eight something does not fit.
    let spoil = input.u8();
    match spoil {
        0..=3 => size = small(input),
        4..=7 => body.truncate(usize::from(input.u8())),
        8..=11 => flags = input.u32(),
        12..=23 => fds = u32::from(input.u8()) % 12,
        24..=27 => body.extend(input.bytes(8)),
        _ => {}
    }
    // A body that does not come would only be waited for.
    body.resize(size.min(4096) as usize, spoil);
    let which = input.u8();
    let usual = if matches!(request, 5 | 6 | 37) { 0 } else { 5 };
    let fds: Vec<_> = (0..fds)
        .map(|n| descriptors.get(if which < 200 { usual } else { which.wrapping_add(n as u8) }))
        .collect();
    if raw::send_bytes(to, &[&raw::header(request, flags, size)[..], &body].concat(), &fds).is_err()
    {
        return false;
    }
    synced(to)
}

/// Waits for the answer to a request that has one, past others.
fn synced(stream: &UnixStream) -> bool {
    if raw::send_bytes(stream, &raw::header(GET_FEATURES, raw::VERSION, 0), &[]).is_err() {
        return false;
    }
    for _ in 0..4 {
        match raw::recv(stream) {
            Ok(answer) if answer.request == GET_FEATURES => return true,
            Ok(_) => {}
            Err(error) => {
                let waited = matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
                assert!(!waited, "the device neither answers nor closes the connection");
                return false;
            }
        }
    }
    true
}

/// A worker: takes what can be sent by any pair and gives it back to the same guest.
fn work(port: &Port) {
    port.stale().collect::<Vec<_>>().into_iter().for_each(|pair| {
        let _ = port.discard(pair);
    });
    port.pairs().for_each(|(number, pair)| {
        work_pair(pair);
        let _ = (port.to_leave(number as u8, number % 2 == 0).is_some(), port.open());
    });
}

fn work_pair(port: &Pair) {
    let mut store = FrameStore::default();
    let mut tx = port.tx();
    let Some(tx) = tx.as_mut() else { return };
    for _ in 0..4 {
        if tx.available().unwrap_or(0) == 0 {
            break;
        }
        let Gathered::Frames(mut frames) = tx.gather(&mut store, BATCH as u16, |_| {}) else {
            break;
        };
        let mut rx = port.rx();
        if let Some(rx) = rx.as_mut() {
            rx.prepare(frames.len() as u16);
            for (index, frame) in frames.frames().iter().enumerate() {
                if frame.fault.is_some() {
                    continue;
                }
                let head = frames.head(index);
                let delivery = Delivery {
                    net: NetHeader::default(),
                    head,
                    frame: index,
                    from: head.len() as u32,
                    len: frame.len - head.len() as u32,
                    finish: Finish::Checksum { start: 0, field: 12, udp: index % 2 == 0 },
                };
                if index % 3 == 0 {
                    let _ = rx.deliver(&frames, &delivery);
                } else if rx.deliver_run(&frames, index..index + 1).0 == 0 {
                    let _ = rx.deliver_one(&frames, index);
                }
            }
        }
        let call = frames.release();
        call.into_iter().for_each(|call| {
            call.signal();
        });
        if let Some(call) = rx.as_mut().and_then(|rx| rx.publish()) {
            call.signal();
        }
        if let Some(rx) = rx.as_mut().filter(|rx| rx.poisoned()) {
            rx.rest();
        }
        if tx.poisoned() {
            tx.rest();
        }
    }
    tx.disarm();
    tx.arm();
}

//! The holder as a service manager runs it.

use std::{
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use butterfly_holder::{
    client::socket_path,
    protocol::{self, Answer, Order, Received, VERSION},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, socket_with},
};

/// Ends it when the test does.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hold(state: &Path, notify: &Path) -> Holder {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterflyd"));
    command.arg("--hold-service").arg(state).env("NOTIFY_SOCKET", notify);
    Holder(command.spawn().unwrap())
}

/// A daemon that is started when the holder is ready finds it, and starts none of its own. One that
/// finds another holder says so, too, and ends well.
#[test]
fn a_holder_is_ready_when_it_listens() {
    let room = tempfile::tempdir().unwrap();
    let (state, notify) = (room.path().join("state"), room.path().join("notify"));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let ready = || {
        let mut word = [0; 64];
        let length = manager.recv(&mut word).unwrap();
        assert_eq!(&word[..length], b"READY=1");
    };
    let _first = hold(&state, &notify);
    ready();
    let socket = std::fs::read_dir(&state).unwrap().filter_map(|entry| {
        use std::os::unix::fs::FileTypeExt;
        let entry = entry.ok()?;
        entry.file_type().ok()?.is_socket().then(|| entry.path())
    });
    assert_eq!(socket.count(), 1);
    let mut second = hold(&state, &notify);
    ready();
    assert!(second.0.wait().unwrap().success());
}

/// Nobody reads what the holder says: that must hold up nothing.
#[test]
fn a_holder_whose_words_nobody_reads_goes_on() {
    let room = tempfile::tempdir().unwrap();
    let (state, notify) = (room.path().join("state"), room.path().join("notify"));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (_nobody, full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while rustix::io::write(&full, &[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterflyd"));
    command.arg("--hold-service").arg(&state).env("NOTIFY_SOCKET", &notify).stderr(full);
    let _holder = Holder(command.spawn().unwrap());
    manager.recv(&mut [0; 64]).unwrap();
    // Whoever has the lease says what nobody understands, and the holder says that.
    let lease = connect(&state);
    protocol::send(&lease, &Order::Hello { version: VERSION }, &[]).unwrap();
    answer(&lease);
    rustix::net::send(&lease, &[0xff; 9], SendFlags::empty()).unwrap();
    for _ in 0..3 {
        let other = connect(&state);
        protocol::send(&other, &Order::Hello { version: VERSION + 1 }, &[]).unwrap();
        assert!(matches!(answer(&other), Answer::Refused { .. }));
    }
}

fn connect(state: &Path) -> OwnedFd {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(socket_path(state)).unwrap()).unwrap();
    socket
}

/// Waits for a packet of the holder's.
fn answer(of: &OwnedFd) -> Answer {
    let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(of, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ready, 1, "the holder does not go on");
    match protocol::receive(of).unwrap() {
        Received::Packet(answer, _) => answer,
        other => panic!("{other:?}"),
    }
}

//! The holder as a service manager runs it.

use std::{
    fs::{self, File},
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixDatagram},
    },
    path::Path,
    process::{Child, Command, Stdio},
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

/// A successor is named by those who may take the lease, if nobody else can have written it.
#[test]
fn only_programs_of_root_become_the_holder() {
    let room = tempfile::tempdir().unwrap();
    let (state, notify) = (room.path().join("state"), room.path().join("notify"));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let holder = hold(&state, &notify);
    manager.recv(&mut [0; 64]).unwrap();
    let program_of = || fs::read_link(format!("/proc/{}/exe", holder.0.id())).unwrap();
    let own = program_of();
    let ask = |files: &[&File]| {
        let asking = connect(&state);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        protocol::send(&asking, &Order::Upgrade, &files).unwrap();
        match answer(&asking) {
            Answer::Done => None,
            Answer::Refused { why } => Some(why),
            other => panic!("{other:?}"),
        }
    };
    let put = |name: &str, content: &[u8], mode: u32| {
        let path = room.path().join(name);
        // Another process writes it: a child of another test would inherit the open file for a
        // moment, and a file that is open for writing cannot be run.
        let mut writer = Command::new("sh");
        writer.args(["-c", "cat >\"$1\"", "sh"]).arg(&path).stdin(Stdio::piped());
        let mut writer = writer.spawn().unwrap();
        writer.stdin.take().unwrap().write_all(content).unwrap();
        assert!(writer.wait().unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        File::open(path).unwrap()
    };
    let good = fs::read(&own).unwrap();
    let others = put("others", &good, 0o757);
    let of_nobody = put("of-nobody", &good, 0o755);
    rustix::fs::fchown(&of_nobody, Some(rustix::process::Uid::from_raw(65534)), None).unwrap();
    let (text, script) = (put("text", b"text", 0o644), put("script", b"#!/bin/sh\n", 0o755));
    let folder = File::open(room.path()).unwrap();
    let (truly, nothing) = (File::open("/bin/true").unwrap(), File::open("/dev/null").unwrap());
    for (files, expected) in [
        (&[&others][..], "nobody else may write"),
        (&[&of_nobody], "has to belong to root"),
        (&[&text], "it is no program"),
        (&[&folder], "it is no program"),
        (&[&nothing], "it is no program"),
        (&[&script], "does not say that it can hold"),
        (&[&truly], "does not say that it can hold"),
        (&[&truly, &truly], "did not give one program along"),
        (&[], "did not give one program along"),
    ] {
        let why = ask(files).expect(expected);
        assert!(why.contains(expected), "{why}");
    }
    assert_eq!(program_of(), own);
    let next = put("next", &good, 0o755);
    assert_eq!(ask(&[&next]), None);
    assert_eq!(program_of(), room.path().join("next"));
    // As one that has begun itself: it is found, says how it is, and leaves nothing.
    let lease = connect(&state);
    protocol::send(&lease, &Order::Hello { version: VERSION }, &[]).unwrap();
    assert!(matches!(answer(&lease), Answer::Granted { term: 1, .. }));
    while answer(&lease) != Answer::Complete {}
    protocol::send(&lease, &Order::End, &[]).unwrap();
    assert_eq!(answer(&lease), Answer::Done);
    let mut holder = holder;
    assert!(holder.0.wait().unwrap().success());
    assert!(!socket_path(&state).exists());
}

/// Starts a holder that may have so many descriptors, and takes its lease with so many parts.
fn held_by_us(room: &Path, limit: u32, parts: usize) -> (Holder, OwnedFd) {
    let (state, notify) = (room.join("state"), room.join("notify"));
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={limit}:{limit}")).arg(env!("CARGO_BIN_EXE_butterflyd"));
    command.arg("--hold-service").arg(&state).env("NOTIFY_SOCKET", &notify);
    let holder = Holder(command.spawn().unwrap());
    manager.recv(&mut [0; 64]).unwrap();
    let lease = connect(&state);
    protocol::send(&lease, &Order::Hello { version: VERSION }, &[]).unwrap();
    while answer(&lease) != Answer::Complete {}
    let file = File::open("/dev/null").unwrap();
    for n in 0..parts {
        let order = Order::Deposit { name: n.to_string() };
        protocol::send(&lease, &order, &[file.as_fd()]).unwrap();
        assert_eq!(answer(&lease), Answer::Done);
    }
    (holder, lease)
}

fn own_program() -> File {
    File::open(env!("CARGO_BIN_EXE_butterflyd")).unwrap()
}

/// Looking at what is held takes no more descriptors than the holder has left; where it does, the
/// holder goes on as before.
#[test]
fn a_holder_with_few_descriptors_left_is_upgraded() {
    let room = tempfile::tempdir().unwrap();
    let (_holder, _lease) = held_by_us(room.path(), 300, 270);
    for _ in 0..3 {
        let asking = connect(&room.path().join("state"));
        protocol::send(&asking, &Order::Upgrade, &[own_program().as_fd()]).unwrap();
        assert_eq!(answer(&asking), Answer::Done);
    }
}

/// A signal that comes while the holder is about to become another program ends it in order.
#[test]
fn a_signal_is_not_lost_on_the_way() {
    let room = tempfile::tempdir().unwrap();
    let (mut holder, lease) = held_by_us(room.path(), 1000, 1);
    let state = room.path().join("state");
    let order = |order: Order| protocol::send(&lease, &order, &[]).unwrap();
    order(Order::Renew);
    assert_eq!(answer(&lease), Answer::Done);
    let asking = connect(&state);
    protocol::send(&asking, &Order::Upgrade, &[own_program().as_fd()]).unwrap();
    // It has proved itself by then, and waits until the daemon is there again.
    std::thread::sleep(Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&holder.0);
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    signal(rustix::process::Signal::STOP);
    order(Order::Ready);
    signal(rustix::process::Signal::TERM);
    signal(rustix::process::Signal::CONT);
    assert!(holder.0.wait().unwrap().success());
    assert!(!socket_path(&state).exists());
}

//! Network namespaces for tests. They have no names: each goes with the last thread, process and
//! descriptor that uses it, so that a test that dies leaves nothing behind.
#![allow(dead_code)]

use std::{
    fs::File,
    os::fd::AsFd,
    process::{Command, Output},
    time::{Duration, Instant},
};

use butterfly_uplink::Uplink;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

/// The longest wait for something that happens at once on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A network namespace, without IPv6 noise on interfaces made in it unless asked for.
pub struct Namespace(File);

impl Namespace {
    /// Makes one and moves this thread into it.
    pub fn new() -> Namespace {
        // SAFETY: a network namespace is about no memory or descriptor of this process.
        let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
        made.unwrap_or_else(|error| {
            panic!("cannot make a network namespace: {error}; these tests need root")
        });
        let namespace = Namespace(File::open("/proc/thread-self/ns/net").unwrap());
        ip("link set lo up");
        namespace
    }

    /// Moves this thread into it. Processes it starts are there, too.
    pub fn enter(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Moves an interface of the current namespace into it.
    pub fn take(&self, interface: &str) {
        let mut command = Command::new("ip");
        // The shell's own descriptor, since `ip` opens the path itself.
        let output = command
            .args(["link", "set", interface, "netns", "/proc/self/fd/0"])
            .stdin(self.0.try_clone().unwrap())
            .output();
        succeeded(&command, &output.unwrap());
    }
}

/// No interface made from now on in this thread's namespace has IPv6 addresses of its own making.
pub fn no_ipv6() {
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
}

/// Runs `ip` in this thread's namespace.
pub fn ip(arguments: &str) -> String {
    run("ip", arguments)
}

/// Runs a program that has to succeed, and returns what it printed.
pub fn run(program: &str, arguments: &str) -> String {
    let mut command = Command::new(program);
    let output = command
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    succeeded(&command, &output);
    String::from_utf8(output.stdout).unwrap()
}

fn succeeded(command: &Command, output: &Output) {
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Waits until a descriptor is readable; fails if that takes too long.
pub fn wait(descriptor: impl AsFd, what: &str) {
    assert!(readable(descriptor, PATIENCE), "waited in vain for {what}");
}

/// Returns whether a descriptor becomes readable within a time.
pub fn readable(descriptor: impl AsFd, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).unwrap();
    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&patience)).unwrap() == 1
}

/// Waits for something that has no descriptor, such as a route or a process that ends.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Queues a frame; `false` if there was no room.
pub fn send(uplink: &mut dyn Uplink, frame: &[u8]) -> bool {
    match uplink.room(frame.len()) {
        Some(room) => {
            room.copy_from_slice(frame);
            uplink.send();
            true
        }
        None => false,
    }
}

/// Takes what arrived, at most a burst, without waiting.
pub fn receive(uplink: &mut dyn Uplink) -> Vec<Vec<u8>> {
    let held = uplink.receive(butterfly_uplink::BURST);
    let frames = (0..held).map(|index| uplink.frame(index).to_vec()).collect();
    assert_eq!(uplink.frame(held), [0; 0], "no frame behind the last");
    uplink.release();
    frames
}

/// Waits for a frame that `wanted` accepts; others are thrown away.
pub fn expect(uplink: &mut dyn Uplink, what: &str, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "waited in vain for {what}");
        wait(uplink.descriptor(), what);
        if let Some(frame) = receive(uplink).into_iter().find(|frame| wanted(frame)) {
            return frame;
        }
    }
}

/// A veth pair between two namespaces: `wire` (10.8.0.1, fd08::1) in one, `peer` (10.8.0.2,
/// fd08::2) in the other. Both ends send complete frames: a veth would leave checksums to the card
/// it is not, also towards AF_XDP.
pub struct Wire {
    pub near: Namespace,
    pub far: Namespace,
}

impl Wire {
    /// Makes one; `options` is for both ends, as in `ip link add`. This thread is in the near
    /// namespace then.
    pub fn new(options: &str) -> Wire {
        let far = Namespace::new();
        no_ipv6();
        let near = Namespace::new();
        no_ipv6();
        ip(&format!("link add wire {options} type veth peer name peer {options}"));
        far.take("peer");
        for (namespace, name, number) in [(&far, "peer", 2), (&near, "wire", 1)] {
            namespace.enter();
            run("ethtool", &format!("-K {name} tx off"));
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "0").unwrap();
            ip(&format!("addr add 10.8.0.{number}/24 dev {name}"));
            ip(&format!("addr add fd08::{number}/64 dev {name} nodad"));
            ip(&format!("link set {name} up"));
        }
        until("the carrier", || ip("-o link show dev wire").contains("LOWER_UP"));
        Wire { near, far }
    }
}

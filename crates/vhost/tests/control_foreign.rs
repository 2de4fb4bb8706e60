//! Front ends and drivers that others wrote: QEMU with its network boot code (iPXE), and DPDK's
//! virtio-user. They attach in both roles, leave in order and not, and come back; what they
//! negotiate is what they always have.
//!
//! Needs `qemu-system-x86_64` and `dpdk-testpmd` (Debian: qemu-system-x86, dpdk-dev); fails
//! without.

mod control_support;

use std::{
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use butterfly_vhost::{
    control::Role,
    net::Features,
    ring::{BATCH, FrameStore, Gathered},
};
use control_support::{Bed, eventually};

/// A program that ends with the test, however the test ends.
struct Foreign {
    child: Child,
    log: PathBuf,
}

impl Foreign {
    fn start(mut command: Command, directory: &Path) -> Foreign {
        let log = directory.join("log");
        let file = File::create(&log).unwrap();
        let spawned =
            command.stdin(Stdio::piped()).stdout(file.try_clone().unwrap()).stderr(file).spawn();
        let program = command.get_program().display().to_string();
        let child = spawned.unwrap_or_else(|error| {
            panic!("cannot run {program}: {error}; install qemu-system-x86 and dpdk-dev")
        });
        Foreign { child, log }
    }

    /// Ends it as a crash of the host's power supply would.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it as an operator would.
    fn terminate(&mut self) {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        self.child.wait().unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// QEMU that boots from the network: no kernel is needed for a real driver.
fn qemu(bed: &Bed, chardev: &str, netdev: &str, device: &str) -> Foreign {
    let server = if bed.role == Role::Client { ",server=on,wait=off" } else { "" };
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args([
            "-machine",
            "q35,accel=tcg,memory-backend=mem",
            "-m",
            "128",
            "-smp",
            "1",
            "-boot",
            "n",
        ])
        .args(["-object", "memory-backend-memfd,id=mem,size=128M,share=on"])
        .args(["-chardev", &format!("socket,id=c0,path={}{server}{chardev}", bed.path.display())])
        .args(["-netdev", &format!("vhost-user,id=n0,chardev=c0,vhostforce=on{netdev}")])
        // vectors=0: QEMU 7.2 crashes with MSI-X, vhost-user and software emulation together.
        .args([
            "-device",
            &format!("virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01,vectors=0{device}"),
        ])
        .args(["-nodefaults", "-display", "none", "-no-reboot"]);
    Foreign::start(command, bed.directory.path())
}

/// DPDK's virtio-user, sending all the time.
fn testpmd(bed: &Bed, device: &str) -> Foreign {
    let server = if bed.role == Role::Client { ",server=1" } else { "" };
    if bed.role == Role::Client {
        // It would not replace what it left itself.
        let _ = std::fs::remove_file(&bed.path);
    }
    let processors = std::thread::available_parallelism().unwrap().get();
    let directory = bed.directory.path();
    let mut command = Command::new("dpdk-testpmd");
    command
        // Two lcores that float over all processors, so that one is enough.
        .arg(format!("--lcores=(0,1)@(0-{})", processors - 1))
        .args(["--no-pci", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "128"])
        .arg(format!("--file-prefix={}", directory.file_name().and_then(OsStr::to_str).unwrap()))
        .arg(format!(
            "--vdev=net_virtio_user0,path={},queues=1{server}{device}",
            bed.path.display()
        ))
        .args([
            "--",
            "-i",
            "--auto-start",
            "--forward-mode=txonly",
            "--nb-cores=1",
            "--total-num-mbufs=4096",
        ])
        .env("RUNTIME_DIRECTORY", directory);
    Foreign::start(command, directory)
}

/// Takes what the guest sends, until `count` frames satisfied `wanted`.
fn receive(bed: &Bed, count: usize, what: &str, wanted: impl Fn(&[u8]) -> bool) {
    let found = std::cell::Cell::new(0);
    let store = std::cell::RefCell::new(FrameStore::default());
    eventually(what, || {
        let mut store = store.borrow_mut();
        let mut tx = bed.port.tx();
        let Some(tx) = tx.as_mut() else { return false };
        while tx.available().unwrap_or(0) > 0 {
            let Gathered::Frames(mut frames) = tx.gather(&mut store, BATCH as u16, |_| {}) else {
                break;
            };
            for (index, frame) in frames.frames().iter().enumerate() {
                assert_eq!(frame.fault, None);
                found.set(found.get() + usize::from(wanted(frames.head(index))));
            }
            if let Some(call) = frames.release() {
                call.signal();
            }
        }
        tx.arm();
        found.get() >= count
    });
}

/// True for the first frame of iPXE: a DHCP request from its own address to all.
fn is_dhcp(head: &[u8]) -> bool {
    head.starts_with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 1, 8, 0, 0x45])
        && head[36..38] == [0, 67]
}

#[test]
fn qemu_attaches_in_both_roles_with_modern_and_legacy_drivers_and_comes_back() {
    for role in [Role::Server, Role::Client] {
        let bed = Bed::new(role);
        // A modern driver has the long header, a legacy one without mergeable buffers the short
        // one: frames tell whether it fits.
        for (round, (device, features)) in
            [(",disable-legacy=on", Features::VERSION_1), (",disable-modern=on", Features::NONE)]
                .into_iter()
                .enumerate()
        {
            let mut guest = qemu(&bed, "", "", device);
            bed.events.wait_attached(2 * round + 1);
            receive(&bed, 2, "DHCP requests", is_dhcp);
            let status = bed.status();
            let attached = status.attached.as_ref().unwrap();
            assert_eq!(attached.features, Some(features.with(Features::PROTOCOL_FEATURES)));
            assert_eq!(
                attached.protocol_feature_names(),
                ["mq", "log-shmfd", "rarp", "reply-ack", "reset-device", "configure-mem-slots"],
                "all that QEMU 7.2 is offered"
            );
            assert_eq!(attached.peer_pid, Some(guest.child.id()));
            assert!(
                attached
                    .memory
                    .iter()
                    .any(|region| region.guest_addr == 0 && region.size == 128 << 20),
                "{status:#?}"
            );
            assert_eq!((status.tx.unwrap().size, status.tx.unwrap().broken), (256, false));
            guest.terminate();
            bed.events.detached(2 * round + 1);

            let guest = qemu(&bed, "", "", device);
            bed.events.wait_attached(2 * round + 2);
            receive(&bed, 1, "DHCP requests", is_dhcp);
            guest.kill();
            bed.events.detached(2 * round + 2);
            let status = bed.status();
            let left = status.attached.is_none() && status.tx.is_none() && status.rx.is_none();
            assert!(left, "{status:#?}\n{:#?}", bed.events.all());
        }
    }
}

/// QEMU speaks of rings 2 to 3 then, although the guest is not offered VIRTIO_NET_F_MQ.
#[test]
fn qemu_with_more_queues_than_there_are_works_with_one_pair() {
    let bed = Bed::server();
    let _guest = qemu(&bed, "", ",queues=2", ",mq=on");
    receive(&bed, 2, "DHCP requests", is_dhcp);
    assert_eq!(bed.status().attach_count, 1);
}

#[test]
fn qemu_connects_again_when_the_device_was_away() {
    let mut bed = Bed::server();
    let _guest = qemu(&bed, ",reconnect=1", "", "");
    receive(&bed, 1, "DHCP requests", is_dhcp);
    bed.stop();
    bed.start().unwrap();
    receive(&bed, 1, "DHCP requests after the restart", is_dhcp);
    let attached = bed.status().attached.unwrap();
    assert_eq!(attached.troubles, []);
}

#[test]
fn virtio_user_attaches_in_both_roles_and_comes_back() {
    for role in [Role::Server, Role::Client] {
        let bed = Bed::new(role);
        let plain =
            Features::VERSION_1.with(Features::INDIRECT_DESC).with(Features::PROTOCOL_FEATURES);
        for (round, (device, features)) in [
            ("", plain.with(Features::MRG_RXBUF).with(Features::IN_ORDER)),
            (",in_order=0,queue_size=1024", plain.with(Features::MRG_RXBUF)),
            (",in_order=0,mrg_rxbuf=0", plain),
        ]
        .into_iter()
        .enumerate()
        {
            let guest = testpmd(&bed, device);
            receive(&bed, 10_000, "testpmd's frames", |_| true);
            let status = bed.status();
            let attached = status.attached.unwrap();
            assert_eq!(attached.features, Some(features), "{device}");
            // DPDK 22.11 knows neither the dirty log of a guest nor memory slots.
            assert_eq!(attached.protocol_feature_names(), ["mq", "reply-ack"]);
            assert_eq!(status.tx.unwrap().size, if device.contains("1024") { 1024 } else { 256 });
            guest.kill();
            bed.events.detached(round + 1);
            assert_eq!(bed.status().attach_count, round as u64 + 1);
        }
    }
}

//! A guest that breaks the rules: the tests write its rings by hand.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::atomic::Ordering::{Relaxed, Release},
};

use butterfly_guest_driver::{
    Desc, GuestConfig, MemoryConfig, RX, Ring, SendError, TX, Vm, VmConfig,
    memory::DEFAULT_GUEST_ADDR,
};
use butterfly_packet::{build, mac::Mac};
use butterfly_tests::{Station, frames::mac, host::Nic, station::machine, wait::PATIENCE};
use butterfly_vhost::net::{Features, NetHeader};
use rustix::event::{EventfdFlags, eventfd};

use crate::{bystanders, switch::Switch};

/// The network that villains share with one pair of bystanders.
pub const VNI: u32 = 7;
/// Bytes of each of a villain's two memory regions.
pub const REGION: u64 = 4 << 20;
/// First address behind a villain's memory.
pub const END: u64 = DEFAULT_GUEST_ADDR + 2 * REGION;
/// Entries of a villain's rings.
pub const RING: u16 = 64;

/// A vnic whose guests are hostile.
pub struct Place {
    /// Its id.
    pub id: String,
    /// Its socket.
    pub path: PathBuf,
    /// Its address.
    pub mac: Mac,
    /// Its network.
    pub vni: u32,
}

impl Place {
    /// Declares the vnic; `n` makes its MAC address unique.
    pub fn new(switch: &Switch, id: &str, n: u32, vni: u32) -> Place {
        let nic = Nic::bypass(id, mac(0xbad_0000 + n), vni);
        Place { id: id.to_owned(), path: switch.add(&nic), mac: nic.mac, vni }
    }
}

/// Returns the configuration of a hostile guest: two memory regions in separate files.
pub fn config(features: Features) -> VmConfig {
    let usual = machine(features, 1514);
    let mut memory = MemoryConfig::split(2, REGION);
    memory.separate_files = true;
    let guest = GuestConfig { interrupts: false, rx_buffer: 2048, max_frame: 1514, ..usual.guest }
        .rings(RING);
    VmConfig { memory: Some(memory), guest, ..usual }
}

/// An attached hostile guest, and a sound guest of its network that sends to it.
pub struct Scene<'a> {
    /// The hostile guest.
    pub vm: Vm,
    /// Its vnic.
    pub place: &'a Place,
    /// The sound guest.
    pub feeder: &'a mut Station,
    /// Guest address of a buffer of 128 KiB that no ring uses yet.
    pub buffer: u64,
}

impl<'a> Scene<'a> {
    /// Attaches a guest, which has done nothing wrong yet.
    pub fn open(place: &'a Place, feeder: &'a mut Station, config: &VmConfig) -> Scene<'a> {
        let mut vm = Vm::connect(&place.path, config, PATIENCE).expect("a guest attaches");
        vm.connection.sync().expect("it is attached");
        let buffer = vm.guest.memory().alloc(128 << 10, 4096).expect("room in the guest");
        Scene { vm, place, feeder, buffer }
    }

    /// Returns the guest's receive ring (`RX`) or transmit ring (`TX`).
    pub fn ring(&self, index: usize) -> Ring {
        self.vm.guest.queue(index).ring().clone()
    }

    /// Builds a frame to the sound guest.
    pub fn frame(&self, len: usize) -> Vec<u8> {
        build::ethernet(self.place.mac, self.feeder.nic.mac).payload(0x88b6, &vec![0xbd; len - 14])
    }

    /// Puts an empty virtio-net header and a frame into the buffer. Returns the length of both.
    pub fn place_frame(&self, len: usize) -> u32 {
        let bytes = [&[0; NetHeader::LEN][..], &self.frame(len)].concat();
        self.write(0, &bytes);
        bytes.len() as u32
    }

    /// Writes into the buffer.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.vm.guest.memory().write(self.buffer + at, bytes).expect("inside the buffer");
    }

    /// Makes the chain that starts at descriptor `head` available, and kicks.
    pub fn offer(&self, index: usize, head: u16) {
        let ring = self.ring(index);
        let at = ring.avail_idx().load(Relaxed);
        ring.avail_entry(at).store(head, Relaxed);
        ring.avail_idx().store(at.wrapping_add(1), Release);
        self.kick(index);
    }

    /// Kicks, even if the daemon asked for no kicks.
    pub fn kick(&self, index: usize) {
        let queue = self.vm.guest.queue(index);
        let _ = rustix::io::write(&**queue.kick_fd(), &1u64.to_ne_bytes());
    }

    /// Writes these descriptors into the transmit ring and offers the chain from the first one.
    pub fn send(&self, descs: &[Desc]) {
        let ring = self.ring(TX);
        for (at, desc) in (0..).zip(descs) {
            ring.set_desc(at, *desc);
        }
        self.offer(TX, 0);
    }

    /// Sends an indirect table of descriptors. Its descriptor has `flags` too, and a length that is
    /// wrong by `extra` bytes.
    pub fn send_table(&self, descs: &[Desc], extra: i32, flags: u16) {
        let table = 64 << 10;
        for (at, desc) in (0..).zip(descs) {
            self.write(table + at * 16, &desc.to_bytes());
        }
        let len = (descs.len() as i32 * 16 + extra) as u32;
        self.send(&[Desc { addr: self.buffer + table, len, flags: 4 | flags, next: 0 }]);
    }

    /// Overwrites each receive descriptor with `desc`; then the sound guest sends `len` bytes.
    pub fn receive(&mut self, desc: Desc, len: usize) {
        let ring = self.ring(RX);
        (0..ring.size()).for_each(|at| ring.set_desc(at, desc));
        self.feed(len);
    }

    /// Makes the sound guest send a frame of `len` bytes to the villain.
    pub fn feed(&mut self, len: usize) {
        let frame = build::ethernet(self.feeder.nic.mac, self.place.mac)
            .payload(0x88b7, &vec![0xfe; len - 14]);
        match self.feeder.vm.guest.send_wait(&frame, NetHeader::default(), PATIENCE) {
            Ok(()) | Err(SendError::Full) => {}
            Err(error) => panic!("the sound guest: {error}"),
        }
        // Empties its receive ring, so that others can go on sending to it.
        while self.feeder.vm.guest.recv().expect("a sound receive ring").is_some() {}
    }

    /// Sends an IPv4 TCP segment to the sound guest, with this virtio-net header.
    pub fn send_tcp(&mut self, header: NetHeader, payload: usize) {
        let link = build::ethernet(self.place.mac, self.feeder.nic.mac);
        let frame = link
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
            .tcp(&build::Tcp::new(1, 2, 16), &vec![0x5a; payload]);
        self.vm.guest.send(&frame, header).expect("room in its ring");
    }
}

/// Declares and attaches the sound guest in the villains' network.
pub fn feeder(switch: &Switch) -> Station {
    let config = machine(butterfly_tests::features::LINUX, 9000);
    bystanders::station(switch, &Nic::bypass("feeder", mac(0xfeed), VNI), &config)
}

/// Returns an eventfd at its largest value: a write to it blocks.
pub fn full_eventfd() -> OwnedFd {
    let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).expect("room for it");
    fd
}

/// Connects to a socket without any vhost-user handshake.
pub fn raw_connection(path: &Path) -> std::io::Result<std::os::unix::net::UnixStream> {
    let stream = std::os::unix::net::UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

//! A vnic with its guest.

use std::path::PathBuf;

use butterfly_guest_driver::{Connection, DetachedVm, GuestConfig, Listener, Vm, VmConfig};
use butterfly_packet::mac::Mac;
use butterfly_vhost::net::{Features, NetHeader};

use crate::{host::Nic, wait::PATIENCE};

/// Sets of features that guests negotiate.
pub mod features {
    use super::Features;

    /// A modern guest without offloads.
    pub const MODERN: Features = Features(
        Features::VERSION_1.0
            | Features::MRG_RXBUF.0
            | Features::INDIRECT_DESC.0
            | Features::EVENT_IDX.0,
    );

    /// Partial checksums both ways.
    pub const CHECKSUM: Features = Features(Features::CSUM.0 | Features::GUEST_CSUM.0);

    /// A Linux guest: checksums and large segments both ways.
    pub const LINUX: Features = Features(
        MODERN.0
            | CHECKSUM.0
            | Features::HOST_TSO4.0
            | Features::HOST_TSO6.0
            | Features::HOST_ECN.0
            | Features::GUEST_TSO4.0
            | Features::GUEST_TSO6.0
            | Features::GUEST_ECN.0,
    );
}

/// Returns a guest with these features, which sleeps until an interrupt, and can send and receive
/// frames of `max_frame` bytes.
pub fn machine(features: Features, max_frame: usize) -> VmConfig {
    let mut guest = GuestConfig { interrupts: true, max_frame, ..GuestConfig::default() };
    if !features.has(Features::MRG_RXBUF) {
        guest.rx_buffer = max_frame + NetHeader::LEN;
    }
    VmConfig { features, guest, ..VmConfig::default() }
}

/// The usual guest: modern, without offloads, frames up to 9,000 bytes.
pub fn usual() -> VmConfig {
    machine(features::MODERN, 9000)
}

/// A vnic with a guest that runs.
pub struct Station {
    /// As it was declared.
    pub nic: Nic,
    /// Its socket.
    pub path: PathBuf,
    /// The socket, if the front end owns it.
    pub listener: Option<Listener>,
    /// The guest.
    pub vm: Vm,
    /// The configuration of the guest.
    pub config: VmConfig,
}

impl Station {
    /// Its MAC address.
    pub fn mac(&self) -> Mac {
        self.nic.mac
    }

    /// Sends a frame, waiting for room.
    #[track_caller]
    pub fn send(&mut self, frame: &[u8]) {
        self.send_with(frame, NetHeader::default());
    }

    /// Sends a frame with a header, waiting for room.
    #[track_caller]
    pub fn send_with(&mut self, frame: &[u8], header: NetHeader) {
        self.vm.guest.send_wait(frame, header, PATIENCE).unwrap();
    }

    /// Waits for the next frame. Returns it with its header.
    #[track_caller]
    pub fn receive_with(&mut self) -> (NetHeader, Vec<u8>) {
        let frame = self.vm.guest.recv_wait(PATIENCE).unwrap();
        frame.unwrap_or_else(|| panic!("{} received nothing", self.nic.id))
    }

    /// Waits for the next frame and returns it.
    #[track_caller]
    pub fn receive(&mut self) -> Vec<u8> {
        self.receive_with().1
    }

    /// Takes all frames that wait in its receive ring.
    #[track_caller]
    pub fn pending(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.vm.guest.recv().unwrap()).map(|(_, frame)| frame).collect()
    }

    /// Asserts that the next frame is this one, with an empty header.
    #[track_caller]
    pub fn expect(&mut self, frame: &[u8]) {
        let (header, received) = self.receive_with();
        assert_eq!(NetHeader { num_buffers: 0, ..header }, NetHeader::default(), "{}", self.nic.id);
        let start = |frame: &[u8]| {
            format!("{} bytes, {:02x?}..", frame.len(), &frame[..frame.len().min(64)])
        };
        assert!(
            received == frame,
            "{} received {} and not {}",
            self.nic.id,
            start(&received),
            start(frame)
        );
    }

    /// Opens a new connection to its vnic.
    #[track_caller]
    pub fn connection(path: &PathBuf, listener: Option<&Listener>) -> Connection {
        match listener {
            Some(listener) => listener.accept(PATIENCE).unwrap(),
            None => Connection::connect(path, PATIENCE).unwrap(),
        }
    }

    /// Ends the front end as if it was killed; its memory stays.
    pub fn crash(self) -> Gone {
        let Station { nic, path, listener, vm, config } = self;
        Gone { nic, path, listener, vm: vm.crash(), config }
    }

    /// Stops the guest in order.
    #[track_caller]
    pub fn detach(self) -> Gone {
        let Station { nic, path, listener, vm, config } = self;
        Gone { nic, path, listener, vm: vm.detach().unwrap(), config }
    }

    /// The guest boots again, with other features maybe, on a new connection and in new memory.
    #[track_caller]
    pub fn reboot(self, config: &VmConfig) -> Station {
        let Station { nic, path, listener, vm, .. } = self;
        vm.connection.disconnect();
        let vm = Vm::attach(Station::connection(&path, listener.as_ref()), config).unwrap();
        Station { nic, path, listener, vm, config: config.clone() }
    }
}

/// A vnic whose guest is not attached. The guest's memory and rings are as they were.
pub struct Gone {
    /// The vnic as it was declared.
    pub nic: Nic,
    /// Its socket.
    pub path: PathBuf,
    /// The socket, if the front end owns it.
    pub listener: Option<Listener>,
    /// The guest.
    pub vm: DetachedVm,
    config: VmConfig,
}

impl Gone {
    /// Attaches the guest again; it goes on where it was.
    #[track_caller]
    pub fn back(self) -> Station {
        let Gone { nic, path, listener, vm, config } = self;
        let vm = vm.reattach(Station::connection(&path, listener.as_ref())).unwrap();
        Station { nic, path, listener, vm, config }
    }
}

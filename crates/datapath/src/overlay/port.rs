//! The uplink as workers use it: a virtual machine's rings, or a port of its own kind.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use butterfly_uplink::{Inward, Outward};
use butterfly_vhost::port::Port;

/// The uplink's port.
pub(crate) enum UplinkPort {
    /// vhost-user.
    Ring(Arc<Port>),
    /// A port of its own kind. One worker receives by it, all send.
    Wire(Wire),
}

/// The halves of a port of its own kind, each behind a lock of its own: who holds the one that
/// receives delivers to guests meanwhile, and others who hold a guest's ring wait for the one that
/// sends.
pub(crate) struct Wire {
    inward: Mutex<Box<dyn Inward>>,
    outward: Mutex<Box<dyn Outward>>,
}

impl Wire {
    pub fn new((inward, outward): (Box<dyn Inward>, Box<dyn Outward>)) -> Wire {
        Wire { inward: inward.into(), outward: outward.into() }
    }

    /// Returns the half that receives.
    pub fn inward(&self) -> MutexGuard<'_, Box<dyn Inward>> {
        self.inward.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the half that sends.
    pub fn outward(&self) -> MutexGuard<'_, Box<dyn Outward>> {
        self.outward.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UplinkPort {
    /// Returns whether the other end is missing.
    pub fn is_down(&self) -> bool {
        match self {
            // A lock that is held means that a worker sends.
            UplinkPort::Ring(port) => port.try_rx().is_some_and(|ring| ring.is_none()),
            UplinkPort::Wire(_) => false,
        }
    }

    /// Calls `f` with the descriptor that becomes readable when frames arrive.
    pub fn with_descriptor(&self, f: impl FnOnce(BorrowedFd<'_>)) {
        if let UplinkPort::Wire(wire) = self {
            f(wire.inward().descriptor());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
    use butterfly_packet::{build, checksum::Sum, mac::Mac, tcp::ACK};
    use butterfly_uplink::BURST;
    use butterfly_vhost::net::NetHeader;

    use super::*;
    use crate::harness::{Host, LINUX};
    use crate::overlay::{Own, TunnelConfig};
    use crate::world::policy::VnicPolicy;

    /// Frames that arrive.
    struct Arriving {
        event: OwnedFd,
        frames: Vec<Vec<u8>>,
        held: usize,
    }

    /// Holds no more to send than the smallest uplink there is.
    struct Small {
        room: Vec<u8>,
        queued: Vec<Vec<u8>>,
        sent: Arc<Mutex<Vec<Vec<u8>>>>,
    }

    fn small(
        sent: Arc<Mutex<Vec<Vec<u8>>>>,
        frames: Vec<Vec<u8>>,
    ) -> (Box<dyn Inward>, Box<dyn Outward>) {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let small = Small { room: Vec::new(), queued: Vec::new(), sent };
        (Box::new(Arriving { event, frames, held: 0 }), Box::new(small))
    }

    /// The worker holds the uplink while it serves it. A flood that arrived goes to vnics here, and
    /// must not ask for the uplink again.
    #[test]
    fn a_flood_from_another_host_does_not_wait_for_the_uplink() {
        let (me, other) = (Mac([2, 0xbf, 0, 0, 0, 1]), Mac([2, 0xbf, 0, 0, 0, 2]));
        let mut inside = vec![8, 0, 0, 0, 0, 0, 42, 0]; // VXLAN, VNI 42
        let from = Mac([2, 0, 0, 0, 0, 0xc]);
        inside.extend(build::ethernet(from, Mac::BROADCAST).payload(0x88b5, &[0; 46]));
        let outer = build::ethernet(other, me).ipv4([192, 168, 0, 2], [192, 168, 0, 1]);
        let small = small(Arc::default(), vec![outer.udp(50_000, 4789, &inside)]);
        let (done, over) = std::sync::mpsc::channel();
        // A thread of its own: a worker that waits for itself would never come back.
        std::thread::spawn(move || {
            let config = TunnelConfig::new([192, 168, 0, 1].into(), me);
            let mut host = Host::on_wire(&config, small).unwrap();
            let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
            host.vnic("a", Mac([2, 0, 0, 0, 0, 0xa]), 42, &policy).unwrap();
            let worker = &host.inside().0.board.first().unwrap();
            worker.uplink_started(None);
            host.settle();
            let _ = done.send(host.received().unwrap().get("a").map_or(0, Vec::len));
        });
        let got = over.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(got, Ok(1));
    }

    impl Inward for Arriving {
        fn receive(&mut self, max: usize) -> usize {
            self.held = self.frames.len().min(max);
            self.held
        }

        fn frame(&self, index: usize) -> &[u8] {
            &self.frames[index]
        }

        fn release(&mut self) {
            self.frames.drain(..std::mem::take(&mut self.held));
        }

        fn descriptor(&self) -> BorrowedFd<'_> {
            self.event.as_fd()
        }
    }

    impl Outward for Small {
        fn room(&mut self, len: usize) -> Option<&mut [u8]> {
            self.room = vec![0; len];
            (self.queued.len() < BURST).then_some(&mut self.room)
        }

        fn send(&mut self) {
            self.queued.push(std::mem::take(&mut self.room));
        }

        fn flush(&mut self) {
            self.sent.lock().unwrap().append(&mut self.queued);
        }
    }

    #[test]
    fn more_packets_than_the_uplink_holds_at_once_leave_all_the_same() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let small = small(sent.clone(), Vec::new());
        let (a, b) = (Mac([2, 0, 0, 0, 0, 0xa]), Mac([2, 0, 0, 0, 0, 0xb]));
        let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
        let mut host = Host::on_wire(&config, small).unwrap();
        let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
        let guest = GuestConfig { max_frame: 65_000, ..GuestConfig::default() };
        host.declare("a", a, 42, &policy).unwrap();
        host.attach("a", LINUX, &guest, &MemoryConfig::new(guest.memory_needed())).unwrap();
        host.settle();
        let (from, to) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let mut large =
            build::ethernet(a, b).ipv4(from, to).tcp(&build::Tcp::new(4000, 80, ACK), &[7; 60_480]);
        let pseudo = Sum::pseudo_v4(from.into(), to.into(), 6, (large.len() - 34) as u16).fold();
        large[50..52].copy_from_slice(&pseudo.to_be_bytes());
        let header = NetHeader {
            flags: NetHeader::FLAG_NEEDS_CSUM,
            gso_type: NetHeader::GSO_TCPV4,
            gso_size: 432,
            hdr_len: 54,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 0,
        };
        host.send("a", &large, header).unwrap();
        assert_eq!(sent.lock().unwrap().len(), 140, "{:?}", host.moved());
        sent.lock().unwrap().clear();
        // So do frames of the endpoint's own.
        for n in 0..100 {
            assert!(
                host.tunnel()
                    .unwrap()
                    .punt
                    .send(Own { frame: vec![n; 60], counted: false })
                    .is_ok()
            );
        }
        host.turn();
        let sent: Vec<u8> = sent.lock().unwrap().iter().map(|frame| frame[0]).collect();
        assert_eq!(sent, (0..100).collect::<Vec<u8>>());
    }
}

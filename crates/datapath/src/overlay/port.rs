//! The uplink as workers use it: a virtual machine's rings, or a port of its own kind.

use crate::engine::writer::{PerWorker, Writer};
use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use butterfly_uplink::Uplink;
use butterfly_vhost::port::Port;

/// The uplink's port.
pub(crate) enum UplinkPort {
    /// vhost-user.
    Ring(Arc<Port>),
    /// A wire for each worker: no other thread takes its lock while packets flow.
    Wire(PerWorker<Mutex<Box<dyn Uplink>>>),
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

    /// Returns a worker's wire.
    pub fn wire(&self, worker: Writer<'_>) -> Option<MutexGuard<'_, Box<dyn Uplink>>> {
        match self {
            UplinkPort::Ring(_) => None,
            UplinkPort::Wire(wires) => {
                wires.of(worker).map(|wire| wire.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Calls `f` with the descriptor that becomes readable when frames arrive.
    pub fn with_descriptor(&self, f: impl FnOnce(BorrowedFd<'_>)) {
        if let UplinkPort::Wire(wires) = self
            && let Some(wire) = wires.iter().next()
        {
            f(wire.lock().unwrap_or_else(PoisonError::into_inner).descriptor());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
    use butterfly_packet::{build, checksum::Sum, mac::Mac, tcp::ACK};
    use butterfly_uplink::{BURST, Counters, Info};
    use butterfly_vhost::net::NetHeader;

    use super::*;
    use crate::harness::{Host, LINUX};
    use crate::overlay::{Own, TunnelConfig};
    use crate::world::policy::VnicPolicy;

    /// An uplink that holds no more than the smallest there is.
    struct Small {
        event: OwnedFd,
        room: Vec<u8>,
        queued: Vec<Vec<u8>>,
        sent: Arc<Mutex<Vec<Vec<u8>>>>,
        /// Frames that arrive, and how many are held.
        arriving: Vec<Vec<u8>>,
        held: usize,
    }

    impl Small {
        fn new(sent: Arc<Mutex<Vec<Vec<u8>>>>, arriving: Vec<Vec<u8>>) -> Small {
            let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
            Small { event, room: Vec::new(), queued: Vec::new(), sent, arriving, held: 0 }
        }
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
        let small = Small::new(Arc::default(), vec![outer.udp(50_000, 4789, &inside)]);
        let (done, over) = std::sync::mpsc::channel();
        // A thread of its own: a worker that waits for itself would never come back.
        std::thread::spawn(move || {
            let config = TunnelConfig::new([192, 168, 0, 1].into(), me);
            let mut host = Host::on_wire(&config, Box::new(small)).unwrap();
            let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
            host.vnic("a", Mac([2, 0, 0, 0, 0, 0xa]), 42, &policy).unwrap();
            let worker = &host.inside().0.workers[0];
            worker.started(crate::engine::place::PollSource::Uplink, None);
            host.settle();
            let _ = done.send(host.received().unwrap().get("a").map_or(0, Vec::len));
        });
        let got = over.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(got, Ok(1));
    }

    impl Uplink for Small {
        fn info(&self) -> &Info {
            unreachable!()
        }

        fn counters(&self) -> Counters {
            Counters::default()
        }

        fn receive(&mut self, max: usize) -> usize {
            self.held = self.arriving.len().min(max);
            self.held
        }

        fn frame(&self, index: usize) -> &[u8] {
            &self.arriving[index]
        }

        fn release(&mut self) {
            self.arriving.drain(..std::mem::take(&mut self.held));
        }

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

        fn descriptor(&self) -> BorrowedFd<'_> {
            self.event.as_fd()
        }
    }

    #[test]
    fn more_packets_than_the_uplink_holds_at_once_leave_all_the_same() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let small = Small::new(sent.clone(), Vec::new());
        let (a, b) = (Mac([2, 0, 0, 0, 0, 0xa]), Mac([2, 0, 0, 0, 0, 0xb]));
        let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
        let mut host = Host::on_wire(&config, Box::new(small)).unwrap();
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

//! The uplink as workers use it: a virtual machine's rings, or a port of its own kind.

use std::{
    io,
    ops::{Deref, DerefMut},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

use butterfly_uplink::{Halves, Inward, Outward};
use butterfly_vhost::port::Port;

use crate::engine::place::{MAX_HALVES, MAX_UPLINK_QUEUES};

/// The uplink's port.
pub(crate) enum UplinkPort {
    /// vhost-user.
    Ring(Arc<Port>),
    /// A port of its own kind. Each of its receive queues has a worker, and all workers send.
    Wire(Wire),
}

/// The halves of a port of its own kind, each behind a lock of its own: who holds one that receives
/// delivers to guests meanwhile, and others who hold a guest's ring wait for one that sends. The
/// lock of one that sends is a leaf, but for those of mirrors.
pub(crate) struct Wire {
    /// By receive queue. Dropped before the others.
    inward: Vec<Mutex<Box<dyn Inward>>>,
    outward: Vec<Mutex<SendHalf>>,
}

/// A half that sends.
pub(crate) struct SendHalf {
    outward: Box<dyn Outward>,
    number: u8,
}

impl SendHalf {
    /// Returns its number, below [`MAX_HALVES`].
    pub fn number(&self) -> u8 {
        self.number
    }
}

impl Deref for SendHalf {
    type Target = dyn Outward;

    fn deref(&self) -> &(dyn Outward + 'static) {
        &*self.outward
    }
}

impl DerefMut for SendHalf {
    fn deref_mut(&mut self) -> &mut (dyn Outward + 'static) {
        &mut *self.outward
    }
}

impl Wire {
    pub fn new(Halves { inward, outward }: Halves) -> Wire {
        let numbered = outward.into_iter().take(MAX_HALVES).zip(0..);
        Wire {
            inward: inward.into_iter().take(MAX_UPLINK_QUEUES).map(Mutex::new).collect(),
            outward: numbered
                .map(|(outward, number)| Mutex::new(SendHalf { outward, number }))
                .collect(),
        }
    }

    /// Returns the half of a receive queue. `None` also while another thread has it.
    pub fn try_inward(&self, queue: u16) -> Option<MutexGuard<'_, Box<dyn Inward>>> {
        match self.inward.get(usize::from(queue))?.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns a half that sends, by its number.
    pub fn outward(&self, half: u8) -> Option<MutexGuard<'_, SendHalf>> {
        let half = self.outward.get(usize::from(half))?;
        Some(half.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// Returns the number of its receive queues.
    pub fn queues(&self) -> usize {
        match self {
            UplinkPort::Ring(_) => 1,
            UplinkPort::Wire(wire) => wire.inward.len(),
        }
    }

    /// Returns the number of halves that send.
    pub fn halves(&self) -> usize {
        match self {
            UplinkPort::Ring(_) => 1,
            UplinkPort::Wire(wire) => wire.outward.len(),
        }
    }

    /// Returns what becomes readable when frames arrive, by receive queue. None for a vhost-user
    /// port: its other end tells when it has a kick descriptor.
    pub fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let UplinkPort::Wire(wire) = self else { return Ok(Vec::new()) };
        let of = |half: &Mutex<Box<dyn Inward>>| {
            let half = half.lock().unwrap_or_else(PoisonError::into_inner);
            half.descriptor().try_clone_to_owned()
        };
        wire.inward.iter().map(of).collect()
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

    fn small(sent: Arc<Mutex<Vec<Vec<u8>>>>, frames: Vec<Vec<u8>>) -> Halves {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let small = Small { room: Vec::new(), queued: Vec::new(), sent };
        let arriving = Arriving { event, frames, held: 0 };
        Halves { inward: vec![Box::new(arriving)], outward: vec![Box::new(small)] }
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
            let mut host = Host::on_wire(&config, small, 1).unwrap();
            let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
            host.vnic("a", Mac([2, 0, 0, 0, 0, 0xa]), 42, &policy).unwrap();
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

    /// Two workers, each with a receive queue and a half that sends of its own: what comes by
    /// either queue arrives, and each vnic's frames leave by the half of its worker.
    #[test]
    fn queues_and_halves_have_workers() {
        let (me, other) = (Mac([2, 0xbf, 0, 0, 0, 1]), Mac([2, 0xbf, 0, 0, 0, 2]));
        let far = Mac([2, 0, 0, 0, 0, 0xc]);
        let vnics = [Mac([2, 0, 0, 0, 0, 0xa]), Mac([2, 0, 0, 0, 0, 0xb])];
        let arriving = |to: Mac| {
            let mut inside = vec![8, 0, 0, 0, 0, 0, 42, 0]; // VXLAN, VNI 42
            inside.extend(build::ethernet(far, to).payload(0x88b5, &[0; 46]));
            let outer = build::ethernet(other, me).ipv4([192, 168, 0, 2], [192, 168, 0, 1]);
            outer.udp(50_000, 4789, &inside)
        };
        let sent: [Arc<Mutex<Vec<Vec<u8>>>>; 2] = Default::default();
        let mut halves = Halves { inward: Vec::new(), outward: Vec::new() };
        for (vnic, sent) in vnics.iter().zip(&sent) {
            let one = small(sent.clone(), vec![arriving(*vnic); 3]);
            halves.inward.extend(one.inward);
            halves.outward.extend(one.outward);
        }
        let config = TunnelConfig::new([192, 168, 0, 1].into(), me);
        let mut host = Host::on_wire(&config, halves, 2).unwrap();
        let serving = |host: &Host, queue: usize| host.tunnel().unwrap().serving[queue].by(0);
        assert_eq!([0, 1].map(|queue| serving(&host, queue)), [Some(0), Some(1)]);
        let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
        for (id, mac) in ["a", "b"].iter().zip(vnics) {
            host.vnic(id, mac, 42, &policy).unwrap();
        }
        host.settle();
        let got = host.received().unwrap();
        assert_eq!(["a", "b"].map(|id| got.get(id).map_or(0, Vec::len)), [3, 3]);
        for (id, mac) in ["a", "b"].iter().zip(vnics) {
            let frame = build::ethernet(mac, far).payload(0x88b5, &[0; 46]);
            host.send(id, &frame, NetHeader::default()).unwrap();
        }
        assert_eq!(sent.each_ref().map(|sent| sent.lock().unwrap().len()), [1, 1]);
        assert!(host.tunnel().unwrap().port.descriptors().unwrap().len() == 2);
    }

    #[test]
    fn more_packets_than_the_uplink_holds_at_once_leave_all_the_same() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let small = small(sent.clone(), Vec::new());
        let (a, b) = (Mac([2, 0, 0, 0, 0, 0xa]), Mac([2, 0, 0, 0, 0, 0xb]));
        let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
        let mut host = Host::on_wire(&config, small, 1).unwrap();
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

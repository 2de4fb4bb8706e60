//! Probe: the outlet of an explanation. It looks at rings and at the uplink, takes notes of the
//! frames that delivery gives it, and writes nothing anywhere.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    ops::{Deref, DerefMut, Range},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use butterfly_packet::checksum::Sum;
use butterfly_vhost::{
    net::{Features, NetHeader},
    port::Pair,
    ring::{CallFd, Delivery, Frames, Joined, NotDelivered},
};

use crate::engine::reason::DropReason;
use crate::overlay::{NO_NEIGHBOUR, Tunnel, UPLINK_DOWN, peers::Peer};
use crate::stages::{
    leaving::Leaving,
    outlet::{Outlet, Receive},
};
use crate::world::snapshot::Vnic;

/// Event of delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The vnic in a slot got the frame. `free` is the number of buffers that its guest offers, if
    /// the ring was not busy.
    Taken { slot: u32, free: Option<u16> },
    /// The vnic in a slot did not get it. `receiver` is `None` if no vnic did.
    Refused { receiver: Option<u32>, reason: DropReason, charged: u32 },
    /// It left for a host, or for the group of the network.
    Left { to: IpAddr, group: bool },
    /// It waits for the next hop to a host.
    Waits(IpAddr),
    /// It did not leave.
    NotSent { reason: DropReason, charged: u32 },
}

/// Notes of one delivery.
#[derive(Default)]
pub(super) struct Probe {
    /// The uplink does not carry frames.
    down: Cell<bool>,
    events: RefCell<Vec<Event>>,
    /// The answer that the sender would get, of a router or its network.
    answer: RefCell<Vec<u8>>,
}

impl Probe {
    /// Returns the answer to the sender; nothing if there is none.
    pub fn answer(&self) -> Vec<u8> {
        self.answer.take()
    }

    /// Returns the events, in order.
    pub fn events(self) -> Vec<Event> {
        self.events.into_inner()
    }

    fn note(&self, event: Event) {
        let mut events = self.events.borrow_mut();
        // Segments of a frame go to the same place.
        if events.last() != Some(&event) {
            events.push(event);
        }
    }
}

/// Looks at a ring while a worker has it.
const LOOKS: u32 = 64;

/// A ring that was looked at.
pub(super) struct Offered<'a> {
    probe: &'a Probe,
    slot: u32,
    features: Features,
    /// Buffers that its guest offers. `None` if workers had the ring all the time, which means that
    /// they deliver to it.
    free: Option<u16>,
    /// Frames that it took since.
    taken: u16,
    held: bool,
}

/// An [`Offered`], or nothing where no guest is attached.
pub(super) struct Look<'a>(Option<Offered<'a>>);

impl<'a> Deref for Look<'a> {
    type Target = Option<Offered<'a>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Look<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'p> Outlet for &'p Probe {
    const SENDS: bool = false;
    type Ring = Offered<'p>;
    type Held<'a>
        = Look<'p>
    where
        Self: 'a;

    /// Never waits for a worker.
    fn open<'a>(&'a self, receiver: &'a Vnic, pair: u8) -> Look<'p> {
        let offered = |features, free| Offered {
            probe: self,
            slot: receiver.place.slot,
            features,
            free,
            taken: 0,
            held: false,
        };
        for _ in 0..LOOKS {
            let pair = receiver.shared.port.pair(pair.into());
            if let Some(ring) = pair.and_then(Pair::try_rx) {
                let ring = ring.as_ref().filter(|ring| {
                    let status = ring.status();
                    status.enabled && !status.broken
                });
                if ring.is_some_and(|ring| ring.status().held) {
                    return Look(Some(Offered { held: true, ..offered(Features::NONE, None) }));
                }
                return Look(
                    ring.map(|ring| offered(ring.features(), Some(ring.status().waiting))),
                );
            }
            std::thread::yield_now();
        }
        Look(Some(offered(Features::NONE, None)))
    }

    fn uplink<'a>(&'a self, tunnel: &'a Tunnel) -> Leaving<'a> {
        self.down.set(tunnel.down.load(Relaxed) || tunnel.port.is_down());
        Leaving::Nothing
    }

    fn would_leave(&self, to: IpAddr, group: bool) -> Result<(), DropReason> {
        if self.down.get() {
            return Err(UPLINK_DOWN);
        }
        self.note(Event::Left { to, group });
        Ok(())
    }

    fn waits(&self, peer: &Peer, to: IpAddr, keep: bool) -> Option<Result<(), DropReason>> {
        // The worker asks for the next hop all the same, but nothing leaves.
        if self.down.get() {
            return Some(Err(UPLINK_DOWN));
        }
        if !keep || peer.is_waited_for() {
            return Some(Err(NO_NEIGHBOUR));
        }
        self.note(Event::Waits(to));
        Some(Ok(()))
    }

    fn refused(&self, receiver: Option<&Vnic>, reason: DropReason, charged: u32) {
        let receiver = receiver.map(|receiver| receiver.place.slot);
        self.note(Event::Refused { receiver, reason, charged });
    }

    fn not_sent(&self, reason: DropReason, charged: u32) {
        self.note(Event::NotSent { reason, charged });
    }
}

impl Offered<'_> {
    fn take(&mut self) -> Result<(), NotDelivered> {
        if self.held {
            return Err(NotDelivered::Held);
        }
        if self.offered() == Some(0) {
            return Err(NotDelivered::Full);
        }
        self.taken = self.taken.saturating_add(1);
        self.probe.note(Event::Taken { slot: self.slot, free: self.free });
        Ok(())
    }
}

impl Receive for Offered<'_> {
    fn features(&self) -> Features {
        self.features
    }

    fn offered(&self) -> Option<u16> {
        self.free.map(|free| free.saturating_sub(self.taken))
    }

    fn prepare(&mut self, _: u16) {}

    /// Leaves each frame to [`Self::deliver_one`].
    fn deliver_run(&mut self, _: &Frames<'_>, _: Range<usize>) -> (usize, u64) {
        (0, 0)
    }

    fn deliver_one(&mut self, _: &Frames<'_>, _: usize) -> Result<(), NotDelivered> {
        self.take()
    }

    fn deliver_first(&mut self, _: &Frames<'_>) -> Result<(), NotDelivered> {
        self.take()
    }

    fn deliver(&mut self, _: &Frames<'_>, _: &Delivery<'_>) -> Result<(), NotDelivered> {
        self.take()
    }

    /// Keeps an answer to the sender, which is no event.
    fn deliver_own(&mut self, answer: &[u8]) -> Result<(), NotDelivered> {
        self.probe.answer.replace(answer.to_vec());
        Ok(())
    }

    /// Joins nothing: an explanation has one frame.
    fn deliver_joined<R, F>(
        &mut self,
        _: &Frames<'_>,
        _: Joined<R, F>,
    ) -> Result<usize, NotDelivered>
    where
        R: Fn(usize, Sum) -> bool,
        F: FnOnce(&mut [u8], usize, u32) -> NetHeader,
    {
        Ok(0)
    }

    fn show(&mut self) -> Option<Arc<CallFd>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, sync::atomic::Ordering::Relaxed};

    use butterfly_packet::{build, mac::Mac};

    use crate::{
        harness::Host,
        overlay::TunnelConfig,
        report::explain::{Fate, Origin},
        session::SessionConfig,
        world::policy::VnicPolicy,
    };

    /// Nothing leaves by a dead uplink, also if a next hop would have to be found first.
    #[test]
    fn a_dead_uplink_comes_before_an_unknown_next_hop() {
        const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
        let me = IpAddr::from([192, 0, 2, 1]);
        let there = IpAddr::from([192, 0, 2, 2]);
        let sessions = SessionConfig { capacity: 64, ..SessionConfig::default() };
        let config = TunnelConfig::new(me, Mac([2, 0xbf, 0, 0, 0, 1]));
        let mut host = Host::with_tunnel(sessions, Some(&config)).unwrap();
        let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
        host.vnic("a", A, 7, &policy).unwrap();
        host.set_peers(vec![there], Default::default()).unwrap();
        let frame = build::ethernet(A, Mac::BROADCAST).arp_request([10, 0, 0, 1], [10, 0, 0, 2]);
        let from = Origin::Vnic("a".into());
        let fate = |down| {
            host.tunnel().unwrap().down.store(down, Relaxed);
            let walk = host.explain_frame(&from, &frame).unwrap();
            let Fate::Flooded { here, away, refused } = walk.fate else { panic!("{walk:?}") };
            assert!(here.is_empty());
            (away, refused.iter().map(|refused| refused.reason.name).collect::<Vec<_>>())
        };
        assert_eq!(fate(false), (vec![there], vec![]));
        assert_eq!(fate(true), (vec![], vec!["uplink-down"]));
        assert_eq!(fate(false), (vec![there], vec![]), "the question asks nobody");
    }
}

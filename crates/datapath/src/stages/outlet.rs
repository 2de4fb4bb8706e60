//! Outlet: the destinations of delivery. For workers these are the rings of guests and the uplink;
//! an explanation has one that only takes notes, so that delivery is written once.

use std::{
    net::IpAddr,
    ops::{DerefMut, Range},
    sync::{Arc, MutexGuard},
};

use butterfly_mem::blackbox::Line;
use butterfly_packet::checksum::Sum;
use butterfly_vhost::{
    net::{Features, NetHeader},
    ring::{CallFd, Delivery, Frames, Joined, NotDelivered, RxRing},
};

use crate::engine::reason::DropReason;
use crate::overlay::{Tunnel, peers::Peer};
use crate::stages::leaving::Leaving;
use crate::world::snapshot::Vnic;

/// Destinations of delivered frames.
pub(crate) trait Outlet {
    /// True if packets for other hosts leave, and count for those hosts.
    const SENDS: bool = true;
    type Ring: Receive;
    type Held<'a>: DerefMut<Target = Option<Self::Ring>>
    where
        Self: 'a;

    /// Returns a receive ring of a vnic by its pair, held. `None` inside: no guest is attached.
    fn open<'a>(&'a self, receiver: &'a Vnic, pair: u8) -> Self::Held<'a>;

    /// Notes that the rings of a vnic are written to, one of which is held.
    #[inline(always)]
    fn writes(&self, _: &Vnic) {}

    /// Returns the uplink, to send.
    fn uplink<'a>(&'a self, tunnel: &'a Tunnel) -> Leaving<'a>;

    /// Returns the outcome of a packet that would leave for a host, or for its network's group.
    /// Called instead of sending, unless [`Self::SENDS`].
    #[inline(always)]
    fn would_leave(&self, _: IpAddr, _group: bool) -> Result<(), DropReason> {
        Ok(())
    }

    /// Returns the outcome of a frame to another host whose next hop is not known, and which may be
    /// kept until then if `keep`. `None` leaves it to the table of hosts.
    #[inline(always)]
    fn waits(&self, _: &Peer, _: IpAddr, _keep: bool) -> Option<Result<(), DropReason>> {
        None
    }

    /// Notes that a receiver did not get a frame, or no vnic if it is `None`. The drop is charged
    /// to the vnic in slot `charged`.
    #[inline(always)]
    fn refused(&self, _receiver: Option<&Vnic>, _: DropReason, _charged: u32) {}

    /// Notes that a frame did not leave for another host. The drop is charged to the vnic in slot
    /// `charged`.
    #[inline(always)]
    fn not_sent(&self, _: DropReason, _charged: u32) {}
}

/// A receive ring, as far as delivery uses it. [`RxRing`] describes each method.
pub(crate) trait Receive {
    fn features(&self) -> Features;
    /// Returns the number of buffers that its guest offers now, if that is known.
    fn offered(&self) -> Option<u16>;
    fn prepare(&mut self, n: u16);
    fn deliver_run(&mut self, frames: &Frames<'_>, range: Range<usize>) -> (usize, u64);
    fn deliver_one(&mut self, frames: &Frames<'_>, index: usize) -> Result<(), NotDelivered>;
    fn deliver_first(&mut self, frames: &Frames<'_>) -> Result<(), NotDelivered>;
    fn deliver(&mut self, frames: &Frames<'_>, delivery: &Delivery<'_>)
    -> Result<(), NotDelivered>;
    fn deliver_own(&mut self, frame: &[u8]) -> Result<(), NotDelivered>;
    fn deliver_joined<R, F>(
        &mut self,
        frames: &Frames<'_>,
        joined: Joined<R, F>,
    ) -> Result<usize, NotDelivered>
    where
        R: Fn(usize, Sum) -> bool,
        F: FnOnce(&mut [u8], usize, u32) -> NetHeader;

    /// Shows a guest its new frames, unless its memory was taken away meanwhile. Returns how to
    /// interrupt it, if it wants that.
    fn show(&mut self) -> Option<Arc<CallFd>>;
}

/// Rings of guests, and a half of the uplink. Each ring that is opened is noted in the worker's
/// line.
#[derive(Clone, Copy)]
pub(crate) struct Rings(pub &'static Line, pub u8);

impl Outlet for Rings {
    type Ring = RxRing;
    type Held<'a> = MutexGuard<'a, Option<RxRing>>;

    #[inline(always)]
    fn open<'a>(&'a self, receiver: &'a Vnic, pair: u8) -> MutexGuard<'a, Option<RxRing>> {
        self.0.write(receiver.place.slot);
        #[cfg(debug_assertions)]
        if !receiver.shared.port.is_held() {
            crate::engine::fail_points::receiver(&receiver.id);
        }
        receiver.shared.port.rx_of(pair)
    }

    #[inline(always)]
    fn writes(&self, receiver: &Vnic) {
        self.0.write(receiver.place.slot);
    }

    #[inline(always)]
    fn uplink<'a>(&'a self, tunnel: &'a Tunnel) -> Leaving<'a> {
        Leaving::of(tunnel, self.1)
    }
}

impl Receive for RxRing {
    #[inline(always)]
    fn features(&self) -> Features {
        RxRing::features(self)
    }

    fn offered(&self) -> Option<u16> {
        let status = self.status();
        (status.enabled && !status.held).then_some(status.waiting)
    }

    #[inline(always)]
    fn prepare(&mut self, n: u16) {
        RxRing::prepare(self, n);
    }

    #[inline(always)]
    fn deliver_run(&mut self, frames: &Frames<'_>, range: Range<usize>) -> (usize, u64) {
        RxRing::deliver_run(self, frames, range)
    }

    #[inline(always)]
    fn deliver_one(&mut self, frames: &Frames<'_>, index: usize) -> Result<(), NotDelivered> {
        RxRing::deliver_one(self, frames, index)
    }

    #[inline(always)]
    fn deliver_first(&mut self, frames: &Frames<'_>) -> Result<(), NotDelivered> {
        RxRing::deliver_first(self, frames)
    }

    #[inline(always)]
    fn deliver(
        &mut self,
        frames: &Frames<'_>,
        delivery: &Delivery<'_>,
    ) -> Result<(), NotDelivered> {
        RxRing::deliver(self, frames, delivery)
    }

    #[inline(always)]
    fn deliver_own(&mut self, frame: &[u8]) -> Result<(), NotDelivered> {
        RxRing::deliver_own(self, frame)
    }

    fn deliver_joined<R, F>(
        &mut self,
        frames: &Frames<'_>,
        joined: Joined<R, F>,
    ) -> Result<usize, NotDelivered>
    where
        R: Fn(usize, Sum) -> bool,
        F: FnOnce(&mut [u8], usize, u32) -> NetHeader,
    {
        RxRing::deliver_joined(self, frames, joined)
    }

    #[inline(always)]
    fn show(&mut self) -> Option<Arc<CallFd>> {
        let interrupt = self.publish();
        if self.poisoned() {
            self.rest();
        }
        interrupt
    }
}

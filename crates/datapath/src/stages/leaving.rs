//! The uplink of a worker while frames go out.

use std::sync::{Arc, MutexGuard, atomic::Ordering::Relaxed};

use butterfly_vhost::ring::{CallFd, RxRing};

use crate::engine::tap::Tap;
use crate::overlay::{SendHalf, Tunnel, UplinkPort};

/// The uplink of a worker while frames go out. The other side sees them when it is published.
pub(crate) enum Leaving<'a> {
    Nothing,
    Ring(MutexGuard<'a, Option<RxRing>>),
    Wire(MutexGuard<'a, SendHalf>),
    /// One of those with a tap.
    Tapped(Held<'a>, Tap<'a>),
}

/// An uplink that is there, held to send.
pub(crate) enum Held<'a> {
    Ring(MutexGuard<'a, Option<RxRing>>),
    Wire(MutexGuard<'a, SendHalf>),
}
impl<'a> Leaving<'a> {
    /// Returns the uplink, to send by this half of it.
    pub fn of(tunnel: &'a Tunnel, half: u8) -> Leaving<'a> {
        match &tunnel.port {
            _ if tunnel.down.load(Relaxed) => Leaving::Nothing,
            UplinkPort::Ring(port) => Leaving::Ring(port.rx()),
            UplinkPort::Wire(wire) => wire.outward(half).map_or(Leaving::Nothing, Leaving::Wire),
        }
    }

    /// Returns the uplink with a tap.
    #[cold]
    pub fn tapped(self, tap: Tap<'a>) -> Leaving<'a> {
        match self {
            Leaving::Ring(ring) => Leaving::Tapped(Held::Ring(ring), tap),
            Leaving::Wire(wire) => Leaving::Tapped(Held::Wire(wire), tap),
            other => other,
        }
    }
}

impl Leaving<'_> {
    /// Shows the other side the frames that were sent. Returns how to interrupt it, if it wants
    /// that. Adds its half to `pending` if that must be looked at again.
    pub fn publish(self, pending: &mut u32) -> Option<Arc<CallFd>> {
        match self {
            Leaving::Nothing => None,
            Leaving::Tapped(Held::Ring(ring), _) => Leaving::Ring(ring).publish(pending),
            Leaving::Tapped(Held::Wire(wire), _) => Leaving::Wire(wire).publish(pending),
            Leaving::Ring(mut guard) => {
                let ring = guard.as_mut()?;
                let call = ring.publish();
                if ring.poisoned() {
                    ring.rest();
                }
                call
            }
            Leaving::Wire(mut wire) => {
                wire.flush();
                *pending |= u32::from(wire.pending()) << wire.number();
                None
            }
        }
    }
}

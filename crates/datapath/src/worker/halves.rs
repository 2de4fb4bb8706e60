//! Halves of the uplink by which rings send that moved.
//!
//! A worker sends by one half of the uplink, and halves have no order among them. So a ring that
//! sent to other hosts of late rests for [`REST_US`] when it moves. If the half of its former
//! worker is not through with its frames by then, it goes on by that one until it is. So the order
//! of a flow holds, and the new worker serves its other rings meanwhile.

use arrayvec::ArrayVec;
use butterfly_mem::cpu;

use super::shared::Shared;
use crate::engine::place::PollSource;
use crate::overlay::UplinkPort;
use crate::world::serving::Serving;

/// Pause of a ring that moved. A virtual interface may have handed frames on and still hold them.
const REST_US: u64 = 1000;
/// Time after the last frame in which a half is waited for: one that stands still has no order.
const LONGEST_US: u64 = 100_000;
/// Time for which a ring goes on by the half of its former worker.
const BY_US: u64 = 10_000;
/// Tenths of a second in which a vnic sent to other hosts of late.
const LATELY: u32 = 2;

/// The half of the uplink by which a ring sent that moved. Times are ticks of the time stamp
/// counter.
#[derive(Clone, Copy)]
pub(crate) struct FormerHalf {
    half: u8,
    /// Frames that it had queued when the ring had sent last.
    queued: u32,
    rests_until: u64,
    until: u64,
    /// It goes on by that half until then. After that it rests until the half is through.
    by_until: u64,
}

/// Half by which a ring that moved goes on.
pub(super) enum GoesOn {
    /// It rests.
    Not,
    /// By that of its former worker.
    By(u8),
    /// By its worker's own.
    ByOwn,
}

fn ticks(us: u64) -> u64 {
    cpu::tsc_hz() / 1_000_000 * us
}

fn after(us: u64) -> u64 {
    cpu::tsc().wrapping_add(ticks(us))
}

fn is_before(now: u64, then: u64) -> bool {
    now.wrapping_sub(then).cast_signed() < 0
}

impl FormerHalf {
    /// Returns the half by which a ring sent of late that a worker gives up, which sends by `own`.
    /// A ring that has `former` sent nothing by that yet.
    pub fn of(
        shared: &Shared,
        serving: &Serving,
        former: Option<FormerHalf>,
        own: u8,
    ) -> Option<FormerHalf> {
        let (half, queued) = match former {
            Some(former) => (former.half, former.queued),
            None => {
                let halves = shared.tunnel.as_ref().map_or(0, |tunnel| tunnel.port.halves());
                let since = shared.clock.tenths().wrapping_sub(serving.left());
                if halves < 2 || since > LATELY {
                    return None;
                }
                (own, with_half(shared, own, |half| half.queued())?)
            }
        };
        let (rests_until, until) = (after(REST_US), after(LONGEST_US));
        Some(FormerHalf { half, queued, rests_until, until, by_until: after(BY_US) })
    }

    /// Returns whether it is a half by which this worker does not send by itself.
    pub fn is_not(&self, own: u8) -> bool {
        self.half != own
    }

    fn is_through(&self, shared: &Shared) -> bool {
        with_half(shared, self.half, |half| half.is_through(self.queued)).unwrap_or(true)
    }
}

fn with_half<T>(
    shared: &Shared,
    half: u8,
    look: impl FnOnce(&dyn butterfly_uplink::Outward) -> T,
) -> Option<T> {
    match &shared.tunnel.as_ref()?.port {
        UplinkPort::Wire(wire) => Some(look(&**wire.outward(half)?)),
        UplinkPort::Ring(_) => None,
    }
}

/// Most rings of a worker that may rest at a time.
const MOST: usize = 1024;

/// Rings of a worker that moved, with the halves by which they sent before, until those are
/// through. Usually there is none.
#[derive(Default)]
pub(super) struct Formers(Box<ArrayVec<(PollSource, FormerHalf), MOST>>);

impl Formers {
    /// True if no ring rests.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a ring. Beyond [`MOST`] it goes on by its worker's own half: then frames of one flow
    /// may come in another order.
    pub fn add(&mut self, source: PollSource, former: FormerHalf) {
        self.take(source);
        self.0.retain(|(_, former)| is_before(cpu::tsc(), former.until));
        let _ = self.0.try_push((source, former));
    }

    /// Forgets a ring. Returns the half by which it sent before.
    pub fn take(&mut self, source: PollSource) -> Option<FormerHalf> {
        let at = self.0.iter().position(|(of, _)| *of == source)?;
        self.0.swap_pop(at).map(|(_, former)| former)
    }

    fn of(&mut self, source: PollSource) -> Option<&mut FormerHalf> {
        self.0.iter_mut().find(|(of, _)| *of == source).map(|(_, former)| former)
    }

    /// True if a ring is among them.
    #[cold]
    pub fn has(&self, source: PollSource) -> bool {
        self.0.iter().any(|(of, _)| *of == source)
    }

    /// Returns by which half a ring goes on.
    #[cold]
    pub fn goes_on(&mut self, shared: &Shared, source: PollSource, now: u64) -> GoesOn {
        // One whose vnic went is never asked for again.
        if self.0.first().is_some_and(|(_, first)| !is_before(now, first.until)) {
            self.0.swap_pop(0);
        }
        match self.of(source) {
            Some(it) if is_before(now, it.rests_until) => GoesOn::Not,
            Some(it) if is_before(now, it.until) && !it.is_through(shared) => {
                if is_before(now, it.by_until) {
                    return GoesOn::By(it.half);
                }
                // A ring that always has frames would never come to its own.
                if is_before(now, it.by_until.wrapping_add(ticks(REST_US))) {
                    return GoesOn::Not;
                }
                self.take(source);
                GoesOn::ByOwn
            }
            _ => {
                self.take(source);
                GoesOn::ByOwn
            }
        }
    }

    /// Notes that a ring sent, if it did by the half of its former worker.
    #[cold]
    pub fn sent(&mut self, shared: &Shared, source: PollSource) {
        if let Some(it) = self.of(source) {
            it.queued = with_half(shared, it.half, |half| half.queued()).unwrap_or(it.queued);
            it.until = after(LONGEST_US);
        }
    }
}

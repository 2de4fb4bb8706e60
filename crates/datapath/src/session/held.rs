//! The second line of a record, while one thread changes it.
//!
//! Both directions of a session, and frames of one direction, may be judged by several workers at
//! once. So a bit of the line's first word, [`LOCKED`], is a lock. Its holder makes some ten
//! stores, touches no memory of a guest and calls nothing that waits. It may hold a bucket's lock;
//! with the line it takes no other.
//!
//! **Late changes.** A worker notes what a batch changes in a session and writes it when the batch
//! is judged. By then the record may be another session's. So a note has the session's number
//! ([`Record::tenant`]), which is compared *under the lock*. [`Record::erase`] raises it before
//! [`Record::write`] takes the lock and gives it back with a release. So a note that got the lock
//! after that write sees the new number. One that got it before changes a free record, all of which
//! `write` replaces.
//!
//! **TCP.** Once a connection is established, a segment changes only the marks of its own
//! direction, which only grow, and the state, which only climbs. So workers judge by copies of the
//! marks, and the copies are merged ([`Track::merged`]). Before that, and while the marks of a
//! connection that came from another host may be out of date, a segment may set any mark:
//! [`is_unsettled`]. Then each is judged under the lock ([`Record::step`]). A connection that is
//! settled stays so.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::ip::tcp::{self, Outcome, Segment, TcpState, Track, later};
use crate::session::{
    memory::{LOOKS, fence, spin_loop, yield_now},
    record::{COUNTERS, ERRORS_PER_SECOND, Line2, MARKS, PACKETS, Record, SEEN, seen_of, track_of},
    state::State,
};

/// In the byte of FINs: a thread changes the line.
pub(super) const LOCKED: u64 = 1 << 23;

/// A session's changes by a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchChanges<'a> {
    pub direction: usize,
    pub packets: u64,
    pub bytes: u64,
    /// Marks of a settled connection that changed.
    pub track: Option<&'a Track>,
    /// Time of the last frame, and the number of the state, if a frame came that keeps the session
    /// alive.
    pub seen: Option<(u32, u8)>,
}

/// Returns whether a segment may change the marks of both directions.
#[inline(always)]
pub(crate) fn is_unsettled(track: &Track) -> bool {
    track.state < TcpState::Established || track.is_adrift()
}

/// The second line of a record, which no other thread changes until this is dropped.
pub(crate) struct HeldLine<'a> {
    record: Record<'a>,
    /// First word of the line, as it will be.
    word: u64,
}

impl Drop for HeldLine<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.record.word(SEEN).store(self.word, Release);
    }
}

impl<'a> Record<'a> {
    /// Takes the second line, whichever session's it is.
    #[inline(always)]
    pub(super) fn hold(&self) -> HeldLine<'a> {
        match self.try_hold() {
            Some(held) => held,
            None => self.wait(),
        }
    }

    #[inline(always)]
    fn try_hold(&self) -> Option<HeldLine<'a>> {
        let seen = self.word(SEEN);
        let word = seen.load(Relaxed);
        let free = word & LOCKED == 0;
        (free && seen.compare_exchange(word, word | LOCKED, Acquire, Relaxed).is_ok())
            .then(|| HeldLine { record: *self, word })
    }

    /// Waits for the line. Ends, as a holder needs nothing to go on but its processor.
    #[cold]
    #[inline(never)]
    fn wait(&self) -> HeldLine<'a> {
        loop {
            for _ in 0..LOOKS {
                if let Some(held) = self.try_hold() {
                    return held;
                }
                spin_loop();
            }
            yield_now();
        }
    }

    /// Takes the second line of the session with this number; `None` if it is over. The number is
    /// that of a session that was in the record: a free record has the number of the next one.
    #[inline(always)]
    fn hold_of(&self, tenant: u16) -> Option<HeldLine<'a>> {
        let held = self.hold();
        if self.tenant() == tenant { Some(held) } else { None }
    }

    /// Writes what a batch changed in a session, unless it is over. Asks for the changes when it
    /// has the line: until then they need no registers.
    #[inline(always)]
    pub fn settle<'c>(&self, tenant: u16, changes: impl FnOnce() -> BatchChanges<'c>) {
        let Some(mut held) = self.hold_of(tenant) else { return };
        let changes = changes();
        held.count(changes.direction, changes.packets, changes.bytes);
        if let Some(track) = changes.track {
            held.set_track(&held.track().merged(changes.direction, track));
        }
        if let Some((now, state)) = changes.seen {
            held.see(now, state);
        }
    }

    /// Judges a segment of a connection that [`is_unsettled`], and writes what it changes. Returns
    /// the marks as they are now; `None` if the session is over.
    pub fn step(
        &self,
        tenant: u16,
        direction: usize,
        segment: &Segment,
        now: u32,
    ) -> Option<(Track, Outcome)> {
        let mut held = self.hold_of(tenant)?;
        let before = held.track();
        let (next, outcome) = tcp::step(before, direction, segment);
        if outcome != Outcome::Pass {
            return Some((before, outcome));
        }
        held.set_track(&next);
        held.see(now, next.state as u8);
        Some((next, outcome))
    }

    /// Returns the outcome of a segment by the marks of this moment, and changes nothing. `None` if
    /// the session is over.
    pub fn outcome(&self, tenant: u16, direction: usize, segment: &Segment) -> Option<Outcome> {
        let before = self.hold_of(tenant)?.track();
        Some(tcp::step(before, direction, segment).1)
    }

    /// Has a segment that does not fit set the marks of a connection anew, if they may be out of
    /// date. Returns whether they still may be when the segment has passed.
    pub fn catch_up(&self, tenant: u16, direction: usize, segment: &Segment, now: u32) -> bool {
        let Some(mut held) = self.hold_of(tenant) else { return false };
        let before = held.track();
        let (next, outcome) = tcp::step(before, direction, segment);
        if outcome == Outcome::Pass {
            return next.is_adrift();
        }
        match tcp::catch_up(&before, direction, segment) {
            Some(known) if outcome == Outcome::Refuse => {
                held.set_track(&known);
                held.see(now, known.state as u8);
                false
            }
            _ => before.is_adrift(),
        }
    }

    /// Notes that a change of policy took back a TCP connection: its highest state.
    pub(super) fn cut(&self, now: u32) {
        let mut held = self.hold();
        let (seen, _) = seen_of(held.word);
        held.set_seen(later(now, seen), State::Tcp(TcpState::Cut));
    }

    /// Counts an ICMP error about a session without TCP marks, and returns whether it may pass.
    pub fn take_error(&self, tenant: u16, now: u32) -> bool {
        self.hold_of(tenant).is_some_and(|held| held.take_error(now))
    }

    /// Returns the line of the session with this number, all of one moment; `None` if it is over.
    pub fn line2_of(&self, tenant: u16) -> Option<Line2> {
        let _held = self.hold_of(tenant)?;
        Some(self.line2())
    }

    /// Empties the line's first word in a record that no session was ever in: a repair looks at no
    /// such record, and a damaged file may have the lock in it.
    pub(super) fn begin(&self) {
        self.word(SEEN).store(0, Relaxed);
    }

    /// Returns whether a thread is changing the line.
    pub(super) fn is_held(&self) -> bool {
        self.word(SEEN).load(Relaxed) & LOCKED != 0
    }

    /// Returns the time of the last frame, the number of the state, and the word that has both. The
    /// first step of a copy.
    #[inline(always)]
    pub fn seen_first(&self) -> (u32, u8, u64) {
        let word = self.word(SEEN).load(Acquire);
        let (seen, state) = seen_of(word);
        (seen, state, word)
    }

    /// Returns the TCP marks, given the word of [`Self::seen_first`]: none is older than that. The
    /// second step of a copy. Marks of a connection that is not settled may be of several moments.
    #[inline(always)]
    pub fn track_since(&self, word: u64) -> Track {
        track_of(word, |at| self.word(at).load(Relaxed))
    }

    /// Returns whether the session that was read before is the one with this number. The last step
    /// of a copy: a reader of a word of the next session sees here that the number changed.
    #[inline(always)]
    pub fn still_has(&self, tenant: u16) -> bool {
        fence(Acquire);
        self.tenant() == tenant
    }

    /// Copies the time of the last frame, the number of the state, and TCP's marks; `None` if the
    /// session with this number is over.
    #[cfg(test)]
    pub fn copy(&self, tenant: u16, track: &mut Track) -> Option<(u32, u8)> {
        let (seen, state, word) = self.seen_first();
        *track = self.track_since(word);
        self.still_has(tenant).then_some((seen, state))
    }
}

/// First state number that is not TCP's.
pub(crate) const FIRST_NOT_TCP: u8 = 16;

impl HeldLine<'_> {
    #[inline(always)]
    fn track(&self) -> Track {
        track_of(self.word, |at| self.record.word(at).load(Relaxed))
    }

    /// Writes the TCP marks, the scales, and the state.
    #[inline(always)]
    pub fn set_track(&mut self, track: &Track) {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let ([end0, end1], [allow0, allow1], [acked0, acked1]) =
            (track.end, track.allow, track.acked);
        let word = |at| self.record.word(at);
        word(MARKS).store(pair(end0, allow0), Relaxed);
        word(MARKS + 1).store(pair(end1, allow1), Relaxed);
        word(MARKS + 2).store(pair(acked0, acked1), Relaxed);
        let [opener, responder] = track.scale;
        let low = u32::from_be_bytes([track.state as u8, track.fins, opener, responder]);
        self.word = self.word & !0xffff_ffff | u64::from(low);
    }

    /// Notes the time of a frame and the number of a state: the later and the higher ones stay.
    #[inline(always)]
    fn see(&mut self, now: u32, state: u8) {
        // As nearly always.
        if self.word >> 24 == u64::from(now) << 8 | u64::from(state) {
            return;
        }
        let (seen, was) = seen_of(self.word);
        let (seen, state) = (later(now, seen), state.max(was));
        self.word = u64::from(seen) << 32 | u64::from(state) << 24 | self.word & 0xff_ffff;
    }

    /// Writes the time of the last frame and the state, whatever they were.
    pub fn set_seen(&mut self, seen: u32, state: State) {
        let low = self.word & 0xff_ffff;
        self.word = u64::from(seen) << 32 | u64::from(state.number()) << 24 | low;
    }

    /// Adds to the counters of one direction.
    #[inline(always)]
    fn count(&self, direction: usize, packets: u64, bytes: u64) {
        let word = |at| self.record.word(at);
        let (count, sum) = if direction == 0 {
            (word(COUNTERS), word(COUNTERS + 1))
        } else {
            (word(COUNTERS + 2), word(COUNTERS + 3))
        };
        let word = count.load(Relaxed);
        count.store(word & !PACKETS | word.wrapping_add(packets) & PACKETS, Relaxed);
        sum.store(sum.load(Relaxed).wrapping_add(bytes), Relaxed);
    }

    /// Counts as [`Record::take_error`]. The last word of the marks has the second (high half) and
    /// the errors in it.
    fn take_error(&self, now: u32) -> bool {
        let word = self.record.word(MARKS + 2);
        let was = word.load(Relaxed);
        let errors = if (was >> 32) as u32 == now { was as u32 } else { 0 };
        if errors < ERRORS_PER_SECOND {
            word.store(u64::from(now) << 32 | u64::from(errors + 1), Relaxed);
        }
        errors < ERRORS_PER_SECOND
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;

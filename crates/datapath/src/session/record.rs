//! One session: 128 bytes of the table.
//!
//! The first line changes under the lock of the bucket that has the record. Readers take no lock:
//! its sequence number is odd while it changes. The second line has a lock of its own, and all that
//! changes it is in [`crate::session::held`].

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::ip::tcp::{TcpState, Track};
use crate::session::{
    held::LOCKED,
    key::Key,
    memory::{AtomicU64, LOOKS, Unit, fence, spin_loop, yield_now},
    pen::{Died, Pen},
    state::{State, tcp_state},
};

/// Rules that admitted a session, at the opener's egress and at the responder's ingress, and the
/// time of that decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Admitted {
    /// Version of the policy that decided.
    pub stamp: u32,
    /// Cells of the rules; 0 where none was needed.
    pub cells: [u32; 2],
    /// True if the responder owns the address it was called by, as far as that was checked: its
    /// answers are not spoofed.
    pub answers: bool,
}

/// The second line of a new session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub now: u32,
    pub state: State,
    pub track: Track,
    pub past: Past,
}

/// History of a session on another host, before it came here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Past {
    /// Seconds since it was made, and since its last frame.
    pub age: u32,
    pub idle: u32,
    /// Packets and bytes, of the opener and of the other end.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
}

impl Past {
    /// Of a session without frames.
    pub const NONE: Past = Past { age: 0, idle: 0, packets: [0; 2], bytes: [0; 2] };

    /// Of a session that begins with a frame in this direction.
    pub fn first(direction: usize, bytes: u64) -> Past {
        let of = |one: u64| if direction == 0 { [one, 0] } else { [0, one] };
        Past { packets: of(1), bytes: of(bytes), ..Past::NONE }
    }
}

// The first line: sequence number (high half; its own high half also counts the sessions that were
// here) and stamp; the key's six words; cells.
const SEQUENCE: usize = 0;
const KEY: usize = 1;
const CELLS: usize = 7;
const ODD: u64 = 1 << 32;
const TENANT: u64 = 1 << 48;
const ANSWERS: u64 = 1;
/// In the free byte of the key's last word: the record is in use.
const LIVE: u64 = 2;
// The second line.
/// Last seen 32, state 8, TCP's FINs 8 with the line's lock, window scales 8 each.
pub(super) const SEEN: usize = 8;
/// Packets of the opener 48, and half of its creation time.
pub(super) const COUNTERS: usize = 9;
pub(super) const MARKS: usize = 13;
pub(super) const PACKETS: u64 = (1 << 48) - 1;

/// ICMP errors about a UDP session that pass per second without a rule: nothing that they quote is
/// hard to guess.
pub(super) const ERRORS_PER_SECOND: u32 = 4;

/// Stamp of adopted sessions: the first version of a policy, older than every decision of this
/// process.
pub(crate) const FIRST_STAMP: u32 = 1;
/// Stamp of sessions that a repair found good, until all are. No process decides under it.
pub(super) const FOUND_GOOD: u32 = 0;

/// Track of a session that is not TCP.
pub(crate) const NO_TRACK: Track = Track {
    state: TcpState::New,
    fins: 0,
    scale: [0; 2],
    end: [0; 2],
    allow: [0; 2],
    acked: [0; 2],
};

/// A record of the table.
#[derive(Clone, Copy)]
pub(crate) struct Record<'a>(&'a [AtomicU64; 16]);

/// The second line, as it was at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line2 {
    pub seen: u32,
    pub made: u32,
    pub state: State,
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    pub track: Track,
}

/// The first line, as it was at one moment.
pub(crate) enum Line1 {
    /// A thread was changing it.
    Changing,
    /// No session is in it.
    Free,
    /// The words of the key, with the flags, and the admission.
    Live([u64; 6], Admitted),
}

impl<'a> Record<'a> {
    #[inline(always)]
    pub fn of(unit: &'a Unit) -> Record<'a> {
        Record(&unit.0)
    }

    /// Returns a word by its number, which is a constant below 16 at every caller.
    #[inline(always)]
    pub fn word(&self, at: usize) -> &'a AtomicU64 {
        let [first, ..] = self.0;
        self.0.get(at).unwrap_or(first)
    }

    /// Returns a word, as [`Self::word`].
    pub fn word_of(&self, at: usize) -> &'a AtomicU64 {
        self.word(at)
    }

    /// Returns the first line. Waits for a thread that changes it, as long as a change takes
    /// without an interruption. So a session that is decided again at this moment loses no frame.
    pub fn line1(&self) -> Line1 {
        for _ in 0..LOOKS {
            match self.try_line1() {
                Line1::Changing => spin_loop(),
                line => return line,
            }
        }
        Line1::Changing
    }

    /// Returns the key and the admission, if a session is in the record and does not stay in
    /// change.
    pub fn read(&self) -> Option<(Key, Admitted)> {
        match self.line1() {
            Line1::Live(words, admission) => Some((Key::from_words(words), admission)),
            Line1::Changing | Line1::Free => None,
        }
    }

    /// Reads as [`Self::read`], however long a change takes. Not for the packet path.
    pub fn read_surely(&self) -> Option<(Key, Admitted)> {
        loop {
            match self.line1() {
                Line1::Changing => yield_now(),
                Line1::Live(words, admission) => return Some((Key::from_words(words), admission)),
                Line1::Free => return None,
            }
        }
    }

    /// Returns the words of the key with the flags, and the admission, if the record is in use and
    /// not in change. Tries once.
    #[inline(always)]
    pub fn words(&self) -> Option<([u64; 6], Admitted)> {
        self.live().map(|(words, admission, _)| (words, admission))
    }

    /// Returns what [`Self::words`] does, and the session's [`Self::tenant`] in the highest bits.
    #[inline(always)]
    pub fn live(&self) -> Option<([u64; 6], Admitted, u64)> {
        let before = self.word(SEQUENCE).load(Acquire);
        let load = |at| self.word(at).load(Relaxed);
        let words =
            [load(KEY), load(KEY + 1), load(KEY + 2), load(KEY + 3), load(KEY + 4), load(KEY + 5)];
        let cells = load(CELLS);
        fence(Acquire);
        // A new stamp alone leaves the sequence number as it is: the line is the same.
        let after = self.word(SEQUENCE).load(Relaxed);
        let [.., last] = words;
        if before & ODD != 0 || (before ^ after) >> 32 != 0 || last & LIVE == 0 {
            return None;
        }
        let admission = Admitted {
            stamp: before as u32,
            cells: [(cells >> 32) as u32, cells as u32],
            answers: last & ANSWERS != 0,
        };
        Some((words, admission, before & !(TENANT - 1)))
    }

    /// Reads the first line. Separate from [`Self::words`], which runs for every frame of a
    /// session: telling free from changing would cost that path instructions.
    fn try_line1(&self) -> Line1 {
        match self.words() {
            Some((words, admission)) => Line1::Live(words, admission),
            None if self.is_free() => Line1::Free,
            None => Line1::Changing,
        }
    }

    /// Returns whether it is free and not in change.
    pub fn is_free(&self) -> bool {
        let before = self.word(SEQUENCE).load(Acquire);
        let last = self.word(KEY + 5).load(Relaxed);
        fence(Acquire);
        let after = self.word(SEQUENCE).load(Relaxed);
        before & ODD == 0 && (before ^ after) >> 32 == 0 && last & LIVE == 0
    }

    /// Writes both lines of a record that is in no bucket. A reader that sees the first line sees
    /// the second: it is written before the sequence number is even again.
    pub fn write(&self, key: &Key, admission: Admitted, life: &Life) {
        self.change(
            || {
                self.set_key(key, admission);
                self.set_cells(admission);
                self.set_line2(life);
            },
            Some(admission.stamp),
            0,
        );
    }

    fn set_line2(&self, life: &Life) {
        let mut held = self.hold();
        held.set_track(&life.track);
        let Past { age, idle, packets: [opener, other], bytes } = life.past;
        // Second 0 is that of no session.
        let made = u64::from(life.now.saturating_sub(age).max(1));
        self.word(COUNTERS).store(made << 48 | opener & PACKETS, Relaxed);
        self.word(COUNTERS + 2).store(made >> 16 << 48 | other & PACKETS, Relaxed);
        for (at, bytes) in [COUNTERS + 1, COUNTERS + 3].into_iter().zip(bytes) {
            self.word(at).store(bytes, Relaxed);
        }
        let seen = life.now.saturating_sub(idle).max(made as u32);
        held.set_seen(seen, life.state);
    }

    /// Replaces the admission of the session. Its key stays.
    pub fn readmit(&self, key: &Key, admission: Admitted) {
        self.change(
            || {
                self.set_key(key, admission);
                self.set_cells(admission);
            },
            Some(admission.stamp),
            0,
        );
    }

    /// Notes that the responder owns its address. Readers cannot see half of this change, as it is
    /// one word.
    pub fn set_answers(&self) {
        self.word(KEY + 5).fetch_or(ANSWERS, Relaxed);
    }

    /// Frees the record: no lookup finds it any more.
    pub fn erase(&self) {
        self.change(|| self.word(KEY + 5).store(0, Relaxed), None, TENANT);
    }

    /// Returns a number that changes with each session in the record, when the session ends. It
    /// repeats after some ten thousand changes of the session or its admission.
    #[inline(always)]
    pub fn tenant(&self) -> u16 {
        (self.word(SEQUENCE).load(Relaxed) / TENANT) as u16
    }

    fn change(&self, store: impl FnOnce(), stamp: Option<u32>, tenant: u64) {
        let before = self.word(SEQUENCE).load(Relaxed);
        self.word(SEQUENCE).store(before | ODD, Relaxed);
        fence(Release);
        store();
        let stamp = stamp.map_or(before & 0xffff_ffff, u64::from);
        self.word(SEQUENCE).store(
            ((before | ODD).wrapping_add(ODD).wrapping_add(tenant)) & !0xffff_ffff | stamp,
            Release,
        );
    }

    fn set_key(&self, key: &Key, admission: Admitted) {
        for (at, word) in key.words().into_iter().enumerate() {
            let flags =
                if at == 5 { LIVE | if admission.answers { ANSWERS } else { 0 } } else { 0 };
            self.word(KEY + at).store(word | flags, Relaxed);
        }
    }

    fn set_cells(&self, admission: Admitted) {
        let [egress, ingress] = admission.cells;
        self.word(CELLS).store(u64::from(egress) << 32 | u64::from(ingress), Relaxed);
    }

    /// Writes another stamp, and no cells. Repair only: no thread reads the record.
    pub(super) fn restamp(&self, stamp: u32, pen: &mut Pen) -> Result<(), Died> {
        pen.write(self.word(CELLS), 0)?;
        let sequence = self.word(SEQUENCE);
        pen.write(sequence, sequence.load(Relaxed) & !0xffff_ffff | u64::from(stamp))
    }

    /// Takes the second line from a thread that died with it. Repair only.
    pub(super) fn let_go(&self, pen: &mut Pen) -> Result<(), Died> {
        let word = self.word(SEEN);
        pen.write(word, word.load(Relaxed) & !LOCKED)
    }

    /// Frees the record, whatever is in it, before another free one. Repair only: no thread reads
    /// the record.
    pub(super) fn clear(&self, next: u32, pen: &mut Pen) -> Result<(), Died> {
        pen.write(self.word(KEY + 5), 0)?;
        self.let_go(pen)?;
        let sequence = self.word(SEQUENCE);
        let before = sequence.load(Relaxed);
        if before & ODD != 0 {
            pen.write(sequence, before.wrapping_add(ODD))?;
        }
        pen.write(self.word(CELLS), next.into())
    }

    /// Returns the index of the next free record plus one, while this one is free.
    pub fn next_free(&self) -> u32 {
        self.word(CELLS).load(Relaxed) as u32
    }

    /// Sets [`Self::next_free`].
    pub fn set_next_free(&self, next: u32) {
        self.word(CELLS).store(next.into(), Relaxed);
    }

    /// Returns the time of the last frame, and the state.
    #[inline(always)]
    pub fn seen(&self) -> (u32, State) {
        let (seen, state) = seen_of(self.word(SEEN).load(Relaxed));
        (seen, State::from_number(state))
    }

    /// Returns the number of the state, which may be that of none.
    pub fn state_number(&self) -> u8 {
        seen_of(self.word(SEEN).load(Relaxed)).1
    }

    /// Returns the TCP marks. They may be of several moments.
    pub fn track(&self) -> Track {
        let load = |at| self.word(at).load(Relaxed);
        track_of(load(SEEN), load)
    }

    /// Returns the second line. Its words may be of several moments.
    pub fn line2(&self) -> Line2 {
        let load = |at| self.word(at).load(Relaxed);
        let (seen, state) = self.seen();
        let [a, b] = [load(COUNTERS), load(COUNTERS + 2)];
        Line2 {
            seen,
            made: (a >> 48) as u32 | ((b >> 48) as u32) << 16,
            state,
            packets: [a & PACKETS, b & PACKETS],
            bytes: [load(COUNTERS + 1), load(COUNTERS + 3)],
            track: self.track(),
        }
    }
}

/// Returns the time of the last frame and the number of the state, given their word.
#[inline(always)]
pub(super) const fn seen_of(word: u64) -> (u32, u8) {
    ((word >> 32) as u32, (word >> 24) as u8)
}

/// Returns the TCP marks, given the word of [`Record::seen`] and the other ones by number.
#[inline(always)]
pub(super) fn track_of(seen: u64, load: impl Fn(usize) -> u64) -> Track {
    let [a, b, c] = [load(MARKS), load(MARKS + 1), load(MARKS + 2)];
    Track {
        state: tcp_state((seen >> 24) as u8),
        fins: ((seen & !LOCKED) >> 16) as u8,
        scale: [(seen >> 8) as u8, seen as u8],
        end: [(a >> 32) as u32, (b >> 32) as u32],
        allow: [a as u32, b as u32],
        acked: [(c >> 32) as u32, c as u32],
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::{
        ip::Tuple,
        session::key::{SAMPLE, Zone},
    };

    fn key() -> Key {
        Key::new(&Tuple { source: 1 << 100 | 1, ..SAMPLE }, Zone::of(7), 8, 9)
    }

    const ADMISSION: Admitted =
        Admitted { stamp: 0x8000_0001, cells: [0x000a_bcde, 0x000f_edcb], answers: false };

    const TRACK: Track = Track {
        state: TcpState::HalfClosed,
        fins: 2,
        scale: [7, 0xff],
        end: [0x1111_1111, 0x2222_2222],
        allow: [0x3333_3333, 0x4444_4444],
        acked: [0x5555_5555, 0x6666_6666],
    };

    fn write(record: &Record<'_>) {
        let life = Life {
            now: 0x9abc_def0,
            state: State::Tcp(TRACK.state),
            track: TRACK,
            past: Past::NONE,
        };
        record.write(&key(), ADMISSION, &life);
    }

    #[test]
    fn what_was_written_is_read() {
        let unit = Unit::default();
        let record = Record::of(&unit);
        assert!(record.is_free() && record.read().is_none() && record.words().is_none());
        // The words of before must not shine through.
        (0..16).for_each(|at| record.word(at).store(u64::MAX, Relaxed));
        record.word(SEQUENCE).store(0, Relaxed);
        record.word(SEEN).store(!LOCKED, Relaxed);
        write(&record);
        assert_eq!(record.read(), Some((key(), ADMISSION)));
        assert!(!record.is_free());
        let Line2 { seen, made, state, packets, bytes, track } = record.line2();
        assert_eq!(
            (seen, made, state, track),
            (0x9abc_def0, 0x9abc_def0, State::Tcp(TcpState::HalfClosed), TRACK)
        );
        assert_eq!((packets, bytes), ([0; 2], [0; 2]));
        assert_eq!(record.tenant(), 0);
        record.erase();
        assert!(record.is_free() && record.read().is_none());
        assert_eq!(record.tenant(), 1);
    }

    /// A reader that comes in between sees that the line is in change, at any step of a change.
    #[test]
    fn who_reads_meanwhile_knows() {
        let unit = Unit::default();
        let record = Record::of(&unit);
        let words = || [0, 1, 2, 3, 4, 5, 6, 7].map(|at| record.word(at).load(Relaxed));
        for (stamp, tenant) in [(Some(5), 0), (None, TENANT), (Some(u32::MAX), TENANT), (None, 0)] {
            write(&record);
            let before = words();
            record.change(
                || {
                    assert!(record.words().is_none() && !record.is_free());
                    assert!(matches!(record.line1(), Line1::Changing));
                    // Nothing but the sequence number tells a change.
                    assert_eq!(words()[1..], before[1..]);
                },
                stamp,
                tenant,
            );
            let after = words();
            assert_eq!(after[1..], before[1..]);
            assert_eq!(after[SEQUENCE] >> 32, (before[SEQUENCE] >> 32) + 2 + (tenant >> 32));
            assert_eq!(
                record.read(),
                Some((key(), Admitted { stamp: stamp.unwrap_or(ADMISSION.stamp), ..ADMISSION }))
            );
        }
    }

    /// A record without a session is not free while a thread writes a session into it that is not
    /// visible yet.
    #[test]
    fn a_record_in_change_is_not_free() {
        let unit = Unit::default();
        let record = Record::of(&unit);
        record.change(|| assert!(!record.is_free() && record.read().is_none()), None, 0);
        assert!(record.is_free());
    }
}

//! Patience: how long an empty ring is polled before its guest is asked to kick.
//!
//! A kick costs the guest a system call and the worker 31 us of waking up; polling costs the worker
//! its processor. Where frames come oftener than that, a ring is polled on for 50 us. Where they
//! are rarer polling finds nothing, and the ring is left after 8.

use butterfly_mem::cpu;

use crate::engine::place::{MAX_HALVES, MAX_PAIRS, MAX_SLOTS, MAX_UPLINK_QUEUES, PollSource};

/// Polling after the last frame where frames come at least as often.
const OFTEN_US: u64 = 50;
/// Polling after the last frame where they are rarer.
const RARE_US: u64 = 8;
/// Longest gap between frames that counts: after one short gap frames are frequent again.
const LONGEST_US: u64 = OFTEN_US * 3 / 2;
/// Empty looks in a row after which a ring leaves the poll set, where frames come often. By time
/// alone, a ring would leave after one look where each look takes long because of others.
const LOOKS: u8 = 64;

/// Habit of a source, also while it is not polled: the time of its last frame, and twice its usual
/// gap, plus one while it is polled. Of words, as a table of those is made without touching it: it
/// has 16 MiB, and a process that goes on for another has no time for that.
type Habit = [u64; 2];

/// Rhythm of a source: gaps between frames. Times are ticks of the time stamp counter.
#[derive(Clone, Copy, Default)]
pub(super) struct Rhythm {
    /// Empty looks in a row.
    looks: u8,
    /// The guest was asked to kick, and has.
    kicked: bool,
    /// Time at which the last frame was found.
    found: u64,
    /// Usual gap: half the last one and half the usual one before it.
    gap: u64,
}

impl Rhythm {
    /// Notes that frames were found. Returns whether the guest may still be asked to kick.
    #[inline(always)]
    pub fn find(&mut self, now: u64, patience: &Patience) -> bool {
        let gap = now.wrapping_sub(self.found).min(patience.longest);
        self.gap = (self.gap + gap) / 2;
        self.found = now;
        self.looks = 0;
        std::mem::take(&mut self.kicked)
    }

    /// Returns whether the guest may still be asked to kick.
    pub fn is_kicked(&self) -> bool {
        self.kicked
    }

    /// Notes an empty look. Returns whether the source is polled on.
    pub fn miss(&mut self, now: u64, patience: &Patience) -> bool {
        if self.kicked {
            return false; // a kick without a frame costs one look
        }
        let since = now.wrapping_sub(self.found);
        self.looks = self.looks.saturating_add(1);
        match self.gap <= patience.often {
            true => self.looks < LOOKS || since < patience.often,
            false => since < patience.rare,
        }
    }

    /// Notes that the guest was not asked after all, as there is a frame.
    pub fn go_on(&mut self) {
        (self.looks, self.kicked) = (0, false);
    }
}

/// The times of this module in ticks.
pub(super) struct Patience {
    often: u64,
    rare: u64,
    longest: u64,
}

impl Patience {
    pub fn new() -> Patience {
        Patience::with(cpu::tsc_hz() / 1_000_000)
    }

    /// Makes those of a counter with so many ticks in a microsecond.
    fn with(us: u64) -> Patience {
        Patience { often: us * OFTEN_US, rare: us * RARE_US, longest: us * LONGEST_US }
    }
}

/// Habits of pairs beyond a vnic's first. Two pairs may share one, and then have each other's
/// rhythm.
const FURTHER: usize = 1 << 16;

/// Habits of all sources.
pub(super) struct Habits {
    /// Of vnics' first pairs, by slot.
    vnics: Vec<Habit>,
    /// Of other pairs, by [`place_of`].
    further: Vec<Habit>,
    /// Of each slot, a bit for each pair beyond the first that is polled.
    polled: Vec<u16>,
    /// Number of all of those.
    further_polled: usize,
    /// Of each slot with several pairs, the number of those that are busy.
    busy: Vec<u8>,
    /// Of the uplink, by queue.
    uplink: Vec<Habit>,
    /// Of the uplink's halves that send.
    outward: [Habit; MAX_HALVES],
    waiting: Habit,
    /// Number of sources that are polled and that nobody kicks.
    kickless: usize,
}

/// Returns the place of the habit of a pair beyond the first.
fn place_of(slot: u32, pair: u8) -> usize {
    (slot as usize * MAX_PAIRS + usize::from(pair)) % FURTHER
}

/// Returns whether nobody kicks for frames of this source.
fn is_kickless(source: PollSource) -> bool {
    matches!(source, PollSource::Outward(_) | PollSource::Waiting)
}

impl Habits {
    /// Pages are touched when a vnic uses them.
    pub fn new() -> Habits {
        Habits {
            vnics: vec![[0; 2]; MAX_SLOTS as usize],
            further: vec![[0; 2]; FURTHER],
            polled: vec![0; MAX_SLOTS as usize],
            further_polled: 0,
            busy: vec![0; MAX_SLOTS as usize],
            uplink: vec![[0; 2]; MAX_UPLINK_QUEUES],
            outward: [[0; 2]; MAX_HALVES],
            waiting: [0; 2],
            kickless: 0,
        }
    }

    /// Returns whether further pairs of the same vnic are polled.
    #[inline(always)]
    pub fn has_further(&self, source: PollSource) -> bool {
        if self.further_polled == 0 {
            return false;
        }
        let polled = source.slot().and_then(|slot| self.polled.get(slot as usize));
        polled.is_some_and(|polled| *polled != 0)
    }

    /// Changes the number of a slot's pairs that are busy. Returns it.
    #[cold]
    pub fn busy(&mut self, slot: u32, change: i8) -> usize {
        let Some(busy) = self.busy.get_mut(slot as usize) else { return 0 };
        *busy = busy.saturating_add_signed(change);
        (*busy).into()
    }

    fn get_mut(&mut self, source: PollSource) -> Option<&mut Habit> {
        match source {
            PollSource::Queue { place, pair: 0 } => self.vnics.get_mut(place.slot as usize),
            PollSource::Queue { place, pair } => self.further.get_mut(place_of(place.slot, pair)),
            PollSource::Uplink(queue) => self.uplink.get_mut(usize::from(queue)),
            PollSource::Outward(half) => self.outward.get_mut(usize::from(half)),
            PollSource::Waiting => Some(&mut self.waiting),
        }
    }

    /// Returns how many sources are polled that nobody kicks.
    pub fn without_kick(&self) -> usize {
        self.kickless
    }

    /// Notes that a source is polled from now on. Returns its rhythm; `None` if it was before.
    pub fn begin(&mut self, source: PollSource) -> Option<Rhythm> {
        if let PollSource::Queue { place, pair: pair @ 1.. } = source {
            let polled = self.polled.get_mut(place.slot as usize)?;
            if *polled >> pair & 1 == 1 {
                return None;
            }
            *polled |= 1 << pair;
            self.further_polled += 1;
            let [found, twice] = self.get_mut(source)?;
            return Some(Rhythm { looks: 0, kicked: true, found: *found, gap: *twice >> 1 });
        }
        let [found, twice] = self.get_mut(source).filter(|[_, twice]| *twice & 1 == 0)?;
        *twice |= 1;
        let rhythm = Rhythm { looks: 0, kicked: true, found: *found, gap: *twice >> 1 };
        self.kickless += usize::from(is_kickless(source));
        Some(rhythm)
    }

    /// Notes that a source is not polled any more.
    pub fn end(&mut self, source: PollSource, rhythm: Rhythm) {
        if let Some(habit) = self.get_mut(source) {
            let polled = habit[1] & 1 == 1;
            *habit = [rhythm.found, rhythm.gap << 1];
            self.kickless -= usize::from(polled && is_kickless(source));
        }
        if let PollSource::Queue { place, pair: pair @ 1.. } = source
            && let Some(polled) = self.polled.get_mut(place.slot as usize)
            && *polled >> pair & 1 == 1
        {
            *polled &= !(1 << pair);
            self.further_polled -= 1;
        }
    }

    /// Takes all out.
    #[cfg(test)]
    pub fn clear(&mut self) {
        *self = Habits::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a ring each `look`, which gets a frame each `gap` (in tenths of a microsecond).
    /// Returns for how long after the last of some frames it is polled.
    fn polled_after(gap: u64, look: u64) -> u64 {
        let patience = Patience::with(10);
        let mut rhythm = Rhythm::default();
        let mut now = 1_000_000;
        for _ in 0..10 {
            rhythm.find(now, &patience);
            now += gap;
        }
        rhythm.find(now, &patience);
        let last = now;
        loop {
            now += look;
            if !rhythm.miss(now, &patience) {
                return now - last;
            }
        }
    }

    #[test]
    fn rare_frames_are_not_waited_for() {
        for gap in [0, 10, 100, 500] {
            assert_eq!(polled_after(gap, 2), 500, "frames each {} us", gap / 10);
        }
        for gap in [600, 1000, 10_000, 10_000_000] {
            assert_eq!(polled_after(gap, 2), 80, "frames each {} us", gap / 10);
        }
        // Others have their turns between two looks.
        assert_eq!(polled_after(100, 100), 6400);
        assert_eq!(polled_after(10_000, 100), 100);
    }

    #[test]
    fn the_second_batch_of_a_burst_brings_patience_back() {
        let patience = Patience::with(10);
        let mut rhythm = Rhythm::default();
        for n in 1..10 {
            rhythm.find(n * 100_000, &patience);
        }
        assert!(!rhythm.miss(900_081, &patience));
        rhythm.find(1_000_000, &patience);
        rhythm.find(1_000_010, &patience);
        assert!(rhythm.miss(1_000_100, &patience));
    }

    #[test]
    fn a_kick_without_a_frame_costs_one_look() {
        let (patience, mut habits) = (Patience::with(10), Habits::new());
        let mut rhythm = habits.begin(PollSource::Uplink(0)).unwrap();
        assert!(habits.begin(PollSource::Uplink(0)).is_none());
        assert!(!rhythm.miss(0, &patience));
        habits.end(PollSource::Uplink(0), rhythm);
        let mut rhythm = habits.begin(PollSource::Uplink(0)).unwrap();
        assert!(rhythm.find(1, &patience), "it may still be asked to kick");
        assert!(!rhythm.find(2, &patience));
        assert!(rhythm.miss(3, &patience));
    }
}

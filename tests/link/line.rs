//! One direction of a link: which frames get through, how often, and when.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::{Duration, Instant},
};

/// Properties of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Impairments {
    /// Time that each frame is under way, and how much it may differ. Frames keep their order.
    pub delay: Duration,
    pub jitter: Duration,
    /// Frames that are lost, come twice, or overtake those under way, of 100.
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    /// Bits per second; none for as many as come.
    pub rate: Option<u64>,
}

/// Counts of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub frames: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
    /// Dropped because too many were under way.
    pub full: u64,
    /// Taken off the line; some may find no room at its end.
    pub arrived: u64,
    pub refused: u64,
}

/// Most frames under way.
pub const LIMIT: usize = 10_000;

/// A frame under way, ordered by when it is due, and by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    due: Instant,
    number: u64,
    frame: Vec<u8>,
}

/// A direction.
pub struct Line {
    pub impairments: Impairments,
    pub counts: Counts,
    random: fastrand::Rng,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    numbered: u64,
    /// Time at which the last frame that kept its order is due, and at which the wire is free.
    last_due: Option<Instant>,
    free_at: Option<Instant>,
}

impl Line {
    /// Makes a direction that repeats its decisions for the same seed and frames.
    pub fn new(impairments: Impairments, seed: u64) -> Line {
        Line {
            impairments,
            counts: Counts::default(),
            random: fastrand::Rng::with_seed(seed),
            under_way: BinaryHeap::new(),
            numbered: 0,
            last_due: None,
            free_at: None,
        }
    }

    fn happens(&mut self, percent: f64) -> bool {
        percent > 0.0 && self.random.f64() * 100.0 < percent
    }

    /// Takes a frame that was sent.
    pub fn put(&mut self, frame: &[u8], now: Instant) {
        let Impairments { loss, duplicate, .. } = self.impairments;
        self.counts.frames += 1;
        if self.happens(loss) {
            self.counts.lost += 1;
            return;
        }
        if self.happens(duplicate) {
            self.counts.duplicated += 1;
            self.send(frame, now);
        }
        self.send(frame, now);
    }

    fn send(&mut self, frame: &[u8], now: Instant) {
        if self.under_way.len() == LIMIT {
            self.counts.full += 1;
            return;
        }
        let Impairments { delay, jitter, reorder, rate, .. } = self.impairments;
        let sent = match rate {
            None => now,
            Some(rate) => {
                let bits = frame.len() as u64 * 8 * 1_000_000_000;
                let free = self.free_at.map_or(now, |free| free.max(now));
                let free = free + Duration::from_nanos(bits / rate.max(1));
                *self.free_at.insert(free)
            }
        };
        let due = if self.happens(reorder) {
            self.counts.reordered += 1;
            sent
        } else {
            let differs = jitter.mul_f64(self.random.f64() * 2.0);
            let due = sent + (delay + differs).saturating_sub(jitter);
            let due = self.last_due.map_or(due, |last| last.max(due));
            *self.last_due.insert(due)
        };
        self.numbered += 1;
        let under_way = UnderWay { due, number: self.numbered, frame: frame.to_vec() };
        self.under_way.push(Reverse(under_way));
    }

    /// Returns when the next frame is due, if any is under way.
    pub fn next_due(&self) -> Option<Instant> {
        self.under_way.peek().map(|Reverse(next)| next.due)
    }

    /// Returns the next frame that has arrived.
    pub fn take(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next_due()? > now {
            return None;
        }
        self.counts.arrived += 1;
        self.under_way.pop().map(|Reverse(next)| next.frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Sends numbered frames of 100 bytes, one each millisecond. Returns the numbers that arrived,
    /// in order, with the milliseconds that each was under way.
    fn sent(line: &mut Line, frames: u32) -> Vec<(u32, u128)> {
        let start = Instant::now();
        let mut arrived = Vec::new();
        // Ten seconds longer than frames are sent, in steps of a millisecond.
        for step in 0..frames + 10_000 {
            let now = start + MS * step;
            if step < frames {
                let mut frame = vec![0; 100];
                frame[..4].copy_from_slice(&step.to_be_bytes());
                line.put(&frame, now);
            }
            while let Some(frame) = line.take(now) {
                let number = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]);
                arrived.push((number, (now - start - MS * number).as_millis()));
            }
        }
        assert_eq!(line.next_due(), None);
        arrived
    }

    fn line(impairments: Impairments) -> Line {
        Line::new(impairments, 7)
    }

    #[test]
    fn nothing_happens_on_a_good_line() {
        let arrived = sent(&mut line(Impairments::default()), 1000);
        assert_eq!(arrived, (0..1000).map(|n| (n, 0)).collect::<Vec<_>>());
    }

    #[test]
    fn frames_are_late_and_keep_their_order() {
        let late = Impairments { delay: 20 * MS, jitter: 10 * MS, ..Impairments::default() };
        let arrived = sent(&mut line(late), 1000);
        assert!(arrived.iter().map(|(n, _)| *n).eq(0..1000));
        assert!(arrived.iter().all(|(_, late)| (10..=31).contains(late)), "{arrived:?}");
        let all: std::collections::BTreeSet<u128> = arrived.iter().map(|(_, late)| *late).collect();
        assert!(all.len() > 3, "all of them take {all:?} ms");
    }

    #[test]
    fn as_many_are_lost_and_doubled_as_is_said() {
        let bad = Impairments { loss: 20.0, duplicate: 10.0, ..Impairments::default() };
        let mut line = line(bad);
        let arrived = sent(&mut line, 10_000);
        let Counts { frames, lost, duplicated, arrived: delivered, .. } = line.counts;
        assert!((1800..2200).contains(&lost) && (700..900).contains(&duplicated), "{lost}");
        assert_eq!((frames, delivered), (10_000, 10_000 - lost + duplicated));
        assert_eq!(arrived.len() as u64, delivered);
        let all: std::collections::BTreeSet<u32> = arrived.iter().map(|(n, _)| *n).collect();
        assert_eq!(all.len() as u64, frames - lost);
    }

    #[test]
    fn some_overtake_others() {
        let bad = Impairments { delay: 5 * MS, reorder: 10.0, ..Impairments::default() };
        let mut line = line(bad);
        let arrived = sent(&mut line, 1000);
        let overtaken = arrived.windows(2).filter(|pair| pair[1].0 < pair[0].0).count();
        assert!(overtaken > 50 && line.counts.reordered >= overtaken as u64, "{overtaken}");
        assert_eq!(arrived.len(), 1000);
    }

    #[test]
    fn a_slow_line_takes_its_time() {
        // 100 bytes take 2 ms, and one comes each millisecond.
        let slow = Impairments { rate: Some(400_000), ..Impairments::default() };
        let arrived = sent(&mut line(slow), 1000);
        assert_eq!(arrived.last(), Some(&(999, 2 * 1000 - 999)));
    }

    #[test]
    fn a_line_holds_so_many() {
        let mut line = line(Impairments { delay: 1000 * MS, ..Impairments::default() });
        let now = Instant::now();
        (0..LIMIT + 5).for_each(|_| line.put(&[0; 60], now));
        assert_eq!((line.counts.full, line.take(now)), (5, None));
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let bad = Impairments { loss: 30.0, jitter: 3 * MS, ..Impairments::default() };
        assert_eq!(sent(&mut line(bad), 500), sent(&mut line(bad), 500));
        assert_ne!(sent(&mut Line::new(bad, 8), 500), sent(&mut line(bad), 500));
    }
}

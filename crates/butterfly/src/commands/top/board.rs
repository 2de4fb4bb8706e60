//! Turns counts into rates, and orders the vnics.

use super::sample::{NicCounts, Sample};
use std::collections::{BTreeMap, VecDeque};

/// Order of the vnics, the most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Rate,
    Drops,
    Sessions,
    Id,
}

impl Sort {
    pub const ALL: [Sort; 4] = [Sort::Rate, Sort::Drops, Sort::Sessions, Sort::Id];

    pub fn name(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Drops => "drops",
            Sort::Sessions => "sessions",
            Sort::Id => "id",
        }
    }

    /// The next one, round and round.
    pub fn next(self) -> Sort {
        match self {
            Sort::Rate => Sort::Drops,
            Sort::Drops => Sort::Sessions,
            Sort::Sessions => Sort::Id,
            Sort::Id => Sort::Rate,
        }
    }
}

/// Counts of one vnic in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Packets and bytes from the machine.
    pub from: (f64, f64),
    /// Packets and bytes to it.
    pub to: (f64, f64),
    pub drops: f64,
}

impl Rates {
    /// Packets in both directions.
    pub fn packets(&self) -> f64 {
        self.from.0 + self.to.0
    }
}

/// Looks that are kept of each vnic.
pub const HISTORY: usize = 120;

/// Samples, and the rates that follow from them.
pub struct Board {
    pub sort: Sort,
    pub now: Option<Sample>,
    pub rates: BTreeMap<String, Rates>,
    /// Rates by reason, of each vnic.
    pub drop_rates: BTreeMap<String, BTreeMap<String, f64>>,
    /// Packets a second of each vnic, the newest last.
    pub history: BTreeMap<String, VecDeque<u64>>,
    /// Part of the workers' time that they had something to do, from 0 to 1.
    pub load: f64,
}

impl Board {
    pub fn new(sort: Sort) -> Board {
        Board {
            sort,
            now: None,
            rates: BTreeMap::new(),
            drop_rates: BTreeMap::new(),
            history: BTreeMap::new(),
            load: 0.0,
        }
    }

    /// One more look.
    pub fn add(&mut self, sample: Sample) {
        if let Some(before) = &self.now {
            let seconds = sample.at.duration_since(before.at).as_secs_f64().max(0.001);
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            self.rates.clear();
            self.drop_rates.clear();
            for (id, now) in &sample.nics {
                // Counts of one that is new began at zero, those of one that was made anew do
                // again.
                let zero = NicCounts::default();
                let was = before
                    .nics
                    .get(id)
                    .filter(|was| was.from.0 <= now.from.0 && was.to.0 <= now.to.0)
                    .unwrap_or(&zero);
                let both =
                    |now: (u64, u64), was: (u64, u64)| (rate(now.0, was.0), rate(now.1, was.1));
                let rates = Rates {
                    from: both(now.from, was.from),
                    to: both(now.to, was.to),
                    drops: rate(now.dropped(), was.dropped()),
                };
                let history = self.history.entry(id.clone()).or_default();
                history.push_back(rates.packets() as u64);
                while history.len() > HISTORY {
                    history.pop_front();
                }
                self.rates.insert(id.clone(), rates);
                let count = |of: &NicCounts, reason: &str| {
                    of.drops.get(reason).map_or(0, |(count, _)| *count)
                };
                let by_reason = now
                    .drops
                    .keys()
                    .map(|reason| (reason.clone(), rate(count(now, reason), count(was, reason))));
                self.drop_rates.insert(id.clone(), by_reason.collect());
            }
            self.history.retain(|id, _| sample.nics.contains_key(id));
            let cycles = sample.busy.1 as f64 * seconds * f64::from(sample.workers);
            self.load = if cycles > 0.0 {
                (sample.busy.0.saturating_sub(before.busy.0) as f64 / cycles).min(1.0)
            } else {
                0.0
            };
        }
        self.now = Some(sample);
    }

    /// Ids in order.
    pub fn order(&self) -> Vec<&str> {
        let Some(now) = &self.now else { return Vec::new() };
        let mut ids: Vec<&str> = now.nics.keys().map(String::as_str).collect();
        let rates = |id: &str| self.rates.get(id).copied().unwrap_or_default();
        let sessions = |id: &str| now.nics.get(id).map_or(0, |nic| nic.sessions);
        // Stable: those that are equal stay in the order of their ids.
        match self.sort {
            Sort::Rate => ids.sort_by(|a, b| rates(b).packets().total_cmp(&rates(a).packets())),
            Sort::Drops => ids.sort_by(|a, b| rates(b).drops.total_cmp(&rates(a).drops)),
            Sort::Sessions => ids.sort_by_key(|id| std::cmp::Reverse(sessions(id))),
            Sort::Id => {}
        }
        ids
    }
}

/// A number in at most five characters, with a unit of thousands.
pub fn short(number: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let mut scaled = number;
    for unit in UNITS {
        let text = match (unit, scaled) {
            ("", scaled) => format!("{scaled:.0}"),
            (_, scaled) if scaled < 9.995 => format!("{scaled:.2}{unit}"),
            (_, scaled) if scaled < 99.95 => format!("{scaled:.1}{unit}"),
            (_, scaled) => format!("{scaled:.0}{unit}"),
        };
        if scaled < 999.5 {
            return text;
        }
        scaled /= 1000.0;
    }
    format!("{number:.0e}")
}

/// The newest numbers as a line of bars, `width` of them, the newest at the right.
pub fn bars(history: &VecDeque<u64>, width: usize, ascii: bool) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const ASCII: [char; 9] = [' ', '.', '.', ':', '-', '=', '+', '*', '#'];
    let levels = if ascii { ASCII } else { BLOCKS };
    let most = history.iter().copied().max().unwrap_or(0);
    let bar = |n: u64| match (n, most) {
        (0, _) | (_, 0) => 0,
        (n, most) => (n.saturating_mul(8).div_ceil(most) as usize).min(8),
    };
    let shown = history
        .iter()
        .skip(history.len().saturating_sub(width))
        .map(|n| levels.get(bar(*n)).copied().unwrap_or(' '));
    let line: String = shown.collect();
    format!("{line:>width$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn sample(at: Instant, seconds: u64, nics: &[(&str, u64, u64, u32)]) -> Sample {
        let nic = |packets, drops, sessions| NicCounts {
            from: (packets, packets * 100),
            to: (packets / 2, 0),
            drops: [("ring-full".to_owned(), (drops, String::new()))].into(),
            sessions,
            ..NicCounts::default()
        };
        Sample {
            at: at + Duration::from_secs(seconds),
            nics: nics
                .iter()
                .map(|(id, packets, drops, sessions)| {
                    ((*id).to_owned(), nic(*packets, *drops, *sessions))
                })
                .collect(),
            sessions: (0, 0),
            busy: (seconds * 500, 1000),
            workers: 1,
            groups: Default::default(),
        }
    }

    #[test]
    fn rates_are_what_came_between_two_looks() {
        let begin = Instant::now();
        let mut board = Board::new(Sort::Rate);
        board.add(sample(begin, 0, &[("a", 100, 0, 3), ("b", 0, 0, 9), ("c", 500, 5, 1)]));
        assert!(board.rates.is_empty());
        board.add(sample(
            begin,
            2,
            &[("a", 300, 0, 3), ("b", 20, 8, 9), ("c", 10, 5, 1), ("new", 4, 0, 0)],
        ));
        let rates = |id: &str| board.rates[id];
        assert_eq!(rates("a"), Rates { from: (100.0, 10_000.0), to: (50.0, 0.0), drops: 0.0 });
        assert_eq!((rates("b").drops, board.drop_rates["b"]["ring-full"]), (4.0, 4.0));
        assert_eq!(
            (rates("c").from.0, rates("c").drops, rates("new").from.0),
            (5.0, 2.5, 2.0),
            "counts that began again"
        );
        assert_eq!(board.load, 0.5);
        assert_eq!(board.order(), ["a", "b", "c", "new"]);
        for (sort, first) in [(Sort::Drops, "b"), (Sort::Sessions, "b"), (Sort::Id, "a")] {
            board.sort = sort;
            assert_eq!(board.order()[0], first, "{sort:?}");
        }
        board.add(sample(begin, 3, &[("a", 300, 0, 3)]));
        assert_eq!((board.history.len(), board.history["a"].len()), (1, 2));
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (1e6, "1.00M"),
            (99_960.0, "100k"),
            (2.5e12, "2.50T"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn bars_are_as_high_as_the_most() {
        let history: VecDeque<u64> = [0, 1, 4, 8].into();
        assert_eq!(bars(&history, 6, false), "   ▁▄█");
        assert_eq!(bars(&history, 2, true), "-#");
        assert_eq!(bars(&VecDeque::new(), 3, true), "   ");
    }
}

//! Fair turns: rings are served by their cost, not by frames.
//!
//! Deficit round robin in cycles (Shreedhar and Varghese, 1995), the other way round: a batch is
//! served before its cost is known. So a ring that costs more than its part of a round is in debt,
//! and waits until rounds have paid it. A ring whose batches are cheap is served in every round. No
//! ring waits for nothing: when only rings in debt have frames, the least debt is forgiven.
//!
//! Two more rules bound the time of a round. A ring has batches of a size that should cost little,
//! by the dearest frames of its last milliseconds. And dear batches share an allowance per round:
//! rings for which nothing is left have the first of it in the next round.

use butterfly_mem::cpu;
use butterfly_vhost::ring::BATCH;

/// Cost of each ring in a round, in microseconds. Most batches cost about as much.
const PART_US: u64 = 5;
/// Parts of the uplink, and of its floods that wait: many machines are behind them.
const UPLINK_PARTS: u64 = 4;
/// Cost of the batches of all rings in a round together, in microseconds. A ring has its part of
/// that, and at least `BATCH_US` for a batch: few rings have large batches, whose fixed costs are
/// shared by many frames.
const ROUND_US: u64 = 120;
const BATCH_US: u64 = 12;
/// Cost above which a batch is dear. Dear batches share the allowance of a round, and tell the cost
/// of their ring's frames.
const DEAR_US: u64 = 4;
/// Time in which half of that cost is forgotten. Batches do not count for it: cheap ones in between
/// cost nothing.
const HALF_LIFE_US: u64 = 5000;
/// Frames of the first batch of a ring that comes back: many may come back at once.
const FIRST: u64 = 8;
/// Time of dear batches in a round, after which the next ones wait for the next round.
const ALLOWANCE_US: u64 = 12;
/// Most that a ring pays for one batch. Anything longer is the host's doing, not the ring's.
const MOST_US: u64 = 200;
/// A turn of the usual size, in frames of its batch. Its other bounds shrink with it.
pub(super) const WHOLE: u16 = BATCH as u16;

/// Account of a ring.
#[derive(Clone, Copy)]
pub(super) struct Account {
    /// Cycles of its last batch that are not paid, if that cost more than a part.
    pub debt: u64,
    /// Cycles by which the last round paid more than the debt, so that parts of a part are not
    /// lost.
    credit: u64,
    /// Frames of its next batch.
    pub size: u16,
    /// True if its next batch may be dear.
    dear: bool,
    uplink: bool,
    /// Cycles that one of its frames may cost, and the half-life of the last look at that. Half of
    /// the cycles are forgotten with each half-life.
    price: u32,
    era: u32,
}

impl Account {
    /// Makes the account of a ring without a history, or of the uplink and its floods that wait.
    fn new(uplink: bool) -> Account {
        Account { debt: 0, credit: 0, size: WHOLE, dear: false, uplink, price: 0, era: 0 }
    }

    /// Cancels the debt: there are no other rings.
    pub fn settle(&mut self) {
        *self = Account::new(self.uplink);
    }
}

/// Cost of a batch.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    /// All of its cycles.
    pub cycles: u64,
    /// Cycles of interrupts among those.
    pub signals: u64,
    /// Its frames, or the number that it counts as with floods: at least one.
    pub frames: usize,
}

/// Microseconds that interrupts may take of a turn. A separate thread sends the others.
const SIGNALS_US: u64 = 60;

/// Prices in cycles, and the costs of this round.
pub(super) struct Fair {
    part: u64,
    round: u64,
    batch: u64,
    half_life: u64,
    /// Cycles that a frame of a ring that comes back may cost.
    first: u32,
    dear: u64,
    allowance: u64,
    most: u64,
    signals: u64,
    /// Cycles of dear batches in this round.
    spent: u64,
    /// Places among the rings at which this round's allowance begins, and the next one's, if a ring
    /// waits for it.
    from: usize,
    next: Option<usize>,
}

impl Fair {
    pub fn new() -> Fair {
        // Prices are those of optimised code.
        let slower = if cfg!(debug_assertions) { 10 } else { 1 };
        Fair::with(cpu::tsc_hz() / 1_000_000 * slower)
    }

    /// Makes prices by which no batch is ever dear.
    #[cfg(feature = "harness")]
    pub fn blind() -> Fair {
        Fair { first: 0, ..Fair::with(u64::from(u32::MAX)) }
    }

    /// Makes prices by so many cycles in a microsecond.
    fn with(us: u64) -> Fair {
        Fair {
            part: us * PART_US,
            round: us * ROUND_US,
            batch: us * BATCH_US,
            half_life: us * HALF_LIFE_US,
            first: u32::try_from(us * BATCH_US / FIRST).unwrap_or(u32::MAX),
            dear: us * DEAR_US,
            allowance: us * ALLOWANCE_US,
            most: us * MOST_US,
            signals: us * SIGNALS_US,
            spent: 0,
            from: 0,
            next: None,
        }
    }

    /// Makes the account of a ring that comes into the poll set. The uplink and its floods that
    /// wait are not guests'.
    pub fn open(&self, uplink: bool, now: u64) -> Account {
        let mut account = Account::new(uplink);
        if !uplink {
            account.price = self.first;
            account.era = self.era(now);
            account.size = self.size(&account, usize::MAX);
        }
        account
    }

    /// Begins a round.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.spent = 0;
        self.from = self.next.take().unwrap_or(0);
    }

    /// Pays a part of the debt of the ring at this place. Returns whether the ring is served in
    /// this round.
    #[cold]
    pub fn is_due(&mut self, account: &mut Account, at: usize) -> bool {
        let paid = if account.uplink { UPLINK_PARTS * self.part } else { self.part };
        if account.debt > paid {
            account.debt -= paid;
        } else if account.dear && !self.allows(at) {
            account.debt = 1; // in one of the next rounds
        } else {
            account.credit = paid - account.debt;
            account.debt = 0;
        }
        account.debt == 0
    }

    /// Returns whether the allowance has something left for the ring at this place. Rings before
    /// the allowance's beginning had it in the last round.
    fn allows(&mut self, at: usize) -> bool {
        let left = self.spent < self.allowance;
        if !left && at >= self.from && self.next.is_none() {
            self.next = Some(at);
        }
        left && at >= self.from
    }

    /// Returns the cycles that interrupts may take of a turn.
    #[inline(always)]
    pub fn for_signals(&self) -> u64 {
        self.signals
    }

    /// Returns whether a batch cost more than a part, or batches of this ring did lately.
    #[inline(always)]
    pub fn is_owed(&self, account: &Account, cost: u64) -> bool {
        cost > self.part || account.size < WHOLE
    }

    /// Charges the cost of a batch to its ring, one of so many. If `queues` of its vnic are busy,
    /// it waits as long as if it had served them all.
    #[cold]
    pub fn owe(
        &mut self,
        account: &mut Account,
        batch: Cost,
        rings: usize,
        queues: usize,
        now: u64,
    ) {
        let era = self.era(now);
        account.price = account.price.checked_shr(era.wrapping_sub(account.era)).unwrap_or(0);
        account.era = era;
        // Anything longer was the host's doing.
        let cost = batch.cycles.min(self.most);
        // Smaller batches would have as many interrupts each, so these say nothing about frames.
        let of_frames = cost.saturating_sub(batch.signals);
        if of_frames > self.dear {
            let had = account.size.min(batch.frames as u16).max(1);
            account.price =
                account.price.max(u32::try_from(of_frames / u64::from(had)).unwrap_or(u32::MAX));
        }
        account.size = self.size(account, rings);
        account.dear = cost > self.dear;
        if account.dear {
            self.spent += cost;
        }
        // Batches that are cheap by themselves owe nothing.
        if cost > self.part || queues > 1 {
            let all = cost.max(self.part).saturating_mul(queues as u64);
            account.debt = all.saturating_sub(account.credit);
            account.credit = 0;
        }
    }

    /// Returns the frames of the next batch, by the cost of each and the number of rings that share
    /// a round. The uplink has all its parts in one batch.
    fn size(&self, account: &Account, rings: usize) -> u16 {
        let least = if account.uplink { UPLINK_PARTS * self.part } else { self.batch };
        let batch = least.max(self.round / (rings as u64).max(1));
        batch
            .checked_div(account.price.into())
            .map_or(WHOLE, |frames| frames.clamp(1, WHOLE.into()) as u16)
    }

    fn era(&self, now: u64) -> u32 {
        (now / self.half_life.max(1)) as u32
    }

    /// Forgives the least debt, when only rings in debt may have frames.
    #[cold]
    pub fn forgive<'a>(&self, accounts: impl Iterator<Item = &'a mut Account>, least: u64) {
        for account in accounts.filter(|account| account.debt > 0) {
            // The next round pays the last cycle, and decides whose turn it is.
            account.debt = account.debt.saturating_sub(least).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of rings that share a round, more than matter.
    const MANY: usize = 100;

    fn batch(cycles: u64, frames: usize) -> Cost {
        Cost { cycles, signals: 0, frames }
    }

    /// Serves rings that always have frames: for each, the microseconds of 64 frames, and the
    /// frames at a time. Returns the time that each got, in percent, and the longest time that the
    /// first waited.
    fn share(rings: &[(u64, u16)]) -> (Vec<u64>, u64) {
        share_with(rings, 1)
    }

    /// Does the work of [`share`], while all but the first ring are of one vnic, `of_one` of them.
    fn share_with(rings: &[(u64, u16)], of_one: usize) -> (Vec<u64>, u64) {
        let mut fair = Fair::with(1000);
        let mut accounts = vec![Account::new(false); rings.len()];
        let (mut got, mut now, mut last, mut longest) = (vec![0; rings.len()], 0, 0, 0);
        while now < 30_000_000 {
            fair.begin();
            let mut moved = false;
            for (at, (us, frames)) in rings.iter().enumerate() {
                if accounts[at].debt > 0 && !fair.is_due(&mut accounts[at], at) {
                    continue;
                }
                moved = true;
                let frames = accounts[at].size.min(*frames);
                let cost = us * 1000 * u64::from(frames) / 64;
                if at == 0 {
                    // Until each ring was served once, the cost of its batches is not known.
                    longest = longest.max(if now < 10_000_000 { 0 } else { now - last });
                    last = now + cost;
                }
                now += cost;
                got[at] += cost;
                if fair.is_owed(&accounts[at], cost) || at > 0 && of_one > 1 {
                    let queues = if at == 0 { 1 } else { of_one };
                    let cost = batch(cost, frames.into());
                    fair.owe(&mut accounts[at], cost, rings.len(), queues, now);
                }
            }
            if !moved {
                let least = accounts.iter().map(|account| account.debt).min().unwrap();
                fair.forgive(accounts.iter_mut(), least);
            }
        }
        (got.into_iter().map(|time| time * 100 / now).collect(), longest / 1000)
    }

    fn full(costs: &[u64]) -> (Vec<u64>, u64) {
        share(&costs.iter().map(|cost| (*cost, 64)).collect::<Vec<_>>())
    }

    #[test]
    fn ten_attackers_leave_a_neighbour_its_part_of_the_time() {
        for attack in [(100, 64), (26, 64), (30, 64), (320, 4), (9600, 1), (200, 64), (70, 32)] {
            let (got, waited) = share(&[&[(5, 64)][..], &[attack; 10]].concat());
            assert!(got[0] >= 8, "a tenth of what it may have: {attack:?}: {got:?}");
            // A frame that is dear by itself cannot be cut.
            let longest = (BATCH_US + DEAR_US).max(attack.0 / 64);
            assert!(
                waited <= ALLOWANCE_US + longest + 5,
                "{attack:?}: the allowance and one batch, not all of them: {waited}"
            );
            // No ring goes without because of its place among the others.
            assert!(got.iter().all(|part| *part >= 5), "{attack:?}: {got:?}");
        }
    }

    #[test]
    fn time_is_shared_whatever_a_batch_costs() {
        for costs in
            [[10, 20, 100], [100, 10, 20], [200, 200, 5], [7, 180, 180], [9, 9, 9], [26, 26, 26]]
        {
            let (got, _) = full(&costs);
            assert!(got.iter().all(|part| (25..=42).contains(part)), "{costs:?}: {got:?}");
        }
        for costs in [[26; 40], [19; 40], [100; 40], [9; 40]] {
            let (got, _) = full(&costs);
            assert!(got.iter().all(|part| (2..=3).contains(part)), "{costs:?}: {got:?}");
        }
    }

    #[test]
    fn batches_are_as_large_as_should_be_cheap() {
        let mut fair = Fair::with(1000);
        let life = HALF_LIFE_US * 1000;
        let mut account = Account::new(false);
        let mut after = |cost: u64, frames: usize, now: u64| {
            fair.owe(&mut account, batch(cost * 1000, frames), MANY, 1, now);
            account.size
        };
        assert_eq!(after(100, 64, 0), 7);
        // Cheap ones in between do not tell that frames are cheap; time does.
        assert_eq!(
            [(1, 7), (7, 7), (1, 1)].map(|(cost, frames)| after(cost, frames, life - 1)),
            [7; 3]
        );
        assert_eq!([1, 2, 3, 4].map(|lives| after(1, 1, lives * life)), [15, 30, 61, 64]);
        // Some receivers of a flood: as many as the size allows.
        assert_eq!(
            [after(96, 64, 5 * life), after(24, 8, 5 * life), after(24, 1, 5 * life)],
            [8, 4, 1]
        );
        assert_eq!(after(1, 1, 1000 * life), 64);
        // A pause of the host is soon forgotten.
        assert_eq!(after(10_000, 64, 1000 * life), 3);
        assert_eq!(after(1, 1, 1005 * life), 64);
    }

    /// A batch's fixed cost does not make it smaller: each smaller batch would have that cost, and
    /// no work would get done.
    #[test]
    fn fixed_costs_do_not_shrink_batches() {
        let mut fair = Fair::with(1000);
        // Interrupts of 5 to 60 us, and 0.1 us a frame.
        for signals in [5_000, 12_000, 60_000] {
            let mut account = Account::new(false);
            for now in 0..100 {
                let frames = usize::from(account.size);
                let cycles = signals + 100 * frames as u64;
                fair.owe(&mut account, Cost { cycles, signals, frames }, MANY, 1, now);
            }
            assert_eq!(account.size, WHOLE, "{signals}");
        }
        // System calls, of 10 us and 0.5 us a frame, while two rings are polled.
        let mut account = Account::new(false);
        for now in 0..100 {
            let frames = usize::from(account.size);
            fair.owe(&mut account, batch(10_000 + 500 * frames as u64, frames), 2, 1, now);
        }
        assert_eq!(account.size, WHOLE);
    }

    /// Neither a pause nor cheap batches in between buy a round of whole batches: rings that come
    /// back together begin small.
    #[test]
    fn many_that_come_back_together_are_one_short_round() {
        let mut fair = Fair::with(1000);
        let mut now = 0;
        for silence in [100, 1_000, 100_000, 10_000_000, 1_000_000_000] {
            now += silence;
            fair.begin();
            let mut accounts = [fair.open(false, now); 34];
            let mut spent = 0;
            for (at, account) in accounts.iter_mut().enumerate() {
                if account.debt == 0 || fair.is_due(account, at) {
                    let cost = u64::from(account.size) * 100_000 / 64;
                    spent += cost;
                    let size = account.size;
                    fair.owe(account, batch(cost, size.into()), MANY, 1, now);
                }
            }
            assert!(spent <= 34 * 13_000, "{silence}: {spent}");
        }
        // One that was dear a moment ago is small, whatever was between.
        let mut account = fair.open(false, now);
        fair.owe(&mut account, batch(100_000, 8), MANY, 1, now);
        for _ in 0..1000 {
            let size = account.size;
            fair.owe(&mut account, batch(500, size.into()), MANY, 1, now);
        }
        assert!(account.size <= 1, "{}", account.size);
    }

    /// A vnic with many queues has what one has that uses a single one.
    #[test]
    fn many_queues_get_no_more_than_one() {
        for (queues, us) in [(15, 5), (15, 3), (4, 10), (2, 20), (15, 1)] {
            let rings = [&[(us, 64)][..], &vec![(us, 64); queues]].concat();
            let (got, _) = share_with(&rings, queues);
            assert!((45..=55).contains(&got[0]), "{queues} queues of {us} us: {got:?}");
            assert!(got[1..].iter().all(|part| *part >= 45 / queues as u64), "{got:?}");
        }
    }

    #[test]
    fn one_ring_alone_gets_everything_and_a_pause_of_the_host_is_not_its_debt() {
        assert_eq!(full(&[200]).0, [100]);
        let mut fair = Fair::with(1000);
        let mut account = Account::new(false);
        fair.owe(&mut account, batch(10_000_000, 64), MANY, 1, 0);
        let rounds = (1..).find(|_| {
            fair.begin();
            fair.is_due(&mut account, 0)
        });
        assert!(rounds.unwrap() <= 200 / 5, "{rounds:?}");
    }
}

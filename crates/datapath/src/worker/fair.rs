//! Whose turn it is: rings are served by what they cost, not by frames.
//!
//! Deficit round robin in cycles (Shreedhar and Varghese, 1995), the other way round: a batch is served before its cost is known,
//! so a ring that costs more than its part of a round is in debt, and waits until rounds have paid it. A ring whose batches are cheap
//! is served in every round. Nobody waits for nothing: when only rings in debt have something, the least debt is forgiven.

use butterfly_vhost::cpu;

/// What each ring may cost in a round. Most batches cost about as much.
const PART_US: u64 = 5;
/// The uplink has more than one vnic's part, and so has what waits of it: behind them are many.
const UPLINK_PARTS: u64 = 4;
/// Of batches that cost more than this, one is served between two looks at all other rings.
const HEAVY_US: u64 = 25;
/// Most that a ring pays for one batch. What took longer was not its doing: the host had something else to do.
const MOST_US: u64 = 200;

/// What a ring owes.
#[derive(Clone, Copy, Default)]
pub(super) struct Account {
    /// Cycles of its last batch that are not paid, if that cost more than a part.
    pub debt: u64,
    /// What the last round paid more than was owed: parts of a part are not lost.
    credit: u64,
    heavy: bool,
    uplink: bool,
}

impl Account {
    /// Of a ring, or of the uplink and what waits of it.
    pub fn new(uplink: bool) -> Account {
        Account { uplink, ..Account::default() }
    }
}

/// What interrupts may take of a turn. Others are sent by another thread.
const SIGNALS_US: u64 = 60;

/// Prices, in cycles, and what was served in this round.
pub(super) struct Fair {
    part: u64,
    heavy_from: u64,
    most: u64,
    signals: u64,
    heavy: bool,
}

impl Fair {
    pub fn new() -> Fair {
        let us = cpu::tsc_hz() / 1_000_000;
        Fair { part: us * PART_US, heavy_from: us * HEAVY_US, most: us * MOST_US, signals: us * SIGNALS_US, heavy: false }
    }

    /// A round begins.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.heavy = false;
    }

    /// Whether a ring in debt is served in this round, which pays a part of it.
    #[cold]
    pub fn is_due(&self, account: &mut Account) -> bool {
        let paid = if account.uplink { UPLINK_PARTS * self.part } else { self.part };
        if account.debt > paid {
            account.debt -= paid;
        } else if account.heavy && self.heavy {
            account.debt = 1; // in one of the next rounds
        } else {
            account.credit = paid - account.debt;
            account.debt = 0;
        }
        account.debt == 0
    }

    /// What interrupts may take of a turn.
    #[inline(always)]
    pub fn for_signals(&self) -> u64 {
        self.signals
    }

    /// Whether a batch cost more than a part.
    #[inline(always)]
    pub fn is_dear(&self, cost: u64) -> bool {
        cost > self.part
    }

    /// A batch of this ring cost so much.
    #[cold]
    pub fn owe(&mut self, account: &mut Account, cost: u64) {
        account.debt = cost.min(self.most).saturating_sub(account.credit);
        account.credit = 0;
        account.heavy = cost > self.heavy_from;
        self.heavy |= account.heavy;
    }

    /// Nobody but rings in debt may have something.
    #[cold]
    pub fn forgive<'a>(&self, accounts: impl Iterator<Item = &'a mut Account>, least: u64) {
        for account in accounts.filter(|account| account.debt > 0) {
            // The last cycle is paid by the next round, which asks whose turn it is.
            account.debt = account.debt.saturating_sub(least).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings that always have something, with what a batch of theirs costs in microseconds. Returns the time each got, in percent,
    /// and the longest time that the first waited.
    fn share(costs: &[u64]) -> (Vec<u64>, u64) {
        let mut fair = Fair { part: 5_000, heavy_from: 25_000, most: 200_000, signals: 0, heavy: false };
        let mut accounts = vec![Account::default(); costs.len()];
        let (mut got, mut now, mut last, mut longest) = (vec![0; costs.len()], 0, 0, 0);
        while now < 1_000_000_000 {
            fair.begin();
            let mut moved = false;
            for (at, cost) in costs.iter().map(|us| us * 1000).enumerate() {
                if accounts[at].debt > 0 && !fair.is_due(&mut accounts[at]) {
                    continue;
                }
                moved = true;
                if at == 0 {
                    // Until each was served once, nobody knows what its batches cost.
                    longest = longest.max(if now < 10_000_000 { 0 } else { now - last });
                    last = now + cost;
                }
                now += cost;
                got[at] += cost;
                if fair.is_dear(cost) {
                    fair.owe(&mut accounts[at], cost);
                }
            }
            if !moved {
                let least = accounts.iter().map(|account| account.debt).min().unwrap();
                fair.forgive(accounts.iter_mut(), least);
            }
        }
        (got.into_iter().map(|time| time * 100 / now).collect(), longest / 1000)
    }

    #[test]
    fn ten_attackers_leave_a_neighbour_its_part_of_the_time() {
        let (got, waited) = share(&[5, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100]);
        assert!(got[0] >= 8, "a tenth of what it may have: {got:?}");
        assert!(waited <= 100 + 5, "one of them is between two looks, not all: {waited}");
        let (_, waited) = share(&[4, 200, 150, 100]);
        assert!(waited <= 200, "{waited}");
    }

    #[test]
    fn time_is_shared_whatever_a_batch_costs() {
        for costs in [[10, 20, 100], [100, 10, 20], [200, 200, 5], [7, 180, 180]] {
            let (got, _) = share(&costs);
            assert!(got.iter().all(|part| (25..=42).contains(part)), "{costs:?}: {got:?}");
        }
    }

    #[test]
    fn one_ring_alone_gets_everything_and_a_pause_of_the_host_is_not_its_debt() {
        assert_eq!(share(&[200]).0, [100]);
        let mut fair = Fair { part: 5_000, heavy_from: 25_000, most: 200_000, signals: 0, heavy: false };
        let mut account = Account::default();
        fair.owe(&mut account, 10_000_000);
        let rounds = (1..).find(|_| {
            fair.begin();
            fair.is_due(&mut account)
        });
        assert!(rounds.unwrap() <= 200 / 5, "{rounds:?}");
    }
}

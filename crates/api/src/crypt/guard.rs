//! Memory of past requests, so that none is carried out twice.
//!
//! A request names the daemon's *epoch* and the time it was made, both sealed. The daemon remembers
//! the nonces of requests whose time is still good; it refuses all others by their time. Sometimes
//! that would not do: after a start, after a clock was set back, or without room. Then there is a
//! new epoch, and requests made for the one before are refused. So the time that a client and a
//! daemon share is no secret, no order and no promise. It only bounds how much is remembered, and
//! how long an attacker in between can hold a request up.

use super::{
    host::{Random, WINDOW, random},
    sealed::Nonce,
};
use std::collections::{BTreeMap, HashSet};

/// Most nonces remembered: some three megabytes. Clients that ask more often than a thousand times
/// per second for a minute learn of a new epoch a little more often.
const ROOM: usize = 1 << 16;
/// Nonces are forgotten by the second.
const SECOND: u64 = 1000;

/// Names what a daemon remembers.
pub(super) type Epoch = [u8; 16];

/// The memory of a daemon.
pub(super) struct Guard {
    epoch: Epoch,
    /// Nonces by the second of their time.
    seen: BTreeMap<u64, HashSet<Nonce>>,
    count: usize,
    /// The latest that the clock has shown.
    latest: u64,
    room: usize,
    source: Random,
}

/// Reason why a request is not to be carried out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The request is not for this epoch.
    Epoch,
    /// Its time is so many milliseconds before ours, or after if that is negative.
    Clock(i128),
    /// The request was here before.
    Repeated,
    /// No random numbers for a new epoch.
    NoEpoch,
}

impl Guard {
    /// Remembers nothing yet.
    pub(super) fn new(source: Random) -> Result<Self, getrandom::Error> {
        Ok(Self {
            epoch: random(source)?,
            seen: BTreeMap::new(),
            count: 0,
            latest: 0,
            room: ROOM,
            source,
        })
    }

    /// Returns the epoch that requests have to name.
    pub(super) fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// Checks that the request with this `nonce`, made for `epoch` at `time`, is to be carried out
    /// `now`. Admits each request only once.
    pub(super) fn admit(
        &mut self,
        now: u64,
        nonce: &Nonce,
        epoch: &[u8],
        time: u64,
    ) -> Result<(), Refused> {
        if now < self.latest {
            // What was forgotten would have a good time again.
            self.renew()?;
        }
        self.latest = now;
        self.forget(now.saturating_sub(WINDOW));
        if now.abs_diff(time) > WINDOW {
            if time > now && epoch == self.epoch {
                // It would become good when the clock gets there, and is refused now.
                self.renew()?;
                self.latest = now;
            }
            return Err(Refused::Clock(i128::from(now) - i128::from(time)));
        }
        if epoch != self.epoch {
            return Err(Refused::Epoch);
        }
        if self.count >= self.room {
            self.renew()?;
            return Err(Refused::Epoch);
        }
        if !self.seen.entry(time / SECOND).or_default().insert(*nonce) {
            return Err(Refused::Repeated);
        }
        self.count += 1;
        Ok(())
    }

    /// Forgets what was made before `time`, but not what was made in the same second.
    fn forget(&mut self, time: u64) {
        while let Some(entry) = self.seen.first_entry().filter(|entry| *entry.key() < time / SECOND)
        {
            self.count -= entry.remove().len();
        }
    }

    fn renew(&mut self) -> Result<(), Refused> {
        self.epoch = random(self.source).map_err(|_| Refused::NoEpoch)?;
        self.seen.clear();
        self.count = 0;
        self.latest = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: u64 = 1_800_000_000_000;

    fn guard() -> Guard {
        Guard::new(getrandom::fill).unwrap()
    }

    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; 24];
        nonce[..8].copy_from_slice(&number.to_be_bytes());
        nonce
    }

    #[test]
    fn a_request_is_admitted_once() {
        let mut guard = guard();
        let epoch = *guard.epoch();
        assert_eq!(guard.admit(NOW, &nonce(1), &epoch, NOW), Ok(()));
        assert_eq!(guard.admit(NOW, &nonce(2), &epoch, NOW), Ok(()));
        for later in [0, 1, 999, 30_000, 60_000] {
            assert_eq!(
                guard.admit(NOW + later, &nonce(1), &epoch, NOW),
                Err(Refused::Repeated),
                "{later}"
            );
        }
        // By then it is forgotten, and too old.
        assert_eq!(guard.admit(NOW + 62_000, &nonce(1), &epoch, NOW), Err(Refused::Clock(62_000)));
        assert_eq!(guard.count, 0);
    }

    #[test]
    fn times() {
        for (time, outcome) in [
            (NOW, Ok(())),
            (NOW - 60_000, Ok(())),
            (NOW + 60_000, Ok(())),
            (NOW - 60_001, Err(Refused::Clock(60_001))),
            (NOW + 60_001, Err(Refused::Clock(-60_001))),
            (0, Err(Refused::Clock(NOW.into()))),
            (u64::MAX, Err(Refused::Clock(i128::from(NOW) - i128::from(u64::MAX)))),
        ] {
            let mut guard = guard();
            let epoch = *guard.epoch();
            assert_eq!(guard.admit(NOW, &nonce(1), &epoch, time), outcome, "{time}");
        }
    }

    /// The client that sealed the request got a refusal.
    #[test]
    fn what_was_refused_for_being_early_stays_refused() {
        let mut guard = guard();
        let epoch = *guard.epoch();
        assert_eq!(
            guard.admit(NOW, &nonce(1), &epoch, NOW + 3_600_000),
            Err(Refused::Clock(-3_600_000))
        );
        assert_eq!(
            guard.admit(NOW + 3_600_000, &nonce(1), &epoch, NOW + 3_600_000),
            Err(Refused::Epoch)
        );
        // A request that was never good begins no epoch.
        let epoch = *guard.epoch();
        assert_eq!(
            guard.admit(NOW, &nonce(2), b"another", u64::MAX),
            Err(Refused::Clock(i128::from(NOW) - i128::from(u64::MAX)))
        );
        assert_eq!(
            guard.admit(NOW + 3_600_000, &nonce(2), &epoch, 0),
            Err(Refused::Clock(i128::from(NOW) + 3_600_000))
        );
    }

    #[test]
    fn a_request_is_for_one_daemon() {
        let (mut one, mut other) = (guard(), guard());
        let epoch = *one.epoch();
        assert_eq!(other.admit(NOW, &nonce(1), &epoch, NOW), Err(Refused::Epoch));
        assert_eq!(one.admit(NOW, &nonce(1), &[], NOW), Err(Refused::Epoch), "none is named");
        assert_eq!(one.admit(NOW, &nonce(1), &epoch[..15], NOW), Err(Refused::Epoch));
        assert_eq!(
            one.admit(NOW, &nonce(1), &epoch, NOW),
            Ok(()),
            "what was refused was not carried out"
        );
    }

    /// Forgotten requests must not become good again.
    #[test]
    fn a_clock_that_is_set_back_begins_an_epoch() {
        let mut guard = guard();
        let epoch = *guard.epoch();
        assert_eq!(guard.admit(NOW, &nonce(1), &epoch, NOW), Ok(()));
        assert_eq!(guard.admit(NOW + 3_600_000, &nonce(2), &epoch, NOW + 3_600_000), Ok(()));
        assert_eq!(guard.admit(NOW, &nonce(1), &epoch, NOW), Err(Refused::Epoch));
        let next = *guard.epoch();
        assert_ne!(next, epoch);
        assert_eq!(guard.admit(NOW, &nonce(3), &next, NOW), Ok(()));
        // And an hour later, the second of them.
        assert_eq!(
            guard.admit(NOW + 3_600_000, &nonce(2), &epoch, NOW + 3_600_000),
            Err(Refused::Epoch)
        );
    }

    #[test]
    fn no_more_room_begins_an_epoch() {
        let mut guard = Guard { room: 10, ..guard() };
        let epoch = *guard.epoch();
        for number in 0..10 {
            assert_eq!(guard.admit(NOW, &nonce(number), &epoch, NOW), Ok(()));
        }
        assert_eq!(guard.admit(NOW, &nonce(10), &epoch, NOW), Err(Refused::Epoch));
        assert_ne!(guard.epoch(), &epoch);
        for number in 0..10 {
            assert_eq!(
                guard.admit(NOW, &nonce(number), &epoch, NOW),
                Err(Refused::Epoch),
                "none is carried out again"
            );
        }
        let next = *guard.epoch();
        assert_eq!(guard.admit(NOW, &nonce(10), &next, NOW), Ok(()));
        // Room comes back with time, too.
        let mut guard = Guard { room: 10, ..self::guard() };
        let epoch = *guard.epoch();
        for number in 0..100 {
            let now = NOW + number * 10_000;
            assert_eq!(guard.admit(now, &nonce(number), &epoch, now), Ok(()), "{number}");
            assert!(guard.count <= 8, "{}", guard.count);
        }
    }

    #[test]
    fn without_random_numbers_nothing_is_admitted() {
        let fails: Random = |_| Err(getrandom::Error::UNSUPPORTED);
        assert!(Guard::new(fails).is_err());
        let mut guard = Guard { source: fails, room: 0, ..guard() };
        let epoch = *guard.epoch();
        assert_eq!(guard.admit(NOW, &nonce(1), &epoch, NOW), Err(Refused::NoEpoch));
        assert_eq!(
            guard.admit(NOW, &nonce(1), &epoch, NOW),
            Err(Refused::NoEpoch),
            "nor by asking again"
        );
    }

    proptest! {
        /// Each request is carried out at most once and memory is bounded, for all jumps of the
        /// clock and all repetitions.
        #[test]
        fn nothing_is_carried_out_twice(steps in proptest::collection::vec((-90_000i64..120_000, 0u64..8, -70_000i64..70_000), 1..200)) {
            let mut guard = Guard { room: 16, ..guard() };
            let (mut now, mut sent, mut done) = (NOW, Vec::new(), HashSet::new());
            for (number, (step, choice, skew)) in (0..).zip(steps) {
                now = now.saturating_add_signed(step / 8);
                // Something new, or one of those that were sent before.
                let request = match sent.len() {
                    len if choice > 4 && len > 0 => sent[number as usize * 7 % len],
                    _ => (nonce(number), *guard.epoch(), now.saturating_add_signed(skew)),
                };
                sent.push(request);
                let (nonce, epoch, time) = request;
                if guard.admit(now, &nonce, &epoch, time).is_ok() {
                    prop_assert!(done.insert(nonce), "twice");
                }
                prop_assert!(guard.count <= 16);
                prop_assert_eq!(guard.count, guard.seen.values().map(HashSet::len).sum::<usize>());
            }
        }
    }
}

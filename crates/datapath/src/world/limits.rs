//! Limits of a vnic's traffic, and what of them is used up.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use butterfly_mem::cpu;

use crate::engine::meter::{Meter, Rate};

/// Part of a burst that has to be there again before a sender goes on: it sends some frames at
/// once, not one after each wait.
const PART_OF_BURST: u64 = 16;
/// Least and longest wait in microseconds. A limit that was raised counts after the longest.
const LEAST_US: u64 = 50;
const LONGEST_US: u64 = 100_000;

/// The limit of one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    packets: Option<Rate>,
    bytes: Option<Rate>,
}

impl Limit {
    /// Compiles a declaration. `None`: nothing is limited.
    pub fn of(declared: &butterfly_model::Limit) -> Option<Box<Limit>> {
        let rate = |(per_second, burst)| Rate { per_second, burst };
        let limit = Limit {
            packets: declared.packet_rate().map(rate),
            bytes: declared.byte_rate().map(rate),
        };
        (!declared.is_none()).then(|| Box::new(limit))
    }
}

/// Limits of both ways, compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WayLimits {
    pub from_guest: Option<Box<Limit>>,
    pub to_guest: Option<Box<Limit>>,
}

/// State of the limit of one way.
#[derive(Default)]
pub(crate) struct Limiter {
    packets: Meter,
    bytes: Meter,
    /// Times that the sender had to wait.
    waits: AtomicU64,
}

/// State of the limits of both ways.
#[derive(Default)]
pub(crate) struct Limiters {
    pub from_guest: Limiter,
    pub to_guest: Limiter,
}

/// Packets and bytes that may go now.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    packets: i64,
    bytes: i64,
}

impl Limiter {
    /// Returns what may go now.
    pub fn room(&self, limit: &Limit) -> Room {
        let (now, hz) = (cpu::tsc(), cpu::tsc_hz());
        let room = |meter: &Meter, rate: Option<Rate>| {
            rate.map_or(i64::MAX, |rate| meter.fill(rate, now, hz))
        };
        Room { packets: room(&self.packets, limit.packets), bytes: room(&self.bytes, limit.bytes) }
    }

    /// Takes what went.
    pub fn spend(&self, limit: &Limit, packets: u64, bytes: u64) {
        if limit.packets.is_some() {
            self.packets.spend(packets);
        }
        if limit.bytes.is_some() {
            self.bytes.spend(bytes);
        }
    }

    /// Counts a wait. Returns its length in ticks.
    pub fn wait(&self, limit: &Limit) -> u64 {
        self.waits.fetch_add(1, Relaxed);
        let hz = cpu::tsc_hz();
        let ticks = |meter: &Meter, rate: Option<Rate>| {
            rate.map_or(0, |rate| {
                let part = i64::try_from(rate.burst / PART_OF_BURST).unwrap_or(i64::MAX);
                meter.wait(part.max(1), rate, hz)
            })
        };
        let us = hz / 1_000_000;
        ticks(&self.packets, limit.packets)
            .max(ticks(&self.bytes, limit.bytes))
            .clamp(us * LEAST_US, us * LONGEST_US)
    }

    /// Returns how often the sender had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    fn copy(&self) -> Limiter {
        Limiter {
            packets: self.packets.copy(),
            bytes: self.bytes.copy(),
            waits: AtomicU64::new(self.waits()),
        }
    }
}

impl Limiters {
    /// Returns limiters of their own with the same state.
    pub fn copy(&self) -> Limiters {
        Limiters { from_guest: self.from_guest.copy(), to_guest: self.to_guest.copy() }
    }
}

impl Room {
    /// Returns whether a frame may go.
    pub fn is_open(&self) -> bool {
        self.packets > 0 && self.bytes > 0
    }

    /// Takes room for a frame of so many bytes that counts as so many packets. Returns whether it
    /// may go: as the last one also if it is larger than the room.
    pub fn take(&mut self, packets: u64, bytes: u64) -> bool {
        let is_open = self.is_open();
        if is_open {
            let less = |room: &mut i64, by: u64| {
                *room = room.saturating_sub(i64::try_from(by).unwrap_or(i64::MAX));
            };
            less(&mut self.packets, packets);
            less(&mut self.bytes, bytes);
        }
        is_open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(bits: u64, packets: u64) -> Box<Limit> {
        Limit::of(&butterfly_model::Limit::new(bits, packets, 0, 0).unwrap()).unwrap()
    }

    #[test]
    fn the_narrower_one_of_two_counts() {
        let limiter = Limiter::default();
        let limit = limit(8_000_000, 100_000); // bursts of 10,000 bytes, 1,000 packets
        let mut room = limiter.room(&limit);
        let went = (0..2000).take_while(|_| room.take(1, 1000)).count();
        assert_eq!(went, 10);
        let mut room = limiter.room(&limit);
        let went = (0..2000).take_while(|_| room.take(1, 1)).count();
        assert_eq!(went, 1000);
        // A frame that is larger than what is left passes, and is paid for.
        let mut room = limiter.room(&limit);
        assert!(room.take(45, 65_536) && !room.take(1, 60));
        limiter.spend(&limit, 45, 65_536);
        assert!(!limiter.room(&limit).is_open());
        let us = cpu::tsc_hz() / 1_000_000;
        // 55,536 bytes of debt and 625 that are wanted take 56.2 ms.
        let wait = limiter.wait(&limit) / us;
        assert!((50_000..57_000).contains(&wait), "{wait}");
        limiter.spend(&limit, 0, 1 << 30);
        assert_eq!(limiter.wait(&limit) / us, LONGEST_US);
        assert_eq!(limiter.copy().waits(), 2);
    }

    #[test]
    fn nothing_declared_is_no_limit() {
        assert!(Limit::of(&butterfly_model::Limit::default()).is_none());
    }
}

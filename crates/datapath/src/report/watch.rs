//! Watches counters for trouble, once per second: addresses that are not a vnic's own, full tables,
//! rings that a guest broke.
//!
//! Counters are only read here; the packet path knows nothing of it.

use std::{collections::HashMap, time::Duration};

use butterfly_vhost::port::QueueKind;

use crate::engine::{
    counters::Counter,
    events::{About, Happening, SwitchEvents},
    place::PortRef,
    reason::{DropReason, ReasonInfo},
};
use crate::ip::BAD_DISCOVERY;
use crate::plane::Plane;
use crate::stages::{
    antispoof::{SPOOFED_ARP, SPOOFED_MAC},
    claims::IP_CLAIMED,
    deliver::RX_BAD_CHAIN,
    filter::{SESSION_SHARE, SESSIONS_FULL, SPOOFED_IP},
    forward::MAC_CLAIMED,
    headers::BAD_CHAIN,
    reasons::reasons,
};
use crate::world::snapshot::Vnic;

/// The reasons that are watched.
pub(crate) const DROPS: [DropReason; WATCHED] = [
    SPOOFED_MAC,
    SPOOFED_ARP,
    SPOOFED_IP,
    BAD_DISCOVERY,
    MAC_CLAIMED,
    IP_CLAIMED,
    SESSIONS_FULL,
    SESSION_SHARE,
    BAD_CHAIN,
    RX_BAD_CHAIN,
];
const WATCHED: usize = 10;
/// Number of watched counts: the drops, [`Counter::LearnRefused`], and a vnic's costs for workers.
/// Those are confirmed slow interrupts, rests for first touches, and stalls.
const COUNTS: usize = WATCHED + 4;
const KINDS: [QueueKind; 2] = [QueueKind::Rx, QueueKind::Tx];

/// Returns the drop reasons that are told as events, besides being counted.
pub fn watched_drops() -> impl Iterator<Item = ReasonInfo> {
    DROPS.iter().filter_map(|wanted| reasons().find(|info| info.reason == *wanted))
}

/// Seconds between two events about one count of one vnic.
const PAUSE: u32 = 10;
/// Percent of the table of sessions above which it is nearly full, and below which it has room
/// again.
const NEARLY_FULL: u64 = 80;
const ROOM_AGAIN: u64 = 70;

/// One count of one vnic.
#[derive(Clone, Copy, Default)]
struct Told {
    /// The count when it was last told.
    count: u64,
    /// Second from which it may be told again.
    next: u32,
}

impl Told {
    /// Returns the number of new ones, if it is time to tell.
    fn more(&mut self, count: u64, now: u32) -> Option<u64> {
        let new = count.saturating_sub(self.count);
        if new == 0 || now < self.next {
            return None;
        }
        *self = Told { count, next: now.saturating_add(PAUSE) };
        Some(new)
    }
}

/// Counts of a vnic that were told.
#[derive(Default)]
struct Seen {
    counts: [Told; COUNTS],
    broken: [bool; KINDS.len()],
}

/// Counts and states that were told.
#[derive(Default)]
pub(crate) struct Watch {
    /// Counts of vnics with any trouble.
    seen: HashMap<PortRef, Seen>,
    nearly_full: bool,
}

impl Watch {
    /// Begins to watch. All that was counted until now counts as told.
    pub fn begin(plane: &Plane) -> Watch {
        let mut watch = Watch::default();
        for (_, vnic) in plane.shared.snapshot.load().vnics.iter() {
            let counters = &vnic.shared.counters;
            let mut seen = Seen::default();
            let (drops, others) = seen.counts.split_at_mut(WATCHED);
            for (told, reason) in drops.iter_mut().zip(DROPS) {
                told.count = counters.drops(reason);
            }
            if let Some(told) = others.first_mut() {
                told.count = counters.get(Counter::LearnRefused);
            }
            if seen.counts.iter().any(|told| told.count > 0) {
                watch.seen.insert(vnic.place, seen);
            }
        }
        watch
    }

    /// Looks at all counts. The caller calls it about once per second.
    pub fn look(&mut self, plane: &Plane, events: &dyn SwitchEvents) {
        let now = plane.shared.clock.now();
        let snapshot = plane.shared.snapshot.load();
        self.seen.retain(|place, _| snapshot.vnic(*place).is_some());
        for (_, vnic) in snapshot.vnics.iter() {
            self.look_at(vnic, now, events);
        }
        let (used, capacity) = (plane.shared.table.used(), plane.shared.table.capacity());
        if let Some(nearly_full) = self.pressure(used, capacity) {
            events.happened(About::default(), Happening::Sessions { used, capacity, nearly_full });
        }
    }

    fn look_at(&mut self, vnic: &Vnic, now: u32, events: &dyn SwitchEvents) {
        let counters = &vnic.shared.counters;
        let mut counts = [0; COUNTS];
        for (count, reason) in counts.iter_mut().zip(DROPS) {
            *count = counters.drops(reason);
        }
        let (interrupts, touches) =
            (vnic.shared.port.interrupts().report(), vnic.shared.port.touches().report());
        let [.., learn_refused, slow, rests, stalls] = &mut counts;
        *learn_refused = counters.get(Counter::LearnRefused);
        (*slow, *rests, *stalls) = (interrupts.confirmed, touches.rests, touches.stalls);
        let broken = KINDS.map(|kind| vnic.shared.port.broken(kind));
        if counts == [0; COUNTS] && broken == [false; 2] && !self.seen.contains_key(&vnic.place) {
            return;
        }
        let seen = self.seen.entry(vnic.place).or_default();
        let about = About { nic: (!vnic.is_trunk()).then_some(&*vnic.id), vni: Some(vnic.vni) };
        for (index, (told, count)) in seen.counts.iter_mut().zip(counts).enumerate() {
            let Some(more) = told.more(count, now) else { continue };
            let reason =
                DROPS.get(index).and_then(|wanted| reasons().find(|info| info.reason == *wanted));
            let what = match (reason, index.saturating_sub(WATCHED)) {
                (Some(reason), _) => Happening::Dropped(reason, more),
                (None, 0) => Happening::LearnRefused(more),
                (None, 1) => Happening::SlowInterrupts(Duration::from_nanos(interrupts.worst_ns)),
                (None, 2) => Happening::FirstTouches(touches.pages),
                (None, _) => Happening::MemoryStalled(touches.stalled),
            };
            events.happened(about, what);
        }
        for ((kind, before), broken) in KINDS.into_iter().zip(&mut seen.broken).zip(broken) {
            if broken && !std::mem::replace(before, broken) {
                events.happened(about, Happening::Broken(kind));
            }
            *before = broken;
        }
    }

    /// Returns whether the table is nearly full, if that changed.
    fn pressure(&mut self, used: u32, capacity: u32) -> Option<bool> {
        let bound =
            u64::from(capacity) * if self.nearly_full { ROOM_AGAIN } else { NEARLY_FULL } / 100;
        let nearly_full =
            if self.nearly_full { u64::from(used) >= bound } else { u64::from(used) > bound };
        (nearly_full != std::mem::replace(&mut self.nearly_full, nearly_full))
            .then_some(nearly_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::writer::WorkerId;
    use crate::plane::{PlaneConfig, nowhere};
    use crate::session::SessionConfig;
    use crate::world::policy::VnicPolicy;
    use butterfly_packet::mac::Mac;
    use std::sync::Mutex;

    #[test]
    fn a_count_is_told_at_once_then_every_ten_seconds() {
        let mut told = super::Told::default();
        assert_eq!(told.more(0, 1), None);
        assert_eq!(told.more(3, 2), Some(3));
        assert_eq!(told.more(5, 3), None);
        assert_eq!(told.more(9, 11), None);
        assert_eq!(told.more(9, 12), Some(6), "all since the last one");
        assert_eq!(told.more(9, 30), None);
        assert_eq!(told.more(10, 31), Some(1));
    }

    #[test]
    fn the_table_is_nearly_full_above_80_percent_until_it_is_below_70() {
        let mut watch = Watch::default();
        let told = [0, 800, 801, 900, 800, 701, 700, 699, 700, 800, 801]
            .map(|used| watch.pressure(used, 1000));
        let (full, room) = (Some(true), Some(false));
        assert_eq!(told, [None, None, full, None, None, None, None, room, None, None, full]);
    }

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl SwitchEvents for Heard {
        fn happened(&self, about: About<'_>, what: Happening<'_>) {
            let what = match what {
                Happening::Dropped(info, frames) => format!("{} {frames}", info.name),
                other => format!("{other:?}"),
            };
            self.0.lock().unwrap().push(format!(
                "{} {} {what}",
                about.nic.unwrap_or("-"),
                about.vni.unwrap_or(0)
            ));
        }
    }

    #[test]
    fn counters_are_told_with_whom_they_are_about() {
        let sessions = SessionConfig { capacity: 1024, ..SessionConfig::default() };
        let plane = Plane::new(PlaneConfig {
            workers: 2,
            fdb_ageing: 300,
            sessions,
            tunnel: None,
            black_box: nowhere(),
        })
        .unwrap();
        let seven = butterfly_model::Vni::new(7).unwrap();
        let add = |id, n| {
            plane.insert(id, Mac([2, 0, 0, 0, 0, n]), seven, &VnicPolicy::default()).unwrap().0
        };
        let (a, b) = (add("a", 1), add("b", 2));
        let (mut watch, told) = (Watch::default(), Heard::default());
        let mut look = || {
            watch.look(&plane, &told);
            (std::mem::take(&mut *told.0.lock().unwrap()), watch.seen.len())
        };
        let none = Vec::<String>::new();
        assert_eq!(look(), (none.clone(), 0));
        for worker in 0..2 {
            let cells = a.shared.counters.of(WorkerId::new(worker).writer()).unwrap();
            cells.drop(SPOOFED_MAC, 3);
            cells.drop(crate::stages::headers::SHORT, 1);
            cells.add(Counter::LearnRefused, 2);
        }
        b.shared.counters.of(WorkerId::new(0).writer()).unwrap().drop(RX_BAD_CHAIN, 1);
        assert_eq!(
            look(),
            (
                vec![
                    "a 7 spoofed-mac 6".into(),
                    "a 7 LearnRefused(4)".into(),
                    "b 7 rx-bad-chain 1".into()
                ],
                2
            )
        );
        a.shared.counters.of(WorkerId::new(1).writer()).unwrap().drop(SPOOFED_MAC, 1);
        assert_eq!(look(), (none.clone(), 2));
        plane.shared.clock.pass(10);
        assert_eq!(look(), (vec!["a 7 spoofed-mac 1".into()], 2));
        // The successor in its place has told nothing yet.
        plane.remove("a");
        let a = add("a", 1);
        a.shared.counters.of(WorkerId::new(0).writer()).unwrap().drop(SPOOFED_MAC, 1);
        assert_eq!(look(), (vec!["a 7 spoofed-mac 1".into()], 2));
        plane.remove("a");
        plane.remove("b");
        assert_eq!(look(), (none, 0));
    }

    /// Counts of a former process are no news; those that come after them are.
    #[test]
    fn what_was_counted_before_counts_as_told() {
        let sessions = SessionConfig { capacity: 1024, ..SessionConfig::default() };
        let plane = Plane::new(PlaneConfig {
            workers: 1,
            fdb_ageing: 300,
            sessions,
            tunnel: None,
            black_box: nowhere(),
        })
        .unwrap();
        let seven = butterfly_model::Vni::new(7).unwrap();
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        let a = plane.insert("a", mac, seven, &VnicPolicy::default()).unwrap().0;
        let id = WorkerId::new(0);
        let cells = a.shared.counters.of(id.writer()).unwrap();
        let count = |n| {
            cells.drop(SPOOFED_MAC, n);
            cells.add(Counter::LearnRefused, n);
        };
        count(1000);
        let (mut watch, told) = (Watch::begin(&plane), Heard::default());
        watch.look(&plane, &told);
        assert!(told.0.lock().unwrap().is_empty());
        count(3);
        watch.look(&plane, &told);
        assert_eq!(*told.0.lock().unwrap(), ["a 7 spoofed-mac 3", "a 7 LearnRefused(3)"]);
    }

    #[test]
    fn every_watched_reason_is_known() {
        assert_eq!(watched_drops().count(), WATCHED);
    }
}

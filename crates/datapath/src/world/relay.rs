//! Relay: the host for which a vnic's machine left, to which frames for it are passed on.
//!
//! Hosts that have not heard yet that the machine moved send its frames to its old host. For a
//! while that one passes them on, but nothing that came from the new host, and nothing that was
//! passed on before.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::engine::place::PeerRef;

/// Seconds for which frames are passed on.
pub(crate) const SECONDS: u32 = 30;
/// No host.
const NONE: u32 = 0;

/// The host for which a machine leaves, and to which frames are passed on once it has left.
#[derive(Default)]
pub(crate) struct Relay {
    /// The host that was named for the next departure.
    named: AtomicU32,
    /// The host that frames go to, until this second.
    to: AtomicU32,
    until: AtomicU32,
    /// True if housekeeping has not looked after its sessions yet.
    fresh: AtomicBool,
}

impl Relay {
    /// Names the host for which the machine will leave.
    pub fn name(&self, to: PeerRef) {
        self.named.store(to.0, Relaxed);
    }

    /// Begins to pass frames on, as the machine left. Returns the host, if one was named, and the
    /// second in which it ends.
    pub fn begin(&self, now: u32) -> Option<(PeerRef, u32)> {
        let to = self.named.swap(NONE, Relaxed);
        if to == NONE {
            return None;
        }
        let until = now.saturating_add(SECONDS);
        self.until.store(until, Relaxed);
        self.to.store(to, Relaxed);
        self.fresh.store(true, Relaxed);
        Some((PeerRef(to), until))
    }

    /// Ends all of it, as the machine runs here. Returns whether it had begun.
    pub fn end(&self) -> bool {
        self.named.store(NONE, Relaxed);
        self.fresh.store(false, Relaxed);
        self.to.swap(NONE, Relaxed) != NONE
    }

    /// Returns the host to which frames are passed on at this second.
    pub fn to(&self, now: u32) -> Option<PeerRef> {
        let to = self.to.load(Relaxed);
        (to != NONE && now < self.until.load(Relaxed)).then_some(PeerRef(to))
    }

    /// Returns whether it began since the last call.
    pub fn take_fresh(&self) -> bool {
        self.fresh.load(Relaxed) && self.fresh.swap(false, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_passed_on_for_a_while_and_never_after_a_return() {
        let relay = Relay::default();
        let host = PeerRef(0x1_0005);
        assert_eq!((relay.begin(10), relay.to(10)), (None, None), "no host was named");
        relay.name(host);
        assert_eq!(relay.to(10), None, "it has not left");
        assert_eq!(relay.begin(10), Some((host, 40)));
        assert_eq!((relay.to(39), relay.to(40)), (Some(host), None));
        assert!(relay.take_fresh() && !relay.take_fresh());
        // Stopped rings stop again: no other 30 seconds.
        assert_eq!((relay.begin(20), relay.to(40)), (None, None));
        relay.name(host);
        assert!(relay.end(), "it came back");
        assert_eq!((relay.begin(50), relay.to(50), relay.end()), (None, None, false));
    }
}

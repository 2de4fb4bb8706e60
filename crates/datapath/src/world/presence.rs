//! Presence of a guest at a vnic.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Presence of a guest, and the number of attachments. The vnic's control thread writes it.
#[derive(Default)]
pub(crate) struct Presence {
    /// Attachments plus detachments: with an odd sum, a guest is there.
    changes: AtomicU64,
    /// Attachments that a former process counted.
    former: AtomicU64,
}

impl Presence {
    /// Notes that a guest attached.
    pub fn came(&self) {
        self.changes.fetch_or(1, Relaxed);
    }

    /// Notes that the guest left.
    pub fn went(&self) {
        self.changes.store((self.changes.load(Relaxed) + 1) & !1, Relaxed);
    }

    /// Returns whether a guest is attached.
    pub fn attached(&self) -> bool {
        self.changes.load(Relaxed) % 2 == 1
    }

    /// Returns the number of attachments.
    pub fn attachments(&self) -> u64 {
        self.changes.load(Relaxed).div_ceil(2).wrapping_add(self.former.load(Relaxed))
    }

    /// Adds attachments that a former process counted.
    pub fn add_former(&self, attachments: u64) {
        self.former.fetch_add(attachments, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_comes_and_goes() {
        let presence = Presence::default();
        let now = || (presence.attached(), presence.attachments());
        assert_eq!(now(), (false, 0));
        presence.went();
        assert_eq!(now(), (false, 0), "one that never came");
        presence.came();
        assert_eq!(now(), (true, 1));
        presence.went();
        presence.went();
        assert_eq!(now(), (false, 1));
        presence.came();
        assert_eq!(now(), (true, 2));
    }
}

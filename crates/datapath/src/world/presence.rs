//! Presence of a guest at a vnic.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Whether a guest is there, and how often one came. Its control thread writes.
#[derive(Default)]
pub(crate) struct Presence {
    /// Times a guest came and times it went: an odd sum is one that is there.
    changes: AtomicU64,
}

impl Presence {
    /// A guest came.
    pub fn came(&self) {
        self.changes.fetch_or(1, Relaxed);
    }

    /// It went.
    pub fn went(&self) {
        self.changes.store((self.changes.load(Relaxed) + 1) & !1, Relaxed);
    }

    /// One is there.
    pub fn attached(&self) -> bool {
        self.changes.load(Relaxed) % 2 == 1
    }

    /// How often one came.
    pub fn attachments(&self) -> u64 {
        self.changes.load(Relaxed).div_ceil(2)
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

//! Layout: the one number for how all is written that outlasts a process.
//!
//! A release reads its own layout, the *newest*, and the one before. It writes the layout *in
//! force*, which is that of the store: an upgrade leaves it as it is, so that the release before
//! can take everything back. `butterfly upgrade --commit` rewrites the store in the newest layout,
//! in one transaction; all other parts follow.
//!
//! | part | where | of a layout that is not read |
//! |---|---|---|
//! | store | `store/src/disk.rs` | not opened, and left as it is |
//! | declaration | `butterflyd/src/handlers/kept.rs` | fails the proof by its fields |
//! | checkpoint | `datapath/src/checkpoint`, `butterflyd/src/checkpoint`, `events` | not read |
//! | history of ends | `butterflyd/src/poison/history.rs` | begins anew |
//! | states of front ends | `vhost/src/control/noted.rs` | the front end reconnects |
//! | table of sessions | `datapath/src/session/layout.rs` | removed |
//! | what a holder passes on | `holder/src/server/passing.rs`, its own number | it goes on itself |
//!
//! A change of any of them is a layout of its own for all: raise `OWN`, and have each part that
//! differs ask for the [layout in force](in_force) where it writes, and for the number that it
//! finds where it reads. A state of a front end is only written when the front end says something,
//! so layouts of any age are found there. Bytes around these texts (`mem::halves`, the black box)
//! and the packets of the holder have numbers of their own, and never change: another form is a
//! part of another name, or one more word.
//!
//! There is one layout so far. Builds with checks rehearse the next ones: see [`rehearsal`].

#![forbid(unsafe_code)]

pub mod rehearsal;

use std::{
    ops::RangeInclusive,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// The first layout.
pub const FIRST: u32 = 1;
/// The newest layout of this release.
const OWN: u32 = 1;

/// Layout in force; 0 before it is known.
static IN_FORCE: AtomicU32 = AtomicU32::new(0);

/// Returns the newest layout that this program knows.
pub fn newest() -> u32 {
    rehearsal::layout().map_or(OWN, |rehearsed| rehearsed.max(OWN))
}

/// Returns the layouts that this program reads.
pub fn read() -> RangeInclusive<u32> {
    newest().saturating_sub(1).max(FIRST)..=newest()
}

/// Returns the layout that is written.
pub fn in_force() -> u32 {
    known().unwrap_or(*read().start())
}

/// Returns the layout in force, if it is known by now. If it is not, what the release before reads,
/// too, is written.
pub fn known() -> Option<u32> {
    Some(IN_FORCE.load(Relaxed)).filter(|layout| *layout > 0)
}

/// Has a layout written from now on. Returns false, and does nothing, if this program does not know
/// it.
pub fn put_in_force(layout: u32) -> bool {
    let known = read().contains(&layout);
    if known {
        IN_FORCE.store(layout, Relaxed);
    }
    known
}

/// Checks that something of a layout is read here. Returns the reason if not.
pub fn check(layout: u32) -> Result<(), String> {
    match read().contains(&layout) {
        true => Ok(()),
        false => Err(unreadable(u64::from(layout))),
    }
}

/// Returns the words for a layout that is not read here, and what to do.
pub fn unreadable(layout: u64) -> String {
    let (oldest, newest) = read().into_inner();
    let known = match oldest == newest {
        true => format!("layout {newest}"),
        false => format!("layouts {oldest} and {newest}"),
    };
    let rest = match layout > u64::from(newest) {
        true => format!(
            "a newer release wrote it, and since `butterfly upgrade --commit` there is no way back to this one: use one that reads layout {layout}"
        ),
        false => format!(
            "a much older release wrote it: first run one that reads layout {layout}, too, and `butterfly upgrade --commit`"
        ),
    };
    format!("it has layout {layout}, and this program reads {known} only; {rest}")
}

/// Returns the content of a field that layouts have in rehearsals, and no release has: the number
/// of the layout.
pub fn rehearsed(layout: u32) -> Option<u32> {
    (layout > OWN && rehearsal::layout().is_some()).then_some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_read_here_is_put_in_force() {
        assert_eq!((read(), newest(), rehearsed(2)), (1..=1, 1, None));
        assert_eq!((known(), in_force()), (None, 1));
        assert!(!put_in_force(0) && !put_in_force(2));
        assert_eq!(known(), None);
        assert!(put_in_force(1));
        assert_eq!((known(), in_force()), (Some(1), 1));
        assert!(check(1).is_ok());
        let told = check(2).unwrap_err();
        assert!(told.contains("layout 2, and this program reads layout 1 only"), "{told}");
        assert!(told.contains("no way back to this one"), "{told}");
        assert!(check(0).unwrap_err().contains("a much older release"), "{told}");
    }
}

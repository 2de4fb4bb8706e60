//! Kill points: places between two steps at which a process dies when a test says so.
//!
//! Without the feature `kill-points`, [`pass`] is nothing. With it, the environment variable
//! `BUTTERFLY_DIE_AT` names a point and a passage, as `rx-index-stored:1234`: the process kills
//! itself by SIGKILL there. `message-received@SET_FEATURES:2` is the second passage with this
//! detail. Tests of a switch in their own process unwind instead.
//!
//! All points are declared here. `tests/kill-points` dies at each of them, and fails if a point is
//! never passed.

#![forbid(unsafe_code)]

/// Declares [`Point`].
macro_rules! points {
    ($($point:ident = $name:literal: $what:literal;)*) => {
        /// A place at which a process may die.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Point {
            $(#[doc = $what] $point,)*
        }

        impl Point {
            /// All points.
            pub const ALL: &'static [Point] = &[$(Point::$point,)*];

            /// Its name in `BUTTERFLY_DIE_AT`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Point::$point => $name,)*
                }
            }
        }
    };
}

points! {
    // A batch, in the order of publication.
    TxTaken = "tx-taken": "A batch was gathered from a transmit ring.";
    RxWritten = "rx-written": "A frame is in a receiver's buffer; its used entry is not written.";
    RxEntry = "rx-entry": "A frame's used entry is written; the used index is not stored.";
    TxEntries = "tx-entries": "A batch's used entries are written; the used index is not stored.";
    TxReleased = "tx-released": "The sender's used index is stored.";
    RxPublished = "rx-published": "A receiver's used index is stored; it is not interrupted yet.";
    PackedNoted = "packed-noted": "A run of a packed ring is noted; none of its entries is stored.";
    PackedEntry = "packed-entry": "A used entry of a packed ring is stored.";
    LogUnmarked = "log-unmarked": "Something is stored, and is not yet marked in the dirty log.";
    LogMarked = "log-marked": "Something is marked in the dirty log.";
    CallDue = "call-due": "A guest is about to be interrupted.";
    Called = "called": "A guest was interrupted.";
    // A ring that goes from one worker to another.
    RingLeaves = "ring-leaves": "A ring has a new owner, and its former one has not given it up.";
    GivenUp = "given-up": "A ring is given up and its parcel is made; no worker has them.";
    Taken = "taken": "A worker has taken a ring that another one gave up.";
    // Tables.
    SessionWritten = "session-written": "A session's record is written; it is not counted.";
    SessionCounted = "session-counted": "A session is counted; its bucket does not name it.";
    SessionLinked = "session-linked": "A session can be found.";
    SessionUnlinked = "session-unlinked": "A session is not found any more; its record is not free.";
    StationHalf = "station-half": "A learnt address has its place, and not its key.";
    StationLearnt = "station-learnt": "An address is learnt.";
    // Control messages, from the holder to its answer.
    FrontCame = "front-came": "A front end came, of which the holder tells.";
    FrontServed = "front-served": "The holder knows that it is served.";
    FrontGone = "front-gone": "A front end is gone, of which the holder tells.";
    FrontLeft = "front-left": "Nothing is left of it; the holder does not know.";
    MessageReceived = "message-received": "A message came, with its descriptors.";
    MessageCarriedOut = "message-carried-out": "The device is as the message wants it.";
    MessageNoted = "message-noted": "The end is about to be said to the holder.";
    MessageDone = "message-done": "The end is said.";
    Dialed = "dialed": "A front end that listens is connected; the holder does not know.";
    DialGiven = "dial-given": "The holder has this connection.";
    // Orders to the holder.
    Registering = "registering": "A vnic is about to be registered.";
    Registered = "registered": "A vnic is registered.";
    Forgetting = "forgetting": "A vnic is about to be forgotten.";
    Forgotten = "forgotten": "A vnic is forgotten.";
    Depositing = "depositing": "A part is about to be deposited.";
    Deposited = "deposited": "A part is deposited.";
    // Commits.
    CommitHandedOver = "commit-handed-over": "A commit is on its way to the writer.";
    CommitHeard = "commit-heard": "A commit is on the disk; the holder has the state before it.";
    CommitKept = "commit-kept": "The holder has it, too; no client was answered.";
    WriterHas = "writer-has": "The writer has a commit, and has not begun it. Kills the writer.";
    WriterDone = "writer-done": "The writer made a commit, and has not said so. Kills the writer.";
}

impl Point {
    /// True if the writer of the store dies there, and not the daemon.
    pub const fn kills_the_writer(self) -> bool {
        matches!(self, Point::WriterHas | Point::WriterDone)
    }
}

/// Passes a point.
#[cfg(not(feature = "kill-points"))]
#[inline(always)]
pub fn pass(_point: Point) {}

/// Passes a point with a detail, as the kind of a message.
#[cfg(not(feature = "kill-points"))]
#[inline(always)]
pub fn pass_with(_point: Point, _detail: impl FnOnce() -> String) {}

#[cfg(feature = "kill-points")]
pub use dying::{Died, doom, pass, pass_with, spare};

#[cfg(feature = "kill-points")]
mod dying {
    use std::{
        cell::Cell,
        sync::{
            LazyLock,
            atomic::{AtomicU64, Ordering::Relaxed},
        },
    };

    use super::Point;

    /// Place and passage at which this process dies.
    struct Death {
        point: Point,
        detail: Option<String>,
        /// Passages that are left.
        left: AtomicU64,
    }

    impl Death {
        /// Reads `NAME[@DETAIL]:PASSAGE`.
        fn read(text: &str) -> Option<Death> {
            let (place, passage) = text.rsplit_once(':')?;
            let (name, detail) = match place.split_once('@') {
                Some((name, detail)) => (name, Some(detail.to_owned())),
                None => (place, None),
            };
            let point = *Point::ALL.iter().find(|point| point.name() == name)?;
            Some(Death { point, detail, left: AtomicU64::new(passage.parse().ok()?) })
        }
    }

    static DEATH: LazyLock<Option<Death>> = LazyLock::new(|| {
        let text = std::env::var("BUTTERFLY_DIE_AT").ok()?;
        let death = Death::read(&text);
        assert!(death.is_some(), "BUTTERFLY_DIE_AT={text}: no such point");
        death
    });

    /// A thread's last act.
    type LastAct = Box<dyn FnOnce()>;

    thread_local! {
        /// Passages of this thread until it unwinds, of a point or of all; 0: it does not.
        static DOOMED: Cell<(u64, Option<Point>)> = const { Cell::new((0, None)) };
        static LAST_ACT: Cell<Option<LastAct>> = const { Cell::new(None) };
    }

    /// Carried by the unwinding of a thread that was [doomed](doom): the point.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Died(pub Point);

    /// Has this thread unwind with [`Died`] when it has passed `point`, or any if there is none, so
    /// many times. Before that it does its last act: what it sees is what a process leaves that
    /// dies there, as no destructor has run.
    pub fn doom(point: Option<Point>, passages: u64, last_act: impl FnOnce() + 'static) {
        DOOMED.set((passages, point));
        LAST_ACT.set(Some(Box::new(last_act)));
    }

    /// Takes [`doom`] back. Returns whether it was still to come.
    pub fn spare() -> bool {
        LAST_ACT.set(None);
        DOOMED.replace((0, None)).0 > 0
    }

    /// Passes a point: the process may die here.
    #[inline]
    pub fn pass(point: Point) {
        pass_with(point, String::new);
    }

    /// Passes a point with a detail: the process may die here.
    #[inline]
    pub fn pass_with(point: Point, detail: impl FnOnce() -> String) {
        let (left, at) = DOOMED.get();
        if left > 0 && at.is_none_or(|at| at == point) {
            DOOMED.set((left - 1, at));
            if left == 1 && !std::thread::panicking() {
                if let Some(act) = LAST_ACT.take() {
                    act();
                }
                std::panic::resume_unwind(Box::new(Died(point)));
            }
        }
        let Some(death) = DEATH.as_ref().filter(|death| death.point == point) else { return };
        if death.detail.as_ref().is_none_or(|wanted| *wanted == detail())
            && death.left.fetch_sub(1, Relaxed) == 1
        {
            die();
        }
    }

    #[cold]
    fn die() {
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        // The signal is here before anything else happens.
        loop {
            std::thread::park();
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_doomed_thread_unwinds_at_its_passage() {
            let acted = std::rc::Rc::new(Cell::new(0));
            let act = {
                let acted = acted.clone();
                move || acted.set(acted.get() + 1)
            };
            doom(None, 3, act.clone());
            pass(Point::TxTaken);
            pass(Point::RxEntry);
            let died = std::panic::catch_unwind(|| pass(Point::Called)).unwrap_err();
            assert_eq!(died.downcast_ref(), Some(&Died(Point::Called)));
            assert!(!spare() && acted.get() == 1);
            doom(Some(Point::Called), 1, act);
            pass(Point::TxTaken);
            assert!(spare() && acted.get() == 1);
            pass(Point::Called);
        }

        #[test]
        fn the_variable_names_a_point() {
            let death = Death::read("message-done@SET_FEATURES:2").unwrap();
            assert_eq!(death.point, Point::MessageDone);
            assert_eq!(death.detail.as_deref(), Some("SET_FEATURES"));
            assert_eq!(death.left.into_inner(), 2);
            assert!(Death::read("rx-entry:1").unwrap().detail.is_none());
            for wrong in ["", "rx-entry", "rx-entry:", "rx:1", "rx-entry:-1"] {
                assert!(Death::read(wrong).is_none(), "{wrong}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: std::collections::HashSet<_> =
            Point::ALL.iter().map(|point| point.name()).collect();
        assert_eq!(names.len(), Point::ALL.len());
    }
}

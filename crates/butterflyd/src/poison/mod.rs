//! Poison: vnics by which workers end the process are held, and starts that come to nothing are
//! made with less.
//!
//! Two parts in the holder outlast a process: the [black box](butterfly_mem::blackbox), in which
//! workers note whose rings they touch, and the [history], as text. A process first counts the end
//! of the one before it, has the history kept, and then makes a box of its own.

mod degraded;
mod history;
#[cfg(test)]
mod tests;

pub use degraded::Degraded;
pub use history::StartOrder;

use crate::{
    events::{Events, Kind, Note},
    holding::{Holding, Part},
};
use butterfly_datapath::{Precautions, Switch};
use butterfly_mem::{
    blackbox::{self, BlackBox, Cause, signals},
    cpu::since_boot,
};
use history::{History, Hold, Verdict};
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};
use tracing::{error, info, warn};

/// Names of the parts.
const BOX: &str = "black-box";
const HISTORY: &str = "ends";
/// Time between two looks at holds that may be over.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The history of this service, and the box of this process. Clones are the same one.
#[derive(Clone)]
pub struct Poison(Arc<Shared>);

struct Shared {
    history: Mutex<History>,
    part: Part,
    black_box: Arc<BlackBox>,
    order: StartOrder,
    /// Consequences of the end of the process before, to be told.
    verdicts: Mutex<Vec<Verdict>>,
    /// Not kept alive by this.
    switch: OnceLock<Weak<Switch>>,
}

/// A vnic's hold, for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFor {
    pub why: String,
    /// Seconds until it ends by itself.
    pub left: u64,
}

impl Poison {
    /// Counts the end of the process before, and begins to note that of this one. `goes_back`: true
    /// while a panic of this thread does not end the process.
    pub fn take_up(
        holding: &mut Holding,
        goes_back: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let now = now();
        let former = holding.take_file(BOX);
        let text = holding.take(HISTORY)?;
        let known = former.is_some() || text.is_some();
        let mut history = match text.map(|text| History::read(&text, now)) {
            Some(Ok(history)) => history,
            Some(Err(why)) => {
                warn!("the history of ends cannot be read, and begins anew: {why}");
                History::new(holding.term.saturating_sub(2))
            }
            // One of a release that kept none is not counted, nor is the first process.
            None if !known => History::new(holding.term.saturating_sub(1)),
            None => History::new(holding.term.saturating_sub(2)),
        };
        let notes = former.map(blackbox::read).and_then(|read| {
            read.inspect_err(|why| warn!("the black box cannot be read: {why}")).ok()
        });
        if let Some(notes) = &notes {
            info!(?notes, "the process before this one ended");
        }
        let verdicts = history.count(holding.term, notes.as_ref(), now);
        // In this order: an end is counted once.
        let part = holding.part(HISTORY);
        part.keep(&history.text())?;
        let black_box = BlackBox::create(holding.term)?;
        if let Some(file) = black_box.file() {
            holding.keep_file(BOX, file)?;
        }
        black_box.take_signals()?;
        let black_box = Arc::new(black_box);
        end_by_panics(black_box.clone(), goes_back);
        let order = history.order();
        Ok(Self(Arc::new(Shared {
            history: Mutex::new(history),
            part,
            black_box,
            order,
            verdicts: Mutex::new(verdicts),
            switch: OnceLock::new(),
        })))
    }

    /// Returns how this process is to start.
    pub fn order(&self) -> StartOrder {
        self.0.order
    }

    /// Returns what the switch has to know.
    pub fn precautions(&self) -> Precautions {
        let history = self.history();
        Precautions {
            black_box: Some(self.0.black_box.clone()),
            held: history.held().map(|(id, _)| id.to_owned()).collect(),
            all_held: history.all_held().is_some(),
            uplink_held: history.uplink_held().is_some(),
            skip_uplink: self.0.order.skip_uplink,
        }
    }

    /// Tells what follows from the end of the process before.
    pub fn tell(&self, events: &Events, vni: impl Fn(&str) -> Option<u32>) {
        let verdicts = std::mem::take(&mut *lock(&self.0.verdicts));
        let history = self.history();
        for verdict in verdicts {
            match verdict {
                Verdict::Held(id) => {
                    if let Some(hold) = history.hold_of(&id) {
                        note(events, Kind::NicHeld, &id, vni(&id), held(hold));
                    }
                }
                Verdict::Released(id) => {
                    let text = "not held any more: a receiver of its frames is to blame";
                    note(events, Kind::NicReleased, &id, vni(&id), text.to_owned());
                }
                Verdict::UplinkHeld => {
                    let text = history.uplink_held().map(held).unwrap_or_default();
                    warn!("frames from the uplink are not looked at: {text}");
                    events.note(Note::new(Kind::UplinkHeld, text));
                }
                Verdict::AllHeld => {
                    let text = history.all_held().map(held).unwrap_or_default();
                    warn!("the rings of all vnics are held: {text}");
                    events.note(Note::new(Kind::NicHeld, format!("all vnics: {text}")));
                }
            }
        }
    }

    /// Notes that the process is ready, `degraded` or as usual.
    pub fn ready(&self, degraded: bool) {
        self.0.black_box.is_ready(degraded);
    }

    /// Returns the hold of a vnic.
    pub fn hold_of(&self, id: &str) -> Option<HeldFor> {
        self.history().hold_of(id).map(held_for)
    }

    /// Returns whether all vnics are held together.
    pub fn holds_all(&self) -> bool {
        self.history().all_held().is_some()
    }

    /// Returns the hold of the uplink.
    pub fn uplink_held(&self) -> Option<HeldFor> {
        self.history().uplink_held().map(held_for)
    }

    /// Lets a vnic go, and forgets what it did. Returns whether its rings were held.
    pub fn release(&self, id: &str) -> bool {
        let mut history = self.history();
        let (known, was) = history.forget(id);
        if known {
            self.keep(&history);
        }
        if let Some(switch) = self.0.switch.get().and_then(Weak::upgrade) {
            switch.release_vnic(id);
        }
        was
    }

    /// Lets the vnics go that are held together, and the uplink. Returns whether anything was held.
    pub fn release_all(&self) -> bool {
        let mut history = self.history();
        let ids: Vec<String> = history.held().map(|(id, _)| id.to_owned()).collect();
        let (all, uplink) = (history.forget_all(), history.forget_uplink());
        for id in &ids {
            history.forget(id);
        }
        self.keep(&history);
        if let Some(switch) = self.0.switch.get().and_then(Weak::upgrade) {
            for id in &ids {
                switch.release_vnic(id);
            }
            if all {
                switch.release_all();
            }
            if uplink {
                switch.release_uplink();
            }
        }
        all || uplink || !ids.is_empty()
    }

    /// Begins to let go what was held long enough, in a thread of its own.
    pub fn start(&self, switch: Arc<Switch>, events: Events) -> io::Result<Releasing> {
        let _ = self.0.switch.set(Arc::downgrade(&switch));
        let stop = Arc::new(AtomicBool::new(false));
        let (poison, ends) = (self.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("releases".into()).spawn(move || {
            while !ends.load(Relaxed) {
                poison.end_due(&switch, &events);
                std::thread::park_timeout(LOOK_EVERY);
            }
        })?;
        Ok(Releasing { stop, thread: Some(thread) })
    }

    fn end_due(&self, switch: &Switch, events: &Events) {
        let mut history = self.history();
        let (ids, uplink, all) = history.end_due(now());
        if ids.is_empty() && !uplink && !all {
            return;
        }
        // Before anything is served: if that ends this process, the next hold is a longer one.
        self.keep(&history);
        for id in ids {
            switch.release_vnic(&id);
            let vni = switch.vnic(&id).map(|vnic| vnic.spec.vni.number());
            note(events, Kind::NicReleased, &id, vni, "its time is over: served again".to_owned());
        }
        if uplink {
            switch.release_uplink();
            info!("frames from the uplink are looked at again");
            events.note(Note::new(Kind::UplinkReleased, "its time is over: served again"));
        }
        if all {
            switch.release_all();
            info!("all vnics are served again");
            events.note(Note::new(Kind::NicReleased, "all vnics: their time is over"));
        }
    }

    /// Writes the history in the layout in force.
    pub fn follow_layout(&self) {
        self.keep(&self.history());
    }

    /// Notes how the process ends, when the guard is dropped.
    pub fn end_note(&self) -> EndNote {
        EndNote(self.0.black_box.clone())
    }

    fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.0.history)
    }

    fn keep(&self, history: &History) {
        if let Err(why) = self.0.part.keep(&history.text()) {
            error!("the history of ends is not kept for a restart: {why}");
        }
    }
}

/// The thread that lets go, until this is dropped.
pub struct Releasing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Notes that the process ends in good order, when it is dropped.
pub struct EndNote(Arc<BlackBox>);

impl Drop for EndNote {
    fn drop(&mut self) {
        self.0.ended(Cause::Stopped);
    }
}

/// Has a panic of this thread, and of workers, end the process at once: unwinding would take down
/// what a successor goes on with.
fn end_by_panics(black_box: Arc<BlackBox>, goes_back: impl Fn() -> bool + Send + Sync + 'static) {
    let (told, this) = (std::panic::take_hook(), std::thread::current().id());
    std::panic::set_hook(Box::new(move |about| {
        told(about);
        if signals::panicked() || std::thread::current().id() == this && !goes_back() {
            black_box.ended(Cause::Panic);
            std::process::abort();
        }
    }));
}

fn now() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn held_for(hold: &Hold) -> HeldFor {
    HeldFor { why: hold.why.clone(), left: hold.until.saturating_sub(now()).div_ceil(1000) }
}

fn held(hold: &Hold) -> String {
    let HeldFor { why, left } = held_for(hold);
    format!("held for {left} s: {why}")
}

fn note(events: &Events, kind: Kind, id: &str, vni: Option<u32>, text: String) {
    warn!(EVENT = kind.name(), NIC = id, "nic {id}: {text}");
    let note = Note::new(kind, text);
    events.note(match vni {
        Some(vni) => note.nic(id, vni),
        None => Note { nic: Some(id.into()), ..note },
    });
}

//! The checkpoint: a memory file with what a successor goes on with after a crash.
//!
//! Each text has a sheet in it, of two halves ([`butterfly_mem::halves`]). A thread writes all of
//! them once per second. An answer or a page that tells counters, admissions or events writes the
//! sheet that holds them after it was made and before it leaves: all that it tells is in the sheet
//! then, so no successor tells less.

mod life;

pub use life::{Life, Resumed};

use crate::events::Events;
use butterfly_api::{Action, Requests};
use butterfly_datapath::{Former, Switch};
use butterfly_mem::halves::{HalvesFile, TwoHalves};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};
use tracing::{info, warn};

/// Size of the file.
const SIZE: u64 = 64 << 20;
/// Bytes of one half of each sheet, in their order. Their sum is half of [`SIZE`] at most. Never
/// change one, nor [`SIZE`]: a successor would read other places, find nothing there, and take that
/// for "none were kept". Another geometry is a part of another name.
const HALVES: [usize; 5] = [64 << 10, 8 << 20, 2 << 20, 13 << 20, 8 << 20];
/// Time between two notes of everything.
const EVERY: Duration = Duration::from_secs(1);

/// A sheet of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sheet {
    /// The service, and the counts of its API.
    Life,
    Counters,
    Rules,
    Stations,
    Events,
}

/// A checkpoint: to be written, or left by a process that died.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    file: HalvesFile,
}

impl Checkpoint {
    /// Makes an empty one.
    pub fn create() -> io::Result<Self> {
        Ok(Self { file: HalvesFile::create("butterfly-checkpoint", SIZE)? })
    }

    /// Takes one that another process made. It need not be what that says.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        Ok(Self { file: HalvesFile::open(file, SIZE)? })
    }

    fn sheet(&self, sheet: Sheet) -> TwoHalves {
        let before: usize = HALVES.iter().take(sheet as usize).sum();
        self.file.halves(2 * before as u64, HALVES[sheet as usize])
    }

    fn text(&self, sheet: Sheet) -> Vec<u8> {
        self.sheet(sheet).newest().map(|newest| newest.text).unwrap_or_default()
    }

    /// Goes on with what the process left that wrote this. Everything is declared by now, and the
    /// switch does not go yet. Nothing is an error: what cannot be used begins anew, and is told.
    /// The caller records the event.
    pub fn resume(&self, switch: &Switch, events: &Events, requests: &Requests) -> Resumed {
        let [counters, rules, stations] =
            [Sheet::Counters, Sheet::Rules, Sheet::Stations].map(|sheet| self.text(sheet));
        let former = Former { counters: &counters, rules: &rules, stations: &stations };
        let mut resumed = Resumed::of(&self.text(Sheet::Life), requests);
        match switch.take_over(former) {
            Ok(taken) => resumed.taken = taken,
            Err(why) => resumed.problems.push(why.to_string()),
        }
        resumed.record = events.take_over(&self.text(Sheet::Events));
        let text = resumed.to_string();
        // One line for the log, whatever there was.
        if resumed.is_whole() {
            info!("this process goes on for one that ended: {text}");
        } else {
            warn!("this process goes on for one that ended: {text}");
        }
        resumed
    }

    /// Begins to write, for a successor of this process.
    pub fn keep(&self, life: Life, switch: Arc<Switch>, events: Events) -> Kept {
        let sheets = [Sheet::Life, Sheet::Counters, Sheet::Rules, Sheet::Stations, Sheet::Events];
        Kept(Arc::new(Shared {
            sheets: sheets.map(|sheet| Mutex::new(self.sheet(sheet))),
            life,
            switch,
            events,
            requests: OnceLock::new(),
            record: Mutex::new(None),
            left_out: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }))
    }
}

/// Checks that the texts about the service and its events can be read here. Returns the reason if
/// not.
pub fn check(life: &[u8], events: &[u8]) -> Result<(), String> {
    life::check(life)?;
    Events::default().take_over(events).problem.map_or(Ok(()), Err)
}

impl AsFd for Checkpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A checkpoint that is kept up to date. Clones are the same one.
#[derive(Clone)]
pub struct Kept(Arc<Shared>);

struct Shared {
    sheets: [Mutex<TwoHalves>; HALVES.len()],
    life: Life,
    switch: Arc<Switch>,
    events: Events,
    requests: OnceLock<Arc<Requests>>,
    /// Version of the record of events that is in its sheet.
    record: Mutex<Option<u64>>,
    /// True after it was told that something found no room, or that nothing can be written.
    left_out: AtomicBool,
    failed: AtomicBool,
}

/// The thread that writes once per second, until this is dropped.
pub struct Writing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    /// Has the counts of the API's answers written, too.
    pub fn count(&self, requests: Arc<Requests>) {
        let _ = self.0.requests.set(requests);
    }

    /// Writes everything once per second, in a thread of its own.
    pub fn start(&self) -> io::Result<Writing> {
        let stop = Arc::new(AtomicBool::new(false));
        let (kept, ends) = (self.clone(), stop.clone());
        let thread = std::thread::Builder::new().name("checkpoint".into()).spawn(move || {
            while !ends.load(Relaxed) {
                kept.keep_all();
                std::thread::park_timeout(EVERY);
            }
            kept.keep_all();
        })?;
        Ok(Writing { stop, thread: Some(thread) })
    }

    /// Writes what an answer to this request tells.
    pub fn before_answer(&self, action: &Action<'_>) {
        match action {
            Action::SgRuleStats(_) => self.keep_rules(),
            Action::EventList(_) => self.keep_events(),
            // Any question may tell counters. A note of a hundred vnics takes 0.3 ms.
            _ if !action.changes() => self.keep_counts(),
            _ => {}
        }
    }

    /// Writes everything.
    pub fn keep_all(&self) {
        self.keep_counts();
        self.keep_rules();
        self.keep_events();
        let mut sheet = self.sheet(Sheet::Stations);
        let noted = self.0.switch.note_stations(sheet.room());
        self.write(&mut sheet, &noted.text, noted.left_out);
    }

    /// The newest texts, in the order of their sheets.
    pub fn texts(&self) -> Vec<Vec<u8>> {
        let newest = |sheet: &Mutex<TwoHalves>| {
            let sheet = sheet.lock().unwrap_or_else(PoisonError::into_inner);
            sheet.newest().map(|newest| newest.text).unwrap_or_default()
        };
        self.0.sheets.iter().map(newest).collect()
    }

    /// Writes counters. All that was read before is in the sheet then.
    pub fn keep_counts(&self) {
        // Held while the numbers are read, too: the sheet never gets older ones than it had.
        let mut sheet = self.sheet(Sheet::Counters);
        let noted = self.0.switch.note_counters(sheet.room());
        self.write(&mut sheet, &noted.text, noted.left_out);
        drop(sheet);
        let mut sheet = self.sheet(Sheet::Life);
        let text = self.0.life.note(self.0.requests.get().map(|requests| &**requests));
        self.write(&mut sheet, &text, 0);
    }

    fn keep_rules(&self) {
        let mut sheet = self.sheet(Sheet::Rules);
        let noted = self.0.switch.note_rules(sheet.room());
        self.write(&mut sheet, &noted.text, noted.left_out);
    }

    fn keep_events(&self) {
        let mut written = self.0.record.lock().unwrap_or_else(PoisonError::into_inner);
        if *written == Some(self.0.events.version()) {
            return;
        }
        let mut sheet = self.sheet(Sheet::Events);
        let (text, version) = self.0.events.note_record(sheet.room());
        self.write(&mut sheet, &text, 0);
        *written = Some(version);
    }

    fn sheet(&self, sheet: Sheet) -> MutexGuard<'_, TwoHalves> {
        self.0.sheets[sheet as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, sheet: &mut TwoHalves, text: &[u8], left_out: usize) {
        if left_out > 0 && !self.0.left_out.swap(true, Relaxed) {
            warn!("the checkpoint has no room for {left_out} entries: a crash loses them");
        }
        if let Err(why) = sheet.write(text)
            && !self.0.failed.swap(true, Relaxed)
        {
            warn!("the checkpoint cannot be written, so a crash loses what was counted: {why}");
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;

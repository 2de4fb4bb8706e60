//! The passage: a process becomes another program, and back if that one fails.
//!
//! The words of the command line stay, and one more tells what happened. Standard input, a
//! descriptor that needs no number, is the program that was before; on the way back, the reason.

use super::program::Program;
use butterfly_layout::rehearsal;
use rustix::{
    fs::{FileType, MemfdFlags, Mode, OFlags, fstat, memfd_create, open},
    stdio::dup2_stdin,
    time::{ClockId, clock_gettime},
};
use std::{
    any::Any,
    ffi::OsString,
    fs::File,
    io::{self, Read, Seek, Write},
    mem::ManuallyDrop,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

/// Beginning of the word for the new program: since when nothing was forwarded, in nanoseconds of
/// CLOCK_MONOTONIC, and the version before.
const UPGRADED: &str = "--upgraded=";
/// Word for the old program if the new one failed. Standard input says why: everybody can read the
/// command line.
const FELL_BACK: &str = "--fell-back=";
/// Most bytes of a reason.
const REASON: usize = 4096;
/// Time in which the new program is ready.
const READY: Duration = Duration::from_secs(10);

/// Way in which this process came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// As any process does.
    New,
    /// By an upgrade.
    Upgraded {
        /// Since when nothing is forwarded, in nanoseconds of CLOCK_MONOTONIC.
        since: u64,
        /// Version before.
        version: String,
    },
    /// After an upgrade that failed.
    FellBack {
        /// Why it failed.
        why: String,
    },
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn is_ours(word: &OsString) -> bool {
    let bytes = word.as_bytes();
    bytes.starts_with(UPGRADED.as_bytes()) || bytes.starts_with(FELL_BACK.as_bytes())
}

/// Words of the command line as an operator gave them, without the name of the program.
pub fn words() -> Vec<OsString> {
    std::env::args_os().skip(1).filter(|word| !is_ours(word)).collect()
}

/// Returns how this process came to be.
pub fn came() -> Came {
    let Some(word) = std::env::args_os().skip(1).find(is_ours) else { return Came::New };
    let word = word.to_string_lossy();
    if word.starts_with(FELL_BACK) {
        return Came::FellBack { why: take_reason() };
    }
    let told = word.strip_prefix(UPGRADED).unwrap_or_default();
    let (since, version) = told.split_once(',').unwrap_or((told, ""));
    Came::Upgraded { since: since.parse().unwrap_or_else(|_| now()), version: version.to_owned() }
}

/// Reads the reason in standard input, and closes it.
fn take_reason() -> String {
    let mut why = Vec::new();
    // Never a terminal, which would be waited for.
    let is_file = fstat(io::stdin()).is_ok_and(|it| FileType::from_raw_mode(it.st_mode).is_file());
    if is_file {
        let _ = io::stdin().lock().take(REASON as u64).read_to_end(&mut why);
    }
    close_stdin();
    match why.is_empty() {
        true => "it did not say why".to_owned(),
        false => String::from_utf8_lossy(&why).into_owned(),
    }
}

fn close_stdin() {
    if let Ok(nothing) = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        let _ = dup2_stdin(nothing);
    }
}

/// A file with a reason, to be read from the beginning.
fn reason(why: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("butterfly-reason", MemfdFlags::CLOEXEC)?);
    let end = (0..=why.len().min(REASON)).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
    file.write_all(why.get(..end).unwrap_or_default().as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Becomes `program`. Returns only if that cannot be executed.
pub fn become_program(program: &Program, since: u64) -> io::Error {
    let own = match Program::own() {
        Ok(own) => own,
        Err(why) => return why,
    };
    Command::new(program.path())
        .arg0("butterflyd")
        .args(words())
        .arg(format!("{UPGRADED}{since},{}", butterfly_version::VERSION))
        .stdin(Stdio::from(own.into_file()))
        .exec()
}

/// Becomes the program that was before, which tells why. Returns only if that cannot be executed.
pub fn fall_back(why: &str) -> io::Error {
    // Standard input has the reason from then on.
    match Program::before() {
        Ok(program) => become_former(&program.path(), why),
        Err(failed) => failed,
    }
}

/// Begins this program anew, as it could not become another one. Returns only if that fails, too.
pub fn begin_again(why: &str) -> io::Error {
    become_former(Path::new("/proc/self/exe"), why)
}

fn become_former(path: &Path, why: &str) -> io::Error {
    let why = reason(why).map_or_else(|_| Stdio::null(), Stdio::from);
    Command::new(path).arg0("butterflyd").args(words()).arg(FELL_BACK).stdin(why).exec()
}

/// Fails as this program's words for a rehearsal say, if it came by an upgrade.
pub fn rehearse(came: &Came, place: &str) -> Result<(), String> {
    match came {
        Came::Upgraded { .. } => rehearsal::fail(place),
        _ => Ok(()),
    }
}

/// Something that goes only when a program has begun.
type Kept = ManuallyDrop<Box<dyn Any + Send>>;

/// Guard of a program that came by an upgrade: if it is not ready in time, the process becomes the
/// one before.
#[derive(Clone, Default)]
pub struct Guard {
    /// True while there is something to go back to.
    open: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<Kept>>>,
}

impl Guard {
    /// A guard with nothing to go back to.
    pub fn none() -> Guard {
        Guard::default()
    }

    /// Begins to watch. Without a thread the watch has no end.
    pub fn start() -> Guard {
        let guard = Guard::default();
        guard.open.store(true, SeqCst);
        let open = guard.open.clone();
        let watch = move || {
            thread::sleep(READY);
            if open.swap(false, SeqCst) {
                let why = format!("it was not ready after {} s", READY.as_secs());
                tracing::error!("the upgrade failed: {}", fall_back(&why));
                // The service manager starts another one.
                std::process::exit(1);
            }
        };
        let _ = thread::Builder::new().name("passage".into()).spawn(watch);
        guard
    }

    /// Keeps something until the program has [begun](Self::begun). If that never comes, it is not
    /// taken down: the program before, or the next process, goes on with it.
    pub fn keep(&self, it: impl Any + Send) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(ManuallyDrop::new(Box::new(it)));
    }

    /// Says that the program serves from now on: whatever ends it takes down what it has to.
    pub fn begun(&self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.drain(..).for_each(|it| drop(ManuallyDrop::into_inner(it)));
    }

    /// Says that the program is ready. There is nothing to go back to from now on.
    pub fn ready(&self) {
        if !self.open.swap(false, SeqCst) {
            return;
        }
        close_stdin();
    }

    /// True if the process may become the program before.
    pub fn may_go_back(&self) -> bool {
        self.open.load(SeqCst)
    }
}

/// Gives the process the name by which operators look for it: one that was executed by a
/// descriptor has its number.
pub fn take_name() {
    let _ = rustix::thread::set_name(c"butterflyd");
}

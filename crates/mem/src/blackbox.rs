//! Black box: what a process was about when it ended, in a memory file that outlives it.
//!
//! Each worker has a line of its own. It says whose ring the worker serves and whose ring it writes
//! into, in plain stores. A thread that ends the process by itself adds a cause: see [`signals`].
//! The file has a second part, with the name behind each number, which the rest of the process
//! writes before a worker can use that number.
//!
//! A successor does not map the file. It copies what it wants and checks that copy ([`read()`]), as
//! the file may hold anything by then.

mod read;
pub mod signals;
#[cfg(test)]
mod tests;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release},
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap},
};

pub use read::{Blamed, Notes, Side, read};

use crate::cpu::since_boot;

/// Begins every box; the last byte counts layouts.
const MAGIC: u64 = u64::from_be_bytes(*b"BFBLACK\x01");
/// Most workers that have a line.
const WORKERS: usize = 63;
/// Bytes of the part with names, per number: checksum, length, name.
const RECORD: usize = 256;
/// Longest name.
const NAME: usize = RECORD - 12;
/// Bytes of the page before the names.
const PAGE: usize = 4096;
/// Most numbers that have a name.
const NUMBERS: u32 = 1 << 20;
/// Size of the file. It takes memory only where something was written.
const SIZE: u64 = PAGE as u64 + NUMBERS as u64 * RECORD as u64;

/// Port of a line: none.
const NOBODY: u32 = 0;
/// The uplink.
const UPLINK: u32 = u32::MAX;
/// The switch, which sends frames of its own.
const SWITCH: u32 = u32::MAX - 1;

/// Reason for which a process ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A panic.
    Panic,
    /// A worker took no turn any more, so the process ended itself.
    Stuck,
    /// A signal that the process raised itself, as by a wrong access.
    Signal(u8),
    /// It was asked to end, or gave up in good order.
    Stopped,
}

impl Cause {
    const fn code(self) -> u32 {
        match self {
            Cause::Panic => 1,
            Cause::Stuck => 2,
            Cause::Stopped => 3,
            Cause::Signal(number) => 0x100 + number as u32,
        }
    }

    fn of(code: u32) -> Option<Cause> {
        match code {
            1 => Some(Cause::Panic),
            2 => Some(Cause::Stuck),
            3 => Some(Cause::Stopped),
            0x101..=0x140 => u8::try_from(code - 0x100).ok().map(Cause::Signal),
            _ => None,
        }
    }
}

/// A worker's line. Only that worker writes it, but for the cause.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line {
    served: AtomicU32,
    written: AtomicU32,
    cause: AtomicU32,
}

impl Line {
    const fn new() -> Line {
        Line { served: AtomicU32::new(0), written: AtomicU32::new(0), cause: AtomicU32::new(0) }
    }

    /// Notes that the ring of this port is served from now on.
    #[inline(always)]
    pub fn serve(&self, port: u32) {
        self.served.store(port.wrapping_add(1), Relaxed);
        self.written.store(NOBODY, Relaxed);
    }

    /// Notes that the uplink is served.
    #[inline(always)]
    pub fn serve_uplink(&self) {
        self.served.store(UPLINK, Relaxed);
        self.written.store(NOBODY, Relaxed);
    }

    /// Notes that frames of the switch itself are sent.
    #[inline(always)]
    pub fn serve_own(&self) {
        self.served.store(SWITCH, Relaxed);
        self.written.store(NOBODY, Relaxed);
    }

    /// Notes that the receive ring of this port is touched.
    #[inline(always)]
    pub fn write(&self, port: u32) {
        self.written.store(port.wrapping_add(1), Relaxed);
    }

    /// Notes that no receive ring is touched any more.
    #[inline(always)]
    pub fn written(&self) {
        self.written.store(NOBODY, Relaxed);
    }

    /// Notes the end of a round of turns.
    #[inline(always)]
    pub fn rest(&self) {
        self.served.store(NOBODY, Relaxed);
    }

    /// Returns whether a turn is under way.
    pub fn is_serving(&self) -> bool {
        self.served.load(Relaxed) != NOBODY
    }

    /// Notes why this worker ends the process. The first cause stays.
    pub fn ended(&self, cause: Cause) {
        let _ = self.cause.compare_exchange(0, cause.code(), Release, Relaxed);
    }
}

/// First page of the file.
#[repr(C, align(64))]
struct Page {
    magic: AtomicU64,
    /// Number of the process among those of its service.
    term: AtomicU64,
    /// Milliseconds since the host started: when it was ready (0: not yet), and when it was last
    /// seen alive.
    ready: AtomicU64,
    alive: AtomicU64,
    /// 1: it starts with less than usual.
    degraded: AtomicU64,
    cause: AtomicU64,
    lines: [Line; WORKERS],
}

const _: () = assert!(size_of::<Page>() == PAGE);

impl Page {
    const fn new() -> Page {
        Page {
            magic: AtomicU64::new(MAGIC),
            term: AtomicU64::new(0),
            ready: AtomicU64::new(0),
            alive: AtomicU64::new(0),
            degraded: AtomicU64::new(0),
            cause: AtomicU64::new(0),
            lines: [const { Line::new() }; WORKERS],
        }
    }
}

/// A page that no successor reads.
static NOWHERE: Page = Page::new();

/// The box of this process.
#[derive(Debug)]
pub struct BlackBox {
    /// Mapped as long as the process lives, as signal handlers write it.
    page: &'static Page,
    /// None: nothing outlasts this process.
    file: Option<OwnedFd>,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page").field("term", &self.term).finish_non_exhaustive()
    }
}

impl BlackBox {
    /// Makes a box for the process with this number. Its memory stays for the life of the process.
    pub fn create(term: u64) -> io::Result<BlackBox> {
        let file =
            memfd_create("butterfly-black-box", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, SIZE)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping of PAGE bytes, which is never unmapped. The file can not shrink.
        // Zeros are a Page, whose fields are atomics that any process may change.
        let page = unsafe {
            let at = mmap(
                std::ptr::null_mut(),
                PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?;
            &*at.cast::<Page>()
        };
        page.term.store(term, Relaxed);
        page.magic.store(MAGIC, Release);
        let made = BlackBox { page, file: Some(file) };
        made.is_alive();
        Ok(made)
    }

    /// Returns a box that nobody reads.
    pub fn nowhere() -> BlackBox {
        BlackBox { page: &NOWHERE, file: None }
    }

    /// Returns the file, if a successor is to read it.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Returns a worker's line. Workers beyond the last line share that of nobody.
    pub fn line(&self, worker: usize) -> &'static Line {
        self.page.lines.get(worker).unwrap_or(&NOWHERE.lines[0])
    }

    /// Notes the name behind the number of a port, before a worker uses it.
    pub fn name(&self, port: u32, name: &str) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| port < NUMBERS) else { return Ok(()) };
        let record = read::record(name);
        let at = PAGE as u64 + u64::from(port) * RECORD as u64;
        match rustix::io::pwrite(file, &record, at)? {
            RECORD => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Notes that the process is ready, `degraded` or as usual.
    pub fn is_ready(&self, degraded: bool) {
        self.page.degraded.store(u64::from(degraded), Relaxed);
        let now = millis(since_boot());
        self.page.alive.store(now, Release);
        self.page.ready.store(now, Release);
    }

    /// Notes that the process lives.
    pub fn is_alive(&self) {
        self.page.alive.store(millis(since_boot()), Relaxed);
    }

    /// Notes why the process ends. The first cause stays.
    pub fn ended(&self, cause: Cause) {
        note(self.page, cause);
    }

    /// Has fatal signals of this process noted here.
    pub fn take_signals(&self) -> io::Result<()> {
        signals::note_in(self.page)
    }
}

fn note(page: &Page, cause: Cause) {
    let _ = page.cause.compare_exchange(0, cause.code().into(), Release, Relaxed);
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

//! Fatal signals, noted in the box before the process ends by them.
//!
//! A worker is to blame for a signal that its own thread raised: a wrong access, or `abort`. One
//! that another process sent is not noted. After the note, everything is as without this module:
//! the handler before it runs, or the process ends.

use std::{
    cell::Cell,
    io, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

use super::{Cause, Line, Page, note};

/// Signals that a thread raises by a mistake. SIGBUS is noted by the handler for guest memory,
/// which knows those that are none: [`bus_error`].
const FATAL: [libc::c_int; 4] = [libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static BEFORE: [OnceLock<libc::sigaction>; FATAL.len()] = [const { OnceLock::new() }; FATAL.len()];

thread_local! {
    /// The line of the worker that this thread is.
    static LINE: Cell<Option<&'static Line>> = const { Cell::new(None) };
}

/// Says that this thread is the worker with this line.
pub fn this_thread_is(line: &'static Line) {
    LINE.set(Some(line));
}

/// Has fatal signals noted in a page.
pub(super) fn note_in(page: &'static Page) -> io::Result<()> {
    PAGE.store(ptr::from_ref(page).cast_mut(), Ordering::Release);
    for (signal, before) in FATAL.into_iter().zip(&BEFORE) {
        if before.get().is_some() {
            continue;
        }
        // SAFETY: zeros are a valid sigaction. The handler is async-signal-safe: loads, stores,
        // sigaction, raise.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, ptr::null(), &raw mut action) != 0 {
                return Err(io::Error::last_os_error());
            }
            let _ = before.set(action);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&raw mut action.sa_mask);
            if libc::sigaction(signal, &raw const action, ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

extern "C" fn handler(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler; si_pid is there for
    // signals that a process sent.
    let (code, own) = unsafe {
        let code = (*info).si_code;
        (code, code > 0 || (code == libc::SI_TKILL && (*info).si_pid() == libc::getpid()))
    };
    if own {
        fatal(signal);
    }
    let before = FATAL.iter().position(|other| *other == signal).and_then(|at| BEFORE[at].get());
    // SAFETY: sigaction with the default action, or one that was in force before; raise is
    // async-signal-safe, and the signal comes when this handler returns.
    unsafe {
        if code > 0 {
            // The faulting instruction is repeated, and ends the process the usual way.
            if let Some(before) = before {
                libc::sigaction(signal, before, ptr::null_mut());
            }
        } else {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const default, ptr::null_mut());
            libc::raise(signal);
        }
    }
}

/// Notes a panic of this thread. Returns whether it is a worker.
pub fn panicked() -> bool {
    let line = LINE.try_with(Cell::get).ok().flatten();
    line.inspect(|line| line.ended(Cause::Panic)).is_some()
}

/// Notes a bus error that ends the process, which this thread raised itself. Async-signal-safe.
pub fn bus_error() {
    fatal(libc::SIGBUS);
}

fn fatal(signal: libc::c_int) {
    let cause = Cause::Signal(u8::try_from(signal).unwrap_or_default());
    if let Some(line) = LINE.try_with(Cell::get).ok().flatten() {
        line.ended(cause);
    }
    // SAFETY: null, or a page that is never unmapped.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        note(page, cause);
    }
}

/// Makes a wrong access, for tests of what follows.
#[cfg(debug_assertions)]
pub fn fault() -> ! {
    // SAFETY: it is not: nothing is mapped there. The process ends.
    unsafe { std::arch::asm!("mov qword ptr [{}], 0", "ud2", in(reg) 8u64, options(noreturn)) }
}

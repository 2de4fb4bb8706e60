//! SIGBUS inside a guest mapping: a guest truncated the file behind its memory.
//!
//! The handler maps zero pages over the complete mapping and marks it poisoned; the access is
//! repeated and reads zeroes. The port is detached at the end of the batch. A SIGBUS anywhere else
//! is fatal, as without the handler. The same happens when the file's memory cannot be provided (no
//! huge page left, a full tmpfs, a broken memory cell): the guest's data is lost either way.

use std::{
    ptr,
    sync::{
        Mutex, Once,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    },
};

use butterfly_mem::blackbox::signals;

/// Slots are allocated once and never freed, so that the handler can walk the list at any moment.
struct Slot {
    start: AtomicUsize,
    /// 0: the slot is free.
    end: AtomicUsize,
    /// Page size of the mapping.
    page: AtomicUsize,
    poisoned: AtomicBool,
    next: AtomicPtr<Slot>,
}

static HEAD: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());
static INSTALL: Once = Once::new();
/// Number of guards that are poisoned now.
static POISONED: AtomicUsize = AtomicUsize::new(0);

/// True if any mapping at all is poisoned. Usually none is, and callers need not look at each.
#[inline]
pub(crate) fn any_poisoned() -> bool {
    POISONED.load(Ordering::Relaxed) != 0
}

/// A range watched by the handler.
pub(crate) struct Guard {
    slot: &'static Slot,
    released: AtomicBool,
}

impl Guard {
    /// Watches a mapping of this process, made of pages of `page` bytes. Installs the handler the
    /// first time.
    pub fn new(start: usize, len: usize, page: usize) -> Guard {
        INSTALL.call_once(install);
        let mut free = FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let slot = free.pop().unwrap_or_else(|| {
            let slot: &'static Slot = Box::leak(Box::new(Slot {
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                page: AtomicUsize::new(page),
                poisoned: AtomicBool::new(false),
                next: AtomicPtr::new(HEAD.load(Ordering::Acquire)),
            }));
            // Only this function pushes, under the lock of FREE.
            HEAD.store(ptr::from_ref(slot).cast_mut(), Ordering::Release);
            slot
        });
        slot.page.store(page, Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        slot.end.store(start + len, Ordering::Release);
        Guard { slot, released: AtomicBool::new(false) }
    }

    /// True if the mapping was replaced by zero pages.
    #[inline]
    pub fn poisoned(&self) -> bool {
        self.slot.poisoned.load(Ordering::Relaxed)
    }

    /// Stops watching; call before unmapping.
    pub fn release(&self) {
        if !self.released.swap(true, Ordering::Relaxed) {
            self.slot.end.store(0, Ordering::Release);
            // Nothing accesses the mapping any more, so no handler can poison it after this.
            if self.slot.poisoned.swap(false, Ordering::Relaxed) {
                POISONED.fetch_sub(1, Ordering::Relaxed);
            }
            FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(self.slot);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.release();
    }
}

fn install() {
    // SAFETY: an all-zero sigaction is valid; the handler is async-signal-safe (atomics, mmap,
    // sigaction, and a return).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) != 0 {
            // Without the handler a SIGBUS ends the process, as it would without this module.
            tracing::error!(
                "cannot catch SIGBUS: a guest that truncates its memory will end the daemon"
            );
        }
    }
}

extern "C" fn handler(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let code = unsafe { (*info).si_code };
    if code > 0 {
        // SAFETY: the kernel raised this SIGBUS (code > 0), so there is an address.
        let address = unsafe { (*info).si_addr() } as usize;
        if repair(address) {
            return;
        }
    }
    if code > 0 {
        signals::bus_error();
    }
    // Not ours. Put the default action back and return: a faulting access faults again and ends the
    // process with a core. SAFETY: sigaction with SIG_DFL is always valid; raise is
    // async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
        if code <= 0 {
            // Sent by kill(2): nothing will fault again, and going on without a handler would be
            // worse than ending.
            libc::raise(libc::SIGBUS);
        }
    }
}

/// Maps zero pages over the guarded mapping that holds `address`. Async-signal-safe.
fn repair(address: usize) -> bool {
    let mut at = HEAD.load(Ordering::Acquire);
    // SAFETY: the list holds leaked slots only.
    while let Some(slot) = unsafe { at.as_ref() } {
        let end = slot.end.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Acquire);
        let page = slot.page.load(Ordering::Acquire);
        // Another thread may be reusing a slot that is not ours: both ends must belong together.
        // The slot of the mapping that this thread was accessing does not change meanwhile.
        let same =
            slot.end.load(Ordering::Acquire) == end && slot.start.load(Ordering::Relaxed) == start;
        if same && end != 0 && (start..end).contains(&address) {
            // All of it, so that the guest's memory is gone as a whole. Where the kernel accounts
            // strictly for memory (vm.overcommit_memory=2) it may refuse so much: then
            // the page that is missing.
            let page_start = address - (address - start) % page.max(1);
            if zero(start, end - start) || zero(page_start, page.min(end - page_start)) {
                if !slot.poisoned.swap(true, Ordering::Relaxed) {
                    POISONED.fetch_add(1, Ordering::Relaxed);
                }
                return true;
            }
        }
        at = slot.next.load(Ordering::Acquire);
    }
    false
}

/// Replaces pages of a guarded mapping.
fn zero(start: usize, len: usize) -> bool {
    // SAFETY: the range is part of a mapping that a Guard's owner made and has not unmapped (it
    // releases first), in whole pages of that mapping. mmap is a plain system call and
    // async-signal-safe.
    let mapped = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    #[test]
    fn a_truncated_file_reads_as_zeroes_and_poisons() {
        let file = memfd_create("sigbus", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        // SAFETY: a new mapping, unmapped below.
        let base = unsafe {
            mmap(
                ptr::null_mut(),
                8192,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .unwrap();
        let guard = Guard::new(base as usize, 8192, 4096);
        // SAFETY: inside the mapping.
        unsafe { base.cast::<u8>().add(5000).write_volatile(7) };
        assert!(!guard.poisoned());
        ftruncate(&file, 0).unwrap();
        // SAFETY: inside the mapping; the handler supplies zero pages.
        assert_eq!(unsafe { base.cast::<u8>().add(5000).read_volatile() }, 0);
        assert!(guard.poisoned());
        assert!(any_poisoned());
        guard.release();
        // SAFETY: mapped above.
        unsafe { munmap(base, 8192) }.unwrap();
    }

    /// Runs `body` in a child process and returns how that ended. The child does nothing but system
    /// calls and what `body` does.
    fn in_child(body: fn()) -> libc::c_int {
        // SAFETY: the child calls only `body` and _exit. Both bodies below are async-signal-safe
        // once the handler is installed.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: no core file is to be left behind.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
            body();
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        status
    }

    #[test]
    fn any_other_bus_error_is_fatal() {
        INSTALL.call_once(install);
        let sent = in_child(|| {
            // SAFETY: sends a signal to the calling process.
            unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
        });
        assert!(libc::WIFSIGNALED(sent) && libc::WTERMSIG(sent) == libc::SIGBUS, "{sent:#x}");
        let faulted = in_child(|| {
            // A mapping behind the end of its file, without a guard.
            let file = memfd_create("sigbus", MemfdFlags::CLOEXEC).unwrap();
            // SAFETY: a new mapping; the access raises SIGBUS.
            unsafe {
                let base = mmap(ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, &file, 0)
                    .unwrap();
                base.cast::<u8>().read_volatile();
            }
        });
        assert!(
            libc::WIFSIGNALED(faulted) && libc::WTERMSIG(faulted) == libc::SIGBUS,
            "{faulted:#x}"
        );
    }
}

//! SIGBUS inside a guest mapping: a guest truncated the file behind its memory.
//!
//! The handler maps zero pages over the whole mapping and marks it poisoned; the access is repeated and reads zeroes. The port is
//! detached at the end of the batch. A SIGBUS anywhere else is fatal, as without us.

use std::{
    ptr,
    sync::{
        Mutex, Once,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    },
};

/// Slots are allocated once and never freed, so that the handler can walk the list at any moment.
struct Slot {
    start: AtomicUsize,
    /// 0: the slot is free.
    end: AtomicUsize,
    poisoned: AtomicBool,
    next: AtomicPtr<Slot>,
}

static HEAD: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());
static INSTALL: Once = Once::new();

/// A range watched by the handler.
pub(crate) struct Guard {
    slot: &'static Slot,
    released: AtomicBool,
}

impl Guard {
    /// Watches a mapping of this process. Installs the handler the first time.
    pub fn new(start: usize, len: usize) -> Guard {
        INSTALL.call_once(install);
        let mut free = FREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let slot = free.pop().unwrap_or_else(|| {
            let slot: &'static Slot = Box::leak(Box::new(Slot {
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                poisoned: AtomicBool::new(false),
                next: AtomicPtr::new(HEAD.load(Ordering::Acquire)),
            }));
            // Only this function pushes, under the lock of FREE.
            HEAD.store(ptr::from_ref(slot).cast_mut(), Ordering::Release);
            slot
        });
        slot.poisoned.store(false, Ordering::Relaxed);
        slot.start.store(start, Ordering::Relaxed);
        slot.end.store(start + len, Ordering::Release);
        Guard { slot, released: AtomicBool::new(false) }
    }

    /// Whether the mapping was replaced by zero pages.
    #[inline]
    pub fn poisoned(&self) -> bool {
        self.slot.poisoned.load(Ordering::Relaxed)
    }

    /// Stops watching; call before unmapping.
    pub fn release(&self) {
        if !self.released.swap(true, Ordering::Relaxed) {
            self.slot.end.store(0, Ordering::Release);
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
    // SAFETY: an all-zero sigaction is valid; the handler is async-signal-safe (atomics, mmap, sigaction, and a return).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        if libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) != 0 {
            // Without the handler a SIGBUS ends the process, as it would without this module.
            tracing::error!("cannot catch SIGBUS: a guest that truncates its memory will end the daemon");
        }
    }
}

extern "C" fn handler(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler of SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    let mut at = HEAD.load(Ordering::Acquire);
    // SAFETY: the list holds leaked slots only.
    while let Some(slot) = unsafe { at.as_ref() } {
        let end = slot.end.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Acquire);
        // Another thread may be reusing a slot that is not ours: both ends must belong together. The slot of the mapping
        // that this thread was accessing does not change meanwhile.
        let same = slot.end.load(Ordering::Acquire) == end && slot.start.load(Ordering::Relaxed) == start;
        if same && end != 0 && (start..end).contains(&address) {
            // SAFETY: start..end is a mapping that Guard's owner made and has not yet unmapped (it releases first); we replace
            // all of it, so that huge pages are whole. mmap is a plain system call and async-signal-safe.
            let mapped = unsafe {
                libc::mmap(
                    start as *mut libc::c_void,
                    end - start,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            if mapped != libc::MAP_FAILED {
                slot.poisoned.store(true, Ordering::Relaxed);
                return;
            }
        }
        at = slot.next.load(Ordering::Acquire);
    }
    // Not ours: put the default action back and return, so that the access faults again and ends the process with a core.
    // SAFETY: sigaction with SIG_DFL is always valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
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
        let base = unsafe { mmap(ptr::null_mut(), 8192, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0) }.unwrap();
        let guard = Guard::new(base as usize, 8192);
        // SAFETY: inside the mapping.
        unsafe { base.cast::<u8>().add(5000).write_volatile(7) };
        assert!(!guard.poisoned());
        ftruncate(&file, 0).unwrap();
        // SAFETY: inside the mapping; the handler supplies zero pages.
        assert_eq!(unsafe { base.cast::<u8>().add(5000).read_volatile() }, 0);
        assert!(guard.poisoned());
        guard.release();
        // SAFETY: mapped above.
        unsafe { munmap(base, 8192) }.unwrap();
    }
}

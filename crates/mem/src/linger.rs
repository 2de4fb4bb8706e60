//! Memory that stays for a moment when the process becomes another program.
//!
//! execve() unmaps all memory of a process before the first instruction of the new program. That
//! takes milliseconds for each GiB of 4 KiB pages that were touched, and a grace period of the
//! kernel's RCU, some 30 ms, where asynchronous I/O was set up (`exit_aio`). If another process has
//! the same memory, execve() only lets go of it, and that other process has the work, later.

use std::{io, ptr, time::Duration};

/// Bytes of a stack for what runs on it: two system calls and no more than their wrappers.
const STACK: usize = 16 << 10;

/// Order for the two processes. It is never freed, as one of them may outlive the program.
struct Order {
    stay: libc::timespec,
    /// Upper end of the second process's stack.
    stack: *mut libc::c_void,
}

/// Has another process, without any open file, keep the memory of this one for so long. It lowers
/// its priority, sleeps and ends; nobody has to wait for it.
///
/// Costs the memory of two small stacks for the rest of this program: for one that is about to
/// become another, soon enough before that nothing waits for it. What a mapping pins stays pinned:
/// an open file description, with its locks, and a socket whose rings are mapped.
pub fn keep_memory(stay: Duration) -> io::Result<()> {
    let order = Box::leak(Box::new(Order {
        stay: libc::timespec {
            tv_sec: libc::time_t::try_from(stay.as_secs()).unwrap_or(1),
            tv_nsec: libc::c_long::from(stay.subsec_nanos()),
        },
        stack: new_stack(),
    }));
    let stack = new_stack();
    // The first process ends at once, so that the second one is no child of this process, which
    // would have to wait for its end. This thread goes on when the first has ended.
    // SAFETY: `go_between` runs on a stack of its own that is never freed, with an order that is
    // never freed. It shares this process's memory and the thread pointer of this thread, which
    // stands still meanwhile (CLONE_VFORK). It has its own table of files (no CLONE_FILES).
    let first = unsafe {
        libc::clone(
            go_between,
            stack,
            libc::CLONE_VM | libc::CLONE_VFORK,
            ptr::from_mut(order).cast(),
        )
    };
    if first < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut status = 0;
    // SAFETY: it writes a status to a variable of ours.
    while unsafe { libc::waitpid(first, &raw mut status, libc::__WALL) } < 0 {
        let why = io::Error::last_os_error();
        if why.kind() != io::ErrorKind::Interrupted {
            return Err(why);
        }
    }
    match libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        true => Ok(()),
        false => Err(io::Error::other("the process that is to keep it cannot be made")),
    }
}

/// Returns the upper end of a new stack.
fn new_stack() -> *mut libc::c_void {
    let stack = Box::leak(vec![0u128; STACK / size_of::<u128>()].into_boxed_slice());
    stack.as_mut_ptr_range().end.cast()
}

/// The first process: closes all files, so that nobody takes them for open, and makes the second.
extern "C" fn go_between(order: *mut libc::c_void) -> libc::c_int {
    let order: *mut Order = order.cast();
    // SAFETY: the order is valid for ever, and nobody writes to it. No call here allocates, or
    // reads or writes anything of a thread but `errno`, which is set where a call fails: the thread
    // whose `errno` that is stands still. The second process gets a stack that is never freed. It
    // calls nothing that fails, but for a sleep that a signal ends.
    unsafe {
        // Where the kernel has no such call (before Linux 5.9) the files stay open for a moment.
        libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, 0u32);
        let second = libc::clone(linger, (*order).stack, libc::CLONE_VM, order.cast());
        libc::c_int::from(second < 0)
    }
}

/// The second process.
extern "C" fn linger(order: *mut libc::c_void) -> libc::c_int {
    let order: *mut Order = order.cast();
    // SAFETY: as above. By the time that the sleep ends the program is usually gone, whose thread
    // had this thread pointer.
    unsafe {
        libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, 19);
        libc::nanosleep(&raw const (*order).stay, ptr::null_mut());
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        io::Read,
        os::unix::net::UnixStream,
        time::{Duration, Instant},
    };

    /// Other processes of this program.
    fn others() -> Vec<u32> {
        let own = fs::read_link("/proc/self/exe").unwrap();
        let alike = |pid: &u32| {
            let program = fs::read_link(format!("/proc/{pid}/exe"));
            *pid != std::process::id() && program.is_ok_and(|program| program == own)
        };
        let all = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.filter(alike).collect()
    }

    #[test]
    fn memory_is_kept_by_a_process_that_has_no_files_and_ends() {
        let (mut here, there) = UnixStream::pair().unwrap();
        keep_memory(Duration::from_millis(400)).unwrap();
        // Nobody else has the other end.
        let begun = Instant::now();
        drop(there);
        assert_eq!(here.read(&mut [0]).unwrap(), 0);
        assert!(begun.elapsed() < Duration::from_millis(200));
        let kept = others();
        let files = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count);
        assert!(kept.iter().any(|pid| matches!(files(pid), Ok(0))), "{kept:?}");
        let end = Instant::now() + Duration::from_secs(10);
        while kept.iter().any(|pid| matches!(files(pid), Ok(0))) {
            assert!(Instant::now() < end, "it does not end: {kept:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

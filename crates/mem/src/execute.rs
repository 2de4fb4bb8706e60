//! A process that becomes another program, which goes on with its open descriptors.
//!
//! `std` offers neither half: its `exec()` lets all signals through again before the new program
//! can hear them, which costs a process its life that nobody starts again, and it takes no
//! descriptor by a number.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStringExt,
    },
    ptr,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Signals that ask a process to end or to look again. One that comes before the new program
/// listens would end it.
const HEARD: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

fn change_signals(how: libc::c_int) -> io::Result<()> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset() initialises the set; the other calls read it and write nothing of ours.
    let failed = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in HEARD {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut())
    };
    match failed {
        0 => Ok(()),
        failed => Err(io::Error::from_raw_os_error(failed)),
    }
}

/// Holds back SIGHUP, SIGINT and SIGTERM for the program that this process becomes. Signals from
/// before were heard by this one: look at them then.
pub fn hold_signals() -> io::Result<()> {
    change_signals(libc::SIG_BLOCK)
}

/// Lets SIGHUP, SIGINT and SIGTERM through, which wait since they were [held](hold_signals). For
/// the new program, when it can hear them, or the old one if it goes on.
pub fn hear_signals() -> io::Result<()> {
    change_signals(libc::SIG_UNBLOCK)
}

/// Becomes a program with these words, the first of which is its name. Nobody else may run in this
/// process. Returns only if that fails, and then nothing has changed.
///
/// The program gets all descriptors that do not close by themselves ([`leave_open`]).
pub fn become_program(program: BorrowedFd<'_>, words: &[CString]) -> io::Error {
    let of_environment = std::env::vars_os().filter_map(|(name, value)| {
        CString::new([name.into_vec(), value.into_vec()].join(&b'=')).ok()
    });
    let environment: Vec<CString> = of_environment.collect();
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (words, environment) = (pointers(words), pointers(&environment));
    // SAFETY: both lists end with a null pointer, and their texts live until the call returns.
    unsafe { libc::fexecve(program.as_raw_fd(), words.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Has a descriptor stay open in the program that this process becomes, and in its children. Or not
/// any more.
pub fn leave_open(file: impl AsFd, open: bool) -> io::Result<()> {
    let flags = fcntl_getfd(&file)?;
    fcntl_setfd(file, if open { flags - FdFlags::CLOEXEC } else { flags | FdFlags::CLOEXEC })?;
    Ok(())
}

/// Returns the descriptors that the program before left open, by their numbers, but for the
/// standard ones. Call it before anything else, and once: an error if it was called before.
pub fn inherited() -> io::Result<BTreeMap<RawFd, OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, SeqCst) {
        return Err(io::Error::other("they were taken before"));
    }
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    let mut inherited = BTreeMap::new();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // SAFETY: it asks for flags, and fails if nothing is open there, as the folder by now.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: it is open, and nobody in this process has it: whatever this program opens
            // closes by itself in a program that it becomes, and this one does not. It is taken
            // once, as `TAKEN` says.
            inherited.insert(number, unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
    Ok(inherited)
}

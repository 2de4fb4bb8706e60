//! Interrupting a guest, without ever waiting for it.
//!
//! A guest is interrupted by adding 1 to an eventfd it gave us. `write` on that eventfd is not safe to do: the guest shares the
//! open file, so it can clear `O_NONBLOCK` and fill the counter whenever it likes, also between any check of ours and the write,
//! which then sleeps for as long as the guest wants. `pwritev2` with `RWF_NOWAIT` does not exist for eventfds (EOPNOTSUPP).
//!
//! The kernel's own way to signal an eventfd never sleeps and saturates instead. A program reaches it through asynchronous I/O: an
//! operation that names an eventfd to signal on completion (`IOCB_FLAG_RESFD`). Ours writes no bytes to `/dev/null`, which
//! completes inside `io_submit`. The kernel refuses whatever is not an eventfd. The price is about 0.2 us more than a `write`.

use std::{
    cell::RefCell,
    fs::OpenOptions,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::io::Errno;

/// The eventfd by which the device interrupts a guest.
#[derive(Debug)]
pub struct CallFd(OwnedFd);

/// Why a descriptor cannot interrupt a guest.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum CallError {
    #[error("it is not an eventfd but {0}")]
    NotAnEventfd(String),
    #[error("cannot look at it in /proc/self/fd: {0}")]
    Unknown(Errno),
}

/// Whether a descriptor is an eventfd; else what it is instead.
///
/// The kernel chooses the text behind the link, and only files with a name have a `/` in front of theirs.
pub(crate) fn is_eventfd(fd: impl AsFd) -> Result<(), CallError> {
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let what = rustix::fs::readlink(link, Vec::new()).map_err(CallError::Unknown)?;
    if what.as_bytes() == b"anon_inode:[eventfd]" {
        return Ok(());
    }
    // A guest may have chosen it: no line feeds in messages, and not too much of it.
    Err(CallError::NotAnEventfd(what.to_string_lossy().escape_default().take(100).collect()))
}

impl CallFd {
    /// Takes a guest's descriptor. Anything but an eventfd is refused.
    pub fn new(fd: OwnedFd) -> Result<CallFd, CallError> {
        is_eventfd(&fd)?;
        Ok(CallFd(fd))
    }

    /// Interrupts the guest, from a worker. Never waits, whatever the guest does to the eventfd. A full counter means that the
    /// guest was interrupted already; errors are the guest's problem.
    pub fn signal(&self) {
        let sent = OWN.try_with(|own| match own.try_borrow_mut() {
            Ok(mut own) => own.get_or_insert_with(|| Signaller::new().ok()).as_mut().is_some_and(|s| s.signal(&self.0)),
            Err(_) => false,
        });
        if !sent.unwrap_or(false) {
            self.signal_shared();
        }
    }

    /// As [`Self::signal`], for threads that do it now and then: it does not give the thread resources of its own.
    pub(crate) fn signal_shared(&self) {
        if let Ok(shared) = shared() {
            shared.lock().unwrap_or_else(PoisonError::into_inner).signal(&self.0);
        }
    }

    /// The descriptor, to be handed to somebody else.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// Prepares the calling thread for [`CallFd::signal`], so that its first interrupt costs no set-up. For workers, before they start.
///
/// # Errors
/// The kernel has no room for another asynchronous I/O context: the sysctl `fs.aio-max-nr` limits them. Interrupts still work, through
/// a context that is shared.
pub fn prepare_thread() -> io::Result<()> {
    OWN.with(|own| {
        let signaller = Signaller::new()?;
        if let Ok(mut own) = own.try_borrow_mut() {
            *own = Some(Some(signaller));
        }
        Ok(())
    })
}

/// Makes sure that interrupts can be sent from any thread.
///
/// # Errors
/// The kernel refuses an asynchronous I/O context: `fs.aio-max-nr` is used up, or a sandbox forbids it.
pub(crate) fn ensure_signaller() -> io::Result<()> {
    shared().map(|_| ())
}

thread_local! {
    /// `Some(None)`: the kernel refused one for this thread.
    static OWN: RefCell<Option<Option<Signaller>>> = const { RefCell::new(None) };
}

fn shared() -> io::Result<&'static Mutex<Signaller>> {
    static SHARED: OnceLock<Mutex<Signaller>> = OnceLock::new();
    if let Some(shared) = SHARED.get() {
        return Ok(shared);
    }
    let new = Signaller::new()?;
    Ok(SHARED.get_or_init(|| Mutex::new(new)))
}

/// `struct iocb` of linux/aio_abi.h, little-endian.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64);

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent([u64; 4]);

/// The start of the completion ring, which the kernel maps at the context's address; what libaio and fio read too.
#[repr(C)]
struct RingHeader {
    id: u32,
    nr: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compat: u32,
    incompat: u32,
    header_len: u32,
}

const RING_MAGIC: u32 = 0xa10a_10a1;
const PWRITE: u16 = 1;
const RESFD: u32 = 1;

/// An asynchronous I/O context with `/dev/null` as its target. Used by one thread at a time.
struct Signaller {
    context: libc::c_ulong,
    null: OwnedFd,
}

impl Signaller {
    fn new() -> io::Result<Signaller> {
        let null = OpenOptions::new().write(true).open("/dev/null")?.into();
        let mut context: libc::c_ulong = 0;
        // SAFETY: io_setup writes one context number to the pointer.
        if unsafe { libc::syscall(libc::SYS_io_setup, 8, &raw mut context) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Signaller { context, null })
    }

    /// Adds 1 to an eventfd, or leaves it at its maximum. Returns whether the kernel did it.
    fn signal(&mut self, eventfd: &OwnedFd) -> bool {
        let mut iocb = Iocb {
            opcode: PWRITE,
            fd: self.null.as_raw_fd() as u32,
            flags: RESFD,
            result_fd: eventfd.as_raw_fd() as u32,
            ..Iocb::default()
        };
        let mut list: *mut Iocb = &raw mut iocb;
        // SAFETY: the context is ours; the list has one iocb, which the kernel copies before the call returns. It has no buffer
        // (length 0), and all descriptors are open.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, &raw mut list) };
        self.reap();
        submitted == 1
    }

    /// Takes completions out of the ring, unseen: without that it would fill up.
    fn reap(&mut self) {
        let ring: *const RingHeader = ptr::with_exposed_provenance(self.context as usize);
        // SAFETY: the kernel maps the ring readable and writable at the context's address until io_destroy.
        unsafe {
            if (*ring).magic == RING_MAGIC && (*ring).incompat == 0 {
                let tail = (*ring).tail.load(Ordering::Acquire);
                (*ring).head.store(tail, Ordering::Release);
                return;
            }
        }
        let mut events = [IoEvent::default(); 8];
        let mut zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for eight events; a time-out of zero.
        unsafe { libc::syscall(libc::SYS_io_getevents, self.context, 0, 8, events.as_mut_ptr(), &raw mut zero) };
    }
}

impl Drop for Signaller {
    fn drop(&mut self) {
        // SAFETY: made by io_setup and destroyed once.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::{
        event::{EventfdFlags, eventfd},
        fs::{OFlags, fcntl_getfl},
    };

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn every_signal_adds_one() {
        let guest = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let call = CallFd::new(guest.try_clone().unwrap()).unwrap();
        // More than the completion ring holds.
        for _ in 0..1000 {
            call.signal();
        }
        call.signal_shared();
        assert_eq!(count(&guest), 1001);
    }

    #[test]
    fn a_full_and_blocking_eventfd_does_not_hold_the_caller() {
        let guest = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&guest, &0xffff_ffff_ffff_fffe_u64.to_ne_bytes()).unwrap();
        assert!(!fcntl_getfl(&guest).unwrap().contains(OFlags::NONBLOCK));
        let call = CallFd::new(guest.try_clone().unwrap()).unwrap();
        let (done, finished) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..10 {
                call.signal();
                call.signal_shared();
            }
            done.send(()).unwrap();
        });
        finished.recv_timeout(std::time::Duration::from_secs(10)).expect("a signal must not wait for the guest");
        assert_eq!(count(&guest), u64::MAX);
    }

    #[test]
    fn only_eventfds_are_accepted() {
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(matches!(CallFd::new(pipe), Err(CallError::NotAnEventfd(what)) if what.starts_with("pipe:")));
        let directory = tempfile::tempdir().unwrap();
        let disguised = std::fs::File::create(directory.path().join("anon_inode:[eventfd]")).unwrap();
        assert!(CallFd::new(disguised.into()).is_err());
    }

    #[test]
    fn a_thread_can_be_prepared_twice() {
        prepare_thread().unwrap();
        prepare_thread().unwrap();
        let guest = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        CallFd::new(guest.try_clone().unwrap()).unwrap().signal();
        assert_eq!(count(&guest), 1);
    }
}

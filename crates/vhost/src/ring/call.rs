//! Interrupts a guest, without ever waiting for it.
//!
//! A guest is interrupted by adding 1 to an eventfd it gave us. `write` on that eventfd is not
//! safe: the guest shares the open file. It can clear `O_NONBLOCK` and fill the counter at any
//! time, also between any check of ours and the write. The write then sleeps as long as the guest
//! wants. `pwritev2` with `RWF_NOWAIT` does not exist for eventfds (EOPNOTSUPP).
//!
//! The kernel's own way to signal an eventfd never sleeps and saturates instead. A program reaches
//! it through asynchronous I/O: an operation that names an eventfd to signal on completion
//! (`IOCB_FLAG_RESFD`). Ours writes no bytes to `/dev/null`, which completes inside `io_submit`.
//! The kernel refuses any descriptor that is not an eventfd. The price is about 0.2 us more than a
//! `write`.
//!
//! The call itself wakes all that waits for the eventfd, which may be much: see
//! [`super::interrupts`].

use std::{
    cell::RefCell,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    ptr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicPtr},
    },
};

use butterfly_mem::cpu;
use butterfly_point::{Point, pass};
use rustix::io::Errno;

use super::{interrupts::Interrupts, messenger, signaller::Signaller, touches};

/// The eventfd by which the device interrupts a guest.
#[derive(Debug)]
pub struct CallFd {
    fd: OwnedFd,
    /// Cost of the vnic's interrupts.
    pub(super) of: Arc<Interrupts>,
    /// The messenger has it, and what it has behind it.
    pub(super) handed: AtomicBool,
    pub(super) next: AtomicPtr<CallFd>,
}

/// Reason why a descriptor cannot interrupt a guest.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum CallError {
    #[error("it is not an eventfd but {0}")]
    NotAnEventfd(String),
    #[error("cannot look at it in /proc/self/fd: {0}")]
    Unknown(Errno),
}

/// Checks that a descriptor is an eventfd. The error says what it is instead.
///
/// The kernel chooses the text behind the link, and only files with a name have a `/` in front of
/// theirs.
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
    /// Takes a guest's descriptor. Anything but an eventfd is refused. `of` is its vnic's.
    pub fn new(fd: OwnedFd, of: Arc<Interrupts>) -> Result<CallFd, CallError> {
        is_eventfd(&fd)?;
        Ok(CallFd { fd, of, handed: AtomicBool::new(false), next: AtomicPtr::new(ptr::null_mut()) })
    }

    /// Interrupts the guest, from a worker.
    ///
    /// Never waits, even if the guest tampers with the eventfd. If signals of this vnic were slow,
    /// it only asks the messenger to send one. A full counter means that the guest was interrupted
    /// already; errors are the guest's problem. Returns the time taken, in ticks of the time stamp
    /// counter.
    pub fn signal(self: &Arc<Self>) -> u64 {
        pass(Point::CallDue);
        let took = self.measured(CallFd::send);
        pass(Point::Called);
        took
    }

    /// Leaves the interrupt to the thread that sends those of vnics with slow signals.
    pub fn hand_over(self: &Arc<Self>) {
        if messenger::runs() {
            messenger::hand_over(self);
        } else {
            self.signal();
        }
    }

    /// Does the same as [`Self::signal`], for threads that signal now and then: gives the thread no
    /// resources of its own.
    pub(crate) fn signal_shared(self: &Arc<Self>) {
        self.measured(CallFd::send_shared);
    }

    fn measured(self: &Arc<Self>, send: impl Fn(&CallFd)) -> u64 {
        if self.of.apart() && messenger::runs() {
            messenger::hand_over(self);
            return 0;
        }
        let begun = cpu::tsc();
        send(self);
        let now = cpu::tsc();
        let took = now.wrapping_sub(begun);
        self.of.took(took, now);
        took
    }

    /// Sends a signal at once, by this thread's own means.
    pub(super) fn send(&self) {
        let sent = OWN.try_with(|own| match own.try_borrow_mut() {
            Ok(mut own) => own
                .0
                .get_or_insert_with(|| spare_or_new().ok())
                .as_mut()
                .is_some_and(|s| s.signal(&self.fd)),
            Err(_) => false,
        });
        if !sent.unwrap_or(false) {
            self.send_shared();
        }
    }

    fn send_shared(&self) {
        if let Ok(shared) = shared() {
            shared.lock().unwrap_or_else(PoisonError::into_inner).signal(&self.fd);
        }
    }

    /// Returns the descriptor, to be handed to another device.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

/// Prepares the calling thread for [`CallFd::signal`], so that its first interrupt costs no set-up.
/// For workers, before they start.
///
/// # Errors
/// The kernel has no room for another asynchronous I/O context: the sysctl `fs.aio-max-nr` limits
/// them. Interrupts still work, through a context that is shared.
pub fn prepare_thread() -> io::Result<()> {
    messenger::keep_off();
    touches::watch_me();
    adopt(spare_or_new()?);
    Ok(())
}

/// Has the calling thread use this one.
pub(super) fn adopt(signaller: Signaller) {
    OWN.with(|own| {
        if let Ok(mut own) = own.try_borrow_mut() {
            own.0 = Some(Some(signaller));
        }
    });
}

/// Makes sure that interrupts can be sent from any thread, and that slow ones need not be.
///
/// # Errors
/// The kernel refuses an asynchronous I/O context: `fs.aio-max-nr` is used up, or a sandbox forbids
/// it. Or it refuses a thread.
pub(crate) fn ensure_signaller() -> io::Result<()> {
    shared()?;
    messenger::start()
}

/// A thread's own signaller. `Some(None)`: the kernel refused one for this thread.
struct Own(Option<Option<Signaller>>);

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own(None)) };
}

/// Signallers of threads that ended, for those that come. The kernel takes some 30 ms to destroy
/// one, for which the end of a worker would have to wait.
static SPARE: Mutex<Vec<Signaller>> = Mutex::new(Vec::new());

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(signaller) = self.0.take().flatten() {
            SPARE.lock().unwrap_or_else(PoisonError::into_inner).push(signaller);
        }
    }
}

fn spare_or_new() -> io::Result<Signaller> {
    let spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    spare.map_or_else(Signaller::new, Ok)
}

fn shared() -> io::Result<&'static Mutex<Signaller>> {
    static SHARED: OnceLock<Mutex<Signaller>> = OnceLock::new();
    if let Some(shared) = SHARED.get() {
        return Ok(shared);
    }
    let new = Signaller::new()?;
    Ok(SHARED.get_or_init(|| Mutex::new(new)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::{
        event::{EventfdFlags, eventfd},
        fs::{OFlags, fcntl_getfl},
    };

    fn call_fd(guest: &OwnedFd) -> Arc<CallFd> {
        Arc::new(CallFd::new(guest.try_clone().unwrap(), Arc::default()).unwrap())
    }

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(fd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn every_signal_adds_one() {
        let guest = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let call = call_fd(&guest);
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
        let call = call_fd(&guest);
        let (done, finished) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..10 {
                call.signal();
                call.signal_shared();
            }
            done.send(()).unwrap();
        });
        finished
            .recv_timeout(std::time::Duration::from_secs(10))
            .expect("a signal must not wait for the guest");
        assert_eq!(count(&guest), u64::MAX);
    }

    #[test]
    fn only_eventfds_are_accepted() {
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(
            matches!(CallFd::new(pipe, Arc::default()), Err(CallError::NotAnEventfd(what)) if what.starts_with("pipe:"))
        );
        let directory = tempfile::tempdir().unwrap();
        let disguised =
            std::fs::File::create(directory.path().join("anon_inode:[eventfd]")).unwrap();
        assert!(CallFd::new(disguised.into(), Arc::default()).is_err());
    }

    #[test]
    fn a_thread_can_be_prepared_twice() {
        prepare_thread().unwrap();
        prepare_thread().unwrap();
        let guest = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        call_fd(&guest).signal();
        assert_eq!(count(&guest), 1);
    }
}

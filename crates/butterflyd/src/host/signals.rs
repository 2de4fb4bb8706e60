//! Signals that stop the daemon, and the one on which it reads its configuration again.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// Readable once the daemon has to stop.
#[derive(Debug)]
pub struct Stop {
    readable: UnixStream,
}

impl Stop {
    /// Stops on SIGINT, SIGQUIT and SIGTERM. A second one of them ends the process at once.
    pub fn on_signals() -> io::Result<Self> {
        let (readable, writable) = UnixStream::pair()?;
        let stopping = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGQUIT, SIGTERM] {
            // In this order: the first signal finds the flag down.
            signal_hook::flag::register_conditional_default(signal, stopping.clone())?;
            signal_hook::flag::register(signal, stopping.clone())?;
            signal_hook::low_level::pipe::register(signal, writable.try_clone()?)?;
        }
        Ok(Self { readable })
    }
}

impl Stop {
    /// True if a signal asked the daemon to stop.
    pub fn is_asked(&self) -> bool {
        let mut watched = [PollFd::new(&self.readable, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

/// Calls to the main thread, from other threads and by SIGHUP.
#[derive(Clone, Debug)]
pub struct Calls {
    writable: Arc<UnixStream>,
    /// True after SIGHUP.
    hung_up: Arc<AtomicBool>,
    /// True if the uplink can be opened that could not be at the start.
    uplink_is_there: Arc<AtomicBool>,
}

impl Calls {
    /// Returns the calls, and a file that is readable after one. From now on SIGHUP does not end
    /// the process, whether an operator sends it or a terminal that is closed.
    pub fn start() -> io::Result<(Calls, OwnedFd)> {
        let (readable, writable) = UnixStream::pair()?;
        readable.set_nonblocking(true)?;
        let hung_up = Arc::new(AtomicBool::new(false));
        // In this order: who reads the call finds the flag up.
        signal_hook::flag::register(SIGHUP, hung_up.clone())?;
        signal_hook::low_level::pipe::register(SIGHUP, writable.try_clone()?)?;
        writable.set_nonblocking(true)?;
        let calls =
            Calls { writable: Arc::new(writable), hung_up, uplink_is_there: Arc::default() };
        Ok((calls, readable.into()))
    }

    /// Calls the main thread.
    pub fn call(&self) {
        // One that is full was called.
        let _ = (&*self.writable).write(&[0]);
    }

    /// Says that the uplink can be opened now.
    pub fn uplink_is_there(&self) {
        self.uplink_is_there.store(true, SeqCst);
        self.call();
    }

    /// True if the uplink can be opened now, once.
    pub fn take_uplink(&self) -> bool {
        self.uplink_is_there.swap(false, SeqCst)
    }

    /// Pretends that SIGHUP came.
    #[cfg(test)]
    pub fn hang_up(&self) {
        self.hung_up.store(true, SeqCst);
    }

    /// True if SIGHUP came since this was asked.
    pub fn hung_up(&self) -> bool {
        self.hung_up.swap(false, SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_seen_without_being_taken() {
        let (readable, writable) = UnixStream::pair().unwrap();
        let stop = Stop { readable };
        assert!(!stop.is_asked());
        (&writable).write_all(&[0]).unwrap();
        assert!(stop.is_asked() && stop.is_asked());
    }

    #[test]
    fn a_call_is_no_hang_up() {
        let (calls, readable) = Calls::start().unwrap();
        calls.call();
        assert_eq!(rustix::io::read(&readable, &mut [0; 8]), Ok(1));
        assert!(!calls.hung_up());
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert_eq!(rustix::io::read(&readable, &mut [0; 8]), Ok(1));
        assert!(calls.hung_up() && !calls.hung_up());
    }
}

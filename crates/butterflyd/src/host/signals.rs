//! Signals that stop the daemon.

use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, atomic::AtomicBool},
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

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

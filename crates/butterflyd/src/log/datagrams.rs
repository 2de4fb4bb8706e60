//! A connection to a local logger; made when needed, and again when the other side was restarted.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

pub(super) struct Datagrams {
    path: PathBuf,
    socket: Mutex<Option<UnixDatagram>>,
    lost: AtomicU64,
}

impl Datagrams {
    pub(super) fn to(path: PathBuf) -> Self {
        Self { path, socket: Mutex::new(None), lost: AtomicU64::new(0) }
    }

    /// Sends the datagram of `make` if that is possible now: a stuck logger must not stop a switch.
    /// `make` gets a note of how many lines were lost before, or an empty one.
    pub(super) fn send(&self, make: impl FnOnce(&str) -> Vec<u8>) {
        let lost = self.lost.load(Ordering::Relaxed);
        let note =
            if lost == 0 { String::new() } else { format!(" ({lost} earlier lines were lost)") };
        let message = make(&note);
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match self.deliver(&mut socket, &message) {
            Ok(()) => self.lost.fetch_sub(lost, Ordering::Relaxed),
            Err(_) => self.lost.fetch_add(1, Ordering::Relaxed),
        };
    }

    #[cfg(test)]
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn deliver(&self, socket: &mut Option<UnixDatagram>, message: &[u8]) -> io::Result<()> {
        if let Some(connected) = socket {
            match connected.send(message) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // The other side is gone: perhaps there is a new one.
                Err(_) => *socket = None,
            }
        }
        let connected = UnixDatagram::unbound()?;
        connected.set_nonblocking(true)?;
        connected.connect(&self.path)?;
        connected.send(message)?;
        *socket = Some(connected);
        Ok(())
    }
}

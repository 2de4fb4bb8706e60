//! The local syslog (RFC 3164, as the C library speaks it to /dev/log).

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

const IDENT: &str = "butterfly";
const LOCAL0: u8 = 16;

#[derive(Clone, Copy)]
pub(super) enum Severity {
    Error = 3,
    Warning = 4,
    Info = 6,
    Debug = 7,
}

/// A connection to the local syslog; made when needed, and again when the other side was restarted.
pub(super) struct Syslog {
    path: PathBuf,
    tag: String,
    socket: Mutex<Option<UnixDatagram>>,
    lost: AtomicU64,
}

impl Syslog {
    pub(super) fn new() -> Self {
        Self::at("/dev/log".into())
    }

    pub(super) fn at(path: PathBuf) -> Self {
        let tag = format!("{IDENT}[{}]", std::process::id());
        Self { path, tag, socket: Mutex::new(None), lost: AtomicU64::new(0) }
    }

    /// What every line begins with.
    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    /// Sends `text` if that is possible now: a stuck logger must not stop a switch. The next line that gets through says how
    /// many were lost. The receiver adds the time.
    pub(super) fn send(&self, severity: Severity, text: &str) {
        let lost = self.lost.load(Ordering::Relaxed);
        let note = if lost == 0 { String::new() } else { format!(" ({lost} earlier lines were lost)") };
        let line = format!("<{}>{}: {text}{note}", LOCAL0 << 3 | severity as u8, self.tag);
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match self.deliver(&mut socket, line.as_bytes()) {
            Ok(()) => self.lost.fetch_sub(lost, Ordering::Relaxed),
            Err(_) => self.lost.fetch_add(1, Ordering::Relaxed),
        };
    }

    fn deliver(&self, socket: &mut Option<UnixDatagram>, line: &[u8]) -> io::Result<()> {
        if let Some(connected) = socket {
            match connected.send(line) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // The other side is gone: perhaps there is a new one.
                Err(_) => *socket = None,
            }
        }
        let connected = UnixDatagram::unbound()?;
        connected.set_nonblocking(true)?;
        connected.connect(&self.path)?;
        connected.send(line)?;
        *socket = Some(connected);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_syslog_is_found_again_and_told_what_it_missed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let syslog = Syslog::at(path.clone());
        syslog.send(Severity::Error, "nobody hears this");

        let receive = |socket: &UnixDatagram| {
            let mut buffer = [0; 1000];
            let length = socket.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        let first = UnixDatagram::bind(&path).unwrap();
        syslog.send(Severity::Info, "one");
        assert_eq!(receive(&first), format!("<134>{}: one (1 earlier lines were lost)", syslog.tag()));
        drop(first);
        std::fs::remove_file(&path).unwrap();

        let second = UnixDatagram::bind(&path).unwrap();
        syslog.send(Severity::Info, "two");
        assert_eq!(receive(&second), format!("<134>{}: two", syslog.tag()));
    }

    #[test]
    fn a_stuck_syslog_does_not_hold_us() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let _stuck = UnixDatagram::bind(&path).unwrap();
        let syslog = Syslog::at(path);
        for _ in 0..10_000 {
            syslog.send(Severity::Debug, "x");
        }
        assert!(syslog.lost.load(Ordering::Relaxed) > 0);
    }
}

//! The local syslog (RFC 3164, as the C library speaks it to /dev/log).

use super::datagrams::Datagrams;
use std::path::PathBuf;

pub(super) const IDENT: &str = "butterfly";
pub(super) const LOCAL0: u8 = 16;

#[derive(Clone, Copy)]
pub(super) enum Severity {
    Error = 3,
    Warning = 4,
    Info = 6,
    Debug = 7,
}

/// The local syslog.
pub(super) struct Syslog {
    tag: String,
    datagrams: Datagrams,
}

impl Syslog {
    pub(super) fn new() -> Self {
        Self::at("/dev/log".into())
    }

    pub(super) fn at(path: PathBuf) -> Self {
        let tag = format!("{IDENT}[{}]", std::process::id());
        Self { tag, datagrams: Datagrams::to(path) }
    }

    /// Returns the beginning of every line.
    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    /// Sends `text`. The next line that gets through says how many were lost. The receiver adds the
    /// time.
    pub(super) fn send(&self, severity: Severity, text: &str) {
        let (tag, priority) = (&self.tag, LOCAL0 << 3 | severity as u8);
        self.datagrams.send(|note| format!("<{priority}>{tag}: {text}{note}").into_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

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
        assert_eq!(
            receive(&first),
            format!("<134>{}: one (1 earlier lines were lost)", syslog.tag())
        );
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
        assert!(syslog.datagrams.lost() > 0);
    }
}

//! The lines on standard output that other programs watch for.
//!
//! A thread of their own writes them: a reader that does not read must hold up neither the API nor
//! a virtual machine.

use crate::events::{Events, Note, switch_note};
use butterfly_datapath::{About, Happening, SwitchEvents, Times};
use std::{
    collections::HashMap,
    io::Write,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, SyncSender},
    },
    time::Duration,
};
use tracing::{debug, info, warn};

/// Lines wait for a reader at most this many; more are left out.
const BACKLOG: usize = 10_000;
/// Time that the last lines have to be read when the daemon stops.
const PATIENCE: Duration = Duration::from_secs(1);

struct Socket {
    path: String,
    /// Its line is still to be written.
    unannounced: bool,
}

/// Tells what happens to sockets, and notes everything that the switch tells.
#[derive(Clone)]
pub struct Announcer {
    lines: SyncSender<String>,
    sockets: Arc<Mutex<HashMap<String, Socket>>>,
    events: Events,
}

/// The thread that writes.
pub struct Writer {
    finished: Receiver<()>,
}

impl Announcer {
    /// Writes to `out` from a thread of its own.
    pub fn start(
        mut out: impl Write + Send + 'static,
        events: Events,
    ) -> std::io::Result<(Self, Writer)> {
        let (lines, receiver) = mpsc::sync_channel::<String>(BACKLOG);
        let (finish, finished) = mpsc::channel();
        std::thread::Builder::new().name("announcer".into()).spawn(move || {
            for line in receiver {
                // The reader may be gone.
                let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            }
            // There may be no reader any more.
            let _ = finish.send(());
        })?;
        Ok((Self { lines, sockets: Arc::default(), events }, Writer { finished }))
    }

    /// The vnic `id` is about to be made with the socket `path`; `ours` if we listen there.
    pub fn expect(&self, id: &str, path: String, ours: bool) {
        self.sockets().insert(id.to_owned(), Socket { path, unannounced: ours });
    }

    /// Records that the vnic was made.
    pub fn made(&self, id: &str) {
        let first = |socket: &mut Socket| {
            std::mem::take(&mut socket.unannounced).then(|| socket.path.clone())
        };
        let path = self.sockets().get_mut(id).and_then(first);
        if let Some(path) = path {
            self.line(format!("New vhost-user socket: {path}, zero-copy disable"));
        }
    }

    /// Forgets a vnic that is gone, or was not made after all.
    pub fn forget(&self, id: &str) {
        self.sockets().remove(id);
    }

    fn sockets(&self) -> MutexGuard<'_, HashMap<String, Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line_about(&self, id: &str, before: &str) {
        let path = self.sockets().get(id).map(|socket| socket.path.clone());
        if let Some(path) = path {
            self.line(format!("{before}{path}"));
        }
    }

    fn line(&self, line: String) {
        // Without room, or without the thread, no line is written.
        let _ = self.lines.try_send(line);
    }
}

impl SwitchEvents for Announcer {
    fn happened(&self, about: About<'_>, what: Happening<'_>) {
        let note = switch_note(about, what);
        match (about.nic, what) {
            (Some(id), Happening::Attached) => {
                // A VM may attach before the request that made the vnic is finished.
                self.made(id);
                self.line_about(id, "VM connecting to socket: ");
            }
            (Some(id), Happening::Detached(_)) => {
                self.line_about(id, "VM disconnecting from socket: ")
            }
            _ => {}
        }
        // A guest that brings something about all the time fills no log.
        if self.events.note(note.clone()) {
            log(&note, what);
        }
    }

    fn measured(&self, times: Times) {
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let (min, mean, max) = (times.min.as_micros(), micros(times.mean()), times.max.as_micros());
        self.line(format!(
            "ping time for {} pkts: min/mean/max {min} us {mean:.2} us {max} us",
            times.count
        ));
    }
}

/// Logs an event of the switch, with fields for programs that read the log.
fn log(note: &Note, what: Happening<'_>) {
    let Note { kind, nic, vni, text, .. } = note;
    let nic = nic.as_deref();
    let about = match (nic, vni) {
        (Some(id), _) => format!("nic {id}: "),
        (None, Some(vni)) => format!("network {vni}: "),
        (None, None) => String::new(),
    };
    let kind = kind.name();
    match what {
        Happening::Attached => info!(EVENT = kind, NIC = nic, VNI = vni, "{about}{text}"),
        Happening::Detached(reason) => {
            info!(EVENT = kind, NIC = nic, VNI = vni, REASON = reason, "{about}{text}")
        }
        // The code that notices it logs it.
        Happening::UplinkUp(_) | Happening::UplinkDown(_) | Happening::UplinkMtu(_) => {}
        Happening::Dropped(reason, _) => {
            warn!(EVENT = kind, NIC = nic, VNI = vni, REASON = reason.name, "{about}{text}");
        }
        Happening::Trouble(_)
        | Happening::Broken(_)
        | Happening::LearnRefused(_)
        | Happening::PeersFull(true)
        | Happening::NextHopLost(_) => {
            warn!(EVENT = kind, NIC = nic, VNI = vni, "{about}{text}");
        }
        Happening::Sessions { nearly_full: true, .. } => warn!(EVENT = kind, "{text}"),
        _ => debug!(EVENT = kind, NIC = nic, VNI = vni, "{about}{text}"),
    }
}

impl Writer {
    /// Waits, not for ever, until everything was written. All announcers must have been dropped.
    pub fn finish(self) {
        let _ = self.finished.recv_timeout(PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    const N: About<'_> = About { nic: Some("n"), vni: Some(7) };

    fn attached(announcer: &Announcer) {
        announcer.happened(N, Happening::Attached);
    }

    fn detached(announcer: &Announcer, why: &str) {
        announcer.happened(N, Happening::Detached(why));
    }

    fn written(body: impl FnOnce(Announcer)) -> Vec<String> {
        let page = Page::default();
        let (announcer, writer) = Announcer::start(page.clone(), Events::default()).unwrap();
        body(announcer);
        writer.finish();
        let bytes = page.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_life_of_a_socket_is_told() {
        let lines = written(|announcer| {
            announcer.expect("n", "/s/n".into(), true);
            announcer.made("n");
            attached(&announcer);
            detached(&announcer, "it crashed");
            announcer.forget("n");
            detached(&announcer, "too late");
        });
        let expected = [
            "New vhost-user socket: /s/n, zero-copy disable",
            "VM connecting to socket: /s/n",
            "VM disconnecting from socket: /s/n",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_socket_comes_before_its_machine() {
        let lines = written(|announcer| {
            announcer.expect("n", "/s/n".into(), true);
            attached(&announcer);
            announcer.made("n");
        });
        assert_eq!(
            lines,
            ["New vhost-user socket: /s/n, zero-copy disable", "VM connecting to socket: /s/n"]
        );
    }

    #[test]
    fn what_was_not_made_or_is_not_ours_is_not_announced() {
        let lines = written(|announcer| {
            announcer.expect("refused", "/s/refused".into(), true);
            announcer.forget("refused");
            announcer.made("refused");
            announcer.expect("client", "/s/client".into(), false);
            announcer.made("client");
            announcer.happened(About { nic: Some("client"), vni: Some(1) }, Happening::Attached);
        });
        assert_eq!(lines, ["VM connecting to socket: /s/client"]);
    }

    /// The ninth word is the mean.
    #[test]
    fn a_measurement_is_told_as_the_original_does() {
        let lines = written(|announcer| {
            let times = |count, sum| Times {
                count,
                min: Duration::from_nanos(9_999),
                sum,
                max: Duration::from_millis(2),
            };
            announcer.measured(times(1024, Duration::from_micros(1024 * 21 + 512)));
        });
        assert_eq!(lines, ["ping time for 1024 pkts: min/mean/max 9 us 21.50 us 2000 us"]);
        assert_eq!(lines[0].split(' ').nth(8), Some("21.50"));
    }

    /// A reader that went away, and one that reads nothing.
    #[test]
    fn a_reader_that_does_not_read_holds_up_nobody() {
        let (mut ends, stuck) = std::os::unix::net::UnixStream::pair().unwrap();
        let (announcer, writer) = Announcer::start(stuck, Events::default()).unwrap();
        announcer.expect("n", "/s/n".into(), true);
        for _ in 0..3 * BACKLOG {
            attached(&announcer);
            // Nor do declarations pile up.
            announcer.expect("m", "/s/m".into(), true);
            announcer.made("m");
            announcer.forget("m");
        }
        assert_eq!(announcer.sockets().len(), 1);
        drop(announcer);
        let start = std::time::Instant::now();
        writer.finish();
        assert!(start.elapsed() < 5 * PATIENCE);
        // Lets the thread end.
        let _ = std::io::copy(&mut ends, &mut std::io::sink());
    }
}

//! Signs of life for systemd, while packet threads and the API take turns. A stuck one ends them,
//! and systemd restarts us.
//!
//! A restart costs every VM of the host its network until it is declared again. So it is not the
//! remedy for an API that waits for something while packets flow. That is reported at once, and
//! ends the signs only when it goes on for long.

use crate::host::notify::Notify;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tracing::error;

/// Signs come so many times more often than they have to.
const MARGIN: u32 = 4;
/// Intervals in which the API may take no turn while packets flow: five minutes of the packaged
/// unit.
const PATIENCE: u32 = 10;

/// Turns that the API's thread took.
#[derive(Clone, Debug, Default)]
pub struct Turns(Arc<AtomicU64>);

impl Turns {
    /// Another one.
    pub fn taken(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns how often a thread has to take a turn at least, if there is to be a sign of life in each
/// `interval`.
pub fn turn(interval: Duration) -> Duration {
    interval / MARGIN / 2
}

/// The thread that sends signs, until this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Sends signs to `notify` as long as the API takes `turns` and `workers` says, within the time
    /// it is given, that all of them do.
    pub fn start(
        notify: Arc<Notify>,
        interval: Duration,
        turns: Turns,
        workers: impl Fn(Duration) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let pause = interval / MARGIN;
        let mut seen = turns.count();
        let mut told = false;
        let mut quiet = Duration::ZERO;
        let mut look = move || {
            let now = turns.count();
            let api = now != std::mem::replace(&mut seen, now);
            quiet = if api { Duration::ZERO } else { quiet + pause };
            let packets = workers(pause);
            if packets && quiet < PATIENCE * interval {
                notify.say("WATCHDOG=1");
            }
            let stuck = match (api, packets) {
                (true, true) => {
                    told = false;
                    return;
                }
                (false, true) => "the API",
                (true, false) => "the packet thread",
                (false, false) => "the API and the packet thread",
            };
            if !std::mem::replace(&mut told, true) {
                error!(
                    REASON = "stuck",
                    "{stuck} is stuck: unless it goes on, systemd will start this daemon again"
                );
            }
        };
        let body = move || {
            while matches!(stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
                look();
            }
        };
        let thread = thread::Builder::new().name("watchdog".into()).spawn(body)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        // What it asks about the workers is theirs until then.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixDatagram, sync::atomic::AtomicBool, time::Instant};

    const INTERVAL: Duration = Duration::from_millis(80);

    /// Counts signs of life in a while, in which `turning` takes turns.
    fn signs(turns: &Turns, turning: bool, systemd: &UnixDatagram) -> usize {
        signs_for(4, turns, turning, systemd)
    }

    fn signs_for(intervals: u32, turns: &Turns, turning: bool, systemd: &UnixDatagram) -> usize {
        let end = Instant::now() + intervals * INTERVAL;
        let mut signs = 0;
        while Instant::now() < end {
            if turning {
                turns.taken();
            }
            let mut buffer = [0; 100];
            match systemd.recv(&mut buffer) {
                Ok(length) => {
                    assert_eq!(&buffer[..length], b"WATCHDOG=1");
                    signs += 1;
                }
                Err(_) => thread::sleep(turn(INTERVAL) / 4),
            }
        }
        signs
    }

    #[test]
    fn signs_end_while_the_api_or_a_worker_is_stuck() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        systemd.set_nonblocking(true).unwrap();
        let notify = Arc::new(Notify::to(path.as_os_str()).unwrap());
        let (turns, good) = (Turns::default(), Arc::new(AtomicBool::new(true)));
        let workers = good.clone();
        let watchdog = Watchdog::start(notify, INTERVAL, turns.clone(), move |_| {
            workers.load(Ordering::Relaxed)
        })
        .unwrap();
        assert!(signs(&turns, true, &systemd) > 0);
        assert!(
            signs(&turns, false, &systemd) > 0,
            "the API waits for something, and packets flow"
        );
        signs_for(PATIENCE + 2, &turns, false, &systemd);
        assert_eq!(signs(&turns, false, &systemd), 0, "the API is stuck");
        assert!(signs(&turns, true, &systemd) > 0, "it goes on");
        good.store(false, Ordering::Relaxed);
        // The first while may still see what was sent before.
        signs(&turns, true, &systemd);
        assert_eq!(signs(&turns, true, &systemd), 0, "a worker is stuck");
        drop(watchdog);
    }
}

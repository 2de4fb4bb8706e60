//! The holder: a process that keeps what must not end with the daemon, and gives it to the next.
//!
//! It owns the control sockets of vnics. It reads whole messages of front ends, and hands each to
//! the daemon; the daemon says the reply and the state after it, in one packet. So whatever happens
//! to the daemon, the holder has a state in which every message was carried out or was not, and the
//! successor goes on from there. The front end notices nothing.
//!
//! | module | holds |
//! |---|---|
//! | [`protocol`] | the packets between both |
//! | [`client`] | the daemon's side |
//! | [`server`] | the holder's side, without threads |
//! | [`closer`] | the process that closes what front ends gave |
//!
//! A descriptor that a front end gave may make its last close() sleep for as long as its sender
//! said (a TCP socket with SO_LINGER). So the holder never closes the last copy: it sends it to the
//! closer, which may hang, and is replaced then.

#![forbid(unsafe_code)]

use std::{
    ffi::{OsStr, OsString},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub mod client;
pub mod closer;
pub mod notify;
pub mod protocol;
pub mod server;

/// Most bytes of the path of a Unix socket (`sun_path` without its final NUL).
pub const MAX_PATH: usize = 107;
/// Word by which a program that links this crate becomes a holder; the state directory follows.
pub const HOLD: &str = "--hold";
/// Word by which it becomes one that has no parent.
pub const HOLD_ALONE: &str = "--hold-alone";
/// Word by which it becomes one that a service manager runs: it waits for a first daemon without
/// end.
pub const HOLD_SERVICE: &str = "--hold-service";
/// Word by which it becomes a closer.
pub const CLOSE: &str = "--close";
/// Word by which it says whether it can go on as the holder: all held is its standard input.
pub const PROVE: &str = "--prove-holding";
/// Word by which it goes on as the holder that another program was until now; see
/// [`server::go_on`].
pub const GO_ON: &str = "--go-on-holding";

/// Runs this process as a holder or a closer, if its words say so. Call it before any thread is
/// there. Returns the status with which to exit.
pub fn run_if_asked() -> Option<u8> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let (word, more) = words.split_first()?;
    match (word.to_str()?, more) {
        (CLOSE, []) => Some(closer::run()),
        (HOLD, [state, ..]) => Some(server::start(state.as_ref())),
        (HOLD_ALONE, [state, ..]) => Some(server::run(state.as_ref(), Some(server::FIRST))),
        (HOLD_SERVICE, [state, ..]) => Some(server::run(state.as_ref(), None)),
        (PROVE, []) => Some(server::prove_that_it_can()),
        (GO_ON, more) => Some(server::go_on(more)),
        _ => None,
    }
}

/// Lines that may be said at once, and milliseconds until one more may: what guests do leads to
/// lines.
const LINES: u64 = 100;
const LINE_EVERY: u64 = 1000;
/// Most bytes of a line: so many fit into a pipe that can be written to.
const LONGEST: usize = 4096;

/// Says something on standard error. Nobody need read it: what would wait is left out.
fn say(text: std::fmt::Arguments<'_>) {
    static SAID: Mutex<Option<(Pace, u64)>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let (pace, left_out) = said.get_or_insert_with(|| (Pace::new(Instant::now()), 0));
    let err = std::io::stderr();
    let mut ready = [PollFd::new(&err, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let can = poll(&mut ready, Some(&now)).is_ok_and(|count| count == 1);
    if !can || !pace.take(Instant::now()) {
        *left_out += 1;
        return;
    }
    let more = match std::mem::take(left_out) {
        0 => String::new(),
        lines => format!(" ({lines} lines were left out before)"),
    };
    let mut line = format!("holder: {text}{more}").into_bytes();
    line.truncate(LONGEST - 1);
    line.push(b'\n');
    let _ = rustix::io::write(&err, &line);
}

/// Lines that may be said.
struct Pace {
    left: u64,
    since: Instant,
}

impl Pace {
    fn new(since: Instant) -> Pace {
        Pace { left: LINES, since }
    }

    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_millis();
        let new = u64::try_from(passed).unwrap_or(u64::MAX) / LINE_EVERY;
        self.left = self.left.saturating_add(new).min(LINES);
        self.since += Duration::from_millis(new.saturating_mul(LINE_EVERY));
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

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

use std::io::Write;

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

/// Runs this process as a holder or a closer, if its words say so. Call it before any thread is
/// there. Returns the status with which to exit.
pub fn run_if_asked() -> Option<u8> {
    let mut words = std::env::args_os().skip(1);
    let word = words.next()?;
    let state = words.next();
    match (word.to_str()?, state) {
        (CLOSE, None) => Some(closer::run()),
        (HOLD, Some(state)) => Some(server::start(state.as_ref())),
        (HOLD_ALONE, Some(state)) => Some(server::run(state.as_ref(), Some(server::FIRST))),
        (HOLD_SERVICE, Some(state)) => Some(server::run(state.as_ref(), None)),
        _ => None,
    }
}

/// Says something on standard error. Nobody need read it.
fn say(text: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "holder: {text}");
}

//! The life of the daemon, from start to stop.

mod begin;
mod ended;
mod held;
mod listening;
mod tell;
mod uplink;
mod writer;

pub use writer::write_store;

use crate::{
    checkpoint::Writing,
    config::{Config, options::Options},
    events::{Events, announce::Writer},
    handlers::Daemon,
    host::{notify::Notify, signals::Stop, watchdog::Watchdog},
    poison::{EndNote, Releasing},
    upgrade::passage::{Came, Guard},
};
use butterfly_api::{Envelope, server::Server};
use butterfly_datapath::Switch;
use std::sync::Arc;

/// A daemon that serves.
struct Running {
    server: Server,
    envelope: Envelope<Daemon<Arc<Switch>>>,
    stop: Stop,
    events: Events,
    /// Writes lines to standard output.
    writer: Writer,
    notify: Option<Arc<Notify>>,
    watchdog: Option<Watchdog>,
    /// Writes the checkpoint.
    writing: Option<Writing>,
    /// Lets vnics go that are held.
    releasing: Option<Releasing>,
    /// Notes how this process ends. Dropped when it does, in whichever way.
    end: Option<EndNote>,
}

/// Runs until a signal or a client stops it, or another program goes on. `config` was read as
/// `options` say, and is read so again after SIGHUP. `came`: how this process came to be; `guard`
/// hears when it is ready.
pub fn run(
    config: Config,
    options: Options,
    came: Came,
    guard: &Guard,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut running = Running::begin(config, options, &came, guard)?;
    let ended = running.serve();
    running.end(ended)
}

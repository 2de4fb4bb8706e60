//! The life of the daemon, from start to stop.

use crate::{
    announce::Announcer,
    config::Config,
    handlers::{Daemon, seconds_since_epoch},
    limits,
    lock::DirectoryLock,
    log,
    registry::Registry,
    signals::Stop,
};
use butterfly_api::{Envelope, server::Server};
use butterfly_datapath::{Switch, SwitchConfig};
use butterfly_model::SocketDir;
use std::{os::fd::AsFd, sync::Arc, time::SystemTime};
use tracing::info;

/// Runs until a signal or a client stops it.
pub fn run(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    let log_level = log::start(config.log_level, config.syslog);
    // Before any thread is there: signals go to whoever is.
    let stop = Stop::on_signals()?;
    limits::raise_open_files();
    let _lock = DirectoryLock::take(&config.socket_dir)?;
    let server = Server::bind(&config.endpoint)?;
    let (announcer, writer) = Announcer::start(std::io::stdout())?;
    let switch_config = SwitchConfig { core: Some(config.core), poll: config.poll, fdb_ageing: config.fdb_ageing };
    let switch = Switch::start(switch_config, Arc::new(announcer.clone()))?;
    info!("started: API on {}, sockets in {}", config.endpoint, config.socket_dir.display());

    let mut envelope = Envelope::new(Daemon {
        dataplane: switch,
        nics: Registry::default(),
        socket_dir: SocketDir::new(config.socket_dir),
        ip: config.ip,
        announcer,
        log_level,
        start_date: seconds_since_epoch(SystemTime::now()),
        quit: false,
    });
    let served = server.serve(&mut envelope, stop.as_fd(), |daemon| daemon.quit);

    info!("stopping");
    // Whoever asked to quit gets the reply while the rest is taken down.
    drop(server);
    let mut daemon = envelope.into_handler();
    daemon.remove_all();
    // The switch holds the last announcer.
    drop(daemon);
    writer.finish();
    Ok(served?)
}

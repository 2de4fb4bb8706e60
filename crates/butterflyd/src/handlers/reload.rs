//! The configuration read again, after SIGHUP.
//!
//! All of it is checked as at the start, and everything that may fail is done first: when something
//! is wrong, nothing has changed. Only what is another than in the configuration before is
//! changed, so what clients changed since then stays.

use super::Daemon;
use crate::{
    config::{Config, Workers, difference::Difference, options::Options},
    dataplane::Dataplane,
    events::{Kind, counted},
    holding::Holding,
    host::time::seconds_since_epoch,
    metrics,
};
use butterfly_control::{Change, TunnelPeer};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::SystemTime,
};
use tracing::{error, info, warn};

/// Starts a server of metrics.
pub type Serve = Box<dyn Fn(SocketAddr) -> Result<metrics::Server, metrics::MetricsError>>;

/// The configuration of a daemon, and what it needs to take over another one.
pub struct Reload {
    /// The command line of the start.
    options: Options,
    /// Settings in force. Those that wait for the next start are still the old ones.
    in_force: Config,
    /// Peers that the configuration named, and no client before it.
    named: BTreeSet<IpAddr>,
    /// The server of metrics, if there is one.
    metrics: Option<metrics::Server>,
    /// Starts another one, once the daemon serves.
    serve: Option<Serve>,
    /// Seconds since the epoch of the last one that was carried out.
    last: Option<u64>,
}

impl Reload {
    /// Begins with the configuration of the start.
    pub fn new(options: Options, in_force: Config) -> Self {
        let named = in_force.tunnel.iter().flat_map(|tunnel| tunnel.peers.iter().copied());
        Self { named: named.collect(), options, in_force, metrics: None, serve: None, last: None }
    }

    /// Has `serve` start servers of metrics from now on; one may be there.
    pub fn with_metrics(&mut self, metrics: Option<metrics::Server>, serve: Serve) {
        (self.metrics, self.serve) = (metrics, Some(serve));
    }

    /// Returns what the configuration in force has the daemon listen on.
    pub fn listens(&self) -> Vec<String> {
        let metrics = self.in_force.metrics.map(|address| address.to_string());
        self.in_force.endpoints.iter().cloned().chain(metrics).collect()
    }

    /// Returns when a configuration was taken over last, in seconds since the epoch.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// Reads the configuration again.
    fn read(&self) -> Result<Config, String> {
        // A pipe, as of a shell's <(...), has nothing more, and would have the API wait.
        if let Some(path) = &self.options.config
            && let Ok(found) = path.metadata()
            && !found.is_file()
        {
            return Err(format!("{} is no file, and cannot be read again", path.display()));
        }
        Config::load(self.options.clone()).map_err(|error| error.to_string().replace('\n', "; "))
    }
}

impl<D: Dataplane> Daemon<D> {
    /// Reads the configuration again and takes over what may change while the daemon runs.
    pub(super) fn reload(&mut self) {
        self.turns.taken();
        self.origin = None;
        if let Err(why) = self.try_reload() {
            let text = format!("the configuration was read again, and nothing has changed: {why}");
            error!(EVENT = Kind::ConfigRefused.name(), "{text}");
            self.note(Kind::ConfigRefused, text);
        }
    }

    fn try_reload(&mut self) -> Result<(), String> {
        let new = self.reload.read()?;
        let difference = self.reload.in_force.difference(&new);
        let metrics = match difference.metrics {
            Some(Some(address)) => Some(Some(self.serve_metrics(address)?)),
            Some(None) => Some(None),
            None => None,
        };
        if let Some(Workers { count, cores }) = difference.workers.clone() {
            self.turns.taken();
            self.dataplane.set_workers(count, &cores)?;
        }
        self.configuring(true);
        let changed = self.change_peers(&difference);
        self.configuring(false);
        if let Err(why) = changed {
            if difference.workers.is_some() {
                let Workers { count, cores } = &self.reload.in_force.workers;
                // They were there a moment ago.
                let _ = self.dataplane.set_workers(*count, cores);
            }
            return Err(why);
        }
        // From here on nothing fails.
        if let Some((timeouts, tcp_pickup)) = difference.times {
            self.dataplane.set_session_times(timeouts, tcp_pickup);
        }
        if let Some(seconds) = difference.fdb_ageing {
            self.dataplane.set_fdb_ageing(seconds);
        }
        if let Some(server) = metrics {
            if let Some(keeper) = self.holding.as_ref().map(Holding::listeners) {
                match &server {
                    Some(server) => keeper.keep_metrics(server.address(), server.socket()),
                    None => keeper.without_metrics(),
                }
            }
            self.reload.metrics = server;
        }
        if let Some(level) = difference.log_level {
            self.log_level.set(level);
            self.note(Kind::LogLevel, format!("the log level is {}", level.name()));
        }
        self.condition.missing().metrics_are_there();
        self.reload.last = Some(seconds_since_epoch(SystemTime::now()));
        self.tell_of_reload(&difference, &new);
        self.reload.in_force.carried_out(&difference, new);
        Ok(())
    }

    fn serve_metrics(&self, address: SocketAddr) -> Result<metrics::Server, String> {
        let Some(serve) = &self.reload.serve else {
            return Err("metrics cannot move before the daemon serves".to_owned());
        };
        let refused = |error: metrics::MetricsError| {
            let hint = match self.reload.in_force.metrics {
                Some(old) if old.port() == address.port() => {
                    "; if this daemon's metrics are in the way, choose another port, or restart it"
                }
                _ => "",
            };
            format!("{error}{hint}")
        };
        serve(address).map_err(refused)
    }

    /// Names peers and takes names back. On an error the peers are those from before.
    fn change_peers(&mut self, difference: &Difference) -> Result<(), String> {
        let mut done: Vec<TunnelPeer> = Vec::new();
        for address in &difference.named {
            self.turns.taken();
            let named = TunnelPeer::new(*address, None).map_err(|error| error.to_string());
            let named = named.and_then(|peer| {
                // One that a client named before stays the client's.
                if !self.desired.peers().contains(&peer) {
                    let changed = self.change(Change::NamePeer(peer));
                    changed.map_err(|failure| failure.description.unwrap_or_default())?;
                    done.push(peer);
                }
                Ok(())
            });
            if let Err(why) = named {
                for peer in done {
                    // It was named a moment ago, so there is nothing that could refuse.
                    let _ = self.change(Change::UnnamePeer(peer));
                }
                return Err(format!("peer {address} is refused: {why}"));
            }
        }
        self.reload.named.extend(done.iter().map(TunnelPeer::address));
        for address in &difference.unnamed {
            self.turns.taken();
            if self.reload.named.remove(address)
                && let Ok(peer) = TunnelPeer::new(*address, None)
                && self.desired.peers().contains(&peer)
            {
                // Only a switch without an uplink refuses, and that has no peers.
                let _ = self.change(Change::UnnamePeer(peer));
            }
        }
        Ok(())
    }

    /// Says what changed, and what waits.
    fn tell_of_reload(&self, difference: &Difference, new: &Config) {
        for notice in &new.notices {
            if !self.reload.in_force.notices.contains(notice) {
                warn!("{notice}");
            }
        }
        for name in &difference.later {
            warn!("{name} changed: takes effect at the next start");
        }
        let mut told = Vec::new();
        match &*difference.later {
            [] => {}
            [name] => told.push(format!("{name} changed: takes effect at the next start")),
            names => {
                told.push(format!("{} changed: take effect at the next start", names.join(", ")))
            }
        }
        told.extend(changes(difference));
        if let Some(server) = self.reload.metrics.as_ref().filter(|_| difference.metrics.is_some())
        {
            told.push(format!("metrics are on http://{}/metrics", server.address()));
        }
        if told.is_empty() {
            told.push("nothing changed".to_owned());
        }
        let text = format!("the configuration was read again: {}", told.join("; "));
        info!(EVENT = Kind::ConfigReloaded.name(), "{text}");
        self.note(Kind::ConfigReloaded, text);
    }
}

/// Returns the changes in words. The address of the metrics is not here, as the system may choose
/// its port.
fn changes(difference: &Difference) -> Vec<String> {
    let mut told = Vec::new();
    let mut is = |name: &str, value: Option<String>| {
        told.extend(value.map(|value| format!("{name} is {value}")));
    };
    is("log-level", difference.log_level.map(|level| level.name().to_owned()));
    is("fdb-ageing", difference.fdb_ageing.map(|seconds| seconds.to_string()));
    is("workers", difference.workers.as_ref().map(ToString::to_string));
    is("tcp-pickup", difference.tcp_pickup.map(|seconds| seconds.to_string()));
    for (name, seconds) in &difference.timeouts {
        is(name, Some(seconds.to_string()));
    }
    let peers = |peers: &[IpAddr], what: &str| match peers {
        [] => None,
        [peer] => Some(format!("peer {peer} is {what}")),
        peers => Some(format!("{} are {what}", counted(peers.len() as u64, "peer"))),
    };
    told.extend(peers(&difference.named, "named"));
    told.extend(peers(&difference.unnamed, "not named any more"));
    if difference.metrics == Some(None) {
        told.push("metrics are not served any more".to_owned());
    }
    told
}

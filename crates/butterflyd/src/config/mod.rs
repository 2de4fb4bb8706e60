//! Settings of the daemon: the command line, overridden by the configuration file, checked.

mod check;
pub mod difference;
pub mod dpdk;
pub mod encryption;
mod file;
mod identity;
pub mod ini;
pub mod keys;
pub mod manual;
pub mod options;
mod problems;
mod slips;
pub mod timeouts;
pub mod tunnel;
mod values;

use std::{
    ffi::OsString,
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use butterfly_datapath::{Timeouts, TunnelSpec};

use crate::{
    config::{
        check::check,
        dpdk::Dpdk,
        encryption::Encryption,
        file::{override_with, read_bounded},
        ini::Ini,
        options::Options,
        problems::Problems,
        tunnel::NicMtu,
    },
    log::Level,
};

/// The packet threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Their number.
    pub count: usize,
    /// Their cores. Those beyond the last are not pinned.
    pub cores: Vec<usize>,
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
        write!(f, "{} on core {}", self.count, cores.join(","))
    }
}

/// A configuration with nothing left to doubt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The VXLAN endpoint.
    pub ip: IpAddr,
    /// Folder of the sockets: absolute, without symbolic links.
    pub socket_dir: PathBuf,
    /// Folder of what outlasts the daemon; without one, nothing does.
    pub state_dir: Option<PathBuf>,
    /// Name that tells it from other daemons of the host, if that is not its API's address.
    pub name: Option<String>,
    /// Endpoints of the API.
    pub endpoints: Vec<String>,
    /// Address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Encryption of the API; without it, every client that reaches the API commands the switch.
    pub encryption: Option<Encryption>,
    /// Least severity of logged events.
    pub log_level: Level,
    /// The packet threads.
    pub workers: Workers,
    /// True if the workers never sleep.
    pub poll: bool,
    /// Seconds a learnt address lives without traffic.
    pub fdb_ageing: u32,
    /// Sessions the table can hold.
    pub sessions: u32,
    /// Percent of the table that one vnic or network may take.
    pub session_share: u32,
    /// New sessions that a vnic may open per second.
    pub session_rate: u32,
    /// Seconds in which TCP connections are picked up in their middle.
    pub tcp_pickup: u32,
    /// Times after which silent sessions end.
    pub timeouts: Timeouts,
    /// The way to other hosts; without one, networks end at this host.
    pub tunnel: Option<TunnelSpec>,
    /// The MTU that the uplink should have.
    pub nic_mtu: Option<NicMtu>,
    /// Result of reading the arguments for DPDK.
    pub dpdk: Dpdk,
    /// Settings that were accepted and have no effect, or not quite the written one: for the log.
    pub notices: Vec<String>,
    /// Machines are offered no checksum and segmentation offloads.
    pub no_offload: bool,
    /// True if packets are recorded unless a vnic says otherwise, and the uplink's with them.
    pub packet_trace: bool,
    /// True if the log also goes to syslog.
    pub syslog: bool,
}

/// Everything that is wrong with a configuration, a line each.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError(Vec<String>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads the file `options` name, if any, and checks all.
    pub fn load(mut options: Options) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        if let Some(path) = options.config.take() {
            let unreadable = |reason: String| {
                ConfigError(vec![
                    "Failed to open configuration file".into(),
                    format!("{}: {reason}", path.display()),
                ])
            };
            let text = read_bounded(&path).map_err(|error| unreadable(error.to_string()))?;
            let mut ini = Ini::parse(&text).map_err(|error| unreadable(error.to_string()))?;
            override_with(&mut options, &mut ini, &mut problems);
        }
        match check(options, &mut problems) {
            Some(config) if problems.found.is_empty() => Ok(config),
            _ => Err(ConfigError(problems.found)),
        }
    }
}

/// Returns directories that may be the state directory, of a configuration that is wrong: by the
/// words of the command line, by a line of the file, and by the service manager.
pub fn possible_state_dirs(words: &[OsString]) -> Vec<PathBuf> {
    let value = |names: [&str; 2]| {
        let mut pairs = words.iter().zip(words.iter().skip(1));
        let apart = pairs.find(|(name, _)| names.iter().any(|it| name == it));
        let joined = words.iter().filter_map(|word| word.to_str()?.split_once('='));
        let mut joined = joined.filter(|(name, _)| names.contains(name));
        let apart = apart.map(|(_, value)| PathBuf::from(value));
        apart.or_else(|| joined.next().map(|(_, value)| PathBuf::from(value)))
    };
    let text = value(["-c", "--config"]).and_then(|path| read_bounded(&path).ok());
    let lines = text.iter().flat_map(|text| text.lines());
    let in_file = lines.filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "state-dir").then(|| PathBuf::from(value.trim()))
    });
    let by_service = std::env::var_os("STATE_DIRECTORY").unwrap_or_default();
    let by_service = std::env::split_paths(&by_service).filter(|it| it.is_absolute());
    let mut all: Vec<PathBuf> = value(["--state-dir", "--state-dir"]).into_iter().collect();
    for directory in in_file.chain(by_service) {
        if !all.contains(&directory) {
            all.push(directory);
        }
    }
    all
}

#[cfg(test)]
mod tests;

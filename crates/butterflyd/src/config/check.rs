//! The check: options become a configuration, or problems.

use std::net::IpAddr;

use butterfly_datapath::{MAX_WORKERS, Timeouts, TunnelSpec};

use crate::config::{
    Config, Workers,
    dpdk::{self, Dpdk},
    encryption,
    options::Options,
    problems::Problems,
    timeouts::{self, Timeout},
    tunnel,
    values::{
        api_endpoints, core, cores, directory, level, metrics, name, number, seconds, state_dir,
    },
};

/// Time that IEEE 802.1Q recommends for learnt addresses.
const DEFAULT_FDB_AGEING: u32 = 300;
const DEFAULT_SESSIONS: u32 = 1_000_000;
/// Two gibibytes of them.
const MAX_SESSIONS: u32 = 1 << 24;
/// Percent.
const DEFAULT_SESSION_SHARE: u32 = 25;
const DEFAULT_SESSION_RATE: u32 = 200_000;
const SESSION_RATES: (u32, u32) = (1, 100_000_000);
/// Seconds.
const DEFAULT_TCP_PICKUP: u32 = 120;
/// Seconds. Longer than anything waits on purpose.
const MAX_TIMEOUT: u32 = 365 * 24 * 3600;

/// Makes a configuration of options. Without one, `problems` says why.
pub(super) fn check(mut options: Options, problems: &mut Problems) -> Option<Config> {
    missing(&options, problems);
    let dpdk = device(&mut options, problems);
    let endpoints = problems.sort_out(api_endpoints(&options.endpoints));
    let endpoint = options.ip.as_deref().and_then(|text| problems.sort_out(tunnel::endpoint(text)));
    let tunnel = endpoint.and_then(|(ip, prefix)| other_hosts(&mut options, ip, prefix, problems));
    let nic_mtu = options.nic_mtu.as_deref().map(|text| {
        let (mtu, notice) = problems.sort_out(tunnel::nic_mtu(text))?;
        notice.into_iter().for_each(|notice| problems.notice(notice));
        Some(mtu)
    });
    let socket_dir =
        options.socket_dir.as_deref().and_then(|path| problems.sort_out(directory(path)));
    let state_dir = options.state_dir.as_deref().map(|path| problems.sort_out(state_dir(path)));
    let name = options.name.as_deref().map(|text| problems.sort_out(name(text)));
    let metrics = problems.sort_out(metrics(options.metrics.as_deref().unwrap_or_default()));
    let encryption =
        problems.sort_out(encryption::load(options.key.as_deref(), !options.no_legacy_encryption));
    let log_level = problems.sort_out(level(options.log_level.as_deref().unwrap_or("error")));
    let workers = workers(&options, problems);
    let fdb_ageing = match &options.fdb_ageing {
        None => Some(DEFAULT_FDB_AGEING),
        Some(text) => problems.sort_out(seconds(text)),
    };
    let mut number = |name, text: &Option<String>, default, (least, most)| match text {
        None => Some(default),
        Some(text) => problems.sort_out(number(name, text, least, most)),
    };
    let sessions = number("sessions", &options.sessions, DEFAULT_SESSIONS, (64, MAX_SESSIONS));
    let session_share =
        number("session-share", &options.session_share, DEFAULT_SESSION_SHARE, (1, 100));
    let session_rate =
        number("session-rate", &options.session_rate, DEFAULT_SESSION_RATE, SESSION_RATES);
    let tcp_pickup =
        number("tcp-pickup", &options.tcp_pickup, DEFAULT_TCP_PICKUP, (0, MAX_TIMEOUT));
    let mut timeouts = Timeouts::default();
    for text in &options.timeouts {
        problems.sort_out(set_timeout(&mut timeouts, text));
    }
    Some(Config {
        ip: endpoint?.0,
        socket_dir: socket_dir?,
        state_dir: state_dir.map_or(Some(None), |dir| dir.map(Some))?,
        name: name.map_or(Some(None), |name| name.map(Some))?,
        endpoints: endpoints?,
        metrics: metrics?,
        encryption: encryption?,
        log_level: log_level?,
        workers: workers?,
        poll: options.poll,
        fdb_ageing: fdb_ageing?,
        sessions: sessions?,
        session_share: session_share?,
        session_rate: session_rate?,
        tcp_pickup: tcp_pickup?,
        timeouts,
        tunnel: tunnel?,
        nic_mtu: match nic_mtu {
            Some(mtu) => Some(mtu?),
            None => None,
        },
        dpdk: dpdk?,
        notices: std::mem::take(&mut problems.notices),
        no_offload: options.no_offload,
        packet_trace: options.packet_trace,
        syslog: !options.no_syslog,
    })
}

/// Returns how many workers there are, and their cores.
fn workers(options: &Options, problems: &mut Problems) -> Option<Workers> {
    let first = options.graph_cpu_core.as_deref();
    let core = problems.sort_out(core(first.unwrap_or("0")))?;
    let cores = match &options.worker_cores {
        None => vec![core],
        Some(text) => {
            let cores = problems.sort_out(cores(text))?;
            if first.is_some() && cores.first() != Some(&core) {
                problems.notice(format!(
                    "graph-core-id={core} has no effect beside worker-cores={text}: remove it"
                ));
            }
            cores
        }
    };
    let most = MAX_WORKERS as u32;
    let count = match &options.workers {
        None => cores.len(),
        Some(text) => problems.sort_out(number("workers", text, 1, most))? as usize,
    };
    if options.worker_cores.is_some() && cores.len() > count {
        problems.notice(format!(
            "worker-cores names {} cores for workers={count}: the last ones have no worker",
            cores.len()
        ));
    }
    Some(Workers { count, cores })
}

/// Refuses options without an address and a folder.
fn missing(options: &Options, problems: &mut Problems) {
    if options.ip.is_none() {
        problems.add("IP to use is not set");
    }
    if options.socket_dir.is_none() {
        problems.add("socket folder is not set");
    }
    if options.ip.is_none() || options.socket_dir.is_none() {
        problems.add(
            "give -i and -s, or ip and socket-dir in the configuration file; see butterflyd --help",
        );
    }
}

/// Reads the arguments for DPDK, and lets the uplink be the device that they name.
fn device(options: &mut Options, problems: &mut Problems) -> Option<Dpdk> {
    match dpdk::read(options.dpdk_args.as_deref(), options.dpdk_port.as_deref()) {
        Ok(dpdk) => {
            match dpdk.device.as_ref().map(|device| dpdk::serve(device, &mut options.uplink)) {
                Some(Err(problem)) => problems.sort_out(Err(problem)),
                Some(Ok(()))
                    if dpdk.device.as_ref().is_some_and(|device| device.interface.is_none()) =>
                {
                    without_mtu(options, problems);
                    Some(dpdk)
                }
                _ => Some(dpdk),
            }
        }
        Err(found) => {
            problems.found.extend(found);
            None
        }
    }
}

/// Reads the way to other hosts, if this address is one that they can send to.
fn other_hosts(
    options: &mut Options,
    ip: IpAddr,
    prefix: Option<u8>,
    problems: &mut Problems,
) -> Option<Option<TunnelSpec>> {
    if tunnel::ends_here(options, ip) {
        problems
            .notice(format!("ip {ip} is none that other hosts can send to: networks end at this one, as with --uplink none"));
        options.uplink = Some("none".to_owned());
        without_mtu(options, problems);
    }
    let tunnel = tunnel::tunnel(options, ip, prefix);
    tunnel.map_err(|found| problems.found.extend(found)).ok()
}

/// Without other hosts an MTU between them has no effect. Refused it is only where `--uplink none`
/// was asked for by that name.
fn without_mtu(options: &mut Options, problems: &mut Problems) {
    if let Some(mtu) = options.nic_mtu.take() {
        problems.notice(format!("nic-mtu {mtu} has no effect: there are no other hosts"));
    }
}

fn set_timeout(timeouts: &mut Timeouts, text: &str) -> Result<(), String> {
    let Some((name, seconds)) = text.split_once('=') else {
        return Err(format!(
            "timeout {text:?} is refused: write NAME=SECONDS, as in tcp-established=86400"
        ));
    };
    let Some(timeout) = Timeout::called(name) else {
        let names: Vec<_> = timeouts::ALL.iter().map(|timeout| timeout.name).collect();
        return Err(format!("timeout {name:?} is refused: there are {}", names.join(", ")));
    };
    timeout.set(timeouts, number(&format!("timeout {name}"), seconds, 1, MAX_TIMEOUT)?);
    Ok(())
}

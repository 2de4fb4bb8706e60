//! The life of the daemon, from start to stop.

use crate::{
    config::{
        Config,
        dpdk::{Device, Dpdk},
    },
    events::{Events, Kind, Note, Origin, announce::Announcer},
    handlers::{Daemon, seconds_since_epoch},
    host::{
        limits, listen, mtu,
        notify::{self, Notify},
        signals::Stop,
        watchdog::{Turns, Watchdog, turn},
    },
    log, metrics,
    recorder::Recorder,
};
use butterfly_api::{
    Envelope,
    server::{CutClient, Server},
};
use butterfly_control::{Declaration, Desired, Refused, TunnelPeer, Unnamed};
use butterfly_datapath::{Switch, SwitchConfig, TunnelSpec, UplinkReport, UplinkSpec};
use butterfly_model::{SocketDir, libstdcxx_hash};
use std::{
    io::Write,
    net::IpAddr,
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::Path,
    sync::Arc,
    time::SystemTime,
};
use tracing::{error, info, warn};

/// Runs until a signal or a client stops it.
pub fn run(mut config: Config) -> Result<(), Box<dyn std::error::Error>> {
    let log_level = log::start(config.log_level, config.syslog);
    // Before any thread is there: a signal goes to any thread.
    let stop = Stop::on_signals()?;
    limits::raise_open_files();
    let mut server = Server::bind(&listen::resolved(&config.endpoints)?)?;
    server.at_most(limits::connections());
    let open_endpoint = open_endpoint(&server, config.encryption.is_some());
    told_of(&config.dpdk);
    config.notices.iter().for_each(|notice| warn!("{notice}"));
    let metrics = config.metrics.map(metrics::Server::bind).transpose()?;
    let events = Events::default();
    let told = events.clone();
    server.on_cut(move |cut| tell_of_cut(&told, cut));
    let (announcer, writer) = Announcer::start(std::io::stdout(), events.clone())?;
    if let (Some(tunnel), Some(wanted)) = (&mut config.tunnel, config.nic_mtu) {
        mtu::prepare(tunnel, wanted);
    }
    let named = config.tunnel.as_ref().map(|tunnel| tunnel.peers.clone()).unwrap_or_default();
    let switch = start_switch(&mut config, &announcer)?;
    tell_of_switch(&switch, &events);
    let recorder = start_recorder(&switch, config.packet_trace, &events)?;
    let started = tell_of_start(&server, &config.socket_dir, &events);

    let start_date = seconds_since_epoch(SystemTime::now());
    let desired = declared(&named)?;
    for peer in named {
        events.note(Note::new(
            Kind::PeerNamed,
            format!("peer {peer} is named for all networks by the configuration"),
        ));
    }

    let turns = Turns::default();
    let mut envelope = Envelope::new(Daemon {
        dataplane: switch.clone(),
        desired,
        socket_dir: SocketDir::new(config.socket_dir),
        ip: config.ip,
        announcer,
        events: events.clone(),
        origin: None,
        recorder,
        log_level,
        turns: turns.clone(),
        open_endpoint,
        start_date,
        quit: false,
    });
    if let Some(encryption) = config.encryption {
        envelope = envelope.encrypted(encryption.gate()?);
    }
    let notify = Notify::from_environment().map(Arc::new);
    let watchdog = watch(&mut server, notify.clone(), turns, &switch)?;
    let metrics = match metrics {
        Some(bound) => {
            info!("metrics on http://{}/metrics", bound.address());
            Some(bound.start(metrics::Source {
                switch,
                requests: envelope.requests(),
                start_date,
            })?)
        }
        None => {
            drop(switch);
            None
        }
    };
    if let Some(notify) = &notify {
        notify.insist(&format!("READY=1\nSTATUS={started}"));
    }
    let served = server.serve(&mut envelope, stop.as_fd(), |daemon| daemon.quit);

    info!("stopping");
    if let Some(notify) = &notify {
        notify.say("STOPPING=1\nSTATUS=stopping");
    }
    if !envelope.handler().quit {
        events.note(Note::new(Kind::DaemonStopping, "a signal asked the daemon to stop"));
    }
    // The client that asked to quit gets the reply while the rest is taken down.
    drop(server);
    // They hold the switch, too.
    drop(metrics);
    drop(watchdog);
    let mut daemon = envelope.into_handler();
    daemon.remove_all();
    // The switch holds the last announcer.
    drop(daemon);
    writer.finish();
    Ok(served?)
}

/// Returns the endpoint of the API that other hosts reach without a key, if there is one. Warns of
/// it, also on a terminal.
fn open_endpoint(server: &Server, has_key: bool) -> Option<String> {
    let open = server
        .endpoints()
        .iter()
        .find(|endpoint| !has_key && listen::is_beyond_this_host(endpoint))
        .cloned()?;
    let warning = format!(
        "the API on {open} has no key: whoever reaches it commands the switch; use a key (-k), or listen on 127.0.0.1 or a socket (-e)"
    );
    warn!("{warning}");
    // The level that holds unless another is asked for tells errors only.
    if !tracing::enabled!(tracing::Level::WARN) {
        let _ = writeln!(std::io::stderr(), "warning: {warning}");
    }
    Some(open)
}

/// Starts the switch, whose tunnel the configuration gives away.
fn start_switch(
    config: &mut Config,
    announcer: &Announcer,
) -> Result<Arc<Switch>, Box<dyn std::error::Error>> {
    // An operator who never heard of uplinks gets one all the same, as from the original.
    let hint = match config.tunnel {
        Some(TunnelSpec { uplink: UplinkSpec::Tap { name: None }, .. }) => {
            "; a TAP device needs root, and where networks end at this host --uplink none does without one"
        }
        _ => "",
    };
    let switch_config = SwitchConfig {
        core: Some(config.core),
        poll: config.poll,
        fdb_ageing: config.fdb_ageing,
        sessions: config.sessions,
        session_file: Some(session_file(
            config.name.as_deref(),
            &config.endpoints,
            &config.socket_dir,
        )),
        tcp_pickup: config.tcp_pickup,
        session_share: config.session_share,
        timeouts: config.timeouts,
        no_offload: config.no_offload,
        tunnel: config.tunnel.take(),
    };
    let switch = Switch::start(switch_config, Arc::new(announcer.clone()))
        .map_err(|error| format!("{error}{hint}"))?;
    Ok(Arc::new(switch))
}

/// Says which room for sessions there is, which tables of others were found, and what the uplink
/// is.
fn tell_of_switch(switch: &Switch, events: &Events) {
    let table = switch.session_table();
    info!("room for {} sessions, in {}", table.capacity, table.memory);
    for former in switch.former_tables() {
        warn!("{former}");
    }
    match switch.uplink() {
        Some(uplink) => {
            let UplinkReport { kind, interface, mode, mtu, inner_mtu, .. } = uplink;
            let text = format!(
                "uplink {kind} {interface}: {mode}, MTU {mtu}, host_mtu={inner_mtu} for QEMU"
            );
            info!("{text}");
            if let Some(text) = mtu::too_small(mtu, inner_mtu) {
                warn!("{text}");
            }
            // One that has to be attached says so itself.
            if uplink.attached.is_none() {
                events.note(Note::new(Kind::UplinkUp, text));
            }
        }
        None => info!("no uplink: networks end at this host"),
    }
}

/// Starts the recorder, for the uplink and all vnics if packets are to be recorded.
fn start_recorder(
    switch: &Switch,
    packet_trace: bool,
    events: &Events,
) -> Result<Recorder, Box<dyn std::error::Error>> {
    let mut recorder = Recorder::start(switch.taps())?;
    if packet_trace && let Err(failure) = recorder.record_all() {
        let text = format!(
            "the uplink's packets are not recorded: {}",
            failure.description.unwrap_or_default()
        );
        error!("{text}");
        events.note(Note::new(Kind::NotRecorded, text));
    }
    Ok(recorder)
}

/// Says that the daemon has started, and where. Returns the words.
fn tell_of_start(server: &Server, socket_dir: &Path, events: &Events) -> String {
    let started = format!(
        "started: API on {}, sockets in {}",
        server.endpoints().join(", "),
        socket_dir.display()
    );
    info!("{started}");
    events.note(Note::new(
        Kind::DaemonStarted,
        format!("butterflyd {} {started}", env!("CARGO_PKG_VERSION")),
    ));
    started
}

/// Starts the watchdog, if systemd wants signs of life.
fn watch(
    server: &mut Server,
    notify: Option<Arc<Notify>>,
    turns: Turns,
    switch: &Arc<Switch>,
) -> Result<Option<Watchdog>, Box<dyn std::error::Error>> {
    let Some((notify, interval)) = notify.zip(notify::watchdog()) else { return Ok(None) };
    let (api, switch) = (turns.clone(), switch.clone());
    server.at_each_turn(turn(interval), move || api.taken());
    Ok(Some(Watchdog::start(notify, interval, turns, move |patience| {
        switch.workers_answer(patience)
    })?))
}

/// The state that the configuration declares: these peers, for all networks.
fn declared(peers: &[IpAddr]) -> Result<Desired, Refused> {
    let peers = peers.iter().map(|peer| TunnelPeer::new(*peer, None)).collect::<Result<_, _>>()?;
    Desired::default().with(Declaration { peers, ..Declaration::default() }, Unnamed::Stay)
}

/// Says which client was cut, and why.
fn tell_of_cut(events: &Events, cut: &CutClient) {
    let kind = if cut.of_handshake { Kind::ClientRefused } else { Kind::ClientCut };
    let origin = Some(Origin { request: None, caller: Some(cut.caller) });
    if events.note(Note { origin, ..Note::new(kind, cut.text.clone()) }) {
        warn!(EVENT = kind.name(), "{}", cut.text);
    }
}

/// Says what became of arguments for DPDK.
fn told_of(dpdk: &Dpdk) {
    match &dpdk.device {
        Some(Device { name, interface: Some(interface) }) => info!(
            "dpdk-args: {name} is served by the uplink on {interface}, as --uplink {interface} would be, by AF_XDP and not by DPDK"
        ),
        Some(Device { name, interface: None }) => {
            info!(
                "dpdk-args: {name} leads to no other host: networks end at this one, as with --uplink none"
            );
        }
        None => {}
    }
    if !dpdk.without_effect.is_empty() {
        info!("dpdk-args: without effect here: {}", dpdk.without_effect.join(", "));
    }
}

/// Returns the name of the file with the daemon's sessions: the same at each of its starts.
///
/// A daemon without a name is identified by the first address of its API. Network namespaces may
/// have the same addresses, so its socket folder is part of the name, too.
fn session_file(name: Option<&str>, endpoints: &[String], socket_dir: &Path) -> String {
    let identity = match name {
        Some(name) => name.as_bytes().to_vec(),
        None => [
            endpoints.first().map_or("", |first| first).as_bytes(),
            socket_dir.as_os_str().as_bytes(),
        ]
        .join(&0),
    };
    format!("butterfly-{:016x}", libstdcxx_hash(&identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_known_by_its_name_or_by_its_address_in_its_folder() {
        let at = |name, endpoint: &str, folder: &str| {
            session_file(name, &[endpoint.to_owned()], Path::new(folder))
        };
        assert_eq!(at(Some("one"), "tcp://a", "/x"), at(Some("one"), "tcp://b", "/y"));
        let all = [
            at(Some("one"), "tcp://a", "/x"),
            at(Some("two"), "tcp://a", "/x"),
            at(None, "tcp://a", "/x"),
            at(None, "tcp://b", "/x"),
            at(None, "tcp://a", "/y"),
        ];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
    }
}

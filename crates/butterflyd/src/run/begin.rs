//! The start: everything made, in an order in which what fails leaves all as it was, and machines
//! that wait for this process wait as short as possible.

use super::{
    Running,
    held::{CHECKPOINT, First, resume, stood_still, take_lease},
    listening::Listening,
    tell::{tell_of_cut, tell_of_start, tell_of_switch, told_of},
    uplink::wait_for_uplink,
    writer::start_writer,
};
use crate::{
    checkpoint::{Checkpoint, Kept, Life, Writing},
    config::{Config, options::Options},
    events::{Events, Kind, Note, announce::Announcer},
    handlers::{Daemon, Reload},
    holding::{Holding, Service},
    host::{
        limits, mtu,
        notify::{self, Notify},
        signals::{Calls, Stop},
        time::seconds_since_epoch,
        watchdog::{Turns, Watchdog, turn},
    },
    log, metrics,
    poison::{Degraded, Poison},
    recorder::Recorder,
    upgrade::{
        Upgrade,
        passage::{self, Came, Guard},
    },
};
use butterfly_api::{Envelope, Requests, server::Server};
use butterfly_control::{Declaration, Desired, Refused, TunnelPeer, Unnamed};
use butterfly_datapath::{Hold, Switch, SwitchConfig, TunnelSpec, UplinkSpec};
use butterfly_model::SocketDir;
use std::{
    net::IpAddr,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tracing::{error, info, warn};

/// Longest wait for the store at the start. A daemon before this one may be about to end that has
/// it.
const STORE_PATIENCE: Duration = Duration::from_secs(5);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

impl Running {
    /// Makes everything. `came`: how this process came to be; `guard` hears when it is ready.
    pub(super) fn begin(
        mut config: Config,
        options: Options,
        came: &Came,
        guard: &Guard,
    ) -> Outcome<Running> {
        let log_level = log::start(config.log_level, config.syslog);
        // Before any thread is there: a signal goes to any thread.
        let stop = Stop::on_signals()?;
        let (calls, called) = Calls::start()?;
        limits::raise_open_files();
        told_of(&config.dpdk);
        config.notices.iter().for_each(|notice| warn!("{notice}"));
        let events = Events::default();
        let mut lease = config.state_dir.as_deref().map(take_lease).transpose()?;
        let leased = Instant::now();
        passage::rehearse(came, "lease")?;
        // Dropped after all that fails.
        let mut first = lease.as_ref().map(|(holding, _)| First::of(holding));
        let held = lease.as_mut().map(|(holding, _)| holding);
        let mut listening = Listening::begin(&config, held, &events)?;
        let server = &mut listening.server;
        server.at_most(limits::connections());
        server.on_call(called);
        let told = events.clone();
        server.on_cut(move |cut| tell_of_cut(&told, cut));
        // What is not served is to be by the next SIGHUP.
        config.metrics = config.metrics.filter(|_| listening.metrics.is_some());
        let reload = Reload::new(options, config.clone());
        let (announcer, writer) = Announcer::start(std::io::stdout(), events.clone())?;
        if let (Some(tunnel), Some(wanted)) = (&mut config.tunnel, config.nic_mtu) {
            mtu::prepare(tunnel, wanted);
        }
        let named = config.tunnel.as_ref().map(|it| it.peers.clone()).unwrap_or_default();
        let poison = match &mut lease {
            Some((holding, _)) => {
                let guard = guard.clone();
                Some(Poison::take_up(holding, move || guard.may_go_back())?)
            }
            None => None,
        };
        let order = poison.as_ref().map(Poison::order).unwrap_or_default();
        let end = poison.as_ref().map(Poison::end_note);
        let hold = lease.as_mut().map(|(holding, former)| holding.hold(std::mem::take(former)));
        let goes_on = lease.as_ref().is_some_and(|(holding, _)| holding.term > 1);
        let switch = prepare_switch(&mut config, hold, goes_on, &announcer, poison.as_ref())?;
        if goes_on {
            // What fails until this serves takes no vnic down.
            guard.keep(switch.clone());
        }
        tell_of_switch(&switch, &events);
        let recorder = start_recorder(&switch, config.packet_trace, &events)?;
        let started = tell_of_start(&listening.server, &config.socket_dir, &events);

        let start_date = seconds_since_epoch(SystemTime::now());
        let desired = declared(&named)?;
        let configured = desired.clone();
        for peer in named {
            events.note(Note::new(
                Kind::PeerNamed,
                format!("peer {peer} is named for all networks by the configuration"),
            ));
        }
        let turns = Turns::default();
        let daemon = Daemon {
            dataplane: switch.clone(),
            desired,
            socket_dir: SocketDir::new(config.socket_dir),
            ip: config.ip,
            announcer,
            events: events.clone(),
            origin: None,
            recorder,
            log_level,
            reload,
            upgrade: Upgrade::new(calls.clone(), came, switch.session_file()),
            turns: turns.clone(),
            open_endpoint: listening.open_endpoint.take(),
            start_date,
            kept: None,
            keeper: None,
            quit: false,
            holding: None,
            service: None,
            poison: poison.clone(),
            degraded: None,
            missing_wires: Default::default(),
            condition: metrics::Condition::new(listening.missing.clone()),
        };
        let mut envelope = Envelope::new(daemon);
        let requests = envelope.requests();
        let daemon = envelope.handler_mut();
        let mut life = Life::begin();
        let mut directory = config.state_dir.take();
        if let Some((mut holding, _)) = lease {
            let resumes = holding.term > 1;
            let mut resumed = None;
            if resumes {
                let (former, text) =
                    resume(daemon, &mut holding, came, &switch, &events, &requests, order);
                (life, resumed) = (former, Some(text));
            }
            daemon.service = Some(Service {
                start_date: life.started / 1000,
                restarts: life.restarts,
                resumed,
                stood_still: stood_still(came, holding.gap + leased.elapsed()),
                may_come_again: switch.may_come_again(),
            });
            daemon.holding = Some(holding);
            if let Some(directory) = directory.take_if(|_| order.degraded) {
                let degraded = Degraded::new(directory, configured.clone(), start_writer)?;
                error!("degraded: {}", degraded.why());
                events.note(Note::new(Kind::DaemonDegraded, degraded.why()));
                daemon.degraded = Some(degraded);
            }
            if let Some(poison) = &poison {
                let vni = |id: &str| Some(daemon.desired.vnics().get(id)?.vni.number());
                poison.tell(&events, vni);
            }
            // Declared first, then it goes; but machines that are held wait for no disk.
            if let Some(directory) = directory.take_if(|_| !resumes) {
                let store = start_writer(&directory)?;
                daemon.keep(store, directory, configured.clone(), STORE_PATIENCE);
                switch.all_declared();
            }
        }
        switch.go()?;
        passage::rehearse(came, "going")?;
        let mut writing = None;
        if let Some(holding) = &daemon.holding {
            // From here on a failure is a death, and no fall-back: the next process goes on.
            guard.ready();
            daemon.condition.look_at(holding.lease().clone());
            holding.lease().ready()?;
            first.iter_mut().for_each(First::ready);
            let (kept, thread) = keep(holding, life, &switch, &events, requests)?;
            listening.keep(holding);
            (daemon.kept, writing) = (Some(kept), Some(thread));
        }
        let releasing = poison
            .as_ref()
            .map(|poison| poison.start(switch.clone(), events.clone()))
            .transpose()?;
        if let Some(directory) = directory {
            daemon.keep(start_writer(&directory)?, directory, configured, STORE_PATIENCE);
        }
        let (kept, service) = (daemon.kept.clone(), daemon.service.clone());
        if let Some(encryption) = config.encryption {
            envelope = envelope.encrypted(encryption.gate()?);
        }
        let notify = Notify::from_environment().map(Arc::new);
        let Listening { mut server, metrics, .. } = listening;
        let watchdog = watch(&mut server, notify.clone(), turns, &switch)?;
        if kept.is_some() {
            wait_for_uplink(&switch, &calls, came)?;
        }
        let condition = envelope.handler().condition.clone();
        let requests = envelope.requests();
        let source = metrics::Source { switch, requests, start_date, service, kept, condition };
        serve_metrics(&mut envelope.handler_mut().reload, metrics, source)?;
        poison.iter().for_each(|poison| poison.ready(order.degraded));
        if let Some(notify) = &notify {
            notify.insist(&format!("READY=1\nSTATUS={started}"));
        }
        passage::rehearse(came, "ready")?;
        guard.begun();
        Ok(Running {
            server,
            envelope,
            stop,
            events,
            writer,
            notify,
            watchdog,
            writing,
            releasing,
            end,
        })
    }
}

/// Has kept what a successor is to go on with.
fn keep(
    holding: &Holding,
    life: Life,
    switch: &Arc<Switch>,
    events: &Events,
    requests: Arc<Requests>,
) -> Outcome<(Kept, Writing)> {
    let checkpoint = Checkpoint::create()?;
    let kept = checkpoint.keep(life, switch.clone(), events.clone());
    kept.count(requests);
    kept.keep_all();
    holding.keep_file(CHECKPOINT, checkpoint.as_fd())?;
    if let Some(path) = switch.session_file() {
        holding.keep_until_the_end(&path)?;
    }
    let writing = kept.start()?;
    Ok((kept, writing))
}

/// Makes the switch, whose tunnel the configuration gives away. `goes_on`: where a process before
/// ended.
fn prepare_switch(
    config: &mut Config,
    hold: Option<Hold>,
    goes_on: bool,
    announcer: &Announcer,
    poison: Option<&Poison>,
) -> Result<Arc<Switch>, Box<dyn std::error::Error>> {
    // An operator who never heard of uplinks gets one all the same, as from the original.
    let hint = match config.tunnel {
        Some(TunnelSpec { uplink: UplinkSpec::Tap { name: None }, .. }) => {
            "; a TAP device needs root, and where networks end at this host --uplink none does without one"
        }
        _ => "",
    };
    let switch_config = SwitchConfig {
        workers: config.workers.count,
        cores: config.workers.cores.clone(),
        poll: config.poll,
        fdb_ageing: config.fdb_ageing,
        sessions: config.sessions,
        session_file: Some(config.session_file()),
        // Adopted sessions need their vnics again at once, which only a daemon that keeps what is
        // declared can give them.
        adopt: config.state_dir.is_some() && poison.is_none_or(|poison| !poison.order().set_aside),
        tcp_pickup: config.tcp_pickup,
        session_share: config.session_share,
        session_rate: config.session_rate,
        timeouts: config.timeouts,
        no_offload: config.no_offload,
        tunnel: config.tunnel.take(),
        // Machines that wait to go on wait for no interface.
        uplink_may_wait: goes_on,
        precautions: poison.map(Poison::precautions).unwrap_or_default(),
    };
    let switch = Switch::prepare(switch_config, hold, Arc::new(announcer.clone()))
        .map_err(|error| format!("{error}{hint}"))?;
    Ok(Arc::new(switch))
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

/// Serves metrics on what was bound, and has later ones served likewise.
fn serve_metrics(
    reload: &mut Reload,
    bound: Option<metrics::Bound>,
    source: metrics::Source,
) -> Result<(), metrics::MetricsError> {
    let server = match bound {
        Some(bound) => {
            info!("metrics on http://{}/metrics", bound.address());
            Some(bound.start(source.clone())?)
        }
        None => None,
    };
    let serve = move |address| metrics::Server::bind(address)?.start(source.clone());
    reload.with_metrics(server, Box::new(serve));
    Ok(())
}

/// The state that the configuration declares: these peers, for all networks.
fn declared(peers: &[IpAddr]) -> Result<Desired, Refused> {
    let peers = peers.iter().map(|peer| TunnelPeer::new(*peer, None)).collect::<Result<_, _>>()?;
    Desired::default().with(Declaration { peers, ..Declaration::default() }, Unnamed::Stay)
}

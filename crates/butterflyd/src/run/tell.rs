//! Words to the operator at the start.

use crate::{
    config::dpdk::{Device, Dpdk},
    events::{Events, Kind, Note, Origin},
    host::{listen, mtu},
};
use butterfly_api::server::{CutClient, Server};
use butterfly_datapath::{Switch, UplinkReport};
use std::{io::Write, path::Path};
use tracing::{error, info, warn};

/// Returns the endpoint of the API that other hosts reach without a key, if there is one. Warns of
/// it, also on a terminal.
pub(super) fn open_endpoint(server: &Server, has_key: bool) -> Option<String> {
    let open = server
        .wanted()
        .find(|endpoint| !has_key && listen::is_beyond_this_host(endpoint))?
        .to_owned();
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

/// Says which room for sessions there is, which tables of others were found, and what the uplink
/// is.
pub(super) fn tell_of_switch(switch: &Switch, events: &Events) {
    let table = switch.session_table();
    info!("room for {} sessions, in {}", table.capacity, table.memory);
    for former in switch.former_tables() {
        match former.adopted {
            Some(_) => info!("{former}"),
            None => warn!("{former}"),
        }
    }
    match (switch.uplink(), switch.missing_uplink()) {
        (Some(uplink), Some(why)) => {
            let text = format!(
                "the uplink {} cannot be opened, so nothing leaves this host until it can: {why}",
                uplink.interface
            );
            error!("{text}");
            events.note(Note::new(Kind::UplinkDown, text));
        }
        (Some(uplink), None) => {
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
        (None, _) => info!("no uplink: networks end at this host"),
    }
}

/// Says that the daemon has started, and where. Returns the words.
pub(super) fn tell_of_start(server: &Server, socket_dir: &Path, events: &Events) -> String {
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

/// Says which client was cut, and why.
pub(super) fn tell_of_cut(events: &Events, cut: &CutClient) {
    let kind = if cut.of_handshake { Kind::ClientRefused } else { Kind::ClientCut };
    let origin = Some(Origin { request: None, caller: Some(cut.caller) });
    if events.note(Note { origin, ..Note::new(kind, cut.text.clone()) }) {
        warn!(EVENT = kind.name(), "{}", cut.text);
    }
}

/// Says what became of arguments for DPDK.
pub(super) fn told_of(dpdk: &Dpdk) {
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

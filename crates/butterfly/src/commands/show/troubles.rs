//! Troubles of a host now, and where to look.

use super::Overview;
use crate::commands::drops::{last, lately};
use crate::commands::external::trouble as trouble_of;
use crate::commands::nic::{State, trouble};
use crate::commands::tunnels;
use crate::text::table::{counted, duration};
use butterfly_api::proto::drop_list_res::{Drop, Place};
use butterfly_api::proto::{
    AppHealthRes, DropListRes, External, NicShow, SessionTable, TunnelShow, UplinkShow,
};

/// Most lines of a kind; beyond that only their number is shown.
const NAMED: usize = 5;
/// Fill of the table of sessions above which it is reported, in percent.
const NEARLY_FULL: u64 = 90;

/// A line for each trouble, the gravest first: what concerns all vnics, then what keeps one from
/// working, then what keeps it from something.
pub fn troubles(found: &Overview) -> Vec<String> {
    let (broken, hindered): (Vec<&NicShow>, Vec<&NicShow>) = found
        .nics
        .iter()
        .filter(|nic| trouble(nic).is_some())
        .partition(|nic| State::of(nic) == State::Trouble);
    let (full, nearly_full) = of_sessions(&found.sessions);
    let changes = of_changes(&found.health);
    let uplink = found.uplink.iter().filter_map(of_uplink);
    let held = of_held_uplink(&found.health);
    changes
        .into_iter()
        .chain(uplink)
        .chain(held)
        .chain(some(of_externals(&found.externals), "`butterfly external list`"))
        .chain(full)
        .chain(some(of_nics(&broken), "`butterfly nic list --wide`"))
        .chain(some(of_peers(found.tunnels.as_ref()), "`butterfly tunnels`"))
        .chain(some(of_nics(&hindered), "`butterfly nic list --wide`"))
        .chain(nearly_full)
        .collect()
}

/// Returns a line for each place that dropped frames in the last minute which a user misses. Much
/// of it is no trouble: rules refuse what they are there to refuse.
pub fn dropped(found: &DropListRes) -> Vec<String> {
    let mut late = lately(found);
    late.sort_by_key(|(_, drop)| is_expected(drop));
    some(late.into_iter().map(of_drop).collect(), "`butterfly drops`")
}

/// True if a rule is there for the drop, or it comes of a VM that is off.
fn is_expected(drop: &Drop) -> bool {
    matches!(
        drop.reason(),
        "ingress-denied"
            | "egress-denied"
            | "not-attached"
            | "no-receiver"
            | "same-port"
            | "tcp-no-session"
            | "sctp-no-session"
            | "not-ours"
            | "unknown-vni"
    )
}

/// The first of them, and how many others there are, with the command that shows them.
fn some(mut lines: Vec<String>, command: &str) -> Vec<String> {
    let left = lines.len().saturating_sub(NAMED);
    lines.truncate(NAMED);
    if left > 0 {
        lines.push(format!("{left} more like these: {command}"));
    }
    lines
}

fn of_uplink(uplink: &UplinkShow) -> Option<String> {
    let name = uplink.interface();
    match (uplink.state.as_deref(), uplink.attached) {
        (Some("up") | None, Some(true) | None) => None,
        (Some(state), _) if state != "up" => {
            Some(format!("uplink {name}: {state}, nothing leaves this host: `butterfly uplink`"))
        }
        _ => Some(format!("uplink {name}: the other end of the socket is not there")),
    }
}

/// Returns reasons for which changes are refused, places where no client reaches the daemon, and a
/// failed upgrade.
fn of_changes(health: &AppHealthRes) -> Vec<String> {
    let refused = health.degraded.as_ref().or(health.store_trouble.as_ref());
    let refused = refused.map(|why| format!("changes are refused: {why}"));
    let aside = health.store_set_aside.as_ref();
    let aside = aside.map(|where_| format!("a damaged store was set aside: {where_}"));
    let failed = health.upgrade_failed.as_ref();
    let failed = failed.map(|why| format!("the last upgrade failed: {why}"));
    let missing = health
        .not_listening
        .iter()
        .map(|place| format!("not listened on: {place}: `butterfly events` tells why"));
    let gone = health.holder_gone().then(|| {
        "holder: gone: machines are cut off when the daemon ends: restart it when that is convenient"
            .to_owned()
    });
    refused.into_iter().chain(gone).chain(missing).chain(aside).chain(failed).collect()
}

/// The uplink, if its frames are not looked at.
fn of_held_uplink(health: &AppHealthRes) -> Option<String> {
    let why = health.uplink_held.as_ref()?;
    let left = duration(health.uplink_held_for_s());
    Some(format!("uplink: its frames are held for {left}, as {why}: `butterfly nic release --all`"))
}

fn of_nics(nics: &[&NicShow]) -> Vec<String> {
    nics.iter().filter_map(|nic| Some(format!("NIC {}: {}", nic.id(), trouble(nic)?))).collect()
}

/// Returns a line for each external by which nothing passes.
fn of_externals(externals: &[External]) -> Vec<String> {
    let told = |external: &External| {
        Some(format!("external {}: {}", external.id(), trouble_of(external)?))
    };
    externals.iter().filter_map(told).collect()
}

fn of_peers(tunnels: Option<&TunnelShow>) -> Vec<String> {
    let peers = tunnels.into_iter().flat_map(|show| &show.peers);
    peers
        .filter_map(|peer| Some(format!("peer {}: {}", peer.address(), tunnels::trouble(peer)?)))
        .collect()
}

/// The table of sessions, if it is full, and if it nearly is.
fn of_sessions(table: &SessionTable) -> (Option<String>, Option<String>) {
    let (used, capacity) = (u64::from(table.used()), u64::from(table.capacity()));
    let told = (capacity > 0 && used * 100 >= capacity * NEARLY_FULL).then(|| {
        format!("sessions: {used} of {capacity} are in use: `butterfly sessions`, `butterflyd --sessions`")
    });
    if used >= capacity { (told, None) } else { (None, told) }
}

fn of_drop((place, drop): (&Place, &Drop)) -> String {
    let (reason, frames) = (drop.reason(), counted(drop.count(), "frame"));
    format!(
        "{}: {reason}: {frames} so far, {}: `butterfly drops --explain {reason}`",
        name(place),
        last(drop)
    )
}

fn name(place: &Place) -> String {
    match (&place.nic_id, place.vni) {
        (Some(id), _) if id.starts_with("wire/") => id.clone(),
        (Some(id), _) => format!("NIC {id}"),
        (None, Some(vni)) => format!("network {vni}"),
        (None, None) => "uplink".into(),
    }
}

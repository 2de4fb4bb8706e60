//! What is wrong with a host now, and where to look.

use super::Overview;
use crate::drops::{last, lately};
use crate::nic::trouble;
use crate::table::counted;
use butterfly_api::proto::drop_list_res::Place;
use butterfly_api::proto::{DropListRes, SessionTable, UplinkShow};

/// NICs, and reasons of drops, that are named; of more only the number is told.
const NAMED: usize = 5;
/// The part of the table of sessions above which it is told, in percent.
const NEARLY_FULL: u64 = 90;

/// A line for each trouble, the gravest first.
pub fn troubles(found: &Overview) -> Vec<String> {
    let uplink = found.uplink.iter().filter_map(of_uplink);
    let nics =
        found.nics.iter().filter_map(|nic| Some(format!("NIC {}: {}", nic.id(), trouble(nic)?)));
    let (nics, drops) = (
        some(nics.collect(), "`butterfly nic list --wide`"),
        some(of_drops(&found.drops), "`butterfly drops`"),
    );
    uplink.chain(nics).chain(of_sessions(&found.sessions)).chain(drops).collect()
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

fn of_sessions(table: &SessionTable) -> Option<String> {
    let (used, capacity) = (u64::from(table.used()), u64::from(table.capacity()));
    let full = capacity > 0 && used * 100 >= capacity * NEARLY_FULL;
    full.then(|| format!("sessions: {used} of {capacity} are in use: `butterfly sessions`, `butterflyd --sessions`"))
}

fn of_drops(found: &DropListRes) -> Vec<String> {
    let told = lately(found).into_iter().map(|(place, drop)| {
        let (reason, frames) = (drop.reason(), counted(drop.count(), "frame"));
        format!(
            "{}: drops, {reason}: {frames} so far, {}: `butterfly drops --explain {reason}`",
            name(place),
            last(drop)
        )
    });
    told.collect()
}

fn name(place: &Place) -> String {
    match (&place.nic_id, place.vni) {
        (Some(id), _) => format!("NIC {id}"),
        (None, Some(vni)) => format!("network {vni}"),
        (None, None) => "uplink".into(),
    }
}

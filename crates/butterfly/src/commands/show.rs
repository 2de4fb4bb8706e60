//! `butterfly show`: the host on one screen, and what is wrong with it now.

mod externals;
mod shared;
mod troubles;

use crate::commands::drops;
use crate::commands::external;
use crate::commands::nic::{self, State};
use crate::commands::process::ask_health;
use crate::commands::tunnels::is_silent;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::json;
use crate::line::reader::Arguments;
use crate::text::json::seconds;
use crate::text::page::{field, title};
use crate::text::table::{counted, date, duration, safe};
use crate::tree::Node;
use butterfly_api::proto::{
    AppHealthRes, DropListRes, External, NicShow, Request, SessionTable, TunnelShow, TunnelShowReq,
    UplinkShow,
};
use clap::Command;
use protobuf::MessageField;
use serde_json::{Value, json};
use shared::{Shared, shared};
use std::collections::BTreeMap;
use std::fmt::Write;
use troubles::{dropped, troubles};

/// `show`.
pub fn node() -> Node {
    Node::run(
        Command::new("show")
            .about("Prints the host on one screen: version, uptime, uplink, tunnels, NICs by state, and what is wrong now.")
            .arg(json())
            .after_help("butterfly show"),
        show,
    )
}

/// The answers that the page is made of.
struct Overview {
    health: AppHealthRes,
    uplink: Option<UplinkShow>,
    tunnels: Option<TunnelShow>,
    sessions: SessionTable,
    drops: DropListRes,
    nics: Vec<NicShow>,
    externals: Vec<External>,
}

fn show(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let found = ask(session)?;
    match json {
        true => session.json(&object(&found)),
        false => session.print(page(&found)),
    }
}

fn ask(session: &mut Session) -> Result<Overview, Failure> {
    let health = ask_health(session)?;
    // A daemon that knows none is not asked: it may be an older one.
    let any = health.externals() > 0;
    let tunnels = TunnelShowReq::default();
    let mut answers = session
        .ask_all(vec![
            Request { uplink_show: Some(true), ..Request::default() },
            Request { tunnel_show: MessageField::some(tunnels), ..Request::default() },
            Request { session_table: Some(true), ..Request::default() },
        ])?
        .into_iter();
    let mut next = || answers.next().unwrap_or_default();
    Ok(Overview {
        health,
        uplink: next().uplink_show.into_option(),
        tunnels: next().tunnel_show.into_option(),
        sessions: next().session_table.unwrap_or_default(),
        drops: drops::ask(None, session)?,
        nics: nic::all(session)?,
        externals: if any { session.ask(external::all())?.external_list } else { Vec::new() },
    })
}

/// Returns how many vnics are in each state.
fn states(nics: &[NicShow]) -> BTreeMap<State, usize> {
    let mut states = BTreeMap::new();
    for nic in nics {
        *states.entry(State::of(nic)).or_default() += 1;
    }
    states
}

fn page(found: &Overview) -> String {
    let health = &found.health;
    let uptime = health.current_date().saturating_sub(health.start_date());
    let mut page = format!("butterflyd {}\n", safe(health.version()));
    field(
        &mut page,
        "running",
        &format!("{}, since {}", duration(uptime), date(health.start_date())),
    );
    if let Some(began) = health.service_start_date {
        field(&mut page, "service", &service(health, began));
    }
    if let Some(holder) = holder(health) {
        field(&mut page, "holder", &holder);
    }
    if let Some(upgrade) = upgrade(health) {
        field(&mut page, "upgrade", &upgrade);
    }
    if let Some(open) = &health.open_endpoint {
        field(
            &mut page,
            "API",
            &format!(
                "{open} has no key: whoever reaches it commands the switch (butterflyd -k, or -e)"
            ),
        );
    }
    if let Some(reloaded) = health.reload_date {
        field(&mut page, "configuration", &format!("read again {}", date(reloaded)));
    }
    if let Some(directory) = &health.state_dir {
        field(&mut page, "store", &store(health, directory));
    }
    if let Some(why) = &health.degraded {
        let left = duration(health.degraded_for_s());
        field(&mut page, "degraded", &format!("{}; it is opened in {left}", safe(why)));
    }
    field(&mut page, "uplink", &uplink(found.uplink.as_ref()));
    field(&mut page, "tunnels", &tunnels(found.tunnels.as_ref()));
    let by_state: Vec<String> = states(&found.nics)
        .iter()
        .map(|(state, count)| format!("{count} {}", state.name()))
        .collect();
    let by_state =
        if by_state.is_empty() { String::new() } else { format!(": {}", by_state.join(", ")) };
    field(&mut page, "NICs", &format!("{}{by_state}", found.nics.len()));
    field(&mut page, "security groups", &health.security_groups().to_string());
    if let Some(routed) = routed(health) {
        field(&mut page, "routers", &routed);
    }
    field(
        &mut page,
        "sessions",
        &format!("{} of {}", found.sessions.used(), found.sessions.capacity()),
    );
    let shared = shared(&found.nics);
    if !shared.is_empty() {
        field(&mut page, "shared addresses", &in_words(&shared));
    }
    externals::section(&mut page, &found.externals);
    section(&mut page, "wrong now", &troubles(found));
    section(&mut page, "dropped in the last minute", &dropped(&found.drops));
    page
}

/// Returns what is declared for routers; `None` if that is nothing.
fn routed(health: &AppHealthRes) -> Option<String> {
    let each = [
        (health.networks(), "network"),
        (health.routes(), "route"),
        (health.externals(), "external"),
        (health.nats(), "translation"),
    ];
    let others: Vec<String> = each
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| counted(count.into(), what))
        .collect();
    match (health.routers(), others.is_empty()) {
        (0, true) => None,
        (routers, true) => Some(routers.to_string()),
        (routers, false) => Some(format!("{routers}; {}", others.join(", "))),
    }
}

/// Returns the first few shared addresses, with their vnics.
fn in_words(shared: &[Shared]) -> String {
    const NAMED: usize = 3;
    let told =
        |one: &Shared| format!("{} ({} of VNI {})", one.address, one.nics.join(", "), one.vni);
    let mut words: Vec<String> = shared.iter().take(NAMED).map(told).collect();
    if shared.len() > NAMED {
        words.push(format!("{} more", shared.len() - NAMED));
    }
    words.join("; ")
}

fn section(page: &mut String, heading: &str, lines: &[String]) {
    title(page, heading);
    if lines.is_empty() {
        page.push_str("  nothing\n");
    }
    for line in lines {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "  {}", safe(line));
    }
}

fn uplink(uplink: Option<&UplinkShow>) -> String {
    let Some(uplink) = uplink else { return "none: networks end at this host".into() };
    let state = match (uplink.state.as_deref(), uplink.attached) {
        (Some(state), _) => state,
        (None, Some(false)) => "not attached",
        (None, _) => "attached",
    };
    format!("{} ({}), {state}, mtu {}", uplink.interface(), uplink.kind(), uplink.mtu())
}

fn tunnels(tunnels: Option<&TunnelShow>) -> String {
    let Some(show) = tunnels else { return "none".into() };
    let silent = show.peers.iter().filter(|peer| is_silent(peer)).count();
    let silent = match silent {
        0 => String::new(),
        silent => format!(" ({silent} silent though spoken to: `butterfly tunnels`)"),
    };
    format!(
        "{}, peers {}{silent}, networks {}",
        show.endpoint(),
        show.peers.len(),
        show.networks.len()
    )
}

/// The store of what is declared, in a line.
fn store(health: &AppHealthRes, directory: &str) -> String {
    let mut line = format!("{}, commit {}", safe(directory), health.store_commit());
    if let Some(layout) = health.store_layout {
        line.push_str(&format!(", layout {layout}"));
        if layout != health.newest_layout() {
            line.push_str("; the release before can go on, until `butterfly upgrade --commit`");
        }
    }
    if let Some(why) = health.store_trouble.as_ref().filter(|_| health.degraded.is_none()) {
        line.push_str(&format!("; changes are refused: {}", safe(why)));
    }
    if let Some(aside) = &health.store_set_aside {
        line.push_str(&format!("; a damaged one is set aside: {}", safe(aside)));
    }
    line
}

/// The service whose processes go on for each other.
fn service(health: &AppHealthRes, began: u64) -> String {
    let restarts = match health.restarts() {
        0 => return format!("since {}, not restarted", date(began)),
        1 => "restarted once".to_owned(),
        more => format!("restarted {more} times"),
    };
    let resumed = health.resumed.as_deref().unwrap_or("nothing was taken over");
    format!("since {}, {restarts}; {}", date(began), safe(resumed))
}

/// The process that keeps the connections of machines.
fn holder(health: &AppHealthRes) -> Option<String> {
    let began = health.holder_start_date?;
    let pid = health.holder_pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    // One of the first releases does not tell it.
    let version = health.holder_version.as_deref().unwrap_or("unknown");
    let differs = health.holder_version.is_some() && health.holder_version != health.version;
    let state = match (health.holder_gone(), differs) {
        (true, _) => ": gone",
        (false, true) => "; up to date after: systemctl reload butterfly-holder",
        (false, false) => "",
    };
    Some(format!("process {pid}, version {}, since {}{state}", safe(version), date(began)))
}

/// The upgrade that is under way, or why the last one failed.
fn upgrade(health: &AppHealthRes) -> Option<String> {
    let failed = health.upgrade_failed.as_ref().map(|why| format!("failed: {}", safe(why)));
    health.upgrade.as_ref().map(|step| safe(step)).or(failed)
}

fn object(found: &Overview) -> Value {
    let health = &found.health;
    let states: BTreeMap<&str, usize> =
        states(&found.nics).into_iter().map(|(state, count)| (state.name(), count)).collect();
    json!({
        "version": health.version,
        "start_date": seconds(health.start_date()),
        "start_date_s": health.start_date(),
        "uptime_s": health.current_date().saturating_sub(health.start_date()),
        "service": health.service_start_date.map(|began| json!({
            "start_date": seconds(began), "start_date_s": began, "restarts": health.restarts(),
            "resumed": health.resumed, "stood_still_ms": health.stood_still_ms,
        })),
        "holder": health.holder_start_date.map(|began| json!({
            "pid": health.holder_pid, "version": health.holder_version,
            "start_date": seconds(began), "start_date_s": began, "gone": health.holder_gone(),
        })),
        "upgrade": health.upgrade,
        "upgrade_failed": health.upgrade_failed,
        "open_endpoint": health.open_endpoint,
        "not_listening": health.not_listening,
        "reload_date": health.reload_date.map(seconds),
        "reload_date_s": health.reload_date,
        "store": health.state_dir.as_ref().map(|directory| json!({
            "directory": directory, "commit": health.store_commit(), "trouble": health.store_trouble,
            "set_aside": health.store_set_aside, "layout": health.store_layout,
            "newest_layout": health.newest_layout,
        })),
        "degraded": health.degraded,
        "degraded_for_s": health.degraded_for_s,
        "uplink_held": health.uplink_held,
        "uplink_held_for_s": health.uplink_held_for_s,
        "uplink": found.uplink.as_ref().map(|uplink| json!({
            "interface": uplink.interface(), "kind": uplink.kind(), "state": uplink.state, "attached": uplink.attached, "mtu": uplink.mtu(),
        })),
        "tunnels": found.tunnels.as_ref().map(|show| json!({
            "endpoint": show.endpoint(), "peers": show.peers.len(),
            "silent_peers": show.peers.iter().filter(|peer| is_silent(peer)).count(), "networks": show.networks.len(),
        })),
        "nics": found.nics.len(),
        "nics_by_state": states,
        "security_groups": health.security_groups(),
        "networks": health.networks,
        "routers": health.routers,
        "routes": health.routes,
        "translations": health.nats,
        "externals": externals::json(&found.externals),
        "sessions": { "used": found.sessions.used(), "capacity": found.sessions.capacity() },
        "shared_addresses": shared(&found.nics).iter().map(|one| json!({
            "vni": one.vni, "address": one.address, "nics": one.nics,
        })).collect::<Value>(),
        "troubles": troubles(found),
        "dropped_lately": dropped(&found.drops),
    })
}

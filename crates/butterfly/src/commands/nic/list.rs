//! `butterfly nic list`: ids for scripts, a table for people.

use crate::commands::drops;
use crate::commands::nic::show_json;
use crate::commands::sg::print_texts;
use crate::daemon::session::Session;
use crate::daemon::shown::shown;
use crate::failure::Failure;
use crate::line::options::{flag, json};
use crate::line::reader::Arguments;
use crate::text::table::{Align, duration, now, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{NicShow, Request, nic::Type};
use clap::Command;
use serde_json::{Value, json};
use std::collections::HashMap;

/// `nic list`.
pub fn node() -> Node {
    Node::run(
        Command::new("list")
            .about(
                "Prints the id of every virtual NIC, one per line; on a terminal, a table of them.",
            )
            .arg(
                flag("wide").help(
                    "the table, wherever it is printed; with --json, all that is known of each",
                ),
            )
            .arg(json())
            .after_help("butterfly nic list\nbutterfly nic list --wide | less -S"),
        list,
    )
    .of_the_original()
}

fn list(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let wide = arguments.has("wide");
    if !wide && (json || !session.is_terminal()) {
        return print_texts(ids(session)?, "nics", json, session);
    }
    let (nics, found) = (all(session)?, drops::ask(None, session)?);
    let mut dropped: HashMap<&str, Vec<&str>> = HashMap::new();
    for (place, drop) in drops::lately(&found) {
        dropped.entry(place.nic_id()).or_default().push(drop.reason());
    }
    let trouble = |nic: &NicShow| {
        let reasons = dropped
            .get(nic.id())
            .map(|reasons| format!("drops in the last minute: {}", reasons.join(", ")));
        let all: Vec<String> = trouble(nic).into_iter().chain(reasons).collect();
        (!all.is_empty()).then(|| all.join("; "))
    };
    let object = |nic: &NicShow| {
        let mut object = show_json::json(nic);
        object["trouble"] = trouble(nic).into();
        object
    };
    match json {
        true => session.json(&json!({ "nics": nics.iter().map(object).collect::<Value>() })),
        false => session.print(page(&nics, trouble, now())),
    }
}

fn ids(session: &mut Session) -> Result<Vec<String>, Failure> {
    Ok(session.ask(Request { nic_list: Some(true), ..Request::default() })?.nic_list)
}

/// Returns every vnic with its present state.
pub fn all(session: &mut Session) -> Result<Vec<NicShow>, Failure> {
    let ids = ids(session)?;
    shown(&ids, session)
}

/// State of a vnic, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Something keeps it from working.
    Trouble,
    /// No machine is there.
    Detached,
    Migrating,
    Attached,
}

impl State {
    pub fn of(nic: &NicShow) -> Self {
        match fault(nic) {
            Some(_) => Self::Trouble,
            None if nic.migrating() => Self::Migrating,
            None if nic.attached() => Self::Attached,
            None => Self::Detached,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Detached => "detached",
            Self::Migrating => "migrating",
            Self::Attached => "attached",
        }
    }
}

/// Returns the trouble with a vnic.
pub fn trouble(nic: &NicShow) -> Option<String> {
    let missing = (!nic.missing_group.is_empty())
        .then(|| format!("no such security group: {}", nic.missing_group.join(", ")));
    let unrecorded = || nic.packet_trace.trouble.as_ref().map(|why| format!("not recorded: {why}"));
    fault(nic).or(missing).or_else(unrecorded)
}

/// Returns why a vnic does not work at all.
fn fault(nic: &NicShow) -> Option<String> {
    let queues = nic.queues.iter().find_map(|queue| match (queue.broken(), &queue.trouble) {
        (true, _) => Some(format!("queue {} is broken", queue.name())),
        (false, Some(trouble)) => Some(format!("queue {}: {trouble}", queue.name())),
        (false, None) => None,
    });
    let waits = nic
        .waits_for
        .as_ref()
        .map(|owner| format!("waits for its MAC address, which nic {owner} has"));
    let held = nic.held.as_ref().map(|why| {
        let left = duration(nic.held_for_s());
        format!("its rings are held for {left}, as {why}: `butterfly nic release`")
    });
    held.or_else(|| nic.trouble.clone()).or(queues).or(waits)
}

/// The type as a word.
fn kind(nic: &NicShow) -> &'static str {
    match nic.type_.map(|kind| kind.enum_value()) {
        Some(Ok(Type::VHOST_USER_SERVER)) => "server",
        Some(Ok(Type::VHOST_USER_CLIENT)) => "client",
        Some(Ok(Type::TAP)) => "tap",
        Some(Ok(Type::BENCH)) => "bench",
        _ => "?",
    }
}

/// The table; `now` in seconds since 1970.
fn page(nics: &[NicShow], trouble: impl Fn(&NicShow) -> Option<String>, now: u64) -> String {
    let some = |values: &[String]| {
        if values.is_empty() { "-".to_owned() } else { safe(&values.join(",")) }
    };
    let row = |nic: &NicShow| {
        let groups = if nic.bypass_filtering() {
            "(unfiltered)".to_owned()
        } else {
            some(&nic.security_group)
        };
        let since = nic.attached_since.map(|since| duration(now.saturating_sub(since)));
        [
            safe(nic.id()),
            nic.vni().to_string(),
            safe(nic.mac()),
            some(&[&nic.ip[..], &nic.prefix].concat()),
            groups,
            kind(nic).to_owned(),
            State::of(nic).name().to_owned(),
            since.unwrap_or("-".into()),
            nic.in_packets().to_string(),
            nic.out_packets().to_string(),
            nic.drops
                .iter()
                .filter(|drop| !drop.harmless())
                .map(|drop| drop.count())
                .sum::<u64>()
                .to_string(),
            safe(&trouble(nic).unwrap_or_default()),
        ]
    };
    let heading = [
        ("id", Align::Left),
        ("vni", Align::Right),
        ("mac", Align::Left),
        ("addresses", Align::Left),
        ("groups", Align::Left),
        ("type", Align::Left),
        ("state", Align::Left),
        ("attached", Align::Left),
        ("in", Align::Right),
        ("out", Align::Right),
        ("drops", Align::Right),
        ("trouble", Align::Left),
    ];
    table(0, heading, &nics.iter().map(row).collect::<Vec<_>>())
}

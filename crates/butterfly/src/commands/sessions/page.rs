//! `butterfly sessions` for people.

use crate::commands::sg::rule_hash;
use crate::text::protocol;
use crate::text::table::{Align, duration, safe, table};
use butterfly_api::proto::{
    Session, SessionAdmission, SessionListRes, SessionTable, session::End, session_admission::Kind,
};
use std::fmt::Write;

const TCP: u32 = 6;
const UDP: u32 = 17;
const SCTP: u32 = 132;
const ICMP: u32 = 1;
const ICMPV6: u32 = 58;

/// Returns the fill of the table, then a line for each session.
pub fn sessions(state: &SessionTable, found: &SessionListRes) -> String {
    let mut page = fill(state);
    let shown = found.session.len() as u64;
    if shown < found.matching() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "{shown} of {} are shown: --limit N shows up to 10000, the options choose",
            found.matching()
        );
    }
    page.push('\n');
    let rows: Vec<_> = found.session.iter().map(row).collect();
    let heading = [
        ("network", Align::Left),
        ("proto", Align::Left),
        ("opener", Align::Left),
        ("responder", Align::Left),
        ("state", Align::Left),
        ("age", Align::Right),
        ("idle", Align::Right),
        ("packets", Align::Right),
        ("bytes", Align::Right),
        ("let out by", Align::Left),
        ("let in by", Align::Left),
    ];
    page.push_str(&table(0, heading, &rows));
    page
}

/// The time-outs and bounds in force.
pub fn time_outs(state: &SessionTable) -> String {
    let mut page = fill(state);
    let rows: Vec<_> = state
        .timeout
        .iter()
        .map(|timeout| {
            [safe(timeout.name()), timeout.seconds().to_string(), safe(timeout.description())]
        })
        .collect();
    let heading = [("time-out", Align::Left), ("seconds", Align::Right), ("of", Align::Left)];
    let pickup = match state.tcp_pickup() {
        0 => "TCP connections are never picked up in their middle".to_owned(),
        seconds => {
            format!(
                "TCP connections are picked up in their middle for {seconds} s after the daemon started or a machine attached"
            )
        }
    };
    // Writing to a string cannot fail.
    let share = state.share();
    let _ = match share {
        u32::MAX => writeln!(page, "one network may have all of them: shares are off"),
        _ => writeln!(
            page,
            "one network may have {share}, and one NIC may open half of that and receive as many"
        ),
    };
    let _ = writeln!(page, "{pickup}\n");
    page.push_str(&table(0, heading, &rows));
    page
}

fn fill(state: &SessionTable) -> String {
    format!(
        "sessions: {} of {} in use, in {}\n",
        state.used(),
        state.capacity(),
        safe(state.memory())
    )
}

/// A session's columns, as in the heading above.
pub fn row(session: &Session) -> [String; 11] {
    [
        match session.vlan {
            Some(vlan) => format!("{} vlan {vlan}", session.vni()),
            None => session.vni().to_string(),
        },
        protocol::name(session.protocol()),
        end(session, &session.opener, true),
        end(session, &session.responder, false),
        safe(session.state()),
        duration(session.age()),
        duration(session.idle()),
        // Of the opener and of the responder.
        format!("{}+{}", session.opener_packets(), session.responder_packets()),
        format!("{}+{}", session.opener_bytes(), session.responder_bytes()),
        admission(&session.egress),
        admission(&session.ingress),
    ]
}

fn end(session: &Session, end: &End, opener: bool) -> String {
    let place = |address: &str, port: u32| {
        let address = safe(address);
        match session.protocol() {
            TCP | UDP | SCTP if address.contains(':') => format!("[{address}]:{port}"),
            TCP | UDP | SCTP => format!("{address}:{port}"),
            ICMP | ICMPV6 if opener => format!("{address} id {port}"),
            _ => address,
        }
    };
    let own = place(end.address(), end.port());
    let own = match &end.nic_id {
        Some(id) => format!("{} {own}", safe(id)),
        None => own,
    };
    match end.outside.as_ref() {
        Some(outside) => format!("{own} ({} outside)", place(outside.address(), outside.port())),
        None => own,
    }
}

fn admission(admission: &SessionAdmission) -> String {
    match admission.kind.map(|kind| kind.enum_value()) {
        Some(Ok(Kind::BYPASS)) => "bypass".into(),
        Some(Ok(Kind::OTHER_HOST)) => "other host".into(),
        Some(Ok(Kind::DEFAULT_EGRESS)) => "default egress".into(),
        Some(Ok(Kind::RULE)) => {
            format!("{} {}", safe(admission.security_group()), rule_hash(&admission.rule))
        }
        Some(Ok(Kind::GONE)) => "gone".into(),
        Some(Err(number)) => number.to_string(),
        None => "unknown".into(),
    }
}

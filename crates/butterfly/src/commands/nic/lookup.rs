//! `butterfly nic del|list|details|stats`.

use crate::commands::nic::limits;
use crate::commands::nic::show::pings;
use crate::commands::nic::show_json;
use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, word};
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::{Nic, Request};
use clap::Command;
use serde_json::{Value, json};

/// `nic del`.
pub fn del() -> Node {
    Node::run(
        Command::new("del")
            .about("Deletes virtual NICs and cuts their virtual machines off. Unknown ones are no error.")
            .arg(word("NIC").num_args(1..).help("ids of the NICs"))
            .after_help("butterfly nic del vm-1 vm-2"),
        |arguments, session| {
            let ids = arguments.words_from(0);
            let absent = notes::absent_nics(ids, session);
            let requests = ids
                .iter()
                .map(|id| Request { nic_del: Some(id.clone()), ..Request::default() });
            session.ask_all(requests.collect())?;
            notes::of_absent_nics(&absent, session);
            Ok(())
        },
    )
    .of_the_original()
}

/// `nic details`.
pub fn details() -> Node {
    Node::run(
        Command::new("details")
            .about("Prints what was declared for a virtual NIC.")
            .arg(word("NIC").help("id of the NIC"))
            .arg(json())
            .after_help("butterfly nic details vm-1"),
        print_details,
    )
    .of_the_original()
}

/// `nic stats`.
pub fn stats() -> Node {
    Node::run(
        Command::new("stats")
            .about(
                "Prints the bytes received from (in) and delivered to (out) the virtual machine. Of a NIC of type BENCH, what it received \
                 (in) and sent (out), and how long pings took.",
            )
            .arg(word("NIC").help("id of the NIC"))
            .arg(json())
            .after_help("butterfly nic stats vm-1"),
        |arguments, session| {
            let json = session.wants_json(arguments);
            let id = arguments.word(0).unwrap_or_default();
            let request = Request { nic_stats: Some(id.to_owned()), ..Request::default() };
            let response = notes::ask_of_nic(id, request, session)?;
            match response.nic_stats.into_option() {
                Some(stats) if json => session.json(&json!({
                    "id": arguments.word(0),
                    "in_bytes": stats.in_(),
                    "out_bytes": stats.out(),
                    "pings": stats.pings.as_ref().map(show_json::pings),
                })),
                Some(stats) => {
                    session.line(format_args!("in: {}\nout: {}", stats.in_(), stats.out()))?;
                    let Some(counted) = stats.pings.as_ref() else { return Ok(()) };
                    let lines = ["requests", "replies", "min/mean/max"].into_iter().zip(pings(counted));
                    lines.into_iter().try_for_each(|(name, value)| session.line(format_args!("{name}: {value}")))
                }
                None => Err(Failure::said("no nic stats received")),
            }
        },
    ).of_the_original()
}

/// Asks for the declaration of the vnic `id`.
pub fn ask_details(id: &str, session: &mut Session) -> Result<Nic, Failure> {
    let response = notes::ask_of_nic(
        id,
        Request { nic_details: Some(id.to_owned()), ..Request::default() },
        session,
    )?;
    // An empty id asks for all; none of them is the one that was meant.
    let mut found = response.nic_details.into_iter().filter(|nic| nic.id() == id);
    found.next().ok_or_else(|| Failure::said("no nic details received"))
}

fn print_details(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let nic = ask_details(arguments.word(0).unwrap_or_default(), session)?;
    if json {
        return session.json(&details_json(&nic));
    }
    session.line(format_args!("id: {}", nic.id()))?;
    session.line(format_args!("mac: {}", nic.mac()))?;
    session.line(format_args!("vni: {}", nic.vni()))?;
    for ip in &nic.ip {
        session.line(format_args!("ip: {ip}"))?;
    }
    for prefix in &nic.prefix {
        session.line(format_args!("prefix: {prefix}"))?;
    }
    session.line(format_args!("antispoof: {}", nic.ip_anti_spoof()))?;
    if let Some(target) = &nic.sniff_target_nic_id {
        session.line(format_args!("sniff target: {target}"))?;
    }
    session.line(format_args!("bypass filtering: {}", nic.bypass_filtering()))?;
    for (on, name) in [
        (nic.forwards(), "forwards"),
        (nic.shared_ip(), "shared addresses"),
        (nic.router(), "router"),
    ] {
        if on {
            session.line(format_args!("{name}: true"))?;
        }
    }
    for (way, limit) in nic.limits.as_ref().map(limits::words).unwrap_or_default() {
        session.line(format_args!("limit {way}: {limit}"))?;
    }
    session.line(format_args!("packet trace: {}", nic.packet_trace()))
}

/// Returns the declaration, under the field names of the protocol.
fn details_json(nic: &Nic) -> Value {
    json!({
        "id": nic.id(),
        "mac": nic.mac(),
        "vni": nic.vni(),
        "ip": nic.ip,
        "prefix": nic.prefix,
        "security_group": nic.security_group,
        "ip_anti_spoof": nic.ip_anti_spoof(),
        "sniff_target_nic_id": nic.sniff_target_nic_id,
        "bypass_filtering": nic.bypass_filtering(),
        "forwards": nic.forwards(),
        "shared_ip": nic.shared_ip(),
        "router": nic.router(),
        "limits": limits::json_of(nic.limits.as_ref()),
        "type": nic.type_.map(show_json::kind),
        "path": nic.path,
        "netns": nic.netns,
        "packet_trace": nic.packet_trace(),
        "packet_trace_path": nic.packet_trace_path,
        "btype": nic.btype,
        "dip": nic.dip,
        "dmac": nic.dmac,
    })
}

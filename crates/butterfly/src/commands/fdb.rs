//! `butterfly fdb`: the vnic or the host behind which each MAC address is.

use crate::commands::tunnels::vni;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, word};
use crate::line::reader::Arguments;
use crate::text::table::{Align, duration, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{FdbEntry, FdbListReq, Request};
use clap::Command;
use protobuf::MessageField;
use serde_json::{Value, json};

/// `fdb`.
pub fn node() -> Node {
    Node::run(
        Command::new("fdb")
            .about("Prints the forwarding database: behind which NIC, or on which host, each MAC address is, of one network or of all.")
            .arg(word("VNI").required(false).help("the network"))
            .arg(json())
            .after_help("butterfly fdb 42"),
        print_fdb,
    )
}

fn print_fdb(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let vni = arguments.word(0).map(vni).transpose()?;
    let response = session.ask(Request {
        fdb_list: MessageField::some(FdbListReq { vni, ..FdbListReq::default() }),
        ..Request::default()
    })?;
    let entries = response.fdb_list;
    match json {
        true => {
            session.json(&json!({ "entries": entries.iter().map(entry_json).collect::<Value>() }))
        }
        false => session.print(page(&entries)),
    }
}

fn page(entries: &[FdbEntry]) -> String {
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| {
            [
                entry.vni().to_string(),
                safe(entry.mac()),
                safe(entry.nic_id()),
                safe(entry.peer()),
                kind(entry),
                entry.age.map_or("-".into(), duration),
            ]
        })
        .collect();
    let heading = [
        ("vni", Align::Right),
        ("mac", Align::Left),
        ("nic", Align::Left),
        ("peer", Align::Left),
        ("kind", Align::Left),
        ("last seen", Align::Right),
    ];
    table(0, heading, &rows)
}

fn kind(entry: &FdbEntry) -> String {
    match entry.kind.map(|kind| kind.enum_value()) {
        Some(Ok(kind)) => format!("{kind:?}").to_lowercase(),
        Some(Err(number)) => number.to_string(),
        None => "unknown".into(),
    }
}

fn entry_json(entry: &FdbEntry) -> Value {
    json!({
        "vni": entry.vni(),
        "mac": entry.mac(),
        "nic_id": entry.nic_id,
        "peer": entry.peer,
        "kind": kind(entry),
        "age_s": entry.age,
    })
}

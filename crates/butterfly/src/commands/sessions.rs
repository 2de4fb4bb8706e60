//! `butterfly sessions`: what the switch remembers of connections.

mod json;
mod page;

pub use json::admission as admission_json;
pub use page::row;

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, option, word};
use crate::line::reader::Arguments;
use crate::text::protocol;
use crate::tree::Node;
use butterfly_api::proto::{Request, SessionFilter, SessionListReq, SessionListRes, SessionTable};
use clap::Command;
use protobuf::MessageField;
use serde_json::json;

/// `sessions`.
pub fn node() -> Node {
    Node::run(
        Command::new("sessions")
            .about("Prints, counts or ends the sessions of filtered NICs: of one NIC or of all, filtered by the options.")
            .arg(word("NIC").required(false).help("id of the NIC at either end"))
            .arg(option("vni", "VNI").help("the network"))
            .arg(option("proto", "PROTO").help("tcp, udp, icmp, icmpv6, sctp, or a number from 0 to 255"))
            .arg(option("address", "IP").help("address of either end"))
            .arg(option("port", "PORT").help("port of either end"))
            .arg(option("limit", "N").help("print so many at most, up to 10000 (default: 1000)"))
            .arg(flag("count").help("print how many there are"))
            .arg(flag("flush").help("end them; their next frames are decided as if they were the first"))
            .arg(flag("timeouts").help("print the time-outs and bounds in force"))
            .arg(json())
            .after_help(
                "butterfly sessions vm-1\n\
                 butterfly sessions --vni 42 --proto tcp --port 443 --count\n\
                 butterfly sessions vm-1 --address 192.0.2.7 --flush",
            ),
        run,
    )
}

fn run(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let filter = filter(arguments)?;
    check_use(arguments)?;
    let wanted = ["count", "flush", "timeouts"].into_iter().filter(|name| arguments.has(name));
    match *wanted.collect::<Vec<_>>() {
        [] => list(filter, arguments, session, json),
        ["count"] => count(filter, session, json),
        ["flush"] => flush(filter, session, json),
        ["timeouts"] => time_outs(session, json),
        _ => Err(Failure::usage(
            "--count, --flush and --timeouts are three commands: give one of them",
        )),
    }
}

/// Fails for options that would do nothing.
fn check_use(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.has("limit")
        && ["count", "flush", "timeouts"].iter().any(|name| arguments.has(name))
    {
        return Err(Failure::usage(
            "--limit is for lists: --count and --flush mean every session that matches\nnothing was sent",
        ));
    }
    let filters = ["vni", "proto", "address", "port"].iter().any(|name| arguments.has(name))
        || arguments.word(0).is_some();
    if arguments.has("timeouts") && filters {
        return Err(Failure::usage(
            "--timeouts are those of the whole host: it goes with no NIC and no filter\nnothing was sent",
        ));
    }
    Ok(())
}

fn list(
    filter: SessionFilter,
    arguments: &Arguments,
    session: &mut Session,
    json: bool,
) -> Result<(), Failure> {
    let limit = arguments.parsed("limit", "a number")?;
    let (table, found) = ask(filter, limit, session)?;
    match json {
        true => session.json(&json::sessions(&table, &found)),
        false => session.print(page::sessions(&table, &found)),
    }
}

fn count(filter: SessionFilter, session: &mut Session, json: bool) -> Result<(), Failure> {
    let (_, found) = ask(filter, Some(0), session)?;
    match json {
        true => session.json(&json!({ "matching": found.matching() })),
        false => session.line(found.matching()),
    }
}

fn flush(filter: SessionFilter, session: &mut Session, json: bool) -> Result<(), Failure> {
    let response =
        session.ask(Request { session_flush: MessageField::some(filter), ..Request::default() })?;
    let Some(result) = response.session_flush.into_option() else {
        return Err(Failure::said("no result of the flush received"));
    };
    match json {
        true => session.json(&json!({ "flushed": result.flushed() })),
        false => session.line(format_args!("flushed: {}", result.flushed())),
    }
}

fn time_outs(session: &mut Session, json: bool) -> Result<(), Failure> {
    let response = session.ask(Request { session_table: Some(true), ..Request::default() })?;
    let table = table_of(response.session_table)?;
    match json {
        true => session.json(&json::table(&table)),
        false => session.print(page::time_outs(&table)),
    }
}

/// The table, and the sessions in it that are meant: at most `limit` of them.
fn ask(
    filter: SessionFilter,
    limit: Option<u32>,
    session: &mut Session,
) -> Result<(SessionTable, SessionListRes), Failure> {
    let list =
        SessionListReq { filter: MessageField::some(filter), limit, ..SessionListReq::default() };
    let requests = vec![
        Request { session_table: Some(true), ..Request::default() },
        Request { session_list: MessageField::some(list), ..Request::default() },
    ];
    let mut responses = session.ask_all(requests)?.into_iter();
    let table =
        table_of(responses.next().and_then(|mut response| response.session_table.take()).into())?;
    let found = responses.next().and_then(|mut response| response.session_list.take());
    Ok((table, found.ok_or_else(|| Failure::said("no sessions received"))?))
}

fn table_of(table: MessageField<SessionTable>) -> Result<SessionTable, Failure> {
    table.into_option().ok_or_else(|| Failure::said("no session table received"))
}

/// Which sessions are meant.
fn filter(arguments: &Arguments) -> Result<SessionFilter, Failure> {
    let address = arguments.value("address");
    if let Some(text) = address
        && butterfly_model::parse_ip(text).is_err()
    {
        return Err(Failure::not_recognized(
            "address",
            text,
            "an IP address like 192.0.2.1 or 2001:db8::1",
        ));
    }
    Ok(SessionFilter {
        nic_id: arguments.word(0).map(str::to_owned),
        vni: arguments.parsed("vni", "a number from 0 to 16777215")?,
        protocol: arguments.value("proto").map(protocol::parse).transpose()?,
        address: address.map(str::to_owned),
        port: arguments.parsed::<u16>("port", "a number from 0 to 65535")?.map(u32::from),
        ..SessionFilter::default()
    })
}

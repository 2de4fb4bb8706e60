//! `butterfly events`: what happened.

mod follow;
mod page;

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, option, word};
use crate::line::reader::Arguments;
use crate::line::slips::meant_name;
use crate::text::table::safe;
use crate::tree::Node;
use butterfly_api::proto::{EventListReq, EventListRes, Request, Response};
use clap::Command;
use page::Format;
use protobuf::MessageField;

/// Events printed without an option for their number.
const LAST: u32 = 100;
/// Past events printed before following, without an option for their number.
const LAST_BEFORE: u32 = 10;
/// Most events of one reply.
const MOST: u32 = 10_000;

/// `events`.
pub fn node() -> Node {
    Node::run(
        Command::new("events")
            .about("Prints what happened: machines, changes and who asked for them, full tables, wrong addresses, other hosts.")
            .arg(word("NIC").required(false).help("only events about this NIC, which may be gone"))
            .arg(flag("follow").help("go on with each event as it happens, until interrupted"))
            .arg(option("since", "SEQ").help("print those after the event with this number"))
            .arg(option("last", "N").help("print the newest N, up to 10000 (default: 100; 10 with --follow; all with --since)"))
            .arg(flag("json").help("print one JSON object per line, for programs"))
            .after_help(
                "butterfly events --follow\n\
                 butterfly events vm-1 --last 20\n\
                 butterfly events --json | jq 'select(.kind == \"request-failed\")'",
            ),
        run,
    )
}

fn run(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let format = Format { json: session.wants_json(arguments) };
    let since: Option<u64> = arguments.parsed("since", "the number of an event")?;
    let last: Option<u32> = arguments.parsed("last", "a number from 0 to 10000")?;
    let limit = match (last, since) {
        (Some(last), _) => last,
        (None, Some(_)) => MOST,
        (None, None) if arguments.has("follow") => LAST_BEFORE,
        (None, None) => LAST,
    };
    let nic = arguments.word(0);
    let query = EventListReq {
        since,
        limit: Some(limit),
        nic_id: nic.map(str::to_owned),
        newest: Some(true),
        ..EventListReq::default()
    };
    let first = result(session.ask(request(query))?)?;
    // Only a query that says where to begin misses something.
    let lost = if since.is_some() && last.is_none() { first.lost() } else { 0 };
    format.print(&first.event, lost, session)?;
    let follow = arguments.has("follow");
    if let Some(id) = nic.filter(|_| first.event.is_empty() && since.is_none() && limit > 0) {
        of_nobody(id, follow, session)?;
    }
    if follow {
        follow::follow(nic, first, format, session)?;
    }
    Ok(())
}

/// Handles a vnic without events: it may never have been there. An operator who follows may wait
/// for one that is yet to come.
fn of_nobody(id: &str, follow: bool, session: &mut Session) -> Result<(), Failure> {
    let listed = session.ask(Request { nic_list: Some(true), ..Request::default() })?.nic_list;
    if listed.iter().any(|nic| nic == id) {
        return Ok(());
    }
    let meant = meant_name(id, listed.iter().map(String::as_str));
    let meant = meant.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
    let text = format!("there is no NIC {}, and no event about one is kept{meant}", safe(id));
    match follow {
        true => {
            session.note(&text);
            Ok(())
        }
        false => Err(Failure::said(text)),
    }
}

fn request(query: EventListReq) -> Request {
    Request { event_list: MessageField::some(query), ..Request::default() }
}

fn result(response: Response) -> Result<EventListRes, Failure> {
    response.event_list.into_option().ok_or_else(|| {
        Failure::said("no events received: the daemon may be older than this client")
    })
}

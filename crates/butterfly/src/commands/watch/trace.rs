//! `butterfly trace`.

use super::line;
use super::rounds::{Until, filter, target, target_words};
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, option};
use crate::line::reader::Arguments;
use crate::text::table::counted;
use crate::tree::Node;
use butterfly_api::proto::{Request, TraceReq, TraceRes, TracedPacket, trace_req::Start};
use clap::Command;
use protobuf::MessageField;

/// `trace`.
pub fn node() -> Node {
    Node::run(
        Command::new("trace")
            .about("Prints packets as they pass, and what becomes of each: of one NIC, of one network or of all. Ctrl-C ends it.")
            .args(target_words())
            .arg(option("count", "N").help("end after so many packets"))
            .arg(option("seconds", "S").help("end after so many seconds"))
            .arg(option("sample", "N").help("look at one packet in N (default: 1)"))
            .arg(option("rate", "N").help("print so many per second at most, up to 100000 (default: 1000)"))
            .arg(json())
            .after_help(
                "butterfly trace vm-1\n\
                 butterfly trace vm-1 tcp port 443 --count 10\n\
                 butterfly trace 42 --sample 1000 --json | jq .reason",
            ),
        run,
    )
}

fn run(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let until = Until::read(arguments)?;
    let start = Start {
        target: MessageField::some(target(arguments)),
        filter: filter(arguments),
        sample: arguments.parsed("sample", "a number")?,
        rate: arguments.parsed("rate", "a number of packets per second")?,
        ..Start::default()
    };
    let started =
        ask(session, TraceReq { start: MessageField::some(start), ..TraceReq::default() })?;
    let number = started.trace();
    let mut printed = 0;
    while !until.is_over(printed) {
        let told = ask(session, TraceReq { read: Some(number), ..TraceReq::default() })?;
        let idle = told.packet.is_empty();
        print(session, &told.packet, &mut printed, &until, json)?;
        if idle {
            until.pause();
        }
    }
    let told = loop {
        let told = ask(session, TraceReq { stop: Some(number), ..TraceReq::default() })?;
        print(session, &told.packet, &mut printed, &until, json)?;
        if !told.more() {
            break told;
        }
    };
    session.remark(&format!(
        "{} printed of {} seen; {} not printed because of --rate; {} lost because the daemon was too slow",
        counted(printed, "packet"),
        told.seen(),
        told.suppressed(),
        told.lost()
    ));
    Ok(())
}

fn print(
    session: &mut Session,
    packets: &[TracedPacket],
    printed: &mut u64,
    until: &Until,
    json: bool,
) -> Result<(), Failure> {
    for packet in packets {
        if until.count.is_some_and(|count| *printed >= count) {
            break;
        }
        *printed += 1;
        match json {
            true => session.line(line::json(packet))?,
            false => session.line(line::text(packet))?,
        }
    }
    session.flush()
}

fn ask(session: &mut Session, request: TraceReq) -> Result<TraceRes, Failure> {
    let response =
        session.ask(Request { trace: MessageField::some(request), ..Request::default() })?;
    response.trace.into_option().ok_or_else(|| Failure::said("no trace received"))
}

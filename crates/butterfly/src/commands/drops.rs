//! `butterfly drops`: what was dropped, why, how fast it goes on, and what to do about it.

mod explain;
mod json;
mod page;
mod rates;
mod reasons;

pub use page::{last, remedy};
pub use reasons::lately;

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, option, word};
use crate::line::reader::Arguments;
use crate::text::table::{date, now};
use crate::tree::Node;
use butterfly_api::proto::{DropListReq, DropListRes, Request};
use clap::Command;
use protobuf::MessageField;
use rates::DropRates;
use std::io::{IsTerminal, stdout};
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);
/// Moves to the first line of the screen, and clears all below.
const ANEW: &str = "\x1b[H\x1b[J";

/// `drops`.
pub fn node() -> Node {
    Node::run(
        Command::new("drops")
            .about("Prints what was dropped, by NIC and reason: how fast, when last, which packet, and what to do about it.")
            .arg(word("NIC").required(false).help("id of the NIC; without one the whole host, networks and uplink included"))
            .arg(flag("watch").help("again every second, until interrupted; rates are those of the last second"))
            .arg(option("explain", "REASON").help("print what a reason means, its usual cause and what to do, and nothing else"))
            .arg(json())
            .after_help("butterfly drops\nbutterfly drops vm-1 --watch\nbutterfly drops --explain ingress-denied"),
        run,
    )
}

fn run(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let nic = arguments.word(0);
    match (arguments.value("explain"), arguments.has("watch")) {
        (Some(_), watch) if watch || json || nic.is_some() => Err(Failure::usage(
            "--explain prints one section of the manual: it goes with no NIC, --watch or --json",
        )),
        (Some(reason), _) => session.print(explain::section(reason)?),
        (None, true) => watch(nic, json, session),
        (None, false) => {
            let found = ask(nic, session)?;
            let rates = DropRates::of_window(&found);
            match json {
                true => session.json(&json::json(&found, &rates)),
                false => session.print(page::page(nic, &found, &rates)),
            }
        }
    }
}

/// Asks for the drops of one vnic or of the host.
pub fn ask(nic: Option<&str>, session: &mut Session) -> Result<DropListRes, Failure> {
    let request = DropListReq { nic_id: nic.map(str::to_owned), ..DropListReq::default() };
    let response =
        session.ask(Request { drop_list: MessageField::some(request), ..Request::default() })?;
    response.drop_list.into_option().ok_or_else(|| Failure::said("no list of drops received"))
}

/// Prints until the operator interrupts it, or the output is closed.
fn watch(nic: Option<&str>, json: bool, session: &mut Session) -> Result<(), Failure> {
    let screen = stdout().is_terminal() && !json;
    let mut before: Option<DropListRes> = None;
    loop {
        let found = ask(nic, session)?;
        let rates = match &before {
            Some(before) => DropRates::between(before, &found),
            None => DropRates::of_window(&found),
        };
        if json {
            session.line(json::json(&found, &rates))?;
        } else {
            let page = page::page(nic, &found, &rates);
            let (begin, end) = if screen { (ANEW, "") } else { ("", "\n") };
            session.print(format_args!("{begin}{}\n{page}{end}", date(now())))?;
        }
        session.flush()?;
        before = Some(found);
        std::thread::sleep(EVERY);
    }
}

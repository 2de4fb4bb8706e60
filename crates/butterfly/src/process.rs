//! `butterfly status` and `butterfly shutdown`: the daemon itself.

use crate::failure::Failure;
use crate::reader::Arguments;
use crate::session::Session;
use crate::tree::{Node, word};
use butterfly_api::proto::{AppConfigReq, Request};
use clap::Command;
use protobuf::MessageField;

/// `status`.
pub fn status() -> Node {
    Node::run(
        Command::new("status")
            .about("Prints since when the daemon runs (seconds since 1970), how many requests it had, and its packet graph.")
            .after_help(
                "butterfly status\n\
                 butterfly status | sed '1,/^dot graph/d' | dot -Tsvg > graph.svg",
            ),
        print_status,
    )
    .of_the_original()
}

/// `shutdown`.
pub fn shutdown() -> Node {
    Node::run(
        Command::new("shutdown")
            .about("Stops the daemon; the virtual machines lose their connection.")
            .after_help("butterfly shutdown"),
        |_, session| {
            let request = Request { app_quit: Some(true), ..Request::default() };
            session.ask(request).map(|_| ())
        },
    )
    .of_the_original()
}

/// What the daemon may log.
const LEVELS: [&str; 5] = ["none", "error", "warning", "info", "debug"];

/// `log-level`.
pub fn log_level() -> Node {
    Node::run(
        Command::new("log-level")
            .about("Sets what the daemon logs, until it ends.")
            .arg(word("LEVEL").value_parser(LEVELS).help("none, error, warning, info or debug"))
            .after_help("butterfly log-level debug"),
        |arguments, session| {
            let level = arguments.word(0).unwrap_or_default();
            if !LEVELS.contains(&level) {
                return Err(Failure::usage(format!("{level:?} is no level: there are {}", LEVELS.join(", "))));
            }
            let config = AppConfigReq { log_level: Some(level.to_owned()), ..AppConfigReq::default() };
            session.ask(Request { app_config: MessageField::some(config), ..Request::default() }).map(|_| ())
        },
    )
}

fn print_status(_: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let response = session.ask(Request { app_status: Some(true), ..Request::default() })?;
    let Some(status) = response.app_status.into_option() else {
        return Err(Failure::said("no status received"));
    };
    session.line(format_args!("start date: {}", status.start_date()))?;
    session.line(format_args!("current date: {}", status.current_date()))?;
    session.line(format_args!("request counter: {}", status.request_counter()))?;
    session.line(format_args!("dot graph: \n{}", status.graph_dot()))
}

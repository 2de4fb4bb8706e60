//! `butterfly status` and `butterfly shutdown`: the daemon itself.

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, word};
use crate::line::reader::Arguments;
use crate::text::json::seconds;
use crate::tree::Node;
use butterfly_api::proto::{AppConfigReq, AppHealthRes, Request};
use clap::Command;
use protobuf::MessageField;
use serde_json::{Value, json};

/// `status`.
pub fn status() -> Node {
    Node::run(
        Command::new("status")
            .about("Prints since when the daemon runs (seconds since 1970), how many requests it had, and its packet graph.")
            .arg(
                flag("json").help(
                    "print JSON, for programs: with the version, without the graph, at the same cost whatever the host has",
                ),
            )
            .after_help(
                "butterfly status\n\
                 butterfly status --json -t 1000 || echo 'it does not answer'\n\
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

/// Levels of the daemon's log.
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
                return Err(Failure::usage(format!(
                    "{level:?} is no level: there are {}",
                    LEVELS.join(", ")
                )));
            }
            let config =
                AppConfigReq { log_level: Some(level.to_owned()), ..AppConfigReq::default() };
            session
                .ask(Request { app_config: MessageField::some(config), ..Request::default() })
                .map(|_| ())
        },
    )
}

/// Asks whether the daemon lives.
pub fn ask_health(session: &mut Session) -> Result<AppHealthRes, Failure> {
    let response = session.ask(Request { app_health: Some(true), ..Request::default() })?;
    response.app_health.into_option().ok_or_else(|| Failure::said("no health received"))
}

fn health_json(health: &AppHealthRes) -> Value {
    json!({
        "version": health.version,
        "start_date": seconds(health.start_date()),
        "start_date_s": health.start_date(),
        "current_date": seconds(health.current_date()),
        "current_date_s": health.current_date(),
        "uptime_s": health.current_date().saturating_sub(health.start_date()),
        "request_counter": health.request_counter(),
        "nics": health.nics(),
        "security_groups": health.security_groups(),
    })
}

fn print_status(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    if session.wants_json(arguments) {
        let health = ask_health(session)?;
        return session.json(&health_json(&health));
    }
    let response = session.ask(Request { app_status: Some(true), ..Request::default() })?;
    let Some(status) = response.app_status.into_option() else {
        return Err(Failure::said("no status received"));
    };
    session.line(format_args!("start date: {}", status.start_date()))?;
    session.line(format_args!("current date: {}", status.current_date()))?;
    session.line(format_args!("request counter: {}", status.request_counter()))?;
    session.line(format_args!("dot graph: \n{}", status.graph_dot()))
}

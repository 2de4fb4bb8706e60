//! `butterfly status` and `butterfly shutdown`: the daemon itself.

use crate::failure::Failure;
use crate::reader::Arguments;
use crate::session::Session;
use crate::tree::Node;
use butterfly_api::proto::Request;
use clap::Command;

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

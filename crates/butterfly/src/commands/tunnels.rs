//! `butterfly tunnels`: what this host knows of others.

mod json;
mod page;

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, word};
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::{Request, TunnelShowReq};
use clap::Command;
use protobuf::MessageField;

pub use json::{counters as counters_json, drops as drops_json};
pub use page::{counters, is_silent, trouble};

/// Text for a host without an uplink.
pub const NO_UPLINK: &str = "no uplink: networks end at this host\nhelp: start butterflyd with --uplink to let them span hosts";

/// `tunnels`.
pub fn node() -> Node {
    Node::run(
        Command::new("tunnels")
            .about("Prints what the tunnel endpoint knows of other hosts: groups, peers, learnt addresses, next hops, traffic and drops.")
            .arg(word("VNI").required(false).help("only what concerns this network"))
            .args([flag("all").help("also what counted nothing"), json()])
            .after_help("butterfly tunnels 42\nbutterfly tunnels --json | jq '.peers[].address'"),
        print_tunnels,
    )
}

fn print_tunnels(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let vni = arguments.word(0).map(vni).transpose()?;
    let request = TunnelShowReq { vni, ..TunnelShowReq::default() };
    let response =
        session.ask(Request { tunnel_show: MessageField::some(request), ..Request::default() })?;
    let Some(show) = response.tunnel_show.into_option() else {
        return Err(Failure::said(NO_UPLINK));
    };
    match json {
        true => session.json(&json::json(&show)),
        false => session.print(page::page(&show, arguments.has("all"))),
    }
}

/// A network as a word.
pub fn vni(word: &str) -> Result<u32, Failure> {
    word.parse().map_err(|_| {
        Failure::usage(format!(
            "VNI argument not recognized\nhelp: {word:?} is not a number from 0 to 16777215"
        ))
    })
}

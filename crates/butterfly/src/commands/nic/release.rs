//! `butterfly nic release`: vnics whose rings are held.

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, word};
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::Request;
use clap::Command;
use serde_json::json;

const LONG: &str = "\
Serves the rings of a NIC again that are held because the daemon ended while it touched them.

By itself that happens after 1, 2, 4 .. 60 minutes: `butterfly nic show NIC` says when. If the cause is still
there, the daemon ends again, and all machines stand still for a moment.";

/// `nic release`.
pub fn node() -> Node {
    Node::run(
        Command::new("release")
            .about("Serves the rings of a NIC again that are held because the daemon ended while it touched them.")
            .long_about(LONG)
            .arg(word("NIC").required(false).help("id of the NIC"))
            .args([
                flag("all").help("all that are held, and the uplink's frames"),
                json(),
            ])
            .after_help("butterfly nic release vm-1\nbutterfly nic release --all"),
        release,
    )
}

fn release(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let id = match (arguments.word(0), arguments.has("all")) {
        (Some(id), false) if !id.is_empty() => id.to_owned(),
        (None, true) => String::new(),
        _ => return Err(Failure::usage("name a NIC, or give --all")),
    };
    let response = session.ask(Request { nic_release: Some(id.clone()), ..Request::default() })?;
    let was_held = response.nic_release.was_held();
    if json {
        return session.json(&json!({ "was_held": was_held }));
    }
    match (was_held, id.as_str()) {
        (true, _) => session.print("served again\n".to_owned()),
        (false, "") => session.print("nothing was held\n".to_owned()),
        (false, id) => session.print(format!("nic {id} was not held\n")),
    }
}

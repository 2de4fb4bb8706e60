//! `butterfly apply`: brings the host to the state that a file declares.

mod file;
mod meant;

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, word};
use crate::line::reader::Arguments;
use crate::text::table::{counted, safe};
use crate::tree::Node;
use butterfly_api::proto::apply_res::{self, change::What};
use butterfly_api::proto::{ApplyReq, ApplyRes, Request};
use clap::Command;
use protobuf::MessageField;
use serde_json::json;
use std::time::Duration;

/// A large state takes a while, and a client that gave up would not know what became of it.
const PATIENCE: Duration = Duration::from_secs(300);

/// The answer of a daemon that does not know the request.
const UNKNOWN: &str = "no request found";

/// The manual page of the command.
const LONG: &str = "Brings the host to the state that a file declares: all of it, or nothing and the reason. NICs that do not change stay attached.

The file is protobuf `Messages` in text format with `nic_add`, `sg_add`, `peer_add`, `network_add`, `external_add`, `router_add`, `nat_add` and `neighbour_add`, as `butterfly dump` prints it. Its last line is \
`# end of dump`, so that a file that was cut off is refused. docs/operations.md has an example.

The daemon compares the file with what is declared, and changes only what differs. What the file names becomes as the file says: \
a security group has exactly the rules and members in it, a network its subnets, a router its attachments. What the file does not name stays, unless --prune is given. \
Each change is a line: + added, ~ changed, ! made anew, - removed; the line says whose VM is cut off.

What is wrong in the file, or refused by the host, is found before the first change where it can be tried, also by --dry-run. \
If a change fails all the same, those before it are taken back, and `butterfly events` shows them as taken back.

A note on standard error tells what was probably not meant, to a person at a terminal or with --strict, which makes it a failure: a group, \
or the NIC of a mirror, that does not exist; one MAC or IP address for two NICs of a network, as after a new id without --prune; NICs that may \
send anything now; a group without members that rules name; a path that the daemon decides.

Exit code 0: done, or with --dry-run possible, whether or not something differs; 1: refused, or a note with --strict.";

/// `apply`.
pub fn node() -> Node {
    Node::run(
        Command::new("apply")
            .about("Brings the host to the state that a file declares, in the form of `butterfly dump`: all of it, or nothing and the reason. NICs that do not change stay attached.")
            .long_about(LONG)
            .arg(word("FILE").help("the file, whole: its last line is `# end of dump`; -: standard input"))
            .arg(flag("dry-run").help("change nothing, print what would change; exit code 0 whether or not something differs, 1 if the file or the host refuses it"))
            .arg(flag("prune").help("remove NICs, security groups, named peers, networks, externals, routers, translations and neighbours that the file does not name (default: they stay)"))
            .arg(json())
            .after_help("butterfly apply state --dry-run\nbutterfly apply state --prune"),
        apply,
    )
}

fn apply(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let path = arguments.word(0).unwrap_or_default();
    let source = if path == "-" { "standard input" } else { path };
    let refused =
        |why: String| Failure::said(format!("{source} is refused: {why}; nothing was sent"));
    let state = file::state(path).map_err(refused)?;
    let (dry_run, prune) = (arguments.has("dry-run"), arguments.has("prune"));
    let state = ApplyReq { dry_run: Some(dry_run), prune: Some(prune), ..state };
    let json = session.wants_json(arguments);
    session.wait_for(PATIENCE);
    let before = meant::host(session).map(|host| (host, state.clone()));
    let request = Request { apply: MessageField::some(state), ..Request::default() };
    let response = session.ask(request).map_err(|failure| match failure {
        // It takes the field for one that it need not know.
        Failure::Said(text) if text.contains(UNKNOWN) => Failure::Said(format!(
            "{text}\nhelp: the daemon is older than this client: use `butterfly request`"
        )),
        other => other,
    })?;
    let done = response.apply.unwrap_or_default();
    match json {
        true => print_json(&done, dry_run, session)?,
        false => print(&done, dry_run, session)?,
    }
    if let Some((host, state)) = before {
        meant::note(&host, &state, session);
    }
    match dry_run && session.settings().strict && session.is_doubtful() {
        true => Err(Failure::said(
            "--strict: nothing was changed, and it is a failure because of the note",
        )),
        false => Ok(()),
    }
}

/// The sign, the word for the count, and whether a VM is cut off.
fn kind(what: What) -> (char, &'static str) {
    match what {
        What::ADDED => ('+', "added"),
        What::CHANGED => ('~', "changed"),
        What::REMADE => ('!', "made anew"),
        What::REMOVED => ('-', "removed"),
    }
}

const KINDS: [What; 4] = [What::ADDED, What::CHANGED, What::REMADE, What::REMOVED];

fn object(change: &apply_res::Change) -> &'static str {
    use apply_res::change::Object;
    match change.object() {
        Object::NIC => "nic",
        Object::SECURITY_GROUP => "security group",
        Object::PEER => "peer",
        Object::NETWORK => "network",
        Object::ROUTER => "router",
        Object::NEIGHBOUR => "neighbour",
        Object::EXTERNAL => "external",
        Object::NAT => "nat",
    }
}

fn count(done: &ApplyRes, what: What) -> u64 {
    done.change.iter().filter(|change| change.what() == what).count() as u64
}

fn print(done: &ApplyRes, dry_run: bool, session: &mut Session) -> Result<(), Failure> {
    for change in &done.change {
        let (sign, word) = kind(change.what());
        let mut line = format!("{sign} {} {}", object(change), change.name());
        if change.what() == What::REMADE || change.cuts() {
            line.push_str(&format!(" is {word}"));
        }
        if change.cuts() {
            line.push_str(", its VM is cut off");
        }
        if !change.text().is_empty() {
            line.push_str(&format!(": {}", change.text()));
        }
        session.line(safe(&line))?;
    }
    let counts = KINDS.map(|what| (count(done, what), kind(what).1));
    let mut parts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if done.more() > 0 {
        parts.push(format!("and {} not listed", counted(done.more(), "object")));
    }
    let sum = match parts.is_empty() {
        true => "nothing differs from the file".to_owned(),
        false => parts.join(", "),
    };
    session.line(if dry_run { format!("dry run: {sum}; nothing was changed") } else { sum })
}

fn print_json(done: &ApplyRes, dry_run: bool, session: &mut Session) -> Result<(), Failure> {
    let row = |change: &apply_res::Change| {
        json!({
            "object": object(change),
            "name": change.name(),
            "what": match change.what() {
                What::REMADE => "remade",
                other => kind(other).1,
            },
            "cuts": change.cuts(),
            "text": change.text(),
        })
    };
    session.json(&json!({
        "applied": !dry_run,
        "changes": done.change.iter().map(row).collect::<Vec<_>>(),
        "more": done.more(),
    }))
}

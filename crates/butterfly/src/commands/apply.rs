//! `butterfly apply`: brings the host to the state that a file declares.

use crate::commands::replay::{END_OF_DUMP, read};
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, word};
use crate::line::reader::Arguments;
use crate::text::table::{counted, safe};
use crate::tree::Node;
use butterfly_api::proto::apply_res::{self, change::What};
use butterfly_api::proto::{ApplyReq, ApplyRes, Message, Messages, Request};
use butterfly_api::text;
use clap::Command;
use protobuf::MessageField;
use serde_json::json;
use std::time::Duration;

/// A large state takes a while, and a client that gave up would not know what became of it.
const PATIENCE: Duration = Duration::from_secs(300);

/// The answer of a daemon that does not know the request.
const UNKNOWN: &str = "no request found";

/// `apply`.
pub fn node() -> Node {
    Node::run(
        Command::new("apply")
            .about("Brings the host to the state that a file declares, in the form of `butterfly dump`: all of it, or nothing and the reason. NICs that do not change stay attached.")
            .arg(word("FILE").help("the file, whole: its last line is `# end of dump`; -: standard input"))
            .arg(flag("dry-run").help("change nothing, print what would change"))
            .arg(flag("prune").help("remove NICs, security groups and named peers that the file does not name (default: they stay)"))
            .arg(json())
            .after_help("butterfly apply state --dry-run\nbutterfly apply state --prune"),
        apply,
    )
}

fn apply(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let path = arguments.word(0).unwrap_or_default();
    let content = read(path)?;
    let refused =
        |why: String| Failure::said(format!("{path} is refused: {why}; nothing was sent"));
    let file: Messages = text::parse(&content)
        .map_err(|error| refused(format!("it is no protobuf Messages in text format: {error}")))?;
    if content.trim_end().lines().next_back().map(str::trim) != Some(END_OF_DUMP) {
        return Err(refused(format!(
            "it seems to be cut off: its last line is not `{END_OF_DUMP}`, as `butterfly dump` ends; add that line if all is there"
        )));
    }
    let (dry_run, prune) = (arguments.has("dry-run"), arguments.has("prune"));
    let state = state(file).map_err(&refused)?;
    let request = ApplyReq { dry_run: Some(dry_run), prune: Some(prune), ..state };
    let json = session.wants_json(arguments);
    session.wait_for(PATIENCE);
    let request = Request { apply: MessageField::some(request), ..Request::default() };
    let response = session.ask(request).map_err(|failure| match failure {
        // It takes the field for one that it need not know.
        Failure::Said(text) if text.contains(UNKNOWN) => Failure::Said(format!(
            "{text}\nhelp: the daemon is older than this client: use `butterfly request`"
        )),
        other => other,
    })?;
    let done = response.apply.unwrap_or_default();
    match json {
        true => print_json(&done, dry_run, session),
        false => print(&done, dry_run, session),
    }
}

/// The state that a file declares.
fn state(file: Messages) -> Result<ApplyReq, String> {
    if file.encrypted.is_some() {
        return Err("it is encrypted".to_owned());
    }
    let mut state = ApplyReq::default();
    for (place, message) in file.messages.into_iter().enumerate() {
        let request = request(message).unwrap_or_default();
        let rest = Request {
            nic_add: MessageField::none(),
            sg_add: MessageField::none(),
            peer_add: MessageField::none(),
            ..request.clone()
        };
        let Request { nic_add, sg_add, peer_add, .. } = request;
        let said = [nic_add.is_some(), sg_add.is_some(), peer_add.is_some()];
        if rest != Request::default() || said.iter().filter(|said| **said).count() != 1 {
            return Err(format!(
                "message {} of it is not one of nic_add, sg_add and peer_add; `butterfly request` takes all kinds",
                place + 1
            ));
        }
        state.nic.extend(nic_add.into_option());
        state.security_group.extend(sg_add.into_option());
        state.peer.extend(peer_add.into_option());
    }
    let empty = state.nic.is_empty() && state.security_group.is_empty() && state.peer.is_empty();
    if empty { Err("it declares nothing".to_owned()) } else { Ok(state) }
}

fn request(message: Message) -> Option<Request> {
    message.message_0.into_option()?.request.into_option()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ApplyReq, String> {
        let message = |request: &&str| {
            format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}")
        };
        let all: String =
            text.split('|').map(str::trim).collect::<Vec<_>>().iter().map(message).collect();
        state(text::parse(&all).unwrap())
    }

    #[test]
    fn a_file_declares_three_kinds_of_objects_and_nothing_else() {
        let nic = r#"nic_add { id: "a" mac: "m" vni: 1 }"#;
        let group = r#"sg_add { id: "g" }"#;
        let read_all =
            read(&format!(r#"{nic} | {group} | peer_add {{ address: "192.0.2.1" }}"#)).unwrap();
        let sizes = (read_all.nic.len(), read_all.security_group.len(), read_all.peer.len());
        assert_eq!(sizes, (1, 1, 1));
        for (file, message) in [
            (r#"nic_del: "a""#.to_owned(), "message 1"),
            (format!(r#"{nic} | nic_del: "a""#), "message 2"),
            (format!("{nic} {group}"), "message 1"),
            (format!("{nic} nic_list: true"), "message 1"),
            (format!("{nic} |"), "message 2"),
        ] {
            let why = read(&file).unwrap_err();
            assert!(why.starts_with(message), "{file}: {why}");
        }
        assert_eq!(state(Messages::default()), Err("it declares nothing".to_owned()));
    }
}

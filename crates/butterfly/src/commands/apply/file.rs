//! The file that declares a state: reads it, and refuses what is not one, before anything is sent.

use crate::commands::replay::{END_OF_DUMP, misread, name};
use crate::text::table::safe;
use butterfly_api::proto::{ApplyReq, Message, Messages, Request};
use butterfly_api::text::{self, ParseError};
use butterfly_api::{REVISION, proto};
use protobuf::MessageField;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;

/// Reads the state that a file declares, or with `-` standard input. An error says why there is
/// none, and what to do.
pub fn state(path: &str) -> Result<ApplyReq, String> {
    let content = content(path)?;
    let messages: Messages =
        text::parse(&content).map_err(|error| refused_text(&content, &error))?;
    if !is_whole(&content) {
        return Err(format!(
            "it seems to be cut off: its last line is not `{END_OF_DUMP}`, as `butterfly dump` ends; add that line if all is there"
        ));
    }
    declared(messages)
}

fn content(path: &str) -> Result<String, String> {
    let unreadable = |error: io::Error| format!("it cannot be read: {error}");
    let mut bytes = Vec::new();
    if path == "-" {
        io::stdin().read_to_end(&mut bytes).map_err(unreadable)?;
    } else {
        // Not of what a link leads to: `<(command)` of a shell is one to a pipe.
        let found = fs::symlink_metadata(path).map_err(unreadable)?.file_type();
        if found.is_fifo() {
            return Err(
                "it is a named pipe, which may never end: use `butterfly apply -`, which reads standard input"
                    .to_owned(),
            );
        }
        if fs::metadata(path).map_err(unreadable)?.is_dir() {
            return Err("it is a folder: name the file in it".to_owned());
        }
        bytes = fs::read(path).map_err(unreadable)?;
    }
    let content = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to() + 1;
        format!("byte {place} of it is no UTF-8, so it is no text: {DUMP}")
    })?;
    match content.trim().is_empty() {
        true => Err(format!("it is empty: {DUMP}")),
        false => Ok(content),
    }
}

/// Source of a good file.
const DUMP: &str = "`butterfly dump` prints the state that is there in the right form";

/// True if the last line is that of a dump.
fn is_whole(content: &str) -> bool {
    content.trim_end().lines().next_back().map(str::trim) == Some(END_OF_DUMP)
}

/// Why a text is no `Messages`, and what it may be instead.
fn refused_text(content: &str, error: &ParseError) -> String {
    let last = content.trim_end().lines().count();
    match content.trim_start().chars().next() {
        Some('{' | '[') => {
            return "it looks like JSON, which apply does not read: use `butterfly dump` without --json"
                .to_owned();
        }
        Some('<') => return format!("it looks like XML, which apply does not read: {DUMP}"),
        _ if content.trim_start().starts_with("---") => {
            return format!("it looks like YAML, which apply does not read: {DUMP}");
        }
        _ if !is_whole(content) && error.position.line >= last => {
            return format!(
                "it seems to be cut off: {}, and its last line is not `{END_OF_DUMP}`; make it again",
                misread(error)
            );
        }
        _ => {}
    }
    let requests = <Request as protobuf::MessageFull>::descriptor();
    let alone = error
        .unknown
        .as_ref()
        .filter(|unknown| requests.field_by_name(&unknown.name).is_some())
        .map(|unknown| {
            let name = &unknown.name;
            format!("; write `messages {{ revision: {REVISION} message_0 {{ request {{ {name} ... }} }} }}`")
        });
    format!(
        "it is no protobuf Messages in text format: {}{}",
        misread(error),
        alone.unwrap_or_default()
    )
}

/// The state that requests declare.
fn declared(file: Messages) -> Result<ApplyReq, String> {
    if file.encrypted.is_some() {
        return Err("it is encrypted: `butterfly dump` prints a state in clear text".to_owned());
    }
    let mut state = ApplyReq::default();
    for (place, message) in file.messages.into_iter().enumerate() {
        let about = format!("message {} of it, {},", place + 1, safe(&name(&message)));
        if message.revision() > REVISION {
            return Err(format!(
                "{about} has revision {}, and this client knows those up to {REVISION}: use the client that wrote it, or correct the number",
                message.revision()
            ));
        }
        let request = request(message).unwrap_or_default();
        let rest = Request {
            nic_add: MessageField::none(),
            sg_add: MessageField::none(),
            peer_add: MessageField::none(),
            network_add: MessageField::none(),
            router_add: MessageField::none(),
            neighbour_add: MessageField::none(),
            external_add: MessageField::none(),
            nat_add: MessageField::none(),
            ..request.clone()
        };
        let Request { nic_add, sg_add, peer_add, network_add, router_add, .. } = request;
        let (external_add, nat_add, neighbour_add) =
            (request.external_add, request.nat_add, request.neighbour_add);
        let said = [
            nic_add.is_some(),
            sg_add.is_some(),
            peer_add.is_some(),
            network_add.is_some(),
            router_add.is_some(),
            neighbour_add.is_some(),
            external_add.is_some(),
            nat_add.is_some(),
        ];
        if rest != Request::default() || said.iter().filter(|said| **said).count() != 1 {
            return Err(format!(
                "{about} is not one of nic_add, sg_add, peer_add, network_add, external_add, router_add, nat_add and neighbour_add; `butterfly request` takes all kinds"
            ));
        }
        state.nic.extend(nic_add.into_option());
        state.security_group.extend(sg_add.into_option());
        state.peer.extend(peer_add.into_option());
        state.network.extend(network_add.into_option());
        state.router.extend(router_add.into_option());
        state.neighbour.extend(neighbour_add.into_option());
        state.external.extend(external_add.into_option());
        state.nat.extend(nat_add.into_option());
    }
    if state == ApplyReq::default() {
        Err(format!("it declares nothing: {DUMP}"))
    } else {
        Ok(state)
    }
}

fn request(message: Message) -> Option<proto::Request> {
    message.message_0.into_option()?.request.into_option()
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
        declared(text::parse(&all).unwrap())
    }

    #[test]
    fn a_file_declares_eight_kinds_of_objects_and_nothing_else() {
        let nic = r#"nic_add { id: "a" mac: "m" vni: 1 }"#;
        let group = r#"sg_add { id: "g" }"#;
        let read_all =
            read(&format!(r#"{nic} | {group} | peer_add {{ address: "192.0.2.1" }} | network_add {{ vni: 1 }} | router_add {{ id: "r" }} | neighbour_add {{ vni: 1 }} | external_add {{ id: "x" }} | nat_add {{ router: "r" }}"#)).unwrap();
        let routed = (read_all.network.len(), read_all.router.len(), read_all.neighbour.len());
        assert_eq!(routed, (1, 1, 1));
        assert_eq!((read_all.external.len(), read_all.nat.len()), (1, 1));
        let sizes = (read_all.nic.len(), read_all.security_group.len(), read_all.peer.len());
        assert_eq!(sizes, (1, 1, 1));
        for (file, message) in [
            (r#"nic_del: "a""#.to_owned(), "message 1 of it, nic_del \"a\", is not"),
            (format!(r#"{nic} | nic_del: "a""#), "message 2"),
            (format!("{nic} {group}"), "message 1"),
            (format!("{nic} nic_list: true"), "message 1"),
            (format!("{nic} |"), "message 2"),
        ] {
            let why = read(&file).unwrap_err();
            assert!(why.starts_with(message), "{file}: {why}");
        }
        assert!(declared(Messages::default()).unwrap_err().starts_with("it declares nothing"));
    }

    #[test]
    fn another_revision_is_refused() {
        let file = |revision: u32| {
            declared(
                text::parse(&format!(
                    "messages {{ revision: {revision} message_0 {{ request {{ sg_add {{ id: \"g\" }} }} }} }}"
                ))
                .unwrap(),
            )
        };
        assert!(file(REVISION).is_ok() && file(0).is_ok());
        let why = file(99).unwrap_err();
        let known = format!("has revision 99, and this client knows those up to {REVISION}");
        assert!(why.starts_with("message 1 of it, sg_add \"g\",") && why.contains(&known), "{why}");
    }

    #[test]
    fn what_is_no_state_is_told_what_it_is() {
        let why = |content: &str| {
            let error = text::parse::<Messages>(content).unwrap_err();
            refused_text(content, &error)
        };
        let nic = "messages {\n  revision: 6\n  message_0 {\n    request {\n      nic_add {\n        id: \"vm-1\"\n";
        for (content, expected) in [
            ("{\"messages\": []}".to_owned(), "it looks like JSON"),
            ("\n[]\n".to_owned(), "it looks like JSON"),
            ("<domain/>".to_owned(), "it looks like XML"),
            ("--- \nnics:\n".to_owned(), "it looks like YAML"),
            (
                nic.to_owned(),
                "it seems to be cut off: 7:1: the name of a field is expected, not the end of the text",
            ),
            (format!("{nic}mac: \"52:54"), "it seems to be cut off: 7:6: the string has no end"),
            (
                format!("{nic}macc: \"m\"\n}} }} }} }}\n{END_OF_DUMP}\n"),
                "it is no protobuf Messages in text format: 7:1: Nic has no field macc; did you mean mac?",
            ),
            (
                format!("{nic}ip_antispoof: true\n}} }} }} }}\n{END_OF_DUMP}\n"),
                "it is no protobuf Messages in text format: 7:1: Nic has no field ip_antispoof; did you mean ip_anti_spoof?",
            ),
            (
                format!("{nic}mac: \"m\" }} }} }} }}\n{END_OF_DUMP}\n"),
                "it is no protobuf Messages in text format: 5:7: required field messages[0].message_0.request.nic_add.vni is missing (of id \"vm-1\")",
            ),
            (
                format!("nic_add {{ }}\n{END_OF_DUMP}\n"),
                "it is no protobuf Messages in text format: 1:1: Messages has no field nic_add; write `messages { revision: 6 message_0 { request { nic_add ... } } }`",
            ),
        ] {
            let why = why(&content);
            assert!(why.starts_with(expected), "{content}: {why}");
        }
    }
}

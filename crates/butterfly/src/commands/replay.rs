//! `butterfly dump` and `butterfly request`: a configuration as text, and back.

use crate::commands::{neighbour, notes};
use crate::daemon::reply;
use crate::daemon::session::{Session, message};
use crate::failure::Failure;
use crate::line::options::{flag, word};
use crate::line::reader::Arguments;
use crate::line::slips::meant_word;
use crate::tree::Node;
use butterfly_api::proto::{External, Message, Messages, Nat, Nic, Request, Response};
use butterfly_api::text::{self, ParseError};
use clap::Command;
use protobuf::MessageField;
use protobuf_json_mapping::{PrintOptions, print_to_string_with_options};
use serde_json::Value;

/// Last line of a dump: one that ends otherwise was cut off. A comment of the text format, which
/// butterfly 0.13 reads, too.
pub const END_OF_DUMP: &str = "# end of dump";

/// `request`.
pub fn request() -> Node {
    Node::run(
        Command::new("request")
            .about("Sends the requests of a file: protobuf `Messages` in text format, as `butterfly dump` prints.")
            .arg(word("FILE").help("the file; -: standard input"))
            .arg(flag("stdout").help("print the reply in text format"))
            .arg(flag("json").help("print the reply as JSON, for programs"))
            .after_help("butterfly request saved.txt --stdout\nbutterfly dump -e tcp://192.0.2.7:9999 | butterfly request -"),
        send_file,
    )
    .of_the_original()
}

/// `dump`.
pub fn dump() -> Node {
    Node::run(
        Command::new("dump")
            .about("Prints requests that make all networks, externals, routers, translations, NICs, security groups and named peers again, for `butterfly request` and `butterfly apply`.")
            .arg(flag("json").help("print them as JSON, for programs; `butterfly request` and `apply` read the other form"))
            .after_help("butterfly dump > saved.txt"),
        print_dump,
    )
    .of_the_original()
}

fn send_file(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let path = arguments.word(0).unwrap_or_default();
    let content = read(path)?;
    let request: Messages = text::parse(&content).map_err(|error| {
        Failure::said(format!("{path} is no protobuf Messages in text format: {}", misread(&error)))
    })?;
    if request == Messages::default() {
        return Err(Failure::said(format!(
            "failed to open {path}\nthere is no request in the file"
        )));
    }
    let names: Vec<String> = request.messages.iter().map(name).collect();
    let mut declared: Vec<String> = request.messages.iter().filter_map(nic_of).collect();
    declared.dedup();

    let json = session.wants_json(arguments);
    let reply = session.send(&request)?;
    if json {
        session.print(messages_json(&reply)?)?;
    } else if arguments.has("stdout") {
        session.print(text::print(&reply))?;
    }
    let replies = reply::messages(reply)?;
    let mut failures = Vec::new();
    for (place, message) in replies.into_iter().enumerate() {
        match (reply::response(message), names.get(place)) {
            (Ok(_), _) => {}
            // Which of many requests failed is what the operator must know.
            (Err(Failure::Said(text)), Some(name)) if names.len() > 1 => {
                failures.push(format!("{text}\nrequest {} of {}: {name}", place + 1, names.len()));
            }
            (Err(Failure::Said(text)), _) => failures.push(text),
            (Err(other), _) => return Err(other),
        }
    }
    if !failures.is_empty() && names.len() > 1 {
        // Those behind a failure were carried out, too: the operator must know what is there now.
        failures.push(format!(
            "{} of {} requests were done, {} not",
            names.len() - failures.len(),
            names.len(),
            failures.len()
        ));
    }
    if !failures.is_empty() {
        return Err(Failure::said(failures.join("\n")));
    }
    notes::of_nics(&declared, session);
    Ok(())
}

/// Returns the vnic that a request declares or changes.
fn nic_of(message: &Message) -> Option<String> {
    let request = message.message_0.as_ref()?.request.as_ref()?;
    let added = request.nic_add.as_ref().and_then(|nic| nic.id.clone());
    added.or_else(|| request.nic_update.as_ref()?.id.clone())
}

/// A mistake in a text, its place, and the field that was probably meant.
pub fn misread(error: &ParseError) -> String {
    let meant = error
        .unknown
        .as_ref()
        .and_then(|unknown| meant_word(&unknown.name, unknown.known.iter().map(String::as_str)));
    let meant = meant.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
    format!("{error}{meant}")
}

/// The content of a file, or with `-` of standard input; never nothing.
fn read(path: &str) -> Result<String, Failure> {
    let read = if path == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    match read {
        Ok(content) if !content.trim().is_empty() => Ok(content),
        Ok(_) => Err(Failure::said(format!("failed to open {path}\nthe file is empty"))),
        Err(error) => Err(Failure::said(format!("failed to open {path}\n{error}"))),
    }
}

/// The kind of request in `message`, and what it is about.
pub fn name(message: &Message) -> String {
    let Some(request) = message.message_0.as_ref().and_then(|payload| payload.request.as_ref())
    else {
        return "no request".into();
    };
    // The first field that is set is the one that is executed; it is an id, or a message with one
    // as its first field.
    let content = text::print(request);
    let mut words = content.split_whitespace();
    let kind = words.next().unwrap_or_default().trim_end_matches(':');
    let value = match words.next() {
        Some("{") => words.nth(1),
        value => value,
    };
    format!("{kind} {}", value.unwrap_or_default()).trim_end().to_owned()
}

/// Returns a request for each network, external, router, translation, neighbour, vnic, security
/// group and peer, that makes it.
fn declarations(response: Response) -> impl Iterator<Item = Message> {
    let mut nics = response.nic_details;
    // A vnic that waits for a MAC address comes behind the one that has it, in the order of the
    // line: so they are made again in that order.
    nics.sort_by_key(|nic| nic.waiting.unwrap_or(0));
    let nics = nics.into_iter().map(|nic| Nic { waiting: None, ..nic });
    let nics = nics.map(|nic| Request { nic_add: MessageField::some(nic), ..Request::default() });
    let groups = response
        .sg_details
        .into_iter()
        .map(|group| Request { sg_add: MessageField::some(group), ..Request::default() });
    let peers = response
        .peer_list
        .into_iter()
        .map(|peer| Request { peer_add: MessageField::some(peer), ..Request::default() });
    let networks = response
        .network_list
        .into_iter()
        .map(|network| Request { network_add: MessageField::some(network), ..Request::default() });
    let routers = response
        .router_list
        .into_iter()
        .map(|router| Request { router_add: MessageField::some(router), ..Request::default() });
    let neighbours = response.neighbour_list.into_iter().map(|neighbour| Request {
        neighbour_add: MessageField::some(neighbour),
        ..Request::default()
    });
    let externals = response.external_list.into_iter().map(|external| Request {
        external_add: MessageField::some(declared(external)),
        ..Request::default()
    });
    let nats = response
        .nat_list
        .into_iter()
        .map(|nat| Nat { tcp_ports: None, udp_ports: None, echo_ids: None, ..nat })
        .map(|nat| Request { nat_add: MessageField::some(nat), ..Request::default() });
    let before = networks.chain(externals).chain(routers).chain(nats).chain(neighbours);
    let before = before.chain(nics);
    before.chain(groups).chain(peers).map(|request| message(request, None))
}

/// An external as it was declared: a number that was chosen is that of one host.
fn declared(external: External) -> External {
    let vni = external.vni.filter(|_| !external.chosen());
    External { vni, chosen: None, not_in_effect: None, wire: None.into(), ..external }
}

/// Messages as JSON, under the field names of the protocol.
fn messages_json(messages: &Messages) -> Result<String, Failure> {
    let options = PrintOptions { proto_field_name: true, ..PrintOptions::default() };
    let failed = |error: String| Failure::said(format!("cannot print this as JSON: {error}"));
    let line = print_to_string_with_options(messages, &options)
        .map_err(|error| failed(error.to_string()))?;
    // As all other commands print it: in lines.
    let value: Value = serde_json::from_str(&line).map_err(|error| failed(error.to_string()))?;
    Ok(format!("{value:#}\n"))
}

fn print_dump(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let nics = Request { nic_details: Some(String::new()), ..Request::default() };
    let groups = Request { sg_details: Some(String::new()), ..Request::default() };
    let mut responses =
        session.exchange(vec![message(nics, Some("nics")), message(groups, Some("sgs"))])?;
    let peers = Request { peer_list: Some(true), ..Request::default() };
    let networks = Request { network_list: Some(true), ..Request::default() };
    let routers = Request { router_list: Some(true), ..Request::default() };
    // An older daemon refuses these, and has none. A reply that does not come is another thing:
    // there may be some.
    let neighbours = neighbour::request(None, None);
    let externals = Request { external_list: Some(true), ..Request::default() };
    let nats = Request { nat_list: Some(true), ..Request::default() };
    let asked = vec![networks, externals, routers, nats, neighbours, peers];
    let mut newer = session.ask_each(asked)?;
    let peers = newer.split_off(newer.len().min(5));
    let neighbours = newer.split_off(newer.len().min(4));
    if let Some(first) = neighbours.into_iter().flatten().next() {
        let neighbour_list = neighbour::with_others(first, None, session)?;
        newer.push(Some(Response { neighbour_list, ..Response::default() }));
    }
    // Routers join networks and externals, so those come first; translations and neighbours come
    // behind them, and all of these before all else.
    responses.splice(0..0, newer.into_iter().flatten());
    responses.extend(peers.into_iter().flatten());
    let dump = Messages {
        messages: responses.into_iter().flat_map(declarations).collect(),
        ..Messages::default()
    };
    match json {
        true => session.print(messages_json(&dump)?),
        false => {
            session.line(text::print(&dump))?;
            session.line(END_OF_DUMP)
        }
    }
}

//! `butterfly router`: routers, and the networks that they join.

use crate::commands::network::{VNI, ids, network, wants_ids};
use crate::commands::{notes, route};
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, list, option, word};
use crate::line::reader::Arguments;
use crate::text::table::{Align, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{Attachment, Request, Router};
use clap::{Arg, Command};
use protobuf::MessageField;
use serde_json::{Value, json};

/// The `router` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("router").about(
            "Declares routers, which pass packets from one declared network to another, and out of this host by externals.",
        ),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the routers, the networks that they join and their addresses there.")
                    .args([ids().help("only the ids, one per line, for scripts"), json()])
                    .after_help("butterfly router list"),
                print_routers,
            ),
            Node::run(
                Command::new("add")
                    .about("Declares routers that are attached to no network. One that exists is detached from all, and loses its routes.")
                    .arg(word("ID").num_args(1..).help("id of the router: any text of one line"))
                    .after_help("butterfly router add r1\nbutterfly router add r1 + router attach r1 --vni 42 + router attach r1 --vni 50"),
                add,
            ),
            Node::run(
                Command::new("del")
                    .about("Deletes routers, with their attachments and routes. Unknown ones are no error.")
                    .arg(routers())
                    .after_help("butterfly router del r1"),
                del,
            ),
            Node::run(
                Command::new("attach")
                    .about("Attaches a router to a declared network, or to an external. If it is attached, it has exactly these addresses from now on.")
                    .args([router(), network(), external(), addresses()])
                    .after_help(
                        "butterfly router attach r1 --vni 42\n\
                         butterfly router attach r1 --vni 50 --address 10.0.1.7 2001:db8:1::7\n\
                         butterfly router attach r1 --external internet",
                    ),
                attach,
            ),
            Node::run(
                Command::new("detach")
                    .about("Detaches a router from a network or an external. One that is not attached is no error.")
                    .args([router(), network(), external()])
                    .after_help("butterfly router detach r1 --vni 42\nbutterfly router detach r1 --external internet"),
                detach,
            ),
        ],
    )
}

fn routers() -> Arg {
    router().num_args(1..)
}

/// The word for one router.
fn router() -> Arg {
    word("ROUTER").help("id of the router")
}

fn external() -> Arg {
    option("external", "EXTERNAL").help("the external by which it leads out")
}

fn addresses() -> Arg {
    list("address", "IP").help("its address in the network, one of each family at most (default: the gateways of the subnets, at an external none)")
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = |id: &String| Request {
        router_add: MessageField::some(Router { id: Some(id.clone()), ..Router::default() }),
        ..Request::default()
    };
    let (ids, before) = (arguments.words_from(0), notes::routers(session));
    session.ask_all(ids.iter().map(request).collect())?;
    for router in before.iter().flatten().filter(|router| ids.iter().any(|id| id == router.id())) {
        let joined: Vec<String> = router.attachment.iter().map(place).collect();
        if !router.route.is_empty() {
            session.doubt(&format!(
                "router {} was there and has no routes now: it had {}",
                router.id(),
                router.route.len()
            ));
        }
        if !joined.is_empty() {
            session.doubt(&format!(
                "router {} was there and is detached from all networks now: it was attached to {}",
                router.id(),
                joined.join(", ")
            ));
        }
    }
    Ok(())
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = |id: &String| Request { router_del: Some(id.clone()), ..Request::default() };
    let (ids, before) = (arguments.words_from(0), notes::routers(session));
    session.ask_all(ids.iter().map(request).collect())?;
    let Some(before) = before else { return Ok(()) };
    for id in ids.iter().filter(|id| !before.iter().any(|router| router.id() == *id)) {
        session.doubt(&format!("there was no router {id}: nothing changed"));
    }
    Ok(())
}

/// The attachment that the words name.
fn attachment(arguments: &Arguments) -> Result<Attachment, Failure> {
    match (arguments.has("vni"), arguments.has("external")) {
        (false, false) => {
            return Err(Failure::usage(
                "an attachment needs its network, --vni, or its external, --external",
            ));
        }
        (true, true) => {
            return Err(Failure::usage("--vni and --external exclude each other: attach it twice"));
        }
        _ => {}
    }
    Ok(Attachment {
        router: arguments.word(0).map(str::to_owned),
        vni: arguments.parsed("vni", VNI)?,
        external: arguments.value("external").map(str::to_owned),
        address: arguments.values("address").to_vec(),
        ..Attachment::default()
    })
}

fn attach(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let router_attach = MessageField::some(attachment(arguments)?);
    session.ask(Request { router_attach, ..Request::default() }).map(drop)
}

fn detach(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let attachment = attachment(arguments)?;
    let before = notes::routers(session);
    let joined = |router: &Router| {
        let same = |other: &Attachment| {
            other.vni == attachment.vni && other.external == attachment.external
        };
        router.id() == attachment.router() && router.attachment.iter().any(same)
    };
    let absent = before.is_some_and(|before| !before.iter().any(joined));
    let (id, name) = (attachment.router().to_owned(), name(&attachment));
    let router_detach = MessageField::some(attachment);
    session.ask(Request { router_detach, ..Request::default() })?;
    if absent {
        session.doubt(&format!("router {id} was not attached to {name}: nothing changed"));
    }
    Ok(())
}

fn print_routers(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let (ids, json) = (wants_ids(arguments)?, session.wants_json(arguments));
    let request = Request { router_list: Some(true), ..Request::default() };
    let routers = session.ask(request)?.router_list;
    if ids {
        return routers.iter().try_for_each(|router| session.line(router.id()));
    }
    if json {
        return session
            .json(&json!({ "routers": routers.iter().map(router_json).collect::<Value>() }));
    }
    let rows: Vec<_> = routers.iter().flat_map(rows_of).collect();
    let heading = [
        ("router", Align::Left),
        ("vni", Align::Right),
        ("external", Align::Left),
        ("address", Align::Left),
    ];
    session.print(table(0, heading, &rows))
}

/// The network or external of an attachment: a number, or an id.
fn place(attachment: &Attachment) -> String {
    match &attachment.external {
        Some(external) => safe(external),
        None => attachment.vni().to_string(),
    }
}

/// The same with its kind.
fn name(attachment: &Attachment) -> String {
    let kind = if attachment.external.is_some() { "external" } else { "network" };
    format!("{kind} {}", place(attachment))
}

/// A row for each attachment; one for a router without.
fn rows_of(router: &Router) -> Vec<[String; 4]> {
    let row = |attachment: &Attachment| {
        let given = match attachment.address.is_empty() {
            true if attachment.external.is_some() => "-".to_owned(),
            true => "gateways".to_owned(),
            false => safe(&attachment.address.join(" ")),
        };
        match &attachment.external {
            Some(external) => [safe(router.id()), "-".into(), safe(external), given],
            None => [safe(router.id()), attachment.vni().to_string(), "-".into(), given],
        }
    };
    match router.attachment.is_empty() {
        true => vec![[safe(router.id()), "-".into(), "-".into(), "-".into()]],
        false => router.attachment.iter().map(row).collect(),
    }
}

fn router_json(router: &Router) -> Value {
    let attachment = |attachment: &Attachment| json!({ "vni": attachment.vni, "external": attachment.external, "addresses": attachment.address });
    json!({
        "id": router.id(),
        "attachments": router.attachment.iter().map(attachment).collect::<Value>(),
        "routes": router.route.iter().map(|it| route::json_of(None, it)).collect::<Value>(),
    })
}

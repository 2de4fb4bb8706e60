//! `butterfly route`: routes of routers, by machines of their networks.

use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, list, option, word};
use crate::line::reader::Arguments;
use crate::text::table::{Align, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{Cidr, Request, Route, Router};
use butterfly_model::{Route as Declared, canonical};
use clap::{Arg, Command};
use protobuf::MessageField;
use serde_json::{Value, json};

/// The `route` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("route").about(
            "Has routers lead to blocks of addresses by machines of their networks, or drop what is for these. The longest block that has an address decides.",
        ),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the routes of one router or of all.")
                    .args([router().required(false).help("only those of this router"), json()])
                    .after_help("butterfly route list\nbutterfly route list r1"),
                print_routes,
            ),
            Node::run(
                Command::new("add")
                    .about("Adds a route to a router. One to the same block leads by exactly these machines from now on.")
                    .args([router(), to(), via(), blackhole()])
                    .after_help(
                        "butterfly route add r1 --to 10.9.0.0/16 --via 10.0.0.9\n\
                         butterfly route add r1 --to 0.0.0.0/0 --via 10.0.0.8 10.0.0.9\n\
                         butterfly route add r1 --to 2001:db8::/32 --blackhole",
                    ),
                add,
            ),
            Node::run(
                Command::new("del")
                    .about("Takes that back. One that is not there is no error.")
                    .args([router(), to()])
                    .after_help("butterfly route del r1 --to 10.9.0.0/16"),
                del,
            ),
        ],
    )
}

fn router() -> Arg {
    word("ROUTER").help("id of the router")
}

fn to() -> Arg {
    option("to", "CIDR").required(true).help("the block of addresses, 0.0.0.0/0 or ::/0 for all")
}

fn via() -> Arg {
    list("via", "IP").help("addresses of machines in networks of the router, 16 at most: each flow goes by one of them")
}

fn blackhole() -> Arg {
    flag("blackhole").help("drop what is for the block, and tell its sender")
}

/// The route that the words name.
fn route(arguments: &Arguments) -> Result<Route, Failure> {
    let to = arguments.value("to").unwrap_or_default();
    let route = Declared::parse(to, arguments.values("via"));
    let route = route.map_err(|error| Failure::usage(format!("{error}")))?;
    let cidr = Cidr {
        address: Some(canonical(route.to().network())),
        mask_size: Some(route.to().mask_size().into()),
        ..Cidr::default()
    };
    Ok(Route {
        router: arguments.word(0).map(str::to_owned),
        cidr: MessageField::some(cidr),
        via: route.via().iter().copied().map(canonical).collect(),
        ..Route::default()
    })
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let route = route(arguments)?;
    match (route.via.is_empty(), arguments.has("blackhole")) {
        (true, false) => Err(Failure::usage(
            "a route needs the machines that lead there, --via, or --blackhole for none",
        )),
        (false, true) => Err(Failure::usage(
            "--via and --blackhole exclude each other: a blackhole leads nowhere",
        )),
        _ => {
            let route_add = MessageField::some(route);
            session.ask(Request { route_add, ..Request::default() }).map(drop)
        }
    }
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let route = route(arguments)?;
    let before = notes::routers(session);
    let same = |router: &Router| {
        router.id() == route.router() && router.route.iter().any(|it| it.cidr == route.cidr)
    };
    let absent = before.is_some_and(|before| !before.iter().any(same));
    let (id, to) = (safe(route.router()), block(&route));
    let route_del = MessageField::some(route);
    session.ask(Request { route_del, ..Request::default() })?;
    if absent {
        session.doubt(&format!("router {id} had no route to {to}: nothing changed"));
    }
    Ok(())
}

fn print_routes(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let request = Request { router_list: Some(true), ..Request::default() };
    let mut routers = session.ask(request)?.router_list;
    if let Some(only) = arguments.word(0) {
        routers.retain(|router| router.id() == only);
        if routers.is_empty() {
            return Err(Failure::said(format!(
                "there is no router {}: `butterfly router list` has those that there are",
                safe(only)
            )));
        }
    }
    let all = routers.iter().flat_map(|router| router.route.iter().map(move |it| (router, it)));
    if json {
        let rows = all.map(|(router, route)| json_of(Some(router.id()), route)).collect::<Value>();
        return session.json(&json!({ "routes": rows }));
    }
    let rows: Vec<_> = all.map(row).collect();
    let heading = [("router", Align::Left), ("to", Align::Left), ("via", Align::Left)];
    session.print(table(0, heading, &rows))
}

fn row((router, route): (&Router, &Route)) -> [String; 3] {
    let via = match route.via.is_empty() {
        true => "blackhole".to_owned(),
        false => safe(&route.via.join(" ")),
    };
    [safe(router.id()), safe(&block(route)), via]
}

fn block(route: &Route) -> String {
    format!("{}/{}", route.cidr.address(), route.cidr.mask_size())
}

/// A route as an object, with the id of its router if that is not told beside it.
pub fn json_of(router: Option<&str>, route: &Route) -> Value {
    match router {
        Some(router) => json!({ "router": router, "to": block(route), "via": route.via }),
        None => json!({ "to": block(route), "via": route.via }),
    }
}

//! `butterfly neighbour`: machines of networks that are not vnics of this host, for routers.

use crate::commands::network::{VNI, network};
use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, option};
use crate::line::reader::Arguments;
use crate::text::table::{Align, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{Neighbour, NeighbourListReq, Request, Response};
use clap::{Arg, Command};
use protobuf::MessageField;
use serde_json::{Value, json};
use std::net::IpAddr;

/// Most neighbours of one reply (`NeighbourListReq`).
const MOST_LISTED: usize = 65_536;

/// The `neighbour` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("neighbour").about(
            "Declares machines of networks that are no NICs of this host, so that routers find them. What NICs of this host have counts before it: all hosts may have the same list.",
        ),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the neighbours of one network or of all: those that are declared, and those that routers of this host asked for.")
                    .args([network().help("only those of this network"), json()])
                    .after_help("butterfly neighbour list\nbutterfly neighbour list --vni 42"),
                print_neighbours,
            ),
            Node::run(
                Command::new("add")
                    .about("Declares a neighbour. One that is there has this MAC address and host from now on.")
                    .args([network().required(true), address(), mac(), host()])
                    .after_help("butterfly neighbour add --vni 42 --ip 10.0.0.9 --mac 52:54:00:12:34:09 --host 192.0.2.2"),
                add,
            ),
            Node::run(
                Command::new("del")
                    .about("Takes that back. One that is not declared is no error.")
                    .args([network().required(true), address()])
                    .after_help("butterfly neighbour del --vni 42 --ip 10.0.0.9"),
                del,
            ),
        ],
    )
}

fn address() -> Arg {
    option("ip", "IP").required(true).help("its IP address in the network, IPv4 or IPv6")
}

fn mac() -> Arg {
    option("mac", "MAC").required(true).help("its MAC address")
}

fn host() -> Arg {
    option("host", "IP").help("the tunnel endpoint of the host on which it runs (default: the one behind which the switch has learnt the MAC address, `butterfly fdb`)")
}

/// The neighbour that the options name.
fn neighbour(arguments: &Arguments) -> Result<Neighbour, Failure> {
    let value = |name| arguments.value(name).map(str::to_owned);
    Ok(Neighbour {
        vni: arguments.parsed("vni", VNI)?,
        address: value("ip"),
        mac: value("mac"),
        host: value("host"),
        ..Neighbour::default()
    })
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let neighbour_add = MessageField::some(neighbour(arguments)?);
    session.ask(Request { neighbour_add, ..Request::default() }).map(drop)
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let neighbour = neighbour(arguments)?;
    let before = notes::look(session, request(neighbour.vni, None))
        .and_then(|first| with_others(first, neighbour.vni, session).ok());
    let (vni, address) = (neighbour.vni(), neighbour.address().to_owned());
    let neighbour_del = MessageField::some(neighbour);
    session.ask(Request { neighbour_del, ..Request::default() })?;
    if before.is_some_and(|before| !before.iter().any(|it| notes::is_same(it.address(), &address)))
    {
        let address = safe(&address);
        session
            .doubt(&format!("there was no neighbour {address} of network {vni}: nothing changed"));
    }
    Ok(())
}

/// The request for declared neighbours, those behind one or all.
pub fn request(vni: Option<u32>, after: Option<&Neighbour>) -> Request {
    let after = after.map(|neighbour| Neighbour {
        vni: neighbour.vni,
        address: neighbour.address.clone(),
        ..Neighbour::default()
    });
    let list = NeighbourListReq { vni, after: after.into(), ..NeighbourListReq::default() };
    Request { neighbour_list: MessageField::some(list), ..Request::default() }
}

/// The request for all neighbours of one network or of all: also those that routers asked for.
fn list(vni: Option<u32>) -> Request {
    let list = NeighbourListReq { vni, sought: Some(true), ..NeighbourListReq::default() };
    Request { neighbour_list: MessageField::some(list), ..Request::default() }
}

/// Returns the neighbours of a reply, and those that one reply cannot hold.
pub fn with_others(
    first: Response,
    vni: Option<u32>,
    session: &mut Session,
) -> Result<Vec<Neighbour>, Failure> {
    let mut all = first.neighbour_list;
    let mut listed = all.len();
    while listed >= MOST_LISTED {
        let more = session.ask(request(vni, all.last()))?.neighbour_list;
        listed = more.len();
        all.extend(more);
    }
    Ok(all)
}

fn print_neighbours(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let vni = arguments.parsed("vni", VNI)?;
    let mut first = session.ask(list(vni))?;
    let sought = std::mem::take(&mut first.neighbour_sought);
    let mut neighbours = with_others(first, vni, session)?;
    neighbours.iter_mut().for_each(|declared| declared.source = Some("declared".to_owned()));
    neighbours.extend(sought);
    let place = |it: &Neighbour| (it.vni(), it.address().parse::<IpAddr>().ok());
    neighbours.sort_by_key(place);
    if json {
        let rows = neighbours.iter().map(neighbour_json).collect::<Value>();
        return session.json(&json!({ "neighbours": rows }));
    }
    let rows: Vec<_> = neighbours.iter().map(row).collect();
    let heading = [
        ("vni", Align::Right),
        ("address", Align::Left),
        ("mac", Align::Left),
        ("host", Align::Left),
        ("source", Align::Left),
        ("state", Align::Left),
        ("age", Align::Right),
    ];
    session.print(table(0, heading, &rows))
}

fn row(neighbour: &Neighbour) -> [String; 7] {
    let said = |text: &Option<String>| text.as_deref().map_or("-".into(), safe);
    let Neighbour { mac, host, source, state, age_s, .. } = neighbour;
    let age = age_s.map_or("-".into(), |age| format!("{age} s"));
    let place = [neighbour.vni().to_string(), safe(neighbour.address())];
    let [vni, address] = place;
    [vni, address, said(mac), said(host), said(source), said(state), age]
}

fn neighbour_json(neighbour: &Neighbour) -> Value {
    json!({
        "vni": neighbour.vni(),
        "address": neighbour.address(),
        "mac": neighbour.mac,
        "host": neighbour.host,
        "source": neighbour.source,
        "state": neighbour.state,
        "age_s": neighbour.age_s,
    })
}

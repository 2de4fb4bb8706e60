//! `butterfly snat`, `floating`, `forward` and `nat`: addresses that machines of routers have
//! outside.

use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, list, option, word};
use crate::line::reader::Arguments;
use crate::text::table::{Align, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{Nat, Request, nat};
use butterfly_model::parse_endpoint;
use clap::{Arg, Command};
use protobuf::{EnumOrUnknown, MessageField};
use serde_json::{Value, json};

/// The `snat` commands.
pub fn snat() -> Node {
    Node::choose(
        Command::new("snat").about(
            "Has machines of a router's networks leave by addresses of an external, which they share. IPv4.",
        ),
        vec![
            Node::run(
                Command::new("add")
                    .about("Adds addresses by which machines leave. Each machine has one of them.")
                    .args([router(), external(), addresses()])
                    .after_help("butterfly snat add r1 --external internet --address 192.0.2.9"),
                |arguments, session| ask_all(snats(arguments)?, add_request, session),
            ),
            Node::run(
                Command::new("del")
                    .about("Takes that back; what goes by them ends. One that is not there is no error.")
                    .args([router(), external(), addresses()])
                    .after_help("butterfly snat del r1 --external internet --address 192.0.2.9"),
                |arguments, session| del(snats(arguments)?, session),
            ),
        ],
    )
}

/// The `floating` commands.
pub fn floating() -> Node {
    Node::choose(
        Command::new("floating").about(
            "Gives machines an address outside of their own, in both directions. IPv4 and IPv6.",
        ),
        vec![
            Node::run(
                Command::new("add")
                    .about("Gives a machine an address outside. One that the router has already is that of this machine from now on.")
                    .args([outside("IP"), of_router(), external(), to("IP").help("the machine's own address")])
                    .after_help("butterfly floating add 192.0.2.80 --router r1 --external internet --to 10.5.0.10"),
                |arguments, session| {
                    let nat = Nat { inside: said(arguments, "to"), ..floating_of(arguments) };
                    ask_all(vec![nat], add_request, session)
                },
            ),
            Node::run(
                Command::new("del")
                    .about("Takes that back. One that is not there is no error.")
                    .args([outside("IP"), external()])
                    .after_help("butterfly floating del 192.0.2.80 --external internet"),
                |arguments, session| del(vec![floating_of(arguments)], session),
            ),
        ],
    )
}

/// The `forward` commands.
pub fn forward() -> Node {
    Node::choose(
        Command::new("forward").about(
            "Has a port of an address outside lead to a port of a machine. IPv4. The address may be one by which machines leave.",
        ),
        vec![
            Node::run(
                Command::new("add")
                    .about("Forwards a port. One that the router has already leads to this machine from now on.")
                    .args([outside("IP:PORT"), of_router(), external(), protocol(), to("IP:PORT").help("the machine's own address, and its port")])
                    .after_help("butterfly forward add 192.0.2.9:443 --router r1 --external internet --proto tcp --to 10.5.0.10:8443"),
                |arguments, session| {
                    let to = end(arguments.value("to").unwrap_or_default(), "--to")?;
                    let (inside, to_port) = (Some(to.0), Some(to.1));
                    let nat = Nat { inside, to_port, ..forward_of(arguments)? };
                    ask_all(vec![nat], add_request, session)
                },
            ),
            Node::run(
                Command::new("del")
                    .about("Takes that back. One that is not there is no error.")
                    .args([outside("IP:PORT"), external(), protocol()])
                    .after_help("butterfly forward del 192.0.2.9:443 --external internet --proto tcp"),
                |arguments, session| del(vec![forward_of(arguments)?], session),
            ),
        ],
    )
}

/// The `nat` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("nat").about("Shows the addresses that machines of routers have outside: see snat, floating and forward."),
        vec![Node::run(
            Command::new("list")
                .about("Prints all of them, by router and external.")
                .arg(json())
                .after_help("butterfly nat list"),
            print_nats,
        )],
    )
}

fn router() -> Arg {
    word("ROUTER").help("id of the router")
}

fn of_router() -> Arg {
    option("router", "ROUTER").required(true).help("the router whose machines are inside")
}

fn external() -> Arg {
    option("external", "EXTERNAL").required(true).help("the external that is outside")
}

fn addresses() -> Arg {
    list("address", "IP")
        .required(true)
        .help("addresses outside, in a subnet of the external or routed to this host")
}

fn outside(value: &'static str) -> Arg {
    word(value).help("the address outside, in a subnet of the external or routed to this host")
}

fn to(value: &'static str) -> Arg {
    option("to", value).required(true)
}

fn protocol() -> Arg {
    option("proto", "tcp|udp").required(true).help("the protocol that has the ports")
}

fn said(arguments: &Arguments, name: &str) -> Option<String> {
    arguments.value(name).map(str::to_owned)
}

fn snats(arguments: &Arguments) -> Result<Vec<Nat>, Failure> {
    let nat = |address: &String| Nat {
        router: arguments.word(0).map(str::to_owned),
        kind: kind(nat::Kind::SNAT),
        external: said(arguments, "external"),
        address: Some(address.clone()),
        ..Nat::default()
    };
    Ok(arguments.values("address").iter().map(nat).collect())
}

fn floating_of(arguments: &Arguments) -> Nat {
    Nat {
        router: said(arguments, "router"),
        kind: kind(nat::Kind::FLOATING),
        external: said(arguments, "external"),
        address: arguments.word(0).map(str::to_owned),
        ..Nat::default()
    }
}

fn forward_of(arguments: &Arguments) -> Result<Nat, Failure> {
    let (address, port) = end(arguments.word(0).unwrap_or_default(), "the address outside")?;
    let protocol = match arguments.value("proto") {
        Some("tcp") => 6,
        Some("udp") => 17,
        _ => return Err(Failure::usage("--proto is tcp or udp")),
    };
    Ok(Nat {
        router: said(arguments, "router"),
        kind: kind(nat::Kind::FORWARD),
        external: said(arguments, "external"),
        address: Some(address),
        protocol: Some(protocol),
        port: Some(port),
        ..Nat::default()
    })
}

/// Reads an address and a port. A failure names the word or option.
fn end(text: &str, name: &str) -> Result<(String, u32), Failure> {
    let end = parse_endpoint(text);
    let end =
        end.map_err(|error| Failure::usage(format!("{name}: {}", safe(&error.to_string()))))?;
    Ok((end.ip().to_string(), end.port().into()))
}

fn kind(kind: nat::Kind) -> Option<EnumOrUnknown<nat::Kind>> {
    Some(EnumOrUnknown::new(kind))
}

fn add_request(nat: Nat) -> Request {
    Request { nat_add: MessageField::some(nat), ..Request::default() }
}

fn del_request(nat: Nat) -> Request {
    Request { nat_del: MessageField::some(nat), ..Request::default() }
}

fn ask_all(
    nats: Vec<Nat>,
    request: fn(Nat) -> Request,
    session: &mut Session,
) -> Result<(), Failure> {
    session.ask_all(nats.into_iter().map(request).collect()).map(drop)
}

fn del(nats: Vec<Nat>, session: &mut Session) -> Result<(), Failure> {
    let before = notes::look(session, all()).map(|response| response.nat_list);
    ask_all(nats.clone(), del_request, session)?;
    let Some(before) = before else { return Ok(()) };
    let place = |nat: &Nat| (nat.external.clone(), nat.kind, nat.protocol, nat.port);
    let is_same = |nat: &Nat, other: &Nat| {
        place(nat) == place(other) && notes::is_same(nat.address(), other.address())
    };
    for nat in nats.iter().filter(|nat| !before.iter().any(|other| is_same(nat, other))) {
        let (address, external) = (safe(nat.address()), safe(nat.external()));
        session.doubt(&format!(
            "there was no such translation of {address} at external {external}: nothing changed"
        ));
    }
    Ok(())
}

fn all() -> Request {
    Request { nat_list: Some(true), ..Request::default() }
}

fn print_nats(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let nats = session.ask(all())?.nat_list;
    if json {
        let rows = nats.iter().map(nat_json).collect::<Value>();
        return session.json(&json!({ "nat": rows }));
    }
    let rows: Vec<_> = nats.iter().map(row).collect();
    let heading = [
        ("router", Align::Left),
        ("external", Align::Left),
        ("kind", Align::Left),
        ("address", Align::Left),
        ("to", Align::Left),
        ("ports in use", Align::Left),
    ];
    session.print(table(0, heading, &rows))
}

fn word_of(nat: &Nat) -> &'static str {
    match nat.kind() {
        nat::Kind::SNAT => "snat",
        nat::Kind::FLOATING => "floating",
        nat::Kind::FORWARD => "forward",
    }
}

fn protocol_of(nat: &Nat) -> Option<&'static str> {
    match nat.protocol {
        Some(6) => Some("tcp"),
        Some(17) => Some("udp"),
        _ => None,
    }
}

fn row(nat: &Nat) -> [String; 6] {
    let end = |address: &str, port: Option<u32>| match port {
        Some(port) => format!("{}:{port}", safe(address)),
        None => safe(address),
    };
    let outside = end(nat.address(), nat.port);
    let outside = match protocol_of(nat) {
        Some(protocol) => format!("{outside}/{protocol}"),
        None => outside,
    };
    let inside = nat.inside.as_deref().map_or("-".into(), |inside| end(inside, nat.to_port));
    let used = match (nat.tcp_ports, nat.udp_ports, nat.echo_ids) {
        (None, None, None) => "-".into(),
        (tcp, udp, echo) => {
            let [tcp, udp, echo] = [tcp, udp, echo].map(Option::unwrap_or_default);
            format!("tcp {tcp}, udp {udp}, icmp {echo}")
        }
    };
    [safe(nat.router()), safe(nat.external()), word_of(nat).into(), outside, inside, used]
}

fn nat_json(nat: &Nat) -> Value {
    json!({
        "router": nat.router(),
        "external": nat.external(),
        "kind": word_of(nat),
        "address": nat.address(),
        "inside": nat.inside,
        "protocol": protocol_of(nat),
        "port": nat.port,
        "to_port": nat.to_port,
        "tcp_ports": nat.tcp_ports,
        "udp_ports": nat.udp_ports,
        "echo_ids": nat.echo_ids,
    })
}

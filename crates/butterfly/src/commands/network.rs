//! `butterfly network`: networks whose subnets are declared, for routers.

use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, list, option};
use crate::line::reader::Arguments;
use crate::text::table::{Align, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{self, Cidr, Dhcp, Network, Request, Subnet};
use butterfly_model::{DhcpRoute, Subnet as Block, canonical, parse_ip};
use clap::{Arg, Command};
use protobuf::MessageField;
use serde_json::{Value, json};

/// Values that `--vni` takes.
pub const VNI: &str = "a number from 0 to 16777215";

/// The `network` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("network").about(
            "Declares the subnets of networks, which routers can join. NICs need no declared network: without a router they talk as ever.",
        ),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the declared networks, their subnets and gateways.")
                    .args([ids().help("only the VNIs, one per line, for scripts"), json()])
                    .after_help("butterfly network list"),
                print_networks,
            ),
            Node::run(
                Command::new("add")
                    .about("Declares a network. One that is there has exactly these subnets, this MTU and this DHCP from now on; routers stay attached.")
                    .args([network().required(true), subnets(), gateways(), mtu(), public()])
                    .args(dhcp_options())
                    .after_help(
                        "butterfly network add --vni 42 --subnet 10.0.0.0/24 --gateway 10.0.0.1\n\
                         butterfly network add --vni 42 --subnet 10.0.0.0/24 2001:db8::/64 --gateway 10.0.0.1 2001:db8::1\n\
                         butterfly network add --vni 42 --subnet 10.0.0.0/24 --gateway 10.0.0.1 --dhcp --dns 9.9.9.9",
                    ),
                add,
            ),
            Node::run(
                Command::new("del")
                    .about("Takes that back, which is refused while a router is attached. NICs stay. One that is not declared is no error.")
                    .arg(network().required(true))
                    .after_help("butterfly network del --vni 42"),
                del,
            ),
        ],
    )
}

/// The flag of lists that are to be read by programs as lines.
pub fn ids() -> Arg {
    flag("ids")
}

/// Returns whether only ids are wanted. Fails if an object is, too.
pub fn wants_ids(arguments: &Arguments) -> Result<bool, Failure> {
    match arguments.has("ids") {
        true if arguments.has("json") => {
            Err(Failure::usage("--ids and --json exclude each other: the object has all ids, too"))
        }
        ids => Ok(ids),
    }
}

/// The option that names a network.
pub fn network() -> Arg {
    option("vni", "VNI").help("the network")
}

fn subnets() -> Arg {
    list("subnet", "CIDR").help("blocks of addresses of the network, 8 at most")
}

fn gateways() -> Arg {
    list("gateway", "IP").help("an address in each of the subnets, or in some: by these its machines leave the network, and a router has them that is attached without --address")
}

fn mtu() -> Arg {
    option("mtu", "BYTES").help("the largest IP packet, 68 to 65535, that a router passes on into the network (default: no limit)")
}

fn public() -> Arg {
    flag("public").help("its IPv4 addresses leave by externals as they are, as the outside has routes to them (default: translated, or not at all; IPv6 leaves as it is)")
}

/// DHCP, and what it tells.
fn dhcp_options() -> [Arg; 7] {
    [
        flag("dhcp").help("gives the network's NICs their addresses by DHCP, of IPv4 from the gateway of a subnet, and tells them of IPv6 routers; what other DHCP servers and routers in the network say is dropped (default: nobody answers but these)"),
        list("dns", "IP").help("with --dhcp: addresses of name servers, 8 at most"),
        list("search", "DOMAIN").help("with --dhcp: domains in which machines look for names"),
        option("lease", "SECONDS").help("with --dhcp: how long a lease lasts, 60 to 31536000 (default: 3600)"),
        option("next-server", "IP").help("with --dhcp: IPv4 address of the server from which machines boot (PXE)"),
        option("boot-file", "NAME").help("with --dhcp: the file that they load there"),
        list("dhcp-route", "CIDR=VIA").help("with --dhcp: routes by machines of a subnet with a gateway, 16 at most, as 10.9.0.0/16=10.0.0.7"),
    ]
}

/// Options that mean nothing without `--dhcp`.
const OF_DHCP: [&str; 6] = ["dns", "search", "lease", "next-server", "boot-file", "dhcp-route"];

/// Returns what is declared of DHCP. Fails if it is told something and is not on.
fn dhcp(arguments: &Arguments) -> Result<Option<Dhcp>, Failure> {
    if !arguments.has("dhcp") {
        return match OF_DHCP.iter().find(|name| arguments.has(name)) {
            Some(name) => Err(Failure::usage(format!("--{name} needs --dhcp, which tells it"))),
            None => Ok(None),
        };
    }
    let route = |text: &String| {
        let route = DhcpRoute::parse(text);
        route.map_err(|error| Failure::usage(format!("--dhcp-route: {}", safe(&error.to_string()))))
    };
    let routes = arguments.values("dhcp-route").iter().map(route).collect::<Result<Vec<_>, _>>()?;
    let route = |route: &DhcpRoute| proto::DhcpRoute {
        cidr: MessageField::some(cidr(&route.to())),
        via: Some(canonical(route.via())),
        ..Default::default()
    };
    Ok(Some(Dhcp {
        lease: arguments.parsed("lease", "a number of seconds from 60 to 31536000")?,
        next_server: arguments.value("next-server").map(str::to_owned),
        boot_file: arguments.value("boot-file").map(str::to_owned),
        route: routes.iter().map(route).collect(),
        ..Dhcp::default()
    }))
}

fn cidr(block: &butterfly_model::Cidr) -> Cidr {
    Cidr {
        address: Some(canonical(block.address())),
        mask_size: Some(block.mask_size().into()),
        ..Cidr::default()
    }
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let network = Network {
        vni: arguments.parsed("vni", VNI)?,
        subnet: declared(arguments.values("subnet"), arguments.values("gateway"))?,
        mtu: arguments.parsed("mtu", "a number of bytes from 68 to 65535")?,
        dhcp: dhcp(arguments)?.into(),
        dns: arguments.values("dns").to_vec(),
        search: arguments.values("search").to_vec(),
        public: arguments.has("public").then_some(true),
        ..Network::default()
    };
    let request = Request { network_add: MessageField::some(network), ..Request::default() };
    session.ask(request).map(drop)
}

/// Gives each gateway to the subnet that it is in. Fails for a text that is none, for a gateway in
/// no subnet, and for two in one.
fn declared(blocks: &[String], gateways: &[String]) -> Result<Vec<Subnet>, Failure> {
    let block = |text: &String| {
        Block::parse(text, None).map_err(|error| Failure::usage(format!("--subnet: {error}")))
    };
    let blocks = blocks.iter().map(block).collect::<Result<Vec<_>, _>>()?;
    let subnet = |block: &Block| Subnet {
        cidr: MessageField::some(cidr(&block.cidr())),
        ..Subnet::default()
    };
    let mut subnets: Vec<Subnet> = blocks.iter().map(subnet).collect();
    for text in gateways {
        let refused = |why: &str| Failure::usage(format!("--gateway {}: {why}", safe(text)));
        let address = parse_ip(text)
            .map_err(|_| refused("it is no IP address; write one of a subnet, as 10.0.0.1"))?;
        let mut places = blocks.iter().zip(&mut subnets);
        let place = places.find(|(block, _)| block.cidr().contains(address));
        let (_, subnet) = place
            .ok_or_else(|| refused("it is in none of the subnets; name its own with --subnet"))?;
        if subnet.gateway.replace(text.clone()).is_some() {
            return Err(refused(
                "its subnet has another gateway already, and may have one; leave one of them out",
            ));
        }
    }
    Ok(subnets)
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let vni: Option<u32> = arguments.parsed("vni", VNI)?;
    let before = notes::networks(session);
    session.ask(Request { network_del: vni, ..Request::default() })?;
    if let (Some(vni), Some(before)) = (vni, before)
        && !before.iter().any(|network| network.vni() == vni)
    {
        session.doubt(&format!("network {vni} was not declared: nothing changed"));
    }
    Ok(())
}

fn print_networks(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let (ids, json) = (wants_ids(arguments)?, session.wants_json(arguments));
    let request = Request { network_list: Some(true), ..Request::default() };
    let networks = session.ask(request)?.network_list;
    if ids {
        return networks.iter().try_for_each(|network| session.line(network.vni()));
    }
    if json {
        return session
            .json(&json!({ "networks": networks.iter().map(network_json).collect::<Value>() }));
    }
    let rows: Vec<_> = networks.iter().flat_map(rows_of).collect();
    let heading = [
        ("vni", Align::Right),
        ("subnet", Align::Left),
        ("gateway", Align::Left),
        ("mtu", Align::Right),
        ("dhcp", Align::Left),
        ("public", Align::Left),
    ];
    session.print(table(0, heading, &rows))
}

/// A row for each subnet; one for a network without.
fn rows_of(network: &Network) -> Vec<[String; 6]> {
    let mtu = network.mtu.map_or("-".into(), |mtu| mtu.to_string());
    let dhcp = if network.dhcp.is_some() { "yes" } else { "-" };
    let public = if network.public() { "yes" } else { "-" };
    let row = |subnet: String, gateway: Option<&str>| {
        [
            network.vni().to_string(),
            subnet,
            gateway.map_or("-".into(), safe),
            mtu.clone(),
            dhcp.into(),
            public.into(),
        ]
    };
    let subnet = |subnet: &Subnet| row(safe(&block(subnet)), subnet.gateway.as_deref());
    match network.subnet.is_empty() {
        true => vec![row("-".into(), None)],
        false => network.subnet.iter().map(subnet).collect(),
    }
}

fn block(subnet: &Subnet) -> String {
    text(&subnet.cidr)
}

fn text(cidr: &Cidr) -> String {
    format!("{}/{}", cidr.address(), cidr.mask_size())
}

fn dhcp_json(network: &Network, dhcp: &Dhcp) -> Value {
    let route = |route: &proto::DhcpRoute| json!({ "cidr": text(&route.cidr), "via": route.via });
    json!({
        "lease_s": dhcp.lease,
        "dns": network.dns,
        "search": network.search,
        "next_server": dhcp.next_server,
        "boot_file": dhcp.boot_file,
        "routes": dhcp.route.iter().map(route).collect::<Value>(),
    })
}

fn network_json(network: &Network) -> Value {
    let subnet = |subnet: &Subnet| json!({ "cidr": block(subnet), "gateway": subnet.gateway });
    json!({
        "vni": network.vni(),
        "subnets": network.subnet.iter().map(subnet).collect::<Value>(),
        "mtu_bytes": network.mtu,
        "public": network.public(),
        "dhcp": network.dhcp.as_ref().map(|dhcp| dhcp_json(network, dhcp)),
    })
}

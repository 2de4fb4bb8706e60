//! `butterfly external`: networks with an outside, by which routers lead out.

use crate::commands::network::{VNI, ids, wants_ids};
use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{json, list, option, word};
use crate::line::reader::Arguments;
use crate::text::table::{Align, counted, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{External, Request, Wire, wire::Loss};
use clap::{Arg, Command};
use protobuf::MessageField;
use serde_json::{Value, json};

/// The `external` commands.
pub fn node() -> Node {
    Node::choose(
        Command::new("external").about(
            "Declares externals: networks by which routers lead out of this host, through an interface, a VLAN of one, or a TAP device.",
        ),
        vec![
            Node::run(
                Command::new("list")
                    .about("Prints the externals, their interfaces, addresses and gateways, and why one is not in effect.")
                    .args([ids().help("only the ids, one per line, for scripts"), json()])
                    .after_help("butterfly external list"),
                print_externals,
            ),
            Node::run(
                Command::new("add")
                    .about("Declares an external. One that is there has exactly this interface, these addresses and gateways from now on; routers stay attached.")
                    .args([word("ID").help("id of the external: any text of one line"), uplink(), vlan(), vni(), addresses(), gateways(), via(), mtu()])
                    .after_help(
                        "butterfly external add internet --uplink eth1 --address 192.0.2.7/24 --gateway 192.0.2.1\n\
                         butterfly external add office --uplink eth1 --vlan 7 --vni 77 --address 198.51.100.7/24 2001:db8::7/64\n\
                         butterfly external add internet --via 192.0.2.1",
                    ),
                add,
            ),
            Node::run(
                Command::new("del")
                    .about("Takes that back, which is refused while a router is attached. One that is not declared is no error.")
                    .arg(external())
                    .after_help("butterfly external del internet"),
                del,
            ),
        ],
    )
}

/// The word for one external.
fn external() -> Arg {
    word("EXTERNAL").help("id of the external")
}

fn uplink() -> Arg {
    option("uplink", "IFACE|tap[:NAME]").help("the interface by which it leaves this host, or a TAP device that the daemon makes (default: its NICs are its outside, which needs --vni)")
}

fn vlan() -> Arg {
    option("vlan", "VLAN")
        .help("with --uplink: the VLAN of the interface, 1 to 4094 (default: its untagged frames)")
}

fn vni() -> Arg {
    option("vni", "VNI").help("the number of its network, in which NICs may be then (default: the highest number that nothing has, and no NIC is in it)")
}

fn addresses() -> Arg {
    list("address", "IP/LEN").help("addresses of this host there with the lengths of their subnets, 8 at most, of each family in one subnet (mandatory without --via)")
}

fn gateways() -> Arg {
    list("gateway", "IP").help(
        "the next routers outside, one of each family: attached routers lead to everything by them",
    )
}

fn mtu() -> Arg {
    option("mtu", "BYTES").help(
        "the largest IP packet, 68 to 65535, that leaves by it (default: as the interface takes; with --via 1500)",
    )
}

fn via() -> Arg {
    option("via", "HOST").help("the tunnel endpoint of the host that leads out for this one: it has the interface, the addresses and the translations")
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let external = External {
        id: arguments.word(0).map(str::to_owned),
        uplink: arguments.value("uplink").map(str::to_owned),
        vlan: arguments.parsed("vlan", "a number from 1 to 4094")?,
        vni: arguments.parsed("vni", VNI)?,
        address: arguments.values("address").to_vec(),
        gateway: arguments.values("gateway").to_vec(),
        mtu: arguments.parsed("mtu", "a number of bytes from 68 to 65535")?,
        via: arguments.value("via").map(str::to_owned),
        ..External::default()
    };
    if external.via.is_some() {
        let beside = [
            (external.uplink.is_some(), "--uplink"),
            (external.vlan.is_some(), "--vlan"),
            (external.vni.is_some(), "--vni"),
            (!external.address.is_empty(), "--address"),
            (!external.gateway.is_empty(), "--gateway"),
        ];
        if let Some((_, name)) = beside.into_iter().find(|(has, _)| *has) {
            return Err(Failure::usage(format!(
                "with --via the other host leads out: give {name} there, and not here"
            )));
        }
    } else if external.address.is_empty() {
        return Err(Failure::usage(
            "an external needs --address, this host's address there; or --via, the host that leads out instead",
        ));
    }
    if external.uplink.is_none() && external.via.is_none() {
        if external.vlan.is_some() {
            return Err(Failure::usage("--vlan needs --uplink, whose VLAN it is"));
        }
        if external.vni.is_none() {
            return Err(Failure::usage(
                "an external leads out by an interface, --uplink, or by another host, --via, or has NICs as its outside, --vni",
            ));
        }
    }
    let request = Request { external_add: MessageField::some(external), ..Request::default() };
    session.ask(request).map(drop)
}

fn del(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let id = arguments.word(0).unwrap_or_default();
    let before = notes::look(session, all()).map(|response| response.external_list);
    session.ask(Request { external_del: Some(id.to_owned()), ..Request::default() })?;
    if before.is_some_and(|before| !before.iter().any(|external| external.id() == id)) {
        session.doubt(&format!("there was no external {}: nothing changed", safe(id)));
    }
    Ok(())
}

/// Asks for all externals.
pub fn all() -> Request {
    Request { external_list: Some(true), ..Request::default() }
}

fn print_externals(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let (ids, json) = (wants_ids(arguments)?, session.wants_json(arguments));
    let externals = session.ask(all())?.external_list;
    if ids {
        return externals.iter().try_for_each(|external| session.line(external.id()));
    }
    if json {
        let rows = externals.iter().map(external_json).collect::<Value>();
        return session.json(&json!({ "externals": rows }));
    }
    let rows: Vec<_> = externals.iter().map(row).collect();
    let losses: Vec<String> = externals.iter().flat_map(losses).collect();
    let heading = [
        ("external", Align::Left),
        ("uplink", Align::Left),
        ("vlan", Align::Right),
        ("vni", Align::Right),
        ("address", Align::Left),
        ("gateway", Align::Left),
        ("via", Align::Left),
        ("mtu", Align::Right),
        ("in effect", Align::Left),
    ];
    let mut page = table(0, heading, &rows);
    if !losses.is_empty() {
        page.push_str(&format!("\n{}\n", losses.join("\n")));
    }
    session.print(page)
}

/// Returns why nothing passes by an external now; `None` if something can.
pub fn trouble(external: &External) -> Option<&str> {
    external.not_in_effect.as_deref().or(external.wire.trouble.as_deref())
}

/// Returns how many frames the wire of an external lost that no drop tells of.
pub fn lost(external: &External) -> u64 {
    external.wire.loss.iter().map(Loss::count).sum()
}

/// Returns lines for what the wire of an external lost: how much, and what to do.
fn losses(external: &External) -> Vec<String> {
    let told = |loss: &Loss| {
        format!(
            "wire/{}: {}: {} so far\n  {}\n  what to do: {}",
            safe(external.id()),
            safe(loss.reason()),
            counted(loss.count(), "frame"),
            safe(loss.description()),
            safe(loss.remedy())
        )
    };
    external.wire.loss.iter().map(told).collect()
}

fn row(external: &External) -> [String; 9] {
    let number = |number: Option<u32>| number.map_or("-".into(), |number| number.to_string());
    let texts = |texts: &[String]| match texts.is_empty() {
        true => "-".to_owned(),
        false => safe(&texts.join(" ")),
    };
    let effect = trouble(external);
    [
        safe(external.id()),
        external.uplink.as_deref().map_or("-".into(), safe),
        number(external.vlan),
        number(external.vni),
        texts(&external.address),
        texts(&external.gateway),
        external.via.as_deref().map_or("-".into(), safe),
        number(external.mtu),
        effect.map_or("yes".into(), |why| format!("no: {}", safe(why))),
    ]
}

/// Returns what passes by the wire of an external.
pub fn wire_json(wire: &Wire) -> Value {
    let drops =
        wire.drop.iter().map(|drop| json!({ "reason": drop.reason(), "count": drop.count() }));
    let losses = wire.loss.iter().map(|loss| {
        json!({
            "reason": loss.reason(), "count": loss.count(), "description": loss.description(),
            "remedy": loss.remedy(),
        })
    });
    json!({
        "interface": wire.interface,
        "in_packets": wire.in_packets(),
        "in_bytes": wire.in_bytes(),
        "out_packets": wire.out_packets(),
        "out_bytes": wire.out_bytes(),
        "drops": drops.collect::<Value>(),
        "losses": losses.collect::<Value>(),
    })
}

fn external_json(external: &External) -> Value {
    json!({
        "id": external.id(),
        "uplink": external.uplink,
        "vlan": external.vlan,
        "vni": external.vni,
        "vni_chosen": external.chosen(),
        "addresses": external.address,
        "gateways": external.gateway,
        "via": external.via,
        "mtu_bytes": external.mtu,
        "not_in_effect": external.not_in_effect,
        "trouble": trouble(external),
        "wire": external.wire.as_ref().map(wire_json),
    })
}

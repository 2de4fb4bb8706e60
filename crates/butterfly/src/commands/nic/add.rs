//! `butterfly nic add`.

use super::limits;
use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, list, option};
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::{Nic, Request, nic::Type};
use clap::Command;
use protobuf::MessageField;
use serde_json::json;

/// `nic add`.
pub fn node() -> Node {
    Node::run(
        Command::new("add")
            .about("Creates a virtual NIC, or brings an existing one to this declaration. Prints the socket's path.")
            .args([
                option("id", "ID").required(true).help("name of the NIC, unique on the host"),
                option("mac", "MAC").required(true).help("MAC address of the virtual machine's side"),
                option("vni", "VNI").required(true).help("network, 0 to 16777215"),
                list("ip", "IP").help("IPv4 or IPv6 addresses of the virtual machine"),
                list("prefix", "PREFIX").help("IPv6 prefixes of length 64, 4 at most: the VM forms addresses in them (SLAAC), and all of these are its own"),
                list("sg", "SG").help("security groups; they need not exist yet"),
                option("type", "TYPE").help(
                    "VHOST_USER_SERVER (default: Butterfly owns the socket), VHOST_USER_CLIENT (QEMU owns it), TAP (a network interface of this host, or of a container), BENCH (pings inside the switch)",
                ),
                option("path", "PATH").help("socket of QEMU, for VHOST_USER_CLIENT (default: as the server's)"),
                option("netns", "NAME|PATH").help("for TAP: the network namespace that the interface is moved to (default: the daemon's)"),
                option("btype", "BTYPE").help("for BENCH: ICMP_SND_LIKE (pings --dip) or ICMP_RCV_LIKE (answers for its first --ip)"),
                option("dip", "IP").help("for ICMP_SND_LIKE: address to ping"),
                option("dmac", "MAC").help("for ICMP_SND_LIKE: MAC address to ping"),
                flag("enable-antispoof").help("drop ARP that does not speak for the NIC's own addresses"),
                option("packet-trace", "true|false").help("write the NIC's packets to a pcap file (default: as the daemon was told with -t)"),
                option("trace-path", "PATH").help("that file (default: /tmp/butterfly-PID-ID.pcap); needs --packet-trace true"),
                option("trace-filter", "FILTER").help("write only these packets, in the syntax of tcpdump"),
                option("trace-snap", "BYTES").help("write so many bytes of each packet (default: 65535)"),
                option("trace-file-size", "BYTES").help("begin the next file, PATH.1 and so on, when one has so many"),
                option("trace-files", "N").help("overwrite the first file after so many (default: 2); needs --trace-file-size"),
                flag("bypass-filtering").help("no firewall and no source checks for this NIC"),
                flag("forwards").help(
                    "passes on packets of others, as routers and load balancers do: they may be from addresses of filtered NICs; with --bypass-filtering",
                ),
                flag("shared-ip").help("machines on other hosts have its addresses, too (VRRP, keepalived)"),
                flag("router").help("let it send router advertisements and redirects, by an OUTBOUND rule for protocol 58 (or 1)"),
                option("sniff-target", "NIC").help("a mirror of that NIC of the same VNI: gets copies of all it sends and receives, and cannot send"),
                json(),
            ])
            .args(limits::options())
            .after_help(
                "butterfly nic add --id vm-1 --mac 52:54:00:12:34:01 --vni 42 --ip 10.0.0.1 --sg web\n\
                 butterfly nic add --id vm-1 --mac 52:54:00:12:34:01 --vni 42 --ip 10.0.0.1 --prefix 2001:db8:0:1::/64\n\
                 butterfly nic add --id vm-2 --mac 52:54:00:12:34:02 --vni 42 --type VHOST_USER_CLIENT --path /run/vm-2.sock\n\
                 butterfly nic add --id vm-3 --mac 52:54:00:12:34:03 --vni 42 --limit-in 1G --limit-out 2G\n\
                 butterfly nic add --id probe --mac 52:54:00:12:34:99 --vni 42 --sniff-target vm-1",
            ),
        add,
    ).of_the_original()
}

fn add(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let nic = nic(arguments)?;
    for what in without_effect(arguments, &nic) {
        session.ignored(&what)?;
    }
    let request = Request { nic_add: MessageField::some(nic), ..Request::default() };
    let response = session.ask(request)?;
    let added = response
        .nic_add
        .into_option()
        .ok_or_else(|| Failure::said("no nic add result received"))?;
    match json {
        true => session.json(&json!({ "id": arguments.value("id"), "path": added.path() }))?,
        false => session.line(added.path())?,
    }
    let id = arguments.value("id").unwrap_or_default();
    notes::of_remade(id, &added.remade, session);
    notes::of_nic(id, session);
    notes::of_shared_addresses(id, session);
    notes::of_prefixes(id, arguments.values("prefix"), session);
    Ok(())
}

/// Options that do nothing together with the others.
fn without_effect(arguments: &Arguments, nic: &Nic) -> Vec<String> {
    let given = |names: &[&'static str]| {
        names.iter().filter(|name| arguments.has(name)).map(|name| format!("--{name}")).collect()
    };
    let none = |given: Vec<String>, why: &str| {
        given.into_iter().map(|name| format!("{name}: {why}")).collect()
    };
    let bench: Vec<String> =
        match (nic.type_.map(|kind| kind.enum_value_or_default()), arguments.value("btype")) {
            (Some(Type::BENCH), Some("ICMP_RCV_LIKE")) => {
                none(given(&["dip", "dmac"]), "it is for --btype ICMP_SND_LIKE")
            }
            (Some(Type::BENCH), _) => Vec::new(),
            _ => none(given(&["btype", "dip", "dmac"]), "it is for --type BENCH"),
        };
    let filters = match nic.bypass_filtering() {
        true => none(
            given(&["sg", "enable-antispoof"]),
            "with --bypass-filtering nothing of this NIC is filtered",
        ),
        false => Vec::new(),
    };
    [bench, filters].concat()
}

fn nic(arguments: &Arguments) -> Result<Nic, Failure> {
    let text = |name| arguments.value(name).map(str::to_owned);
    let kind = match arguments.value("type") {
        None => None,
        Some("VHOST_USER_SERVER") => Some(Type::VHOST_USER_SERVER),
        Some("VHOST_USER_CLIENT") => Some(Type::VHOST_USER_CLIENT),
        Some("TAP") => Some(Type::TAP),
        Some("BENCH") => Some(Type::BENCH),
        Some(other) => {
            return Err(Failure::not_recognized(
                "type",
                other,
                "VHOST_USER_SERVER, VHOST_USER_CLIENT, TAP or BENCH",
            ));
        }
    };
    let packet_trace = arguments.parsed::<bool>("packet-trace", "true or false")?;
    if arguments.has("trace-path") && packet_trace != Some(true) {
        return Err(Failure::usage("--trace-path needs --packet-trace true"));
    }
    if arguments.has("path") && kind != Some(Type::VHOST_USER_CLIENT) {
        return Err(Failure::usage("--path needs --type VHOST_USER_CLIENT"));
    }
    if let Some(name) = arguments.values("sg").iter().find(|name| name.contains(',')) {
        let apart = name.replace(',', " ");
        return Err(Failure::usage(format!(
            "--sg argument not recognized\nhelp: several groups are written --sg {}; one whose name has a comma is attached with `butterfly nic sg add`",
            apart.trim()
        )));
    }
    if arguments.has("forwards") && !arguments.has("bypass-filtering") {
        return Err(Failure::usage(
            "--forwards needs --bypass-filtering: a filtered NIC sends from its own addresses only",
        ));
    }
    if arguments.has("netns") && kind != Some(Type::TAP) {
        return Err(Failure::usage("--netns needs --type TAP"));
    }
    Ok(Nic {
        id: text("id"),
        mac: text("mac"),
        vni: arguments.parsed("vni", "a number from 0 to 16777215")?,
        ip: arguments.values("ip").to_vec(),
        prefix: arguments.values("prefix").to_vec(),
        security_group: arguments.values("sg").to_vec(),
        ip_anti_spoof: arguments.has("enable-antispoof").then_some(true),
        bypass_filtering: arguments.has("bypass-filtering").then_some(true),
        forwards: arguments.has("forwards").then_some(true),
        shared_ip: arguments.has("shared-ip").then_some(true),
        router: arguments.has("router").then_some(true),
        limits: limits::limits(arguments)?.into(),
        sniff_target_nic_id: text("sniff-target"),
        type_: kind.map(Into::into),
        path: text("path"),
        packet_trace,
        packet_trace_path: text("trace-path"),
        packet_trace_options: super::trace_options(arguments)?.into(),
        netns: text("netns"),
        btype: text("btype"),
        dip: text("dip"),
        dmac: text("dmac"),
        ..Nic::default()
    })
}

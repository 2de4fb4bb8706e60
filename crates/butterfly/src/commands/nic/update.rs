//! `butterfly nic update`.

use super::limits;
use crate::commands::notes;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{list, option};
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::{NicUpdateReq, Request};
use clap::Command;
use protobuf::MessageField;

/// The value of `--ip` and `--prefix` that clears all of them.
const CLEAR: &str = "-e";

/// `nic update`.
pub fn node() -> Node {
    Node::run(
        Command::new("update")
            .about("Changes a virtual NIC. What is not named stays as it is.")
            .args([
                option("id", "ID").required(true).help("the NIC"),
                list("ip", "IP").help("its addresses, all of them; `--ip -e` clears them"),
                list("prefix", "PREFIX").help("its IPv6 prefixes for SLAAC, all of them; `--prefix -e` clears them"),
                option("enable-antispoof", "true|false").help("drop ARP that does not speak for the NIC's own addresses"),
                option("forwards", "true|false").help(
                    "passes on packets of others, as routers and load balancers do: they may be from addresses of filtered NICs; of a NIC that bypasses filtering",
                ),
                option("shared-ip", "true|false").help("machines on other hosts have its addresses, too (VRRP, keepalived)"),
                option("router", "true|false")
                    .help("let it send router advertisements and redirects, by an OUTBOUND rule for protocol 58 (or 1)"),
                option("packet-trace", "true|false").help("write the NIC's packets to a pcap file"),
                option("trace-path", "PATH").help("that file"),
                option("trace-filter", "FILTER").help("write only these packets, in the syntax of tcpdump"),
                option("trace-snap", "BYTES").help("write so many bytes of each packet (default: 65535)"),
                option("trace-file-size", "BYTES").help("begin the next file, PATH.1 and so on, when one has so many"),
                option("trace-files", "N").help("overwrite the first file after so many (default: 2); needs --trace-file-size"),
            ])
            .args(limits::options())
            .after_help(
                "butterfly nic update --id vm-1 --ip 10.0.0.1 10.0.0.2 --enable-antispoof true\n\
                 butterfly nic update --id vm-1 --ip -e\n\
                 butterfly nic update --id vm-1 --limit-in 1G --limit-in-packets 100k",
            ),
        |arguments, session| update(arguments, session).map_err(Failure::with_help),
    ).of_the_original()
}

fn update(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let request = Request {
        nic_update: MessageField::some(NicUpdateReq {
            id: arguments.value("id").map(str::to_owned),
            ip_anti_spoof: arguments.parsed("enable-antispoof", "true or false")?,
            forwards: arguments.parsed("forwards", "true or false")?,
            shared_ip: arguments.parsed("shared-ip", "true or false")?,
            router: arguments.parsed("router", "true or false")?,
            limits: limits::limits(arguments)?.into(),
            ip: values(arguments, "ip", "addresses")?,
            prefix: values(arguments, "prefix", "prefixes")?,
            packet_trace: arguments.parsed("packet-trace", "true or false")?,
            packet_trace_path: arguments.value("trace-path").map(str::to_owned),
            packet_trace_options: super::trace_options(arguments)?.into(),
            ..NicUpdateReq::default()
        }),
        ..Request::default()
    };
    notes::ask_of_nic(arguments.value("id").unwrap_or_default(), request, session)?;
    if let (Some(id), false) = (arguments.value("id"), arguments.values("ip").is_empty()) {
        notes::of_shared_addresses(id, session);
    }
    if let Some(id) = arguments.value("id") {
        let given = arguments.values("prefix").iter().filter(|text| *text != CLEAR);
        notes::of_prefixes(id, &given.cloned().collect::<Vec<_>>(), session);
    }
    Ok(())
}

/// The list to send: on the wire one empty string clears all.
fn values(arguments: &Arguments, name: &str, what: &str) -> Result<Vec<String>, Failure> {
    let values = arguments.values(name);
    if values.iter().all(|value| value != CLEAR) {
        return Ok(values.to_vec());
    }
    // `--ip -e tcp://host:1` would clear the addresses on another host than
    // the one that was meant.
    match values {
        [_] => Ok(vec![String::new()]),
        _ => Err(Failure::usage(format!(
            "`--{name} -e` clears all {what} and takes no other; name the endpoint with --endpoint",
        ))),
    }
}

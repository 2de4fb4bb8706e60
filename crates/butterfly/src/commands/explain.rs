//! `butterfly explain`: what would happen to a packet, and why.

mod ask;
mod json;
mod page;

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::{flag, json, option};
use crate::line::reader::Arguments;
use crate::tree::Node;
use butterfly_api::proto::{ExplainReq, ExplainRes};
use clap::Command;

/// `explain`.
pub fn node() -> Node {
    Node::run(
        Command::new("explain")
            .about(
                "Says what would happen to a packet, stage by stage, without sending it. \
                 Exit code 0: it would arrive or leave for another host; 2: it would not; 1: the question has no answer.",
            )
            .args([
                option("from", "NIC|outside")
                    .required(true)
                    .help("who sends it: a NIC, or somebody outside of this host (then --src too, and --vni or --external)"),
                option("to", "IP|NIC").required(true).help("who it is for"),
                option("proto", "PROTO")
                    .help("tcp, udp, icmp, icmpv6, sctp or a number (default: tcp with --port, else an echo request)"),
                option("port", "PORT").help("destination port, for tcp, udp and sctp"),
                option("src", "IP").help("source address (default: the NIC's first)"),
                option("sport", "PORT").help("source port, or identifier of an echo (default: 49152)"),
                option("flags", "FLAGS")
                    .help("of tcp, such as syn or fin,ack (default: syn); without syn, a segment of a known connection"),
                option("icmp", "TYPE[/CODE]").help("numbers of another ICMP message than an echo request"),
                option("size", "BYTES").help("of the IP packet (default: as few as it takes)"),
                option("vni", "VNI").help("with --from outside: the network"),
                option("external", "EXTERNAL").help("with --from outside: somebody behind this external, by its id"),
                option("mac", "MAC").help("destination MAC address (default: of the NIC that has the address, else of the gateway that leads to it)"),
                option("src-mac", "MAC").help("source MAC address (default: the NIC's)"),
                flag("reply").help("explain the answer, too"),
                option("far-endpoint", "EP")
                    .help("ZeroMQ endpoint of the daemon of the host that has the destination: it is asked, too"),
                json(),
            ])
            .after_help(
                "butterfly explain --from vm-1 --to 10.0.0.2 --port 443 --reply\n\
                 butterfly explain --from vm-1 --to vm-9 --port 443 --far-endpoint tcp://192.0.2.9:9999\n\
                 butterfly explain --from outside --vni 42 --src 10.0.0.9 --to vm-1\n\
                 butterfly explain --from outside --external internet --src 198.51.100.1 --to 192.0.2.80 --port 80",
            ),
        explain,
    )
}

/// Source of a packet from another host.
const OUTSIDE: &str = "outside";

fn explain(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let mut question = ask::question(arguments)?;
    let mut answers: Vec<(String, ExplainReq, ExplainRes)> = Vec::new();
    if let Some(endpoint) = arguments.value("far-endpoint") {
        let far = ask::from_outside(&question, session)?;
        if question.to_address.is_none() {
            // The daemon here does not know vnics of other hosts.
            (question.to_nic, question.to_address) = (None, ask::address(endpoint, &far, session)?);
        }
        // A machine that this host does not know is in the sender's network.
        let routed = ask::ask(&question, session).ok().filter(ask::is_routed);
        let far = routed.as_ref().map_or(Some(far.clone()), |answer| ask::beyond(&far, answer));
        if let Some(far) = far {
            let answer = ask::ask_at(endpoint, &far, session)?;
            if routed.is_none() {
                question.destination_mac =
                    question.destination_mac.or(answer.destination_mac.clone());
            }
            answers.push((endpoint.to_owned(), far, answer));
        }
    }
    let answer = ask::ask(&question, session)?;
    answers.insert(0, (String::new(), question, answer));
    let allowed = answers.iter().all(|(_, _, answer)| answer.allowed());
    match json {
        true => session.json(&json::json(&answers))?,
        false => session.print(page::page(&answers))?,
    }
    if allowed { Ok(()) } else { Err(Failure::Negative) }
}

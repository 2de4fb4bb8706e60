//! The options that describe a rule, and the rule they make.

use crate::failure::Failure;
use crate::line::options::option;
use crate::line::reader::Arguments;
use crate::text::protocol;
use butterfly_api::proto::{Cidr, Rule, rule::Direction};
use clap::Arg;
use protobuf::MessageField;

const PORT: &str = "a number from 0 to 65535";

/// The options; `mandatory` when there is no other way to name the rule.
pub fn options(mandatory: bool) -> [Arg; 7] {
    [
        option("dir", "in|out")
            .help("direction: in, towards the virtual machine (default), or out"),
        option("ip-proto", "PROTO")
            .required(mandatory)
            .help("tcp, udp, icmp, icmpv6, sctp, all, or a number from -1 (all) to 255"),
        option("port", "PORT").help("destination port, for tcp and udp"),
        option("port-start", "PORT").help("first destination port, with --port-end"),
        option("port-end", "PORT").help("last destination port"),
        option("cidr", "ADDRESS/MASK").help("addresses at the other end"),
        option("sg-members", "SG").help("or: the members of that security group"),
    ]
}

/// The names of the options.
pub fn names() -> impl Iterator<Item = String> {
    options(true).into_iter().map(|option| option.get_id().to_string())
}

/// Returns the parts of the rule that have no effect.
pub fn without_effect(rule: &Rule) -> Vec<String> {
    let mut told = Vec::new();
    if rule.port_start.is_some() && !has_ports(rule.protocol()) {
        let protocol = match rule.protocol() {
            -1 => "all protocols".to_owned(),
            number => format!("protocol {number}"),
        };
        told.push(format!(
            "ports: a rule for {protocol} means every port; did you mean --ip-proto tcp, or udp?"
        ));
    }
    let block = rule.cidr.address();
    let other = match (rule.protocol(), block.contains(':')) {
        (ICMP, true) => Some("icmpv6"),
        (ICMPV6, false) if !block.is_empty() => Some("icmp"),
        _ => None,
    };
    if let Some(other) = other {
        told.push(format!(
            "the rule: it matches nothing, as addresses like {block} have the protocol {other}"
        ));
    }
    told
}

const ICMP: i32 = 1;
const ICMPV6: i32 = 58;

/// True if a rule for `protocol` looks at ports.
fn has_ports(protocol: i32) -> bool {
    u32::try_from(protocol).is_ok_and(|number| number == protocol::TCP || number == protocol::UDP)
}

/// The rule that the options describe.
pub fn rule(arguments: &Arguments) -> Result<Rule, Failure> {
    let direction = match arguments.value("dir") {
        None | Some("in") => Direction::INBOUND,
        Some("out") => Direction::OUTBOUND,
        Some(other) => return Err(Failure::not_recognized("dir", other, "in or out")),
    };
    let protocol = arguments.value("ip-proto").map(protocol).transpose()?;
    let port: Option<u16> =
        arguments.parsed("port", PORT).map_err(|failure| a_range(arguments).unwrap_or(failure))?;
    let start = arguments.parsed::<u16>("port-start", PORT)?;
    let end = arguments.parsed::<u16>("port-end", PORT)?;
    let cidr = arguments.value("cidr").map(cidr).transpose()?;

    let protocol = protocol.ok_or_else(|| Failure::usage("--ip-proto is mandatory"))?;
    if let Some(name @ ("icmpv6" | "sctp")) = arguments.value("ip-proto")
        && (port.is_some() || start.is_some() || end.is_some())
    {
        return Err(Failure::usage(format!(
            "wrong port configuration\nhelp: a rule for {name} means every port: leave the ports away"
        )));
    }
    let ports = match (port, start, end) {
        (Some(port), None, None) => Some((port, port)),
        (None, Some(start), Some(end)) if start <= end => Some((start, end)),
        (None, None, None) if !has_ports(protocol) => None,
        _ => {
            return Err(Failure::usage(
                "wrong port configuration\nhelp: tcp and udp need --port, or --port-start and --port-end with the start not after the end",
            ));
        }
    };
    let members = arguments.value("sg-members");
    match (&cidr, members) {
        (Some(_), Some(_)) => return Err(Failure::usage("--cidr can't be set with --sg-members")),
        (None, None) => return Err(Failure::usage("you must set --cidr or --sg-members")),
        _ => {}
    }
    Ok(Rule {
        direction: Some(direction.into()),
        protocol: Some(protocol),
        port_start: ports.map(|(start, _)| start.into()),
        port_end: ports.map(|(_, end)| end.into()),
        cidr: MessageField(cidr.map(Box::new)),
        security_group: members.map(str::to_owned),
        ..Rule::default()
    })
}

fn protocol(word: &str) -> Result<i32, Failure> {
    match word {
        "all" => Ok(-1),
        word => {
            match (protocol::named(word).and_then(|number| number.try_into().ok()), word.parse()) {
                (Some(protocol), _) | (None, Ok(protocol @ -1..=255)) => Ok(protocol),
                _ => Err(Failure::not_recognized(
                    "ip-proto",
                    word,
                    "tcp, udp, icmp, icmpv6, sctp, all or a number from -1 (all) to 255",
                )),
            }
        }
    }
}

/// The refusal of `--port 80-90`, with what to write instead.
fn a_range(arguments: &Arguments) -> Option<Failure> {
    let word = arguments.value("port")?;
    let (start, end) = word.split_once(['-', ':'])?;
    let (start, end) = (start.parse::<u16>().ok()?, end.parse::<u16>().ok()?);
    let help = format!("help: {word:?} is a range: --port-start {start} --port-end {end}");
    Some(Failure::usage(format!("--port argument not recognized\n{help}")))
}

fn cidr(word: &str) -> Result<Cidr, Failure> {
    let refused = || {
        Failure::usage(format!(
            "--cidr format not recognized\nhelp: {word:?} is not like 10.0.0.0/8 or 2001:db8::/32"
        ))
    };
    if let Ok(address) = butterfly_model::parse_ip(word) {
        let mask = if address.is_ipv6() { 128 } else { 32 };
        let help = format!("help: {word:?} has no mask: {word}/{mask} is this address alone");
        return Err(Failure::usage(format!("--cidr format not recognized\n{help}")));
    }
    let (address, mask) = word.split_once('/').ok_or_else(refused)?;
    let mask = mask.parse().map_err(|_| refused())?;
    butterfly_model::Cidr::new(address, mask).map_err(|_| refused())?;
    // Sent as it was written: the daemon decides about host bits.
    Ok(Cidr { address: Some(address.to_owned()), mask_size: Some(mask), ..Cidr::default() })
}

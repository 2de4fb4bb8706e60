//! Turns the command line into questions, for this daemon and the other one.

use super::OUTSIDE;
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::reader::Arguments;
use crate::text::protocol;
use butterfly_api::proto::{ExplainReq, ExplainRes, ExplainWalk, Nic, Request, explain_walk};
use protobuf::MessageField;

/// The packet that the words mean.
pub fn question(arguments: &Arguments) -> Result<ExplainReq, Failure> {
    let port = "a number from 0 to 65535";
    let number = |name: &str| Ok::<_, Failure>(arguments.parsed::<u16>(name, port)?.map(u32::from));
    let text = |name: &str| arguments.value(name).map(str::to_owned);
    let from = text("from").filter(|from| from != OUTSIDE);
    let vni = arguments.parsed::<u32>("vni", "a number from 0 to 16777215")?;
    let external = text("external");
    match (&from, vni, &external) {
        (None, None, None) => {
            return Err(Failure::usage("--from outside needs --vni, or --external"));
        }
        (None, Some(_), Some(_)) => {
            return Err(Failure::usage(
                "--vni and --external say the same, where a packet comes from: give one of them",
            ));
        }
        (Some(_), None, None) | (None, ..) => {}
        (Some(_), ..) => {
            return Err(Failure::usage(
                "--vni and --external go with --from outside: a NIC is in its own network",
            ));
        }
    }
    if from.is_none() && arguments.value("src").is_none() {
        return Err(Failure::usage("--src is mandatory with --from outside"));
    }
    let to = text("to");
    let is_address = to.as_deref().is_some_and(|to| butterfly_model::parse_ip(to).is_ok());
    let destination_port = number("port")?;
    let (icmp_type, icmp_code) = arguments.value("icmp").map(icmp).transpose()?.unzip();
    Ok(ExplainReq {
        vni: vni.filter(|_| from.is_none()),
        from_nic: from,
        to_address: to.clone().filter(|_| is_address),
        to_nic: to.filter(|_| !is_address),
        protocol: arguments
            .value("proto")
            .map(protocol::parse)
            .transpose()?
            .or(destination_port.map(|_| protocol::TCP)),
        source_port: number("sport")?,
        destination_port,
        source: text("src"),
        source_mac: text("src-mac"),
        destination_mac: text("mac"),
        tcp_flags: arguments.value("flags").map(flags).transpose()?,
        icmp_type,
        icmp_code,
        length: arguments.parsed::<u16>("size", port)?.map(u32::from),
        external,
        reply: Some(arguments.has("reply")).filter(|reply| *reply),
        ..ExplainReq::default()
    })
}

const FLAGS: [(&str, u32); 5] = [("fin", 1), ("syn", 2), ("rst", 4), ("psh", 8), ("ack", 16)];

fn flags(words: &str) -> Result<u32, Failure> {
    let flag = |word: &str| {
        FLAGS.iter().find(|(name, _)| *name == word.to_lowercase()).map(|(_, bit)| *bit)
    };
    let bits: Option<Vec<u32>> = words.split(',').map(flag).collect();
    let bits = bits.ok_or_else(|| {
        Failure::not_recognized(
            "flags",
            words,
            "some of syn, ack, fin, rst, psh with commas between",
        )
    })?;
    Ok(bits.into_iter().fold(0, |all, bit| all | bit))
}

fn icmp(word: &str) -> Result<(u32, u32), Failure> {
    let (kind, code) = word.split_once('/').unwrap_or((word, "0"));
    let number = |text: &str| text.parse::<u8>().map(u32::from);
    match (number(kind), number(code)) {
        (Ok(kind), Ok(code)) => Ok((kind, code)),
        _ => Err(Failure::not_recognized("icmp", word, "a type from 0 to 255, maybe with /CODE")),
    }
}

/// Words that ask the same question again, of the host that the packet goes to.
pub fn words(question: &ExplainReq) -> String {
    let mut words = format!("butterfly explain --from {OUTSIDE}");
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            words.push_str(&format!(" --{name} {value}"));
        }
    };
    add("vni", question.vni.map(|n| n.to_string()));
    add("external", question.external.clone());
    add("src", question.source.clone());
    add("src-mac", question.source_mac.clone());
    add("to", question.to_address.clone().or(question.to_nic.clone()));
    add("proto", question.protocol.map(|n| n.to_string()));
    add("port", question.destination_port.map(|n| n.to_string()));
    add("sport", question.source_port.map(|n| n.to_string()));
    add("mac", question.destination_mac.clone());
    if let Some(bits) = question.tcp_flags {
        let names: Vec<&str> =
            FLAGS.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| *name).collect();
        add("flags", Some(names.join(",")));
    }
    add("icmp", question.icmp_type.map(|kind| format!("{kind}/{}", question.icmp_code())));
    add("size", question.length.map(|n| n.to_string()));
    if question.reply() {
        words.push_str(" --reply");
    }
    words
}

/// Asks the daemon of this host.
pub fn ask(question: &ExplainReq, session: &mut Session) -> Result<ExplainRes, Failure> {
    answer(session.ask(request(question))?.explain)
}

/// Asks another daemon.
pub fn ask_at(
    endpoint: &str,
    question: &ExplainReq,
    session: &mut Session,
) -> Result<ExplainRes, Failure> {
    answer(session.ask_at(endpoint, request(question))?.explain)
}

fn request(question: &ExplainReq) -> Request {
    Request { explain: MessageField::some(question.clone()), ..Request::default() }
}

fn answer(answer: MessageField<ExplainRes>) -> Result<ExplainRes, Failure> {
    answer.into_option().ok_or_else(|| Failure::said("no explanation received"))
}

/// Returns whether the packet goes to a router of the sender's host, so that it arrives in another
/// network, if it does.
pub fn is_routed(answer: &ExplainRes) -> bool {
    let is_route = |way: &ExplainWalk| way.step.iter().any(|step| step.stage() == "route");
    answer.walk.first().is_some_and(is_route)
}

/// Asks for the same packet as a router passes it on. `None` if it does not leave for another host.
pub fn beyond(far: &ExplainReq, answer: &ExplainRes) -> Option<ExplainReq> {
    let way = answer.walk.first().filter(|way| way.fate() == explain_walk::Fate::LEAVES)?;
    let routed = way.routed.as_ref()?;
    Some(ExplainReq {
        vni: routed.vni,
        source_mac: routed.source_mac.clone(),
        destination_mac: routed.destination_mac.clone(),
        ..far.clone()
    })
}

/// Asks for the same packet where it arrives, if it is a vnic's of this host.
pub fn from_outside(question: &ExplainReq, session: &mut Session) -> Result<ExplainReq, Failure> {
    let Some(id) = &question.from_nic else {
        return Err(Failure::usage(
            "--far-endpoint goes with --from NIC: what comes from outside is explained where it arrives, with -e",
        ));
    };
    let nic = details(session.ask(details_of(id))?.nic_details, id)?;
    let v6 = question
        .to_address
        .as_ref()
        .or(question.source.as_ref())
        .map(|address| address.contains(':'));
    let own = nic.ip.iter().find(|ip| v6.is_none_or(|v6| ip.contains(':') == v6)).cloned();
    Ok(ExplainReq {
        from_nic: None,
        vni: Some(nic.vni()),
        source: question.source.clone().or(own),
        source_mac: question.source_mac.clone().or(Some(nic.mac().to_owned())),
        ..question.clone()
    })
}

/// Returns the address of the vnic that a question is about, on the host that has it.
pub fn address(
    endpoint: &str,
    question: &ExplainReq,
    session: &mut Session,
) -> Result<Option<String>, Failure> {
    let id = question.to_nic.clone().unwrap_or_default();
    let nic = details(session.ask_at(endpoint, details_of(&id))?.nic_details, &id)?;
    let v6 = question.source.as_ref().is_some_and(|source| source.contains(':'));
    Ok(nic.ip.into_iter().find(|ip| ip.contains(':') == v6))
}

fn details_of(id: &str) -> Request {
    Request { nic_details: Some(id.to_owned()), ..Request::default() }
}

fn details(nics: Vec<Nic>, id: &str) -> Result<Nic, Failure> {
    nics.into_iter().next().ok_or_else(|| Failure::said(format!("no details of {id} received")))
}

//! A packet and what became of it, in words and in messages.

use super::encode::since_epoch;
use butterfly_api::proto::{TracedPacket, traced_packet::Verdict};
use butterfly_datapath::{TapEnd, TapPacket, TapPoint, TapRule, TapVerdict};
use butterfly_model::{Direction, Peer, Protocol, canonical};
use butterfly_packet::summary::Summary;
use std::fmt::Write;

/// Bytes of each packet that a trace has copied: headers.
pub const HEADERS: u32 = 128;

fn nic(end: &TapEnd) -> Option<String> {
    match end {
        TapEnd::Vnic(id) => Some(id.to_string()),
        _ => None,
    }
}

fn host(end: &TapEnd) -> Option<String> {
    match end {
        TapEnd::Host(address) => Some(address.map_or("unknown".into(), canonical)),
        TapEnd::Endpoint => Some("this".into()),
        _ => None,
    }
}

/// Returns the name of an end, in words.
fn who(end: &TapEnd) -> String {
    match end {
        TapEnd::Vnic(id) => format!("nic {id}"),
        TapEnd::Host(Some(address)) => format!("host {}", canonical(*address)),
        TapEnd::Host(None) => "another host".into(),
        TapEnd::Network(vni) => format!("network {vni}"),
        TapEnd::Endpoint => "host".into(),
        TapEnd::Gone => "a nic that is gone".into(),
    }
}

/// A rule in words.
fn rule(of: &TapRule) -> String {
    let rule = &of.rule;
    let direction = match rule.direction() {
        Direction::Inbound => ("in", "from"),
        Direction::Outbound => ("out", "to"),
    };
    let protocol = match rule.protocol() {
        Protocol::Any => "any".into(),
        Protocol::Number(1) => "icmp".into(),
        Protocol::TCP => "tcp".into(),
        Protocol::UDP => "udp".into(),
        Protocol::Number(58) => "icmpv6".into(),
        Protocol::Number(132) => "sctp".into(),
        Protocol::Number(number) => number.to_string(),
    };
    let mut text = format!("{}: {} {protocol}", of.group, direction.0);
    if let Some(ports) = rule.ports() {
        let _ = match (ports.start(), ports.end()) {
            (start, end) if start == end => write!(text, " {start}"),
            (start, end) => write!(text, " {start}-{end}"),
        };
    }
    let _ = match rule.peer() {
        Peer::Cidr(cidr) => write!(text, " {} {cidr}", direction.1),
        Peer::SecurityGroup(group) => write!(text, " {} group {group}", direction.1),
    };
    text
}

fn rules(packet: &TapPacket<'_>) -> Vec<String> {
    packet.rules.iter().flatten().map(|of| rule(of)).collect()
}

/// The comment on a packet in a file.
pub fn comment(packet: &TapPacket<'_>) -> String {
    let mut text = match &packet.verdict {
        TapVerdict::Delivered(to) => format!("delivered to {}", who(to)),
        TapVerdict::Tunnelled(to) => format!("tunnelled to {}", who(to)),
        TapVerdict::Flooded { vnics, hosts, refused, reason } => {
            let mut text = format!("flooded to {vnics} nics and {hosts} hosts");
            if let Some(reason) = reason {
                let _ = write!(text, ", {refused} copies dropped: {}", reason.name());
            }
            text
        }
        TapVerdict::Dropped { reason, charged } => {
            format!("dropped: {}, charged to {}", reason.name(), who(charged))
        }
        TapVerdict::Answered => "for the router or the network itself".into(),
        TapVerdict::Seen => "on the uplink".into(),
    };
    for rule in rules(packet) {
        let _ = write!(text, "; rule {rule}");
    }
    text
}

/// The packet in a message.
pub fn traced(packet: &TapPacket<'_>) -> TracedPacket {
    let point = match packet.point {
        TapPoint::Network => "network",
        TapPoint::Answer => "answer",
        TapPoint::UplinkIn => "uplink-in",
        TapPoint::UplinkOut => "uplink-out",
    };
    let mut traced = TracedPacket {
        time: u64::try_from(since_epoch(packet.time).as_nanos()).ok(),
        point: Some(point.into()),
        vni: packet.vni,
        from_nic: nic(&packet.from),
        from_host: host(&packet.from),
        reply: packet.session,
        rule: rules(packet),
        cycles: packet.cycles,
        length: Some(packet.len),
        summary: Some(
            Summary::new(packet.data.get(..HEADERS as usize).unwrap_or(packet.data), packet.len)
                .to_string(),
        ),
        ..TracedPacket::default()
    };
    let verdict = match &packet.verdict {
        TapVerdict::Delivered(to) => {
            (traced.to_nic, traced.to_host) = (nic(to), host(to));
            Verdict::DELIVERED
        }
        TapVerdict::Tunnelled(to) => {
            traced.to_host = host(to);
            Verdict::TUNNELLED
        }
        TapVerdict::Flooded { vnics, hosts, refused, reason } => {
            (traced.flooded_nics, traced.flooded_hosts, traced.refused) =
                (Some(*vnics), Some(*hosts), Some(*refused));
            traced.reason = reason.map(|reason| reason.name().to_owned());
            Verdict::FLOODED
        }
        TapVerdict::Dropped { reason, charged } => {
            traced.reason = Some(reason.name().to_owned());
            traced.charged = Some(who(charged));
            Verdict::DROPPED
        }
        TapVerdict::Answered => Verdict::ANSWERED,
        TapVerdict::Seen => Verdict::SEEN,
    };
    traced.verdict = Some(verdict.into());
    traced
}

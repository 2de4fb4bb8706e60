//! Changes in words, for people.

use butterfly_model::{Direction, Limit, Member, Nic, Peer, Protocol, Rule};
use std::collections::HashSet;

/// The properties of a vnic that differ between two declarations of it, each with both values.
pub fn difference(old: &Nic, new: &Nic) -> String {
    let mut parts = Vec::new();
    let ips = |nic: &Nic| nic.ips.texts();
    let groups = |nic: &Nic| nic.security_groups.texts();
    parts.extend(lists("ip", &ips(old), &ips(new)));
    parts.extend(lists("prefix", &old.prefixes.texts(), &new.prefixes.texts()));
    parts.extend(lists("security groups", &groups(old), &groups(new)));
    parts.extend(values("antispoof", old.ip_anti_spoof, new.ip_anti_spoof));
    parts.extend(values("bypass filtering", old.bypass_filtering, new.bypass_filtering));
    parts.extend(values("forwards", old.forwards, new.forwards));
    parts.extend(values("shared addresses", old.shared_ip, new.shared_ip));
    parts.extend(values("router", old.router, new.router));
    for (name, old, new) in [
        ("limit in", old.limits.from_guest, new.limits.from_guest),
        ("limit out", old.limits.to_guest, new.limits.to_guest),
    ] {
        parts.extend((old != new).then(|| format!("{name} {} -> {}", limit(&old), limit(&new))));
    }
    parts.extend(values("packet trace", old.packet_trace, new.packet_trace));
    parts.extend(texts(
        "packet trace path",
        old.packet_trace_path.as_deref(),
        new.packet_trace_path.as_deref(),
    ));
    parts.extend(
        (old.trace_options != new.trace_options).then(|| "packet trace options".to_owned()),
    );
    parts.extend(texts("sniff target", old.sniff_target.as_deref(), new.sniff_target.as_deref()));
    parts.extend(texts("mac", Some(old.mac.text()), Some(new.mac.text())));
    parts.join(", ")
}

/// Items that were added and removed; a note on the order if nothing else differs.
fn lists(name: &str, old: &[String], new: &[String]) -> Option<String> {
    if old == new {
        return None;
    }
    let known = |list: &[String]| -> HashSet<String> { list.iter().cloned().collect() };
    let (before, after) = (known(old), known(new));
    let added = new.iter().filter(|item| !before.contains(*item)).map(|item| format!(" +{item}"));
    let gone = old.iter().filter(|item| !after.contains(*item)).map(|item| format!(" -{item}"));
    let changes: String = added.chain(gone).collect();
    Some(if changes.is_empty() {
        format!("{name} in another order")
    } else {
        format!("{name}{changes}")
    })
}

/// A limit in words, without its bursts unless they are said.
pub fn limit(limit: &Limit) -> String {
    let rate = |rate: u64, unit: &str, burst: u64| {
        let burst = if burst > 0 { format!(" (burst {burst})") } else { String::new() };
        (rate > 0).then(|| format!("{rate} {unit}{burst}"))
    };
    let both = [
        rate(limit.bits(), "bits/s", limit.burst_bytes()),
        rate(limit.packets(), "packets/s", limit.burst_packets()),
    ];
    match both.into_iter().flatten().collect::<Vec<_>>() {
        none if none.is_empty() => "none".to_owned(),
        limits => limits.join(" and "),
    }
}

fn values(name: &str, old: bool, new: bool) -> Option<String> {
    let word = |value| if value { "on" } else { "off" };
    (old != new).then(|| format!("{name} {} -> {}", word(old), word(new)))
}

fn texts(name: &str, old: Option<&str>, new: Option<&str>) -> Option<String> {
    (old != new).then(|| format!("{name} {} -> {}", old.unwrap_or("none"), new.unwrap_or("none")))
}

/// A rule of a group, in words.
pub fn rule_of(group: &str, rule: &Rule) -> String {
    let (direction, whom) = match rule.direction() {
        Direction::Inbound => ("inbound", "from"),
        Direction::Outbound => ("outbound", "to"),
    };
    let protocol = match rule.protocol() {
        Protocol::Any => "any protocol".to_owned(),
        Protocol::Number(1) => "icmp".to_owned(),
        Protocol::TCP => "tcp".to_owned(),
        Protocol::UDP => "udp".to_owned(),
        Protocol::Number(58) => "icmpv6".to_owned(),
        Protocol::Number(132) => "sctp".to_owned(),
        Protocol::Number(number) => format!("protocol {number}"),
    };
    let ports = match rule.ports().map(|ports| (*ports.start(), *ports.end())) {
        None => String::new(),
        Some((start, end)) if start == end => format!(" {start}"),
        Some((start, end)) => format!(" {start}-{end}"),
    };
    let peer = match rule.peer() {
        Peer::Cidr(cidr) => cidr.to_string(),
        Peer::SecurityGroup(peer) => format!("members of {:?}", peer.as_str()),
    };
    format!("security group {group:?}: {direction} {protocol}{ports} {whom} {peer}")
}

/// A member of a group, in words.
pub fn member_of(group: &str, member: Member) -> String {
    format!("security group {group:?}: {member}")
}

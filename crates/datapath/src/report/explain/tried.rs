//! Rules that were tried: group by group, with the part that does not fit. The text is made of the
//! rules as they are declared; the decision is made of compiled ones.

use std::collections::{BTreeSet, HashMap};

use butterfly_model::{Direction, GroupName, Peer, Protocol, Rule};
use butterfly_packet::protocol;

use crate::ip::{Address, is_v4};
use crate::plane::Plane;
use crate::world::{
    rules::number,
    snapshot::{Snapshot, Vnic},
};

/// Most rules that fit except for one part, and most groups that would admit, to be named.
const CLOSEST: usize = 3;

/// Fields of a packet that rules ask for, in one direction.
#[derive(Clone, Copy)]
pub(super) struct RuleInput {
    pub direction: Direction,
    /// The other end.
    pub peer: Address,
    /// True if that is a member of no group, whatever its address.
    pub stranger: bool,
    pub protocol: u8,
    pub port: u16,
}

/// Parts of a rule that do not fit.
#[derive(Default)]
struct Misfit {
    protocol: bool,
    ports: bool,
    peer: bool,
}

impl Misfit {
    fn is_none(&self) -> bool {
        !(self.protocol || self.ports || self.peer)
    }
}

impl RuleInput {
    fn misfit(&self, rule: &Rule, is_member: impl Fn(&GroupName) -> bool) -> Misfit {
        let protocol = match rule.protocol() {
            Protocol::Any => false,
            Protocol::Number(number) => number != self.protocol,
        };
        let has_ports = matches!(rule.protocol(), Protocol::Number(protocol::TCP | protocol::UDP));
        let peer = match rule.peer() {
            Peer::Cidr(cidr) => {
                is_v4(self.peer) != cidr.network().is_ipv4() || !within(self.peer, cidr)
            }
            Peer::SecurityGroup(name) => !is_member(name),
        };
        let ports =
            !protocol && has_ports && rule.ports().is_some_and(|ports| !ports.contains(&self.port));
        Misfit { protocol, ports, peer }
    }
}

fn within(address: Address, cidr: &butterfly_model::Cidr) -> bool {
    let bits = u32::from(cidr.mask_size()) + if cidr.network().is_ipv4() { 96 } else { 0 };
    let differ = address ^ number(cidr.network());
    differ.checked_shr(128 - bits).unwrap_or(0) == 0
}

/// The rules of all groups, as they are declared.
pub(super) type DeclaredRules = HashMap<u32, (GroupName, Rule)>;

/// Returns a line or more for each group of a vnic that refuses, and for other groups that would
/// not.
pub(super) fn tried(
    plane: &Plane,
    vnic: &Vnic,
    wanted: &RuleInput,
    snapshot: &Snapshot,
    all: &DeclaredRules,
) -> Vec<String> {
    let groups = plane.groups_of(&vnic.rules.groups);
    let of_peer = || snapshot.members.groups(wanted.peer).filter(|_| !wanted.stranger);
    let is_member = |name: &GroupName| {
        plane
            .group_number(name)
            .is_some_and(|number| of_peer().any(|of| of.binary_search(&number).is_ok()))
    };
    let mut lines: Vec<String> = groups
        .iter()
        .flat_map(|(name, rules)| group(name, rules.as_deref(), wanted, is_member))
        .collect();
    if lines.is_empty() {
        lines.push(format!("{} has no security group", vnic.id));
    }
    let admits = |rule: &Rule| {
        rule.direction() == wanted.direction && wanted.misfit(rule, is_member).is_none()
    };
    // Such rules may have come after the refusal.
    let own = |name: &GroupName| groups.iter().any(|(own, _)| own == name);
    let others = all.values().filter(|(name, rule)| admits(rule) && !own(name));
    let others: BTreeSet<&GroupName> = others.map(|(name, _)| name).collect();
    lines.extend(elsewhere(&others, &vnic.id, wanted.direction));
    lines
}

/// Returns the groups that would admit the packet but that the vnic is not in. Shows an operator a
/// group that is not attached.
fn elsewhere(groups: &BTreeSet<&GroupName>, id: &str, direction: Direction) -> Vec<String> {
    let way = match direction {
        Direction::Inbound => "in",
        Direction::Outbound => "out",
    };
    if groups.is_empty() {
        return vec![format!("no other group would let it {way}")];
    }
    let join = |name| {
        format!(
            "group {name} would let it {way}, but {id} is not in it: `butterfly nic sg add {id} {name}`"
        )
    };
    let named = groups.iter().take(CLOSEST).map(join);
    let more = groups.len().saturating_sub(CLOSEST);
    named.chain((more > 0).then(|| format!("  and {more} more groups"))).collect()
}

fn group(
    name: &GroupName,
    rules: Option<&[Rule]>,
    wanted: &RuleInput,
    is_member: impl Fn(&GroupName) -> bool,
) -> Vec<String> {
    let Some(rules) = rules else {
        return vec![format!("group {name}: does not exist, so it allows nothing")];
    };
    let direction = match wanted.direction {
        Direction::Inbound => "INBOUND",
        Direction::Outbound => "OUTBOUND",
    };
    let rules: Vec<&Rule> =
        rules.iter().filter(|rule| rule.direction() == wanted.direction).collect();
    let (mut protocol, mut ports, mut peer, mut admit) = (0, 0, 0, 0);
    let mut closest = Vec::new();
    for rule in &rules {
        let misfit = wanted.misfit(rule, &is_member);
        let (count, but) = match misfit {
            Misfit { protocol: true, peer: false, .. } => (&mut protocol, Some("its protocol")),
            Misfit { protocol: true, .. } => (&mut protocol, None),
            Misfit { ports: true, peer: false, .. } => (&mut ports, Some("its ports")),
            Misfit { ports: true, .. } => (&mut ports, None),
            Misfit { peer: true, .. } => (&mut peer, Some("its peers")),
            Misfit { .. } => (&mut admit, None),
        };
        *count += 1;
        if let Some(but) = but {
            closest.push(format!("  fits but for {but}: {}", told(rule)));
        }
    }
    let kinds = [
        (admit, "admit it"),
        (protocol, "about other protocols"),
        (ports, "about other ports"),
        (peer, "about other peers"),
    ];
    let kinds: Vec<String> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let all = rules.len();
    let mut lines = vec![match all {
        0 => format!("group {name}: no {direction} rule"),
        _ => format!(
            "group {name}: {all} {direction} rule{}: {}",
            if all == 1 { "" } else { "s" },
            kinds.join(", ")
        ),
    }];
    if admit == 0 {
        let more = closest.len().saturating_sub(CLOSEST);
        lines.extend(closest.into_iter().take(CLOSEST));
        if more > 0 {
            lines.push(format!("  and {more} more"));
        }
    }
    lines
}

/// Returns a rule in a few words.
pub(super) fn told(rule: &Rule) -> String {
    let name = match rule.protocol() {
        Protocol::Any => "any protocol".to_owned(),
        Protocol::Number(number) => protocol_name(number),
    };
    let ports = match rule.ports() {
        Some(ports) if ports.start() == ports.end() => format!(" {}", ports.start()),
        Some(ports) => format!(" {}-{}", ports.start(), ports.end()),
        None => String::new(),
    };
    let way = match rule.direction() {
        Direction::Inbound => "from",
        Direction::Outbound => "to",
    };
    let peer = match rule.peer() {
        Peer::Cidr(cidr) => format!("{}/{}", cidr.network(), cidr.mask_size()),
        Peer::SecurityGroup(name) => format!("members of {name}"),
    };
    format!("{name}{ports} {way} {peer}")
}

pub(super) fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "tcp".into(),
        protocol::UDP => "udp".into(),
        protocol::ICMP => "icmp".into(),
        protocol::ICMPV6 => "icmpv6".into(),
        protocol::SCTP => "sctp".into(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_that_would_do_are_named_but_not_all() {
        let names: Vec<GroupName> =
            ["a", "b", "c", "d", "e"].iter().map(|name| GroupName::new(name).unwrap()).collect();
        let told =
            |n: usize, direction| elsewhere(&names.iter().take(n).collect(), "vm-1", direction);
        assert_eq!(told(0, Direction::Inbound), ["no other group would let it in"]);
        assert_eq!(
            told(1, Direction::Outbound),
            ["group a would let it out, but vm-1 is not in it: `butterfly nic sg add vm-1 a`"]
        );
        assert_eq!((told(3, Direction::Inbound).len(), told(5, Direction::Inbound).len()), (3, 4));
        assert_eq!(told(5, Direction::Inbound)[3], "  and 2 more groups");
    }
}

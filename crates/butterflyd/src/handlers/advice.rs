//! Advice about a drop, with the packet's own words in the commands.

use super::Daemon;
use crate::dataplane::Dataplane;
use butterfly_model::{Direction, GroupName, Nic, Peer, Protocol, Rule};
use butterfly_packet::{
    ethernet::{self, Ethernet},
    ipv4::Ipv4,
    ipv6::Ipv6,
    protocol::{ICMP, ICMPV6, SCTP, TCP, UDP},
};
use std::{collections::BTreeSet, net::IpAddr};

/// The parts of a packet that rules match.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Flow {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// The destination port, of protocols whose rules have ports.
    port: Option<u16>,
}

impl Flow {
    fn of(frame: &[u8]) -> Option<Flow> {
        let mut tags = Ethernet::parse(frame).ok()?.tags();
        tags.by_ref().for_each(drop);
        let bytes = tags.rest();
        let (source, destination, protocol, upper) = match tags.ethertype() {
            ethernet::IPV4 => {
                let ip = Ipv4::parse(bytes).ok()?;
                (ip.source().into(), ip.destination().into(), ip.protocol(), ip.header_len())
            }
            ethernet::IPV6 => {
                let ip = Ipv6::parse(bytes).ok()?;
                let upper = ip.upper_layer().ok()?;
                (ip.source().into(), ip.destination().into(), upper.protocol, upper.offset)
            }
            _ => return None,
        };
        let has_port = matches!(protocol, TCP | UDP);
        let port = bytes
            .get(upper..)
            .and_then(|upper| butterfly_packet::be16(upper, 2))
            .filter(|_| has_port);
        Some(Flow { source, destination, protocol, port })
    }

    /// Returns the protocol as `--ip-proto` takes it.
    fn protocol(&self) -> String {
        match self.protocol {
            TCP => "tcp".into(),
            UDP => "udp".into(),
            SCTP => "sctp".into(),
            ICMP => "icmp".into(),
            ICMPV6 => "icmpv6".into(),
            number => number.to_string(),
        }
    }
}

impl Flow {
    /// The end that a rule of a direction is about.
    fn peer(&self, direction: Direction) -> IpAddr {
        match direction {
            Direction::Inbound => self.source,
            Direction::Outbound => self.destination,
        }
    }

    /// True if a rule is about its protocol and port.
    fn fits(&self, rule: &Rule) -> bool {
        let protocol = match rule.protocol() {
            Protocol::Any => true,
            Protocol::Number(number) => number == self.protocol,
        };
        let ports = match (rule.ports(), self.port) {
            (Some(ports), Some(port)) => ports.contains(&port),
            _ => true,
        };
        protocol && ports
    }
}

fn block(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Rules that are looked at for all packets of an answer: others wait for the daemon meanwhile.
const MOST: usize = 200_000;
/// Groups that are named at most.
const NAMED: usize = 2;

/// Gives advice about one packet or many.
pub(super) struct Adviser<'a, D: Dataplane> {
    daemon: &'a Daemon<D>,
    /// Rules that may still be looked at.
    left: usize,
}

impl<D: Dataplane> Daemon<D> {
    pub(super) fn adviser(&self) -> Adviser<'_, D> {
        Adviser { daemon: self, left: MOST }
    }
}

impl<'a, D: Dataplane> Adviser<'a, D> {
    /// A remedy with the words of a packet that was dropped at the expense of the vnic `charged`.
    pub(super) fn advice(&mut self, remedy: &str, frame: &[u8], charged: &str) -> String {
        let Some(flow) = Flow::of(frame) else { return remedy.to_owned() };
        let nic = self.daemon.desired.vnics().get(charged);
        let remedy = match (nic, remedy.strip_prefix(NEEDS)) {
            (Some(nic), Some(rule)) => {
                let direction = match rule.contains(SOURCE) {
                    true => Direction::Inbound,
                    false => Direction::Outbound,
                };
                let first = self.without_a_rule(nic, &flow, direction);
                format!("{first}{}", rule.replace(JOIN, ""))
            }
            _ => remedy.to_owned(),
        };
        for_packet(&remedy, &flow, nic.and_then(|nic| self.group_for_a_rule(nic)))
    }

    /// Returns the remedies that need no new rule, and where a new rule goes if none of them fits.
    fn without_a_rule(&mut self, nic: &Nic, flow: &Flow, direction: Direction) -> String {
        let (members, groups) = self.found(nic, flow, direction);
        let (id, peer) = (&nic.id, flow.peer(direction));
        let mut ways: Vec<String> = Vec::new();
        for name in members.iter().take(NAMED) {
            ways.push(format!(
                "if {peer} belongs to {name}: `butterfly sg member add {name} {peer}`"
            ));
        }
        for name in groups.iter().take(NAMED) {
            ways.push(format!("if {id} belongs to {name}: `butterfly nic sg add {id} {name}`"));
        }
        let own = nic.security_groups.texts();
        let rule = match own.as_slice() {
            [] => format!(
                "give it a group with what the packet needs, `butterfly nic sg add {id} SG` and "
            ),
            own => format!("add what the packet needs to one of its groups ({}): ", own.join(", ")),
        };
        match ways.is_empty() {
            true => rule,
            false => format!("{}; else {rule}", ways.join("; ")),
        }
    }

    /// Finds existing rules that could let the packet pass. Returns the groups that the other end
    /// would have to join, and those that the vnic would have to join.
    fn found(
        &mut self,
        nic: &Nic,
        flow: &Flow,
        direction: Direction,
    ) -> (BTreeSet<&'a str>, BTreeSet<&'a str>) {
        let (mut members, mut joins) = (BTreeSet::new(), BTreeSet::new());
        let daemon = self.daemon;
        let peer = flow.peer(direction);
        let is_member = |name: &GroupName| {
            daemon
                .desired
                .groups()
                .get(name.as_str())
                .is_some_and(|group| group.members().has(peer))
        };
        let own = nic.security_groups.names();
        let (mine, others): (Vec<_>, Vec<_>) =
            daemon.desired.groups().values().partition(|group| own.contains(group.name()));
        for (group, is_mine) in mine
            .into_iter()
            .map(|group| (group, true))
            .chain(others.into_iter().map(|group| (group, false)))
        {
            let count = group.rules().len();
            if count > self.left {
                continue;
            }
            self.left -= count;
            let fitting =
                group.rules().filter(|rule| rule.direction() == direction && flow.fits(rule));
            for rule in fitting {
                match rule.peer() {
                    Peer::SecurityGroup(name) if is_mine && !is_member(name) => {
                        members.insert(name.as_str());
                    }
                    Peer::SecurityGroup(name) if !is_mine && is_member(name) => {
                        joins.insert(group.name().as_str());
                    }
                    Peer::Cidr(cidr) if !is_mine && cidr.contains(peer) => {
                        joins.insert(group.name().as_str());
                    }
                    _ => {}
                }
            }
        }
        (members, joins)
    }

    /// The group that a rule for a vnic goes into: one that is there, if any is.
    fn group_for_a_rule(&self, nic: &'a Nic) -> Option<&'a str> {
        let names = nic.security_groups.names();
        let there =
            names.iter().find(|name| self.daemon.desired.groups().contains_key(name.as_str()));
        there.or(names.first()).map(GroupName::as_str)
    }
}

/// Beginning of a remedy that names a rule.
const NEEDS: &str =
    "add what the packet needs to one of its groups (`butterfly nic sg list NIC`): ";
/// Part of a remedy that stands for INBOUND rules only.
const SOURCE: &str = "--cidr SOURCE/32";
/// Part of a remedy where nothing is known of the packet.
const JOIN: &str = ", or `butterfly sg member add GROUP SOURCE`";

/// Puts the facts of a dropped packet into the commands of a remedy, which are between backticks.
///
/// The facts are protocol, port, addresses, and the name of a group of the vnic that dropped it.
/// Unknown ones stay as they are.
fn for_packet(remedy: &str, flow: &Flow, group: Option<&str>) -> String {
    let parts = remedy.split('`').enumerate();
    let filled = parts
        .map(|(at, part)| if at % 2 == 1 { command(part, flow, group) } else { part.to_owned() });
    filled.collect::<Vec<_>>().join("`")
}

fn command(command: &str, flow: &Flow, group: Option<&str>) -> String {
    let command = match flow.port {
        Some(port) => command.replace("--port PORT", &format!("--port {port}")),
        None => command.replace(" --port PORT", ""),
    };
    let word = |word: &str| match word {
        "PROTO" => flow.protocol(),
        "SOURCE/32" => block(flow.source),
        "DESTINATION/32" => block(flow.destination),
        "SG" => group.unwrap_or(word).to_owned(),
        _ => word.to_owned(),
    };
    command.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_packet::build;

    const INGRESS: &str = "add it: `butterfly sg rule add SG --ip-proto PROTO --port PORT --cidr SOURCE/32`, not SOURCE";
    const EGRESS: &str =
        "`butterfly sg rule add SG --dir out --ip-proto PROTO --port PORT --cidr DESTINATION/32`";

    #[test]
    fn commands_can_be_pasted() {
        let link =
            || build::ethernet(butterfly_datapath::Mac([2; 6]), butterfly_datapath::Mac([4; 6]));
        let v4 = link().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        let v6 = link().ipv6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]);
        let tcp = v4.tcp(&build::Tcp::new(1, 443, 2), &[]);
        let for_packet = |remedy, frame: &[u8], group| {
            super::for_packet(remedy, &Flow::of(frame).unwrap(), group)
        };
        assert_eq!(
            for_packet(INGRESS, &tcp, Some("web")),
            "add it: `butterfly sg rule add web --ip-proto tcp --port 443 --cidr 10.0.0.1/32`, not SOURCE"
        );
        assert_eq!(
            for_packet(EGRESS, &v6.udp(1, 53, b""), None),
            "`butterfly sg rule add SG --dir out --ip-proto udp --port 53 --cidr 2001:db8::2/128`"
        );
        // Rules for these have no ports.
        for (frame, protocol) in [
            (v4.payload(1, &[8; 8]), "icmp"),
            (v4.payload(132, &[0; 12]), "sctp"),
            (v4.payload(47, &[0; 8]), "47"),
        ] {
            assert_eq!(
                for_packet(EGRESS, &frame, Some("g")),
                format!(
                    "`butterfly sg rule add g --dir out --ip-proto {protocol} --cidr 10.0.0.2/32`"
                )
            );
        }
        for frame in [&tcp[..30], &[][..], &link().payload(0x88b5, &[0; 46])] {
            assert_eq!(Flow::of(frame), None);
        }
    }

    /// The remedies that begin so are the two that are filled in.
    #[test]
    fn remedies_name_rules_in_the_same_words() {
        let named: Vec<_> =
            butterfly_datapath::reasons().filter(|info| info.remedy.starts_with(NEEDS)).collect();
        let of = |direction: &str| named.iter().find(|info| info.name == direction).unwrap().remedy;
        assert_eq!(named.len(), 2);
        assert!(of("ingress-denied").contains(SOURCE) && of("ingress-denied").contains(JOIN));
        assert!(!of("egress-denied").contains(SOURCE) && !of("egress-denied").contains(JOIN));
    }
}

//! What to do about a drop, with the packet's own words in the commands.

use super::Daemon;
use crate::dataplane::Dataplane;
use butterfly_model::{Direction, Peer, SecurityGroup};
use butterfly_packet::{
    ethernet::{self, Ethernet},
    ipv4::Ipv4,
    ipv6::Ipv6,
    protocol::{ICMP, ICMPV6, SCTP, TCP, UDP},
};
use std::{collections::BTreeMap, net::IpAddr};

/// What a rule says about a packet.
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

    /// As `--ip-proto` takes it.
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

fn block(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Groups whose members INBOUND rules let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Members<'a> {
    #[default]
    Nobody,
    Of(&'a str),
    OfSeveral,
}

impl<'a> Members<'a> {
    fn of(group: &'a SecurityGroup) -> Members<'a> {
        let mut all = Members::Nobody;
        for rule in group.rules().filter(|rule| rule.direction() == Direction::Inbound) {
            if let Peer::SecurityGroup(name) = rule.peer() {
                all = all.and(Members::Of(name.as_str()));
            }
            if all == Members::OfSeveral {
                break;
            }
        }
        all
    }

    fn and(self, other: Members<'a>) -> Members<'a> {
        match (self, other) {
            (Members::Nobody, one) | (one, Members::Nobody) => one,
            (one, same) if one == same => one,
            _ => Members::OfSeveral,
        }
    }
}

/// Gives advice about one packet or many: no group's rules are read twice.
pub(super) struct Adviser<'a, D: Dataplane> {
    daemon: &'a Daemon<D>,
    members: BTreeMap<&'a str, Members<'a>>,
}

impl<D: Dataplane> Daemon<D> {
    pub(super) fn adviser(&self) -> Adviser<'_, D> {
        Adviser { daemon: self, members: BTreeMap::new() }
    }

    /// The group that a rule for a vnic goes into, if it has one alone.
    fn only_group(&self, id: &str) -> Option<&str> {
        match self.nics.get(id)?.security_groups.names() {
            [only] => Some(only.as_str()),
            _ => None,
        }
    }
}

impl<'a, D: Dataplane> Adviser<'a, D> {
    /// A remedy with the words of a packet that was dropped at the expense of the vnic `charged`.
    pub(super) fn advice(&mut self, remedy: &str, frame: &[u8], charged: &str) -> String {
        let members =
            if remedy.contains(JOIN) { self.allowed_members(charged) } else { Members::Nobody };
        for_packet(remedy, frame, self.daemon.only_group(charged), members)
    }

    /// Those of all groups of a vnic.
    fn allowed_members(&mut self, id: &str) -> Members<'a> {
        let daemon = self.daemon;
        let names = daemon.nics.get(id).map(|nic| nic.security_groups.names()).unwrap_or_default();
        let mut all = Members::Nobody;
        for name in names {
            let name = name.as_str();
            let of = || daemon.groups.get(name).map(Members::of).unwrap_or_default();
            all = all.and(*self.members.entry(name).or_insert_with(of));
        }
        all
    }
}

/// What no sender is helped by where no rule is about members.
const JOIN: &str = ", or `butterfly sg member add GROUP SOURCE`";

/// Puts what is known of a dropped packet into the commands of a remedy, which are between
/// backticks: protocol, port, addresses, the name of a group of the vnic that dropped it, and of
/// the only one of `members`. What is not known stays as it is.
fn for_packet(remedy: &str, frame: &[u8], group: Option<&str>, members: Members<'_>) -> String {
    let Some(flow) = Flow::of(frame) else { return remedy.to_owned() };
    let (remedy, members) = match members {
        Members::Nobody => (remedy.replace(JOIN, ""), None),
        Members::Of(name) => (remedy.to_owned(), Some(name)),
        Members::OfSeveral => (remedy.to_owned(), None),
    };
    let names = Names { group, members };
    let parts = remedy.split('`').enumerate();
    let filled = parts
        .map(|(at, part)| if at % 2 == 1 { command(part, &flow, &names) } else { part.to_owned() });
    filled.collect::<Vec<_>>().join("`")
}

/// Groups that commands name, where there is no choice.
struct Names<'a> {
    /// The one that a rule goes into.
    group: Option<&'a str>,
    /// The one whose members are let in.
    members: Option<&'a str>,
}

fn command(command: &str, flow: &Flow, names: &Names) -> String {
    let command = match flow.port {
        Some(port) => command.replace("--port PORT", &format!("--port {port}")),
        None => command.replace(" --port PORT", ""),
    };
    let word = |word: &str| match word {
        "PROTO" => flow.protocol(),
        "SOURCE" => flow.source.to_string(),
        "SOURCE/32" => block(flow.source),
        "DESTINATION/32" => block(flow.destination),
        "SG" => names.group.unwrap_or(word).to_owned(),
        "GROUP" => names.members.unwrap_or(word).to_owned(),
        _ => word.to_owned(),
    };
    command.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_packet::build;

    const INGRESS: &str = "add it: `butterfly sg rule add SG --ip-proto PROTO --port PORT --cidr SOURCE/32`, or `butterfly sg member add GROUP SOURCE`, not SOURCE";
    const EGRESS: &str =
        "`butterfly sg rule add SG --dir out --ip-proto PROTO --port PORT --cidr DESTINATION/32`";

    #[test]
    fn commands_can_be_pasted() {
        let link =
            || build::ethernet(butterfly_datapath::Mac([2; 6]), butterfly_datapath::Mac([4; 6]));
        let v4 = link().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        let v6 = link().ipv6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]);
        let tcp = v4.tcp(&build::Tcp::new(1, 443, 2), &[]);
        let for_packet = |remedy, frame: &[u8], group, members: &[&'static str]| {
            let members =
                members.iter().map(|name| Members::Of(name)).fold(Members::Nobody, Members::and);
            super::for_packet(remedy, frame, group, members)
        };
        let rule =
            "add it: `butterfly sg rule add web --ip-proto tcp --port 443 --cidr 10.0.0.1/32`";
        for (members, or) in [
            (&[][..], ""),
            (&["admins"][..], ", or `butterfly sg member add admins 10.0.0.1`"),
            (&["admins", "web"][..], ", or `butterfly sg member add GROUP 10.0.0.1`"),
        ] {
            assert_eq!(
                for_packet(INGRESS, &tcp, Some("web"), members),
                format!("{rule}{or}, not SOURCE")
            );
        }
        assert!(butterfly_datapath::reasons().any(|info| info.remedy.contains(JOIN)));
        assert_eq!(
            for_packet(EGRESS, &v6.udp(1, 53, b""), None, &[]),
            "`butterfly sg rule add SG --dir out --ip-proto udp --port 53 --cidr 2001:db8::2/128`"
        );
        // Rules for these have no ports.
        for (frame, protocol) in [
            (v4.payload(1, &[8; 8]), "icmp"),
            (v4.payload(132, &[0; 12]), "sctp"),
            (v4.payload(47, &[0; 8]), "47"),
        ] {
            assert_eq!(
                for_packet(EGRESS, &frame, Some("g"), &[]),
                format!(
                    "`butterfly sg rule add g --dir out --ip-proto {protocol} --cidr 10.0.0.2/32`"
                )
            );
        }
        for frame in [&tcp[..30], &[][..], &link().payload(0x88b5, &[0; 46])] {
            assert_eq!(for_packet(INGRESS, frame, Some("web"), &[]), INGRESS);
        }
    }
}

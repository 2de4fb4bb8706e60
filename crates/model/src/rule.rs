//! Rules of security groups.

use crate::{cidr::Cidr, hash::libstdcxx_hash, security_group::GroupName};
use std::{fmt, ops::RangeInclusive};

/// Direction of the frames that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Frames towards the VM.
    Inbound,
    /// Frames from it.
    Outbound,
}

/// The IP protocol of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Every protocol.
    Any,
    /// The protocol with this number in the registry of IANA.
    Number(u8),
}

impl Protocol {
    /// TCP (RFC 9293).
    pub const TCP: Self = Self::Number(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self::Number(17);

    fn number(self) -> i32 {
        match self {
            Self::Any => -1,
            Self::Number(number) => number.into(),
        }
    }
}

/// The other end of a rule's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// An address of this block.
    Cidr(Cidr),
    /// A member of this group.
    SecurityGroup(GroupName),
}

/// Reason why a declaration is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The protocol does not exist.
    #[error("protocol {0} is out of range: -1 for any, or 0 to 255")]
    Protocol(i32),
    /// TCP and UDP need both ports.
    #[error("a rule for protocol {0} needs port_start and port_end")]
    PortMissing(u8),
    /// A port that is none.
    #[error("port {0} is out of range: ports are 0 to 65535")]
    PortOutOfRange(u32),
    /// The range is empty.
    #[error("ports {0} to {1} are no range: the start is after the end")]
    PortsReversed(u32, u32),
    /// Both peers are given.
    #[error("a rule is about a cidr or about a security group, not both")]
    TwoPeers,
    /// No peer is given.
    #[error("a rule needs a cidr or a security group")]
    NoPeer,
}

/// Permission of packets. Rules only allow.
///
/// Two rules are the same if their [identities](Rule::identity) are, and rules are listed in the
/// order of those.
///
/// ```
/// use butterfly_model::{Cidr, Direction, Rule, RuleError};
/// let block = Cidr::new("10.0.0.0", 24).unwrap();
/// let web = Rule::new(Direction::Inbound, 6, (Some(80), Some(80)), Some(block.clone()), None)?;
/// assert_eq!(web.ports(), Some(80..=80));
/// let error = Rule::new(Direction::Inbound, 6, (Some(80), Some(70_000)), Some(block), None);
/// assert_eq!(error, Err(RuleError::PortOutOfRange(70_000)));
/// # Ok::<(), RuleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    direction: Direction,
    protocol: Protocol,
    // As declared. For protocols without ports they mean nothing but are part of the identity.
    port_start: u32,
    port_end: u32,
    peer: Peer,
}

impl Rule {
    /// Checks a declaration. `protocol` is -1 for any. Ports are mandatory for TCP and UDP, and
    /// arbitrary for others. Fails as [`RuleError`] lists.
    pub fn new(
        direction: Direction,
        protocol: i32,
        ports: (Option<u32>, Option<u32>),
        cidr: Option<Cidr>,
        security_group: Option<GroupName>,
    ) -> Result<Self, RuleError> {
        let protocol = match protocol {
            -1 => Protocol::Any,
            number => {
                Protocol::Number(u8::try_from(number).map_err(|_| RuleError::Protocol(number))?)
            }
        };
        if let Protocol::Number(number @ (6 | 17)) = protocol {
            check_ports(number, ports)?;
        }
        let peer = match (cidr, security_group) {
            (Some(cidr), None) => Peer::Cidr(cidr),
            (None, Some(group)) => Peer::SecurityGroup(group),
            (Some(_), Some(_)) => return Err(RuleError::TwoPeers),
            (None, None) => return Err(RuleError::NoPeer),
        };
        let (port_start, port_end) = (ports.0.unwrap_or(0), ports.1.unwrap_or(0));
        Ok(Self { direction, protocol, port_start, port_end, peer })
    }

    /// Returns the direction of the frames it is about.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Returns the IP protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the destination ports; none for protocols other than TCP and UDP.
    pub fn ports(&self) -> Option<RangeInclusive<u16>> {
        if !matches!(self.protocol, Protocol::TCP | Protocol::UDP) {
            return None;
        }
        Some(u16::try_from(self.port_start).ok()?..=u16::try_from(self.port_end).ok()?)
    }

    /// Returns the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// True if it is the same rule but for ports.
    pub fn is_but_for_ports(&self, other: &Rule) -> bool {
        let ports = (other.port_start, other.port_end);
        Rule { port_start: ports.0, port_end: ports.1, ..self.clone() }.identity()
            == other.identity()
    }

    /// Returns the same rule with the ports of one that was declared without.
    pub fn without_ports(&self) -> Rule {
        Rule { port_start: 0, port_end: 0, ..self.clone() }
    }

    /// Returns the text that makes it this rule: direction, protocol, ports, block, group.
    pub fn identity(&self) -> String {
        let direction = match self.direction {
            Direction::Inbound => 0,
            Direction::Outbound => 1,
        };
        let (cidr, group): (&dyn fmt::Display, &str) = match &self.peer {
            Peer::Cidr(cidr) => (cidr, ""),
            Peer::SecurityGroup(group) => (&"/0", group.as_str()),
        };
        format!(
            "{direction}-{}-{}-{}-{cidr}-{group}",
            self.protocol.number(),
            self.port_start,
            self.port_end
        )
    }

    /// Returns the key that rules are ordered by, and the same for the same rule: a hash that
    /// clients know, then the hashed text.
    pub fn key(&self) -> (u64, String) {
        let identity = self.identity();
        (libstdcxx_hash(identity.as_bytes()), identity)
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Rule {}

fn check_ports(protocol: u8, ports: (Option<u32>, Option<u32>)) -> Result<(), RuleError> {
    let (Some(start), Some(end)) = ports else {
        return Err(RuleError::PortMissing(protocol));
    };
    if let Some(port) = [start, end].into_iter().find(|port| *port > u16::MAX.into()) {
        return Err(RuleError::PortOutOfRange(port));
    }
    if start > end { Err(RuleError::PortsReversed(start, end)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Inbound, Outbound};

    fn cidr(address: &str, mask_size: u32) -> Option<Cidr> {
        Some(Cidr::new(address, mask_size).unwrap())
    }

    fn group(name: &str) -> Option<GroupName> {
        Some(GroupName::new(name).unwrap())
    }

    #[test]
    fn identities_and_their_hashes_are_those_of_the_protocol() {
        for (rule, identity, hash) in [
            (
                Rule::new(Inbound, 6, (Some(0), Some(65535)), None, group("sg-42")),
                "0-6-0-65535-/0-sg-42",
                0x01b7_7c16_1261_11c3,
            ),
            (
                Rule::new(
                    Inbound,
                    -1,
                    (None, Some(1024)),
                    cidr("2001:db8:0:85a3:0:0:ac1f:8001", 8),
                    None,
                ),
                "0--1-0-1024-2001:db8:0:85a3::ac1f:8001/8-",
                0xa0a5_c024_450e_bdd4,
            ),
            (
                Rule::new(Inbound, 17, (Some(0), Some(65535)), cidr("1.2.3.0", 24), None),
                "0-17-0-65535-1.2.3.0/24-",
                0xe9dd_a2c7_b09f_8f12,
            ),
            (
                Rule::new(Inbound, 6, (Some(1000), Some(65535)), None, group("some-sg")),
                "0-6-1000-65535-/0-some-sg",
                0xfbb4_608a_d37e_592b,
            ),
        ] {
            assert_eq!(rule.unwrap().key(), (hash, identity.to_owned()));
        }
        let outbound = Rule::new(Outbound, 1, (None, None), cidr("::", 0), None).unwrap();
        assert_eq!(outbound.identity(), "1-1-0-0-::/0-");
    }

    #[test]
    fn ports_mean_something_for_tcp_and_udp_only() {
        let rule = |protocol| {
            Rule::new(Inbound, protocol, (Some(80), Some(90)), cidr("::", 0), None).unwrap()
        };
        assert_eq!(rule(6).ports(), Some(80..=90));
        assert_eq!(rule(17).ports(), Some(80..=90));
        assert_eq!(rule(1).ports(), None);
        assert_eq!(rule(-1).ports(), None);
        // They still tell rules apart.
        assert_ne!(rule(1), Rule::new(Inbound, 1, (None, None), cidr("::", 0), None).unwrap());
        assert!(Rule::new(Inbound, 132, (Some(70000), Some(1)), cidr("::", 0), None).is_ok());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for (protocol, ports, expected) in [
            (-2, (None, None), RuleError::Protocol(-2)),
            (256, (None, None), RuleError::Protocol(256)),
            (6, (None, None), RuleError::PortMissing(6)),
            (6, (Some(1), None), RuleError::PortMissing(6)),
            (17, (None, Some(1)), RuleError::PortMissing(17)),
            (6, (Some(1), Some(65536)), RuleError::PortOutOfRange(65536)),
            (17, (Some(65536), Some(65537)), RuleError::PortOutOfRange(65536)),
            (6, (Some(2), Some(1)), RuleError::PortsReversed(2, 1)),
        ] {
            assert_eq!(Rule::new(Inbound, protocol, ports, cidr("::", 0), None), Err(expected));
        }
        assert_eq!(Rule::new(Inbound, 1, (None, None), None, None), Err(RuleError::NoPeer));
        assert_eq!(
            Rule::new(Inbound, 1, (None, None), cidr("::", 0), group("g")),
            Err(RuleError::TwoPeers)
        );
    }
}

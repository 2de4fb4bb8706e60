//! Security groups, rules and the exceptions of every filtered vnic: the packets that may pass,
//! without any state.

use std::net::{IpAddr, Ipv6Addr};

use crate::{
    claims::{Bound, Voice},
    dhcp::asks,
    wire::{Packet, Reasons, be16},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Inbound,
    Outbound,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    Cidr(IpAddr, u8),
    Group(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub direction: Direction,
    /// None: any.
    pub protocol: Option<u8>,
    /// Meaningful for TCP and UDP.
    pub ports: (u16, u16),
    pub peer: Peer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: &'static str,
    pub members: Vec<IpAddr>,
    pub rules: Vec<Rule>,
}

/// A vnic as an operator declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    pub mac: [u8; 6],
    pub vni: u32,
    pub bypass: bool,
    pub ip_anti_spoof: bool,
    pub forwards: bool,
    pub shared_ip: bool,
    pub router: bool,
    pub ips: Vec<IpAddr>,
    pub groups: Vec<&'static str>,
    /// Link-local addresses that it was the first to have.
    pub bound: Bound,
}

impl Declared {
    /// RFC 4291, appendix A.
    pub fn link_local(&self) -> IpAddr {
        let [a, b, c, d, e, f] = self.mac.map(u16::from);
        IpAddr::V6(Ipv6Addr::new(
            0xfe80,
            0,
            0,
            0,
            (a ^ 2) << 8 | b,
            c << 8 | 0xff,
            0xfe00 | d,
            e << 8 | f,
        ))
    }

    /// Returns whether an address is one of its link-local addresses.
    pub fn has_link_local(&self, ip: IpAddr) -> bool {
        ip == self.link_local() || self.bound.contains(&ip)
    }

    /// Returns whether it may send from `ip`.
    pub fn owns(&self, ip: IpAddr) -> bool {
        self.ips.contains(&ip) || self.has_link_local(ip)
    }
}

fn bits(ip: IpAddr) -> (u128, u32) {
    match ip {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    }
}

/// Returns whether an address is in a block. Bits of the block's address beyond its mask mean
/// nothing.
pub fn is_in(ip: IpAddr, block: IpAddr, mask: u8) -> bool {
    let ((ip, width), (block, block_width)) = (bits(ip), bits(block));
    width == block_width && (0..u32::from(mask)).all(|i| (ip ^ block) >> (width - 1 - i) & 1 == 0)
}

fn peer_matches(groups: &[Group], peer: &Peer, ip: IpAddr) -> bool {
    match peer {
        Peer::Cidr(block, mask) => is_in(ip, *block, *mask),
        Peer::Group(name) => {
            groups.iter().any(|group| group.name == *name && group.members.contains(&ip))
        }
    }
}

/// Returns whether a rule fits a packet with this address at the other end.
fn rule_matches(groups: &[Group], rule: &Rule, packet: &Packet, peer: IpAddr) -> bool {
    // ICMP (1) and ICMPv6 (58) are numbers like others: rules do not check that each is of its
    // family.
    let protocol = match rule.protocol {
        None => true,
        Some(number) => number == packet.protocol,
    };
    let ports = match (rule.protocol, rule.ports) {
        (Some(6 | 17), (first, last)) => {
            let port = be16(&packet.upper, 2);
            first <= port && port <= last
        }
        _ => true,
    };
    // Anybody outside may write a member's address.
    let is_nobody = packet.stranger
        && rule.direction == Direction::Inbound
        && matches!(rule.peer, Peer::Group(_));
    protocol && ports && !is_nobody && peer_matches(groups, &rule.peer, peer)
}

/// All rules of a vnic in one direction.
fn rules<'a>(
    groups: &'a [Group],
    vnic: &'a Declared,
    direction: Direction,
) -> impl Iterator<Item = &'a Rule> {
    let of = |name: &&'static str| groups.iter().find(move |group| group.name == *name);
    vnic.groups
        .iter()
        .filter_map(of)
        .flat_map(|group| &group.rules)
        .filter(move |rule| rule.direction == direction)
}

/// Messages of neighbour and listener discovery, by the checks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// Router or neighbour solicitation, neighbour advertisement.
    Neighbour,
    /// Router advertisement, redirect.
    Router,
    /// Multicast listener report or done.
    Listener,
    /// Multicast listener query.
    Query,
}

pub fn discovery(packet: &Packet) -> Option<Discovery> {
    if packet.protocol != 58
        || packet.source.is_ipv4()
        || packet.fragment.is_some_and(|fragment| fragment.offset > 0)
    {
        return None;
    }
    match packet.upper[0] {
        133 | 135 | 136 => Some(Discovery::Neighbour),
        134 | 137 => Some(Discovery::Router),
        131 | 132 | 143 => Some(Discovery::Listener),
        130 => Some(Discovery::Query),
        _ => None,
    }
}

/// Returns whether a packet is a valid question to all routers, or a report to routers that serve
/// groups.
fn is_to_all_routers(packet: &Packet) -> bool {
    let solicits = discovery(packet).is_some() && packet.upper[0] == 133 && said(packet).is_some();
    let routers = [2, 22].map(|n| IpAddr::from([224, 0, 0, n]));
    solicits && packet.destination.is_multicast()
        || packet.protocol == 2 && routers.contains(&packet.destination)
}

/// The link-layer addresses that options of this kind give, behind byte `at` of a message. None if
/// an option is empty or not whole, or gives none.
fn link_addresses(message: &[u8], mut at: usize, wanted: u8) -> Option<Vec<[u8; 6]>> {
    let mut found = Vec::new();
    while at < message.len() {
        let len = 8 * usize::from(*message.get(at + 1)?);
        if len == 0 || at + len > message.len() {
            return None;
        }
        if message[at] == wanted {
            found.push(message[at + 2..at + len].try_into().ok()?);
        }
        at += len;
    }
    Some(found)
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    if let IpAddr::V6(ip) = ip { ip } else { unreachable!("{ip}") }
}

/// Contents of a valid message of discovery: the address it is about, and its link-layer addresses.
struct Said {
    target: Option<IpAddr>,
    links: Vec<[u8; 6]>,
}

/// Reads the link-layer addresses of a message of discovery that is shaped as one: RFC 4861, 6.1,
/// 7.1 and 8.1; RFC 2710, 3; RFC 3810, 5; RFC 6980.
pub fn links(packet: &Packet) -> Option<Vec<[u8; 6]>> {
    let message = &packet.upper;
    let kind = message[0];
    let listener = matches!(kind, 130 | 131 | 132 | 143);
    let (fixed, wanted) = match kind {
        133 => (8, 1),
        134 => (16, 1),
        135 => (24, 1),
        136 => (24, 2),
        137 => (40, 2),
        143 => (8, 0),
        _ => (24, 0),
    };
    if packet.hops != if listener { 1 } else { 255 }
        || message[1] != 0
        || packet.has_fragment_header
        || message.len() < fixed
    {
        return None;
    }
    let links = if listener { Vec::new() } else { link_addresses(message, fixed, wanted)? };
    if links.windows(2).any(|pair| pair[0] != pair[1]) {
        return None; // which is it?
    }
    Some(links)
}

/// Reads a message as a host must before it believes it.
fn said(packet: &Packet) -> Option<Said> {
    let links = links(packet)?;
    let message = &packet.upper;
    let kind = message[0];
    let target = matches!(kind, 135..=137)
        .then(|| Ipv6Addr::from(<[u8; 16]>::try_from(&message[8..24]).unwrap()));
    let (source, destination) = (v6(packet.source), v6(packet.destination));
    let multicast = |ip: Ipv6Addr| ip.octets()[0] == 0xff;
    let link_local = |ip: Ipv6Addr| ip.segments()[0] & 0xffc0 == 0xfe80;
    let unspecified = source == Ipv6Addr::UNSPECIFIED;
    let solicited_node =
        destination.octets()[..13] == [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff];
    let believable = match kind {
        133 => !unspecified || links.is_empty(),
        134 | 137 | 130 => link_local(source),
        135 => !multicast(target.unwrap()) && (!unspecified || solicited_node && links.is_empty()),
        136 => !(multicast(target.unwrap()) || multicast(destination) && message[4] & 0x40 != 0),
        _ => (link_local(source) || unspecified) && multicast(destination),
    };
    believable.then(|| Said { target: target.map(IpAddr::V6), links })
}

/// Returns the addresses that a valid message of discovery claims, and the role of its sender.
/// Claimed are addresses that the sender uses, or is about to take.
pub fn spoken_for(vnic: &Declared, packet: &Packet, to: &[u8]) -> Option<(Vec<IpAddr>, Voice)> {
    let kind = packet.upper[0];
    let said = said(packet).filter(|_| matches!(kind, 133..=136))?;
    let target = said.target;
    if !vnic.bypass && said.links.iter().any(|link| *link != vnic.mac) {
        return None;
    }
    if kind == 135 && packet.source == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        let [.., x, y, z] = v6(target?).octets();
        let heard = to == [0xff; 6] || to == [0x33, 0x33, 0xff, x, y, z];
        let asked = v6(packet.destination).octets()[13..] == [x, y, z];
        return (vnic.bypass || heard && asked)
            .then(|| (target.into_iter().collect(), Voice::Probing));
    }
    if kind == 134 {
        return vnic.bypass.then(|| (vec![packet.source], Voice::Router));
    }
    Some((
        [Some(packet.source), target.filter(|_| kind == 136)].into_iter().flatten().collect(),
        Voice::Speaking,
    ))
}

/// Returns whether a packet is a valid advertisement of a router.
pub fn advertises_router(packet: &Packet) -> bool {
    packet.upper[0] == 134 && said(packet).is_some()
}

/// Returns whether a host believes a message of discovery.
pub fn is_valid(packet: &Packet) -> bool {
    said(packet).is_some()
}

/// The link-layer address that a believable redirect gives.
pub fn redirects_to(packet: &Packet) -> Option<[u8; 6]> {
    said(packet).and_then(|said| said.links.first().copied())
}

/// Returns whether a filtered vnic may send this message of discovery without a rule.
fn discovery_is_honest(vnic: &Declared, packet: &Packet) -> bool {
    let Some(said) = said(packet) else { return false };
    let unspecified = packet.source == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    said.links.iter().all(|link| *link == vnic.mac)
        && match packet.upper[0] {
            136 => vnic.owns(packet.source) && vnic.owns(said.target.unwrap()),
            135 if unspecified => !vnic.ip_anti_spoof || vnic.owns(said.target.unwrap()),
            _ => vnic.owns(packet.source) || unspecified,
        }
}

/// Ports that a rule names, each of them meant: there are 16 at most.
fn means(rule: &Rule, ports: [u16; 2]) -> bool {
    let (first, last) = rule.ports;
    rule.protocol == Some(17)
        && last - first < 16
        && ports.iter().any(|port| first <= *port && *port <= last)
}

/// Returns whether an INBOUND rule makes a vnic the DHCP server of a packet's sender.
pub fn serves(groups: &[Group], vnic: &Declared, packet: &Packet) -> bool {
    let mut inbound = rules(groups, vnic, Direction::Inbound).filter(|rule| means(rule, [67, 547]));
    inbound.any(|rule| rule_matches(groups, rule, packet, packet.source))
}

/// Returns whether an OUTBOUND rule names a packet of infrastructure.
fn names(groups: &[Group], vnic: &Declared, packet: &Packet) -> bool {
    let of = |rule: &&Rule| matches!(rule.protocol, Some(1 | 58)) || means(rule, [68, 546]);
    rules(groups, vnic, Direction::Outbound)
        .filter(of)
        .any(|rule| rule_matches(groups, rule, packet, packet.destination))
}

/// Kinds of packets that "everything may leave" does not include.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Infrastructure {
    /// From a DHCP server's port to a client's. Whole ones are answers to requests; fragments of
    /// them are nothing.
    Answer,
    /// From another port to a DHCP client's.
    ToClient,
    Router,
}

fn infrastructure(packet: &Packet) -> Option<Infrastructure> {
    if packet.protocol == 17 {
        let (server, client) = if packet.source.is_ipv4() { (67, 68) } else { (547, 546) };
        return match (be16(&packet.upper, 0), be16(&packet.upper, 2)) {
            (from, to) if (from, to) == (server, client) => Some(Infrastructure::Answer),
            (_, to) if to == client => Some(Infrastructure::ToClient),
            _ => None,
        };
    }
    let router = match (packet.protocol, packet.source.is_ipv4()) {
        (1, true) => matches!(packet.upper.first(), Some(5 | 9)),
        _ => matches!(discovery(packet), Some(Discovery::Router | Discovery::Query)),
    };
    router.then_some(Infrastructure::Router)
}

/// Returns whether a packet is UDP between the ports of DHCP, from any sender. Such packets make no
/// session.
pub fn is_dhcp(packet: &Packet) -> bool {
    let ports: &[(u16, u16)] =
        if packet.source.is_ipv4() { &[(67, 68), (68, 67)] } else { &[(547, 546), (546, 547)] };
    packet.protocol == 17 && ports.contains(&(be16(&packet.upper, 0), be16(&packet.upper, 2)))
}

/// Checks whether a filtered vnic may send from this source at all.
pub fn source_is_own(vnic: &Declared, packet: &Packet) -> Result<(), Reasons> {
    let own = match (discovery(packet), packet.source) {
        (Some(Discovery::Neighbour | Discovery::Listener), _) => {
            return if discovery_is_honest(vnic, packet) {
                Ok(())
            } else if vnic.owns(packet.source) {
                Err(&["bad-discovery"])
            } else {
                // A source that is not its own breaks both.
                Err(&["bad-discovery", "spoofed-ip"])
            };
        }
        (Some(Discovery::Router | Discovery::Query), source) if vnic.owns(source) => {
            // A rule may let a vnic be a router, but only for itself.
            let honest =
                said(packet).is_some_and(|said| said.links.iter().all(|link| *link == vnic.mac));
            return if honest { Ok(()) } else { Err(&["bad-discovery"]) };
        }
        // What it must not say, with an address that it must not use.
        (Some(Discovery::Router | Discovery::Query), _) => {
            return Err(&["spoofed-ip", "bad-discovery"]);
        }
        // Its source is judged with the rest of it.
        _ if asks(packet) == Some(true) => true,
        (None, source) => vnic.ips.contains(&source) || answers_locally(vnic, packet),
    };
    if own { Ok(()) } else { Err(&["spoofed-ip"]) }
}

/// Returns whether a packet is a DHCPv6 server's answer from its link-local address, in one piece.
fn answers_locally(vnic: &Declared, packet: &Packet) -> bool {
    asks(packet) == Some(false) && vnic.has_link_local(packet.source)
}

/// Reason for passing or refusing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A rule, or that there is none (egress).
    Allowed,
    /// An exception for discovery and DHCP, which makes no session.
    Exception,
    Denied(Reasons),
}

/// Returns the verdict of a filtered vnic's groups on an outgoing packet with a source of its own.
pub fn egress(groups: &[Group], vnic: &Declared, packet: &Packet) -> Verdict {
    let neighbours = matches!(discovery(packet), Some(Discovery::Neighbour | Discovery::Listener));
    if neighbours && discovery_is_honest(vnic, packet) {
        return Verdict::Exception;
    }
    let mut outbound = rules(groups, vnic, Direction::Outbound).peekable();
    let allowed = match infrastructure(packet) {
        Some(Infrastructure::Answer) => false,
        Some(Infrastructure::ToClient) => names(groups, vnic, packet),
        Some(Infrastructure::Router) => vnic.router && names(groups, vnic, packet),
        None if outbound.peek().is_some() => {
            outbound.any(|rule| rule_matches(groups, rule, packet, packet.destination))
        }
        None => !neighbours,
    };
    match (allowed, discovery(packet)) {
        _ if neighbours => Verdict::Denied(&["bad-discovery"]),
        (true, Some(Discovery::Router | Discovery::Query)) => Verdict::Exception,
        (true, _) => Verdict::Allowed,
        // No rule says that it may, and 3.5 that it may not without: both are true.
        (false, Some(Discovery::Router | Discovery::Query)) => {
            Verdict::Denied(&["egress-denied", "bad-discovery"])
        }
        (false, _) => Verdict::Denied(&["egress-denied"]),
    }
}

/// Returns the verdict of a filtered vnic's groups on an incoming packet. Replies to its DHCP
/// requests are state, and not looked at here.
pub fn ingress(groups: &[Group], vnic: &Declared, packet: &Packet) -> Verdict {
    if discovery_passes(packet) {
        return Verdict::Exception;
    }
    match rules(groups, vnic, Direction::Inbound)
        .any(|rule| rule_matches(groups, rule, packet, packet.source))
    {
        true => Verdict::Allowed,
        false if is_to_all_routers(packet) => Verdict::Denied(&["for-routers"]),
        false => Verdict::Denied(&["ingress-denied"]),
    }
}

/// Returns the same of a packet that a router passes on. Discovery is of one link: behind a router
/// it is ICMPv6 like any other, which needs a rule.
pub fn egress_by_router(groups: &[Group], vnic: &Declared, packet: &Packet) -> Verdict {
    if discovery(packet).is_none() {
        return egress(groups, vnic, packet);
    }
    let mut outbound = rules(groups, vnic, Direction::Outbound).peekable();
    let allowed = outbound.peek().is_none()
        || outbound.any(|rule| rule_matches(groups, rule, packet, packet.destination));
    if allowed { Verdict::Allowed } else { Verdict::Denied(&["egress-denied"]) }
}

/// Returns the same of an incoming packet.
pub fn ingress_by_router(groups: &[Group], vnic: &Declared, packet: &Packet) -> Verdict {
    let mut inbound = rules(groups, vnic, Direction::Inbound);
    if discovery(packet).is_none() {
        return ingress(groups, vnic, packet);
    }
    match inbound.any(|rule| rule_matches(groups, rule, packet, packet.source)) {
        true => Verdict::Allowed,
        false => Verdict::Denied(&["ingress-denied"]),
    }
}

/// Discovery that reaches every vnic.
fn discovery_passes(packet: &Packet) -> bool {
    discovery(packet).is_some_and(|_| {
        matches!(packet.upper[0], 130 | 131 | 132 | 134..=136 | 143) && said(packet).is_some()
    })
}

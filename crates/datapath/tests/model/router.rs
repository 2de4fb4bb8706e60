//! Declared networks and the routers between them: lists that are searched from their start.
//!
//! Written from docs/design/routed.md, docs/routers.md and RFC 1812, of IPv6 from RFC 8200, 4443
//! and 4861. Of several reasons for a drop each is right: no document says in which order a router
//! looks for them, except that nothing of a damaged header is believed, and nothing of one that
//! tells routers the way (RFC 5095).

use std::{
    cell::RefCell,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use butterfly_datapath::RoutingChange;
use butterfly_model::{
    Neighbour, Network, Route, Router as Declaration, RouterAddresses, RouterId, Subnet, Vni,
};

use crate::{
    claims::Voice,
    nat::{self, Rule, may_be},
    policy::{self, Declared, is_in},
    switch::{Mistake, Model, Vnic},
    wire::{self, Carries, be16},
};

/// Names of all routers that there may be, and one that is never declared.
pub const ROUTERS: [&str; 3] = ["r", "s", "nowhere"];

/// A block of addresses of a network, and its gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub first: IpAddr,
    pub mask: u8,
    pub gateway: Option<IpAddr>,
}

/// A declared network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Net {
    pub vni: u32,
    pub blocks: Vec<Block>,
    pub mtu: Option<u16>,
    /// The outside knows its addresses of IPv4.
    pub public: bool,
}

/// A declared router: the networks that it joins, and its addresses where it is not the gateway of
/// the network's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Router {
    pub name: &'static str,
    pub joins: Vec<(u32, Vec<IpAddr>)>,
    pub routes: Vec<Led>,
}

/// A route: a block, and the machines that lead there; none if nobody does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    pub to: IpAddr,
    pub mask: u8,
    pub via: Vec<IpAddr>,
}

/// Receivers to which a router leads.
pub enum Leads<'a> {
    /// Into the network of a block.
    Into(&'a Net, &'a Block),
    By(&'a Led),
}

/// Ends of a flow, in order, and its protocol; of a fragment the addresses alone.
type Course = ([(IpAddr, u16); 2], u8);

/// Ways that flows took: each by one of these machines, which were those that could be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken(RefCell<Vec<(Course, Vec<IpAddr>, IpAddr)>>);

impl Taken {
    /// Returns the machine by which a flow goes, of several that may lead there. A flow prefers one
    /// machine to another, or the other way round, for ever. `pick` chooses what is open.
    fn choose(
        &self,
        course: Option<Course>,
        among: &[IpAddr],
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> IpAddr {
        let mut taken = self.0.borrow_mut();
        let mut open = among.to_vec();
        let known = taken.iter().filter(|(other, ..)| Some(*other) == course);
        for (_, were, took) in known.filter(|(.., took)| among.contains(took)) {
            open.retain(|way| way == took || !were.contains(way));
        }
        let way = if open.len() > 1 { open[pick(open.len())] } else { open[0] };
        taken.extend(course.map(|course| (course, among.to_vec(), way)));
        way
    }

    /// Returns another way than the time before, as no switch may.
    fn by_turns(&self, among: &[IpAddr]) -> IpAddr {
        let mut taken = self.0.borrow_mut();
        let way = among[taken.len() % among.len()];
        taken.push((([(way, 0); 2], 0), Vec::new(), way));
        way
    }
}

/// A machine as an operator tells of it: its MAC address, and the number of its host if that is
/// told, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    pub vni: u32,
    pub ip: IpAddr,
    pub mac: [u8; 6],
    pub host: Option<u8>,
}

/// A change of what is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Resident(Resident),
    NoResident(u32, IpAddr),
    Net(Net),
    NoNet(u32),
    Router(Router),
    NoRouter(&'static str),
    /// An external without a wire, whose outside are the vnics of this network.
    External(Net),
    /// All that a router translates at an external.
    Nat(&'static str, u32, Vec<Rule>),
}

/// Everything that is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    pub nets: Vec<Net>,
    pub routers: Vec<Router>,
    pub residents: Vec<Resident>,
    /// Networks that are outsides.
    pub externals: Vec<u32>,
    /// Translations, by router and external.
    pub nats: Vec<(&'static str, u32, Vec<Rule>)>,
}

/// Returns the MAC address of a router: two reserved bytes, and the 32 bits of FNV-1a of its name.
pub fn gateway_mac(name: &str) -> [u8; 6] {
    let mut hash = 0x811c_9dc5_u32;
    for byte in name.bytes() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    }
    let mut mac = [0xb2, 0xf0, 0, 0, 0, 0];
    mac[2..].copy_from_slice(&hash.to_be_bytes());
    mac
}

/// Returns the MAC address of a host as a router: two reserved bytes, and its tunnel endpoint.
pub fn host_mac(number: u8) -> [u8; 6] {
    [0xb2, 0xf1, 192, 168, 0, number]
}

/// Returns whether no machine may have a MAC address.
pub fn is_reserved(mac: &[u8]) -> bool {
    mac[..2] == [0xb2, 0xf0] || mac[..2] == [0xb2, 0xf1]
}

impl Block {
    pub fn has(&self, ip: IpAddr) -> bool {
        is_in(ip, self.first, self.mask)
    }

    /// Returns whether an address of the block is no host's (RFC 1122, 3.2.1.3; RFC 3021). IPv6
    /// has no such addresses, but for one that is a router's and a host's at once.
    pub fn is_nobodys(&self, ip: IpAddr) -> bool {
        let (IpAddr::V4(first), IpAddr::V4(ip)) = (self.first, ip) else { return false };
        let last = u32::from(first) + (1 << (32 - self.mask)) - 1;
        self.mask < 31 && (ip == first || u32::from(ip) == last)
    }
}

impl Block {
    /// Returns whether an address is the first one of the block, or of IPv4 the last one, where
    /// there are more than two.
    fn is_first_or_last(&self, ip: IpAddr) -> bool {
        match (self.first, ip) {
            (IpAddr::V4(_), IpAddr::V4(_)) => self.is_nobodys(ip),
            _ => self.mask < 127 && ip == self.first,
        }
    }
}

impl Routes {
    /// Carries out a change, unless an operator is refused it. Returns whether it was.
    pub fn apply(&mut self, change: &Change) -> bool {
        let is_there = |routes: &Routes, vni: u32| routes.net(vni).is_some();
        match change {
            Change::Net(net) => {
                let mut after = self.clone();
                after.nets.retain(|other| other.vni != net.vni);
                after.nets.push(net.clone());
                let joined: Vec<&Router> = after.routers_of(net.vni).collect();
                if !joined.iter().all(|router| after.has_ways(router)) {
                    return false;
                }
                self.nets = after.nets;
            }
            Change::NoNet(vni) => {
                let joined = self.routers.iter().flat_map(|router| &router.joins);
                if !is_there(self, *vni) || joined.into_iter().any(|(other, _)| other == vni) {
                    return false;
                }
                self.nets.retain(|net| net.vni != *vni);
            }
            Change::Router(router) => {
                let joins_all = router.joins.iter().all(|(vni, _)| is_there(self, *vni));
                let leaves = |(name, vni, _): &(&str, u32, Vec<Rule>)| {
                    *name == router.name && router.joins.iter().all(|(other, _)| other != vni)
                };
                // None leaves an external while it translates there.
                if !joins_all || !self.has_ways(router) || self.nats.iter().any(leaves) {
                    return false;
                }
                self.routers.retain(|other| other.name != router.name);
                self.routers.push(router.clone());
            }
            Change::Resident(resident) => {
                let is_it = |other: &Resident| (other.vni, other.ip) == (resident.vni, resident.ip);
                self.residents.retain(|other| !is_it(other));
                self.residents.push(resident.clone());
            }
            Change::NoResident(vni, ip) => {
                let before = self.residents.len();
                self.residents.retain(|other| (other.vni, other.ip) != (*vni, *ip));
                return self.residents.len() < before;
            }
            Change::External(net) => {
                let is_new = !self.externals.contains(&net.vni);
                self.externals.extend(Some(net.vni).filter(|_| is_new));
                return self.apply(&Change::Net(net.clone()));
            }
            Change::Nat(name, vni, rules) => {
                let has_router = self.routers_of(*vni).any(|router| router.name == *name);
                let others = self.nats.iter().filter(|(other, ..)| other != name);
                let others = others.flat_map(|(.., rules)| rules);
                let is_free = |rule: &Rule| others.clone().all(|it| it.outside() != rule.outside());
                let is_external = self.externals.contains(vni);
                if !is_external || !has_router || !may_be(rules) || !rules.iter().all(is_free) {
                    return false;
                }
                self.nats.retain(|(other, at, _)| (other, at) != (name, vni));
                if !rules.is_empty() {
                    self.nats.push((name, *vni, rules.clone()));
                }
            }
            Change::NoRouter(name) => {
                if self.nats.iter().any(|(other, ..)| other == name) {
                    return false;
                }
                let before = self.routers.len();
                self.routers.retain(|router| router.name != *name);
                return self.routers.len() < before;
            }
        }
        true
    }

    pub fn net(&self, vni: u32) -> Option<&Net> {
        self.nets.iter().find(|net| net.vni == vni)
    }

    /// Returns whether all machines by which a router leads are hosts in its networks, and not the
    /// router itself.
    fn has_ways(&self, router: &Router) -> bool {
        let is_host = |via: &IpAddr| {
            let net = self.net_of(router, *via);
            net.is_some_and(|(_, block)| !block.is_first_or_last(*via))
        };
        let is_own = |via: &IpAddr| {
            router.joins.iter().any(|(vni, _)| self.addresses(router, *vni).contains(via))
        };
        router.routes.iter().flat_map(|led| &led.via).all(|via| is_host(via) && !is_own(via))
    }

    /// Returns the network of a router that has an address in a block, whatever routes there are.
    pub fn net_of(&self, router: &Router, ip: IpAddr) -> Option<(&Net, &Block)> {
        let nets = router.joins.iter().filter_map(|(vni, _)| self.net(*vni));
        let mut blocks = nets.flat_map(|net| net.blocks.iter().map(move |block| (net, block)));
        blocks.find(|(_, block)| block.has(ip))
    }

    /// Returns where a router leads what is for an address: by the longest block that has it (RFC
    /// 1812, 5.2.4.3); of two that are one, into its own network.
    pub fn leads(&self, router: &Router, ip: IpAddr) -> Option<Leads<'_>> {
        let router = self.routers.iter().find(|other| other.name == router.name)?;
        let into = self.net_of(router, ip);
        let led = router.routes.iter().filter(|led| is_in(ip, led.to, led.mask));
        match (into, led.max_by_key(|led| led.mask)) {
            (Some((_, block)), Some(led)) if led.mask > block.mask => Some(Leads::By(led)),
            (Some((net, block)), _) => Some(Leads::Into(net, block)),
            (None, led) => led.map(Leads::By),
        }
    }

    /// Returns whether one router joins two networks.
    pub fn are_joined(&self, one: u32, other: u32) -> bool {
        let joins =
            |router: &Router, vni: u32| router.joins.iter().any(|(joined, _)| *joined == vni);
        self.routers.iter().any(|router| joins(router, one) && joins(router, other))
    }

    /// Returns the addresses of a router in a network.
    fn addresses(&self, router: &Router, vni: u32) -> Vec<IpAddr> {
        let given = router.joins.iter().find(|(joined, _)| *joined == vni);
        match (given, self.net(vni)) {
            (Some((_, given)), Some(net)) if given.is_empty() => {
                net.blocks.iter().filter_map(|block| block.gateway).collect()
            }
            (Some((_, given)), _) => given.clone(),
            _ => Vec::new(),
        }
    }

    /// Returns the routers of a network that is declared.
    pub fn routers_of(&self, vni: u32) -> impl Iterator<Item = &Router> {
        let joins = move |router: &&Router| router.joins.iter().any(|(joined, _)| *joined == vni);
        self.routers.iter().filter(joins)
    }

    /// Returns the router that has an address in a network, for itself or by a translation.
    pub fn with_address(&self, vni: u32, ip: IpAddr) -> Option<&Router> {
        self.routers_of(vni).find(|router| {
            let translates = self.rules(router.name, vni).iter().any(|rule| rule.outside() == ip);
            translates || self.addresses(router, vni).contains(&ip)
        })
    }

    /// Returns the translations of a router at an external.
    pub fn rules(&self, router: &str, vni: u32) -> &[Rule] {
        let of = self.nats.iter().find(|(name, at, _)| (*name, *at) == (router, vni));
        of.map_or(&[], |(.., rules)| rules)
    }

    /// Returns whether a network is an outside.
    pub fn is_outside(&self, vni: u32) -> bool {
        self.externals.contains(&vni)
    }

    /// Returns whether the outside `from` knows an address inside, which needs no translation.
    pub fn is_known_outside(&self, router: &Router, ip: IpAddr, from: u32) -> bool {
        let of = self.net_of(router, ip);
        of.is_some_and(|(net, _)| net.vni != from && (net.public || ip.is_ipv6()))
    }
}

/// Returns the change as an operator's request has it.
pub fn declaration(change: &Change) -> Vec<RoutingChange> {
    match change {
        Change::External(net) => {
            let external = nat::external(net);
            let network = external.network().clone();
            vec![RoutingChange::DeclareNetwork(network), RoutingChange::DeclareWire(external)]
        }
        other => vec![single(other)],
    }
}

fn single(change: &Change) -> RoutingChange {
    let vni = |number: u32| Vni::new(number).unwrap();
    let id = |name: &str| RouterId::new(name).unwrap();
    match change {
        Change::Net(net) => {
            let subnet = |block: &Block| {
                let gateway = block.gateway.map(|gateway| gateway.to_string());
                Subnet::parse(&format!("{}/{}", block.first, block.mask), gateway.as_deref())
                    .unwrap()
            };
            let subnets = net.blocks.iter().map(subnet).collect();
            let mtu = net.mtu.map(u32::from);
            let network = Network::new(vni(net.vni), subnets, mtu).unwrap();
            RoutingChange::DeclareNetwork(network.with_public(net.public))
        }
        Change::NoNet(number) => RoutingChange::RemoveNetwork(vni(*number)),
        Change::Router(router) => {
            let mut declared = Declaration::new(id(router.name));
            for (number, address) in &router.joins {
                let given = address.iter().map(IpAddr::to_string);
                declared.attach(vni(*number), RouterAddresses::parse(given).unwrap());
            }
            for Led { to, mask, via } in &router.routes {
                let via = via.iter().map(IpAddr::to_string);
                declared.add_route(Route::parse(&format!("{to}/{mask}"), via).unwrap());
            }
            RoutingChange::DeclareRouter(declared)
        }
        Change::NoRouter(name) => RoutingChange::RemoveRouter(id(name)),
        Change::Resident(Resident { vni: number, ip, mac, host }) => {
            let mac = butterfly_packet::Mac(*mac).to_string();
            let mac = butterfly_model::Mac::parse(&mac).unwrap();
            let host = host.map(|host| IpAddr::from([192, 168, 0, host]));
            RoutingChange::DeclareNeighbour(Neighbour::new(vni(*number), *ip, mac, host).unwrap())
        }
        Change::NoResident(number, ip) => RoutingChange::RemoveNeighbour(vni(*number), *ip),
        Change::Nat(name, number, rules) => {
            let rules = rules.iter().map(Rule::declared).collect();
            RoutingChange::DeclareNat(id(name), vni(*number), rules)
        }
        Change::External(_) => unreachable!("it is two"),
    }
}

/// Fate of a frame at the routers of its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// No router takes it.
    NotMine,
    /// Each of these is a reason for the drop.
    Dropped(Vec<&'static str>),
    /// A router hears it, and does no more about it.
    Heard,
    /// The sender gets this frame.
    Answered(Vec<u8>),
    /// The same, if its rules let out what it asks.
    Echoed(Vec<u8>),
    /// The same about its gateway's MAC address, or nothing, if it may say so in its network.
    Asked(Option<Vec<u8>>),
    /// A machine gets this frame, if the filter lets the packet pass, or what it is cut into.
    Routed(SentOn, Vec<u8>),
}

/// The machine to which a router sends a packet on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentOn {
    pub mac: [u8; 6],
    pub place: NextPlace,
    /// Longest packet on the way there, if there is one.
    pub mtu: Option<u16>,
}

/// Behind a vnic of this host, or on the host of a number, in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPlace {
    Vnic(usize),
    Away(u32, u8),
}

/// Longest packet in bytes that the tunnel carries: less by the outer headers than the wire does.
const TUNNEL_MTU: u16 = 1500 - 50;

/// Returns the sum of RFC 791 over a header, its own sum as it is.
pub fn sum(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Writes the right sum into a header.
pub fn set_sum(header: &mut [u8]) {
    header[10..12].copy_from_slice(&[0, 0]);
    let right = !sum(header);
    header[10..12].copy_from_slice(&right.to_be_bytes());
}

pub fn ip(bytes: &[u8], at: usize) -> IpAddr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).into()
}

pub fn ip6(bytes: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
    IpAddr::V6(Ipv6Addr::from(octets))
}

/// Returns whether an address is of a group, of all, of this host or this link alone, or none (RFC
/// 1812, 5.3.7; RFC 4291, 2.5 to 2.7).
pub fn is_no_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let first = ip.octets()[0];
            first == 0 || first == 127 || first >= 224
        }
        IpAddr::V6(ip) => {
            let bytes = ip.octets();
            let is_mapped = bytes[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            bytes[..15] == [0; 15] && bytes[15] < 2
                || bytes[0] == 0xff
                || bytes[0] == 0xfe && bytes[1] & 0xc0 == 0x80
                || is_mapped
        }
    }
}

/// Extension headers of a packet of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Protocol behind them.
    pub protocol: u8,
    /// Byte of the packet that names it.
    named: usize,
    /// Byte at which it begins.
    pub end: usize,
    /// True for a fragment that is not the first.
    pub is_later: bool,
}

/// Walks extension headers, which are looked at in the first 256 bytes of a frame. Else says why
/// the packet goes no further.
pub fn chain(packet: &[u8]) -> Result<Chain, Vec<&'static str>> {
    let end = packet.len().min(40 + usize::from(be16(packet, 4)));
    let whole = &packet[..end];
    let mut chain = Chain { protocol: packet[6], named: 6, end: 40, is_later: false };
    loop {
        let at = chain.end;
        let unit = match chain.protocol {
            0 | 43 | 60 => 8,
            44 => 0,
            51 => 4,
            _ => return Ok(chain),
        };
        let cut = |len: usize| match 14 + at + len > 256 {
            _ if at + len <= end => vec!["headers-too-long"],
            true => vec!["malformed-ip", "headers-too-long"],
            false => vec!["malformed-ip"],
        };
        if chain.protocol == 0 && at > 40 {
            return Err(vec!["malformed-ip"]);
        }
        if at + 2 > end || 14 + at + 2 > 256 {
            return Err(cut(2));
        }
        let len = 8 + unit * usize::from(whole[at + 1]);
        if at + len > end || 14 + at + len > 256 {
            return Err(cut(len));
        }
        if chain.protocol == 43 && whole[at + 2] == 0 {
            return Err(vec!["source-routed"]);
        }
        let is_later = chain.protocol == 44 && be16(whole, at + 2) & 0xfff8 != 0;
        chain = Chain { protocol: whole[at], named: at, end: at + len, is_later };
        if is_later {
            return Ok(chain);
        }
    }
}

/// Returns the sum of ICMPv6 over a message and its addresses, its own sum as it is (RFC 4443,
/// 2.3).
fn sum6(source: IpAddr, destination: IpAddr, message: &[u8]) -> u16 {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) else {
        panic!("{source}, {destination}: IPv6")
    };
    let len = message.len() as u32;
    let ends = [source.octets(), destination.octets()].concat();
    sum(&[&ends, &len.to_be_bytes()[..], &[0, 0, 0, 58], message].concat())
}

/// Returns a frame of ICMPv6, with so many hops to go.
fn icmp6(macs: &[u8], hops: u8, [source, destination]: [IpAddr; 2], message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let right = !sum6(source, destination, &message);
    message[2..4].copy_from_slice(&right.to_be_bytes());
    let (IpAddr::V6(from), IpAddr::V6(to)) = (source, destination) else { unreachable!() };
    let len = (message.len() as u16).to_be_bytes();
    let header = [&[0x60, 0, 0, 0][..], &len, &[58, hops], &from.octets(), &to.octets()].concat();
    [macs, &[0x86, 0xdd], &header, &message].concat()
}

/// Returns the answer to a whole echo request without extension headers, of a frame of 1,514 bytes
/// at most.
fn echo6(frame: &[u8]) -> Option<Vec<u8>> {
    let end = 54 + usize::from(be16(frame, 18));
    let is_request = frame[20] == 58
        && (62..=1514).contains(&end)
        && frame.len() <= 1522
        && frame[6] & 1 == 0
        && frame[54..56] == [128, 0];
    if !is_request {
        return None;
    }
    let mut answer = frame[..end].to_vec();
    answer[..6].copy_from_slice(&frame[6..12]);
    answer[6..12].copy_from_slice(&frame[..6]);
    answer[21] = 64;
    answer[22..38].copy_from_slice(&frame[38..54]);
    answer[38..54].copy_from_slice(&frame[22..38]);
    // A sum that was wrong stays wrong by as much (RFC 1624).
    let mut new = u32::from(!be16(frame, 56)) + u32::from(!0x8000_u16) + 0x8100;
    while new > 0xffff {
        new = (new & 0xffff) + (new >> 16);
    }
    answer[54] = 129;
    answer[56..58].copy_from_slice(&(!(new as u16)).to_be_bytes());
    Some(answer)
}

/// Returns the answer to a whole echo request without options, of a frame of 1,514 bytes at most.
fn echo(frame: &[u8]) -> Option<Vec<u8>> {
    let total = usize::from(be16(frame, 16));
    let is_request = frame[14] == 0x45
        && be16(frame, 20) & 0x3fff == 0
        && frame[23] == 1
        && (28..=1500).contains(&total)
        && frame.len() <= 1522
        && frame[6] & 1 == 0
        && frame[34..36] == [8, 0];
    if !is_request {
        return None;
    }
    let mut answer = frame[..14 + total].to_vec();
    answer[..6].copy_from_slice(&frame[6..12]);
    answer[6..12].copy_from_slice(&frame[..6]);
    answer[18..24].copy_from_slice(&[0, 0, 0x40, 0, 64, 1]);
    answer[26..30].copy_from_slice(&frame[30..34]);
    answer[30..34].copy_from_slice(&frame[26..30]);
    set_sum(&mut answer[14..34]);
    // A sum that was wrong stays wrong by as much (RFC 1624).
    let old = u32::from(!be16(frame, 36));
    let mut new = old + u32::from(!0x0800_u16);
    new = (new & 0xffff) + (new >> 16);
    answer[34] = 0;
    answer[36..38].copy_from_slice(&(!(new as u16)).to_be_bytes());
    Some(answer)
}

impl Model {
    /// Returns what the routers of a vnic's network make of its frame.
    ///
    /// `pick` chooses one of so many ways, each of which is right.
    pub fn at_routers(
        &self,
        sender: usize,
        frame: &[u8],
        carries: &Carries,
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Fate {
        let vni = self.vnics[sender].declared.vni;
        if self.routes.net(vni).is_none() {
            return Fate::NotMine;
        }
        // What only its own machines may have from a gateway.
        let is_far = self.vnics[sender].is_trunk();
        let near = |fate| match fate {
            Fate::Dropped(reasons) if reasons != ["gateway-tagged"] => Fate::Dropped(reasons),
            Fate::NotMine => Fate::NotMine,
            _ if is_far => Fate::Dropped(vec!["gateway-from-wire"]),
            other => other,
        };
        if let Carries::Arp(at) = carries {
            match near(self.hear(vni, frame, *at)) {
                Fate::NotMine => {}
                heard => return heard,
            }
        }
        if let Carries::Ip(at, vlan) = carries
            && let Ok(packet) = wire::packet(frame, *at, *vlan)
            && policy::discovery(&packet).is_some()
            && packet.hops == 255
        {
            match near(self.hear_discovery(vni, frame, *at, &packet)) {
                Fate::NotMine => {}
                heard => return heard,
            }
        }
        let Some(router) =
            self.routes.routers_of(vni).find(|router| gateway_mac(router.name) == frame[..6])
        else {
            return Fate::NotMine;
        };
        if is_far {
            return Fate::Dropped(vec!["gateway-from-wire"]);
        }
        let tagged = ![14, usize::MAX].contains(&begins(frame, carries));
        match carries {
            Carries::Ip(14, _) if frame[14] >> 4 == 6 => self.route6(sender, router, frame, pick),
            Carries::Ip(14, _) => self.route(sender, router, frame, pick),
            Carries::Ip(..) => Fate::Dropped(vec!["gateway-tagged"]),
            // It may be called IP behind something, or not IP at all.
            Carries::Hidden => Fate::Dropped(vec!["gateway-tagged", "gateway-not-ip"]),
            _ if tagged => Fate::Dropped(vec!["gateway-tagged", "gateway-not-ip"]),
            _ => Fate::Dropped(vec!["gateway-not-ip"]),
        }
    }

    /// Returns what is made of ARP. A claim is read as loosely as any machine reads it; an answer
    /// gets only what RFC 826 asks for.
    fn hear(&self, vni: u32, frame: &[u8], at: usize) -> Fate {
        let arp = &frame[at..];
        if arp.len() < 28 || arp[2..6] != [8, 0, 6, 4] {
            return Fate::NotMine;
        }
        let (mac, from, asked) = (&arp[8..14], ip(arp, 14), ip(arp, 24));
        if self.routes.with_address(vni, from).is_some() || is_reserved(mac) {
            return Fate::Dropped(vec!["gateway-claimed"]);
        }
        if arp[..2] != [0, 1] {
            return Fate::NotMine;
        }
        let to_router =
            self.routes.routers_of(vni).any(|router| gateway_mac(router.name) == frame[..6]);
        let asked = self.routes.with_address(vni, asked).filter(|_| arp[6..8] == [0, 1]);
        match asked {
            _ if at != 14 && (to_router || asked.is_some()) => {
                Fate::Dropped(vec!["gateway-tagged"])
            }
            Some(router) => {
                let own = gateway_mac(router.name);
                let mut answer =
                    [&frame[6..12], &own, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &own].concat();
                answer.extend_from_slice(&arp[24..28]);
                answer.extend_from_slice(&frame[6..12]);
                answer.extend_from_slice(&arp[14..18]);
                Fate::Answered(answer)
            }
            None if to_router => Fate::Heard,
            None => Fate::NotMine,
        }
    }

    /// Passes a packet on, or says why not: all that is wrong with it.
    fn route(
        &self,
        sender: usize,
        router: &Router,
        frame: &[u8],
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Fate {
        let packet = &frame[14..];
        // RFC 1812, 5.2.2.
        let header = usize::from(packet[0] & 15) * 4;
        if packet.len() < 20
            || header < 20
            || header > packet.len()
            || sum(&packet[..header]) != 0xffff
            || usize::from(be16(packet, 2)) < header
        {
            return Fate::Dropped(vec!["ip-checksum"]);
        }
        let total = usize::from(be16(packet, 2));
        if total > packet.len() {
            return Fate::Dropped(vec!["ip-checksum", "truncated"]);
        }
        let ends = [ip(packet, 12), ip(packet, 16)];
        match self.way((sender, frame), router, packet[8], ends, pick) {
            Fate::Routed(to, _) => {
                let mut frame = self.passed(to, router, frame);
                if self.mistake() != Some(Mistake::KeepsHops) {
                    frame[14 + 8] -= 1;
                }
                set_sum(&mut frame[14..14 + header]);
                Fate::Routed(to, frame)
            }
            other => other,
        }
    }

    /// Does the same for IPv6, whose header has no sum (RFC 8200).
    fn route6(
        &self,
        sender: usize,
        router: &Router,
        frame: &[u8],
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Fate {
        let packet = &frame[14..];
        if packet.len() < 40 || 40 + usize::from(be16(packet, 4)) > packet.len() {
            return Fate::Dropped(vec!["ip-checksum"]);
        }
        if let Err(reasons) = chain(packet) {
            return Fate::Dropped(reasons);
        }
        let ends = [ip6(packet, 8), ip6(packet, 24)];
        match self.way((sender, frame), router, packet[7], ends, pick) {
            Fate::Routed(to, _) => {
                let mut frame = self.passed(to, router, frame);
                if self.mistake() != Some(Mistake::KeepsHops) {
                    frame[14 + 7] -= 1;
                }
                if to.mtu.is_some_and(|mtu| frame.len() - 14 > usize::from(mtu)) {
                    frame.truncate(14 + 40 + usize::from(be16(&frame, 14 + 4)));
                }
                Fate::Routed(to, frame)
            }
            other => other,
        }
    }

    /// Returns a frame as a router sends it on, but for its hops.
    fn passed(&self, to: SentOn, router: &Router, frame: &[u8]) -> Vec<u8> {
        let mut frame = frame.to_vec();
        frame[..6].copy_from_slice(&to.mac);
        let from = match to.place {
            NextPlace::Vnic(_) => gateway_mac(router.name),
            NextPlace::Away(..) => host_mac(self.number),
        };
        frame[6..12].copy_from_slice(&from);
        frame
    }

    /// Returns the gateways of which a machine gets from one what a router of another host passed
    /// on; none if that stays as it came. Else each of these is a reason for the drop.
    pub fn far_gateways(
        &self,
        vni: u32,
        frame: &[u8],
        carries: &Carries,
    ) -> Result<Vec<[u8; 6]>, Vec<&'static str>> {
        let mut wrong = Vec::new();
        if frame[0] & 1 != 0 {
            wrong.push("route-group");
        }
        let is_for_gateway =
            self.routes.routers_of(vni).any(|router| gateway_mac(router.name) == frame[..6]);
        let Carries::Ip(14, _) = carries else {
            return Err([wrong, vec!["router-mac"]].concat());
        };
        if is_for_gateway {
            wrong.push("router-mac");
        }
        let packet = &frame[14..];
        let of_six = packet[0] >> 4 == 6;
        let damaged = match of_six {
            true if packet.len() < 40 || 40 + usize::from(be16(packet, 4)) > packet.len() => {
                vec!["ip-checksum"]
            }
            true => chain(packet).err().unwrap_or_default(),
            false => {
                let header = usize::from(packet[0] & 15) * 4;
                let is_whole = (20..=packet.len()).contains(&header)
                    && packet.len() >= usize::from(be16(packet, 2))
                    && usize::from(be16(packet, 2)) >= header;
                let is_right = is_whole && sum(&packet[..header]) == 0xffff;
                if is_right { Vec::new() } else { vec!["ip-checksum"] }
            }
        };
        if !damaged.is_empty() {
            return Err([wrong, damaged].concat());
        }
        let source = if of_six { ip6(packet, 8) } else { ip(packet, 12) };
        let declared = self.routes.net(vni).filter(|_| !is_no_unicast(source));
        let beyond = self.beyond(vni, source);
        let mut near = self.routes.routers_of(vni).peekable();
        let is_foreign = match declared {
            _ if is_no_unicast(source) => true,
            Some(_) if near.peek().is_none() => true,
            // No machine of the source's network has it.
            Some(_)
                if beyond.iter().any(|(router, there)| self.is_nobodys(router, *there, source)) =>
            {
                true
            }
            // No gateway sends anything by a router.
            Some(_) => beyond.is_empty() || near.any(|router| self.is_routers(router, source)),
            None => false,
        };
        let is_here = self.homes(vni, source).iter().any(|home| self.speaks_here(*home, source));
        match self.mistake() {
            Some(Mistake::AnyFarSource) => {}
            _ if is_foreign => wrong.push("foreign-source"),
            _ if is_here => wrong.push("own-source-routed"),
            _ => {}
        }
        if !wrong.is_empty() {
            return Err(wrong);
        }
        Ok(beyond.into_iter().map(|(router, _)| gateway_mac(router.name)).collect())
    }

    /// Returns whether no machine has an address, to which a router leads by a network: it is one
    /// that its block has for nobody, or another router's.
    fn is_nobodys(&self, router: &Router, there: u32, ip: IpAddr) -> bool {
        let own = self.routes.net_of(router, ip);
        let homes = own.iter().map(|(net, _)| net.vni).chain([there]);
        own.is_some_and(|(_, block)| block.is_nobodys(ip))
            || homes.into_iter().any(|home| self.routes.with_address(home, ip).is_some())
    }

    /// Returns whether a router has an address, in any of its networks.
    fn is_routers(&self, router: &Router, ip: IpAddr) -> bool {
        let joins = |(vni, _): &(u32, _)| self.routes.addresses(router, *vni);
        router.joins.iter().flat_map(joins).any(|own| own == ip)
    }

    /// Returns the networks beside this one by which its routers lead to an address, each with its
    /// router.
    pub fn beyond(&self, vni: u32, ip: IpAddr) -> Vec<(&Router, u32)> {
        let mut all = Vec::new();
        for router in self.routes.routers_of(vni) {
            let there: Vec<u32> = match self.routes.leads(router, ip) {
                Some(Leads::Into(net, _)) => vec![net.vni],
                Some(Leads::By(led)) => {
                    let nets = led.via.iter().filter_map(|via| self.routes.net_of(router, *via));
                    nets.map(|(net, _)| net.vni).collect()
                }
                None => Vec::new(),
            };
            all.extend(there.into_iter().filter(|there| *there != vni).map(|it| (router, it)));
        }
        all
    }

    /// Returns the networks in which a machine may have an address that routers of a network lead
    /// to, beside this one: also those of a block of which a part is behind a machine elsewhere.
    pub fn homes(&self, vni: u32, ip: IpAddr) -> Vec<u32> {
        let beyond = self.beyond(vni, ip);
        let own = beyond.iter().filter_map(|(router, _)| self.routes.net_of(router, ip));
        own.map(|(net, _)| net.vni).chain(beyond.iter().map(|(_, there)| *there)).collect()
    }

    /// Returns whether a filtered vnic of this host has an address alone.
    pub fn speaks_here(&self, vni: u32, ip: IpAddr) -> bool {
        let has = |vnic: &&Vnic| vnic.declared.vni == vni && vnic.declared.ips.contains(&ip);
        let holders: Vec<&Vnic> = self.vnics.iter().filter(has).collect();
        holders.iter().any(|vnic| !vnic.declared.bypass)
            && holders.iter().all(|vnic| vnic.declared.bypass || !vnic.declared.shared_ip)
    }

    /// Returns the machine of a network that has an address, if it is known where it is.
    fn next_hop(&self, vni: u32, destination: IpAddr) -> Option<SentOn> {
        let has =
            |vnic: &Vnic| vnic.declared.vni == vni && vnic.declared.ips.contains(&destination);
        let holders: Vec<usize> =
            (0..self.vnics.len()).filter(|at| has(&self.vnics[*at])).collect();
        match holders[..] {
            [] => {}
            [holder] if !self.vnics[holder].declared.shared_ip => {
                let mac = self.vnics[holder].declared.mac;
                return Some(SentOn { mac, place: NextPlace::Vnic(holder), mtu: None });
            }
            // An address that several may have says nothing about where to send.
            _ => return None,
        }
        let mut residents = self.routes.residents.iter();
        let resident = residents.find(|it| (it.vni, it.ip) == (vni, destination))?;
        let mac = resident.mac;
        let place = match resident.host {
            Some(host)
                if self.number > 0
                    && host != self.number
                    && self.mistake() != Some(Mistake::ResidentsAreHere) =>
            {
                NextPlace::Away(vni, host)
            }
            _ => {
                let at = self.heard(vni, mac)?;
                // The other one of two hosts.
                let away = NextPlace::Away(vni, 3 - self.number.clamp(1, 2));
                if self.vnics[at].is_trunk() { away } else { NextPlace::Vnic(at) }
            }
        };
        Some(SentOn { mac, place, mtu: None })
    }

    /// Decides on a packet with so many hops to go.
    fn way(
        &self,
        (sender, frame): (usize, &[u8]),
        router: &Router,
        hops: u8,
        [source, destination]: [IpAddr; 2],
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Fate {
        let echo = || if source.is_ipv6() { echo6(frame) } else { echo(frame) };
        let mut wrong = Vec::new();
        let declared = &self.vnics[sender].declared;
        let is_gateway = self.routes.with_address(declared.vni, source).is_some();
        let is_near = source.is_ipv6() && is_no_unicast(source);
        let is_of = self.is_of(declared, source);
        let is_outside = self.routes.is_outside(declared.vni);
        let is_behind = is_outside || !is_of && self.is_behind(sender, router, source);
        if is_outside {
            wrong.extend(self.bars_outside(router, declared.vni, source));
            let known = self.is_inward()
                || self.routes.is_known_outside(router, destination, declared.vni)
                || self.routes.addresses(router, declared.vni).contains(&destination);
            if !known {
                return Fate::Dropped([wrong, vec!["no-route"]].concat());
            }
        } else if (is_gateway || is_near || !is_of && !is_behind)
            && self.mistake() != Some(Mistake::AnySource)
        {
            wrong.push("foreign-source");
        }
        if self.is_routers(router, destination) {
            // It is there, whatever hops are left.
            return match echo() {
                Some(answer) if wrong.is_empty() => Fate::Echoed(answer),
                Some(_) => Fate::Dropped(wrong),
                None => Fate::Dropped([wrong, vec!["gateway-no-service"]].concat()),
            };
        }
        if hops <= 1 {
            wrong.push("ttl-expired");
        }
        if !is_outside && self.turns_back(router, destination) {
            wrong.push("nat-hairpin");
            return Fate::Dropped(wrong);
        }
        let hop = self.hop((declared, frame), router, destination, &mut wrong, pick);
        let to = hop.as_ref().map(|(to, _)| match to.place {
            NextPlace::Vnic(at) => self.vnics[at].declared.vni,
            NextPlace::Away(vni, _) => vni,
        });
        if is_behind
            && to.is_some_and(|to| self.is_somebodys(to, source))
            && !wrong.contains(&"foreign-source")
            && self.mistake() != Some(Mistake::AnySource)
        {
            wrong.push("foreign-source");
        }
        let leaves = to.is_some_and(|to| self.routes.is_outside(to));
        if let (true, Some(to)) = (leaves, to) {
            let net = self.routes.net(declared.vni);
            let stays = destination.is_ipv6() || net.is_some_and(|net| net.public);
            if is_outside {
                wrong.push("no-route"); // not from one outside to another
            } else if self.routes.rules(router.name, to).is_empty() && !stays {
                wrong.push("nat-no-rule");
            }
        }
        if let Some((_, Some(mtu))) = hop
            && let Err(reason) = may_be_made_to_fit(&frame[14..], mtu.into())
        {
            wrong.push(reason);
        }
        // Another host cannot know whose the source is.
        let is_far = matches!(&hop, Some((SentOn { place: NextPlace::Away(..), .. }, _)));
        let claimed = || self.is_claimed(&self.vnics[sender], source, Voice::Speaking);
        if (is_far || leaves) && declared.bypass && !declared.forwards && claimed() {
            wrong.push("ip-claimed");
        }
        match hop {
            Some((to, mtu)) if wrong.is_empty() => Fate::Routed(SentOn { mtu, ..to }, Vec::new()),
            _ => Fate::Dropped(wrong),
        }
    }

    /// Returns what is made of neighbour discovery. A claim need not be valid: hosts differ in what
    /// they take for that. A question has to be (RFC 4861, 7.1.1).
    fn hear_discovery(&self, vni: u32, frame: &[u8], at: usize, packet: &wire::Packet) -> Fate {
        let message = &packet.upper;
        let least = if message[0] == 137 { 40 } else { 24 };
        let has_target = matches!(message[0], 135..=137) && message.len() >= least;
        let target = has_target.then(|| ip6(message, 8));
        let own = |ip: IpAddr| self.routes.with_address(vni, ip);
        let links = policy::links(packet).unwrap_or_default();
        let is_valid = policy::is_valid(packet);
        let tells = match message[0] {
            136 => true,
            137 => !links.is_empty() || !is_valid,
            _ => false,
        };
        if own(packet.source).is_some()
            || tells && target.is_some_and(|target| own(target).is_some())
            || links.iter().any(|mac| is_reserved(mac))
        {
            return Fate::Dropped(vec!["gateway-claimed"]);
        }
        if !is_valid || sum6(packet.source, packet.destination, message) != 0xffff {
            return Fate::NotMine;
        }
        let from_host = match packet.source {
            IpAddr::V6(ip) => ip.octets()[0] != 0xff && !ip.is_loopback(),
            IpAddr::V4(_) => false,
        };
        let asked = target.filter(|_| message[0] == 135 && from_host);
        let asked = asked.and_then(|target| Some((target, own(target)?)));
        let to_router =
            self.routes.routers_of(vni).any(|router| gateway_mac(router.name) == frame[..6]);
        let answer = match asked {
            None if !to_router || own(packet.destination).is_none() => return Fate::NotMine,
            _ if at != 14 => return Fate::Dropped(vec!["gateway-tagged"]),
            None => None,
            Some((target, router)) => {
                let mac = gateway_mac(router.name);
                // RFC 4861, 7.2.4: who has no address yet hears it with all others.
                let (to, at, flags) = match packet.source.is_unspecified() {
                    true => {
                        let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                        ([0x33, 0x33, 0, 0, 0, 1], IpAddr::V6(all), 0xa0)
                    }
                    false => (frame[6..12].try_into().unwrap(), packet.source, 0xe0),
                };
                let message =
                    [&[136, 0, 0, 0, flags, 0, 0, 0], &message[8..24], &[2, 1], &mac].concat();
                Some(icmp6(&[to, mac].concat(), 255, [target, at], &message))
            }
        };
        Fate::Asked(answer)
    }

    /// Returns whether a router tells a sender of packets that it drops for this reason, if it may.
    pub fn is_told(reason: &str) -> bool {
        let told = [
            "ttl-expired",
            "no-route",
            "route-blackhole",
            "next-hop-unknown",
            "route-too-big",
            "gateway-no-service",
        ];
        told.contains(&reason)
    }

    /// Returns the error that a router sends about a packet that goes no further for this reason
    /// (RFC 1812, 4.3). `None` if it sends none.
    pub fn error(&self, sender: usize, frame: &[u8], reason: &str) -> Option<Vec<u8>> {
        let declared = &self.vnics[sender].declared;
        if self.routes.is_outside(declared.vni) {
            return None; // nobody outside gets any
        }
        let router = self
            .routes
            .routers_of(declared.vni)
            .find(|router| gateway_mac(router.name) == frame[..6])?;
        if frame.get(14).is_some_and(|first| first >> 4 == 6) {
            return self.error6(declared, router, frame, reason);
        }
        let packet = frame.get(14..).filter(|packet| packet.len() >= 20 && packet[0] >> 4 == 4)?;
        let (header, total) = (usize::from(packet[0] & 15) * 4, usize::from(be16(packet, 2)));
        let (source, destination) = (ip(packet, 12), ip(packet, 16));
        let says = match reason {
            "ttl-expired" => [11, 0],
            "no-route" | "route-blackhole" => [3, 0],
            "next-hop-unknown" => [3, 1],
            "gateway-no-service" if [6, 17].contains(&packet[9]) => [3, 3],
            "gateway-no-service" if packet[9] != 1 => [3, 2],
            "route-too-big" if packet[6] & 0x40 != 0 => [3, 4],
            _ => return None,
        };
        let is_later = be16(packet, 6) & 0x1fff != 0;
        // As much is quoted as the first 128 bytes of a frame have.
        let quote = &packet[..total.min(packet.len()).min(128 - 14)];
        let quoted = quote.get(header..).filter(|quoted| quoted.len() >= 8)?;
        let is_error = packet[9] == 1 && [3, 4, 5, 11, 12].contains(&quoted[0]);
        let is_group = frame[6] & 1 != 0;
        if is_later || is_error || is_group || is_no_unicast(source) || is_no_unicast(destination) {
            return None;
        }
        let IpAddr::V4(from) = self.told_from(router, declared.vni, source)? else { return None };
        let IpAddr::V4(source) = source else { return None };
        let mtu = match says {
            [3, 4] => self.mtu_towards((declared, frame), router, destination)?,
            _ => 0,
        };
        let mut message = [&says[..], &[0, 0, 0, 0], &mtu.to_be_bytes(), quote].concat();
        let right = !sum(&message);
        message[2..4].copy_from_slice(&right.to_be_bytes());
        let len = (20 + message.len()) as u16;
        let mut header =
            [&[0x45, 0xc0][..], &len.to_be_bytes(), &[0, 0, 0x40, 0, 64, 1, 0, 0]].concat();
        header.extend_from_slice(&from.octets());
        header.extend_from_slice(&source.octets());
        set_sum(&mut header);
        let macs = [&frame[6..12], &gateway_mac(router.name), &[8, 0]].concat();
        Some([macs, header, message].concat())
    }

    /// Does the same for IPv6 (RFC 4443, 2.4).
    fn error6(
        &self,
        declared: &Declared,
        router: &Router,
        frame: &[u8],
        reason: &str,
    ) -> Option<Vec<u8>> {
        let packet = frame.get(14..).filter(|packet| packet.len() >= 40)?;
        let chain = chain(packet).ok()?;
        let ends = [ip6(packet, 8), ip6(packet, 24)];
        let named = chain.named as u32;
        let (kind, code, rest) = match (reason, chain.protocol) {
            ("ttl-expired", _) => (3, 0, 0),
            ("no-route" | "route-blackhole", _) => (1, 0, 0),
            ("next-hop-unknown", _) => (1, 3, 0),
            ("gateway-no-service", 6 | 17) => (1, 4, 0),
            // It speaks ICMPv6, and there may be nothing.
            ("gateway-no-service", 58 | 59) => return None,
            ("gateway-no-service", _) => (4, 1, named),
            ("route-too-big", _) => {
                (2, 0, self.mtu_towards((declared, frame), router, ends[1])?.into())
            }
            _ => return None,
        };
        // As much as there is room for, of a frame that is not larger than any on a wire.
        let room = if frame.len() <= 1522 { 1280 - 48 } else { 128 - 14 };
        let quote = &packet[..(40 + usize::from(be16(packet, 4))).min(packet.len()).min(room)];
        let quoted = quote.get(chain.end..).filter(|quoted| quoted.len() >= 8)?;
        let is_error = chain.protocol == 58 && (quoted[0] < 128 || quoted[0] == 137);
        let is_group = frame[6] & 1 != 0;
        if chain.is_later || is_error || is_group || ends.into_iter().any(is_no_unicast) {
            return None;
        }
        let from = self.told_from(router, declared.vni, ends[0])?;
        let message = [&[kind, code, 0, 0], &u32::to_be_bytes(rest)[..], quote].concat();
        let macs = [&frame[6..12], &gateway_mac(router.name)].concat();
        Some(icmp6(&macs, 64, [from, ends[0]], &message))
    }

    /// Returns the address of a router from which it tells a machine something: the one of the
    /// machine's block, else the first of its family.
    fn told_from(&self, router: &Router, vni: u32, machine: IpAddr) -> Option<IpAddr> {
        let mut own = self.routes.addresses(router, vni);
        // Networks keep their blocks in order.
        own.sort();
        own.retain(|own| own.is_ipv4() == machine.is_ipv4());
        let blocks = &self.routes.net(vni)?.blocks;
        let block = blocks.iter().find(|block| block.has(machine));
        let near = own.iter().find(|own| block.is_some_and(|block| block.has(**own)));
        near.or(own.first()).copied()
    }

    /// Returns the longest packet of the network by which a router leads to an address, if it is
    /// declared. The flow has its way by now.
    fn mtu_towards(
        &self,
        sent: (&Declared, &[u8]),
        router: &Router,
        destination: IpAddr,
    ) -> Option<u16> {
        self.hop(sent, router, destination, &mut Vec::new(), &mut |_| 0)?.1
    }

    /// Returns the longest packet that a network carries to a machine, if there is a longest one.
    fn mtu_of(&self, net: &Net, to: SentOn) -> Option<u16> {
        match to.place {
            NextPlace::Vnic(_) => net.mtu,
            NextPlace::Away(..) => Some(net.mtu.unwrap_or(TUNNEL_MTU).min(TUNNEL_MTU)),
        }
    }

    /// Returns whether a source is of a vnic's network, or of the vnic itself.
    fn is_of(&self, vnic: &Declared, source: IpAddr) -> bool {
        let net = self.routes.net(vnic.vni);
        let mut blocks = net.iter().flat_map(|net| &net.blocks);
        blocks.any(|block| block.has(source) && !block.is_nobodys(source))
            || vnic.ips.contains(&source)
    }

    /// Returns whether a router leads to a source by its sender: the vnic which declares the
    /// address of a way, and no other vnic does.
    fn is_behind(&self, sender: usize, router: &Router, source: IpAddr) -> bool {
        let Declared { vni, .. } = self.vnics[sender].declared;
        let Some(Leads::By(led)) = self.routes.leads(router, source) else { return false };
        let is_sender = |via: &IpAddr| {
            let has = |vnic: &Vnic| vnic.declared.vni == vni && vnic.declared.ips.contains(via);
            let holders: Vec<usize> =
                (0..self.vnics.len()).filter(|at| has(&self.vnics[*at])).collect();
            let net = self.routes.net_of(router, *via);
            net.is_some_and(|(net, _)| net.vni == vni) && holders == [sender]
        };
        led.via.iter().any(is_sender) && !is_no_unicast(source)
    }

    /// Returns whether nobody from behind a machine is known by an address in a network. Nobody
    /// speaks as a filtered vnic of any network that a router of the receiver's network joins, nor
    /// as a neighbour or a router there, nor from what a block has for nobody.
    fn is_somebodys(&self, to: u32, ip: IpAddr) -> bool {
        let has = |vnic: &Vnic, vni: u32| {
            let is_local = vnic.declared.link_local() == ip;
            vnic.declared.vni == vni
                && !vnic.declared.bypass
                && (vnic.declared.ips.contains(&ip) || is_local)
        };
        let joined = self.routes.routers_of(to).flat_map(|router| &router.joins);
        joined.map(|(vni, _)| *vni).any(|vni| {
            let net = self.routes.net(vni);
            let mut blocks = net.iter().flat_map(|net| &net.blocks);
            let mut residents = self.routes.residents.iter();
            blocks.any(|block| block.is_nobodys(ip))
                || residents.any(|it| (it.vni, it.ip) == (vni, ip))
                || self.routes.with_address(vni, ip).is_some()
                || self.vnics.iter().any(|vnic| has(vnic, vni))
        })
    }

    /// Finds the machine to which a packet goes next, and the longest packet that its network
    /// carries. Else says why there is none.
    fn hop(
        &self,
        (sender, frame): (&Declared, &[u8]),
        router: &Router,
        destination: IpAddr,
        wrong: &mut Vec<&'static str>,
        pick: &mut dyn FnMut(usize) -> usize,
    ) -> Option<(SentOn, Option<u16>)> {
        if is_no_unicast(destination) {
            wrong.push("route-group");
            return None;
        }
        match self.routes.leads(router, destination) {
            None => wrong.push("no-route"),
            Some(Leads::By(led)) if led.via.is_empty() => wrong.push("route-blackhole"),
            Some(Leads::By(led)) => {
                let mut ways = Vec::new();
                for via in &led.via {
                    let (net, _) = self.routes.net_of(router, *via).expect("it was checked");
                    match self.next_hop(net.vni, *via) {
                        _ if net.vni == sender.vni => wrong.push("route-back"),
                        None => wrong.push("next-hop-unknown"),
                        Some(to) => ways.push((*via, (to, self.mtu_of(net, to)))),
                    }
                }
                let among: Vec<IpAddr> = ways.iter().map(|(via, _)| *via).collect();
                let way = match &among[..] {
                    [] => return None,
                    // What the flow would choose is not to be seen of one.
                    [way] => *way,
                    among if self.mistake() == Some(Mistake::AnyWay) => self.taken.by_turns(among),
                    among => self.taken.choose(course(frame), among, pick),
                };
                // Others that lead nowhere are no reason for anything.
                wrong.retain(|why| !["route-back", "next-hop-unknown"].contains(why));
                return ways.into_iter().find(|(via, _)| *via == way).map(|(_, hop)| hop);
            }
            Some(Leads::Into(net, block)) => {
                return self.into(sender, net, block, destination, wrong);
            }
        }
        None
    }

    /// Does the same of a machine in a network of the router.
    fn into(
        &self,
        sender: &Declared,
        net: &Net,
        block: &Block,
        destination: IpAddr,
        wrong: &mut Vec<&'static str>,
    ) -> Option<(SentOn, Option<u16>)> {
        let is_back = net.vni == sender.vni;
        if is_back {
            wrong.push("route-back");
        }
        if block.is_nobodys(destination) {
            wrong.push("route-group");
            if self.vnics.iter().all(|vnic| vnic.declared.vni != net.vni) {
                wrong.push("next-hop-unknown"); // there is no machine to be asked at all
            }
            return None;
        }
        match self.next_hop(net.vni, destination) {
            Some(to) => (!is_back).then(|| (to, self.mtu_of(net, to))),
            None => {
                wrong.push("next-hop-unknown");
                None
            }
        }
    }
}

/// Returns how many bytes of payload are in the first fragment of a packet, and in later ones but
/// the last: as many blocks of 8 as there is room for (RFC 791, 3.2).
fn steps(header: usize, later: usize, mtu: usize) -> [usize; 2] {
    [header, later].map(|header| (mtu - header) / 8 * 8)
}

/// Returns the options that all fragments have, filled up to words; `None` if one has no sense.
fn options_of_all(options: &[u8]) -> Option<Vec<u8>> {
    let (mut at, mut all) = (0, Vec::new());
    while at < options.len() && options[at] != 0 {
        let len = match options[at] {
            1 => 1,
            _ => usize::from(*options.get(at + 1)?),
        };
        if len < 1 || len < 2 && options[at] != 1 || at + len > options.len() {
            return None;
        }
        if options[at] >= 128 {
            all.extend_from_slice(&options[at..at + len]);
        }
        at += len;
    }
    all.resize(all.len().next_multiple_of(4), 0);
    Some(all)
}

/// Returns whether a packet fits, perhaps in fragments, or else why not.
fn may_be_made_to_fit(packet: &[u8], mtu: usize) -> Result<(), &'static str> {
    if packet[0] >> 4 == 6 {
        let total = 40 + usize::from(be16(packet, 4));
        return if total <= mtu { Ok(()) } else { Err("route-too-big") };
    }
    let (header, total) = (usize::from(packet[0] & 15) * 4, usize::from(be16(packet, 2)));
    if total <= mtu {
        return Ok(());
    }
    let place = be16(packet, 6);
    let (payload, offset) = (total - header, usize::from(place & 0x1fff) * 8);
    if place & 0x4000 != 0 {
        return Err("route-too-big");
    }
    let is_odd = place & 0x8000 != 0 || place & 0x2000 != 0 && !payload.is_multiple_of(8);
    let Some(later) = options_of_all(&packet[20..header]) else { return Err("malformed-ip") };
    if is_odd || offset + payload > 65_535 {
        return Err("malformed-ip");
    }
    let [first, each] = steps(header, 20 + later.len(), mtu);
    let upper = match packet[9] {
        6 => packet.get(header + 12).map_or(60, |byte| usize::from(byte >> 4) * 4).max(20),
        132 => 16,
        _ => 8,
    };
    let count = 1 + (payload - first).div_ceil(each);
    if offset == 0 && first < upper || count > 160 { Err("cut-limit") } else { Ok(()) }
}

/// Cuts a frame that may be made to fit.
pub fn fragments(mut frame: Vec<u8>, mtu: Option<u16>) -> Vec<Vec<u8>> {
    let is_long = |mtu: &usize| frame[14] >> 4 == 4 && frame.len() - 14 > *mtu;
    let Some(mtu) = mtu.map(usize::from).filter(is_long) else {
        return vec![frame];
    };
    let (header, total) = (usize::from(frame[14] & 15) * 4, usize::from(be16(&frame, 14 + 2)));
    frame.truncate(14 + total);
    if total <= mtu {
        return vec![frame];
    }
    let place = be16(&frame, 14 + 6);
    let options = options_of_all(&frame[34..14 + header]).unwrap();
    let later = [&frame[14..34], &options].concat();
    let steps = steps(header, later.len(), mtu);
    let (mut all, mut at) = (Vec::new(), 0);
    let payload = &frame[14 + header..];
    while at < payload.len() {
        let (mut head, step) = match at {
            0 => (frame[14..14 + header].to_vec(), steps[0]),
            _ => (later.clone(), steps[1]),
        };
        let left = payload.len() - at;
        let is_last = head.len() + left <= mtu;
        let len = if is_last { left } else { step };
        head[0] = 0x40 | (head.len() / 4) as u8;
        let total = (head.len() + len) as u16;
        head[2..4].copy_from_slice(&total.to_be_bytes());
        let more = if is_last { 0 } else { 0x2000 };
        head[6..8].copy_from_slice(&((place + (at / 8) as u16) | more).to_be_bytes());
        set_sum(&mut head);
        all.push([&frame[..14], &head, &payload[at..at + len]].concat());
        at += len;
    }
    all
}

/// Returns the course of a packet: both directions have one. Of what cannot be read nothing is
/// expected.
fn course(frame: &[u8]) -> Option<Course> {
    let packet = wire::packet(frame, 14, None).ok()?;
    let is_part = packet.fragment.is_some_and(|fragment| fragment.offset > 0 || fragment.more);
    let upper = &packet.upper;
    let is_error = match (packet.protocol, upper.first()) {
        (1, Some(kind)) => [3, 11, 12].contains(kind),
        (58, Some(kind)) => (1..=4).contains(kind),
        _ => false,
    };
    if is_error && !is_part {
        return quoted_course(upper.get(8..)?);
    }
    let has_ports = [6, 17, 132].contains(&packet.protocol) && packet.upper.len() >= 4;
    let port = |at| if has_ports && !is_part { be16(&packet.upper, at) } else { 0 };
    let mut ends = [(packet.source, port(0)), (packet.destination, port(2))];
    ends.sort();
    Some((ends, if is_part { 0 } else { packet.protocol }))
}

/// Returns the course of the flow of which an ICMP error quotes a packet. Of other quotes nothing
/// is expected.
fn quoted_course(inner: &[u8]) -> Option<Course> {
    let (source, destination, protocol, at) = match inner.first()? >> 4 {
        4 if inner.len() >= 20 && be16(inner, 6) & 0x3fff == 0 => {
            (ip(inner, 12), ip(inner, 16), inner[9], usize::from(inner[0] & 15) * 4)
        }
        6 if inner.len() >= 40 => (ip6(inner, 8), ip6(inner, 24), inner[6], 40),
        _ => return None,
    };
    let is_whole = at >= 20 && inner.len() >= at + 8 && [6, 17, 132].contains(&protocol);
    let mut ends =
        is_whole.then(|| [(source, be16(inner, at)), (destination, be16(inner, at + 2))])?;
    ends.sort();
    Some((ends, protocol))
}

/// Returns the byte at which the contents of a frame begin, if they are behind tags or not.
fn begins(frame: &[u8], carries: &Carries) -> usize {
    match carries {
        Carries::Ip(at, _) | Carries::Arp(at) => *at,
        _ if [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300].contains(&be16(frame, 12)) => 18,
        _ => 14,
    }
}

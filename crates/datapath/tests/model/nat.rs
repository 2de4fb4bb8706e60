//! Translations at externals: lists that are searched from their start.
//!
//! Written from docs/routers.md ("Externals and translations") and docs/design/routed.md ("NAT"),
//! and RFC 791, 768, 1624, 4787, 5382 and 5508. Which port outside an end inside gets is open where
//! its own is not free: the switch shows it. The second of two shared addresses is shown, too.
//!
//! Not here: hairpins, which need a wire; fragments of IPv4 that ports translate; shares of a vnic
//! and ports that are all in use, which small cases do not meet; machines of other hosts; three
//! shared addresses at once.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use butterfly_model::{External, ExternalId, ForwardProtocol, Nat, Vni};

use crate::{
    choices::Choices,
    router::{Leads, Net, Router, chain, gateway_mac, ip, ip6, is_no_unicast, sum},
    switch::{Mistake, Model, Port},
    tcp::{FIN, RST, SYN},
    wire::{Carries, be16},
};

/// One translation of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Machines share this address.
    Shared(Ipv4Addr),
    /// An address outside, and the machine that it is.
    Floating(IpAddr, IpAddr),
    /// A protocol, an address and port outside, and the machine and port that they are.
    Forward(u8, (Ipv4Addr, u16), (Ipv4Addr, u16)),
}

impl Rule {
    pub fn outside(&self) -> IpAddr {
        match *self {
            Rule::Shared(outside) | Rule::Forward(_, (outside, _), _) => outside.into(),
            Rule::Floating(outside, _) => outside,
        }
    }

    pub fn declared(&self) -> Nat {
        let end = |(ip, port)| SocketAddrV4::new(ip, port);
        match *self {
            Rule::Shared(outside) => Nat::snat(outside.into()),
            Rule::Floating(outside, inside) => Nat::floating(outside, inside),
            Rule::Forward(6, outside, inside) => {
                Nat::forward(ForwardProtocol::Tcp, end(outside), end(inside))
            }
            Rule::Forward(_, outside, inside) => {
                Nat::forward(ForwardProtocol::Udp, end(outside), end(inside))
            }
        }
        .unwrap()
    }
}

/// Returns whether an operator may declare these rules together: no address or port has two
/// translations, in either direction.
pub fn may_be(rules: &[Rule]) -> bool {
    let fits = |(one, other): (&Rule, &Rule)| match (one, other) {
        (Rule::Floating(outside, inside), other) => {
            let same_inside = match other {
                Rule::Floating(_, it) => it == inside,
                Rule::Forward(_, _, (it, _)) => IpAddr::from(*it) == *inside,
                Rule::Shared(_) => false,
            };
            other.outside() != *outside && !same_inside
        }
        (Rule::Shared(one), Rule::Shared(other)) => one != other,
        (Rule::Forward(protocol, outside, inside), Rule::Forward(other, out, ins)) => {
            protocol != other || outside != out && inside != ins
        }
        _ => true,
    };
    let pairs = || {
        let each = rules.iter().enumerate();
        each.flat_map(|(at, one)| rules.iter().enumerate().map(move |(to, it)| (at, to, one, it)))
    };
    pairs().all(|(at, to, one, other)| at == to || fits((one, other)))
}

/// The external of a network, whose blocks have the switch's own address, 7, and the gateway
/// outside, 1.
pub fn external(net: &Net) -> External {
    let host = |first: IpAddr, last: u8| match first {
        IpAddr::V4(first) => {
            let [a, b, c, _] = first.octets();
            IpAddr::from([a, b, c, last])
        }
        IpAddr::V6(first) => {
            let mut octets = first.octets();
            octets[15] = last;
            IpAddr::from(octets)
        }
    };
    let own = net.blocks.iter().map(|block| format!("{}/{}", host(block.first, 7), block.mask));
    let gateways = net.blocks.iter().map(|block| host(block.first, 1).to_string());
    let id = ExternalId::new("world").unwrap();
    External::parse(id, Vni::new(net.vni).unwrap(), own, gateways).unwrap()
}

/// How far a TCP connection by a mapping is, as its machine tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opened,
    Acknowledged,
    Ended,
}

/// A port outside that an end inside has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    router: &'static str,
    protocol: u8,
    outside: (Ipv4Addr, u16),
    inside: (Ipv4Addr, u16),
    stage: Stage,
    /// When its machine used it last.
    seen: u32,
    /// Vnics that sent by it. It goes with its vnic.
    senders: Vec<Port>,
    /// It may be gone, and nothing has told yet.
    doubtful: bool,
    /// When its other end reset a connection: frames of the same batch may come before that.
    reset: u32,
}

impl Mapping {
    fn lasts(&self) -> u32 {
        match (self.protocol, self.stage) {
            (17, _) => 300,
            (1, _) => 60,
            (_, Stage::Acknowledged) => 7440,
            _ => 240,
        }
    }
}

/// Seconds for which a mapping may be there longer than it has to.
const LONGER: u32 = 16;

/// The side of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

/// A packet from its header on, as far as translation reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Read {
    ends: [IpAddr; 2],
    protocol: u8,
    /// Byte at which the upper layer begins; none of a later fragment.
    upper: Option<usize>,
    is_fragment: bool,
    /// Ports, or the identifier of an echo twice.
    ports: Option<[u16; 2]>,
}

impl Read {
    /// Reads a header that is whole.
    fn new(packet: &[u8]) -> Option<Read> {
        let (ends, protocol, upper, is_fragment) = match packet.first()? >> 4 {
            4 if packet.len() >= 20 => {
                let header = usize::from(packet[0] & 15) * 4;
                if header < 20 || packet.len() < header || usize::from(be16(packet, 2)) < header {
                    return None;
                }
                let (more, offset) = (packet[6] & 0x20 != 0, be16(packet, 6) & 0x1fff);
                let upper = (offset == 0).then_some(header);
                ([ip(packet, 12), ip(packet, 16)], packet[9], upper, more || offset > 0)
            }
            6 if packet.len() >= 40 => {
                let chain = chain(packet).ok()?;
                let upper = (!chain.is_later).then_some(chain.end);
                ([ip6(packet, 8), ip6(packet, 24)], chain.protocol, upper, chain.is_later)
            }
            _ => return None,
        };
        let mut read = Read { ends, protocol, upper, is_fragment, ports: None };
        read.ports = upper.and_then(|at| {
            let port = |side| {
                let at = at + port_at(protocol, packet.get(at..)?, side)?;
                (packet.len() >= at + 2).then(|| be16(packet, at))
            };
            Some([port(Side::Source)?, port(Side::Destination)?])
        });
        Some(read)
    }

    fn port(&self, side: Side) -> Option<u16> {
        self.ports.map(|ports| ports[usize::from(side == Side::Destination)])
    }
}

/// Byte of an upper layer that has a side's port, or the identifier of an echo.
fn port_at(protocol: u8, upper: &[u8], side: Side) -> Option<usize> {
    match (protocol, upper.first()) {
        (6 | 17 | 132, _) => Some(if side == Side::Source { 0 } else { 2 }),
        (1, Some(0 | 8)) | (58, Some(128 | 129)) => Some(4),
        _ => None,
    }
}

/// Byte of an upper layer that has its sum, and whether that is about addresses as well.
fn sum_at(protocol: u8) -> Option<(usize, bool)> {
    match protocol {
        6 => Some((16, true)),
        17 => Some((6, true)),
        58 => Some((2, true)),
        1 => Some((2, false)),
        _ => None,
    }
}

/// Returns whether a packet is an error of ICMP (RFC 792; RFC 4443, 2.1).
fn is_error(packet: &[u8], read: &Read) -> bool {
    let kind = read.upper.and_then(|at| packet.get(at));
    match (read.protocol, kind) {
        (1, Some(kind)) => [3, 4, 5, 11, 12].contains(kind),
        (58, Some(kind)) => (1..128).contains(kind),
        _ => false,
    }
}

/// Returns a sum after these bytes changed in what it is about: one that was wrong stays wrong by
/// as much (RFC 1624, 3).
fn follow(before: u16, old: &[u8], new: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> Vec<u16> {
        let pair = |pair: &[u8]| u16::from(pair[0]) << 8 | u16::from(*pair.get(1).unwrap_or(&0));
        bytes.chunks(2).map(pair).collect()
    };
    let mut sum = u64::from(!before);
    for (old, new) in words(old).into_iter().zip(words(new)) {
        sum += u64::from(!old) + u64::from(new);
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

fn put(packet: &mut [u8], at: usize, word: u16) {
    packet[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

fn bytes_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Gives one side of a packet another address, and port if it has one, with all sums that are
/// there. Of a packet that an error quotes not all may be there.
fn rewrite(packet: &mut [u8], read: &Read, side: Side, (to, port): (IpAddr, Option<u16>)) {
    let of_six = to.is_ipv6();
    let len = if of_six { 16 } else { 4 };
    let first = if of_six { 8 } else { 12 };
    let at = if side == Side::Source { first } else { first + len };
    let old = packet[at..at + len].to_vec();
    let new = bytes_of(to);
    packet[at..at + len].copy_from_slice(&new);
    if !of_six {
        put(packet, 10, follow(be16(packet, 10), &old, &new));
    }
    let Some(upper) = read.upper else { return };
    let (mut was, mut is) = (Vec::new(), Vec::new());
    let sum = sum_at(read.protocol);
    if sum.is_some_and(|(_, of_addresses)| of_addresses) {
        was.extend(old);
        is.extend(new);
    }
    let place = port_at(read.protocol, packet.get(upper..).unwrap_or(&[]), side);
    if let (Some(port), Some(place)) = (port, place)
        && packet.len() >= upper + place + 2
    {
        was.extend(&packet[upper + place..upper + place + 2]);
        is.extend(port.to_be_bytes());
        put(packet, upper + place, port);
    }
    let Some((at, _)) = sum.filter(|(at, _)| packet.len() >= upper + at + 2) else { return };
    let before = be16(packet, upper + at);
    match follow(before, &was, &is) {
        // RFC 768: 0 is none.
        _ if read.protocol == 17 && before == 0 => {}
        0 if read.protocol == 17 => put(packet, upper + at, 0xffff),
        after => put(packet, upper + at, after),
    }
}

/// Checks that the sum of a packet's upper layer is there to be changed.
fn has_sum(packet: &[u8], read: &Read) -> Result<(), Vec<&'static str>> {
    let end = read.upper.zip(sum_at(read.protocol)).map(|(upper, (at, _))| upper + at + 2);
    match end.is_none_or(|end| packet.len() >= end) {
        true => Ok(()),
        false => Err(vec!["tiny-fragment", "malformed-ip", "headers-too-long"]),
    }
}

/// Gives the other side of what an error quotes another end, with the error's own sum.
fn rewrite_quote(packet: &mut [u8], read: &Read, side: Side, to: (IpAddr, Option<u16>)) {
    let (start, end) = quote(packet, read);
    let old = packet[start..end].to_vec();
    let Some(quoted) = Read::new(&old) else { return };
    rewrite(&mut packet[start..end], &quoted, side, to);
    let at = read.upper.unwrap() + 2;
    put(packet, at, follow(be16(packet, at), &old, &packet[start..end]));
}

/// Returns where the quote of an error begins, and ends.
fn quote(packet: &[u8], read: &Read) -> (usize, usize) {
    let all = match packet[0] >> 4 {
        4 => usize::from(be16(packet, 2)),
        _ => 40 + usize::from(be16(packet, 4)),
    };
    let start = (read.upper.unwrap() + 8).min(packet.len());
    (start, all.min(packet.len()).max(start))
}

/// Returns what is translated outwards of an end inside by what is declared: its own address, or
/// its port.
fn outside_of(
    rules: &[Rule],
    inside: IpAddr,
    protocol: u8,
    port: Option<u16>,
) -> Option<(IpAddr, Option<u16>)> {
    let floating = rules.iter().find_map(|rule| match rule {
        Rule::Floating(outside, it) if *it == inside => Some((*outside, None)),
        _ => None,
    });
    floating.or_else(|| {
        rules.iter().find_map(|rule| match rule {
            Rule::Forward(of, (outside, other), (it, own))
                if (*of, IpAddr::from(*it), Some(*own)) == (protocol, inside, port) =>
            {
                Some(((*outside).into(), Some(*other)))
            }
            _ => None,
        })
    })
}

/// Returns the same inwards.
fn inside_of(
    rules: &[Rule],
    outside: IpAddr,
    protocol: u8,
    port: Option<u16>,
) -> Option<(IpAddr, Option<u16>)> {
    let floating = rules.iter().find_map(|rule| match rule {
        Rule::Floating(it, inside) if *it == outside => Some((*inside, None)),
        _ => None,
    });
    floating.or_else(|| {
        rules.iter().find_map(|rule| match rule {
            Rule::Forward(of, (it, other), (inside, own))
                if (*of, IpAddr::from(*it), Some(*other)) == (protocol, outside, port) =>
            {
                Some(((*inside).into(), Some(*own)))
            }
            _ => None,
        })
    })
}

fn is_forwarded(rules: &[Rule], protocol: u8, end: (Ipv4Addr, u16)) -> bool {
    rules
        .iter()
        .any(|rule| matches!(rule, Rule::Forward(of, it, _) if (*of, *it) == (protocol, end)))
}

fn shared(rules: &[Rule]) -> Vec<Ipv4Addr> {
    let shared = rules.iter().filter_map(|rule| match rule {
        Rule::Shared(outside) => Some(*outside),
        _ => None,
    });
    shared.collect()
}

/// Packet from outside that has its address inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inward {
    /// The frame with the address inside.
    pub frame: Vec<u8>,
    /// The end outside and the one inside, if machines share the address.
    shared: Option<((Ipv4Addr, u16), (Ipv4Addr, u16))>,
}

impl Model {
    /// Says why nobody may come from an outside with a source; nothing if somebody may.
    pub fn bars_outside(&self, router: &Router, own: u32, source: IpAddr) -> Vec<&'static str> {
        let foreign = vec!["foreign-source"];
        if is_no_unicast(source) || self.routes.with_address(own, source).is_some() {
            return foreign;
        }
        match self.routes.leads(router, source) {
            Some(Leads::Into(net, block)) if net.vni == own => {
                if block.is_nobodys(source) {
                    foreign
                } else {
                    vec![]
                }
            }
            Some(Leads::Into(..)) => vec!["inside-source"],
            Some(Leads::By(led)) => {
                let of = |via: &IpAddr| self.routes.net_of(router, *via);
                let is_own = |via| of(via).is_some_and(|(net, _)| net.vni == own);
                match led.via.iter().all(is_own) {
                    true if led.via.is_empty() => foreign,
                    true => vec![],
                    false => vec!["inside-source"],
                }
            }
            None => foreign,
        }
    }

    /// Returns whether a router leads to an address by an outside where it is translated: the
    /// packet would have to turn there.
    pub fn turns_back(&self, router: &Router, destination: IpAddr) -> bool {
        let by = match self.routes.leads(router, destination) {
            Some(Leads::Into(net, _)) => vec![net.vni],
            Some(Leads::By(led)) => {
                let of = |via: &IpAddr| self.routes.net_of(router, *via);
                led.via.iter().filter_map(of).map(|(net, _)| net.vni).collect()
            }
            None => vec![],
        };
        let translated = |vni: &u32| {
            let mut of = self.routes.nats.iter().filter(|(_, at, _)| at == vni);
            of.any(|(.., rules)| rules.iter().any(|rule| rule.outside() == destination))
        };
        by.iter().any(|vni| self.routes.is_outside(*vni) && translated(vni))
    }

    /// Translates the destination of a frame from outside. `None` if nothing is to be translated.
    /// Else says why it goes no further: each is right.
    pub fn come_in(
        &mut self,
        sender: usize,
        frame: &[u8],
        carries: &Carries,
        choices: &mut Choices,
    ) -> Result<Option<Inward>, Vec<&'static str>> {
        let vni = self.vnics[sender].declared.vni;
        let router = self.routes.routers_of(vni).find(|it| gateway_mac(it.name) == frame[..6]);
        let (true, Carries::Ip(14, None), Some(router)) =
            (self.routes.is_outside(vni), carries, router)
        else {
            return Ok(None);
        };
        if crate::wire::be16(frame, 12) == 0x8100 {
            return Ok(None); // behind a tag, if an empty one
        }
        let router = router.name;
        let packet = &frame[14..];
        let Some(read) = Read::new(packet) else { return Ok(None) };
        let rules = self.routes.rules(router, vni).to_vec();
        if !rules.iter().any(|rule| rule.outside() == read.ends[1]) {
            return Ok(None);
        }
        // No document says whether a damaged header or a missing translation is found first.
        let is_damaged = match packet[0] >> 4 {
            4 => {
                let header = usize::from(packet[0] & 15) * 4;
                sum(&packet[..header]) != 0xffff || usize::from(be16(packet, 2)) > packet.len()
            }
            _ => 40 + usize::from(be16(packet, 4)) > packet.len(),
        };
        let damaged = [
            "ip-checksum",
            "truncated",
            "malformed-ip",
            "headers-too-long",
            "tiny-fragment",
            "nat-no-mapping",
            "nat-quote",
            "nat-fragment",
        ];
        if is_damaged {
            return Err(damaged.to_vec());
        }
        let mut changed = packet.to_vec();
        let error = is_error(packet, &read);
        let (start, end) = if error { quote(packet, &read) } else { (0, 0) };
        let quoted = if error { Read::new(&packet[start..end]) } else { None };
        let about = match &quoted {
            Some(quoted) if quoted.ends[0].is_ipv4() == read.ends[0].is_ipv4() => quoted,
            _ if error => return Err(vec!["nat-quote"]),
            _ => &read,
        };
        let side = if error { Side::Source } else { Side::Destination };
        let missing = if error { "nat-quote" } else { "nat-no-mapping" };
        if error && about.ends[0] != read.ends[1] {
            return Err(vec![missing]);
        }
        let outside = (read.ends[1], about.protocol, about.port(side));
        let found = inside_of(&rules, outside.0, outside.1, outside.2);
        let (inside, by) = match found {
            Some(inside) => (inside, None),
            None => {
                let own = self.shares(router, vni, &rules, outside, choices);
                let own = own.ok_or(vec![missing])?;
                let IpAddr::V4(address) = outside.0 else { return Err(vec![missing]) };
                let end = (address, outside.2.unwrap_or(0));
                ((own.0.into(), Some(own.1)), Some((end, own)))
            }
        };
        if !error && read.protocol == 1 && inside.1.is_some() {
            // Identifiers are shared by who asks.
            let kind = read.upper.and_then(|at| packet.get(at));
            if kind != Some(&0) && self.mistake() != Some(Mistake::EchoesComeIn) {
                return Err(vec![missing]);
            }
        }
        has_sum(packet, &read)?;
        if error {
            rewrite(&mut changed, &read, Side::Destination, (inside.0, None));
            if self.mistake() != Some(Mistake::QuotesStay) {
                rewrite_quote(&mut changed, &read, Side::Source, inside);
            }
        } else {
            rewrite(&mut changed, &read, Side::Destination, inside);
        }
        let shared = by.filter(|_| !error);
        Ok(Some(Inward { frame: [&frame[..14], &changed].concat(), shared }))
    }

    /// Returns the end inside that has a port of a shared address, and would leave by it.
    fn shares(
        &mut self,
        router: &'static str,
        vni: u32,
        rules: &[Rule],
        (outside, protocol, port): (IpAddr, u8, Option<u16>),
        choices: &mut Choices,
    ) -> Option<(Ipv4Addr, u16)> {
        let IpAddr::V4(address) = outside else { return None };
        if !shared(rules).contains(&address) {
            return None;
        }
        let port = port?;
        let at = self.mapping(
            |it| (it.router, it.protocol, it.outside) == (router, protocol, (address, port)),
            choices,
        )?;
        let inside = self.mappings[at].inside;
        let own = outside_of(rules, inside.0.into(), protocol, Some(inside.1));
        let of = self.routes.routers_of(vni).find(|it| it.name == router)?;
        // What it shared once is not its own any more.
        let is_public = self.routes.is_known_outside(of, inside.0.into(), vni);
        (own.is_none() && !is_public).then_some(inside)
    }

    /// Returns the mapping that is wanted, if it is there.
    fn mapping(
        &mut self,
        wanted: impl Fn(&Mapping) -> bool,
        choices: &mut Choices,
    ) -> Option<usize> {
        let at = self.mappings.iter().position(wanted)?;
        let it = &self.mappings[at];
        let idle = self.now - it.seen;
        let is_open = it.doubtful || idle > it.lasts();
        let is_over = idle > it.lasts() + LONGER && it.reset != self.now;
        if is_over || is_open && choices.either() {
            self.mappings.remove(at);
            return None;
        }
        self.mappings[at].doubtful = false;
        Some(at)
    }

    /// Notes that time went by.
    pub fn mappings_age(&mut self) {
        let (now, routes) = (self.now, &self.routes);
        self.mappings.retain(|it| {
            let mut of = routes.nats.iter().filter(|(name, ..)| *name == it.router);
            let is_shared = of.any(|(.., rules)| shared(rules).contains(&it.outside.0));
            is_shared && now - it.seen <= it.lasts() + LONGER
        });
    }

    /// Notes that a vnic went: its mappings go along.
    pub fn mappings_go(&mut self, port: Port) {
        self.mappings.retain_mut(|it| {
            let sent = it.senders.contains(&port);
            it.doubtful |= sent;
            !sent || it.senders.len() > 1
        });
    }

    /// Notes that rules changed.
    pub fn mappings_change(&mut self) {
        for it in &mut self.mappings {
            let mut of = self.routes.nats.iter().filter(|(name, ..)| *name == it.router);
            let is_shared = of.any(|(.., rules)| shared(rules).contains(&it.outside.0));
            // If the rule comes back at once, they may still be there.
            it.doubtful |= !is_shared;
        }
        let routes = &self.routes;
        // A port that is forwarded is nobody's to share, also later.
        self.mappings.retain(|it| {
            let mut of = routes.nats.iter().filter(|(name, ..)| *name == it.router);
            !of.any(|(.., rules)| is_forwarded(rules, it.protocol, it.outside))
        });
    }

    /// Notes that a packet from outside got to a machine: of TCP it may end a connection.
    pub fn came_in(&mut self, inward: &Inward, receiver: usize) {
        let Some((outside, inside)) = inward.shared else { return };
        let packet = &inward.frame[14..];
        let Some(Read { protocol: 6, upper: Some(at), .. }) = Read::new(packet) else { return };
        // To a machine without filters anybody may have sent it.
        if self.vnics[receiver].declared.bypass || packet[at + 13] & RST == 0 {
            return;
        }
        let wanted =
            |it: &&mut Mapping| (it.protocol, it.outside, it.inside) == (6, outside, inside);
        let now = self.now;
        if let Some(it) = self.mappings.iter_mut().find(wanted) {
            (it.stage, it.reset) = (Stage::Ended, now);
        }
    }

    /// Translates the source of a frame that leaves by the outside where its receiver is. `sent` is
    /// the frame as it came, `becomes` as it goes on. Else says why it goes no further.
    pub fn go_out(
        &mut self,
        (sender, receiver): (usize, usize),
        sent: &[u8],
        mut becomes: Vec<u8>,
        choices: &mut Choices,
    ) -> Result<Vec<u8>, Vec<&'static str>> {
        let vni = self.vnics[receiver].declared.vni;
        let own = self.vnics[sender].declared.vni;
        let Some(router) =
            self.routes.routers_of(own).find(|it| gateway_mac(it.name) == sent[..6]).cloned()
        else {
            return Ok(becomes);
        };
        if !self.routes.is_outside(vni) {
            return Ok(becomes);
        }
        let rules = self.routes.rules(router.name, vni).to_vec();
        let read = Read::new(&sent[14..]).ok_or(vec!["nat-untranslated"])?;
        let public = self.routes.net(own).is_some_and(|net| net.public);
        let stays = public || read.ends[0].is_ipv6();
        if !rules.is_empty() {
            let to =
                self.outward(sender, (router.name, &rules), &sent[14..], &read, stays, choices)?;
            if let Some((end, quoted)) = to {
                let packet = &mut becomes[14..];
                has_sum(packet, &read)?;
                rewrite(packet, &read, Side::Source, end);
                if let Some(quoted) = quoted.filter(|_| self.mistake() != Some(Mistake::QuotesStay))
                {
                    rewrite_quote(packet, &read, Side::Destination, quoted);
                }
            }
        }
        let after = Read::new(&becomes[14..]).unwrap().ends[0];
        let mut all = self.routes.nats.iter().filter(|(_, at, _)| *at == vni);
        let is_known = match all.any(|(.., rules)| rules.iter().any(|it| it.outside() == after)) {
            true => after != read.ends[0],
            false => stays || self.mistake() == Some(Mistake::UntranslatedLeave),
        };
        if is_known { Ok(becomes) } else { Err(vec!["nat-untranslated"]) }
    }

    /// Returns the end that the source of a packet becomes, and the one that the destination of
    /// what it quotes becomes; `None` if it leaves as it is.
    #[allow(clippy::type_complexity)]
    fn outward(
        &mut self,
        sender: usize,
        (router, rules): (&'static str, &[Rule]),
        packet: &[u8],
        read: &Read,
        stays: bool,
        choices: &mut Choices,
    ) -> Result<Option<((IpAddr, Option<u16>), Option<(IpAddr, Option<u16>)>)>, Vec<&'static str>>
    {
        let source = (read.ends[0], read.protocol, read.port(Side::Source));
        let own = outside_of(rules, source.0, source.1, source.2);
        let error = is_error(packet, read);
        if !error {
            if let Some(own) = own {
                return Ok(Some((own, None)));
            }
            if stays {
                return Ok(None);
            }
            if shared(rules).is_empty() {
                return match self.mistake() {
                    Some(Mistake::UntranslatedLeave) => Ok(None),
                    _ => Err(vec!["nat-no-rule"]),
                };
            }
            let kind = read.upper.and_then(|at| packet.get(at));
            let is_shared = match read.protocol {
                6 | 17 => true,
                1 => kind == Some(&8),
                _ => false,
            };
            let (IpAddr::V4(from), Some(port), true) = (source.0, source.2, is_shared) else {
                return Err(vec!["nat-protocol"]);
            };
            let outside =
                self.give((router, rules), (read.protocol, (from, port)), sender, choices);
            self.says(router, (read.protocol, (from, port)), packet, read);
            return Ok(Some(((outside.0.into(), Some(outside.1)), None)));
        }
        let (start, end) = quote(packet, read);
        let quoted = Read::new(&packet[start..end]).ok_or(vec!["nat-quote"])?;
        if quoted.ends[0].is_ipv4() != read.ends[0].is_ipv4() {
            return Err(vec!["nat-quote"]);
        }
        // A filtered machine tells of its own packets, unless it forwards for others.
        let vnic = &self.vnics[sender].declared;
        let tells = vnic.bypass || vnic.forwards;
        let about = (quoted.ends[1], quoted.protocol, quoted.port(Side::Destination));
        let quoted_own = match tells || about.0 == source.0 {
            true => match outside_of(rules, about.0, about.1, about.2) {
                None => self.has(router, rules, about, choices),
                declared => declared,
            },
            false => None,
        };
        match own.or(quoted_own.map(|(address, _)| (address, None))) {
            Some(_) if quoted_own.is_none() && !stays => Err(vec!["nat-quote"]),
            Some((address, _)) => Ok(Some(((address, None), quoted_own))),
            None if stays => Ok(None),
            None if tells => Err(vec!["nat-quote"]),
            None => Err(vec!["nat-no-rule"]),
        }
    }

    /// Returns the end outside that an end inside shares, if it has one.
    fn has(
        &mut self,
        router: &'static str,
        rules: &[Rule],
        (inside, protocol, port): (IpAddr, u8, Option<u16>),
        choices: &mut Choices,
    ) -> Option<(IpAddr, Option<u16>)> {
        let (IpAddr::V4(inside), Some(port)) = (inside, port) else { return None };
        let at = self.own((router, rules), (protocol, (inside, port)), choices)?;
        let (address, port) = self.mappings[at].outside;
        Some((address.into(), Some(port)))
    }

    /// Returns the mapping of an end inside, by any address that is shared.
    fn own(
        &mut self,
        (router, rules): (&'static str, &[Rule]),
        (protocol, inside): (u8, (Ipv4Addr, u16)),
        choices: &mut Choices,
    ) -> Option<usize> {
        let pool = shared(rules);
        let mut there = Vec::new();
        for address in &pool {
            let of = |it: &Mapping| {
                (it.router, it.protocol, it.inside) == (router, protocol, inside)
                    && it.outside.0 == *address
            };
            if self.mapping(of, choices).is_some() {
                there.push(*address);
            }
        }
        let address = match there[..] {
            [] => return None,
            [only] => only,
            _ => self.preferred(router, inside.0, &there, choices),
        };
        self.mappings.iter().rposition(|it| {
            (it.router, it.protocol, it.inside) == (router, protocol, inside)
                && it.outside.0 == address
        })
    }

    /// Returns the one of several shared addresses that a machine has, which is always the same.
    fn preferred(
        &mut self,
        router: &'static str,
        inside: Ipv4Addr,
        pool: &[Ipv4Addr],
        choices: &mut Choices,
    ) -> Ipv4Addr {
        if let [only] = pool {
            return *only;
        }
        let is_known = |(of, among, _): &&((&str, Ipv4Addr), Vec<Ipv4Addr>, Ipv4Addr)| {
            *of == (router, inside) && pool.iter().all(|it| among.contains(it))
        };
        if let Some((.., address)) = self.prefers.iter().find(is_known) {
            return *address;
        }
        let is_shown =
            |it: &&Ipv4Addr| choices.shown().iter().any(|(_, ip, _)| *ip == IpAddr::from(**it));
        let shown: Vec<Ipv4Addr> = pool.iter().filter(is_shown).copied().collect();
        let address = if shown.is_empty() { pool[0] } else { choices.one_of(&shown) };
        self.prefers.push(((router, inside), pool.to_vec(), address));
        address
    }

    /// Returns the end outside of an end inside, which gets one if it has none.
    fn give(
        &mut self,
        (router, rules): (&'static str, &[Rule]),
        (protocol, inside): (u8, (Ipv4Addr, u16)),
        sender: usize,
        choices: &mut Choices,
    ) -> (Ipv4Addr, u16) {
        let found = self.own((router, rules), (protocol, inside), choices);
        let port = self.vnics[sender].port;
        if let Some(at) = found.filter(|_| self.mistake() != Some(Mistake::PortsChange)) {
            let now = self.now;
            let it = &mut self.mappings[at];
            it.seen = now;
            it.senders.retain(|other| *other != port);
            it.senders.push(port);
            return it.outside;
        }
        let outside = self.free((router, rules), (protocol, inside), choices);
        let (senders, seen) = (vec![port], self.now);
        let (stage, doubtful) = (Stage::Opened, false);
        self.mappings.push(Mapping {
            router,
            protocol,
            outside,
            inside,
            stage,
            seen,
            senders,
            doubtful,
            reset: 0,
        });
        outside
    }

    /// Returns an end outside that nobody has: the same port if it is free and above 1,023, else
    /// one that the switch shows, of UDP of the same parity.
    fn free(
        &mut self,
        (router, rules): (&'static str, &[Rule]),
        (protocol, inside): (u8, (Ipv4Addr, u16)),
        choices: &mut Choices,
    ) -> (Ipv4Addr, u16) {
        let address = self.preferred(router, inside.0, &shared(rules), choices);
        let suits = |port: u16| {
            port >= 1024
                && (protocol != 17 || port % 2 == inside.1 % 2)
                && !is_forwarded(rules, protocol, (address, port))
        };
        let mut is_free = |port: u16, choices: &mut Choices| {
            suits(port) && {
                let at = (router, protocol, (address, port));
                self.mapping(|it| (it.router, it.protocol, it.outside) == at, choices).is_none()
            }
        };
        if is_free(inside.1, choices) {
            return (address, inside.1);
        }
        let mut shown = Vec::new();
        for (of, ip, port) in choices.shown().to_vec() {
            let is_it = (of, ip) == (protocol, address.into()) && !shown.contains(&port);
            if is_it && is_free(port, choices) {
                shown.push(port);
            }
        }
        if !shown.is_empty() {
            return (address, choices.one_of(&shown));
        }
        let port = (1024..).find(|port| is_free(*port, choices)).unwrap();
        (address, port)
    }

    /// Notes what a packet of TCP says of its connection, as its machine does.
    fn says(
        &mut self,
        router: &'static str,
        (protocol, inside): (u8, (Ipv4Addr, u16)),
        packet: &[u8],
        read: &Read,
    ) {
        let Some(at) = read.upper.filter(|_| protocol == 6) else { return };
        let has = |flag: u8| packet[at + 13] & flag != 0;
        let header = usize::from(packet[at + 12] >> 4) * 4;
        let carries = usize::from(be16(packet, 2)) > at + header;
        // The newest one is the one that was used.
        let of =
            |it: &&mut Mapping| (it.router, it.protocol, it.inside) == (router, protocol, inside);
        let Some(it) = self.mappings.iter_mut().rev().find(of) else { return };
        it.stage = match it.stage {
            _ if has(FIN) || has(RST) => Stage::Ended,
            Stage::Ended if has(SYN) => Stage::Opened,
            Stage::Ended if carries => Stage::Acknowledged,
            Stage::Opened if !has(SYN) => Stage::Acknowledged,
            stage => stage,
        };
    }
}

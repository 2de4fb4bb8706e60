//! Courses: which of several ways a packet takes, and who may send from behind a machine.

use butterfly_packet::{
    ipv4::{self, Ipv4},
    ipv6::Ipv6,
    protocol::{ICMP, ICMPV6},
};

use crate::ip::{
    Address,
    discovery::{is_link_local, is_multicast},
    is_v4, mapped,
};
use crate::stages::context::Context;
use crate::world::{
    routing::Joined,
    snapshot::Network,
    ways::{Course, Leads, Passage, has_ports},
};

/// Returns the course of a packet: of its addresses, protocol and ports, the same for both
/// directions. Of fragments the addresses alone count, as later ones have no ports. `None` if the
/// ports are beyond these bytes, the first ones of `room`.
pub(super) fn course(bytes: &[u8], room: usize) -> Option<Course> {
    match bytes.first().map(|first| first >> 4) {
        Some(6) => course_v6(bytes, room),
        _ => course_v4(bytes, room),
    }
}

/// Course of what cannot be read.
fn of_nothing() -> Course {
    Course::new([(0, 0); 2], 0)
}

fn course_v4(bytes: &[u8], room: usize) -> Option<Course> {
    let Ok(ip) = Ipv4::parse(bytes) else { return Some(of_nothing()) };
    let (source, destination) = (mapped(ip.source()), mapped(ip.destination()));
    let upper = (!ip.is_fragment()).then(|| (ip.protocol(), ip.header_len()));
    of((source, destination), upper, bytes, room)
}

fn course_v6(bytes: &[u8], room: usize) -> Option<Course> {
    let Ok(ip) = Ipv6::parse(bytes) else { return Some(of_nothing()) };
    let upper = ip.upper_layer().ok();
    let whole = upper.filter(|upper| upper.fragment.is_none_or(|fragment| fragment.is_atomic()));
    let upper = whole.map(|upper| (upper.protocol, upper.offset));
    of((ip.source().to_bits(), ip.destination().to_bits()), upper, bytes, room)
}

fn of(
    (source, destination): (Address, Address),
    upper: Option<(u8, usize)>,
    bytes: &[u8],
    room: usize,
) -> Option<Course> {
    let message = upper.and_then(|(kind, at)| Some((kind, bytes.get(at..)?)));
    if let Some(flow) = message.and_then(|(kind, message)| quoted(kind, message)) {
        return Some(flow);
    }
    let (protocol, ports) = match upper {
        None => (0, [0; 2]),
        Some((kind, at)) => match bytes.get(at..) {
            Some(&[s0, s1, d0, d1, ..]) => {
                (kind, [u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])])
            }
            _ if has_ports(kind) && bytes.len() < room && at + 4 <= room => return None,
            _ => (kind, [0; 2]),
        },
    };
    let [from, to] = ports;
    Some(Course::new([(source, from), (destination, to)], protocol))
}

/// Returns the course of the flow that an ICMP error quotes, so that it goes by the way of that.
/// `None` if this is no error, or quotes no flow with ports.
fn quoted(protocol: u8, message: &[u8]) -> Option<Course> {
    let &[kind, _, _, _, _, _, _, _, ref packet @ ..] = message else { return None };
    let (ends, (protocol, at)) = match (protocol, kind) {
        // RFC 792: unreachable, time exceeded, parameter problem.
        (ICMP, 3 | 11 | 12) => {
            let ip = Ipv4::parse(packet).ok().filter(|ip| !ip.is_fragment())?;
            ((mapped(ip.source()), mapped(ip.destination())), (ip.protocol(), ip.header_len()))
        }
        // RFC 4443, 3.
        (ICMPV6, 1..=4) => {
            let ip = Ipv6::parse(packet).ok()?;
            let upper = ip.upper_layer().ok().filter(|upper| upper.fragment.is_none())?;
            ((ip.source().to_bits(), ip.destination().to_bits()), (upper.protocol, upper.offset))
        }
        _ => return None,
    };
    let &[s0, s1, d0, d1, ..] = packet.get(at..).filter(|_| has_ports(protocol))? else {
        return None;
    };
    let [from, to] = [[s0, s1], [d0, d1]].map(u16::from_be_bytes);
    Some(Course::new([(ends.0, from), (ends.1, to)], protocol))
}

/// Returns whether a machine of another network may have an address: no group has it, and it means
/// something beyond a link (RFC 1812, 5.3.7; RFC 4291, 2.4).
pub(super) fn is_host(address: Address) -> bool {
    match is_v4(address) {
        true => ipv4::is_host((address as u32).into()),
        // Unspecified and loopback are 0 and 1.
        false => address > 1 && !is_multicast(address) && !is_link_local(address),
    }
}

/// Returns whether a router leads to a source by the machine that sent a packet: the vnic that
/// alone declares the way's address. So a default route by one machine lets no other one speak as
/// anybody. Nobody else of the sender's network has a MAC address that others cannot forge.
#[cold]
pub(super) fn is_behind(source: Address, router: &Joined, context: &Context<'_>) -> bool {
    let Some(Leads::Via(ways)) = router.route_to(source).map(|route| &route.leads) else {
        return false;
    };
    let is_sender = |way: &Passage| {
        let holding = context.entry.holders.get(way.address);
        way.vni == context.entry.vni
            && holding.is_some_and(|holding| holding.alone() == Some(context.sender.place.slot))
    };
    is_host(source) && ways.iter().any(is_sender)
}

/// Returns whether a machine from behind a way may be known by an address in a network: nobody has
/// it in the networks that the routers there join. None of these tells by which router a packet
/// came, so an address that a filtered vnic has in any of them is that one's alone.
#[cold]
pub(super) fn is_free(source: Address, exit: &Network, context: &Context<'_>) -> bool {
    let Some(routing) = &exit.routing else { return false };
    let mut routers = routing.gateways.iter().map(|gateway| &gateway.router);
    if routers.any(|router| router.has(source) || router.is_nobodys(source)) {
        return false;
    }
    let snapshot = context.snapshot;
    let is_anothers = |vni: &u32| {
        let network = snapshot.network(*vni);
        let routing = network.and_then(|network| network.routing.as_ref());
        let holding = network.and_then(|network| network.holders.get(source));
        // A neighbour outside is one that may send from there.
        let is_outside = routing.is_some_and(|routing| routing.outside.is_some());
        !is_outside && snapshot.neighbours.get(*vni, source).is_some()
            || routing.is_some_and(|routing| routing.answers_for(source).is_some())
            || holding.is_some_and(|holding| holding.excludes(context.sender, snapshot))
    };
    !routing.networks.iter().any(is_anothers)
}

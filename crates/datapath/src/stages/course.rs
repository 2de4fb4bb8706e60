//! Courses: which of several ways a packet takes, and who may send from behind a machine.

use butterfly_packet::{
    ipv4::{self, Ipv4},
    ipv6::Ipv6,
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
    ways::{Course, Leads, Passage},
};

/// Returns the course of a packet: of its addresses, protocol and ports, the same for both
/// directions. Of fragments the addresses alone count, as later ones have no ports.
pub(super) fn course(bytes: &[u8]) -> Course {
    match bytes.first().map(|first| first >> 4) {
        Some(6) => course_v6(bytes),
        _ => course_v4(bytes),
    }
    .unwrap_or(Course::new([(0, 0); 2], 0))
}

fn course_v4(bytes: &[u8]) -> Option<Course> {
    let ip = Ipv4::parse(bytes).ok()?;
    let (source, destination) = (mapped(ip.source()), mapped(ip.destination()));
    let upper = (!ip.is_fragment()).then(|| (ip.protocol(), bytes.get(ip.header_len()..)));
    Some(of((source, destination), upper))
}

fn course_v6(bytes: &[u8]) -> Option<Course> {
    let ip = Ipv6::parse(bytes).ok()?;
    let upper = ip.upper_layer().ok();
    let whole = upper.filter(|upper| upper.fragment.is_none_or(|fragment| fragment.is_atomic()));
    let upper = whole.map(|upper| (upper.protocol, bytes.get(upper.offset..)));
    Some(of((ip.source().to_bits(), ip.destination().to_bits()), upper))
}

fn of((source, destination): (Address, Address), upper: Option<(u8, Option<&[u8]>)>) -> Course {
    let (protocol, ports) = match upper {
        Some((kind, Some(&[s0, s1, d0, d1, ..]))) => {
            (kind, [u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])])
        }
        Some((kind, _)) => (kind, [0; 2]),
        None => (0, [0; 2]),
    };
    let [from, to] = ports;
    Course::new([(source, from), (destination, to)], protocol)
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
            && holding.is_some_and(|holding| holding.slots[..] == [context.sender.place.slot])
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
        snapshot.neighbours.get(*vni, source).is_some()
            || routing.is_some_and(|routing| routing.by_address(source).is_some())
            || holding.is_some_and(|holding| holding.excludes(context.sender, snapshot))
    };
    !routing.networks.iter().any(is_anothers)
}

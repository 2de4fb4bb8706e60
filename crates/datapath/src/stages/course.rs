//! Courses: which of several ways a packet takes, and who may send from behind a machine.

use butterfly_packet::{
    ipv4::{self, Ipv4},
    ipv6::Ipv6,
};

use crate::engine::batch::Meta;
use crate::ip::{
    Address,
    discovery::{is_link_local, is_multicast},
    is_v4, mapped,
};
use crate::stages::context::Context;
use crate::world::{
    routing::Joined,
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

/// Returns whether the machine that sent a frame may send from this address, as a router leads to
/// it by that machine.
///
/// The machine is the vnic that declares the way's address, or the neighbour without a host whose
/// MAC address the frame comes from. So a default route by one machine lets no other one speak as
/// anybody.
#[cold]
pub(super) fn is_behind(
    source: Address,
    meta: &Meta,
    router: &Joined,
    context: &Context<'_>,
) -> bool {
    let Some(Leads::Via(ways)) = router.route_to(source).map(|route| &route.leads) else {
        return false;
    };
    let is_sender = |way: &Passage| {
        way.vni == context.entry.vni
            && (context.sender.rules.owns(way.address) || is_neighbour(way.address, meta, context))
    };
    if !is_host(source) || router.has(source) || !ways.iter().any(is_sender) {
        return false;
    }
    // A route may lead to a part of a network by a machine elsewhere, but nobody speaks as a
    // filtered vnic of it.
    let network = router.connected(source).and_then(|vni| context.snapshot.network(vni));
    let holding = network.and_then(|network| network.holders.get(source));
    !holding.is_some_and(|holding| holding.excludes(context.sender, context.snapshot))
}

/// Returns whether a frame comes from the declared neighbour with an address, which no vnic here
/// has, and which is not said to be on another host.
fn is_neighbour(address: Address, meta: &Meta, context: &Context<'_>) -> bool {
    let found = context.snapshot.neighbours.get(context.entry.vni, address);
    found.is_some_and(|found| found.mac == meta.source && found.host.is_none())
        && context.entry.holders.get(address).is_none()
}

//! Two networks that a router joins.

#![allow(dead_code)] // each example has its part

use butterfly_datapath::{
    Mac, RoutingChange,
    harness::{Error, Host},
};
use butterfly_model::{
    self as model, External, ExternalId, Nat, Neighbour, Network, Router, RouterAddresses,
    RouterId, Subnet, Vni,
};

/// MAC address of the router.
pub fn router_mac() -> Result<Mac, Error> {
    Ok(Mac(RouterId::new("r")?.gateway_mac()))
}

/// Joins networks 1 and 2 by a router. Returns its MAC address.
pub fn join(host: &Host) -> Result<Mac, Error> {
    let id = RouterId::new("r")?;
    let mut router = Router::new(id);
    for (vni, block, gateway) in
        [(1, "10.0.0.0/24", "10.0.0.254"), (2, "10.1.0.0/24", "10.1.0.254")]
    {
        let (vni, subnet) = (Vni::new(vni)?, Subnet::parse(block, Some(gateway))?);
        let network = Network::new(vni, vec![subnet], None)?;
        host.change_routing(RoutingChange::DeclareNetwork(network));
        router.attach(vni, RouterAddresses::default());
    }
    host.change_routing(RoutingChange::DeclareRouter(router));
    router_mac()
}

/// Address outside that machines of network 1 share.
pub const SHARED: [u8; 4] = [10, 1, 0, 9];

/// Joins network 1 to an external, network 2, whose outside is its vnics, by a router that has
/// machines share [`SHARED`]. Returns its MAC address.
pub fn share(host: &Host) -> Result<Mac, Error> {
    let id = RouterId::new("r")?;
    let (inside, outside) = (Vni::new(1)?, Vni::new(2)?);
    let subnet = Subnet::parse("10.0.0.0/24", Some("10.0.0.254"))?;
    let network = Network::new(inside, vec![subnet], None)?;
    let own = ["10.1.0.254/24"];
    let external = External::parse(ExternalId::new("world")?, outside, own, ["10.1.0.1"])?;
    let mut router = Router::new(id.clone());
    router.attach(inside, RouterAddresses::default());
    router.attach(outside, RouterAddresses::default());
    for change in [
        RoutingChange::DeclareNetwork(network),
        RoutingChange::DeclareNetwork(external.network().clone()),
        RoutingChange::DeclareWire(external),
        RoutingChange::DeclareRouter(router),
        RoutingChange::DeclareNat(id, outside, vec![Nat::snat(SHARED.into())?]),
    ] {
        host.change_routing(change);
    }
    router_mac()
}

/// Wire of [`outside`], its MAC address, that of the next hop behind it, and a machine further on.
pub const WIRE: &str = "wire/world";
pub const WIRE_MAC: Mac = Mac([2, 0, 0, 0, 0, 0x77]);
pub const NEXT: Mac = Mac([2, 0, 0, 0, 0, 0xe]);
pub const WORLD: [u8; 4] = [198, 51, 100, 9];
/// An address outside that belongs to this host.
pub const OUTSIDE: [u8; 4] = [192, 0, 2, 9];

/// Joins network 1 to the outside, behind a wire, by a router with this translation. Returns its
/// MAC address.
pub fn outside(host: &mut Host, nat: Nat) -> Result<Mac, Error> {
    let id = RouterId::new("r")?;
    let (inside, vni) = (Vni::new(1)?, Vni::new(2)?);
    let subnet = Subnet::parse("10.0.0.0/24", Some("10.0.0.254"))?;
    let own = ["192.0.2.7/24"];
    let external = External::parse(ExternalId::new("world")?, vni, own, ["192.0.2.1"])?;
    host.change_routing(RoutingChange::DeclareNetwork(Network::new(inside, vec![subnet], None)?));
    host.change_routing(RoutingChange::DeclareNetwork(external.network().clone()));
    host.lay_wire(&external, WIRE_MAC)?;
    let mut router = Router::new(id.clone());
    router.attach(inside, RouterAddresses::default());
    router.attach(vni, RouterAddresses::default());
    for route in external.default_routes() {
        router.add_route(route);
    }
    let next = model::Mac::parse(&NEXT.to_string())?;
    let gateway = Neighbour::new(vni, "192.0.2.1".parse()?, next, None)?;
    for change in [
        RoutingChange::DeclareRouter(router),
        RoutingChange::DeclareNeighbour(gateway),
        RoutingChange::DeclareNat(id, vni, vec![nat]),
    ] {
        host.change_routing(change);
    }
    host.settle();
    router_mac()
}

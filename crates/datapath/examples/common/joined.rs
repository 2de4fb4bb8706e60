//! Two networks that a router joins.

use butterfly_datapath::{
    Mac, RoutingChange,
    harness::{Error, Host},
};
use butterfly_model::{
    External, ExternalId, Nat, Network, Router, RouterAddresses, RouterId, Subnet, Vni,
};

/// Joins networks 1 and 2 by a router. Returns its MAC address.
pub fn join(host: &Host) -> Result<Mac, Error> {
    let id = RouterId::new("r")?;
    let mac = Mac(id.gateway_mac());
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
    Ok(mac)
}

/// Address outside that machines of network 1 share.
#[allow(dead_code)] // not by each of them
pub const SHARED: [u8; 4] = [10, 1, 0, 9];

/// Joins network 1 to an external, network 2, whose outside is its vnics, by a router that has
/// machines share [`SHARED`]. Returns its MAC address.
#[allow(dead_code)] // not by each of them
pub fn share(host: &Host) -> Result<Mac, Error> {
    let id = RouterId::new("r")?;
    let mac = Mac(id.gateway_mac());
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
    Ok(mac)
}

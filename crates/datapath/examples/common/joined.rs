//! Two networks that a router joins.

use butterfly_datapath::{
    Mac, RoutingChange,
    harness::{Error, Host},
};
use butterfly_model::{Network, Router, RouterAddresses, RouterId, Subnet, Vni};

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

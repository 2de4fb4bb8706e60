//! Routing: has workers see what is declared of networks and routers.

use std::{collections::HashMap, sync::Arc};

use crate::plane::{Plane, routed::RoutingChange, updates::Update};
use crate::world::snapshot::{Network, Snapshot};

impl Plane {
    /// Changes what is declared of a network or router. Returns when no worker goes by the old
    /// state any more. Who declares checks that the whole makes sense.
    pub fn change_routing(&self, change: RoutingChange) {
        let mut state = self.state();
        let concerned = state.routed.change(change);
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let mut all = HashMap::clone(&next.routings);
        for (vni, routing) in state.routed.routings(concerned) {
            let vni = vni.number();
            match &routing {
                Some(routing) => all.insert(vni, routing.clone()),
                None => all.remove(&vni),
            };
            let here = next.by_vni.get(&vni).copied();
            if let Some((at, network)) = here.and_then(|at| Some((at, next.networks.get(at)?))) {
                let network = Network { routing, ..Network::clone(network) };
                next.networks.set(at, Some(Arc::new(network)));
            }
        }
        next.routings = Arc::new(all);
        self.publish(next);
        self.updates.add(Update::RoutingChanged);
    }
}

//! Routing: declared networks and routers, and what workers see of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use butterfly_model::{Network as Declared, Router, RouterId, Vni};

use crate::plane::{Plane, updates::Update};
use crate::world::{
    routing::{Joined, Routing},
    snapshot::{Network, Snapshot},
};

/// A change of what is declared of a network or of a router.
#[derive(Clone, Debug)]
pub enum RoutingChange {
    /// Declares a network anew, or removes what is declared of it.
    Network(Vni, Option<Declared>),
    /// Declares a router with all that it is attached to, or removes it.
    Router(RouterId, Option<Router>),
}

/// Declared networks and routers.
#[derive(Default)]
pub(super) struct Routed {
    networks: BTreeMap<Vni, Declared>,
    routers: BTreeMap<RouterId, Router>,
}

impl Routed {
    /// Carries out a change. Returns the networks whose routing is another one now.
    fn change(&mut self, change: RoutingChange) -> BTreeSet<Vni> {
        let of = |router: &Router| router.attachments().map(|(vni, _)| vni).collect::<Vec<_>>();
        match change {
            RoutingChange::Network(vni, declared) => {
                match declared {
                    Some(declared) => self.networks.insert(vni, declared),
                    None => self.networks.remove(&vni),
                };
                // Routers lead to its subnets from all their networks.
                let joins = |router: &&Router| router.attachment(vni).is_some();
                let others = self.routers.values().filter(joins).flat_map(of);
                others.chain([vni]).collect()
            }
            RoutingChange::Router(id, declared) => {
                let new = declared.as_ref().map(of).unwrap_or_default();
                let old = match declared {
                    Some(declared) => self.routers.insert(id, declared),
                    None => self.routers.remove(&id),
                };
                old.as_ref().map(of).into_iter().flatten().chain(new).collect()
            }
        }
    }

    /// Makes the routing of these networks. `None` for those that are not declared.
    fn routings(&self, of: BTreeSet<Vni>) -> impl Iterator<Item = (Vni, Option<Arc<Routing>>)> {
        let mut joined = BTreeMap::<&RouterId, Arc<Joined>>::new();
        for router in self.routers.values() {
            if router.attachments().any(|(vni, _)| of.contains(&vni)) {
                let made = Joined::new(router, |vni| self.networks.get(&vni));
                joined.insert(router.id(), Arc::new(made));
            }
        }
        of.into_iter().map(move |vni| {
            let routers = joined.iter().filter_map(|(id, joined)| {
                let router = self.routers.get(*id)?;
                router.attachment(vni).map(|_| (router, joined.clone()))
            });
            let declared = self.networks.get(&vni);
            (vni, declared.map(|network| Arc::new(Routing::new(network, routers))))
        })
    }
}

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

//! Networks and routers: what goes before groups and vnics change, and what comes after them.
//!
//! In between is only what both states have, so that no moment routes what neither does, and no
//! vnic meets an address of a router that is gone, or not there yet.

use crate::{change::Change, routed::Routed};
use butterfly_model::{Network, Router};

/// Changes of networks and routers, by when they are made.
#[derive(Default)]
pub(super) struct Routing {
    /// Attachments, routers, networks and subnets go: before the vnics change.
    pub go: Vec<Change>,
    /// They come: after the vnics changed.
    pub come: Vec<Change>,
}

impl Routing {
    pub fn between(old: &Routed, new: &Routed) -> Self {
        let mut routing = Self::default();
        if old == new {
            return routing;
        }
        let network = |was: &Network| new.network(was.vni()).map(|network| was.in_common(network));
        let router =
            |was: &Router| new.router(was.id().as_str()).map(|new| kept(was, new, network, old));
        for was in old.routers() {
            match router(was) {
                None => routing.go.push(Change::RemoveRouter(was.id().clone())),
                Some(left) if left != *was => routing.go.push(Change::DeclareRouter(left)),
                Some(_) => {}
            }
        }
        for was in old.networks() {
            match network(was) {
                None => routing.go.push(Change::RemoveNetwork(was.vni())),
                Some(left) if left != *was => routing.go.push(Change::DeclareNetwork(left)),
                Some(_) => {}
            }
        }
        for will in new.networks() {
            if old.network(will.vni()).and_then(network).as_ref() != Some(will) {
                routing.come.push(Change::DeclareNetwork(will.clone()));
            }
        }
        for will in new.routers() {
            if old.router(will.id().as_str()).and_then(router).as_ref() != Some(will) {
                routing.come.push(Change::DeclareRouter(will.clone()));
            }
        }
        routing
    }
}

/// A router with the attachments that it has in both states, as far as they are valid with what is
/// left of their networks.
fn kept(
    was: &Router,
    will: &Router,
    network: impl Fn(&Network) -> Option<Network>,
    old: &Routed,
) -> Router {
    let mut left = Router::new(was.id().clone());
    for (vni, given) in
        was.attachments().filter(|(vni, given)| will.attachment(*vni) == Some(*given))
    {
        let Some(network) = old.network(vni).and_then(&network) else { continue };
        let mut addresses = given.in_network(&network).peekable();
        let some = addresses.peek().is_some();
        if some && addresses.all(|address| network.subnet_of(address).is_some()) {
            left.attach(vni, given);
        }
    }
    left
}

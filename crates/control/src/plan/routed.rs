//! Networks, routers, externals and neighbours: what goes before groups and vnics change, and what
//! comes after them.
//!
//! In between is only what both states have, so that no moment routes what neither does, and no
//! vnic meets an address of a router that is gone, or not there yet. No router joins a network that
//! is in one of the states only, so those that give their vnics addresses come before these, and go
//! after them: no vnic asks others for its address meanwhile.

use crate::{
    change::Change,
    desired::Desired,
    routed::{MAX_NETWORKS, MAX_ROUTES_OF_ROUTER, Routed},
};
use butterfly_model::{
    Cidr, External, ExternalId, Nat, Neighbour, Network, Route, Router, RouterId, Vni,
};
use std::{collections::BTreeSet, net::IpAddr};

/// Changes of networks, routers and neighbours, by when they are made.
#[derive(Default)]
pub(super) struct Routing {
    /// Neighbours, attachments, routers, networks and subnets go: before the vnics change.
    pub go: Vec<Change>,
    /// Networks come that lease addresses: before the vnics change.
    pub lease: Vec<Change>,
    /// Networks go that leased addresses: after the vnics changed.
    pub leased: Vec<Change>,
    /// They come: after the vnics changed.
    pub come: Vec<Change>,
}

impl Routing {
    pub fn between((old, new): (&Desired, &Desired)) -> Self {
        let vnics = new.vnics();
        let (old, new) = (old.routed(), new.routed());
        let mut routing = Self::default();
        if old == new {
            return routing;
        }
        let network = |was: &Network| new.network(was.vni()).map(|network| was.in_common(network));
        let router = |was: &Router| {
            new.router(was.id().as_str()).map(|will| kept(was, will, network, (old, new)))
        };
        let external = |id: &ExternalId| {
            let (was, will) = (old.external(id.as_str())?, new.external(id.as_str())?);
            was.in_common(will)
        };
        let nats = Translations::between((old, new), |id| {
            let left = router(old.router(id.as_str())?)?;
            Some(left.externals().map(|(id, _)| id.clone()).collect())
        });
        routing.go.extend(nats.go);
        // One that gets the MAC address of a vnic with its prefix is not there in between.
        let stays = |was: &Neighbour, will: &Neighbour| {
            was.mac() == will.mac() || vnics.with_prefix(was.vni(), was.address()).is_none()
        };
        let gone = old.neighbours().filter(|was| {
            new.neighbour(was.vni(), was.address()).is_none_or(|will| !stays(was, will))
        });
        routing.go.extend(gone.map(|was| Change::RemoveNeighbour(was.vni(), was.address())));
        for was in old.routers() {
            match router(was) {
                None => routing.go.push(Change::RemoveRouter(was.id().clone())),
                Some(left) if left != *was => routing.go.push(Change::DeclareRouter(left)),
                Some(_) => {}
            }
        }
        for was in old.externals() {
            match external(was.id()) {
                None => routing.go.push(Change::RemoveExternal(was.id().clone())),
                Some(left) if left != *was => routing.go.push(Change::DeclareExternal(left)),
                Some(_) => {}
            }
        }
        for was in old.networks() {
            match network(was) {
                None if was.dhcp().is_some() => {
                    routing.leased.push(Change::RemoveNetwork(was.vni()));
                }
                None => routing.go.push(Change::RemoveNetwork(was.vni())),
                Some(left) if left != *was => routing.go.push(Change::DeclareNetwork(left)),
                Some(_) => {}
            }
        }
        let leases = |will: &Network| will.dhcp().is_some() && old.network(will.vni()).is_none();
        // Those of both states at once are as many as a host may have, or they come later.
        let fresh = new.networks().filter(|will| leases(will)).count();
        let early = old.networks().len() + fresh <= MAX_NETWORKS;
        for will in new.networks() {
            if old.network(will.vni()).and_then(network).as_ref() != Some(will) {
                let stage =
                    if early && leases(will) { &mut routing.lease } else { &mut routing.come };
                stage.push(Change::DeclareNetwork(will.clone()));
            }
        }
        let come = new.externals().filter(|will| external(will.id()).as_ref() != Some(will));
        routing.come.extend(come.cloned().map(Change::DeclareExternal));
        // Who has fewer routes then makes room for others: a host has not more than so many.
        let in_between = |will: &Router| old.router(will.id().as_str()).and_then(router);
        let mut routers: Vec<_> = new.routers().map(|will| (in_between(will), will)).collect();
        routers.retain(|(left, will)| left.as_ref() != Some(*will));
        let grows = |(left, will): &(Option<Router>, &Router)| {
            left.as_ref().is_none_or(|left| left.routes().len() <= will.routes().len())
        };
        routers.sort_by_key(grows);
        let routers = routers.into_iter().map(|(_, will)| will.clone());
        routing.come.extend(routers.map(Change::DeclareRouter));
        let come =
            new.neighbours().filter(|will| old.neighbour(will.vni(), will.address()) != Some(will));
        routing.come.extend(come.cloned().map(Change::DeclareNeighbour));
        routing.come.extend(nats.come);
        routing
    }
}

/// Changes of translations, by when they are made.
struct Translations {
    go: Vec<Change>,
    come: Vec<Change>,
}

impl Translations {
    /// In between are those of both states at externals that a router does not leave meanwhile:
    /// `stays` tells these.
    fn between(
        (old, new): (&Routed, &Routed),
        stays: impl Fn(&RouterId) -> Option<BTreeSet<ExternalId>>,
    ) -> Self {
        let (mut go, mut come) = (Vec::new(), Vec::new());
        let owners: BTreeSet<_> = old.translating().chain(new.translating()).collect();
        for (router, external) in owners {
            let was: Vec<Nat> = old.nats(router, external).copied().collect();
            let will: Vec<Nat> = new.nats(router, external).copied().collect();
            let kept = stays(router).is_some_and(|stays| stays.contains(external));
            let left: Vec<Nat> = match kept {
                true => {
                    let will: BTreeSet<&Nat> = will.iter().collect();
                    was.iter().filter(|nat| will.contains(nat)).copied().collect()
                }
                false => Vec::new(),
            };
            let change = |nats: &Vec<Nat>| {
                Change::DeclareNat(router.clone(), external.clone(), nats.clone())
            };
            go.extend((left != was).then(|| change(&left)));
            come.extend((left != will).then(|| change(&will)));
        }
        Self { go, come }
    }
}

/// A router with the attachments that it has in both states, as far as they are valid with what is
/// left of their networks, and with the routes that it has in both.
fn kept(
    was: &Router,
    will: &Router,
    network: impl Fn(&Network) -> Option<Network>,
    (old, new): (&Routed, &Routed),
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
    let in_common = |id: &ExternalId| {
        let (was, will) = (old.external(id.as_str())?, new.external(id.as_str())?);
        was.in_common(will)
    };
    let outside = was.externals().filter(|(id, given)| will.external(id.as_str()) == Some(*given));
    for (id, given) in outside {
        let external = in_common(id);
        if external.is_some_and(|it| given.iter().all(|address| it.has_address(address))) {
            left.attach_external(id.clone(), given);
        }
    }
    let subnets = |of: &Router,
                   network: &dyn Fn(Vni) -> Option<Network>,
                   external: &dyn Fn(&ExternalId) -> Option<External>|
     -> Vec<Cidr> {
        let networks = of.attachments().filter_map(|(vni, _)| network(vni));
        let outside = of.externals().filter_map(|(id, _)| external(id));
        let outside = outside.map(|external| external.network().clone());
        let blocks = networks.chain(outside).flat_map(|network| network.subnets().to_vec());
        blocks.map(|subnet| subnet.cidr()).collect()
    };
    let stays = subnets(&left, &|vni| old.network(vni).and_then(&network), &in_common);
    let after =
        subnets(will, &|vni| new.network(vni).cloned(), &|id| new.external(id.as_str()).cloned());
    // Blocks to which the router leads in both states, but not in between.
    let before =
        subnets(was, &|vni| old.network(vni).cloned(), &|id| old.external(id.as_str()).cloned());
    let mut comes_back = before.clone();
    comes_back.retain(|block| after.contains(block) && !stays.contains(block));
    let mut subnets = [&*before, &*after, &*stays].concat();
    // Externals lead to everything, as declared routes do.
    let by_externals = |of: &Router, state: &Routed| state.lowered(of, None, |_| true);
    let defaults = left.externals().filter_map(|(id, _)| in_common(id));
    let defaults: Vec<Route> = defaults.flat_map(|external| external.default_routes()).collect();
    subnets.extend(defaults.iter().map(Route::to));
    // By another host, too.
    if left.externals().filter_map(|(id, _)| in_common(id)).any(|it| it.via().is_some()) {
        subnets.extend(["0.0.0.0", "::"].iter().flat_map(|all| Cidr::new(all, 0)));
    }
    let ways = (&by_externals(was, old), &by_externals(will, new));
    keep_routes(&mut left, ways, &stays, &comes_back, &subnets);
    for route in defaults.iter().filter(|route| was.route(&route.to()).is_none()) {
        if left.route(&route.to()) == Some(route) {
            left.remove_route(&route.to());
        }
    }
    // Of a block that comes, a part that is behind a machine comes with it.
    let new = |block: &&Cidr| !before.contains(block) || !stays.contains(block);
    let coming: Vec<&Cidr> = after.iter().filter(new).collect();
    let comes = |route: &&Route| coming.iter().any(|it| it.contains(route.to().network()));
    for route in will.routes().filter(|route| was.route(&route.to()).is_none()).filter(comes) {
        left.add_route(route.closed());
    }
    if left.routes().len() > MAX_ROUTES_OF_ROUTER {
        let all: Vec<ExternalId> = left.externals().map(|(id, _)| id.clone()).collect();
        for id in &all {
            left.detach_external(id.as_str());
        }
        for to in defaults.iter().map(Route::to).filter(|to| was.route(to).is_none()) {
            left.remove_route(&to);
        }
    }
    left
}

/// Gives a router the routes that it has in both states, by the machines that lead there in both
/// and are in a block that stays. All others that it had are blackholes until the new state is
/// there, if a larger block would lead somewhere else without them. So are those that would catch a
/// block that comes back. `subnets` are those of the router in any state, in between too.
fn keep_routes(
    left: &mut Router,
    (was, will): (&Router, &Router),
    stays: &[Cidr],
    comes_back: &[Cidr],
    subnets: &[Cidr],
) {
    let mut closed = Vec::new();
    for route in was.routes() {
        let after = will.route(&route.to()).map_or(&[][..], Route::via);
        let leads = |via: &&IpAddr| stays.iter().any(|block| block.contains(**via));
        let both = route.via().iter().filter(leads).filter(|via| after.contains(via));
        let hides = comes_back.iter().any(|block| route.to().contains(block.network()));
        let ways: Vec<IpAddr> = both.copied().collect();
        match Route::new(route.to(), ways) {
            Ok(kept) if !kept.via().is_empty() && !hides => drop(left.add_route(kept)),
            // A blackhole in both.
            _ if will.route(&route.to()) == Some(route) && route.via().is_empty() => {
                left.add_route(route.clone());
            }
            _ => closed.push(route.closed()),
        }
    }
    let larger =
        |one: &Cidr, it: &Cidr| one.mask_size() <= it.mask_size() && one.contains(it.network());
    let leading: Vec<Cidr> = left.routes().map(Route::to).chain(subnets.iter().copied()).collect();
    closed.retain(|route| leading.iter().any(|block| larger(block, &route.to())));
    closed.into_iter().for_each(|route| drop(left.add_route(route)));
}

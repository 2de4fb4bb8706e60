//! Requests about networks, routers and their routes.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    handlers::convert::{self, Joined},
};
use butterfly_api::{
    Answer, Failure,
    proto::{self, Response},
};
use butterfly_control::{Change, Refused};
use butterfly_model::{Router, RouterId};
use tracing::warn;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn network_add(&mut self, declared: &proto::Network) -> Answer {
        let network = convert::declared_network(declared)?;
        if self.desired.routed().network(network.vni()) != Some(&network) {
            self.change(Change::DeclareNetwork(network))?;
        }
        Ok(Response::new())
    }

    pub(super) fn network_del(&mut self, vni: u32) -> Answer {
        let vni = convert::network(vni)?;
        match self.desired.routed().network(vni) {
            Some(_) => self.change(Change::RemoveNetwork(vni))?,
            None => warn!("network {vni} is not declared and is deleted all the same"),
        }
        Ok(Response::new())
    }

    pub(super) fn network_list(&self) -> Answer {
        let network_list = self.desired.routed().networks().map(convert::network_details).collect();
        Ok(Response { network_list, ..Default::default() })
    }

    pub(super) fn router_add(&mut self, declared: &proto::Router) -> Answer {
        let router = convert::router(declared)?;
        self.declare_router(router)
    }

    pub(super) fn router_del(&mut self, id: &str) -> Answer {
        match self.desired.routed().router(id) {
            Some(router) => self.change(Change::RemoveRouter(router.id().clone()))?,
            None => warn!("router {id:?} does not exist and is deleted all the same"),
        }
        Ok(Response::new())
    }

    pub(super) fn router_list(&self) -> Answer {
        let router_list = self.desired.routed().routers().map(convert::router_details).collect();
        Ok(Response { router_list, ..Default::default() })
    }

    pub(super) fn router_attach(&mut self, attachment: &proto::Attachment) -> Answer {
        let (place, given) = convert::attachment(attachment)?;
        let mut router = self.router(attachment.router())?.clone();
        if let Joined::External(id) = &place {
            self.external(id.as_str())?;
        }
        convert::attach(&mut router, place, given);
        self.declare_router(router)
    }

    pub(super) fn router_detach(&mut self, attachment: &proto::Attachment) -> Answer {
        let place = convert::joined(attachment)?;
        let mut router = self.router(attachment.router())?.clone();
        match place {
            Joined::Network(vni) => router.detach(vni),
            Joined::External(id) => router.detach_external(id.as_str()),
        };
        self.declare_router(router)
    }

    pub(super) fn route_add(&mut self, declared: &proto::Route) -> Answer {
        let route = convert::route(declared)?;
        let mut router = self.router(declared.router())?.clone();
        router.add_route(route);
        self.declare_router(router)
    }

    pub(super) fn route_del(&mut self, declared: &proto::Route) -> Answer {
        let to = convert::route_block(declared)?;
        let mut router = self.router(declared.router())?.clone();
        if router.remove_route(&to).is_none() {
            warn!("router {} has no route to {to}, which is deleted all the same", router.id());
        }
        self.declare_router(router)
    }

    fn declare_router(&mut self, router: Router) -> Answer {
        if self.desired.routed().router(router.id().as_str()) != Some(&router) {
            self.change(Change::DeclareRouter(router))?;
        }
        Ok(Response::new())
    }

    /// The router `id`; else a failure that names the closest one.
    pub(super) fn router(&self, id: &str) -> Result<&Router, Failure> {
        self.desired.routed().router(id).ok_or_else(|| {
            let missing = convert::refusal(Refused::RouterMissing(id.to_owned()));
            let names = self.desired.routed().routers().map(Router::id).map(RouterId::as_str);
            super::meant::suggest(missing, id, names)
        })
    }
}

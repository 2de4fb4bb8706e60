//! Externals and translations: requests about them, and what becomes of a wire that this host
//! lacks.
//!
//! A wire that cannot be had is refused when it is declared. Of what is declared already, after a
//! start or where a change is taken back, it is not in effect: the data path has no such network,
//! and no router leads to it. It is tried again each 5 seconds.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    events::{Kind, Note},
    handlers::convert,
};
use butterfly_api::{
    Answer, Failure,
    proto::{self, Response},
};
use butterfly_control::{Change, Refused, nat_name};
use butterfly_datapath::{PortsInUse, RoutingChange};
use butterfly_model::{External, ExternalId, Nat, NatRule, Router, RouterId, Vni, canonical};
use std::net::IpAddr;
use tracing::{info, warn};

impl<D: Dataplane> Daemon<D> {
    pub(super) fn external_add(&mut self, declared: &proto::External) -> Answer {
        let number = |id: &str| self.desired.number_for(id, |_| false);
        let external = convert::external(declared, number)?;
        let same = self.desired.routed().external(external.id().as_str()) == Some(&external);
        if !same || self.missing_wires.why(external.id()).is_some() {
            self.change(Change::DeclareExternal(external))?;
        }
        Ok(Response::new())
    }

    pub(super) fn external_del(&mut self, id: &str) -> Answer {
        match self.desired.routed().external(id) {
            Some(external) => self.change(Change::RemoveExternal(external.id().clone()))?,
            None => warn!("external {id:?} does not exist and is deleted all the same"),
        }
        Ok(Response::new())
    }

    pub(super) fn external_list(&self) -> Answer {
        let details = |external: &External| proto::External {
            not_in_effect: self.missing_wires.why(external.id()).map(str::to_owned),
            wire: self.wire(external),
            ..convert::external_details(external)
        };
        let external_list = self.desired.routed().externals().map(details).collect();
        Ok(Response { external_list, ..Default::default() })
    }

    pub(super) fn nat_add(&mut self, declared: &proto::Nat) -> Answer {
        let rule = convert::nat(declared)?;
        let routed = self.desired.routed();
        self.router(rule.router.as_str())?;
        self.external(rule.external.as_str())?;
        let before = routed.nat(&rule.external, &rule.nat.place());
        if before == Some((&rule.router, &rule.nat)) {
            return Ok(Response::new());
        }
        let mut nats: Vec<Nat> = routed.nats(&rule.router, &rule.external).copied().collect();
        // A floating address in place of one of a pool, or the other way, is no slip of an address.
        nats.retain(|nat| {
            let same_kind = std::mem::discriminant(nat) == std::mem::discriminant(&rule.nat);
            nat.place() != rule.nat.place() || !same_kind
        });
        nats.push(rule.nat);
        self.change(Change::DeclareNat(rule.router, rule.external, nats))?;
        Ok(Response::new())
    }

    pub(super) fn nat_del(&mut self, declared: &proto::Nat) -> Answer {
        let (external, place) = convert::nat_place(declared)?;
        let routed = self.desired.routed();
        let found = routed.nat(&external, &place);
        let found = found.filter(|(router, nat)| convert::may_be(declared, router, nat));
        let Some((router, _)) = found else {
            let name = nat_name(&external, &place);
            warn!("there is no translation {name}, which is deleted all the same");
            return Ok(Response::new());
        };
        let router = router.clone();
        let nats = routed.nats(&router, &external).filter(|nat| nat.place() != place);
        let nats = nats.copied().collect();
        self.change(Change::DeclareNat(router, external, nats))?;
        Ok(Response::new())
    }

    pub(super) fn nat_list(&self) -> Answer {
        let routed = self.desired.routed();
        let in_use = self.dataplane.ports_in_use();
        let details = |rule: NatRule| {
            let mut told = convert::nat_details(&rule);
            if !matches!(rule.nat, Nat::Snat { .. }) {
                return told;
            }
            let external = routed.external(rule.external.as_str());
            let place = external.map(|it| (it.vni().number(), rule.nat.outside()));
            // They are sorted so.
            let at = |it: &PortsInUse| (it.vni, IpAddr::from(it.address));
            let found = place.and_then(|place| in_use.binary_search_by_key(&place, at).ok());
            if let Some(used) = found.and_then(|found| in_use.get(found)) {
                told.tcp_ports = Some(used.tcp);
                told.udp_ports = Some(used.udp);
                told.echo_ids = Some(used.echo);
            }
            told
        };
        let nat_list = routed.all_nats().map(details).collect();
        Ok(Response { nat_list, ..Default::default() })
    }

    /// The external `id`; else a failure that names the closest one.
    pub(super) fn external(&self, id: &str) -> Result<&External, Failure> {
        self.desired.routed().external(id).ok_or_else(|| {
            let missing = convert::refusal(Refused::ExternalMissing(id.to_owned()));
            let names = self.desired.routed().externals().map(External::id);
            super::meant::suggest(missing, id, names.map(ExternalId::as_str))
        })
    }

    /// A router as the data path gets it. `other` is an external in place of the one with its id,
    /// and in effect.
    pub(super) fn lowered(&self, router: &Router, other: Option<&External>) -> Router {
        let is_other = |id: &ExternalId| other.is_some_and(|other| other.id() == id);
        let has = |id: &ExternalId| is_other(id) || self.missing_wires.why(id).is_none();
        self.desired.routed().lowered(router, other, has)
    }

    /// Has the data path lead out by an external, in place of the one with its id. On an error
    /// nothing has changed, but that the former one may be in effect no more.
    pub(super) fn declare_wire(&mut self, external: &External) -> Result<(), Failure> {
        let id = external.id();
        let known = self.desired.routed().external(id.as_str()).cloned();
        if external.via().is_some() {
            return self.declare_other_host(external, known.as_ref());
        }
        let known = known.filter(|known| known.via().is_none());
        let old = known.as_ref().filter(|_| self.missing_wires.why(id).is_none());
        let Err(failure) = self.try_wire(external, known.as_ref()) else {
            match self.lead_out(external, old.is_none()) {
                Ok(()) => self.missing_wires.forget(id),
                Err(why) => self.not_in_effect(id, why),
            }
            return Ok(());
        };
        let lost = old.filter(|old| !self.dataplane.leads_out(old.vni()));
        let stays = match (self.missing_wires.restoring, lost) {
            (true, _) => external,
            (false, Some(lost)) => lost,
            (false, None) => return Err(failure),
        };
        self.not_in_effect(id, failure.clone());
        if let Some(old) = old {
            self.lead_out_no_more(old)?;
        }
        // Its vnics are on no other wire meanwhile, and not in the tunnel.
        self.route(RoutingChange::DeclareNetwork(stays.network().clone()))?;
        self.route(RoutingChange::DeclareWire(stays.without_wire()))?;
        if self.missing_wires.restoring { Ok(()) } else { Err(failure) }
    }

    /// Has the routers of an external lead out by another host, in place of the one with its id. On
    /// an error nothing has changed.
    fn declare_other_host(
        &mut self,
        external: &External,
        known: Option<&External>,
    ) -> Result<(), Failure> {
        let id = external.id();
        match self.check_other_host(external) {
            Err(failure) if self.missing_wires.restoring => {
                self.not_in_effect(id, failure);
                return Ok(());
            }
            Err(failure) => return Err(failure),
            Ok(()) => {}
        }
        self.lead_out(external, false)?;
        if known.is_some_and(|known| known.via().is_none()) {
            self.route(RoutingChange::RemoveWire(external.vni()))?;
            self.route(RoutingChange::RemoveNetwork(external.vni()))?;
        }
        self.missing_wires.forget(id);
        Ok(())
    }

    /// Checks that the host by which an external leads out may be another one of this tunnel.
    fn check_other_host(&self, external: &External) -> Result<(), Failure> {
        let Some(host) = external.via() else { return Ok(()) };
        let (id, text) = (external.id().as_str(), canonical(host));
        let Some(own) = self.dataplane.endpoint() else {
            return Err(Failure::new(format!(
                "external {id:?} leads out by host {text}, and this host has no tunnel"
            ))
            .with_help("start the daemon with a tunnel endpoint (-i) and an uplink (--uplink)"));
        };
        if own == host {
            return Err(Failure::new(format!(
                "external {id:?} leads out by host {text}, which is this host"
            ))
            .with_help("give the tunnel endpoint of the host with the interface, or --uplink"));
        }
        match own.is_ipv4() == host.is_ipv4() {
            true => Ok(()),
            false => Err(Failure::new(format!(
                "external {id:?} leads out by host {text}, and the tunnel endpoint of this host is of the other address family: {}",
                canonical(own)
            ))
            .with_help("give the endpoint that `butterfly uplink` tells on that host")),
        }
    }

    /// Notes that an external is declared and not in effect, or not all of it.
    fn not_in_effect(&mut self, id: &ExternalId, failure: Failure) {
        let why = failure.description.unwrap_or_default();
        warn!("external {:?} is declared, not in effect: {why}", id.as_str());
        self.missing_wires.note(id, why);
    }

    /// Has the data path have a wire, in place of that of an old external. On an error it is as
    /// before.
    fn try_wire(&mut self, external: &External, old: Option<&External>) -> Result<(), Failure> {
        self.route(RoutingChange::DeclareNetwork(external.network().clone()))?;
        let wired = self.route(RoutingChange::DeclareWire(external.clone()));
        if wired.is_err() {
            self.route(match old {
                Some(old) => RoutingChange::DeclareNetwork(old.network().clone()),
                None => RoutingChange::RemoveNetwork(external.vni()),
            })?;
        }
        wired
    }

    /// Has the routers of an external lead out by it as it is now. If it `came`, they translate
    /// there. Goes on behind a router that cannot, and fails with what the first one lacks.
    fn lead_out(&mut self, external: &External, came: bool) -> Result<(), Failure> {
        let routers: Vec<Router> =
            self.desired.routed().routers_at(external.id()).cloned().collect();
        routers
            .iter()
            .map(|router| self.lead_out_of(router, external, came))
            .fold(Ok(()), Result::and)
    }

    fn lead_out_of(
        &mut self,
        router: &Router,
        external: &External,
        came: bool,
    ) -> Result<(), Failure> {
        let lowered = self.lowered(router, Some(external));
        let led = self.route(RoutingChange::DeclareRouter(lowered));
        let led = led.and_then(|()| match came {
            true => self.translate(router.id(), external),
            false => Ok(()),
        });
        led.map_err(|failure| {
            let why = failure.description.unwrap_or_default();
            Failure::new(format!("router {:?}: {why}", router.id().as_str()))
        })
    }

    /// Gives the data path the translations of a router at an external.
    fn translate(&mut self, router: &RouterId, external: &External) -> Result<(), Failure> {
        let nats: Vec<Nat> = self.desired.routed().nats(router, external.id()).copied().collect();
        match nats.is_empty() {
            true => Ok(()),
            false => self.route(RoutingChange::DeclareNat(router.clone(), external.vni(), nats)),
        }
    }

    /// Has no router lead out by an external that is not in effect any more.
    fn lead_out_no_more(&mut self, old: &External) -> Result<(), Failure> {
        let vni = old.vni();
        let routers: Vec<Router> = self.desired.routed().routers_at(old.id()).cloned().collect();
        for router in &routers {
            if self.desired.routed().nats(router.id(), old.id()).next().is_some() {
                self.route(RoutingChange::DeclareNat(router.id().clone(), vni, Vec::new()))?;
            }
            let lowered = self.lowered(router, None);
            self.route(RoutingChange::DeclareRouter(lowered))?;
        }
        self.route(RoutingChange::RemoveWire(vni))?;
        self.route(RoutingChange::RemoveNetwork(vni))
    }

    /// Takes an external from the data path; no router is attached to it.
    pub(super) fn remove_wire(&mut self, id: &ExternalId) -> Result<(), Failure> {
        self.missing_wires.forget(id);
        let external = self.desired.routed().external(id.as_str());
        // By another host nothing is here but what its routers had.
        let Some(external) = external.filter(|external| external.via().is_none()) else {
            return Ok(());
        };
        let vni = external.vni();
        self.route(RoutingChange::RemoveWire(vni))?;
        self.route(RoutingChange::RemoveNetwork(vni))
    }

    /// Has a router translate so at an external. At one that is not in effect, when it is.
    pub(super) fn declare_nat(
        &mut self,
        router: &RouterId,
        external: &ExternalId,
        nats: &[Nat],
    ) -> Result<(), Failure> {
        let vni: Option<Vni> = self.desired.routed().external(external.as_str()).map(External::vni);
        match vni.filter(|_| self.missing_wires.why(external).is_none()) {
            Some(vni) => self.route(RoutingChange::DeclareNat(router.clone(), vni, nats.to_vec())),
            None => Ok(()),
        }
    }

    /// Tries again to have wires that are missing, if it is time, and tells of them.
    pub(super) fn try_wires(&mut self) {
        for (id, why) in self.missing_wires.untold() {
            let text = format!("external {:?} is declared, not in effect: {why}", id.as_str());
            self.events.note(Note::new(Kind::ExternalDown, text));
        }
        for id in self.missing_wires.due() {
            let external = self.desired.routed().external(id.as_str()).cloned();
            let Some(external) = external else {
                self.missing_wires.forget(&id);
                continue;
            };
            let tried = match external.via() {
                Some(_) => self.check_other_host(&external),
                None => self.try_wire(&external, Some(&external)),
            };
            match tried.and_then(|()| self.lead_out(&external, true)) {
                Ok(()) => {
                    self.missing_wires.forget(&id);
                    let text = format!("external {:?} is in effect now", id.as_str());
                    info!("{text}");
                    self.events.note(Note::new(Kind::ExternalUp, text));
                }
                Err(failure) => {
                    self.missing_wires.note(&id, failure.description.unwrap_or_default());
                }
            }
        }
    }
}

//! Handlers of the API's requests.

mod advice;
mod app;
mod apply;
mod change;
mod convert;
mod degraded;
mod drops;
mod event;
mod explain;
mod graph;
mod keep;
mod kept;
mod meant;
mod moved;
mod neighbour;
mod nic;
mod outside;
mod record;
mod records;
mod release;
mod reload;
mod report;
mod routed;
mod security_group;
mod session;
#[cfg(test)]
mod tests;
mod trace;
mod tunnel;
mod upgrade;
mod wires;

pub use records::{declared_in, stored_in};
pub use reload::Reload;

use crate::{
    checkpoint::Kept,
    dataplane::Dataplane,
    events::{Events, Kind, Note, Origin, announce::Announcer},
    holding::{Holding, Service},
    host::watchdog::Turns,
    keeper::Keeper,
    log::LogLevel,
    metrics::{Condition, Troubles},
    poison::{Degraded, Poison},
    recorder::Recorder,
    upgrade::Upgrade,
    wires::MissingWires,
};
use butterfly_api::{Action, Answer, Context, Failure, Handler, proto::Response};
use butterfly_control::Desired;
use butterfly_model::SocketDir;
use std::{net::IpAddr, os::fd::BorrowedFd};

/// State that the daemon knows and may change.
pub struct Daemon<D> {
    pub dataplane: D,
    /// Everything that was declared.
    pub desired: Desired,
    pub socket_dir: SocketDir,
    /// The VXLAN endpoint.
    pub ip: IpAddr,
    pub announcer: Announcer,
    /// Record of events.
    pub events: Events,
    /// The request that is being carried out.
    pub origin: Option<Origin>,
    /// Traces and captures.
    pub recorder: Recorder,
    pub log_level: LogLevel,
    /// The configuration, and what it takes to read it again.
    pub reload: Reload,
    /// The upgrade that is under way, if there is one.
    pub upgrade: Upgrade,
    /// Counts of its turns.
    pub turns: Turns,
    /// An endpoint of the API where other hosts may command the switch without a key.
    pub open_endpoint: Option<String>,
    /// Seconds since the epoch.
    pub start_date: u64,
    /// Checkpoint that holds what was told, if a successor is to go on with it.
    pub kept: Option<Kept>,
    /// The store of what is declared, if there is one.
    pub keeper: Option<Keeper>,
    /// True if a client asked it to quit.
    pub quit: bool,
    /// The holder, if anything outlasts this process.
    pub holding: Option<Holding>,
    /// The service, if it is longer than this process.
    pub service: Option<Service>,
    /// Vnics that are held, if anything outlasts this process.
    pub poison: Option<Poison>,
    /// Reason for which the store is left alone, if it is.
    pub degraded: Option<Degraded>,
    /// Externals whose wires this host lacks.
    pub missing_wires: MissingWires,
    /// Condition that metrics tell.
    pub condition: Condition,
}

impl<D: Dataplane> Handler for Daemon<D> {
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer {
        // A batch may take long: systemd's watchdog sees it get on.
        self.turns.taken();
        self.origin = Some(Origin { request: Some(action.name()), caller: context.caller });
        let version = self.desired.version();
        let answer = match action.declares() {
            true if self.gives_up(&action) => Ok(Response::new()),
            true => self.is_kept().and_then(|()| self.carry_out(action, context)),
            false => {
                self.seeing_committed_state(context, |daemon| daemon.carry_out(action, context))
            }
        };
        // Before the answer leaves: who was answered finds it after a crash. With a store, that is
        // when it has the change.
        if self.desired.version() != version && self.keeper.is_none() {
            self.keep_declared();
        }
        if let Err(failure) = &answer
            && !matches!(action, Action::Apply(request) if request.dry_run())
        {
            self.note_failure(&action, failure);
        }
        self.kept.iter().for_each(|kept| kept.before_answer(&action));
        answer
    }

    fn changes_made(&self) -> u64 {
        self.keeper.as_ref().map_or(0, Keeper::changes_made)
    }

    fn may_change(&self) -> bool {
        self.keeper.as_ref().is_none_or(Keeper::may_change)
    }

    fn hand_over(&mut self) {
        self.hand_over_changes();
    }

    fn outcome(&mut self) -> Option<Result<(), Failure>> {
        self.try_without_less();
        let outcome = self.hear_store();
        self.try_wires();
        self.tell_condition();
        outcome
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        let store = self.keeper.as_ref().map(Keeper::news);
        store.or_else(|| self.degraded.as_ref().map(Degraded::news))
    }

    fn not_understood(&mut self, why: &str, context: &Context) {
        let origin = Some(Origin { request: Some("unknown"), caller: context.caller });
        self.events
            .note(Note { origin, ..Note::new(Kind::RequestFailed, format!("refused: {why}")) });
    }

    fn called(&mut self) {
        self.hear_calls();
        self.tell_condition();
    }

    fn passes_on(&self) -> bool {
        self.is_proved()
    }
}

impl<D: Dataplane> Daemon<D> {
    /// Tells metrics the condition of the daemon.
    fn tell_condition(&self) {
        let layout = self.keeper.as_ref().filter(|it| it.read).map(|it| it.layout);
        self.condition.tell(Troubles {
            degraded: self.degraded.is_some(),
            changes_refused: self.store_trouble().is_some(),
            upgrade_failed: self.upgrade.failed.is_some(),
            routed: self.routed_counts(),
            upgrade_uncommitted: layout.is_some_and(|it| it < butterfly_layout::newest()),
        });
    }

    /// Answers a question. It sees what is committed, and what its own envelope changed.
    fn seeing_committed_state(
        &mut self,
        context: &Context,
        ask: impl FnOnce(&mut Self) -> Answer,
    ) -> Answer {
        let other = !context.sees_own_changes;
        if !self.keeper.as_ref().is_some_and(|keeper| other && keeper.differs()) {
            return ask(self);
        }
        let exchange = |daemon: &mut Self| {
            if let Some(keeper) = &mut daemon.keeper {
                keeper.exchange(&mut daemon.desired);
            }
        };
        exchange(self);
        let answer = ask(self);
        exchange(self);
        answer
    }

    fn carry_out(&mut self, action: Action<'_>, context: &Context) -> Answer {
        match action {
            Action::NicAdd(nic) => self.nic_add(nic),
            Action::NicUpdate(update) => self.nic_update(update),
            Action::NicDel(id) => self.nic_del(id),
            Action::NicList => self.nic_list(),
            Action::NicDetails(id) => self.nic_details(id),
            Action::NicExport(id) => self.nic_export(id),
            Action::NicStats(id) => self.nic_stats(id),
            Action::NicShow(id) => self.nic_show(id),
            Action::FdbList(request) => self.fdb_list(request),
            Action::WorkerList => self.worker_list(),
            Action::AppStatus => self.app_status(context),
            Action::AppQuit => self.app_quit(),
            Action::AppConfig(request) => self.app_config(request),
            Action::SgAdd(group) => self.sg_add(group),
            Action::SgDel(id) => self.sg_del(id),
            Action::SgList => self.sg_list(),
            Action::SgRuleAdd(request) => self.sg_rule_add(request),
            Action::SgRuleDel(request) => self.sg_rule_del(request),
            Action::SgRuleList(id) => self.sg_rule_list(id),
            Action::SgMemberAdd(request) => self.sg_member_add(request),
            Action::SgMemberDel(request) => self.sg_member_del(request),
            Action::SgMemberList(id) => self.sg_member_list(id),
            Action::SgDetails(id) => self.sg_details(id),
            Action::SgRuleStats(id) => self.sg_rule_stats(id),
            Action::SessionList(request) => self.session_list(request),
            Action::SessionFlush(filter) => self.session_flush(filter),
            Action::SessionTable => self.session_table(),
            Action::TunnelShow(request) => self.tunnel_show(request),
            Action::UplinkShow => self.uplink_show(),
            Action::PeerAdd(peer) => self.peer_add(peer),
            Action::PeerDel(peer) => self.peer_del(peer),
            Action::PeerList => self.peer_list(),
            Action::Explain(request) => self.explain(request),
            Action::DropList(request) => self.drop_list(request),
            Action::EventList(request) => self.event_list(request),
            Action::Trace(request) => self.trace(request),
            Action::Capture(request) => self.capture(request),
            Action::AppHealth => self.app_health(context),
            Action::Apply(request) => self.apply(request),
            Action::Upgrade(request) => self.begin_upgrade(request),
            Action::UpgradeCommit => self.commit_upgrade(),
            Action::NetworkAdd(network) => self.network_add(network),
            Action::NetworkDel(vni) => self.network_del(vni),
            Action::NetworkList => self.network_list(),
            Action::RouterAdd(router) => self.router_add(router),
            Action::RouterDel(id) => self.router_del(id),
            Action::RouterList => self.router_list(),
            Action::RouterAttach(attachment) => self.router_attach(attachment),
            Action::RouterDetach(attachment) => self.router_detach(attachment),
            Action::RouteAdd(route) => self.route_add(route),
            Action::RouteDel(route) => self.route_del(route),
            Action::ExternalAdd(external) => self.external_add(external),
            Action::ExternalDel(id) => self.external_del(id),
            Action::ExternalList => self.external_list(),
            Action::NatAdd(nat) => self.nat_add(nat),
            Action::NatDel(nat) => self.nat_del(nat),
            Action::NatList => self.nat_list(),
            Action::NeighbourAdd(neighbour) => self.neighbour_add(neighbour),
            Action::NeighbourDel(neighbour) => self.neighbour_del(neighbour),
            Action::NeighbourList(request) => self.neighbour_list(request),
            Action::NicRelease(id) => self.nic_release(id),
            Action::NicExportTo(request) => self.nic_export_to(request),
            Action::NicImport(request) => self.nic_import(request),
        }
    }
}

//! Handlers of the API's requests.

mod advice;
mod app;
mod apply;
mod change;
mod convert;
mod drops;
mod event;
mod explain;
mod graph;
mod meant;
mod nic;
mod record;
mod report;
mod security_group;
mod session;
#[cfg(test)]
mod tests;
mod trace;
mod tunnel;

pub use app::seconds_since_epoch;

use crate::{
    dataplane::Dataplane,
    events::{Events, Kind, Note, Origin, announce::Announcer},
    host::watchdog::Turns,
    log::LogLevel,
    recorder::Recorder,
};
use butterfly_api::{Action, Answer, Context, Handler};
use butterfly_control::Desired;
use butterfly_model::SocketDir;
use std::net::IpAddr;

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
    /// Counts of its turns.
    pub turns: Turns,
    /// An endpoint of the API where other hosts may command the switch without a key.
    pub open_endpoint: Option<String>,
    /// Seconds since the epoch.
    pub start_date: u64,
    /// True if a client asked it to quit.
    pub quit: bool,
}

impl<D: Dataplane> Handler for Daemon<D> {
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer {
        // A batch may take long: systemd's watchdog sees it get on.
        self.turns.taken();
        self.origin = Some(Origin { request: Some(action.name()), caller: context.caller });
        let answer = self.carry_out(action, context);
        if let Err(failure) = &answer
            && !matches!(action, Action::Apply(request) if request.dry_run())
        {
            self.note_failure(&action, failure);
        }
        answer
    }

    fn not_understood(&mut self, why: &str, context: &Context) {
        let origin = Some(Origin { request: Some("unknown"), caller: context.caller });
        self.events
            .note(Note { origin, ..Note::new(Kind::RequestFailed, format!("refused: {why}")) });
    }
}

impl<D: Dataplane> Daemon<D> {
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
        }
    }
}

//! What the requests of the API do.

mod app;
mod nic;
mod report;
mod security_group;
#[cfg(test)]
mod tests;

pub use app::seconds_since_epoch;

use crate::{announce::Announcer, dataplane::Dataplane, log::LogLevel, registry::Registry};
use butterfly_api::{Action, Answer, Context, Handler};
use butterfly_model::SocketDir;
use std::net::IpAddr;

/// What the daemon knows and may change.
pub struct Daemon<D> {
    pub dataplane: D,
    pub nics: Registry,
    pub socket_dir: SocketDir,
    /// The VXLAN endpoint.
    pub ip: IpAddr,
    pub announcer: Announcer,
    pub log_level: LogLevel,
    /// Seconds since the epoch.
    pub start_date: u64,
    /// Somebody asked it to quit.
    pub quit: bool,
}

impl<D: Dataplane> Handler for Daemon<D> {
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer {
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
            Action::SgAdd(_)
            | Action::SgDel(_)
            | Action::SgList
            | Action::SgRuleAdd(_)
            | Action::SgRuleDel(_)
            | Action::SgRuleList(_)
            | Action::SgMemberAdd(_)
            | Action::SgMemberDel(_)
            | Action::SgMemberList(_)
            | Action::SgDetails(_) => security_group::handle(action),
        }
    }
}

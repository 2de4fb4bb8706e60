//! Requests about the daemon itself.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    events::Kind,
    handlers::graph,
    host::time::seconds_since_epoch,
    log::Level,
    poison::{Degraded, Poison},
};
use butterfly_api::{
    Answer, Context, Failure,
    proto::{AppConfigReq, AppHealthRes, AppStatusRes, Response},
};
use protobuf::MessageField;
use std::time::SystemTime;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn app_status(&self, context: &Context) -> Answer {
        let uplink = self.dataplane.uplink();
        let port = uplink.as_ref().map(|uplink| (uplink.kind.as_str(), uplink.interface.as_str()));
        let recorded = self.recorder.by_default().then(std::process::id);
        let status = AppStatusRes {
            start_date: Some(self.start_date),
            current_date: Some(seconds_since_epoch(SystemTime::now())),
            request_counter: Some(context.request_counter),
            graph_dot: Some(graph::dot(self.ip, port, recorded, self.desired.vnics().iter())),
            ..Default::default()
        };
        Ok(Response { app_status: MessageField::some(status), ..Default::default() })
    }

    /// Looks at no vnic: probes of a busy host ask often.
    pub(super) fn app_health(&self, context: &Context) -> Answer {
        let count = |number: usize| Some(u32::try_from(number).unwrap_or(u32::MAX));
        let service = self.service.as_ref();
        let (routed, nats) = (self.desired.routed(), self.desired.routed().nat_counts());
        let holder = self.holding.as_ref().map(|it| &it.holder);
        let left_alone = self.degraded.as_ref().map(|it| it.directory.as_path());
        let directory = self.keeper.as_ref().map(|it| it.directory.as_path()).or(left_alone);
        let uplink_held = self.poison.as_ref().and_then(Poison::uplink_held);
        let health = AppHealthRes {
            version: Some(butterfly_version::VERSION.to_owned()),
            start_date: Some(self.start_date),
            current_date: Some(seconds_since_epoch(SystemTime::now())),
            request_counter: Some(context.request_counter),
            nics: count(self.desired.vnics().len()),
            security_groups: count(self.desired.groups().len()),
            open_endpoint: self.open_endpoint.clone(),
            reload_date: self.reload.last(),
            state_dir: directory.map(|it| it.display().to_string()),
            store_commit: self.keeper.as_ref().map(|it| it.sequence),
            store_trouble: self.store_trouble(),
            store_set_aside: self.keeper.as_ref().and_then(|it| it.aside.clone()),
            service_start_date: service.map(|it| it.start_date),
            restarts: service.map(|it| it.restarts),
            upgrade: self.upgrade.step.name().map(str::to_owned),
            upgrade_failed: self.upgrade.failed.clone(),
            upgraded: Some(self.upgrade.came),
            holder_pid: holder.and_then(|it| it.pid),
            holder_version: holder.and_then(|it| it.version()),
            holder_start_date: holder.map(|it| it.start_date),
            holder_gone: self.holding.as_ref().map(|it| !it.lease().holder_lives()),
            not_listening: self.condition.missing().names(),
            store_layout: self.keeper.as_ref().filter(|it| it.read).map(|it| it.layout),
            newest_layout: Some(butterfly_layout::newest()),
            resumed: service.and_then(|it| it.resumed.clone()),
            stood_still_ms: service
                .filter(|it| it.resumed.is_some())
                .map(|it| it.stood_still.as_millis() as u64),
            degraded: self.degraded.as_ref().map(|it| it.why().to_owned()),
            degraded_for_s: self.degraded.as_ref().map(Degraded::left),
            uplink_held: uplink_held.as_ref().map(|it| it.why.clone()),
            uplink_held_for_s: uplink_held.as_ref().map(|it| it.left),
            networks: count(routed.networks().len()),
            routers: count(routed.routers().len()),
            routes: count(routed.route_count()),
            externals: count(routed.externals().len()),
            nats: count(nats.pools + nats.single()),
            ..Default::default()
        };
        Ok(Response { app_health: MessageField::some(health), ..Default::default() })
    }

    pub(super) fn app_quit(&mut self) -> Answer {
        self.tell(Kind::DaemonStopping, "a client asked the daemon to quit".to_owned());
        self.quit = true;
        Ok(Response::new())
    }

    pub(super) fn app_config(&mut self, request: &AppConfigReq) -> Answer {
        let Some(name) = &request.log_level else {
            return Ok(Response::new());
        };
        let level = Level::parse(name).ok_or_else(|| {
            // The space at the end belongs to it.
            Failure::new("Application configuration failed: log level: failed ").with_help(format!(
                "log level {name:?} is refused: it is none, error, warning, info or debug"
            ))
        })?;
        self.log_level.set(level);
        self.note(Kind::LogLevel, format!("the log level is {name}"));
        Ok(Response::new())
    }
}

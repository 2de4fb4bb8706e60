//! Requests about the daemon itself.

use super::Daemon;
use crate::{dataplane::Dataplane, events::Kind, handlers::graph, log::Level};
use butterfly_api::{
    Answer, Context, Failure,
    proto::{AppConfigReq, AppHealthRes, AppStatusRes, Response},
};
use protobuf::MessageField;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the epoch.
pub fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

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
        let health = AppHealthRes {
            version: Some(butterfly_version::VERSION.to_owned()),
            start_date: Some(self.start_date),
            current_date: Some(seconds_since_epoch(SystemTime::now())),
            request_counter: Some(context.request_counter),
            nics: count(self.desired.vnics().len()),
            security_groups: count(self.desired.groups().len()),
            open_endpoint: self.open_endpoint.clone(),
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

//! Traces of requests in the record of events, and the lines of the log that say the same.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    events::{Kind, Note},
};
use butterfly_api::{Action, Failure};
use butterfly_model::Nic;
use tracing::info;

impl<D: Dataplane> Daemon<D> {
    /// Notes what the request did.
    pub(super) fn note(&self, kind: Kind, text: impl Into<String>) {
        self.events.note(Note { origin: self.origin, ..Note::new(kind, text) });
    }

    /// Notes what the request did to a vnic.
    pub(super) fn note_nic(&self, kind: Kind, nic: &Nic, text: impl Into<String>) {
        let note = Note::new(kind, text).nic(nic.id.as_str(), nic.vni.number());
        self.events.note(Note { origin: self.origin, ..note });
    }

    /// The same, and logs it.
    pub(super) fn tell(&self, kind: Kind, text: String) {
        info!(EVENT = kind.name(), "{text}");
        self.note(kind, text);
    }

    /// The same, and logs it.
    pub(super) fn tell_nic(&self, kind: Kind, nic: &Nic, text: String) {
        info!(
            EVENT = kind.name(),
            NIC = nic.id.as_str(),
            VNI = nic.vni.number(),
            "nic {} {text}",
            nic.id
        );
        self.note_nic(kind, nic, text);
    }

    /// A request was not carried out.
    pub(super) fn note_failure(&self, action: &Action<'_>, failure: &Failure) {
        let parts = [failure.description.as_deref(), failure.help.as_deref()];
        let parts: Vec<&str> =
            parts.into_iter().flatten().map(str::trim).filter(|text| !text.is_empty()).collect();
        let text = if parts.is_empty() {
            "refused".to_owned()
        } else {
            format!("refused: {}", parts.join("; "))
        };
        match nic_of(action).and_then(|id| self.desired.vnics().get(id)) {
            Some(nic) => self.note_nic(Kind::RequestFailed, nic, text),
            None => self.note(Kind::RequestFailed, text),
        }
    }
}

/// The vnic that an action is about.
fn nic_of<'a>(action: &Action<'a>) -> Option<&'a str> {
    match action {
        Action::NicAdd(nic) => Some(nic.id()),
        Action::NicUpdate(update) => Some(update.id()),
        Action::NicExportTo(request) => Some(request.id()),
        Action::NicDel(id)
        | Action::NicDetails(id)
        | Action::NicExport(id)
        | Action::NicStats(id)
        | Action::NicShow(id)
        | Action::NicRelease(id) => Some(id),
        Action::SessionList(list) => list.filter.nic_id.as_deref(),
        Action::SessionFlush(filter) => filter.nic_id.as_deref(),
        _ => None,
    }
}

//! Attachments: tell a vnic's worker when its transmit ring starts and stops.

use std::{os::fd::BorrowedFd, sync::Arc};

use butterfly_vhost::port::PortEvents;

use crate::engine::place::{PollSource, PortRef};
use crate::worker::Handle;

/// Tells a vnic's worker when its transmit ring starts and stops.
pub(crate) struct Attachment {
    pub(super) worker: Arc<Handle>,
    pub(super) source: PollSource,
}

impl Attachment {
    /// Returns the place of the attached vnic, if it is one.
    pub fn vnic(&self) -> Option<PortRef> {
        match self.source {
            PollSource::Vnic(place) => Some(place),
            PollSource::Uplink | PollSource::Waiting => None,
        }
    }

    /// Makes the attachment of a vhost-user uplink.
    pub fn uplink(worker: Arc<Handle>) -> Attachment {
        Attachment { worker, source: PollSource::Uplink }
    }
}

impl PortEvents for Attachment {
    fn tx_started(&self, kick: Option<BorrowedFd<'_>>) {
        self.worker.started(self.source, kick);
    }

    fn tx_stopped(&self, kick: Option<BorrowedFd<'_>>) {
        self.worker.stopped(self.source, kick);
    }
}

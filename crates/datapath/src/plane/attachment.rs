//! Attachments: tell a vnic's worker when its transmit ring starts and stops.

use std::{os::fd::BorrowedFd, sync::Arc};

use butterfly_vhost::port::PortEvents;

use crate::engine::place::{PollSource, PortRef};
use crate::worker::Handle;

/// Tells the worker of a vnic, or of a vhost-user uplink, when transmit rings start and stop.
pub(crate) struct Attachment {
    pub(super) worker: Arc<Handle>,
    /// The vnic; `None` for the uplink.
    pub(super) vnic: Option<PortRef>,
}

impl Attachment {
    /// Returns the place of the attached vnic, if it is one.
    pub fn vnic(&self) -> Option<PortRef> {
        self.vnic
    }

    /// Returns what the worker polls for a pair. An uplink has one pair.
    fn source(&self, pair: usize) -> Option<PollSource> {
        match (self.vnic, u8::try_from(pair).ok()?) {
            (Some(place), pair) => Some(PollSource::Queue { place, pair }),
            (None, 0) => Some(PollSource::Uplink),
            (None, _) => None,
        }
    }

    /// Makes the attachment of a vhost-user uplink.
    pub fn uplink(worker: Arc<Handle>) -> Attachment {
        Attachment { worker, vnic: None }
    }
}

impl PortEvents for Attachment {
    fn tx_started(&self, pair: usize, kick: Option<BorrowedFd<'_>>) {
        self.source(pair).into_iter().for_each(|source| self.worker.started(source, kick));
    }

    fn tx_stopped(&self, pair: usize, kick: Option<BorrowedFd<'_>>) {
        self.source(pair).into_iter().for_each(|source| self.worker.stopped(source, kick));
    }
}

//! Attachments: tell the board, or the first worker, when a transmit ring starts and stops.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use butterfly_vhost::port::PortEvents;

use crate::engine::place::{PollSource, PortRef};
use crate::plane::board::Board;
use crate::worker::Handle;
use crate::world::snapshot::VnicShared;

/// Tells when transmit rings of a vnic, or of a vhost-user uplink, start and stop.
pub(crate) enum Attachment {
    /// A vnic's rings, which the board gives to workers.
    Vnic { board: Arc<Board>, place: PortRef, vnic: Arc<VnicShared> },
    /// The uplink's, which is always the first worker's. It has one pair.
    Uplink(Arc<Handle>),
}

impl Attachment {
    /// Returns the place of the attached vnic, if it is one.
    pub fn vnic(&self) -> Option<PortRef> {
        match self {
            Attachment::Vnic { place, .. } => Some(*place),
            Attachment::Uplink(_) => None,
        }
    }
}

impl PortEvents for Attachment {
    fn tx_started(&self, pair: usize, kick: Option<&Arc<OwnedFd>>) {
        match self {
            Attachment::Vnic { board, place, vnic } => {
                board.started((*place, pair as u8), vnic, kick);
            }
            Attachment::Uplink(worker) if pair == 0 => {
                worker.uplink_started(kick.map(|kick| kick.as_fd()));
            }
            Attachment::Uplink(_) => {}
        }
    }

    fn tx_stopped(&self, pair: usize, kick: Option<&Arc<OwnedFd>>) {
        match self {
            Attachment::Vnic { board, place, .. } => board.stopped((*place, pair as u8), kick),
            Attachment::Uplink(worker) if pair == 0 => {
                if let Some(kick) = kick {
                    worker.unregister(kick.as_fd());
                }
                worker.stopped(PollSource::Uplink);
            }
            Attachment::Uplink(_) => {}
        }
    }
}

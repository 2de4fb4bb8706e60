//! Attachments: tell the board when a transmit ring starts and stops.

use std::{os::fd::OwnedFd, sync::Arc};

use butterfly_vhost::port::PortEvents;

use crate::engine::place::{PortRef, RingPlace, uplink_ring};
use crate::plane::board::Board;
use crate::world::{serving::Serving, snapshot::VnicShared};

/// Place of the ring by which frames come from a vhost-user uplink.
const UPLINK: RingPlace = uplink_ring(0);

/// Tells when transmit rings of a vnic, or of a vhost-user uplink, start and stop.
pub(crate) enum Attachment {
    /// A vnic's rings, which the board gives to workers.
    Vnic { board: Arc<Board>, place: PortRef, vnic: Arc<VnicShared> },
    /// The uplink's. It has one pair.
    Uplink { board: Arc<Board>, serving: Arc<Serving> },
}

impl Attachment {
    /// Returns the place of the attached vnic, if it is one.
    pub fn vnic(&self) -> Option<PortRef> {
        match self {
            Attachment::Vnic { place, .. } => Some(*place),
            Attachment::Uplink { .. } => None,
        }
    }
}

impl PortEvents for Attachment {
    fn tx_started(&self, pair: usize, kick: Option<&Arc<OwnedFd>>) {
        match self {
            Attachment::Vnic { board, place, vnic } => {
                board.started((*place, pair as u8), &vnic.serving, kick);
            }
            Attachment::Uplink { board, serving } if pair == 0 => {
                board.started(UPLINK, serving, kick);
            }
            Attachment::Uplink { .. } => {}
        }
    }

    fn tx_stopped(&self, pair: usize, kick: Option<&Arc<OwnedFd>>) {
        match self {
            Attachment::Vnic { board, place, .. } => board.stopped((*place, pair as u8), kick),
            Attachment::Uplink { board, .. } if pair == 0 => board.stopped(UPLINK, kick),
            Attachment::Uplink { .. } => {}
        }
    }
}

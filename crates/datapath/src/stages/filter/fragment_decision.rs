//! Decision of the filter on the first fragment of a packet, by which later ones are judged.

use crate::ip::Packet;

/// Decision on the first fragment of a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentDecision {
    /// Slot of the receiver; `None` if it was a flood.
    pub receiver: Option<u32>,
    pub stamp: u32,
    pub cells: [u32; 2],
    /// The first fragment: later ones of a flood are judged by it.
    pub packet: Packet,
}

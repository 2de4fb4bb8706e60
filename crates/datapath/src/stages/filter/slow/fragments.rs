//! Fragments: later ones follow the decision on the first.

use crate::engine::reason::DropReason;
use crate::ip::fragments::FragmentKey;
use crate::ip::{FRAGMENT_ORPHAN, Packet, Piece};
use crate::stages::context::Context;
use crate::stages::filter::FragmentDecision;
use crate::stages::filter::known::Judgement;
use crate::stages::filter::room::FilterRoom;
use crate::stages::filter::slow::decision::{CellPair, Decision};
use crate::stages::fragment_table::sender_of;

impl Decision<'_> {
    fn fragment_key(&self, piece: &Piece) -> FragmentKey {
        fragment_key(self.packet, piece, self.context).routed(self.zone.is_routed())
    }

    pub(super) fn first_fragment(&self, piece: &Piece, stamp: u32, cells: CellPair) -> Judgement {
        let decided = FragmentDecision {
            receiver: Some(self.receiver.place.slot),
            stamp,
            cells,
            packet: *self.packet,
        };
        let key = self.fragment_key(piece);
        let Context { fragments, now, .. } = *self.context;
        fragments.first(key, *piece, decided, now).map_err(|reason| (reason, self.own()))
    }

    /// Decides a fragment that is not the first, by the first one.
    pub(super) fn fragment(&self, piece: &Piece, room: &mut FilterRoom) -> Judgement {
        let key = self.fragment_key(piece);
        let decided = later(self.index, key, piece, self.context, room)
            .map_err(|reason| (reason, self.own()))?;
        let [egress, ingress] = decided.cells;
        let context = self.context;
        let holds = decided.receiver == Some(self.receiver.place.slot)
            && decided.stamp >= context.sender.since
            && decided.stamp >= self.receiver.since
            && decided.stamp >= context.cells.taken_back(egress)
            && decided.stamp >= context.cells.taken_back(ingress);
        if holds { Ok(()) } else { Err((FRAGMENT_ORPHAN, self.own())) }
    }
}

/// Returns the decision on the first fragment, for a frame of the batch that is a later one. Notes
/// one that comes before its first.
pub(super) fn later(
    index: usize,
    key: FragmentKey,
    piece: &Piece,
    context: &Context<'_>,
    room: &mut FilterRoom,
) -> Result<FragmentDecision, DropReason> {
    let decided = context.fragments.later(key, *piece, context.now);
    if let Err(FRAGMENT_ORPHAN) = decided {
        room.note_early(index, key);
    }
    decided
}

pub(super) fn fragment_key(packet: &Packet, piece: &Piece, context: &Context<'_>) -> FragmentKey {
    let sender = context.sender;
    // By incarnation, not by slot: the successor in a place does not go on with the packets of a
    // vnic. Behind a wire is the world, of which nobody uses up the places of all others.
    let own = sender.place.incarnation;
    let of = if sender.is_wire() { sender_of(&packet.tuple, sender) } else { own };
    FragmentKey::new(&packet.tuple, piece, sender.vni, of)
}

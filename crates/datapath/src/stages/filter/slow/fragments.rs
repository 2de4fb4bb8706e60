//! Fragments: later ones follow the decision on the first.

use crate::ip::fragments::FragmentKey;
use crate::ip::{FRAGMENT_ORPHAN, Packet, Piece};
use crate::stages::context::Context;
use crate::stages::filter::fragment_table::FragmentDecision;
use crate::stages::filter::known::Judgement;
use crate::stages::filter::slow::decision::{CellPair, Decision};

impl Decision<'_> {
    fn fragment_key(&self, piece: &Piece) -> FragmentKey {
        fragment_key(self.packet, piece, self.context)
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
    pub(super) fn fragment(&self, piece: &Piece) -> Judgement {
        let key = self.fragment_key(piece);
        let Context { fragments, now, .. } = *self.context;
        let decided = fragments.later(key, *piece, now).map_err(|reason| (reason, self.own()))?;
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

pub(super) fn fragment_key(packet: &Packet, piece: &Piece, context: &Context<'_>) -> FragmentKey {
    // By incarnation, not by slot: the successor in a place does not go on with the packets of a
    // vnic.
    FragmentKey::new(&packet.tuple, piece, context.sender.vni, context.sender.place.incarnation)
}

//! Fragments through translations by ports: later ones follow the first of their packet, which
//! alone has its ports (RFC 4787, REQ-14).
//!
//! Inwards, `translate` only reads: frames that it saw may stay in their ring, wait, or be dropped.
//! Those that passed the filter are settled by `masquerade`, which remembers first fragments and
//! notes the bytes of later ones. So another worker knows of a first fragment once its decision is
//! known. Outwards all of it is `masquerade`, which is the last.

use butterfly_packet::{
    ethernet,
    translate::{self, End, Ends, ends},
};
use butterfly_vhost::ring::BATCH;

use crate::engine::{
    batch::{Batch, Verdict},
    reason::DropReason,
    reserved::TRANSLATED,
};
use crate::ip::{
    FRAGMENT_ORPHAN, FRAGMENT_OVERLAP, MALFORMED_IP, Piece, Tuple, fragments::FragmentKey,
};
use crate::stages::{
    context::Context,
    filter::read_packet,
    fragment_table::sender_of,
    translate::{NAT_FRAGMENT, packet_of},
};
use crate::world::{nat::FirstTranslation, ports::PortProtocol, rules::number};

/// Fragments of one batch.
pub(crate) struct PieceScratch {
    /// Fragments whose first ones were not translated yet, by index.
    pub early: Vec<(usize, FragmentKey)>,
    /// First fragments that came in, which are not remembered yet.
    firsts: Vec<(FragmentKey, FirstTranslation)>,
}

impl PieceScratch {
    /// Allocates all that a batch may need.
    pub fn new() -> PieceScratch {
        PieceScratch { early: Vec::with_capacity(BATCH), firsts: Vec::with_capacity(BATCH) }
    }

    /// Begins another batch.
    pub fn begin(&mut self) {
        self.firsts.clear();
        self.early.clear(); // of a batch that was cut before them
    }

    /// Notes a fragment, which may wait.
    pub(super) fn note_early(&mut self, index: usize, piece: &NatPiece) {
        if self.early.len() < BATCH {
            self.early.push((index, piece.key));
        }
    }

    /// Notes a first fragment that comes in, for the later ones of the batch.
    pub(super) fn note_first(&mut self, piece: &NatPiece, translation: FirstTranslation) {
        if self.firsts.len() < BATCH {
            self.firsts.push((piece.key, translation));
        }
    }

    /// Returns the translation of the first fragment of a packet: the last one of the batch, else
    /// the one that is remembered.
    pub(super) fn first_of(
        &self,
        piece: &NatPiece,
        context: &Context<'_>,
    ) -> Option<FirstTranslation> {
        let own = self.firsts.iter().rev().find(|(key, _)| *key == piece.key);
        own.map_or_else(|| piece.first_of(context), |(_, translation)| Some(*translation))
    }
}

/// Fragment of a packet that is translated by its ports.
pub(super) struct NatPiece {
    key: FragmentKey,
    piece: Piece,
}

impl NatPiece {
    /// Reads a fragment as it came. `None` if it is none, or its protocol has no ports that are
    /// translated.
    pub fn read(
        batch: &mut Batch<'_>,
        index: usize,
        found: &Ends,
        context: &Context<'_>,
    ) -> Result<Option<NatPiece>, DropReason> {
        if !found.fragment || found.source.is_ipv6() || PortProtocol::of(found.protocol).is_none() {
            return Ok(None);
        }
        NatPiece::read_from(batch, index, None, context).map(Some)
    }

    /// Reads a fragment, which came to the destination `came_to` if it was translated.
    fn read_from(
        batch: &mut Batch<'_>,
        index: usize,
        came_to: Option<End>,
        context: &Context<'_>,
    ) -> Result<NatPiece, DropReason> {
        let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
        let packet = read_packet(batch, index, ethernet::HEADER_LEN as u16, 0, len)?;
        let piece = packet.fragment.ok_or(MALFORMED_IP)?;
        let destination = came_to.map_or(packet.tuple.destination, |end| number(end.address));
        let tuple = Tuple { destination, ..packet.tuple };
        let key =
            FragmentKey::new(&tuple, &piece, context.sender.vni, sender_of(&tuple, context.sender));
        Ok(NatPiece { key, piece })
    }

    /// Returns whether it is the first fragment, which has the ports.
    pub fn is_first(&self) -> bool {
        self.piece.offset == 0
    }

    /// Refuses the first fragment of a packet that is under way already, which so opens nothing.
    pub fn is_new(&self, context: &Context<'_>) -> Result<(), DropReason> {
        match context.nat_fragments.value(&self.key, context.now) {
            Some(_) => Err(FRAGMENT_OVERLAP),
            None => Ok(()),
        }
    }

    /// Remembers a first fragment and its translation.
    pub fn begin(
        &self,
        translation: FirstTranslation,
        context: &Context<'_>,
    ) -> Result<(), DropReason> {
        context.nat_fragments.first(self.key, self.piece, translation, context.now)
    }

    /// Returns the translation of its first fragment, if that came.
    pub fn first_of(&self, context: &Context<'_>) -> Option<FirstTranslation> {
        context.nat_fragments.value(&self.key, context.now)
    }

    /// Notes the bytes of a later fragment, which passes.
    pub fn pass(&self, context: &Context<'_>) -> Result<FirstTranslation, DropReason> {
        let passed = context.nat_fragments.later(self.key, self.piece, context.now);
        passed.map_err(|reason| if reason == FRAGMENT_ORPHAN { NAT_FRAGMENT } else { reason })
    }
}

/// Gives a packet in fragments, which was translated, the identification of its first one.
pub(super) fn identify(
    batch: &mut Batch<'_>,
    index: usize,
    id: Option<u16>,
) -> Result<(), DropReason> {
    let Some(id) = id else { return Ok(()) };
    let packet = batch.frames.head_mut(index).get_mut(ethernet::HEADER_LEN..).unwrap_or_default();
    translate::identify(packet, id).map_err(|_| MALFORMED_IP)
}

/// Settles the fragments whose destinations were translated by ports. `passes` says whether a
/// verdict is to deliver.
#[cold]
#[inline(never)]
pub(super) fn settle(
    batch: &mut Batch<'_>,
    context: &Context<'_>,
    passes: impl Fn(Verdict) -> bool,
) {
    let pieces = batch.pieces;
    let is_piece = |index: &usize| pieces.wrapping_shr(*index as u32) & 1 == 1;
    for index in (0..batch.frames.len()).filter(is_piece) {
        let (Some(came_to), Some(meta)) = (batch.outside(index), batch.metas().get(index).copied())
        else {
            continue;
        };
        if !passes(meta.verdict) {
            continue; // as if it had not come
        }
        let router = meta.destination & !TRANSLATED;
        if let (Err(reason), Some(meta)) =
            (settle_one(batch, index, came_to, router, context), batch.parts().1.get_mut(index))
        {
            meta.verdict = Verdict::Drop(reason, context.sender.place.slot);
            meta.offload = false; // nobody will look at what it claims
        }
    }
}

fn settle_one(
    batch: &mut Batch<'_>,
    index: usize,
    came_to: End,
    router: u64,
    context: &Context<'_>,
) -> Result<(), DropReason> {
    let piece = NatPiece::read_from(batch, index, Some(came_to), context)?;
    let address = ends(packet_of(batch, index)).map_err(|_| MALFORMED_IP)?.destination;
    let address = number(address);
    match came_to.port {
        Some(port) => piece.begin(FirstTranslation { router, port, address, id: None }, context),
        None if piece.pass(context)?.address == address => Ok(()),
        None => Err(NAT_FRAGMENT), // it followed another first fragment, which was refused
    }
}

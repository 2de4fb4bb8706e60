//! Tap of one batch: notes of delivery, and the records for sinks.

use std::{cell::Cell, sync::Arc};

use arrayvec::ArrayVec;
use butterfly_mem::cpu;
use butterfly_vhost::ring::{BATCH, Frames};

use super::{
    record::{Entry, FrameFate, TapPoint, TapRecord, TapRole},
    ring::Ring,
    selection::{Selection, TapSink},
};
use crate::engine::writer::Writer;
use crate::engine::{place::PortRef, reason::DropReason};

/// Watched vnics whose refusals of one batch can be told apart.
const NOTED: usize = 512;
const _: () = assert!(BATCH <= u64::BITS as usize, "a mask has a bit for each frame");
/// Sinks that want one frame, per record.
const ENTRIES: usize = 64;
/// Bytes that are copied at once.
const PIECE: usize = 512;

/// Delivery's notes on a frame.
#[derive(Clone, Copy, Default)]
pub(crate) struct Refusals {
    pub first: Option<DropReason>,
    /// Vnics that did not get the frame, and copies for other hosts that were not sent.
    pub here: u32,
    pub away: u32,
    /// True if the frame is too big for the uplink: no host gets it.
    pub too_big: bool,
}

/// Frames that a watched vnic did not get.
#[derive(Clone, Copy)]
struct Note {
    slot: u32,
    reason: DropReason,
    /// A bit for each frame.
    frames: u64,
}

/// Delivery's notes on a batch, until they are taken. A worker has one.
pub(crate) struct TapNotes {
    frames: Box<[Cell<Refusals>]>,
    vnics: Box<[Cell<Option<Note>>]>,
    used: Cell<usize>,
    /// Time stamp counter when the batch began.
    start: Cell<u64>,
}

impl TapNotes {
    /// Begins a batch. Returns the selection, if there is one.
    #[inline(always)]
    pub fn begin<'a>(&self, selection: Option<&'a Selection>) -> Option<&'a Selection> {
        let selection = selection?;
        self.forget();
        Some(selection)
    }

    #[cold]
    fn forget(&self) {
        self.frames.iter().for_each(|refusals| refusals.set(Refusals::default()));
        self.used.set(0);
        self.start.set(cpu::tsc());
    }
}

impl Default for TapNotes {
    fn default() -> Self {
        TapNotes {
            frames: (0..BATCH).map(|_| Cell::default()).collect(),
            vnics: (0..NOTED).map(|_| Cell::default()).collect(),
            used: Cell::new(0),
            start: Cell::new(0),
        }
    }
}

/// Tap of one batch.
#[derive(Clone, Copy)]
pub(crate) struct Tap<'a> {
    selection: &'a Selection,
    /// The worker's ring; none if there are only mirrors.
    ring: Option<&'a Ring>,
    notes: &'a TapNotes,
    start: u64,
}

/// Sinks that want a frame, each with its vnic's role and refusal.
pub(crate) type Takers<'a> = ArrayVec<(&'a Arc<TapSink>, TapRole, Option<DropReason>), ENTRIES>;

impl<'a> Tap<'a> {
    /// Returns the tap of a batch that was begun.
    #[cold]
    pub fn of(selection: &'a Selection, notes: &'a TapNotes, worker: Writer<'_>) -> Tap<'a> {
        Tap {
            selection,
            ring: selection.rings.as_ref().and_then(|rings| rings.of(worker)),
            notes,
            start: notes.start.get(),
        }
    }

    /// Returns whether any sink wants records. Mirrors want none.
    pub fn records(&self) -> bool {
        self.ring.is_some()
    }

    /// Returns the time stamp counter when the batch began.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns delivery's notes on a frame.
    pub fn refusals(&self, index: usize) -> Refusals {
        self.notes.frames.get(index).map(Cell::get).unwrap_or_default()
    }

    /// Returns the selection.
    pub fn selection(&self) -> &'a Selection {
        self.selection
    }

    /// Returns whether any sink wants frames with outer headers.
    pub fn wants_outer(&self) -> bool {
        !self.selection.uplink.is_empty()
    }

    /// Notes that a frame was not delivered to the vnic in a slot.
    #[cold]
    pub fn not_delivered(&self, index: usize, slot: u32, reason: DropReason) {
        self.refuse(index, reason, |refusals| refusals.here += 1);
        if !self.selection.of_slot(slot).is_empty() || !self.selection.mirrors_of(slot).is_empty() {
            self.note(index, slot, reason);
        }
    }

    fn note(&self, index: usize, slot: u32, reason: DropReason) {
        let used = self.notes.used.get();
        let frame = 1u64.checked_shl(index as u32).unwrap_or(0);
        // Receivers have their turns one after the other.
        let last = used.checked_sub(1).and_then(|last| self.notes.vnics.get(last));
        if let Some(cell) = last
            && let Some(note) = cell.get().filter(|note| note.slot == slot && note.reason == reason)
        {
            return cell.set(Some(Note { frames: note.frames | frame, ..note }));
        }
        if let Some(cell) = self.notes.vnics.get(used) {
            cell.set(Some(Note { slot, reason, frames: frame }));
        }
        self.notes.used.set(used + 1);
    }

    /// Notes that a frame was not sent to another host.
    #[cold]
    pub fn not_sent(&self, index: usize, reason: DropReason) {
        self.refuse(index, reason, |refusals| refusals.away += 1);
    }

    /// Notes that a frame was not sent to any other host because it is too big for the uplink.
    #[cold]
    pub fn too_big(&self, index: usize, reason: DropReason) {
        self.refuse(index, reason, |refusals| {
            refusals.away += 1;
            refusals.too_big = true;
        });
    }

    fn refuse(&self, index: usize, reason: DropReason, count: impl FnOnce(&mut Refusals)) {
        if let Some(cell) = self.notes.frames.get(index) {
            let mut refusals = cell.get();
            refusals.first = refusals.first.or(Some(reason));
            count(&mut refusals);
            cell.set(refusals);
        }
    }

    /// Returns the reason for which the watched vnic in a slot did not get a frame. `Err` if there
    /// were too many refusals to note.
    pub fn refusal(&self, index: usize, slot: u32) -> Result<Option<DropReason>, ()> {
        let frame = 1u64.checked_shl(index as u32).unwrap_or(0);
        match self.notes_of(slot).find(|note| note.frames & frame != 0) {
            Some(note) => Ok(Some(note.reason)),
            None if self.notes.used.get() > NOTED => Err(()),
            None => Ok(None),
        }
    }

    fn notes_of(&self, slot: u32) -> impl Iterator<Item = Note> {
        self.notes
            .vnics
            .iter()
            .take(self.notes.used.get())
            .filter_map(Cell::get)
            .filter(move |note| note.slot == slot)
    }

    /// Returns the frames that the watched vnic in a slot did not get, a bit for each. Refusals
    /// that found no room in the notes are missing.
    pub fn refused(&self, slot: u32) -> u64 {
        self.notes_of(slot).fold(0, |frames, note| frames | note.frames)
    }

    /// Records a frame that the switch made for the vnic whose frame it answers.
    #[cold]
    pub fn answer(&self, bytes: &[u8], vni: u32, to: PortRef, reason: Option<DropReason>) {
        let mut wanted = Takers::new();
        self.whole(vni, reason, &mut wanted);
        for sink in self.selection.of_slot(to.slot).iter().filter(|sink| sink.turn()) {
            let _ = wanted.try_push((sink, TapRole::Received, reason));
        }
        let record = TapRecord {
            fate: FrameFate::Deliver,
            vni,
            to,
            reason,
            ..plain(TapPoint::Answer, cpu::tsc())
        };
        self.put_bytes(record, &mut wanted, bytes);
    }

    /// Records a frame that leaves through the uplink.
    #[cold]
    pub fn left(&self, bytes: &[u8]) {
        let mut wanted = Takers::new();
        self.uplink(&mut wanted);
        self.put_bytes(plain(TapPoint::UplinkOut, cpu::tsc()), &mut wanted, bytes);
    }

    /// Records frames that arrived on the uplink.
    #[cold]
    pub fn arrived(&self, frames: &Frames<'_>) {
        for index in 0..frames.len() {
            let mut wanted = Takers::new();
            self.uplink(&mut wanted);
            self.put(plain(TapPoint::UplinkIn, self.start), &mut wanted, frames, index);
        }
    }

    /// Records the drop of a frame from the uplink that belongs to no network yet.
    #[cold]
    pub fn outer_dropped(&self, frames: &Frames<'_>, index: usize, reason: DropReason) {
        let mut wanted = Takers::new();
        for sink in self.selection.all.iter().filter(|sink| sink.turn()) {
            let _ = wanted.try_push((sink, TapRole::Neither, Some(reason)));
        }
        let record = TapRecord {
            fate: FrameFate::Drop,
            reason: Some(reason),
            ..plain(TapPoint::UplinkIn, cpu::tsc())
        };
        self.put(record, &mut wanted, frames, index);
    }

    fn uplink(&self, wanted: &mut Takers<'a>) {
        for sink in self.selection.uplink.iter().filter(|sink| sink.turn()) {
            let _ = wanted.try_push((sink, TapRole::Neither, None));
        }
    }

    /// Adds the sinks that watch a whole network.
    pub fn whole(&self, vni: u32, reason: Option<DropReason>, wanted: &mut Takers<'a>) {
        let networks =
            self.selection.networks.iter().filter(|(of, _)| *of == vni).map(|(_, sink)| sink);
        for sink in self.selection.all.iter().chain(networks).filter(|sink| sink.turn()) {
            // There are fewer such sinks than `wanted` has room for.
            let _ = wanted.try_push((sink, TapRole::Neither, reason));
        }
    }

    /// Returns the number of bytes to copy of a frame of `len` bytes.
    fn length(wanted: &Takers<'_>, len: u32) -> u32 {
        wanted.iter().map(|(sink, ..)| sink.snap).max().unwrap_or(0).min(len)
    }

    /// Writes a record with bytes of a frame.
    pub fn put(
        &self,
        record: TapRecord,
        wanted: &mut Takers<'_>,
        frames: &Frames<'_>,
        index: usize,
    ) {
        let Some(frame) = frames.frames().get(index) else { return };
        let whole = if frame.fault.is_some() { 0 } else { frame.len };
        let record = TapRecord { len: frame.len, data: Self::length(wanted, whole), ..record };
        self.write(record, wanted, |room| {
            let mut piece = [0u8; PIECE];
            let mut at = 0;
            while at < record.data {
                let len = (record.data - at).min(PIECE as u32);
                let Some(part) = piece.get_mut(..len as usize) else { return };
                copy(frames, index, at, part);
                room.bytes(part);
                at += len;
            }
        });
    }

    fn put_bytes(&self, record: TapRecord, wanted: &mut Takers<'_>, bytes: &[u8]) {
        let len = bytes.len() as u32;
        let record = TapRecord { len, data: Self::length(wanted, len), ..record };
        self.write(record, wanted, |room| {
            room.bytes(bytes.get(..record.data as usize).unwrap_or_default())
        });
    }

    fn write(
        &self,
        record: TapRecord,
        wanted: &mut Takers<'_>,
        bytes: impl FnOnce(&mut super::ring::RecordRoom<'_>),
    ) {
        if wanted.is_empty() {
            return;
        }
        let entry = |(sink, role, reason): &(&Arc<TapSink>, TapRole, Option<DropReason>)| Entry {
            sink: sink.number,
            role: *role,
            reason: *reason,
        };
        let Some(ring) = self.ring else { return };
        match ring.room(record.words(wanted.len())) {
            Some(mut room) => {
                record.put(wanted.iter().map(entry), &mut room);
                bytes(&mut room);
                room.publish();
            }
            None => wanted.iter().for_each(|(sink, ..)| sink.lose()),
        }
        wanted.clear();
    }
}

/// Copies a range of a frame. The bytes that were judged come from the place where they were
/// judged, the rest from the sender's memory.
fn copy(frames: &Frames<'_>, index: usize, from: u32, to: &mut [u8]) {
    let head = frames.head(index);
    let judged = head.get(from as usize..).unwrap_or_default();
    let n = judged.len().min(to.len());
    if let (Some((front, back)), Some(judged)) = (to.split_at_mut_checked(n), judged.get(..n)) {
        front.copy_from_slice(judged);
        if !back.is_empty() && !frames.copy_to(index, from + n as u32, back, None) {
            back.fill(0);
        }
    }
}

pub(crate) fn plain(point: TapPoint, time: u64) -> TapRecord {
    let nobody = PortRef { slot: u32::MAX, incarnation: 0 };
    TapRecord {
        time,
        point,
        vni: 0,
        from: nobody,
        peer: 0,
        fate: FrameFate::Open,
        to: nobody,
        to_peer: 0,
        reason: None,
        len: 0,
        data: 0,
        cells: [0, 0],
        session: false,
        reply: false,
        cycles: 0,
        delivered: 0,
        refused: 0,
    }
}

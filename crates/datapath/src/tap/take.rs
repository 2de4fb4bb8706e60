//! What a worker does with a batch that somebody watches: once, when every verdict is known and
//! before the sender has its frames back.

use std::{cell::Cell, sync::Arc};

use arrayvec::ArrayVec;
use butterfly_vhost::{
    cpu,
    ring::{BATCH, Frames},
};

use super::{
    TapPoint, TapRole, TapSink,
    record::{Entry, Fate, Record},
    ring::Ring,
    selection::Selection,
};
use crate::{
    batch::{Batch, Context, Meta, Verdict},
    filter::{Room, admits_flooded, session_of},
    port::PortRef,
    reason::DropReason,
    snapshot::Snapshot,
    tunnel::{TOO_BIG, UPLINK},
};

/// Vnics that are watched whose refusals of one batch can be told apart.
const NOTED: usize = 512;
const _: () = assert!(BATCH <= u64::BITS as usize, "a mask has a bit for each frame");
/// Those who want one frame, per record.
const ENTRIES: usize = 64;
/// Bytes that are copied at once.
const PIECE: usize = 512;

/// What delivery found out about a frame.
#[derive(Clone, Copy, Default)]
struct Refusals {
    first: Option<DropReason>,
    /// Vnics that did not get it, and copies for other hosts.
    here: u32,
    away: u32,
    /// Too big for the uplink: no host gets it.
    too_big: bool,
}

/// A vnic that is watched did not get some frames.
#[derive(Clone, Copy)]
struct Note {
    slot: u32,
    reason: DropReason,
    /// A bit for each.
    frames: u64,
}

/// What delivery finds out, until it is taken. A worker has one.
pub(crate) struct Notes {
    frames: Box<[Cell<Refusals>]>,
    vnics: Box<[Cell<Option<Note>>]>,
    used: Cell<usize>,
    /// Time stamp counter when the batch began.
    start: Cell<u64>,
}

impl Notes {
    /// A batch begins. What is watched, if anything is.
    #[inline(always)]
    pub fn begin<'a>(&self, snapshot: &'a Snapshot) -> Option<&'a Selection> {
        let selection = snapshot.selection.as_deref()?;
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

impl Default for Notes {
    fn default() -> Self {
        Notes {
            frames: (0..BATCH).map(|_| Cell::default()).collect(),
            vnics: (0..NOTED).map(|_| Cell::default()).collect(),
            used: Cell::new(0),
            start: Cell::new(0),
        }
    }
}

/// What one batch is watched with.
#[derive(Clone, Copy)]
pub(crate) struct Tap<'a> {
    selection: &'a Selection,
    /// There is none if mirrors are all that watches.
    ring: Option<&'a Ring>,
    notes: &'a Notes,
    start: u64,
}

/// Who wants a frame.
type Wanted<'a> = ArrayVec<(&'a Arc<TapSink>, TapRole, Option<DropReason>), ENTRIES>;

impl<'a> Tap<'a> {
    /// For a batch that was begun.
    #[cold]
    pub fn of(selection: &'a Selection, notes: &'a Notes, worker: usize) -> Tap<'a> {
        Tap {
            selection,
            ring: selection.rings.get(worker).map(|ring| &**ring),
            notes,
            start: notes.start.get(),
        }
    }

    /// What is watched.
    pub fn selection(&self) -> &'a Selection {
        self.selection
    }

    /// Whether anybody wants frames with outer headers.
    pub fn wants_outer(&self) -> bool {
        !self.selection.uplink.is_empty()
    }

    /// A frame was not delivered to the vnic in a slot.
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

    /// A frame was not sent to another host.
    #[cold]
    pub fn not_sent(&self, index: usize, reason: DropReason) {
        self.refuse(index, reason, |refusals| {
            refusals.away += 1;
            refusals.too_big |= reason == TOO_BIG;
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

    /// Why the watched vnic in a slot did not get a frame. `Err`: there were too many to know.
    fn refusal(&self, index: usize, slot: u32) -> Result<Option<DropReason>, ()> {
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

    /// The frames that the watched vnic in a slot did not get, a bit for each. What could not be
    /// noted is none of them.
    pub fn refused(&self, slot: u32) -> u64 {
        self.notes_of(slot).fold(0, |frames, note| frames | note.frames)
    }

    /// Copies what is wanted of a batch.
    #[cold]
    #[inline(never)]
    pub fn take(&self, batch: &Batch<'_>, context: &Context<'_>, room: &Room) {
        if self.ring.is_none() {
            return;
        }
        let now = cpu::tsc();
        let cycles = now.wrapping_sub(self.start) / batch.frames.len().max(1) as u64;
        let frame = Taken {
            tap: self,
            batch,
            context,
            room,
            now,
            cycles: u32::try_from(cycles).unwrap_or(u32::MAX),
        };
        // What waits is told about when it goes.
        for (index, meta) in
            batch.metas().iter().enumerate().filter(|(_, meta)| meta.verdict != Verdict::Later)
        {
            frame.one(index, meta);
        }
    }

    /// A frame that the switch made for the vnic whose frame it answers.
    #[cold]
    pub fn answer(&self, bytes: &[u8], context: &Context<'_>, reason: Option<DropReason>) {
        let to = context.sender.place;
        let mut wanted = Wanted::new();
        let vni = context.sender.vni;
        self.whole(vni, reason, &mut wanted);
        for sink in self.selection.of_slot(to.slot).iter().filter(|sink| sink.turn()) {
            let _ = wanted.try_push((sink, TapRole::Received, reason));
        }
        let record =
            Record { fate: Fate::Deliver, vni, to, reason, ..plain(TapPoint::Answer, cpu::tsc()) };
        self.put_bytes(record, &mut wanted, bytes);
    }

    /// A frame as it leaves through the uplink.
    #[cold]
    pub fn left(&self, bytes: &[u8]) {
        let mut wanted = Wanted::new();
        self.uplink(&mut wanted);
        self.put_bytes(plain(TapPoint::UplinkOut, cpu::tsc()), &mut wanted, bytes);
    }

    /// Frames as they arrived on the uplink.
    #[cold]
    pub fn arrived(&self, frames: &Frames<'_>) {
        for index in 0..frames.len() {
            let mut wanted = Wanted::new();
            self.uplink(&mut wanted);
            self.put(plain(TapPoint::UplinkIn, self.start), &mut wanted, frames, index);
        }
    }

    /// A frame from the uplink was dropped before it was any network's.
    #[cold]
    pub fn outer_dropped(&self, frames: &Frames<'_>, index: usize, reason: DropReason) {
        let mut wanted = Wanted::new();
        for sink in self.selection.all.iter().filter(|sink| sink.turn()) {
            let _ = wanted.try_push((sink, TapRole::Neither, Some(reason)));
        }
        let record = Record {
            fate: Fate::Drop,
            reason: Some(reason),
            to: UPLINK,
            ..plain(TapPoint::UplinkIn, cpu::tsc())
        };
        self.put(record, &mut wanted, frames, index);
    }

    fn uplink(&self, wanted: &mut Wanted<'a>) {
        for sink in self.selection.uplink.iter().filter(|sink| sink.turn()) {
            let _ = wanted.try_push((sink, TapRole::Neither, None));
        }
    }

    /// Those who watch a whole network.
    fn whole(&self, vni: u32, reason: Option<DropReason>, wanted: &mut Wanted<'a>) {
        let networks =
            self.selection.networks.iter().filter(|(of, _)| *of == vni).map(|(_, sink)| sink);
        for sink in self.selection.all.iter().chain(networks).filter(|sink| sink.turn()) {
            // There are fewer than have room.
            let _ = wanted.try_push((sink, TapRole::Neither, reason));
        }
    }

    /// How much of a frame of `len` bytes is copied.
    fn length(wanted: &Wanted<'_>, len: u32) -> u32 {
        wanted.iter().map(|(sink, ..)| sink.snap).max().unwrap_or(0).min(len)
    }

    /// Writes a record with bytes of a frame.
    fn put(&self, record: Record, wanted: &mut Wanted<'_>, frames: &Frames<'_>, index: usize) {
        let Some(frame) = frames.frames().get(index) else { return };
        let whole = if frame.fault.is_some() { 0 } else { frame.len };
        let record = Record { len: frame.len, data: Self::length(wanted, whole), ..record };
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

    fn put_bytes(&self, record: Record, wanted: &mut Wanted<'_>, bytes: &[u8]) {
        let len = bytes.len() as u32;
        let record = Record { len, data: Self::length(wanted, len), ..record };
        self.write(record, wanted, |room| {
            room.bytes(bytes.get(..record.data as usize).unwrap_or_default())
        });
    }

    fn write(
        &self,
        record: Record,
        wanted: &mut Wanted<'_>,
        bytes: impl FnOnce(&mut super::ring::Room<'_>),
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

/// Copies a range of a frame: what was judged from where it was judged, the rest from the sender's
/// memory.
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

fn plain(point: TapPoint, time: u64) -> Record {
    let nobody = PortRef { slot: u32::MAX, incarnation: 0 };
    Record {
        time,
        point,
        vni: 0,
        from: nobody,
        peer: 0,
        fate: Fate::Open,
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

/// A batch that is being taken.
struct Taken<'t, 'a, 'b> {
    tap: &'t Tap<'a>,
    batch: &'t Batch<'b>,
    context: &'t Context<'t>,
    room: &'t Room,
    now: u64,
    cycles: u32,
}

impl<'a> Taken<'_, 'a, '_> {
    fn one(&self, index: usize, meta: &Meta) {
        let (tap, sender) = (self.tap, self.context.sender);
        let refusals = tap.notes.frames.get(index).map(Cell::get).unwrap_or_default();
        let (to, reason) = match meta.verdict {
            Verdict::Drop(reason, slot) => (Some(slot), Some(reason)),
            Verdict::Deliver(slot) => (Some(slot), refusals.first),
            Verdict::Tunnel(_) => (None, refusals.first),
            Verdict::Flood { .. } | Verdict::Undecided | Verdict::Later => (None, None),
        };
        let mut wanted = Wanted::new();
        tap.whole(sender.vni, reason, &mut wanted);
        for sink in tap.selection.of_slot(sender.place.slot).iter().filter(|sink| sink.turn()) {
            let _ = wanted.try_push((sink, TapRole::Sent, reason));
        }
        if let Some(to) = to.filter(|to| *to != sender.place.slot) {
            for sink in tap.selection.of_slot(to).iter().filter(|sink| sink.turn()) {
                let _ = wanted.try_push((sink, TapRole::Received, reason));
            }
        }
        let flood = match meta.verdict {
            Verdict::Flood { unknown } => Some(unknown),
            _ => None,
        };
        if wanted.is_empty() && (flood.is_none() || !tap.selection.any_slot()) {
            return;
        }
        let mut record = self.record(index, meta, to, reason);
        if let Some(unknown) = flood {
            self.flooded(index, unknown, &mut record, &mut wanted);
        }
        tap.put(record, &mut wanted, &self.batch.frames, index);
    }

    fn record(
        &self,
        index: usize,
        meta: &Meta,
        to: Option<u32>,
        reason: Option<DropReason>,
    ) -> Record {
        let context = self.context;
        let place = |slot: u32| {
            let vnic = context.snapshot.vnics.get(slot);
            vnic.map_or(PortRef { slot, incarnation: 0 }, |vnic| vnic.place)
        };
        let (fate, to_peer) = match meta.verdict {
            Verdict::Deliver(_) => (Fate::Deliver, 0),
            Verdict::Tunnel(peer) => (Fate::Tunnel, peer.0),
            Verdict::Flood { .. } => (Fate::Flood, 0),
            Verdict::Drop(..) => (Fate::Drop, 0),
            Verdict::Undecided | Verdict::Later => (Fate::Open, 0),
        };
        let mut record = Record {
            vni: context.sender.vni,
            from: context.sender.place,
            peer: if context.sender.trunk { meta.peer.0 } else { 0 },
            fate,
            to_peer,
            reason,
            cycles: self.cycles,
            ..plain(TapPoint::Network, self.now)
        };
        if let Some(to) = to {
            record.to = place(to);
        }
        if let Some((cells, reply)) = session_of(self.batch, index, context) {
            (record.cells, record.session, record.reply) = (cells, true, reply);
        }
        record
    }

    /// Who got a flood, and who did not. Those who watch receivers are told what became of theirs.
    fn flooded(&self, index: usize, unknown: bool, record: &mut Record, wanted: &mut Wanted<'a>) {
        let (tap, context) = (self.tap, self.context);
        let refusals = tap.notes.frames.get(index).map(Cell::get).unwrap_or_default();
        let away = context.remote().map_or(0, |remote| remote.peers.len().max(1) as u32);
        record.to.slot = if refusals.too_big { 0 } else { away.saturating_sub(refusals.away) };
        record.reason = refusals.first;
        let (mut offered, mut denied) = (0, 0);
        // Counted before anybody is told: the record may go out in parts.
        for (_, judgement) in self.receivers(index, unknown) {
            offered += 1;
            if let Err((reason, _)) = judgement {
                denied += 1;
                record.reason = record.reason.or(Some(reason));
            }
        }
        record.refused = denied + refusals.here + refusals.away;
        record.delivered = (offered - denied).saturating_sub(refusals.here);
        if !tap.selection.any_slot() {
            return;
        }
        for (slot, judgement) in self.receivers(index, unknown) {
            for sink in tap.selection.of_slot(slot).iter().filter(|sink| sink.turn()) {
                let reason = match judgement {
                    Err((reason, _)) => Ok(Some(reason)),
                    Ok(()) => tap.refusal(index, slot),
                };
                let Ok(reason) = reason else {
                    sink.lose();
                    continue;
                };
                if wanted.is_full() {
                    tap.put(*record, wanted, &self.batch.frames, index);
                }
                let _ = wanted.try_push((sink, TapRole::Received, reason));
            }
        }
    }

    /// The vnics that a flood is for, and what their policy says.
    fn receivers(
        &self,
        index: usize,
        unknown: bool,
    ) -> impl Iterator<Item = (u32, Result<(), (DropReason, u32)>)> {
        let context = self.context;
        let vnics =
            context.network.members.iter().filter_map(|slot| context.snapshot.vnics.get(*slot));
        let receivers = vnics.filter(move |vnic| {
            vnic.place != context.sender.place && (vnic.rules.bypass || !unknown)
        });
        receivers
            .map(move |vnic| (vnic.place.slot, admits_flooded(self.room, index, vnic, context)))
    }
}

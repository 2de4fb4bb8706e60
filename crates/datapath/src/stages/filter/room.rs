//! A worker's room for filtering one batch, and its memory from one batch to the next.
//!
//! Other workers may judge frames of the same sessions meanwhile. So what a batch changes in a
//! session is noted in a copy, which is merged into its record when the batch is judged: see
//! [`crate::session::Record::settle`].

use butterfly_vhost::ring::BATCH;

use crate::engine::reason::DropReason;
use crate::ip::{
    Packet, Tuple,
    fragments::FragmentKey,
    tcp::{Segment, Track},
};
use crate::session::{
    BatchChanges, FIRST_NOT_TCP, Found, Key, NO_TRACK, Timeouts, Zone, is_unsettled,
};
use crate::stages::context::Context;

/// Path by which a frame's session is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Path {
    /// Nothing to decide, or decided.
    Done,
    /// Plain TCP or UDP: the key is known.
    Fast,
    /// To be parsed.
    Slow,
}

/// Facts about a frame between the passes.
#[derive(Clone, Copy)]
pub(crate) struct Flow {
    pub path: Path,
    pub tcp: bool,
    pub receiver: u32,
    pub hash: u64,
    pub candidate: Option<u32>,
    pub key: Key,
    pub segment: Segment,
}

/// A flood, for those of its receivers that are filtered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Flooded {
    /// Not IP, so not for the filter to decide.
    NotIp,
    Packet(Packet),
    /// A DHCP answer, and the slot of the vnic that asked. That vnic needs no rule for it.
    Answer(Packet, u32),
    /// Not for any filtered vnic.
    Unreadable(DropReason),
}

/// Decision on a flood, and the version of its snapshot. With another version the flood is decided
/// again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judged {
    pub(super) flooded: Flooded,
    pub(super) version: u32,
}

/// The room.
pub(crate) struct FilterRoom {
    pub(super) flows: Box<[Flow; BATCH]>,
    pub(super) notes: SessionNotes,
    /// Floods of this batch.
    pub(super) flooded: Box<[Flooded; BATCH]>,
    /// Set if some receivers have the first frame, a flood, already. The decision then holds, and
    /// its cost is paid.
    pub judged: Option<Judged>,
    /// Fragments of this batch whose first ones have not come yet, by index.
    pub early: Vec<(usize, FragmentKey)>,
}

impl FilterRoom {
    /// Returns the decision on the first frame, a flood.
    pub fn first_flood(&self, version: u32) -> Option<Judged> {
        self.flooded.first().map(|flooded| Judged { flooded: *flooded, version })
    }

    /// Notes a fragment whose first one has not come yet.
    pub(super) fn note_early(&mut self, index: usize, key: FragmentKey) {
        if self.early.len() < BATCH {
            self.early.push((index, key));
        }
    }

    /// Allocates everything.
    pub fn new(timeouts: &Timeouts) -> FilterRoom {
        let tuple = Tuple {
            source: 0,
            destination: 0,
            source_port: 0,
            destination_port: 0,
            vlan: 0,
            protocol: 0,
        };
        let segment = Segment {
            sequence: 0,
            acknowledgement: 0,
            window: 0,
            length: 0,
            flags: 0,
            scale: None,
        };
        let flow = Flow {
            path: Path::Done,
            tcp: false,
            receiver: 0,
            hash: 0,
            candidate: None,
            key: Key::new(&tuple, Zone::of(0), 0, 0),
            segment,
        };
        FilterRoom {
            flows: Box::new([flow; BATCH]),
            notes: SessionNotes::new(timeouts),
            flooded: Box::new([Flooded::NotIp; BATCH]),
            judged: None,
            early: Vec::with_capacity(BATCH),
        }
    }

    /// Uses other time-outs from now on, also for what is known already.
    pub fn retime(&mut self, timeouts: &Timeouts) {
        self.notes.timeouts = lasting(timeouts);
    }
}

/// A session's changes by a batch, before they are written to its record.
#[derive(Clone, Copy)]
pub(super) struct Note {
    /// The session: see [`Found::session`].
    session: u64,
    direction: u16,
    pub packets: u32,
    /// Number of its state, as this batch left it.
    pub state: u8,
    /// True if a frame came that keeps it alive.
    pub refreshed: bool,
    /// True if the TCP marks differ from those that were copied.
    pub moved: bool,
    /// True if each segment is judged by the record, and changes it at once: see [`is_unsettled`].
    pub unsettled: bool,
    pub bytes: u64,
}

impl Note {
    /// Returns whether it is about the session in a record.
    fn is_of(&self, index: u32) -> bool {
        self.session as u32 == index && self.session != NOBODY
    }
}

/// Changes of sessions by a batch. Each is written once, when the batch is judged.
pub(super) struct SessionNotes {
    notes: Box<[Note; BATCH]>,
    /// TCP marks of the note of the same number, if it is about TCP.
    tracks: Box<[Track; BATCH]>,
    count: usize,
    /// Number of a session's note plus one, by the low bits of its index.
    places: [u8; PLACES],
    /// Seconds that each state lasts, by number.
    timeouts: [i32; 32],
}

fn lasting(timeouts: &Timeouts) -> [i32; 32] {
    timeouts.by_number().map(|seconds| i32::try_from(seconds).unwrap_or(i32::MAX))
}

const PLACES: usize = 128;
const NOBODY: u64 = u64::MAX;

impl SessionNotes {
    fn new(timeouts: &Timeouts) -> SessionNotes {
        let note = Note {
            session: NOBODY,
            direction: 0,
            packets: 0,
            state: 0,
            refreshed: false,
            moved: false,
            unsettled: false,
            bytes: 0,
        };
        SessionNotes {
            notes: Box::new([note; BATCH]),
            tracks: Box::new([NO_TRACK; BATCH]),
            count: 0,
            places: [0; PLACES],
            timeouts: lasting(timeouts),
        }
    }

    /// Returns the note about a session; `None` if the session is over.
    #[inline(always)]
    pub fn of(&mut self, found: &Found, context: &Context<'_>) -> Option<(&mut Note, &mut Track)> {
        let place = found.session as usize % PLACES;
        let known = self.places.get(place).map_or(0, |at| usize::from(*at)).wrapping_sub(1);
        let at = match self.notes.get(known) {
            Some(note) if note.session == found.session => known,
            _ => self.first(found, place, context)?,
        };
        // A remainder by the length is an index: the compiler knows.
        #[allow(clippy::indexing_slicing)]
        Some((&mut self.notes[at % BATCH], &mut self.tracks[at % BATCH]))
    }

    #[inline(always)]
    fn first(&mut self, found: &Found, place: usize, context: &Context<'_>) -> Option<usize> {
        let Found { direction, session, .. } = *found;
        let record = context.table.record(session as u32);
        let (seen, state, word) = record.seen_first();
        // Below zero if it was seen by a worker whose clock is ahead.
        let idle = context.now.wrapping_sub(seen) as i32;
        if idle > self.timeouts.get(usize::from(state % 32)).copied().unwrap_or(0) {
            return None;
        }
        if self.count == BATCH {
            self.flush_now(context);
        }
        let at = self.count;
        self.count += 1;
        let other =
            self.places.get_mut(place).map_or(0, |place| std::mem::replace(place, at as u8 + 1));
        if let Some(other) = usize::from(other).checked_sub(1) {
            // The other session starts from its record again when it comes back in this batch. So
            // its note is written now.
            self.write_now(other, context);
        }
        // A remainder by the length is an index: the compiler knows.
        #[allow(clippy::indexing_slicing)]
        let (note, track) = (&mut self.notes[at % BATCH], &mut self.tracks[at % BATCH]);
        let mut unsettled = false;
        if state < FIRST_NOT_TCP {
            *track = record.track_since(word);
            unsettled = is_unsettled(track);
        }
        // Another worker gave the record to another session meanwhile. No session has the note.
        if !record.still_has(found.tenant()) {
            return None;
        }
        *note = Note {
            session,
            direction: direction as u16,
            packets: 0,
            state,
            refreshed: false,
            moved: false,
            unsettled,
            bytes: 0,
        };
        Some(at)
    }

    /// Writes what the batch changed: once per session.
    #[inline(always)]
    pub fn flush(&mut self, context: &Context<'_>) {
        for at in 0..self.count {
            self.write(at, context);
        }
        if self.count > 0 {
            self.count = 0;
            self.places = [0; PLACES];
        }
    }

    /// Flushes in the middle of a batch.
    #[cold]
    #[inline(never)]
    fn flush_now(&mut self, context: &Context<'_>) {
        self.flush(context);
    }

    /// Writes in the middle of a batch.
    #[cold]
    #[inline(never)]
    fn write_now(&mut self, at: usize, context: &Context<'_>) {
        self.write(at, context);
    }

    #[inline(always)]
    fn write(&mut self, at: usize, context: &Context<'_>) {
        let (Some(note), Some(track)) = (self.notes.get_mut(at), self.tracks.get(at)) else {
            return;
        };
        if note.session == NOBODY {
            return;
        }
        // Nothing changed if all its frames were refused.
        if note.packets > 0 {
            let changes = || BatchChanges {
                direction: note.direction.into(),
                packets: note.packets.into(),
                bytes: note.bytes,
                track: note.moved.then_some(track),
                seen: note.refreshed.then_some((context.now, note.state)),
            };
            let tenant = (note.session >> 48) as u16;
            context.table.record(note.session as u32).settle(tenant, changes);
        }
        note.session = NOBODY;
    }

    /// Writes and forgets the note on a session, as its record may soon be another session's.
    pub fn forget(&mut self, index: u32, context: &Context<'_>) {
        if let Some(place) = self.places.get(index as usize % PLACES)
            && let Some(at) = usize::from(*place).checked_sub(1)
            && self.notes.get(at).is_some_and(|note| note.is_of(index))
        {
            self.write(at, context);
        }
    }

    /// Forgets the note on a session that another one has replaced in its record.
    pub fn forget_evicted(&mut self, index: u32) {
        for note in self.notes.iter_mut().take(self.count).filter(|note| note.is_of(index)) {
            note.session = NOBODY;
        }
    }
}

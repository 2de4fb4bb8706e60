//! Packed virtqueues (virtio 1.2, 2.8): one ring of descriptors, in which the device overwrites
//! what it used.
//!
//! A chain is known when all its descriptors were looked at, once: so its number of descriptors,
//! which says where the next one begins, stays what it was, whatever the guest stores. Used entries
//! are kept until they are published; each of them is seen by the guest as soon as it is stored.

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering, fence},
};

use butterfly_point::{Point, pass};

use super::{
    door::{Door, PackedRing},
    note::{FRESH, Listed, MOST, Note},
    space::{
        BadChain, CHAIN_BUDGET, Chains, DESC_LEN, Desc, MAX_SIZE, RingError, RingSetup, Space,
    },
};
use crate::net::Features;

/// Chains that are looked for at a time: a batch of frames.
const LOOK: u16 = 64;

const FLAG_WRITE: u64 = 1 << 49;
const FLAG_AVAIL: u64 = 1 << 55;
const FLAG_USED: u64 = 1 << 63;

/// Event suppression (virtio 1.2, 2.8.10), as flags of the structure's 32 bits.
const DISABLE: u32 = 1 << 16;
const AT_DESCRIPTOR: u32 = 2 << 16;

/// A place in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    index: u16,
    /// The wrap counter: what a descriptor's flag AVAIL is in this lap.
    lap: bool,
}

impl Place {
    fn from_position(position: u16) -> Place {
        Place { index: position & !FRESH, lap: position & FRESH != 0 }
    }

    fn position(self) -> u16 {
        self.index | if self.lap { FRESH } else { 0 }
    }

    /// The place so many descriptors further, at most one lap.
    #[inline(always)]
    fn after(self, descriptors: u16, size: u16) -> Place {
        let index = u32::from(self.index) + u32::from(descriptors);
        match index.checked_sub(u32::from(size)) {
            Some(index) => Place { index: index as u16, lap: !self.lap },
            None => Place { index: index as u16, lap: self.lap },
        }
    }
}

/// True if a descriptor with these flags is available in a lap.
#[inline(always)]
fn is_available(rest: u64, lap: bool) -> bool {
    (rest & FLAG_AVAIL != 0) == lap && (rest & FLAG_USED != 0) != lap
}

/// A used entry.
#[inline(always)]
fn used_entry(id: u16, len: u32, lap: bool) -> u64 {
    let lap = if lap { FLAG_AVAIL | FLAG_USED } else { 0 };
    let written = if len > 0 { FLAG_WRITE } else { 0 };
    u64::from(len) | u64::from(id) << 32 | written | lap
}

/// A chain that is known and not published.
#[derive(Clone, Copy)]
struct Known {
    place: Place,
    /// Number of its descriptors.
    descriptors: u16,
    /// Id, which its last descriptor has.
    id: u16,
    /// Length, id and flags of its first descriptor.
    first: u64,
    /// Bytes that were written into it.
    len: u32,
    /// The next chain belongs to the same frame.
    more: bool,
}

const NOBODY: Known = Known {
    place: Place { index: 0, lap: true },
    descriptors: 0,
    id: 0,
    first: 0,
    len: 0,
    more: false,
};

/// A packed ring: its place, and what is known of it.
pub(super) struct Packed {
    ring: PackedRing,
    driver: NonNull<u8>,
    event_idx: bool,
    note: Note,
    /// Chains by number, modulo the length of this.
    chains: Box<[Known]>,
    /// Most of them.
    most: u16,
    /// Number of the first chain that is not published, and its place.
    published: u16,
    here: Place,
    /// Place up to which the guest was told.
    told: Place,
    /// Place of the next descriptor that is looked at.
    scan: Place,
    /// The chain that it belongs to, if that was begun.
    begun: Known,
    /// The driver's event suppression when the device passed the place that it names: the driver
    /// may leave it there for laps.
    passed: u32,
    /// The device's event suppression as it was stored last.
    suppressed: Option<u32>,
}

impl Packed {
    /// Checks a setup. The ring is at its beginning.
    pub fn new(setup: &RingSetup, note: Note) -> Result<Packed, RingError> {
        let size = setup.size;
        if size == 0 || size > MAX_SIZE {
            return Err(RingError::PackedSize(size));
        }
        let place = |what, addr, len, align| {
            setup.memory.ring_span(addr, len, align).map(|s| s.ptr).ok_or(RingError::Place(what))
        };
        // The specification wants 16 for the ring; a front end's mapping may be less, and words
        // need 8.
        let ring = place("descriptor", setup.desc, DESC_LEN * u32::from(size), 8)?;
        let driver = place("driver's event", setup.avail, 4, 4)?;
        let device = place("device's event", setup.used, 4, 4)?;
        let most = size.min(CHAIN_BUDGET as u16);
        let here = Place::from_position(FRESH);
        Ok(Packed {
            // SAFETY: as many bytes as were checked above, in memory that is kept as long as this.
            ring: unsafe { PackedRing::new((ring, setup.desc), size, (device, setup.used)) },
            driver,
            event_idx: setup.features.has(Features::EVENT_IDX),
            note,
            chains: vec![NOBODY; usize::from(most).next_power_of_two()].into_boxed_slice(),
            most,
            published: 0,
            here,
            told: here,
            scan: here,
            begun: NOBODY,
            passed: 0,
            suppressed: None,
        })
    }

    /// Goes to where the last device stopped, as the note says; without one to `base`. A frame over
    /// several chains that was shown in parts is completed. Returns the position.
    pub fn resume(&mut self, door: &Door, base: u16) -> Result<u16, RingError> {
        let here = if self.note.is_begun() {
            self.walk_note(door).ok_or(RingError::Lost)?
        } else {
            let base = Place::from_position(base);
            if base.index >= self.ring.size() {
                return Err(RingError::Position(base.index, self.ring.size()));
            }
            base
        };
        self.note.begin(here.position());
        (self.here, self.told, self.scan) = (here, here, here);
        Ok(here.position())
    }

    /// The first chain of the noted run that is not used; the place behind it, if all are.
    ///
    /// A chain that is not available in its lap was used: perhaps the guest has made it available
    /// in the next lap since.
    fn walk_note(&self, door: &Door) -> Option<Place> {
        let size = self.ring.size();
        let run = self.note.run()?;
        let mut at = Place::from_position(run.position);
        let mut left = size;
        if at.index >= size {
            return None;
        }
        // Checked before anything is stored: chains of one lap.
        let mut chains = Vec::with_capacity(usize::from(run.chains));
        for index in 0..run.chains {
            let chain = self.note.listed(run, index);
            left = left.checked_sub(chain.descriptors).filter(|_| chain.descriptors > 0)?;
            chains.push((at, chain));
            at = at.after(chain.descriptors, size);
        }
        let is_used = |at: Place| !is_available(self.ring.rest(at.index), at.lap);
        let mut frames = chains.as_slice();
        while let Some((first, _)) = frames.first() {
            let more = frames.iter().take_while(|(_, chain)| chain.more).count();
            let (frame, others) = frames.split_at((more + 1).min(frames.len()));
            let further = frame.get(1..)?;
            if !is_used(*first) {
                if !further.iter().any(|(at, _)| is_used(*at)) {
                    return Some(*first);
                }
                for (at, chain) in further.iter().chain(frame.first()) {
                    self.ring.used(door, at.index, used_entry(chain.id, chain.len, at.lap));
                }
            }
            frames = others;
        }
        Some(at)
    }

    /// Goes on where another one stands that is for the same ring.
    pub fn go_on_for(&mut self, old: &Packed) -> Result<(), RingError> {
        if old.here.index >= self.ring.size() || old.told.index >= self.ring.size() {
            return Err(RingError::Position(old.here.index, self.ring.size()));
        }
        (self.here, self.told, self.scan) = (old.here, old.told, old.here);
        Ok(())
    }

    pub fn size(&self) -> u16 {
        self.ring.size()
    }

    pub fn most_known(&self) -> u16 {
        self.most
    }

    /// Position of the first chain that is not used.
    pub fn position(&self) -> u16 {
        self.here.position()
    }

    /// Position so many descriptors further.
    pub fn after(&self, descriptors: u16) -> u16 {
        self.here.after(descriptors, self.size()).position()
    }

    #[inline(always)]
    fn known(&self, number: u16) -> Known {
        let at = usize::from(number) & self.chains.len().wrapping_sub(1);
        self.chains.get(at).copied().unwrap_or(NOBODY)
    }

    #[inline(always)]
    fn known_mut(&mut self, number: u16) -> Option<&mut Known> {
        let at = usize::from(number) & self.chains.len().wrapping_sub(1);
        self.chains.get_mut(at)
    }

    /// Number of descriptors of a chain.
    pub fn descriptors(&self, head: u16) -> u16 {
        self.known(head).descriptors
    }

    #[inline(always)]
    fn is_available(&self, at: Place) -> bool {
        is_available(self.ring.rest(at.index), at.lap)
    }

    /// True if the guest has made a descriptor available that is not used.
    pub fn has_entries(&self) -> bool {
        self.is_available(self.here)
    }

    /// Number of descriptors that are available and not used. A driver makes them available one
    /// behind the other, so not all of them are looked at.
    pub fn waiting(&self) -> u16 {
        let size = self.size();
        let (mut least, mut most) = (0, size);
        while least < most {
            let middle = least + (most - least).div_ceil(2);
            match self.is_available(self.here.after(middle - 1, size)) {
                true => least = middle,
                false => most = middle - 1,
            }
        }
        least
    }

    /// True if the device has all descriptors, so the guest has none.
    pub fn has_all_entries(&self) -> bool {
        self.is_available(self.here.after(self.size() - 1, self.size()))
    }

    /// Looks at descriptors that were not looked at, at most `budget`, and up to a batch of chains.
    /// `known` chains are not taken, up to the number `until`. Returns up to which they are known
    /// then; `None` for a chain that has no end.
    #[inline(never)]
    pub fn scan(&mut self, until: u16, known: u16, mut budget: u32) -> Option<u16> {
        let mut number = until;
        let room = self.most.saturating_sub(until.wrapping_sub(self.published));
        let wanted = LOOK.saturating_sub(known).max(1).min(room);
        let last = number.wrapping_add(wanted);
        while number != last && budget > 0 {
            let rest = self.ring.rest(self.scan.index);
            if self.begun.descriptors == 0 {
                if !is_available(rest, self.scan.lap) {
                    break;
                }
                self.begun = Known { place: self.scan, first: rest, ..NOBODY };
            }
            budget -= 1;
            self.begun.descriptors += 1;
            self.scan = self.scan.after(1, self.ring.size());
            if Desc::packed(0, rest).has_next() {
                if self.begun.descriptors >= self.most {
                    return None;
                }
                continue;
            }
            self.begun.id = (rest >> 32) as u16;
            let begun = std::mem::replace(&mut self.begun, NOBODY);
            if let Some(known) = self.known_mut(number) {
                *known = begun;
            }
            number = number.wrapping_add(1);
        }
        Some(number)
    }

    /// Notes that a chain is used, with so many bytes in it. With `more`, the next one belongs to
    /// the same frame.
    #[inline]
    pub fn push_used(&mut self, number: u16, len: u32, more: bool) {
        if let Some(known) = self.known_mut(number) {
            (known.len, known.more) = (len, more);
        }
    }

    /// Notes that chains from this number on are used, with nothing in them.
    #[inline(never)]
    pub fn push_unused(&mut self, first: u16, count: u16) {
        for n in 0..count {
            if let Some(known) = self.known_mut(first.wrapping_add(n)) {
                (known.len, known.more) = (0, false);
            }
        }
    }

    /// Stores the used entries of all chains up to this number.
    #[inline(never)]
    pub fn publish(&mut self, door: &Door, until: u16) {
        while self.published != until {
            let run = self.next_run(until);
            pass(Point::PackedNoted);
            self.publish_run(door, run);
        }
    }

    /// Notes the next run: whole frames, at most [`MOST`] chains. Returns their number.
    #[inline(always)]
    fn next_run(&mut self, until: u16) -> u16 {
        let (mut count, mut whole, mut singles) = (0u16, 0, true);
        while count < MOST && self.published.wrapping_add(count) != until {
            let chain = self.known(self.published.wrapping_add(count));
            singles &= chain.descriptors == 1 && !chain.more;
            count += 1;
            if !chain.more {
                whole = count;
            }
        }
        // No frame has more than MOST chains.
        let run = if whole > 0 { whole } else { count };
        if singles {
            self.note.singles(self.here.position(), run);
        } else {
            self.note_list(run);
        }
        run
    }

    #[inline(never)]
    fn note_list(&self, run: u16) {
        let chains = (0..run).map(|n| {
            let Known { len, id, descriptors, more, .. } =
                self.known(self.published.wrapping_add(n));
            Listed { len, id, descriptors, more: more && n + 1 < run }
        });
        self.note.listing(self.here.position(), chains);
    }

    /// Stores the entries of a run: frame by frame, of a frame over several chains the first one
    /// last. So the guest sees all of it or nothing.
    #[inline(always)]
    fn publish_run(&mut self, door: &Door, run: u16) {
        let mut left = run;
        while left > 0 {
            let first = self.known(self.published);
            let mut chains = 1;
            if first.more {
                chains = self.publish_further(door, left);
            }
            self.ring.used(
                door,
                first.place.index,
                used_entry(first.id, first.len, first.place.lap),
            );
            pass(Point::PackedEntry);
            let last = self.known(self.published.wrapping_add(chains - 1));
            self.here = last.place.after(last.descriptors, self.ring.size());
            self.published = self.published.wrapping_add(chains);
            left -= chains;
        }
    }

    /// Stores the entries of a frame's further chains. Returns how many chains it has, at most
    /// `left`.
    #[inline(never)]
    fn publish_further(&self, door: &Door, left: u16) -> u16 {
        let mut chains = 1;
        let mut more = true;
        while more && chains < left {
            let chain = self.known(self.published.wrapping_add(chains));
            let Place { index, lap } = chain.place;
            self.ring.used(door, index, used_entry(chain.id, chain.len, lap));
            pass(Point::PackedEntry);
            more = chain.more;
            chains += 1;
        }
        chains
    }

    /// The driver's event suppression.
    #[inline(always)]
    fn driver_event(&self) -> u32 {
        // SAFETY: new() checked four bytes, aligned to 4. Atomics may be shared with the guest.
        unsafe { self.driver.cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire)
    }

    /// The guest need not be told of anything published so far.
    #[inline(never)]
    pub fn told(&mut self) {
        self.told = self.here;
    }

    /// Returns whether the guest wants an interrupt for what was published since the last call.
    #[inline(never)]
    pub fn wants_call(&mut self) -> bool {
        let old = std::mem::replace(&mut self.told, self.here);
        // The guest writes its event structure, then reads descriptors; we wrote descriptors and
        // read its event structure.
        fence(Ordering::SeqCst);
        let event = self.driver_event();
        if event & (DISABLE | AT_DESCRIPTOR) == DISABLE {
            return false;
        }
        if event & (DISABLE | AT_DESCRIPTOR) != AT_DESCRIPTOR || !self.event_idx {
            return true;
        }
        let wanted = Place::from_position(event as u16);
        // As places of the present lap: those of the lap before are below 0.
        let size = i32::from(self.size());
        let in_lap =
            |at: Place| i32::from(at.index) - if at.lap == self.here.lap { 0 } else { size };
        let passed = (in_lap(old)..i32::from(self.here.index)).contains(&in_lap(wanted));
        if passed {
            self.passed = event;
        }
        passed
    }

    /// True if the guest asks for an interrupt for the next entry.
    pub fn awaits_next(&self) -> bool {
        let event = self.driver_event();
        let at_next = AT_DESCRIPTOR | u32::from(self.here.position());
        self.event_idx && event == at_next && event != self.passed
    }

    fn suppress(&mut self, door: &Door, event: u32) {
        if self.suppressed.replace(event) != Some(event) {
            self.ring.suppress(door, event);
        }
    }

    /// Asks the guest not to kick.
    pub fn disarm(&mut self, door: &Door) {
        self.suppress(door, DISABLE);
    }

    /// Asks the guest to kick for the next entry, before whoever called looks again.
    pub fn arm(&mut self, door: &Door) {
        let at_next = AT_DESCRIPTOR | u32::from(self.scan.position());
        self.suppress(door, if self.event_idx { at_next } else { 0 });
        fence(Ordering::SeqCst);
    }
}

impl Chains for Packed {
    /// Chains are asked for by their number.
    #[inline(always)]
    fn head(&self, number: u16) -> u16 {
        number
    }

    #[inline(always)]
    fn first(&self, head: u16) -> Option<Desc> {
        let chain = self.known(head);
        Some(Desc::packed(self.ring.addr(chain.place.index), chain.first))
    }

    #[inline(always)]
    fn prefetch(&self, head: u16) {
        self.ring.prefetch(self.known(head).place.index);
    }

    #[inline(always)]
    fn walk(
        &self,
        space: &Space,
        head: u16,
        budget: &mut u32,
        mut visit: impl FnMut(&Space, Desc) -> Result<(), BadChain>,
    ) -> Result<(), BadChain> {
        let chain = self.known(head);
        let mut at = chain.place;
        for index in 0..chain.descriptors {
            *budget = budget.checked_sub(1).ok_or(BadChain)?;
            let rest = if index == 0 { chain.first } else { self.ring.rest(at.index) };
            let desc = Desc::packed(self.ring.addr(at.index), rest);
            if desc.is_indirect() {
                // A table is all that its chain has (virtio 1.2, 2.8.7), and it was negotiated.
                if chain.descriptors > 1
                    || desc.has_next()
                    || !space.features.has(Features::INDIRECT_DESC)
                {
                    return Err(BadChain);
                }
                return walk_indirect(space, desc, budget, visit);
            }
            visit(space, desc)?;
            at = at.after(1, self.ring.size());
        }
        Ok(())
    }
}

/// A table's entries follow each other (virtio 1.2, 2.8.7).
fn walk_indirect(
    space: &Space,
    table: Desc,
    budget: &mut u32,
    mut visit: impl FnMut(&Space, Desc) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    if table.len == 0 || !table.len.is_multiple_of(DESC_LEN) {
        return Err(BadChain);
    }
    for index in 0..table.len / DESC_LEN {
        *budget = budget.checked_sub(1).ok_or(BadChain)?;
        let (addr, rest) = space.read_indirect(table.addr, index)?;
        let desc = Desc::of_packed_table(addr, rest);
        if desc.is_indirect() {
            return Err(BadChain);
        }
        visit(space, desc)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

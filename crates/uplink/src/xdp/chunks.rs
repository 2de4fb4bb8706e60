//! Chunks of frame memory on their way through the four rings of a socket.
//!
//! Chunks never change sides: the first ones receive, the others send. A receiving chunk is in the
//! fill ring, on its way through the kernel, in the receive ring, or held by us. A sending one is
//! free, given out, in the transmit ring, or in the kernel until it appears in the completion ring.
//!
//! **Whose a chunk is, the rings tell.** A side has as many chunks as each of its rings has
//! entries, and we move chunks in the order in which they came:
//!
//! - The frame number `n` that arrived goes back as the entry `n + RECEIVE` of the fill ring. So
//!   the fill ring's producer index says how many frames were given back, and the receive ring's
//!   consumer index how many were taken. What is between the two was held.
//! - The frame number `n` that leaves is in the chunk of the completion `n - SEND`; before the
//!   first one, the completion ring is written as if all chunks had been sent. So the transmit
//!   ring's producer index says which completions were used up.
//!
//! Each index is one store, so there is no half-done step: a successor of a process that died finds
//! each chunk on exactly one side. The kernel overwrites no entry that it needs: it can only
//! produce what it was given, which is a lap at most. No note beside the rings is needed, and none
//! could contradict them.

use std::{thread, time::Duration};

use arrayvec::ArrayVec;

use super::ring::{Consumer, Descriptor, Producer};
use crate::BURST;

/// Chunks to receive into, and entries of the rings they go through.
pub const RECEIVE: u32 = 2048;
/// Chunks to send from, and entries of the rings they go through.
pub const SEND: u32 = 2048;

/// Most frames that a process can have taken and not given back: those that it serves, and those
/// for which the kernel had not made room yet.
const MOST_HELD: usize = 2 * BURST;

/// Looks at rings that contradict each other, each after a pause that is twice as long: 13 ms.
const LOOKS: u32 = 7;

/// Reason for which rings that a former process left cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the rings contradict each other: {0}")]
pub struct Contradiction(&'static str);

/// Chunks of one side: their size, the number of the first one, their number.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    chunk: u32,
    first: u32,
    count: u32,
}

impl Side {
    /// The receiving side.
    pub fn receiving(chunk: u32) -> Side {
        Side { chunk, first: 0, count: RECEIVE }
    }

    /// The sending side.
    pub fn sending(chunk: u32) -> Side {
        Side { chunk, first: RECEIVE, count: SEND }
    }

    /// Addresses of all chunks.
    fn all(self) -> impl Iterator<Item = u64> {
        (self.first..self.first + self.count).map(move |n| u64::from(n) * u64::from(self.chunk))
    }

    /// Returns the beginning of the chunk that an address is in.
    #[inline]
    fn begin(self, address: u64) -> u64 {
        address & !(u64::from(self.chunk) - 1)
    }

    /// Returns the place of the chunk that `len` bytes at an address are in.
    fn place(self, address: u64, len: u32) -> Option<usize> {
        let chunk = u64::from(self.chunk);
        let place = (address / chunk).checked_sub(u64::from(self.first))?;
        let fits = address % chunk + u64::from(len) <= chunk && place < u64::from(self.count);
        fits.then_some(place as usize)
    }
}

/// Account of chunks that were found somewhere: each at most once.
struct Found {
    side: Side,
    seen: Vec<bool>,
}

impl Found {
    fn new(side: Side) -> Found {
        Found { side, seen: vec![false; side.count as usize] }
    }

    fn add(&mut self, address: u64, len: u32) -> Result<(), Contradiction> {
        let place = self.side.place(address, len).and_then(|place| self.seen.get_mut(place));
        match place {
            None => Err(Contradiction("a chunk that there is not")),
            Some(seen) if *seen => Err(Contradiction("a chunk is in two places")),
            Some(seen) => {
                *seen = true;
                Ok(())
            }
        }
    }
}

/// Indices from one up to another, which may have wrapped; an error if they are too many.
fn between(from: u32, to: u32, most: u32) -> Result<impl Iterator<Item = u32>, Contradiction> {
    let count = to.wrapping_sub(from);
    if count > most {
        return Err(Contradiction("an index is out of bounds"));
    }
    Ok((0..count).map(move |n| from.wrapping_add(n)))
}

/// Looks until there is no contradiction. The kernel shows what it did in a ring a moment before it
/// gives back the places in another one.
fn settled<T>(look: impl Fn() -> Result<T, Contradiction>) -> Result<T, Contradiction> {
    let mut pause = Duration::from_micros(100);
    for _ in 0..LOOKS {
        if let Ok(found) = look() {
            return Ok(found);
        }
        thread::sleep(pause);
        pause *= 2;
    }
    look()
}

/// The receiving side.
pub struct Receiver {
    pub receive: Consumer<Descriptor>,
    pub fill: Producer<u64>,
    side: Side,
    /// Chunks for which the fill ring has no room yet, oldest first: the kernel shows frames a
    /// moment before it gives the places of their chunks back.
    late: ArrayVec<u64, MOST_HELD>,
}

impl Receiver {
    /// Gives all chunks to the kernel, through rings that nobody used yet.
    pub fn begin(receive: Consumer<Descriptor>, mut fill: Producer<u64>, chunk: u32) -> Receiver {
        let side = Side::receiving(chunk);
        for address in side.all() {
            fill.push(address);
        }
        fill.publish();
        Receiver { receive, fill, side, late: ArrayVec::new() }
    }

    /// Goes on where a former process died. Frames that it had taken are not taken again: their
    /// chunks go back to the kernel. Returns also their number.
    pub fn recover(
        mut receive: Consumer<Descriptor>,
        mut fill: Producer<u64>,
        chunk: u32,
    ) -> Result<(Receiver, u32), Contradiction> {
        let side = Side::receiving(chunk);
        let held = settled(|| Receiver::look(&receive, &fill, side))?;
        fill.go_on();
        receive.go_on_at(receive.released());
        let mut receiver = Receiver { receive, fill, side, late: ArrayVec::new() };
        let returned = held.len() as u32;
        held.into_iter().for_each(|address| receiver.give_back(address));
        receiver.given_back();
        Ok((receiver, returned))
    }

    /// Finds all chunks that the kernel does not have. Returns those that a former process held.
    fn look(
        receive: &Consumer<Descriptor>,
        fill: &Producer<u64>,
        side: Side,
    ) -> Result<ArrayVec<u64, MOST_HELD>, Contradiction> {
        let filled = fill.published();
        let (given, taken) = (filled.wrapping_sub(RECEIVE), receive.released());
        // What the kernel puts into the receive ring after this look, it takes out of the fill ring
        // before the next one.
        let produced = receive.produced();
        let consumed = fill.consumed();
        let mut found = Found::new(side);
        let mut held = ArrayVec::new();
        for index in between(given, taken, MOST_HELD as u32)? {
            let Descriptor { address, len, .. } = receive.entry(index);
            found.add(address, len)?;
            let _ = held.try_push(side.begin(address));
        }
        // A lap, from the first chunk that the kernel does not have.
        for index in between(taken, produced, RECEIVE - held.len() as u32)? {
            let Descriptor { address, len, .. } = receive.entry(index);
            found.add(address, len)?;
        }
        for index in between(consumed, filled, RECEIVE)? {
            found.add(fill.entry(index), 0)?;
        }
        Ok(held)
    }

    /// Takes a frame that arrived. Its chunk is ours until [`Self::give_back`].
    #[inline]
    pub fn take(&mut self) -> Option<Descriptor> {
        if self.late.len() >= BURST {
            return None;
        }
        self.receive.take()
    }

    /// Notes that what was taken is not to be taken again, by any process.
    #[inline]
    pub fn taken(&mut self) {
        self.receive.release();
        if !self.late.is_empty() {
            self.given_back();
        }
    }

    /// Lets the kernel receive into a frame's chunk again, once [`Self::given_back`] says so. In
    /// the order in which frames were taken.
    #[inline]
    pub fn give_back(&mut self, address: u64) {
        let chunk = self.side.begin(address);
        if !self.late.is_empty() || !self.fill.push(chunk) {
            // There is room: nothing is taken while so many are late.
            let _ = self.late.try_push(chunk);
        }
    }

    /// Shows the kernel what was given back.
    #[inline]
    pub fn given_back(&mut self) {
        while let Some(chunk) = self.late.first()
            && self.fill.push(*chunk)
        {
            self.late.remove(0);
        }
        self.fill.publish();
    }
}

/// The sending side.
pub struct Sender {
    pub transmit: Producer<Descriptor>,
    /// The free chunks, in the order in which they will be used.
    completions: Consumer<u64>,
    /// The chunk given out, and the length asked for.
    given: Option<(u64, u32)>,
    /// Flushes in a row that moved nothing.
    pub fruitless: u32,
}

impl Sender {
    /// Has all chunks free, with rings that nobody used yet.
    pub fn begin(
        transmit: Producer<Descriptor>,
        mut completions: Consumer<u64>,
        chunk: u32,
    ) -> Sender {
        completions.begin_with(Side::sending(chunk).all());
        Sender { transmit, completions, given: None, fruitless: 0 }
    }

    /// Goes on where a former process died. Frames that it had not shown to the kernel are lost.
    pub fn recover(
        mut transmit: Producer<Descriptor>,
        mut completions: Consumer<u64>,
        chunk: u32,
    ) -> Result<Sender, Contradiction> {
        let side = Side::sending(chunk);
        settled(|| Sender::look(&transmit, &completions, side))?;
        transmit.go_on();
        completions.go_on_at(transmit.published().wrapping_sub(SEND));
        Ok(Sender { transmit, completions, given: None, fruitless: 0 })
    }

    /// Finds all chunks that the kernel does not have, or has not looked at.
    fn look(
        transmit: &Producer<Descriptor>,
        completions: &Consumer<u64>,
        side: Side,
    ) -> Result<(), Contradiction> {
        let shown = transmit.published();
        // What the kernel completes after this look, it took out of the transmit ring before.
        let produced = completions.produced();
        let consumed = transmit.consumed();
        let mut found = Found::new(side);
        for index in between(shown.wrapping_sub(SEND), produced, SEND)? {
            found.add(completions.entry(index), 0)?;
        }
        for index in between(consumed, shown, SEND)? {
            let Descriptor { address, len, .. } = transmit.entry(index);
            found.add(address, len)?;
        }
        Ok(())
    }

    /// Gives out a chunk for a frame of `len` bytes: the same again if it was not queued, else a
    /// free one.
    #[inline]
    pub fn give(&mut self, len: u32) -> Option<u64> {
        let address = match self.given.take() {
            Some((address, _)) => address,
            None if !self.transmit.has_room() => return None,
            None => self.completions.take()?,
        };
        self.given = Some((address, len));
        Some(address)
    }

    /// Queues the chunk given out, if there is one; returns its length.
    #[inline]
    pub fn queue(&mut self) -> Option<usize> {
        let (address, len) = self.given.take()?;
        // There is room: `give` looked.
        self.transmit.push(Descriptor { address, len, options: 0 }).then_some(len as usize)
    }

    /// Returns the number of frames that were queued so far, of former processes, too.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.transmit.appended()
    }

    /// Returns the number of frames that the interface is through with.
    #[inline]
    pub fn through(&self) -> u32 {
        self.completions.produced()
    }

    /// Shows the kernel what was queued.
    #[inline]
    pub fn publish(&mut self) {
        // First the room for their completions, which the kernel takes before it sends.
        self.completions.release();
        self.transmit.publish();
    }
}

#[cfg(test)]
mod tests;

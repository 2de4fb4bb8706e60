//! Frames for this host itself, which the switch sends by a wire: they come in again.
//!
//! From inside to an address outside of this host a packet goes out and in like any other, but not
//! by the interface: no other host gives it back. So whoever is behind the wire hands it to the
//! switch again. What comes by the interface from this host's own MAC address is refused: nobody
//! else may look like the switch.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
};

use butterfly_guest_driver::Span;
use butterfly_packet::Mac;
use butterfly_vhost::net::NetHeader;

use crate::{nic::TX_BUFFER, vnic::BURST};

/// Most frames that wait for room in the queue to the switch, and most bytes of them.
const FRAMES: usize = 1024;
const BYTES: usize = 4 << 20;
/// Bytes of both addresses of a frame, and the offset of the source.
const ADDRESSES: usize = 12;
const SOURCE: usize = 6;

/// Counts of such frames, which the wire's thread writes.
#[derive(Debug, Default)]
pub(crate) struct TurnedCounts {
    full: AtomicU64,
    forged: AtomicU64,
}

impl TurnedCounts {
    /// Returns how many found no room.
    pub fn full(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Returns how many came by the interface from this host's MAC address.
    pub fn forged(&self) -> u64 {
        self.forged.load(Ordering::Relaxed)
    }
}

/// Frames that wait to come in again, each behind its header.
pub(crate) struct Turned {
    /// MAC address of this host on the wire.
    own: Mac,
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Buffers for more.
    spare: Vec<Vec<u8>>,
}

impl Turned {
    pub fn new(own: Mac) -> Turned {
        Turned { own, frames: VecDeque::new(), bytes: 0, spare: Vec::new() }
    }

    /// Returns whether a frame with these pieces, of which the first begins with the header, goes
    /// from this host to itself, and keeps it if there is room.
    pub fn take(
        &mut self,
        memory: &Span,
        pieces: &[(usize, usize)],
        counts: &TurnedCounts,
    ) -> bool {
        let Some((at, _)) = pieces.first().filter(|(_, len)| *len >= NetHeader::LEN + ADDRESSES)
        else {
            return false;
        };
        let addresses: [u8; ADDRESSES] = memory.read_array(at + NetHeader::LEN);
        if addresses.chunks_exact(SOURCE).any(|mac| mac != self.own.0) {
            return false;
        }
        let len: usize = pieces.iter().map(|(_, len)| len).sum();
        if self.frames.len() >= FRAMES || self.bytes + len > BYTES || len > TX_BUFFER {
            counts.full.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.resize(len, 0);
        let mut rest = &mut frame[..];
        for (at, len) in pieces.iter().copied() {
            let Some((piece, behind)) = rest.split_at_mut_checked(len) else { break };
            memory.read(at, piece);
            rest = behind;
        }
        // What the switch vouches for, it does not believe of others; one buffer holds the frame.
        if let Some([flags, ..]) = frame.first_chunk_mut::<{ NetHeader::LEN }>() {
            *flags &= NetHeader::FLAG_NEEDS_CSUM;
        }
        if let Some(buffers) = frame.get_mut(NetHeader::LEN - 2..NetHeader::LEN) {
            buffers.fill(0);
        }
        self.bytes += len;
        self.frames.push_back(frame);
        true
    }

    /// Writes the next frame to a buffer of the queue to the switch. Returns how many bytes it is;
    /// `None` if nothing waits.
    pub fn give(&mut self, memory: &Span, at: usize) -> Option<usize> {
        let frame = self.frames.pop_front()?;
        memory.write(at, &frame);
        let len = frame.len();
        self.bytes -= len;
        if self.spare.len() < BURST {
            self.spare.push(frame);
        }
        Some(len)
    }

    /// Returns whether a frame from the interface, whose first bytes these are, says that it is
    /// from this host. Counts it.
    pub fn is_forged(&self, frame: &[u8], counts: &TurnedCounts) -> bool {
        let source = frame.get(SOURCE..).and_then(|source| source.first_chunk());
        let forged = source == Some(&self.own.0);
        if forged {
            counts.forged.fetch_add(1, Ordering::Relaxed);
        }
        forged
    }
}

#[cfg(test)]
mod tests {
    use butterfly_guest_driver::{Memory, MemoryConfig};

    use super::*;

    const OWN: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);
    const OTHER: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn span() -> Span {
        let memory = Memory::new(&MemoryConfig::new(1 << 20)).unwrap();
        memory.span(memory.alloc(1 << 19, 64).unwrap(), 1 << 19).unwrap()
    }

    /// Writes a frame with a header of all bits in two pieces. Returns these.
    fn frame(memory: &Span, to: Mac, from: Mac, len: usize) -> [(usize, usize); 2] {
        memory.write(0, &[0xff; NetHeader::LEN]);
        memory.write(NetHeader::LEN, &to.0);
        memory.write(NetHeader::LEN + 6, &from.0);
        memory.write(4096, &vec![7; len]);
        [(0, NetHeader::LEN + 12), (4096, len)]
    }

    #[test]
    fn what_goes_from_this_host_to_itself_comes_again() {
        let (memory, counts) = (span(), TurnedCounts::default());
        let mut turned = Turned::new(OWN);
        for (to, from) in [(OWN, OTHER), (OTHER, OWN), (Mac::BROADCAST, OWN)] {
            assert!(!turned.take(&memory, &frame(&memory, to, from, 60), &counts));
        }
        assert!(!turned.take(&memory, &[(0, NetHeader::LEN + 11)], &counts), "cut short");
        assert!(turned.take(&memory, &frame(&memory, OWN, OWN, 60), &counts));
        let len = turned.give(&memory, 8192).unwrap();
        assert_eq!(len, NetHeader::LEN + 12 + 60);
        let header: [u8; NetHeader::LEN] = memory.read_array(8192);
        assert_eq!((header[0], &header[10..]), (NetHeader::FLAG_NEEDS_CSUM, &[0, 0][..]));
        let addresses: [u8; 12] = memory.read_array(8192 + NetHeader::LEN);
        assert_eq!(addresses.as_chunks().0, [OWN.0; 2]);
        assert_eq!(memory.read_array::<60>(8192 + NetHeader::LEN + 12), [7; 60]);
        assert_eq!((turned.give(&memory, 8192), counts.full()), (None, 0));
    }

    #[test]
    fn what_waits_is_bounded_in_frames_and_bytes() {
        let (memory, counts) = (span(), TurnedCounts::default());
        let mut turned = Turned::new(OWN);
        for (len, most) in [(60, FRAMES), (60_000, BYTES / (60_000 + NetHeader::LEN + 12))] {
            let before = counts.full();
            let frame = frame(&memory, OWN, OWN, len);
            for _ in 0..most + 3 {
                assert!(turned.take(&memory, &frame, &counts));
            }
            assert_eq!((turned.frames.len(), counts.full()), (most, before + 3));
            while turned.give(&memory, 65_536).is_some() {}
            assert_eq!(turned.bytes, 0);
        }
    }

    #[test]
    fn nobody_outside_is_this_host() {
        let counts = TurnedCounts::default();
        let turned = Turned::new(OWN);
        let from = |mac: Mac| [Mac::BROADCAST.0, mac.0].concat();
        assert!(!turned.is_forged(&from(OTHER), &counts) && !turned.is_forged(&[0; 11], &counts));
        assert!(turned.is_forged(&from(OWN), &counts));
        assert_eq!(counts.forged(), 1);
    }
}

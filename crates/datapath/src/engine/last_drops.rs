//! The last dropped packet of each reason, with its time and first bytes. Shows an operator why
//! nothing arrives.
//!
//! The worker that drops writes it, and reports read it: plain atomics under a sequence number. It
//! takes no lock, allocates nothing, and costs nothing for packets that are not dropped. A vnic has
//! room for the reasons that occurred last. Of a flood of drops, one packet per tenth of a second
//! is kept.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use butterfly_vhost::ring::Frames;

use crate::engine::{clock::Clock, reason::DropReason};

/// Reasons per vnic and worker for which a packet is kept.
pub(crate) const KEPT: usize = 8;
const WORDS: usize = 13;
/// Bytes kept of a packet. Enough for Ethernet, a VLAN tag, IPv6 and TCP, or for VXLAN's outer
/// headers over IPv4 and part of the inner ones.
pub(crate) const BYTES: usize = 8 * WORDS;

/// A packet that is being dropped.
#[derive(Clone, Copy)]
pub(crate) struct Dropped<'a> {
    /// Its first bytes; empty if they could not be read.
    pub head: &'a [u8],
    /// Its length; 0 if not known.
    pub len: u32,
    /// Time of the drop, in tenths of a second of the clock.
    pub when: u32,
}

impl<'a> Dropped<'a> {
    /// Returns a frame of a batch, as far as it is in its slot.
    pub fn of(frames: &'a Frames<'_>, index: usize, clock: &Clock) -> Dropped<'a> {
        // A frame that could not be taken from the ring has no content: its slot holds bytes of
        // another frame.
        let frame = frames.frames().get(index).filter(|frame| frame.fault.is_none());
        let head = if frame.is_some() { frames.head(index) } else { &[] };
        Dropped { head, len: frame.map_or(0, |frame| frame.len), when: clock.tenths() }
    }
}

/// A packet that was dropped some time ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastDrop {
    pub reason: DropReason,
    /// Time of the drop, in tenths of a second of the clock.
    pub when: u32,
    /// Its length; 0 if not known.
    pub len: u32,
    bytes: [u8; BYTES],
    kept: usize,
}

impl LastDrop {
    /// Returns its first bytes; empty if they could not be read.
    pub fn head(&self) -> &[u8] {
        self.bytes.get(..self.kept).unwrap_or_default()
    }
}

/// Two lines: sequence number; when and length; reason and how many bytes were kept; the bytes.
#[repr(align(128))]
struct Place {
    sequence: AtomicU64,
    when: AtomicU64,
    what: AtomicU64,
    bytes: [AtomicU64; WORDS],
}

impl Place {
    fn new() -> Place {
        let zero = || AtomicU64::new(0);
        Place {
            sequence: zero(),
            when: zero(),
            what: zero(),
            bytes: std::array::from_fn(|_| zero()),
        }
    }

    fn write(&self, reason: DropReason, packet: &Dropped<'_>) {
        let kept = packet.head.len().min(BYTES);
        let sequence = self.sequence.load(Relaxed);
        self.sequence.store(sequence | 1, Relaxed);
        fence(Release);
        self.when.store(u64::from(packet.when) << 32 | u64::from(packet.len), Relaxed);
        self.what.store((reason.index() as u64) << 32 | kept as u64, Relaxed);
        for (word, bytes) in self.bytes.iter().zip(packet.head.chunks(8)) {
            let mut whole = [0; 8];
            whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            word.store(u64::from_le_bytes(whole), Relaxed);
        }
        self.sequence.store((sequence | 1).wrapping_add(1), Release);
    }

    /// Returns the packet in this place, if there is one; `Err` if the worker is changing it.
    fn try_read(&self) -> Result<Option<LastDrop>, ()> {
        let before = self.sequence.load(Acquire);
        let (when, what) = (self.when.load(Relaxed), self.what.load(Relaxed));
        let mut bytes = [0; BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&self.bytes) {
            *to = word.load(Relaxed).to_le_bytes();
        }
        fence(Acquire);
        if before & 1 != 0 || self.sequence.load(Relaxed) != before {
            return Err(());
        }
        let reason = DropReason::of_index((what >> 32) as usize);
        let read = LastDrop {
            reason,
            when: (when >> 32) as u32,
            len: when as u32,
            bytes,
            kept: what as u32 as usize,
        };
        Ok((before != 0).then_some(read))
    }

    /// Reads as [`Self::try_read`] does, until it succeeds. A change takes some hundred cycles,
    /// unless the worker is interrupted in it.
    fn read(&self) -> Option<LastDrop> {
        loop {
            match self.try_read() {
                Ok(read) => return read,
                Err(()) => std::thread::yield_now(),
            }
        }
    }
}

/// One worker's dropped packets of one vnic.
#[repr(align(128))]
pub(crate) struct LastDrops {
    /// For the worker: each place's reason plus one, and the time it was last written. All are in
    /// one cache line, so that a flood of drops touches nothing else.
    marks: [AtomicU64; KEPT],
    places: [Place; KEPT],
}

impl LastDrops {
    pub fn new() -> LastDrops {
        LastDrops {
            marks: std::array::from_fn(|_| AtomicU64::new(0)),
            places: std::array::from_fn(|_| Place::new()),
        }
    }

    /// Keeps a packet. Skips it if one of the same reason was kept in this tenth of a second, or
    /// too many of other reasons.
    pub fn keep(&self, reason: DropReason, packet: &Dropped<'_>) {
        let own = reason.index() as u64 + 1;
        let mut oldest: Option<(u32, usize)> = None;
        let mut found = None;
        for (at, mark) in self.marks.iter().enumerate() {
            let mark = mark.load(Relaxed);
            let when = (mark >> 32) as u32;
            if mark as u32 as u64 == own {
                found = Some((when, at));
                break;
            }
            // A free place counts as older than any other.
            let age = if mark == 0 { u32::MAX } else { packet.when.wrapping_sub(when) };
            if oldest.is_none_or(|(most, _)| age > most) {
                oldest = Some((age, at));
            }
        }
        let at = match (found, oldest) {
            (Some((when, _)), _) if when == packet.when => return,
            (Some((_, at)), _) => at,
            // All places were written just now: they show enough of a vnic that is dropped for so
            // many reasons at once.
            (None, Some((0, _)) | None) => return,
            (None, Some((_, at))) => at,
        };
        if let (Some(mark), Some(place)) = (self.marks.get(at), self.places.get(at)) {
            place.write(reason, packet);
            mark.store(u64::from(packet.when) << 32 | own, Relaxed);
        }
    }

    /// Returns every packet that is kept, at most one of each reason. Not for the packet path.
    pub fn list(&self) -> impl Iterator<Item = LastDrop> {
        self.places.iter().filter_map(Place::read)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn reason(n: usize) -> DropReason {
        DropReason::of_index(n)
    }

    fn kept(drops: &LastDrops) -> Vec<(usize, u32, u32, Vec<u8>)> {
        let mut all: Vec<_> = drops
            .list()
            .map(|drop| (drop.reason.index(), drop.when, drop.len, drop.head().to_vec()))
            .collect();
        all.sort();
        all
    }

    #[test]
    fn the_first_packet_of_a_reason_and_tenth_is_kept() {
        let drops = LastDrops::new();
        assert_eq!(kept(&drops), []);
        let keep = |n, head: &[u8], len, when| drops.keep(reason(n), &Dropped { head, len, when });
        keep(0, b"zero", 60, 0);
        keep(0, b"later in it", 61, 0);
        keep(3, b"three", 62, 0);
        assert_eq!(kept(&drops), [(0, 0, 60, b"zero".to_vec()), (3, 0, 62, b"three".to_vec())]);
        keep(0, b"next", 63, 1);
        keep(3, b"", 0, 9);
        assert_eq!(kept(&drops), [(0, 1, 63, b"next".to_vec()), (3, 9, 0, Vec::new())]);
        // Longer ones are cut, shorter ones keep nothing of what was there.
        let long: Vec<u8> = (0..200).collect();
        keep(3, &long, 1500, 10);
        assert_eq!(kept(&drops)[1], (3, 10, 1500, long[..BYTES].to_vec()));
        keep(3, b"123456789", 1500, 11);
        assert_eq!(kept(&drops)[1], (3, 11, 1500, b"123456789".to_vec()));
    }

    #[test]
    fn the_reason_that_was_silent_for_longest_gives_way_and_only_to_a_later_one() {
        let drops = LastDrops::new();
        let keep = |n, when| drops.keep(reason(n), &Dropped { head: &[n as u8], len: 1, when });
        let reasons = || kept(&drops).iter().map(|(n, ..)| *n).collect::<Vec<_>>();
        (0..KEPT).for_each(|n| keep(n, 5));
        keep(20, 5);
        assert_eq!(reasons(), (0..KEPT).collect::<Vec<_>>());
        // All but the third are seen again.
        (0..KEPT).filter(|n| *n != 3).for_each(|n| keep(n, 6));
        keep(20, 6);
        assert_eq!(reasons(), (0..KEPT).filter(|n| *n != 3).chain([20]).collect::<Vec<_>>());
        keep(21, 6);
        assert!(!reasons().contains(&21));
        keep(21, 7);
        assert!(reasons().contains(&21) && reasons().len() == KEPT);
    }

    #[test]
    fn a_vnic_pays_little_for_it() {
        // Per vnic and worker, beside its counters.
        assert_eq!(size_of::<LastDrops>(), 1152);
    }

    /// A reader sees one write as a whole, also while the worker writes.
    #[test]
    fn readers_see_whole_packets() {
        let drops = LastDrops::new();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for when in 0..200_000u32 {
                    let byte = when as u8;
                    let head = [byte; BYTES];
                    let head = &head[..usize::from(byte) % (BYTES + 1)];
                    drops.keep(reason(when as usize % 3), &Dropped { head, len: when, when });
                }
                stop.store(true, Release);
            });
            let mut seen = 0u64;
            while !stop.load(Acquire) || seen == 0 {
                for drop in drops.list() {
                    let byte = drop.when as u8;
                    assert_eq!(
                        (drop.len, drop.reason.index()),
                        (drop.when, drop.when as usize % 3)
                    );
                    assert_eq!(drop.head(), &vec![byte; usize::from(byte) % (BYTES + 1)]);
                    seen += 1;
                }
            }
        });
    }
}

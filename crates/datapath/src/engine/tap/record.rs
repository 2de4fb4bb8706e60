//! Record of a frame, as a worker writes it into its ring.

use crate::engine::tap::ring::RecordRoom;
use crate::engine::{place::PortRef, reason::DropReason};

/// Point at which a frame was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TapPoint {
    /// In its network, without outer headers: sent by a vnic, or received from another host.
    Network,
    /// Made by the switch, on its way to the vnic whose frame it answers.
    Answer,
    /// On the uplink, as it arrived.
    UplinkIn,
    /// On the uplink, as it leaves.
    UplinkOut,
}

/// Role of a watched vnic for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TapRole {
    /// The vnic sent the frame.
    Sent,
    /// The frame was for the vnic.
    Received,
    /// None: the network of the frame is watched, or everything is.
    Neither,
}

/// Fate of a frame, as the stages decided it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameFate {
    /// Delivered to the vnic in a slot.
    Deliver,
    /// Sent to a peer.
    Tunnel,
    Flood,
    /// Dropped and charged to a vnic.
    Drop,
    /// Answered by a router.
    Consume,
    /// Not decided yet, or a frame for the tunnel endpoint itself.
    Open,
}

/// All of a record but its entries and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TapRecord {
    /// Time stamp counter.
    pub time: u64,
    pub point: TapPoint,
    pub vni: u32,
    pub from: PortRef,
    /// The host that the frame came from, if the sender is a trunk.
    pub peer: u32,
    pub fate: FrameFate,
    /// The receiver, or the vnic that is charged. For a flood, its slot is the number of copies for
    /// other hosts.
    pub to: PortRef,
    /// The peer it goes to.
    pub to_peer: u32,
    /// Reason of the drop: by a stage, or in spite of the fate.
    pub reason: Option<DropReason>,
    /// Length of the frame.
    pub len: u32,
    /// Number of bytes copied.
    pub data: u32,
    /// The rules that admitted its session, and the direction of the frame in that session.
    pub cells: [u32; 2],
    pub session: bool,
    pub reply: bool,
    /// Cycles per frame of its batch.
    pub cycles: u32,
    /// Receivers of a flood that got the frame, and those that did not.
    pub delivered: u32,
    pub refused: u32,
}

/// Words of a record without entries and bytes.
const HEAD: usize = 10;

/// A sink that wants the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The number of the sink.
    pub sink: u32,
    pub role: TapRole,
    /// Reason for which the sink's vnic did not get the frame.
    pub reason: Option<DropReason>,
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

fn place(place: PortRef) -> u64 {
    pair(place.slot, place.incarnation)
}

fn place_of(word: u64) -> PortRef {
    let [slot, incarnation] = halves(word);
    PortRef { slot, incarnation }
}

/// Returns a reason as a number; 0 is none.
fn reason(reason: Option<DropReason>) -> u32 {
    reason.map_or(0, |reason| reason.index() as u32 + 1)
}

fn reason_of(number: u32) -> Option<DropReason> {
    DropReason::at(usize::try_from(number).ok()?.checked_sub(1)?)
}

impl Entry {
    fn word(self) -> u64 {
        pair(self.sink, (self.role as u32) << 16 | reason(self.reason))
    }

    fn of(word: u64) -> Entry {
        let [sink, rest] = halves(word);
        let role = match rest >> 16 {
            0 => TapRole::Sent,
            1 => TapRole::Received,
            _ => TapRole::Neither,
        };
        Entry { sink, role, reason: reason_of(rest & 0xffff) }
    }
}

impl TapRecord {
    /// Returns the number of words that the record takes with so many entries.
    pub fn words(&self, entries: usize) -> usize {
        HEAD + entries + (self.data as usize).div_ceil(8)
    }

    /// Writes the record and its entries; the bytes follow.
    pub fn put(&self, entries: impl ExactSizeIterator<Item = Entry>, room: &mut RecordRoom<'_>) {
        let marks = (self.point as u32) << 24
            | (self.fate as u32) << 16
            | u32::from(self.session) << 8
            | u32::from(self.reply);
        let words: [u64; HEAD] = [
            self.time,
            place(self.from),
            place(self.to),
            pair(self.peer, self.to_peer),
            pair(self.vni, marks),
            pair(self.len, self.data),
            pair(self.cells[0], self.cells[1]),
            pair(self.delivered, self.refused),
            pair(self.cycles, reason(self.reason)),
            entries.len() as u64,
        ];
        words.iter().for_each(|word| room.push(*word));
        entries.for_each(|entry| room.push(entry.word()));
    }

    /// Reads the time of a record.
    pub fn time(words: &[u64]) -> Option<u64> {
        words.first().copied()
    }

    /// Reads a record: its head, its entries, its bytes as words.
    pub fn get(words: &[u64]) -> Option<(TapRecord, impl ExactSizeIterator<Item = Entry>, &[u64])> {
        let (head, rest) = words.split_first_chunk::<HEAD>()?;
        let [time, from, to, peers, vni, len, cells, counts, cycles, entries] = *head;
        let (entries, data) = rest.split_at_checked(usize::try_from(entries).ok()?)?;
        let [peer, to_peer] = halves(peers);
        let [vni, marks] = halves(vni);
        let [len, bytes] = halves(len);
        let [delivered, refused] = halves(counts);
        let [cycles, reason] = halves(cycles);
        let point = match marks >> 24 {
            0 => TapPoint::Network,
            1 => TapPoint::Answer,
            2 => TapPoint::UplinkIn,
            _ => TapPoint::UplinkOut,
        };
        let fate = match marks >> 16 & 0xff {
            0 => FrameFate::Deliver,
            1 => FrameFate::Tunnel,
            2 => FrameFate::Flood,
            3 => FrameFate::Drop,
            4 => FrameFate::Consume,
            _ => FrameFate::Open,
        };
        let record = TapRecord {
            time,
            point,
            vni,
            from: place_of(from),
            peer,
            fate,
            to: place_of(to),
            to_peer,
            reason: reason_of(reason),
            len,
            data: bytes,
            cells: halves(cells),
            session: marks >> 8 & 1 == 1,
            reply: marks & 1 == 1,
            cycles,
            delivered,
            refused,
        };
        Some((record, entries.iter().copied().map(Entry::of), data))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::{super::ring::Ring, *};
    use crate::stages::deliver::RING_FULL;

    #[test]
    fn what_is_put_is_what_is_got() {
        let record = TapRecord {
            time: 1 << 60 | 5,
            point: TapPoint::UplinkOut,
            vni: 0xff_ffff,
            from: PortRef { slot: 1, incarnation: 2 },
            peer: 3,
            fate: FrameFate::Open,
            to: PortRef { slot: 4, incarnation: u32::MAX },
            to_peer: 6,
            reason: Some(RING_FULL),
            len: 70_000,
            data: 13,
            cells: [7, 8],
            session: true,
            reply: true,
            cycles: 9,
            delivered: 10,
            refused: 11,
        };
        let entries = [
            Entry { sink: 1, role: TapRole::Sent, reason: None },
            Entry { sink: u32::MAX, role: TapRole::Received, reason: Some(RING_FULL) },
            Entry { sink: 0, role: TapRole::Neither, reason: None },
        ];
        let ring = Ring::new(64);
        let mut room = ring.room(record.words(3)).unwrap();
        record.put(entries.iter().copied(), &mut room);
        room.bytes(b"Hello, frame!");
        room.publish();
        let mut words = Vec::new();
        assert_eq!(ring.take(&mut words), Some(HEAD + 3 + 2));
        let (got, of, data) = TapRecord::get(&words).unwrap();
        assert_eq!((got, of.collect::<Vec<_>>()), (record, entries.to_vec()));
        let bytes: Vec<u8> = data.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(&bytes[..13], b"Hello, frame!");
        let plain = TapRecord {
            reason: None,
            session: false,
            fate: FrameFate::Deliver,
            point: TapPoint::Network,
            ..record
        };
        let mut room = ring.room(plain.words(0)).unwrap();
        plain.put([].iter().copied(), &mut room);
        room.publish();
        words.clear();
        ring.take(&mut words).unwrap();
        assert_eq!(TapRecord::get(&words).unwrap().0, plain);
        assert!(TapRecord::get(&words[..5]).is_none(), "half a record is none");
    }
}

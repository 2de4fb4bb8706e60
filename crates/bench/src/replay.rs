//! Packets of a capture on their way: those that are sent next, and those that are awaited.

use std::time::Duration;

use butterfly_guest_driver::fast::TxFrame;

use crate::{
    pcap::Capture,
    vms::{mac, peer},
};

/// Packets that may be missing before one that arrives.
const GAP: u64 = 4096;
/// Bytes of both MAC addresses.
const ADDRESSES: usize = 12;

/// A position in a capture that is played again and again, from A to B.
#[derive(Clone, Debug)]
pub struct Replay {
    capture: Capture,
    /// MAC addresses that each packet gets: they are those of the two VMs.
    addresses: [u8; ADDRESSES],
    next: u64,
}

impl Replay {
    /// Begins to play a capture as from a VM.
    pub fn new(capture: Capture, vm: usize) -> Replay {
        let mut addresses = [0; ADDRESSES];
        addresses[..6].copy_from_slice(&mac(peer(vm)).0);
        addresses[6..].copy_from_slice(&mac(vm).0);
        Replay { capture, addresses, next: 0 }
    }

    fn bytes(&self, number: u64) -> &[u8] {
        let packets = self.capture.packets();
        &packets[(number % packets.len() as u64) as usize].bytes
    }

    /// Writes the next packet; its length.
    pub fn fill(&mut self, out: &TxFrame<'_>) -> usize {
        let bytes = self.bytes(self.next);
        let len = bytes.len();
        out.write(0, &self.addresses);
        out.write(ADDRESSES, &bytes[ADDRESSES..]);
        self.next += 1;
        len
    }

    /// Returns how many packets are due after so long, at most `most`.
    pub fn due(&self, elapsed: Duration, most: usize) -> usize {
        let is_due = |ahead: &usize| self.capture.due(self.next + *ahead as u64) <= elapsed;
        (0..most).take_while(is_due).count()
    }

    /// Takes an arriving frame for the next packet that has its bytes. Returns the number of that;
    /// `None` if none of the next ones has.
    pub fn arrived(&mut self, frame: &[u8]) -> Option<u64> {
        if frame.get(..ADDRESSES) != Some(&self.addresses[..]) {
            return None;
        }
        let found = (self.next..self.next + GAP)
            .find(|number| self.bytes(*number).get(ADDRESSES..) == frame.get(ADDRESSES..))?;
        self.next = found + 1;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::tests::file;

    #[test]
    fn packets_are_due_in_time_and_found_again() {
        let packets: Vec<Vec<u8>> = (0..5u8).map(|n| vec![n; 60 + usize::from(n)]).collect();
        let all: Vec<(u32, &[u8])> =
            (0..).zip(&packets).map(|(n, bytes)| (n * 10, &bytes[..])).collect();
        let place = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(place.path(), file(&all)).unwrap();
        let capture: Capture = place.path().to_str().unwrap().parse().unwrap();
        let mut replay = Replay::new(capture, 0);
        let due = |us, most| replay.due(Duration::from_micros(us), most);
        assert_eq!([due(0, 9), due(9, 9), due(25, 9), due(25, 2), due(55, 9)], [1, 1, 3, 2, 6]);
        let sent = |n: usize| {
            let mut frame = packets[n].clone();
            frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
            frame
        };
        assert_eq!(replay.arrived(&sent(0)), Some(0));
        assert_eq!(replay.arrived(&sent(3)), Some(3), "two were lost");
        assert_eq!(replay.arrived(&sent(1)), Some(6), "the next time that it is sent");
        let mut spoiled = sent(2);
        spoiled[40] ^= 1;
        assert_eq!(replay.arrived(&spoiled), None);
        assert_eq!(replay.arrived(&packets[2]), None, "other addresses");
    }
}

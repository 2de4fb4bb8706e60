//! Frames that arrive at a VM: counted, and verified if wanted.

use butterfly_guest_driver::fast::RxFrame;
use butterfly_vhost::net::NetHeader;

use crate::{
    frames::{Frames, Part},
    histogram::Histogram,
    options::MAX_SIZE,
    report::Counts,
    sequence::Sequence,
};

/// Checks frames against what the other VM sends.
#[derive(Debug)]
pub struct Inbox {
    /// Frames that the other VM sends.
    awaited: Frames,
    verify: bool,
    /// True if learning is over.
    counted: bool,
    sequence: Sequence,
    buffer: Vec<u8>,
    /// Frames that are the other VM's, and intact as far as looked at.
    pub received: u64,
    /// Bytes of those.
    pub received_bytes: u64,
    strays: u64,
    corrupt: u64,
    /// Times on the way of frames that carry theirs, and the time of this look.
    pub latency: Option<Histogram>,
    pub now: u32,
}

impl Inbox {
    /// For the learning part: nothing is verified.
    pub fn learning(awaited: Frames) -> Inbox {
        Inbox { counted: false, ..Inbox::new(awaited, false) }
    }

    /// For what follows. Frames of the learning part that arrive only now are left out.
    pub fn new(awaited: Frames, verify: bool) -> Inbox {
        // A byte more than the longest frame, so that one that grew is seen to be longer.
        let buffer = vec![0; usize::from(MAX_SIZE) + 1];
        let sequence = Sequence::new();
        Inbox {
            awaited,
            verify,
            counted: true,
            sequence,
            buffer,
            received: 0,
            received_bytes: 0,
            strays: 0,
            corrupt: 0,
            latency: None,
            now: 0,
        }
    }

    /// A frame arrived.
    #[inline]
    pub fn take(&mut self, frame: &RxFrame<'_>) {
        let mut head = [0; 32];
        if frame.read(&mut head) < head.len() || !self.awaited.are_ours(&head, frame.len()) {
            if self.counted && self.awaited.are_of(Part::Learning, &head) {
                return; // late, but from before counting began
            }
            let spoiled = self.verify && self.awaited.have_our_addresses(&head);
            *(if spoiled { &mut self.corrupt } else { &mut self.strays }) += 1;
            return;
        }
        if self.verify && !self.is_intact(frame) {
            self.corrupt += 1;
            return;
        }
        if let Some(latency) = &mut self.latency {
            let mut head = [0; 64];
            let len = frame.read(&mut head);
            if let Some(stamp) = self.awaited.number_of(&head[..len]) {
                latency.add(self.now.wrapping_sub(stamp));
            }
        }
        self.received += self.awaited.segments_in(frame.len());
        self.received_bytes += frame.len() as u64;
    }

    /// True if every byte is what the other VM sent under the number in it.
    fn is_intact(&mut self, frame: &RxFrame<'_>) -> bool {
        let len = frame.read(&mut self.buffer);
        let header = frame.header();
        let bytes = &self.buffer[..len];
        if let Some(replay) = &mut self.awaited.replay {
            let number = replay.arrived(bytes);
            number.iter().for_each(|number| self.sequence.arrived(*number));
            return number.is_some();
        }
        let Some(low) = self.awaited.number_of(bytes) else { return false };
        let number = self.sequence.extend(low);
        // We asked for no offloads, so nothing may be left for us to complete.
        let whole = header.gso_type == NetHeader::GSO_NONE
            && header.flags & NetHeader::FLAG_NEEDS_CSUM == 0;
        if !whole || self.awaited.expected(number) != bytes {
            return false;
        }
        self.sequence.arrived(number);
        true
    }

    /// The books, closed: of `sent` frames of the other VM, those that never arrived are lost.
    pub fn counts(&self, sent: u64) -> Counts {
        let arrived = if self.verify { self.sequence.unique } else { self.received };
        Counts {
            received: self.received,
            received_bytes: self.received_bytes,
            strays: self.strays,
            corrupt: self.corrupt,
            lost: sent.saturating_sub(arrived),
            reordered: self.sequence.reordered,
            // Without numbers only more than were sent are known to have come twice.
            duplicated: if self.verify {
                self.sequence.duplicated
            } else {
                self.received.saturating_sub(sent)
            },
            ..Counts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::{Relaxed, Release};

    use butterfly_guest_driver::{FastConfig, FastGuest, Memory, MemoryConfig, Nic, RX};
    use butterfly_vhost::net::Features;
    use clap::Parser;

    use super::*;
    use crate::{frames::Kind, options::Options};

    const FRAME_LEN: usize = 100;

    /// A receiving VM whose ring the test fills by hand, as a switch does.
    struct Receiver {
        nic: FastGuest,
        next: u16,
        inbox: Inbox,
        sender: Frames,
        /// Frames sent while learning.
        before: Frames,
    }

    impl Receiver {
        fn new(line: &str) -> Receiver {
            let line = format!("butterfly-bench --a x --b y --verify --size {FRAME_LEN} {line}");
            let options = Options::try_parse_from(line.split_whitespace()).unwrap();
            let config = FastConfig {
                queue_size: 256,
                max_frame: 64,
                rx_buffer: 2048,
                header_apart: false,
                indirect: false,
            };
            let memory = Memory::new(&MemoryConfig::new(config.memory_needed())).unwrap();
            let nic = FastGuest::new(&memory, Features::VERSION_1, &config).unwrap();
            let frames = |part| Frames::new(&options, 0, Kind::Data, part);
            let inbox = Inbox::new(frames(Part::Counted), true);
            Receiver {
                nic,
                next: 0,
                inbox,
                sender: frames(Part::Counted),
                before: frames(Part::Learning),
            }
        }

        fn deliver(&mut self, header: NetHeader, frame: &[u8]) {
            let ring = self.nic.link(RX).ring.split().clone();
            let head = ring.avail_entry(self.next).load(Relaxed);
            let stream = [&header.to_bytes()[..], frame].concat();
            self.nic.memory().write(ring.desc(head).addr, &stream).unwrap();
            ring.set_used_entry(self.next, head.into(), stream.len() as u32, Relaxed);
            self.next = self.next.wrapping_add(1);
            ring.used_idx().store(self.next, Release);
            let inbox = &mut self.inbox;
            assert_eq!(self.nic.rx.poll(|frame| inbox.take(&frame)), Ok(1));
        }

        fn deliver_number(&mut self, number: u64) {
            let frame = self.sender.expected(number).to_vec();
            self.deliver(NetHeader::default(), &frame);
        }
    }

    #[test]
    fn every_spoiled_byte_is_noticed() {
        for line in ["", "--tcp --flows 1000"] {
            let mut receiver = Receiver::new(line);
            for at in 0..FRAME_LEN {
                let mut frame = receiver.sender.expected(7).to_vec();
                frame[at] ^= 0x10;
                receiver.deliver(NetHeader::default(), &frame);
                let counts = receiver.inbox.counts(0);
                assert_eq!(
                    (counts.received, counts.corrupt + counts.strays),
                    (0, at as u64 + 1),
                    "byte {at}"
                );
                assert_eq!(counts.strays, 12.min(at as u64 + 1), "addresses only");
            }
            receiver.deliver_number(7);
            assert_eq!(receiver.inbox.counts(0).received, 1, "the intact one");
        }
    }

    #[test]
    fn wrong_lengths_and_headers_are_noticed() {
        let mut receiver = Receiver::new("");
        let frame = receiver.sender.expected(0).to_vec();
        receiver.deliver(NetHeader::default(), &frame[..FRAME_LEN - 1]);
        receiver.deliver(NetHeader::default(), &[&frame[..], &[0]].concat());
        receiver.deliver(
            NetHeader { flags: NetHeader::FLAG_NEEDS_CSUM, ..NetHeader::default() },
            &frame,
        );
        receiver
            .deliver(NetHeader { gso_type: NetHeader::GSO_TCPV4, ..NetHeader::default() }, &frame);
        let counts = receiver.inbox.counts(1);
        assert_eq!((counts.received, counts.corrupt, counts.lost), (0, 4, 1));
        receiver.deliver(
            NetHeader { flags: NetHeader::FLAG_DATA_VALID, ..NetHeader::default() },
            &frame,
        );
        assert_eq!(receiver.inbox.counts(1).received, 1);
    }

    #[test]
    fn late_frames_of_the_learning_part_are_left_out() {
        let mut receiver = Receiver::new("");
        receiver.deliver_number(0);
        for number in [0, 1, 5] {
            let late = receiver.before.expected(number).to_vec();
            receiver.deliver(NetHeader::default(), &late);
        }
        receiver.deliver_number(1);
        let counts = receiver.inbox.counts(2);
        assert_eq!(
            (counts.received, counts.strays, counts.corrupt, counts.duplicated, counts.lost),
            (2, 0, 0, 0, 0)
        );
    }

    #[test]
    fn missing_double_and_late_frames_are_counted() {
        let mut receiver = Receiver::new("--flows 100");
        for number in [0, 1, 3, 2, 3, 10, 0] {
            receiver.deliver_number(number);
        }
        let counts = receiver.inbox.counts(12);
        assert_eq!(
            (counts.corrupt, counts.reordered, counts.duplicated, counts.lost),
            (0, 1, 2, 7)
        );
    }
}

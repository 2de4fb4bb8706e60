//! Streams of numbered frames between stations: each frame arrives once, in order and unchanged.

use butterfly_guest_driver::SendError;
use butterfly_packet::mac::Mac;
use butterfly_vhost::net::{Features, NetHeader};

use crate::{frames, station::Station, wait::PATIENCE};

/// Frames in one direction between two stations, which may detach and return.
#[derive(Debug)]
pub struct Stream {
    id: u64,
    from: Mac,
    to: Mac,
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Announcements of the switch that arrived in between.
    pub announcements: u64,
    /// The number of the next frame, if none is lost.
    next: u64,
}

impl Stream {
    /// Returns a stream from one address to another. Streams with different ids reject each other's
    /// frames.
    pub fn new(id: u64, from: Mac, to: Mac) -> Stream {
        Stream { id, from, to, sent: 0, received: 0, announcements: 0, next: 0 }
    }

    /// Returns the same stream for a receiver that does not know how many frames were sent.
    pub fn far_end(&self) -> Stream {
        Stream { sent: u64::MAX, ..Stream::new(self.id, self.from, self.to) }
    }

    /// Returns its next frame, of `len` bytes.
    pub fn next_frame(&mut self, len: usize) -> Vec<u8> {
        self.sent += 1;
        frames::numbered(self.from, self.to, self.id, self.sent - 1, len)
    }

    /// Sends the next frame. Returns false if the sender's ring is full.
    #[track_caller]
    pub fn send(&mut self, station: &mut Station, len: usize) -> bool {
        let frame = self.next_frame(len);
        match station.vm.guest.send(&frame, NetHeader::default()) {
            Ok(()) => true,
            Err(SendError::Full) => {
                self.sent -= 1;
                false
            }
            Err(error) => panic!("{}: {error}", station.nic.id),
        }
    }

    /// Takes a received frame. It must be of this stream, and later than all before.
    ///
    /// Counts the announcements (RFC 903) that the switch makes when a ring goes on where another
    /// ended: then the VM may have moved.
    #[track_caller]
    pub fn take(&mut self, header: NetHeader, frame: &[u8]) {
        if frame.get(12..14) == Some(&[0x80, 0x35]) {
            self.announcements += 1;
            return;
        }
        assert_eq!(
            NetHeader { num_buffers: 0, ..header },
            NetHeader::default(),
            "stream {}",
            self.id
        );
        let read = frames::read_numbered(frame);
        let Some((stream, number)) = read else {
            panic!(
                "a frame of {} bytes was changed: {:02x?}..",
                frame.len(),
                &frame[..frame.len().min(64)]
            )
        };
        assert_eq!(stream, self.id, "a frame of another stream");
        assert_eq!(
            (frame.get(..6), frame.get(6..12)),
            (Some(&self.to.0[..]), Some(&self.from.0[..])),
            "addresses"
        );
        assert!(
            number >= self.next,
            "stream {}: frame {number} again, or late: {} is next",
            self.id,
            self.next
        );
        assert!(number < self.sent, "stream {}: frame {number} was not sent yet", self.id);
        self.next = number + 1;
        self.received += 1;
    }

    /// Takes all frames that wait in a station's receive ring. Returns their number.
    #[track_caller]
    pub fn take_all(&mut self, station: &mut Station) -> u64 {
        let before = self.received;
        while let Some((header, frame)) = station.vm.guest.recv().unwrap() {
            self.take(header, &frame);
        }
        self.received - before
    }

    /// Number of frames that were sent and not received: under way, or lost.
    pub fn missing(&self) -> u64 {
        self.sent - self.received
    }
}

/// Number of frames of up to `longest` bytes for which a station's receive ring has room.
pub fn room(station: &Station, longest: usize) -> u64 {
    let guest = &station.vm.guest;
    let header = guest.features().header_len();
    let buffers = if guest.features().has(Features::MRG_RXBUF) {
        (longest + header).div_ceil(guest.config().rx_buffer)
    } else {
        1
    };
    (guest.rx_posted() / buffers) as u64
}

/// Sends frames of these lengths both ways at once and checks that each arrives. Never sends more
/// than the receiver has room for.
#[track_caller]
pub fn exchange(a: &mut Station, b: &mut Station, streams: &mut [Stream; 2], lens: &[usize]) {
    let longest = lens.iter().copied().max().unwrap_or(0);
    // Leave some room for announcements, which the switch may send at any time.
    let windows = [room(b, longest), room(a, longest)].map(|window| window - window.min(8) / 2);
    assert!(windows.iter().all(|window| *window > 0), "no room for a single frame: {windows:?}");
    let start = [streams[0].sent, streams[1].sent];
    let done = |stream: &Stream, start: u64| stream.received - start;
    assert!(
        streams.iter().all(|stream| stream.missing() == 0),
        "frames of an earlier exchange are missing"
    );
    let total = lens.len() as u64;
    while streams.iter().zip(start).any(|(stream, start)| done(stream, start) < total) {
        for (direction, from) in [(0, &mut *a), (1, &mut *b)] {
            let stream = &mut streams[direction];
            while stream.missing() < windows[direction] && stream.sent - start[direction] < total {
                let len = lens[(stream.sent - start[direction]) as usize];
                if !stream.send(from, len) {
                    break;
                }
            }
        }
        let mut moved = 0;
        for (direction, to) in [(0, &mut *b), (1, &mut *a)] {
            moved += streams[direction].take_all(to);
        }
        if moved == 0 {
            let (direction, to) =
                if streams[0].missing() > 0 { (0, &mut *b) } else { (1, &mut *a) };
            let received = to.vm.guest.recv_wait(PATIENCE).unwrap();
            let Some((header, frame)) = received else {
                panic!(
                    "{} received {} of {total} frames",
                    to.nic.id,
                    done(&streams[direction], start[direction])
                )
            };
            streams[direction].take(header, &frame);
        }
    }
}

/// Returns the streams of both directions between two stations.
pub fn streams(a: &Station, b: &Station) -> [Stream; 2] {
    [Stream::new(1, a.mac(), b.mac()), Stream::new(2, b.mac(), a.mac())]
}

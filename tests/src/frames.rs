//! Frames with a stream and a number, so that the receiver can check every byte.

use butterfly_packet::{build, mac::Mac};

/// EtherType for experiments (IEEE 802, 9.2.4): not IP, so that filters let it through.
pub const EXPERIMENT: u16 = 0x88b5;

/// Shortest numbered frame.
pub const MIN_NUMBERED: usize = 14 + 16;

/// The address of the `n`th station.
pub fn mac(n: u32) -> Mac {
    let [a, b, c, d] = n.to_be_bytes();
    Mac([0x02, 0xb0, a, b, c, d])
}

/// Returns `len` bytes, each of which depends on `seed`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    // splitmix64
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A frame of `len` bytes of a stream: the stream's and the frame's number, then a pattern that
/// depends on both.
pub fn numbered(from: Mac, to: Mac, stream: u64, number: u64, len: usize) -> Vec<u8> {
    assert!(len >= MIN_NUMBERED, "a numbered frame has at least {MIN_NUMBERED} bytes");
    let mut payload = Vec::with_capacity(len - 14);
    payload.extend(stream.to_be_bytes());
    payload.extend(number.to_be_bytes());
    payload.extend(pattern(stream.rotate_left(32) ^ number, len - MIN_NUMBERED));
    build::ethernet(from, to).payload(EXPERIMENT, &payload)
}

/// The stream's and the frame's number, if every byte is what [`numbered`] wrote.
pub fn read_numbered(frame: &[u8]) -> Option<(u64, u64)> {
    let word = |at: usize| frame.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    let (stream, number) = (word(14)?, word(22)?);
    let same = frame.get(12..14)? == EXPERIMENT.to_be_bytes()
        && frame.get(MIN_NUMBERED..)?
            == pattern(stream.rotate_left(32) ^ number, frame.len() - MIN_NUMBERED);
    same.then_some((stream, number))
}

/// A small, reproducible source of choices.
#[derive(Clone, Debug)]
pub struct Choices(u64);

impl Choices {
    /// Returns the source of a seed.
    pub fn new(seed: u64) -> Choices {
        Choices(seed)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        let bytes = pattern(self.0, 8);
        let word = bytes.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
        (word % bound as u64) as usize
    }

    /// Returns one of these values.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A length between `from` and `to`, both included.
    pub fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }
}

/// The one's complement sum of 16-bit words (RFC 1071), computed without the code under test.
fn ones_complement(bytes: &[u8], start: u32) -> u32 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    words.fold(start, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    })
}

/// An IP packet with a TCP or UDP header in it, as it was received.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    /// True for IPv4, false for IPv6.
    pub v4: bool,
    /// The IP header, options or extension headers included.
    pub ip: &'a [u8],
    /// The protocol: 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// The transport header and everything behind it, up to the length in the IP header.
    pub segment: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a frame. Panics if a length does not fit the frame exactly, or if the IPv4 header
    /// checksum is wrong.
    #[track_caller]
    pub fn read(frame: &'a [u8]) -> Packet<'a> {
        let be16 = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        let mut at = 12;
        while be16(at) == 0x8100 || be16(at) == 0x88a8 {
            at += 4;
        }
        let (ethertype, l3) = (be16(at), at + 2);
        let packet = &frame[l3..];
        if ethertype == 0x0800 {
            let header = usize::from(packet[0] & 0xf) * 4;
            assert_eq!(
                (packet[0] >> 4, be16(l3 + 2)),
                (4, packet.len()),
                "version and total length"
            );
            assert_eq!(ones_complement(&packet[..header], 0), 0xffff, "IPv4 header checksum");
            return Packet {
                v4: true,
                ip: &packet[..header],
                protocol: packet[9],
                segment: &packet[header..],
            };
        }
        assert_eq!(
            (ethertype, packet[0] >> 4, be16(l3 + 4) + 40),
            (0x86dd, 6, packet.len()),
            "type, version and payload length"
        );
        let (mut next, mut header) = (packet[6], 40);
        while matches!(next, 0 | 43 | 60) {
            next = packet[header];
            header += 8 + 8 * usize::from(packet[header + 1]);
        }
        Packet { v4: false, ip: &packet[..header], protocol: next, segment: &packet[header..] }
    }

    /// Sum of the pseudo header.
    fn pseudo(&self) -> u32 {
        let addresses = if self.v4 { &self.ip[12..20] } else { &self.ip[8..40] };
        ones_complement(addresses, self.segment.len() as u32 + u32::from(self.protocol))
    }

    /// The transport checksum in the header, right or wrong.
    pub fn checksum(&self) -> u16 {
        let at = if self.protocol == 6 { 16 } else { 6 };
        u16::from_be_bytes([self.segment[at], self.segment[at + 1]])
    }

    /// Returns true if the transport checksum is right.
    pub fn is_complete(&self) -> bool {
        let sum = self.pseudo();
        ones_complement(self.segment, (sum & 0xffff) + (sum >> 16)) == 0xffff
    }

    /// Returns true if the transport checksum is that of the pseudo header alone, which a device
    /// completes.
    pub fn is_partial(&self) -> bool {
        let sum = self.pseudo();
        let sum = (sum & 0xffff) + (sum >> 16);
        u32::from(self.checksum()) == (sum & 0xffff) + (sum >> 16)
    }

    /// Bytes of the TCP header.
    pub fn tcp_header(&self) -> usize {
        usize::from(self.segment[12] >> 4) * 4
    }

    /// The TCP payload.
    pub fn tcp_payload(&self) -> &'a [u8] {
        &self.segment[self.tcp_header()..]
    }

    /// The TCP sequence number.
    pub fn sequence(&self) -> u32 {
        u32::from_be_bytes([self.segment[4], self.segment[5], self.segment[6], self.segment[7]])
    }

    /// The TCP flags.
    pub fn flags(&self) -> u8 {
        self.segment[13]
    }

    /// The IPv4 identification.
    pub fn identification(&self) -> u16 {
        u16::from_be_bytes([self.ip[4], self.ip[5]])
    }
}

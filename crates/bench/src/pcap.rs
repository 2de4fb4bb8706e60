//! Captures that are played: files in the classic format of libpcap (pcap-savefile(5)).

use std::{fs, str::FromStr, sync::Arc, time::Duration};

use butterfly_packet::be32;

use crate::options::MAX_SIZE;

/// Length of the header of the file, and of that of each packet.
const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;
/// Fewest bytes of a packet that is played: as many as are looked at when it arrives.
const LEAST: usize = 32;
/// LINKTYPE_ETHERNET.
const ETHERNET: u32 = 1;

/// A packet of a capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Time since the first packet.
    pub at: Duration,
    pub bytes: Vec<u8>,
}

/// A capture with at least one packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capture(Arc<[Packet]>);

impl FromStr for Capture {
    type Err = String;

    fn from_str(path: &str) -> Result<Capture, String> {
        let bytes = fs::read(path).map_err(|error| format!("cannot read {path}: {error}"))?;
        Capture::parse(&bytes).map_err(|why| format!("{path}: {why}"))
    }
}

impl Capture {
    fn parse(bytes: &[u8]) -> Result<Capture, String> {
        const NOT: &str = "it is not in the format of libpcap; editcap -F pcap makes it so";
        let magic = be32(bytes, 0).ok_or(NOT)?;
        let (swapped, nanoseconds) = match magic {
            0xa1b2_c3d4 => (false, false),
            0xd4c3_b2a1 => (true, false),
            0xa1b2_3c4d => (false, true),
            0x4d3c_b2a1 => (true, true),
            _ => return Err(NOT.into()),
        };
        let word = |at: usize| {
            let word = be32(bytes, at)?;
            Some(if swapped { word.swap_bytes() } else { word })
        };
        // The upper half says how long checksums are.
        let link = word(20).ok_or(NOT)? & 0xffff;
        if link != ETHERNET {
            return Err(format!("its packets are of link type {link}, and not of Ethernet (1)"));
        }
        let mut packets: Vec<Packet> = Vec::new();
        let (mut at, mut first) = (FILE_HEADER, None);
        while at < bytes.len() {
            let number = packets.len() + 1;
            let header = [0, 4, 8, 12].map(|field| word(at + field));
            let [Some(seconds), Some(part), Some(len), Some(whole)] = header else {
                return Err(format!("it ends within packet {number}"));
            };
            if len < whole {
                return Err(format!(
                    "packet {number} was captured in part: {len} of its {whole} bytes"
                ));
            }
            let len = len as usize;
            if !(LEAST..=usize::from(MAX_SIZE)).contains(&len) {
                return Err(format!(
                    "packet {number} has {len} bytes, and {LEAST} to {MAX_SIZE} can be sent"
                ));
            }
            let begin = at + PACKET_HEADER;
            let content = bytes
                .get(begin..begin + len)
                .ok_or_else(|| format!("it ends within packet {number}"))?;
            let part = if nanoseconds { part } else { part.saturating_mul(1000) };
            let time = Duration::new(seconds.into(), part);
            let first = *first.get_or_insert(time);
            // Clocks are set back at times: then two packets come at once.
            let since = time.saturating_sub(first);
            let since = packets.last().map_or(since, |before| since.max(before.at));
            packets.push(Packet { at: since, bytes: content.to_vec() });
            at = begin + len;
        }
        if packets.is_empty() {
            Err("it has no packets".into())
        } else {
            Ok(Capture(packets.into()))
        }
    }

    /// Returns the packets, at least one.
    pub fn packets(&self) -> &[Packet] {
        &self.0
    }

    /// Returns the bytes of the largest one.
    pub fn largest(&self) -> usize {
        self.0.iter().map(|packet| packet.bytes.len()).max().unwrap_or_default()
    }

    /// Returns the time at which the packet with this number, from 0, is due, if all are played
    /// again and again.
    pub fn due(&self, number: u64) -> Duration {
        let all = self.0.len() as u64;
        let last = self.0.last().map_or(Duration::ZERO, |packet| packet.at);
        // The next round begins after a usual gap.
        let round = last + last / u32::try_from(all - 1).unwrap_or(u32::MAX).max(1);
        let round = round.max(Duration::from_nanos(all));
        let at = self.0.get((number % all) as usize).map_or(Duration::ZERO, |packet| packet.at);
        round.mul_f64((number / all) as f64) + at
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Writes a capture of packets with their times in microseconds.
    pub fn file(packets: &[(u32, &[u8])]) -> Vec<u8> {
        let mut file = Vec::new();
        file.extend(0xa1b2_c3d4u32.to_be_bytes());
        file.extend([0, 2, 0, 4]);
        file.extend([0, 0, 65535, ETHERNET].map(u32::to_be_bytes).as_flattened());
        for (us, bytes) in packets {
            let len = bytes.len() as u32;
            file.extend(
                [us / 1_000_000, us % 1_000_000, len, len].map(u32::to_be_bytes).as_flattened(),
            );
            file.extend(*bytes);
        }
        file
    }

    #[test]
    fn packets_come_when_they_came() {
        let [a, b] = [[1u8; 60], [2; 60]];
        let file = file(&[(1_500_000, &a), (1_500_010, &b), (1_500_005, &a)]);
        let capture = Capture::parse(&file).unwrap();
        let us = |n: u64| capture.due(n).as_micros();
        assert_eq!([us(0), us(1), us(2)], [0, 10, 10]);
        // A round takes 10 us and a gap of 5.
        assert_eq!([us(3), us(4), us(7)], [15, 25, 40]);
        assert_eq!(capture.largest(), 60);
        assert_eq!(capture.packets()[1].bytes, b);
        // Other byte order, and nanoseconds.
        let mut swapped = file[..16].to_vec();
        swapped[..4].copy_from_slice(&0x4d3c_b2a1u32.to_be_bytes());
        swapped.extend([65535, ETHERNET, 7, 5, 60, 60].map(u32::to_le_bytes).as_flattened());
        swapped.extend(a);
        swapped.extend([7, 12, 60, 60].map(u32::to_le_bytes).as_flattened());
        swapped.extend(b);
        assert_eq!(Capture::parse(&swapped).unwrap().due(1), Duration::from_nanos(7));
    }

    #[test]
    fn what_cannot_be_played_is_refused_by_name() {
        let good = file(&[(0, &[0; 60])]);
        let refused = |bytes: &[u8]| Capture::parse(bytes).unwrap_err();
        for len in 0..good.len() {
            let why = refused(&good[..len]);
            assert!(
                ["format", "ends within", "no packets"].iter().any(|word| why.contains(word)),
                "{len}: {why}"
            );
        }
        let mut other = good.clone();
        other[23] = 101;
        assert!(refused(&other).contains("link type 101"));
        let mut part = good.clone();
        part[39] = 61;
        assert!(refused(&part).contains("captured in part: 60 of its 61"));
        assert!(refused(&file(&[(0, &[0; 31])])).contains("31 bytes"));
        assert!(refused(&file(&[(0, &[0; 9001])])).contains("9001 bytes"));
        assert!("/nowhere.pcap".parse::<Capture>().unwrap_err().contains("cannot read"));
    }
}

//! Limits of a vnic's traffic.

/// Limits of the traffic of one way, per second and at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    bits: u64,
    packets: u64,
    burst_bytes: u64,
    burst_packets: u64,
}

/// A limit that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The rate is no rate.
    #[error("a limit is from {LEAST_BITS} to {MOST_BITS} bits per second, or 0 for none, not {0}")]
    Bits(u64),
    /// As many packets as that are no limit.
    #[error("a limit is at most {MOST_PACKETS} packets per second, not {0}")]
    Packets(u64),
    /// As many bytes or packets as that at once are no limit.
    #[error("a burst is at most {MOST_BURST}, not {0}")]
    Burst(u64),
    /// Bytes at once, and no bits per second.
    #[error("a burst of bytes needs a limit of bits per second")]
    BytesWithoutRate,
    /// Packets at once, and no packets per second.
    #[error("a burst of packets needs a limit of packets per second")]
    PacketsWithoutRate,
}

/// With fewer, a full-sized frame would wait for seconds.
const LEAST_BITS: u64 = 8_000;
const MOST_BITS: u64 = 100_000_000_000_000;
const MOST_PACKETS: u64 = 100_000_000_000;
const MOST_BURST: u64 = 1 << 40;
/// Bursts are so many parts of what goes in a second, unless they are said.
const BURSTS_PER_SECOND: u64 = 100;

impl Limit {
    /// Limits frames to so many bits and packets per second, 0 of them for any number, and to so
    /// many bytes and packets at once, 0 of them for those of 10 ms.
    pub fn new(
        bits: u64,
        packets: u64,
        burst_bytes: u64,
        burst_packets: u64,
    ) -> Result<Limit, LimitError> {
        if bits > 0 && !(LEAST_BITS..=MOST_BITS).contains(&bits) {
            return Err(LimitError::Bits(bits));
        }
        if packets > MOST_PACKETS {
            return Err(LimitError::Packets(packets));
        }
        if let Some(burst) = [burst_bytes, burst_packets].into_iter().find(|it| *it > MOST_BURST) {
            return Err(LimitError::Burst(burst));
        }
        if burst_bytes > 0 && bits == 0 {
            return Err(LimitError::BytesWithoutRate);
        }
        if burst_packets > 0 && packets == 0 {
            return Err(LimitError::PacketsWithoutRate);
        }
        Ok(Limit { bits, packets, burst_bytes, burst_packets })
    }

    /// Returns whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.bits == 0 && self.packets == 0
    }

    /// Returns the bits per second as declared.
    pub fn bits(&self) -> u64 {
        self.bits
    }

    /// Returns the packets per second as declared.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the bytes at once as declared.
    pub fn burst_bytes(&self) -> u64 {
        self.burst_bytes
    }

    /// Returns the packets at once as declared.
    pub fn burst_packets(&self) -> u64 {
        self.burst_packets
    }

    /// Returns bytes per second, and the number that may go at once, if they are limited.
    pub fn byte_rate(&self) -> Option<(u64, u64)> {
        rate(self.bits / 8, self.burst_bytes)
    }

    /// Returns packets per second, and the number that may go at once, if they are limited.
    pub fn packet_rate(&self) -> Option<(u64, u64)> {
        rate(self.packets, self.burst_packets)
    }
}

fn rate(per_second: u64, burst: u64) -> Option<(u64, u64)> {
    let burst = if burst > 0 { burst } else { (per_second / BURSTS_PER_SECOND).max(1) };
    (per_second > 0).then_some((per_second, burst))
}

/// Limits of both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Traffic that the switch takes from the virtual machine.
    pub from_guest: Limit,
    /// Traffic that the virtual machine gets.
    pub to_guest: Limit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_those_of_ten_milliseconds_unless_said() {
        let limit = Limit::new(1_000_000_000, 100_000, 0, 0).unwrap();
        assert_eq!(limit.byte_rate(), Some((125_000_000, 1_250_000)));
        assert_eq!(limit.packet_rate(), Some((100_000, 1000)));
        let limit = Limit::new(8_000, 5, 3000, 7).unwrap();
        assert_eq!((limit.byte_rate(), limit.packet_rate()), (Some((1000, 3000)), Some((5, 7))));
        assert_eq!(Limit::new(0, 5, 0, 0).unwrap().packet_rate(), Some((5, 1)));
        assert!(Limit::default().is_none() && !limit.is_none());
        assert_eq!(Limit::default().byte_rate(), None);
    }

    #[test]
    fn limits_that_are_none_are_refused() {
        let refused = |bits, packets, bytes, burst| Limit::new(bits, packets, bytes, burst).err();
        assert_eq!(refused(7_999, 0, 0, 0), Some(LimitError::Bits(7_999)));
        assert_eq!(refused(MOST_BITS + 1, 0, 0, 0), Some(LimitError::Bits(MOST_BITS + 1)));
        assert_eq!(refused(0, u64::MAX, 0, 0), Some(LimitError::Packets(u64::MAX)));
        assert_eq!(refused(8_000, 1, 0, u64::MAX), Some(LimitError::Burst(u64::MAX)));
        assert_eq!(refused(0, 1, 5, 0), Some(LimitError::BytesWithoutRate));
        assert_eq!(refused(8_000, 0, 0, 5), Some(LimitError::PacketsWithoutRate));
        assert_eq!(refused(MOST_BITS, MOST_PACKETS, MOST_BURST, MOST_BURST), None);
    }
}

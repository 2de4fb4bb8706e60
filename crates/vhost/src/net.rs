//! virtio-net feature bits and the header in front of every frame.
//!
//! virtio 1.2, 5.1.3 (feature bits), 5.1.6 (header), 6 (reserved feature bits). All header fields
//! are little-endian; legacy guests use their native order, which is the same on every host that
//! Butterfly runs on (checked below).

use std::fmt;

#[cfg(target_endian = "big")]
compile_error!("legacy virtio uses the guest's byte order; only little-endian hosts are supported");

/// A set of virtio feature bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Features(pub u64);

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl Features {
            $($(#[$doc])* pub const $name: Features = Features(1 << $bit);)*
            const NAMES: &'static [(u64, &'static str)] = &[$((1 << $bit, $text)),*];
        }
    };
}

features! {
    /// Device handles packets with partial checksum.
    CSUM = 0, "csum";
    /// Driver handles packets with partial checksum.
    GUEST_CSUM = 1, "guest-csum";
    /// Driver receives TCPv4 segments larger than the MTU.
    GUEST_TSO4 = 7, "guest-tso4";
    /// Driver receives TCPv6 segments larger than the MTU.
    GUEST_TSO6 = 8, "guest-tso6";
    /// Driver receives TSO with ECN.
    GUEST_ECN = 9, "guest-ecn";
    /// Driver receives UDP fragmentation offload frames (never offered).
    GUEST_UFO = 10, "guest-ufo";
    /// Device receives TCPv4 segments larger than the MTU.
    HOST_TSO4 = 11, "host-tso4";
    /// Device receives TCPv6 segments larger than the MTU.
    HOST_TSO6 = 12, "host-tso6";
    /// Device receives TSO with ECN.
    HOST_ECN = 13, "host-ecn";
    /// Device receives UDP fragmentation offload frames (never offered).
    HOST_UFO = 14, "host-ufo";
    /// Driver merges receive buffers.
    MRG_RXBUF = 15, "mrg-rxbuf";
    /// Driver announces itself when it is asked to; QEMU asks after a live migration.
    GUEST_ANNOUNCE = 21, "guest-announce";
    /// Device has several pairs of queues. The guest says through the control queue, which the
    /// front end serves, how many it uses.
    MQ = 22, "mq";
    /// Notify when the ring runs empty even if suppressed (legacy).
    NOTIFY_ON_EMPTY = 24, "notify-on-empty";
    /// Dirty pages are logged (vhost).
    LOG_ALL = 26, "log-all";
    /// Arbitrary descriptor layouts (legacy guests).
    ANY_LAYOUT = 27, "any-layout";
    /// Indirect descriptor tables.
    INDIRECT_DESC = 28, "indirect-desc";
    /// used_event and avail_event.
    EVENT_IDX = 29, "event-idx";
    /// vhost-user protocol features follow.
    PROTOCOL_FEATURES = 30, "protocol-features";
    /// virtio 1.0 and later.
    VERSION_1 = 32, "version-1";
    /// Descriptors and used entries share one ring.
    RING_PACKED = 34, "ring-packed";
    /// Buffers are used in the order in which they were made available.
    IN_ORDER = 35, "in-order";
    /// Driver receives UDPv4 datagrams to be segmented (virtio 1.3, 5.1.3).
    GUEST_USO4 = 54, "guest-uso4";
    /// Driver receives UDPv6 datagrams to be segmented.
    GUEST_USO6 = 55, "guest-uso6";
    /// Device receives UDP datagrams to be segmented.
    HOST_USO = 56, "host-uso";
}

impl Features {
    /// No feature.
    pub const NONE: Features = Features(0);
    /// Every feature a Butterfly vnic offers to its guest.
    pub const OFFERED: Features = Features(
        Self::CSUM.0
            | Self::GUEST_CSUM.0
            | Self::GUEST_TSO4.0
            | Self::GUEST_TSO6.0
            | Self::GUEST_ECN.0
            | Self::HOST_TSO4.0
            | Self::HOST_TSO6.0
            | Self::HOST_ECN.0
            | Self::USO.0
            | Self::MRG_RXBUF.0
            | Self::GUEST_ANNOUNCE.0
            | Self::MQ.0
            | Self::LOG_ALL.0
            | Self::ANY_LAYOUT.0
            | Self::INDIRECT_DESC.0
            | Self::EVENT_IDX.0
            | Self::PROTOCOL_FEATURES.0
            | Self::VERSION_1.0
            | Self::IN_ORDER.0,
    );

    /// Features that leave work on checksums and segments to the other side.
    pub const OFFLOADS: Features = Features(
        Self::CSUM.0
            | Self::GUEST_CSUM.0
            | Self::GUEST_TSO4.0
            | Self::GUEST_TSO6.0
            | Self::GUEST_ECN.0
            | Self::HOST_TSO4.0
            | Self::HOST_TSO6.0
            | Self::HOST_ECN.0
            | Self::USO.0,
    );

    /// Features by which several datagrams of UDP are one frame.
    pub const USO: Features = Features(Self::GUEST_USO4.0 | Self::GUEST_USO6.0 | Self::HOST_USO.0);

    /// True if all bits of `other` are set.
    pub const fn has(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    /// This set without `other`.
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// Length of the header in front of every frame: 12 bytes with `num_buffers`, else 10 (virtio
    /// 1.2, 5.1.6.1).
    pub const fn header_len(self) -> usize {
        if self.0 & (Self::MRG_RXBUF.0 | Self::VERSION_1.0) != 0 {
            NetHeader::LEN
        } else {
            NetHeader::LEGACY_LEN
        }
    }

    /// Names of the set bits in bit order; unknown bits as `bit-N`.
    pub fn names(self) -> Vec<String> {
        (0..64)
            .filter(|bit| self.0 & (1 << bit) != 0)
            .map(|bit| {
                Self::NAMES
                    .iter()
                    .find(|(mask, _)| *mask == 1 << bit)
                    .map_or_else(|| format!("bit-{bit}"), |(_, name)| (*name).to_owned())
            })
            .collect()
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.names().join(" "))
    }
}

/// The virtio-net header (`struct virtio_net_hdr_v1`), as values.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NetHeader {
    /// `FLAG_*`.
    pub flags: u8,
    /// `GSO_*`, with `GSO_ECN` or'ed in.
    pub gso_type: u8,
    /// Length of all headers, a hint only.
    pub hdr_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Offset at which checksumming starts, from the first byte of the frame.
    pub csum_start: u16,
    /// Offset of the checksum field, from `csum_start`.
    pub csum_offset: u16,
    /// Number of merged receive buffers; 0 or absent on transmit.
    pub num_buffers: u16,
}

impl NetHeader {
    /// Nothing is left to do, and nothing is said.
    pub const NONE: NetHeader = NetHeader {
        flags: 0,
        gso_type: NetHeader::GSO_NONE,
        hdr_len: 0,
        gso_size: 0,
        csum_start: 0,
        csum_offset: 0,
        num_buffers: 0,
    };
    /// Bytes on the ring with `num_buffers`.
    pub const LEN: usize = 12;
    /// Bytes on the ring of a legacy guest without mergeable buffers.
    pub const LEGACY_LEN: usize = 10;
    /// The checksum is partial: complete it from `csum_start`.
    pub const FLAG_NEEDS_CSUM: u8 = 1;
    /// The checksum was verified (receive only).
    pub const FLAG_DATA_VALID: u8 = 2;
    /// Not a segmented frame.
    pub const GSO_NONE: u8 = 0;
    /// TCP over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// UDP fragmentation (never offered).
    pub const GSO_UDP: u8 = 3;
    /// TCP over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// Several datagrams of UDP, over IPv4 or IPv6 (virtio 1.3, 5.1.6).
    pub const GSO_UDP_L4: u8 = 5;
    /// Or'ed in: the segment has ECN set.
    pub const GSO_ECN: u8 = 0x80;

    /// Returns the header's bytes on the ring; a legacy guest takes the first [`Self::LEGACY_LEN`].
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let hdr = self.hdr_len.to_le_bytes();
        let gso = self.gso_size.to_le_bytes();
        let start = self.csum_start.to_le_bytes();
        let offset = self.csum_offset.to_le_bytes();
        let buffers = self.num_buffers.to_le_bytes();
        [
            self.flags,
            self.gso_type,
            hdr[0],
            hdr[1],
            gso[0],
            gso[1],
            start[0],
            start[1],
            offset[0],
            offset[1],
            buffers[0],
            buffers[1],
        ]
    }

    /// Reads a header from the ring. `bytes` beyond [`Self::LEGACY_LEN`] are `num_buffers`.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> NetHeader {
        NetHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: u16::from_le_bytes([bytes[2], bytes[3]]),
            gso_size: u16::from_le_bytes([bytes[4], bytes[5]]),
            csum_start: u16::from_le_bytes([bytes[6], bytes[7]]),
            csum_offset: u16::from_le_bytes([bytes[8], bytes[9]]),
            num_buffers: u16::from_le_bytes([bytes[10], bytes[11]]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_ring() {
        let header = NetHeader {
            flags: 1,
            gso_type: 4,
            hdr_len: 0x1234,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 3,
        };
        assert_eq!(NetHeader::from_bytes(header.to_bytes()), header);
    }

    #[test]
    fn header_length_follows_the_features() {
        assert_eq!(Features::NONE.header_len(), 10);
        assert_eq!(Features::MRG_RXBUF.header_len(), 12);
        assert_eq!(Features::VERSION_1.header_len(), 12);
    }

    #[test]
    fn unknown_bits_have_a_name_too() {
        assert_eq!(Features(1 | 1 << 63).names(), ["csum", "bit-63"]);
    }
}

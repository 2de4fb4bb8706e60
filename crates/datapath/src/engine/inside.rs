//! Contents of a frame, as far as filters ask.

use butterfly_packet::ethernet;

/// Contents of a frame, as far as filters ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inside {
    /// IPv4 or IPv6 that starts at byte `at`, behind one VLAN tag at most. The version nibble
    /// agrees with the type. `vlan` is in the form of `Tuple::vlan`.
    Ip { at: u16, vlan: u16 },
    /// IP behind several tags or behind LLC, or a type that contradicts the version nibble (CERT
    /// VU#855201).
    HiddenIp,
    /// ARP that starts at this byte.
    Arp(u16),
    /// Reverse ARP (RFC 903).
    Rarp,
    /// Anything else.
    NonIp,
}

/// Contents of most frames.
pub(crate) const PLAIN_IP: Inside = Inside::Ip { at: ethernet::HEADER_LEN as u16, vlan: 0 };

//! What a frame carries, as far as filters ask.

use butterfly_packet::ethernet;

/// What a frame carries, as far as filters ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inside {
    /// Nobody asked.
    Unknown,
    /// IPv4 or IPv6 from this byte on, at most behind one VLAN tag, and it says so itself. The tag
    /// as [`crate::ip::Tuple::vlan`] has it.
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

/// What most frames are.
pub(crate) const PLAIN_IP: Inside = Inside::Ip { at: ethernet::HEADER_LEN as u16, vlan: 0 };

//! Addresses of both families as one number.

/// An IPv6 address as a number, first byte highest; an IPv4 address as `::ffff:a.b.c.d`. IPv6
/// packets with such addresses are dropped before this (RFC 4291, 2.5.5.2: they are not for the
/// wire), so the families cannot be confused.
pub(crate) type Address = u128;

const MAPPED: Address = 0xffff << 32;

/// Returns an IPv4 address as [`Address`].
#[inline(always)]
pub(crate) const fn mapped(address: std::net::Ipv4Addr) -> Address {
    MAPPED | address.to_bits() as Address
}

/// Returns whether an address is IPv4.
#[inline(always)]
pub(crate) const fn is_v4(address: Address) -> bool {
    address >> 32 == MAPPED >> 32
}

/// Returns the upper half of an address: the block of 64 bits that it is in. That of IPv4 is 0,
/// which is no vnic's.
#[inline(always)]
pub(crate) const fn upper(address: Address) -> u64 {
    (address >> 64) as u64
}

/// Bit added to a VLAN id. Tells "VLAN 0" from "no tag".
pub(crate) const TAGGED: u16 = 0x1000;

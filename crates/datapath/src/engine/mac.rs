//! MAC addresses as numbers.

use butterfly_packet::mac::Mac;

/// Returns an address as a number below 2^48, first byte lowest. Addresses are compared and looked
/// up in this form.
#[inline(always)]
pub(crate) const fn number(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// Returns the address of a [`number`].
pub(crate) const fn address(number: u64) -> Mac {
    let [a, b, c, d, e, f, _, _] = number.to_le_bytes();
    Mac([a, b, c, d, e, f])
}

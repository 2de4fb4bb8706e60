//! Reserved MAC addresses: those of routers in their networks, and of hosts for what they routed.
//!
//! Both are locally administered (IEEE 802, 8.4.2). `b2:f0` and four bytes that tell the router is
//! the *router's MAC address*, on all hosts; `b2:f1` and four bytes that tell the host is that
//! host's *router address*. No machine may send from one.

/// Bits that tell both kinds: all of the first byte, all but the lowest of the second.
const MASK: u64 = 0xfeff;
const PREFIX: u64 = 0xf0b2;
/// Both bytes of a host's.
const HOST: u64 = 0xf1b2;

/// Bit beside a router's MAC address, of 48 bits, that says that the destination of a packet to it
/// was translated.
pub(crate) const TRANSLATED: u64 = 1 << 63;

/// Returns whether an address ([`crate::engine::mac::number`]) is reserved.
#[inline(always)]
pub(crate) const fn is_reserved(number: u64) -> bool {
    number & MASK == PREFIX
}

/// Returns whether an address is the router address of a host.
#[inline(always)]
pub(crate) const fn is_host(number: u64) -> bool {
    number & 0xffff == HOST
}

#[cfg(test)]
mod tests {
    use butterfly_model::{host_mac, is_reserved_mac};
    use butterfly_packet::Mac;
    use proptest::prelude::*;

    use super::*;
    use crate::engine::mac::number;

    proptest! {
        #[test]
        fn what_is_reserved_is_said_by_the_declaration(mac: [u8; 6], near: bool, second: u8) {
            let mut mac = mac;
            if near {
                (mac[0], mac[1]) = (0xb2, second);
            }
            prop_assert_eq!(is_reserved(number(Mac(mac))), is_reserved_mac(mac));
        }
    }

    #[test]
    fn hosts_are_told_apart() {
        let is_host = |mac: [u8; 6]| is_host(number(Mac(mac)));
        assert!(is_host(host_mac([10, 0, 0, 1].into())) && !is_host([0xb2, 0xf0, 10, 0, 0, 1]));
        assert!(!is_host([0xb1, 0xf1, 0, 0, 0, 0]) && !is_host([0xb2, 0xf2, 0, 0, 0, 0]));
    }

    #[test]
    fn two_prefixes_are_reserved() {
        let reserved = |mac: [u8; 6]| is_reserved(number(Mac(mac)));
        assert!(reserved([0xb2, 0xf0, 1, 2, 3, 4]) && reserved([0xb2, 0xf1, 0, 0, 0, 0]));
        assert!(!reserved([0xb2, 0xf2, 0, 0, 0, 0]) && !reserved([0xb0, 0xf0, 0, 0, 0, 0]));
    }
}

//! DHCP exchanges (RFC 2131, RFC 8415): a client's questions leave without a rule, the answers to them come back.

use butterfly_packet::{Mac, be32};

/// Ports of DHCPv4 and DHCPv6.
const CLIENT: u16 = 68;
const SERVER: u16 = 67;
const CLIENT_V6: u16 = 546;
const SERVER_V6: u16 = 547;

/// RFC 2131, figure 1, with the magic cookie (section 3).
const MIN_LEN: usize = 240;
/// Where the client's hardware address is.
const CHADDR: usize = 28;
/// Bytes [`Dhcp::read`] looks at.
pub(crate) const SEEN: usize = CHADDR + 6;

/// A DHCP message as far as a filter cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dhcp {
    /// Between which ports it goes: from the client's to the server's.
    pub request: bool,
    pub v6: bool,
    /// `xid` (32 bits) or DHCPv6 transaction id (24 bits).
    pub transaction: u32,
    /// `chaddr`; DHCPv6 has none.
    pub mac: Option<Mac>,
    /// The message is of a kind that goes this way, has the length it needs and (IPv4) is about an Ethernet address. A DHCPv6
    /// reconfigure is not: it answers nothing.
    pub valid: bool,
}

impl Dhcp {
    /// Whether UDP between these ports is DHCP, and if so whether it is a request.
    #[inline]
    pub fn between(source_port: u16, destination_port: u16, v6: bool) -> Option<bool> {
        match (source_port, destination_port, v6) {
            (CLIENT, SERVER, false) | (CLIENT_V6, SERVER_V6, true) => Some(true),
            (SERVER, CLIENT, false) | (SERVER_V6, CLIENT_V6, true) => Some(false),
            _ => None,
        }
    }

    /// Reads a UDP payload of which the first bytes ([`SEEN`], or all if fewer) are at hand; `len` is how long it really is.
    pub fn read(payload: &[u8], len: usize, request: bool, v6: bool) -> Dhcp {
        let unread = Dhcp { request, v6, transaction: 0, mac: None, valid: false };
        if v6 { Self::read_v6(payload, unread) } else { Self::read_v4(payload, len, unread) }
    }

    fn read_v4(payload: &[u8], len: usize, unread: Dhcp) -> Dhcp {
        let (Some(&[op, htype, hlen]), Some(transaction)) = (payload.first_chunk(), be32(payload, 4)) else { return unread };
        let Some(&mac) = payload.get(CHADDR..).and_then(|rest| rest.first_chunk()) else { return unread };
        let expected = if unread.request { 1 } else { 2 };
        let valid = op == expected && (htype, hlen) == (1, 6) && len >= MIN_LEN;
        Dhcp { transaction, mac: Some(Mac(mac)), valid, ..unread }
    }

    fn read_v6(payload: &[u8], unread: Dhcp) -> Dhcp {
        let Some(word) = be32(payload, 0) else { return unread };
        let valid = match word >> 24 {
            // Solicit, request, confirm, renew, rebind, release, decline, information-request.
            1 | 3..=6 | 8 | 9 | 11 => unread.request,
            // Advertise, reply.
            2 | 7 => !unread.request,
            _ => false,
        };
        Dhcp { transaction: word & 0xff_ffff, valid, ..unread }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn bootp(op: u8) -> Vec<u8> {
        let mut bytes = vec![op, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef];
        bytes.resize(CHADDR, 0);
        bytes.extend(MAC.0);
        bytes.resize(300, 0);
        bytes
    }

    fn v4(bytes: &[u8], request: bool) -> Dhcp {
        Dhcp::read(bytes, bytes.len(), request, false)
    }

    fn v6(bytes: &[u8], request: bool) -> Dhcp {
        Dhcp::read(bytes, bytes.len(), request, true)
    }

    #[test]
    fn ports_say_who_asks() {
        assert_eq!(Dhcp::between(68, 67, false), Some(true));
        assert_eq!(Dhcp::between(67, 68, false), Some(false));
        assert_eq!(Dhcp::between(546, 547, true), Some(true));
        assert_eq!(Dhcp::between(547, 546, true), Some(false));
        for (source, destination, v6) in
            [(67, 67, false), (68, 68, false), (547, 547, true), (68, 67, true), (546, 547, false), (1068, 67, false)]
        {
            assert_eq!(Dhcp::between(source, destination, v6), None, "{source} {destination} {v6}");
        }
    }

    #[test]
    fn a_request_and_its_reply() {
        for request in [true, false] {
            let message = v4(&bootp(if request { 1 } else { 2 }), request);
            assert_eq!(message, Dhcp { request, v6: false, transaction: 0xdead_beef, mac: Some(MAC), valid: true });
        }
    }

    #[test]
    fn the_operation_must_fit_the_direction() {
        assert!(!v4(&bootp(2), true).valid && !v4(&bootp(1), false).valid && !v4(&bootp(0), true).valid);
    }

    #[test]
    fn only_ethernet_of_full_length() {
        for (at, value) in [(1, 6), (2, 0), (2, 16)] {
            let mut bytes = bootp(1);
            bytes[at] = value;
            assert!(!v4(&bytes, true).valid, "byte {at} = {value}");
        }
        assert!(v4(&bootp(1)[..240], true).valid);
        assert!(!v4(&bootp(1)[..239], true).valid);
        // The rest need not be at hand.
        assert!(Dhcp::read(&bootp(1)[..SEEN], 300, true, false).valid);
        assert!(!Dhcp::read(&bootp(1)[..SEEN - 1], 300, true, false).valid);
    }

    #[test]
    fn kinds_of_dhcpv6() {
        let valid = |request| (0..=255u8).filter(|kind| v6(&[*kind, 1, 2, 3, 0], request).valid).collect::<Vec<_>>();
        assert_eq!(valid(true), [1, 3, 4, 5, 6, 8, 9, 11]);
        assert_eq!(valid(false), [2, 7]);
        assert_eq!(v6(&[7, 1, 2, 3], false), Dhcp { request: false, v6: true, transaction: 0x010203, mac: None, valid: true });
        assert!(!v6(&[1, 2, 3], true).valid);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), len in any::<usize>(), request: bool, v6: bool) {
            let message = Dhcp::read(&bytes, len, request, v6);
            prop_assert_eq!((message.request, message.v6), (request, v6));
        }
    }
}

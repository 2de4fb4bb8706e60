//! IEEE 802 MAC addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// A 48-bit MAC address, bytes in transmission order.
///
/// ```
/// use butterfly_packet::Mac;
/// let mac: Mac = "02:00:00:00:AB:01".parse()?;
/// assert_eq!(mac, Mac([2, 0, 0, 0, 0xab, 1]));
/// assert_eq!((mac.to_string(), mac.is_group()), ("02:00:00:00:ab:01".to_owned(), false));
/// assert!("02:00:00:00:ab".parse::<Mac>().is_err());
/// # Ok::<(), butterfly_packet::mac::BadMac>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All ones: every station.
    pub const BROADCAST: Mac = Mac([0xff; 6]);
    /// All zeros: no station.
    pub const ZERO: Mac = Mac([0; 6]);

    /// True if the group bit is set: multicast or broadcast.
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True if it is the broadcast address.
    #[inline]
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }

    /// Returns the address as a number below 2^48, first transmitted byte highest.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// Returns the link address of an IPv4 group: 01:00:5e and its low 23 bits (RFC 1112, 6.4).
    #[inline]
    pub const fn of_group_v4(group: Ipv4Addr) -> Mac {
        let [_, a, b, c] = group.octets();
        Mac([0x01, 0x00, 0x5e, a & 0x7f, b, c])
    }

    /// Returns the link address of an IPv6 group: 33:33 and its low 32 bits (RFC 2464, 7).
    #[inline]
    pub const fn of_group_v6(group: Ipv6Addr) -> Mac {
        let [.., a, b, c, d] = group.octets();
        Mac([0x33, 0x33, a, b, c, d])
    }

    /// Returns the link address of a group of either family.
    #[inline]
    pub const fn of_group(group: IpAddr) -> Mac {
        match group {
            IpAddr::V4(group) => Mac::of_group_v4(group),
            IpAddr::V6(group) => Mac::of_group_v6(group),
        }
    }

    /// Returns the IPv6 link-local address that a station with this address gives itself (RFC 2464,
    /// 5; RFC 4291, appendix A).
    #[inline]
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from_bits(
            0xfe80 << 112 | u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]) as u128,
        )
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Error of reading a text that is not a MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadMac;

impl fmt::Display for BadMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a MAC address: want six pairs of hexadecimal digits joined by colons, such as 02:00:00:00:00:01")
    }
}

impl std::error::Error for BadMac {}

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Mac, BadMac> {
        let mut mac = [0; 6];
        let mut pairs = text.split(':');
        for byte in &mut mac {
            let pair = pairs.next().ok_or(BadMac)?;
            if pair.len() != 2 || !pair.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(BadMac);
            }
            *byte = u8::from_str_radix(pair, 16).map_err(|_| BadMac)?;
        }
        if pairs.next().is_some() { Err(BadMac) } else { Ok(Mac(mac)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mac = Mac([2, 0, 0, 0, 0xab, 1]);
        assert_eq!("02:00:00:00:AB:01".parse(), Ok(mac));
        assert_eq!(mac.to_string(), "02:00:00:00:ab:01");
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:",
            "2:00:00:00:00:001",
            "+2:00:00:00:00:01",
            "0g:00:00:00:00:01",
        ] {
            assert_eq!(bad.parse::<Mac>(), Err(BadMac), "{bad}");
        }
    }

    #[test]
    fn groups() {
        assert!(Mac::BROADCAST.is_broadcast() && Mac::BROADCAST.is_group());
        assert!(Mac([1, 0, 0x5e, 0, 0, 1]).is_group() && !Mac([2, 0, 0, 0, 0, 1]).is_group());
        assert_eq!(Mac([1, 2, 3, 4, 5, 6]).to_u64(), 0x010203040506);
    }

    #[test]
    fn addresses_that_follow_from_others() {
        let group = |text: &str| Mac::of_group(text.parse().unwrap()).to_string();
        assert_eq!(group("230.0.5.57"), "01:00:5e:00:05:39");
        assert_eq!(group("230.255.255.255"), "01:00:5e:7f:ff:ff");
        assert_eq!(group("ff00::fe00:2a"), "33:33:fe:00:00:2a");
        // The example of RFC 2464, 4: interface identifier 36-56-78-FF-FE-9A-BC-DE.
        let mac = Mac([0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde]);
        assert_eq!(mac.link_local().to_string(), "fe80::3656:78ff:fe9a:bcde");
    }
}

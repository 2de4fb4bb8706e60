//! Multicast listener discovery: version 1 (RFC 2710) as a host that joins groups speaks it;
//! queries of version 2 too (RFC 3810).
//!
//! Built messages conform: hop limit 1, Router Alert, link-local source, right checksum.

use std::net::Ipv6Addr;

use crate::{Error, Mac, be16, build, head, icmp::v6, ipv6, protocol};

/// Bytes of a message with its ICMPv6 header; queries of version 2 are longer.
pub const LEN: usize = 24;
/// Hop-by-hop options, without their next header and length: Router Alert for MLD (RFC 2711, 2.1),
/// then two bytes of PadN.
pub const ROUTER_ALERT: [u8; 6] = [0x05, 0x02, 0x00, 0x00, 0x01, 0x00];

/// A message of version 1, or a query of version 2.
#[derive(Clone, Copy, Debug)]
pub struct Mld<'a> {
    header: &'a [u8; LEN],
    len: usize,
}

/// Contents of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// Version: 1 or 2.
    pub version: u8,
    /// Group that is asked for; `None`: all.
    pub group: Option<Ipv6Addr>,
    /// Time within which answers are wanted, in milliseconds.
    pub max_response: u32,
}

impl<'a> Mld<'a> {
    /// Reads an ICMPv6 message. The checksum is ICMPv6's, and not looked at.
    ///
    /// [`Error::Truncated`] below [`LEN`] bytes. [`Error::Malformed`]: no query, report or done, or
    /// a query of 25 to 27 bytes, which no version has (RFC 3810, 8.1).
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, rest) = head::<LEN>(bytes)?;
        match (header[0], rest.len()) {
            (v6::LISTENER_QUERY, 1..4) => Err(Error::Malformed),
            (v6::LISTENER_QUERY | v6::LISTENER_REPORT | v6::LISTENER_DONE, _) => {
                Ok(Mld { header, len: bytes.len() })
            }
            _ => Err(Error::Malformed),
        }
    }

    /// Returns the ICMPv6 type: query, report or done.
    #[inline]
    pub const fn kind(&self) -> u8 {
        self.header[0]
    }

    /// Returns the group it is about; `::` in a general query.
    #[inline]
    pub fn group(&self) -> Ipv6Addr {
        self.header
            .last_chunk()
            .map_or(Ipv6Addr::UNSPECIFIED, |group: &[u8; 16]| Ipv6Addr::from(*group))
    }

    /// Returns the contents of a query, `None` if it is none. The length tells the version.
    #[inline]
    pub fn query(&self) -> Option<Query> {
        if self.kind() != v6::LISTENER_QUERY {
            return None;
        }
        let code = u32::from(u16::from_be_bytes([self.header[4], self.header[5]]));
        let (version, max_response) = match self.len {
            LEN => (1, code),
            // RFC 3810, 5.1.3: from 32768 on, three bits of exponent and twelve of mantissa.
            _ if code >= 0x8000 => (2, (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3)),
            _ => (2, code),
        };
        let group = Some(self.group()).filter(|group| !group.is_unspecified());
        Some(Query { version, group, max_response })
    }
}

/// True if hop-by-hop options (the whole extension header) hold a Router Alert for MLD (RFC 2711).
/// False if an option is incomplete.
#[inline]
pub fn has_router_alert(header: &[u8]) -> bool {
    let mut rest = header.get(2..).unwrap_or_default();
    loop {
        rest = match *rest {
            [0, ref rest @ ..] => rest,
            [5, 2, ..] => return be16(rest, 2) == Some(0),
            [_, len, ref rest @ ..] => rest.get(usize::from(len)..).unwrap_or_default(),
            _ => return false,
        }
    }
}

/// Returns the frame that says "I listen to `group`" to that group (RFC 2710, 4).
pub fn report(mac: Mac, group: Ipv6Addr) -> Vec<u8> {
    frame(mac, group, v6::LISTENER_REPORT, group)
}

/// Returns the frame that says "I listen to `group` no more" to all routers.
pub fn done(mac: Mac, group: Ipv6Addr) -> Vec<u8> {
    frame(mac, ipv6::ALL_ROUTERS, v6::LISTENER_DONE, group)
}

fn frame(mac: Mac, destination: Ipv6Addr, kind: u8, group: Ipv6Addr) -> Vec<u8> {
    build::ethernet(mac, Mac::of_group_v6(destination))
        .ipv6(mac.link_local(), destination)
        .ttl(1)
        .extension(protocol::HOP_BY_HOP, &ROUTER_ALERT)
        .icmp(kind, 0, 0, &group.octets())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);
    /// The group of VNI 42.
    const GROUP: Ipv6Addr = Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0x2a);

    #[test]
    fn a_report_conforms() {
        // Pseudo header: fe80+00bf+00ff+fe00+0001 = 1_fe3f, ff00+002a = ff2a, 0018, 003a = 2_fdbb;
        // message 8300+ff00+002a = 1_822a; sum 4_7fe5 -> 7fe9, complement 8016.
        let expected = [
            0x33, 0x33, 0, 0, 0, 0x2a, 2, 0xbf, 0, 0, 0, 1, 0x86, 0xdd, // Ethernet
            0x60, 0, 0, 0, 0, 32, 0, 1, // IPv6: 32 bytes, hop-by-hop options, hop limit 1
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x00, 0xbf, 0x00, 0xff, 0xfe, 0, 0, 1, // source
            0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a, // destination
            58, 0, 5, 2, 0, 0, 1, 0, // Router Alert
            131, 0, 0x80, 0x16, 0, 0, 0, 0, // MLD
            0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2a,
        ];
        assert_eq!(report(MAC, GROUP), expected);
    }

    #[test]
    fn a_done_goes_to_all_routers() {
        // As above with ff02::2 as destination and type 132: 4_7fe5 - ff2a + ff04 + 0100 = 4_80bf
        // -> 80c3, complement 7f3c.
        let frame = done(MAC, GROUP);
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 2]);
        assert_eq!(frame[38..54], ipv6::ALL_ROUTERS.octets());
        assert_eq!(frame[62..70], [132, 0, 0x7f, 0x3c, 0, 0, 0, 0]);
        assert_eq!(frame[70..], GROUP.octets());
    }

    #[test]
    fn queries_of_both_versions() {
        let query = |code: u16, group: Ipv6Addr, more: &[u8]| {
            let [high, low] = code.to_be_bytes();
            [&[130, 0, 0, 0, high, low, 0, 0][..], &group.octets(), more].concat()
        };
        let any = Ipv6Addr::UNSPECIFIED;
        for (bytes, version, group, max_response) in [
            (query(10_000, any, &[]), 1, None, 10_000),
            (query(0xffff, GROUP, &[]), 1, Some(GROUP), 65_535),
            (query(0, any, &[2, 125, 0, 0]), 2, None, 0),
            (query(0x7fff, GROUP, &[2, 125, 0, 0]), 2, Some(GROUP), 32_767),
            (query(0x8000, any, &[2, 125, 0, 0]), 2, None, 32_768),
            (query(0xffff, any, &[2, 125, 0, 0]), 2, None, 8_387_584),
        ] {
            let query = Mld::parse(&bytes).unwrap().query();
            assert_eq!(query, Some(Query { version, group, max_response }), "{bytes:?}");
        }
        for len in 25..28 {
            assert_eq!(Mld::parse(&query(0, any, &[0; 4])[..len]).unwrap_err(), Error::Malformed);
        }
        assert_eq!(Mld::parse(&[130; 23]).unwrap_err(), Error::Truncated);
        assert_eq!(Mld::parse(&[143; 24]).unwrap_err(), Error::Malformed);
        assert_eq!(Mld::parse(&[131; 24]).unwrap().query(), None);
    }

    #[test]
    fn a_router_alert_is_found_behind_padding() {
        for (options, found) in [
            (&[58, 0, 5, 2, 0, 0, 1, 0][..], true),
            (&[58, 0, 0, 0, 5, 2, 0, 0], true),
            (&[58, 1, 1, 6, 0, 0, 0, 0, 0, 0, 0, 0, 5, 2, 0, 0], true),
            (&[58, 0, 5, 2, 0, 1, 1, 0], false), // for RSVP
            (&[58, 0, 1, 4, 5, 2, 0, 0], false), // inside padding
            (&[58, 0, 0, 0, 0, 0, 5, 2], false),
            (&[58, 0, 1, 99, 0, 0, 0, 0], false),
            (&[58], false),
        ] {
            assert_eq!(has_router_alert(options), found, "{options:?}");
        }
    }
}

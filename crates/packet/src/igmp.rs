//! IGMPv2 (RFC 2236), as a host that joins groups speaks it; queries of all versions (RFC 1112, RFC
//! 3376).

use std::net::Ipv4Addr;

use crate::{Error, Mac, build, checksum::Sum, head, protocol};

/// Bytes of a message; queries of version 3 are longer.
pub const LEN: usize = 8;
/// Type of a question for the members of groups.
pub const QUERY: u8 = 0x11;
/// Type of "I am a member", version 1.
pub const REPORT_V1: u8 = 0x12;
/// Type of "I am a member", version 2.
pub const REPORT: u8 = 0x16;
/// Type of "I am not a member any more".
pub const LEAVE: u8 = 0x17;
/// Type of "I am a member", version 3: of groups that the body lists.
pub const REPORT_V3: u8 = 0x22;
/// Destination of general queries: every station.
pub const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// Destination of leave messages: every router.
pub const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// The IP option that makes routers and switches look at the packet (RFC 2113).
pub const ROUTER_ALERT: [u8; 4] = [0x94, 0x04, 0x00, 0x00];

/// An IGMP message.
#[derive(Clone, Copy, Debug)]
pub struct Igmp<'a> {
    header: &'a [u8; LEN],
    bytes: &'a [u8],
}

/// Contents of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// Version: 1, 2 or 3.
    pub version: u8,
    /// Group that is asked for; `None`: all.
    pub group: Option<Ipv4Addr>,
    /// Time within which answers are wanted, in milliseconds.
    pub max_response: u32,
}

impl<'a> Igmp<'a> {
    /// Reads an IP payload. [`Error::Truncated`] below [`LEN`] bytes; [`Error::Malformed`] if it is
    /// a query of 9 to 11 bytes, which no version has.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (header, rest) = head::<LEN>(bytes)?;
        if header[0] == QUERY && matches!(rest.len(), 1..4) {
            Err(Error::Malformed)
        } else {
            Ok(Igmp { header, bytes })
        }
    }

    /// Returns the type: [`QUERY`], [`REPORT`], [`LEAVE`], or another.
    #[inline]
    pub const fn kind(&self) -> u8 {
        self.header[0]
    }

    /// Returns the group it is about; 0.0.0.0 in a general query. Without meaning in [`REPORT_V3`].
    #[inline]
    pub const fn group(&self) -> Ipv4Addr {
        let h = self.header;
        Ipv4Addr::new(h[4], h[5], h[6], h[7])
    }

    /// True if the checksum, which covers the whole IP payload, is right.
    #[inline]
    pub fn checksum_is_valid(&self) -> bool {
        Sum::of(self.bytes).is_valid()
    }

    /// Returns the contents of a query, `None` if it is none. Length and response time tell the
    /// version (RFC 3376, 7.1). Version 1 has no response time: 10 s (RFC 2236, 4).
    #[inline]
    pub fn query(&self) -> Option<Query> {
        if self.kind() != QUERY {
            return None;
        }
        let code = u32::from(self.header[1]);
        let (version, tenths) = match self.bytes.len() {
            LEN if code == 0 => (1, 100),
            LEN => (2, code),
            // RFC 3376, 4.1.1: from 128 on, three bits of exponent and four of mantissa.
            _ if code >= 128 => (3, (code & 0xf | 0x10) << ((code >> 4 & 7) + 3)),
            _ => (3, code),
        };
        let group = Some(self.group()).filter(|group| !group.is_unspecified());
        Some(Query { version, group, max_response: tenths * 100 })
    }
}

/// Returns a message of eight bytes, checksum included. `max_response_tenths` is in tenths of a
/// second.
pub fn message(kind: u8, max_response_tenths: u8, group: Ipv4Addr) -> [u8; LEN] {
    let [a, b, c, d] = group.octets();
    let [high, low] =
        Sum::of(&[kind, max_response_tenths, 0, 0, a, b, c, d]).checksum().to_be_bytes();
    [kind, max_response_tenths, high, low, a, b, c, d]
}

/// Returns the frame that says "I am a member of `group`" to that group (RFC 2236, 3).
pub fn report(mac: Mac, source: Ipv4Addr, group: Ipv4Addr) -> Vec<u8> {
    frame(mac, source, group, (REPORT, group))
}

/// Returns the frame that says "I am not a member of `group` any more" to all routers. Its
/// destination MAC address stays that of the group, as the original Butterfly has it: a switch that
/// snoops sees it either way.
pub fn leave(mac: Mac, source: Ipv4Addr, group: Ipv4Addr) -> Vec<u8> {
    frame(mac, source, ALL_ROUTERS, (LEAVE, group))
}

fn frame(
    mac: Mac,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    (kind, group): (u8, Ipv4Addr),
) -> Vec<u8> {
    build::ethernet(mac, Mac::of_group_v4(group))
        .ipv4(source, destination)
        .ttl(1)
        .options(&ROUTER_ALERT)
        .payload(protocol::IGMP, &message(kind, 0, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);
    const SOURCE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
    /// The group of VNI 1337.
    const GROUP: Ipv4Addr = Ipv4Addr::new(230, 0, 5, 57);

    #[test]
    fn a_join_is_the_contract_s() {
        // IPv4: 4600+0020+0000+0000+0102+0a01+0001+e600+0539+9404 = 1_d061 -> d062, complement
        // 2f9d. IGMP: 1600+e600+0539 = 1_0139 -> 013a, complement fec5.
        let expected = [
            0x01, 0x00, 0x5e, 0, 5, 57, 2, 0xbf, 0, 0, 0, 1, 8, 0, // Ethernet
            0x46, 0, 0, 32, 0, 0, 0, 0, 1, 2, 0x2f, 0x9d, 10, 1, 0, 1, 230, 0, 5, 57, 0x94, 4, 0,
            0, // IPv4
            0x16, 0, 0xfe, 0xc5, 230, 0, 5, 57, // IGMP
        ];
        assert_eq!(report(MAC, SOURCE, GROUP), expected);
    }

    #[test]
    fn a_leave_goes_to_all_routers_by_the_group_s_mac() {
        // IPv4 with 224.0.0.2 in place of 230.0.5.57: 1_d061 - eb39 + e002 = 1_c52a -> c52b,
        // complement 3ad4. IGMP: 1700+e600+0539 = 1_0239 -> 023a, complement fdc5.
        let expected = [
            0x01, 0x00, 0x5e, 0, 5, 57, 2, 0xbf, 0, 0, 0, 1, 8, 0, // Ethernet
            0x46, 0, 0, 32, 0, 0, 0, 0, 1, 2, 0x3a, 0xd4, 10, 1, 0, 1, 224, 0, 0, 2, 0x94, 4, 0,
            0, // IPv4
            0x17, 0, 0xfd, 0xc5, 230, 0, 5, 57, // IGMP
        ];
        assert_eq!(leave(MAC, SOURCE, GROUP), expected);
    }

    #[test]
    fn queries_of_every_version() {
        let any = Ipv4Addr::UNSPECIFIED;
        let long = |code, group| [&message(QUERY, code, group)[..], &[2, 125, 0, 0]].concat();
        for (bytes, version, group, max_response) in [
            (message(QUERY, 0, any).to_vec(), 1, None, 10_000),
            (message(QUERY, 100, any).to_vec(), 2, None, 10_000),
            (message(QUERY, 10, GROUP).to_vec(), 2, Some(GROUP), 1_000),
            (message(QUERY, 255, any).to_vec(), 2, None, 25_500),
            (long(0, any), 3, None, 0),
            (long(127, GROUP), 3, Some(GROUP), 12_700),
            (long(0x80, any), 3, None, 12_800),
            (long(0xff, any), 3, None, 3_174_400),
        ] {
            let query = Igmp::parse(&bytes).unwrap().query();
            assert_eq!(query, Some(Query { version, group, max_response }), "{bytes:?}");
        }
        for len in 9..12 {
            assert_eq!(Igmp::parse(&long(0, any)[..len]).unwrap_err(), Error::Malformed);
        }
        assert_eq!(Igmp::parse(&[QUERY; 7]).unwrap_err(), Error::Truncated);
        assert_eq!(Igmp::parse(&message(REPORT, 0, GROUP)).unwrap().query(), None);
    }

    #[test]
    fn a_checksum_covers_everything() {
        let mut bytes = message(REPORT, 0, GROUP);
        let igmp = Igmp::parse(&bytes).unwrap();
        assert!(igmp.checksum_is_valid());
        assert_eq!((igmp.kind(), igmp.group()), (REPORT, GROUP));
        bytes[7] ^= 1;
        assert!(!Igmp::parse(&bytes).unwrap().checksum_is_valid());
    }
}

//! Advertisements of routers (RFC 4861, 4.2; name servers and domains: RFC 8106).
//!
//! ```
//! use butterfly_packet::{Mac, advert::{self, AdvertTerms}};
//! let router = Mac([2, 0, 0, 0, 0, 1]);
//! let prefixes = [("fd00::".parse().unwrap(), 64)];
//! let terms = AdvertTerms { lifetime: 1800, prefixes: &prefixes, ..AdvertTerms::NONE };
//! let message = advert::message(router, &terms);
//! let to = (Mac([2, 0, 0, 0, 0, 9]), "fe80::9".parse().unwrap());
//! let mut frame = [0; 1514];
//! let from = (router, "fe80::1".parse().unwrap());
//! assert_eq!(advert::frame(&message, from, to, &mut frame), Some(14 + 40 + 16 + 8 + 32));
//! ```

use std::net::Ipv6Addr;

use crate::{
    Mac,
    checksum::Sum,
    ethernet,
    icmp::{self, v6},
    ipv6, protocol,
};

/// Bytes of headers before a message.
const BEFORE: usize = ethernet::HEADER_LEN + ipv6::LEN;
/// Longest message in bytes: its packet fits every link (RFC 8200, 5).
pub const MAX_MESSAGE: usize = 1280 - ipv6::LEN;
/// Bytes of the option that tells of a block.
const BLOCK: usize = 32;
/// Most blocks for which [`message`] and [`withdraw`] leave room, of one machine's own.
pub const MAX_OWN: usize = 4;
/// Longest message in bytes without those.
const MAX_OF_ALL: usize = MAX_MESSAGE - MAX_OWN * BLOCK;
/// Offsets of the sum and of the flags in a message.
const CHECKSUM: usize = 2;
const FLAGS: usize = 5;
/// Addresses, and all else, are given by DHCPv6.
const MANAGED: u8 = 0x80;
const OTHER: u8 = 0x40;
/// The prefix is of the link; no machine makes an address of it by itself.
const ON_LINK: u8 = 0x80;
/// The machine makes addresses of the prefix by itself, and is told nothing of the link.
const AUTONOMOUS: u8 = 0x40;
/// Hops that machines give their packets.
const HOPS: u8 = 64;
/// Receivers discard it with another hop limit: it passed a router.
const HOP_LIMIT: u8 = 255;

/// Options (RFC 4861, 4.6; RFC 8106, 5).
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const DNS: u8 = 25;
const SEARCH: u8 = 31;

/// Contents of an advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdvertTerms<'a> {
    /// Seconds for which the sender is a default router; 0 if it is none.
    pub lifetime: u16,
    /// Longest packet of the link in bytes; `None`: the link's own.
    pub mtu: Option<u16>,
    /// Blocks of the link, and their lengths.
    pub prefixes: &'a [(Ipv6Addr, u8)],
    /// Seconds for which the blocks are of the link, and for which their addresses are preferred.
    pub valid: u32,
    /// See [`Self::valid`].
    pub preferred: u32,
    /// Name servers.
    pub dns: &'a [Ipv6Addr],
    /// Domains in which names are looked for, as [`crate::dhcp::search_list`] makes them.
    pub search: &'a [u8],
    /// Seconds for which servers and domains hold.
    pub told: u32,
}

impl AdvertTerms<'_> {
    /// Terms that say nothing.
    pub const NONE: AdvertTerms<'static> = AdvertTerms {
        lifetime: 0,
        mtu: None,
        prefixes: &[],
        valid: 0,
        preferred: 0,
        dns: &[],
        search: &[],
        told: 0,
    };
}

/// Returns the message of a router with this MAC address, without its sum. Addresses and all else
/// are managed. Options that find no room in [`MAX_MESSAGE`] beside [`MAX_OWN`] blocks of a
/// machine's own are left out.
pub fn message(from: Mac, terms: &AdvertTerms<'_>) -> Vec<u8> {
    let mut message = vec![v6::ROUTER_ADVERTISEMENT, 0, 0, 0, HOPS, MANAGED | OTHER];
    message.extend(terms.lifetime.to_be_bytes());
    message.extend([0; 8]); // no word on how neighbours are looked for
    let mut put = |option: Vec<u8>| append(&mut message, &option);
    put([&[icmp::OPTION_SOURCE_LINK_ADDRESS, 1][..], &from.0].concat());
    if let Some(mtu) = terms.mtu {
        put([&[MTU, 1, 0, 0][..], &u32::from(mtu).to_be_bytes()].concat());
    }
    for prefix in terms.prefixes {
        put(block((*prefix, ON_LINK), terms.valid, terms.preferred).into());
    }
    let servers: Vec<u8> = terms.dns.iter().flat_map(Ipv6Addr::octets).collect();
    for (kind, value) in [(DNS, &servers[..]), (SEARCH, terms.search)] {
        let units = (8 + value.len()).div_ceil(8);
        let Some(len) = u8::try_from(units).ok().filter(|_| !value.is_empty()) else { continue };
        let mut option = vec![kind, len, 0, 0];
        option.extend(terms.told.to_be_bytes());
        option.extend(value);
        option.resize(units * 8, 0);
        put(option);
    }
    message
}

/// Says in a message that these blocks are of the link no longer (RFC 4861, 6.3.4). Those that find
/// no room, as in [`message`], are left out.
pub fn withdraw(message: &mut Vec<u8>, prefixes: impl IntoIterator<Item = (Ipv6Addr, u8)>) {
    for prefix in prefixes {
        append(message, &block((prefix, ON_LINK), 0, 0));
    }
}

/// Block of 64 bits in which a machine makes up addresses (RFC 4862, 5.5.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OwnBlock {
    /// Its first address.
    pub prefix: Ipv6Addr,
    /// Seconds for which its addresses are valid, and preferred. 0 takes it back: addresses are not
    /// preferred any more, and machines keep them for two hours at most (RFC 4862, 5.5.3 e).
    pub valid: u32,
    /// See [`Self::valid`].
    pub preferred: u32,
}

/// Part of a message that is for one machine alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnPart<'a> {
    /// Its blocks. Those that find no room in [`MAX_MESSAGE`] are left out.
    pub blocks: &'a [OwnBlock],
    /// True if it gets addresses by DHCPv6.
    pub managed: bool,
}

impl OwnPart<'_> {
    /// The part of a machine that makes up no addresses.
    pub const NONE: OwnPart<'static> = OwnPart { blocks: &[], managed: true };
}

/// Returns the option that says for how many seconds a block is of the link, or addresses are made
/// of it, and preferred.
fn block(
    ((prefix, length), flags): ((Ipv6Addr, u8), u8),
    valid: u32,
    preferred: u32,
) -> [u8; BLOCK] {
    let mut option = [0; BLOCK];
    let [v0, v1, v2, v3] = valid.to_be_bytes();
    let [p0, p1, p2, p3] = preferred.to_be_bytes();
    let terms = [PREFIX, 4, length, flags, v0, v1, v2, v3, p0, p1, p2, p3, 0, 0, 0, 0];
    let bytes = terms.into_iter().chain(prefix.octets());
    option.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    option
}

/// Appends an option to a message, if it has room.
fn append(message: &mut Vec<u8>, option: &[u8]) {
    if message.len() + option.len() <= MAX_OF_ALL {
        message.extend(option);
    }
}

/// Writes the frame of a message, from a router to a machine or to all. Returns its length in
/// bytes; `None` if `out` has no room.
pub fn frame(
    message: &[u8],
    from: (Mac, Ipv6Addr),
    to: (Mac, Ipv6Addr),
    out: &mut [u8],
) -> Option<usize> {
    frame_with((message, OwnPart::NONE), from, to, out)
}

/// Writes the frame of a message, and of what it says to one machine alone.
pub fn frame_with(
    (message, own): (&[u8], OwnPart<'_>),
    from: (Mac, Ipv6Addr),
    to: (Mac, Ipv6Addr),
    out: &mut [u8],
) -> Option<usize> {
    let room = MAX_MESSAGE.saturating_sub(message.len()) / BLOCK;
    let blocks = own.blocks.get(..room).unwrap_or(own.blocks);
    let length = message.len() + blocks.len() * BLOCK;
    let len = BEFORE + length;
    let (headers, body) = out.get_mut(..len)?.split_at_mut_checked(BEFORE)?;
    headers_v6(headers, from, to, (protocol::ICMPV6, HOP_LIMIT, length))?;
    let (of_all, of_own) = body.split_at_mut_checked(message.len())?;
    of_all.copy_from_slice(message);
    for (place, own) in of_own.chunks_exact_mut(BLOCK).zip(blocks) {
        place.copy_from_slice(&block(((own.prefix, 64), AUTONOMOUS), own.valid, own.preferred));
    }
    if !own.managed {
        *body.get_mut(FLAGS)? &= !MANAGED;
    }
    body.get_mut(CHECKSUM..CHECKSUM + 2)?.fill(0);
    let pseudo = Sum::pseudo_v6(from.1, to.1, protocol::ICMPV6, length as u32);
    let sum = pseudo.push(&*body).checksum().to_be_bytes();
    body.get_mut(CHECKSUM..CHECKSUM + 2)?.copy_from_slice(&sum);
    Some(len)
}

/// Writes the headers of Ethernet and IPv6 before `len` bytes of a protocol.
pub(crate) fn headers_v6(
    headers: &mut [u8],
    from: (Mac, Ipv6Addr),
    to: (Mac, Ipv6Addr),
    (protocol, hops, len): (u8, u8, usize),
) -> Option<()> {
    let [l0, l1] = u16::try_from(len).ok()?.to_be_bytes();
    let parts: [&[u8]; 6] = [
        &to.0.0,
        &from.0.0,
        &ethernet::IPV6.to_be_bytes(),
        &[0x60, 0, 0, 0, l0, l1, protocol, hops],
        &from.1.octets(),
        &to.1.octets(),
    ];
    let bytes = parts.iter().copied().flatten();
    (headers.len() == BEFORE).then(|| {
        headers.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        icmp::{Icmp, NdOptions},
        ipv6::Ipv6,
        neighbour::is_sum_right,
    };

    const ROUTER: Mac = Mac([0xb2, 0xf0, 0, 0, 0, 1]);
    const MACHINE: Mac = Mac([2, 0, 0, 0, 0, 9]);

    fn six(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn options(message: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut options = NdOptions::new(&message[16..]);
        let mut all = Vec::new();
        while let Some((kind, value)) = options.take_next().unwrap() {
            all.push((kind, value.to_vec()));
        }
        all
    }

    #[test]
    fn an_advertisement_byte_by_byte() {
        let search = crate::dhcp::search_list(["example.com"]).unwrap();
        let terms = AdvertTerms {
            lifetime: 1800,
            mtu: Some(1450),
            prefixes: &[(six("fd00:42::"), 64)],
            valid: 86_400,
            preferred: 14_400,
            dns: &[six("fd00::53")],
            search: &search,
            told: 1800,
        };
        let message = message(ROUTER, &terms);
        let mut out = [0xee; 1514];
        let to = (MACHINE, six("fe80::9"));
        let len = frame(&message, (ROUTER, six("fe80::1")), to, &mut out).unwrap();
        let got = &out[..len];
        assert_eq!(
            (&got[..6], &got[6..12], &got[12..14]),
            (&MACHINE.0[..], &ROUTER.0[..], &[0x86, 0xdd][..])
        );
        let ip = Ipv6::parse(&got[14..]).unwrap();
        assert_eq!((ip.hop_limit(), ip.next_header()), (255, 58));
        assert_eq!((ip.source(), ip.destination()), (six("fe80::1"), six("fe80::9")));
        assert!(is_sum_right(&got[14..]));
        let read = Icmp::parse(ip.payload().unwrap()).unwrap();
        assert_eq!((read.kind(), read.code()), (134, 0));
        assert_eq!(read.rest_of_header(), 0x40c0_0708);
        let lifetimes =
            [&[64, 0x80][..], &[0, 1, 0x51, 0x80], &[0, 0, 0x38, 0x40], &[0; 4]].concat();
        let expected: [(u8, Vec<u8>); 5] = [
            (1, ROUTER.0.to_vec()),
            (5, vec![0, 0, 0, 0, 5, 0xaa]),
            (3, [&lifetimes[..], &six("fd00:42::").octets()].concat()),
            (25, [&[0, 0, 0, 0, 7, 8][..], &six("fd00::53").octets()].concat()),
            (31, [&[0, 0, 0, 0, 7, 8][..], b"\x07example\x03com\0\0\0\0"].concat()),
        ];
        assert_eq!(options(ip.payload().unwrap()), expected);
    }

    /// RFC 4861, 6.2.3: who is no default router says so.
    #[test]
    fn terms_that_say_nothing() {
        let message = message(ROUTER, &AdvertTerms::NONE);
        assert_eq!(message.len(), 24);
        assert_eq!(message[4..8], [64, 0xc0, 0, 0]);
        assert_eq!(options(&message), [(1, ROUTER.0.to_vec())]);
    }

    #[test]
    fn blocks_that_are_taken_back() {
        let mut message = message(ROUTER, &AdvertTerms::NONE);
        withdraw(&mut message, [(six("fd00:42::"), 64)]);
        let value = [&[64, 0x80][..], &[0; 12], &six("fd00:42::").octets()].concat();
        assert_eq!(options(&message), [(1, ROUTER.0.to_vec()), (PREFIX, value)]);
        withdraw(&mut message, (0..64).map(|n| (Ipv6Addr::from(n << 64), 64)));
        assert!(message.len() <= MAX_OF_ALL && message.len() > MAX_OF_ALL - 32);
        // Blocks of the machine's own have room beside all that.
        let own = |n: u16| OwnBlock {
            prefix: [0xfd00, 0x42, 0, n, 0, 0, 0, 0].into(),
            valid: 86_400,
            preferred: 14_400,
        };
        let blocks: Vec<OwnBlock> = (0..8).map(own).collect();
        let part = OwnPart { blocks: &blocks, managed: false };
        let mut out = [0; 1294];
        let ends = ((ROUTER, six("fe80::1")), (MACHINE, six("ff02::1")));
        let len = frame_with((&message, part), ends.0, ends.1, &mut out).unwrap();
        assert!(is_sum_right(&out[14..len]) && len <= 14 + 1280);
        let told = options(&out[54..len]);
        assert_eq!(out[54 + 5], 0x40);
        let own: Vec<_> = told.iter().filter(|(_, value)| value.get(1) == Some(&0x40)).collect();
        let lifetimes = [[0, 1, 0x51, 0x80], [0, 0, 0x38, 0x40], [0; 4]].concat();
        let first = [&[64, 0x40][..], &lifetimes, &six("fd00:42::").octets()].concat();
        assert!(own.len() >= MAX_OWN, "{}", own.len());
        assert_eq!(*own[0], (PREFIX, first));
    }

    #[test]
    fn as_much_as_fits_every_link() {
        let prefixes: Vec<_> = (0..64).map(|n| (Ipv6Addr::from(n << 64), 64)).collect();
        let dns = [six("fd00::53"); 8];
        let terms = AdvertTerms { prefixes: &prefixes, dns: &dns, ..AdvertTerms::NONE };
        let message = message(ROUTER, &terms);
        assert!(message.len() <= MAX_MESSAGE, "{}", message.len());
        let all = options(&message);
        assert_eq!(all.iter().filter(|(kind, _)| *kind == PREFIX).count(), 34);
        let mut out = [0; 1294];
        let ends = ((ROUTER, six("fe80::1")), (MACHINE, six("ff02::1")));
        let len = frame(&message, ends.0, ends.1, &mut out).unwrap();
        assert!(is_sum_right(&out[14..len]));
        assert_eq!(frame(&message, ends.0, ends.1, &mut out[..len - 1]), None);
        assert_eq!(frame(&message, ends.0, ends.1, &mut []), None);
    }
}

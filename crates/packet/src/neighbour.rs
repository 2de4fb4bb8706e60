//! Neighbour discovery of routers (RFC 4861): questions that are whole, and the answer of one that
//! is asked for its address.

use std::net::Ipv6Addr;

use crate::{
    Mac,
    checksum::Sum,
    ethernet,
    icmp::{self, v6},
    ipv6::{self, Ipv6},
    protocol,
};

/// Bytes of an advertisement, Ethernet header and all.
pub const LEN: usize = ethernet::HEADER_LEN + ipv6::LEN + MESSAGE;
/// Bytes of the message: with the target, and an option that has its MAC address.
const MESSAGE: usize = 32;
/// The sender is a router; it was asked; forget what was known before.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Returns the advertisement of a router's address. Who probes whether the address is free has none
/// of its own: it hears the answer as all others do (RFC 4862, 5.4.4).
///
/// ```
/// use butterfly_packet::{Mac, neighbour};
/// let (a, router) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// let asker = (a, "fd00::1".parse().unwrap());
/// let answer = neighbour::advertisement(asker, (router, "fd00::fe".parse().unwrap()));
/// assert_eq!((&answer[..6], answer[54]), (&a.0[..], 136));
/// ```
pub fn advertisement(asker: (Mac, Ipv6Addr), owner: (Mac, Ipv6Addr)) -> [u8; LEN] {
    let probes = asker.1.is_unspecified();
    let all = (Mac::of_group_v6(ipv6::ALL_NODES), ipv6::ALL_NODES);
    let to = if probes { all } else { asker };
    let flags = if probes { ROUTER | OVERRIDE } else { ROUTER | SOLICITED | OVERRIDE };
    let ends = [owner.1.octets(), to.1.octets()];
    let message = |sum: [u8; 2]| -> [u8; MESSAGE] {
        let parts: [&[u8]; 7] = [
            &[v6::NEIGHBOUR_ADVERTISEMENT, 0],
            &sum,
            &[flags, 0, 0, 0],
            &ends[0],
            &[icmp::OPTION_TARGET_LINK_ADDRESS, 1],
            &owner.0.0,
            &[],
        ];
        filled(&parts)
    };
    let pseudo = Sum::pseudo_v6(owner.1, to.1, protocol::ICMPV6, MESSAGE as u32);
    let sum = pseudo.push(&message([0, 0])).checksum();
    let message = message(sum.to_be_bytes());
    filled(&[
        &to.0.0,
        &owner.0.0,
        &ethernet::IPV6.to_be_bytes(),
        &[0x60, 0, 0, 0, 0, MESSAGE as u8, protocol::ICMPV6, 255],
        &ends[0],
        &ends[1],
        &message,
    ])
}

/// Returns whether a packet of IPv6 is whole, and the checksum of its ICMPv6 right (RFC 4443, 2.3).
/// Bytes behind the packet do not count.
pub fn is_sum_right(packet: &[u8]) -> bool {
    let message = || {
        let ip = Ipv6::parse(packet).ok()?;
        let upper = ip.upper_layer().ok()?;
        let message = packet.get(upper.offset..ipv6::LEN + ip.payload_len())?;
        let len = message.len() as u32;
        let pseudo = Sum::pseudo_v6(ip.source(), ip.destination(), protocol::ICMPV6, len);
        (upper.protocol == protocol::ICMPV6).then(|| pseudo.push(message))
    };
    message().is_some_and(Sum::is_valid)
}

/// Returns these parts, one behind the other.
fn filled<const N: usize>(parts: &[&[u8]; 7]) -> [u8; N] {
    let mut bytes = [0; N];
    let all = parts.iter().copied().flatten();
    bytes.iter_mut().zip(all).for_each(|(to, byte)| *to = *byte);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        build,
        ethernet::Ethernet,
        icmp::{Icmp, NdOptions},
        ipv6::Ipv6,
    };

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([0xb2, 0xf0, 0, 0, 0, 2]);
    const ASKER: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 1];
    const OWNER: [u16; 8] = [0xfd00, 0, 0, 0, 0, 0, 0, 0xfe];

    #[test]
    fn the_asker_gets_it() {
        let frame = advertisement((A, ASKER.into()), (B, OWNER.into()));
        let mut body = Ipv6Addr::from(OWNER).octets().to_vec();
        body.extend([2, 1]);
        body.extend(B.0);
        let ip = build::ethernet(B, A).ipv6(OWNER, ASKER).ttl(255);
        assert_eq!(frame[..], ip.icmp(136, 0, 0xe000_0000, &body));
    }

    #[test]
    fn a_sum_is_of_the_whole_packet() {
        let frame = advertisement((A, ASKER.into()), (B, OWNER.into()));
        assert!(is_sum_right(&frame[14..]));
        assert!(is_sum_right(&[&frame[14..], &[1, 2, 3]].concat()));
        assert!(!is_sum_right(&frame[14..frame.len() - 1]));
        for at in (22..54).chain(54..frame.len()) {
            let mut wrong = frame;
            wrong[at] ^= 1;
            assert!(!is_sum_right(&wrong[14..]), "{at}");
        }
        let ip = build::ethernet(A, B).ipv6(ASKER, OWNER);
        assert!(!is_sum_right(&ip.clone().udp(1, 2, b"x")[14..]));
        let extended = ip.extension(protocol::DESTINATION_OPTIONS, &[1, 4]);
        assert!(is_sum_right(&extended.ping(1, 2, b"odd")[14..]));
    }

    #[test]
    fn who_probes_hears_it_with_all() {
        let frame = advertisement((A, Ipv6Addr::UNSPECIFIED), (B, OWNER.into()));
        assert_eq!(Ethernet::parse(&frame).unwrap().destination().0, [0x33, 0x33, 0, 0, 0, 1]);
        let ip = Ipv6::parse(&frame[14..]).unwrap();
        assert_eq!(ip.destination(), "ff02::1".parse::<Ipv6Addr>().unwrap());
        let message = ip.payload().unwrap();
        let pseudo = Sum::pseudo_v6(ip.source(), ip.destination(), protocol::ICMPV6, 32);
        assert!(pseudo.push(message).is_valid());
        let read = Icmp::parse(message).unwrap();
        assert_eq!((read.kind(), read.rest_of_header() >> 24), (136, 0xa0));
        assert_eq!(read.target().unwrap(), Ipv6Addr::from(OWNER));
        let option = NdOptions::new(&message[24..]).take_next().unwrap();
        assert!(option.is_some_and(|(kind, _)| kind == 2));
    }
}

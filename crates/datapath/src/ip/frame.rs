//! Contents of a frame: IP, ARP, or bytes that only look like something else.

use butterfly_packet::{
    arp::Arp,
    ethernet::{self, Ethernet, Llc},
};
use butterfly_vhost::ring::HEAD;

use crate::engine::inside::Inside;
#[cfg(test)]
use crate::engine::inside::PLAIN_IP;
use crate::ip::TAGGED;

/// Walks VLAN tags and LLC to the contents of a frame. Tags that go on beyond `head` count as
/// hidden IP.
pub(crate) fn inside(head: &[u8]) -> Inside {
    let Ok(frame) = Ethernet::parse(head) else { return Inside::NonIp };
    let mut tags = frame.tags();
    let (mut depth, mut vlan) = (0, 0);
    for tag in tags.by_ref() {
        depth += 1;
        // A tag of VLAN 0 has a priority and names no VLAN (IEEE 802.1Q, 9.6): to its receiver the
        // frame is an untagged one.
        vlan = if tag.vlan() == 0 { 0 } else { TAGGED | tag.vlan() };
    }
    let at = head.len() - tags.rest().len();
    match (tags.ethertype(), depth) {
        (ethernet::IPV4, 0 | 1) if version(tags.rest()) == Some(4) => {
            Inside::Ip { at: at as u16, vlan }
        }
        (ethernet::IPV6, 0 | 1) if version(tags.rest()) == Some(6) => {
            Inside::Ip { at: at as u16, vlan }
        }
        (ethernet::IPV4 | ethernet::IPV6, _) => Inside::HiddenIp,
        (ethertype, _) if ethernet::is_vlan(ethertype) => Inside::HiddenIp,
        (ethertype, _) if ethertype < ethernet::MIN_TYPE => behind_llc(tags.rest(), at),
        (ethertype, _) => not_ip(ethertype, at),
    }
}

fn version(packet: &[u8]) -> Option<u8> {
    packet.first().map(|byte| byte >> 4)
}

fn not_ip(ethertype: u16, at: usize) -> Inside {
    match ethertype {
        ethernet::ARP => Inside::Arp(at as u16),
        ethernet::RARP => Inside::Rarp,
        _ => Inside::NonIp,
    }
}

/// The service access point of IP itself (RFC 1042's predecessor).
const LLC_IP: u8 = 0x06;
/// The service access point of SNAP.
const LLC_SNAP: u8 = 0xaa;

fn behind_llc(bytes: &[u8], at: usize) -> Inside {
    match Llc::parse(bytes) {
        // So many tags that the LLC header goes on beyond the bytes at hand.
        Err(_) if at + bytes.len() >= HEAD => Inside::HiddenIp,
        Ok(Llc { snap: Some((_, kind)), payload, .. }) => match kind {
            ethernet::IPV4 | ethernet::IPV6 => Inside::HiddenIp,
            kind if ethernet::is_vlan(kind) => Inside::HiddenIp,
            kind => not_ip(kind, at + (bytes.len() - payload.len())),
        },
        // Receivers may also take SNAP that is not as RFC 1042 wants it (another control field, a
        // group, a reply).
        Ok(Llc { dsap, ssap, .. })
            if [dsap, ssap].iter().any(|sap| matches!(sap & 0xfe, LLC_IP | LLC_SNAP)) =>
        {
            Inside::HiddenIp
        }
        _ => Inside::NonIp,
    }
}

/// Returns the ARP packet at a position found by [`inside`], if it is ARP for IPv4 over Ethernet.
pub(crate) fn arp(head: &[u8], at: u16) -> Option<Arp<'_>> {
    Arp::parse(head.get(usize::from(at)..)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(after_addresses: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        bytes.extend(after_addresses);
        bytes.resize(bytes.len().max(60), 0);
        bytes
    }

    #[test]
    fn what_is_inside() {
        let cases: &[(&str, &[u8], Inside)] = &[
            ("IPv4", &[0x08, 0x00, 0x45], PLAIN_IP),
            ("IPv6", &[0x86, 0xdd, 0x60], PLAIN_IP),
            ("IPv4 that says 6", &[0x08, 0x00, 0x65], Inside::HiddenIp),
            ("IPv6 that says 4", &[0x86, 0xdd, 0x45], Inside::HiddenIp),
            ("one tag", &[0x81, 0, 0, 5, 0x08, 0x00, 0x45], Inside::Ip { at: 18, vlan: 0x1005 }),
            ("a priority", &[0x81, 0, 0xe0, 0, 0x08, 0x00, 0x45], Inside::Ip { at: 18, vlan: 0 }),
            (
                "a priority and a tag",
                &[0x81, 0, 0xe0, 0, 0x81, 0, 0, 6, 0x08, 0x00, 0x45],
                Inside::HiddenIp,
            ),
            ("two tags", &[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x08, 0x00, 0x45], Inside::HiddenIp),
            (
                "two kinds of tags",
                &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x86, 0xdd, 0x60],
                Inside::HiddenIp,
            ),
            ("ARP", &[0x08, 0x06, 0, 1], Inside::Arp(14)),
            ("tagged ARP", &[0x81, 0, 0, 5, 0x08, 0x06, 0, 1], Inside::Arp(18)),
            ("RARP", &[0x80, 0x35], Inside::Rarp),
            ("LLDP", &[0x88, 0xcc], Inside::NonIp),
            ("SNAP IPv4", &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0x00, 0x45], Inside::HiddenIp),
            (
                "SNAP IPv6 of another organisation",
                &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0xf8, 0x86, 0xdd, 0x60],
                Inside::HiddenIp,
            ),
            ("SNAP ARP", &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0x06, 0, 1], Inside::Arp(22)),
            (
                "SNAP VLAN",
                &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0x00, 0, 5, 0x08, 0],
                Inside::HiddenIp,
            ),
            ("LLC IP", &[0, 50, 0x06, 0x06, 3, 0x45], Inside::HiddenIp),
            ("spanning tree", &[0, 38, 0x42, 0x42, 3], Inside::NonIp),
            ("tagged LLC IP", &[0x81, 0, 0, 5, 0, 50, 0x06, 0x06, 3, 0x45], Inside::HiddenIp),
            (
                "SNAP IPv4 for a group",
                &[0, 50, 0xab, 0xaa, 3, 0, 0, 0, 0x08, 0x00, 0x45],
                Inside::HiddenIp,
            ),
            (
                "SNAP IPv4 in a reply",
                &[0, 50, 0xaa, 0xab, 3, 0, 0, 0, 0x08, 0x00, 0x45],
                Inside::HiddenIp,
            ),
            (
                "SNAP IPv4 that polls",
                &[0, 50, 0xaa, 0xaa, 0x13, 0, 0, 0, 0x08, 0x00, 0x45],
                Inside::HiddenIp,
            ),
        ];
        for (name, bytes, want) in cases {
            assert_eq!(inside(&frame(bytes)), *want, "{name}");
        }
    }

    #[test]
    fn endless_tags_hide_something() {
        let tags: Vec<u8> = [0x81, 0, 0, 1].into_iter().cycle().take(116).collect();
        assert_eq!(inside(&frame(&tags)), Inside::HiddenIp);
    }

    #[test]
    fn tags_that_push_llc_out_of_sight_hide_something() {
        for tags in 27..=29 {
            let mut bytes: Vec<u8> = [0x81, 0, 0, 1].into_iter().cycle().take(tags * 4).collect();
            bytes.extend([0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0x00, 0x45]);
            let whole = frame(&bytes);
            assert_eq!(inside(&whole[..HEAD.min(whole.len())]), Inside::HiddenIp, "{tags} tags");
        }
        // A frame that ends there has nothing to hide.
        assert_eq!(inside(&frame(&[])[..14]), Inside::NonIp);
    }
}

//! Headers: which frames can be read at all, their addresses, and what is inside them.
//!
//! IEEE 802.3 clause 3.2 (type and length), 802.1Q (tags), 802.2 (LLC, SNAP), RFC 791 and 8200 (version nibble).

use butterfly_packet::{
    arp::Arp,
    ethernet::{self, Ethernet, Llc},
    mac::Mac,
};
use butterfly_vhost::ring::{FrameFault, HEAD};

use crate::{
    batch::{Batch, Context, Verdict},
    flow::TAGGED,
    reason::drop_reasons,
};

drop_reasons! { 0;
    /// The sender's descriptor chain has a loop, an index or address out of range, or wrong flags.
    BAD_CHAIN = "bad-chain" {
        cause: "a broken or hostile virtio driver in the machine",
        remedy: "look into the machine's kernel log and replace its virtio-net driver; `butterfly nic show NIC` tells the state of its rings",
        charged: "the sender",
    }
    /// The frame is shorter than an Ethernet header.
    SHORT = "short" {
        cause: "a broken or hostile virtio driver in the machine",
        remedy: "replace the machine's virtio-net driver, or the program in it that writes raw frames",
        charged: "the sender",
    }
    /// The frame is longer than the largest IP packet.
    OVERSIZED = "oversized" {
        cause: "a broken or hostile virtio driver in the machine",
        remedy: "replace the machine's virtio-net driver, or the program in it that writes raw frames",
        charged: "the sender",
    }
    /// The frame was in a transmit ring that the front end had disabled for half a second or more.
    TX_DISABLED = "tx-disabled" {
        cause: "a network card that was switched off from outside (`set_link NAME off` in QEMU's monitor), or a driver that takes its link down and goes on sending",
        remedy: "switch it on again: `set_link NAME on` in QEMU's monitor, or set the interface up in the machine",
        charged: "the sender",
    }
}

/// What a frame carries, as far as filters ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inside {
    /// Nobody asked.
    Unknown,
    /// IPv4 or IPv6 from this byte on, at most behind one VLAN tag, and it says so itself. The tag as [`crate::flow::Tuple::vlan`] has it.
    Ip { at: u16, vlan: u16 },
    /// IP behind several tags or behind LLC, or a type that contradicts the version nibble (CERT VU#855201).
    HiddenIp,
    /// ARP that starts at this byte.
    Arp(u16),
    /// Reverse ARP (RFC 903).
    Rarp,
    /// Anything else.
    NonIp,
}

const PLAIN_IP: Inside = Inside::Ip { at: ethernet::HEADER_LEN as u16, vlan: 0 };

/// Drops what could not be taken from the ring; reads the addresses of all others, and what is inside if a filter will ask.
#[inline(never)] // one call per batch; measurements tell stages apart by it
pub(crate) fn headers(batch: &mut Batch<'_>, context: &Context<'_>) {
    let classify = context.network.filtered;
    let mut unusual = false;
    let (frames, metas) = batch.parts();
    for (index, (meta, (frame, slot))) in metas.iter_mut().zip(frames.each()).enumerate() {
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1, first, _, _, _, _, _, _, hops, ..] = slot.bytes();
        meta.destination = u64::from_le_bytes([d0, d1, d2, d3, d4, d5, 0, 0]);
        meta.source = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, 0, 0]);
        meta.offload = frame.offload;
        meta.verdict = match frame.fault {
            None => Verdict::Undecided,
            Some(fault) => Verdict::Drop(reason(fault), context.sender.place.slot),
        };
        if classify {
            meta.inside = match ([t0, t1], first >> 4) {
                // What most frames are.
                ([0x08, 0x00], 4) if frame.len > ethernet::HEADER_LEN as u32 => PLAIN_IP,
                ([0x86, 0xdd], 6) if frame.len > ethernet::HEADER_LEN as u32 => {
                    // Discovery with another hop limit is no discovery (RFC 4861, 3.1).
                    unusual |= hops == 255;
                    PLAIN_IP
                }
                _ => {
                    unusual = true;
                    inside(frames.head(index))
                }
            };
        }
    }
    batch.unusual = unusual;
}

#[cold]
fn reason(fault: FrameFault) -> crate::reason::DropReason {
    match fault {
        FrameFault::BadChain => BAD_CHAIN,
        FrameFault::Short => SHORT,
        FrameFault::Oversized => OVERSIZED,
    }
}

/// Walks VLAN tags and LLC to what a frame carries. Tags that go on beyond `head` are as good as hidden IP.
pub(crate) fn inside(head: &[u8]) -> Inside {
    let Ok(frame) = Ethernet::parse(head) else { return Inside::NonIp };
    let mut tags = frame.tags();
    let (mut depth, mut vlan) = (0, 0);
    for tag in tags.by_ref() {
        depth += 1;
        // A tag of VLAN 0 has a priority and names no VLAN (IEEE 802.1Q, 9.6): its frame is an untagged one to whoever gets it.
        vlan = if tag.vlan() == 0 { 0 } else { TAGGED | tag.vlan() };
    }
    let at = head.len() - tags.rest().len();
    match (tags.ethertype(), depth) {
        (ethernet::IPV4, 0 | 1) if version(tags.rest()) == Some(4) => Inside::Ip { at: at as u16, vlan },
        (ethernet::IPV6, 0 | 1) if version(tags.rest()) == Some(6) => Inside::Ip { at: at as u16, vlan },
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
/// That of SNAP.
const LLC_SNAP: u8 = 0xaa;

fn behind_llc(bytes: &[u8], at: usize) -> Inside {
    match Llc::parse(bytes) {
        // So many tags that LLC goes on where nobody looked.
        Err(_) if at + bytes.len() >= HEAD => Inside::HiddenIp,
        Ok(Llc { snap: Some((_, kind)), payload, .. }) => match kind {
            ethernet::IPV4 | ethernet::IPV6 => Inside::HiddenIp,
            kind if ethernet::is_vlan(kind) => Inside::HiddenIp,
            kind => not_ip(kind, at + (bytes.len() - payload.len())),
        },
        // SNAP that is not sent as RFC 1042 wants it (another control field, a group, a reply) may be taken all the same.
        Ok(Llc { dsap, ssap, .. }) if [dsap, ssap].iter().any(|sap| matches!(sap & 0xfe, LLC_IP | LLC_SNAP)) => Inside::HiddenIp,
        _ => Inside::NonIp,
    }
}

/// The ARP packet at a position found by [`inside`], if it is ARP for IPv4 over Ethernet.
pub(crate) fn arp(head: &[u8], at: u16) -> Option<Arp<'_>> {
    Arp::parse(head.get(usize::from(at)..)?).ok()
}

/// An address as a number below 2^48, first byte lowest: how it is compared and looked up.
#[inline(always)]
pub(crate) const fn number(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The address of a [`number`].
pub(crate) const fn address(number: u64) -> Mac {
    let [a, b, c, d, e, f, _, _] = number.to_le_bytes();
    Mac([a, b, c, d, e, f])
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
            ("a priority and a tag", &[0x81, 0, 0xe0, 0, 0x81, 0, 0, 6, 0x08, 0x00, 0x45], Inside::HiddenIp),
            ("two tags", &[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x08, 0x00, 0x45], Inside::HiddenIp),
            ("two kinds of tags", &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 0x86, 0xdd, 0x60], Inside::HiddenIp),
            ("ARP", &[0x08, 0x06, 0, 1], Inside::Arp(14)),
            ("tagged ARP", &[0x81, 0, 0, 5, 0x08, 0x06, 0, 1], Inside::Arp(18)),
            ("RARP", &[0x80, 0x35], Inside::Rarp),
            ("LLDP", &[0x88, 0xcc], Inside::NonIp),
            ("SNAP IPv4", &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0x00, 0x45], Inside::HiddenIp),
            ("SNAP IPv6 of another organisation", &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0xf8, 0x86, 0xdd, 0x60], Inside::HiddenIp),
            ("SNAP ARP", &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 0x08, 0x06, 0, 1], Inside::Arp(22)),
            ("SNAP VLAN", &[0, 50, 0xaa, 0xaa, 3, 0, 0, 0, 0x81, 0x00, 0, 5, 0x08, 0], Inside::HiddenIp),
            ("LLC IP", &[0, 50, 0x06, 0x06, 3, 0x45], Inside::HiddenIp),
            ("spanning tree", &[0, 38, 0x42, 0x42, 3], Inside::NonIp),
            ("tagged LLC IP", &[0x81, 0, 0, 5, 0, 50, 0x06, 0x06, 3, 0x45], Inside::HiddenIp),
            ("SNAP IPv4 for a group", &[0, 50, 0xab, 0xaa, 3, 0, 0, 0, 0x08, 0x00, 0x45], Inside::HiddenIp),
            ("SNAP IPv4 in a reply", &[0, 50, 0xaa, 0xab, 3, 0, 0, 0, 0x08, 0x00, 0x45], Inside::HiddenIp),
            ("SNAP IPv4 that polls", &[0, 50, 0xaa, 0xaa, 0x13, 0, 0, 0, 0x08, 0x00, 0x45], Inside::HiddenIp),
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

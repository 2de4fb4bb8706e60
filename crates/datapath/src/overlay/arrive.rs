//! Arrival: takes the outer header off a frame from the uplink, and finds the network it is for.
//!
//! RFC 791, RFC 8200, RFC 768, RFC 7348 section 5; RFC 6935 for zero checksums over IPv6.

use std::net::IpAddr;

use butterfly_packet::{
    be16, be32,
    checksum::Sum,
    ethernet,
    mac::Mac,
    protocol::{FRAGMENT, HOP_BY_HOP, ICMP, ICMPV6, IGMP, UDP},
    vxlan::{PASSED_ON, PORT},
};
use butterfly_vhost::{net::NetHeader, ring::Frames};

use crate::engine::place::PeerRef;
use crate::engine::reason::DropReason;
use crate::engine::writer::Writer;
use crate::ip::{Address, mapped};
use crate::overlay::{
    NOT_OURS, OTHER_VLAN, OUTER_FRAGMENT, OUTER_MALFORMED, Tunnel, UNKNOWN_PEER, UNKNOWN_VNI,
    VXLAN_FLAGS, peers::PeerCounter,
};
use crate::world::rules::address as ip_of;
use crate::world::snapshot::Snapshot;

/// Kind of a frame from the uplink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrived {
    /// A frame of this network without its outer header, and the peer it came from. The peer is
    /// missing if the table had no room for it.
    Inner {
        vni: u32,
        peer: Option<PeerRef>,
    },
    /// For the tunnel endpoint itself: ARP, ND, ping, IGMP, MLD.
    Control,
    Dropped(DropReason),
}

/// Contents of an outer header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Header {
    mac: Mac,
    from: Address,
    to: Address,
    vni: u32,
    /// Start and length of the inner frame.
    inner: usize,
    len: u32,
    /// Start of UDP.
    l4: usize,
    /// True if it has a checksum.
    checksum: bool,
    /// True if it is of another VLAN than the underlay's.
    other_vlan: bool,
    /// True if its sender is behind another host than the one that it came from.
    passed_on: bool,
}

/// Reason for which an outer header names no inner frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Other {
    Control,
    Dropped(DropReason),
}

/// A peer that frames of a batch came from.
#[derive(Clone, Copy)]
struct Heard {
    from: Address,
    mac: Mac,
    /// The network of its frames: strict peers are heard only in networks that they were named for.
    vni: u32,
    at: Option<PeerRef>,
    packets: u64,
    bytes: u64,
}

/// Takes outer headers off a batch.
pub(crate) struct Arrivals<'a> {
    tunnel: &'a Tunnel,
    snapshot: &'a Snapshot,
    worker: Writer<'a>,
    now: u32,
    strict: bool,
    /// The peer that the last frame came from; the next one probably comes from it, too.
    heard: Option<Heard>,
}

impl<'a> Arrivals<'a> {
    pub fn new(
        tunnel: &'a Tunnel,
        snapshot: &'a Snapshot,
        worker: Writer<'a>,
        now: u32,
    ) -> Arrivals<'a> {
        let strict = tunnel.strict.load(std::sync::atomic::Ordering::Relaxed);
        Arrivals { tunnel, snapshot, worker, now, strict, heard: None }
    }

    /// Takes the outer header off one frame. `known` says which networks are here.
    #[inline(always)]
    pub fn take(
        &mut self,
        frames: &mut Frames<'_>,
        index: usize,
        known: impl FnOnce(u32) -> bool,
    ) -> Arrived {
        let Some(frame) = frames.frames().get(index).copied() else {
            return Arrived::Dropped(OUTER_MALFORMED);
        };
        if frame.fault.is_some() {
            return Arrived::Dropped(OUTER_MALFORMED);
        }
        let head = frames.head(index);
        let vlan = self.tunnel.vlan;
        let plain = if vlan == 0 {
            plain::<0>(head, frame.len, 0)
        } else {
            plain::<4>(head, frame.len, vlan)
        };
        let header = match plain.map_or_else(|| read(head, frame.len, vlan), Ok) {
            Ok(header) => header,
            Err(Other::Control) => return Arrived::Control,
            Err(Other::Dropped(reason)) => return Arrived::Dropped(reason),
        };
        if header.to != self.tunnel.own && header.to != self.tunnel.groups.number_of(header.vni) {
            return Arrived::Dropped(NOT_OURS);
        }
        if header.other_vlan {
            return Arrived::Dropped(OTHER_VLAN);
        }
        if frame.offload {
            // The other end of a vhost-user uplink may leave only the outer checksum to be done,
            // which is not needed here.
            if frame.net.gso_type != NetHeader::GSO_NONE
                || usize::from(frame.net.csum_start) != header.l4
            {
                return Arrived::Dropped(OUTER_MALFORMED);
            }
        } else if header.checksum && !is_valid(frames, index, &{ header }) {
            return Arrived::Dropped(OUTER_MALFORMED);
        }
        if !known(header.vni) {
            return Arrived::Dropped(UNKNOWN_VNI);
        }
        let heard = match &mut self.heard {
            Some(heard)
                if heard.from == header.from
                    && heard.mac == header.mac
                    && (heard.vni == header.vni || !self.strict) =>
            {
                heard
            }
            // A copy, so that the fields of what is known stay in registers.
            _ => match self.another(&{ header }) {
                Ok(heard) => heard,
                Err(reason) => return Arrived::Dropped(reason),
            },
        };
        heard.packets += 1;
        heard.bytes += u64::from(header.len);
        let peer = if header.passed_on { Some(PeerRef::PASSED_ON) } else { heard.at };
        if !frames.strip(index, header.inner, header.len) {
            return Arrived::Dropped(OUTER_MALFORMED);
        }
        Arrived::Inner { vni: header.vni, peer }
    }

    /// Finds the peer of a frame that is not from the same peer as the frame before.
    #[cold]
    fn another(&mut self, header: &Header) -> Result<&mut Heard, DropReason> {
        if impossible(header.from, self.tunnel.own) || header.mac.is_group() {
            return Err(OUTER_MALFORMED);
        }
        self.count();
        let peers = &self.tunnel.peers;
        let at = peers.find(header.from);
        if self.strict && !at.is_some_and(|at| self.is_named(at, header.vni)) {
            return Err(UNKNOWN_PEER);
        }
        let at = at.or_else(|| peers.try_add(header.from, header.vni, self.now));
        let Header { from, mac, vni, .. } = *header;
        Ok(self.heard.insert(Heard { from, mac, vni, at, packets: 0, bytes: 0 }))
    }

    /// Returns whether the operator named a peer for this network, or for all.
    fn is_named(&self, peer: PeerRef, vni: u32) -> bool {
        let remote = self.snapshot.network(vni).and_then(|network| network.remote.as_ref());
        remote.is_some_and(|remote| remote.peers.binary_search(&peer).is_ok())
    }

    /// Counts frames of a peer. Those of the last peer are counted at the end of the batch.
    pub fn count(&mut self) {
        if let Some(heard) = self.heard.take()
            && let Some(peer) = heard.at.and_then(|at| self.tunnel.peers.get(at))
        {
            peer.heard(heard.mac, self.now);
            peer.count(self.worker, PeerCounter::InPackets, heard.packets);
            peer.count(self.worker, PeerCounter::InBytes, heard.bytes);
        }
    }
}

/// Reads the commonest outer header: no options, and a tag of `TAG` bytes, of this VLAN, or none.
/// Returns `None` for all others.
#[inline(always)]
fn plain<const TAG: usize>(head: &[u8], len: u32, vlan: u16) -> Option<Header> {
    let (&[_, _, _, _, _, _, m0, m1, m2, m3, m4, m5, k0, k1], rest) =
        head.split_first_chunk::<14>()?;
    let (kind, rest) = if TAG == 0 {
        ([k0, k1], rest)
    } else {
        let (&[v0, v1, t0, t1], rest) = rest.split_first_chunk::<4>()?;
        if u16::from_be_bytes([k0, k1]) != ethernet::VLAN
            || u16::from_be_bytes([v0, v1]) & 0xfff != vlan
        {
            return None;
        }
        ([t0, t1], rest)
    };
    let mac = Mac([m0, m1, m2, m3, m4, m5]);
    let room = len.wrapping_sub(14 + TAG as u32);
    match kind {
        [0x08, 0x00] => {
            let ip = rest.first_chunk::<20>()?;
            let &[0x45, _, t0, t1, _, _, o0, o1, _, UDP, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = ip
            else {
                return None;
            };
            let total = u32::from(u16::from_be_bytes([t0, t1]));
            if total > room
                || total < 36
                || u16::from_be_bytes([o0, o1]) & 0x3fff != 0
                || !sums_up(ip)
            {
                return None;
            }
            let from = mapped(std::net::Ipv4Addr::new(s0, s1, s2, s3));
            let to = mapped(std::net::Ipv4Addr::new(d0, d1, d2, d3));
            vxlan(rest.get(20..)?.first_chunk()?, total - 20)
                .map(|found| found.header(mac, from, to, 34 + TAG))
        }
        [0x86, 0xdd] => {
            let &[version, _, _, _, p0, p1, UDP, _] = rest.first_chunk::<8>()? else { return None };
            let payload = u32::from(u16::from_be_bytes([p0, p1]));
            if version >> 4 != 6 || payload + 40 > room {
                return None;
            }
            let from = u128::from_be_bytes(*rest.get(8..)?.first_chunk()?);
            let to = u128::from_be_bytes(*rest.get(24..)?.first_chunk()?);
            if is_mapped(from) || is_mapped(to) {
                return None;
            }
            vxlan(rest.get(40..)?.first_chunk()?, payload)
                .map(|found| found.header(mac, from, to, 54 + TAG))
        }
        _ => None,
    }
}

/// Returns the sum of an IPv4 header without options.
#[inline(always)]
fn sums_up(header: &[u8; 20]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    Sum::from_native(sum, false).is_valid()
}

/// Contents of UDP and VXLAN.
struct Found {
    vni: u32,
    len: u32,
    checksum: bool,
}

impl Found {
    #[inline(always)]
    fn header(self, mac: Mac, from: Address, to: Address, l4: usize) -> Header {
        Header {
            mac,
            from,
            to,
            vni: self.vni,
            inner: l4 + 16,
            len: self.len,
            l4,
            checksum: self.checksum,
            other_vlan: false,
            passed_on: false,
        }
    }
}

#[inline(always)]
fn vxlan(bytes: &[u8; 16], room: u32) -> Option<Found> {
    let &[_, _, p0, p1, l0, l1, c0, c1, 0x08, 0, 0, 0, v0, v1, v2, 0] = bytes else { return None };
    let len = u32::from(u16::from_be_bytes([l0, l1]));
    let good = u16::from_be_bytes([p0, p1]) == PORT && len <= room && len >= 16;
    good.then(|| Found {
        vni: u32::from_be_bytes([0, v0, v1, v2]),
        len: len - 16,
        checksum: c0 | c1 != 0,
    })
}

/// Reads any outer header, or returns its fault. `len` is the frame's length; `head` its first
/// bytes; `vlan` the underlay's VLAN.
#[inline(never)]
fn read(head: &[u8], len: u32, vlan: u16) -> Result<Header, Other> {
    const SHORT: Other = Other::Dropped(OUTER_MALFORMED);
    let mac = Mac(*head.get(6..12).and_then(|part| part.first_chunk()).ok_or(SHORT)?);
    let mut l3 = ethernet::HEADER_LEN;
    let mut kind = be16(head, 12).ok_or(SHORT)?;
    // A priority tag names no VLAN (IEEE 802.1Q, 9.6), and a switch may leave it.
    let mut tag = 0;
    if kind == ethernet::VLAN {
        tag = be16(head, 14).ok_or(SHORT)? & 0xfff;
        kind = be16(head, 16).ok_or(SHORT)?;
        l3 = 18;
    }
    let other_vlan = tag != vlan;
    let control = if other_vlan { Other::Dropped(OTHER_VLAN) } else { Other::Control };
    let room = (len as usize).checked_sub(l3).ok_or(SHORT)?;
    let packet = head.get(l3..).ok_or(SHORT)?;
    let (l4, from, to, payload) = match kind {
        ethernet::IPV4 => {
            let header = usize::from(packet.first().ok_or(SHORT)? & 0x0f) * 4;
            let total = usize::from(be16(packet, 2).ok_or(SHORT)?);
            let bytes = packet
                .get(..header)
                .filter(|bytes| bytes.len() >= 20 && bytes.first().is_some_and(|b| b >> 4 == 4));
            let bytes = bytes.ok_or(SHORT)?;
            if total < header || total > room || !Sum::of(bytes).is_valid() {
                return Err(SHORT);
            }
            let protocol = bytes.get(9).copied().unwrap_or(0);
            match protocol {
                UDP => {}
                ICMP | IGMP => return Err(control),
                _ => return Err(Other::Dropped(NOT_OURS)),
            }
            if be16(bytes, 6).unwrap_or(0) & 0x3fff != 0 {
                return Err(Other::Dropped(OUTER_FRAGMENT));
            }
            let address = |at| be32(bytes, at).map(std::net::Ipv4Addr::from_bits).ok_or(SHORT);
            (l3 + header, mapped(address(12)?), mapped(address(16)?), total - header)
        }
        ethernet::IPV6 => {
            let payload = usize::from(be16(packet, 4).ok_or(SHORT)?);
            let addresses = packet.get(8..40).ok_or(SHORT)?;
            if packet.first().is_none_or(|b| b >> 4 != 6) || payload + 40 > room {
                return Err(SHORT);
            }
            match packet.get(6).copied().unwrap_or(0) {
                UDP => {}
                ICMPV6 | HOP_BY_HOP => return Err(control),
                FRAGMENT => return Err(Other::Dropped(OUTER_FRAGMENT)),
                _ => return Err(Other::Dropped(NOT_OURS)),
            }
            let address = |part: Option<&[u8]>| {
                part.and_then(|part| part.first_chunk::<16>())
                    .copied()
                    .map(u128::from_be_bytes)
                    .ok_or(SHORT)
            };
            let (from, to) = (address(addresses.get(..16))?, address(addresses.get(16..))?);
            if is_mapped(from) || is_mapped(to) {
                return Err(SHORT);
            }
            (l3 + 40, from, to, payload)
        }
        ethernet::ARP => return Err(control),
        _ => return Err(Other::Dropped(NOT_OURS)),
    };
    let udp = head.get(l4..l4 + 8).filter(|_| payload >= 8).ok_or(SHORT)?;
    // Before its length: other protocols have datagrams that are too short for VXLAN.
    if be16(udp, 2) != Some(PORT) {
        return Err(Other::Dropped(NOT_OURS));
    }
    let datagram = head.get(l4..l4 + 16).ok_or(SHORT)?;
    let length = usize::from(be16(datagram, 4).ok_or(SHORT)?);
    if length > payload || length < 16 {
        return Err(SHORT);
    }
    let (Some(flags), Some(vni)) = (be32(datagram, 8), be32(datagram, 12)) else {
        return Err(SHORT);
    };
    let passed_on = flags == u32::from_be_bytes(PASSED_ON);
    if (flags != 0x0800_0000 && !passed_on) || vni & 0xff != 0 {
        return Err(Other::Dropped(VXLAN_FLAGS));
    }
    let checksum = be16(datagram, 6) != Some(0);
    Ok(Header {
        mac,
        from,
        to,
        vni: vni >> 8,
        inner: l4 + 16,
        len: (length - 16) as u32,
        l4,
        checksum,
        other_vlan,
        passed_on,
    })
}

/// Returns whether an IPv6 address is an IPv4 address in disguise. None may be on a wire, and here
/// it would count as that IPv4 address.
#[inline(always)]
fn is_mapped(address: Address) -> bool {
    address >> 32 == 0xffff
}

/// Returns whether an outer source address is impossible: it is ours, or no station's.
pub(crate) fn impossible(from: Address, own: Address) -> bool {
    match ip_of(from) {
        _ if from == own => true,
        IpAddr::V4(ip) => ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unspecified() || ip.is_multicast(),
    }
}

#[cold]
fn is_valid(frames: &Frames<'_>, index: usize, header: &Header) -> bool {
    let len = header.len + 16;
    let pseudo = match (ip_of(header.from), ip_of(header.to)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Sum::pseudo_v4(from, to, UDP, len as u16),
        (IpAddr::V6(from), IpAddr::V6(to)) => Sum::pseudo_v6(from, to, UDP, len),
        _ => return false,
    };
    frames.sum(index, header.l4 as u32, len).is_some_and(|sum| pseudo.combine(sum).is_valid())
}

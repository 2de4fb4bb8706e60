//! Reads a frame from the link and passes it to the protocol that it is for. Everything in it is a
//! claim of an untrusted station. A frame that its protocol's rules call invalid is counted, and
//! goes no further.

use std::net::{IpAddr, Ipv6Addr};

use butterfly_packet::{
    Mac,
    arp::{self, Arp},
    be16,
    checksum::Sum,
    ethernet::{self, Ethernet},
    icmp::{self, Icmp},
    ipv4::Ipv4,
    ipv6::{self, Ipv6},
    protocol, vxlan,
};

use crate::endpoint::control::{
    Control, ControlEvent, Output,
    counts::Count,
    is_station,
    link::{self, ND_HOP_LIMIT, SOLICITED},
};
use crate::endpoint::silence::Refusal;

impl Control {
    /// Hears a frame. Returns its counter, unless it was counted already.
    pub(super) fn hear(&mut self, frame: &[u8], now: u64, out: &mut Output) -> Option<Count> {
        let Ok(ethernet) = Ethernet::parse(frame) else { return Some(Count::Malformed) };
        let (from, to) = (ethernet.source(), ethernet.destination());
        if from == self.link.mac {
            return Some(Count::Own);
        }
        if !is_station(from) || to != self.link.mac && !to.is_group() {
            return Some(Count::Misdirected);
        }
        let mut tags = ethernet.tags();
        let _ = tags.next(); // one is tolerated, as on tunnel frames
        match tags.ethertype() {
            ethernet::ARP => self.arp(to, tags.rest(), now, out),
            ethernet::IPV4 => self.ipv4((from, to), tags.rest(), now, out),
            ethernet::IPV6 => self.ipv6((from, to), tags.rest(), now, out),
            _ => Some(Count::Ignored),
        }
    }

    fn arp(&mut self, to: Mac, packet: &[u8], now: u64, out: &mut Output) -> Option<Count> {
        let IpAddr::V4(me) = self.link.endpoint else { return Some(Count::Ignored) };
        let Ok(arp) = Arp::parse(packet) else { return Some(Count::Malformed) };
        let (mac, ip) = (arp.sender_mac(), arp.sender_ip());
        if !is_station(mac) {
            return Some(Count::Malformed);
        }
        if mac == self.link.mac {
            return Some(Count::Own);
        }
        if ip == me {
            self.endpoint.defend(&self.link, now, out);
            return Some(Count::Conflict);
        }
        if arp.operation() == arp::REPLY && to == self.link.mac && arp.target_ip() == me {
            self.neighbours.answer(&self.link, ip.into(), mac, now, &mut self.counts, out);
            return None;
        }
        if !matches!(arp.operation(), arp::REQUEST | arp::REPLY) {
            return Some(Count::Ignored);
        }
        self.neighbours.claim(&self.link, ip.into(), mac, now, &mut self.counts, out);
        if arp.operation() == arp::REQUEST && arp.target_ip() == me && self.endpoint.answers() {
            out.frames.push(self.link.arp_reply(me, (mac, ip)));
            return Some(Count::Answered);
        }
        Some(Count::Ignored)
    }

    fn ipv4(
        &mut self,
        macs: (Mac, Mac),
        packet: &[u8],
        now: u64,
        out: &mut Output,
    ) -> Option<Count> {
        let Ok(ip) = Ipv4::parse(packet) else { return Some(Count::Malformed) };
        let Ok(payload) = ip.payload() else { return Some(Count::Malformed) };
        if !ip.checksum_is_valid() {
            return Some(Count::BadChecksum);
        }
        if ip.is_fragment() {
            return Some(Count::Fragment);
        }
        if !self.link.endpoint.is_ipv4() {
            return Some(Count::Ignored);
        }
        Some(match ip.protocol() {
            protocol::IGMP => self.groups.igmp(&ip, payload, now),
            protocol::ICMP => match Icmp::parse(payload) {
                Err(_) => Count::Malformed,
                Ok(_) if !Sum::of(payload).is_valid() => Count::BadChecksum,
                Ok(message) if message.kind() == icmp::v4::UNREACHABLE => {
                    self.unreachable_v4(&ip, &message, out)
                }
                Ok(message) => self.endpoint.ping_v4(&self.link, macs, &ip, &message, now, out),
            },
            _ => Count::Ignored,
        })
    }

    fn ipv6(
        &mut self,
        macs: (Mac, Mac),
        packet: &[u8],
        now: u64,
        out: &mut Output,
    ) -> Option<Count> {
        let Ok(ip) = Ipv6::parse(packet) else { return Some(Count::Malformed) };
        let (Ok(payload), Ok(upper)) = (ip.payload(), ip.upper_layer()) else {
            return Some(Count::Malformed);
        };
        if upper.fragment.is_some() {
            return Some(Count::Fragment); // RFC 6980: discovery must not come in fragments
        }
        let IpAddr::V6(me) = self.link.endpoint else { return Some(Count::Ignored) };
        if upper.protocol != protocol::ICMPV6 {
            return Some(Count::Ignored);
        }
        let Some(bytes) = payload.get(upper.offset.saturating_sub(ipv6::LEN)..) else {
            return Some(Count::Malformed);
        };
        let Ok(message) = Icmp::parse(bytes) else { return Some(Count::Malformed) };
        if !Sum::pseudo_v6(ip.source(), ip.destination(), protocol::ICMPV6, bytes.len() as u32)
            .push(bytes)
            .is_valid()
        {
            return Some(Count::BadChecksum);
        }
        match message.kind() {
            icmp::v6::NEIGHBOUR_SOLICITATION => {
                self.solicitation(me, macs.0, &ip, &message, now, out)
            }
            icmp::v6::NEIGHBOUR_ADVERTISEMENT => {
                self.advertisement(me, macs, &ip, &message, now, out)
            }
            icmp::v6::LISTENER_QUERY | icmp::v6::LISTENER_REPORT | icmp::v6::LISTENER_DONE => {
                Some(self.groups.mld(&ip, bytes, now))
            }
            icmp::v6::UNREACHABLE => Some(self.unreachable_v6(&ip, &message, out)),
            _ => Some(self.endpoint.ping_v6(&self.link, macs, &ip, &message, now, out)),
        }
    }

    /// Takes an ICMP error about a frame of ours (RFC 792; RFC 1812, 5.2.7.1).
    fn unreachable_v4(&self, ip: &Ipv4<'_>, message: &Icmp<'_>, out: &mut Output) -> Count {
        let why = match message.code() {
            2 | 3 => Refusal::NobodyListens,
            0 | 1 | 5 | 6 | 7 | 11 | 12 => Refusal::Unreachable,
            9 | 10 | 13 => Refusal::Forbidden,
            // Too large, or of no meaning here.
            _ => return Count::Ignored,
        };
        let Ok(quoted) = Ipv4::parse(message.body()) else { return Count::Malformed };
        let offset = quoted.header_len();
        let parties = (quoted.source().into(), quoted.destination().into());
        let udp = message.body().get(offset..).filter(|_| quoted.protocol() == protocol::UDP);
        self.refused((ip.source().into(), ip.destination().into()), parties, udp, why, out)
    }

    /// Takes an ICMPv6 error about a frame of ours (RFC 4443, 3.1).
    fn unreachable_v6(&self, ip: &Ipv6<'_>, message: &Icmp<'_>, out: &mut Output) -> Count {
        let why = match message.code() {
            4 => Refusal::NobodyListens,
            0 | 2 | 3 => Refusal::Unreachable,
            1 | 5 | 6 => Refusal::Forbidden,
            _ => return Count::Ignored,
        };
        let Ok(quoted) = Ipv6::parse(message.body()) else { return Count::Malformed };
        let parties = (quoted.source().into(), quoted.destination().into());
        let udp = message.body().get(ipv6::LEN..).filter(|_| quoted.next_header() == protocol::UDP);
        self.refused((ip.source().into(), ip.destination().into()), parties, udp, why, out)
    }

    /// Accepts an ICMP error if it quotes VXLAN that the endpoint sent. An error that says that a
    /// peer does not listen is accepted only from the peer itself.
    fn refused(
        &self,
        (from, to): (IpAddr, IpAddr),
        (me, peer): (IpAddr, IpAddr),
        udp: Option<&[u8]>,
        why: Refusal,
        out: &mut Output,
    ) -> Count {
        let is_vxlan = udp.is_some_and(|udp| be16(udp, 2) == Some(vxlan::PORT));
        let may_say = why != Refusal::NobodyListens || from == peer;
        if to != self.link.endpoint || me != to || !is_vxlan || !may_say {
            return Count::Misdirected;
        }
        out.events.push(ControlEvent::Refused(peer, why));
        Count::Refused
    }

    fn solicitation(
        &mut self,
        me: Ipv6Addr,
        from: Mac,
        ip: &Ipv6<'_>,
        message: &Icmp<'_>,
        now: u64,
        out: &mut Output,
    ) -> Option<Count> {
        let (target, mac) = match discovery(ip, message, icmp::OPTION_SOURCE_LINK_ADDRESS) {
            Ok(found) => found,
            Err(count) => return Some(count),
        };
        let group = ipv6::solicited_node(target);
        // RFC 4861, 7.1.1: a host without an address asks the group, and gives no link address.
        let unnamed = ip.source().is_unspecified();
        if unnamed && (ip.destination() != group || mac.is_some()) {
            return Some(Count::Malformed);
        }
        if mac == Some(self.link.mac) {
            return Some(Count::Own);
        }
        if ip.source() == me {
            self.endpoint.defend(&self.link, now, out);
            return Some(Count::Conflict);
        }
        if let Some(mac) = mac {
            self.neighbours.claim(&self.link, ip.source().into(), mac, now, &mut self.counts, out);
        }
        if target != me {
            return Some(Count::Ignored);
        }
        if ip.destination() != me && ip.destination() != group
            || !unnamed && !link::is_host_v6(ip.source())
        {
            return Some(Count::Misdirected);
        }
        Some(self.endpoint.solicited(&self.link, me, (mac.unwrap_or(from), ip.source()), out))
    }

    fn advertisement(
        &mut self,
        me: Ipv6Addr,
        (from, to): (Mac, Mac),
        ip: &Ipv6<'_>,
        message: &Icmp<'_>,
        now: u64,
        out: &mut Output,
    ) -> Option<Count> {
        let (target, mac) = match discovery(ip, message, icmp::OPTION_TARGET_LINK_ADDRESS) {
            Ok(found) => found,
            Err(count) => return Some(count),
        };
        let solicited = message.rest_of_header() & SOLICITED != 0;
        if ip.destination().is_multicast() && solicited {
            return Some(Count::Malformed); // RFC 4861, 7.1.2
        }
        // The answer may leave out its link address if the question went to that address (RFC 4861,
        // 7.2.4).
        let mac = mac.unwrap_or(from);
        if mac == self.link.mac {
            return Some(Count::Own);
        }
        if target == me {
            self.endpoint.defend(&self.link, now, out);
            return Some(Count::Conflict);
        }
        if solicited && to == self.link.mac && ip.destination() == me {
            self.neighbours.answer(&self.link, target.into(), mac, now, &mut self.counts, out);
            return None;
        }
        self.neighbours.claim(&self.link, target.into(), mac, now, &mut self.counts, out);
        Some(Count::Ignored)
    }
}

/// Returns the target of a neighbour message, and the link address in the option of this kind, if
/// there is one (RFC 4861, 7.1).
fn discovery(
    ip: &Ipv6<'_>,
    message: &Icmp<'_>,
    option: u8,
) -> Result<(Ipv6Addr, Option<Mac>), Count> {
    if ip.hop_limit() != ND_HOP_LIMIT {
        return Err(Count::NotLocal);
    }
    let target = message.target().map_err(|_| Count::Malformed)?;
    if message.code() != 0 || target.is_multicast() {
        return Err(Count::Malformed);
    }
    let mut options = message.options(16);
    let mut mac = None;
    while let Some((kind, value)) = options.take_next().map_err(|_| Count::Malformed)? {
        if kind == option {
            mac = icmp::link_address(value);
            if !mac.is_some_and(is_station) {
                return Err(Count::Malformed);
            }
        }
    }
    Ok((target, mac))
}

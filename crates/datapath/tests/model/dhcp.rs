//! DHCP of the model: a reader that collects all options before it looks at any, and lists as the
//! memory of vnics.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    choices::Choices,
    policy::{Declared, Group, serves},
    wire::{Packet, Reasons, be16, be32},
};

const FOR: u32 = 60;
const ANSWERS: u32 = 8;

/// Between which ports of DHCP a whole packet goes: from a client, or from a server.
pub fn asks(packet: &Packet) -> Option<bool> {
    let ports = if packet.source.is_ipv4() { (68, 67) } else { (546, 547) };
    if packet.protocol != 17 || packet.fragment.is_some() {
        return None;
    }
    match (be16(&packet.upper, 0), be16(&packet.upper, 2)) {
        found if found == ports => Some(true),
        (from, to) if (to, from) == ports => Some(false),
        _ => None,
    }
}

/// A message, as far as it matters.
struct Message {
    family: u8,
    xid: u32,
    mac: Option<[u8; 6]>,
    /// Addresses to which an answer may be sent, besides broadcast.
    leases: Vec<IpAddr>,
    server: Option<IpAddr>,
    given: bool,
}

fn message(packet: &Packet) -> Option<Message> {
    let request = asks(packet)?;
    if !packet.plain || usize::from(be16(&packet.upper, 4)) != packet.upper.len() {
        return None;
    }
    let bytes = &packet.upper[8..];
    if packet.source.is_ipv4() { message4(bytes, request) } else { message6(bytes, request) }
}

/// RFC 2132, 2: code, length, value, to the end; then nothing.
fn options4(bytes: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let (mut all, mut at) = (Vec::new(), 0);
    while *bytes.get(at)? != 255 {
        if bytes[at] == 0 {
            at += 1;
            continue;
        }
        let len = usize::from(*bytes.get(at + 1)?);
        all.push((bytes[at], bytes.get(at + 2..at + 2 + len)?));
        at += 2 + len;
    }
    bytes[at..].iter().skip(1).all(|byte| *byte == 0).then_some(all)
}

fn message4(bytes: &[u8], request: bool) -> Option<Message> {
    if bytes.len() < 240
        || bytes[..3] != [if request { 1 } else { 2 }, 1, 6]
        || bytes[236..240] != [99, 130, 83, 99]
    {
        return None;
    }
    let ip = |at: usize| IpAddr::V4(Ipv4Addr::from(be32(bytes, at)));
    let mut options = options4(&bytes[240..])?;
    let overload = options.iter().find(|(code, _)| *code == 52).map(|(_, value)| value.to_vec());
    match overload.as_deref() {
        None => {}
        Some([fields @ 1..=3]) => {
            if fields & 1 != 0 {
                options.extend(options4(&bytes[108..236])?);
            }
            if fields & 2 != 0 {
                options.extend(options4(&bytes[44..108])?);
            }
        }
        Some(_) => return None,
    }
    for (code, len) in
        [(52, 1), (53, 1), (57, 2), (1, 4), (50, 4), (51, 4), (54, 4), (58, 4), (59, 4)]
    {
        let found: Vec<_> = options.iter().filter(|(other, _)| *other == code).collect();
        if found.len() > 1 || found.iter().any(|(_, value)| value.len() != len) {
            return None;
        }
    }
    let option = |code| options.iter().find(|(other, _)| *other == code).map(|(_, value)| *value);
    let kind = option(53)?[0];
    let own = bytes[3] == 0 && bytes[16..20] == [0; 4] && bytes[24..28] == [0; 4];
    let fits =
        if request { matches!(kind, 1 | 3 | 4 | 7 | 8) && own } else { matches!(kind, 2 | 5 | 6) };
    let server = option(54)
        .filter(|value| kind != 6 && **value != [0; 4])
        .map(|value| Ipv4Addr::from(be32(value, 0)).into());
    (fits && bytes[34..44] == [0; 10]).then(|| Message {
        family: 4,
        xid: be32(bytes, 4),
        mac: Some(bytes[28..34].try_into().unwrap()),
        leases: [ip(16), ip(12)].into_iter().filter(|ip| !ip.is_unspecified()).collect(),
        server: server.filter(|_| !request),
        given: kind == 5,
    })
}

/// RFC 8415, 21.1; options within options, at most three deep.
fn options6(bytes: &[u8], depth: usize) -> Option<Vec<u16>> {
    let (mut all, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let head = bytes.get(at..at + 4)?;
        let (code, len) = (be16(head, 0), usize::from(be16(head, 2)));
        let value = bytes.get(at + 4..at + 4 + len)?;
        let fits = match code {
            1 | 2 => (3..=130).contains(&len),
            6 => len % 2 == 0,
            7 => len == 1,
            8 => len == 2,
            12 => len == 16,
            13 => len >= 2,
            14 | 20 => len == 0,
            _ => true,
        };
        if !fits || [1, 2, 6, 7, 8, 12, 14, 20].contains(&code) && all.contains(&code) {
            return None;
        }
        let inner = match code {
            3 | 25 => Some(12),
            4 => Some(4),
            5 => Some(24),
            26 => Some(25),
            _ => None,
        };
        if let Some(inner) = inner {
            if depth == 0 {
                return None;
            }
            options6(value.get(inner..)?, depth - 1)?;
        }
        all.push(code);
        at += 4 + len;
    }
    Some(all)
}

fn message6(bytes: &[u8], request: bool) -> Option<Message> {
    let options = options6(bytes.get(4..)?, 3)?;
    let (client, server) = (options.contains(&1), options.contains(&2));
    let fits = match (request, bytes[0]) {
        (true, 1 | 4 | 6) => client && !server,
        (true, 3 | 5 | 8 | 9) => client && server,
        (true, 11) => true,
        (false, 2) => client && server,
        (false, 7) => server,
        _ => false,
    };
    let xid = be32(bytes, 0) & 0xff_ffff;
    fits.then_some(Message {
        family: 6,
        xid,
        mac: None,
        leases: Vec::new(),
        server: None,
        given: false,
    })
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80)
}

/// Returns whether an answer is sent to its client.
fn reaches(message: &Message, to: IpAddr) -> bool {
    match message.family {
        4 => to == IpAddr::V4(Ipv4Addr::BROADCAST) || message.leases.contains(&to),
        _ => is_link_local(to),
    }
}

/// Identity of a request: family, transaction, and client, by MAC address or (DHCPv6) by IP
/// address.
type What = (u8, u32, Option<[u8; 6]>, Option<IpAddr>);

/// A request that is open, and how many answers it had.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    what: What,
    when: u32,
    answers: u32,
    /// Packet of a server's client, and the number of changes of policy before it.
    asker: Option<(Packet, u32)>,
}

/// A vnic's memory of DHCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dhcp {
    /// Its own requests.
    asked: Vec<Open>,
    /// Requests to it as a server.
    served: Vec<Open>,
    /// Requests that may leave at once, as of when; IPv4 and IPv6.
    tokens: [Option<(u32, u32)>; 2],
    /// The server that gave it a lease, and the last three that offered one.
    given: Option<IpAddr>,
    offered: Vec<IpAddr>,
    /// When it asked a server that it did not know.
    unknown: Option<u32>,
}

fn open<'a>(list: &'a mut [Open], what: &What, now: u32) -> Option<&'a mut Open> {
    list.iter_mut()
        .find(|open| open.what == *what && now - open.when <= FOR && open.answers < ANSWERS)
}

fn begin(list: &mut Vec<Open>, what: What, now: u32, asker: Option<(Packet, u32)>) {
    list.retain(|open| open.what != what);
    list.push(Open { what, when: now, answers: 0, asker });
}

impl Dhcp {
    fn left(&self, v6: bool, now: u32) -> u32 {
        self.tokens[usize::from(v6)].map_or(8, |(when, left)| (left + 4 * (now - when)).min(8))
    }

    fn knows(&self, server: IpAddr) -> bool {
        self.given == Some(server) || self.offered.contains(&server)
    }

    fn knows_none(&self) -> bool {
        self.given.is_none() && self.offered.is_empty()
    }

    fn for_itself(vnic: &Declared, packet: &Packet) -> Result<Message, Reasons> {
        let unspecified = packet.source == IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let own =
            if packet.source.is_ipv4() { unspecified } else { vnic.has_link_local(packet.source) };
        if !own && !vnic.ips.contains(&packet.source) {
            return Err(&["spoofed-ip"]);
        }
        message(packet)
            .filter(|message| message.mac.is_none_or(|mac| mac == vnic.mac))
            .ok_or(&["bad-dhcp"])
    }

    /// Checks whether a filtered vnic may send a request without a rule.
    pub fn may_ask(&self, vnic: &Declared, packet: &Packet, now: u32) -> Result<(), Reasons> {
        let message = Self::for_itself(vnic, packet)?;
        if self.left(message.family == 6, now) == 0 {
            return Err(&["dhcp-limit"]);
        }
        let servers = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2));
        match packet.destination {
            to if message.family == 6 => {
                if to == servers && is_link_local(packet.source) {
                    Ok(())
                } else {
                    Err(&["egress-denied"])
                }
            }
            to if to == IpAddr::V4(Ipv4Addr::BROADCAST) || self.knows(to) => Ok(()),
            _ if !self.knows_none() => Err(&["egress-denied"]),
            _ if self.unknown.is_some_and(|when| now - when < 60) => Err(&["dhcp-limit"]),
            _ => Ok(()),
        }
    }

    /// Returns the request of an answer, at the server that gives it.
    fn request(packet: &Packet) -> Option<What> {
        let message = message(packet)?;
        let request = asks(packet)?;
        let client = if request { packet.source } else { packet.destination };
        let reached = request || reaches(&message, packet.destination);
        reached.then(|| {
            (message.family, message.xid, message.mac, (message.family == 6).then_some(client))
        })
    }

    /// Returns whether a filtered vnic may send an answer.
    pub fn may_serve(&mut self, packet: &Packet, now: u32) -> bool {
        Self::request(packet).is_some_and(|what| open(&mut self.served, &what, now).is_some())
    }

    /// Forgets requests that no rule lets in any more. After a change of policy, requests that
    /// another rule lets in may be forgotten, too.
    pub fn look_again(
        &mut self,
        (groups, changes): (&[Group], u32),
        vnic: &Declared,
        choices: &mut Choices,
    ) {
        self.served.retain_mut(|open| {
            let Some((packet, then)) = &mut open.asker else { return true };
            let stays = *then == changes || serves(groups, vnic, packet) && choices.either();
            *then = changes;
            stays
        });
    }

    fn answer(vnic: &Declared, packet: &Packet) -> Option<Message> {
        let own = |message: &Message| {
            message.mac.is_none_or(|mac| mac == vnic.mac) && reaches(message, packet.destination)
        };
        message(packet).filter(|message| asks(packet) == Some(false) && own(message))
    }

    /// Returns whether a filtered vnic gets an answer without a rule.
    pub fn may_be_answered(&mut self, vnic: &Declared, packet: &Packet, now: u32) -> bool {
        let Some(message) = Self::answer(vnic, packet) else { return false };
        open(&mut self.asked, &(message.family, message.xid, None, None), now).is_some()
    }

    /// It sent this, by a rule or without.
    pub fn sent(&mut self, vnic: &Declared, packet: &Packet, now: u32) {
        if asks(packet) == Some(false) {
            if let Some(open) =
                Self::request(packet).and_then(|what| open(&mut self.served, &what, now))
            {
                open.answers += 1;
            }
            return;
        }
        let Ok(message) = Self::for_itself(vnic, packet) else { return };
        let v6 = message.family == 6;
        let Some(left) = self.left(v6, now).checked_sub(1) else { return };
        self.tokens[usize::from(v6)] = Some((now, left));
        begin(&mut self.asked, (message.family, message.xid, None, None), now, None);
        let same = |open: &Open| open.what.0 == message.family;
        if self.asked.iter().filter(|open| same(open)).count() > 4
            && let Some(oldest) = self.asked.iter().position(same)
        {
            self.asked.remove(oldest);
        }
        if !v6 && packet.destination != IpAddr::V4(Ipv4Addr::BROADCAST) && self.knows_none() {
            self.unknown = Some(now);
        }
    }

    /// It got this, by a rule or without.
    pub fn got(
        &mut self,
        (groups, changes): (&[Group], u32),
        vnic: &Declared,
        packet: &Packet,
        now: u32,
    ) {
        if asks(packet) == Some(true) {
            if let Some(what) = Self::request(packet).filter(|_| serves(groups, vnic, packet)) {
                begin(&mut self.served, what, now, Some((packet.clone(), changes)));
            }
            return;
        }
        let Some(message) = Self::answer(vnic, packet) else { return };
        let Some(open) = open(&mut self.asked, &(message.family, message.xid, None, None), now)
        else {
            return;
        };
        open.answers += 1;
        match message.server {
            Some(server) if message.given => self.given = Some(server),
            Some(server) if !self.knows(server) => {
                self.offered.push(server);
                if self.offered.len() > 3 {
                    self.offered.remove(0);
                }
            }
            _ => {}
        }
    }
}

//! Answers of a server.

use std::net::Ipv4Addr;

use super::{
    BROADCAST, CHADDR, CIADDR, CLIENT_PORT, COOKIE, FILE, FLAGS, MAGIC, OPTIONS, Request,
    SERVER_PORT, SIADDR, TRANSACTION, YIADDR, code,
};
use crate::{
    Mac,
    checksum::Sum,
    ethernet,
    ipv4::{self, CHECKSUM_OFFSET},
    protocol::UDP,
    udp,
};

/// Bytes of headers before a message, and of those that count as the IP packet's.
const BEFORE: usize = ethernet::HEADER_LEN + IP_AND_UDP;
const IP_AND_UDP: usize = ipv4::MIN_LEN + udp::LEN;
/// Shortest message (RFC 1542, 2.1).
const SHORTEST: usize = 300;
/// Longest answer in bytes, Ethernet header included.
pub const MAX_ANSWER: usize = ethernet::HEADER_LEN + 1500;
/// Longest name of a file: a zero ends it.
const MAX_FILE: usize = COOKIE - FILE - 1;
const TTL: u8 = 64;

/// Answer that a request gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The client may have this address.
    Offer(Ipv4Addr),
    /// The client has this address.
    Acknowledge(Ipv4Addr),
    /// All that goes with the address that the client has already.
    Parameters,
    /// The client cannot have what it asks for.
    Refuse,
}

/// Terms of a lease: what a client learns beside its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms<'a> {
    /// The router of the subnet, which is also the server.
    pub gateway: Ipv4Addr,
    /// Mask of the subnet.
    pub mask: Ipv4Addr,
    /// Broadcast address of the subnet, if it has one.
    pub broadcast: Option<Ipv4Addr>,
    /// Seconds that the lease lasts.
    pub lease: u32,
    /// Longest IP packet in bytes; `None`: the client's own choice.
    pub mtu: Option<u16>,
    /// Name servers, four bytes each.
    pub dns: &'a [u8],
    /// Domains in which names are looked for, as [`search_list`] makes them.
    pub search: &'a [u8],
    /// The first one of these as text.
    pub domain: &'a [u8],
    /// Routes, as [`classless_route`] makes them, the default route among them. Without any, the
    /// client has a default route by the gateway.
    pub routes: &'a [u8],
    /// The server from which the client boots; 0.0.0.0 if none.
    pub next_server: Ipv4Addr,
    /// The file that it boots, 127 bytes at most.
    pub boot_file: &'a [u8],
}

impl Terms<'_> {
    /// Terms that say nothing.
    pub const NONE: Terms<'static> = Terms {
        gateway: Ipv4Addr::UNSPECIFIED,
        mask: Ipv4Addr::UNSPECIFIED,
        broadcast: None,
        lease: 0,
        mtu: None,
        dns: &[],
        search: &[],
        domain: &[],
        routes: &[],
        next_server: Ipv4Addr::UNSPECIFIED,
        boot_file: &[],
    };
}

/// Appends a route to those of [`Terms::routes`]: its length, the bytes of its destination that
/// count, the router (RFC 3442).
pub fn classless_route(routes: &mut Vec<u8>, (to, length): (Ipv4Addr, u8), via: Ipv4Addr) {
    let counting = usize::from(length.min(32).div_ceil(8));
    routes.push(length.min(32));
    routes.extend(to.octets().iter().take(counting));
    routes.extend(via.octets());
}

/// Returns domains in the form of [`Terms::search`] (RFC 3397; RFC 1035, 3.1). `None` if one is no
/// domain, or all of them together have more than 255 bytes.
pub fn search_list<'a>(domains: impl IntoIterator<Item = &'a str>) -> Option<Vec<u8>> {
    let mut list = Vec::new();
    for domain in domains {
        for label in domain.split('.') {
            let len = u8::try_from(label.len()).ok().filter(|len| (1..=63).contains(len))?;
            list.push(len);
            list.extend(label.bytes());
        }
        list.push(0);
    }
    (list.len() <= 255).then_some(list)
}

/// Writes the frame that answers a request, from a server with this MAC address. Returns its length
/// in bytes, [`MAX_ANSWER`] at most.
///
/// The mask comes first, then options in the order in which the client asked for them. Those that
/// do not fit into the longest packet that it takes are left out. `None` if `out` has no room for
/// the shortest answer.
pub fn answer(
    request: &Request<'_>,
    reply: Reply,
    terms: &Terms<'_>,
    from: Mac,
    out: &mut [u8],
) -> Option<usize> {
    let most = BEFORE + usize::from(request.longest).saturating_sub(IP_AND_UDP);
    let room = most.min(MAX_ANSWER).min(out.len());
    let out = out.get_mut(..room)?;
    let (headers, message) = out.split_at_mut_checked(BEFORE)?;
    message.fill(0);
    fixed(request, reply, terms, message)?;
    let mut options = Writer { bytes: message.get_mut(OPTIONS..)?, at: 0 };
    write(request, reply, terms, &mut options)?;
    let len = (OPTIONS + options.end()?).max(SHORTEST);
    let message = message.get(..len)?;
    let to = destination(request, reply);
    let to_mac = if to == Ipv4Addr::BROADCAST { Mac::BROADCAST } else { request.mac };
    frame(headers, message, (from, to_mac), (terms.gateway, to))?;
    Some(BEFORE + len)
}

/// Returns the address that an answer goes to (section 4.1).
///
/// A refusal is broadcast, as the client may have no right address. One that renews has it and is
/// refused where it would hear an acknowledgement: dhcpcd and systemd-networkd listen at their own
/// address alone then.
fn destination(request: &Request<'_>, reply: Reply) -> Ipv4Addr {
    match reply {
        Reply::Refuse if !renews(request) => Ipv4Addr::BROADCAST,
        _ if !request.client.is_unspecified() => request.client,
        Reply::Offer(address) | Reply::Acknowledge(address) if !request.wants_broadcast() => {
            address
        }
        _ => Ipv4Addr::BROADCAST,
    }
}

/// Returns whether a client asks for the address that it uses (section 4.3.2, RENEWING and
/// REBINDING), and that is one which a machine may have.
fn renews(request: &Request<'_>) -> bool {
    let may_be = matches!(request.client.octets(), [1..=126 | 128..=223, ..]);
    may_be && request.wanted.is_none() && request.server.is_none()
}

/// Writes the fixed part of a message, which is zero (section 4.3.1, table 3).
fn fixed(request: &Request<'_>, reply: Reply, terms: &Terms<'_>, message: &mut [u8]) -> Option<()> {
    let mut put = |at: usize, bytes: &[u8]| {
        message.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
        Some(())
    };
    put(0, &[2, 1, 6])?;
    put(TRANSACTION, &request.transaction.to_be_bytes())?;
    put(FLAGS, &(request.flags & BROADCAST).to_be_bytes())?;
    put(CHADDR, &request.mac.0)?;
    put(COOKIE, &MAGIC.to_be_bytes())?;
    if reply == Reply::Refuse {
        return Some(());
    }
    match reply {
        Reply::Offer(address) => put(YIADDR, &address.octets())?,
        Reply::Acknowledge(address) => {
            put(CIADDR, &request.client.octets())?;
            put(YIADDR, &address.octets())?;
        }
        Reply::Parameters | Reply::Refuse => put(CIADDR, &request.client.octets())?,
    }
    put(SIADDR, &terms.next_server.octets())?;
    put(FILE, terms.boot_file.get(..MAX_FILE).unwrap_or(terms.boot_file))
}

/// Writes the options of an answer. `None` if those that it must have find no room.
fn write(
    request: &Request<'_>,
    reply: Reply,
    terms: &Terms<'_>,
    options: &mut Writer<'_>,
) -> Option<()> {
    let kind = match reply {
        Reply::Offer(_) => 2,
        Reply::Acknowledge(_) | Reply::Parameters => 5,
        Reply::Refuse => 6,
    };
    options.put(code::KIND, &[kind])?;
    options.put(code::SERVER, &terms.gateway.octets())?;
    if let Reply::Offer(_) | Reply::Acknowledge(_) = reply {
        options.put(code::LEASE, &terms.lease.to_be_bytes())?;
        // Section 4.4.5.
        options.put(code::RENEWAL, &(terms.lease / 2).to_be_bytes())?;
        let rebinding = terms.lease - terms.lease / 8;
        options.put(code::REBINDING, &rebinding.to_be_bytes())?;
    }
    if reply != Reply::Refuse {
        // It stands before routers, whatever is asked first (RFC 2132, 3.3), and never falls out.
        options.put(code::MASK, &terms.mask.octets())?;
    }
    if let Some(id) = request.id {
        options.put(code::CLIENT, id)?;
    }
    if reply == Reply::Refuse {
        return Some(());
    }
    let Some(asked) = &request.asked else {
        for code in ALL {
            let _ = options.known(code, terms);
        }
        return Some(());
    };
    // With these, a client does not look at routers (RFC 3442), and must not find any.
    let routes =
        asked.list().contains(&code::ROUTES) && options.known(code::ROUTES, terms).is_some();
    let wanted = asked.list().iter().copied().filter(|code| *code != code::ROUTES);
    for code in wanted.filter(|code| !routes || *code != code::ROUTERS) {
        let _ = options.known(code, terms);
    }
    Some(())
}

/// Options for a client that does not say what it asks for, beside the mask.
const ALL: [u8; 6] =
    [code::ROUTERS, code::DNS, code::BROADCAST, code::MTU, code::DOMAIN, code::SEARCH];

/// Fills a field with options.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    /// Writes an option. `None` if there is no room for it and for the end behind it.
    fn put(&mut self, code: u8, value: &[u8]) -> Option<()> {
        let len = u8::try_from(value.len()).ok()?;
        let end = self.at + 2 + value.len();
        if end >= self.bytes.len() {
            return None;
        }
        let (head, rest) = self.bytes.get_mut(self.at..end)?.split_first_chunk_mut()?;
        *head = [code, len];
        rest.copy_from_slice(value);
        self.at = end;
        Some(())
    }

    /// Writes an option of the terms. `None` if they do not have it, or there is no room for it.
    fn known(&mut self, code: u8, terms: &Terms<'_>) -> Option<()> {
        let some = |value: &[u8]| (!value.is_empty()).then_some(());
        match code {
            code::ROUTERS => self.put(code, &terms.gateway.octets()),
            code::BROADCAST => self.put(code, &terms.broadcast?.octets()),
            code::MTU => self.put(code, &terms.mtu?.to_be_bytes()),
            code::DNS => some(terms.dns).and_then(|()| self.put(code, terms.dns)),
            code::DOMAIN => some(terms.domain).and_then(|()| self.put(code, terms.domain)),
            code::SEARCH => some(terms.search).and_then(|()| self.put(code, terms.search)),
            code::ROUTES | code::OLD_ROUTES => {
                some(terms.routes).and_then(|()| self.put(code, terms.routes))
            }
            code::BOOT_FILE => some(terms.boot_file).and_then(|()| self.put(code, terms.boot_file)),
            code::BOOT_SERVER if !terms.next_server.is_unspecified() => {
                let mut text = Text { bytes: [0; 15], len: 0 };
                text.address(terms.next_server);
                self.put(code, text.bytes.get(..text.len)?)
            }
            _ => None,
        }
    }

    /// Writes the end. Returns the bytes of all options.
    fn end(&mut self) -> Option<usize> {
        *self.bytes.get_mut(self.at)? = code::END;
        Some(self.at + 1)
    }
}

/// An address as text, written without allocating.
struct Text {
    bytes: [u8; 15],
    len: usize,
}

impl Text {
    fn address(&mut self, address: Ipv4Addr) {
        for (index, octet) in address.octets().into_iter().enumerate() {
            if index > 0 {
                self.push(b'.');
            }
            for (part, least) in [(octet / 100, 100), (octet / 10 % 10, 10), (octet % 10, 0)] {
                if octet >= least {
                    self.push(b'0' + part);
                }
            }
        }
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }
}

/// Writes the headers before a message.
fn frame(
    headers: &mut [u8],
    message: &[u8],
    (from, to): (Mac, Mac),
    (source, destination): (Ipv4Addr, Ipv4Addr),
) -> Option<()> {
    let udp_len = u16::try_from(udp::LEN + message.len()).ok()?;
    let (link, rest) = headers.split_first_chunk_mut::<{ ethernet::HEADER_LEN }>()?;
    let (ip, udp) = rest.split_first_chunk_mut::<{ ipv4::MIN_LEN }>()?;
    let udp: &mut [u8; udp::LEN] = udp.try_into().ok()?;
    let [d0, d1, d2, d3, d4, d5] = to.0;
    let [s0, s1, s2, s3, s4, s5] = from.0;
    *link = [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, 0x08, 0x00];
    let [l0, l1] = (udp_len + ipv4::MIN_LEN as u16).to_be_bytes();
    let ([a, b, c, d], [e, f, g, h]) = (source.octets(), destination.octets());
    // "Don't fragment": no identification is owed (RFC 6864, 4.1).
    *ip = [0x45, 0, l0, l1, 0, 0, 0x40, 0, TTL, UDP, 0, 0, a, b, c, d, e, f, g, h];
    let sum = Sum::of(ip).checksum().to_be_bytes();
    ip.get_mut(CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2)?.copy_from_slice(&sum);
    let [l0, l1] = udp_len.to_be_bytes();
    let ([p0, p1], [q0, q1]) = (SERVER_PORT.to_be_bytes(), CLIENT_PORT.to_be_bytes());
    *udp = [p0, p1, q0, q1, l0, l1, 0, 0];
    let sum = Sum::pseudo_v4(source, destination, UDP, udp_len).push(&*udp).push(message);
    udp.get_mut(udp::CHECKSUM_OFFSET..)?.copy_from_slice(&sum.udp_checksum().to_be_bytes());
    Some(())
}

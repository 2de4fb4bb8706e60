//! Answers of a server.

use std::net::Ipv6Addr;

use super::{Association, CLIENT_PORT6, Identity, Kind6, Request6, SERVER_PORT6, code};
use crate::{Mac, advert::headers_v6, checksum::Sum, ethernet, ipv6, protocol::UDP, udp};

/// Bytes of headers before a message.
const BEFORE: usize = ethernet::HEADER_LEN + ipv6::LEN + udp::LEN;
/// Longest answer in bytes, Ethernet header included: its packet fits every link (RFC 8200, 5).
pub const MAX_ANSWER6: usize = ethernet::HEADER_LEN + 1280;
const HOP_LIMIT: u8 = 64;
/// Least seconds after which a client asks again for what it has without addresses (21.23).
const LEAST_REFRESH: u32 = 600;

/// Status codes (section 21.13).
const SUCCESS: u16 = 0;
const NO_ADDRESSES: u16 = 2;
const NO_BINDING: u16 = 3;
const NOT_ON_LINK: u16 = 4;
const USE_MULTICAST: u16 = 5;
const NO_PREFIXES: u16 = 6;

/// Kinds of answers (section 7.3).
const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;

/// Answer that a request gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply6 {
    /// The client may have the addresses of the terms.
    Advertise,
    /// The client has the addresses of the terms. Others that it names are not its own any more.
    Assign,
    /// All that goes with the addresses that the client has already.
    Parameters,
    /// The client's word is heard: it gave addresses back, or does not use them.
    Heard,
    /// The addresses that the client names are of the link, or are not.
    OnLink(bool),
    /// The client has to ask by multicast.
    UseMulticast,
}

/// Terms of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms6<'a> {
    /// MAC address and link-local address of the server.
    pub from: (Mac, Ipv6Addr),
    /// Those of the client.
    pub to: (Mac, Ipv6Addr),
    /// Addresses that the client has.
    pub addresses: &'a [Ipv6Addr],
    /// Seconds that these last.
    pub lease: u32,
    /// Name servers, 16 bytes each.
    pub dns: &'a [u8],
    /// Domains in which names are looked for, as [`crate::dhcp::search_list`] makes them.
    pub search: &'a [u8],
}

/// Returns the identifier of a server with this MAC address (DUID-LL, section 11.4).
pub fn server_id(mac: Mac) -> [u8; 10] {
    let Mac([a, b, c, d, e, f]) = mac;
    [0, 3, 0, 1, a, b, c, d, e, f]
}

/// Writes the frame that answers a request. Returns its length in bytes, [`MAX_ANSWER6`] at most.
///
/// The first association of addresses gets them all; others hear that there are none. Addresses,
/// servers and domains that find no room are left out. `None` if `out` has no room for the rest.
pub fn answer6(
    request: &Request6<'_>,
    reply: Reply6,
    terms: &Terms6<'_>,
    out: &mut [u8],
) -> Option<usize> {
    let room = out.len().min(MAX_ANSWER6);
    let (headers, message) = out.get_mut(..room)?.split_at_mut_checked(BEFORE)?;
    let mut writer = Writer6 { bytes: message, at: 0 };
    write(request, reply, terms, &mut writer)?;
    let len = writer.at;
    let message = message.get(..len)?;
    let (link, udp) = headers.split_at_mut_checked(ethernet::HEADER_LEN + ipv6::LEN)?;
    let udp_len = u16::try_from(udp::LEN + len).ok()?;
    headers_v6(link, terms.from, terms.to, (UDP, HOP_LIMIT, udp_len.into()))?;
    let udp: &mut [u8; udp::LEN] = udp.try_into().ok()?;
    let [l0, l1] = udp_len.to_be_bytes();
    let ([p0, p1], [q0, q1]) = (SERVER_PORT6.to_be_bytes(), CLIENT_PORT6.to_be_bytes());
    *udp = [p0, p1, q0, q1, l0, l1, 0, 0];
    let pseudo = Sum::pseudo_v6(terms.from.1, terms.to.1, UDP, udp_len.into());
    let sum = pseudo.push(&*udp).push(message).udp_checksum().to_be_bytes();
    udp.get_mut(udp::CHECKSUM_OFFSET..)?.copy_from_slice(&sum);
    Some(BEFORE + len)
}

fn write(
    request: &Request6<'_>,
    reply: Reply6,
    terms: &Terms6<'_>,
    writer: &mut Writer6<'_>,
) -> Option<()> {
    let kind = if reply == Reply6::Advertise { ADVERTISE } else { REPLY };
    let [_, transaction @ ..] = request.transaction.to_be_bytes();
    writer.push(&[kind])?;
    writer.push(&transaction)?;
    if let Some(client) = request.client {
        writer.put(code::CLIENT, client)?;
    }
    writer.put(code::SERVER, &server_id(terms.from.0))?;
    match reply {
        Reply6::UseMulticast => return writer.status(USE_MULTICAST),
        Reply6::OnLink(right) => {
            return writer.status(if right { SUCCESS } else { NOT_ON_LINK });
        }
        Reply6::Heard => {
            writer.status(SUCCESS)?;
            for identity in request.identities() {
                let own = |address: Ipv6Addr| terms.addresses.contains(&address);
                if !identity.addresses().all(own) {
                    writer.refuse(identity, NO_BINDING)?;
                }
            }
            return Some(());
        }
        Reply6::Advertise | Reply6::Assign => {
            if reply == Reply6::Advertise {
                // No other server is heard: the client need not wait for one (18.2.9).
                writer.put(code::PREFERENCE, &[255])?;
            } else if request.kind == Kind6::Solicit {
                writer.put(code::RAPID_COMMIT, &[])?;
            }
            let mut left = terms.addresses;
            for identity in request.identities() {
                match identity.association {
                    Association::Prefixes => writer.refuse(identity, NO_PREFIXES)?,
                    Association::Addresses if !left.is_empty() => {
                        writer.assign(identity, std::mem::take(&mut left), terms)?;
                    }
                    // Those that it names are not its own any more (18.3.4, 18.3.5).
                    Association::Addresses
                        if matches!(request.kind, Kind6::Renew | Kind6::Rebind)
                            && identity.addresses().next().is_some() =>
                    {
                        writer.assign(identity, &[], terms)?;
                    }
                    _ => writer.refuse(identity, NO_ADDRESSES)?,
                }
            }
        }
        Reply6::Parameters => {
            if request.asks_for(code::REFRESH) {
                let refresh = terms.lease.max(LEAST_REFRESH);
                writer.put(code::REFRESH, &refresh.to_be_bytes())?;
            }
        }
    }
    for (code, value) in [(code::DNS, terms.dns), (code::SEARCH, terms.search)] {
        if !value.is_empty() && request.asks_for(code) {
            let _ = writer.put(code, value);
        }
    }
    Some(())
}

/// Fills a message.
struct Writer6<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer6<'_> {
    /// Writes bytes. `None`, and none of them, if there is no room.
    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at + bytes.len();
        self.bytes.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }

    /// Writes an option. `None`, and nothing, if there is no room.
    fn put(&mut self, code: u16, value: &[u8]) -> Option<()> {
        let len = u16::try_from(value.len()).ok()?;
        if self.at + 4 + value.len() > self.bytes.len() {
            return None;
        }
        self.push(&code.to_be_bytes())?;
        self.push(&len.to_be_bytes())?;
        self.push(value)
    }

    fn status(&mut self, status: u16) -> Option<()> {
        self.put(code::STATUS, &status.to_be_bytes())
    }

    /// Begins an option whose length comes with [`Self::end`].
    fn begin(&mut self, code: u16) -> Option<usize> {
        self.push(&code.to_be_bytes())?;
        self.push(&[0; 2])?;
        Some(self.at)
    }

    fn end(&mut self, begun: usize) -> Option<()> {
        let len = u16::try_from(self.at - begun).ok()?;
        self.bytes.get_mut(begun - 2..begun)?.copy_from_slice(&len.to_be_bytes());
        Some(())
    }

    /// Writes an association that gets nothing, and why.
    fn refuse(&mut self, identity: &Identity<'_>, status: u16) -> Option<()> {
        let (code, times) = match identity.association {
            Association::Addresses => (code::IA_NA, 8),
            Association::Temporary => (code::IA_TA, 0),
            Association::Prefixes => (code::IA_PD, 8),
        };
        let begun = self.begin(code)?;
        self.push(&identity.id.to_be_bytes())?;
        self.push([0; 8].get(..times)?)?;
        self.status(status)?;
        self.end(begun)
    }

    /// Writes an association with the client's addresses, and those that it names and has no more.
    fn assign(
        &mut self,
        identity: &Identity<'_>,
        own: &[Ipv6Addr],
        terms: &Terms6<'_>,
    ) -> Option<()> {
        let begun = self.begin(code::IA_NA)?;
        self.push(&identity.id.to_be_bytes())?;
        // Section 14.2.
        self.push(&(terms.lease / 2).to_be_bytes())?;
        self.push(&(terms.lease - terms.lease / 5).to_be_bytes())?;
        for address in own {
            let _ = self.address(*address, terms.lease);
        }
        for address in identity.addresses().filter(|address| !own.contains(address)) {
            let _ = self.address(address, 0);
        }
        self.end(begun)
    }

    fn address(&mut self, address: Ipv6Addr, seconds: u32) -> Option<()> {
        let mut value = [0; super::ADDRESS];
        let (place, times) = value.split_first_chunk_mut()?;
        *place = address.octets();
        let (preferred, valid) = times.split_first_chunk_mut()?;
        *preferred = seconds.to_be_bytes();
        valid.copy_from_slice(&seconds.to_be_bytes());
        self.put(code::ADDRESS, &value)
    }
}

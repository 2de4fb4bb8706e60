//! DHCP of IPv6 between clients and a server on one link (RFC 8415; name servers and domains: RFC
//! 3646).
//!
//! [`Request6`] reads what a client sends, in one pass. [`answer6()`] writes the whole frame that a
//! server sends back. Neither allocates nor keeps anything; which answer a request gets is the
//! caller's to say.
//!
//! ```
//! use butterfly_packet::dhcp6::{Kind6, Request6};
//! let solicit = [1, 0, 0, 7, 0, 1, 0, 10, 0, 3, 0, 1, 2, 0, 0, 0, 0, 9, 0, 3, 0, 12, 0, 0, 0, 1,
//!     0, 0, 0, 0, 0, 0, 0, 0];
//! let request = Request6::parse(&solicit)?;
//! assert_eq!((request.kind, request.transaction), (Kind6::Solicit, 7));
//! assert_eq!(request.identities().len(), 1);
//! # Ok::<(), butterfly_packet::Error>(())
//! ```

mod answer;
#[cfg(test)]
mod tests;

use std::net::Ipv6Addr;

pub use answer::{MAX_ANSWER6, Reply6, Terms6, answer6, server_id};

use crate::{Error, be16, be32};

/// UDP port of clients.
pub const CLIENT_PORT6: u16 = 546;
/// UDP port of servers, and of relay agents.
pub const SERVER_PORT6: u16 = 547;
/// All relay agents and servers of a link (section 7.1).
pub const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// All servers of a site.
pub const SITE_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3);
/// Type of a message that a relay agent passes on (section 7.3).
pub const RELAY_FORWARD: u8 = 12;

/// Most identity associations of a message that are read.
pub const IDENTITIES: usize = 8;
/// Longest identifier of a client or server: 128 bytes behind its type (section 11.1).
const MAX_ID: usize = 130;
/// Bytes of a message before its options: the type and the transaction.
const FIXED: usize = 4;
/// Bytes of an address option before its own options: the address and two lifetimes.
const ADDRESS: usize = 24;

/// Options (section 21; RFC 3646).
mod code {
    pub const CLIENT: u16 = 1;
    pub const SERVER: u16 = 2;
    pub const IA_NA: u16 = 3;
    pub const IA_TA: u16 = 4;
    pub const ADDRESS: u16 = 5;
    pub const ASKED: u16 = 6;
    pub const PREFERENCE: u16 = 7;
    pub const STATUS: u16 = 13;
    pub const RAPID_COMMIT: u16 = 14;
    pub const DNS: u16 = 23;
    pub const SEARCH: u16 = 24;
    pub const IA_PD: u16 = 25;
    pub const REFRESH: u16 = 32;
}

/// Kinds of messages of clients (section 7.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind6 {
    /// Looks for servers.
    Solicit,
    /// Takes what a server advertised.
    Request,
    /// Asks whether its addresses are of the link.
    Confirm,
    /// Goes on with its addresses, at its server.
    Renew,
    /// Goes on with its addresses, at any server.
    Rebind,
    /// Gives its addresses back.
    Release,
    /// Says that another machine has an address.
    Decline,
    /// Has addresses, and wants all else.
    Inform,
}

/// Kinds of identity associations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Association {
    /// Of addresses that are not temporary.
    Addresses,
    /// Of temporary addresses.
    Temporary,
    /// Of blocks that are delegated.
    Prefixes,
}

/// An identity association of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity<'a> {
    /// Its kind.
    pub association: Association,
    /// Its number: the answer has the same.
    pub id: u32,
    options: &'a [u8],
}

impl<'a> Identity<'a> {
    const NONE: Identity<'static> =
        Identity { association: Association::Addresses, id: 0, options: &[] };

    /// Returns the addresses that it names.
    pub fn addresses(&self) -> impl Iterator<Item = Ipv6Addr> + 'a {
        let options = Options6::of(self.options).map_while(Result::ok);
        options.filter(|(code, _)| *code == code::ADDRESS).filter_map(|(_, value)| {
            value.first_chunk::<16>().map(|address| Ipv6Addr::from(*address))
        })
    }
}

/// Options of a field, with their codes.
#[derive(Clone, Debug)]
pub struct Options6<'a> {
    rest: &'a [u8],
}

impl<'a> Options6<'a> {
    /// Begins with the first option of a field.
    pub fn of(field: &'a [u8]) -> Options6<'a> {
        Options6 { rest: field }
    }

    /// Begins with the first option of a message. `None` if it is shorter.
    pub fn of_message(message: &'a [u8]) -> Option<Options6<'a>> {
        message.get(FIXED..).map(Options6::of)
    }
}

impl<'a> Iterator for Options6<'a> {
    type Item = Result<(u16, &'a [u8]), Error>;

    /// Returns the next option. Each takes four bytes at least. One that is cut short is the last.
    fn next(&mut self) -> Option<Self::Item> {
        let field = std::mem::take(&mut self.rest);
        if field.is_empty() {
            return None;
        }
        let read = || {
            let (code, len) = (be16(field, 0)?, be16(field, 2)?);
            let (value, rest) = field.get(4..)?.split_at_checked(len.into())?;
            Some((code, value, rest))
        };
        Some(read().ok_or(Error::Truncated).map(|(code, value, rest)| {
            self.rest = rest;
            (code, value)
        }))
    }
}

/// A message of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request6<'a> {
    /// Its kind.
    pub kind: Kind6,
    /// Transaction, 24 bits: the answer has the same.
    pub transaction: u32,
    /// The identifier of the server that it is for.
    pub server: Option<&'a [u8]>,
    /// True if the client takes its addresses at once, without an advertisement before.
    pub rapid: bool,
    client: Option<&'a [u8]>,
    identities: [Identity<'a>; IDENTITIES],
    count: usize,
    /// Codes of options that it asks for, two bytes each; `None`: what there is.
    asked: Option<&'a [u8]>,
}

impl<'a> Request6<'a> {
    /// Reads a message. [`Error::Truncated`] if it ends within an option; [`Error::Malformed`] if
    /// it is none of a client, has an option twice or of a wrong length, has more than
    /// [`IDENTITIES`], or lacks or has an identifier against section 16.
    pub fn parse(message: &'a [u8]) -> Result<Request6<'a>, Error> {
        let word = be32(message, 0).ok_or(Error::Truncated)?;
        let kind = match word >> 24 {
            1 => Kind6::Solicit,
            3 => Kind6::Request,
            4 => Kind6::Confirm,
            5 => Kind6::Renew,
            6 => Kind6::Rebind,
            8 => Kind6::Release,
            9 => Kind6::Decline,
            11 => Kind6::Inform,
            _ => return Err(Error::Malformed),
        };
        let mut read = Request6 {
            kind,
            transaction: word & 0xff_ffff,
            server: None,
            rapid: false,
            client: None,
            identities: [Identity::NONE; IDENTITIES],
            count: 0,
            asked: None,
        };
        for option in Options6::of_message(message).ok_or(Error::Truncated)? {
            let (code, value) = option?;
            read.option(code, value).ok_or(Error::Malformed)?;
        }
        read.is_right().then_some(read).ok_or(Error::Malformed)
    }

    /// Returns its identity associations, in its order.
    pub fn identities(&self) -> &[Identity<'a>] {
        self.identities.get(..self.count).unwrap_or_default()
    }

    /// Returns whether it asks for an option, or for none by name.
    fn asks_for(&self, code: u16) -> bool {
        let is_it = |pair: &[u8]| be16(pair, 0) == Some(code);
        self.asked.is_none_or(|asked| asked.chunks_exact(2).any(is_it))
    }

    /// Notes an option; `None` if it came before, or has a wrong length.
    fn option(&mut self, code: u16, value: &'a [u8]) -> Option<()> {
        let id = || (3..=MAX_ID).contains(&value.len()).then_some(value);
        match code {
            code::CLIENT => self.client.replace(id()?).is_none().then_some(()),
            code::SERVER => self.server.replace(id()?).is_none().then_some(()),
            code::ASKED => {
                let even = value.len().is_multiple_of(2);
                (self.asked.replace(value).is_none() && even).then_some(())
            }
            code::RAPID_COMMIT => {
                let once = !std::mem::replace(&mut self.rapid, true);
                (once && value.is_empty()).then_some(())
            }
            code::IA_NA => self.identity(Association::Addresses, value, 12),
            code::IA_TA => self.identity(Association::Temporary, value, 4),
            code::IA_PD => self.identity(Association::Prefixes, value, 12),
            _ => Some(()),
        }
    }

    /// Notes an identity association, with so many bytes before its options.
    fn identity(&mut self, association: Association, value: &'a [u8], at: usize) -> Option<()> {
        let options = value.get(at..)?;
        for option in Options6::of(options) {
            let (code, value) = option.ok()?;
            if code == code::ADDRESS && value.len() < ADDRESS {
                return None;
            }
        }
        let place = self.identities.get_mut(self.count)?;
        *place = Identity { association, id: be32(value, 0)?, options };
        self.count += 1;
        Some(())
    }

    /// Returns whether it has the identifiers that its kind needs, and no others (section 16).
    fn is_right(&self) -> bool {
        let (client, server) = (self.client.is_some(), self.server.is_some());
        match self.kind {
            Kind6::Solicit | Kind6::Confirm | Kind6::Rebind => client && !server,
            Kind6::Request | Kind6::Renew | Kind6::Release | Kind6::Decline => client && server,
            Kind6::Inform => self.count == 0,
        }
    }
}

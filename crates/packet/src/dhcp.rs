//! DHCP of IPv4 between clients on Ethernet and a server (RFC 2131; options as in RFC 2132).
//!
//! [`Request`] reads what a client sends, in one pass. [`answer()`] writes the whole frame that a
//! server sends back. Neither allocates nor keeps anything; which answer a request gets is the
//! caller's to say.
//!
//! ```
//! use butterfly_packet::{Mac, dhcp::{Kind, Reply, Request, Terms, answer}};
//! let mut message = vec![1, 1, 6, 0, 0, 0, 0, 7];
//! message.resize(28, 0);
//! message.extend([2, 0, 0, 0, 0, 9]); // the client's MAC address
//! message.resize(236, 0);
//! message.extend([99, 130, 83, 99, 53, 1, 1, 55, 2, 1, 3, 255]);
//! let request = Request::parse(&message)?;
//! assert_eq!((request.kind, request.transaction), (Kind::Discover, 7));
//! let gateway = [10, 0, 0, 1].into();
//! let terms = Terms { gateway, mask: [255, 255, 255, 0].into(), lease: 3600, ..Terms::NONE };
//! let mut frame = [0; 1514];
//! let from = Mac([2, 0, 0, 0, 0, 1]);
//! let len = answer(&request, Reply::Offer([10, 0, 0, 9].into()), &terms, from, &mut frame);
//! assert_eq!(len, Some(14 + 20 + 8 + 300));
//! # Ok::<(), butterfly_packet::Error>(())
//! ```

mod answer;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

pub use answer::{MAX_ANSWER, Reply, Terms, answer, classless_route, search_list};

use crate::{Error, Mac, be16, be32};

/// UDP port of clients.
pub const CLIENT_PORT: u16 = 68;
/// UDP port of servers, and of relay agents.
pub const SERVER_PORT: u16 = 67;

/// Parts of the fixed header (RFC 2131, figure 1).
/// Offset of the number of relay agents that passed a request on.
pub const HOPS: usize = 3;
const TRANSACTION: usize = 4;
const FLAGS: usize = 10;
const CIADDR: usize = 12;
const YIADDR: usize = 16;
const SIADDR: usize = 20;
/// Offset of the address of the first relay agent.
pub const RELAY: usize = 24;
/// Offset of the client's MAC address, in bytes from the first byte of the message.
pub const CHADDR: usize = 28;
const SNAME: usize = 44;
const FILE: usize = 108;
const COOKIE: usize = 236;
const OPTIONS: usize = 240;
/// Section 3.
const MAGIC: u32 = 0x6382_5363;
/// The client cannot receive unicast before it has an address (section 2).
const BROADCAST: u16 = 0x8000;
/// Length of the file's name, and of the server's.
const NAMES: usize = COOKIE - SNAME;
const _: () = assert!(NAMES == 64 + 128);

/// Options (RFC 2132; RFC 3397; RFC 3442).
mod code {
    pub const PAD: u8 = 0;
    pub const MASK: u8 = 1;
    pub const ROUTERS: u8 = 3;
    pub const DNS: u8 = 6;
    pub const DOMAIN: u8 = 15;
    pub const MTU: u8 = 26;
    pub const BROADCAST: u8 = 28;
    pub const WANTED: u8 = 50;
    pub const LEASE: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const ASKED: u8 = 55;
    pub const LONGEST: u8 = 57;
    pub const RENEWAL: u8 = 58;
    pub const REBINDING: u8 = 59;
    pub const CLIENT: u8 = 61;
    pub const BOOT_SERVER: u8 = 66;
    pub const BOOT_FILE: u8 = 67;
    pub const SEARCH: u8 = 119;
    pub const ROUTES: u8 = 121;
    /// The same before it had a number.
    pub const OLD_ROUTES: u8 = 249;
    pub const END: u8 = 255;
}

/// Options that an answer has if it is asked for them. It always has the mask.
const ON_REQUEST: [u8; 10] = [
    code::ROUTERS,
    code::DNS,
    code::DOMAIN,
    code::MTU,
    code::BROADCAST,
    code::BOOT_SERVER,
    code::BOOT_FILE,
    code::SEARCH,
    code::ROUTES,
    code::OLD_ROUTES,
];

/// Longest IP packet that every client takes (section 2).
const LEAST_LONGEST: u16 = 576;

/// Kinds of messages of clients (RFC 2132, 9.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Looks for servers.
    Discover,
    /// Takes an offer, or goes on with an address.
    Request,
    /// Says that another machine has the address.
    Decline,
    /// Gives the address back.
    Release,
    /// Has an address, and wants all else.
    Inform,
}

/// Options of a message, in one field: code and value, up to the end option.
#[derive(Clone, Debug)]
pub struct DhcpOptions<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> DhcpOptions<'a> {
    /// Begins with the first option of a field.
    pub fn of(field: &'a [u8]) -> DhcpOptions<'a> {
        DhcpOptions { rest: Some(field) }
    }

    /// Begins with the first option of a message, behind its fixed part. `None` if it is shorter.
    pub fn of_message(message: &'a [u8]) -> Option<DhcpOptions<'a>> {
        message.get(OPTIONS..).map(DhcpOptions::of)
    }

    fn step(&mut self, mut field: &'a [u8]) -> Result<Option<(u8, &'a [u8])>, Error> {
        loop {
            let (code, rest) = field.split_first().ok_or(Error::Truncated)?;
            match *code {
                code::PAD => field = rest,
                code::END => return Ok(None),
                code => {
                    let (len, rest) = rest.split_first().ok_or(Error::Truncated)?;
                    let (value, rest) =
                        rest.split_at_checked(usize::from(*len)).ok_or(Error::Truncated)?;
                    self.rest = Some(rest);
                    return Ok(Some((code, value)));
                }
            }
        }
    }
}

impl<'a> Iterator for DhcpOptions<'a> {
    type Item = Result<(u8, &'a [u8]), Error>;

    /// Returns the next option. A field without an end option ends with an error.
    fn next(&mut self) -> Option<Self::Item> {
        let field = self.rest.take()?;
        self.step(field).transpose()
    }
}

/// Codes that a client asks for and [`answer()`] knows, in the client's order, each once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Asked {
    codes: [u8; ON_REQUEST.len()],
    len: usize,
}

impl Asked {
    fn list(&self) -> &[u8] {
        self.codes.get(..self.len).unwrap_or_default()
    }

    fn add(&mut self, code: u8) {
        if !ON_REQUEST.contains(&code) || self.list().contains(&code) {
            return;
        }
        if let Some(place) = self.codes.get_mut(self.len) {
            *place = code;
            self.len += 1;
        }
    }
}

/// A message of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// Its kind.
    pub kind: Kind,
    /// `xid`: the answer has the same.
    pub transaction: u32,
    /// Relay agents that passed it on.
    pub hops: u8,
    /// `ciaddr`: the address that the client has and answers for; 0.0.0.0 if none.
    pub client: Ipv4Addr,
    /// `giaddr`: the relay agent; 0.0.0.0 if none.
    pub relay: Ipv4Addr,
    /// `chaddr`.
    pub mac: Mac,
    /// The address that it wants (option 50).
    pub wanted: Option<Ipv4Addr>,
    /// The server that it chose (option 54).
    pub server: Option<Ipv4Addr>,
    /// Longest IP packet in bytes that the answer may be (option 57), 576 at least.
    pub longest: u16,
    flags: u16,
    /// The client's identifier, which the answer repeats (RFC 6842).
    id: Option<&'a [u8]>,
    /// `None` if it has no list, and takes what there is.
    asked: Option<Asked>,
}

impl<'a> Request<'a> {
    /// Reads a message. [`Error::Truncated`] if it ends before its last option does;
    /// [`Error::Malformed`] if it is none of a client on Ethernet, or has an option twice or of a
    /// wrong length.
    pub fn parse(message: &'a [u8]) -> Result<Request<'a>, Error> {
        let &[op, htype, hlen, hops] = message.first_chunk().ok_or(Error::Truncated)?;
        let word = |at| be32(message, at).ok_or(Error::Truncated);
        if (op, htype, hlen) != (1, 1, 6) || word(COOKIE)? != MAGIC {
            return Err(Error::Malformed);
        }
        let mac = message.get(CHADDR..).and_then(|rest| rest.first_chunk());
        let mut read = Read::default();
        read.field(message.get(OPTIONS..).ok_or(Error::Truncated)?)?;
        // The file first (section 4.1). An overload in an overloaded field is a second one.
        let overload = read.overload;
        for (bit, field) in [(1, FILE..COOKIE), (2, SNAME..FILE)] {
            if overload & bit != 0 {
                read.field(message.get(field).ok_or(Error::Truncated)?)?;
            }
        }
        Ok(Request {
            kind: read.kind.ok_or(Error::Malformed)?,
            transaction: word(TRANSACTION)?,
            hops,
            client: word(CIADDR)?.into(),
            relay: word(RELAY)?.into(),
            mac: Mac(*mac.ok_or(Error::Truncated)?),
            wanted: read.wanted,
            server: read.server,
            longest: read.longest.unwrap_or(LEAST_LONGEST).max(LEAST_LONGEST),
            flags: be16(message, FLAGS).ok_or(Error::Truncated)?,
            id: read.id,
            asked: read.asked,
        })
    }

    /// Returns whether the answer has to be a broadcast, as the client has no address yet.
    pub fn wants_broadcast(&self) -> bool {
        self.flags & BROADCAST != 0
    }
}

/// Options that were read so far.
#[derive(Default)]
struct Read<'a> {
    kind: Option<Kind>,
    overload: u8,
    wanted: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    longest: Option<u16>,
    id: Option<&'a [u8]>,
    asked: Option<Asked>,
}

impl<'a> Read<'a> {
    fn field(&mut self, field: &'a [u8]) -> Result<(), Error> {
        DhcpOptions::of(field).try_for_each(|option| {
            let (code, value) = option?;
            self.option(code, value).ok_or(Error::Malformed)
        })
    }

    /// Notes an option; `None` if it came before, or has a wrong length. A list of what is asked
    /// for may come in parts (RFC 3396).
    fn option(&mut self, code: u8, value: &'a [u8]) -> Option<()> {
        fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
            place.replace(value).is_none().then_some(())
        }
        let address = || <[u8; 4]>::try_from(value).map(Ipv4Addr::from).ok();
        match code {
            code::KIND => {
                let kind = match value {
                    [1] => Kind::Discover,
                    [3] => Kind::Request,
                    [4] => Kind::Decline,
                    [7] => Kind::Release,
                    [8] => Kind::Inform,
                    _ => return None,
                };
                once(&mut self.kind, kind)
            }
            code::OVERLOAD => match value {
                [fields @ 1..=3] if self.overload == 0 => {
                    self.overload = *fields;
                    Some(())
                }
                _ => None,
            },
            code::WANTED => once(&mut self.wanted, address()?),
            code::SERVER => once(&mut self.server, address()?),
            code::LONGEST => {
                once(&mut self.longest, u16::from_be_bytes(<[u8; 2]>::try_from(value).ok()?))
            }
            code::CLIENT => once(&mut self.id, value),
            code::ASKED => {
                let asked = self.asked.get_or_insert_default();
                value.iter().for_each(|code| asked.add(*code));
                Some(())
            }
            _ => Some(()),
        }
    }
}

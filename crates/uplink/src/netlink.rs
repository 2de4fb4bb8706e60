//! rtnetlink, as much as a few questions need: a request, and the attributes of what the kernel
//! answers.
//!
//! RFC 3549 has the format, rtnetlink(7) the messages. The crate netlink-packet-core encodes and
//! decodes messages and their attributes. The fixed part of a message is ours, in the host's byte
//! order, and only attributes that were asked for are decoded: kernels add others, and change them.

use std::{io, net::IpAddr, time::Duration};

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_HEADER_SIZE, NLM_F_DUMP_INTR, NLMSG_ALIGNTO, NLMSG_DONE, NLMSG_ERROR,
    NLMSG_NOOP, NetlinkBuffer, NetlinkHeader, NlasIterator,
};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink,
        sockopt,
    },
};

/// The longest wait for an answer. The kernel answers within the system call; only its
/// configuration lock can hold it up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of times that an interrupted dump is asked for again.
const RETRIES: usize = 5;

/// A request: its kind, the fixed part of that kind, attributes.
pub struct Request {
    kind: u16,
    flags: i32,
    body: Vec<u8>,
}

impl Request {
    /// A request of kind `kind` (`RTM_..`) with `flags` (`NLM_F_..`) and its fixed part, whose
    /// length is a multiple of four.
    pub fn new(kind: u16, flags: i32, fixed: &[u8]) -> Request {
        Request { kind, flags, body: fixed.to_vec() }
    }

    /// Adds an attribute.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Request {
        self.body.extend(emitted(&DefaultNla::new(kind, value.to_vec())));
        self
    }

    /// Adds an attribute that is an IP address.
    pub fn with_address(self, kind: u16, address: IpAddr) -> Request {
        match address {
            IpAddr::V4(address) => self.with(kind, &address.octets()),
            IpAddr::V6(address) => self.with(kind, &address.octets()),
        }
    }

    /// Returns the message as it is sent, under a number that its answer repeats. Asks for an
    /// acknowledgement, so that the answer has an end.
    fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.length = (header.buffer_len() + self.body.len()) as u32;
        header.message_type = self.kind;
        header.flags = (self.flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        header.sequence_number = sequence;
        [emitted(&header), self.body.clone()].concat()
    }
}

/// The bytes of a part of a message.
fn emitted(part: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; part.buffer_len()];
    part.emit(&mut bytes);
    bytes
}

/// One message of an answer.
#[derive(PartialEq, Eq, Debug)]
pub struct Message {
    body: Vec<u8>,
}

impl Message {
    /// Makes the answer of a kernel with the fixed part and attributes of a request.
    #[cfg(test)]
    pub fn like(request: Request) -> Message {
        Message { body: request.body }
    }

    /// A byte of the fixed part.
    pub fn u8(&self, at: usize) -> Option<u8> {
        self.body.get(at).copied()
    }

    /// A 16-bit number of the fixed part.
    pub fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_ne_bytes(*self.body.get(at..)?.first_chunk()?))
    }

    /// A 32-bit number of the fixed part.
    pub fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.body.get(at..)?.first_chunk()?))
    }

    /// The value of the first attribute of `kind` behind a fixed part of `fixed` bytes.
    pub fn attribute(&self, fixed: usize, kind: u16) -> Option<&[u8]> {
        attribute(self.body.get(fixed..)?, kind)
    }

    /// An attribute that is a 32-bit number.
    pub fn number(&self, fixed: usize, kind: u16) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.attribute(fixed, kind)?.first_chunk()?))
    }
}

/// The value of the first attribute of `kind` among those in `rest`: the end of a message, or the
/// value of an attribute that holds others.
pub fn attribute(rest: &[u8], kind: u16) -> Option<&[u8]> {
    let mut attributes = NlasIterator::new(rest).map_while(Result::ok);
    let found = attributes.find(|attribute| attribute.kind() == kind)?;
    found.into_inner().get(NLA_HEADER_SIZE..found.length().into())
}

/// An rtnetlink socket: asks the kernel of the network namespace it was made in.
pub struct Socket {
    fd: std::os::fd::OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens one.
    pub fn open() -> io::Result<Socket> {
        let fd = bound(0)?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(PATIENCE))?;
        Ok(Socket { fd, sequence: 0 })
    }

    /// Asks, and returns the messages of the answer: none for a request that is only acknowledged.
    ///
    /// The kernel's refusal is the error.
    pub fn ask(&mut self, request: &Request) -> io::Result<Vec<Message>> {
        for _ in 0..RETRIES {
            match self.ask_once(request) {
                // What was listed changed meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                answer => return answer,
            }
        }
        Err(Errno::INTR.into())
    }

    fn ask_once(&mut self, request: &Request) -> io::Result<Vec<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        rustix::net::sendto(
            &self.fd,
            &request.encode(self.sequence),
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;

        let mut answer = Vec::new();
        let mut interrupted = false;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let (_, len, from) =
                rustix::net::recvfrom(&self.fd, &mut buffer[..], RecvFlags::TRUNC)?;
            if !is_kernel(from) {
                continue;
            }
            let datagram = buffer.get(..len).ok_or(io::ErrorKind::InvalidData)?;
            for part in Parts(datagram) {
                let part = part?;
                if part.sequence_number() != self.sequence {
                    // Left over from a question we gave up on.
                    continue;
                }
                interrupted |= part.flags() & NLM_F_DUMP_INTR != 0;
                let message = Message { body: part.payload().to_vec() };
                match part.message_type() {
                    NLMSG_ERROR | NLMSG_DONE => {
                        return match message.u32(0).unwrap_or(0) as i32 {
                            0 if interrupted => Err(Errno::INTR.into()),
                            0 => Ok(answer),
                            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                        };
                    }
                    NLMSG_NOOP => {}
                    _ => answer.push(message),
                }
            }
        }
    }
}

/// A socket that gets what is for these groups of listeners.
fn bound(groups: u32) -> io::Result<std::os::fd::OwnedFd> {
    // No protocol is NETLINK_ROUTE, which is 0.
    let fd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

/// True if the kernel sent it: another process may send to our port, too.
fn is_kernel(from: Option<rustix::net::SocketAddrAny>) -> bool {
    from.is_some_and(|from| !SocketAddrNetlink::try_from(from).is_ok_and(|from| from.pid() != 0))
}

/// Changes that the kernel reports to its listeners.
pub struct Changes(std::os::fd::OwnedFd);

impl Changes {
    /// Listens to changes of network interfaces.
    pub fn of_links() -> io::Result<Changes> {
        Ok(Changes(bound(libc::RTMGRP_LINK as u32)?))
    }

    /// Waits, and returns the numbers of interfaces that changed; `None`: some were not told, as
    /// there were too many.
    pub fn next(&self) -> io::Result<Option<Vec<u32>>> {
        let mut buffer = [0; 32 * 1024];
        let (_, len, from) = match rustix::net::recvfrom(&self.0, &mut buffer[..], RecvFlags::TRUNC)
        {
            Err(Errno::NOBUFS) => return Ok(None),
            Err(Errno::INTR) => return Ok(Some(Vec::new())),
            received => received?,
        };
        if !is_kernel(from) {
            return Ok(Some(Vec::new()));
        }
        let Some(datagram) = buffer.get(..len) else { return Ok(None) };
        // `struct ifinfomsg` begins with family, type, number.
        let index = |part: io::Result<NetlinkBuffer<&[u8]>>| {
            Message { body: part.ok()?.payload().to_vec() }.u32(4)
        };
        Ok(Some(Parts(datagram).filter_map(index).collect()))
    }
}

/// The messages in a datagram.
struct Parts<'a>(&'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = io::Result<NetlinkBuffer<&'a [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let part = NetlinkBuffer::new_checked(self.0)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        let len = part.as_ref().map_or(self.0.len(), |part| part.length() as usize);
        self.0 = self.0.get(len.next_multiple_of(NLMSG_ALIGNTO.into())..).unwrap_or(&[]);
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(attributes: &[u8]) -> Message {
        Message { body: [&[0; 12], attributes].concat() }
    }

    #[test]
    fn attributes_are_found_behind_the_fixed_part_whatever_their_padding() {
        let request = Request::new(1, 0, &[0; 12])
            .with(7, b"abcde")
            .with(8, &5u32.to_ne_bytes())
            .with(0x8009, b"");
        let message = Message::like(request);
        assert_eq!(message.attribute(12, 7), Some(&b"abcde"[..]));
        assert_eq!(message.number(12, 8), Some(5));
        assert_eq!(message.attribute(12, 9), Some(&b""[..]));
        assert_eq!(message.attribute(12, 10), None);
    }

    #[test]
    fn attributes_that_lie_about_their_length_are_none() {
        for bytes in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 0, 0, 0, 0], &[4, 0], &[]] {
            assert_eq!(message(bytes).attribute(12, 1), None, "{bytes:?}");
        }
        assert_eq!(message(&[]).attribute(16, 1), None);
    }

    #[test]
    fn a_datagram_that_lies_about_its_messages_is_refused() {
        for len in [0u32, 15, 33] {
            let datagram = [&len.to_ne_bytes()[..], &[0; 28]].concat();
            let parts: Vec<_> = Parts(&datagram).collect();
            assert!(matches!(parts[..], [Err(_)]), "{len}");
        }
        assert_eq!(
            Parts(&[&16u32.to_ne_bytes()[..], &[0; 12]].concat()).filter(Result::is_ok).count(),
            1
        );
    }

    #[test]
    fn the_kernel_refuses_what_it_does_not_know() {
        let error = Socket::open().unwrap().ask(&Request::new(0x7ff0, 0, &[0; 16])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}

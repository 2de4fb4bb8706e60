//! rtnetlink, as much as a few questions need: a request, and the attributes of what the kernel
//! answers.
//!
//! RFC 3549 has the format, rtnetlink(7) the messages. Numbers are in the host's byte order,
//! addresses in network order. The crates for this are fifty thousand lines; these are four
//! questions.

use std::{io, time::Duration};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink,
        sockopt,
    },
};

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
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
    /// A request of kind `kind` (`RTM_..`) with `flags` (`NLM_F_..`) and its fixed part.
    pub fn new(kind: u16, flags: i32, fixed: &[u8]) -> Request {
        Request { kind, flags, body: fixed.to_vec() }
    }

    /// Adds an attribute.
    pub fn with(mut self, kind: u16, value: &[u8]) -> Request {
        let len = (4 + value.len()) as u16;
        self.body.extend(len.to_ne_bytes());
        self.body.extend(kind.to_ne_bytes());
        self.body.extend(value);
        self.body.resize(align(self.body.len()), 0);
        self
    }

    /// Adds an attribute that is an IP address.
    pub fn with_address(self, kind: u16, address: std::net::IpAddr) -> Request {
        match address {
            std::net::IpAddr::V4(address) => self.with(kind, &address.octets()),
            std::net::IpAddr::V6(address) => self.with(kind, &address.octets()),
        }
    }

    /// Returns the message as it is sent, under a number that its answer repeats. Asks for an
    /// acknowledgement, so that the answer has an end.
    fn encode(&self, sequence: u32) -> Vec<u8> {
        let flags = (self.flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend(((HEADER + self.body.len()) as u32).to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(&self.body);
        bytes
    }
}

/// One message of an answer.
#[derive(PartialEq, Eq, Debug)]
pub struct Message {
    /// Kind of the message (`RTM_..`).
    pub kind: u16,
    body: Vec<u8>,
}

impl Message {
    /// Makes the answer of a kernel with the fixed part and attributes of a request.
    #[cfg(test)]
    pub fn like(request: Request) -> Message {
        Message { kind: request.kind, body: request.body }
    }

    /// A byte of the fixed part.
    pub fn u8(&self, at: usize) -> Option<u8> {
        self.body.get(at).copied()
    }

    /// A 16-bit number of the fixed part.
    pub fn u16(&self, at: usize) -> Option<u16> {
        u16_at(&self.body, at)
    }

    /// A 32-bit number of the fixed part.
    pub fn u32(&self, at: usize) -> Option<u32> {
        u32_at(&self.body, at)
    }

    /// The value of the first attribute of `kind` behind a fixed part of `fixed` bytes.
    pub fn attribute(&self, fixed: usize, kind: u16) -> Option<&[u8]> {
        attribute(self.body.get(align(fixed)..)?, kind)
    }

    /// An attribute that is a 32-bit number.
    pub fn number(&self, fixed: usize, kind: u16) -> Option<u32> {
        u32_at(self.attribute(fixed, kind)?, 0)
    }
}

/// The value of the first attribute of `kind` among those in `rest`: the end of a message, or the
/// value of an attribute that holds others.
pub fn attribute(mut rest: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len: usize = u16_at(rest, 0)?.into();
        let value = rest.get(4..len)?;
        // The upper two bits say "nested" and "network order".
        if u16_at(rest, 2)? & 0x3fff == kind {
            return Some(value);
        }
        rest = rest.get(align(len)..)?;
    }
}

/// An rtnetlink socket: asks the kernel of the network namespace it was made in.
pub struct Socket {
    fd: std::os::fd::OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens one.
    pub fn open() -> io::Result<Socket> {
        // Protocol 0 is NETLINK_ROUTE.
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, 0))?;
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
            // Another process may send to our port, too.
            if from.is_none_or(|from| {
                SocketAddrNetlink::try_from(from).is_ok_and(|from| from.pid() != 0)
            }) {
                continue;
            }
            let datagram = buffer.get(..len).ok_or(io::ErrorKind::InvalidData)?;
            for part in Parts(datagram) {
                let (header, body) = part?;
                if u32_at(header, 8) != Some(self.sequence) {
                    // Left over from a question we gave up on.
                    continue;
                }
                interrupted |= u16_at(header, 6)
                    .is_some_and(|flags| i32::from(flags) & libc::NLM_F_DUMP_INTR != 0);
                match i32::from(u16_at(header, 4).unwrap_or(0)) {
                    libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                        let code = u32_at(body, 0).unwrap_or(0) as i32;
                        return match code {
                            0 if interrupted => Err(Errno::INTR.into()),
                            0 => Ok(answer),
                            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                        };
                    }
                    libc::NLMSG_NOOP => {}
                    kind => answer.push(Message { kind: kind as u16, body: body.to_vec() }),
                }
            }
        }
    }
}

/// Changes that the kernel reports to its listeners.
pub struct Changes(std::os::fd::OwnedFd);

impl Changes {
    /// Listens to changes of network interfaces.
    pub fn of_links() -> io::Result<Changes> {
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK as u32))?;
        Ok(Changes(fd))
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
        if from
            .is_none_or(|from| SocketAddrNetlink::try_from(from).is_ok_and(|from| from.pid() != 0))
        {
            return Ok(Some(Vec::new()));
        }
        let Some(datagram) = buffer.get(..len) else { return Ok(None) };
        // `struct ifinfomsg` begins with family, type, number.
        Ok(Some(Parts(datagram).filter_map(|part| u32_at(part.ok()?.1, 4)).collect()))
    }
}

/// The messages in a datagram: header and body.
struct Parts<'a>(&'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = io::Result<(&'a [u8], &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let whole = u32_at(self.0, 0).and_then(|len| self.0.get(..len as usize));
        let Some((header, body)) = whole.and_then(|whole| whole.split_at_checked(HEADER)) else {
            self.0 = &[];
            return Some(Err(io::ErrorKind::InvalidData.into()));
        };
        self.0 = self.0.get(align(HEADER + body.len())..).unwrap_or(&[]);
        Some(Ok((header, body)))
    }
}

const fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(attributes: &[u8]) -> Message {
        Message { kind: 1, body: [&[0; 12], attributes].concat() }
    }

    #[test]
    fn attributes_are_found_behind_the_fixed_part_whatever_their_padding() {
        let request = Request::new(1, 0, &[0; 12])
            .with(7, b"abcde")
            .with(8, &5u32.to_ne_bytes())
            .with(0x8009, b"");
        let message = Message { kind: 1, body: request.body };
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

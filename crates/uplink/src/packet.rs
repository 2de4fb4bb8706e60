//! Copies of the frames that keep an address reachable, and a way to send such frames: for a
//! control thread. Or all frames of an interface, for a generator of load
//! ([`PacketSocket::of_all`]).
//!
//! A packet socket sees the frames that the network interface received and the XDP filter left to
//! the host. The host gets the same frames: these are copies. The kernel filters them. These pass:
//!
//! - ARP and IGMP.
//! - Messages that a destination is unreachable (ICMP type 3, ICMPv6 type 1).
//! - Neighbour and router discovery (ICMPv6 types 133 to 137).
//! - MLD (ICMPv6 types 130 to 132, 143), also behind a hop-by-hop header (RFC 2710, 3: MLD has a
//!   router alert there).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
        sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force},
    },
};

use crate::{
    Error,
    sys::{self, FilterCode},
};

/// Bytes that wait in a socket of all frames.
const ROOM: usize = 32 << 20;

/// A packet socket on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    interface: u32,
}

impl PacketSocket {
    /// Opens one on the interface with index `interface`, for frames of a VLAN (0: of none). Needs
    /// `CAP_NET_RAW`.
    pub fn open(interface: u32, vlan: u16) -> Result<PacketSocket, Error> {
        PacketSocket::prepared(interface, |fd| sys::attach_filter(fd, &filter(vlan)))
    }

    /// Opens one for all frames that arrive on the interface, for whichever address, with room for
    /// some milliseconds of them. Needs `CAP_NET_RAW`, and for that room `CAP_NET_ADMIN`.
    pub fn of_all(interface: u32) -> Result<PacketSocket, Error> {
        PacketSocket::prepared(interface, |fd| {
            // As much as the host allows, without the capability.
            set_socket_recv_buffer_size_force(fd, ROOM)
                .or_else(|_| set_socket_recv_buffer_size(fd, ROOM))?;
            sys::receive_all(fd, interface)
        })
    }

    fn prepared(
        interface: u32,
        prepare: impl FnOnce(BorrowedFd<'_>) -> std::io::Result<()>,
    ) -> Result<PacketSocket, Error> {
        let failed = |error: std::io::Error| {
            Error::failed(format!("cannot open a packet socket on interface {interface}"), error)
                .help("it needs CAP_NET_RAW")
        };
        // Protocol 0, so that nothing arrives before the filter is there.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|error| failed(error.into()))?;
        prepare(fd.as_fd()).map_err(failed)?;
        sys::ignore_outgoing(fd.as_fd()).map_err(failed)?;
        sys::bind_packet(fd.as_fd(), interface).map_err(failed)?;
        Ok(PacketSocket { fd, interface })
    }

    /// Takes the next frame into `buffer` and returns its length; `None` if there is none now. A
    /// frame longer than `buffer` is cut: none of those that pass the filter has to be longer
    /// than 1,518 bytes. Never blocks.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        match rustix::net::recv(&self.fd, buffer, RecvFlags::DONTWAIT) {
            Ok((len, _)) => Ok(Some(len)),
            // An interface that is down says so once, and may come up again.
            Err(Errno::AGAIN | Errno::INTR | Errno::NETDOWN) => Ok(None),
            Err(error) => Err(Error::failed(
                format!("cannot receive from interface {}", self.interface),
                error,
            )),
        }
    }

    /// Sends a whole Ethernet frame. Never blocks: an error if the interface is down, or too busy
    /// to take it.
    pub fn send(&self, frame: &[u8]) -> Result<(), Error> {
        let failed =
            |error| Error::failed(format!("cannot send on interface {}", self.interface), error);
        rustix::net::send(&self.fd, frame, SendFlags::DONTWAIT).map(|_| ()).map_err(failed)
    }

    /// Sends a whole Ethernet frame, unless the interface is too busy to take it now. Returns
    /// whether it was sent. Never blocks.
    pub fn offer(&self, frame: &[u8]) -> Result<bool, Error> {
        match rustix::net::send(&self.fd, frame, SendFlags::DONTWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => Ok(false),
            Err(error) => {
                let failed =
                    format!("cannot send {} bytes on interface {}", frame.len(), self.interface);
                Err(Error::failed(failed, error))
            }
        }
    }

    /// Returns how many frames arrived for which the socket had no room, since the last call.
    pub fn missed(&self) -> Result<u32, Error> {
        sys::packet_drops(self.fd.as_fd()).map_err(|error| {
            Error::failed(
                format!("cannot ask for the losses of interface {}", self.interface),
                error,
            )
        })
    }
}

impl AsFd for PacketSocket {
    /// Becomes readable when a frame arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_BYTE_X: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_IND) as u16;
const SET_X: u16 = (libc::BPF_LDX | libc::BPF_IMM) as u16;
const SET_X_IHL: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const MOVE_TO_X: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16;
const SHIFT_LEFT: u16 = (libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_ABOVE: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offset at which the kernel keeps a VLAN tag: it is taken off before a packet socket sees the
/// frame.
const VLAN_TAG: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG) as u32;

/// Returns the filter program (the module says what passes). A jump skips that many instructions; a
/// load beyond the frame's end refuses it.
#[rustfmt::skip]
const fn filter(vlan: u16) -> [FilterCode; 30] { [
    // Frames of other VLANs are none of ours; a tag with nothing but a priority is no VLAN.
    (LOAD_HALF,   0,  0,  VLAN_TAG),
    (AND,         0,  0,  0xfff),
    (IF_EQUAL,    0,  26, vlan as u32),
    (LOAD_HALF,   0,  0,  12),
    (IF_EQUAL,    23, 0,  0x0806),
    (IF_EQUAL,    0,  6,  0x0800),
    // IPv4: its protocol, and of ICMP the type, behind X bytes of header.
    (LOAD_BYTE,   0,  0,  14 + 9),
    (IF_EQUAL,    20, 0,  2),
    (IF_EQUAL,    0,  20, 1),
    (SET_X_IHL,   0,  0,  14),
    (LOAD_BYTE_X, 0,  0,  14),
    (IF_EQUAL,    16, 17, 3),
    // IPv6: X is the length of what stands between the fixed header and ICMPv6.
    (IF_EQUAL,    0,  16, 0x86dd),
    (SET_X,       0,  0,  0),
    (LOAD_BYTE,   0,  0,  14 + 6),
    (IF_EQUAL,    7,  0,  58),
    (IF_EQUAL,    0,  12, 0),
    (LOAD_BYTE,   0,  0,  54),
    (IF_EQUAL,    0,  10, 58),
    // The hop-by-hop header counts itself in units of 8 bytes, without the first.
    (LOAD_BYTE,   0,  0,  54 + 1),
    (ADD,         0,  0,  1),
    (SHIFT_LEFT,  0,  0,  3),
    (MOVE_TO_X,   0,  0,  0),
    (LOAD_BYTE_X, 0,  0,  54),
    (IF_EQUAL,    3,  0,  143),
    (IF_EQUAL,    2,  0,  1),
    (IF_AT_LEAST, 0,  2,  130),
    (IF_ABOVE,    1,  0,  137),
    (RETURN,      0,  0,  u32::MAX),
    (RETURN,      0,  0,  0),
] }

#[cfg(test)]
mod tests {
    use butterfly_packet::{
        Mac,
        build::{Link, ethernet},
    };

    use super::*;

    fn link() -> Link {
        ethernet(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]))
    }

    /// Socket filters work on any socket: the kernel judges the frame as a datagram.
    fn passes(frame: &[u8]) -> bool {
        let flags = SocketFlags::NONBLOCK;
        let (near, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        sys::attach_filter(&far, &filter(0)).unwrap();
        rustix::net::send(&near, frame, SendFlags::empty()).unwrap();
        let mut buffer = vec![0; 2048];
        match rustix::net::recv(&far, &mut buffer[..], RecvFlags::empty()) {
            Ok((len, _)) => {
                assert_eq!(&buffer[..len], frame);
                true
            }
            Err(Errno::AGAIN) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn arp_igmp_and_unreachables_pass_and_other_ipv4_does_not() {
        assert!(passes(&link().arp_request([10, 0, 0, 1], [10, 0, 0, 2])));
        let ip = || link().ipv4([10, 0, 0, 1], [224, 0, 0, 1]);
        assert!(passes(&ip().payload(2, &[0x11, 0, 0, 0, 0, 0, 0, 0])));
        assert!(passes(&ip().options(&[0x94, 4, 0, 0]).payload(2, &[0x11, 0, 0, 0, 0, 0, 0, 0])));
        assert!(!passes(&ip().udp(1, 2, b"")));
        assert!(!passes(&ip().ping(1, 2, b"")));
        for kind in 0..=255 {
            for options in [&[][..], &[0x94, 4, 0, 0], &[1; 40]] {
                let frame = ip().options(options).icmp(kind, 3, 0, &[0; 28]);
                assert_eq!(passes(&frame), kind == 3, "type {kind}, {options:?}");
            }
        }
    }

    #[test]
    fn discovery_mld_and_unreachables_pass_and_other_icmpv6_does_not() {
        let ip = || link().ipv6([0xfe80, 0, 0, 0, 0, 0, 0, 1], [0xff02, 0, 0, 0, 0, 0, 0, 1]);
        for kind in 0..=255 {
            let wanted = matches!(kind, 1 | 130..=137 | 143);
            assert_eq!(passes(&ip().icmp(kind, 0, 0, &[0; 16])), wanted, "type {kind}");
            // Router alert (RFC 2711) and padding; then a header of two units.
            for options in [&[5, 2, 0, 0, 1, 0][..], &[5, 2, 0, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0]] {
                assert_eq!(
                    passes(&ip().extension(0, options).icmp(kind, 0, 0, &[0; 16])),
                    wanted,
                    "hop-by-hop, type {kind}"
                );
            }
        }
        assert!(!passes(&ip().extension(60, &[1, 4, 0, 0, 0, 0]).icmp(130, 0, 0, &[0; 16])));
        assert!(!passes(&ip().udp(1, 2, b"")));
    }

    #[test]
    fn frames_cut_short_do_not_pass() {
        let whole = link()
            .ipv6([0xfe80, 0, 0, 0, 0, 0, 0, 1], [0xff02, 0, 0, 0, 0, 0, 0, 1])
            .extension(0, &[5, 2, 0, 0, 1, 0])
            .icmp(130, 0, 0, &[0; 16]);
        assert!(passes(&whole[..63]));
        for len in 1..63 {
            assert!(!passes(&whole[..len]), "{len}");
        }
        assert!(!passes(&link().arp_request([10, 0, 0, 1], [10, 0, 0, 2])[..13]));
    }
}

//! DHCP messages (RFC 2131, RFC 8415). A filter lets one pass without a rule only if it is well
//! formed to its last option.
//!
//! [`Dhcp::between`] recognises UDP between the ports of DHCP. [`Dhcp::read`] reads the message
//! from a private copy of the whole frame.

mod v4;
mod v6;

use butterfly_packet::Mac;

use crate::ip::Address;

/// Ports of DHCPv4 and DHCPv6.
const CLIENT: u16 = 68;
const SERVER: u16 = 67;
const CLIENT_V6: u16 = 546;
const SERVER_V6: u16 = 547;

/// `ff02::1:2`: relays and servers (RFC 8415, 7.1).
pub(crate) const SERVERS_V6: Address = 0xff02_0000_0000_0000_0000_0000_0001_0002;

/// Largest IP packet whose message a filter reads.
pub(crate) const MAX_PACKET: u16 = 1500;

/// UDP between the ports of DHCP, in one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dhcp {
    /// True if it goes from the client's port to the server's.
    pub request: bool,
    pub v6: bool,
    /// Place of the message in the IP packet, which ends with it. `None` if the packet has options,
    /// extension headers or a trailer, or is longer than [`MAX_PACKET`].
    pub at: Option<(u16, u16)>,
    /// The message, once all of it was read; `None` if it is not well formed.
    pub message: Option<Message>,
}

/// Fields of a well-formed message, as far as a filter asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    /// `xid` (32 bits) or DHCPv6 transaction id (24 bits).
    pub transaction: u32,
    /// `chaddr`; zero in DHCPv6, which has none.
    pub mac: Mac,
    /// `yiaddr` and `ciaddr`, 0 for 0.0.0.0: the addresses that an answer may be sent to.
    pub leases: [u32; 2],
    /// The server identifier (option 54) of an answer that offers or gives a lease; 0 if there is
    /// none.
    pub server: u32,
    /// True if the answer gives the lease that it is about, and does not only offer one.
    pub given: bool,
}

impl Dhcp {
    /// Returns whether the message is a request, if UDP between these ports is DHCP; else `None`.
    #[inline]
    pub fn between(source_port: u16, destination_port: u16, v6: bool) -> Option<bool> {
        match (source_port, destination_port, v6) {
            (CLIENT, SERVER, false) | (CLIENT_V6, SERVER_V6, true) => Some(true),
            (SERVER, CLIENT, false) | (SERVER_V6, CLIENT_V6, true) => Some(false),
            _ => None,
        }
    }

    /// Returns whether a port is a DHCP client's. Clients believe messages from any port.
    pub fn is_client(port: u16, v6: bool) -> bool {
        port == if v6 { CLIENT_V6 } else { CLIENT }
    }

    /// Returns whether a range of ports has the one that DHCP servers of either family listen on.
    pub fn names_server(ports: &std::ops::RangeInclusive<u16>) -> bool {
        ports.contains(&SERVER) || ports.contains(&SERVER_V6)
    }

    /// Returns whether a range of ports has the one that DHCP clients of either family listen on.
    pub fn names_client(ports: &std::ops::RangeInclusive<u16>) -> bool {
        ports.contains(&CLIENT) || ports.contains(&CLIENT_V6)
    }

    /// Reads the message in a whole frame that does not change any more. The frame's IP packet
    /// starts at `at` and ends with the frame.
    pub fn read(self, frame: &[u8], at: usize) -> Dhcp {
        let message = self.at.and_then(|(from, to)| {
            let (from, to) = (at + usize::from(from), at + usize::from(to));
            let message = frame.get(from..to).filter(|_| to == frame.len())?;
            if self.v6 { v6::read(message, self.request) } else { v4::read(message, self.request) }
        });
        Dhcp { message, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_say_who_asks() {
        assert_eq!(Dhcp::between(68, 67, false), Some(true));
        assert_eq!(Dhcp::between(67, 68, false), Some(false));
        assert_eq!(Dhcp::between(546, 547, true), Some(true));
        assert_eq!(Dhcp::between(547, 546, true), Some(false));
        for (source, destination, v6) in [
            (67, 67, false),
            (68, 68, false),
            (547, 547, true),
            (68, 67, true),
            (546, 547, false),
            (1068, 67, false),
        ] {
            assert_eq!(Dhcp::between(source, destination, v6), None, "{source} {destination} {v6}");
        }
    }

    #[test]
    fn the_packet_ends_with_the_message() {
        let message = v4::tests::discover();
        let len = message.len() as u16;
        let dhcp = Dhcp { request: true, v6: false, at: Some((28, 28 + len)), message: None };
        let mut frame = vec![0; 14 + 28];
        frame.extend(&message);
        assert!(dhcp.read(&frame, 14).message.is_some());
        assert!(dhcp.read(&frame[..frame.len() - 1], 14).message.is_none());
        frame.push(0);
        assert!(dhcp.read(&frame, 14).message.is_none());
        assert!(Dhcp { at: None, ..dhcp }.read(&frame, 14).message.is_none());
    }

    #[test]
    fn ports_of_clients_and_servers() {
        for port in 0..=1000 {
            assert_eq!(
                (Dhcp::is_client(port, false), Dhcp::is_client(port, true)),
                (port == 68, port == 546),
                "{port}"
            );
            assert_eq!(Dhcp::names_server(&(port..=port)), matches!(port, 67 | 547), "{port}");
            assert_eq!(Dhcp::names_client(&(port..=port)), matches!(port, 68 | 546), "{port}");
        }
    }
}

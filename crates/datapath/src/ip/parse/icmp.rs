//! ICMP messages: errors with the packet that they quote, discovery, echoes.

use butterfly_packet::icmp::{Icmp, v4};

use crate::ip::{
    Discovery, L4, Tuple, discovery,
    parse::{
        echo::{PortPair, echo_ports},
        quote::{Quote, Unread},
        sight::Fault,
        upper::Upper,
    },
    reasons::MALFORMED_IP,
};

impl<'a> Upper<'a> {
    fn message(&self) -> Result<Icmp<'a>, Fault> {
        Icmp::parse(self.need(butterfly_packet::icmp::LEN)?).map_err(|_| Fault::Drop(MALFORMED_IP))
    }

    pub(super) fn icmp(&self, tuple: &Tuple) -> Result<(PortPair, L4), Fault> {
        let message = self.message()?;
        match message.kind() {
            v4::UNREACHABLE | v4::TIME_EXCEEDED | v4::PARAMETER_PROBLEM => {
                self.error(&message, tuple)
            }
            _ => Ok(echo_or_other(&message, false)),
        }
    }

    pub(super) fn icmpv6(&self, tuple: &Tuple) -> Result<(PortPair, L4), Fault> {
        let message = self.message()?;
        match message.kind() {
            1..=4 => self.error(&message, tuple),
            kind if discovery::is_discovery(kind) => {
                // More bytes can be had, and they are part of the packet.
                let more = self.sight.more && self.sight.packet.len() < self.end;
                let found = Discovery::read(self.seen(), self.len(), more, &self.envelope);
                found.map(|found| ((0, 0), L4::Discovery(found))).map_err(|_| self.sight.missing())
            }
            _ => Ok(echo_or_other(&message, true)),
        }
    }

    fn error(&self, message: &Icmp<'_>, tuple: &Tuple) -> Result<(PortPair, L4), Fault> {
        let bytes = self.seen().get(butterfly_packet::icmp::LEN..).unwrap_or_default();
        let quote = Quote { bytes, whole: bytes.len() + butterfly_packet::icmp::LEN >= self.len() };
        let found = if self.v6 { quote.read_v6(tuple.vlan) } else { quote.read_v4(tuple.vlan) };
        match found {
            Ok(quoted) => Ok(((0, 0), L4::Error(quoted))),
            Err(Unread::Beyond) if self.sight.more => Err(Fault::NeedMore),
            Err(_) => Ok(((0, 0), L4::Icmp { kind: message.kind(), code: message.code() })),
        }
    }
}

fn echo_or_other(message: &Icmp<'_>, v6: bool) -> (PortPair, L4) {
    match echo_ports(message, v6) {
        Some((ports, request)) => (ports, L4::Echo { request }),
        None => ((0, 0), L4::Icmp { kind: message.kind(), code: message.code() }),
    }
}

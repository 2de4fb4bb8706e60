//! PortPair of an echo: its identifier, and the type of its request.

use butterfly_packet::icmp::{Icmp, v4, v6};

/// Source and destination.
pub(super) type PortPair = (u16, u16);

/// Returns the ports of an echo, as in [`crate::ip::Tuple`].
pub(super) fn echo_ports(message: &Icmp<'_>, v6: bool) -> Option<(PortPair, bool)> {
    let request = if v6 { v6::ECHO_REQUEST } else { v4::ECHO_REQUEST };
    let reply = if v6 { v6::ECHO_REPLY } else { v4::ECHO_REPLY };
    match (message.kind(), message.code()) {
        (kind, 0) if kind == request => Some(((message.echo_id(), request.into()), true)),
        (kind, 0) if kind == reply => Some(((request.into(), message.echo_id()), false)),
        _ => None,
    }
}

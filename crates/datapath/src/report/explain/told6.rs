//! Answers of a network itself, of IPv6: DHCPv6 and advertisements of routers.

use std::net::Ipv6Addr;

use butterfly_packet::{
    dhcp6::Options6, ethernet::Ethernet, icmp::v6, ipv6::Ipv6, protocol::ICMPV6, udp::Udp,
};

use crate::report::explain::{Mark, Step, told::step};
use crate::stages::context::Context;

/// Kind of an answer that advertises addresses (RFC 8415, 7.3).
const ADVERTISE: u8 = 2;
/// Options (21.4, 21.6).
const IA_NA: u16 = 3;
const ADDRESS: u16 = 5;
/// Bytes of an association before its options.
const BEFORE: usize = 12;

/// Returns the step that tells what the sender's network answers.
pub(super) fn answered(answer: &[u8], context: &Context<'_>) -> Step {
    let id = &context.sender.id;
    let text = match read(answer) {
        Some(Read::Advertisement { from, lifetime: 0 }) => {
            format!("{from} advertises to {id} that its addresses come by DHCPv6, and no router")
        }
        Some(Read::Advertisement { from, lifetime }) => {
            format!("{from} advertises itself to {id} as a router, for {lifetime} s")
        }
        Some(Read::Addresses { kind: ADVERTISE, first }) => format!("it offers {first} to {id}"),
        Some(Read::Addresses { first, .. }) => format!("it leases {first} to {id}"),
        Some(Read::Parameters) => format!("it tells {id} what goes with its addresses"),
        None => format!("nobody at {id} hears an answer"),
    };
    step("answer", Mark::Pass, text)
}

/// Contents of an answer.
enum Read {
    Advertisement { from: Ipv6Addr, lifetime: u16 },
    Addresses { kind: u8, first: Ipv6Addr },
    Parameters,
}

fn read(frame: &[u8]) -> Option<Read> {
    let ip = Ipv6::parse(Ethernet::parse(frame).ok()?.payload()).ok()?;
    let payload = ip.payload().ok()?;
    if ip.next_header() == ICMPV6 {
        let &[v6::ROUTER_ADVERTISEMENT, _, _, _, _, _, l0, l1, ..] = payload else { return None };
        return Some(Read::Advertisement {
            from: ip.source(),
            lifetime: u16::from_be_bytes([l0, l1]),
        });
    }
    let message = Udp::parse(payload).ok()?.payload().ok()?;
    let of = |field, wanted| {
        let mut options = Options6::of(field).map_while(Result::ok);
        options.find(|(code, _)| *code == wanted).map(|(_, value)| value)
    };
    let kind = *message.first()?;
    let association = of(message.get(4..)?, IA_NA).and_then(|value| value.get(BEFORE..));
    let address = association.and_then(|options| of(options, ADDRESS));
    Some(match address.and_then(|value| value.first_chunk::<16>()) {
        Some(first) => Read::Addresses { kind, first: Ipv6Addr::from(*first) },
        None => Read::Parameters,
    })
}

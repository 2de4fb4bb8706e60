//! A frame on one line, for people: addresses, tags, protocol, ports, length.
//!
//! The line is made of the frame's first bytes only, which may end anywhere and contradict
//! themselves. It tells what can be read, and then what cannot.

use std::fmt::{self, Display, Formatter};

use crate::{
    Error,
    arp::{self, Arp},
    ethernet::{self, Ethernet, Llc},
    icmp::{Icmp, v4, v6},
    ipv4::Ipv4,
    ipv6::Ipv6,
    protocol::{self, AUTHENTICATION, ESP, ICMP, ICMPV6, IGMP, SCTP, TCP, UDP},
    sctp::Sctp,
    tcp::{self, Tcp},
    udp::{self, Udp},
    vxlan::{self, Vxlan},
};

/// A frame's summary: print it.
///
/// ```
/// use butterfly_packet::{Mac, build, summary::Summary};
/// let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
/// let frame = build::ethernet(a, b).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(4000, 53, b"?");
/// let line = Summary::new(&frame, 43).to_string();
/// assert!(line.contains("10.0.0.1:4000 > 10.0.0.2:53"), "{line}");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Summary<'a> {
    head: &'a [u8],
    len: u32,
}

impl<'a> Summary<'a> {
    /// Summarizes a frame of `len` bytes that begins with `head`. Any bytes have a summary.
    pub const fn new(head: &'a [u8], len: u32) -> Summary<'a> {
        Summary { head, len }
    }
}

impl Display for Summary<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        frame(self.head, out)?;
        write!(out, ", {} bytes", self.len)
    }
}

/// Returns the words for a broken header.
const fn trouble(error: Error) -> &'static str {
    match error {
        Error::Truncated => "(cut short)",
        Error::Malformed => "(malformed)",
    }
}

fn frame(bytes: &[u8], out: &mut Formatter<'_>) -> fmt::Result {
    let Ok(ethernet) = Ethernet::parse(bytes) else { return out.write_str("no Ethernet header") };
    write!(out, "{} > {}", ethernet.source(), ethernet.destination())?;
    let mut tags = ethernet.tags();
    for tag in tags.by_ref() {
        write!(out, ", vlan {}", tag.vlan())?;
    }
    out.write_str(", ")?;
    match tags.ethertype() {
        length if length < ethernet::MIN_TYPE => llc(tags.rest(), out),
        ethertype => network(ethertype, tags.rest(), out),
    }
}

fn llc(bytes: &[u8], out: &mut Formatter<'_>) -> fmt::Result {
    match Llc::parse(bytes) {
        Ok(Llc { snap: Some((_, kind)), payload, .. }) => {
            out.write_str("snap ")?;
            network(kind, payload, out)
        }
        Ok(Llc { dsap, ssap, .. }) => write!(out, "llc {dsap:#04x} > {ssap:#04x}"),
        Err(error) => write!(out, "llc {}", trouble(error)),
    }
}

fn network(ethertype: u16, bytes: &[u8], out: &mut Formatter<'_>) -> fmt::Result {
    match ethertype {
        ethernet::IPV4 => ipv4(bytes, out),
        ethernet::IPV6 => ipv6(bytes, out),
        ethernet::ARP => address_resolution("arp", bytes, out),
        ethernet::RARP => address_resolution("rarp", bytes, out),
        ethernet::LLDP => out.write_str("lldp"),
        ethertype => write!(out, "type {ethertype:#06x}"),
    }
}

fn address_resolution(name: &str, bytes: &[u8], out: &mut Formatter<'_>) -> fmt::Result {
    let packet = match Arp::parse(bytes) {
        Ok(packet) => packet,
        Err(error) => return write!(out, "{name} {}", trouble(error)),
    };
    let (sender, mac, target) = (packet.sender_ip(), packet.sender_mac(), packet.target_ip());
    match packet.operation() {
        arp::REQUEST => write!(out, "{name} who has {target}, asks {sender} at {mac}"),
        arp::REPLY => write!(out, "{name} {sender} is at {mac}, to {target}"),
        operation => write!(out, "{name} operation {operation}, from {sender} at {mac}"),
    }
}

/// Addresses in front of an upper layer.
struct Ends<A> {
    source: A,
    destination: A,
    v6: bool,
    protocol: u8,
}

impl<A: Display> Ends<A> {
    fn plain(&self, name: impl Display, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{name} {} > {}", self.source, self.destination)
    }

    fn with_ports(
        &self,
        name: &str,
        (from, to): (u16, u16),
        out: &mut Formatter<'_>,
    ) -> fmt::Result {
        let Ends { source, destination, .. } = self;
        match self.v6 {
            true => write!(out, "{name} [{source}]:{from} > [{destination}]:{to}"),
            false => write!(out, "{name} {source}:{from} > {destination}:{to}"),
        }
    }

    fn upper(&self, bytes: &[u8], out: &mut Formatter<'_>) -> fmt::Result {
        let read = match self.protocol {
            TCP => Tcp::parse(bytes)
                .map(|tcp| self.tcp(&tcp, out))
                .or_else(|_| self.only_ports("tcp", bytes, out)),
            UDP => Udp::parse(bytes).map(|udp| self.udp(&udp, bytes, out)),
            SCTP => Sctp::parse(bytes)
                .map(|sctp| {
                    self.with_ports("sctp", (sctp.source_port(), sctp.destination_port()), out)
                })
                .or_else(|_| self.only_ports("sctp", bytes, out)),
            ICMP if !self.v6 => Icmp::parse(bytes).map(|icmp| self.icmp(&icmp, out)),
            ICMPV6 if self.v6 => Icmp::parse(bytes).map(|icmp| self.icmpv6(&icmp, out)),
            _ => Ok(self.plain(Named(self.protocol), out)),
        };
        read.unwrap_or_else(|error| {
            self.plain(Named(self.protocol), out)?;
            write!(out, " {}", trouble(error))
        })
    }

    /// The header is not whole, but begins with ports.
    fn only_ports(
        &self,
        name: &str,
        bytes: &[u8],
        out: &mut Formatter<'_>,
    ) -> Result<fmt::Result, Error> {
        let ports = crate::be16(bytes, 0).zip(crate::be16(bytes, 2)).ok_or(Error::Truncated)?;
        Ok(self
            .with_ports(name, ports, out)
            .and_then(|()| write!(out, " {}", trouble(Error::Truncated))))
    }

    fn tcp(&self, header: &Tcp<'_>, out: &mut Formatter<'_>) -> fmt::Result {
        self.with_ports("tcp", (header.source_port(), header.destination_port()), out)?;
        let names = [
            (tcp::SYN, "SYN"),
            (tcp::FIN, "FIN"),
            (tcp::RST, "RST"),
            (tcp::PSH, "PSH"),
            (tcp::ACK, "ACK"),
        ];
        for (place, (_, name)) in
            names.iter().filter(|(flag, _)| header.flags() & flag != 0).enumerate()
        {
            write!(out, "{}{name}", if place == 0 { " " } else { "+" })?;
        }
        Ok(())
    }

    fn udp(&self, header: &Udp<'_>, bytes: &[u8], out: &mut Formatter<'_>) -> fmt::Result {
        self.with_ports("udp", (header.source_port(), header.destination_port()), out)?;
        match bytes.get(udp::LEN..).map(Vxlan::parse) {
            Some(Ok(inner)) if header.destination_port() == vxlan::PORT => {
                write!(out, ", vxlan vni {}: ", inner.vni())?;
                frame(inner.frame(), out)
            }
            _ => Ok(()),
        }
    }

    fn icmp(&self, message: &Icmp<'_>, out: &mut Formatter<'_>) -> fmt::Result {
        self.plain("icmp", out)?;
        match message.kind() {
            v4::ECHO_REQUEST => echo("request", message, out),
            v4::ECHO_REPLY => echo("reply", message, out),
            v4::UNREACHABLE => write!(out, " unreachable, code {}", message.code()),
            v4::TIME_EXCEEDED => out.write_str(" time exceeded"),
            kind => write!(out, " type {kind} code {}", message.code()),
        }
    }

    fn icmpv6(&self, message: &Icmp<'_>, out: &mut Formatter<'_>) -> fmt::Result {
        self.plain("icmpv6", out)?;
        let named = |name: &str, out: &mut Formatter<'_>| match message.target() {
            Ok(target) => write!(out, " {name} {target}"),
            Err(error) => write!(out, " {name} {}", trouble(error)),
        };
        match message.kind() {
            v6::ECHO_REQUEST => echo("request", message, out),
            v6::ECHO_REPLY => echo("reply", message, out),
            v6::PACKET_TOO_BIG => out.write_str(" packet too big"),
            v6::ROUTER_SOLICITATION => out.write_str(" router solicitation"),
            v6::ROUTER_ADVERTISEMENT => out.write_str(" router advertisement"),
            v6::NEIGHBOUR_SOLICITATION => named("neighbour solicitation for", out),
            v6::NEIGHBOUR_ADVERTISEMENT => named("neighbour advertisement of", out),
            v6::REDIRECT => named("redirect to", out),
            v6::LISTENER_QUERY => out.write_str(" listener query"),
            v6::LISTENER_REPORT | v6::LISTENER_REPORT_V2 => out.write_str(" listener report"),
            kind => write!(out, " type {kind} code {}", message.code()),
        }
    }
}

fn echo(what: &str, message: &Icmp<'_>, out: &mut Formatter<'_>) -> fmt::Result {
    write!(out, " echo {what}, id {}, number {}", message.echo_id(), message.echo_sequence())
}

/// An IP protocol by its name, or by its number.
struct Named(u8);

impl Display for Named {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(match self.0 {
            ICMP => "icmp",
            ICMPV6 => "icmpv6",
            IGMP => "igmp",
            TCP => "tcp",
            UDP => "udp",
            SCTP => "sctp",
            ESP => "esp",
            AUTHENTICATION => "ah",
            protocol::HOP_BY_HOP => "hop-by-hop options",
            other => return write!(out, "protocol {other}"),
        })
    }
}

fn ipv4(bytes: &[u8], out: &mut Formatter<'_>) -> fmt::Result {
    let ip = match Ipv4::parse(bytes) {
        Ok(ip) => ip,
        Err(error) => return write!(out, "ipv4 {}", trouble(error)),
    };
    let ends = Ends {
        source: ip.source(),
        destination: ip.destination(),
        v6: false,
        protocol: ip.protocol(),
    };
    let end = ip.total_len().clamp(ip.header_len(), bytes.len());
    let upper = bytes.get(ip.header_len()..end).unwrap_or_default();
    fragment_of(
        &ends,
        upper,
        ip.is_fragment().then(|| (ip.identification().into(), ip.fragment_offset())),
        out,
    )
}

fn ipv6(bytes: &[u8], out: &mut Formatter<'_>) -> fmt::Result {
    let ip = match Ipv6::parse(bytes) {
        Ok(ip) => ip,
        Err(error) => return write!(out, "ipv6 {}", trouble(error)),
    };
    let mut ends = Ends {
        source: ip.source(),
        destination: ip.destination(),
        v6: true,
        protocol: ip.next_header(),
    };
    let upper = match ip.upper_layer() {
        Ok(upper) => upper,
        Err(error) => {
            ends.plain("ipv6", out)?;
            return write!(out, ", headers {}", trouble(error));
        }
    };
    ends.protocol = upper.protocol;
    let end =
        (crate::ipv6::LEN + ip.payload_len()).clamp(upper.offset.min(bytes.len()), bytes.len());
    let fragment = upper.fragment.filter(|fragment| !fragment.is_atomic());
    let fragment = fragment.map(|fragment| (fragment.identification, fragment.offset()));
    fragment_of(&ends, bytes.get(upper.offset..end).unwrap_or_default(), fragment, out)
}

/// A whole packet, or a fragment: its identification and offset.
fn fragment_of<A: Display>(
    ends: &Ends<A>,
    bytes: &[u8],
    fragment: Option<(u32, usize)>,
    out: &mut Formatter<'_>,
) -> fmt::Result {
    match fragment {
        None => ends.upper(bytes, out),
        Some((id, 0)) => {
            ends.upper(bytes, out)?;
            write!(out, ", first fragment of {id}")
        }
        Some((id, offset)) => {
            ends.plain(Named(ends.protocol), out)?;
            write!(out, ", fragment of {id} from byte {offset}")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Mac,
        build::{self, Ip, Link},
        tcp::{ACK, SYN},
    };

    fn link() -> Link {
        build::ethernet(Mac([2, 0, 0, 0, 0, 0xa]), Mac([2, 0, 0, 0, 0, 0xb]))
    }

    fn v4() -> Ip {
        link().ipv4([10, 0, 0, 1], [10, 0, 0, 2])
    }

    fn v6() -> Ip {
        link().ipv6([0xfd00, 0, 0, 0, 0, 0, 0, 1], [0xfd00, 0, 0, 0, 0, 0, 0, 2])
    }

    #[test]
    fn frames_on_one_line() {
        const MACS: &str = "02:00:00:00:00:0a > 02:00:00:00:00:0b";
        let vxlan = |frame: &[u8]| {
            let payload = [&vxlan::header(42)[..], frame].concat();
            v4().udp(50_000, vxlan::PORT, &payload)
        };
        let cases: &[(Vec<u8>, &str)] = &[
            (
                v4().tcp(&build::Tcp::new(4000, 443, SYN), b""),
                "tcp 10.0.0.1:4000 > 10.0.0.2:443 SYN, 54 bytes",
            ),
            (
                v6().tcp(&build::Tcp::new(4000, 443, SYN | ACK), b""),
                "tcp [fd00::1]:4000 > [fd00::2]:443 SYN+ACK, 74 bytes",
            ),
            (v4().udp(53, 4000, b"12"), "udp 10.0.0.1:53 > 10.0.0.2:4000, 44 bytes"),
            (
                v4().ping(7, 8, b""),
                "icmp 10.0.0.1 > 10.0.0.2 echo request, id 7, number 8, 42 bytes",
            ),
            (
                link().vlan(5).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, b""),
                "vlan 5, udp 10.0.0.1:1 > 10.0.0.2:2, 46 bytes",
            ),
            (
                link().arp_request([10, 0, 0, 1], [10, 0, 0, 2]),
                "arp who has 10.0.0.2, asks 10.0.0.1 at 02:00:00:00:00:0a, 42 bytes",
            ),
            (link().payload(0x88cc, b"x"), "lldp, 15 bytes"),
            (link().payload(0x88b5, b"x"), "type 0x88b5, 15 bytes"),
            (
                link().llc(&Llc { dsap: 0x42, ssap: 0x42, control: 3, snap: None, payload: b"" }),
                "llc 0x42 > 0x42, 17 bytes",
            ),
            (
                vxlan(&v4().udp(1, 2, b"")),
                "udp 10.0.0.1:50000 > 10.0.0.2:4789, vxlan vni 42: 02:00:00:00:00:0a > 02:00:00:00:00:0b, \
                 udp 10.0.0.1:1 > 10.0.0.2:2, 92 bytes",
            ),
            (link().payload(ethernet::IPV4, &[0x65; 30]), "ipv4 (malformed), 44 bytes"),
            (link().payload(ethernet::IPV4, &[0x45; 3]), "ipv4 (cut short), 17 bytes"),
        ];
        for (frame, want) in cases {
            assert_eq!(
                Summary::new(frame, frame.len() as u32).to_string(),
                format!("{MACS}, {want}")
            );
        }
        let long = v4().tcp(&build::Tcp::new(1, 2, ACK), &[0; 1000]);
        assert_eq!(
            Summary::new(&long[..60], 1054).to_string(),
            format!("{MACS}, tcp 10.0.0.1:1 > 10.0.0.2:2 ACK, 1054 bytes"),
            "of the first bytes alone"
        );
        assert_eq!(
            Summary::new(&long[..38], 1054).to_string(),
            format!("{MACS}, tcp 10.0.0.1:1 > 10.0.0.2:2 (cut short), 1054 bytes")
        );
        assert_eq!(Summary::new(&[1, 2, 3], 3).to_string(), "no Ethernet header, 3 bytes");
    }

    #[test]
    fn fragments() {
        let mut first = v4().udp(1, 2, &[0; 24]);
        (first[18], first[19], first[20]) = (0, 9, 0x20);
        let text = |frame: &[u8]| Summary::new(frame, 70).to_string();
        assert!(
            text(&first).ends_with(", udp 10.0.0.1:1 > 10.0.0.2:2, first fragment of 9, 70 bytes"),
            "{}",
            text(&first)
        );
        first[21] = 185;
        assert!(
            text(&first)
                .ends_with(", udp 10.0.0.1 > 10.0.0.2, fragment of 9 from byte 1480, 70 bytes"),
            "{}",
            text(&first)
        );
    }

    proptest! {
        /// The summary is one line, for all frames of guests.
        #[test]
        fn any_bytes_are_one_line(bytes in proptest::collection::vec(any::<u8>(), 0..160), kind in 0usize..6, len: u32) {
            let mut bytes = bytes;
            let kinds = [[8, 0, 0x45], [0x86, 0xdd, 0x60], [8, 6, 0], [0x81, 0, 0], [0, 40, 0xaa]];
            if let (Some(kind), Some(to)) = (kinds.get(kind), bytes.get_mut(12..15)) {
                to.copy_from_slice(kind);
            }
            let text = Summary::new(&bytes, len).to_string();
            let plain = text.chars().all(|c| c.is_ascii_graphic() || c == ' ');
            prop_assert!(plain && text.ends_with(&format!("{} bytes", len)), "{}", text);
        }
    }
}

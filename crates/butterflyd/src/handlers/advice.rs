//! What to do about a drop, with the packet's own words in the commands.

use super::Daemon;
use crate::dataplane::Dataplane;
use butterfly_packet::{
    ethernet::{self, Ethernet},
    ipv4::Ipv4,
    ipv6::Ipv6,
    protocol::{ICMP, ICMPV6, SCTP, TCP, UDP},
};
use std::net::IpAddr;

/// What a rule says about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Flow {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// The destination port, of protocols whose rules have ports.
    port: Option<u16>,
}

impl Flow {
    fn of(frame: &[u8]) -> Option<Flow> {
        let mut tags = Ethernet::parse(frame).ok()?.tags();
        tags.by_ref().for_each(drop);
        let bytes = tags.rest();
        let (source, destination, protocol, upper) = match tags.ethertype() {
            ethernet::IPV4 => {
                let ip = Ipv4::parse(bytes).ok()?;
                (ip.source().into(), ip.destination().into(), ip.protocol(), ip.header_len())
            }
            ethernet::IPV6 => {
                let ip = Ipv6::parse(bytes).ok()?;
                let upper = ip.upper_layer().ok()?;
                (ip.source().into(), ip.destination().into(), upper.protocol, upper.offset)
            }
            _ => return None,
        };
        let has_port = matches!(protocol, TCP | UDP);
        let port = bytes.get(upper..).and_then(|upper| butterfly_packet::be16(upper, 2)).filter(|_| has_port);
        Some(Flow { source, destination, protocol, port })
    }

    /// As `--ip-proto` takes it.
    fn protocol(&self) -> String {
        match self.protocol {
            TCP => "tcp".into(),
            UDP => "udp".into(),
            SCTP => "sctp".into(),
            ICMP => "icmp".into(),
            ICMPV6 => "icmpv6".into(),
            number => number.to_string(),
        }
    }
}

fn block(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

impl<D: Dataplane> Daemon<D> {
    /// A remedy with the words of a packet that was dropped at the expense of the vnic `charged`.
    pub(super) fn advice(&self, remedy: &str, frame: &[u8], charged: &str) -> String {
        for_packet(remedy, frame, self.only_group(charged))
    }

    /// The group that a rule for a vnic goes into, if it has one alone.
    fn only_group(&self, id: &str) -> Option<&str> {
        match self.nics.get(id)?.security_groups.names() {
            [only] => Some(only.as_str()),
            _ => None,
        }
    }
}

/// Puts what is known of a dropped packet into the commands of a remedy, which are between backticks: protocol, port, addresses, and the
/// name of a group of the vnic that dropped it. What is not known stays as it is.
fn for_packet(remedy: &str, frame: &[u8], group: Option<&str>) -> String {
    let Some(flow) = Flow::of(frame) else { return remedy.to_owned() };
    let parts = remedy.split('`').enumerate();
    let filled = parts.map(|(at, part)| if at % 2 == 1 { command(part, &flow, group) } else { part.to_owned() });
    filled.collect::<Vec<_>>().join("`")
}

fn command(command: &str, flow: &Flow, group: Option<&str>) -> String {
    let command = match flow.port {
        Some(port) => command.replace("--port PORT", &format!("--port {port}")),
        None => command.replace(" --port PORT", ""),
    };
    let word = |word: &str| match word {
        "PROTO" => flow.protocol(),
        "SOURCE" => flow.source.to_string(),
        "SOURCE/32" => block(flow.source),
        "DESTINATION/32" => block(flow.destination),
        "SG" => group.unwrap_or(word).to_owned(),
        _ => word.to_owned(),
    };
    command.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_packet::build;

    const INGRESS: &str = "add it: `butterfly sg rule add SG --ip-proto PROTO --port PORT --cidr SOURCE/32`, or `sg member add GROUP SOURCE`, not SOURCE";
    const EGRESS: &str = "`butterfly sg rule add SG --dir out --ip-proto PROTO --port PORT --cidr DESTINATION/32`";

    #[test]
    fn commands_can_be_pasted() {
        let link = || build::ethernet(butterfly_datapath::Mac([2; 6]), butterfly_datapath::Mac([4; 6]));
        let v4 = link().ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
        let v6 = link().ipv6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]);
        let tcp = v4.tcp(&build::Tcp::new(1, 443, 2), &[]);
        assert_eq!(
            for_packet(INGRESS, &tcp, Some("web")),
            "add it: `butterfly sg rule add web --ip-proto tcp --port 443 --cidr 10.0.0.1/32`, or `sg member add GROUP 10.0.0.1`, not SOURCE"
        );
        assert_eq!(
            for_packet(EGRESS, &v6.udp(1, 53, b""), None),
            "`butterfly sg rule add SG --dir out --ip-proto udp --port 53 --cidr 2001:db8::2/128`"
        );
        // Rules for these have no ports.
        for (frame, protocol) in
            [(v4.payload(1, &[8; 8]), "icmp"), (v4.payload(132, &[0; 12]), "sctp"), (v4.payload(47, &[0; 8]), "47")]
        {
            assert_eq!(
                for_packet(EGRESS, &frame, Some("g")),
                format!("`butterfly sg rule add g --dir out --ip-proto {protocol} --cidr 10.0.0.2/32`")
            );
        }
        for frame in [&tcp[..30], &[][..], &link().payload(0x88b5, &[0; 46])] {
            assert_eq!(for_packet(INGRESS, frame, Some("web")), INGRESS);
        }
    }
}

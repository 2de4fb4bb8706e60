//! Makes the frames that commands name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use butterfly_packet::{
    Mac,
    build::{self, Ip, Link, Tcp},
    ethernet::{self, Llc, Tag},
};

use crate::{
    commands::{
        Arrival, Case, Defect, Flow, Host, NAMES, Part, Shot, Step, To, Twist, What, station, v4,
        v6,
    },
    policy::Declared,
    router::{ROUTERS, gateway_mac, host_mac, set_sum},
    tcp::{ACK, FIN, RST, SYN},
};

/// Positions of both ends of a TCP flow, by the frames so far.
#[derive(Clone, Debug, Default)]
struct Talk {
    first: [u32; 2],
    next: [u32; 2],
    begun: u32,
}

/// Makes frames of one case, in order.
#[derive(Clone, Debug)]
pub struct Frames {
    vnics: Vec<Declared>,
    flows: Vec<Flow>,
    talks: Vec<Talk>,
    /// First ends as those outside heard of them, by flow: protocol, address, and port.
    heard: Vec<Vec<(u8, IpAddr, u16)>>,
}

const ALL_NODES: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

impl Frames {
    pub fn new(case: &Case) -> Frames {
        let talk = Talk { first: [0xffff_ff00, 7000], next: [0xffff_ff01, 7001], begun: 0 };
        Frames {
            vnics: case.vnics.clone(),
            flows: case.flows.clone(),
            talks: vec![talk; case.flows.len()],
            heard: vec![Vec::new(); case.flows.len()],
        }
    }

    /// Returns the sender of a shot.
    pub fn sender(&self, shot: &Shot) -> &'static str {
        match shot.twist {
            Twist::Sender(other) | Twist::Posing(other) => NAMES[other % self.vnics.len()],
            _ => NAMES[self.flows[shot.flow].vnics[usize::from(shot.back)]],
        }
    }

    /// Notes what an end outside got, of the flows of these shots.
    pub fn hear(&mut self, shots: &[&Shot], frame: &[u8]) {
        let Some((protocol, [from, to], port)) = source_of(frame) else { return };
        for shot in shots.iter().filter(|shot| !shot.back) {
            let flow = &self.flows[shot.flow];
            if flow.outside.is_some() && flow.ips[1] == to {
                let heard = &mut self.heard[shot.flow];
                heard.retain(|(of, ..)| *of != protocol);
                heard.push((protocol, from, port));
            }
        }
    }

    /// Returns where an end outside sends to.
    fn outside(&self, flow: usize, protocol: u8) -> Option<(IpAddr, u16)> {
        let heard = self.heard[flow].iter().find(|(of, ..)| *of == protocol);
        heard.map(|(_, ip, port)| (*ip, *port)).or(self.flows[flow].outside)
    }

    fn mac(&self, vnic: usize) -> Mac {
        Mac(self.vnics[vnic % self.vnics.len()].mac)
    }

    /// The bytes of a frame that arrives from the wire.
    pub fn arrival(&mut self, arrival: &Arrival) -> Vec<u8> {
        let mut frame = self.frame(&arrival.shot);
        let source = arrival.says.map_or(gateway_mac(ROUTERS[0]), host_mac);
        frame[6..12].copy_from_slice(&source);
        frame
    }

    /// The bytes of a shot.
    pub fn frame(&mut self, shot: &Shot) -> Vec<u8> {
        let flow = self.flows[shot.flow].clone();
        let (here, there) = (usize::from(shot.back), usize::from(!shot.back));
        let end = |side: usize| {
            flow.stations[side].map_or(self.mac(flow.vnics[side]), |n| Mac(station(n)))
        };
        let mut source = end(here);
        let destination = match shot.to {
            To::Receiver => flow.via.map_or(end(there), gateway),
            To::Broadcast => Mac::BROADCAST,
            To::Multicast => ALL_NODES,
            To::LinkLocalGroup => Mac([1, 0x80, 0xc2, 0, 0, 3]),
            To::Vnic(vnic) => self.mac(vnic),
            To::Station(n) => Mac(station(n)),
            To::Router(n) => gateway(n),
        };
        let (mut from, mut to) = (flow.ips[here], flow.ips[there]);
        let mut ports = [flow.ports[here], flow.ports[there]];
        let outside = self.outside(shot.flow, protocol_of(&shot.what, from));
        if let Some((ip, port)) = outside.filter(|_| shot.back) {
            to = ip;
            ports[1] = port;
        }
        let peer = (to, ports[1]);
        let mut vlan = flow.vlan;
        let pick = |family: IpAddr, n: usize| if family.is_ipv4() { v4(n) } else { v6(n) };
        match shot.twist {
            Twist::SourceMac(vnic) | Twist::Posing(vnic) => source = self.mac(vnic),
            Twist::SourceStation(n) => source = Mac(station(n)),
            Twist::SourceIp(n) => from = pick(from, n),
            Twist::DestinationIp(n) => to = pick(to, n),
            Twist::Vlan(other) => vlan = other,
            Twist::SourceRouter(n) => source = gateway(n),
            Twist::From(host) => from = host.like(from),
            Twist::Towards(host) => to = host.like(to),
            _ => {}
        }
        let destination = match (from, &shot.what) {
            (IpAddr::V6(wanted), What::Probe) if destination == ALL_NODES => {
                Mac::of_group_v6(asked_of(wanted))
            }
            _ => destination,
        };
        if source == destination {
            // Within a batch, whether such a frame finds what itself was learnt by is open.
            source = Mac(station(7));
        }
        let mut link = build::ethernet(source, destination);
        if let Some(vlan) = vlan {
            link = link.vlan(vlan);
        }
        let ends = Ends { link, from, to, ports, peer };
        let mut frame = self.make(shot, &ends, here, &flow);
        match shot.twist {
            Twist::Byte(at, value) => {
                let at = 12 + usize::from(at) % (frame.len() - 12);
                frame[at] ^= value;
            }
            Twist::Cut(len) => frame.truncate(14 + usize::from(len) % (frame.len() - 13)),
            Twist::Hops(hops) if frame[12..15] == [8, 0, 0x45] && frame.len() >= 34 => {
                frame[22] = hops;
                set_sum(&mut frame[14..34]);
            }
            Twist::Hops(hops) if frame[12..14] == [0x86, 0xdd] && frame.len() >= 54 => {
                frame[21] = hops;
            }
            Twist::Pad(n) => frame.extend(std::iter::repeat_n(0, n.into())),
            _ => {}
        }
        frame
    }

    fn make(&mut self, shot: &Shot, ends: &Ends, here: usize, flow: &Flow) -> Vec<u8> {
        match shot.what {
            What::Tcp(step) => {
                let (tcp, len) = self.segment(shot.flow, here, step, ends.ports);
                ends.ip().tcp(&tcp, &[0x55; 64][..len])
            }
            What::Udp(len) => ends.ip().udp(ends.ports[0], ends.ports[1], &vec![0; len.into()]),
            What::Echo { request: true, id } => {
                // Of somebody outside now and then one that is not its own.
                let heard = flow.outside.filter(|_| shot.back && id == 2).is_some();
                ends.ip().ping(if heard { ends.ports[1] } else { id }, 1, b"echo")
            }
            What::Echo { request: false, id } => {
                // Who answers has heard the identifier.
                let heard = flow.outside.filter(|_| shot.back).is_some();
                let id = if heard { ends.ports[1] } else { id };
                let kind = if ends.from.is_ipv4() { 0 } else { 129 };
                ends.ip().icmp(kind, 0, u32::from(id) << 16 | 1, b"echo")
            }
            What::Icmp { kind, code } => ends.ip().icmp(kind, code, 0, &[0; 24]),
            What::Error { kind, protocol, far } => {
                self.error(shot.flow, kind, protocol, far, ends, here, flow)
            }
            What::Fragment { protocol, id, part } => fragment(ends, protocol, id, part),
            What::Sctp(chunk) => ends.ip().sctp((ends.ports[0], ends.ports[1]), 7, chunk, &[0; 16]),
            What::Protocol(number) => ends.ip().payload(number, &[0; 12]),
            What::Discovery { kind, defect } => discovery(ends, kind, defect),
            What::Dhcp4 { op, xid, own, unspecified } => {
                let client = if op == 1 { here } else { 1 - here };
                let chaddr = if own { self.mac(flow.vnics[client]) } else { Mac(station(9)) };
                ends.dhcp4(op, xid, chaddr, unspecified)
            }
            What::Dhcp6 { kind, transaction } => ends.dhcp6(kind, transaction),
            What::Arp { reply } => {
                let IpAddr::V4(from) = ends.from else {
                    return ends.link.payload(0x0806, &[0; 28]);
                };
                let to = if let IpAddr::V4(to) = ends.to { to } else { Ipv4Addr::UNSPECIFIED };
                if reply { ends.link.arp_reply(from, to) } else { ends.link.arp_request(from, to) }
            }
            What::Probe => probe(ends),
            What::Ask(Host(four, six)) => match ends.from {
                IpAddr::V4(from) => ends.link.arp_request(from, four),
                IpAddr::V6(from) => neighbours(ends, (135, asked_of(six)), (from, six), None),
            },
            What::Claim { address, router, hardware } if ends.from.is_ipv6() => {
                let IpAddr::V6(own) = ends.from else { unreachable!() };
                let about = address.map_or(own, |address| address.1);
                let kind = if hardware == 6 { 137 } else { 136 };
                let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                neighbours(ends, (kind, all), (own, about), router.map(gateway))
            }
            What::Claim { address, router, hardware } => {
                let address = address.map(|address| address.0);
                let own = if let IpAddr::V4(own) = ends.from { own } else { Ipv4Addr::UNSPECIFIED };
                let mut frame = ends.link.arp_reply(address.unwrap_or(own), own);
                let at = frame.len() - 28;
                frame[at + 1] = hardware;
                if let Some(router) = router {
                    frame[at + 8..at + 14].copy_from_slice(&gateway(router).0);
                }
                frame
            }
            What::Long(len) => ends.ip().udp(ends.ports[0], ends.ports[1], &vec![0; len.into()]),
            What::Way(kind, behind) => {
                let mut ip = ends.ip();
                if ends.from.is_ipv6() {
                    if behind > 0 {
                        ip = ip.extension(60, &vec![0; behind.into()]);
                    }
                    ip = ip.extension(43, &[&[kind, 1, 0, 0, 0, 0][..], &[0xfd; 16]].concat());
                }
                ip.udp(ends.ports[0], ends.ports[1], b"!")
            }
            What::Type(kind) => ends.link.payload(kind, &[0; 46]),
            What::Hidden(how) => hidden(ends, how),
            What::Options(len) => match ends.from {
                IpAddr::V4(_) => ends.ip().options(&vec![1; usize::from(len).min(40)]).udp(
                    ends.ports[0],
                    ends.ports[1],
                    b"!",
                ),
                IpAddr::V6(_) => {
                    let padding = vec![0; len.into()];
                    ends.ip().extension(60, &padding).udp(ends.ports[0], ends.ports[1], b"!")
                }
            },
        }
    }

    fn segment(
        &mut self,
        flow: usize,
        here: usize,
        step: Step,
        ports: [u16; 2],
    ) -> (Tcp<'static>, usize) {
        const FAR: u32 = 1 << 29;
        // More than two of the windows that [`Step::SynScaled`] makes, less than ten of the
        // unscaled ones.
        const BEYOND: u32 = 600_000;
        let talk = &mut self.talks[flow];
        if matches!(step, Step::Syn | Step::SynScaled) {
            // Each begins somewhere else.
            talk.begun += 1;
            talk.first[here] = talk.next[here].wrapping_add(talk.begun.wrapping_mul(0x0800_0001));
            talk.next[here] = talk.first[here].wrapping_add(1);
        }
        let (next, acknowledged) = (talk.next[here], talk.next[1 - here]);
        let (flags, sequence, acknowledgement, len) = match step {
            Step::Syn | Step::SynAgain | Step::SynScaled => (SYN, talk.first[here], 0, 0),
            Step::SynAck | Step::SynAckScaled => (SYN | ACK, talk.first[here], acknowledged, 0),
            Step::Ack => (ACK, next, acknowledged, 0),
            Step::Data => (ACK | 8, next, acknowledged, 20),
            Step::Fin => (FIN | ACK, next, acknowledged, 0),
            Step::Rst => (RST, next, 0, 0),
            Step::RstAhead => (RST, next.wrapping_add(9), 0, 0),
            Step::RstFar => (RST, next.wrapping_add(FAR), 0, 0),
            Step::Refuse => (RST | ACK, 0, acknowledged, 0),
            Step::DataFar => (ACK, next.wrapping_add(FAR), acknowledged, 20),
            Step::AckFar => (ACK, next, acknowledged.wrapping_add(FAR), 0),
            Step::DataBeyond => (ACK, next.wrapping_add(BEYOND), acknowledged, 20),
            Step::AckBeyond => (ACK, next, acknowledged.wrapping_add(BEYOND), 0),
            Step::DataBehind => (ACK, next.wrapping_sub(BEYOND), acknowledged, 20),
            Step::Again => (ACK, next.wrapping_sub(1), acknowledged, 1),
            Step::Flags(flags) => (flags, next, acknowledged, 4),
        };
        match step {
            Step::Data => talk.next[here] = next.wrapping_add(20),
            Step::Fin => talk.next[here] = next.wrapping_add(1),
            _ => {}
        }
        let scaled = matches!(step, Step::SynScaled | Step::SynAckScaled);
        let options: &[u8] = if scaled { &[2, 4, 5, 0xb4, 1, 3, 3, 2] } else { &[] };
        let tcp = Tcp {
            sequence,
            acknowledgement,
            window: 0x4000,
            options,
            ..Tcp::new(ports[0], ports[1], flags)
        };
        (tcp, len)
    }

    /// An error that a frame of the other direction causes.
    #[allow(clippy::too_many_arguments)]
    fn error(
        &self,
        flow: usize,
        kind: u8,
        protocol: u8,
        far: bool,
        ends: &Ends,
        here: usize,
        of: &Flow,
    ) -> Vec<u8> {
        let (theirs, mut ours) = (ends.peer, of.ips[here]);
        if let (true, IpAddr::V4(own)) = (far && of.outside.is_some() && here == 0, ours) {
            // Of a neighbour's packet, of which this one may be no router.
            let [a, b, c, last] = own.octets();
            ours = IpAddr::from([a, b, c, 3_u8.saturating_sub(last)]);
        }
        let quoted = Ends {
            link: build::ethernet(Mac::ZERO, Mac::ZERO),
            from: theirs.0,
            to: ours,
            ports: [theirs.1, ends.ports[0]],
            peer: theirs,
        };
        let theirs = theirs.0;
        let talk = &self.talks[flow];
        let bytes = match protocol {
            6 => {
                let last = talk.next[1 - here].wrapping_sub(1);
                let sequence = if far { last.wrapping_add(1 << 29) } else { last };
                let tcp = Tcp {
                    sequence,
                    acknowledgement: talk.next[here],
                    ..Tcp::new(quoted.ports[0], quoted.ports[1], ACK)
                };
                quoted.ip().tcp(&tcp, &[])
            }
            17 => quoted.ip().udp(quoted.ports[0], quoted.ports[1], &[]),
            132 => quoted.ip().sctp((quoted.ports[0], quoted.ports[1]), 7, 0, &[]),
            1 if of.outside.is_some() && here == 1 => quoted.ip().ping(quoted.ports[0], 1, &[]),
            1 => quoted.ip().ping(1, 1, &[]),
            other => quoted.ip().payload(other, &[0; 8]),
        };
        let cut = if theirs.is_ipv4() { 14 + 28 } else { 14 + 48 };
        ends.ip().icmp(kind, 0, 0, &bytes[14..bytes.len().min(cut)])
    }
}

/// Returns the protocol of which an end outside has to know the other one's port.
fn protocol_of(what: &What, from: IpAddr) -> u8 {
    match what {
        What::Tcp(_) => 6,
        What::Echo { .. } if from.is_ipv6() => 58,
        What::Echo { .. } => 1,
        What::Error { protocol: 1, .. } if from.is_ipv6() => 58,
        What::Error { protocol, .. } => *protocol,
        _ => 17,
    }
}

/// Returns the protocol of a frame, both addresses, and the port of its source, or the identifier
/// of an echo.
pub fn source_of(frame: &[u8]) -> Option<(u8, [IpAddr; 2], u16)> {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let four = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?));
    let six = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?));
    let (protocol, ends, upper) = match word(12)? {
        ethernet::IPV4 => {
            let upper = 14 + usize::from(*frame.get(14)? & 15) * 4;
            (*frame.get(23)?, [four(26)?.into(), four(30)?.into()], upper)
        }
        ethernet::IPV6 => (*frame.get(20)?, [six(22)?.into(), six(38)?.into()], 54),
        _ => return None,
    };
    let at = if matches!(protocol, 1 | 58) { upper + 4 } else { upper };
    Some((protocol, ends, word(at)?))
}

fn gateway(router: usize) -> Mac {
    Mac(gateway_mac(ROUTERS[router]))
}

struct Ends {
    link: Link,
    from: IpAddr,
    to: IpAddr,
    ports: [u16; 2],
    /// The other end, whatever is wrong with the frame.
    peer: (IpAddr, u16),
}

impl Ends {
    /// Both are of one family, or the source decides.
    fn ip(&self) -> Ip {
        // Without one, a router that cuts the packet chooses it.
        let four = |from, to| self.link.clone().ipv4(from, to).identification(0x4e6f);
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => four(from, to),
            (IpAddr::V4(from), IpAddr::V6(_)) => four(from, Ipv4Addr::new(10, 0, 0, 1)),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.link.clone().ipv6(from, to),
            (IpAddr::V6(from), IpAddr::V4(_)) => self.link.clone().ipv6(from, Ipv6Addr::LOCALHOST),
        }
    }

    fn dhcp4(&self, op: u8, xid: u32, chaddr: Mac, unspecified: bool) -> Vec<u8> {
        let of = |ip| if let IpAddr::V4(ip) = ip { ip } else { Ipv4Addr::UNSPECIFIED };
        let mut message = vec![op, 1, 6, 0];
        message.extend(xid.to_be_bytes());
        message.extend([0; 8]);
        message.extend(if op == 1 { [0; 4] } else { of(self.to).octets() });
        message.extend([0; 8]);
        message.extend(chaddr.0);
        message.resize(236, 0);
        // Discover or request; offer or acknowledgement.
        let kind = match (op, unspecified) {
            (1, true) => 1,
            (1, false) => 3,
            _ => 2 + 3 * (xid % 2) as u8,
        };
        message.extend([99, 130, 83, 99, 53, 1, kind]);
        if op != 1 {
            message.extend([&[54, 4][..], &of(self.from).octets()].concat());
        }
        message.extend([255, 0]);
        let ports = if op == 1 { (68, 67) } else { (67, 68) };
        let from = if unspecified && op == 1 { Ipv4Addr::UNSPECIFIED } else { of(self.from) };
        let to = if unspecified { Ipv4Addr::BROADCAST } else { of(self.to) };
        self.link.clone().ipv4(from, to).identification(0x4e6f).udp(ports.0, ports.1, &message)
    }

    /// A client with a link-local address, to all servers; a server to where that client is.
    fn dhcp6(&self, kind: u8, transaction: u32) -> Vec<u8> {
        let frame = self.link.payload(0, &[]);
        let local = |at: usize| {
            let [a, b, c, d, e, f] =
                <[u8; 6]>::try_from(&frame[at..at + 6]).unwrap().map(u16::from);
            Ipv6Addr::new(0xfe80, 0, 0, 0, (a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f)
        };
        let answers = matches!(kind, 2 | 7);
        let to = if answers { local(0) } else { Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2) };
        let ports = if answers { (547, 546) } else { (546, 547) };
        let mut message = (u32::from(kind) << 24 | transaction).to_be_bytes().to_vec();
        message.extend([0, 1, 0, 3, 1, 2, 3]);
        if matches!(kind, 2 | 3 | 5 | 7..=9) {
            message.extend([0, 2, 0, 3, 1, 2, 4]);
        }
        message.extend([0, 3, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        self.link.clone().ipv6(local(6), to).udp(ports.0, ports.1, &message)
    }
}

/// The parts of one packet of 72 bytes.
fn fragment(ends: &Ends, protocol: u8, id: u16, part: Part) -> Vec<u8> {
    let whole = match protocol {
        6 => ends.ip().tcp(&Tcp::new(ends.ports[0], ends.ports[1], SYN), &[0; 52]),
        17 => ends.ip().udp(ends.ports[0], ends.ports[1], &[0; 64]),
        _ => ends.ip().ping(id, 1, &[0; 64]),
    };
    let upper = &whole[whole.len() - 72..];
    let number = match (protocol, ends.from) {
        (1, IpAddr::V6(_)) => 58,
        (number, _) => number,
    };
    let (from, to) = match part {
        Part::First => (0, 32),
        Part::Second => (32, 48),
        Part::Third => (48, 56),
        Part::Last => (56, 72),
        Part::Tiny => (0, 8),
        Part::Across => (24, 40),
        Part::Early => (32, 48),
    };
    let piece = if part == Part::Tiny && protocol != 6 { &[][..] } else { &upper[from..to] };
    ends.ip()
        .fragment(id.into(), from, !matches!(part, Part::Last | Part::Early))
        .payload(number, piece)
}

fn discovery(ends: &Ends, kind: u8, defect: Defect) -> Vec<u8> {
    let frame = ends.link.payload(0, &[]);
    let own_mac: [u8; 6] = frame[6..12].try_into().unwrap();
    let (IpAddr::V6(source), IpAddr::V6(target)) = (ends.from, ends.to) else {
        return ends.link.payload(0x88cc, &[0; 46]);
    };
    let mld = matches!(kind, 130 | 131 | 132 | 143);
    let hops = match (mld, defect == Defect::Hops) {
        (true, false) => 1,
        (false, false) => 255,
        _ => 64,
    };
    let mut body = Vec::new();
    if kind == 136 {
        let target = if defect == Defect::Target { target } else { source };
        body.extend(target.octets());
    } else if kind == 135 || mld {
        body.extend(target.octets());
    } else if kind == 134 {
        body.extend([0; 8]);
    } else if kind == 137 {
        body.extend([target.octets(), target.octets()].concat());
    }
    if !mld {
        let option = if kind == 136 || kind == 137 { 2 } else { 1 };
        let mac = if defect == Defect::LinkAddress { station(8) } else { own_mac };
        let len = match defect {
            Defect::EmptyOption => 0,
            Defect::LongOption => 2,
            _ => 1,
        };
        // Duplicate address detection says no address (RFC 4862, 5.4.2).
        if !(source == Ipv6Addr::UNSPECIFIED && defect == Defect::None) {
            body.extend([&[option, len][..], &mac].concat());
        }
    }
    if defect == Defect::Short {
        body.truncate(10);
    }
    // A report is to groups, if nothing is wrong with it.
    let report = matches!(kind, 131 | 132 | 143) && defect != Defect::Target;
    let to = if report { Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16) } else { target };
    let mut ip = ends.link.clone().ipv6(source, to).ttl(hops);
    if mld {
        ip = ip.extension(0, &[5, 2, 0, 0, 1, 0]); // router alert (RFC 2711)
    }
    if defect == Defect::Fragmented {
        ip = ip.fragment(3, 0, false);
    }
    let code = u8::from(defect == Defect::Code);
    ip.icmp(kind, code, 0, &body)
}

/// Neighbour discovery of a kind, for a destination, about an address: with the MAC address of its
/// sender, or another one.
fn neighbours(
    ends: &Ends,
    (kind, to): (u8, Ipv6Addr),
    (from, about): (Ipv6Addr, Ipv6Addr),
    other: Option<Mac>,
) -> Vec<u8> {
    let frame = ends.link.payload(0, &[]);
    let own: [u8; 6] = frame[6..12].try_into().unwrap();
    let mut body = about.octets().to_vec();
    if kind == 137 {
        body.extend(to.octets());
    }
    if !from.is_unspecified() {
        body.extend([if kind == 135 { 1 } else { 2 }, 1]);
        body.extend(other.map_or(own, |mac| mac.0));
    }
    // Redirects are of machines of the link (RFC 4861, 8.1).
    let local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);
    let from = if kind == 137 { local } else { from };
    ends.link.clone().ipv6(from, to).ttl(255).icmp(kind, 0, 0, &body)
}

/// The sender is about to take its address (RFC 5227, 2.1.1; RFC 4862, 5.4.2).
fn probe(ends: &Ends) -> Vec<u8> {
    match ends.from {
        IpAddr::V4(wanted) => ends.link.arp_request(Ipv4Addr::UNSPECIFIED, wanted),
        IpAddr::V6(wanted) => {
            let ip = ends.link.clone().ipv6(Ipv6Addr::UNSPECIFIED, asked_of(wanted)).ttl(255);
            ip.icmp(135, 0, 0, &wanted.octets())
        }
    }
}

/// Returns the solicited-node group of an address (RFC 4291, 2.7.1).
fn asked_of(wanted: Ipv6Addr) -> Ipv6Addr {
    let [.., x, y, z] = wanted.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z])
}

fn hidden(ends: &Ends, how: u8) -> Vec<u8> {
    let plain = Ends { link: ends.link.clone(), ..*ends };
    let packet = plain.ip().udp(ends.ports[0], ends.ports[1], b"hidden");
    let kind = if ends.from.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
    let at = packet.len() - if ends.from.is_ipv4() { 28 + 6 } else { 48 + 6 };
    let ip = &packet[at..];
    let tpid = [0x88a8, 0x9100, 0x9200, 0x9300][usize::from(how / 4 % 4)];
    match how % 4 {
        0 => ends.link.clone().tag(Tag { tpid, tci: 5 }).vlan(5).payload(kind, ip),
        1 => ends.link.llc(&Llc {
            dsap: 0xaa,
            ssap: 0xaa,
            control: 3,
            snap: Some((0, kind)),
            payload: ip,
        }),
        2 => ends
            .link
            .payload(if kind == ethernet::IPV4 { ethernet::IPV6 } else { ethernet::IPV4 }, ip),
        _ => ends.link.llc(&Llc { dsap: 6, ssap: 6, control: 3, snap: None, payload: ip }),
    }
}

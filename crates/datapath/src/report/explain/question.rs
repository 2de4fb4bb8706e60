//! The question: from a few words to a whole frame.

use std::net::IpAddr;

use butterfly_model::host_mac;
use butterfly_packet::{
    build::{self, Ip, Tcp},
    icmp::{v4, v6},
    mac::Mac,
    protocol::{ICMP, ICMPV6, SCTP, TCP, UDP},
    sctp,
    translate::Ends,
};

use crate::engine::{
    mac::{address as address_of, number as number_of},
    reserved::is_reserved,
};
use crate::ip::{
    discovery::link_local,
    tcp::{ACK, FIN, RST, SYN, Track},
};
use crate::report::explain::message;
use crate::world::{
    rules::{address, number},
    snapshot::{Network, PortKind, Snapshot, Vnic},
};

/// Sender of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A vnic.
    Vnic(String),
    /// A machine of this network on another host, or behind the wire of the external that it is.
    Outside(u32),
}

/// Receiver of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The station that has this address.
    Address(IpAddr),
    /// A vnic, at its first address of the sender's family.
    Vnic(String),
}

/// A packet to be explained. Missing fields are as a guest would fill them in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Sender.
    pub from: Origin,
    /// Destination.
    pub to: Target,
    /// Source address; else the sender's first of the family.
    pub source: Option<IpAddr>,
    /// Source on the link; else the sender's.
    pub source_mac: Option<Mac>,
    /// Destination on the link; else that of the vnic that has the address.
    pub destination_mac: Option<Mac>,
    /// IP protocol.
    pub protocol: u8,
    /// Source port, or the identifier of an echo; else 49152.
    pub source_port: Option<u16>,
    /// Destination port; needed for TCP, UDP and SCTP.
    pub destination_port: Option<u16>,
    /// TCP flags; else SYN.
    pub flags: Option<u8>,
    /// Type and code of ICMP; else an echo request.
    pub icmp: Option<(u8, u8)>,
    /// Bytes of the IP packet; else as few as it takes.
    pub length: Option<u16>,
    /// True if the answer is to be explained too.
    pub reply: bool,
}

/// Reason for which a question has no answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum NoAnswer {
    #[error("no vnic with id {0}")]
    UnknownVnic(String),
    #[error("VNI {0} is above 16777215")]
    BadVni(u32),
    #[error("no vnic of VNI {0} is on this host: what arrives for it is dropped as unknown-vni")]
    UnknownVni(u32),
    #[error(
        "nothing comes from outside into network {0}: it is no external with a wire, and without an uplink networks end at this host"
    )]
    NoUplink(u32),
    #[error("{who} has no {family} address to {what}")]
    NoAddress { who: String, family: &'static str, what: &'static str },
    #[error("source {source_ip} and destination {destination} are of different families")]
    Families { source_ip: IpAddr, destination: IpAddr },
    #[error("{0} needs a destination port")]
    NeedsPort(&'static str),
    #[error("who sends it from outside has an address: give its source address")]
    NeedsSource,
    #[error(
        "no NIC of this host has {0}: it may be on another host, and its MAC address is not known here"
    )]
    NeedsMac(IpAddr),
    #[error("{0} waits for its MAC address, which {1} has: it gets nothing until that one is gone")]
    Waits(String, String),
    #[error("protocol {0} goes with {1} addresses")]
    WrongFamily(u8, &'static str),
    #[error(
        "{0} is a mirror of {1}: it gets copies of that one's frames and nothing else, and sends nothing"
    )]
    Mirror(String, String),
    #[error("{0} bytes are too few for the headers of this packet, which take {1}")]
    TooShort(u16, usize),
    #[error("no memory for a copy of what concerns the packet")]
    NoMemory,
}

/// First sequence number of a TCP connection.
const SEQUENCE: u32 = 1_000_000;
const EPHEMERAL: u16 = 49_152;
/// Stands for a station on another host whose link address does not matter.
const ELSEWHERE: Mac = Mac([2, 0, 0, 0, 0, 1]);

fn waits_for(vnic: &Vnic, snapshot: &Snapshot) -> NoAnswer {
    let having = snapshot.waits_for(vnic).map_or_else(String::new, |having| having.id.to_string());
    NoAnswer::Waits(vnic.id.to_string(), having)
}

/// A question with all fields filled in.
pub(super) struct Asked {
    pub vni: u32,
    /// Slot of the sender, or of the trunk for a sender on another host.
    pub from: u32,
    /// Source and destination on the link.
    pub macs: (Mac, Mac),
    pub ips: (IpAddr, IpAddr),
    pub frame: Vec<u8>,
    /// True if no station of the network would tell the sender the link address.
    pub unanswered: bool,
    /// Sequence and acknowledgement number of TCP.
    numbers: (u32, u32),
    question: Question,
}

/// Fills in the missing fields of a question.
pub(super) fn resolve(
    question: &Question,
    snapshot: &Snapshot,
    spans_hosts: bool,
) -> Result<Asked, NoAnswer> {
    let (vni, sender) = match &question.from {
        Origin::Vnic(id) => {
            let vnic = known(id, snapshot)?;
            no_mirror(vnic)?;
            (vnic.vni, Some(vnic))
        }
        Origin::Outside(vni) if *vni > 0xff_ffff => return Err(NoAnswer::BadVni(*vni)),
        Origin::Outside(vni) => (*vni, None),
    };
    let network = snapshot.network(vni).ok_or(NoAnswer::UnknownVni(vni))?;
    let wire = network.wire.and_then(|slot| snapshot.vnics.get(slot)).map(|wire| &**wire);
    let sender = sender.or(wire);
    let from = match sender {
        Some(vnic) => vnic.place.slot,
        None => network.remote.as_ref().map(|remote| remote.slot).ok_or(NoAnswer::NoUplink(vni))?,
    };
    let (destination, receiver) = match &question.to {
        Target::Address(ip) => (*ip, having(*ip, snapshot, network, from)?),
        Target::Vnic(id) => {
            let vnic = known(id, snapshot)?;
            let address = receiving(vnic, question, snapshot, sender)?;
            (address, Some(vnic).filter(|vnic| vnic.vni == vni))
        }
    };
    let source = match (question.source, sender) {
        (Some(source), _) => source,
        (None, Some(vnic)) if vnic.is_wire() => return Err(NoAnswer::NeedsSource),
        (None, Some(vnic)) => first(vnic, Some(destination.is_ipv6()))
            .ok_or_else(|| lacks(&vnic.id, Some(destination.is_ipv6()), "send from"))?,
        (None, None) => return Err(NoAnswer::NeedsSource),
    };
    if source.is_ipv6() != destination.is_ipv6() {
        return Err(NoAnswer::Families { source_ip: source, destination });
    }
    let source_mac = question.source_mac.unwrap_or_else(|| match sender {
        Some(vnic) if vnic.is_wire() => ELSEWHERE,
        Some(vnic) => vnic.mac,
        None => elsewhere(source, network, snapshot),
    });
    let beyond = spans_hosts && sender.is_some();
    let routing = network.routing.as_ref().filter(|_| sender.is_some() && is_routed(destination));
    let gateway = routing.and_then(|routing| routing.way_out(number(destination)));
    let destination_mac = match (gateway, question.destination_mac, receiver) {
        (Some(gateway), None, None) => Some(address_of(gateway)),
        _ => destination_mac(question, receiver, destination, beyond)?,
    };
    let mut asked = Asked {
        vni,
        from,
        macs: (source_mac, destination_mac.unwrap_or(Mac::ZERO)),
        ips: (source, destination),
        frame: Vec::new(),
        unanswered: destination_mac.is_none(),
        numbers: (SEQUENCE, 0),
        question: question.clone(),
    };
    asked.frame = asked.build()?;
    Ok(asked)
}

/// Returns the link address from which a packet of another host comes: of a router there, if the
/// source is of another network that a router joins to this one.
fn elsewhere(source: IpAddr, network: &Network, snapshot: &Snapshot) -> Mac {
    let routing = network.routing.as_ref();
    let beyond = routing.and_then(|routing| routing.beyond(number(source), network.vni));
    let outside = || Some(address_of(routing?.overs(number(source)).next()?.1.mac));
    let Some((_, vni)) = beyond else { return outside().unwrap_or(ELSEWHERE) };
    let ways = routing.into_iter().flat_map(|routing| routing.ways_to(number(source)));
    let places = [(vni, number(source))].into_iter().chain(ways);
    let mut found = places.filter_map(|(vni, address)| snapshot.neighbours.get(vni, address));
    let neighbour = found.next();
    let host = neighbour.and_then(|found| found.host).map(address);
    Mac(host_mac(host.unwrap_or(IpAddr::from([0; 4]))))
}

/// Returns whether a machine sends to its gateway what is for an address outside of its network: no
/// group, and no address of its link alone.
fn is_routed(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(ip) => !ip.is_broadcast() && !ip.is_multicast(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unicast_link_local(),
    }
}

/// Returns the vnic with an id.
fn known<'a>(id: &str, snapshot: &'a Snapshot) -> Result<&'a Vnic, NoAnswer> {
    let mut vnics = snapshot.vnics.iter().map(|(_, vnic)| vnic.as_ref());
    vnics
        .find(|vnic: &&Vnic| !vnic.is_trunk() && *vnic.id == *id)
        .ok_or_else(|| NoAnswer::UnknownVnic(id.to_owned()))
}

/// Returns the vnic of a network that has an address, if one on this host does.
fn having<'a>(
    ip: IpAddr,
    snapshot: &'a Snapshot,
    network: &Network,
    from: u32,
) -> Result<Option<&'a Vnic>, NoAnswer> {
    let vnic = |slot: &u32| snapshot.vnics.get(*slot).map(|vnic| vnic.as_ref());
    let mut here = network.members.iter().filter_map(vnic);
    let address = number(ip);
    // The address is declared, made of its MAC address, or chosen by its machine and seen.
    let declared = network.holders.get(address).is_some();
    let has = |vnic: &Vnic| {
        vnic.rules.owns(address)
            || link_local(vnic.mac) == address
            || !declared && vnic.shared.bound.has(address)
    };
    let found = here.find(|vnic: &&Vnic| vnic.place.slot != from && has(vnic));
    let mut waiting = network.waiting.iter().filter_map(vnic);
    match (found, waiting.find(|vnic: &&Vnic| vnic.rules.owns(address))) {
        (None, Some(waits)) => Err(waits_for(waits, snapshot)),
        _ => Ok(found),
    }
}

/// Returns the address at which a vnic gets the packet: its first of the sender's family.
fn receiving(
    vnic: &Vnic,
    question: &Question,
    snapshot: &Snapshot,
    sender: Option<&Vnic>,
) -> Result<IpAddr, NoAnswer> {
    no_mirror(vnic)?;
    if snapshot.waits_for(vnic).is_some() {
        return Err(waits_for(vnic, snapshot));
    }
    let v6 = question.source.map(|ip| ip.is_ipv6());
    let v6 = v6.or(sender
        .and_then(|vnic| first(vnic, None))
        .map(|ip| ip.is_ipv6())
        .filter(|v6| first(vnic, Some(*v6)).is_some()));
    first(vnic, v6).ok_or_else(|| lacks(&vnic.id, v6, "send to"))
}

/// Returns the link address that the sender writes to, if it can know one. `beyond`: a vnic sends,
/// and its network may go on at other hosts.
fn destination_mac(
    question: &Question,
    receiver: Option<&Vnic>,
    destination: IpAddr,
    beyond: bool,
) -> Result<Option<Mac>, NoAnswer> {
    Ok(match (question.destination_mac, receiver, destination) {
        (Some(mac), _, _) => Some(mac),
        (None, Some(vnic), _) => Some(vnic.mac),
        (None, None, IpAddr::V4(ip)) if ip.is_broadcast() => Some(Mac::BROADCAST),
        (None, None, IpAddr::V4(ip)) if ip.is_multicast() => Some(Mac::of_group_v4(ip)),
        (None, None, IpAddr::V6(ip)) if ip.is_multicast() => Some(Mac::of_group_v6(ip)),
        (None, None, ip) if beyond && matches!(question.to, Target::Address(_)) => {
            return Err(NoAnswer::NeedsMac(ip));
        }
        (None, None, _) => None,
    })
}

fn no_mirror(vnic: &Vnic) -> Result<(), NoAnswer> {
    match &vnic.kind {
        PortKind::Mirror(of) => Err(NoAnswer::Mirror(vnic.id.to_string(), of.to_string())),
        PortKind::Vnic | PortKind::Trunk | PortKind::Wire | PortKind::Router => Ok(()),
    }
}

/// Returns a vnic's first address of a family, or of any.
fn first(vnic: &Vnic, v6: Option<bool>) -> Option<IpAddr> {
    let mut own = vnic.rules.own.iter().map(|number| crate::world::rules::address(*number));
    own.find(|ip| v6.is_none_or(|v6| ip.is_ipv6() == v6))
}

fn lacks(who: &str, v6: Option<bool>, what: &'static str) -> NoAnswer {
    let family = match v6 {
        Some(true) => "IPv6",
        Some(false) => "IPv4",
        None => "IP",
    };
    NoAnswer::NoAddress { who: who.to_owned(), family, what }
}

fn ip((source, destination): (IpAddr, IpAddr), macs: (Mac, Mac)) -> Option<Ip> {
    let link = build::ethernet(macs.0, macs.1);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Some(link.ipv4(source, destination)),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Some(link.ipv6(source, destination)),
        _ => None,
    }
}

impl Asked {
    fn ports(&self, name: &'static str) -> Result<(u16, u16), NoAnswer> {
        let Question { source_port, destination_port, .. } = self.question;
        Ok((source_port.unwrap_or(EPHEMERAL), destination_port.ok_or(NoAnswer::NeedsPort(name))?))
    }

    fn build(&self) -> Result<Vec<u8>, NoAnswer> {
        let (source, destination) = self.ips;
        let ip =
            ip(self.ips, self.macs).ok_or(NoAnswer::Families { source_ip: source, destination })?;
        let bare = self.packet(&ip, &[])?;
        let Some(length) = self.question.length else { return Ok(bare) };
        let headers = bare.len() - butterfly_packet::ethernet::HEADER_LEN;
        match usize::from(length).checked_sub(headers) {
            None => Err(NoAnswer::TooShort(length, headers)),
            Some(more) => self.packet(&ip, &vec![0; more]),
        }
    }

    fn packet(&self, ip: &Ip, payload: &[u8]) -> Result<Vec<u8>, NoAnswer> {
        let source = self.ips.0;
        let v6 = source.is_ipv6();
        let Question { protocol, flags, icmp, source_port, .. } = self.question;
        Ok(match protocol {
            TCP => {
                let (from, to) = self.ports("TCP")?;
                let (sequence, acknowledgement) = self.numbers;
                ip.tcp(
                    &Tcp { sequence, acknowledgement, ..Tcp::new(from, to, flags.unwrap_or(SYN)) },
                    payload,
                )
            }
            UDP => {
                let (from, to) = self.ports("UDP")?;
                // A filter reads the whole message.
                let message = message::dhcp((from, to), source, self.macs.0).unwrap_or_default();
                ip.udp(from, to, &[&message, payload].concat())
            }
            SCTP => ip.sctp(self.ports("SCTP")?, 0, sctp::INIT, &[payload, &[0; 16]].concat()),
            ICMP if v6 => return Err(NoAnswer::WrongFamily(ICMP, "IPv4")),
            ICMPV6 if !v6 => return Err(NoAnswer::WrongFamily(ICMPV6, "IPv6")),
            ICMPV6
                if let Some(discovery) = icmp.and_then(|(kind, code)| {
                    message::discovery(ip.clone(), kind, code, self.ips, self.macs.0)
                }) =>
            {
                discovery
            }
            ICMP | ICMPV6 => match icmp {
                Some((kind, code)) => {
                    ip.icmp(kind, code, u32::from(source_port.unwrap_or(1)) << 16 | 1, payload)
                }
                None => ip.ping(source_port.unwrap_or(1), 1, payload),
            },
            other => ip.payload(other, payload),
        })
    }

    /// Gives a TCP packet that opens no connection the numbers that its connection has reached.
    pub fn go_on(&mut self, track: &Track, direction: usize) {
        let Some(flags) =
            self.question.flags.filter(|flags| self.question.protocol == TCP && flags & SYN == 0)
        else {
            return;
        };
        if let (Some(own), Some(other)) = (track.end.get(direction), track.end.get(1 - direction)) {
            self.numbers = (*own, if flags & ACK != 0 { *other } else { 0 });
            self.frame = self.build().unwrap_or_default();
        }
    }
}

/// Returns the receiver's answer to a packet, which it knows by `ends`, and the slot it answers
/// from. `None` if such packets have no answer.
pub(super) fn answer(
    asked: &Asked,
    (receiver, ends): (Option<u32>, Option<Ends>),
    snapshot: &Snapshot,
) -> Option<(Vec<u8>, u32)> {
    let receiver = receiver?;
    // One of them may be translated.
    let ips = ends.map_or(asked.ips, |ends| (ends.source, ends.destination));
    let known = ends.and_then(|ends| ends.ports).map(|[from, to]| (from, to));
    let ports = |name| known.or_else(|| asked.ports(name).ok());
    let Question { protocol, flags, icmp, source_port, .. } = asked.question;
    let vnic = snapshot.vnics.get(receiver)?;
    let is_router = |mac| is_reserved(number_of(mac));
    let (macs, receiver) = match snapshot.networks.get(vnic.network).map(|there| &there.routing) {
        // The router of another host passes the answer on into the sender's network.
        _ if vnic.is_trunk() && is_router(asked.macs.1) => {
            let network = snapshot.network(asked.vni)?;
            let trunk = network.remote.as_ref()?.slot;
            ((elsewhere(asked.ips.1, network, snapshot), asked.macs.0), trunk)
        }
        // What was routed is answered to the gateway of the receiver's network.
        Some(Some(routing))
            if !vnic.is_trunk() && (vnic.vni != asked.vni || is_router(asked.macs.0)) =>
        {
            ((vnic.mac, address_of(routing.way_out(number(ips.0))?)), receiver)
        }
        _ => ((asked.macs.1, asked.macs.0), receiver),
    };
    let ip = ip((ips.1, ips.0), macs)?;
    let frame = match protocol {
        TCP => {
            let (from, to) = ports("TCP")?;
            let sent = flags.unwrap_or(SYN);
            let back = match sent {
                flags if flags & RST != 0 => return None,
                flags if flags & SYN != 0 => SYN | ACK,
                flags if flags & FIN != 0 => FIN | ACK,
                _ => ACK,
            };
            let (sequence, acknowledgement) = asked.numbers;
            let next = sequence.wrapping_add(u32::from(sent & (SYN | FIN) != 0));
            let own = if acknowledgement == 0 { SEQUENCE } else { acknowledgement };
            ip.tcp(&Tcp { sequence: own, acknowledgement: next, ..Tcp::new(to, from, back) }, &[])
        }
        UDP => {
            let (from, to) = ports("UDP")?;
            ip.udp(to, from, &[])
        }
        SCTP => {
            let (from, to) = ports("SCTP")?;
            ip.sctp((to, from), 1, sctp::INIT_ACK, &[0; 16])
        }
        ICMP if icmp.is_none_or(|(kind, _)| kind == v4::ECHO_REQUEST) => {
            ip.icmp(v4::ECHO_REPLY, 0, u32::from(source_port.unwrap_or(1)) << 16 | 1, &[])
        }
        ICMPV6 if icmp.is_none_or(|(kind, _)| kind == v6::ECHO_REQUEST) => {
            ip.icmp(v6::ECHO_REPLY, 0, u32::from(source_port.unwrap_or(1)) << 16 | 1, &[])
        }
        ICMP | ICMPV6 => return None,
        other => ip.payload(other, &[]),
    };
    Some((frame, receiver))
}

//! Commands of a case: frames, changes of policy, time. Worlds are small, so that all things meet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    policy::{Declared, Group, Rule},
    router::{Change, ROUTERS},
};

pub const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
pub const GROUPS: [&str; 3] = ["web", "db", "ops"];

/// A conversation that may happen: both ends and what tells it apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Vnics, by index into [`NAMES`].
    pub vnics: [usize; 2],
    pub ips: [IpAddr; 2],
    pub ports: [u16; 2],
    pub vlan: Option<u16>,
    /// Stations behind the vnics, if they are not the vnics themselves.
    pub stations: [Option<u8>; 2],
    /// Router to which both ends send, by index into [`ROUTERS`].
    pub via: Option<usize>,
    /// If the second end is outside of an external: where it sends to, until it hears of the first
    /// one from another address or port.
    pub outside: Option<(IpAddr, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Syn,
    SynAgain,
    SynScaled,
    SynAck,
    SynAckScaled,
    Ack,
    Data,
    Fin,
    /// At the number that the other side expects.
    Rst,
    /// In the window, but not where it is expected.
    RstAhead,
    RstFar,
    /// Answers a SYN.
    Refuse,
    DataFar,
    /// Acknowledges what was never sent.
    AckFar,
    /// Beyond any window there is, by a few of them.
    DataBeyond,
    /// Acknowledges a number a few windows ahead.
    AckBeyond,
    /// Behind any window there is, by a few of them.
    DataBehind,
    Again,
    Flags(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    First,
    Second,
    Third,
    Last,
    /// Too short for a header.
    Tiny,
    /// Starts in the first and ends in the second.
    Across,
    /// In the place of the second, and says that nothing comes behind it.
    Early,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    None,
    Hops,
    Code,
    Target,
    LinkAddress,
    EmptyOption,
    LongOption,
    Fragmented,
    Short,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Tcp(Step),
    Udp(u8),
    Echo {
        request: bool,
        id: u16,
    },
    Icmp {
        kind: u8,
        code: u8,
    },
    /// An error about a packet of the receiver, of this protocol; a sequence number that is far
    /// from those that TCP sent.
    Error {
        kind: u8,
        protocol: u8,
        far: bool,
    },
    Fragment {
        protocol: u8,
        id: u16,
        part: Part,
    },
    Sctp(u8),
    Protocol(u8),
    Discovery {
        kind: u8,
        defect: Defect,
    },
    Dhcp4 {
        op: u8,
        xid: u32,
        own: bool,
        unspecified: bool,
    },
    Dhcp6 {
        kind: u8,
        transaction: u32,
    },
    Arp {
        reply: bool,
    },
    /// An address is about to be taken: ARP from nowhere, or detection of duplicates.
    Probe,
    /// ARP or neighbour discovery for an address, to all or to the receiver.
    Ask(Host),
    /// ARP or a neighbour advertisement that says, to all, that an address is at the MAC address of
    /// the sender or of a router; ARP is of Ethernet, or of IEEE 802, and an advertisement of the
    /// sixth kind is a redirect.
    Claim {
        address: Option<Host>,
        router: Option<usize>,
        hardware: u8,
    },
    /// UDP behind an IPv6 routing header of this type, behind an extension header of so many bytes.
    Way(u8, u16),
    /// UDP of so many bytes.
    Long(u16),
    Type(u16),
    /// IP that hides: behind two tags, behind SNAP, or with the other version's type.
    Hidden(u8),
    /// UDP behind an extension header of so many bytes (IPv4: options).
    Options(u16),
}

/// Destination of a frame in place of the receiver of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Receiver,
    Broadcast,
    Multicast,
    LinkLocalGroup,
    Vnic(usize),
    Station(u8),
    /// The MAC address of a router, by index into [`ROUTERS`].
    Router(usize),
}

/// An address of each family, of which a frame has the one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host(pub Ipv4Addr, pub Ipv6Addr);

impl Host {
    pub fn like(self, other: IpAddr) -> IpAddr {
        if other.is_ipv4() { self.0.into() } else { self.1.into() }
    }
}

/// A fault of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twist {
    None,
    /// Another vnic sends it, as it is.
    Sender(usize),
    /// Another vnic sends it from its own MAC address.
    Posing(usize),
    SourceMac(usize),
    SourceStation(u8),
    SourceIp(usize),
    DestinationIp(usize),
    /// The MAC address of a router, by index into [`ROUTERS`].
    SourceRouter(usize),
    /// Addresses of the flow's family.
    From(Host),
    Towards(Host),
    /// So many hops to go, with the right sum.
    Hops(u8),
    Vlan(Option<u16>),
    Byte(u16, u8),
    Cut(u16),
    Pad(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shot {
    pub flow: usize,
    pub back: bool,
    pub what: What,
    pub to: To,
    pub twist: Twist,
}

/// A frame from the wire, in a network, from the tunnel endpoint of a number. Its source address is
/// that of a router: of the host of this number, or else a gateway's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub host: usize,
    pub from: u8,
    pub vni: u32,
    pub says: Option<u8>,
    pub shot: Shot,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Frames that are in the ring of one vnic when the switch looks. The first one's sender sends
    /// them all.
    Send(Vec<Shot>),
    Pass(u32),
    AddRule(&'static str, Rule),
    RemoveRule(&'static str, Rule),
    AddMember(&'static str, IpAddr),
    RemoveMember(&'static str, IpAddr),
    Declare(Group),
    Forget(&'static str),
    Addresses(usize, Vec<IpAddr>),
    Groups(usize, Vec<&'static str>),
    AntiSpoof(usize, bool),
    Forwards(usize, bool),
    Shared(usize, bool),
    Remove(usize),
    /// Removed before, or not: then it is replaced.
    Insert(usize),
    /// To this host, unless it is there.
    Move(usize, usize),
    Route(Change),
    /// A frame arrives from the wire.
    Wire(Arrival),
    /// A command about groups, networks or routers that only one host is told.
    At(usize, Box<Command>),
}

/// A case: the world at its start, and what happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// One, or two that are joined.
    pub hosts: usize,
    pub vnics: Vec<Declared>,
    /// On which host each vnic is at the start.
    pub placed: Vec<usize>,
    pub groups: Vec<Group>,
    /// Networks and routers that are declared before all else.
    pub routes: Vec<Change>,
    pub flows: Vec<Flow>,
    pub commands: Vec<Command>,
}

/// Addresses of the small world; of each family, vnics have the first four.
pub fn v4(n: usize) -> IpAddr {
    if n < 4 {
        Ipv4Addr::new(10, 0, 0, n as u8 + 1).into()
    } else {
        Ipv4Addr::new(10, 0, 1, 9).into()
    }
}

pub fn v6(n: usize) -> IpAddr {
    let net = if n < 4 { 0 } else { 1 };
    Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 0, n as u16 + 1).into()
}

/// A link-local address that no MAC address is behind.
pub fn made_up(n: usize) -> IpAddr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x1111, 0x2222, 0x3333, n as u16).into()
}

/// The address of a station that is no vnic.
pub fn station(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0xee, n]
}

impl Case {
    /// To read and to repeat: what was there, then what happened.
    pub fn describe(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        for ((name, vnic), host) in NAMES.iter().zip(&self.vnics).zip(&self.placed) {
            let kind = if vnic.bypass {
                "bypass"
            } else if vnic.ip_anti_spoof {
                "filtered, ARP checked"
            } else {
                "filtered"
            };
            let also = [(vnic.forwards, ", forwards"), (vnic.shared_ip, ", addresses shared")];
            let also: String =
                also.into_iter().filter(|(on, _)| *on).map(|(_, text)| text).collect();
            let host = if self.hosts > 1 { ["host one, ", "host two, "][*host] } else { "" };
            writeln!(
                text,
                "vnic {name}: {host}VNI {}, {kind}{also}, {:?}, groups {:?}",
                vnic.vni, vnic.ips, vnic.groups
            )
            .unwrap();
        }
        for group in &self.groups {
            writeln!(text, "group {}: members {:?}", group.name, group.members).unwrap();
            group.rules.iter().for_each(|rule| writeln!(text, "    {rule:?}").unwrap());
        }
        self.routes.iter().for_each(|change| writeln!(text, "{change:?}").unwrap());
        let used = |index: usize| {
            self.commands
                .iter()
                .any(|command| matches!(command, Command::Send(shots) if shots.iter().any(|shot| shot.flow == index)))
        };
        for (index, flow) in self.flows.iter().enumerate().filter(|(index, _)| used(*index)) {
            let end = |side: usize| {
                let station =
                    flow.stations[side].map(|n| format!(" (station {n})")).unwrap_or_default();
                format!(
                    "{}{station} {} port {}",
                    NAMES[flow.vnics[side]], flow.ips[side], flow.ports[side]
                )
            };
            let via = flow.via.map(|router| format!(", router {}", ROUTERS[router]));
            let (via, vlan) = (via.unwrap_or_default(), flow.vlan);
            writeln!(text, "flow {index}: {} - {}, VLAN {vlan:?}{via}", end(0), end(1)).unwrap();
        }
        for command in &self.commands {
            match command {
                Command::Send(shots) => shots.iter().for_each(|shot| {
                    writeln!(
                        text,
                        "  flow {}{}: {:?} to {:?}, twist {:?}",
                        shot.flow,
                        if shot.back { " back" } else { "" },
                        shot.what,
                        shot.to,
                        shot.twist
                    )
                    .unwrap();
                }),
                other => writeln!(text, "  {other:?}").unwrap(),
            }
        }
        text
    }
}

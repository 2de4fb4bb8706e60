//! The model of the switch: every table is a list that is searched from its start.
//!
//! For a switch that is a tunnel endpoint, the part of a network on other hosts is behind one more
//! vnic, the trunk. It bypasses filters, has no address of its own, and no guest attaches to it.

mod moved;

use std::net::{IpAddr, Ipv4Addr};

use crate::{
    choices::Choices,
    claims::Bound,
    dhcp::{self, Dhcp},
    nat::Mapping,
    policy::{self, Declared, Group, Verdict},
    router::{Fate, NextPlace, Routes, Taken, fragments, is_reserved},
    tcp::{Connection, Judgement, Segment},
    wire::{self, Carries, Packet, Reasons, be16},
    world::{ELSEWHERE, TRUNKS},
};

/// Source or destination of a frame: a vnic, and the number of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port(pub usize, pub u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vnic {
    pub name: &'static str,
    pub port: Port,
    pub declared: Declared,
    /// True if it stands for the network's vnics on other hosts.
    trunk: bool,
    /// When its guest came, if it can have one.
    attached: u32,
    /// Of its DHCP clients and servers.
    dhcp: Dhcp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Learnt {
    vni: u32,
    mac: [u8; 6],
    behind: Port,
    seen: u32,
}

/// One end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    port: Port,
    address: IpAddr,
    /// Of TCP, UDP, SCTP; of an echo, see [`Key::of`].
    number: u16,
}

/// Key of a session, as a frame from `from` to `to` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    /// Of the two VNIs of a routed conversation the smaller one.
    vni: u32,
    /// Its ends are in two networks.
    routed: bool,
    vlan: Option<u16>,
    protocol: u8,
    from: End,
    to: End,
}

impl Key {
    fn reversed(self) -> Key {
        Key { from: self.to, to: self.from, ..self }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tracked {
    Tcp(Connection),
    /// True if the other end answered.
    Udp(bool),
    Echo,
    Sctp(bool),
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    /// As the opener's frames show it.
    key: Key,
    tracked: Tracked,
    seen: u32,
    /// The opener's first packet, for deciding it again.
    opening: Packet,
    /// True for a TCP connection that policy took back: for a while it is not picked up.
    cut: bool,
    /// When one of its ends went, of TCP: it may have gone to another host.
    left: Option<u32>,
    /// Second of the last ICMP error about it that passed, of UDP, and how many did in it.
    errors: (u32, u32),
}

impl Session {
    fn timeout(&self) -> (u32, u32) {
        let exactly = |seconds| (seconds, seconds);
        match &self.tracked {
            _ if self.cut => exactly(PICKUP_FOR),
            Tracked::Tcp(connection) => connection.timeout(),
            Tracked::Udp(answered) => exactly(if *answered { 60 } else { 30 }),
            Tracked::Echo => exactly(30),
            Tracked::Sctp(answered) => exactly(if *answered { 300 } else { 30 }),
            Tracked::Other => exactly(60),
        }
    }
}

/// The fragments of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fragments {
    vni: u32,
    /// A router passed them on.
    across: bool,
    vlan: Option<u16>,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    id: u32,
    from: Port,
    /// The receiver that the first fragment was admitted to; None for several.
    to: Option<Port>,
    began: u32,
    first: Packet,
    /// Parts that passed, and the end of the packet if known.
    parts: Vec<(usize, usize)>,
    total: Option<usize>,
    /// Changes of policy until then.
    policy: u32,
}

/// A session between networks: its zone, protocol, and both ends, the opener's first: vnic, address
/// and number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedSession {
    pub vni: u32,
    pub protocol: u8,
    pub ends: [(&'static str, IpAddr, u16); 2],
}

impl Outcome {
    /// Returns the frames that receivers get, of one that was sent.
    pub fn arrives(&self, sent: &[u8]) -> Vec<Vec<u8>> {
        let first = self.becomes.clone().unwrap_or_else(|| sent.to_vec());
        [vec![first], self.more.clone()].concat()
    }
}

/// Receivers of a frame, and the drops that were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub receivers: Vec<&'static str>,
    pub drops: Vec<Drop>,
    /// Frame that receivers get in place of the one that was sent: a router made it of that.
    pub becomes: Option<Vec<u8>>,
    /// Frames that they get besides: later fragments of it.
    pub more: Vec<Vec<u8>>,
    /// True for a fragment that came before its first one, and is judged again in a moment.
    pub waits: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Names of the trunks of networks 1, 2, ...; none if networks end here.
    trunks: &'static [&'static str],
    /// Mistake of this model.
    mistake: Option<Mistake>,
    /// The frame that is judged came before the first fragment of its packet.
    early: bool,
    /// The ends of the frame that is judged are in two networks.
    across: bool,
    /// Number of this host, which its tunnel endpoint ends in; 0 without one.
    pub number: u8,
    pub now: u32,
    lives: u32,
    changes: u32,
    pub vnics: Vec<Vnic>,
    pub groups: Vec<Group>,
    pub routes: Routes,
    /// Ways of flows, by routes that have several.
    pub taken: Taken,
    learnt: Vec<Learnt>,
    sessions: Vec<Session>,
    /// Sessions forgotten since the last look at all sessions: their places are free from then on.
    dead: Vec<Key>,
    fragments: Vec<Fragments>,
    /// Ports outside that ends inside have.
    pub mappings: Vec<Mapping>,
    /// Of several shared addresses, the one that a machine of a router has.
    pub prefers: Vec<((&'static str, Ipv4Addr), Vec<Ipv4Addr>, Ipv4Addr)>,
    /// The frame that is judged came from outside, and has the address inside now.
    inward: bool,
}

/// Mistakes to be found that do not change the model's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A connection ends when one of its ends moves.
    MovedIsForgotten,
    /// Another host says that it has the address of a vnic of this one, and may.
    TrunkIsBelieved,
    /// A vnic that is still here counts as moved as soon as another host says so.
    AnybodyMoved,
    /// A connection that moves is not decided again.
    MovedIsAdmitted,
    /// Any claim to an address is accepted.
    ClaimsAreBelieved,
    /// A router passes on what comes from any address.
    AnySource,
    /// A packet has as many hops to go behind a router as before it.
    KeepsHops,
    /// The zone of a routed conversation is the VNI of who sends.
    ZoneOfSender,
    /// Routers of other hosts pass on what comes from any address.
    AnyFarSource,
    /// A host may send as the router of another one.
    ForgedIsBelieved,
    /// The number of the host on which a declared machine is means nothing.
    ResidentsAreHere,
    /// Packets of one flow go by several ways of a route.
    AnyWay,
    /// An end inside gets another port outside for each packet.
    PortsChange,
    /// Anybody outside may ask for an echo by an identifier that a machine uses.
    EchoesComeIn,
    /// The quote of an error is not translated.
    QuotesStay,
    /// A packet that no rule translates leaves as it is.
    UntranslatedLeave,
    /// Somebody outside is a member of a group.
    StrangersAreMembers,
}

/// Reasons for the drop of a frame, each with the vnic that is charged: each of these is right.
pub type Drop = Vec<(&'static str, &'static str)>;

fn drop(vnic: &'static str, reasons: &[&'static str]) -> Drop {
    reasons.iter().map(|reason| (vnic, *reason)).collect()
}

const LEARNT_FOR: u32 = 300;
const FRAGMENTS_FOR: u32 = 30;
const PICKUP_FOR: u32 = 120;
/// Sessions that one network may have of the same addresses, numbers and protocol.
const MOST_COPIES: usize = 4;

impl Vnic {
    pub fn is_trunk(&self) -> bool {
        self.trunk
    }
}

enum Destination {
    Vnic(usize),
    Group,
    Unknown,
}

impl Model {
    /// A switch that starts now, without a way to others.
    pub fn new() -> Model {
        Model::with_trunks(&[])
    }

    /// A switch that starts now, of the host of this index.
    pub fn of_host(host: usize) -> Model {
        Model { number: host as u8 + 1, ..Model::with_trunks(&TRUNKS[host]) }
    }

    /// A switch that starts now, and what it calls the trunks of networks 1, 2, ...
    fn with_trunks(trunks: &'static [&'static str]) -> Model {
        Model {
            trunks,
            mistake: None,
            early: false,
            across: false,
            number: 0,
            now: 1,
            lives: 0,
            changes: 0,
            vnics: Vec::new(),
            groups: Vec::new(),
            routes: Routes::default(),
            taken: Taken::default(),
            learnt: Vec::new(),
            sessions: Vec::new(),
            dead: Vec::new(),
            fragments: Vec::new(),
            mappings: Vec::new(),
            prefers: Vec::new(),
            inward: false,
        }
    }

    pub fn pass(&mut self, seconds: u32) {
        self.now += seconds;
        // A session that no frame will find again need not be remembered.
        let now = self.now;
        self.dead.clear();
        self.sessions.retain(|session| now - session.seen <= session.timeout().1);
        self.sessions.retain(|session| session.left.is_none_or(|left| now < left + PICKUP_FOR));
        self.fragments.retain(|entry| now - entry.began < FRAGMENTS_FOR);
        self.mappings_age();
    }

    /// Makes a mistake from now on.
    pub fn errs(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
    }

    /// Returns the sessions between networks whose ends are there, and that may not have timed out;
    /// and of each whether it surely did not. Those that policy took back are none.
    pub fn routed_sessions(&self) -> Vec<(RoutedSession, bool)> {
        let there = self.sessions.iter().filter(|session| session.key.routed && !session.cut);
        let named = there.filter_map(|session| {
            let Key { vni, protocol, from, to, .. } = session.key;
            let end = |end: End| {
                let vnic = self.at(end.port).filter(|vnic| !vnic.trunk)?;
                Some((vnic.name, end.address, end.number))
            };
            let ends = [end(from)?, end(to)?];
            let sure = self.now - session.seen < session.timeout().0;
            Some((RoutedSession { vni, protocol, ends }, sure))
        });
        named.collect()
    }

    pub fn mistake(&self) -> Option<Mistake> {
        self.mistake
    }

    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Forgets what differs between models that are equally likely: where TCP connections stand.
    pub fn blur(&mut self) {
        for session in &mut self.sessions {
            if let Tracked::Tcp(connection) = &mut session.tracked {
                connection.blur();
                session.seen = self.now;
                // Of what opened it, policy asks for the ports only.
                session.opening.upper.truncate(4);
            }
        }
        // The order in which they were made means nothing.
        self.sessions.sort_by_cached_key(|session| format!("{:?}", session.key));
    }

    /// A mistake to be found: no frame finds a session.
    pub fn forget_sessions(&mut self) {
        self.sessions.clear();
    }

    /// A mistake to be found: nothing is learnt.
    pub fn learn_nothing(&mut self) {
        self.learnt.clear();
    }

    /// Says that policy changed; what it is now is read when a packet asks.
    pub fn changed(&mut self) {
        self.changes += 1;
    }

    pub fn insert(&mut self, name: &'static str, declared: Declared) {
        self.changed();
        self.lives += 1;
        let Declared { vni, mac, bypass, .. } = declared;
        if !bypass {
            self.learnt.retain(|learnt| (learnt.vni, learnt.mac) != (vni, mac));
        }
        let port = self.vacant();
        self.vnics.push(Vnic {
            name,
            port,
            declared,
            trunk: false,
            attached: self.now,
            dhcp: Dhcp::default(),
        });
        self.bring_trunks();
    }

    /// Takes what is declared of networks from now on.
    pub fn declare(&mut self, routes: &Routes) {
        self.routes.clone_from(routes);
        self.mappings_change();
        self.bring_trunks();
    }

    /// Has a trunk of each network that is here, by a vnic or by a router that joins it; of no
    /// other one.
    fn bring_trunks(&mut self) {
        for (vni, trunk) in (1..).zip(self.trunks) {
            let has_vnics = self.vnics.iter().any(|vnic| !vnic.trunk && vnic.declared.vni == vni);
            let wanted = has_vnics || self.routes.routers_of(vni).next().is_some();
            if wanted == self.trunk_of(vni).is_some() {
                continue;
            }
            if !wanted {
                self.vnics.retain(|vnic| vnic.declared.vni != vni);
                continue;
            }
            self.lives += 1;
            let nobody = Declared {
                mac: [0; 6],
                vni,
                bypass: true,
                ip_anti_spoof: false,
                forwards: false,
                shared_ip: false,
                router: false,
                ips: vec![],
                groups: vec![],
                bound: Bound::default(),
            };
            let port = self.vacant();
            self.vnics.push(Vnic {
                name: trunk,
                port,
                declared: nobody,
                trunk: true,
                attached: 0,
                dhcp: Dhcp::default(),
            });
        }
    }

    /// Returns the lowest free place, for a life that begins now.
    fn vacant(&self) -> Port {
        let slot = (0..).find(|slot| self.vnics.iter().all(|vnic| vnic.port.0 != *slot)).unwrap();
        Port(slot, self.lives)
    }

    pub fn remove(&mut self, name: &'static str) {
        self.changed();
        let Some(port) = self.vnic(name).map(|vnic| vnic.port) else { return };
        self.mappings_go(port);
        self.vnics.retain(|vnic| vnic.name != name);
        // The last one takes the trunk along, unless a router needs it.
        self.bring_trunks();
        self.forget_the_dead();
    }

    /// The trunk of a network that is here.
    fn trunk_of(&self, vni: u32) -> Option<usize> {
        self.vnics.iter().position(|vnic| vnic.trunk && vnic.declared.vni == vni)
    }

    pub fn vnic(&mut self, name: &str) -> Option<&mut Vnic> {
        self.vnics.iter_mut().find(|vnic| vnic.name == name)
    }

    /// The group of a name, which is made if there is none.
    pub fn group(&mut self, name: &'static str) -> &mut Group {
        let at = self.groups.iter().position(|group| group.name == name).unwrap_or_else(|| {
            self.groups.push(Group { name, members: Vec::new(), rules: Vec::new() });
            self.groups.len() - 1
        });
        &mut self.groups[at]
    }

    /// Returns whether the frame that is judged goes from one network to another.
    pub fn is_across(&self) -> bool {
        self.across
    }

    /// Returns whether the frame that is judged came from outside to an address that is translated.
    pub fn is_inward(&self) -> bool {
        self.inward
    }

    fn at(&self, port: Port) -> Option<&Vnic> {
        self.vnics.iter().find(|vnic| vnic.port == port)
    }

    /// One frame from a vnic.
    pub fn send(&mut self, from: &str, frame: &[u8], choices: &mut Choices) -> Outcome {
        let mut outcome = Outcome::default();
        self.tell_declared();
        let sender = self.vnics.iter().position(|vnic| vnic.name == from).unwrap();
        if let Err(drop) = self.decide(sender, frame, &mut outcome, choices) {
            outcome.drops.push(drop);
        }
        outcome.waits = std::mem::take(&mut self.early);
        self.across = false;
        self.inward = false;
        outcome
    }

    fn decide(
        &mut self,
        sender: usize,
        frame: &[u8],
        outcome: &mut Outcome,
        choices: &mut Choices,
    ) -> Result<(), Drop> {
        let Vnic { name, declared, port, trunk, .. } = self.vnics[sender].clone();
        let refuse = |reasons: &[&'static str]| Err(drop(name, reasons));
        if frame.len() < 14 {
            return refuse(&["short"]);
        }
        let is_far = trunk && frame[6..8] == [0xb2, 0xf1];
        if declared.bypass && is_reserved(&frame[6..12]) && !is_far {
            return refuse(&["router-mac"]);
        }
        let carries = wire::carries(frame);
        if let Carries::Ip(at, vlan) = &carries
            && let Ok(packet) = wire::packet(frame, *at, *vlan)
            && dhcp::asks(&packet) == Some(false)
        {
            let Vnic { declared, dhcp, .. } = &mut self.vnics[sender];
            dhcp.look_again((&self.groups, self.changes), declared, choices);
        }
        if !declared.bypass {
            if frame[6..12] != declared.mac {
                return refuse(&["spoofed-mac"]);
            }
            match carries {
                Carries::Rarp => return refuse(&["rarp"]),
                Carries::Arp(at)
                    if declared.ip_anti_spoof && !arp_is_honest(&frame[at..], &declared) =>
                {
                    return refuse(&["spoofed-arp"]);
                }
                _ => {}
            }
        }
        let mut gateway = None;
        if is_far {
            let gateways = self
                .far_gateways(declared.vni, frame, &carries)
                .map_err(|reasons| drop(name, &reasons))?;
            // Of several that lead back, any.
            let last = gateways.last().copied();
            let others = gateways.iter().rev().skip(1).copied();
            gateway = others.into_iter().find(|_| choices.either()).or(last);
            self.across = true;
        }
        if !is_far
            && self.mistake != Some(Mistake::ClaimsAreBelieved)
            && self.claims(&self.vnics[sender], frame, &carries)
        {
            return refuse(CLAIMED);
        }
        if !is_far {
            self.bind(sender, &carries, frame);
        }
        let inward = match is_far {
            true => None,
            false => self
                .come_in(sender, frame, &carries, choices)
                .map_err(|reasons| drop(name, &reasons))?,
        };
        self.inward = inward.is_some();
        let sent = frame;
        let frame = inward.as_ref().map_or(frame, |inward| &inward.frame[..]);
        let mut pick = |ways: usize| (0..ways - 1).find(|_| choices.either()).unwrap_or(ways - 1);
        let fate = match is_far {
            true => Fate::NotMine,
            false => self.at_routers(sender, frame, &carries, &mut pick),
        };
        match fate {
            Fate::NotMine => {}
            Fate::Dropped(reasons) => {
                // Each is right, and what the sender hears is of the one that the switch took.
                let last = reasons.len() - 1;
                let taken = (0..last).find(|_| choices.either()).unwrap_or(last);
                if !declared.bypass && Model::is_told(reasons[taken]) {
                    // Who may not send it hears nothing of what would become of it.
                    let packet = read(frame, &carries).map_err(|reasons| drop(name, reasons))?;
                    let whole = packet.filter(|packet| {
                        packet.fragment.is_none_or(|fragment| fragment.offset == 0)
                    });
                    if let Some(packet) = whole {
                        self.is_own_by_router(name, &declared, &packet)?;
                        let said = policy::egress_by_router(&self.groups, &declared, &packet);
                        if let Verdict::Denied(reasons) = said {
                            return refuse(reasons);
                        }
                    }
                }
                if let Some(error) = self.error(sender, frame, reasons[taken]) {
                    outcome.receivers.push(name);
                    outcome.becomes = Some(error);
                }
                return refuse(&reasons[taken..=taken]);
            }
            Fate::Echoed(answer) => {
                if !declared.bypass
                    && let Some(packet) =
                        read(frame, &carries).map_err(|reasons| drop(name, reasons))?
                {
                    self.is_own(name, &declared, &packet)?;
                    let said = policy::egress(&self.groups, &declared, &packet);
                    if let Verdict::Denied(reasons) = said {
                        return refuse(reasons);
                    }
                }
                outcome.receivers.push(name);
                outcome.becomes = Some(answer);
                return Ok(());
            }
            Fate::Asked(answer) => {
                // The machine may have been the first with its address a moment ago.
                let declared = self.vnics[sender].declared.clone();
                // Who looks whether an address is free has none from which it could be another's.
                if !declared.bypass
                    && let Some(packet) =
                        read(frame, &carries).map_err(|reasons| drop(name, reasons))?
                    && !packet.source.is_unspecified()
                {
                    self.is_own(name, &declared, &packet)?;
                    let said = policy::egress(&self.groups, &declared, &packet);
                    if let Verdict::Denied(reasons) = said {
                        return refuse(reasons);
                    }
                }
                if answer.is_some() {
                    outcome.receivers.push(name);
                    outcome.becomes = answer;
                }
                return Ok(());
            }
            Fate::Heard => return Ok(()),
            Fate::Answered(answer) => {
                outcome.receivers.push(name);
                outcome.becomes = Some(answer);
                return Ok(());
            }
            Fate::Routed(hop, becomes) => {
                self.across = true;
                // To a vnic of another host it is a conversation with the other hosts of its
                // *own* network, from which the answers come.
                let (receiver, gets) = match hop.place {
                    NextPlace::Vnic(receiver) => (receiver, self.vnics[receiver].name),
                    NextPlace::Away(vni, host) => {
                        let names = if host > 2 { ELSEWHERE } else { TRUNKS };
                        let gets = names[usize::from(self.number) - 1][vni as usize - 1];
                        (self.trunk_of(declared.vni).unwrap(), gets)
                    }
                };
                let to = self.vnics[receiver].clone();
                if !(declared.bypass && to.declared.bypass)
                    && let Some(mut packet) =
                        read(frame, &carries).map_err(|reasons| drop(name, reasons))?
                {
                    packet.stranger = self.routes.is_outside(declared.vni)
                        && self.mistake != Some(Mistake::StrangersAreMembers);
                    self.unicast(sender, receiver, &packet, choices)?;
                }
                if let Some(inward) = &inward {
                    self.came_in(inward, receiver);
                }
                let becomes = self
                    .go_out((sender, receiver), sent, becomes, choices)
                    .map_err(|reasons| drop(name, &reasons))?;
                let mut frames = fragments(becomes, hop.mtu).into_iter();
                outcome.receivers.push(gets);
                outcome.becomes = frames.next();
                outcome.more = frames.collect();
                return Ok(());
            }
        }
        let destination = self.forward(sender, frame).map_err(|reasons| drop(name, reasons))?;
        if is_far && matches!(destination, Destination::Unknown) {
            return refuse(&["no-receiver"]); // it is for one machine, which is not here
        }
        if let (Destination::Vnic(_), Some(gateway)) = (&destination, gateway) {
            let mut becomes = frame.to_vec();
            becomes[6..12].copy_from_slice(&gateway);
            outcome.becomes = Some(becomes);
        }
        match destination {
            Destination::Vnic(receiver)
                if declared.bypass && self.vnics[receiver].declared.bypass =>
            {
                outcome.receivers.push(self.vnics[receiver].name);
                Ok(())
            }
            Destination::Vnic(receiver) => {
                if let Some(packet) =
                    read(frame, &carries).map_err(|reasons| drop(name, reasons))?
                {
                    self.unicast(sender, receiver, &packet, choices)?;
                }
                outcome.receivers.push(self.vnics[receiver].name);
                Ok(())
            }
            Destination::Group | Destination::Unknown => {
                let is_group = matches!(destination, Destination::Group);
                let nobody: Reasons = if is_group && frame[..6] != [0xff; 6] {
                    &["no-listener"]
                } else {
                    &["no-receiver"]
                };
                // An address that no vnic here owns is on another host, if the network spans hosts.
                // To a filtered vnic it is one conversation.
                let elsewhere =
                    self.trunk_of(declared.vni).filter(|_| !is_group && !declared.bypass);
                let receivers: Vec<usize> = (0..self.vnics.len())
                    .filter(|i| {
                        self.vnics[*i].port != port && self.vnics[*i].declared.vni == declared.vni
                    })
                    .filter(|i| is_group || self.vnics[*i].declared.bypass)
                    .collect();
                match (elsewhere, read(frame, &carries)) {
                    (Some(trunk), Ok(Some(packet))) => {
                        self.unicast(sender, trunk, &packet, choices)?;
                        self.deliver_to_all(sender, &receivers, &Ok(None), nobody, outcome)
                    }
                    (_, packet) => {
                        self.several(sender, &receivers, packet, nobody, outcome, choices)
                    }
                }
            }
        }
    }

    /// Returns the destination of a frame by the rules of a learning bridge.
    fn forward(&mut self, sender: usize, frame: &[u8]) -> Result<Destination, Reasons> {
        let Vnic { port, declared, trunk, .. } = self.vnics[sender].clone();
        let (destination, source): ([u8; 6], [u8; 6]) =
            (frame[..6].try_into().unwrap(), frame[6..12].try_into().unwrap());
        let believed = trunk && self.mistake == Some(Mistake::TrunkIsBelieved);
        if (trunk || source != declared.mac) && !is_reserved(&source) {
            match self.owner(declared.vni, source) {
                Some(owner) if !self.vnics[owner].declared.bypass && !believed => {
                    return Err(&["mac-claimed"]);
                }
                Some(_) => {}
                None if source[0] & 1 != 0 || source == [0; 6] => {}
                None => {
                    self.learnt.retain(|learnt| (learnt.vni, learnt.mac) != (declared.vni, source));
                    self.learnt.push(Learnt {
                        vni: declared.vni,
                        mac: source,
                        behind: port,
                        seen: self.now,
                    });
                }
            }
        }
        if destination[0] & 1 != 0 {
            let reserved = destination[..5] == [1, 0x80, 0xc2, 0, 0] && destination[5] < 16;
            return if reserved { Err(&["link-local-group"]) } else { Ok(Destination::Group) };
        }
        let owner = self.owner(declared.vni, destination);
        if owner.is_none() && is_reserved(&destination) {
            return Err(&["gateway-not-here"]);
        }
        match self.heard(declared.vni, destination) {
            Some(found) if found == sender => Err(&["same-port"]),
            Some(found) => Ok(Destination::Vnic(found)),
            None => Ok(Destination::Unknown),
        }
    }

    /// Returns the vnic that has a MAC address, or behind which it was heard last.
    pub fn heard(&self, vni: u32, mac: [u8; 6]) -> Option<usize> {
        self.owner(vni, mac).or_else(|| {
            let learnt = self.learnt.iter().find(|learnt| {
                (learnt.vni, learnt.mac) == (vni, mac) && self.now - learnt.seen < LEARNT_FOR
            })?;
            self.vnics.iter().position(|vnic| vnic.port == learnt.behind)
        })
    }

    /// Returns the vnic that owns an address. A trunk owns none.
    fn owner(&self, vni: u32, mac: [u8; 6]) -> Option<usize> {
        self.vnics
            .iter()
            .position(|vnic| !vnic.trunk && vnic.declared.vni == vni && vnic.declared.mac == mac)
    }

    /// A frame with any number of receivers: no session, each is decided by itself.
    fn several(
        &mut self,
        sender: usize,
        receivers: &[usize],
        packet: Result<Option<Packet>, Reasons>,
        nobody: Reasons,
        outcome: &mut Outcome,
        choices: &mut Choices,
    ) -> Result<(), Drop> {
        let Vnic { name, declared, .. } = self.vnics[sender].clone();
        if !self.vnics.iter().any(|vnic| vnic.declared.vni == declared.vni && !vnic.declared.bypass)
        {
            return self.deliver_to_all(sender, receivers, &Ok(None), nobody, outcome);
        }
        // What each receiver decides about: of a fragment, its first one.
        let mut subject = packet;
        if let Ok(Some(packet)) = subject.clone()
            && self.speaks_as_another(&self.vnics[sender], &packet)
        {
            // Vnics that bypass filters may have it all the same. Fragments are decided with their
            // first one.
            subject = match packet.fragment {
                Some(fragment) if fragment.offset > 0 => {
                    let _ = self.follow(sender, None, &packet, choices);
                    Err(&["ip-claimed", "fragment-orphan", "fragment-overlap"])
                }
                _ => Err(CLAIMED),
            };
        } else if let Ok(Some(packet)) = subject.clone() {
            match packet.fragment {
                Some(fragment) if fragment.offset > 0 => {
                    subject = self.follow(sender, None, &packet, choices).map(Some);
                    self.is_own(name, &declared, &packet)?;
                }
                _ => {
                    self.is_own(name, &declared, &packet)?;
                    if !declared.bypass
                        && let Verdict::Denied(reasons) = self.egress(sender, &packet)
                    {
                        return Err(drop(name, reasons));
                    }
                    self.sent(sender, &packet);
                    if packet.fragment.is_some()
                        && let Err(reasons) = self.begin(sender, None, &packet, choices)
                    {
                        subject = Err(reasons);
                    }
                }
            }
        }
        if !declared.bypass
            && let Err(reasons) = subject
        {
            return Err(drop(name, reasons));
        }
        self.deliver_to_all(sender, receivers, &subject, nobody, outcome)
    }

    fn deliver_to_all(
        &mut self,
        sender: usize,
        receivers: &[usize],
        subject: &Result<Option<Packet>, Reasons>,
        nobody: Reasons,
        outcome: &mut Outcome,
    ) -> Result<(), Drop> {
        let name = self.vnics[sender].name;
        if receivers.is_empty() {
            return Err(drop(name, nobody));
        }
        for receiver in receivers {
            let Vnic { name: receiving, declared, .. } = self.vnics[*receiver].clone();
            let verdict = match subject {
                _ if declared.bypass => Ok(()),
                Ok(None) => Ok(()),
                // The sender that hides or mangles IP is to blame.
                Err(reasons) => Err(drop(name, reasons)),
                // The MAC address in an answer names the client; DHCPv6 has none.
                Ok(Some(packet)) => {
                    match self.ingress(*receiver, packet, packet.source.is_ipv4()) {
                        Verdict::Denied(reasons) => Err(drop(receiving, reasons)),
                        _ => {
                            if packet.source.is_ipv4() || dhcp::asks(packet) == Some(true) {
                                self.got(*receiver, packet);
                            }
                            Ok(())
                        }
                    }
                }
            };
            match verdict {
                Ok(()) => outcome.receivers.push(receiving),
                Err(drop) => outcome.drops.push(drop),
            }
        }
        Ok(())
    }

    /// Checks whether a vnic may send from a packet's source.
    fn is_own(&self, name: &'static str, declared: &Declared, packet: &Packet) -> Result<(), Drop> {
        let sender = self.vnics.iter().find(|vnic| vnic.name == name).unwrap();
        let own = match declared.bypass {
            true if self.speaks_as_another(sender, packet) => Err(CLAIMED),
            true => Ok(()),
            false => policy::source_is_own(declared, packet),
        };
        own.map_err(|reasons| {
            let mut all = drop(name, reasons);
            if packet.fragment.is_some_and(|fragment| fragment.offset > 0) {
                // Its first one, which alone is decided, would not pass today either.
                all.extend([(name, "fragment-orphan"), (name, "fragment-overlap")]);
            }
            all
        })
    }

    /// The same of a packet that a router passes on, or tells of: what has a source of its own in
    /// one network, as discovery and DHCP, is like any other.
    fn is_own_by_router(
        &self,
        name: &'static str,
        declared: &Declared,
        packet: &Packet,
    ) -> Result<(), Drop> {
        // No exception of one network holds across a router.
        let is_exception = policy::discovery(packet).is_some() || policy::is_dhcp(packet);
        if !declared.bypass && is_exception {
            let own = declared.ips.contains(&packet.source);
            return if own { Ok(()) } else { Err(drop(name, &["spoofed-ip"])) };
        }
        self.is_own(name, declared, packet)
    }

    /// IP from one vnic to another, one of which at least is filtered.
    fn unicast(
        &mut self,
        sender: usize,
        receiver: usize,
        packet: &Packet,
        choices: &mut Choices,
    ) -> Result<(), Drop> {
        let Vnic { name, declared, .. } = self.vnics[sender].clone();
        let to = Some(self.vnics[receiver].port);
        match packet.fragment {
            Some(fragment) if fragment.offset > 0 => {
                let followed = self.follow(sender, to, packet, choices);
                self.is_own(name, &declared, packet)?;
                return followed.map(|_| ()).map_err(|reasons| drop(name, reasons));
            }
            _ => {
                let own = match self.across {
                    false => self.is_own(name, &declared, packet),
                    true => self.is_own_by_router(name, &declared, packet),
                };
                let key = self.key_between(sender, receiver, packet);
                let known = self
                    .sessions
                    .iter()
                    .any(|session| Some(session.key) == key || Some(session.key.reversed()) == key);
                // The owner of a made-up address may change while conversations go on. It is looked
                // up when they are decided.
                if own.is_err()
                    && !(declared.bypass
                        && known
                        && self.is_made_up(declared.vni, packet.source)
                        && choices.either())
                {
                    self.claim(sender, receiver, packet, choices);
                    own?;
                }
            }
        }
        match packet.fragment {
            Some(_) => {
                self.whole(sender, receiver, packet, choices)?;
                // Discovery in fragments is none (RFC 6980): what follows its beginning may be
                // refused, rule or not.
                if policy::discovery(packet).is_some() && choices.either() {
                    return Ok(());
                }
                self.begin(sender, to, packet, choices).map_err(|reasons| drop(name, reasons))
            }
            None => self.whole(sender, receiver, packet, choices),
        }
    }

    /// Returns the zone of the conversation that the judged frame is of, between two vnics: whoever
    /// sends, it is the same one.
    fn zone(&self, sender: usize, receiver: usize) -> (u32, bool) {
        let [from, to] = [sender, receiver].map(|vnic| self.vnics[vnic].declared.vni);
        match self.mistake {
            // Another host has one end: it is known by the other one.
            _ if from == to => (from, self.across),
            Some(Mistake::ZoneOfSender) => (from, true),
            _ => (from.min(to), true),
        }
    }

    fn key_between(&self, sender: usize, receiver: usize, packet: &Packet) -> Option<Key> {
        let (from, to) = (self.vnics[sender].port, self.vnics[receiver].port);
        key_of(self.zone(sender, receiver), from, to, packet)
    }

    /// Takes a packet that claims to be of a session, from another vnic's address. Like a packet of
    /// that session, it has policy looked at again, which ends a session that is not admitted now.
    fn claim(&mut self, sender: usize, receiver: usize, packet: &Packet, choices: &mut Choices) {
        let Some(key) = self.key_between(sender, receiver, packet) else { return };
        self.out_of_the_way(key, choices);
        if let Some(at) =
            self.there(|session| session.key == key || session.key.reversed() == key, choices)
        {
            self.look_again(at, choices);
        }
    }

    /// The packet that a fragment is of, if its first one is remembered. IPv4 numbers the packets
    /// of each protocol apart.
    fn fragments_of(&mut self, sender: usize, packet: &Packet) -> Option<usize> {
        let Vnic { declared, port, .. } = &self.vnics[sender];
        let (now, id) = (self.now, packet.fragment.unwrap().id);
        self.fragments.retain(|entry| now - entry.began < FRAGMENTS_FOR);
        let protocol = if packet.source.is_ipv4() { packet.protocol } else { 0 };
        self.fragments.iter().position(|entry| {
            (entry.vni, entry.across) == (declared.vni, self.across)
                && (entry.vlan, entry.source, entry.destination)
                    == (packet.vlan, packet.source, packet.destination)
                && (entry.protocol, entry.id, entry.from.0) == (protocol, id, port.0)
        })
    }

    /// Remembers a first fragment that passed, and its receiver; None for several.
    fn begin(
        &mut self,
        sender: usize,
        to: Option<Port>,
        packet: &Packet,
        choices: &mut Choices,
    ) -> Result<(), Reasons> {
        if let Some(at) = self.fragments_of(sender, packet) {
            // Those of the vnic that had its place before may be in the way for as long as they are
            // kept.
            let former = self.fragments[at].from != self.vnics[sender].port;
            if !former || choices.either() {
                return Err(OVERLAP);
            }
            self.fragments.remove(at);
        }
        let Vnic { declared, port, .. } = &self.vnics[sender];
        let fragment = packet.fragment.unwrap();
        self.fragments.push(Fragments {
            vni: declared.vni,
            across: self.across,
            vlan: packet.vlan,
            source: packet.source,
            destination: packet.destination,
            protocol: if packet.source.is_ipv4() { packet.protocol } else { 0 },
            id: fragment.id,
            from: *port,
            to,
            began: self.now,
            first: packet.clone(),
            parts: vec![(0, fragment.len)],
            total: None,
            policy: self.changes,
        });
        Ok(())
    }

    /// The first fragment of the packet that a later one is of.
    fn follow(
        &mut self,
        sender: usize,
        to: Option<Port>,
        packet: &Packet,
        choices: &mut Choices,
    ) -> Result<Packet, Reasons> {
        let found = self.fragments_of(sender, packet);
        self.early = found.is_none_or(|at| self.fragments[at].from != self.vnics[sender].port);
        let at = found.ok_or(ORPHAN)?;
        if self.early {
            return Err(&["fragment-orphan", "fragment-overlap"]);
        }
        let fragment = packet.fragment.unwrap();
        let (start, end) = (fragment.offset, fragment.offset + fragment.len);
        let entry = &mut self.fragments[at];
        let beyond = match (entry.total, fragment.more) {
            (Some(total), true) => end >= total,
            (Some(_), false) => true,
            (None, false) => entry.parts.iter().any(|(_, other)| *other > start),
            (None, true) => false,
        };
        let overlaps = beyond || entry.parts.iter().any(|(from, to)| start < *to && *from < end);
        if overlaps {
            // The receiver does not matter.
            return Err(if entry.to == to {
                OVERLAP
            } else {
                &["fragment-overlap", "fragment-orphan"]
            });
        }
        entry.parts.push((start, end));
        if !fragment.more {
            entry.total = Some(end);
        }
        let (first, decided_for, policy) = (entry.first.clone(), entry.to, entry.policy);
        if entry.total == Some(entry.parts.iter().map(|(from, to)| to - from).sum()) {
            self.fragments.remove(at); // all of it is there: the number may be used again
        }
        // Policy may have changed since: what was admitted as a whole may go on or not.
        if decided_for != to || policy != self.changes && choices.either() {
            return Err(ORPHAN);
        }
        Ok(first)
    }

    /// Decides on a packet whose upper layer starts here.
    fn whole(
        &mut self,
        sender: usize,
        receiver: usize,
        packet: &Packet,
        choices: &mut Choices,
    ) -> Result<(), Drop> {
        let (name, receiving) = (self.vnics[sender].name, self.vnics[receiver].name);
        let key = self.key_between(sender, receiver, packet);
        if let Some(key) = key {
            self.out_of_the_way(key, choices);
        }
        if let Some(key) = key
            && let Some(at) =
                self.live(|session| session.key == key || session.key.reversed() == key, choices)
        {
            if self.sessions[at].cut {
                let forgotten = self.sessions.remove(at);
                let result = self.first(sender, receiver, packet, Some(key), false);
                if result.is_err() {
                    self.sessions.push(forgotten);
                }
                return result;
            }
            let from = usize::from(self.sessions[at].key != key);
            let session = &mut self.sessions[at];
            let hit = match &mut session.tracked {
                Tracked::Tcp(connection) => {
                    match connection.judge(from, &Segment::read(&packet.upper), choices) {
                        Judgement::Passes => {
                            session.seen = self.now;
                            Ok(true)
                        }
                        Judgement::PassesUnnoticed => Ok(true),
                        // The state that refuses is both ends'.
                        Judgement::OutOfWindow => {
                            Err(vec![(name, "tcp-window"), (receiving, "tcp-window")])
                        }
                        Judgement::Afresh => Ok(false),
                        Judgement::ByRules => return self.miss(sender, receiver, packet, None),
                    }
                }
                // What admitted the opener admits no beginning by the other end.
                Tracked::Sctp(_) if from == 1 && packet.upper.get(12) == Some(&1) => {
                    return self.miss(sender, receiver, packet, None);
                }
                Tracked::Udp(answered) | Tracked::Sctp(answered) => {
                    *answered |= from == 1;
                    session.seen = self.now;
                    Ok(true)
                }
                Tracked::Echo | Tracked::Other => {
                    session.seen = self.now;
                    Ok(true)
                }
            };
            if hit? {
                return Ok(());
            }
            self.sessions.remove(at);
        }
        if self.quotes_a_session(sender, receiver, packet, choices) {
            return Ok(());
        }
        if key.is_some_and(|key| self.moves((sender, receiver), key, packet, choices)) {
            return Ok(());
        }
        let copies = key.map_or((0, 0), |key| self.copies(&key));
        let before = self.sessions.len();
        let result = self.miss(sender, receiver, packet, key);
        if self.sessions.len() > before
            && (copies.0 >= MOST_COPIES || copies.1 >= MOST_COPIES && choices.either())
        {
            self.sessions.pop();
            return Err(drop(name, &["session-copies"]));
        }
        result
    }

    /// Sessions of the same addresses, numbers and protocol, between whichever ports: that are
    /// there, and that may be.
    fn copies(&self, key: &Key) -> (usize, usize) {
        let same = self.sessions.iter().filter(|session| session.key.direction_of(key).is_some());
        let dead = self.dead.iter().filter(|dead| dead.direction_of(key).is_some());
        let sure = same.clone().filter(|session| {
            session.left.is_none() && self.now - session.seen < session.timeout().0
        });
        (sure.count(), same.count() + dead.count())
    }

    /// The session that `wanted` names, if it is alive and policy still admits it, or if it was
    /// cut.
    fn live(&mut self, wanted: impl Fn(&Session) -> bool, choices: &mut Choices) -> Option<usize> {
        let at = self.there(wanted, choices)?;
        self.look_again(at, choices).then_some(at)
    }

    /// Ends a session that policy does not admit any more; of TCP it is known for a while that it
    /// was. Returns whether anything is known.
    fn look_again(&mut self, at: usize, choices: &mut Choices) -> bool {
        let session = &self.sessions[at];
        if session.cut || self.goes_on(session, choices) {
            return true;
        }
        if !matches!(session.tracked, Tracked::Tcp(_)) {
            self.sessions.remove(at);
            return false;
        }
        let session = &mut self.sessions[at];
        (session.cut, session.seen) = (true, self.now);
        true
    }

    /// Returns whether policy still admits a session. The owner of a made-up address may change
    /// while conversations go on, and is looked up when they are decided: until then one goes on.
    fn goes_on(&self, session: &Session, choices: &mut Choices) -> bool {
        let opener = self.at(session.key.from.port);
        let vni = opener.map_or(session.key.vni, |opener| opener.declared.vni);
        let made_up = self.is_made_up(vni, session.opening.source);
        self.is_admitted(session, false)
            || made_up && self.is_admitted(session, true) && choices.either()
    }

    /// The session that `wanted` names, if it has not timed out.
    fn there(&mut self, wanted: impl Fn(&Session) -> bool, choices: &mut Choices) -> Option<usize> {
        let at = self.sessions.iter().position(wanted)?;
        let session = &self.sessions[at];
        let idle = self.now - session.seen;
        let (least, most) = session.timeout();
        // Of whole seconds, the last one may count or not.
        if idle > most || idle >= least && choices.either() {
            self.sessions.remove(at);
            return None;
        }
        Some(at)
    }

    /// Returns whether the policy of now would let the opener begin, if need be from an address of
    /// another vnic.
    fn is_admitted(&self, session: &Session, as_another: bool) -> bool {
        let (Some(opener), Some(other)) =
            (self.at(session.key.from.port), self.at(session.key.to.port))
        else {
            return false;
        };
        let out = opener.declared.bypass
            && (as_another || !self.speaks_as(opener, &session.opening, session.key.routed))
            || !opener.declared.bypass
                && policy::source_is_own(&opener.declared, &session.opening).is_ok()
                && policy::egress(&self.groups, &opener.declared, &session.opening)
                    == Verdict::Allowed;
        let within = other.declared.bypass
            || matches!(
                policy::ingress(&self.groups, &other.declared, &session.opening),
                Verdict::Allowed
            );
        out && within
    }

    /// Returns the verdict of rules and of the DHCP memory on a packet that a filtered vnic sends.
    fn egress(&mut self, sender: usize, packet: &Packet) -> Verdict {
        let now = self.now;
        let Vnic { declared, dhcp, .. } = &mut self.vnics[sender];
        match dhcp::asks(packet) {
            Some(true) => match dhcp.may_ask(declared, packet, now) {
                Ok(()) => Verdict::Exception,
                Err(reasons) => match policy::egress(&self.groups, declared, packet) {
                    Verdict::Allowed if declared.ips.contains(&packet.source) => Verdict::Allowed,
                    _ => Verdict::Denied(reasons),
                },
            },
            Some(false) if dhcp.may_serve(packet, now) => Verdict::Exception,
            Some(false) => Verdict::Denied(&["egress-denied"]),
            None => policy::egress(&self.groups, declared, packet),
        }
    }

    /// Returns the same for a packet that a filtered vnic gets, which may be an answer to it or
    /// not.
    fn ingress(&mut self, receiver: usize, packet: &Packet, answer: bool) -> Verdict {
        let now = self.now;
        let Vnic { declared, dhcp, .. } = &mut self.vnics[receiver];
        if answer && dhcp.may_be_answered(declared, packet, now) {
            return Verdict::Exception;
        }
        policy::ingress(&self.groups, declared, packet)
    }

    /// Notes what a vnic sent of DHCP.
    fn sent(&mut self, sender: usize, packet: &Packet) {
        let Vnic { declared, dhcp, .. } = &mut self.vnics[sender];
        if !declared.bypass && dhcp::asks(packet).is_some() {
            dhcp.sent(declared, packet, self.now);
        }
    }

    /// Notes what a vnic got of DHCP.
    fn got(&mut self, receiver: usize, packet: &Packet) {
        let Vnic { declared, dhcp, .. } = &mut self.vnics[receiver];
        if !declared.bypass && dhcp::asks(packet).is_some() {
            dhcp.got((&self.groups, self.changes), declared, packet, self.now);
        }
    }

    fn miss(
        &mut self,
        sender: usize,
        receiver: usize,
        packet: &Packet,
        key: Option<Key>,
    ) -> Result<(), Drop> {
        self.first(sender, receiver, packet, key, true)
    }

    /// Decides on a packet that seems to be the first of a conversation, or from the middle of a
    /// connection that may be picked up or not.
    fn first(
        &mut self,
        sender: usize,
        receiver: usize,
        packet: &Packet,
        key: Option<Key>,
        pickup: bool,
    ) -> Result<(), Drop> {
        let (from, to) = (self.vnics[sender].clone(), self.vnics[receiver].clone());
        let mut exception = policy::is_dhcp(packet);
        let mut denied: Option<Drop> = None;
        // What needs no rule in one network needs one across a router.
        let routed = self.across;
        if !from.declared.bypass {
            let said = match routed {
                true => policy::egress_by_router(&self.groups, &from.declared, packet),
                false => self.egress(sender, packet),
            };
            match said {
                Verdict::Allowed => {}
                Verdict::Exception => exception = true,
                Verdict::Denied(reasons) => denied = Some(drop(from.name, reasons)),
            }
        }
        if !to.declared.bypass && denied.is_none() {
            let said = match routed {
                true => policy::ingress_by_router(&self.groups, &to.declared, packet),
                false => self.ingress(receiver, packet, true),
            };
            match said {
                Verdict::Allowed => {}
                Verdict::Exception => exception = true,
                Verdict::Denied(reasons) => denied = Some(drop(to.name, reasons)),
            }
        }
        let opens = match packet.protocol {
            6 => {
                let segment = Segment::read(&packet.upper);
                let is_new = |vnic: &Vnic| !vnic.trunk && self.now < PICKUP_FOR + vnic.attached;
                let pickup = pickup && (is_new(&from) || is_new(&to));
                segment.opens() || pickup && segment.may_be_picked_up()
            }
            132 => packet.upper.get(12) == Some(&1),
            _ => true,
        };
        if !opens {
            // It would need a session. That policy would not let it make one is as true.
            let reason = if packet.protocol == 6 { "tcp-no-session" } else { "sctp-no-session" };
            denied.get_or_insert_default().extend([(from.name, reason), (to.name, reason)]);
        }
        if let Some(denied) = denied {
            return Err(denied);
        }
        if !routed {
            self.sent(sender, packet);
            self.got(receiver, packet);
        }
        let Some(key) = key.filter(|_| !exception) else { return Ok(()) };
        let tracked = match packet.protocol {
            6 => Tracked::Tcp(Connection::open(&Segment::read(&packet.upper))),
            17 => Tracked::Udp(false),
            1 | 58 if is_icmp(packet) => Tracked::Echo,
            132 => Tracked::Sctp(false),
            _ => Tracked::Other,
        };
        let opens = match tracked {
            Tracked::Echo => packet.upper[0] == echo_request(packet),
            _ => true,
        };
        if opens {
            self.sessions.push(Session {
                key,
                tracked,
                seen: self.now,
                opening: packet.clone(),
                cut: false,
                left: None,
                errors: (0, 0),
            });
        }
        Ok(())
    }

    /// Counts an error about a session that is none of TCP: four pass in a second.
    fn one_more_error(&mut self, at: usize) -> bool {
        let (now, errors) = (self.now, &mut self.sessions[at].errors);
        *errors = if errors.0 == now { (now, errors.1 + 1) } else { (now, 1) };
        errors.1 <= 4
    }

    /// Returns whether it is an error about a packet that the receiver sent in a session. Its
    /// sender may be one that can know of the session: the other end, or any router.
    fn quotes_a_session(
        &mut self,
        sender: usize,
        receiver: usize,
        packet: &Packet,
        choices: &mut Choices,
    ) -> bool {
        let Some(quoted) = quoted(packet) else { return false };
        // An error goes to the sender of the packet.
        if packet.destination != quoted.source {
            return false;
        }
        let (port, bypass) = (self.vnics[sender].port, self.vnics[sender].declared.bypass);
        let (zone, to) = (self.zone(sender, receiver), self.vnics[receiver].port);
        // The packet may have gone to any port: only its tuple and its sender's port are known.
        let same = |key: &Key| {
            let ends = (key.from.address, key.from.number, key.to.address, key.to.number);
            ((key.vni, key.routed), key.vlan, key.protocol, key.from.port)
                == (zone, packet.vlan, quoted.protocol, to)
                && ends == (quoted.source, quoted.ports.0, quoted.destination, quoted.ports.1)
        };
        let sessions = self.sessions.clone();
        let found =
            sessions.iter().filter(|session| same(&session.key) || same(&session.key.reversed()));
        for candidate in found {
            let Some(at) = self.there(|session| session.key == candidate.key, choices) else {
                continue;
            };
            // A quote is no frame of the session: one that policy does not admit now is not ended
            // by it.
            if self.sessions[at].cut || !self.goes_on(&self.sessions[at], choices) {
                continue;
            }
            let from = usize::from(!same(&candidate.key));
            let other = if from == 0 { candidate.key.to.port } else { candidate.key.from.port };
            if !bypass && other != port {
                continue;
            }
            let fits = match (&self.sessions[at].tracked, quoted.sequence) {
                (Tracked::Tcp(connection), Some(sequence)) => {
                    connection.may_have_sent(from, sequence, choices)
                }
                (Tracked::Tcp(_), None) => false,
                _ => self.one_more_error(at),
            };
            if fits {
                return true;
            }
        }
        false
    }
}

const CLAIMED: Reasons = &["ip-claimed"];
const ORPHAN: Reasons = &["fragment-orphan"];
const OVERLAP: Reasons = &["fragment-overlap"];

/// The packet of a frame, None if it is not IP.
fn read(frame: &[u8], carries: &Carries) -> Result<Option<Packet>, Reasons> {
    match carries {
        Carries::Hidden => Err(&["ip-hidden"]),
        Carries::Ip(at, vlan) => wire::packet(frame, *at, *vlan).map(Some),
        _ => Ok(None),
    }
}

fn arp_is_honest(arp: &[u8], vnic: &Declared) -> bool {
    arp.len() >= 28 && arp[..6] == [0, 1, 8, 0, 6, 4] && arp[8..14] == vnic.mac && {
        let sender = IpAddr::V4(std::net::Ipv4Addr::new(arp[14], arp[15], arp[16], arp[17]));
        vnic.ips.contains(&sender)
    }
}

fn is_icmp(packet: &Packet) -> bool {
    (packet.protocol, packet.source.is_ipv4()) == (1, true)
        || (packet.protocol, packet.source.is_ipv6()) == (58, true)
}

fn echo_request(packet: &Packet) -> u8 {
    if packet.source.is_ipv4() { 8 } else { 128 }
}

fn echo_reply(packet: &Packet) -> u8 {
    if packet.source.is_ipv4() { 0 } else { 129 }
}

/// Returns the key of a packet in the table of sessions; None if it can have no session.
fn key_of((vni, routed): (u32, bool), from: Port, to: Port, packet: &Packet) -> Option<Key> {
    let upper = &packet.upper;
    let numbers = match packet.protocol {
        6 | 17 | 132 => (be16(upper, 0), be16(upper, 2)),
        _ if is_icmp(packet) => {
            let request = echo_request(packet);
            match upper[0] {
                kind if kind == request && upper[1] == 0 => (be16(upper, 4), request.into()),
                kind if kind == echo_reply(packet) && upper[1] == 0 => {
                    (request.into(), be16(upper, 4))
                }
                _ => return None,
            }
        }
        _ => (0, 0),
    };
    Some(Key {
        vni,
        routed,
        vlan: packet.vlan,
        protocol: packet.protocol,
        from: End { port: from, address: packet.source, number: numbers.0 },
        to: End { port: to, address: packet.destination, number: numbers.1 },
    })
}

/// Quote of an ICMP error.
struct Quoted {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    ports: (u16, u16),
    sequence: Option<u32>,
}

fn quoted(packet: &Packet) -> Option<Quoted> {
    let is_error = match packet.upper.first()? {
        3 | 11 | 12 if packet.source.is_ipv4() => true,
        1..=4 if packet.source.is_ipv6() => true,
        _ => false,
    };
    if !is_icmp(packet) || !is_error {
        return None;
    }
    let inner = packet.upper.get(8..)?;
    let (source, destination, protocol, upper) = if packet.source.is_ipv4() {
        let header = usize::from(inner.first()? & 15) * 4;
        let sound = inner[0] >> 4 == 4
            && header >= 20
            && inner.len() >= header
            && usize::from(be16(inner, 2)) >= header;
        if !sound || be16(inner, 6) & 0x1fff != 0 {
            return None;
        }
        let address = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&inner[at..at + 4]).unwrap());
        (address(12), address(16), inner[9], &inner[header..])
    } else {
        if inner.len() < 40 || inner[0] >> 4 != 6 {
            return None;
        }
        let address = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&inner[at..at + 16]).unwrap());
        (address(8), address(24), inner[6], &inner[40..])
    };
    let icmp = if source.is_ipv4() { 1 } else { 58 };
    let request: u8 = if source.is_ipv4() { 8 } else { 128 };
    let ports = match protocol {
        6 | 17 | 132 if upper.len() >= 8 => (be16(upper, 0), be16(upper, 2)),
        6 | 17 | 132 => return None,
        number if number == icmp => {
            if upper.len() < 8 {
                return None;
            }
            match upper[0] {
                _ if upper[1] != 0 => return None,
                kind if kind == request => (be16(upper, 4), request.into()),
                0 if request == 8 => (request.into(), be16(upper, 4)),
                129 if request == 128 => (request.into(), be16(upper, 4)),
                _ => return None,
            }
        }
        _ => (0, 0),
    };
    let sequence = (protocol == 6).then(|| wire::be32(upper, 4));
    Some(Quoted { source, destination, protocol, ports, sequence })
}

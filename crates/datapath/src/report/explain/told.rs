//! Texts about the stages' decisions, for the operator.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};

use butterfly_model::Direction;
use butterfly_packet::{
    dhcp::DhcpOptions,
    ethernet::Ethernet,
    ipv4::Ipv4,
    mac::Mac,
    protocol::{ICMP, ICMPV6},
    tcp::{ACK, FIN, RST, SYN},
    translate::ends,
    udp::Udp,
};

use crate::engine::{
    batch::{Batch, Consumed, Hop, Meta, Verdict},
    inside::Inside,
    mac::{address as mac_of, number},
    place::PeerRef,
    reason::DropReason,
};
use crate::ip::{
    Address, BAD_DHCP, DHCP_LIMIT, L4, Packet, frame::inside, parse::parse, tcp::TcpState,
};
use crate::plane::{Plane, sessions::Admission};
use crate::report::explain::{
    Fate, Mark, Rewritten, Step, Walk,
    question::Asked,
    tried::{self, DeclaredRules, RuleInput, protocol_name, told},
};
use crate::session::{Found, State, Table};
use crate::stages::{
    claims::{self, IP_CLAIMED},
    context::Context,
    filter::{self, EGRESS_DENIED, FOR_ROUTERS, INGRESS_DENIED, SPOOFED_IP},
    reasons::info,
    route::{
        FOREIGN_SOURCE, NEXT_HOP_UNKNOWN, ROUTE_BACK, ROUTE_BLACKHOLE, back_to, decided_by,
        next_hop_of,
    },
    translate::packet_of,
};
use crate::world::{
    routing::RouteEntry,
    rules::{address, number as number_of_ip},
    snapshot::{Snapshot, Vnic},
    ways::Leads,
};

pub(super) fn step(stage: &'static str, mark: Mark, text: impl Into<String>) -> Step {
    Step { stage, mark, text: text.into(), details: Vec::new() }
}

/// Returns a frame in a line.
pub(super) fn packet(frame: &[u8]) -> String {
    let len = frame.len();
    let Inside::Ip { at, vlan } = inside(frame) else { return format!("a frame of {len} bytes") };
    let Ok(packet) = parse(frame, at.into(), vlan, len as u32) else {
        return format!("a packet of {len} bytes that cannot be read");
    };
    let tuple = packet.tuple;
    let end = |ip: Address, port: u16| match (tuple.protocol, address(ip)) {
        (ICMP | ICMPV6, ip) => ip.to_string(),
        (_, ip) if port == 0 => ip.to_string(),
        (_, IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        (_, ip) => format!("{ip}:{port}"),
    };
    let (source, destination) =
        (end(tuple.source, tuple.source_port), end(tuple.destination, tuple.destination_port));
    let what = match packet.l4 {
        L4::Tcp(segment) => flags(segment.flags),
        L4::Echo { request: true } => " echo request".into(),
        L4::Echo { request: false } => " echo reply".into(),
        L4::Icmp { kind, code } => format!(" type {kind} code {code}"),
        L4::Dhcp(_) => " DHCP".into(),
        L4::Discovery(_) => " discovery".into(),
        _ => String::new(),
    };
    format!("{} {source} > {destination}{what}, {len} bytes", protocol_name(tuple.protocol))
}

fn flags(flags: u8) -> String {
    let names = [(SYN, "SYN"), (FIN, "FIN"), (RST, "RST"), (ACK, "ACK")];
    names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| format!(" {name}")).collect()
}

/// Returns the step of a stage that drops the packet.
pub(super) fn dropped(stage: &'static str, reason: DropReason) -> Step {
    let info = info(reason);
    step(
        stage,
        Mark::Stop,
        format!("{}: {}", info.name, info.description.trim().trim_end_matches('.')),
    )
}

/// Returns the walk of a packet whose sender finds no station with the address.
pub(super) fn never_sent(asked: &Asked, snapshot: &Snapshot) -> Walk {
    let wanted = asked.ips.1;
    let vnics = snapshot.vnics.iter().map(|(_, vnic)| vnic).filter(|vnic| !vnic.is_mirror());
    let owner = vnics.into_iter().find(|vnic| vnic.rules.owns(crate::world::rules::number(wanted)));
    let mut lookup = step(
        "lookup",
        Mark::Stop,
        format!("nobody in VNI {} has {wanted}: its sender gets no answer to ARP or ND", asked.vni),
    );
    if let Some(owner) = owner {
        lookup
            .details
            .push(format!("{} has it, in VNI {}: no router leads there", owner.id, owner.vni));
    }
    Walk {
        packet: packet(&asked.frame),
        frame: Vec::new(),
        steps: vec![lookup],
        admitted: [None, None],
        routed: None,
        fate: Fate::NoAddress,
    }
}

/// Returns the step that names the sender of a frame.
pub(super) fn source(sender: &Vnic) -> Step {
    let text = match sender {
        vnic if vnic.is_trunk() => {
            "comes from another host: its sources are not checked here".to_owned()
        }
        vnic if vnic.rules.bypass => {
            format!("{} bypasses filters: its sources are not checked", vnic.id)
        }
        vnic => format!("{} is the MAC address of {}", vnic.mac, vnic.id),
    };
    step("source", Mark::Pass, text)
}

/// Returns the owner of an address that another vnic claims.
pub(super) fn owner(claimed: Address, context: &Context<'_>) -> Option<String> {
    let owners = claims::owners(claimed, context);
    (!owners.is_empty())
        .then(|| format!("{} is an address of {}", address(claimed), owners.join(", ")))
}

/// Returns the step of a router that passes a packet on.
pub(super) fn route(batch: &Batch<'_>, to: Option<Address>, context: &Context<'_>) -> Option<Step> {
    let is_next = |meta: &Meta| meta.verdict == Verdict::Consumed(Consumed::Waits);
    if batch.metas().first().is_some_and(is_next) {
        let (vni, wanted) = next_hop_of(batch, 0, context)?;
        let asked = address(wanted);
        let text = format!("the router of VNI {vni} asks who has {asked}: nobody told");
        return Some(step("route", Mark::Note, text));
    }
    if context.sender.is_trunk() && batch.exits().is_routed(0) {
        let hop = batch.hop(0)?;
        let vni = context.other(hop.exit)?.vni;
        let text = match hop.is_from_far() {
            true => {
                "another host's router passed it on, and a router here leads back to its source"
                    .to_owned()
            }
            false => format!("another host has it led out here: it passes on to VNI {vni}"),
        };
        return Some(step("route", Mark::Pass, text));
    }
    let hop = batch.hop(0).filter(Hop::is_routed)?;
    let exit = context.other(hop.exit)?;
    let mut text =
        format!("the gateway of VNI {} passes it on to VNI {}", context.sender.vni, exit.vni);
    let meta = batch.metas().first()?;
    match decided_by(batch.frames.head(0), meta, context) {
        Some((RouteEntry { block, leads: Leads::Via(_) }, Some(next))) => {
            text.push_str(&format!(", by the route {block} via {}", address(next)));
        }
        Some((RouteEntry { leads: Leads::Over(host), .. }, _)) => {
            let (vni, host) = (context.sender.vni, address(host.endpoint));
            text = format!("the gateway of VNI {vni} passes it on to host {host}, which leads out");
        }
        _ => {}
    }
    let mut step = step("route", Mark::Pass, text);
    let declared = |to| {
        let neighbours = &context.snapshot.neighbours;
        neighbours.get(exit.vni, to).is_some() || exit.holders.get(to).is_some()
    };
    if let Some(to) = to.filter(|to| !declared(*to))
        && let Some(found) = context.snapshot.found.get(exit.vni, to)
    {
        let (mac, (age, _)) = (mac_of(found.mac), found.ages(context.now));
        step.details.push(format!("{mac} answered for {} {age} s ago", address(to)));
    }
    Some(step)
}

/// Returns the way on of what a router of this host passes on.
pub(super) fn rewritten(batch: &Batch<'_>, context: &Context<'_>) -> Option<Rewritten> {
    let hop = batch.hop(0).filter(|hop| hop.is_routed() && !hop.is_from_far())?;
    let [destination @ .., _, _, _, _, _, _] = hop.macs;
    let [_, _, _, _, _, _, source @ ..] = hop.macs;
    let vni = context.other(hop.exit)?.vni;
    Some(Rewritten { vni, source: Mac(source), destination: Mac(destination) })
}

/// Returns the route by which a router does not pass a packet on: the one to its destination, or to
/// a source that the sender does not speak for.
pub(super) fn undelivered(
    frame: &[u8],
    reason: DropReason,
    context: &Context<'_>,
) -> Option<String> {
    let meta = Meta { destination: number(Mac(*frame.first_chunk()?)), ..Meta::NEW };
    let (RouteEntry { block, leads }, there) = match reason {
        FOREIGN_SOURCE => (back_to(frame, &meta, context)?, "to the source"),
        ROUTE_BLACKHOLE | NEXT_HOP_UNKNOWN | ROUTE_BACK => {
            (decided_by(frame, &meta, context)?.0, "there")
        }
        _ => return None,
    };
    match leads {
        Leads::Connected(_) => None,
        Leads::Nowhere => Some(format!("the route {block} is a blackhole")),
        Leads::Over(host) => {
            Some(format!("host {} leads {there}: the way out", address(host.endpoint)))
        }
        Leads::Via(ways) => {
            let ways: Vec<String> =
                ways.iter().map(|way| address(way.address).to_string()).collect();
            Some(format!("the route {block} leads {there} via {}", ways.join(", ")))
        }
    }
}

/// Returns the step that tells to which machine inside a packet from outside goes.
pub(super) fn translated(batch: &Batch<'_>) -> Option<Step> {
    let outside = batch.outside(0)?;
    let inside = ends(packet_of(batch, 0)).ok()?;
    let port = outside.port.and(inside.ports).map(|[_, port]| port);
    let [outside, inside] = [(outside.address, outside.port), (inside.destination, port)].map(end);
    Some(step("translate", Mark::Pass, format!("{outside} is {inside} inside")))
}

/// Shows an address, and a port of it.
fn end((address, port): (IpAddr, Option<u16>)) -> String {
    port.map_or_else(|| address.to_string(), |port| format!("{address} port {port}"))
}

/// Returns the step that tells what a router wrote. `was` is the packet's source before.
pub(super) fn masquerade(
    batch: &Batch<'_>,
    was: Option<Address>,
    context: &Context<'_>,
) -> Option<Step> {
    if let Some(hop) = batch.hop(0).filter(Hop::is_from_far) {
        let [_, _, _, _, _, _, from @ ..] = hop.macs;
        let from = Mac(from);
        let text = format!("it goes on from {from}, the gateway to which it is answered");
        return Some(step("masquerade", Mark::Pass, text));
    }
    let Rewritten { source: from, destination: to, .. } = rewritten(batch, context)?;
    let hops = if context.sender.is_trunk() { "as many hops" } else { "a hop less" };
    let mut text = format!("it goes on from {from} to {to}, with {hops} to go");
    let left = batch.outward.then(|| packet_of(batch, 0));
    let left = left.and_then(|packet| ends(packet).ok());
    if let Some(left) = left.filter(|left| Some(number_of_ip(left.source)) != was) {
        let shares = context.assumed.and_then(Cell::get).is_some();
        let port = left.ports.map(|[port, _]| port).filter(|_| shares);
        text.push_str(&format!(", as {}", end((left.source, port))));
    }
    let cut = batch.metas().first().filter(|meta| meta.offload && meta.cut.packets != 0);
    if let Some(cut) = cut.map(|meta| meta.cut) {
        text.push_str(&match cut.packets {
            n if !cut.is_some() => format!(", in {n} shorter segments"),
            1 => format!(", without what is behind it, as {} bytes fit", cut.most),
            n => format!(", in {n} fragments, as {} bytes fit", cut.most),
        });
    }
    if from == to {
        text.push_str("; it is for an address of this host, and comes in again by the wire");
    }
    Some(step("masquerade", Mark::Pass, text))
}

/// Returns the step that tells what the sender's network answers.
pub(super) fn leases(answer: &[u8], context: &Context<'_>) -> Step {
    let id = &context.sender.id;
    let told = dhcp_answer(answer).map(|(kind, address)| match kind {
        OFFER => format!("it offers {address} to {id}"),
        ACKNOWLEDGE if address.is_unspecified() => {
            format!("it tells {id} what goes with its address")
        }
        ACKNOWLEDGE => format!("it leases {address} to {id}"),
        _ => format!("it refuses: that address is not for {id}, which looks for another one"),
    });
    step("answer", Mark::Pass, told.unwrap_or_else(|| format!("nobody at {id} hears an answer")))
}

/// Kinds of answers (RFC 2132, 9.6).
const OFFER: u8 = 2;
const ACKNOWLEDGE: u8 = 5;

/// Returns the kind of a DHCP answer, and the address that it gives.
fn dhcp_answer(frame: &[u8]) -> Option<(u8, Ipv4Addr)> {
    let ip = Ipv4::parse(Ethernet::parse(frame).ok()?.payload()).ok()?;
    let message = Udp::parse(ip.payload().ok()?).ok()?.payload().ok()?;
    let given = message.get(YIADDR..)?.first_chunk::<4>()?;
    let mut options = DhcpOptions::of_message(message)?;
    let (_, kind) = options.find_map(|option| option.ok().filter(|(code, _)| *code == KIND))?;
    Some((*kind.first()?, (*given).into()))
}

/// Offset of the given address in a message, and the option that names its kind.
const YIADDR: usize = 16;
const KIND: u8 = 53;

/// Returns the step that names the receiver.
pub(super) fn lookup(
    verdict: Verdict,
    frame: &[u8],
    batch: &Batch<'_>,
    context: &Context<'_>,
) -> Step {
    let mac = frame.first_chunk().map_or(Mac::ZERO, |bytes| Mac(*bytes));
    let text = match verdict {
        Verdict::Deliver(slot) => match context.snapshot.vnics.get(slot) {
            Some(vnic) if vnic.vni != context.sender.vni => {
                format!("{} has the address, on this host", vnic.id)
            }
            Some(vnic) if vnic.mac == mac => format!("{mac} is {}, on this host", vnic.id),
            Some(vnic) => format!("{mac} was last seen behind {}, on this host", vnic.id),
            None => format!("{mac} is on this host"),
        },
        Verdict::Tunnel(peer) => {
            match batch.hop(0).filter(|hop| hop.is_routed() && !context.sender.is_trunk()) {
                Some(Hop { macs: [to @ .., _, _, _, _, _, _], .. }) => {
                    format!("{} has the address, on host {}", Mac(to), host(peer, context))
                }
                None => format!("{mac} was last seen on host {}", host(peer, context)),
            }
        }
        Verdict::Flood { unknown: true } => {
            format!(
                "{mac} is not known in VNI {}: it goes to all who may have it",
                context.sender.vni
            )
        }
        Verdict::Flood { unknown: false } => {
            format!("{mac} is a group address: it goes to everybody in VNI {}", context.sender.vni)
        }
        Verdict::Consumed(Consumed::Waits) => {
            "it waits for the answer, three seconds at most".to_owned()
        }
        Verdict::Consumed(Consumed::Solicitation) => {
            format!("VNI {} tells its vnics of its routers itself", context.sender.vni)
        }
        Verdict::Consumed(Consumed::Dhcp | Consumed::Dhcp6) => {
            format!("VNI {} gives its vnics their addresses itself", context.sender.vni)
        }
        Verdict::Consumed(_) => format!("the router of VNI {} answers", context.sender.vni),
        Verdict::Drop(..) | Verdict::Undecided | Verdict::Later => format!("{mac}"),
    };
    step("lookup", Mark::Pass, text)
}

fn host(peer: PeerRef, context: &Context<'_>) -> String {
    let peer = context.tunnel.and_then(|tunnel| tunnel.peers.get(peer));
    peer.map_or("unknown".into(), |peer| address(peer.address()).to_string())
}

/// A session as it was before the packet.
pub(super) struct Known {
    state: &'static str,
    cut: bool,
    opened_by: String,
    age: u32,
    idle: u32,
}

impl Known {
    /// Returns a session from the switch's own table.
    pub fn of(found: &Found, context: &Context<'_>, real: &Table) -> Option<Known> {
        let (key, _) = context.table.record(found.index).read()?;
        let index = real.find(real.hash(&key), |stored| *stored == key);
        let line = index.map_or_else(
            || context.table.record(found.index).line2(),
            |index| real.record(index).line2(),
        );
        let opener = context.snapshot.vnics.get(key.slots().0);
        Some(Known {
            state: line.state.name(),
            cut: line.state == State::Tcp(TcpState::Cut),
            opened_by: opener
                .filter(|vnic| !vnic.is_trunk())
                .map_or("another host".into(), |vnic| vnic.id.to_string()),
            age: context.now.saturating_sub(line.made),
            idle: context.now.saturating_sub(line.seen),
        })
    }
}

/// Facts that the filter decided by.
pub(super) struct FilterGrounds<'a> {
    pub known: Option<Known>,
    pub before: Option<Found>,
    pub after: Option<Found>,
    pub drop: Option<(DropReason, u32)>,
    /// The receiver; `None` for a flood.
    pub receiver: Option<&'a Vnic>,
    pub packet: Option<&'a Packet>,
    /// Verdicts of the rules and the exceptions at both ends. Taken before the packet passed, as it
    /// counts against some of them.
    pub said: Option<[Result<u32, DropReason>; 2]>,
}

/// Returns the step of the filter, and the reasons for admitting the packet at both ends.
pub(super) fn filter(
    plane: &Plane,
    context: &Context<'_>,
    decided: &FilterGrounds<'_>,
    steps: &mut Vec<Step>,
) -> [Option<Admission>; 2] {
    let sender = context.sender;
    let (Some(packet), Some(receiver)) = (decided.packet, decided.receiver) else {
        // A flood: each receiver has its own verdict, at delivery.
        if let Some((reason, _)) = decided.drop {
            steps.push(dropped("filter", reason));
        }
        return [None, None];
    };
    if sender.rules.bypass && receiver.rules.bypass {
        return bypassed(sender, receiver, steps);
    }
    let again = match (decided.before, decided.after) {
        (Some(before), Some(after)) => {
            before.index != after.index || before.admission.stamp != after.admission.stamp
        }
        _ => true,
    };
    steps.push(session(decided, again));
    let passage = Passage { plane, context, packet, receiver, rules: plane.rules_by_cell() };
    if let (Some(after), None) = (decided.after, decided.drop) {
        return passage.by_session(&after, again, steps);
    }
    let Some([egress, ingress]) = decided.said else { return [None, None] };
    // The rules refused it, or else they would have admitted it.
    let by_rules = decided.drop.is_none_or(|(reason, _)| {
        [EGRESS_DENIED, INGRESS_DENIED, FOR_ROUTERS, SPOOFED_IP, IP_CLAIMED, BAD_DHCP, DHCP_LIMIT]
            .contains(&reason)
    });
    let (left, let_out) = passage.leaves(egress);
    let (entered, let_in) = passage.enters(ingress, egress.is_err());
    steps.extend([left, entered]);
    if let Some((reason, _)) =
        decided.drop.filter(|_| !by_rules || (egress.is_ok() && ingress.is_ok()))
    {
        steps.push(dropped("session", reason));
    }
    [let_out, let_in]
}

/// Returns the reasons for admitting a packet between two ends that are not filtered.
fn bypassed(sender: &Vnic, receiver: &Vnic, steps: &mut Vec<Step>) -> [Option<Admission>; 2] {
    let text = if receiver.is_trunk() || sender.is_trunk() {
        "the end that is here bypasses filters"
    } else {
        "both ends bypass filters"
    };
    steps.push(step("filter", Mark::Pass, format!("{text}: nothing is decided")));
    let by = |end: &Vnic| if end.is_trunk() { Admission::OtherHost } else { Admission::Bypass };
    [Some(by(sender)), Some(by(receiver))]
}

/// A packet on its way to one receiver, and all rules by their cells.
struct Passage<'a> {
    plane: &'a Plane,
    context: &'a Context<'a>,
    packet: &'a Packet,
    receiver: &'a Vnic,
    rules: DeclaredRules,
}

impl Passage<'_> {
    /// Returns the reason for an admission by a cell; `zero` if the cell has no rule.
    fn by(&self, end: &Vnic, cell: u32, zero: Admission) -> Admission {
        match self.rules.get(&cell) {
            _ if end.is_trunk() => Admission::OtherHost,
            _ if end.rules.bypass => Admission::Bypass,
            Some((group, rule)) if cell != 0 => {
                Admission::Rule { group: group.clone(), rule: rule.clone() }
            }
            _ => zero,
        }
    }

    /// Returns the reasons for admitting the session that the packet passes by.
    fn by_session(
        &self,
        after: &Found,
        again: bool,
        steps: &mut Vec<Step>,
    ) -> [Option<Admission>; 2] {
        let (sender, receiver) = (self.context.sender, self.receiver);
        let (opener, responder): (&Vnic, &Vnic) =
            if after.direction == 0 { (sender, receiver) } else { (receiver, sender) };
        let [egress, ingress] = after.admission.cells;
        let admitted = [
            self.by(opener, egress, Admission::DefaultEgress),
            self.by(responder, ingress, Admission::Gone),
        ];
        if after.direction == 0 || again {
            steps.push(step("egress", Mark::Pass, let_out(opener, &admitted[0])));
            steps.push(step("ingress", Mark::Pass, let_in(responder, &admitted[1])));
        }
        admitted.map(Some)
    }

    /// Returns the step at the sender, by the verdict of its rules.
    fn leaves(&self, egress: Result<u32, DropReason>) -> (Step, Option<Admission>) {
        let (sender, tuple) = (self.context.sender, self.packet.tuple);
        match egress {
            Ok(cell) => {
                let by = self.by(sender, cell, free_egress(sender));
                (step("egress", Mark::Pass, let_out(sender, &by)), Some(by))
            }
            Err(reason) => {
                let mut refused = dropped("egress", reason);
                if reason == IP_CLAIMED {
                    refused.details.extend(owner(tuple.source, self.context));
                } else if reason == SPOOFED_IP {
                    refused.details.push(format!(
                        "{} is not an address of {}",
                        address(tuple.source),
                        sender.id
                    ));
                } else {
                    refused.details = self.tried(sender, Direction::Outbound, tuple.destination);
                }
                (refused, None)
            }
        }
    }

    /// Returns the step at the receiver, by the verdict of its rules.
    fn enters(
        &self,
        ingress: Result<u32, DropReason>,
        not_left: bool,
    ) -> (Step, Option<Admission>) {
        match ingress {
            Ok(cell) => {
                let by = self.by(self.receiver, cell, Admission::Gone);
                (step("ingress", Mark::Pass, let_in(self.receiver, &by)), Some(by))
            }
            Err(reason) => {
                let mut refused = dropped("ingress", reason);
                refused.details =
                    self.tried(self.receiver, Direction::Inbound, self.packet.tuple.source);
                if not_left {
                    refused.text = format!("and if it got so far: {}", refused.text);
                    refused.mark = Mark::Note;
                }
                (refused, None)
            }
        }
    }

    /// Returns the rules of a vnic that were tried in vain.
    fn tried(&self, vnic: &Vnic, direction: Direction, peer: Address) -> Vec<String> {
        let protocol = self.packet.tuple.protocol;
        let stranger = direction == Direction::Inbound
            && filter::is_from_outside((self.context.sender, peer), vnic, self.context);
        let port = filter::rule_port(self.packet);
        let wanted = RuleInput { direction, peer, stranger, protocol, port };
        tried::tried(self.plane, vnic, &wanted, self.context.snapshot, &self.rules)
    }
}

fn free_egress(sender: &Vnic) -> Admission {
    if sender.rules.policy.egress.is_some() { Admission::Gone } else { Admission::DefaultEgress }
}

fn session(decided: &FilterGrounds<'_>, again: bool) -> Step {
    let Some(known) = &decided.known else {
        let text = match decided.after {
            Some(_) => "new: it makes one, by which its answers pass",
            None => "none is known: the rules decide",
        };
        return step("session", Mark::Note, text);
    };
    let Known { state, cut, opened_by, age, idle } = known;
    let what = format!("{state}, opened by {opened_by} {age} s ago, last packet {idle} s ago");
    match (decided.after, decided.drop) {
        _ if *cut => step(
            "session",
            Mark::Note,
            format!(
                "known, but policy took it back: only a SYN that the rules admit begins anew ({what})"
            ),
        ),
        (Some(after), None) if after.direction == 1 && !again => {
            step("session", Mark::Pass, format!("known: it passes as an answer ({what})"))
        }
        (Some(_), None) if !again => {
            step("session", Mark::Pass, format!("known: it passes by it ({what})"))
        }
        (_, Some((reason, _))) if !again => dropped("session", reason),
        _ => step(
            "session",
            Mark::Note,
            format!("known, but what admitted it changed: it is decided again ({what})"),
        ),
    }
}

fn let_out(sender: &Vnic, by: &Admission) -> String {
    match by {
        Admission::OtherHost => "left to the host that it comes from".into(),
        Admission::Bypass => format!("{} bypasses filters", sender.id),
        Admission::DefaultEgress => format!(
            "{} has no OUTBOUND rules: what comes from its own addresses may leave",
            sender.id
        ),
        Admission::Rule { group, rule } => {
            format!("{} may send it by group {group}: {}", sender.id, told(rule))
        }
        Admission::Gone => format!("{} may send it without a rule", sender.id),
    }
}

fn let_in(receiver: &Vnic, by: &Admission) -> String {
    match by {
        Admission::OtherHost => "left to the host that it goes to".into(),
        Admission::Bypass => format!("{} bypasses filters", receiver.id),
        Admission::Rule { group, rule } => {
            format!("{} may get it by group {group}: {}", receiver.id, told(rule))
        }
        Admission::DefaultEgress | Admission::Gone => {
            format!("{} may get it without a rule", receiver.id)
        }
    }
}

/// Returns the step of a packet whose receiver takes it.
pub(super) fn delivery(receiver: &Vnic, free: Option<u16>) -> Step {
    let text = match free {
        Some(free) => format!("the guest of {} offers {free} buffers", receiver.id),
        None => format!("{} is being given frames all the time", receiver.id),
    };
    step("delivery", Mark::Pass, text)
}

/// Returns the step of a packet that goes to several receivers.
pub(super) fn flooded(here: &[String], details: Vec<String>) -> Step {
    let text = match here {
        [] => "nobody on this host gets it".to_owned(),
        here => format!("on this host: {}", here.join(", ")),
    };
    Step { details, ..step("delivery", Mark::Note, text) }
}

/// Returns the step of a packet that leaves for a host.
pub(super) fn leaves(context: &Context<'_>, vni: u32, to: IpAddr, group: bool) -> Option<Step> {
    let what = if group { "the group of the network" } else { "host" };
    let text = format!(
        "leaves in VXLAN, VNI {vni}, to {what} {to}; it fits the MTU of {} inside",
        context.tunnel?.inner_mtu()
    );
    Some(step("tunnel", Mark::Pass, text))
}

/// Returns the step of a packet that waits for its next hop.
pub(super) fn waits(to: IpAddr) -> Step {
    let text = format!(
        "the next hop to {to} is not known yet: the packet waits for it, others until then are no-neighbour"
    );
    step("tunnel", Mark::Note, text)
}

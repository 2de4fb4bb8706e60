//! Filter: what may pass to and from a filtered vnic, statefully.
//!
//! A frame whose session is known passes by it, whatever the rules; else the sender's groups decide
//! whether it may leave and the receiver's whether it may enter, and it makes a session. In four
//! passes over a batch, so that a lookup's misses overlap: read all frames, hash them, find all
//! records, then judge. What is not plain TCP or UDP takes [`slow`].

mod dhcp;
mod fast;
mod pace;
mod room;
mod session_of;
mod share;
mod slow;

use butterfly_vhost::ring::Slot;

use crate::{
    batch::{Batch, Context, Verdict},
    flow::tcp::{self, Outcome},
    inside::Inside,
    reason::{DropReason, drop_reasons},
    session::{Found, Key, State},
    snapshot::Vnic,
};

pub(crate) use dhcp::DhcpState;
pub(crate) use pace::Pace;
use room::Notes;
pub(crate) use room::{Judged, Room};
pub(crate) use session_of::session_of;
pub(crate) use share::{Share, full_shares, may_give_way, released, rests};
pub(crate) use slow::{admits_flooded, note_flooded, read as read_packet, rule_port, rules_say};

drop_reasons! { 4;
    /// No rule of the sending vnic's security groups lets it out.
    EGRESS_DENIED = "egress-denied" {
        cause: "the first OUTBOUND rule of a vnic's groups ends \"everything may leave\"; what DHCP servers and routers say is not part of \"everything\": an answer of DHCP that no request asked for, a redirect",
        remedy: "add what the packet needs to one of its groups (`butterfly nic sg list NIC`): `butterfly sg rule add SG --dir out --ip-proto PROTO --port PORT --cidr DESTINATION/32`; a DHCP server needs INBOUND rules for UDP 67 and, over IPv6, 547; a router `butterfly nic update --id NIC --router true` and an OUTBOUND rule for protocol 58. The first OUTBOUND rule of a vnic's groups ends \"everything may leave\", so add one for all else as well",
        charged: "the sender",
    }
    /// No rule of the receiving vnic's security groups lets it in.
    INGRESS_DENIED = "ingress-denied" {
        cause: "no group of the vnic has such a rule, or it is about members of a group that the packet's source is not among",
        remedy: "add what the packet needs to one of its groups (`butterfly nic sg list NIC`): `butterfly sg rule add SG --ip-proto PROTO --port PORT --cidr SOURCE/32`, or `butterfly sg member add GROUP SOURCE`",
        charged: "the receiver",
    }
    /// What machines say to routers by multicast, router solicitations and IGMP reports, and no rule of the receiving vnic lets in.
    FOR_ROUTERS = "for-routers" {
        harmless: true,
        cause: "a machine of the network starts: it asks all routers for their prefixes, and all snooping switches for its groups",
        remedy: "nothing; only a vnic whose machine is a router needs it: `butterfly sg rule add SG --ip-proto icmpv6 --cidr ::/0`, for IGMP `butterfly sg rule add SG --ip-proto 2`",
        charged: "the receiver",
    }
    /// IP to or from a filtered vnic behind several VLAN tags or LLC, or with a type that contradicts its version.
    IP_HIDDEN = "ip-hidden" {
        cause: "stacked VLANs or SNAP where a filter cannot follow, or an attempt to go round it",
        remedy: "send IP behind one VLAN tag at most; between two vnics that were added with `--bypass-filtering` everything passes",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The source address is not one of the sending vnic's.
    SPOOFED_IP = "spoofed-ip" {
        cause: "an address that was not declared, or a machine that routes, bridges or runs containers",
        remedy: "declare all of its addresses, as the new list replaces the old one: `butterfly nic update --id NIC --ip ADDRESS..`; a router needs `butterfly nic add --id NIC ... --bypass-filtering --forwards`",
        charged: "the sender",
    }
    /// A TCP segment that does not fit its connection: out of window.
    TCP_WINDOW = "tcp-window" {
        cause: "a very late or a forged segment, or a connection of which one direction takes another way",
        remedy: "nothing for a few; for many, see the connection in `butterfly sessions NIC --proto tcp`, let both directions pass here, and open it anew",
        charged: "the receiver if it is filtered, else the sender",
    }
    /// A TCP segment that opens no connection and belongs to none that is known.
    TCP_NO_SESSION = "tcp-no-session" {
        cause: "a connection that was silent for longer than its time-out, whose rule was taken away, or that is older than the daemon and was not picked up in time",
        remedy: "open the connection anew; if it was silent for long, use TCP keepalive or a longer `butterflyd --timeout tcp-established=SECONDS`; if it is older than the daemon, `--tcp-pickup SECONDS`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// An SCTP packet that opens no association and belongs to none that is known.
    SCTP_NO_SESSION = "sctp-no-session" {
        cause: "an association that was silent for longer than its time-out, or that is older than the daemon",
        remedy: "open the association anew; if it was silent for long, use heartbeats or a longer `butterflyd --timeout sctp-established=SECONDS`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The table of sessions is full, or all of it that is not reserved for other networks, and none in it may go.
    SESSIONS_FULL = "sessions-full" {
        cause: "a scan or flood that opens sessions, or more connections than the table was made for; half of it is reserved, in equal parts, for the networks with filtered vnics",
        remedy: "`butterfly sessions --count` and `butterfly sessions NIC --count` tell who has them: stop it, or start butterflyd with a larger `--sessions`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// This vnic, or its network, has its share of all sessions already, and among those looked at none that is not established.
    SESSION_SHARE = "session-share" {
        cause: "a scan or flood that opens sessions, one machine that has most of the host's connections, or a quarter of what one machine may receive",
        remedy: "`butterfly sessions NIC --count` tells how many it has, `--vni VNI --count` how many its network has; start butterflyd with more `--sessions` or a larger `--session-share`",
        charged: "the vnic that has its share: who opened the sessions before who received them; if its network has, the sender",
    }
    /// The vnic opens sessions faster than it may: more than 200,000 per second, after 100,000 at once.
    SESSION_RATE = "session-rate" {
        cause: "a scan or flood that opens sessions",
        remedy: "`butterfly trace NIC` shows what it sends: stop it in the machine; spread a load generator, or a gateway of very many machines, over several vnics",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// There are four sessions of the same addresses, ports and protocol in this network already, between other vnics.
    SESSION_COPIES = "session-copies" {
        cause: "a machine that sends one flow to many MAC addresses, or addresses that many machines use",
        remedy: "nothing for a scan; else give each machine addresses of its own, or wait for the time-out of the older ones",
        charged: "the sender, or the network if the frame came from another host",
    }
}

/// How a frame's session is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    /// Nothing to decide, or decided.
    Done,
    /// Plain TCP or UDP: the key is known.
    Fast,
    /// To be parsed.
    Slow,
}

/// What is known of a frame between the passes.
#[derive(Clone, Copy)]
struct Flow {
    path: Path,
    tcp: bool,
    receiver: u32,
    hash: u64,
    candidate: Option<u32>,
    key: Key,
    segment: tcp::Segment,
}

/// Decides all frames that go to one vnic, and whether floods may leave. Floods meet each
/// receiver's policy when they are delivered.
#[inline(never)] // one call per batch; measurements tell stages apart by it
pub(crate) fn filter(batch: &mut Batch<'_>, context: &Context<'_>, room: &mut Room) {
    if !context.network.filtered {
        return;
    }
    let pending = read(batch, context, room);
    if pending.fast {
        hash(batch, context, room);
        find(batch, context, room);
    }
    if pending.fast || pending.slow {
        judge(batch, context, room);
        room.notes.flush(context);
    }
}

#[derive(Default)]
struct Pending {
    fast: bool,
    slow: bool,
}

/// First pass: what each frame is.
fn read(batch: &mut Batch<'_>, context: &Context<'_>, room: &mut Room) -> Pending {
    let sender = context.sender;
    let bypass = sender.rules.bypass;
    let mut pending = Pending::default();
    let (frames, metas) = batch.parts();
    let mut last = (u32::MAX, false);
    for (((frame, slot), meta), flow) in
        frames.each().zip(metas.iter_mut()).zip(room.flows.iter_mut())
    {
        flow.path = Path::Done;
        let receiver = match meta.verdict {
            Verdict::Deliver(receiver) => receiver,
            Verdict::Tunnel(_) => match &context.network.remote {
                Some(remote) => remote.slot,
                None => continue,
            },
            Verdict::Flood { .. } => {
                flow.path = Path::Slow;
                pending.slow = true;
                continue;
            }
            _ => continue,
        };
        if last.0 != receiver {
            last = (
                receiver,
                context.snapshot.vnics.get(receiver).is_some_and(|vnic| vnic.rules.bypass),
            );
        }
        if bypass && last.1 {
            continue;
        }
        match meta.inside {
            Inside::Ip { .. } => {}
            Inside::HiddenIp | Inside::Unknown => {
                // Who hides IP is to blame. Unknown cannot be: headers() looks inside when someone
                // is filtered.
                meta.verdict = Verdict::Drop(IP_HIDDEN, sender.place.slot);
                continue;
            }
            Inside::Arp(_) | Inside::Rarp | Inside::NonIp => continue,
        }
        flow.receiver = receiver;
        flow.path = Path::Slow;
        if let Some((tuple, segment)) = fast::read(Slot::bytes(slot), frame.len) {
            flow.path = Path::Fast;
            flow.tcp = segment.is_some();
            if let Some(segment) = segment {
                flow.segment = segment;
            }
            flow.key = Key::new(&tuple, sender.vni, sender.place.slot, receiver);
            pending.fast = true;
        } else {
            pending.slow = true;
        }
    }
    pending
}

/// Second pass: the bucket of each flow on its way into the cache.
fn hash(batch: &Batch<'_>, context: &Context<'_>, room: &mut Room) {
    let flows = room.flows.get_mut(..batch.frames.len()).unwrap_or_default().iter_mut();
    context.table.hash_each(
        flows.filter(|flow| flow.path == Path::Fast),
        |flow| &flow.key,
        |flow, hash| flow.hash = hash,
    );
}

/// Third pass: the record of each flow on its way into the cache.
fn find(batch: &Batch<'_>, context: &Context<'_>, room: &mut Room) {
    for flow in room.flows.get_mut(..batch.frames.len()).unwrap_or_default() {
        if flow.path == Path::Fast {
            flow.candidate = context.table.candidate(flow.hash);
        }
    }
}

/// Fourth pass, in the order of the frames.
fn judge(batch: &mut Batch<'_>, context: &Context<'_>, room: &mut Room) {
    let mut receiver: Option<&Vnic> = None;
    for index in 0..batch.frames.len() {
        let Some(flow) = room.flows.get(index) else { return };
        let judgement = match flow.path {
            Path::Done => continue,
            Path::Fast => {
                if receiver.is_none_or(|vnic| vnic.place.slot != flow.receiver) {
                    receiver = context.snapshot.vnics.get(flow.receiver).map(|vnic| &**vnic);
                }
                let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
                match receiver
                    .and_then(|receiver| established(flow, len, receiver, context, &mut room.notes))
                {
                    Some(Ok(())) => continue,
                    Some(refused) => refused,
                    None => slow::judge(batch, index, context, room),
                }
            }
            Path::Slow => slow::judge(batch, index, context, room),
        };
        if let Err((reason, slot)) = judgement
            && let Some(meta) = batch.parts().1.get_mut(index)
        {
            meta.verdict = Verdict::Drop(reason, slot);
        }
    }
}

/// A refusal, and the slot of the vnic it is charged to.
type Judgement = Result<(), (DropReason, u32)>;

/// Passes a frame by its session, if that is known and nothing about it has changed.
#[inline(always)]
fn established(
    flow: &Flow,
    len: u32,
    receiver: &Vnic,
    context: &Context<'_>,
    notes: &mut Notes,
) -> Option<Judgement> {
    let found = context.table.check(flow.candidate?, &flow.key)?;
    if !is_current(&found, context, receiver) || (found.direction == 1 && !found.admission.answers)
    {
        return None;
    }
    let segment = if flow.tcp { Some(&flow.segment) } else { None };
    pass(&found, segment, len, receiver, context, notes)
}

/// Whether nothing was taken back since the session was decided.
#[inline(always)]
fn is_current(found: &Found, context: &Context<'_>, receiver: &Vnic) -> bool {
    let stamp = found.admission.stamp;
    let [egress, ingress] = found.admission.cells;
    let cells = context.cells;
    let newest = context
        .sender
        .since
        .max(receiver.since)
        .max(cells.taken_back(egress))
        .max(cells.taken_back(ingress));
    stamp >= newest
}

/// Lets a frame pass by a session that holds, and notes it. `None` if the session is over.
#[inline(always)]
fn pass(
    found: &Found,
    segment: Option<&tcp::Segment>,
    len: u32,
    receiver: &Vnic,
    context: &Context<'_>,
    notes: &mut Notes,
) -> Option<Judgement> {
    let (note, track) = notes.of(found.index, found.direction, context)?;
    if let Some(segment) = segment {
        let (next, outcome) = tcp::step(*track, found.direction, segment);
        match outcome {
            Outcome::Pass => {
                if next != *track {
                    *track = next;
                    note.moved = true;
                }
                note.refreshed = true;
            }
            Outcome::PassUnrefreshed => {}
            // The slow path has asked before; no other sees a SYN.
            Outcome::Refuse | Outcome::Ask => {
                return Some(Err((TCP_WINDOW, charged(context, receiver))));
            }
            Outcome::Reopen => return None,
        }
    } else {
        note.refreshed = true;
        if found.direction == 1 {
            note.state = State::answered(note.state);
        }
    }
    note.packets += 1;
    note.bytes += u64::from(len);
    Some(Ok(()))
}

/// Whose protection refused a frame: the receiver's if it is filtered.
fn charged(context: &Context<'_>, receiver: &Vnic) -> u32 {
    if receiver.rules.bypass { context.sender.place.slot } else { receiver.place.slot }
}

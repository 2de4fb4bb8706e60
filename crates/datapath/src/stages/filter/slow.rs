//! Decides everything but plain traffic of known sessions: new sessions, sessions that are decided
//! again, fragments, ICMP errors, discovery, DHCP, floods.
//!
//! A connection goes along with a vnic that moves to another host: its next segment comes from the
//! other place, which is a miss. The new session takes over the TCP marks of the old one, if the
//! segment fits its window; whether it may go on is decided as if its opener began it today. So the
//! TCP sessions of a departed vnic are kept for `--tcp-pickup` seconds, or until the new session is
//! there.

use std::{net::Ipv4Addr, sync::atomic::Ordering::Relaxed};

use butterfly_packet::{
    icmp::{v4, v6},
    protocol::{ICMP, ICMPV6, IGMP, UDP},
};

use crate::engine::{
    batch::{Batch, Verdict},
    inside::Inside,
    reason::DropReason,
};
use crate::ip::{
    Address, BAD_DISCOVERY, DHCP_LIMIT, DISCOVERY_LIMIT, Dhcp, FRAGMENT_ORPHAN, L4, Packet, Piece,
    Quoted, discovery,
    fragments::FragmentKey,
    is_v4, mapped,
    tcp::{self, Outcome, TcpState, Track},
};
use crate::session::{Admitted, Found, Key, Life, NO_TRACK, NotInserted, Record, State};
use crate::stages::filter::reasons::{
    EGRESS_DENIED, FOR_ROUTERS, INGRESS_DENIED, IP_HIDDEN, SCTP_NO_SESSION, SESSION_COPIES,
    SESSION_RATE, SESSIONS_FULL, SPOOFED_IP, TCP_NO_SESSION,
};
use crate::stages::filter::{
    FilterRoom, Judgement,
    dhcp::{self, ToClient},
    is_current, pass,
    read::read,
    room::{Flooded, FragmentDecision, Judged},
    share::{acquired, full_shares, may_give_way, may_open, released, rest, rests},
};
use crate::stages::{
    claims::{IP_CLAIMED, has_link_local, is_claimed},
    context::Context,
};
use crate::world::{bindings::Voice, snapshot::Vnic};

/// All routers, and all IGMPv3 routers.
const TO_ROUTERS: [Address; 2] =
    [mapped(Ipv4Addr::new(224, 0, 0, 2)), mapped(Ipv4Addr::new(224, 0, 0, 22))];

/// A connection that policy took back.
const CUT: State = State::Tcp(TcpState::Cut);

/// Judges a frame whose session is not known yet, or that has none.
#[inline(never)]
pub(super) fn judge(
    batch: &mut Batch<'_>,
    index: usize,
    context: &Context<'_>,
    room: &mut FilterRoom,
) -> Judgement {
    let Some(meta) = batch.metas().get(index).copied() else { return Ok(()) };
    if index == 0
        && matches!(meta.verdict, Verdict::Flood { .. })
        && let (Some(judged), Some(place)) = (room.judged, room.flooded.first_mut())
        && judged.version == context.snapshot.version
    {
        *place = judged.flooded;
        return Ok(());
    }
    let own = context.sender.place.slot;
    let exit = context.exit(batch.exits(), index);
    let len = batch.frames.frames().get(index).map_or(0, |frame| frame.len);
    let read = match meta.inside {
        Inside::Ip { at, vlan } => Some(read(batch, index, at, vlan, len)),
        _ => None,
    };
    let receiver = match meta.verdict {
        Verdict::Deliver(slot) => Some(slot),
        // An address that no vnic here owns is on another host, if the network spans hosts. Then
        // the packet is part of one conversation, like any other.
        Verdict::Flood { unknown: true } if !context.sender.rules.bypass => {
            context.remote_of(exit).map(|remote| remote.slot)
        }
        Verdict::Tunnel(_) => context.remote_of(exit).map(|remote| remote.slot),
        _ => None,
    };
    match (meta.verdict, read) {
        (Verdict::Deliver(_) | Verdict::Tunnel(_) | Verdict::Flood { .. }, Some(read))
            if receiver.is_some() =>
        {
            let packet = read.map_err(|reason| (reason, own))?;
            let Some(receiver) = receiver.and_then(|slot| context.snapshot.vnics.get(slot)) else {
                return Ok(());
            };
            Decision { context, receiver, packet: &packet, len }.judge(room)
        }
        (Verdict::Flood { .. }, read) => {
            let unknown = meta.verdict == (Verdict::Flood { unknown: true });
            let before = room.judged.filter(|_| index == 0);
            let (flooded, judgement) =
                judge_flooded((meta.inside, read), before, unknown, context, room);
            if let Some(place) = room.flooded.get_mut(index) {
                *place = flooded;
            }
            judgement
        }
        _ => Ok(()),
    }
}

/// Checks whether a vnic, or the trunk, may send packets from an address.
fn may_speak_as(vnic: &Vnic, address: Address, context: &Context<'_>) -> Result<(), DropReason> {
    match vnic.rules.bypass {
        false if vnic.rules.owns(address) => Ok(()),
        false => Err(SPOOFED_IP),
        true if vnic.rules.forwards || !is_claimed(vnic, address, Voice::Speaking, context) => {
            Ok(())
        }
        true => Err(IP_CLAIMED),
    }
}

/// One packet on its way to one receiver.
struct Decision<'a> {
    context: &'a Context<'a>,
    receiver: &'a Vnic,
    packet: &'a Packet,
    len: u32,
}

/// A session to be made, and the end whose frame makes it.
struct Session {
    key: Key,
    direction: usize,
    admission: Admitted,
    state: State,
    track: Track,
}

/// Cells of the rules that admit a packet at both ends.
type CellPair = [u32; 2];

impl Decision<'_> {
    fn own(&self) -> u32 {
        self.context.sender.place.slot
    }

    fn judge(&self, room: &mut FilterRoom) -> Judgement {
        let Packet { l4, fragment, .. } = self.packet;
        match (l4, fragment) {
            (L4::Fragment, Some(piece)) => self.fragment(piece, room),
            (L4::Discovery(_) | L4::Dhcp(_), _) => self.sessionless(),
            (L4::Error(quoted), _) => self.error(quoted, room),
            (L4::Icmp { .. } | L4::Echo { request: false }, None) => {
                self.known(room).unwrap_or_else(|| self.sessionless())
            }
            (L4::Icmp { .. }, Some(piece)) => self.sessionless_fragments(piece, room),
            // DHCP in fragments has no session, like whole DHCP: a request gives a server no right
            // to answer.
            (L4::Udp, Some(piece)) if is_dhcp(self.packet) => {
                self.sessionless_fragments(piece, room)
            }
            (_, None) => self.known(room).unwrap_or_else(|| self.new_session(room)),
            (_, Some(piece)) => {
                self.known(room).unwrap_or_else(|| self.new_session(room))?;
                let admission = self.admission();
                self.first_fragment(piece, admission.stamp, admission.cells, room)
            }
        }
    }

    /// Decides by rules alone, and remembers the decision for later fragments.
    fn sessionless_fragments(&self, piece: &Piece, room: &mut FilterRoom) -> Judgement {
        let cells = self.decide()?;
        self.first_fragment(piece, self.context.snapshot.version, cells, room)
    }

    /// Decides by rules alone, and by the exceptions that need none.
    fn sessionless(&self) -> Judgement {
        let context = self.context;
        leaves(context.sender, self.packet, context)?;
        enters(self.receiver, self.packet, context)
            .map_err(|reason| (reason, self.receiver.place.slot))?;
        if let L4::Dhcp(found) = &self.packet.l4 {
            dhcp::left(found, &self.packet.tuple, context);
            dhcp::entered(found, self.receiver, &self.packet.tuple, context);
        }
        Ok(())
    }

    /// Returns the decision of the rules at both ends on a packet in its own direction.
    fn decide(&self) -> Result<CellPair, (DropReason, u32)> {
        let egress = leaves(self.context.sender, self.packet, self.context)?;
        let ingress = enters(self.receiver, self.packet, self.context)
            .map_err(|reason| (reason, self.receiver.place.slot))?;
        Ok([egress, ingress])
    }

    fn key(&self) -> Key {
        Key::new(&self.packet.tuple, self.context.sender.vni, self.own(), self.receiver.place.slot)
    }

    fn segment(&self) -> Option<&tcp::Segment> {
        match &self.packet.l4 {
            L4::Tcp(segment) => Some(segment),
            _ => None,
        }
    }

    /// Decides by a session, if there is one that holds or that the rules still admit.
    fn known(&self, room: &mut FilterRoom) -> Option<Judgement> {
        let context = self.context;
        let key = self.key();
        let mut found = context.table.lookup(context.table.hash(&key), &key)?;
        let stored = if found.direction == 0 { key } else { key.reversed() };
        // An echo whose identifier is a type looks the same in both directions. The asking side
        // tells them apart.
        if let L4::Echo { request } = self.packet.l4
            && request != (found.direction == 0)
        {
            return None;
        }
        if found.admission.stamp < context.sender.born.max(self.receiver.born) {
            // Of an earlier vnic in the place of one of these.
            self.end(&found, &stored, room);
            return None;
        }
        if context.table.record(found.index).seen().1 == CUT {
            return self.cut_before(&found, &stored, room);
        }
        if !is_current(&found, context, self.receiver) {
            match self.decide_again(&stored, found.direction) {
                // If another thread holds the record's lock for long, the next frame decides once
                // more.
                Some(admission)
                    if context.table.readmit(found.index, &stored, admission)
                        || context.table.check(found.index, &key).is_some() =>
                {
                    found.admission = admission;
                }
                None if self.is_live_tcp(&found, room) => {
                    context.table.cut(found.index, &stored, context.now);
                    return self.cut_before(&found, &stored, room);
                }
                _ => {
                    self.end(&found, &stored, room);
                    return None;
                }
            }
        }
        if found.direction == 1 && !found.admission.answers {
            if let Err(reason) = may_speak_as(context.sender, self.packet.tuple.source, context) {
                return Some(Err((reason, self.own())));
            }
            // The responder got the address after the session began.
            context.table.answers(found.index, &stored, found.admission.stamp);
        }
        if let Some(segment) = self.segment()
            && segment.opens()
            && let Some((_, track)) = room.notes.of(found.index, found.direction, context)
            && tcp::step(*track, found.direction, segment).1 == Outcome::Ask
        {
            return Some(self.decide().map(|_| ()));
        }
        // The rules admitted the association's opener only: the other end needs a rule of its own
        // to open one.
        if let L4::Sctp { init: true, .. } = self.packet.l4
            && found.direction == 1
        {
            return Some(self.decide().map(|_| ()));
        }
        let judgement =
            pass(&found, self.segment(), self.len, self.receiver, context, &mut room.notes);
        if judgement.is_none() {
            self.end(&found, &stored, room);
        }
        judgement
    }

    fn is_live_tcp(&self, found: &Found, room: &mut FilterRoom) -> bool {
        let context = self.context;
        room.notes.forget(found.index, context);
        let (seen, state) = context.table.record(found.index).seen();
        matches!(state, State::Tcp(_)) && !context.timeouts.over(state, seen, context.now)
    }

    /// Decides on a packet of a TCP connection that policy took back: only a SYN that the rules
    /// admit opens a new one. The connection is remembered for a while. Otherwise a packet of the
    /// end that may open connections would look like one of an older connection, and be picked up.
    fn cut_before(&self, found: &Found, stored: &Key, room: &mut FilterRoom) -> Option<Judgement> {
        let (seen, state) = self.context.table.record(found.index).seen();
        if !self.context.timeouts.over(state, seen, self.context.now) {
            match self.decide() {
                Err(refusal) => return Some(Err(refusal)),
                Ok(_) if self.segment().is_some_and(tcp::Segment::opens) => {}
                Ok(_) => return Some(Err((TCP_NO_SESSION, self.own()))),
            }
        }
        self.end(found, stored, room);
        None
    }

    /// Returns the admission of an old session's first frame by the rules of now, if they admit it.
    fn decide_again(&self, stored: &Key, direction: usize) -> Option<Admitted> {
        let context = self.context;
        let (opener, responder) = if direction == 0 {
            (context.sender, self.receiver)
        } else {
            (self.receiver, context.sender)
        };
        let opening = Packet { tuple: stored.tuple(), ..*self.packet };
        let egress = by_rules_leaves(opener, &opening, context).ok()?;
        let ingress = by_rules_enters(responder, &opening, context).ok()?;
        Some(Admitted {
            stamp: context.snapshot.version,
            cells: [egress, ingress],
            answers: may_speak_as(responder, opening.tuple.destination, context).is_ok(),
        })
    }

    fn end(&self, found: &Found, stored: &Key, room: &mut FilterRoom) {
        room.notes.forget(found.index, self.context);
        if self.context.table.remove(found.index, stored) {
            release(self.context, stored, found.admission.stamp);
        }
    }

    fn new_session(&self, room: &mut FilterRoom) -> Judgement {
        let context = self.context;
        if let L4::Tcp(segment) = &self.packet.l4
            && !segment.opens()
            && let Some((session, was, stored)) = self.inherited(segment, room)
        {
            let made = self.make(&session, room);
            let one_too_many = matches!(made, Err((SESSION_COPIES, _)));
            // The session is in one place: when its end comes back, the old record of it is out of
            // date.
            if made.is_ok() || one_too_many {
                self.end(&was, &stored, room);
            }
            return if one_too_many { self.make(&session, room) } else { made };
        }
        let cells = self.decide()?;
        let state = self.opening().map_err(|reason| (reason, self.own()))?;
        let Some((state, track)) = state else { return Ok(()) };
        let answers = may_speak_as(self.receiver, self.packet.tuple.destination, context).is_ok();
        let admission = Admitted { stamp: context.snapshot.version, cells, answers };
        self.make(&Session { key: self.key(), direction: 0, admission, state, track }, room)
    }

    fn make(&self, session: &Session, room: &mut FilterRoom) -> Judgement {
        let context = self.context;
        let Session { key, direction, admission, state, track } = *session;
        let life = Life { now: context.now, state, track };
        let hash = context.table.hash(&key);
        if !may_open(self.packet.tuple.source, context) {
            return Err((SESSION_RATE, self.own()));
        }
        self.share(&key, hash, room)?;
        let may_evict = |record: &Record<'_>| may_give_way(record, context);
        let mut evicted = None;
        let inserted = context.table.insert(
            hash,
            &key,
            admission,
            &life,
            may_evict,
            |index, gone, admission| {
                evicted = Some(index);
                release(context, gone, admission.stamp);
            },
        );
        if let Some(index) = evicted {
            room.notes.forget_evicted(index);
        }
        let index = match inserted {
            Ok(index) => index,
            // Another worker was faster, and decided the same.
            Err(NotInserted::Exists) => return Ok(()),
            Err(NotInserted::Full) => return Err((SESSIONS_FULL, self.own())),
            Err(NotInserted::Copies) => return Err((SESSION_COPIES, self.own())),
        };
        acquired(context, &key);
        admission.cells.into_iter().for_each(|cell| context.cells.count(cell));
        let record = context.table.record(index);
        record.count(direction, 1, self.len.into());
        Ok(())
    }

    /// Returns a session that one of its ends took along to another host, or from there. Its TCP
    /// record stays. The rules decide again whether it may go on, as if its opener began it with
    /// the ports of now.
    fn inherited(
        &self,
        segment: &tcp::Segment,
        room: &mut FilterRoom,
    ) -> Option<(Session, Found, Key)> {
        let context = self.context;
        let trunk = context.entry.remote.as_ref()?.slot;
        // Changes that the batch did not write yet count.
        room.notes.flush(context);
        let key = self.key();
        // There may be several that are over, or that a vnic left behind that moved more than once.
        context.table.find_map(context.table.hash(&key), |index, stored, admission| {
            let session = self.moved(segment, trunk, index, &stored, admission)?;
            let was = Found { index, direction: session.direction, admission };
            Some((session, was, stored))
        })
    }

    /// Checks one session for [`Self::inherited`]. `None` if the packet is not of it, or none of
    /// its ends moved.
    fn moved(
        &self,
        segment: &tcp::Segment,
        trunk: u32,
        index: u32,
        stored: &Key,
        admission: Admitted,
    ) -> Option<Session> {
        let context = self.context;
        let (sender, receiver, tuple) = (context.sender, self.receiver, self.packet.tuple);
        let (opener, responder) = stored.slots();
        if stored.vni() != sender.vni {
            return None;
        }
        let (direction, mine, theirs) = if stored.tuple() == tuple {
            (0, opener, responder)
        } else if stored.tuple().reversed() == tuple {
            (1, responder, opener)
        } else {
            return None;
        };
        let (stays, from, to, address) =
            match (mine == sender.place.slot, theirs == receiver.place.slot) {
                (true, false) => (sender, theirs, receiver.place.slot, tuple.destination),
                (false, true) => (receiver, mine, sender.place.slot, tuple.source),
                _ => return None,
            };
        if ![from, to].contains(&trunk) {
            return None;
        }
        let line = context.table.record(index).line2();
        let State::Tcp(_) = line.state else { return None };
        if admission.stamp < stays.born || context.timeouts.over(line.state, line.seen, context.now)
        {
            return None;
        }
        let (track, Outcome::Pass) = tcp::step(line.track, direction, segment) else { return None };
        let (opener, responder) =
            if direction == 0 { (sender, receiver) } else { (receiver, sender) };
        let opening = Packet { tuple: stored.tuple(), ..*self.packet };
        let answers = may_speak_as(responder, opening.tuple.destination, context).is_ok();
        if direction == 1 && !answers {
            return None;
        }
        let cells = [
            by_rules_leaves(opener, &opening, context).ok()?,
            by_rules_enters(responder, &opening, context).ok()?,
        ];
        // A filtered vnic that is here, and has the address, did not move, and no earlier vnic with
        // that address speaks for it.
        let is_here = |slot: &u32| {
            let vnic = context
                .snapshot
                .vnics
                .get(*slot)
                .filter(|vnic| !vnic.rules.bypass && context.snapshot.keeps_addresses(vnic));
            *slot != to
                && *slot != stays.place.slot
                && vnic.is_some_and(|vnic| vnic.rules.owns(address))
        };
        if context
            .entry
            .holders
            .get(address)
            .is_some_and(|holding| holding.slots.iter().any(is_here))
        {
            return None;
        }
        Some(Session {
            key: Key::new(&opening.tuple, stored.vni(), opener.place.slot, responder.place.slot),
            direction,
            admission: Admitted { stamp: context.snapshot.version, cells, answers },
            state: State::Tcp(track.state),
            track,
        })
    }

    /// Returns the admission of the packet's session.
    fn admission(&self) -> Admitted {
        let key = self.key();
        match self.context.table.lookup(self.context.table.hash(&key), &key) {
            Some(found) => found.admission,
            // It needs none: the rules admit each packet.
            None => match self.decide() {
                Ok(cells) => {
                    Admitted { stamp: self.context.snapshot.version, cells, answers: false }
                }
                Err(_) => Admitted { stamp: 0, cells: [0; 2], answers: false },
            },
        }
    }

    /// Returns the state of a session that this packet opens; `None` if it needs none.
    fn opening(&self) -> Result<Option<(State, Track)>, DropReason> {
        let plain = |state| Ok(Some((state, NO_TRACK)));
        match &self.packet.l4 {
            L4::Tcp(segment) if segment.opens() => {
                let track = tcp::open(segment);
                Ok(Some((State::Tcp(track.state), track)))
            }
            L4::Tcp(segment) if segment.picks_up() && self.may_pick_up() => {
                let track = tcp::pick_up(segment);
                Ok(Some((State::Tcp(track.state), track)))
            }
            L4::Tcp(_) => Err(TCP_NO_SESSION),
            L4::Udp => plain(State::UdpNew),
            L4::Echo { request: true } => plain(State::Echo),
            L4::Sctp { init: true, .. } => plain(State::SctpNew),
            L4::Sctp { .. } => Err(SCTP_NO_SESSION),
            L4::Other => plain(State::OtherNew),
            _ => Ok(None),
        }
    }

    /// Returns whether a TCP connection may be picked up: it may be older than the daemon, or than
    /// one of the vnics.
    fn may_pick_up(&self) -> bool {
        let window = self.context.tcp_pickup;
        [self.context.sender, self.receiver].iter().any(|vnic| {
            let attached = vnic.shared.attached.load(Relaxed);
            attached != 0 && self.context.now.wrapping_sub(attached) < window
        })
    }

    /// Makes room in the shares of a session that are used up: another session that is not
    /// established goes, or this one is refused.
    fn share(&self, key: &Key, hash: u64, room: &mut FilterRoom) -> Judgement {
        let context = self.context;
        for whose in full_shares(context, key) {
            let may_give = |record: &Record<'_>| whose.may_give(record, context);
            if rests(context) {
                return Err((whose.reason, whose.slot));
            }
            if !self.give_up(hash, may_give, room) {
                rest(context);
                return Err((whose.reason, whose.slot));
            }
        }
        Ok(())
    }

    /// Removes a session near a hash that may go. Returns whether there was one.
    fn give_up(
        &self,
        hash: u64,
        may_give: impl FnMut(&Record<'_>) -> bool,
        room: &mut FilterRoom,
    ) -> bool {
        let context = self.context;
        let mut evicted = None;
        let made = context.table.make_room(hash, may_give, |index, gone, admission| {
            evicted = Some(index);
            release(context, gone, admission.stamp);
        });
        if let Some(index) = evicted {
            room.notes.forget_evicted(index);
        }
        made
    }

    /// Decides an ICMP error by the session of the packet that it quotes.
    fn error(&self, quoted: &Quoted, room: &mut FilterRoom) -> Judgement {
        // An error goes to the sender of the quoted packet (RFC 792, RFC 4443, 2.2). It must not
        // pass the rules to another machine behind the same port.
        let addressed = self.packet.tuple.destination == quoted.tuple.source;
        if !addressed || !self.quotes_a_session(quoted, room) {
            return self.sessionless();
        }
        may_speak_as(self.context.sender, self.packet.tuple.source, self.context)
            .map_err(|reason| (reason, self.own()))
    }

    /// Returns whether an error quotes a packet of a session that the receiver of the error sent,
    /// and the error's sender may know of that session.
    fn quotes_a_session(&self, quoted: &Quoted, room: &mut FilterRoom) -> bool {
        let context = self.context;
        // Changes that the batch did not write yet count.
        room.notes.flush(context);
        let key = Key::new(&quoted.tuple, context.sender.vni, self.receiver.place.slot, 0);
        // The quoted packet may have gone to any vnic: there may be sessions with several, over or
        // not.
        let found = context.table.find_map(context.table.hash(&key), |index, stored, admission| {
            self.quotes(quoted, index, &stored, admission).filter(|_| stored.vni() == key.vni())
        });
        found.is_some()
    }

    /// Checks one session for [`Self::quotes_a_session`]. `None` if the error quotes no packet of
    /// it, or it does not hold.
    fn quotes(&self, quoted: &Quoted, index: u32, stored: &Key, admission: Admitted) -> Option<()> {
        let context = self.context;
        let own = self.receiver.place.slot;
        let (opener, responder) = stored.slots();
        let (direction, other) = if stored.tuple() == quoted.tuple && opener == own {
            (0, responder)
        } else if stored.tuple().reversed() == quoted.tuple && responder == own {
            (1, opener)
        } else {
            return None;
        };
        let line = context.table.record(index).line2();
        let other_vnic = context.snapshot.vnics.get(other)?;
        let over = line.state == CUT || context.timeouts.over(line.state, line.seen, context.now);
        if over || admission.stamp < other_vnic.born.max(self.receiver.born) {
            return None;
        }
        let found = Found { index, direction, admission };
        let held =
            admission.stamp >= other_vnic.since && is_current(&found, context, self.receiver);
        if !held {
            let (opener, responder) = if direction == 0 {
                (self.receiver, &**other_vnic)
            } else {
                (&**other_vnic, self.receiver)
            };
            let opening = Packet { tuple: stored.tuple(), ..*self.packet };
            by_rules_leaves(opener, &opening, context).ok()?;
            by_rules_enters(responder, &opening, context).ok()?;
        }
        // A filtered vnic is no router on the way. It cannot know of another vnic's session.
        if !context.sender.rules.bypass && other != context.sender.place.slot {
            return None;
        }
        let fits = match line.state {
            State::Tcp(_) => quoted
                .sequence
                .is_some_and(|sequence| tcp::quoted_in_window(&line.track, direction, sequence)),
            _ => context.table.record(index).take_error(context.now),
        };
        fits.then_some(())
    }

    fn fragment_key(&self, piece: &Piece) -> FragmentKey {
        fragment_key(self.packet, piece, self.context)
    }

    fn first_fragment(
        &self,
        piece: &Piece,
        stamp: u32,
        cells: CellPair,
        room: &mut FilterRoom,
    ) -> Judgement {
        let decided = FragmentDecision {
            receiver: Some(self.receiver.place.slot),
            stamp,
            cells,
            packet: *self.packet,
        };
        let key = self.fragment_key(piece);
        room.fragments
            .first(key, *piece, decided, self.context.now)
            .map_err(|reason| (reason, self.own()))
    }

    /// Decides a fragment that is not the first, by the first one.
    fn fragment(&self, piece: &Piece, room: &mut FilterRoom) -> Judgement {
        let key = self.fragment_key(piece);
        let decided = room
            .fragments
            .later(key, *piece, self.context.now)
            .map_err(|reason| (reason, self.own()))?;
        let [egress, ingress] = decided.cells;
        let context = self.context;
        let holds = decided.receiver == Some(self.receiver.place.slot)
            && decided.stamp >= context.sender.since
            && decided.stamp >= self.receiver.since
            && decided.stamp >= context.cells.taken_back(egress)
            && decided.stamp >= context.cells.taken_back(ingress);
        if holds { Ok(()) } else { Err((FRAGMENT_ORPHAN, self.own())) }
    }
}

fn fragment_key(packet: &Packet, piece: &Piece, context: &Context<'_>) -> FragmentKey {
    // By incarnation, not by slot: the successor in a place does not go on with the packets of a
    // vnic.
    FragmentKey::new(&packet.tuple, piece, context.sender.vni, context.sender.place.incarnation)
}

/// Judges a frame with several receivers as far as its sender goes. Returns the part by which its
/// receivers are judged. With `before`, some receivers have the frame, and the decision of then may
/// not hold any more.
fn judge_flooded(
    (inside, read): (Inside, Option<Result<Packet, DropReason>>),
    before: Option<Judged>,
    unknown: bool,
    context: &Context<'_>,
    room: &mut FilterRoom,
) -> (Flooded, Judgement) {
    let sender = context.sender;
    let own = sender.place.slot;
    let unreadable = |reason| {
        let judgement = if sender.rules.bypass { Ok(()) } else { Err((reason, own)) };
        (Flooded::Unreadable(reason), judgement)
    };
    let packet = match read {
        None if inside == Inside::HiddenIp => {
            return unreadable(IP_HIDDEN);
        }
        None => return (Flooded::NotIp, Ok(())),
        Some(Err(reason)) => return unreadable(reason),
        Some(Ok(packet)) => packet,
    };
    if let (Some(Judged { flooded: Flooded::Packet(first), .. }), Some(piece)) =
        (before, &packet.fragment)
        && let Some(of) = &first.fragment
        && fragment_key(&first, of, context) == fragment_key(&packet, piece, context)
    {
        // These bytes are already noted as passed: the frame is not another copy.
        return match leaves(sender, &first, context) {
            Ok(_) => (Flooded::Packet(first), Ok(())),
            Err((reason, _)) if sender.rules.bypass => (Flooded::Unreadable(reason), Ok(())),
            Err(refused) => (Flooded::Unreadable(refused.0), Err(refused)),
        };
    }
    match (&packet.l4, &packet.fragment) {
        (L4::Fragment, Some(piece)) => {
            let key = fragment_key(&packet, piece, context);
            match room.fragments.later(key, *piece, context.now) {
                Ok(FragmentDecision { receiver: None, stamp, cells: [egress, _], packet })
                    if stamp >= sender.since.max(context.cells.taken_back(egress)) =>
                {
                    (Flooded::Packet(packet), Ok(()))
                }
                Ok(_) => unreadable(FRAGMENT_ORPHAN),
                Err(reason) => unreadable(reason),
            }
        }
        (_, fragment) => {
            let egress = match leaves(sender, &packet, context) {
                Ok(cell) => cell,
                // Receivers that bypass filters may have it all the same.
                Err((reason, _)) if sender.rules.bypass => {
                    return (Flooded::Unreadable(reason), Ok(()));
                }
                Err(refused) => return (Flooded::Unreadable(refused.0), Err(refused)),
            };
            if let Some(piece) = fragment {
                let decided = FragmentDecision {
                    receiver: None,
                    stamp: context.snapshot.version,
                    cells: [egress, 0],
                    packet,
                };
                if let Err(reason) = room.fragments.first(
                    fragment_key(&packet, piece, context),
                    *piece,
                    decided,
                    context.now,
                ) {
                    return unreadable(reason);
                }
            }
            let mut answered = None;
            if let L4::Dhcp(found) = &packet.l4 {
                dhcp::left(found, &packet.tuple, context);
                // No filtered vnic gets a frame for an unknown station.
                answered =
                    if unknown { None } else { dhcp::flooded_to(found, &packet.tuple, context) };
            }
            (answered.map_or(Flooded::Packet(packet), |slot| Flooded::Answer(packet, slot)), Ok(()))
        }
    }
}

/// Checks whether a receiver of a flood lets it in. A refusal names the vnic that it is charged to.
/// Notes nothing, because delivery asks more than once.
pub(crate) fn admits_flooded(
    room: &FilterRoom,
    index: usize,
    receiver: &Vnic,
    context: &Context<'_>,
) -> Judgement {
    if receiver.rules.bypass {
        return Ok(());
    }
    match room.flooded.get(index) {
        Some(Flooded::NotIp) => Ok(()),
        // Decided and counted when its sender was judged.
        Some(Flooded::Answer(_, slot)) if *slot == receiver.place.slot => Ok(()),
        Some(Flooded::Packet(packet) | Flooded::Answer(packet, _)) => {
            by_rules_or_discovery(receiver, packet, context)
                .map(|_| ())
                .map_err(|reason| (reason, receiver.place.slot))
        }
        Some(Flooded::Unreadable(reason)) => Err((*reason, context.sender.place.slot)),
        None => Err((IP_HIDDEN, context.sender.place.slot)),
    }
}

/// Notes that a flood enters a filtered receiver that [`admits_flooded`] it. The caller calls it
/// once for each.
pub(crate) fn note_flooded(
    room: &FilterRoom,
    index: usize,
    receiver: &Vnic,
    context: &Context<'_>,
) {
    if let Some(Flooded::Packet(packet)) = room.flooded.get(index)
        && let L4::Dhcp(found) = &packet.l4
        && found.request
    {
        dhcp::entered(found, receiver, &packet.tuple, context);
    }
}

/// Messages of discovery that a filtered vnic may send without a rule, at once and per second. Most
/// of them are answers: a machine that asks without end has only its part of the answers.
const DISCOVERIES: u32 = 1024;
const DISCOVERIES_PER_SECOND: u32 = 256;

/// Checks whether a sender may send a packet. Returns the cell of the rule that admits it. The
/// caller asks once for each packet, as a packet without a rule takes a token.
fn leaves(sender: &Vnic, packet: &Packet, context: &Context<'_>) -> Result<u32, (DropReason, u32)> {
    let refused = |reason| (reason, sender.place.slot);
    if sender.rules.bypass {
        return by_rules_leaves(sender, packet, context).map_err(refused);
    }
    match &packet.l4 {
        L4::Discovery(found) => {
            let own =
                |address| sender.rules.owns(address) || has_link_local(sender, address, context);
            if discovery::may_send(found, sender.mac, sender.rules.ip_anti_spoof, own) {
                let may =
                    sender.shared.discovery.take(found.to.into(), context.now, |pace, parts| {
                        pace.take(context.now, DISCOVERIES / parts, DISCOVERIES_PER_SECOND / parts)
                    });
                return if may { Ok(0) } else { Err(refused(DISCOVERY_LIMIT)) };
            }
            // Messages of routers, for a vnic that a rule lets be a router: from its own address,
            // about its own link address.
            let own = own(found.source);
            let honest = found.link_source.is_none_or(|mac| mac == sender.mac);
            let routers =
                matches!(found.kind, v6::ROUTER_ADVERTISEMENT | v6::REDIRECT | v6::LISTENER_QUERY);
            let allowed = if routers && found.valid && own && honest {
                by_router(sender, packet, context)
            } else {
                None
            };
            allowed.ok_or(refused(BAD_DISCOVERY))
        }
        L4::Dhcp(found) if found.request => {
            match dhcp::may_ask(found, sender, &packet.tuple, context) {
                Ok(()) => Ok(0),
                Err(reason) => match by_rules_leaves(sender, packet, context) {
                    Ok(_) if !dhcp::may_ask_by_rule(sender, context) => Err(refused(DHCP_LIMIT)),
                    ruled => ruled.map_err(|_| refused(reason)),
                },
            }
        }
        L4::Dhcp(found) => {
            // A DHCPv6 server answers from its link-local address.
            let local = found.v6 && has_link_local(sender, packet.tuple.source, context);
            if !local && !sender.rules.owns(packet.tuple.source) {
                return Err(refused(SPOOFED_IP));
            }
            if dhcp::may_serve(found, sender, &packet.tuple, context) {
                Ok(0)
            } else {
                Err(refused(EGRESS_DENIED))
            }
        }
        _ => by_rules_leaves(sender, packet, context).map_err(refused),
    }
}

/// Returns the cell of a rule that names a router's message, for a vnic that was declared a router.
fn by_router(sender: &Vnic, packet: &Packet, context: &Context<'_>) -> Option<u32> {
    if sender.rules.router { by_name(sender, packet, context) } else { None }
}

/// Returns the cell of an OUTBOUND rule that names the protocol and port. A rule for everything
/// does not mean infrastructure.
fn by_name(sender: &Vnic, packet: &Packet, context: &Context<'_>) -> Option<u32> {
    let tuple = &packet.tuple;
    sender.rules.policy.names.admits(
        tuple.destination,
        tuple.protocol,
        rule_port(packet),
        &context.snapshot.members,
    )
}

fn by_rules_leaves(
    sender: &Vnic,
    packet: &Packet,
    context: &Context<'_>,
) -> Result<u32, DropReason> {
    let (rules, tuple) = (&sender.rules, &packet.tuple);
    may_speak_as(sender, tuple.source, context)?;
    if rules.bypass {
        return Ok(0);
    }
    let allowed = match (dhcp::to_client(tuple, !is_v4(tuple.source)), &rules.policy.egress) {
        (Some(ToClient::Answer), _) => None,
        (Some(ToClient::Other), _) => by_name(sender, packet, context),
        _ if is_router_message(packet) => by_router(sender, packet, context),
        (None, None) => Some(0),
        (None, Some(egress)) => egress.admits(
            tuple.destination,
            tuple.protocol,
            rule_port(packet),
            &context.snapshot.members,
        ),
    };
    allowed.ok_or(EGRESS_DENIED)
}

/// Checks whether a receiver lets a packet in. Returns the cell of the rule that admits it.
fn enters(receiver: &Vnic, packet: &Packet, context: &Context<'_>) -> Result<u32, DropReason> {
    match &packet.l4 {
        L4::Dhcp(found)
            if !receiver.rules.bypass
                && dhcp::may_answer(found, receiver, &packet.tuple, context) =>
        {
            Ok(0)
        }
        _ => by_rules_or_discovery(receiver, packet, context),
    }
}

/// Checks a flood as [`enters`] does, except a DHCP answer, which was decided before.
fn by_rules_or_discovery(
    receiver: &Vnic,
    packet: &Packet,
    context: &Context<'_>,
) -> Result<u32, DropReason> {
    let free = receiver.rules.bypass
        || matches!(&packet.l4, L4::Discovery(found) if discovery::may_receive(found));
    if free { Ok(0) } else { by_rules_enters(receiver, packet, context) }
}

fn by_rules_enters(
    receiver: &Vnic,
    packet: &Packet,
    context: &Context<'_>,
) -> Result<u32, DropReason> {
    let rules = &receiver.rules;
    if rules.bypass {
        return Ok(0);
    }
    let tuple = &packet.tuple;
    let ingress = &rules.policy.ingress;
    ingress
        .admits(tuple.source, tuple.protocol, rule_port(packet), &context.snapshot.members)
        .ok_or_else(|| if is_to_all_routers(packet) { FOR_ROUTERS } else { INGRESS_DENIED })
}

/// Returns the decisions of the rules at both ends on a packet by itself, without its session.
pub(crate) fn rules_say(
    packet: &Packet,
    receiver: &Vnic,
    context: &Context<'_>,
) -> [Result<u32, DropReason>; 2] {
    [
        leaves(context.sender, packet, context).map_err(|(reason, _)| reason),
        enters(receiver, packet, context),
    ]
}

/// Returns the port that rules are about.
pub(crate) fn rule_port(packet: &Packet) -> u16 {
    match packet.tuple.protocol {
        ICMP | ICMPV6 => 0,
        _ => packet.tuple.destination_port,
    }
}

/// Returns whether a packet is UDP between the ports of DHCP, in fragments or not.
fn is_dhcp(packet: &Packet) -> bool {
    let tuple = &packet.tuple;
    tuple.protocol == UDP
        && Dhcp::between(tuple.source_port, tuple.destination_port, !is_v4(tuple.source)).is_some()
}

/// Returns whether a packet is one that every machine multicasts to routers when it starts: a
/// router solicitation (RFC 4861, 6.3.7), or a report of its groups (RFC 3376, 4.2.14, and RFC
/// 2236, 3). Queries of routers have other destinations, and a packet that came through a router is
/// not valid.
fn is_to_all_routers(packet: &Packet) -> bool {
    let destination = packet.tuple.destination;
    match &packet.l4 {
        L4::Discovery(found) => {
            found.valid
                && found.kind == v6::ROUTER_SOLICITATION
                && discovery::is_multicast(destination)
        }
        _ => packet.tuple.protocol == IGMP && TO_ROUTERS.contains(&destination),
    }
}

/// Returns whether a packet is a message of IPv4 routers to hosts. IPv6 routers' messages are told
/// apart before.
fn is_router_message(packet: &Packet) -> bool {
    matches!(packet.l4, L4::Icmp { kind: v4::REDIRECT | v4::ROUTER_ADVERTISEMENT, .. } if packet.tuple.protocol == ICMP)
}

fn release(context: &Context<'_>, key: &Key, stamp: u32) {
    released(context.snapshot, context.table, context.shares, key, stamp);
}

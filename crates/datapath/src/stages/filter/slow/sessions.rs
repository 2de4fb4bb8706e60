//! Sessions: known ones, those that are decided again, and new ones.

use crate::engine::reason::DropReason;
use crate::ip::tcp::{self, Outcome, TcpState, Track};
use crate::ip::{L4, Packet};
use crate::session::{Admitted, Found, Key, Life, NO_TRACK, NotInserted, Past, Record, State};
use crate::stages::context::Context;
use crate::stages::filter::known::{Judgement, is_current, pass};
use crate::stages::filter::reasons::{
    SCTP_NO_SESSION, SESSION_COPIES, SESSION_RATE, SESSIONS_FULL, TCP_NO_SESSION,
};
use crate::stages::filter::room::FilterRoom;
use crate::stages::filter::share::{
    acquired, full_shares, may_give_way, may_open, released, rest, rests,
};
use crate::stages::filter::slow::decision::{Decision, Session};
use crate::stages::filter::slow::rules::may_speak_as;
use crate::stages::filter::slow::rules::{by_rules_enters, by_rules_leaves};
use std::sync::atomic::Ordering::Relaxed;

/// A connection that policy took back.
pub(super) const CUT: State = State::Tcp(TcpState::Cut);

impl Decision<'_> {
    /// Decides by a session, if there is one that holds or that the rules still admit.
    pub(super) fn known(&self, room: &mut FilterRoom) -> Option<Judgement> {
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
                // Decided once more until its marks are known again.
                Some(admission) if self.stays_adrift(&found) => found.admission = admission,
                // If another thread holds the record's lock for long, the next frame decides once
                // more.
                Some(admission)
                    if context.table.readmit(found.index, &stored, admission)
                        || context.table.check(found.index, &key).is_some() =>
                {
                    found.admission = admission;
                }
                None if self.is_live_tcp(&found, room) => {
                    context.table.cut(&found, &stored, context.now);
                    return self.cut_before(&found, &stored, room);
                }
                _ => {
                    self.end(&found, &stored, room);
                    return None;
                }
            }
        }
        if found.direction == 1 && !found.admission.answers {
            let (from, routed) = (self.packet.tuple.source, self.zone.is_routed());
            if let Err(reason) = may_speak_as(context.sender, from, routed, context) {
                return Some(Err((reason, self.own())));
            }
            // The responder got the address after the session began.
            context.table.answers(found.index, &stored, found.admission.stamp);
        }
        if let Some(segment) = self.segment()
            && segment.opens()
            && self.outcome(&found, segment, room) == Some(Outcome::Ask)
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

    /// Has a segment set the marks of a connection that came from another host, if they are out of
    /// date. Returns whether they still are: then the next segment tries, as long as connections
    /// may be picked up.
    fn stays_adrift(&self, found: &Found) -> bool {
        let context = self.context;
        let Some(segment) = self.segment() else { return false };
        let record = context.table.record(found.index);
        if !record.track().is_adrift() || !self.may_pick_up() {
            return false;
        }
        // A note keeps no mark of a connection that is adrift: each segment is judged by the
        // record.
        record.catch_up(found.tenant(), found.direction, segment, context.now)
    }

    /// Returns the outcome of a segment, which it does not have yet. `None` if the session is over.
    fn outcome(
        &self,
        found: &Found,
        segment: &tcp::Segment,
        room: &mut FilterRoom,
    ) -> Option<Outcome> {
        let (note, track) = room.notes.of(found, self.context)?;
        if note.unsettled {
            let record = self.context.table.record(found.index);
            return record.outcome(found.tenant(), found.direction, segment);
        }
        Some(tcp::step(*track, found.direction, segment).1)
    }

    fn is_live_tcp(&self, found: &Found, room: &mut FilterRoom) -> bool {
        let context = self.context;
        room.notes.forget(found.index, context);
        let (seen, state) = context.table.record(found.index).seen();
        matches!(state, State::Tcp(_)) && !context.timeouts().over(state, seen, context.now)
    }

    /// Decides on a packet of a TCP connection that policy took back: only a SYN that the rules
    /// admit opens a new one. The connection is remembered for a while. Otherwise a packet of the
    /// end that may open connections would look like one of an older connection, and be picked up.
    fn cut_before(&self, found: &Found, stored: &Key, room: &mut FilterRoom) -> Option<Judgement> {
        let (seen, state) = self.context.table.record(found.index).seen();
        if !self.context.timeouts().over(state, seen, self.context.now) {
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
        let routed = stored.zone().is_routed();
        let egress = by_rules_leaves(opener, &opening, routed, context).ok()?;
        let ingress = by_rules_enters((opener, responder), &opening, context).ok()?;
        Some(Admitted {
            stamp: context.snapshot.version,
            cells: [egress, ingress],
            answers: may_speak_as(responder, opening.tuple.destination, routed, context).is_ok(),
        })
    }

    fn end(&self, found: &Found, stored: &Key, room: &mut FilterRoom) {
        room.notes.forget(found.index, self.context);
        if self.context.table.end(found, stored) {
            release(self.context, stored, found.admission.stamp);
        }
    }

    pub(super) fn new_session(&self, room: &mut FilterRoom) -> Judgement {
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
        let (to, routed) = (self.packet.tuple.destination, self.zone.is_routed());
        let answers = may_speak_as(self.receiver, to, routed, context).is_ok();
        let admission = Admitted { stamp: context.snapshot.version, cells, answers };
        self.make(&Session { key: self.key(), direction: 0, admission, state, track }, room)
    }

    fn make(&self, session: &Session, room: &mut FilterRoom) -> Judgement {
        let context = self.context;
        let Session { key, direction, admission, state, track } = *session;
        let past = Past::first(direction, self.len.into());
        let life = Life { now: context.now, state, track, past };
        let hash = context.table.hash(&key);
        if !may_open(self.packet.tuple.source, context) {
            return Err((SESSION_RATE, self.own()));
        }
        self.share(&key, hash, room)?;
        let may_evict = |record: &Record<'_>| may_give_way(record, key.vni(), context);
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
        match inserted {
            Ok(_) => {}
            // Another worker was faster, and decided the same. To its session this frame is one
            // more.
            Err(NotInserted::Exists) => return self.known(room).unwrap_or(Ok(())),
            Err(NotInserted::Full) => return Err((SESSIONS_FULL, self.own())),
            Err(NotInserted::Copies) => return Err((SESSION_COPIES, self.own())),
        }
        acquired(context, &key);
        admission.cells.into_iter().for_each(|cell| context.cells.count(cell));
        Ok(())
    }

    /// Returns the admission of the packet's session.
    pub(super) fn admission(&self) -> Admitted {
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
        let window = self.context.snapshot.times.tcp_pickup;
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
}

fn release(context: &Context<'_>, key: &Key, stamp: u32) {
    released(context.snapshot, context.table, context.shares, key, stamp);
}

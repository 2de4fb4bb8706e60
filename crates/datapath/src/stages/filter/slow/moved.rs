//! Sessions of vnics that moved: a connection goes along to another host.

use crate::ip::Packet;
use crate::ip::tcp::{self, Outcome};
use crate::session::{Admitted, Found, Key, State};
use crate::stages::filter::room::FilterRoom;
use crate::stages::filter::slow::decision::{Decision, Session};
use crate::stages::filter::slow::rules::may_speak_as;
use crate::stages::filter::slow::rules::{by_rules_enters, by_rules_leaves};

impl Decision<'_> {
    /// Returns a session that one of its ends took along to another host, or from there. Its TCP
    /// record stays. The rules decide again whether it may go on, as if its opener began it with
    /// the ports of now.
    pub(super) fn inherited(
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
            let was = context.table.check(index, &stored)?;
            let session = self.moved(segment, trunk, &was, &stored, admission)?;
            let was = Found { direction: session.direction, admission, ..was };
            Some((session, was, stored))
        })
    }

    /// Checks one session for [`Self::inherited`]. `None` if the packet is not of it, or none of
    /// its ends moved.
    fn moved(
        &self,
        segment: &tcp::Segment,
        trunk: u32,
        found: &Found,
        stored: &Key,
        admission: Admitted,
    ) -> Option<Session> {
        let context = self.context;
        let (sender, receiver, tuple) = (context.sender, self.receiver, self.packet.tuple);
        let (opener, responder) = stored.slots();
        if stored.zone() != self.zone() {
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
        // A vnic that is not declared again yet did not move.
        if context.snapshot.waits(from).is_some() {
            return None;
        }
        let line = context.table.record(found.index).line2_of(found.tenant())?;
        let State::Tcp(_) = line.state else { return None };
        if admission.stamp < stays.born
            || context.timeouts().over(line.state, line.seen, context.now)
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
            key: Key::new(&opening.tuple, stored.zone(), opener.place.slot, responder.place.slot),
            direction,
            admission: Admitted { stamp: context.snapshot.version, cells, answers },
            state: State::Tcp(track.state),
            track,
        })
    }
}

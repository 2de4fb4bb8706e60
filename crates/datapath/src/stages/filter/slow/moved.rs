//! Sessions of vnics that moved: a connection goes along to another host.

use arrayvec::ArrayVec;

use crate::ip::Packet;
use crate::ip::tcp::{self, Outcome};
use crate::session::{Admitted, Found, Key, State, Zone};
use crate::stages::filter::room::FilterRoom;
use crate::stages::filter::slow::decision::{Decision, Session};
use crate::stages::filter::slow::rules::may_speak_as;
use crate::stages::filter::slow::rules::{by_rules_enters, by_rules_leaves};
use crate::world::snapshot::Network;

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
        // Changes that the batch did not write yet count.
        room.notes.flush(context);
        let beyond = self.beyond();
        let slot = self.receiver.place.slot;
        self.zones(beyond).into_iter().find_map(|zone| {
            let key = Key::new(&self.packet.tuple, zone, self.own(), slot);
            // There may be several that are over, or that a vnic left behind that moved more than
            // once.
            context.table.find_map(context.table.hash(&key), |index, stored, admission| {
                let was = context.table.check(index, &stored).filter(|_| stored.zone() == zone)?;
                let session = self.moved(segment, beyond, &was, &stored, admission)?;
                let was = Found { direction: session.direction, admission, ..was };
                Some((session, was, stored))
            })
        })
    }

    /// Returns the zones in which a session of the packet may be that has one end elsewhere now, or
    /// had: a routed one may be in that of each of its networks.
    fn zones(&self, beyond: Option<&Network>) -> ArrayVec<Zone, 3> {
        let mut zones: ArrayVec<Zone, 3> = ArrayVec::new();
        zones.push(self.zone);
        let networks = [Some(self.context.entry.vni), beyond.map(|network| network.vni)];
        for zone in networks.into_iter().flatten().map(Zone::routed) {
            if self.zone.is_routed() && !zones.contains(&zone) {
                zones.push(zone);
            }
        }
        zones
    }

    /// Returns the network of the other end of a routed packet, which is not that by which it came:
    /// of its source if that is on another host.
    fn beyond(&self) -> Option<&Network> {
        let Decision { context, receiver, packet, .. } = *self;
        if !self.zone.is_routed() {
            return None;
        }
        let vni = if receiver.vni == context.entry.vni {
            let tuple = &packet.tuple;
            let far = if context.sender.is_trunk() { tuple.source } else { tuple.destination };
            context.entry.routing.as_ref()?.beyond(far, context.entry.vni)?.1
        } else {
            receiver.vni
        };
        context.snapshot.network(vni).map(|network| &**network)
    }

    /// Checks one session for [`Self::inherited`]. `None` if the packet is not of it, or none of
    /// its ends moved.
    fn moved(
        &self,
        segment: &tcp::Segment,
        beyond: Option<&Network>,
        found: &Found,
        stored: &Key,
        admission: Admitted,
    ) -> Option<Session> {
        let context = self.context;
        let (sender, receiver, tuple) = (context.sender, self.receiver, self.packet.tuple);
        let (opener, responder) = stored.slots();
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
        // Of the network of the end that stays: by it come answers of the other one.
        let trunk = context.snapshot.trunk(stays.vni)?.1.place.slot;
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
        let routed = self.zone.is_routed();
        let answers = may_speak_as(responder, opening.tuple.destination, routed, context).is_ok();
        if direction == 1 && !answers {
            return None;
        }
        let cells = [
            by_rules_leaves(opener, &opening, routed, context).ok()?,
            by_rules_enters((opener, responder), &opening, context).ok()?,
        ];
        // A filtered vnic that is here, and has the address, did not move, and no earlier vnic with
        // that address speaks for it.
        let is_here = |slot: u32| {
            let vnic = context
                .snapshot
                .vnics
                .get(slot)
                .filter(|vnic| !vnic.rules.bypass && context.snapshot.keeps_addresses(vnic));
            slot != to
                && slot != stays.place.slot
                && vnic.is_some_and(|vnic| vnic.rules.owns(address))
        };
        // That of the end that moved.
        let network = match beyond {
            Some(beyond) if stays.vni == context.entry.vni => beyond,
            _ => context.entry,
        };
        if network.holders.get(address).is_some_and(|holding| holding.slots().any(is_here)) {
            return None;
        }
        Some(Session {
            key: Key::new(&opening.tuple, self.zone, opener.place.slot, responder.place.slot),
            direction,
            admission: Admitted { stamp: context.snapshot.version, cells, answers },
            state: State::Tcp(track.state),
            track,
        })
    }
}

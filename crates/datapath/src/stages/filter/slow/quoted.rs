//! ICMP errors: they belong to the session whose packet they quote.

use crate::ip::tcp::{self};
use crate::ip::{Packet, Quoted};
use crate::session::{Admitted, Found, Key, State};
use crate::stages::filter::known::{Judgement, is_current};
use crate::stages::filter::room::FilterRoom;
use crate::stages::filter::slow::decision::Decision;
use crate::stages::filter::slow::rules::may_speak_as;
use crate::stages::filter::slow::rules::{by_rules_enters, by_rules_leaves};
use crate::stages::filter::slow::sessions::CUT;

impl Decision<'_> {
    /// Decides an ICMP error by the session of the packet that it quotes.
    pub(super) fn error(&self, quoted: &Quoted, room: &mut FilterRoom) -> Judgement {
        // An error goes to the sender of the quoted packet (RFC 792, RFC 4443, 2.2). It must not
        // pass the rules to another machine behind the same port.
        let addressed = self.packet.tuple.destination == quoted.tuple.source;
        if !addressed || !self.quotes_a_session(quoted, room) {
            return self.sessionless();
        }
        let routed = self.zone.is_routed();
        may_speak_as(self.context.sender, self.packet.tuple.source, routed, self.context)
            .map_err(|reason| (reason, self.own()))
    }

    /// Returns whether an error quotes a packet of a session that the receiver of the error sent,
    /// and the error's sender may know of that session.
    fn quotes_a_session(&self, quoted: &Quoted, room: &mut FilterRoom) -> bool {
        let context = self.context;
        // Changes that the batch did not write yet count.
        room.notes.flush(context);
        let key = Key::new(&quoted.tuple, self.zone, self.receiver.place.slot, 0);
        // The quoted packet may have gone to any vnic: there may be sessions with several, over or
        // not.
        let found = context.table.find_map(context.table.hash(&key), |index, stored, admission| {
            self.quotes(quoted, index, &stored, admission).filter(|_| stored.zone() == key.zone())
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
        let found = context.table.check(index, stored)?;
        let line = context.table.record(index).line2_of(found.tenant())?;
        let other_vnic = context.snapshot.vnics.get(other)?;
        let over = line.state == CUT || context.timeouts().over(line.state, line.seen, context.now);
        if over || admission.stamp < other_vnic.born.max(self.receiver.born) {
            return None;
        }
        let found = Found { direction, admission, ..found };
        let held =
            admission.stamp >= other_vnic.since && is_current(&found, context, self.receiver);
        if !held {
            let (opener, responder) = if direction == 0 {
                (self.receiver, &**other_vnic)
            } else {
                (&**other_vnic, self.receiver)
            };
            let opening = Packet { tuple: stored.tuple(), ..*self.packet };
            by_rules_leaves(opener, &opening, stored.zone().is_routed(), context).ok()?;
            by_rules_enters((opener, responder), &opening, context).ok()?;
        }
        // A filtered vnic is no router on the way. It cannot know of another vnic's session.
        if !context.sender.rules.bypass && other != context.sender.place.slot {
            return None;
        }
        // Of a routed session those know who are in the network of the other end.
        if stored.zone().is_routed() && other_vnic.vni != context.sender.vni {
            return None;
        }
        let fits = match line.state {
            State::Tcp(_) => quoted
                .sequence
                .is_some_and(|sequence| tcp::quoted_in_window(&line.track, direction, sequence)),
            _ => context.table.record(index).take_error(found.tenant(), context.now),
        };
        fits.then_some(())
    }
}

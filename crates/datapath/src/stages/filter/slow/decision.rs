//! One packet on its way to one receiver: which kind of decision it takes.

use crate::engine::reason::DropReason;
use crate::ip::{
    L4, Packet, Piece,
    tcp::{self, Track},
};
use crate::session::{Admitted, Key, State, Zone};
use crate::stages::context::Context;
use crate::stages::filter::slow::rules::{
    by_rules_enters, by_rules_leaves, enters, is_dhcp, leaves,
};
use crate::stages::filter::{dhcp, known::Judgement, room::FilterRoom};
use crate::world::snapshot::Vnic;

/// One packet on its way to one receiver.
pub(super) struct Decision<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) receiver: &'a Vnic,
    pub(super) packet: &'a Packet,
    /// Zone of the packet's session.
    pub(super) zone: Zone,
    pub(super) len: u32,
    /// Its place in the batch.
    pub(super) index: usize,
}

/// A session to be made, and the end whose frame makes it.
pub(super) struct Session {
    pub(super) key: Key,
    pub(super) direction: usize,
    pub(super) admission: Admitted,
    pub(super) state: State,
    pub(super) track: Track,
}

/// Cells of the rules that admit a packet at both ends.
pub(super) type CellPair = [u32; 2];

impl Decision<'_> {
    pub(super) fn own(&self) -> u32 {
        self.context.sender.place.slot
    }

    pub(super) fn judge(&self, room: &mut FilterRoom) -> Judgement {
        let Packet { l4, fragment, .. } = self.packet;
        match (l4, fragment) {
            (L4::Fragment, Some(piece)) => self.fragment(piece, room),
            (L4::Discovery(_) | L4::Dhcp(_), _) => self.sessionless(),
            (L4::Error(quoted), _) => self.error(quoted, room),
            (L4::Icmp { .. } | L4::Echo { request: false }, None) => {
                self.known(room).unwrap_or_else(|| self.sessionless())
            }
            (L4::Icmp { .. }, Some(piece)) => self.sessionless_fragments(piece),
            // DHCP in fragments has no session, like whole DHCP: a request gives a server no right
            // to answer.
            (L4::Udp, Some(piece)) if is_dhcp(self.packet) => self.sessionless_fragments(piece),
            (_, None) => self.known(room).unwrap_or_else(|| self.new_session(room)),
            (_, Some(piece)) => {
                self.known(room).unwrap_or_else(|| self.new_session(room))?;
                let admission = self.admission();
                self.first_fragment(piece, admission.stamp, admission.cells)
            }
        }
    }

    /// Decides by rules alone, and remembers the decision for later fragments.
    pub(super) fn sessionless_fragments(&self, piece: &Piece) -> Judgement {
        let cells = self.decide()?;
        self.first_fragment(piece, self.context.snapshot.version, cells)
    }

    /// Decides by rules alone, and by the exceptions that need none.
    pub(super) fn sessionless(&self) -> Judgement {
        let context = self.context;
        self.decide()?;
        if self.zone.is_routed() {
            return Ok(());
        }
        if let L4::Dhcp(found) = &self.packet.l4 {
            dhcp::left(found, &self.packet.tuple, context);
            dhcp::entered(found, self.receiver, &self.packet.tuple, context);
        }
        Ok(())
    }

    /// Returns the decision of the rules at both ends on a packet in its own direction. What needs
    /// no rule in one network, as machines cannot do without it there, needs one across a router.
    pub(super) fn decide(&self) -> Result<CellPair, (DropReason, u32)> {
        let Decision { context, packet, receiver, .. } = *self;
        let routed = self.zone.is_routed();
        let egress = match routed {
            true => by_rules_leaves(context.sender, packet, true, context)
                .map_err(|reason| (reason, self.own()))?,
            false => leaves(context.sender, packet, context)?,
        };
        let ingress = match routed {
            true => by_rules_enters((context.sender, receiver), packet, context),
            false => enters(receiver, packet, context),
        };
        Ok([egress, ingress.map_err(|reason| (reason, receiver.place.slot))?])
    }

    pub(super) fn key(&self) -> Key {
        Key::new(&self.packet.tuple, self.zone, self.own(), self.receiver.place.slot)
    }

    pub(super) fn segment(&self) -> Option<&tcp::Segment> {
        match &self.packet.l4 {
            L4::Tcp(segment) => Some(segment),
            _ => None,
        }
    }
}

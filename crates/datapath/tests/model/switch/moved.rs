//! Connections that go with a vnic to another host, and come back with one.
//!
//! A session is between two ports. When one of its ends moves, the TCP record of a connection
//! stays. The next segment goes on with it, between the ports of now, if policy lets its opener
//! begin it there today. This holds only from and to other hosts: on one host, a sender at another
//! port may be another machine.

use super::{Key, Mistake, Model, Port, Session, Tracked, Vnic};
use crate::{
    choices::Choices,
    tcp::{Judgement, Segment},
    wire::Packet,
};

impl Key {
    /// Returns the key of the same packet in the zone of another one, if both are routed.
    fn like(self, other: Key) -> Key {
        if self.routed && other.routed { Key { vni: other.vni, ..self } } else { self }
    }

    /// Returns the direction between these addresses and numbers, of any vnics: 0 as the opener's
    /// frame shows it, 1 the other way.
    pub(super) fn direction_of(&self, other: &Key) -> Option<usize> {
        let plain = |key: &Key| {
            let ends = [key.from, key.to].map(|end| (end.address, end.number));
            ((key.vni, key.routed), key.vlan, key.protocol, ends)
        };
        let (this, that) = (plain(self), plain(other));
        if this == that {
            Some(0)
        } else if this == plain(&other.reversed()) {
            Some(1)
        } else {
            None
        }
    }
}

impl Model {
    /// Forgets sessions that cannot go on: all whose end is gone, except TCP connections that the
    /// end may have taken along. Those are known while the end may have its connections picked up
    /// on its new host.
    pub(super) fn forget_the_dead(&mut self) {
        let mut sessions = std::mem::take(&mut self.sessions);
        sessions.retain_mut(|session| {
            let ends = [session.key.from, session.key.to].map(|end| self.at(end.port));
            if let [Some(_), Some(_)] = ends {
                return true;
            }
            session.left = session.left.or(Some(self.now));
            let stays = |vnic: &&&Vnic| !vnic.trunk && self.trunk_of(vnic.declared.vni).is_some();
            let goes_on = ends.iter().flatten().any(|vnic| stays(&vnic));
            let stays = goes_on && matches!(session.tracked, Tracked::Tcp(_)) && !session.cut;
            if !stays {
                self.dead.push(session.key);
            }
            stays
        });
        self.sessions = sessions;
    }

    /// Takes a frame between the places of a session one of whose ends is gone: the session may be
    /// found, and ended for that.
    pub(super) fn out_of_the_way(&mut self, key: Key, choices: &mut Choices) {
        let places = |key: Key| (key.from.port.0, key.to.port.0);
        let at = self.sessions.iter().position(|session| {
            let stored = match session.key.direction_of(&key) {
                Some(0) => session.key,
                Some(_) => session.key.reversed(),
                None => return false,
            };
            places(stored) == places(key) && stored != key
        });
        if let Some(at) = at
            && choices.either()
        {
            self.sessions.remove(at);
        }
    }

    /// Returns the networks of the sender and of the other end. Of an end on another host, a router
    /// here tells its network.
    fn networks(&self, (sender, receiver): (usize, usize), packet: &Packet) -> [u32; 2] {
        let [from, to] = [sender, receiver].map(|vnic| self.vnics[vnic].declared.vni);
        if from != to {
            return [from, to];
        }
        let far = if self.vnics[sender].trunk { packet.source } else { packet.destination };
        let beyond = if self.across { self.beyond(from, far) } else { Vec::new() };
        [from, beyond.first().map_or(from, |(_, vni)| *vni)]
    }

    /// Decides a packet without a session between its ports. Returns whether it goes on with a
    /// connection one of whose ends was on another host.
    /// A routed one had another zone if both of its ends were here before, or are now.
    pub(super) fn moves(
        &mut self,
        (sender, receiver): (usize, usize),
        key: Key,
        packet: &Packet,
        choices: &mut Choices,
    ) -> bool {
        if packet.protocol != 6 || self.mistake == Some(Mistake::MovedIsForgotten) {
            return false;
        }
        let segment = Segment::read(&packet.upper);
        if segment.opens() {
            return false; // nothing goes on with it
        }
        let [own, other] = self.networks((sender, receiver), packet);
        let zones = if key.routed { vec![own, other] } else { vec![key.vni] };
        let of_it = |session: &&Session| {
            zones.contains(&session.key.vni)
                && session.key.direction_of(&key.like(session.key)).is_some()
                && session.key != key
                && session.key.reversed() != key
        };
        let candidates: Vec<Key> =
            self.sessions.iter().filter(of_it).map(|session| session.key).collect();
        let candidates: Vec<Key> = candidates
            .into_iter()
            .filter(|stored| self.may_have_moved(*stored, key, [own, other]))
            .collect();
        for (index, stored) in candidates.iter().enumerate() {
            // Of several, any may be the one.
            if index + 1 < candidates.len() && choices.either() {
                continue;
            }
            let Some(at) = self.there(|session| session.key == *stored, choices) else { continue };
            let mut session = self.sessions[at].clone();
            let from = usize::from(stored.direction_of(&key.like(*stored)) != Some(0));
            let Tracked::Tcp(connection) = &mut session.tracked else { continue };
            if session.cut || connection.judge(from, &segment, choices) != Judgement::Passes {
                continue;
            }
            session.key = if from == 0 { key } else { key.reversed() };
            (session.seen, session.left) = (self.now, None);
            if self.is_admitted(&session, false) || self.mistake == Some(Mistake::MovedIsAdmitted) {
                self.sessions[at] = session;
                return true;
            }
        }
        false
    }

    /// Returns whether one end of a session is in its place, and the other one moved to or from
    /// another host.
    fn may_have_moved(&self, stored: Key, key: Key, networks: [u32; 2]) -> bool {
        let direction = stored.direction_of(&key.like(stored));
        let stored = if direction == Some(0) { stored } else { stored.reversed() };
        let (was, is, stays) =
            match (stored.from.port == key.from.port, stored.to.port == key.to.port) {
                (true, false) => (stored.to, key.to, key.from),
                (false, true) => (stored.from, key.from, key.to),
                _ => return false,
            };
        let trunk = |port: Port| self.at(port).is_some_and(|vnic| vnic.trunk);
        if !trunk(is.port) && !trunk(was.port) {
            return false;
        }
        if self.mistake == Some(Mistake::AnybodyMoved) {
            return true;
        }
        // A filtered vnic that is here, and has the address, did not move, and no earlier vnic with
        // the address speaks for it.
        let near = self.at(stays.port).map_or(key.vni, |vnic| vnic.declared.vni);
        let beyond = if networks[0] == near { networks[1] } else { networks[0] };
        let has_it = |vnic: &Vnic| {
            vnic.declared.vni == beyond
                && !vnic.declared.bypass
                && vnic.declared.ips.contains(&is.address)
        };
        !self.vnics.iter().any(|vnic| has_it(vnic) && ![is.port, stays.port].contains(&vnic.port))
    }
}

//! Moves: a vnic's machine leaves for another host, or comes from one, and its sessions with it.
//!
//! The host that it leaves gives up its addresses, and knows its place behind the other host. The
//! host that it comes to takes over its sessions, from a text that is read like a guest's word:
//! each is decided again by the rules of here, at its first frame.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::engine::{
    mac::number,
    place::{PeerRef, PortRef},
};
use crate::ip::{
    Address, Tuple,
    tcp::{ADRIFT, TcpState, Track},
};
use crate::overlay::impossible;
use crate::plane::{Plane, policies::copy_with};
use crate::session::{Admitted, Key, Life, Line2, NotInserted, Past, State, Zone};
use crate::stages::filter::{counted, has_room};
use crate::world::{
    fdb::{Learning, MAX_PER_NETWORK},
    rules::number as number_of_ip,
    snapshot::{Network, Snapshot, Vnic},
    ways::Course,
};

/// Attempts to note a peer: a worker may be adding one.
const ATTEMPTS: usize = 1000;

/// A session of a vnic, without the places that its ends have on a host.
#[derive(Clone, Debug)]
pub(crate) struct MovedSession {
    /// True if the vnic opened it.
    pub opened: bool,
    /// True if a router joins its ends.
    pub routed: bool,
    /// From the opener to the other end.
    pub tuple: Tuple,
    pub state: State,
    pub track: Track,
    pub past: Past,
}

/// Account of sessions that came from another host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedSessions {
    /// Sessions that were taken over.
    pub taken: u64,
    /// Sessions that this host knows itself, which stay.
    pub known: u64,
    /// Sessions of an earlier import that are not among those of this one.
    pub ended: u64,
    /// Sessions that were not taken over, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

impl ImportedSessions {
    fn refuse(&mut self, why: &'static str) {
        *self.refused.entry(why).or_default() += 1;
    }
}

/// Reason for which a host cannot be one to which machines leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum NotAHost {
    #[error("there is no vnic of that name")]
    Vnic,
    #[error("this host has no uplink")]
    NoUplink,
    #[error("it is this host's own tunnel endpoint, or no station's address")]
    Impossible,
    #[error("the tunnel's addresses are of the other family")]
    Family,
    #[error("there is no room for another host")]
    NoRoom,
}

/// Other end of a session that came from another host.
enum Other {
    /// A filtered vnic of this host, in this slot.
    Filtered(u32),
    /// A vnic without filter, or the trunk, in this slot.
    At(u32),
}

impl Plane {
    /// Notes that a vnic's machine leaves for another host, whose tunnel endpoint may be named.
    /// Once its rings stop, its addresses may be there: at once if they have.
    pub fn leaves(&self, vnic: &Vnic, to: Option<IpAddr>) -> Result<(), NotAHost> {
        let peer = to.map(|to| self.endpoint(vnic.vni, to)).transpose()?;
        vnic.shared.leaving.store(true, Relaxed);
        if let Some(peer) = peer {
            vnic.shared.relay.name(peer);
        }
        if !vnic.shared.driving.load(Relaxed)
            && (peer.is_some() || !vnic.shared.presence.attached())
        {
            self.left(vnic.place);
        }
        Ok(())
    }

    /// Returns the peer of another host's tunnel endpoint.
    fn endpoint(&self, vni: u32, to: IpAddr) -> Result<PeerRef, NotAHost> {
        let tunnel = self.shared.tunnel.as_ref().ok_or(NotAHost::NoUplink)?;
        let address = number_of_ip(to);
        if impossible(address, tunnel.own) {
            return Err(NotAHost::Impossible);
        }
        if to.is_ipv4() != tunnel.source.ip.is_ipv4() {
            return Err(NotAHost::Family);
        }
        let now = self.shared.clock.now();
        let mut attempts = (0..ATTEMPTS).filter_map(|_| {
            let peer = tunnel.peers.find(address);
            peer.or_else(|| tunnel.peers.try_add(address, vni, now)).or_else(|| {
                std::thread::yield_now();
                None
            })
        });
        attempts.next().ok_or(NotAHost::NoRoom)
    }

    /// Gives up the addresses of a vnic whose machine left for another host. If that one was named,
    /// the vnic is known there, and frames for it are passed on for a while.
    pub fn left(&self, place: PortRef) {
        let snapshot = self.shared.snapshot.load();
        let Some(vnic) = snapshot.vnic(place) else { return };
        vnic.shared.elsewhere.store(true, Relaxed);
        let Some((peer, until)) = vnic.shared.relay.begin(self.shared.clock.now()) else { return };
        let Some((network, trunk)) = snapshot.trunk(vnic.vni) else { return };
        self.learn_behind(&snapshot, network, trunk, number(vnic.mac), peer);
        network.relaying.fetch_max(until, Relaxed);
    }

    fn learn_behind(
        &self,
        snapshot: &Snapshot,
        network: &Network,
        trunk: &Vnic,
        mac: u64,
        PeerRef(incarnation): PeerRef,
    ) {
        let (fdb, held) = (&self.shared.fdb, network.learnt.load(Relaxed));
        let place = PortRef { slot: trunk.place.slot, incarnation };
        let room = held < MAX_PER_NETWORK && fdb.quota.has_room(held);
        match fdb.learn(trunk.vni, mac, place, self.shared.clock.now(), room) {
            Learning::Known | Learning::Refused => {}
            Learning::New => {
                trunk.shared.learnt.fetch_add(1, Relaxed);
                fdb.quota.take(&network.learnt);
            }
            Learning::Moved(from) => {
                trunk.shared.learnt.fetch_add(1, Relaxed);
                if let Some(vnic) = snapshot.behind(from) {
                    vnic.shared.learnt.fetch_sub(1, Relaxed);
                }
            }
        }
    }

    /// Ends what [`Plane::left`] began: the machine runs here again.
    pub(super) fn is_back(&self, vnic: &Vnic) {
        if vnic.shared.relay.end() {
            let (vni, mac) = (vnic.vni, number(vnic.mac));
            self.forget(|learnt| learnt.vni == vni && learnt.mac == mac);
        }
    }

    /// Looks after vnics whose machines left a moment ago. Housekeeping calls it in each tick.
    pub fn see_off(&self) {
        let snapshot = self.shared.snapshot.load_full();
        for (_, vnic) in snapshot.vnics.iter() {
            if vnic.shared.relay.take_fresh() {
                self.hand_on(&snapshot, vnic);
            }
        }
    }

    /// Copies the sessions between a vnic that left and filtered vnics that stay: its frames come
    /// from another host now. TCP connections are found without it, by their sequence numbers.
    fn hand_on(&self, snapshot: &Snapshot, left: &Vnic) {
        let (shared, now) = (&self.shared, self.shared.clock.now());
        let timeouts = snapshot.times.timeouts;
        shared.table.for_each(|_, record, key, admission| {
            let (opener, responder) = key.slots();
            let opened = opener == left.place.slot;
            let stays = match (opened, responder == left.place.slot) {
                (true, false) => responder,
                (false, true) => opener,
                _ => return,
            };
            let stays = snapshot.vnics.get(stays).filter(|vnic| !vnic.is_trunk());
            let Some(stays) = stays.filter(|vnic| !vnic.rules.bypass) else { return };
            // Of a routed session the other hosts of the network of the end that stays.
            let Some((network, trunk)) = snapshot.trunk(stays.vni) else { return };
            let zone = match key.zone().is_routed() {
                true => Zone::routed(stays.vni),
                false => Zone::of(stays.vni),
            };
            let line = record.line2();
            let oldest = left.born.max(stays.born).max(trunk.born);
            if matches!(line.state, State::Tcp(_))
                || admission.stamp < oldest
                || timeouts.over(line.state, line.seen, now)
            {
                return;
            }
            let (from, to) = if opened {
                (trunk.place.slot, stays.place.slot)
            } else {
                (stays.place.slot, trunk.place.slot)
            };
            let [egress, ingress] = admission.cells;
            // Of the end that left no rule counts here any more.
            let cells = if opened { [0, ingress] } else { [egress, 0] };
            let key = Key::new(&key.tuple(), zone, from, to);
            let life = Life { now, state: line.state, track: line.track, past: past(&line, now) };
            let _ = self.add_moved(snapshot, network, &key, Admitted { cells, ..admission }, &life);
        });
    }

    /// Adds a session that came from another host, or whose end left for one. No other session goes
    /// for it.
    fn add_moved(
        &self,
        snapshot: &Snapshot,
        network: &Network,
        key: &Key,
        admission: Admitted,
        life: &Life,
    ) -> Result<(), &'static str> {
        let shared = &self.shared;
        if !has_room(snapshot, &shared.table, &shared.shares, network, key) {
            return Err("no room in its share of the table");
        }
        let hash = shared.table.hash(key);
        let inserted = shared.table.insert(hash, key, admission, life, |_| false, |_, _, _| {});
        match inserted {
            Ok(_) => {
                counted(snapshot, &shared.table, &shared.shares, network, key);
                Ok(())
            }
            Err(NotInserted::Exists) => Err("it is there already"),
            Err(NotInserted::Full) => Err("the table is full"),
            Err(NotInserted::Copies) => Err("too many of the same addresses and ports"),
        }
    }

    /// Returns the sessions of a vnic, those that were used last first.
    pub fn sessions_of(&self, vnic: &Vnic) -> Vec<MovedSession> {
        let snapshot = self.shared.snapshot.load_full();
        let (slot, now) = (vnic.place.slot, self.shared.clock.now());
        let mut sessions = Vec::new();
        if vnic.rules.bypass {
            return sessions;
        }
        self.shared.table.for_each(|_, record, key, admission| {
            let (opener, responder) = key.slots();
            let line = record.line2();
            if (opener == slot) == (responder == slot)
                || admission.stamp < vnic.born
                || snapshot.times.timeouts.over(line.state, line.seen, now)
            {
                return;
            }
            sessions.push(MovedSession {
                opened: opener == slot,
                routed: key.zone().is_routed(),
                tuple: key.tuple(),
                state: line.state,
                track: line.track,
                past: past(&line, now),
            });
        });
        sessions.sort_by_key(|session| session.past.idle);
        // The same conversation may be there twice, once with the trunk: the newer one counts.
        let mut seen = std::collections::HashSet::new();
        sessions.retain(|session| seen.insert((session.routed, flow(&session.tuple))));
        sessions
    }

    /// Takes over the sessions of a vnic from another host. As long as its machine does not run
    /// here, they replace those of an earlier import; later they only join what is there.
    pub fn take_sessions(&self, id: &str, sessions: &[MovedSession]) -> ImportedSessions {
        let mut account = ImportedSessions::default();
        let state = self.state();
        let before = self.shared.snapshot.load_full();
        let place = state.by_id.get(id).copied();
        let Some(old) = place.and_then(|place| before.vnic(place)) else { return account };
        let replaces = old.shared.elsewhere.load(Relaxed);
        let mut next = Snapshot::clone(&before);
        // Two: no worker decides under the first one, which is the stamp of what is imported.
        self.next_version(&mut next);
        self.next_version(&mut next);
        let Some(vnic) = next.vnic(old.place).cloned() else { return account };
        let vnic = Arc::new(Vnic { since: next.version, ..copy_with(&vnic, vnic.rules.clone()) });
        next.vnics.set(vnic.place.slot, Some(vnic.clone()));
        let next = Arc::new(next);
        self.publish(Snapshot::clone(&next));
        let Some(network) = next.networks.get(vnic.network).cloned() else { return account };
        let import = Import { plane: self, snapshot: &next, network: &network, vnic: &vnic };
        for session in sessions {
            match import.take(session, replaces) {
                Ok(true) => account.taken += 1,
                Ok(false) => account.known += 1,
                Err(why) => account.refuse(why),
            }
        }
        if replaces && !vnic.rules.bypass {
            account.ended = import.end_others();
        }
        account
    }
}

/// An import under way.
struct Import<'a> {
    plane: &'a Plane,
    snapshot: &'a Snapshot,
    network: &'a Network,
    vnic: &'a Vnic,
}

impl Import<'_> {
    /// Returns the stamp of imported sessions, and of no others: before the vnic's newest one, so
    /// that each is decided again, and not before any vnic.
    fn stamp(&self) -> u32 {
        self.snapshot.version - 1
    }

    /// Takes one session over. Returns whether it did: not if this host knows it itself, unless it
    /// is replaced because the machine does not run here.
    fn take(&self, session: &MovedSession, replaces: bool) -> Result<bool, &'static str> {
        let MovedSession { opened, routed, ref tuple, state, mut track, mut past } = *session;
        let (own, other) = if opened {
            (tuple.source, tuple.destination)
        } else {
            (tuple.destination, tuple.source)
        };
        let rules = &self.vnic.rules;
        if rules.bypass {
            return Err("the vnic is not filtered");
        }
        if !rules.owns(own) {
            return Err("not from an address of the vnic");
        }
        if rules.owns(other) || impossible(other, 0) {
            return Err("its other end cannot be");
        }
        if !state.is_of(tuple.protocol) || !track.is_possible() {
            return Err("its state cannot be");
        }
        let timeouts = &self.snapshot.times.timeouts;
        if past.idle > past.age || past.idle > timeouts.of(state) {
            return Err("it is over");
        }
        if let State::Tcp(state) = state {
            track.state = state;
            let adrift = TcpState::PickedUp <= state && state <= TcpState::Closing;
            track.fins = track.fins & !ADRIFT | if adrift { ADRIFT } else { 0 };
        }
        let mut state = state;
        let (home, next) = match routed {
            true => self.beyond(other, tuple).ok_or("no router here leads to its other end")?,
            false => (self.network, other),
        };
        let slot = match self.other(home, next).ok_or("its other end is not here")? {
            Other::At(slot) => slot,
            Other::Filtered(slot) => {
                // What that vnic has agreed to is in its own record.
                let line =
                    self.own_record_of(home, slot, session).ok_or("unknown to the vnic here")?;
                if matches!(line.state, State::Tcp(_)) {
                    // Found by its sequence numbers once the machine runs here.
                    return Ok(false);
                }
                (state, track) = (line.state, line.track);
                past = self::past(&line, self.now());
                slot
            }
        };
        let zone = match self.snapshot.vnics.get(slot).filter(|vnic| !vnic.is_trunk()) {
            Some(vnic) if routed => Zone::between(self.vnic.vni, vnic.vni),
            _ if routed => Zone::routed(self.vnic.vni),
            _ => Zone::of(self.vnic.vni),
        };
        let key = key(session, zone, self.vnic.place.slot, slot);
        let table = &self.plane.shared.table;
        if let Some(found) = table.lookup(table.hash(&key), &key) {
            let stamp = found.admission.stamp;
            let told_twice = stamp == self.stamp();
            if stamp >= self.vnic.born && (told_twice || !replaces) {
                return Ok(false);
            }
            let stored = if found.direction == 0 { key } else { key.reversed() };
            self.end(found.index, &stored, found.admission.stamp);
        }
        let admission = Admitted { stamp: self.stamp(), cells: [0; 2], answers: false };
        let life = Life { now: self.now(), state, track, past };
        let network = self.snapshot.network(key.vni()).ok_or("its network is not here")?;
        self.plane.add_moved(self.snapshot, network, &key, admission, &life).map(|()| true)
    }

    fn now(&self) -> u32 {
        self.plane.shared.clock.now()
    }

    /// Returns the network beside the vnic's by which a router leads to the other end of a
    /// conversation, and the address of the machine that gets its packets there.
    fn beyond(&self, address: Address, tuple: &Tuple) -> Option<(&Network, Address)> {
        let routing = self.network.routing.as_ref()?;
        let ends = [(tuple.source, tuple.source_port), (tuple.destination, tuple.destination_port)];
        let course = Course::new(ends, tuple.protocol);
        let ways = routing.nexts(address, self.vnic.vni, course);
        // As workers choose: the first one whose machine runs here, or is said to be elsewhere.
        let leads = |(vni, next): &&(u32, Address)| {
            let network = self.snapshot.network(*vni);
            let holding = network.and_then(|it| Some((it, it.holders.get(*next)?)));
            let runs = |slot| {
                let vnic = self.snapshot.vnics.get(slot);
                vnic.is_some_and(|vnic| vnic.shared.driving.load(Relaxed))
            };
            match holding.map(|(network, holding)| holding.one(network)) {
                Some(Some(slot)) if runs(slot) => true,
                Some(None) => false,
                _ => self.snapshot.neighbours.get(*vni, *next).is_some(),
            }
        };
        let Some((vni, next)) = ways.iter().find(leads).or_else(|| ways.first()) else {
            // By another host, as all that is outside.
            return routing.overs(address).next().map(|_| (self.network, address));
        };
        self.snapshot.network(*vni).map(|network| (&**network, *next))
    }

    /// Returns the other end of a session, by its address in a network.
    fn other(&self, home: &Network, address: Address) -> Option<Other> {
        let holding = home.holders.get(address);
        let slots = holding.into_iter().flat_map(|holding| holding.slots());
        let here: Vec<&Arc<Vnic>> = slots
            .filter_map(|slot| self.snapshot.vnics.get(slot))
            .filter(|vnic| vnic.place != self.vnic.place && self.snapshot.keeps_addresses(vnic))
            .collect();
        if let Some(filtered) = here.iter().find(|vnic| !vnic.rules.bypass) {
            return Some(Other::Filtered(filtered.place.slot));
        }
        let trunk = || self.network.remote.as_ref().map(|remote| remote.slot);
        here.first().map(|vnic| vnic.place.slot).or_else(trunk).map(Other::At)
    }

    /// Returns the record that a filtered vnic of this host has of a session: with the trunk, as
    /// the machine is on another host.
    fn own_record_of(&self, home: &Network, slot: u32, session: &MovedSession) -> Option<Line2> {
        let trunk = home.remote.as_ref()?.slot;
        let table = &self.plane.shared.table;
        let zone = if session.routed { Zone::routed(home.vni) } else { Zone::of(home.vni) };
        let key = key(session, zone, trunk, slot);
        let found = table.lookup(table.hash(&key), &key)?;
        let here = self.snapshot.vnics.get(slot)?;
        let line = table.record(found.index).line2();
        let over = self.snapshot.times.timeouts.over(line.state, line.seen, self.now());
        (found.direction == 0 && found.admission.stamp >= here.born && !over).then_some(line)
    }

    fn end(&self, index: u32, key: &Key, stamp: u32) -> bool {
        let shared = &self.plane.shared;
        let removed = shared.table.remove(index, key);
        if removed {
            shared.released(self.snapshot, key, stamp);
        }
        removed
    }

    /// Ends the sessions of the vnic that are not of this import. Its machine does not run here, so
    /// they are of an earlier one, or of an earlier stay. Returns their number.
    fn end_others(&self) -> u64 {
        let (slot, mut ended) = (self.vnic.place.slot, 0);
        self.plane.shared.table.for_each(|index, _, key, admission| {
            let (opener, responder) = key.slots();
            if (opener == slot || responder == slot)
                && admission.stamp != self.stamp()
                && self.vnic.shared.elsewhere.load(Relaxed)
            {
                ended += u64::from(self.end(index, &key, admission.stamp));
            }
        });
        ended
    }
}

/// Returns the key of a session in a zone, between the vnics in two slots.
fn key(session: &MovedSession, zone: Zone, own: u32, other: u32) -> Key {
    let (from, to) = if session.opened { (own, other) } else { (other, own) };
    Key::new(&session.tuple, zone, from, to)
}

fn past(line: &Line2, now: u32) -> Past {
    Past {
        age: now.saturating_sub(line.made),
        idle: now.saturating_sub(line.seen),
        packets: line.packets,
        bytes: line.bytes,
    }
}

/// Returns the ends of a conversation in one order.
fn flow(tuple: &Tuple) -> (u8, u16, [(Address, u16); 2]) {
    let mut ends = [(tuple.source, tuple.source_port), (tuple.destination, tuple.destination_port)];
    ends.sort_unstable();
    (tuple.protocol, tuple.vlan, ends)
}

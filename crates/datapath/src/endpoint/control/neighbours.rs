//! Link addresses of next hops, as a kernel keeps them (RFC 826, RFC 1122 2.3.2, RFC 4861 7.3):
//! asked for when needed, believed only from the station that was asked, checked when old.
//!
//! A next hop is a peer on the link or a gateway. No station takes over the address of a known one
//! by claiming it: a claim only makes us ask the known station, then the new one, by unicast. An
//! attacker on the link wins if the true owner is silent; ARP and ND allow no better.

use std::{collections::BTreeMap, net::IpAddr};

use butterfly_packet::Mac;

use crate::endpoint::control::{
    ControlEvent, NextHop, Output,
    counts::{ControlCounts, Count},
    link::Link,
};

/// Most peers known at once. When there are more, the least recently used one is forgotten, and its
/// next hop with it.
pub(super) const MAX_PEERS: usize = 4096;
/// Bytes of frames that wait for next hops.
pub(super) const MAX_WAITING: usize = 4 << 20;
/// Questions before a next hop counts as unreachable (RFC 4861, 10: MAX_MULTICAST_SOLICIT,
/// MAX_UNICAST_SOLICIT).
const ASK: u8 = 3;
/// Milliseconds between them (RFC 4861, 10: RETRANS_TIMER).
const ASK_EVERY: u64 = 1000;
/// Milliseconds for which a silent next hop is not asked again.
const RETRY: u64 = 1000;
/// Milliseconds for which an answer holds (RFC 4861, 10: REACHABLE_TIME).
pub(super) const REACHABLE: u64 = 30_000;
/// Milliseconds after a confirmation in which claims are ignored. Otherwise claims could make us
/// ask all the time.
const SETTLED: u64 = 1000;
/// Milliseconds without use after which a peer is forgotten.
const FORGET: u64 = 600_000;
/// Milliseconds between looks for such peers.
const SWEEP: u64 = 60_000;

/// State of a next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// All stations were asked for it, so many times.
    Asking { sent: u8 },
    /// It was confirmed in the last [`REACHABLE`] milliseconds.
    Reachable(Mac),
    /// It was confirmed longer ago. It is used, and the first use checks it.
    Stale(Mac),
    /// It was asked, so many times. After it, the station that claims its address is asked, then
    /// all stations.
    Probing { mac: Mac, claimed: Option<Mac>, sent: u8 },
    /// It did not answer, and is not asked again before `until`.
    Unreachable { until: u64 },
}

struct Neighbour {
    state: State,
    /// Time at which the state ends by itself.
    due: u64,
    confirmed: Option<u64>,
}

impl Neighbour {
    fn mac(&self) -> Option<Mac> {
        match self.state {
            State::Reachable(mac) | State::Stale(mac) | State::Probing { mac, .. } => Some(mac),
            State::Asking { .. } | State::Unreachable { .. } => None,
        }
    }
}

struct Peer {
    hop: IpAddr,
    used: u64,
    waiting: Option<Vec<u8>>,
}

/// The table. Every next hop in it is a peer in it, or a gateway: so the bound on peers bounds
/// both.
pub(super) struct Neighbours {
    peers: BTreeMap<IpAddr, Peer>,
    hops: BTreeMap<IpAddr, Neighbour>,
    waiting: usize,
    /// Time before which no state ends by itself.
    wake: u64,
    sweep: u64,
}

impl Neighbours {
    pub fn new() -> Neighbours {
        Neighbours {
            peers: BTreeMap::new(),
            hops: BTreeMap::new(),
            waiting: 0,
            wake: u64::MAX,
            sweep: u64::MAX,
        }
    }

    /// Returns the time at which [`Self::tick`] has something to do.
    pub fn wake(&self) -> u64 {
        self.wake.min(self.sweep)
    }

    /// Finds the way to a peer. `frame`, complete except for its destination MAC, is sent at once
    /// or when the way is known.
    pub fn resolve(
        &mut self,
        link: &Link,
        peer: IpAddr,
        frame: Option<Vec<u8>>,
        now: u64,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) {
        if !link.can_be_peer(peer) {
            counts.add(Count::BadPeer);
            out.events.push(ControlEvent::Unreachable(peer));
            return;
        }
        let hop = self.touch(link, peer, now, counts, out);
        let unknown =
            Neighbour { state: State::Unreachable { until: now }, due: u64::MAX, confirmed: None };
        let neighbour = self.hops.entry(hop).or_insert(unknown);
        if let State::Unreachable { until } = neighbour.state {
            if until > now {
                out.events.push(ControlEvent::Unreachable(peer));
                if frame.is_some() {
                    counts.add(Count::NoAnswer);
                }
                return;
            }
            neighbour.state = State::Asking { sent: 1 };
            neighbour.due = now + ASK_EVERY;
            self.wake = self.wake.min(neighbour.due);
            out.frames.push(link.who_has(hop, None));
        }
        match neighbour.mac() {
            Some(mac) => {
                out.frames.extend(frame.and_then(|frame| addressed(frame, mac)));
                out.events.push(ControlEvent::Resolved(peer, mac));
                self.check(link, hop, now, out);
            }
            None => self.keep(peer, frame, counts),
        }
    }

    /// Notes that frames are being sent to a peer. Checks its next hop if it was silent for long,
    /// and finds it if it is not known.
    pub fn used(
        &mut self,
        link: &Link,
        peer: IpAddr,
        now: u64,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) {
        match self.peers.get_mut(&peer) {
            Some(known)
                if !matches!(
                    self.hops.get(&known.hop),
                    None | Some(Neighbour { state: State::Unreachable { .. }, .. })
                ) =>
            {
                known.used = now;
                let hop = known.hop;
                self.check(link, hop, now, out);
            }
            _ => self.resolve(link, peer, None, now, counts, out),
        }
    }

    /// Asks a stale next hop whether it is still there.
    fn check(&mut self, link: &Link, hop: IpAddr, now: u64, out: &mut Output) {
        if let Some(neighbour) = self.hops.get_mut(&hop)
            && let State::Stale(mac) = neighbour.state
        {
            neighbour.state = State::Probing { mac, claimed: None, sent: 1 };
            neighbour.due = now + ASK_EVERY;
            self.wake = self.wake.min(neighbour.due);
            out.frames.push(link.who_has(hop, Some(mac)));
        }
    }

    /// Returns the next hop to a peer, and keeps the peer in the table.
    fn touch(
        &mut self,
        link: &Link,
        peer: IpAddr,
        now: u64,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) -> IpAddr {
        let silent = |hop| {
            matches!(self.hops.get(&hop), Some(Neighbour { state: State::Unreachable { .. }, .. }))
        };
        let hop = link.next_hop(peer, silent);
        if let Some(known) = self.peers.get_mut(&peer) {
            (known.hop, known.used) = (hop, now);
            return hop;
        }
        if self.peers.len() >= MAX_PEERS
            && let Some(oldest) =
                self.peers.iter().min_by_key(|(_, peer)| peer.used).map(|(address, _)| *address)
        {
            counts.add(Count::NeighboursFull);
            self.forget(link, oldest, counts, out);
        }
        self.peers.insert(peer, Peer { hop, used: now, waiting: None });
        self.sweep = self.sweep.min(now + SWEEP);
        hop
    }

    /// Removes a peer, and its next hop if that is the peer itself. Tells the packet path if
    /// its link address was not known yet.
    fn forget(
        &mut self,
        link: &Link,
        address: IpAddr,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) {
        let Some(peer) = self.peers.remove(&address) else { return };
        if self.hops.get(&peer.hop).is_some_and(|hop| hop.mac().is_none()) {
            out.events.push(ControlEvent::Unreachable(address));
        }
        if let Some(frame) = peer.waiting {
            self.waiting = self.waiting.saturating_sub(frame.len());
            counts.add(Count::NoAnswer);
        }
        if !link.is_gateway(address) {
            self.hops.remove(&address);
        }
    }

    /// Keeps the newest frame of a peer: its sender has the least reason to have given up (RFC
    /// 1122, 2.3.2.2).
    fn keep(&mut self, peer: IpAddr, frame: Option<Vec<u8>>, counts: &mut ControlCounts) {
        let Some(frame) = frame.filter(|frame| !frame.is_empty()) else { return };
        let Some(peer) = self.peers.get_mut(&peer) else { return };
        let before = peer.waiting.as_ref().map_or(0, Vec::len);
        if self.waiting.saturating_sub(before) + frame.len() > MAX_WAITING {
            counts.add(Count::WaitingFull);
            return;
        }
        self.waiting = self.waiting.saturating_sub(before) + frame.len();
        if peer.waiting.replace(frame).is_some() {
            counts.add(Count::NoAnswer);
        }
    }

    /// Takes an answer to us that `hop` is at `mac`.
    pub fn answer(
        &mut self,
        link: &Link,
        hop: IpAddr,
        mac: Mac,
        now: u64,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) {
        match self.hops.get(&hop).map(|neighbour| neighbour.state) {
            Some(State::Asking { .. }) => self.accept(link, hop, mac, now, out),
            Some(State::Probing { mac: known, .. }) if known == mac => {
                self.accept(link, hop, mac, now, out)
            }
            // The claimant was asked second, all stations third.
            Some(State::Probing { claimed, sent, .. })
                if sent >= 3 || sent == 2 && claimed == Some(mac) =>
            {
                self.accept(link, hop, mac, now, out);
            }
            _ => {
                counts.add(Count::Unasked);
                self.claim(link, hop, mac, now, counts, out);
            }
        }
    }

    /// Takes an unasked claim that `hop` is at `mac`.
    pub fn claim(
        &mut self,
        link: &Link,
        hop: IpAddr,
        mac: Mac,
        now: u64,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) {
        let Some(neighbour) = self.hops.get_mut(&hop) else { return };
        match &mut neighbour.state {
            State::Reachable(known) | State::Stale(known) if *known != mac => {
                counts.add(Count::Claim);
                if neighbour.confirmed.is_some_and(|confirmed| now < confirmed + SETTLED) {
                    return;
                }
                let known = *known;
                neighbour.state = State::Probing { mac: known, claimed: Some(mac), sent: 1 };
                neighbour.due = now + ASK_EVERY;
                self.wake = self.wake.min(neighbour.due);
                out.frames.push(link.who_has(hop, Some(known)));
            }
            State::Probing { mac: known, claimed: claimed @ None, sent: 1 } if *known != mac => {
                counts.add(Count::Claim);
                *claimed = Some(mac);
            }
            _ => {}
        }
    }

    /// Notes that a frame came from `peer` by way of the station `mac`.
    pub fn confirmed(
        &mut self,
        link: &Link,
        peer: IpAddr,
        mac: Mac,
        now: u64,
        counts: &mut ControlCounts,
        out: &mut Output,
    ) {
        let Some(hop) = self.peers.get(&peer).map(|peer| peer.hop) else { return };
        let Some(known) = self.hops.get(&hop).and_then(Neighbour::mac) else { return };
        if known == mac {
            self.accept(link, hop, mac, now, out);
        } else if hop == peer {
            self.claim(link, hop, mac, now, counts, out);
        } // else another gateway than ours sends to us: nothing is wrong with that
    }

    /// Accepts `mac` as the link address of `hop`.
    fn accept(&mut self, link: &Link, hop: IpAddr, mac: Mac, now: u64, out: &mut Output) {
        let Some(neighbour) = self.hops.get_mut(&hop) else { return };
        let is_new = neighbour.mac() != Some(mac);
        *neighbour =
            Neighbour { state: State::Reachable(mac), due: now + REACHABLE, confirmed: Some(now) };
        self.wake = self.wake.min(neighbour.due);
        if is_new {
            let mut waited = 0;
            each_peer(&mut self.peers, link, hop, |address, peer| {
                out.events.push(ControlEvent::Resolved(address, mac));
                if let Some(frame) = peer.waiting.take() {
                    waited += frame.len();
                    out.frames.extend(addressed(frame, mac));
                }
            });
            self.waiting = self.waiting.saturating_sub(waited);
        }
    }

    /// Marks a next hop that does not answer as unreachable.
    fn give_up(&mut self, link: &Link, hop: IpAddr, counts: &mut ControlCounts, out: &mut Output) {
        let mut waited = 0;
        each_peer(&mut self.peers, link, hop, |address, peer| {
            out.events.push(ControlEvent::Unreachable(address));
            if let Some(frame) = peer.waiting.take() {
                waited += frame.len();
                counts.add(Count::NoAnswer);
            }
        });
        self.waiting = self.waiting.saturating_sub(waited);
    }

    /// Lets time pass.
    pub fn tick(&mut self, link: &Link, now: u64, counts: &mut ControlCounts, out: &mut Output) {
        if self.wake <= now {
            self.wake = u64::MAX;
            let mut lost = Vec::new();
            for (&hop, neighbour) in &mut self.hops {
                if neighbour.due <= now && neighbour.pass(link, hop, now, out) {
                    lost.push(hop);
                }
                self.wake = self.wake.min(neighbour.due);
            }
            for hop in lost {
                self.give_up(link, hop, counts, out);
            }
        }
        if self.sweep <= now {
            let idle =
                |peer: &Peer| peer.used.saturating_add(FORGET) <= now && peer.waiting.is_none();
            let old: Vec<IpAddr> = self
                .peers
                .iter()
                .filter(|(_, peer)| idle(peer))
                .map(|(address, _)| *address)
                .collect();
            for address in old {
                self.forget(link, address, counts, out);
            }
            self.sweep = if self.peers.is_empty() { u64::MAX } else { now + SWEEP };
        }
    }

    /// Returns the next hops for the operator, by address.
    pub fn list(&self, now: u64) -> Vec<NextHop> {
        let mut behind = BTreeMap::new();
        for peer in self.peers.values() {
            *behind.entry(peer.hop).or_insert(0) += 1;
        }
        let row = |(address, neighbour): (&IpAddr, &Neighbour)| NextHop {
            address: *address,
            state: match neighbour.state {
                State::Asking { .. } => "asking",
                State::Reachable(_) => "reachable",
                State::Stale(_) => "stale",
                State::Probing { .. } => "probing",
                State::Unreachable { .. } => "unreachable",
            },
            mac: neighbour.mac(),
            age: neighbour.confirmed.map(|confirmed| now.saturating_sub(confirmed)),
            peers: behind.get(address).copied().unwrap_or(0),
        };
        self.hops.iter().map(row).collect()
    }

    #[cfg(test)]
    pub fn len(&self) -> (usize, usize, usize) {
        (self.peers.len(), self.hops.len(), self.waiting)
    }
}

impl Neighbour {
    /// Ends a state whose time is over. Returns whether the next hop becomes unreachable.
    fn pass(&mut self, link: &Link, hop: IpAddr, now: u64, out: &mut Output) -> bool {
        self.due = now + ASK_EVERY;
        match &mut self.state {
            State::Asking { sent } if *sent < ASK => {
                *sent += 1;
                out.frames.push(link.who_has(hop, None));
            }
            State::Probing { mac, claimed, sent } if *sent < ASK => {
                *sent += 1;
                let station = if *sent == ASK { None } else { Some(claimed.unwrap_or(*mac)) };
                out.frames.push(link.who_has(hop, station));
            }
            State::Asking { .. } | State::Probing { .. } => {
                self.state = State::Unreachable { until: now + RETRY };
                self.due = u64::MAX;
                return true;
            }
            State::Reachable(mac) => {
                self.state = State::Stale(*mac);
                self.due = u64::MAX;
            }
            State::Stale(_) | State::Unreachable { .. } => self.due = u64::MAX,
        }
        false
    }
}

/// Visits the peers behind a next hop: many behind a gateway, else the one peer that is the next
/// hop.
fn each_peer(
    peers: &mut BTreeMap<IpAddr, Peer>,
    link: &Link,
    hop: IpAddr,
    mut f: impl FnMut(IpAddr, &mut Peer),
) {
    if !link.is_gateway(hop) {
        if let Some(peer) = peers.get_mut(&hop) {
            f(hop, peer);
        }
        return;
    }
    for (address, peer) in peers.iter_mut().filter(|(_, peer)| peer.hop == hop) {
        f(*address, peer);
    }
}

/// Fills in a frame's destination MAC. `None` if it is too short to be a frame.
fn addressed(mut frame: Vec<u8>, mac: Mac) -> Option<Vec<u8>> {
    frame.first_chunk_mut::<6>()?.copy_from_slice(&mac.0);
    Some(frame)
}

//! Next hops: known to the host's kernel or asked for by the endpoint, for frames that wait and for
//! peers that are only sent to.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use butterfly_packet::mac::Mac;

use crate::endpoint::{
    control::{ControlEvent, Output},
    keeper::{Asked, State},
    silence::Refusal,
};
use crate::engine::place::PeerRef;
use crate::overlay::Tunnel;
use crate::plane::Plane;

/// Longest pause until the kernel is asked again for a next hop that it is looking for (the first
/// is 1 ms), and the longest time for which it is asked.
const ASK_AGAIN: u64 = 50;
const ASK_FOR: u64 = 3_000;
/// Milliseconds between questions for next hops that were silent.
const REFRESH: u64 = 5_000;
/// Longest pause between questions for the next hop of a named peer that was never found, and the
/// number of such questions per second.
const MEET_AGAIN: u64 = 60_000;
pub(super) const MEET: usize = 64;

impl State {
    /// Finds the next hop to a peer. The host's kernel knows it or finds it out; without its help
    /// we ask ourselves.
    pub(super) fn resolve(&mut self, tunnel: &Tunnel, peer: IpAddr, waiting: Vec<u8>, now: u64) {
        if let Some((interface, via)) = self.hop(peer) {
            if let Some(mac) = self.neighbour(interface, via) {
                found(tunnel, peer, mac, Some(waiting), &mut self.out);
            } else {
                if let Some(host) = &mut self.host
                    && let Err(why) = host.kernel.ask(interface, via)
                {
                    tracing::debug!(%peer, %why, "the host does not look for a next hop");
                }
                self.asked.insert(peer, Asked { interface, via, waiting, since: now });
                // A neighbour that is there answers at once, and frames wait for it.
                (self.ask_pause, self.next_ask) = (1, now + 1);
            }
            return;
        }
        self.control.resolve(peer, (!waiting.is_empty()).then_some(waiting), now, &mut self.out);
    }

    fn hop(&mut self, peer: IpAddr) -> Option<(u32, IpAddr)> {
        let host = self.host.as_mut()?;
        let hop = host.kernel.next_hop(peer).ok()??;
        host.link.leads_out(&mut host.kernel, hop.interface).then_some((hop.interface, hop.via))
    }

    fn neighbour(&mut self, interface: u32, via: IpAddr) -> Option<Mac> {
        self.host.as_mut()?.kernel.neighbour(interface, via).ok()?
    }

    /// Looks whether the kernel found the next hops it was asked for.
    pub(super) fn ask_again(&mut self, tunnel: &Tunnel, now: u64) {
        if self.asked.is_empty() || now < self.next_ask {
            return;
        }
        self.ask_pause = (2 * self.ask_pause).min(ASK_AGAIN);
        self.next_ask = now + self.ask_pause;
        for (peer, asked) in std::mem::take(&mut self.asked) {
            if let Some(mac) = self.neighbour(asked.interface, asked.via) {
                found(tunnel, peer, mac, Some(asked.waiting), &mut self.out);
            } else if now.saturating_sub(asked.since) > ASK_FOR {
                self.lost += u64::from(!asked.waiting.is_empty());
                self.out.events.push(ControlEvent::Unreachable(peer));
            } else {
                self.asked.insert(peer, asked);
            }
        }
    }

    /// Looks after next hops of peers that frames are only sent to. Peers that are heard need no
    /// question.
    pub(super) fn every_second(&mut self, plane: &Plane, tunnel: &Tunnel, ageing: u32, now: u64) {
        let clock = plane.shared.clock.now();
        let refresh = now >= self.next_refresh;
        if refresh {
            self.next_refresh = now + REFRESH;
        }
        self.watch_link(tunnel, now);
        let mut sent = BTreeMap::new();
        let mut unknown = BTreeSet::new();
        let mut unmet = Vec::new();
        let rows = tunnel.peers.list(clock);
        self.peers.look(&rows, &*self.events);
        self.silences.look(&rows, clock);
        for row in rows {
            let out = row.sent();
            let speaks = self.sent.get(&row.at).is_some_and(|before| *before != out);
            sent.insert(row.at, out);
            let heard = row.idle.is_some_and(|idle| idle <= 1);
            let Some(mac) = row.mac else {
                unmet.extend(row.configured.then_some((row.at, row.address)));
                continue;
            };
            if heard {
                self.control.confirmed(row.address, mac, now, &mut self.out);
            } else if speaks {
                match self.hop(row.address) {
                    None => self.control.used(row.address, now, &mut self.out),
                    Some((interface, via)) if refresh => {
                        let Some(host) = &mut self.host else { continue };
                        // The kernel keeps next hops of its own traffic fresh; those of ours only
                        // if it is asked.
                        let _ = host.kernel.ask(interface, via);
                        // A next hop that the kernel is not sure of may be older than ours.
                        if let Ok(Some(mac)) = host.kernel.confirmed(interface, via) {
                            found(tunnel, row.address, mac, None, &mut self.out);
                            self.silences.answers(row.at);
                        } else if let Ok(None) = host.kernel.neighbour(interface, via) {
                            unknown.insert(row.at);
                            // The kernel had time to find it out since.
                            if self.unknown.contains(&row.at) {
                                self.silences.refused(row.at, Refusal::NoNextHop, clock);
                                // Nothing came from there either.
                                if let Some(peer) = tunnel
                                    .peers
                                    .get(row.at)
                                    .filter(|peer| !peer.was_heard(clock, ageing))
                                {
                                    peer.set_mac(None);
                                }
                            }
                        }
                    }
                    Some(_) => {}
                }
            }
        }
        self.sent = sent;
        if refresh {
            self.unknown = unknown;
        }
        self.meet(tunnel, &unmet, now);
    }

    /// Finds named peers before the first frame for them comes. Otherwise the first frame waits,
    /// and the next one is lost.
    fn meet(&mut self, tunnel: &Tunnel, unmet: &[(PeerRef, IpAddr)], now: u64) {
        let still: BTreeSet<PeerRef> = unmet.iter().map(|(at, _)| *at).collect();
        self.unmet.retain(|at, _| still.contains(at));
        let mut due = Vec::new();
        for (at, address) in unmet {
            let (next, _) = *self.unmet.entry(*at).or_insert((now, 1_000));
            // A frame that waits for an answer goes on waiting.
            if next <= now && !self.asked.contains_key(address) {
                due.push((next, *at, *address));
            }
        }
        // The peers that were not asked for longest come first.
        due.sort_unstable();
        for (_, at, address) in due.into_iter().take(MEET) {
            if let Some((next, pause)) = self.unmet.get_mut(&at) {
                (*next, *pause) = (now + *pause, (2 * *pause).min(MEET_AGAIN));
            }
            self.resolve(tunnel, address, Vec::new(), now);
        }
    }
}

/// Stores a peer's next hop that was found.
fn found(tunnel: &Tunnel, peer: IpAddr, mac: Mac, waiting: Option<Vec<u8>>, out: &mut Output) {
    let Some(peer) =
        tunnel.peers.find(crate::world::rules::number(peer)).and_then(|at| tunnel.peers.get(at))
    else {
        return;
    };
    peer.set_mac(Some(mac));
    peer.stop_waiting();
    if let Some(mut frame) = waiting
        && let Some(to) = frame.get_mut(..6)
    {
        to.copy_from_slice(&mac.0);
        out.frames.push(frame);
    }
}

//! The keeper: the thread that answers for the endpoint, finds next hops, joins groups and forgets
//! silent peers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use butterfly_packet::{ethernet, mac::Mac, protocol};
use butterfly_uplink::{groups::Groups, kernel::Kernel, packet::PacketSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::endpoint::{
    control::{Control, ControlConfig, ControlEvent, Count, Output},
    link::{LinkState, LinkWatch, News},
    silence::{Refusal, Silences, Told},
    watch::PeerWatch,
};
use crate::engine::events::{About, Happening, SwitchEvents};
use crate::engine::place::PeerRef;
use crate::overlay::{Own, Punted, Tunnel};
use crate::plane::Plane;
use crate::world::rules::address as ip_of;

/// Longest time, in milliseconds, between two looks at anything that waits.
const TICK: u64 = 100;
/// Longest pause until the kernel is asked again for a next hop that it is looking for (the first
/// is 1 ms), and the longest time for which it is asked.
const ASK_AGAIN: u64 = 50;
const ASK_FOR: u64 = 3_000;
/// Most frames of the endpoint's own that wait for their turn: as many as there may be groups.
const KEPT: usize = 1 << 16;
/// Milliseconds between questions for next hops that were silent.
const REFRESH: u64 = 5_000;
/// Longest pause between questions for the next hop of a named peer that was never found, and the
/// number of such questions per second.
const MEET_AGAIN: u64 = 60_000;
const MEET: usize = 64;
/// Frames from each side that are heard before other work has its turn. A sender of more frames
/// does not hold up the keeper.
const HEAR: usize = 64;
/// Pause before the frames that are left.
const BREATH: Duration = Duration::from_micros(100);
/// Milliseconds in which the farewells to groups are sent.
const FAREWELL: u64 = 200;

/// The keeper's part of a host whose interface is the uplink.
pub(crate) struct HostSide {
    pub kernel: Kernel,
    /// Copies of the packets that the host's own stack hears, if it holds the endpoint's address.
    pub packets: Option<PacketSocket>,
    /// The network card's filter.
    pub groups: Option<Groups>,
    pub link: LinkWatch,
}

/// A next hop that the kernel looks for.
struct Asked {
    interface: u32,
    via: IpAddr,
    waiting: Vec<u8>,
    since: u64,
}

struct State {
    control: Control,
    host: Option<HostSide>,
    out: Output,
    joined: BTreeSet<u32>,
    asked: BTreeMap<IpAddr, Asked>,
    /// Frames that waited for a next hop that the kernel did not find.
    lost: u64,
    /// Frames sent to each peer, as of the last look.
    sent: BTreeMap<PeerRef, u64>,
    next_second: u64,
    next_refresh: u64,
    /// Time at which the kernel is asked again, and the pause before that.
    next_ask: u64,
    ask_pause: u64,
    /// Peers whose next hop the kernel did not know at the last look.
    unknown: BTreeSet<PeerRef>,
    /// Named peers whose next hop is not known: the time of the next question, and the pause after
    /// that.
    unmet: BTreeMap<PeerRef, (u64, u64)>,
    /// True if setting the network card's filter failed and is to be repeated.
    failed_groups: bool,
    warned: bool,
    /// True if groups of networks could not be joined for want of room.
    full: bool,
    events: Arc<dyn SwitchEvents>,
    peers: PeerWatch,
    silences: Silences,
}

/// The thread's shared part.
pub(crate) struct Keeper {
    plane: Arc<Plane>,
    state: Mutex<State>,
    stop: AtomicBool,
    /// The other end of the uplink was attached.
    returned: AtomicBool,
    began: Instant,
    ageing: u32,
}

/// A group that a network has joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct GroupRow {
    /// Network.
    pub vni: u32,
    /// Group.
    pub group: IpAddr,
}

/// A next hop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeighbourRow {
    /// Its address.
    pub address: IpAddr,
    /// Its link address, if it is known.
    pub mac: Option<Mac>,
    /// State of its resolution.
    pub state: String,
    /// Seconds since it was confirmed.
    pub age: Option<u32>,
}

impl Keeper {
    pub fn new(
        plane: Arc<Plane>,
        config: ControlConfig,
        host: Option<HostSide>,
        ageing: u32,
        events: Arc<dyn SwitchEvents>,
    ) -> Keeper {
        let state = State {
            control: Control::new(config),
            host,
            out: Output::default(),
            joined: BTreeSet::new(),
            asked: BTreeMap::new(),
            lost: 0,
            sent: BTreeMap::new(),
            next_second: 0,
            next_refresh: 0,
            next_ask: 0,
            ask_pause: 1,
            unknown: BTreeSet::new(),
            unmet: BTreeMap::new(),
            failed_groups: true,
            warned: false,
            full: false,
            events,
            peers: PeerWatch::default(),
            silences: Silences::default(),
        };
        let (stop, returned) = (AtomicBool::new(false), AtomicBool::new(false));
        Keeper { plane, state: Mutex::new(state), stop, returned, began: Instant::now(), ageing }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Runs until [`Self::stop`].
    pub fn run(&self) {
        let Some(tunnel) = &self.plane.shared.tunnel else { return };
        let mut buffer = vec![0; 65_536];
        let mut more = false;
        while !self.stop.load(Ordering::Acquire) {
            if more {
                // The pause lets an operator's request get the lock, too.
                std::thread::sleep(BREATH);
            } else {
                self.wait(tunnel);
            }
            let mut state = self.state();
            let now = self.now();
            tunnel.punt.clear();
            more = state.hear(tunnel, &mut buffer, now);
            if self.returned.swap(false, Ordering::AcqRel) {
                state.returned(now);
            }
            state.follow_networks(&self.plane, now);
            state.ask_again(tunnel, now);
            if now >= state.next_second {
                state.next_second = now + 1_000;
                state.every_second(&self.plane, tunnel, self.ageing, now);
                let clock = self.plane.shared.clock.now();
                tunnel.peers.expire(clock, self.ageing.saturating_add(10));
            }
            let State { control, out, .. } = &mut *state;
            control.tick(now, out);
            state.carry_out(&self.plane, tunnel, self.ageing);
        }
    }

    /// Waits for frames, or until something is due.
    fn wait(&self, tunnel: &Tunnel) {
        let (due, packets) = {
            let state = self.state();
            let now = self.now();
            let next = state.control.next_tick().map_or(TICK, |at| at.saturating_sub(now));
            let most =
                if state.asked.is_empty() { TICK } else { state.next_ask.saturating_sub(now) };
            let packets = state.host.as_ref().and_then(|host| host.packets.as_ref());
            (next.min(most), packets.and_then(|socket| rustix::io::dup(socket).ok()))
        };
        if !tunnel.punt.sleeps() {
            return;
        }
        let punt = tunnel.punt.descriptor();
        let mut fds = vec![PollFd::new(&punt, PollFlags::IN)];
        if let Some(packets) = &packets {
            fds.push(PollFd::new(packets, PollFlags::IN));
        }
        let due = Duration::from_millis(due);
        let due = Timespec { tv_sec: due.as_secs() as _, tv_nsec: due.subsec_nanos().into() };
        let _ = poll(&mut fds, Some(&due)); // an interruption is a reason to look, too
    }

    /// Notes that the uplink's other end was attached, and does not know us.
    pub fn returned(&self) {
        self.returned.store(true, Ordering::Release);
    }

    /// Returns the state of the uplink's interface, if it has one.
    pub fn link(&self) -> Option<LinkState> {
        self.state().host.as_ref()?.link.state()
    }

    /// Leaves all groups, and ends the thread.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let Some(tunnel) = &self.plane.shared.tunnel else { return };
        {
            let mut state = self.state();
            let State { control, out, joined, .. } = &mut *state;
            for vni in std::mem::take(joined) {
                control.leave(vni, out);
            }
            state.carry_out(&self.plane, tunnel, self.ageing);
        }
        let begin = Instant::now();
        while tunnel.punt.wants_to_send() && begin.elapsed() < Duration::from_millis(FAREWELL) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the groups that networks have joined.
    pub fn groups(&self) -> Vec<GroupRow> {
        let rows = self.state().control.groups(self.now());
        rows.into_iter()
            .filter_map(|row| Some(GroupRow { vni: row.vni?, group: row.address }))
            .collect()
    }

    /// Returns the next hops, and the addresses that the kernel is asked for.
    pub fn neighbours(&self) -> Vec<NeighbourRow> {
        let state = self.state();
        let rows = state.control.neighbours(self.now()).into_iter().map(|row| NeighbourRow {
            address: row.address,
            mac: row.mac,
            state: row.state.to_owned(),
            age: row.age.map(|age| (age / 1000) as u32),
        });
        let asked = state.asked.values().map(|asked| NeighbourRow {
            address: asked.via,
            mac: None,
            state: "asking the host".to_owned(),
            age: None,
        });
        rows.chain(asked).collect()
    }

    /// Returns the state of a peer that does not answer, at second `clock`.
    pub fn silence(&self, peer: PeerRef, clock: u32) -> Told {
        self.state().silences.told(peer, clock)
    }

    /// Returns name, meaning and value of the counters of frames for the endpoint.
    pub fn counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        self.state().control.counts().list().collect()
    }
}

impl State {
    /// Takes the frames that workers and the host's stack have for us. Returns whether there may be
    /// more.
    fn hear(&mut self, tunnel: &Tunnel, buffer: &mut [u8], now: u64) -> bool {
        let mut heard = 0;
        while heard < HEAR
            && let Some((what, frame)) = tunnel.punt.take()
        {
            heard += 1;
            match what {
                Punted::Control => self.control.input(&frame, now, &mut self.out),
                Punted::Waiting(at) => {
                    if let Some(peer) = tunnel.peers.get(at) {
                        self.resolve(tunnel, ip_of(peer.address()), frame.clone(), now);
                    }
                }
            }
            tunnel.punt.give_back(frame);
        }
        let packets = self.host.as_ref().and_then(|host| host.packets.as_ref());
        for _ in 0..HEAR {
            // Frames that are left keep the socket readable.
            let Some(Ok(Some(len))) = packets.map(|socket| socket.receive(buffer)) else { break };
            if let Some(frame) = buffer.get(..len) {
                self.control.input(frame, now, &mut self.out);
            }
        }
        heard == HEAR
    }

    /// Finds the next hop to a peer. The host's kernel knows it or finds it out; without its help
    /// we ask ourselves.
    fn resolve(&mut self, tunnel: &Tunnel, peer: IpAddr, waiting: Vec<u8>, now: u64) {
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

    /// Looks whether the interface has changed.
    fn watch_link(&mut self, tunnel: &Tunnel, now: u64) {
        let Some(HostSide { kernel, link, .. }) = &mut self.host else { return };
        let Some(News { told, carries, returned, mtu }) = link.look(kernel) else { return };
        let uplink = link.name();
        let down = |text: &str| {
            tracing::warn!(uplink, "{text}");
            self.events.happened(About::default(), Happening::UplinkDown(text));
        };
        match told {
            Some(LinkState::Up) => {
                const TEXT: &str = "the uplink's interface is up";
                tracing::info!(uplink, "{TEXT}");
                self.events.happened(About::default(), Happening::UplinkUp(TEXT));
            }
            Some(LinkState::NoCarrier) => {
                down("the uplink's interface has no carrier: nothing leaves this host")
            }
            Some(LinkState::Down) => {
                down("the uplink's interface is down: nothing leaves this host")
            }
            Some(LinkState::Removed) => {
                down("the uplink's interface was removed: restart butterflyd when it is back")
            }
            Some(LinkState::Elsewhere) => {
                tracing::warn!(
                    uplink,
                    "the TAP device is in another network namespace, or was deleted"
                );
            }
            None => {}
        }
        tunnel.down.store(!carries, Ordering::Relaxed);
        if let Some(mtu) = mtu
            && tunnel.mtu.swap(mtu, Ordering::Relaxed) != mtu
        {
            tracing::warn!(
                uplink,
                mtu,
                "the uplink's MTU has changed: virtual machines need another host_mtu=, interfaces in network namespaces another mtu"
            );
            self.events.happened(About::default(), Happening::UplinkMtu(mtu));
        }
        if returned {
            self.returned(now);
        }
    }

    /// Repeats all reports, announcements and questions, because stations on the link may have
    /// forgotten us or never heard of us.
    fn returned(&mut self, now: u64) {
        self.control.returned(now);
        self.unmet.clear();
    }

    /// Looks whether the kernel found the next hops it was asked for.
    fn ask_again(&mut self, tunnel: &Tunnel, now: u64) {
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

    /// Joins the groups of new networks, and leaves those of networks that are gone.
    fn follow_networks(&mut self, plane: &Plane, now: u64) {
        let snapshot = plane.shared.snapshot.load();
        let alone = |at: &u32| {
            // A network with nothing but mirrors has no receiver.
            let network = snapshot.networks.get(*at).filter(|network| !network.members.is_empty());
            network
                .and_then(|network| network.remote.as_ref())
                .is_some_and(|remote| remote.peers.is_empty())
        };
        let wanted: BTreeSet<u32> =
            snapshot.by_vni.iter().filter(|(_, at)| alone(at)).map(|(vni, _)| *vni).collect();
        if wanted == self.joined && !self.failed_groups {
            return;
        }
        let before = self.joined.len();
        self.joined.retain(|vni| {
            let stays = wanted.contains(vni);
            if !stays {
                self.control.leave(*vni, &mut self.out);
            }
            stays
        });
        let mut changed = self.joined.len() != before;
        let mut refused = None;
        for vni in &wanted {
            if self.joined.contains(vni) {
                continue;
            }
            if !self.control.join(*vni, now, &mut self.out) {
                // The others would not be joined either. They are joined as soon as there is room.
                refused = Some(*vni);
                break;
            }
            self.joined.insert(*vni);
            changed = true;
        }
        if let Some(vni) = refused.filter(|_| !self.full) {
            tracing::warn!(
                vni,
                "too many groups: those of this network and of the ones after it are not joined"
            );
        }
        self.full = refused.is_some();
        if !changed && !self.failed_groups {
            return;
        }
        if let Some(filter) = self.host.as_mut().and_then(|host| host.groups.as_mut()) {
            // The groups of networks and of the endpoint's own address, and those of queriers.
            let own = self.control.groups(now).into_iter().map(|row| Mac::of_group(row.address));
            let macs = own.chain([Mac([1, 0, 0x5e, 0, 0, 1]), Mac([0x33, 0x33, 0, 0, 0, 1])]);
            let failed = filter.set(macs);
            if let Err(why) = &failed
                && !std::mem::replace(&mut self.warned, true)
            {
                tracing::warn!(%why, "the network card may not hear the groups of networks");
            }
            self.failed_groups = failed.is_err();
        }
    }

    /// Looks after next hops of peers that frames are only sent to. Peers that are heard need no
    /// question.
    fn every_second(&mut self, plane: &Plane, tunnel: &Tunnel, ageing: u32, now: u64) {
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

    /// Sends frames, and tells workers the results of questions.
    fn carry_out(&mut self, plane: &Plane, tunnel: &Tunnel, ageing: u32) {
        let clock = plane.shared.clock.now();
        for event in self.out.events.drain(..) {
            let (ControlEvent::Resolved(peer, _)
            | ControlEvent::Unreachable(peer)
            | ControlEvent::Refused(peer, _)) = event;
            let Some(at) = tunnel.peers.find(crate::world::rules::number(peer)) else { continue };
            let Some(peer) = tunnel.peers.get(at) else { continue };
            match event {
                ControlEvent::Resolved(..) => self.silences.answers(at),
                ControlEvent::Unreachable(_) => {
                    self.silences.refused(at, Refusal::NoNextHop, clock)
                }
                ControlEvent::Refused(_, why) => {
                    self.silences.refused(at, why, clock);
                    continue;
                }
            }
            if let ControlEvent::Resolved(_, mac) = event {
                peer.set_mac(Some(mac));
            } else if !peer.was_heard(clock, ageing) {
                // Otherwise frames came from the peer: there is a way, though no station there
                // answers questions (a router, for one).
                peer.set_mac(None);
            }
            peer.stop_waiting();
        }
        let counts = self.control.counts();
        let lost = self.lost + counts.of(Count::NoAnswer) + counts.of(Count::WaitingFull);
        tunnel.lost_waiting.store(lost, Ordering::Relaxed);
        if self.out.frames.is_empty() {
            return;
        }
        let mut kept = Vec::new();
        for frame in self.out.frames.drain(..) {
            let counted = is_encapsulated(&frame);
            let frame = in_vlan(frame, tunnel.vlan);
            let Err(own) = tunnel.punt.send(Own { frame, counted }) else { continue };
            // Messages that are said only once, such as leaving a group, are sent in the next turn.
            // No other host can make us owe more than those.
            if counted || kept.len() >= KEPT {
                self.lost += u64::from(counted);
            } else {
                kept.push(own.frame);
            }
        }
        self.out.frames = kept;
        plane.workers.iter().for_each(|worker| worker.wake());
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

/// Returns whether a frame has a tag.
fn is_tagged(frame: &[u8]) -> bool {
    butterfly_packet::be16(frame, 12) == Some(ethernet::VLAN)
}

/// Puts a frame into the underlay's VLAN. A frame that waited for its next hop, or for its turn,
/// has a tag already.
fn in_vlan(mut frame: Vec<u8>, vlan: u16) -> Vec<u8> {
    if vlan != 0 && frame.len() >= ethernet::HEADER_LEN && !is_tagged(&frame) {
        let [[a, b], [c, d]] = [ethernet::VLAN, vlan].map(u16::to_be_bytes);
        frame.splice(12..12, [a, b, c, d]);
    }
    frame
}

/// Returns whether a frame is a network's that waited for its next hop. The endpoint itself sends
/// no UDP.
fn is_encapsulated(frame: &[u8]) -> bool {
    let tag = if is_tagged(frame) { ethernet::TAG_LEN } else { 0 };
    let byte = |at: usize| frame.get(at + tag).copied().unwrap_or(0);
    match (byte(12), byte(13)) {
        (0x08, 0x00) => byte(23) == protocol::UDP,
        (0x86, 0xdd) => byte(20) == protocol::UDP,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::{TunnelConfig, UplinkPort};
    use crate::plane::PlaneConfig;
    use crate::session::SessionConfig;

    fn keeper() -> Keeper {
        let (endpoint, mac) = (IpAddr::from([10, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 1]));
        let tunnel =
            Tunnel::new(&TunnelConfig::new(endpoint, mac), UplinkPort::Ring(Arc::default()), 1)
                .unwrap();
        let sessions = SessionConfig { capacity: 1024, ..SessionConfig::default() };
        let plane =
            Plane::new(PlaneConfig { workers: 1, fdb_ageing: 300, sessions, tunnel: Some(tunnel) })
                .unwrap();
        let config = ControlConfig {
            mac,
            endpoint,
            prefix: None,
            answers: true,
            gateways: Vec::new(),
            group6: std::net::Ipv6Addr::LOCALHOST,
        };
        Keeper::new(Arc::new(plane), config, None, 300, Arc::new(()))
    }

    #[test]
    fn whoever_sends_much_is_not_heard_to_the_end() {
        let keeper = keeper();
        let tunnel = keeper.plane.shared.tunnel.as_ref().unwrap();
        let put =
            || (0..HEAR + 1).for_each(|_| assert!(tunnel.punt.put(Punted::Control, 60, |_| true)));
        put();
        let mut state = keeper.state();
        assert!(state.hear(tunnel, &mut [], 0));
        assert!(!state.hear(tunnel, &mut [], 0));
        put();
        assert!(state.hear(tunnel, &mut [], 0));
    }

    #[test]
    fn named_peers_are_looked_for_until_they_are_found() {
        let keeper = keeper();
        let (plane, tunnel) = (&keeper.plane, keeper.plane.shared.tunnel.as_ref().unwrap());
        let named = |n| IpAddr::from([10, 0, 0, n]);
        let first = tunnel.peers.configure(named(2)).unwrap();
        tunnel.peers.try_add(crate::world::rules::number(named(3)), 42, 1).unwrap();
        let mut state = keeper.state();
        let mut asks = |seconds: std::ops::Range<u64>| {
            let asked: Vec<u64> = seconds
                .filter(|second| {
                    let State { control, out, .. } = &mut *state;
                    control.tick(1000 * second, out);
                    out.frames.clear();
                    state.every_second(plane, tunnel, 300, 1000 * second);
                    !std::mem::take(&mut state.out.frames).is_empty()
                })
                .collect();
            asked
        };
        // Each time three questions, a second apart, of which the first is seen here; then it is
        // not asked for a while.
        let asked = asks(0..300);
        assert!(
            asked.len() >= 5 && asked[0] == 0 && asked.is_sorted() && asked[asked.len() - 1] >= 180,
            "{asked:?}"
        );
        assert!(asked.len() <= 12, "{asked:?}");
        tunnel.peers.get(first).unwrap().set_mac(Some(Mac([2, 0, 0, 0, 0, 9])));
        assert_eq!(asks(300..500), [0; 0]);
        // As many as there may be are not all asked for at once.
        (4..=250).for_each(|n| assert!(tunnel.peers.configure(named(n)).is_some()));
        let counts: Vec<usize> = (500..506)
            .map(|second| {
                state.every_second(plane, tunnel, 300, 1000 * second);
                std::mem::take(&mut state.out.frames).len()
            })
            .collect();
        assert!(counts[0] == MEET && counts.iter().all(|n| *n <= MEET), "{counts:?}");
        assert!(counts.iter().sum::<usize>() >= 247, "{counts:?}");
    }

    #[test]
    fn a_next_hop_that_was_heard_of_stays_though_nobody_answers() {
        let keeper = keeper();
        let tunnel = keeper.plane.shared.tunnel.as_ref().unwrap();
        let now = keeper.plane.shared.clock.now();
        let (heard, named) = (IpAddr::from([10, 0, 1, 2]), IpAddr::from([10, 0, 1, 3]));
        let mac = Mac([2, 0, 0, 0, 0, 9]);
        let at = tunnel.peers.try_add(crate::world::rules::number(heard), 42, now).unwrap();
        tunnel.peers.get(at).unwrap().heard(mac, now);
        let other = tunnel.peers.configure(named).unwrap();
        tunnel.peers.get(other).unwrap().set_mac(Some(mac));
        let mut state = keeper.state();
        for peer in [at, other] {
            assert!(tunnel.peers.get(peer).unwrap().may_wait());
        }
        state
            .out
            .events
            .extend([ControlEvent::Unreachable(heard), ControlEvent::Unreachable(named)]);
        state.carry_out(&keeper.plane, tunnel, 300);
        let known = |at| tunnel.peers.get(at).unwrap();
        assert_eq!((known(at).mac(), known(other).mac()), (Some(mac), None));
        assert!(known(at).may_wait() && known(other).may_wait());
    }
}

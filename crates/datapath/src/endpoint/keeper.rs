//! The keeper: the thread that answers for the endpoint, finds next hops, joins groups and forgets
//! silent peers.

mod groups;
mod hops;
pub(crate) mod rows;
mod sending;
mod uplink;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use butterfly_uplink::{groups::Groups, kernel::Kernel, packet::PacketSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::endpoint::{
    control::{Control, ControlConfig, Output},
    link::LinkWatch,
    silence::Silences,
    watch::PeerWatch,
};
use crate::engine::{events::SwitchEvents, place::PeerRef};
use crate::overlay::{Punted, Tunnel};
use crate::plane::Plane;
use crate::world::rules::address as ip_of;

/// Longest time, in milliseconds, between two looks at anything that waits.
const TICK: u64 = 100;
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
    /// Packet sockets of a former process, if there are some.
    pub left: Option<LeftSockets>,
}

/// Packet sockets of a former process. The interface goes on listening to their groups until ours
/// are joined. If this process dies before, they are for its successor.
pub(crate) struct LeftSockets {
    pub former: Vec<OwnedFd>,
    /// Has ours kept in their place.
    pub keep: Box<dyn FnOnce() + Send>,
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
}

impl Keeper {
    pub fn new(
        plane: Arc<Plane>,
        config: ControlConfig,
        host: Option<HostSide>,
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
        Keeper { plane, state: Mutex::new(state), stop, returned, began: Instant::now() }
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
                state.every_second(&self.plane, tunnel, self.plane.shared.fdb.ageing(), now);
                let clock = self.plane.shared.clock.now();
                tunnel.peers.expire(clock, self.plane.shared.fdb.ageing().saturating_add(10));
            }
            let State { control, out, .. } = &mut *state;
            control.tick(now, out);
            state.carry_out(&self.plane, tunnel, self.plane.shared.fdb.ageing());
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
            state.carry_out(&self.plane, tunnel, self.plane.shared.fdb.ageing());
        }
        let begin = Instant::now();
        while tunnel.punt.wants_to_send() && begin.elapsed() < Duration::from_millis(FAREWELL) {
            std::thread::sleep(Duration::from_millis(1));
        }
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
}

#[cfg(test)]
mod tests;

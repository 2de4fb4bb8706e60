//! Protocols of the tunnel endpoint besides VXLAN: link addresses of next hops, membership in
//! groups, and its own address.
//!
//! A state machine without clock, threads or I/O: frames and times come in, frames and events go
//! out. It runs in a control thread. All times are milliseconds of one clock that never goes back.

mod counts;
mod endpoint;
mod groups;
mod hear;
mod link;
mod neighbours;
mod terms;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use butterfly_packet::{Mac, ipv6};

pub(crate) use counts::{ControlCounts, Count};
pub(crate) use terms::{ControlConfig, ControlEvent, Membership, NextHop, Output};

use endpoint::Endpoint;
use groups::JoinedGroups;
use link::Link;
use neighbours::Neighbours;
use terms::is_station;

/// The endpoint's side of the protocols of its link.
pub(crate) struct Control {
    link: Link,
    endpoint: Endpoint,
    neighbours: Neighbours,
    groups: JoinedGroups,
    counts: ControlCounts,
    started: bool,
}

impl Control {
    /// Sends nothing before the first [`Self::tick`], which is due at once.
    pub fn new(config: ControlConfig) -> Control {
        let address = match config.endpoint {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits() as u64,
        };
        // The seed only has to differ between hosts.
        let seed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ config.mac.to_u64();
        Control {
            link: Link::new(config.mac, config.endpoint, config.prefix, &config.gateways),
            endpoint: Endpoint::new(config.answers),
            neighbours: Neighbours::new(),
            groups: JoinedGroups::new(config.group6, seed),
            counts: ControlCounts::default(),
            started: false,
        }
    }

    /// Hears any frame from the uplink. Sends two frames at most, beside those that waited for the
    /// link address it learns.
    pub fn input(&mut self, frame: &[u8], now: u64, out: &mut Output) {
        if let Some(count) = self.hear(frame, now, out) {
            self.counts.add(count);
        }
    }

    /// Does all that is due. The caller calls it at the time of [`Self::next_tick`]; earlier or
    /// later does no harm.
    pub fn tick(&mut self, now: u64, out: &mut Output) {
        if !self.started {
            self.started = true;
            if let (true, IpAddr::V6(me)) = (self.endpoint.answers(), self.link.endpoint) {
                let group = ipv6::solicited_node(me).into();
                self.groups.join_group(&self.link, group, None, now, &mut self.counts, out);
            }
        }
        self.endpoint.tick(&self.link, now, out);
        self.neighbours.tick(&self.link, now, &mut self.counts, out);
        self.groups.tick(&self.link, now, out);
    }

    /// Returns the time at which something is due, as known now. Every other call may bring it
    /// forward.
    pub fn next_tick(&self) -> Option<u64> {
        let start = if self.started { u64::MAX } else { 0 };
        let next =
            start.min(self.endpoint.wake()).min(self.neighbours.wake()).min(self.groups.wake());
        (next != u64::MAX).then_some(next)
    }

    /// Joins the group of a network, unless it is joined. Returns whether it is joined now: false
    /// if there are too many groups.
    pub fn join(&mut self, vni: u32, now: u64, out: &mut Output) -> bool {
        self.groups.join(&self.link, vni, now, &mut self.counts, out)
    }

    /// Leaves the group of a network, if it was joined.
    pub fn leave(&mut self, vni: u32, out: &mut Output) {
        self.groups.leave(&self.link, vni, out);
    }

    /// Reports groups and announces the address as at the start: the link is there again, and
    /// stations on it may not know us.
    pub fn returned(&mut self, now: u64) {
        self.endpoint.announce(now);
        self.groups.report_again(now);
    }

    /// Finds the link address for frames to a peer; an event tells it, now or later. `waiting` is
    /// such a frame, complete except for its destination MAC; it is sent when the address is known.
    /// One frame waits per peer, the newest; an empty one stands for none.
    pub fn resolve(&mut self, peer: IpAddr, waiting: Option<Vec<u8>>, now: u64, out: &mut Output) {
        self.neighbours.resolve(&self.link, peer, waiting, now, &mut self.counts, out);
    }

    /// Notes that frames are being sent to a peer, so that an old link address is checked. The
    /// caller calls it about once a second meanwhile.
    pub fn used(&mut self, peer: IpAddr, now: u64, out: &mut Output) {
        self.neighbours.used(&self.link, peer, now, &mut self.counts, out);
    }

    /// Notes that frames came from a peer by way of the station `mac`. The peer's link address
    /// needs no question for a while if it is `mac`, and a question if it is another.
    pub fn confirmed(&mut self, peer: IpAddr, mac: Mac, now: u64, out: &mut Output) {
        if is_station(mac) && mac != self.link.mac {
            self.neighbours.confirmed(&self.link, peer, mac, now, &mut self.counts, out);
        }
    }

    /// Returns the groups that are joined, by address.
    pub fn groups(&self, now: u64) -> Vec<Membership> {
        self.groups.list(now)
    }

    /// Returns the next hops, by address.
    pub fn neighbours(&self, now: u64) -> Vec<NextHop> {
        self.neighbours.list(now)
    }

    /// Returns the counters of frames.
    pub fn counts(&self) -> &ControlCounts {
        &self.counts
    }
}

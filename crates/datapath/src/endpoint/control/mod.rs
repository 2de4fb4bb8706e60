//! What the tunnel endpoint says and hears besides VXLAN: link addresses of next hops, membership
//! in groups, and who it is.
//!
//! A state machine without clock, threads or I/O: frames and times come in, frames and events go
//! out. It runs in a control thread. All times are milliseconds of one clock that never goes back.

mod counts;
mod endpoint;
mod groups;
mod hear;
mod link;
mod neighbours;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr};

use butterfly_packet::{Mac, ipv6};

pub(crate) use counts::{Count, Counts};

use crate::endpoint::silence::Refusal;
use endpoint::Endpoint;
use groups::Groups;
use link::Link;
use neighbours::Neighbours;

/// Who the endpoint is.
#[derive(Clone, Debug)]
pub(crate) struct ControlConfig {
    /// Its link address on the uplink.
    pub mac: Mac,
    /// Its address.
    pub endpoint: IpAddr,
    /// Length of its network's prefix: hosts in it are reached directly.
    pub prefix: Option<u8>,
    /// Nobody else holds the address: ARP, neighbour solicitations and pings are answered.
    pub answers: bool,
    /// By which other hosts are reached; of one IP version the first that answers. Without one,
    /// all hosts are reached directly.
    pub gateways: Vec<IpAddr>,
    /// Prefix of the IPv6 groups of networks.
    pub group6: Ipv6Addr,
}

/// What the packet path has to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// Frames to this peer go to that link address.
    Resolved(IpAddr, Mac),
    /// Nobody knows where frames to this peer go. One that waited was dropped.
    Unreachable(IpAddr),
    /// Somebody says that our frames to this peer arrive nowhere.
    Refused(IpAddr, Refusal),
}

/// What came of a call. Calls only append.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Whole Ethernet frames to be sent.
    pub frames: Vec<Vec<u8>>,
    /// In the order in which they happened.
    pub events: Vec<Event>,
}

/// A group that is joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GroupRow {
    /// Its address.
    pub address: IpAddr,
    /// The network it stands for; `None`: the endpoint's own address needs it (RFC 4861, 7.2.1).
    pub vni: Option<u32>,
    /// Milliseconds since the last report.
    pub reported: u64,
}

/// A next hop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NeighbourRow {
    /// Its address.
    pub address: IpAddr,
    /// "asking", "reachable", "stale", "probing" or "unreachable".
    pub state: &'static str,
    /// Its link address, if it is known.
    pub mac: Option<Mac>,
    /// Milliseconds since it was confirmed last, if it ever was.
    pub age: Option<u64>,
    /// Peers that are reached by it.
    pub peers: usize,
}

/// The endpoint's side of the protocols of its link.
pub(crate) struct Control {
    link: Link,
    endpoint: Endpoint,
    neighbours: Neighbours,
    groups: Groups,
    counts: Counts,
    started: bool,
}

impl Control {
    /// Sends nothing before the first [`Self::tick`], which is due at once.
    pub fn new(config: ControlConfig) -> Control {
        let address = match config.endpoint {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits() as u64,
        };
        // Hosts differ in it: that is all that a seed is for here.
        let seed = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ config.mac.to_u64();
        Control {
            link: Link::new(config.mac, config.endpoint, config.prefix, &config.gateways),
            endpoint: Endpoint::new(config.answers),
            neighbours: Neighbours::new(),
            groups: Groups::new(config.group6, seed),
            counts: Counts::default(),
            started: false,
        }
    }

    /// Hears a frame from the uplink, whatever it is. Says two frames at most, beside those that
    /// waited for what it learns.
    pub fn input(&mut self, frame: &[u8], now: u64, out: &mut Output) {
        if let Some(count) = self.hear(frame, now, out) {
            self.counts.add(count);
        }
    }

    /// Does what is due. Call it when the time of [`Self::next_tick`] has come; earlier or later
    /// does no harm.
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

    /// When something will be due, as far as is known now. Every other call may bring that forward.
    pub fn next_tick(&self) -> Option<u64> {
        let start = if self.started { u64::MAX } else { 0 };
        let next =
            start.min(self.endpoint.wake()).min(self.neighbours.wake()).min(self.groups.wake());
        (next != u64::MAX).then_some(next)
    }

    /// Joins the group of a network. Once more changes nothing. Returns whether it is joined: not
    /// if there are too many.
    pub fn join(&mut self, vni: u32, now: u64, out: &mut Output) -> bool {
        self.groups.join(&self.link, vni, now, &mut self.counts, out)
    }

    /// Leaves the group of a network, if it was joined.
    pub fn leave(&mut self, vni: u32, out: &mut Output) {
        self.groups.leave(&self.link, vni, out);
    }

    /// The link is there again, and who is on it may know nothing of us: groups are reported and
    /// the address is announced as at the start.
    pub fn returned(&mut self, now: u64) {
        self.endpoint.announce(now);
        self.groups.report_again(now);
    }

    /// Finds out where frames to a peer go; an event says it, now or later. `waiting` is such a
    /// frame, whole but for its destination MAC: it is sent when the place is known. One waits
    /// per peer, the newest; an empty one stands for none.
    pub fn resolve(&mut self, peer: IpAddr, waiting: Option<Vec<u8>>, now: u64, out: &mut Output) {
        self.neighbours.resolve(&self.link, peer, waiting, now, &mut self.counts, out);
    }

    /// Frames are being sent to a peer. To be called about once a second while that is so: it is
    /// how an old link address is checked.
    pub fn used(&mut self, peer: IpAddr, now: u64, out: &mut Output) {
        self.neighbours.used(&self.link, peer, now, &mut self.counts, out);
    }

    /// Frames came from a peer by way of the station `mac`: its link address needs no question for
    /// a while, or one if it is another.
    pub fn confirmed(&mut self, peer: IpAddr, mac: Mac, now: u64, out: &mut Output) {
        if is_station(mac) && mac != self.link.mac {
            self.neighbours.confirmed(&self.link, peer, mac, now, &mut self.counts, out);
        }
    }

    /// The groups that are joined, by address.
    pub fn groups(&self, now: u64) -> Vec<GroupRow> {
        self.groups.list(now)
    }

    /// The next hops, by address.
    pub fn neighbours(&self, now: u64) -> Vec<NeighbourRow> {
        self.neighbours.list(now)
    }

    /// What became of frames.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Whether it can be a station's address.
fn is_station(mac: Mac) -> bool {
    !mac.is_group() && mac != Mac::ZERO
}

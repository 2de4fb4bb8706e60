//! What happens in a switch beside its traffic, for whoever keeps a record of it.

use std::{net::IpAddr, time::Duration};

use butterfly_guest::Times;
use butterfly_packet::mac::Mac;
use butterfly_vhost::{net::Features, port::Queue};

use crate::engine::reason::ReasonInfo;

/// Who wants to know what happens. Called from control threads, from housekeeping and from the
/// keeper, never from a worker: must not call the switch, and must not wait.
pub trait SwitchEvents: Send + Sync {
    /// Something happened.
    fn happened(&self, about: About<'_>, what: Happening<'_>);

    /// A guest of our own measured how long a thousand answers took: often, and nothing for a
    /// record. Called from its thread.
    fn measured(&self, times: Times) {
        let _ = times;
    }
}

/// Nobody wants to know.
impl SwitchEvents for () {
    fn happened(&self, _: About<'_>, _: Happening<'_>) {}
}

/// What an event is about: a vnic, else a network, else the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About<'a> {
    /// The vnic.
    pub nic: Option<&'a str>,
    /// Its network.
    pub vni: Option<u32>,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'a> {
    /// A guest attached to the vnic.
    Attached,
    /// It left: a sentence without a full stop says why.
    Detached(&'a str),
    /// The guest took features, for the first time or others than before.
    Negotiated {
        /// Those it takes.
        accepted: Features,
        /// Those that it was offered and refused.
        refused: Features,
    },
    /// The guest's driver uses both its queues from now on, or not any more.
    Driving(bool),
    /// A queue that was started cannot run: a sentence without a full stop says why.
    Trouble(&'a str),
    /// The guest said something impossible in this queue, which rests until it is set up anew.
    Broken(Queue),
    /// Interrupting the guest was confirmed to be slow: the longest signal so far. A thread of
    /// their own sends them from now on.
    SlowInterrupts(Duration),
    /// The vnic had to rest: the switch touched so many pages of its memory first, since it was
    /// added.
    FirstTouches(u64),
    /// A worker slept for pages of the vnic's memory: so long, since it was added.
    MemoryStalled(Duration),
    /// Frames were dropped for one of the reasons of [`crate::watched_drops`], since that was last told.
    Dropped(ReasonInfo, u64),
    /// Source addresses were not learnt because a bound was reached, since that was last told.
    LearnRefused(u64),
    /// The table of sessions became nearly full, or has room again.
    Sessions {
        /// Sessions in it.
        used: u32,
        /// Most it can hold.
        capacity: u32,
        /// It is nearly full.
        nearly_full: bool,
    },
    /// The table of other hosts became full, or has room again.
    PeersFull(bool),
    /// Another host that nobody named was heard.
    PeerLearnt(IpAddr),
    /// Another host that nobody named was silent for too long.
    PeerForgotten(IpAddr),
    /// Frames to another host go to that link address.
    NextHopFound(IpAddr, Mac),
    /// Frames to another host went to the first link address, and go to the second one now.
    NextHopMoved(IpAddr, Mac, Mac),
    /// Nobody knows any more where frames to another host go.
    NextHopLost(IpAddr),
    /// The uplink carries frames again: a sentence without a full stop.
    UplinkUp(&'a str),
    /// The uplink does not carry frames any more: a sentence without a full stop says why.
    UplinkDown(&'a str),
    /// The largest packet on the uplink is another one, in bytes.
    UplinkMtu(u32),
}

//! Events in a switch beside its traffic, for a program that records them.

use std::{net::IpAddr, time::Duration};

use butterfly_guest::Times;
use butterfly_packet::mac::Mac;
use butterfly_vhost::{net::Features, port::QueueKind};

use crate::engine::reason::ReasonInfo;

/// Receiver of events. Control threads, the housekeeping thread and the keeper call it, never a
/// worker. It must not call the switch, and must not wait.
pub trait SwitchEvents: Send + Sync {
    /// Receives an event.
    fn happened(&self, about: About<'_>, what: Happening<'_>);

    /// Receives the times of a thousand answers that a guest of the daemon measured. These come
    /// often and are not worth a record. The guest's thread calls this.
    fn measured(&self, times: Times) {
        let _ = times;
    }
}

/// Ignores all events.
impl SwitchEvents for () {
    fn happened(&self, _: About<'_>, _: Happening<'_>) {}
}

/// Subject of an event: a vnic, else a network, else the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About<'a> {
    /// The vnic's id.
    pub nic: Option<&'a str>,
    /// The network of the vnic, or the network that the event is about.
    pub vni: Option<u32>,
}

/// Events.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'a> {
    /// A guest attached to the vnic.
    Attached,
    /// The guest left. A sentence without a full stop says why.
    Detached(&'a str),
    /// The guest accepted features, for the first time or different ones than before.
    Negotiated {
        /// The features it accepted.
        accepted: Features,
        /// The features it was offered and refused.
        refused: Features,
    },
    /// The guest's driver uses both its queues from now on, or not any more.
    Driving(bool),
    /// A queue that was started cannot run: a sentence without a full stop says why.
    Trouble(&'a str),
    /// The guest wrote something impossible in this queue. The queue rests until it is set up
    /// again.
    Broken(QueueKind),
    /// Interrupts of the guest were confirmed to be slow; this is the longest signal so far. A
    /// separate thread sends them from now on.
    SlowInterrupts(Duration),
    /// The vnic had to rest. The switch was the first to touch so many pages of its memory since
    /// the vnic was added.
    FirstTouches(u64),
    /// A worker slept for pages of the vnic's memory, for so long since the vnic was added.
    MemoryStalled(Duration),
    /// Frames were dropped for one of the reasons of [`crate::watched_drops`]; the number is since
    /// the last such event.
    Dropped(ReasonInfo, u64),
    /// Source addresses were not learnt because a bound was reached; the number is since the last
    /// such event.
    LearnRefused(u64),
    /// The table of sessions became nearly full, or has room again.
    Sessions {
        /// Sessions in the table.
        used: u32,
        /// Most sessions that the table can hold.
        capacity: u32,
        /// True if the table is nearly full.
        nearly_full: bool,
    },
    /// The table of other hosts became full, or has room again.
    PeersFull(bool),
    /// Frames came from another host that was not declared as a peer.
    PeerLearnt(IpAddr),
    /// A host that was learnt, not declared as a peer, was silent for too long.
    PeerForgotten(IpAddr),
    /// The link address to which frames for another host go was found.
    NextHopFound(IpAddr, Mac),
    /// Frames for another host went to the first link address, and go to the second one now.
    NextHopMoved(IpAddr, Mac, Mac),
    /// The link address for frames to another host is no longer known.
    NextHopLost(IpAddr),
    /// The uplink carries frames again. A sentence without a full stop says how.
    UplinkUp(&'a str),
    /// The uplink carries no frames any more. A sentence without a full stop says why.
    UplinkDown(&'a str),
    /// The largest packet on the uplink changed to this many bytes.
    UplinkMtu(u32),
}

//! Explains the fate of a packet that is not sent, with the reasons for it.
//!
//! The packet walks through the real stages, in a world of its own: the snapshot in force, with
//! copies of the sessions, learnt addresses and counts that concern it. The stages decide as they
//! would for a real packet, and the switch sees none of the changes that they make there.

mod message;
mod probe;
mod question;
mod recorder;
mod scratch;
mod told;
mod told6;
mod tried;

use std::net::IpAddr;

use butterfly_packet::mac::Mac;

use crate::engine::reason::ReasonInfo;
use crate::plane::{Plane, sessions::Admission};
use crate::stages::{pipeline::Scratches, stage::StageConfig};

pub use question::{NoAnswer, Origin, Question, Target};

/// Answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The network.
    pub vni: u32,
    /// The packet's destination on the link.
    pub destination_mac: Mac,
    /// The packet's way; then, if that was asked and the packet arrives, the way of its answer.
    pub walks: Vec<Walk>,
}

impl Explanation {
    /// Returns whether all packets asked about arrive, or leave for another host.
    pub fn is_allowed(&self) -> bool {
        self.walks.iter().all(|walk| walk.fate.is_allowed())
    }
}

/// One packet's way through the stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The packet in a line.
    pub packet: String,
    /// The whole frame.
    pub frame: Vec<u8>,
    /// Verdicts of the stages, in order.
    pub steps: Vec<Step>,
    /// Reasons for letting it out of its sender, and into its receiver; `None` where there was
    /// none, or no check.
    pub admitted: [Option<Admission>; 2],
    /// Network and link addresses by which a router of this host passes it on, if one does.
    pub routed: Option<Rewritten>,
    /// Fate of the packet.
    pub fate: Fate,
}

/// A packet's way on from a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// The network that it leaves by.
    pub vni: u32,
    /// Its source on the link there.
    pub source: Mac,
    /// Its destination on the link there.
    pub destination: Mac,
}

/// Verdict of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The stage.
    pub stage: &'static str,
    /// Effect on the packet.
    pub mark: Mark,
    /// Reason.
    pub text: String,
    /// Details, a line each.
    pub details: Vec<String>,
}

/// Effect of a stage on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The stage lets it pass.
    Pass,
    /// The packet ends here.
    Stop,
    /// No effect, but worth knowing.
    Note,
}

impl Mark {
    /// Returns its name in every output.
    pub fn name(self) -> &'static str {
        match self {
            Mark::Pass => "pass",
            Mark::Stop => "stop",
            Mark::Note => "note",
        }
    }
}

/// Fate of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Delivered to this vnic.
    Delivered(String),
    /// Sent to this host.
    Leaves(IpAddr),
    /// Sent to several receivers.
    Flooded {
        /// Vnics that get it.
        here: Vec<String>,
        /// Hosts it is sent to: those that were named, or the group of the network.
        away: Vec<IpAddr>,
        /// Drops on the way to other receivers.
        refused: Vec<Refused>,
    },
    /// Dropped.
    Dropped(Refused),
    /// Never sent: no station of the network tells its sender the link address.
    NoAddress,
    /// A router of this host answers it.
    Answered,
    /// It waits until its next hop, which a router of this host asks for, answers.
    Waits,
}

impl Fate {
    /// Returns whether it arrives, leaves for another host, or is answered.
    pub fn is_allowed(&self) -> bool {
        match self {
            Fate::Delivered(_) | Fate::Leaves(_) | Fate::Answered | Fate::Waits => true,
            Fate::Flooded { here, away, .. } => !here.is_empty() || !away.is_empty(),
            Fate::Dropped(_) | Fate::NoAddress => false,
        }
    }
}

/// A drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The reason.
    pub reason: ReasonInfo,
    /// The vnic that is charged; empty for the network's other hosts.
    pub charged: String,
}

/// Explains the fate of a packet.
pub(crate) fn explain(plane: &Plane, question: &Question) -> Result<Explanation, NoAnswer> {
    let snapshot = plane.shared.snapshot.load_full();
    let mut packet = question::resolve(question, &snapshot, plane.shared.tunnel.is_some())?;
    let world =
        scratch::World::new(&plane.shared, &snapshot, packet.vni).ok_or(NoAnswer::NoMemory)?;
    let mut scratches = scratches(plane);
    let mut walks = Vec::new();
    if let Some((track, direction)) = world.reached(&packet.frame, packet.vni, packet.from) {
        packet.go_on(&track, direction);
    }
    if packet.unanswered {
        walks.push(told::never_sent(&packet, &snapshot));
    } else {
        let (walk, met, ends) =
            recorder::record(plane, &world, &mut scratches, packet.from, &packet.frame);
        let arrives = walk.fate.is_allowed();
        walks.push(walk);
        if question.reply
            && arrives
            && let Some((answer, from)) = question::answer(&packet, (met, ends), &snapshot)
        {
            walks.push(recorder::record(plane, &world, &mut scratches, from, &answer).0);
        }
    }
    Ok(Explanation { vni: packet.vni, destination_mac: packet.macs.1, walks })
}

/// Explains the fate of a given frame from this vnic, or from the other hosts of a network.
#[cfg(feature = "harness")]
pub(crate) fn explain_frame(plane: &Plane, from: &Origin, frame: &[u8]) -> Option<Walk> {
    let snapshot = plane.shared.snapshot.load_full();
    let (vni, slot) = match from {
        Origin::Vnic(id) => {
            let mut vnics = snapshot.vnics.iter().filter(|(_, vnic)| !vnic.is_trunk());
            vnics.find(|(_, vnic)| *vnic.id == **id).map(|(slot, vnic)| (vnic.vni, slot))?
        }
        Origin::Outside(vni) => (*vni, snapshot.network(*vni)?.remote.as_ref()?.slot),
    };
    let world = scratch::World::new(&plane.shared, &snapshot, vni)?;
    Some(recorder::record(plane, &world, &mut scratches(plane), slot, frame).0)
}

fn scratches(plane: &Plane) -> Scratches {
    let times = plane.shared.snapshot.load().times;
    Scratches::new(&StageConfig { timeouts: &times.timeouts })
}

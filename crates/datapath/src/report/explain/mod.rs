//! What would happen to a packet, and why: asked, not sent.
//!
//! The packet walks through the stages themselves, in a world of its own: the snapshot in force,
//! with the sessions, learnt addresses and counts that concern it copied. Whatever the stages
//! change there, the switch never sees; whatever they decide there, it would.

mod message;
mod probe;
mod question;
mod recorder;
mod scratch;
mod told;
mod tried;

use std::net::IpAddr;

use butterfly_packet::mac::Mac;

use crate::{
    engine::reason::ReasonInfo,
    plane::{Plane, sessions::Admission},
    stages::{pipeline::Scratches, stage::StageConfig},
};

pub use question::{NoAnswer, Origin, Question, Target};

/// What became of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The network.
    pub vni: u32,
    /// The packet's destination on the link.
    pub destination_mac: Mac,
    /// What happens to it; then, if that was asked and it arrives, to its answer.
    pub walks: Vec<Walk>,
}

impl Explanation {
    /// Whether everything that was asked about arrives, or leaves for another host.
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
    /// What each stage said, in order.
    pub steps: Vec<Step>,
    /// What lets it out of its sender, and into its receiver; `None` where nothing did, or nothing
    /// was asked.
    pub admitted: [Option<Admission>; 2],
    /// What becomes of it.
    pub fate: Fate,
}

/// What one stage says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The stage.
    pub stage: &'static str,
    /// How it goes on.
    pub mark: Mark,
    /// Why.
    pub text: String,
    /// More about it, a line each.
    pub details: Vec<String>,
}

/// How a packet goes on behind a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The stage lets it pass.
    Pass,
    /// It ends here.
    Stop,
    /// Nothing is decided by this; worth knowing.
    Note,
}

impl Mark {
    /// For every output.
    pub fn name(self) -> &'static str {
        match self {
            Mark::Pass => "pass",
            Mark::Stop => "stop",
            Mark::Note => "note",
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// This vnic gets it.
    Delivered(String),
    /// It leaves for this host.
    Leaves(IpAddr),
    /// It goes to several.
    Flooded {
        /// Vnics that get it.
        here: Vec<String>,
        /// Hosts that it leaves for: those that were named, or the group of the network.
        away: Vec<IpAddr>,
        /// Drops on the way to others.
        refused: Vec<Refused>,
    },
    /// It is dropped.
    Dropped(Refused),
    /// It would never be sent: nobody here tells its sender the link address.
    NoAddress,
}

impl Fate {
    /// Whether it arrives or leaves for another host.
    pub fn is_allowed(&self) -> bool {
        match self {
            Fate::Delivered(_) | Fate::Leaves(_) => true,
            Fate::Flooded { here, away, .. } => !here.is_empty() || !away.is_empty(),
            Fate::Dropped(_) | Fate::NoAddress => false,
        }
    }
}

/// A drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// For this reason.
    pub reason: ReasonInfo,
    /// Whose it is: a vnic; empty for the network's other hosts.
    pub charged: String,
}

/// Says what would happen to a packet.
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
        let (walk, met) =
            recorder::record(plane, &world, &mut scratches, packet.from, &packet.frame);
        let arrives = walk.fate.is_allowed();
        walks.push(walk);
        if question.reply
            && arrives
            && let Some((answer, from)) = question::answer(&packet, met)
        {
            walks.push(recorder::record(plane, &world, &mut scratches, from, &answer).0);
        }
    }
    Ok(Explanation { vni: packet.vni, destination_mac: packet.macs.1, walks })
}

/// Says what would happen to a frame as it is, from this vnic, or from the other hosts of a
/// network.
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
    Scratches::new(&StageConfig { timeouts: &plane.shared.sessions.timeouts })
}

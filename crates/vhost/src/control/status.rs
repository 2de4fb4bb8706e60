//! Status of a device for the operator.

use std::{path::PathBuf, time::SystemTime};

use vhost::vhost_user::VhostUserProtocolFeatures;

use super::role::Role;
use crate::{
    memory::RegionInfo,
    net::Features,
    port::Queue,
    ring::{InterruptReport, RingStatus, TouchReport},
};

/// A device at one moment.
#[derive(Clone, Debug)]
pub struct DeviceStatus {
    /// Owner of the socket, and its path; `None` if the front end is in this process.
    pub socket: Option<(Role, PathBuf)>,
    /// The features that guests are offered.
    pub offered: Features,
    /// The front end that is attached, and what it negotiated.
    pub attached: Option<Negotiated>,
    /// The receive ring of the first pair, as it runs: the guest receives.
    pub rx: Option<RingStatus>,
    /// The transmit ring of the first pair, as it runs: the guest sends.
    pub tx: Option<RingStatus>,
    /// The rings of further pairs that run.
    pub further: Vec<(Queue, RingStatus)>,
    /// Another front end waits until the one that is attached leaves.
    pub others_waiting: bool,
    /// Number of front ends attached so far.
    pub attach_count: u64,
    /// Circumstances under which the last front end left.
    pub last_detach: Option<Detach>,
    /// Reason why no front end can attach, unless simply none came.
    pub trouble: Option<String>,
    /// Cost of interrupting the vnic's guests.
    pub interrupts: InterruptReport,
    /// Cost of touching the guests' memory for the first time.
    pub touches: TouchReport,
}

/// Values that the attached front end has set so far.
#[derive(Clone, Debug)]
pub struct Negotiated {
    /// Time at which it attached.
    pub since: SystemTime,
    /// Its process, if it is in our process namespace.
    pub peer_pid: Option<u32>,
    /// The features it was offered.
    pub offered: Features,
    /// The features it accepted, once it said so.
    pub features: Option<Features>,
    /// The vhost-user protocol features it accepted (`VHOST_USER_PROTOCOL_F_*` bits).
    pub protocol_features: Option<u64>,
    /// Guest memory in order of guest addresses.
    pub memory: Vec<RegionInfo>,
    /// Reason why nothing of that memory seems to be of use, if so.
    pub memory_trouble: Option<&'static str>,
    /// Stores are logged: the guest migrates.
    pub logging: bool,
    /// Reasons why rings do not run although the front end started them.
    pub troubles: Vec<(Queue, String)>,
}

impl Negotiated {
    /// Reason why a ring does not run although the front end started it.
    pub fn trouble(&self, queue: Queue) -> Option<&str> {
        self.troubles.iter().find(|(of, _)| *of == queue).map(|(_, why)| why.as_str())
    }

    /// Offered features that the front end did not accept; nothing before it said anything.
    pub fn declined(&self) -> Features {
        self.features.map_or(Features::NONE, |accepted| self.offered.without(accepted))
    }

    /// Names of the accepted protocol features.
    pub fn protocol_feature_names(&self) -> Vec<String> {
        VhostUserProtocolFeatures::from_bits_truncate(self.protocol_features.unwrap_or(0))
            .iter_names()
            .map(|(name, _)| name.to_lowercase().replace('_', "-"))
            .collect()
    }
}

/// The end of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detach {
    /// A sentence without a full stop.
    pub reason: String,
    /// Time of the end.
    pub at: SystemTime,
}

//! Settings of a switch.

use std::{collections::BTreeSet, sync::Arc};

use butterfly_mem::blackbox::BlackBox;

use crate::endpoint::open::TunnelSpec;
use crate::session::{SessionConfig, Timeouts};

/// Settings of a switch.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Number of workers, from 1 to 32.
    pub workers: usize,
    /// Processors of the workers, one for each. One that does not exist is left out, and a worker
    /// beyond the last is left to the scheduler.
    pub cores: Vec<usize>,
    /// True if workers never sleep.
    pub poll: bool,
    /// Seconds after which a silent learnt address is forgotten.
    pub fdb_ageing: u32,
    /// Most sessions.
    pub sessions: u32,
    /// Name of the file of the table of sessions; without one it is in the process's own memory.
    pub session_file: Option<String>,
    /// True if the table of a process that died is adopted: its sessions go on with the vnics that
    /// are declared again, with the id and the network that they had, until
    /// [`crate::Switch::all_declared`].
    pub adopt: bool,
    /// Percent of the table that one network may have; a vnic may have half of that.
    pub session_share: u32,
    /// New sessions that a vnic, or a network's other hosts, may open per second.
    pub session_rate: u32,
    /// Seconds after a guest attached in which its TCP connections may be picked up mid-stream.
    pub tcp_pickup: u32,
    /// Seconds that sessions last without a frame.
    pub timeouts: Timeouts,
    /// True if guests are offered no checksum and segmentation offloads.
    pub no_offload: bool,
    /// The tunnel endpoint. Without it, networks end at this host.
    pub tunnel: Option<TunnelSpec>,
    /// True if the switch begins without an uplink that cannot be opened: machines of a process
    /// before wait for it. See [`crate::Switch::missing_uplink`].
    pub uplink_may_wait: bool,
    /// Lessons of processes before.
    pub precautions: Precautions,
}

/// Lessons of processes before that ended by what a worker did, and the box for those of this one.
#[derive(Clone, Debug, Default)]
pub struct Precautions {
    /// Box in which workers note whose rings they touch. With one, a worker that takes no turn any
    /// more ends the process.
    pub black_box: Option<Arc<BlackBox>>,
    /// Ids of vnics whose rings are held.
    pub held: BTreeSet<String>,
    /// The rings of all vnics are held.
    pub all_held: bool,
    /// Frames from the uplink are not looked at.
    pub uplink_held: bool,
    /// The frames that a vhost-user uplink begins with are given back unseen.
    pub skip_uplink: bool,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        let SessionConfig { capacity, file, adopt, share, rate, tcp_pickup, timeouts } =
            SessionConfig::default();
        SwitchConfig {
            workers: 1,
            cores: Vec::new(),
            poll: false,
            fdb_ageing: 300,
            sessions: capacity,
            session_file: file,
            adopt,
            session_share: share,
            session_rate: rate,
            tcp_pickup,
            timeouts,
            no_offload: false,
            tunnel: None,
            uplink_may_wait: false,
            precautions: Precautions::default(),
        }
    }
}

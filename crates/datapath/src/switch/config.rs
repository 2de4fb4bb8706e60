//! Settings of a switch.

use crate::endpoint::open::TunnelSpec;
use crate::session::{SessionConfig, Timeouts};

/// Settings of a switch.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Processor of the worker; `None`, or one that does not exist, leaves it to the scheduler.
    pub core: Option<usize>,
    /// True if the worker never sleeps.
    pub poll: bool,
    /// Seconds after which a silent learnt address is forgotten.
    pub fdb_ageing: u32,
    /// Most sessions.
    pub sessions: u32,
    /// Name of the file of the table of sessions; without one it is in the process's own memory.
    pub session_file: Option<String>,
    /// Percent of the table that one network may have; a vnic may have half of that.
    pub session_share: u32,
    /// Seconds after a guest attached in which its TCP connections may be picked up mid-stream.
    pub tcp_pickup: u32,
    /// Seconds that sessions last without a frame.
    pub timeouts: Timeouts,
    /// True if guests are offered no checksum and segmentation offloads.
    pub no_offload: bool,
    /// The tunnel endpoint. Without it, networks end at this host.
    pub tunnel: Option<TunnelSpec>,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        let SessionConfig { capacity, file, share, tcp_pickup, timeouts, .. } =
            SessionConfig::default();
        SwitchConfig {
            core: None,
            poll: false,
            fdb_ageing: 300,
            sessions: capacity,
            session_file: file,
            session_share: share,
            tcp_pickup,
            timeouts,
            no_offload: false,
            tunnel: None,
        }
    }
}

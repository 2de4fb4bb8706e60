//! A device's whole state as plain values and descriptors, to be kept while the process that drives
//! it changes.
//!
//! Nothing in it is believed when a device is built from it: every value passes the checks of the
//! message that once brought it.

use std::os::fd::OwnedFd;

use crate::{memory::RegionSpec, net::Features};

/// A connection with everything that was said on it.
#[derive(Debug)]
pub struct Exported {
    /// The connection to the front end. The front end sees it end when the last copy is closed.
    pub connection: OwnedFd,
    /// What was negotiated and set up.
    pub state: DeviceState,
}

/// What a front end negotiated and set up.
#[derive(Debug, Default)]
pub struct DeviceState {
    /// What SET_FEATURES said, if it was sent.
    pub features: Option<Features>,
    /// What SET_PROTOCOL_FEATURES said, if it was sent (`VHOST_USER_PROTOCOL_F_*` bits).
    pub protocol_features: Option<u64>,
    /// Guest memory.
    pub regions: Vec<RegionSpec>,
    /// The dirty log, while the guest migrates.
    pub log: Option<LogState>,
    /// The rings in the order of their vhost-user index: receive, transmit.
    pub rings: [RingState; 2],
}

/// A dirty log (SET_LOG_BASE).
#[derive(Debug)]
pub struct LogState {
    /// The file that holds it.
    pub file: OwnedFd,
    /// Size in bytes.
    pub size: u64,
    /// Offset of its first byte in the file.
    pub offset: u64,
}

/// One ring.
#[derive(Debug, Default)]
pub struct RingState {
    /// Number of descriptors (SET_VRING_NUM).
    pub size: Option<u16>,
    /// Where it lies (SET_VRING_ADDR).
    pub addresses: Option<RingAddresses>,
    /// Where the device stood. The used index in guest memory is exact and wins: positions move on
    /// after an export.
    pub position: u16,
    /// How the guest says that it added buffers. A ring with `None` is stopped.
    pub kick: Option<Kick>,
    /// How to interrupt the guest (SET_VRING_CALL).
    pub call: Option<OwnedFd>,
    /// What SET_VRING_ENABLE said, if it was sent.
    pub enabled: Option<bool>,
}

/// Where a ring lies, in addresses of the front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table.
    pub desc: u64,
    /// Available ring.
    pub avail: u64,
    /// Used ring.
    pub used: u64,
    /// Guest physical address at which stores into the used ring are logged (VHOST_VRING_F_LOG).
    pub used_log: Option<u64>,
}

/// How a guest says that it added buffers (SET_VRING_KICK).
#[derive(Debug)]
pub enum Kick {
    /// It does not: the ring has to be looked at.
    Polled,
    /// By this eventfd.
    Eventfd(OwnedFd),
}

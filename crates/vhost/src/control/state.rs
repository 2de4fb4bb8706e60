//! A device's complete state as plain values and descriptors. It outlives a change of the process
//! that drives the device.
//!
//! A device that is built from it trusts none of it: every value passes the checks of the message
//! that once brought it.

use std::{os::fd::OwnedFd, sync::Arc};

use crate::{memory::RegionSpec, net::Features};

/// Name of a descriptor that a front end gave: the number of the message that it came with, and its
/// place among the message's descriptors. Both are 0 where nobody keeps copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Name {
    /// Number of the message.
    pub message: u64,
    /// Place in it, from 0.
    pub place: u32,
}

/// Something made of a descriptor that a front end gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<T> {
    /// Name of the descriptor.
    pub name: Name,
    /// The thing that was made of it.
    pub it: T,
}

impl<T> Named<T> {
    /// The same descriptor, something else made of it.
    pub(crate) fn with<U>(&self, it: U) -> Named<U> {
        Named { name: self.name, it }
    }
}

/// A connection with everything that was said on it.
#[derive(Debug)]
pub struct Exported {
    /// The connection to the front end. The front end sees it end when the last copy is closed.
    pub connection: OwnedFd,
    /// Values that were negotiated and set up.
    pub state: DeviceState,
}

/// Values that a front end negotiated and set up.
#[derive(Debug, Default)]
pub struct DeviceState {
    /// Number of the message that told of the front end; 0 where nobody numbers them.
    pub connection: u64,
    /// Features of SET_FEATURES, if it was sent.
    pub features: Option<Features>,
    /// Features of SET_PROTOCOL_FEATURES, if it was sent (`VHOST_USER_PROTOCOL_F_*` bits).
    pub protocol_features: Option<u64>,
    /// Guest memory.
    pub regions: Vec<Named<RegionSpec>>,
    /// The dirty log, while the guest migrates.
    pub log: Option<Named<LogState>>,
    /// The rings in the order of their vhost-user index: receive, transmit, and so on with those of
    /// further pairs.
    pub rings: Vec<RingState>,
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
    /// Addresses of the ring (SET_VRING_ADDR).
    pub addresses: Option<RingAddresses>,
    /// Position of the device in the ring. The used index in guest memory is exact and wins:
    /// positions move on after an export.
    ///
    /// Nothing in a packed ring tells its position: that is in [notes](crate::ring::NoteTable).
    pub position: u16,
    /// True if a message said it (SET_VRING_BASE).
    pub given: bool,
    /// Number of the message that said where it starts, if one did.
    pub set: Option<u64>,
    /// Position that is not known any more: the ring rests until its driver begins anew.
    pub lost: bool,
    /// Means by which the guest says that it added buffers. A ring with `None` is stopped.
    pub kick: Option<Kick>,
    /// Eventfd that interrupts the guest (SET_VRING_CALL).
    pub call: Option<Named<OwnedFd>>,
    /// Value of SET_VRING_ENABLE, if it was sent.
    pub enabled: Option<bool>,
}

/// Location of a ring, in addresses of the front end.
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

/// Means by which a guest says that it added buffers (SET_VRING_KICK).
#[derive(Debug)]
pub enum Kick {
    /// None: the worker has to look at the ring.
    Polled,
    /// This eventfd. Who polls the ring keeps it open, too.
    Eventfd(Named<Arc<OwnedFd>>),
}

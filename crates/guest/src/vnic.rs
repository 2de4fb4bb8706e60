//! The vnic that a guest is behind.

use std::net::IpAddr;

use butterfly_packet::Mac;

/// Most frames that are taken from one side before the other has its turn.
pub const BURST: usize = 64;

/// The vnic as its machine has to know it.
#[derive(Clone, Debug)]
pub struct Vnic {
    /// Its name.
    pub id: String,
    /// Its address.
    pub mac: Mac,
    /// Its first IP address: a TAP device needs none.
    pub ip: Option<IpAddr>,
    /// Largest IP packet of its network, in bytes.
    pub mtu: u32,
    /// Processor of a worker. A guest that pings or answers keeps off it, if there are others: it
    /// looks for frames as often as the worker does.
    pub worker: Option<usize>,
}

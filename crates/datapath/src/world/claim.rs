//! Claim of a vnic to its MAC address.

use butterfly_packet::mac::Mac;

/// The claim of a vnic to its MAC address, which may outlive it: while it is made anew nobody else
/// gets the address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub vni: u32,
    pub mac: Mac,
    pub order: u64,
    pub bypass: bool,
}

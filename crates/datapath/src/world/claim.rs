//! Claim of a vnic to its MAC address.

use butterfly_packet::mac::Mac;

/// Claim of a vnic to its MAC address. It may outlive the vnic: while the vnic is made again, no
/// other vnic gets the address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub vni: u32,
    pub mac: Mac,
    pub order: u64,
    pub bypass: bool,
}

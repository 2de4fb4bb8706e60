//! Declared vnics: as the operator wants them, with what is open for them.

use butterfly_model::Vni;
use butterfly_packet::mac::Mac;

use crate::switch::front::{Front, OpenedFront};
use crate::world::policy::VnicPolicy;

/// A vnic as it is declared. Only its policy may change later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VnicSpec {
    /// Its name.
    pub id: String,
    /// Its address.
    pub mac: Mac,
    /// Its network.
    pub vni: Vni,
    /// Its other side.
    pub front: Front,
    /// Its policy.
    pub policy: VnicPolicy,
    /// The vnic that this one mirrors, by its id; it need not exist. The mirror gets copies of all
    /// frames that the other vnic sends and receives, while that one is in the same network and no
    /// mirror itself. It gets nothing else, and sends nothing.
    pub sniff_target: Option<String>,
    /// Order of declaration. Of several vnics with one MAC address in a network, the first has it,
    /// together with others that bypass filters as it does. The rest wait, get nothing and may send
    /// nothing until it is gone.
    pub order: u64,
    /// Number that no other declaration has. A vnic that was deleted and declared again while no
    /// daemon ran is another one, and its former guest is not its own.
    pub birth: u64,
}

/// A vnic as it is declared, and its other side.
pub(super) struct Declared {
    pub(super) spec: VnicSpec,
    pub(super) open: OpenedFront,
}

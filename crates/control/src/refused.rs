//! Why a state, or a change of it, is refused.

use crate::peers::MAX_NAMED;
use butterfly_model::Vni;
use std::net::IpAddr;

/// Why something cannot be declared beside everything else, or at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A socket leads to one vnic.
    #[error("socket {path} belongs to nic {owner:?}; give one of them another path")]
    Socket {
        /// The socket.
        path: String,
        /// The vnic that has it.
        owner: String,
    },
    /// A mirror sees its own network only.
    #[error(
        "nic {mirror:?} of VNI {vni} cannot mirror nic {target:?} of VNI {other}: a mirror sees its own network only; declare it with --vni {other}"
    )]
    OtherNetwork {
        /// The mirror.
        mirror: String,
        /// Its network.
        vni: Vni,
        /// The vnic that it should mirror.
        target: String,
        /// The network of that vnic.
        other: Vni,
    },
    /// The same from the other end.
    #[error(
        "nic {nic:?} cannot be in VNI {vni}, as nic {by:?} of VNI {other} mirrors it: delete that one first"
    )]
    MirroredElsewhere {
        /// The vnic that is mirrored.
        nic: String,
        /// The network that it should be in.
        vni: Vni,
        /// Its mirror.
        by: String,
        /// The network of the mirror.
        other: Vni,
    },
    /// There are no copies of copies.
    #[error(
        "nic {mirror:?} cannot mirror nic {target:?}, which is a mirror itself: name the nic that {target:?} mirrors"
    )]
    OfMirror {
        /// The mirror.
        mirror: String,
        /// The vnic that it should mirror.
        target: String,
    },
    /// The same from the other end.
    #[error("nic {nic:?} cannot become a mirror, as nic {by:?} mirrors it: delete that one first")]
    IsMirrored {
        /// The vnic.
        nic: String,
        /// Its mirror.
        by: String,
    },
    /// A mirror of itself.
    #[error("nic {0:?} cannot mirror itself: name another nic of its VNI as the sniff target")]
    OfItself(String),
    /// A filtered vnic sends from its own addresses only.
    #[error("NIC {0} is filtered and sends from its own addresses only: it cannot forward")]
    CannotForward(String),
    /// A traffic generator speaks from the vnic's first address.
    #[error("a nic of type BENCH needs an ip: what it sends from, or answers for")]
    BenchWithoutAddress,
    /// A traffic generator cannot reach its target from the vnic's first address.
    #[error(
        "the first ip of the nic, {own}, and its dip, {target}, are of different address families: nic add with another dip makes it anew"
    )]
    BenchFamily {
        /// The first address of the vnic.
        own: IpAddr,
        /// The address that the generator sends to.
        target: IpAddr,
    },
    /// A vnic of this id is there already.
    #[error("there is a nic with id {0:?} already")]
    NicExists(String),
    /// There is no vnic of this id.
    #[error("there is no nic with id {0:?}")]
    NicMissing(String),
    /// A vnic cannot become another one while its VM stays attached.
    #[error("nic {0:?} has to be made anew for that")]
    NotInPlace(String),
    /// There is no security group of this name.
    #[error("there is no security group {0:?}")]
    GroupMissing(String),
    /// A declaration names one vnic twice.
    #[error("nic {0:?} is declared twice")]
    NicTwice(String),
    /// A declaration names one security group twice.
    #[error("security group {0:?} is declared twice")]
    GroupTwice(String),
    /// An address at which no host can be.
    #[error("{0} is not the address of a host")]
    NotAHost(IpAddr),
    /// More pairs of a network and a peer than there can be.
    #[error(
        "peers are named for single networks {MAX_NAMED} times already; name this one for all networks, or remove others"
    )]
    TooManyPeers,
}

impl Refused {
    /// The other vnic, if it is a conflict of two.
    pub(crate) fn other(&self) -> Option<&str> {
        match self {
            Self::Socket { owner, .. } => Some(owner),
            Self::OtherNetwork { target, .. } | Self::OfMirror { target, .. } => Some(target),
            Self::MirroredElsewhere { by, .. } | Self::IsMirrored { by, .. } => Some(by),
            _ => None,
        }
    }
}

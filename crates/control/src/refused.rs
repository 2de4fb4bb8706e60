//! Why a state, or a change of it, is refused.

use crate::peers::MAX_NAMED;
use butterfly_model::{Cidr, Prefix, Vni, canonical};
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
    /// Addresses that would be of two vnics of different MAC addresses.
    #[error(
        "{what} of nic {nic:?} would have addresses of nic {owner:?} of VNI {vni}, as a prefix is of one nic alone: choose another, or change that nic first"
    )]
    PrefixTaken {
        /// The vnic that is declared.
        nic: String,
        /// Its prefix or address, in words.
        what: String,
        /// The network.
        vni: Vni,
        /// The other vnic.
        owner: String,
    },
    /// A prefix of a vnic that has no addresses of its own alone.
    #[error("nic {nic:?} {why}, so that no prefix can be its own: declare it without --prefix")]
    NoPrefix {
        /// The vnic.
        nic: String,
        /// The reason.
        why: &'static str,
    },
    /// A vnic's prefix in which a router, or an external, has an address.
    #[error(
        "prefix {prefix} of network {vni} has {}, which belongs to {owner}: choose another prefix", canonical(*.address)
    )]
    PrefixHasOther {
        /// The prefix.
        prefix: Prefix,
        /// The network.
        vni: Vni,
        /// The address.
        address: IpAddr,
        /// Name of what has it.
        owner: String,
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
    #[error("{0} is not the address of a host; choose another")]
    NotAHost(IpAddr),
    /// More pairs of a network and a peer than there can be.
    #[error(
        "peers are named for single networks {MAX_NAMED} times already; name this one for all networks, or remove others"
    )]
    TooManyPeers,
    /// A MAC address that only routers, or hosts that route, have.
    #[error(
        "nic {nic:?} cannot have the MAC address {mac}, nor send to it: those that begin with b2:f0 or b2:f1 are of routers; choose another"
    )]
    ReservedMac {
        /// The vnic.
        nic: String,
        /// Its address, or that of a traffic generator's target, as declared.
        mac: String,
    },
    /// A router's address in no subnet of its network.
    #[error(
        "{} is in no subnet of network {vni}: choose an address of one, or declare its subnet", canonical(*.address)
    )]
    NotInSubnet {
        /// The address.
        address: IpAddr,
        /// The network.
        vni: Vni,
    },
    /// A router that would have no address in a network.
    #[error(
        "router {router:?} would have no address in network {vni}: declare a gateway of a subnet, or attach it with an address"
    )]
    NoGateway {
        /// The router.
        router: String,
        /// The network.
        vni: Vni,
    },
    /// Two subnets between which a router could not choose.
    #[error(
        "subnet {cidr} of network {vni} overlaps {other} of network {other_vni}, so that packets for an address would have two ways: change one of them"
    )]
    Overlap {
        /// A subnet.
        cidr: Cidr,
        /// Its network.
        vni: Vni,
        /// The other subnet.
        other: Cidr,
        /// Its network; the same for two subnets of one.
        other_vni: Vni,
    },
    /// An address of a network that a router and another machine, or two routers, would have.
    #[error("{} of network {vni} belongs to {owner}: choose another address", canonical(*.address))]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The network.
        vni: Vni,
        /// The vnic, neighbour or router that has it.
        owner: String,
    },
    /// Two routers of a network whose ids have one hash.
    #[error(
        "routers {router:?} and {other:?} would have one MAC address in network {vni}, as it is made of their ids: give one of them another id"
    )]
    MacClash {
        /// The network.
        vni: Vni,
        /// The router that is declared.
        router: String,
        /// The router that is there.
        other: String,
    },
    /// Two routers at an external whose ids have one hash.
    #[error(
        "routers {router:?} and {other:?} would have one MAC address at external {external:?}, as it is made of their ids: give one of them another id"
    )]
    MacClashOutside {
        /// The external.
        external: String,
        /// The router that is declared.
        router: String,
        /// The router that is there.
        other: String,
    },
    /// There is no declared network with this number.
    #[error(
        "network {0} is not declared: declare it first, `butterfly network add --vni {0} --subnet CIDR`"
    )]
    NetworkMissing(Vni),
    /// There is no router of this id.
    #[error(
        "there is no router {0:?}: `butterfly router list` has those that there are, `butterfly router add` declares one"
    )]
    RouterMissing(String),
    /// A network that a router joins.
    #[error(
        "router {router:?} is attached to network {vni}: detach it first, `butterfly router detach`"
    )]
    StillAttached {
        /// The network.
        vni: Vni,
        /// One of its routers.
        router: String,
    },
    /// A route by an address in no subnet of the router's networks.
    #[error(
        "{}, by which router {router:?} leads to {to}, is in no subnet of a network that it joins: attach it to the network of that machine, or delete the route first", canonical(*.via)
    )]
    ViaNotConnected {
        /// The router.
        router: String,
        /// The block to which the route leads.
        to: Cidr,
        /// The address.
        via: IpAddr,
    },
    /// A route by an address of the router itself.
    #[error(
        "{}, by which router {router:?} would lead to {to}, is the router's own address: name the machine that leads there", canonical(*.via)
    )]
    ViaIsRouter {
        /// The router.
        router: String,
        /// The block to which the route leads.
        to: Cidr,
        /// The address.
        via: IpAddr,
    },
    /// More than there can be.
    #[error("{owner} would have more than {most} {what}, which is the most: remove others first")]
    TooMany {
        /// The object that would have them.
        owner: String,
        /// Name of what would be too many.
        what: &'static str,
        /// The most that there can be.
        most: usize,
    },
    /// A declaration names one network twice.
    #[error("network {0} is declared twice")]
    NetworkTwice(Vni),
    /// A declaration names one router twice.
    #[error("router {0:?} is declared twice")]
    RouterTwice(String),
    /// There is no declared neighbour with this address.
    #[error(
        "there is no neighbour {} of network {vni}: `butterfly neighbour list --vni {vni}` has those that there are", canonical(*.address)
    )]
    NeighbourMissing {
        /// The address.
        address: IpAddr,
        /// The network.
        vni: Vni,
    },
    /// A declaration names one neighbour twice.
    #[error("neighbour {} of network {vni} is declared twice", canonical(*.address))]
    NeighbourTwice {
        /// The address.
        address: IpAddr,
        /// The network.
        vni: Vni,
    },
    /// There is no external of this id.
    #[error(
        "there is no external {0:?}: `butterfly external list` has those that there are, `butterfly external add` declares one"
    )]
    ExternalMissing(String),
    /// A declaration names one external twice.
    #[error("external {0:?} is declared twice")]
    ExternalTwice(String),
    /// The number of an external, where that of a network is expected.
    #[error(
        "VNI {vni} is that of external {external:?}: choose another, or attach routers to it with --external"
    )]
    NumberOfExternal {
        /// The number.
        vni: Vni,
        /// The external.
        external: String,
    },
    /// A machine in an external that has none.
    #[error(
        "VNI {vni} was chosen for external {external:?}, and no vnics or neighbours are in it: choose another VNI, or declare the external with --vni"
    )]
    NumberChosen {
        /// The number.
        vni: Vni,
        /// The external.
        external: String,
    },
    /// The number of an external that something else has.
    #[error("external {external:?} cannot have VNI {vni}, in which {owner} is: choose another VNI")]
    NumberInUse {
        /// The external.
        external: String,
        /// The number.
        vni: Vni,
        /// Name of what has it.
        owner: String,
    },
    /// No number is left.
    #[error("all VNIs are in use: declare external {0:?} with --vni, or remove networks first")]
    NoNumber(String),
    /// Another number for an external that there is.
    #[error("external {external:?} has VNI {old}: delete it first to give it VNI {new}")]
    OtherNumber {
        /// The external.
        external: String,
        /// Its number.
        old: Vni,
        /// The number that it should have.
        new: Vni,
    },
    /// A wire that another external has.
    #[error("{wire} belongs to external {owner:?}: choose another interface or VLAN")]
    WireTaken {
        /// The device and its VLAN in words.
        wire: String,
        /// The external that has it.
        owner: String,
    },
    /// An external that a router is attached to.
    #[error(
        "router {router:?} is attached to external {external:?}: detach it first, `butterfly router detach`"
    )]
    ExternalInUse {
        /// The external.
        external: String,
        /// One of its routers.
        router: String,
    },
    /// A translation of a router that is not attached.
    #[error(
        "router {router:?} is not attached to external {external:?}: attach it first, `butterfly router attach {router} --external {external}`"
    )]
    NotAttached {
        /// The router.
        router: String,
        /// The external.
        external: String,
    },
    /// A router that goes, or leaves an external, with translations there.
    #[error(
        "router {router:?} has {count} translations at external {external:?}: delete them first, `butterfly nat list` has them"
    )]
    StillTranslates {
        /// The router.
        router: String,
        /// The external.
        external: String,
        /// Number of translations.
        count: usize,
    },
    /// A router's own address that the external does not have.
    #[error(
        "{} is none of the addresses that this host has in external {external:?}: declare it there first, `butterfly external add`; of an external that another host has (via), attach the router without an address", canonical(*.address)
    )]
    NotAtExternal {
        /// The address.
        address: IpAddr,
        /// The external.
        external: String,
    },
    /// Translations at an external that another host has.
    #[error(
        "external {external:?} leads out by host {}, which translates: declare translations there; those that are declared here have to be deleted first", canonical(*.host)
    )]
    TranslatedThere {
        /// The external.
        external: String,
        /// The tunnel endpoint of the host.
        host: IpAddr,
    },
    /// An address of an external that something else has.
    #[error("{} of external {external:?} belongs to {owner}: choose another address", canonical(*.address))]
    OutsideTaken {
        /// The address.
        address: IpAddr,
        /// The external.
        external: String,
        /// Name of what has it.
        owner: String,
    },
    /// An address of translations that is a machine's inside, too.
    #[error(
        "{} cannot be translated at external {external:?}: it is in {cidr} of network {vni}, which router {router:?} has the outside reach as it is; choose another address, or another subnet", canonical(*.address)
    )]
    OutsideInside {
        /// The address.
        address: IpAddr,
        /// The external.
        external: String,
        /// A public subnet, or one of IPv6.
        cidr: Cidr,
        /// Its network.
        vni: Vni,
        /// A router that leads there.
        router: String,
    },
    /// A port that is forwarded twice, or an address that is translated twice.
    #[error(
        "external {external:?} has {nat}, and another translation with that: give one of them another address or port"
    )]
    NatTwice {
        /// The external.
        external: String,
        /// The translation.
        nat: String,
    },
    /// A machine, or a port of it, that would have two addresses at an external.
    #[error("{nat} of external {external:?} is refused: another translation leads to the same port of {}, and its answers can leave by one of them alone; take that one back first", canonical(*.inside))]
    NatTwoWays {
        /// The external.
        external: String,
        /// The translation.
        nat: String,
        /// The machine.
        inside: IpAddr,
    },
    /// Addresses inside to which two routers would lead.
    #[error(
        "packets from external {external:?} to {cidr} of network {vni} would have two ways, by routers {router:?} and {other:?}: attach one of them only, or change the subnet"
    )]
    TwoWaysIn {
        /// The external.
        external: String,
        /// A public subnet, or one of IPv6.
        cidr: Cidr,
        /// Its network.
        vni: Vni,
        /// A router that leads there.
        router: String,
        /// Another one that does.
        other: String,
    },
}

impl Refused {
    /// The other vnic, if it is a conflict of two.
    pub(crate) fn other(&self) -> Option<&str> {
        match self {
            Self::Socket { owner, .. } | Self::PrefixTaken { owner, .. } => Some(owner),
            Self::OtherNetwork { target, .. } | Self::OfMirror { target, .. } => Some(target),
            Self::MirroredElsewhere { by, .. } | Self::IsMirrored { by, .. } => Some(by),
            _ => None,
        }
    }
}

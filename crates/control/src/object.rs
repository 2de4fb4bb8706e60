//! Objects that differ between two states.

/// The kind of a declared object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A vnic.
    Vnic,
    /// A security group.
    Group,
    /// A tunnel endpoint of another host.
    Peer,
    /// A network.
    Network,
    /// A router.
    Router,
    /// A neighbour.
    Neighbour,
    /// An external.
    External,
    /// A translation.
    Nat,
}

/// The way in which an object differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The object comes.
    Added,
    /// The object changes; VMs stay attached.
    Changed,
    /// A vnic is made anew, which cuts its VM off.
    Remade,
    /// The object goes.
    Removed,
}

/// An object that is not the same in two states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its kind.
    pub object: Object,
    /// Its name: the id of a vnic or a router, the name of a group, the address of a peer, the
    /// number of a network, the address and network of a neighbour, the id of an external, the
    /// outside address of a translation.
    pub name: String,
    /// The way in which it differs.
    pub what: What,
    /// Details in words; empty if there are none.
    pub text: String,
}

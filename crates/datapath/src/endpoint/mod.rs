//! Endpoint: the control side of the tunnel. Opens the uplink, speaks ARP, neighbour discovery and
//! group membership, and keeps next hops.

pub(crate) mod control;
pub(crate) mod keeper;
pub(crate) mod link;
pub(crate) mod open;
pub(crate) mod side;
pub(crate) mod silence;
pub(crate) mod watch;

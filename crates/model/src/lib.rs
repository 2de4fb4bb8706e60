//! Declarations of an operator, as types that are valid by construction.
//!
//! Everything that comes from the API or a file passes through a constructor here once; afterwards
//! no code checks again. The types also know how a declaration is echoed (texts and orders that
//! clients rely on). No I/O.

#![forbid(unsafe_code)]

mod address;
mod cidr;
mod dhcp;
mod external;
mod hash;
mod limits;
mod mac;
mod nat;
mod neighbour;
mod netns;
mod network;
mod nic;
mod nic_id;
mod prefix;
mod route;
mod router;
mod rule;
mod security_group;
mod socket;
mod subnet;
mod vni;

pub use address::{AddressError, Element, IpSet, OrderedSet, canonical, may_be_endpoint, parse_ip};
pub use cidr::{Cidr, CidrError};
pub use dhcp::{Dhcp, DhcpError, DhcpRoute};
pub use external::{
    External, ExternalError, ExternalId, ExternalIdError, WireDevice, WireDeviceError,
};
pub use hash::libstdcxx_hash;
pub use limits::{Limit, LimitError, Limits};
pub use mac::{Mac, MacError};
pub use nat::{ForwardProtocol, Nat, NatError, NatPlace, NatRule, parse_endpoint};
pub use neighbour::{Neighbour, NeighbourError};
pub use netns::{Netns, NetnsError};
pub use network::{MtuError, Network};
pub use nic::{Bench, Kind, Nic, NicUpdate, Role, TraceOptions};
pub use nic_id::{NicId, NicIdError};
pub use prefix::{MAX_PREFIXES, Member, MemberError, MemberSet, Prefix, PrefixError, PrefixSet};
pub use route::{Route, RouteError};
pub use router::{
    Router, RouterAddresses, RouterAddressesError, RouterId, RouterIdError, SecondHop, host_mac,
    is_reserved_mac, service_mac,
};
pub use rule::{Direction, Peer, Protocol, Rule, RuleError};
pub use security_group::{GroupName, GroupNameError, GroupNames, SecurityGroup};
pub use socket::{SocketDir, SocketPath, SocketPathError};
pub use subnet::{Subnet, SubnetError};
pub use vni::{Vni, VniOutOfRange};

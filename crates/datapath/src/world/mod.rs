//! World: all that a worker may know. Vnics, networks, addresses, rules, and the snapshot of them.

pub(crate) mod adopted;
pub(crate) mod announcing;
pub(crate) mod asking;
pub(crate) mod bindings;
pub(crate) mod bound;
pub(crate) mod claim;
pub(crate) mod dhcp;
pub(crate) mod fdb;
pub(crate) mod found;
pub(crate) mod holders;
pub(crate) mod leases;
pub(crate) mod limits;
pub(crate) mod nat;
pub(crate) mod neighbours;
pub(crate) mod outside;
pub(crate) mod policy;
pub(crate) mod prefixes;
pub(crate) mod presence;
pub(crate) mod relay;
pub(crate) mod routing;
pub(crate) mod rules;
pub(crate) mod serving;
pub(crate) mod snapshot;
pub(crate) mod steering;
pub(crate) mod waiting;
pub(crate) mod ways;

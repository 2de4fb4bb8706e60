//! Policy of a vnic, as declared.

use std::net::IpAddr;

use butterfly_model::{GroupName, Limits, Prefix};

/// Policy of a vnic.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VnicPolicy {
    /// True for a vnic without filter and source checks. It may have any number of addresses.
    pub bypass: bool,
    /// True if the sender of ARP packets is checked against `ips`.
    pub ip_anti_spoof: bool,
    /// True if it forwards packets of other machines. If it bypasses filters itself, they may be
    /// from addresses of filtered vnics.
    pub forwards: bool,
    /// True if vnics of other hosts have its addresses, too.
    pub shared_ip: bool,
    /// True if it may send messages of routers (router advertisements, redirects), if a rule names
    /// ICMPv6 or ICMP.
    pub router: bool,
    /// Limits of its traffic.
    pub limits: Limits,
    /// The vnic's addresses.
    pub ips: Vec<IpAddr>,
    /// Blocks of IPv6 in which all addresses are the vnic's.
    pub prefixes: Vec<Prefix>,
    /// The security groups whose rules it obeys; they need not exist.
    pub groups: Vec<GroupName>,
}

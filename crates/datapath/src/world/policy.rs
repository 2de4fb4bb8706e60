//! What is declared of a vnic.

use std::net::IpAddr;

use butterfly_model::GroupName;

/// What a vnic is let do.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct VnicPolicy {
    /// No filter and no source checks; such a vnic may have any number of addresses.
    pub bypass: bool,
    /// Check the sender of ARP packets against `ips`.
    pub ip_anti_spoof: bool,
    /// It passes on packets of others: they may be from addresses of filtered vnics, if it
    /// bypasses filters itself.
    pub forwards: bool,
    /// Vnics of other hosts have its addresses, too.
    pub shared_ip: bool,
    /// It may say what routers say (router advertisements, redirects), if a rule names ICMPv6 or
    /// ICMP.
    pub router: bool,
    /// The vnic's addresses.
    pub ips: Vec<IpAddr>,
    /// The security groups whose rules it obeys; they need not exist.
    pub groups: Vec<GroupName>,
}

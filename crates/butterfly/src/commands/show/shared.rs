//! Addresses that several vnics of a network declare.

use butterfly_api::proto::NicShow;
use butterfly_model::{canonical, parse_ip};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// An address, and the vnics of this host that declare it.
pub struct Shared<'a> {
    pub vni: u32,
    pub address: String,
    pub nics: Vec<&'a str>,
}

/// All of them, by network and address. It may be meant, as for VRRP: each may use it.
pub fn shared(nics: &[NicShow]) -> Vec<Shared<'_>> {
    let mut holders: BTreeMap<(u32, IpAddr), Vec<&str>> = BTreeMap::new();
    for nic in nics {
        for address in nic.ip.iter().filter_map(|ip| parse_ip(ip).ok()) {
            holders.entry((nic.vni(), address)).or_default().push(nic.id());
        }
    }
    let shared = holders.into_iter().filter(|(_, nics)| nics.len() > 1);
    shared.map(|((vni, address), nics)| Shared { vni, address: canonical(address), nics }).collect()
}

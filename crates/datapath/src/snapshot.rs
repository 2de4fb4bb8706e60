//! What workers know: an immutable picture of vnics and networks, replaced as a whole, sharing what did not change.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64},
    },
};

use butterfly_packet::mac::Mac;
use butterfly_vhost::port::Port;

use crate::{counters::Counters, headers::number, slab::Slab};

/// A vnic's place, with a number that tells successive users of the place apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct PortRef {
    pub slot: u32,
    pub incarnation: u32,
}

/// What a vnic may do, compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// No filter, no source checks.
    pub bypass: bool,
    /// Check ARP senders against `arp`.
    pub ip_anti_spoof: bool,
    /// The vnic's IPv4 addresses, sorted.
    pub arp: Vec<Ipv4Addr>,
}

impl Rules {
    pub fn new(bypass: bool, ip_anti_spoof: bool, ips: &[IpAddr]) -> Rules {
        let mut arp: Vec<Ipv4Addr> = ips
            .iter()
            .filter_map(|ip| match ip {
                IpAddr::V4(ip) => Some(*ip),
                IpAddr::V6(_) => None,
            })
            .collect();
        arp.sort_unstable();
        arp.dedup();
        Rules { bypass, ip_anti_spoof, arp }
    }
}

/// What stays with a vnic when its rules change.
pub(crate) struct Shared {
    pub port: Arc<Port>,
    pub counters: Counters,
    /// Addresses learnt behind it.
    pub learnt: AtomicU32,
    /// Copies it may still cause by flooding, and when that was last topped up (ticks of the time stamp counter).
    pub flood_tokens: AtomicU64,
    pub flood_filled: AtomicU64,
}

/// A vnic as workers see it.
pub(crate) struct Vnic {
    pub id: Arc<str>,
    pub place: PortRef,
    pub mac: Mac,
    pub vni: u32,
    /// Where its network stands in [`Snapshot::networks`].
    pub network: u32,
    pub rules: Rules,
    pub shared: Arc<Shared>,
}

/// The vnics of a VNI on this host.
#[derive(Clone)]
pub(crate) struct Network {
    /// Slots of its vnics, ascending.
    pub members: Vec<u32>,
    /// Whether any of them is filtered.
    pub filtered: bool,
    /// Which of them owns an address.
    pub macs: MacTable,
    /// Addresses learnt in it.
    pub learnt: Arc<AtomicU32>,
}

/// Everything.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub vnics: Slab<Vnic>,
    pub networks: Slab<Network>,
    /// Where a VNI stands in `networks`. For those who change the snapshot; workers go through [`Vnic::network`].
    pub by_vni: Arc<HashMap<u32, u32>>,
}

impl Snapshot {
    /// The vnic at a place, if it is still the same.
    #[inline(always)]
    pub fn vnic(&self, place: PortRef) -> Option<&Arc<Vnic>> {
        self.vnics.get(place.slot).filter(|vnic| vnic.place.incarnation == place.incarnation)
    }
}

/// Unicast addresses of a network's own vnics: open addressing, at most half full.
#[derive(Clone, Default)]
pub(crate) struct MacTable {
    /// Address + 1 and slot; 0 is free.
    entries: Box<[(u64, u32)]>,
    shift: u32,
}

const HASH: u64 = 0x9e37_79b9_7f4a_7c15;

impl MacTable {
    /// The first of several owners of one address has it.
    pub fn new(owners: impl Iterator<Item = (Mac, u32)> + Clone) -> MacTable {
        let size = (owners.clone().count() * 2).next_power_of_two().max(4);
        let mut table = MacTable { entries: vec![(0, 0); size].into_boxed_slice(), shift: 64 - size.trailing_zeros() };
        for (mac, slot) in owners {
            let key = number(mac) + 1;
            let mut at = table.home(key);
            while let Some(entry) = table.entries.get_mut(at) {
                if entry.0 == key {
                    break;
                }
                if entry.0 == 0 {
                    *entry = (key, slot);
                    break;
                }
                at = (at + 1) & (size - 1);
            }
        }
        table
    }

    #[inline(always)]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(HASH) >> self.shift) as usize
    }

    /// Slot of the vnic that owns `mac` (as [`number`]).
    #[inline(always)]
    pub fn get(&self, mac: u64) -> Option<u32> {
        let key = mac + 1;
        let mut at = self.home(key);
        loop {
            let (found, slot) = *self.entries.get(at)?;
            if found == key {
                return Some(slot);
            }
            if found == 0 {
                return None;
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_is_found_and_nobody_else() {
        let mac = |n: u32| Mac([2, 0, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
        for n in [0u32, 1, 2, 3, 100, 1000] {
            let table = MacTable::new((0..n).map(|i| (mac(i * 7), i)));
            for i in 0..n {
                assert_eq!(table.get(number(mac(i * 7))), Some(i));
            }
            assert_eq!(table.get(number(mac(n * 7 + 1))), None);
        }
        assert_eq!(MacTable::default().get(5), None);
    }

    #[test]
    fn the_first_owner_has_it() {
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        assert_eq!(MacTable::new([(mac, 7), (mac, 8)].into_iter()).get(number(mac)), Some(7));
    }
}

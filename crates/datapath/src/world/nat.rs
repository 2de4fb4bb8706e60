//! Translations: the addresses that machines of a router have outside of an external.

use std::net::IpAddr;

use butterfly_model::Nat;

use crate::ip::Address;
use crate::world::rules::number;

/// Translations of one router at one external.
#[derive(Debug, Default)]
pub(crate) struct Translations {
    /// Addresses outside, ascending, and the addresses inside that they are.
    inward: Box<[(Address, Address)]>,
    /// The same, by the addresses inside.
    outward: Box<[(Address, Address)]>,
}

/// Returns what stands beside a number in an ascending list.
fn find(list: &[(Address, Address)], address: Address) -> Option<Address> {
    let at = list.binary_search_by_key(&address, |(it, _)| *it).ok()?;
    list.get(at).map(|(_, other)| *other)
}

/// Returns pairs in ascending order. Of several with one number the first one stays.
fn sorted(mut pairs: Vec<(Address, Address)>) -> Box<[(Address, Address)]> {
    pairs.sort_by_key(|(address, _)| *address);
    pairs.dedup_by_key(|(address, _)| *address);
    pairs.into()
}

impl Translations {
    /// Makes the translations of rules.
    pub fn new(rules: &[Nat]) -> Translations {
        let floating = rules.iter().filter_map(|rule| match rule {
            Nat::Floating { outside, inside, .. } => Some((number(*outside), number(*inside))),
            _ => None,
        });
        let inward: Vec<_> = floating.collect();
        let outward = inward.iter().map(|(outside, inside)| (*inside, *outside)).collect();
        Translations { inward: sorted(inward), outward: sorted(outward) }
    }

    /// Returns the machine inside that has all of an address outside.
    #[inline]
    pub fn inside_of(&self, outside: Address) -> Option<Address> {
        find(&self.inward, outside)
    }

    /// Returns the address outside that a machine inside has for itself.
    #[inline]
    pub fn outside_of(&self, inside: Address) -> Option<Address> {
        find(&self.outward, inside)
    }
}

/// Translations at an external: those of all its routers.
#[derive(Debug, Default)]
pub(crate) struct NatTable {
    /// MAC addresses of routers as [`crate::engine::mac::number`], ascending, and what they
    /// translate.
    routers: Box<[(u64, Translations)]>,
    /// Addresses outside, ascending, and the places of their routers.
    owners: Box<[(Address, u32)]>,
}

impl NatTable {
    /// Makes the table of routers, by their MAC addresses, and their rules.
    pub fn new<'a>(routers: impl Iterator<Item = (u64, &'a [Nat])>) -> NatTable {
        let mut all: Vec<(u64, &[Nat])> = routers.collect();
        all.sort_by_key(|(mac, _)| *mac);
        let places = (0_u32..).zip(&all);
        let mut owners: Vec<(Address, u32)> = places
            .flat_map(|(at, (_, rules))| rules.iter().map(move |it| (outside(it.outside()), at)))
            .collect();
        owners.sort_unstable();
        owners.dedup_by_key(|(address, _)| *address);
        let routers = all.into_iter().map(|(mac, rules)| (mac, Translations::new(rules)));
        NatTable { routers: routers.collect(), owners: owners.into() }
    }

    /// Returns whether nothing is translated.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Returns whether an address outside is translated.
    pub fn has(&self, outside: Address) -> bool {
        self.owner_of(outside).is_some()
    }

    /// Returns the MAC address of the router that has an address outside, and what it translates.
    #[inline]
    pub fn owner_of(&self, outside: Address) -> Option<(u64, &Translations)> {
        let at = self.owners.binary_search_by_key(&outside, |(it, _)| *it).ok()?;
        let (_, at) = self.owners.get(at)?;
        self.routers.get(*at as usize).map(|(mac, translations)| (*mac, translations))
    }

    /// Returns what the router with this MAC address translates.
    #[inline]
    pub fn of(&self, router: u64) -> Option<&Translations> {
        let at = self.routers.binary_search_by_key(&router, |(mac, _)| *mac).ok()?;
        self.routers.get(at).map(|(_, translations)| translations)
    }
}

fn outside(address: IpAddr) -> Address {
    number(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floating(outside: &str, inside: &str) -> Nat {
        Nat::floating(outside.parse().unwrap(), inside.parse().unwrap()).unwrap()
    }

    fn ip(text: &str) -> Address {
        number(text.parse().unwrap())
    }

    #[test]
    fn each_router_has_its_own() {
        let one = [floating("192.0.2.80", "10.0.0.10"), floating("2001:db8::8", "fd00::8")];
        let other = [floating("192.0.2.81", "10.0.0.10")];
        let table = NatTable::new([(7, &one[..]), (3, &other[..])].into_iter());
        assert!(!table.is_empty() && NatTable::default().is_empty());
        let owner = |text| table.owner_of(ip(text)).map(|(mac, _)| mac);
        assert_eq!([owner("192.0.2.80"), owner("192.0.2.81")], [Some(7), Some(3)]);
        assert_eq!((owner("2001:db8::8"), owner("192.0.2.82")), (Some(7), None));
        let of = |mac, inside| table.of(mac).and_then(|it| it.outside_of(ip(inside)));
        assert_eq!(of(7, "10.0.0.10"), Some(ip("192.0.2.80")));
        assert_eq!(of(3, "10.0.0.10"), Some(ip("192.0.2.81")));
        assert_eq!((of(3, "fd00::8"), of(4, "10.0.0.10")), (None, None));
        let (_, translations) = table.owner_of(ip("192.0.2.80")).unwrap();
        assert_eq!(translations.inside_of(ip("192.0.2.80")), Some(ip("10.0.0.10")));
        assert_eq!(translations.inside_of(ip("192.0.2.81")), None);
        assert!(table.has(ip("192.0.2.81")) && !table.has(ip("10.0.0.10")));
    }
}

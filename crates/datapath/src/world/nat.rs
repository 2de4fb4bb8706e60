//! Translations: the addresses that machines of a router have outside of an external.

use std::net::IpAddr;

use butterfly_model::Nat;

use crate::ip::Address;
use crate::world::rules::number;

/// Port of an address: the address, a protocol and its port.
type PortKey = (Address, u8, u16);

/// Translations of one router at one external.
#[derive(Debug, Default)]
pub(crate) struct Translations {
    /// Addresses outside, ascending, and the addresses inside that they are.
    inward: Box<[(Address, Address)]>,
    /// The same, by the addresses inside.
    outward: Box<[(Address, Address)]>,
    /// Ports outside, ascending, and the addresses and ports inside that they are.
    forwards: Box<[(PortKey, (Address, u16))]>,
    /// The same, by the ports inside.
    answers: Box<[(PortKey, (Address, u16))]>,
}

/// Returns what stands beside a number in an ascending list.
fn find<K: Ord + Copy, V: Copy>(list: &[(K, V)], key: K) -> Option<V> {
    let at = list.binary_search_by_key(&key, |(it, _)| *it).ok()?;
    list.get(at).map(|(_, value)| *value)
}

/// Returns pairs in ascending order. Of several with one number the first one stays.
fn sorted<K: Ord + Copy, V: Ord + Copy>(mut pairs: Vec<(K, V)>) -> Box<[(K, V)]> {
    pairs.sort_unstable();
    pairs.dedup_by_key(|(key, _)| *key);
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
        let forwards = rules.iter().filter_map(|rule| match *rule {
            Nat::Forward { outside, protocol, port, inside, to_port, .. } => {
                let outside = (number(outside.into()), protocol.number(), port);
                Some((outside, (number(inside.into()), to_port)))
            }
            _ => None,
        });
        let forwards: Vec<_> = forwards.collect();
        let answers = forwards.iter().map(|((outside, protocol, port), (inside, to_port))| {
            ((*inside, *protocol, *to_port), (*outside, *port))
        });
        Translations {
            answers: sorted(answers.collect()),
            forwards: sorted(forwards),
            inward: sorted(inward),
            outward: sorted(outward),
        }
    }

    /// Returns the machine inside that has an address outside, or its `port` of a protocol: then
    /// also the machine's port.
    #[inline]
    pub fn inside_of(
        &self,
        outside: Address,
        protocol: u8,
        port: Option<u16>,
    ) -> Option<(Address, Option<u16>)> {
        let whole = find(&self.inward, outside).map(|inside| (inside, None));
        let forward = || find(&self.forwards, (outside, protocol, port?));
        whole.or_else(|| forward().map(|(inside, port)| (inside, Some(port))))
    }

    /// Returns the address outside that a machine inside has for itself, or that has its `port` of
    /// a protocol: then also the port outside.
    #[inline]
    pub fn outside_of(
        &self,
        inside: Address,
        protocol: u8,
        port: Option<u16>,
    ) -> Option<(Address, Option<u16>)> {
        let whole = find(&self.outward, inside).map(|outside| (outside, None));
        let answer = || find(&self.answers, (inside, protocol, port?));
        whole.or_else(|| answer().map(|(outside, port)| (outside, Some(port))))
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
    use butterfly_model::ForwardProtocol;

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
        let of =
            |mac, inside| table.of(mac).and_then(|it| it.outside_of(ip(inside), 6, None)?.0.into());
        assert_eq!(of(7, "10.0.0.10"), Some(ip("192.0.2.80")));
        assert_eq!(of(3, "10.0.0.10"), Some(ip("192.0.2.81")));
        assert_eq!((of(3, "fd00::8"), of(4, "10.0.0.10")), (None, None));
        let (_, translations) = table.owner_of(ip("192.0.2.80")).unwrap();
        assert_eq!(
            translations.inside_of(ip("192.0.2.80"), 6, Some(1)),
            Some((ip("10.0.0.10"), None))
        );
        assert_eq!(translations.inside_of(ip("192.0.2.81"), 6, Some(1)), None);
        assert!(table.has(ip("192.0.2.81")) && !table.has(ip("10.0.0.10")));
    }

    #[test]
    fn a_port_is_one_machines() {
        let forward = |protocol, outside: &str, inside: &str| {
            let ends = [outside, inside].map(|text| text.parse().unwrap());
            Nat::forward(protocol, ends[0], ends[1]).unwrap()
        };
        let rules = [
            forward(ForwardProtocol::Tcp, "192.0.2.9:443", "10.0.0.10:8443"),
            forward(ForwardProtocol::Udp, "192.0.2.9:443", "10.0.0.11:443"),
            forward(ForwardProtocol::Tcp, "192.0.2.9:80", "10.0.0.10:8443"),
        ];
        let translations = Translations::new(&rules);
        let inside = |protocol, port| translations.inside_of(ip("192.0.2.9"), protocol, port);
        assert_eq!(inside(6, Some(443)), Some((ip("10.0.0.10"), Some(8443))));
        assert_eq!(inside(17, Some(443)), Some((ip("10.0.0.11"), Some(443))));
        assert_eq!(
            (inside(6, Some(444)), inside(6, None), inside(1, Some(443))),
            Default::default()
        );
        let outside = |protocol, port| translations.outside_of(ip("10.0.0.10"), protocol, port);
        // Of several the lowest one answers.
        assert_eq!(outside(6, Some(8443)), Some((ip("192.0.2.9"), Some(80))));
        assert_eq!((outside(17, Some(8443)), outside(6, None)), Default::default());
    }
}

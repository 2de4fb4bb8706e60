//! Translations: the addresses that machines of a router have outside of an external.

use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use butterfly_model::Nat;

use crate::ip::{Address, is_v4, mapped};
use crate::world::{
    ports::{InsideEnd, NoPort, PortProtocol, PortTable, Said, Sharer},
    rules::number,
    steering::mix,
};

/// Digits of pi. They say which address outside a machine has, so they never change.
const OF_MACHINE: [u64; 2] = [0x082e_fa98_ec4e_6c89, 0x4528_21e6_38d0_1377];

/// Port of an address: the address, a protocol and its port.
type PortKey = (Address, u8, u16);

/// Address outside that machines share.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub address: Ipv4Addr,
    pub ports: Arc<PortTable>,
}

/// Port that a packet would get that is not sent: its answer finds its way by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumed {
    outside: (Address, u16),
    inside: InsideEnd,
}

/// Sender of a packet that looks for a port, and the second in which it does. Packets that are not
/// sent change nothing, and what they would get is noted.
#[derive(Clone, Copy)]
pub(crate) struct Sharing<'a> {
    pub sharer: Sharer,
    pub now: u32,
    pub assumed: Option<&'a Cell<Option<Assumed>>>,
}

/// Translation of the first fragment of a packet by its port, for the fragments that follow. They
/// pass while that port still leads to the same address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstTranslation {
    /// MAC address of the router, the port that the first fragment came with, and the address that
    /// it got.
    pub router: u64,
    pub port: u16,
    pub address: Address,
    /// Identification that the fragments get, if others may leave as the same address.
    pub id: Option<u16>,
}

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
    /// Addresses outside that its machines share.
    pool: Box<[Pool]>,
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
    /// Makes the translations of rules. `ports` are those of the addresses that machines share.
    pub fn new(rules: &[Nat], ports: impl Fn(Ipv4Addr) -> Option<Arc<PortTable>>) -> Translations {
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
        let pool = rules.iter().filter_map(|rule| match *rule {
            Nat::Snat { outside: address, .. } => Some(Pool { address, ports: ports(address)? }),
            _ => None,
        });
        Translations {
            pool: pool.collect(),
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

    /// Returns whether a machine inside has ports of addresses outside.
    pub fn is_forwarded_to(&self, inside: Address) -> bool {
        let at = self.answers.partition_point(|((of, ..), _)| *of < inside);
        self.answers.get(at).is_some_and(|((of, ..), _)| *of == inside)
    }

    /// Returns the addresses outside that its machines share.
    pub fn pool(&self) -> &[Pool] {
        &self.pool
    }

    /// Returns the address outside that a machine shares: always the same one (RFC 4787, REQ-2),
    /// and the one that it would share without that. When one goes its machines alone move, and
    /// when one comes those that move to it shared the second one before (rendezvous hashing).
    fn pools_of(&self, inside: u32) -> (Option<&Pool>, Option<&Pool>) {
        if let [only] = &*self.pool {
            return (Some(only), None);
        }
        let score = |pool: &Pool| {
            let address = pool.address.to_bits();
            let of = [u64::from(address) << 32 | u64::from(inside), inside.into()];
            (mix(OF_MACHINE, of), address)
        };
        self.pool.iter().fold((None, None), |(first, second), pool| {
            let beats = |other: Option<&Pool>| other.is_none_or(|it| score(pool) > score(it));
            match (beats(first), beats(second)) {
                (true, _) => (Some(pool), first),
                (false, true) => (first, Some(pool)),
                _ => (first, second),
            }
        })
    }

    /// Returns whether a port of an address outside is forwarded.
    fn is_forwarded(&self, outside: Ipv4Addr, protocol: u8, port: u16) -> bool {
        !self.forwards.is_empty()
            && find(&self.forwards, (number(outside.into()), protocol, port)).is_some()
    }

    /// Returns the address and port outside by which a packet of a machine leaves that shares one.
    /// It gets a port if it has none and `can_leave` says that the packet can be translated. `None`
    /// if no machine of the router shares one.
    pub fn share(
        &self,
        (inside, protocol, port): (Address, u8, u16),
        said: Said,
        sharing: Sharing<'_>,
        can_leave: impl FnMut() -> bool,
    ) -> Option<Result<(Address, u16), NoPort>> {
        let end = Self::end((inside, protocol, port))?;
        let (pool, former) = self.pools_of(end.address);
        let pool = pool?;
        let (vnic, now) = (sharing.sharer, sharing.now);
        let taken_at = |pool: &Pool| {
            let address = pool.address;
            move |port| self.is_forwarded(address, protocol, port)
        };
        let taken = taken_at(pool);
        // What it has elsewhere, since before this address came, stays.
        let kept = former.filter(|_| pool.ports.outside_of(end, now, taken).is_none());
        let kept = kept.and_then(|former| {
            let port = match sharing.assumed {
                None => former.ports.keep(end, said, (vnic, now), taken_at(former)),
                Some(_) => former.ports.outside_of(end, now, taken_at(former)),
            };
            Some((former, port?))
        });
        let (at, given) = match (kept, sharing.assumed) {
            (Some((former, port)), _) => (former, Ok(port)),
            (None, None) => (pool, pool.ports.give(end, said, (vnic, now), taken, can_leave)),
            (None, Some(_)) => (pool, pool.ports.would_give(end, vnic, now, taken)),
        };
        let outside = number(at.address.into());
        if let (Some(assumed), Ok(port)) = (sharing.assumed, given) {
            assumed.set(Some(Assumed { outside: (outside, port), inside: end }));
        }
        Some(given.map(|port| (outside, port)))
    }

    /// Returns the IPv4 address and port outside by which a packet of a machine leaves if that
    /// changes nothing: it has them for itself, or shares them (`shares`) and has noted so a moment
    /// ago. `None` says nothing else.
    #[inline]
    pub fn noted(
        &self,
        (inside, protocol, port): (u32, u8, u16),
        said: Said,
        now: u32,
        shares: bool,
    ) -> Option<(u32, u16)> {
        if !(self.outward.is_empty() && self.answers.is_empty())
            && let of = mapped(Ipv4Addr::from_bits(inside))
            && let Some((outside, own)) = self.outside_of(of, protocol, Some(port))
        {
            return Some((outside as u32, own.unwrap_or(port)));
        }
        if !shares {
            return None;
        }
        let end = InsideEnd { address: inside, port, protocol: PortProtocol::of(protocol)? };
        let (pool, _) = self.pools_of(inside);
        let pool = pool?;
        let taken = |port| self.is_forwarded(pool.address, protocol, port);
        let port = pool.ports.noted(end, said, now, taken)?;
        Some((pool.address.to_bits(), port))
    }

    /// Returns the address and port outside that an end of a machine shares, if it has one.
    pub fn shared_of(&self, of: (Address, u8, u16), now: u32) -> Option<(Address, u16)> {
        let end = Self::end(of)?;
        let (pool, former) = self.pools_of(end.address);
        pool.into_iter().chain(former).find_map(|pool| {
            let taken = |port| self.is_forwarded(pool.address, of.1, port);
            let port = pool.ports.outside_of(end, now, taken)?;
            Some((number(pool.address.into()), port))
        })
    }

    fn end((inside, protocol, port): (Address, u8, u16)) -> Option<InsideEnd> {
        let address = Some(inside as u32).filter(|_| is_v4(inside))?;
        Some(InsideEnd { address, port, protocol: PortProtocol::of(protocol)? })
    }

    /// Returns the end inside that shares an address outside by this port of it, and would leave by
    /// it: one that got an address of its own, or a forward, since has lost it.
    pub fn sharer_of(
        &self,
        outside: Address,
        (protocol, port): (u8, u16),
        sharing: Sharing<'_>,
    ) -> Option<(Address, u16)> {
        let kind = PortProtocol::of(protocol)?;
        let pool = self.pool_at(outside)?;
        let found = pool.ports.inside_of(kind, port, sharing.now).or_else(|| {
            let assumed = sharing.assumed?.get()?;
            let is_it = assumed.outside == (outside, port) && assumed.inside.protocol == kind;
            is_it.then_some(assumed.inside)
        })?;
        let inside = number(Ipv4Addr::from_bits(found.address).into());
        let (own, former) = self.pools_of(found.address);
        let leaves = own.into_iter().chain(former).any(|own| own.address == pool.address)
            && self.outside_of(inside, protocol, Some(found.port)).is_none();
        leaves.then_some((inside, found.port))
    }

    fn pool_at(&self, outside: Address) -> Option<&Pool> {
        self.pool.iter().find(|pool| number(pool.address.into()) == outside)
    }

    /// Notes that the other end of a session of TCP ended a connection that comes to this port of a
    /// shared address.
    pub fn ended(&self, outside: (Address, u16), inside: (Address, u16)) {
        let end =
            InsideEnd { address: inside.0 as u32, port: inside.1, protocol: PortProtocol::Tcp };
        if let Some(pool) = self.pool_at(outside.0) {
            pool.ports.ended(end, outside.1);
        }
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
    /// `ports` are those of the addresses that machines of a router share.
    pub fn new<'a>(
        routers: impl Iterator<Item = (u64, &'a [Nat])>,
        ports: impl Fn(u64, Ipv4Addr) -> Option<Arc<PortTable>>,
    ) -> NatTable {
        let mut all: Vec<(u64, &[Nat])> = routers.collect();
        all.sort_by_key(|(mac, _)| *mac);
        let places = (0_u32..).zip(&all);
        let mut owners: Vec<(Address, u32)> = places
            .flat_map(|(at, (_, rules))| rules.iter().map(move |it| (outside(it.outside()), at)))
            .collect();
        owners.sort_unstable();
        owners.dedup_by_key(|(address, _)| *address);
        let routers = all.into_iter().map(|(mac, rules)| {
            let translations = Translations::new(rules, |address| ports(mac, address));
            (mac, translations)
        });
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

    /// Returns all addresses that machines share.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.routers.iter().flat_map(|(_, translations)| translations.pool())
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
        let table = NatTable::new([(7, &one[..]), (3, &other[..])].into_iter(), |_, _| None);
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
        let translations = Translations::new(&rules, |_| None);
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

//! Memory of a vnic's DHCP: exchanges of its client, servers that it knows, requests that it may
//! answer. Bounded, and the vnic's own, so no other vnic fills it.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use crate::engine::{atomics::same32, mac::number, pace::Pace};
use crate::ip::{Address, dhcp::Message};

mod exchange;

pub(crate) use exchange::Exchange;

/// Most open exchanges of a client: of a boot program, of the system that it starts, and of one
/// more program each.
pub(crate) const EXCHANGES: usize = 4;
/// Requests of one family that a client may send without a rule, at once and per second.
pub(crate) const REQUESTS: u32 = 8;
pub(crate) const REQUESTS_PER_SECOND: u32 = 4;
/// Most servers that a client knows: the one that gave its lease, and others that offered one.
pub(crate) const SERVERS: usize = 4;
/// Most clients that a server may answer, in sets. A sender may have a quarter of all noted at
/// once: a set has places for more than fall into it but once in 200,000 times.
pub(crate) const CLIENTS: usize = 1024;
pub(crate) const WAYS: usize = 16;

/// State of a vnic's DHCP.
#[derive(Default)]
pub(crate) struct DhcpState {
    pub v4: Family,
    pub v6: Family,
    /// Addresses of IPv4 servers, 0 if there is none: first the server that gave a lease last, then
    /// servers that offered one.
    pub servers: [AtomicU32; SERVERS],
    /// Number of servers that were noted for an offer.
    pub offers: AtomicU32,
    /// Second of the last request to a server that no answer had named; 0 if there was none.
    pub unknown: AtomicU32,
    /// Requests that rules let out.
    pub ruled: Pace,
    /// Requests to servers from a vnic that bypasses filters, or from all other hosts.
    pub unfiltered: Pace,
    /// Requests that its network answers.
    pub leased: Pace,
    /// Those of IPv6.
    pub leased6: Pace,
    /// Clients that may be answered, if a rule makes the vnic a server.
    pub clients: OnceLock<Clients>,
}

/// A client's requests of one family.
#[derive(Default)]
pub(crate) struct Family {
    /// Exchanges, each about its transaction.
    pub exchanges: [Exchange; EXCHANGES],
    pub pace: Pace,
}

impl Family {
    pub fn tokens(&self, now: u32) -> u32 {
        self.pace.left(now, REQUESTS, REQUESTS_PER_SECOND)
    }

    /// Opens the exchange of a request that left, in the place of the oldest if need be. Returns
    /// whether there was a token for it.
    pub fn open(&self, transaction: u32, now: u32) -> bool {
        let may = self.pace.take(now, REQUESTS, REQUESTS_PER_SECOND);
        if may {
            Exchange::put(&self.exchanges, transaction.into(), transaction.into(), now);
        }
        may
    }

    /// Returns the open exchange of an answer, if it may have one more.
    pub fn exchange(&self, transaction: u32, now: u32, timeout: u32) -> Option<&Exchange> {
        Exchange::find(&self.exchanges, transaction.into(), now, timeout, |about| {
            about == u64::from(transaction)
        })
    }

    pub fn copy(&self) -> Family {
        Family { exchanges: self.exchanges.each_ref().map(Exchange::copy), pace: self.pace.copy() }
    }
}

impl DhcpState {
    pub fn family(&self, v6: bool) -> &Family {
        if v6 { &self.v6 } else { &self.v4 }
    }

    /// Makes room for the clients of a server. Not for the packet path.
    pub fn serve(&self) {
        self.clients.get_or_init(Clients::default);
    }

    /// Returns a copy of its own, for an explanation.
    pub fn copy(&self) -> DhcpState {
        let clients = OnceLock::new();
        if let Some(own) = self.clients.get() {
            let requests = own.requests.iter().map(Exchange::copy).collect();
            let _ = clients.set(Clients { requests, key: own.key.clone() });
        }
        DhcpState {
            v4: self.v4.copy(),
            v6: self.v6.copy(),
            servers: self.servers.each_ref().map(same32),
            offers: same32(&self.offers),
            unknown: same32(&self.unknown),
            ruled: self.ruled.copy(),
            unfiltered: self.unfiltered.copy(),
            leased: self.leased.copy(),
            leased6: self.leased6.copy(),
            clients,
        }
    }

    pub fn knows(&self, server: u32) -> bool {
        server != 0 && self.servers.iter().any(|known| known.load(Relaxed) == server)
    }

    pub fn knows_none(&self) -> bool {
        self.servers.iter().all(|known| known.load(Relaxed) == 0)
    }

    /// Notes the server of an answer: the client renews its lease there, maybe days later.
    pub fn learn(&self, message: &Message) {
        let Message { server, given, .. } = *message;
        if server == 0 {
            return;
        }
        if given {
            if let Some(place) = self.servers.first() {
                place.store(server, Relaxed);
            }
        } else if !self.knows(server) {
            let at = 1 + self.offers.fetch_add(1, Relaxed) as usize % (SERVERS - 1);
            if let Some(place) = self.servers.get(at) {
                place.store(server, Relaxed);
            }
        }
    }
}

/// Requests that a server got by a rule. The hash has a secret key: no guest can choose requests
/// that take another one's place.
pub(crate) struct Clients {
    /// Each is about the version of the policy by which it came in, and the cell of the rule. A
    /// request that these do not hold for gets no answers.
    pub requests: Box<[Exchange]>,
    pub key: RandomState,
}

impl Default for Clients {
    fn default() -> Self {
        let requests = (0..CLIENTS).map(|_| Exchange::default()).collect();
        Clients { requests, key: RandomState::new() }
    }
}

impl Clients {
    /// Returns the hash that identifies a client's request: of its transaction, and its MAC address
    /// or (DHCPv6) the link-local address that it asks from.
    pub fn hash(&self, message: &Message, client: Address) -> u64 {
        self.key.hash_one((client, number(message.mac), message.transaction))
    }

    /// Returns the set of a hash, by its low bits, and the tag that tells it there from others.
    fn set(&self, hash: u64) -> (&[Exchange], u64) {
        let at = hash as usize % (CLIENTS / WAYS) * WAYS;
        (self.requests.get(at..at + WAYS).unwrap_or_default(), hash >> 37)
    }

    /// Notes a request that came in by the rule of this cell as of this version. It takes the place
    /// of the set's oldest if need be.
    pub fn asked(&self, hash: u64, now: u32, (version, cell): (u32, u32)) {
        let (set, tag) = self.set(hash);
        Exchange::put(set, tag, u64::from(version) << 32 | u64::from(cell), now);
    }

    /// Returns the request of an answer, if it may have one more. `holds` gets the version and the
    /// cell that admitted the request, and says whether they still hold.
    pub fn request(
        &self,
        hash: u64,
        now: u32,
        timeout: u32,
        holds: impl Fn(u32, u32) -> bool,
    ) -> Option<&Exchange> {
        let (set, tag) = self.set(hash);
        Exchange::find(set, tag, now, timeout, |about| holds((about >> 32) as u32, about as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_packet::Mac;

    /// The version and the cell by which requests come in.
    const RULE: (u32, u32) = (7, 3);

    fn holds(version: u32, cell: u32) -> bool {
        (version, cell) == RULE
    }

    fn message(transaction: u32) -> Message {
        Message {
            transaction,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            leases: [0, 0],
            server: 0,
            given: false,
        }
    }

    #[test]
    fn a_client_asks_a_few_times_per_second() {
        let family = Family::default();
        assert_eq!((0..20).filter(|_| family.open(1, 100)).count(), 8);
        assert_eq!((0..20).filter(|_| family.open(1, 101)).count(), 4);
        assert_eq!((0..20).filter(|_| family.open(1, 1000)).count(), 8);
    }

    #[test]
    fn exchanges_are_kept_for_the_last_four() {
        let family = Family::default();
        for transaction in 1..=4 {
            assert!(family.open(transaction, 100 + transaction));
        }
        family.open(1, 106); // repeated
        family.open(0, 107); // a transaction like any other, in the place of the oldest
        let open = |now| {
            (0..=5)
                .filter(|transaction| family.exchange(*transaction, now, 60).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!((open(107), open(165)), (vec![0, 1, 3, 4], vec![0, 1]));
        assert_eq!((open(166), open(167), open(168)), (vec![0, 1], vec![0], vec![]));
    }

    #[test]
    fn an_answer_too_many() {
        let family = Family::default();
        family.open(7, 100);
        let answers = |family: &Family| {
            (0..20).map_while(|_| family.exchange(7, 101, 60)).inspect(|open| open.count()).count()
        };
        assert_eq!((answers(&family), answers(&family)), (8, 0));
        family.open(7, 101);
        assert_eq!(answers(&family), 8);
    }

    #[test]
    fn who_gave_a_lease_is_not_forgotten_for_offers() {
        let state = DhcpState::default();
        assert!(state.knows_none());
        state.learn(&Message { server: 1, given: true, ..message(1) });
        (10..99).for_each(|server| state.learn(&Message { server, ..message(1) }));
        assert!(
            state.knows(1)
                && state.knows(98)
                && !state.knows(10)
                && !state.knows(0)
                && !state.knows_none()
        );
        state.learn(&Message { server: 2, given: true, ..message(1) });
        assert!(state.knows(2) && !state.knows(1));
    }

    #[test]
    fn a_server_answers_whom_it_was_asked_by() {
        let clients = Clients::default();
        let of = |n: u32| clients.hash(&message(n), 0);
        clients.asked(of(1), 100, RULE);
        assert!(
            clients.request(of(1), 160, 60, holds).is_some()
                && clients.request(of(1), 161, 60, holds).is_none()
        );
        assert!(clients.request(of(2), 100, 60, holds).is_none());
        assert!(clients.request(of(1), 100, 60, |_, _| false).is_none());
        assert_eq!(
            (0..20)
                .map_while(|_| clients.request(of(1), 100, 60, holds))
                .inspect(|request| request.count())
                .count(),
            8
        );
        clients.asked(of(1), 101, RULE);
        assert!(clients.request(of(1), 101, 60, holds).is_some());
        // Full: the newest of each set are there.
        (1000..9000).for_each(|n| clients.asked(of(n), 100 + n, RULE));
        let known = |range: std::ops::Range<u32>| {
            range.filter(|n| clients.request(of(*n), 9100, 100_000, holds).is_some()).count()
        };
        // Clients are known by a hash: now and then one that was forgotten looks like another one.
        let all = known(1000..9000);
        assert!((CLIENTS..CLIENTS + 4).contains(&all), "{all}");
        assert!(known(8400..9000) > 540, "{}", known(8400..9000));
    }

    /// Requests that take the places of one server's set are spread over another server's sets.
    /// Without the key, an attacker cannot choose any.
    #[test]
    fn no_request_pushes_out_a_chosen_one() {
        let (one, other) = (Clients::default(), Clients::default());
        let set =
            |clients: &Clients, n: u32| clients.hash(&message(n), 0) as usize % (CLIENTS / WAYS);
        let beside: Vec<u32> =
            (2..1_000_000).filter(|n| set(&one, *n) == set(&one, 1)).take(4 * WAYS).collect();
        assert_eq!(beside.len(), 4 * WAYS);
        assert!(beside.iter().filter(|n| set(&other, **n) == set(&other, 1)).count() < WAYS);
    }

    /// Three servers that offered a lease are kept, and only another one takes the place of the
    /// oldest.
    #[test]
    fn the_last_three_who_offered_are_known() {
        let state = DhcpState::default();
        let offer = |server| state.learn(&Message { server, ..message(1) });
        let known = || (0..=20).filter(|server| state.knows(*server)).collect::<Vec<_>>();
        offer(0);
        assert!(state.knows_none());
        offer(10);
        assert!(!state.knows_none());
        offer(11);
        offer(12);
        state.learn(&Message { server: 1, given: true, ..message(1) });
        assert_eq!(known(), [1, 10, 11, 12]);
        offer(13);
        assert_eq!(known(), [1, 11, 12, 13]);
        (0..9).for_each(|_| offer(12));
        offer(1);
        assert_eq!(known(), [1, 11, 12, 13]);
        assert_eq!(
            (0..=20).filter(|server| state.copy().knows(*server)).collect::<Vec<_>>(),
            known()
        );
    }

    /// In one set: each request is found by the whole of its hash, and the oldest of five goes.
    #[test]
    fn a_set_keeps_the_newest() {
        let clients = Clients::default();
        // One set, other tags: above the lowest 37 bits.
        let of = |n: u64| n << 37 | 5;
        let ways = WAYS as u64;
        for n in 1..=ways + 1 {
            clients.asked(of(n), 100 + n as u32, RULE);
        }
        let known = || {
            (0..=ways + 2)
                .filter(|n| clients.request(of(*n), 130, 60, holds).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(known(), (2..=ways + 1).collect::<Vec<_>>());
        clients.asked(of(2), 120, RULE);
        clients.asked(of(ways + 2), 121, RULE);
        let kept: Vec<u64> = [2].into_iter().chain(4..=ways + 2).collect();
        assert_eq!(known(), kept);
        // Another set has its own.
        clients.asked(of(1) + 1, 107, RULE);
        assert_eq!((known(), clients.request(of(1) + 1, 110, 60, holds).is_some()), (kept, true));
        assert!(clients.request(of(4) + 1, 110, 60, holds).is_none());
    }
}

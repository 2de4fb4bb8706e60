//! DHCP without a rule (RFC 2131, RFC 8415): a client's requests leave, and their answers enter; a
//! server answers whom a rule let ask.
//!
//! Both are bounded: in what passes (whole messages, a few requests per second, a few answers to
//! each) and in what is remembered of it, which is all here. It is a vnic's own, so nobody else
//! fills it.

use std::{
    hash::{BuildHasher, RandomState},
    net::Ipv4Addr,
    sync::{
        OnceLock,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use butterfly_packet::protocol::UDP;

use super::{EGRESS_DENIED, SPOOFED_IP, pace::Pace};
use crate::{
    batch::Context,
    claims::has_link_local,
    flow::{
        Address, BAD_DHCP, DHCP_LIMIT, Dhcp, L4, Packet, Tuple,
        dhcp::{Message, SERVERS_V6},
        discovery::is_link_local,
        mapped,
    },
    mac::number,
    reason::DropReason,
    snapshot::Vnic,
};

/// Exchanges of a client that are open at a time: of a boot program, of the system that it starts,
/// and of one program more each.
const EXCHANGES: usize = 4;
/// Requests of one family that a client may send without a rule, at once and per second.
const REQUESTS: u32 = 8;
const REQUESTS_PER_SECOND: u32 = 4;
/// The same of requests that a rule lets out: a server remembers whom it may answer, and nobody is
/// to push others out of that.
const RULED: u32 = 64;
const RULED_PER_SECOND: u32 = 16;
/// Of those that no filter limits, a server notes so many at once, a quarter of its places, and per
/// second.
const UNFILTERED: u32 = CLIENTS as u32 / 4;
const UNFILTERED_PER_SECOND: u32 = 64;
/// Answers to one request: several servers, and those of boot servers.
const ANSWERS: u32 = 8;
/// Servers that a client knows: the one that gave its lease, and others that offered one.
const SERVERS: usize = 4;
/// Seconds between requests to a server while none is known: a client that is older than the daemon
/// renews its lease.
const UNKNOWN_SERVER: u32 = 60;
/// Clients that a server may answer, in sets of a few.
const CLIENTS: usize = 1024;
const WAYS: usize = 4;

/// What is remembered of a vnic's DHCP.
#[derive(Default)]
pub(crate) struct DhcpState {
    v4: Family,
    v6: Family,
    /// Addresses of IPv4 servers, 0 if there is none: who gave a lease last, then who offered one.
    servers: [AtomicU32; SERVERS],
    /// How many servers were noted for an offer.
    offers: AtomicU32,
    /// Second of the last request to a server that no answer had named; 0 if there was none.
    unknown: AtomicU32,
    /// Requests that rules let out.
    ruled: Pace,
    /// Requests into servers of one that no filter limits: of a vnic that bypasses them, or of all
    /// other hosts.
    unfiltered: Pace,
    /// Who may be answered, if a rule makes the vnic a server.
    clients: OnceLock<Clients>,
}

/// A client's requests of one family. The worker that owns the vnic's transmit ring opens exchanges
/// and takes tokens; whoever delivers an answer counts it.
#[derive(Default)]
struct Family {
    exchanges: [Exchange; EXCHANGES],
    pace: Pace,
}

#[derive(Default)]
struct Exchange {
    /// Transaction (high half) and second of its last request; 0 if there is none.
    asked: AtomicU64,
    /// Answers since.
    answers: AtomicU32,
}

impl Family {
    fn tokens(&self, now: u32) -> u32 {
        self.pace.left(now, REQUESTS, REQUESTS_PER_SECOND)
    }

    /// A request left: its exchange is open, in the place of the oldest if need be. Returns whether
    /// there was a token for it.
    fn open(&self, transaction: u32, now: u32) -> bool {
        if !self.pace.take(now, REQUESTS, REQUESTS_PER_SECOND) {
            return false;
        }
        let age = |exchange: &&Exchange| match exchange.asked.load(Relaxed) {
            0 => u32::MAX,
            word => now.wrapping_sub(word as u32),
        };
        let same = |exchange: &&Exchange| {
            (exchange.asked.load(Relaxed) >> 32) as u32 == transaction && age(exchange) != u32::MAX
        };
        let place =
            self.exchanges.iter().find(same).or_else(|| self.exchanges.iter().max_by_key(age));
        if let Some(place) = place {
            place.answers.store(0, Relaxed);
            place.asked.store(u64::from(transaction) << 32 | u64::from(now), Relaxed);
        }
        true
    }

    /// The open exchange that an answer is of, if it may have one more.
    fn exchange(&self, transaction: u32, now: u32, timeout: u32) -> Option<&Exchange> {
        self.exchanges.iter().find(|exchange| {
            let word = exchange.asked.load(Relaxed);
            let open = word != 0 && now.wrapping_sub(word as u32) <= timeout;
            open && (word >> 32) as u32 == transaction && exchange.answers.load(Relaxed) < ANSWERS
        })
    }

    fn copy(&self) -> Family {
        let copy = |exchange: &Exchange| Exchange {
            asked: same(&exchange.asked),
            answers: same32(&exchange.answers),
        };
        let [a, b, c, d] = &self.exchanges;
        Family { exchanges: [copy(a), copy(b), copy(c), copy(d)], pace: self.pace.copy() }
    }
}

fn same(word: &AtomicU64) -> AtomicU64 {
    AtomicU64::new(word.load(Relaxed))
}

fn same32(word: &AtomicU32) -> AtomicU32 {
    AtomicU32::new(word.load(Relaxed))
}

impl DhcpState {
    fn family(&self, v6: bool) -> &Family {
        if v6 { &self.v6 } else { &self.v4 }
    }

    /// Makes room for the clients of a server. Not for the packet path.
    pub fn serve(&self) {
        self.clients.get_or_init(Clients::default);
    }

    /// The same, apart, for an explanation.
    pub fn copy(&self) -> DhcpState {
        let clients = OnceLock::new();
        if let Some(own) = self.clients.get() {
            let copied = |request: &Request| Request {
                word: same(&request.word),
                admitted: same(&request.admitted),
            };
            let _ = clients.set(Clients {
                requests: own.requests.iter().map(copied).collect(),
                key: own.key.clone(),
            });
        }
        let [a, b, c, d] = &self.servers;
        DhcpState {
            v4: self.v4.copy(),
            v6: self.v6.copy(),
            servers: [same32(a), same32(b), same32(c), same32(d)],
            offers: same32(&self.offers),
            unknown: same32(&self.unknown),
            ruled: self.ruled.copy(),
            unfiltered: self.unfiltered.copy(),
            clients,
        }
    }

    fn knows(&self, server: u32) -> bool {
        server != 0 && self.servers.iter().any(|known| known.load(Relaxed) == server)
    }

    fn knows_none(&self) -> bool {
        self.servers.iter().all(|known| known.load(Relaxed) == 0)
    }

    /// Notes the server of an answer: its lease is renewed there, maybe days later.
    fn learn(&self, message: &Message) {
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

/// Requests that a server got by a rule. The hash has a secret key: nobody can choose requests that
/// take another one's place.
struct Clients {
    requests: Box<[Request]>,
    key: RandomState,
}

#[derive(Default)]
struct Request {
    /// A part of the request's hash (28 bits), the answers to it (4), and the second.
    word: AtomicU64,
    /// By which version of the policy it came in, and the cell of the rule: without that it has no
    /// answers.
    admitted: AtomicU64,
}

impl Default for Clients {
    fn default() -> Self {
        Clients {
            requests: (0..CLIENTS).map(|_| Request::default()).collect(),
            key: RandomState::new(),
        }
    }
}

const ONE_ANSWER: u64 = 1 << 32;

impl Clients {
    /// Tells a client's request apart: by its transaction, and its MAC address or (DHCPv6) the
    /// link-local one that it asks from.
    fn hash(&self, message: &Message, client: Address) -> u64 {
        self.key.hash_one((client, number(message.mac), message.transaction))
    }

    fn set(&self, hash: u64) -> &[Request] {
        let at = hash as usize % (CLIENTS / WAYS) * WAYS;
        self.requests.get(at..at + WAYS).unwrap_or_default()
    }

    fn tag(word: u64) -> u64 {
        word >> 36
    }

    fn answers(word: u64) -> u32 {
        (word >> 32) as u32 & 0xf
    }

    /// A request came in, by the rule of this cell as of this version: in the place of the set's
    /// oldest if need be.
    fn asked(&self, hash: u64, now: u32, (version, cell): (u32, u32)) {
        let set = self.set(hash);
        let word = |place: &Request| place.word.load(Relaxed);
        let age = |place: &&Request| match word(place) {
            0 => u32::MAX,
            word => now.wrapping_sub(word as u32),
        };
        let known =
            set.iter().find(|place| word(place) != 0 && Self::tag(word(place)) == Self::tag(hash));
        if let Some(place) = known.or_else(|| set.iter().max_by_key(age)) {
            place.admitted.store(u64::from(version) << 32 | u64::from(cell), Relaxed);
            place.word.store(Self::tag(hash) << 36 | u64::from(now), Release);
        }
    }

    /// The request that an answer is to, if it may have one more and what admitted it still
    /// `holds`, a version and a cell.
    fn request(
        &self,
        hash: u64,
        now: u32,
        timeout: u32,
        holds: impl Fn(u32, u32) -> bool,
    ) -> Option<&AtomicU64> {
        let may_have_more = |place: &&Request| {
            let word = place.word.load(Acquire);
            let open = word != 0 && now.wrapping_sub(word as u32) <= timeout;
            let admitted = place.admitted.load(Relaxed);
            open && Self::tag(word) == Self::tag(hash)
                && Self::answers(word) < ANSWERS
                && holds((admitted >> 32) as u32, admitted as u32)
        };
        self.set(hash).iter().find(may_have_more).map(|place| &place.word)
    }
}

/// Who asked, for [`Clients::hash`]: what an answer is sent to over IPv6.
fn client(dhcp: &Dhcp, tuple: &Tuple) -> Address {
    match (dhcp.v6, dhcp.request) {
        (false, _) => 0,
        (true, true) => tuple.source,
        (true, false) => tuple.destination,
    }
}

const BROADCAST: Address = mapped(Ipv4Addr::BROADCAST);

/// The message of a request that a vnic sends for itself, from its own address or none.
fn for_itself(
    dhcp: &Dhcp,
    sender: &Vnic,
    source: Address,
    context: &Context<'_>,
) -> Result<Message, DropReason> {
    let own = if dhcp.v6 {
        has_link_local(sender, source, context)
    } else {
        source == mapped(Ipv4Addr::UNSPECIFIED)
    };
    if !own && !sender.rules.owns(source) {
        return Err(SPOOFED_IP);
    }
    dhcp.message.filter(|message| dhcp.v6 || message.mac == sender.mac).ok_or(BAD_DHCP)
}

/// Whether a filtered vnic may send a request without a rule.
pub(super) fn may_ask(
    dhcp: &Dhcp,
    sender: &Vnic,
    tuple: &Tuple,
    context: &Context<'_>,
) -> Result<(), DropReason> {
    for_itself(dhcp, sender, tuple.source, context)?;
    let (state, now) = (&sender.shared.dhcp, context.now);
    if state.family(dhcp.v6).tokens(now) == 0 {
        return Err(DHCP_LIMIT);
    }
    if dhcp.v6 {
        let local = is_link_local(tuple.source);
        return if local && tuple.destination == SERVERS_V6 { Ok(()) } else { Err(EGRESS_DENIED) };
    }
    let last = state.unknown.load(Relaxed);
    match tuple.destination {
        BROADCAST => Ok(()),
        server if state.knows(server as u32) => Ok(()),
        _ if !state.knows_none() => Err(EGRESS_DENIED),
        _ if last != 0 && now.wrapping_sub(last) < UNKNOWN_SERVER => Err(DHCP_LIMIT),
        _ => Ok(()),
    }
}

/// Whether a filtered vnic may send a request that a rule lets out: a few per second, whatever the
/// rule says.
pub(super) fn may_ask_by_rule(sender: &Vnic, context: &Context<'_>) -> bool {
    sender.shared.dhcp.ruled.take(context.now, RULED, RULED_PER_SECOND)
}

/// Whether a filtered vnic may send an answer: to a request that one of its rules for a DHCP server
/// let in.
pub(super) fn may_serve(dhcp: &Dhcp, sender: &Vnic, tuple: &Tuple, context: &Context<'_>) -> bool {
    request_of(dhcp, sender, tuple, context).is_some()
}

fn request_of<'a>(
    dhcp: &Dhcp,
    sender: &'a Vnic,
    tuple: &Tuple,
    context: &Context<'_>,
) -> Option<&'a AtomicU64> {
    let message = dhcp.message.filter(|message| reaches(dhcp, message, tuple.destination))?;
    let clients = sender.shared.dhcp.clients.get()?;
    let holds =
        |stamp: u32, cell: u32| stamp >= sender.since && stamp >= context.cells.taken_back(cell);
    clients.request(
        clients.hash(&message, client(dhcp, tuple)),
        context.now,
        context.timeouts.dhcp,
        holds,
    )
}

/// Whether an answer is sent where its client is (RFC 2131, 4.1; RFC 8415, 18.3.10).
fn reaches(dhcp: &Dhcp, message: &Message, destination: Address) -> bool {
    if dhcp.v6 {
        return is_link_local(destination);
    }
    destination == BROADCAST
        || message.leases.iter().any(|lease| *lease != 0 && mapped((*lease).into()) == destination)
}

/// Whether a filtered vnic may receive an answer without a rule: to what it asked a moment ago.
pub(super) fn may_answer(
    dhcp: &Dhcp,
    receiver: &Vnic,
    tuple: &Tuple,
    context: &Context<'_>,
) -> bool {
    exchange_of(dhcp, receiver, tuple, context).is_some()
}

fn exchange_of<'a>(
    dhcp: &Dhcp,
    receiver: &'a Vnic,
    tuple: &Tuple,
    context: &Context<'_>,
) -> Option<&'a Exchange> {
    let own = |message: &Message| dhcp.v6 || message.mac == receiver.mac;
    let message = dhcp.message.filter(|message| {
        !dhcp.request && own(message) && reaches(dhcp, message, tuple.destination)
    })?;
    receiver.shared.dhcp.family(dhcp.v6).exchange(
        message.transaction,
        context.now,
        context.timeouts.dhcp,
    )
}

/// Notes that a message left its sender.
pub(super) fn left(dhcp: &Dhcp, tuple: &Tuple, context: &Context<'_>) {
    let sender = context.sender;
    if sender.rules.bypass {
        return;
    }
    if !dhcp.request {
        count(request_of(dhcp, sender, tuple, context));
        return;
    }
    let Ok(message) = for_itself(dhcp, sender, tuple.source, context) else { return };
    let state = &sender.shared.dhcp;
    let opened = state.family(dhcp.v6).open(message.transaction, context.now);
    if opened && !dhcp.v6 && tuple.destination != BROADCAST && state.knows_none() {
        state.unknown.store(context.now, Relaxed);
    }
}

/// One more answer to a request. It stays a request of the same second, whatever another worker
/// does meanwhile.
fn count(request: Option<&AtomicU64>) {
    if let Some(request) = request {
        let _ = request.fetch_update(Relaxed, Relaxed, |word| {
            (word != 0 && Clients::answers(word) < ANSWERS).then(|| word + ONE_ANSWER)
        });
    }
}

/// Notes that a message entered its receiver.
pub(super) fn entered(dhcp: &Dhcp, receiver: &Vnic, tuple: &Tuple, context: &Context<'_>) {
    if receiver.rules.bypass {
        return;
    }
    if dhcp.request {
        asked(dhcp, receiver, tuple, context);
    } else if let (Some(exchange), Some(message)) =
        (exchange_of(dhcp, receiver, tuple, context), &dhcp.message)
    {
        exchange.answers.fetch_add(1, Relaxed);
        receiver.shared.dhcp.learn(message);
    }
}

/// Notes who may be answered, if a rule for a DHCP server let the request in.
fn asked(dhcp: &Dhcp, receiver: &Vnic, tuple: &Tuple, context: &Context<'_>) {
    let (Some(clients), Some(message)) = (receiver.shared.dhcp.clients.get(), &dhcp.message) else {
        return;
    };
    let serves = &receiver.rules.policy.serves;
    let Some(cell) =
        serves.admits(tuple.source, UDP, tuple.destination_port, &context.snapshot.members)
    else {
        return;
    };
    let sender = context.sender;
    if !sender.rules.bypass
        || sender.shared.dhcp.unfiltered.take(context.now, UNFILTERED, UNFILTERED_PER_SECOND)
    {
        clients.asked(
            clients.hash(message, client(dhcp, tuple)),
            context.now,
            (context.snapshot.version, cell),
        );
    }
}

/// Which vnic of the network gets an answer that several receive, without a rule: there is one at
/// most, by its MAC address.
pub(super) fn flooded_to(dhcp: &Dhcp, tuple: &Tuple, context: &Context<'_>) -> Option<u32> {
    let mac = dhcp.message.filter(|_| !dhcp.request && !dhcp.v6)?.mac;
    let receiver =
        context.network.macs.get(number(mac)).and_then(|slot| context.snapshot.vnics.get(slot))?;
    if receiver.rules.bypass || !may_answer(dhcp, receiver, tuple, context) {
        return None;
    }
    entered(dhcp, receiver, tuple, context);
    Some(receiver.place.slot)
}

/// The packet with its DHCP message read from the whole frame, which starts with the headers that
/// it was parsed from.
pub(super) fn read_whole(packet: Packet, frame: Option<&[u8]>, at: u16) -> Packet {
    match (packet.l4, frame) {
        (L4::Dhcp(dhcp), Some(frame)) => {
            Packet { l4: L4::Dhcp(dhcp.read(frame, at.into())), ..packet }
        }
        _ => packet,
    }
}

/// What only DHCP servers say, and to whom a rule cannot let anything else be said in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ToClient {
    /// From a server's port: as the answer to a request, and in one piece, or not at all.
    Answer,
    /// From another port, which many clients take as well: by a rule that names the client's.
    Other,
}

/// Whether UDP, in fragments or not, goes to the port of DHCP clients.
pub(super) fn to_client(tuple: &Tuple, v6: bool) -> Option<ToClient> {
    match Dhcp::between(tuple.source_port, tuple.destination_port, v6) {
        _ if tuple.protocol != UDP || !Dhcp::is_client(tuple.destination_port, v6) => None,
        Some(_) => Some(ToClient::Answer),
        None => Some(ToClient::Other),
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
            (0..20)
                .map_while(|_| family.exchange(7, 101, 60))
                .inspect(|open| _ = open.answers.fetch_add(1, Relaxed))
                .count()
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
                .inspect(|request| count(Some(request)))
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
        assert_eq!(known(1000..9000), CLIENTS);
        assert!(known(8400..9000) > 540, "{}", known(8400..9000));
    }

    /// Requests that take the places of one server's set are anywhere in another's: who does not
    /// know the key chooses none.
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

    /// Three that offered one are kept, and only another one takes the place of the oldest.
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

    /// In one set: whoever asked is found by the whole of its hash, and the oldest of five goes.
    #[test]
    fn a_set_keeps_the_newest() {
        let clients = Clients::default();
        // One set, other tags: above the lowest 36 bits.
        let of = |n: u64| n << 36 | 5;
        for n in 1..=5 {
            clients.asked(of(n), 100 + n as u32, RULE);
        }
        let known = || {
            (0..=6)
                .filter(|n| clients.request(of(*n), 110, 60, holds).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(known(), [2, 3, 4, 5]);
        clients.asked(of(2), 106, RULE);
        clients.asked(of(6), 107, RULE);
        assert_eq!(known(), [2, 4, 5, 6]);
        // Another set has its own.
        clients.asked(of(1) + 1, 107, RULE);
        assert_eq!(
            (known(), clients.request(of(1) + 1, 110, 60, holds).is_some()),
            (vec![2, 4, 5, 6], true)
        );
        assert!(clients.request(of(4) + 1, 110, 60, holds).is_none());
    }
}

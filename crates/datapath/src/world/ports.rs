//! Ports of an address outside that machines inside share.
//!
//! One word for each port outside says whose it is, so each change is one compare-exchange, and a
//! process that dies leaves no half of one. An end inside has the same port outside for all
//! destinations (RFC 4787, REQ-1): its candidates are a fixed set of ports, in which it is looked
//! for to the end. These lie in few cache lines, so that a search costs little more than one.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{
        AtomicU16, AtomicU32, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use butterfly_mem::words::Words;
use butterfly_packet::{protocol, tcp};

use crate::engine::{place::PortRef, sip::sip13};
use crate::world::steering::mix;

/// Ports of a protocol.
const PORTS: usize = 1 << 16;
const PROTOCOLS: usize = 3;
/// Ports below are never given away: hosts trust who has them (RFC 6056, 2.1).
const FIRST: u16 = 1024;
/// Words of a cache line.
const LINE: usize = 8;
/// Lines of a protocol in which ports are given away.
const LINES: u64 = ((PORTS - FIRST as usize) / LINE) as u64;
/// Candidates of an end, but for its own port.
pub(super) const CANDIDATES: usize = 64;
/// Seconds of a unit of time.
const UNIT: u32 = 8;
/// Bits of a time.
const TIME: u64 = 0x3fff;
/// Units by which another processor's clock may be ahead.
const AHEAD: u64 = 16;
/// Seconds that TCP lasts which was answered (RFC 5382, REQ-5): no port lasts longer.
const LONGEST: u32 = 7_440;
/// Most ports of a protocol that one vnic has.
const SHARE: u32 = 4096;
/// Most ports of a protocol that the machines of a network on other hosts have: half of all.
const SHARE_OF_TRUNK: u32 = LINES as u32 * LINE as u32 / 2;
/// Places in which the counter of an address is looked for.
const PLACES: u64 = 8;
/// Digits of pi: an address's places.
const OF_ADDRESS: [u64; 2] = [0xc0ac_29b7_c97c_50dd, 0x3f84_d5b5_b547_0917];
/// Part of a protocol's free ports that a vnic has at most: the fuller the table is, the less. So
/// no number of them leaves nothing to others.
const PART: u32 = 4;
/// Counters of vnics: those of two slots that are so far from each other count together.
const COUNTERS: usize = 1 << 14;
/// Searches again after another worker took what was found, or gave the end another port.
const AGAIN: u32 = 16;

/// Words before those of the ports.
const HEAD: usize = LINE;
/// Words of a table.
const WORDS: usize = HEAD + PROTOCOLS * PORTS;
/// Version of the layout.
pub(crate) const VERSION: u64 = 1;
/// "bflyport", and the version.
const MAGIC: [u64; 2] = [0x6266_6c79_706f_7274, VERSION];
/// Places of the hash's key and of the second of the last sweep.
const KEY: usize = 4;
const SWEPT: usize = 6;

/// Protocol whose ports are shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortProtocol {
    Tcp,
    Udp,
    /// Identifiers of ICMP echoes.
    Echo,
}

impl PortProtocol {
    /// All, by their numbers here.
    pub const ALL: [PortProtocol; PROTOCOLS] =
        [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Echo];

    /// Returns the one with this number; `None` for protocols whose ports are not shared.
    pub fn of(number: u8) -> Option<PortProtocol> {
        match number {
            protocol::TCP => Some(PortProtocol::Tcp),
            protocol::UDP => Some(PortProtocol::Udp),
            protocol::ICMP => Some(PortProtocol::Echo),
            _ => None,
        }
    }
}

/// End of a machine inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InsideEnd {
    pub address: u32,
    pub port: u16,
    pub protocol: PortProtocol,
}

impl InsideEnd {
    /// Upper part of its words.
    fn owner(self) -> u64 {
        u64::from(self.address) << 16 | u64::from(self.port)
    }

    /// Returns whether it may have a port for its own: of UDP one of the same parity (RFC 4787,
    /// REQ-4).
    fn suits(self, port: u16) -> bool {
        self.protocol != PortProtocol::Udp || port & 1 == self.port & 1
    }
}

/// Packet of TCP that a machine inside sends, as far as it changes how long its port lasts. Of
/// other protocols it is the default.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Said {
    pub flags: u8,
    /// True if it carries bytes.
    pub has_payload: bool,
}

/// Reason for which an end has no port outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPort {
    /// All candidates are others'.
    Full,
    /// Its vnic has as many as one may have.
    Share,
    /// An end without a port, whose packet cannot leave.
    Unfit,
}

/// State of a port. The numbers are in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PortState {
    /// TCP whose machine has said nothing but SYN, and all other protocols.
    New = 1,
    /// TCP whose machine acknowledged what it was answered.
    Established = 2,
    /// TCP that its machine, or the other end of its session, ended.
    Closing = 3,
}

/// A port in use: owner 48, state 2, time of the last use 14. A free one is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PortUse {
    owner: u64,
    state: PortState,
    time: u64,
}

impl PortUse {
    fn read(word: u64) -> Option<PortUse> {
        let state = match word >> 14 & 3 {
            1 => PortState::New,
            2 => PortState::Established,
            3 => PortState::Closing,
            _ => return None,
        };
        Some(PortUse { owner: word >> 16, state, time: word & TIME })
    }

    fn word(self) -> u64 {
        self.owner << 16 | (self.state as u64) << 14 | self.time & TIME
    }

    fn end(self, protocol: PortProtocol) -> InsideEnd {
        InsideEnd { address: (self.owner >> 16) as u32, port: self.owner as u16, protocol }
    }

    /// Returns whether it lasts. Not shorter than the protocol wants, and by two units at most
    /// longer.
    fn lasts(self, protocol: PortProtocol, now: u64) -> bool {
        let seconds = match (protocol, self.state) {
            (PortProtocol::Udp, _) => 300, // RFC 4787, REQ-5
            (PortProtocol::Echo, _) => 60, // RFC 5508, REQ-2
            (PortProtocol::Tcp, PortState::Established) => LONGEST,
            (PortProtocol::Tcp, _) => 240,
        };
        let age = now.wrapping_sub(self.time) & TIME;
        age > TIME - AHEAD || age <= u64::from(u32::div_ceil(seconds, UNIT))
    }
}

/// A port outside, with its place and the word that was there.
type Place<'a> = (u16, &'a AtomicU64, u64);

/// Outcome of a search for a port.
enum Candidate<'a> {
    /// The end has it.
    Own(Place<'a>, PortUse),
    /// Nobody has it.
    Free(Place<'a>),
    /// All are others'.
    None,
}

/// Returns the time of a second, as words have it.
fn time(seconds: u32) -> u64 {
    u64::from(seconds / UNIT) & TIME
}

/// Returns the state of TCP after a packet from inside. What anybody outside sends changes
/// nothing: a port is one for all destinations, and outlasts one of several connections. So pure
/// acknowledgements do not take back that one ended, as they follow its end.
fn next(state: PortState, said: Said) -> PortState {
    let has = |flag| said.flags & flag != 0;
    match state {
        _ if has(tcp::FIN) || has(tcp::RST) => PortState::Closing,
        PortState::Closing if has(tcp::SYN) => PortState::New,
        PortState::Closing if said.has_payload => PortState::Established,
        PortState::New if !has(tcp::SYN) => PortState::Established,
        state => state,
    }
}

/// Sender of packets that look for ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sharer {
    pub port: PortRef,
    /// The machines of a network on other hosts: each address has a share of its own, too.
    pub is_trunk: bool,
}

impl From<PortRef> for Sharer {
    fn from(port: PortRef) -> Sharer {
        Sharer { port, is_trunk: false }
    }
}

impl Sharer {
    /// Returns the address whose share counts, if one does.
    fn counted(self, end: InsideEnd) -> Option<u32> {
        self.is_trunk.then_some(end.address)
    }
}

/// Vnic that ports are given to, as tables note it: a place 14, and a number 18 that tells those of
/// one place apart. Nobody is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holder(u32);

impl Holder {
    const NOBODY: Holder = Holder(0);

    fn of(vnic: PortRef) -> Holder {
        let at = vnic.slot % COUNTERS as u32;
        let of = vnic.incarnation.wrapping_add((vnic.slot / COUNTERS as u32).rotate_right(6));
        Holder(at | (1 + of % 0x3_ffff) << 14)
    }
}

/// Counts of ports by vnic: whose each port is, and how many of a protocol each vnic has. Each
/// change of the one changes the other by as much, so none of them drifts. A vnic that comes to
/// another's place begins at 0, and what the other one still has counts no more.
#[derive(Debug)]
struct Holders {
    of: Box<[AtomicU32]>,
    /// By protocol and place: the vnic 32, its ports 32.
    counts: Box<[AtomicU64]>,
    /// Place of the counter of the address on another host that has a port, and 1; 0 if none has.
    address_of: Box<[AtomicU16]>,
    /// By protocol and place: an address 32, its ports 32. Without ports it is nobody's.
    addresses: Box<[AtomicU64]>,
}

const _: () = assert!(COUNTERS <= u16::MAX as usize, "places of counters have 16 bits");

impl Holders {
    fn new() -> Holders {
        Holders {
            of: (0..PROTOCOLS * PORTS).map(|_| AtomicU32::new(0)).collect(),
            counts: (0..PROTOCOLS * COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            address_of: (0..PROTOCOLS * PORTS).map(|_| AtomicU16::new(0)).collect(),
            addresses: (0..PROTOCOLS * COUNTERS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Returns the counters that an address on other hosts may have, with their places. There is
    /// none for one that finds all of them taken: its ports count for its network alone.
    fn counters_of(
        &self,
        protocol: PortProtocol,
        address: u32,
    ) -> impl Iterator<Item = (u16, &AtomicU64)> {
        let hash = mix(OF_ADDRESS, [address.into(), protocol as u64]);
        (0..PLACES).filter_map(move |n| {
            let at = hash.wrapping_add(n) as usize % COUNTERS;
            Some((at as u16, self.addresses.get(protocol as usize * COUNTERS + at)?))
        })
    }

    /// Returns how many ports of a protocol an address on another host has. `None` if it has no
    /// counter and there is none for it.
    fn count_of(&self, protocol: PortProtocol, address: u32) -> Option<u32> {
        let counts = self.counters_of(protocol, address).map(|(_, counter)| counter.load(Relaxed));
        let its = counts.filter(|word| *word as u32 == 0 || word >> 32 == u64::from(address));
        its.map(|word| word as u32).max()
    }

    /// Counts a port more of an address. Returns the place of its counter, and 1; 0 without one.
    fn count_in(&self, protocol: PortProtocol, address: u32) -> u16 {
        let add = |is_its: fn(u64, u64) -> bool| {
            self.counters_of(protocol, address).find_map(|(at, counter)| {
                let more = |word: u64| {
                    let count = (word as u32).saturating_add(1);
                    let new = u64::from(address) << 32 | u64::from(count);
                    is_its(word, address.into()).then_some(new)
                };
                counter.fetch_update(Relaxed, Relaxed, more).is_ok().then_some(at + 1)
            })
        };
        let own = add(|word, address| word as u32 != 0 && word >> 32 == address);
        own.or_else(|| add(|word, _| word as u32 == 0)).unwrap_or_default()
    }

    /// Counts a port less where [`Self::count_in`] counted it.
    fn count_out(&self, protocol: PortProtocol, place: u16) {
        let at = usize::from(place).checked_sub(1).map(|at| protocol as usize * COUNTERS + at);
        if let Some(counter) = at.and_then(|at| self.addresses.get(at)) {
            let less = |word: u64| (word as u32 != 0).then(|| word - 1);
            let _ = counter.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// Returns whether a port counts for this address at this place, or for none.
    fn counts_for(&self, protocol: PortProtocol, place: u16, address: Option<u32>) -> bool {
        let at = usize::from(place).checked_sub(1).map(|at| protocol as usize * COUNTERS + at);
        let word = at.and_then(|at| self.addresses.get(at)).map(|word| word.load(Relaxed));
        word.map(|word| word >> 32) == address.map(u64::from)
    }

    fn cell(&self, protocol: PortProtocol, holder: Holder) -> Option<&AtomicU64> {
        self.counts.get(protocol as usize * COUNTERS + holder.0 as usize % COUNTERS)
    }

    /// Returns how many ports of a protocol a vnic has.
    fn count(&self, protocol: PortProtocol, holder: Holder) -> u32 {
        let word = self.cell(protocol, holder).map_or(0, |cell| cell.load(Relaxed));
        if word >> 32 == u64::from(holder.0) { word as u32 } else { 0 }
    }

    /// Returns the vnic that has a port.
    fn has(&self, protocol: PortProtocol, port: u16) -> Holder {
        let at = protocol as usize * PORTS + usize::from(port);
        self.of.get(at).map_or(Holder::NOBODY, |of| Holder(of.load(Relaxed)))
    }

    /// Notes that a port is this vnic's from now on, or the machine's with this address on another
    /// host.
    fn pass(&self, protocol: PortProtocol, port: u16, to: Holder, address: Option<u32>) {
        let at = protocol as usize * PORTS + usize::from(port);
        let (Some(of), Some(place)) = (self.of.get(at), self.address_of.get(at)) else { return };
        if !self.counts_for(protocol, place.load(Relaxed), address) {
            let new = address.map_or(0, |address| self.count_in(protocol, address));
            self.count_out(protocol, place.swap(new, Relaxed));
        }
        if of.load(Relaxed) == to.0 {
            return;
        }
        let from = Holder(of.swap(to.0, Relaxed));
        self.change(protocol, from, |count| count.saturating_sub(1));
        self.change(protocol, to, |count| count.saturating_add(1));
    }

    fn change(&self, protocol: PortProtocol, holder: Holder, change: impl Fn(u32) -> u32) {
        if holder == Holder::NOBODY {
            return;
        }
        let Some(cell) = self.cell(protocol, holder) else { return };
        let own = u64::from(holder.0) << 32;
        let _ = cell.fetch_update(Relaxed, Relaxed, |word| match word >> 32 << 32 == own {
            true => Some(own | u64::from(change(word as u32))),
            // One that went before has nothing to count down.
            false => {
                Some(change(0)).filter(|count| *count != 0).map(|count| own | u64::from(count))
            }
        });
    }
}

/// Address whose ports a table has, and where.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PortsOf {
    /// MAC address of the router.
    pub router: u64,
    /// The external.
    pub vni: u32,
    pub address: u32,
}

impl PortsOf {
    /// Returns the first words of its table.
    fn header(self) -> [u64; KEY] {
        let [magic, version] = MAGIC;
        [magic, version, self.router, u64::from(self.vni) << 32 | u64::from(self.address)]
    }
}

/// Ports of one address outside.
#[derive(Debug)]
pub(crate) struct PortTable {
    words: Words,
    key: [u64; 2],
    holders: Holders,
    /// Ports in use, by protocol.
    used: [AtomicU32; PROTOCOLS],
}

impl PortTable {
    /// Makes the table of an address, with this key of its hash. Returns its file, too: who keeps
    /// that keeps the ports.
    pub fn create(of: PortsOf, key: [u64; 2], now: u32) -> io::Result<(OwnedFd, PortTable)> {
        let (file, words) = Words::create("butterfly-ports", WORDS)?;
        words.have(0..WORDS)?;
        let [k0, k1] = key;
        let header = of.header().into_iter().chain([k0, k1, u64::from(now)]);
        words.iter().zip(header).for_each(|(word, value)| word.store(value, Relaxed));
        Ok((file, PortTable::with(words, key)))
    }

    /// Takes up the table of an address that a process left, without what is impossible or over.
    /// `None` if it is none, or is too old for its times to be told.
    pub fn adopt(file: impl AsFd, of: PortsOf, now: u32) -> Option<PortTable> {
        let words = Words::map(file, WORDS).ok()?;
        let word = |at: usize| words.get(at).map_or(0, |word| word.load(Relaxed));
        let is_it = of.header().into_iter().enumerate().all(|(at, value)| word(at) == value);
        let age = u64::from(now).checked_sub(word(SWEPT));
        if !is_it || age.is_none_or(|age| age > u64::from(LONGEST)) {
            return None;
        }
        words.have(0..WORDS).ok()?;
        let key = [word(KEY), word(KEY + 1)];
        let ports = PortTable::with(words, key);
        ports.repair(now);
        Some(ports)
    }

    fn with(words: Words, key: [u64; 2]) -> PortTable {
        PortTable { words, key, holders: Holders::new(), used: Default::default() }
    }

    /// Returns how many ports of TCP, UDP and identifiers of echoes are in use.
    pub fn used(&self) -> [u32; PROTOCOLS] {
        // One that is freed at once may be counted less before it is counted more.
        self.used.each_ref().map(|used| used.load(Relaxed).cast_signed().max(0).cast_unsigned())
    }

    fn count(&self, protocol: PortProtocol, change: i32) {
        if let Some(used) = self.used.get(protocol as usize) {
            used.fetch_add(change.cast_unsigned(), Relaxed);
        }
    }

    /// Returns the word of a port.
    #[inline(always)]
    fn word(&self, protocol: PortProtocol, port: u16) -> Option<&AtomicU64> {
        self.words.get(HEAD + protocol as usize * PORTS + usize::from(port))
    }

    /// Returns the lines in which an end has candidates: as many as have [`CANDIDATES`] ports that
    /// suit it. The step is odd and there are 126 times 64 lines, so no line comes twice.
    fn lines(&self, end: InsideEnd) -> impl Iterator<Item = u16> {
        // Nobody who sees ports foretells others.
        let hash = sip13(self.key, [end.owner() | (end.protocol as u64) << 48]);
        let (first, step) = (hash & 0xffff_ffff, hash >> 32 | 1);
        let suit = if end.protocol == PortProtocol::Udp { LINE / 2 } else { LINE };
        (0..(CANDIDATES / suit) as u64).map(move |n| {
            let line = (first + n * step) % LINES;
            FIRST + line as u16 * LINE as u16
        })
    }

    /// Returns the ports of a line that suit an end. The first of a line is not always the first
    /// one to be taken.
    fn ports_in(line: u16, end: InsideEnd) -> impl Iterator<Item = u16> {
        let turn = end.port.wrapping_mul(5) % LINE as u16;
        let ports = (0..LINE as u16).map(move |n| line + (n + turn) % LINE as u16);
        ports.filter(move |port| end.suits(*port))
    }

    /// Returns the candidates of an end: its own port, then others.
    fn candidates(&self, end: InsideEnd) -> impl Iterator<Item = u16> {
        let own = Some(end.port).filter(|port| *port >= FIRST);
        own.into_iter().chain(self.lines(end).flat_map(move |line| Self::ports_in(line, end)))
    }

    /// Looks through all candidates of an end, in one go, for its own port, and for one that nobody
    /// has: the same port, or one of the line that has most of them. So nearly all ports are given
    /// away before somebody finds none. `taken` tells which ports are forwarded: they belong to
    /// nobody here.
    fn look(&self, end: InsideEnd, now: u64, taken: &impl Fn(u16) -> bool) -> Candidate<'_> {
        // Most ports are others'. Who forwards is asked about the rest alone.
        let looked_at = |port: u16| {
            let place = self.word(end.protocol, port)?;
            let word = place.load(SeqCst);
            let used = PortUse::read(word);
            let own = used.filter(|used| used.owner == end.owner());
            let is_free = own.is_none() && !used.is_some_and(|it| it.lasts(end.protocol, now));
            let counts = (own.is_some() || is_free) && !taken(port);
            counts.then_some(((port, place, word), own))
        };
        let same = Some(end.port).filter(|port| *port >= FIRST).and_then(looked_at);
        if let Some((place, Some(own))) = same {
            return Candidate::Own(place, own);
        }
        let mut best = None;
        for line in self.lines(end) {
            let (mut free, mut first) = (0, None);
            for (place, own) in Self::ports_in(line, end).filter_map(looked_at) {
                if let Some(own) = own {
                    return Candidate::Own(place, own);
                }
                free += 1;
                first = first.or(Some(place));
            }
            if let (Some(place), true) = (first, best.is_none_or(|(most, _)| free > most)) {
                best = Some((free, place));
            }
        }
        same.map(|(place, _)| place)
            .or(best.map(|(_, place)| place))
            .map_or(Candidate::None, Candidate::Free)
    }

    /// Returns the port outside that an end has, if it has one. Changes nothing.
    pub fn outside_of(&self, end: InsideEnd, now: u32, taken: impl Fn(u16) -> bool) -> Option<u16> {
        match self.look(end, time(now), &taken) {
            Candidate::Own((port, ..), own) => own.lasts(end.protocol, time(now)).then_some(port),
            _ => None,
        }
    }

    /// Returns the port outside that an end of a vnic has or would get. Changes nothing.
    pub fn would_give(
        &self,
        end: InsideEnd,
        sharer: impl Into<Sharer>,
        now: u32,
        taken: impl Fn(u16) -> bool,
    ) -> Result<u16, NoPort> {
        match self.look(end, time(now), &taken) {
            Candidate::Own((port, ..), _) => Ok(port),
            free => self.may_have(free, end, sharer.into()).map(|(port, ..)| port),
        }
    }

    /// Returns the free port that a vnic may have.
    fn may_have<'a>(
        &self,
        found: Candidate<'a>,
        end: InsideEnd,
        sharer: Sharer,
    ) -> Result<Place<'a>, NoPort> {
        match found {
            Candidate::Free(_) if !self.has_share(end, sharer) => Err(NoPort::Share),
            Candidate::Free(place) => Ok(place),
            _ => Err(NoPort::Full),
        }
    }

    /// Returns whether a vnic may have one more port of a protocol, or machines on other hosts, and
    /// the one of them.
    fn has_share(&self, end: InsideEnd, sharer: Sharer) -> bool {
        let protocol = end.protocol;
        let used = self.used().get(protocol as usize).copied().unwrap_or_default();
        let free = (LINES as u32 * LINE as u32).saturating_sub(used);
        let most = SHARE.min(free / PART);
        let count = self.holders.count(protocol, Holder::of(sharer.port));
        let Some(address) = sharer.counted(end) else { return count < most };
        match self.holders.count_of(protocol, address) {
            Some(own) => count < SHARE_OF_TRUNK && own < most,
            None => count < SHARE_OF_TRUNK.min(free / PART),
        }
    }

    /// Returns the port by which a packet of an end leaves that a vnic sends, and notes that it is
    /// used. One that has none gets one if `can_leave` says that the packet can be translated.
    /// `now` is in seconds. Never looks at more than twice its candidates for each time that
    /// another worker was faster.
    #[inline]
    pub fn give(
        &self,
        end: InsideEnd,
        said: Said,
        (sharer, now): (impl Into<Sharer>, u32),
        taken: impl Fn(u16) -> bool,
        mut can_leave: impl FnMut() -> bool,
    ) -> Result<u16, NoPort> {
        let (now, sharer) = (time(now), sharer.into());
        let next = |before| match end.protocol {
            PortProtocol::Tcp => next(before, said),
            _ => PortState::New,
        };
        for _ in 0..AGAIN {
            let ((port, place, word), new, is_new) = match self.look(end, now, &taken) {
                Candidate::Own(found, own) => {
                    let lasts = own.lasts(end.protocol, now);
                    let before = if lasts { own.state } else { PortState::New };
                    (found, PortUse { state: next(before), time: now, ..own }, false)
                }
                free => {
                    let found = self.may_have(free, end, sharer)?;
                    if !can_leave() {
                        return Err(NoPort::Unfit);
                    }
                    let state = next(PortState::New);
                    (found, PortUse { owner: end.owner(), state, time: now }, true)
                }
            };
            let new = new.word();
            if new == word {
                return Ok(port);
            }
            if place.compare_exchange(word, new, SeqCst, Relaxed).is_err() {
                continue;
            }
            if is_new && word == 0 {
                self.count(end.protocol, 1);
            }
            let holder = Holder::of(sharer.port);
            self.holders.pass(end.protocol, port, holder, sharer.counted(end));
            if is_new && self.has_another(end, port, &taken) {
                // Another worker gave it one meanwhile, elsewhere: that stays.
                self.free_of(end, port);
                continue;
            }
            return Ok(port);
        }
        Err(NoPort::Full)
    }

    /// Returns the port by which a packet of an end leaves if that changes nothing: it has one, and
    /// that it is used was noted a moment ago. `None` says nothing: [`give`](Self::give) does.
    #[inline]
    pub fn noted(
        &self,
        end: InsideEnd,
        said: Said,
        now: u32,
        taken: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let now = time(now);
        // What leaves a port's state as it is.
        let state = match end.protocol {
            PortProtocol::Tcp => next(PortState::Established, said),
            _ => PortState::New,
        };
        let own = PortUse { owner: end.owner(), state, time: now }.word();
        let has = |port: &u16| {
            let word = self.word(end.protocol, *port);
            word.is_some_and(|word| word.load(Relaxed) == own) && !taken(*port)
        };
        let same = Some(end.port).filter(|port| *port >= FIRST && has(port));
        same.or_else(|| self.lines(end).flat_map(|line| Self::ports_in(line, end)).find(has))
    }

    /// Returns the port outside that an end has, as [`give`](Self::give) does, and notes that it is
    /// used; `None` if it has none that lasts.
    pub fn keep(
        &self,
        end: InsideEnd,
        said: Said,
        (sharer, now): (impl Into<Sharer>, u32),
        taken: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        self.outside_of(end, now, &taken)?;
        self.give(end, said, (sharer, now), taken, || false).ok()
    }

    /// Returns whether an end has another port than this one, however old.
    fn has_another(&self, end: InsideEnd, port: u16, taken: &impl Fn(u16) -> bool) -> bool {
        let mut others = self.candidates(end).filter(|other| *other != port && !taken(*other));
        others.any(|other| {
            let used = self.word(end.protocol, other).and_then(|it| PortUse::read(it.load(SeqCst)));
            used.is_some_and(|used| used.owner == end.owner())
        })
    }

    /// Frees a port if its word is still this one.
    fn free(&self, protocol: PortProtocol, port: u16, word: u64) {
        let Some(place) = self.word(protocol, port) else { return };
        if place.compare_exchange(word, 0, SeqCst, Relaxed).is_ok() {
            self.count(protocol, -1);
            self.holders.pass(protocol, port, Holder::NOBODY, None);
        }
    }

    /// Frees a port if an end has it, whatever others note of its use meanwhile.
    fn free_of(&self, end: InsideEnd, port: u16) {
        for _ in 0..AGAIN {
            let word = self.word(end.protocol, port).map_or(0, |word| word.load(SeqCst));
            if PortUse::read(word).is_none_or(|used| used.owner != end.owner()) {
                return;
            }
            self.free(end.protocol, port, word);
        }
    }

    /// Frees a port that is forwarded from now on: who had it does not get it back later.
    pub fn forward(&self, protocol: PortProtocol, port: u16) {
        let word = self.word(protocol, port).map_or(0, |word| word.load(Relaxed));
        if word != 0 {
            self.free(protocol, port, word);
        }
    }

    /// Frees the ports of a vnic that went: what comes for them is for nobody else.
    pub fn release(&self, vnic: PortRef) {
        let holder = Holder::of(vnic);
        if PortProtocol::ALL.iter().all(|it| self.holders.count(*it, holder) == 0) {
            return;
        }
        for at in 0..PROTOCOLS * PORTS {
            let Some((protocol, port)) = place_of(at) else { return };
            if self.holders.has(protocol, port) == holder {
                let word = self.word(protocol, port).map_or(0, |word| word.load(Relaxed));
                self.free(protocol, port, word);
            }
        }
    }

    /// Returns the end inside that has a port outside.
    #[inline]
    pub fn inside_of(&self, protocol: PortProtocol, port: u16, now: u32) -> Option<InsideEnd> {
        let found = PortUse::read(self.word(protocol, port)?.load(Relaxed))?;
        found.lasts(protocol, time(now)).then(|| found.end(protocol))
    }

    /// Notes that the other end of a session reset a connection of an end: its machine will send
    /// nothing more by it. Its next bytes, or connection, make that undone, so who forges a reset
    /// harms a connection alone that is silent for longer than those last that ended.
    pub fn ended(&self, end: InsideEnd, port: u16) {
        let Some(place) = self.word(end.protocol, port) else { return };
        let word = place.load(Relaxed);
        let Some(own) = PortUse::read(word).filter(|own| own.owner == end.owner()) else { return };
        if own.state != PortState::Closing {
            // Of two packets at once the first one counts.
            let new = PortUse { state: PortState::Closing, ..own }.word();
            let _ = place.compare_exchange(word, new, Relaxed, Relaxed);
        }
    }

    /// Frees the ports of part `n` of `parts` that are over.
    pub fn sweep(&self, n: usize, parts: usize, now: u32) {
        let all = PROTOCOLS * PORTS;
        for at in all * n / parts..all * (n + 1) / parts {
            let Some((protocol, port)) = place_of(at) else { return };
            let word = self.word(protocol, port).map_or(0, |word| word.load(Relaxed));
            let lasts = PortUse::read(word).is_some_and(|own| own.lasts(protocol, time(now)));
            if word == 0 {
                // One that was freed while it was given.
                self.holders.pass(protocol, port, Holder::NOBODY, None);
            } else if !lasts {
                self.free(protocol, port, word);
            }
        }
        if n + 1 >= parts {
            let swept = self.words.get(SWEPT).into_iter();
            swept.for_each(|word| word.store(now.into(), Relaxed));
        }
    }

    /// Frees what is impossible or over in a table that a process left, and counts the rest, which
    /// is nobody's until its machines send again. Nobody else uses the table yet.
    fn repair(&self, now: u32) {
        for at in 0..PROTOCOLS * PORTS {
            let Some((protocol, port)) = place_of(at) else { return };
            let Some(place) = self.word(protocol, port) else { return };
            let word = place.load(Relaxed);
            let possible = PortUse::read(word).is_some_and(|own| {
                let end = own.end(protocol);
                let [net, ..] = end.address.to_be_bytes();
                let is_host = !matches!(net, 0 | 127 | 224..);
                let is_candidate = || self.candidates(end).any(|candidate| candidate == port);
                is_host && own.lasts(protocol, time(now)) && is_candidate()
            });
            match possible {
                true => self.count(protocol, 1),
                false => place.store(0, Relaxed),
            }
        }
    }
}

/// Returns the protocol and port of a word.
fn place_of(at: usize) -> Option<(PortProtocol, u16)> {
    let protocol = *PortProtocol::ALL.get(at / PORTS)?;
    Some((protocol, (at % PORTS) as u16))
}

#[cfg(test)]
mod tests;

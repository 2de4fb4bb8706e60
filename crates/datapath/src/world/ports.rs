//! Ports of an address outside that machines inside share.
//!
//! One word for each port outside says whose it is, so each change is one compare-exchange, and a
//! process that dies leaves no half of one. An end inside has the same port outside for all
//! destinations (RFC 4787, REQ-1): its candidates are a fixed sequence of ports, in which it is
//! looked for to the end.

use std::{
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Relaxed, Release},
        },
    },
};

use butterfly_mem::units::{Fate, Left, Unit, Units, UnitsError};
use butterfly_packet::{protocol, tcp};

use crate::session::Here;
use crate::world::steering::mix;

/// Ports of a protocol.
const PORTS: usize = 1 << 16;
const PROTOCOLS: usize = 3;
/// Ports below are never given away: hosts trust who has them (RFC 6056, 2.1).
const FIRST: u16 = 1024;
/// Candidates of an end.
const CANDIDATES: u32 = 64;
/// Seconds of a unit of time.
const UNIT: u32 = 8;
/// Bits of a time.
const TIME: u64 = 0x3fff;
/// Units by which another process's clock may be ahead.
const AHEAD: u64 = 16;
/// Most ports of one machine.
const SHARE: u32 = 4096;
/// Counters in each of two rows: machines that meet in one row are told apart by the other.
const ROW: usize = 1024;
/// Searches in vain of a machine in a tenth of a second; what it sends beyond is not looked for.
const VAIN: u32 = 100;
/// Searches again after another worker took what was found. Each needs one that succeeded.
const AGAIN: u32 = 16;

/// Words of a unit.
const WORDS: usize = 16;
/// The first unit says what the file is.
const HEAD: usize = 1;
/// Units of a table.
const UNITS: usize = HEAD + PROTOCOLS * PORTS / WORDS;
/// "bflyport", and the layout's version.
const MAGIC: [u64; 2] = [0x6266_6c79_706f_7274, 1];
/// Places in the first unit.
const KEY: usize = 8;

/// Protocol whose ports are shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortProtocol {
    Tcp,
    Udp,
    /// Identifiers of ICMP echoes.
    Echo,
}

impl PortProtocol {
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
}

/// Reason for which an end has no port outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPort {
    /// All candidates are others'.
    Full,
    /// Its machine has as many as one may have.
    Share,
}

/// State of a port. The numbers are in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PortState {
    /// Without an answer, or of a protocol that has none that count.
    New = 1,
    /// TCP was answered.
    Established = 2,
    /// TCP ended.
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
            (PortProtocol::Tcp, PortState::Established) => 7_440, // RFC 5382, REQ-5
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

/// Returns the state of TCP after a packet with these flags, from inside or from outside.
fn next(state: PortState, flags: u8, inside: bool) -> PortState {
    match state {
        _ if flags & (tcp::FIN | tcp::RST) != 0 => PortState::Closing,
        PortState::Closing if inside && flags & tcp::SYN != 0 => PortState::New,
        PortState::New if !inside => PortState::Established,
        state => state,
    }
}

/// Counts of machines, by a hash of their addresses. Never less than a machine has, as far as its
/// ports were counted.
#[derive(Debug)]
struct PortCounts<T>(Box<[T]>);

impl<T> PortCounts<T> {
    fn new(zero: impl Fn() -> T) -> PortCounts<T> {
        PortCounts((0..2 * ROW).map(|_| zero()).collect())
    }

    fn places(hash: u64) -> [usize; 2] {
        [hash as usize % ROW, ROW + (hash >> 32) as usize % ROW]
    }
}

impl PortCounts<AtomicU32> {
    fn each(&self, hash: u64) -> impl Iterator<Item = &AtomicU32> {
        Self::places(hash).into_iter().filter_map(|at| self.0.get(at))
    }

    fn count(&self, hash: u64) -> u32 {
        self.each(hash).map(|cell| cell.load(Relaxed)).min().unwrap_or(0)
    }

    fn more(&self, hash: u64) {
        self.each(hash).for_each(|cell| _ = cell.fetch_add(1, Relaxed));
    }

    fn less(&self, hash: u64) {
        let less = |count: u32| count.checked_sub(1);
        self.each(hash).for_each(|cell| _ = cell.fetch_update(Relaxed, Relaxed, less));
    }
}

/// Ports of one address outside.
#[derive(Debug)]
pub(crate) struct PortTable {
    units: Units,
    key: [u64; 2],
    /// Ports in use by machine. The sweep counts anew: a wrong count does not last.
    shares: PortCounts<AtomicU32>,
    /// Count of a sweep that goes on.
    counting: Mutex<PortCounts<u32>>,
    /// Searches in vain by machine: tenth of a second 24, count 8.
    vain: Box<[AtomicU32]>,
}

/// Address whose ports a table has, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PortsOf {
    /// MAC address of the router.
    pub router: u64,
    /// The external.
    pub vni: u32,
    pub address: u32,
}

/// Returns the first unit of the table of an address, with the key of its hash.
fn header(of: PortsOf, here: Here, key: [u64; 2]) -> [u64; WORDS] {
    let ([magic, version], [b0, b1], [h0, h1], [k0, k1]) = (MAGIC, here.boot, here.host, key);
    let address = u64::from(of.vni) << 32 | u64::from(of.address);
    [magic, version, of.router, address, b0, b1, h0, h1, k0, k1, 0, 0, 0, 0, 0, 0]
}

/// Returns whether a file is the whole table of an address, of this boot.
fn is_of(left: &Left, of: PortsOf, here: Here) -> bool {
    let mut is = false;
    let read = left.read(0, 1, |words| {
        let key = [KEY, KEY + 1].map(|at| words.get(at).copied().unwrap_or_default());
        is = words == header(of, here, key);
    });
    read.is_ok() && is && here.boot != [0; 2] && left.len() >= UNITS as u64
}

impl PortTable {
    /// Makes a table in the process's own memory, with this key of its hash.
    pub fn new(key: [u64; 2]) -> Result<PortTable, UnitsError> {
        Ok(PortTable::with(Units::anonymous(UNITS)?, key))
    }

    /// Makes the table of an address in a file. If `adopt`, that which a process of this boot left
    /// there goes on, without what is impossible or over.
    pub fn in_file(
        name: &str,
        of: PortsOf,
        key: [u64; 2],
        adopt: bool,
        now: u32,
    ) -> Result<PortTable, UnitsError> {
        let here = Here::read();
        let fate = |_: &Path, left: Option<&Left>| match left {
            Some(left) if adopt && is_of(left, of, here) => Fate::Adopt,
            _ => Fate::Remove,
        };
        let units = Units::file(UNITS, name, fate)?;
        let word = |at: usize| units.first().and_then(|unit| unit.0.get(at));
        if units.adopted() {
            let key = [KEY, KEY + 1].map(|at| word(at).map_or(0, |word| word.load(Relaxed)));
            let ports = PortTable::with(units, key);
            ports.repair(now);
            return Ok(ports);
        }
        let head = header(of, here, key);
        // The magic number last: without it the file is nothing.
        for (at, value) in head.into_iter().enumerate().rev() {
            word(at).into_iter().for_each(|word| word.store(value, Release));
        }
        Ok(PortTable::with(units, key))
    }

    fn with(units: Units, key: [u64; 2]) -> PortTable {
        PortTable {
            units,
            key,
            shares: PortCounts::new(AtomicU32::default),
            counting: Mutex::new(PortCounts::new(u32::default)),
            vain: (0..ROW).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Returns whether its ports are those of a process before.
    #[cfg(test)]
    pub fn adopted(&self) -> bool {
        self.units.adopted()
    }

    /// Returns the word of a port.
    #[inline(always)]
    fn word(&self, protocol: PortProtocol, port: u16) -> Option<&AtomicU64> {
        let at = protocol as usize * PORTS + usize::from(port);
        let unit: &Unit = self.units.get(HEAD + at / WORDS)?;
        unit.0.get(at % WORDS)
    }

    fn hash_of(&self, address: u32) -> u64 {
        let [a, b] = self.key;
        mix([b, a], [u64::from(address).rotate_left(32) ^ b, address.into()])
    }

    /// Returns the candidates of an end: its own port, and others, of UDP of the same parity (RFC
    /// 4787, REQ-4).
    fn candidates(&self, end: InsideEnd) -> impl Iterator<Item = u16> {
        let own = Some(end.port).filter(|port| *port >= FIRST);
        let of = end.owner() | (end.protocol as u64) << 48;
        let key = self.key;
        let others = (0..CANDIDATES).map(move |n| {
            let hash = mix(key, [of, n.into()]);
            let port = (hash % (PORTS as u64 - u64::from(FIRST))) as u16 + FIRST;
            if end.protocol == PortProtocol::Udp { port & !1 | end.port & 1 } else { port }
        });
        own.into_iter().chain(others).take(CANDIDATES as usize)
    }

    /// Looks through all candidates of an end for its own port and the first one that nobody has,
    /// in one go: what another worker gives the end meanwhile is found, or is the one that was
    /// free. `taken` tells which ports are forwarded: they belong to nobody here.
    fn look(&self, end: InsideEnd, now: u64, taken: &impl Fn(u16) -> bool) -> Candidate<'_> {
        let mut free = None;
        for port in self.candidates(end) {
            let Some(place) = self.word(end.protocol, port) else { continue };
            let word = place.load(Relaxed);
            let used = PortUse::read(word);
            let candidate = (port, place, word);
            match used.filter(|used| used.owner == end.owner()) {
                Some(own) if !taken(port) => return Candidate::Own(candidate, own),
                _ => {}
            }
            let lasts = used.is_some_and(|other| other.lasts(end.protocol, now));
            if free.is_none() && !lasts && !taken(port) {
                free = Some(candidate);
            }
        }
        free.map_or(Candidate::None, Candidate::Free)
    }

    /// Returns the port outside that an end has, if it has one. Changes nothing.
    pub fn outside_of(&self, end: InsideEnd, now: u32, taken: impl Fn(u16) -> bool) -> Option<u16> {
        match self.look(end, time(now), &taken) {
            Candidate::Own((port, ..), own) => own.lasts(end.protocol, time(now)).then_some(port),
            _ => None,
        }
    }

    /// Returns the port outside that an end has or would get. Changes nothing.
    pub fn would_give(
        &self,
        end: InsideEnd,
        now: u32,
        taken: impl Fn(u16) -> bool,
    ) -> Result<u16, NoPort> {
        match self.look(end, time(now), &taken) {
            Candidate::Own((port, ..), _) => Ok(port),
            free => self.may_have(free, self.hash_of(end.address)).map(|(port, ..)| port),
        }
    }

    /// Returns the free port that a machine may have.
    fn may_have<'a>(&self, found: Candidate<'a>, hash: u64) -> Result<Place<'a>, NoPort> {
        match found {
            Candidate::Free(_) if self.shares.count(hash) >= SHARE => Err(NoPort::Share),
            Candidate::Free(place) => Ok(place),
            _ => Err(NoPort::Full),
        }
    }

    /// Returns the port by which a packet of an end leaves, which it gets if it has none, and notes
    /// that it is used. `flags` are those of TCP, else 0. `now` is in seconds and tenths.
    pub fn give(
        &self,
        end: InsideEnd,
        flags: u8,
        (now, tenths): (u32, u32),
        taken: impl Fn(u16) -> bool,
    ) -> Result<u16, NoPort> {
        let now = time(now);
        let hash = self.hash_of(end.address);
        let next = |before| match end.protocol {
            PortProtocol::Tcp => next(before, flags, true),
            _ => PortState::New,
        };
        for _ in 0..AGAIN {
            let found = match self.is_vain(hash, tenths) {
                // It may have the port that most have.
                true => match self.own_port(end) {
                    Some(found) if !taken(end.port) => found,
                    _ => return Err(NoPort::Full),
                },
                false => self.look(end, now, &taken),
            };
            let ((port, place, word), new, is_new) = match found {
                Candidate::Own(found, own) => {
                    let lasts = own.lasts(end.protocol, now);
                    let before = if lasts { own.state } else { PortState::New };
                    (found, PortUse { state: next(before), time: now, ..own }, false)
                }
                free => {
                    let free = self.may_have(free, hash);
                    let found = free.inspect_err(|_| self.note_vain(hash, tenths))?;
                    let state = next(PortState::New);
                    (found, PortUse { owner: end.owner(), state, time: now }, true)
                }
            };
            let new = new.word();
            if new != word && place.compare_exchange(word, new, Relaxed, Relaxed).is_err() {
                continue;
            }
            if is_new {
                if let Some(old) = PortUse::read(word) {
                    self.shares.less(self.hash_of(old.end(end.protocol).address));
                }
                self.shares.more(hash);
            }
            return Ok(port);
        }
        Err(NoPort::Full)
    }

    /// Returns the port of an end that has its own port outside.
    fn own_port(&self, end: InsideEnd) -> Option<Candidate<'_>> {
        let place = self.word(end.protocol, end.port)?;
        let word = place.load(Relaxed);
        let own = PortUse::read(word).filter(|own| own.owner == end.owner())?;
        Some(Candidate::Own((end.port, place, word), own))
    }

    fn vain(&self, hash: u64, tenths: u32) -> Option<(&AtomicU32, u32)> {
        let cell = self.vain.get(hash as usize % ROW)?;
        let word = cell.load(Relaxed);
        Some((cell, if word >> 8 == tenths & 0xff_ffff { word & 0xff } else { 0 }))
    }

    /// Returns whether a machine searched in vain for long.
    fn is_vain(&self, hash: u64, tenths: u32) -> bool {
        self.vain(hash, tenths).is_some_and(|(_, count)| count >= VAIN)
    }

    fn note_vain(&self, hash: u64, tenths: u32) {
        if let Some((cell, count)) = self.vain(hash, tenths) {
            cell.store(tenths << 8 | (count + 1).min(0xff), Relaxed);
        }
    }

    /// Returns the end inside that has a port outside.
    #[inline]
    pub fn inside_of(&self, protocol: PortProtocol, port: u16, now: u32) -> Option<InsideEnd> {
        let found = PortUse::read(self.word(protocol, port)?.load(Relaxed))?;
        found.lasts(protocol, time(now)).then(|| found.end(protocol))
    }

    /// Notes that a packet of TCP with these flags came from outside for an end, and passed. Never
    /// prolongs by its time: only the machine's own packets do (RFC 4787, REQ-6).
    pub fn came(&self, end: InsideEnd, port: u16, flags: u8) {
        let Some(place) = self.word(end.protocol, port) else { return };
        let word = place.load(Relaxed);
        let Some(own) = PortUse::read(word).filter(|own| own.owner == end.owner()) else { return };
        let state = next(own.state, flags, false);
        if state != own.state {
            // Of two packets at once the first one counts.
            let new = PortUse { state, ..own }.word();
            let _ = place.compare_exchange(word, new, Relaxed, Relaxed);
        }
    }

    /// Frees the ports of part `n` of `parts` that are over. With the last part, each machine has
    /// as many as were counted.
    pub fn sweep(&self, n: usize, parts: usize, now: u32) {
        let all = self.units.len().saturating_sub(HEAD) * WORDS;
        let (first, end) = (all * n / parts, all * (n + 1) / parts);
        let mut counting = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        for at in first..end {
            let Some((protocol, port)) = place_of(at) else { return };
            let Some(place) = self.word(protocol, port) else { return };
            let word = place.load(Relaxed);
            match PortUse::read(word) {
                None if word == 0 => {}
                Some(own) if own.lasts(protocol, time(now)) => {
                    let hash = self.hash_of(own.end(protocol).address);
                    for at in PortCounts::<u32>::places(hash) {
                        counting.0.get_mut(at).into_iter().for_each(|count| *count += 1);
                    }
                }
                _ => _ = place.compare_exchange(word, 0, Relaxed, Relaxed),
            }
        }
        if n + 1 >= parts {
            for (count, counted) in self.shares.0.iter().zip(&mut counting.0) {
                count.store(std::mem::take(counted), Relaxed);
            }
        }
    }

    /// Frees what is impossible in a table that a process left, and counts the rest.
    fn repair(&self, now: u32) {
        for at in 0..PROTOCOLS * PORTS {
            let Some((protocol, port)) = place_of(at) else { return };
            let Some(place) = self.word(protocol, port) else { return };
            let word = place.load(Relaxed);
            let possible = PortUse::read(word).is_some_and(|own| {
                let end = own.end(protocol);
                let [net, ..] = end.address.to_be_bytes();
                let is_host = !matches!(net, 0 | 127 | 224..);
                is_host && self.candidates(end).any(|candidate| candidate == port)
            });
            if word != 0 && !possible {
                let _ = place.compare_exchange(word, 0, Relaxed, Relaxed);
            }
        }
        self.sweep(0, 1, now);
    }
}

/// Returns the protocol and port of a word.
fn place_of(at: usize) -> Option<(PortProtocol, u16)> {
    let protocol = *[PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Echo].get(at / PORTS)?;
    Some((protocol, (at % PORTS) as u16))
}

#[cfg(test)]
mod tests;

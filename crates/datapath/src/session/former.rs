//! Sessions that a dead process left in the file of its table, as far as they can be read.
//!
//! Nothing in the file is trusted. The names say which vnic was in a slot. The rules that admitted
//! a session are not read, because a process that takes a session over decides it again.

use std::{
    collections::HashSet,
    fmt, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::engine::clock::Clock;
use crate::ip::tcp::TcpState;
use crate::session::{
    hash::HashKind,
    key::{Key, Zone},
    layout::{
        HEAD_BOOT, HEAD_CAPACITY, HEAD_FRESH, HEAD_HASH, HEAD_HOST, HEAD_MAGIC, HEAD_SLOTS,
        HEAD_VERSION, Here, Layout, MAGIC, MAX_SESSIONS, REPAIRING, version,
    },
    memory::{AtomicU64, Left, Unit},
    names::{self, Name},
    record::{FOUND_GOOD, Line2, Record},
    state::{State, Timeouts},
};

/// Reason for which a file that was left is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum Unusable {
    #[error("it belongs to another user, or is no file")]
    Foreign,
    #[error("it is no table of sessions")]
    NotATable,
    #[error("its layout has version {0}, and this is version {current}", current = version(butterfly_layout::newest()))]
    Version(u64),
    #[error("it is of another boot of this host")]
    OtherBoot,
    #[error("it is of another host")]
    OtherHost,
    #[error(
        "its sessions are found by a hash that this processor or version does not have (kind {0})"
    )]
    Hash(u64),
    #[error("its header contradicts itself")]
    Header,
    #[error("it names a vnic twice")]
    Names,
    #[error("it has room for {0} sessions, and this start is for {1}")]
    Size(u32, u32),
    #[error("another table was adopted")]
    Second,
    #[error("its memory cannot be mapped")]
    Unmapped,
    #[error("it is shorter than its header says")]
    Truncated,
}

/// The sessions that were left and could go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FormerSessions {
    /// Number of sessions.
    pub sessions: u64,
    /// Seconds since the last frame of any of them.
    pub idle: u32,
    /// Other records in use: in change when the process died, ended, of vnics that were gone, or
    /// damaged.
    pub unusable: u64,
}

/// A table that was found in place of the new one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormerTable {
    /// Its file.
    pub path: PathBuf,
    /// Its sessions.
    pub found: Result<FormerSessions, Unusable>,
    /// Time that its repair took, if it is the table from then on. Otherwise it is removed.
    pub adopted: Option<Duration>,
}

impl fmt::Display for FormerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FormerTable { path, found, adopted } = self;
        let path = path.display();
        if let (Ok(FormerSessions { sessions, idle, unusable }), Some(took)) = (found, adopted) {
            return write!(
                f,
                "{path} was left by a daemon that died, and is adopted: {sessions} sessions go on with their vnics \
                 (last frame {idle} s ago), {unusable} were unusable; its repair took {} us",
                took.as_micros()
            );
        }
        match found {
            Err(Unusable::Foreign) => write!(f, "{path} is not used: {}", Unusable::Foreign),
            Err(why) => write!(f, "{path} was left by a daemon that died, and is removed: {why}"),
            Ok(FormerSessions { sessions: 0, .. }) => {
                write!(
                    f,
                    "{path} was left by a daemon that died, and is removed: no session in it could go on"
                )
            }
            Ok(FormerSessions { sessions, idle, .. }) => write!(
                f,
                "{path} was left by a daemon that died, and is removed: vnics are new, and {sessions} sessions end with theirs \
                 (last frame {idle} s ago)"
            ),
        }
    }
}

/// A session that was left and could go on.
#[derive(Clone, Debug)]
pub(super) struct Survivor<'a> {
    /// The opener and the other end.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests ask"))]
    pub ends: [&'a Name; 2],
    pub key: Key,
    pub line: Line2,
}

impl FormerTable {
    /// Looks at the file at `path`; `left` is `None` if the file is another user's.
    pub(crate) fn look(
        path: &Path,
        left: Option<&Left>,
        here: &Here,
        timeouts: &Timeouts,
        now: u32,
    ) -> FormerTable {
        let found = left.ok_or(Unusable::Foreign).and_then(|left| {
            let mut found = FormerSessions::default();
            found.unusable = survivors(left, here, timeouts, now, |survivor| {
                found.count(survivor.line.state, survivor.line.seen, now);
            })?;
            Ok(found)
        });
        FormerTable { path: path.to_owned(), found, adopted: None }
    }
}

/// Looks whether the table in a file, which a process may be writing, could be adopted by a process
/// that wants one of so many records. Changes nothing.
pub fn look_at(
    path: &Path,
    capacity: u32,
    timeouts: &Timeouts,
) -> Result<FormerSessions, Unusable> {
    let left = Left::look_at(path).map_err(|_| Unusable::Foreign)?;
    let here = Here::read();
    may_adopt(Some(&left), &here, capacity)?;
    FormerTable::look(path, Some(&left), &here, timeouts, Clock::new().now()).found
}

impl FormerSessions {
    /// Counts a session, last seen at `seen`. A connection that was cut is remembered, but is none.
    pub(super) fn count(&mut self, state: State, seen: u32, now: u32) {
        if state == State::Tcp(TcpState::Cut) {
            return;
        }
        let idle = now.saturating_sub(seen);
        self.idle = if self.sessions == 0 { idle } else { self.idle.min(idle) };
        self.sessions += 1;
    }
}

/// Checks whether a table that was left can be adopted by a process that wants one of so many
/// records. Looks at no session.
pub(super) fn may_adopt(left: Option<&Left>, here: &Here, capacity: u32) -> Result<(), Unusable> {
    let left = left.ok_or(Unusable::Foreign)?;
    let (header, _) = read(left, here)?;
    if header.layout != Layout::new(capacity, true) {
        return Err(Unusable::Size(header.layout.capacity, capacity));
    }
    Ok(())
}

/// Visits the sessions of a table that could go on here. Returns the number of other records in
/// use.
pub(super) fn survivors(
    left: &Left,
    here: &Here,
    timeouts: &Timeouts,
    now: u32,
    mut visit: impl FnMut(Survivor<'_>),
) -> Result<u64, Unusable> {
    let (Header { fresh, again, .. }, owners) = read(left, here)?;
    let mut unusable = 0;
    let visit = |unit: [u64; 16]| {
        let unit = Unit(unit.map(AtomicU64::new));
        let record = Record::of(&unit);
        match survivor(&record, &owners, again, timeouts, now) {
            Some(survivor) => visit(survivor),
            None => unusable += u64::from(!record.is_free()),
        }
    };
    left.read(1, fresh, visit).map_err(|_| Unusable::Truncated)?;
    Ok(unusable)
}

/// A header that was checked.
struct Header {
    layout: Layout,
    /// Number of records that were ever used.
    fresh: usize,
    /// True if the process died while it repaired the table.
    again: bool,
}

/// Reads and checks the header and the names.
fn read(left: &Left, here: &Here) -> Result<(Header, Vec<Option<Name>>), Unusable> {
    let truncated = |_: io::Error| Unusable::Truncated;
    let mut words = [0; 16];
    left.read(0, 1, |unit| words = unit).map_err(truncated)?;
    let header = check(&words, here)?;
    if left.len() < header.layout.len as u64 {
        return Err(Unusable::Truncated);
    }
    let slots = header.layout.slots as usize;
    let mut owners = Vec::with_capacity(slots);
    left.read(header.layout.names, slots, |unit| owners.push(names::read(&unit)))
        .map_err(truncated)?;
    // Every id is one vnic's, and a network has one trunk.
    let mut all = HashSet::new();
    let twice =
        |name: &Name| !all.insert((name.id.clone(), name.id.is_empty().then_some(name.vni)));
    if owners.iter().flatten().any(twice) {
        return Err(Unusable::Names);
    }
    Ok((header, owners))
}

fn check(header: &[u64; 16], here: &Here) -> Result<Header, Unusable> {
    let word = |at: usize| header.get(at).copied().unwrap_or_default();
    if word(HEAD_MAGIC) != MAGIC {
        return Err(Unusable::NotATable);
    }
    if !butterfly_layout::read().map(version).any(|known| known == word(HEAD_VERSION)) {
        return Err(Unusable::Version(word(HEAD_VERSION)));
    }
    if here.boot == [0; 2] || here.boot != [word(HEAD_BOOT), word(HEAD_BOOT + 1)] {
        return Err(Unusable::OtherBoot);
    }
    if here.host != [word(HEAD_HOST), word(HEAD_HOST + 1)] {
        return Err(Unusable::OtherHost);
    }
    // With another hash, sessions would be searched in the wrong buckets. The processor is the same
    // in one boot, so another kind means another program.
    if word(HEAD_HASH) & !REPAIRING != HashKind::here() as u64 {
        return Err(Unusable::Hash(word(HEAD_HASH)));
    }
    let capacity = u32::try_from(word(HEAD_CAPACITY))
        .ok()
        .filter(|capacity| *capacity <= MAX_SESSIONS)
        .ok_or(Unusable::Header)?;
    let layout = Layout::new(capacity, true);
    let fresh = word(HEAD_FRESH);
    let consistent = layout.capacity == capacity
        && u64::from(layout.slots) == word(HEAD_SLOTS)
        && fresh <= u64::from(capacity);
    let again = word(HEAD_HASH) & REPAIRING != 0;
    let header = Header { layout, fresh: fresh as usize, again };
    consistent.then_some(header).ok_or(Unusable::Header)
}

/// Returns whether two vnics may be the ends of a session of a zone: both are of its network. If a
/// router joins them, the zone's network is that of one of them, and the other one is in another
/// network or stands for other hosts.
fn are_of(zone: Zone, ends: [&Name; 2]) -> bool {
    let vnis = ends.map(|name| name.vni);
    let trunks = ends.iter().filter(|name| name.id.is_empty()).count();
    match (zone.is_routed(), vnis == [zone.vni(); 2]) {
        (false, here) => here,
        (true, true) => trunks == 1,
        (true, false) => vnis.contains(&zone.vni()) && trunks == 0,
    }
}

/// Returns the session of a record, if it can go on. `again`: a process died while it repaired the
/// table, and may have found the session good already.
pub(super) fn survivor<'a>(
    record: &Record<'_>,
    owners: &'a [Option<Name>],
    again: bool,
    timeouts: &Timeouts,
    now: u32,
) -> Option<Survivor<'a>> {
    let (words, admission) = record.words()?;
    let key = Key::from_words(words);
    let owner = |slot: u32| {
        let owner = owners.get(slot as usize)?.as_ref()?;
        // Otherwise the record is about a vnic that was in this slot before.
        let good = again && admission.stamp == FOUND_GOOD;
        (good || owner.born <= admission.stamp).then_some(owner)
    };
    let (opener, responder) = key.slots();
    let ends = [owner(opener)?, owner(responder)?];
    if !are_of(key.zone(), ends) {
        return None;
    }
    let line = record.line2();
    let in_order = 0 < line.made && line.made <= line.seen && line.seen <= now;
    // A thread was changing the line when it died. Only marks that workers set under its lock can
    // be half written; others are of several moments at worst, and old ones of a connection that is
    // adrift are out of date anyway.
    let half = record.is_held()
        && matches!(line.state, State::Tcp(state) if state < TcpState::Established);
    let alive = in_order
        && !half
        && line.state.number() == record.state_number()
        && line.state.is_of(key.tuple().protocol)
        && !timeouts.over(line.state, line.seen, now);
    (alive && line.track.is_possible()).then_some(Survivor { ends, key, line })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;

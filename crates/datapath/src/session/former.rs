//! Sessions that a dead process left in the file of its table, as far as they can be read.
//!
//! Nothing in the file is trusted. The names say which vnic was in a slot. The rules that admitted
//! a session are not read, because a process that takes a session over decides it again.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use crate::ip::tcp::TcpState;
use crate::session::{
    hash::HashKind,
    key::Key,
    layout::{
        HEAD_BOOT, HEAD_CAPACITY, HEAD_FRESH, HEAD_HASH, HEAD_HOST, HEAD_MAGIC, HEAD_SLOTS,
        HEAD_VERSION, Here, Layout, MAGIC, MAX_SESSIONS, VERSION,
    },
    memory::{AtomicU64, Left, Unit},
    names::{self, Name},
    record::{Line2, Record},
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
    #[error("its layout has version {0}, and this is version {VERSION}")]
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

/// A table that was found in place of the new one. It is replaced, as vnics are new.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormerTable {
    /// Its file.
    pub path: PathBuf,
    /// Its sessions.
    pub found: Result<FormerSessions, Unusable>,
}

impl fmt::Display for FormerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FormerTable { path, found } = self;
        let path = path.display();
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

/// A session that was left and could go on. So far it is only counted.
#[derive(Clone, Debug)]
#[allow(dead_code)] // but by tests
pub(crate) struct Survivor<'a> {
    /// The opener and the other end.
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
            let mut seen = 0;
            let mut found = FormerSessions::default();
            found.unusable = survivors(left, here, timeouts, now, |survivor| {
                // A connection that was cut is remembered, but is no session.
                if survivor.line.state == State::Tcp(TcpState::Cut) {
                    return;
                }
                found.sessions += 1;
                seen = seen.max(survivor.line.seen);
            })?;
            found.idle = now.saturating_sub(seen);
            Ok(found)
        });
        FormerTable { path: path.to_owned(), found }
    }
}

/// Visits the sessions of a table that could go on here. Returns the number of other records in
/// use.
pub(crate) fn survivors(
    left: &Left,
    here: &Here,
    timeouts: &Timeouts,
    now: u32,
    mut visit: impl FnMut(Survivor<'_>),
) -> Result<u64, Unusable> {
    let truncated = |_: io::Error| Unusable::Truncated;
    let mut header = [0; 16];
    left.read(0, 1, |unit| header = unit).map_err(truncated)?;
    let (layout, fresh) = check(&header, here)?;
    if left.len() < layout.len as u64 {
        return Err(Unusable::Truncated);
    }
    let mut owners = Vec::with_capacity(layout.slots as usize);
    left.read(layout.names, layout.slots as usize, |unit| owners.push(names::read(&unit)))
        .map_err(truncated)?;
    let mut unusable = 0;
    let visit = |unit: [u64; 16]| {
        let unit = Unit(unit.map(AtomicU64::new));
        let record = Record::of(&unit);
        match survivor(&record, &owners, timeouts, now) {
            Some(survivor) => visit(survivor),
            None => unusable += u64::from(!record.is_free()),
        }
    };
    left.read(1, fresh, visit).map_err(truncated)?;
    Ok(unusable)
}

/// Checks a header. Returns the layout, and the number of records that were ever used.
fn check(header: &[u64; 16], here: &Here) -> Result<(Layout, usize), Unusable> {
    let word = |at: usize| header.get(at).copied().unwrap_or_default();
    if word(HEAD_MAGIC) != MAGIC {
        return Err(Unusable::NotATable);
    }
    if word(HEAD_VERSION) != VERSION {
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
    if word(HEAD_HASH) != HashKind::here() as u64 {
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
    consistent.then_some((layout, fresh as usize)).ok_or(Unusable::Header)
}

fn survivor<'a>(
    record: &Record<'_>,
    owners: &'a [Option<Name>],
    timeouts: &Timeouts,
    now: u32,
) -> Option<Survivor<'a>> {
    let (words, admission) = record.words()?;
    let key = Key::from_words(words);
    let owner = |slot: u32| {
        let owner = owners.get(slot as usize)?.as_ref()?;
        // Otherwise the record is about a vnic that was in this slot before.
        (owner.born <= admission.stamp && owner.vni == key.vni()).then_some(owner)
    };
    let (opener, responder) = key.slots();
    let ends = [owner(opener)?, owner(responder)?];
    let line = record.line2();
    let in_order = 0 < line.made && line.made <= line.seen && line.seen <= now;
    let alive = in_order
        && line.state.is_of(key.tuple().protocol)
        && !timeouts.over(line.state, line.seen, now);
    (alive && line.track.is_possible()).then_some(Survivor { ends, key, line })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;

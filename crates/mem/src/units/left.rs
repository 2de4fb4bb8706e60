//! Files that processes left when they died: no process holds them.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, lstat, openat, unlink},
    process::geteuid,
};

use super::{Fate, UNIT, Units, UnitsError};

/// Units that are read at once.
const PIECE: usize = 512;

/// A file that a process of this user left when it died. It is only read, so a file that is shorter
/// than it says does no harm. Its contents may be anything.
#[derive(Debug)]
pub struct Left {
    file: File,
}

impl Left {
    /// Opens a file of this user to look at it, whether a process holds it or not.
    pub fn look_at(path: &Path) -> io::Result<Left> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(rustix::fs::CWD, path, flags, Mode::empty())?;
        if !is_own(&file) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Left { file: file.into() })
    }

    /// Returns how many units it has.
    pub fn len(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len() / UNIT as u64)
    }

    /// True if there is not even one.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits `count` units from number `first` on, as words. An error if they are not all there.
    pub fn read(
        &self,
        first: usize,
        count: usize,
        mut visit: impl FnMut([u64; 16]),
    ) -> io::Result<()> {
        let mut bytes = vec![0; UNIT * count.min(PIECE)];
        let mut at = first;
        let end = first.saturating_add(count);
        while at < end {
            bytes.truncate(UNIT * (end - at).min(PIECE));
            self.file.read_exact_at(&mut bytes, at as u64 * UNIT as u64)?;
            for unit in bytes.as_chunks::<UNIT>().0 {
                let (words, _) = unit.as_chunks::<8>();
                let mut words = words.iter().copied().map(u64::from_ne_bytes);
                visit(std::array::from_fn(|_| words.next().unwrap_or_default()));
            }
            at += bytes.len() / UNIT;
        }
        Ok(())
    }
}

/// Makes a table of a file's memory.
pub(super) type Adopt<'a> = &'a dyn Fn(&File) -> Option<Units>;

/// Removes the file that a process left at `path` when it died, unless `look` says that it is to
/// be adopted and `adopt` makes a table of it. Does not look at files of other users: they must
/// neither be used nor stop a start. Waits up to `patience` for the lock that another process has.
pub(super) fn clear(
    path: &Path,
    look: &mut dyn FnMut(&Path, Option<&Left>) -> Fate,
    adopt: Option<Adopt<'_>>,
    patience: Duration,
) -> Result<Option<Units>, UnitsError> {
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = |access| openat(rustix::fs::CWD, path, flags | access, Mode::empty());
    loop {
        // One that cannot be written to can still be looked at.
        let file = match open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)) {
            Ok(file) => Some(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(_) => None,
        };
        let Some(own) = file.filter(|file| is_own(file)) else {
            look(path, None);
            break;
        };
        if !lock(&own, patience) {
            return Err(UnitsError::InUse(path.to_owned()));
        }
        // Another one that starts may have removed it before it was locked here, and have put its
        // own there.
        if is_at(&own, path) {
            let left = Left { file: own.into() };
            let fate = look(path, Some(&left));
            // The table's copy of the descriptor keeps the lock.
            if let (Fate::Adopt, Some(adopt)) = (fate, adopt)
                && let Some(units) = adopt(&left.file)
            {
                return Ok(Some(units));
            }
            let _ = unlink(path);
            return Ok(None);
        }
    }
    let _ = unlink(path); // if that fails, making ours will, and says why
    Ok(None)
}

/// Locks a file. Returns false if another process keeps it locked for longer than `patience`.
fn lock(file: impl AsFd, patience: Duration) -> bool {
    let begun = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        if begun.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn is_own(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|stat| is_own_stat(&stat))
}

fn is_own_stat(stat: &Stat) -> bool {
    stat.st_uid == geteuid().as_raw() && FileType::from_raw_mode(stat.st_mode).is_file()
}

/// True if there is a file of this user at `path`.
pub(super) fn is_own_file(path: &Path) -> bool {
    lstat(path).is_ok_and(|there| is_own_stat(&there))
}

/// True if the file at `path` is this one.
pub(super) fn is_at(file: impl AsFd, path: &Path) -> bool {
    let Ok(own) = fstat(file) else { return false };
    lstat(path).is_ok_and(|there| (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino))
}

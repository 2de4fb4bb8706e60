//! Large tables of atomics: mapped memory that starts as zeros, and that may outlive the process.
//!
//! Not guest memory, but like it: a process that reads the file after a crash must check what it
//! finds.

mod left;
#[cfg(test)]
mod tests;

pub use left::Left;

use std::{
    ffi::OsStr,
    fs::File,
    io,
    ops::{Deref, Range},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::atomic::AtomicU64,
    time::Duration,
};

use rustix::{
    fs::{
        FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, fstat, ftruncate, openat,
        unlink,
    },
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
};

/// Two cache lines: what neighbouring units hold never shares one, nor a pair that the processor
/// fetches together.
#[repr(C, align(128))]
#[derive(Default, Debug)]
pub struct Unit(pub [AtomicU64; 16]);

const UNIT: usize = size_of::<Unit>();
const HUGE: usize = 2 << 20;
/// No page of the kernel's is smaller.
const PAGE: usize = 4096;

/// Fate of a file that a process left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It goes, and a new one takes its place.
    Remove,
    /// Its memory is used, with what is in it.
    Adopt,
}

/// Kind of memory that a table is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// This process's own, gone with it.
    Anonymous,
    /// A file of huge pages.
    HugePages,
    /// A file in memory, of small pages.
    Tmpfs,
}

impl Memory {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Memory::Anonymous => "anonymous",
            Memory::HugePages => "hugetlbfs",
            Memory::Tmpfs => "tmpfs",
        }
    }
}

/// Reason why there is no table.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum UnitsError {
    #[error("{} is in use by another process: stop it first, or give this one a name of its own (--name)", .0.display())]
    InUse(PathBuf),
    #[error("{} is there already and cannot be removed by this user: remove it", .0.display())]
    Foreign(PathBuf),
    #[error("cannot reserve {bytes} bytes of memory for a table: {error}")]
    Memory { bytes: usize, error: io::Error },
    #[error("cannot make {}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
}

/// Longest wait for the lock of a file that is there. A process that was killed while it started
/// another one leaves its lock to that until it runs its program, which takes longer on a starved
/// machine than the next start of ours.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The table. Dropping it removes its file: a process that dies leaves it.
#[derive(Debug)]
pub struct Units {
    base: NonNull<Unit>,
    len: usize,
    mapped: usize,
    memory: Memory,
    /// True if it has what another process left.
    adopted: bool,
    /// Holds the lock.
    file: Option<(PathBuf, OwnedFd)>,
}

// SAFETY: the memory is only accessed through atomics.
unsafe impl Send for Units {}
// SAFETY: as above.
unsafe impl Sync for Units {}

impl Units {
    /// `len` units of zeros, touched when they are used.
    pub fn anonymous(len: usize) -> Result<Units, UnitsError> {
        let mapped = size(len)?;
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(|why| UnitsError::Memory { bytes: mapped, error: why.into() })?;
        // SAFETY: it is our mapping of that length; a hint. Small pages do as well.
        let _ = unsafe { madvise(base, mapped, Advice::LinuxHugepage) };
        Units::new(base, len, mapped, Memory::Anonymous, None)
    }

    /// `len` units of zeros in a file called `name`, of huge pages if they can be had. `look` says
    /// what becomes of a file that a process left there when it died, wherever it may be; `None` is
    /// something of another user, which is not looked at and always removed. The first file that is
    /// to be adopted becomes the table, if it can be mapped: [`Units::adopted`]. A file that is in
    /// use is an error. If another user's is there and cannot be removed, the table is
    /// [anonymous](Units::anonymous): it does not outlast the process.
    pub fn file(
        len: usize,
        name: &str,
        look: impl FnMut(&Path, Option<&Left>) -> Fate,
    ) -> Result<Units, UnitsError> {
        Units::file_within(LOCK_PATIENCE, len, name, look)
    }

    /// [`Units::file`], with another patience for the lock of a file that is there.
    fn file_within(
        patience: Duration,
        len: usize,
        name: &str,
        mut look: impl FnMut(&Path, Option<&Left>) -> Fate,
    ) -> Result<Units, UnitsError> {
        let mapped = size(len)?;
        let huge = huge_directories()
            .into_iter()
            .map(|directory| (directory.join(name), Memory::HugePages));
        let mut paths: Vec<_> = huge.collect();
        paths.push((Path::new("/dev/shm").join(name), Memory::Tmpfs));
        let mut adopted = None;
        for (path, memory) in &paths {
            let adopt = |file: &File| {
                let base = Units::map(file, mapped).ok()?;
                let held = Some((path.clone(), OwnedFd::from(file.try_clone().ok()?)));
                Units::new(base, len, mapped, *memory, held).ok()
            };
            let found =
                left::clear(path, &mut look, adopted.is_none().then_some(&adopt), patience)?;
            adopted = adopted.or(found);
        }
        if let Some(mut units) = adopted {
            units.adopted = true;
            return Ok(units);
        }
        let mut last =
            Err(UnitsError::Memory { bytes: mapped, error: io::ErrorKind::NotFound.into() });
        for (path, memory) in paths {
            match Units::create(len, mapped, &path, memory) {
                // Usually there are too few pages.
                Err(why @ (UnitsError::File { .. } | UnitsError::Foreign(_))) => last = Err(why),
                made => return made,
            }
        }
        match last {
            // Anybody may make a file of that name before us. It has to stop nobody.
            Err(UnitsError::Foreign(_)) => Units::anonymous(len),
            last => last,
        }
    }

    fn create(len: usize, mapped: usize, path: &Path, memory: Memory) -> Result<Units, UnitsError> {
        let failed = |error: rustix::io::Errno| UnitsError::File {
            path: path.to_owned(),
            error: error.into(),
        };
        // For this user alone, even if others guess the name.
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match openat(rustix::fs::CWD, path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            // What was left is removed by now: another one started at the same time, or it may not
            // be removed.
            Err(rustix::io::Errno::EXIST) if left::is_own_file(path) => {
                return Err(UnitsError::InUse(path.to_owned()));
            }
            Err(rustix::io::Errno::EXIST) => return Err(UnitsError::Foreign(path.to_owned())),
            Err(why) => return Err(failed(why)),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Until it was locked it looked to another starting process like a file left behind.
            Ok(()) if left::is_at(&file, path) => {}
            Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(UnitsError::InUse(path.to_owned()));
            }
            Err(why) => return Err(failed(why)),
        }
        match Units::map(&file, mapped) {
            Ok(base) => Units::new(base, len, mapped, memory, Some((path.to_owned(), file))),
            Err(why) => {
                let _ = unlink(path);
                Err(failed(why))
            }
        }
    }

    /// Pages are had when this succeeds: a store never finds that there are none.
    fn map(file: impl AsFd, mapped: usize) -> Result<*mut std::ffi::c_void, rustix::io::Errno> {
        ftruncate(&file, mapped as u64)?;
        // One that was used has all its pages, and looking at each takes milliseconds.
        let has = fstat(&file)?.st_blocks.saturating_mul(512);
        if u64::try_from(has).is_ok_and(|has| has < mapped as u64) {
            fallocate(&file, FallocateFlags::empty(), 0, mapped as u64)?;
        }
        // A lock ends with the last of those who have the file open as it was opened for that. The
        // mapping is none of them: it may stay for a while when this program is followed.
        let again = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let again = openat(rustix::fs::CWD, again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let mapping = again.as_ref().map_or(file.as_fd(), AsFd::as_fd);
        // SAFETY: a new mapping at an address the kernel chooses.
        unsafe {
            mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                mapping,
                0,
            )
        }
    }

    fn new(
        base: *mut std::ffi::c_void,
        len: usize,
        mapped: usize,
        memory: Memory,
        file: Option<(PathBuf, OwnedFd)>,
    ) -> Result<Units, UnitsError> {
        let base = NonNull::new(base.cast::<Unit>()).ok_or_else(|| UnitsError::Memory {
            bytes: mapped,
            error: io::Error::from(io::ErrorKind::OutOfMemory),
        })?;
        Ok(Units { base, len, mapped, memory, adopted: false, file })
    }

    /// Returns the kind of memory it is made of.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Returns whether its contents are those of a file that another process left.
    pub fn adopted(&self) -> bool {
        self.adopted
    }

    /// Has the kernel map the pages of some units at once, rather than one by one when they are
    /// touched. A hint: without it everything is as it was, and slower. They are asked for as if
    /// they were to be read: pages of a shared file can be written then, too, and come 16 at once.
    pub fn map_ahead(&self, units: Range<usize>) {
        let end = units.end.min(self.len);
        let start = units.start.min(end);
        // SAFETY: the units are in our mapping.
        let from = unsafe { self.base.as_ptr().add(start) };
        let to = (end - start) * UNIT;
        let before = from.addr() % PAGE;
        // SAFETY: mapped by us, from the beginning of a page; nothing in it changes.
        let _ = unsafe {
            madvise(from.cast::<u8>().sub(before).cast(), before + to, Advice::LinuxPopulateRead)
        };
    }

    /// Its file, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }
}

impl Deref for Units {
    type Target = [Unit];

    #[inline(always)]
    fn deref(&self) -> &[Unit] {
        // SAFETY: `len` units were mapped, page aligned, for as long as self lives, and all bytes
        // are valid atomics, which may be shared: a process before this one may still map the
        // file.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        // An operator who removed it by hand may have let another process make its own there.
        if let Some((path, file)) = &self.file
            && left::is_at(file, path)
        {
            let _ = unlink(path);
        }
        // SAFETY: mapped by us with this length; references into it borrow self.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

fn size(len: usize) -> Result<usize, UnitsError> {
    let bytes = len.checked_mul(UNIT).and_then(|bytes| bytes.max(1).checked_next_multiple_of(HUGE));
    bytes.ok_or_else(|| UnitsError::Memory {
        bytes: usize::MAX,
        error: io::Error::from(io::ErrorKind::OutOfMemory),
    })
}

/// Returns the mount points of file systems with 2 MiB pages.
fn huge_directories() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, directory, kind, options) =
                (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            let small_enough = options.split(',').any(|option| option == "pagesize=2M");
            (kind == "hugetlbfs" && small_enough).then(|| PathBuf::from(OsStr::new(directory)))
        })
        .collect()
}

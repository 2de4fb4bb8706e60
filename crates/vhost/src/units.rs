//! Large tables of atomics: mapped memory that starts as zeros, and that may outlive the process.
//!
//! Not guest memory, but like it: whoever reads the file after a crash must check what it finds.

use std::{
    ffi::OsStr,
    io,
    ops::Deref,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    ptr::NonNull,
    sync::atomic::AtomicU64,
};

use rustix::{
    fs::{FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, fstat, ftruncate, openat, unlink},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
    process::geteuid,
};

/// Two cache lines: what neighbouring units hold never shares one, nor a pair that the processor fetches together.
#[repr(C, align(128))]
#[derive(Default, Debug)]
pub struct Unit(pub [AtomicU64; 16]);

const UNIT: usize = size_of::<Unit>();
const HUGE: usize = 2 << 20;

/// What memory a table is made of.
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

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum UnitsError {
    #[error("{} is in use by another process: stop it first", .0.display())]
    InUse(PathBuf),
    #[error("cannot reserve {bytes} bytes of memory for a table: {error}")]
    Memory { bytes: usize, error: io::Error },
    #[error("cannot make {}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
}

/// The table. Dropping it removes its file: a process that dies leaves it.
#[derive(Debug)]
pub struct Units {
    base: NonNull<Unit>,
    len: usize,
    mapped: usize,
    memory: Memory,
    /// Holds the lock.
    file: Option<(PathBuf, OwnedFd)>,
    left_behind: bool,
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
        Units::new(base, len, mapped, Memory::Anonymous, None, false)
    }

    /// `len` units of zeros in a file called `name`, of huge pages if they can be had. A file that a process left behind when it
    /// died is removed, wherever it may be; one that is in use is an error.
    pub fn file(len: usize, name: &str) -> Result<Units, UnitsError> {
        let mapped = size(len)?;
        let huge = huge_directories().into_iter().map(|directory| (directory.join(name), Memory::HugePages));
        let mut paths: Vec<_> = huge.collect();
        paths.push((Path::new("/dev/shm").join(name), Memory::Tmpfs));
        let mut left_behind = false;
        for (path, _) in &paths {
            left_behind |= clear(path)?;
        }
        let mut last = Err(UnitsError::Memory { bytes: mapped, error: io::ErrorKind::NotFound.into() });
        for (path, memory) in paths {
            match Units::create(len, mapped, &path, memory, left_behind) {
                // Usually there are too few pages.
                Err(UnitsError::File { path, error }) => last = Err(UnitsError::File { path, error }),
                made => return made,
            }
        }
        last
    }

    fn create(len: usize, mapped: usize, path: &Path, memory: Memory, left_behind: bool) -> Result<Units, UnitsError> {
        let failed = |error: rustix::io::Errno| UnitsError::File { path: path.to_owned(), error: error.into() };
        // Nobody else's, whatever name they guess.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(rustix::fs::CWD, path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(UnitsError::InUse(path.to_owned())),
            Err(why) => return Err(failed(why)),
        }
        match Units::map(&file, mapped) {
            Ok(base) => Units::new(base, len, mapped, memory, Some((path.to_owned(), file)), left_behind),
            Err(why) => {
                let _ = unlink(path);
                Err(failed(why))
            }
        }
    }

    /// Pages are had when this succeeds: a store never finds that there are none.
    fn map(file: &OwnedFd, mapped: usize) -> Result<*mut std::ffi::c_void, rustix::io::Errno> {
        ftruncate(file, mapped as u64)?;
        fallocate(file, FallocateFlags::empty(), 0, mapped as u64)?;
        // SAFETY: a new mapping at an address the kernel chooses.
        unsafe { mmap(std::ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file.as_fd(), 0) }
    }

    fn new(
        base: *mut std::ffi::c_void,
        len: usize,
        mapped: usize,
        memory: Memory,
        file: Option<(PathBuf, OwnedFd)>,
        left_behind: bool,
    ) -> Result<Units, UnitsError> {
        let base = NonNull::new(base.cast::<Unit>())
            .ok_or_else(|| UnitsError::Memory { bytes: mapped, error: io::Error::from(io::ErrorKind::OutOfMemory) })?;
        Ok(Units { base, len, mapped, memory, file, left_behind })
    }

    /// What it is made of.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Its file, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    /// A process that died had left its file behind; it was replaced.
    pub fn left_behind(&self) -> bool {
        self.left_behind
    }
}

impl Deref for Units {
    type Target = [Unit];

    #[inline(always)]
    fn deref(&self) -> &[Unit] {
        // SAFETY: `len` units were mapped, page aligned, for as long as self lives; all bytes are valid atomics; nobody but this
        // process maps the file (made by it, 0600), and if someone did: atomics may be shared.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        if let Some((path, _)) = &self.file {
            let _ = unlink(path);
        }
        // SAFETY: mapped by us with this length; references into it borrow self.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

fn size(len: usize) -> Result<usize, UnitsError> {
    let bytes = len.checked_mul(UNIT).and_then(|bytes| bytes.max(1).checked_next_multiple_of(HUGE));
    bytes.ok_or_else(|| UnitsError::Memory { bytes: usize::MAX, error: io::Error::from(io::ErrorKind::OutOfMemory) })
}

/// Removes what a process left at `path` when it died. Whether it left something. What somebody else put there is not looked at: it
/// must neither be used nor stop a start.
fn clear(path: &Path) -> Result<bool, UnitsError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match openat(rustix::fs::CWD, path, flags, Mode::empty()) {
        Ok(file) => Some(file),
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(_) => None,
    };
    let own = file.filter(|file| fstat(file).is_ok_and(|stat| stat.st_uid == geteuid().as_raw()));
    if let Some(own) = &own
        && flock(own, FlockOperation::NonBlockingLockExclusive) == Err(rustix::io::Errno::WOULDBLOCK)
    {
        return Err(UnitsError::InUse(path.to_owned()));
    }
    let _ = unlink(path); // if that fails, making ours will, and says why
    Ok(own.is_some())
}

/// Where file systems of 2 MiB pages are mounted.
fn huge_directories() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (_, directory, kind, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            let small_enough = options.split(',').any(|option| option == "pagesize=2M");
            (kind == "hugetlbfs" && small_enough).then(|| PathBuf::from(OsStr::new(directory)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn anonymous_units_are_zeros_and_apart() {
        let units = Units::anonymous(1000).unwrap();
        assert_eq!(units.len(), 1000);
        units[999].0[15].store(7, Relaxed);
        assert_eq!((units[999].0[15].load(Relaxed), units[998].0[15].load(Relaxed)), (7, 0));
        assert_eq!(&raw const units[1] as usize - &raw const units[0] as usize, 128);
    }

    #[test]
    fn a_file_has_one_user_and_goes_with_it() {
        let name = format!("butterfly-test-{}", std::process::id());
        let first = Units::file(10, &name).unwrap();
        assert!(!first.left_behind());
        let path = first.path().unwrap().to_owned();
        assert!(matches!(Units::file(10, &name), Err(UnitsError::InUse(at)) if at == path));
        first[3].0[0].store(1, Relaxed);
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_crash_left_is_replaced() {
        let name = format!("butterfly-test-left-{}", std::process::id());
        let path = Path::new("/dev/shm").join(&name);
        std::fs::write(&path, vec![1u8; 4096]).unwrap();
        let units = Units::file(10, &name).unwrap();
        assert!(units.left_behind());
        assert!(units.iter().all(|unit| unit.0.iter().all(|word| word.load(Relaxed) == 0)));
        // Where huge pages were had since, too.
        drop(units);
        assert!(!path.exists());
    }

    #[test]
    fn what_others_put_there_is_not_used() {
        let name = format!("butterfly-test-others-{}", std::process::id());
        let path = Path::new("/dev/shm").join(&name);
        for there in ["link", "file", "locked"] {
            let mut file = None;
            if there == "link" {
                std::os::unix::fs::symlink("/dev/shm/nowhere", &path).unwrap();
            } else {
                let made = std::fs::File::create(&path).unwrap();
                if std::os::unix::fs::fchown(&made, Some(65534), None).is_err() {
                    std::fs::remove_file(&path).unwrap();
                    continue; // not root
                }
                flock(&made, FlockOperation::NonBlockingLockExclusive).unwrap();
                file = (there == "locked").then_some(made);
            }
            let units = Units::file(10, &name).unwrap();
            let stat = fstat(&units.file.as_ref().unwrap().1).unwrap();
            assert_eq!((stat.st_uid, stat.st_mode & 0o777, units.left_behind()), (geteuid().as_raw(), 0o600, false), "{there}");
            drop((units, file));
        }
    }
}

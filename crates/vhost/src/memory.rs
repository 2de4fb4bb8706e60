//! Guest memory: shared by a front end, mapped and checked.
//!
//! A [`GuestMemory`] is immutable. When the front end changes its memory, a new table is built, and
//! unchanged mappings are shared. Rings move to it while no worker is inside a batch (see
//! [`crate::port`]).
//!
//! Guest memory is never a Rust reference, because the guest writes to it at any time. Outside this
//! module it is seen as a [`Span`], a raw pointer with a length that was checked against one
//! mapping.
//!
//! A region is mapped only if its file is large enough and lies on tmpfs (as a memfd does) or
//! hugetlbfs. On other file systems a page may wait for a disk or a network, and the worker with
//! it.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use rustix::{
    fs::{FileType, fstat, fstatfs},
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
};

use crate::{
    maps::{Maps, TooManyMaps},
    sigbus,
};

const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
const PAGE: u64 = 4096;

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// File systems that front ends were seen to use and that are refused, by the name an operator
/// knows.
///
/// Touching a page of theirs may wait for a disk or a network, or as long as a FUSE server likes.
/// The worker would wait.
const REFUSED_FILE_SYSTEMS: [(i64, &str); 13] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0x794c_7630, "overlayfs"),
    (0x8584_58f6, "ramfs"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x9fa0, "proc"),
];

/// A file system, in a message.
fn name_of(magic: &i64) -> String {
    match REFUSED_FILE_SYSTEMS.iter().find(|(known, _)| known == magic) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("a file system of type {magic:#x}"),
    }
}

/// Properties of a file that backs a shared mapping.
pub(crate) struct Backing {
    /// Size of the file in bytes.
    pub size: u64,
    /// Page size of a mapping of it.
    pub page: u64,
    /// The most bytes that one page fault makes the kernel provide. A tmpfs that was mounted with
    /// `huge=` says so as its preferred block size, and in no other way.
    pub fault: u64,
}

/// Reason why a file cannot back shared memory.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum BackingError {
    #[error(
        "is not backed by a regular file: use memory-backend-memfd, or memory-backend-file on tmpfs or hugetlbfs, with share=on"
    )]
    NotAFile,
    #[error(
        "lies on {}, that may make the switch wait: use memory-backend-memfd, or memory-backend-file on tmpfs (/dev/shm) or hugetlbfs",
        name_of(.0)
    )]
    FileSystem(i64),
    #[error("cannot be looked at: {0}")]
    Unknown(#[from] rustix::io::Errno),
}

impl Backing {
    /// Checks that a file can be mapped without surprises.
    pub fn of(file: BorrowedFd<'_>) -> Result<Backing, BackingError> {
        let stat = fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(BackingError::NotAFile);
        }
        let fs = fstatfs(file)?;
        // A memfd lies on one of the two.
        if ![TMPFS_MAGIC, HUGETLBFS_MAGIC].contains(&fs.f_type) {
            return Err(BackingError::FileSystem(fs.f_type));
        }
        // A hugetlbfs mapping starts and ends on its own page size.
        let page = if fs.f_type == HUGETLBFS_MAGIC {
            u64::try_from(fs.f_bsize).unwrap_or(PAGE).max(PAGE)
        } else {
            PAGE
        };
        let fault = u64::try_from(stat.st_blksize).unwrap_or(PAGE).max(page);
        Ok(Backing { size: u64::try_from(stat.st_size).unwrap_or(0), page, fault })
    }
}

/// Most bytes one guest may have mapped: eight times the host's memory, because memory that is
/// added on demand (virtio-mem) is announced before it is there. Without a limit one guest with a
/// sparse file could take all our addresses from the others.
fn largest_table() -> u64 {
    const AT_LEAST: u64 = 1 << 38;
    static LIMIT: OnceLock<u64> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        // SAFETY: sysconf only returns a number.
        let (pages, page) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        let memory =
            u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(page).unwrap_or(0));
        memory.saturating_mul(8).max(AT_LEAST)
    })
}

/// Most regions one table may have (VHOST_USER_MAX_RAM_SLOTS of QEMU on x86).
pub const MAX_REGIONS: usize = 509;

/// One region as the front end describes it (vhost-user: "memory region description").
#[derive(Debug)]
pub struct RegionSpec {
    /// Guest physical address of its first byte.
    pub guest_addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// Address of the first byte in the front end, in which ring addresses are given.
    pub user_addr: u64,
    /// Offset of the first byte in the file.
    pub mmap_offset: u64,
    /// The file that holds the memory.
    pub file: OwnedFd,
}

/// Reason for refusing a memory table.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum MemoryError {
    #[error("memory region at guest address {0:#x} is empty or wraps around the address space")]
    BadRange(u64),
    #[error("memory regions overlap at guest address {0:#x}")]
    Overlap(u64),
    #[error(
        "memory region at guest address {guest:#x} needs {needed} bytes of its file, which has {have}: the file is too small"
    )]
    FileTooSmall { guest: u64, needed: u64, have: u64 },
    #[error("memory region at guest address {guest:#x} {source}")]
    Backing { guest: u64, source: BackingError },
    #[error("{0} bytes of guest memory: at most {limit} are accepted on this host", limit = largest_table())]
    TooLarge(u64),
    #[error("{0} memory regions, at most {MAX_REGIONS} are supported")]
    TooMany(usize),
    #[error("no memory region with guest address {0:#x}, that size and user address")]
    NoSuchRegion(u64),
    #[error("cannot map the memory region at guest address {guest:#x}: {source}")]
    Map { guest: u64, source: rustix::io::Errno },
    #[error("cannot map the memory region at guest address {guest:#x}: {source}")]
    Maps { guest: u64, source: TooManyMaps },
}

/// A mapped file; unmapped when the last table that uses it is gone.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Offset of the region's first byte in the mapping.
    skip: usize,
    page: u64,
    fault: u64,
    guard: sigbus::Guard,
    /// Given back after it was unmapped.
    _counted: Maps,
}

// SAFETY: a mapping is an address range that stays valid until drop. All access to its contents
// goes through raw pointers and atomics, which make no claim of exclusive access.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard.release();
        // SAFETY: base and len are those of a mapping made in Mapping::new and nothing else unmaps
        // it. Spans into it are only used under the locks of rings whose setup holds the table that
        // holds this mapping, so none is in use now.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl Mapping {
    fn new(spec: &RegionSpec) -> Result<Mapping, MemoryError> {
        let guest = spec.guest_addr;
        let map_error = |source| MemoryError::Map { guest, source };
        let end = spec.mmap_offset.checked_add(spec.size).ok_or(MemoryError::BadRange(guest))?;
        let Backing { size: have, page, fault } = Backing::of(spec.file.as_fd())
            .map_err(|source| MemoryError::Backing { guest, source })?;
        if have < end {
            return Err(MemoryError::FileTooSmall { guest, needed: end, have });
        }
        let start = spec.mmap_offset / page * page;
        let len =
            (end - start).checked_next_multiple_of(page).ok_or(MemoryError::BadRange(guest))?;
        let len = usize::try_from(len).map_err(|_| MemoryError::BadRange(guest))?;
        let skip =
            usize::try_from(spec.mmap_offset - start).map_err(|_| MemoryError::BadRange(guest))?;
        let counted = Maps::take(1).map_err(|source| MemoryError::Maps { guest, source })?;
        // SAFETY: a new mapping at an address the kernel chooses: no existing memory is touched.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &spec.file,
                start,
            )
        }
        .map_err(map_error)?;
        let base =
            NonNull::new(base.cast::<u8>()).ok_or_else(|| map_error(rustix::io::Errno::NOMEM))?;
        // What a machine has in its memory is its own: not for a dump of ours. A kernel that has no
        // such advice has no dump of it either. SAFETY: the mapping was just made; the
        // advice changes no content.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxDontDump) };
        let guard = sigbus::Guard::new(base.as_ptr() as usize, len, page as usize);
        Ok(Mapping { base, len, skip, page, fault, guard, _counted: counted })
    }
}

/// A region of a table.
#[derive(Clone)]
struct Region {
    guest: u64,
    len: u64,
    user: u64,
    host: NonNull<u8>,
    mapping: Arc<Mapping>,
}

// SAFETY: `host` points into `mapping`, which is Send and Sync.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A contiguous, mapped piece of guest memory.
///
/// Valid while the table it came from lives. The bytes behind it change at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub ptr: NonNull<u8>,
    pub len: u32,
}

/// One region of a table, remembered by a ring that holds the table: most addresses are in the same
/// region as the one before.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    guest: u64,
    len: u64,
    host: NonNull<u8>,
}

impl Window {
    /// Holds nothing.
    pub const NONE: Window = Window { guest: 0, len: 0, host: NonNull::dangling() };

    /// The memory at a guest address, if all of it is in this region and it is not empty.
    #[inline(always)]
    pub fn whole(&self, guest_addr: u64, len: u32) -> Option<NonNull<u8>> {
        // Below the region wraps to a huge offset, which the comparison refuses too.
        let offset = guest_addr.wrapping_sub(self.guest);
        if len == 0 || offset >= self.len || self.len - offset < u64::from(len) {
            return None;
        }
        // SAFETY: offset + len <= self.len, all of which is mapped at host.
        Some(unsafe { self.host.add(offset as usize) })
    }
}

/// A region as the operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Guest physical address.
    pub guest_addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// Page size of its file in bytes.
    pub page_size: u64,
}

/// A guest's memory table.
#[derive(Clone, Default)]
pub struct GuestMemory {
    /// Sorted by guest address, without overlaps.
    regions: Vec<Region>,
}

impl fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.regions()).finish()
    }
}

impl GuestMemory {
    /// Maps a whole table (SET_MEM_TABLE).
    pub fn map(specs: Vec<RegionSpec>) -> Result<GuestMemory, MemoryError> {
        let mut memory = GuestMemory::default();
        for spec in specs {
            memory = memory.with_region(&spec)?;
        }
        Ok(memory)
    }

    /// This table with one region more (ADD_MEM_REG).
    pub fn with_region(&self, spec: &RegionSpec) -> Result<GuestMemory, MemoryError> {
        let guest = spec.guest_addr;
        let in_range = |start: u64| start.checked_add(spec.size).is_some();
        if spec.size == 0 || !in_range(guest) || !in_range(spec.user_addr) {
            return Err(MemoryError::BadRange(guest));
        }
        if self.regions.len() >= MAX_REGIONS {
            return Err(MemoryError::TooMany(self.regions.len() + 1));
        }
        let total = self.regions.iter().fold(spec.size, |sum, r| sum.saturating_add(r.len));
        if total > largest_table() {
            return Err(MemoryError::TooLarge(total));
        }
        let overlaps = |a: u64, alen: u64, b: u64, blen: u64| {
            a < b.saturating_add(blen) && b < a.saturating_add(alen)
        };
        if self.regions.iter().any(|r| overlaps(r.guest, r.len, guest, spec.size)) {
            return Err(MemoryError::Overlap(guest));
        }
        let mapping = Arc::new(Mapping::new(spec)?);
        // SAFETY: skip + size <= len of the mapping, by construction in Mapping::new.
        let host = unsafe { mapping.base.add(mapping.skip) };
        let region = Region { guest, len: spec.size, user: spec.user_addr, host, mapping };
        let mut regions = self.regions.clone();
        let at = regions.partition_point(|r| r.guest < guest);
        regions.insert(at, region);
        Ok(GuestMemory { regions })
    }

    /// This table without a region (REM_MEM_REG).
    pub fn without_region(
        &self,
        guest_addr: u64,
        user_addr: u64,
        size: u64,
    ) -> Result<GuestMemory, MemoryError> {
        let at = self
            .regions
            .iter()
            .position(|r| r.guest == guest_addr && r.user == user_addr && r.len == size)
            .ok_or(MemoryError::NoSuchRegion(guest_addr))?;
        let mut regions = self.regions.clone();
        regions.remove(at);
        Ok(GuestMemory { regions })
    }

    /// The regions, in order of guest addresses.
    pub fn regions(&self) -> impl Iterator<Item = RegionInfo> + '_ {
        self.regions.iter().map(|r| RegionInfo {
            guest_addr: r.guest,
            size: r.len,
            page_size: r.mapping.page,
        })
    }

    /// Pages of 4 KiB that one page fault in it may take, at most.
    pub(crate) fn pages_of_a_fault(&self) -> u64 {
        self.regions.iter().map(|region| region.mapping.fault / PAGE).max().unwrap_or(1).max(1)
    }

    /// Guest address of a front-end address, in which SET_VRING_ADDR speaks.
    pub fn user_to_guest(&self, user_addr: u64) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let offset = user_addr.checked_sub(r.user)?;
            if offset < r.len { r.guest.checked_add(offset) } else { None }
        })
    }

    /// True if a file became shorter than its mapping: the guest's memory is gone, zero pages took
    /// its place.
    pub fn poisoned(&self) -> bool {
        sigbus::any_poisoned() && self.regions.iter().any(|r| r.mapping.guard.poisoned())
    }

    /// True if all bytes from a guest address on are zero: `len` of them, or as many as are
    /// contiguous in one region.
    ///
    /// False if there are none. Takes a millisecond per megabyte: for control threads.
    pub(crate) fn is_blank(&self, guest_addr: u64, len: u32) -> bool {
        self.span(guest_addr, len, &mut 0).is_some_and(|span| {
            // SAFETY: all of the span is mapped while the table lives; what is read is looked at as
            // a number and no more.
            (0..span.len as usize).all(|at| unsafe { span.ptr.add(at).read_volatile() } == 0)
        })
    }

    /// The memory at a guest address: at least one and at most `len` bytes, as many as are
    /// contiguous in one region.
    ///
    /// `hint` is the caller's guess of the region, updated to the one that was found.
    #[inline]
    pub(crate) fn span(&self, guest_addr: u64, len: u32, hint: &mut usize) -> Option<Span> {
        if let Some(region) = self.regions.get(*hint)
            && let Some(span) = region.span(guest_addr, len)
        {
            return Some(span);
        }
        self.span_slow(guest_addr, len, hint)
    }

    #[cold]
    fn span_slow(&self, guest_addr: u64, len: u32, hint: &mut usize) -> Option<Span> {
        let at = self.regions.partition_point(|r| r.guest <= guest_addr).checked_sub(1)?;
        let span = self.regions.get(at)?.span(guest_addr, len)?;
        *hint = at;
        Some(span)
    }

    /// The region that holds a guest address.
    #[cold]
    pub(crate) fn window(&self, guest_addr: u64) -> Option<Window> {
        let at = self.regions.partition_point(|r| r.guest <= guest_addr).checked_sub(1)?;
        let region =
            self.regions.get(at).filter(|region| guest_addr - region.guest < region.len)?;
        Some(Window { guest: region.guest, len: region.len, host: region.host })
    }

    /// All of `len` bytes in one region, aligned to `align`: for rings, which are accessed in
    /// place.
    pub(crate) fn ring_span(&self, guest_addr: u64, len: u32, align: usize) -> Option<Span> {
        let span = self.span(guest_addr, len, &mut 0)?;
        (span.len == len && (span.ptr.as_ptr() as usize).is_multiple_of(align)).then_some(span)
    }
}

impl Region {
    #[inline]
    fn span(&self, guest_addr: u64, len: u32) -> Option<Span> {
        // Below the region wraps to a huge offset, which the comparison refuses too.
        let offset = guest_addr.wrapping_sub(self.guest);
        if offset >= self.len || len == 0 {
            return None;
        }
        let left = self.len - offset;
        let len = if u64::from(len) <= left { len } else { left as u32 };
        // SAFETY: offset < self.len, and host..host+len lies in the mapping.
        let ptr = unsafe { self.host.add(offset as usize) };
        Some(Span { ptr, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(size: u64) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, size).unwrap();
        fd
    }

    fn spec(guest_addr: u64, size: u64, file_size: u64) -> RegionSpec {
        RegionSpec {
            guest_addr,
            size,
            user_addr: guest_addr + 0x7000_0000,
            mmap_offset: 0,
            file: file(file_size),
        }
    }

    #[test]
    fn spans_end_with_their_region() {
        let memory =
            GuestMemory::map(vec![spec(0x1000, 0x1000, 0x1000), spec(0x2000, 0x1000, 0x1000)])
                .unwrap();
        let mut hint = 0;
        assert_eq!(memory.span(0x1ff0, 0x20, &mut hint).unwrap().len, 0x10);
        assert_eq!(memory.span(0x2000, 0x20, &mut hint).unwrap().len, 0x20);
        assert_eq!(hint, 1);
        for outside in [0, 0xfff, 0x3000, u64::MAX] {
            assert!(memory.span(outside, 1, &mut hint).is_none(), "{outside:#x}");
        }
        assert!(memory.span(0x1000, 0, &mut hint).is_none());
        assert_eq!(memory.user_to_guest(0x7000_1010), Some(0x1010));
        assert_eq!(memory.user_to_guest(0x7000_3000), None);
    }

    #[test]
    fn a_short_file_is_refused() {
        assert!(matches!(
            GuestMemory::map(vec![spec(0, 0x2000, 0x1fff)]),
            Err(MemoryError::FileTooSmall { .. })
        ));
    }

    #[test]
    fn overlaps_and_wrapping_ranges_are_refused() {
        let memory = GuestMemory::map(vec![spec(0x1000, 0x1000, 0x1000)]).unwrap();
        assert!(matches!(
            memory.with_region(&spec(0x1fff, 0x1000, 0x1000)),
            Err(MemoryError::Overlap(_))
        ));
        let wrapping = RegionSpec { guest_addr: u64::MAX - 10, ..spec(0, 0x1000, 0x1000) };
        assert!(matches!(memory.with_region(&wrapping), Err(MemoryError::BadRange(_))));
        let far = RegionSpec { mmap_offset: u64::MAX - 10, ..spec(0x5000, 0x1000, 0x1000) };
        assert!(matches!(memory.with_region(&far), Err(MemoryError::BadRange(_))));
    }

    #[test]
    fn a_byte_that_was_written_is_seen() {
        let written = RegionSpec { file: file(0x2000), ..spec(0x1000, 0x2000, 0) };
        rustix::io::pwrite(&written.file, &[1], 0x1fff).unwrap();
        let memory = GuestMemory::map(vec![written]).unwrap();
        assert!(
            memory.is_blank(0x1000, 0x1fff)
                && !memory.is_blank(0x1000, 0x2000)
                && !memory.is_blank(0x1000, u32::MAX)
        );
        assert!(!memory.is_blank(0x3000, 1), "nothing is there");
    }

    #[test]
    fn a_pipe_is_not_memory() {
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        let bad = RegionSpec { file: pipe, ..spec(0, 0x1000, 0x1000) };
        let refused = GuestMemory::map(vec![bad]);
        assert!(matches!(
            refused,
            Err(MemoryError::Backing { guest: 0, source: BackingError::NotAFile })
        ));
    }

    #[test]
    fn a_file_that_may_make_us_wait_is_refused() {
        // Like FUSE, procfs answers from the code of another program.
        let file = std::fs::File::open("/proc/self/maps").unwrap();
        let bad = RegionSpec { file: file.into(), ..spec(0, 0x1000, 0x1000) };
        let refused = GuestMemory::map(vec![bad]);
        assert!(matches!(
            refused,
            Err(MemoryError::Backing { guest: 0, source: BackingError::FileSystem(0x9fa0) })
        ));
    }

    #[test]
    fn a_file_on_a_disk_is_refused_by_the_name_of_its_file_system() {
        assert_eq!(name_of(&0xef53), "ext4");
        assert_eq!(name_of(&0x77), "a file system of type 0x77");
        // Cargo's directory is no tmpfs on any machine that builds us.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let magic = fstatfs(&file).unwrap().f_type;
        if magic == TMPFS_MAGIC {
            return; // a container may have nothing else
        }
        rustix::fs::ftruncate(&file, 0x1000).unwrap();
        let refused =
            GuestMemory::map(vec![RegionSpec { file: file.into(), ..spec(0, 0x1000, 0x1000) }])
                .unwrap_err()
                .to_string();
        let expected = format!(
            "lies on {}, that may make the switch wait: use memory-backend-memfd",
            name_of(&magic)
        );
        assert!(refused.contains(&expected), "{refused}");
    }

    /// A file on a tmpfs that uses pages of 2 MiB; `None` without the rights to mount one.
    fn of_large_pages() -> Option<OwnedFd> {
        use std::os::fd::{AsRawFd, FromRawFd};
        const SET_STRING: libc::c_uint = 1;
        const CREATE: libc::c_uint = 6;
        let none = std::ptr::null::<libc::c_char>();
        // SAFETY: all strings end with NUL; what is returned is a descriptor of ours, or none.
        unsafe {
            let owned = |fd| {
                i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
            };
            let fs = owned(libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 0))?;
            let (key, value) = (c"huge".as_ptr(), c"always".as_ptr());
            for (what, key, value) in [(SET_STRING, key, value), (CREATE, none, none)] {
                libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), what, key, value, 0);
            }
            let root = owned(libc::syscall(libc::SYS_fsmount, fs.as_raw_fd(), 0, 0))?;
            let how = libc::O_RDWR | libc::O_CREAT;
            owned(libc::openat(root.as_raw_fd(), c"memory".as_ptr(), how, 0o600).into())
        }
    }

    /// The place of the file decides how much the kernel clears for one page fault.
    #[test]
    fn a_fault_takes_a_page_of_its_file() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        const SIZE: u64 = 4 << 20;
        let pages = |file: OwnedFd| {
            ftruncate(&file, SIZE).unwrap();
            let large = RegionSpec { file, ..spec(0, SIZE, 0x1000) };
            let small = spec(SIZE, 0x1000, 0x1000);
            GuestMemory::map(vec![large, small]).unwrap().pages_of_a_fault()
        };
        assert_eq!(GuestMemory::default().pages_of_a_fault(), 1);
        assert_eq!(pages(file(SIZE)), 1);
        let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        assert_eq!(pages(memfd_create("huge", huge).unwrap()), 512);
        if let Some(file) = of_large_pages() {
            assert_eq!(pages(file), 512);
        }
    }

    #[test]
    fn a_sparse_file_cannot_take_all_addresses() {
        let size = largest_table() / 2 + 0x1000;
        let memory = GuestMemory::map(vec![spec(0, size, size)]).unwrap();
        assert!(matches!(
            memory.with_region(&spec(size, size, size)),
            Err(MemoryError::TooLarge(_))
        ));
    }

    #[test]
    fn a_region_can_be_removed_only_as_it_was_added() {
        let memory = GuestMemory::map(vec![spec(0x1000, 0x1000, 0x1000)]).unwrap();
        assert!(memory.without_region(0x1000, 0x1000, 0x1000).is_err());
        assert_eq!(
            memory.without_region(0x1000, 0x7000_1000, 0x1000).unwrap().regions().count(),
            0
        );
    }
}

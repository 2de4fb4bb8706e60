//! The socket files of ipc endpoints.

use rustix::{
    fs::{Mode, OFlags, fstat, open as open_at},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};
use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Makes way for a socket: removes one that no process serves. Refuses one that is served, and a
/// file that is no socket.
pub(super) fn make_free(path: &Path) -> io::Result<()> {
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(Errno::NOTSOCK.into());
    }
    // Where somebody listens and accepts nobody, a connect that may sleep does so for ever.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        // No process listens: it died without cleaning up.
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::ACCESS | Errno::PERM) => Err(Errno::ACCESS.into()),
        _ => Err(Errno::ADDRINUSE.into()),
    }
}

/// Returns a path of our own for an endpoint that names none, in a directory that no other user
/// enters.
pub(super) fn free_path() -> io::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let directory =
        std::env::temp_dir().join(format!("butterfly-{:016x}", u64::from_ne_bytes(random)));
    fs::DirBuilder::new().mode(0o700).create(&directory)?;
    Ok(directory.join("socket"))
}

/// The file of a socket we listen on; dropped, it is removed if it is still ours.
pub(super) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
    /// True if it stays.
    left: AtomicBool,
}

impl SocketFile {
    pub(super) fn of(path: PathBuf) -> Option<Self> {
        let inode = inode(&path)?;
        Some(Self { path, inode, left: AtomicBool::new(false) })
    }

    /// The file that a process before had [opened](open), if it is still the one at that path.
    pub(super) fn kept(path: PathBuf, kept: &OwnedFd) -> Option<Self> {
        let kept = fstat(kept).ok()?;
        Self::of(path).filter(|found| found.inode == (kept.st_dev, kept.st_ino))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Has it stay when this is dropped.
    pub(super) fn leave(&self) {
        self.left.store(true, Relaxed);
    }
}

/// Opens the file of a socket, for nothing but to know it again.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open_at(path, flags, Mode::empty())?)
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.left.load(Relaxed) && inode(&self.path) == Some(self.inode) {
            // If it cannot be removed, the next start replaces it.
            let _ = fs::remove_file(&self.path);
            if let Some(directory) =
                self.path.parent().filter(|directory| is_of_free_path(directory))
            {
                let _ = fs::remove_dir(directory);
            }
        }
    }
}

/// True if it is a path that [`free_path`] made.
pub(super) fn is_free_path(path: &Path) -> bool {
    path.parent().is_some_and(is_of_free_path)
}

/// True if it is a directory that [`free_path`] made.
fn is_of_free_path(directory: &Path) -> bool {
    let name = directory.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    directory.parent() == Some(&std::env::temp_dir())
        && name.strip_prefix("butterfly-").is_some_and(|rest| rest.len() == 16)
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()))
}

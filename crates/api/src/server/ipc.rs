//! The socket files of ipc endpoints.

use rustix::io::Errno;
use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

/// Makes way for a socket: removes one that no process serves. Refuses one that is served, and a
/// file that is no socket.
pub(super) fn make_free(path: &Path) -> io::Result<()> {
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(Errno::NOTSOCK.into());
    }
    match UnixStream::connect(path) {
        // No process listens: it died without cleaning up.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Errno::ACCESS.into()),
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
}

impl SocketFile {
    pub(super) fn of(path: PathBuf) -> Option<Self> {
        let inode = inode(&path)?;
        Some(Self { path, inode })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path) == Some(self.inode) {
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

/// True if it is a directory that [`free_path`] made.
fn is_of_free_path(directory: &Path) -> bool {
    let name = directory.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    directory.parent() == Some(&std::env::temp_dir())
        && name.strip_prefix("butterfly-").is_some_and(|rest| rest.len() == 16)
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()))
}

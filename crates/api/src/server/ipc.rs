//! What ZeroMQ leaves to us about the socket files of ipc endpoints.

use std::{
    io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

/// The path of an ipc endpoint in the file system.
fn path(endpoint: &str) -> Option<&Path> {
    let path = endpoint.strip_prefix("ipc://")?;
    // An abstract name and the wildcard are no paths.
    (!path.starts_with('@') && path != "*").then_some(Path::new(path))
}

/// Refuses an ipc endpoint whose path is served or is not a socket.
pub(super) fn check_replaceable(endpoint: &str) -> Result<(), zmq::Error> {
    let Some(path) = path(endpoint) else { return Ok(()) };
    let Ok(found) = path.symlink_metadata() else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(zmq::Error::ENOTSOCK);
    }
    match UnixStream::connect(path) {
        // Nobody listens: its process died without cleaning up.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(zmq::Error::EACCES),
        _ => Err(zmq::Error::EADDRINUSE),
    }
}

/// The file of a socket we listen on; dropped, it is removed if it is still ours.
pub(super) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    pub(super) fn of(endpoint: &str) -> Option<Self> {
        let path = path(endpoint)?.to_owned();
        let inode = inode(&path)?;
        Some(Self { path, inode })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path) == Some(self.inode) {
            // If it cannot be removed, the next start replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()))
}

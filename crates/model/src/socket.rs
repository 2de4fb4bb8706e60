//! Paths of the vhost-user sockets.

use crate::nic_id::NicId;
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Bytes of a path that fit a `sockaddr_un` beside the final zero (unix(7)).
const LONGEST: usize = 107;

/// Directory of the sockets.
///
/// ```
/// use butterfly_model::{NicId, SocketDir};
/// let directory = SocketDir::new("/run/butterfly".into());
/// let socket = directory.socket(&NicId::new("vm-1").unwrap())?;
/// assert!(socket.path().starts_with(directory.path()));
/// # Ok::<(), butterfly_model::SocketPathError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketDir(PathBuf);

/// A path that fits a Unix socket: absolute, without a zero byte, not too long.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SocketPath(PathBuf);

/// Error of a path that no Unix socket can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketPathError {
    /// Longer than the system takes.
    #[error(
        "socket path {path:?} is refused: it has {length} bytes and at most {LONGEST} fit; \
         use a shorter nic id, path or socket directory"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// A relative path: the daemon's working directory must not matter.
    #[error("socket path {0:?} is refused: it must start with a /")]
    Relative(PathBuf),
    /// The system would cut it there, or end a line.
    #[error("socket path {0:?} is refused: it has a control character in it")]
    Control(PathBuf),
    /// A path with nothing after the last slash.
    #[error("socket path {0:?} is refused: it names no file")]
    NoFile(PathBuf),
}

impl SocketDir {
    /// Takes the directory at `path`, which has to be absolute and free of symbolic links: paths
    /// for clients are made of it.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the socket of the vnic `id`, unless it has a path of its own. Fails if the path is
    /// too long for a Unix socket.
    pub fn socket(&self, id: &NicId) -> Result<SocketPath, SocketPathError> {
        SocketPath::new(&self.0.join(format!("qemu-vhost-{id}")))
    }
}

impl SocketPath {
    /// Checks `path`. Fails as [`SocketPathError`] lists.
    pub fn new(path: &Path) -> Result<Self, SocketPathError> {
        let refused = |error: fn(PathBuf) -> SocketPathError| Err(error(path.to_owned()));
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.first() != Some(&b'/') {
            refused(SocketPathError::Relative)
        } else if bytes.iter().any(u8::is_ascii_control) {
            refused(SocketPathError::Control)
        } else if bytes.last() == Some(&b'/') || path.file_name().is_none() {
            refused(SocketPathError::NoFile)
        } else if bytes.len() > LONGEST {
            Err(SocketPathError::TooLong { path: path.to_owned(), length: bytes.len() })
        } else {
            Ok(Self(path.to_owned()))
        }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_named_after_its_nic() {
        let directory = SocketDir::new("/run/butterfly".into());
        let socket = directory.socket(&NicId::new("nic-1").unwrap()).unwrap();
        assert_eq!(socket.path(), "/run/butterfly/qemu-vhost-nic-1");
    }

    #[test]
    fn a_hundred_and_seven_bytes_fit() {
        let fits = format!("/{}", "x".repeat(106));
        assert_eq!(SocketPath::new(Path::new(&fits)).unwrap().path(), fits.as_str());
        let error = SocketPath::new(Path::new(&format!("{fits}x"))).unwrap_err();
        assert!(error.to_string().contains("it has 108 bytes and at most 107 fit"), "{error}");
    }

    #[test]
    fn what_is_no_path_of_a_socket_is_refused() {
        for (path, expected) in [
            ("", "must start with a /"),
            ("x", "must start with a /"),
            ("./x", "must start with a /"),
            ("/a\0b", "control character"),
            ("/a\nb", "control character"),
            ("/", "names no file"),
            ("/x/", "names no file"),
            ("/x/..", "names no file"),
        ] {
            let error = SocketPath::new(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(expected), "{path:?}: {error}");
        }
    }
}

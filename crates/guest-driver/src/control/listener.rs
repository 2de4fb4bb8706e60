//! A socket that the switch connects to.

use std::{
    io,
    os::unix::{fs::FileTypeExt, net::UnixListener},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::io::retry_on_intr;

use crate::control::{Connection, error::ControlError};

/// A socket the switch connects to, as with QEMU's `server=on`. Removed when dropped.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, replacing a socket left there (but no other file).
    pub fn bind(path: impl Into<PathBuf>) -> Result<Listener, ControlError> {
        let path = path.into();
        if std::fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket()) {
            let _ = std::fs::remove_file(&path);
        }
        let failed = |source| ControlError::Socket { path: Some(path.clone()), source };
        let listener = UnixListener::bind(&path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Listener { listener, path })
    }

    /// Returns the path on which it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the switch to connect.
    pub fn accept(&self, timeout: Duration) -> Result<Connection, ControlError> {
        let failed = |source| ControlError::Socket { path: Some(self.path.clone()), source };
        let mut fds = [rustix::event::PollFd::new(&self.listener, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let ready = retry_on_intr(|| rustix::event::poll(&mut fds, Some(&limit)));
        if ready.map_err(|e| failed(e.into()))? == 0 {
            return Err(failed(io::Error::new(io::ErrorKind::TimedOut, "nobody connected")));
        }
        let (stream, _) = self.listener.accept().map_err(failed)?;
        stream.set_nonblocking(false).map_err(failed)?;
        Connection::new(stream)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

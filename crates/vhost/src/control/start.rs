//! Errors of starting a device.

use std::{io, path::PathBuf};

use super::socket::MAX_PATH;
use crate::maps::TooManyMaps;

/// Reason why a device could not be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum StartError {
    #[error("the socket path {} has {len} bytes; at most {MAX_PATH} are possible: use a shorter socket directory or id", path.display())]
    PathTooLong { path: PathBuf, len: usize },
    #[error("somebody listens on {} already: stop that program, or use another path", .0.display())]
    InUse(PathBuf),
    #[error("{} exists and is not a socket: remove it, or use another path", .0.display())]
    NotASocket(PathBuf),
    #[error("cannot {what} {}: {source}", path.display())]
    Socket { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot start a control thread: {0}")]
    Maps(#[from] TooManyMaps),
    #[error(
        "cannot start a control thread: {0}; look at the limits of processes, memory and open files"
    )]
    Thread(io::Error),
    #[error(
        "the kernel refuses asynchronous I/O, by which guests are interrupted: {0}; raise the sysctl fs.aio-max-nr, and allow io_setup and io_submit in a sandbox"
    )]
    NoSignaller(io::Error),
    #[error("the state of the device is not usable: {0}")]
    State(String),
}

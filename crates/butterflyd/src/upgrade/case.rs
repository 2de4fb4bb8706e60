//! The case that a program is proved on: copies of all that it finds when it goes on.
//!
//! The text is JSON, as another release reads it. Fields are only ever added.

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::OwnedFd,
    path::PathBuf,
};

/// Most bytes of a case.
const LARGEST: u64 = 1 << 30;

/// Copies of what a daemon leaves.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Case {
    /// Words of its command line, without the name of the program.
    pub words: Vec<Vec<u8>>,
    /// Layout of all that is kept; 0 if that is not told.
    pub layout: u32,
    /// Version of the packets that the daemon and its holder speak.
    pub holder: u32,
    /// Directory of what outlasts the daemon.
    pub state_dir: PathBuf,
    /// Folder of the sockets.
    pub socket_dir: PathBuf,
    /// Endpoints of the API as they are configured, and the address of the metrics: who asks has
    /// them.
    pub listens: Vec<String>,
    /// Directory with a copy of the store.
    pub store: PathBuf,
    /// The declaration, as a request `apply`.
    pub declaration: Vec<u8>,
    /// States of front ends, by the vnic's id.
    pub front_ends: BTreeMap<String, Vec<u8>>,
    /// Texts of the checkpoint, in its order.
    pub checkpoint: Vec<Vec<u8>>,
    /// File of the sessions.
    pub sessions: Option<PathBuf>,
    /// True if the daemon has its uplink: who goes on has to get it, too.
    pub uplink_is_open: bool,
}

impl Case {
    /// A file with its text, to be read from the beginning.
    pub fn file(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("butterfly-case", MemfdFlags::CLOEXEC)?);
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        file.write_all(&text)?;
        file.rewind()?;
        Ok(file.into())
    }

    /// Reads one.
    pub fn read(from: impl Read) -> io::Result<Case> {
        let mut text = Vec::new();
        from.take(LARGEST).read_to_end(&mut text)?;
        serde_json::from_slice(&text).map_err(io::Error::other)
    }
}

//! The holder, which outlasts this process, and parts of our state that it keeps for a successor.

use crate::host::time::seconds_since_epoch;
use butterfly_api::server::{Kept, Listening, Server};
use butterfly_datapath::Hold;
use butterfly_holder::{
    client::{self, Held, Inventory, Lease, LeaseError, start_if_absent},
    protocol::{FILE, LISTEN, PROGRAM, PROGRAM_BYTES},
};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create},
    net::getsockname,
};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, Write},
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tracing::warn;

/// Beginning of the name of a part on which the API is listened for; its endpoint follows.
const API: &str = "api:";
/// Name of the part on which metrics are.
const METRICS: &str = "metrics";

/// Most bytes of a part.
const LARGEST: u64 = 256 << 20;
/// Name of the part with the number of the layout of the others.
const LAYOUT: &str = "layout";

/// The service that this process is one of, if processes go on for each other.
#[derive(Clone, Debug)]
pub struct Service {
    /// Start of its first process, in seconds since the epoch.
    pub start_date: u64,
    /// Number of processes that went on for one that ended.
    pub restarts: u64,
    /// Account of what this process took over, if it went on for another one.
    pub resumed: Option<String>,
    /// Time for which traffic stood still before.
    pub stood_still: Duration,
    /// Most frames of which copies may have come twice by that.
    pub may_come_again: u64,
}

/// The process that holds what outlasts this one.
#[derive(Clone, Debug)]
pub struct HolderProcess {
    /// Its number, if known.
    pub pid: Option<u32>,
    /// The file with the version of its program, if it gave that.
    version_file: Option<Arc<File>>,
    /// Its start, in seconds since the epoch.
    pub start_date: u64,
}

impl HolderProcess {
    /// Version of its program, if it told that: another one when it has become another program.
    pub fn version(&self) -> Option<String> {
        let mut bytes = [0; PROGRAM_BYTES];
        let length = self.version_file.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(bytes.get(..length)?).ok()?;
        Some(text.trim_end_matches('\0').to_owned())
    }
}

/// A part of our state that the holder keeps.
pub struct Part {
    lease: Arc<Lease>,
    name: &'static str,
}

impl Part {
    /// Has these bytes kept, in place of those before. A successor finds these or those, whole.
    pub fn keep(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create(self.name, flags)?);
        file.write_all(bytes)?;
        let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, all)?;
        self.lease.deposit(self.name, file.as_fd())
    }
}

/// The lease of the holder, and what it kept.
pub struct Holding {
    lease: Arc<Lease>,
    parts: BTreeMap<String, OwnedFd>,
    /// The holder.
    pub holder: HolderProcess,
    /// Number of this process among those that had the lease, from 1.
    pub term: u64,
    /// Time for which nobody had the lease before.
    pub gap: Duration,
}

impl Holding {
    /// Takes the lease of the holder in a state directory, which is started if there is none.
    /// Returns it with the vnics that are held.
    pub fn take_lease(state: &Path) -> Result<(Holding, BTreeMap<String, Held>), LeaseError> {
        let exe = std::env::current_exe().map_err(LeaseError::Start)?;
        start_if_absent(state, &exe)?;
        let (lease, inventory) = Lease::take(state)?;
        let Inventory { holder: pid, up, term, gap, parts, vnics, .. } = inventory;
        let start_date = seconds_since_epoch(SystemTime::now()).saturating_sub(up.as_secs());
        let holder = HolderProcess { pid, version_file: None, start_date };
        let mut holding = Holding { lease: Arc::new(lease), parts, holder, term, gap };
        holding.take_layout();
        // One of the first releases did not give it.
        holding.holder.version_file = holding.take_file(PROGRAM).map(|file| Arc::new(file.into()));
        Ok((holding, vnics))
    }

    /// Puts the layout in force in which the process before wrote. One of the first release did not
    /// say it. Of one that is not known here, nothing is read.
    fn take_layout(&mut self) {
        let told = self.take(LAYOUT).ok().flatten();
        let layout = match told {
            Some(told) => std::str::from_utf8(&told).ok().and_then(|told| told.parse().ok()),
            None => (self.term > 1).then_some(butterfly_layout::FIRST),
        };
        layout.map(butterfly_layout::put_in_force);
    }

    /// Has the layout in force kept.
    pub fn keep_layout(&self) -> io::Result<()> {
        self.keep(LAYOUT, butterfly_layout::in_force().to_string().as_bytes())
    }

    /// Gives the switch its part.
    pub fn hold(&mut self, vnics: BTreeMap<String, Held>) -> Hold {
        Hold::new(self.lease.clone(), vnics, &mut self.parts)
    }

    /// The lease.
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Has bytes kept under a name, in place of those before. A successor finds these or those,
    /// whole.
    pub fn keep(&self, name: &'static str, bytes: &[u8]) -> io::Result<()> {
        self.part(name).keep(bytes)
    }

    /// Returns the part with a name, to be kept by others.
    pub fn part(&self, name: &'static str) -> Part {
        Part { lease: self.lease.clone(), name }
    }

    /// Has a file kept under a name, in place of the one before.
    pub fn keep_file(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        self.lease.deposit(name, file)
    }

    /// Has a file kept that goes when everything ends.
    pub fn keep_until_the_end(&self, path: &Path) -> io::Result<()> {
        self.lease.deposit(&of_file(path), File::open(path)?.as_fd())
    }

    /// Takes the sockets on which a process before listened.
    pub fn take_listeners(&mut self) -> Listeners {
        let is_listener = |name: &String| name.starts_with(LISTEN);
        let names: Vec<String> =
            self.parts.keys().filter(|name| is_listener(name)).cloned().collect();
        let mut taken = Listeners { api: BTreeMap::new(), metrics: None, others: Vec::new() };
        for name in names {
            let Some(socket) = self.parts.remove(&name) else { continue };
            let what = name.strip_prefix(LISTEN).unwrap_or_default();
            if let Some(endpoint) = what.strip_prefix(API) {
                let path = path_of(&socket);
                let file = path.and_then(|path| self.parts.remove(&of_file(&path)));
                taken.api.insert(endpoint.to_owned(), Kept { socket, file });
            } else if what == METRICS {
                taken.metrics = Some(socket);
            } else {
                taken.others.push(name);
            }
        }
        taken
    }

    /// Returns what keeps sockets on which this process listens.
    pub fn listeners(&self) -> KeepListeners {
        KeepListeners(self.lease.clone())
    }

    /// Has what is kept under a name let go.
    pub fn withdraw(&self, name: &str) {
        if let Err(why) = self.lease.withdraw(name) {
            warn!("the holder goes on keeping {name}: {why}");
        }
    }

    /// A file that a process before kept under a name.
    pub fn take_file(&mut self, name: &str) -> Option<OwnedFd> {
        self.parts.remove(name)
    }

    /// Bytes that a process before kept under a name.
    pub fn take(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(file) = self.parts.remove(name) else { return Ok(None) };
        let size = fstat(&file)?.st_size;
        if u64::try_from(size).map_or(true, |size| size > LARGEST) {
            return Err(io::Error::other(format!("{name} has {size} bytes")));
        }
        let mut file = File::from(file);
        file.rewind()?;
        let mut bytes = Vec::new();
        file.take(LARGEST).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }
}

/// Has the holder of a state directory become this program. Returns a line that says so.
pub fn upgrade_holder(state: &Path) -> Result<String, client::UpgradeError> {
    let process = client::upgrade(state)?.map(|pid| format!(" (process {pid})"));
    let (process, version) = (process.unwrap_or_default(), butterfly_version::VERSION);
    Ok(format!("the holder in {}{process} is butterflyd {version} now", state.display()))
}

/// Has machines stay connected until another daemon comes, as this one cannot begin. Returns
/// whether there are any that would be cut off.
pub fn stay(directories: impl IntoIterator<Item = PathBuf>) -> bool {
    directories.into_iter().filter(|directory| client::stay(directory).is_ok()).count() > 0
}

/// Returns the name of the part that is the file at a path.
fn of_file(path: &Path) -> String {
    format!("{FILE}{}", path.display())
}

/// Returns the path of a Unix socket that has one.
fn path_of(socket: &OwnedFd) -> Option<PathBuf> {
    let address = rustix::net::SocketAddrUnix::try_from(getsockname(socket).ok()?).ok()?;
    Some(PathBuf::from(address.path()?.to_str().ok()?))
}

/// Sockets on which a process before listened.
pub struct Listeners {
    /// Those of the API, by endpoint. What is left is not wanted any more.
    pub api: BTreeMap<String, Kept>,
    /// The one of the metrics.
    pub metrics: Option<OwnedFd>,
    /// Names of what this release does not know.
    others: Vec<String>,
}

impl Listeners {
    /// Closes what was not taken, also in the holder.
    pub fn let_go(mut self, holding: &Holding) {
        let mut names = self.others;
        for (endpoint, kept) in std::mem::take(&mut self.api) {
            names.extend(path_of(&kept.socket).as_deref().map(of_file));
            names.push(format!("{LISTEN}{API}{endpoint}"));
            Server::remove_file(&endpoint, kept);
        }
        if self.metrics.take().is_some() {
            names.push(format!("{LISTEN}{METRICS}"));
        }
        for name in names {
            holding.withdraw(&name);
        }
    }
}

/// Keeps sockets on which this process listens.
#[derive(Clone)]
pub struct KeepListeners(Arc<Lease>);

impl KeepListeners {
    /// Keeps one of the API.
    pub fn keep_api(&self, it: Listening<'_>) {
        let name = format!("{LISTEN}{API}{}", it.asked);
        // The file first: without it the socket is of no use to a successor.
        let file = it.file().and_then(|file| match (it.path, file) {
            (Some(path), Some(file)) => self.0.deposit(&of_file(path), file.as_fd()),
            _ => Ok(()),
        });
        not_kept(it.bound, file.and_then(|()| self.0.deposit(&name, it.socket)));
    }

    /// Keeps the one of the metrics, in place of the one before.
    pub fn keep_metrics(&self, address: SocketAddr, socket: BorrowedFd<'_>) {
        let kept = self.0.deposit(&format!("{LISTEN}{METRICS}"), socket);
        not_kept(&address.to_string(), kept);
    }

    /// Says that metrics are not served any more.
    pub fn without_metrics(&self) {
        not_kept("metrics", self.0.withdraw(&format!("{LISTEN}{METRICS}")));
    }
}

/// Says that a socket is not kept, if so.
fn not_kept(name: &str, kept: io::Result<()>) {
    if let Err(why) = kept {
        warn!("who listens on {name} after this process is open, as the holder refuses: {why}");
    }
}

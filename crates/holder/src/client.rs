//! The daemon's side: the lease with what was held, and a channel for each vnic.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use butterfly_point::{Point, pass};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        sockopt::socket_peercred,
    },
    process::{PidfdFlags, pidfd_open},
};

use crate::protocol::{self, Answer, MAX_KEPT, Order, REMEDY, Received, VERSION, Word};

pub use crate::protocol::{Name, Role};

/// Time for an answer of the holder, which waits for nothing but the end of the daemon before.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for a holder to become another program: it proves that program, and waits for a daemon.
const UPGRADE: Duration = Duration::from_secs(20);
/// Time for a new holder to listen.
const START: Duration = Duration::from_secs(5);

/// Reason for which a daemon has no lease.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum LeaseError {
    #[error(
        "another daemon (process {0}) uses this state: stop it, or use another state directory"
    )]
    Busy(u32),
    #[error("the holder at {path} refuses: {why}")]
    Refused { path: PathBuf, why: String },
    #[error("the holder at {path} cannot be reached: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("a holder cannot be started: {0}")]
    Start(io::Error),
}

/// A vnic's front end as a dead daemon left it.
#[derive(Debug)]
pub struct Former {
    /// The state that the daemon gave.
    pub state: Vec<u8>,
    /// A copy of the connection. While one is there, the front end does not notice that the holder
    /// is gone.
    pub connection: OwnedFd,
    /// Descriptors that the state names.
    pub files: Vec<(Name, OwnedFd)>,
}

/// A vnic that is held.
#[derive(Debug)]
pub struct Held {
    /// Number of its declaration.
    pub birth: u64,
    /// The side that owns the socket.
    pub role: Role,
    /// The socket.
    pub path: PathBuf,
    /// The way to its front ends.
    pub channel: Channel,
    /// The front end that is there, if its state is known.
    pub former: Option<Former>,
}

/// Everything that was held when the lease began.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Process of the holder, if known.
    pub holder: Option<u32>,
    /// Number of the lease, from 1.
    pub term: u64,
    /// Leases that ended without a word.
    pub crashes: u64,
    /// Time since the holder started.
    pub up: Duration,
    /// Time since the last lease ended; zero for the first one.
    pub gap: Duration,
    /// Descriptors that were deposited, by name.
    pub parts: BTreeMap<String, OwnedFd>,
    /// Vnics by id.
    pub vnics: BTreeMap<String, Held>,
}

/// The right to everything that the holder has. It ends with this process, or when it is dropped.
#[derive(Debug)]
pub struct Lease {
    socket: Mutex<OwnedFd>,
    path: PathBuf,
}

/// Path of the holder's socket in a state directory.
pub fn socket_path(state: &Path) -> PathBuf {
    state.join("holder")
}

fn dial(path: &Path) -> io::Result<OwnedFd> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Returns the process that listens at the other end.
fn peer(socket: &OwnedFd) -> Option<u32> {
    let peer = socket_peercred(socket).ok()?;
    Some(peer.pid.as_raw_nonzero().get().unsigned_abs())
}

/// Starts a holder in a state directory, by the program `exe`, if none answers there.
pub fn start_if_absent(state: &Path, exe: &Path) -> Result<(), LeaseError> {
    let path = socket_path(state);
    if dial(&path).is_ok() {
        return Ok(());
    }
    let status = Command::new(exe)
        .arg(crate::HOLD)
        .arg(state)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(LeaseError::Start)?;
    if !status.success() {
        return Err(LeaseError::Start(io::Error::other(format!("it ended with {status}"))));
    }
    let begun = Instant::now();
    loop {
        match dial(&path) {
            Ok(_) => return Ok(()),
            Err(source) if begun.elapsed() > START => return Err(LeaseError::Io { path, source }),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Waits until a packet is there.
fn wait(socket: &OwnedFd, until: Instant) -> io::Result<()> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn answer(socket: &OwnedFd, until: Instant) -> io::Result<(Answer, Vec<OwnedFd>)> {
    loop {
        match protocol::receive(socket)? {
            Received::Packet(answer, files) => return Ok((answer, files)),
            Received::Nothing => wait(socket, until)?,
            Received::End => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

fn unexpected<T>() -> io::Result<T> {
    let why = format!("what it says is not understood, as it is of another release: {REMEDY}");
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// Has everything held until a daemon comes, as the one that was to go on cannot begin. An error if
/// nothing is held, or the holder does not know that word.
pub fn stay(state: &Path) -> io::Result<()> {
    let socket = dial(&socket_path(state))?;
    protocol::send(&socket, &Order::Stay, &[])?;
    match answer(&socket, Instant::now() + START)?.0 {
        Answer::Done => Ok(()),
        Answer::Refused { why } => Err(io::Error::other(why)),
        _ => unexpected(),
    }
}

/// Reason for which a holder did not become this program, with what that means for machines.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum UpgradeError {
    #[error("no holder listens in {0}: name the state directory of the daemon (state-dir)")]
    NoHolder(PathBuf),
    #[error(
        "the holder in {0} is gone: machines stay connected until the daemon ends; restart it when that is convenient"
    )]
    Gone(PathBuf),
    #[error(
        "the holder in {0} cannot be asked by this user: run this as root, or as the holder's user"
    )]
    NotAllowed(PathBuf),
    #[error("the holder in {directory} goes on as before, and no machine noticed: {why}")]
    Refused { directory: PathBuf, why: String },
    #[error(
        "THE HOLDER IN {0} ENDED: machines run on until the daemon ends; restart it when they may lose their network for a moment"
    )]
    Ended(PathBuf),
    #[error(
        "the holder in {0} hung up: see butterfly show; if it says that the holder is gone, restart the daemon when that \
         is convenient; if not, the holder is of a release that cannot become another program, and goes on"
    )]
    HungUp(PathBuf),
    #[error(
        "the holder in {directory} did not say in time whether it became this program, see butterfly show: {source}"
    )]
    Silent { directory: PathBuf, source: io::Error },
}

/// Has the holder in a state directory become this program, which goes on with everything. Waits
/// until it did. Returns its process, if known.
pub fn upgrade(state: &Path) -> Result<Option<u32>, UpgradeError> {
    let directory = || state.to_owned();
    let silent = |source| UpgradeError::Silent { directory: directory(), source };
    let socket = dial(&socket_path(state)).map_err(|why| match why.kind() {
        io::ErrorKind::NotFound => UpgradeError::NoHolder(directory()),
        io::ErrorKind::ConnectionRefused => UpgradeError::Gone(directory()),
        io::ErrorKind::PermissionDenied => UpgradeError::NotAllowed(directory()),
        _ => silent(why),
    })?;
    let process = socket_peercred(&socket).ok();
    let process = process.and_then(|peer| pidfd_open(peer.pid, PidfdFlags::empty()).ok());
    let own = File::open("/proc/self/exe").map_err(silent)?;
    protocol::send(&socket, &Order::Upgrade, &[own.as_fd()]).map_err(|why| silent(why.into()))?;
    match answer(&socket, Instant::now() + UPGRADE) {
        Ok((Answer::Done, _)) => Ok(peer(&socket)),
        Ok((Answer::Refused { why }, _)) => {
            Err(UpgradeError::Refused { directory: directory(), why })
        }
        Ok(_) => unexpected().map_err(silent),
        Err(why) if why.kind() == io::ErrorKind::ConnectionAborted => {
            let moment = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            let has_ended = process.is_some_and(|process| {
                poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&moment)) == Ok(1)
            });
            Err(match has_ended {
                true => UpgradeError::Ended(directory()),
                false => UpgradeError::HungUp(directory()),
            })
        }
        Err(why) => Err(silent(why)),
    }
}

impl Lease {
    /// Takes the lease of the holder in a state directory. Waits until the daemon before is gone,
    /// if it let go.
    pub fn take(state: &Path) -> Result<(Lease, Inventory), LeaseError> {
        let path = socket_path(state);
        let io = |source| LeaseError::Io { path: path.clone(), source };
        let socket = dial(&path).map_err(io)?;
        let until = Instant::now() + PATIENCE;
        protocol::send(&socket, &Order::Hello { version: VERSION }, &[])
            .map_err(|error| io(error.into()))?;
        let mut inventory = Inventory { holder: peer(&socket), ..Inventory::default() };
        match answer(&socket, until).map_err(io)?.0 {
            Answer::Granted { term, crashes, up, gap } => {
                inventory.term = term;
                inventory.crashes = crashes;
                inventory.up = Duration::from_secs(up);
                inventory.gap = Duration::from_millis(gap);
            }
            Answer::Busy { pid } => return Err(LeaseError::Busy(pid)),
            Answer::Refused { why } => return Err(LeaseError::Refused { path, why }),
            _ => return unexpected().map_err(io),
        }
        read_inventory(&socket, until, &mut inventory).map_err(io)?;
        Ok((Lease { socket: Mutex::new(socket), path }, inventory))
    }

    fn ask(&self, order: &Order, files: &[BorrowedFd<'_>]) -> io::Result<(Answer, Vec<OwnedFd>)> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        protocol::send(&*socket, order, files)?;
        match answer(&socket, Instant::now() + PATIENCE)? {
            (Answer::Refused { why }, _) => Err(io::Error::other(why)),
            answer => Ok(answer),
        }
    }

    fn order(&self, order: &Order, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        match self.ask(order, files)?.0 {
            Answer::Done => Ok(()),
            _ => unexpected(),
        }
    }

    /// Registers a vnic, with its listening socket if it owns one. Returns the way to its front
    /// ends.
    pub fn register(
        &self,
        id: &str,
        birth: u64,
        role: Role,
        path: &Path,
        listener: Option<BorrowedFd<'_>>,
    ) -> io::Result<Channel> {
        use std::os::unix::ffi::OsStrExt;
        let path = path.as_os_str().as_bytes().to_vec();
        let order = Order::Register { id: id.to_owned(), birth, role, path };
        pass(Point::Registering);
        let answer = self.ask(&order, listener.as_slice())?;
        pass(Point::Registered);
        match answer {
            (Answer::Registered, mut files) if files.len() == 1 => {
                files.pop().map_or_else(unexpected, |channel| Ok(Channel(channel)))
            }
            _ => unexpected(),
        }
    }

    /// Forgets a vnic with everything that is held for it. Its socket file is removed.
    pub fn forget(&self, id: &str) -> io::Result<()> {
        pass(Point::Forgetting);
        self.order(&Order::Drop { id: id.to_owned() }, &[])?;
        pass(Point::Forgotten);
        Ok(())
    }

    /// Has a descriptor kept for a successor, in place of one with the same name.
    pub fn deposit(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        pass(Point::Depositing);
        self.order(&Order::Deposit { name: name.to_owned() }, &[file])?;
        pass(Point::Deposited);
        Ok(())
    }

    /// Has a descriptor not kept any more.
    pub fn withdraw(&self, name: &str) -> io::Result<()> {
        self.order(&Order::Withdraw { name: name.to_owned() }, &[])
    }

    /// Says that everything wanted was taken over, and runs.
    pub fn ready(&self) -> io::Result<()> {
        self.order(&Order::Ready, &[])
    }

    /// Says that this daemon ends and another one is to come soon.
    pub fn stopping(&self) -> io::Result<()> {
        self.order(&Order::Stopping, &[])
    }

    /// Says that this process becomes another program, which takes the lease anew. Nothing of this
    /// one may touch what is held from now on. Without a program that says
    /// [ready](Lease::ready), the process may become another one again.
    pub fn renew(&self) -> io::Result<()> {
        self.order(&Order::Renew, &[])
    }

    /// Returns the states of all front ends that are there, by the vnic's id.
    pub fn states(&self) -> io::Result<BTreeMap<String, Vec<u8>>> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + PATIENCE;
        protocol::send(&*socket, &Order::States, &[])?;
        let mut states = BTreeMap::new();
        loop {
            match answer(&socket, until)?.0 {
                Answer::State { id, state } => drop(states.insert(id, state)),
                Answer::Complete => return Ok(states),
                _ => return unexpected(),
            }
        }
    }

    /// Ends everything, the holder, too. Waits until it is gone, so that another one can begin.
    pub fn end(&self) -> io::Result<()> {
        self.order(&Order::End, &[])?;
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + START;
        while let Received::Packet::<Answer>(..) | Received::Nothing = protocol::receive(&*socket)?
        {
            wait(&socket, until)?;
        }
        Ok(())
    }

    /// Returns whether the holder is still there. Never waits: while it is asked something, it is.
    pub fn holder_lives(&self) -> bool {
        let socket = match self.socket.try_lock() {
            Ok(socket) => socket,
            Err(TryLockError::Poisoned(socket)) => socket.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        let gone = PollFlags::HUP | PollFlags::ERR;
        let mut ended = [PollFd::new(&*socket, gone)];
        let looked = poll(&mut ended, Some(&Timespec::default()));
        looked.is_err() || !ended.iter().any(|it| it.revents().intersects(gone))
    }

    /// Path of the holder's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn read_inventory(socket: &OwnedFd, until: Instant, to: &mut Inventory) -> io::Result<()> {
    use std::os::unix::ffi::OsStringExt;
    loop {
        match answer(socket, until)? {
            (Answer::Part { name }, mut files) => match files.pop() {
                Some(file) => drop(to.parts.insert(name, file)),
                None => return unexpected(),
            },
            (Answer::Vnic { id, birth, role, path, state, kept }, mut files) => {
                let mut with = files.drain(..);
                let Some(channel) = with.next() else { return unexpected() };
                let connection = with.next();
                let mut given = Vec::with_capacity(kept.len().min(MAX_KEPT));
                while given.len() < kept.len() {
                    match answer(socket, until)? {
                        (Answer::Files, files) if !files.is_empty() => given.extend(files),
                        _ => return unexpected(),
                    }
                }
                if given.len() != kept.len() {
                    return unexpected();
                }
                let files = kept.into_iter().zip(given).collect();
                let held = Held {
                    birth,
                    role,
                    path: std::ffi::OsString::from_vec(path).into(),
                    channel: Channel(channel),
                    former: match (state, connection) {
                        (None, _) => None,
                        (Some(state), Some(connection)) => {
                            Some(Former { state, connection, files })
                        }
                        (Some(_), None) => return unexpected(),
                    },
                };
                to.vnics.insert(id, held);
            }
            (Answer::Complete, _) => return Ok(()),
            _ => return unexpected(),
        }
    }
}

/// Word of the holder about a vnic's front ends.
#[derive(Debug)]
pub enum Heard {
    /// One came.
    Connected {
        /// Number of this event.
        number: u64,
        /// Its process, if known.
        pid: Option<u32>,
        /// A copy of the connection.
        connection: OwnedFd,
    },
    /// A message came.
    Message {
        /// Number of this event.
        number: u64,
        /// Header and body.
        bytes: Vec<u8>,
        /// Descriptors that came along.
        files: Vec<OwnedFd>,
    },
    /// The front end is gone.
    Gone {
        /// Number of this event.
        number: u64,
        /// Why: a sentence without a full stop.
        reason: String,
    },
}

/// State after an event.
#[derive(Clone, Copy, Debug)]
pub struct After<'a> {
    /// The state, for a successor.
    pub state: &'a [u8],
    /// Descriptors that it needs. All others are let go.
    pub keep: &'a [Name],
}

/// The way to one vnic's front ends. The holder says one thing at a time, and waits for its
/// [end](Channel::done).
#[derive(Debug)]
pub struct Channel(OwnedFd);

#[cfg(test)]
impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Channel {
        Channel(socket)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel {
    /// Returns the holder's next word, if there is one. Never waits. An error means that the
    /// holder is gone.
    pub fn receive(&self) -> io::Result<Option<Heard>> {
        Ok(Some(match protocol::receive::<protocol::Event>(&self.0)? {
            Received::Nothing => return Ok(None),
            Received::End => return Err(io::ErrorKind::ConnectionAborted.into()),
            Received::Packet(event, mut files) => match event {
                protocol::Event::Connected { number, pid } => match files.pop() {
                    Some(connection) => Heard::Connected { number, pid, connection },
                    None => return unexpected(),
                },
                protocol::Event::Message { number, bytes } => {
                    Heard::Message { number, bytes, files }
                }
                protocol::Event::Gone { number, reason } => Heard::Gone { number, reason },
            },
        }))
    }

    /// Says the end of an event: the reply for the front end, if any; what a successor has to know
    /// (`None`: as before); and the reason for which the front end is to go, if it is.
    pub fn done(
        &self,
        number: u64,
        reply: &[u8],
        after: Option<After<'_>>,
        end: Option<&str>,
    ) -> io::Result<()> {
        let after = after.map(|after| (after.state.to_vec(), after.keep.to_vec()));
        let end = end.map(str::to_owned);
        self.say(&Word::Done { number, reply: reply.to_vec(), after, end }, &[])
    }

    /// Has the front end go.
    pub fn cut(&self, reason: &str) -> io::Result<()> {
        self.say(&Word::Cut { reason: reason.to_owned() }, &[])
    }

    /// Gives the holder a connection to a front end that listens.
    pub fn dialed(&self, connection: OwnedFd) -> io::Result<()> {
        self.say(&Word::Dialed, &[connection.as_fd()])
    }

    /// The holder answers nothing here, so what is said waits for it at most.
    fn say(&self, word: &Word, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            match protocol::send(&self.0, word, files) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

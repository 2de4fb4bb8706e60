//! The holder: one loop, no threads, nothing that sleeps but poll().
//!
//! Each turn looks at every vnic once, and reads at most one message of it. Polling all anew costs
//! some microseconds for each hundred of them, and leaves no registration that could go stale.

mod front;
pub(crate) mod passing;
mod times;
mod upgrade;
#[cfg(not(feature = "harness"))]
mod vnic;
// A fuzz target reaches its harness.
#[cfg(feature = "harness")]
#[allow(missing_docs, private_interfaces)]
pub mod vnic;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{DirBuilderExt, MetadataExt, PermissionsExt},
            net::UnixStream,
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, MemfdFlags, SealFlags, fcntl_add_seals, flock, fstat, memfd_create},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
        socket_with, socketpair, sockopt::socket_peercred,
    },
    process::{
        Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, pidfd_send_signal,
        setrlimit, setsid,
    },
};

use crate::{
    client::socket_path,
    closer::Closer,
    protocol::{
        self, Answer, FILE, LISTEN, MAX_FILES, Order, PROGRAM, PROGRAM_BYTES, REMEDY, Received,
        Role, VERSION,
    },
};
use times::Times;
use upgrade::NextProgram;
use vnic::{Left, Registered, Vnic};

use crate::{HOLD_ALONE, HOLD_SERVICE, notify::Notify, say};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
pub use upgrade::{go_on, prove_that_it_can};

/// Most vnics, and most parts.
const MAX_VNICS: usize = 4096;
const MAX_PARTS: usize = 1024;
/// Time for which a daemon that said `stopping` may be missed.
const STOPPING: Duration = Duration::from_secs(10);
/// Time for which a holder waits for its first daemon, which started it.
pub const FIRST: Duration = Duration::from_secs(10);
/// Time in which a daemon takes the inventory.
const TAKING: Duration = Duration::from_secs(5);
/// Time in which it listens to the states.
const LISTENING: Duration = Duration::from_secs(1);
/// Daemons that may wait for a lease.
const BACKLOG: i32 = 8;

/// The daemon that has the lease.
struct Owner {
    lease: OwnedFd,
    pid: Pid,
    /// Tells of its end.
    process: OwnedFd,
    /// Its connection ended: nothing it says counts.
    gone: bool,
    /// It said that it ends.
    stopping: bool,
    /// Its process becomes another program, or did and is not ready: the lease is for that, too.
    renewing: bool,
}

/// A connection that has said nothing yet, or asks for the lease.
struct Claim {
    lease: OwnedFd,
    /// It said hello.
    said: bool,
    since: Instant,
}

struct Holder {
    /// The state directory, and the word by which this holder began there.
    state: PathBuf,
    word: &'static str,
    listener: OwnedFd,
    /// Locked while there is a holder of this directory.
    lock: OwnedFd,
    /// Readable once a signal asks it to end.
    stop: UnixStream,
    closer: Closer,
    owner: Option<Owner>,
    claims: Vec<Claim>,
    /// A program that is to go on in this one's place.
    next: Option<NextProgram>,
    parts: BTreeMap<String, OwnedFd>,
    /// The version of this program, for daemons. None without memory for it.
    version_file: Option<OwnedFd>,
    vnics: BTreeMap<String, Vnic>,
    times: Times,
    started: Instant,
    term: u64,
    crashes: u64,
    /// Since when nobody has the lease.
    alone: Option<Instant>,
    /// Time at which everything is let go, unless a daemon comes.
    ends: Option<Instant>,
    /// A daemon that was to go on could not begin: nothing is let go before another one came.
    stays: bool,
    /// No descriptors were left at that time.
    exhausted: Option<Instant>,
}

/// Reads, for fuzzing, what a holder before might have passed on.
#[cfg(feature = "harness")]
pub fn read_passed(bytes: &[u8]) {
    let _ = upgrade::try_out(bytes);
}

/// Starts a holder that has no parent, and returns.
pub fn start(state: &Path) -> u8 {
    let started = Command::new("/proc/self/exe")
        .arg0("butterflyd")
        .arg(crate::HOLD_ALONE)
        .arg(state)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    match started {
        Ok(_) => 0,
        Err(error) => {
            say(format_args!("{error}"));
            1
        }
    }
}

/// Runs the holder of a state directory until it is told to end, or no first daemon comes within a
/// time. Ends at once if there is one.
pub fn run(state: &Path, first: Option<Duration>) -> u8 {
    let _ = rustix::thread::set_name(c"butterflyd");
    // Refused for the leader of a group, which a service of its own is.
    let _ = setsid();
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    // A daemon can be started again; what is held here cannot.
    let _ = fs::write("/proc/self/oom_score_adj", "-900");
    let opened = Holder::open(state, first);
    // A daemon that starts now finds this holder, or the other one that is there.
    if first.is_none()
        && opened.is_ok()
        && let Some(notify) = Notify::from_environment()
    {
        notify.insist("READY=1");
    }
    match opened {
        Ok(Some(mut holder)) => {
            holder.run_to_the_end();
            0
        }
        Ok(None) => 0,
        Err(error) => {
            say(format_args!("{}: {error}", state.display()));
            1
        }
    }
}

/// True if a directory was made for nothing but one socket, as the API makes it in the directory
/// for temporary files.
fn is_of_a_file(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let digits = name.strip_prefix("butterfly-").unwrap_or_default();
    digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Refuses a directory where others could put files of theirs in the place of ours.
fn check_directory(state: &Path) -> io::Result<()> {
    let found = fs::metadata(state)?;
    let ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    match ours && found.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(io::Error::other(
            "others may change what is in this directory: make it the daemon's user's own, and chmod 700 it",
        )),
    }
}

/// Listens for daemons. `None` if another holder does.
fn open_socket(state: &Path) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
    // What is in it is nobody else's.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    check_directory(state)?;
    let lock = fs::File::create(state.join("holder.lock"))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let path = socket_path(state);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new(&path)?)?;
    // No process can connect before listen().
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    listen(&socket, BACKLOG)?;
    Ok(Some((socket, lock.into())))
}

/// Returns what can be read from once a signal asks this process to end.
fn stop_on_signals() -> io::Result<UnixStream> {
    let (stop, signalled) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, signalled.try_clone()?)?;
    }
    // That is for the daemon. Who looks for processes by their name sends it here, too.
    signal_hook::flag::register(SIGHUP, Arc::new(AtomicBool::new(false)))?;
    // A limit of files' sizes is an error for who writes, and no reason to end.
    signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::new(AtomicBool::new(false)))?;
    Ok(stop)
}

impl Holder {
    fn open(state: &Path, first: Option<Duration>) -> io::Result<Option<Holder>> {
        let Some((listener, lock)) = open_socket(state)? else { return Ok(None) };
        Ok(Some(Holder {
            state: state.to_owned(),
            word: if first.is_none() { HOLD_SERVICE } else { HOLD_ALONE },
            listener,
            lock,
            stop: stop_on_signals()?,
            closer: Closer::default(),
            owner: None,
            claims: Vec::new(),
            next: None,
            parts: BTreeMap::new(),
            version_file: own_version().ok(),
            vnics: BTreeMap::new(),
            times: Times::default(),
            started: Instant::now(),
            term: 0,
            crashes: 0,
            alone: None,
            ends: first.map(|first| Instant::now() + first),
            stays: false,
            exhausted: None,
        }))
    }

    /// Runs it until its end. Nobody finds it after that.
    fn run_to_the_end(&mut self) {
        self.run();
        let _ = fs::remove_file(socket_path(&self.state));
    }

    fn run(&mut self) {
        loop {
            let ready = self.wait();
            self.closer.turn();
            self.meet_daemons();
            if self.hear_owner() {
                break;
            }
            self.step_upgrade();
            let deaf = self.owner.as_ref().is_none_or(|owner| owner.gone);
            let (closer, exhausted) = (&mut self.closer, &mut self.exhausted);
            for (id, vnic) in &mut self.vnics {
                if ready.as_ref().is_none_or(|ready| ready.contains(id)) {
                    vnic.turn(&self.times, deaf, closer, exhausted);
                }
            }
            if self.ends.is_some_and(|end| Instant::now() >= end) || is_ready(&self.stop) {
                break;
            }
        }
        for vnic in self.vnics.values() {
            vnic.remove_file();
        }
        for (name, part) in &self.parts {
            let Some(path) = name.strip_prefix(FILE) else { continue };
            if let (Ok(ours), Ok(there)) = (fstat(part), fs::symlink_metadata(path))
                && (ours.st_dev, ours.st_ino) == (there.dev(), there.ino())
            {
                let _ = fs::remove_file(path);
                // One of its own, if it is empty: an endpoint that named no path.
                if let Some(directory) = Path::new(path).parent().filter(|it| is_of_a_file(it)) {
                    let _ = fs::remove_dir(directory);
                }
            }
        }
        self.parts.retain(|name, _| !name.starts_with(LISTEN));
        // The rest ends with this process; a descriptor that sleeps does so in the closer.
        for (_, vnic) in std::mem::take(&mut self.vnics) {
            vnic.discard(&mut self.closer);
        }
        self.closer.turn();
    }

    /// Waits until something is to be done. Returns the vnics that alone have something; `None` if
    /// all are to be looked at, because of a time, a daemon or the closer.
    fn wait(&self) -> Option<BTreeSet<String>> {
        let now = Instant::now();
        let mut fds = Vec::with_capacity(8 + 4 * self.vnics.len());
        let mut deadline: Option<Instant> = self.ends;
        let mut until = |time: Option<Instant>| {
            deadline = deadline.into_iter().chain(time).min();
        };
        let rests = self.exhausted.map(|since| since + self.times.rest).filter(|end| *end > now);
        until(rests);
        until(self.closer.deadline());
        until(self.closer.waits().map(|pause| now + pause));
        if let Some(fd) = self.closer.fd() {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        fds.push(PollFd::new(&self.stop, PollFlags::IN));
        if rests.is_none() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        if let Some(next) = &self.next {
            fds.extend(next.fd().map(|proof| PollFd::new(proof, PollFlags::IN)));
            until(Some(next.deadline()));
        }
        for claim in &self.claims {
            if !claim.said {
                fds.push(PollFd::new(&claim.lease, PollFlags::IN));
            }
            until(Some(claim.since + TAKING));
        }
        if let Some(owner) = &self.owner {
            if !owner.gone {
                fds.push(PollFd::new(&owner.lease, PollFlags::IN));
            }
            fds.push(PollFd::new(&owner.process, PollFlags::IN));
        }
        let deaf = self.owner.as_ref().is_none_or(|owner| owner.gone);
        let common = fds.len();
        let mut ends = Vec::with_capacity(self.vnics.len());
        for (id, vnic) in &self.vnics {
            until(vnic.watch(&self.times, deaf, rests.is_some(), &mut fds));
            ends.push((id, fds.len()));
        }
        let timeout = deadline.map(|deadline| {
            let left = deadline.saturating_duration_since(now);
            // Rounded up: a turn too early would be one for nothing.
            let left = left + Duration::from_millis(u64::from(!left.is_zero()));
            Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        // An interruption, or no memory: the next turn looks at everything.
        let count = poll(&mut fds, timeout.as_ref()).unwrap_or(0);
        let (common, of_vnics) = fds.split_at_checked(common)?;
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if count == 0 || is_late || common.iter().any(is_ready) {
            return None;
        }
        let mut of_vnics = of_vnics.iter();
        let mut begin = common.len();
        let mut ready = BTreeSet::new();
        for (id, end) in ends {
            // All of its descriptors, whichever is ready.
            let some = of_vnics.by_ref().take(end - begin).filter(|fd| is_ready(fd)).count();
            begin = end;
            if some > 0 {
                ready.insert(id.clone());
            }
        }
        Some(ready)
    }

    /// Accepts daemons, hears what they want, and gives one of them the lease.
    fn meet_daemons(&mut self) {
        let rests = self.exhausted.is_some_and(|since| since.elapsed() < self.times.rest);
        if !rests {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(lease) => {
                    self.claims.push(Claim { lease, said: false, since: Instant::now() });
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => self.exhausted = Some(Instant::now()),
            }
        }
        let mut claims = Vec::new();
        for mut claim in std::mem::take(&mut self.claims) {
            match claim.hear() {
                First::Claim if claim.since.elapsed() < TAKING * 2 => claims.push(claim),
                First::Other { stays: true } => {
                    let answer = match self.stay() {
                        true => Answer::Done,
                        false => {
                            Answer::Refused { why: "nothing is about to be let go".to_owned() }
                        }
                    };
                    let _ = protocol::send(&claim.lease, &answer, &[]);
                }
                First::Upgrade(files) => self.begin_upgrade(claim.lease, files),
                First::Claim | First::Other { stays: false } => {}
            }
        }
        if let Some(at) = claims.iter().position(|claim| claim.said)
            && let Some(mut claim) = Some(claims.remove(at))
        {
            match self.way_for(&claim.lease) {
                Way::Free { renewed } => self.grant(claim.lease, renewed),
                Way::Soon => {
                    claim.said = true;
                    claims.insert(0, claim);
                }
                Way::Busy(pid) => {
                    let _ = protocol::send(&claim.lease, &Answer::Busy { pid }, &[]);
                }
            }
        }
        self.claims.append(&mut claims);
    }

    /// Lets nothing go before another daemon came. False if a daemon goes on, or nothing is held.
    fn stay(&mut self) -> bool {
        let is_ending = self.owner.as_ref().is_none_or(|owner| owner.stopping);
        if self.term == 0 || !is_ending {
            return false;
        }
        self.ends = None;
        self.stays = true;
        say(format_args!(
            "the next daemon cannot begin: everything is held until one does, or this process ends"
        ));
        true
    }

    /// Finds out whether the lease is free for `claim`. A daemon whose connection ended, and whose
    /// process does not, is killed: it may still write what a successor writes. One that said that
    /// its process becomes another program is that program when the same process claims.
    fn way_for(&mut self, claim: &OwnedFd) -> Way {
        let Some(owner) = &self.owner else { return Way::Free { renewed: false } };
        if owner.is_dead() {
            self.leave(owner.end());
            return Way::Free { renewed: false };
        }
        let of_owner = || socket_peercred(claim).is_ok_and(|peer| peer.pid == owner.pid);
        if owner.gone && owner.renewing && of_owner() {
            self.leave(Left::InOrder);
            return Way::Free { renewed: true };
        }
        if !owner.gone {
            return Way::Busy(owner.pid.as_raw_nonzero().get().unsigned_abs());
        }
        let _ = pidfd_send_signal(&owner.process, Signal::KILL);
        Way::Soon
    }

    /// The daemon is gone.
    fn leave(&mut self, left: Left) {
        if self.owner.take().is_some() {
            if left == Left::Died {
                self.crashes += 1;
            }
            self.alone.get_or_insert_with(Instant::now);
            for vnic in self.vnics.values_mut() {
                vnic.lose_daemon(left);
            }
        }
    }

    /// Gives the lease away. `renewing`: to a process that had it as another program.
    fn grant(&mut self, lease: OwnedFd, renewing: bool) {
        let Ok(peer) = socket_peercred(&lease) else { return };
        let (pid, uid) = (peer.pid, peer.uid);
        if !uid.is_root() && uid != rustix::process::geteuid() {
            return;
        }
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(error) => {
                let why = format!("the daemon's process cannot be watched: {error}");
                let _ = protocol::send(&lease, &Answer::Refused { why }, &[]);
                return;
            }
        };
        // One that ended meanwhile may have left its number to another process.
        let gone = PollFlags::HUP | PollFlags::ERR;
        let mut ended = [PollFd::new(&lease, gone)];
        let _ = poll(&mut ended, Some(&Timespec::default()));
        if ended.iter().any(|it| it.revents().intersects(gone)) {
            return;
        }
        self.term += 1;
        let gap = self.alone.map(|since| since.elapsed()).unwrap_or_default();
        if let Err(error) = self.tell_all(&lease, gap) {
            say(format_args!("daemon {pid:?} did not take what is held: {error}"));
            self.vnics.values_mut().for_each(|vnic| vnic.lose_daemon(Left::Died));
            return;
        }
        self.alone = None;
        self.ends = None;
        self.stays = false;
        self.owner = Some(Owner { lease, pid, process, gone: false, stopping: false, renewing });
    }

    /// Tells a daemon everything that is held.
    fn tell_all(&mut self, lease: &OwnedFd, gap: Duration) -> io::Result<()> {
        let until = Instant::now() + TAKING;
        let granted = Answer::Granted {
            term: self.term,
            crashes: self.crashes,
            up: self.started.elapsed().as_secs(),
            gap: gap.as_millis() as u64,
        };
        tell(lease, &granted, &[], until)?;
        if let Some(file) = &self.version_file {
            tell(lease, &Answer::Part { name: PROGRAM.to_owned() }, &[file.as_fd()], until)?;
        }
        for (name, part) in &self.parts {
            tell(lease, &Answer::Part { name: name.clone() }, &[part.as_fd()], until)?;
        }
        for (id, vnic) in &mut self.vnics {
            let (ours, theirs) = channel()?;
            let (state, kept) = vnic.state();
            let connection = state.and_then(|_| vnic.connection());
            let names: Vec<_> = kept.keys().copied().collect();
            let registered = vnic.registered();
            let answer = Answer::Vnic {
                id: id.clone(),
                birth: registered.birth,
                role: registered.role,
                path: registered.path.as_os_str().as_bytes().to_vec(),
                state: state.map(<[u8]>::to_vec),
                kept: names,
            };
            let both: Vec<_> = [theirs.as_fd()].into_iter().chain(connection).collect();
            tell(lease, &answer, &both, until)?;
            let files: Vec<_> = kept.into_values().collect();
            for some in files.chunks(MAX_FILES) {
                tell(lease, &Answer::Files, some, until)?;
            }
            vnic.get_daemon(ours);
        }
        tell(lease, &Answer::Complete, &[], until)
    }

    /// Tells the daemon the states of all front ends. Returns the last word. A daemon that does not
    /// listen hears fewer than there are, and is told so.
    fn tell_states(&self) -> Answer {
        let Some(owner) = &self.owner else { return Answer::Complete };
        let until = Instant::now() + LISTENING;
        for (id, vnic) in &self.vnics {
            let Some(state) = vnic.state().0 else { continue };
            let answer = Answer::State { id: id.clone(), state: state.to_vec() };
            if let Err(error) = tell(&owner.lease, &answer, &[], until) {
                return Answer::Refused { why: format!("you do not listen: {error}") };
            }
        }
        Answer::Complete
    }

    /// Carries out what the daemon says. True if everything is to end.
    fn hear_owner(&mut self) -> bool {
        if self.owner.as_ref().is_some_and(Owner::is_dead) {
            let left = self.owner.as_ref().map_or(Left::Died, Owner::end);
            self.leave(left);
            if left == Left::InOrder && !self.stays {
                self.ends = Some(Instant::now() + STOPPING);
            }
        }
        let Some(owner) = self.owner.as_mut().filter(|owner| !owner.gone) else { return false };
        let (order, files) = match protocol::receive::<Order>(&owner.lease) {
            Ok(Received::Nothing) => return false,
            Ok(Received::Packet(order, files)) => (order, files),
            Ok(Received::End) => {
                owner.gone = true;
                return false;
            }
            Err(error) => {
                say(format_args!("the daemon says what nobody understands: {error}"));
                owner.gone = true;
                return false;
            }
        };
        let end = order == Order::End;
        let (answer, file) = match self.carry_out(order, files) {
            Ok((answer, file)) => (answer, file),
            Err(why) => (Answer::Refused { why }, None),
        };
        let files: Vec<BorrowedFd<'_>> = file.iter().map(AsFd::as_fd).collect();
        if let Some(owner) = &self.owner {
            // A daemon asks one thing at a time: there is room, or it is mad.
            let _ = protocol::send(&owner.lease, &answer, &files);
        }
        end
    }

    fn carry_out(
        &mut self,
        order: Order,
        files: Vec<OwnedFd>,
    ) -> Result<(Answer, Option<OwnedFd>), String> {
        let mut files = files.into_iter();
        let file = files.next();
        let more = files.next();
        // What is not wanted may have come from a front end.
        let unwanted = more.is_some();
        self.closer.discard(more.into_iter().chain(files));
        if unwanted {
            self.closer.discard(file);
            return Err("more than one descriptor".to_owned());
        }
        match (order, file) {
            (Order::Register { id, birth, role, path }, listener) => {
                if listener.is_some() != (role == Role::Server) {
                    self.closer.discard(listener);
                    return Err("a server has a listening socket, and a client has none".to_owned());
                }
                if self.vnics.contains_key(&id) {
                    return Err(format!("vnic {id} is held already"));
                }
                if self.vnics.len() >= MAX_VNICS {
                    return Err(format!("{MAX_VNICS} vnics are held at most"));
                }
                let (ours, theirs) = channel().map_err(|error| error.to_string())?;
                let path: PathBuf = std::ffi::OsStr::from_bytes(&path).into();
                let mut vnic = Vnic::new(Registered { birth, role, path }, listener);
                vnic.get_daemon(ours);
                self.vnics.insert(id, vnic);
                Ok((Answer::Registered, Some(theirs)))
            }
            (Order::Deposit { name }, Some(file)) => {
                if self.parts.len() >= MAX_PARTS && !self.parts.contains_key(&name) {
                    return Err(format!("{MAX_PARTS} parts are held at most"));
                }
                let old = self.parts.insert(name, file);
                self.closer.discard(old);
                Ok((Answer::Done, None))
            }
            (_, Some(file)) => {
                self.closer.discard([file]);
                Err("a descriptor that is not wanted".to_owned())
            }
            (Order::Drop { id }, None) => {
                let vnic = self.vnics.remove(&id).ok_or_else(|| format!("no vnic {id} is held"))?;
                vnic.remove_file();
                vnic.discard(&mut self.closer);
                Ok((Answer::Done, None))
            }
            (Order::Withdraw { name }, None) => {
                let part = self.parts.remove(&name);
                self.closer.discard(part);
                Ok((Answer::Done, None))
            }
            (Order::Stopping, None) => {
                if let Some(owner) = &mut self.owner {
                    owner.stopping = true;
                }
                Ok((Answer::Done, None))
            }
            (Order::Ready, None) => {
                if let Some(owner) = &mut self.owner {
                    owner.renewing = false;
                }
                Ok((Answer::Done, None))
            }
            (Order::Renew, None) => {
                if let Some(owner) = &mut self.owner {
                    owner.renewing = true;
                }
                Ok((Answer::Done, None))
            }
            (Order::States, None) => Ok((self.tell_states(), None)),
            (Order::End, None) => Ok((Answer::Done, None)),
            (Order::Deposit { .. }, None) => Err("a deposit without a descriptor".to_owned()),
            (Order::Hello { .. } | Order::Stay | Order::Upgrade, None) => {
                Err("the lease is its already".to_owned())
            }
        }
    }
}

enum Way {
    /// `renewed`: for the same process.
    Free {
        renewed: bool,
    },
    Soon,
    Busy(u32),
}

impl Owner {
    /// Returns how one left whose process is dead. One that died on its way into another program
    /// may have died of a message that this program had.
    fn end(&self) -> Left {
        if self.stopping { Left::InOrder } else { Left::Died }
    }

    fn is_dead(&self) -> bool {
        is_ready(&self.process)
    }
}

/// First word of a daemon.
enum First {
    /// It wants the lease, or has said nothing yet.
    Claim,
    /// It gets none. `stays`: another one is to come.
    Other { stays: bool },
    /// A program that comes along is to go on in this one's place.
    Upgrade(Vec<OwnedFd>),
}

impl Claim {
    /// Reads the first word.
    fn hear(&mut self) -> First {
        if self.said {
            return First::Claim;
        }
        match protocol::receive::<Order>(&self.lease) {
            Ok(Received::Nothing) => First::Claim,
            Ok(Received::Packet(Order::Hello { version: VERSION }, files)) if files.is_empty() => {
                self.said = true;
                First::Claim
            }
            Ok(Received::Packet(Order::Hello { version }, _)) => {
                let why = format!(
                    "it speaks version {VERSION} of its protocol (butterflyd {}) and the daemon {version}. Machines stay connected: {REMEDY}",
                    env!("CARGO_PKG_VERSION")
                );
                let _ = protocol::send(&self.lease, &Answer::Refused { why }, &[]);
                First::Other { stays: self.is_of_ours() }
            }
            Ok(Received::Packet(Order::Stay, _)) => First::Other { stays: self.is_of_ours() },
            Ok(Received::Packet(Order::Upgrade, files)) if self.is_of_ours() => {
                First::Upgrade(files)
            }
            _ => First::Other { stays: false },
        }
    }

    /// True if it is of root, or of the user of this process.
    fn is_of_ours(&self) -> bool {
        socket_peercred(&self.lease)
            .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
    }
}

/// Returns a file with the version of this program. A daemon that has it reads that of the program
/// of now.
fn own_version() -> io::Result<OwnedFd> {
    let file = memfd_create(PROGRAM, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    write_version(&file)?;
    fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

fn write_version(to: &OwnedFd) -> io::Result<()> {
    let mut bytes = [0; PROGRAM_BYTES];
    for (byte, letter) in bytes.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *byte = letter;
    }
    match rustix::io::pwrite(to, &bytes, 0)? {
        PROGRAM_BYTES => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// True if something can be read, or has ended.
fn is_ready(it: impl AsFd) -> bool {
    poll(&mut [PollFd::new(&it, PollFlags::IN)], Some(&Timespec::default()))
        .is_ok_and(|ready| ready > 0)
}

/// A channel: our end, and the daemon's.
fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Tells a daemon something, waiting for room until a time.
fn tell(
    lease: &OwnedFd,
    answer: &Answer,
    files: &[BorrowedFd<'_>],
    until: Instant,
) -> io::Result<()> {
    loop {
        match protocol::send(lease, answer, files) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let brief = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _ = poll(&mut [PollFd::new(lease, PollFlags::OUT)], Some(&brief));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;

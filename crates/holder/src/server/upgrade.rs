//! A holder becomes its successor: another program, which goes on in the same process.
//!
//! 1. A program asks on the holder's socket and gives itself along. It has to belong to root or to
//!    the user of the holder, and nobody else may write to it.
//! 2. A child, which is that program, reads what the holder has written down and says that it can.
//!    The holder goes on meanwhile.
//! 3. As soon as a daemon runs that is not about to end, the holder writes all of it down once more
//!    and becomes the program, with all descriptors. The process, its socket, its lock and the
//!    lease stay, so neither the daemon nor a front end notices.
//! 4. The program looks at all that it was given before it takes any of it. If something cannot be,
//!    it becomes the program before, which goes on, and tells why.
//!
//! The daemon has a copy of each connection, so even an end of the process in between costs no
//! machine its network. SIGHUP, SIGINT and SIGTERM wait until the program can hear them.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    ffi::{CString, OsStr},
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, fs::FileExt, net::UnixStream, process::CommandExt},
    },
    panic::catch_unwind,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use butterfly_layout::rehearsal;
use butterfly_mem::handover::{become_program, hear_signals, inherited, leave_open};
use rustix::{
    fs::{FileType, MemfdFlags, SealFlags, fcntl_add_seals, fstat, memfd_create},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{
    Holder, MAX_PARTS, MAX_VNICS, Owner, own_version,
    passing::{FORM, Giver, Pass, Taker, copy_of},
    stop_on_signals, write_version,
};
use crate::{
    HOLD_ALONE, HOLD_SERVICE,
    closer::{Closer, Debt},
    protocol::{self, Answer, MAX_TEXT, Malformed},
    say,
    server::{times::Times, vnic::Vnic},
};

/// Word by which a program says whether it can go on: all that was written down is its standard
/// input.
pub const CAN: &str = "--can-hold";
/// Word by which a program goes on; see [`go_on`].
pub const GO_ON: &str = "--go-on-holding";
/// Answer of a program that can.
const CAN_HOLD: &str = "it can hold on\n";
/// Time in which it answers.
const PROOF: Duration = Duration::from_secs(5);
/// Time to wait for a moment in which nobody would miss this process.
const MOMENT: Duration = Duration::from_secs(10);
/// Pause between two looks for it.
const PAUSE: Duration = Duration::from_millis(10);

/// A program that is to go on.
pub struct Next {
    /// Its connection, for the outcome.
    asker: OwnedFd,
    program: OwnedFd,
    since: Instant,
    child: OwnedFd,
    /// The child's words. None once it has proved that it can go on.
    proof: Option<UnixStream>,
    said: Vec<u8>,
}

impl Next {
    /// Begins with a program whose proof a child has begun.
    fn new(asker: OwnedFd, program: OwnedFd, child: OwnedFd, proof: UnixStream) -> Next {
        let (since, said) = (Instant::now(), Vec::new());
        Next { asker, program, since, child, proof: Some(proof), said }
    }

    /// Descriptor to be polled.
    pub fn fd(&self) -> Option<&UnixStream> {
        self.proof.as_ref()
    }

    /// Time at which it is to be looked at, at the latest.
    pub fn deadline(&self) -> Instant {
        if self.proof.is_some() { self.since + PROOF } else { Instant::now() + PAUSE }
    }

    /// Listens to the child. Returns whether the program can go on, or why it cannot.
    fn hear(&mut self) -> Result<bool, String> {
        let Some(proof) = &mut self.proof else { return Ok(true) };
        // One that says more than this program would is another one.
        while self.said.len() <= MAX_TEXT {
            let mut some = [0; 512];
            match proof.read(&mut some) {
                Ok(0) if self.said == CAN_HOLD.as_bytes() => {
                    self.proof = None;
                    return Ok(true);
                }
                Ok(0) if self.said.is_empty() => {
                    return Err("it does not say that it can go on".to_owned());
                }
                Ok(0) => break,
                Ok(count) => self.said.extend(some.iter().take(count)),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if self.since.elapsed() < PROOF => return Ok(false),
                Err(_) => {
                    return Err(format!(
                        "it did not say within {} s that it can go on",
                        PROOF.as_secs()
                    ));
                }
            }
        }
        let said = String::from_utf8_lossy(&self.said);
        Err(said.chars().filter(|letter| !letter.is_control()).take(500).collect())
    }
}

/// Starts a child of a program that says whether it can go on.
fn prove(holder: &mut Holder, program: &OwnedFd) -> Result<(OwnedFd, UnixStream), String> {
    let found = fstat(program).map_err(|why| why.to_string())?;
    if !FileType::from_raw_mode(found.st_mode).is_file() || found.st_mode & 0o111 == 0 {
        return Err("it is no program".to_owned());
    }
    let user = rustix::process::geteuid().as_raw();
    if ![0, user].contains(&found.st_uid) || found.st_mode & 0o022 != 0 {
        return Err(
            "its file has to belong to root, or to the holder's user, and nobody else may write to it"
                .to_owned(),
        );
    }
    let mut begin = || -> io::Result<(OwnedFd, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0("butterflyd")
            .arg(CAN)
            .stdin(Stdio::from(written(&Giver::of(holder, Instant::now()).whole())?))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        let number = Pid::from_child(&child);
        let child = pidfd_open(number, PidfdFlags::empty());
        holder.closer.expect_end(number);
        Ok((child?, ours))
    };
    begin().map_err(|why| format!("it cannot be started: {why}"))
}

/// A file with bytes, to be read from its beginning.
fn written(bytes: &[u8]) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("butterfly-holder", flags)?);
    file.write_all_at(bytes, 0)?;
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&file, all)?;
    Ok(file)
}

/// The life of a program that says whether it can go on. Standard input is what it would go on
/// with.
pub fn prove_that_it_can() -> u8 {
    let answer = || -> Result<(), String> {
        rehearse("hold")?;
        let file = copy_of(io::stdin()).map_err(|why| why.to_string())?;
        let bytes = all_of(&File::from(file)).map_err(|why| why.to_string())?;
        try_out(&bytes).map(drop)
    };
    let (text, status) = match answer() {
        Ok(()) => (CAN_HOLD.to_owned(), 0),
        Err(why) => (why, 1),
    };
    let told = io::stdout().write_all(text.as_bytes());
    if told.is_ok() { status } else { 1 }
}

/// Reads a file from its beginning.
fn all_of(file: &File) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(io::Error::other)?;
    bytes.resize(length, 0);
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Reads everything without a descriptor of it. Returns the numbers of all.
pub(super) fn try_out(bytes: &[u8]) -> Result<BTreeSet<RawFd>, String> {
    let form = bytes.first_chunk().map(|form| u32::from_ne_bytes(*form));
    if form != Some(FORM) {
        return Err(format!(
            "it reads form {FORM} of what a holder passes on, and not {}",
            form.unwrap_or_default()
        ));
    }
    let read = |stand_in| {
        let mut from = Taker::on_trial(bytes, stand_in)?;
        let numbers: BTreeSet<RawFd> = from.numbers().iter().copied().collect();
        let is_twice = numbers.len() < from.numbers().len();
        Given::take(&mut from)?;
        from.end()?;
        if is_twice { Err(Malformed) } else { Ok(numbers) }
    };
    let stand_in = written(&[]).map_err(|why| why.to_string())?;
    read(stand_in.into()).map_err(|Malformed| "it does not understand all of it".to_owned())
}

/// Everything that one program gives the next.
pub(super) struct Given {
    listener: OwnedFd,
    lock: OwnedFd,
    version: Option<OwnedFd>,
    owner: Option<(OwnedFd, OwnedFd, Pid)>,
    term: u64,
    crashes: u64,
    started: Instant,
    /// The connection on which somebody waits for the outcome.
    asker: Option<OwnedFd>,
    parts: BTreeMap<String, OwnedFd>,
    vnics: BTreeMap<String, Vnic>,
    closer: Closer,
}

impl<'a> Giver<'a> {
    /// Writes down everything that a holder has.
    pub(super) fn of(holder: &'a Holder, now: Instant) -> Giver<'a> {
        let mut to = Giver::new(now);
        to.file(&holder.listener);
        to.file(&holder.lock);
        to.maybe(&holder.version, Giver::file);
        to.maybe(&holder.owner, |to, owner| {
            to.file(&owner.lease);
            to.file(&owner.process);
            to.number(owner.pid.as_raw_nonzero().get() as u64);
        });
        to.number(holder.term);
        to.number(holder.crashes);
        to.since(holder.started);
        to.maybe(&holder.next, |to, next| to.file(&next.asker));
        to.all(holder.parts.iter(), |to, (name, part)| {
            to.text(name);
            to.file(part);
        });
        let mut debts = BTreeMap::new();
        to.all(holder.vnics.iter(), |to, (id, vnic)| {
            debts.insert(vnic.debt().key(), debts.len() as u32);
            to.text(id);
            vnic.give(to);
        });
        holder.closer.give(&debts, &mut to);
        to
    }
}

impl Given {
    /// Reads what [`Giver::of`] wrote.
    pub(super) fn take(from: &mut Taker<'_>) -> Result<Given, Malformed> {
        let (listener, lock) = (from.file()?, from.file()?);
        let version = from.maybe(Taker::file)?;
        let owner = from.maybe(|from| {
            let (lease, process) = (from.file()?, from.file()?);
            let pid = i32::try_from(from.number()?).map_err(|_| Malformed)?;
            Ok((lease, process, Pid::from_raw(pid).ok_or(Malformed)?))
        })?;
        let (term, crashes, started) = (from.number()?, from.number()?, from.time()?);
        let asker = from.maybe(Taker::file)?;
        let parts = from.all(MAX_PARTS, |from| Ok((from.text()?, from.file()?)))?;
        let vnics = from.all(MAX_VNICS, |from| Ok((from.text()?, Vnic::take(from)?)))?;
        let debts: Vec<Debt> = vnics.iter().map(|(_, vnic)| vnic.debt().clone()).collect();
        let closer = Closer::take(from, &debts)?;
        let (parts_given, vnics_given) = (parts.len(), vnics.len());
        let parts: BTreeMap<_, _> = parts.into_iter().collect();
        let vnics: BTreeMap<_, _> = vnics.into_iter().collect();
        // None has the name of another one.
        match parts.len() == parts_given && vnics.len() == vnics_given {
            true => Ok(Given {
                listener,
                lock,
                version,
                owner,
                term,
                crashes,
                started,
                asker,
                parts,
                vnics,
                closer,
            }),
            false => Err(Malformed),
        }
    }
}

impl Holder {
    /// Hears that a program is to go on, which an operator's command gave along.
    pub(super) fn meet_next(&mut self, asker: OwnedFd, mut files: Vec<OwnedFd>) {
        let begun = match (files.pop(), &self.next) {
            (_, Some(_)) => Err("another program is about to go on".to_owned()),
            (Some(program), None) if files.is_empty() => {
                prove(self, &program).map(|proof| (program, proof))
            }
            _ => Err("it did not give one program along".to_owned()),
        };
        self.closer.discard(files);
        match begun {
            Ok((program, (child, proof))) => {
                self.next = Some(Next::new(asker, program, child, proof));
            }
            Err(why) => refuse(&asker, why),
        }
    }

    /// Takes the next step towards the program that is to go on. Returns only while this one does.
    pub(super) fn make_way(&mut self) {
        let Some(next) = &mut self.next else { return };
        let waits = next.since.elapsed() < MOMENT;
        let refusal = match next.hear() {
            Ok(false) => return,
            Ok(true) => match self.would_be_missed() {
                Some(_) if waits => return,
                Some(why) => why.to_owned(),
                None => self.hand_over(),
            },
            Err(why) => {
                let _ = pidfd_send_signal(&next.child, Signal::KILL);
                why
            }
        };
        if let Some(next) = self.next.take() {
            refuse(&next.asker, refusal);
        }
    }

    /// Returns why somebody would miss this process at this moment, if so.
    fn would_be_missed(&self) -> Option<&'static str> {
        let lives =
            |owner: &Owner| !owner.gone && !owner.stopping && !owner.renewing && !owner.is_dead();
        if self.stays || self.ends.is_some() || !self.claims.is_empty() {
            return Some("no daemon runs now, or another one begins: try again when one does");
        }
        match &self.owner {
            Some(owner) if lives(owner) => None,
            None if self.term == 0 => None,
            _ => Some(
                "the daemon is about to end, or to become another program: try again when it runs",
            ),
        }
    }

    /// Becomes the program. Returns the reason if that fails; then everything is as it was.
    fn hand_over(&mut self) -> String {
        self.closer.let_go();
        let why = match self.next.as_ref().map(|next| self.become_next(&next.program)) {
            Some(Ok(never)) => match never {},
            Some(Err(why)) => why.to_string(),
            None => "it is gone".to_owned(),
        };
        format!("it cannot be executed: {why}")
    }

    fn become_next(&self, program: &OwnedFd) -> io::Result<Infallible> {
        let own = File::open("/proc/self/exe")?;
        let given = Giver::of(self, Instant::now());
        let state = written(&given.whole())?;
        let words = words(&state, &own, "", OsStr::new(self.word), self.state.as_os_str())?;
        let more = [state.as_fd(), own.as_fd()];
        let all = || given.files.iter().chain(&more);
        let opened = all().try_for_each(|file| leave_open(file, true));
        let failed = opened.err().unwrap_or_else(|| become_program(program.as_fd(), &words));
        for file in all() {
            let _ = leave_open(file, false);
        }
        Err(failed)
    }
}

/// Tells a program that it does not go on.
fn refuse(asker: &OwnedFd, why: String) {
    say(format_args!("another program does not go on: {why}"));
    let _ = protocol::send(asker, &Answer::Refused { why }, &[]);
}

/// Words of a program that goes on: those by which a holder begins are the last ones. `why`: the
/// reason for which `other` does not, if so.
fn words(
    state: &File,
    other: &File,
    why: &str,
    word: &OsStr,
    directory: &OsStr,
) -> io::Result<Vec<CString>> {
    let (state, other) = (state.as_raw_fd().to_string(), other.as_raw_fd().to_string());
    let texts = ["butterflyd", GO_ON, &state, &other, why].map(str::as_bytes);
    let texts = texts.into_iter().chain([word.as_bytes(), directory.as_bytes()]);
    texts.map(|text| CString::new(text).map_err(io::Error::other)).collect()
}

/// Fails as this program's words for a rehearsal say.
fn rehearse(place: &str) -> Result<(), String> {
    match rehearsal::fails(place) {
        None => Ok(()),
        Some("panic") => panic!("it was to panic in this rehearsal"),
        Some("kill") => rehearsal::die(),
        Some("hang") => loop {
            std::thread::park();
        },
        Some(_) => Err("it was to fail in this rehearsal".to_owned()),
    }
}

/// Goes on as the holder that another program was until now. `given`: its words: the numbers of two
/// descriptors, what it passes on and a program to become if that cannot be read; why that program
/// itself does not go on, if so; the first word of the holder, and its state directory. Returns the
/// status with which to exit.
pub fn go_on(given: &[&OsStr]) -> u8 {
    let _ = rustix::thread::set_name(c"butterflyd");
    match taken_over(given) {
        Ok(mut holder) => {
            holder.run_to_the_end();
            0
        }
        Err(why) => {
            say(format_args!("it cannot go on, and ends: {why}"));
            1
        }
    }
}

fn taken_over(given: &[&OsStr]) -> io::Result<Holder> {
    let [state, other, refused, word, directory] = given else {
        return Err(io::Error::other("it was not told what to go on with"));
    };
    let number = |word: &OsStr| word.to_str().and_then(|word| word.parse::<RawFd>().ok());
    let mut inherited = inherited()?;
    let mut take = |word: &OsStr| number(word).and_then(|number| inherited.remove(&number));
    let (state, other) = (take(state).map(File::from), take(other).map(File::from));
    let (Some(state), Some(other)) = (state, other) else {
        return Err(io::Error::other("it was given nothing to go on with"));
    };
    let looked = catch_unwind(|| look_at(&state, &inherited));
    let bytes = match looked.unwrap_or_else(|_| Err("it panicked".to_owned())) {
        Ok(bytes) => bytes,
        Err(why) if refused.is_empty() => {
            let why = why.replace('\0', " ");
            let words = words(&state, &other, &why, word, directory)?;
            return Err(become_program(other.as_fd(), &words));
        }
        Err(why) => return Err(io::Error::other(why)),
    };
    for file in inherited.values() {
        leave_open(file, false)?;
    }
    drop((state, other));
    let mut from = Taker::new(&bytes, inherited, Instant::now())?;
    let mut given = Given::take(&mut from)?;
    let left = from.end()?;
    let asker = given.asker.take();
    let mut holder = Holder::of(given, Path::new(directory), word)?;
    holder.closer.discard(left.into_values());
    hear_signals()?;
    let refused = refused.to_string_lossy().into_owned();
    if let Some(asker) = asker {
        match refused.is_empty() {
            true => {
                say(format_args!("this is butterflyd {} from now on", env!("CARGO_PKG_VERSION")));
                let _ = protocol::send(&asker, &Answer::Done, &[]);
            }
            false => refuse(&asker, refused),
        }
    }
    Ok(holder)
}

/// Looks whether all that is passed on is there, and can be gone on with. Returns it.
fn look_at(state: &File, inherited: &BTreeMap<RawFd, OwnedFd>) -> Result<Vec<u8>, String> {
    rehearse("held")?;
    let bytes = all_of(state).map_err(|why| why.to_string())?;
    let named = try_out(&bytes)?;
    match named.iter().all(|number| inherited.contains_key(number)) {
        true => Ok(bytes),
        false => Err("a descriptor is missing".to_owned()),
    }
}

impl Holder {
    pub(super) fn of(given: Given, state: &Path, word: &OsStr) -> io::Result<Holder> {
        let version = match given.version {
            Some(version) if write_version(&version).is_ok() => Some(version),
            _ => own_version().ok(),
        };
        let owner = given.owner.map(|(lease, process, pid)| Owner {
            lease,
            pid,
            process,
            gone: false,
            stopping: false,
            renewing: false,
        });
        Ok(Holder {
            state: state.to_owned(),
            word: if word == HOLD_SERVICE { HOLD_SERVICE } else { HOLD_ALONE },
            listener: given.listener,
            lock: given.lock,
            stop: stop_on_signals()?,
            closer: given.closer,
            owner,
            claims: Vec::new(),
            next: None,
            parts: given.parts,
            version,
            vnics: given.vnics,
            times: Times::default(),
            started: given.started,
            term: given.term,
            crashes: given.crashes,
            alone: None,
            ends: None,
            stays: false,
            exhausted: None,
        })
    }
}

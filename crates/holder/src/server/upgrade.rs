//! A holder becomes another program, which goes on in the same process.
//!
//! 1. A program asks on the holder's socket and gives itself along. It has to belong to root, and
//!    nobody else may write to it.
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
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use butterfly_layout::rehearsal;
use butterfly_mem::execute::{become_program, hear_signals, hold_signals, inherited, leave_open};
use rustix::{
    fs::{
        FileType, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fstat, memfd_create, open,
        stat,
    },
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{
    Holder, MAX_PARTS, MAX_VNICS, Owner, is_ready, own_version,
    passing::{FORM, Giver, Pass, Taker, copy_of},
    stop_on_signals, write_version,
};
use crate::{
    GO_ON, HOLD_ALONE, HOLD_SERVICE, PROVE,
    closer::Closer,
    protocol::{self, Answer, MAX_TEXT, Malformed},
    say,
    server::{times::Times, vnic::Vnic},
};

/// Answer of a program that can.
const PROVED: &str = "it can hold\n";
/// Time in which it answers.
const PROOF: Duration = Duration::from_secs(5);
/// Time to wait for a moment in which nobody would miss this process.
const MOMENT: Duration = Duration::from_secs(10);
/// Pause between two looks for it.
const PAUSE: Duration = Duration::from_millis(100);

/// A program that is to go on.
pub struct NextProgram {
    /// Its connection, for the outcome.
    asker: OwnedFd,
    program: OwnedFd,
    since: Instant,
    child: OwnedFd,
    /// The child's words. None once it has proved that it can go on.
    proof: Option<UnixStream>,
    said: Vec<u8>,
}

impl NextProgram {
    /// Begins with a program whose proof a child has begun.
    fn new(asker: OwnedFd, program: OwnedFd, child: OwnedFd, proof: UnixStream) -> NextProgram {
        let (since, said) = (Instant::now(), Vec::new());
        NextProgram { asker, program, since, child, proof: Some(proof), said }
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
                Ok(0) if self.said == PROVED.as_bytes() => {
                    self.proof = None;
                    return Ok(true);
                }
                Ok(0) if self.said.is_empty() => {
                    return Err(
                        "it does not say that it can hold: it is no butterflyd, is of a release that \
                         cannot take a holder over, or ended: see the log"
                            .to_owned(),
                    );
                }
                Ok(0) => break,
                Ok(count) => self.said.extend(some.iter().take(count)),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if self.since.elapsed() < PROOF => return Ok(false),
                Err(_) => {
                    return Err(format!(
                        "it did not say within {} s that it can hold",
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
    // Its owner is root, or who has this program anyway.
    let own = stat("/proc/self/exe").map_err(|why| why.to_string())?;
    if ![0, own.st_uid].contains(&found.st_uid) || found.st_mode & 0o022 != 0 {
        return Err("its file has to belong to root, and nobody else may write to it".to_owned());
    }
    let mut begin = || -> io::Result<(OwnedFd, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0("butterflyd")
            .arg(PROVE)
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
        rehearsal::fail("hold")?;
        let file = copy_of(io::stdin()).map_err(|why| why.to_string())?;
        let bytes = all_of(&File::from(file)).map_err(|why| why.to_string())?;
        try_out(&bytes).map(drop)
    };
    let (text, status) = match answer() {
        Ok(()) => (PROVED.to_owned(), 0),
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
    let stand_in = written(&[]).map_err(|why| why.to_string())?;
    let unclear = || "it does not understand all of it".to_owned();
    let mut from = Taker::on_trial(bytes, stand_in.into()).map_err(|Malformed| unclear())?;
    let numbers: BTreeSet<RawFd> = from.numbers().iter().copied().collect();
    let is_twice = numbers.len() < from.numbers().len();
    let read = Given::try_out(&mut from);
    if let Some(why) = from.no_copy() {
        return Err(format!("it has no room for descriptors: {why}"));
    }
    let read = read.and_then(|()| from.end());
    match (read, is_twice) {
        (Ok(_), false) => Ok(numbers),
        _ => Err(unclear()),
    }
}

/// Everything that one program gives the next.
pub(super) struct Given {
    listener: OwnedFd,
    lock: OwnedFd,
    version_file: Option<OwnedFd>,
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
        // What is left out begins anew, and belongs to no moment in which another program goes on.
        let Holder { listener, lock, version_file, owner, term, crashes, started, .. } = holder;
        let Holder { next, parts, vnics, closer, .. } = holder;
        let mut to = Giver::new(now);
        to.file(listener);
        to.file(lock);
        to.maybe(version_file, Giver::file);
        to.maybe(owner, |to, owner| {
            to.file(&owner.lease);
            to.file(&owner.process);
            to.pid(owner.pid);
        });
        to.number(*term);
        to.number(*crashes);
        to.since(*started);
        to.maybe(next, |to, next| to.file(&next.asker));
        to.all(parts.iter(), |to, (name, part)| {
            to.text(name);
            to.file(part);
        });
        let mut debts = BTreeMap::new();
        to.all(vnics.iter(), |to, (id, vnic)| {
            debts.insert(vnic.debt().key(), debts.len() as u32);
            to.text(id);
            vnic.give(to);
        });
        closer.give(&debts, &mut to);
        to
    }
}

impl Given {
    /// Reads what [`Giver::of`] wrote.
    pub(super) fn take(from: &mut Taker<'_>) -> Result<Given, Malformed> {
        let (mut parts, mut vnics) = (BTreeMap::new(), BTreeMap::new());
        let mut given = Given::read(
            from,
            |name, part| parts.insert(name, part).is_none(),
            |id, vnic| vnics.insert(id, vnic).is_none(),
        )?;
        (given.parts, given.vnics) = (parts, vnics);
        Ok(given)
    }

    /// Reads the same, and keeps no more than one vnic or part at a time: copies of descriptors are
    /// few then.
    fn try_out(from: &mut Taker<'_>) -> Result<(), Malformed> {
        let (mut names, mut ids) = (BTreeSet::new(), BTreeSet::new());
        Given::read(from, |name, _| names.insert(name), |id, _| ids.insert(id)).map(drop)
    }

    /// Reads it, with each part and each vnic given away, which says whether its name is new.
    fn read(
        from: &mut Taker<'_>,
        mut part: impl FnMut(String, OwnedFd) -> bool,
        mut vnic: impl FnMut(String, Vnic) -> bool,
    ) -> Result<Given, Malformed> {
        let new = |is_new: bool| if is_new { Ok(()) } else { Err(Malformed) };
        let (listener, lock) = (from.file()?, from.file()?);
        let version_file = from.maybe(Taker::file)?;
        let owner = from.maybe(|from| Ok((from.file()?, from.file()?, from.pid()?)))?;
        let (term, crashes, started) = (from.number()?, from.number()?, from.time()?);
        let asker = from.maybe(Taker::file)?;
        from.all(MAX_PARTS, |from| new(part(from.text()?, from.file()?)))?;
        let debts = from.all(MAX_VNICS, |from| {
            let (id, read) = (from.text()?, Vnic::take(from)?);
            let debt = read.debt().clone();
            new(vnic(id, read)).map(|()| debt)
        })?;
        let closer = Closer::take(from, &debts)?;
        let (parts, vnics) = (BTreeMap::new(), BTreeMap::new());
        Ok(Given {
            listener,
            lock,
            version_file,
            owner,
            term,
            crashes,
            started,
            asker,
            parts,
            vnics,
            closer,
        })
    }
}

impl Holder {
    /// Hears that a program is to go on, which an operator's command gave along.
    pub(super) fn begin_upgrade(&mut self, asker: OwnedFd, mut files: Vec<OwnedFd>) {
        let begun = match (files.pop(), &self.next) {
            (program, Some(_)) => {
                files.extend(program);
                Err("another program is about to go on".to_owned())
            }
            (Some(program), None) if files.is_empty() => match prove(self, &program) {
                Ok(proof) => Ok((program, proof)),
                Err(why) => {
                    files.push(program);
                    Err(why)
                }
            },
            (program, None) => {
                files.extend(program);
                Err("it did not give one program along".to_owned())
            }
        };
        // Whatever they are: the last close() of one may sleep.
        self.closer.discard(files);
        match begun {
            Ok((program, (child, proof))) => {
                self.next = Some(NextProgram::new(asker, program, child, proof));
            }
            Err(why) => refuse(&asker, why),
        }
    }

    /// Takes the next step towards the program that is to go on. Returns only while this one does.
    pub(super) fn step_upgrade(&mut self) {
        let Some(next) = &mut self.next else { return };
        let waits = next.since.elapsed() < MOMENT;
        let refusal = match next.hear() {
            Ok(false) => return,
            Ok(true) => match self.why_not_now() {
                Some(_) if waits => return,
                Some(why) => why.to_owned(),
                None => self.upgrade(),
            },
            Err(why) => {
                let _ = pidfd_send_signal(&next.child, Signal::KILL);
                why
            }
        };
        if let Some(next) = self.next.take() {
            refuse(&next.asker, refusal);
            self.closer.discard([next.program]);
        }
    }

    /// Returns why another program cannot go on at this moment, if so: somebody would miss the
    /// connections if it failed.
    fn why_not_now(&self) -> Option<&'static str> {
        match &self.owner {
            _ if !self.claims.is_empty() => Some("a daemon is taking everything over: try again"),
            None if self.ends.is_some() || self.stays || self.term > 0 => Some(
                "no daemon runs, so the connections are this process's alone: start butterflyd first",
            ),
            None => None,
            Some(owner) if owner.renewing => {
                Some("the daemon is being upgraded: try again when that is done")
            }
            Some(owner) if owner.gone || owner.stopping || owner.is_dead() => {
                Some("the daemon is about to end: try again when the next one runs")
            }
            Some(_) => None,
        }
    }

    /// Becomes the program. Returns the reason if that fails; then everything is as it was, but for
    /// the closer: another one begins when there is something to close.
    fn upgrade(&mut self) -> String {
        self.closer.let_go();
        let become_it = || -> io::Result<Infallible> {
            hold_signals()?;
            if is_ready(&self.stop) {
                return Err(io::Error::other("it is to end"));
            }
            match &self.next {
                Some(next) => self.become_next(&next.program),
                None => Err(io::Error::other("it is gone")),
            }
        };
        let why = match become_it() {
            Ok(never) => match never {},
            Err(why) => why,
        };
        match hear_signals() {
            Ok(()) => format!("it cannot be executed: {why}"),
            Err(deaf) => format!("it cannot be executed: {why}; and no signal is heard: {deaf}"),
        }
    }

    fn become_next(&self, program: &OwnedFd) -> io::Result<Infallible> {
        let own =
            File::from(open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
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
    say(format_args!("it stays butterflyd {}: {why}", env!("CARGO_PKG_VERSION")));
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
    let (state, other) = (Arc::new(state), Arc::new(other));
    let again = {
        let (state, other) = (state.clone(), other.clone());
        let (word, directory) = (word.to_os_string(), directory.to_os_string());
        let may = refused.is_empty();
        move |why: &str| -> io::Error {
            if !may {
                return io::Error::other(why);
            }
            let why = why.replace('\0', " ");
            match words(&state, &other, &why, &word, &directory) {
                Ok(words) => become_program(other.as_fd(), &words),
                Err(why) => why,
            }
        }
    };
    let looked = match refused.is_empty() {
        true => {
            let watch = Watch::begin(again.clone());
            let looked = catch_unwind(|| look_at(&state, &inherited));
            watch.end();
            looked
        }
        // It wrote that itself. What sent it back, as a lack of descriptors, may still be so.
        false => Ok(all_of(&state).map_err(|why| why.to_string())),
    };
    let bytes = match looked.unwrap_or_else(|_| Err("it panicked".to_owned())) {
        Ok(bytes) => bytes,
        Err(why) => return Err(again(&why)),
    };
    for file in inherited.values() {
        leave_open(file, false)?;
    }
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
                say(format_args!("it is butterflyd {} from now on", env!("CARGO_PKG_VERSION")));
                let _ = protocol::send(&asker, &Answer::Done, &[]);
            }
            false => refuse(&asker, refused),
        }
    }
    Ok(holder)
}

/// A thread that has the program before go on if this one does not get on. The only one that there
/// is, for that time.
struct Watch {
    ended: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Watch {
    /// Begins to watch. Without a thread the watch has no end.
    fn begin(again: impl FnOnce(&str) -> io::Error + Send + 'static) -> Watch {
        let (ended, waits) = channel();
        let watch = move || {
            if waits.recv_timeout(PROOF) == Err(RecvTimeoutError::Timeout) {
                let why = again(&format!("it did not get on for {} s", PROOF.as_secs()));
                say(format_args!("it does not get on, and ends: {why}"));
                std::process::exit(1);
            }
        };
        let thread = thread::Builder::new().spawn(watch).ok();
        Watch { ended: thread.map(|thread| (ended, thread)) }
    }

    fn end(self) {
        if let Some((ended, thread)) = self.ended {
            let _ = ended.send(());
            let _ = thread.join();
        }
    }
}

/// Looks whether all that is passed on is there, and can be gone on with. Returns it.
fn look_at(state: &File, inherited: &BTreeMap<RawFd, OwnedFd>) -> Result<Vec<u8>, String> {
    rehearsal::fail("held")?;
    let bytes = all_of(state).map_err(|why| why.to_string())?;
    let named = try_out(&bytes)?;
    match named.iter().all(|number| inherited.contains_key(number)) {
        true => Ok(bytes),
        false => Err("a descriptor is missing".to_owned()),
    }
}

impl Holder {
    pub(super) fn of(given: Given, state: &Path, word: &OsStr) -> io::Result<Holder> {
        let version_file = match given.version_file {
            Some(file) if write_version(&file).is_ok() => Some(file),
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
            version_file,
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

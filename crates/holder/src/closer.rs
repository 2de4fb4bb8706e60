//! The closer: a process in which descriptors of front ends are closed, however long that takes.

use std::{
    collections::{BTreeMap, VecDeque},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, read, write},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};

use crate::{
    protocol::{self, MAX_FILES, Malformed, Packet, Received},
    say,
    server::passing::{Giver, Taker},
};

/// Time in which it closes one packet of descriptors. A closer that needs more is replaced.
const PATIENCE: Duration = Duration::from_secs(1);

/// Most closers that were killed and have not ended. Then descriptors wait, and so do those who
/// give them.
const MOST_KILLED: usize = 32;

/// Word to the closer.
enum Word {
    /// Descriptors, which the sender has, too.
    Take,
    /// The sender has those of the oldest packet no more: close them.
    Close,
}

impl Packet for Word {
    fn write(&self, to: &mut Vec<u8>) {
        to.push(match self {
            Word::Take => b't',
            Word::Close => b'c',
        });
    }

    fn read(bytes: &[u8]) -> Result<Word, Malformed> {
        match bytes {
            b"t" => Ok(Word::Take),
            b"c" => Ok(Word::Close),
            _ => Err(Malformed),
        }
    }
}

/// Closes what comes by standard input until nobody is at its other end.
pub fn run() -> u8 {
    let input = std::io::stdin();
    let mut taken = VecDeque::new();
    loop {
        match protocol::receive::<Word>(&input) {
            Ok(Received::Packet(Word::Take, files)) => taken.push_back(files),
            // Only now: who closes last is who sleeps.
            Ok(Received::Packet(Word::Close, _)) => {
                drop(taken.pop_front());
                // Nobody waits for it: it says that this process lives.
                let _ = write(&input, b"c");
            }
            Ok(Received::Nothing) => {
                let _ = poll(&mut [PollFd::new(&input, PollFlags::IN)], None);
            }
            Ok(Received::End) => return 0,
            Err(_) => {}
        }
    }
}

/// Descriptors of one owner that wait for the closer.
#[derive(Clone, Default)]
pub(crate) struct Debt(Arc<AtomicUsize>);

impl Debt {
    /// True if the owner is to give no more for a while. A message brings 32 at most, so one owner
    /// has fewer than 48 that wait, and those of the front end that it let go.
    pub fn is_high(&self) -> bool {
        self.0.load(Relaxed) >= 16
    }

    /// A number that no other debt has.
    pub fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

/// A closer, from outside.
#[derive(Default)]
pub(crate) struct Closer {
    running: Option<Running>,
    /// Descriptors that could not be given away yet, and whose they are.
    waiting: VecDeque<(OwnedFd, Debt)>,
    /// Debt of all that is nobody's.
    own: Debt,
    /// Children that are to end and have not yet: closers that were killed, and proofs of other
    /// programs.
    ending: Vec<Pid>,
    /// Closers that were let go, and since when: one that hangs is killed like any.
    let_go: Vec<(Pid, Instant)>,
    /// True if the kernel refused some in one packet: they are given one by one.
    singly: bool,
    /// Time before which no other closer is started.
    pause: Option<Instant>,
}

struct Running {
    process: Pid,
    begun: Instant,
    socket: OwnedFd,
    /// Packets that it has not confirmed, and since when it says nothing.
    unconfirmed: usize,
    since: Instant,
    /// Packets that it has and may not close yet.
    unsaid: usize,
}

impl Closer {
    /// Looks after a child from now on that is to end.
    pub fn expect_end(&mut self, child: Pid) {
        self.ending.push(child);
    }

    /// Lets the running closer go, which closes what it has and ends. Another one begins when there
    /// is something to be closed.
    pub fn let_go(&mut self) {
        if let Some(running) = self.running.take() {
            self.let_go.push((running.process, Instant::now()));
        }
    }

    /// Writes down what waits. `debts`: numbers of the owners, by the [keys](Debt::key) of theirs.
    pub fn give<'a>(&'a self, debts: &BTreeMap<usize, u32>, to: &mut Giver<'a>) {
        to.all(self.waiting.iter(), |to, (file, debt)| {
            to.file(file);
            let owner = debts.get(&debt.key());
            to.flag(owner.is_some());
            to.number(owner.copied().unwrap_or_default().into());
        });
        to.all(self.ending.iter(), |to, pid| to.pid(*pid));
        to.all(self.let_go.iter(), |to, (pid, since)| {
            to.pid(*pid);
            to.since(*since);
        });
    }

    /// Reads what waited. `debts`: those of the owners, by number.
    pub fn take(from: &mut Taker<'_>, debts: &[Debt]) -> Result<Closer, Malformed> {
        let mut closer = Closer::default();
        let waiting = from.all(usize::MAX, |from| Ok((from.file()?, from.flag()?, from.u32()?)))?;
        for (file, is_owned, owner) in waiting {
            match debts.get(owner as usize).filter(|_| is_owned) {
                Some(debt) => closer.discard_of(debt, [file]),
                None => closer.discard([file]),
            }
        }
        closer.ending = from.all(usize::MAX, Taker::pid)?;
        closer.let_go = from.all(usize::MAX, |from| Ok((from.pid()?, from.time()?)))?;
        Ok(closer)
    }

    /// Gives away descriptors that are no front end's. Never sleeps.
    pub fn discard(&mut self, files: impl IntoIterator<Item = OwnedFd>) {
        let own = self.own.clone();
        self.discard_of(&own, files);
    }

    /// Gives away descriptors of an owner. Never sleeps.
    pub fn discard_of(&mut self, debt: &Debt, files: impl IntoIterator<Item = OwnedFd>) {
        for file in files {
            debt.0.fetch_add(1, Relaxed);
            self.waiting.push_back((file, debt.clone()));
        }
    }

    /// Time until the next attempt, if something is to be said to it that had no room.
    pub fn waits(&self) -> Option<Duration> {
        match self.running {
            Some(_) if !self.waiting.is_empty() || self.owes() => Some(Duration::from_millis(1)),
            // Until another one may be started.
            None if !self.waiting.is_empty() => Some(Duration::from_millis(100)),
            _ => None,
        }
    }

    /// Descriptor to be polled for its answers.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.socket.as_fd())
    }

    /// Time at which it is to be looked at, at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let hangs = self.running.as_ref().filter(|running| running.unconfirmed > 0);
        let hangs = hangs.map(|running| running.since + PATIENCE);
        let all_ended = self.ending.is_empty() && self.let_go.is_empty();
        let ends = (!all_ended).then(|| Instant::now() + PATIENCE);
        hangs.into_iter().chain(ends).min()
    }

    /// Gives away what waits, and replaces a closer that hangs.
    pub fn turn(&mut self) {
        let runs = |pid: &Pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None));
        self.ending.retain(runs);
        self.let_go.retain(|(pid, since)| match runs(pid) {
            true if since.elapsed() < PATIENCE => true,
            true => {
                let _ = kill_process(*pid, Signal::KILL);
                self.ending.push(*pid);
                false
            }
            false => false,
        });
        if let Some(running) = &mut self.running {
            let mut bytes = [0; 64];
            while let Ok(n @ 1..) = read(&running.socket, &mut bytes) {
                running.unconfirmed = running.unconfirmed.saturating_sub(n);
                running.since = Instant::now();
            }
            if running.unconfirmed > 0 && running.since.elapsed() > PATIENCE {
                say(format_args!("the closer hangs, and is replaced"));
                self.end();
            }
        }
        while !self.waiting.is_empty() || self.owes() {
            if self.running.is_none() && !self.begin() {
                return;
            }
            let Some(running) = &mut self.running else { return };
            if running.unsaid > 0 {
                match protocol::send(&running.socket, &Word::Close, &[]) {
                    Ok(()) => running.unsaid -= 1,
                    Err(Errno::AGAIN) => return,
                    Err(_) => self.end(),
                }
                continue;
            }
            let most = if self.singly { 1 } else { MAX_FILES };
            let some: Vec<_> =
                self.waiting.iter().take(most).map(|(file, _)| file.as_fd()).collect();
            match protocol::send(&running.socket, &Word::Take, &some) {
                Ok(()) => {
                    let count = some.len();
                    // It has copies of its own, and keeps them until it is told.
                    for (file, debt) in self.waiting.drain(..count) {
                        drop(file);
                        debt.0.fetch_sub(1, Relaxed);
                    }
                    self.singly = false;
                    running.unsaid += 1;
                    if running.unconfirmed == 0 {
                        running.since = Instant::now();
                    }
                    running.unconfirmed += 1;
                }
                // It has much to do.
                Err(Errno::AGAIN) => return,
                // Sockets inside sockets inside sockets, or too many under way: it may be one of
                // them alone, which waits behind the others then.
                Err(Errno::TOOMANYREFS) if !self.singly => self.singly = true,
                Err(Errno::TOOMANYREFS) => {
                    self.waiting.rotate_left(1);
                    return;
                }
                Err(_) => self.end(),
            }
        }
    }

    fn owes(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.unsaid > 0)
    }

    /// Starts another one, if it is time. Returns whether there is one.
    fn begin(&mut self) -> bool {
        // One that does not end although it was killed still has what it was given.
        let rests = self.pause.is_some_and(|end| Instant::now() < end);
        if rests || self.ending.len() >= MOST_KILLED {
            return false;
        }
        match start() {
            Ok(running) => self.running = Some(running),
            Err(why) => {
                say(format_args!("no closer can be started: {why}"));
                self.pause = Some(Instant::now() + PATIENCE);
            }
        }
        self.running.is_some()
    }

    fn end(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = kill_process(running.process, Signal::KILL);
            // A process that sleeps in close() is not waited for: it is looked at in each turn.
            self.ending.push(running.process);
            if running.begun.elapsed() < PATIENCE {
                self.pause = Some(Instant::now() + PATIENCE);
            }
        }
    }
}

fn start() -> std::io::Result<Running> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let child = Command::new("/proc/self/exe")
        .arg0("butterflyd")
        .arg(crate::CLOSE)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(Running {
        process: Pid::from_child(&child),
        begun: Instant::now(),
        socket: ours,
        unconfirmed: 0,
        since: Instant::now(),
        unsaid: 0,
    })
}

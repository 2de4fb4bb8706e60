//! The closer: a process in which descriptors of front ends are closed, however long that takes.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, read, write},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};

use crate::{
    protocol::{self, MAX_FILES, Malformed, Packet, Received},
    say,
};

/// Time in which it closes one packet of descriptors. A closer that needs more is replaced.
const PATIENCE: Duration = Duration::from_secs(1);

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

/// A closer, from outside.
#[derive(Default)]
pub(crate) struct Closer {
    running: Option<Running>,
    /// Descriptors that could not be given away yet.
    waiting: VecDeque<OwnedFd>,
}

struct Running {
    process: Child,
    socket: OwnedFd,
    /// Packets that it has not confirmed, and since when it says nothing.
    unconfirmed: usize,
    since: Instant,
    /// Packets that it has and may not close yet.
    unsaid: usize,
}

impl Closer {
    /// Gives away a descriptor. Never sleeps.
    pub fn discard(&mut self, files: impl IntoIterator<Item = OwnedFd>) {
        self.waiting.extend(files);
    }

    /// True if something is to be said to it that had no room.
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty() || self.owes()
    }

    /// Descriptor to be polled for its answers.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.socket.as_fd())
    }

    /// Time at which it is to be looked at, at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let running = self.running.as_ref()?;
        (running.unconfirmed > 0).then(|| running.since + PATIENCE)
    }

    /// Gives away what waits, and replaces a closer that hangs.
    pub fn turn(&mut self) {
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
            if self.running.is_none() {
                self.running = start()
                    .inspect_err(|why| say(format_args!("no closer can be started: {why}")))
                    .ok();
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
            let some: Vec<_> = self.waiting.iter().take(MAX_FILES).map(AsFd::as_fd).collect();
            match protocol::send(&running.socket, &Word::Take, &some) {
                Ok(()) => {
                    let count = some.len();
                    // It has copies of its own, and keeps them until it is told.
                    self.waiting.drain(..count).for_each(drop);
                    running.unsaid += 1;
                    if running.unconfirmed == 0 {
                        running.since = Instant::now();
                    }
                    running.unconfirmed += 1;
                }
                // It has much to do.
                Err(Errno::AGAIN | Errno::TOOMANYREFS) => return,
                Err(_) => self.end(),
            }
        }
    }

    fn owes(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.unsaid > 0)
    }

    fn end(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.process.kill();
            // A process that sleeps in close() cannot be waited for. One that is left is a zombie
            // until the holder ends.
            let _ = running.process.try_wait();
        }
    }
}

fn start() -> std::io::Result<Running> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let process = Command::new("/proc/self/exe")
        .arg(crate::CLOSE)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(Running { process, socket: ours, unconfirmed: 0, since: Instant::now(), unsaid: 0 })
}

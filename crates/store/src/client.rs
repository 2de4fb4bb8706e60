//! The daemon's end: starts the writer, hands it commits, hears of their outcomes.

use crate::{
    record::{Commit, Contents},
    wire::{self, Order, Word},
};
use butterfly_point::{Point, pass};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

/// Pause before a writer that ended is started again.
const PAUSE: Duration = Duration::from_millis(200);

/// News of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The store is open and holds this. If it replaces a damaged one, the name of that.
    Opened(Contents, Option<String>),
    /// The store cannot be used; it is tried again.
    Closed(String),
    /// The commit with this number is on the disk.
    Done(u64),
    /// The commit with this number failed. [`Report::Opened`] or [`Report::Closed`] follows.
    Failed(u64, String),
    /// The copy that was asked for is made, or why it is not. None is made by a writer that ended.
    Copied(Result<(), String>),
    /// The writer ended. Whether the commit that it had is on the disk, [`Report::Opened`] tells.
    Died,
}

#[derive(Debug, Default)]
struct Shared {
    /// Connection to the writer, if there is one.
    stream: Option<UnixStream>,
    /// True if no writer is started any more.
    over: bool,
}

/// A connection to a writer, which is started again when it ends. Never waits for the writer.
#[derive(Debug)]
pub struct Client {
    orders: Sender<Order>,
    reports: Receiver<Report>,
    /// Readable when there are reports.
    news: Arc<OwnedFd>,
    shared: Arc<Mutex<Shared>>,
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Starts the writer, which `command` makes: a process that calls [`crate::writer::run`] with
    /// its standard input.
    pub fn start(command: impl Fn() -> Command + Send + 'static) -> io::Result<Self> {
        let news = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (orders, to_send) = channel();
        let (told, reports) = channel();
        let streams = shared.clone();
        thread::Builder::new()
            .name("store-send".into())
            .spawn(move || send_all(&to_send, &streams))?;
        let (streams, wake) = (shared.clone(), news.clone());
        thread::Builder::new()
            .name("store".into())
            .spawn(move || supervise(&command, &streams, &told, &wake))?;
        Ok(Self { orders, reports, news, shared })
    }

    /// Hands a commit to the writer. To be called when the store is open and has no other commit.
    pub fn commit(&self, commit: Commit) {
        // It fails never: the thread lives as long as this.
        let _ = self.orders.send(Order::Commit(commit));
    }

    /// Has the writer copy the store's file into a directory, which is made if it is not there:
    /// [`COPY`](crate::COPY).
    pub fn copy(&self, directory: &Path) {
        let _ = self.orders.send(Order::Copy(directory.as_os_str().as_bytes().to_vec()));
    }

    /// A descriptor that is readable when there are reports.
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// The next report, if there is one.
    pub fn next(&self) -> Option<Report> {
        let next = self.reports.try_recv().ok();
        if next.is_none() {
            let _ = rustix::io::read(&*self.news, &mut [0; 8]);
            // One that came in between has made it readable again, or is here.
            return self.reports.try_recv().ok();
        }
        next
    }

    /// Waits for the next report.
    pub fn wait(&self, patience: Duration) -> Option<Report> {
        self.reports.recv_timeout(patience).ok()
    }
}

impl Drop for Client {
    /// The writer finishes its commit and ends.
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.over = true;
        if let Some(stream) = &shared.stream {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn send_all(orders: &Receiver<Order>, shared: &Mutex<Shared>) {
    for order in orders {
        let stream = lock(shared).stream.as_ref().and_then(|stream| stream.try_clone().ok());
        let Some(stream) = stream else { continue };
        // Of one that ended, the other thread hears.
        if wire::send(&stream, &wire::of_order(&order)).is_err() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        pass(Point::CommitHandedOver);
    }
}

fn supervise(
    command: &dyn Fn() -> Command,
    shared: &Mutex<Shared>,
    told: &Sender<Report>,
    news: &OwnedFd,
) {
    let tell = |report| {
        let _ = told.send(report);
        let _ = rustix::io::write(news, &1u64.to_ne_bytes());
    };
    loop {
        match writer(command) {
            Ok((mut child, stream)) => {
                let reader = stream.try_clone();
                {
                    let mut shared = lock(shared);
                    if shared.over {
                        return;
                    }
                    shared.stream = Some(stream);
                }
                if let Ok(reader) = reader {
                    listen(&reader, &tell);
                }
                lock(shared).stream = None;
                if lock(shared).over {
                    return;
                }
                tell(Report::Died);
                let _ = child.kill();
                // One that hangs in a disk ends when that goes on. Another thread waits for it.
                let _ = thread::Builder::new().name("store-end".into()).spawn(move || child.wait());
            }
            Err(error) => tell(Report::Closed(format!("its writer cannot be started: {error}"))),
        }
        thread::sleep(PAUSE);
    }
}

fn listen(stream: &UnixStream, tell: &dyn Fn(Report)) {
    while let Ok(Some(frame)) = wire::receive(stream) {
        tell(match wire::word(&frame) {
            Ok(Word::Opened(contents, aside)) => Report::Opened(contents, aside),
            Ok(Word::Closed(why)) => Report::Closed(why),
            Ok(Word::Done(sequence)) => Report::Done(sequence),
            Ok(Word::Failed(sequence, why)) => Report::Failed(sequence, why),
            Ok(Word::Copied(outcome)) => Report::Copied(outcome),
            Err(_) => return,
        });
    }
}

fn writer(command: &dyn Fn() -> Command) -> io::Result<(std::process::Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child =
        command().stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).spawn()?;
    Ok((child, ours))
}

//! The writer: the process that touches the disk, and may hang in it.

use crate::{
    COPY,
    disk::{Disk, Trouble, copy, set_aside},
    record::Contents,
    wire::{self, Order, Word},
};
use butterfly_layout::rehearsal;
use butterfly_point::{Point, pass};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt, net::UnixStream},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

/// Time between two attempts to open a store.
const AGAIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// The same while another process has it, which is about to end as a rule.
const WHILE_LOCKED: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Makes the commits that come by `daemon` to the store in `directory`, one after the other, until
/// the daemon closes the connection. A copy that a proof left is removed.
pub fn run(directory: &Path, daemon: &UnixStream) -> io::Result<()> {
    let forget_copy = || {
        let _ = fs::remove_dir_all(directory.join(COPY));
    };
    forget_copy();
    let ended = serve(directory, daemon);
    forget_copy();
    ended
}

fn serve(directory: &Path, daemon: &UnixStream) -> io::Result<()> {
    let tell = |word: &Word| wire::send(daemon, &wire::of_word(word));
    let mut open = None;
    let mut told = String::new();
    loop {
        if open.is_none() {
            match opened(directory) {
                Ok((disk, contents, aside)) => {
                    tell(&Word::Opened(contents, aside))?;
                    open = Some(disk);
                    told.clear();
                }
                Err(why) => {
                    let text = why.to_string();
                    if text != told {
                        tell(&Word::Closed(text.clone()))?;
                        told = text;
                    }
                    let wait = if matches!(why, Trouble::Locked) { WHILE_LOCKED } else { AGAIN };
                    if !something_comes(daemon, &wait)? {
                        continue;
                    }
                }
            }
        }
        let Some(frame) = wire::receive(daemon)? else { return Ok(()) };
        let commit = match wire::order(&frame)? {
            Order::Commit(commit) => commit,
            Order::Copy(to) => {
                let outcome = match open {
                    // Nothing else writes to the file, and no commit is under way.
                    Some(_) => copy(directory, Path::new(OsStr::from_bytes(&to))),
                    None => Err(Trouble::Other("the store is not open".into())),
                };
                tell(&Word::Copied(outcome.map_err(|why| why.to_string())))?;
                continue;
            }
        };
        pass(Point::WriterHas);
        if commit.whole {
            rehearsal::pass("store");
        }
        let outcome = match &open {
            Some(disk) => guarded(|| disk.commit(&commit), Trouble::Other),
            None => Err(Trouble::Other("the store is not open".into())),
        };
        pass(Point::WriterDone);
        match outcome {
            Ok(()) => tell(&Word::Done(commit.sequence))?,
            Err(why) => {
                // The library does not go on after an error of the disk.
                open = None;
                tell(&Word::Failed(commit.sequence, why.to_string()))?;
            }
        }
    }
}

/// Opens and reads the store. A damaged one is set aside.
fn opened(directory: &Path) -> Result<(Disk, Contents, Option<String>), Trouble> {
    let read = |disk: Disk| disk.read().map(|contents| (disk, contents));
    let attempt = guarded(|| Disk::open(directory).and_then(read), Trouble::Damaged);
    match attempt {
        Ok((disk, contents)) => Ok((disk, contents, None)),
        Err(Trouble::Damaged(why)) => {
            let (disk, aside) = set_aside(directory)?;
            let (disk, contents) = read(disk)?;
            Ok((disk, contents, Some(format!("{} ({why})", aside.display()))))
        }
        Err(other) => Err(other),
    }
}

/// The library says of some damage that it is a defect of its own.
fn guarded<T>(
    attempt: impl FnOnce() -> Result<T, Trouble>,
    as_trouble: fn(String) -> Trouble,
) -> Result<T, Trouble> {
    catch_unwind(AssertUnwindSafe(attempt))
        .unwrap_or_else(|_| Err(as_trouble("the library cannot go on with it: see the log".into())))
}

/// Waits so long at most until the daemon says something.
fn something_comes(daemon: &UnixStream, wait: &Timespec) -> io::Result<bool> {
    let mut watched = [PollFd::new(&daemon, PollFlags::IN)];
    match poll(&mut watched, Some(wait)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

//! The Unix socket of a vnic: listening and connecting.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, flock, openat},
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
        connect as connect_to, listen as listen_on, socket_with,
    },
};

use super::start::StartError;

/// Longest path of a Unix socket in bytes (`sun_path` without its final NUL).
pub const MAX_PATH: usize = 107;

/// Front ends that may wait behind the one that is attached.
const BACKLOG: i32 = 16;

/// Owner and group may connect: a process that may connect is the VM. A group that is not ours
/// comes from a set-group-ID directory.
const MODE: u32 = 0o660;

/// Time for which another process may lock the folder. It makes one socket meanwhile.
const LOCK_PATIENCE: Duration = Duration::from_millis(100);

/// Time for which the daemon no longer waits for a folder lock that was once held longer than that.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Checks a path once; the same for both roles.
pub(super) fn check_path(path: &Path) -> Result<SocketAddrUnix, StartError> {
    let len = path.as_os_str().len();
    if len > MAX_PATH {
        return Err(StartError::PathTooLong { path: path.to_owned(), len });
    }
    if len == 0 {
        return Err(StartError::Socket {
            what: "use",
            path: path.to_owned(),
            source: io::ErrorKind::InvalidInput.into(),
        });
    }
    SocketAddrUnix::new(path).map_err(|source| StartError::Socket {
        what: "use",
        path: path.to_owned(),
        source: source.into(),
    })
}

fn stream_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// A listening socket and the file that leads to it, which goes away with it.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of our file. Another process's file at the same path is not removed.
    file: (u64, u64),
}

impl Listener {
    /// Listens at `path`. A socket file on which no process answers is replaced. Any other file
    /// there is left alone.
    pub fn new(path: &Path) -> Result<Listener, StartError> {
        let address = check_path(path)?;
        let failed = |what| {
            move |source: io::Error| StartError::Socket { what, path: path.to_owned(), source }
        };
        // Another daemon may want the same path: only one looks and binds at a time.
        let _folder = lock_folder(path);
        remove_stale(path, &address)?;
        let socket = stream_socket().map_err(|e| failed("make a socket for")(e.into()))?;
        bind(&socket, &address).map_err(|e| failed("bind")(e.into()))?;
        let file = std::fs::symlink_metadata(path).map_err(failed("look at"))?;
        let listener = Listener { socket, path: path.to_owned(), file: (file.dev(), file.ino()) };
        // No process can connect before listen().
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(MODE))
            .map_err(failed("set the permissions of"))?;
        listen_on(&listener.socket, BACKLOG).map_err(|e| failed("listen on")(e.into()))?;
        Ok(listener)
    }

    /// The socket alone; its file stays where it is.
    fn give_away(mut self) -> io::Result<OwnedFd> {
        let socket = self.socket.try_clone()?;
        self.file = (0, 0); // no file has this number
        Ok(socket)
    }

    /// The next front end that waits, if there is one.
    pub fn accept(&self) -> rustix::io::Result<Option<OwnedFd>> {
        match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(connection) => Ok(Some(connection)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path)
            .is_ok_and(|file| (file.dev(), file.ino()) == self.file)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, as a device would, for somebody else. The file stays.
pub fn listen(path: &Path) -> Result<OwnedFd, StartError> {
    Listener::new(path)?.give_away().map_err(|source| StartError::Socket {
        what: "listen on",
        path: path.to_owned(),
        source,
    })
}

/// Checks that a device could listen at `path` now: listens there for a moment.
pub fn may_listen(path: &Path) -> Result<(), StartError> {
    Listener::new(path).map(drop)
}

/// Locks the folder of a path until the result is dropped. Returns `None` if the folder cannot be
/// locked now.
///
/// Every process that may read a folder may lock it, front ends among them. So the daemon waits
/// only briefly, and not again soon. Without the lock two daemons can only disturb each other if
/// both want one path at the same moment.
fn lock_folder(path: &Path) -> Option<OwnedFd> {
    static KEPT: Mutex<Option<Instant>> = Mutex::new(None);
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The bind that follows reports what is wrong with the folder, if anything.
    let folder =
        openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .ok()?;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let patience = if kept.is_some_and(|when| when.elapsed() < KEPT_FOR) {
        Duration::ZERO
    } else {
        LOCK_PATIENCE
    };
    let begun = Instant::now();
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::WOULDBLOCK) if begun.elapsed() < patience => {
                std::thread::sleep(Duration::from_micros(200))
            }
            Err(_) => {
                if !patience.is_zero() {
                    *kept = Some(Instant::now());
                }
                return None;
            }
        }
    }
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), StartError> {
    let failed =
        |what, source: io::Error| StartError::Socket { what, path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", error)),
        Ok(file) if !file.file_type().is_socket() => {
            return Err(StartError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    let probe = stream_socket().map_err(|e| failed("make a socket for", e.into()))?;
    match connect_to(&probe, address) {
        // A full backlog (AGAIN) belongs to a living process too.
        Ok(()) | Err(Errno::AGAIN) => Err(StartError::InUse(path.to_owned())),
        Err(Errno::CONNREFUSED) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove the stale socket", error))
            }
            _ => Ok(()),
        },
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed("find out whether somebody listens on", error.into())),
    }
}

/// Connects without waiting, as often as necessary, with one socket: a host may have many vnics
/// whose server is not there yet.
#[derive(Default)]
pub(super) struct Dialer(Option<OwnedFd>);

impl Dialer {
    pub fn connect(&mut self, address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
        let socket = match self.0.take() {
            Some(socket) => socket,
            None => stream_socket()?,
        };
        match connect_to(&socket, address) {
            Ok(()) => Ok(socket),
            Err(error) => {
                // No server was there: the socket is as before.
                if matches!(error, Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) {
                    self.0 = Some(socket);
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    /// Many listeners want a path at once, and a socket without a server lies there. One of them
    /// gets the path and keeps it until it is gone.
    #[test]
    fn one_of_many_has_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        for _ in 0..50 {
            let _ = std::fs::remove_file(&path);
            drop(UnixListener::bind(&path).unwrap());
            let start = std::sync::Barrier::new(4);
            let made: Vec<_> = std::thread::scope(|scope| {
                let one = || {
                    start.wait();
                    Listener::new(&path)
                };
                let all: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                all.into_iter().map(|one| one.join().unwrap()).collect()
            });
            let has: Vec<_> = made.iter().filter_map(|one| one.as_ref().ok()).collect();
            let [one] = has[..] else { panic!("{} listen", has.len()) };
            let file = std::fs::symlink_metadata(&path).unwrap();
            assert_eq!(one.file, (file.dev(), file.ino()));
        }
        // A process that keeps the folder locked does not keep others waiting. Tested here and not
        // in a test of its own, because the process remembers it.
        let folder = std::fs::File::open(directory.path()).unwrap();
        flock(&folder, FlockOperation::LockExclusive).unwrap();
        let begun = Instant::now();
        let made: Vec<_> = (0..100)
            .map(|n| Listener::new(&directory.path().join(format!("{n}"))).unwrap())
            .collect();
        assert!(begun.elapsed() < LOCK_PATIENCE * 10, "{:?} for {}", begun.elapsed(), made.len());
    }

    use super::*;
    use std::os::unix::net::{UnixDatagram, UnixListener};

    #[test]
    fn a_stale_socket_is_replaced_and_ours_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the file");
        let listener = Listener::new(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        Dialer::default().connect(&check_path(&path).unwrap()).unwrap();
        assert!(listener.accept().unwrap().is_some());
        assert!(listener.accept().unwrap().is_none());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn one_socket_serves_until_somebody_answers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let address = check_path(&path).unwrap();
        let mut dialer = Dialer::default();
        for _ in 0..3 {
            assert_eq!(dialer.connect(&address).unwrap_err(), Errno::NOENT);
        }
        // A file without a listener, then one with a listener.
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(dialer.connect(&address).unwrap_err(), Errno::CONNREFUSED);
        std::fs::remove_file(&path).unwrap();
        let server = UnixListener::bind(&path).unwrap();
        let connected = std::os::unix::net::UnixStream::from(dialer.connect(&address).unwrap());
        connected.set_nonblocking(false).unwrap();
        std::io::Write::write_all(&mut &connected, b"x").unwrap();
        let mut byte = [0];
        std::io::Read::read_exact(&mut server.accept().unwrap().0, &mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn what_others_use_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let other = UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::new(&path), Err(StartError::InUse(_))));
        drop(other);
        let listener = Listener::new(&path).unwrap();
        // Replaced behind our back: not ours to remove.
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(other);

        let file = directory.path().join("file");
        std::fs::write(&file, b"precious").unwrap();
        assert!(matches!(Listener::new(&file), Err(StartError::NotASocket(_))));
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        let datagram = directory.path().join("datagram");
        let _other = UnixDatagram::bind(&datagram).unwrap();
        assert!(matches!(Listener::new(&datagram), Err(StartError::Socket { .. })));
    }

    #[test]
    fn the_longest_path_works_and_a_longer_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let fill = MAX_PATH - directory.path().as_os_str().len() - 1;
        let longest = directory.path().join("x".repeat(fill));
        assert_eq!(longest.as_os_str().len(), MAX_PATH);
        let listener = Listener::new(&longest).unwrap();
        Dialer::default().connect(&check_path(&longest).unwrap()).unwrap();
        drop(listener);
        let longer = directory.path().join("x".repeat(fill + 1));
        assert!(matches!(Listener::new(&longer), Err(StartError::PathTooLong { len: 108, .. })));
        assert!(Listener::new(Path::new("")).is_err());
    }
}

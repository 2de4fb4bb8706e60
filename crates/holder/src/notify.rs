//! Tells systemd how a process is: sd_notify(3), a datagram to the socket that `NOTIFY_SOCKET`
//! names.
//!
//! Not by the crate `sd-notify`: its sockets block, so a systemd that does not read would hold up
//! the daemon's watchdog and its end. It takes the socket's name from the environment
//! only, which a test cannot set without `unsafe`.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

/// Tries while systemd is busy: ten seconds.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// Socket on which systemd listens.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Notify {
    /// Connects to the process that started us, if that wants to hear.
    pub fn from_environment() -> Option<Self> {
        Self::to(&env::var_os("NOTIFY_SOCKET")?).ok()
    }

    /// Connects to a path, or after an @ to a name in the abstract space.
    pub fn to(place: &OsStr) -> io::Result<Self> {
        let address = match place.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(place)?,
        };
        let socket = UnixDatagram::unbound()?;
        // Signs of life do not wait: of two the second tells as much.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }

    /// Says `state`, such as `WATCHDOG=1`; not if systemd is busy.
    pub fn say(&self, state: &str) {
        // If systemd does not listen, there is no other place to report it.
        let _ = self.socket.send_to_addr(state.as_bytes(), &self.address);
    }

    /// Says what must not be lost, such as `READY=1`: a system that starts keeps systemd busy, and
    /// one that never hears it ends us.
    pub fn insist(&self, state: &str) {
        for _ in 0..TRIES {
            match self.socket.send_to_addr(state.as_bytes(), &self.address) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(PAUSE)
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_abstract_names_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("@butterfly-notify-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name.as_bytes()[1..]).unwrap();
        let sockets = [
            (path.as_os_str(), UnixDatagram::bind(&path).unwrap()),
            (OsStr::new(&name), UnixDatagram::bind_addr(&abstract_address).unwrap()),
        ];
        for (place, socket) in sockets {
            Notify::to(place).unwrap().say("READY=1");
            let mut buffer = [0; 100];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
    }

    #[test]
    fn nobody_waits_for_a_systemd_that_does_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let _deaf = UnixDatagram::bind(&path).unwrap();
        let notify = Notify::to(path.as_os_str()).unwrap();
        for _ in 0..10_000 {
            notify.say("WATCHDOG=1");
        }
    }
}

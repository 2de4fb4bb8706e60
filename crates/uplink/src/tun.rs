//! A file of `/dev/net/tun`: what becomes a TAP device, and is it until it is dropped.

use std::{
    fs::OpenOptions,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
};

use crate::{Error, sys};

pub use crate::sys::TapName;

/// The largest MTU the kernel gives a TAP device, in bytes.
pub const MAX_MTU: u32 = 65_521;

/// A file of `/dev/net/tun`. Reads and writes do not wait.
#[derive(Debug)]
pub struct Tun(OwnedFd);

impl Tun {
    /// Opens one, which is no device yet.
    pub fn open() -> Result<Tun, Error> {
        let path = "/dev/net/tun";
        let tun =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        tun.map(|file| Tun(file.into())).map_err(|error| {
            Error::failed(format!("cannot open {path} for a TAP device"), error)
                .help("it needs root and the kernel's module tun")
        })
    }

    /// Takes a file that another process opened. Fails if it is no device.
    pub fn of(file: OwnedFd) -> io::Result<Tun> {
        let tun = Tun(file);
        tun.name()?;
        Ok(tun)
    }

    /// Makes it a TAP device in the network namespace of this thread. Each frame has a virtio-net
    /// header of `header` bytes in the host's byte order before it, and is complete: no offloads.
    /// Returns the name it got; `%d` in `name` is a number of the kernel's choice. Needs
    /// `CAP_NET_ADMIN`.
    pub fn make_tap(&self, name: &str, how: TapName, header: u8) -> io::Result<String> {
        sys::make_tap(self.as_fd(), name, how, header.into())
    }

    /// Says what frames may leave to their reader (flags `TUN_F_*`).
    pub fn set_offloads(&self, takes: u32) -> io::Result<()> {
        sys::set_tap_offloads(self.as_fd(), takes as usize)
    }

    /// Returns the name that the device has now, in whatever network namespace it is.
    pub fn name(&self) -> io::Result<String> {
        sys::tap_name(self.as_fd())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

//! A TAP device that another program on this host uses: a container, another network namespace, the
//! host itself.
//!
//! Unlike [`butterfly_uplink::tap`] this is not a way out: the user of the device is a station like
//! a VM, with the address of its vnic. Frames carry the virtio-net header of 12 bytes, so they go
//! between the device and virtqueues as they are.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use butterfly_packet::Mac;
use butterfly_uplink::{
    Error,
    kernel::Kernel,
    tun::{MAX_MTU, TapName, Tun},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::bridged::Watched;

/// Length of the virtio-net header before each frame (virtio 1.2, 5.1.6).
pub const HEADER_LEN: usize = 12;
/// Name pattern for the kernel where no better name can be had.
const NUMBERED: &str = "tap%d";
/// `NSFS_MAGIC`: the file system of namespaces.
const NAMESPACES: u64 = 0x6e73_6673;

/// Parameters of the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StationConfig {
    /// The name it gets if it can have it; else one of the kernel's choice. In another namespace
    /// it must be free.
    pub name: String,
    /// Address of the device's user.
    pub mac: Mac,
    /// Largest IP packet, in bytes. The kernel takes up to 65,521.
    pub mtu: u32,
    /// The network namespace it is moved to, as a file.
    pub namespace: Option<PathBuf>,
}

/// Offloads that may be left to the reader of the device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Offloads {
    /// Checksums.
    pub checksum: bool,
    /// Cutting TCP over IPv4 into segments; nothing without `checksum`.
    pub tso4: bool,
    /// The same over IPv6.
    pub tso6: bool,
    /// The same of TCP with ECN.
    pub ecn: bool,
    /// Cutting UDP into datagrams; nothing without `checksum`.
    pub uso: bool,
}

/// Both flags by which a TAP device hands over several datagrams of UDP as one frame. Linux 6.2 and
/// later know them, only together.
const TUN_F_USO: u32 = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// A TAP device. It goes when this is dropped, or the process ends.
#[derive(Debug)]
pub struct Station {
    tun: Arc<Tun>,
    name: String,
    /// Its number, if it was made for our own network namespace.
    here: Option<u32>,
    mtu: u32,
    /// The watch of a device that is in our own network namespace.
    _bridged: Option<Watched>,
}

impl Station {
    /// Makes the device, moves it and takes it up. Needs `CAP_NET_ADMIN`. On an error nothing is
    /// left.
    pub fn make(config: &StationConfig) -> Result<Station, Error> {
        let namespace = config.namespace.as_deref().map(open_namespace).transpose()?;
        let wanted = is_name(&config.name).then_some(config.name.as_str());
        let tun = Tun::open()?;
        // One that moves gets its name where it goes.
        let name = match wanted.filter(|_| namespace.is_none()) {
            Some(wanted) => match make(&tun, wanted) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => make(&tun, NUMBERED),
                made => made,
            },
            None => make(&tun, NUMBERED),
        };
        let name = name.map_err(|error| Error::failed("cannot make a TAP device", error))?;
        let mut kernel = Kernel::open()?;
        let made = kernel.interface(&name)?;
        let mtu = config.mtu.min(MAX_MTU);
        kernel.set_station(&made, config.mac, mtu, namespace.is_none()).map_err(|error| {
            Error::failed(
                format!(
                    "cannot give the TAP device {name} the address {} and the MTU {mtu}",
                    config.mac
                ),
                error,
            )
        })?;
        let (Some(namespace), Some(path)) = (namespace, &config.namespace) else {
            let bridged = Watched::new(made.index, config.mac)?;
            let tun = Arc::new(tun);
            return Ok(Station { tun, name, here: Some(made.index), mtu, _bridged: Some(bridged) });
        };
        let there = wanted.unwrap_or(NUMBERED);
        kernel
            .move_to(&made, namespace.as_fd(), there)
            .map_err(|error| not_moved(path, there, error))?;
        let name = tun
            .name()
            .map_err(|error| Error::failed("cannot ask for the name of a TAP device", error))?;
        Ok(Station { tun: Arc::new(tun), name, here: None, mtu, _bridged: None })
    }

    /// Takes up the device of another process: its interface, with everything that was done to it.
    /// Fails if it is none any more.
    pub fn take_up(config: &StationConfig, device: OwnedFd) -> Result<Station, Error> {
        let failed = |error| Error::failed("cannot take up a TAP device", error);
        let tun = Tun::of(device).map_err(failed)?;
        let name = tun.name().map_err(failed)?;
        let mtu = config.mtu.min(MAX_MTU);
        let tun = Arc::new(tun);
        if config.namespace.is_some() {
            return Ok(Station { tun, name, here: None, mtu, _bridged: None });
        }
        let found = Kernel::open()?.interface(&name)?;
        let bridged = Some(Watched::new(found.index, config.mac)?);
        Ok(Station { tun, name, here: Some(found.index), mtu: found.mtu, _bridged: bridged })
    }

    /// Watches the device from another thread, without keeping it.
    pub fn link(&self) -> StationWatch {
        StationWatch(Arc::downgrade(&self.tun))
    }

    /// Returns the name it was made with. The device's user may give it another.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives it another MTU, as that of its network has changed. An MTU that another program gave
    /// it stays. So does that of a device in another network namespace, which `CAP_NET_ADMIN` alone
    /// does not let the daemon enter.
    pub fn follow(&mut self, mtu: u32) -> Result<(), Error> {
        let mtu = mtu.min(MAX_MTU);
        let had = std::mem::replace(&mut self.mtu, mtu);
        let Some(index) = self.here else { return Ok(()) };
        let mut kernel = Kernel::open()?;
        // It may have been moved away by hand, and the number be another one's.
        let ours = |name: &str| self.tun.name().is_ok_and(|own| own == name);
        match kernel.interface_at(index)?.filter(|found| ours(&found.name) && found.mtu == had) {
            Some(found) => kernel.set_mtu(&found, mtu),
            None => Ok(()),
        }
    }

    /// Returns whether the kernel exchanges several datagrams of UDP in one frame. To be asked
    /// before [`Self::set_offloads`].
    pub fn knows_uso(&self) -> bool {
        let only = Offloads { checksum: true, uso: true, ..Offloads::default() };
        self.set_offloads(only).is_ok()
    }

    /// Says what frames may leave to their reader.
    pub fn set_offloads(&self, offloads: Offloads) -> Result<(), Error> {
        let Offloads { checksum, tso4, tso6, ecn, uso } = offloads;
        let flags = [
            (checksum, libc::TUN_F_CSUM),
            (checksum && tso4, libc::TUN_F_TSO4),
            (checksum && tso6, libc::TUN_F_TSO6),
            (checksum && uso, TUN_F_USO),
        ];
        let ecn = (checksum && ecn && (tso4 || tso6), libc::TUN_F_TSO_ECN);
        let takes = flags
            .into_iter()
            .chain([ecn])
            .filter(|(on, _)| *on)
            .fold(0, |all, (_, flag)| all | flag);
        self.tun.set_offloads(takes).map_err(|error| {
            Error::failed(format!("cannot set the offloads of the TAP device {}", self.name), error)
        })
    }
}

impl AsFd for Station {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}

/// Tells whether a TAP device can take frames. Does not keep it open.
#[derive(Debug)]
pub struct StationWatch(Weak<Tun>);

/// State of a TAP device's interface, in any network namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StationState {
    /// Up.
    Up,
    /// Down, and takes no frames. With the name it has now.
    Down(String),
    /// Deleted, or its device is not open any more.
    Gone,
}

impl StationWatch {
    /// Asks the kernel. Never waits.
    pub fn state(&self) -> StationState {
        let Some(tun) = self.0.upgrade() else { return StationState::Gone };
        // The kernel lets a TAP device be written to while its interface is up
        // (`tun_sock_writeable`).
        let mut looked = [PollFd::new(&*tun, PollFlags::OUT)];
        let asked = poll(&mut looked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let [found] = looked.map(|looked| looked.revents());
        if found.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return StationState::Gone;
        }
        match tun.name() {
            Ok(name) if asked.is_ok() && !found.contains(PollFlags::OUT) => {
                StationState::Down(name)
            }
            _ => StationState::Up,
        }
    }
}

fn make(tun: &Tun, name: &str) -> io::Result<String> {
    tun.make_tap(name, TapName::New, HEADER_LEN as u8)
}

/// True if an interface can be called so, and every reader of its name copes: printable, no
/// pattern, no name of sysctls.
fn is_name(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%');
    (1..libc::IFNAMSIZ).contains(&name.len())
        && name.bytes().all(fine)
        && !matches!(name, "." | ".." | "all" | "default")
}

/// Looks before it opens: opening some files does something.
fn open_namespace(path: &Path) -> Result<File, Error> {
    let what = || format!("cannot use the network namespace {}", path.display());
    let failed = |error: io::Error| {
        let absent = error.kind() == io::ErrorKind::NotFound;
        let error = Error::failed(what(), error);
        if absent {
            error.help("`ip netns` lists those that have a name; `ip netns attach NAME PID` gives one to that of a process")
        } else {
            error
        }
    };
    let no_namespace = || {
        Error::refused(format!("{}: it is no namespace", what()))
            .help("it may have been one that was deleted")
    };
    let found = rustix::fs::statfs(path).map_err(|error| failed(error.into()))?;
    if found.f_type as u64 != NAMESPACES {
        return Err(no_namespace());
    }
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(failed)
}

fn not_moved(path: &Path, name: &str, error: io::Error) -> Error {
    let what = format!("cannot move a TAP device into the network namespace {}", path.display());
    match error.raw_os_error() {
        Some(libc::EEXIST) => {
            Error::refused(format!("{what}: it has an interface called {name} already"))
                .help("remove or rename that one, or give the nic another id")
        }
        Some(libc::EINVAL) => Error::refused(format!("{what}: it is no network namespace")),
        _ => Error::failed(what, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_everybody_can_read_becomes_a_name() {
        for name in ["a", "vm-1", "eth0", "fifteen-letters", "veth0@if3"] {
            assert!(is_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "sixteen-letters!",
            "a b",
            "a:1",
            "a%d",
            "a/b",
            "é",
            "all",
            "default",
            "a\0",
        ] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn what_is_no_namespace_is_refused_unopened() {
        let refusal = |path: &str| open_namespace(Path::new(path)).unwrap_err().to_string();
        assert!(refusal("/run/netns/there-is-no-such").contains("ip netns attach"));
        for path in ["/dev/null", "/etc/passwd", "/proc/self", "/"] {
            assert!(refusal(path).contains("it is no namespace"), "{path}");
        }
        assert!(open_namespace(Path::new("/proc/self/ns/net")).is_ok());
    }
}

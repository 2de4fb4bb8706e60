//! Keeps a network card listening to multicast groups that the host itself did not join.
//!
//! A card's filter lets only its own address and requested groups in. AF_XDP requests none. A
//! packet socket that receives nothing does (packet(7), `PACKET_ADD_MEMBERSHIP`); the kernel undoes
//! it all when the socket is closed.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use butterfly_packet::Mac;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{Error, sys};

/// The groups an interface listens to for us.
#[derive(Debug)]
pub struct Groups {
    socket: OwnedFd,
    interface: u32,
    members: BTreeSet<Mac>,
}

impl Groups {
    /// Listens to no group yet of the interface with index `interface`. Needs `CAP_NET_RAW`.
    pub fn open(interface: u32) -> Result<Groups, Error> {
        // Protocol 0: receives nothing.
        let socket = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| {
            Error::failed("cannot open a packet socket to join groups", error)
                .help("it needs CAP_NET_RAW")
        })?;
        Ok(Groups { socket, interface, members: BTreeSet::new() })
    }

    /// Listens to all addresses until it is dropped, groups and machines of others alike.
    pub fn all(&self) -> Result<(), Error> {
        let what = || format!("cannot make interface {} receive all frames", self.interface);
        sys::receive_all(self.socket.as_fd(), self.interface)
            .map_err(|error| Error::failed(what(), error))
    }

    /// Listens to exactly these groups: joins those that are new and leaves the others. On an
    /// error, some may be missing; the same call again tries those.
    pub fn set(&mut self, groups: impl IntoIterator<Item = Mac>) -> Result<(), Error> {
        let wanted: BTreeSet<Mac> = groups.into_iter().collect();
        let gone: Vec<Mac> = self.members.difference(&wanted).copied().collect();
        gone.into_iter().try_for_each(|group| self.leave(group))?;
        wanted.into_iter().try_for_each(|group| self.join(group))
    }

    /// Listens to a group; nothing changes if it does already.
    pub fn join(&mut self, group: Mac) -> Result<(), Error> {
        if !self.members.contains(&group) {
            let what = || format!("cannot make interface {} listen to {group}", self.interface);
            self.change(group, true).map_err(|error| Error::failed(what(), error))?;
            self.members.insert(group);
        }
        Ok(())
    }

    /// Ends listening to a group; nothing changes if it did not.
    pub fn leave(&mut self, group: Mac) -> Result<(), Error> {
        if self.members.remove(&group) {
            let what =
                || format!("cannot end listening to {group} on interface {}", self.interface);
            self.change(group, false).map_err(|error| Error::failed(what(), error))?;
        }
        Ok(())
    }

    /// The groups joined, in order.
    pub fn members(&self) -> impl Iterator<Item = Mac> {
        self.members.iter().copied()
    }

    fn change(&self, group: Mac, member: bool) -> io::Result<()> {
        sys::set_membership(self.socket.as_fd(), self.interface, group.0, member)
    }
}

impl AsFd for Groups {
    /// While a copy is open, the interface listens to the groups.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

//! Ports that machines share, kept for a host to come.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::harness::{Host, error::Error};
use crate::plane::ports::KeptPorts;

/// Ports that machines share, kept as a holder keeps them.
#[derive(Default)]
pub(super) struct PortsInMemory(Mutex<BTreeMap<String, OwnedFd>>);

impl PortsInMemory {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptPorts for PortsInMemory {
    fn take(&self, name: &str) -> Option<OwnedFd> {
        self.all().get(name)?.try_clone().ok()
    }

    fn keep(&self, name: &str, ports: BorrowedFd<'_>) -> io::Result<()> {
        self.all().insert(name.to_owned(), ports.try_clone_to_owned()?);
        Ok(())
    }

    fn forget(&self, name: &str) {
        self.all().remove(name);
    }
}

impl Host {
    /// Has the ports that machines shared on a host that died, for rules to come.
    pub fn take_ports(&mut self, of: &Host) -> Result<(), Error> {
        for (name, ports) in &*of.kept_ports.all() {
            self.kept_ports.keep(name, ports.as_fd())?;
        }
        Ok(())
    }

    /// Returns how many addresses have their ports kept for a host to come.
    pub fn kept_ports(&self) -> usize {
        self.kept_ports.all().len()
    }
}

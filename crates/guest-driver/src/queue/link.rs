//! A queue as the device sees it: the ring, and notifications both ways.

use std::{os::fd::OwnedFd, sync::Arc};

use rustix::event::EventfdFlags;

use crate::{memory::MemoryError, ring::AnyRing};

/// The device's view of a queue: its ring, and the descriptors of both directions' notifications.
#[derive(Clone, Debug)]
pub struct QueueLink {
    /// The ring.
    pub ring: AnyRing,
    /// Position at which a device that knows nothing of the ring begins, as SET_VRING_BASE says
    /// it.
    pub first: u16,
    /// Written to notify the device.
    pub kick: Arc<OwnedFd>,
    /// Written by the device to interrupt.
    pub call: Arc<OwnedFd>,
}

impl QueueLink {
    /// Makes a link with new descriptors, for a fresh ring.
    pub fn new(ring: AnyRing) -> Result<QueueLink, MemoryError> {
        let failed = |e: rustix::io::Errno| MemoryError::System {
            what: "create an eventfd",
            source: e.into(),
            hint: "",
        };
        let fd = || {
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map(Arc::new)
                .map_err(failed)
        };
        Ok(QueueLink { first: ring.start(), ring, kick: fd()?, call: fd()? })
    }

    /// Notifies the device.
    pub fn kick(&self) {
        // The only failure of a non-blocking eventfd is a full counter: then a notification is
        // pending anyway.
        let _ = rustix::io::write(&*self.kick, &1u64.to_ne_bytes());
    }
}

impl AsRef<QueueLink> for QueueLink {
    fn as_ref(&self) -> &QueueLink {
        self
    }
}

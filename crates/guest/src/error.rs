//! Reasons why there is no guest.

use std::io;

use butterfly_guest_driver::{ControlError, MemoryError};

/// Reason why there is no guest.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum Error {
    #[error(transparent)]
    Device(#[from] butterfly_uplink::Error),
    #[error("cannot attach to the switch: {0}")]
    Channel(#[from] ControlError),
    #[error("cannot make the memory of a guest: {0}")]
    Memory(#[from] MemoryError),
    #[error(
        "cannot start the thread of a guest: {0}; look at the limits of processes, memory and open files"
    )]
    Thread(#[from] io::Error),
}

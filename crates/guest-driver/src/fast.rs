//! A driver for measuring: no allocation, no copies but the caller's, buffers bound to their
//! descriptors for good.
//!
//! [`crate::VirtQueue`] can do everything; this driver does one thing fast. Descriptors of a split
//! ring are written once. Entries of the available ring are written only when they change; a device
//! that uses chains in order makes them stay. Each batch touches each index once. A packed ring
//! takes two stores a descriptor. Buffers that the device returns are checked as thoroughly.

mod chains;
mod config;
mod owned;
mod packed;
mod rx;
mod split;
mod tx;

use std::sync::Arc;

use butterfly_vhost::net::Features;

use crate::{
    control::Nic,
    guest::RX,
    memory::{Memory, MemoryError},
    queue::QueueLink,
};

pub use config::{BATCH, FastConfig};
pub use rx::{FastRx, RxFrame};
pub use tx::{FastTx, TxFrame};

/// Both queues of a guest, for measuring.
#[derive(Debug)]
pub struct FastGuest {
    memory: Arc<Memory>,
    features: Features,
    /// The receive queue.
    pub rx: FastRx,
    /// The transmit queue.
    pub tx: FastTx,
}

impl FastGuest {
    /// Builds a driver in `memory` as if `features` had been negotiated, with all receive buffers
    /// posted.
    pub fn new(
        memory: &Arc<Memory>,
        features: Features,
        config: &FastConfig,
    ) -> Result<FastGuest, MemoryError> {
        let rx = FastRx::new(memory, features, config)?;
        let tx = FastTx::new(memory, features, config)?;
        Ok(FastGuest { memory: Arc::clone(memory), features, rx, tx })
    }
}

impl Nic for FastGuest {
    fn features(&self) -> Features {
        self.features
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn link(&self, index: usize) -> &QueueLink {
        if index == RX { &self.rx.core.link } else { &self.tx.core.link }
    }
}

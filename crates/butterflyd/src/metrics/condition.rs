//! Condition of the daemon, as its main thread tells it.

use crate::host::listen::NotListening;
use butterfly_control::NatCounts;
use butterfly_holder::client::Lease;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Troubles of the daemon itself.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Troubles {
    /// It started with less than usual: the store is not read.
    pub degraded: bool,
    /// Changes are refused, as they cannot be kept.
    pub changes_refused: bool,
    /// The last upgrade failed.
    pub upgrade_failed: bool,
    /// The store has an older layout than the program knows: no upgrade was committed yet.
    pub upgrade_uncommitted: bool,
    /// Numbers of what is declared for routers.
    pub routed: RoutedCounts,
}

/// Numbers of what is declared for routers.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RoutedCounts {
    /// Routers, and routes of all of them.
    pub routers: (usize, usize),
    /// Translations by kind.
    pub nats: NatCounts,
    /// All externals. They are few.
    pub externals: Vec<ExternalCondition>,
}

/// An external that is declared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExternalCondition {
    pub id: String,
    /// Number of its network.
    pub vni: u32,
    pub in_effect: bool,
}

/// Condition that the main thread writes and a scrape reads.
#[derive(Clone, Default)]
pub struct Condition {
    troubles: Arc<Mutex<Troubles>>,
    missing: NotListening,
    lease: Arc<OnceLock<Arc<Lease>>>,
}

impl Condition {
    /// Begins without trouble, but for places that are `missing`.
    pub fn new(missing: NotListening) -> Self {
        Self { missing, ..Self::default() }
    }

    /// Looks at the holder of this lease from now on.
    pub fn look_at(&self, lease: Arc<Lease>) {
        // There is one for the life of the process.
        let _ = self.lease.set(lease);
    }

    /// Returns whether there is a holder no more.
    pub fn holder_is_gone(&self) -> bool {
        self.lease.get().is_some_and(|lease| !lease.holder_lives())
    }

    /// Replaces what was told before.
    pub fn tell(&self, troubles: Troubles) {
        *self.troubles.lock().unwrap_or_else(PoisonError::into_inner) = troubles;
    }

    /// Returns what was told last.
    pub fn troubles(&self) -> Troubles {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the places that should be listened on and are not.
    pub fn missing(&self) -> &NotListening {
        &self.missing
    }
}

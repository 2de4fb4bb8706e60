//! The last word of a front end in this process.

use std::sync::Arc;

use super::shared::Shared;

/// Lets a front end in this process say why it leaves. Front ends elsewhere have no such means.
pub struct Farewell(pub(super) Arc<Shared>);

impl Farewell {
    /// The reason for which the connection is about to be closed: a sentence without a full stop.
    /// Events and status tell it.
    pub fn say(&self, reason: impl Into<String>) {
        self.0.live().farewell = Some(reason.into());
    }
}

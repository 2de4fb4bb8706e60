//! Time limits for front ends.

use std::time::Duration;

/// Time limits for front ends.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// For a half message, an unread reply, and a silent front end when another one waits.
    pub patience: Duration,
    /// For a front end that waits for an answer without a daemon, and has shown that it reconnects.
    pub returns: Duration,
    /// For one that has not.
    pub stays: Duration,
    /// Until the next attempt after descriptors were used up.
    pub rest: Duration,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            patience: Duration::from_secs(1),
            returns: Duration::from_secs(2),
            stays: Duration::from_secs(60),
            rest: Duration::from_millis(200),
        }
    }
}

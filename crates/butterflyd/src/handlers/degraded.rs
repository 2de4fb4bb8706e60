//! The end of a start with less: the store that was left alone is opened.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    events::{Kind, Note},
    poison::{Degraded, Poison},
};
use std::time::Duration;
use tracing::{error, warn};

/// Longest wait for the store then.
const PATIENCE: Duration = Duration::from_secs(5);

impl<D: Dataplane> Daemon<D> {
    /// Opens a store that was left alone, if it is time.
    pub(super) fn try_without_less(&mut self) {
        let due = |degraded: &mut Degraded| degraded.is_over();
        let Some(degraded) = self.degraded.take_if(due) else { return };
        let text = "the store that was left alone is opened";
        warn!("{text}");
        self.events.note(Note::new(Kind::DaemonDegraded, text));
        // If that ends the process, it was one more bad start.
        self.poison.iter().for_each(|poison| Poison::ready(poison, false));
        let Degraded { directory, configured, open, .. } = degraded;
        match open(&directory) {
            Ok(client) => self.keep(client, directory, configured, PATIENCE),
            Err(why) => {
                error!("the store in {} cannot be opened: {why}", directory.display());
                self.degraded = Degraded::new(directory, configured, open).ok();
            }
        }
    }
}

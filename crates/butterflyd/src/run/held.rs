//! Taking the lease, and going on with all that a process before left.

use crate::{
    checkpoint::{Checkpoint, Life},
    events::{Events, Kind, Note},
    handlers::Daemon,
    holding::Holding,
    poison::StartOrder,
    upgrade::passage::{self, Came},
};
use butterfly_api::Requests;
use butterfly_datapath::Switch;
use butterfly_holder::client::{Held, Lease};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use tracing::{error, info, warn};

/// Name of the checkpoint among the parts that the holder keeps.
pub(super) const CHECKPOINT: &str = "checkpoint";
/// Longest stand-still that is believed.
const STOOD_STILL: Duration = Duration::from_secs(3600);

/// Ends the holder when it is dropped, unless its first daemon is [ready](First::ready): nobody
/// would come for what it keeps.
pub(super) struct First(Option<Arc<Lease>>);

impl First {
    pub(super) fn of(holding: &Holding) -> First {
        First((holding.term == 1).then(|| holding.lease().clone()))
    }

    pub(super) fn ready(&mut self) {
        self.0 = None;
    }
}

impl Drop for First {
    fn drop(&mut self) {
        // Without a holder there is nothing to end.
        let _ = self.0.take().map(|lease| lease.end());
    }
}

/// Takes the lease of the holder.
pub(super) fn take_lease(
    state: &Path,
) -> Result<(Holding, BTreeMap<String, Held>), Box<dyn std::error::Error>> {
    let (holding, former) = Holding::take_lease(state)?;
    info!("state in {}: this is daemon {} of its holder", state.display(), holding.term);
    Ok((holding, former))
}

/// Goes on where a daemon that ended left everything. Returns the service that it goes on with, and
/// what was taken over.
pub(super) fn resume(
    daemon: &mut Daemon<Arc<Switch>>,
    holding: &mut Holding,
    came: &Came,
    switch: &Switch,
    events: &Events,
    requests: &Requests,
    order: StartOrder,
) -> (Life, String) {
    let declared = daemon.take_up(holding);
    let gone = switch.all_declared();
    let vnics = daemon.desired.vnics().len();
    let gap = holding.gap.as_millis();
    let cost =
        format!("64 frames may be lost, or copies of {} come twice", switch.may_come_again());
    let how = match came {
        Came::New => format!("{gap} ms after the one before ended; {cost}"),
        Came::Upgraded { version, .. } => format!("by an upgrade from version {version}"),
        Came::FellBack { why } => {
            let text = format!("the upgrade failed, and the program before it goes on: {why}");
            error!("{text}");
            events.note(Note::new(Kind::UpgradeFailed, text));
            format!("{gap} ms after an upgrade that failed; {cost}")
        }
    };
    let mut text =
        format!("daemon {} of this host's service took over {vnics} vnics, {how}", holding.term);
    let refused = declared.unwrap_or_else(|why| vec![why.description.unwrap_or_default()]);
    for why in &refused {
        error!("what was declared before cannot be taken over: {why}");
    }
    if !refused.is_empty() {
        text.push_str(&format!("; declared and not taken over: {}", refused.join("; ")));
    }
    if !gone.is_empty() {
        text.push_str(&format!("; not declared any more, and let go: {}", gone.join(", ")));
    }
    for table in switch.former_tables() {
        text.push_str(&format!("; sessions: {table}"));
    }
    if let Some(uplink) = switch.former_uplink() {
        text.push_str(&format!("; uplink: {uplink}"));
    }
    let mut life = Life::begin();
    match holding.take_file(CHECKPOINT).map(Checkpoint::open) {
        _ if order.set_aside => {
            text.push_str(
                "; counters and sessions begin anew: nine starts in a row came to nothing",
            );
        }
        Some(Ok(checkpoint)) => {
            let resumed = checkpoint.resume(switch, events, requests);
            text.push_str(&format!("; {resumed}"));
            life = resumed.life;
        }
        Some(Err(why)) => text.push_str(&format!("; counters begin anew: {why}")),
        None => text.push_str("; counters begin anew: none were kept"),
    }
    match came {
        Came::Upgraded { .. } => info!("{text}"),
        Came::New | Came::FellBack { .. } => warn!("{text}"),
    }
    events.note(Note::new(Kind::DaemonResumed, text.clone()));
    (life, text)
}

/// Returns how long nothing was forwarded. `gap`: since the process before had the lease.
pub(super) fn stood_still(came: &Came, gap: Duration) -> Duration {
    match came {
        Came::Upgraded { since, .. } => {
            Duration::from_nanos(passage::now().saturating_sub(*since)).min(STOOD_STILL)
        }
        _ => gap,
    }
}

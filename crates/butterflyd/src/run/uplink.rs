//! Waiting for an uplink whose interface was removed, or could not be opened when machines were
//! waiting to go on.

use crate::{host::signals::Calls, upgrade::passage::Came};
use butterfly_datapath::Switch;
use std::{
    io,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

/// Pause before a look. While the uplink is gone, each is twice as long as the one before.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause, and the first one of a process that began anew for the uplink in vain.
const LONGEST: Duration = Duration::from_secs(10);
/// Longest pause between attempts to begin anew. Each that fails is told.
const LONGEST_IN_VAIN: Duration = Duration::from_secs(640);

/// Calls the main thread whenever an uplink that is gone can be opened, which takes this program to
/// begin anew.
pub(super) fn wait_for_uplink(switch: &Arc<Switch>, calls: &Calls, came: &Came) -> io::Result<()> {
    let pause = match came {
        Came::Upgraded { .. } if switch.missing_uplink().is_some() => LONGEST,
        _ => FIRST,
    };
    // Not the switch itself: whoever ends the daemon waits for the last one who has it.
    let (switch, calls) = (Arc::downgrade(switch), calls.clone());
    let body = move || look_for_it(&switch, &calls, pause);
    thread::Builder::new().name("uplink-wait".into()).spawn(body).map(drop)
}

fn look_for_it(switch: &Weak<Switch>, calls: &Calls, mut pause: Duration) {
    // Until the attempt after the next one.
    let mut rest = LONGEST;
    loop {
        thread::sleep(pause);
        let Some(switch) = switch.upgrade() else { return };
        if !switch.uplink_is_gone() {
            (pause, rest) = (FIRST, LONGEST);
            continue;
        }
        pause = (pause * 2).min(LONGEST);
        if switch.uplink_can_be_opened() {
            calls.uplink_is_there();
            pause = rest;
            rest = (rest * 2).min(LONGEST_IN_VAIN);
        }
    }
}

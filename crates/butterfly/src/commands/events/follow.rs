//! `butterfly events --follow`.
//!
//! Asks four times a second for what came since: a daemon serves one request after the other, and
//! one that waited for something to happen would hold up everybody else.

use super::{MOST, page::Format, request, result};
use crate::daemon::session::Session;
use crate::failure::Failure;
use butterfly_api::proto::{EventListReq, EventListRes};
use std::thread::sleep;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(250);
/// A daemon that does not answer for so long is asked anew: it may be another one by then.
const PATIENCE: Duration = Duration::from_secs(2);

/// Prints the events after `before`, until the operator interrupts it.
pub fn follow(
    nic: Option<&str>,
    mut before: EventListRes,
    format: Format,
    session: &mut Session,
) -> Result<(), Failure> {
    let query = |since| EventListReq {
        since: Some(since),
        limit: Some(MOST),
        nic_id: nic.map(str::to_owned),
        ..EventListReq::default()
    };
    let mut silent = false;
    let mut since = before.next();
    loop {
        session.flush()?;
        sleep(PAUSE);
        let Some(response) = session.ask_in_time(request(query(since)), PATIENCE)? else {
            if !std::mem::replace(&mut silent, true) {
                session.complain("no reply from the daemon; still asking, Ctrl-C ends that");
            }
            continue;
        };
        silent = false;
        let list = result(response)?;
        if list.started() != before.started() {
            // Its numbers begin at 1.
            format.restarted(session)?;
            since = 0;
            before = list;
            continue;
        }
        format.print(&list.event, list.lost(), session)?;
        since = list.next();
        before = list;
    }
}

//! `butterfly events --follow`.
//!
//! Asks four times a second for what came since: a daemon serves one request after the other, and one that waited for
//! something to happen would hold up everybody else.

use super::{MOST, ask, page::Format};
use crate::failure::Failure;
use crate::session::Session;
use butterfly_api::proto::{EventListReq, EventListRes};
use std::thread::sleep;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(250);

/// Prints what comes after `list`, until somebody interrupts it or the daemon does not answer in time.
pub fn follow(nic: Option<&str>, list: EventListRes, format: Format, session: &mut Session) -> Result<(), Failure> {
    let mut before = list;
    loop {
        session.flush()?;
        sleep(PAUSE);
        let query = |since| EventListReq {
            since: Some(since),
            limit: Some(MOST),
            nic_id: nic.map(str::to_owned),
            ..EventListReq::default()
        };
        let mut list = ask(query(before.next()), session)?;
        if list.started() != before.started() {
            format.restarted(session)?;
            list = ask(query(0), session)?;
        }
        format.print(&list.event, list.lost(), session)?;
        before = list;
    }
}

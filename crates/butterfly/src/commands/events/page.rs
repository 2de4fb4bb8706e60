//! Events as lines.

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::text::json::milliseconds;
use crate::text::table::{date, safe};
use butterfly_api::proto::Event;
use serde_json::json;
use std::fmt::Write;

/// Format of printed events.
#[derive(Clone, Copy)]
pub struct Format {
    /// For programs.
    pub json: bool,
}

impl Format {
    /// Prints events, and before them how many are missing.
    pub fn print(self, events: &[Event], lost: u64, session: &mut Session) -> Result<(), Failure> {
        if lost > 0 {
            match self.json {
                true => session.line(json!({ "lost": lost }))?,
                false => {
                    session.line(format_args!("{lost} events lost: they are not kept any more"))?
                }
            }
        }
        events.iter().try_for_each(|event| match self.json {
            true => session.line(object(event)),
            false => session.line(line(event)),
        })
    }

    /// Says that numbers begin anew.
    pub fn restarted(self, session: &mut Session) -> Result<(), Failure> {
        match self.json {
            true => session.line(json!({ "restarted": true })),
            false => session.line("the daemon was restarted: numbers begin anew"),
        }
    }
}

/// An event on one line.
fn line(event: &Event) -> String {
    let mut line = format!("{} #{} {:<19}  ", time(event.time()), event.seq(), safe(event.kind()));
    // Writing to a string cannot fail.
    let _ = match (&event.nic_id, event.vni) {
        (Some(nic), Some(vni)) => write!(line, "{} (VNI {vni})  ", safe(nic)),
        (Some(nic), None) => write!(line, "{}  ", safe(nic)),
        (None, Some(vni)) => write!(line, "VNI {vni}  "),
        (None, None) => Ok(()),
    };
    line.push_str(&safe(event.text()));
    if event.more() > 0 {
        let _ = write!(line, " ({} more like this)", event.more());
    }
    if event.taken_back() {
        line.push_str(" (taken back)");
    }
    let _ = match (&event.request, &event.client) {
        (Some(request), Some(client)) => write!(line, " [{} by {}]", safe(request), safe(client)),
        (Some(request), None) => write!(line, " [{}]", safe(request)),
        (None, _) => Ok(()),
    };
    line
}

/// An event under the field names of the protocol, with its time in words too.
fn object(event: &Event) -> serde_json::Value {
    json!({
        "seq": event.seq(),
        "time": milliseconds(event.time()),
        "time_ms": event.time(),
        "kind": event.kind(),
        "nic_id": event.nic_id,
        "vni": event.vni,
        "text": event.text(),
        "request": event.request,
        "client": event.client,
        "more": event.more(),
        "taken_back": event.taken_back(),
    })
}

/// Date and time in UTC with milliseconds.
fn time(milliseconds: u64) -> String {
    format!("{}.{:03}", date(milliseconds / 1000).trim_end_matches(" UTC"), milliseconds % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(time(1_000_000_000_007), "2001-09-09 01:46:40.007");
        time(u64::MAX);
    }
}

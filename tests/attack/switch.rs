//! The daemon under attack, as its operator sees it.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use butterfly_api::proto::{NicShow, Request, Worker};
use butterfly_tests::{Daemon, host::Nic, wait::PATIENCE};

/// Time limit for an answer of the API, also under attack.
pub const PROMPT: Duration = Duration::from_millis(100);

/// The daemon under attack.
pub struct Switch(pub Daemon);

impl Switch {
    /// Declares a vnic. Returns the path of its socket.
    pub fn add(&self, nic: &Nic) -> PathBuf {
        self.0.ask(Daemon::nic_add(nic)).expect("the vnic is added").nic_add.path().into()
    }

    /// Returns the daemon's answer to `nic show`.
    pub fn show(&self, id: &str) -> NicShow {
        let request = Request { nic_show: Some(id.to_owned()), ..Request::default() };
        self.0
            .ask(request)
            .expect("the vnic is there")
            .nic_show
            .into_option()
            .expect("a vnic is shown")
    }

    /// Returns the counters of all workers.
    pub fn workers(&self) -> Vec<Worker> {
        self.0
            .ask(Request { worker_list: Some(true), ..Request::default() })
            .expect("workers are listed")
            .worker_list
    }

    /// Measures how long the API takes to answer. Takes the best of three, as another program may
    /// occupy the processor for a moment.
    pub fn latency(&self) -> Duration {
        let once = || {
            let begun = Instant::now();
            self.0
                .ask(Request { nic_list: Some(true), ..Request::default() })
                .expect("vnics are listed");
            begun.elapsed()
        };
        let mut best = once();
        for _ in 0..2 {
            if best <= PROMPT {
                break;
            }
            best = best.min(once());
        }
        best
    }

    /// Returns the daemon's resident memory without that of guests, in KiB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.pid()))
            .expect("the daemon is alive");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .expect("anonymous memory is shown");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Waits until a vnic is as wanted. Returns its last state; as an error if it was not.
    pub fn wait(
        &self,
        id: &str,
        wanted: impl Fn(&NicShow) -> bool,
    ) -> Result<NicShow, Box<NicShow>> {
        let end = Instant::now() + PATIENCE;
        loop {
            let show = self.show(id);
            if wanted(&show) {
                return Ok(show);
            }
            if Instant::now() > end {
                return Err(Box::new(show));
            }
            std::thread::sleep(Duration::from_millis(1)); // the API has no events
        }
    }
}

/// Returns the drop reasons with a count, and their counts.
pub fn dropped(show: &NicShow) -> BTreeMap<String, u64> {
    show.drops
        .iter()
        .filter(|drop| drop.count() > 0)
        .map(|drop| (drop.reason().to_owned(), drop.count()))
        .collect()
}

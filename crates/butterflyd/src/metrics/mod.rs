//! Metrics for Prometheus: `--metrics`.
//!
//! [`families`] declares what there is, [`page`] writes it down, [`server`] serves it. A thread of
//! its own reads what the switch counts ([`butterfly_datapath::Observation`]) and what the API
//! answered: a scrape waits for no request, and no worker for a scrape.

mod condition;
mod families;
mod page;
mod server;

pub use condition::{Condition, ExternalCondition, RoutedCounts, Troubles};
pub use server::{Bound, MetricsError, Server};

use crate::{checkpoint::Kept, holding::Service};
use butterfly_api::Requests;
use butterfly_datapath::Switch;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Factor of the pause after a page: the page is not made again before so many times the time that
/// it took have passed. Any client may ask without pause, and making pages takes a quarter of a
/// processor at most.
const PAUSE: u32 = 3;

/// Sources of the numbers.
#[derive(Clone)]
pub struct Source {
    /// The switch that moves frames.
    pub switch: Arc<Switch>,
    /// Counts of the API's answers.
    pub requests: Arc<Requests>,
    /// Time at which the daemon started, in seconds since the epoch.
    pub start_date: u64,
    /// The service, if it is longer than this process.
    pub service: Option<Service>,
    /// Checkpoint that holds what was told, if a successor is to go on with it.
    pub kept: Option<Kept>,
    /// Condition of the daemon.
    pub condition: Condition,
}

/// The last page, and how long it is good enough.
#[derive(Default)]
struct Cache(Mutex<Option<(String, Instant)>>);

impl Source {
    /// Returns the page for a scrape. Fails only if something is declared wrong.
    fn page(&self) -> Result<String, prometheus::Error> {
        let page = page::page(
            &self.switch.observe(),
            &self.requests,
            self.start_date,
            self.service.as_ref(),
            &self.condition,
        );
        // What the page tells is in the checkpoint before the page leaves.
        self.kept.iter().for_each(Kept::keep_counts);
        page
    }
}

impl Cache {
    /// The last page, or what `make` makes if that is too old.
    fn page<E>(&self, make: impl FnOnce() -> Result<String, E>) -> Result<String, E> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        if let Some((page, _)) = last.as_ref().filter(|(_, until)| begun < *until) {
            return Ok(page.clone());
        }
        let page = make()?;
        let took = begun.elapsed().min(Duration::from_secs(1));
        *last = Some((page.clone(), Instant::now() + took * PAUSE));
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_made_anew_when_it_had_its_time() {
        let cache = Cache::default();
        let made = |text: &str| cache.page(|| Ok::<_, ()>(text.to_owned())).unwrap();
        let slow = || {
            std::thread::sleep(Duration::from_millis(200));
            Ok::<_, ()>("first".to_owned())
        };
        assert_eq!(cache.page(|| Err::<String, _>("a defect")), Err("a defect"));
        assert_eq!(cache.page(slow).unwrap(), "first");
        let begun = Instant::now();
        while made("second") == "first" {
            std::thread::yield_now();
        }
        assert!(begun.elapsed() > Duration::from_millis(400), "{:?}", begun.elapsed());
    }
}

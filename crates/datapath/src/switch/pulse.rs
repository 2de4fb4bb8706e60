//! Checks whether the workers still take turns.

use std::{
    sync::atomic::{Ordering, fence},
    thread,
    time::{Duration, Instant},
};

use crate::switch::Switch;

/// Time between two looks for the workers' answers.
const LOOK_EVERY: Duration = Duration::from_millis(1);

impl Switch {
    /// Returns whether every worker, asleep before or not, came round within `patience`. Changes
    /// nothing, and waits for no lock.
    pub fn workers_answer(&self, patience: Duration) -> bool {
        let plane = self.plane();
        // Like a new snapshot: each worker takes the current one, and says so.
        let epoch = plane.shared.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        fence(Ordering::SeqCst);
        let workers = plane.board.handles();
        workers.iter().for_each(|worker| worker.wake());
        let deadline = Instant::now() + patience;
        let mut running = workers.iter().filter(|worker| !worker.ends.load(Ordering::Acquire));
        running.all(|worker| {
            loop {
                if worker.seen.load(Ordering::Acquire) >= epoch {
                    return true;
                }
                if Instant::now() >= deadline {
                    return false;
                }
                thread::sleep(LOOK_EVERY);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::switch::config::SwitchConfig;
    use std::sync::Arc;

    #[test]
    fn a_worker_answers_from_its_sleep_and_a_dead_one_does_not() {
        let switch =
            Switch::start(SwitchConfig { sessions: 64, ..SwitchConfig::default() }, Arc::new(()))
                .unwrap();
        for _ in 0..3 {
            assert!(switch.workers_answer(Duration::from_secs(20)));
        }
        switch.plane().shared.stop.store(true, Ordering::Release);
        let workers = switch.plane().board.handles();
        workers.iter().for_each(|worker| worker.wake());
        while workers.iter().any(|worker| worker.running.load(Ordering::Acquire)) {
            thread::sleep(LOOK_EVERY);
        }
        assert!(!switch.workers_answer(Duration::from_millis(20)));
    }

    #[test]
    fn nothing_moves_until_a_switch_is_told_to_go() {
        let config = SwitchConfig { sessions: 64, ..SwitchConfig::default() };
        let switch = Switch::prepare(config, None, Arc::new(())).unwrap();
        assert!(!switch.workers_answer(Duration::from_millis(20)));
        switch.go().unwrap();
        assert!(switch.workers_answer(Duration::from_secs(20)));
        assert!(switch.go().is_err(), "it goes already");
        assert!(switch.workers_answer(Duration::from_secs(20)));
        switch.stop();
    }
}

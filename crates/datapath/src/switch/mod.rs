//! The switch: starts and ends the threads of a host, and has its vnics.

pub(crate) mod config;
pub(crate) mod declared;
pub(crate) mod fdb;
pub(crate) mod front;
mod link;
pub(crate) mod peers;
pub(crate) mod pulse;
pub(crate) mod reports;
pub(crate) mod status;
mod threads;
mod vnics;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread::JoinHandle,
};

use rustix::thread::CpuSet;

use crate::endpoint::side::EndpointSide;
use crate::engine::events::SwitchEvents;
use crate::plane::{Plane, PlaneConfig};
use crate::report::workers::{WorkerReport, worker};
use crate::session::{SessionConfig, Timeouts};
use crate::switch::{
    config::SwitchConfig,
    declared::Declared,
    threads::{housekeeping, work},
};
use crate::worker::Worker;

/// The switch of a host.
pub struct Switch {
    plane: Arc<Plane>,
    vnics: Arc<Mutex<BTreeMap<String, Declared>>>,
    events: Arc<dyn SwitchEvents>,
    config: SwitchConfig,
    core: Option<usize>,
    threads: Vec<JoinHandle<()>>,
    pub(crate) side: Option<EndpointSide>,
    /// Held while peers change.
    pub(crate) changing_peers: Mutex<()>,
}

impl Switch {
    /// Starts the workers.
    pub fn start(
        config: SwitchConfig,
        events: Arc<dyn SwitchEvents>,
    ) -> Result<Switch, std::io::Error> {
        let sessions = SessionConfig {
            capacity: config.sessions,
            file: config.session_file.clone(),
            share: config.session_share,
            tcp_pickup: config.tcp_pickup,
            timeouts: Timeouts {
                tcp_cut: config.timeouts.tcp_cut.max(config.tcp_pickup),
                ..config.timeouts
            },
            ..SessionConfig::default()
        };
        let opened = config
            .tunnel
            .as_ref()
            .map(crate::endpoint::open::open)
            .transpose()?
            .map(|opened| opened.split());
        let (tunnel, rest) = opened.unzip();
        let plane = Arc::new(Plane::new(PlaneConfig {
            workers: 1,
            fdb_ageing: config.fdb_ageing,
            sessions,
            tunnel,
        })?);
        let vnics = Arc::new(Mutex::new(BTreeMap::new()));
        // Not available_parallelism(): that counts those the daemon was confined to, whatever their
        // numbers.
        let exists =
            |core: &usize| Path::new(&format!("/sys/devices/system/cpu/cpu{core}")).exists();
        let core = config.core.filter(|core| *core < CpuSet::MAX_CPU && exists(core));
        if core != config.core {
            tracing::warn!(wanted = config.core, "no such processor: the worker is not pinned");
        }
        let mut threads = Vec::new();
        for handle in &plane.workers {
            let (shared, handle, poll) = (plane.shared.clone(), handle.clone(), config.poll);
            let name = format!("worker-{}", handle.index);
            let claimed = handle.claim();
            let id =
                claimed.ok_or_else(|| std::io::Error::other(format!("{name} runs already")))?;
            // Made in its own thread, so that its memory is near the processor that it runs on.
            let body = move || work(core, || Worker::new(shared, handle, id, poll));
            threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        let (keeper, watched, told) = (plane.clone(), Arc::clone(&vnics), Arc::clone(&events));
        let body = move || housekeeping(&keeper, &watched, &*told);
        threads.push(std::thread::Builder::new().name("housekeeping".into()).spawn(body)?);
        let mut switch = Switch {
            plane,
            vnics,
            events,
            config,
            core,
            threads,
            side: None,
            changing_peers: Mutex::default(),
        };
        if let (Some(spec), Some(rest)) = (switch.config.tunnel.clone(), rest) {
            switch.side = Some(EndpointSide::start(
                &switch.plane,
                spec,
                rest,
                switch.config.fdb_ageing,
                switch.events.clone(),
            )?);
        }
        Ok(switch)
    }

    pub(crate) fn shared_plane(&self) -> Arc<Plane> {
        self.plane.clone()
    }

    pub(crate) fn plane(&self) -> &Plane {
        &self.plane
    }

    fn vnics(&self) -> MutexGuard<'_, BTreeMap<String, Declared>> {
        self.vnics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters of each worker.
    pub fn workers(&self) -> Vec<WorkerReport> {
        self.plane
            .workers
            .iter()
            .map(|handle| worker(handle, self.core, self.config.poll))
            .collect()
    }

    /// Removes all vnics and ends all threads.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        for id in self.ids() {
            self.remove_vnic(&id);
        }
        if let Some(mut side) = self.side.take() {
            side.stop();
        }
        self.plane.shared.stop.store(true, Ordering::Release);
        self.plane.workers.iter().for_each(|worker| worker.wake());
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join(); // a worker that panicked has ended the process
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shut_down();
    }
}

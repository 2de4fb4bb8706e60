//! The switch: starts and ends the threads of a host, and has its vnics.

mod checkpoint;
pub(crate) mod config;
mod crew;
pub(crate) mod declared;
pub(crate) mod fdb;
pub(crate) mod front;
pub(crate) mod held;
mod link;
pub(crate) mod peers;
mod precautions;
pub(crate) mod pulse;
pub(crate) mod reports;
mod settings;
pub(crate) mod status;
mod threads;
mod vnics;
mod wires;
mod workers;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use butterfly_guest::GuestWatch;
use butterfly_mem::blackbox::BlackBox;
use butterfly_model::{External, Vni};
use butterfly_vhost::control::Device;

use crate::endpoint::{
    open::{Outlasting, end_former, missing, open},
    side::EndpointSide,
};
use crate::engine::events::{About, Happening, SwitchEvents};
use crate::plane::{Plane, PlaneConfig};
use crate::report::watch::Watch;
use crate::session::SessionConfig;
use crate::switch::{
    config::SwitchConfig,
    crew::{Crew, balance, keep_others_off},
    declared::Declared,
    held::{Hold, UPLINK},
    precautions::{HeldRings, heed, watch_workers},
    threads::{housekeeping, seek_neighbours},
};

/// The switch of a host.
pub struct Switch {
    plane: Arc<Plane>,
    vnics: Arc<Mutex<BTreeMap<String, Declared>>>,
    events: Arc<dyn SwitchEvents>,
    config: SwitchConfig,
    /// The workers' threads.
    crew: Mutex<Crew>,
    /// Threads of the regular work.
    regular: Mutex<Vec<JoinHandle<()>>>,
    /// True from the end of the regular work on.
    rests: Arc<AtomicBool>,
    /// The holder of sockets, if they outlast this process.
    hold: Option<Hold>,
    pub(crate) side: Option<EndpointSide>,
    /// Held while peers change.
    pub(crate) changing_peers: Mutex<()>,
    /// Vnics whose rings are held.
    held: Mutex<HeldRings>,
    /// Externals in effect. Held while one changes.
    wires: Mutex<BTreeMap<Vni, External>>,
    /// Guests behind the wires of externals, by the ids of their ports. Never held for long.
    wire_guests: Mutex<BTreeMap<String, GuestWatch>>,
}

impl Switch {
    /// Makes a switch, and has it [go](Switch::go).
    pub fn start(
        config: SwitchConfig,
        events: Arc<dyn SwitchEvents>,
    ) -> Result<Switch, std::io::Error> {
        let switch = Switch::prepare(config, None, events)?;
        switch.go()?;
        Ok(switch)
    }

    /// Makes a switch in which nothing moves until it is told to [go](Switch::go). What is declared
    /// before is all in force when the first frame passes. With `hold`, sockets and devices outlast
    /// this process, and those of a dead one are taken up by who declares them again.
    pub fn prepare(
        config: SwitchConfig,
        hold: Option<Hold>,
        events: Arc<dyn SwitchEvents>,
    ) -> Result<Switch, std::io::Error> {
        let sessions = SessionConfig {
            capacity: config.sessions,
            file: config.session_file.clone(),
            adopt: config.adopt,
            share: config.session_share,
            rate: config.session_rate,
            tcp_pickup: config.tcp_pickup,
            timeouts: config.timeouts.with_pickup(config.tcp_pickup),
        };
        let black_box = config.precautions.black_box.clone();
        let black_box = black_box.unwrap_or_else(|| Arc::new(BlackBox::nowhere()));
        let outlasting = hold.as_ref().map(|hold| hold as &dyn Outlasting);
        if config.tunnel.is_none() {
            outlasting.into_iter().for_each(end_former);
        }
        let opened = config.tunnel.as_ref().map(|spec| match open(spec, outlasting) {
            Err(why) if config.uplink_may_wait => missing(spec, why.to_string()),
            outcome => outcome,
        });
        let opened = opened.transpose()?;
        let opened = opened.map(|opened| opened.split());
        let (tunnel, rest) = opened.unzip();
        let plane = Arc::new(Plane::new(PlaneConfig {
            workers: config.workers,
            fdb_ageing: config.fdb_ageing,
            sessions,
            tunnel,
            black_box: black_box.clone(),
        })?);
        heed(&config.precautions, &plane.shared);
        let vnics = Arc::new(Mutex::new(BTreeMap::new()));
        let held = HeldRings::of(&config.precautions);
        let crew = Mutex::new(Crew::on(&config.cores));
        let mut switch = Switch {
            held,
            plane,
            vnics,
            events,
            config,
            crew,
            regular: Mutex::default(),
            rests: Arc::default(),
            hold,
            side: None,
            changing_peers: Mutex::default(),
            wires: Mutex::default(),
            wire_guests: Mutex::default(),
        };
        if let (Some(spec), Some(rest)) = (switch.config.tunnel.clone(), rest) {
            switch.side = Some(EndpointSide::start(
                &switch.plane,
                spec,
                rest,
                switch.events.clone(),
                |config| match &switch.hold {
                    Some(hold) => {
                        let mut device =
                            hold.open(UPLINK, 0, config).map_err(|why| why.to_string())?;
                        device.begin().map_err(|why| why.to_string())?;
                        Ok(device)
                    }
                    None => Device::start(config).map_err(|why| why.to_string()),
                },
            )?);
        }
        Ok(switch)
    }

    /// Starts the workers and the regular work. Fails if they run already.
    pub fn go(&self) -> Result<(), std::io::Error> {
        // Before any worker counts: only what they count is told.
        let watch = Watch::begin(&self.plane);
        self.start_workers()?;
        let (keeper, watched) = (self.plane.clone(), Arc::clone(&self.vnics));
        let told = Arc::clone(&self.events);
        let rests = self.rests.clone();
        let body = move || housekeeping(&keeper, &watched, &*told, watch, &rests);
        let mut regular = self.regular.lock().unwrap_or_else(PoisonError::into_inner);
        regular.push(std::thread::Builder::new().name("housekeeping".into()).spawn(body)?);
        let (plane, rests) = (self.plane.clone(), self.rests.clone());
        let body = move || balance(&plane, &rests);
        regular.push(std::thread::Builder::new().name("balance".into()).spawn(body)?);
        let (plane, rests) = (self.plane.clone(), self.rests.clone());
        let body = move || seek_neighbours(&plane, &rests);
        regular.push(std::thread::Builder::new().name("neighbours".into()).spawn(body)?);
        if let Some(black_box) = self.config.precautions.black_box.clone() {
            let plane = self.plane.clone();
            let rests = self.rests.clone();
            let body = move || watch_workers(&plane, &black_box, &rests);
            regular.push(std::thread::Builder::new().name("hang-watch".into()).spawn(body)?);
        }
        self.begin_devices();
        Ok(())
    }

    /// Starts the control threads of devices that the holder has, for which no worker had to wait.
    fn begin_devices(&self) {
        let Some(hold) = &self.hold else { return };
        hold.go();
        for (id, declared) in self.vnics().iter_mut() {
            if let Err(why) = declared.open.device.begin() {
                let why = format!("its front end is not heard: {why}");
                tracing::error!(nic = id, "{why}");
                let about = About { nic: Some(id), vni: None };
                self.events.happened(about, Happening::Trouble(&why));
            }
        }
    }

    pub(crate) fn shared_plane(&self) -> Arc<Plane> {
        self.plane.clone()
    }

    pub(crate) fn plane(&self) -> &Plane {
        &self.plane
    }

    fn wires(&self) -> MutexGuard<'_, BTreeMap<Vni, External>> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wire_guests(&self) -> MutexGuard<'_, BTreeMap<String, GuestWatch>> {
        self.wire_guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn vnics(&self) -> MutexGuard<'_, BTreeMap<String, Declared>> {
        self.vnics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the regular work, for good. Workers go on.
    pub fn rest(&self) {
        self.rests.store(true, Ordering::Release);
        end(&self.regular);
    }

    /// Ends the workers and the regular work, for good. All else stays as it is, as it would if
    /// this process died: for one that another process follows.
    pub fn halt(&self) {
        self.plane.shared.stop.store(true, Ordering::Release);
        self.plane.board.handles().iter().for_each(|worker| worker.wake());
        let mut crew = self.crew.lock().unwrap_or_else(PoisonError::into_inner);
        crew.end();
        // A program that takes this process over begins with its processors.
        keep_others_off(&[], crew.of(self.plane.board.active()));
        drop(crew);
        self.rest();
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
        self.halt();
    }
}

/// Waits for the end of threads that are told to end.
fn end(threads: &Mutex<Vec<JoinHandle<()>>>) {
    let mut threads = threads.lock().unwrap_or_else(PoisonError::into_inner);
    threads.iter().for_each(|thread| thread.thread().unpark());
    for thread in threads.drain(..) {
        let _ = thread.join(); // a worker that panicked has ended the process
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shut_down();
    }
}

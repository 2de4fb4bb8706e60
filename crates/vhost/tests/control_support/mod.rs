//! A device with its port, everything it told its owner, and a switch that sends frames back where
//! they came from.
#![allow(dead_code)] // each test program uses a part of it

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use butterfly_guest_driver::{Connection, Listener, Vm, VmConfig};
use butterfly_vhost::{
    control::{Device, DeviceConfig, DeviceEvents, DeviceState, DeviceStatus, Role, StartError},
    net::{Features, NetHeader},
    port::{Pair, Port, PortEvents},
    ring::{BATCH, Delivery, Finish, FrameStore, Gathered},
};

/// Longer than anything here takes on a busy machine.
pub const WAIT: Duration = Duration::from_secs(20);
/// Time limit for a prompt answer: less than any time-out.
pub const PROMPT: Duration = Duration::from_millis(900);

/// An event that a device reported to its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Attached,
    Detached(String),
    /// Start of the transmit ring, with the number of the kick descriptor.
    TxStarted(Option<i32>),
    TxStopped(Option<i32>),
    Trouble(String),
    Announce,
}

#[derive(Default)]
pub struct Events {
    list: Mutex<Vec<Event>>,
    changed: Condvar,
}

impl Events {
    fn push(&self, event: Event) {
        self.list.lock().unwrap().push(event);
        self.changed.notify_all();
    }

    pub fn all(&self) -> Vec<Event> {
        self.list.lock().unwrap().clone()
    }

    pub fn clear(&self) {
        self.list.lock().unwrap().clear();
    }

    /// Waits until the events so far satisfy `found`, and returns what it found.
    pub fn wait<T>(&self, what: &str, found: impl Fn(&[Event]) -> Option<T>) -> T {
        let end = Instant::now() + WAIT;
        let mut list = self.list.lock().unwrap();
        loop {
            if let Some(found) = found(&list) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited for {what}; events: {list:#?}");
            list = self.changed.wait_timeout(list, left).unwrap().0;
        }
    }

    /// Waits for the `n`th detachment; returns its reason.
    pub fn detached(&self, n: usize) -> String {
        self.wait(&format!("detachment {n}"), |events| {
            let mut reasons = events
                .iter()
                .filter_map(|e| if let Event::Detached(reason) = e { Some(reason) } else { None });
            reasons.nth(n - 1).cloned()
        })
    }

    pub fn wait_attached(&self, n: usize) {
        self.wait(&format!("attachment {n}"), |events| {
            (events.iter().filter(|e| **e == Event::Attached).count() >= n).then_some(())
        });
    }

    /// Waits until the transmit ring was announced for the `n`th time.
    pub fn wait_started(&self, n: usize) {
        let started = |e: &&Event| matches!(e, Event::TxStarted(_));
        self.wait(&format!("transmit ring {n}"), |events| {
            (events.iter().filter(started).count() >= n).then_some(())
        });
    }
}

impl PortEvents for Events {
    fn tx_started(&self, _: usize, kick: Option<&Arc<OwnedFd>>) {
        self.push(Event::TxStarted(kick.map(|fd| fd.as_raw_fd())));
    }

    fn tx_stopped(&self, _: usize, kick: Option<&Arc<OwnedFd>>) {
        // It must be open still: the polling worker takes it out of its set.
        if let Some(fd) = &kick {
            rustix::io::fcntl_getfd(fd).unwrap();
        }
        self.push(Event::TxStopped(kick.map(|fd| fd.as_raw_fd())));
    }
}

impl DeviceEvents for Events {
    fn attached(&self) {
        self.push(Event::Attached);
    }

    fn detached(&self, reason: &str) {
        self.push(Event::Detached(reason.to_owned()));
    }

    fn announce(&self) {
        self.push(Event::Announce);
    }

    fn trouble(&self, why: &str) {
        self.push(Event::Trouble(why.to_owned()));
    }
}

/// A device in a directory of its own.
pub struct Bed {
    // Dropped in this order: the device removes its socket, then the directory goes.
    pub device: Option<Device>,
    pub port: Arc<Port>,
    pub events: Arc<Events>,
    pub path: PathBuf,
    pub role: Role,
    pub directory: Arc<tempfile::TempDir>,
}

impl Bed {
    pub fn new(role: Role) -> Bed {
        let directory = tempfile::Builder::new().prefix("control-").tempdir().unwrap();
        let path = directory.path().join("vnic");
        let mut bed = Bed {
            device: None,
            port: Arc::default(),
            events: Arc::default(),
            path,
            role,
            directory: Arc::new(directory),
        };
        bed.start().unwrap();
        bed
    }

    pub fn server() -> Bed {
        Bed::new(Role::Server)
    }

    /// Another device on the same socket, with a port of its own. Not started.
    pub fn successor(&self) -> Bed {
        Bed {
            device: None,
            port: Arc::default(),
            events: Arc::default(),
            path: self.path.clone(),
            role: self.role,
            directory: self.directory.clone(),
        }
    }

    pub fn config(&self) -> DeviceConfig {
        DeviceConfig {
            notes: None,
            name: "test".to_owned(),
            role: self.role,
            path: self.path.clone(),
            port: self.port.clone(),
            offered: Features::OFFERED,
            events: self.events.clone(),
        }
    }

    pub fn start(&mut self) -> Result<(), StartError> {
        self.device = Some(Device::start(self.config())?);
        Ok(())
    }

    pub fn resume(
        &mut self,
        connection: std::os::fd::OwnedFd,
        state: DeviceState,
    ) -> Result<(), StartError> {
        self.device = Some(Device::resume(self.config(), connection, state)?);
        Ok(())
    }

    pub fn device(&self) -> &Device {
        self.device.as_ref().unwrap()
    }

    pub fn status(&self) -> DeviceStatus {
        self.device().status()
    }

    pub fn stop(&mut self) {
        self.device.take().unwrap().stop();
    }

    /// A front end that has connected and said nothing.
    pub fn connect(&self) -> Connection {
        Connection::connect(&self.path, WAIT).unwrap()
    }

    /// A running VM.
    pub fn vm(&self, config: &VmConfig) -> Vm {
        match self.role {
            Role::Server => Vm::connect(&self.path, config, WAIT).unwrap(),
            Role::Client => Vm::accept(&Listener::bind(&self.path).unwrap(), config, WAIT).unwrap(),
        }
    }

    /// Sends every frame that the guest sent back to it. Returns how many there were.
    pub fn echo(&self) -> usize {
        echo(&self.port)
    }

    /// Sends `count` frames from the guest through the switch back to it, and checks them.
    pub fn ping(&self, vm: &mut Vm, count: usize) {
        for n in 0..count {
            let frame: Vec<u8> = (0..60 + n % 1400).map(|i| (i * 7 + n) as u8).collect();
            vm.guest
                .send(&frame, NetHeader::default())
                .unwrap_or_else(|e| panic!("frame {n} of {count}: {e}"));
            assert_eq!(self.echo(), 1, "frame {n} of {count}; {:#?}", self.status());
            let (_, back) = vm
                .guest
                .recv()
                .unwrap()
                .unwrap_or_else(|| panic!("frame {n} of {count} did not return"));
            assert_eq!(back, frame, "frame {n} of {count}");
        }
    }
}

/// Sends every frame of a port's first transmit ring into its receive ring.
pub fn echo(port: &Port) -> usize {
    echo_pair(port.pair(0).unwrap())
}

/// Sends every frame of a pair's transmit ring into its receive ring.
pub fn echo_pair(port: &Pair) -> usize {
    let mut store = FrameStore::default();
    let mut tx = port.tx();
    let Some(tx) = tx.as_mut() else { return 0 };
    let mut total = 0;
    while tx.available().unwrap_or(0) > 0 {
        let Gathered::Frames(mut frames) = tx.gather(&mut store, BATCH as u16, |_| {}) else {
            break;
        };
        let mut rx = port.rx();
        for (index, frame) in frames.frames().iter().enumerate() {
            assert_eq!(frame.fault, None);
            total += 1;
            let head = frames.head(index);
            let from = head.len() as u32;
            let delivery = Delivery {
                net: NetHeader::default(),
                head,
                frame: index,
                from,
                len: frame.len - from,
                finish: Finish::Nothing,
            };
            if let Some(rx) = rx.as_mut() {
                rx.deliver(&frames, &delivery).unwrap();
            }
        }
        let calls = [frames.release(), rx.as_mut().and_then(|rx| rx.publish())];
        drop(rx);
        for call in calls.into_iter().flatten() {
            call.signal();
        }
    }
    tx.arm();
    total
}

/// Waits for something that has no event.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + WAIT;
    while !condition() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Open descriptors of this process.
pub fn open_files() -> Vec<String> {
    let mut files: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let what = std::fs::read_link(entry.path()).ok()?.display().to_string();
            // The directory that is being read is one of them.
            (!what.ends_with("/fd")).then(|| format!("{} {what}", entry.file_name().display()))
        })
        .collect();
    files.sort();
    files
}

/// Mappings of shared files in this process.
pub fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(" rw-s ")).count()
}

/// Open files and shared mappings, once other threads have finished what they were doing.
pub fn settled() -> (Vec<String>, usize) {
    let mut last = open_files();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(10));
        let now = open_files();
        if now == last {
            break;
        }
        last = now;
    }
    (last, shared_mappings())
}

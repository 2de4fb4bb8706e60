//! Guests of our own: they are behind vnics to which no VM attaches.
//!
//! Such a vnic is like any other: its guest is a thread here. The thread has the driver's side of
//! virtqueues, at the other end of a control channel without a name. So nothing of the switch has
//! to know of it. Behind a TAP vnic frames are relayed to and from a TAP device ([`Machine::Tap`]).
//! Behind a BENCH vnic they are made and answered here ([`Machine::Ping`], [`Machine::Echo`]).
//! Behind the port of an external they come from outside ([`Machine::Wire`], [`Machine::WireTap`]).
//!
//! A thread sleeps unless there is something to do, takes at most [`BURST`] frames of a kind at a
//! time, and never holds up the switch: it is as slow a reader as a VM may be.

#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod bridged;
mod counts;
mod echo;
mod error;
mod losses;
mod nic;
mod ping;
mod relay;
mod seat;
mod station;
mod turned;
mod vnic;
mod wire;

use std::{
    net::IpAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::MetadataExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};

use butterfly_packet::Mac;
use butterfly_vhost::{control::Farewell, net::Features};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use counts::Counts;
pub use error::Error;
use losses::Lost;
pub use losses::{WireLoss, WireState};
use nic::WANTED;
pub use ping::{Pings, Times, Told};
use relay::Relay;
use seat::{Seat, Wishes};
pub use station::StationState;
use station::{Station, StationConfig, StationWatch};
use turned::Turned;
pub use vnic::{BURST, Vnic};
use wire::Wire;
pub use wire::WireConfig;

/// Kind of guest behind a vnic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// A TAP device.
    Tap {
        /// The network namespace it is moved to, as a file; none: it stays in ours.
        namespace: Option<PathBuf>,
    },
    /// Sends echo requests, one after the other, and measures how long the answers take.
    Ping {
        /// Address to which it sends.
        ip: IpAddr,
        /// Behind this one.
        mac: Mac,
    },
    /// Answers echo requests.
    Echo,
    /// An interface that leads out of the host.
    Wire(WireConfig),
    /// A TAP device that leads out: somebody else joins it to something.
    WireTap {
        /// Its name, which must be free; none: one of the kernel's choice.
        name: Option<String>,
        /// Largest IP packet, in bytes.
        mtu: u32,
        /// Address of the switch there: that of the device is its user's.
        own: Mac,
    },
}

/// A machine that is ready but for its vnic: what can be refused was made.
pub struct Prepared {
    body: Body,
    vnic: Vnic,
    /// Address of the switch on the wire that it is. The MTU is then its own, whatever that of its
    /// network.
    wire: Option<Mac>,
}

enum Body {
    Tap(Station),
    Ping(IpAddr, Mac),
    Echo,
    Wire(Box<Wire>),
}

impl Machine {
    /// True if both have an interface in one network namespace, under any name.
    pub fn is_beside(&self, other: &Machine) -> bool {
        let (Machine::Tap { namespace: one }, Machine::Tap { namespace: other }) = (self, other)
        else {
            return false;
        };
        let place = |path: &Option<PathBuf>| {
            let path = path.as_deref().unwrap_or(Path::new("/proc/thread-self/ns/net"));
            std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok()
        };
        one == other || place(one).is_some_and(|one| place(other) == Some(one))
    }

    /// Makes what the machine needs, or takes up its TAP device, `former`, where another process
    /// left it. On an error nothing is left.
    pub fn prepare(&self, vnic: Vnic, former: Option<OwnedFd>) -> Result<Prepared, Error> {
        let body = match self {
            Machine::Tap { namespace } => {
                let config = StationConfig {
                    name: vnic.id.clone(),
                    mac: vnic.mac,
                    mtu: vnic.mtu,
                    namespace: namespace.clone(),
                };
                Body::Tap(taken_up(&config, former)?)
            }
            Machine::WireTap { name, mtu, .. } => {
                let wanted = name.clone().unwrap_or_default();
                let (mac, mtu) = (vnic.mac, *mtu);
                let config = StationConfig { name: wanted, mac, mtu, namespace: None };
                let station = taken_up(&config, former)?;
                if let Some(name) = name.as_ref().filter(|name| *name != station.name()) {
                    let text =
                        format!("cannot make the TAP device {name}: there is one of that name");
                    return Err(butterfly_uplink::Error::refused(text).into());
                }
                Body::Tap(station)
            }
            Machine::Wire(config) => Body::Wire(Box::new(Wire::open(config)?)),
            Machine::Ping { ip, mac } => Body::Ping(*ip, *mac),
            Machine::Echo => Body::Echo,
        };
        let wire = match self {
            // An interface is the switch's.
            Machine::Wire(_) => Some(vnic.mac),
            Machine::WireTap { own, .. } => Some(*own),
            Machine::Tap { .. } | Machine::Ping { .. } | Machine::Echo => None,
        };
        Ok(Prepared { body, vnic, wire })
    }
}

impl Prepared {
    /// The TAP device, for who keeps it.
    pub fn device(&self) -> Option<BorrowedFd<'_>> {
        match &self.body {
            Body::Tap(station) => Some(station.as_fd()),
            Body::Ping(..) | Body::Echo | Body::Wire(_) => None,
        }
    }

    /// Attaches to the vnic at the other end of `connection` and starts. When this returns, the
    /// vnic's queues run.
    pub fn attach(
        self,
        connection: UnixStream,
        farewell: Farewell,
        told: Told,
    ) -> Result<Guest, Error> {
        let Prepared { body, vnic, wire: own } = self;
        let fixed = own.is_some();
        let station = if let Body::Tap(station) = &body { Some(station) } else { None };
        let is_wire = matches!(body, Body::Wire(_));
        let wanted = if is_wire { WANTED.without(Features::OFFLOADS) } else { WANTED };
        let mut seat = Seat::take(connection, (station, wanted), vnic.ip)?;
        let wishes = seat.wishes();
        let counts = Arc::new(Counts::default());
        let interface = match &body {
            Body::Tap(station) if fixed => {
                Behind::WireTap(station.name().to_owned(), station.link())
            }
            Body::Tap(station) => Behind::Tap(station.name().to_owned(), station.link()),
            Body::Wire(wire) => Behind::Wire(wire.name().to_owned()),
            Body::Ping(..) | Body::Echo => Behind::Nothing,
        };
        let name = format!("guest-{}", vnic.id.replace('\0', ""));
        let mine = counts.clone();
        let turned = own.map(Turned::new);
        let body = move || {
            let end = match body {
                Body::Tap(station) => relay::run(&mut seat, Relay { station, turned }, &mine),
                Body::Wire(wire) => wire::run(&mut seat, wire, turned, &mine),
                Body::Ping(ip, mac) => {
                    seat.looks = keep_off(vnic.worker);
                    ping::run(&mut seat, &vnic, (ip, mac), &mine.pings, &told)
                }
                Body::Echo => {
                    seat.looks = keep_off(vnic.worker);
                    echo::run(&mut seat, &vnic)
                }
            };
            if let Some(reason) = end.reason() {
                farewell.say(reason);
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        let watch = GuestWatch(Arc::new(Watching { behind: interface, counts }));
        Ok(Guest { watch, wishes, fixed, thread: Some(thread) })
    }
}

/// Takes up a TAP device where another process left it, or makes it.
fn taken_up(config: &StationConfig, former: Option<OwnedFd>) -> Result<Station, Error> {
    let former = former.and_then(|former| Station::take_up(config, former).ok());
    former.map_or_else(|| Ok(Station::make(config)?), Ok)
}

/// Keeps this thread off a processor. Returns whether it has another one.
fn keep_off(processor: Option<usize>) -> bool {
    let Some((processor, mut set)) =
        processor.filter(|at| *at < CpuSet::MAX_CPU).zip(sched_getaffinity(None).ok())
    else {
        return false;
    };
    set.unset(processor);
    set.count() > 0 && sched_setaffinity(None, &set).is_ok()
}

/// Interface behind a guest, by the name with which it was made.
enum Behind {
    Tap(String, StationWatch),
    WireTap(String, StationWatch),
    Wire(String),
    Nothing,
}

/// State of a guest for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A TAP device.
    Tap {
        /// The name it was made with.
        interface: String,
        /// Frames that it did not take, as it is down.
        refused: u64,
        /// State of the device: it says whether it takes frames now.
        state: StationState,
    },
    /// Wire of an external.
    Wire(WireReport),
    /// Questions and answers.
    Bench(Pings),
}

/// State of a wire for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireReport {
    /// Name of the interface, or of the TAP device.
    pub interface: String,
    /// True if it is a TAP device that the daemon made.
    pub is_tap: bool,
    /// State of the interface.
    pub state: WireState,
    /// Frames that were lost, by all reasons there are.
    pub losses: Vec<WireLoss>,
}

/// View of a guest for another thread. It may outlast the guest, and keeps nothing open.
#[derive(Clone)]
pub struct GuestWatch(Arc<Watching>);

struct Watching {
    behind: Behind,
    counts: Arc<Counts>,
}

impl GuestWatch {
    /// Returns the state for the operator. Never waits.
    pub fn report(&self) -> Report {
        let Watching { behind, counts } = &*self.0;
        let refused = || counts.refused.load(Ordering::Relaxed);
        match behind {
            Behind::Tap(interface, link) => Report::Tap {
                interface: interface.clone(),
                refused: refused(),
                state: link.state(),
            },
            Behind::WireTap(interface, link) => {
                let (interface, state) = match link.state() {
                    StationState::Up => (interface.clone(), WireState::Up),
                    StationState::Down(name) => (name, WireState::Down),
                    StationState::Gone => (interface.clone(), WireState::Gone),
                };
                let losses = Lost { down: refused(), ..counts.turned() }.named();
                Report::Wire(WireReport { interface, is_tap: true, state, losses })
            }
            Behind::Wire(interface) => Report::Wire(WireReport {
                interface: interface.clone(),
                is_tap: false,
                state: counts.wire.state(),
                losses: counts.wire.lost().plus(counts.turned()).named(),
            }),
            Behind::Nothing => Report::Bench(counts.pings.read()),
        }
    }
}

/// A running guest. Dropping it is as good as [`Guest::stop`].
pub struct Guest {
    watch: GuestWatch,
    wishes: Arc<Wishes>,
    fixed: bool,
    thread: Option<JoinHandle<()>>,
}

impl Guest {
    /// Returns the state for the operator.
    pub fn report(&self) -> Report {
        self.watch.report()
    }

    /// Returns the means to read its state from another thread.
    pub fn watch(&self) -> GuestWatch {
        self.watch.clone()
    }

    /// Gives it another IP address.
    pub fn readdress(&self, ip: Option<IpAddr>) {
        self.wishes.readdress(ip);
    }

    /// Tells it the MTU of its network, which has changed. A TAP device in our own network
    /// namespace gets it, but none that leads outside.
    pub fn resize(&self, mtu: u32) {
        if !self.fixed {
            self.wishes.resize(mtu);
        }
    }

    /// Ends it. When this returns, its TAP device is gone.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.wishes.stop();
            // A panic was its last act; unwinding released what it held.
            let _ = thread.join();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.end();
    }
}

//! The device side of the vhost-user control channel: one [`Device`] per vnic.
//!
//! A device owns a socket, or connects to one that QEMU owns. Its thread serves one front end at a
//! time. While a front end is attached, the device owns the rings of a [`Port`]. The worst that a
//! front end can cause is its own detachment, with a reason; the device then waits for the next
//! one.

mod descriptors;
mod events;
mod farewell;
mod gate;
mod held;
mod noted;
mod pace;
mod role;
mod session;
mod shared;
mod socket;
mod start;
mod state;
mod status;
mod thread;
mod wire;

use std::{
    fmt,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use butterfly_holder::client::{Channel, Former};

use crate::{
    maps::{Maps, OF_A_THREAD},
    net::Features,
    port::{Port, Queue},
    ring::{NoteTable, ensure_signaller},
};
use session::Session;
use shared::Shared;
use socket::Listener;

pub use descriptors::MAX_FURTHER_PAIRS;
pub use events::DeviceEvents;
pub use farewell::Farewell;
pub use noted::{block_of, check as check_state};
pub use role::Role;
pub use socket::{MAX_PATH, listen, may_listen};
pub use start::StartError;
pub use state::{DeviceState, Exported, Kick, LogState, Name, Named, RingAddresses, RingState};
pub use status::{Detach, DeviceStatus, Negotiated};

/// Stack of a control thread: a few frames of ours and of a logger. Only what is used takes memory.
const STACK: usize = 256 * 1024;

/// Parameters of a device.
#[derive(Clone)]
pub struct DeviceConfig {
    /// The vnic, in messages to the operator.
    pub name: String,
    /// Owner of the socket.
    pub role: Role,
    /// The socket; at most [`MAX_PATH`] bytes.
    pub path: PathBuf,
    /// Port that gets the rings.
    pub port: Arc<Port>,
    /// The part of [`Features::OFFERED`] that front ends are offered.
    pub offered: Features,
    /// Receiver of the device's events.
    pub events: Arc<dyn DeviceEvents>,
    /// Place of notes about packed rings, which are offered only with it, to front ends that the
    /// holder holds.
    pub notes: Option<Arc<NoteTable>>,
}

/// The control channel of one vnic. Dropping it is as good as [`Device::stop`].
pub struct Device {
    /// None if the front end is in this process.
    socket: Option<(Role, PathBuf)>,
    port: Arc<Port>,
    offered: Features,
    shared: Arc<Shared>,
    /// Locked by nobody: whoever changes it has the device. The lock makes it `Sync`.
    thread: Mutex<ControlThread>,
    /// Mappings counted for the thread.
    _counted: Maps,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Device {
    /// Starts a control channel. A server listens when this returns. A stale socket file, on which
    /// no process answers, is replaced.
    pub fn start(config: DeviceConfig) -> Result<Device, StartError> {
        Self::launch(config, None)
    }

    /// Starts a control channel that goes on with a front end another one served: it does not
    /// notice. The other one must not drive the rings any more. When that front end leaves, the
    /// device is as one that was started.
    pub fn resume(
        config: DeviceConfig,
        connection: OwnedFd,
        state: DeviceState,
    ) -> Result<Device, StartError> {
        ensure_signaller().map_err(StartError::NoSignaller)?;
        let mut session = Session::new(config.port.clone(), config.offered, config.events.clone());
        session.restore(state).map_err(|refused| StartError::State(refused.0))?;
        Self::launch(
            config,
            Some(thread::Connection { socket: connection, session, attached: true }),
        )
    }

    /// Makes a control channel whose sockets are the holder's, which tells of its front ends by
    /// `channel`. Goes on with the front end of a dead process, `former`: its rings run when this
    /// returns. A front end whose state is not usable is sent away. Nothing is heard or said until
    /// [`Device::begin`].
    pub fn held(
        config: DeviceConfig,
        channel: Channel,
        former: Option<Former>,
    ) -> Result<Device, StartError> {
        let DeviceConfig { name, role, path, port, offered, events, notes } = config;
        ensure_signaller().map_err(StartError::NoSignaller)?;
        let counted = Maps::take(OF_A_THREAD)?;
        let address = socket::check_path(&path)?;
        let shared = Arc::new(Shared::new(None).map_err(|error| StartError::Thread(error.into()))?);
        let notes_are_kept = notes.is_some();
        let served = former.map(|former| {
            let session = Session::new(port.clone(), offered, events.clone());
            held::Served::resume(session, notes.as_ref(), former)
        });
        let thread = thread::Thread {
            server: (role == Role::Client).then_some(address),
            port: port.clone(),
            offered,
            notes,
            events,
            shared: shared.clone(),
            inside: false,
        };
        let offered = match notes_are_kept {
            true => offered.with(Features::RING_PACKED),
            false => offered,
        };
        let thread =
            ControlThread::Waits(name, Box::new(move || thread.run_held(&channel, served))).into();
        Ok(Device { socket: Some((role, path)), port, offered, shared, thread, _counted: counted })
    }

    /// Starts the control thread of a [held](Device::held) device. Does nothing if it runs.
    pub fn begin(&mut self) -> Result<(), StartError> {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        *thread = match std::mem::take(thread) {
            ControlThread::Waits(name, body) => ControlThread::Runs(spawn(&name, body)?),
            other => other,
        };
        Ok(())
    }

    /// Starts a control channel whose front end is in this process, without a socket in the file
    /// system. Returns the front end's end of the connection, and its means to say why it leaves.
    /// After it left no front end can attach.
    pub fn start_inside(
        name: &str,
        port: Arc<Port>,
        offered: Features,
        events: Arc<dyn DeviceEvents>,
    ) -> Result<(Device, UnixStream, Farewell), StartError> {
        ensure_signaller().map_err(StartError::NoSignaller)?;
        let counted = Maps::take(OF_A_THREAD)?;
        let (ours, theirs) = UnixStream::pair().map_err(StartError::Thread)?;
        ours.set_nonblocking(true).map_err(StartError::Thread)?;
        let session = Session::new(port.clone(), offered, events.clone());
        let first = thread::Connection { socket: ours.into(), session, attached: false };
        let shared = Arc::new(Shared::new(None).map_err(|error| StartError::Thread(error.into()))?);
        let thread = thread::Thread {
            server: None,
            port: port.clone(),
            offered,
            notes: None,
            events,
            shared: shared.clone(),
            inside: true,
        };
        let farewell = Farewell(shared.clone());
        let thread = spawn(name, move || thread.run(Some(first)))?;
        let device = Device {
            socket: None,
            port,
            offered,
            shared,
            thread: ControlThread::Runs(thread).into(),
            _counted: counted,
        };
        Ok((device, theirs, farewell))
    }

    fn launch(
        config: DeviceConfig,
        resumed: Option<thread::Connection>,
    ) -> Result<Device, StartError> {
        let DeviceConfig { name, role, path, port, offered, events, notes: _ } = config;
        ensure_signaller().map_err(StartError::NoSignaller)?;
        let counted = Maps::take(OF_A_THREAD)?;
        let address = socket::check_path(&path)?;
        let (listener, server) = match role {
            Role::Server => (Some(Listener::new(&path)?), None),
            Role::Client => (None, Some(address)),
        };
        let shared =
            Arc::new(Shared::new(listener).map_err(|error| StartError::Thread(error.into()))?);
        let thread = thread::Thread {
            server,
            port: port.clone(),
            offered,
            notes: None,
            events,
            shared: shared.clone(),
            inside: false,
        };
        let thread = spawn(&name, move || thread.run(resumed))?;
        Ok(Device {
            socket: Some((role, path)),
            port,
            offered,
            shared,
            thread: ControlThread::Runs(thread).into(),
            _counted: counted,
        })
    }

    /// Detaches the front end and ends the channel, within a worker's batch. A server's socket file
    /// is removed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let ControlThread::Runs(thread) = std::mem::take(thread) {
            self.shared.stop();
            // A panic of the thread was its last act; what it held was released by unwinding.
            let _ = thread.join();
        }
    }

    /// Returns the state of the device for the operator.
    pub fn status(&self) -> DeviceStatus {
        // Rings first: one that the session below does not know yet is better than the reverse.
        let (rx, tx) = (self.port.status(Queue::RX), self.port.status(Queue::TX));
        let further = Queue::all().filter(|queue| queue.pair() > 0);
        let further: Vec<_> =
            further.filter_map(|queue| Some((queue, self.port.status(queue)?))).collect();
        let live = self.shared.live();
        let mut attached = live.attached.clone();
        if let Some(attached) = &mut attached
            && [&rx, &tx].into_iter().flatten().any(|ring| ring.waiting != 0 || ring.has_moved())
        {
            // It was a guess, and something arrived.
            attached.memory_trouble = None;
        }
        DeviceStatus {
            socket: self.socket.clone(),
            offered: self.offered,
            attached,
            rx,
            tx,
            further,
            others_waiting: live.attached.is_some() && self.shared.others_waiting(),
            attach_count: live.attach_count,
            last_detach: live.last_detach.clone(),
            trouble: live.trouble.clone(),
            interrupts: self.port.interrupts().report(),
            touches: self.port.touches().report(),
        }
    }

    /// Returns a handle through which a worker reaches this device.
    pub fn poker(&self) -> Poker {
        Poker(self.shared.clone())
    }

    /// Does the same as [`Poker::poke`].
    pub fn poke(&self) {
        self.shared.poke();
    }

    /// A copy of the connection and of everything that was set up on it, for [`Device::resume`];
    /// `None` if no front end is attached, or descriptors are used up. It is out of date after
    /// the front end's next message.
    pub fn export(&self) -> Option<Exported> {
        /// Longer than a message may take.
        const PATIENCE: Duration = Duration::from_secs(5);
        let (sender, receiver) = mpsc::sync_channel(1);
        self.shared.wish_export(sender);
        receiver.recv_timeout(PATIENCE).ok().flatten()
    }
}

/// A device's control thread.
#[derive(Default)]
enum ControlThread {
    /// Not started yet: its device's name, and its work.
    Waits(String, Box<dyn FnOnce() + Send>),
    /// Running.
    Runs(JoinHandle<()>),
    /// Ended.
    #[default]
    Ended,
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StartError> {
    // Linux shows 15 bytes of a thread's name; NUL is not allowed in one.
    let name = format!("vu-{}", name.replace('\0', ""));
    Builder::new().name(name).stack_size(STACK).spawn(body).map_err(StartError::Thread)
}

impl Drop for Device {
    fn drop(&mut self) {
        self.end();
    }
}

/// Asks a device to look after its rings.
#[derive(Clone)]
pub struct Poker(Arc<Shared>);

impl Poker {
    /// A worker found a poisoned ring ([`crate::ring::TxRing::poisoned`],
    /// [`crate::ring::RxRing::poisoned`]): the front end is detached because its memory was
    /// truncated. Does nothing if no memory is poisoned. Never waits; the first of many costs a
    /// system call.
    pub fn poke(&self) {
        self.0.poke();
    }
}

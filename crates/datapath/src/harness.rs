//! A whole switch in one thread, for packet walks, measurements of fixed work, and fuzzing:
//! in-memory rings of simulated guests, no sockets, no threads, no root.

#[cfg(not(feature = "loom"))]
mod adopted;
mod announcing;
mod checkpoint;
mod error;
mod frames;
mod halves;
mod kept;
mod moves;
mod questions;
mod rings;
mod seeking;
mod turns;
mod vnics;
mod wire;

use std::{collections::BTreeMap, sync::Arc};

use butterfly_guest_driver::{
    guest::{Guest, GuestConfig},
    memory::{Memory, MemoryConfig},
};
use butterfly_vhost::{
    net::{Features, NetHeader},
    port::Port,
};

#[cfg(test)]
use crate::engine::place::uplink_ring;
use crate::harness::rings::{Attached, attach_rings};
#[cfg(test)]
use crate::overlay::Wire;
use crate::overlay::{Tunnel, TunnelConfig, UplinkPort};
use crate::plane::{Plane, PlaneConfig, attachment::Attachment, nowhere};
use crate::session::SessionConfig;
use crate::stages::pipeline::STAGES;
use crate::worker::{Handle, Worker};

#[cfg(not(feature = "loom"))]
pub use adopted::LeftTable;
pub use error::Error;
pub use halves::{Changes, Guests, OneWorker, Turns};

/// A host whose workers do a turn when a test says so. It has one, or those of
/// [`Host::with_workers`].
pub struct Host {
    plane: std::sync::Arc<Plane>,
    /// The other end of the uplink's rings.
    wire: Option<Guest>,
    workers: Vec<Worker>,
    vnics: BTreeMap<String, Attached>,
    last: BTreeMap<String, u64>,
    /// Ports that machines share, as a holder keeps them.
    kept_ports: kept::PortsInMemory,
}

/// Frames that arrived at each guest, in order.
pub type Received = BTreeMap<String, Vec<(NetHeader, Vec<u8>)>>;

/// Features of a modern Linux guest.
pub const LINUX: Features = Features(
    Features::VERSION_1.0
        | Features::MRG_RXBUF.0
        | Features::INDIRECT_DESC.0
        | Features::EVENT_IDX.0
        | Features::CSUM.0
        | Features::GUEST_CSUM.0
        | Features::GUEST_TSO4.0
        | Features::GUEST_TSO6.0
        | Features::HOST_TSO4.0
        | Features::HOST_TSO6.0,
);

/// Features of an uplink: complete frames in large buffers.
pub const WIRE: Features =
    Features(Features::VERSION_1.0 | Features::MRG_RXBUF.0 | Features::EVENT_IDX.0);

/// Returns the names of all stages, in order, and of delivery with the departure to other hosts
/// that is a part of it. Instruction counts use these names.
pub fn stages() -> Vec<&'static str> {
    STAGES.iter().map(|stage| stage.name).chain(["leave", "deliver"]).collect()
}

impl Host {
    /// Makes a host without vnics.
    pub fn new() -> Result<Host, Error> {
        Host::with_sessions(SessionConfig { capacity: 65_536, ..SessionConfig::default() })
    }

    /// Makes a host with these settings of sessions.
    pub fn with_sessions(sessions: SessionConfig) -> Result<Host, Error> {
        Host::with_tunnel(sessions, None)
    }

    /// Makes a host that is a tunnel endpoint. Its uplink is a ring of a simulated guest, which
    /// stands for the wire.
    pub fn with_tunnel(
        sessions: SessionConfig,
        config: Option<&TunnelConfig>,
    ) -> Result<Host, Error> {
        Host::with(sessions, config, 1)
    }

    /// Makes a host with several workers. Each vnic's transmit ring is served by one of them.
    pub fn with_workers(workers: usize) -> Result<Host, Error> {
        let sessions = SessionConfig { capacity: 65_536, ..SessionConfig::default() };
        Host::with(sessions, None, workers)
    }

    /// Makes a host with these settings of sessions, a tunnel endpoint if there is a `config`, and
    /// so many workers.
    pub fn with(
        sessions: SessionConfig,
        config: Option<&TunnelConfig>,
        workers: usize,
    ) -> Result<Host, Error> {
        let port = Arc::new(Port::default());
        let tunnel = config
            .map(|config| Tunnel::new(config, UplinkPort::Ring(port.clone()), workers))
            .transpose()?;
        let plane = Plane::new(PlaneConfig {
            workers,
            fdb_ageing: 300,
            sessions,
            tunnel,
            black_box: nowhere(),
        })?;
        let wire = match config {
            None => None,
            Some(_) => {
                let config = GuestConfig::default();
                let memory = Memory::new(&MemoryConfig::new(config.memory_needed()))?;
                let guest = Guest::new(&memory, WIRE, &config)?;
                let serving = plane.shared.tunnel.as_ref().and_then(|it| it.serving.first());
                let serving = serving.ok_or("no tunnel")?.clone();
                let board = plane.board.clone();
                attach_rings(&port, &Attachment::Uplink { board, serving }, &guest, WIRE)?;
                Some(guest)
            }
        };
        Host::of(plane, wire)
    }

    fn of(plane: Plane, wire: Option<Guest>) -> Result<Host, Error> {
        let worker = |handle: &Arc<Handle>| {
            let id = handle.claim().ok_or("no worker")?;
            Ok::<_, Error>(Worker::without_prices(plane.shared.clone(), handle.clone(), id))
        };
        Ok(Host {
            workers: plane.board.handles().iter().map(worker).collect::<Result<_, _>>()?,
            plane: plane.into(),
            wire,
            vnics: BTreeMap::new(),
            last: BTreeMap::new(),
            kept_ports: kept::PortsInMemory::default(),
        })
    }

    /// Makes a host whose uplink is a port of its own kind.
    #[cfg(test)]
    pub(crate) fn on_wire(
        config: &TunnelConfig,
        halves: butterfly_uplink::Halves,
        workers: usize,
    ) -> Result<Host, Error> {
        let tunnel = Tunnel::new(config, UplinkPort::Wire(Wire::new(halves)), workers)?;
        let sessions = SessionConfig { capacity: 1024, ..SessionConfig::default() };
        let plane = Plane::new(PlaneConfig {
            workers,
            fdb_ageing: 300,
            sessions,
            tunnel: Some(tunnel),
            black_box: nowhere(),
        })?;
        let queues = plane.shared.tunnel.iter().flat_map(|tunnel| &tunnel.serving);
        for (queue, serving) in (0..).zip(queues) {
            plane.board.started(uplink_ring(queue), serving, None);
        }
        Host::of(plane, None)
    }

    /// Returns the control side, and the worker.
    #[cfg(test)]
    pub(crate) fn inside(&mut self) -> (&Plane, &mut Worker) {
        (&self.plane, &mut self.workers[0])
    }

    /// Returns the tunnel endpoint's state for workers.
    #[cfg(test)]
    pub(crate) fn tunnel(&self) -> Option<&Tunnel> {
        self.plane.shared.tunnel.as_ref()
    }
}

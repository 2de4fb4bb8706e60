//! A guest with its control channel: attach, detach, crash, come back.

use std::{path::Path, sync::Arc, time::Duration};

use butterfly_vhost::net::Features;

use crate::{
    control::{Connection, ControlError, Listener, Pairs, Positions, ProtocolFeatures, Start},
    guest::{Guest, GuestConfig},
    memory::{Memory, MemoryConfig, MemoryError},
};

/// Parameters of a VM.
#[derive(Clone, Debug)]
pub struct VmConfig {
    /// Features its driver asks for; in force are those that are offered too.
    pub features: Features,
    /// Protocol features its front end asks for. Empty: none, and rings need no enabling.
    pub protocol: ProtocolFeatures,
    /// Its memory; None: one region as large as the driver needs.
    pub memory: Option<MemoryConfig>,
    /// Parameters of its driver.
    pub guest: GuestConfig,
    /// Pairs of queues. Several need VIRTIO_NET_F_MQ.
    pub pairs: usize,
    /// Way of starting its queues.
    pub start: Start,
}

impl Default for VmConfig {
    /// A modern guest with mergeable buffers, event index and indirect descriptors, without
    /// offloads.
    fn default() -> VmConfig {
        VmConfig {
            features: Features::VERSION_1
                .with(Features::MRG_RXBUF)
                .with(Features::EVENT_IDX)
                .with(Features::INDIRECT_DESC),
            protocol: Connection::usual_protocol(),
            memory: None,
            guest: GuestConfig::default(),
            pairs: 1,
            start: Start::default(),
        }
    }
}

/// A running VM.
pub struct Vm {
    /// Its driver, or the first pair of queues of it.
    pub guest: Guest,
    /// Drivers of the other pairs.
    pub further: Vec<Guest>,
    /// Its control channel.
    pub connection: Connection,
    config: VmConfig,
}

/// Makes the drivers of all pairs of queues, in one memory.
fn drivers(
    memory: &Arc<Memory>,
    features: Features,
    config: &VmConfig,
) -> Result<(Guest, Vec<Guest>), MemoryError> {
    let pair = |_| Guest::new(memory, features, &config.guest);
    Ok((pair(0)?, (1..config.pairs).map(pair).collect::<Result<_, _>>()?))
}

impl Vm {
    /// Connects to a switch's socket and starts.
    pub fn connect(
        path: impl AsRef<Path>,
        config: &VmConfig,
        timeout: Duration,
    ) -> Result<Vm, ControlError> {
        Vm::attach(Connection::connect(path, timeout)?, config)
    }

    /// Waits for the switch to connect and starts.
    pub fn accept(
        listener: &Listener,
        config: &VmConfig,
        timeout: Duration,
    ) -> Result<Vm, ControlError> {
        Vm::attach(listener.accept(timeout)?, config)
    }

    /// Starts on a fresh connection.
    pub fn attach(mut connection: Connection, config: &VmConfig) -> Result<Vm, ControlError> {
        let features = connection.negotiate(config.features, config.protocol)?;
        let memory = match &config.memory {
            Some(memory) => Memory::new(memory)?,
            None => {
                let needed = config.pairs as u64 * config.guest.memory_needed();
                Memory::new(&MemoryConfig::new(needed))?
            }
        };
        let (guest, further) = drivers(&memory, features, config)?;
        connection.start(&Pairs { first: &guest, further: &further }, &config.start)?;
        Ok(Vm { guest, further, connection, config: config.clone() })
    }

    /// The driver of a pair of queues.
    pub fn pair(&mut self, number: usize) -> &mut Guest {
        match number.checked_sub(1) {
            None => &mut self.guest,
            Some(further) => &mut self.further[further],
        }
    }

    /// Uses the first so many pairs from now on, as QEMU has it after VIRTIO_NET_CTRL_MQ.
    pub fn use_pairs(&mut self, pairs: usize) -> Result<(), ControlError> {
        for index in 2..2 * self.config.pairs {
            self.connection.enable(index, index < 2 * pairs)?;
        }
        Ok(())
    }

    /// The front end goes away without a word; the guest, its memory and rings stay as they are.
    pub fn crash(self) -> DetachedVm {
        self.connection.disconnect();
        DetachedVm { guest: self.guest, further: self.further, config: self.config, base: None }
    }

    /// Stops the queues in order and disconnects; the guest knows where the device was.
    pub fn detach(mut self) -> Result<DetachedVm, ControlError> {
        let base = Some(self.connection.stop(self.config.pairs)?);
        self.connection.disconnect();
        Ok(DetachedVm { guest: self.guest, further: self.further, config: self.config, base })
    }

    /// Stops the queues and starts them where they were, on the same connection.
    pub fn restart(&mut self) -> Result<Positions, ControlError> {
        let base = self.stop()?;
        self.go_on(base)?;
        Ok(base)
    }

    /// Stops the queues. Returns where they were.
    pub fn stop(&mut self) -> Result<Positions, ControlError> {
        self.connection.stop(self.config.pairs)
    }

    /// Starts stopped queues at these positions.
    pub fn go_on(&mut self, base: Positions) -> Result<(), ControlError> {
        self.start(&Start { base, ..self.config.start })
    }

    fn start(&mut self, start: &Start) -> Result<(), ControlError> {
        let nic = Pairs { first: &self.guest, further: &self.further };
        self.connection.start(&nic, start)
    }

    /// Loads the guest's driver again with other features (those offered), on the same connection.
    pub fn change_features(&mut self, wanted: Features) -> Result<Features, ControlError> {
        self.stop()?;
        let features =
            Features(self.connection.offered().0 & wanted.0).without(Features::PROTOCOL_FEATURES);
        self.guest.reset(features);
        self.further.iter_mut().for_each(|guest| guest.reset(features));
        let start = self.config.start;
        self.start(&start)?;
        Ok(features)
    }
}

/// A VM without a connection, its memory and rings as they were.
pub struct DetachedVm {
    /// Its driver, or the first pair of queues of it.
    pub guest: Guest,
    /// Drivers of the other pairs.
    pub further: Vec<Guest>,
    config: VmConfig,
    base: Option<Positions>,
}

impl DetachedVm {
    /// Returns the positions of the device when it was stopped; None if it was not stopped in
    /// order.
    pub fn base(&self) -> Option<Positions> {
        self.base
    }

    /// Zeroes rings, as when the guest boots again.
    pub fn reboot(&mut self) {
        let features = self.guest.features();
        self.guest.reset(features);
        self.further.iter_mut().for_each(|guest| guest.reset(features));
        self.base = None;
    }

    /// Goes on over a new connection, with the same memory, rings and features, where the device
    /// was.
    ///
    /// The device's last word counts if it was stopped in order, else the used indices, as in QEMU.
    /// Of packed rings, whose positions QEMU cannot learn then, only the driver knows them.
    pub fn reattach(self, mut connection: Connection) -> Result<Vm, ControlError> {
        let offered = connection.negotiate(self.guest.features(), self.config.protocol)?;
        if offered != self.guest.features() {
            return Err(ControlError::Missing(self.guest.features().without(offered)));
        }
        // Read only now, when the device that had them before is surely gone.
        let mut used = Positions::default();
        let pairs = [&self.guest].into_iter().chain(&self.further);
        let queues = pairs.flat_map(|pair| [pair.rx(), pair.tx()]);
        for (index, queue) in queues.enumerate() {
            used.set(index, queue.restart_position());
        }
        let start = Start { base: self.base.unwrap_or(used), ..self.config.start };
        connection.start(&Pairs { first: &self.guest, further: &self.further }, &start)?;
        let DetachedVm { guest, further, config, .. } = self;
        Ok(Vm { guest, further, connection, config })
    }
}

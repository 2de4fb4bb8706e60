//! A guest with its control channel: attach, detach, crash, come back.

use std::{path::Path, time::Duration};

use butterfly_vhost::net::Features;

use crate::{
    control::{Connection, ControlError, Listener, ProtocolFeatures, Start},
    guest::{Guest, GuestConfig},
    memory::{Memory, MemoryConfig},
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
            start: Start::default(),
        }
    }
}

/// A running VM.
pub struct Vm {
    /// Its driver.
    pub guest: Guest,
    /// Its control channel.
    pub connection: Connection,
    config: VmConfig,
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
            None => Memory::new(&MemoryConfig::new(config.guest.memory_needed()))?,
        };
        let guest = Guest::new(&memory, features, &config.guest)?;
        connection.start(&guest, &config.start)?;
        Ok(Vm { guest, connection, config: config.clone() })
    }

    /// The front end goes away without a word; the guest, its memory and rings stay as they are.
    pub fn crash(self) -> DetachedVm {
        self.connection.disconnect();
        DetachedVm { guest: self.guest, config: self.config, base: None }
    }

    /// Stops the queues in order and disconnects; the guest knows where the device was.
    pub fn detach(mut self) -> Result<DetachedVm, ControlError> {
        let base = self.connection.stop()?;
        self.connection.disconnect();
        Ok(DetachedVm { guest: self.guest, config: self.config, base: Some(base) })
    }

    /// Stops the queues and starts them where they were, on the same connection.
    pub fn restart(&mut self) -> Result<[u16; 2], ControlError> {
        let base = self.stop()?;
        self.go_on(base)?;
        Ok(base)
    }

    /// Stops the queues. Returns where they were, receive ring first.
    pub fn stop(&mut self) -> Result<[u16; 2], ControlError> {
        self.connection.stop()
    }

    /// Starts stopped queues at these positions.
    pub fn go_on(&mut self, base: [u16; 2]) -> Result<(), ControlError> {
        self.connection.start(&self.guest, &Start { base, ..self.config.start })
    }

    /// Loads the guest's driver again with other features (those offered), on the same connection.
    pub fn change_features(&mut self, wanted: Features) -> Result<Features, ControlError> {
        self.connection.stop()?;
        let features =
            Features(self.connection.offered().0 & wanted.0).without(Features::PROTOCOL_FEATURES);
        self.guest.reset(features);
        self.connection.start(&self.guest, &self.config.start)?;
        Ok(features)
    }
}

/// A VM without a connection, its memory and rings as they were.
pub struct DetachedVm {
    /// Its driver.
    pub guest: Guest,
    config: VmConfig,
    base: Option<[u16; 2]>,
}

impl DetachedVm {
    /// Returns the position of the device when it was stopped, receive ring first; None if it was
    /// not stopped in order.
    pub fn base(&self) -> Option<[u16; 2]> {
        self.base
    }

    /// Zeroes rings, as when the guest boots again.
    pub fn reboot(&mut self) {
        self.guest.reset(self.guest.features());
        self.base = None;
    }

    /// Goes on over a new connection, with the same memory, rings and features, where the device
    /// was.
    ///
    /// The device's last word counts if it was stopped in order, else the used indices, as in QEMU.
    pub fn reattach(self, mut connection: Connection) -> Result<Vm, ControlError> {
        let offered = connection.negotiate(self.guest.features(), self.config.protocol)?;
        if offered != self.guest.features() {
            return Err(ControlError::Missing(self.guest.features().without(offered)));
        }
        // Read only now, when the device that had them before is surely gone.
        let used = [self.guest.rx().restart_position(), self.guest.tx().restart_position()];
        connection
            .start(&self.guest, &Start { base: self.base.unwrap_or(used), ..self.config.start })?;
        Ok(Vm { guest: self.guest, connection, config: self.config })
    }
}

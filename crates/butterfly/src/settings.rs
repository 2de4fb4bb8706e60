//! The global options.

use crate::failure::Failure;
use crate::reader::Arguments;
use std::path::PathBuf;

/// What the global options ask for, whatever the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// ZeroMQ endpoint of the daemon.
    pub endpoint: String,
    /// Show requests and replies in text format.
    pub verbose: bool,
    /// Milliseconds each operation may take; 0 for ever.
    pub timeout: u32,
    /// File with the encryption key.
    pub key: Option<PathBuf>,
    /// Encrypt as the original does.
    pub legacy_encryption: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { endpoint: "tcp://127.0.0.1:9999".into(), verbose: false, timeout: 0, key: None, legacy_encryption: false }
    }
}

impl Settings {
    /// Takes over the global options among `arguments`.
    pub fn take(&mut self, arguments: &Arguments) -> Result<(), Failure> {
        if let Some(endpoint) = arguments.value("endpoint") {
            self.endpoint = endpoint.to_owned();
        }
        self.verbose |= arguments.has("verbose");
        if let Some(timeout) = arguments.parsed("timeout", "a number of milliseconds from 0 to 4294967295")? {
            self.timeout = timeout;
        }
        if let Some(key) = arguments.value("key") {
            self.key = Some(key.into());
        }
        self.legacy_encryption |= arguments.has("legacy-encryption");
        Ok(())
    }
}

//! The global options, and their sources without an option.
//!
//! The command line comes first, then the environment, then the client's file of the user, then
//! that of the host.

mod file;

use crate::failure::Failure;
use crate::line::reader::Arguments;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of the global options, the same for every command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// ZeroMQ endpoint of the daemon.
    pub endpoint: String,
    /// Show requests and replies in text format.
    pub verbose: bool,
    /// Milliseconds each operation may take; 0 for ever, and nothing for as long as the command
    /// likes.
    pub timeout: Option<u32>,
    /// File with the encryption key.
    pub key: Option<PathBuf>,
    /// Encrypt as the original does.
    pub legacy_encryption: bool,
    /// True if ignored words, and those that were probably not meant, are failures.
    pub strict: bool,
    /// Options of the command line.
    pub given: Given,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            endpoint: "tcp://127.0.0.1:9999".into(),
            verbose: false,
            timeout: None,
            key: None,
            legacy_encryption: false,
            strict: false,
            given: Given::default(),
        }
    }
}

impl Settings {
    /// Returns the settings as they are now: another daemon may have written the client's file. One
    /// that cannot be read leaves them as they are.
    pub fn again(&self) -> Settings {
        let again = self.given.clone().settings().unwrap_or_else(|_| self.clone());
        Settings { timeout: self.timeout, verbose: self.verbose, ..again }
    }

    /// Returns the limit of an operation, if there is one.
    pub fn limit(&self) -> Option<Duration> {
        self.timeout
            .filter(|timeout| *timeout != 0)
            .map(|timeout| Duration::from_millis(timeout.into()))
    }
}

/// Global options of all commands on a command line, or of another source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    endpoint: Option<String>,
    verbose: bool,
    timeout: Option<u32>,
    key: Option<PathBuf>,
    legacy_encryption: bool,
    strict: bool,
}

/// The endpoint, where no option names it.
const ENDPOINT: &str = "BUTTERFLY_ENDPOINT";
/// The file with the key, where no option names it.
const KEY: &str = "BUTTERFLY_KEY";
/// Variable that switches strictness on (1), where no option does.
const STRICT: &str = "BUTTERFLY_STRICT";

impl Given {
    /// Takes over the global options among `arguments`. Returns those given before that they
    /// replace.
    pub fn take(&mut self, arguments: &Arguments) -> Result<Vec<String>, Failure> {
        let timeout =
            arguments.parsed("timeout", "a number of milliseconds from 0 to 4294967295")?;
        let told = |(name, before): (&str, String)| {
            format!(
                "--{name} {before}: another follows, and a global option is that of the whole chain"
            )
        };
        let twice = ["endpoint", "timeout", "key"].into_iter().flat_map(|name| {
            let (last, before) = arguments.values(name).split_last()?;
            Some(
                before
                    .iter()
                    .filter(|value| *value != last)
                    .map(|value| (name, value.clone()))
                    .collect::<Vec<_>>(),
            )
        });
        let mut replaced: Vec<String> = twice.flatten().map(told).collect();
        self.verbose |= arguments.has("verbose");
        self.legacy_encryption |= arguments.has("legacy-encryption");
        self.strict |= arguments.has("strict");
        let endpoint = replace(&mut self.endpoint, arguments.value("endpoint").map(str::to_owned));
        let timeout = replace(&mut self.timeout, timeout).map(|before| before.to_string());
        let key = replace(&mut self.key, arguments.value("key").map(PathBuf::from))
            .map(|before| before.display().to_string());
        let before = [("endpoint", endpoint), ("timeout", timeout), ("key", key)].into_iter();
        replaced.extend(before.filter_map(|(name, before)| Some(told((name, before?)))));
        Ok(replaced)
    }

    /// Returns the settings, completed by the environment and the client's files.
    pub fn settings(self) -> Result<Settings, Failure> {
        let given = self.clone();
        let mut found = self.or(Self::of_environment());
        for given in file::read_all()? {
            found = found.or(given);
        }
        let default = Settings::default();
        Ok(Settings {
            endpoint: found.endpoint.unwrap_or(default.endpoint),
            verbose: found.verbose,
            timeout: found.timeout,
            key: found.key,
            legacy_encryption: found.legacy_encryption,
            strict: found.strict,
            given,
        })
    }

    fn of_environment() -> Self {
        Self {
            endpoint: variable(ENDPOINT),
            key: variable(KEY).map(PathBuf::from),
            strict: variable(STRICT).is_some_and(|value| value != "0"),
            ..Self::default()
        }
    }

    /// The same, with what is not given taken from `other`. How to encrypt goes with the key.
    fn or(self, other: Self) -> Self {
        Self {
            legacy_encryption: self.legacy_encryption
                || (self.key.is_none() && other.legacy_encryption),
            endpoint: self.endpoint.or(other.endpoint),
            verbose: self.verbose || other.verbose,
            strict: self.strict || other.strict,
            timeout: self.timeout.or(other.timeout),
            key: self.key.or(other.key),
        }
    }
}

/// A variable of the environment; an empty one is none.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Puts `value` in the place of another, if there is one. Returns that other.
fn replace<T: PartialEq>(place: &mut Option<T>, value: Option<T>) -> Option<T> {
    if value.is_none() || *place == value {
        return None;
    }
    std::mem::replace(place, value)
}

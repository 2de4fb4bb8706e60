//! The log: to the journal if standard error is it, to syslog and standard error, or to standard
//! error alone, at a level that can be changed while running.

mod datagrams;
mod journal;
mod layer;
mod stderr;
mod syslog;

use journal::Journal;
use layer::{Lines, Logger};
use std::fmt;
use syslog::Syslog;
use tracing::Subscriber;
use tracing_subscriber::{
    filter::LevelFilter,
    layer::SubscriberExt,
    registry::LookupSpan,
    reload::{self, Handle},
    util::SubscriberInitExt,
};

/// Least severity of logged events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Level {
    None,
    Error,
    Warning,
    Info,
    Debug,
}

impl Level {
    /// Returns the level of that name in options and requests.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "error" => Self::Error,
            "warning" => Self::Warning,
            "info" => Self::Info,
            "debug" => Self::Debug,
            _ => return None,
        })
    }

    /// Returns its name in options and requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    fn filter(self) -> LevelFilter {
        match self {
            Self::None => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warning => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Changes the level of the running log.
pub struct LogLevel(Box<dyn Fn(Level) + Send>);

impl LogLevel {
    /// Logs at `level` from now on.
    pub fn set(&self, level: Level) {
        (self.0)(level);
    }

    fn of<S: Subscriber + for<'a> LookupSpan<'a>>(handle: Handle<LevelFilter, S>) -> Self {
        // It fails only once the log itself is gone.
        Self(Box::new(move |level| drop(handle.reload(level.filter()))))
    }

    /// Makes a level that records its changes.
    #[cfg(test)]
    pub fn recorded(levels: std::sync::mpsc::Sender<Level>) -> Self {
        Self(Box::new(move |level| levels.send(level).unwrap()))
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogLevel")
    }
}

/// Starts logging for the whole process.
pub fn start(level: Level, syslog: bool) -> LogLevel {
    let lines = stderr::Stderr::default();
    let stderr = move |line: &str| lines.write(line);
    let logger = match Journal::if_stderr() {
        _ if !syslog => Logger::None,
        Some(journal) => Logger::Journal(journal),
        None => Logger::Syslog(Syslog::new()),
    };
    let (filter, handle) = reload::Layer::new(level.filter());
    tracing_subscriber::registry().with(filter).with(Lines::new(logger, stderr)).init();
    // The log should also show failures in a thread for which no other thread waits.
    std::panic::set_hook(Box::new(|panic| tracing::error!("defect: {panic}")));
    LogLevel::of(handle)
}

//! Events to lines.

use super::{
    journal::Journal,
    syslog::{Severity, Syslog},
};
use std::fmt::{self, Write as _};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::layer::{Context, Layer};

/// Destination of events, beside the one for lines.
pub(super) enum Logger {
    None,
    Syslog(Syslog),
    /// The journal alone: the lines would go to the same journal.
    Journal(Journal),
}

/// Writes each event as one line.
///
/// A field whose name is in capitals is for the journal: the message says the same already.
pub(super) struct Lines<W> {
    logger: Logger,
    /// Gets all lines too.
    other: W,
}

impl<W> Lines<W> {
    pub(super) fn new(logger: Logger, other: W) -> Self {
        Self { logger, other }
    }
}

impl<S: Subscriber, W: Fn(&str) + 'static> Layer<S> for Lines<W> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let (severity, name) = match *event.metadata().level() {
            Level::ERROR => (Severity::Error, "ERR"),
            Level::WARN => (Severity::Warning, "WARNING"),
            Level::INFO => (Severity::Info, "INFO"),
            _ => (Severity::Debug, "DEBUG"),
        };
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("<{name}> {}{}", line.message, line.shown);
        match &self.logger {
            Logger::None => (self.other)(&format!("{text}\n")),
            Logger::Journal(journal) => journal.send(severity, &text, &line.fields),
            Logger::Syslog(syslog) => {
                syslog.send(severity, &text);
                (self.other)(&format!("{}: {text}\n", syslog.tag()));
            }
        }
    }
}

/// The message of an event, and its fields.
#[derive(Default)]
struct Line {
    message: String,
    /// Fields in the form ` key=value`.
    shown: String,
    fields: Vec<(String, String)>,
}

impl Line {
    fn field(&mut self, field: &Field, value: String) {
        self.fields.push((field.name().to_owned(), value));
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => return self.message = format!("{value:?}"),
            name if name.contains(|letter: char| letter.is_ascii_lowercase()) => {
                write!(self.shown, " {name}={value:?}")
            }
            _ => Ok(()),
        };
        self.field(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
            return;
        }
        self.record_debug(field, &value);
        // Without quotes.
        if let Some((_, told)) = self.fields.last_mut() {
            *told = value.to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{self, LogLevel};
    use std::{
        os::unix::net::UnixDatagram,
        sync::{Arc, Mutex},
    };
    use tracing_subscriber::{layer::SubscriberExt, reload};

    /// Returns the lines at syslog, and beside it, while `body` runs with a log at `level`.
    fn logged(level: log::Level, body: impl FnOnce(&LogLevel)) -> (Vec<String>, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let other = Arc::new(Mutex::new(String::new()));
        let copy = other.clone();
        let (filter, handle) = reload::Layer::new(level.filter());
        let lines = Lines::new(Logger::Syslog(Syslog::at(path)), move |line: &str| {
            copy.lock().unwrap().push_str(line)
        });
        let subscriber = tracing_subscriber::registry().with(filter).with(lines);
        tracing::subscriber::with_default(subscriber, || body(&LogLevel::of(handle)));
        let mut buffer = [0; 1000];
        let received = std::iter::from_fn(|| {
            socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec())
        });
        let received = received.map(|bytes| String::from_utf8(bytes).unwrap()).collect();
        (received, other.lock().unwrap().clone())
    }

    fn one_of_each() {
        tracing::error!("e {}", 1);
        tracing::warn!(core = 3, name = "x", NIC = "n", "w");
        tracing::info!("i");
        tracing::debug!("d");
        tracing::trace!("t");
    }

    #[test]
    fn lines_have_priority_tag_level_and_fields() {
        let tag = format!("butterfly[{}]", std::process::id());
        let expected = [
            format!("<131>{tag}: <ERR> e 1"),
            format!("<132>{tag}: <WARNING> w core=3 name=\"x\""),
            format!("<134>{tag}: <INFO> i"),
            format!("<135>{tag}: <DEBUG> d"),
        ];
        let (syslog, other) = logged(log::Level::Debug, |_| one_of_each());
        assert_eq!(syslog, expected);
        assert_eq!(
            other,
            expected.map(|line| format!("{}\n", &line[5..])).concat(),
            "without the priority"
        );
    }

    #[test]
    fn the_journal_gets_fields_and_nobody_else_anything() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let socket = UnixDatagram::bind(&path).unwrap();
        let lines = Lines::new(Logger::Journal(Journal::at(path)), |line: &str| panic!("{line}"));
        let subscriber = tracing_subscriber::registry().with(lines);
        let none: Option<u32> = None;
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(NIC = "vm \"1\"", VNI = Some(42), REASON = %"gone", PEER = none, mtu = 1500, "text");
            tracing::warn!(NIC = "a", message = "a text that is a field");
        });
        let mut buffer = [0; 1000];
        let length = socket.recv(&mut buffer).unwrap();
        let entry = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(entry.starts_with("MESSAGE=<WARNING> text mtu=1500\nPRIORITY=4\n"), "{entry}");
        assert!(entry.ends_with("\nNIC=vm \"1\"\nVNI=42\nREASON=gone\nMTU=1500\n"), "{entry}");
        let length = socket.recv(&mut buffer).unwrap();
        let entry = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(
            entry.starts_with("MESSAGE=<WARNING> a text that is a field\n")
                && entry.ends_with("\nNIC=a\n"),
            "{entry}"
        );
    }

    #[test]
    fn each_level_has_its_lines() {
        use log::Level::*;
        for (level, lines) in [(None, 0), (Error, 1), (Warning, 2), (Info, 3), (Debug, 4)] {
            assert_eq!(logged(level, |_| one_of_each()).0.len(), lines, "{level:?}");
        }
    }

    #[test]
    fn the_level_changes_while_running() {
        let (lines, _) = logged(log::Level::None, |level| {
            one_of_each();
            level.set(log::Level::Debug);
            one_of_each();
            level.set(log::Level::None);
            one_of_each();
        });
        assert_eq!(lines.len(), 4, "{lines:?}");
    }
}

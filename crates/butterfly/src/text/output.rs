//! Standard output and standard error, in the order things happened.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

/// Buffers standard output: one write per command, and none is lost when a
/// line on standard error follows.
pub struct Output {
    stdout: BufWriter<Stdout>,
}

impl Output {
    /// An output to this process's standard streams.
    pub fn new() -> Self {
        Self { stdout: BufWriter::new(io::stdout()) }
    }

    /// True if a person sees standard output as it is printed.
    pub fn is_terminal(&self) -> bool {
        self.stdout.get_ref().is_terminal()
    }

    /// Prints `text` as it is on standard output.
    pub fn print(&mut self, text: impl Display) -> io::Result<()> {
        write!(self.stdout, "{text}")
    }

    /// Prints `line` and a newline on standard output.
    pub fn line(&mut self, line: impl Display) -> io::Result<()> {
        writeln!(self.stdout, "{line}")
    }

    /// Prints bytes as they are on standard output.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.write_all(bytes)
    }

    /// Hands everything printed so far to the system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }

    /// Prints `text` and a newline on standard error, after everything that
    /// was printed on standard output before it. Nothing is printed for an
    /// empty text.
    pub fn complain(&mut self, text: &str) {
        // What cannot be written here shows at the next flush.
        let _ = self.stdout.flush();
        if !text.is_empty() {
            // With standard error closed there is no place left for a message.
            let _ = writeln!(io::stderr(), "{text}");
        }
    }

    /// Says on standard error that something on the command line does nothing.
    pub fn ignored(&mut self, what: &str) {
        self.complain(&format!("ignored: {what}"));
    }
}

//! Manual pages and shell completions, made of what `--help` is made of: clap's model of the
//! command line.

#![forbid(unsafe_code)]

mod bash;
mod page;

pub use bash::bash;
pub use page::Page;

use clap::Command;
use clap_complete::{Shell, generate};

/// Documents that can be made: the manual page, and completions for these shells.
pub const KINDS: [&str; 4] = ["manual", "bash", "zsh", "fish"];

/// Completions of `command` for a shell that clap knows. Nothing for another.
pub fn completions(shell: &str, mut command: Command) -> Option<String> {
    let shell: Shell = shell.parse().ok()?;
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(shell, &mut command, name, &mut script);
    String::from_utf8(script).ok()
}

//! The writer of the store: a process of its own, of the same file.

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use std::{
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::Command,
    sync::Arc,
};

/// Starts the writer of the store.
pub(super) fn start_writer(directory: &Path) -> Result<butterfly_store::Client, std::io::Error> {
    let of = directory.to_owned();
    butterfly_store::Client::start(move || {
        // Also if the file has been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("butterflyd").arg("--write-store").arg(&of);
        command
    })
}

/// The life of the writer: until the daemon closes the connection, which is standard input.
pub fn write_store(directory: &Path) -> Result<(), std::io::Error> {
    // They are for the daemon. The writer ends behind it.
    let ignored = Arc::default();
    for signal in [SIGINT, SIGTERM, SIGQUIT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    let daemon = std::io::stdin().as_fd().try_clone_to_owned()?;
    butterfly_store::writer::run(directory, &daemon.into())
}

//! The store: everything declared on a host, kept in a file by a process of its own.
//!
//! [`disk::Disk`] is the file: a `redb` database in which each commit is one transaction and one
//! fsync. [`writer::run`] is the writer process, the only one that touches the disk.
//! [`client::Client`] is the daemon's end: no thread of the daemon waits for a disk. What a record
//! means is the daemon's to know; here it is bytes under a name.

#![forbid(unsafe_code)]

pub mod client;
pub mod disk;
#[cfg(feature = "harness")]
pub mod harness;
pub mod record;
mod wire;
pub mod writer;

/// Name of the directory with a copy of the store, beside it, for a program that is proved. The
/// writer removes it.
pub const COPY: &str = "proof";

pub use client::{Client, Report};
pub use record::{Commit, Contents, Edit, Key, Sort};

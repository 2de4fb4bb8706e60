//! The command line: what a command takes, its words, and slips in them.

pub mod options;
pub mod reader;
pub mod slips;

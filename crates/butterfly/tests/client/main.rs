//! The client as a process, against a daemon that answers from a script.
//!
//! Each row is one command line and everything it must do: what it asks,
//! prints and returns.

#![recursion_limit = "256"] // of json!

mod commands;
mod drops;
mod encryption;
mod errors;
mod events;
mod external;
mod general;
mod json;
mod manual;
mod neighbour;
mod options;
mod outputs;
mod overview;
mod routed;
mod rules;
mod sessions;
mod show;
mod support;
mod tunnels;

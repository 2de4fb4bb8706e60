//! The daemon as commands see it: settings, the connection, questions and replies.

pub mod connection;
pub mod diagnosis;
pub mod encryption;
pub mod reply;
pub mod session;
pub mod settings;
pub mod shown;

//! The caller of a request, as far as the transport knows it.

use std::{fmt, net::IpAddr};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Over TCP.
    Host(IpAddr),
    /// Over a local socket.
    Local,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.fmt(f),
            Self::Local => f.write_str("a local process"),
        }
    }
}

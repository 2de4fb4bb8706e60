//! Who makes a request, as far as the transport knows.

use std::{fmt, net::IpAddr};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Over TCP.
    Host(IpAddr),
    /// Over a local socket. ZeroMQ tells no more, as it is built here.
    Local,
}

impl Caller {
    /// From what ZeroMQ calls `Peer-Address`: an IP address, with a zone maybe, or anything else for a local socket.
    pub(crate) fn of(peer: &str) -> Option<Self> {
        let address = peer.split('%').next().unwrap_or_default();
        match address.parse::<IpAddr>() {
            Ok(address) => Some(Self::Host(address.to_canonical())),
            Err(_) => (!peer.is_empty()).then_some(Self::Local),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.fmt(f),
            Self::Local => f.write_str("a local process"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_told_by_what_zeromq_says() {
        for (peer, expected) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("localhost", Some("a local process")),
            ("localhost:0:0:7", Some("a local process")),
            ("", None),
        ] {
            assert_eq!(Caller::of(peer).map(|caller| caller.to_string()).as_deref(), expected, "{peer}");
        }
    }
}

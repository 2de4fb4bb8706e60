//! Who makes a request, as far as the transport knows.

use std::{fmt, net::IpAddr};

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Over TCP.
    Host(IpAddr),
    /// Over a local socket: as the kernel told when it connected.
    Process {
        /// The user it ran as.
        uid: u32,
        /// Its id.
        pid: u32,
    },
}

impl Caller {
    /// From what ZeroMQ calls `Peer-Address`: an IP address, with a zone maybe, or `:UID:GID:PID` behind anything.
    pub(crate) fn of(peer: &str) -> Option<Self> {
        let address = peer.split('%').next().unwrap_or_default();
        if let Ok(address) = address.parse::<IpAddr>() {
            return Some(Self::Host(address.to_canonical()));
        }
        let mut numbers = peer.rsplit(':');
        let (pid, _gid, uid) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some(Self::Process { uid: uid.parse().ok()?, pid: pid.parse().ok()? })
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => address.fmt(f),
            Self::Process { uid, pid } => write!(f, "uid {uid}, process {pid}"),
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
            (":1000:100:4242", Some("uid 1000, process 4242")),
            ("localhost:0:0:7", Some("uid 0, process 7")),
            ("", None),
            ("localhost", None),
            (":x:0:7", None),
            (":0:0:-7", None),
        ] {
            assert_eq!(Caller::of(peer).map(|caller| caller.to_string()).as_deref(), expected, "{peer}");
        }
    }
}

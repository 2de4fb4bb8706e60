//! Checks of endpoints' text that ZeroMQ leaves to us.

/// Bytes of the path of a Unix socket, without the zero after it.
const LONGEST_PATH: usize = 107;

/// An endpoint to which nothing can be bound on any host.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("endpoint {endpoint:?} is refused: {why}")]
pub struct BadEndpoint {
    endpoint: String,
    why: String,
}

/// Refuses a tcp endpoint whose port is none. ZeroMQ takes the rest of it modulo 65536, and listens
/// or connects there.
pub(crate) fn check(endpoint: &str) -> Result<(), zmq::Error> {
    match endpoint.strip_prefix("tcp://") {
        Some(address) if port(address).is_none() => Err(zmq::Error::EINVAL),
        _ => Ok(()),
    }
}

/// Refuses endpoints that cannot serve the API: a transport without replies, one that no other
/// process reaches, an address without a port.
pub(crate) fn check_bindable(endpoint: &str) -> Result<(), BadEndpoint> {
    unbindable(endpoint)
        .map_or(Ok(()), |why| Err(BadEndpoint { endpoint: endpoint.to_owned(), why }))
}

fn unbindable(endpoint: &str) -> Option<String> {
    // ZeroMQ would end at a zero, and other control characters spoil a log.
    if endpoint.contains(char::is_control) {
        return Some("it has a control character in it".into());
    }
    let Some((transport, rest)) = endpoint.split_once("://") else {
        return Some(
            "it has no transport: write tcp://0.0.0.0:9999 or ipc:///run/butterfly/api".into(),
        );
    };
    let only = "the API listens on tcp and ipc";
    match transport {
        "tcp" if port(rest).is_none() => {
            Some("it needs a port, 0 to 65535, or * for any that is free, as in tcp://0.0.0.0:9999".into())
        }
        "tcp" if host(rest).is_empty() => {
            Some("it has no address: * stands for all of IPv4, [::] for all of both families, eth0 for an interface's".into())
        }
        "ipc" if rest.is_empty() || rest == "@" => Some("it has no path: write ipc:///run/butterfly/api".into()),
        "ipc" if rest.len() > LONGEST_PATH => {
            Some(format!("its path has {} bytes, and those of Unix sockets at most {LONGEST_PATH}", rest.len()))
        }
        "tcp" | "ipc" => None,
        "inproc" => Some(format!("inproc reaches nobody outside the daemon; {only}")),
        "udp" | "pgm" | "epgm" | "norm" => Some(format!("{transport} has no replies; {only}")),
        "tipc" => Some(format!("tipc is not supported; {only}")),
        _ => Some(format!("there is no transport {transport:?}; {only}")),
    }
}

/// Returns the part before the port of a tcp endpoint.
fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

fn port(address: &str) -> Option<&str> {
    let (_, port) = address.rsplit_once(':')?;
    (port == "*" || port.parse::<u16>().is_ok()).then_some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_port() {
        for good in [
            "tcp://0.0.0.0:9999",
            "tcp://*:*",
            "tcp://[::1]:65535",
            "tcp://host:0",
            "ipc:///run/a:b",
            "inproc://x",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "tcp://0.0.0.0:80000",
            "tcp://0.0.0.0:99x9",
            "tcp://0.0.0.0:-1",
            "tcp://host",
            "tcp://host:",
            "tcp://",
        ] {
            assert_eq!(check(bad), Err(zmq::Error::EINVAL), "{bad}");
        }
    }

    /// Empty: it can be bound. Else the beginning of why not.
    #[test]
    fn what_can_be_bound() {
        let long = format!("ipc:///{}", "x".repeat(107));
        for (endpoint, why) in [
            ("tcp://0.0.0.0:9999", ""),
            ("tcp://*:9999", ""),
            ("tcp://*:*", ""),
            ("tcp://eth0:0", ""),
            ("tcp://[::]:9999", ""),
            ("tcp://[fe80::1%eth0]:9999", ""),
            ("ipc:///run/butterfly/api", ""),
            ("ipc://@butterfly", ""),
            ("ipc://*", ""),
            ("", "it has no transport: write tcp://0.0.0.0:9999 or ipc:///run"),
            ("0.0.0.0:9999", "it has no transport"),
            ("tcp://0.0.0.0", "it needs a port, 0 to 65535"),
            ("tcp://0.0.0.0:65536", "it needs a port, 0 to 65535"),
            ("tcp://:9999", "it has no address: * stands for"),
            ("ipc://", "it has no path"),
            ("ipc://@", "it has no path"),
            (&long, "its path has 108 bytes, and those of Unix sockets at most 107"),
            (
                "inproc://x",
                "inproc reaches nobody outside the daemon; the API listens on tcp and ipc",
            ),
            ("udp://239.0.0.1:9999", "udp has no replies; the API listens on tcp and ipc"),
            ("pgm://eth0;239.0.0.1:9999", "pgm has no replies"),
            ("epgm://eth0;239.0.0.1:9999", "epgm has no replies"),
            ("norm://239.0.0.1:9999", "norm has no replies"),
            ("tipc://{5560,0,0}", "tipc is not supported; the API listens on tcp and ipc"),
            ("ws://0.0.0.0:80", "there is no transport \"ws\"; the API listens on tcp and ipc"),
            ("TCP://0.0.0.0:9999", "there is no transport \"TCP\""),
            ("ipc:///a\0b", "it has a control character in it"),
        ] {
            match check_bindable(endpoint) {
                Ok(()) => assert_eq!(why, "", "{endpoint} was taken"),
                Err(BadEndpoint { why: told, .. }) => {
                    assert!(!why.is_empty() && told.starts_with(why), "{endpoint}: {told}")
                }
            }
        }
        assert_eq!(
            check_bindable("udp://*:1").unwrap_err().to_string(),
            "endpoint \"udp://*:1\" is refused: udp has no replies; the API listens on tcp and ipc"
        );
    }
}

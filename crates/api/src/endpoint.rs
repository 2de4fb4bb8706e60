//! What ZeroMQ leaves to us about the text of endpoints.

/// Refuses a tcp endpoint whose port is none: ZeroMQ takes what is left of it modulo 65536, and listens or connects there.
pub(crate) fn check(endpoint: &str) -> Result<(), zmq::Error> {
    let Some(address) = endpoint.strip_prefix("tcp://") else { return Ok(()) };
    match address.rsplit_once(':') {
        Some((_, port)) if port == "*" || port.parse::<u16>().is_ok() => Ok(()),
        _ => Err(zmq::Error::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_port() {
        for good in ["tcp://0.0.0.0:9999", "tcp://*:*", "tcp://[::1]:65535", "tcp://host:0", "ipc:///run/a:b", "inproc://x"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["tcp://0.0.0.0:80000", "tcp://0.0.0.0:99x9", "tcp://0.0.0.0:-1", "tcp://host", "tcp://host:", "tcp://"] {
            assert_eq!(check(bad), Err(zmq::Error::EINVAL), "{bad}");
        }
    }
}

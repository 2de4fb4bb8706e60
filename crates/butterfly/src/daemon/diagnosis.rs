//! Finds out why no reply comes, by a plain connection to the endpoint.
//!
//! ZeroMQ connects in the background and for ever, and does not report failures.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Short, as it comes on top of a time-out that is over.
const LIMIT: Duration = Duration::from_millis(500);

/// Returns the trouble with `endpoint`, and the remedy.
pub fn diagnose(endpoint: &str) -> String {
    match met(endpoint) {
        None => format!("is butterflyd running, with the endpoint {endpoint}?"),
        Some(Ok(())) => format!(
            "somebody listens on {endpoint} and does not answer: is that butterflyd, and can it run? \
             look at its log and at the load of the host"
        ),
        Some(Err(error)) => format!("{endpoint}: {error}\n{}", advice(error.kind())),
    }
}

/// Returns the same if no daemon listens on `endpoint`, so that there is nothing to wait for.
pub fn absence(endpoint: &str) -> Option<String> {
    let error = met(endpoint)?.err()?;
    let absent = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    absent.then(|| format!("{endpoint}: {error}\n{}", advice(error.kind())))
}

/// Returns how a plain connection to `endpoint` ends; nothing for an endpoint that only ZeroMQ
/// reaches.
fn met(endpoint: &str) -> Option<io::Result<()>> {
    match (endpoint.strip_prefix("ipc://"), endpoint.strip_prefix("tcp://")) {
        // Abstract names and other transports.
        (Some(name), _) if name.starts_with('@') => None,
        (Some(path), _) => Some(UnixStream::connect(path).map(drop)),
        // Names are left to ZeroMQ, but for one: to ask for them may take long.
        (_, Some(address)) => {
            let address = address.replacen("localhost:", "127.0.0.1:", 1);
            let address = address.parse().ok()?;
            Some(TcpStream::connect_timeout(&address, LIMIT).map(drop))
        }
        _ => None,
    }
}

fn advice(met: ErrorKind) -> &'static str {
    match met {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            "butterflyd is not running there: start it, or name its endpoint with --endpoint EP or BUTTERFLY_ENDPOINT"
        }
        ErrorKind::PermissionDenied => "run the client as the user of butterflyd, or as root",
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            "is the address right, and does every firewall between let it pass?"
        }
        _ => "is the endpoint right? name another with --endpoint EP or BUTTERFLY_ENDPOINT",
    }
}

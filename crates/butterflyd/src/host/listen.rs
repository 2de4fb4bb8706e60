//! Endpoints of the API that name a network interface, and places that are not listened on.

use butterfly_uplink::kernel::Kernel;
use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Places that should be listened on and are not.
#[derive(Clone, Debug, Default)]
pub struct NotListening(Arc<Mutex<Places>>);

#[derive(Debug, Default)]
struct Places {
    endpoints: BTreeSet<String>,
    metrics: Option<String>,
}

impl NotListening {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an endpoint of the API.
    pub fn endpoint(&self, endpoint: impl Into<String>) {
        self.lock().endpoints.insert(endpoint.into());
    }

    /// Removes an endpoint of the API, which is listened on after all.
    pub fn endpoint_is_there(&self, endpoint: &str) {
        self.lock().endpoints.remove(endpoint);
    }

    /// Adds the address of the metrics.
    pub fn metrics(&self, address: impl ToString) {
        self.lock().metrics = Some(address.to_string());
    }

    /// Removes the address of the metrics: they are as the configuration has them.
    pub fn metrics_are_there(&self) {
        self.lock().metrics = None;
    }

    /// Returns the number of endpoints of the API among them.
    pub fn endpoints(&self) -> usize {
        self.lock().endpoints.len()
    }

    /// Returns all of them, for the operator.
    pub fn names(&self) -> Vec<String> {
        let places = self.lock();
        let metrics = places.metrics.iter().map(|address| format!("metrics on {address}"));
        places.endpoints.iter().cloned().chain(metrics).collect()
    }
}

/// The endpoints, with the addresses of interfaces for their names.
pub fn resolved(endpoints: &[String]) -> Result<Vec<String>, String> {
    let addresses = |name: &str| {
        let mut kernel = Kernel::open().map_err(|error| error.to_string())?;
        kernel.addresses(name).map_err(|error| error.to_string())
    };
    endpoints.iter().map(|endpoint| resolve(endpoint, addresses)).collect()
}

fn resolve(
    endpoint: &str,
    addresses: impl Fn(&str) -> Result<Vec<IpAddr>, String>,
) -> Result<String, String> {
    let Some((name, port)) = interface(endpoint) else { return Ok(endpoint.to_owned()) };
    let refused = |why: &str| format!("cannot listen on {endpoint}: {why}");
    let addresses = addresses(name).map_err(|why| refused(&why))?;
    // As ZeroMQ does it: IPv4 if there is any. A link-local address counts on its link only.
    let address = addresses
        .iter()
        .find(|address| address.is_ipv4())
        .or_else(|| addresses.iter().find(|address| !is_link_local(**address)))
        .or(addresses.first());
    match address {
        Some(IpAddr::V4(address)) => Ok(format!("tcp://{address}:{port}")),
        Some(IpAddr::V6(address)) if address.is_unicast_link_local() => {
            Ok(format!("tcp://[{address}%{name}]:{port}"))
        }
        Some(IpAddr::V6(address)) => Ok(format!("tcp://[{address}]:{port}")),
        None => Err(refused(&format!(
            "the network interface {name:?} has no address; give it one, or name an address"
        ))),
    }
}

/// The name of the interface in a tcp endpoint, and the port.
fn interface(endpoint: &str) -> Option<(&str, &str)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    let is_address = host == "*" || host.contains(':') || host.parse::<Ipv4Addr>().is_ok();
    (!is_address).then_some((host, port))
}

/// True if others than this host's own programs may reach an endpoint as it was bound.
pub fn is_beyond_this_host(endpoint: &str) -> bool {
    let Some((host, _)) =
        endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'))
    else {
        return false;
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.split_once('%').map_or(host, |(host, _)| host);
    // What is no address stands for several.
    host.parse::<IpAddr>().map_or(true, |address| !address.to_canonical().is_loopback())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_reach_an_endpoint() {
        for endpoint in [
            "tcp://0.0.0.0:9999",
            "tcp://*:1",
            "tcp://[::]:1",
            "tcp://192.0.2.1:1",
            "tcp://[fe80::1%eth0]:1",
        ] {
            assert!(is_beyond_this_host(endpoint), "{endpoint}");
        }
        for endpoint in [
            "tcp://127.0.0.1:9999",
            "tcp://127.1.2.3:1",
            "tcp://[::1]:1",
            "ipc:///run/butterfly/api",
            "ipc://@a:1",
        ] {
            assert!(!is_beyond_this_host(endpoint), "{endpoint}");
        }
    }

    #[test]
    fn interfaces_are_resolved_and_nothing_else() {
        let addresses = |name: &str| match name {
            "eth0" => Ok(["fe80::1", "2001:db8::1", "192.0.2.1", "192.0.2.2"]
                .map(|text| text.parse().unwrap())
                .to_vec()),
            "eth1" => Ok(["fe80::1", "2001:db8::1"].map(|text| text.parse().unwrap()).to_vec()),
            "eth2" => Ok(vec!["fe80::1".parse().unwrap()]),
            "eth3" => Ok(Vec::new()),
            _ => Err("no such thing".to_owned()),
        };
        for (endpoint, expected) in [
            ("tcp://eth0:9999", Ok("tcp://192.0.2.1:9999")),
            ("tcp://eth1:*", Ok("tcp://[2001:db8::1]:*")),
            ("tcp://eth2:0", Ok("tcp://[fe80::1%eth2]:0")),
            (
                "tcp://eth3:1",
                Err(
                    "cannot listen on tcp://eth3:1: the network interface \"eth3\" has no address; give it one, or name an address",
                ),
            ),
            ("tcp://eth9:1", Err("cannot listen on tcp://eth9:1: no such thing")),
            ("tcp://*:1", Ok("tcp://*:1")),
            ("tcp://192.0.2.9:1", Ok("tcp://192.0.2.9:1")),
            ("tcp://[::]:1", Ok("tcp://[::]:1")),
            ("ipc:///eth0:1", Ok("ipc:///eth0:1")),
            ("ipc://@eth0:1", Ok("ipc://@eth0:1")),
        ] {
            assert_eq!(
                resolve(endpoint, addresses).as_deref().map_err(String::as_str),
                expected,
                "{endpoint}"
            );
        }
    }
}

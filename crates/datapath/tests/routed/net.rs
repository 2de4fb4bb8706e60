//! Two networks, a router between them, and machines in both.

use std::collections::BTreeMap;

use butterfly_datapath::{
    GroupChange, Mac, RoutingChange, SessionConfig, SessionFilter, VnicPolicy, harness::Host,
};
use butterfly_model::{
    Cidr, Direction, GroupName, Network, Route, Router, RouterAddresses, RouterId, Rule, Subnet,
    Vni,
};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

/// A machine: id, MAC address, network and IP address.
pub type Machine = (&'static str, Mac, u32, [u8; 4]);

pub const A: Machine = ("a", Mac([2, 0, 0, 0, 0, 0xa]), 42, [10, 0, 0, 10]);
pub const B: Machine = ("b", Mac([2, 0, 0, 0, 0, 0xb]), 50, [10, 1, 0, 10]);
/// A neighbour of [`A`].
pub const C: Machine = ("c", Mac([2, 0, 0, 0, 0, 0xc]), 42, [10, 0, 0, 11]);
/// Gateways of both networks.
pub const GATEWAYS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 1, 0, 1]];

pub fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// The MAC address of the router in all its networks.
pub fn gateway() -> Mac {
    Mac(RouterId::new("r").unwrap().gateway_mac())
}

pub fn network(number: u32, block: &str, gateway: &str, mtu: Option<u32>) -> RoutingChange {
    let subnet = Subnet::parse(block, Some(gateway)).unwrap();
    let network = Network::new(vni(number), vec![subnet], mtu).unwrap();
    RoutingChange::DeclareNetwork(network)
}

pub fn router(id: &str, networks: &[u32]) -> RoutingChange {
    leading(id, networks, &[])
}

/// A router with routes: a block, and the machines by which it leads there.
pub fn leading(id: &str, networks: &[u32], routes: &[(&str, &[&str])]) -> RoutingChange {
    let id = RouterId::new(id).unwrap();
    let mut router = Router::new(id);
    for number in networks {
        router.attach(vni(*number), RouterAddresses::default());
    }
    for (to, via) in routes {
        router.add_route(Route::parse(to, *via).unwrap());
    }
    RoutingChange::DeclareRouter(router)
}

/// A policy without filter, or one with the group `open`.
pub fn policy(ip: [u8; 4], bypass: bool) -> VnicPolicy {
    let groups = if bypass { Vec::new() } else { vec![GroupName::new("open").unwrap()] };
    VnicPolicy {
        bypass,
        ip_anti_spoof: !bypass,
        ips: vec![ip.into()],
        groups,
        ..VnicPolicy::default()
    }
}

pub struct Net {
    pub host: Host,
}

impl Net {
    /// Machines in networks 42 and 50, which a router joins. All bypass filters, or none.
    pub fn new(machines: &[Machine], bypass: bool) -> Net {
        let mut net = Net::apart(machines, bypass);
        net.join();
        net
    }

    /// The same without what joins them.
    pub fn apart(machines: &[Machine], bypass: bool) -> Net {
        let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
        let mut host = Host::with_sessions(sessions).unwrap();
        for (id, mac, vni, ip) in machines {
            host.vnic(id, *mac, *vni, &policy(*ip, bypass)).unwrap();
        }
        host.settle();
        host.moved();
        Net { host }
    }

    /// Declares both networks and the router.
    pub fn join(&mut self) {
        self.host.change_routing(network(42, "10.0.0.0/24", "10.0.0.1", None));
        self.host.change_routing(network(50, "10.1.0.0/24", "10.1.0.1", Some(1400)));
        self.host.change_routing(router("r", &[42, 50]));
    }

    /// Lets in UDP from a block, by the group that all machines have.
    pub fn admit(&mut self, from: &str) -> Rule {
        let (address, bits) = from.split_once('/').unwrap();
        let block = Cidr::new(address, bits.parse().unwrap()).unwrap();
        let ports = (Some(1), Some(65535));
        let rule = Rule::new(Direction::Inbound, 17, ports, Some(block), None).unwrap();
        let name = GroupName::new("open").unwrap();
        self.host.change_group(&name, GroupChange::AddRule(rule.clone())).unwrap();
        rule
    }

    /// Sends a frame. Returns what everybody got.
    pub fn send(&mut self, from: Machine, frame: &[u8]) -> BTreeMap<String, Vec<Vec<u8>>> {
        self.host.send(from.0, frame, NetHeader::default()).unwrap();
        let received = self.host.received().unwrap();
        let frames = |all: Vec<(NetHeader, Vec<u8>)>| all.into_iter().map(|(_, frame)| frame);
        received.into_iter().map(|(id, all)| (id, frames(all).collect())).collect()
    }

    /// Sends a frame. Asserts that exactly this frame arrives, at one machine, and that nothing is
    /// dropped.
    #[track_caller]
    pub fn passes(&mut self, from: Machine, frame: &[u8], to: Machine, as_: &[u8]) {
        let got = self.send(from, frame);
        assert_eq!(got, BTreeMap::from([(to.0.to_owned(), vec![as_.to_vec()])]));
        let moved = self.host.moved();
        assert!(!moved.keys().any(|name| name.contains(".drop.")), "{moved:?}");
    }

    /// Sends a frame. Asserts that nobody gets a byte, and that one drop is counted.
    #[track_caller]
    pub fn drops(&mut self, from: Machine, frame: &[u8], reason: &str) {
        assert_eq!(self.send(from, frame), BTreeMap::new());
        self.counts_one(from, reason);
    }

    /// Sends a frame. Asserts that nobody gets a byte, and that one drop is counted, for another
    /// machine.
    #[track_caller]
    pub fn drops_at(&mut self, from: Machine, frame: &[u8], at: Machine, reason: &str) {
        assert_eq!(self.send(from, frame), BTreeMap::new());
        self.counts_one(at, reason);
    }

    /// Sends a frame. Asserts that nobody gets a byte of it, that one drop is counted, and that the
    /// sender gets the error with this type, code and MTU from the gateway of its network.
    #[track_caller]
    pub fn refuses(&mut self, from: Machine, frame: &[u8], reason: &str, error: (u8, u8, u32)) {
        let quote = &frame[14..frame.len().min(128)]; // what is at hand
        let expected = build::ethernet(gateway(), from.1)
            .ipv4(if from.2 == 42 { GATEWAYS[0] } else { GATEWAYS[1] }, from.3)
            .tos(0xc0)
            .dont_fragment()
            .icmp(error.0, error.1, error.2, quote);
        let got = self.send(from, frame);
        assert_eq!(got, BTreeMap::from([(from.0.to_owned(), vec![expected])]));
        self.counts_one(from, reason);
    }

    /// Asserts that one drop was counted, for a machine.
    #[track_caller]
    pub fn counts_one(&mut self, from: Machine, reason: &str) {
        let moved = self.host.moved();
        let names: Vec<_> = moved.iter().filter(|(name, _)| name.contains(".drop.")).collect();
        assert_eq!(names, [(&format!("{}.drop.{reason}", from.0), &1)], "{moved:?}");
    }

    /// Number of sessions.
    pub fn sessions(&self) -> u64 {
        self.host.sessions(&SessionFilter::default(), 0).0
    }
}

/// A frame to the gateway, and the one that a router makes of it for `to`.
pub fn routed(
    from: Machine,
    to: Machine,
    make: impl Fn(butterfly_packet::build::Ip) -> Vec<u8>,
) -> [Vec<u8>; 2] {
    let sent = make(build::ethernet(from.1, gateway()).ipv4(from.3, to.3));
    let mut arrives = sent.clone();
    arrives[..6].copy_from_slice(&to.1.0);
    arrives[6..12].copy_from_slice(&gateway().0);
    arrives[22] -= 1;
    arrives[24..26].copy_from_slice(&[0, 0]);
    let sum = butterfly_packet::checksum::Sum::of(&arrives[14..34]).checksum();
    arrives[24..26].copy_from_slice(&sum.to_be_bytes());
    [sent, arrives]
}

//! A host that died, and its successor: conversations with machines that other hosts route to.

use std::path::{Path, PathBuf};

use butterfly_datapath::{Mac, SessionConfig, Timeouts, TunnelConfig, harness::Host};
use butterfly_packet::{
    build::{Ip, Tcp},
    tcp::{ACK, SYN},
};

use crate::{
    hosts::{between, endpoint, link, outer},
    net::*,
};

/// Host 1 with its table in a file of its own. A is its machine.
struct Kept {
    net: Net,
    name: String,
}

fn file(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(name)
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(file(&self.name));
    }
}

impl Kept {
    fn new(n: usize, of: Option<&Kept>) -> Kept {
        let name = format!("butterfly-test-routed-{}-{n}", std::process::id());
        if let Some(of) = of {
            std::fs::copy(of.net.host.session_file().unwrap(), file(&name)).unwrap();
        }
        let sessions = SessionConfig {
            capacity: 4096,
            file: Some(name.clone()),
            adopt: true,
            ..SessionConfig::default()
        };
        let config = TunnelConfig::new(endpoint(1), link(1));
        let host = Host::with_tunnel(sessions, Some(&config)).unwrap();
        host.set_session_times(Timeouts::default(), 0);
        Kept { net: Net { host }, name }
    }

    fn declares(&mut self, router_first: bool) {
        let machine = |net: &mut Net| {
            let (id, mac, vni, ip) = A;
            net.host.vnic(id, mac, vni, &policy(ip, false)).unwrap();
            net.host.settle();
        };
        if !router_first {
            machine(&mut self.net);
        }
        self.net.join();
        self.net.neighbour(B, Some(2));
        self.net.reaches(2);
        if router_first {
            machine(&mut self.net);
        }
        self.net.host.all_declared();
        self.net.host.moved();
    }

    #[track_caller]
    fn asks(&mut self, make: impl Fn(Ip) -> Vec<u8>) {
        let [sent, _] = routed(A, B, &make);
        let left = self.net.leaves(A, &sent);
        assert_eq!(left.len(), 1, "{:?}", self.net.drops_counted());
        assert_eq!(left[0][50..], between(1, A, B, make));
    }

    /// Returns the drop of an answer, if it was dropped.
    fn answered(&mut self, make: impl Fn(Ip) -> Vec<u8>) -> Option<String> {
        let frame = outer((2, 1), 42, &between(2, B, A, make));
        let got = self.net.gets(&[frame]);
        let drops = self.net.drops_counted();
        assert_eq!(got.len() + drops.len(), 1, "{got:?} {drops:?}");
        drops.into_iter().next().map(|(name, _)| name)
    }
}

fn tcp(
    ports: (u16, u16),
    flags: u8,
    (sequence, acknowledgement): (u32, u32),
) -> impl Fn(Ip) -> Vec<u8> {
    let segment = Tcp { sequence, acknowledgement, ..Tcp::new(ports.0, ports.1, flags) };
    move |ip| ip.tcp(&segment, b"")
}

/// No rule lets an answer in by itself, and no connection may be picked up.
#[test]
fn a_session_with_a_machine_of_another_host_goes_on() {
    let mut first = Kept::new(0, None);
    first.declares(true);
    first.asks(|ip| ip.udp(1000, 53, b"?"));
    assert_eq!(first.answered(|ip| ip.udp(53, 1000, b"!")), None);
    first.asks(tcp((4000, 80), SYN, (100, 0)));
    assert_eq!(first.answered(tcp((80, 4000), SYN | ACK, (500, 101))), None);
    first.asks(tcp((4000, 80), ACK, (101, 501)));
    assert_eq!(first.net.host.count_sessions().unwrap(), 2);
    for (n, router_first) in [(1, true), (2, false)] {
        let mut next = Kept::new(n, Some(&first));
        let [former] = next.net.host.former_tables() else { panic!() };
        assert_eq!(former.found.map(|found| found.sessions).unwrap(), 2);
        next.declares(router_first);
        assert_eq!(next.net.host.count_sessions().unwrap(), 2);
        assert_eq!(next.answered(tcp((80, 4000), ACK, (501, 101))), None);
        assert_eq!(next.answered(|ip| ip.udp(53, 1000, b"!")), None);
        next.asks(tcp((4000, 80), ACK, (101, 501)));
        // Numbers of no connection, and a port that was never asked.
        let drop = next.answered(tcp((80, 4000), ACK, (0x4000_0000, 101)));
        assert_eq!(drop.as_deref(), Some("a.drop.tcp-window"));
        let drop = next.answered(|ip| ip.udp(53, 1001, b"!"));
        assert_eq!(drop.as_deref(), Some("a.drop.ingress-denied"));
        next.net.host.pass(90_000);
        assert_eq!(next.net.host.count_sessions().unwrap(), 0);
    }
}

/// A conversation without a router is another one, after a death as before.
#[test]
fn a_session_is_not_taken_for_one_of_its_network() {
    let mut first = Kept::new(3, None);
    first.declares(true);
    first.asks(|ip| ip.udp(1000, 53, b"?"));
    let mut next = Kept::new(4, Some(&first));
    next.declares(false);
    for net in [&mut first.net, &mut next.net] {
        let [mut switched, _] = routed(B, A, |ip| ip.udp(53, 1000, b"!"));
        switched[..6].copy_from_slice(&A.1.0);
        switched[6..12].copy_from_slice(&Mac([2, 0, 0, 0, 0, 0x77]).0);
        assert!(net.gets(&[outer((2, 1), 42, &switched)]).is_empty());
        assert_eq!(net.drops_counted(), [("a.drop.ingress-denied".to_owned(), 1)]);
    }
}

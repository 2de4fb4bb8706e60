//! Vnics whose machines leave for another host: so far a router reaches only those of its own.

use butterfly_datapath::{Mac, SessionConfig, SessionFilter, TunnelConfig, harness::Host};

use crate::net::*;

/// A session of both networks, on a host that has a tunnel.
fn talking() -> Net {
    let config = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
    let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
    let mut host = Host::with_tunnel(sessions, Some(&config)).unwrap();
    for (id, mac, vni, ip) in [A, B] {
        host.vnic(id, mac, vni, &policy(ip, false)).unwrap();
    }
    let mut net = Net { host };
    net.join();
    net.host.settle();
    net.admit("10.0.0.0/8");
    for (from, to, ports) in [(A, B, (1000, 53)), (B, A, (53, 1000))] {
        let [sent, arrives] = routed(from, to, |ip| ip.udp(ports.0, ports.1, b"x"));
        assert_eq!(net.send(from, &sent)[to.0], [arrives]);
    }
    assert_eq!(net.host.count_sessions().unwrap(), 1);
    net
}

/// Nor is it taken for one with that host, whichever of its networks the machine is in.
#[test]
fn a_routed_session_does_not_leave_with_a_machine() {
    for left in [A, B] {
        let mut net = talking();
        let exported = net.host.export_vnic(left.0).unwrap();
        let other = if left.0 == "a" { "10.1.0.10" } else { "10.0.0.10" };
        assert!(!String::from_utf8_lossy(&exported.text).contains(other));
        net.host.depart(left.0).unwrap();
        assert_eq!(net.host.count_sessions().unwrap(), 1, "{}", left.0);
        let rows = net.host.sessions(&SessionFilter::default(), 10).1;
        assert!(rows.iter().all(|row| row.vni == 42), "{rows:?}");
        net.host.pass(90_000);
        assert_eq!(net.host.count_sessions().unwrap(), 0);
    }
}

/// The smaller network is the one that its row names.
#[test]
fn a_routed_session_is_found_by_either_network() {
    let net = talking();
    for (vni, found) in [(42, 1), (50, 1), (51, 0)] {
        let filter = SessionFilter { vni: Some(vni), ..SessionFilter::default() };
        assert_eq!(net.host.sessions(&filter, 10).0, found, "{vni}");
    }
}

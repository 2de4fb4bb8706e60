//! Pages of made-up observations.

use super::*;
use crate::{
    host::listen::NotListening,
    metrics::{RoutedCounts, Troubles},
};
use butterfly_control::NatCounts;
use butterfly_datapath::{
    NetworkObservation, NetworkTunnel, PortsInUse, VnicObservation, WireObservation, reasons,
};
use std::collections::BTreeSet;

fn vnic(id: &str, vni: u32) -> VnicObservation {
    VnicObservation {
        id: id.into(),
        vni,
        attached: true,
        queues: 4,
        held: true,
        attachments: 2,
        received: (3, 180),
        delivered: (4, 240),
        flooded: 5,
        learn_refused: 6,
        announced: 10,
        passed_on: 11,
        limit_waits: 12,
        learnt: 7,
        sessions: 8,
        drops: vec![("ring-full", 9)],
    }
}

fn wire(external: &str, state: WireState) -> WireObservation {
    WireObservation { external: external.into(), state, losses: vec![("wire-tx-full", 8)] }
}

fn peer(n: u32, named: bool) -> PeerObservation {
    PeerObservation {
        address: std::net::Ipv4Addr::from(0x0a00_0000 + n).into(),
        named,
        neighbour_known: named,
        idle: named.then_some(1),
        received: (2, 3),
        sent: (4, 5),
        drops: 6,
    }
}

/// Something of everything.
fn full() -> Observation {
    let tunnel = NetworkTunnel { received: (1, 2), sent: (3, 4), drops: vec![("no-neighbour", 5)] };
    Observation {
        vnics: vec![vnic("a", 42)],
        networks: vec![NetworkObservation {
            vni: 42,
            vnics: 1,
            learnt: 2,
            sessions: 3,
            tunnel: Some(tunnel),
        }],
        workers: vec![WorkerReport {
            busy_cycles: 3_000,
            packets: 100,
            batch_sizes: vec![1, 0, 2, 0, 0, 0, 3],
            tsc_hz: 2_000,
            ..WorkerReport::default()
        }],
        drops: reasons().map(|info| (info, 0)).collect(),
        sessions: SessionObservation {
            capacity: 64,
            used: 2,
            share: 16,
            states: vec![("tcp", "new", 1), ("udp", "new", 1)],
        },
        updates: vec![("nic-added", 1)],
        wires: vec![wire("office", WireState::Up), wire("wide", WireState::NoCarrier)],
        ports: vec![PortsInUse {
            vni: 78,
            address: [192, 0, 2, 9].into(),
            tcp: 5,
            udp: 6,
            echo: 7,
        }],
        uplink: Some(UplinkObservation {
            kind: "tap".into(),
            up: true,
            mtu: 1500,
            drops: vec![("not-ours", 1)],
            port: vec![("tx-full", 2)],
            control: vec![("answered", 3)],
            peers: vec![peer(1, true)],
            ..UplinkObservation::default()
        }),
    }
}

fn text(observed: &Observation) -> String {
    let service = Service {
        start_date: 1_600_000_000,
        restarts: 3,
        resumed: Some("everything".to_owned()),
        stood_still: std::time::Duration::from_millis(250),
        may_come_again: 17,
    };
    let missing = NotListening::default();
    missing.endpoint("tcp://192.0.2.1:9999");
    missing.metrics("192.0.2.1:9998");
    let condition = Condition::new(missing);
    let nats = NatCounts { pools: 1, floating: 2, forwards: 3 };
    let external = |(vni, id): (u32, &str)| ExternalCondition {
        id: id.to_owned(),
        vni,
        in_effect: id != "missing",
    };
    let all = [(77, "missing"), (78, "office"), (79, "wide"), (80, "wireless")];
    let externals = all.into_iter().map(external).collect();
    let routed = RoutedCounts { routers: (4, 5), nats, externals };
    condition.tell(Troubles {
        degraded: true,
        upgrade_failed: true,
        routed,
        ..Troubles::default()
    });
    page(observed, &Requests::default(), 1_700_000_000, Some(&service), &condition).unwrap()
}

fn has(page: &str, line: &str) {
    assert!(page.lines().any(|other| other == line), "{line} is not in\n{page}");
}

#[test]
fn everything_that_is_declared_is_there() {
    let page = text(&full());
    for Declaration { name, help, .. } in FAMILIES {
        has(&page, &format!("# HELP {name} {help}"));
        assert!(page.lines().any(|line| line.starts_with(name)), "{name} has no series");
    }
    for line in [
        "butterfly_start_time_seconds 1700000000",
        "butterfly_may_come_again_frames 17",
        "butterfly_degraded 1",
        "butterfly_changes_refused 0",
        "butterfly_externals_down 2",
        "butterfly_external_up{external=\"missing\"} 0",
        "butterfly_external_up{external=\"office\"} 1",
        "butterfly_external_up{external=\"wide\"} 0",
        "butterfly_external_up{external=\"wireless\"} 1",
        "butterfly_external_lost_packets_total{external=\"office\",reason=\"wire-tx-full\"} 8",
        "butterfly_routers 4",
        "butterfly_routes 5",
        "butterfly_translations{kind=\"snat\"} 1",
        "butterfly_shared_ports_in_use{external=\"office\",address=\"192.0.2.9\",protocol=\"icmp\"} 7",
        "butterfly_translations{kind=\"floating\"} 2",
        "butterfly_translations{kind=\"forward\"} 3",
        "butterfly_upgrade_failed 1",
        "butterfly_upgrade_uncommitted 0",
        "butterfly_not_listening 1",
        "butterfly_holder_gone 0",
        "butterfly_nic_in_packets_total{nic=\"a\",vni=\"42\"} 3",
        "butterfly_nic_out_bytes_total{nic=\"a\",vni=\"42\"} 240",
        "butterfly_nic_drops_total{nic=\"a\",vni=\"42\",reason=\"ring-full\"} 9",
        "butterfly_nic_attached{nic=\"a\",vni=\"42\"} 1",
        "butterfly_nic_held{nic=\"a\",vni=\"42\"} 1",
        "butterfly_nic_attachments_total{nic=\"a\",vni=\"42\"} 2",
        "butterfly_network_drops_total{vni=\"42\",reason=\"no-neighbour\"} 5",
        "butterfly_drops_total{reason=\"spoofed-mac\"} 0",
        "butterfly_worker_busy_cycles_total{worker=\"0\"} 3000",
        "butterfly_worker_busy_seconds_total{worker=\"0\"} 1.5",
        "butterfly_worker_batch_packets_bucket{worker=\"0\",le=\"1\"} 1",
        "butterfly_worker_batch_packets_bucket{worker=\"0\",le=\"4\"} 3",
        "butterfly_worker_batch_packets_bucket{worker=\"0\",le=\"64\"} 6",
        "butterfly_worker_batch_packets_bucket{worker=\"0\",le=\"+Inf\"} 6",
        "butterfly_worker_batch_packets_count{worker=\"0\"} 6",
        "butterfly_worker_batch_packets_sum{worker=\"0\"} 100",
        "butterfly_sessions{protocol=\"udp\",state=\"new\"} 1",
        "butterfly_uplink_up 1",
        "butterfly_tunnel_peers{origin=\"named\"} 1",
        "butterfly_tunnel_peer_neighbour_known{peer=\"10.0.0.1\"} 1",
        "butterfly_api_requests_total{request=\"nic_add\",outcome=\"success\"} 0",
    ] {
        has(&page, line);
    }
    let series: Vec<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    assert_eq!(
        series.iter().collect::<BTreeSet<_>>().len(),
        series.len(),
        "a series is there twice"
    );
}

#[test]
fn a_host_on_its_own_has_no_uplink() {
    let page = text(&Observation { uplink: None, ..full() });
    assert!(!page.contains("butterfly_uplink_") && !page.contains("butterfly_tunnel_"), "{page}");
}

#[test]
fn names_cannot_break_out() {
    let page =
        text(&Observation { vnics: vec![vnic("a\"} 1\n# \\", 1)], ..Observation::default() });
    has(&page, "butterfly_nic_sessions{nic=\"a\\\"} 1\\n# \\\\\",vni=\"1\"} 8");
}

/// Strangers can make up peers: those that an operator named are not lost among them.
#[test]
fn peers_are_bounded() {
    let peers: Vec<_> = (0..4096).map(|n| peer(n, n >= 4000)).collect();
    let uplink = UplinkObservation { peers, ..UplinkObservation::default() };
    let page = text(&Observation { uplink: Some(uplink), ..Observation::default() });
    let shown = |from: u32, to: u32| {
        let shown = |n: &u32| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + n);
            page.contains(&format!(
                "butterfly_tunnel_peer_in_packets_total{{peer=\"{address}\"}} 2\n"
            ))
        };
        (from..to).filter(shown).count()
    };
    assert_eq!((shown(0, 4000), shown(4000, 4096)), (MOST_PEERS - 96, 96));
    has(&page, "butterfly_tunnel_peers{origin=\"learnt\"} 4000");
    has(&page, "butterfly_tunnel_peers_not_shown 3840");
}

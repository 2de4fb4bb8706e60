//! Arguments that were written for the original daemon: DPDK ports, which are network interfaces
//! here, and offloads turned off.

use butterfly_tests::{
    Daemon, Host, Kind, Nic, features,
    frames::mac,
    station::{machine, usual},
    traffic::{exchange, streams},
};
use std::process::Command;

/// The network namespaces of two hosts with a wire between them, `veth0` at both ends.
struct Wire([String; 2]);

fn ip(words: &str) {
    let status = Command::new("ip")
        .args(words.split_whitespace())
        .status()
        .expect("ip (package iproute2) runs");
    assert!(status.success(), "ip {words}");
}

impl Wire {
    fn new() -> Wire {
        let wire = Wire(["a", "b"].map(|end| format!("bfly-args-{}-{end}", std::process::id())));
        let [a, b] = &wire.0;
        ip(&format!("netns add {a}"));
        ip(&format!("netns add {b}"));
        ip(&format!("-n {a} link add veth0 type veth peer name veth0 netns {b}"));
        ip(&format!("-n {a} link set veth0 up"));
        ip(&format!("-n {b} link set veth0 up"));
        wire
    }

    /// Starts a daemon at one end, with these arguments for DPDK.
    fn daemon(&self, end: usize, arguments: &str) -> Host {
        let options =
            ["-i", &format!("192.0.2.{}/24", end + 1), "--dpdk-args", arguments].map(str::to_owned);
        Host::of(Daemon::start_with(&["ip", "netns", "exec", &self.0[end]], &options))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for end in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", end]).status();
        }
    }
}

#[test]
fn devices_of_dpdk_carry_traffic() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let wire = Wire::new();
    let near = wire
        .daemon(0, "-c1 -n1 --socket-mem 64 --no-shconf --no-huge --vdev=eth_pcap0,iface=veth0");
    let far = wire.daemon(1, "-l 0 '--vdev' net_af_packet0,iface=veth0");
    for (host, served, without_effect) in [
        (&near, "eth_pcap0", "-c 1, -n 1, --socket-mem 64, --no-shconf, --no-huge"),
        (&far, "net_af_packet0", "-l 0"),
    ] {
        let log = host.daemon().log();
        let served = format!(
            "<INFO> dpdk-args: {served} is served by the uplink on veth0, as --uplink veth0 would be, by AF_XDP"
        );
        let without_effect = format!("<INFO> dpdk-args: without effect here: {without_effect}\n");
        for line in [&served, &without_effect] {
            assert_eq!(log.matches(line.as_str()).count(), 1, "{line} in {log}");
        }
        let uplink = host.daemon().client_ok(&["uplink"]);
        assert!(uplink.contains("veth0"), "{uplink}");
    }
    let mut a = near.station(&Nic::bypass("a", mac(1), 7), &usual());
    let mut b = far.station(&Nic::bypass("b", mac(2), 7), &usual());
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 600, 1400].repeat(100));
}

#[test]
fn without_offloads_frames_are_complete() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let host = Host::of(Daemon::start_with(&[], &["--no-offload".to_owned()]));
    let mut a = host.station(&Nic::bypass("a", mac(1), 7), &machine(features::LINUX, 9000));
    let mut b = host.station(&Nic::bypass("b", mac(2), 7), &machine(features::LINUX, 9000));
    let show = host.show("a");
    let offloads: Vec<_> = show
        .negotiated
        .iter()
        .filter(|name| name.contains("csum") || name.contains("tso") || name.contains("ecn"))
        .collect();
    assert!(offloads.is_empty() && show.negotiated.contains("mrg-rxbuf"), "{:?}", show.negotiated);
    assert!(
        show.refused.iter().all(|name| !name.contains("csum")),
        "not offered is not refused: {:?}",
        show.refused
    );
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000].repeat(10));
}

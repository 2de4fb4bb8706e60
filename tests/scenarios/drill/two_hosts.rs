//! Faults between two hosts: daemons with TAP devices in a bridge, in a network namespace that ends
//! with the daemons.

use std::process::Command;

use butterfly_tests::{
    Daemon, Host, Kind, eventually,
    net::{Net, open},
};
use serde_json::Value;

use super::{A, B, Machine, Scene, drill};

/// Runs `ip` in a daemon's network namespace.
fn ip(daemon: &Daemon, line: &str) {
    let space = format!("--net=/proc/{}/ns/net", daemon.pid());
    let status =
        Command::new("nsenter").arg(space).arg("ip").args(line.split(' ')).status().unwrap();
    assert!(status.success(), "ip {line}");
}

fn daemon(before: &[&str], number: u8, peer: &str) -> Daemon {
    let (own, uplink) = (format!("42.0.0.{number}/24"), format!("tap:up{number}"));
    let words = ["--ip", &own, "--uplink", &uplink, "--peer", peer].map(str::to_owned);
    Daemon::start_with(before, &words)
}

/// Returns vnic a on a host whose configured peer is `peer`, and vnic b on the other host. The
/// devices are not in the bridge yet.
fn two(peer: &str) -> Option<Scene> {
    if Kind::wanted() != Kind::Daemon {
        println!("skipped: it needs a daemon");
        return None;
    }
    let near = daemon(&["unshare", "--net"], 1, peer);
    let space = format!("--net=/proc/{}/ns/net", near.pid());
    let far = daemon(&["nsenter", &space], 2, "42.0.0.1");
    ip(&near, "link add br0 up type bridge stp_state 0 forward_delay 0 mcast_snooping 0");
    let (mut net, mut other) = (Net::of(Host::of(near)), Net::of(Host::of(far)));
    net.attach(&open("a", A));
    other.attach(&open("b", B));
    let mut scene = Scene::new(net, Machine::new("a", A));
    scene.far = Some(other);
    Some(scene)
}

fn join(scene: &Scene) {
    for device in ["up1", "up2"] {
        ip(scene.near(), &format!("link set dev {device} master br0"));
    }
}

/// Returns true if a host has a route to another tunnel endpoint.
fn reaches(daemon: &Daemon, endpoint: &str) -> bool {
    let told: Value = serde_json::from_str(&daemon.client_ok(&["tunnels", "--json"])).unwrap();
    told["peers"]
        .as_array()
        .unwrap()
        .iter()
        .any(|peer| peer["address"] == endpoint && peer["mac"].is_string())
}

#[test]
fn unreachable_peer() {
    let Some(scene) = two("42.0.0.2") else { return };
    ip(scene.near(), "link set dev up2 down");
    join(&scene);
    drill(scene, "The other host does not answer");
}

#[test]
fn peer_with_a_wrong_address() {
    let Some(scene) = two("42.0.0.9") else { return };
    join(&scene);
    drill(scene, "The hosts do not know each other");
}

#[test]
fn too_large_for_the_tunnel() {
    let Some(mut scene) = two("42.0.0.2") else { return };
    join(&scene);
    eventually("the hosts know each other", || reaches(scene.near(), "42.0.0.2"));
    scene.machine.data = vec![7; 1460];
    drill(scene, "Too large for the way");
}

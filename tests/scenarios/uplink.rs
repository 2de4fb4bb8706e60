//! Uplinks that change while a daemon runs, and hosts with more ways out than one. Daemons are in network namespaces that end with them.

use std::{process::Command, time::Duration};

use butterfly_packet::{mac::Mac, protocol};
use butterfly_tests::{Daemon, Host, Kind, Nic, PATIENCE, eventually, frames::mac, station::usual, within};
use butterfly_vhost::driver::Vm;
use serde_json::Value;

/// Runs `ip` where a daemon is.
fn ip(daemon: &Daemon, line: &str) {
    let space = format!("--net=/proc/{}/ns/net", daemon.pid());
    let status = Command::new("nsenter").arg(space).arg("ip").args(line.split(' ')).status().unwrap();
    assert!(status.success(), "ip {line}");
}

/// A daemon in a network namespace of its own, in which `lines` were given to `ip` before.
fn daemon_behind(lines: &[&str], options: &[&str]) -> Daemon {
    let lines: Vec<String> = lines.iter().map(|line| format!("ip {line} && ")).collect();
    let script = format!("{}exec \"$@\"", lines.concat());
    let options: Vec<String> = options.iter().map(|word| (*word).to_owned()).collect();
    Daemon::start_with(&["unshare", "--net", "sh", "-c", &script, "sh"], &options)
}

fn told(daemon: &Daemon, command: &str) -> Value {
    serde_json::from_str(&daemon.client_ok(&[command, "--json"])).unwrap()
}

fn becomes(daemon: &Daemon, state: &str) {
    eventually(state, || told(daemon, "uplink")["state"] == state);
}

#[test]
fn an_interface_is_followed_whatever_becomes_of_it() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let wire = ["link add wire type veth peer name far", "addr add 42.0.0.1/24 dev wire", "link set far up", "link set wire up"];
    let daemon = daemon_behind(&wire, &["--uplink", "wire"]);
    becomes(&daemon, "up");
    ip(&daemon, "link set far down");
    becomes(&daemon, "no carrier");
    assert!(daemon.log().contains("has no carrier"), "{}", daemon.log());
    assert!(daemon.client_ok(&["uplink"]).contains("no carrier: nobody is at the other end"));
    ip(&daemon, "link set far up");
    becomes(&daemon, "up");
    ip(&daemon, "link set wire down");
    becomes(&daemon, "down");
    ip(&daemon, "link set wire name other");
    ip(&daemon, "link set other up");
    becomes(&daemon, "up");
    assert!(!daemon.log().contains("was removed"), "{}", daemon.log());
    ip(&daemon, "link del other");
    becomes(&daemon, "removed");
    assert!(daemon.log().contains("was removed"), "{}", daemon.log());
}

/// All three reports of a new member: those from before are lost, and the next would come after a minute.
#[test]
fn groups_are_reported_to_an_uplink_that_attaches() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let socket = room.path().join("uplink");
    let host = Host::of(Daemon::start_with(&[], &["--uplink".to_owned(), format!("vhost-user:{}", socket.display())]));
    host.add(&Nic::bypass("a", mac(1), 42)).unwrap();
    eventually("its group is joined", || !told(host.daemon(), "tunnels")["groups"].as_array().unwrap().is_empty());
    let mut wire = Vm::connect(&socket, &usual(), PATIENCE).unwrap();
    let mut reports = 0;
    within(Duration::from_secs(30), "three reports", || {
        while let Some((_, frame)) = wire.guest.recv().unwrap() {
            let is_report = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&protocol::IGMP);
            reports += u32::from(is_report && frame.get(30..34) == Some(&[230, 0, 0, 42]));
        }
        reports >= 3
    });
    // With its second vnic the network stays a member, and with its last one it says that it leaves.
    host.add(&Nic::bypass("b", mac(2), 42)).unwrap();
    host.remove("a");
    let mut leaves = || {
        let frames = std::iter::from_fn(|| wire.guest.recv().unwrap().map(|(_, frame)| frame));
        let igmp = frames.filter(|frame| frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&protocol::IGMP));
        igmp.filter(|frame| frame.get(38) == Some(&0x17)).collect::<Vec<_>>()
    };
    assert!(!told(host.daemon(), "tunnels")["groups"].as_array().unwrap().is_empty());
    assert!(leaves().is_empty(), "there is one more");
    host.remove("b");
    let mut left = Vec::new();
    eventually("the group is left", || {
        left.extend(leaves());
        !left.is_empty()
    });
    assert_eq!(left.len(), 1);
    assert_eq!(left[0][..6], [1, 0, 0x5e, 0, 0, 42], "by the group's own MAC address");
    assert_eq!(left[0][30..34], [224, 0, 0, 2], "to all routers");
    assert_eq!(left[0][42..46], [230, 0, 0, 42]);
    assert!(told(host.daemon(), "tunnels")["groups"].as_array().unwrap().is_empty());
}

/// docs/containers.md: those of other namespaces are left alone, and what somebody set stays.
#[test]
fn interfaces_of_the_host_follow_the_mtu() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let wire = ["link add wire type veth peer name far", "addr add 42.0.0.1/24 dev wire", "link set far up", "link set wire up"];
    let daemon = daemon_behind(&wire, &["--uplink", "wire"]);
    let mut container = Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
    let elsewhere = format!("/proc/{}/ns/net", container.id());
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    eventually("it is in its namespace", || std::fs::read_link(&elsewhere).is_ok_and(|there| there != own));
    for (n, id, more) in [(1, "tap-a", vec![]), (2, "tap-b", vec![]), (3, "tap-c", vec!["--netns", &*elsewhere])] {
        let mac = mac(n).to_string();
        let words = ["nic", "add", "--type", "TAP", "--vni", "42", "--id", id, "--mac", &mac];
        assert_eq!(daemon.client_ok(&[&words[..], &more].concat()), format!("{id}\n"));
    }
    let mtu = |space: &str, name: &str| {
        let output =
            Command::new("nsenter").args([&format!("--net={space}"), "ip", "-o", "link", "show", name]).output().unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        line.split(" mtu ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
    };
    let here = format!("/proc/{}/ns/net", daemon.pid());
    let all = || [mtu(&here, "tap-a"), mtu(&here, "tap-b"), mtu(&elsewhere, "tap-c")];
    assert_eq!(all(), [1450; 3]);
    ip(&daemon, "link set wire mtu 1400");
    eventually("it follows", || all() == [1350, 1350, 1450]);
    assert!(daemon.client_ok(&["events"]).contains("interfaces in network namespaces another mtu"));
    // By another name it is the same; what somebody else set is somebody else's.
    for line in
        ["link set tap-a down", "link set tap-a name z", "link set z up", "link set tap-b mtu 1300", "link set wire mtu 1500"]
    {
        ip(&daemon, line);
    }
    eventually("it follows", || mtu(&here, "z") == 1450);
    assert_eq!((mtu(&here, "tap-b"), mtu(&elsewhere, "tap-c")), (1300, 1450));
    container.kill().unwrap();
    container.wait().unwrap();
}

fn next_hop(daemon: &Daemon, peer: &str) -> Option<String> {
    let told = told(daemon, "tunnels");
    let row = told["peers"].as_array().unwrap().iter().find(|row| row["address"] == peer)?.clone();
    Some(row["mac"].as_str()?.to_owned())
}

/// A TAP device in a bridge that has no address, on a host whose default route is another card's.
#[test]
fn routes_beside_a_tap_device_are_not_its() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let elsewhere = Mac([2, 0, 0, 0, 0, 0x99]).to_string();
    let neighbour = format!("neigh add 198.51.100.254 lladdr {elsewhere} dev mgmt nud permanent");
    let management = [
        "link add mgmt type veth peer name beyond",
        "addr add 198.51.100.1/24 dev mgmt",
        "link set beyond up",
        "link set mgmt up",
        &neighbour,
        "route add default via 198.51.100.254",
        "link add br0 up type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
    ];
    let words = "--ip 42.0.0.1/24 --uplink tap:up1 --peer 42.0.0.2 --peer 203.0.113.9 --gateway 42.0.0.2";
    let near = daemon_behind(&management, &words.split(' ').collect::<Vec<_>>());
    let space = format!("--net=/proc/{}/ns/net", near.pid());
    let words = "--ip 42.0.0.2/24 --uplink tap:up2".split(' ').map(str::to_owned);
    let far = Daemon::start_with(&["nsenter", &space], &words.collect::<Vec<_>>());
    becomes(&near, "up");
    for device in ["up1", "up2"] {
        ip(&near, &format!("link set dev {device} master br0"));
    }
    let there = told(&far, "tunnels")["mac"].as_str().unwrap().to_owned();
    // In its network, and by its gateway.
    for peer in ["42.0.0.2", "203.0.113.9"] {
        eventually("the next hop is found", || next_hop(&near, peer).is_some());
        assert_eq!(next_hop(&near, peer).as_deref(), Some(&*there), "{peer}");
    }
    // What leads through the bridge counts.
    let (peer, mac) = ("42.3.0.2", Mac([2, 0, 0, 0, 0, 3]).to_string());
    ip(&near, "addr add 42.3.0.1/24 dev br0");
    ip(&near, &format!("neigh add {peer} lladdr {mac} dev br0 nud permanent"));
    near.client_ok(&["peer", "add", peer]);
    eventually("the next hop is found", || next_hop(&near, peer).is_some());
    assert_eq!(next_hop(&near, peer), Some(mac));
    ip(&near, "link set up1 down");
    becomes(&near, "down");
}

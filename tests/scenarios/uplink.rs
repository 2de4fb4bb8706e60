//! Uplinks that change while a daemon runs, and hosts with several interfaces. Daemons are in
//! network namespaces that end with them.

use std::{process::Command, time::Duration};

use butterfly_guest_driver::Vm;
use butterfly_packet::{build, mac::Mac, protocol};
use butterfly_tests::{
    Daemon, Host, Kind, Nic, PATIENCE, eventually, frames::mac, station::usual, within,
};
use serde_json::Value;

/// Runs `ip` in a daemon's network namespace.
pub(crate) fn ip(daemon: &Daemon, line: &str) {
    let space = format!("--net=/proc/{}/ns/net", daemon.pid());
    let status =
        Command::new("nsenter").arg(space).arg("ip").args(line.split(' ')).status().unwrap();
    assert!(status.success(), "ip {line}");
}

/// Starts a daemon in a new network namespace, after running `ip` there with each of `lines`.
pub(crate) fn daemon_behind(lines: &[&str], options: &[&str]) -> Daemon {
    let lines: Vec<String> = lines.iter().map(|line| format!("ip {line} && ")).collect();
    let script = format!("{}exec \"$@\"", lines.concat());
    let options: Vec<String> = options.iter().map(|word| (*word).to_owned()).collect();
    Daemon::start_with(&["unshare", "--net", "sh", "-c", &script, "sh"], &options)
}

fn told(daemon: &Daemon, command: &str) -> Value {
    serde_json::from_str(&daemon.client_ok(&[command, "--json"])).unwrap()
}

pub(crate) fn becomes(daemon: &Daemon, state: &str) {
    eventually(state, || told(daemon, "uplink")["state"] == state);
}

#[test]
fn an_interface_is_followed_whatever_becomes_of_it() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let wire = [
        "link add wire type veth peer name far",
        "addr add 42.0.0.1/24 dev wire",
        "link set far up",
        "link set wire up",
    ];
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

/// An uplink that attaches gets all three reports of a member: earlier ones are lost, and the next
/// would come after a minute.
#[test]
fn groups_are_reported_to_an_uplink_that_attaches() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let socket = room.path().join("uplink");
    let host = Host::of(Daemon::start_with(
        &[],
        &["--uplink".to_owned(), format!("vhost-user:{}", socket.display())],
    ));
    host.add(&Nic::bypass("a", mac(1), 42)).unwrap();
    eventually("its group is joined", || {
        !told(host.daemon(), "tunnels")["groups"].as_array().unwrap().is_empty()
    });
    let mut wire = Vm::connect(&socket, &usual(), PATIENCE).unwrap();
    let mut reports = 0;
    within(Duration::from_secs(30), "three reports", || {
        while let Some((_, frame)) = wire.guest.recv().unwrap() {
            let is_report =
                frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&protocol::IGMP);
            reports += u32::from(is_report && frame.get(30..34) == Some(&[230, 0, 0, 42]));
        }
        reports >= 3
    });
    // The host stays a member while the network has a vnic, and leaves with the last one.
    host.add(&Nic::bypass("b", mac(2), 42)).unwrap();
    host.remove("a");
    let mut leaves = || {
        let frames = std::iter::from_fn(|| wire.guest.recv().unwrap().map(|(_, frame)| frame));
        let igmp = frames.filter(|frame| {
            frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&protocol::IGMP)
        });
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

/// docs/containers.md: the daemon leaves interfaces in other namespaces alone, and an MTU that
/// another program set.
#[test]
fn interfaces_of_the_host_follow_the_mtu() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let wire = [
        "link add wire type veth peer name far",
        "addr add 42.0.0.1/24 dev wire",
        "link set far up",
        "link set wire up",
    ];
    let daemon = daemon_behind(&wire, &["--uplink", "wire"]);
    let mut container = Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
    let elsewhere = format!("/proc/{}/ns/net", container.id());
    let own = std::fs::read_link("/proc/self/ns/net").unwrap();
    eventually("it is in its namespace", || {
        std::fs::read_link(&elsewhere).is_ok_and(|there| there != own)
    });
    for (n, id, more) in
        [(1, "tap-a", vec![]), (2, "tap-b", vec![]), (3, "tap-c", vec!["--netns", &*elsewhere])]
    {
        let mac = mac(n).to_string();
        let words = ["nic", "add", "--type", "TAP", "--vni", "42", "--id", id, "--mac", &mac];
        assert_eq!(daemon.client_ok(&[&words[..], &more].concat()), format!("{id}\n"));
    }
    let mtu = |space: &str, name: &str| {
        let output = Command::new("nsenter")
            .args([&format!("--net={space}"), "ip", "-o", "link", "show", name])
            .output()
            .unwrap();
        let line = String::from_utf8(output.stdout).unwrap();
        line.split(" mtu ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
            .unwrap_or(0)
    };
    let here = format!("/proc/{}/ns/net", daemon.pid());
    let all = || [mtu(&here, "tap-a"), mtu(&here, "tap-b"), mtu(&elsewhere, "tap-c")];
    assert_eq!(all(), [1450; 3]);
    ip(&daemon, "link set wire mtu 1400");
    eventually("it follows", || all() == [1350, 1350, 1450]);
    assert!(daemon.client_ok(&["events"]).contains("interfaces in network namespaces another mtu"));
    // A renamed interface still follows. The daemon leaves an MTU alone that another program set.
    for line in [
        "link set tap-a down",
        "link set tap-a name z",
        "link set z up",
        "link set tap-b mtu 1300",
        "link set wire mtu 1500",
    ] {
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

/// A TAP device in a bridge without an address, on a host whose default route uses another card.
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
    let words =
        "--ip 42.0.0.1/24 --uplink tap:up1 --peer 42.0.0.2 --peer 203.0.113.9 --gateway 42.0.0.2";
    let near = daemon_behind(&management, &words.split(' ').collect::<Vec<_>>());
    let space = format!("--net=/proc/{}/ns/net", near.pid());
    let words = "--ip 42.0.0.2/24 --uplink tap:up2".split(' ').map(str::to_owned);
    let far = Daemon::start_with(&["nsenter", &space], &words.collect::<Vec<_>>());
    becomes(&near, "up");
    for device in ["up1", "up2"] {
        ip(&near, &format!("link set dev {device} master br0"));
    }
    let there = told(&far, "tunnels")["mac"].as_str().unwrap().to_owned();
    // A peer in the endpoint's network, and one behind its gateway.
    for peer in ["42.0.0.2", "203.0.113.9"] {
        eventually("the next hop is found", || next_hop(&near, peer).is_some());
        assert_eq!(next_hop(&near, peer).as_deref(), Some(&*there), "{peer}");
    }
    // A route through the bridge counts.
    let (peer, mac) = ("42.3.0.2", Mac([2, 0, 0, 0, 0, 3]).to_string());
    ip(&near, "addr add 42.3.0.1/24 dev br0");
    ip(&near, &format!("neigh add {peer} lladdr {mac} dev br0 nud permanent"));
    near.client_ok(&["peer", "add", peer]);
    eventually("the next hop is found", || next_hop(&near, peer).is_some());
    assert_eq!(next_hop(&near, peer), Some(mac));
    ip(&near, "link set up1 down");
    becomes(&near, "down");
}

/// Sends frames out of an interface of the daemon's namespace, through a packet socket, which does
/// not change them.
fn send_by(daemon: &Daemon, interface: &str, frames: &[Vec<u8>]) {
    const SEND: &str = "import socket, sys\n\
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
        s.bind((sys.argv[1], 0))\n\
        for frame in sys.argv[2:]: s.send(bytes.fromhex(frame))";
    let space = format!("--net=/proc/{}/ns/net", daemon.pid());
    let hex = |frame: &Vec<u8>| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut command = Command::new("nsenter");
    command.args([&space, "python3", "-c", SEND, interface]).args(frames.iter().map(hex));
    assert!(command.status().unwrap().success(), "python3 cannot send");
}

/// Returns the VLAN of the next frame of a protocol at an interface of the daemon's namespace; 0 is
/// none.
fn vlan_of_next(daemon: &Daemon, interface: &str, protocol: u8) -> u16 {
    // The kernel takes the tag off before a packet socket sees the frame, and passes it beside the
    // frame (struct tpacket_auxdata).
    const HEAR: &str = "import socket, struct, sys\n\
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))\n\
        s.bind((sys.argv[1], 3)); s.setsockopt(263, 8, 1); s.settimeout(30)\n\
        while True:\n\
        \x20   data, told, flags, address = s.recvmsg(2000, 200)\n\
        \x20   tag = 0\n\
        \x20   for level, kind, value in told:\n\
        \x20       status, _, _, _, _, tci, _ = struct.unpack('IIIHHHH', value[:20])\n\
        \x20       tag = tci & 0xfff if status & 16 else 0\n\
        \x20   if address[2] != 4 and data[12:14] == b'\\x08\\x00' and data[23] == int(sys.argv[2]): print(tag); break";
    let space = format!("--net=/proc/{}/ns/net", daemon.pid());
    let output = Command::new("nsenter")
        .args([&space, "python3", "-c", HEAR, interface, &protocol.to_string()])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_else(|_| panic!("{output:?}"))
}

/// The underlay is one VLAN of the wire, or untagged. The daemon drops and counts frames of other
/// VLANs, which reach no network.
#[test]
fn an_interface_hears_one_vlan() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let wire = [
        "link add wire type veth peer name far",
        "addr add 42.0.0.1/24 dev wire",
        "link set far up",
        "link set wire up",
    ];
    for vlan in [0u16, 42] {
        let options = ["--uplink", "wire", "--underlay-vlan", &vlan.to_string()];
        let host = Host::of(daemon_behind(&wire, &options));
        let daemon = host.daemon();
        becomes(daemon, "up");
        host.add(&Nic::bypass("a", mac(1), 42)).unwrap();
        let shown = told(daemon, "uplink");
        assert_eq!(shown["vlan"].as_u64(), (vlan != 0).then_some(vlan.into()));
        assert!(shown["vlan_doubt"].as_str().unwrap().contains("veth"), "{shown}");
        // The daemon reports the group of a new network in this VLAN.
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| vlan_of_next(daemon, "far", protocol::IGMP));
            let mut vni = 100;
            within(Duration::from_secs(30), "a report", || {
                vni += 1;
                host.add(&Nic::bypass(&format!("n{vni}"), mac(vni), vni)).unwrap();
                heard.is_finished()
            });
            assert_eq!(heard.join().unwrap(), vlan);
        });
        let inner =
            build::ethernet(mac(9), mac(1)).ipv4([10, 0, 0, 9], [10, 0, 0, 1]).udp(1, 2, b"x");
        let vxlan = [&[8, 0, 0, 0, 0, 0, 42, 0][..], &inner].concat();
        let near = shown["mac"].as_str().unwrap().parse().unwrap();
        let frame = |tag: Option<u16>, to: [u8; 4]| {
            let link = build::ethernet(mac(200), near);
            let link = tag.map_or(link.clone(), |tag| link.vlan(tag));
            link.ipv4([42, 0, 0, 2], to).udp(50_000, 4789, &vxlan)
        };
        let (unicast, group) = ([42, 0, 0, 1], [230, 0, 0, 42]);
        let own = if vlan == 0 { None } else { Some(vlan) };
        let strangers = [Some(7), Some(43), if vlan == 0 { Some(42) } else { None }];
        let mut frames = vec![frame(own, unicast), frame(own, group)];
        frames.extend(strangers.iter().flat_map(|tag| [frame(*tag, unicast), frame(*tag, group)]));
        send_by(daemon, "far", &frames);
        let dropped = |reason: &str| {
            let shown = told(daemon, "uplink");
            let mut drops = shown["drops"].as_array().unwrap().iter();
            drops
                .find(|row| row["reason"] == reason)
                .and_then(|row| row["count"].as_u64())
                .unwrap_or(0)
        };
        let received = || {
            told(daemon, "tunnels")["networks"]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| row["in_packets"].as_u64().unwrap())
                .sum::<u64>()
        };
        eventually("frames of other VLANs are counted", || dropped("other-vlan") == 6);
        eventually("frames of the underlay arrive", || received() == 2);
    }
}

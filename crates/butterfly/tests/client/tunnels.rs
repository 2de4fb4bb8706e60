//! Other hosts: the tunnel endpoint, the uplink, peers.

use crate::refused;
use crate::support::{Daemon, Row, answer, check};
use serde_json::{Value, json};

const TUNNEL: &str = r#"tunnel_show {
  endpoint: "10.9.0.1" mac: "52:54:00:00:00:09" answers: true strict_peers: false host_mtu: 1450
  groups { vni: 42 address: "230.0.0.42" } groups { vni: 1337 address: "230.0.5.57" }
  peers { address: "10.9.0.2" mac: "52:54:00:00:00:08" named: true idle: 61 in_packets: 1 in_bytes: 2 out_packets: 3 out_bytes: 4 drops: 5 }
  peers { address: "10.9.0.3" named: true vni: 42 vni: 1337 }
  peers { address: "10.9.0.4" mac: "52:54:00:00:00:07" named: false idle: 0 in_packets: 18446744073709551615 }
  learnt { vni: 42 mac: "52:54:00:12:34:03" peer: "10.9.0.2" age: 7 }
  neighbours { address: "10.9.0.254" mac: "52:54:00:00:00:06" state: "reachable" age: 3 }
  neighbours { address: "10.9.0.3" state: "asking\033[2J" }
  networks { vni: 42 in_packets: 10 in_bytes: 1000 out_packets: 200 out_bytes: 20000
    drops { reason: "too-big" count: 3 description: "does not fit" } drops { reason: "no-neighbour" count: 0 description: "nobody" } }
  control { name: "answered" value: 9 description: "ARP" } control { name: "echo" value: 0 description: "pings" }
}"#;

fn json_of(line: &str, answered: &str) -> Value {
    let daemon = Daemon::new();
    let mut client = daemon.start(line);
    daemon.receive(line);
    daemon.send(&answer(&[answered]));
    let ended = client.end();
    assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)), "{line}");
    serde_json::from_str(&ended.out).unwrap()
}

/// Declarations of where machines are name their hosts, for no network.
#[test]
fn hosts_of_neighbours_are_told_apart() {
    let told = r#"tunnel_show { endpoint: "10.9.0.1" peers { address: "10.9.0.2" named: true of_neighbours: true } }"#;
    let json = json_of("tunnels --json @", told);
    assert_eq!(json["peers"][0]["of_neighbours"], true, "{json}");
    let daemon = Daemon::new();
    let mut client = daemon.start("tunnels @");
    daemon.receive("tunnels @");
    daemon.send(&answer(&[told]));
    let ended = client.end();
    assert!(ended.out.contains("10.9.0.2  unknown   routers     "), "{}", ended.out);
}

#[test]
fn tunnels_are_a_page() {
    check(&[Row {
        line: "tunnels @",
        asks: &[&["tunnel_show {}"]],
        answers: &[&[TUNNEL]],
        out: "\
10.9.0.1
  link address      52:54:00:00:00:09
  ARP, ND, ping     answered by the daemon
  hosts heard       all that send VXLAN to it
  machines          host_mtu=1450 on QEMU's -device virtio-net-pci: larger packets do not reach other hosts

groups joined
   vni  group
    42  230.0.0.42
  1337  230.0.5.57

peers (in is what came from them)
  address   next hop           named for  last heard            in packets  in bytes  out packets  out bytes  drops
  10.9.0.2  52:54:00:00:00:08  all         1 min 1 s                     1         2            3          4      5
  10.9.0.3  unknown            42,1337         never                     0         0            0          0      0
  10.9.0.4  52:54:00:00:00:07  learnt            0 s  18446744073709551615         0            0          0      0

addresses learnt on them
  vni  mac                peer      last seen
   42  52:54:00:12:34:03  10.9.0.2        7 s

next hops
  address     mac                state            confirmed
  10.9.0.254  52:54:00:00:00:06  reachable              3 s
  10.9.0.3    unknown            asking\\u{1b}[2J      never

networks (in is what came from other hosts)
  vni  in packets  in bytes  out packets  out bytes
   42          10      1000          200      20000

drops of networks
  vni  reason   frames  meaning
   42  too-big       3  does not fit

frames for the endpoint itself
  name      number  meaning
  answered       9  ARP
",
        ..Row::default()
    }]);
}

/// Silence is reported without a verdict, and a report from the way with one.
#[test]
fn who_says_nothing_is_told() {
    const QUIET: &str = r#"tunnel_show { endpoint: "10.9.0.1" mac: "m" host_mtu: 1450
      peers { address: "10.9.0.2" idle: 200 unanswered_since: 190 unanswered_packets: 1 }
      peers { address: "10.9.0.3" unanswered_since: 4 unanswered_packets: 3 }
      peers { address: "10.9.0.4" unanswered_since: 60 unanswered_packets: 8 trouble: "nobody\nlistens" trouble_since: 59 } }"#;
    let daemon = Daemon::new();
    let mut client = daemon.start("tunnels @");
    daemon.receive("tunnels");
    daemon.send(&answer(&[QUIET]));
    let ended = client.end();
    let (_, told) = ended.out.split_once("drops\n").unwrap();
    let lines: Vec<&str> = told.lines().skip(3).take(3).collect();
    assert_eq!(
        lines,
        [
            "  10.9.0.2: nothing came back for 3 min 10 s, while 1 frame left for it (traffic may be one-way)",
            "  10.9.0.4: for 59 s, nobody\\nlistens",
            "",
        ],
        "{}",
        ended.out
    );
    let peers = &json_of("tunnels --json @", QUIET)["peers"];
    assert_eq!(peers[0]["unanswered_since_s"], 190);
    assert_eq!(
        (&peers[2]["trouble"], &peers[2]["trouble_since_s"]),
        (&json!("nobody\nlistens"), &json!(59))
    );
    assert_eq!(peers[1]["trouble"], Value::Null);
}

#[test]
fn tunnels_of_a_network_may_be_nothing() {
    check(&[
        Row {
            line: "tunnels 42 @ --all",
            asks: &[&["tunnel_show {vni: 42}"]],
            answers: &[&["tunnel_show { endpoint: \"::2\" mac: \"m\" strict_peers: true host_mtu: 8930 \
                          networks { vni: 42 drops { reason: \"too-big\" count: 0 description: \"d\" } } \
                          control { name: \"echo\" value: 0 description: \"pings\" } }"]],
            out: "\
::2
  link address      m
  ARP, ND, ping     answered by the host, which holds the address
  hosts heard       those that are named (--strict-peers)
  machines          host_mtu=8930 on QEMU's -device virtio-net-pci: larger packets do not reach other hosts

groups joined
  none

peers (in is what came from them)
  none

addresses learnt on them
  none

next hops
  none

networks (in is what came from other hosts)
  vni  in packets  in bytes  out packets  out bytes
   42           0         0            0          0

drops of networks
  vni  reason   frames  meaning
   42  too-big       0  d

frames for the endpoint itself
  name  number  meaning
  echo       0  pings
",
            ..Row::default()
        },
        Row {
            line: "tunnels all @",
            out: "short: tunnels",
            err: "VNI argument not recognized\nhelp: \"all\" is not a number from 0 to 16777215\nerror in command: tunnels\n",
            code: 1,
            ..Row::default()
        },
    ]);
}

#[test]
fn tunnels_for_programs_are_whole() {
    let peer = |address: &str,
                mac: Option<&str>,
                named,
                vni: &[u32],
                idle: Option<u32>,
                counts: [u64; 5]| {
        json!({
            "address": address, "mac": mac, "named": named, "of_neighbours": false, "vni": vni, "idle_s": idle, "in_packets": counts[0],
            "in_bytes": counts[1], "out_packets": counts[2], "out_bytes": counts[3], "drops": counts[4],
            "unanswered_since_s": null, "unanswered_packets": null, "trouble": null, "trouble_since_s": null,
        })
    };
    let expected = json!({
        "endpoint": "10.9.0.1",
        "mac": "52:54:00:00:00:09",
        "answers": true,
        "strict_peers": false,
        "host_mtu": 1450,
        "groups": [{"vni": 42, "address": "230.0.0.42"}, {"vni": 1337, "address": "230.0.5.57"}],
        "peers": [
            peer("10.9.0.2", Some("52:54:00:00:00:08"), true, &[], Some(61), [1, 2, 3, 4, 5]),
            peer("10.9.0.3", None, true, &[42, 1337], None, [0; 5]),
            peer("10.9.0.4", Some("52:54:00:00:00:07"), false, &[], Some(0), [u64::MAX, 0, 0, 0, 0]),
        ],
        "learnt": [{"vni": 42, "mac": "52:54:00:12:34:03", "peer": "10.9.0.2", "age_s": 7}],
        "neighbours": [
            {"address": "10.9.0.254", "mac": "52:54:00:00:00:06", "state": "reachable", "age_s": 3},
            {"address": "10.9.0.3", "mac": null, "state": "asking\u{1b}[2J", "age_s": null},
        ],
        "networks": [{
            "vni": 42, "in_packets": 10, "in_bytes": 1000, "out_packets": 200, "out_bytes": 20000,
            "drops": [
                {"reason": "too-big", "count": 3, "description": "does not fit", "harmless": false},
                {"reason": "no-neighbour", "count": 0, "description": "nobody", "harmless": false},
            ],
        }],
        "control": [
            {"name": "answered", "value": 9, "description": "ARP"},
            {"name": "echo", "value": 0, "description": "pings"},
        ],
    });
    assert_eq!(json_of("tunnels --json @", TUNNEL), expected);
}

const UPLINK: &str = r#"uplink_show {
  kind: "af_xdp" interface: "eth0" mode: "generic" note: "the driver has no XDP" queues: 4 mac: "52:54:00:00:00:09" mtu: 1500 state: "no carrier"
  vlan: 42 vlan_doubt: "a veth hides tags"
  host_mtu: 1450 offloads: "tx-csum" offloads: "rx-csum" in_packets: 10 in_bytes: 1000 out_packets: 200 out_bytes: 20000
  drops { reason: "not-ours" count: 2 description: "somebody else's" } drops { reason: "vxlan-flags" count: 0 description: "flags" }
  counters { name: "tx-full" value: 7 description: "too slow" } counters { name: "rx-invalid" value: 0 description: "nonsense" }
}"#;

#[test]
fn the_uplink_is_a_page() {
    let asks: &[&[&str]] = &[&["uplink_show: true"]];
    let page = "\
eth0
  kind              af_xdp
  mode              generic
  note              the driver has no XDP
  state             no carrier: nobody is at the other end of the cable; nothing leaves this host
  vlan              42; frames of others may be heard: a veth hides tags
  queues            4
  link address      52:54:00:00:00:09
  mtu               1500
  machines          host_mtu=1450 on QEMU's -device virtio-net-pci: larger packets do not reach other hosts
  offloads          tx-csum, rx-csum

traffic
                        packets  bytes
  in, from other hosts       10   1000
  out, to other hosts       200  20000
";
    let few = format!(
        "{page}
counters of port and kernel
  name     number  meaning
  tx-full       7  too slow

drops
  reason    frames  meaning
  not-ours       2  somebody else's
"
    );
    let all = format!(
        "{page}
counters of port and kernel
  name        number  meaning
  tx-full          7  too slow
  rx-invalid       0  nonsense

drops
  reason       frames  meaning
  not-ours          2  somebody else's
  vxlan-flags       0  flags
"
    );
    check(&[
        Row { line: "uplink @", asks, answers: &[&[UPLINK]], out: &few, ..Row::default() },
        Row { line: "uplink --all @", asks, answers: &[&[UPLINK]], out: &all, ..Row::default() },
        Row {
            line: "uplink @",
            asks,
            answers: &[&["uplink_show { kind: \"vhost-user\" interface: \"/up\" mode: \"m\" queues: 1 attached: false }"]],
            out: "\
/up
  kind              vhost-user
  mode              m
  attached          no: the other end of the socket is not there
  vlan              none; frames of others are dropped
  queues            1
  link address\x20\x20\x20\x20\x20\x20
  mtu               0
  machines          host_mtu=0 on QEMU's -device virtio-net-pci: larger packets do not reach other hosts
  offloads          none

traffic
                        packets  bytes
  in, from other hosts        0      0
  out, to other hosts         0      0

counters of port and kernel
  none

drops
  none
",
            ..Row::default()
        },
    ]);
    let expected = json!({
        "kind": "af_xdp",
        "interface": "eth0",
        "mode": "generic",
        "note": "the driver has no XDP",
        "attached": null,
        "queues": 4,
        "mac": "52:54:00:00:00:09",
        "mtu": 1500,
        "state": "no carrier",
        "vlan": 42,
        "vlan_doubt": "a veth hides tags",
        "host_mtu": 1450,
        "offloads": ["tx-csum", "rx-csum"],
        "in_packets": 10,
        "in_bytes": 1000,
        "out_packets": 200,
        "out_bytes": 20000,
        "counters": [
            {"name": "tx-full", "value": 7, "description": "too slow"},
            {"name": "rx-invalid", "value": 0, "description": "nonsense"},
        ],
        "drops": [
            {"reason": "not-ours", "count": 2, "description": "somebody else's", "harmless": false},
            {"reason": "vxlan-flags", "count": 0, "description": "flags", "harmless": false},
        ],
    });
    assert_eq!(json_of("uplink @ --json", UPLINK), expected);
}

#[test]
fn a_host_without_an_uplink_says_so() {
    for (line, asked, command) in [
        ("tunnels @", "tunnel_show {}", "tunnels"),
        ("uplink --json @", "uplink_show: true", "uplink"),
    ] {
        let err = format!(
            "no uplink: networks end at this host\nhelp: start butterflyd with --uplink to let them span hosts\n\
             error in command: {command}\n"
        );
        check(&[Row { line, asks: &[&[asked]], err: &err, code: 1, ..Row::default() }]);
    }
}

#[test]
fn peers_are_named_listed_and_taken_back() {
    const LIST: &str =
        "peer_list { address: \"10.9.0.2\" } peer_list { address: \"2001:db8::2\" vni: 1337 }";
    check(&[
        Row {
            line: "peer add 10.9.0.2 @",
            asks: &[&["peer_add {address: \"10.9.0.2\"}"]],
            ..Row::default()
        },
        Row {
            line: "peer add ::2 ::3 --vni 42 @",
            asks: &[&[
                "peer_add {address: \"::2\" vni: 42}",
                "peer_add {address: \"::3\" vni: 42}",
            ]],
            ..Row::default()
        },
        Row {
            line: "peer del 10.9.0.2 --vni=0 @",
            asks: &[&["peer_del {address: \"10.9.0.2\" vni: 0}"]],
            ..Row::default()
        },
        Row {
            line: "peer del x 10.9.0.2 @",
            asks: &[&["peer_del {address: \"x\"}", "peer_del {address: \"10.9.0.2\"}"]],
            answers: &[&[refused!("Bad IP format"), ""]],
            err: "error in response\ndescription: Bad IP format\nerror in command: peer\n",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "peer add ::2 --vni x @",
            out: "short: peer add",
            err: "--vni argument not recognized\nhelp: \"x\" is not a number from 0 to 16777215\nerror in command: peer\n",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "peer @",
            out: "help: peer",
            err: "invalid peer subcommand -e\nerror in command: peer\n",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "peer list @",
            asks: &[&["peer_list: true"]],
            answers: &[&[LIST]],
            out: "network  peer\n    all  10.9.0.2\n   1337  2001:db8::2\n",
            ..Row::default()
        },
        Row {
            line: "peer list @",
            asks: &[&["peer_list: true"]],
            out: "network  peer\n",
            ..Row::default()
        },
        Row {
            line: "peer list @ --json",
            asks: &[&["peer_list: true"]],
            out: "{\n  \"peers\": []\n}\n",
            ..Row::default()
        },
    ]);
    let expected = json!({"peers": [{"address": "10.9.0.2", "vni": null}, {"address": "2001:db8::2", "vni": 1337}]});
    assert_eq!(json_of("peer list --json @", LIST), expected);
}

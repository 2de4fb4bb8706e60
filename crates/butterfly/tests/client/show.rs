//! The pages for the person on call, and the same for programs.

use crate::support::{Daemon, Row, answer, check};
use std::time::{SystemTime, UNIX_EPOCH};

const SHOWN: &str = r#"nic_show {
  id: "vm-1" mac: "52:54:00:12:34:01" vni: 42 path: "/run/qemu-vhost-vm-1" type: VHOST_USER_SERVER role: "server"
  attached: true attached_since: SINCE attach_count: 3
  features_offered: "VIRTIO_F_VERSION_1" features_offered: "VIRTIO_NET_F_MRG_RXBUF" features_offered: "VIRTIO_NET_F_CSUM"
  features_negotiated: "VIRTIO_F_VERSION_1" features_negotiated: "VIRTIO_NET_F_MRG_RXBUF"
  features_refused: "VIRTIO_NET_F_CSUM"
  protocol_features: "REPLY_ACK"
  queues { name: "rx" size: 1024 running: true enabled: true next_avail: 65535 used: 65535 guest_avail: 3 broken: true }
  queues { name: "tx" size: 256 running: true enabled: false next_avail: 7 used: 7 guest_avail: 32775 pending: 256 packed: true }
  queues { name: "aux" running: false trouble: "no call\033[2J" }
  memory_regions { guest_addr: 0 size: 536870912 page_size: 4096 }
  memory_regions { guest_addr: 4294967296 size: 1073741824 page_size: 2097152 }
  last_detach_reason: "the virtual machine closed the connection" last_detach_time: 1000000000
  trouble: "no socket" peer_pid: 4711 others_waiting: true migrating: true flooded: 5 learn_refused: 6 announced: 7 host_mtu: 1450 sessions: 9
  limits { in { bits: 1000000000 burst_bytes: 500 packets: 100000 } waits: 12 }
  interrupts { costly: 2 confirmed: 1 apart: true worst_ns: 94000000 }
  first_touches { pages: 70000 rests: 3 stalls: 1 stalled_us: 306000 }
  in_packets: 10 in_bytes: 1000 out_packets: 200 out_bytes: 20000
  drops { reason: "ring-full" count: 12 description: "the receiver took nothing" }
  drops { reason: "spoofed-mac" count: 0 description: "the source MAC is not the vnic's" }
  drops { reason: "bad-chain" count: 1 description: "descriptors\033[2J" }
  bypass_filtering: false ip_anti_spoof: true ip: "10.0.0.1" ip: "::1" security_group: "web"
}"#;

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn nic_show_is_a_page() {
    // Half a minute from the next change of the text.
    let since = now() - 7_290;
    let shown = SHOWN.replace("SINCE", &since.to_string());
    for all in [false, true] {
        let daemon = Daemon::new();
        let mut client =
            daemon.start(if all { "nic show vm-1 @ --all" } else { "nic show vm-1 @" });
        daemon.receive("nic show");
        daemon.send(&answer(&[&shown]));
        let ended = client.end();
        assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)));
        let (before, after) = ended.out.split_once("  attached          since ").unwrap();
        assert_eq!(
            before,
            "vm-1
  mac               52:54:00:12:34:01
  vni               42
  addresses         10.0.0.1, ::1
  security groups   web
  filtering         on, with ARP anti-spoofing
  limit in          1G bits/s (500 bytes at once), 100k packets/s; the machine's queue had to wait 12 times
  type              VHOST_USER_SERVER
  socket            /run/qemu-vhost-vm-1
  role              server: QEMU connects to it
  mtu               host_mtu=1450 on QEMU's -device virtio-net-pci: larger packets do not reach other hosts
"
        );
        let (attached, after) = after.split_once('\n').unwrap();
        assert!(attached.ends_with(" UTC (2 h 1 min ago)"), "{attached}");
        let after = after
            .strip_prefix(
                "  trouble           no socket
  machine           process 4711
  migrating         yes: writes to its memory are logged
  next              another machine has connected and gets its turn when this one leaves
",
            )
            .unwrap();
        let (detached, after) = after.split_once("\n\n").unwrap();
        let costs = "  interrupts        slow (up to 94000 us): a thread of their own sends them
  first touches     70000 pages of its memory were touched by the switch before anybody else, so it had to rest 3 times; \
                    the switch slept 306 ms for some: its memory back end needs prealloc=on
";
        let detached = detached.strip_prefix(costs).unwrap_or_else(|| panic!("{detached}"));
        assert!(
            detached.starts_with(
                "  times attached    3\n  last detach       2001-09-09 01:46:40 UTC ("
            ),
            "{detached}"
        );
        assert!(
            detached.ends_with(" ago): the virtual machine closed the connection"),
            "{detached}"
        );

        let offered =
            "  offered           VIRTIO_F_VERSION_1 VIRTIO_NET_F_MRG_RXBUF VIRTIO_NET_F_CSUM\n";
        let unmoved = "  spoofed-mac       0  the source MAC is not the vnic's\n";
        assert_eq!(
            after,
            format!(
                "features
{}  negotiated        VIRTIO_F_VERSION_1 VIRTIO_NET_F_MRG_RXBUF
  refused           VIRTIO_NET_F_CSUM
  protocol          REPLY_ACK

queues (rx is what the virtual machine receives from)
  name         size  running  enabled  broken  next avail   used  guest avail  pending
  rx           1024  yes      yes      yes          65535  65535            3        4
  tx (packed)   256  yes      no       no               7      7        32775      256
  aux             -  no       no       no               -      -            -        -
  rx is broken: its index was impossible; it rests until the guest sets it up anew
  aux does not run: no call\\u{{1b}}[2J

memory
  guest address          size  pages
  0x0000000000000000  512 MiB  4 KiB
  0x0000000100000000    1 GiB  2 MiB

traffic
                                packets  bytes
  in, from the virtual machine       10   1000
  out, to the virtual machine       200  20000
  5 frames from the virtual machine went to several receivers
  6 times a source address was not learnt, as a bound was reached
  7 frames said for the virtual machine where it is now, as after a live migration

drops
  reason     {pad}frames  meaning
  ring-full  {pad}    12  the receiver took nothing
{}  bad-chain  {pad}     1  descriptors\\u{{1b}}[2J
",
                if all { offered } else { "" },
                if all { unmoved } else { "" },
                pad = if all { "  " } else { "" },
            )
        );
    }
}

#[test]
fn nic_show_of_a_vnic_without_a_machine() {
    check(&[Row {
        line: "nic show a @",
        asks: &[&["nic_show: \"a\""]],
        answers: &[&[
            "nic_show { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 7 type: VHOST_USER_CLIENT role: \"client\" path: \"/p\" \
                      bypass_filtering: true }",
        ]],
        out: "a
  mac               52:54:00:00:00:01
  vni               7
  addresses         none
  security groups   none
  filtering         bypassed
  type              VHOST_USER_CLIENT
  socket            /p
  role              client: QEMU owns it
  attached          no virtual machine
  times attached    0
  last detach       never

features
  negotiated        none
  refused           none
  protocol          none

queues (rx is what the virtual machine receives from)
  none

memory
  none

traffic
                                packets  bytes
  in, from the virtual machine        0      0
  out, to the virtual machine         0      0

drops
  none
",
        ..Row::default()
    }]);
}

#[test]
fn nic_show_for_programs() {
    let daemon = Daemon::new();
    let mut client = daemon.start("nic show vm-1 --json @");
    daemon.receive("nic show");
    daemon.send(&answer(&[&SHOWN.replace("SINCE", "1700000000")]));
    let ended = client.end();
    assert_eq!((ended.err.as_str(), ended.code), ("", Some(0)));
    let mut expected = serde_json::json!({
        "id": "vm-1",
        "mac": "52:54:00:12:34:01",
        "vni": 42,
        "ip": ["10.0.0.1", "::1"],
        "prefix": [],
        "prefix_unrouted": [],
        "security_group": ["web"],
        "ip_anti_spoof": true,
        "bypass_filtering": false,
        "forwards": false,
        "shared_ip": false,
        "type": "VHOST_USER_SERVER",
        "path": "/run/qemu-vhost-vm-1",
        "role": "server",
        "attached": true,
        "attached_since": "2023-11-14T22:13:20Z",
        "attached_since_s": 1_700_000_000,
        "peer_pid": 4711,
        "migrating": true,
        "others_waiting": true,
        "trouble": "no socket",
        "attach_count": 3,
        "last_detach_reason": "the virtual machine closed the connection",
        "last_detach_time": "2001-09-09T01:46:40Z",
        "last_detach_time_s": 1_000_000_000,
        "features_offered": ["VIRTIO_F_VERSION_1", "VIRTIO_NET_F_MRG_RXBUF", "VIRTIO_NET_F_CSUM"],
        "features_negotiated": ["VIRTIO_F_VERSION_1", "VIRTIO_NET_F_MRG_RXBUF"],
        "features_refused": ["VIRTIO_NET_F_CSUM"],
        "protocol_features": ["REPLY_ACK"],
        "queues": [
            {"name": "rx", "pair": 0, "size": 1024, "running": true, "enabled": true, "next_avail": 65535, "used": 65535,
             "guest_avail": 3, "pending": 4, "packed": false, "broken": true, "trouble": null},
            {"name": "tx", "pair": 0, "size": 256, "running": true, "enabled": false, "next_avail": 7, "used": 7,
             "guest_avail": 32775, "pending": 256, "packed": true, "broken": false, "trouble": null},
            {"name": "aux", "pair": 0, "size": null, "running": false, "enabled": false, "next_avail": null, "used": null,
             "guest_avail": null, "pending": null, "packed": false, "broken": false, "trouble": "no call\u{1b}[2J"},
        ],
        "memory_regions": [
            {"guest_addr": 0, "size": 536_870_912, "page_size": 4096},
            {"guest_addr": 4_294_967_296u64, "size": 1_073_741_824, "page_size": 2_097_152},
        ],
        "in_packets": 10,
        "in_bytes": 1000,
        "out_packets": 200,
        "out_bytes": 20000,
        "flooded": 5,
        "learn_refused": 6,
        "announced": 7,
        "passed_on": 0,
        "sessions": 9,
        "host_mtu": 1450,
        "packet_trace": null,
        "drops": [
            {"reason": "ring-full", "count": 12, "description": "the receiver took nothing", "harmless": false},
            {"reason": "spoofed-mac", "count": 0, "description": "the source MAC is not the vnic's", "harmless": false},
            {"reason": "bad-chain", "count": 1, "description": "descriptors\u{1b}[2J", "harmless": false},
        ],
    });
    expected["router"] = false.into();
    expected["limits"] = serde_json::json!({
        "in": {"bits": 1_000_000_000, "packets": 100_000, "burst_bytes": 500, "burst_packets": 0},
        "out": null,
    });
    expected["limit_waits"] = 12.into();
    expected["state"] = "trouble".into();
    expected["missing_groups"] = serde_json::json!([]);
    for absent in ["waits_for", "held", "held_for_s"] {
        expected[absent] = serde_json::Value::Null;
    }
    // As many as the macro can take are above.
    for absent in ["mirror", "netns", "interface_refused", "pings"] {
        expected[absent] = serde_json::Value::Null;
    }
    expected["mirrored_by"] = serde_json::json!([]);
    expected["interrupts"] =
        serde_json::json!({ "costly": 2, "confirmed": 1, "apart": true, "worst_ns": 94_000_000 });
    expected["first_touches"] =
        serde_json::json!({ "pages": 70_000, "rests": 3, "stalls": 1, "stalled_us": 306_000 });
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ended.out).unwrap(), expected);
}

const FDB: &str = "fdb_list { vni: 42 mac: \"52:54:00:12:34:01\" nic_id: \"vm-1\" kind: STATIC } \
                   fdb_list { vni: 1337 mac: \"52:54:00:12:34:02\" nic_id: \"a\" kind: LEARNT age: 61 } \
                   fdb_list { vni: 1337 mac: \"52:54:00:12:34:03\" kind: LEARNT age: 2 peer: \"10.9.0.2\" }";

#[test]
fn fdb() {
    let asks: &[&[&str]] = &[&["fdb_list {}"]];
    check(&[
        Row {
            line: "fdb @",
            asks,
            answers: &[&[FDB]],
            out: "\
\x20vni  mac                nic   peer      kind    last seen
  42  52:54:00:12:34:01  vm-1            static          -
1337  52:54:00:12:34:02  a               learnt  1 min 1 s
1337  52:54:00:12:34:03        10.9.0.2  learnt        2 s
",
            ..Row::default()
        },
        Row {
            line: "fdb 42 @",
            asks: &[&["fdb_list {vni: 42}"]],
            out: "vni  mac  nic  peer  kind  last seen\n",
            ..Row::default()
        },
        Row { line: "fdb --json @", asks, out: "{\n  \"entries\": []\n}\n", ..Row::default() },
        Row {
            line: "fdb all @",
            out: "short: fdb",
            err: "VNI argument not recognized\nhelp: \"all\" is not a number from 0 to 16777215\nerror in command: fdb\n",
            code: 1,
            ..Row::default()
        },
    ]);
    let daemon = Daemon::new();
    let mut client = daemon.start("fdb @ --json");
    daemon.receive("fdb");
    daemon.send(&answer(&[FDB]));
    let expected = serde_json::json!({"entries": [
        {"vni": 42, "mac": "52:54:00:12:34:01", "nic_id": "vm-1", "peer": null, "kind": "static", "age_s": null},
        {"vni": 1337, "mac": "52:54:00:12:34:02", "nic_id": "a", "peer": null, "kind": "learnt", "age_s": 61},
        {"vni": 1337, "mac": "52:54:00:12:34:03", "nic_id": null, "peer": "10.9.0.2", "kind": "learnt", "age_s": 2},
    ]});
    assert_eq!(serde_json::from_str::<serde_json::Value>(&client.end().out).unwrap(), expected);
}

const WORKERS: &str = "worker_list { id: 0 core: 1 polling: true busy_cycles: 18446744073709551615 packets: 1000 batches: 100 sleeps: 5 \
                       idle_polls: 9 batch_sizes: 40 batch_sizes: 0 batch_sizes: 10 batch_sizes: 0 batch_sizes: 50 active_rings: 2 \
                       load: 437 moves: 3 rings { nic_id: \"vm-2\" pair: 0 } rings { nic_id: \"vm-1\" pair: 0 } \
                       rings { nic_id: \"vm-1\" pair: 2 } } \
                       worker_list { id: 1 busy_cycles: 3000000000 sleeps: 7 tsc_hz: 2000000000 rings { nic_id: \"vm-1\" pair: 1 } \
                       uplink_queues: 0 uplink_queues: 2 }";

#[test]
fn workers() {
    let asks: &[&[&str]] = &[&["worker_list: true"]];
    check(&[Row {
        line: "workers @",
        asks,
        answers: &[&[WORKERS]],
        out: "\
worker  core  idle    load %  rings  polled  moves  packets  batches  per batch           busy cycles           per packet  busy s  sleeps  idle polls
     0     1  polls     43.7      3       2      3     1000      100       10.0  18446744073709551615  18446744073709552.0       -       5           9
     1   any  sleeps     0.0      3       0      0        0        0          -            3000000000                    -   1.500       7           0

batches of worker 0 by size
  frames  batches
       1       40
     3-4       10
    9-16       50

serves
  worker  nic           pairs
       0  vm-1          0,2
       0  vm-2          0
       1  vm-1          1
       1  (the uplink)  0,2
",
        ..Row::default()
    }]);
    let daemon = Daemon::new();
    let mut client = daemon.start("workers --json @");
    daemon.receive("workers");
    daemon.send(&answer(&[WORKERS]));
    let expected = serde_json::json!({"workers": [
        {"id": 0, "core": 1, "polling": true, "busy_cycles": u64::MAX, "packets": 1000, "batches": 100, "sleeps": 5, "idle_polls": 9,
         "batch_sizes": [40, 0, 10, 0, 50], "tsc_hz": null, "active_rings": 2, "load": 437, "moves": 3,
         "rings": [{"nic_id": "vm-2", "pair": 0}, {"nic_id": "vm-1", "pair": 0}, {"nic_id": "vm-1", "pair": 2}],
         "uplink_queues": []},
        {"id": 1, "core": null, "polling": false, "busy_cycles": 3_000_000_000u64, "packets": 0, "batches": 0, "sleeps": 7, "idle_polls": 0,
         "batch_sizes": [], "tsc_hz": 2_000_000_000u64, "active_rings": null, "load": null, "moves": null,
         "rings": [{"nic_id": "vm-1", "pair": 1}], "uplink_queues": [0, 2]},
    ]});
    assert_eq!(serde_json::from_str::<serde_json::Value>(&client.end().out).unwrap(), expected);
}

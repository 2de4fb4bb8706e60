//! Pages that show much on little room: `nic list --wide`, `sg show`, `show`.

use crate::refused;
use crate::support::{Daemon, Row, answer, check};
use serde_json::{Value, json};

const NICS: [&str; 3] = [
    "nic_show { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: VHOST_USER_SERVER attached: true ip: \"10.0.0.1\" ip: \"fd00::1\" \
     security_group: \"web\" in_packets: 7 out_packets: 8 drops { reason: \"r\" count: 3 } drops { reason: \"s\" count: 1 } drops { reason: \"rarp\" count: 70 harmless: true } }",
    "nic_show { id: \"b\" mac: \"52:54:00:00:00:02\" vni: 42 type: TAP bypass_filtering: true trouble: \"no such\\tnetns\" }",
    "nic_show { id: \"c\" mac: \"52:54:00:00:00:03\" vni: 7 type: VHOST_USER_CLIENT security_group: \"web\" \
     security_group: \"db\" missing_group: \"db\" }",
];

const ASKS: [&[&str]; 2] = [
    &["nic_list: true"],
    &["nic_show: \"a\"", "nic_show: \"b\"", "nic_show: \"gone\"", "nic_show: \"c\""],
];
const LIST: &[&str] = &["nic_list: \"a\" nic_list: \"b\" nic_list: \"gone\" nic_list: \"c\""];

/// One that goes while it is asked about is left out.
const SHOWN: [&str; 4] = [NICS[0], NICS[1], refused!("NIC: gone not found"), NICS[2]];

const TABLE: &str = "\
id  vni  mac                addresses         groups        type    state     attached  in  out  drops  trouble
a    42  52:54:00:00:00:01  10.0.0.1,fd00::1  web           server  attached  -          7    8      4  drops in the last minute: ring-full, late
b    42  52:54:00:00:00:02  -                 (unfiltered)  tap     trouble   -          0    0      0  no such\\tnetns
c     7  52:54:00:00:00:03  -                 web,db        client  detached  -          0    0      0  no such security group: db
";

/// A vnic that is held is in trouble, and the state of the daemon comes before others.
#[test]
fn what_is_held_is_told() {
    let daemon = Daemon::new();
    let mut client = daemon.start("show @");
    daemon.receive("health");
    let health = "app_health { start_date: 5 current_date: 9 state_dir: \"/s\" store_trouble: \"w\" \
                  store_layout: 1 newest_layout: 2 degraded: \"w\" degraded_for_s: 90 uplink_held: \"u\" uplink_held_for_s: 30 \
                  holder_pid: 77 holder_version: \"1.2\" holder_start_date: 6 holder_gone: true \
                  not_listening: \"tcp://192.0.2.1:9999\" not_listening: \"metrics on 192.0.2.1:9998\" }";
    daemon.send(&answer(&[health]));
    daemon.receive("uplink");
    daemon.send(&answer(&PLAIN));
    daemon.receive("drops");
    daemon.send(&answer(&["drop_list { window_ms: 5000 }"]));
    daemon.receive("nic list");
    daemon.send(&answer(&["nic_list: \"a\""]));
    daemon.receive("nic show");
    daemon.send(&answer(&["nic_show { id: \"a\" attached: true held: \"h\" held_for_s: 61 }"]));
    let out = client.end().out;
    for line in [
        "  store             /s, commit 0, layout 1; the release before can go on, until \
         `butterfly upgrade --commit`\n",
        "  holder            process 77, version 1.2, since 1970-01-01 00:00:06 UTC: gone\n",
        "  holder: gone: machines are cut off when the daemon ends: restart it when that is convenient\n",
        "  degraded          w; it is opened in 1 min 30 s\n",
        "  not listened on: tcp://192.0.2.1:9999: `butterfly events` tells why\n",
        "  not listened on: metrics on 192.0.2.1:9998: `butterfly events` tells why\n",
        "  NICs              1: 1 trouble\n",
        "  uplink: its frames are held for 30 s, as u: `butterfly nic release --all`\n",
        "  NIC a: its rings are held for 1 min 1 s, as h: `butterfly nic release`\n",
    ] {
        assert!(out.contains(line), "{line}{out}");
    }
}

#[test]
fn nics_are_a_table_if_asked() {
    check(&[Row {
        line: "nic list --wide @",
        asks: &[ASKS[0], ASKS[1], &["drop_list {}"]],
        answers: &[LIST, &SHOWN, &[DROPS]],
        out: TABLE,
        ..Row::default()
    }]);
    let daemon = Daemon::new();
    let mut client = daemon.start("nic list --wide --json @");
    daemon.receive("nic list");
    daemon.send(&answer(&["nic_list: \"a\""]));
    daemon.receive("nic show");
    daemon.send(&answer(&[NICS[0]]));
    daemon.receive("drops");
    daemon.send(&answer(&[DROPS]));
    let found: Value = serde_json::from_str(&client.end().out).unwrap();
    assert_eq!(found["nics"][0]["trouble"], "drops in the last minute: ring-full, late");
    assert_eq!(
        (&found["nics"][0]["id"], &found["nics"][0]["in_packets"]),
        (&json!("a"), &json!(7))
    );
}

#[test]
fn nics_are_a_table_on_a_terminal() {
    let daemon = Daemon::new();
    let command = format!("{} nic list -e {}", env!("CARGO_BIN_EXE_butterfly"), daemon.endpoint());
    let client = std::process::Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("BUTTERFLY_CONFIG", "/dev/null")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    daemon.receive("nic list");
    daemon.send(&answer(LIST));
    daemon.receive("nic show");
    daemon.send(&answer(&SHOWN));
    daemon.receive("drops");
    daemon.send(&answer(&[DROPS]));
    let output = client.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).replace('\r', ""), TABLE);
}

const GROUP: [&str; 1] = [
    "sg_rule_stats { rule { direction: INBOUND protocol: 6 port_start: 443 port_end: 443 cidr { address: \"0.0.0.0\" mask_size: 0 } } \
     sessions: 12 } sg_rule_stats { rule { direction: OUTBOUND protocol: -1 security_group: \"db\" } sessions: 0 }",
];
const USERS: [&str; 3] = [
    "sg_member_list: \"10.0.0.1\" sg_member_list: \"fd00::1\"",
    "nic_details { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 1 security_group: \"web\" } \
     nic_details { id: \"b\" mac: \"52:54:00:00:00:02\" vni: 1 security_group: \"webs\" }",
    "sg_details { id: \"db\" rule { direction: INBOUND protocol: 6 port_start: 1 port_end: 2 security_group: \"web\" } } \
     sg_details { id: \"web\" }",
];

#[test]
fn a_group_is_shown_in_words() {
    let asks: &[&[&str]] = &[
        &["sg_rule_stats: \"web\""],
        &["sg_member_list: \"web\"", "nic_details: \"\"", "sg_details: \"\""],
    ];
    check(&[
        Row {
            line: "sg show web @",
            asks,
            answers: &[&GROUP, &USERS],
            out: "\
web
  members           10.0.0.1, fd00::1
  used by NICs      a
  in rules of       db

allows
  rule                               sessions  hash
  tcp 443 in from 0.0.0.0/0                12  e216b22dcbb15182
  any protocol out to members of db         0  71835a23d04289fb
",
            ..Row::default()
        },
        Row {
            line: "sg show web @",
            asks,
            out: "web\n  members           none\n  used by NICs      none\n  in rules of       none\n\nallows\n  nothing: it has no rule\n",
            ..Row::default()
        },
        Row {
            line: "sg show x @",
            asks: &[&["sg_rule_stats: \"x\""]],
            answers: &[&[refused!("Security Group not found")]],
            err: "error in response\ndescription: Security Group not found\nerror in command: sg\n",
            code: 1,
            ..Row::default()
        },
    ]);
}

const HEALTH: &str = "app_health { version: \"1.2.3\" start_date: 1000000000 current_date: 1000003661 request_counter: 9 nics: 3 \
                      security_groups: 2 }";
const PLAIN: [&str; 3] = ["", "", "session_table { capacity: 1000 used: 7 }"];
const UPLINK: [&str; 3] = [
    "uplink_show { kind: \"interface\" interface: \"eth1\" mode: \"af_xdp\" mtu: 1600 state: \"no carrier\" }",
    "tunnel_show { endpoint: \"10.9.0.1\" peers { address: \"10.9.0.2\" } networks { vni: 42 } networks { vni: 7 } }",
    "session_table { capacity: 1000 used: 950 }",
];
const DROPS: &str = "drop_list { window_ms: 5000 place { kind: NIC nic_id: \"a\" vni: 42 drop { reason: \"ring-full\" count: 9 recent: 3 } \
                     drop { reason: \"late\" count: 1 recent: 0 last_ms: 59999 } drop { reason: \"old\" count: 9 recent: 0 last_ms: 60000 } drop { reason: \"rarp\" count: 9 recent: 9 } } \
                     reason { name: \"rarp\" harmless: true } place { kind: UPLINK drop { reason: \"bad-vxlan\" count: 5 recent: 5 } } }";

#[test]
fn a_host_is_on_one_screen() {
    let first: &[&[&str]] = &[
        &["app_health: true"],
        &["uplink_show: true", "tunnel_show {}", "session_table: true"],
        &["drop_list {}"],
    ];
    let quiet = [first, &[&["nic_list: true"]]].concat();
    let busy = [first, &ASKS].concat();
    check(&[
        Row {
            line: "show @",
            asks: &quiet,
            answers: &[&[HEALTH], &PLAIN, &["drop_list { window_ms: 5000 }"], &[""]],
            out: "\
butterflyd 1.2.3
  running           1 h 1 min, since 2001-09-09 01:46:40 UTC
  uplink            none: networks end at this host
  tunnels           none
  NICs              0
  security groups   2
  sessions          7 of 1000

wrong now
  nothing

dropped in the last minute
  nothing
",
            ..Row::default()
        },
        Row {
            line: "show @",
            asks: &quiet,
            answers: &[
                &["app_health { version: \"1\" start_date: 0 current_date: 0 open_endpoint: \"tcp://0.0.0.0:9999\" reload_date: 1000000000 }"],
                &PLAIN,
                &["drop_list { window_ms: 5000 }"],
                &[""],
            ],
            out: "\
butterflyd 1
  running           0 s, since 1970-01-01 00:00:00 UTC
  API               tcp://0.0.0.0:9999 has no key: whoever reaches it commands the switch (butterflyd -k, or -e)
  configuration     read again 2001-09-09 01:46:40 UTC
  uplink            none: networks end at this host
  tunnels           none
  NICs              0
  security groups   0
  sessions          7 of 1000

wrong now
  nothing

dropped in the last minute
  nothing
",
            ..Row::default()
        },
        Row {
            line: "show @",
            asks: &quiet,
            answers: &[
                &["app_health { version: \"1\" start_date: 0 current_date: 0 service_start_date: 1000000000 restarts: 2 resumed: \"took over 3 vnics\" stood_still_ms: 210 }"],
                &PLAIN,
                &["drop_list { window_ms: 5000 }"],
                &[""],
            ],
            out: "\
butterflyd 1
  running           0 s, since 1970-01-01 00:00:00 UTC
  service           since 2001-09-09 01:46:40 UTC, restarted 2 times; took over 3 vnics
  uplink            none: networks end at this host
  tunnels           none
  NICs              0
  security groups   0
  sessions          7 of 1000

wrong now
  nothing

dropped in the last minute
  nothing
",
            ..Row::default()
        },
        Row {
            line: "show @",
            asks: &busy,
            answers: &[&[HEALTH], &UPLINK, &[DROPS], LIST, &SHOWN],
            out: "\
butterflyd 1.2.3
  running           1 h 1 min, since 2001-09-09 01:46:40 UTC
  uplink            eth1 (interface), no carrier, mtu 1600
  tunnels           10.9.0.1, peers 1, networks 2
  NICs              3: 1 trouble, 1 detached, 1 attached
  security groups   2
  sessions          950 of 1000

wrong now
  uplink eth1: no carrier, nothing leaves this host: `butterfly uplink`
  NIC b: no such\\tnetns
  NIC c: no such security group: db
  sessions: 950 of 1000 are in use: `butterfly sessions`, `butterflyd --sessions`

dropped in the last minute
  uplink: bad-vxlan: 5 frames so far, last: not known: `butterfly drops --explain bad-vxlan`
  NIC a: ring-full: 9 frames so far, last: not known: `butterfly drops --explain ring-full`
  NIC a: late: 1 frame so far, last 59.9 s ago: `butterfly drops --explain late`
",
            ..Row::default()
        },
    ]);
}

/// Troubles of all vnics come before those of one, and these before mere hindrances. Refusals by
/// rules are no trouble, and come behind drops that a user misses.
#[test]
fn the_gravest_comes_first() {
    let nic = |id: &str, rest: &str| format!("nic_show {{ id: \"{id}\" mac: \"m\" {rest} }}");
    let nics = [
        nic("a", "vni: 1 missing_group: \"db\" ip: \"10.0.0.1\" ip: \"FD00::1\""),
        nic("b", "vni: 1 trouble: \"down\" ip: \"10.0.0.1\" ip: \"fd00:0::1\""),
        nic("c", "vni: 2 ip: \"10.0.0.1\""),
    ];
    let nics: Vec<&str> = nics.iter().map(String::as_str).collect();
    let tunnel = "tunnel_show { endpoint: \"10.9.0.1\" \
         peers { address: \"10.9.0.2\" idle: 300 unanswered_since: 299 trouble: \"nobody\" trouble_since: 61 } \
         peers { address: \"10.9.0.3\" idle: 59 unanswered_since: 59 } \
         peers { address: \"10.9.0.4\" unanswered_since: 300 } }";
    let drops = "drop_list { place { kind: NIC nic_id: \"a\" drop { reason: \"ingress-denied\" count: 9 recent: 9 } \
         drop { reason: \"ring-full\" count: 1 recent: 1 } } }";
    check(&[Row {
        line: "show @",
        asks: &[
            &["app_health: true"],
            &["uplink_show: true", "tunnel_show {}", "session_table: true"],
            &["drop_list {}"],
            &["nic_list: true"],
            &["nic_show: \"a\"", "nic_show: \"b\"", "nic_show: \"c\""],
        ],
        answers: &[
            &[HEALTH],
            &["", tunnel, "session_table { capacity: 10 used: 10 }"],
            &[drops],
            &["nic_list: \"a\" nic_list: \"b\" nic_list: \"c\""],
            &nics,
        ],
        out: "\
butterflyd 1.2.3
  running           1 h 1 min, since 2001-09-09 01:46:40 UTC
  uplink            none: networks end at this host
  tunnels           10.9.0.1, peers 3 (1 silent though spoken to: `butterfly tunnels`), networks 0
  NICs              3: 1 trouble, 2 detached
  security groups   2
  sessions          10 of 10
  shared addresses  10.0.0.1 (a, b of VNI 1); fd00::1 (a, b of VNI 1)

wrong now
  sessions: 10 of 10 are in use: `butterfly sessions`, `butterflyd --sessions`
  NIC b: down
  peer 10.9.0.2: for 1 min 1 s, nobody
  NIC a: no such security group: db

dropped in the last minute
  NIC a: ring-full: 1 frame so far, last: not known: `butterfly drops --explain ring-full`
  NIC a: ingress-denied: 9 frames so far, last: not known: `butterfly drops --explain ingress-denied`
",
        ..Row::default()
    }]);
}

#[test]
fn groups_and_hosts_are_objects_for_programs() {
    let ask = |line: &str, answers: &[&[&str]]| {
        let daemon = Daemon::new();
        let mut client = daemon.start(&format!("{line} --json @"));
        for responses in answers {
            daemon.receive(line);
            daemon.send(&answer(responses));
        }
        serde_json::from_str::<Value>(&client.end().out).unwrap()
    };
    let group = ask("sg show web", &[&GROUP, &USERS]);
    assert_eq!(
        (&group["id"], &group["nics"], &group["groups"]),
        (&json!("web"), &json!(["a"]), &json!(["db"]))
    );
    assert_eq!(group["rules"][0]["text"], "tcp 443 in from 0.0.0.0/0");
    assert_eq!(group["rules"][0]["sessions"], 12);
    let host = ask("show", &[&[HEALTH], &UPLINK, &[DROPS], LIST, &SHOWN]);
    assert_eq!(
        (&host["version"], &host["uptime_s"], &host["nics"]),
        (&json!("1.2.3"), &json!(3661), &json!(3))
    );
    assert_eq!(host["nics_by_state"], json!({ "attached": 1, "trouble": 1, "detached": 1 }));
    let count = |name: &str| host[name].as_array().unwrap().len();
    assert_eq!((count("troubles"), count("dropped_lately"), count("shared_addresses")), (4, 3, 0));
    assert_eq!(
        (&host["open_endpoint"], &host["uplink"]["state"]),
        (&Value::Null, &json!("no carrier"))
    );
    assert_eq!((&host["not_listening"], &host["holder"]), (&json!([]), &Value::Null));
    for name in ["upgrade_failed", "degraded", "store"] {
        assert!(host.as_object().unwrap().contains_key(name), "docs/operations.md looks at {name}");
    }
    let held =
        HEALTH.replace("nics: 3", "holder_pid: 7 holder_version: \"1\" holder_start_date: 60");
    let host = ask("show", &[&[&held], &PLAIN, &["drop_list {}"], &[""]]);
    let holder = json!({ "pid": 7, "version": "1", "start_date": "1970-01-01T00:01:00Z",
        "start_date_s": 60, "gone": false });
    assert_eq!(host["holder"], holder);
    let open = HEALTH.replace("nics: 3", "open_endpoint: \"tcp://0.0.0.0:9999\"");
    let host = ask("show", &[&[&open], &PLAIN, &["drop_list {}"], &[""]]);
    assert_eq!(host["open_endpoint"], "tcp://0.0.0.0:9999");
}

//! Networks and routers.

use crate::refused;
use crate::support::{Daemon, Row, answer, asked_for, check, in_full};
use serde_json::{Value, json};

const NETWORKS: &str = r#"
    network_list { vni: 42 mtu: 1400 dns: "9.9.9.9" dhcp { lease: 3600
            route { cidr { address: "10.9.0.0" mask_size: 16 } via: "10.0.0.7" } }
        subnet { cidr { address: "10.0.0.0" mask_size: 24 } gateway: "10.0.0.1" }
        subnet { cidr { address: "2001:db8::" mask_size: 64 } } }
    network_list { vni: 1337 public: true }"#;
const ROUTERS: &str = r#"
    router_list { id: "r1" attachment { vni: 42 }
        attachment { vni: 50 address: "10.0.1.7" address: "2001:db8:1::7" }
        attachment { external: "internet" }
        route { cidr { address: "0.0.0.0" mask_size: 0 } via: "10.0.0.8" via: "10.0.0.9" }
        route { cidr { address: "2001:db8:2::" mask_size: 48 } } }
    router_list { id: "r2" }"#;

#[test]
fn networks_are_declared_listed_and_taken_back() {
    let four = r#"subnet { cidr { address: "10.0.0.0" mask_size: 24 } gateway: "10.0.0.1" }"#;
    let both = r#"subnet { cidr { address: "2001:db8::" mask_size: 64 } gateway: "2001:db8::1" }
                  subnet { cidr { address: "10.0.0.0" mask_size: 24 } gateway: "10.0.0.1" }"#;
    let half = r#"subnet { cidr { address: "10.0.0.0" mask_size: 24 } }"#;
    for (options, rest) in [
        ("", String::new()),
        ("--subnet 10.0.0.0/24", half.to_owned()),
        ("--subnet 10.0.0.0/24 --gateway 10.0.0.1", four.to_owned()),
        ("--gateway 10.0.0.1 --subnet 10.0.0.0/24 --mtu 1400", format!("{four} mtu: 1400")),
        ("--subnet 2001:db8::/64 10.0.0.0/24 --gateway 10.0.0.1 2001:db8::1", both.to_owned()),
        (
            "--subnet 2001:db8::/64 --gateway 2001:db8::1 --subnet 10.0.0.0/24 --gateway 10.0.0.1",
            both.to_owned(),
        ),
        ("--subnet 10.0.0.0/24 --gateway 10.0.0.1 --dhcp", format!("{four} dhcp {{ }}")),
        (
            "--subnet 10.0.0.0/24 --gateway 10.0.0.1 --dhcp --dns 9.9.9.9 1.1.1.1 \
             --search example.com --lease 600 --next-server 10.0.0.5 --boot-file pxelinux.0 \
             --dhcp-route 10.9.0.0/16=10.0.0.7 0.0.0.0/0=10.0.0.8",
            format!(
                r#"{four} dns: "9.9.9.9" dns: "1.1.1.1" search: "example.com"
                   dhcp {{ lease: 600 next_server: "10.0.0.5" boot_file: "pxelinux.0"
                       route {{ cidr {{ address: "10.9.0.0" mask_size: 16 }} via: "10.0.0.7" }}
                       route {{ cidr {{ address: "0.0.0.0" mask_size: 0 }} via: "10.0.0.8" }} }}"#
            ),
        ),
    ] {
        let (line, asked) = (
            format!("network add --vni 42 {options} @"),
            format!("network_add {{ vni: 42 {rest} }}"),
        );
        check(&[Row { line: &line, asks: &[&[&asked]], ..Row::default() }]);
    }
    check(&[
        Row { line: "network del --vni 42 @", asks: &[&["network_del: 42"]], ..Row::default() },
        Row {
            line: "network del --vni 42 @",
            asks: &[&["network_del: 42"]],
            answers: &[&[refused!("router r1 is attached to network 42")]],
            err: "error in response\ndescription: router r1 is attached to network 42\nerror in command: network\n",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "network list @",
            asks: &[&["network_list: true"]],
            answers: &[&[NETWORKS]],
            out: " vni  subnet         gateway    mtu  dhcp  public\n  42  10.0.0.0/24    10.0.0.1  1400  yes   -\n  \
                  42  2001:db8::/64  -         1400  yes   -\n1337  -              -            -  -     yes\n",
            ..Row::default()
        },
        Row {
            line: "network list --ids @",
            asks: &[&["network_list: true"]],
            answers: &[&[NETWORKS]],
            out: "42\n1337\n",
            ..Row::default()
        },
        Row {
            line: "network list --json @",
            asks: &[&["network_list: true"]],
            out: "{\n  \"networks\": []\n}\n",
            ..Row::default()
        },
    ]);
    let expected = json!({ "networks": [
        { "vni": 42, "mtu_bytes": 1400, "public": false, "dhcp": { "lease_s": 3600, "dns": ["9.9.9.9"], "search": [],
            "next_server": null, "boot_file": null,
            "routes": [{ "cidr": "10.9.0.0/16", "via": "10.0.0.7" }] }, "subnets": [
            { "cidr": "10.0.0.0/24", "gateway": "10.0.0.1" },
            { "cidr": "2001:db8::/64", "gateway": null },
        ] },
        { "vni": 1337, "mtu_bytes": null, "public": true, "dhcp": null, "subnets": [] },
    ] });
    assert_eq!(printed("network list --json @", NETWORKS), expected);
}

/// The object that a command prints when the daemon answers so.
fn printed(line: &str, response: &str) -> Value {
    let daemon = Daemon::new();
    let mut client = daemon.start(line);
    daemon.receive(line);
    daemon.send(&answer(&[response]));
    serde_json::from_str(&client.end().out).unwrap()
}

/// Nothing is sent of what cannot be meant.
#[test]
fn what_is_no_network_is_refused_by_the_client() {
    for (options, why) in [
        ("--vni 42 --subnet 10.0.0.0", "\"10.0.0.0\" is not a subnet; write 10.0.0.0/24"),
        ("--vni 42 --subnet 10.0.0.7/24", "write 10.0.0.0/24"),
        (
            "--vni 42 --subnet 10.0.0.0/24 --gateway 10.0.1.1",
            "it is in none of the subnets; name its own with --subnet",
        ),
        ("--vni 42 --gateway 10.0.1.1", "--gateway 10.0.1.1: it is in none of the subnets"),
        ("--vni 42 --subnet 10.0.0.0/24 --gateway x", "--gateway x: it is no IP address"),
        (
            "--vni 42 --subnet 10.0.0.0/24 --gateway 10.0.0.1 10.0.0.2",
            "--gateway 10.0.0.2: its subnet has another gateway already, and may have one",
        ),
        ("--vni x", "\"x\" is not a number from 0 to 16777215"),
        ("--vni 42 --mtu x", "\"x\" is not a number of bytes from 68 to 65535"),
        ("--subnet 10.0.0.0/24", "--vni is mandatory"),
        ("--vni 42 --dns 9.9.9.9", "--dns needs --dhcp, which tells it"),
        ("--vni 42 --lease 60", "--lease needs --dhcp"),
        ("--vni 42 --dhcp-route 10.9.0.0/16=10.0.0.7", "--dhcp-route needs --dhcp"),
        ("--vni 42 --dhcp --lease x", "\"x\" is not a number of seconds from 60 to 31536000"),
        ("--vni 42 --dhcp --dhcp-route 10.9.0.0/16", "write CIDR=VIA, as 10.9.0.0/16=10.0.0.7"),
        (
            "--vni 42 --dhcp --dhcp-route 10.9.0.0/16=fd00::7",
            "--dhcp-route: the route 10.9.0.0/16=fd00::7 is not of IPv4",
        ),
    ] {
        let daemon = Daemon::new();
        let line = format!("network add {options} @");
        let ended = daemon.start(&line).end();
        daemon.assert_silent(&line);
        assert!(ended.err.contains(why), "{line}: {}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{line}");
    }
}

/// A list of ids is lines, and an object has more than ids.
#[test]
fn ids_are_no_object() {
    for kind in ["network", "router"] {
        let daemon = Daemon::new();
        let line = format!("{kind} list --ids --json @");
        let ended = daemon.start(&line).end();
        daemon.assert_silent(&line);
        assert!(ended.err.contains("--ids and --json exclude each other"), "{}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{line}");
    }
}

#[test]
fn routers_are_declared_attached_listed_and_taken_back() {
    let row = |line, asks| Row { line, asks, ..Row::default() };
    check(&[
        row("router add r1 @", &[&["router_add { id: \"r1\" }"]]),
        row("router add r1 r2 @", &[&["router_add { id: \"r1\" }", "router_add { id: \"r2\" }"]]),
        row("router del r1 @", &[&["router_del: \"r1\""]]),
        row("router attach r1 --vni 42 @", &[&["router_attach { router: \"r1\" vni: 42 }"]]),
        row(
            "router attach r1 --vni 42 --address 10.0.0.7 ::7 @",
            &[&["router_attach { router: \"r1\" vni: 42 address: \"10.0.0.7\" address: \"::7\" }"]],
        ),
        row("router detach r1 --vni 42 @", &[&["router_detach { router: \"r1\" vni: 42 }"]]),
        Row {
            line: "router attach r --vni 42 @",
            asks: &[&["router_attach { router: \"r\" vni: 42 }"]],
            answers: &[&[refused!("there is no router r")]],
            err: "error in response\ndescription: there is no router r\nerror in command: router\n",
            code: 1,
            ..Row::default()
        },
        Row {
            line: "router list @",
            asks: &[&["router_list: true"]],
            answers: &[&[ROUTERS]],
            out: "router  vni  external  address\nr1       42  -         gateways\n\
                  r1       50  -         10.0.1.7 2001:db8:1::7\n\
                  r1        -  internet  -\nr2        -  -         -\n",
            ..Row::default()
        },
        Row {
            line: "router list --ids @",
            asks: &[&["router_list: true"]],
            answers: &[&[ROUTERS]],
            out: "r1\nr2\n",
            ..Row::default()
        },
        Row {
            line: "router list --json @",
            asks: &[&["router_list: true"]],
            out: "{\n  \"routers\": []\n}\n",
            ..Row::default()
        },
    ]);
    let expected = json!({ "routers": [
        { "id": "r1", "attachments": [
            { "vni": 42, "external": null, "addresses": [] },
            { "vni": 50, "external": null, "addresses": ["10.0.1.7", "2001:db8:1::7"] },
            { "vni": null, "external": "internet", "addresses": [] },
        ], "routes": [
            { "to": "0.0.0.0/0", "via": ["10.0.0.8", "10.0.0.9"] },
            { "to": "2001:db8:2::/48", "via": [] },
        ] },
        { "id": "r2", "attachments": [], "routes": [] },
    ] });
    assert_eq!(printed("router list --json @", ROUTERS), expected);
}

#[test]
fn routes_are_added_listed_and_taken_back() {
    let cidr = |block: &str, rest: &str| {
        let (address, mask_size) = block.split_once('/').unwrap();
        format!("router: \"r1\" cidr {{ address: \"{address}\" mask_size: {mask_size} }} {rest}")
    };
    for (options, route) in [
        ("add r1 --to 10.9.0.0/16 --via 10.0.0.9", cidr("10.9.0.0/16", "via: \"10.0.0.9\"")),
        (
            "add r1 --via 10.0.0.9 10.0.0.8 --to 0.0.0.0/0",
            cidr("0.0.0.0/0", "via: \"10.0.0.9\" via: \"10.0.0.8\""),
        ),
        (
            "add r1 --to 2001:DB8:0::/32 --via FD00::9 --via fd00::8",
            cidr("2001:db8::/32", "via: \"fd00::9\" via: \"fd00::8\""),
        ),
        ("add r1 --to ::/0 --blackhole", cidr("::/0", "")),
        ("del r1 --to 10.9.0.0/16", cidr("10.9.0.0/16", "")),
    ] {
        let kind = options.split(' ').next().unwrap();
        let (line, asked) = (format!("route {options} @"), format!("route_{kind} {{ {route} }}"));
        check(&[Row { line: &line, asks: &[&[&asked]], ..Row::default() }]);
    }
    let table = "router  to               via\nr1      0.0.0.0/0        10.0.0.8 10.0.0.9\n\
                 r1      2001:db8:2::/48  blackhole\n";
    let row = |line, out| Row {
        line,
        asks: &[&["router_list: true"]],
        answers: &[&[ROUTERS]],
        out,
        ..Row::default()
    };
    check(&[
        row("route list @", table),
        row("route list r1 @", table),
        row("route list r2 @", "router  to  via\n"),
        Row {
            err: "there is no router r3: `butterfly router list` has those that there are\nerror in command: route\n",
            code: 1,
            ..row("route list r3 @", "")
        },
        Row {
            line: "route add r --to 10.9.0.0/16 --blackhole @",
            asks: &[&["route_add { router: \"r\" cidr { address: \"10.9.0.0\" mask_size: 16 } }"]],
            answers: &[&[refused!("there is no router r")]],
            err: "error in response\ndescription: there is no router r\nerror in command: route\n",
            code: 1,
            ..Row::default()
        },
    ]);
    let expected = json!({ "routes": [
        { "router": "r1", "to": "0.0.0.0/0", "via": ["10.0.0.8", "10.0.0.9"] },
        { "router": "r1", "to": "2001:db8:2::/48", "via": [] },
    ] });
    assert_eq!(printed("route list --json @", ROUTERS), expected);
}

/// Nothing is sent of what cannot be meant.
#[test]
fn what_is_no_route_is_refused_by_the_client() {
    for (options, why) in [
        (
            "r1 --to 10.9.0.0 --via 10.0.0.9",
            "\"10.9.0.0\" is not a block of addresses; write 10.9.0.0/16",
        ),
        ("r1 --to 10.9.0.1/16 --via 10.0.0.9", "write 10.9.0.0/16"),
        ("r1 --to 10.9.0.0/16 --via fd00::9", "fd00::9 cannot lead to 10.9.0.0/16"),
        ("r1 --to 10.9.0.0/16 --via x", "x"),
        (
            "r1 --to 10.9.0.0/16",
            "a route needs the machines that lead there, --via, or --blackhole",
        ),
        (
            "r1 --to 10.9.0.0/16 --via 10.0.0.9 --blackhole",
            "--via and --blackhole exclude each other",
        ),
        ("r1 --via 10.0.0.9", "--to is mandatory"),
    ] {
        let daemon = Daemon::new();
        let line = format!("route add {options} @");
        let ended = daemon.start(&line).end();
        daemon.assert_silent(&line);
        assert!(ended.err.contains(why), "{line}: {}", ended.err);
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)), "{line}");
    }
}

/// An operator who asks for it learns of changes that changed nothing, or more than was said.
#[test]
fn strict_tells_what_was_probably_not_meant() {
    let end = |command: &str, note: &str| {
        format!(
            "note: {note}\n--strict: it was done, and is a failure because of the note\n\
             error in command: {command}\n"
        )
    };
    for (line, list, answered, asked, note) in [
        (
            "network del --vni 7 --strict @",
            "network_list: true",
            NETWORKS,
            "network_del: 7",
            "network 7 was not declared: nothing changed",
        ),
        (
            "router del r3 --strict @",
            "router_list: true",
            ROUTERS,
            "router_del: \"r3\"",
            "there was no router r3: nothing changed",
        ),
        (
            "router add r1 --strict @",
            "router_list: true",
            ROUTERS,
            "router_add { id: \"r1\" }",
            "router r1 was there and has no routes now: it had 2\nnote: router r1 was there and is detached from all networks now: it was attached to 42, 50, internet",
        ),
        (
            "route del r1 --to 10.9.0.0/16 --strict @",
            "router_list: true",
            ROUTERS,
            "route_del { router: \"r1\" cidr { address: \"10.9.0.0\" mask_size: 16 } }",
            "router r1 had no route to 10.9.0.0/16: nothing changed",
        ),
        (
            "router detach r1 --vni 7 --strict @",
            "router_list: true",
            ROUTERS,
            "router_detach { router: \"r1\" vni: 7 }",
            "router r1 was not attached to network 7: nothing changed",
        ),
    ] {
        let command = line.split(' ').next().unwrap();
        let err = end(command, note);
        let (asks, answers): (&[&[&str]], &[&[&str]]) = (&[&[list], &[asked]], &[&[answered]]);
        check(&[Row { line, asks, answers, err: &err, code: 1, ..Row::default() }]);
    }
    for (line, list, answered, asked) in [
        ("network del --vni 42 --strict @", "network_list: true", NETWORKS, "network_del: 42"),
        ("router add r2 --strict @", "router_list: true", ROUTERS, "router_add { id: \"r2\" }"),
        ("router del r1 --strict @", "router_list: true", ROUTERS, "router_del: \"r1\""),
        (
            "route del r1 --to 0.0.0.0/0 --strict @",
            "router_list: true",
            ROUTERS,
            "route_del { router: \"r1\" cidr { address: \"0.0.0.0\" mask_size: 0 } }",
        ),
    ] {
        let (asks, answers): (&[&[&str]], &[&[&str]]) = (&[&[list], &[asked]], &[&[answered]]);
        check(&[Row { line, asks, answers, ..Row::default() }]);
    }
}

/// Networks and routers come first, as routers need them and vnics must not have their addresses.
#[test]
fn a_dump_has_networks_and_routers_first_and_is_applied() {
    let daemon = Daemon::new();
    let mut client = daemon.start("dump @");
    daemon.receive("dump");
    let nic = "{ id: \"a\" mac: \"52:54:00:00:00:01\" vni: 42 type: TAP }";
    daemon.send(&answer(&[&format!("nic_details {nic}"), "sg_details { id: \"web\" }"]));
    daemon.receive("dump");
    daemon.send(&answer(&[NETWORKS, "", ROUTERS, "", "", "peer_list { address: \"10.9.0.2\" }"]));
    let dump = client.end();
    let kinds: Vec<&str> =
        dump.out.lines().map(str::trim).filter(|line| line.contains("_add {")).collect();
    let expected = [
        "network_add {",
        "network_add {",
        "router_add {",
        "router_add {",
        "nic_add {",
        "sg_add {",
        "peer_add {",
    ];
    assert_eq!(kinds, expected);

    std::fs::write(daemon.path("saved"), dump.out).unwrap();
    let mut client = daemon.start("apply saved @");
    let request = daemon.receive("apply");
    let field =
        |list: &str, name: &str| list.replace(&format!("{name}_list {{"), &format!("{name} {{"));
    let (networks, routers) = (field(NETWORKS, "network"), field(ROUTERS, "router"));
    let state = format!(
        "apply {{ nic {nic} security_group {{ id: \"web\" }} peer {{ address: \"10.9.0.2\" }} \
         prune: false dry_run: false {networks} {routers} }}"
    );
    assert_eq!(asked_for(&request.messages[0]), in_full(&state));
    daemon.send(&answer(&[
        "apply { change { object: NETWORK name: \"42\" what: ADDED text: \"MTU 1400\" } \
         change { object: ROUTER name: \"r1\" what: REMOVED } }",
    ]));
    let ended = client.end();
    let out = "+ network 42: MTU 1400\n- router r1\n1 added, 1 removed\n";
    assert_eq!((ended.out.as_str(), ended.err.as_str(), ended.code), (out, "", Some(0)));
}

/// A router answers for itself, and a network by DHCP. A packet may wait for an answer.
#[test]
fn explanations_name_who_answers() {
    let walk = |steps: &str| {
        let fate = if steps.contains("asks") { "WAITS" } else { "ANSWERED" };
        format!(
            "explain {{ allowed: true vni: 42 walk {{ packet: \"p\" fate: {fate} \
             step {{ stage: \"lookup\" mark: PASS text: \"t\" }} {steps} }} }}"
        )
    };
    for (steps, end) in [
        ("", "answered by the router\n"),
        ("step { stage: \"answer\" mark: PASS text: \"u\" }", "answered by the network\n"),
        (
            "step { stage: \"route\" mark: NOTE text: \"asks\" }",
            "waits for an answer of its next hop\n",
        ),
    ] {
        let daemon = Daemon::new();
        let line = "explain --from a --to 10.0.0.1 --port 1 @";
        let mut client = daemon.start(line);
        daemon.receive(line);
        daemon.send(&answer(&[&walk(steps)]));
        let out = client.end().out;
        assert!(out.ends_with(end), "{out}");
    }
}

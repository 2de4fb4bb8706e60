//! Requests about networks and routers.

use super::host::Host;
use crate::handlers::{keep::encoded, records::object};
use butterfly_control::Desired;
use butterfly_model::SocketDir;
use butterfly_store::{Key, Sort};

const BOTH: &str = "subnet { cidr { address: \"10.0.0.0\" mask_size: 24 } gateway: \"10.0.0.1\" } \
                    subnet { cidr { address: \"fd00::\" mask_size: 64 } gateway: \"fd00::1\" }";
const FOUR: &str = "subnet { cidr { address: \"10.0.1.0\" mask_size: 24 } gateway: \"10.0.1.1\" }";

/// A host where a router joins two networks.
fn host() -> Host {
    let mut host = Host::new();
    host.succeeds(&format!("network_add {{ vni: 42 {BOTH} mtu: 1400 }}"));
    host.succeeds(&format!("network_add {{ vni: 50 {FOUR} }}"));
    host.succeeds("router_add { id: \"r\" attachment { vni: 42 } attachment { vni: 50 } }");
    host.fake().take_calls();
    host
}

fn listed(host: &mut Host) -> String {
    format!("{} {}", host.succeeds("network_list: true"), host.succeeds("router_list: true"))
}

/// Each row: the request, what the data path is asked, the routers that there are then.
#[test]
fn changes_are_made_once_and_listed() {
    let mut host = host();
    let networks = host.succeeds("network_list: true");
    let expected =
        format!("network_list {{ vni: 42 {BOTH} mtu: 1400 }} network_list {{ vni: 50 {FOUR} }}");
    assert_eq!(networks, expected);
    let joined = "router_list { id: \"r\" attachment { vni: 42 } attachment { vni: 50 } }";
    for (request, calls, routers) in [
        // Said again, it changes nothing.
        (format!("network_add {{ vni: 42 {BOTH} mtu: 1400 }}"), vec![], joined),
        ("router_attach { router: \"r\" vni: 42 }".into(), vec![], joined),
        (
            "router_add { id: \"r\" attachment { router: \"r\" vni: 50 } attachment { vni: 42 } }"
                .into(),
            vec![],
            joined,
        ),
        ("router_detach { router: \"r\" vni: 7 }".into(), vec![], joined),
        ("router_del: \"s\"".into(), vec![], joined),
        ("network_del: 7".into(), vec![], joined),
        (
            "router_attach { router: \"r\" vni: 42 address: \"fd00::2\" address: \"10.0.0.2\" }"
                .into(),
            vec!["router r: joins 42 50"],
            "router_list { id: \"r\" attachment { vni: 42 address: \"10.0.0.2\" address: \"fd00::2\" } attachment { vni: 50 } }",
        ),
        (
            "router_detach { router: \"r\" vni: 42 address: \"x\" }".into(),
            vec!["router r: joins 50"],
            "router_list { id: \"r\" attachment { vni: 50 } }",
        ),
        (
            "network_del: 42".into(),
            vec!["network 42: remove"],
            "router_list { id: \"r\" attachment { vni: 50 } }",
        ),
        (
            format!("network_add {{ vni: 50 {FOUR} mtu: 1500 }}"),
            vec!["network 50: declare"],
            "router_list { id: \"r\" attachment { vni: 50 } }",
        ),
        ("router_del: \"r\"".into(), vec!["router r: remove"], ""),
        ("network_del: 50".into(), vec!["network 50: remove"], ""),
    ] {
        assert_eq!(host.succeeds(&request), "", "{request}");
        assert_eq!(host.fake().take_calls(), calls, "{request}");
        assert_eq!(host.succeeds("router_list: true"), routers, "{request}");
    }
    assert_eq!(host.succeeds("network_list: true"), "");
}

#[test]
fn what_is_refused_says_why_and_changes_nothing() {
    let mut host = host();
    host.succeeds("nic_add { id: \"n\" mac: \"02:00:00:00:00:01\" vni: 42 ip: \"10.0.0.9\" }");
    host.fake().take_calls();
    let before = listed(&mut host);
    let subnet = |text: &str| format!("network_add {{ vni: 7 subnet {{ {text} }} }}");
    let block = "cidr { address: \"10.7.0.0\" mask_size: 16 }";
    for (request, description, help) in [
        ("network_add { }".into(), "a network needs its VNI", ""),
        ("network_add { vni: 16777216 }".into(), "VNI 16777216 is out of range", ""),
        ("network_add { vni: 7 mtu: 67 }".into(), "MTU 67 is out of range: 68 to 65535 bytes", ""),
        (subnet(""), "a subnet of network 7 has no block: set cidr", ""),
        (subnet("cidr { address: \"10.7.0.1\" mask_size: 16 }"), "10.7.0.1/16 is an address in a subnet, not the subnet; write 10.7.0.0/16", ""),
        (subnet(&format!("{block} gateway: \"10.8.0.1\"")), "the gateway 10.8.0.1 is not in its subnet 10.7.0.0/16", ""),
        (subnet(&format!("{block} gateway: \"10.7.0.0\"")), "the gateway 10.7.0.0 is not the address of a host", ""),
        (subnet(&format!("{block} gateway: \"x\"")), "\"x\" is not an IP address", ""),
        (format!("network_add {{ vni: 50 {BOTH} }}"), "subnet 10.0.0.0/24 of network 42 overlaps 10.0.0.0/24 of network 50", ""),
        ("network_add { vni: 42 }".into(), "router \"r\" would have no address in network 42", ""),
        ("network_del: 42".into(), "router \"r\" is attached to network 42: detach it first", ""),
        ("router_add { }".into(), "router id \"\" is refused: it is empty", ""),
        ("router_add { id: \"s\" attachment { } }".into(), "an attachment needs the VNI", ""),
        ("router_add { id: \"s\" attachment { router: \"r\" vni: 42 } }".into(), "an attachment of it is of router \"r\"", "leave that out"),
        ("router_add { id: \"s\" attachment { vni: 42 address: \"10.0.0.2\" } attachment { vni: 42 } }".into(), "it is attached to network 42 twice", "with all addresses"),
        ("router_attach { router: \"rr\" vni: 42 }".into(), "there is no router \"rr\"", ""),
        ("router_detach { router: \"x\" vni: 42 }".into(), "there is no router \"x\"", ""),
        ("router_detach { router: \"r\" }".into(), "an attachment needs the VNI", ""),
        ("router_attach { router: \"r\" vni: 7 }".into(), "network 7 is not declared: declare it first, `butterfly network add --vni 7 --subnet CIDR`", ""),
        ("router_attach { router: \"r\" vni: 42 address: \"10.0.0.9\" }".into(), "10.0.0.9 of network 42 belongs to nic \"n\"", ""),
        ("router_attach { router: \"r\" vni: 42 address: \"10.0.0.2\" address: \"10.0.0.3\" }".into(), "10.0.0.2 and 10.0.0.3 are of one family", ""),
        ("nic_update { id: \"n\" ip: \"fd00::1\" }".into(), "fd00::1 of network 42 belongs to router \"r\"", ""),
        ("nic_add { id: \"m\" mac: \"b2:f0:00:00:00:01\" vni: 42 }".into(), "nic \"m\" cannot have the MAC address b2:f0:00:00:00:01", ""),
    ] {
        let request: String = request;
        let (why, more) = host.fails(&request);
        assert!(why.starts_with(description) && more.contains(help), "{request}: {why}; {more}");
        assert_eq!(listed(&mut host), before, "{request}");
        assert_eq!(host.fake().take_calls(), [""; 0], "{request}");
    }
}

const FAR: &str = "cidr { address: \"192.0.2.0\" mask_size: 24 }";

/// Each row: the request, what the data path is asked, the routes of the router then.
#[test]
fn routes_are_added_and_taken_back() {
    let mut host = host();
    let by = |via: &str| format!("route_add {{ router: \"r\" {FAR} {via} }}");
    let route = |via: &str| match via {
        "" => format!(" route {{ {FAR} }}"),
        via => format!(" route {{ {FAR} {via} }}"),
    };
    let two = "via: \"10.0.0.9\" via: \"10.0.1.9\"";
    let (joins, none) = (vec!["router r: joins 42 50"], vec![]);
    for (request, calls, routes) in [
        (by("via: \"10.0.0.9\""), &joins, route("via: \"10.0.0.9\"")),
        (by("via: \"10.0.0.9\""), &none, route("via: \"10.0.0.9\"")),
        (by(two), &joins, route(two)),
        (by(""), &joins, route("")),
        ("router_detach { router: \"r\" vni: 7 }".into(), &none, route("")),
        (
            "route_add { router: \"r\" cidr { address: \"::\" mask_size: 0 } via: \"FD00::9\" }"
                .into(),
            &joins,
            route("") + " route { cidr { address: \"::\" mask_size: 0 } via: \"fd00::9\" }",
        ),
        (
            "route_del { router: \"r\" cidr { address: \"::\" mask_size: 0 } via: \"x\" }".into(),
            &joins,
            route(""),
        ),
        (format!("route_del {{ router: \"r\" {FAR} }}"), &joins, String::new()),
        (format!("route_del {{ router: \"r\" {FAR} }}"), &none, String::new()),
    ] {
        host.succeeds(&request);
        assert_eq!(host.fake().take_calls(), *calls, "{request}");
        let routers = format!(
            "router_list {{ id: \"r\" attachment {{ vni: 42 }} attachment {{ vni: 50 }}{routes} }}"
        );
        assert_eq!(host.succeeds("router_list: true"), routers, "{request}");
    }
}

#[test]
fn what_is_no_route_is_refused() {
    let mut host = host();
    host.succeeds(&format!("route_add {{ router: \"r\" {FAR} via: \"10.0.1.9\" }}"));
    host.fake().take_calls();
    let before = listed(&mut host);
    let add = |rest: &str| format!("route_add {{ router: \"r\" {rest} }}");
    for (request, description, help) in [
        (add(""), "a route needs the block that it leads to: set cidr", ""),
        ("route_del { router: \"r\" }".into(), "a route needs the block", ""),
        (add("cidr { address: \"x\" mask_size: 0 }"), "", ""),
        (
            add("cidr { address: \"10.0.0.0\" mask_size: 33 }"),
            "mask size 33 of 10.0.0.0 is out of range",
            "",
        ),
        (
            add("cidr { address: \"10.0.0.1\" mask_size: 24 }"),
            "10.0.0.1/24 is an address in a block, not the block; write 10.0.0.0/24",
            "",
        ),
        (
            add("cidr { address: \"224.0.0.0\" mask_size: 8 }"),
            "224.0.0.0/8 is no block that a router leads to",
            "",
        ),
        (add(&format!("{FAR} via: \"fd00::9\"")), "fd00::9 cannot lead to 192.0.2.0/24", ""),
        (add(&format!("{FAR} via: \"10.0.0.9\" via: \"10.0.0.9\"")), "10.0.0.9 stands twice", ""),
        (
            add(&format!("{FAR} via: \"10.0.2.9\"")),
            "10.0.2.9, by which router \"r\" leads to 192.0.2.0/24, is in no subnet",
            "",
        ),
        (
            add(&format!("{FAR} via: \"10.0.0.1\"")),
            "10.0.0.1, by which router \"r\" would lead to",
            "",
        ),
        (format!("route_add {{ router: \"rr\" {FAR} }}"), "there is no router \"rr\"", ""),
        (format!("route_del {{ router: \"x\" {FAR} }}"), "there is no router \"x\"", ""),
        (
            "router_detach { router: \"r\" vni: 50 }".into(),
            "10.0.1.9, by which router \"r\" leads",
            "",
        ),
        (
            format!("router_add {{ id: \"s\" route {{ router: \"r\" {FAR} }} }}"),
            "a route of it is of router \"r\"",
            "leave that out",
        ),
        (
            format!("router_add {{ id: \"s\" route {{ {FAR} }} route {{ {FAR} }} }}"),
            "it has a route to 192.0.2.0/24 twice",
            "name the block once",
        ),
    ] {
        let (why, more) = host.fails(&request);
        assert!(why.starts_with(description) && more.contains(help), "{request}: {why}; {more}");
        assert_eq!(listed(&mut host), before, "{request}");
        assert_eq!(host.fake().take_calls(), [""; 0], "{request}");
    }
}

#[test]
fn a_file_declares_networks_and_routers() {
    let mut host = Host::new();
    let state = format!(
        "network {{ vni: 42 {BOTH} }} network {{ vni: 50 {FOUR} }} \
         router {{ id: \"r\" attachment {{ vni: 42 }} attachment {{ vni: 50 }} \
                  route {{ {FAR} via: \"10.0.0.8\" }} }} \
         nic {{ id: \"n\" mac: \"02:00:00:00:00:01\" vni: 42 ip: \"10.0.0.9\" }}"
    );
    let objects = |host: &mut Host, options: &str| -> Vec<String> {
        let response = host.ask(&format!("apply {{ {state} {options} }}"));
        assert!(response.status.status(), "{response}");
        let row = |row: &butterfly_api::proto::apply_res::Change| {
            format!("{:?} {} {:?}: {}", row.object(), row.name(), row.what(), row.text())
        };
        response.apply.change.iter().map(row).collect()
    };
    let all = [
        "NETWORK 42 ADDED: subnet 10.0.0.0/24 gateway 10.0.0.1, subnet fd00::/64 gateway fd00::1",
        "NETWORK 50 ADDED: subnet 10.0.1.0/24 gateway 10.0.1.1",
        "ROUTER r ADDED: network 42, network 50, route 192.0.2.0/24 via 10.0.0.8",
        "NIC n ADDED: MAC 02:00:00:00:00:01, VNI 42, ip 10.0.0.9",
    ];
    assert_eq!(objects(&mut host, "dry_run: true"), all);
    assert_eq!(listed(&mut host), " ");
    assert_eq!(objects(&mut host, ""), all);
    let calls = ["add n", "network 42: declare", "network 50: declare", "router r: joins 42 50"];
    assert_eq!(host.fake().take_calls(), calls);
    assert_eq!(objects(&mut host, "prune: true"), [""; 0]);
    let before = listed(&mut host);
    // A plan that fails on its way takes everything back.
    host.fake().refusals = [Some("no memory")].into();
    let (why, help) = host.fails(
        "apply { prune: true nic { id: \"m\" mac: \"02:00:00:00:00:02\" vni: 42 } \
         network { vni: 42 } }",
    );
    assert!(why.contains("no memory") && help.contains("everything is as it was"), "{why} {help}");
    assert_eq!(listed(&mut host), before);
    host.fake().take_calls();
    let (why, _) = host.fails("apply { router { id: \"r\" attachment { vni: 9 } } }");
    let expected = "network 9 is not declared: declare it first, `butterfly network add --vni 9 --subnet CIDR`";
    assert_eq!(why, expected);
    let (why, _) = host.fails("apply { network { vni: 9 mtu: 1 } }");
    assert!(why.starts_with("network \"9\": MTU 1 is out of range"), "{why}");
    let gone = host.ask(
        "apply { prune: true nic { id: \"n\" mac: \"02:00:00:00:00:01\" vni: 42 ip: \"10.0.0.9\" } }",
    );
    assert!(gone.status.status(), "{gone}");
    assert_eq!(listed(&mut host), " ");
    let calls = ["router r: remove", "network 42: remove", "network 50: remove"];
    assert_eq!(host.fake().take_calls(), calls);
}

fn keys() -> [Key; 3] {
    [(Sort::Network, "42"), (Sort::Network, "50"), (Sort::Router, "r")]
        .map(|(sort, name)| Key { sort, name: name.to_owned() })
}

/// A record, and what a process before left, are read as they were declared.
#[test]
fn what_is_kept_is_read_as_it_was() {
    let mut host = host();
    host.succeeds("router_attach { router: \"r\" vni: 42 address: \"10.0.0.2\" }");
    host.succeeds(&format!(
        "route_add {{ router: \"r\" {FAR} via: \"10.0.0.9\" via: \"10.0.1.9\" }}"
    ));
    host.succeeds("route_add { router: \"r\" cidr { address: \"::\" mask_size: 0 } }");
    let sockets = SocketDir::new("/run/b".into());
    let state: Desired = host.envelope.handler_mut().desired.clone();
    let mut all = butterfly_control::Declaration::default();
    for key in keys() {
        let value = encoded(&key, &state).unwrap();
        let (object, birth) = object(&key, &value, 1, &sockets).unwrap();
        assert_eq!(birth, None);
        all.join(object);
        let other = Key { name: "7".into(), ..key.clone() };
        assert!(self::object(&other, &value, 1, &sockets).unwrap_err().contains("it is called"));
        // A field of a release that is newer may say that less is meant.
        let newer = [&value[..], &[0x98, 0x3f, 1]].concat();
        let why = self::object(&key, &newer, 1, &sockets).unwrap_err();
        assert_eq!(why, "it has fields that this release does not know");
        assert!(self::object(&key, &value[..value.len() - 1], 1, &sockets).is_err(), "half of it");
        assert_eq!(encoded(&other, &state), None);
    }
    let read = Desired::default().with(all, butterfly_control::Unnamed::Stay).unwrap();
    assert_eq!(read.routed(), state.routed());

    let before = listed(&mut host);
    let bytes = host.envelope.handler_mut().declaration_bytes().unwrap();
    assert_eq!(crate::handlers::declared_in(&bytes, &sockets).unwrap(), state);
    let mut successor = Host::new();
    assert!(successor.envelope.handler_mut().take_up_bytes(&bytes).unwrap().is_empty());
    assert_eq!(listed(&mut successor), before);
}

/// DHCP of a network, whole; with the lease that it has if nothing is said.
const LEASES: &str = "dns: \"9.9.9.9\" dns: \"1.1.1.1\" search: \"example.com\" mtu: 1400 dhcp { lease: 600 \
     next_server: \"10.0.0.5\" boot_file: \"pxelinux.0\" \
     route { cidr { address: \"10.9.0.0\" mask_size: 16 } via: \"10.0.0.7\" } }";

#[test]
fn dhcp_is_declared_kept_and_taken_back() {
    let mut host = Host::new();
    let declared = format!("vni: 42 {BOTH} {LEASES}");
    host.succeeds(&format!("network_add {{ {declared} }}"));
    assert_eq!(host.fake().take_calls(), ["network 42: declare"]);
    assert_eq!(host.succeeds("network_list: true"), format!("network_list {{ {declared} }}"));
    // Said again, it changes nothing.
    host.succeeds(&format!("network_add {{ {declared} }}"));
    assert_eq!(host.fake().take_calls(), [""; 0]);
    let key = Key { sort: Sort::Network, name: "42".to_owned() };
    let state: Desired = host.envelope.handler_mut().desired.clone();
    let value = encoded(&key, &state).unwrap();
    let sockets = SocketDir::new("/run/b".into());
    let (object, _) = object(&key, &value, 1, &sockets).unwrap();
    assert_eq!(object.networks.first(), state.routed().networks().next());
    let change = |host: &mut Host, rest: &str| -> Vec<String> {
        let response = host.ask(&format!("apply {{ network {{ vni: 42 {BOTH} {rest} }} }}"));
        assert!(response.status.status(), "{response}");
        response.apply.change.iter().map(|row| row.text().to_owned()).collect()
    };
    assert_eq!(change(&mut host, LEASES), [""; 0]);
    let other =
        ["DHCP lease 600 s dns 9.9.9.9 dns 1.1.1.1 search example.com next server 10.0.0.5 \
                  boot file pxelinux.0 route 10.9.0.0/16=10.0.0.7 -> lease 3600 s"];
    assert_eq!(change(&mut host, "mtu: 1400 dhcp { }"), other);
    assert_eq!(change(&mut host, "mtu: 1400"), ["-DHCP"]);
    assert_eq!(change(&mut host, "mtu: 1400 dhcp { lease: 60 }"), ["+DHCP lease 60 s"]);
    let told = change(&mut host, "dhcp { lease: 60 }");
    assert_eq!(told, ["MTU 1400 -> none"]);
}

#[test]
fn dhcp_that_cannot_be_told_is_refused() {
    let mut host = host();
    let before = listed(&mut host);
    let route = |cidr: &str, via: &str| format!("dhcp {{ route {{ {cidr} via: \"{via}\" }} }}");
    let block = "cidr { address: \"10.9.0.0\" mask_size: 16 }";
    for (rest, why) in [
        (
            format!("{FOUR} dns: \"9.9.9.9\""),
            "name servers and domains of network 7 are told by DHCP: turn it on (--dhcp)",
        ),
        (
            format!("{FOUR} search: \"a.b\""),
            "name servers and domains of network 7 are told by DHCP",
        ),
        ("dhcp { }".into(), "DHCP of network 7 needs an IPv4 subnet with a gateway"),
        (
            "subnet { cidr { address: \"10.0.1.0\" mask_size: 24 } } dhcp { }".into(),
            "DHCP of network 7 needs an IPv4 subnet with a gateway",
        ),
        (
            format!("{FOUR} dhcp {{ lease: 59 }}"),
            "a lease of 59 seconds is out of range: 60 to 31536000",
        ),
        (format!("{FOUR} dns: \"x\" dhcp {{ }}"), "\"x\" is not an IP address"),
        (format!("{FOUR} dns: \"fe80::1\" dhcp {{ }}"), "fe80::1 cannot be a name server"),
        (format!("{FOUR} search: \"a b\" dhcp {{ }}"), "\"a b\" is not a domain"),
        (format!("{FOUR} dhcp {{ next_server: \"0.0.0.0\" }}"), "0.0.0.0 cannot be a next server"),
        (format!("{FOUR} dhcp {{ boot_file: \"a b\" }}"), "\"a b\" is not the name of a boot file"),
        (format!("{FOUR} {}", route("", "10.0.1.7")), "a route has no block: set cidr"),
        (
            format!("{FOUR} {}", route(block, "10.2.0.7")),
            "the route 10.9.0.0/16=10.2.0.7 leads by an address that no machine",
        ),
        (
            format!("{FOUR} {}", route(block, "fd00::7")),
            "the route 10.9.0.0/16=fd00::7 is not of IPv4",
        ),
    ] {
        let request = format!("network_add {{ vni: 7 {rest} }}");
        let (description, _) = host.fails(&request);
        assert!(description.starts_with(why), "{request}: {description}");
        assert_eq!(listed(&mut host), before, "{request}");
    }
}

/// A vnic's prefix is echoed, kept, and told apart where no subnet covers it. A group takes one as
/// a member.
#[test]
fn a_vnic_has_a_prefix() {
    let mut host = Host::new();
    host.succeeds(
        r#"network_add { vni: 42 subnet { cidr { address: "fd00:1::" mask_size: 56 } } }"#,
    );
    let nic = r#"id: "p" mac: "42:00:00:00:00:09" vni: 42"#;
    let prefixes = r#"prefix: "fd00:1:0:7::/64" prefix: "fd00:9::/64""#;
    host.succeeds(&format!("nic_add {{ {nic} {prefixes} }}"));
    assert!(host.succeeds(r#"nic_details: "p""#).contains(prefixes));
    let shown = host.succeeds(r#"nic_show: "p""#);
    assert!(shown.contains(prefixes), "{shown}");
    assert!(shown.contains(r#"prefix_unrouted: "fd00:9::/64""#), "{shown}");
    assert!(!shown.contains(r#"prefix_unrouted: "fd00:1:0:7::/64""#), "{shown}");
    let other = r#"nic_add { id: "q" mac: "42:00:00:00:00:0a" vni: 42 ip: "fd00:1:0:7::9" }"#;
    let (why, _) = host.fails(other);
    assert!(why.contains("the address fd00:1:0:7::9 of nic \"q\""), "{why}");
    let (why, help) = host.fails(&format!("nic_add {{ {nic} prefix: \"10.0.0.0/24\" }}"));
    assert_eq!(why, "Bad NIC format");
    assert!(help.contains("is not an IPv6 prefix of length 64"));
    host.succeeds(r#"nic_update { id: "p" prefix: "" }"#);
    assert!(!host.succeeds(r#"nic_details: "p""#).contains("prefix:"));
    host.succeeds(other);

    host.succeeds(r#"sg_member_add { sg_id: "g" member: "fd00:1:0:7::/64" }"#);
    assert!(host.succeeds(r#"sg_member_list: "g""#).contains("fd00:1:0:7::/64"));
    // In a field of its own: who does not know it keeps the group.
    host.succeeds(r#"sg_member_add { sg_id: "g" member: "fd00:1::7" }"#);
    let details = host.succeeds(r#"sg_details: "g""#);
    let both = r#"member: "fd00:1::7" member_prefix: "fd00:1:0:7::/64""#;
    assert!(details.contains(both), "{details}");
    host.succeeds(&format!(r#"sg_add {{ id: "h" {both} }}"#));
    assert!(host.succeeds(r#"sg_details: "h""#).contains(both));
    host.fails(r#"sg_add { id: "h" member_prefix: "fd00:1::7" }"#);
    host.fails(r#"sg_member_add { sg_id: "g" member: "fd00:1::/56" }"#);
    host.succeeds(r#"sg_member_del { sg_id: "g" member: "fd00:1:0:7::/64" }"#);
    assert!(!host.succeeds(r#"sg_details: "g""#).contains("fd00:1:0:7"));
}

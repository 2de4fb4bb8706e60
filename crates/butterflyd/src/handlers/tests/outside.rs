//! Requests about externals and translations, and wires that this host lacks.

use super::host::Host;
use crate::handlers::{keep::encoded, records::object};
use butterfly_api::Handler;
use butterfly_control::{Declaration, Desired, Unnamed};
use butterfly_datapath::PortsInUse;
use butterfly_model::SocketDir;
use butterfly_store::{Key, Sort};

const NETWORK: &str = "network_add { vni: 42 subnet { cidr { address: \"10.0.0.0\" mask_size: 24 } gateway: \"10.0.0.1\" } }";
const INTERNET: &str =
    "id: \"internet\" uplink: \"eth1\" address: \"192.0.2.7/24\" gateway: \"192.0.2.1\"";
const SNAT: &str = "router: \"r\" kind: SNAT external: \"internet\" address: \"192.0.2.9\"";
const WEB: &str = "router: \"r\" kind: FORWARD external: \"internet\" address: \"192.0.2.9\" \
                   inside: \"10.0.0.10\" protocol: 6 port: 80 to_port: 8080";
const FLOATING: &str = "router: \"r\" kind: FLOATING external: \"internet\" address: \"192.0.2.10\" \
                        inside: \"10.0.0.11\"";

/// A host with a router that is attached to a network and an external.
fn host() -> Host {
    let mut host = Host::new();
    host.succeeds(NETWORK);
    host.succeeds(&format!("external_add {{ {INTERNET} }}"));
    host.succeeds(
        "router_add { id: \"r\" attachment { vni: 42 } attachment { external: \"internet\" } }",
    );
    host.fake().take_calls();
    host
}

fn listed(host: &mut Host) -> String {
    let requests = ["network_list", "external_list", "router_list", "nat_list"];
    requests.map(|name| host.succeeds(&format!("{name}: true"))).join("\n")
}

fn of_chosen(vni: u32, rest: &str) -> String {
    format!(
        "external_list {{ id: \"internet\" uplink: \"eth1\" {rest} vni: {vni} \
         address: \"192.0.2.7/24\" gateway: \"192.0.2.1\" chosen: true }}"
    )
    .replace("  ", " ")
}

/// Each row: the request, what the data path is asked.
#[test]
fn changes_are_made_once_and_reach_the_data_path() {
    let mut host = Host::new();
    host.succeeds(NETWORK);
    host.fake().take_calls();
    for (request, calls) in [
        (
            format!("external_add {{ {INTERNET} }}"),
            vec!["network 16777215: declare", "network 16777215: leads out by \"eth1\""],
        ),
        (format!("external_add {{ {INTERNET} }}"), vec![]),
        ("router_add { id: \"r\" attachment { vni: 42 } }".into(), vec!["router r: joins 42"]),
        (
            "router_attach { router: \"r\" external: \"internet\" address: \"192.0.2.7\" }".into(),
            vec!["router r: joins 42 16777215"],
        ),
        (format!("nat_add {{ {SNAT} }}"), vec!["router r at 16777215: [snat 192.0.2.9]"]),
        (format!("nat_add {{ {SNAT} }}"), vec![]),
        (
            format!("nat_add {{ {WEB} }}"),
            vec![
                "router r at 16777215: [snat 192.0.2.9, forward tcp 192.0.2.9:80 to 10.0.0.10:8080]",
            ],
        ),
        (
            format!("nat_add {{ {} }}", WEB.replace("to_port: 8080", "")),
            vec![
                "router r at 16777215: [snat 192.0.2.9, forward tcp 192.0.2.9:80 to 10.0.0.10:80]",
            ],
        ),
        ("nat_del { external: \"internet\" address: \"192.0.2.9\" kind: FLOATING }".into(), vec![]),
        ("nat_del { external: \"x\" address: \"192.0.2.9\" }".into(), vec![]),
        ("nat_del { external: \"internet\" address: \"192.0.2.9\" router: \"s\" }".into(), vec![]),
        (
            "nat_del { external: \"internet\" address: \"192.0.2.9\" }".into(),
            vec!["router r at 16777215: [forward tcp 192.0.2.9:80 to 10.0.0.10:80]"],
        ),
        (
            format!("external_add {{ {INTERNET} address: \"192.0.2.8/24\" }}"),
            vec![
                "network 16777215: declare",
                "network 16777215: leads out by \"eth1\"",
                "router r: joins 42 16777215",
            ],
        ),
        (
            "nat_del { external: \"internet\" address: \"192.0.2.9\" protocol: 6 port: 80 }".into(),
            vec!["router r at 16777215: []"],
        ),
        ("external_del: \"x\"".into(), vec![]),
        (
            "router_detach { router: \"r\" external: \"internet\" }".into(),
            vec!["router r: joins 42"],
        ),
        ("router_detach { router: \"r\" external: \"x\" }".into(), vec![]),
        (
            "external_del: \"internet\"".into(),
            vec!["network 16777215: leads out no more", "network 16777215: remove"],
        ),
    ] {
        assert_eq!(host.succeeds(&request), "", "{request}");
        assert_eq!(host.fake().take_calls(), calls, "{request}");
    }
    assert_eq!(host.succeeds("external_list: true"), "");
}

#[test]
fn lists_are_declarations() {
    let mut host = host();
    for nat in [WEB, FLOATING, SNAT] {
        host.succeeds(&format!("nat_add {{ {nat} }}"));
    }
    assert_eq!(host.succeeds("external_list: true"), of_chosen(16_777_215, ""));
    let nats = format!("nat_list {{ {SNAT} }} nat_list {{ {WEB} }} nat_list {{ {FLOATING} }}");
    assert_eq!(host.succeeds("nat_list: true"), nats);
    // A list tells how many ports are in use, and may be declared again all the same.
    let used =
        PortsInUse { vni: 16_777_215, address: [192, 0, 2, 9].into(), tcp: 5, udp: 6, echo: 7 };
    host.fake().ports = vec![PortsInUse { vni: 1, ..used }, used];
    let told = format!("{SNAT} tcp_ports: 5 udp_ports: 6 echo_ids: 7");
    assert!(host.succeeds("nat_list: true").starts_with(&format!("nat_list {{ {told} }}")));
    host.succeeds(&format!("nat_add {{ {told} }}"));
    host.fake().ports.clear();
    assert_eq!(host.succeeds("nat_list: true"), nats);
    host.succeeds("external_add { id: \"lab\" vni: 77 address: \"198.51.100.7/24\" mtu: 1400 }");
    host.succeeds(
        "external_add { id: \"v\" uplink: \"eth1\" vlan: 7 vni: 78 address: \"2001:db8::7/64\" }",
    );
    let others = "external_list { id: \"lab\" vni: 77 address: \"198.51.100.7/24\" mtu: 1400 } \
                  external_list { id: \"v\" uplink: \"eth1\" vlan: 7 vni: 78 address: \"2001:db8::7/64\" }";
    let all = format!("{} {others}", of_chosen(16_777_215, ""));
    assert_eq!(host.succeeds("external_list: true"), all);
    let before = listed(&mut host);
    host.fake().take_calls();
    for nat in [WEB, FLOATING, SNAT] {
        host.succeeds(&format!("nat_add {{ {nat} }}"));
    }
    let first = all.replacen("external_list", "external_add", 1);
    host.succeeds(first.split(" external_list").next().unwrap());
    assert_eq!((listed(&mut host), host.fake().take_calls()), (before, vec![]));
}

#[test]
fn what_is_refused_says_why_and_changes_nothing() {
    let mut host = host();
    host.succeeds(&format!("nat_add {{ {SNAT} }}"));
    host.fake().no_interface = Some("gone".into());
    host.fake().take_calls();
    let before = listed(&mut host);
    let nat = |text: &str| format!("nat_add {{ {text} }}");
    for (request, why) in [
        ("external_add { }".into(), "external id \"\" is refused: it is empty"),
        (
            "external_add { id: \"x\" address: \"192.0.2.7/24\" }".into(),
            "external x leads nowhere: name the interface",
        ),
        (
            "external_add { id: \"x\" vni: 7 vlan: 7 address: \"192.0.2.7/24\" }".into(),
            "external x has a VLAN and no interface",
        ),
        (
            "external_add { id: \"x\" uplink: \"a b\" address: \"192.0.2.7/24\" }".into(),
            "\"a b\" is no device that leads out",
        ),
        (
            "external_add { id: \"x\" uplink: \"eth2\" vlan: 4095 address: \"192.0.2.7/24\" }"
                .into(),
            "VLAN 4095 is out of range",
        ),
        ("external_add { id: \"x\" uplink: \"eth2\" }".into(), "external x has 1 to 8 addresses"),
        (
            "external_add { id: \"x\" uplink: \"eth2\" address: \"192.0.2.7/24\" mtu: 7 }".into(),
            "MTU 7 is out of range",
        ),
        (
            "external_add { id: \"x\" uplink: \"eth1\" address: \"198.51.100.7/24\" }".into(),
            "eth1 without a VLAN belongs to external \"internet\"",
        ),
        (
            "external_add { id: \"x\" uplink: \"gone\" address: \"198.51.100.7/24\" }".into(),
            "there is no interface \"gone\" on this host",
        ),
        (
            "external_add { id: \"internet\" uplink: \"gone\" address: \"192.0.2.7/24\" }".into(),
            "there is no interface \"gone\" on this host",
        ),
        ("external_del: \"internet\"".into(), "router \"r\" is attached to external \"internet\""),
        (
            "router_attach { router: \"r\" external: \"interne\" }".into(),
            "there is no external \"interne\"",
        ),
        (
            "router_attach { router: \"r\" external: \"internet\" vni: 42 }".into(),
            "an attachment is to a network or to an external",
        ),
        (
            "router_attach { router: \"r\" }".into(),
            "an attachment needs the VNI of its network, or an external",
        ),
        (
            "router_attach { router: \"r\" external: \"internet\" address: \"192.0.2.8\" }".into(),
            "192.0.2.8 is none of the addresses",
        ),
        (
            "router_add { id: \"r\" }".into(),
            "router \"r\" has 1 translations at external \"internet\"",
        ),
        ("router_del: \"r\"".into(), "router \"r\" has 1 translations"),
        (
            "router_detach { router: \"r\" external: \"internet\" }".into(),
            "router \"r\" has 1 translations",
        ),
        ("network_add { vni: 16777215 }".into(), "VNI 16777215 is that of external \"internet\""),
        (
            "nic_add { id: \"n\" mac: \"02:00:00:00:00:01\" vni: 16777215 }".into(),
            "VNI 16777215 was chosen for external \"internet\"",
        ),
        (
            nat("router: \"r\" external: \"internet\" address: \"192.0.2.10\""),
            "a translation needs its kind",
        ),
        (
            nat("router: \"s\" external: \"internet\" kind: SNAT address: \"192.0.2.10\""),
            "there is no router \"s\"",
        ),
        (
            nat("router: \"r\" external: \"x\" kind: SNAT address: \"192.0.2.10\""),
            "there is no external \"x\"",
        ),
        (
            nat("router: \"r\" external: \"internet\" kind: SNAT"),
            "a translation needs its address outside",
        ),
        (
            nat("router: \"r\" external: \"internet\" kind: SNAT address: \"2001:db8::1\""),
            "2001:db8::1 is not translated by ports",
        ),
        (
            nat(&format!("{SNAT} inside: \"10.0.0.10\"")),
            "an address by which many leave leads to no single machine",
        ),
        (nat(&format!("{SNAT} port: 7")), "a translation of a whole address has no protocol"),
        (
            nat(&FLOATING.replace("192.0.2.10", "192.0.2.1")),
            "192.0.2.1 of external \"internet\" belongs to its gateway",
        ),
        (nat(&FLOATING.replace("192.0.2.10", "192.0.2.9")), "external \"internet\" has"),
        (nat(&FLOATING.replace("10.0.0.11", "fd00::1")), "192.0.2.10 cannot be fd00::1"),
        (
            nat(&FLOATING.replace("inside: \"10.0.0.11\"", "")),
            "a translation needs the machine inside",
        ),
        (
            nat(&WEB.replace("protocol: 6", "protocol: 47")),
            "\"47\" is not forwarded: the protocol is tcp or udp",
        ),
        (nat(&WEB.replace("protocol: 6", "")), "a forwarded port needs its protocol"),
        (nat(&WEB.replace("port: 80", "port: 65536")), "port 65536 is out of range"),
        (nat(&WEB.replace("to_port: 8080", "to_port: 0")), "port 0 is out of range"),
        (nat(&WEB.replace("10.0.0.10", "fd00::1")), "fd00::1 is not translated by ports"),
        ("nat_del { external: \"internet\" address: \"x\" }".into(), "\"x\" is not an IP address"),
    ] {
        let request: String = request;
        let (told, _) = host.fails(&request);
        assert!(told.starts_with(why), "{request}: {told}");
        assert_eq!(listed(&mut host), before, "{request}");
        let networks = host.fake().networks.len();
        assert_eq!((networks, host.fake().wires.len()), (2, 1), "{request}");
    }
    let internet = host.fake().wires.values().next().unwrap().clone();
    assert_eq!(internet.gateways().count(), 1, "it is as it was");
}

/// A file declares in any order, and gets numbers that nothing of it has.
#[test]
fn a_file_is_applied_as_a_whole() {
    let mut host = Host::new();
    let file = format!(
        "apply {{ nat {{ {SNAT} }} nat {{ {WEB} }} router {{ id: \"r\" attachment {{ external: \"internet\" }} attachment {{ vni: 42 }} }} \
         external {{ {INTERNET} }} external {{ id: \"lab\" uplink: \"tap\" address: \"198.51.100.7/24\" }} \
         network {{ vni: 42 public: true subnet {{ cidr {{ address: \"10.0.0.0\" mask_size: 24 }} gateway: \"10.0.0.1\" }} }} \
         network {{ vni: 16777215 }}"
    );
    let told = host.succeeds(&format!("{file} }}"));
    for text in [
        "object: EXTERNAL name: \"internet\" what: ADDED text: \"wire eth1, 192.0.2.7/24, gateway 192.0.2.1\"",
        "object: NAT name: \"192.0.2.9 at external \\\"internet\\\"\" what: ADDED",
        "object: NETWORK name: \"42\" what: ADDED text: \"subnet 10.0.0.0/24 gateway 10.0.0.1, public\"",
        "text: \"network 42, external \\\"internet\\\"\"",
    ] {
        assert!(told.contains(text), "{text}: {told}");
    }
    let externals = host.succeeds("external_list: true");
    assert!(
        externals.contains("vni: 16777214") && externals.contains("vni: 16777213"),
        "{externals}"
    );
    assert!(host.succeeds("network_list: true").contains("public: true"));
    host.fake().take_calls();
    assert_eq!(host.succeeds(&format!("{file} prune: true }}")), "apply { }");
    assert_eq!(host.fake().take_calls(), [""; 0]);
    // One wire that is missing takes all back.
    host.fake().no_interface = Some("gone".into());
    let before = listed(&mut host);
    let (why, help) = host.fails(
        "apply { external { id: \"a\" uplink: \"eth3\" address: \"203.0.113.7/24\" } \
         external { id: \"b\" uplink: \"gone\" address: \"203.0.113.7/24\" } }",
    );
    assert_eq!(why, "external \"b\": there is no interface \"gone\" on this host");
    assert!(help.contains("everything is as it was before"), "{help}");
    assert_eq!(listed(&mut host), before);
    let twice = format!("apply {{ nat {{ {SNAT} }} nat {{ {SNAT} }} }}");
    assert!(host.fails(&twice).0.contains("and another translation with that"));
}

fn keys() -> [Key; 5] {
    let key = |sort, name: &str| Key { sort, name: name.to_owned() };
    [
        key(Sort::External, "internet"),
        key(Sort::External, "lab 7"),
        key(Sort::Nat, "192.0.2.9 internet"),
        key(Sort::Nat, "192.0.2.9/tcp/80 internet"),
        key(Sort::Nat, "192.0.2.10 internet"),
    ]
}

#[test]
fn what_is_kept_is_read_back() {
    let mut host = host();
    host.succeeds("external_add { id: \"lab 7\" vni: 77 address: \"198.51.100.7/24\" }");
    for nat in [WEB, FLOATING, SNAT] {
        host.succeeds(&format!("nat_add {{ {nat} }}"));
    }
    let sockets = SocketDir::new("/run/b".into());
    let state: Desired = host.envelope.handler_mut().desired.clone();
    let mut all = Declaration {
        networks: state.routed().networks().cloned().collect(),
        routers: state.routed().routers().cloned().collect(),
        ..Declaration::default()
    };
    for key in keys() {
        let value = encoded(&key, &state).unwrap();
        let (object, birth) = object(&key, &value, 1, &sockets).unwrap();
        assert_eq!(birth, None);
        all.join(object);
        for name in ["x", "192.0.2.9/tcp/81 internet", "192.0.2.9/sctp/80 internet", ""] {
            let other = Key { name: name.into(), ..key.clone() };
            let why = self::object(&other, &value, 1, &sockets).unwrap_err();
            assert!(why.contains("it is called"), "{why}");
            assert_eq!(encoded(&other, &state), None);
        }
        // A field of a release that is newer may say that less is meant.
        let newer = [&value[..], &[0x98, 0x3f, 1]].concat();
        let why = self::object(&key, &newer, 1, &sockets).unwrap_err();
        assert_eq!(why, "it has fields that this release does not know");
        assert!(self::object(&key, &value[..value.len() - 1], 1, &sockets).is_err(), "half of it");
    }
    let read = Desired::default().with(all, Unnamed::Stay).unwrap();
    assert_eq!(read.routed(), state.routed());

    let before = listed(&mut host);
    let bytes = host.envelope.handler_mut().declaration_bytes().unwrap();
    assert_eq!(crate::handlers::declared_in(&bytes, &sockets).unwrap(), state);
    let mut successor = Host::new();
    assert!(successor.envelope.handler_mut().take_up_bytes(&bytes).unwrap().is_empty());
    assert_eq!(listed(&mut successor), before);
    assert_eq!(successor.fake().nats.values().map(Vec::len).sum::<usize>(), 3);
}

/// After a start an interface may be missing: all else is in effect, no router leads out by it, and
/// it is tried again.
#[test]
fn a_wire_that_is_missing_is_declared_and_not_in_effect() {
    let mut host = host();
    host.succeeds(&format!("nat_add {{ {SNAT} }}"));
    let bytes = host.envelope.handler_mut().declaration_bytes().unwrap();
    let mut successor = Host::new();
    successor.fake().no_interface = Some("eth1".into());
    assert!(successor.envelope.handler_mut().take_up_bytes(&bytes).unwrap().is_empty());
    let why = "not_in_effect: \"there is no interface \\\"eth1\\\" on this host\"";
    let list = successor.succeeds("external_list: true");
    assert!(list.contains(why) && list.contains("chosen: true"), "{list}");
    assert_eq!(successor.succeeds("nat_list: true"), format!("nat_list {{ {SNAT} }}"));
    let state = |host: &mut Host| {
        let joins: Vec<u32> = host
            .fake()
            .routers
            .values()
            .flat_map(|it| it.attachments().map(|it| it.0.number()).collect::<Vec<_>>())
            .collect();
        let routes: usize = host.fake().routers.values().map(|it| it.routes().len()).sum();
        let wires = host.fake().wires.values().filter(|it| it.wire().is_some()).count();
        (host.fake().networks.len(), wires, host.fake().nats.len(), joins, routes)
    };
    assert_eq!(state(&mut successor), (2, 0, 0, vec![42], 0));
    let events = successor.succeeds("event_list { }");
    assert!(!events.contains("external-down"), "{events}");
    successor.envelope.handler_mut().outcome();
    let events = successor.succeeds("event_list { }");
    assert!(events.contains("external \\\"internet\\\" is declared, not in effect"), "{events}");

    // Declared again it is refused, and translations are taken for later.
    let (told, _) = successor.fails(&format!("external_add {{ {INTERNET} }}"));
    assert_eq!(told, "there is no interface \"eth1\" on this host");
    successor.succeeds(&format!("nat_add {{ {FLOATING} }}"));
    assert_eq!(state(&mut successor), (2, 0, 0, vec![42], 0));
    // A restart later it is there.
    successor.fake().no_interface = None;
    successor.envelope.handler_mut().missing_wires.try_now();
    successor.envelope.handler_mut().outcome();
    assert_eq!(state(&mut successor), (2, 1, 1, vec![42, 16_777_215], 1));
    assert_eq!(successor.fake().nats.values().next().unwrap().len(), 2);
    assert!(!successor.succeeds("external_list: true").contains("not_in_effect"));
    assert!(successor.succeeds("event_list { }").contains("external-up"));
    // Of a dump nobody learns that it was missing.
    let mut third = Host::new();
    third.fake().no_interface = Some("eth1".into());
    third.envelope.handler_mut().take_up_bytes(&bytes).unwrap();
    for request in [
        "nat_del { external: \"internet\" address: \"192.0.2.9\" }",
        "router_del: \"r\"",
        "external_del: \"internet\"",
    ] {
        third.succeeds(request);
    }
    third.envelope.handler_mut().missing_wires.try_now();
    third.envelope.handler_mut().outcome();
    assert_eq!(state(&mut third), (1, 0, 0, vec![], 0));
}

/// The others lead out, and the external is not told to be in effect before the last one does.
#[test]
fn a_router_that_cannot_lead_out_stops_no_other() {
    let mut host = host();
    host.succeeds("router_add { id: \"a\" attachment { external: \"internet\" } }");
    host.succeeds("router_add { id: \"z\" attachment { external: \"internet\" } }");
    for (router, address) in [("a", "192.0.2.30"), ("z", "192.0.2.31")] {
        let nat = FLOATING.replace("\"r\"", &format!("{router:?}"));
        host.succeeds(&format!("nat_add {{ {} }}", nat.replace("192.0.2.10", address)));
    }
    let bytes = host.envelope.handler_mut().declaration_bytes().unwrap();
    let mut successor = Host::new();
    successor.fake().no_interface = Some("eth1".into());
    successor.envelope.handler_mut().take_up_bytes(&bytes).unwrap();
    (successor.fake().no_interface, successor.fake().no_nat_of) = (None, Some("a"));
    let again = |host: &mut Host| {
        host.envelope.handler_mut().missing_wires.try_now();
        host.envelope.handler_mut().outcome();
        let outside = |it: &butterfly_model::Router| it.attachments().any(|it| it.0.number() > 999);
        let leading = host.fake().routers.values().filter(|it| outside(it)).count();
        let nats: Vec<String> = host.fake().nats.keys().map(|it| it.0.to_string()).collect();
        (leading, nats, host.succeeds("external_list: true"))
    };
    let (leading, nats, list) = again(&mut successor);
    assert_eq!((leading, nats), (3, vec!["z".to_owned()]));
    let why = "not_in_effect: \"router \\\"a\\\": nothing is translated\"";
    assert!(list.contains(why), "{list}");
    assert!(!successor.succeeds("event_list { }").contains("external-up"));
    successor.fake().no_nat_of = None;
    let (leading, nats, list) = again(&mut successor);
    assert_eq!((leading, nats), (3, vec!["a".to_owned(), "z".to_owned()]));
    assert!(!list.contains("not_in_effect"), "{list}");
    assert!(successor.succeeds("event_list { }").contains("external-up"));
}

/// A change that costs the wire is refused, and what was declared is tried again.
#[test]
fn a_wire_that_a_refused_change_cost_is_missing() {
    let mut host = host();
    host.succeeds(&format!("nat_add {{ {FLOATING} }}"));
    (host.fake().no_interface, host.fake().loses_wires) = (Some("gone".into()), true);
    let moved = INTERNET.replace("eth1", "gone");
    let (why, _) = host.fails(&format!("external_add {{ {moved} }}"));
    assert_eq!(why, "there is no interface \"gone\" on this host");
    let list = host.succeeds("external_list: true");
    assert!(list.contains("uplink: \"eth1\"") && list.contains("not_in_effect"), "{list}");
    let wires = |host: &mut Host| {
        let wire = host.fake().wires.values().next().unwrap();
        wire.wire().map(|wire| wire.name().unwrap().to_owned())
    };
    assert_eq!((wires(&mut host), host.fake().nats.len()), (None, 0));
    host.envelope.handler_mut().missing_wires.try_now();
    host.envelope.handler_mut().outcome();
    assert_eq!((wires(&mut host), host.fake().nats.len()), (Some("eth1".to_owned()), 1));
    assert!(!host.succeeds("external_list: true").contains("not_in_effect"));
}

const VIA: &str = "id: \"internet\" via: \"10.0.0.9\"";

/// A host with a tunnel.
fn tunnelled() -> Host {
    let mut host = host();
    host.fake().uplink = true;
    host
}

/// Each row: the request, what the data path is asked.
#[test]
fn another_host_leads_out() {
    let mut host = tunnelled();
    let out_no_more = ["network 16777215: leads out no more", "network 16777215: remove"];
    for (request, calls) in [
        // From the wire to the other host, and with its routers.
        (
            format!("external_add {{ {VIA} }}"),
            [&["router r: joins 42, out by 10.0.0.9"][..], &out_no_more].concat(),
        ),
        (format!("external_add {{ {VIA} }}"), vec![]),
        (
            format!("external_add {{ {VIA} mtu: 1400 }}"),
            vec!["router r: joins 42, out by 10.0.0.9"],
        ),
        (
            format!("external_add {{ {} }}", VIA.replace("0.9", "0.8")),
            vec!["router r: joins 42, out by 10.0.0.8"],
        ),
        (
            "router_detach { router: \"r\" external: \"internet\" }".into(),
            vec!["router r: joins 42"],
        ),
        (
            "router_attach { router: \"r\" external: \"internet\" }".into(),
            vec!["router r: joins 42, out by 10.0.0.8"],
        ),
        // And back.
        (
            format!("external_add {{ {INTERNET} }}"),
            vec![
                "network 16777215: declare",
                "network 16777215: leads out by \"eth1\"",
                "router r: joins 42 16777215",
            ],
        ),
        (
            format!("external_add {{ {VIA} }}"),
            [&["router r: joins 42, out by 10.0.0.9"][..], &out_no_more].concat(),
        ),
        ("router_del: \"r\"".into(), vec!["router r: remove"]),
        ("external_del: \"internet\"".into(), vec![]),
    ] {
        host.succeeds(&request);
        assert_eq!(host.fake().take_calls(), calls, "{request}");
    }
}

#[test]
fn a_way_out_by_another_host_is_refused_by_what_it_lacks() {
    let mut host = host();
    let add = |rest: &str| format!("external_add {{ id: \"x\" {rest} }}");
    let (why, help) = host.fails(&add("via: \"10.0.0.9\""));
    assert_eq!(why, "external \"x\" leads out by host 10.0.0.9, and this host has no tunnel");
    assert!(help.contains("(-i)"), "{help}");
    host.fake().uplink = true;
    host.succeeds("external_add { id: \"far\" via: \"10.0.0.9\" }");
    host.fake().take_calls();
    let before = listed(&mut host);
    assert!(
        before
            .contains("external_list { id: \"far\" vni: 16777214 chosen: true via: \"10.0.0.9\" }"),
        "{before}"
    );
    for (request, why) in [
        (add("via: \"10.0.0.1\""), "external \"x\" leads out by host 10.0.0.1, which is this host"),
        (
            add("via: \"fd00::9\""),
            "external \"x\" leads out by host fd00::9, and the tunnel endpoint",
        ),
        (add("via: \"127.0.0.1\""), "127.0.0.1 cannot be the tunnel endpoint"),
        (add("via: \"nobody\""), "\"nobody\" is not an IP address"),
        (add("via: \"10.0.0.9\" mtu: 67"), "MTU 67 is out of range"),
        (
            add("via: \"10.0.0.9\" uplink: \"eth2\""),
            "external x leads out by another host (via), so an uplink cannot be given here",
        ),
        (
            add("via: \"10.0.0.9\" vlan: 7"),
            "external x leads out by another host (via), so a VLAN cannot be given here",
        ),
        (
            add("via: \"10.0.0.9\" vni: 7"),
            "external x leads out by another host (via), so a VNI cannot be given here",
        ),
        (
            add("via: \"10.0.0.9\" address: \"192.0.2.7/24\""),
            "external x leads out by another host (via), so addresses cannot be given here",
        ),
        (
            add("via: \"10.0.0.9\" gateway: \"192.0.2.1\""),
            "external x leads out by another host (via), so gateways cannot be given here",
        ),
        (
            format!("nat_add {{ {} }}", SNAT.replace("internet", "far")),
            "external \"far\" leads out by host 10.0.0.9, which translates",
        ),
        (
            "router_attach { router: \"r\" external: \"far\" address: \"192.0.2.7\" }".into(),
            "192.0.2.7 is none of the addresses",
        ),
    ] {
        let (told, _) = host.fails(&request);
        assert!(told.starts_with(why), "{request}: {told}");
        assert_eq!(listed(&mut host), before, "{request}");
    }
    // Given back as it is listed it changes nothing.
    host.succeeds("external_add { id: \"far\" vni: 16777214 chosen: true via: \"10.0.0.9\" }");
    assert_eq!(host.fake().take_calls(), [""; 0]);
    let drops = "drop_list { nic_id: \"wire/far\" }";
    assert!(host.fails(drops).1.contains("it leads out by another host"));
}

/// A host that lost its tunnel: all else is in effect, and it is tried again.
#[test]
fn a_way_out_by_another_host_is_kept_and_waits_for_a_tunnel() {
    let mut host = tunnelled();
    host.succeeds(&format!("external_add {{ {VIA} }}"));
    let sockets = SocketDir::new("/run/b".into());
    let state: Desired = host.envelope.handler_mut().desired.clone();
    let key = Key { sort: Sort::External, name: "internet".to_owned() };
    let value = encoded(&key, &state).unwrap();
    let (read, _) = object(&key, &value, 1, &sockets).unwrap();
    assert_eq!(read.externals, [state.routed().external("internet").unwrap().clone()]);
    let bytes = host.envelope.handler_mut().declaration_bytes().unwrap();
    let mut successor = Host::new();
    assert!(successor.envelope.handler_mut().take_up_bytes(&bytes).unwrap().is_empty());
    let list = successor.succeeds("external_list: true");
    assert!(list.contains("not_in_effect") && list.contains("this host has no tunnel"), "{list}");
    let over = |host: &mut Host| {
        host.fake().routers.values().next().unwrap().second_hop().map(|it| it.host.to_string())
    };
    assert_eq!(over(&mut successor), None);
    successor.fake().uplink = true;
    successor.envelope.handler_mut().missing_wires.try_now();
    successor.envelope.handler_mut().outcome();
    assert_eq!(over(&mut successor), Some("10.0.0.9".to_owned()));
    assert!(!successor.succeeds("external_list: true").contains("not_in_effect"));
    // A file brings a host from one way out to the other.
    let file = |external: &str| {
        format!(
            "apply {{ external {{ {external} }} {} router {{ id: \"r\" attachment {{ vni: 42 }} \
             attachment {{ external: \"internet\" }} }} prune: true }}",
            NETWORK.replace("network_add", "network")
        )
    };
    successor.fake().take_calls();
    assert_eq!(successor.succeeds(&file(VIA)), "apply { }");
    assert_eq!(successor.fake().take_calls(), [""; 0]);
    let told = successor.succeeds(&file(INTERNET));
    assert!(told.contains("+wire eth1") && told.contains("-via host 10.0.0.9"), "{told}");
    assert_eq!(over(&mut successor), None);
    assert_eq!(successor.fake().wires.len(), 1);
    successor.succeeds(&file(VIA));
    assert_eq!(over(&mut successor), Some("10.0.0.9".to_owned()));
    assert_eq!((successor.fake().wires.len(), successor.fake().networks.len()), (0, 1));
}

//! Requests about declared neighbours.

use super::host::Host;
use crate::handlers::{keep::encoded, records::object};
use butterfly_api::proto::apply_res::Change;
use butterfly_control::{Declaration, Desired, Unnamed};
use butterfly_model::SocketDir;
use butterfly_store::{Key, Sort};

const MAC: &str = "mac: \"02:00:00:00:00:09\"";
const FOUR: &str = "vni: 42 address: \"10.0.0.9\" mac: \"02:00:00:00:00:09\"";
const SIX: &str = "vni: 50 address: \"fd00::9\" mac: \"02:00:00:00:00:0A\" host: \"2001:db8::2\"";

/// A host where a router joins two networks, one of which has a neighbour, as another one has that
/// is not declared.
fn host() -> Host {
    let mut host = Host::new();
    for (vni, block, gateway) in [(42, "10.0.0.0", "10.0.0.1"), (51, "10.0.1.0", "10.0.1.1")] {
        let subnet =
            format!("cidr {{ address: \"{block}\" mask_size: 24 }} gateway: \"{gateway}\"");
        host.succeeds(&format!("network_add {{ vni: {vni} subnet {{ {subnet} }} }}"));
    }
    host.succeeds("router_add { id: \"r\" attachment { vni: 42 } attachment { vni: 51 } }");
    host.succeeds(&format!("neighbour_add {{ {SIX} }}"));
    host.succeeds(&format!("neighbour_add {{ {FOUR} }}"));
    host.fake().take_calls();
    host
}

fn listed(host: &mut Host) -> String {
    host.succeeds("neighbour_list { }")
}

#[test]
fn neighbours_are_declared_once_changed_and_listed() {
    let mut host = host();
    let both = format!("neighbour_list {{ {FOUR} }} neighbour_list {{ {SIX} }}");
    let six = format!("neighbour_list {{ {SIX} }}");
    let moved = format!("{FOUR} host: \"192.0.2.2\"");
    for (request, calls, list) in [
        // Said again, it changes nothing.
        (format!("neighbour_add {{ {FOUR} }}"), vec![], both.clone()),
        ("neighbour_del { vni: 42 address: \"fd00::9\" }".into(), vec![], both.clone()),
        ("neighbour_del { vni: 7 address: \"10.0.0.9\" }".into(), vec![], both.clone()),
        (
            format!("neighbour_add {{ {moved} }}"),
            vec!["network 42: 10.0.0.9 is at 02:00:00:00:00:09 on host 192.0.2.2"],
            format!("neighbour_list {{ {moved} }} {six}"),
        ),
        // Network and address count, the rest does not.
        (
            "neighbour_del { vni: 42 address: \"10.0.0.9\" mac: \"x\" host: \"y\" }".into(),
            vec!["neighbour 10.0.0.9 of network 42: remove"],
            six.clone(),
        ),
    ] {
        assert_eq!(host.succeeds(&request), "", "{request}");
        assert_eq!(host.fake().take_calls(), calls, "{request}");
        assert_eq!(listed(&mut host), list, "{request}");
    }
}

#[test]
fn a_list_is_of_one_network_and_goes_on_behind_a_neighbour() {
    let mut host = host();
    host.succeeds(&format!("neighbour_add {{ vni: 42 address: \"10.0.0.10\" {MAC} }}"));
    for (request, addresses) in [
        ("", &["10.0.0.9", "10.0.0.10", "fd00::9"][..]),
        ("vni: 42", &["10.0.0.9", "10.0.0.10"]),
        ("vni: 50", &["fd00::9"]),
        ("vni: 7", &[]),
        ("limit: 2", &["10.0.0.9", "10.0.0.10"]),
        ("limit: 2 after { vni: 42 address: \"10.0.0.9\" }", &["10.0.0.10", "fd00::9"]),
        ("vni: 42 after { vni: 42 address: \"10.0.0.9\" }", &["10.0.0.10"]),
        ("after { vni: 50 address: \"fd00::9\" }", &[]),
    ] {
        let response = host.ask(&format!("neighbour_list {{ {request} }}"));
        let found: Vec<&str> = response.neighbour_list.iter().map(|it| it.address()).collect();
        assert_eq!(found, addresses, "{request}");
    }
    for (request, why) in [
        ("vni: 16777216", "VNI 16777216 is out of range"),
        ("after { vni: 42 }", "\"\" is not an IP address"),
        ("after { address: \"10.0.0.9\" }", "a neighbour needs the VNI of its network"),
    ] {
        let (text, _) = host.fails(&format!("neighbour_list {{ {request} }}"));
        assert!(text.starts_with(why), "{request}: {text}");
    }
}

#[test]
fn what_is_refused_says_why_and_changes_nothing() {
    let mut host = host();
    let before = listed(&mut host);
    for (request, why) in [
        (
            format!("neighbour_add {{ address: \"10.0.0.8\" {MAC} }}"),
            "a neighbour needs the VNI of its network",
        ),
        (
            format!("neighbour_add {{ vni: 16777216 address: \"10.0.0.8\" {MAC} }}"),
            "VNI 16777216 is out of range",
        ),
        (format!("neighbour_add {{ vni: 42 {MAC} }}"), "\"\" is not an IP address"),
        (
            format!("neighbour_add {{ vni: 42 address: \"224.0.0.1\" {MAC} }}"),
            "224.0.0.1 is not the address of a machine",
        ),
        (
            format!("neighbour_add {{ vni: 42 address: \"10.0.0.8\" {MAC} host: \"127.0.0.1\" }}"),
            "127.0.0.1 cannot be the tunnel endpoint",
        ),
        (
            "neighbour_add { vni: 42 address: \"10.0.0.8\" mac: \"b2:f0:00:00:00:01\" }".into(),
            "MAC address b2:f0:00:00:00:01 is refused",
        ),
        (
            format!("neighbour_add {{ vni: 42 address: \"10.0.0.1\" {MAC} }}"),
            "10.0.0.1 of network 42 belongs to router \"r\": choose another address",
        ),
        (
            "router_attach { router: \"r\" vni: 42 address: \"10.0.0.9\" }".into(),
            "10.0.0.9 of network 42 belongs to the declared neighbour 02:00:00:00:00:09: choose another address",
        ),
        ("neighbour_del { vni: 42 address: \"x\" }".into(), "\"x\" is not an IP address"),
        (
            format!("apply {{ neighbour {{ vni: 42 address: \"0.0.0.0\" {MAC} }} }}"),
            "neighbour \"0.0.0.0 of network 42\": 0.0.0.0 is not the address",
        ),
        (
            format!("apply {{ neighbour {{ {FOUR} }} neighbour {{ {FOUR} }} }}"),
            "neighbour 10.0.0.9 of network 42 is declared twice",
        ),
    ] {
        let (text, _) = host.fails(&request);
        assert!(text.starts_with(why), "{request}: {text}");
        assert_eq!(listed(&mut host), before, "{request}");
        assert_eq!(host.fake().take_calls(), [""; 0], "{request}");
    }
    let nic = "id: \"n\" mac: \"02:00:00:00:00:01\" vni: 42 ip: \"10.0.0.9\"";
    host.succeeds(&format!("nic_add {{ {nic} }}"));
    assert_eq!(listed(&mut host), before, "a vnic of this host may have the address");
}

#[test]
fn a_file_declares_neighbours() {
    let mut host = Host::new();
    let state = format!("network {{ vni: 42 }} neighbour {{ {FOUR} }} neighbour {{ {SIX} }}");
    let objects = |host: &mut Host, state: &str| -> Vec<String> {
        let response = host.ask(&format!("apply {{ {state} }}"));
        assert!(response.status.status(), "{response}");
        let row = |row: &Change| {
            format!("{:?} {} {:?}: {}", row.object(), row.name(), row.what(), row.text())
        };
        response.apply.change.iter().map(row).collect()
    };
    let all = [
        "NETWORK 42 ADDED: no subnets",
        "NEIGHBOUR 10.0.0.9 of network 42 ADDED: MAC 02:00:00:00:00:09",
        "NEIGHBOUR fd00::9 of network 50 ADDED: MAC 02:00:00:00:00:0A, host 2001:db8::2",
    ];
    assert_eq!(objects(&mut host, &format!("{state} dry_run: true")), all);
    assert_eq!(listed(&mut host), "");
    assert_eq!(objects(&mut host, &state), all);
    let calls = [
        "network 42: declare",
        "network 42: 10.0.0.9 is at 02:00:00:00:00:09",
        "network 50: fd00::9 is at 02:00:00:00:00:0A on host 2001:db8::2",
    ];
    assert_eq!(host.fake().take_calls(), calls);
    assert_eq!(objects(&mut host, &format!("{state} prune: true")), [""; 0]);
    let before = listed(&mut host);
    // A plan that fails on its way takes everything back.
    host.fake().refusals = [Some("no memory")].into();
    let (why, help) =
        host.fails("apply { prune: true nic { id: \"m\" mac: \"02:00:00:00:00:02\" vni: 42 } }");
    assert!(why.contains("no memory") && help.contains("everything is as it was"), "{why} {help}");
    assert_eq!(listed(&mut host), before);
    host.fake().take_calls();
    let changed =
        format!("network {{ vni: 42 }} neighbour {{ {FOUR} host: \"192.0.2.2\" }} prune: true");
    let told = [
        "NEIGHBOUR 10.0.0.9 of network 42 CHANGED: host none -> 192.0.2.2",
        "NEIGHBOUR fd00::9 of network 50 REMOVED: ",
    ];
    assert_eq!(objects(&mut host, &changed), told);
    let calls = [
        "neighbour fd00::9 of network 50: remove",
        "network 42: 10.0.0.9 is at 02:00:00:00:00:09 on host 192.0.2.2",
    ];
    assert_eq!(host.fake().take_calls(), calls);
}

/// A record, and what a process before left, are read as they were declared.
#[test]
fn what_is_kept_is_read_as_it_was() {
    let mut host = host();
    let sockets = SocketDir::new("/run/b".into());
    let state: Desired = host.envelope.handler_mut().desired.clone();
    let mut all = Declaration::default();
    for name in ["42 10.0.0.9", "50 fd00::9"] {
        let key = Key { sort: Sort::Neighbour, name: name.to_owned() };
        let value = encoded(&key, &state).unwrap();
        let (object, birth) = object(&key, &value, 1, &sockets).unwrap();
        assert_eq!(birth, None);
        all.join(object);
        for name in ["42 10.0.0.8", "10.0.0.9", "42", "x 10.0.0.9", ""] {
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
    assert!(read.routed().neighbours().eq(state.routed().neighbours()));

    let before = listed(&mut host);
    let bytes = host.envelope.handler_mut().declaration_bytes().unwrap();
    assert_eq!(crate::handlers::declared_in(&bytes, &sockets).unwrap(), state);
    let mut successor = Host::new();
    assert!(successor.envelope.handler_mut().take_up_bytes(&bytes).unwrap().is_empty());
    assert_eq!(listed(&mut successor), before);
}

/// Of many neighbours, one that is not valid leaves the others alone, and costs no attempt for each
/// of them.
#[test]
fn a_neighbour_that_is_refused_leaves_the_others() {
    let mut host = host();
    let many = |n: u32| {
        let address = std::net::Ipv4Addr::from_bits(0x0a02_0000 + n);
        format!("neighbour {{ vni: 42 address: \"{address}\" {MAC} }} ")
    };
    let all: String = (0..20_000).map(many).collect();
    let mut neighbours: butterfly_api::proto::ApplyReq = butterfly_api::text::parse(&all).unwrap();
    let taken = host.envelope.handler_mut().declaration_bytes().unwrap();
    let mut state: butterfly_api::proto::ApplyReq =
        protobuf::Message::parse_from_bytes(&taken).unwrap();
    neighbours.neighbour[7].address = Some("10.0.0.1".into());
    state.neighbour.append(&mut neighbours.neighbour);
    let bytes = protobuf::Message::write_to_bytes(&state).unwrap();
    let mut successor = Host::new();
    let lost = successor.envelope.handler_mut().take_up_bytes(&bytes).unwrap();
    assert_eq!(lost, ["10.0.0.1 of network 42 belongs to router \"r\": choose another address"]);
    let state = &successor.envelope.handler_mut().desired;
    assert_eq!(state.routed().neighbours().len(), 2 + 20_000 - 1);
}

/// Neighbours that routers asked for are listed beside declared ones, to those who want them. No
/// dump has them.
#[test]
fn neighbours_that_were_asked_for_are_listed_apart() {
    let mut host = host();
    assert!(!listed(&mut host).contains("neighbour_sought"));
    let asked = |rest: &str| format!("neighbour_sought {{ {rest} }}");
    let one = asked("vni: 42 address: \"10.0.1.7\" source: \"asked\" state: \"asked\"");
    let two = asked(
        "vni: 51 address: \"10.0.1.8\" mac: \"02:00:00:00:00:ab\" source: \"asked\" state: \"found\" age_s: 9",
    );
    let three = asked("vni: 51 address: \"10.0.1.9\" source: \"asked\" state: \"silent\"");
    let four = format!("neighbour_list {{ {FOUR} }}");
    assert_eq!(host.succeeds("neighbour_list { vni: 42 sought: true }"), format!("{four} {one}"));
    assert_eq!(host.succeeds("neighbour_list { vni: 51 sought: true }"), format!("{two} {three}"));
    // Listed fields are no part of a declaration.
    let odd = "mac: \"02:00:00:00:00:09\" source: \"x\" state: \"y\" age_s: 7";
    host.succeeds(&format!("neighbour_add {{ vni: 51 address: \"10.0.1.9\" {odd} }}"));
    assert!(!listed(&mut host).contains("age_s"));
}

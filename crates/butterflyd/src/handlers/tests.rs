//! Every request against a data path that only remembers, as tables of the protocol's texts.

mod apply;
mod drops;
mod events;
mod explain;
mod guests;
mod host;
mod kept;
mod moved;
mod neighbours;
mod outside;
mod reload;
mod routed;
mod security_groups;
mod sequences;
mod sessions;
mod tunnels;
mod wires;

use crate::log::Level;
use butterfly_api::{proto::Messages, text};
use butterfly_datapath::{Front, Role, VnicPolicy};
use butterfly_model::GroupName;
use host::{Host, one_line};
use protobuf::Message;
use std::collections::BTreeMap;

const NIC: &str =
    r#"nic_add { id: "n" mac: "42:00:00:00:00:aA" vni: 1 ip: "10.0.0.1" security_group: "web" }"#;
const BYPASS: &str =
    r#"nic_add { id: "bypass" mac: "42:00:00:00:00:02" vni: 2 bypass_filtering: true }"#;

/// A declaration with one field said otherwise.
fn nic_with(change: &str) -> String {
    let mut fields = BTreeMap::from([
        ("id", "id: \"n\"".to_owned()),
        ("mac", "mac: \"42:00:00:00:00:aA\"".to_owned()),
        ("vni", "vni: 1".to_owned()),
        ("ip", "ip: \"10.0.0.1\"".to_owned()),
        ("security_group", "security_group: \"web\"".to_owned()),
    ]);
    let name = change.split(':').next().unwrap();
    fields.insert(name, change.to_owned());
    format!("nic_add {{ {} }}", fields.into_values().collect::<Vec<_>>().join(" "))
}

#[test]
fn a_new_vnic_is_made_and_its_path_returned() {
    let mut host = Host::new();
    assert_eq!(host.succeeds(NIC), r#"nic_add { path: "/run/b/qemu-vhost-n" }"#);
    assert_eq!(host.fake().take_calls(), ["add n"]);
    let spec = host.fake().vnics["n"].clone();
    assert_eq!((spec.mac.0, spec.vni.number()), ([0x42, 0, 0, 0, 0, 0xaa], 1));
    assert_eq!(
        spec.front,
        Front::Socket { role: Role::Server, path: "/run/b/qemu-vhost-n".into() }
    );
    let policy = VnicPolicy {
        bypass: false,
        prefixes: Default::default(),
        ip_anti_spoof: false,
        forwards: false,
        shared_ip: false,
        limits: Default::default(),
        router: false,
        ips: vec!["10.0.0.1".parse().unwrap()],
        groups: vec![GroupName::new("web").unwrap()],
    };
    assert_eq!(spec.policy, policy);
}

#[test]
fn a_client_may_have_a_path_of_its_own_and_a_server_may_not() {
    for (request, path, role) in [
        ("type: VHOST_USER_SERVER path: \"/x\"", "/run/b/qemu-vhost-n", Role::Server),
        ("path: \"/x\"", "/run/b/qemu-vhost-n", Role::Server),
        ("type: VHOST_USER_CLIENT path: \"/x\"", "/x", Role::Client),
        ("type: VHOST_USER_CLIENT", "/run/b/qemu-vhost-n", Role::Client),
    ] {
        let mut host = Host::new();
        assert_eq!(host.succeeds(&nic_with(request)), format!("nic_add {{ path: \"{path}\" }}"));
        let spec = &host.fake().vnics["n"];
        assert_eq!(spec.front, Front::Socket { role, path: path.into() });
        // Listed vnics can be declared again.
        let details = host.declared();
        assert!(details.contains(&format!("path: \"{path}\"")), "{details}");
        host.succeeds(&details.replacen("nic_details", "nic_add", 1));
        assert_eq!(host.fake().take_calls(), ["add n"], "a dump changes nothing");
    }
}

/// Contract 1.5, nic_add, the failures.
#[test]
fn what_is_no_vnic_is_refused() {
    let mut host = Host::new();
    let long = format!("id: \"{}\"", "x".repeat(107 - "/run/b/qemu-vhost-".len() + 1));
    for (change, description, help) in [
        ("mac: \"42:00:00:00:00\"", "Bad NIC format", "six pairs"),
        ("vni: 16777216", "Bad NIC format", "VNIs are 0 to 16777215"),
        ("ip: \"10.0.0.256\"", "Bad NIC format", "\"10.0.0.256\" is not an IP address"),
        ("ip: \"\"", "Bad NIC format", "\"\" is not an IP address"),
        ("id: \"\"", "Bad NIC format", "it is empty"),
        ("limits: { in { bits: 7999 } }", "Bad NIC format", "from 8000 to"),
        ("limits: { out { burst_packets: 1 } }", "Bad NIC format", "needs a limit of packets"),
        ("id: \"a/b\"", "Bad NIC format", "/ in it"),
        ("id: \"a\\000\"", "Bad NIC format", "control character"),
        (&long, "Bad NIC format", "at most 107"),
        ("type: VHOST_USER_CLIENT path: \"x\"", "Bad NIC format", "must start with a /"),
        ("type: BENCH", "Internal error", "btype"),
        ("type: BENCH btype: \"ICMP\"", "Internal error", "btype"),
        ("type: BENCH btype: \"ICMP_SND_LIKE\"", "Internal error", "dip and dmac"),
        ("type: BENCH btype: \"ICMP_SND_LIKE\" dip: \"::1\"", "Internal error", "dip and dmac"),
        (
            "type: BENCH btype: \"ICMP_SND_LIKE\" dip: \"X\" dmac: \"42:00:00:00:00:01\"",
            "can't convert \"X\" to IP",
            "",
        ),
        (
            "type: BENCH btype: \"ICMP_SND_LIKE\" dip: \"::1\" dmac: \"42:00:00:00:00:01\"",
            "Internal error",
            "different address families",
        ),
        ("type: TAP netns: \"\"", "Bad NIC format", "it is empty"),
        ("type: TAP netns: \"a/b\"", "Bad NIC format", "as `ip netns` lists them"),
        (
            "packet_trace: true packet_trace_options { filter: \"tcp and\" }",
            "filter \"tcp and\" is refused: can't parse filter expression: syntax error",
            "pcap-filter",
        ),
        ("packet_trace_options { snap_length: 65536 }", "Bad packet trace options", "0 to 65535"),
        ("packet_trace_options { file_size: 1 }", "Bad packet trace options", "65536 and more"),
        ("packet_trace_options { file_count: 2 }", "Bad packet trace options", "needs file_size"),
    ] {
        let (got, got_help) = host.fails(&nic_with(change));
        assert_eq!(got, description, "{change}");
        assert!(got_help.contains(help), "{change}: {got_help}");
        assert_eq!(host.declared(), "", "{change}");
        assert!(host.fake().take_calls().is_empty(), "{change}");
    }
    host.succeeds(&nic_with("packet_trace: false"));
}

#[test]
fn a_type_from_the_future_is_a_server() {
    let mut host = Host::new();
    // revision 6, nic_add with id "n", a MAC address, vni 1 and type 99.
    let nic = b"\x0a\x01n\x12\x1142:00:00:00:00:01\x18\x01\x48\x63";
    let wrap = |tag: u8, inner: &[u8]| [&[tag, inner.len() as u8], inner].concat();
    let message = [&[8, 6][..], &wrap(0x1a, &wrap(0x0a, &wrap(0x0a, nic)))].concat();
    let reply = Messages::parse_from_bytes(&host.envelope.answer(&wrap(0x0a, &message))).unwrap();
    assert!(reply.messages[0].message_0.response.status.status());
    assert_eq!(
        host.fake().vnics["n"].front,
        Front::Socket { role: Role::Server, path: "/run/b/qemu-vhost-n".into() }
    );
}

/// A group without a name stands for nothing, as in the original.
#[test]
fn a_group_without_a_name_is_left_out() {
    let mut host = Host::new();
    host.succeeds(&nic_with("security_group: \"\" security_group: \"web\" security_group: \"\""));
    let details = host.declared();
    assert!(
        details.contains("security_group: \"web\"") && !details.contains("security_group: \"\""),
        "{details}"
    );
}

#[test]
fn an_identical_declaration_changes_nothing() {
    let mut host = Host::with_nics();
    assert_eq!(host.succeeds(NIC), r#"nic_add { path: "/run/b/qemu-vhost-n" }"#);
    assert_eq!(
        host.succeeds(&nic_with("ip: \"10.0.0.1\" ip: \"10.0.0.1\"")),
        r#"nic_add { path: "/run/b/qemu-vhost-n" }"#
    );
    assert!(host.fake().take_calls().is_empty());
}

#[test]
fn addresses_groups_and_flags_change_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let traced =
        format!("packet_trace: true packet_trace_path: \"{}/n.pcap\"", dir.path().display());
    for (change, calls, detail) in [
        ("ip: \"10.0.0.2\"", vec!["update n"], "ip: \"10.0.0.2\""),
        ("ip_anti_spoof: true", vec!["update n"], "ip_anti_spoof: true"),
        ("router: true", vec!["update n"], "router: true"),
        ("bypass_filtering: true", vec!["update n"], "bypass_filtering: true"),
        ("security_group: \"db\"", vec!["update n"], "security_group: \"db\""),
        (&traced, vec![], "packet_trace: true"),
        ("packet_trace_path: \"/p\"", vec![], "packet_trace_path: \"/p\""),
        ("mac: \"42:00:00:00:00:AA\"", vec![], "mac: \"42:00:00:00:00:AA\""),
    ] {
        let mut host = Host::with_nics();
        assert!(!host.succeeds("nic_details: \"n\"").contains(detail), "{detail}");
        host.succeeds(&nic_with(change));
        assert_eq!(host.fake().take_calls(), calls, "{change}");
        assert!(host.succeeds("nic_details: \"n\"").contains(detail), "{change}");
    }
}

#[test]
fn type_mac_vni_and_path_make_it_anew() {
    for (change, path, remade) in [
        ("mac: \"42:00:00:00:00:03\"", "/run/b/qemu-vhost-n", "remade: \"mac\""),
        ("vni: 9", "/run/b/qemu-vhost-n", "remade: \"vni\""),
        ("type: VHOST_USER_CLIENT", "/run/b/qemu-vhost-n", "remade: \"type\""),
        ("type: VHOST_USER_CLIENT path: \"/x\"", "/x", "remade: \"type\" remade: \"path\""),
    ] {
        let mut host = Host::with_nics();
        assert_eq!(
            host.succeeds(&nic_with(change)),
            format!("nic_add {{ path: \"{path}\" {remade} }}")
        );
        assert_eq!(host.fake().take_calls(), ["remove n", "add n"], "{change}");
        assert_eq!(host.succeeds("nic_list: true"), r#"nic_list: "bypass" nic_list: "n""#);
    }
}

#[test]
fn what_the_data_path_refuses_is_told_and_leaves_the_old_state() {
    for (request, refusals, calls, help) in [
        (
            nic_with("id: \"new\" mac: \"42:00:00:00:00:09\""),
            vec![Some("no")],
            vec!["add new"],
            // The folder of these tests does not exist.
            "the socket folder /run/b is gone: create it again",
        ),
        (nic_with("ip: \"10.0.0.2\""), vec![Some("no")], vec!["update n"], ""),
        (
            "nic_update { id: \"n\" ip: \"10.0.0.2\" security_group: \"db\" }".into(),
            vec![Some("no")],
            vec!["update n"],
            "",
        ),
        (
            nic_with("vni: 9"),
            vec![Some("no"), None],
            vec!["remove n", "add n", "add n"],
            "the nic is as it was before, but its virtual machine was cut off",
        ),
    ] {
        let mut host = Host::with_nics();
        let before = (host.declared(), format!("{:?}", host.fake().vnics));
        host.fake().refusals = refusals.into();
        let request = request.replacen(
            "mac: \"42:00:00:00:00:aA\"",
            "",
            usize::from(request.contains(":09")),
        );
        assert_eq!(host.fails(&request), ("no".into(), help.into()), "{request}");
        assert_eq!(host.fake().take_calls(), calls);
        assert_eq!((host.declared(), format!("{:?}", host.fake().vnics)), before, "{request}");
    }
}

#[test]
fn what_would_be_refused_is_refused_before_anything_is_cut() {
    let mut host = Host::with_nics();
    host.fake().irreplaceable = Some("no such namespace");
    let before = (host.declared(), format!("{:?}", host.fake().vnics));
    for change in ["vni: 9", "mac: \"42:00:00:00:00:03\"", "type: TAP netns: \"x\""] {
        let request = nic_with(change);
        let request =
            request.replacen("mac: \"42:00:00:00:00:aA\"", "", usize::from(change.contains("mac")));
        assert_eq!(host.fails(&request).0, "no such namespace", "{request}");
    }
    assert!(host.fake().take_calls().is_empty());
    assert_eq!((host.declared(), format!("{:?}", host.fake().vnics)), before);
}

#[test]
fn what_can_be_neither_changed_nor_restored_is_gone_and_that_is_said() {
    let mut host = Host::with_nics();
    host.fake().refusals = [Some("no"), Some("never")].into();
    let (description, help) = host.fails(&nic_with("vni: 9"));
    assert_eq!(description, "no");
    assert_eq!(help, "the nic could not be restored either and is gone: never");
    assert_eq!(host.succeeds("nic_list: true"), r#"nic_list: "bypass""#);
}

#[test]
fn of_several_with_one_address_the_first_has_it_and_the_others_wait() {
    let mut host = Host::with_nics();
    let nic = |id: &str, of: &str, vni, bypass| {
        format!(
            "nic_add {{ id: \"{id}\" mac: \"42:00:00:00:00:{of}\" vni: {vni} bypass_filtering: {bypass} }}"
        )
    };
    let waits = |host: &mut Host, id: &str| {
        let show = host.ask(&format!("nic_show: \"{id}\"")).nic_show.waits_for.clone();
        (show, host.ask(&format!("nic_details: \"{id}\"")).nic_details[0].waiting)
    };
    let told = |host: &mut Host, kind: &str| -> Vec<String> {
        let all = host.ask("event_list { }").event_list.unwrap().event;
        all.iter()
            .filter(|event| event.kind() == kind)
            .map(|event| event.text().to_owned())
            .collect()
    };
    let none = (None, None);
    host.succeeds(&nic("twin", "aa", 1, true));
    host.succeeds(&nic("third", "AA", 1, false));
    assert_eq!(waits(&mut host, "n"), none);
    assert_eq!(waits(&mut host, "twin"), (Some("n".into()), Some(1)));
    assert_eq!(waits(&mut host, "third"), (Some("n".into()), Some(2)));
    assert_eq!(told(&mut host, "nic-waits").len(), 2);
    // The same declaration again changes nothing, and a changed vnic stays in its place.
    host.succeeds(&nic("twin", "aa", 1, false));
    assert_eq!(waits(&mut host, "twin"), (Some("n".into()), Some(1)));
    host.succeeds("nic_del: \"n\"");
    assert_eq!(waits(&mut host, "twin"), none);
    assert_eq!(waits(&mut host, "third"), (Some("twin".into()), Some(1)));
    assert_eq!(told(&mut host, "nic-took-over"), ["has its MAC address 42:00:00:00:00:aa now"]);
    // Two that bypass filters share; one that stops makes the later one wait.
    host.succeeds(&nic("two", "02", 2, true));
    assert_eq!(waits(&mut host, "two"), none);
    host.succeeds(&nic("bypass", "02", 2, false));
    assert_eq!(waits(&mut host, "two"), (Some("bypass".into()), Some(1)));
    // Another address is another line.
    host.succeeds(&nic("bypass", "07", 2, false));
    assert_eq!(waits(&mut host, "two"), none);
    host.succeeds(&nic("bypass", "02", 2, false));
    assert_eq!(waits(&mut host, "bypass"), (Some("two".into()), Some(1)));
}

#[test]
fn an_address_of_no_station_is_taken() {
    let mut host = Host::new();
    for (id, mac) in [
        ("group", "01:02:03:04:05:06"),
        ("all", "ff:ff:ff:ff:ff:ff"),
        ("nobody", "00:00:00:00:00:00"),
    ] {
        host.succeeds(&format!("nic_add {{ id: \"{id}\" mac: \"{mac}\" vni: 1 }}"));
    }
}

#[test]
fn one_socket_has_one_vnic() {
    let mut host = Host::with_nics();
    let (description, _) =
        host.fails(r#"nic_add { id: "c" mac: "42:00:00:00:00:03" vni: 1 type: VHOST_USER_CLIENT path: "/run/b/qemu-vhost-n" }"#);
    assert_eq!(
        description,
        "socket /run/b/qemu-vhost-n belongs to nic \"n\"; give one of them another path"
    );
}

/// Contract 1.5, nic_update.
#[test]
fn updates_follow_the_table() {
    for (change, expected) in [
        ("", Ok((0, ""))),
        ("ip_anti_spoof: false", Ok((0, ""))),
        ("ip_anti_spoof: true", Ok((1, "ip_anti_spoof: true"))),
        ("shared_ip: true", Ok((1, "shared_ip: true"))),
        (
            "forwards: true",
            Err("NIC n is filtered and sends from its own addresses only: it cannot forward"),
        ),
        ("forwards: false shared_ip: false", Ok((0, "packet_trace: false }"))),
        ("router: true", Ok((1, "router: true"))),
        (
            "limits { in { bits: 1000000 burst_bytes: 3000 } }",
            Ok((1, "limits { in { bits: 1000000 burst_bytes: 3000 } }")),
        ),
        ("limits { out { packets: 5 } in { } }", Ok((1, "limits { out { packets: 5 } }"))),
        ("limits { in { bits: 0 } }", Ok((0, "vni: 1"))),
        ("limits { in { bits: 1 } }", Err("Bad Nic update format")),
        ("ip: \"0:0::1\" ip: \"::1\"", Ok((1, "ip: \"::1\" security"))),
        ("ip: \"\"", Ok((1, "vni: 1 security"))),
        ("prefix: \"\"", Ok((0, "vni: 1"))),
        (
            "prefix: \"FD00:1::/64\" prefix: \"fd00:2::/64\"",
            Ok((1, "prefix: \"fd00:1::/64\" prefix: \"fd00:2::/64\"")),
        ),
        ("prefix: \"fd00:1::/60\"", Err("Bad Nic update format")),
        (
            "shared_ip: true prefix: \"fd00:1::/64\"",
            Err(
                "nic \"n\" shares its addresses with other hosts, so that no prefix can be its own: declare it without --prefix",
            ),
        ),
        (
            "security_group: \"b\" security_group: \"a\"",
            Ok((1, "security_group: \"b\" security_group: \"a\" ip_")),
        ),
        ("security_group: \"\"", Ok((1, "ip: \"10.0.0.1\" ip_"))),
        (
            "packet_trace: false packet_trace_path: \"/p\"",
            Ok((0, "packet_trace: false packet_trace_path: \"/p\"")),
        ),
        ("ip: \"x\"", Err("Bad Nic update format")),
        ("ip: \"::1\" ip: \"\"", Err("Bad Nic update format")),
        ("security_group: \"\" security_group: \"a\"", Err("Bad Nic update format")),
        (
            "ip: \"::1\" packet_trace: true packet_trace_path: \"/no/where\"",
            Err("cannot write packets to /no/where: No such file or directory (os error 2)"),
        ),
        (
            "packet_trace_options { snap_length: 99 }",
            Ok((0, "packet_trace: false packet_trace_options { snap_length: 99 }")),
        ),
    ] {
        let mut host = Host::with_nics();
        let before = host.declared();
        let request = format!("nic_update {{ id: \"n\" {change} }}");
        match expected {
            Ok((calls, detail)) => {
                assert_eq!(host.succeeds(&request), "", "{change}");
                assert_eq!(host.fake().take_calls(), vec!["update n"; calls], "{change}");
                let details = host.succeeds("nic_details: \"n\"");
                assert!(details.contains(detail), "{change}: {details}");
            }
            Err(description) => {
                assert_eq!(host.fails(&request).0, description, "{change}");
                assert_eq!(host.declared(), before, "{change}");
                assert!(host.fake().take_calls().is_empty(), "{change}");
            }
        }
    }
    let unknown = Host::new().fails("nic_update { id: \"x\" }");
    assert_eq!(unknown, ("NIC does not exist with id x".into(), String::new()));
}

/// No VM is cut off, or kept out, because a file cannot be written; a client that asks for nothing
/// else is told.
#[test]
fn a_vnic_is_made_without_a_file_that_cannot_be_written() {
    let recorded = |host: &mut Host| {
        let shown = host.succeeds("nic_show: \"n\"");
        shown[shown.find("packet_trace { on: ").unwrap()..].to_owned()
    };
    let new_file =
        std::env::temp_dir().join(format!("butterfly-handlers-{}.pcap", std::process::id()));
    for (path, why) in [
        ("/no/where", "No such file or directory"),
        ("/dev/null", "it exists and is no file of packets of the daemon"),
    ] {
        let change = format!("packet_trace: true packet_trace_path: \"{path}\"");
        // New, made anew and in place; the last one a second time, when nothing changes.
        for before in
            [None, Some(nic_with("vni: 9")), Some(NIC.to_owned()), Some(nic_with(&change))]
        {
            let mut host = Host::new();
            before.iter().for_each(|before| drop(host.succeeds(before)));
            host.succeeds(&nic_with(&change));
            let told = recorded(&mut host);
            assert!(
                told.starts_with("packet_trace { on: false") && told.contains(why),
                "{path}: {told}"
            );
            let events = host.succeeds("event_list { nic_id: \"n\" }");
            assert_eq!(events.matches("not-recorded").count(), 1, "{events}");
            // A client that asks for something else gets it.
            assert_eq!(host.succeeds("nic_update { id: \"n\" ip: \"10.0.0.77\" }"), "");
            assert!(recorded(&mut host).contains(why));
            assert_eq!(
                host.succeeds("event_list { nic_id: \"n\" }").matches("not-recorded").count(),
                1
            );
            // The same again is a request for it, and so is another path.
            let (refused, _) = host.fails(&format!("nic_update {{ id: \"n\" {change} }}"));
            assert!(refused.contains(why), "{refused}");
            let other =
                format!("nic_update {{ id: \"n\" packet_trace_path: \"{}\" }}", new_file.display());
            assert_eq!(host.succeeds(&other), "");
            assert!(recorded(&mut host).starts_with("packet_trace { on: true"));
            let _ = std::fs::remove_file(&new_file);
        }
    }
}

/// Contract 1.5, the other requests about vnics.
#[test]
fn requests_about_vnics_follow_the_table() {
    let n = "nic_details { id: \"n\" mac: \"42:00:00:00:00:aA\" vni: 1 ip: \"10.0.0.1\" security_group: \"web\" \
             ip_anti_spoof: false bypass_filtering: false type: VHOST_USER_SERVER path: \"/run/b/qemu-vhost-n\" packet_trace: false }";
    let bypass = "nic_details { id: \"bypass\" mac: \"42:00:00:00:00:02\" vni: 2 ip_anti_spoof: false bypass_filtering: true \
                  type: VHOST_USER_SERVER path: \"/run/b/qemu-vhost-bypass\" packet_trace: false }";
    let both = format!("{bypass} {n}");
    for (request, expected) in [
        ("nic_list: true", Ok(r#"nic_list: "bypass" nic_list: "n""#)),
        ("nic_list: false", Ok(r#"nic_list: "bypass" nic_list: "n""#)),
        ("nic_details: \"n\"", Ok(n)),
        ("nic_details: \"\"", Ok(&both)),
        ("nic_details: \"x\"", Err("NIC: x not found")),
        ("nic_stats: \"n\"", Ok("nic_stats { in: 100 out: 200 }")),
        ("nic_stats: \"x\"", Err("NIC does not exist with id x")),
        ("nic_export: \"x\"", Err("NIC does not exist with id x")),
        ("nic_show: \"x\"", Err("NIC does not exist with id x")),
        ("nic_del: \"x\"", Ok("")),
        ("nic_del: \"\"", Ok("")),
        ("nic_del: \"n\"", Ok("")),
    ] {
        let mut host = Host::with_nics();
        match expected {
            Ok(response) => assert_eq!(host.succeeds(request), response, "{request}"),
            Err(description) => assert_eq!(host.fails(request).0, description, "{request}"),
        }
    }
}

#[test]
fn a_deleted_vnic_is_gone_and_may_come_back() {
    let mut host = Host::with_nics();
    host.succeeds("nic_del: \"n\"");
    assert_eq!(host.succeeds("nic_list: true"), r#"nic_list: "bypass""#);
    host.succeeds("nic_del: \"n\"");
    assert_eq!(host.fake().take_calls(), ["remove n"]);
    host.succeeds(NIC);
    assert_eq!(host.fake().take_calls(), ["add n"]);
    host.envelope.handler_mut().remove_all();
    assert_eq!(host.fake().take_calls(), ["remove bypass", "remove n"]);
    assert_eq!(host.succeeds("nic_list: true"), "");
}

#[test]
fn the_status_has_dates_counter_and_graph() {
    let mut host = Host::with_nics();
    let status = host.ask("app_status: false").app_status.unwrap();
    assert_eq!(status.start_date(), 1_700_000_000);
    assert!(status.current_date() >= status.start_date());
    assert_eq!(status.request_counter(), 3);
    let daemon = host.envelope.handler();
    assert_eq!(
        status.graph_dot(),
        crate::handlers::graph::dot(daemon.ip, None, None, daemon.desired.vnics().iter())
    );
    assert!(status.graph_dot().contains("vhost-bypass"));
}

#[test]
fn a_vnic_that_is_made_anew_is_told_of() {
    let mut host = Host::with_nics();
    let mut remade = |request: &str| host.ask(request).nic_add.unwrap().remade;
    assert!(remade(NIC).is_empty(), "nothing changed");
    assert!(remade(&nic_with("security_group: \"db\"")).is_empty(), "in place");
    assert_eq!(remade(&nic_with("vni: 9")), ["vni"]);
}

/// Requests that the original does not have; of its own the answers are as they were.
#[test]
fn what_was_probably_meant_is_told() {
    let mut host = Host::with_nics();
    host.succeeds("sg_add { id: \"web\" }");
    for request in [
        "nic_show: \"bypas\"",
        "drop_list { nic_id: \"bypas\" }",
        "session_list { filter { nic_id: \"bypas\" } }",
        "explain { from_nic: \"bypas\" to_nic: \"n\" }",
        "explain { from_nic: \"n\" to_nic: \"bypas\" }",
        "trace { start { target { nic_id: \"bypas\" } } }",
    ] {
        assert_eq!(
            host.fails(request),
            ("NIC does not exist with id bypas".into(), "did you mean bypass?".into()),
            "{request}"
        );
    }
    assert_eq!(
        host.fails("sg_rule_stats: \"wbe\""),
        ("Security Group not found".into(), "did you mean web?".into())
    );
    for request in [
        "nic_stats: \"bypas\"",
        "nic_details: \"bypas\"",
        "sg_rule_list: \"wbe\"",
        "sg_details: \"wbe\"",
    ] {
        assert_eq!(host.fails(request).1, "", "{request}");
    }
}

#[test]
fn health_is_told_without_a_graph() {
    let mut host = Host::with_nics();
    let health = host.ask("app_health: true").app_health.unwrap();
    assert_eq!(health.version(), butterfly_version::VERSION);
    assert_eq!(health.start_date(), 1_700_000_000);
    assert!(health.current_date() >= health.start_date());
    assert_eq!(health.nics() as usize, host.envelope.handler().desired.vnics().len());
    assert_eq!(health.security_groups() as usize, host.envelope.handler().desired.groups().len());
    assert_eq!(health.open_endpoint, None);
    host.envelope.handler_mut().open_endpoint = Some("tcp://0.0.0.0:9999".into());
    assert_eq!(host.ask("app_health: true").app_health.open_endpoint(), "tcp://0.0.0.0:9999");
}

#[test]
fn the_log_level_follows_requests() {
    let mut host = Host::new();
    host.succeeds("app_config { }");
    for (name, level) in [
        ("none", Level::None),
        ("error", Level::Error),
        ("warning", Level::Warning),
        ("info", Level::Info),
        ("debug", Level::Debug),
    ] {
        host.succeeds(&format!("app_config {{ log_level: \"{name}\" }}"));
        assert_eq!(host.levels.try_recv(), Ok(level));
    }
    for name in ["", "Debug", "loud"] {
        let (description, help) = host.fails(&format!("app_config {{ log_level: \"{name}\" }}"));
        assert_eq!(description, "Application configuration failed: log level: failed ");
        assert!(help.contains("none, error, warning, info or debug"));
    }
    assert!(host.levels.try_recv().is_err(), "nothing else was set");
}

#[test]
fn quitting_is_remembered_and_answered() {
    let mut host = Host::new();
    assert!(!host.envelope.handler().quit);
    assert_eq!(host.succeeds("app_quit: false"), "");
    assert!(host.envelope.handler().quit);
}

#[test]
fn a_vnic_is_shown_whole() {
    let mut host = Host::with_nics();
    let show = host.ask("nic_show: \"n\"").nic_show.unwrap();
    let features: Vec<_> =
        [&show.features_offered, &show.features_negotiated, &show.features_refused]
            .map(Vec::len)
            .into();
    assert_eq!(show.features_refused, ["in-order"]);
    assert_eq!(features[0], features[1] + 1);
    assert_eq!(show.protocol_features.len(), 1);
    let reasons: Vec<_> = butterfly_datapath::reasons().collect();
    assert!(!reasons.is_empty());
    assert_eq!(show.drops.len(), reasons.len());
    for ((drop, reason), count) in show.drops.iter().zip(reasons).zip(1..) {
        let expected = (reason.name, count, reason.description.trim());
        assert_eq!((drop.reason(), drop.count(), drop.description()), expected);
    }
    let rest = butterfly_api::proto::NicShow {
        features_offered: vec![],
        features_negotiated: vec![],
        features_refused: vec![],
        protocol_features: vec![],
        drops: vec![],
        ..show
    };
    let expected = "id: \"n\" mac: \"42:00:00:00:00:aA\" vni: 1 path: \"/run/b/qemu-vhost-n\" type: VHOST_USER_SERVER \
        role: \"server\" attached: true attached_since: 1000 \
        queues { name: \"rx\" running: false trouble: \"no memory\" pair: 0 } \
        queues { name: \"tx\" size: 256 running: true enabled: true next_avail: 3 used: 2 guest_avail: 5 broken: true pair: 0 pending: 2 } \
        memory_regions { guest_addr: 4096 size: 8192 page_size: 4096 } \
        last_detach_reason: \"it crashed\" last_detach_time: 900 attach_count: 4 \
        in_packets: 1 in_bytes: 100 out_packets: 2 out_bytes: 200 bypass_filtering: false ip_anti_spoof: false \
        ip: \"10.0.0.1\" security_group: \"web\" trouble: \"trouble\" peer_pid: 77 others_waiting: true migrating: true \
        flooded: 5 learn_refused: 6 sessions: 8 announced: 7 \
        interrupts { costly: 2 confirmed: 1 apart: true worst_ns: 94000000 } \
        first_touches { pages: 70000 rests: 3 stalls: 1 stalled_us: 306000 } missing_group: \"web\" passed_on: 9";
    assert_eq!(one_line(&text::print(&rest)), expected);
}

#[test]
fn the_fdb_and_the_workers_are_listed() {
    let mut host = Host::new();
    let one = r#"fdb_list { vni: 1 mac: "02:00:00:00:00:01" nic_id: "n" kind: STATIC }"#;
    let two = r#"fdb_list { vni: 2 mac: "02:00:00:00:00:01" nic_id: "n" kind: LEARNT age: 7 }"#;
    let four =
        r#"fdb_list { vni: 4 mac: "02:00:00:00:00:01" kind: LEARNT age: 8 peer: "2001:db8::2" }"#;
    assert_eq!(host.succeeds("fdb_list { }"), format!("{one} {two} {four}"));
    assert_eq!(host.succeeds("fdb_list { vni: 2 }"), two);
    assert_eq!(host.succeeds("fdb_list { vni: 3 }"), "");
    assert_eq!(
        host.fails("fdb_list { vni: 16777216 }").0,
        "VNI 16777216 is out of range: VNIs are 0 to 16777215"
    );
    let worker = "worker_list { id: 0 core: 1 polling: true busy_cycles: 10 packets: 11 batches: 12 sleeps: 13 idle_polls: 14 \
                  batch_sizes: 1 batch_sizes: 2 tsc_hz: 16 active_rings: 15 rings { nic_id: \"vm\" pair: 3 } load: 500 moves: 18 \
                  uplink_queues: 0 uplink_queues: 4 }";
    assert_eq!(host.succeeds("worker_list: false"), worker);
}

//! A whole state in one request.

use super::host::{Host, one_line};
use butterfly_api::{proto::Response, text};
use butterfly_datapath::VnicSpec;

const N: &str =
    r#"nic { id: "n" mac: "42:00:00:00:00:aA" vni: 1 ip: "10.0.0.1" security_group: "web" }"#;
const BYPASS: &str =
    r#"nic { id: "bypass" mac: "42:00:00:00:00:02" vni: 2 bypass_filtering: true }"#;
const WEB: &str = r#"security_group { id: "web" member: "10.0.0.9" rule { direction: INBOUND protocol: 6
    port_start: 80 port_end: 80 cidr { address: "10.0.0.7" mask_size: 24 } } }"#;

/// Objects that changed, and how.
fn told(response: &Response) -> Vec<String> {
    let row = |row: &butterfly_api::proto::apply_res::Change| {
        let (object, what) = (row.object().to_owned(), row.what().to_owned());
        format!("{object:?} {} {what:?}: {}", row.name(), row.text())
    };
    response.apply.change.iter().map(row).collect()
}

/// Calls of the data path about vnics.
fn calls(host: &mut Host) -> Vec<String> {
    let mut calls = host.fake().take_calls();
    calls.retain(|call| !call.starts_with("group "));
    calls
}

/// All vnics of the data path; of their order nothing but the lines that they stand in counts.
fn vnics(host: &mut Host) -> String {
    let all = host.fake().vnics.values().cloned();
    format!("{:?}", all.map(|spec| VnicSpec { order: 0, ..spec }).collect::<Vec<_>>())
}

#[track_caller]
fn applied(host: &mut Host, state: &str) -> Vec<String> {
    let response = host.ask(&format!("apply {{ {state} }}"));
    assert!(response.status.status(), "{response}");
    told(&response)
}

#[test]
fn a_state_is_made_and_made_again_it_changes_nothing() {
    let mut host = Host::new();
    host.fake().uplink = true;
    let state = format!("{N} {BYPASS} {WEB} peer {{ address: \"192.0.2.7\" vni: 7 }}");
    let all = [
        "NIC bypass ADDED: MAC 42:00:00:00:00:02, VNI 2, bypasses filtering",
        "NIC n ADDED: MAC 42:00:00:00:00:aA, VNI 1, ip 10.0.0.1, security groups web",
        "SECURITY_GROUP web ADDED: 1 rule, 1 member",
        "PEER 192.0.2.7 ADDED: for network 7",
    ];
    assert_eq!(applied(&mut host, &format!("{state} dry_run: true")), all);
    assert_eq!((host.declared(), calls(&mut host)), (String::new(), vec![]));
    assert_eq!(applied(&mut host, &state), all);
    assert_eq!(calls(&mut host), ["add n", "add bypass"]);
    assert_eq!(host.fake().groups.len(), 1);
    let declared = host.declared();
    // Spellings and host bits are as they were said.
    assert!(declared.contains("aA") && declared.contains("10.0.0.7"), "{declared}");
    for state in [state.clone(), format!("{state} prune: true")] {
        assert_eq!(applied(&mut host, &state), [""; 0]);
        assert_eq!((host.declared(), calls(&mut host)), (declared.clone(), vec![]));
    }
}

#[test]
fn what_is_not_named_stays_or_goes() {
    let mut host = Host::with_nics();
    host.succeeds("sg_add { id: \"old\" }");
    let state = N.replace("10.0.0.1", "10.0.0.2");
    let changed = "NIC n CHANGED: ip +10.0.0.2 -10.0.0.1";
    assert_eq!(applied(&mut host, &state), [changed]);
    assert_eq!(calls(&mut host), ["update n"]);
    let gone = ["NIC bypass REMOVED: ", "SECURITY_GROUP old REMOVED: "];
    assert_eq!(applied(&mut host, &format!("{state} prune: true dry_run: true")), gone);
    assert_eq!(host.succeeds("nic_list: true"), r#"nic_list: "bypass" nic_list: "n""#);
    assert_eq!(applied(&mut host, &format!("{state} prune: true")), gone);
    assert_eq!(host.succeeds("nic_list: true"), r#"nic_list: "n""#);
    assert_eq!(host.fake().groups.len(), 0);
}

#[test]
fn who_is_cut_off_is_told() {
    let mut host = Host::with_nics();
    let moved = N.replace("vni: 1", "vni: 3");
    assert_eq!(applied(&mut host, &moved), ["NIC n REMADE: vni 1 -> 3"]);
    assert_eq!(calls(&mut host), ["remove n", "add n"]);
    // A vnic to which no VM can attach any more is made anew, as by nic add.
    host.fake().sockets_gone.insert("n".into());
    assert_eq!(applied(&mut host, &moved), ["NIC n REMADE: socket, which was gone"]);
    assert_eq!(calls(&mut host), ["remove n", "add n"]);
}

/// A dump does not tell them.
#[test]
fn ports_that_are_not_echoed_stay() {
    let mut host = Host::new();
    let rule = "direction: INBOUND protocol: 1 cidr { address: \"10.0.0.0\" mask_size: 8 }";
    host.succeeds(&format!(
        "sg_add {{ id: \"g\" rule {{ {rule} port_start: 8 }} rule {{ {rule} port_start: 9 }} }}"
    ));
    let before = host.fake().groups.clone();
    let dump = host.succeeds("sg_details: \"\"").replace("sg_details", "security_group");
    assert_eq!(applied(&mut host, &format!("{dump} prune: true")), [""; 0]);
    assert_eq!(host.fake().groups, before);
}

#[test]
fn what_is_refused_changes_nothing() {
    let mut host = Host::with_nics();
    let before = host.declared();
    for (state, description, help) in [
        ("", "the state is empty", "nothing was changed"),
        ("prune: true", "the state is empty", "delete it by name"),
        (
            "nic { id: \"x\" mac: \"no\" vni: 1 }",
            "nic \"x\": Bad NIC format",
            "MAC address \"no\" is refused",
        ),
        (&format!("{N} {N}"), "nic \"n\" is declared twice", ""),
        (&format!("{WEB} {WEB}"), "security group \"web\" is declared twice", ""),
        (
            "security_group { id: \"g\" member: \"x\" }",
            "security group \"g\": Bad Security Group format",
            "\"x\" is not an IP address",
        ),
        ("peer { address: \"192.0.2.1\" }", "this host has no uplink", ""),
        ("peer { address: \"224.0.0.1\" }", "peer \"224.0.0.1\": 224.0.0.1 is not the", ""),
        (
            "nic { id: \"m\" mac: \"42:00:00:00:00:07\" vni: 9 sniff_target_nic_id: \"n\" }",
            "nic \"m\" of VNI 9 cannot mirror nic \"n\" of VNI 1",
            "",
        ),
        (
            "nic { id: \"x\" mac: \"42:00:00:00:00:07\" vni: 9 packet_trace: true packet_trace_options { filter: \"tcp and\" } }",
            "nic \"x\": filter \"tcp and\" is refused",
            "pcap-filter",
        ),
    ] {
        // What comes before it is good.
        let request =
            format!("apply {{ nic {{ id: \"a\" mac: \"42:00:00:00:00:09\" vni: 1 }} {state} }}");
        let request =
            if description.contains("empty") { format!("apply {{ {state} }}") } else { request };
        let (got, got_help) = host.fails(&request);
        assert!(got.starts_with(description), "{request}: {got}");
        assert!(got_help.contains(help), "{request}: {got_help}");
        assert_eq!((host.declared(), calls(&mut host)), (before.clone(), vec![]));
    }
    host.fake().irreplaceable = Some("no such namespace");
    let (got, _) = host.fails(&format!("apply {{ {} }}", N.replace("vni: 1", "vni: 3")));
    assert_eq!(got, "nic \"n\": no such namespace");
    assert!(calls(&mut host).is_empty(), "it was found before anything was cut");
    // The same of a vnic that is added, whatever else the file changes, and for a dry run, too.
    (host.fake().irreplaceable, host.fake().inaddible) = (None, Some("no such namespace"));
    let added = "nic { id: \"z\" mac: \"42:00:00:00:00:09\" vni: 1 }";
    for options in ["", "dry_run: true", "prune: true"] {
        let changed = N.replace("vni: 1", "vni: 3");
        let (got, _) = host.fails(&format!("apply {{ {changed} {added} {options} }}"));
        assert_eq!(got, "nic \"z\": no such namespace");
        assert!(calls(&mut host).is_empty(), "it was found before anything was cut");
    }
}

#[test]
fn a_failure_half_way_restores_what_was() {
    let mut host = Host::with_nics();
    let state = format!(
        "{WEB} {} nic {{ id: \"z\" mac: \"42:00:00:00:00:09\" vni: 1 }}",
        N.replace("10.0.0.1", "10.0.0.2"),
    );
    let before = (host.declared(), vnics(&mut host));
    host.fake().refusals = [None, Some("no")].into();
    let (description, help) = host.fails(&format!("apply {{ {state} }}"));
    assert_eq!(description, "nic \"z\": no");
    assert!(help.ends_with("; everything is as it was before"), "{help}");
    assert_eq!(calls(&mut host), ["update n", "add z", "update n"]);
    assert_eq!((host.declared(), vnics(&mut host)), before);
    assert!(host.fake().groups.is_empty());
    // A deleted vnic comes back, without the VM that was attached.
    host.fake().refusals = [Some("no")].into();
    let only = "nic { id: \"z\" mac: \"42:00:00:00:00:09\" vni: 1 } prune: true";
    let (_, help) = host.fails(&format!("apply {{ {only} }}"));
    assert!(help.ends_with("the virtual machines of these nics were cut off: bypass, n"), "{help}");
    assert_eq!((host.declared(), vnics(&mut host)), before);
    host.fake().refusals = [Some("no"), Some("never")].into();
    let (_, help) = host.fails(&format!("apply {{ {only} }}"));
    assert!(help.contains("this could not be restored: nic \""), "{help}");
    assert_eq!(host.succeeds("nic_list: true").matches("nic_list").count(), 1);
}

/// Each has what the other one is to have.
#[test]
fn two_exchange_their_sockets() {
    let mut host = Host::new();
    let client = |id: &str, mac: u8, path: &str| {
        format!(
            "nic {{ id: \"{id}\" mac: \"42:00:00:00:00:0{mac}\" vni: 1 type: VHOST_USER_CLIENT path: \"{path}\" }}"
        )
    };
    applied(&mut host, &(client("a", 1, "/p") + &client("b", 2, "/q")));
    let rows = applied(&mut host, &(client("a", 1, "/q") + &client("b", 2, "/p")));
    assert_eq!(rows, ["NIC a REMADE: path /p -> /q", "NIC b REMADE: path /q -> /p"]);
    let details = one_line(&text::print(&host.ask("nic_details: \"a\"")));
    assert!(details.contains("path: \"/q\""), "{details}");
}

/// The events since a number: kind, what they are about, text; `-` before those that were taken
/// back.
fn events(host: &mut Host, since: u64) -> Vec<String> {
    let list = host.ask(&format!("event_list {{ since: {since} }}")).event_list.unwrap();
    let line = |event: &butterfly_api::proto::Event| {
        let sign = if event.taken_back() { "- " } else { "" };
        format!("{sign}{} {}: {}", event.kind(), event.nic_id(), event.text())
    };
    list.event.iter().map(line).collect()
}

fn newest(host: &mut Host) -> u64 {
    host.ask("event_list { }").event_list.next()
}

#[test]
fn a_dry_run_leaves_no_event() {
    let mut host = Host::with_nics();
    let since = newest(&mut host);
    applied(
        &mut host,
        &format!("{WEB} {} prune: true dry_run: true", N.replace("vni: 1", "vni: 3")),
    );
    host.fails("apply { nic { id: \"x\" mac: \"no\" vni: 1 } dry_run: true }");
    assert_eq!(events(&mut host, since), [""; 0]);
    host.fails("apply { nic { id: \"x\" mac: \"no\" vni: 1 } }");
    assert_eq!(events(&mut host, since).len(), 1, "it was to be done");
}

#[test]
fn events_of_a_state_that_was_taken_back_say_so() {
    let mut host = Host::with_nics();
    let since = newest(&mut host);
    let added = "nic { id: \"z\" mac: \"42:00:00:00:00:09\" vni: 1 }";
    let state = format!("{WEB} {} {added}", N.replace("10.0.0.1", "10.0.0.2"));
    host.fake().refusals = [None, Some("no")].into();
    host.fails(&format!("apply {{ {state} }}"));
    let told = events(&mut host, since);
    let (failed, done) = told.split_last().unwrap();
    assert!(failed.starts_with("request-failed : refused: nic \"z\": no"), "{failed}");
    let kinds: Vec<&str> = done.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(kinds, ["- nic-updated n", "- nic-updated n"], "{told:?}");
    // The next one is another one.
    let since = newest(&mut host);
    applied(&mut host, &state);
    assert!(events(&mut host, since).iter().all(|line| !line.starts_with('-')));
    // If something could not be restored, the record keeps both directions as they were.
    let mut host = Host::with_nics();
    let since = newest(&mut host);
    host.fake().refusals = [Some("no"), Some("never")].into();
    let (_, help) = host.fails(&format!("apply {{ {added} prune: true }}"));
    assert!(help.contains("this could not be restored"), "{help}");
    assert!(events(&mut host, since).iter().all(|line| !line.starts_with('-')));
}

/// A vnic that stays as it is goes and comes again, as one before it in its line does.
#[test]
fn who_makes_way_is_told_once_and_that_it_is_cut() {
    let mut host = Host::new();
    let client = |id: &str, mac: u8, path: &str| {
        format!(
            "nic {{ id: \"{id}\" mac: \"42:00:00:00:00:0{mac}\" vni: 1 type: VHOST_USER_CLIENT path: \"{path}\" }}"
        )
    };
    let behind = "nic { id: \"w\" mac: \"42:00:00:00:00:01\" vni: 1 }";
    applied(&mut host, &(client("a", 1, "/p") + &client("b", 2, "/q") + behind));
    let since = newest(&mut host);
    let rows = applied(&mut host, &(client("a", 1, "/q") + &client("b", 2, "/p") + behind));
    assert_eq!(
        rows,
        [
            "NIC a REMADE: path /p -> /q",
            "NIC b REMADE: path /q -> /p",
            "NIC w REMADE: removed to make way for another nic and made again, so its traffic is cut"
        ]
    );
    let told = events(&mut host, since);
    let removed = "nic-removed w: removed to make way for another nic, and made again in the same apply: its traffic is cut";
    assert!(told.iter().any(|line| line == removed), "{told:?}");
}

#[test]
fn what_is_told_has_a_bound_and_all_is_done() {
    let mut host = Host::new();
    let group = |n: u32| format!("security_group {{ id: \"{n}{}\" }} ", "x".repeat(100));
    let all: String = (0..12_000).map(group).collect();
    let response = host.ask(&format!("apply {{ {all} }}"));
    let apply = &response.apply;
    assert!(apply.more() > 0 && apply.change.len() as u64 + apply.more() == 12_000);
    assert_eq!(host.fake().groups.len(), 12_000);
}

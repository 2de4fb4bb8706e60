//! Traces of requests in the record of events.

use super::{BYPASS, NIC, host::Host, nic_with};
use butterfly_api::{
    Caller,
    proto::{Event, EventListRes, Messages},
    text,
};
use butterfly_datapath::{About, Happening, SwitchEvents};
use protobuf::Message;

fn list(host: &mut Host, query: &str) -> EventListRes {
    host.ask(&format!("event_list {{ {query} }}")).event_list.unwrap()
}

/// Returns the notes since the last call, as `kind nic/vni request: text`.
fn noted(host: &mut Host, since: &mut u64) -> Vec<String> {
    let list = list(host, &format!("since: {since}"));
    *since = list.next();
    list.event.iter().map(line).collect()
}

fn line(event: &Event) -> String {
    let about = match (&event.nic_id, event.vni) {
        (Some(nic), Some(vni)) => format!(" {nic}/{vni}"),
        _ => String::new(),
    };
    format!("{}{about} {}: {}", event.kind(), event.request(), event.text())
}

const RULE: &str = "rule { direction: INBOUND protocol: 6 port_start: 80 port_end: 90 cidr { address: \"10.0.0.0\" mask_size: 8 } }";

/// Without an OUTBOUND rule everything may leave. An operator who removes the last one finds it in
/// the record of each vnic that is concerned.
#[test]
fn egress_that_opens_is_an_event() {
    let mut host = Host::new();
    let out = RULE.replace("INBOUND", "OUTBOUND");
    let group = |id: &str| format!("sg_add {{ id: \"{id}\" {RULE} {out} }}");
    let nic = |id: &str, rest: &str| {
        nic_with(rest)
            .replace("id: \"n\"", &format!("id: \"{id}\""))
            .replace("42:00:00:00:00:aA", &format!("42:00:00:00:00:{:02x}", id.as_bytes()[0]))
    };
    for request in [
        group("g"),
        group("h"),
        nic("a", "security_group: \"g\""),
        nic("b", "security_group: \"g\" security_group: \"h\""),
        nic("c", "security_group: \"g\" bypass_filtering: true"),
        nic("d", "security_group: \"h\""),
    ] {
        host.succeeds(&request);
    }
    let mut since = list(&mut host, "").next();
    let mut opened = |request: &str| {
        host.succeeds(request);
        let noted = noted(&mut host, &mut since);
        let opened = noted.iter().filter_map(|line| line.strip_prefix("egress-opened "));
        opened.map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let rule = |what: &str, id: &str| format!("sg_rule_{what} {{ sg_id: \"{id}\" {out} }}");
    assert_eq!(opened(&rule("del", "g")), ["a/1"]);
    assert_eq!(opened(&rule("del", "g")), [""; 0], "it was open");
    assert_eq!(opened("sg_del: \"g\""), [""; 0], "it was open");
    assert_eq!(opened("sg_del: \"h\""), ["b/1", "d/1"]);
    opened(&group("g"));
    assert_eq!(opened(&group("g")), [""; 0]);
    assert_eq!(opened(&format!("sg_add {{ id: \"g\" {RULE} }}")), ["a/1", "b/1"]);
    opened(&rule("add", "g"));
    assert_eq!(opened(&format!("sg_add {{ id: \"g\" {out} }}")), [""; 0], "one is left");
}

#[test]
fn each_change_is_an_event_and_what_changes_nothing_is_none() {
    let mut host = Host::new();
    host.fake().uplink = true;
    let mut since = 0;
    for (request, expected) in [
        (NIC.to_owned(), "nic-added n/1 nic_add: made: MAC 42:00:00:00:00:aA, VNI 1, socket /run/b/qemu-vhost-n"),
        (NIC.to_owned(), ""),
        (nic_with("ip: \"10.0.0.2\" ip: \"::1\""), "nic-updated n/1 nic_add: changed in place: ip +10.0.0.2 +::1 -10.0.0.1"),
        (
            "nic_update { id: \"n\" security_group: \"web\" security_group: \"db\" ip_anti_spoof: true }".into(),
            "nic-updated n/1 nic_update: changed in place: security groups +db, antispoof off -> on",
        ),
        ("nic_update { id: \"n\" ip_anti_spoof: true }".into(), ""),
        (
            "nic_update { id: \"n\" security_group: \"db\" security_group: \"web\" packet_trace_path: \"/p\" }".into(),
            "nic-updated n/1 nic_update: changed in place: security groups in another order, packet trace path none -> /p",
        ),
        (nic_with("vni: 9"), "nic-remade n/9 nic_add: made anew, as these changed: vni"),
        ("nic_del: \"n\"".into(), "nic-removed n/9 nic_del: deleted"),
        ("nic_del: \"n\"".into(), ""),
        (format!("sg_add {{ id: \"web\" {RULE} }}"), "sg-declared sg_add: security group \"web\" has 1 rule and 0 members"),
        (format!("sg_add {{ id: \"web\" {RULE} }}"), ""),
        (
            "sg_rule_add { sg_id: \"web\" rule { direction: OUTBOUND protocol: -1 security_group: \"a b\" } }".into(),
            "sg-rule-added sg_rule_add: security group \"web\": outbound any protocol to members of \"a b\"",
        ),
        (format!("sg_rule_add {{ sg_id: \"web\" {RULE} }}"), ""),
        (
            format!("sg_rule_del {{ sg_id: \"web\" {RULE} }}"),
            "sg-rule-removed sg_rule_del: security group \"web\": inbound tcp 80-90 from 10.0.0.0/8",
        ),
        (format!("sg_rule_del {{ sg_id: \"web\" {RULE} }}"), ""),
        (
            "sg_member_add { sg_id: \"web\" member: \"10.0.0.7\" }".into(),
            "sg-member-added sg_member_add: security group \"web\": 10.0.0.7",
        ),
        ("sg_member_add { sg_id: \"web\" member: \"10.0.0.7\" }".into(), ""),
        (
            "sg_member_del { sg_id: \"web\" member: \"10.0.0.7\" }".into(),
            "sg-member-removed sg_member_del: security group \"web\": 10.0.0.7",
        ),
        (
            "sg_member_add { sg_id: \"new\" member: \"::2\" }".into(),
            "sg-declared sg_member_add: security group \"new\" has 0 rules and 1 member",
        ),
        ("sg_del: \"web\"".into(), "sg-removed sg_del: security group \"web\" deleted"),
        ("sg_del: \"web\"".into(), ""),
        ("session_flush { }".into(), "sessions-flushed session_flush: 71 sessions flushed"),
        ("peer_add { address: \"192.0.2.2\" }".into(), "peer-named peer_add: peer 192.0.2.2 is named for all networks"),
        ("peer_add { address: \"192.0.2.2\" }".into(), ""),
        (
            "peer_del { address: \"192.0.2.2\" }".into(),
            "peer-unnamed peer_del: peer 192.0.2.2 is not named any more for all networks",
        ),
        (
            "network_add { vni: 42 subnet { cidr { address: \"10.0.0.0\" mask_size: 8 } } mtu: 1400 }".into(),
            "network-declared network_add: network 42: subnet 10.0.0.0/8, MTU 1400",
        ),
        ("router_add { id: \"r\" }".into(), "router-declared router_add: router \"r\": attached to no network"),
        (
            "router_attach { router: \"r\" vni: 42 address: \"10.7.7.7\" }".into(),
            "router-declared router_attach: router \"r\": network 42 as 10.7.7.7",
        ),
        ("router_attach { router: \"r\" vni: 42 address: \"10.7.7.7\" }".into(), ""),
        (
            "route_add { router: \"r\" cidr { address: \"192.0.2.0\" mask_size: 24 } via: \"10.7.7.8\" }".into(),
            "router-declared route_add: router \"r\": network 42 as 10.7.7.7, route 192.0.2.0/24 via 10.7.7.8",
        ),
        ("route_add { router: \"r\" cidr { address: \"192.0.2.0\" mask_size: 24 } via: \"10.7.7.8\" }".into(), ""),
        (
            "route_del { router: \"r\" cidr { address: \"192.0.2.0\" mask_size: 24 } }".into(),
            "router-declared route_del: router \"r\": network 42 as 10.7.7.7",
        ),
        (
            "neighbour_add { vni: 42 address: \"10.7.7.9\" mac: \"02:00:00:00:00:09\" host: \"192.0.2.2\" }".into(),
            "neighbour-declared neighbour_add: neighbour 10.7.7.9 of network 42: MAC 02:00:00:00:00:09, host 192.0.2.2",
        ),
        ("neighbour_add { vni: 42 address: \"10.7.7.9\" mac: \"02:00:00:00:00:09\" host: \"192.0.2.2\" }".into(), ""),
        (
            "neighbour_add { vni: 42 address: \"10.7.7.9\" mac: \"02:00:00:00:00:09\" }".into(),
            "neighbour-declared neighbour_add: neighbour 10.7.7.9 of network 42: MAC 02:00:00:00:00:09",
        ),
        (
            "neighbour_del { vni: 42 address: \"10.7.7.9\" }".into(),
            "neighbour-removed neighbour_del: neighbour 10.7.7.9 of network 42 deleted",
        ),
        ("neighbour_del { vni: 42 address: \"10.7.7.9\" }".into(), ""),
        ("router_del: \"r\"".into(), "router-removed router_del: router \"r\" deleted"),
        ("network_del: 42".into(), "network-removed network_del: network 42 is not declared any more"),
        ("network_del: 42".into(), ""),
        ("app_config { log_level: \"debug\" }".into(), "log-level app_config: the log level is debug"),
        ("nic_list: true".into(), ""),
        ("event_list { }".into(), ""),
        ("app_quit: true".into(), "daemon-stopping app_quit: a client asked the daemon to quit"),
    ] {
        let response = host.ask(&request);
        assert!(response.status.status(), "{request}: {response}");
        // The report has the other spelling of the MAC address, as it was declared.
        assert_eq!(noted(&mut host, &mut since).join("\n"), expected, "{request}");
    }
}

#[test]
fn what_failed_is_an_event_with_its_reason() {
    let mut host = Host::with_nics();
    let mut since = list(&mut host, "").next();
    for (request, expected) in [
        (
            "nic_show: \"nobody\"".to_owned(),
            "request-failed nic_show: refused: NIC does not exist with id nobody",
        ),
        (
            nic_with("vni: 16777216"),
            "request-failed n/1 nic_add: refused: Bad NIC format; VNI 16777216 is out of range: VNIs are 0 to 16777215",
        ),
        (
            "nic_update { id: \"n\" ip: \"x\" }".into(),
            "request-failed n/1 nic_update: refused: Bad Nic update format; \"x\" is not an IP address; write 192.0.2.1 or 2001:db8::1",
        ),
        (
            "sg_rule_list: \"x\"".into(),
            "request-failed sg_rule_list: refused: Security Group not found",
        ),
        (
            "event_list { limit: 10001 }".into(),
            "request-failed event_list: refused: limit 10001 is out of range: 0 to 10000; that is as many as are kept; go on with since",
        ),
        ("".into(), "request-failed unknown: refused: a message without a request"),
    ] {
        assert!(!host.ask(&request).status.status(), "{request}");
        assert_eq!(noted(&mut host, &mut since).join("\n"), expected, "{request}");
    }
    host.fake().refusals = [Some("no")].into();
    host.fails("nic_update { id: \"n\" ip: \"10.0.0.9\" }");
    assert_eq!(
        noted(&mut host, &mut since),
        ["request-failed n/1 nic_update: refused: no"],
        "and no nic-updated"
    );
    host.fake().refusals = [Some("no"), Some("never")].into();
    host.fails(&nic_with("vni: 9"));
    let [gone, failed] = &noted(&mut host, &mut since)[..] else { panic!() };
    assert_eq!(gone, "nic-removed n/9 nic_add: could be neither changed nor restored: never");
    assert!(
        failed.starts_with("request-failed nic_add: refused: no; the nic could not be restored"),
        "{failed}"
    );
    // What is no request at all.
    host.envelope.answer(b"\xff");
    let [garbage] = &noted(&mut host, &mut since)[..] else { panic!() };
    assert!(
        garbage.starts_with(
            "request-failed unknown: refused: a request of 1 bytes is not decodable: "
        ),
        "{garbage}"
    );
}

#[test]
fn who_asked_is_told() {
    let mut host = Host::new();
    let asked = |host: &mut Host, caller| {
        let envelope: Messages =
            text::parse(&format!("messages {{ revision: 6 message_0 {{ request {{ {NIC} }} }} }}"))
                .unwrap();
        host.envelope.answer_to(envelope.write_to_bytes().unwrap(), caller);
        let events = list(host, "").event;
        host.ask("nic_del: \"n\"");
        events.last().unwrap().client.clone()
    };
    assert_eq!(
        asked(&mut host, Some(Caller::Host("192.0.2.9".parse().unwrap()))).as_deref(),
        Some("192.0.2.9")
    );
    assert_eq!(asked(&mut host, Some(Caller::Local)).as_deref(), Some("a local process"));
    assert_eq!(asked(&mut host, None), None);
}

#[test]
fn events_are_listed_by_number_vnic_and_page() {
    let mut host = Host::new();
    host.succeeds(NIC);
    host.succeeds(BYPASS);
    let announcer = host.envelope.handler().announcer.clone();
    announcer.happened(About { nic: Some("n"), vni: Some(1) }, Happening::Attached);
    announcer.happened(About { nic: Some("n"), vni: Some(1) }, Happening::Detached("it crashed"));
    let seqs = |host: &mut Host, query: &str| {
        let list = list(host, query);
        (list.event.iter().map(|event| event.seq()).collect::<Vec<_>>(), list.next(), list.lost())
    };
    assert_eq!(seqs(&mut host, ""), (vec![1, 2, 3, 4], 4, 0));
    assert_eq!(seqs(&mut host, "since: 2"), (vec![3, 4], 4, 0));
    assert_eq!(seqs(&mut host, "limit: 2"), (vec![1, 2], 2, 0));
    assert_eq!(seqs(&mut host, "limit: 2 newest: true"), (vec![3, 4], 4, 0));
    assert_eq!(seqs(&mut host, "nic_id: \"n\""), (vec![1, 3, 4], 4, 0));
    assert_eq!(seqs(&mut host, "nic_id: \"nobody\""), (vec![], 4, 0));
    assert_eq!(seqs(&mut host, "since: 99"), (vec![], 4, 0));
    let all = list(&mut host, "");
    let texts: Vec<String> = all.event.iter().skip(2).map(line).collect();
    assert_eq!(
        texts,
        [
            "guest-attached n/1 : a virtual machine attached",
            "guest-detached n/1 : the virtual machine detached: it crashed"
        ]
    );
    assert!(all.event.iter().all(|event| event.time() >= all.started() && !event.has_more()));
}

/// A client that asks for missing things again and again leaves room for others.
#[test]
fn failures_are_summed_up() {
    let mut host = Host::with_nics();
    for _ in 0..5000 {
        host.fails("nic_show: \"nobody\"");
    }
    let failed =
        list(&mut host, "").event.iter().filter(|event| event.kind() == "request-failed").count();
    assert!((10..100).contains(&failed), "{failed}");
}

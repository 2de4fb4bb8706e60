//! Vnics with guests of our own.

use super::host::Host;
use butterfly_datapath::{Front, Mac, Machine};

const MAC: &str = "42:00:00:00:00:01";

fn declare(rest: &str) -> String {
    format!("nic_add {{ id: \"n\" mac: \"{MAC}\" vni: 1 ip: \"10.0.0.1\" {rest} }}")
}

const SENDER: &str =
    r#"type: BENCH btype: "ICMP_SND_LIKE" dip: "10.0.0.2" dmac: "42:00:00:00:00:02""#;
const RECEIVER: &str = r#"type: BENCH btype: "ICMP_RCV_LIKE""#;

fn front(host: &mut Host) -> Front {
    host.fake().vnics["n"].front.clone()
}

/// Contract 1.2, NicAddRes.path, and what `butterfly dump` is made of.
#[test]
fn each_kind_has_its_path_and_is_told_as_it_was_declared() {
    let tap = |namespace: Option<&str>| Machine::Tap { namespace: namespace.map(Into::into) };
    let ping = Machine::Ping { ip: [10, 0, 0, 2].into(), mac: Mac([0x42, 0, 0, 0, 0, 2]) };
    for (kind, path, told, machine) in [
        ("type: TAP", "tap-n", r#"type: TAP path: "tap-n""#, tap(None)),
        (r#"type: TAP path: "/x""#, "tap-n", r#"type: TAP path: "tap-n""#, tap(None)),
        (r#"type: TAP netns: "blue""#, "tap-n", r#"netns: "blue""#, tap(Some("/run/netns/blue"))),
        (
            r#"type: TAP netns: "/proc/7/ns/net""#,
            "tap-n",
            r#"netns: "/proc/7/ns/net""#,
            tap(Some("/proc/7/ns/net")),
        ),
        (
            SENDER,
            "(nil)",
            r#"btype: "ICMP_SND_LIKE" dip: "10.0.0.2" dmac: "42:00:00:00:00:02""#,
            ping,
        ),
        (RECEIVER, "(nil)", r#"btype: "ICMP_RCV_LIKE""#, Machine::Echo),
    ] {
        let mut host = Host::new();
        assert_eq!(host.succeeds(&declare(kind)), format!("nic_add {{ path: \"{path}\" }}"));
        assert_eq!(front(&mut host), Front::Inside(machine));
        let details = host.declared();
        assert!(details.contains(told), "{details}");
        assert_eq!(
            host.succeeds(&details.replacen("nic_details", "nic_add", 1)),
            format!("nic_add {{ path: \"{path}\" }}")
        );
        assert_eq!(host.fake().take_calls(), ["add n"], "a dump changes nothing");
    }
}

#[test]
fn another_type_or_namespace_makes_it_anew_and_addresses_do_not() {
    let mut host = Host::new();
    let mut step = |request: &str, calls: &[&str]| {
        host.succeeds(request);
        assert_eq!(host.fake().take_calls(), calls, "{request}");
    };
    let anew = &["remove n", "add n"];
    step(&declare("type: TAP"), &["add n"]);
    step(&declare("type: TAP netns: \"a\""), anew);
    step(&declare("type: TAP netns: \"b\""), anew);
    step(&declare(RECEIVER), anew);
    step(&declare(SENDER), anew);
    step(&declare(&SENDER.replace("10.0.0.2", "10.0.0.3")), anew);
    step(r#"nic_update { id: "n" ip: "10.0.0.9" }"#, &["update n"]);
    step(&declare(""), anew);
}

/// Addresses that could neither send nor answer are refused, with any request.
#[test]
fn addresses_that_a_generator_cannot_use_are_refused() {
    let mut host = Host::new();
    host.succeeds(&declare(SENDER));
    host.fake().take_calls();
    let update = |ips: &str| format!("nic_update {{ id: \"n\" {ips} }}");
    let other = "the first ip of the nic, fd00::1, and its dip, 10.0.0.2, are of different address families";
    for (request, why) in [
        (update(r#"ip: "fd00::1""#), other),
        (update(r#"ip: "fd00::1" ip: "10.0.0.1""#), other),
        (declare(SENDER).replace("10.0.0.1", "fd00::1"), other),
        (update(r#"ip: """#), "a nic of type BENCH needs an ip"),
        (declare(SENDER).replace(r#"ip: "10.0.0.1""#, ""), "a nic of type BENCH needs an ip"),
    ] {
        let (error, help) = host.fails(&request);
        assert!(error == "Internal error" && help.contains(why), "{request}: {error}, {help}");
        assert!(host.fake().take_calls().is_empty(), "{request}");
        assert!(host.declared().contains(r#"ip: "10.0.0.1" "#), "{}", host.declared());
    }
    host.succeeds(&update(r#"ip: "10.0.0.9" ip: "fd00::1""#));
    assert_eq!(host.fake().take_calls(), ["update n"]);
    // A responder has no family.
    host.succeeds(&declare(RECEIVER));
    host.succeeds(&update(r#"ip: "fd00::1""#));
    assert!(host.fails(&update(r#"ip: """#)).1.contains("needs an ip"));
}

/// A vnic that fails is as it was before, with any guest behind it.
#[test]
fn a_guest_that_cannot_be_made_anew_is_restored() {
    let mut host = Host::new();
    host.succeeds(&declare("type: TAP netns: \"a\""));
    host.fake().take_calls();
    host.fake().refusals = [Some("no such namespace"), None].into();
    assert_eq!(host.fails(&declare("type: TAP netns: \"b\"")).0, "no such namespace");
    assert_eq!(host.fake().take_calls(), ["remove n", "add n", "add n"]);
    assert!(host.declared().contains("netns: \"a\""));
}

/// Its interface was deleted: an identical declaration is not "nothing to do".
#[test]
fn a_guest_that_is_gone_is_made_anew_by_the_same_declaration() {
    let mut host = Host::new();
    host.succeeds(&declare("type: TAP"));
    host.succeeds(&declare("type: TAP"));
    assert_eq!(host.fake().take_calls(), ["add n"]);
    host.fake().gone.insert("n".into());
    host.succeeds(&declare("type: TAP"));
    assert_eq!(host.fake().take_calls(), ["remove n", "add n"]);
    host.succeeds(&declare("type: TAP"));
    assert!(host.fake().take_calls().is_empty());
}

/// An operator removed its file: the same declaration makes it again.
#[test]
fn a_socket_that_is_gone_is_made_anew_by_the_same_declaration() {
    let mut host = Host::new();
    host.succeeds(&declare(""));
    host.fake().sockets_gone.insert("n".into());
    host.succeeds(&declare(""));
    assert_eq!(host.fake().take_calls(), ["add n", "remove n", "add n"]);
    host.succeeds(&declare(""));
    assert!(host.fake().take_calls().is_empty());
}

/// Contract 4.9: a generator counts from its own end.
#[test]
fn a_generator_tells_what_it_measured() {
    let mut host = Host::new();
    host.succeeds(&declare(SENDER));
    let pings = "pings { requests: 3 replies: 2 min_ns: 10000 mean_ns: 20000 max_ns: 30000 }";
    assert_eq!(
        host.succeeds("nic_stats: \"n\""),
        format!("nic_stats {{ in: 200 out: 100 {pings} }}")
    );
    let shown = host.succeeds("nic_show: \"n\"");
    assert!(
        shown.contains(pings) && !shown.contains("role:") && !shown.contains("peer_pid"),
        "{shown}"
    );
    host.succeeds(&declare("type: TAP netns: \"a\""));
    assert_eq!(host.succeeds("nic_stats: \"n\""), "nic_stats { in: 100 out: 200 }");
    let shown = host.succeeds("nic_show: \"n\"");
    assert!(shown.contains("netns: \"a\" interface_refused: 9"), "{shown}");
}

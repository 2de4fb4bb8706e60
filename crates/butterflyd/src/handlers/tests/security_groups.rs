//! Requests about security groups.

use super::host::Host;

/// Rules of contract 1.6, in the order of their hashes.
const TO_SG_42: &str =
    "direction: INBOUND protocol: 6 port_start: 0 port_end: 65535 security_group: \"sg-42\"";
const ALL_OF_A_V6_BLOCK: &str = "direction: INBOUND protocol: -1 port_start: 0 port_end: 1024 cidr { address: \"2001:db8:0:85a3:0:0:ac1f:8001\" mask_size: 8 }";
const UDP_OF_A_BLOCK: &str = "direction: INBOUND protocol: 17 port_start: 0 port_end: 65535 cidr { address: \"1.2.3.0\" mask_size: 24 }";
const TO_SOME_SG: &str =
    "direction: INBOUND protocol: 6 port_start: 1000 port_end: 65535 security_group: \"some-sg\"";
/// The second of them as it is echoed: its protocol has no ports.
const ALL_OF_A_V6_BLOCK_ECHOED: &str =
    "direction: INBOUND protocol: -1 cidr { address: \"2001:db8:0:85a3::ac1f:8001\" mask_size: 8 }";
/// One more.
const OUT: &str = "direction: OUTBOUND protocol: 58 cidr { address: \"::\" mask_size: 0 }";

/// A host with the group `g` of one member and one rule.
fn host() -> Host {
    let mut host = Host::new();
    host.succeeds(&format!(
        "sg_add {{ id: \"g\" member: \"10.0.0.1\" rule {{ {UDP_OF_A_BLOCK} }} }}"
    ));
    host.fake().take_calls();
    host
}

/// Returns `g` as it is at first.
fn g() -> String {
    format!("sg_details {{ id: \"g\" member: \"10.0.0.1\" rule {{ {UDP_OF_A_BLOCK} }} }}")
}

/// Contract 1.5, security groups: the successes. Each row: the request, what the data path is
/// asked, what there is then.
#[test]
fn changes_follow_the_table() {
    let g = g();
    let with = |more: &str| {
        g.replace(" }", "}").replacen(
            "member: \"10.0.0.1\"",
            &format!("member: \"10.0.0.1\" {more}"),
            1,
        )
    };
    for (request, calls, then) in [
        // sg_add creates or replaces; identical content changes nothing.
        (
            "sg_add { id: \"h\" }".to_owned(),
            vec!["group h: declare"],
            format!("{g} sg_details {{ id: \"h\" }}"),
        ),
        (g.replacen("sg_details", "sg_add", 1), vec![], g.clone()),
        (
            format!(
                "sg_add {{ id: \"g\" member: \"10.0.0.1\" member: \"10.0.0.1\" rule {{ {UDP_OF_A_BLOCK} }} rule {{ {UDP_OF_A_BLOCK} }} }}"
            ),
            vec![],
            g.clone(),
        ),
        (
            "sg_add { id: \"g\" }".into(),
            vec!["group g: declare"],
            "sg_details { id: \"g\" }".into(),
        ),
        (
            format!("sg_add {{ id: \"g\" member: \"0::1\" rule {{ {OUT} }} }}"),
            vec!["group g: declare"],
            format!("sg_details {{ id: \"g\" member: \"::1\" rule {{ {OUT} }} }}"),
        ),
        // sg_del: unknown included.
        ("sg_del: \"g\"".into(), vec!["group g: forget"], String::new()),
        ("sg_del: \"x\"".into(), vec![], g.clone()),
        ("sg_del: \"\"".into(), vec![], g.clone()),
        // sg_rule_add: the group is made if need be; a duplicate changes nothing.
        (format!("sg_rule_add {{ sg_id: \"g\" rule {{ {UDP_OF_A_BLOCK} }} }}"), vec![], g.clone()),
        (
            format!("sg_rule_add {{ sg_id: \"g\" rule {{ {TO_SG_42} }} }}"),
            vec!["group g: add rule"],
            with(&format!("rule {{ {TO_SG_42} }}")),
        ),
        (
            format!("sg_rule_add {{ sg_id: \"x\" rule {{ {OUT} }} }}"),
            vec!["group x: declare"],
            format!("{g} sg_details {{ id: \"x\" rule {{ {OUT} }} }}"),
        ),
        // sg_rule_del: unknown rules and groups are none the less gone.
        (
            format!("sg_rule_del {{ sg_id: \"g\" rule {{ {UDP_OF_A_BLOCK} }} }}"),
            vec!["group g: remove rule"],
            "sg_details { id: \"g\" member: \"10.0.0.1\" }".into(),
        ),
        (format!("sg_rule_del {{ sg_id: \"g\" rule {{ {OUT} }} }}"), vec![], g.clone()),
        (format!("sg_rule_del {{ sg_id: \"x\" rule {{ {OUT} }} }}"), vec![], g.clone()),
        // sg_member_add and sg_member_del: the same.
        ("sg_member_add { sg_id: \"g\" member: \"10.0.0.1\" }".into(), vec![], g.clone()),
        (
            "sg_member_add { sg_id: \"g\" member: \"0::1\" }".into(),
            vec!["group g: add member"],
            with("member: \"::1\""),
        ),
        (
            "sg_member_add { sg_id: \"x\" member: \"::1\" }".into(),
            vec!["group x: declare"],
            format!("{g} sg_details {{ id: \"x\" member: \"::1\" }}"),
        ),
        (
            "sg_member_del { sg_id: \"g\" member: \"10.0.0.1\" }".into(),
            vec!["group g: remove member"],
            g.replace("member: \"10.0.0.1\" ", ""),
        ),
        ("sg_member_del { sg_id: \"g\" member: \"::1\" }".into(), vec![], g.clone()),
        ("sg_member_del { sg_id: \"x\" member: \"::1\" }".into(), vec![], g.clone()),
    ] {
        let mut host = host();
        assert_eq!(host.succeeds(&request), "", "{request}");
        assert_eq!(host.fake().take_calls(), calls, "{request}");
        let there = host.succeeds("sg_details: \"\"");
        assert_eq!(there.replace(" }", "}"), then.replace(" }", "}"), "{request}");
        let daemon = host.envelope.handler();
        assert_eq!(*daemon.desired.groups(), daemon.dataplane.groups, "{request}");
        // A change that the data path refuses has not happened, and the reason is reported.
        if !calls.is_empty() {
            let mut host = self::host();
            host.fake().refusals = [Some("no room for this")].into();
            assert_eq!(
                host.fails(&request),
                ("no room for this".into(), String::new()),
                "{request}"
            );
            assert_eq!(host.succeeds("sg_details: \"\""), g, "{request}");
            host.succeeds(&request);
        }
    }
}

/// Contract 1.5, security groups: what is asked.
#[test]
fn questions_follow_the_table() {
    let g = g();
    let empty = format!("{g} sg_details {{ id: \"h\" }}");
    for (request, expected) in [
        ("sg_list: true", Ok("sg_list: \"g\" sg_list: \"h\"".to_owned())),
        ("sg_list: false", Ok("sg_list: \"g\" sg_list: \"h\"".into())),
        ("sg_details: \"\"", Ok(empty)),
        ("sg_details: \"g\"", Ok(g)),
        ("sg_details: \"x\"", Err("Sg not found")),
        ("sg_rule_list: \"g\"", Ok(format!("sg_rule_list {{ {UDP_OF_A_BLOCK} }}"))),
        ("sg_rule_list: \"h\"", Ok(String::new())),
        ("sg_rule_list: \"x\"", Err("Security Group not found")),
        ("sg_rule_list: \"\"", Err("Security Group not found")),
        ("sg_member_list: \"g\"", Ok("sg_member_list: \"10.0.0.1\"".into())),
        ("sg_member_list: \"h\"", Ok(String::new())),
        ("sg_member_list: \"x\"", Err("Security Group not found")),
        ("sg_rule_stats: \"h\"", Ok(String::new())),
        ("sg_rule_stats: \"x\"", Err("Security Group not found")),
    ] {
        let mut host = host();
        host.succeeds("sg_add { id: \"h\" }");
        match expected {
            Ok(response) => assert_eq!(host.succeeds(request), response, "{request}"),
            Err(description) => assert_eq!(host.fails(request).0, description, "{request}"),
        }
    }
}

/// Contract 1.5: rules that are none, by every way they may come; 1.2: what no member is.
#[test]
fn what_is_malformed_is_refused() {
    const RULE: &str = "Bad Security Group rule format";
    const GROUP: &str = "Bad Security Group format";
    for (rule, description, help) in [
        ("protocol: -2 C", RULE, "protocol -2 is out of range"),
        ("protocol: 256 C", RULE, "protocol 256 is out of range"),
        ("protocol: 6 C", RULE, "needs port_start and port_end"),
        ("protocol: 17 port_start: 1 C", RULE, "needs port_start and port_end"),
        ("protocol: 6 port_start: 1 port_end: 65536 C", RULE, "port 65536 is out of range"),
        ("protocol: 6 port_start: 2 port_end: 1 C", RULE, "the start is after the end"),
        ("protocol: 1 security_group: \"y\" C", RULE, "not both"),
        ("protocol: 1 security_group: \"\"", RULE, "empty"),
        ("protocol: 1 cidr { address: \"x\" mask_size: 0 }", RULE, "\"x\" is not an IP address"),
        ("protocol: 1 cidr { address: \"::\" mask_size: 129 }", RULE, "0 to 128"),
        ("protocol: 1 cidr { address: \"0.0.0.0\" mask_size: 33 }", RULE, "0 to 32"),
        // Only alone.
        ("protocol: 1", "Internal error", "needs a cidr or a security group"),
    ] {
        let rule = format!(
            "rule {{ direction: OUTBOUND {} }}",
            rule.replace('C', "cidr { address: \"::\" mask_size: 0 }")
        );
        for (request, description) in [
            (format!("sg_rule_add {{ sg_id: \"g\" {rule} }}"), description),
            (format!("sg_rule_del {{ sg_id: \"g\" {rule} }}"), description),
            (format!("sg_rule_add {{ sg_id: \"x\" {rule} }}"), description),
            (format!("sg_add {{ id: \"g\" {rule} }}"), GROUP),
        ] {
            let (got, got_help) = refused(&request);
            assert_eq!(got, description, "{request}");
            assert!(got_help.contains(help), "{request}: {got_help}");
        }
    }
    for (request, description) in [
        ("sg_add { id: \"x\" member: \"y\" }".to_owned(), GROUP),
        ("sg_add { id: \"x\" member: \"::1\" member: \"\" }".into(), GROUP),
        ("sg_add { id: \"\" }".into(), GROUP),
        (format!("sg_rule_add {{ sg_id: \"\" rule {{ {OUT} }} }}"), GROUP),
        ("sg_member_add { sg_id: \"\" member: \"::1\" }".into(), GROUP),
        ("sg_member_add { sg_id: \"g\" member: \"10.0.0.0/8\" }".into(), "Bad IP format"),
        ("sg_member_add { sg_id: \"x\" member: \"y\" }".into(), "Bad IP format"),
        ("sg_member_del { sg_id: \"g\" member: \"\" }".into(), "Bad IP format"),
        ("sg_member_del { sg_id: \"x\" member: \"y\" }".into(), "Bad IP format"),
    ] {
        assert_eq!(refused(&request).0, description, "{request}");
    }
}

/// Description and help; nothing has changed and nothing was tried.
#[track_caller]
fn refused(request: &str) -> (String, String) {
    let mut host = host();
    let told = host.fails(request);
    assert_eq!(host.succeeds("sg_details: \"\""), g(), "{request}");
    assert!(host.fake().take_calls().is_empty(), "{request}");
    told
}

/// Contract 1.6. However they come, rules are listed in the order of their hashes, members in that
/// of their arrival.
#[test]
fn lists_are_in_the_order_of_the_protocol() {
    let listed = [TO_SG_42, ALL_OF_A_V6_BLOCK_ECHOED, UDP_OF_A_BLOCK, TO_SOME_SG]
        .map(|rule| format!("sg_rule_list {{ {rule} }}"));
    let mut host = Host::new();
    for rule in [TO_SOME_SG, ALL_OF_A_V6_BLOCK, TO_SG_42, UDP_OF_A_BLOCK] {
        host.succeeds(&format!("sg_rule_add {{ sg_id: \"g\" rule {{ {rule} }} }}"));
    }
    assert_eq!(host.succeeds("sg_rule_list: \"g\""), listed.join(" "));
    for member in ["10.0.0.9", "::1", "10.0.0.1", "::1", "10.0.0.5"] {
        host.succeeds(&format!("sg_member_add {{ sg_id: \"g\" member: \"{member}\" }}"));
    }
    host.succeeds("sg_member_del { sg_id: \"g\" member: \"::1\" }");
    host.succeeds("sg_member_add { sg_id: \"g\" member: \"::1\" }");
    let members = ["10.0.0.9", "10.0.0.1", "10.0.0.5", "::1"]
        .map(|member| format!("sg_member_list: \"{member}\""));
    assert_eq!(host.succeeds("sg_member_list: \"g\""), members.join(" "));
    for id in ["b", "a", "é", "B"] {
        host.succeeds(&format!("sg_add {{ id: \"{id}\" }}"));
    }
    let ids = host.ask("sg_list: true").sg_list;
    assert_eq!(ids, ["B", "a", "b", "g", "é"]);
}

/// Contract 1.5: host bits are no error and tell rules apart; so do ports that mean nothing, which
/// are not echoed.
#[test]
fn what_means_nothing_is_part_of_the_identity() {
    let mut host = Host::new();
    let block = |address| {
        format!("direction: INBOUND protocol: 1 cidr {{ address: \"{address}\" mask_size: 24 }}")
    };
    for rule in [block("10.0.0.0"), block("10.0.0.1")] {
        host.succeeds(&format!("sg_rule_add {{ sg_id: \"g\" rule {{ {rule} }} }}"));
        assert!(host.succeeds("sg_rule_list: \"g\"").contains(&rule), "{rule}");
    }
    let with_ports =
        block("10.0.0.0").replace("protocol: 1", "protocol: 1 port_start: 1 port_end: 70000");
    host.succeeds(&format!("sg_rule_add {{ sg_id: \"g\" rule {{ {with_ports} }} }}"));
    let rules = host.ask("sg_rule_list: \"g\"").sg_rule_list;
    assert_eq!(rules.len(), 3);
    assert!(rules.iter().all(|rule| rule.port_start.is_none() && rule.port_end.is_none()));
    let mut there = host.envelope.handler().dataplane.groups["g"]
        .rules()
        .map(|rule| rule.identity())
        .collect::<Vec<_>>();
    there.sort();
    assert_eq!(there, ["0-1-0-0-10.0.0.0/24-", "0-1-0-0-10.0.0.1/24-", "0-1-1-70000-10.0.0.0/24-"]);
    // An operator who deletes what is listed is never left with a rule: first the one that was
    // meant goes, then those that are listed alike.
    let delete = format!("sg_rule_del {{ sg_id: \"g\" rule {{ {} }} }}", block("10.0.0.0"));
    for left in [2, 1, 1] {
        host.succeeds(&delete);
        assert_eq!(host.ask("sg_rule_list: \"g\"").sg_rule_list.len(), left);
    }
    assert!(host.succeeds("sg_rule_list: \"g\"").contains(&block("10.0.0.1")));
}

#[test]
fn vnics_keep_the_names_of_groups_that_go() {
    let mut host = Host::with_nics();
    host.succeeds("sg_add { id: \"web\" }");
    host.succeeds("sg_del: \"web\"");
    assert!(host.succeeds("nic_details: \"n\"").contains("security_group: \"web\""));
    assert_eq!(
        host.fake().take_calls(),
        ["group web: declare", "group web: forget"],
        "the vnic was left alone"
    );
}

/// Declares the replies to `butterfly dump` again: nics first, then groups.
#[test]
fn what_is_told_can_be_declared_again() {
    let rules = [TO_SG_42, UDP_OF_A_BLOCK, TO_SOME_SG, OUT]
        .map(|rule| format!("rule {{ {rule} }}"))
        .join(" ");
    let mut host = Host::with_nics();
    host.succeeds(&format!(
        "sg_add {{ id: \"web\" member: \"::1\" member: \"10.0.0.1\" {rules} }}"
    ));
    host.succeeds("sg_add { id: \"\\\"\\n\\303\\251\" }");
    let details = |host: &mut Host| {
        (host.ask("nic_details: \"\"").nic_details, host.ask("sg_details: \"\"").sg_details)
    };
    let dump = details(&mut host);
    let replay = |host: &mut Host| {
        for nic in &dump.0 {
            host.succeeds(&format!("nic_add {{ {} }}", butterfly_api::text::print(nic)));
        }
        for group in &dump.1 {
            host.succeeds(&format!("sg_add {{ {} }}", butterfly_api::text::print(group)));
        }
    };
    host.fake().take_calls();
    replay(&mut host);
    assert!(host.fake().take_calls().is_empty(), "it changes nothing");
    let mut other = Host::new();
    replay(&mut other);
    assert_eq!(details(&mut other), dump);
    assert_eq!(other.envelope.handler().desired.groups(), host.envelope.handler().desired.groups());
}

#[test]
fn stats_of_rules_are_in_the_order_of_the_list() {
    let mut host = host();
    let other_out = OUT.replace("58", "1");
    for rule in [OUT, &other_out] {
        host.succeeds(&format!("sg_rule_add {{ sg_id: \"g\" rule {{ {rule} }} }}"));
    }
    let rules = host.ask("sg_rule_list: \"g\"").sg_rule_list;
    let stats = host.ask("sg_rule_stats: \"g\"").sg_rule_stats;
    assert!(stats.iter().map(|stats| &*stats.rule).eq(&rules));
    let mut counts: Vec<_> =
        stats.iter().map(|stats| (stats.rule.protocol(), stats.sessions())).collect();
    // The data path told of the outbound ones only.
    assert_eq!(counts.iter().find(|(protocol, _)| *protocol == 17), Some(&(17, 0)));
    counts.retain(|(protocol, _)| *protocol != 17);
    assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [72, 73]);
}

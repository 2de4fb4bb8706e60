//! `sg rule`: options, refusals, hashes.

use crate::support::{Row, check};

/// Two rules with hashes known from the original client.
const RULES: &str = "sg_rule_list { direction: INBOUND protocol: 6 port_start: 1000 port_end: 2000 cidr { address: \"10.0.0.0\" mask_size: 24 } } \
                     sg_rule_list { direction: INBOUND protocol: 42 security_group: \"sg-2\" }";

#[test]
fn list() {
    check(&[
        Row {
            line: "sg rule list web @",
            asks: &[&["sg_rule_list: \"web\""]],
            answers: &[&[RULES]],
            out: "f44fac34f8667927 | direction: INBOUND - IP protocol: 6 - port start: 1000 - port end: 2000 - cidr: 10.0.0.0/24 - members of sg: Ø\n\
                  cfdb94f9418c88f1 | direction: INBOUND - IP protocol: 42 - port start: Ø - port end: Ø - cidr: Ø - members of sg: sg-2\n",
            ..Row::default()
        },
        Row { line: "sg rule list web @", asks: &[&["sg_rule_list: \"web\""]], ..Row::default() },
    ]);
}

#[test]
fn options_make_the_rule() {
    for (options, rule) in [
        (
            "--ip-proto tcp --port 80 --cidr 10.0.0.0/24",
            "direction: INBOUND protocol: 6 port_start: 80 port_end: 80 cidr {address: \"10.0.0.0\" mask_size: 24}",
        ),
        (
            "--dir in --ip-proto udp --port-start 0 --port-end 65535 --cidr ::/0",
            "direction: INBOUND protocol: 17 port_start: 0 port_end: 65535 cidr {address: \"::\" mask_size: 0}",
        ),
        (
            "--dir out --ip-proto icmp --sg-members db",
            "direction: OUTBOUND protocol: 1 security_group: \"db\"",
        ),
        (
            "--ip-proto icmpv6 --sg-members db",
            "direction: INBOUND protocol: 58 security_group: \"db\"",
        ),
        (
            "--ip-proto sctp --cidr ::/0",
            "direction: INBOUND protocol: 132 cidr {address: \"::\" mask_size: 0}",
        ),
        (
            "--ip-proto all --sg-members db",
            "direction: INBOUND protocol: -1 security_group: \"db\"",
        ),
        ("--ip-proto -1 --sg-members db", "direction: INBOUND protocol: -1 security_group: \"db\""),
        ("--ip-proto 0 --sg-members db", "direction: INBOUND protocol: 0 security_group: \"db\""),
        (
            "--ip-proto 255 --sg-members db",
            "direction: INBOUND protocol: 255 security_group: \"db\"",
        ),
        // Part of the rule's identity although the protocol has no ports.
        (
            "--ip-proto 42 --port-start 1 --port-end 2 --sg-members db",
            "direction: INBOUND protocol: 42 port_start: 1 port_end: 2 security_group: \"db\"",
        ),
        (
            "--ip-proto 6 --port 22 --cidr 2001:db8::/32",
            "direction: INBOUND protocol: 6 port_start: 22 port_end: 22 cidr {address: \"2001:db8::\" mask_size: 32}",
        ),
        // Host bits are the daemon's business.
        (
            "--ip-proto all --cidr 10.0.0.1/24",
            "direction: INBOUND protocol: -1 cidr {address: \"10.0.0.1\" mask_size: 24}",
        ),
    ] {
        for (verb, field) in [("add", "sg_rule_add"), ("del", "sg_rule_del")] {
            let line = format!("sg rule {verb} web {options} @");
            let asked = format!("{field} {{sg_id: \"web\" rule {{{rule}}}}}");
            let err = match (verb, options.contains("42")) {
                ("add", true) => {
                    "ignored: ports: a rule for protocol 42 means every port; did you mean --ip-proto tcp, or udp?\n"
                }
                _ => "",
            };
            check(&[Row { line: &line, asks: &[&[&asked]], err, ..Row::default() }]);
        }
    }
}

/// Exit code and standard output are the original's; a rule that opens more than was meant is
/// reported.
#[test]
fn what_a_rule_ignores_is_told() {
    for (line, asked, err) in [
        (
            "sg rule add web --direction out --ip-proto all --sg-members db @",
            "sg_rule_add {sg_id: \"web\" rule {direction: INBOUND protocol: -1 security_group: \"db\"}}",
            "ignored: --direction out: `sg rule add` has no such option; did you mean --dir?\n",
        ),
        (
            "sg rule add web --ip-proto all --port 22 --sg-members db @",
            "sg_rule_add {sg_id: \"web\" rule {direction: INBOUND protocol: -1 port_start: 22 port_end: 22 security_group: \"db\"}}",
            "ignored: ports: a rule for all protocols means every port; did you mean --ip-proto tcp, or udp?\n",
        ),
        (
            "sg rule add web --ip-proto icmp --cidr ::/0 @",
            "sg_rule_add {sg_id: \"web\" rule {direction: INBOUND protocol: 1 cidr {address: \"::\" mask_size: 0}}}",
            "ignored: the rule: it matches nothing, as addresses like :: have the protocol icmpv6\n",
        ),
    ] {
        check(&[Row { line, asks: &[&[asked]], err, ..Row::default() }]);
    }
    check(&[Row {
        line: "sg rule del web cfdb94f9418c88f1 --ip-proto tcp @",
        asks: &[
            &["sg_rule_list: \"web\""],
            &[
                "sg_rule_del {sg_id: \"web\" rule {direction: INBOUND protocol: 42 security_group: \"sg-2\"}}",
            ],
        ],
        answers: &[&[RULES]],
        err: "ignored: --ip-proto: the hash names the rule\n",
        ..Row::default()
    }]);
}

#[test]
fn options_are_refused() {
    const ANY: &str = "--cidr 0.0.0.0/0";
    const WRONG_PORTS: &str = "wrong port configuration\n\
                               help: tcp and udp need --port, or --port-start and --port-end with the start not after the end";
    const NO_PORTS: &str =
        "wrong port configuration\nhelp: a rule for sctp means every port: leave the ports away";
    for (options, err) in [
        (
            format!("--dir up --ip-proto all {ANY}"),
            "--dir argument not recognized\nhelp: \"up\" is not in or out",
        ),
        (
            format!("--ip-proto gre {ANY}"),
            "--ip-proto argument not recognized\nhelp: \"gre\" is not tcp, udp, icmp, icmpv6, sctp, all or a number from -1 (all) to 255",
        ),
        (format!("--ip-proto sctp --port 80 {ANY}"), NO_PORTS),
        (format!("--ip-proto sctp --port-start 80 --port-end 90 {ANY}"), NO_PORTS),
        (
            format!("--ip-proto tcp --port 80-90 {ANY}"),
            "--port argument not recognized\nhelp: \"80-90\" is a range: --port-start 80 --port-end 90",
        ),
        (
            "--ip-proto all --cidr ::5".into(),
            "--cidr format not recognized\nhelp: \"::5\" has no mask: ::5/128 is this address alone",
        ),
        (
            format!("--ip-proto 256 {ANY}"),
            "--ip-proto argument not recognized\nhelp: \"256\" is not tcp, udp, icmp, icmpv6, sctp, all or a number from -1 (all) to 255",
        ),
        (
            format!("--ip-proto -2 {ANY}"),
            "--ip-proto argument not recognized\nhelp: \"-2\" is not tcp, udp, icmp, icmpv6, sctp, all or a number from -1 (all) to 255",
        ),
        (
            format!("--ip-proto tcp --port http {ANY}"),
            "--port argument not recognized\nhelp: \"http\" is not a number from 0 to 65535",
        ),
        (
            format!("--ip-proto tcp --port -1 {ANY}"),
            "--port argument not recognized\nhelp: \"-1\" is not a number from 0 to 65535",
        ),
        (
            format!("--ip-proto tcp --port 65536 {ANY}"),
            "--port argument not recognized\nhelp: \"65536\" is not a number from 0 to 65535",
        ),
        (
            format!("--ip-proto tcp --port-start x --port-end 2 {ANY}"),
            "--port-start argument not recognized\nhelp: \"x\" is not a number from 0 to 65535",
        ),
        (
            format!("--ip-proto tcp --port-start 1 --port-end 65536 {ANY}"),
            "--port-end argument not recognized\nhelp: \"65536\" is not a number from 0 to 65535",
        ),
        (
            "--ip-proto all --cidr 10.0.0.0".into(),
            "--cidr format not recognized\nhelp: \"10.0.0.0\" has no mask: 10.0.0.0/32 is this address alone",
        ),
        (
            "--ip-proto all --cidr 10.0.0.0/33".into(),
            "--cidr format not recognized\nhelp: \"10.0.0.0/33\" is not like 10.0.0.0/8 or 2001:db8::/32",
        ),
        (
            "--ip-proto all --cidr ::/129".into(),
            "--cidr format not recognized\nhelp: \"::/129\" is not like 10.0.0.0/8 or 2001:db8::/32",
        ),
        (
            "--ip-proto all --cidr host/24".into(),
            "--cidr format not recognized\nhelp: \"host/24\" is not like 10.0.0.0/8 or 2001:db8::/32",
        ),
        (format!("--ip-proto tcp {ANY}"), WRONG_PORTS),
        (format!("--ip-proto udp {ANY}"), WRONG_PORTS),
        (format!("--ip-proto 17 {ANY}"), WRONG_PORTS),
        (format!("--ip-proto tcp --port-start 1 {ANY}"), WRONG_PORTS),
        (format!("--ip-proto tcp --port-end 1 {ANY}"), WRONG_PORTS),
        (format!("--ip-proto tcp --port-start 2 --port-end 1 {ANY}"), WRONG_PORTS),
        (format!("--ip-proto tcp --port 1 --port-start 1 --port-end 2 {ANY}"), WRONG_PORTS),
        (format!("--ip-proto all {ANY} --sg-members db"), "--cidr can't be set with --sg-members"),
        ("--ip-proto all".into(), "you must set --cidr or --sg-members"),
        (ANY.into(), "--ip-proto is mandatory"),
    ] {
        let err = format!("{err}\nerror in command: sg\n");
        for verb in ["add", "del"] {
            let line = format!("sg rule {verb} web {options} @");
            let out = format!("help: sg rule {verb}");
            check(&[Row { line: &line, out: &out, err: &err, code: 1, ..Row::default() }]);
        }
    }
}

#[test]
fn del_by_hash() {
    check(&[
        Row {
            line: "sg rule del web cfdb94f9418c88f1 @",
            asks: &[
                &["sg_rule_list: \"web\""],
                &[
                    "sg_rule_del {sg_id: \"web\" rule {direction: INBOUND protocol: 42 security_group: \"sg-2\"}}",
                ],
            ],
            answers: &[&[RULES]],
            ..Row::default()
        },
        // A user may type it so.
        Row {
            line: "sg rule del web CFDB94F9418C88F1 @",
            asks: &[
                &["sg_rule_list: \"web\""],
                &[
                    "sg_rule_del {sg_id: \"web\" rule {direction: INBOUND protocol: 42 security_group: \"sg-2\"}}",
                ],
            ],
            answers: &[&[RULES]],
            ..Row::default()
        },
        Row {
            line: "sg rule del web 0123456789abcdef @",
            asks: &[&["sg_rule_list: \"web\""]],
            answers: &[&[RULES]],
            err: "no rule found with hash 0123456789abcdef\nerror in command: sg\n",
            code: 1,
            ..Row::default()
        },
    ]);
}

#[test]
fn del_with_too_few_arguments_is_help_and_success() {
    for line in ["sg rule del", "sg rule del web", "sg rule del -k"] {
        check(&[Row { line, out: "help: sg rule del", ..Row::default() }]);
    }
}

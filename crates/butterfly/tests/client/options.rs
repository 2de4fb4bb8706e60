//! Fate of options: ignored with a word, refused, or taken from elsewhere.

use crate::support::{Daemon, Row, answer, check, run};

#[test]
fn commands_of_the_original_say_what_they_ignore() {
    let asks: &[&[&str]] = &[&["nic_list: true"]];
    for (line, err) in [
        (
            "nic list --colour red @ -x",
            "ignored: --colour red: `nic list` has no such option; `butterfly nic list help` lists those it has\n\
             ignored: -x: `nic list` has no such option; `butterfly nic list help` lists those it has\n",
        ),
        (
            "nic list word @",
            "ignored: word: `nic list` takes no such word; words come before the options\n",
        ),
        (
            "nic list @ --timout 5",
            "ignored: --timout 5: `nic list` has no such option; did you mean --timeout?\n",
        ),
        (
            "nic list -ve x @",
            "ignored: -ve x: `nic list` has no such option; did you mean --verbose?\n",
        ),
    ] {
        check(&[Row { line, asks, err, ..Row::default() }]);
    }
}

#[test]
fn commands_of_our_own_refuse_what_they_do_not_know() {
    for (line, command, err) in [
        (
            "sessions --adress 10.0.0.1 --flush @",
            "sessions",
            "--adress 10.0.0.1: `sessions` has no such option; did you mean --address?",
        ),
        (
            "sessions vm-1 vm-2 --flush @",
            "sessions",
            "vm-2: `sessions` takes no such word; words come before the options",
        ),
        (
            "sessions --port 1 --port 2 --flush @",
            "sessions",
            "--port 1: given again as 2, and the last one counts",
        ),
        (
            "sessions --count true @",
            "sessions",
            "true: --count takes no value, it is on as soon as it is given",
        ),
        (
            "sessions --timeouts --vni 1 @",
            "sessions",
            "--timeouts are those of the whole host: it goes with no NIC and no filter",
        ),
        (
            "sessions --flush --limit 1 @",
            "sessions",
            "--limit is for lists: --count and --flush mean every session that matches",
        ),
        (
            "peer del 192.0.2.1 --vnii 1 @",
            "peer del",
            "--vnii 1: `peer del` has no such option; did you mean --vni?",
        ),
        (
            "workers 0 @",
            "workers",
            "0: `workers` takes no such word; words come before the options",
        ),
    ] {
        let first = line.split(' ').next().unwrap();
        let err = format!("{err}\nnothing was sent\nerror in command: {first}\n");
        check(&[Row {
            line,
            out: &format!("short: {command}"),
            err: &err,
            code: 1,
            ..Row::default()
        }]);
    }
}

#[test]
fn global_options_may_stand_before_the_command() {
    let asks: &[&[&str]] = &[&["nic_list: true"]];
    for line in ["@ nic list", "-t 5000 @ nic list", "nic list + @ sg list"] {
        let asks = if line.contains('+') { &[asks[0], &["sg_list: true"]] } else { asks };
        check(&[Row { line, asks, ..Row::default() }]);
    }
    let ended = run("-t soon nic list");
    assert!(ended.err.starts_with("--timeout argument not recognized\n"), "{}", ended.err);
    check(&[
        Row { line: "-v", out: "help: ", code: 1, ..Row::default() },
        Row { line: "-e", out: "help: ", err: "-e needs a value\n", code: 1, ..Row::default() },
    ]);
}

#[test]
fn the_environment_and_a_file_name_the_daemon() {
    let daemon = Daemon::new();
    let run = |line: &str, name: &str, value: &str| {
        let mut client = daemon.start_with(line, &[(name, value)]);
        daemon.receive(line);
        daemon.send(&answer(&["nic_list: \"a\""]));
        let ended = client.end();
        assert_eq!(
            (ended.out.as_str(), ended.err.as_str(), ended.code),
            ("a\n", "", Some(0)),
            "{line} {name}={value}"
        );
    };
    run("nic list", "BUTTERFLY_ENDPOINT", &daemon.endpoint());
    run("nic list @", "BUTTERFLY_ENDPOINT", "tcp://127.0.0.1:1");
    let file = daemon.path("client.conf");
    std::fs::write(&file, format!("# here\nendpoint={}\n", daemon.endpoint())).unwrap();
    run("nic list", "BUTTERFLY_CONFIG", &file);
    // Where a user has it.
    std::fs::create_dir(daemon.path("butterfly")).unwrap();
    std::fs::rename(&file, daemon.path("butterfly/client.conf")).unwrap();
    let folder = daemon.path("");
    let mut client =
        daemon.start_with("nic list", &[("BUTTERFLY_CONFIG", ""), ("XDG_CONFIG_HOME", &folder)]);
    daemon.receive("nic list");
    daemon.send(&answer(&[""]));
    assert_eq!(client.end().code, Some(0));
    // A key that is to be used and is not there is never left out.
    for (name, value) in [("BUTTERFLY_KEY", "absent"), ("BUTTERFLY_CONFIG", "absent")] {
        let ended = daemon.start_with("nic list @", &[(name, value)]).end();
        assert!(
            ended.err.contains("absent") && ended.err.contains("nothing was sent"),
            "{name}: {}",
            ended.err
        );
        assert_eq!((ended.out.as_str(), ended.code), ("", Some(1)));
        daemon.assert_silent(name);
    }
}

/// Forty lines of help would push the reason off the screen.
#[test]
fn on_a_terminal_a_usage_error_is_two_lines() {
    for (line, expected) in [
        (
            "nic add --id a --mac 52:54:00:00:00:01 --vni x",
            "butterfly nic add: --vni argument not recognized; \"x\" is not a number from 0 to 16777215\r\n\
             `butterfly nic add help` shows how it is used\r\n",
        ),
        (
            "nic lst",
            "butterfly nic: invalid nic subcommand lst; did you mean list?\r\n`butterfly nic help` shows how it is used\r\n",
        ),
        (
            "bogus",
            "butterfly: invalid subcommand bogus\r\n`butterfly help` shows how it is used\r\n",
        ),
    ] {
        let command = format!("{} {line}", env!("CARGO_BIN_EXE_butterfly"));
        let output = std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("BUTTERFLY_CONFIG", "/dev/null")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{line}");
        assert_eq!(output.status.code(), Some(1), "{line}");
    }
}

/// Its exit code is the contract's, wherever it runs.
#[test]
fn on_a_terminal_missing_words_of_a_rule_are_two_lines() {
    let command = format!("{} sg rule del web", env!("CARGO_BIN_EXE_butterfly"));
    let output = std::process::Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("BUTTERFLY_CONFIG", "/dev/null")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let expected = "butterfly sg rule del: HASH missing, or options in place of the last\r\n`butterfly sg rule del help` shows how it is used\r\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(output.status.code(), Some(0));
}

/// The first word with a dash ends a list of words, whether it is an option or not.
#[test]
fn words_end_at_the_first_dash() {
    check(&[
        Row {
            line: "sg add a b -x c @",
            asks: &[&["sg_add {id: \"a\"}", "sg_add {id: \"b\"}"]],
            err: "ignored: -x c: `sg add` has no such option; `butterfly sg add help` lists those it has\n",
            ..Row::default()
        },
        Row {
            line: "nic del a - b @",
            asks: &[&["nic_del: \"a\""]],
            err: "ignored: - b: `nic del` has no such option; `butterfly nic del help` lists those it has\n",
            ..Row::default()
        },
        Row {
            line: "nic sg set a @ x",
            asks: &[&["nic_update {id: \"a\" security_group: \"\"}"]],
            err: "ignored: x: `nic sg set` takes no such word; words come before the options\n",
            ..Row::default()
        },
        Row {
            line: "sg member add a ::1 --unknown ::2 @",
            asks: &[&["sg_member_add {sg_id: \"a\" member: \"::1\"}"]],
            err: "ignored: --unknown ::2: `sg member add` has no such option; `butterfly sg member add help` lists those it has\n",
            ..Row::default()
        },
    ]);
}

/// A strict script gets a failure for an ignored option before anything is sent, also by a later
/// command of the chain.
#[test]
fn who_is_strict_is_refused_what_would_be_ignored() {
    let ignored = "--sg-idd x: `nic list` has no such option; `butterfly nic list help` lists those it has\nnothing was sent";
    for line in ["--strict nic list --sg-idd x @", "sg list @ + nic list --sg-idd x --strict"] {
        check(&[Row { line, out: "short: nic list", err: ignored, code: 1, ..Row::default() }]);
    }
    for (line, command, err) in [
        ("nic list -e tcp://h:1 @ --strict", "nic list", None),
        (
            "nic add --id a --mac 52:54:00:00:00:01 --vni 1 --bypass-filtering --sg web --strict @",
            "nic add",
            Some("--sg: with --bypass-filtering nothing of this NIC is filtered"),
        ),
        (
            "sg member del web 10.0.0.1 spare --strict @",
            "sg member del",
            Some("spare: it is no IP address"),
        ),
        ("nic stats --strict @", "nic stats", Some("NIC is mandatory")),
    ] {
        let replaced =
            "--endpoint tcp://h:1: another follows, and a global option is that of the whole chain";
        let sent = if line.starts_with("nic stats") { "" } else { "\nnothing was sent" };
        let err = format!("{}{sent}", err.unwrap_or(replaced));
        let out = format!("short: {command}");
        check(&[Row { line, out: &out, err: &err, code: 1, ..Row::default() }]);
    }
    // What is understood goes on as ever.
    let asks: &[&[&str]] = &[&["nic_list: true"]];
    check(&[Row { line: "nic list --strict @", asks, ..Row::default() }]);
}

/// A success that was probably not meant is a failure, with its reason; what was done stays done.
#[test]
fn who_is_strict_is_failed_by_what_was_not_meant() {
    let ended = |line: &str, strict: &str, replies: &[&[&str]]| {
        let daemon = Daemon::new();
        let mut client = daemon.start_with(line, &[("BUTTERFLY_STRICT", strict)]);
        for reply in replies {
            daemon.receive(line);
            daemon.send(&answer(reply));
        }
        let ended = client.end();
        daemon.assert_silent(line);
        (ended.out, ended.err, ended.code)
    };
    let failed = |notes: &str, command: &str| {
        let why = "--strict: it was done, and is a failure because of the note";
        let err = format!("{notes}{why}\nerror in command: {command}\n");
        (String::new(), err, Some(1))
    };
    let note = "note: there was no NIC a: nothing changed\n";
    let line = "nic del a @";
    assert_eq!(ended(line, "1", &[&["nic_list: \"b\""], &[""]]), failed(note, "nic"));
    assert_eq!(
        ended(line, "1", &[&["nic_list: \"a\""], &[""]]),
        (String::new(), String::new(), Some(0))
    );
    for off in ["0", ""] {
        assert_eq!(ended(line, off, &[&[""]]), (String::new(), String::new(), Some(0)), "{off}");
    }
    // The next command of a chain is not carried out.
    assert_eq!(
        ended("nic del a @ + nic list", "1", &[&["nic_list: \"b\""], &[""]]),
        failed(note, "nic")
    );
    // A group that comes into being by its first rule is no mistake.
    let line = "sg rule add web --ip-proto tcp --port 443 --cidr 0.0.0.0/0 @";
    let note = "note: security group web did not exist: it does now, with this rule\n";
    assert_eq!(ended(line, "1", &[&[""], &[""]]), (String::new(), note.into(), Some(0)));
}

const OUTBOUND: &str = "rule { direction: OUTBOUND protocol: 6 port_start: 80 port_end: 80 cidr { address: \"10.0.0.0\" mask_size: 8 } }";

/// Without an OUTBOUND rule everything may leave: an operator who removes the last one learns for
/// which vnics.
#[test]
fn who_opens_egress_is_told() {
    let inbound = OUTBOUND.replace("OUTBOUND", "INBOUND");
    let web = format!("sg_details {{ id: \"web\" {OUTBOUND} {inbound} }}");
    let left = format!("sg_details {{ id: \"web\" {inbound} }}");
    let db = format!("sg_details {{ id: \"db\" {OUTBOUND} }}");
    let nic = |id: &str, rest: &str| {
        format!("nic_details {{ id: \"{id}\" mac: \"m\" vni: 1 security_group: \"web\" {rest} }}")
    };
    let nics = [
        nic("a", ""),
        nic("b", "security_group: \"db\""),
        nic("c", "bypass_filtering: true"),
        nic("d", ""),
        "nic_details { id: \"e\" mac: \"m\" vni: 1 }".to_owned(),
    ]
    .join(" ");
    let told = |line: &str, replies: &[&[&str]]| {
        let daemon = Daemon::new();
        let mut client = daemon.start(line);
        for reply in replies {
            daemon.receive(line);
            daemon.send(&answer(reply));
        }
        let ended = client.end();
        daemon.assert_silent(line);
        assert_eq!(ended.code, Some(if ended.err.is_empty() { 0 } else { 1 }));
        ended.err.lines().next().unwrap_or_default().to_owned()
    };
    let note =
        "note: a, d may send anything now: no OUTBOUND rule is left in the groups of any of them";
    let list = "sg_list: \"web\"";
    let del = "sg del web --strict @";
    let rule = "sg rule del web --dir out --ip-proto tcp --port 80 --cidr 10.0.0.0/8 --strict @";
    let opened: [&[&str]; 5] = [&[list], &[&web], &[""], &[&nics], &[&db]];
    assert_eq!(told(del, &opened), note);
    let both = format!("{left} {db}");
    let opened: [&[&str]; 7] = [&[list], &[&web], &[""], &[list], &[&left], &[&nics], &[&both]];
    assert_eq!(told(rule, &opened), note);
    // Another OUTBOUND rule is left; there was none; the group has no members.
    let more = web.replacen("port_start: 80", "port_start: 79", 1);
    assert_eq!(
        told(
            rule,
            &[
                &[list],
                &[&web.replacen(OUTBOUND, &format!("{OUTBOUND} {OUTBOUND}"), 1)],
                &[""],
                &[list],
                &[&more]
            ]
        ),
        ""
    );
    assert_eq!(told(del, &[&[list], &[&left], &[""]]), "");
    assert_eq!(
        told(del, &[&[list], &[&web], &[""], &[&nic("b", "security_group: \"db\"")], &[&db]]),
        ""
    );
}

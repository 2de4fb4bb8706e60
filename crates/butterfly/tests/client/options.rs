//! What becomes of options: ignored with a word, refused, or taken from elsewhere.

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
            out: &format!("help: {command}"),
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

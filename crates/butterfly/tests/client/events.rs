//! Events, as the daemon reports them.

use crate::support::{Row, check};

const ANSWER: &str = "event_list { \
    event { seq: 7 time: 1000000000007 kind: \"nic-added\" nic_id: \"a\" vni: 42 text: \"made\" request: \"nic_add\" client: \"192.0.2.1\" } \
    event { seq: 9 time: 1000000001000 kind: \"guest-detached\" nic_id: \"a\" vni: 42 text: \"it \\033[2J crashed\" more: 3 } \
    event { seq: 10 time: 1000000001001 kind: \"mac-claimed\" vni: 1 text: \"t\" } \
    event { seq: 11 time: 1000000001002 kind: \"sg-removed\" text: \"gone\" request: \"sg_del\" } \
    event { seq: 12 time: 1000000001003 kind: \"nic-added\" nic_id: \"b\" vni: 42 text: \"made\" request: \"apply\" taken_back: true } \
    next: 12 lost: 2 started: 5 }";

const LINES: &str = "2001-09-09 01:46:40.007 #7 nic-added            a (VNI 42)  made [nic_add by 192.0.2.1]\n\
    2001-09-09 01:46:41.000 #9 guest-detached       a (VNI 42)  it \\u{1b}[2J crashed (3 more like this)\n\
    2001-09-09 01:46:41.001 #10 mac-claimed          VNI 1  t\n\
    2001-09-09 01:46:41.002 #11 sg-removed           gone [sg_del]\n\
    2001-09-09 01:46:41.003 #12 nic-added            b (VNI 42)  made (taken back) [apply]\n";

#[test]
fn events_are_lines() {
    let with_loss = format!("2 events lost: they are not kept any more\n{LINES}");
    let row = Row { answers: &[&[ANSWER]], out: LINES, ..Row::default() };
    check(&[
        Row { line: "events @", asks: &[&["event_list { limit: 100 newest: true }"]], ..row },
        Row {
            line: "events a --last 4 @",
            asks: &[&["event_list { limit: 4 nic_id: \"a\" newest: true }"]],
            ..row
        },
        Row {
            line: "events --since 6 @",
            asks: &[&["event_list { since: 6 limit: 10000 newest: true }"]],
            out: &with_loss,
            ..row
        },
        Row {
            line: "events --since 6 --last 4 @",
            asks: &[&["event_list { since: 6 limit: 4 newest: true }"]],
            ..row
        },
        Row {
            line: "events @",
            asks: &[&["event_list { limit: 100 newest: true }"]],
            answers: &[&["event_list { }"]],
            out: "",
            ..row
        },
    ]);
}

/// A misspelt id has no events, which is no answer.
#[test]
fn who_has_no_events_has_to_be_there() {
    let asks: &[&[&str]] =
        &[&["event_list { limit: 100 nic_id: \"vm1\" newest: true }"], &["nic_list: true"]];
    let row = Row { line: "events vm1 @", asks, ..Row::default() };
    check(&[
        Row { answers: &[&["event_list { }"], &["nic_list: \"vm1\""]], ..row },
        Row {
            answers: &[&["event_list { }"], &["nic_list: \"vm-1\" nic_list: \"db\""]],
            err: "there is no NIC vm1, and no event about one is kept; did you mean vm-1?\nerror in command: events\n",
            code: 1,
            ..row
        },
    ]);
}

#[test]
fn events_are_json_lines() {
    check(&[Row {
        line: "events --json --since 0 @",
        asks: &[&["event_list { since: 0 limit: 10000 newest: true }"]],
        answers: &[&[
            "event_list { event { seq: 7 time: 1000000000007 kind: \"k\" nic_id: \"a\" vni: 42 text: \"made\" } lost: 1 }",
        ]],
        out: "{\"lost\":1}\n{\"client\":null,\"kind\":\"k\",\"more\":0,\"nic_id\":\"a\",\"request\":null,\"seq\":7,\"taken_back\":false,\"text\":\"made\",\
              \"time\":\"2001-09-09T01:46:40.007Z\",\"time_ms\":1000000000007,\"vni\":42}\n",
        ..Row::default()
    }]);
}

#[test]
fn what_is_no_number_is_refused() {
    for (option, expected) in
        [("since", "the number of an event"), ("last", "a number from 0 to 10000")]
    {
        let err = format!(
            "--{option} argument not recognized\nhelp: \"x\" is not {expected}\nerror in command: events\n"
        );
        check(&[Row {
            line: &format!("events --{option} x @"),
            out: "short: events",
            err: &err,
            code: 1,
            ..Row::default()
        }]);
    }
}

#[test]
fn a_daemon_that_knows_no_events_says_so() {
    check(&[Row {
        line: "events @",
        asks: &[&["event_list { limit: 100 newest: true }"]],
        err: "no events received: the daemon may be older than this client\nerror in command: events\n",
        code: 1,
        ..Row::default()
    }]);
}

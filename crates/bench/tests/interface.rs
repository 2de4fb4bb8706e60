//! The bench on network interfaces: through a pair of them, alone in its network namespace.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs the bench from one end of a pair of interfaces to the other.
fn bench(setup: &str, line: &str) -> Output {
    let script = format!(
        "ip link add near type veth peer name far && ip link set near up && ip link set far up && {setup} \
         exec {} --a dev:near --b dev:far {line}",
        env!("CARGO_BIN_EXE_butterfly-bench")
    );
    Command::new("unshare")
        .args(["--net", "sh", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn every_frame_is_sent_and_verified() {
    for line in [
        "--verify --size imix --dir bidi --flows 100 --rate 20000",
        "--verify --size 60-9000 --tcp --rate 20000",
        "--verify --size 64 --rate 50000 --queue-size 64",
    ] {
        let setup = "ip link set near mtu 9000 && ip link set far mtu 9000 &&";
        let output = bench(setup, &format!("--json - --warm 0 --secs 1 --max-loss 0 {line}"));
        assert!(output.status.success(), "{line}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |vm: &str, what: &str| report[vm][what].as_u64().unwrap();
        assert!(count("b", "received") > 1000, "{line}: {report}");
        assert_eq!(count("b", "received"), count("a", "sent"), "{line}: {report}");
        assert_eq!(count("b", "strays") + count("b", "missed"), 0, "{line}: {report}");
    }
}

#[test]
fn round_trips_and_connections_go_through_interfaces() {
    let output = bench("", "--dir ping --warm 0 --secs 1 --json -");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["latency"]["samples"].as_u64().unwrap() > 100, "{report}");
    let output = bench("", "--tcp --connections --rate 1000 --warm 0 --secs 1 --json -");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["connections"]["closed"].as_u64().unwrap() > 100, "{report}");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (setup, line, why) in [
        (
            "",
            "--size 1600",
            "frames of 1600 bytes do not fit the interface \"near\": its MTU is 1500",
        ),
        ("ip link set far down &&", "", "\"far\" is down: ip link set dev far up"),
        ("ip link set far name other &&", "", "\"far\""),
    ] {
        let output = bench(setup, line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(why), "{line}: {output:?}");
    }
}

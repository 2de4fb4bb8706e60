//! The bench against DPDK's testpmd, which forwards between two vhost-user ports. Needs
//! `dpdk-testpmd` (Debian: dpdk-dev).

use std::{
    fs::File,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde_json::Value;

/// One testpmd at a time: each of them polls on a core.
static ONE: Mutex<()> = Mutex::new(());

struct Testpmd {
    child: Child,
    _stdin: ChildStdin,
    dir: tempfile::TempDir,
    _one: MutexGuard<'static, ()>,
}

impl Testpmd {
    fn start(client: bool, mode: &str) -> Testpmd {
        Testpmd::with(client, mode, &["a", "b"])
    }

    /// Starts one that forwards between the first two of these ports, the next two, and so on.
    fn with(client: bool, mode: &str, ports: &[&str]) -> Testpmd {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::Builder::new().prefix("bench-testpmd-").tempdir().unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        let vdev = |n: usize, name: &str| {
            let role = if client { ",client=1" } else { "" };
            format!("--vdev=net_vhost{n},iface={},queues=1{role}", dir.path().join(name).display())
        };
        let processors = std::thread::available_parallelism().unwrap().get();
        let spawned = Command::new("dpdk-testpmd")
            .arg(format!("--lcores=(0,1)@(0-{})", processors - 1))
            .args(["--no-pci", "--no-huge", "--no-shconf", "--no-telemetry", "-m", "256"])
            .arg(format!("--file-prefix={}", dir.path().file_name().unwrap().display()))
            .args(ports.iter().enumerate().map(|(n, name)| vdev(n, name)))
            .args(["--", "-i", "--auto-start", "--nb-cores=1", "--total-num-mbufs=16384"])
            .arg(format!("--forward-mode={mode}"))
            .env("RUNTIME_DIRECTORY", dir.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                panic!("cannot run dpdk-testpmd ({error}): install Debian's package dpdk-dev")
            }
        };
        let stdin = child.stdin.take().unwrap();
        Testpmd { child, _stdin: stdin, dir, _one: one }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn bench(&self, line: &str) -> Output {
        bench(&self.socket("a"), &self.socket("b"), line)
    }

    /// Runs with `--json -`, which must succeed.
    fn measure(&self, line: &str) -> Value {
        let output = self.bench(&format!("--json - --warm 0 --secs 1 --wait 60 {line}"));
        assert!(output.status.success(), "{line}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bench(a: &std::path::Path, b: &std::path::Path, line: &str) -> Output {
    let sockets = [["--a".as_ref(), a.as_os_str()], ["--b".as_ref(), b.as_os_str()]];
    Command::new(env!("CARGO_BIN_EXE_butterfly-bench"))
        .args(sockets.concat())
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Frames arrived, all that was counted adds up, and nothing wrong was among them.
fn check(report: &Value, vm: &str, other: &str) {
    let count = |vm: &str, what: &str| report[vm][what].as_u64().unwrap();
    assert!(count(vm, "received") > 1000, "{report}");
    assert_eq!(count(vm, "received") + count(vm, "lost"), count(other, "sent"), "{report}");
    for what in ["corrupt", "duplicated", "reordered"] {
        assert_eq!(count(vm, what), 0, "{what}: {report}");
    }
    assert_eq!(report["failures"].as_array().unwrap().len(), 0);
}

#[test]
fn payload_survives_whatever_the_frames_are() {
    let testpmd = Testpmd::start(false, "io");
    for line in [
        "--verify",
        "--verify --size 60-9000 --rate 20000",
        "--verify --tcp --flows 1000 --size imix",
        "--verify --new-sessions --size 1514 --features none",
        "--verify --size 9000 --features event-idx,indirect --header-apart --rate 20000",
        "--verify --size 60,1514 --features mergeable,in-order --queue-size 1024",
        "--verify --size 60,1514 --features legacy --rx-buffer 2000",
        "--verify --identity --features legacy,mergeable,any-layout --tcp",
        "--flows 100000 --learn 1000000",
    ] {
        println!("{line}");
        let report = testpmd.measure(line);
        check(&report, "b", "a");
        assert_eq!(report["a"]["received"], 0);
        assert_eq!(report["seconds"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn both_directions_and_back() {
    let testpmd = Testpmd::start(false, "io");
    let report = testpmd.measure("--verify --dir bidi");
    check(&report, "a", "b");
    check(&report, "b", "a");
    let report = testpmd.measure("--verify --dir rev --tcp");
    check(&report, "a", "b");
    assert_eq!(report["b"]["received"], 0);
}

#[test]
fn latency_has_quantiles_in_order() {
    let testpmd = Testpmd::start(false, "io");
    let report = testpmd.measure("--dir lat --verify");
    let latency = &report["latency"];
    let of = |name: &str| latency[name].as_f64().unwrap();
    assert!(of("samples") >= 1.0 && of("p50_us") > 0.1, "{latency}");
    assert!(
        of("p50_us") <= of("p90_us")
            && of("p90_us") <= of("p99_us")
            && of("p99_us") <= of("p999_us"),
        "{latency}"
    );
}

#[test]
fn round_trips_and_the_time_under_a_load_are_measured() {
    let testpmd = Testpmd::start(false, "io");
    let report = testpmd.measure("--dir ping --flows 10 --tcp");
    let latency = &report["latency"];
    // How long they take depends on who else computes.
    assert!(latency["p50_us"].as_f64().unwrap() > 0.1, "{latency}");
    let counted = latency["samples"].as_u64().unwrap();
    // An answer that comes too late is none.
    assert!(counted > 0 && report["a"]["received"].as_u64() >= Some(counted), "{report}");
    assert!(report["b"]["received"].as_u64() >= report["a"]["received"].as_u64(), "{report}");
    for line in ["--latency --rate 10000", "--latency --rate 10000 --tcp --dir bidi --size imix"] {
        let report = testpmd.measure(line);
        check(&report, "b", "a");
        let latency = &report["latency"];
        let steps = latency["histogram"].as_array().unwrap();
        let all: u64 = steps.iter().map(|step| step[1].as_u64().unwrap()).sum();
        assert_eq!(Some(all), latency["samples"].as_u64(), "{latency}");
        assert!(all > 1000 && latency["p50_us"].as_f64().unwrap() > 0.1, "{latency}");
        assert!(latency["max_us"].as_f64() < Some(1e6), "{latency}");
    }
}

#[test]
fn the_highest_rate_is_searched_for_and_written() {
    let testpmd = Testpmd::start(false, "io");
    let dir = tempfile::tempdir().unwrap();
    let [csv, svg] = ["trials.csv", "picture.svg"].map(|name| dir.path().join(name));
    let report = testpmd.measure(&format!(
        "--pdr 50 --precision 20 --rate 20000 --flows 100 --order zipf --csv {}",
        csv.display()
    ));
    let found = &report["search"];
    let rate = found["rate"].as_f64().unwrap();
    assert!(rate > 1000.0 && rate <= 20_000.0, "{found}");
    let trials = found["trials"].as_array().unwrap().len();
    assert_eq!(std::fs::read_to_string(&csv).unwrap().lines().count(), trials + 1);
    testpmd.measure(&format!("--rate 1000 --csv {} --svg {}", csv.display(), svg.display()));
    assert!(std::fs::read_to_string(&csv).unwrap().starts_with("second,rx_mpps,"));
    testpmd.measure(&format!("--dir ping --svg {}", svg.display()));
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("99.99 %"), "{picture}");
}

/// Writes a capture: packets of several lengths, one each 100 us.
fn capture(path: &std::path::Path) {
    let mut file: Vec<u8> =
        [0xa1b2_c3d4u32, 0x0002_0004, 0, 0, 65535, 1].map(u32::to_be_bytes).as_flattened().to_vec();
    for n in 0..100u32 {
        let len = 60 + n * 13;
        file.extend([5, n * 100, len, len].map(u32::to_be_bytes).as_flattened());
        file.extend([2, 9, 9, 9, 9, 9, 2, 8, 8, 8, 8, 8, 0x88, 0xb5]);
        file.extend((14..len).map(|at| (at + n) as u8));
    }
    std::fs::write(path, file).unwrap();
}

#[test]
fn a_capture_is_played_in_its_time() {
    let testpmd = Testpmd::start(false, "io");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("some.pcap");
    capture(&path);
    for (line, most) in [("", 10_000.0), ("--speed 0.5", 5_000.0), ("--rate 2000", 2_000.0)] {
        let report = testpmd.measure(&format!("--verify --pcap {} {line}", path.display()));
        let received = report["b"]["received"].as_u64().unwrap();
        let sent = report["a"]["sent"].as_u64().unwrap();
        assert!(received > 500 && sent as f64 <= most * 1.05, "{line}: {report}");
        assert_eq!(received + report["b"]["lost"].as_u64().unwrap(), sent, "{line}: {report}");
        assert_eq!(report["b"]["corrupt"], 0, "{line}: {report}");
    }
    let output = testpmd.bench("--pcap /dev/null");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("editcap"), "{output:?}");
}

#[test]
fn many_pairs_share_a_switch() {
    let testpmd = Testpmd::with(false, "io", &["a", "b", "c", "d", "e", "f"]);
    let sockets =
        |names: [&str; 3]| names.map(|name| testpmd.socket(name).display().to_string()).join(",");
    let (a, b) = (sockets(["a", "c", "e"]), sockets(["b", "d", "f"]));
    for line in ["--verify --dir bidi --rate 3000", "--latency --tcp --flows 100 --rate 3000"] {
        let line = format!("--json - --warm 0 --secs 1 --wait 60 {line}");
        let output = bench(a.as_ref(), b.as_ref(), &line);
        assert!(output.status.success(), "{line}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["pairs"], 3);
        check(&report, "b", "a");
        let sent = report["a"]["sent"].as_u64().unwrap();
        assert!(sent > 3000 && sent <= 9450, "{report}");
        assert_eq!(report["b"]["strays"], 0, "{report}");
    }
    for (a, b, line, why) in [
        (&a[..], "x", "", "3 ends of A and 1 of B"),
        (&a, &b, "--dir ping", "are for one pair, and there are 3"),
    ] {
        let output = bench(a.as_ref(), b.as_ref(), line);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    }
}

#[test]
fn the_switch_may_connect_to_us() {
    let testpmd = Testpmd::start(true, "io");
    check(&testpmd.measure("--serve --verify"), "b", "a");
    assert!(!testpmd.socket("a").exists(), "our sockets are removed");
}

#[test]
fn a_rate_is_kept() {
    let testpmd = Testpmd::start(false, "io");
    let report = testpmd.measure("--rate 10000 --verify");
    let rate = report["seconds"][0]["tx_mpps"].as_f64().unwrap();
    assert!(
        rate > 0.0 && rate < 0.0101,
        "{rate} Mpps; less than 0.01 only where the machine is busy"
    );
}

#[test]
fn loss_can_be_forbidden() {
    // It swallows what it gets: learning would wait for frames in vain, so leave it out.
    let testpmd = Testpmd::start(false, "rxonly");
    let output =
        testpmd.bench("--verify --max-loss 0 --learn 0 --warm 0 --secs 1 --wait 60 --rate 10000");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("VM B:") && error.contains("were lost on the way"), "{error}");
}

#[test]
fn a_switch_that_forwards_nothing_is_told_apart() {
    let testpmd = Testpmd::start(false, "rxonly");
    // It takes as long as testpmd needs to start, and then some.
    let output = testpmd.bench("--wait 10");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("nothing comes through after 10 s"), "{error}");
}

#[test]
fn errors_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let run = |line: &str| {
        let output = bench(&dir.path().join("a"), &dir.path().join("b"), line);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, error) = run("--wait 1");
    assert!(code == Some(1) && error.contains("VM A") && error.contains("No such file"), "{error}");
    let (code, error) = run("--wait 1 --serve");
    assert!(code == Some(1) && error.contains("nobody connected"), "{error}");
    let (code, error) = run("--watch-pid 4000000000");
    assert!(code == Some(1) && error.contains("no process 4000000000"), "{error}");
    let (code, error) = run("--size 10");
    assert!(code == Some(2) && error.contains("not a size from 60 to 9000"), "{error}");
}

#[test]
fn connections_are_opened_and_closed() {
    let testpmd = Testpmd::start(false, "io");
    for line in ["--rate 5000", "--rate 5000 --size 1514", "--window 16"] {
        let report = testpmd.measure(&format!("--tcp --connections {line}"));
        let all = &report["connections"];
        let of = |name: &str| all[name].as_u64().unwrap();
        assert!(of("opened") > 100, "{line}: {all}");
        assert_eq!(of("opened"), of("closed") + of("lost"), "{line}: {all}");
        assert!(
            of("lost") * 100 <= of("opened") && of("closed") <= of("established"),
            "{line}: {all}"
        );
        assert!(!line.contains("--rate") || of("opened") <= 5250, "{line}: {all}");
    }
}

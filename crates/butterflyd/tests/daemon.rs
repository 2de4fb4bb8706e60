//! The daemon as a process: how it starts, what it prints, how it ends.

use butterfly_api::{client::Client, proto::Messages, text};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Time limit that only a broken program exceeds.
const PATIENCE: Duration = Duration::from_secs(20);

fn butterflyd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterflyd"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Exit status and both outputs of a daemon that should end by itself.
fn ended(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = butterflyd(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// A directory for sockets, and a daemon in it.
struct Host {
    directory: tempfile::TempDir,
    daemon: Child,
    stdout: BufReader<ChildStdout>,
}

impl Host {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory)
    }

    fn start_in(directory: tempfile::TempDir) -> Self {
        let mut daemon = butterflyd(&[
            "-i",
            "192.0.2.1",
            "--uplink",
            "none",
            "-s",
            directory.path().to_str().unwrap(),
            "-e",
            &endpoint(directory.path()),
            "--no-syslog",
            "-l",
            "info",
            "--sessions",
            "1000",
        ])
        .spawn()
        .unwrap();
        let stdout = BufReader::new(daemon.stdout.take().unwrap());
        let host = Self { directory, daemon, stdout };
        host.ask("nic_list: true");
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
    }

    /// The file that holds the sessions.
    fn session_file(&self) -> PathBuf {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.daemon.id())).unwrap();
        let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
        paths.find(|path| path.contains("/butterfly-")).unwrap().into()
    }

    fn client(&self) -> Client {
        Client::connect(&endpoint(self.directory.path()), Some(PATIENCE)).unwrap()
    }

    /// The response to `request` as text.
    fn ask(&self, request: &str) -> String {
        let request: Messages = text::parse(&format!(
            "messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}"
        ))
        .unwrap();
        let reply = self.client().call(&request).unwrap();
        let response = text::print(&*reply.messages[0].message_0.response);
        response.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn add(&self, id: &str, mac: u8) -> String {
        self.ask(&format!("nic_add {{ id: \"{id}\" mac: \"02:00:00:00:00:{mac:02x}\" vni: 1 }}"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.daemon), signal).unwrap();
    }

    /// Waits for the end: exit status, the rest of standard output, standard error.
    fn end(mut self) -> (Option<i32>, String, String, tempfile::TempDir) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.daemon.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).unwrap();
        self.daemon.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let directory = std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap());
        (status.code(), stdout, stderr, directory)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Killed, it would leave the file with its sessions, which is memory.
        if matches!(self.daemon.try_wait(), Ok(None)) {
            self.signal(Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.daemon.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn endpoint(directory: &Path) -> String {
    format!("ipc://{}", directory.join("api").display())
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn the_version_and_the_help_are_on_standard_output() {
    for option in ["-V", "--version"] {
        let (status, stdout, stderr) = ended(&[option]);
        assert_eq!((status, stderr.as_str()), (Some(0), ""));
        assert!(
            stdout.starts_with("butterfly version: \"") && stdout.ends_with(" \"\n"),
            "{stdout}"
        );
    }
    for option in ["-h", "--help"] {
        let (status, stdout, _) = ended(&[option]);
        assert_eq!(status, Some(0));
        for name in [
            "--config",
            "--socket-dir",
            "--graph-cpu-core",
            "--poll",
            "--fdb-ageing",
            "--sessions",
            "--timeout",
            "--no-offload",
            "--key",
            "--no-legacy-encryption",
        ] {
            assert!(stdout.contains(name), "{option}: {name} is missing in {stdout}");
        }
    }
}

#[test]
fn wrong_options_end_it_with_two() {
    for (arguments, line) in [
        (&[][..], "IP to use is not set\nsocket folder is not set\n"),
        (&["-i", "192.0.2.1"], "socket folder is not set\n"),
        (&["-c", "/does/not/exist"], "Failed to open configuration file\n"),
        (
            &["-i", "192.0.2.1", "-s", "/tmp", "-k", "/key"],
            "Cannot load encryption key\nkey file \"/key\": No such file",
        ),
        (
            &["-i", "192.0.2.1", "-s", "/tmp", "-k", "/dev/null"],
            "Cannot load encryption key\nkey file \"/dev/null\" is empty",
        ),
        (
            &["-i", "192.0.2.1", "-s", "/tmp", "--no-legacy-encryption"],
            "--no-legacy-encryption (legacy_encryption=false) is refused",
        ),
        (&["-i", "192.0.2.1", "-s", "/tmp", "--sessions", "0"], "sessions \"0\" is refused: "),
        (&["-i", "192.0.2.1", "-s", "/tmp", "--timeout", "tcp=1"], "timeout \"tcp\" is refused: "),
        (
            &["-i", "192.0.2.1", "-s", "/tmp", "--dpdk-args", "-w 01:00.0"],
            "dpdk-args: -w 01:00.0 is refused: cards are not driven",
        ),
        (
            &[
                "-i",
                "192.0.2.1",
                "-s",
                "/tmp",
                "--dpdk-args=--vdev=eth_pcap0,iface=a",
                "--uplink=b",
            ],
            "uplink \"b\" is refused: dpdk-args",
        ),
        (
            &["-i", "192.0.2.1", "-s", "/tmp", "--dpdk-port", "1"],
            "dpdk-port 1 is refused: dpdk-args name no device",
        ),
        (
            &["-i", "192.0.2.1", "-s", "/tmp", "-e", "tcp://*:1", "-e", "udp://*:1"],
            "endpoint \"udp://*:1\" is refused: udp has no replies",
        ),
        (
            &["-i", "192.0.2.1", "-s", "/tmp", "-e", "nonsense"],
            "endpoint \"nonsense\" is refused: it has no transport",
        ),
        (&["--unknown"], "error: unexpected argument '--unknown'"),
    ] {
        let (status, stdout, stderr) = ended(arguments);
        assert_eq!((status, stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(stderr.starts_with(line), "{arguments:?}: {stderr}");
    }
}

/// An operator who starts it as the original reads that any client may command it, at every level
/// of the log.
#[test]
fn an_api_that_is_open_to_others_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // It ends because no host can have this address.
    let started = |host: &str, level: &[&str]| {
        let api = format!("tcp://{host}:{free}");
        let usual = [
            "-i",
            "192.0.2.1",
            "-s",
            path,
            "-e",
            &api,
            "--metrics",
            "192.0.2.250:9",
            "--no-syslog",
        ];
        ended(&[&usual[..], level].concat()).2
    };
    let told =
        |stderr: &str| stderr.matches("has no key: whoever reaches it commands the switch").count();
    for level in [&[][..], &["-l", "warning"]] {
        let stderr = started("0.0.0.0", level);
        assert_eq!(told(&stderr), 1, "{stderr}");
        let stderr = started("127.0.0.1", level);
        assert_eq!(told(&stderr), 0, "{stderr}");
    }
}

#[test]
fn what_cannot_be_served_ends_it_with_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let api = format!("ipc://{path}/api");
    let nowhere = "tcp://192.0.2.250:9999";
    let (status, _, stderr) =
        ended(&["-i", "192.0.2.1", "-s", path, "-e", &api, "-e", nowhere, "--no-syslog"]);
    assert_eq!(status, Some(1));
    assert!(stderr.starts_with("No encryption configured\n"), "{stderr}");
    assert!(stderr.contains("cannot listen on tcp://192.0.2.250:9999"), "{stderr}");
    let key = directory.path().join("key");
    std::fs::write(&key, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let (status, _, stderr) = ended(&[
        "-i",
        "192.0.2.1",
        "-s",
        path,
        "-e",
        nowhere,
        "--no-syslog",
        "-k",
        key.to_str().unwrap(),
    ]);
    assert_eq!(status, Some(1));
    assert!(
        stderr.starts_with("Encryption key loaded\nwarning: every user of this host"),
        "{stderr}"
    );
    std::fs::remove_file(&key).unwrap();
    assert!(files(directory.path()).is_empty(), "nothing is left behind");
}

#[test]
fn an_uplink_that_cannot_be_opened_is_told_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let (path, api) = (directory.path().to_str().unwrap(), endpoint(directory.path()));
    let taken = format!("vhost-user:{path}/taken");
    let _owner = UnixListener::bind(directory.path().join("taken")).unwrap();
    for (uplink, reasons) in [
        (
            "no-such-link",
            [
                "cannot look up the network interface \"no-such-link\": ",
                "`ip link` lists the interfaces",
            ],
        ),
        ("lo", ["\"lo\"", ""]),
        (&taken, ["/taken", ""]),
    ] {
        let (status, _, stderr) =
            ended(&["-i", "192.0.2.1", "--uplink", uplink, "-s", path, "-e", &api, "--no-syslog"]);
        assert_eq!(status, Some(1), "{uplink}: {stderr}");
        assert!(reasons.iter().all(|reason| stderr.contains(reason)), "{uplink}: {stderr}");
        assert_eq!(files(directory.path()), ["taken"], "{uplink}: nothing is left behind");
    }
    // No option asked for a TAP device.
    let mut poor = Command::new("setpriv");
    poor.args([
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
        env!("CARGO_BIN_EXE_butterflyd"),
    ]);
    let output =
        poor.args(["-i", "192.0.2.1", "-s", path, "-e", &api, "--no-syslog"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("TAP device") && stderr.contains("--uplink none"), "{stderr}");
}

#[test]
fn each_signal_stops_it_cleanly() {
    for signal in [Signal::INT, Signal::QUIT, Signal::TERM] {
        let host = Host::start();
        host.add("a", 1);
        host.add("b", 2);
        assert_eq!(files(host.directory.path()), ["api", "qemu-vhost-a", "qemu-vhost-b"]);
        let start = Instant::now();
        host.signal(signal);
        let (status, _, stderr, directory) = host.end();
        assert_eq!(status, Some(0), "{stderr}");
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        assert!(files(directory.path()).is_empty(), "{:?} is left behind", files(directory.path()));
    }
}

#[test]
fn a_client_stops_it_and_gets_its_answer() {
    let host = Host::start();
    host.add("a", 1);
    assert_eq!(host.ask("app_quit: true"), "status { status: true }");
    let (status, _, stderr, directory) = host.end();
    assert_eq!(status, Some(0), "{stderr}");
    assert!(files(directory.path()).is_empty());
}

#[test]
fn a_second_daemon_on_one_address_is_refused_and_harms_nothing() {
    let host = Host::start();
    host.add("a", 1);
    let (mine, other) = (host.directory.path(), tempfile::tempdir().unwrap());
    let listens_on = endpoint(mine);
    let (status, _, stderr) = ended(&[
        "-i",
        "::1",
        "--uplink",
        "none",
        "-s",
        other.path().to_str().unwrap(),
        "-e",
        &listens_on,
        "--no-syslog",
    ]);
    assert_eq!(status, Some(1));
    assert!(stderr.contains("another process listens there"), "{stderr}");
    assert!(files(other.path()).is_empty());
    assert_eq!(host.ask("nic_list: true"), "status { status: true } nic_list: \"a\"");
    UnixStream::connect(host.path("qemu-vhost-a")).unwrap();
}

#[test]
fn what_a_killed_daemon_left_behind_is_taken_over() {
    let host = Host::start();
    host.add("a", 1);
    let session_file = host.session_file();
    host.signal(Signal::KILL);
    let (status, _, _, directory) = host.end();
    assert_eq!(status, None);
    assert!(session_file.exists());
    assert_eq!(files(directory.path()), ["api", "qemu-vhost-a"]);
    let host = Host::start_in(directory);
    let path = host.path("qemu-vhost-a");
    assert_eq!(
        host.add("a", 1),
        format!("status {{ status: true }} nic_add {{ path: \"{}\" }}", path.display())
    );
    UnixStream::connect(path).unwrap();
    assert_eq!(host.session_file(), session_file);
    host.signal(Signal::TERM);
    let (status, _, stderr, directory) = host.end();
    assert_eq!(status, Some(0), "{stderr}");
    assert!(files(directory.path()).is_empty());
    assert!(!session_file.exists());
}

#[test]
fn a_socket_of_somebody_else_is_not_taken() {
    let host = Host::start();
    let _somebody = UnixListener::bind(host.path("qemu-vhost-a")).unwrap();
    let answer = host.add("a", 1);
    assert!(
        answer.starts_with("status { status: false error { description: \"somebody listens on "),
        "{answer}"
    );
    assert_eq!(
        host.ask("nic_list: true"),
        "status { status: true }",
        "the refused vnic is not there"
    );
}

/// Other programs watch for these lines.
#[test]
fn sockets_and_machines_are_announced() {
    let mut host = Host::start();
    host.add("a", 1);
    let path = host.path("qemu-vhost-a");
    assert_eq!(
        host.line(),
        format!("New vhost-user socket: {}, zero-copy disable\n", path.display())
    );
    let mut machine = UnixStream::connect(&path).unwrap();
    // VHOST_USER_GET_FEATURES, version 1, no payload.
    machine.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    machine.set_read_timeout(Some(PATIENCE)).unwrap();
    machine.read_exact(&mut [0; 20]).unwrap();
    assert_eq!(host.line(), format!("VM connecting to socket: {}\n", path.display()));
    drop(machine);
    assert_eq!(host.line(), format!("VM disconnecting from socket: {}\n", path.display()));
    host.ask("nic_del: \"a\"");
    host.signal(Signal::TERM);
    let (_, stdout, stderr, _) = host.end();
    assert_eq!(stdout, "");
    assert!(stderr.contains("<INFO> nic a: a virtual machine attached\n"), "{stderr}");
}

#[test]
fn a_deleted_vnic_cuts_its_machine_and_says_so() {
    let mut host = Host::start();
    host.add("a", 1);
    host.line();
    let mut machine = UnixStream::connect(host.path("qemu-vhost-a")).unwrap();
    machine.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert!(host.line().starts_with("VM connecting to socket: "));
    assert_eq!(host.ask("nic_del: \"a\""), "status { status: true }");
    assert!(host.line().starts_with("VM disconnecting from socket: "));
    machine.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut rest = Vec::new();
    machine.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 20, "the reply, and the end");
    assert!(!host.path("qemu-vhost-a").exists());
}

/// Changed in place, the vnic keeps its VM; made anew, it loses it.
#[test]
fn a_change_in_place_keeps_the_machine() {
    let host = Host::start();
    host.add("a", 1);
    let mut machine = UnixStream::connect(host.path("qemu-vhost-a")).unwrap();
    let mut speaks = || {
        machine.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).is_ok()
            && machine.read_exact(&mut [0; 20]).is_ok()
    };
    assert!(speaks());
    let declare = |rest: &str| {
        host.ask(&format!("nic_add {{ id: \"a\" mac: \"02:00:00:00:00:01\" {rest} }}"))
    };
    for same in [
        "vni: 1",
        "vni: 1 ip: \"10.0.0.1\" security_group: \"web\"",
        "vni: 1 ip_anti_spoof: true bypass_filtering: true",
    ] {
        assert!(declare(same).contains("status: true"));
        assert!(speaks(), "{same}");
    }
    assert!(declare("vni: 2").contains("status: true"));
    assert!(!speaks(), "another network");
}

#[test]
fn running_out_of_open_files_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "ulimit -n 160; exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs \"$@\"",
        "sh",
    ]);
    limited.arg(env!("CARGO_BIN_EXE_butterflyd"));
    limited.args([
        "-i",
        "192.0.2.1",
        "--uplink",
        "none",
        "-s",
        path,
        "-e",
        &endpoint(directory.path()),
        "--no-syslog",
        "-l",
        "warning",
    ]);
    let mut daemon =
        limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(daemon.stdout.take().unwrap());
    let host = Host { directory, daemon, stdout };
    // 64 for the daemon, 16 for each vnic.
    for id in 1..=6 {
        let answer = host.add(&format!("v{id}"), id);
        assert!(answer.starts_with("status { status: true }"), "{answer}");
    }
    let refused = host.add("v7", 7);
    assert!(
        refused.contains("160 files may be open, which is enough for 6 nics and no more"),
        "{refused}"
    );
    assert!(refused.contains("help: \"raise the hard limit of open files"), "{refused}");
    host.ask("nic_del: \"v1\"");
    assert!(host.add("v7", 7).starts_with("status { status: true }"));
    host.signal(Signal::TERM);
    let (status, _, stderr, directory) = host.end();
    assert_eq!(status, Some(0));
    assert!(
        stderr.contains("160 files may be open, enough for 6 vnics; raise the hard limit"),
        "{stderr}"
    );
    assert!(files(directory.path()).is_empty(), "{:?}", files(directory.path()));
}

#[test]
fn the_log_level_changes_while_it_runs() {
    let host = Host::start();
    host.ask("nic_details: \"first\"");
    host.ask("app_config { log_level: \"debug\" }");
    host.ask("nic_details: \"second\"");
    host.ask("app_config { log_level: \"none\" }");
    host.ask("nic_details: \"third\"");
    host.signal(Signal::TERM);
    let (_, _, stderr, _) = host.end();
    let said =
        ["first", "second", "third"].map(|id| stderr.contains(&format!("nic_details: \"{id}\"")));
    assert_eq!(said, [false, true, false], "{stderr}");
}

#[test]
fn malformed_requests_end_nothing() {
    let host = Host::start();
    for bytes in [&b""[..], b"\xff", b"\x0a\x05\x08\x06", &[0xab; 100_000]] {
        host.client().exchange(bytes).unwrap();
    }
    assert_eq!(host.ask("nic_list: true"), "status { status: true }");
}

/// Security groups and the table of sessions, through the real data path.
#[test]
fn groups_and_the_session_table_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let api = endpoint(directory.path());
    let mut daemon = butterflyd(&[
        "-i",
        "::1",
        "-s",
        path,
        "-e",
        &api,
        "--no-syslog",
        "-l",
        "info",
        "--sessions",
        "5000",
    ]);
    daemon.args([
        "--uplink",
        "none",
        "--session-share",
        "50",
        "--tcp-pickup",
        "0",
        "--timeout",
        "other=7",
        "--timeout",
        "udp-new=8",
    ]);
    let mut daemon = daemon.spawn().unwrap();
    let stdout = BufReader::new(daemon.stdout.take().unwrap());
    let host = Host { directory, daemon, stdout };
    let table = host.ask("session_table: true");
    for expected in [
        "tcp_pickup: 0",
        "used: 0",
        "timeout { name: \"other\" seconds: 7 ",
        "timeout { name: \"udp-new\" seconds: 8 ",
        "timeout { name: \"udp-answered\" seconds: 60 ",
    ] {
        assert!(table.contains(expected), "{expected} is not in {table}");
    }
    let capacity = table.split_once("capacity: ").unwrap().1.split(' ').next().unwrap();
    let memory = table.split_once("memory: \"").unwrap().1.split('"').next().unwrap();
    let capacity: u32 = capacity.parse().unwrap();
    assert!((5000..10_000).contains(&capacity), "{capacity}");
    assert!(table.contains(&format!("share: {}", capacity / 2)), "{table}");

    host.ask("nic_add { id: \"a\" mac: \"02:00:00:00:00:01\" vni: 1 ip: \"10.0.0.1\" security_group: \"web\" }");
    let ok = "status { status: true }";
    let rule = "rule { direction: INBOUND protocol: 6 port_start: 80 port_end: 80 cidr { address: \"10.0.0.1\" mask_size: 8 } }";
    for request in [
        format!("sg_rule_add {{ sg_id: \"web\" {rule} }}"),
        "sg_member_add { sg_id: \"web\" member: \"10.0.0.2\" }".into(),
        "sg_rule_add { sg_id: \"web\" rule { direction: OUTBOUND protocol: -1 security_group: \"web\" } }".into(),
        "sg_rule_del { sg_id: \"web\" rule { direction: OUTBOUND protocol: -1 security_group: \"web\" } }".into(),
    ] {
        assert_eq!(host.ask(&request), ok, "{request}");
    }
    assert_eq!(
        host.ask("sg_details: \"\""),
        format!("{ok} sg_details {{ id: \"web\" member: \"10.0.0.2\" {rule} }}")
    );
    assert_eq!(
        host.ask("sg_rule_stats: \"web\""),
        format!("{ok} sg_rule_stats {{ {rule} sessions: 0 }}")
    );
    assert_eq!(
        host.ask("session_list { filter { nic_id: \"a\" } }"),
        format!("{ok} session_list {{ matching: 0 }}")
    );
    assert_eq!(host.ask("session_flush { }"), format!("{ok} session_flush {{ flushed: 0 }}"));
    assert_eq!(host.ask("sg_del: \"web\""), ok);
    host.signal(Signal::TERM);
    let (status, _, stderr, directory) = host.end();
    assert_eq!(status, Some(0), "{stderr}");
    assert!(
        stderr.contains(&format!("<INFO> room for {capacity} sessions, in {memory}")),
        "{stderr}"
    );
    assert!(files(directory.path()).is_empty(), "{:?}", files(directory.path()));
}

//! Output of the daemon, occasion by occasion: the log on standard error, announcements on standard
//! output.

use butterfly_api::{client::Client, proto::Messages, text};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// An event, and the lines that it makes, in order. `DIR` is the folder of the sockets.
struct Row {
    occasion: Occasion,
    log: &'static [&'static str],
    out: &'static [&'static str],
}

enum Occasion {
    Start,
    Ask(&'static str),
    /// A machine says its first word on a vnic's socket, and another when it leaves.
    Machine(&'static str),
    Stop,
}
use Occasion::{Ask, Machine, Start, Stop};

const NIC: &str = "nic_add { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 7 ip: \"10.0.0.1\" }";

const ROWS: &[Row] = &[
    Row {
        occasion: Start,
        log: &[
            "No encryption configured",
            "<WARNING> no such processor: the worker is not pinned",
            "<INFO> room for ",
            "<INFO> no uplink: networks end at this host",
            "<INFO> started: API on ipc://DIR/api, sockets in DIR",
        ],
        out: &[],
    },
    Row {
        occasion: Ask(NIC),
        log: &["<INFO> nic a made: MAC 52:54:00:00:00:01, VNI 7, socket DIR/qemu-vhost-a"],
        out: &["New vhost-user socket: DIR/qemu-vhost-a, zero-copy disable"],
    },
    // The same again is nothing new.
    Row { occasion: Ask(NIC), log: &[], out: &[] },
    Row {
        occasion: Ask("nic_update { id: \"a\" ip: \"10.0.0.2\" }"),
        log: &["<INFO> nic a changed in place"],
        out: &[],
    },
    Row {
        occasion: Machine("a"),
        log: &[
            "<INFO> nic a: a virtual machine attached",
            "<INFO> nic a: the virtual machine detached: ",
        ],
        out: &[
            "VM connecting to socket: DIR/qemu-vhost-a",
            "VM disconnecting from socket: DIR/qemu-vhost-a",
        ],
    },
    Row {
        occasion: Ask("nic_add { id: \"a\" mac: \"52:54:00:00:00:01\" vni: 8 }"),
        log: &["<INFO> nic a made anew, as these changed: "],
        out: &["New vhost-user socket: DIR/qemu-vhost-a, zero-copy disable"],
    },
    Row { occasion: Ask("nic_del: \"a\""), log: &["<INFO> nic a deleted"], out: &[] },
    Row {
        occasion: Ask("nic_del: \"a\""),
        log: &["<WARNING> nic \"a\" does not exist and is deleted all the same"],
        out: &[],
    },
    Row {
        occasion: Ask("sg_add { id: \"web\" member: \"10.0.0.1\" }"),
        log: &["<INFO> security group \"web\" has 0 rules and 1 member"],
        out: &[],
    },
    Row {
        occasion: Ask("sg_del: \"web\""),
        log: &["<INFO> security group \"web\" deleted"],
        out: &[],
    },
    Row {
        occasion: Ask("sg_del: \"web\""),
        log: &["<WARNING> security group \"web\" does not exist and is deleted all the same"],
        out: &[],
    },
    // From now on every request and reply in text form, this one's reply first.
    Row {
        occasion: Ask("app_config { log_level: \"debug\" }"),
        log: &["<DEBUG> ", "status: true"],
        out: &[],
    },
    Row {
        occasion: Ask("nic_stats: \"x\""),
        log: &[
            "<DEBUG> ",
            "nic_stats: \"x\"",
            "<DEBUG> ",
            "description: \"NIC does not exist with id x\"",
        ],
        out: &[],
    },
    Row {
        occasion: Ask("app_config { log_level: \"info\" }"),
        log: &["<DEBUG> ", "log_level: \"info\""],
        out: &[],
    },
    Row { occasion: Ask("app_config { log_level: \"none\" }"), log: &[], out: &[] },
    Row { occasion: Ask("nic_del: \"x\""), log: &[], out: &[] },
    Row { occasion: Ask("app_config { log_level: \"error\" }"), log: &[], out: &[] },
    Row { occasion: Ask("nic_del: \"x\""), log: &[], out: &[] },
    Row { occasion: Ask("app_config { log_level: \"warning\" }"), log: &[], out: &[] },
    Row {
        occasion: Ask(NIC),
        log: &[],
        out: &["New vhost-user socket: DIR/qemu-vhost-a, zero-copy disable"],
    },
    Row { occasion: Ask("nic_del: \"x\""), log: &["<WARNING> nic \"x\" does not exist"], out: &[] },
    Row { occasion: Ask("app_config { log_level: \"info\" }"), log: &[], out: &[] },
    Row { occasion: Stop, log: &["<INFO> stopping"], out: &[] },
];

/// Killed, or told twice to stop, it would leave its table of sessions.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = Command::new("kill").arg(self.0.id().to_string()).status();
            let _ = self.0.wait();
        }
    }
}

/// Returns the lines of a file beyond `read`, once it has all of `expected` or time is up. Each is
/// in order and in a line of its own.
fn lines(file: &Path, read: &mut usize, expected: &[String]) -> Result<String, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = std::fs::read_to_string(file).unwrap();
        let new = &all[*read..];
        let mut rest = new.lines();
        if expected
            .iter()
            .all(|line| rest.any(|found| found.trim_start().starts_with(line.as_str())))
        {
            let new = new.to_owned();
            *read = all.len();
            return Ok(new);
        }
        if Instant::now() >= deadline {
            return Err(new.to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn each_occasion_has_its_lines() {
    let directory = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let real = directory.path().canonicalize().unwrap().display().to_string();
    let (log, out) = (files.path().join("log"), files.path().join("out"));
    let create = |path: &Path| std::fs::File::create(path).unwrap();
    let api = format!("ipc://{real}/api");
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_butterflyd"));
    daemon.args([
        "-i",
        "192.0.2.1",
        "--uplink",
        "none",
        "--sessions",
        "1000",
        "-u",
        "65535",
        "--no-syslog",
        "-l",
        "info",
    ]);
    daemon
        .args(["-e", &api, "-s", &real])
        .stdin(Stdio::null())
        .stdout(create(&out))
        .stderr(create(&log));
    let mut daemon = Daemon(daemon.spawn().unwrap());
    let client = Client::connect(&api, Some(PATIENCE)).unwrap();
    let ask = |request: &str| {
        let request: Messages = text::parse(&format!(
            "messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}"
        ))
        .unwrap();
        client.call(&request).unwrap();
    };
    let (mut logged, mut printed) = (0, 0);
    for (number, row) in ROWS.iter().enumerate() {
        match row.occasion {
            Start => {}
            Ask(request) => ask(request),
            Machine(id) => {
                let mut machine = UnixStream::connect(format!("{real}/qemu-vhost-{id}")).unwrap();
                // VHOST_USER_GET_FEATURES, version 1, no payload.
                machine.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
                machine.read_exact(&mut [0; 20]).unwrap();
            }
            Stop => {
                assert!(
                    Command::new("kill").arg(daemon.0.id().to_string()).status().unwrap().success()
                );
                assert!(daemon.0.wait().unwrap().success());
            }
        }
        let named = |lines: &[&str]| {
            lines.iter().map(|line| line.replace("DIR", &real)).collect::<Vec<_>>()
        };
        let got = lines(&log, &mut logged, &named(row.log))
            .unwrap_or_else(|got| panic!("row {number}: {:?} in {got}", row.log));
        // Nothing but what was expected has a level, if nothing was.
        if row.log.is_empty() {
            assert_eq!(got, "", "row {number}");
        }
        let got = lines(&out, &mut printed, &named(row.out))
            .unwrap_or_else(|got| panic!("row {number}: {:?} in {got}", row.out));
        if row.out.is_empty() {
            assert_eq!(got, "", "row {number}");
        }
    }
}

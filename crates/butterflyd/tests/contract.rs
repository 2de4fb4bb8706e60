//! The daemon's contract, a row each: what it prints, how it ends, what it logs.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    os::{linux::fs::MetadataExt, unix::net::UnixDatagram, unix::process::ExitStatusExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

/// One start that ends by itself. `DIR` is a directory, `INI` a file with `ini` in it.
struct Row {
    options: &'static str,
    ini: &'static str,
    code: i32,
    out: &'static str,
    /// All of these are lines of standard error, in this order.
    err: &'static [&'static str],
}

const ROWS: &[Row] = &[
    Row {
        options: "",
        ini: "",
        code: 2,
        out: "",
        err: &["IP to use is not set", "socket folder is not set"],
    },
    Row { options: "-s DIR", ini: "", code: 2, out: "", err: &["IP to use is not set"] },
    Row { options: "-i 192.0.2.1", ini: "", code: 2, out: "", err: &["socket folder is not set"] },
    Row {
        options: "-c /does/not/exist",
        ini: "",
        code: 2,
        out: "",
        err: &["Failed to open configuration file"],
    },
    // The file is stronger: an address that is none replaces a good one.
    Row {
        options: "-i 192.0.2.1 -s DIR -c INI",
        ini: "[general]\nip = x\n",
        code: 2,
        out: "",
        err: &[],
    },
    Row { options: "-i 192.0.2.1 -s DIR -l loud", ini: "", code: 2, out: "", err: &[] },
    Row { options: "-i 192.0.2.1 -s DIR --no-such-option", ini: "", code: 2, out: "", err: &[] },
    Row {
        options: "-i 192.0.2.1 -s DIR --uplink none -e tcp://192.0.2.250:1",
        ini: "",
        code: 1,
        out: "",
        err: &[],
    },
    Row { options: "-i 192.0.2.1 -s DIR/none --uplink none", ini: "", code: 2, out: "", err: &[] },
    // The words come first, then what to do.
    Row {
        options: "-c INI",
        ini: "",
        code: 2,
        out: "",
        err: &[
            "IP to use is not set",
            "socket folder is not set",
            "give -i and -s, or ip and socket-dir in the configuration file; see butterflyd --help",
        ],
    },
    Row {
        options: "-c INI",
        ini: "[general]\nip=::1\n",
        code: 2,
        out: "",
        err: &["socket folder is not set"],
    },
    Row {
        options: "-c INI",
        ini: "[general]\nsocket-dir=DIR\n",
        code: 2,
        out: "",
        err: &["IP to use is not set"],
    },
    Row {
        options: "-i 192.0.2.1 -s DIR -k DIR/none",
        ini: "",
        code: 2,
        out: "",
        err: &["Cannot load encryption key"],
    },
    Row {
        options: "-i 192.0.2.1 -s DIR -k DIR/ini -c INI",
        ini: "[security]\nencryption_key_path=DIR/none\n",
        code: 2,
        out: "",
        err: &["Cannot load encryption key"],
    },
    // Told before anything else goes wrong.
    Row {
        options: "-i 192.0.2.1 -s DIR --uplink none -e tcp://192.0.2.250:1 -k DIR/key",
        ini: "",
        code: 1,
        out: "",
        err: &["Encryption key loaded"],
    },
    Row {
        options: "-i 192.0.2.1 -s DIR --uplink none -c INI",
        ini: "[general]\nendpoint=tcp://192.0.2.250:1\n[security]\nencryption_key_path=DIR/key\n",
        code: 1,
        out: "",
        err: &["Encryption key loaded"],
    },
    Row {
        options: "-i 192.0.2.1 -s DIR --uplink none -e tcp://192.0.2.250:1",
        ini: "",
        code: 1,
        out: "",
        err: &["No encryption configured"],
    },
    Row { options: "--dpdk-help", ini: "", code: 0, out: "", err: &[] },
    Row { options: "-V", ini: "", code: 0, out: "butterfly version: \"", err: &[] },
    Row { options: "--version", ini: "", code: 0, out: "butterfly version: \"", err: &[] },
    Row { options: "--help", ini: "", code: 0, out: "A virtual switch", err: &[] },
];

#[test]
fn every_end_has_its_status_and_its_words() {
    for Row { options, ini, code, out, err } in ROWS {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ini");
        let real = directory.path().to_str().unwrap();
        std::fs::write(&file, ini.replace("DIR", real)).unwrap();
        std::fs::write(
            directory.path().join("key"),
            "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
        )
        .unwrap();
        let options = options.replace("INI", file.to_str().unwrap()).replace("DIR", real);
        let output = Command::new(env!("CARGO_BIN_EXE_butterflyd"))
            .args(options.split_whitespace())
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(*code), "{options}: {stderr}");
        assert!(String::from_utf8(output.stdout).unwrap().starts_with(out), "{options}");
        let mut lines = stderr.lines();
        assert!(err.iter().all(|line| lines.any(|found| found == *line)), "{options}: {stderr}");
        assert_eq!(*code == 0, stderr.is_empty(), "{options}: {stderr}");
    }
}

#[test]
fn the_manual_page_is_sound() {
    let made = Command::new(env!("CARGO_BIN_EXE_butterflyd"))
        .args(["--generate", "manual"])
        .output()
        .unwrap();
    assert_eq!(made.status.code(), Some(0));
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("butterflyd.8");
    std::fs::write(&page, made.stdout).unwrap();
    for (program, options) in [("groff", "-man -ww -z -Tutf8"), ("mandoc", "-T lint -W warning")] {
        let output = Command::new(program).args(options.split(' ')).arg(&page).output();
        let output =
            output.unwrap_or_else(|error| panic!("{program}: {error}; make setup installs it"));
        let complaints = [output.stdout, output.stderr].concat();
        assert_eq!(String::from_utf8_lossy(&complaints), "", "{program}");
    }
}

/// A daemon that systemd would have started.
struct Host {
    directory: tempfile::TempDir,
    daemon: Child,
    systemd: UnixDatagram,
}

impl Host {
    fn start(options: &[&str], settings: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        systemd.set_read_timeout(Some(PATIENCE)).unwrap();
        let api = format!("ipc://{}", directory.path().join("api").display());
        let daemon = Command::new(env!("CARGO_BIN_EXE_butterflyd"))
            .args([
                "-i",
                "192.0.2.1",
                "--uplink",
                "none",
                "--sessions",
                "1000",
                "-l",
                "info",
                "-e",
                &api,
                "-s",
            ])
            .arg(directory.path())
            .args(options)
            .env("NOTIFY_SOCKET", &path)
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let host = Self { directory, daemon, systemd };
        let ready = host.told();
        assert!(ready.starts_with("READY=1\nSTATUS=started: API on ipc://"), "{ready}");
        host
    }

    /// Returns the next message to systemd.
    fn told(&self) -> String {
        let mut buffer = [0; 1000];
        // A machine that is frozen and thawed interrupts it.
        let length = loop {
            match self.systemd.recv(&mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                told => break told.unwrap(),
            }
        };
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    fn signal(&self, signal: &str) {
        let process = self.daemon.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &process]).status().unwrap().success());
    }

    fn end(&mut self) -> (Option<i32>, Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.daemon.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut stderr = String::new();
        self.daemon.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (status.code(), status.signal(), stderr)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            self.signal("CONT");
            self.signal("TERM");
            let deadline = Instant::now() + PATIENCE;
            while matches!(self.daemon.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
    }
}

/// SIGHUP ends nothing: `reload.rs` has it.
#[test]
fn each_signal_has_its_effect_and_systemd_hears_of_it() {
    for (signal, status) in [
        ("INT", (Some(0), None)),
        ("QUIT", (Some(0), None)),
        ("TERM", (Some(0), None)),
        ("SEGV", (None, Some(11))),
    ] {
        let mut host = Host::start(&["--no-syslog"], &[]);
        let process = host.daemon.id().to_string();
        assert!(
            Command::new("prlimit")
                .args(["--core=0", "--pid", &process])
                .status()
                .unwrap()
                .success()
        );
        let begun = Instant::now();
        host.signal(signal);
        // A fault comes again by itself, after Rust's runtime looked whether the stack is full.
        while signal == "SEGV"
            && host.daemon.try_wait().unwrap().is_none()
            && begun.elapsed() < PATIENCE
        {
            host.signal(signal);
        }
        let (code, by, stderr) = host.end();
        assert_eq!((code, by), status, "{signal}: {stderr}");
        assert!(stderr.lines().any(|line| line == "No encryption configured"), "{stderr}");
        if status.0.is_some() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{signal}");
            assert_eq!(host.told(), "STOPPING=1\nSTATUS=stopping", "{signal}");
            let left: Vec<_> = std::fs::read_dir(host.directory.path())
                .unwrap()
                .map(|file| file.unwrap().file_name())
                .collect();
            assert_eq!(left, ["notify"], "{signal}");
        } else {
            remove_sessions(host.directory.path());
        }
    }
}

/// Something keeps it from stopping.
#[test]
fn a_second_signal_ends_it_at_once() {
    let mut host = Host::start(&["--no-syslog"], &[]);
    let stuck = Stopped::thread(host.daemon.id(), "butterflyd");
    let begun = Instant::now();
    // The debugger is the first to hear of the end.
    let state = format!("/proc/{}/stat", host.daemon.id());
    while !std::fs::read_to_string(&state).unwrap().contains(") Z ") && begun.elapsed() < PATIENCE {
        host.signal("TERM");
    }
    drop(stuck);
    let (code, by, stderr) = host.end();
    assert_eq!((code, by), (None, Some(15)), "{stderr}");
    remove_sessions(host.directory.path());
}

/// A command line as long as it gets, short and long, and a file of the original's keys.
#[test]
fn every_option_of_the_original_is_taken() {
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("key"), "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
    let (uplink, key) = (format!("vhost-user:{}", path("uplink")), path("key"));
    let dpdk = "-c1 -n1 --socket-mem 64 --no-shconf --huge-unlink";
    std::fs::write(
        path("ini"),
        format!(
            "[general]\nip=192.0.2.7\nlog-level=info\ngraph-core-id=0\ndpdk-args={dpdk}\ndpdk-port=0\nnic-mtu=1600\n\
             [security]\nencryption_key_path={key}\n"
        ),
    )
    .unwrap();
    let ini = path("ini");
    let short = [
        "-u",
        "0",
        "-t",
        "--no-syslog",
        "--dpdk-args",
        dpdk,
        "--dpdk-port",
        "0",
        "-m",
        "max",
        "--no-offload",
        "-k",
        &key,
    ];
    let long = [
        "--log-level",
        "info",
        "--graph-cpu-core",
        "0",
        "--packet-trace",
        "--no-syslog",
        "--dpdk-args",
        dpdk,
        "--nic-mtu",
        "1600",
        "--no-offload",
        "--key",
        &key,
    ];
    for options in [&short[..], &long, &["--config", &ini, "--no-syslog", "-m", "9000"]] {
        let mut host = Host::start(&[&["--uplink", &uplink], options].concat(), &[]);
        let process = host.daemon.id();
        host.signal("TERM");
        let (code, _, stderr) = host.end();
        assert_eq!(code, Some(0), "{options:?}: {stderr}");
        assert!(stderr.starts_with("Encryption key loaded\n"), "{options:?}: {stderr}");
        let _ = std::fs::remove_file(format!("/tmp/butterfly-{process}-main.pcap"));
    }
}

/// Removes a daemon's sessions, which stay in memory. The next daemon for the folder would take
/// them over, and remove them.
fn remove_sessions(directory: &Path) {
    let mut next = Command::new(env!("CARGO_BIN_EXE_butterflyd"))
        .args([
            "-i",
            "192.0.2.1",
            "--uplink",
            "none",
            "--sessions",
            "1000",
            "--no-syslog",
            "-l",
            "info",
            "-e",
        ])
        .arg(format!("ipc://{}", directory.join("api").display()))
        .arg("-s")
        .arg(directory)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(next.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("started: API on")));
    assert!(Command::new("kill").arg(next.id().to_string()).status().unwrap().success());
    lines.for_each(drop);
    assert!(next.wait().unwrap().success());
}

#[test]
fn lines_of_the_log_begin_with_their_level_and_with_syslog_with_name_and_process() {
    for (options, before) in
        [(&["--no-syslog"][..], String::new()), (&[], "butterfly[PID]: ".into())]
    {
        let mut host = Host::start(options, &[]);
        let process = host.daemon.id();
        host.signal("TERM");
        let (.., stderr) = host.end();
        let before = before.replace("PID", &process.to_string());
        let lines: Vec<_> =
            stderr.lines().filter(|line| *line != "No encryption configured").collect();
        assert!(lines.len() >= 3, "{stderr}");
        for line in lines {
            let rest = line.strip_prefix(&before).unwrap_or_else(|| panic!("{line}"));
            assert!(
                ["<INFO> ", "<WARNING> "].iter().any(|level| rest.starts_with(level)),
                "{line}"
            );
        }
    }
}

/// Runs in a `/dev` of its own, with a logger of ours: facility LOCAL0, the name, the process; and
/// the same on standard error.
#[test]
fn syslog_gets_what_standard_error_has() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let logger = UnixDatagram::bind(directory.path().join("log")).unwrap();
    logger.set_read_timeout(Some(PATIENCE)).unwrap();
    let script = format!(
        "touch {path}/urandom && mount --bind /dev/urandom {path}/urandom && mount -t tmpfs none /dev && mkdir /dev/shm && \
         ln -s {path}/urandom /dev/urandom && ln -s {path}/log /dev/log && exec \"$@\""
    );
    let options = [
        "-i",
        "192.0.2.1",
        "--uplink",
        "none",
        "--sessions",
        "1000",
        "-l",
        "info",
        "-u",
        "65535",
        "-s",
        path,
        "-e",
    ];
    let daemon = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_butterflyd")])
        .args(options)
        .arg(format!("ipc://{path}/api"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let tag = format!("butterfly[{}]: ", daemon.id());
    let mut buffer = [0; 2000];
    let mut lines: Vec<String> = Vec::new();
    while lines.last().is_none_or(|line| !line.ends_with("<INFO> stopping")) {
        let length = logger.recv(&mut buffer).unwrap();
        let line = String::from_utf8(buffer[..length].to_vec()).unwrap();
        let started = line.contains("<INFO> started: API on ");
        lines.push(line);
        if started {
            assert!(Command::new("kill").arg(daemon.id().to_string()).status().unwrap().success());
        }
    }
    let output = daemon.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    // 16 is LOCAL0.
    for (severity, level) in [(4, "<WARNING> "), (6, "<INFO> ")] {
        let start = format!("<{}>{tag}{level}", 16 * 8 + severity);
        assert!(lines.iter().any(|line| line.starts_with(&start)), "{start} in {lines:?}");
    }
    // Threads write as they come.
    let beside: BTreeSet<&str> =
        stderr.lines().filter(|line| *line != "No encryption configured").collect();
    let sent: BTreeSet<&str> = lines.iter().map(|line| line.split_once('>').unwrap().1).collect();
    assert!(sent.len() >= 4 && beside.is_superset(&sent), "{beside:?} is not {sent:?}");
}

/// Runs as in a chroot that is not complete.
#[test]
fn what_is_missing_in_dev_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let output = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs none /dev && mkdir /dev/shm && exec \"$@\"",
            "sh",
        ])
        .args([
            env!("CARGO_BIN_EXE_butterflyd"),
            "-i",
            "192.0.2.1",
            "--uplink",
            "none",
            "--no-syslog",
            "-s",
            path,
            "-e",
        ])
        .arg(format!("ipc://{path}/api"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("butterflyd: cannot read /dev/urandom: No such file or directory"),
        "{stderr}"
    );
}

#[test]
fn another_journal_s_stream_is_not_taken_for_ours() {
    // Device and inode of something else than standard error.
    let other = std::fs::metadata("/").unwrap();
    let stream = format!("{}:{}", other.st_dev(), other.st_ino());
    let mut host = Host::start(&[], &[("JOURNAL_STREAM", &stream)]);
    host.signal("TERM");
    let (.., stderr) = host.end();
    assert!(stderr.contains("<INFO> started: API on"), "{stderr}");
}

/// The debugger stops one thread of the daemon; the others go on.
#[test]
fn signs_of_life_end_when_a_thread_is_stuck() {
    const INTERVAL: Duration = Duration::from_millis(400);
    // The API has ten times as long: packets flow meanwhile.
    for (stuck, most) in [("worker-0", 10), ("butterflyd", 60)] {
        let mut host = Host::start(&["--no-syslog"], &[("WATCHDOG_USEC", "400000")]);
        for _ in 0..3 {
            assert_eq!(host.told(), "WATCHDOG=1", "idle, too");
        }
        let tracer = Stopped::thread(host.daemon.id(), stuck);
        host.systemd.set_read_timeout(Some(3 * INTERVAL)).unwrap();
        let mut buffer = [0; 100];
        // What was on its way; then nothing for three times the time in which a sign has to come.
        let mut signs = 0;
        while host.systemd.recv(&mut buffer).is_ok() {
            signs += 1;
            assert!(signs < most, "{stuck} is stuck, and signs come all the same");
        }
        drop(tracer);
        host.systemd.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(host.told(), "WATCHDOG=1", "{stuck} goes on");
        host.signal("TERM");
        let (code, _, stderr) = host.end();
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stderr.contains("is stuck: unless it goes on"), "{stderr}");
    }
}

/// A thread that does not run, while this lives.
struct Stopped(Child);

impl Stopped {
    /// The one called `name` of a process.
    fn thread(process: u32, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task"))
            .unwrap()
            .map(|task| task.unwrap().path());
        let thread = tasks.filter(|task| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
        });
        let thread = thread.map(|task| task.file_name().unwrap().to_owned()).next().expect(name);
        // PTRACE_SEIZE and PTRACE_INTERRUPT stop one thread and no other; detaching, as at the end
        // of the tracer, lets it go on.
        const PROGRAM: &str = "import ctypes, sys\n\
            libc = ctypes.CDLL(None, use_errno=True)\n\
            thread = int(sys.argv[1])\n\
            for request in (0x4206, 0x4207):\n\
            \x20   if libc.ptrace(request, thread, None, None) != 0: sys.exit('ptrace: %d' % ctypes.get_errno())\n\
            print('stopped', flush=True)\n\
            sys.stdin.read()\n";
        let mut tracer = Command::new("python3")
            .args(["-c", PROGRAM])
            .arg(thread)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(tracer.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "stopped\n");
        Self(tracer)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

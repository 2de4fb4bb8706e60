//! The daemon on several endpoints, of every kind, with a client at each.

use butterfly_api::{client::Client, proto::Messages, text};
use std::{
    io::{BufRead, BufReader},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn butterflyd(directory: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterflyd"));
    command.args([
        "-i",
        "192.0.2.1",
        "--uplink",
        "none",
        "--sessions",
        "1000",
        "--no-syslog",
        "-l",
        "info",
        "-s",
    ]);
    command
        .arg(directory)
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// A daemon that is stopped in order when this is dropped; a killed one would leave its session
/// table.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// Starts a daemon. Returns it with the endpoints of the API in its log.
fn started(directory: &Path, options: &[&str]) -> (Daemon, Vec<String>) {
    let mut daemon = butterflyd(directory, options).spawn().unwrap();
    let lines = BufReader::new(daemon.stderr.take().unwrap()).lines().map_while(Result::ok);
    let daemon = Daemon(daemon);
    let mut said = Vec::new();
    for line in lines {
        if let Some((_, rest)) = line.split_once("started: API on ") {
            let (endpoints, _) = rest.split_once(", sockets in ").unwrap();
            return (daemon, endpoints.split(", ").map(str::to_owned).collect());
        }
        said.push(line);
    }
    panic!("it did not start: {said:?}");
}

fn answers(endpoint: &str) {
    let list: Messages =
        text::parse("messages { revision: 6 message_0 { request { nic_list: true } } }").unwrap();
    // From this host the wildcard addresses are reached by the loopback address.
    let endpoint = endpoint.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
    let reply = Client::connect(&endpoint, Some(PATIENCE))
        .unwrap()
        .call(&list)
        .unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    assert!(reply.messages[0].message_0.response.status.status(), "{endpoint}");
}

#[test]
fn every_endpoint_is_served_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}/api", directory.path().display());
    let hidden = format!("ipc://@butterflyd-test-{}", std::process::id());
    let ini = directory.path().join("ini");
    let kinds = [
        "tcp://127.0.0.1:*",
        "tcp://lo:0",
        "tcp://*:*",
        "tcp://0.0.0.0:*",
        "tcp://[::1]:*",
        "tcp://[::]:*",
        &ipc,
        &hidden,
    ];
    let told = [
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:",
        "tcp://0.0.0.0:",
        "tcp://0.0.0.0:",
        "tcp://[::1]:",
        "tcp://[::]:",
        &ipc,
        &hidden,
    ];
    std::fs::write(&ini, format!("[general]\nendpoint = {}\n", kinds.join("  "))).unwrap();
    let options: Vec<_> = kinds.iter().flat_map(|kind| ["-e", *kind]).collect();
    // By options, and by the configuration file, which overrides them.
    for options in [&options[..], &["-e", "tcp://192.0.2.250:1", "-c", ini.to_str().unwrap()]] {
        let (daemon, endpoints) = started(directory.path(), options);
        assert_eq!(endpoints.len(), told.len(), "{endpoints:?}");
        for (endpoint, told) in endpoints.iter().zip(told) {
            let port =
                endpoint.strip_prefix(told).unwrap_or_else(|| panic!("{endpoint} is not {told}"));
            assert!(
                endpoint.starts_with("ipc") || port.parse::<u16>().is_ok_and(|port| port != 0),
                "{endpoint}"
            );
            answers(endpoint);
        }
        drop(daemon);
        assert!(!directory.path().join("api").exists());
    }
}

/// If one of several endpoints is bad, the daemon serves none of them.
#[test]
fn it_starts_on_all_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}/api", directory.path().display());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let tcp = format!("tcp://127.0.0.1:{port}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = format!("tcp://{}", taken.local_addr().unwrap());
    for (last, status, said) in [
        (
            busy.as_str(),
            1,
            format!(
                "cannot listen on {busy}: Address already in use; another process listens there"
            ),
        ),
        ("tcp://192.0.2.250:1", 1, "cannot listen on tcp://192.0.2.250:1: ".into()),
        (
            "tcp://no-such-link:1",
            1,
            "cannot listen on tcp://no-such-link:1: cannot look up the network interface \
             \"no-such-link\""
                .into(),
        ),
        (
            "udp://127.0.0.1:1",
            2,
            "endpoint \"udp://127.0.0.1:1\" is refused: udp has no replies; \
             the API listens on tcp and ipc"
                .into(),
        ),
        (
            "inproc://api",
            2,
            "endpoint \"inproc://api\" is refused: inproc reaches nobody outside the daemon".into(),
        ),
        (
            "tipc://{5560,0,0}",
            2,
            "endpoint \"tipc://{5560,0,0}\" is refused: tipc is not supported".into(),
        ),
    ] {
        let output =
            butterflyd(directory.path(), &["-e", &ipc, "-e", &tcp, "-e", last]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{last}: {stderr}");
        assert!(stderr.contains(&said), "{last}: {stderr}");
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "{last}: the port is served");
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert!(left.is_empty(), "{last}: {left:?} is left");
    }
}

//! SIGHUP: the daemon reads its configuration again while it works.

use butterfly_api::{client::Client, proto::Messages, text};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// Time limit that only a broken program exceeds.
const PATIENCE: Duration = Duration::from_secs(20);
const OK: &str = "status { status: true }";

/// A daemon with a vhost-user uplink, its configuration, and its log.
struct Host {
    directory: tempfile::TempDir,
    daemon: Child,
}

impl Host {
    /// Starts one with a file, or without one.
    fn start(file: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str().unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_butterflyd"));
        command.args(["-s", at, "-i", "192.0.2.1", "-l", "info", "--no-syslog"]);
        command.args(["--sessions", "1000", "-e", &format!("ipc://{at}/api")]);
        command.args(["--uplink", &format!("vhost-user:{at}/uplink")]);
        if let Some(file) = file {
            std::fs::write(directory.path().join("ini"), file).unwrap();
            command.args(["-c", &format!("{at}/ini")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let host = Self { daemon: command.spawn().unwrap(), directory };
        assert_eq!(host.ask("nic_list: true"), OK);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    /// The response to `request` as text.
    fn ask(&self, request: &str) -> String {
        let request: Messages = text::parse(&format!(
            "messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}"
        ))
        .unwrap();
        let endpoint = format!("ipc://{}", self.path("api").display());
        let client = Client::connect(&endpoint, Some(PATIENCE)).unwrap();
        let reply = client.call(&request).unwrap();
        let response = text::print(&*reply.messages[0].message_0.response);
        response.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.daemon), signal).unwrap();
    }

    /// How often the configuration was read again.
    fn reloads(&self) -> usize {
        self.ask("event_list { }").matches("kind: \"config-re").count()
    }

    /// Has the daemon read its configuration again, and returns the event about it.
    fn reload(&self) -> String {
        let before = self.reloads();
        self.signal(Signal::HUP);
        let deadline = Instant::now() + PATIENCE;
        while self.reloads() == before {
            assert!(Instant::now() < deadline, "it does not read its configuration again");
            std::thread::sleep(Duration::from_millis(5));
        }
        let events = self.ask("event_list { }").replace("\\\"", "'");
        let (_, last) = events.rsplit_once("text: \"the configuration was read again").unwrap();
        last.split_once("\" ").map_or(last, |(text, _)| text).to_owned()
    }

    fn reload_with(&self, file: &str) -> String {
        std::fs::write(self.path("ini"), file).unwrap();
        self.reload()
    }

    /// Waits for the end; its status.
    fn end(mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.daemon.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
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

/// A port that is free now.
fn free(address: &str) -> SocketAddr {
    TcpListener::bind((address, 0)).unwrap().local_addr().unwrap()
}

/// True if metrics are served there.
fn scraped(address: SocketAddr) -> bool {
    let asked = || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok::<_, std::io::Error>(page)
    };
    asked().is_ok_and(|page| page.contains("butterfly_start_time_seconds"))
}

#[test]
fn the_log_level_follows_the_file() {
    let host = Host::start(Some(""));
    assert_eq!(host.reload_with("[general]\nlog-level = debug\n"), ": log-level is debug");
    host.ask("nic_details: \"seen\"");
    assert_eq!(host.reload_with("[general]\nlog-level = error\n"), ": log-level is error");
    host.ask("nic_details: \"unseen\"");
    let log = host.log();
    assert!(log.contains("nic_details: \"seen\"") && !log.contains("unseen"), "{log}");
    // Without its line, the command line holds again.
    assert_eq!(host.reload_with(""), ": log-level is info");
    let words = "<INFO> the configuration was read again: log-level is info";
    assert!(host.log().contains(words), "{}", host.log());
    assert!(host.ask("app_health: true").contains("reload_date: "));
}

/// At any time one of the two addresses serves: the new one does before the old one is closed.
#[test]
fn metrics_move_while_they_are_scraped() {
    let (old, new) = (free("127.0.0.1"), free("127.0.0.2"));
    let host = Host::start(Some(&format!("[general]\nmetrics = {old}\n")));
    assert!(scraped(old) && !scraped(new));
    let (stop, scrapes) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let scraper = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(scraped(old) || scraped(new), "no metrics are served");
                scrapes.fetch_add(1, Ordering::Relaxed);
            }
        });
        let more = |than: u32| {
            let deadline = Instant::now() + PATIENCE;
            while scrapes.load(Ordering::Relaxed) < than {
                assert!(Instant::now() < deadline && !scraper.is_finished());
                std::thread::yield_now();
            }
        };
        more(10);
        let told = host.reload_with(&format!("[general]\nmetrics = {new}\n"));
        assert_eq!(told, format!(": metrics are on http://{new}/metrics"));
        more(scrapes.load(Ordering::Relaxed) + 10);
        stop.store(true, Ordering::Relaxed);
        scraper.join().unwrap();
    });
    assert!(!scraped(old) && scraped(new));
    // An address that cannot be had leaves the one that there is.
    let told = host.reload_with("[general]\nmetrics = 192.0.2.250:9100\n");
    assert!(
        told.contains(", and nothing has changed: cannot serve metrics on 192.0.2.250"),
        "{told}"
    );
    assert!(scraped(new));
    assert_eq!(host.reload_with(""), ": metrics are not served any more");
    assert!(!scraped(new));
}

#[test]
fn peers_follow_the_file_and_those_of_clients_stay() {
    let host = Host::start(Some("[general]\npeer = 192.0.2.2 192.0.2.3\n"));
    assert_eq!(host.ask("peer_add { address: \"192.0.2.9\" }"), OK);
    assert_eq!(host.ask("peer_add { address: \"192.0.2.3\" vni: 7 }"), OK);
    let told = host.reload_with("[general]\npeer = 192.0.2.3 192.0.2.4 192.0.2.1\n");
    assert_eq!(told, ": peer 192.0.2.4 is named; peer 192.0.2.2 is not named any more");
    let all = |addresses: &[&str]| {
        let peers = addresses.iter().map(|peer| format!(" peer_list {{ address: \"{peer}\" }}"));
        format!("{OK}{} peer_list {{ address: \"192.0.2.3\" vni: 7 }}", peers.collect::<String>())
    };
    let list = |host: &Host| host.ask("peer_list: true");
    assert_eq!(list(&host), all(&["192.0.2.3", "192.0.2.9", "192.0.2.4"]));
    let shown = host.ask("tunnel_show { }");
    for named in ["\"192.0.2.4\" named: true", "\"192.0.2.2\" named: false"] {
        assert!(shown.contains(named), "{shown}");
    }
    host.reload_with("");
    assert_eq!(list(&host), all(&["192.0.2.9"]));
}

/// Two vnics of the daemon's own exchange echoes, so the session stays while its time-out changes.
#[test]
fn a_session_that_is_there_gets_the_new_time_out() {
    let host = Host::start(Some("[timeouts]\nicmp-echo = 20\n"));
    let nic = |id: &str, ip: u8, more: &str| {
        format!(
            "nic_add {{ id: \"{id}\" mac: \"02:00:00:00:00:{ip:02x}\" vni: 1 ip: \"10.0.0.{ip}\" type: BENCH security_group: \"g\" {more} }}"
        )
    };
    for request in [
        "sg_rule_add { sg_id: \"g\" rule { direction: INBOUND protocol: -1 cidr { address: \"10.0.0.0\" mask_size: 8 } } }".to_owned(),
        nic("r", 2, "btype: \"ICMP_RCV_LIKE\""),
        nic("s", 1, "btype: \"ICMP_SND_LIKE\" dip: \"10.0.0.2\" dmac: \"02:00:00:00:00:02\""),
    ] {
        let answer = host.ask(&request);
        assert!(answer.starts_with(OK), "{request}: {answer}");
    }
    let number = |text: &str, name: &str| -> u32 {
        let (_, rest) = text.split_once(&format!(" {name}: ")).unwrap_or_else(|| panic!("{text}"));
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    let session = || {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list = host.ask("session_list { }");
            if number(&list, "matching") > 0 {
                return (number(&list, "age"), number(&list, "expires"), list);
            }
            assert!(Instant::now() < deadline, "no session: {list}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (_, expires, list) = session();
    assert!(expires <= 20, "{list}");
    std::thread::sleep(Duration::from_secs(2));
    let told = host.reload_with("[general]\ntcp-pickup = 500\n[timeouts]\nicmp-echo = 900\n");
    assert_eq!(told, ": tcp-pickup is 500; icmp-echo is 900");
    let (age, expires, list) = session();
    assert!(age >= 2 && (880..=900).contains(&expires), "{list}");
    let table = host.ask("session_table: true");
    assert!(table.contains("tcp_pickup: 500 "), "{table}");
    // Connections that were cut are remembered as long as others are picked up.
    assert!(table.contains("name: \"tcp-cut\" seconds: 500 "), "{table}");
    host.reload_with("");
    let (age, expires, list) = session();
    assert!(age >= 2 && expires <= 30, "{list}");
    assert_eq!(host.ask("session_table: true").matches("seconds: 500").count(), 0);
}

#[test]
fn a_broken_file_changes_nothing() {
    let good = "[general]\npeer = 192.0.2.2\n";
    let host = Host::start(Some(good));
    let state = || (host.ask("peer_list: true"), host.ask("session_table: true"));
    let before = state();
    let told = host.reload_with(
        "[general]\npeer = 192.0.2.3\nlog-level = loud\ntcp-pickup = 5\n[timeouts]\nother = 0\n",
    );
    assert!(told.starts_with(", and nothing has changed: log level 'loud' is refused"), "{told}");
    assert!(told.contains("; timeout other "), "{told}");
    assert_eq!(state(), before);
    assert!(
        host.log().contains("<ERR> the configuration was read again, and nothing has changed: ")
    );
    std::fs::remove_file(host.path("ini")).unwrap();
    assert!(host.reload().contains("No such file"));
    assert_eq!(state(), before);
    assert!(!host.ask("app_health: true").contains("reload_date"));
    let told = host.reload_with("[general]\npeer = 192.0.2.2\npoll = true\nsessions = 2000\n");
    assert_eq!(told, ": poll, sessions changed: take effect at the next start");
    for name in ["poll", "sessions"] {
        let line = format!("<WARNING> {name} changed: takes effect at the next start");
        assert!(host.log().contains(&line), "{}", host.log());
    }
    assert_eq!(host.reload_with(good), ": nothing changed");
}

#[test]
fn without_a_file_it_says_that_nothing_changed() {
    let host = Host::start(None);
    assert_eq!(host.reload(), ": nothing changed");
}

/// Signals come one upon the other, while requests are carried out and while it stops.
#[test]
fn signals_at_any_time_do_no_harm() {
    let host = Host::start(Some("[general]\npeer = 192.0.2.2\n"));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            for mac in 1..=60 {
                let add =
                    format!("nic_add {{ id: \"n\" mac: \"02:00:00:00:00:{mac:02x}\" vni: 1 }}");
                assert!(host.ask(&add).starts_with(OK));
                assert_eq!(host.ask("nic_del: \"n\""), OK);
            }
        });
        let mut turn = 0;
        while !asking.is_finished() {
            turn += 1;
            let file = format!("[general]\npeer = 192.0.2.{}\n", 2 + turn % 2);
            // Written as a whole: a half of it would be another configuration.
            std::fs::write(host.path("next"), file).unwrap();
            std::fs::rename(host.path("next"), host.path("ini")).unwrap();
            host.signal(Signal::HUP);
            host.signal(Signal::HUP);
            std::thread::sleep(Duration::from_millis(1));
        }
        asking.join().unwrap();
    });
    host.reload_with("[general]\npeer = 192.0.2.77\n");
    assert_eq!(
        host.ask("peer_list: true"),
        format!("{OK} peer_list {{ address: \"192.0.2.77\" }}")
    );
    for signal in [Signal::HUP, Signal::TERM, Signal::HUP, Signal::HUP] {
        host.signal(signal);
    }
    assert_eq!(host.end(), Some(0));
}

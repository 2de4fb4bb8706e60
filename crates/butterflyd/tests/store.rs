//! The daemon with a store: what was answered is there after any end.

use butterfly_api::{client::Client, proto::Messages, text};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Time limit that only a broken program exceeds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon with its directories.
struct Host {
    directory: tempfile::TempDir,
    daemon: Child,
}

impl Host {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("state")).unwrap();
        let daemon = daemon(directory.path());
        let host = Self { directory, daemon };
        host.ask("nic_list: true");
        host
    }

    /// Kills the daemon as a crash does, and starts the next one.
    fn crash(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        self.restart();
    }

    /// Kills all processes of the service, as when the host loses power, and starts the next
    /// daemon.
    fn power_loss(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        self.kill_all();
        self.restart();
    }

    /// Kills every process that names the directory, and waits until they are gone.
    fn kill_all(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline || std::thread::panicking(), "{left:?} do not end");
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The processes that name the directory.
    fn processes(&self) -> Vec<Pid> {
        let name = self.directory.path().to_str().unwrap();
        let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            String::from_utf8_lossy(&line).contains(name).then_some(pid)
        });
        processes.collect()
    }

    /// Stops the daemon and its holder, and waits until its writer has closed the store.
    fn stop(&mut self) {
        self.ask("app_quit: true");
        self.daemon.wait().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !self.processes().is_empty() {
            assert!(Instant::now() < deadline, "{:?} do not end", self.processes());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn restart(&mut self) {
        self.daemon = daemon(self.directory.path());
        self.ask("nic_list: true");
    }

    fn store(&self) -> std::path::PathBuf {
        self.directory.path().join("state").join("declared.redb")
    }

    /// The response to `request` as text.
    fn ask(&self, request: &str) -> String {
        self.ask_all(&[request]).remove(0)
    }

    /// The responses to a batch.
    fn ask_all(&self, requests: &[&str]) -> Vec<String> {
        let messages: String = requests
            .iter()
            .map(|request| {
                format!("messages {{ revision: 6 message_0 {{ request {{ {request} }} }} }}\n")
            })
            .collect();
        let request: Messages = text::parse(&messages).unwrap();
        let endpoint = endpoint(self.directory.path());
        let reply = Client::connect(&endpoint, Some(PATIENCE)).unwrap().call(&request).unwrap();
        let response = |message: &butterfly_api::proto::Message| {
            let text = text::print(&*message.message_0.response);
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        reply.messages.iter().map(response).collect()
    }

    /// Everything that is declared.
    fn declared(&self) -> Vec<String> {
        self.ask_all(&["nic_details: \"\"", "sg_details: \"\"", "peer_list: true"])
    }

    fn add(&self, id: &str, mac: u8) -> String {
        self.ask(&nic(id, mac))
    }

    fn writer(&self) -> Pid {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.daemon.id())).unwrap();
        let mut writers = Vec::new();
        for task in tasks {
            let text = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap();
            writers.extend(text.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
        }
        writers.retain(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("--write-store")
        });
        assert_eq!(writers.len(), 1, "{writers:?}");
        Pid::from_raw(writers[0]).unwrap()
    }

    fn holder(&self) -> Pid {
        let is_holder = |pid: &Pid| {
            let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
            String::from_utf8_lossy(&line.unwrap_or_default()).contains("--hold")
        };
        self.processes().into_iter().find(is_holder).expect("a holder")
    }

    /// Asks until the answer contains `wanted`.
    fn until(&self, request: &str, wanted: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(request);
            if answer.contains(wanted) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{request}: {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Killed, it would leave the file with its sessions, which is memory.
        if matches!(self.daemon.try_wait(), Ok(None)) && !std::thread::panicking() {
            self.ask("app_quit: true");
        }
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.daemon.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            if std::thread::panicking() {
                break;
            }
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        self.kill_all();
    }
}

fn daemon(directory: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butterflyd"));
    command.args(["-i", "192.0.2.1", "--uplink", "none", "--no-syslog", "--sessions", "1000"]);
    command.arg("-s").arg(directory).arg("-e").arg(endpoint(directory));
    command.arg("--state-dir").arg(directory.join("state"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

fn endpoint(directory: &Path) -> String {
    format!("ipc://{}", directory.join("api").display())
}

fn nic(id: &str, mac: u8) -> String {
    format!("nic_add {{ id: \"{id}\" mac: \"02:00:00:00:00:{mac:02x}\" vni: 1 }}")
}

const GROUP: &str = r#"sg_add { id: "web" member: "10.0.0.1"
    rule { direction: INBOUND protocol: 6 port_start: 80 port_end: 80 cidr { address: "10.0.0.0" mask_size: 8 } } }"#;

#[test]
fn everything_answered_is_there_after_kill_9() {
    let mut host = Host::start();
    assert_eq!(host.declared(), ["status { status: true }"; 3], "an empty store");
    for (id, mac) in [("a", 1), ("b", 2), ("z", 3), ("c", 3)] {
        assert!(host.add(id, mac).contains("status: true"));
    }
    assert!(host.ask(GROUP).contains("status: true"));
    host.ask(r#"sg_member_add { sg_id: "web" member: "10.0.0.2" }"#);
    host.ask(r#"nic_update { id: "a" ip: "10.1.1.1" security_group: "web" }"#);
    host.ask(r#"nic_del: "b""#);
    let before = host.declared();
    assert!(before[0].contains("10.1.1.1") && !before[0].contains("\"b\""), "{before:?}");
    assert!(before[1].contains("10.0.0.2"), "{before:?}");
    // "c" waits for the address of "z", which was declared before it.
    assert!(before[0].contains("waiting"), "{before:?}");
    for _ in 0..2 {
        host.crash();
        assert_eq!(host.declared(), before);
        host.power_loss();
        assert_eq!(host.declared(), before);
    }
    host.stop();
    host.restart();
    assert_eq!(host.declared(), before);
}

#[test]
fn a_dead_writer_is_replaced_and_nothing_is_lost() {
    let mut host = Host::start();
    host.add("a", 1);
    for mac in 2..6 {
        kill_process(host.writer(), Signal::KILL).unwrap();
        host.until(&nic("b", mac), "status: true");
    }
    let before = host.declared();
    assert!(before[0].contains("02:00:00:00:00:05"), "{before:?}");
    host.power_loss();
    assert_eq!(host.declared(), before);
}

#[test]
fn a_writer_that_hangs_stops_no_question_and_changes_are_refused_by_name() {
    let mut host = Host::start();
    host.add("a", 1);
    let before = host.declared();
    let writer = host.writer();
    kill_process(writer, Signal::STOP).unwrap();
    std::thread::scope(|scope| {
        let handed_over = scope.spawn(|| host.add("handed-over", 2));
        let asked = Instant::now();
        // What is in the store is not seen, and nothing waits for it that reads.
        while asked.elapsed() < Duration::from_secs(6) {
            let begun = Instant::now();
            assert_eq!(host.declared(), before);
            assert!(begun.elapsed() < Duration::from_secs(1));
            std::thread::sleep(Duration::from_millis(100));
        }
        let refused = host.add("refused", 3);
        assert!(refused.contains("the store does not answer for 5 s: disk?"), "{refused}");
        assert!(!handed_over.is_finished());
        kill_process(writer, Signal::CONT).unwrap();
        assert!(handed_over.join().unwrap().contains("status: true"));
    });
    let after = host.declared();
    assert!(after[0].contains("handed-over") && !after[0].contains("refused"), "{after:?}");
    host.power_loss();
    assert_eq!(host.declared(), after);
}

#[test]
fn a_damaged_store_is_reported_and_set_aside() {
    let mut host = Host::start();
    host.add("a", 1);
    host.stop();
    let mut bytes = std::fs::read(host.store()).unwrap();
    let length = bytes.len();
    bytes[..length / 2].fill(0x55);
    std::fs::write(host.store(), &bytes).unwrap();
    host.restart();
    assert!(host.until("nic_list: true", "status: true").len() < 30, "nothing is declared");
    let aside = std::fs::read_dir(host.directory.path().join("state"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().contains("damaged"))
        .expect("a copy");
    assert_eq!(std::fs::read(aside).unwrap(), bytes, "as it was");
    let events = host.ask("event_list { limit: 100 }");
    assert!(events.contains("store-set-aside") && events.contains("damaged"), "{events}");
    assert!(host.add("b", 2).contains("status: true"));
    host.power_loss();
    assert!(host.declared()[0].contains("\"b\""));
}

#[test]
fn a_locked_store_refuses_changes_until_it_is_free() {
    let mut host = Host::start();
    host.add("a", 1);
    let writer = host.writer();
    kill_process(writer, Signal::STOP).unwrap();
    host.crash();
    let refused = host.add("b", 2);
    assert!(refused.contains("locked"), "{refused}");
    kill_process(writer, Signal::CONT).unwrap();
    host.until(&nic("b", 2), "status: true");
    host.power_loss();
    let declared = host.declared();
    assert!(declared[0].contains("\"a\"") && declared[0].contains("\"b\""), "{declared:?}");
}

/// Without the holder a vnic can be made in no way: neither as it is to be, nor as it was. It stays
/// declared as it was, in the store too, and is made again when the holder is there again.
#[test]
fn what_cannot_be_made_again_stays_declared() {
    let mut host = Host::start();
    host.add("n", 1);
    let whole = |vni, mac| format!("id: \"n\" mac: \"02:00:00:00:00:{mac:02x}\" vni: {vni}");
    let mut refused = 0;
    for (round, request) in ["nic_add", "apply { nic", "nic_add", "apply { nic"].iter().enumerate()
    {
        let before = host.until("nic_details: \"\"", "id: \"n\"");
        host.until("app_health: true", "holder_gone: false");
        let holder = host.holder();
        kill_process(holder, Signal::KILL).unwrap();
        let end = if request.contains('{') { "} }" } else { "}" };
        let answer = host.ask(&format!("{request} {{ {} {end}", whole(round + 2, round + 2)));
        // Killed as one who knows best kills it: what the store has counts.
        host.crash();
        let after = host.until("nic_details: \"\"", "id: \"n\"");
        match answer.contains("status: true") {
            true => assert_ne!(after, before),
            false => {
                refused += 1;
                assert_eq!(after, before, "{answer}");
            }
        }
    }
    assert_eq!(refused, 4, "nobody keeps a socket");
}

#[test]
fn a_batch_sees_its_own_changes() {
    let host = Host::start();
    let answers = host.ask_all(&[&nic("a", 1), "nic_list: true", &nic("b", 2), "nic_list: true"]);
    assert!(answers[1].contains("\"a\"") && answers[3].contains("\"b\""), "{answers:?}");
}

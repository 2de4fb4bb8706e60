//! A real `butterflyd` in a process of its own.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use butterfly_api::{
    REVISION,
    client::Client,
    proto::{self, Message, MessageV0, Messages, NicShow, NicUpdateReq, Request, Response},
};
use protobuf::MessageField;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    host::{Backend, FdbEntry, HostOptions, Nic, QueueShow, Show, Work},
    programs::{checked, program},
    wait::{PATIENCE, within},
};

/// Word before the program that arms its fail points, which only builds with checks have.
pub const FAIL_POINTS: &str = "BUTTERFLY_FAIL_POINTS=1";

/// A running daemon. Dropping it stops the daemon in order; a killed daemon would leave its session
/// table in memory.
pub struct Daemon {
    process: Option<Child>,
    dir: PathBuf,
    endpoint: String,
    /// Kept open, as connecting takes longer than asking.
    client: Mutex<Option<Client>>,
    _room: Option<TempDir>,
}

/// Variable that says how many workers a daemon has, if its scenario does not.
const WORKERS: &str = "WORKERS";

/// Returns the number of workers that [`WORKERS`] gives each daemon.
///
/// # Panics
/// If it is no number: a typing mistake would test one worker only.
#[must_use]
pub fn workers() -> Option<usize> {
    let text = std::env::var(WORKERS).ok()?;
    Some(text.parse().unwrap_or_else(|why| panic!("{WORKERS}={text}: {why}")))
}

/// Answer to a request: the response, or the text of the error.
pub type Answer = Result<Response, String>;

impl Daemon {
    /// Starts a daemon in a new directory and waits until it answers.
    pub fn start(options: &HostOptions) -> Daemon {
        let mut words = Vec::new();
        if options.poll {
            words.push("--poll".to_owned());
        }
        if let Some(seconds) = options.fdb_ageing {
            words.extend(["--fdb-ageing".to_owned(), seconds.to_string()]);
        }
        Daemon::start_with(&[], &words)
    }

    /// Starts a daemon through the command `before` (as `prlimit` and its options) with more
    /// options, and waits until it answers.
    pub fn start_with(before: &[&str], options: &[String]) -> Daemon {
        let room = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start_in(room.path(), before, options);
        daemon._room = Some(room);
        daemon
    }

    /// Starts a daemon in a directory, which may be another daemon's, and waits until it answers.
    pub fn start_in(dir: &Path, before: &[&str], options: &[String]) -> Daemon {
        let mut daemon = Daemon::launch(dir, before, options);
        daemon.wait_until_ready();
        daemon
    }

    /// Starts a daemon in a directory and does not wait.
    pub fn launch(dir: &Path, before: &[&str], options: &[String]) -> Daemon {
        let of_checks = |word: &&str| word.starts_with("BUTTERFLY_DEGRADED_S=");
        let has_checks = before.contains(&FAIL_POINTS) || before.iter().any(of_checks);
        let program = match has_checks {
            true => checked("butterflyd"),
            false => program("butterflyd"),
        };
        Daemon::launch_program(&program, dir, before, options)
    }

    /// As [`Self::launch`], of another program.
    pub fn launch_program(
        program: &Path,
        dir: &Path,
        before: &[&str],
        options: &[String],
    ) -> Daemon {
        let dir = fs::canonicalize(dir).unwrap();
        let own = options.iter().skip_while(|option| *option != "-e").nth(1);
        let endpoint = own.cloned().unwrap_or_else(|| format!("ipc://{}/api", dir.display()));
        let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
        // The daemon must not outlive a test that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).args(before).arg(program);
        // No core by default: scenarios that run side by side would all be pinned to the first one.
        command
            .args(["-i", "42.0.0.1", "-u", "65535", "-l", "info", "--no-syslog", "-s"])
            .arg(&dir);
        // The daemon listens on all endpoints that are given.
        if own.is_none() {
            command.args(["-e", &endpoint]);
        }
        // One host, unless the options say otherwise.
        if !options.iter().any(|option| option == "--dpdk-args") {
            command.args(["--uplink", "none"]);
        }
        // Many daemons run side by side, so each gets a small session table. The options of a
        // scenario come later and override this one.
        command.args(["--sessions", "10000"]);
        if let Some(workers) = workers() {
            command.args(["--workers", &workers.to_string()]);
        }
        command.args(options).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let process = command.spawn().expect("setpriv (package util-linux) runs");
        Daemon { process: Some(process), dir, endpoint, client: Mutex::default(), _room: None }
    }

    /// Waits until a daemon that was launched answers.
    pub fn ready(mut self) -> Daemon {
        self.wait_until_ready();
        self
    }

    /// Waits until a daemon that was launched answers, or ends. Returns whether it answers.
    pub fn comes_up(&mut self) -> bool {
        let mut answers = false;
        within(PATIENCE, "butterflyd answers or ends", || {
            let request = Request { nic_list: Some(true), ..Request::default() };
            let client = Client::connect(&self.endpoint, Some(Duration::from_millis(500))).unwrap();
            answers = !self.has_ended() && ask(&client, vec![request]).is_ok();
            answers || self.process.is_none()
        });
        answers
    }

    /// Has the daemon end in order, as a client asks for it, and waits for that.
    #[track_caller]
    pub fn quit(&mut self) {
        self.ask(Request { app_quit: Some(true), ..Request::default() }).unwrap();
        let status = self.wait_for_end();
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    /// Waits until a daemon that was launched answers.
    pub fn wait_until_ready(&mut self) {
        within(PATIENCE, "butterflyd answers", || {
            let ended = self.process.as_mut().and_then(|process| process.try_wait().unwrap());
            assert!(ended.is_none(), "butterflyd ended with {ended:?}: {}", self.log());
            let request = Request { nic_list: Some(true), ..Request::default() };
            let client = Client::connect(&self.endpoint, Some(Duration::from_millis(500))).unwrap();
            ask(&client, vec![request]).is_ok()
        });
    }

    /// The directory of its sockets.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The endpoint of its API.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns the address on which it serves metrics.
    ///
    /// # Panics
    /// If it was started without `--metrics`.
    #[track_caller]
    pub fn metrics(&self) -> SocketAddr {
        let log = self.log();
        let address = log
            .lines()
            .find_map(|line| line.split_once("metrics on http://")?.1.strip_suffix("/metrics"));
        address.unwrap_or_else(|| panic!("no metrics: {log}")).parse().unwrap()
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it was not stopped").id()
    }

    /// Returns the text of its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Sends one envelope and returns the answers. Other threads wait meanwhile.
    pub fn ask_all(&self, requests: Vec<Request>) -> Vec<Answer> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let client =
            client.get_or_insert_with(|| Client::connect(&self.endpoint, Some(PATIENCE)).unwrap());
        ask(client, requests)
            .unwrap_or_else(|why| panic!("{why}; the daemon wrote: {}", self.log()))
    }

    /// Sends one request.
    pub fn ask(&self, request: Request) -> Answer {
        self.ask_all(vec![request]).remove(0)
    }

    /// Sends one request to the daemon at an endpoint, which may die before it answers: then the
    /// outer error says so. Waits no longer than `patience`.
    pub fn try_ask(endpoint: &str, patience: Duration, request: Request) -> Result<Answer, String> {
        let client =
            Client::connect(endpoint, Some(patience)).map_err(|error| error.to_string())?;
        Ok(ask(&client, vec![request])?.remove(0))
    }

    /// Runs the client with these words and waits for its end.
    pub fn client(&self, words: &[&str]) -> Output {
        let mut command = Command::new(program("butterfly"));
        command.args(words).args(["-e", &self.endpoint, "-t", "20000"]).stdin(Stdio::null());
        command.output().expect("the client runs")
    }

    /// As [`Self::client`]; it must succeed. Returns its output.
    #[track_caller]
    pub fn client_ok(&self, words: &[&str]) -> String {
        let output = self.client(words);
        assert!(output.status.success(), "butterfly {words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Processor time that it has used so far.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // The name, in parentheses, may contain any characters; the fields behind it may not. utime
        // and stime are the 14th and 15th field.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        // The kernel always shows this file's times in hundredths of a second.
        Duration::from_millis(ticks * 10)
    }

    /// Number of its open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Fewest open descriptors within a tenth of a second: connections of clients that ended are
    /// closed a little later.
    pub fn fewest_descriptors(&self) -> usize {
        let look = |_| {
            std::thread::sleep(Duration::from_millis(10));
            self.descriptors()
        };
        (0..10).map(look).min().unwrap_or_default()
    }

    /// Number of its threads.
    pub fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().count()
    }

    /// Processor time of its threads whose names do not begin with `name`, as the kernel keeps it.
    pub fn cpu_time_beside(&self, name: &str) -> Duration {
        self.cpu_time_where(|thread| !thread.starts_with(name))
    }

    /// Processor time of its threads whose names begin with `name`, as the kernel keeps it.
    pub fn cpu_time_of(&self, name: &str) -> Duration {
        self.cpu_time_where(|thread| thread.starts_with(name))
    }

    fn cpu_time_where(&self, wanted: impl Fn(&str) -> bool) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
        let time = |task: &Path| {
            let comm = fs::read_to_string(task.join("comm")).ok()?;
            let spent = fs::read_to_string(task.join("schedstat")).ok()?;
            let spent: u64 = spent.split_whitespace().next()?.parse().ok()?;
            wanted(&comm).then_some(Duration::from_nanos(spent))
        };
        tasks.filter_map(|task| time(&task.path())).sum()
    }

    /// Time that its worker was ready to run and had no processor.
    pub fn worker_waited(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
        let waited = |task: &Path| {
            let comm = fs::read_to_string(task.join("comm")).ok()?;
            let waited: u64 = fs::read_to_string(task.join("schedstat"))
                .ok()?
                .split_whitespace()
                .nth(1)?
                .parse()
                .ok()?;
            comm.starts_with("worker-").then_some(Duration::from_nanos(waited))
        };
        tasks.filter_map(|task| waited(&task.path())).sum()
    }

    /// Number of its mappings of guest memory.
    pub fn guest_mappings(&self) -> usize {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        maps.lines().filter(|line| line.contains("/memfd:guest")).count()
    }

    /// Sends the daemon a signal by name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Kills the daemon at once, and does not wait for its end.
    pub fn kill(&self) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a process");
        kill_process(pid, Signal::KILL).expect("it runs");
    }

    /// True once its process has ended.
    pub fn has_ended(&mut self) -> bool {
        let process = self.process.as_mut();
        let ended = process.is_none_or(|process| process.try_wait().unwrap().is_some());
        if ended {
            self.process = None;
        }
        ended
    }

    /// Returns how its process ended, once it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.process.as_mut()?.try_wait().unwrap();
        if status.is_some() {
            self.process = None;
        }
        status
    }

    /// Waits for the daemon's end.
    #[track_caller]
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut status = None;
        within(PATIENCE, "butterflyd ends", || {
            status = self.process.as_mut().expect("it ends once").try_wait().unwrap();
            status.is_some()
        });
        self.process = None;
        status.unwrap()
    }

    /// The request that adds a vnic.
    pub fn nic_add(nic: &Nic) -> Request {
        Request { nic_add: MessageField::some(declaration(nic)), ..Request::default() }
    }
}

fn ask(client: &Client, requests: Vec<Request>) -> Result<Vec<Answer>, String> {
    let count = requests.len();
    let messages = requests.into_iter().map(|request| Message {
        revision: Some(REVISION),
        message_0: MessageField::some(MessageV0 {
            request: MessageField::some(request),
            ..MessageV0::default()
        }),
        ..Message::default()
    });
    let envelope = Messages { messages: messages.collect(), ..Messages::default() };
    let reply = client.call(&envelope).map_err(|why| why.to_string())?;
    let answers: Vec<Answer> = reply.messages.into_iter().map(answer).collect();
    if answers.len() == count {
        Ok(answers)
    } else {
        Err(format!("{} answers to {count} requests", answers.len()))
    }
}

/// Returns a vnic as a message of the API.
fn declaration(nic: &Nic) -> proto::Nic {
    let mut declared = proto::Nic {
        id: Some(nic.id.clone()),
        mac: Some(nic.mac.to_string()),
        vni: Some(nic.vni),
        ip: nic.ips.clone(),
        security_group: nic.groups.clone(),
        sniff_target_nic_id: nic.mirror_of.clone(),
        path: nic.path.as_ref().map(|path| path.to_str().unwrap().to_owned()),
        ..proto::Nic::default()
    };
    if nic.bypass {
        declared.bypass_filtering = Some(true);
    }
    if nic.anti_spoof {
        declared.ip_anti_spoof = Some(true);
    }
    if nic.client {
        declared.set_type(proto::nic::Type::VHOST_USER_CLIENT);
    }
    declared
}

fn answer(message: Message) -> Answer {
    if let Some(error) = message.error.as_ref() {
        return Err(format!("{:?}", error.code()));
    }
    let response = message.message_0.unwrap_or_default().response.unwrap_or_default();
    if response.status.status() {
        return Ok(response);
    }
    let error = response.status.error.clone().unwrap_or_default();
    Err(format!("{}: {}", error.description(), error.help()))
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = Command::new("kill").arg(process.id().to_string()).status();
            let begun = Instant::now();
            while matches!(process.try_wait(), Ok(None)) && begun.elapsed() < Duration::from_secs(5)
            {
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = process.kill();
            let _ = process.wait();
            if std::thread::panicking() {
                eprintln!("--- butterflyd wrote:\n{}---", self.log());
            }
        }
    }
}

fn show(show: NicShow) -> Show {
    let queue = |queue: &proto::nic_show::Queue| QueueShow {
        name: queue.name().to_owned(),
        size: queue.size(),
        running: queue.running(),
        enabled: queue.enabled(),
        broken: queue.broken(),
        used: queue.used(),
        guest_avail: queue.guest_avail(),
    };
    Show {
        attached: show.attached(),
        role: show.role().to_owned(),
        attach_count: show.attach_count(),
        last_detach: show.last_detach_reason.clone(),
        negotiated: show.features_negotiated.iter().cloned().collect(),
        refused: show.features_refused.iter().cloned().collect(),
        queues: show.queues.iter().map(queue).collect(),
        memory: show
            .memory_regions
            .iter()
            .map(|region| (region.guest_addr(), region.size()))
            .collect(),
        received: (show.in_packets(), show.in_bytes()),
        delivered: (show.out_packets(), show.out_bytes()),
        flooded: show.flooded(),
        learn_refused: show.learn_refused(),
        drops: show.drops.iter().map(|drop| (drop.reason().to_owned(), drop.count())).collect(),
    }
}

impl Backend for Daemon {
    fn add(&self, nic: &Nic) -> Result<PathBuf, String> {
        self.ask(Daemon::nic_add(nic)).map(|response| response.nic_add.path().into())
    }

    fn update(&self, id: &str, ips: &[String], anti_spoof: bool) -> Result<(), String> {
        let update = NicUpdateReq {
            id: Some(id.to_owned()),
            ip: if ips.is_empty() { vec![String::new()] } else { ips.to_vec() },
            ip_anti_spoof: Some(anti_spoof),
            ..NicUpdateReq::default()
        };
        self.ask(Request { nic_update: MessageField::some(update), ..Request::default() }).map(drop)
    }

    fn remove(&self, id: &str) {
        self.ask(Request { nic_del: Some(id.to_owned()), ..Request::default() }).unwrap();
    }

    fn show(&self, id: &str) -> Option<Show> {
        let answer = self.ask(Request { nic_show: Some(id.to_owned()), ..Request::default() });
        answer.ok().and_then(|response| response.nic_show.into_option()).map(show)
    }

    fn ids(&self) -> Vec<String> {
        self.ask(Request { nic_list: Some(true), ..Request::default() }).unwrap().nic_list
    }

    fn fdb(&self, vni: Option<u32>) -> Vec<FdbEntry> {
        let request = proto::FdbListReq { vni, ..proto::FdbListReq::default() };
        let response = self
            .ask(Request { fdb_list: MessageField::some(request), ..Request::default() })
            .unwrap();
        let entry = |entry: proto::FdbEntry| FdbEntry {
            vni: entry.vni(),
            mac: entry.mac().to_owned(),
            id: entry.nic_id().to_owned(),
            learnt: entry.kind() == proto::fdb_entry::Kind::LEARNT,
        };
        response.fdb_list.into_iter().map(entry).collect()
    }

    fn work(&self) -> Work {
        let response = self.ask(Request { worker_list: Some(true), ..Request::default() }).unwrap();
        response.worker_list.iter().fold(Work::default(), |sum, worker| Work {
            packets: sum.packets + worker.packets(),
            batches: sum.batches + worker.batches(),
            sleeps: sum.sleeps + worker.sleeps(),
            busy_cycles: sum.busy_cycles + worker.busy_cycles(),
            active_rings: sum.active_rings + u64::from(worker.active_rings()),
        })
    }

    fn dir(&self) -> &Path {
        &self.dir
    }
}

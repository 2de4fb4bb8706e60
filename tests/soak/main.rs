//! Two hosts for as long as wanted: pairs of filtered guests, one on each, send to each other
//! through a link that is bad at times, while daemons die, are upgraded and get other rules. See
//! hosts.sh.
//!
//! Each guest numbers its frames and checks every byte of those that arrive: in order, and once.
//! Front ends notice nothing, no memory and no descriptors are used up, and what is lost, but for
//! batches of daemons that died, is what the link or a counter says.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use butterfly_tests::{
    Daemon, Host, Nic, eventually,
    frames::mac,
    groups::group_set,
    pairs::{GROUP, Pair, Plan, nic},
    programs::program,
};
use clap::Parser;

/// Frames under way from one guest: those of all fit in the queue of the link's device, where
/// nobody counts what is lost.
const WINDOW: u64 = 8;
/// Time until all traffic goes on after anything, at the very most.
const PATIENCE: Duration = Duration::from_secs(40);
/// Rule by which pairs talk.
const TALK: &str = "in udp 1-65535 10.77.0.0/16";
/// Time after which a link that is good again has delivered all that was under way, and after
/// which what it lost is known to be lost.
const SETTLED: Duration = Duration::from_secs(8);
/// Growth of a process that is no leak, in KiB.
const SLACK: u64 = 24 << 10;

/// Options of the program.
#[derive(Clone, Debug, Parser)]
#[command(name = "butterfly-soak", about = "Two hosts, a bad link, deaths and upgrades")]
struct Options {
    /// Network namespaces of the two hosts, with the interface `wire`.
    #[arg(long, num_args = 2, required = true)]
    hosts: Vec<String>,
    /// Standard input of butterfly-link.
    #[arg(long)]
    link: PathBuf,
    /// Minutes.
    #[arg(long, default_value_t = 120)]
    minutes: u64,
    /// Pairs of guests.
    #[arg(long, default_value_t = 25)]
    pairs: usize,
    /// Flows of a pair in each direction.
    #[arg(long, default_value_t = 20)]
    flows: usize,
    /// Number that makes chance repeat itself.
    #[arg(long)]
    seed: Option<u64>,
}

/// A host with its daemon.
struct Side {
    number: usize,
    namespace: String,
    room: tempfile::TempDir,
    host: Host,
    /// Resident KiB and descriptors after the first rounds.
    first: Option<(u64, usize)>,
}

impl Side {
    fn start(number: usize, namespace: &str) -> Side {
        let room = tempfile::tempdir().expect("a directory");
        let host = Host::of(launch(room.path(), number, namespace).ready());
        Side { number, namespace: namespace.to_owned(), room, host, first: None }
    }

    /// Kills the daemon, and starts another one as a service manager would. `pump` goes on
    /// meanwhile.
    fn die(&mut self, mut pump: impl FnMut()) {
        self.host.daemon().kill();
        while !self.host.daemon_mut().has_ended() {
            pump();
        }
        let dead = Instant::now();
        while dead.elapsed() < Duration::from_millis(100) {
            pump();
        }
        let next = launch(self.room.path(), self.number, &self.namespace);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) {
            pump();
        }
        self.host = Host::of(next.ready());
    }

    /// Has the same program go on in the daemon's place.
    fn upgrade(&self, mut pump: impl FnMut()) {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| self.host.daemon().client_ok(&["upgrade"]));
            while !client.is_finished() {
                pump();
            }
            let told = client.join().expect("an upgrade");
            assert!(told.contains("goes on"), "{told}");
        });
    }

    /// Has the same program go on in the holder's place.
    fn upgrade_holder(&self, mut pump: impl FnMut()) {
        let mut upgrade = Command::new(program("butterflyd"));
        upgrade.arg("--upgrade-holder").arg(self.room.path().join("state"));
        let mut upgrade = upgrade.spawn().expect("a program");
        let done = loop {
            pump();
            if let Some(done) = upgrade.try_wait().expect("a process") {
                break done;
            }
        };
        assert!(done.success(), "the holder of host {} stays as it is", self.number);
    }

    /// Fails if the daemon uses more and more.
    fn look(&mut self, round: usize) {
        let pid = self.host.daemon().pid();
        let now = (resident(pid), self.host.daemon().descriptors());
        match self.first {
            None if round >= 8 => self.first = Some(now),
            Some((memory, descriptors)) => {
                assert!(now.0 <= memory + SLACK, "{now:?} after {round} rounds, {memory} before");
                assert!(now.1 <= descriptors + 16, "{now:?}, and {descriptors} before");
            }
            None => {}
        }
    }

    /// Frames that the daemon dropped, by counters that outlast it.
    fn drops(&self) -> u64 {
        self.host.ids().iter().map(|id| self.host.show(id).all_drops()).sum()
    }
}

fn launch(dir: &Path, number: usize, namespace: &str) -> Daemon {
    let state = dir.join("state").display().to_string();
    let ip = format!("42.0.0.{}/24", 1 + number);
    let peer = format!("42.0.0.{}", 2 - number);
    let words = ["--state-dir", &state, "--sessions", "20000", "--session-share", "100"];
    let more = ["--ip", &ip, "--uplink", "wire", "--peer", &peer];
    let words: Vec<String> = words.iter().chain(&more).map(|word| (*word).to_owned()).collect();
    Daemon::launch(dir, &["ip", "netns", "exec", namespace], &words)
}

/// Resident KiB of a process that are its own: what guests share is theirs.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The link between the hosts.
struct Link {
    words: fs::File,
    good: bool,
}

impl Link {
    fn change(&mut self, words: &str, good: bool) {
        writeln!(self.words, "{words}").expect("the link listens");
        self.good = good;
    }
}

/// All pairs, and what they lost.
struct Crowd {
    pairs: Vec<Pair>,
}

impl Crowd {
    fn pump(&mut self) {
        self.pairs.iter_mut().for_each(Pair::turn);
    }

    fn pump_for(&mut self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.pump();
        }
    }

    fn lost(&self) -> u64 {
        self.pairs.iter().map(Pair::lost).sum()
    }

    fn arrived(&self) -> Vec<[u64; 2]> {
        self.pairs.iter().map(Pair::arrived).collect()
    }

    /// Pumps until each guest has heard so many frames more.
    fn until_heard(&mut self, more: u64, what: &str) {
        let before = self.arrived();
        let begun = Instant::now();
        loop {
            self.pump();
            let now = self.arrived();
            let heard = now.iter().zip(&before).all(|(now, before)| {
                now.iter().zip(before).all(|(now, before)| *now >= before + more)
            });
            if heard {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "traffic does not go on after {what}");
        }
    }
}

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Death(usize),
    Upgrade(usize),
    UpgradeHolder(usize),
    BothDie,
    Rules(usize),
    Vnics(usize),
    Worse,
    Good,
}

fn draw(random: &mut fastrand::Rng) -> Act {
    let side = random.usize(..2);
    match random.u32(..18) {
        0..3 => Act::Death(side),
        3..6 => Act::Upgrade(side),
        6 => Act::BothDie,
        7..9 => Act::Rules(side),
        9..11 => Act::Vnics(side),
        11..13 => Act::Worse,
        13..15 => Act::UpgradeHolder(side),
        _ => Act::Good,
    }
}

fn main() {
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let words = fs::File::options().write(true).open(&options.link).expect("the link");
    let mut link = Link { words, good: true };
    let mut sides = [0, 1].map(|number| Side::start(number, &options.hosts[number]));
    for side in &sides {
        side.host.daemon().ask(group_set(GROUP, &[TALK], &[])).expect("a group");
        for pair in 0..options.pairs {
            side.host.add(&nic(pair, side.number, true)).expect("a vnic");
        }
    }
    // A frame that waits until its next hop is known may come late.
    for side in &sides {
        eventually("the other host is known", || {
            let told = side.host.daemon().client_ok(&["tunnels", "--json"]);
            let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
            told["peers"].as_array().is_some_and(|all| all.iter().all(|it| it["mac"].is_string()))
        });
    }
    let plan = Plan { window: WINDOW, ..Plan::flows(options.flows) };
    let dirs = [sides[0].room.path().to_owned(), sides[1].room.path().to_owned()];
    let pairs =
        (0..options.pairs).map(|pair| Pair::attach_to([&dirs[0], &dirs[1]], pair, &plan)).collect();
    let mut crowd = Crowd { pairs };
    crowd.until_heard(1000, "the start");
    crowd.pump_for(SETTLED);
    let begun = Instant::now();
    let mut happened: BTreeMap<String, u32> = BTreeMap::new();
    let (mut round, mut deaths) = (0, 0u64);
    while begun.elapsed() < Duration::from_secs(options.minutes * 60) {
        let act = draw(&mut random);
        let name = format!("{act:?}");
        *happened.entry(name.split('(').next().unwrap_or_default().to_owned()).or_default() += 1;
        let before: u64 = sides.iter().map(Side::drops).sum();
        let (lost, quiet) = (crowd.lost(), link.good);
        match act {
            Act::Death(side) => sides[side].die(|| crowd.pump()),
            Act::Upgrade(side) => sides[side].upgrade(|| crowd.pump()),
            Act::UpgradeHolder(side) => sides[side].upgrade_holder(|| crowd.pump()),
            Act::BothDie => {
                sides[0].host.daemon().kill();
                sides[1].die(|| crowd.pump());
                sides[0].die(|| crowd.pump());
            }
            Act::Rules(side) => {
                let other = format!("in tcp {} 10.0.0.0/8", random.u16(1..));
                let rules: &[&str] = &[TALK, &other][..random.usize(1..=2)];
                sides[side].host.daemon().ask(group_set(GROUP, rules, &[])).expect("rules");
            }
            Act::Vnics(side) => {
                let ids: Vec<String> = (0..20).map(|n| format!("idle-{n}")).collect();
                for (n, id) in ids.iter().enumerate() {
                    let idle = Nic::bypass(id, mac(0x5000 + n as u32), 78 + n as u32);
                    sides[side].host.add(&idle).expect("a vnic");
                }
                crowd.pump();
                ids.iter().for_each(|id| sides[side].host.remove(id));
            }
            Act::Worse => {
                let (delay, jitter) = (random.f64() * 20.0, random.f64() * 10.0);
                let loss = random.f64() * 5.0;
                link.change(
                    &format!("--delay {delay:.2} --jitter {jitter:.2} --loss {loss:.2}"),
                    false,
                );
            }
            Act::Good => link.change("--delay 0", true),
        }
        deaths += match act {
            Act::Death(_) => 1,
            Act::BothDie => 2,
            _ => 0,
        };
        crowd.until_heard(200, &name);
        crowd.pump_for(Duration::from_millis(random.u64(100..2000)));
        crowd.pairs.iter_mut().for_each(Pair::check);
        if round % 5 == 0 {
            crowd.pairs.iter_mut().for_each(Pair::ask);
        }
        // What was on a bad link may still be missed.
        let calm = quiet && link.good && !matches!(act, Act::Death(_) | Act::BothDie | Act::Good);
        if calm {
            let dropped = sides.iter().map(Side::drops).sum::<u64>() - before;
            let missed = crowd.lost() - lost;
            assert!(missed <= dropped, "{missed} frames lost in {act:?}, {dropped} counted");
        }
        if act == Act::Good {
            crowd.pump_for(SETTLED);
        }
        sides.iter_mut().for_each(|side| side.look(round));
        round += 1;
        if round % 20 == 0 {
            let arrived: u64 = crowd.arrived().iter().flatten().sum();
            println!("{round} rounds, {arrived} frames, {} lost, {happened:?}", crowd.lost());
        }
    }
    link.change("--delay 0", true);
    crowd.pump_for(SETTLED);
    let lost = crowd.lost();
    crowd.pump_for(Duration::from_secs(5));
    assert_eq!(crowd.lost(), lost, "a good link and daemons that live lose nothing");
    let arrived: u64 = crowd.arrived().iter().flatten().sum();
    let dropped: u64 = sides.iter().map(Side::drops).sum();
    println!(
        "{round} rounds: {happened:?}; {arrived} frames arrived unchanged, in order and once, {lost} were lost \
         (the link's counts are its own), {dropped} counted as dropped, {deaths} deaths"
    );
    for side in &mut sides {
        println!(
            "host {}: {:?}, and {} KiB now",
            side.number,
            side.first,
            resident(side.host.daemon().pid())
        );
        side.host.daemon_mut().quit();
    }
    crowd.pairs.iter_mut().for_each(Pair::gone);
    println!("soak: ok");
}

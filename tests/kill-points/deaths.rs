//! Deaths, one after the other, and what guests and clients see of them.

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use butterfly_guest_driver::Listener;
use butterfly_point::Point;
use butterfly_tests::{
    Daemon, Host,
    groups::group_set,
    pairs::{self, GROUP, Pair, Plan},
    station::features,
};
use butterfly_vhost::net::Features;

use crate::{
    busy::{self, Busy},
    logged::Logged,
    plan::Death,
};

/// Most frames that one death costs for each worker: its batch.
const BATCH: u64 = 64;
/// Longest time until a point is passed so often.
const PATIENCE: Duration = Duration::from_secs(30);
/// Frames in each direction that show that traffic goes on.
const ONWARD: u64 = 400;
/// A text of the log when the store's writer died.
const WRITER: &str = "the writer of the store ended";

/// Workers of a daemon whose rings go from one to the other.
const SEVERAL: u64 = 2;
/// Frames that are not under way any more when so many have arrived since a daemon died: another
/// one serves the guests.
const OTHERS: u64 = 1500;
/// Time between two changes of the number of workers.
const STAYS: Duration = Duration::from_millis(300);

/// Tells daemons of this directory their number of workers, from their start or next SIGHUP on.
fn tell_workers(dir: &Path, workers: u64) {
    let (file, new) = (file(dir), dir.join("butterflyd.ini.new"));
    std::fs::write(&new, format!("[general]\nworkers={workers}\n")).expect("a file");
    std::fs::rename(new, file).expect("a file");
}

fn file(dir: &Path) -> PathBuf {
    dir.join("butterflyd.ini")
}

/// Starts a daemon, which is to die there.
fn start(dir: &Path, workers: u64, death: Option<&Death>) -> Daemon {
    tell_workers(dir, workers);
    let words = [
        "-c",
        &file(dir).display().to_string(),
        "--state-dir",
        &dir.join("state").display().to_string(),
        "--sessions",
        "20000",
        "--session-share",
        "100",
        "--timeout",
        "udp-new=1",
        "--timeout",
        "udp-answered=1",
        "--fdb-ageing",
        "1",
    ]
    .map(str::to_owned);
    match death {
        Some(death) => Daemon::launch(dir, &["env", &format!("BUTTERFLY_DIE_AT={death}")], &words),
        None => Daemon::launch(dir, &[], &words),
    }
}

/// Pairs of guests: one that is filtered, with ever new flows; one without event indices; one with
/// packed rings; one that migrates.
fn attach(dir: &Path) -> Vec<Pair> {
    let many = Plan { flows: 60_000, stay: 24, ..Plan::flows(1) };
    let simple = Features::VERSION_1.with(Features::MRG_RXBUF);
    let packed = features::MODERN.with(Features::RING_PACKED);
    let plans = [
        many,
        Plan { features: simple, ..Plan::flows(1) },
        Plan { features: packed, ..Plan::flows(1) },
        Plan::flows(1),
    ];
    plans.iter().enumerate().map(|(pair, plan)| Pair::attach(dir, pair, plan)).collect()
}

/// Traffic of all pairs, and what deaths cost of it.
struct Traffic {
    pairs: Vec<Pair>,
    /// Frames that had arrived when costs were counted last.
    from: Vec<[u64; 2]>,
    lost: u64,
    /// Most frames that deaths since then may have cost.
    may_cost: u64,
}

impl Traffic {
    fn turn(&mut self) {
        self.pairs.iter_mut().for_each(Pair::turn);
    }

    fn arrived(&self) -> Vec<[u64; 2]> {
        self.pairs.iter().map(Pair::arrived).collect()
    }

    /// Returns whether traffic has gone on in every direction.
    fn goes_on(&self) -> bool {
        let mut both = self.pairs.iter().zip(&self.from);
        both.all(|(pair, from)| {
            pair.arrived().iter().zip(from).all(|(now, from)| *now >= from + ONWARD)
        })
    }

    /// A daemon has ended, at any step of so many workers. What it cost is seen when frames that
    /// are sent from now on arrive: until then those that it had delivered do. Returns what those
    /// before it cost, if that can be seen by now.
    fn daemon_ended(&mut self, workers: u64) -> u64 {
        let cost = self.count();
        self.may_cost += BATCH * workers;
        self.from = self.arrived();
        cost
    }

    /// Counts what deaths have cost, if that can be seen by now. Returns the frames.
    fn count(&mut self) -> u64 {
        if !self.goes_on() {
            return 0;
        }
        let lost: u64 = self.pairs.iter().map(Pair::lost).sum();
        let cost = lost - self.lost;
        assert!(cost <= self.may_cost, "{cost} frames are lost, and not {}", self.may_cost);
        self.pairs.iter_mut().for_each(Pair::check);
        (self.lost, self.from, self.may_cost) = (lost, self.arrived(), 0);
        cost
    }

    /// Works until traffic goes on.
    fn settle(&mut self, daemon: &Daemon) {
        let begun = Instant::now();
        while !self.goes_on() {
            self.turn();
            if begun.elapsed() > PATIENCE {
                panic!("traffic does not go on; the daemon wrote:\n{}", daemon.log());
            }
        }
    }
}

/// Dies all deaths.
pub fn run(all: &[Death]) {
    let room = tempfile::tempdir().expect("a directory");
    let dir = room.path();
    let workers = butterfly_tests::workers().map_or(1, |workers| workers as u64);
    let host = Host::of(start(dir, workers, None).ready());
    let rules = ["in udp 1-65535 10.77.0.0/16"];
    host.daemon().ask(group_set(GROUP, &rules, &[])).expect("a group");
    for (pair, filtered) in [(0, true), (1, false), (2, false), (3, false)] {
        (0..2).for_each(|end| drop(host.add(&pairs::nic(pair, end, filtered)).expect("a vnic")));
    }
    let listener = Listener::bind(dir.join("qemu-vhost-listener")).expect("a socket");
    busy::nics().iter().for_each(|nic| drop(host.add(nic).expect("a vnic")));
    let mut pairs = attach(dir);
    let logged = pairs.iter_mut().last().expect("a pair").vms().each_mut().map(Logged::begin);
    let mut traffic = Traffic { from: vec![[0; 2]; pairs.len()], pairs, lost: 0, may_cost: 0 };
    let busy = Busy::default();
    let endpoint = host.daemon().endpoint().to_owned();
    traffic.settle(host.daemon());
    let mut world = World {
        dir,
        host,
        workers,
        usual: workers,
        fewer: false,
        traffic,
        logged,
        busy: &busy,
        told: 0,
        replaced: 0,
    };
    let world = std::thread::scope(|scope| {
        // If this thread fails, the others are to end.
        let ended = Ended(&busy);
        let threads = [
            scope.spawn(|| busy.talk(dir)),
            scope.spawn(|| busy.visit(dir)),
            scope.spawn(|| busy.listen(&listener)),
            scope.spawn(|| busy.crowd(dir)),
            scope.spawn(|| busy.sleep(dir)),
            scope.spawn(|| busy.change(&endpoint)),
        ];
        world.replace(all.first());
        for (at, death) in all.iter().enumerate() {
            world.die(death, || threads.iter().any(|thread| thread.is_finished()));
            world.replace(all.get(at + 1));
        }
        world.traffic.settle(world.host.daemon());
        world.check_log();
        drop(ended);
        world
    });
    world.finish();
}

/// Has the threads end.
struct Ended<'a>(&'a Busy);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Relaxed);
    }
}

/// A host, its guests, and the others that keep it busy.
struct World<'a> {
    dir: &'a Path,
    host: Host,
    /// Most workers that the daemon has had.
    workers: u64,
    /// Workers of a daemon whose death is not of a move.
    usual: u64,
    /// It was told to do with one.
    fewer: bool,
    traffic: Traffic,
    /// The last pair's dirty logs.
    logged: [Logged; 2],
    busy: &'a Busy,
    /// Deaths of writers so far.
    told: usize,
    /// Daemons that were replaced so far.
    replaced: usize,
}

impl World<'_> {
    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Kills the daemon, if it is not dead, and starts the one that is to die `next`.
    fn replace(&mut self, next: Option<&Death>) {
        if !self.host.daemon_mut().has_ended() {
            self.host.daemon().kill();
            while !self.host.daemon_mut().has_ended() {
                self.traffic.turn();
            }
            self.traffic.daemon_ended(self.workers);
        }
        // After three deaths before it is ready, a daemon does without its store.
        self.replaced += 1;
        if self.replaced.is_multiple_of(2) {
            self.rest();
        }
        let several = next.is_some_and(Death::is_of_a_move);
        self.start(if several { self.usual.max(SEVERAL) } else { self.usual }, next);
        if next.is_none() {
            self.host.daemon_mut().wait_until_ready();
        }
    }

    fn start(&mut self, workers: u64, death: Option<&Death>) {
        (self.workers, self.fewer) = (workers, false);
        self.host = Host::of(start(self.dir, workers, death));
    }

    /// Starts a daemon and stops it in good order. Before that all messages that were under way
    /// are answered: on a starved machine one may be under way in three daemons that die at other
    /// places, and whoever sends what three daemons die of is cut off.
    fn rest(&mut self) {
        self.start(self.usual, None);
        self.host.daemon_mut().wait_until_ready();
        self.all_go_on(Busy::progress);
        self.host.daemon().signal("TERM");
        while !self.host.daemon_mut().has_ended() {
            self.traffic.turn();
        }
        self.traffic.daemon_ended(self.workers);
    }

    /// Works until all these counts have grown.
    fn all_go_on<const N: usize>(&mut self, counts: impl Fn(&Busy) -> [u64; N]) {
        let (before, begun) = (counts(self.busy), Instant::now());
        while counts(self.busy).iter().zip(before).any(|(now, it)| *now <= it) {
            assert!(begun.elapsed() < PATIENCE, "does not go on: {:?}\n{}", self.busy, self.log());
            self.traffic.turn();
        }
    }

    /// Has a daemon go on for one that died while a ring went from one worker to another. It serves
    /// all rings: the traffic goes on, and so do all others, also the one who sleeps.
    fn serve_all(&mut self) {
        self.start(self.usual.max(SEVERAL), None);
        self.host.daemon_mut().wait_until_ready();
        self.traffic.settle(self.host.daemon());
        self.traffic.count();
        self.all_go_on(|busy| {
            let [messages, fronts] = busy.progress();
            [messages, fronts, busy.woken.load(Relaxed)]
        });
        let crowd = |host: &Host| host.show("crowd").received.0;
        let (before, begun) = (crowd(&self.host), Instant::now());
        while crowd(&self.host) == before {
            assert!(begun.elapsed() < PATIENCE, "nobody serves the crowd\n{}", self.log());
            self.traffic.turn();
        }
    }

    /// Works until the daemon dies `death`.
    fn die(&mut self, death: &Death, failed: impl Fn() -> bool) {
        let begun = Instant::now();
        let arrived = |traffic: &Traffic| traffic.arrived().iter().flatten().sum::<u64>();
        let before = arrived(&self.traffic);
        let mut cost = 0;
        let mut changes = None;
        let mut told = Instant::now();
        loop {
            self.traffic.turn();
            // Before it serves anybody, it may die of SIGHUP.
            if death.is_of_a_move()
                && arrived(&self.traffic) > before + OTHERS
                && told.elapsed() > STAYS
            {
                self.change_workers();
                told = Instant::now();
            }
            cost += self.traffic.count();
            if let Some(status) = self.host.daemon_mut().ended() {
                assert_eq!(status.signal(), Some(9), "{death}: {status:?}\n{}", self.log());
                cost += self.traffic.daemon_ended(self.workers);
                break;
            }
            if death.point.kills_the_writer() && self.writer_died(&mut changes) {
                break;
            }
            assert!(!failed(), "{death}: see above; the daemon wrote:\n{}", self.log());
            if begun.elapsed() > PATIENCE {
                panic!("{death}: not passed so often: {:?}\n{}", self.busy, self.log());
            }
        }
        println!(
            "{death:40} after {:4} ms and {:6} frames; the one before cost {cost}",
            begun.elapsed().as_millis(),
            arrived(&self.traffic) - before,
        );
        if matches!(death.point, Point::LogUnmarked | Point::LogMarked) {
            self.replace(None);
            self.traffic.settle(self.host.daemon());
            self.check_log();
        }
        if death.is_of_a_move() {
            self.serve_all();
        }
    }

    /// Has the daemon do with one worker, which gets all rings; then with several again, which get
    /// some when the first one is busy.
    fn change_workers(&mut self) {
        self.fewer = !self.fewer;
        tell_workers(self.dir, if self.fewer { 1 } else { self.workers });
        self.host.daemon().signal("HUP");
    }

    /// Returns whether the writer has died, and changes are made again.
    fn writer_died(&mut self, changes: &mut Option<u64>) -> bool {
        let answered = self.busy.changes.load(Relaxed);
        let told = self.log().matches(WRITER).count();
        if changes.is_none() && told > self.told {
            (self.told, *changes) = (told, Some(answered));
        }
        changes.is_some_and(|before| answered > before + 2)
    }

    /// Checks that all that was stored since the last look is marked.
    fn check_log(&mut self) {
        let Some(pair) = self.traffic.pairs.last_mut() else { return };
        pair.drain();
        for (logged, vm) in self.logged.iter_mut().zip(pair.vms()) {
            logged.check(vm);
            *logged = Logged::begin(vm);
        }
    }

    /// Checks what is declared at the end, and ends everything.
    fn finish(mut self) {
        self.traffic.count();
        println!("{:?}, {} frames lost", self.busy, self.traffic.lost);
        for pair in 0..self.traffic.pairs.len() {
            for end in 0..2 {
                let id = pairs::id(pair, end);
                assert!(self.host.show(&id).attached, "{id} is attached");
            }
        }
        let talker = self.host.show("talker");
        assert!(talker.attach_count <= 1, "the talker came once: {talker:?}");
        self.host.daemon_mut().quit();
        self.traffic.pairs.iter_mut().for_each(Pair::gone);
    }
}

//! Several workers: rings go to those with less to do, and workers come and go, while machines
//! send. No frame is lost, and each flow is in order.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::lasting::{Place, die};
use butterfly_packet::build;
use butterfly_tests::{
    Daemon, Host, Nic, PATIENCE, Station, eventually,
    frames::mac,
    station::{features, machine},
};
use butterfly_vhost::net::NetHeader;
use serde_json::Value;

const VNI: u32 = 9;
/// Pairs of machines, of which the first sends to the second.
const STREAMS: usize = 8;
/// Frames of a stream that are under way at once.
const BURST: u32 = 128;

/// A daemon whose configuration file tells the number of workers.
struct Workers {
    host: Host,
    file: PathBuf,
    _room: tempfile::TempDir,
}

impl Workers {
    fn new(count: usize) -> Workers {
        let room = tempfile::tempdir().unwrap();
        let file = room.path().join("butterflyd.ini");
        std::fs::write(&file, format!("[general]\nworkers={count}\n")).unwrap();
        let words = ["-c".to_owned(), file.display().to_string()];
        let host = Host::of(Daemon::start_with(&[], &words));
        Workers { host, file, _room: room }
    }

    /// Changes the number of workers, and waits until there are so many.
    fn set(&self, count: usize) {
        std::fs::write(&self.file, format!("[general]\nworkers={count}\n")).unwrap();
        self.host.daemon().signal("HUP");
        eventually("so many workers", || workers(&self.host).len() == count);
    }
}

/// Returns what `butterfly workers` tells of each.
fn workers(host: &Host) -> Vec<Value> {
    let page = host.daemon().client_ok(&["workers", "--json"]);
    let page: Value = serde_json::from_str(&page).unwrap();
    page["workers"].as_array().unwrap().clone()
}

fn loads(host: &Host) -> Vec<f64> {
    workers(host).iter().map(|worker| worker["load"].as_f64().unwrap() / 1000.0).collect()
}

fn rings(host: &Host) -> Vec<usize> {
    workers(host).iter().map(|worker| worker["rings"].as_array().unwrap().len()).collect()
}

/// A stream of numbered frames from one machine to another.
struct Stream {
    from: Station,
    to: Station,
    sent: u32,
    got: u32,
}

fn streams(host: &Host) -> Vec<Stream> {
    let config = machine(features::MODERN, 1514);
    let station = |number: usize| {
        let nic = Nic::bypass(&format!("vm-{number}"), mac(number as u32 + 1), VNI);
        host.station(&nic, &config)
    };
    // All that send come first.
    let senders: Vec<Station> = (0..STREAMS).map(station).collect();
    let receivers = (STREAMS..2 * STREAMS).map(station);
    let stream = |(from, to)| Stream { from, to, sent: 0, got: 0 };
    senders.into_iter().zip(receivers).map(stream).collect()
}

impl Stream {
    /// Sends a burst when the one before has arrived. Returns whether all of it has.
    fn go_on(&mut self) -> bool {
        for frame in self.to.pending() {
            let number = u32::from_be_bytes(frame[14..18].try_into().unwrap());
            assert_eq!(number, self.got, "{} gets each number once, in order", self.to.nic.id);
            self.got += 1;
        }
        if self.got < self.sent {
            return false;
        }
        for _ in 0..BURST {
            let (from, to) = (self.from.mac(), self.to.mac());
            let mut payload = [0; 46];
            payload[..4].copy_from_slice(&self.sent.to_be_bytes());
            let frame = build::ethernet(from, to).payload(0x88b5, &payload);
            self.from.vm.guest.send_wait(&frame, NetHeader::default(), PATIENCE).unwrap();
            self.sent += 1;
        }
        true
    }
}

/// Has all streams go on while `meanwhile` runs, and until all have arrived.
fn under_load(streams: &mut [Stream], meanwhile: impl FnOnce() + Send) {
    let over = AtomicBool::new(false);
    let over = &over;
    std::thread::scope(|scope| {
        let running = scope.spawn(move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
            over.store(true, Ordering::Release);
            outcome
        });
        let mut last = Instant::now();
        while !over.load(Ordering::Acquire) {
            for stream in &mut *streams {
                if stream.go_on() {
                    last = Instant::now();
                }
            }
            assert!(last.elapsed() < PATIENCE, "streams stand still");
        }
        if let Err(why) = running.join().unwrap() {
            std::panic::resume_unwind(why);
        }
    });
}

#[test]
fn rings_go_to_the_worker_with_less_to_do() {
    let daemon = Workers::new(1);
    let mut streams = streams(&daemon.host);
    under_load(&mut streams, || {
        eventually("the load is known", || loads(&daemon.host)[0] > 0.2);
        assert_eq!(rings(&daemon.host), [2 * STREAMS]);
        daemon.set(2);
        let begun = Instant::now();
        let level = |loads: &[f64]| {
            let [one, other] = *loads else { panic!("two workers: {loads:?}") };
            other > 0.05 && (one - other).abs() <= 0.1 * (one + other)
        };
        eventually("both have the same to do", || {
            level(&loads(&daemon.host)) && !rings(&daemon.host).contains(&0)
        });
        println!("level after {:?}: {:?}", begun.elapsed(), loads(&daemon.host));
        assert_eq!(rings(&daemon.host).iter().sum::<usize>(), 2 * STREAMS);
        let moves: u64 =
            workers(&daemon.host).iter().map(|worker| worker["moves"].as_u64().unwrap()).sum();
        // Loads that differ by chance move a ring now and then, and not all the time.
        std::thread::sleep(Duration::from_secs(1));
        let later: u64 =
            workers(&daemon.host).iter().map(|worker| worker["moves"].as_u64().unwrap()).sum();
        println!("{moves} moves, {} in a second", later - moves);
        assert!(moves > 0 && later - moves <= 20, "{moves} moves, then {later}");
    });
    let page = daemon.host.daemon().client_ok(&["workers"]);
    assert!(page.contains("serves") && page.contains("vm-3"), "{page}");
    for number in 0..2 * STREAMS {
        assert_eq!(daemon.host.show(&format!("vm-{number}")).all_drops(), 0, "vm-{number}");
    }
}

#[test]
fn workers_come_and_go_while_machines_send() {
    let daemon = Workers::new(2);
    let mut streams = streams(&daemon.host);
    let threads = daemon.host.daemon().threads();
    under_load(&mut streams, || {
        for count in [1, 3, 2, 4, 1, 2, 1, 4, 2] {
            daemon.set(count);
            let rings = rings(&daemon.host);
            assert_eq!(rings.iter().sum::<usize>(), 2 * STREAMS, "{rings:?}");
        }
    });
    assert_eq!(daemon.host.daemon().threads(), threads, "none is left behind");
    let sent: u64 = streams.iter().map(|stream| u64::from(stream.sent)).sum();
    println!("{sent} frames");
    for number in 0..2 * STREAMS {
        assert_eq!(daemon.host.show(&format!("vm-{number}")).all_drops(), 0, "vm-{number}");
    }
    // What workers counted that ended is not forgotten.
    let taken = |number| daemon.host.show(&format!("vm-{number}")).received.0;
    let counted: u64 = (0..STREAMS).map(taken).sum();
    assert_eq!(counted, sent);
}

/// Processors that the threads of a process other than workers may use.
fn processors_of_others(pid: u32) -> Vec<(String, Vec<usize>)> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |thread: std::fs::DirEntry| {
        // One that has just ended has none.
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(|text| text.trim().to_owned())
        };
        let mut all = Vec::new();
        for range in field("Cpus_allowed_list:")?.split(',') {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            all.extend(from.parse::<usize>().ok()?..=to.parse().ok()?);
        }
        Some((field("Name:")?, all))
    };
    threads.filter_map(of).filter(|(name, _)| !name.starts_with("worker-")).collect()
}

/// Waits until all threads but workers are on these processors. The one of slow interrupts keeps
/// off every processor that a worker ever had.
fn others_are_on(pid: u32, processors: &[usize]) {
    let wrong = || {
        let mut others = processors_of_others(pid);
        others.retain(|(name, on)| name != "interrupts" && on != processors);
        others
    };
    let deadline = Instant::now() + PATIENCE;
    while !wrong().is_empty() {
        assert!(Instant::now() < deadline, "not on {processors:?}: {:?}", wrong());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes the configuration of one worker, on this processor if there is one.
fn one_worker_on(file: &Path, core: Option<usize>) {
    let line = core.map_or(String::new(), |core| format!("worker-cores={core}\n"));
    std::fs::write(file, format!("[general]\nworkers=1\n{line}")).unwrap();
}

/// Returns two processors that this process may use, if it has several, and all.
fn two_processors() -> Option<([usize; 2], Vec<usize>)> {
    let all = processors_of_others(std::process::id())[0].1.clone();
    let two = *all.first_chunk()?;
    Some((two, all))
}

fn without(all: &[usize], core: Option<usize>) -> Vec<usize> {
    all.iter().copied().filter(|at| Some(*at) != core).collect()
}

/// A worker that has a processor to itself has it: no other thread of the daemon waits for it
/// there, or has it wait.
#[test]
fn other_threads_keep_off_the_processors_of_workers() {
    let Some(([first, second], all)) = two_processors() else { return };
    let daemon = Workers::new(1);
    let _stations = streams(&daemon.host);
    let pid = daemon.host.daemon().pid();
    for core in [Some(first), Some(second), None, Some(second)] {
        one_worker_on(&daemon.file, core);
        daemon.host.daemon().signal("HUP");
        others_are_on(pid, &without(&all, core));
    }
    // Threads that start later are no different.
    daemon.host.add(&Nic::bypass("later", mac(99), VNI)).unwrap();
    others_are_on(pid, &without(&all, Some(second)));
}

/// A program that takes over has the processors that the one before it began with.
#[test]
fn an_upgrade_gives_processors_back() {
    let Some(([first, second], all)) = two_processors() else { return };
    let Some(mut place) = Place::new() else { return };
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("butterflyd.ini");
    one_worker_on(&file, Some(first));
    place.1.extend(["-c".to_owned(), file.display().to_string()]);
    let mut host = place.start();
    let pid = host.daemon().pid();
    others_are_on(pid, &without(&all, Some(first)));
    for core in [Some(second), Some(first), None] {
        one_worker_on(&file, core);
        host.daemon().client_ok(&["upgrade"]);
        others_are_on(pid, &without(&all, core));
    }
    host.daemon_mut().quit();
}

#[test]
fn what_is_refused_changes_nothing() {
    let daemon = Workers::new(2);
    for wrong in ["workers=0", "workers=33", "workers=x", "worker-cores=1,1"] {
        std::fs::write(&daemon.file, format!("[general]\n{wrong}\n")).unwrap();
        daemon.host.daemon().signal("HUP");
        let key = wrong.split('=').next().unwrap();
        eventually("the refusal", || {
            let log = daemon.host.daemon().log();
            log.contains("nothing has changed") && log.contains(&format!("{key} \""))
        });
        assert_eq!(workers(&daemon.host).len(), 2, "{wrong}");
    }
    daemon.set(3);
}

/// A daemon with several workers dies, and its successor goes on.
#[test]
fn a_successor_has_several_workers_too() {
    let Some(mut place) = Place::new() else { return };
    place.1.extend(["--workers".to_owned(), "2".to_owned()]);
    let mut host = place.start();
    let mut streams = streams(&host);
    for _ in 0..3 {
        under_load(&mut streams, || std::thread::sleep(Duration::from_millis(200)));
        // A death may lose a batch: what is under way is to arrive before.
        for stream in &mut streams {
            let deadline = Instant::now() + PATIENCE;
            while stream.got < stream.sent {
                assert!(Instant::now() < deadline, "{} of {}", stream.got, stream.sent);
                for _ in stream.to.pending() {
                    stream.got += 1;
                }
            }
        }
        die(&mut host);
        host = place.start();
        assert_eq!(workers(&host).len(), 2);
        eventually("all rings are served", || rings(&host).iter().sum::<usize>() == 2 * STREAMS);
    }
    under_load(&mut streams, || std::thread::sleep(Duration::from_millis(200)));
    host.daemon_mut().quit();
}

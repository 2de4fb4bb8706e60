//! Guests that only talk to each other. They number every frame and check every byte.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use butterfly_guest_driver::Vm;
use butterfly_tests::{
    Station,
    frames::{Choices, EXPERIMENT, mac, read_numbered},
    host::Nic,
    station::{features, machine},
    traffic::{Stream, room, streams},
};

use crate::switch::{Switch, dropped};

/// Longest frame of the bystanders, in bytes.
const LONGEST: usize = 1514;
/// A frame that has not arrived within this time is lost.
const LOST: Duration = Duration::from_secs(2);

/// Counts of one pair.
pub struct Count {
    /// Frames that were sent and did not arrive, by receiver (b, a).
    pub missing: [u64; 2],
    /// Frames that arrived.
    pub arrived: u64,
    /// Longest time without any frame, while some were under way.
    pub longest_pause: Duration,
    /// Frames that arrived from other guests.
    pub foreign: u64,
}

/// Two guests and the thread that runs them.
pub struct Pair {
    ids: [String; 2],
    shared: bool,
    thread: JoinHandle<Count>,
    arrived: Arc<AtomicU64>,
}

/// All pairs of bystanders.
pub struct Bystanders {
    pairs: Vec<Pair>,
    stop: Arc<AtomicBool>,
}

/// Declares a vnic and attaches a guest to it.
pub fn station(switch: &Switch, nic: &Nic, config: &butterfly_guest_driver::VmConfig) -> Station {
    let path = switch.add(nic);
    let mut vm = Vm::connect(&path, config, butterfly_tests::PATIENCE).expect("a guest attaches");
    vm.connection.sync().expect("the guest is attached");
    Station { nic: nic.clone(), path, listener: None, vm, config: config.clone() }
}

impl Bystanders {
    /// Starts one pair in each of these networks. Frames of other guests may arrive in a shared
    /// network (`true`), and in no other.
    pub fn start(switch: &Switch, networks: &[(u32, bool)], pause: Duration) -> Bystanders {
        let stop = Arc::new(AtomicBool::new(false));
        let pairs = networks.iter().enumerate().map(|(at, (vni, shared))| {
            let features = if at % 2 == 0 { features::LINUX } else { features::MODERN };
            let config = machine(features, LONGEST);
            let ids = ["a", "b"].map(|end| format!("by-{vni}-{end}"));
            let nic =
                |end: usize| Nic::bypass(&ids[end], mac(0x10_0000 + vni * 2 + end as u32), *vni);
            let (a, b) = (station(switch, &nic(0), &config), station(switch, &nic(1), &config));
            let arrived = Arc::new(AtomicU64::new(0));
            let (stop, counter, shared, seed) =
                (stop.clone(), arrived.clone(), *shared, u64::from(*vni));
            let thread = std::thread::Builder::new()
                .name(format!("bystanders-{vni}"))
                .spawn(move || talk(a, b, shared, &stop, &counter, Choices::new(seed), pause))
                .expect("a thread");
            Pair { ids, shared, thread, arrived }
        });
        let pairs = pairs.collect();
        Bystanders { pairs, stop }
    }

    /// Fails if the thread of a pair has ended.
    pub fn check(&self) {
        for pair in &self.pairs {
            assert!(!pair.thread.is_finished(), "the bystanders {:?} gave up: see above", pair.ids);
        }
    }

    /// Returns the number of frames that arrived so far.
    pub fn arrived(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.arrived.load(Relaxed)).sum()
    }

    /// Ends the traffic and compares it with the daemon's counters. Returns the number of frames
    /// that arrived and the longest pause.
    pub fn finish(self, switch: &Switch) -> (u64, Duration) {
        self.stop.store(true, Relaxed);
        let (mut arrived, mut longest) = (0, Duration::ZERO);
        for pair in self.pairs {
            let count = pair
                .thread
                .join()
                .unwrap_or_else(|_| panic!("the bystanders {:?} failed: see above", pair.ids));
            assert!(count.arrived > 0, "the bystanders {:?} never got a frame", pair.ids);
            for (id, missing) in pair.ids.iter().rev().zip(count.missing) {
                let drops = dropped(&switch.show(id));
                let full = drops.get("ring-full").copied().unwrap_or(0);
                assert!(
                    drops.keys().all(|reason| reason == "ring-full"),
                    "{id} lost frames otherwise: {drops:?}"
                );
                if pair.shared {
                    assert!(
                        missing <= full,
                        "{id} misses {missing} frames, {full} of them named ring-full"
                    );
                } else {
                    assert_eq!(missing, full, "{id} misses frames that no counter names");
                }
            }
            assert!(
                pair.shared || count.foreign == 0,
                "frames of others arrived at {:?}",
                pair.ids
            );
            arrived += count.arrived;
            longest = longest.max(count.longest_pause);
        }
        (arrived, longest)
    }
}

fn talk(
    mut a: Station,
    mut b: Station,
    shared: bool,
    stop: &AtomicBool,
    counter: &AtomicU64,
    mut choices: Choices,
    pause: Duration,
) -> Count {
    let mut both = streams(&a, &b);
    let mut count =
        Count { missing: [0; 2], arrived: 0, longest_pause: Duration::ZERO, foreign: 0 };
    // Half of the ring's room: others may send to these guests too.
    let windows = [room(&b, LONGEST) / 2, room(&a, LONGEST) / 2];
    let mut last = Instant::now();
    let mut lost = [0u64; 2];
    loop {
        let ending = stop.load(Relaxed);
        for (direction, from) in [(0, &mut a), (1, &mut b)] {
            while !ending && both[direction].missing() - lost[direction] < windows[direction] {
                if !both[direction].send(from, choices.between(60, LONGEST)) {
                    break;
                }
            }
        }
        let mut moved = 0;
        for (direction, to) in [(0, &mut b), (1, &mut a)] {
            moved += take(&mut both[direction], to, shared, &mut count.foreign);
        }
        let under_way =
            |both: &[Stream; 2]| (0..2).map(|at| both[at].missing() - lost[at]).sum::<u64>();
        if moved > 0 {
            count.longest_pause = count.longest_pause.max(last.elapsed());
            last = Instant::now();
            count.arrived += moved;
            counter.store(count.arrived, Relaxed);
            if !pause.is_zero() {
                std::thread::sleep(pause); // the guest has other work to do
            }
        } else if under_way(&both) == 0 {
            last = Instant::now();
            if ending {
                break;
            }
        } else if last.elapsed() > LOST {
            lost = [both[0].missing(), both[1].missing()];
            last = Instant::now();
        } else {
            std::thread::sleep(Duration::from_micros(50)); // several guests share few processors
        }
    }
    count.missing = [both[0].missing(), both[1].missing()];
    count
}

/// Receives all frames that arrived. Checks those of the stream byte for byte, and counts the
/// others in `foreign`.
fn take(stream: &mut Stream, to: &mut Station, shared: bool, foreign: &mut u64) -> u64 {
    let mut taken = 0;
    while let Some((header, frame)) =
        to.vm.guest.recv().unwrap_or_else(|error| panic!("{}: {error}", to.nic.id))
    {
        let ours = frame.get(12..14) == Some(&EXPERIMENT.to_be_bytes()[..]);
        if ours || !shared {
            assert!(
                read_numbered(&frame).is_some(),
                "{} got a frame that was changed: {frame:02x?}",
                to.nic.id
            );
            stream.take(header, &frame);
            taken += 1;
        } else {
            *foreign += 1;
        }
    }
    taken
}

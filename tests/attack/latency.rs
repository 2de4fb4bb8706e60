//! A pair of guests that measure how long a frame takes from one to the other during attacks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use butterfly_tests::{
    Station,
    features::LINUX,
    frames::{mac, numbered, read_numbered},
    host::Nic,
    station::machine,
};
use butterfly_vhost::net::NetHeader;

use crate::{bystanders::station, switch::Switch};

/// Network of the pair.
const VNI: u32 = 22;
const STREAM: u64 = 0x1a7e;
const LEN: usize = 60;
/// Pause between two frames.
const EVERY: Duration = Duration::from_micros(300);
/// A frame that has not arrived within this time is lost.
const LOST: Duration = Duration::from_secs(2);
/// Time limit for half of the frames. One attacker's batch once took 74 ms, and each frame waited
/// for it.
const MEDIAN: Duration = Duration::from_millis(10);
/// Time limit for 99 % of the frames. Most of it is the host's: the daemon, the attackers and the
/// bystanders share two processors.
const NEARLY_ALL: Duration = Duration::from_millis(60);

/// Two guests and the thread that runs them.
pub struct Latency {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Latency {
    /// Attaches both guests and begins to measure.
    pub fn start(switch: &Switch) -> Latency {
        let config = machine(LINUX, 1514);
        let nic =
            |end: u32| Nic::bypass(["watch-a", "watch-b"][end as usize], mac(0x20_0000 + end), VNI);
        let (a, b) = (station(switch, &nic(0), &config), station(switch, &nic(1), &config));
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::Builder::new()
            .name("latency".into())
            .spawn(move || measure(a, b, &asked))
            .expect("a thread");
        Latency { stop, thread }
    }

    /// Ends the measurement. Fails if frames took too long or were lost.
    pub fn finish(self) {
        self.stop.store(true, Relaxed);
        let mut times = self.thread.join().expect("those who measure go on");
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
        let [median, p99, p999, most] = [0.5, 0.99, 0.999, 1.0].map(at);
        println!(
            "latency of {} frames: median {median:?}, 99 % {p99:?}, 99.9 % {p999:?}, at most {most:?}",
            times.len()
        );
        assert!(median <= MEDIAN, "half of the frames took longer than {median:?}");
        assert!(p99 <= NEARLY_ALL, "one frame in a hundred took longer than {p99:?}");
    }
}

/// Sends one frame after the other. Returns how long each took.
fn measure(mut a: Station, mut b: Station, stop: &AtomicBool) -> Vec<Duration> {
    let mut times = Vec::new();
    for number in 0.. {
        if stop.load(Relaxed) && !times.is_empty() {
            break;
        }
        let frame = numbered(a.nic.mac, b.nic.mac, STREAM, number, LEN);
        let begun = Instant::now();
        a.vm.guest.send(&frame, NetHeader::default()).expect("room for one frame");
        while !arrived(&mut b, number) {
            assert!(begun.elapsed() < LOST, "frame {number} of those who measure did not arrive");
            // The daemon may need this thread's processor.
            std::thread::yield_now();
        }
        times.push(begun.elapsed());
        std::thread::sleep(EVERY);
    }
    times
}

fn arrived(to: &mut Station, number: u64) -> bool {
    while let Some((_, frame)) = to.vm.guest.recv().expect("a sound receive ring") {
        if read_numbered(&frame) == Some((STREAM, number)) {
            return true;
        }
    }
    false
}

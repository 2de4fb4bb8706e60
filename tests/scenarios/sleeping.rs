//! As little processor time as the traffic needs: an idle host sleeps, wakes at a kick, and sleeps
//! again.

use std::time::{Duration, Instant};

use butterfly_guest_driver::{KickPolicy, Start};
use butterfly_tests::{
    Host, HostOptions, Nic, Station, eventually,
    frames::{mac, numbered},
    station::usual,
    traffic::{exchange, streams},
};

/// How long a host is watched.
const WATCH: Duration = Duration::from_secs(2);

/// Part of one processor that a host uses while nothing happens, in percent.
fn idle_percent(host: &Host) -> f64 {
    // What /proc/PID/stat has is sampled by the kernel's tick: far too coarse for so little.
    let before = host.daemon().cpu_time_of("");
    let begin = Instant::now();
    // Nothing to wait for: that nothing happens is what is looked at.
    std::thread::sleep(WATCH);
    (host.daemon().cpu_time_of("") - before).as_secs_f64() * 100.0 / begin.elapsed().as_secs_f64()
}

/// `unreachable`: machines whose sockets are tried ten times a second.
#[track_caller]
fn assert_idle(host: &Host, unreachable: u32) {
    eventually("all rings left the poll set", || host.work().active_rings == 0);
    let before = host.work();
    let used = idle_percent(host);
    // Housekeeping takes 0.15 %, each try 0.07 ms; room for slow machines.
    let allowed = 0.6 + 0.2 * f64::from(unreachable);
    assert!(used < allowed, "{used:.1} % of a processor for nothing, more than {allowed:.1}");
    let after = host.work();
    assert!(
        after.sleeps - before.sleeps < 20,
        "woken {} times for nothing",
        after.sleeps - before.sleeps
    );
    assert_eq!(
        (after.busy_cycles, after.packets, after.batches),
        (before.busy_cycles, before.packets, before.batches)
    );
}

/// Median time from sending until the frame is there.
fn wake_up_time(a: &mut Station, b: &mut Station, host: &Host) -> Duration {
    let mut times: Vec<Duration> = (0..21)
        .map(|number| {
            eventually("it sleeps", || host.work().active_rings == 0);
            let frame = numbered(mac(1), mac(2), 1, number, 60);
            let begin = Instant::now();
            a.send(&frame);
            b.expect(&frame);
            begin.elapsed()
        })
        .collect();
    times.sort();
    times[10]
}

#[test]
fn an_idle_host_sleeps() {
    let Some(host) = Host::process() else { return };
    assert_idle(&host, 0);
    // Vnics without guests, those that we try to reach included, and idle guests.
    for n in 0..20 {
        host.add(&Nic::bypass(&format!("s{n}"), mac(100 + n), 5)).unwrap();
        host.add(&Nic::bypass(&format!("c{n}"), mac(200 + n), 5).client()).unwrap();
    }
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[1514; 5000]);
    assert_idle(&host, 20);
    let time = wake_up_time(&mut a, &mut b, &host);
    assert!(time < Duration::from_millis(20), "{time:?} from a kick to the frame");
    // A guest that left, and one that rang without need.
    drop(b.crash());
    for _ in 0..100 {
        a.vm.guest.tx_mut().kick();
    }
    // The last of them is over when this one is.
    a.send(&numbered(mac(1), mac(2), 1, 0, 60));
    host.settle(&mut [&mut a]);
    assert_idle(&host, 20);
}

#[test]
fn a_polling_host_never_sleeps() {
    let Some(host) = Host::process_with(&HostOptions { poll: true, ..HostOptions::default() })
    else {
        return;
    };
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[1514; 5000]);
    // Rings leave the poll set all the same, and come back with their kick.
    let time = wake_up_time(&mut a, &mut b, &host);
    assert!(time < Duration::from_millis(20), "{time:?} from a kick to the frame");
    let before = host.daemon().cpu_time();
    eventually("it uses its processor", || {
        host.daemon().cpu_time() - before > Duration::from_millis(500)
    });
    assert_eq!(host.work().sleeps, 0);
}

/// A ring without a kick descriptor is looked at by a timer, asleep or not.
#[test]
fn rings_without_kicks_are_served() {
    for poll in [false, true] {
        let host = Host::with(&HostOptions { poll, ..HostOptions::default() });
        let mut config = usual();
        config.start = Start { kick: false, ..Start::default() };
        config.guest.kicks = KickPolicy::Never;
        let mut a = host.station(&Nic::bypass("a", mac(1), 1), &config);
        let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
        for number in 0..100 {
            if number % 10 == 0 {
                eventually("it sleeps", || host.work().active_rings <= 1);
            }
            let frame = numbered(mac(1), mac(2), 1, number, 60);
            a.send(&frame);
            b.expect(&frame);
        }
        let mut both = streams(&a, &b);
        exchange(&mut a, &mut b, &mut both, &[1514; 3000]);
    }
}

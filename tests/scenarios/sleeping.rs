//! An idle host takes little processor time: it sleeps, wakes at a kick, and sleeps again.

use std::time::{Duration, Instant};

use butterfly_guest_driver::{KickPolicy, Start};
use butterfly_tests::{
    Host, HostOptions, Nic, Station, eventually,
    frames::{mac, numbered},
    station::usual,
    traffic::{exchange, streams},
    undisturbed,
};

/// Time for which a host is watched.
const WATCH: Duration = Duration::from_secs(2);

/// Returns how much of a processor an idle host uses, in percent.
fn idle_percent(host: &Host) -> f64 {
    undisturbed(|| {
        // The times in /proc/PID/stat are sampled by the kernel's tick, which is too coarse here.
        let before = host.daemon().cpu_time_of("");
        let begin = Instant::now();
        // The host should do nothing during this time, so there is no event to wait for.
        std::thread::sleep(WATCH);
        let used = host.daemon().cpu_time_of("") - before;
        used.as_secs_f64() * 100.0 / begin.elapsed().as_secs_f64()
    })
}

/// Asserts that a host is idle. It tries the sockets of `unreachable` front ends ten times per
/// second.
#[track_caller]
fn assert_idle(host: &Host, unreachable: u32) {
    eventually("all rings left the poll set", || host.work().active_rings == 0);
    let used = idle_percent(host);
    // Housekeeping takes 0.15 %, each try 0.07 ms; the rest is for slow machines.
    let allowed = 0.6 + 0.2 * f64::from(unreachable);
    assert!(used < allowed, "{used:.1} % of a processor for nothing, more than {allowed:.1}");
    let before = host.work();
    std::thread::sleep(WATCH);
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

/// Returns the median time from sending a frame to its arrival.
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
    // Vnics without guests, also in the client role, and idle guests.
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
    // A guest that left, and one that kicked without need.
    drop(b.crash());
    for _ in 0..100 {
        a.vm.guest.tx_mut().kick();
    }
    // When this frame is processed, the last of the kicks is, too.
    a.send(&numbered(mac(1), mac(2), 1, 0, 60));
    host.settle(&mut [&mut a]);
    assert_idle(&host, 20);
}

/// A hundred guests that do nothing cost less than a hundredth of a processor, and a thousand
/// frames a second a few hundredths: nobody waits for the next one, which comes in a millisecond.
#[test]
fn guests_that_do_little_cost_little() {
    const FRAMES: u32 = 2000;
    let Some(host) = Host::process() else { return };
    let guests = 0..98;
    let _idle: Vec<Station> = guests
        .map(|n| host.station(&Nic::bypass(&format!("i{n}"), mac(1000 + n), 5), &usual()))
        .collect();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    eventually("all rings left the poll set", || host.work().active_rings == 0);
    let used = idle_percent(&host);
    println!("100 idle guests: {used:.2} % of a processor");
    assert!(used < 1.0, "{used:.2} % of a processor for 100 idle guests");
    let (before, begin) = (host.daemon().cpu_time_of(""), Instant::now());
    for number in 0..FRAMES {
        let frame = numbered(mac(1), mac(2), 1, number.into(), 60);
        a.send(&frame);
        b.expect(&frame);
        std::thread::sleep(
            (begin + Duration::from_millis(1) * number).saturating_duration_since(Instant::now()),
        );
    }
    let rate = f64::from(FRAMES) / begin.elapsed().as_secs_f64();
    let used = host.daemon().cpu_time_of("") - before;
    let percent = used.as_secs_f64() * 100.0 / begin.elapsed().as_secs_f64();
    println!("{rate:.0} frames a second: {percent:.2} % of a processor");
    assert!(percent < 8.0, "{percent:.2} % of a processor for {rate:.0} frames a second");
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
    // Rings still leave the poll set, and come back with a kick.
    let time = wake_up_time(&mut a, &mut b, &host);
    assert!(time < Duration::from_millis(20), "{time:?} from a kick to the frame");
    let before = host.daemon().cpu_time();
    eventually("it uses its processor", || {
        host.daemon().cpu_time() - before > Duration::from_millis(500)
    });
    assert_eq!(host.work().sleeps, 0);
}

/// A timer serves rings without a kick descriptor, whether the worker sleeps or polls.
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

//! Limits of vnics, in a daemon whose worker sleeps while senders wait.

use std::time::{Duration, Instant};

use butterfly_tests::{
    Host, Nic, Station, eventually,
    frames::{mac, numbered},
    station::usual,
    traffic::{exchange, streams},
};

const RUN: Duration = Duration::from_secs(1);

/// Has `a` send whenever there is room in its ring. Returns how many frames arrived at `b`, and in
/// how many seconds.
fn flood(a: &mut Station, b: &mut Station, len: usize) -> (u64, f64) {
    let frames: Vec<Vec<u8>> =
        (0..32).map(|number| numbered(a.mac(), b.mac(), 1, number, len)).collect();
    let (mut got, begin) = (0, Instant::now());
    while begin.elapsed() < RUN {
        a.vm.guest.send_batch(&frames).unwrap();
        while b.vm.guest.recv().unwrap().is_some() {
            got += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    (got, begin.elapsed().as_secs_f64())
}

fn update(host: &Host, words: &str) {
    let words: Vec<&str> = ["nic", "update", "--id"].into_iter().chain(words.split(' ')).collect();
    host.daemon().client_ok(&words);
}

/// A limited sender gets its rate, and costs next to nothing; an unlimited one beside it loses
/// nothing. Limits change while traffic runs.
#[test]
fn a_limited_sender_gets_its_rate_and_a_sleeping_worker() {
    let Some(host) = Host::process() else { return };
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    // It takes all that waits for it at once, though this thread is kept from its processor, too.
    let mut roomy = usual();
    roomy.guest = roomy.guest.rings(1024);
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &roomy);
    let mut c = host.station(&Nic::bypass("c", mac(3), 2), &usual());
    let mut d = host.station(&Nic::bypass("d", mac(4), 2), &usual());
    let mut both = streams(&c, &d);
    let rate_of = |a: &mut Station, b: &mut Station, len: usize| {
        flood(a, b, len); // what is left of another limit
        let used = host.daemon().cpu_time_of("");
        let (got, seconds) = flood(a, b, len);
        let used = (host.daemon().cpu_time_of("") - used).as_secs_f64() / seconds;
        (got as f64 / seconds, used)
    };
    // Others use this machine, too. What a daemon did not let through while it was kept from a
    // processor, for up to a tenth of a second, goes afterwards.
    update(&host, "a --limit-in-packets 2k --limit-in-packet-burst 200");
    let (rate, used) = rate_of(&mut a, &mut b, 60);
    println!("{rate:.0} packets/s, {:.1} % of a processor", used * 100.0);
    assert!((1900.0..2050.0).contains(&rate), "{rate} packets/s");
    assert!(used < 0.2, "{:.1} % of a processor for 2,000 packets a second", used * 100.0);
    update(&host, "a --limit-in 40M --limit-in-burst 500000");
    let (rate, _) = rate_of(&mut a, &mut b, 1000);
    println!("{rate:.0} packets/s of 1,000 bytes");
    assert!((4700.0..5150.0).contains(&rate), "{rate} packets/s of 1,000 bytes");
    exchange(&mut c, &mut d, &mut both, &[1514; 5000]);
    for id in ["a", "b", "c", "d"] {
        assert!(host.show(id).dropped().is_empty(), "{:?}", host.show(id).dropped());
    }
    let shown = host.daemon().client_ok(&["nic", "show", "a"]);
    assert!(
        shown.contains(
            "limit in          40M bits/s (500k bytes at once); the machine's queue had to wait "
        ),
        "{shown}"
    );
    // What is sent to a limited receiver is dropped.
    update(&host, "a --limit-in 0");
    update(&host, "b --limit-out-packets 3k --limit-out-packet-burst 300");
    let (rate, _) = rate_of(&mut a, &mut b, 60);
    println!("{rate:.0} packets/s");
    assert!((2800.0..3100.0).contains(&rate), "{rate} packets/s");
    assert!(host.show("b").drops("rate-limited") > 10_000);
    update(&host, "b --limit-out 0");
    eventually("all waiting frames went", || {
        while b.vm.guest.recv().unwrap().is_some() {}
        let queue = host.show("a").queues.into_iter().find(|queue| queue.name == "tx").unwrap();
        queue.used as u16 == queue.guest_avail as u16
    });
    let dump = host.daemon().client_ok(&["dump"]);
    assert!(!dump.contains("limit"), "{dump}");
}

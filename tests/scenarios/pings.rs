//! BENCH vnics: pings inside the switch (contract 4.10).

use std::{
    fs,
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
};

use butterfly_api::proto::{NicStats, Request};
use butterfly_packet::ipv4::Ipv4;
use butterfly_tests::{
    Daemon, Host, Nic, eventually,
    frames::mac,
    station::usual,
    traffic::{exchange, streams},
};

use crate::containers::{VNI, bench, declare};

fn stats(daemon: &Daemon, id: &str) -> NicStats {
    let answer = daemon.ask(Request { nic_stats: Some(id.to_owned()), ..Request::default() });
    answer.unwrap().nic_stats.unwrap()
}

/// Returns the measurements on standard output: count, minimum, mean, maximum.
fn told(daemon: &Daemon) -> Vec<(u64, f64, f64, f64)> {
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.starts_with("ping time for "));
    let words = lines.map(|line| line.split(' ').collect::<Vec<_>>());
    words
        .map(|words| {
            (
                words[3].parse().unwrap(),
                words[6].parse().unwrap(),
                words[8].parse().unwrap(),
                words[10].parse().unwrap(),
            )
        })
        .collect()
}

/// A VM receives the generator's echo requests with rising numbers.
#[test]
fn a_generator_asks_one_after_the_other() {
    let Some(host) = Host::process() else { return };
    let mut vm = host.station(&Nic::bypass("vm", mac(2), VNI), &usual());
    assert_eq!(declare(host.daemon(), bench("snd", 1, "ICMP_SND_LIKE", Some(2))).unwrap(), "(nil)");
    let mut next = None;
    for _ in 0..3 {
        let frame = vm.receive();
        assert_eq!((frame.len(), &frame[..6], &frame[6..12]), (98, &mac(2).0[..], &mac(1).0[..]));
        let ip = Ipv4::parse(&frame[14..]).unwrap();
        assert_eq!(
            (ip.source(), ip.destination()),
            (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))
        );
        // An echo request, with the identifier that the original uses.
        assert_eq!((&frame[34..36], &frame[38..40]), (&[8, 0][..], &[0x0b, 0xb0][..]));
        let number = u16::from_be_bytes([frame[40], frame[41]]);
        assert!(next.is_none_or(|next| next == number), "{number} is not {next:?}");
        next = Some(number + 1);
    }
}

#[test]
fn a_generator_measures_what_another_answers() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    assert_eq!(declare(daemon, bench("rcv", 2, "ICMP_RCV_LIKE", None)).unwrap(), "(nil)");
    assert_eq!(declare(daemon, bench("snd", 1, "ICMP_SND_LIKE", Some(2))).unwrap(), "(nil)");
    let line =
        || daemon.log().lines().find(|line| line.starts_with("ping time for ")).map(str::to_owned);
    eventually("a measurement", || line().is_some());
    let line = line().unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    let mean: f64 = words[8].parse().unwrap();
    assert!(words[3].parse::<u64>().unwrap() >= 1024 && mean > 0.0, "{line}");
    let stats = |id: &str| stats(daemon, id);
    let sender = stats("snd");
    assert!(sender.pings.replies() >= 1024 && sender.pings.requests() >= sender.pings.replies());
    assert!(
        sender.pings.min_ns() <= sender.pings.mean_ns()
            && sender.pings.mean_ns() <= sender.pings.max_ns()
    );
    // Counted from the generator's own end: 98 bytes for each request that it sent.
    assert!(
        sender.out() >= 98 * 1024 && sender.in_() >= 98 * 1024 && sender.out() % 98 == 0,
        "{sender}"
    );
    assert!(daemon.client_ok(&["nic", "stats", "snd"]).contains("\nmin/mean/max: "));
    let graph = daemon.client_ok(&["status"]);
    assert!(
        graph.contains("\"rxtx:bench-snd-snd\" [") && graph.contains("\"rxtx:bench-rcv-rcv\" ["),
        "{graph}"
    );
    // Without answers the generator goes on, slowly.
    host.remove("rcv");
    let before = stats("snd").pings.requests();
    eventually("it asks", || stats("snd").pings.requests() > before);
    let dump = host.dir().join("dump");
    fs::write(&dump, daemon.client_ok(&["dump"])).unwrap();
    host.remove("snd");
    daemon.client_ok(&["request", dump.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&dump).unwrap(), daemon.client_ok(&["dump"]));
}

/// Ends the other traffic when it is dropped, also after a panic.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While other traffic keeps the worker busy, each request is still answered and counted once, and
/// the figures stay consistent.
#[test]
fn a_generator_measures_beside_heavy_traffic() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let (mut a, mut b) = (
        host.station(&Nic::bypass("a", mac(11), VNI), &usual()),
        host.station(&Nic::bypass("b", mac(12), VNI), &usual()),
    );
    declare(daemon, bench("rcv", 2, "ICMP_RCV_LIKE", None)).unwrap();
    declare(daemon, bench("snd", 1, "ICMP_SND_LIKE", Some(2))).unwrap();
    let ended = AtomicBool::new(false);
    let (samples, moved) = std::thread::scope(|scope| {
        let ending = Ending(&ended);
        let load = scope.spawn(|| {
            let mut both = streams(&a, &b);
            while !ended.load(Ordering::Relaxed) {
                exchange(&mut a, &mut b, &mut both, &[1400; 256]);
            }
            both.iter().map(|stream| stream.received).sum::<u64>()
        });
        let mut samples = vec![stats(daemon, "snd")];
        while samples.len() < 6 {
            let enough = samples.last().map_or(0, |last| last.pings.replies()) + 1024;
            eventually("a thousand answers more", || {
                stats(daemon, "snd").pings.replies() >= enough
            });
            samples.push(stats(daemon, "snd"));
        }
        drop(ending);
        (samples, load.join().unwrap())
    });
    let pings: Vec<_> = samples.iter().skip(1).map(|sample| &sample.pings).collect();
    for now in &pings {
        assert!(
            0 < now.min_ns() && now.min_ns() <= now.mean_ns() && now.mean_ns() <= now.max_ns(),
            "{now:?}"
        );
        assert!(now.replies() <= now.requests(), "{now:?}");
    }
    for (before, now) in pings.iter().zip(&pings[1..]) {
        assert!(
            now.min_ns() <= before.min_ns() && now.max_ns() >= before.max_ns(),
            "{before:?}, then {now:?}"
        );
    }
    let requests = pings[4].requests();
    assert!(moved > requests, "{moved} frames went beside {requests} pings: no load");
    // Only counted drops were lost, and each request counts 98 bytes at the generator's own end.
    let lost = |id: &str| host.show(id).all_drops();
    eventually("what was asked is answered", || {
        let now = stats(daemon, "snd");
        now.pings.requests() - now.pings.replies() <= 1 + lost("snd") + lost("rcv")
    });
    let (before, now, after) = (stats(daemon, "snd"), stats(daemon, "snd"), stats(daemon, "snd"));
    // The worker has sent all requests but those of this moment.
    let sent = now.out() / 98;
    assert!(
        now.out() % 98 == 0
            && before.pings.requests() <= sent + 64
            && sent <= after.pings.requests() + 1,
        "{before} {now} {after}"
    );

    let told = told(daemon);
    for (count, min, mean, max) in &told {
        // Minimum and maximum are whole microseconds.
        assert!(*count >= 1024 && *min <= *mean && *mean <= *max + 1.0, "{told:?}");
    }
    let counted: u64 = told.iter().map(|line| line.0).sum();
    let replies = stats(daemon, "snd").pings.replies();
    assert!(counted <= replies && told.len() >= 4, "{told:?} of {replies}");
}

//! Limits of vnics: what a guest sends beyond its limit waits in its ring, and what is sent to it
//! beyond its limit is dropped by name.

use std::time::{Duration, Instant};

use butterfly_datapath::{
    Mac, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Limit, Limits};
use butterfly_packet::{
    build::{self, Checksum},
    tcp,
};
use butterfly_vhost::net::{Features, NetHeader};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const PLAIN: Features = Features::VERSION_1;
const RUN: Duration = Duration::from_millis(200);

fn policy(limits: Limits) -> VnicPolicy {
    VnicPolicy { bypass: true, limits, ..VnicPolicy::default() }
}

fn limit(bits: u64, packets: u64) -> Limit {
    Limit::new(bits, packets, 0, 0).unwrap()
}

/// Guests "a" and "b" with such limits; "b" has these features.
fn pair(a: Limits, b: Limits, features: Features) -> Host {
    let mut host = Host::new().unwrap();
    host.declare("a", A, 1, &policy(a)).unwrap();
    host.declare("b", B, 1, &policy(b)).unwrap();
    let config = GuestConfig { max_frame: 65_550, ..GuestConfig::default() }.rings(256);
    host.attach("a", LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    let config = GuestConfig::default().rings(1024);
    host.attach("b", features, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    host.settle();
    // Both limiters begin full.
    host.moved();
    host
}

/// Returns a frame with a number.
fn numbered(to: Mac, number: u64, len: usize) -> Vec<u8> {
    let mut payload = vec![0x5a; len - 14];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    build::ethernet(A, to).payload(0x88b5, &payload)
}

fn number_of(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[14..22].try_into().unwrap())
}

/// Traffic of some time.
#[derive(Debug, Default)]
struct Played {
    sent: u64,
    /// Most frames that waited in the ring of "a".
    waited: u64,
    /// Numbers and lengths of what "b" got.
    got: Vec<(u64, usize)>,
    seconds: f64,
    /// Those in which this thread had a processor.
    worked: f64,
}

/// Returns the time in which this thread had a processor.
fn worked() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

impl Played {
    fn bytes(&self) -> u64 {
        self.got.iter().map(|(_, len)| *len as u64).sum()
    }

    /// Checks that so many went as a rate and a burst allow, and not much less.
    fn check(&self, went: u64, rate: u64, burst: u64, one: u64) {
        let due = |seconds: f64| burst as f64 + rate as f64 * seconds;
        let went = went as f64;
        // The last frame may go into debt. A busy machine costs time between two looks, in which
        // no more than a burst is kept.
        let (most, least) = (due(self.seconds), due(self.worked));
        assert!(went <= most + one as f64 + 1.0, "{went} of {most} in {} s", self.seconds);
        assert!(went >= least * 0.7 - one as f64, "{went} of {least} in {} s", self.worked);
    }
}

/// Has "a" send whenever there is room in its ring.
fn play(host: &mut Host, mut next: impl FnMut(u64) -> (Vec<u8>, NetHeader)) -> Played {
    let mut played = Played::default();
    let (begin, idle) = (Instant::now(), worked());
    while begin.elapsed() < RUN {
        let guest = host.guest("a").unwrap();
        guest.reclaim().unwrap();
        for _ in 0..8 {
            let (frame, header) = next(played.sent);
            if guest.enqueue(&frame, header).is_err() {
                break;
            }
            played.sent += 1;
        }
        guest.flush();
        host.turn();
        let got = host.received().unwrap().remove("b").unwrap_or_default();
        played.got.extend(got.iter().map(|(_, frame)| (number_of(frame), frame.len())));
        played.waited = played.waited.max(played.sent.saturating_sub(played.got.len() as u64));
    }
    (played.seconds, played.worked) = (begin.elapsed().as_secs_f64(), worked() - idle);
    played
}

/// Plays frames of one length.
fn play_plain(host: &mut Host, len: usize) -> Played {
    play(host, |number| (numbered(B, number, len), NetHeader::default()))
}

#[test]
fn a_sender_waits_and_loses_nothing() {
    for (limit, len, rate, burst) in [
        (limit(0, 20_000), 60, 20_000, 200),
        (limit(0, 333), 60, 333, 3),
        (limit(80_000_000, 0), 1514, 10_000_000, 100_000),
        (limit(80_000_000, 1_000_000), 60, 10_000_000, 100_000),
    ] {
        let from = Limits { from_guest: limit, ..Limits::default() };
        let mut host = pair(from, Limits::default(), PLAIN);
        let played = play_plain(&mut host, len);
        let in_bytes = limit.bits() > 0;
        let went = if in_bytes { played.bytes() } else { played.got.len() as u64 };
        played.check(went, rate, burst, if in_bytes { len as u64 } else { 1 });
        // In order, each once, and what is missing waits in the ring.
        assert!(played.got.iter().map(|(number, _)| *number).eq(0..played.got.len() as u64));
        // At the very end the machine may have stood still, and nothing waits.
        assert!((1..=256).contains(&played.waited), "{}", played.waited);
        let moved = host.moved();
        assert!(moved.keys().all(|name| !name.contains("drop")), "{moved:?}");
        assert_eq!(moved["a.in.packets"], played.got.len() as u64);
        assert!(host.observe().vnics.iter().any(|vnic| &*vnic.id == "a" && vnic.limit_waits > 0));
    }
}

/// Returns a frame that is to be cut into ten.
fn segment(_: u64) -> (Vec<u8>, NetHeader) {
    let ip = build::ethernet(A, B).ipv4([10, 0, 0, 1], [10, 0, 0, 2]);
    let tcp = build::Tcp::new(4000, 80, tcp::ACK);
    let frame = ip.checksum(Checksum::Partial).tcp(&tcp, &[7; 14_600]);
    let header = NetHeader {
        flags: NetHeader::FLAG_NEEDS_CSUM,
        gso_type: NetHeader::GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1460,
        csum_start: 34,
        csum_offset: 16,
        ..NetHeader::default()
    };
    (frame, header)
}

/// A frame that is cut into pieces counts as its pieces, and may be larger than what is left.
#[test]
fn large_segments_count_as_their_pieces() {
    for features in [PLAIN, LINUX] {
        let from = Limits { from_guest: limit(0, 2000), ..Limits::default() };
        let mut host = pair(from, Limits::default(), features);
        let played = play(&mut host, segment);
        let frames = host.moved()["a.in.packets"];
        played.check(frames * 10, 2000, 20, 10);
        let to = Limits { to_guest: limit(0, 2000), ..Limits::default() };
        let mut host = pair(Limits::default(), to, features);
        let played = play(&mut host, segment);
        let moved = host.moved();
        let frames = moved["a.in.packets"] - moved["b.drop.rate-limited"];
        played.check(frames * 10, 2000, 20, 10);
    }
}

/// A batch of large segments that waits when there is room again goes as far as that room.
#[test]
fn a_batch_of_large_segments_goes_as_far_as_its_packets() {
    for features in [PLAIN, LINUX] {
        let from = Limits { from_guest: Limit::new(0, 10, 0, 40).unwrap(), ..Limits::default() };
        let mut host = pair(from, Limits::default(), features);
        for number in 0..8 {
            let guest = host.guest("a").unwrap();
            let (frame, header) = segment(number);
            guest.enqueue(&frame, header).unwrap();
        }
        host.guest("a").unwrap().flush();
        host.settle();
        // Ten packets each.
        assert_eq!(host.moved()["a.in.packets"], 4);
    }
}

#[test]
fn what_a_guest_gets_beyond_its_limit_is_dropped_by_name() {
    for (limit, len, rate, burst) in
        [(limit(0, 20_000), 60, 20_000, 200), (limit(80_000_000, 0), 1514, 10_000_000, 100_000)]
    {
        let to = Limits { to_guest: limit, ..Limits::default() };
        let mut host = pair(Limits::default(), to, PLAIN);
        let played = play_plain(&mut host, len);
        let in_bytes = limit.bits() > 0;
        let went = if in_bytes { played.bytes() } else { played.got.len() as u64 };
        played.check(went, rate, burst, if in_bytes { len as u64 } else { 1 });
        let moved = host.moved();
        assert_eq!(moved["b.out.packets"], played.got.len() as u64);
        assert_eq!(
            moved["a.in.packets"],
            moved["b.out.packets"] + moved["b.drop.rate-limited"],
            "{moved:?}"
        );
        assert!(played.got.is_sorted());
    }
}

/// A frame that came alone has a way of its own through delivery.
#[test]
fn frames_that_come_alone_are_limited_too() {
    let one = Limit::new(0, 1, 0, 3).unwrap();
    let mut host = pair(Limits::default(), Limits { to_guest: one, ..Limits::default() }, PLAIN);
    for number in 0..8 {
        host.send("a", &numbered(B, number, 60), NetHeader::default()).unwrap();
    }
    let moved = host.moved();
    assert_eq!(host.received().unwrap()["b"].len(), 3);
    assert_eq!((moved["b.out.packets"], moved["b.drop.rate-limited"]), (3, 5));
}

/// Floods take several turns: they are charged once, and sent once.
#[test]
fn a_flood_is_charged_once() {
    let from = Limits { from_guest: Limit::new(0, 1, 0, 2).unwrap(), ..Limits::default() };
    let mut host = pair(from, Limits::default(), PLAIN);
    for n in 0..200 {
        host.declare(&format!("r{n}"), Mac([2, 1, 0, 0, 0, n]), 1, &policy(Limits::default()))
            .unwrap();
    }
    host.moved();
    for number in 0..4 {
        let guest = host.guest("a").unwrap();
        let all = Mac([0xff; 6]);
        guest.enqueue(&numbered(all, number, 60), NetHeader::default()).unwrap();
        guest.flush();
    }
    host.settle();
    let moved = host.moved();
    assert_eq!(moved["a.in.packets"], 2);
    assert_eq!(host.received().unwrap()["b"].len(), 2);
    assert!((0..200).all(|n| moved[&format!("r{n}.drop.not-attached")] == 2), "{moved:?}");
}

/// A limit that is raised or taken away counts after a tenth of a second.
#[test]
fn a_limit_that_goes_sets_free_what_waits() {
    let from = Limits { from_guest: Limit::new(0, 1, 0, 1).unwrap(), ..Limits::default() };
    let mut host = pair(from, Limits::default(), PLAIN);
    for number in 0..100 {
        let guest = host.guest("a").unwrap();
        guest.enqueue(&numbered(B, number, 60), NetHeader::default()).unwrap();
        guest.flush();
    }
    host.settle();
    assert_eq!(host.received().unwrap()["b"].len(), 1);
    host.update("a", &policy(Limits::default())).unwrap();
    let (begin, idle) = (Instant::now(), worked());
    let mut got = 0;
    while got < 99 && begin.elapsed() < Duration::from_secs(2) {
        host.turn();
        got += host.received().unwrap().get("b").map_or(0, Vec::len);
    }
    assert_eq!(got, 99);
    // Of time in which this thread had a processor: it looks all the time.
    assert!(worked() - idle < 0.2, "{} s", worked() - idle);
}

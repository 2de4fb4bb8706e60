//! A tunnel through a network interface (AF_XDP) outlasts the daemon: a crash, a restart and an
//! upgrade. Two hosts are two network namespaces with a wire between them.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::{
    containers::{Netns, container},
    lasting::Place,
    upgrade::refused,
};
use butterfly_tests::{
    Daemon, Host, Nic, PATIENCE, Station, eventually,
    frames::{mac, pattern},
    station::usual,
    traffic::{Stream, exchange, streams},
};

/// Frames that fit through the tunnel.
const SIZES: [usize; 3] = [60, 700, 1514];

/// Two hosts. The daemon of the near one keeps its state.
pub(crate) struct Two {
    pub(crate) near: Netns,
    far: Netns,
    pub(crate) place: Place,
}

/// The side that answers for the tunnel endpoints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// The host's kernel has the address on the interface.
    Kernel,
    /// Only the daemon has it.
    Daemon,
}

impl Two {
    pub(crate) fn new(answers: Answers) -> Option<Two> {
        let place = Place::new()?;
        let (near, far) = (Netns::new(), Netns::new());
        for host in [&near, &far] {
            host.run("sysctl -qw net.ipv6.conf.default.disable_ipv6=1");
        }
        let two = Two { near, far, place };
        two.wire(answers);
        Some(two)
    }

    /// Makes the wire between the hosts.
    fn wire(&self, answers: Answers) {
        let Two { near, far, .. } = self;
        near.run(&format!("ip link add wire type veth peer name wire netns {}", far.0));
        for (host, number) in [(near, 1), (far, 2)] {
            // Kernels leave checksums to a card, which a veth is not.
            host.run("ethtool -K wire tx off");
            if answers == Answers::Kernel {
                host.run(&format!("ip addr add 42.0.0.{number}/24 dev wire"));
            }
            host.run("ip link set wire mtu 1600 up");
        }
    }

    fn options(number: u8, uplink: &str, more: &[String]) -> Vec<String> {
        let (own, other) = (format!("42.0.0.{number}/24"), format!("42.0.0.{}", 3 - number));
        let own = ["--ip", &own, "--uplink", uplink, "--peer", &other].map(str::to_owned);
        own.into_iter().chain(more.iter().cloned()).collect()
    }

    fn start_by(&self, uplink: &str) -> Host {
        let options = Two::options(1, uplink, &self.place.options());
        let before = ["ip", "netns", "exec", &self.near.0];
        Host::of(Daemon::start_in(self.place.0.path(), &before, &options))
    }

    /// Starts the daemon of the near host.
    pub(crate) fn start(&self) -> Host {
        self.start_by("wire")
    }

    /// Starts the other one, which stays.
    pub(crate) fn start_far(&self) -> Host {
        let before = ["ip", "netns", "exec", &self.far.0];
        Host::of(Daemon::start_with(&before, &Two::options(2, "wire", &self.place.1)))
    }

    fn program_is_attached(&self) -> bool {
        self.near.run("ip -o link show dev wire").contains("xdp")
    }
}

fn die(host: &mut Host) {
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
}

/// Returns a vnic on each host, which know each other.
fn stations(near: &mut Host, far: &mut Host) -> ([Station; 2], [Stream; 2]) {
    let mut a = near.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = far.station(&Nic::bypass("b", mac(2), 1), &usual());
    for host in [&near, &far] {
        eventually("the other host is found", || {
            let told = host.daemon().client_ok(&["tunnels", "--json"]);
            let told: serde_json::Value = serde_json::from_str(&told).unwrap();
            told["peers"].as_array().unwrap().iter().any(|peer| peer["mac"].is_string())
        });
    }
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    ([a, b], both)
}

/// Sets it when dropped, so that a test that fails ends.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the account of the uplink that the newest daemon gives.
fn account(host: &Host) -> String {
    let shown = host.daemon().client_ok(&["show"]);
    let (_, uplink) = shown.split_once("; uplink: ").unwrap_or_else(|| panic!("{shown}"));
    uplink.split(['\n', ';']).next().unwrap().to_owned()
}

/// Returns the counters of the port and the kernel.
fn counters(host: &Host) -> BTreeMap<String, u64> {
    let told = host.daemon().client_ok(&["uplink", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let rows = told["counters"].as_array().unwrap();
    let row = |row: &serde_json::Value| {
        (row["name"].as_str().unwrap().to_owned(), row["value"].as_u64().unwrap())
    };
    rows.iter().map(row).collect()
}

/// Sends a frame each way in each interval until it is told to stop. Returns the longest time
/// without a frame at each end.
fn keep_talking(
    [a, b]: &mut [Station; 2],
    both: &mut [Stream; 2],
    every: Duration,
    stop: &AtomicBool,
) -> [Duration; 2] {
    let begun = Instant::now();
    let (mut last, mut longest) = ([begun; 2], [Duration::ZERO; 2]);
    let mut next = begun;
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() >= next {
            next += every;
            // A ring that is full takes no more: its guest waits, and loses nothing.
            for _ in 0..if every.is_zero() { 32 } else { 1 } {
                both[0].send(a, SIZES[both[0].sent as usize % 3]);
                both[1].send(b, SIZES[both[1].sent as usize % 3]);
            }
        }
        for (direction, to) in [(0, &mut *b), (1, &mut *a)] {
            if both[direction].take_all(to) > 0 {
                longest[direction] = longest[direction].max(last[direction].elapsed());
                last[direction] = Instant::now();
            }
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    longest
}

/// Takes what is under way.
fn settle([a, b]: &mut [Station; 2], both: &mut [Stream; 2]) {
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(300) {
        if both[0].take_all(b) + both[1].take_all(a) > 0 {
            quiet = Instant::now();
        }
    }
}

/// The streams go on after frames were lost.
fn forgive(both: &mut [Stream; 2]) -> u64 {
    let lost = both[0].missing() + both[1].missing();
    both.iter_mut().for_each(|stream| stream.received = stream.sent);
    lost
}

/// Frames that arrive while no daemon runs wait in the socket, and those that waited to be sent
/// leave: nothing is lost, comes twice or is changed.
#[test]
fn what_comes_without_a_daemon_waits() {
    for answers in [Answers::Kernel, Answers::Daemon] {
        let Some(two) = Two::new(answers) else { return };
        let (mut near, mut far) = (two.start(), two.start_far());
        let (mut pair, mut both) = stations(&mut near, &mut far);
        for _ in 0..5 {
            let [a, b] = &mut pair;
            exchange(a, b, &mut both, &SIZES.repeat(30));
            let before = counters(&near);
            die(&mut near);
            assert!(two.program_is_attached());
            for n in 0..60 {
                assert!(both[0].send(a, SIZES[n % 3]) && both[1].send(b, SIZES[n % 3]));
            }
            near = two.start();
            eventually("all of them", || {
                both[0].take_all(&mut pair[1]);
                both[1].take_all(&mut pair[0]);
                both[0].missing() + both[1].missing() == 0
            });
            assert_eq!(account(&near), "taken over");
            let now = counters(&near);
            assert!(before.iter().all(|(name, n)| now[name] >= *n), "{before:?}, then {now:?}");
            assert!(now["received"] >= before["received"] + 60, "{before:?}, then {now:?}");
        }
        let events = near.daemon().client_ok(&["events"]);
        assert_eq!(events.matches("uplink: taken over").count(), 5, "{events}");
        near.daemon_mut().quit();
        assert!(!two.program_is_attached());
        eventually("the holder ends", || two.place.holder().is_none());
    }
}

/// Ten deaths in mid traffic, then ten upgrades: no frame twice, none changed, and few lost. Says
/// for how long the tunnel stood still. With `BUTTERFLY_ANEW` set and `BIN` naming programs that
/// open the uplink anew, it says what that costs.
#[test]
fn a_tunnel_outlasts_deaths_and_upgrades() {
    let Some(two) = Two::new(Answers::Kernel) else { return };
    let (mut near, mut far) = (two.start(), two.start_far());
    let (mut pair, mut both) = stations(&mut near, &mut far);
    for (name, most_lost) in [("death", 128), ("upgrade", 0)] {
        let (mut still, mut lost) = (Vec::new(), 0);
        for _ in 0..10 {
            let stop = AtomicBool::new(false);
            let longest = std::thread::scope(|scope| {
                let talk = || keep_talking(&mut pair, &mut both, Duration::from_millis(1), &stop);
                let talking = scope.spawn(talk);
                let end = AtEnd(&stop);
                std::thread::sleep(Duration::from_millis(200));
                if name == "death" {
                    die(&mut near);
                    near = two.start();
                } else {
                    near.daemon().client_ok(&["upgrade"]);
                }
                std::thread::sleep(Duration::from_millis(300));
                drop(end);
                talking.join().unwrap()
            });
            settle(&mut pair, &mut both);
            let now = forgive(&mut both);
            let anew = std::env::var_os("BUTTERFLY_ANEW").is_some();
            assert!(anew || now <= most_lost, "{now} frames were lost by one {name}");
            lost += now;
            still.push(longest.map(|time| time.as_millis()));
            if std::env::var_os("BUTTERFLY_ANEW").is_none() {
                assert!(account(&near).starts_with("taken over"), "{}", account(&near));
            }
        }
        still.sort_unstable();
        println!("{name}: {lost} frames lost by ten; ms without a frame, out and in: {still:?}");
    }
    near.daemon_mut().quit();
    assert!(!two.program_is_attached());
}

/// Deaths under load, with full batches in the worker's hands and in the rings. Of what leaves, a
/// batch is lost at most by each: the guest's ring holds the rest. More arrives meanwhile than the
/// socket can hold, but none of it comes twice, late or changed.
#[test]
fn a_death_under_load_repeats_nothing() {
    let Some(two) = Two::new(Answers::Daemon) else { return };
    let (mut near, mut far) = (two.start(), two.start_far());
    let (mut pair, mut both) = stations(&mut near, &mut far);
    let (mut out, mut before) = (Vec::new(), far.show("b").all_drops());
    for round in 0..10 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let talking = scope.spawn(|| keep_talking(&mut pair, &mut both, Duration::ZERO, &stop));
            let end = AtEnd(&stop);
            std::thread::sleep(Duration::from_millis(100 + 7 * round));
            die(&mut near);
            near = two.start();
            std::thread::sleep(Duration::from_millis(100));
            drop(end);
            talking.join().unwrap()
        });
        settle(&mut pair, &mut both);
        assert!(account(&near).starts_with("taken over"), "{}", account(&near));
        // The far guest is not always fast enough for all that waited.
        let dropped = far.show("b").all_drops();
        out.push(both[0].missing() - (dropped - before));
        before = dropped;
        forgive(&mut both);
    }
    println!("lost of {} frames that left, by each death: {out:?}", both[0].sent);
    assert!(out.iter().all(|lost| *lost <= 64), "{out:?}");
    near.daemon_mut().quit();
}

/// The card listens to the groups of networks while no daemon runs.
#[test]
fn groups_are_listened_to_without_a_daemon() {
    let Some(two) = Two::new(Answers::Daemon) else { return };
    let start = || {
        let mut options = two.place.options();
        options.extend(["--ip", "42.0.0.1/24", "--uplink", "wire"].map(str::to_owned));
        let before = ["ip", "netns", "exec", &two.near.0];
        Host::of(Daemon::start_in(two.place.0.path(), &before, &options))
    };
    let listens = || two.near.run("ip maddr show dev wire").contains("01:00:5e:00:00:2a");
    let mut near = start();
    near.add(&Nic::bypass("a", mac(1), 42)).unwrap();
    eventually("the group of network 42", listens);
    for _ in 0..2 {
        die(&mut near);
        assert!(listens());
        near = start();
        assert!(listens());
    }
    std::thread::sleep(Duration::from_secs(12));
    assert!(listens(), "ours are joined");
    near.remove("a");
    eventually("the group is left", || !listens());
    near.daemon_mut().quit();
}

/// A TCP connection of two kernels through the tunnel goes on, and each byte is right.
#[test]
fn tcp_goes_on_through_the_tunnel() {
    let Some(two) = Two::new(Answers::Kernel) else { return };
    let (mut near, far) = (two.start(), two.start_far());
    let (a, b) = (container(near.daemon(), "tap-a", 1), container(far.daemon(), "tap-b", 2));
    eventually("the other container answers", || a.pings("10.0.0.2"));
    let listener = b.inside(|| TcpListener::bind("10.0.0.2:7000").unwrap());
    let stop = AtomicBool::new(false);
    let (sent, received, longest) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut stream = a.inside(|| TcpStream::connect("10.0.0.2:7000").unwrap());
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                stream.write_all(&pattern(sent, 64 << 10)).unwrap();
                sent += 1;
            }
            stream.shutdown(Shutdown::Write).unwrap();
            sent
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let receiving = scope.spawn(move || {
            let (mut received, mut longest) = (0, Duration::ZERO);
            let mut bytes = vec![0; 64 << 10];
            loop {
                let mut at = 0;
                while at < bytes.len() {
                    let begun = Instant::now();
                    match stream.read(&mut bytes[at..]).unwrap() {
                        0 if at == 0 => return (received, longest),
                        0 => panic!("the connection ended within a block"),
                        len => at += len,
                    }
                    longest = longest.max(begun.elapsed());
                }
                assert!(bytes == pattern(received, bytes.len()), "block {received} was changed");
                received += 1;
            }
        });
        let end = AtEnd(&stop);
        for round in 0..8 {
            std::thread::sleep(Duration::from_millis(400));
            if round % 2 == 0 {
                die(&mut near);
                near = two.start();
            } else {
                near.daemon().client_ok(&["upgrade"]);
            }
        }
        std::thread::sleep(Duration::from_millis(400));
        drop(end);
        let (received, longest) = receiving.join().unwrap();
        (sending.join().unwrap(), received, longest)
    });
    println!("{received} blocks of 64 KiB; longest time without a byte: {longest:?}");
    assert_eq!(sent, received);
    assert!(received > 100, "{received} blocks arrived");
    near.daemon_mut().quit();
}

/// Parts of a former daemon that do not fit are ended, and another uplink is opened; the daemon
/// says why.
#[test]
fn an_uplink_that_does_not_fit_is_opened_anew() {
    let Some(two) = Two::new(Answers::Kernel) else { return };
    let (mut near, mut far) = (two.start(), two.start_far());
    let (mut pair, mut both) = stations(&mut near, &mut far);
    die(&mut near);
    two.near.run("ip link set wire mtu 2500");
    near = two.start();
    assert_eq!(account(&near), "opened anew: the interface's MTU needs other chunks now");
    assert!(near.daemon().log().contains("the uplink is opened anew"), "{}", near.daemon().log());
    let talks = |pair: &mut [Station; 2], both: &mut [Stream; 2]| {
        eventually("frames pass again", || {
            both[0].send(&mut pair[0], 60);
            both[1].send(&mut pair[1], 60);
            settle(pair, both);
            forgive(both) == 0
        });
    };
    talks(&mut pair, &mut both);
    // That one outlasts the next death.
    die(&mut near);
    near = two.start();
    assert_eq!(account(&near), "taken over");
    talks(&mut pair, &mut both);
    // So in an upgrade, which waits for no socket that the former memory would keep.
    two.near.run("ip link set wire mtu 1600");
    let told = near.daemon().client_ok(&["upgrade"]);
    assert_eq!(account(&near), "opened anew: the interface's MTU needs other chunks now");
    let stood = told.split("stood still for ").nth(1).and_then(|text| text.split(' ').next());
    let stood: u64 = stood.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{told}"));
    assert!(stood < 450, "{told}");
    talks(&mut pair, &mut both);
    // Another uplink is configured: nothing of the former one stays.
    die(&mut near);
    near = two.start_by("tap:other");
    assert!(!two.program_is_attached());
    die(&mut near);
    near = two.start();
    assert!(two.program_is_attached());
    talks(&mut pair, &mut both);
    // A stop in order ends it too, when no other daemon comes.
    near.daemon().signal("TERM");
    near.daemon_mut().wait_for_end();
    assert!(two.program_is_attached(), "another one may come");
    eventually("the holder ends", || two.place.holder().is_none());
    eventually("the program goes", || !two.program_is_attached());
}

/// Takes what a vnic got as a flood: an address elsewhere that was not noted before a death is not
/// known after it.
fn forget_floods(to: &mut Station) {
    const QUIET: Duration = Duration::from_millis(100);
    let mut last = Instant::now();
    while last.elapsed() < QUIET {
        match to.vm.guest.recv().unwrap() {
            Some(_) => last = Instant::now(),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// A daemon whose interface is gone goes on all the same: machines of this host talk to each other,
/// and what would leave is dropped by name. The interface is taken as soon as it is there again. An
/// upgrade that would lose the uplink is refused, and one that has none to lose is not.
#[test]
fn machines_go_on_without_their_uplink() {
    let Some(two) = Two::new(Answers::Daemon) else { return };
    let (mut near, mut far) = (two.start(), two.start_far());
    let (mut pair, mut both) = stations(&mut near, &mut far);
    let mut beside = near.station(&Nic::bypass("c", mac(3), 1), &usual());
    let mut local = streams(&pair[0], &beside);
    exchange(&mut pair[0], &mut beside, &mut local, &SIZES);
    let uplink = |near: &Host| -> serde_json::Value {
        serde_json::from_str(&near.daemon().client_ok(&["uplink", "--json"])).unwrap()
    };

    // Who starts now could not open it.
    two.near.run("ip link set wire down name elsewhere");
    let why = refused(&near, &["upgrade"]);
    assert!(why.contains("it would have no uplink"), "{why}");
    two.near.run("ip link set elsewhere name wire up");

    let before = counters(&near);
    die(&mut near);
    two.near.run("ip link set wire down name elsewhere");
    near = two.start();
    assert!(near.daemon().log().contains("cannot be opened"), "{}", near.daemon().log());
    let told = uplink(&near);
    assert_eq!(told["state"], "not open", "{told}");
    assert_eq!(told["interface"], "wire", "{told}");
    let shown = near.daemon().client_ok(&["show"]);
    assert!(shown.contains("uplink wire: not open, nothing leaves this host"), "{shown}");
    exchange(&mut pair[0], &mut beside, &mut local, &SIZES.repeat(30));
    assert!(both[0].send(&mut pair[0], 60));
    eventually("it is dropped by name", || {
        near.daemon().client_ok(&["drops", "--json"]).contains("uplink-down")
    });
    forgive(&mut both);
    forget_floods(&mut beside);
    // Another one is no worse off.
    near.daemon().client_ok(&["upgrade"]);
    assert_eq!(uplink(&near)["state"], "not open");
    exchange(&mut pair[0], &mut beside, &mut local, &SIZES.repeat(30));

    two.near.run("ip link set elsewhere name wire up");
    eventually("the interface is taken", || uplink(&near)["state"] == "up");
    eventually("frames pass again", || {
        both[0].send(&mut pair[0], 60);
        both[1].send(&mut pair[1], 60);
        settle(&mut pair, &mut both);
        forgive(&mut both) == 0
    });
    forget_floods(&mut beside);
    exchange(&mut pair[0], &mut beside, &mut local, &SIZES.repeat(30));
    let now = counters(&near);
    assert!(before.iter().all(|(name, n)| now[name] >= *n), "{before:?}, then {now:?}");

    // The same if it goes under a daemon that runs.
    two.near.run("ip link del wire");
    eventually("it is gone", || uplink(&near)["state"] == "removed");
    two.wire(Answers::Daemon);
    eventually("the interface is taken", || uplink(&near)["state"] == "up");
    forget_floods(&mut beside);
    exchange(&mut pair[0], &mut beside, &mut local, &SIZES.repeat(30));
    near.daemon_mut().quit();
}

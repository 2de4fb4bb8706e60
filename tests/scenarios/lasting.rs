//! A state directory: the daemon dies, stops and starts, and guests notice nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use crate::containers::container;
use butterfly_guest_driver::Connection;
use butterfly_packet::tcp::{ACK, SYN};
use butterfly_tests::{
    Daemon, Host, Kind, Nic, PATIENCE, Station, eventually,
    frames::mac,
    net::{Net, filtered, segment, v4},
    station::{features, usual},
    traffic::{exchange, streams},
    within,
};

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};

/// A directory with the state of a daemon, and more options of it. Its holder ends with it.
pub struct Place(pub tempfile::TempDir, pub Vec<String>);

impl Place {
    /// `None` where scenarios run without a process.
    pub fn new() -> Option<Place> {
        (Kind::wanted() == Kind::Daemon).then(|| Place(tempfile::tempdir().unwrap(), Vec::new()))
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    pub fn options(&self) -> Vec<String> {
        let own = ["--state-dir".to_owned(), self.state().display().to_string()];
        own.into_iter().chain(self.1.iter().cloned()).collect()
    }

    /// Starts a daemon on the state.
    pub(crate) fn start(&self) -> Host {
        Host::of(Daemon::start_in(self.0.path(), &[], &self.options()))
    }

    /// Process of the holder.
    pub(crate) fn holder(&self) -> Option<u32> {
        let state = self.state();
        processes_with(&["--hold-alone", state.to_str().unwrap()]).first().copied()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Of a test that failed, or forgot it: a holder that is killed leaves its files behind.
        if let Some(holder) = self.holder() {
            kill(holder);
            assert!(std::thread::panicking(), "the test ends while a holder keeps its state");
        }
    }
}

/// Processes of this host whose arguments end so.
pub(crate) fn processes_with(end: &[&str]) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let is = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> =
            words.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
        words.ends_with(&end.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
    };
    all.filter_map(number).filter(is).collect()
}

pub(crate) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

pub(crate) fn pair(host: &mut Host) -> [Station; 2] {
    [
        host.station(&Nic::bypass("a", mac(1), 1), &usual()),
        host.station(&Nic::bypass("b", mac(2), 1).client(), &usual()),
    ]
}

pub(crate) fn die(host: &mut Host) {
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
}

pub(crate) fn is_attached(station: &Station) -> bool {
    !station.vm.connection.is_closed()
}

/// Either side may own the socket. What is declared, the connections and the rings are there after
/// each death, and control messages get their answers.
#[test]
fn guests_go_on_after_a_death() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    host.add(&Nic::filtered("idle", mac(3), 2).ips(&["10.0.0.3"])).unwrap();
    let mut both = streams(&a, &b);
    let declared = host.daemon().client_ok(&["dump"]);
    for _ in 0..5 {
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000].repeat(30));
        die(&mut host);
        assert!(is_attached(&a) && is_attached(&b));
        // They send into a void, which the next daemon finds.
        a.vm.guest.send(&both[0].next_frame(60), Default::default()).unwrap();
        host = place.start();
        let (header, frame) = b.receive_with();
        both[0].take(header, &frame);
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        a.vm.connection.sync().unwrap();
        b.vm.connection.sync().unwrap();
        assert_eq!(host.daemon().client_ok(&["dump"]), declared);
    }
    let told = host.daemon().client_ok(&["events"]);
    assert!(told.contains("daemon-resumed") && told.contains("took over 3 vnics"), "{told}");
    // One frame waited, each time.
    let cost = "64 frames may be lost, or copies of 1 come twice";
    assert_eq!(told.matches(cost).count(), 5, "{told}");
    // The record goes on: what happened to guests before the deaths may be in it.
    assert!(told.matches("guest-attached").count() <= 2, "{told}");
    assert!(!told.contains("guest-detached"), "{told}");
    let shown = host.daemon().client_ok(&["show"]);
    assert!(shown.contains("restarted 5 times; daemon 6 of"), "{shown}");
    // A new front end comes to the socket that the holder keeps.
    let gone = a.crash();
    let mut a = gone.back();
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    host.remove("a");
    assert!(a.vm.connection.wait_closed(PATIENCE));
    assert!(!a.path.exists(), "the socket of a vnic goes with it");
    host.daemon_mut().quit();
    assert!(b.vm.connection.wait_closed(PATIENCE));
    eventually("the holder ends", || place.holder().is_none());
}

/// A front end that sends control messages all the time gets an answer to each, while daemons die
/// under it at any step.
#[test]
fn every_control_message_is_answered() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Relaxed) {
                let wanted = if rounds % 2 == 0 { features::MODERN } else { features::LINUX };
                assert_eq!(a.vm.change_features(wanted).unwrap(), wanted);
                let added = a.vm.guest.memory().add_region(None, 4 << 20).unwrap();
                a.vm.connection.add_region(&added).unwrap();
                a.vm.connection.remove_region(&added).unwrap();
                a.vm.guest.memory().remove_region(added.guest_addr).unwrap();
                a.vm.restart().unwrap();
                rounds += 1;
            }
            rounds
        });
        for wait in [3, 17, 29, 41, 7, 1, 90, 11] {
            std::thread::sleep(Duration::from_millis(wait));
            die(&mut host);
            host = place.start();
        }
        stop.store(true, Ordering::Relaxed);
        busy.join().unwrap()
    });
    assert!(rounds > 8, "{rounds}");
    assert!(is_attached(&a) && is_attached(&b));
    a.vm.change_features(features::MODERN).unwrap();
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    host.daemon_mut().quit();
}

/// Filtered TCP connections go on, without any pick-up, and so do counters, learnt addresses and
/// the record of events. What the rules do not admit any more ends.
#[test]
fn conversations_and_counts_go_on() {
    let Some(place) = Place::new() else { return };
    let start = || {
        let mut options = place.options();
        options.extend(["--tcp-pickup", "0"].map(str::to_owned));
        Host::of(Daemon::start_in(place.0.path(), &[], &options))
    };
    let mut net = Net::of(start());
    net.group("web", &["in tcp 80-81 0.0.0.0/0"], &[]);
    net.attach(&filtered("a", 1, ""));
    net.attach(&filtered("b", 2, "web"));
    for port in [80, 81] {
        let ports = (1000 + port, port);
        assert_eq!(net.send("a", &v4(1, 2).tcp(&segment(ports, SYN, 100, 0), b"")), "b");
        let answer = segment((ports.1, ports.0), SYN | ACK, 500, 101);
        assert_eq!(net.send("b", &v4(2, 1).tcp(&answer, b"")), "a");
        assert_eq!(net.send("a", &v4(1, 2).tcp(&segment(ports, ACK, 101, 501), b"")), "b");
    }
    // Nothing begins in the middle.
    let foreign = v4(1, 2).tcp(&segment((7, 80), ACK, 1, 1), b"x");
    assert_eq!(net.send("a", &foreign), "a.tcp-no-session");
    let told = |host: &Host| (host.show("a").received, host.show("b").drops);
    let before = told(&net.host);
    let Net { mut host, stations, .. } = net;
    die(&mut host);
    let host = start();
    assert_eq!(told(&host), before);
    let mut net = Net::of(host);
    net.stations = stations;
    assert_eq!(net.send("a", &foreign), "a.tcp-no-session");
    assert_eq!(net.send("b", &v4(2, 1).tcp(&segment((80, 1080), ACK, 501, 101), b"yes")), "a");
    assert_eq!(net.send("a", &v4(1, 2).tcp(&segment((1080, 80), ACK, 101, 504), b"no")), "b");
    net.group("web", &["in tcp 80-80 0.0.0.0/0"], &[]);
    assert_eq!(
        net.send("a", &v4(1, 2).tcp(&segment((1081, 81), ACK, 101, 501), b"x")),
        "b.ingress-denied"
    );
    assert_eq!(net.send("a", &v4(1, 2).tcp(&segment((1080, 80), ACK, 103, 504), b"x")), "b");
    let events = net.host.daemon().client_ok(&["events"]);
    assert!(
        events.contains(" #1 daemon-started ") && events.contains("daemon-resumed"),
        "{events}"
    );
    net.host.daemon_mut().quit();
}

/// SIGTERM is the first half of a restart. What is declared then goes on, as after a death.
#[test]
fn a_signal_takes_nothing_down() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    for signal in ["TERM", "INT"] {
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        host.daemon().signal(signal);
        assert_eq!(host.daemon_mut().wait_for_end().code(), Some(0));
        host = place.start();
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        assert!(is_attached(&a) && is_attached(&b));
    }
    host.daemon_mut().quit();
    assert!(a.vm.connection.wait_closed(PATIENCE) && b.vm.connection.wait_closed(PATIENCE));
    assert!(!a.path.exists());
}

/// A daemon that said that it ends is waited for ten seconds. Then the holder lets go.
#[test]
fn nobody_comes_after_a_signal() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [a, b] = pair(&mut host);
    let maps = fs::read_to_string(format!("/proc/{}/maps", host.daemon().pid())).unwrap();
    let table = maps.lines().find_map(|line| Some(&line[line.find("/dev/shm/butterfly-")?..]));
    let table = Path::new(table.expect("a table of sessions"));
    host.daemon().signal("TERM");
    host.daemon_mut().wait_for_end();
    assert!(table.exists(), "a successor goes on with it");
    let begun = Instant::now();
    within(Duration::from_secs(15), "the holder ends", || place.holder().is_none());
    assert!(begun.elapsed() > Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(a.vm.connection.wait_closed(PATIENCE) && b.vm.connection.wait_closed(PATIENCE));
    assert!(!a.path.exists() && !table.exists());
    // What is declared is still there, and waits for its guests.
    let mut host = place.start();
    assert_eq!(host.ids(), ["a", "b"]);
    assert!(a.path.exists() && !host.show("a").attached);
    host.daemon_mut().quit();
}

/// One state has one daemon.
#[test]
fn a_second_daemon_is_refused() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let other = tempfile::tempdir().unwrap();
    let mut second = Daemon::launch(other.path(), &[], &place.options());
    assert_eq!(second.wait_for_end().code(), Some(1));
    let said = fs::read_to_string(other.path().join("log")).unwrap();
    let pid = host.daemon().pid();
    assert!(said.contains(&format!("another daemon (process {pid}) uses this state")), "{said}");
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    host.daemon_mut().quit();
}

/// QEMU's monitor waits for an answer without a limit. A front end that has shown that it
/// reconnects is sent away after two seconds without a daemon.
#[test]
fn without_a_daemon_a_front_end_is_not_kept_waiting() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let path: &Path = &host.add(&Nic::bypass("a", mac(1), 1)).unwrap();
    let connect = || Connection::connect(path, PATIENCE).unwrap();
    let mut first = connect();
    first.sync().unwrap();
    first.disconnect();
    let mut again = connect();
    again.sync().unwrap();
    die(&mut host);
    let begun = Instant::now();
    assert!(again.sync().is_err(), "nobody answers");
    let waited = begun.elapsed();
    assert!(waited > Duration::from_millis(1500) && waited < Duration::from_secs(6), "{waited:?}");
    let mut host = place.start();
    connect().sync().unwrap();
    host.daemon_mut().quit();
}

/// TAP devices stay, with everything that others did to them: containers' and the uplink's.
#[test]
fn tap_devices_outlast_the_daemon() {
    let Some(place) = Place::new() else { return };
    let uplink = format!("up{}", std::process::id() % 100_000);
    let start = || {
        let mut options = place.options();
        options.extend(["--uplink".to_owned(), format!("tap:{uplink}")]);
        Host::of(Daemon::start_in(place.0.path(), &[], &options))
    };
    let mut host = start();
    let (a, b) = (container(host.daemon(), "tap-a", 1), container(host.daemon(), "tap-b", 2));
    // Which only who did it knows.
    a.run("ip addr add 10.9.9.9/32 dev tap-a");
    let index = || fs::read_to_string(format!("/sys/class/net/{uplink}/ifindex")).unwrap();
    let links =
        || (a.run("ip -o -4 addr show dev tap-a"), b.run("ip -o -4 addr show dev tap-b"), index());
    let before = links();
    a.run("ping -c 3 -i 0.2 -W 5 10.0.0.2");
    for _ in 0..3 {
        die(&mut host);
        assert_eq!(links(), before, "without a daemon");
        host = start();
        assert_eq!(links(), before);
        a.run("ping -c 3 -i 0.2 -W 5 10.0.0.2");
    }
    host.remove("tap-b");
    assert!(b.run("ip -o link").lines().count() == 1, "only lo is left");
    host.daemon_mut().quit();
    eventually("the holder ends", || place.holder().is_none());
    assert!(a.run("ip -o link").lines().count() == 1);
    assert!(!Path::new(&format!("/sys/class/net/{uplink}")).exists());
}

/// Garbage on the holder's socket ends its connection, and nothing else; who says nothing keeps
/// nobody away.
#[test]
fn the_holder_takes_garbage() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let address = SocketAddrUnix::new(place.state().join("holder")).unwrap();
    let mut silent = Vec::new();
    for n in 0..200u8 {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &address).unwrap();
        // Every first byte, short and long; among them a daemon's hello in another version.
        let word = vec![n % 16; if n % 3 == 0 { 5 } else { usize::from(n) * 300 + 1 }];
        send(&socket, &word, SendFlags::NOSIGNAL).unwrap();
        if n % 8 == 0 {
            silent.push(socket);
        }
    }
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    host.add(&Nic::bypass("c", mac(3), 1)).unwrap();
    die(&mut host);
    let mut host = place.start();
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    assert_eq!(host.ids(), ["a", "b", "c"]);
    drop(silent);
    host.daemon_mut().quit();
}

/// An operator who restarts the daemon with a wrong configuration has time to mend it: machines
/// stay connected longer than after a stop, and traffic goes on with the next daemon.
#[test]
fn a_wrong_configuration_cuts_nobody_off() {
    let Some(mut place) = Place::new() else { return };
    let ini = place.0.path().join("ini");
    let state = place.state();
    place.1 = ["-c", ini.to_str().unwrap()].map(str::to_owned).to_vec();
    let configure = |more: &str| {
        let text = format!("[general]\nstate-dir = {}\n{more}\n", state.display());
        fs::write(&ini, text).unwrap();
    };
    configure("");
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    for (more, words) in [("nic-mtu = nonsense", vec![]), ("", vec!["--nonsense".to_owned()])] {
        configure(more);
        host.daemon().signal("INT");
        host.daemon_mut().wait_for_end();
        let options = [place.options(), words].concat();
        let mut daemon = Daemon::launch(place.0.path(), &[], &options);
        assert_eq!(daemon.wait_for_end().code(), Some(2));
        let log = daemon.log();
        assert!(log.contains("machines stay connected, without traffic, until a daemon"), "{log}");
        // Longer than the holder waits after a stop.
        std::thread::sleep(Duration::from_secs(11));
        assert!(is_attached(&a) && is_attached(&b) && place.holder().is_some());
        configure("");
        host = place.start();
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    }
    // A stop after that is one like any other.
    host.daemon().signal("INT");
    host.daemon_mut().wait_for_end();
    assert!(a.vm.connection.wait_closed(Duration::from_secs(15)));
    eventually("the holder ends", || place.holder().is_none());
}

/// If the holder dies, guests notice nothing until the daemon dies, too. Then they reconnect.
#[test]
fn the_holder_dies() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    let holder = place.holder().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let shown = host.daemon().client_ok(&["show"]);
    let told = format!("  holder            process {holder}, version {version}, since ");
    assert!(shown.contains(&told) && !shown.contains("gone"), "{shown}");
    kill(holder);
    eventually("it is gone", || place.holder().is_none());
    let shown = host.daemon().client_ok(&["show"]);
    assert!(shown.contains(&told) && shown.contains("  holder: gone: "), "{shown}");
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000].repeat(10));
    assert!(is_attached(&a) && is_attached(&b));
    let refused = host.daemon().ask(Daemon::nic_add(&Nic::bypass("c", mac(3), 1))).unwrap_err();
    assert!(refused.contains("the holder") && refused.contains("restart the daemon"), "{refused}");
    die(&mut host);
    assert!(a.vm.connection.wait_closed(PATIENCE) && b.vm.connection.wait_closed(PATIENCE));
    let (gone_a, gone_b) = (a.crash(), b.crash());
    let mut host = place.start();
    let (mut a, mut b) = (gone_a.back(), gone_b.back());
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    host.daemon_mut().quit();
}

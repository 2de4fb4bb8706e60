//! Poison: vnics by whose frames or rings the worker ends the daemon, and starts that come to
//! nothing. Daemons with debug assertions have fail points for that.

use std::{os::unix::process::ExitStatusExt, time::Duration};

use crate::lasting::Place;
use butterfly_guest_driver::Vm;
use butterfly_packet::{build, mac::Mac};
use butterfly_tests::{
    Daemon, FAIL_POINTS, Host, Nic, PATIENCE, Station, eventually,
    frames::{EXPERIMENT, mac},
    station::usual,
    traffic::{exchange, streams},
    within,
};

const ARMED: [&str; 5] = ["prlimit", "--core=0", "--", "env", FAIL_POINTS];
/// Link address of the endpoint 42.0.0.1.
const ENDPOINT: Mac = Mac([2, 0xbf, 42, 0, 0, 1]);
/// Most starts until a daemon stays.
const STARTS: usize = 20;
/// Time in which a daemon with a frame that ends it has ended.
const SHORT: Duration = Duration::from_millis(700);

fn start(place: &Place) -> Host {
    Host::of(Daemon::start_in(place.0.path(), &ARMED, &place.options()))
}

/// Starts daemons until one stays, as systemd does. Returns it, and how many ended.
fn restart(place: &Place) -> (Host, usize) {
    restart_with(place, &ARMED)
}

fn restart_with(place: &Place, before: &[&str]) -> (Host, usize) {
    for ended in 0..STARTS {
        let mut daemon = Daemon::launch(place.0.path(), before, &place.options());
        if daemon.comes_up() {
            std::thread::sleep(SHORT);
            if !daemon.has_ended() {
                return (Host::of(daemon), ended);
            }
        }
    }
    panic!("no daemon stays");
}

fn poison(from: Mac, to: Mac, word: &[u8; 8]) -> Vec<u8> {
    build::ethernet(from, to).payload(EXPERIMENT, &[&word[..], &[0; 60]].concat())
}

fn station(host: &Host, id: &str, n: u32) -> Station {
    host.station(&Nic::bypass(id, mac(n), 1), &usual())
}

/// Sends a frame and waits for the end of the daemon. Returns the signal.
fn ends_by(host: &mut Host, from: &mut Station, frame: &[u8]) -> Option<i32> {
    from.vm.guest.send(frame, Default::default()).unwrap();
    host.daemon_mut().wait_for_end().signal()
}

fn is_held(host: &Host, id: &str) -> bool {
    host.daemon().client_ok(&["nic", "show", id]).contains("rings held")
}

fn drops(host: &Host, id: &str, reason: &str) -> u64 {
    host.show(id).drops.iter().find(|(name, _)| *name == reason).map_or(0, |(_, n)| *n)
}

/// Two frames of one vnic end the daemon. It is held, and all others go on.
#[test]
fn a_vnic_that_ends_the_daemon_twice_is_held() {
    let Some(place) = Place::new() else { return };
    let mut host = start(&place);
    let (mut a, mut b, mut c) =
        (station(&host, "a", 1), station(&host, "b", 2), station(&host, "c", 3));
    let (mut both, mut with_a) = (streams(&b, &c), streams(&a, &b));
    exchange(&mut a, &mut b, &mut with_a, &[60, 1514]);
    let frame = poison(a.mac(), b.mac(), b"BF-PANIC");
    assert_eq!(ends_by(&mut host, &mut a, &frame), Some(6));
    // The frame is still in its ring.
    let (mut host, ended) = restart(&place);
    assert_eq!(ended, 1);
    exchange(&mut b, &mut c, &mut both, &[60, 1514, 9000].repeat(10));
    assert!(is_held(&host, "a") && !is_held(&host, "b") && !is_held(&host, "c"));
    let shown = host.daemon().client_ok(&["show"]);
    assert!(shown.contains("NIC a: its rings are held for"), "{shown}");
    let events = host.daemon().client_ok(&["events"]);
    assert_eq!(events.matches(" nic-held ").count(), 1, "{events}");
    // Its control channel is answered, nothing is delivered to it, and nothing taken from it.
    a.vm.connection.sync().unwrap();
    b.send(&to(&b, &a));
    eventually("the drop is counted", || drops(&host, "a", "held") > 0);
    assert!(a.pending().is_empty());
    assert!(!a.vm.guest.drain(Duration::from_millis(300)).unwrap());
    // Held by those that come later, too.
    for _ in 0..2 {
        host.daemon().kill();
        host.daemon_mut().wait_for_end();
        host = start(&place);
        assert!(is_held(&host, "a"));
    }
    // Another machine, whose ring is empty, and the operator lets it go.
    let gone = a.crash();
    let vm = Vm::connect(&gone.path, &usual(), PATIENCE).unwrap();
    let mut a = Station { nic: gone.nic, path: gone.path, listener: None, vm, config: usual() };
    a.vm.connection.sync().unwrap();
    assert!(is_held(&host, "a"));
    a.vm.guest.send(&to(&a, &b), Default::default()).unwrap();
    let said = host.daemon().client_ok(&["nic", "release", "a"]);
    assert_eq!(said, "served again\n");
    assert_eq!(b.receive(), to(&a, &b), "it waited in the ring");
    let mut anew = streams(&a, &b);
    exchange(&mut a, &mut b, &mut anew, &[60, 1514, 9000]);
    assert!(!is_held(&host, "a"));
    assert_eq!(host.daemon().client_ok(&["nic", "release", "a"]), "nic a was not held\n");
    host.daemon_mut().quit();
}

/// A wrong access and an endless loop count as a panic does.
#[test]
fn wrong_accesses_and_endless_loops_are_noticed() {
    for (word, signal) in [(b"BF-FAULT", 11), (b"BF-HANGS", 6)] {
        let Some(place) = Place::new() else { return };
        let mut host = start(&place);
        let (mut a, mut b, mut c) =
            (station(&host, "a", 1), station(&host, "b", 2), station(&host, "c", 3));
        let mut both = streams(&b, &c);
        let frame = poison(a.mac(), b.mac(), word);
        assert_eq!(ends_by(&mut host, &mut a, &frame), Some(signal));
        let mut daemon = Daemon::launch(place.0.path(), &ARMED, &place.options());
        // One that hangs answers for a while.
        assert_eq!(daemon.wait_for_end().signal(), Some(signal));
        let (mut host, ended) = restart(&place);
        assert_eq!(ended, 0);
        assert!(is_held(&host, "a"));
        exchange(&mut b, &mut c, &mut both, &[60, 1514, 9000].repeat(10));
        host.daemon_mut().quit();
    }
}

/// A receiver by which the daemon ends, whoever sends to it, is held instead of its senders. So is
/// a mirror.
#[test]
fn a_receiver_is_held_instead_of_its_senders() {
    let Some(place) = Place::new() else { return };
    let mut host = start(&place);
    let (mut b, mut c) = (station(&host, "b", 2), station(&host, "c", 3));
    let mut m = station(&host, "poison-m", 4);
    let mut both = streams(&b, &c);
    exchange(&mut b, &mut c, &mut both, &[60, 1514]);
    let frame = to(&b, &m);
    assert_eq!(ends_by(&mut host, &mut b, &frame), Some(6));
    let (mut host, ended) = restart(&place);
    assert_eq!(ended, 1);
    // So far it may be the sender.
    assert!(is_held(&host, "b") && !is_held(&host, "poison-m"));
    let frame = to(&c, &m);
    assert_eq!(ends_by(&mut host, &mut c, &frame), Some(6));
    let (mut host, ended) = restart(&place);
    assert_eq!(ended, 0);
    assert!(is_held(&host, "poison-m") && !is_held(&host, "b") && !is_held(&host, "c"));
    // What waited in their rings is a drop of the receiver's.
    eventually("both are served", || drops(&host, "poison-m", "held") == 2);
    assert!(m.pending().is_empty());
    exchange(&mut b, &mut c, &mut both, &[60, 1514, 9000].repeat(10));
    let events = host.daemon().client_ok(&["events"]);
    assert!(events.contains("a receiver of its frames is to blame"), "{events}");
    // A release of all, and a vnic that is deleted: nothing is left of it.
    assert_eq!(host.daemon().client_ok(&["nic", "release", "--all"]), "served again\n");
    assert!(!is_held(&host, "poison-m"));
    host.remove("poison-m");
    let mirror = Nic::mirror("poison-mirror", mac(5), 1, "b");
    let mut mirror = host.station(&mirror, &usual());
    for from in [&mut b, &mut c] {
        let frame = build::ethernet(from.mac(), mac(if from.nic.id == "b" { 3 } else { 2 }))
            .payload(EXPERIMENT, &[7; 60]);
        from.vm.guest.send(&frame, Default::default()).unwrap();
    }
    host.daemon_mut().wait_for_end();
    let (mut host, _) = restart(&place);
    assert!(is_held(&host, "poison-mirror"), "{}", host.daemon().client_ok(&["events"]));
    assert!(!is_held(&host, "b") && !is_held(&host, "c"));
    assert!(mirror.pending().is_empty());
    host.daemon_mut().quit();
}

/// Other ends blame nobody, however many there are, also under load.
#[test]
fn a_daemon_that_is_killed_blames_nobody() {
    let Some(place) = Place::new() else { return };
    let mut host = start(&place);
    let (mut b, mut c) = (station(&host, "b", 2), station(&host, "c", 3));
    let mut both = streams(&b, &c);
    for n in 0..10 {
        let frame = to(&b, &c);
        // More than the ring takes; a daemon that keeps up would never leave it full.
        for _ in 0..2000 {
            let _ = b.vm.guest.send(&frame, Default::default());
        }
        match n % 3 {
            // SIGABRT is what systemd's watchdog sends.
            0 => host.daemon().signal("ABRT"),
            1 => host.daemon().signal("SEGV"),
            _ => host.daemon().kill(),
        }
        host.daemon_mut().wait_for_end();
        let (next, ended) = restart(&place);
        assert_eq!(ended, 0);
        host = next;
        assert!(!is_held(&host, "b") && !is_held(&host, "c"));
        eventually("it was delivered", || {
            while c.vm.guest.recv().unwrap().is_some() {}
            b.vm.guest.drain(Duration::from_millis(10)).unwrap()
        });
        while c.vm.guest.recv().unwrap().is_some() {}
    }
    exchange(&mut b, &mut c, &mut both, &[60, 1514, 9000].repeat(10));
    let events = host.daemon().client_ok(&["events"]);
    assert!(!events.contains("nic-held"), "{events}");
    host.daemon_mut().quit();
}

/// A frame from another host is skipped, and the tunnel leaves the turn after the third.
#[test]
fn a_frame_from_the_uplink_is_skipped() {
    let Some(mut place) = Place::new() else { return };
    let wire = place.0.path().join("wire");
    place.1 = vec!["--uplink".to_owned(), format!("vhost-user:{}", wire.display())];
    let mut host = start(&place);
    let (mut b, mut c) = (station(&host, "b", 2), station(&host, "c", 3));
    let mut both = streams(&b, &c);
    let mut wire = Vm::connect(&wire, &usual(), PATIENCE).unwrap();
    wire.connection.sync().unwrap();
    let outer = |inner: &[u8]| {
        let vxlan = [&[8, 0, 0, 0, 0, 0, 1, 0][..], inner].concat();
        build::ethernet(mac(9), ENDPOINT).ipv4([42, 0, 0, 2], [42, 0, 0, 1]).udp(5, 4789, &vxlan)
    };
    let good = build::ethernet(mac(8), b.mac()).payload(EXPERIMENT, &[9; 60]);
    wire.guest.send(&outer(&good), Default::default()).unwrap();
    assert_eq!(b.receive(), good);
    for n in 1..=3 {
        let bad = outer(&poison(mac(8), b.mac(), b"BF-PANIC"));
        wire.guest.send(&bad, Default::default()).unwrap();
        assert_eq!(host.daemon_mut().wait_for_end().signal(), Some(6));
        let (next, ended) = restart(&place);
        assert_eq!(ended, 0, "it does not come again");
        host = next;
        assert!(!is_held(&host, "b") && !is_held(&host, "c"));
        exchange(&mut b, &mut c, &mut both, &[60, 1514]);
        let shown = host.daemon().client_ok(&["show"]);
        assert_eq!(shown.contains("its frames are held"), n == 3, "{shown}");
        if n < 3 {
            wire.guest.send(&outer(&good), Default::default()).unwrap();
            assert_eq!(b.receive(), good);
        }
    }
    wire.guest.send(&outer(&good), Default::default()).unwrap();
    exchange(&mut b, &mut c, &mut both, &[60, 1514]);
    assert!(b.pending().is_empty());
    // What waited since the last end goes with the frame that caused it.
    host.daemon().client_ok(&["nic", "release", "--all"]);
    let drops = || host.daemon().client_ok(&["drops"]);
    eventually("they are skipped", || drops().contains("skipped"));
    wire.guest.send(&outer(&good), Default::default()).unwrap();
    assert_eq!(b.receive(), good);
    host.daemon_mut().quit();
}

/// A daemon that ends three times while it reads the store leaves the store alone: it forwards what
/// was declared, and refuses changes with the reason.
#[test]
fn a_store_by_which_it_ends_is_left_alone() {
    let Some(place) = Place::new() else { return };
    let mut host = start(&place);
    let (mut b, mut c) = (station(&host, "b", 2), station(&host, "c", 3));
    let mut both = streams(&b, &c);
    host.daemon().client_ok(&["sg", "add", "poison-store"]);
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
    let (mut host, ended) = restart(&place);
    assert_eq!(ended, 3);
    exchange(&mut b, &mut c, &mut both, &[60, 1514, 9000].repeat(10));
    let refused = host.add(&Nic::bypass("d", mac(6), 1)).unwrap_err();
    assert!(refused.contains("three starts in a row"), "{refused}");
    assert_eq!(host.ids(), ["b", "c"]);
    let shown = host.daemon().client_ok(&["show"]);
    assert!(shown.contains("degraded") && shown.contains("three starts"), "{shown}");
    assert!(host.daemon().client_ok(&["events"]).contains(" daemon-degraded "));
    // It stays so through other ends, until an operator restarts it.
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
    let (mut host, ended) = restart(&place);
    assert_eq!(ended, 0);
    assert!(host.daemon().client_ok(&["show"]).contains("degraded"));
    // After a while it opens the store, which is once more the end.
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
    let soon = [&ARMED[..], &["BUTTERFLY_DEGRADED_S=2"]].concat();
    let mut daemon = Daemon::launch(place.0.path(), &soon, &place.options());
    assert!(daemon.comes_up());
    assert_eq!(daemon.wait_for_end().signal(), Some(6));
    let (mut host, ended) = restart(&place);
    assert_eq!(ended, 0);
    assert!(host.daemon().client_ok(&["show"]).contains("degraded"));
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
    let mended = ["env", "BUTTERFLY_DEGRADED_S=1"];
    let (mut host, _) = restart_with(&place, &mended);
    let degraded = |host: &Host| host.daemon().client_ok(&["show"]).contains("degraded");
    eventually("it is as usual", || !degraded(&host));
    host.add(&Nic::bypass("e", mac(7), 1)).unwrap();
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
    // A minute has to pass before that counts, or an orderly stop.
    let (mut host, ended) = restart_with(&place, &[]);
    assert_eq!(ended, 0);
    assert!(degraded(&host));
    host.daemon().signal("TERM");
    host.daemon_mut().wait_for_end();
    let (mut host, ended) = restart_with(&place, &[]);
    assert_eq!(ended, 0);
    assert!(!host.daemon().client_ok(&["show"]).contains("degraded"));
    host.add(&Nic::bypass("d", mac(6), 1)).unwrap();
    exchange(&mut b, &mut c, &mut both, &[60, 1514, 9000].repeat(10));
    host.daemon_mut().quit();
}

/// A vnic is let go by itself, and held for longer if it goes on as before. Takes a minute.
#[test]
fn a_vnic_is_released_by_itself() {
    let Some(place) = Place::new() else { return };
    let mut host = start(&place);
    let (mut a, b) = (station(&host, "a", 1), station(&host, "b", 2));
    let frame = poison(a.mac(), b.mac(), b"BF-PANIC");
    ends_by(&mut host, &mut a, &frame);
    let (mut host, _) = restart(&place);
    assert!(is_held(&host, "a"));
    within(Duration::from_secs(70), "it ends the daemon again", || host.daemon_mut().has_ended());
    let (mut host, ended) = restart(&place);
    assert_eq!(ended, 0);
    let shown = host.daemon().client_ok(&["nic", "show", "a"]);
    assert!(shown.contains("for 1 min 5") || shown.contains("for 2 min"), "{shown}");
    let events = host.daemon().client_ok(&["events"]);
    assert_eq!(events.matches(" nic-held ").count(), 2, "{events}");
    host.daemon_mut().quit();
}

/// A short frame from one to the other.
fn to(from: &Station, to: &Station) -> Vec<u8> {
    build::ethernet(from.mac(), to.mac()).payload(EXPERIMENT, &[7; 60])
}

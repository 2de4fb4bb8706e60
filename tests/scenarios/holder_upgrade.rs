//! The holder becomes its successor: nobody notices.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use butterfly_guest_driver::raw::{FrontendReq, VERSION, message, recv, send_bytes};
use butterfly_tests::{
    Host, Nic, eventually,
    frames::mac,
    traffic::{exchange, streams},
};

use crate::{
    lasting::{Place, is_attached, kill, pair},
    layouts::Releases,
};

/// Has a program become the holder of a place.
fn upgrade_holder(place: &Place, program: &Path) -> Output {
    let mut command = Command::new(program);
    command.arg("--upgrade-holder").arg(place.state()).output().unwrap()
}

fn done(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// Returns why a program did not become the holder.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn program_of(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

/// Descriptors of a process, but for the closer's, of which there may be one.
fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn die(host: &mut Host) {
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
}

/// Twenty successors, while frames go both ways, a front end asks without pause, vnics come and go,
/// and a daemon is upgraded and dies. Nothing is lost, nobody reconnects, nothing is left open.
#[test]
fn nobody_notices_another_holder() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let programs = ["one", "other"].map(|name| releases.with(name, ""));
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    host.add(&Nic::bypass("asks", mac(9), 7)).unwrap();
    let asking = UnixStream::connect(place.0.path().join("qemu-vhost-asks")).unwrap();
    asking.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut both = streams(&a, &b);
    let holder = place.holder().unwrap();
    done(&upgrade_holder(&place, &programs[1]));
    let before = descriptors(holder);
    let (ends, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ask = message(FrontendReq::GET_FEATURES, VERSION, &[]);
            while !ends.load(Ordering::Relaxed) {
                send_bytes(&asking, &ask, &[]).unwrap();
                assert_eq!(recv(&asking).unwrap().request, FrontendReq::GET_FEATURES as u32);
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        for n in 0..20 {
            let program = &programs[n % 2];
            done(&upgrade_holder(&place, program));
            assert_eq!((place.holder(), program_of(holder)), (Some(holder), program.clone()));
            let answered = answers.load(Ordering::Relaxed);
            exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
            a.vm.connection.sync().unwrap();
            b.vm.connection.sync().unwrap();
            eventually("the front end that asks goes on", || {
                answers.load(Ordering::Relaxed) > answered + 1
            });
            match n % 4 {
                0 => drop(host.add(&Nic::bypass("late", mac(20), 7)).unwrap()),
                1 => host.remove("late"),
                2 => drop(host.daemon().client_ok(&["upgrade"])),
                _ => {}
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(is_attached(&a) && is_attached(&b));
    eventually("nothing is left open", || descriptors(holder) <= before + 1);
    let shown = host.daemon().client_ok(&["show"]);
    assert!(shown.contains(&format!("process {holder}")), "{shown}");
    for _ in 0..2 {
        die(&mut host);
        host = place.start();
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        a.vm.connection.sync().unwrap();
        done(&upgrade_holder(&place, &programs[0]));
    }
    let gone = a.crash();
    let mut a = gone.back();
    exchange(&mut a, &mut b, &mut both, &[60]);
    let socket = a.path.clone();
    host.daemon_mut().quit();
    eventually("it ends", || place.holder().is_none());
    assert!(!socket.exists(), "the successor removes what it was given");
}

/// A program that fails leaves the process to the one before.
#[test]
fn programs_that_cannot_hold_do_not() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let holder = place.holder().unwrap();
    let own = program_of(holder);
    for (fails, why) in [
        ("error@hold", "it was to fail in this rehearsal"),
        ("panic@hold", "it does not say that it can hold"),
        ("kill@hold", "it does not say that it can hold"),
        ("hang@hold", "it did not say within 5 s"),
        ("error@held", "it was to fail in this rehearsal"),
        ("panic@held", "it panicked"),
        ("hang@held", "it did not get on for 5 s"),
    ] {
        let program = releases.with("fails", &format!("fails={fails}"));
        let told = refused(&upgrade_holder(&place, &program));
        assert!(told.contains(why) && told.contains("goes on as before"), "{fails}: {told}");
        assert_eq!((place.holder(), program_of(holder)), (Some(holder), own.clone()), "{fails}");
        exchange(&mut a, &mut b, &mut both, &[60, 1514]);
        a.vm.connection.sync().unwrap();
    }
    die(&mut host);
    host = place.start();
    exchange(&mut a, &mut b, &mut both, &[60, 1514]);
    // One that ends as it has just begun is a holder that died.
    let program = releases.with("dies", "fails=kill@held");
    let told = refused(&upgrade_holder(&place, &program));
    assert!(told.contains("ENDED: machines run on"), "{told}");
    // A process that was killed is there until the kernel has ended it.
    eventually("the daemon knows that it is gone", || {
        refused(&upgrade_holder(&place, &program)).contains("is gone: machines stay connected")
    });
    exchange(&mut a, &mut b, &mut both, &[60, 1514]);
    assert!(is_attached(&a) && is_attached(&b));
    host.daemon_mut().quit();
}

/// While no daemon runs the connections are the holder's alone: it stays until one does.
#[test]
fn another_holder_waits_for_a_daemon() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let program = releases.with("next", "");
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let holder = place.holder().unwrap();
    let own = program_of(holder);
    die(&mut host);
    let told = refused(&upgrade_holder(&place, &program));
    assert!(told.contains("no daemon runs"), "{told}");
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| upgrade_holder(&place, &program));
        while begun.elapsed() < Duration::from_secs(1) {
            assert_eq!(program_of(holder), own);
            std::thread::sleep(Duration::from_millis(50));
        }
        host = place.start();
        done(&waits.join().unwrap());
    });
    assert_eq!(program_of(holder), program);
    exchange(&mut a, &mut b, &mut both, &[60, 1514]);
    assert!(is_attached(&a) && is_attached(&b));
    host.daemon_mut().quit();
    eventually("it ends", || place.holder().is_none());
}

/// The holder ends as it is told, at whichever moment of a hand-over that comes.
#[test]
fn a_holder_that_is_to_end_ends_in_order() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let program = releases.with("next", "");
    for pause in (0..12).map(|n| Duration::from_millis(10 * n)) {
        let host = place.start();
        let holder = place.holder().unwrap();
        let lock = place.state().join("holder");
        assert!(lock.exists());
        std::thread::scope(|scope| {
            scope.spawn(|| upgrade_holder(&place, &program));
            std::thread::sleep(pause);
            let pid = rustix::process::Pid::from_raw(holder as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        });
        eventually("it ends", || place.holder().is_none());
        assert!(!lock.exists(), "after {pause:?} it ended without a look at what it has");
        kill(host.daemon().pid());
        drop(host);
    }
}

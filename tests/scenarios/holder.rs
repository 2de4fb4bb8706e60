//! The holder under front ends that give it more than it can close.

use std::{
    fs,
    io::Write,
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::lasting::Place;
use butterfly_guest_driver::raw::{FrontendReq, VERSION, message, recv, send_bytes, words};
use butterfly_tests::{Nic, eventually, frames::mac, programs::checked, station::usual};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    net::sockopt::set_socket_linger,
};

/// Returns a socket whose last close() sleeps as long as `sink` does not read.
fn that_lingers(sink: &TcpListener) -> OwnedFd {
    let mut stream = TcpStream::connect(sink.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
    stream.into()
}

/// A body of SET_MEM_TABLE: eight regions of a page each.
fn regions() -> Vec<u8> {
    const PAGE: u64 = 4096;
    let region = |n: u64| [n * PAGE, PAGE, 0x7000_0000 + n * PAGE, n * PAGE];
    let all: Vec<u64> = (0..8).flat_map(region).collect();
    [&8u32.to_ne_bytes()[..], &[0; 4], &words(&all)].concat()
}

fn descriptors(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// States of the children of a process.
fn states_of_children(of: u32) -> Vec<String> {
    let state = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let state = fields.next()?.to_owned();
        (fields.next()? == of.to_string()).then_some(state)
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(state).collect()
}

fn children(of: u32) -> usize {
    states_of_children(of).len()
}

/// Children of a process that have ended and that it did not look at.
fn zombies(of: u32) -> usize {
    states_of_children(of).iter().filter(|state| *state == "Z").count()
}

/// One front end gives what cannot be closed, another one gives as fast as it can. Both wait until
/// theirs is closed; the holder keeps few descriptors and no dead process, and whoever gives
/// nothing is heard at once. The next daemon takes over everything.
#[test]
fn who_gives_descriptors_waits_until_they_are_closed() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    for (n, id) in ["slow", "many"].iter().enumerate() {
        host.add(&Nic::bypass(id, mac(8 + n as u32), 7)).unwrap();
    }
    let mut honest = host.station(&Nic::bypass("honest", mac(1), 1), &usual());
    let holder = place.holder().unwrap();
    let socket = |id: &str| {
        let socket = UnixStream::connect(place.0.path().join(format!("qemu-vhost-{id}"))).unwrap();
        socket.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let (slow, many) = (socket("slow"), socket("many"));
    let sink = TcpListener::bind("127.0.0.1:0").unwrap();
    let before = descriptors(holder);
    let (ends, given) = (AtomicBool::new(false), AtomicU64::new(0));
    // A child would inherit sockets that linger, and sleep when it closes them: it is not begun
    // while there are any. This is also why no other test runs in this process.
    let forking = Mutex::new(());
    let (mut most, mut longest) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let alone = forking.lock().unwrap();
                let lingers = that_lingers(&sink);
                let ask = message(FrontendReq::GET_FEATURES, VERSION, &[]);
                // It may have been sent away by now, or its socket may be full.
                let _ = send_bytes(&slow, &ask, &[lingers.as_fd()]);
                let place = format!("/proc/self/fd/{}", lingers.as_raw_fd());
                let socket = fs::read_link(&place).unwrap();
                // Who closes it last is who sleeps: not this thread.
                std::thread::spawn(move || drop(lingers));
                eventually("it is being closed", || {
                    fs::read_link(&place).ok().as_ref() != Some(&socket)
                });
                drop(alone);
                let _ = recv(&slow);
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        scope.spawn(|| {
            let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&memory, 8 * 4096).unwrap();
            let table = message(FrontendReq::SET_MEM_TABLE, VERSION, &regions());
            while !ends.load(Ordering::Relaxed) {
                if send_bytes(&many, &table, &[memory.as_fd(); 8]).is_ok() {
                    given.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        // Other programs go on as the holder, with what its closer does not get rid of.
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let mut upgrade = Command::new(checked("butterflyd"));
                upgrade.arg("--upgrade-holder").arg(place.state());
                let begun = {
                    let _alone = forking.lock().unwrap();
                    upgrade.spawn()
                };
                assert!(begun.unwrap().wait().unwrap().success());
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            let asked = Instant::now();
            honest.vm.connection.sync().unwrap();
            longest = longest.max(asked.elapsed());
            most = most.max(descriptors(holder));
            std::thread::sleep(Duration::from_millis(20));
        }
        ends.store(true, Ordering::Relaxed);
    });
    let given = given.load(Ordering::Relaxed);
    println!("{given} tables; {before} descriptors, {most} at most; answers in {longest:?}");
    assert!(given > 20, "no test: {given} tables only");
    assert!(most < before + 400, "{before} descriptors before, then {most}");
    assert!(longest < Duration::from_secs(2), "an answer took {longest:?}");
    host.add(&Nic::bypass("late", mac(20), 7)).unwrap();
    drop((slow, many, sink));
    eventually("all is closed", || descriptors(holder) <= before + 8);
    eventually("no process is left", || zombies(holder) == 0);
    eventually("one closer is there", || children(holder) <= 1);
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
    host = place.start();
    honest.vm.connection.sync().unwrap();
    host.daemon_mut().quit();
}

//! The daemon as a process: its start, its end, a kill, and what it leaves behind.

use std::{
    fs,
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use butterfly_api::proto::Request;
use butterfly_guest_driver::{Connection, Vm};
use butterfly_tests::{
    Daemon, Host, Kind, Nic, PATIENCE, Station, eventually,
    frames::{Choices, mac},
    station::{features, machine, usual},
    traffic::{exchange, streams},
};

/// Returns the names in a directory, without the log that the test itself makes.
fn left(dir: &Path) -> Vec<String> {
    let names =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "log").collect();
    names.sort();
    names
}

/// After a signal or `app_quit` the daemon detaches guests, deletes sockets and ends at once.
#[test]
fn a_clean_stop() {
    for how in ["TERM", "INT", "QUIT", "app_quit"] {
        let Some(mut host) = Host::process() else { return };
        let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
        let mut b = host.station(&Nic::bypass("b", mac(2), 1).client(), &usual());
        host.add(&Nic::filtered("c", mac(3), 1)).unwrap();
        host.add(&Nic::filtered("d", mac(4), 1).client()).unwrap();
        let mut both = streams(&a, &b);
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
        let begin = Instant::now();
        match how {
            "app_quit" => drop(
                host.daemon().ask(Request { app_quit: Some(true), ..Request::default() }).unwrap(),
            ),
            signal => host.daemon().signal(signal),
        }
        assert!(
            a.vm.connection.wait_closed(PATIENCE) && b.vm.connection.wait_closed(PATIENCE),
            "{how}"
        );
        let dir = host.dir().to_owned();
        assert_eq!(host.daemon_mut().wait_for_end().code(), Some(0), "{how}");
        assert!(begin.elapsed() < Duration::from_secs(3), "{how} took {:?}", begin.elapsed());
        // The daemon does not delete the socket that QEMU owns.
        assert_eq!(left(&dir), ["qemu-vhost-b"], "{how}");
    }
}

/// A second daemon on the same endpoint is refused; the first one does not notice.
#[test]
fn a_second_daemon_is_refused() {
    let Some(host) = Host::process() else { return };
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    let other = tempfile::tempdir().unwrap();
    // The last `-e` is used instead of the test's own.
    let mut second =
        Daemon::launch(other.path(), &[], &["-e".into(), host.daemon().endpoint().to_owned()]);
    let status = second.wait_for_end();
    let said = fs::read_to_string(other.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("in use"), "{said}");
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    assert_eq!(host.show("a").attach_count, 1);
    assert_eq!(left(host.dir()), ["api", "qemu-vhost-a", "qemu-vhost-b"]);
}

/// Two daemons in one folder: each has its own vnics, and neither takes the other's sockets. The
/// successor of a killed one takes over its sockets, and none of the other daemon.
#[test]
fn two_daemons_in_one_folder() {
    let Some(host) = Host::process() else { return };
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    let options = ["-e".into(), format!("ipc://{}/other", host.dir().display())];
    let mut other = Host::of(Daemon::start_in(host.dir(), &[], &options));
    let mut c = other.station(&Nic::bypass("c", mac(1), 1), &usual());
    let mut d = other.station(&Nic::bypass("d", mac(2), 1), &usual());
    let mut others = streams(&c, &d);
    let refused = other.daemon().ask(Daemon::nic_add(&Nic::bypass("a", mac(3), 1))).unwrap_err();
    assert!(refused.contains("somebody listens on"), "{refused}");
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    exchange(&mut c, &mut d, &mut others, &[60, 1514, 9000]);
    assert_eq!(
        left(host.dir()),
        ["api", "other", "qemu-vhost-a", "qemu-vhost-b", "qemu-vhost-c", "qemu-vhost-d"]
    );
    other.daemon().signal("KILL");
    other.daemon_mut().wait_for_end();
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    let mut successor = Daemon::start_in(host.dir(), &[], &options);
    successor.ask(Daemon::nic_add(&Nic::bypass("c", mac(1), 1))).unwrap();
    successor.signal("TERM");
    assert_eq!(successor.wait_for_end().code(), Some(0));
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    assert_eq!(left(host.dir()), ["api", "qemu-vhost-a", "qemu-vhost-b", "qemu-vhost-d"]);
    assert_eq!(host.show("a").attach_count, 1);
}

/// After a kill, the leftovers are no obstacle to the next daemon, and guests that reconnect go on
/// where they were.
#[test]
fn killed_and_started_again() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let room = tempfile::tempdir().unwrap();
    let mut host = Host::of(Daemon::start_in(room.path(), &[], &[]));
    let nics = [Nic::bypass("a", mac(1), 1), Nic::bypass("b", mac(2), 1).client()];
    let mut a = host.station(&nics[0], &usual());
    let mut b = host.station(&nics[1], &usual());
    let mut both = streams(&a, &b);
    for round in 0..5 {
        exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000].repeat(30));
        host.daemon().signal("KILL");
        host.daemon_mut().wait_for_end();
        assert!(a.vm.connection.wait_closed(PATIENCE) && b.vm.connection.wait_closed(PATIENCE));
        let (gone_a, gone_b) = (a.crash(), b.crash());
        host = Host::of(Daemon::start_in(room.path(), &[], &[]));
        for nic in &nics {
            host.add(nic).unwrap();
        }
        (a, b) = (gone_a.back(), gone_b.back());
        b.vm.connection.sync().unwrap();
        assert_eq!(host.show("a").attach_count, 1, "round {round}");
    }
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
}

/// The daemon raises its limit of open files as far as it may. Beyond that it refuses a vnic, names
/// the limit to raise, and serves all others.
#[test]
fn the_limit_of_open_files() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let host = Host::of(Daemon::start_with(&["prlimit", "--nofile=64:4096"], &[]));
    let limits = fs::read_to_string(format!("/proc/{}/limits", host.daemon().pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(soft >= 4096, "{line}");

    // The daemon has no privilege to raise a hard limit.
    let unprivileged =
        ["setpriv", "--bounding-set", "-sys_resource", "prlimit", "--nofile=200:200"];
    let host = Host::of(Daemon::start_with(&unprivileged, &[]));
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    let mut refused = None;
    for n in 0..200 {
        if let Err(why) = host.add(&Nic::bypass(&format!("n{n}"), mac(100 + n), 2)) {
            refused = Some(why);
            break;
        }
    }
    let refused = refused.expect("200 files are not enough for 200 vnics");
    assert!(refused.contains("200 files") && refused.contains("LimitNOFILE"), "{refused}");
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    // All accepted vnics can be used.
    let ids: Vec<String> = host.ids().into_iter().filter(|id| id.starts_with('n')).collect();
    let guests: Vec<Vm> = ids
        .iter()
        .map(|id| {
            let mut vm =
                Vm::connect(host.dir().join(format!("qemu-vhost-{id}")), &usual(), PATIENCE)
                    .unwrap();
            vm.connection.sync().unwrap();
            vm
        })
        .collect();
    assert!(ids.iter().all(|id| host.show(id).attached));
    // A removed vnic makes room.
    host.remove(&ids[0]);
    host.add(&Nic::bypass("new", mac(999), 2)).unwrap();
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    drop(guests);
}

/// After hundreds of vnics with guests were added and removed, no descriptor, thread or mapping is
/// left.
#[test]
fn nothing_leaks() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let mut steady = host.station(&Nic::bypass("steady", mac(1), 1), &usual());
    let mut other = host.station(&Nic::bypass("other", mac(2), 1), &usual());
    let mut both = streams(&steady, &other);
    exchange(&mut steady, &mut other, &mut both, &[60, 1514, 9000]);
    host.station(&Nic::bypass("warm-up", mac(3), 1), &usual());
    host.remove("warm-up");
    let count = || (daemon.descriptors(), daemon.threads(), daemon.guest_mappings());
    let before = count();
    let mut choices = Choices::new(1);
    for round in 0..100 {
        let nic = Nic::bypass(&format!("n{}", round % 3), mac(10 + round % 3), 1);
        let nic = if choices.below(2) == 0 { nic.client() } else { nic };
        let mut station = host.station(&nic, &machine(features::MODERN, 1524));
        for _ in 0..choices.below(3) {
            station = match choices.below(3) {
                0 => station.crash().back(),
                1 => station.detach().back(),
                _ => station.reboot(&usual()),
            };
        }
        if choices.below(4) == 0 {
            // A front end that leaves in the middle of its set-up.
            drop(station);
            if !nic.client {
                let mut connection = Connection::connect(
                    host.dir().join(format!("qemu-vhost-{}", nic.id)),
                    PATIENCE,
                )
                .unwrap();
                connection.negotiate(features::MODERN, Connection::usual_protocol()).unwrap();
                drop(connection);
            }
        }
        host.remove(&nic.id);
        if round % 10 == 0 {
            exchange(&mut steady, &mut other, &mut both, &[60, 1514, 9000]);
        }
    }
    eventually("everything is closed", || count() == before);
    assert_eq!(left(host.dir()), ["api", "qemu-vhost-other", "qemu-vhost-steady"]);
}

/// The daemon names an option that it cannot honour, and does not start.
#[test]
fn options_that_cannot_be_honoured() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let key = tempfile::NamedTempFile::new().unwrap();
    let key = key.path().to_str().unwrap().to_owned();
    for (options, named) in [
        (vec!["-k", key.as_str()], "key"),
        (vec!["--dpdk-args", "-w 01:00.0"], "dpdk-args"),
        (vec!["-e", "ipc:///a", "-e", "udp://*:1"], "udp"),
        (vec!["--dpdk-port", "1"], "dpdk-port"),
        (vec!["-m", "1500"], "nic-mtu"),
        (vec!["--fdb-ageing", "never"], "ageing"),
        (vec!["--no-such-option"], "no-such-option"),
    ] {
        let room = tempfile::tempdir().unwrap();
        let options: Vec<String> = options.into_iter().map(str::to_owned).collect();
        let mut daemon = Daemon::launch(room.path(), &[], &options);
        let status = daemon.wait_for_end();
        assert_eq!(status.code(), Some(2), "{options:?}");
        assert!(daemon.log().contains(named), "{options:?}: {}", daemon.log());
        assert_eq!(left(room.path()), [] as [&str; 0]);
    }
}

/// A vnic's socket is not open to everybody, and does not answer after the daemon was killed.
#[test]
fn sockets_answer_only_as_long_as_the_daemon_lives() {
    let Some(mut host) = Host::process() else { return };
    let path = host.add(&Nic::bypass("a", mac(1), 1)).unwrap();
    let socket = fs::metadata(&path).unwrap();
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    assert!(socket.file_type().is_socket());
    assert_eq!(
        socket.permissions().mode() & 0o002,
        0,
        "not for everybody: {:o}",
        socket.permissions().mode()
    );
    drop(UnixStream::connect(&path).unwrap());
    host.daemon().signal("KILL");
    host.daemon_mut().wait_for_end();
    assert!(UnixStream::connect(&path).is_err());
    // The killed daemon left its session table in memory; the next one removes it.
    drop(Daemon::start_in(host.dir(), &[], &[]));
}

/// The option `-u` pins the worker to a processor.
#[test]
fn the_worker_is_pinned() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    for core in ["0", "1"] {
        let host = Host::of(Daemon::start_with(&[], &["-u".to_owned(), core.to_owned()]));
        let tasks = fs::read_dir(format!("/proc/{}/task", host.daemon().pid())).unwrap().flatten();
        let worker = tasks
            .map(|task| task.path())
            .find(|task| fs::read_to_string(task.join("comm")).unwrap() == "worker-0\n");
        let status = fs::read_to_string(worker.expect("there is a worker").join("status")).unwrap();
        let allowed =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).unwrap();
        assert_eq!(allowed, core);
    }
}

/// Standard output tells when guests attach and leave, in the words that other programs wait for.
#[test]
fn what_it_prints() {
    let Some(host) = Host::process() else { return };
    let path = host.add(&Nic::bypass("a", mac(1), 1)).unwrap();
    let path = path.display().to_string();
    let says =
        |line: String| eventually(&line, || host.daemon().log().lines().any(|said| said == line));
    says(format!("New vhost-user socket: {path}, zero-copy disable"));
    let station = Station {
        nic: Nic::bypass("a", mac(1), 1),
        path: path.clone().into(),
        listener: None,
        vm: Vm::connect(&path, &usual(), PATIENCE).unwrap(),
        config: usual(),
    };
    says(format!("VM connecting to socket: {path}"));
    drop(station);
    says(format!("VM disconnecting from socket: {path}"));
    assert!(
        Command::new("kill")
            .args(["-0", &host.daemon().pid().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// After an upgrade of libraries needrestart restarts services by itself: neither of ours, and all
/// others as before. It evaluates its configuration as Perl.
#[test]
fn needrestart_leaves_both_units_alone() {
    const EVALUATED: &str = "our %nrconf = (override_rc => { qr(^dbus) => 0 }); \
         eval do { local $/; <STDIN> }; die $@ if $@; \
         for my $rc (@ARGV) { print \"$rc\\n\" if grep { $rc =~ /$_/ } keys %{$nrconf{override_rc}} }";
    let units = [
        "butterflyd.service",
        "butterfly-holder.service",
        "dbus.service",
        "butterfly.service",
        "butterflyd-exporter.service",
        "my-butterflyd.service",
    ];
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/needrestart.conf");
    let perl = std::process::Command::new("perl")
        .args(["-we", EVALUATED])
        .args(units)
        .stdin(std::fs::File::open(config).unwrap())
        .output()
        .expect("perl (package perl-base) runs");
    assert!(perl.status.success() && perl.stderr.is_empty(), "{perl:?}");
    let left_alone = String::from_utf8(perl.stdout).unwrap();
    assert_eq!(left_alone.lines().collect::<Vec<_>>(), units[..3]);
}

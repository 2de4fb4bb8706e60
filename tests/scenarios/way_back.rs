//! The way back of an upgrade: the new program fails, or a signal comes, at whatever step. Programs
//! of builds with checks fail on purpose: `butterfly_layout::rehearsal`.

use std::{
    fs,
    io::Read,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use butterfly_tests::{
    Daemon, Host, Kind, eventually,
    programs::program,
    traffic::{exchange, streams},
};

use crate::{
    containers::container,
    lasting::{Place, is_attached, kill, pair},
    layouts::{Releases, start},
    upgrade::{SIZES, refused},
    uplink::{becomes, daemon_behind, ip},
};

/// Arguments of a daemon's process.
fn words(host: &Host) -> String {
    let words = fs::read(format!("/proc/{}/cmdline", host.daemon().pid())).unwrap();
    String::from_utf8(words).unwrap().replace('\0', " ")
}

/// Children of a daemon that prove themselves for it.
fn proofs(pid: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let is = |it: &u32| {
        let words = fs::read(format!("/proc/{it}/cmdline")).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{it}/stat")).unwrap_or_default();
        let mut rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let lives = rest.next().is_some_and(|state| state != "Z");
        let parent = rest.next().and_then(|parent| parent.parse::<u32>().ok());
        words == b"butterflyd\0--prove\0" && lives && parent == Some(pid)
    };
    all.filter_map(number).filter(is).collect()
}

/// Begins an upgrade, as a client of its own.
fn begin(host: &Host, program_of: &PathBuf) -> Child {
    let mut command = Command::new(program("butterfly"));
    command.arg("upgrade").arg(program_of).args(["-e", host.daemon().endpoint(), "-t", "20000"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of a client that fails. Returns what it says.
fn said(mut client: Child) -> String {
    let mut said = String::new();
    client.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!client.wait().unwrap().success(), "{said}");
    said
}

/// The new program has an error, panics or hangs, with the lease or at the last step: the one
/// before goes on, and says why.
#[test]
fn a_program_that_fails_gives_the_process_back() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let mut host = start(&place, &releases.with("old", ""));
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let (pid, declared) = (host.daemon().pid(), host.daemon().client_ok(&["dump"]));
    let failures = [
        ("error", "it was to fail in this rehearsal"),
        ("panic", "it panicked before it was ready"),
        ("hang", "it was not ready after 10 s"),
    ];
    let mut descriptors = None;
    for (how, why) in failures {
        for step in ["lease", "going"] {
            let program = releases.with("next", &format!("layout=2 fails={how}@{step}"));
            exchange(&mut a, &mut b, &mut both, &SIZES);
            let told = refused(&host, &["upgrade", program.to_str().unwrap()]);
            assert!(told.contains(why) && told.contains("the program before it goes on"), "{told}");
            exchange(&mut a, &mut b, &mut both, &SIZES.repeat(10));
            a.vm.connection.sync().unwrap();
            b.vm.connection.sync().unwrap();
            assert_eq!(
                (host.daemon().pid(), host.daemon().client_ok(&["dump"])),
                (pid, declared.clone())
            );
            let shown = host.daemon().client_ok(&["show"]);
            assert!(
                shown.contains(&format!("failed: butterflyd: {why}"))
                    || shown.contains(&format!("failed: {why}")),
                "{shown}"
            );
            assert!(shown.contains(", layout 1") && !shown.contains("degraded"), "{shown}");
            // Others may read the arguments, and nothing of it is in them.
            assert!(
                !words(&host).contains("rehearsal") && !words(&host).contains("ready"),
                "{}",
                words(&host)
            );
            let input = fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
            assert_eq!(input, PathBuf::from("/dev/null"));
            // This test's own connection to the API comes back when it likes, and those of clients
            // that ended are closed a little later.
            let most = *descriptors.get_or_insert_with(|| host.daemon().fewest_descriptors() + 1);
            eventually(&format!("no more than {most} descriptors are open"), || {
                host.daemon().descriptors() <= most
            });
        }
    }
    let events = host.daemon().client_ok(&["events"]);
    assert_eq!(events.matches(" upgrade-failed ").count(), 6, "{events}");
    assert!(!events.contains("guest-detached"), "{events}");
    // One that can goes on after all that.
    host.daemon().client_ok(&["upgrade", releases.with("good", "").to_str().unwrap()]);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    assert!(is_attached(&a) && is_attached(&b));
    assert!(!host.daemon().client_ok(&["show"]).contains("failed: "));
    host.daemon_mut().quit();
}

/// The process is killed as another program, directly after it became one, or later: the next one
/// goes on as after any death, be it of the one release or of the other.
#[test]
fn a_process_that_is_killed_on_the_way_is_one_that_died() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let (old, next) = (releases.with("old", ""), releases.with("next", "layout=2"));
    let mut host = start(&place, &old);
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let declared = host.daemon().client_ok(&["dump"]);
    // An error when there is no way back any more is a death, too.
    for end in ["kill@start", "kill@lease", "kill@going", "error@ready"] {
        for successor in [&old, &next, &old] {
            let killed = releases.with("killed", &format!("layout=2 fails={end}"));
            let client = begin(&host, &killed);
            host.daemon_mut().wait_for_end();
            host = start(&place, successor);
            said(client);
            exchange(&mut a, &mut b, &mut both, &SIZES);
            a.vm.connection.sync().unwrap();
            assert_eq!(host.daemon().client_ok(&["dump"]), declared);
        }
    }
    assert!(is_attached(&a) && is_attached(&b));
    host.daemon_mut().quit();
}

/// While a program proves itself, a second upgrade, and a commit, are refused. If the proof is
/// killed, the daemon goes on.
#[test]
fn one_upgrade_at_a_time() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let old = releases.with("old", "");
    let mut host = start(&place, &old);
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let client = begin(&host, &releases.with("slow", "layout=2 proves=slowly"));
    eventually("it proves itself", || !proofs(host.daemon().pid()).is_empty());
    let told = refused(&host, &["upgrade", old.to_str().unwrap()]);
    assert!(told.contains("another one is under way: the program proves itself"), "{told}");
    let told = refused(&host, &["upgrade", "--commit"]);
    assert!(told.contains("an upgrade is under way: the program proves itself"), "{told}");
    exchange(&mut a, &mut b, &mut both, &SIZES);
    proofs(host.daemon().pid()).into_iter().for_each(kill);
    let told = said(client);
    assert!(told.contains("its proof ended with signal: 9"), "{told}");
    exchange(&mut a, &mut b, &mut both, &SIZES);
    assert!(is_attached(&a) && is_attached(&b));
    host.daemon().client_ok(&["upgrade", old.to_str().unwrap()]);
    host.daemon_mut().quit();
}

/// The daemon is asked to end, or is killed, while a program proves itself: nothing is left of the
/// proof.
#[test]
fn an_end_in_a_proof_ends_the_proof() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let (old, slow) = (releases.with("old", ""), releases.with("slow", "proves=slowly"));
    let mut host = start(&place, &old);
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    for signal in ["TERM", "INT", "KILL"] {
        exchange(&mut a, &mut b, &mut both, &SIZES);
        let pid = host.daemon().pid();
        let client = begin(&host, &slow);
        eventually("it proves itself", || !proofs(pid).is_empty());
        let [proof] = proofs(pid)[..] else { panic!("one proof") };
        assert!(place.state().join("proof").exists());
        let begun = Instant::now();
        host.daemon().signal(signal);
        let status = host.daemon_mut().wait_for_end();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert_eq!(status.code(), (signal != "KILL").then_some(0));
        let lives = || fs::read(format!("/proc/{proof}/cmdline")).is_ok_and(|it| !it.is_empty());
        eventually("the proof ends", || !lives());
        eventually("the copy is gone", || !place.state().join("proof").exists());
        host = start(&place, &old);
        said(client);
        exchange(&mut a, &mut b, &mut both, &SIZES);
    }
    assert!(is_attached(&a) && is_attached(&b));
    host.daemon_mut().quit();
}

/// SIGTERM when the traffic stands still already: the daemon ends in order, and no other program
/// goes on.
#[test]
fn a_signal_at_the_boundary_stops_the_daemon() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let (old, waits) = (releases.with("old", ""), releases.with("waits", "fails=wait@boundary"));
    let mut host = start(&place, &waits);
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let client = begin(&host, &old);
    eventually("it is at the boundary", || {
        host.daemon().log().contains("goes on in the place of this program")
    });
    host.daemon().signal("TERM");
    assert_eq!(host.daemon_mut().wait_for_end().code(), Some(0));
    assert!(host.daemon().log().contains("a signal asked the daemon to stop"));
    host = start(&place, &old);
    assert!(host.daemon().client_ok(&["events"]).contains(" daemon-stopping "));
    said(client);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    assert!(is_attached(&a) && is_attached(&b));
    host.daemon_mut().quit();
}

/// Containers on two hosts whose uplinks are TAP devices ping each other all the time, while one
/// daemon becomes another program, again and again, and fails to.
#[test]
fn tap_devices_are_upgraded_under_traffic() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let releases = Releases::new();
    let (next, bad) =
        (releases.with("next", "layout=2"), releases.with("bad", "fails=error@going"));
    let state = tempfile::tempdir().unwrap();
    let bridge = ["link add br0 up type bridge stp_state 0 forward_delay 0 mcast_snooping 0"];
    let state_dir = state.path().join("state");
    let words = ["--ip", "42.0.0.1/24", "--uplink", "tap:up1", "--peer", "42.0.0.2", "--state-dir"];
    let words: Vec<&str> = words.into_iter().chain(state_dir.to_str()).collect();
    let near = daemon_behind(&bridge, &words);
    let space = format!("--net=/proc/{}/ns/net", near.pid());
    let words = "--ip 42.0.0.2/24 --uplink tap:up2 --peer 42.0.0.1".split(' ').map(str::to_owned);
    let far = Daemon::start_with(&["nsenter", &space], &words.collect::<Vec<_>>());
    becomes(&near, "up");
    for device in ["up1", "up2"] {
        ip(&near, &format!("link set dev {device} master br0"));
    }
    let (a, b) = (container(&near, "tap-a", 1), container(&far, "tap-b", 2));
    let c = container(&near, "tap-c", 3);
    eventually("they know each other", || a.pings("10.0.0.2") && a.pings("10.0.0.3"));
    let links = || [&a, &b, &c].map(|it| it.run("ip -o -4 addr show"));
    let before = links();
    let mut pings = [(&a, "10.0.0.2"), (&b, "10.0.0.1"), (&c, "10.0.0.2"), (&c, "10.0.0.1")]
        .map(|(from, to)| (from.spawn(&format!("ping -n -q -i 0.01 -c 1000 -W 5 {to}")), to));
    let refused = |program: &PathBuf| {
        let output = near.client(&["upgrade", program.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    };
    for round in 0..4 {
        near.client_ok(&["upgrade", next.to_str().unwrap()]);
        if round == 1 {
            refused(&bad);
        }
        assert_eq!(links(), before);
        assert!(a.pings("10.0.0.2") && a.pings("10.0.0.3"), "round {round}");
    }
    // It got answers all along: without any, ping fails.
    for (ping, to) in &mut pings {
        assert!(ping.wait().unwrap().success(), "{to}");
    }
    let events = near.client_ok(&["events"]);
    assert_eq!(events.matches(" daemon-resumed ").count(), 5, "{events}");
    assert!(!events.contains("guest-detached"), "{events}");
    Host::of(near).daemon_mut().quit();
}

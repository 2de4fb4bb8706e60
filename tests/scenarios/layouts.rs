//! Layouts: the next release reads what the one before left, and leaves it as it is until the
//! upgrade is committed. So long the one before can go on. Programs of builds with checks play
//! releases that there are not yet: `butterfly_layout::rehearsal`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use butterfly_layout::rehearsal::MARK;
use butterfly_packet::tcp::{ACK, SYN};
use butterfly_tests::{
    Daemon, Host, Nic, eventually,
    frames::mac,
    net::{Net, filtered, segment, v4},
    programs::{checked, program},
    traffic::{exchange, streams},
};

use crate::{
    lasting::{Place, is_attached, pair, processes_with},
    upgrade::{SIZES, folder, put, refused},
};

/// Programs that play releases, in a folder of root's.
pub(crate) struct Releases(tempfile::TempDir);

impl Releases {
    pub fn new() -> Releases {
        Releases(folder())
    }

    /// A program with words for a rehearsal.
    pub fn with(&self, name: &str, words: &str) -> PathBuf {
        let mut whole = fs::read(checked("butterflyd")).unwrap();
        if !words.is_empty() {
            whole.extend(format!("{MARK}{words}\n").into_bytes());
        }
        put(&self.0, name, &whole)
    }
}

/// Starts a program on the state of a place.
pub(crate) fn start(place: &Place, program: &Path) -> Host {
    let daemon = Daemon::launch_program(program, place.0.path(), &[], &place.options());
    Host::of(daemon.ready())
}

fn die(host: &mut Host) {
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
}

fn upgrade(host: &Host, program: &Path) {
    host.daemon().client_ok(&["upgrade", program.to_str().unwrap()]);
}

/// Line of the store in `show`.
fn store(host: &Host) -> String {
    let shown = host.daemon().client_ok(&["show"]);
    shown.lines().find(|line| line.starts_with("  store ")).unwrap().to_owned()
}

const OPEN: &str = "the release before can go on, until `butterfly upgrade --commit`";

#[test]
fn the_release_before_goes_on_until_the_commit() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let (old, next) = (releases.with("old", ""), releases.with("next", "layout=2"));
    let third = releases.with("third", "layout=3");
    let mut host = start(&place, &old);
    let [mut a, mut b] = pair(&mut host);
    let silent =
        host.station(&Nic::bypass("silent", mac(7), 1), &butterfly_tests::station::usual());
    host.add(&Nic::filtered("idle", mac(3), 2).ips(&["10.0.0.3"])).unwrap();
    host.daemon().client_ok(&["sg", "add", "web"]);
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    assert!(store(&host).ends_with(", layout 1"), "{}", store(&host));
    let told = host.daemon().client_ok(&["upgrade", "--commit"]);
    assert_eq!(told, "the store is of the newest layout already, 1: nothing to do\n");
    let told = refused(&host, &["upgrade", third.to_str().unwrap()]);
    assert!(
        told.contains("it has layout 1, and this program reads layouts 2 and 3 only"),
        "{told}"
    );
    assert!(told.contains("first run one that reads layout 1, too"), "{told}");

    // There and back, twice. Each of both changes what is declared, and a front end's state.
    let mut change = 0;
    for program in [&next, &old, &next, &next, &old, &next] {
        let declared = host.daemon().client_ok(&["dump"]);
        upgrade(&host, program);
        assert_eq!(host.daemon().client_ok(&["dump"]), declared);
        exchange(&mut a, &mut b, &mut both, &SIZES);
        a.vm.connection.sync().unwrap();
        change += 1;
        host.add(&Nic::bypass(&format!("more-{change}"), mac(10 + change), 3)).unwrap();
        assert_eq!(store(&host).contains(OPEN), program == &next, "{}", store(&host));
        assert!(store(&host).contains(", layout 1"));
    }
    let events = host.daemon().client_ok(&["events"]);
    assert!(
        !events.contains("guest-detached") && !events.contains("upgrade-committed"),
        "{events}"
    );

    let before = host.daemon().client_ok(&["dump"]);
    let told = host.daemon().client_ok(&["upgrade", "--commit"]);
    assert!(
        told.starts_with("the store is rewritten in layout 2, after layout 1: 11 records"),
        "{told}"
    );
    let told = host.daemon().client_ok(&["upgrade", "--commit"]);
    assert_eq!(told, "the store is of the newest layout already, 2: nothing to do\n");
    assert!(store(&host).ends_with(", layout 2"), "{}", store(&host));
    assert_eq!(host.daemon().client_ok(&["events"]).matches(" upgrade-committed ").count(), 1);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    a.vm.connection.sync().unwrap();

    // No way back, and nothing has changed by the attempt.
    let told = refused(&host, &["upgrade", old.to_str().unwrap()]);
    assert!(told.contains("it has layout 2, and this program reads layout 1 only"), "{told}");
    assert!(told.contains("since `butterfly upgrade --commit` there is no way back"), "{told}");
    exchange(&mut a, &mut b, &mut both, &SIZES);
    assert_eq!(host.daemon().client_ok(&["dump"]), before);

    // The next one again, after a death, and the one after that: it finds states of both layouts.
    upgrade(&host, &next);
    die(&mut host);
    let mut host = start(&place, &next);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    upgrade(&host, &third);
    assert!(store(&host).contains(", layout 2") && store(&host).contains(OPEN));
    host.daemon().client_ok(&["upgrade", "--commit"]);
    upgrade(&host, &third);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    assert!(is_attached(&a) && is_attached(&b) && is_attached(&silent));
    assert_eq!(host.daemon().client_ok(&["dump"]), before);
    let events = host.daemon().client_ok(&["events"]);
    assert!(!events.contains("guest-detached"), "{events}");
    host.daemon_mut().quit();
    // And from the store alone.
    let mut host = start(&place, &third);
    assert_eq!(host.daemon().client_ok(&["dump"]), before);
    host.daemon_mut().quit();
}

/// Sessions, counters and events go there and back, and through a commit.
#[test]
fn conversations_go_on_from_layout_to_layout() {
    let Some(mut place) = Place::new() else { return };
    place.1 = ["--tcp-pickup", "0"].map(str::to_owned).to_vec();
    let releases = Releases::new();
    let (old, next) = (releases.with("old", ""), releases.with("next", "layout=2"));
    let third = releases.with("third", "layout=3");
    let mut net = Net::of(start(&place, &old));
    net.group("web", &["in tcp 80-81 0.0.0.0/0"], &[]);
    net.attach(&filtered("a", 1, ""));
    net.attach(&filtered("b", 2, "web"));
    let ports = (1080, 80);
    assert_eq!(net.send("a", &v4(1, 2).tcp(&segment(ports, SYN, 100, 0), b"")), "b");
    let answer = segment((80, 1080), SYN | ACK, 500, 101);
    assert_eq!(net.send("b", &v4(2, 1).tcp(&answer, b"")), "a");
    assert_eq!(net.send("a", &v4(1, 2).tcp(&segment(ports, ACK, 101, 501), b"")), "b");
    let foreign = v4(1, 2).tcp(&segment((7, 80), ACK, 1, 1), b"x");
    let goes_on = |net: &mut Net| {
        assert_eq!(net.send("a", &foreign), "a.tcp-no-session");
        assert_eq!(net.send("b", &v4(2, 1).tcp(&segment((80, 1080), ACK, 501, 101), b"yes")), "a");
        assert_eq!(net.send("a", &v4(1, 2).tcp(&segment(ports, ACK, 101, 504), b"no")), "b");
    };
    goes_on(&mut net);
    for (program, commits) in [
        (&next, false),
        (&old, false),
        (&next, true),
        (&next, false),
        (&third, true),
        (&third, false),
    ] {
        let counted = (net.host.show("a").received, net.host.show("b").drops);
        upgrade(&net.host, program);
        assert_eq!((net.host.show("a").received, net.host.show("b").drops), counted);
        goes_on(&mut net);
        if commits {
            net.host.daemon().client_ok(&["upgrade", "--commit"]);
            goes_on(&mut net);
        }
    }
    let events = net.host.daemon().client_ok(&["events"]);
    assert!(events.contains(" #1 daemon-started "), "{events}");
    let shown = net.host.daemon().client_ok(&["show"]);
    assert!(!shown.contains("not read") && !shown.contains("begin anew"), "{shown}");
    net.host.daemon_mut().quit();
}

/// A store of a release that is too new, or too old, is refused by name, and left as it is.
#[test]
fn a_store_of_another_time_is_left_alone() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let programs = [("old", ""), ("next", "layout=2"), ("third", "layout=3")];
    let [old, next, third] = programs.map(|(name, words)| releases.with(name, words));
    let mut host = start(&place, &third);
    host.add(&Nic::bypass("a", mac(1), 1)).unwrap();
    assert!(store(&host).ends_with(", layout 3"), "a new one has the newest layout");
    host.daemon_mut().quit();
    eventually("the holder ends", || place.holder().is_none());
    // The writer closes the file behind the daemon.
    let state = place.state();
    let writes = ["--write-store", state.to_str().unwrap()];
    eventually("the writer ends", || processes_with(&writes).is_empty());
    let file = place.state().join("declared.redb");
    let content = fs::read(&file).unwrap();
    let mut host = start(&place, &old);
    let refused = host.add(&Nic::bypass("b", mac(2), 1)).unwrap_err();
    assert!(refused.contains("it has layout 3, and this program reads layout 1 only"), "{refused}");
    assert!(store(&host).contains("changes are refused"), "{}", store(&host));
    let told = host.daemon().client(&["upgrade", "--commit"]);
    assert_eq!(told.status.code(), Some(1));
    // It is no store of it to rewrite, nor to give to another one.
    assert!(String::from_utf8(told.stderr).unwrap().contains("it has layout 3"));
    host.daemon_mut().quit();
    assert!(fs::read(&file).unwrap() == content, "the file was changed");
    eventually("the holder ends", || place.holder().is_none());
    // The one before reads it.
    let mut host = start(&place, &releases.with("fourth", "layout=4"));
    assert_eq!(host.ids(), ["a"]);
    assert!(store(&host).contains(", layout 3") && store(&host).contains(OPEN));
    host.daemon_mut().quit();
    eventually("the holder ends", || place.holder().is_none());
    // One that has layout 3 in force itself.
    let mut host = start(&place, &next);
    assert!(host.add(&Nic::bypass("b", mac(2), 1)).unwrap_err().contains("layouts 1 and 2 only"));
    host.daemon_mut().quit();
}

/// Deaths of daemon and writer, at each step: the state is whole, and of one layout or the other.
#[test]
fn deaths_between_the_steps_leave_either_layout() {
    let Some(place) = Place::new() else { return };
    let releases = Releases::new();
    let (old, next) = (releases.with("old", ""), releases.with("next", "layout=2"));
    let mut host = start(&place, &old);
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let declared = host.daemon().client_ok(&["dump"]);
    let mut whole = |host: &Host, layout: &str| {
        exchange(&mut a, &mut b, &mut both, &SIZES);
        a.vm.connection.sync().unwrap();
        assert_eq!(host.daemon().client_ok(&["dump"]), declared);
        assert!(store(host).contains(layout), "{}", store(host));
    };
    // Uncommitted: either goes on after the other's death, too.
    for program in [&next, &old, &next, &old] {
        die(&mut host);
        host = start(&place, program);
        whole(&host, ", layout 1");
    }
    // The writer dies before the commit: nothing has changed, and the way back is there.
    upgrade(&host, &releases.with("writer", "layout=2 fails=kill@store"));
    let told = refused(&host, &["upgrade", "--commit"]);
    assert!(told.contains("its writer ended"), "{told}");
    whole(&host, ", layout 1");
    upgrade(&host, &old);
    whole(&host, ", layout 1");
    // The daemon dies when the store has the layout, and nothing else has.
    upgrade(&host, &releases.with("raised", "layout=2 fails=kill@raised"));
    let output = host.daemon().client(&["upgrade", "--commit", "-t", "2000"]);
    assert!(!output.status.success());
    host.daemon_mut().wait_for_end();
    let mut host = start(&place, &next);
    eventually("the store is read", || store(&host).ends_with(", layout 2"));
    whole(&host, ", layout 2");
    assert!(refused(&host, &["upgrade", old.to_str().unwrap()]).contains("no way back"));
    // One that was started by hand all the same forwards, refuses changes, and leaves the store.
    die(&mut host);
    let mut wrong = start(&place, &old);
    let told = wrong.add(&Nic::bypass("b", mac(2), 1)).unwrap_err();
    assert!(told.contains("it has layout 2, and this program reads layout 1 only"), "{told}");
    die(&mut wrong);
    let mut host = start(&place, &next);
    assert_eq!(host.daemon().client_ok(&["dump"]), declared);
    eventually("the store is read", || store(&host).ends_with(", layout 2"));
    host.daemon_mut().quit();
}

/// The daemon, or the writer, is killed at any moment of the commit.
#[test]
fn a_commit_is_whole_or_not_at_all() {
    if Place::new().is_none() {
        return;
    }
    let releases = Releases::new();
    let (old, next) = (releases.with("old", ""), releases.with("next", "layout=2"));
    let (mut raised, mut not) = (0, 0);
    for round in 0..10u64 {
        let Some(place) = Place::new() else { return };
        let mut host = start(&place, &old);
        let [mut a, mut b] = pair(&mut host);
        for n in 0..30 {
            host.daemon().client_ok(&["sg", "add", &format!("group-{n}")]);
        }
        upgrade(&host, &next);
        let mut both = streams(&a, &b);
        exchange(&mut a, &mut b, &mut both, &SIZES);
        let declared = host.daemon().client_ok(&["dump"]);
        let mut commit = Command::new(program("butterfly"));
        commit.args(["upgrade", "--commit", "-t", "1000", "-e", host.daemon().endpoint()]);
        let mut commit = commit
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(1500 * round + 4000) {
            std::hint::spin_loop();
        }
        die(&mut host);
        commit.wait().unwrap();
        let mut host = start(&place, &next);
        eventually("the store is read", || store(&host).contains(", layout "));
        match store(&host).contains(", layout 2") {
            true => raised += 1,
            false => {
                not += 1;
                upgrade(&host, &old);
                assert_eq!(host.daemon().client_ok(&["dump"]), declared);
                upgrade(&host, &next);
            }
        }
        exchange(&mut a, &mut b, &mut both, &SIZES);
        assert!(is_attached(&a) && is_attached(&b));
        assert_eq!(host.daemon().client_ok(&["dump"]), declared);
        host.daemon().client_ok(&["upgrade", "--commit"]);
        assert!(store(&host).ends_with(", layout 2"));
        host.daemon_mut().quit();
    }
    println!("{raised} commits were made before a death, {not} were not");
}

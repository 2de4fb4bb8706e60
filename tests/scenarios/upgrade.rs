//! Another program goes on in the daemon's place, and guests notice nothing; or it cannot, and the
//! one before goes on.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::lasting::{Place, is_attached, pair};
use butterfly_tests::{
    Daemon, Host, Nic,
    frames::mac,
    programs::program,
    traffic::{exchange, streams},
};

pub(crate) const SIZES: [usize; 3] = [60, 1514, 9000];

/// A folder for programs, which nobody but root may write to.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("butterfly-test-").tempdir_in("/var/lib").unwrap()
}

/// Puts a program into a folder.
pub(crate) fn put(folder: &tempfile::TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Returns what the client says of an upgrade that fails.
pub(crate) fn refused(host: &Host, words: &[&str]) -> String {
    let output = host.daemon().client(words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn guests_notice_no_upgrade() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    host.add(&Nic::filtered("idle", mac(3), 2).ips(&["10.0.0.3"])).unwrap();
    let mut both = streams(&a, &b);
    let (pid, holder) = (host.daemon().pid(), place.holder().unwrap());
    let declared = host.daemon().client_ok(&["dump"]);
    let mut descriptors = None;
    for round in 1..=4 {
        exchange(&mut a, &mut b, &mut both, &SIZES.repeat(30));
        let told = host.daemon().client_ok(&["upgrade"]);
        assert!(told.contains("goes on; traffic stood still for "), "{told}");
        assert!(told.contains("by an upgrade from version "), "{told}");
        assert!(is_attached(&a) && is_attached(&b));
        exchange(&mut a, &mut b, &mut both, &SIZES);
        a.vm.connection.sync().unwrap();
        b.vm.connection.sync().unwrap();
        assert_eq!(host.daemon().client_ok(&["dump"]), declared);
        assert_eq!((host.daemon().pid(), place.holder()), (pid, Some(holder)));
        assert!(!host.daemon_mut().has_ended());
        // Nothing is handed on but what is meant.
        let now = host.daemon().descriptors();
        assert!(descriptors.is_none_or(|before| now <= before + 1), "{descriptors:?}, then {now}");
        descriptors.get_or_insert(now);
        let health = host.daemon().client_ok(&["show"]);
        assert!(health.contains(&format!("daemon {} of", round + 1)), "{health}");
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(name.trim(), "butterflyd");
    assert_eq!(fs::read_link(format!("/proc/{pid}/fd/0")).unwrap(), PathBuf::from("/dev/null"));
    let events = host.daemon().client_ok(&["events"]);
    assert_eq!(events.matches("upgrade-began").count(), 4, "{events}");
    assert_eq!(events.matches("daemon-resumed").count(), 4, "{events}");
    assert!(!events.contains("guest-detached"), "{events}");
    assert!(!place.state().join("proof").exists(), "the copy of the store is gone");
    // It can still be changed, kept and ended.
    host.add(&Nic::bypass("c", mac(4), 1)).unwrap();
    host.daemon_mut().quit();
}

/// A death after an upgrade is one like any other, and so is an upgrade after a death.
#[test]
fn deaths_and_upgrades_take_turns() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    for _ in 0..3 {
        host.daemon().client_ok(&["upgrade"]);
        exchange(&mut a, &mut b, &mut both, &SIZES);
        host.daemon().kill();
        host.daemon_mut().wait_for_end();
        host = place.start();
        exchange(&mut a, &mut b, &mut both, &SIZES);
    }
    assert!(is_attached(&a) && is_attached(&b));
    host.daemon_mut().quit();
}

/// A program that cannot go on is refused by name, and nothing has changed.
#[test]
fn a_program_that_cannot_go_on_is_refused() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    let room = folder();
    let whole = fs::read(program("butterflyd")).unwrap();
    let half = put(&room, "half", &whole[..100_000]);
    let text = put(&room, "text", b"#!/bin/sh\nexit 0\n");
    let silent = put(&room, "silent", &fs::read("/bin/true").unwrap());
    let failing = put(&room, "failing", &fs::read("/bin/false").unwrap());
    let writable = put(&room, "writable", &whole);
    fs::set_permissions(&writable, fs::Permissions::from_mode(0o777)).unwrap();
    let began = Instant::now();
    for (path, why) in [
        (&half, "its proof ended with signal"),
        (&text, "cannot open /proc/self/fd/"),
        (&silent, "said nothing"),
        (&failing, "its proof ended with exit status: 1"),
        (&writable, "nobody else may write to it"),
        (&room.path().join("nothing"), "No such file"),
    ] {
        let told = refused(&host, &["upgrade", path.to_str().unwrap()]);
        assert!(told.contains(why), "{}: {told}", path.display());
        exchange(&mut a, &mut b, &mut both, &SIZES);
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    let shown = host.daemon().client_ok(&["show"]);
    assert!(shown.contains("upgrade") && shown.contains("failed: "), "{shown}");
    assert!(shown.contains("not restarted"), "{shown}");
    // One that can goes on after all that.
    host.daemon().client_ok(&["upgrade"]);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    let shown = host.daemon().client_ok(&["show"]);
    assert!(!shown.contains("failed: "), "{shown}");
    host.daemon_mut().quit();
}

/// The proof finds what the configuration says by now.
#[test]
fn a_configuration_that_cannot_be_taken_over_is_refused() {
    let Some(place) = Place::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let ini = folder.path().join("ini");
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let write = |lines: &str| fs::write(&ini, format!("[general]\n{lines}\n")).unwrap();
    write("");
    let mut options = place.options();
    options.extend(["-c".to_owned(), ini.display().to_string()]);
    let mut host = Host::of(Daemon::start_in(folder.path(), &[], &options));
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    for (lines, why) in [
        ("log-level = loud".to_owned(), "does not take the configuration"),
        ("sessions = 20000".to_owned(), "all sessions would be lost"),
        (format!("state-dir = {}", folder.path().display()), "state-dir is another one"),
        ("socket-dir = /run".to_owned(), "socket-dir is another one"),
        ("name = other".to_owned(), "name or endpoint is another one"),
        (format!("metrics = {}", busy.local_addr().unwrap()), "in use"),
    ] {
        write(&lines);
        let told = refused(&host, &["upgrade"]);
        assert!(told.contains(why), "{lines}: {told}");
        exchange(&mut a, &mut b, &mut both, &SIZES);
    }
    // What takes a start takes an upgrade as well.
    write("metrics = 127.0.0.1:0");
    host.daemon().client_ok(&["upgrade"]);
    assert!(host.daemon().metrics().port() != 0);
    exchange(&mut a, &mut b, &mut both, &SIZES);
    host.daemon_mut().quit();
}

#[test]
fn without_a_state_directory_there_is_no_upgrade() {
    let Some(host) = Host::process() else { return };
    let told = refused(&host, &["upgrade"]);
    assert!(told.contains("without --state-dir nothing outlasts the daemon"), "{told}");
}

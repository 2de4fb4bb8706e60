//! Another program goes on in the daemon's place, and guests notice nothing; or it cannot, and the
//! one before goes on.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use crate::lasting::{Place, is_attached, pair};
use butterfly_tests::{
    Daemon, Host, Nic, eventually,
    frames::mac,
    programs::{self, program},
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
    programs::write(&path, content);
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
        // Nothing is handed on but what is meant. This test's own connection to the API comes back
        // when it likes, and those of clients that ended are closed a little later.
        let most = *descriptors.get_or_insert_with(|| host.daemon().fewest_descriptors() + 1);
        eventually(&format!("no more than {most} descriptors are open"), || {
            host.daemon().descriptors() <= most
        });
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

/// The script behind `systemctl reload` finds the running daemon by what that says, whatever the
/// configuration file says of the next one; and what goes on with another key.
#[test]
fn a_reload_finds_the_daemon_behind_an_edited_configuration() {
    let Some(mut place) = Place::new() else { return };
    let dir = place.0.path().to_owned();
    let (etc, bin) = (dir.join("etc/butterfly"), dir.join("bin"));
    fs::create_dir_all(&etc).unwrap();
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(program("butterfly"), bin.join("butterfly")).unwrap();
    let ask = dir.join("ask");
    let script = include_str!("../../packaging/ask.in");
    let sysconfdir = dir.join("etc").display().to_string();
    fs::write(&ask, script.replace("@sysconfdir@", &sysconfdir)).unwrap();
    let (ini, state) = (etc.join("butterflyd.ini"), place.state().display().to_string());
    let configure = |general: &str, security: &str| {
        let text = format!(
            "[general]\nname = edited\nstate-dir = {state}\n{general}\n[security]\n{security}\n"
        );
        fs::write(&ini, text).unwrap();
    };
    let keys = [
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "BAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    ];
    let key = dir.join("key");
    let set_key = |text: &str| {
        fs::write(&key, text).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let asked = |words: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(&ask).args(words).args(["-t", "20000"]).env("PATH", &path);
        let output = command.env("STATE_DIRECTORY", "/nowhere").output().unwrap();
        let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), told)
    };
    let ok = |words: &[&str]| {
        let (code, told) = asked(words);
        assert_eq!(code, Some(0), "{words:?}: {told}");
        told
    };
    configure("", "");
    place.1 = ["-c", ini.to_str().unwrap()].map(str::to_owned).to_vec();
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    assert!(ok(&["show"]).contains("butterflyd "));
    // Another endpoint; a key; another key in the same file; a mistake; neither key nor endpoint.
    let elsewhere = format!("endpoint = ipc://{}/elsewhere", dir.display());
    let with_key = format!("encryption_key_path = {}", key.display());
    configure(&elsewhere, "");
    assert!(ok(&["upgrade"]).contains("goes on"));
    for text in keys {
        set_key(text);
        configure(&elsewhere, &with_key);
        assert!(ok(&["upgrade"]).contains("goes on"));
        exchange(&mut a, &mut b, &mut both, &SIZES);
    }
    configure("endpoint = nonsense", &with_key);
    set_key("no key");
    let (code, told) = asked(&["upgrade"]);
    assert!(code == Some(1) && told.contains("does not take the configuration"), "{told}");
    configure("", "");
    assert!(ok(&["upgrade"]).contains("goes on"));
    exchange(&mut a, &mut b, &mut both, &SIZES);
    assert!(is_attached(&a) && is_attached(&b));
    assert!(!place.state().join("answers.key").exists());
    // What another daemon said is not believed.
    fs::write(place.state().join("answers.conf"), "endpoint=ipc:///nowhere\n").unwrap();
    configure(&format!("endpoint = ipc://{}/api", dir.display()), "");
    assert!(ok(&["show"]).contains("butterflyd "));
    ok(&["shutdown"]);
    host.daemon_mut().wait_for_end();
}

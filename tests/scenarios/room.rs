//! Rooms: programs of a distribution run in them as on a machine of their own, and can change
//! nothing of this one.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use butterfly_tests::within;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Makes all files unchangeable but those of the directory that is given, and gives /etc, /run and
/// /var/lib contents of their own. The room lasts as long as the last program.
const FURNISH: &str = "
    mount --make-rprivate /
    mount --bind $1 $1
    mkdir $1/etc
    for name in alternatives dhcp fstab group hosts iproute2 ld.so.cache ld.so.conf ld.so.conf.d \
        localtime nsswitch.conf passwd protocols services; do
        [ ! -e /etc/$name ] || cp -a /etc/$name $1/etc
    done
    echo $2 >$1/etc/machine-id
    : >$1/etc/resolv.conf
    mount -o remount,bind,ro /
    mount --bind $1/etc /etc
    mount -t tmpfs none /run
    mount -t tmpfs none /var/lib
    mount -t sysfs none /sys
    mount -o remount,bind,ro /sys
    hostname guest
    ip link set dev lo up
    : >$1/ready
    exec sleep 600";

/// Time in which a command in a room ends, or what a program does there is done.
const PATIENCE: Duration = Duration::from_secs(20);

/// Namespaces of network, mounts, processes and host name. All that runs in them ends with this,
/// also if the test is killed.
pub(crate) struct Room {
    holder: Child,
    /// Process that is the first one in the room, as this machine numbers it.
    init: u32,
    programs: Mutex<Vec<Child>>,
    dir: TempDir,
}

impl Room {
    /// Makes a room. Programs that make ids of the machine's take this number for it.
    pub(crate) fn new(machine: u32) -> Room {
        let dir = tempfile::Builder::new().prefix("bfly-room-").tempdir().unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--mount", "--uts"]);
        command.args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc"]);
        command.args(["sh", "-ec", FURNISH, "sh"]).arg(dir.path()).arg(format!("{machine:032x}"));
        let log = fs::File::create(dir.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut room =
            Room { holder: command.spawn().unwrap(), init: 0, programs: Mutex::default(), dir };
        let children = format!("/proc/{0}/task/{0}/children", room.holder.id());
        within(PATIENCE, "a room", || {
            if room.init == 0 {
                let of_holder = fs::read_to_string(&children).unwrap_or_default();
                room.init = of_holder.trim().parse().unwrap_or_default();
            }
            let ended = room.holder.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", room.log("log"));
            room.init != 0 && room.dir.path().join("ready").exists()
        });
        room
    }

    /// Returns the path of its network namespace.
    pub(crate) fn netns(&self) -> String {
        format!("/proc/{}/ns/net", self.init)
    }

    /// Returns the number of its first process.
    pub(crate) fn init(&self) -> String {
        self.init.to_string()
    }

    /// Returns its directory, which has the same path in it, and where it may write.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns what was written to a file of its directory.
    pub(crate) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name)).unwrap_or_default()
    }

    /// Returns the path of a file in its /etc.
    pub(crate) fn etc(&self, name: &str) -> PathBuf {
        self.dir().join("etc").join(name)
    }

    /// Returns a command that runs a script in the room, for so many seconds at most.
    fn command(&self, seconds: &str, script: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args([seconds, "nsenter", "-t", &self.init(), "-n", "-m", "-p", "-u"]);
        command.args(["sh", "-ec", script]).stdin(Stdio::null());
        command
    }

    /// Runs a script in the room and waits for its end.
    pub(crate) fn output(&self, script: &str) -> Output {
        self.command("20", script).output().unwrap()
    }

    /// Runs a script that must succeed. Returns its output.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        let output = self.output(script);
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a program in the room. It writes to the file `log` of the room's directory.
    pub(crate) fn spawn(&self, log: &str, script: &str) {
        let path = self.dir().join(log);
        let file = fs::File::options().create(true).append(true).open(path).unwrap();
        let mut command = self.command("600", script);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        self.programs.lock().unwrap().push(command.spawn().unwrap());
    }

    /// Returns whether an address answers within a second.
    pub(crate) fn pings(&self, address: &str) -> bool {
        self.output(&format!("ping -n -c 1 -W 1 {address}")).status.success()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // The first process of a room ends after all others. Killing the holder first would leave
        // them to end while their directory is removed.
        match Pid::from_raw(self.init as i32) {
            Some(init) => drop(kill_process(init, Signal::KILL)),
            None => drop(self.holder.kill()),
        }
        let _ = self.holder.wait();
        for program in self.programs.lock().unwrap().iter_mut() {
            let _ = program.wait();
        }
    }
}

/// Waits until `told` is wanted, and fails with what was told last.
#[track_caller]
pub(crate) fn awaits(what: &str, told: impl Fn() -> String, wanted: impl Fn(&str) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        let last = told();
        if wanted(&last) {
            return;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}\n{last}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

//! Upgrades: another program goes on in this one's place, while machines stay connected.
//!
//! 1. The program that is to come proves itself on copies of all that it will find, in a process of
//!    its own (`proof`). The daemon works on meanwhile. Whatever the proof cannot do, fails the
//!    upgrade, and nothing has changed.
//! 2. The daemon answers what was asked, ends its packet threads, writes the last checkpoint, and
//!    its process becomes the new program ([`passage`]). The number of the process stays, so for
//!    the service manager nothing happens. The lease of the holder passes to the same process.
//! 3. The new program goes on as after a crash. If it cannot, or is not ready in time, the process
//!    becomes the old program again, which tells why.

mod case;
pub mod passage;
pub mod program;

pub use case::Case;

use crate::host::signals::Calls;
use passage::Came;
use program::Program;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Word by which a program proves itself on the [`Case`] that is its standard input.
pub const PROVE: &str = "--prove";
/// Words of a program that is proved. Only a butterflyd says them.
pub const PROVED: &str = "butterflyd: proved";
/// Longest time of a proof. Below the time that systemd gives a reload.
const PROOF: Duration = Duration::from_secs(45);
/// Most bytes that a proof says.
const SAID: u64 = 64 << 10;

/// Step of an upgrade.
#[derive(Debug, Default)]
pub enum Step {
    /// None is under way.
    #[default]
    None,
    /// The store is being copied for the program that is to prove itself.
    Copying(Program),
    /// The program proves itself.
    Proving(Arc<Proof>),
    /// The program is proved, and waits for the end of what was asked.
    Proved(Program),
}

impl Step {
    /// Words for what an upgrade does now.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Step::None => None,
            Step::Copying(_) => Some("the store is copied"),
            Step::Proving(_) => Some("the program proves itself"),
            Step::Proved(_) => Some("the program goes on soon"),
        }
    }
}

/// Upgrades as the daemon knows them.
pub struct Upgrade {
    /// Path of the program that this process was started from.
    started_from: PathBuf,
    /// File of the sessions.
    sessions: Option<PathBuf>,
    pub step: Step,
    /// Why the last one failed.
    pub failed: Option<String>,
    /// True if this process came by one.
    pub came: bool,
    calls: Calls,
}

impl Upgrade {
    /// Begins with none. `came`: how this process came to be; `sessions`: the file of its sessions.
    pub fn new(calls: Calls, came: &Came, sessions: Option<PathBuf>) -> Self {
        let started_from = std::env::current_exe().unwrap_or_default();
        let failed = match came {
            Came::FellBack { why } => Some(why.clone()),
            _ => None,
        };
        let came = matches!(came, Came::Upgraded { .. });
        Self { started_from, sessions, step: Step::None, failed, came, calls }
    }

    /// Ends a proof that is under way: this process is about to end.
    pub fn end_proof(&self) {
        if let Step::Proving(proof) = &self.step {
            proof.end();
        }
    }

    /// True after SIGHUP, once.
    pub fn hung_up(&self) -> bool {
        self.calls.hung_up()
    }

    /// The way to call the main thread.
    pub fn calls(&self) -> Calls {
        self.calls.clone()
    }

    /// The file of the sessions.
    pub fn sessions(&self) -> Option<PathBuf> {
        self.sessions.clone()
    }

    /// Path from which a program is started if no other one is named: where a package puts the next
    /// one, whose predecessor has lost its name.
    pub fn usual(&self) -> PathBuf {
        let path = self.started_from.to_string_lossy();
        path.strip_suffix(" (deleted)").map_or_else(|| self.started_from.clone(), PathBuf::from)
    }
}

/// A proof that is under way.
#[derive(Debug)]
pub struct Proof {
    /// Its process, and all that this starts: nothing of it is left when the proof is over.
    group: Option<Pid>,
    /// The program, or the reason why it failed.
    outcome: Mutex<Option<Result<Program, String>>>,
}

impl Proof {
    /// Takes the result, once there is one.
    pub fn take(&self) -> Option<Result<Program, String>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn end(&self) {
        self.group.map(|group| kill_process_group(group, Signal::KILL));
    }
}

/// Has `program` prove itself on `case`, in a process that ends by itself. The outcome is there
/// when `told` is called.
pub fn prove(
    program: Program,
    case: &Case,
    told: impl FnOnce() + Send + 'static,
) -> std::io::Result<Arc<Proof>> {
    let child = Command::new(program.path())
        .arg0("butterflyd")
        .arg(PROVE)
        .stdin(Stdio::from(case.file()?))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env_remove("NOTIFY_SOCKET")
        .process_group(0)
        .spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let proof = Arc::new(Proof { group, outcome: Mutex::default() });
    let to = proof.clone();
    thread::Builder::new().name("upgrade".into()).spawn(move || {
        let result = wait(child, &to).map(|()| program);
        *to.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        told();
    })?;
    Ok(proof)
}

/// Waits for the end of a proof. A failed one says why.
fn wait(mut child: Child, proof: &Proof) -> Result<(), String> {
    let until = Instant::now() + PROOF;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                proof.end();
                // One that hangs in a disk ends when that goes on.
                let _ =
                    thread::Builder::new().name("upgrade-end".into()).spawn(move || child.wait());
                return Err(format!("its proof takes longer than {} s", PROOF.as_secs()));
            }
            Err(why) => return Err(format!("its proof cannot be watched: {why}")),
        }
    };
    proof.end();
    let mut proved = String::new();
    if let Some(from) = child.stdout.take() {
        let _ = from.take(SAID).read_to_string(&mut proved);
    }
    if status.success() && proved.trim() == PROVED {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(from) = child.stderr.take() {
        let _ = from.take(SAID).read_to_string(&mut said);
    }
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match said.is_empty() {
        true => Err(format!("its proof ended with {status} and said nothing")),
        false => Err(format!("its proof ended with {status}: {}", said.join("; "))),
    }
}

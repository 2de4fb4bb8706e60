//! Runs test programs against one mutant until a test fails.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::workshop::Program;

/// Tests that run together: a program and a selection of its tests.
#[derive(Clone, Debug)]
pub struct Step {
    pub program: Program,
    /// Text that the names of the tests contain; None runs all.
    pub only: Option<String>,
    /// Limit of its processor time, which does not depend on the load of the machine.
    pub limit: Duration,
}

/// How a step ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    Passed,
    /// The first test that failed, or how the program failed.
    Noticed(String),
}

/// Memory limit in bytes: more than any test needs.
const MEMORY: u64 = 1 << 30;
/// Time limit without progress in processor time, for a mutant that waits for ever.
const STUCK: Duration = Duration::from_secs(120);

/// Runs a step against mutant `number`. Returns its ending and the processor time spent.
pub fn run(step: &Step, number: u32, home: &Path) -> Result<(Ending, Duration)> {
    let mut child = Command::new(&step.program.path)
        .args(&step.only)
        .args(["--test-threads", "2"])
        .current_dir(home)
        .env("MUTANT", number.to_string())
        .env("CARGO_MANIFEST_DIR", home)
        .env("RUST_BACKTRACE", "0")
        .env("PROPTEST_RNG_SEED", "1")
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {}", step.program.path.display()))?;
    let noticed = watch(&mut child, step);
    if noticed.is_some() {
        child.kill()?;
    }
    // Read the processor time of the zombie: after `wait` it is gone.
    while !matches!(child_status(child.id()), Some('Z') | None) {
        thread::sleep(Duration::from_millis(5));
    }
    let spent = processor_time(child.id());
    let well = child.wait()?.success();
    let crash = || (!well).then(|| format!("{}: crashes", step.program.name));
    Ok((noticed.or_else(crash).map_or(Ending::Passed, Ending::Noticed), spent))
}

/// Watches a program until the end of its output. Returns what it noticed, if anything.
fn watch(child: &mut Child, step: &Step) -> Option<String> {
    let failures = failures(child);
    let (mut spent, mut advanced) = (Duration::ZERO, Instant::now());
    loop {
        match failures.recv_timeout(Duration::from_millis(100)) {
            Ok(test) => return Some(format!("{}: `{test}`", step.program.name)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        let now = processor_time(child.id());
        if now > spent {
            (spent, advanced) = (now, Instant::now());
        }
        if spent > step.limit || advanced.elapsed() > STUCK {
            return Some(format!("{}: does not end", step.program.name));
        }
        if memory(child.id()) > MEMORY {
            return Some(format!("{}: takes all memory", step.program.name));
        }
    }
}

/// Sends the names of failed tests as the program prints them.
fn failures(child: &mut Child) -> Receiver<String> {
    let (send, receive) = channel();
    if let Some(output) = child.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let failed =
                    line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED"));
                if let Some(test) = failed {
                    let _ = send.send(test.to_owned());
                }
            }
        });
    }
    receive
}

fn stat(process: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The fields behind the name, which may contain any characters.
    Some(text.rsplit_once(") ")?.1.split_whitespace().map(str::to_owned).collect())
}

fn child_status(process: u32) -> Option<char> {
    stat(process)?.first()?.chars().next()
}

/// Returns a process' processor time, which Linux shows in hundredths of a second.
fn processor_time(process: u32) -> Duration {
    let ticks = |fields: Vec<String>| {
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    };
    Duration::from_millis(stat(process).and_then(ticks).unwrap_or(0) * 10)
}

fn memory(process: u32) -> u64 {
    let pages = fs::read_to_string(format!("/proc/{process}/statm")).ok();
    let resident = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    resident.unwrap_or(0) * 4096
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, path::PathBuf};

    use super::*;

    fn ending(script: &str, limit: u64) -> Ending {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("program");
        fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program { name: "p".into(), path };
        let step = Step { program, only: None, limit: Duration::from_secs(limit) };
        run(&step, 1, &PathBuf::from("/")).unwrap().0
    }

    #[test]
    fn a_program_that_says_nothing_bad_passes() {
        assert_eq!(ending("echo test a ... ok", 60), Ending::Passed);
    }

    /// The program would run on for long; the trial ends it.
    #[test]
    fn the_first_failure_ends_the_trial() {
        let script = "echo test a::b ... FAILED; exec sleep 1000";
        assert_eq!(ending(script, 60), Ending::Noticed("p: `a::b`".into()));
    }

    #[test]
    fn a_crash_and_an_endless_loop_are_noticed() {
        assert_eq!(ending("kill -SEGV $$", 60), Ending::Noticed("p: crashes".into()));
        assert_eq!(ending("while :; do :; done", 1), Ending::Noticed("p: does not end".into()));
    }
}

//! Tells the programs which commit they were built from, for their version line.

use std::process::Command;

fn main() {
    // The log of HEAD grows with every commit and checkout. It is named only
    // if it exists: Cargo would run this script each time for a missing file.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| std::path::Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-changed=build.rs");

    let commit = git(&["log", "-1", "--format=%h"]).unwrap_or_else(|| "unknown".into());
    let date = git(&["log", "-1", "--format=%cd", "--date=format-local:%a %b %e %H:%M:%S %Y"])
        .unwrap_or_else(|| "unknown".into());
    let day =
        git(&["log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%d"]).unwrap_or_default();
    println!("cargo:rustc-env=BUTTERFLY_COMMIT_DAY={day}");
    println!("cargo:rustc-env=BUTTERFLY_COMMIT={commit}");
    println!("cargo:rustc-env=BUTTERFLY_COMMIT_DATE={date}");
}

/// The first line `git` prints, or nothing outside a checkout.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).env("TZ", "UTC").output().ok()?;
    if !output.status.success() {
        return None;
    }
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}

//! Paths of the programs under test.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// Returns the path of `butterflyd` or `butterfly`: in the directory that the environment variable
/// `BIN` names, else built like this test and in the same directory.
pub fn program(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| match std::env::var_os("BIN") {
        Some(directory) => directory.into(),
        None => build(),
    });
    let path = directory.join(name);
    assert!(
        path.is_file(),
        "{} is missing: run make build, or name the directory of the programs in BIN",
        path.display()
    );
    path
}

/// Returns the path of `butterflyd` or `butterfly` as it is built like this test, whatever `BIN`
/// names: with checks and fail points, which programs for use do not have.
pub fn checked(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(build).join(name)
}

/// Writes a program that all may run. Another process writes it: a child of another test would
/// inherit the open file for a moment, and a file that is open for writing cannot be run.
pub fn write(path: &Path, content: &[u8]) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"]).arg(path);
    let mut writer = writer.stdin(Stdio::piped()).spawn().expect("sh runs");
    writer.stdin.take().expect("a pipe").write_all(content).expect("sh reads");
    assert!(writer.wait().expect("sh ends").success(), "cannot write {}", path.display());
}

/// Builds the programs, as cargo does not build those of other packages for a test. Returns their
/// directory.
fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let directory =
        test.parent().and_then(Path::parent).expect("TARGET/PROFILE/deps/TEST").to_owned();
    let Some(cargo) = std::env::var_os("CARGO") else { return directory };
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--bin", "butterflyd", "--bin", "butterfly"]);
    build.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
    if let Some(target) = directory.parent() {
        build.arg("--target-dir").arg(target);
    }
    match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(profile) => drop(build.args(["--profile", profile])),
    }
    let status = build.status().expect("cargo runs");
    assert!(status.success(), "cannot build the programs under test: {build:?}");
    directory
}

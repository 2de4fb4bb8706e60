//! Place where the running daemon answers, for programs of its own user: a file in the state
//! directory, in the form of the client's configuration.
//!
//! The configuration file tells what the next daemon listens on, once an operator has edited it.
//! This file tells what the running one does, with a copy of its key. Nobody else gets into the
//! directory, which has mode 0700.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    thread,
};

/// The file, for `BUTTERFLY_CONFIG`.
const FILE: &str = "answers.conf";
/// The copy of the key that it names.
const KEY: &str = "answers.key";

/// Word by which a program writes the files, in a directory that follows.
pub const WRITE: &str = "--write-answers";

/// Has a process of its own write where the daemon answers: one that sleeps in a disk could not be
/// followed by another daemon. `endpoints`: those that it listens on first; `key`: the text of a
/// key file.
pub fn have_written<'a>(
    directory: &Path,
    endpoints: impl Iterator<Item = &'a str>,
    key: Option<&str>,
) -> io::Result<()> {
    let Some(endpoint) = nearest(endpoints) else { return Ok(()) };
    let mut child = Command::new("/proc/self/exe")
        .arg0("butterflyd")
        .arg(WRITE)
        .arg(directory)
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // Far less than a pipe takes at once.
        write!(input, "{endpoint}\n{}", key.unwrap_or_default())?;
    }
    let wait = move || match child.wait() {
        Ok(status) if status.success() => {}
        _ => tracing::warn!(
            "no file tells where this daemon answers: a reload finds it by the configuration file"
        ),
    };
    thread::Builder::new().name("answers".into()).spawn(wait).map(drop)
}

/// Writes what standard input says, as that process.
pub fn run(directory: &Path) -> Result<(), String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|why| why.to_string())?;
    let (endpoint, key) = text.split_once('\n').ok_or("it is not told what to write")?;
    let key = Some(key).filter(|key| !key.is_empty());
    let written = write(directory, endpoint, key);
    written.map_err(|why| format!("{}: {why}", directory.display()))
}

/// The endpoint that needs no interface, if there is one.
fn nearest<'a>(endpoints: impl Iterator<Item = &'a str>) -> Option<String> {
    endpoints.map(from_here).min_by_key(|endpoint| is_far(endpoint))
}

fn write(directory: &Path, endpoint: &str, key: Option<&str>) -> io::Result<()> {
    let mut text =
        format!("# where the running daemon answers: written by it\nendpoint={endpoint}\n");
    if let Some(key) = key {
        replace(&directory.join(KEY), key)?;
        text.push_str(&format!("key={KEY}\n"));
    }
    replace(&directory.join(FILE), &text)?;
    match key.map_or_else(|| fs::remove_file(directory.join(KEY)), |_| Ok(())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces a file, which is whole at any time.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

/// Returns an endpoint as a client on this host names it.
fn from_here(endpoint: &str) -> String {
    if let Some(path) = endpoint.strip_prefix("ipc://").filter(|path| !path.starts_with('@')) {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.into());
        return format!("ipc://{}", whole.display());
    }
    let parts = endpoint.strip_prefix("tcp://").and_then(|address| address.rsplit_once(':'));
    match parts {
        Some(("*", port)) => format!("tcp://{}:{port}", Ipv4Addr::LOCALHOST),
        Some((host, port)) => match host.trim_matches(['[', ']']).parse() {
            Ok(IpAddr::V4(any)) if any.is_unspecified() => {
                format!("tcp://{}:{port}", Ipv4Addr::LOCALHOST)
            }
            Ok(IpAddr::V6(any)) if any.is_unspecified() => {
                format!("tcp://[{}]:{port}", Ipv6Addr::LOCALHOST)
            }
            _ => endpoint.to_owned(),
        },
        None => endpoint.to_owned(),
    }
}

/// True if it depends on an interface.
fn is_far(endpoint: &str) -> bool {
    super::listen::is_beyond_this_host(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn endpoints_are_named_from_here() {
        for (bound, named) in [
            ("tcp://0.0.0.0:9999", "tcp://127.0.0.1:9999"),
            ("tcp://*:9999", "tcp://127.0.0.1:9999"),
            ("tcp://[::]:9999", "tcp://[::1]:9999"),
            ("tcp://192.0.2.1:9999", "tcp://192.0.2.1:9999"),
            ("ipc:///run/butterfly/api", "ipc:///run/butterfly/api"),
            ("ipc://@butterfly", "ipc://@butterfly"),
        ] {
            assert_eq!(from_here(bound), named);
        }
        let here = std::env::current_dir().unwrap();
        assert_eq!(from_here("ipc://api"), format!("ipc://{}/api", here.display()));
    }

    #[test]
    fn the_file_is_our_users_alone() {
        let room = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(room.path().join(name)).unwrap();
        let far_first = ["tcp://192.0.2.1:1", "tcp://0.0.0.0:2"];
        let nearest = nearest(far_first.into_iter()).unwrap();
        write(room.path(), &nearest, Some("secret")).unwrap();
        assert!(read(FILE).ends_with("\nendpoint=tcp://127.0.0.1:2\nkey=answers.key\n"));
        assert_eq!(read(KEY), "secret");
        for name in [FILE, KEY] {
            let mode = fs::metadata(room.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        write(room.path(), "ipc://@a", None).unwrap();
        assert!(read(FILE).ends_with("\nendpoint=ipc://@a\n"));
        assert_eq!(fs::read_dir(room.path()).unwrap().count(), 1);
    }
}

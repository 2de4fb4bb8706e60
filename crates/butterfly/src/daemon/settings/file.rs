//! The client's file: global options as lines `name=value`.

use super::{Given, variable};
use crate::failure::Failure;
use crate::line::slips::meant_word;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Names the file to read, instead of the others.
const NAMED: &str = "BUTTERFLY_CONFIG";
/// The file of the host.
const OF_THE_HOST: &str = "/etc/butterfly/client.conf";
/// The file of a user, in the folder for configurations.
const OF_A_USER: &str = "butterfly/client.conf";
/// Settings that a file may have.
const NAMES: [&str; 4] = ["endpoint", "key", "timeout", "legacy-encryption"];

/// Returns the settings of the files, the strongest first. Fails for a file that cannot be read or
/// understood.
pub fn read_all() -> Result<Vec<Given>, Failure> {
    if let Some(path) = variable(NAMED) {
        let path = PathBuf::from(path);
        let given = read(&path)?
            .ok_or_else(|| failed(&path, &format!("it is not there, and {NAMED} names it")))?;
        return Ok(vec![given]);
    }
    let folder = variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".config")));
    let paths =
        folder.map(|folder| folder.join(OF_A_USER)).into_iter().chain([PathBuf::from(OF_THE_HOST)]);
    paths.filter_map(|path| read(&path).transpose()).collect()
}

/// Returns the settings of a file; nothing when it is not there.
fn read(path: &Path) -> Result<Option<Given>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, path).map(Some),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        // A folder of another user, whose environment this one inherited: the client cannot see
        // whether a file is there.
        Err(error)
            if error.kind() == ErrorKind::PermissionDenied && std::fs::metadata(path).is_err() =>
        {
            Ok(None)
        }
        // It may hold a key: what was to be encrypted is not sent in clear text.
        Err(error) => Err(failed(path, &error.to_string())),
    }
}

/// `name=value`, `# comment` and blank lines. Paths are meant from the file's folder.
fn parse(text: &str, path: &Path) -> Result<Given, Failure> {
    let mut given = Given::default();
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let refused = |why: String| failed(path, &format!("line {number}: {why}"));
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| refused("it is neither name=value nor a comment".to_owned()))?;
        let (name, value) = (name.trim(), value.trim());
        match name {
            "endpoint" => given.endpoint = Some(value.to_owned()),
            "key" => given.key = Some(path.parent().unwrap_or(Path::new("")).join(value)),
            "timeout" => {
                let timeout = value
                    .parse()
                    .map_err(|_| refused(format!("{value:?} is not a number of milliseconds")))?;
                given.timeout = Some(timeout);
            }
            "legacy-encryption" => {
                given.legacy_encryption = value
                    .parse()
                    .map_err(|_| refused(format!("{value:?} is not true or false")))?;
            }
            other => {
                // What is nothing like a setting may be a key, in a file that was named for another
                // one.
                return Err(refused(match meant_word(other, NAMES.into_iter()) {
                    Some(name) => {
                        format!("{other:?} is no setting of the client; did you mean {name}?")
                    }
                    None => {
                        format!("it is no setting of the client; there are {}", NAMES.join(", "))
                    }
                }));
            }
        }
    }
    Ok(given)
}

fn failed(path: &Path, why: &str) -> Failure {
    Failure::said(format!(
        "cannot use the client's file {}: {why}\nnothing was sent",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sets_what_it_names() {
        let text = "# of the lab\nendpoint = tcp://192.0.2.7:9999\n\nkey=lab.key\ntimeout=500\nlegacy-encryption=true\n";
        let given = parse(text, Path::new("/etc/butterfly/client.conf")).unwrap();
        let expected = Given {
            endpoint: Some("tcp://192.0.2.7:9999".into()),
            key: Some("/etc/butterfly/lab.key".into()),
            timeout: Some(500),
            legacy_encryption: true,
            ..Given::default()
        };
        assert_eq!(given, expected);
        let absolute = parse("key=/root/key", Path::new("/etc/butterfly/client.conf")).unwrap();
        assert_eq!(absolute.key, Some("/root/key".into()));
        assert_eq!(parse("", Path::new("f")).unwrap(), Given::default());
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused() {
        for (text, why) in [
            (
                "endpont=x",
                "line 1: \"endpont\" is no setting of the client; did you mean endpoint?",
            ),
            (
                "\ncolour=x",
                "line 2: it is no setting of the client; there are endpoint, key, timeout, legacy-encryption",
            ),
            ("[client]", "line 1: it is neither name=value nor a comment"),
            ("timeout=soon", "line 1: \"soon\" is not a number of milliseconds"),
            ("legacy-encryption=yes", "line 1: \"yes\" is not true or false"),
        ] {
            match parse(text, Path::new("f")) {
                Err(Failure::Said(told)) => {
                    assert_eq!(
                        told,
                        format!("cannot use the client's file f: {why}\nnothing was sent")
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_stronger_source_wins() {
        let weak = || Given {
            endpoint: Some("weak".into()),
            key: Some("weak".into()),
            legacy_encryption: true,
            ..Given::default()
        };
        let strong = Given {
            endpoint: Some("strong".into()),
            key: Some("strong".into()),
            ..Given::default()
        };
        let both = strong.or(weak());
        assert_eq!(
            (both.endpoint.as_deref(), both.key.as_deref()),
            (Some("strong"), Some(Path::new("strong")))
        );
        assert!(!both.legacy_encryption, "how to encrypt goes with the key");
        assert_eq!(Given::default().or(weak()), weak());
    }
}

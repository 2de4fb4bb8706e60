//! Encryption of the API, as the operator wants it.

use butterfly_api::crypt::{Gate, Key, KeyFile};
use std::path::{Path, PathBuf};

/// The key, and what is taken under it.
#[derive(Clone, Debug)]
pub struct Encryption {
    path: PathBuf,
    key: Key,
    legacy: bool,
    open_to_others: bool,
}

/// Two are the same when they were read from the same file for the same purpose: no code compares
/// keys.
impl PartialEq for Encryption {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, self.legacy, self.open_to_others)
            == (&other.path, other.legacy, other.open_to_others)
    }
}

impl Eq for Encryption {}

impl Encryption {
    /// True if a gate of either decides alike.
    pub fn acts_like(&self, other: &Self) -> bool {
        self.legacy == other.legacy && self.key.is(&other.key)
    }

    /// Returns the text of a file with the key.
    pub fn text(&self) -> impl std::ops::Deref<Target = String> + use<> {
        self.key.text()
    }

    /// Makes the gate that decides on requests.
    pub fn gate(self) -> Result<Gate, String> {
        Gate::new(self.key, self.legacy)
            .map_err(|error| format!("cannot encrypt the API: no random numbers: {error}"))
    }
}

/// Reads the key file, if there is to be one. An error begins with the original's words.
pub fn load(path: Option<&Path>, legacy: bool) -> Result<Option<Encryption>, String> {
    let Some(path) = path else {
        return match legacy {
            true => Ok(None),
            // An operator who sets this does not want an API that is open to all.
            false => {
                Err("--no-legacy-encryption (legacy_encryption=false) is refused: there is no key, so the API would be in clear \
                          text; name a key with -k, or encryption_key_path in [security]"
                    .into())
            }
        };
    };
    let file =
        KeyFile::read(path).map_err(|error| format!("Cannot load encryption key\n{error}"))?;
    let KeyFile { key, open_to_others } = file;
    Ok(Some(Encryption { path: path.to_owned(), key, legacy, open_to_others }))
}

/// Returns the log's words at the start.
pub fn state(encryption: Option<&Encryption>) -> String {
    match encryption {
        None => "No encryption configured".into(),
        Some(Encryption { path, open_to_others: true, .. }) => format!(
            "Encryption key loaded\nwarning: every user of this host can read or change the key file {path:?}: chmod o= {}",
            path.display()
        ),
        Some(_) => "Encryption key loaded".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn keys_are_loaded_and_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        assert_eq!(load(None, true), Ok(None));
        assert_eq!(state(None), "No encryption configured");
        assert!(load(None, false).unwrap_err().contains("there is no key"));

        let error = load(Some(&path), true).unwrap_err();
        assert!(
            error.starts_with("Cannot load encryption key\nkey file ")
                && error.contains("No such file"),
            "{error}"
        );
        fs::write(&path, "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n").unwrap();
        for (mode, lines) in [(0o600, 1), (0o644, 2)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let loaded = load(Some(&path), false).unwrap().unwrap();
            assert_eq!(state(Some(&loaded)).lines().count(), lines, "{}", state(Some(&loaded)));
            assert!(!format!("{loaded:?}").contains("AAEC"));
            assert!(loaded.gate().is_ok());
        }
    }
}

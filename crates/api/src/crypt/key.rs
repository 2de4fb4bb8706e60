//! The key that clients and daemons share, and its file.

use base64ct::{Base64, Encoding};
use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// A key is so many bytes.
const LEN: usize = 32;
/// More is no key file.
const LONGEST_FILE: u64 = 1024;

/// 32 secret bytes. Overwritten in memory when it is dropped, and never printed.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; LEN]>);

impl Key {
    /// True if both are the same secret. Takes as long for any two.
    pub fn is(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0.iter()).fold(0, |bits, (one, two)| bits | (one ^ two)) == 0
    }
}

/// A key that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("key file {path:?}: {reason}; {}", advice(reason))]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// Error of the system.
        reason: io::Error,
    },
    /// The file holds no key.
    #[error(
        "key file {path:?} {why}; a key is one line, the base64 of 32 bytes, as `openssl rand -base64 32` makes it"
    )]
    NoKey {
        /// Its path.
        path: PathBuf,
        /// A clause that goes on after the name of the file.
        why: &'static str,
    },
}

fn advice(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::NotFound => "`openssl rand -base64 32` makes a key",
        io::ErrorKind::PermissionDenied => {
            "it has to be readable for the user this runs as: the packaged daemon is `butterfly` (`chgrp butterfly`, mode 640)"
        }
        _ => "it has to be a file that can be read",
    }
}

/// A key, and what is to be said of its file.
#[derive(Debug)]
pub struct KeyFile {
    /// The key in the file.
    pub key: Key,
    /// True if users other than its owner and its group can read or change it.
    pub open_to_others: bool,
}

impl KeyFile {
    /// Reads the file at `path`: the base64 of 32 bytes on one line.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let unreadable = |reason| KeyError::Unreadable { path: path.to_owned(), reason };
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let mut text = Zeroizing::new(Vec::with_capacity(LONGEST_FILE as usize + 1));
        file.take(LONGEST_FILE + 1).read_to_end(&mut text).map_err(unreadable)?;
        let key =
            Key::parse(&text).map_err(|why| KeyError::NoKey { path: path.to_owned(), why })?;
        Ok(Self {
            key,
            open_to_others: metadata.is_file() && metadata.permissions().mode() & 0o006 != 0,
        })
    }
}

impl Key {
    /// The key with these bytes.
    pub fn new(bytes: [u8; LEN]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Reads the text of a key file. The error says why it holds no key.
    pub fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let end = text.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |last| last + 1);
        let line = &text[..end];
        if line.is_empty() {
            return Err("is empty");
        }
        if text.len() as u64 > LONGEST_FILE {
            return Err("is too large");
        }
        if line.contains(&b'\n') {
            return Err("has more than one line");
        }
        let mut bytes = Zeroizing::new([0; LONGEST_FILE as usize]);
        match Base64::decode(line, bytes.as_mut_slice()) {
            Ok(decoded) => {
                decoded.try_into().map(Self::new).map_err(|_| "is base64, but not of 32 bytes")
            }
            Err(_) => Err("is not base64"),
        }
    }

    /// Returns the text of a file with this key.
    pub fn text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new([0; 2 * LEN]);
        let text = Base64::encode(&*self.0, text.as_mut_slice()).unwrap_or_default();
        Zeroizing::new(text.to_owned())
    }

    pub(super) fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const TEXT: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn forms_that_the_original_takes() {
        for end in ["", "\n", "\n\n", "\r\n"] {
            let key = Key::parse(format!("{TEXT}{end}").as_bytes()).unwrap();
            assert_eq!(key.bytes().to_vec(), (0..32).collect::<Vec<u8>>(), "{end:?}");
            assert_eq!(*key.text(), TEXT);
        }
    }

    #[test]
    fn forms_that_it_refuses() {
        let raw: Vec<u8> = (0..32).collect();
        let long = "A".repeat(2000);
        for (text, why) in [
            ("", "is empty"),
            ("\n", "is empty"),
            ("\r\n\n", "is empty"),
            ("AAECAwQFBgcICQoLDA0ODxAR\nEhMUFRYXGBkaGxwdHh8=\n", "has more than one line"),
            (
                "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\nAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
                "has more than one line",
            ),
            ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg==\n", "is base64, but not of 32 bytes"),
            ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g\n", "is base64, but not of 32 bytes"),
            // No padding; another alphabet; something before, behind, between.
            ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8\n", "is not base64"),
            ("__ECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "is not base64"),
            (" AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "is not base64"),
            ("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8= \n", "is not base64"),
            ("AAEC AwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n", "is not base64"),
            (
                "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n",
                "is base64, but not of 32 bytes",
            ),
            (long.as_str(), "is too large"),
        ] {
            assert_eq!(Key::parse(text.as_bytes()).unwrap_err(), why, "{text:?}");
        }
        assert_eq!(
            Key::parse(&raw).unwrap_err(),
            "has more than one line",
            "raw, with a line feed among its bytes"
        );
        assert_eq!(
            Key::parse(&[0x42; 32]).unwrap_err(),
            "is base64, but not of 32 bytes",
            "raw, and base64 by chance"
        );
        assert_eq!(Key::parse(&[0xf7; 32]).unwrap_err(), "is not base64", "raw");
    }

    #[test]
    fn files_are_told_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let error = KeyFile::read(&path).unwrap_err().to_string();
        assert!(
            error.contains("/key\": No such file") && error.contains("openssl rand -base64 32"),
            "{error}"
        );
        assert!(KeyFile::read(directory.path()).is_err(), "a directory");
        fs::write(&path, "nothing secret here").unwrap();
        let error = KeyFile::read(&path).unwrap_err().to_string();
        assert!(error.contains("/key\" is not base64; ") && !error.contains("secret"), "{error}");
        // It has no end.
        assert!(
            KeyFile::read(Path::new("/dev/zero")).unwrap_err().to_string().contains("is too large")
        );

        fs::write(&path, TEXT).unwrap();
        for (mode, open) in [
            (0o600, false),
            (0o640, false),
            (0o660, false),
            (0o604, true),
            (0o666, true),
            (0o602, true),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(KeyFile::read(&path).unwrap().open_to_others, open, "{mode:o}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", Key::new([7; 32])), "Key");
    }
}

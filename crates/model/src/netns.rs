//! Network namespaces of the host.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// Folder of the network namespaces that have a name (ip-netns(8)).
const NAMED: &str = "/run/netns";

/// A network namespace, by its name or by a file that stands for it. It need not exist.
///
/// ```
/// use butterfly_model::Netns;
/// assert_eq!(Netns::new("blue")?.path().to_str(), Some("/run/netns/blue"));
/// assert!(Netns::new("proc/1/ns/net").is_err());
/// # Ok::<(), butterfly_model::NetnsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Netns(Box<str>);

/// Error of a text that is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "network namespace {text:?} is refused: {reason}; it is a name as `ip netns` lists them, or a path that starts with a /"
)]
pub struct NetnsError {
    text: String,
    reason: &'static str,
}

impl Netns {
    /// Checks a name, or an absolute path. Fails for an empty text, a control character, a `/` in a
    /// name, and for `.` and `..`.
    pub fn new(text: &str) -> Result<Self, NetnsError> {
        let reason = if text.is_empty() {
            "it is empty"
        } else if text.contains(char::is_control) {
            "it has a control character in it"
        } else if text.starts_with('/') {
            return Ok(Self(text.into()));
        } else if text.contains('/') {
            "it has a / in it, and does not start with one"
        } else if matches!(text, "." | "..") {
            "it is a directory"
        } else {
            return Ok(Self(text.into()));
        };
        Err(NetnsError { text: text.to_owned(), reason })
    }

    /// Returns the file that stands for it.
    pub fn path(&self) -> PathBuf {
        // An absolute path replaces what is before it.
        Path::new(NAMED).join(&*self.0)
    }
}

/// Shows it as it was declared.
impl fmt::Display for Netns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_a_path_lead_to_a_file() {
        for (text, path) in [
            ("blue", "/run/netns/blue"),
            ("/proc/7/ns/net", "/proc/7/ns/net"),
            ("a b", "/run/netns/a b"),
        ] {
            let netns = Netns::new(text).unwrap();
            assert_eq!((netns.path().to_str().unwrap(), netns.to_string().as_str()), (path, text));
        }
    }

    #[test]
    fn what_is_neither_is_refused() {
        for (text, reason) in [
            ("", "empty"),
            ("a/b", "does not start with one"),
            ("../x", "does not"),
            ("..", "directory"),
            ("a\n", "control"),
        ] {
            let error = Netns::new(text).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("ip netns"), "{error}");
        }
    }
}

//! Names of vnics.

use std::{borrow::Borrow, fmt};

/// The name of a vnic. It becomes part of a file name and of lines that programs read, so some
/// characters are refused.
///
/// ```
/// use butterfly_model::NicId;
/// assert_eq!(NicId::new("vm-1.eth0")?.as_str(), "vm-1.eth0");
/// assert!(NicId::new("a/b").is_err());
/// # Ok::<(), butterfly_model::NicIdError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NicId(Box<str>);

/// Error of a text that cannot name a vnic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nic id {id:?} is refused: {reason}")]
pub struct NicIdError {
    id: String,
    reason: &'static str,
}

impl NicId {
    /// Checks a name: any text that is not empty and has no `/` and no control character in it.
    /// Fails for others.
    pub fn new(id: &str) -> Result<Self, NicIdError> {
        let reason = if id.is_empty() {
            "it is empty"
        } else if id.contains('/') {
            "it has a / in it; it becomes part of a file name"
        } else if id.contains(char::is_control) {
            "it has a control character in it"
        } else {
            return Ok(Self(id.into()));
        };
        Err(NicIdError { id: id.to_owned(), reason })
    }

    /// Returns the id as it was declared.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Orders and compares ids as their texts: byte by byte.
impl Borrow<str> for NicId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_taken() {
        for id in ["nic-1", "a", "é b", "{\"x\"}", "a.b", "-", "qemu:0", ".hidden", "..."] {
            assert_eq!(NicId::new(id).unwrap().as_str(), id);
        }
    }

    #[test]
    fn what_cannot_be_a_file_name_or_a_line_is_refused() {
        for id in ["", "/", "a/b", "../x", "a\0", "a\nb", "\u{7f}", "\u{85}"] {
            let error = NicId::new(id).unwrap_err().to_string();
            assert!(error.starts_with(&format!("nic id {id:?} is refused: it ")), "{error}");
        }
    }
}

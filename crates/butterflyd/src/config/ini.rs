//! The configuration file: groups of keys, as GLib's key files have them.

use std::collections::{BTreeMap, BTreeSet};

/// The values of a file by group and key.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ini {
    values: BTreeMap<(String, String), Value>,
    /// Group and key of each lookup.
    pub asked: BTreeSet<(String, String)>,
}

#[derive(Debug, PartialEq, Eq)]
struct Value {
    text: String,
    line: usize,
}

/// A line that is no part of a configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct IniError {
    line: usize,
    reason: String,
}

impl Ini {
    /// Reads `text`: `[group]`, `key=value`, `# comment` and blank lines.
    ///
    /// White space around keys and values does not count, and quotation marks around a value are
    /// not part of it. Of a key that is given twice in a group the last value holds. `\s`, `\n`,
    /// `\t`, `\r` and `\\` stand for the same characters as in C.
    pub fn parse(text: &str) -> Result<Self, IniError> {
        let mut ini = Self::default();
        let mut group = None;
        // Editors of other systems put a mark at the beginning.
        for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
            let error = |reason: String| IniError { line: number, reason };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                group = Some(name.to_owned());
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                return Err(error(format!(
                    "\"{line}\" is neither [group] nor key=value nor a comment"
                )));
            };
            let Some(group) = &group else {
                return Err(error(format!("\"{line}\" stands before the first [group]")));
            };
            let text = unescaped(unquoted(value.trim_start())).map_err(error)?;
            ini.values
                .insert((group.clone(), key.trim_end().to_owned()), Value { text, line: number });
        }
        Ok(ini)
    }

    /// Takes a value out.
    pub fn take(&mut self, group: &str, key: &str) -> Option<String> {
        self.asked.insert((group.to_owned(), key.to_owned()));
        self.values.remove(&(group.to_owned(), key.to_owned())).map(|value| value.text)
    }

    /// Returns the lines that were not looked up: group, key and line of each.
    pub fn rest(&self) -> impl Iterator<Item = (&str, &str, usize)> {
        self.values.iter().map(|((group, key), value)| (group.as_str(), key.as_str(), value.line))
    }
}

/// Quotation marks around the whole value are not part of it: files for shells have them, and no
/// value begins and ends with one.
fn unquoted(value: &str) -> &str {
    let value = value.trim_end();
    let within = |mark| {
        value
            .strip_prefix(mark)
            .and_then(|rest| rest.strip_suffix(mark))
            .filter(|rest| !rest.contains(mark))
    };
    within('"').or_else(|| within('\'')).unwrap_or(value)
}

fn unescaped(value: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        text.push(match characters.next() {
            Some('s') => ' ',
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('\\') => '\\',
            _ => {
                return Err(format!(
                    "\"{value}\" has a \\ that is not followed by s, n, t, r or \\"
                ));
            }
        });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_as_groups_of_values() {
        let mut ini = Ini::parse(
            "# comment\n\n[general]\nip=42.0.0.1\r\n  socket-dir = /tmp/a\\sb # kept \n[security]\nkey=a=b\nempty=\n[general]\nip=::1\n",
        )
        .unwrap();
        assert_eq!(ini.take("general", "ip").as_deref(), Some("::1"), "the last value holds");
        assert_eq!(ini.take("general", "ip"), None);
        assert_eq!(ini.take("general", "socket-dir").as_deref(), Some("/tmp/a b # kept"));
        assert_eq!(ini.take("security", "key").as_deref(), Some("a=b"));
        assert_eq!(ini.take("general", "empty"), None);
        assert_eq!(ini.rest().collect::<Vec<_>>(), [("security", "empty", 8)]);
        assert_eq!(ini.take("security", "empty").as_deref(), Some(""));
    }

    #[test]
    fn quotation_marks_around_a_value_are_not_part_of_it() {
        let text = "\u{feff}[general]\nip=\"192.0.2.1\"\ndpdk-args='-c1 -n1' \nkey=\"a\" \"b\"\nempty=\"\"\none=\"\n";
        let mut ini = Ini::parse(text).unwrap();
        for (key, value) in [
            ("ip", "192.0.2.1"),
            ("dpdk-args", "-c1 -n1"),
            ("key", "\"a\" \"b\""),
            ("empty", ""),
            ("one", "\""),
        ] {
            assert_eq!(ini.take("general", key).as_deref(), Some(value));
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, line, reason) in [
            ("ip=1", 1, "before the first [group]"),
            ("[general]\nip", 2, "is neither"),
            ("[general\nip=1", 1, "is neither"),
            ("[general]\n\nip=\\q", 3, "has a \\"),
            ("[general]\nip=\\", 2, "has a \\"),
        ] {
            let error = Ini::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text:?}");
            assert!(error.reason.contains(reason), "{error}");
        }
    }
}

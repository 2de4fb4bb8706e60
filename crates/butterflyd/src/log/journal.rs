//! systemd's journal, with a field for each thing that a program may want to select by (its native
//! protocol).

use super::{datagrams::Datagrams, syslog};
use std::{fmt::Write, os::unix::fs::MetadataExt, path::PathBuf};

/// Bytes of a message: an entry must fit into a datagram.
const LONGEST: usize = 100_000;
const SOCKET: &str = "/run/systemd/journal/socket";

pub(super) struct Journal(Datagrams);

impl Journal {
    /// The journal, if standard error is it: then a copy there would be a second entry.
    pub(super) fn if_stderr() -> Option<Self> {
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        let stderr = rustix::fs::fstat(std::io::stderr()).ok()?;
        let ours = is_stream(&stream, stderr.st_dev, stderr.st_ino);
        // Beside a journal that takes no entries there is still standard error.
        let listens = std::fs::metadata(SOCKET).is_ok_and(|file| file.mode() & 0o222 != 0);
        (ours && listens).then(|| Self::at(SOCKET.into()))
    }

    pub(super) fn at(path: PathBuf) -> Self {
        Self(Datagrams::to(path))
    }

    /// An entry; `fields` are names and values.
    pub(super) fn send(&self, severity: syslog::Severity, text: &str, fields: &[(String, String)]) {
        self.0.send(|note| {
            let mut entry = Vec::new();
            let (text, cut) = match (0..=LONGEST.min(text.len()))
                .rev()
                .find_map(|at| text.split_at_checked(at))
            {
                Some((start, rest)) if !rest.is_empty() => {
                    (start, format!(" (and {} bytes more)", rest.len()))
                }
                _ => (text, String::new()),
            };
            field(&mut entry, "MESSAGE", &format!("{text}{cut}{note}"));
            field(&mut entry, "PRIORITY", &(severity as u8).to_string());
            field(&mut entry, "SYSLOG_IDENTIFIER", syslog::IDENT);
            field(&mut entry, "SYSLOG_FACILITY", &syslog::LOCAL0.to_string());
            field(&mut entry, "SYSLOG_PID", &std::process::id().to_string());
            for (name, value) in fields {
                field(&mut entry, &journal_name(name), value);
            }
            entry
        });
    }
}

/// `JOURNAL_STREAM` is device and inode of the stream that leads to the journal.
fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    stream
        .split_once(':')
        .is_some_and(|(dev, ino)| dev.parse() == Ok(device) && ino.parse() == Ok(inode))
}

/// Letters, digits and underscores.
fn journal_name(name: &str) -> String {
    name.chars()
        .map(
            |letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' },
        )
        .collect()
}

fn field(entry: &mut Vec<u8>, name: &str, value: &str) {
    let mut head = String::new();
    // A value of several lines is sent with its length; writing to a string does not fail.
    if value.contains('\n') {
        let _ = writeln!(head, "{name}");
        entry.extend(head.as_bytes());
        entry.extend((value.len() as u64).to_le_bytes());
    } else {
        let _ = write!(head, "{name}=");
        entry.extend(head.as_bytes());
    }
    entry.extend(value.as_bytes());
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn an_entry_has_its_fields() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let socket = UnixDatagram::bind(&path).unwrap();
        let fields =
            [("NIC".to_owned(), "vm-1".to_owned()), ("why.so".to_owned(), "a\nb".to_owned())];
        Journal::at(path).send(syslog::Severity::Warning, "<WARNING> text", &fields);
        let mut buffer = [0; 1000];
        let length = socket.recv(&mut buffer).unwrap();
        let expected = format!(
            "MESSAGE=<WARNING> text\nPRIORITY=4\nSYSLOG_IDENTIFIER=butterfly\nSYSLOG_FACILITY=16\nSYSLOG_PID={}\nNIC=vm-1\nWHY_SO\n\
             \x03\0\0\0\0\0\0\0a\nb\n",
            std::process::id()
        );
        assert_eq!(String::from_utf8_lossy(&buffer[..length]), expected);
    }

    #[test]
    fn a_long_one_is_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let socket = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(path);
        // A letter of two bytes stands where it is cut.
        journal.send(syslog::Severity::Debug, &format!("x{}", "é".repeat(LONGEST)), &[]);
        let mut buffer = vec![0; 4 * LONGEST];
        let length = socket.recv(&mut buffer).unwrap();
        let entry = String::from_utf8(buffer[..length].to_vec()).unwrap();
        assert!(entry.contains("é (and 100002 bytes more)\n"), "{}", &entry[LONGEST..]);
        assert_eq!(journal.0.lost(), 0);
    }

    #[test]
    fn a_stream_is_known_by_device_and_inode() {
        assert!(is_stream("8:12345", 8, 12345));
        for other in ["8:12346", "9:12345", "8", "", "x:12345"] {
            assert!(!is_stream(other, 8, 12345), "{other}");
        }
    }
}

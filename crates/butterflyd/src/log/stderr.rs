//! Standard error, which nobody need read: what would wait is left out, and counted.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes that fit into a pipe or a terminal that can be written to (`PIPE_BUF`).
const FITS: usize = 4096;

/// Lines for a file, of which none waits until somebody reads it. A file on a disk is waited for.
#[derive(Default)]
pub(super) struct Stderr {
    left_out: AtomicU64,
}

impl Stderr {
    /// Writes a line to standard error.
    pub(super) fn write(&self, line: &str) {
        // One line after the other.
        self.write_to(std::io::stderr().lock(), line);
    }

    fn write_to(&self, file: impl AsFd, line: &str) {
        match self.left_out.swap(0, Relaxed) {
            0 => {}
            lines => {
                if !write_some(&file, &format!("({lines} lines were left out before)\n")) {
                    self.left_out.fetch_add(lines, Relaxed);
                }
            }
        }
        if !write_some(file, line) {
            self.left_out.fetch_add(1, Relaxed);
        }
    }
}

/// Writes as much as there is room for. Returns whether that was all.
fn write_some(file: impl AsFd, line: &str) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    line.as_bytes().chunks(FITS).all(|some| {
        let mut ready = [PollFd::new(&file, PollFlags::OUT)];
        poll(&mut ready, Some(&now)).is_ok_and(|count| count == 1)
            && rustix::io::write(&file, some).is_ok_and(|count| count == some.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn nobody_waits_for_a_reader() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (lines, line) = (Stderr::default(), format!("{}\n", "x".repeat(9000)));
        for _ in 0..100 {
            lines.write_to(&writer, &line);
        }
        let left_out = lines.left_out.load(Relaxed);
        assert!((80..100).contains(&left_out), "{left_out}");
        let mut read = vec![0; 1 << 16];
        let count = reader.read(&mut read).unwrap();
        assert!(read[..count].starts_with(line.as_bytes()));
        lines.write_to(&writer, "heard\n");
        let count = reader.read(&mut read).unwrap();
        let told = format!("({left_out} lines were left out before)\nheard\n");
        assert!(read[..count].ends_with(told.as_bytes()));
        assert_eq!(lines.left_out.load(Relaxed), 0);
    }
}

//! One daemon per socket directory.

use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Not a name that a vnic's socket can have.
const NAME: &str = ".butterflyd.lock";

/// The directory is ours until this is dropped, or the process ends in whatever way.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

/// The directory cannot be ours.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// It is another daemon's.
    #[error("socket folder {directory:?} is in use by another butterflyd (process {process}): stop it or use another folder")]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// What the other one wrote.
        process: String,
    },
    /// Files cannot be made in it.
    #[error("cannot lock socket folder {directory:?}: {error}")]
    Io {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl DirectoryLock {
    /// Takes `directory`.
    pub fn take(directory: &Path) -> Result<Self, LockError> {
        let path = directory.join(NAME);
        let failed = |error| LockError::Io { directory: directory.to_owned(), error };
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
                .open(&path)
                .map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(LockError::InUse { directory: directory.to_owned(), process: first_line(&mut file) });
                }
                Err(error) => return Err(failed(error.into())),
            }
            // Whoever had it may have removed the file while we waited for nothing: then another one is there by now.
            if !is_still_there(&file, &path) {
                continue;
            }
            write(&mut file).map_err(failed)?;
            return Ok(Self { path, _file: file });
        }
    }
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Still locked here, so it is ours to remove. One that stays does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn first_line(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(20).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "unknown".into(),
    }
}

fn is_still_there(file: &File, path: &Path) -> bool {
    let Ok(ours) = file.metadata() else { return false };
    path.symlink_metadata().is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino()))
}

fn write(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_until_the_first_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let first = DirectoryLock::take(directory.path()).unwrap();
        let error = DirectoryLock::take(directory.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        drop(first);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
        DirectoryLock::take(directory.path()).unwrap();
    }

    #[test]
    fn what_a_killed_daemon_left_is_no_obstacle() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(NAME), "4194305\n").unwrap();
        let _lock = DirectoryLock::take(directory.path()).unwrap();
    }

    #[test]
    fn a_directory_that_is_not_there_is_told() {
        let error = DirectoryLock::take(Path::new("/does/not/exist")).unwrap_err().to_string();
        assert!(error.starts_with("cannot lock socket folder \"/does/not/exist\": "), "{error}");
    }
}

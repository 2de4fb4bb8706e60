//! The program that is to go on: a file that nobody but root can have put there.

use rustix::fs::{FileType, Mode, OFlags, Stat, StatVfsMountFlags, fstat, fstatvfs, open, stat};
use std::{
    fmt, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// A program that was checked. The open file is what is executed, whatever its path names later.
pub struct Program {
    file: OwnedFd,
    named: PathBuf,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Program({})", self.named.display())
    }
}

impl Program {
    /// Opens the program at a path, if it may be executed at a client's wish. Returns the reason if
    /// not.
    pub fn open(path: &Path) -> Result<Program, String> {
        let refused = |why: &str| format!("{} is not started: {why}", path.display());
        if !path.is_absolute() {
            return Err(refused("its path has to begin with /"));
        }
        let named = path.canonicalize().map_err(|why| refused(&why.to_string()))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = open(&named, flags, Mode::empty()).map_err(|why| refused(&why.to_string()))?;
        let found = fstat(&file).map_err(|why| refused(&why.to_string()))?;
        let is_file = FileType::from_raw_mode(found.st_mode).is_file();
        if !is_file || found.st_mode & 0o111 == 0 {
            return Err(refused("it is no program"));
        }
        if !is_roots_alone(&found) {
            return Err(refused("it has to belong to root, and nobody else may write to it"));
        }
        // What ordinary users can mount may say that root owns it. Where this program itself comes
        // from, the operator or a container's manager mounted it so.
        let mount = fstatvfs(&file).map_err(|why| refused(&why.to_string()))?;
        let own = stat("/proc/self/exe").map_err(|why| refused(&why.to_string()))?;
        if mount.f_flag.contains(StatVfsMountFlags::NOSUID) && own.st_dev != found.st_dev {
            return Err(refused("it is on a file system that is mounted with nosuid"));
        }
        for folder in named.ancestors().skip(1) {
            let found = stat(folder).map_err(|why| refused(&why.to_string()))?;
            if !is_roots_alone(&found) {
                return Err(refused(&format!(
                    "{} has to belong to root, and nobody else may write to it",
                    folder.display()
                )));
            }
        }
        Ok(Program { file, named })
    }

    /// This process's own program, even if its file was replaced.
    pub fn own() -> io::Result<Program> {
        let named = Path::new("/proc/self/exe");
        let file = open(named, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Program { file, named: named.to_owned() })
    }

    /// The program that was before: standard input of one that came by an upgrade.
    pub fn before() -> io::Result<Program> {
        let named = Path::new("/proc/self/fd/0");
        let file = open(named, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Program { file, named: named.to_owned() })
    }

    /// A path by which this process, and a child before it becomes the program, can execute it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// The path by which it was found.
    pub fn named(&self) -> &Path {
        &self.named
    }

    /// The file.
    pub fn into_file(self) -> OwnedFd {
        self.file
    }
}

/// True if nobody but root can change it.
fn is_roots_alone(found: &Stat) -> bool {
    found.st_uid == 0 && found.st_mode & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    fn refusal(path: &Path) -> String {
        Program::open(path).expect_err("it is refused")
    }

    #[test]
    fn only_programs_of_root_are_started() {
        assert!(Program::open(Path::new("/bin/true")).is_ok());
        for (path, why) in
            [("bin/true", "begin with /"), ("/nowhere", "No such file"), ("/etc", "no program")]
        {
            let told = refusal(Path::new(path));
            assert!(told.contains(why), "{path}: {told}");
        }
        // Folders that others may write to, as /tmp.
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("program");
        fs::copy("/bin/true", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(refusal(&path).contains("has to belong to root"), "{}", refusal(&path));
    }

    /// A mount that an ordinary user could have made, which says of all that root owns it.
    #[test]
    fn programs_on_mounts_of_others_are_refused() {
        let room = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
        let mount = |words: &[&str]| {
            let done = std::process::Command::new(words[0]).args(&words[1..]).status();
            done.is_ok_and(|status| status.success())
        };
        let place = room.path().to_str().unwrap();
        for (options, why) in [("mode=755", None), ("mode=755,nosuid", Some("nosuid"))] {
            if !mount(&["mount", "-t", "tmpfs", "-o", options, "none", place]) {
                return; // not as root
            }
            let path = room.path().join("program");
            fs::copy("/bin/true", &path).unwrap();
            let told = Program::open(&path).err();
            assert!(mount(&["umount", "-l", place]));
            assert_eq!(told.is_some(), why.is_some(), "{told:?}");
            assert!(told.iter().all(|told| told.contains(why.unwrap())), "{told:?}");
        }
    }

    #[test]
    fn a_program_that_others_may_write_is_refused() {
        let room = tempfile::Builder::new().tempdir_in("/var/lib").unwrap();
        let path = room.path().join("program");
        fs::copy("/bin/true", &path).unwrap();
        for (mode, may) in [(0o755, true), (0o775, false), (0o757, false), (0o644, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Program::open(&path).is_ok(), may, "{mode:o}");
        }
    }
}

//! Rehearsals: a program that plays the next release, or one that fails in an upgrade, for tests.
//!
//! The words stand behind the end of the program's file, in a line of their own, as in
//! `BUTTERFLY-REHEARSAL layout=2 fails=panic@lease`. So they go with the program, whatever process
//! executes it, and an upgrade leads from one program to another. Only builds with debug assertions
//! look for them.
//!
//! | word | meaning |
//! |---|---|
//! | `layout=N` | N is the newest layout, with a field more in some parts ([`crate::rehearsed`]) |
//! | `fails=HOW@WHERE` | the program fails at a place: see [`fails`] |
//! | `proves=slowly` | its proof takes a minute |

use std::{
    fs::File, os::unix::fs::FileExt, process::Command, sync::OnceLock, thread, time::Duration,
};

/// Beginning of the words.
pub const MARK: &str = "\nBUTTERFLY-REHEARSAL ";
/// Most bytes of the words.
const LONGEST: u64 = 256;

/// Returns the words of this program; nothing in a build without checks.
fn words() -> &'static str {
    static WORDS: OnceLock<String> = OnceLock::new();
    match cfg!(debug_assertions) {
        true => WORDS.get_or_init(|| of_file("/proc/self/exe").unwrap_or_default()),
        false => "",
    }
}

fn of_file(path: &str) -> Option<String> {
    let file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    let some = LONGEST.min(length);
    let mut end = vec![0; some as usize];
    file.read_exact_at(&mut end, length - some).ok()?;
    let end = String::from_utf8_lossy(&end);
    let (_, words) = end.rsplit_once(MARK)?;
    Some(words.trim_end().to_owned())
}

fn word(name: &str) -> Option<&'static str> {
    words().split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Returns the layout that this program plays to know.
pub fn layout() -> Option<u32> {
    word("layout")?.parse().ok()
}

/// True if the proof of this program takes long.
pub fn proves_slowly() -> bool {
    word("proves") == Some("slowly")
}

/// Returns how this program fails at a place, if it does.
///
/// - `start`, `lease`, `going`, `ready` of a program that came by an upgrade: at once, with the
///   lease, before it is ready, and after. It has an `error`, `panic`s, `hang`s or `kill`s itself.
/// - `hold`, `held` of one that is to go on as the holder: while it proves that it can, and after
///   the process became it. It has an `error`, `panic`s, `hang`s or `kill`s itself.
/// - `boundary` of one that gives way: behind its last word to the holder. It `wait`s.
/// - `store` of the writer: before all records are written anew. It `kill`s itself.
/// - `raised` of the daemon: the store has another layout, and nothing else has. It `kill`s itself.
pub fn fails(place: &str) -> Option<&'static str> {
    let (how, at) = word("fails")?.split_once('@')?;
    (at == place).then_some(how)
}

/// Fails at a place as this program's words say: has an error, panics, hangs or ends.
pub fn fail(place: &str) -> Result<(), String> {
    match fails(place) {
        None => Ok(()),
        Some("panic") => panic!("it was to panic in this rehearsal"),
        Some("kill") => die(),
        Some("hang") => loop {
            thread::park();
        },
        Some(_) => Err("it was to fail in this rehearsal".to_owned()),
    }
}

/// Kills this process at a place, or has it wait there, if its words say so.
pub fn pass(place: &str) {
    match fails(place) {
        Some("kill") => die(),
        Some("wait") => thread::sleep(Duration::from_secs(3)),
        _ => {}
    }
}

/// Kills this process: nothing of it runs after that.
pub fn die() -> ! {
    let own = std::process::id().to_string();
    let _ = Command::new("kill").args(["-KILL", &own]).status();
    loop {
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_words_stand_at_the_end_of_a_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        assert_eq!(of_file(&path), None);
        file.write_all(&[7; 1000]).unwrap();
        assert_eq!(of_file(&path), None);
        writeln!(file, "{MARK}layout=2 fails=panic@lease").unwrap();
        assert_eq!(of_file(&path).as_deref(), Some("layout=2 fails=panic@lease"));
        assert_eq!((layout(), proves_slowly(), fails("lease")), (None, false, None));
    }
}

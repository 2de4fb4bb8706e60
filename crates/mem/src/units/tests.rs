use super::*;
use std::sync::atomic::Ordering::Relaxed;

use rustix::{fs::fstat, process::geteuid};

/// Makes a file of ten units. Returns it, and for each file found before: whether it was this
/// user's own.
fn file(name: &str) -> Result<(Units, Vec<bool>), UnitsError> {
    let mut before = Vec::new();
    let units = Units::file(10, name, |_, left| {
        before.push(left.is_some());
        Fate::Remove
    })?;
    Ok((units, before))
}

fn name(of: &str) -> (String, PathBuf) {
    let name = format!("butterfly-test-{of}-{}", std::process::id());
    let path = Path::new("/dev/shm").join(&name);
    (name, path)
}

#[test]
fn anonymous_units_are_zeros_and_apart() {
    let units = Units::anonymous(1000).unwrap();
    assert_eq!(units.len(), 1000);
    units[999].0[15].store(7, Relaxed);
    assert_eq!((units[999].0[15].load(Relaxed), units[998].0[15].load(Relaxed)), (7, 0));
    assert_eq!(&raw const units[1] as usize - &raw const units[0] as usize, 128);
}

#[test]
fn a_file_has_one_user_and_goes_with_it() {
    let (name, _) = name("one");
    let (first, before) = file(&name).unwrap();
    assert_eq!(before, []);
    let path = first.path().unwrap().to_owned();
    assert!(matches!(file(&name), Err(UnitsError::InUse(at)) if at == path));
    first[3].0[0].store(1, Relaxed);
    drop(first);
    assert!(!path.exists());
}

/// As by a process that one which was killed had just started.
#[test]
fn a_lock_that_ends_soon_is_waited_for() {
    let (name, path) = name("soon");
    let left = std::fs::File::create(&path).unwrap();
    flock(&left, FlockOperation::NonBlockingLockExclusive).unwrap();
    let held = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        drop(left);
    });
    let (units, _) = file(&name).unwrap();
    held.join().unwrap();
    assert!(units.path().is_some());
}

#[test]
fn what_a_crash_left_is_replaced() {
    let (name, path) = name("left");
    std::fs::write(&path, vec![1u8; 4096]).unwrap();
    let (units, before) = file(&name).unwrap();
    assert_eq!(before, [true]);
    assert!(units.iter().all(|unit| unit.0.iter().all(|word| word.load(Relaxed) == 0)));
    // Where huge pages were had since, too.
    drop(units);
    assert!(!path.exists());
}

#[test]
fn what_a_crash_left_can_be_read() {
    let (name, path) = name("read");
    let bytes: Vec<u8> =
        (0..2000u64).flat_map(|unit| [unit; 16]).flat_map(u64::to_ne_bytes).collect();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let mut looked = 0;
    let look = |at: &Path, left: Option<&Left>| {
        looked += 1;
        let left = left.unwrap();
        assert_eq!((at, left.len(), left.is_empty()), (path.as_path(), 1999, false));
        let read = |first, count| {
            let mut units = Vec::new();
            left.read(first, count, |unit| units.push(unit)).map(|()| units)
        };
        let all: Vec<[u64; 16]> = (0..1999).map(|unit| [unit; 16]).collect();
        assert_eq!(read(0, 1999).unwrap(), all);
        assert_eq!(read(700, 3).unwrap(), all[700..703]);
        assert_eq!(read(5000, 0).unwrap(), [[0; 16]; 0]);
        // What is not there is no zeros.
        assert!(
            read(0, 2000).is_err() && read(1999, 1).is_err() && read(usize::MAX / 256, 2).is_err()
        );
        Fate::Remove
    };
    drop(Units::file(10, &name, look).unwrap());
    assert_eq!(looked, 1);
}

#[test]
fn what_others_put_there_is_not_used() {
    let (name, path) = name("others");
    for there in ["link", "file", "locked"] {
        let mut held = None;
        if there == "link" {
            std::os::unix::fs::symlink("/dev/shm/nowhere", &path).unwrap();
        } else {
            let made = std::fs::File::create(&path).unwrap();
            if std::os::unix::fs::fchown(&made, Some(65534), None).is_err() {
                std::fs::remove_file(&path).unwrap();
                continue; // not root
            }
            flock(&made, FlockOperation::NonBlockingLockExclusive).unwrap();
            held = (there == "locked").then_some(made);
        }
        let (units, before) = file(&name).unwrap();
        let stat = fstat(&units.file.as_ref().unwrap().1).unwrap();
        assert_eq!(
            (stat.st_uid, stat.st_mode & 0o777, before),
            (geteuid().as_raw(), 0o600, vec![false]),
            "{there}"
        );
        drop((units, held));
    }
}

/// A directory stands for what a user may not remove, and anybody may have made. It stops nobody.
#[test]
fn what_cannot_be_removed_stops_nobody() {
    let (name, path) = name("stays");
    std::fs::create_dir(&path).unwrap();
    let made = file(&name);
    std::fs::remove_dir(&path).unwrap();
    let (units, before) = made.unwrap();
    assert!(matches!(units.memory(), Memory::HugePages | Memory::Anonymous), "{units:?}");
    assert_eq!(before, [false]);
}

/// An operator removed the file by hand, and another process made its own.
#[test]
fn another_one_s_file_is_not_removed() {
    let (name, path) = name("another");
    let (first, _) = file(&name).unwrap();
    if first.memory() != Memory::Tmpfs {
        return;
    }
    std::fs::remove_file(&path).unwrap();
    let (second, _) = file(&name).unwrap();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

/// Of many processes that start at once over a file left by a crash, one gets the file, and the
/// others get an error.
#[test]
fn of_many_that_start_at_once_one_has_the_file() {
    let (name, path) = name("race");
    for _ in 0..200 {
        std::fs::write(&path, [1; 128]).unwrap();
        let start = std::sync::Barrier::new(4);
        let (start, name) = (&start, &name);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        start.wait();
                        let made =
                            Units::file_within(Duration::ZERO, 10, name, |_, _| Fate::Remove);
                        // No thread gives up before all have tried.
                        start.wait();
                        made
                    })
                })
                .collect();
            let made: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let refused =
                |made: &Result<Units, UnitsError>| matches!(made, Err(UnitsError::InUse(_)));
            assert!(made.iter().all(|made| made.is_ok() || refused(made)), "{made:?}");
            let own: Vec<&Units> = made.iter().flatten().collect();
            assert!(own.len() <= 1, "{own:?}");
            assert!(
                own.iter()
                    .all(|own| left::is_at(&own.file.as_ref().unwrap().1, own.path().unwrap()))
            );
        });
        let _ = std::fs::remove_file(&path);
    }
}

/// The file, its contents and its lock are the table's from then on.
#[test]
fn what_a_crash_left_can_be_adopted() {
    let (name, path) = name("adopted");
    let bytes: Vec<u8> = (0..160u64).flat_map(u64::to_ne_bytes).collect();
    std::fs::write(&path, &bytes).unwrap();
    let units = Units::file(10, &name, |_, _| Fate::Adopt).unwrap();
    assert_eq!(
        (units.adopted(), units.path(), units.memory()),
        (true, Some(&*path), Memory::Tmpfs)
    );
    let words = units.iter().flat_map(|unit| unit.0.iter().map(|word| word.load(Relaxed)));
    assert!(words.eq(0..160));
    units[9].0[15].store(7, Relaxed);
    assert!(std::fs::read(&path).unwrap()[159 * 8..].starts_with(&7u64.to_ne_bytes()));
    assert!(matches!(file(&name), Err(UnitsError::InUse(at)) if at == path));
    drop(units);
    assert!(!path.exists());
    // One that may only be read cannot be mapped, and is replaced. Root may write to any.
    std::fs::write(&path, &bytes).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    let units = Units::file(10, &name, |_, left| {
        assert!(left.is_some());
        Fate::Adopt
    });
    assert_eq!(units.unwrap().adopted(), geteuid().is_root());
}

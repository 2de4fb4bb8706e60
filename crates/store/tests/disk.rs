//! The store over a disk that loses, tears and reorders what was not synced, fills and fails.

use butterfly_store::{
    Commit, Contents, Edit, Key, Sort,
    disk::{Disk, Trouble},
};
use redb::StorageBackend;
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
};

#[derive(Debug, Default)]
struct State {
    /// Bytes that a power loss leaves.
    durable: Vec<u8>,
    /// Bytes that a read sees.
    seen: Vec<u8>,
    /// Writes and lengths since the last sync, in their order.
    unsynced: Vec<Unsynced>,
    syncs: usize,
    grown: usize,
    /// Bytes that it may hold, and calls until every one fails.
    room: Option<usize>,
    calls: Option<usize>,
}

#[derive(Clone, Debug)]
enum Unsynced {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Unsynced {
    fn make(&self, on: &mut Vec<u8>) {
        match self {
            Self::Length(length) => on.resize(*length, 0),
            Self::Write(at, data) => {
                if on.len() < at + data.len() {
                    on.resize(at + data.len(), 0);
                }
                on[*at..at + data.len()].copy_from_slice(data);
            }
        }
    }
}

/// A disk that the test shares with the store.
#[derive(Clone, Debug, Default)]
struct Faulty(Arc<Mutex<State>>);

impl Faulty {
    fn of(bytes: Vec<u8>) -> Self {
        let state = State { durable: bytes.clone(), seen: bytes, ..State::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    fn call(&self) -> io::Result<std::sync::MutexGuard<'_, State>> {
        let mut state = self.0.lock().unwrap();
        match &mut state.calls {
            Some(0) => return Err(io::Error::from_raw_os_error(5)),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(state)
    }

    /// The bytes after a power loss: each write that was not synced is there, is not, or in part,
    /// and they came in any order.
    fn after_power_loss(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        const SECTOR: usize = 512;
        let state = self.0.lock().unwrap();
        let mut bytes = state.durable.clone();
        let mut writes = state.unsynced.clone();
        if random.bool() {
            random.shuffle(&mut writes);
        }
        let fate = random.u8(..4);
        for write in writes {
            match (fate, &write) {
                (0, _) if random.bool() => {}
                // The file did not grow.
                (3, Unsynced::Length(_)) => {}
                (3, Unsynced::Write(at, data)) if at + data.len() > bytes.len() => {}
                (1, Unsynced::Write(at, data)) => {
                    for (number, sector) in data.chunks(SECTOR).enumerate() {
                        if random.bool() {
                            let at = at + number * SECTOR;
                            Unsynced::Write(at, sector.to_vec()).make(&mut bytes);
                        }
                    }
                }
                _ => write.make(&mut bytes),
            }
        }
        // A file system keeps the length that it was told, or the one before.
        let least = bytes.len().max(state.durable.len());
        bytes.resize(least, 0);
        bytes
    }
}

impl StorageBackend for Faulty {
    fn len(&self) -> io::Result<u64> {
        Ok(self.call()?.seen.len() as u64)
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let state = self.call()?;
        let range = offset as usize..offset as usize + length;
        state.seen.get(range).map(<[u8]>::to_vec).ok_or(io::ErrorKind::UnexpectedEof.into())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.call()?;
        if state.room.is_some_and(|room| length as usize > room) {
            return Err(io::Error::from_raw_os_error(28));
        }
        let change = Unsynced::Length(length as usize);
        state.grown += usize::from(length as usize > state.seen.len());
        change.make(&mut state.seen);
        state.unsynced.push(change);
        Ok(())
    }

    fn sync_data(&self, _: bool) -> io::Result<()> {
        let mut state = self.call()?;
        state.durable = state.seen.clone();
        state.unsynced.clear();
        state.syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.call()?;
        let change = Unsynced::Write(offset as usize, data.to_vec());
        change.make(&mut state.seen);
        state.unsynced.push(change);
        Ok(())
    }
}

type Model = BTreeMap<Key, Vec<u8>>;

fn random_commit(sequence: u64, model: &mut Model, random: &mut fastrand::Rng) -> Commit {
    let edit = |random: &mut fastrand::Rng| {
        let sort = Sort::ALL[random.usize(..Sort::ALL.len())];
        let key = Key { sort, name: format!("object-{}", random.u8(..30)) };
        let length = if random.u8(..10) == 0 { 20_000 } else { random.usize(..300) };
        let value = (random.u8(..4) > 0).then(|| vec![random.u8(..); length]);
        Edit { key, value }
    };
    let mut edits: Vec<Edit> = (0..random.usize(1..8)).map(|_| edit(random)).collect();
    edits.sort_by(|a, b| a.key.cmp(&b.key));
    edits.dedup_by(|a, b| a.key == b.key);
    let whole = random.u8(..20) == 0;
    if whole {
        model.clear();
    }
    for Edit { key, value } in &edits {
        match value {
            Some(value) => drop(model.insert(key.clone(), value.clone())),
            None => drop(model.remove(key)),
        }
    }
    Commit { sequence, next_birth: sequence * 3, layout: 1, whole, edits }
}

fn contents(sequence: u64, model: &Model) -> Contents {
    let next_birth = if sequence == 0 { 1 } else { sequence * 3 };
    let records = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    Contents { sequence, next_birth, layout: 1, records }
}

fn empty() -> (Faulty, Disk) {
    let disk = Faulty::default();
    let store = Disk::with_backend(disk.clone(), true).unwrap();
    (disk, store)
}

/// After a power loss at any moment the state is that after a prefix of the commits. No answered
/// one is missing.
#[test]
fn after_a_power_loss_every_answered_commit_is_there() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..30 {
        let (mut disk, mut store) = empty();
        let mut model = Model::new();
        let mut states = vec![contents(0, &model)];
        for _ in 0..8 {
            let first = states.len() as u64;
            let answered = first + random.u64(0..4) - 1;
            for sequence in first..=answered {
                let commit = random_commit(sequence, &mut model, &mut random);
                store.commit(&commit).unwrap();
                states.push(contents(sequence, &model));
            }
            // One more is cut off in its middle.
            let before = model.clone();
            let commit = random_commit(answered + 1, &mut model, &mut random);
            disk.0.lock().unwrap().calls = Some(random.usize(..40));
            let outcome = store.commit(&commit);
            let bytes = disk.after_power_loss(&mut random);
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(store)));
            disk = Faulty::of(bytes);
            store = Disk::with_backend(disk.clone(), false).unwrap();
            let found = store.read().unwrap();
            let with_it = contents(answered + 1, &model);
            let there = found == with_it;
            assert!(there || (found == *states.last().unwrap() && outcome.is_err()));
            match there {
                true => states.push(with_it),
                false => model = before,
            }
        }
    }
}

#[test]
fn a_commit_is_one_sync() {
    let (disk, store) = empty();
    let (mut random, mut model) = (fastrand::Rng::with_seed(1), Model::new());
    for sequence in 1..200 {
        let commit = random_commit(sequence, &mut model, &mut random);
        let of = || disk.0.lock().map(|state| (state.syncs, state.grown)).unwrap();
        let before = of();
        store.commit(&commit).unwrap();
        let (syncs, grown) = (of().0 - before.0, of().1 - before.1);
        // A file that grows has its length on the disk first.
        assert_eq!(syncs, 1 + grown, "commit {sequence}");
    }
    let grown = disk.0.lock().unwrap().grown;
    println!("it grew {grown} times");
    assert!(grown < 50, "{grown}");
    assert_eq!(store.read().unwrap(), contents(199, &model));
}

#[test]
fn a_full_disk_refuses_a_commit_and_keeps_those_before() {
    let (disk, store) = empty();
    let edit = |name: &str, length| {
        let key = Key { sort: Sort::Group, name: name.to_owned() };
        vec![Edit { key, value: Some(vec![7; length]) }]
    };
    let commit =
        |sequence, edits| Commit { sequence, next_birth: 1, layout: 1, whole: false, edits };
    store.commit(&commit(1, edit("small", 10))).unwrap();
    let length = disk.0.lock().unwrap().seen.len();
    disk.0.lock().unwrap().room = Some(length);
    let why = store.commit(&commit(2, edit("large", 10 << 20))).unwrap_err();
    assert!(why.to_string().contains("No space left"), "{why}");
    drop(store);
    disk.0.lock().unwrap().room = None;
    let store = Disk::with_backend(disk.clone(), false).unwrap();
    assert_eq!(store.read().unwrap().sequence, 1);
    store.commit(&commit(2, edit("large", 10 << 20))).unwrap();
}

/// Numbers that nobody can have counted to are damage.
#[test]
fn numbers_beyond_all_counting_are_damage() {
    for (sequence, next_birth, is_sound) in
        [(u64::MAX, 1, false), (1, u64::MAX, false), (1 << 62, 1 << 62, true)]
    {
        let (_disk, store) = empty();
        let edits = Vec::new();
        store.commit(&Commit { sequence, next_birth, layout: 1, whole: false, edits }).unwrap();
        let read = store.read();
        assert_eq!(read.is_ok(), is_sound, "{sequence} {next_birth}: {read:?}");
    }
}

/// A layout that is not known here is not written, in whole or in part.
#[test]
fn an_unknown_layout_is_not_written() {
    let (_, store) = empty();
    for whole in [false, true] {
        let commit = Commit { sequence: 1, next_birth: 1, layout: 2, whole, edits: Vec::new() };
        assert!(store.commit(&commit).is_err());
    }
    let read = store.read().unwrap();
    assert_eq!((read.sequence, read.layout), (0, 1));
}

#[test]
fn an_empty_file_and_another_layout_are_no_store() {
    let opened = |bytes| Disk::with_backend(Faulty::of(bytes), false);
    assert!(matches!(opened(Vec::new()), Err(Trouble::Damaged(_))));
    assert!(matches!(opened(vec![9; 8192]), Err(Trouble::Damaged(_))));
    // A later release wrote it: it is not ours to replace.
    let disk = Faulty::default();
    let database = redb::Database::builder()
        .create_with_file_format_v3(true)
        .create_with_backend(disk.clone())
        .unwrap();
    let transaction = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    transaction.open_table(meta).unwrap().insert("layout", 2).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let bytes = disk.0.lock().unwrap().seen.clone();
    assert!(matches!(opened(bytes), Err(Trouble::Layout(2))));
}

#[test]
fn a_store_has_one_user_and_gets_its_name_when_it_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    // What an interrupted start left.
    std::fs::write(directory.path().join("declared.redb.new"), [1; 100]).unwrap();
    let store = Disk::open(directory.path()).unwrap();
    assert!(matches!(Disk::open(directory.path()), Err(Trouble::Locked)));
    let names: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["declared.redb"]);
    drop(store);
    assert_eq!(Disk::open(directory.path()).unwrap().read().unwrap().sequence, 0);
}

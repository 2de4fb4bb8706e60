//! The store: frames between daemon and writer, and the records that commits leave.

use std::collections::BTreeMap;

use butterfly_store::{
    Commit, Edit, Key, Sort,
    disk::{Disk, FURTHEST, Trouble},
    harness,
};
use redb::backends::InMemoryBackend;

use crate::input::Input;

/// Most commits of a run: each is a transaction.
const COMMITS: usize = 12;

/// The layout that a program without rehearsal reads.
const LAYOUT: u32 = 1;

/// Frames, or commits that are made of decisions: the first byte says which.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let commits = if input.u8() & 1 == 0 {
        harness::read_all(input.rest())
    } else {
        let made: Vec<_> = (0..COMMITS).map_while(|_| commit(&mut input)).collect();
        let stream: Vec<u8> = made.iter().flat_map(harness::written).collect();
        let read = harness::read_all(&stream);
        assert_eq!(read, made);
        read
    };
    if !commits.is_empty() {
        keep(&commits);
    }
}

/// A commit of a few records.
fn commit(input: &mut Input<'_>) -> Option<Commit> {
    let choice = input.next()?;
    let edits = (0..choice % 8).map(|_| {
        let key = input.u8();
        let sort = Sort::ALL[usize::from(key) % Sort::ALL.len()];
        let name = if key & 0x80 == 0 {
            format!("n{}", key >> 4 & 3)
        } else {
            let len = usize::from(input.u8() % 40);
            String::from_utf8_lossy(input.bytes(len)).into_owned()
        };
        let len = input.u8();
        let value = (len & 1 == 0).then(|| input.bytes(usize::from(len)).to_vec());
        Edit { key: Key { sort, name }, value }
    });
    let edits = edits.collect();
    Some(Commit {
        sequence: input.u64(),
        next_birth: input.u64(),
        layout: LAYOUT,
        whole: choice & 0x80 != 0,
        edits,
    })
}

/// Makes the commits. What is read is what they say.
fn keep(commits: &[Commit]) {
    let disk = Disk::with_backend(InMemoryBackend::new(), true).expect("a store");
    let mut model = BTreeMap::new();
    for commit in commits.iter().take(COMMITS) {
        match disk.commit(commit) {
            // One that this program could not read is refused whole.
            Err(_) if commit.layout != LAYOUT => continue,
            outcome => outcome.expect("room"),
        }
        if commit.whole {
            model.clear();
        }
        for Edit { key, value } in &commit.edits {
            match value {
                Some(value) => drop(model.insert(key.clone(), value.clone())),
                None => drop(model.remove(key)),
            }
        }
        let contents = match disk.read() {
            Err(Trouble::Damaged(_)) if commit.sequence.max(commit.next_birth) > FURTHEST => return,
            contents => contents.expect("what was written"),
        };
        assert_eq!((contents.sequence, contents.next_birth), (commit.sequence, commit.next_birth));
        assert!(contents.records.into_iter().eq(model.clone()), "other records than the model's");
    }
}

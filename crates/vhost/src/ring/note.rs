//! Notes about packed rings, for a successor of this process.
//!
//! Nothing in a packed ring tells where the device stands: a used entry overwrites the descriptor,
//! and with it how many the chain had. So a vnic's notes lie in a file that outlasts the process.
//! Before the first used entry of a run of chains is stored, the note says where the run begins and
//! how long its chains are. A successor goes from there over all that is used already.
//!
//! Each store to a note is one word, in this order: a list, if the run needs one, into the half
//! that is not in force; then the word that puts it in force. A process that dies anywhere leaves
//! the run before or this one, whole.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use butterfly_mem::words::Words;

/// Most chains of a run, and so of a frame: the largest one fits into buffers of 512 bytes, the
/// smallest that a driver in use has.
pub(super) const MOST: u16 = 250;

/// Words of a note, a page: which position it is about, the run, and two lists.
const NOTE: usize = 512;
const EPOCH: usize = 0;
const RUN: usize = 1;
const LISTS: [usize; 2] = [8, 260];
/// Most rings of a vnic.
const RINGS: usize = 32;
/// Words of all notes of a vnic.
const BLOCK: usize = NOTE * RINGS;
/// Most vnics that have notes: more than there can be.
const BLOCKS: usize = 4160;

/// Position of a packed ring that no device ever drove: its first descriptor, in the first lap
/// (virtio 1.2, 2.8.1).
pub(crate) const FRESH: u16 = 1 << 15;

/// User of a block of notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Nobody,
    /// A front end that another process served, and that is not taken up yet.
    Former,
    /// A state names it, of which nothing is here.
    Withheld,
    Session,
}

/// Notes about the packed rings of all vnics, in one file. Pages that nobody uses take no memory.
#[derive(Debug)]
pub struct NoteTable {
    words: Words,
    users: Mutex<Vec<User>>,
}

impl NoteTable {
    fn new(words: Words) -> Arc<NoteTable> {
        Arc::new(NoteTable { words, users: Mutex::new(vec![User::Nobody; BLOCKS]) })
    }

    /// Makes an empty table. Returns the file, to be kept, too.
    pub fn create() -> io::Result<(OwnedFd, Arc<NoteTable>)> {
        let (file, words) = Words::create("butterfly-rings", BLOCK * BLOCKS)?;
        Ok((file, NoteTable::new(words)))
    }

    /// A table that another process left in a file.
    pub fn of(file: impl AsFd) -> io::Result<Arc<NoteTable>> {
        Ok(NoteTable::new(Words::map(file, BLOCK * BLOCKS)?))
    }

    fn users(&self) -> MutexGuard<'_, Vec<User>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clear(&self, block: usize) -> io::Result<()> {
        self.words.clear(BLOCK * block..BLOCK * (block + 1))
    }

    /// Keeps a block for a front end that another process served.
    pub fn reserve(&self, block: u32) {
        if let Some(user) = self.users().get_mut(block as usize) {
            *user = User::Former;
        }
    }

    /// Lets go of a block that was reserved: nobody takes its front end up.
    pub fn release(&self, block: u32) {
        let mut users = self.users();
        if let Some(user) = users.get_mut(block as usize).filter(|user| **user == User::Former) {
            *user = User::Nobody;
        }
    }

    /// Keeps a block that a state names, of whose notes nothing is left, from all.
    pub fn withhold(&self, block: u32) {
        if let Some(user) = self.users().get_mut(block as usize) {
            *user = User::Withheld;
        }
    }

    /// A block for a new front end, in which nothing is noted; `None` if all are in use.
    pub fn take(self: &Arc<Self>) -> Option<Arc<Notes>> {
        let mut users = self.users();
        let block = users.iter().position(|user| *user == User::Nobody)?;
        // Messages of another vnic had the same numbers.
        self.clear(block).ok()?;
        *users.get_mut(block)? = User::Session;
        Some(Arc::new(Notes { table: self.clone(), block: block as u32 }))
    }

    /// The block of a front end that another process served. `None` if it was not kept for one.
    pub fn take_up(self: &Arc<Self>, block: u32) -> Option<Arc<Notes>> {
        let mut users = self.users();
        let user = users.get_mut(block as usize).filter(|user| **user == User::Former)?;
        *user = User::Session;
        Some(Arc::new(Notes { table: self.clone(), block }))
    }
}

/// Notes about all rings of a front end. Their block is free again when this is dropped.
#[derive(Debug)]
pub struct Notes {
    table: Arc<NoteTable>,
    block: u32,
}

impl Drop for Notes {
    fn drop(&mut self) {
        // What is noted stays: a process that ends in order has a successor, too.
        if let Some(user) = self.table.users().get_mut(self.block as usize) {
            *user = User::Nobody;
        }
    }
}

impl Notes {
    /// Gives their memory back: the holder knows that their front end is gone.
    pub fn clear(&self) {
        // Whoever gets the block next clears it once more.
        let _ = self.table.clear(self.block as usize);
    }

    /// Its block in the table.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// The note about the ring with this index, whose memory is there from now on. `epoch` is the
    /// number of the message that said where the ring starts: what was noted after another one does
    /// not count.
    pub fn note(self: &Arc<Self>, index: usize, epoch: u64) -> io::Result<Note> {
        if index >= RINGS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = BLOCK * self.block as usize + NOTE * index;
        self.table.words.have(at..at + NOTE)?;
        Ok(Note { notes: self.clone(), at, epoch })
    }
}

/// A note about a ring.
#[derive(Clone, Debug)]
pub struct Note {
    notes: Arc<Notes>,
    at: usize,
    epoch: u64,
}

/// Chains of a run in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// Bytes that the device wrote.
    pub len: u32,
    pub id: u16,
    /// Number of its descriptors in the ring.
    pub descriptors: u16,
    /// The next chain belongs to the same frame.
    pub more: bool,
}

const MORE: u64 = 1 << 63;

impl Listed {
    fn word(self) -> u64 {
        let more = if self.more { MORE } else { 0 };
        u64::from(self.len) | u64::from(self.id) << 32 | u64::from(self.descriptors) << 48 | more
    }

    fn from_word(word: u64) -> Listed {
        Listed {
            len: word as u32,
            id: (word >> 32) as u16,
            descriptors: (word >> 48) as u16 & 0x7fff,
            more: word & MORE != 0,
        }
    }
}

/// A run of chains, as the note tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Position at which it begins: place, and lap in the highest bit.
    pub position: u16,
    /// Number of chains.
    pub chains: u16,
    /// List of its chains; without one each has a single descriptor.
    list: Option<usize>,
}

/// Said behind position (16 bits) and number of chains (8).
const SECOND: u64 = 1 << 24;
const HAS_LIST: u64 = 1 << 25;
/// Of each run: a word of zeros is none.
const IS_RUN: u64 = 1 << 26;

impl Run {
    fn word(self) -> u64 {
        let list = match self.list {
            None => 0,
            Some(0) => HAS_LIST,
            Some(_) => HAS_LIST | SECOND,
        };
        u64::from(self.position) | u64::from(self.chains) << 16 | list | IS_RUN
    }

    /// Returns `None` for what is no run.
    fn from_word(word: u64) -> Option<Run> {
        let chains = (word >> 16) as u16 & 0xff;
        if word & IS_RUN == 0 || word >> 27 != 0 || chains > MOST {
            return None;
        }
        let list = (word & HAS_LIST != 0).then_some(usize::from(word & SECOND != 0));
        Some(Run { position: word as u16, chains, list })
    }
}

impl Note {
    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        // Never beyond: a note has as many words, and the file is as long. Asked for all the same.
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        self.notes.table.words.get(self.at + at).unwrap_or(&NOWHERE)
    }

    /// Notes a position at which nothing is used yet, whatever stood there.
    pub(super) fn begin(&self, position: u16) {
        self.word(RUN).store(Run { position, chains: 0, list: None }.word(), Release);
        self.word(EPOCH).store(self.epoch, Release);
    }

    /// True if it was [begun](Self::begin) after the message that said where the ring starts.
    pub(crate) fn is_begun(&self) -> bool {
        self.word(EPOCH).load(Acquire) == self.epoch
    }

    /// The run; `None` if there is none that makes sense.
    pub(super) fn run(&self) -> Option<Run> {
        Run::from_word(self.word(RUN).load(Acquire))
    }

    /// A chain of the run; one of a single descriptor if the run has no list.
    pub(super) fn listed(&self, run: Run, index: u16) -> Listed {
        match run.list.and_then(|half| LISTS.get(half)) {
            Some(list) => Listed::from_word(self.word(list + usize::from(index)).load(Relaxed)),
            None => Listed { len: 0, id: 0, descriptors: 1, more: false },
        }
    }

    /// Notes a run of single descriptors.
    #[inline(always)]
    pub(super) fn singles(&self, position: u16, chains: u16) {
        let list = None;
        self.word(RUN).store(Run { position, chains, list }.word(), Release);
    }

    /// Notes a run of at most [`MOST`] chains.
    pub(super) fn listing(&self, position: u16, chains: impl Iterator<Item = Listed>) {
        // The half of the run before stays as it is.
        let half = match self.run().and_then(|run| run.list) {
            Some(0) => 1,
            _ => 0,
        };
        let list = LISTS.get(half).copied().unwrap_or_default();
        let mut count = 0;
        for chain in chains.take(usize::from(MOST)) {
            self.word(list + usize::from(count)).store(chain.word(), Release);
            count += 1;
        }
        let run = Run { position, chains: count, list: Some(half) };
        self.word(RUN).store(run.word(), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Listed = Listed { len: u32::MAX, id: 0xffff, descriptors: 0x7fff, more: true };
    const SECOND: Listed = Listed { len: 1, id: 2, descriptors: 3, more: false };

    #[test]
    fn what_was_noted_is_found_by_a_successor() {
        let (file, table) = NoteTable::create().unwrap();
        let notes = table.take().unwrap();
        let note = notes.note(1, 7).unwrap();
        assert!(!note.is_begun() && note.run().is_none());
        note.begin(FRESH);
        note.listing(0x8012, [FIRST, SECOND].into_iter());
        let block = notes.block();

        let table = NoteTable::of(&file).unwrap();
        table.reserve(block);
        let others = table.take().unwrap();
        assert!(!others.note(1, 7).unwrap().is_begun(), "another front end");
        let notes = table.take_up(block).unwrap();
        let of = |index, epoch| notes.note(index, epoch).unwrap();
        let note = of(1, 7);
        assert!(note.is_begun());
        assert!(!of(1, 8).is_begun(), "another message said where it starts");
        assert!(!of(0, 7).is_begun(), "another ring");
        let run = note.run().unwrap();
        assert_eq!((run.position, run.chains), (0x8012, 2));
        assert_eq!([note.listed(run, 0), note.listed(run, 1)], [FIRST, SECOND]);
        note.singles(5, 64);
        let run = note.run().unwrap();
        assert_eq!((run.position, run.chains, note.listed(run, 63).descriptors), (5, 64, 1));
    }

    #[test]
    fn a_list_never_overwrites_the_one_in_force() {
        let (_file, table) = NoteTable::create().unwrap();
        let note = table.take().unwrap().note(0, 1).unwrap();
        note.begin(0);
        for n in 0..10u16 {
            let before = note.run().unwrap();
            let was = note.listed(before, 0);
            let mut looked = false;
            // What a successor finds while the next list is written.
            let chains =
                [SECOND, FIRST].into_iter().cycle().take(usize::from(MOST)).inspect(|_| {
                    looked = true;
                    assert_eq!(note.run(), Some(before));
                    assert_eq!(note.listed(before, 0), was);
                });
            note.listing(n, chains);
            assert!(looked);
            let run = note.run().unwrap();
            assert_eq!((run.position, run.chains), (n, MOST));
            assert_eq!(note.listed(run, MOST - 1), FIRST);
        }
    }

    #[test]
    fn what_is_no_run_is_none() {
        for word in [0, 1, u64::MAX, IS_RUN | 251 << 16, IS_RUN | 1 << 27] {
            assert_eq!(Run::from_word(word), None, "{word:#x}");
        }
        for list in [None, Some(0), Some(1)] {
            let run = Run { position: 0xabcd, chains: MOST, list };
            assert_eq!(Run::from_word(run.word()), Some(run));
        }
    }

    #[test]
    fn each_block_has_one_user() {
        let (_file, table) = NoteTable::create().unwrap();
        let all: Vec<_> = (0..BLOCKS).map(|_| table.take().unwrap()).collect();
        let mut blocks: Vec<_> = all.iter().map(|notes| notes.block()).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!((blocks.len(), table.take().is_none()), (BLOCKS, true));
        assert!(all[0].note(RINGS, 1).is_err());
        assert!(table.take_up(5).is_none(), "it is in use");
        let note = all[5].note(0, 1).unwrap();
        drop(all);
        let free: Vec<_> = (0..BLOCKS - 1).map(|_| table.take().unwrap()).collect();
        assert!(table.take().is_none(), "a ring has a note in it");
        note.begin(FRESH);
        assert!(free.iter().all(|notes| notes.block() != 5));
        drop(note);
        let again = table.take().unwrap();
        assert_eq!(again.block(), 5);
        assert!(!again.note(0, 1).unwrap().is_begun(), "another front end has it now");
        drop(again);
        table.reserve(u32::MAX);
        assert!(table.take_up(u32::MAX).is_none());
        drop(free);
        table.withhold(8);
        assert!(table.take_up(8).is_none());
        table.reserve(7);
        let used: Vec<_> = (2..BLOCKS).map(|_| table.take().unwrap()).collect();
        assert!(used.iter().all(|notes| ![7, 8].contains(&notes.block())));
        assert!(table.take().is_none());
        assert!(table.take_up(7).is_some() && table.take_up(7).is_none(), "once");
        table.reserve(9);
        table.release(9);
        assert!(table.take_up(9).is_none());
    }
}

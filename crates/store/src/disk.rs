//! The file: a `redb` database with one transaction and one fsync per commit.
//!
//! A commit for which the file has to grow costs another one: the length is on the disk before
//! anything refers to it. Two-phase commit and quick repair stay off, as each would cost an fsync
//! more. After a crash the library verifies the checksums of all pages and takes the last commit
//! that is whole.

use crate::record::{Commit, Contents, Key, Sort};
use redb::{
    Database, DatabaseError, Durability, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError, backends::FileBackend,
};
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Name of the file in its directory.
pub const FILE: &str = "declared.redb";
/// Bytes of pages that the library keeps in memory.
const CACHE: usize = 8 << 20;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const RECORDS: TableDefinition<'_, (u8, &str), &[u8]> = TableDefinition::new("records");
const LAYOUT_KEY: &str = "layout";
const SEQUENCE: &str = "sequence";
const NEXT_BIRTH: &str = "next-birth";
/// Highest number that commits and births can have come to: a million each second would take a
/// hundred thousand years. A store with a higher one is damaged.
pub const FURTHEST: u64 = 1 << 62;

/// The store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// Another process has it.
    #[error("another process has it locked, perhaps a butterflyd that has not ended yet")]
    Locked,
    /// The library found damage.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A release wrote it that is too old or too new.
    #[error("{}", butterfly_layout::unreadable(*.0))]
    Layout(u64),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Corrupted(why) => Self::Damaged(why),
            StorageError::Io(why) => why.into(),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // So the library calls a file that does not begin as its files do.
            io::ErrorKind::InvalidData => Self::Damaged("it does not begin as a store does".into()),
            _ => Self::Other(error.to_string()),
        }
    }
}

impl From<DatabaseError> for Trouble {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::Locked,
            DatabaseError::Storage(error) => error.into(),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<TableError> for Trouble {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
}

impl From<redb::TransactionError> for Trouble {
    fn from(error: redb::TransactionError) -> Self {
        match error {
            redb::TransactionError::Storage(error) => error.into(),
            other => Self::Other(other.to_string()),
        }
    }
}

impl From<redb::CommitError> for Trouble {
    fn from(error: redb::CommitError) -> Self {
        match error {
            redb::CommitError::Storage(error) => error.into(),
            other => Self::Other(other.to_string()),
        }
    }
}

/// A backend whose length is on the disk before anything refers to it.
///
/// A power loss may keep the header that the library wrote after the file grew, and not the growth.
/// The library refuses such a file.
#[derive(Debug)]
struct Lengthened<B>(B);

impl<B: StorageBackend> StorageBackend for Lengthened<B> {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.0.read(offset, length)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let grows = length > self.0.len()?;
        self.0.set_len(length)?;
        if grows { self.0.sync_data(false) } else { Ok(()) }
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.0.sync_data(eventual)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// An open store. Nobody else has it open.
#[derive(Debug)]
pub struct Disk {
    database: Database,
}

impl Disk {
    /// Opens the store in `directory`, or makes an empty one. A new file gets its name only when it
    /// is whole on the disk.
    pub fn open(directory: &Path) -> Result<Self, Trouble> {
        let path = directory.join(FILE);
        match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => {
                let backend = FileBackend::new(file)?;
                // A commit that was not synced when its writer ended is read, and may be lost yet.
                backend.sync_data(false)?;
                Self::with_backend(backend, false)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(directory, &path),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the store in `directory`. There has to be one.
    pub fn open_there(directory: &Path) -> Result<Self, Trouble> {
        let file = OpenOptions::new().read(true).write(true).open(directory.join(FILE))?;
        Self::with_backend(FileBackend::new(file)?, false)
    }

    fn create(directory: &Path, path: &Path) -> Result<Self, Trouble> {
        let new = directory.join(format!("{FILE}.new"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&new)?;
        let backend = FileBackend::new(file)?;
        // What an earlier attempt left, which nobody had locked, was never a store.
        backend.set_len(0)?;
        let disk = Self::with_backend(backend, true)?;
        fs::rename(&new, path)?;
        File::open(directory)?.sync_all()?;
        Ok(disk)
    }

    /// Opens the store in a backend. `new`: it is empty, and becomes a store.
    pub fn with_backend(backend: impl StorageBackend, new: bool) -> Result<Self, Trouble> {
        // The library makes a store of nothing, and nothing is what a damaged file may be.
        if !new && backend.len()? == 0 {
            return Err(Trouble::Damaged("it is empty".into()));
        }
        let database = Database::builder()
            .create_with_file_format_v3(true)
            .set_cache_size(CACHE)
            .create_with_backend(Lengthened(backend))?;
        let disk = Self { database };
        if new {
            disk.begin()?;
        }
        disk.layout().map(|_| disk)
    }

    /// Returns the layout of its records.
    fn layout(&self) -> Result<u32, Trouble> {
        let missing = || Trouble::Damaged("it has no layout number".into());
        let number = self.number(LAYOUT_KEY)?.ok_or_else(missing)?;
        let known = u32::try_from(number).ok().filter(|it| butterfly_layout::read().contains(it));
        known.ok_or(Trouble::Layout(number))
    }

    /// Writes the tables of an empty store.
    fn begin(&self) -> Result<(), Trouble> {
        let transaction = self.transaction()?;
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert(LAYOUT_KEY, u64::from(butterfly_layout::newest()))?;
            meta.insert(SEQUENCE, 0)?;
            meta.insert(NEXT_BIRTH, 1)?;
            transaction.open_table(RECORDS)?;
        }
        Ok(transaction.commit()?)
    }

    fn transaction(&self) -> Result<redb::WriteTransaction, Trouble> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate);
        Ok(transaction)
    }

    fn number(&self, name: &str) -> Result<Option<u64>, Trouble> {
        let meta = self.database.begin_read()?.open_table(META);
        match meta {
            Ok(meta) => Ok(meta.get(name)?.map(|value| value.value())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads everything.
    pub fn read(&self) -> Result<Contents, Trouble> {
        let missing = || Trouble::Damaged("it has no sequence".into());
        let mut contents = Contents {
            sequence: self.number(SEQUENCE)?.ok_or_else(missing)?,
            next_birth: self.number(NEXT_BIRTH)?.ok_or_else(missing)?,
            layout: self.layout()?,
            records: Vec::new(),
        };
        if contents.sequence.max(contents.next_birth) > FURTHEST {
            return Err(Trouble::Damaged("it counts further than anybody can".into()));
        }
        let table = self.database.begin_read()?.open_table(RECORDS)?;
        for row in table.iter()? {
            let (key, value) = row?;
            let (sort, name) = key.value();
            let sort = Sort::numbered(sort)
                .ok_or_else(|| Trouble::Damaged(format!("it has a record of sort {sort}")))?;
            let key = Key { sort, name: name.to_owned() };
            contents.records.push((key, value.value().to_vec()));
        }
        Ok(contents)
    }

    /// Makes a commit. When it returns without an error, the commit is on the disk. After an error
    /// the store has to be opened again, and may have the commit or not.
    pub fn commit(&self, commit: &Commit) -> Result<(), Trouble> {
        butterfly_layout::check(commit.layout).map_err(Trouble::Other)?;
        if self.layout()? != commit.layout && !commit.whole {
            return Err(Trouble::Other("another layout comes without all records".into()));
        }
        let transaction = self.transaction()?;
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert(SEQUENCE, commit.sequence)?;
            meta.insert(NEXT_BIRTH, commit.next_birth)?;
            meta.insert(LAYOUT_KEY, u64::from(commit.layout))?;
            let mut records = transaction.open_table(RECORDS)?;
            if commit.whole {
                records.retain(|_, _| false)?;
            }
            for edit in &commit.edits {
                let key = (edit.key.sort.number(), edit.key.name.as_str());
                match &edit.value {
                    Some(value) => drop(records.insert(key, value.as_slice())?),
                    None => drop(records.remove(key)?),
                }
            }
        }
        Ok(transaction.commit()?)
    }
}

/// Copies the store of one directory into another one. The copy is not synced: it is to be read
/// while this host runs, and no longer.
pub fn copy(from: &Path, to: &Path) -> Result<(), Trouble> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    let mut source = File::open(from.join(FILE))?;
    let path = to.join(FILE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    Ok(whole(&path, io::copy(&mut source, &mut copy).map(drop))?)
}

/// Removes a copy that failed: a disk that is full shall not be fuller for it.
fn whole(copy: &Path, outcome: io::Result<()>) -> io::Result<()> {
    outcome.inspect_err(|_| drop(fs::remove_file(copy)))
}

/// Copies a damaged store to a name with the date, then makes an empty one. Returns that name.
///
/// Fails, with the store untouched, if another process has it.
pub fn set_aside(directory: &Path) -> Result<(Disk, PathBuf), Trouble> {
    let path = directory.join(FILE);
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    // Locked as long as the copy takes, and until the file has lost its name.
    let locked = FileBackend::new(file.try_clone()?)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let aside = directory.join(format!("{FILE}.damaged-{}", date(now)));
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    whole(&aside, io::copy(&mut &file, &mut copy).and_then(|_| copy.sync_all()))?;
    fs::remove_file(&path)?;
    drop(locked);
    Ok((Disk::create(directory, &path)?, aside))
}

/// Seconds since the epoch as a date and a time of UTC.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_copied_whole_leaves_nothing() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("copy");
        for (outcome, stays) in [(Ok(()), true), (Err(io::ErrorKind::StorageFull.into()), false)] {
            fs::write(&path, "a part").unwrap();
            assert_eq!(whole(&path, outcome).is_ok(), stays);
            assert_eq!(path.exists(), stays);
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "19700101T000000Z");
        assert_eq!(date(951_782_400), "20000229T000000Z");
        assert_eq!(date(1_764_061_445), "20251125T090405Z");
    }
}

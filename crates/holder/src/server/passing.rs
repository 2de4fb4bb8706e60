//! Writing down all that a holder has for the program that it becomes, and reading that.
//!
//! Numbers, texts and lists are as in the [packets](crate::protocol). First comes the form, then
//! the numbers under which the program has descriptors open, in the order in which what follows has
//! them. A time is how long ago it was, in milliseconds. Nothing of it is believed: what cannot be
//! leads back to the program before.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::{Duration, Instant},
};

use rustix::process::Pid;

use crate::protocol::{self, MAX_TEXT, Malformed, Reader, Role};

/// Form of what follows, the first number. A program reads the forms of releases before its own.
pub const FORM: u32 = 1;

/// Something that a holder passes on.
pub trait Pass: Sized {
    /// Writes it down.
    fn give<'a>(&'a self, to: &mut Giver<'a>);
    /// Reads it.
    fn take(from: &mut Taker<'_>) -> Result<Self, Malformed>;
}

/// Bytes that are written, and the descriptors that belong to them.
pub struct Giver<'a> {
    bytes: Vec<u8>,
    pub files: Vec<BorrowedFd<'a>>,
    now: Instant,
}

impl<'a> Giver<'a> {
    pub fn new(now: Instant) -> Giver<'a> {
        Giver { bytes: Vec::new(), files: Vec::new(), now }
    }

    /// Returns all that was written, with the form and the numbers.
    pub fn whole(&self) -> Vec<u8> {
        let numbers = self.files.iter().map(|file| file.as_raw_fd() as u64);
        let mut whole = FORM.to_ne_bytes().to_vec();
        whole.extend((self.files.len() as u64).to_ne_bytes());
        numbers.for_each(|number| whole.extend(number.to_ne_bytes()));
        whole.extend(&self.bytes);
        whole
    }

    /// True if this and another one wrote the same of as many descriptors.
    #[cfg(any(test, feature = "harness"))]
    pub fn is_like(&self, other: &Giver<'_>) -> bool {
        (self.files.len(), &self.bytes) == (other.files.len(), &other.bytes)
    }

    pub fn flag(&mut self, it: bool) {
        self.bytes.push(it.into());
    }

    pub fn byte(&mut self, it: u8) {
        self.bytes.push(it);
    }

    pub fn number(&mut self, it: u64) {
        self.bytes.extend(it.to_ne_bytes());
    }

    pub fn pid(&mut self, it: Pid) {
        self.number(it.as_raw_nonzero().get() as u64);
    }

    pub fn count(&mut self, it: usize) {
        self.number(it as u64);
    }

    pub fn since(&mut self, time: Instant) {
        let passed = self.now.saturating_duration_since(time).as_millis();
        self.number(u64::try_from(passed).unwrap_or(u64::MAX));
    }

    pub fn list(&mut self, bytes: &[u8]) {
        protocol::bytes(&mut self.bytes, bytes);
    }

    pub fn text(&mut self, text: &str) {
        protocol::text(&mut self.bytes, text);
    }

    pub fn role(&mut self, role: Role) {
        protocol::role(&mut self.bytes, role);
    }

    pub fn file(&mut self, file: &'a impl AsFd) {
        self.files.push(file.as_fd());
    }

    pub fn maybe<T>(&mut self, it: &'a Option<T>, write: impl FnOnce(&mut Self, &'a T)) {
        self.flag(it.is_some());
        if let Some(it) = it {
            write(self, it);
        }
    }

    pub fn all<T>(
        &mut self,
        all: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.count(all.len());
        all.for_each(|it| write(self, it));
    }
}

/// Source of descriptors.
enum Files {
    /// Those that the program before left open.
    Inherited(BTreeMap<RawFd, OwnedFd>),
    /// None: copies of one stand for all.
    StandIn(OwnedFd),
}

/// Reads the words of the program before.
pub struct Taker<'a> {
    from: Reader<'a>,
    files: Files,
    /// Numbers of descriptors that were not taken yet.
    numbers: VecDeque<RawFd>,
    /// Reason for which a copy could not be made.
    no_copy: Option<io::Error>,
    now: Instant,
}

impl<'a> Taker<'a> {
    /// Begins to read. Descriptors are taken out of those that are inherited.
    pub fn new(
        bytes: &'a [u8],
        inherited: BTreeMap<RawFd, OwnedFd>,
        now: Instant,
    ) -> Result<Taker<'a>, Malformed> {
        Taker::begin(bytes, Files::Inherited(inherited), now)
    }

    /// Begins to find out whether all of it can be read. Copies of `file` stand for descriptors.
    pub fn on_trial(bytes: &'a [u8], file: OwnedFd) -> Result<Taker<'a>, Malformed> {
        Taker::begin(bytes, Files::StandIn(file), Instant::now())
    }

    fn begin(bytes: &'a [u8], files: Files, now: Instant) -> Result<Taker<'a>, Malformed> {
        let (from, numbers) = (Reader(bytes), VecDeque::new());
        let mut taker = Taker { from, files, numbers, no_copy: None, now };
        if taker.from.u32()? != FORM {
            return Err(Malformed);
        }
        let number = |from: &mut Taker<'_>| RawFd::try_from(from.number()?).map_err(|_| Malformed);
        taker.numbers = taker.all(usize::MAX, number)?.into();
        Ok(taker)
    }

    /// Numbers of all descriptors that were not taken yet.
    pub fn numbers(&self) -> &VecDeque<RawFd> {
        &self.numbers
    }

    /// Returns why a copy of a descriptor could not be made, if that is so.
    pub fn no_copy(&mut self) -> Option<io::Error> {
        self.no_copy.take()
    }

    /// The end of it: all was read. Returns what nobody took.
    pub fn end(self) -> Result<BTreeMap<RawFd, OwnedFd>, Malformed> {
        let left = match self.files {
            Files::Inherited(left) => left,
            Files::StandIn(_) => BTreeMap::new(),
        };
        self.from.end(left).and_then(|left| match self.numbers.is_empty() {
            true => Ok(left),
            false => Err(Malformed),
        })
    }

    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.from.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub fn byte(&mut self) -> Result<u8, Malformed> {
        self.from.u8()
    }

    pub fn number(&mut self) -> Result<u64, Malformed> {
        self.from.u64()
    }

    pub fn pid(&mut self) -> Result<Pid, Malformed> {
        let number = i32::try_from(self.number()?).map_err(|_| Malformed)?;
        Pid::from_raw(number).ok_or(Malformed)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.number()?.try_into().map_err(|_| Malformed)
    }

    pub fn time(&mut self) -> Result<Instant, Malformed> {
        let passed = Duration::from_millis(self.number()?);
        Ok(self.now.checked_sub(passed).unwrap_or(self.now))
    }

    pub fn list(&mut self, most: usize) -> Result<Vec<u8>, Malformed> {
        self.from.bytes(most)
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        self.from.text()
    }

    pub fn path(&mut self) -> Result<Vec<u8>, Malformed> {
        self.from.bytes(MAX_TEXT)
    }

    pub fn role(&mut self) -> Result<Role, Malformed> {
        self.from.role()
    }

    pub fn file(&mut self) -> Result<OwnedFd, Malformed> {
        let number = self.numbers.pop_front().ok_or(Malformed)?;
        match &mut self.files {
            Files::Inherited(all) => all.remove(&number).ok_or(Malformed),
            Files::StandIn(file) => copy_of(file).map_err(|why| {
                self.no_copy = Some(why);
                Malformed
            }),
        }
    }

    pub fn maybe<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    pub fn all<T>(
        &mut self,
        most: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = usize::try_from(self.number()?).map_err(|_| Malformed)?;
        if count > most {
            return Err(Malformed);
        }
        (0..count).map(|_| read(self)).collect()
    }
}

/// Returns a copy of a descriptor that closes by itself in another program.
pub fn copy_of(file: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(file, 3)?)
}

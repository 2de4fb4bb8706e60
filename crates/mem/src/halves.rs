//! Texts that outlive the process: each is written into one of two halves of a memory file in turn,
//! so the last complete one survives a death in the middle of the next.
//!
//! The file is not mapped. A reader that gets it from a dead process, or from anybody else, copies
//! a half with one read and checks that copy. So nothing that happens to the file is a fault here.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create},
    io::Errno,
};

/// Begins every half that was written; the last byte counts layouts.
const MAGIC: u64 = u64::from_be_bytes(*b"BFHALF\0\x01");
/// Bytes before a text: [`MAGIC`], sequence, length, checksum.
const HEADER: usize = 32;

/// A memory file with room for several texts, each in two halves.
#[derive(Clone, Debug)]
pub struct HalvesFile {
    file: Arc<OwnedFd>,
}

impl HalvesFile {
    /// Makes a file of `size` bytes that can neither shrink nor grow. It takes memory only where
    /// something was written.
    pub fn create(name: &str, size: u64) -> io::Result<HalvesFile> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, size)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(HalvesFile { file: Arc::new(file) })
    }

    /// Takes a file that another process made. Refuses one with another size.
    pub fn open(file: OwnedFd, size: u64) -> io::Result<HalvesFile> {
        match fstat(&file)?.st_size {
            found if u64::try_from(found) == Ok(size) => Ok(HalvesFile { file: Arc::new(file) }),
            found => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a file of {found} bytes where {size} were to be: it is not used"),
            )),
        }
    }

    /// Returns the text whose halves begin at `from` and have `half` bytes each.
    pub fn halves(&self, from: u64, half: usize) -> TwoHalves {
        TwoHalves { file: self.clone(), from, half, last: None }
    }
}

impl AsFd for HalvesFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// One text of a [`HalvesFile`]. It has one writer.
#[derive(Debug)]
pub struct TwoHalves {
    file: HalvesFile,
    from: u64,
    half: usize,
    /// Sequence of the newest text, and the half that it is in; `None` before the first look.
    last: Option<(u64, u64)>,
}

/// A text and its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    /// Grows by one with each text.
    pub sequence: u64,
    /// The text.
    pub text: Vec<u8>,
}

impl TwoHalves {
    /// Returns the most bytes that a text may have.
    pub fn room(&self) -> usize {
        self.half.saturating_sub(HEADER)
    }

    /// Returns the newest text that is complete; `None` if there is none. Nothing in the file is
    /// believed: lengths are compared with the room, and contents with their checksum.
    pub fn newest(&self) -> Option<Newest> {
        self.look().map(|(_, newest)| newest)
    }

    fn look(&self) -> Option<(u64, Newest)> {
        let found = [0, 1].map(|half| self.read(half).map(|newest| (half, newest)));
        found.into_iter().flatten().max_by_key(|(_, newest)| newest.sequence)
    }

    fn read(&self, half: u64) -> Option<Newest> {
        let at = self.from.checked_add(half * self.half as u64)?;
        let mut header = [0u8; HEADER];
        read_exactly(&self.file, &mut header, at).ok()?;
        let [magic, sequence, length, sum] = words(&header);
        let length = usize::try_from(length).ok().filter(|length| *length <= self.room())?;
        // No writer comes that far, and the next one has to come after it.
        if magic != MAGIC || sequence > u64::MAX / 2 {
            return None;
        }
        let mut text = vec![0; length];
        read_exactly(&self.file, &mut text, at + HEADER as u64).ok()?;
        (sum == checksum(sequence, &text)).then_some(Newest { sequence, text })
    }

    /// Writes a text into the half that does not hold the newest one. When this returns, the text
    /// outlives the process. On an error, and whenever the process dies, the newest text stays.
    pub fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if text.len() > self.room() {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("{} bytes, and room for {}", text.len(), self.room()),
            ));
        }
        let last = self.last.or_else(|| self.look().map(|(half, newest)| (newest.sequence, half)));
        // The other half, whatever that may hold.
        let (sequence, half) =
            last.map_or((1, 0), |(sequence, half)| (sequence.wrapping_add(1), 1 - half));
        let at = self.from + half * self.half as u64;
        let mut header = [0u8; HEADER];
        let sum = checksum(sequence, text);
        for (place, word) in
            header.chunks_exact_mut(8).zip([MAGIC, sequence, text.len() as u64, sum])
        {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        write_all(&self.file, text, at + HEADER as u64)?;
        write_all(&self.file, &header, at)?;
        self.last = Some((sequence, half));
        Ok(())
    }
}

fn words(header: &[u8; HEADER]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(header.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    words
}

/// Sums up a text and its sequence, some bytes per cycle. It finds what a death left half written,
/// and is no proof against a forger.
fn checksum(sequence: u64, text: &[u8]) -> u64 {
    fn mix(sum: u64, word: u64) -> u64 {
        let product = u128::from(sum ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        (product as u64).rotate_left(29) ^ (product >> 64) as u64
    }
    let (whole, rest) = text.as_chunks::<8>();
    let sum = mix(sequence.wrapping_mul(0xff51_afd7_ed55_8ccd), text.len() as u64);
    let sum =
        whole.iter().fold(sum, |sum, word| mix(sum.wrapping_add(1), u64::from_ne_bytes(*word)));
    let mut last = [0; 8];
    last.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
    mix(sum.wrapping_add(1), u64::from_ne_bytes(last))
}

fn read_exactly(file: &HalvesFile, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                into = into.get_mut(n..).unwrap_or_default();
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

fn write_all(file: &HalvesFile, mut text: &[u8], mut at: u64) -> io::Result<()> {
    while !text.is_empty() {
        match rustix::io::pwrite(file, text, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                text = text.get(n..).unwrap_or_default();
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Facts that a successor has to know of a queue and cannot ask the kernel: in the head of the
//! queue's memory file.

use std::{io, os::fd::BorrowedFd};

use rustix::io::{pread, pwrite};

use super::{
    bpf::Hook,
    chunks::{RECEIVE, SEND},
};

/// Beginning of each record, with the number of its layout.
const MAGIC: [u8; 8] = *b"bflyxdp1";
/// Most bytes of a note.
const NOTE: usize = 1024;
/// Most queues that a record may tell.
const QUEUES: u32 = 4096;

/// The record of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Number of the queue.
    pub queue: u32,
    /// Number of queues that are served.
    pub queues: u32,
    /// Index of the interface.
    pub interface: u32,
    /// Bytes in a chunk.
    pub chunk: u32,
    /// The kernel's number for the socket.
    pub cookie: u64,
    /// Place of the program.
    pub hook: Hook,
    /// True if the kernel was asked to hand the chunks to the card.
    pub zero_copy: bool,
    /// Reason for which the mode is not a better one.
    pub note: Option<String>,
}

impl Record {
    /// Writes it into the head of a memory file.
    pub fn write(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let mut note = self.note.clone().unwrap_or_default();
        while note.len() > NOTE {
            note.pop();
        }
        let words = [
            self.queue,
            self.queues,
            self.interface,
            self.chunk,
            RECEIVE,
            SEND,
            u32::from(self.hook == Hook::Generic),
            u32::from(self.zero_copy),
            note.len() as u32,
        ];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.cookie.to_ne_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(note.as_bytes());
        match pwrite(file, &bytes, 0)? {
            written if written == bytes.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Reads what a former process wrote, which need not be what it should. `None` if it is not.
    pub fn read(file: BorrowedFd<'_>) -> io::Result<Option<Record>> {
        let mut bytes = [0; NOTE + 256];
        let len = pread(file, &mut bytes, 0)?;
        Ok(bytes.get(..len).and_then(Record::of))
    }

    fn of(bytes: &[u8]) -> Option<Record> {
        let bytes = bytes.strip_prefix(&MAGIC)?;
        let (cookie, mut rest) = bytes.split_first_chunk()?;
        let mut word = || {
            let (word, after) = rest.split_first_chunk()?;
            rest = after;
            Some(u32::from_ne_bytes(*word))
        };
        let [queue, queues, interface, chunk] = [word()?, word()?, word()?, word()?];
        let sizes = [word()?, word()?];
        let flag = |word| match word {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        let (generic, zero_copy) = (flag(word()?)?, flag(word()?)?);
        let len = word()? as usize;
        let note = std::str::from_utf8(rest.get(..len)?).ok()?;
        let sound = sizes == [RECEIVE, SEND]
            && (1..=QUEUES).contains(&queues)
            && queue < queues
            && len <= NOTE
            && !note.chars().any(char::is_control);
        sound.then(|| Record {
            queue,
            queues,
            interface,
            chunk,
            cookie: u64::from_ne_bytes(*cookie),
            hook: if generic { Hook::Generic } else { Hook::Native },
            zero_copy,
            note: (len > 0).then(|| note.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn record() -> Record {
        Record {
            queue: 1,
            queues: 2,
            interface: 7,
            chunk: 2048,
            cookie: 1 << 40,
            hook: Hook::Generic,
            zero_copy: true,
            note: Some("the driver refuses".to_owned()),
        }
    }

    fn bytes(of: &Record) -> Vec<u8> {
        let file = memfd_create("record", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        of.write(file.as_fd()).unwrap();
        assert_eq!(Record::read(file.as_fd()).unwrap().as_ref(), Some(of));
        let mut bytes = [0; 200];
        pread(&file, &mut bytes, 0).unwrap();
        bytes.to_vec()
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        bytes(&record());
        bytes(&Record { note: None, hook: Hook::Native, zero_copy: false, ..record() });
    }

    #[test]
    fn a_forged_record_is_refused() {
        let good = bytes(&record());
        let with = |at: usize, word: u32| {
            let mut forged = good.clone();
            forged[at..at + 4].copy_from_slice(&word.to_ne_bytes());
            Record::of(&forged)
        };
        assert!(with(0, 0).is_none(), "another beginning");
        assert!(with(16, 2).is_none(), "a queue that is not served");
        assert!(with(20, 0).is_none() && with(20, 1 << 20).is_none(), "too many queues");
        assert!(with(32, 1024).is_none() && with(36, 4096).is_none(), "other rings");
        assert!(with(40, 2).is_none() && with(44, 2).is_none(), "flags");
        assert!(with(48, 4000).is_none() && with(48, u32::MAX).is_none(), "a longer note");
        assert!(with(52, 0).is_none() && with(52, 0xffff_ffff).is_none(), "no text");
        assert!((0..70).all(|len| Record::of(&good[..len]).is_none()), "cut off");
    }
}

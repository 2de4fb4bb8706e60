//! A ring of words: one worker writes records into it, one reader takes them out. Neither waits for
//! the other.

#[cfg(feature = "loom")]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(feature = "loom"))]
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter on cache lines of its own, because different threads write neighbouring counters.
#[repr(align(128))]
struct Apart(AtomicU64);

/// The ring. Its memory never grows; the writer counts records that find no room.
pub(crate) struct Ring {
    /// Its words; their number is a power of two.
    words: Box<[AtomicU64]>,
    /// Words written, and words taken, since the beginning.
    written: Apart,
    taken: Apart,
}

/// Room for one record. The reader sees the record once it is published, and never if it is not.
pub(crate) struct RecordRoom<'a> {
    ring: &'a Ring,
    at: u64,
    end: u64,
}

impl Ring {
    /// Words of the ring that each worker has.
    pub const OWN: usize = 1 << 20;

    /// Makes a ring of the size that each worker has.
    pub fn own() -> Ring {
        Ring::new(Ring::OWN)
    }

    /// Makes a ring of `words` words, rounded up to a power of two.
    pub fn new(words: usize) -> Ring {
        Ring {
            words: (0..words.next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
            written: Apart(AtomicU64::new(0)),
            taken: Apart(AtomicU64::new(0)),
        }
    }

    fn word(&self, at: u64) -> Option<&AtomicU64> {
        self.words.get(at as usize & (self.words.len() - 1))
    }

    /// Asks for room for the writer. Returns `None` if fewer words are free. The ring keeps the
    /// first word for the record's length.
    pub fn room(&self, words: usize) -> Option<RecordRoom<'_>> {
        let words = words as u64 + 1;
        // Pairs with the reader's release: it has read the words before it frees them.
        let taken = self.taken.0.load(Ordering::Acquire);
        let at = self.written.0.load(Ordering::Relaxed);
        if at.wrapping_sub(taken) + words > self.words.len() as u64 {
            return None;
        }
        let mut room = RecordRoom { ring: self, at, end: at.wrapping_add(words) };
        room.push(words);
        Some(room)
    }

    /// Takes the next record for the reader, if there is one, and appends it to `to`. Returns the
    /// number of its words.
    pub fn take(&self, to: &mut Vec<u64>) -> Option<usize> {
        let written = self.written.0.load(Ordering::Acquire);
        let at = self.taken.0.load(Ordering::Relaxed);
        if at == written {
            return None;
        }
        let words = self.word(at)?.load(Ordering::Relaxed);
        let end = at.wrapping_add(words);
        let mut next = at.wrapping_add(1);
        while next != end {
            to.push(self.word(next)?.load(Ordering::Relaxed));
            next = next.wrapping_add(1);
        }
        self.taken.0.store(end, Ordering::Release);
        Some(words as usize - 1)
    }
}

impl RecordRoom<'_> {
    /// Puts the next word. Ignores words beyond the number asked for.
    #[inline]
    pub fn push(&mut self, word: u64) {
        if self.at != self.end
            && let Some(place) = self.ring.word(self.at)
        {
            place.store(word, Ordering::Relaxed);
            self.at = self.at.wrapping_add(1);
        }
    }

    /// Puts bytes, filled up with zeros to whole words.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.push(u64::from_ne_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            self.push(u64::from_ne_bytes(last));
        }
    }

    /// Shows the record to the reader.
    pub fn publish(mut self) {
        while self.at != self.end {
            self.push(0);
        }
        self.ring.written.0.store(self.end, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn put(ring: &Ring, record: &[u64]) -> bool {
        ring.room(record.len()).is_some_and(|mut room| {
            record.iter().for_each(|word| room.push(*word));
            room.publish();
            true
        })
    }

    #[test]
    fn records_come_out_as_they_went_in_round_and_round() {
        let ring = Ring::new(16);
        let mut got = Vec::new();
        for n in 0..1000u64 {
            let record: Vec<u64> = (0..n % 8).map(|i| n * 100 + i).collect();
            assert!(put(&ring, &record), "{n}");
            got.clear();
            assert_eq!(ring.take(&mut got), Some(record.len()));
            assert_eq!(got, record);
            assert_eq!(ring.take(&mut got), None);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_hurts_nothing() {
        let ring = Ring::new(8);
        assert!(put(&ring, &[1, 2, 3]));
        assert!(
            !put(&ring, &[4, 5, 6, 7]),
            "four words and the length are more than the four that are left"
        );
        assert!(put(&ring, &[4, 5, 6]));
        assert!(!put(&ring, &[]));
        assert!(!put(&Ring::new(8), &[0; 8]), "more than the ring has");
        let mut got = Vec::new();
        assert_eq!(
            (ring.take(&mut got), ring.take(&mut got), ring.take(&mut got)),
            (Some(3), Some(3), None)
        );
        assert_eq!(got, [1, 2, 3, 4, 5, 6]);
        assert!(put(&ring, &[0; 7]));
    }

    #[test]
    fn room_that_is_given_up_was_never_there() {
        let ring = Ring::new(8);
        {
            let mut room = ring.room(2).unwrap();
            room.push(9);
        }
        assert_eq!(ring.take(&mut Vec::new()), None);
        let mut room = ring.room(2).unwrap();
        room.bytes(&[1, 2, 3]);
        room.publish();
        let mut got = Vec::new();
        assert_eq!(ring.take(&mut got), Some(2));
        assert_eq!(got.first().map(|word| word.to_ne_bytes()), Some([1, 2, 3, 0, 0, 0, 0, 0]));
        assert_eq!(got.get(1), Some(&0), "what was not written is nothing");
    }

    /// Every accepted record comes out, whole and in order, with both threads at work.
    #[test]
    fn a_writer_and_a_reader_agree() {
        const RECORDS: u64 = 200_000;
        let ring = Arc::new(Ring::new(256));
        let writer = {
            let ring = ring.clone();
            std::thread::spawn(move || {
                let (mut accepted, mut refused) = (Vec::new(), 0u64);
                for n in 0..RECORDS {
                    if put(&ring, &vec![n; (n % 23) as usize + 1]) {
                        accepted.push(n);
                    } else {
                        refused += 1;
                        std::thread::yield_now();
                    }
                }
                (accepted, refused)
            })
        };
        let (mut seen, mut record) = (Vec::new(), Vec::new());
        let mut last = false;
        loop {
            record.clear();
            match ring.take(&mut record) {
                Some(words) => {
                    let n = record.first().copied().unwrap();
                    assert_eq!(words as u64, n % 23 + 1);
                    assert!(record.iter().all(|word| *word == n), "{record:?}");
                    seen.push(n);
                }
                None if last => break,
                None => last = writer.is_finished(),
            }
        }
        let (accepted, refused) = writer.join().unwrap();
        assert_eq!(seen, accepted);
        assert_eq!(accepted.len() as u64 + refused, RECORDS);
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use ::loom::{sync::Arc, thread};

    /// Two records through a ring that holds one: in every order a record is whole, and none is
    /// seen twice or made up.
    #[test]
    fn loom_a_record_is_whole_or_not_there() {
        ::loom::model(|| {
            let ring = Arc::new(Ring::new(4));
            let writer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    (1..=2u64)
                        .filter(|n| {
                            let Some(mut room) = ring.room(2) else { return false };
                            room.push(*n);
                            room.push(*n + 10);
                            room.publish();
                            true
                        })
                        .collect::<Vec<_>>()
                })
            };
            let mut got = Vec::new();
            ring.take(&mut got);
            ring.take(&mut got);
            let written = writer.join().unwrap();
            while ring.take(&mut got).is_some() {}
            let expected: Vec<u64> = written.iter().flat_map(|n| [*n, *n + 10]).collect();
            assert_eq!(got, expected);
        });
    }
}

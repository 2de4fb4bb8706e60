//! Open DHCP exchanges, which several workers write and read at once.
//!
//! An exchange is two words that belong together: who asked and when, with the number of answers;
//! and what the request is about. A writer takes the place for itself first, and a reader looks at
//! the first word again after the second, so that nobody sees the halves of two requests. Nobody
//! waits: a place that is being changed counts as free of exchanges.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::engine::atomics::{AtomicU64, fence};

/// Most answers to one request: several servers, and those of boot servers.
pub(crate) const ANSWERS: u64 = 8;
/// The first word: whether there is one, 27 bits that tell it from others, the answers to it (4
/// bits), the second in which it was written.
const NOTED: u64 = 1 << 63;
const TAG: u64 = (1 << 27) - 1;
const ONE_ANSWER: u64 = 1 << 32;
const ALL_ANSWERS: u64 = 0xf << 32;
/// First word of a place that is being changed: no exchange has so many answers.
const CHANGING: u64 = ALL_ANSWERS;
/// Tries to find a place for an exchange, while other workers take places.
const TRIES: usize = 4;

/// A request and the answers to it, or a place for one.
#[derive(Default)]
pub(crate) struct Exchange {
    word: AtomicU64,
    about: AtomicU64,
}

fn answers(word: u64) -> u64 {
    (word & ALL_ANSWERS) / ONE_ANSWER
}

/// Returns the seconds since the request, 0 if its worker read the clock later; `None` if there is
/// none.
fn age(word: u64, now: u32) -> Option<u32> {
    (word & NOTED != 0).then(|| now.saturating_sub(word as u32))
}

fn is_tagged(word: u64, tag: u64) -> bool {
    word & NOTED != 0 && word >> 36 & TAG == tag & TAG
}

impl Exchange {
    /// Opens the exchange of a request, in a place of a set: its own if it is there, a free one, or
    /// that of the oldest. Does nothing if other workers take every place that is tried: an answer
    /// is dropped then, and the client asks again.
    pub fn put(set: &[Exchange], tag: u64, about: u64, now: u32) {
        for _ in 0..TRIES {
            let words = set.iter().map(|place| (place, place.word.load(Relaxed)));
            let mut words = words.filter(|(_, word)| *word != CHANGING);
            let known = words.clone().find(|(_, word)| is_tagged(*word, tag));
            // A free place is older than all.
            let oldest = || {
                words.by_ref().max_by_key(|(_, word)| age(*word, now).map_or(u64::MAX, u64::from))
            };
            let Some((place, was)) = known.or_else(oldest) else { return };
            if place.word.compare_exchange(was, CHANGING, Acquire, Relaxed).is_ok() {
                // Who sees the new second word sees that the first one changed.
                fence(Release);
                place.about.store(about, Relaxed);
                place.word.store(NOTED | (tag & TAG) << 36 | u64::from(now), Release);
                return;
            }
        }
    }

    /// Returns the exchange of a request that may have one more answer. `holds` gets what it is
    /// about, and says whether it still holds.
    pub fn find(
        set: &[Exchange],
        tag: u64,
        now: u32,
        timeout: u32,
        holds: impl Fn(u64) -> bool,
    ) -> Option<&Exchange> {
        set.iter().find(|place| {
            let word = place.word.load(Acquire);
            let open = age(word, now).is_some_and(|age| age <= timeout);
            open && is_tagged(word, tag)
                && answers(word) < ANSWERS
                && place.about(word).is_some_and(&holds)
        })
    }

    /// Returns what an exchange is about, if its first word is still this one but for the answers.
    fn about(&self, word: u64) -> Option<u64> {
        let about = self.about.load(Relaxed);
        fence(Acquire);
        ((self.word.load(Relaxed) ^ word) & !ALL_ANSWERS == 0).then_some(about)
    }

    /// Counts one more answer, unless there are as many as there may be.
    pub fn count(&self) {
        let one_more =
            |word: u64| (word & NOTED != 0 && answers(word) < ANSWERS).then(|| word + ONE_ANSWER);
        let _ = self.word.fetch_update(Relaxed, Relaxed, one_more);
    }

    /// Returns an exchange of its own with the same contents; a free place if it is being changed.
    pub fn copy(&self) -> Exchange {
        let word = self.word.load(Acquire);
        let about = self.about(word).filter(|_| word != CHANGING);
        let word = if about.is_some() { word } else { 0 };
        Exchange { word: AtomicU64::new(word), about: AtomicU64::new(about.unwrap_or(0)) }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// No exchange says of one request what another one is about, whatever other threads do.
    #[test]
    fn halves_of_two_requests_are_never_seen() {
        let set: [Exchange; 4] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let set = &set;
                scope.spawn(move || {
                    for round in 0..50_000u64 {
                        let tag = 1 + (round * 7 + thread) % 6;
                        Exchange::put(set, tag, tag * 1000, round as u32);
                        let asked = 1 + round % 6;
                        if let Some(place) =
                            Exchange::find(set, asked, round as u32, u32::MAX, |about| {
                                assert_eq!(about, asked * 1000);
                                true
                            })
                        {
                            place.count();
                        }
                        let _ = set.iter().map(Exchange::copy).count();
                    }
                });
            }
        });
        assert!(set.iter().all(|place| place.word.load(Relaxed) != CHANGING));
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use super::*;
    use ::loom::{sync::Arc, thread};

    /// Two workers open two exchanges in one place while a third looks: what it sees belongs
    /// together.
    #[test]
    fn loom_an_exchange_is_of_one_request() {
        ::loom::model(|| {
            let set = Arc::new([Exchange::default()]);
            let writers = [1u64, 2].map(|tag| {
                let set = set.clone();
                thread::spawn(move || Exchange::put(&*set, tag, tag * 10, 100))
            });
            for tag in [1, 2] {
                let seen = Exchange::find(&*set, tag, 100, 60, |about| {
                    assert_eq!(about, tag * 10);
                    true
                });
                if let Some(place) = seen {
                    place.count();
                }
            }
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            let word = set[0].word.load(Relaxed);
            let tag = word >> 36 & TAG;
            assert!(word != CHANGING && (tag == 1 || tag == 2), "{word:x}");
            assert_eq!(set[0].about.load(Relaxed), tag * 10);
        });
    }

    /// Answers that several workers count at once are all counted.
    #[test]
    fn loom_every_answer_counts() {
        ::loom::model(|| {
            let set = Arc::new([Exchange::default()]);
            Exchange::put(&*set, 5, 50, 100);
            let others = [(); 2].map(|()| {
                let set = set.clone();
                thread::spawn(move || set[0].count())
            });
            set[0].count();
            others.into_iter().for_each(|other| other.join().unwrap());
            assert_eq!(answers(set[0].word.load(Relaxed)), 3);
        });
    }
}

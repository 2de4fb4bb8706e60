use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use proptest::prelude::*;

use crate::ip::{Tuple, tcp::UNKNOWN};
use crate::session::{
    former::*,
    hash::HashKey,
    key::Zone,
    layout::HEAD_HASH_KEY,
    memory::Fate,
    record::{Admitted, Life, NO_TRACK, Past},
    table::Table,
};

const KEY: HashKey = HashKey([1, 3, 5, 7]);
const HERE: Here = Here { boot: [11, 12], host: [13, 14] };
/// First words of a record of 64, and of a name.
const RECORD: usize = 16;
const NAME: usize = (1 + 64 + 8) * 16;

/// Addresses, port and time of a session.
type Talk = (String, String, u16, u32);

/// A file in memory that is removed when this is dropped.
struct Place(String);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Place(format!(
            "butterfly-test-former-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Relaxed)
        ))
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev/shm").join(&self.0)
    }

    /// Starts on a file with these words, as of second 1000.
    fn start(&self, words: &[u64], here: &Here) -> (Table, FormerTable, Vec<Talk>) {
        let bytes: Vec<u8> = words.iter().copied().flat_map(u64::to_ne_bytes).collect();
        fs::write(self.path(), bytes).unwrap();
        let (mut found, mut all) = (None, Vec::new());
        let table = Table::in_file(64, &self.0, KEY, *here, |path, left| {
            let timeouts = Timeouts::default();
            found = Some(FormerTable::look(path, left, here, &timeouts, 1000));
            let _ = survivors(left.unwrap(), here, &timeouts, 1000, |survivor| {
                let Survivor { ends: [a, b], key, line } = survivor;
                all.push((
                    a.id.to_string(),
                    b.id.to_string(),
                    key.tuple().destination_port,
                    line.made,
                ));
            });
            Fate::Remove
        });
        (table.unwrap(), found.unwrap(), all)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
    }
}

fn key(port: u16, protocol: u8, slots: (u32, u32)) -> Key {
    let tuple = Tuple {
        source: 1,
        destination: 2,
        source_port: 9,
        destination_port: port,
        vlan: 0,
        protocol,
    };
    Key::new(&tuple, Zone::of(7), slots.0, slots.1)
}

fn add(table: &Table, key: &Key, stamp: u32, now: u32, state: State) {
    let admission = Admitted { stamp, cells: [4, 5], answers: true };
    let life = Life { now, state, track: NO_TRACK, past: Past::NONE };
    table.insert(table.hash(key), key, admission, &life, |_| false, |_, _, _| ()).unwrap();
}

/// Returns the file of a table with three vnics and two sessions, as a crash leaves it.
fn left() -> Vec<u64> {
    let place = Place::new();
    let table =
        Table::in_file(64, &place.0, KEY, HERE, |_, _| panic!("nothing was there")).unwrap();
    for (slot, id, born) in [(0, "a", 1), (1, "b", 2), (2, "", 3)] {
        table.name(slot, Some(&Name { id: id.into(), vni: 7, born }));
    }
    add(&table, &key(53, 17, (0, 1)), 2, 980, State::UdpNew);
    add(&table, &key(80, 6, (1, 2)), 3, 990, State::Tcp(TcpState::Established));
    let bytes = fs::read(table.units().path().unwrap()).unwrap();
    bytes.as_chunks::<8>().0.iter().copied().map(u64::from_ne_bytes).collect()
}

#[test]
fn whoever_comes_later_can_tell_who_talked_to_whom() {
    let (left, place) = (left(), Place::new());
    let [k0, k1, k2, k3] = KEY.0;
    assert_eq!(left[HEAD_HASH_KEY..][..4], [k0, k1, k2, k3]);
    let (table, found, all) = place.start(&left, &HERE);
    assert_eq!(
        found,
        FormerTable {
            path: place.path(),
            found: Ok(FormerSessions { sessions: 2, idle: 10, unusable: 0 }),
            adopted: None,
        }
    );
    let names = |a: &str, b: &str, port, made| (a.to_owned(), b.to_owned(), port, made);
    assert_eq!(all, [names("a", "b", 53, 980), names("b", "", 80, 990)]);
    // It is another one by now.
    assert_eq!(table.used(), 0);
    let text = found.to_string();
    assert!(text.contains("2 sessions end with theirs (last frame 10 s ago)"), "{text}");
    drop(table);
    assert!(!place.path().exists());
}

#[test]
fn what_is_of_no_use_is_told_and_replaced() {
    let (left, place) = (left(), Place::new());
    let look = |change: &dyn Fn(&mut Vec<u64>), here: &Here| {
        let mut left = left.clone();
        change(&mut left);
        let (table, found, all) = place.start(&left, here);
        assert!(table.used() == 0 && all.is_empty());
        found.found.unwrap_err()
    };
    let set = |at: usize, word: u64| look(&move |words| words[at] = word, &HERE);
    assert_eq!(set(HEAD_MAGIC, 0), Unusable::NotATable);
    assert_eq!(set(HEAD_VERSION, 1), Unusable::Version(1));
    assert_eq!(set(HEAD_BOOT + 1, 0), Unusable::OtherBoot);
    assert_eq!(set(HEAD_HOST, 0), Unusable::OtherHost);
    for word in [0, 63, 1 << 14, 1 << 24, 1 << 25, 1 << 32 | 64, u64::MAX] {
        let why = set(HEAD_CAPACITY, word);
        assert!(matches!(why, Unusable::Header | Unusable::Truncated), "{word} {why}");
    }
    assert_eq!(set(HEAD_SLOTS, 65), Unusable::Header);
    assert_eq!(set(HEAD_FRESH, 65), Unusable::Header);
    let unknown = Here { boot: [0; 2], ..HERE };
    assert_eq!(
        look(&|words| words[HEAD_BOOT..HEAD_BOOT + 2].fill(0), &unknown),
        Unusable::OtherBoot
    );
    // Huge pages are more than a table needs.
    for len in [0, 15, 16, 100, NAME, NAME + 64 * 16 - 1] {
        assert_eq!(look(&|words| words.truncate(len), &HERE), Unusable::Truncated, "{len}");
    }
    assert_eq!(look(&|words| words.fill(0xa5a5), &HERE), Unusable::NotATable);
}

/// Any field with an impossible value makes a record unusable.
#[test]
fn a_record_that_cannot_be_is_left_out() {
    let (left, place) = (left(), Place::new());
    let unusable = |change: &dyn Fn(&mut Vec<u64>)| {
        let mut left = left.clone();
        change(&mut left);
        let (_, found, all) = place.start(&left, &HERE);
        let found = found.found.unwrap();
        assert!(found.sessions <= all.len() as u64);
        (found.sessions, found.unusable)
    };
    let set = |at: usize, word: u64| unusable(&move |words| words[at] = word);
    let word = |at: usize| left[at];
    // In change when the process died.
    assert_eq!(set(RECORD, word(RECORD) | 1 << 32), (1, 1));
    // Of an earlier vnic in the slot, of an empty slot, of another network, out of range.
    assert_eq!(set(RECORD, word(RECORD) & !0xffff_ffff | 1), (1, 1));
    assert_eq!(set(NAME, 0), (1, 1));
    assert_eq!(set(NAME + 1, 8 << 32 | 1), (1, 1));
    assert_eq!(set(RECORD + 6, word(RECORD + 6) | 0xfff << 52), (1, 1));
    // Seen after now, before it was made, too long ago; in a state that its protocol does not have.
    let seen = |second: u64, state: u64| set(RECORD + 8, second << 32 | state << 24);
    assert_eq!(seen(1000, 16), (2, 0));
    assert_eq!(seen(1001, 16), (1, 1));
    assert_eq!(seen(979, 16), (1, 1));
    assert_eq!(
        unusable(
            &|words| (words[RECORD + 8], words[RECORD + 9]) = (900 << 32 | 16 << 24, 900 << 48)
        ),
        (1, 1)
    );
    assert_eq!(seen(990, 2), (1, 1));
    assert_eq!(seen(990, 99), (1, 1));
    // Window scales.
    let tcp = RECORD + 16 + 8;
    assert_eq!(set(tcp, word(tcp) | u64::from(UNKNOWN)), (2, 0));
    assert_eq!(set(tcp, word(tcp) | 15), (1, 1));
    // A number of no state, which would be read as one that TCP has.
    assert_eq!(set(tcp, word(tcp) & !(0xff << 24) | 9 << 24), (1, 1));
    // A thread was changing the line when it died: half a handshake, or marks that are whole.
    assert_eq!(set(tcp, word(tcp) | 1 << 23), (2, 0));
    assert_eq!(set(tcp, word(tcp) & !(0xff << 24) | 1 << 23), (1, 1));
    assert_eq!(set(tcp, word(tcp) & !(0xff << 24)), (2, 0));
    assert_eq!(set(RECORD + 8, word(RECORD + 8) | 1 << 23), (2, 0));
    // It is remembered, and no session.
    assert_eq!(set(tcp, word(tcp) & !(0xff << 24) | 8 << 24), (1, 0));
    // Free.
    assert_eq!(set(RECORD + 6, 0), (1, 0));
    // Records that were never used are not looked at.
    assert_eq!(set(HEAD_FRESH, 1), (1, 0));
}

/// Each reason for being unusable has a text.
#[test]
fn what_was_found_is_told() {
    let told = |found| FormerTable { path: "/dev/shm/x".into(), found, adopted: None }.to_string();
    let some = |sessions| Ok(FormerSessions { sessions, idle: 7, unusable: 9 });
    assert_eq!(
        told(Err(Unusable::Foreign)),
        "/dev/shm/x is not used: it belongs to another user, or is no file"
    );
    let removed =
        |why: &str| format!("/dev/shm/x was left by a daemon that died, and is removed: {why}");
    assert_eq!(told(Err(Unusable::NotATable)), removed("it is no table of sessions"));
    assert_eq!(
        told(Err(Unusable::Version(2))),
        removed("its layout has version 2, and this is version 3")
    );
    assert_eq!(told(some(0)), removed("no session in it could go on"));
    assert_eq!(
        told(some(1)),
        removed("vnics are new, and 1 sessions end with theirs (last frame 7 s ago)")
    );
}

/// Each word of the header that describes the file, and the largest numbers there can be.
#[test]
fn every_word_of_the_header_counts() {
    let (left, place) = (left(), Place::new());
    let look = |at: usize, word: u64| {
        let mut left = left.clone();
        left[at] = word;
        place.start(&left, &HERE).1.found
    };
    for (at, why) in [
        (HEAD_BOOT, Unusable::OtherBoot),
        (HEAD_BOOT + 1, Unusable::OtherBoot),
        (HEAD_HOST, Unusable::OtherHost),
        (HEAD_HOST + 1, Unusable::OtherHost),
    ] {
        assert_eq!(look(at, left[at] + 1), Err(why), "{at}");
    }
    let kind = left[HEAD_HASH];
    assert_eq!(look(HEAD_HASH, 3 - kind), Err(Unusable::Hash(3 - kind)));
    assert_eq!(look(HEAD_FRESH, 64).map(|found| found.sessions), Ok(2));
    assert_eq!(look(HEAD_FRESH, 0), Ok(FormerSessions { sessions: 0, idle: 0, unusable: 0 }));
    // A session that was made at no time.
    let mut never = left.clone();
    (never[RECORD + 9], never[RECORD + 11]) = (0, 0);
    assert_eq!(
        place.start(&never, &HERE).1.found,
        Ok(FormerSessions { sessions: 1, idle: 10, unusable: 1 })
    );
}

#[test]
fn a_name_that_goes_takes_its_sessions() {
    let place = Place::new();
    let table = Table::in_file(64, &place.0, KEY, HERE, |_, _| Fate::Remove).unwrap();
    let name = Name { id: "a".into(), vni: 7, born: 1 };
    table.name(0, Some(&name));
    table.name(0, None);
    // There are as many names as the header says: this is none of them, and nothing of the table.
    table.name(64, Some(&name));
    table.name(u32::MAX, Some(&name));
    let bytes = fs::read(table.units().path().unwrap()).unwrap();
    let names = &bytes[NAME * 8..][..64 * 128];
    assert!(names[..8].iter().all(|byte| *byte == 0) && names[128..].iter().all(|byte| *byte == 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// A start succeeds with any contents of the file.
    #[test]
    fn damage_does_no_harm(damage in prop::collection::vec((0usize..NAME + 64 * 16, any::<u64>()), 1..200)) {
        let (mut words, place) = (left(), Place::new());
        for (at, word) in damage {
            // The first line of the header would end it at once.
            words[at.max(8)] ^= word;
        }
        let (table, found, all) = place.start(&words, &HERE);
        prop_assert_eq!(table.used(), 0);
        prop_assert!(found.found.map_or(0, |found| found.sessions) <= 64);
        prop_assert!(all.len() <= 64);
    }
}

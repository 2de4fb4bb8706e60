//! Names of the vnics in slots, for a later process.

use std::sync::atomic::Ordering::{Relaxed, Release};

use butterfly_model::NicId;

use crate::session::{
    memory::{AtomicU64, Unit, fence},
    pen::{Died, Pen},
    record::FIRST_STAMP,
};

const BORN: usize = 0;
/// VNI 32, length of the id 32.
const ABOUT: usize = 1;
const ID: usize = 2;
/// Longest id that is written. A vnic with a longer one leaves no sessions to a later process.
const MAX_ID: usize = 8 * (16 - ID);

/// The vnic in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    /// Its id; empty for a trunk, which is no vnic of this host.
    pub id: Box<str>,
    pub vni: u32,
    /// Its first version: older decisions are about an earlier vnic.
    pub born: u32,
}

/// Writes the vnic of a slot. A process that dies in the middle leaves an empty slot. The name that
/// is there already is not written again: an adopted vnic keeps its sessions at any moment.
pub(super) fn write(unit: &Unit, name: Option<&Name>) {
    if name.is_some() && read_unit(unit).as_ref() == name {
        return;
    }
    let word = |at: usize| unit.0.get(at);
    let store = |at, value| {
        let _ = word(at).map(|word: &AtomicU64| word.store(value, Relaxed));
    };
    store(BORN, 0);
    let Some(name) = name.filter(|name| name.id.len() <= MAX_ID) else { return };
    fence(Release);
    store(ABOUT, u64::from(name.vni) << 32 | name.id.len() as u64);
    for (at, bytes) in name.id.as_bytes().chunks(8).enumerate() {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        store(ID + at, u64::from_ne_bytes(word));
    }
    if let Some(word) = word(BORN) {
        word.store(name.born.into(), Release);
    }
}

/// Returns the vnic of a slot, as [`read`].
pub(super) fn read_unit(unit: &Unit) -> Option<Name> {
    read(&std::array::from_fn(|at| unit.0.get(at).map_or(0, |word| word.load(Relaxed))))
}

/// Has the vnic of a slot begin with the first version; empties the slot if its name is impossible.
pub(super) fn begin_again(unit: &Unit, name: Option<&Name>, pen: &mut Pen) -> Result<(), Died> {
    let Some(word) = unit.0.get(BORN) else { return Ok(()) };
    pen.write(word, if name.is_some() { FIRST_STAMP.into() } else { 0 })
}

/// Reads the vnic of a slot; `None` if the slot is empty or its name is impossible.
pub(super) fn read(words: &[u64; 16]) -> Option<Name> {
    let [born, about, id @ ..] = words;
    let born = u32::try_from(*born).ok().filter(|born| *born != 0)?;
    let (vni, len) = ((about >> 32) as u32, *about as u32 as usize);
    let bytes: Vec<u8> = id.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let id = std::str::from_utf8(bytes.get(..len)?).ok()?;
    let possible = vni <= 0xff_ffff && (id.is_empty() || NicId::new(id).is_ok());
    possible.then(|| Name { id: id.into(), vni, born })
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(unit: &Unit) -> [u64; 16] {
        std::array::from_fn(|at| unit.0[at].load(Relaxed))
    }

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let unit = Unit::default();
        assert_eq!(read(&words(&unit)), None);
        let name = |id: &str, born| Name { id: id.into(), vni: 0xff_fffe, born };
        for name in [
            name("", 1),
            name("a", 2),
            name("é-12345", 3),
            name(&"x".repeat(MAX_ID), u32::MAX),
            name("b", 4),
        ] {
            write(&unit, Some(&name));
            assert_eq!(read(&words(&unit)), Some(name));
        }
        write(&unit, Some(&name(&"x".repeat(MAX_ID + 1), 5)));
        assert_eq!(read(&words(&unit)), None);
        write(&unit, Some(&name("c", 6)));
        write(&unit, None);
        assert_eq!(read(&words(&unit)), None);
    }

    #[test]
    fn what_nobody_wrote_is_nobody() {
        let mut words = [0; 16];
        words[BORN] = 1;
        words[ID] = u64::from_ne_bytes(*b"abcdefgh");
        let about = |vni: u64, len: u64| vni << 32 | len;
        let mut with = |at: usize, word| {
            let was = std::mem::replace(&mut words[at], word);
            let read = read(&words).map(|name| name.id.to_string());
            if at != ABOUT {
                words[at] = was;
            }
            read
        };
        assert_eq!(with(ABOUT, about(1, 113)), None);
        assert_eq!(with(ABOUT, about(1, u32::MAX.into())), None);
        assert_eq!(with(ABOUT, about(1 << 24, 8)), None);
        assert_eq!(with(ABOUT, about(1, 8)).as_deref(), Some("abcdefgh"));
        assert_eq!(with(BORN, 1 << 32), None);
        assert_eq!(with(ID, u64::from_ne_bytes(*b"../../ab")), None);
        assert_eq!(with(ID, u64::from_ne_bytes(*b"abcdef\xff\xff")), None);
        assert_eq!(with(ID, u64::from_ne_bytes(*b"ab\ndefgh")), None);
    }

    proptest! {
        #[test]
        fn nothing_written_there_does_harm(words: [u64; 16]) {
            let _ = read(&words);
        }
    }
}

use proptest::prelude::*;

use super::*;

const HALF: usize = 256;
const FROM: u64 = 64;
const SIZE: u64 = FROM + 2 * HALF as u64;

fn file() -> HalvesFile {
    HalvesFile::create("halves", SIZE).unwrap()
}

fn text(halves: &TwoHalves) -> Option<Vec<u8>> {
    halves.newest().map(|newest| newest.text)
}

/// The file as a successor gets it.
fn handed_on(file: &HalvesFile) -> HalvesFile {
    HalvesFile::open(file.as_fd().try_clone_to_owned().unwrap(), SIZE).unwrap()
}

#[test]
fn the_newest_text_is_read_by_a_successor_which_goes_on() {
    let file = file();
    let mut halves = file.halves(FROM, HALF);
    assert_eq!(halves.newest(), None);
    for n in 0..5u8 {
        halves.write(&vec![n; 10 * usize::from(n)]).unwrap();
        assert_eq!(text(&halves), Some(vec![n; 10 * usize::from(n)]));
    }
    let mut next = handed_on(&file).halves(FROM, HALF);
    assert_eq!(next.newest().unwrap().sequence, 5);
    next.write(b"six").unwrap();
    assert_eq!(next.newest(), Some(Newest { sequence: 6, text: b"six".to_vec() }));
}

#[test]
fn a_text_that_does_not_fit_changes_nothing() {
    let mut halves = file().halves(FROM, HALF);
    halves.write(&vec![7; halves.room()]).unwrap();
    let why = halves.write(&vec![8; halves.room() + 1]).unwrap_err();
    assert_eq!(why.to_string(), "225 bytes, and room for 224");
    assert_eq!(text(&halves), Some(vec![7; halves.room()]));
}

#[test]
fn the_file_keeps_its_size() {
    let file = file();
    assert!(ftruncate(&file, 10).is_err() && ftruncate(&file, SIZE + 1).is_err());
    let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&other, SIZE - 1).unwrap();
    assert!(HalvesFile::open(other, SIZE).is_err());
}

/// A file without seals that was cut after all is like an empty one.
#[test]
fn a_file_that_ends_too_early_has_no_text() {
    let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&other, SIZE).unwrap();
    let cut = other.try_clone().unwrap();
    let mut halves = HalvesFile::open(other, SIZE).unwrap().halves(FROM, HALF);
    halves.write(&[1; 100]).unwrap();
    ftruncate(&cut, FROM + 40).unwrap();
    assert_eq!(halves.newest(), None);
}

/// A writer that dies at any point leaves the text before.
#[test]
fn a_write_that_was_cut_short_anywhere_leaves_the_text_before() {
    let (old, new) = (vec![0x11; 90], vec![0x22; 120]);
    let file = file();
    let mut halves = file.halves(FROM, HALF);
    // Both halves hold complete texts; the older one is in the way.
    halves.write(&[0x33; 150]).unwrap();
    halves.write(&old).unwrap();
    let mut before = vec![0; SIZE as usize];
    read_exactly(&file, &mut before, 0).unwrap();
    halves.write(&new).unwrap();
    let mut after = vec![0; SIZE as usize];
    read_exactly(&file, &mut after, 0).unwrap();
    // The bytes that the write changes, in its order: the text, then the header.
    let (header, body) = (FROM as usize..FROM as usize + HEADER, FROM as usize + HEADER..);
    let order: Vec<usize> = body.take(new.len()).chain(header).collect();
    for cut in 0..order.len() {
        let mut torn = before.clone();
        order.iter().take(cut).for_each(|at| torn[*at] = after[*at]);
        write_all(&file, &torn, 0).unwrap();
        let found = text(&file.halves(FROM, HALF)).unwrap();
        // The last bytes of the header may be the same in both.
        assert!(found == old || (found == new && torn == after), "cut after {cut} bytes");
    }
}

proptest! {
    /// No content of the file is a fault, and none that was not written is taken for a text, but
    /// with a forged checksum.
    #[test]
    fn any_bytes_are_read_without_fault(
        bytes in proptest::collection::vec(any::<u8>(), SIZE as usize),
        magic in any::<[bool; 2]>(),
        length in prop_oneof![0..300u64, any::<u64>()],
        flips in proptest::collection::vec((0..SIZE as usize, 1..=255u8), 1..4),
    ) {
        let file = file();
        write_all(&file, &bytes, 0).unwrap();
        for half in (0..2).filter(|half| magic[*half]) {
            let at = FROM + (half * HALF) as u64;
            write_all(&file, &MAGIC.to_ne_bytes(), at).unwrap();
            write_all(&file, &length.to_ne_bytes(), at + 16).unwrap();
        }
        prop_assert_eq!(file.halves(FROM, HALF).newest(), None);
        // A text is written all the same, and any changed byte of it is noticed.
        let mut halves = file.halves(FROM, HALF);
        halves.write(&[5; 224]).unwrap();
        prop_assert_eq!(text(&halves), Some(vec![5; 224]));
        for (at, flip) in flips.into_iter().filter(|(at, _)| (FROM as usize..FROM as usize + HALF).contains(at)) {
            let mut byte = [0];
            read_exactly(&file, &mut byte, at as u64).unwrap();
            write_all(&file, &[byte[0] ^ flip], at as u64).unwrap();
            prop_assert_eq!(halves.newest(), None);
            write_all(&file, &byte, at as u64).unwrap();
        }
    }
}

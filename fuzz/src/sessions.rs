//! A table of sessions with any contents, adopted as that of a process that died.

use crate::input::Input;
use butterfly_datapath::harness::LeftTable;

/// Each change has its kind, the word that it changes (low byte first) and a value. After 0xff the
/// rest replaces the table from its first record on.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut left = LeftTable::new().expect("there is memory");
    let words = left.words();
    let len = words.len();
    while let Some(kind) = input.next() {
        if kind == 0xff {
            let rest = input.rest();
            for (word, bytes) in words.iter_mut().skip(16).zip(rest.chunks(8)) {
                let mut value = [0; 8];
                value[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(value);
            }
            break;
        }
        let at = (usize::from(input.u8()) | usize::from(input.u8()) << 8) % len;
        let value = u64::from(input.u8());
        let shift = u32::from(kind >> 2) % 64;
        match kind % 4 {
            0 => words[at] ^= value << shift,
            1 => words[at] = value << shift,
            2 => words[at] = words[at].rotate_left(shift).wrapping_add(value),
            // A unit takes the place of another one, so that names and flows are there twice.
            _ => {
                let (from, to) = (at / 16 * 16, usize::from(kind >> 2) * 16 % len);
                words.copy_within(from..from + 16, to);
            }
        }
    }
    if let Err(why) = left.adopt() {
        panic!("{why}");
    }
}

//! Layout of the table's file, and the header that describes it.
//!
//! In units of 128 bytes: the header; records; buckets, two in a unit; names of vnics by slot.
//! Words are in the processor's byte order. A later process needs nothing else to read the ends of
//! sessions: it runs in the same boot of the same host, or the file is of no use. The rules that
//! admitted a session have no names, as each surviving session is decided again.
//!
//! | units | content |
//! |---|---|
//! | 1 | the header, below |
//! | 1 per session | the records. Ends are slots; times are whole seconds of CLOCK_BOOTTIME |
//! | 1/2 per 5 sessions (a power of two) | buckets: lock, counts, 7 pairs of hash and record |
//! | 1 per 64 sessions, 64 at least | names: id, VNI and first version of the vnic in a slot |
//!
//! | words of the header | content |
//! |---|---|
//! | 0 to 2 | `BFLYSESS`, version of the layout, number of records |
//! | 3 to 7 | four of the hash key, number of names |
//! | 8 to 10 | first free record, number of records ever used, sessions |
//! | 11 to 14 | boot id, host id (`/etc/machine-id`, zeros if there is none) |
//! | 15 | the hash: 1 of AES rounds, 2 SipHash-1-3; a process with another one leaves the file |
//!
//! Bit 32 of word 15 is set while a process that adopts the table repairs it (`table/repair.rs`).
//!
//! A record with a `stamp` older than its slot's name is about an earlier vnic. Vnics in higher
//! slots, or with ids of more than 112 bytes, have no name. An empty id stands for the network's
//! other hosts. The counts of a bucket are the flows in their second bucket, and moves.

use crate::session::{
    hash::{HashKey, Hasher},
    memory::{MIN_SESSIONS, PER_BUCKET},
};

/// Identifies the file: "BFLYSESS".
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"BFLYSESS");
/// Returns the version of the table in a layout of all parts. 2: boot, host and names; times are
/// CLOCK_BOOTTIME. 3, in the first layout: a keyed hash of two kinds, and its kind; buckets count
/// moves. A table stays when the layout is raised, and gets its version: each layout means the same
/// by all that the one before has.
pub(super) fn version(layout: u32) -> u64 {
    u64::from(layout) + 2
}

/// Words of the header unit. Of the first line only the version is ever written again.
pub(super) const HEAD_MAGIC: usize = 0;
pub(super) const HEAD_VERSION: usize = 1;
pub(super) const HEAD_CAPACITY: usize = 2;
pub(super) const HEAD_HASH_KEY: usize = 3;
/// Number of slots with names.
pub(super) const HEAD_SLOTS: usize = 7;
/// Top of the stack of free records: a count against reuse, and the index plus one.
pub(super) const HEAD_FREE: usize = 8;
/// First record that was never used.
pub(super) const HEAD_FRESH: usize = 9;
pub(super) const HEAD_USED: usize = 10;
pub(super) const HEAD_BOOT: usize = 11;
pub(super) const HEAD_HOST: usize = 13;
/// Number of a [`super::hash::HashKind`], and [`REPAIRING`].
pub(super) const HEAD_HASH: usize = 15;
/// Stands in the header from the first store of a repair to the last: a process that finds it
/// repairs again. A process that does not know it sees a hash that it does not have.
pub(super) const REPAIRING: u64 = 1 << 32;

/// Most records of a table: an index fits in its part of an entry's word.
pub(crate) const MAX_SESSIONS: u32 = 1 << 24;
/// Sessions for each slot that has a name. A later process cannot tell vnics in slots without a
/// name apart.
const SESSIONS_PER_NAME: u32 = 64;
const MIN_NAMES: u32 = 64;

/// Places of records, buckets and names, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub capacity: u32,
    /// Unit of the first bucket, and number of buckets minus one.
    pub buckets: usize,
    pub mask: u64,
    /// Unit of the first name, and number of names.
    pub names: usize,
    pub slots: u32,
    pub len: usize,
}

impl Layout {
    /// Makes the layout for so many records. Only a table that may outlive the process has names.
    pub fn new(capacity: u32, named: bool) -> Layout {
        let capacity = capacity.clamp(MIN_SESSIONS, MAX_SESSIONS);
        // Seven entries each: five sevenths are in use at most when all records are.
        let buckets = (u64::from(capacity) / PER_BUCKET).next_power_of_two().max(2);
        let slots = if named { (capacity / SESSIONS_PER_NAME).max(MIN_NAMES) } else { 0 };
        let names = 1 + capacity as usize + buckets.div_ceil(2) as usize;
        Layout {
            capacity,
            buckets: 1 + capacity as usize,
            mask: buckets - 1,
            names,
            slots,
            len: names + slots as usize,
        }
    }
}

/// Identity of a boot and its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Here {
    /// Boot; zeros if not known, and then no session is taken over.
    pub boot: [u64; 2],
    /// Host; zeros where hosts have no number.
    pub host: [u64; 2],
}

impl Here {
    pub fn read() -> Here {
        let number = |path| {
            std::fs::read_to_string(path)
                .ok()
                .and_then(|text| number(text.trim()))
                .unwrap_or_default()
        };
        Here { boot: number("/proc/sys/kernel/random/boot_id"), host: number("/etc/machine-id") }
    }
}

/// Reads 32 hexadecimal digits, with dashes or without.
fn number(text: &str) -> Option<[u64; 2]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some([(number >> 64) as u64, number as u64])
}

/// Returns the header of a new table.
pub(super) fn header(layout: &Layout, hasher: &Hasher, here: Here) -> [u64; 16] {
    let Here { boot: [b0, b1], host: [h0, h1] } = here;
    let HashKey([k0, k1, k2, k3]) = hasher.key();
    let (capacity, slots) = (layout.capacity.into(), layout.slots.into());
    let version = version(butterfly_layout::in_force());
    [MAGIC, version, capacity, k0, k1, k2, k3, slots, 0, 0, 0, b0, b1, h0, h1, hasher.kind() as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_has_a_number() {
        assert_eq!(number("00000000-0000-0001-0000-0000000000ff"), Some([1, 255]));
        assert_eq!(number("ffffffffffffffff0000000000000002"), Some([u64::MAX, 2]));
        for text in
            ["", "1", "0000000000000001000000000000000", "+0000000000000010000000000000000", "zz"]
        {
            assert_eq!(number(text).filter(|_| text.len() != 32), None, "{text}");
        }
        let here = Here::read();
        assert_ne!(here.boot, [0; 2]);
        assert_eq!(here, Here::read());
    }

    /// Checks the layout in the head of this module: another layout needs another version.
    #[test]
    fn the_header_is_as_documented() {
        let layout = Layout::new(1_000_000, true);
        assert_eq!(
            (layout.buckets, layout.mask, layout.names, layout.slots),
            (1_000_001, 262_143, 1_131_073, 15_625)
        );
        let hasher = Hasher::without_aes(HashKey([3, 4, 5, 6]));
        let header = header(&layout, &hasher, Here { boot: [11, 12], host: [13, 14] });
        assert_eq!(
            header,
            [0x4246_4c59_5345_5353, 3, 1_000_000, 3, 4, 5, 6, 15_625, 0, 0, 0, 11, 12, 13, 14, 2]
        );
        for (at, word) in [
            (HEAD_CAPACITY, 1_000_000),
            (HEAD_HASH_KEY, 3),
            (HEAD_SLOTS, 15_625),
            (HEAD_BOOT, 11),
            (HEAD_HOST, 13),
            (HEAD_HASH, 2),
        ] {
            assert_eq!(header[at], word);
        }
        assert_eq!(Layout::new(64, false).len, 1 + 64 + 8);
        assert_eq!(Layout::new(0, true).slots, 64);
    }

    #[test]
    fn a_table_has_room_for_what_it_must_hold() {
        let of = |capacity, named| {
            let layout = Layout::new(capacity, named);
            (layout.capacity, layout.mask + 1, layout.slots, layout.len)
        };
        // Half a unit for each bucket, a unit for each name.
        assert_eq!(of(64, true), (64, 16, 64, 1 + 64 + 8 + 64));
        assert_eq!(of(80, false), (80, 16, 0, 1 + 80 + 8));
        assert_eq!(of(85, false), (85, 32, 0, 1 + 85 + 16));
        assert_eq!(of(4160, true).2, 65);
        assert_eq!(of(MAX_SESSIONS + 1, false), (1 << 24, 1 << 22, 0, 1 + (1 << 24) + (1 << 21)));
        assert_eq!(of(0, false), of(64, false));
    }
}

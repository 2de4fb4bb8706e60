//! Copying to, from and between guest memory.
//!
//! The one place where bytes of a guest are moved; what is moved into its memory comes through
//! [`super::door`]. Any two ranges may overlap, as two guests may share memory: nothing but their
//! own contents suffers.

use std::arch::{
    asm,
    x86_64::{
        __m128i, _mm_add_epi32, _mm_add_epi64, _mm_cvtsi128_si64, _mm_setzero_si128,
        _mm_unpackhi_epi16, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi16,
        _mm_unpacklo_epi32,
    },
};

use butterfly_packet::checksum::Sum;

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Asks for the line at `at` for reading. Any address is allowed; nothing is accessed.
#[inline(always)]
pub(super) fn prefetch_read(at: *const u8) {
    // SAFETY: a prefetch is a hint: it neither faults nor changes memory, for any address.
    unsafe { asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// Asks for the line at `at` for reading once, without the lines behind it. The guest is about to
/// write those, and would have to fetch them back.
#[inline(always)]
pub(super) fn prefetch_once(at: *const u8) {
    // SAFETY: as above.
    unsafe { asm!("prefetchnta [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// Asks for the line at `at` for writing. Any address is allowed; nothing is accessed.
#[inline(always)]
pub(super) fn prefetch_write(at: *const u8) {
    // SAFETY: as above. Processors without PREFETCHW execute it as a no-op (all x86-64 ones decode
    // it).
    unsafe { asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// A word at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Word<T>(T);

/// Reads a word at any address once: the compiler neither repeats the load nor makes another of it.
///
/// # Safety
/// `size_of::<T>()` bytes must be mapped at `from + at`.
#[inline(always)]
unsafe fn load<T: Copy>(from: *const u8, at: usize) -> T {
    // SAFETY: mapped by the caller's promise; a Word has alignment 1, and any bytes are a T:
    // callers use integers and vectors of them.
    unsafe { from.add(at).cast::<Word<T>>().read_volatile().0 }
}

/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn store<T: Copy>(to: *mut u8, at: usize, word: T) {
    // SAFETY: as in load().
    unsafe { to.add(at).cast::<Word<T>>().write(Word(word)) };
}

/// Copies a fixed number of bytes through registers: 1, 8, 10, 16, 32 or 64.
///
/// # Safety
/// `N` bytes must be mapped at both addresses. Guest memory may change meanwhile: the copy is of
/// some bytes that were there.
#[inline(always)]
unsafe fn block<const N: usize>(from: *const u8, to: *mut u8) {
    const { assert!(matches!(N, 1 | 8 | 10 | 16 | 32 | 64)) };
    // SAFETY: mapped by the caller's promise; read fully before it is written, so overlap is fine.
    unsafe {
        match N {
            1 => store(to, 0, load::<u8>(from, 0)),
            8 => store(to, 0, load::<u64>(from, 0)),
            10 => {
                let (first, rest) = (load::<u64>(from, 0), load::<u16>(from, 8));
                store(to, 0, first);
                store(to, 8, rest);
            }
            16 => store(to, 0, load::<__m128i>(from, 0)),
            32 => {
                let (a, b) = (load::<__m128i>(from, 0), load::<__m128i>(from, 16));
                store(to, 0, a);
                store(to, 16, b);
            }
            _ => {
                let (a, b) = (load::<__m128i>(from, 0), load::<__m128i>(from, 16));
                let (c, d) = (load::<__m128i>(from, 32), load::<__m128i>(from, 48));
                store(to, 0, a);
                store(to, 16, b);
                store(to, 32, c);
                store(to, 48, d);
            }
        }
    }
}

/// Copies a fixed number of bytes: as many as [`block`] knows.
///
/// # Safety
/// As [`copy`], for `N` bytes.
#[inline(always)]
pub(super) unsafe fn copy_array<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { block::<N>(from, to) };
}

/// Stores an integer unless it is there already: a line that only holds what the guest knows stays
/// in the guest's cache. A guest that changes the bytes meanwhile gets its own mixture.
///
/// # Safety
/// It must be mapped at `to`.
#[inline(always)]
pub(super) unsafe fn refresh<T: Copy + PartialEq>(want: T, to: *mut u8) {
    // SAFETY: mapped by the caller's promise.
    unsafe {
        if load::<T>(to, 0) != want {
            store(to, 0, want);
        }
    }
}

/// Stores an integer.
///
/// # Safety
/// It must be mapped at `to`.
#[inline(always)]
pub(super) unsafe fn put<T: Copy>(value: T, to: *mut u8) {
    // SAFETY: mapped by the caller's promise.
    unsafe { store(to, 0, value) };
}

/// Reads a byte of each page of a piece of guest memory: what is not there yet is there when this
/// returns.
///
/// # Safety
/// `len` bytes must be mapped at `from`.
pub(super) unsafe fn touch(from: *const u8, len: usize) {
    // SAFETY: below `len`, by the caller's promise.
    (0..len).step_by(4096).chain(len.checked_sub(1)).for_each(|at| unsafe {
        let _ = load::<u8>(from, at);
    });
}

/// Copies `len` bytes; short and medium lengths inline.
///
/// # Safety
/// `len` bytes must be mapped at both addresses. They may overlap, and a guest may change them
/// meanwhile.
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: each block lies in 0..len of both ranges, by the comparisons. Blocks that overlap
    // each other write the same bytes twice, unless the guest changed them in between: then it
    // sees its own mixture.
    unsafe {
        match len {
            64 => block::<64>(from, to),
            65..=128 => {
                block::<64>(from, to);
                block::<64>(from.add(len - 64), to.add(len - 64));
            }
            _ => rest(from, to, len),
        }
    }
}

/// Does the same as [`copy`], where 32 to 64 bytes are the usual length.
///
/// # Safety
/// As [`copy`].
#[inline(always)]
pub(super) unsafe fn copy_header(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as in copy().
    unsafe {
        match len {
            32..=64 => {
                block::<32>(from, to);
                block::<32>(from.add(len - 32), to.add(len - 32));
            }
            _ => copy(from, to, len),
        }
    }
}

/// Out of line and out of the way: the loops that copy frames of 64 to 128 bytes need the registers
/// that a call takes.
///
/// # Safety
/// As [`copy`].
#[cold]
#[inline(never)]
unsafe fn rest(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { if len < LINE { small(from, to, len) } else { lines(from, to, len) } }
}

/// Line by line through registers. The processor's own string copy starts slowly and lets nothing
/// else run beside it; this overlaps with what comes before and after, and with lines that are
/// fetched ahead.
///
/// # Safety
/// As [`copy`], for 64 bytes at least.
#[inline(always)]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize) {
    let last = len - LINE;
    let mut at = 0;
    while at < last {
        // SAFETY: at + 64 < len.
        unsafe { block::<LINE>(from.add(at), to.add(at)) };
        at += LINE;
    }
    // SAFETY: the last 64 of `len` bytes.
    unsafe { block::<LINE>(from.add(last), to.add(last)) };
}

/// # Safety
/// As [`copy`], for less than 64 bytes.
#[inline(always)]
pub(super) unsafe fn small(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as in copy().
    unsafe {
        match len {
            32..=63 => {
                block::<32>(from, to);
                block::<32>(from.add(len - 32), to.add(len - 32));
            }
            16..=31 => {
                block::<16>(from, to);
                block::<16>(from.add(len - 16), to.add(len - 16));
            }
            8..=15 => {
                block::<8>(from, to);
                block::<8>(from.add(len - 8), to.add(len - 8));
            }
            4..=7 => {
                let (first, last) = (load::<u32>(from, 0), load::<u32>(from, len - 4));
                store(to, 0, first);
                store(to, len - 4, last);
            }
            0 => {}
            _ => {
                block::<1>(from, to);
                block::<1>(from.add(len / 2), to.add(len / 2));
                block::<1>(from.add(len - 1), to.add(len - 1));
            }
        }
    }
}

/// Bytes after which lanes of 32 bits are added up: each of eight got one word of 16 bits for 16
/// bytes, and holds 65,537 of them.
const SUMMED: usize = 1 << 16;

/// Copies `len` bytes and adds them to `sum`, in one pass. The sum is that of the stored bytes,
/// even if a guest writes meanwhile: each word is read once, into a register that is stored and
/// summed.
///
/// # Safety
/// As [`copy`]. All x86-64 processors have SSE2.
#[target_feature(enable = "sse2")]
pub(super) unsafe fn copy_and_sum(from: *const u8, to: *mut u8, len: usize, sum: &mut Sum) {
    let (mut at, mut total) = (0, 0);
    while len - at >= 16 {
        let end = at + (len - at).min(SUMMED) / 16 * 16;
        let mut lanes = [_mm_setzero_si128(); 2];
        while end - at >= LINE {
            // SAFETY: at + 64 <= end <= len.
            let line = unsafe { [0, 16, 32, 48].map(|part| moved(from, to, at + part)) };
            lanes = line.into_iter().fold(lanes, |lanes, words| add_words(lanes, words));
            at += LINE;
        }
        while at < end {
            // SAFETY: `at` and `end` are multiples of 16: at + 16 <= end <= len.
            lanes = add_words(lanes, unsafe { moved(from, to, at) });
            at += 16;
        }
        total += sum_of(lanes[0]) + sum_of(lanes[1]);
    }
    let mut last = [0u8; 16];
    let left = len - at;
    // SAFETY: the last bytes of `len`, less than 16, for which there is room.
    unsafe {
        small(from.add(at), last.as_mut_ptr(), left);
        small(last.as_ptr(), to.add(at), left);
    }
    *sum = sum.combine(Sum::from_native(total, false)).push(last.get(..left).unwrap_or_default());
}

/// Copies 16 bytes and returns them.
///
/// # Safety
/// As [`copy`], for `at` and the 16 bytes from there on.
#[inline(always)]
unsafe fn moved(from: *const u8, to: *mut u8, at: usize) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = load::<__m128i>(from, at);
        store(to, at, bytes);
        bytes
    }
}

/// Adds eight words of 16 bits to eight lanes of 32.
#[inline]
#[target_feature(enable = "sse2")]
fn add_words([low, high]: [__m128i; 2], words: __m128i) -> [__m128i; 2] {
    let zero = _mm_setzero_si128();
    [
        _mm_add_epi32(low, _mm_unpacklo_epi16(words, zero)),
        _mm_add_epi32(high, _mm_unpackhi_epi16(words, zero)),
    ]
}

/// Returns the sum of four lanes of 32 bits.
#[inline]
#[target_feature(enable = "sse2")]
fn sum_of(lanes: __m128i) -> u64 {
    let zero = _mm_setzero_si128();
    let pairs = _mm_add_epi64(_mm_unpacklo_epi32(lanes, zero), _mm_unpackhi_epi32(lanes, zero));
    let other = _mm_unpackhi_epi64(pairs, pairs);
    _mm_cvtsi128_si64(_mm_add_epi64(pairs, other)) as u64
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Checks the sources: nothing else reads guest memory. Two reads have to agree, and in guest
    /// memory they need not: the compiler may repeat every plain read.
    #[test]
    fn guest_memory_is_read_by_nothing_else() {
        let mut folders = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ring"))];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        let mut seen = 0;
        for path in files {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            for plain in [
                ".read()",
                "ptr::read(",
                ".read_unaligned(",
                "copy_nonoverlapping",
                "copy_from(",
                "copy_to_non",
                "from_raw_parts",
                "ptr::copy(",
            ] {
                assert!(!code.contains(plain), "{} has {plain}", path.display());
            }
            seen += usize::from(code.contains("read_volatile"));
        }
        assert_eq!(seen, 1, "copy.rs");
    }

    #[test]
    fn copies_every_length() {
        let from: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for len in 0..700 {
            let mut to = vec![0xaa; 720];
            // SAFETY: both hold len + 10 bytes.
            unsafe { copy(from.as_ptr().add(3), to.as_mut_ptr().add(5), len) };
            assert_eq!(to[5..5 + len], from[3..3 + len]);
            assert!(to[..5].iter().chain(&to[5 + len..]).all(|b| *b == 0xaa), "{len}");
        }
    }

    #[test]
    fn a_sum_of_odd_pieces_is_the_sum_of_the_whole() {
        let from: Vec<u8> = (0..3000u32).map(|i| (i * 31 + i / 256) as u8).collect();
        for pieces in [vec![3000], vec![1, 2999], vec![7, 13, 1001, 1979], vec![600, 2400]] {
            let mut sum = Sum::EMPTY;
            let mut to = vec![0u8; 3000];
            let mut at = 0;
            for n in pieces {
                // SAFETY: at + n <= 3000.
                unsafe {
                    copy_and_sum(from.as_ptr().add(at), to.as_mut_ptr().add(at), n, &mut sum);
                }
                at += n;
            }
            assert_eq!(from, to);
            assert_eq!(sum.fold(), Sum::of(&from).fold());
        }
    }

    #[test]
    fn every_length_is_copied_and_summed() {
        let from: Vec<u8> = (0..200_000u32).map(|i| (i * 7 + i / 300) as u8).collect();
        let full = vec![0xff; 200_000];
        for (len, from) in (0..700)
            .chain([65_535, 65_536, 65_537, 65_600, 131_072, 131_089, 199_990])
            .flat_map(|len| [(len, &from), (len, &full)])
        {
            let mut to = vec![0xaa; len + 20];
            let mut sum = Sum::EMPTY;
            // SAFETY: both hold len + 8 bytes.
            unsafe { copy_and_sum(from.as_ptr().add(3), to.as_mut_ptr().add(5), len, &mut sum) };
            assert_eq!(to[5..5 + len], from[3..3 + len]);
            assert!(to[..5].iter().chain(&to[5 + len..]).all(|b| *b == 0xaa), "{len}");
            let words = Sum::from_native(sum_in_words(&from[3..3 + len]), len % 2 == 1);
            assert_eq!(sum.fold(), words.fold(), "{len}");
            assert_eq!(sum.push(&[1, 2]).fold(), words.push(&[1, 2]).fold(), "{len}, and more");
        }
    }

    /// Lanes are added up before they overflow, which ones of 0xffff do behind 1 MiB.
    #[test]
    fn sums_of_much_do_not_overflow() {
        let from = vec![0xff; (1 << 20) + 4096];
        let (mut to, mut sum) = (vec![0; from.len()], Sum::EMPTY);
        // SAFETY: both have that length.
        unsafe { copy_and_sum(from.as_ptr(), to.as_mut_ptr(), from.len(), &mut sum) };
        assert_eq!(from, to);
        assert_eq!(sum.fold(), Sum::from_native(sum_in_words(&from), false).fold());
        assert_ne!(sum.push(&[0, 1]).fold(), sum.fold());
    }

    /// RFC 1071 by its words, in the order of memory; not folded.
    fn sum_in_words(bytes: &[u8]) -> u64 {
        let word = |pair: &[u8]| u16::from_ne_bytes([pair[0], *pair.get(1).unwrap_or(&0)]);
        bytes.chunks(2).map(|pair| u64::from(word(pair))).sum()
    }
}

//! A box that another process left. Nothing in it is believed.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{fs::fstat, io::Errno};

use super::{Cause, MAGIC, NAME, NUMBERS, PAGE, RECORD, SIZE, SWITCH, UPLINK, WORKERS};

/// One end of a frame's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Side {
    /// No ring was touched.
    Nobody,
    /// The ring of the vnic with this id.
    Vnic(String),
    /// The uplink.
    Uplink,
    /// The switch, which sent a frame of its own.
    Switch,
}

/// A worker that ended its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blamed {
    /// How.
    pub cause: Cause,
    /// The ring that it served.
    pub served: Side,
    /// The receive ring that it touched for that, if it did.
    pub written: Side,
}

/// Content of a box. Times are since the host started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notes {
    /// Number of the process.
    pub term: u64,
    /// Time when it was ready, if it came so far.
    pub ready: Option<Duration>,
    /// Time when it was last seen alive.
    pub alive: Duration,
    /// It had started with less than usual.
    pub degraded: bool,
    /// Why it ended, unless it was killed.
    pub cause: Option<Cause>,
    /// The worker that ended it, if one did.
    pub blamed: Option<Blamed>,
}

/// Reads a box.
pub fn read(file: OwnedFd) -> io::Result<Notes> {
    let size = fstat(&file)?.st_size;
    if u64::try_from(size) != Ok(SIZE) {
        return Err(wrong(format!("a black box of {size} bytes where {SIZE} were to be")));
    }
    let mut page = [0u8; PAGE];
    read_exactly(&file, &mut page, 0)?;
    let [magic, term, ready, alive, degraded, cause] =
        std::array::from_fn(|n| word(&page, 8 * n as u64));
    if magic != MAGIC {
        return Err(wrong("a black box of another layout".to_owned()));
    }
    if ready > alive || degraded > 1 {
        return Err(wrong("a black box that contradicts itself".to_owned()));
    }
    let blamed = (0..WORKERS).find_map(|worker| {
        let line = 64 * (worker as u64 + 1);
        let half = |n: u64| (word(&page, line + n / 8 * 8) >> (8 * (n % 8))) as u32;
        let cause = Cause::of(half(8)).filter(|cause| *cause != Cause::Stopped)?;
        Some((cause, half(0), half(4)))
    });
    let blamed = blamed.map(|(cause, served, written)| Blamed {
        cause,
        served: side(&file, served),
        written: side(&file, written),
    });
    Ok(Notes {
        term,
        ready: (ready > 0).then(|| Duration::from_millis(ready)),
        alive: Duration::from_millis(alive),
        degraded: degraded == 1,
        cause: u32::try_from(cause).ok().and_then(Cause::of),
        blamed,
    })
}

fn side(file: &OwnedFd, port: u32) -> Side {
    match port {
        UPLINK => Side::Uplink,
        SWITCH => Side::Switch,
        port => {
            let name = port.checked_sub(1).and_then(|port| name(file, port));
            name.map_or(Side::Nobody, Side::Vnic)
        }
    }
}

fn name(file: &OwnedFd, port: u32) -> Option<String> {
    let at = PAGE as u64 + u64::from(Some(port).filter(|port| *port < NUMBERS)?) * RECORD as u64;
    let mut found = [0u8; RECORD];
    read_exactly(file, &mut found, at).ok()?;
    let length = usize::try_from(word(&found, 8) as u32).ok()?;
    let text = std::str::from_utf8(found.get(12..)?.get(..length)?).ok()?;
    (!text.is_empty() && record(text) == found).then(|| text.to_owned())
}

/// Returns the record of a name. A longer one than fits has none.
pub(super) fn record(name: &str) -> [u8; RECORD] {
    let mut record = [0u8; RECORD];
    if name.len() <= NAME {
        let (head, rest) = record.split_at_mut(12);
        head[8..].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        rest[..name.len()].copy_from_slice(name.as_bytes());
        let sum = checksum(&record[8..]);
        record[..8].copy_from_slice(&sum.to_ne_bytes());
    }
    record
}

/// Finds what was half written (FNV-1a), and is no proof against a forger.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn word(bytes: &[u8], at: u64) -> u64 {
    let found = usize::try_from(at).ok().and_then(|at| bytes.get(at..)?.first_chunk());
    found.map_or(0, |word| u64::from_ne_bytes(*word))
}

fn read_exactly(file: &OwnedFd, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
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

fn wrong(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

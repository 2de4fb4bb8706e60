//! Files that packets are written into: one, or several that are overwritten in turn.

use super::encode::Encoder;
use butterfly_datapath::{DropReason, TapPacket, TapRole};
use butterfly_model::TraceOptions;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Most bytes of a packet, unless the operator wants fewer.
pub const SNAP: u32 = 65_535;
/// Files of a ring, unless the operator wants others.
const FILES: u32 = 2;
/// Bytes that are written at once.
const CHUNK: usize = 1 << 16;

/// Fate of a file, for queries.
#[derive(Debug, Default)]
pub struct FileStats {
    pub packets: AtomicU64,
    pub bytes: AtomicU64,
    /// Packets that were not written: the file could not take them.
    pub lost: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl FileStats {
    /// Makes the stats of a file that could not be opened.
    pub fn without(why: String) -> FileStats {
        FileStats { trouble: Mutex::new(Some(why)), ..FileStats::default() }
    }

    /// Returns why nothing is written any more.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A file that packets are written into.
pub struct TraceFile {
    path: PathBuf,
    interface: String,
    snap: u32,
    size: u64,
    files: u32,
    /// Which of them is written.
    at: u32,
    file: File,
    encoder: Encoder,
    /// Bytes in the file that is written, and packets that are not in it yet.
    written: u64,
    waiting: u64,
    stats: std::sync::Arc<FileStats>,
}

impl TraceFile {
    /// Opens the first file, which is as it was until [`Self::begin`]. Refuses everything but an
    /// own regular file: the default path is in a directory into which any user may have put
    /// something.
    pub fn create(
        path: &Path,
        interface: &str,
        options: &TraceOptions,
        stats: std::sync::Arc<FileStats>,
    ) -> Result<TraceFile, String> {
        let snap = snap(options);
        let refused = |error: &dyn std::fmt::Display| {
            format!("cannot write packets to {}: {error}", path.display())
        };
        let encoder = encoder(path, interface, snap).map_err(|error| refused(&error))?;
        Ok(TraceFile {
            path: path.to_owned(),
            interface: interface.to_owned(),
            snap,
            size: options.file_size,
            files: if options.file_size == 0 {
                1
            } else {
                options.file_count.unwrap_or(FILES).max(1)
            },
            at: 0,
            file: open(path).map_err(|error| refused(&error))?,
            encoder,
            written: 0,
            waiting: 0,
            stats,
        })
    }

    /// Empties the file and begins to write.
    pub fn begin(&mut self) {
        let begun = self.file.set_len(0).and_then(|()| self.flush());
        self.note(begun);
    }

    /// True if the packets that a vnic did not get are reported, too: in comments, which classic
    /// pcap has not.
    fn has_comments(&self) -> bool {
        is_pcapng(&self.path)
    }

    /// Writes a packet, now or soon. `refused`: why its vnic did not get it.
    pub fn add(&mut self, packet: &TapPacket<'_>, role: TapRole, refused: Option<DropReason>) {
        let passed =
            refused.is_none_or(|reason| role == TapRole::Sent || IN_SPITE.contains(&reason.name()));
        if packet.data.is_empty() || !(passed || self.has_comments()) {
            return;
        }
        if self.stats.trouble().is_some() || self.encoder.add(packet, role).is_err() {
            self.stats.lost.fetch_add(1, Relaxed);
            return;
        }
        self.waiting += 1;
        let pending = self.encoder.pending();
        if self.size > 0 && self.written + pending as u64 >= self.size {
            let turned = self.flush().and_then(|()| self.turn());
            self.note(turned);
        } else if pending >= CHUNK {
            let flushed = self.flush();
            self.note(flushed);
        }
    }

    /// Writes what is not in the file yet.
    pub fn settle(&mut self) {
        if self.encoder.pending() > 0 && self.stats.trouble().is_none() {
            let flushed = self.flush();
            self.note(flushed);
        }
    }

    fn note(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            // Half a packet is worse than none.
            let _ = self.file.set_len(self.written);
            self.stats.lost.fetch_add(std::mem::take(&mut self.waiting), Relaxed);
            let text = format!("{}: {error}", self.path.display());
            tracing::error!("packets are not written any more: {text}");
            *self.stats.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = self.encoder.take();
        self.file.write_all(&bytes)?;
        self.written += bytes.len() as u64;
        self.stats.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.stats.packets.fetch_add(std::mem::take(&mut self.waiting), Relaxed);
        Ok(())
    }

    /// Goes on in the next file.
    fn turn(&mut self) -> io::Result<()> {
        self.at = (self.at + 1) % self.files;
        let path = match self.at {
            0 => self.path.clone(),
            n => {
                let mut name = self.path.clone().into_os_string();
                name.push(format!(".{n}"));
                name.into()
            }
        };
        self.encoder = encoder(&self.path, &self.interface, self.snap).map_err(io::Error::other)?;
        self.file = open(&path)?;
        self.file.set_len(0)?;
        self.written = 0;
        self.flush()
    }
}

/// Reasons that keep a packet from a VM behind its filter. The original recorded in front of that.
const IN_SPITE: [&str; 4] = ["ring-full", "not-attached", "rx-too-large", "rx-bad-chain"];

/// Bytes of a packet that are wanted.
pub fn snap(options: &TraceOptions) -> u32 {
    match options.snap_length {
        0 => SNAP,
        snap => snap.min(SNAP),
    }
}

fn is_pcapng(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "pcapng")
}

fn encoder(path: &Path, interface: &str, snap: u32) -> Result<Encoder, String> {
    let encoder =
        if is_pcapng(path) { Encoder::pcapng(snap, interface) } else { Encoder::pcap(snap) };
    encoder.map_err(|error| error.to_string())
}

/// First bytes of files of packets, in either byte order: pcap with microseconds and with
/// nanoseconds, pcapng.
const MAGIC: [[u8; 4]; 5] = [
    0xa1b2_c3d4_u32.to_be_bytes(),
    0xa1b2_c3d4_u32.to_le_bytes(),
    0xa1b2_3c4d_u32.to_be_bytes(),
    0xa1b2_3c4d_u32.to_le_bytes(),
    0x0a0d_0d0a_u32.to_be_bytes(),
];

/// True if a file is empty, or holds packets. The daemon's user has other files, which must not be
/// emptied.
fn holds_packets(file: &File) -> io::Result<bool> {
    let mut begin = [0; 4];
    Ok(match file.read_at(&mut begin, 0)? {
        0 => true,
        len => len == begin.len() && MAGIC.contains(&begin),
    })
}

/// Opens a file that is ours and nothing else. Never waits, as a pipe would have us do.
fn open(path: &Path) -> io::Result<File> {
    let not_ours = || {
        io::Error::other(
            "it exists and is no file of packets of the daemon's own: remove it, or name another path",
        )
    };
    // Before it is opened: to some devices that means something.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(not_ours());
    }
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags as i32)
        .open(path)?;
    let found = file.metadata()?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if !found.is_file() || !ours || found.nlink() != 1 || !holds_packets(&file)? {
        return Err(not_ours());
    }
    Ok(file)
}

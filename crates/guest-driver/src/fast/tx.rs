//! The transmit queue of the driver for measuring.

use std::{sync::Arc, time::Duration};

use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    fast::{
        chains::Core,
        config::{FastConfig, LINE, stride},
        owned::Pieces,
    },
    memory::{Memory, MemoryError, Span},
    queue::DeviceError,
    ring::{AnyRing, DESC_INDIRECT, DESC_LEN, DESC_NEXT, Desc, PackedDesc},
};

/// The transmit queue.
#[derive(Debug)]
pub struct FastTx {
    pub(super) core: Core,
    pool: Span,
    stride: usize,
    max_frame: usize,
    header_len: usize,
    indirect: Option<Span>,
    header_apart: bool,
    /// Length each chain's descriptors say.
    lens: Vec<u32>,
    /// Chains the device does not have: a queue, oldest first.
    free: Vec<u16>,
    free_at: usize,
    free_count: usize,
    sent: u64,
}

/// A transmit buffer to be filled.
#[derive(Debug)]
pub struct TxFrame<'a> {
    pool: &'a Span,
    at: usize,
    room: usize,
    header_len: usize,
}

impl TxFrame<'_> {
    /// Writes frame bytes at `at`. Panics if they are beyond the longest frame.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.room);
        self.pool.write(self.at + at, bytes);
    }

    /// Writes the virtio-net header, which is all zero unless written, and stays as it is for later
    /// frames in this buffer.
    #[inline]
    pub fn write_header(&self, header: NetHeader) {
        let header = header.to_bytes();
        self.pool
            .write(self.at - self.header_len, header.get(..self.header_len).unwrap_or_default());
    }
}

impl FastTx {
    pub(super) fn new(
        memory: &Arc<Memory>,
        features: Features,
        config: &FastConfig,
    ) -> Result<FastTx, MemoryError> {
        let legacy = features.0 & (Features::VERSION_1.0 | Features::ANY_LAYOUT.0) == 0;
        // A packed ring of one descriptor has no room for two.
        let room = config.indirect || config.queue_size > 1 || !features.has(Features::RING_PACKED);
        let header_apart = (config.header_apart && room) || legacy;
        let ring = AnyRing::new(memory, config.queue_size, features)?;
        let shift = u32::from(header_apart && !config.indirect && config.queue_size > 1);
        let core = Core::new(ring, features, shift)?;
        let stride = stride(config.max_frame);
        let len = stride * usize::from(core.owned.chains);
        let pool = memory.span(memory.alloc(len, LINE)?, len)?;
        pool.fill(0);
        let indirect = match config.indirect {
            true => {
                let len = usize::from(core.owned.chains) * 2 * DESC_LEN;
                Some(memory.span(memory.alloc(len, LINE)?, len)?)
            }
            false => None,
        };
        let mut tx = FastTx {
            pool,
            stride,
            max_frame: config.max_frame,
            header_len: features.header_len(),
            indirect,
            header_apart,
            lens: vec![0; core.owned.chains.into()],
            free: (0..core.owned.chains).collect(),
            free_at: 0,
            free_count: core.owned.chains.into(),
            sent: 0,
            core,
        };
        (0..tx.core.owned.chains).for_each(|chain| tx.describe(chain, 0));
        Ok(tx)
    }

    /// Returns the offset of a chain's frame in the pool.
    #[inline]
    fn frame_at(&self, chain: u16) -> usize {
        usize::from(chain) * self.stride + LINE
    }

    /// Writes a chain's descriptors for a frame of `len` bytes.
    fn describe(&mut self, chain: u16, len: u32) {
        let frame = self.pool.addr() + self.frame_at(chain) as u64;
        let header_len = self.header_len as u32;
        let header =
            Desc { addr: frame - u64::from(header_len), len: header_len, flags: 0, next: 0 };
        let together = Desc { len: header_len + len, ..header };
        let apart = Desc { addr: frame, len, flags: 0, next: 0 };
        let pieces = match &self.indirect {
            None if self.header_apart => Pieces::two(header, apart),
            None => Pieces::one(together),
            Some(tables) => {
                let at = usize::from(chain) * 2 * DESC_LEN;
                let packed = matches!(self.core.link.ring, AnyRing::Packed(_));
                let entries: &[Desc] =
                    if self.header_apart { &[header, apart] } else { &[together] };
                for (i, entry) in entries.iter().enumerate() {
                    let more = i + 1 < entries.len();
                    tables.write(at + i * DESC_LEN, &table_entry(*entry, more, packed));
                }
                let len = (entries.len() * DESC_LEN) as u32;
                let addr = tables.addr() + at as u64;
                Pieces::one(Desc { addr, len, flags: DESC_INDIRECT, next: 0 })
            }
        };
        self.core.describe(chain, pieces);
    }

    /// Frames handed to the device.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Notifications sent.
    pub fn kicks(&self) -> u64 {
        self.core.kicks
    }

    /// Frames the device has not used yet, as of the last [`Self::reclaim`].
    pub fn outstanding(&self) -> u16 {
        self.core.owned.outstanding
    }

    /// Takes back what the device has used.
    #[inline]
    pub fn reclaim(&mut self) -> Result<usize, DeviceError> {
        let chains = usize::from(self.core.owned.chains);
        let (free, mut end) = (&mut self.free, self.free_at + self.free_count);
        let taken = self.core.take(usize::MAX, |chain, _| {
            end = if end < chains { end } else { end - chains };
            if let Some(place) = free.get_mut(end) {
                *place = chain;
            }
            end += 1;
        })?;
        self.free_count += taken;
        Ok(taken)
    }

    /// Sends up to `max` frames: `fill` writes each into its buffer and returns its length. Returns
    /// how many there was room for.
    #[inline]
    pub fn send(
        &mut self,
        max: usize,
        mut fill: impl FnMut(TxFrame<'_>) -> usize,
    ) -> Result<usize, DeviceError> {
        if self.free_count < max {
            self.reclaim()?;
        }
        let count = max.min(self.free_count);
        if count == 0 {
            return Ok(0);
        }
        let chains = usize::from(self.core.owned.chains);
        for _ in 0..count {
            let Some(&chain) = self.free.get(self.free_at) else { break };
            self.free_at = if self.free_at + 1 < chains { self.free_at + 1 } else { 0 };
            let frame = TxFrame {
                pool: &self.pool,
                at: self.frame_at(chain),
                room: self.max_frame,
                header_len: self.header_len,
            };
            let len = fill(frame) as u32;
            if self.lens.get(usize::from(chain)) != Some(&len) {
                self.describe(chain, len);
                if let Some(known) = self.lens.get_mut(usize::from(chain)) {
                    *known = len;
                }
            }
            self.core.push(chain);
        }
        self.free_count -= count;
        self.sent += count as u64;
        self.core.publish();
        Ok(count)
    }

    /// Waits until the device has used everything. False after `timeout`.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, DeviceError> {
        let deadline = std::time::Instant::now() + timeout;
        loop {
            self.reclaim()?;
            if self.core.owned.outstanding == 0 {
                return Ok(true);
            }
            if std::time::Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }
}

/// Returns the first or second entry of an indirect table as it lies in memory; `more`: the second
/// one follows.
fn table_entry(entry: Desc, more: bool, packed: bool) -> [u8; DESC_LEN] {
    let Desc { addr, len, flags, .. } = entry;
    match more {
        _ if packed => PackedDesc { addr, len, id: 0, flags }.to_bytes(),
        true => Desc { flags: DESC_NEXT, next: 1, ..entry }.to_bytes(),
        false => entry.to_bytes(),
    }
}

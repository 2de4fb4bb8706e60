//! The transmit queue of the driver for measuring.

use std::{sync::Arc, time::Duration};

use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    fast::{
        chains::Core,
        config::{FastConfig, LINE, stride},
    },
    memory::{Memory, MemoryError, Span},
    queue::DeviceError,
    ring::{DESC_INDIRECT, DESC_LEN, DESC_NEXT, Desc, Ring},
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
        let header_apart = config.header_apart || legacy;
        let ring = Ring::new(memory, config.queue_size)?;
        let shift = u32::from(header_apart && !config.indirect && config.queue_size > 1);
        let core = Core::new(ring, features, shift)?;
        let stride = stride(config.max_frame);
        let len = stride * usize::from(core.chains);
        let pool = memory.span(memory.alloc(len, LINE)?, len)?;
        pool.fill(0);
        let indirect = match config.indirect {
            true => {
                let len = usize::from(core.chains) * 2 * DESC_LEN;
                Some(memory.span(memory.alloc(len, LINE)?, len)?)
            }
            false => None,
        };
        let tx = FastTx {
            pool,
            stride,
            max_frame: config.max_frame,
            header_len: features.header_len(),
            indirect,
            header_apart,
            lens: vec![0; core.chains.into()],
            free: (0..core.chains).collect(),
            free_at: 0,
            free_count: core.chains.into(),
            sent: 0,
            core,
        };
        (0..tx.core.chains).for_each(|chain| tx.describe(chain, 0));
        Ok(tx)
    }

    /// Returns the offset of a chain's frame in the pool.
    #[inline]
    fn frame_at(&self, chain: u16) -> usize {
        usize::from(chain) * self.stride + LINE
    }

    /// Writes a chain's descriptors for a frame of `len` bytes.
    fn describe(&self, chain: u16, len: u32) {
        let frame = self.pool.addr() + self.frame_at(chain) as u64;
        let header_len = self.header_len as u32;
        let header =
            Desc { addr: frame - u64::from(header_len), len: header_len, flags: 0, next: 0 };
        let together = Desc { len: header_len + len, ..header };
        let apart = Desc { addr: frame, len, flags: 0, next: 0 };
        let head = chain << self.core.shift;
        let ring = &self.core.link.ring;
        match &self.indirect {
            None if self.header_apart => {
                ring.set_desc(head, Desc { flags: DESC_NEXT, next: head + 1, ..header });
                ring.set_desc(head + 1, apart);
            }
            None => ring.set_desc(head, together),
            Some(tables) => {
                let at = usize::from(chain) * 2 * DESC_LEN;
                let table = if self.header_apart {
                    [Desc { flags: DESC_NEXT, next: 1, ..header }, apart]
                } else {
                    [together, Desc::default()]
                };
                tables.write(at, &table[0].to_bytes());
                tables.write(at + DESC_LEN, &table[1].to_bytes());
                let entries = if self.header_apart { 2 } else { 1 };
                let len = (entries * DESC_LEN) as u32;
                ring.set_desc(
                    head,
                    Desc { addr: tables.addr() + at as u64, len, flags: DESC_INDIRECT, next: 0 },
                );
            }
        }
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
        self.core.outstanding
    }

    /// Takes back what the device has used.
    #[inline]
    pub fn reclaim(&mut self) -> Result<usize, DeviceError> {
        let chains = usize::from(self.core.chains);
        let (free, mut end) = (&mut self.free, self.free_at + self.free_count);
        let taken = self.core.take(usize::MAX, |chain, _| {
            if let Some(place) = free.get_mut(end & (chains - 1)) {
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
        let mask = usize::from(self.core.chains) - 1;
        for _ in 0..count {
            let Some(&chain) = self.free.get(self.free_at & mask) else { break };
            self.free_at += 1;
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
        self.free_at &= mask;
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
            if self.core.outstanding == 0 {
                return Ok(true);
            }
            if std::time::Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }
}

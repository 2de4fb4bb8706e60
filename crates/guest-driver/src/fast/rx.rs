//! The receive queue of the driver for measuring.

use std::sync::Arc;

use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    fast::{
        chains::Core,
        config::{BATCH, FastConfig, LINE, stride},
        owned::Pieces,
    },
    memory::{Memory, MemoryError, Span},
    queue::DeviceError,
    ring::{AnyRing, DESC_WRITE, Desc},
};

/// The receive queue. Each buffer is one descriptor, also for a legacy guest, whose driver would
/// put the header apart.
#[derive(Debug)]
pub struct FastRx {
    pub(super) core: Core,
    pool: Span,
    stride: usize,
    /// Bytes of a buffer.
    buffer: u32,
    header_len: usize,
    mergeable: bool,
    /// Used buffers of the batch in hand: where the bytes are in the pool, and how many.
    batch: Vec<(usize, u32)>,
    chains: Vec<u16>,
    received: u64,
}

/// A received frame in its buffers. They go back to the device after the call that was given it.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    pool: &'a Span,
    /// The first piece without its header, then the others.
    pieces: &'a [(usize, u32)],
    header_len: usize,
    len: usize,
}

impl RxFrame<'_> {
    /// Bytes of the frame, without header.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Buffers it came in.
    #[inline]
    pub fn buffers(&self) -> usize {
        self.pieces.len()
    }

    /// Its virtio-net header.
    #[inline]
    pub fn header(&self) -> NetHeader {
        let mut bytes = [0; NetHeader::LEN];
        if let (Some((at, _)), Some(bytes)) =
            (self.pieces.first(), bytes.get_mut(..self.header_len))
        {
            self.pool.read(*at, bytes);
        }
        NetHeader::from_bytes(bytes)
    }

    /// The first bytes, as many as fit. Returns how many there are.
    #[inline]
    pub fn read(&self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        for (i, (at, len)) in self.pieces.iter().enumerate() {
            let skip = if i == 0 { self.header_len } else { 0 };
            let room = bytes.split_at_mut(done).1;
            let now = (*len as usize - skip).min(room.len());
            self.pool.read(at + skip, room.split_at_mut(now).0);
            done += now;
            if done == bytes.len() {
                break;
            }
        }
        done
    }
}

impl FastRx {
    pub(super) fn new(
        memory: &Arc<Memory>,
        features: Features,
        config: &FastConfig,
    ) -> Result<FastRx, MemoryError> {
        let core = Core::new(AnyRing::new(memory, config.queue_size, features)?, features, 0)?;
        let stride = stride(config.rx_buffer);
        let len = stride * usize::from(core.owned.chains);
        let pool = memory.span(memory.alloc(len, LINE)?, len)?;
        let mut rx = FastRx {
            core,
            pool,
            stride,
            buffer: config.rx_buffer as u32,
            header_len: features.header_len(),
            mergeable: features.has(Features::MRG_RXBUF),
            batch: Vec::with_capacity(config.queue_size.into()),
            chains: Vec::with_capacity(config.queue_size.into()),
            received: 0,
        };
        for chain in 0..rx.core.owned.chains {
            let addr = rx.pool.addr() + rx.buffer_at(chain) as u64;
            let buffer = Desc { addr, len: rx.buffer, flags: DESC_WRITE, next: 0 };
            rx.core.describe(chain, Pieces::one(buffer));
            rx.core.push(chain);
        }
        rx.core.show(); // the device is not told: it looks when it is started
        Ok(rx)
    }

    /// Returns the offset of a buffer in the pool: the frame, behind its header, starts a line.
    #[inline]
    fn buffer_at(&self, chain: u16) -> usize {
        usize::from(chain) * self.stride + LINE - self.header_len
    }

    /// Frames received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Notifications sent.
    pub fn kicks(&self) -> u64 {
        self.core.kicks
    }

    /// True if used buffers wait.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.core.has_used()
    }

    /// Takes what was received, at least [`BATCH`] buffers of it if there are as many, and gives
    /// the buffers back. Returns the number of frames.
    #[inline]
    pub fn poll(&mut self, mut with: impl FnMut(RxFrame<'_>)) -> Result<usize, DeviceError> {
        self.batch.clear();
        self.chains.clear();
        self.collect(BATCH)?;
        let (mut frames, mut next) = (0, 0);
        while let Some(&(at, len)) = self.batch.get(next) {
            if (len as usize) < self.header_len {
                return Err(DeviceError::ShortHeader(len));
            }
            let count = if self.mergeable { self.merged(at, next)? } else { 1 };
            let pieces = self.batch.get(next..next + count).unwrap_or_default();
            let len = pieces.iter().map(|(_, len)| *len as usize).sum::<usize>() - self.header_len;
            with(RxFrame { pool: &self.pool, pieces, header_len: self.header_len, len });
            next += count;
            frames += 1;
        }
        if frames > 0 {
            for chain in &self.chains {
                self.core.push(*chain);
            }
            self.core.publish();
            self.received += frames as u64;
        }
        Ok(frames)
    }

    /// Appends up to `max` used buffers to the batch.
    #[inline]
    fn collect(&mut self, max: usize) -> Result<usize, DeviceError> {
        let (stride, base, buffer, pool) =
            (self.stride, LINE - self.header_len, self.buffer, &self.pool);
        let (batch, chains, mut excess) = (&mut self.batch, &mut self.chains, None);
        let taken = self.core.take(max, |chain, len| {
            let at = usize::from(chain) * stride + base;
            let len = len.unwrap_or(buffer);
            if len > buffer {
                excess = Some(len);
            }
            pool.prefetch(at);
            pool.prefetch(at + LINE);
            batch.push((at, len));
            chains.push(chain);
        })?;
        match excess {
            Some(len) => Err(DeviceError::UsedLen { len, writable: buffer }),
            None => Ok(taken),
        }
    }

    /// Number of buffers of the frame whose first is batch entry `first`; collects those missing.
    #[inline]
    fn merged(&mut self, at: usize, first: usize) -> Result<usize, DeviceError> {
        let claimed = u16::from_le_bytes(self.pool.read_array(at + 10));
        let mut available = self.batch.len() - first;
        if usize::from(claimed) > available {
            available += self.collect(usize::from(claimed) - available)?;
        }
        if claimed == 0 || usize::from(claimed) > available {
            return Err(DeviceError::NumBuffers { claimed, available: available as u16 });
        }
        Ok(claimed.into())
    }
}

//! Frames from the guest.

use std::time::Duration;

use butterfly_vhost::net::NetHeader;

use crate::{
    guest::Guest,
    queue::{AddError, Buffer, DeviceError, Placement},
};

/// A frame could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The transmit ring has no room now.
    #[error("the transmit ring is full")]
    Full,
    /// Longer than [`crate::GuestConfig::max_frame`].
    #[error("a frame of {0} bytes is longer than the guest's buffers")]
    TooLong(usize),
    /// The device broke the rules when it returned sent buffers.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The chain could not be built.
    #[error(transparent)]
    Chain(AddError),
}

impl From<AddError> for SendError {
    fn from(error: AddError) -> SendError {
        match error {
            AddError::Full => SendError::Full,
            other => SendError::Chain(other),
        }
    }
}

impl Guest {
    /// Takes back the buffers of frames the device has sent. Returns how many.
    pub fn reclaim(&mut self) -> Result<usize, DeviceError> {
        let mut count = 0;
        while let Some(used) = self.tx.pop()? {
            self.tx_free.push(used.token as usize);
            count += 1;
        }
        Ok(count)
    }

    /// Adds a frame to the transmit ring; the device sees it after [`Self::flush`].
    pub fn enqueue(&mut self, frame: &[u8], header: NetHeader) -> Result<(), SendError> {
        let shape = self.allowed(self.config.tx_shape, false);
        self.enqueue_with(frame, header, shape.placement, |addr, header_len, len, chain| {
            shape.cut(addr, header_len, len, false, chain);
        })
    }

    /// Like [`Self::enqueue`], cut into descriptors at `cuts`: ascending positions counted from the
    /// header's first byte. Equal ones make empty descriptors.
    pub fn enqueue_cut(
        &mut self,
        frame: &[u8],
        header: NetHeader,
        cuts: &[usize],
        placement: Placement,
    ) -> Result<(), SendError> {
        self.enqueue_with(frame, header, placement, |addr, _, len, chain| {
            chain.clear();
            let mut from = 0;
            for cut in cuts.iter().copied().chain([len]) {
                let to = cut.clamp(from, len);
                chain.push(Buffer {
                    addr: addr + from as u64,
                    len: (to - from) as u32,
                    writable: false,
                });
                from = to;
            }
        })
    }

    fn enqueue_with(
        &mut self,
        frame: &[u8],
        header: NetHeader,
        placement: Placement,
        cut: impl FnOnce(u64, usize, usize, &mut Vec<Buffer>),
    ) -> Result<(), SendError> {
        if frame.len() > self.config.max_frame {
            return Err(SendError::TooLong(frame.len()));
        }
        self.reclaim()?;
        let Some(slot) = self.tx_free.pop() else { return Err(SendError::Full) };
        let addr = self.tx_slots[slot];
        let header_len = self.features.header_len();
        let result = self.fill(addr, &header.to_bytes()[..header_len], frame).and_then(|()| {
            cut(addr, header_len, header_len + frame.len(), &mut self.chain);
            self.tx.add(&self.chain, placement, slot as u64)
        });
        match result {
            Ok(_) => {
                self.stats.sent += 1;
                Ok(())
            }
            Err(error) => {
                self.tx_free.push(slot);
                Err(error.into())
            }
        }
    }

    fn fill(&self, addr: u64, header: &[u8], frame: &[u8]) -> Result<(), AddError> {
        self.memory.write(addr, header)?;
        self.memory.write(addr + header.len() as u64, frame)?;
        Ok(())
    }

    /// Publishes what was enqueued, and notifies the device if it wants to know.
    pub fn flush(&mut self) {
        self.tx.publish();
        self.tx.notify();
    }

    /// Sends one frame.
    pub fn send(&mut self, frame: &[u8], header: NetHeader) -> Result<(), SendError> {
        self.enqueue(frame, header)?;
        self.flush();
        Ok(())
    }

    /// Sends frames with empty headers, as many as there is room for, published at once. Returns
    /// how many.
    pub fn send_batch<F: AsRef<[u8]>>(
        &mut self,
        frames: impl IntoIterator<Item = F>,
    ) -> Result<usize, SendError> {
        let mut count = 0;
        for frame in frames {
            match self.enqueue(frame.as_ref(), NetHeader::default()) {
                Ok(()) => count += 1,
                Err(SendError::Full) => break,
                Err(error) => return Err(error),
            }
        }
        self.flush();
        Ok(count)
    }

    /// Sends one frame, waiting up to `timeout` for room.
    pub fn send_wait(
        &mut self,
        frame: &[u8],
        header: NetHeader,
        timeout: Duration,
    ) -> Result<(), SendError> {
        loop {
            match self.send(frame, header) {
                Err(SendError::Full) => {
                    if !self.tx.wait(timeout)? {
                        return Err(SendError::Full);
                    }
                }
                result => return result,
            }
        }
    }

    /// Waits until the device has used every frame sent. False after `timeout`.
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, DeviceError> {
        loop {
            self.reclaim()?;
            if self.tx.outstanding() == 0 {
                return Ok(true);
            }
            if !self.tx.wait(timeout)? {
                return Ok(false);
            }
        }
    }
}

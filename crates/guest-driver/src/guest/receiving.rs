//! Frames to the guest, and the buffers for them.

use std::time::Duration;

use butterfly_vhost::net::{Features, NetHeader};

use crate::{
    guest::{Guest, config::Refill},
    queue::DeviceError,
};

impl Guest {
    /// Gives up to `max` receive buffers to the device, and notifies it. Returns how many.
    pub fn refill(&mut self, max: usize) -> usize {
        let mut count = 0;
        while count < max {
            let Some(slot) = self.rx_free.pop() else { break };
            let shape = self.allowed(self.config.rx_shape, self.features.has(Features::MRG_RXBUF));
            let header = self.features.header_len();
            shape.cut(self.rx_slots[slot], header, self.config.rx_buffer, true, &mut self.chain);
            if self.rx.add(&self.chain, shape.placement, slot as u64).is_err() {
                self.rx_free.push(slot); // no descriptor, or no memory for its table: later
                break;
            }
            count += 1;
        }
        if count > 0 {
            self.rx.publish();
            self.rx.notify();
        }
        count
    }

    /// Takes the next received frame, merged from its buffers.
    pub fn recv(&mut self) -> Result<Option<(NetHeader, Vec<u8>)>, DeviceError> {
        let Some(first) = self.rx.pop()? else { return Ok(None) };
        let header_len = self.features.header_len();
        if (first.len as usize) < header_len {
            return Err(DeviceError::ShortHeader(first.len));
        }
        let mut bytes = self.take_buffer(first.token, first.len);
        let mut header = [0; NetHeader::LEN];
        header[..header_len].copy_from_slice(&bytes[..header_len]);
        let header = NetHeader::from_bytes(header);
        bytes.drain(..header_len);
        let buffers = self.merged(header)?;
        for taken in 1..buffers {
            let missing = DeviceError::NumBuffers { claimed: buffers, available: taken };
            let next = self.rx.pop()?.ok_or(missing)?;
            bytes.append(&mut self.take_buffer(next.token, next.len));
        }
        self.stats.received += 1;
        self.stats.rx_buffers += u64::from(buffers);
        if self.config.refill == Refill::Immediately {
            self.refill(usize::MAX);
        }
        Ok(Some((header, bytes)))
    }

    /// Number of buffers the frame with this header is in.
    fn merged(&self, header: NetHeader) -> Result<u16, DeviceError> {
        let claimed = header.num_buffers;
        if self.features.has(Features::MRG_RXBUF) {
            let wanted = if claimed == 0 { u16::MAX } else { claimed };
            let available = self.rx.used_ready_of(wanted).saturating_add(1);
            return if claimed == 0 || claimed > available {
                Err(DeviceError::NumBuffers { claimed, available })
            } else {
                Ok(claimed)
            };
        }
        if self.config.strict && self.features.has(Features::VERSION_1) && claimed != 1 {
            return Err(DeviceError::NumBuffers { claimed, available: 1 });
        }
        Ok(1)
    }

    fn take_buffer(&mut self, token: u64, len: u32) -> Vec<u8> {
        let slot = token as usize;
        self.rx_free.push(slot);
        // Cannot fail: the length was checked against the chain, and the chain is inside the
        // guest's memory.
        self.memory.read_vec(self.rx_slots[slot], len as usize).unwrap_or_default()
    }

    /// Takes the next received frame, waiting up to `timeout` for it.
    pub fn recv_wait(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<(NetHeader, Vec<u8>)>, DeviceError> {
        if self.rx.wait(timeout)? { self.recv() } else { Ok(None) }
    }
}

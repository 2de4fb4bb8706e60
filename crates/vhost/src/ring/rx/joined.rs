//! Frames of which the receiver gets one: their payloads one behind the other.

use std::ptr::NonNull;

use butterfly_packet::checksum::Sum;

use crate::{
    net::NetHeader,
    ring::{
        delivery::Joined,
        frames::{Frames, HEAD_MAX},
        rx::{NotDelivered, RxRing},
        writer::Writer,
    },
};

impl RxRing {
    /// Delivers as one frame as many of these as are right, up to the first one that is not.
    /// Returns their number: with 0 nothing was delivered.
    ///
    /// Room for all of them is found before the first byte is written.
    #[inline(never)]
    pub fn deliver_joined<R, F>(
        &mut self,
        frames: &Frames<'_>,
        joined: Joined<R, F>,
    ) -> Result<usize, NotDelivered>
    where
        R: Fn(usize, Sum) -> bool,
        F: FnOnce(&mut [u8], usize, u32) -> NetHeader,
    {
        self.is_served()?;
        self.may_be_touched()?;
        let Joined { frames: range, from, bytes, is_right, finish } = joined;
        let header_len = self.vring.space.header_len;
        let front = (header_len + from) as u32;
        self.find_room(front.saturating_add(bytes))?;
        let mut writer = Writer::new(&self.pieces, &self.vring.door);
        writer.skip(front);
        let (mut count, mut written) = (0, 0);
        for index in range.clone() {
            let head = frames.head(index);
            let len = frames.frames().get(index).map_or(0, |frame| frame.len);
            let behind = (from.max(head.len())) as u32;
            let (Some(mine), Some(mut pieces)) = (
                head.get(from.min(head.len())..),
                len.checked_sub(behind).and_then(|left| frames.pieces(index, behind, left)),
            ) else {
                break;
            };
            // More than was asked for finds no room.
            let of_frame = len.saturating_sub(from as u32);
            if of_frame > bytes - written {
                break;
            }
            let mut sum = Sum::EMPTY;
            // SAFETY: a slice is mapped, and so are the pieces as long as the batch is not
            // released.
            unsafe {
                writer.mapped(NonNull::from(mine).cast(), mine.len() as u32, Some(&mut sum));
                while let Some((at, len)) = pieces.next() {
                    writer.mapped(at, len, Some(&mut sum));
                }
            }
            if !is_right(index, sum) {
                break;
            }
            count += 1;
            written += of_frame;
        }
        if count == 0 {
            return Ok(0);
        }
        let need = front + written;
        self.keep_chains(need);
        let mut private = [0u8; HEAD_MAX];
        let head = frames.head(range.start).get(..from).ok_or(NotDelivered::TooLarge)?;
        let private = private.get_mut(..from).ok_or(NotDelivered::TooLarge)?;
        private.copy_from_slice(head);
        let net = finish(private, count, written);
        let header = NetHeader { num_buffers: self.chains.len() as u16, ..net }.to_bytes();
        let mut writer = Writer::new(&self.pieces, &self.vring.door);
        writer.bytes(header.get(..header_len).unwrap_or_default());
        writer.bytes(private);
        self.use_up(need);
        Ok(count)
    }

    /// Keeps as many of the chains that were found as so many bytes need.
    fn keep_chains(&mut self, need: u32) {
        let mut left = need;
        let needed = self.chains.iter().take_while(|chain| {
            let is_needed = left > 0;
            left = left.saturating_sub(chain.capacity);
            is_needed
        });
        let needed = needed.count();
        self.chains.truncate(needed);
    }
}

//! Frames over any number of buffers, and frames that are changed on their way.

use butterfly_packet::checksum::Sum;
use butterfly_point::{Point, pass};

use crate::{
    net::NetHeader,
    ring::{
        delivery::{Delivery, Finish},
        frames::{Frames, HEAD_MAX},
        front::OUTER_MAX,
        rx::{NotDelivered, RxRing},
        touches,
        writer::Writer,
    },
};

impl RxRing {
    /// Does the same as [`Self::deliver_run`], for one frame, with any number of buffers.
    ///
    /// Finds room for the complete frame before it writes the first byte. Never waits: the guest's
    /// index is looked at once more before a frame is refused as [`NotDelivered::Full`].
    #[inline(never)]
    pub fn deliver_one(&mut self, frames: &Frames<'_>, index: usize) -> Result<(), NotDelivered> {
        let head = frames.head(index);
        let len = frames.frames().get(index).map_or(0, |frame| frame.len);
        let from = head.len() as u32;
        let delivery = Delivery {
            net: NetHeader::default(),
            head,
            frame: index,
            from,
            len: len.saturating_sub(from),
            finish: Finish::Nothing,
        };
        self.deliver(frames, &delivery)
    }

    /// Writes a frame of our own.
    pub fn deliver_own(&mut self, frame: &[u8]) -> Result<(), NotDelivered> {
        self.is_served()?;
        self.may_be_touched()?;
        let need = (self.vring.space.header_len + frame.len()) as u32;
        self.find_room(need)?;
        let header =
            NetHeader { num_buffers: self.chains.len() as u16, ..NetHeader::default() }.to_bytes();
        let header = header.get(..self.vring.space.header_len).unwrap_or_default();
        let mut writer = Writer::new(&self.pieces, &self.vring.door);
        writer.bytes(header);
        writer.bytes(frame);
        self.use_up(need);
        Ok(())
    }

    /// The chains that were found hold `need` bytes now.
    #[inline(always)]
    pub(super) fn use_up(&mut self, need: u32) {
        let mut left = need;
        pass(Point::RxWritten);
        let last = self.chains.len().saturating_sub(1);
        for (n, chain) in self.chains.iter().enumerate() {
            let len = left.min(chain.capacity);
            left -= len;
            self.vring.push_part(chain.id, len, n < last);
            pass(Point::RxEntry);
        }
        self.consume(self.chains.len() as u16);
    }

    /// Does the same as [`Self::deliver_one`], for a frame that is changed on its way.
    pub fn deliver(
        &mut self,
        frames: &Frames<'_>,
        delivery: &Delivery<'_>,
    ) -> Result<(), NotDelivered> {
        self.is_served()?;
        self.may_be_touched()?;
        let need = self.vring.space.header_len as u32 + delivery.head.len() as u32 + delivery.len;
        self.deliver_spread(frames, delivery, need)
    }

    /// Checks that the guest's memory may be touched now.
    #[inline(always)]
    pub(super) fn may_be_touched(&self) -> Result<(), NotDelivered> {
        if touches::metering() {
            touches::enter(&self.vring.touches);
            if touches::rests(&self.vring.touches) {
                return Err(NotDelivered::Resting);
            }
        }
        Ok(())
    }

    /// A frame that needs several descriptors or buffers, or whose checksum is to be computed.
    #[inline(never)]
    fn deliver_spread(
        &mut self,
        frames: &Frames<'_>,
        delivery: &Delivery<'_>,
        need: u32,
    ) -> Result<(), NotDelivered> {
        self.find_room(need)?;
        let mut finished;
        let mut head = delivery.head;
        let header = NetHeader { num_buffers: self.chains.len() as u16, ..delivery.net }.to_bytes();
        let header = header.get(..self.vring.space.header_len).unwrap_or_default();

        // The rest first, because the checksum, which covers it, stands in the head.
        let mut sum = Sum::EMPTY;
        let mut writer = Writer::new(&self.pieces, &self.vring.door);
        writer.skip((header.len() + head.len()) as u32);
        let mut source = frames
            .pieces(delivery.frame, delivery.from, delivery.len)
            .ok_or(NotDelivered::BadChain)?;
        while let Some((from, len)) = source.next() {
            // SAFETY: mapped as long as the batch is not released.
            unsafe {
                writer.mapped(
                    from,
                    len,
                    if delivery.finish == Finish::Nothing { None } else { Some(&mut sum) },
                )
            };
        }
        if delivery.finish != Finish::Nothing {
            finished = [0u8; OUTER_MAX + HEAD_MAX];
            let private = finished.get_mut(..head.len()).ok_or(NotDelivered::TooLarge)?;
            private.copy_from_slice(head);
            delivery.finish.complete(private, sum);
            head = private;
        }
        let mut writer = Writer::new(&self.pieces, &self.vring.door);
        writer.bytes(header);
        writer.bytes(head);
        self.use_up(need);
        Ok(())
    }
}

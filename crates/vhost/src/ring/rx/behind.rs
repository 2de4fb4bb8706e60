//! Frames behind a header of ours, for the uplink.

use std::ptr::NonNull;

use crate::{
    net::NetHeader,
    ring::{
        delivery::{Delivery, Finish},
        frames::{BATCH, Frames, HEAD_MAX},
        front::{FIELDS, Front, OUTER_MAX},
        rx::{NotDelivered, RxRing},
    },
};

impl RxRing {
    /// Writes a frame with a header in front of it, as it is otherwise, into the guest's next
    /// buffers.
    #[inline(always)]
    pub fn deliver_behind(
        &mut self,
        frames: &Frames<'_>,
        index: usize,
        front: &Front,
        fields: [u16; FIELDS],
    ) -> Result<(), NotDelivered> {
        let (Some(frame), Some(slot)) = (frames.frames.get(index), frames.slots.get(index)) else {
            return Err(NotDelivered::BadChain);
        };
        let header_len = self.vring.space.header_len;
        let at = self.vring.next_avail;
        let need = (header_len + front.len()) as u32 + frame.len;
        let ready = self.ready.get(usize::from(at) % BATCH).copied();
        let prepared = self.prepared != at;
        let Some(ready) = ready.filter(|ready| prepared && need <= ready.room.len()) else {
            return self.deliver_behind_spread(frames, index, front, fields);
        };
        let Some(mut store) = self.vring.door.store(&ready.room, need) else {
            return Err(NotDelivered::TooLarge);
        };
        let head_len = usize::from(frame.head_len).min(HEAD_MAX);
        if frame.len as usize > head_len {
            self.fetch(frames, index + 1, at.wrapping_add(1));
        }
        // SAFETY: as in deliver_run(); `front` is asked for, too.
        unsafe {
            store.empty_header(header_len);
            store.front(front, fields);
            store.mapped(NonNull::from(&slot.0).cast(), head_len as u32);
        }
        if frame.len as usize > head_len {
            let mut pieces = frames.pieces_of(frame, head_len as u32);
            while let Some((from, len)) = pieces.next() {
                // SAFETY: as in deliver_run().
                unsafe { store.mapped(from, len) };
            }
        }
        drop(store);
        self.vring.push_used(ready.id, need);
        self.vring.next_avail = at.wrapping_add(1);
        Ok(())
    }

    #[inline(never)]
    fn deliver_behind_spread(
        &mut self,
        frames: &Frames<'_>,
        index: usize,
        front: &Front,
        fields: [u16; FIELDS],
    ) -> Result<(), NotDelivered> {
        let mut outer = [0; OUTER_MAX];
        front.write(fields, &mut outer);
        let outer = outer.get(..front.len()).unwrap_or_default();
        let head = frames.head(index);
        let len = frames.frames().get(index).map_or(0, |frame| frame.len);
        let (mut both, at) = ([0u8; OUTER_MAX + HEAD_MAX], outer.len() + head.len());
        let both = both.get_mut(..at).ok_or(NotDelivered::TooLarge)?;
        both.get_mut(..outer.len()).ok_or(NotDelivered::TooLarge)?.copy_from_slice(outer);
        both.get_mut(outer.len()..).ok_or(NotDelivered::TooLarge)?.copy_from_slice(head);
        let from = head.len() as u32;
        let rest = len.saturating_sub(from);
        let net = NetHeader::default();
        self.deliver(
            frames,
            &Delivery { net, head: both, frame: index, from, len: rest, finish: Finish::Nothing },
        )
    }
}

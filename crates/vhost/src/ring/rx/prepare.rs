//! Buffers ahead: fetched, read and checked before frames are written.

use crate::ring::{
    copy::{self, LINE},
    door::Room,
    frames::{BATCH, Frames, HEAD},
    rx::{Ready, RxRing},
    touches,
};

/// Bytes of the next frame that are fetched ahead: a frame of the usual MTU.
const AHEAD: usize = 1536;

impl RxRing {
    /// Starts fetching the lines of the ring that the next `n` frames need.
    #[inline(always)]
    pub fn prefetch(&mut self, n: u16) {
        if !self.split.enabled {
            return;
        }
        if self.split.known() < n {
            let _ = self.split.available();
        }
        for ahead in (0..n.min(self.split.known()).min(BATCH as u16)).step_by(4) {
            self.split.prefetch_desc(self.split.head(ahead));
        }
        self.split.prefetch_used();
    }

    /// Reads and checks the next buffers, up to `n`, and fetches their first lines for writing.
    /// Without this, delivering does it.
    #[inline]
    pub fn prepare(&mut self, n: u16) {
        if self.split.broken || !self.split.enabled {
            return;
        }
        touches::enter(&self.split.touches);
        if touches::rests(&self.split.touches) {
            return self.forget_prepared();
        }
        let n = n.min(BATCH as u16);
        let have = self.prepared.wrapping_sub(self.split.next_avail);
        if have >= n {
            return;
        }
        if self.split.known() < n && self.split.available().is_none() {
            return;
        }
        let n = n.min(self.split.known());
        let mut window = self.split.window;
        for ahead in have..n {
            let id = self.split.head(ahead);
            let mut ready = Ready { room: Room::NONE, id };
            if let Some(desc) = self.split.desc(id)
                && desc.is_single_writable()
                && let Some(ptr) = self.split.whole(desc.addr, desc.len, &mut window)
            {
                // SAFETY: whole() found it mapped, in memory that `split` keeps.
                ready.room = unsafe { Room::new(ptr, desc.len, desc.addr) };
                let (header, frame) =
                    (ptr.as_ptr(), ptr.as_ptr().wrapping_add(self.split.header_len));
                if header.addr() / LINE == frame.addr() / LINE {
                    copy::prefetch_write(frame);
                    copy::prefetch_write(header.wrapping_add(LINE));
                } else {
                    // A header in a line of its own: usually it is there already and needs no
                    // store.
                    copy::prefetch_read(header);
                    copy::prefetch_write(frame);
                }
            }
            if let Some(slot) =
                self.ready.get_mut(usize::from(self.split.next_avail.wrapping_add(ahead)) % BATCH)
            {
                *slot = ready;
            }
        }
        self.split.window = window;
        self.prepared = self.split.next_avail.wrapping_add(n);
    }

    /// Starts fetching what a frame holds behind its head, and the buffer at a position for it,
    /// while another one is copied.
    #[inline(never)] // short frames need the registers
    pub(super) fn fetch(&self, frames: &Frames<'_>, index: usize, position: u16) {
        let (Some(frame), Some(ready)) =
            (frames.frames().get(index), self.ready.get(usize::from(position) % BATCH))
        else {
            return;
        };
        frames.prefetch(frame, AHEAD);
        ready.room.prefetch(HEAD, AHEAD.min(frame.len as usize));
    }

    /// Forgets buffers looked at in advance: they were translated by an old memory table.
    pub(crate) fn forget_prepared(&mut self) {
        self.prepared = self.split.next_avail;
    }
}

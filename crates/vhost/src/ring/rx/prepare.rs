//! Buffers ahead: fetched, read and checked before frames are written.

use std::ops::Range;

use crate::{
    memory::Window,
    ring::{
        copy::{self, LINE},
        door::Room,
        frames::{BATCH, Frames, HEAD},
        rx::{Ready, RxRing},
        space::Chains,
        touches,
        vring::{Layout, Vring},
    },
};

/// Bytes of the next frame that are fetched ahead: a frame of the usual MTU.
const AHEAD: usize = 1536;

impl RxRing {
    /// Starts fetching the lines of the ring that the next `n` frames need.
    #[inline(always)]
    pub fn prefetch(&mut self, n: u16) {
        if !self.vring.enabled {
            return;
        }
        if self.vring.known() < n {
            let _ = self.look();
        }
        self.vring.prefetch((0..n.min(self.vring.known()).min(BATCH as u16)).step_by(4));
    }

    /// Reads and checks the next buffers, up to `n`, and fetches their first lines for writing.
    /// Without this, delivering does it.
    #[inline]
    pub fn prepare(&mut self, n: u16) {
        if !self.vring.enabled {
            return;
        }
        touches::enter(&self.vring.touches);
        if touches::rests(&self.vring.touches) {
            return self.forget_prepared();
        }
        let n = n.min(BATCH as u16);
        let have = self.prepared.wrapping_sub(self.vring.next_avail);
        if have >= n {
            return;
        }
        if self.vring.known() < n && self.look().is_none() {
            return;
        }
        let n = n.min(self.vring.known());
        let (ring, ready) = (&self.vring, &mut *self.ready);
        let window = match &ring.layout {
            Layout::Split(split) => prepare_chains(ring, split, ready, have..n),
            Layout::Packed(packed) => prepare_chains(ring, &**packed, ready, have..n),
        };
        self.vring.window = window;
        self.prepared = self.vring.next_avail.wrapping_add(n);
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
        self.prepared = self.vring.next_avail;
    }
}

/// Reads and checks some of the next buffers of `ring`, whose layout `chains` is. Returns the
/// region of the last one.
#[inline(always)]
fn prepare_chains(
    ring: &Vring,
    chains: &impl Chains,
    slots: &mut [Ready; BATCH],
    ahead: Range<u16>,
) -> Window {
    let mut window = ring.window;
    for ahead in ahead {
        let number = ring.next_avail.wrapping_add(ahead);
        let id = chains.head(number);
        let mut ready = Ready { room: Room::NONE, id };
        if let Some(desc) = chains.first(id)
            && desc.is_single_writable()
            && let Some(ptr) = ring.space.whole(desc.addr, desc.len, &mut window)
        {
            // SAFETY: whole() found it mapped, in memory that `ring` keeps.
            ready.room = unsafe { Room::new(ptr, desc.len, desc.addr) };
            let (header, frame) = (ptr.as_ptr(), ptr.as_ptr().wrapping_add(ring.space.header_len));
            if header.addr() / LINE == frame.addr() / LINE {
                copy::prefetch_write(frame);
                copy::prefetch_write(header.wrapping_add(LINE));
            } else {
                // A header in a line of its own: usually it is there already and needs no store.
                copy::prefetch_read(header);
                copy::prefetch_write(frame);
            }
        }
        if let Some(slot) = slots.get_mut(usize::from(number) % BATCH) {
            *slot = ready;
        }
    }
    window
}

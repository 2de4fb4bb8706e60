//! Copies of frames that wait at a worker.

use butterfly_vhost::ring::Frames;

/// Longest frame that waits: a jumbo frame of 9,000 bytes, behind Ethernet and two VLAN tags.
pub(super) const LONGEST: usize = 9022;

/// Copies a frame, unless it is too long. The buffer has room for the longest. Its first bytes are
/// those of the slot, by which it was judged.
pub(super) fn copy(frames: &Frames<'_>, index: usize, to: &mut Vec<u8>) -> bool {
    let len = frames.frames().get(index).map_or(0, |frame| frame.len as usize);
    let head = frames.head(index);
    if len > LONGEST {
        return false;
    }
    to.clear();
    to.extend_from_slice(head);
    to.resize(len, 0); // within its capacity
    let rest = to.get_mut(head.len()..).unwrap_or_default();
    frames.copy_to(index, head.len() as u32, rest, None)
}

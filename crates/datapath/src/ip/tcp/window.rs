//! Windows: whether a segment is inside, of the past, or of no such connection.

use butterfly_packet::tcp::{ACK, SYN};

use crate::ip::tcp::{
    segment::{MAX_SCALE, Segment},
    track::Side,
};

/// WindowPlace of a segment relative to the window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowPlace {
    Inside,
    /// Of this connection, but of the past: behind the window, within the widest one that there can
    /// have been.
    Past,
    Outside,
}

/// Places a segment by RFC 9293, 3.10.7.4, and RFC 5961, 5.2, as seen from between the hosts.
#[inline(always)]
pub(super) fn place(sender: &Side, receiver: &Side, segment: &Segment) -> WindowPlace {
    let sent = stretch(sender.end, receiver.allow, receiver, segment.end());
    if !segment.has(ACK) {
        return sent;
    }
    match (sent, stretch(sender.acked, receiver.end, sender, segment.acknowledgement)) {
        (WindowPlace::Inside, acknowledged) => acknowledged,
        (WindowPlace::Past, WindowPlace::Outside) | (WindowPlace::Outside, _) => {
            WindowPlace::Outside
        }
        (WindowPlace::Past, _) => WindowPlace::Past,
    }
}

/// Places a number that may be behind `mark` by the reach of `window`, and ahead of `limit` by its
/// lag. Measures from the lowest such number, so that numbers half the range away do not count as
/// near.
#[inline(always)]
fn stretch(mark: u32, limit: u32, window: &Side, number: u32) -> WindowPlace {
    let (reach, widest) = (window.reach(), window.widest());
    let lowest = mark.wrapping_sub(widest);
    let position = number.wrapping_sub(lowest);
    if position > limit.wrapping_add(window.lag()).wrapping_sub(lowest) {
        WindowPlace::Outside
    } else if position < widest.saturating_sub(reach) {
        WindowPlace::Past
    } else {
        WindowPlace::Inside
    }
}

/// RFC 7323, 2.2: a window in a SYN is never scaled.
#[inline(always)]
pub(super) fn window(segment: &Segment, sender: &Side) -> u32 {
    let scaled = !segment.has(SYN) && sender.scale <= MAX_SCALE;
    u32::from(segment.window) << if scaled { sender.scale } else { 0 }
}

//! Tracks: records of connections, and their two sides.

use crate::ip::tcp::{
    segment::MAX_SCALE,
    serial::{ahead, later},
};

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub(crate) enum TcpState {
    /// SYN seen, not answered.
    #[default]
    New = 0,
    /// Answered; the answer is not acknowledged.
    SynReceived = 1,
    /// Picked up from its middle; the other side has not confirmed the connection yet.
    PickedUp = 2,
    Established = 3,
    /// One side sent FIN.
    HalfClosed = 4,
    /// Both sides sent FIN; not both are acknowledged.
    Closing = 5,
    /// Both FINs are acknowledged.
    TimeWait = 6,
    /// Reset.
    Closed = 7,
    /// Taken back by a change of policy. Nothing passes by it, and while it is remembered it is not
    /// picked up from its middle.
    Cut = 8,
}

/// Record of a connection. Index 0 is the opener's side, 1 the other's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Track {
    pub state: TcpState,
    /// Bits of the sides whose last sequence number is a FIN, and [`ADRIFT`].
    pub fins: u8,
    /// Window scales: [`UNKNOWN`] until both SYNs were seen, then the ones that apply (0 unless
    /// both sides offered one).
    pub scale: [u8; 2],
    /// Sequence number behind the highest that each side sent.
    pub end: [u32; 2],
    /// Highest acknowledgement plus scaled window of each side: the limit for the other side. In
    /// state New, the opener's bare window, since there is no acknowledgement yet.
    pub allow: [u32; 2],
    /// Highest acknowledgement that each side sent.
    pub acked: [u32; 2],
}

/// In `fins`: the marks came from another host and may be out of date. The first segment that fits
/// them, or sets them anew, takes it away.
pub(crate) const ADRIFT: u8 = 4;

/// A window scale that was not offered, or not seen.
pub(crate) const UNKNOWN: u8 = 0xff;

impl Track {
    /// Returns whether a connection can have such a record.
    pub fn is_possible(&self) -> bool {
        self.fins & !ADRIFT <= 3
            && self.scale.iter().all(|scale| *scale <= MAX_SCALE || *scale == UNKNOWN)
    }
}

impl Track {
    /// Returns the sides as sender and receiver of a segment in this direction.
    #[inline(always)]
    pub(super) const fn sides(&self, direction: usize) -> (Side, Side) {
        let Track {
            fins,
            scale: [scale0, scale1],
            end: [end0, end1],
            allow: [allow0, allow1],
            acked: [acked0, acked1],
            ..
        } = *self;
        let opener =
            Side { fin: fins & 1 != 0, scale: scale0, end: end0, allow: allow0, acked: acked0 };
        let other =
            Side { fin: fins & 2 != 0, scale: scale1, end: end1, allow: allow1, acked: acked1 };
        if direction == 0 { (opener, other) } else { (other, opener) }
    }

    #[inline(always)]
    pub(super) const fn from_sides(
        state: TcpState,
        direction: usize,
        sender: Side,
        receiver: Side,
    ) -> Track {
        let (a, b) = if direction == 0 { (sender, receiver) } else { (receiver, sender) };
        Track {
            state,
            fins: a.fin as u8 | (b.fin as u8) << 1,
            scale: [a.scale, b.scale],
            end: [a.end, b.end],
            allow: [a.allow, b.allow],
            acked: [a.acked, b.acked],
        }
    }

    /// Returns it with what segments of one direction changed in a copy, while it may have changed
    /// otherwise. Both are of a connection that is established, or was, and not adrift: marks only
    /// grow, states only climb, and a segment changes no mark of the other direction.
    #[inline(always)]
    pub(crate) fn merged(&self, direction: usize, copy: &Track) -> Track {
        let (mut own, other) = self.sides(direction);
        let (copied, _) = copy.sides(direction);
        own.fin = match ahead(copied.end, own.end) {
            1.. => copied.fin,
            0 => copied.fin || own.fin,
            _ => own.fin,
        };
        own.end = later(copied.end, own.end);
        own.allow = later(copied.allow, own.allow);
        own.acked = later(copied.acked, own.acked);
        let state = self.state.max(copy.state);
        let state = if own.fin && other.fin { state.max(reached(&own, &other)) } else { state };
        Track::from_sides(state, direction, own, other)
    }

    /// Returns whether its marks may be out of date: see [`ADRIFT`].
    pub const fn is_adrift(&self) -> bool {
        self.fins & ADRIFT != 0
    }
}

/// One side of a [`Track`].
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub(super) fin: bool,
    pub(super) scale: u8,
    pub(super) end: u32,
    pub(super) allow: u32,
    pub(super) acked: u32,
}

/// Returns the state of an established connection with these sides.
pub(super) const fn reached(one: &Side, other: &Side) -> TcpState {
    match (one.fin, other.fin) {
        (false, false) => TcpState::Established,
        (true, true) if ahead(one.acked, other.end) >= 0 && ahead(other.acked, one.end) >= 0 => {
            TcpState::TimeWait
        }
        (true, true) => TcpState::Closing,
        _ => TcpState::HalfClosed,
    }
}

/// Least distance that a segment may be behind (as in netfilter): the largest window without
/// scaling, and a little.
pub(super) const MIN_REACH: u32 = 66_000;
/// The largest window with scaling.
const MAX_REACH: u32 = 0xffff << MAX_SCALE;

impl Side {
    /// Returns the side's open window, at least [`MIN_REACH`], at most [`Self::widest`].
    #[inline(always)]
    pub(super) fn reach(&self) -> u32 {
        match ahead(self.allow, self.acked) {
            _ if self.scale == UNKNOWN => MAX_REACH,
            open if open > MIN_REACH as i32 => self.widest().min(open as u32),
            _ => MIN_REACH,
        }
    }

    /// Returns the largest window that the side can ever have had open.
    #[inline(always)]
    pub(super) fn widest(&self) -> u32 {
        let shift = self.scale.min(MAX_SCALE);
        (0xffff_u32 << shift).clamp(MIN_REACH, MAX_REACH)
    }

    /// Returns how far its marks may be behind the truth. The session table need not store every
    /// small step, and the rest of a first fragment is not counted. It is also room for window
    /// probes.
    #[inline(always)]
    pub(super) fn lag(&self) -> u32 {
        self.reach() / 4
    }
}

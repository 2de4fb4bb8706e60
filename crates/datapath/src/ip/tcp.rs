//! TCP: checks whether a segment fits its connection, and how it changes it.
//!
//! Between two hosts the switch sees sent segments, not received ones. So the checks are those of a
//! receiver with slack (RFC 9293, 3.10.7; van Rooij, "Real stateful TCP packet filtering in IP
//! Filter"). Segments of an attacker who sees nothing end nothing and keep nothing alive: the
//! attacker would have to guess a sequence number, exactly for a reset (RFC 5961).
//!
//! A segment that the receiver would only acknowledge and otherwise ignore passes without effect,
//! since connections recover by those answers (RFC 9293, 3.5.1).

mod segment;
mod serial;
mod track;
mod window;

use crate::ip::tcp::{
    segment::MAX_SCALE,
    serial::{ahead, between},
    track::{MIN_REACH, Side, reached},
    window::{WindowPlace, place, window},
};

pub(crate) use butterfly_packet::tcp::{ACK, FIN, RST, SYN};
pub(crate) use segment::Segment;
pub(crate) use serial::later;
pub(crate) use track::{ADRIFT, TcpState, Track, UNKNOWN};

/// Outcome of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It fits, passes, and keeps the record alive.
    Pass,
    /// Passes, and changes nothing.
    PassUnrefreshed,
    /// Not of this connection.
    Refuse,
    /// A SYN for a new connection between the same ends after the old one is over. It is decided as
    /// a first packet.
    Reopen,
    /// A SYN of the side that did not open, while the connection is alive. It passes if the rules
    /// would admit it as the first of a connection. It changes nothing.
    Ask,
}

/// Makes a record for a segment that [`Segment::opens`].
pub(crate) fn open(segment: &Segment) -> Track {
    Track {
        state: TcpState::New,
        fins: 0,
        scale: [segment.scale.unwrap_or(UNKNOWN), UNKNOWN],
        end: [segment.end(), 0],
        allow: [segment.window.into(), 0],
        acked: [0, segment.sequence], // nothing; what the other side has to expect
    }
}

/// Makes a record for a segment that [`Segment::picks_up`] from the middle of a connection. Its
/// sender becomes the opener. Scales are not known, so windows are taken for larger than they will
/// be.
pub(crate) fn pick_up(segment: &Segment) -> Track {
    let fin = segment.has(FIN);
    Track {
        state: TcpState::PickedUp,
        fins: u8::from(fin),
        scale: [UNKNOWN; 2],
        end: [segment.end(), segment.acknowledgement],
        // The largest window the other side can have announced without scaling.
        allow: [
            segment.acknowledgement.wrapping_add(segment.window.into()),
            segment.end().wrapping_add(0xffff),
        ],
        acked: [segment.acknowledgement, segment.sequence],
    }
}

/// Returns the record of a connection that came from another host, with its marks set anew by a
/// segment from its middle. `None` if the segment cannot tell them, or if they are not out of date.
pub(crate) fn catch_up(track: &Track, direction: usize, segment: &Segment) -> Option<Track> {
    use TcpState::{Closing, Established, HalfClosed, PickedUp};
    let alive = matches!(track.state, PickedUp | Established | HalfClosed | Closing);
    if !track.is_adrift() || !alive || segment.flags & (SYN | RST | ACK) != ACK {
        return None;
    }
    let (mut sender, mut receiver) = track.sides(direction);
    sender.end = segment.end();
    sender.fin = segment.has(FIN);
    sender.acked = segment.acknowledgement;
    sender.allow = segment.acknowledgement.wrapping_add(window(segment, &sender));
    receiver.end = segment.acknowledgement;
    receiver.acked = segment.sequence;
    receiver.allow = segment.end().wrapping_add(receiver.widest());
    Some(Track::from_sides(track.state, direction, sender, receiver))
}

/// Returns a segment's effect on its connection. `direction` is 0 from the opener, 1 from the other
/// side. The caller keeps the returned track, unless the outcome is [`Outcome::Reopen`].
#[inline(always)]
pub(crate) fn step(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    match in_line(&track, direction, segment) {
        Some(next) => (next, Outcome::Pass),
        None => any_step(track, direction, segment),
    }
}

const CONTROLS: u8 = SYN | RST | FIN | ACK;

/// Decides the commonest segments: of an established connection, no further ahead than allowed and
/// not far behind. Agrees with [`any_step`], and is faster. All else is `None`.
#[inline(always)]
pub(crate) fn in_line(track: &Track, direction: usize, segment: &Segment) -> Option<Track> {
    if track.state != TcpState::Established || track.fins != 0 || segment.flags & CONTROLS != ACK {
        return None;
    }
    let Track { scale: [s0, s1], end: [e0, e1], allow: [l0, l1], acked: [a0, a1], .. } = *track;
    let (scale, end, allow, acked) =
        if direction == 0 { (s0, e0, l0, a0) } else { (s1, e1, l1, a1) };
    let (other_end, other_allow) = if direction == 0 { (e1, l1) } else { (e0, l0) };
    let near = |mark: u32, limit: u32, number: u32| {
        let lowest = mark.wrapping_sub(MIN_REACH);
        let room = limit.wrapping_sub(lowest);
        room <= i32::MAX as u32 && number.wrapping_sub(lowest) <= room
    };
    if !near(end, other_allow, segment.end()) || !near(acked, other_end, segment.acknowledgement) {
        return None;
    }
    let shift = if scale <= MAX_SCALE { scale } else { 0 };
    let allowed = segment.acknowledgement.wrapping_add(u32::from(segment.window) << shift);
    let (end, allow, acked) =
        (later(segment.end(), end), later(allowed, allow), later(segment.acknowledgement, acked));
    let mut next = *track;
    if direction == 0 {
        (next.end, next.allow, next.acked) = ([end, e1], [allow, l1], [acked, a1]);
    } else {
        (next.end, next.allow, next.acked) = ([e0, end], [l0, allow], [a0, acked]);
    }
    Some(next)
}

#[inline(never)] // not what most segments need
fn any_step(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    match (segment.flags & CONTROLS, track.state) {
        (SYN, TcpState::Cut) => (track, Outcome::Reopen),
        (_, TcpState::Cut) => (track, Outcome::Refuse),
        (ACK | FIN_ACK | SYN_ACK, TcpState::New) => answer(track, direction, segment),
        (ACK | FIN_ACK, _) => proceed(track, direction, segment),
        (SYN, _) => synchronise(track, direction, segment),
        (SYN_ACK, _) => answer_again(track, direction, segment),
        (flags, _) if flags & RST != 0 && flags & SYN == 0 => reset(track, direction, segment),
        _ => (track, Outcome::Refuse), // no segment of TCP: RFC 9293, 3.10.7
    }
}

const FIN_ACK: u8 = FIN | ACK;
const SYN_ACK: u8 = SYN | ACK;

/// Takes a segment with ACK of a connection whose two ends are known.
fn proceed(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    let (mut sender, mut receiver) = track.sides(direction);
    match place(&sender, &receiver, segment) {
        WindowPlace::Inside if track.state != TcpState::Closed => {}
        WindowPlace::Outside => {
            let other_answer = track.state == TcpState::SynReceived
                && direction == 0
                && !segment.has(SYN)
                && between(receiver.acked, segment.sequence, sender.end);
            if !other_answer {
                return (track, Outcome::Refuse);
            }
            // The opener took another SYN+ACK than the one seen last (a listener with SYN cookies
            // changes its number). The opener knows best: its own number is exact.
            receiver.end = segment.acknowledgement;
            sender.acked = segment.acknowledgement;
            sender.allow = segment.acknowledgement;
        }
        _ => return (track, Outcome::PassUnrefreshed),
    }
    let (end, acknowledgement) = (segment.end(), segment.acknowledgement);
    // Only an acknowledgement of the SYN ends the handshake, not one from somewhere inside the
    // window.
    let established = match track.state {
        TcpState::SynReceived => {
            !segment.has(SYN) && between(sender.acked, acknowledgement, receiver.end)
        }
        TcpState::PickedUp => !segment.has(SYN) && direction == 1,
        _ => true,
    };
    if ahead(end, sender.end) >= 0 {
        // Nothing comes behind a FIN. If something does, the FIN was not this side's.
        sender.fin = segment.has(FIN) || sender.fin && end == sender.end;
        sender.end = end;
    }
    sender.acked = later(acknowledgement, sender.acked);
    sender.allow = later(acknowledgement.wrapping_add(window(segment, &sender)), sender.allow);
    let reached = if established { reached(&sender, &receiver) } else { track.state };
    (Track::from_sides(reached.max(track.state), direction, sender, receiver), Outcome::Pass)
}

/// Takes a SYN without ACK.
#[cold]
fn synchronise(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    let (mut sender, receiver) = track.sides(direction);
    match track.state {
        TcpState::TimeWait | TcpState::Closed => (track, Outcome::Reopen),
        TcpState::New if direction == 0 => {
            if segment.sequence != receiver.acked {
                return (track, Outcome::Reopen); // the opener gave up and tries anew
            }
            sender.end = later(segment.end(), sender.end);
            sender.allow = sender.allow.max(segment.window.into());
            // The last repetitions may leave options out. The answer shows which of them it
            // answers.
            sender.scale = sender.scale.min(segment.scale.unwrap_or(UNKNOWN));
            (Track::from_sides(track.state, direction, sender, receiver), Outcome::Pass)
        }
        // RFC 9293, figure 8: both open.
        TcpState::New => (answered(&track, segment, receiver.end), Outcome::Pass),
        TcpState::SynReceived if segment.sequence.wrapping_add(1) == receiver.acked => {
            (track, Outcome::Pass)
        } // again
        // A host that starts over while the other end knows better gets an acknowledgement, and
        // resets it (RFC 9293, 3.5.1). But a host that forgot the connection and listens takes it
        // for a first SYN, and the connection was admitted for its opener only.
        _ if direction == 0 => (track, Outcome::PassUnrefreshed),
        _ => (track, Outcome::Ask),
    }
}

/// Returns the track after the other side's SYN, which expects `acknowledgement` next from the
/// opener.
fn answered(track: &Track, segment: &Segment, acknowledgement: u32) -> Track {
    let (mut opener, mut other) = track.sides(0);
    let expected = segment.sequence.wrapping_add(1);
    let bare = if track.state == TcpState::New {
        opener.allow
    } else {
        opener.allow.wrapping_sub(opener.acked)
    };
    opener.allow = expected.wrapping_add(bare);
    opener.acked = expected;
    other.end = segment.end();
    other.allow = acknowledgement.wrapping_add(segment.window.into());
    other.acked = acknowledgement;
    (opener.scale, other.scale) = match (track.state, segment.scale) {
        (TcpState::New, Some(scale)) if opener.scale != UNKNOWN => (opener.scale, scale),
        (TcpState::New, _) => (0, 0),
        _ => (opener.scale, other.scale),
    };
    Track::from_sides(TcpState::SynReceived, 0, opener, other)
}

/// Takes a segment with ACK while only the opener's SYN is known.
fn answer(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    let (other, opener) = track.sides(1);
    let acknowledgement = segment.acknowledgement;
    let acceptable = between(other.acked.wrapping_add(1), acknowledgement, opener.end);
    match direction {
        0 => (track, Outcome::Refuse),
        _ if segment.has(SYN) && acceptable => {
            (answered(&track, segment, acknowledgement), Outcome::Pass)
        }
        _ if segment.has(SYN) => (track, Outcome::Refuse),
        // The other end still has an older connection and says so; the opener will reset it (RFC
        // 9293, figure 9).
        _ if segment.length == 0 => (track, Outcome::PassUnrefreshed),
        _ => (track, Outcome::Refuse),
    }
}

/// Takes a SYN+ACK when both ends are known: a repetition, or a simultaneous open.
#[cold]
fn answer_again(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    let (sender, receiver) = track.sides(direction);
    let differs = segment.sequence.wrapping_add(1) != receiver.acked;
    let acknowledgement = segment.acknowledgement;
    if track.state == TcpState::SynReceived
        && direction == 1
        && differs
        && (acknowledgement == sender.acked || acknowledgement == receiver.end)
        // An answer acknowledges nothing that was not sent, whatever the side that answers
        // acknowledged since (RFC 9293, 3.10.7.3).
        && ahead(acknowledgement, receiver.end) <= 0
    {
        return (answered(&track, segment, acknowledgement), Outcome::Pass); // see `proceed`
    }
    proceed(track, direction, segment)
}

/// Takes a RST. It ends the record if its number is exactly the one that the other side waits for,
/// or exactly behind the last one that its sender sent. Either is equally hard to guess, and the
/// second aborts a connection with data under way.
#[cold]
fn reset(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    let (sender, receiver) = track.sides(direction);
    let closed = Track { state: TcpState::Closed, ..track };
    let acknowledges_syn =
        |low: u32| segment.has(ACK) && between(low, segment.acknowledgement, receiver.end);
    match track.state {
        // Resets an older connection of the other end: see `answer`.
        TcpState::New if direction == 0 => (track, Outcome::PassUnrefreshed),
        TcpState::New if acknowledges_syn(sender.acked.wrapping_add(1)) => (closed, Outcome::Pass),
        TcpState::New => (track, Outcome::Refuse),
        // A refusal of a repeated SYN, which has no number of its own.
        TcpState::SynReceived
            if direction == 1 && segment.sequence == 0 && acknowledges_syn(sender.acked) =>
        {
            (track, Outcome::PassUnrefreshed)
        }
        TcpState::Closed => within(track, &sender, &receiver, segment),
        _ if segment.sequence == receiver.acked || segment.sequence == sender.end => {
            (closed, Outcome::Pass)
        }
        _ => within(track, &sender, &receiver, segment),
    }
}

fn within(track: Track, sender: &Side, receiver: &Side, segment: &Segment) -> (Track, Outcome) {
    // The acknowledgement is not checked: a host that does not know a connection resets with any
    // number.
    match place(sender, receiver, &Segment { flags: RST, ..*segment }) {
        WindowPlace::Outside => (track, Outcome::Refuse),
        _ => (track, Outcome::PassUnrefreshed),
    }
}

/// Returns whether a sequence number that an ICMP error quotes is one that the side `direction` has
/// under way (RFC 5927, 4.1).
pub(crate) fn quoted_in_window(track: &Track, direction: usize, sequence: u32) -> bool {
    let (sender, receiver) = track.sides(direction);
    if track.state == TcpState::New {
        return direction == 0 && sequence == receiver.acked;
    }
    let (low, high) =
        (receiver.acked.wrapping_sub(receiver.reach()), sender.end.wrapping_add(receiver.lag()));
    between(low, sequence, high)
}

#[cfg(test)]
mod tests;

//! TCP: checks whether a segment fits its connection, and how it changes it.
//!
//! Between two hosts the switch sees sent segments, not received ones. So the checks are those of a
//! receiver with slack (RFC 9293, 3.10.7; van Rooij, "Real stateful TCP packet filtering in IP
//! Filter"). Segments of an attacker who sees nothing end nothing and keep nothing alive: the
//! attacker would have to guess a sequence number, exactly for a reset (RFC 5961).
//!
//! A segment that the receiver would only acknowledge and otherwise ignore passes without effect,
//! since connections recover by those answers (RFC 9293, 3.5.1).

pub(crate) use butterfly_packet::tcp::{ACK, FIN, RST, SYN};
use butterfly_packet::tcp::{Options, Tcp};

/// A segment's numbers. Serial ones are compared modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub sequence: u32,
    /// Acknowledged sequence number; meaningless without [`ACK`].
    pub acknowledgement: u32,
    /// Window, not scaled.
    pub window: u16,
    /// Number of its sequence numbers: its payload, and one for SYN and FIN each. For a first
    /// fragment, the payload that it holds.
    pub length: u32,
    pub flags: u8,
    /// Window scale in its SYN, at most 14.
    pub scale: Option<u8>,
}

/// RFC 7323, 2.3.
const MAX_SCALE: u8 = 14;

impl Segment {
    /// Makes a segment from a header and the length of the payload behind it.
    #[inline]
    pub fn new(header: &Tcp<'_>, payload: u32) -> Segment {
        let flags = header.flags();
        let controls = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        let scale = if flags & SYN == 0 { None } else { window_scale(header) };
        Segment {
            sequence: header.sequence(),
            acknowledgement: header.acknowledgement(),
            window: header.window(),
            length: payload + controls,
            flags,
            scale,
        }
    }

    #[inline(always)]
    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the sequence number behind it.
    #[inline(always)]
    const fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.length)
    }

    /// Returns whether it opens a connection: SYN, and none of the flags that contradict it.
    #[inline]
    pub const fn opens(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }

    /// Returns whether [`pick_up`] can make a record of it: part of a live connection. An answer to
    /// a SYN does not count, because its opener is known and will try again.
    #[inline]
    pub const fn picks_up(&self) -> bool {
        self.flags & (ACK | RST | SYN) == ACK
    }
}

fn window_scale(header: &Tcp<'_>) -> Option<u8> {
    let (_, value) = header.options().find(|(kind, _)| *kind == Options::WINDOW_SCALE)?;
    match *value {
        [scale] => Some(scale.min(MAX_SCALE)),
        _ => None,
    }
}

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
    /// Bits of the sides whose last sequence number is a FIN.
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

/// A window scale that was not offered, or not seen.
pub(crate) const UNKNOWN: u8 = 0xff;

impl Track {
    /// Returns whether a connection can have such a record.
    pub fn is_possible(&self) -> bool {
        self.fins <= 3 && self.scale.iter().all(|scale| *scale <= MAX_SCALE || *scale == UNKNOWN)
    }
}

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

impl Track {
    /// Returns the sides as sender and receiver of a segment in this direction.
    #[inline(always)]
    const fn sides(&self, direction: usize) -> (Side, Side) {
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
    const fn from_sides(state: TcpState, direction: usize, sender: Side, receiver: Side) -> Track {
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
}

/// One side of a [`Track`].
#[derive(Clone, Copy)]
struct Side {
    fin: bool,
    scale: u8,
    end: u32,
    allow: u32,
    acked: u32,
}

/// Least distance that a segment may be behind (as in netfilter): the largest window without
/// scaling, and a little.
const MIN_REACH: u32 = 66_000;
/// The largest window with scaling.
const MAX_REACH: u32 = 0xffff << MAX_SCALE;

impl Side {
    /// Returns the side's open window, at least [`MIN_REACH`], at most [`Self::widest`].
    #[inline(always)]
    fn reach(&self) -> u32 {
        match ahead(self.allow, self.acked) {
            _ if self.scale == UNKNOWN => MAX_REACH,
            open if open > MIN_REACH as i32 => self.widest().min(open as u32),
            _ => MIN_REACH,
        }
    }

    /// Returns the largest window that the side can ever have had open.
    #[inline(always)]
    fn widest(&self) -> u32 {
        let shift = self.scale.min(MAX_SCALE);
        (0xffff_u32 << shift).clamp(MIN_REACH, MAX_REACH)
    }

    /// Returns how far its marks may be behind the truth. The session table need not store every
    /// small step, and the rest of a first fragment is not counted. It is also room for window
    /// probes.
    #[inline(always)]
    fn lag(&self) -> u32 {
        self.reach() / 4
    }
}

/// Returns how far `a` is ahead of `b` in serial arithmetic; negative if behind.
#[inline(always)]
const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

#[inline(always)]
const fn later(a: u32, b: u32) -> u32 {
    if ahead(a, b) > 0 { a } else { b }
}

/// Returns whether `value` is from `low` to `high`, both included.
#[inline(always)]
const fn between(low: u32, value: u32, high: u32) -> bool {
    value.wrapping_sub(low) <= high.wrapping_sub(low) && ahead(high, low) >= 0
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
/// not far behind. Agrees with [`any_step`], and is faster.
#[inline(always)]
fn in_line(track: &Track, direction: usize, segment: &Segment) -> Option<Track> {
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

/// Place of a segment relative to the window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    /// Of this connection, but of the past: behind the window, within the widest one that there can
    /// have been.
    Past,
    Outside,
}

/// Places a segment by RFC 9293, 3.10.7.4, and RFC 5961, 5.2, as seen from between the hosts.
#[inline(always)]
fn place(sender: &Side, receiver: &Side, segment: &Segment) -> Place {
    let sent = stretch(sender.end, receiver.allow, receiver, segment.end());
    if !segment.has(ACK) {
        return sent;
    }
    match (sent, stretch(sender.acked, receiver.end, sender, segment.acknowledgement)) {
        (Place::Inside, acknowledged) => acknowledged,
        (Place::Past, Place::Outside) | (Place::Outside, _) => Place::Outside,
        (Place::Past, _) => Place::Past,
    }
}

/// Places a number that may be behind `mark` by the reach of `window`, and ahead of `limit` by its
/// lag. Measures from the lowest such number, so that numbers half the range away do not count as
/// near.
#[inline(always)]
fn stretch(mark: u32, limit: u32, window: &Side, number: u32) -> Place {
    let (reach, widest) = (window.reach(), window.widest());
    let lowest = mark.wrapping_sub(widest);
    let position = number.wrapping_sub(lowest);
    if position > limit.wrapping_add(window.lag()).wrapping_sub(lowest) {
        Place::Outside
    } else if position < widest.saturating_sub(reach) {
        Place::Past
    } else {
        Place::Inside
    }
}

/// Takes a segment with ACK of a connection whose two ends are known.
fn proceed(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    let (mut sender, mut receiver) = track.sides(direction);
    match place(&sender, &receiver, segment) {
        Place::Inside if track.state != TcpState::Closed => {}
        Place::Outside => {
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
    let reached = match (sender.fin, receiver.fin) {
        _ if !established => track.state,
        (false, false) => TcpState::Established,
        (true, true)
            if ahead(sender.acked, receiver.end) >= 0 && ahead(receiver.acked, sender.end) >= 0 =>
        {
            TcpState::TimeWait
        }
        (true, true) => TcpState::Closing,
        _ => TcpState::HalfClosed,
    };
    (Track::from_sides(reached.max(track.state), direction, sender, receiver), Outcome::Pass)
}

/// RFC 7323, 2.2: a window in a SYN is never scaled.
#[inline(always)]
fn window(segment: &Segment, sender: &Side) -> u32 {
    let scaled = !segment.has(SYN) && sender.scale <= MAX_SCALE;
    u32::from(segment.window) << if scaled { sender.scale } else { 0 }
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
        Place::Outside => (track, Outcome::Refuse),
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

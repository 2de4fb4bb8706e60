//! TCP: whether a segment fits its connection, and what it changes.
//!
//! Between two hosts one sees what was sent, not what was received, so the checks are those of a
//! receiver with slack (RFC 9293, 3.10.7; van Rooij, "Real stateful TCP packet filtering in IP
//! Filter"). What an attacker who sees nothing may send ends nothing and keeps nothing alive: it
//! would have to guess a sequence number, exactly for a reset (RFC 5961). A segment the receiver
//! would answer with an acknowledgement and otherwise ignore passes without effect, since
//! connections recover by those answers (RFC 9293, 3.5.1).

pub(crate) use butterfly_packet::tcp::{ACK, FIN, RST, SYN};
use butterfly_packet::tcp::{Options, Tcp};

/// A segment's numbers. Serial ones are compared modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub sequence: u32,
    /// Means nothing without [`ACK`].
    pub acknowledgement: u32,
    /// Not scaled.
    pub window: u16,
    /// Sequence numbers it takes: payload, and one for SYN and FIN each. Of a first fragment, what
    /// that fragment holds.
    pub length: u32,
    pub flags: u8,
    /// Window scale its SYN offers, at most 14.
    pub scale: Option<u8>,
}

/// RFC 7323, 2.3.
const MAX_SCALE: u8 = 14;

impl Segment {
    /// From a header and how many bytes of payload follow it.
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

    /// Sequence number behind it.
    #[inline(always)]
    const fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.length)
    }

    /// Whether it opens a connection: SYN, and none of the flags that contradict it.
    #[inline]
    pub const fn opens(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }

    /// Whether [`pick_up`] can make a record of it: part of a connection that is alive. Not the
    /// answer to a SYN: who opened is known then, and will try again.
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

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(u8)]
pub(crate) enum TcpState {
    /// SYN seen, not answered.
    #[default]
    New = 0,
    /// Answered; the answer is not acknowledged.
    SynReceived = 1,
    /// From the middle of a connection, and the other side has not said yet that there is one.
    PickedUp = 2,
    Established = 3,
    /// One side sent FIN.
    HalfClosed = 4,
    /// Both did; not both are acknowledged.
    Closing = 5,
    /// Both FINs are acknowledged.
    TimeWait = 6,
    /// Reset.
    Closed = 7,
    /// Taken back by a change of policy. Nothing passes by it, and while it is remembered it is not
    /// picked up from its middle.
    Cut = 8,
}

/// What is known of a connection. Index 0 is the opener's side, 1 the other's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Track {
    pub state: TcpState,
    /// Bit of each side that sent FIN, and nothing behind it.
    pub fins: u8,
    /// [`UNKNOWN`] until both SYNs were seen, then what applies (0 unless both offered).
    pub scale: [u8; 2],
    /// Behind the highest sequence number this side sent.
    pub end: [u32; 2],
    /// Highest acknowledgement and scaled window this side announced: where the other may send to.
    /// In state New, of the opener, the bare window, as there is nothing yet to add it to.
    pub allow: [u32; 2],
    /// Highest acknowledgement this side sent.
    pub acked: [u32; 2],
}

/// A window scale that was not offered, or not seen.
pub(crate) const UNKNOWN: u8 = 0xff;

impl Track {
    /// Whether this could be known of a connection.
    pub fn is_possible(&self) -> bool {
        self.fins <= 3 && self.scale.iter().all(|scale| *scale <= MAX_SCALE || *scale == UNKNOWN)
    }
}

/// What becomes of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It fits: passes, and keeps the record alive.
    Pass,
    /// Passes, and changes nothing.
    PassUnrefreshed,
    /// Is not of this connection.
    Refuse,
    /// A SYN for a new connection between the same ends, the old one being over: to be decided
    /// afresh.
    Reopen,
    /// A SYN of the side that did not open, while the connection is alive: what would admit it as
    /// the first of a connection may let it pass. It changes nothing.
    Ask,
}

impl Track {
    /// The sides as sender and receiver of a segment in this direction.
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

/// How far behind a segment may be at least (as netfilter has it): the largest window without
/// scaling, and a little.
const MIN_REACH: u32 = 66_000;
/// The largest window with scaling.
const MAX_REACH: u32 = 0xffff << MAX_SCALE;

impl Side {
    /// The window it has open, at least [`MIN_REACH`], at most [`Self::widest`].
    #[inline(always)]
    fn reach(&self) -> u32 {
        match ahead(self.allow, self.acked) {
            _ if self.scale == UNKNOWN => MAX_REACH,
            open if open > MIN_REACH as i32 => self.widest().min(open as u32),
            _ => MIN_REACH,
        }
    }

    /// The largest window it can ever have had open.
    #[inline(always)]
    fn widest(&self) -> u32 {
        let shift = self.scale.min(MAX_SCALE);
        (0xffff_u32 << shift).clamp(MIN_REACH, MAX_REACH)
    }

    /// How far its marks may be behind the truth: who keeps them need not store every small step,
    /// and of a first fragment the rest is not counted. Also room for window probes.
    #[inline(always)]
    fn lag(&self) -> u32 {
        self.reach() / 4
    }
}

/// How far `a` is ahead of `b` in serial arithmetic; negative if behind.
#[inline(always)]
const fn ahead(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

#[inline(always)]
const fn later(a: u32, b: u32) -> u32 {
    if ahead(a, b) > 0 { a } else { b }
}

/// Whether `value` is from `low` to `high`, both included.
#[inline(always)]
const fn between(low: u32, value: u32, high: u32) -> bool {
    value.wrapping_sub(low) <= high.wrapping_sub(low) && ahead(high, low) >= 0
}

/// A record for a segment that [`Segment::opens`].
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

/// A record for a segment that [`Segment::picks_up`] from the middle of a connection, whose sender
/// becomes the opener. Scales are not known, so windows are taken for larger than they will be.
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

/// What a segment does to its connection. `direction` is 0 from the opener, 1 from the other side.
/// The track returned is the one to keep, unless the outcome is [`Outcome::Reopen`].
#[inline(always)]
pub(crate) fn step(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    match in_line(&track, direction, segment) {
        Some(next) => (next, Outcome::Pass),
        None => any_step(track, direction, segment),
    }
}

const CONTROLS: u8 = SYN | RST | FIN | ACK;

/// What most segments are: of a connection that is established, no further ahead than was allowed
/// and not far behind. The same as [`any_step`] says of them, sooner.
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

/// Where a segment is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    /// Of this connection, but of the past: behind the window, by no more than the widest one there
    /// can have been.
    Past,
    Outside,
}

/// RFC 9293, 3.10.7.4, and RFC 5961, 5.2, as seen from between.
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

/// Where a number is that may be as far behind `mark` as `window` reaches, and as far ahead of
/// `limit` as it lags. Measured from the lowest number in question, so that those half the numbers
/// away are not taken for near.
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

/// A segment with ACK of a connection whose both ends are known.
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
            // changes its number). It knows: its own number is exact.
            receiver.end = segment.acknowledgement;
            sender.acked = segment.acknowledgement;
            sender.allow = segment.acknowledgement;
        }
        _ => return (track, Outcome::PassUnrefreshed),
    }
    let (end, acknowledgement) = (segment.end(), segment.acknowledgement);
    // An acknowledgement from somewhere inside the window does not end the handshake, only one of
    // the SYN.
    let established = match track.state {
        TcpState::SynReceived => {
            !segment.has(SYN) && between(sender.acked, acknowledgement, receiver.end)
        }
        TcpState::PickedUp => !segment.has(SYN) && direction == 1,
        _ => true,
    };
    if ahead(end, sender.end) >= 0 {
        // Nothing comes behind a FIN: if something does, that was no FIN of this side's.
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

/// SYN without ACK.
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
            // The last repetitions may leave options out. Which one is answered shows in the
            // answer.
            sender.scale = sender.scale.min(segment.scale.unwrap_or(UNKNOWN));
            (Track::from_sides(track.state, direction, sender, receiver), Outcome::Pass)
        }
        // RFC 9293, figure 8: both open.
        TcpState::New => (answered(&track, segment, receiver.end), Outcome::Pass),
        TcpState::SynReceived if segment.sequence.wrapping_add(1) == receiver.acked => {
            (track, Outcome::Pass)
        } // again
        // Who starts over while the other end knows better gets an acknowledgement, and resets it
        // (RFC 9293, 3.5.1). But to somebody who forgot and listens it is a first SYN, and
        // what admitted the connection admitted its opener's only.
        _ if direction == 0 => (track, Outcome::PassUnrefreshed),
        _ => (track, Outcome::Ask),
    }
}

/// The track after the other side's SYN, which expects `acknowledgement` next from the opener.
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

/// A segment with ACK while only the opener's SYN is known.
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

/// SYN+ACK when both ends are known: once more, or of two that open at once.
#[cold]
fn answer_again(track: Track, direction: usize, segment: &Segment) -> (Track, Outcome) {
    let (sender, receiver) = track.sides(direction);
    let differs = segment.sequence.wrapping_add(1) != receiver.acked;
    let acknowledgement = segment.acknowledgement;
    if track.state == TcpState::SynReceived
        && direction == 1
        && differs
        && (acknowledgement == sender.acked || acknowledgement == receiver.end)
        // An answer acknowledges nothing that was not sent, whatever the side that answers acknowledged since (RFC 9293, 3.10.7.3).
        && ahead(acknowledgement, receiver.end) <= 0
    {
        return (answered(&track, segment, acknowledgement), Outcome::Pass); // see `proceed`
    }
    proceed(track, direction, segment)
}

/// RST. It ends the record if its number is exactly what the other side waits for, or exactly
/// behind what its sender sent last: to guess either is equally hard, and the second is how a
/// connection with data under way is aborted.
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
    // What it acknowledges is not looked at: a host that knows nothing of a connection resets with
    // whatever it has.
    match place(sender, receiver, &Segment { flags: RST, ..*segment }) {
        Place::Outside => (track, Outcome::Refuse),
        _ => (track, Outcome::PassUnrefreshed),
    }
}

/// Whether a sequence number that an ICMP error quotes is one that the side `direction` has under
/// way (RFC 5927, 4.1).
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

//! A TCP connection as an observer between its ends sees it (RFC 9293, RFC 5961).
//!
//! Windows have slack, and marks may lag. A segment far from any window must be refused. A segment
//! that both ends would take must pass. Any other segment may do either.

use crate::{
    choices::Choices,
    wire::{be16, be32},
};

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    pub window: u16,
    /// Sequence numbers it takes, SYN and FIN included.
    pub takes: u32,
    pub scale: Option<u8>,
}

impl Segment {
    /// Reads a segment that has its whole header.
    pub fn read(bytes: &[u8]) -> Segment {
        let header = usize::from(bytes[12] >> 4) * 4;
        let flags = bytes[13];
        let takes = (bytes.len() - header) as u32
            + u32::from(flags & SYN != 0)
            + u32::from(flags & FIN != 0);
        let mut scale = None;
        let mut options = &bytes[20..header];
        while let [kind, rest @ ..] = options {
            match (kind, rest) {
                (0, _) => break,
                (1, _) => options = rest,
                (_, [len, ..]) if *len >= 2 && usize::from(*len) <= options.len() => {
                    if (*kind, *len) == (3, 3) && flags & SYN != 0 {
                        scale = Some(options[2].min(14));
                    }
                    options = &options[usize::from(*len)..];
                }
                _ => break,
            }
        }
        Segment {
            sequence: be32(bytes, 4),
            acknowledgement: be32(bytes, 8),
            flags,
            window: be16(bytes, 14),
            takes,
            scale,
        }
    }

    pub fn opens(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }

    /// Returns whether it can be from the middle of a live connection.
    pub fn may_be_picked_up(&self) -> bool {
        self.flags & (SYN | ACK | RST) == ACK
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.takes)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Side {
    seen: bool,
    first: u32,
    /// The first number of the last SYN+ACK: a listener that keeps no state may answer twice, and
    /// differently.
    answer: Option<u32>,
    /// Behind the last byte it sent.
    end: u32,
    /// Its last acknowledgement, if there was one.
    acked: Option<u32>,
    /// Largest window it offered, in bytes.
    window: u32,
    scale: u8,
    /// The largest scale that one of its SYNs offered: which of several counts is not known.
    widest: u8,
    /// Behind its FIN, as long as nothing came behind that.
    fin: Option<u32>,
}

/// Sides that have ended; none begins again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Open,
    OneEnded,
    BothEnded,
    /// Both know that the other has ended.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Opener, responder.
    sides: [Side; 2],
    reset: bool,
    picked_up: bool,
    /// True if one side acknowledged the other's SYN; for one that was picked up, if the other side
    /// has spoken.
    established: bool,
    stage: Stage,
    /// True if a segment was let pass after which the positions of the ends are open: anything may
    /// follow.
    unsure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    Passes,
    /// Passes, but neither refreshes nor changes anything.
    PassesUnnoticed,
    OutOfWindow,
    /// Opens a new connection where this one is over.
    Afresh,
    /// Is none of this connection, and is not to change it: passes if a connection could begin with
    /// it.
    ByRules,
}

/// How far a number is ahead of another.
fn ahead(of: u32, number: u32) -> i64 {
    i64::from(number.wrapping_sub(of) as i32)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    In,
    Out,
    Unclear,
}

impl Connection {
    /// Made by its first segment: a SYN, or any if it is picked up.
    pub fn open(segment: &Segment) -> Connection {
        let mut connection = Connection {
            sides: [Side::default(); 2],
            reset: false,
            picked_up: !segment.opens(),
            established: false,
            stage: Stage::Open,
            unsure: false,
        };
        if connection.picked_up {
            // All that is known of the other side is what was acknowledged.
            connection.sides[1].first = segment.acknowledgement;
            connection.sides[1].end = segment.acknowledgement;
        }
        connection.take(0, segment, &mut Choices::default());
        connection
    }

    /// Nothing this far from a mark is in any window: twice the largest one, for marks that lag on
    /// both sides.
    fn far(&self) -> i64 {
        if self.picked_up {
            return i64::MAX; // windows may be scaled, nobody knows by how much (RFC 7323)
        }
        const LARGEST: i64 = 66_000;
        // Scales count if both sides offer one. Until then it may be either.
        (2 * LARGEST) << self.sides[0].widest.max(self.sides[1].widest)
    }

    fn fits(&self, from: usize, segment: &Segment) -> Fit {
        let (own, other) = (&self.sides[from], &self.sides[1 - from]);
        let mut fit = Fit::In;
        let mut limit = |found: Fit| {
            if fit == Fit::In || found == Fit::Out {
                fit = found;
            }
        };
        if own.seen {
            let window = i64::from(other.window);
            let start = ahead(own.end, segment.sequence);
            let end = start + i64::from(segment.takes);
            let sent = ahead(own.first, own.end).max(0);
            let room = other.acked.map_or(0, |acked| window - ahead(acked, own.end));
            let first_syn = segment.has(SYN) && segment.sequence == own.first;
            let inside = start >= -sent && start >= -window && end <= room.max(0);
            // Of an unanswered opener: it resets what its SYN has found at the other end (RFC 9293,
            // figure 9).
            let older = from == 0 && !other.seen && segment.has(RST);
            // A refusal of a SYN has no number of its own (3.10.7.1).
            let older = older
                || from == 1 && !self.established && segment.sequence == 0 && segment.has(RST);
            let far = start.abs() > self.far() && !older;
            limit(if inside && (!segment.has(SYN) || first_syn) {
                Fit::In
            } else if far {
                Fit::Out
            } else {
                Fit::Unclear
            });
        } else if self.picked_up && ahead(own.end, segment.sequence) != 0 {
            limit(Fit::Unclear); // at best one acknowledgement says where this side is
        } else if !self.picked_up && !segment.has(SYN) && (!segment.has(RST) || !segment.has(ACK)) {
            limit(Fit::Unclear); // not what answers a SYN
        }
        // A host that still has an older connection answers a SYN with an acknowledgement of that
        // (RFC 9293, 3.5.1).
        let older = from == 1 && !own.seen && segment.takes == 0;
        // Of a reset only the sequence number counts (RFC 5961, 3.2), or it all does.
        let older = older || own.seen && segment.has(RST);
        if segment.has(ACK) {
            if other.seen || self.picked_up {
                let acks = ahead(other.end, segment.acknowledgement);
                let exact = acks == 0
                    || acks < 0
                        && own
                            .acked
                            .is_some_and(|acked| ahead(acked, segment.acknowledgement) >= 0);
                limit(if exact {
                    Fit::In
                } else if acks.abs() > self.far() && !older {
                    Fit::Out
                } else {
                    Fit::Unclear
                });
            } else {
                limit(Fit::Unclear); // of what nobody saw
            }
        } else if !segment.has(RST) && (!segment.has(SYN) || other.seen) {
            // Every segment of a connection that is there acknowledges something.
            limit(Fit::Unclear);
        }
        if !own.seen && segment.has(SYN) && !segment.has(ACK) {
            limit(Fit::Unclear); // both open at once
        }
        fit
    }

    /// Returns whether an opener acknowledges another answer than the one seen last. A listener
    /// that keeps no state may have sent several. Only the opener knows the opener's own number
    /// exactly.
    fn takes_another_answer(&self, from: usize, segment: &Segment) -> bool {
        let own = &self.sides[0];
        if self.established || !self.sides[1].seen || !segment.has(ACK) {
            return false;
        }
        let sent = 0..=ahead(own.first, own.end);
        match (from, segment.has(SYN)) {
            (0, false) => sent.contains(&ahead(own.first, segment.sequence)),
            // And such an answer itself.
            (1, true) => sent.contains(&ahead(own.first, segment.acknowledgement)),
            _ => false,
        }
    }

    /// Judges a segment of the opener (0) or the responder (1), and changes the connection.
    pub fn judge(&mut self, from: usize, segment: &Segment, choices: &mut Choices) -> Judgement {
        if self.unsure {
            return match choices.either() {
                _ if segment.opens() && choices.either() => {
                    if choices.either() {
                        Judgement::Afresh
                    } else {
                        Judgement::ByRules
                    }
                }
                false => Judgement::Passes,
                true => Judgement::OutOfWindow,
            };
        }
        if segment.has(SYN) && (segment.has(RST) || segment.has(FIN))
            || segment.flags & (SYN | RST | ACK) == 0
        {
            // No segment of TCP. Whatever happens to it, nothing comes of it.
            return if choices.either() {
                Judgement::PassesUnnoticed
            } else {
                Judgement::OutOfWindow
            };
        }
        let fit = self.fits(from, segment);
        // An acknowledgement of what was not sent may be one of another answer, however near that
        // is.
        let of_another = fit == Fit::Out
            || fit == Fit::Unclear
                && from == 0
                && ahead(self.sides[1].end, segment.acknowledgement) > 0;
        if of_another && self.takes_another_answer(from, segment) && choices.either() {
            self.unsure = true;
            self.sides = [Side::default(); 2];
            return Judgement::Passes;
        }
        if segment.opens() && self.is_closed() {
            return Judgement::Afresh;
        }
        if let Some(judgement) = self.judge_syn(from, segment, choices) {
            return judgement;
        }
        if self.reset {
            // What still comes of a connection that is over may be let pass or not.
            return if choices.either() {
                Judgement::PassesUnnoticed
            } else {
                Judgement::OutOfWindow
            };
        }
        let passes = match fit {
            Fit::In => true,
            Fit::Out => false,
            Fit::Unclear => !choices.either(),
        };
        if !passes {
            return Judgement::OutOfWindow;
        }
        if segment.has(RST) {
            self.reset = self.believes(from, segment, choices);
            return if self.reset { Judgement::Passes } else { Judgement::PassesUnnoticed };
        }
        if fit == Fit::Unclear && choices.either() {
            return Judgement::PassesUnnoticed;
        }
        if fit == Fit::Unclear {
            // Far from where the ends are thought to be: if that counts, they may be anywhere.
            let (own, other) = (&self.sides[from], &self.sides[1 - from]);
            let strays = |mark: u32, number: u32| ahead(mark, number).abs() > 1 << 16;
            // Two that open at once are not followed either.
            let both_open = from == 1 && segment.has(SYN) && !segment.has(ACK);
            self.unsure = both_open
                || own.seen && strays(own.end, segment.sequence)
                || segment.has(ACK)
                    && (other.seen || self.picked_up)
                    && strays(other.end, segment.acknowledgement)
                || segment.has(ACK)
                    && own.acked.is_some_and(|acked| strays(acked, segment.acknowledgement));
        }
        self.take(from, segment, choices);
        if self.unsure {
            // Nothing that is known of it counts any more.
            self.sides = [Side::default(); 2];
        }
        Judgement::Passes
    }

    /// A SYN that is not the answer to one, while the connection is not over: None if it is judged
    /// like other segments.
    fn judge_syn(
        &self,
        from: usize,
        segment: &Segment,
        choices: &mut Choices,
    ) -> Option<Judgement> {
        let own = &self.sides[from];
        let again = !self.picked_up && own.seen && segment.sequence == own.first;
        let answered = self.sides[1].seen || self.picked_up;
        match from {
            _ if !segment.opens() => None,
            // Unanswered, its own again, or another one.
            0 if !answered => (!again).then_some(Judgement::Afresh),
            // A late copy refreshes nothing; until the handshake is complete it may be no copy.
            0 if again && !self.established && choices.either() => Some(Judgement::Passes),
            // The opener begins again: the other end sets it right (RFC 9293, 3.5.1), and nothing
            // else comes of it.
            0 => Some(Judgement::PassesUnnoticed),
            // Both open at once.
            _ if !answered => None,
            _ if again && !self.established => {
                // If the opener acknowledged something else, which of them is right is open.
                let known = self.sides[0].acked.is_none_or(|acked| ahead(own.first, acked) == 1)
                    && own.answer.is_none_or(|answer| answer == own.first);
                (!known && choices.either()).then_some(Judgement::ByRules)
            }
            // The SYN of an answer that came behind another one, once more.
            _ if own.answer == Some(segment.sequence) && !self.established && choices.either() => {
                Some(Judgement::Passes)
            }
            // The opener was let in, not this side: a host that forgot the connection and listens
            // would take it for the first of another.
            _ => Some(Judgement::ByRules),
        }
    }

    /// Returns whether a reset that fits ends the connection (RFC 5961, 3.2).
    fn believes(&self, from: usize, segment: &Segment, choices: &mut Choices) -> bool {
        let (own, other) = (&self.sides[from], &self.sides[1 - from]);
        let waited_for = other.acked == Some(segment.sequence);
        let refusal = from == 1 && !own.seen && segment.has(ACK);
        if self.picked_up {
            // As hard to guess: where what was seen of it begins and ends.
            let seen = own.seen && [own.first, own.end].contains(&segment.sequence);
            // An acknowledgement of the past, from before what was seen, need not be the other
            // side's last.
            let late = own.seen && ahead(own.first, segment.sequence) < 0;
            return waited_for && !late || (waited_for || seen) && choices.either();
        }
        if refusal {
            // Of a SYN: nothing was acknowledged yet, but it names what it is to. With data, all of
            // it or none.
            let named = ahead(other.end, segment.acknowledgement);
            return named == 0 || named < 0 && choices.either();
        }
        // Behind what it sent last, which is not acknowledged yet: as hard to guess, and how a
        // connection with data under way is aborted. It may be believed or not.
        waited_for || own.seen && other.seen && segment.sequence == own.end && choices.either()
    }

    fn take(&mut self, from: usize, segment: &Segment, choices: &mut Choices) {
        let other = self.sides[1 - from];
        let own = &mut self.sides[from];
        if segment.has(SYN) {
            own.scale = segment.scale.unwrap_or(0);
            own.widest = own.widest.max(own.scale);
            own.answer = segment.has(ACK).then_some(segment.sequence).or(own.answer);
        }
        // Of the other side of one that was picked up, an end is known before it was seen.
        let behind =
            if own.seen || self.picked_up && from == 1 { ahead(own.end, segment.end()) } else { 1 };
        if !own.seen {
            own.first = segment.sequence;
        }
        own.seen = true;
        if behind >= 0 {
            own.end = segment.end();
            let repeated = own.fin.filter(|fin| *fin == own.end);
            own.fin = if segment.has(FIN) { Some(own.end) } else { repeated };
        }
        let scale = if segment.has(SYN) { 0 } else { own.scale };
        own.window = own.window.max(u32::from(segment.window) << scale);
        if segment.has(ACK) {
            let new = own.acked.is_none_or(|before| ahead(before, segment.acknowledgement) >= 0);
            if new {
                own.acked = Some(segment.acknowledgement);
            }
            // Of the other's SYN, or of more, but of nothing that was not sent.
            let of_syn = ahead(other.first, segment.acknowledgement) >= 1
                && ahead(other.end, segment.acknowledgement) <= 0;
            let acknowledged = other.seen && !segment.has(SYN) && new && of_syn && !self.picked_up;
            // Of an earlier answer than the one that was seen last: an observer may have forgotten
            // that one.
            let forgotten = other.answer.is_some_and(|answer| {
                answer != other.first && ahead(answer, segment.acknowledgement) < 1
            });
            self.established |=
                acknowledged && !(!self.established && forgotten && choices.either());
        }
        if self.picked_up && from == 1 && !segment.has(SYN) {
            self.established = true;
        }
        let ended = self.sides.iter().filter(|side| side.fin.is_some()).count();
        let stage = match ended {
            _ if !self.established => Stage::Open,
            0 => Stage::Open,
            1 => Stage::OneEnded,
            _ if self.fin_acked(0) && self.fin_acked(1) => Stage::Over,
            _ => Stage::BothEnded,
        };
        self.stage = self.stage.max(stage);
    }

    /// Forgets where its ends are: anything may follow.
    pub fn blur(&mut self) {
        *self = Connection {
            sides: [Side::default(); 2],
            reset: false,
            picked_up: false,
            established: false,
            stage: Stage::Open,
            unsure: true,
        };
    }

    fn fin_acked(&self, side: usize) -> bool {
        match (self.sides[side].fin, self.sides[1 - side].acked) {
            (Some(fin), Some(acked)) => ahead(fin, acked) >= 0,
            _ => false,
        }
    }

    /// A SYN may open it again.
    pub fn is_closed(&self) -> bool {
        self.reset || self.stage == Stage::Over
    }

    /// Seconds of silence after which it may be forgotten, and after which it is.
    pub fn timeout(&self) -> (u32, u32) {
        match self.stage {
            _ if self.unsure => (0, 86_400),
            _ if self.reset => (10, 10),
            Stage::Over => (240, 240),
            Stage::BothEnded => (10, 10),
            Stage::OneEnded => (21_600, 21_600),
            Stage::Open if self.established => (86_400, 86_400),
            // Between: both were heard.
            Stage::Open if self.sides[1].seen => (30, 86_400),
            Stage::Open => (30, 30),
        }
    }
}

impl Connection {
    /// Returns whether a side can have sent a segment that starts here.
    pub fn may_have_sent(&self, from: usize, sequence: u32, choices: &mut Choices) -> bool {
        let own = &self.sides[from];
        let start = ahead(own.end, sequence);
        let unanswered = !self.sides[1].seen && !self.picked_up;
        if self.unsure || unanswered && from == 0 && start == 0 {
            !choices.either() // of an unanswered opener, all that was let pass is its SYN
        } else if own.seen
            && start <= 0
            && start >= -ahead(own.first, own.end)
            && start >= -i64::from(self.sides[1 - from].window)
        {
            true
        } else if own.seen && start.abs() > self.far() {
            false
        } else {
            !choices.either()
        }
    }
}

//! Two hosts that do TCP right, over a network that loses, repeats and reorders on both sides of
//! the switch: no segment may be refused, and the transfer must end.

use super::*;

/// A small generator, so that its seed repeats a failure.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 20) as u32) % limit
    }

    fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < chance
    }
}

/// A host. Its stream is numbered from its first sequence number: 0 is SYN, then the data, then
/// FIN.
struct Host {
    first: u32,
    scale: Option<u8>,
    /// Shifts by which windows are scaled, if they are.
    shifts: Option<(u8, u8)>,
    active: bool,
    length: u32,
    largest: u32,
    /// Stream positions: acknowledged by the other, sent at all, received in order.
    una: u32,
    next: u32,
    /// Position it sends from; goes back to `una` on a time-out.
    at: u32,
    peer: Option<u32>,
    received: u32,
    peer_fin: bool,
    /// Room the other side announced, as a stream position.
    edge: u32,
    buffer: u32,
    announced: u32,
    owes: bool,
}

impl Host {
    fn new(random: &mut Random, active: bool) -> Host {
        let scale = random.percent(70).then(|| random.below(15) as u8);
        let buffer = [2000, 60_000, 500_000, 20_000_000][random.below(4) as usize];
        Host {
            first: [0, u32::MAX - random.below(5000), random.below(u32::MAX)]
                [random.below(3) as usize],
            scale,
            shifts: None,
            active,
            length: random.below(400_000),
            largest: [536, 1448, 8948, 65_000][random.below(4) as usize],
            una: 0,
            next: 0,
            at: 0,
            peer: None,
            received: 0,
            peer_fin: false,
            edge: 1,
            buffer,
            announced: 0,
            owes: false,
        }
    }

    /// Returns the position behind FIN.
    fn end(&self) -> u32 {
        self.length + 2
    }

    /// Returns the window, which never takes back an announcement.
    fn window(&mut self, random: &mut Random) -> u16 {
        let shift = self.shifts.map_or(0, |(own, _)| own);
        let wanted = if random.percent(20) { 0 } else { random.below(self.buffer) + 1 };
        let open = self.announced.max(self.received + wanted) - self.received;
        let field = open.div_ceil(1 << shift).min(0xffff);
        self.announced = self.announced.max(self.received + (field << shift));
        field as u16
    }

    fn header(&mut self, random: &mut Random, flags: u8, at: u32, length: u32) -> Segment {
        let window = if flags & SYN != 0 {
            let field = self.buffer.min(0xffff);
            self.announced = self.announced.max(self.received + field);
            field as u16
        } else {
            self.window(random)
        };
        let acknowledgement = self.peer.map_or(0, |first| first.wrapping_add(self.received));
        let flags = if self.peer.is_some() { flags | ACK } else { flags };
        self.owes = false;
        Segment {
            sequence: self.first.wrapping_add(at),
            acknowledgement,
            window,
            length,
            flags,
            scale: None,
        }
    }

    /// Returns its next segment.
    fn send(&mut self, random: &mut Random, time_out: bool) -> Option<Segment> {
        if time_out {
            self.at = self.una;
        }
        if self.at == 0 {
            if !self.active && self.peer.is_none() {
                return None;
            }
            // An answer offers what it was offered.
            let offered = if self.active || self.shifts.is_some() { self.scale } else { None };
            let (shifts, scale) = (self.shifts, offered);
            self.shifts = None;
            let segment = self.header(random, SYN, 0, 1);
            self.shifts = shifts;
            (self.at, self.next) = (1, self.next.max(1));
            return Some(Segment { scale, ..segment });
        }
        if self.una == 0 {
            return None; // the SYN is not acknowledged
        }
        let room = self.edge.saturating_sub(self.at);
        let left = self.end() - 1 - self.at.min(self.end() - 1);
        let mut length = left.min(room).min(random.below(self.largest) + 1);
        if length == 0 && left > 0 && time_out {
            length = 1; // a window probe
        }
        let fin = self.at + length == self.end() - 1
            && self.at < self.end()
            && (room > length || time_out);
        if length > 0 || fin {
            let flags = if fin { FIN } else { 0 };
            let segment = self.header(random, flags, self.at, length + u32::from(fin));
            self.at += length + u32::from(fin);
            self.next = self.next.max(self.at);
            return Some(segment);
        }
        if time_out && random.percent(50) {
            return Some(self.header(random, 0, self.next - 1, 0)); // a keep-alive
        }
        (self.owes || time_out).then(|| self.header(random, 0, self.next, 0))
    }

    fn take(&mut self, segment: &Segment) {
        self.owes = true;
        if segment.flags & SYN != 0 && self.peer.is_none() {
            self.peer = Some(segment.sequence);
            self.received = 1;
            self.announced = 1 + self.buffer.min(0xffff); // of its own SYN
            self.shifts = self.scale.zip(segment.scale);
        }
        let Some(first) = self.peer else { return };
        let at = segment.sequence.wrapping_sub(first) as i32;
        let end = at + segment.length as i32;
        if at <= self.received as i32
            && end > self.received as i32
            && end <= self.announced as i32 + 1
        {
            self.received = end as u32;
            self.peer_fin |= segment.flags & FIN != 0;
        }
        if segment.flags & ACK == 0 {
            return;
        }
        let acknowledged = segment.acknowledgement.wrapping_sub(self.first);
        if acknowledged > self.next {
            return;
        }
        let shift =
            if segment.flags & SYN != 0 { 0 } else { self.shifts.map_or(0, |(_, other)| other) };
        self.edge = self.edge.max(acknowledged + (u32::from(segment.window) << shift));
        self.una = self.una.max(acknowledged);
        self.at = self.at.max(self.una);
    }

    /// Returns whether a segment of its own is late by more than the largest window without
    /// scaling, and was acknowledged to the end.
    fn has_done_with(&self, segment: &Segment) -> bool {
        let end = segment.sequence.wrapping_add(segment.length).wrapping_sub(self.first);
        end <= self.una && end + MIN_REACH < self.next
    }

    fn is_done(&self) -> bool {
        self.una == self.end() && self.peer_fin
    }
}

/// A way through the network.
#[derive(Default)]
struct Way(Vec<Segment>);

impl Way {
    fn put(&mut self, random: &mut Random, bad: u32, segment: Segment) {
        if random.percent(bad) {
            return;
        }
        self.0.push(segment);
        if random.percent(bad) {
            self.0.push(segment);
        }
    }

    /// Returns the next segment to arrive, now and then out of order.
    fn get(&mut self, random: &mut Random, bad: u32) -> Option<Segment> {
        if self.0.is_empty() {
            return None;
        }
        let at = if random.percent(bad) { random.below(self.0.len().min(4) as u32) } else { 0 };
        Some(self.0.remove(at as usize))
    }
}

fn exchange(seed: u64, picked_up: bool) -> Result<(), String> {
    let mut random = Random(seed | 1);
    let bad = [0, 5, 20][random.below(3) as usize];
    let both_open = random.percent(20) && !picked_up;
    let mut hosts = [Host::new(&mut random, true), Host::new(&mut random, both_open)];
    let (mut before, mut behind) =
        ([Way::default(), Way::default()], [Way::default(), Way::default()]);
    let mut track: Option<Track> = None;
    let mut opener = 0;
    // Segments the switch did not see before it started.
    let mut unseen = if picked_up { random.below(100) } else { 0 };
    let mut missed = false;
    for turn in 0..2_000_000u32 {
        let side = random.below(2) as usize;
        match random.below(3) {
            0 => {
                let idle = before.iter().chain(&behind).all(|way| way.0.is_empty());
                let time_out = idle && random.percent(30) || random.percent(1);
                if before[side].0.len() < 40
                    && let Some(segment) = hosts[side].send(&mut random, time_out)
                {
                    before[side].put(&mut random, bad, segment);
                }
            }
            1 => {
                let Some(segment) = before[side].get(&mut random, bad) else { continue };
                let direction = side ^ opener;
                track = match track {
                    None if unseen > 0 && segment.flags & FIN == 0 => {
                        (unseen, missed) = (unseen - 1, true);
                        None
                    }
                    // A late one: the rest of the handshake may be over.
                    None if missed && segment.has(SYN) => None,
                    None if picked_up && segment.picks_up() => {
                        opener = side;
                        Some(pick_up(&segment))
                    }
                    None if segment.opens() => {
                        opener = side;
                        Some(open(&segment))
                    }
                    None => return Err(format!("turn {turn}: starts with {segment:?}")),
                    Some(track) => match step(track, direction, &segment) {
                        (after, Pass | PassUnrefreshed) => Some(after),
                        (after, Refuse) if hosts[side].has_done_with(&segment) => Some(after),
                        (_, outcome) => {
                            return Err(format!(
                                "turn {turn}: {outcome:?} of {segment:?} from {direction}, {track:?}"
                            ));
                        }
                    },
                };
                behind[side].put(&mut random, bad, segment);
            }
            _ => {
                if let Some(segment) = behind[side].get(&mut random, bad) {
                    hosts[1 - side].take(&segment);
                }
            }
        }
        if hosts.iter().all(Host::is_done) {
            let track = track.ok_or("nothing was seen")?;
            return if track.state == TcpState::TimeWait {
                Ok(())
            } else {
                Err(format!("at the end {track:?}"))
            };
        }
    }
    Err(format!("does not end: {track:?}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_right_is_refused(seed: u64) {
        exchange(seed, false).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn nothing_right_is_refused_after_a_pick_up(seed: u64) {
        exchange(seed, true).map_err(TestCaseError::fail)?;
    }
}

//! Single segments against single connections, both directions.

use proptest::prelude::*;

use super::*;

mod exchange;

/// First sequence numbers, chosen to wrap soon.
const A: u32 = u32::MAX - 500;
const B: u32 = 0x8000_0000 - 300;

/// A connection and the outcomes of its segments.
#[derive(Clone)]
struct Wire {
    track: Track,
}

fn segment(flags: u8, sequence: u32, acknowledgement: u32, payload: u32) -> Segment {
    let controls = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    Segment {
        sequence,
        acknowledgement,
        window: 64_000,
        length: payload + controls,
        flags,
        scale: None,
    }
}

fn syn() -> Segment {
    segment(SYN, A, 0, 0)
}

fn syn_ack() -> Segment {
    segment(SYN_ACK, B, A + 1, 0)
}

use Outcome::{Ask, Pass, PassUnrefreshed, Refuse, Reopen};

impl Wire {
    fn open() -> Wire {
        Wire { track: open(&syn()) }
    }

    fn answered() -> Wire {
        let mut wire = Wire::open();
        assert_eq!(wire.send(1, syn_ack()), Pass);
        wire
    }

    fn established() -> Wire {
        let mut wire = Wire::answered();
        assert_eq!(wire.state(), TcpState::SynReceived);
        assert_eq!(wire.send(0, segment(ACK, A + 1, B + 1, 0)), Pass);
        assert_eq!(wire.state(), TcpState::Established);
        wire
    }

    /// Returns a connection with windows of 64,000 << `scale` on both sides.
    fn scaled(scale: u8) -> Wire {
        let mut wire = Wire { track: open(&Segment { scale: Some(scale), ..syn() }) };
        assert_eq!(wire.send(1, Segment { scale: Some(scale), ..syn_ack() }), Pass);
        for (side, number, other) in [(0, A, B), (1, B, A)] {
            assert_eq!(wire.send(side, segment(ACK, number + 1, other + 1, 0)), Pass);
        }
        wire
    }

    fn send(&mut self, direction: usize, segment: Segment) -> Outcome {
        let before = self.track;
        let (after, outcome) = step(self.track, direction, &segment);
        if outcome != Pass {
            assert_eq!(after, before, "{outcome:?} changed something");
        }
        self.track = after;
        outcome
    }

    /// Returns the outcome that a segment would have.
    fn asked(&self, direction: usize, segment: Segment) -> Outcome {
        self.clone().send(direction, segment)
    }

    fn state(&self) -> TcpState {
        self.track.state
    }

    /// Sends all of these, which must pass.
    fn all(&mut self, segments: &[(usize, Segment)]) -> TcpState {
        for (at, (direction, segment)) in segments.iter().enumerate() {
            assert_eq!(self.send(*direction, *segment), Pass, "segment {at}");
        }
        self.state()
    }
}

/// Returns a segment from the opener or the other side, `sent` and `received` bytes after the
/// handshake.
fn from(direction: usize, flags: u8, sent: u32, received: u32, payload: u32) -> (usize, Segment) {
    let (own, other) = if direction == 0 { (A, B) } else { (B, A) };
    (
        direction,
        segment(flags, own.wrapping_add(1 + sent), other.wrapping_add(1 + received), payload),
    )
}

#[test]
fn what_opens_and_what_is_picked_up() {
    for flags in 0..=255u8 {
        let found = segment(flags, 1, 1, 0);
        let [fin, syn, rst, ack] = [FIN, SYN, RST, ACK].map(|flag| flags & flag != 0);
        assert_eq!(found.opens(), syn && !ack && !rst && !fin, "{flags:#x}");
        assert_eq!(found.picks_up(), ack && !rst && !syn, "{flags:#x}");
    }
}

#[test]
fn a_conversation() {
    let mut wire = Wire::established();
    let state = wire.all(&[
        from(0, ACK, 0, 0, 1000),
        from(1, ACK, 0, 1000, 0),
        from(1, ACK, 0, 1000, 3000),
        from(0, ACK, 1000, 3000, 0),
        from(0, ACK, 1000, 3000, 64_000),
        from(1, ACK, 3000, 65_000, 0),
    ]);
    assert_eq!(state, TcpState::Established);
}

#[test]
fn either_side_closes_first() {
    for first in [0, 1] {
        let second = 1 - first;
        let mut wire = Wire::established();
        assert_eq!(wire.all(&[from(first, FIN_ACK, 0, 0, 10)]), TcpState::HalfClosed);
        // The other may go on for long, and a repeated FIN is not the other's.
        assert_eq!(
            wire.all(&[from(second, ACK, 0, 11, 500), from(first, FIN_ACK, 0, 0, 10)]),
            TcpState::HalfClosed
        );
        assert_eq!(wire.all(&[from(first, ACK, 11, 500, 0)]), TcpState::HalfClosed);
        assert_eq!(wire.all(&[from(second, FIN_ACK, 500, 11, 0)]), TcpState::Closing);
        assert_eq!(wire.all(&[from(second, FIN_ACK, 500, 11, 0)]), TcpState::Closing);
        assert_eq!(wire.all(&[from(first, ACK, 11, 501, 0)]), TcpState::TimeWait);
        // The last acknowledgement may be lost.
        assert_eq!(
            wire.all(&[from(second, FIN_ACK, 500, 11, 0), from(first, ACK, 11, 501, 0)]),
            TcpState::TimeWait
        );
    }
}

#[test]
fn both_close_at_once() {
    let mut wire = Wire::established();
    assert_eq!(
        wire.all(&[from(0, FIN_ACK, 0, 0, 0), from(1, FIN_ACK, 0, 0, 0)]),
        TcpState::Closing
    );
    assert_eq!(wire.all(&[from(0, ACK, 1, 1, 0)]), TcpState::Closing);
    assert_eq!(wire.all(&[from(1, ACK, 1, 1, 0)]), TcpState::TimeWait);
}

#[test]
fn a_fin_that_overtakes_data() {
    let mut wire = Wire::established();
    assert_eq!(wire.all(&[from(0, FIN_ACK, 100, 0, 50)]), TcpState::HalfClosed);
    assert_eq!(
        wire.all(&[from(0, ACK, 0, 0, 100), from(1, FIN_ACK, 0, 151, 0), from(0, ACK, 151, 1, 0)]),
        TcpState::TimeWait
    );
}

/// RFC 9293, 3.10.7.4: text behind a FIN "should not occur". Where it does, the FIN before it was
/// forged.
#[test]
fn a_fin_with_something_behind_it_is_none() {
    for first in [0, 1] {
        let second = 1 - first;
        let mut wire = Wire::established();
        wire.all(&[
            from(first, FIN_ACK, 0, 0, 0),
            from(second, FIN_ACK, 0, 1, 0),
            from(first, ACK, 1, 1, 100),
        ]);
        assert_eq!(wire.all(&[from(second, ACK, 1, 101, 0)]), TcpState::Closing);
        assert_eq!(wire.asked(0, segment(SYN, 77, 0, 0)), PassUnrefreshed);
        // Its own comes at the end.
        assert_eq!(
            wire.all(&[from(first, FIN_ACK, 101, 1, 0), from(second, ACK, 1, 102, 0)]),
            TcpState::TimeWait
        );
        // One that comes late, behind which something was sent before.
        let mut wire = Wire::established();
        assert_eq!(
            wire.all(&[from(first, ACK, 0, 0, 100), from(first, FIN_ACK, 0, 0, 50)]),
            TcpState::Established
        );
    }
}

/// A host that forgot the connection and listens would take it for a first one.
#[test]
fn a_syn_of_the_other_side_needs_more_than_the_connection() {
    let mut wires = vec![Wire::established(), Wire { track: pick_up(&from(0, ACK, 0, 0, 10).1) }];
    for wire in wires.clone() {
        let mut closing = wire.clone();
        assert_eq!(closing.all(&[from(1, FIN_ACK, 0, 0, 0)]), TcpState::HalfClosed);
        wires.push(closing);
    }
    for wire in wires {
        for near in [0, 1, 1000, 1 << 30] {
            assert_eq!(wire.asked(1, segment(SYN, B.wrapping_add(near), 0, 0)), Ask, "{near}");
        }
    }
    assert_eq!(Wire::answered().asked(1, segment(SYN, B + 1, 0, 0)), Ask);
}

#[test]
fn an_acknowledged_middle_does_not_end_it() {
    let mut wire = Wire::established();
    wire.all(&[from(0, FIN_ACK, 0, 0, 50), from(1, FIN_ACK, 0, 20, 0)]);
    assert_eq!(wire.all(&[from(0, ACK, 51, 1, 0)]), TcpState::Closing);
    assert_eq!(wire.all(&[from(1, ACK, 1, 51, 0)]), TcpState::TimeWait);
}

#[test]
fn a_new_connection_after_the_old() {
    let mut wire = Wire::established();
    wire.all(&[from(0, FIN_ACK, 0, 0, 0), from(1, FIN_ACK, 0, 1, 0), from(0, ACK, 1, 1, 0)]);
    for direction in [0, 1] {
        assert_eq!(wire.asked(direction, segment(SYN, 77, 0, 0)), Reopen);
    }
    // Before that, a SYN ends nothing.
    let mut wire = Wire::established();
    wire.all(&[from(0, FIN_ACK, 0, 0, 0), from(1, FIN_ACK, 0, 0, 0)]);
    assert_eq!(wire.asked(0, segment(SYN, 77, 0, 0)), PassUnrefreshed);
    assert_eq!(wire.asked(1, segment(SYN, 77, 0, 0)), Ask);
}

#[test]
fn a_repeated_handshake() {
    let mut wire = Wire::open();
    assert_eq!(wire.all(&[(0, syn()), (0, syn())]), TcpState::New);
    assert_eq!(
        wire.all(&[(1, syn_ack()), (1, syn_ack()), (0, syn()), (1, syn_ack())]),
        TcpState::SynReceived
    );
    assert_eq!(wire.all(&[from(0, ACK, 0, 0, 0)]), TcpState::Established);
    // The acknowledgement was lost behind us, or a SYN comes late.
    assert_eq!(wire.all(&[(1, syn_ack())]), TcpState::Established);
    assert_eq!(wire.asked(0, syn()), PassUnrefreshed);
}

#[test]
fn data_that_overtakes_the_acknowledgement() {
    let mut wire = Wire::answered();
    assert_eq!(
        wire.all(&[from(0, ACK, 1000, 0, 500), from(0, ACK, 0, 0, 1000)]),
        TcpState::Established
    );
}

#[test]
fn an_answer_must_acknowledge_the_syn() {
    let wire = Wire::open();
    for wrong in [A, A.wrapping_sub(1), A + 2, A.wrapping_add(1 << 31), 0] {
        assert_eq!(wire.asked(1, segment(SYN_ACK, B, wrong, 0)), Refuse, "{wrong:#x}");
    }
    assert_eq!(wire.asked(0, syn_ack()), Refuse);
    assert_eq!(wire.asked(1, segment(ACK, B, A + 1, 10)), Refuse);
    assert_eq!(wire.asked(0, segment(ACK, A + 1, B, 10)), Refuse);
}

#[test]
fn data_in_the_syn() {
    // RFC 7413: all of it is taken, or nothing.
    for taken in [1, 501] {
        let mut wire = Wire { track: open(&segment(SYN, A, 0, 500)) };
        let answer = segment(SYN_ACK, B, A.wrapping_add(taken), 100);
        let ack = segment(ACK, A.wrapping_add(taken), B + 101, 500);
        assert_eq!(
            wire.all(&[
                (1, answer),
                (1, segment(ACK, B + 101, A.wrapping_add(taken), 100)),
                (0, ack)
            ]),
            TcpState::Established
        );
    }
}

#[test]
fn no_acknowledgement_but_that_of_the_syn_establishes() {
    for wrong in [B, B.wrapping_sub(5000)] {
        let mut wire = Wire::answered();
        assert_eq!(wire.send(0, segment(ACK, A + 1, wrong, 0)), Pass);
        assert_eq!(wire.state(), TcpState::SynReceived);
    }
    assert_eq!(Wire::answered().asked(0, segment(ACK, A + 2, B.wrapping_add(1 << 30), 0)), Refuse);
    assert_eq!(Wire::answered().asked(1, segment(ACK, B + 1, A.wrapping_add(1 << 30), 0)), Refuse);
}

#[test]
fn a_listener_that_changes_its_number() {
    let second = segment(SYN_ACK, 0x1234_5678, A + 1, 0);
    // Whichever of the two is ahead of the other.
    for number in [0x1234_5678u32, 0xf234_5678] {
        let second = Segment { sequence: number, ..second };
        for (taken, other) in [(number + 1, B + 1), (B + 1, number + 1)] {
            let mut wire = Wire::answered();
            wire.all(&[(0, syn()), (1, second), (0, segment(ACK, A + 1, taken, 0))]);
            assert_eq!(wire.state(), TcpState::Established);
            assert_eq!(wire.send(1, segment(ACK, taken, A + 1, 1000)), Pass);
            assert_eq!(wire.send(1, segment(ACK, other, A + 1, 1000)), Refuse);
        }
    }
    // Not without the opener's exact number.
    let mut wire = Wire::answered();
    assert_eq!(wire.send(1, segment(SYN_ACK, 0x1234_5678, A + 2, 0)), Refuse);
    assert_eq!(wire.send(0, segment(ACK, A, 0x1234_5679, 0)), Refuse);
    // The opener takes it by an acknowledgement, also of one that ends at once, and not by another
    // SYN.
    let takes = |flags| Wire::answered().asked(0, segment(flags, A + 1, 0x1234_5679, 0));
    assert_eq!([takes(ACK), takes(FIN_ACK), takes(SYN_ACK)], [Pass, Pass, Refuse]);
    // A number that the answering side acknowledged meanwhile, but that was not sent, is no number
    // of the opener's.
    let mut wire = Wire::answered();
    assert_eq!(wire.send(1, segment(ACK, B + 1, A + 21, 0)), Pass);
    assert_eq!(wire.send(1, segment(SYN_ACK, 0x1234_5678, A + 21, 0)), Refuse);
    assert_eq!(wire.send(1, second), Pass);
}

#[test]
fn an_opener_that_tries_anew() {
    assert_eq!(Wire::open().asked(0, segment(SYN, 5, 0, 0)), Reopen);
    assert_eq!(Wire::answered().asked(0, segment(SYN, 5, 0, 0)), PassUnrefreshed);
}

#[test]
fn both_open_at_once() {
    // RFC 9293, figure 8.
    let mut wire = Wire::open();
    assert_eq!(wire.all(&[(1, segment(SYN, B, 0, 0))]), TcpState::SynReceived);
    wire.all(&[(0, syn()), (1, segment(SYN, B, 0, 0))]);
    let both = [(0, segment(SYN_ACK, A, B + 1, 0)), (1, syn_ack())];
    assert_eq!(wire.all(&both), TcpState::SynReceived);
    for direction in [0, 1] {
        assert_eq!(wire.clone().all(&[from(direction, ACK, 0, 0, 10)]), TcpState::Established);
    }
}

#[test]
fn half_open_connections_are_found() {
    // RFC 9293, figure 9: the opener lost its memory, the other did not.
    let mut wire = Wire::established();
    assert_eq!(wire.send(0, segment(SYN, 400_000, 0, 0)), PassUnrefreshed);
    assert_eq!(wire.all(&[from(1, ACK, 0, 0, 0)]), TcpState::Established);
    assert_eq!(wire.all(&[(0, segment(RST, A + 1, 0, 0))]), TcpState::Closed);
    assert_eq!(wire.send(0, segment(SYN, 400_000, 0, 0)), Reopen);
    // And so if the record went as well.
    let mut wire = Wire::open();
    assert_eq!(wire.send(1, segment(ACK, B, 7, 0)), PassUnrefreshed);
    assert_eq!(wire.send(0, segment(RST, 7, 0, 0)), PassUnrefreshed);
    assert_eq!(wire.send(1, syn_ack()), Pass);
}

#[test]
fn a_port_that_is_closed() {
    let wire = Wire::open();
    let mut refused = wire.clone();
    assert_eq!(refused.send(1, segment(RST | ACK, 0, A + 1, 0)), Pass);
    assert_eq!((refused.state(), refused.asked(0, syn())), (TcpState::Closed, Reopen));
    for blind in [
        segment(RST, 0, 0, 0),
        segment(RST, B, A + 1, 0),
        segment(RST | ACK, 0, A, 0),
        segment(RST | ACK, 0, A + 2, 0),
    ] {
        assert_eq!(wire.asked(1, blind), Refuse);
    }
}

#[test]
fn resets() {
    for direction in [0, 1] {
        let mut wire = Wire::established();
        wire.all(&[from(direction, ACK, 0, 0, 3000), from(1 - direction, ACK, 0, 1000, 0)]);
        let rst =
            |sent: u32| (direction, segment(RST, from(direction, 0, sent, 0, 0).1.sequence, 0, 0));
        // The number that the other side waits for, and the one behind the last byte sent.
        for exact in [1000, 3000] {
            let mut wire = wire.clone();
            assert_eq!(wire.all(&[rst(exact)]), TcpState::Closed, "{exact}");
            assert_eq!(wire.asked(1, segment(SYN, 9, 0, 0)), Reopen);
            // Segments under way still arrive, and keep nothing alive.
            assert_eq!(
                wire.asked(1 - direction, from(1 - direction, ACK, 0, 1000, 0).1),
                PassUnrefreshed
            );
            assert_eq!(wire.asked(direction, segment(ACK, 12345, 6789, 0)), Refuse);
        }
        for inside in [999, 1001, 2999, 3001, 20_000, 64_000] {
            assert_eq!(wire.asked(direction, rst(inside).1), PassUnrefreshed, "{inside}");
        }
        for outside in [100_000, 1 << 30, 1 << 31, 3 << 30] {
            assert_eq!(wire.asked(direction, rst(outside).1), Refuse, "{outside}");
        }
        // A host that does not know the connection acknowledges anything.
        let strange = Segment { flags: RST | ACK, acknowledgement: 0x0bad_0bad, ..rst(1000).1 };
        assert_eq!(wire.clone().all(&[(direction, strange)]), TcpState::Closed);
    }
}

/// Once a connection is over, a reset of either side is checked against that side's own numbers,
/// not the other's.
#[test]
fn resets_of_a_closed_connection() {
    let mut wire = Wire::established();
    assert_eq!(wire.send(0, segment(RST, A + 1, 0, 0)), Pass);
    assert_eq!(wire.state(), TcpState::Closed);
    for (side, own, others) in [(0, A + 1, B + 1), (1, B + 1, A + 1)] {
        assert_eq!(wire.asked(side, segment(RST, own, 0, 0)), PassUnrefreshed, "{side}");
        assert_eq!(wire.asked(side, segment(RST, others, 0, 0)), Refuse, "{side}");
    }
}

#[test]
fn a_reset_during_the_handshake() {
    let mut wire = Wire::answered();
    assert_eq!(wire.send(1, segment(RST | ACK, 0, A + 1, 0)), PassUnrefreshed); // to a repeated SYN
    assert_eq!(wire.asked(1, segment(RST | ACK, 0, A + 9, 0)), Refuse);
    assert_eq!(wire.clone().all(&[(0, segment(RST, A + 1, 0, 0))]), TcpState::Closed); // a scan
    assert_eq!(wire.clone().all(&[(1, segment(RST, B + 1, 0, 0))]), TcpState::Closed);
}

#[test]
fn windows_bound_what_is_sent() {
    for direction in [0, 1] {
        let wire = Wire::established();
        // To the edge, and a probe beyond.
        assert_eq!(wire.asked(direction, from(direction, ACK, 63_000, 0, 1000).1), Pass);
        assert_eq!(wire.asked(direction, from(direction, ACK, 64_000, 0, 1).1), Pass);
        for far in [90_000, 1 << 20, 1 << 30, 1 << 31, 3 << 30] {
            assert_eq!(wire.asked(direction, from(direction, ACK, far, 0, 10).1), Refuse, "{far}");
            assert_eq!(wire.asked(direction, from(direction, ACK, 0, far, 10).1), Refuse, "{far}");
        }
    }
}

#[test]
fn one_byte_before_and_windows_that_close() {
    let mut wire = Wire::established();
    wire.all(&[from(0, ACK, 0, 0, 5000)]);
    let (_, closed) = from(1, ACK, 0, 5000, 0);
    assert_eq!(wire.send(1, Segment { window: 0, ..closed }), Pass);
    // Keep-alive with and without a byte, window probe, an update.
    let state = wire.all(&[
        from(0, ACK, 4999, 0, 0),
        from(0, ACK, 4999, 0, 1),
        from(0, ACK, 5000, 0, 1),
        (1, closed),
    ]);
    assert_eq!(state, TcpState::Established);
}

#[test]
fn an_old_segment_passes_but_keeps_nothing_alive() {
    for direction in [0, 1] {
        let mut wire = Wire::scaled(7); // windows of 8 MB
        for step in 0..40u32 {
            wire.all(&[
                from(direction, ACK, step << 20, 0, 1 << 20),
                from(1 - direction, ACK, 0, (step + 1) << 20, 0),
            ]);
        }
        // The window closes while the last of it is used, and the acknowledgement is lost behind
        // us.
        wire.all(&[from(direction, ACK, 40 << 20, 0, 7 << 20)]);
        let (_, closed) = from(1 - direction, ACK, 0, 47 << 20, 0);
        wire.send(1 - direction, Segment { window: 0, ..closed });
        assert_eq!(wire.asked(direction, from(direction, ACK, 47 << 20, 0, 1).1), Pass);
        assert_eq!(
            wire.asked(direction, from(direction, ACK, (47 << 20) - 60_000, 0, 1000).1),
            Pass
        );
        assert_eq!(
            wire.asked(direction, from(direction, ACK, 40 << 20, 0, 1000).1),
            PassUnrefreshed
        );
        assert_eq!(
            wire.asked(direction, from(direction, FIN_ACK, 40 << 20, 0, 1000).1),
            PassUnrefreshed
        );
        assert_eq!(wire.asked(direction, from(direction, ACK, 38 << 20, 0, 1000).1), Refuse);
    }
}

#[test]
fn the_largest_scale() {
    for direction in [0, 1] {
        let mut wire = Wire::scaled(14);
        let window = 64_000 << 14;
        for step in 0..20u32 {
            let sent = step.wrapping_mul(window / 2);
            wire.all(&[
                from(direction, ACK, sent.wrapping_add(window - 65_000), 0, 65_000),
                from(direction, ACK, sent, 0, 65_000),
                from(1 - direction, ACK, 0, sent.wrapping_add(window / 2), 0),
            ]);
        }
    }
}

#[test]
fn scales_apply_if_both_offer() {
    for (opener, other) in [(Some(7), None), (None, Some(7)), (None, None)] {
        let mut wire = Wire { track: open(&Segment { scale: opener, ..syn() }) };
        wire.all(&[
            (1, Segment { scale: other, ..syn_ack() }),
            from(0, ACK, 0, 0, 0),
            from(1, ACK, 0, 0, 0),
        ]);
        assert_eq!(wire.track.scale, [0, 0]);
        assert_eq!(wire.asked(0, from(0, ACK, 1 << 20, 0, 10).1), Refuse);
        assert_eq!(wire.asked(1, from(1, ACK, 1 << 20, 0, 10).1), Refuse);
    }
    // Each side's own, and never that of a SYN itself.
    let mut wire = Wire { track: open(&Segment { scale: Some(2), ..syn() }) };
    wire.all(&[(1, Segment { scale: Some(9), ..syn_ack() })]);
    assert_eq!(
        (wire.track.scale, wire.track.allow),
        ([2, 9], [B + 1 + 64_000, A.wrapping_add(64_001)])
    );
    wire.all(&[from(0, ACK, 0, 0, 0), from(1, ACK, 0, 0, 0)]);
    assert_eq!(
        wire.track.allow,
        [(B + 1).wrapping_add(64_000 << 2), A.wrapping_add(1 + (64_000 << 9))]
    );
}

#[test]
fn no_such_flags() {
    for track in [Wire::open(), Wire::answered(), Wire::established()].map(|wire| wire.track) {
        for direction in [0, 1] {
            for flags in
                [0, FIN, SYN | FIN, SYN | RST, SYN | FIN | ACK, SYN | RST | ACK, SYN | RST | FIN]
            {
                let (_, found) = from(direction, flags, 0, 0, 0);
                assert_eq!(step(track, direction, &found), (track, Refuse), "{flags:#x}");
            }
        }
    }
}

#[test]
fn picked_up_from_the_middle() {
    // The first seen may be old, and windows are larger than they look.
    let mut wire = Wire { track: pick_up(&from(0, ACK, 100_000, 50_000, 1000).1) };
    let state = wire.all(&[
        from(1, ACK, 250_000, 300_000, 1000),
        from(0, ACK, 800_000, 250_000, 1000),
        from(0, ACK, 0, 0, 1000),
        from(1, ACK, 0, 0, 1000),
    ]);
    assert_eq!(state, TcpState::Established);
    assert_eq!(
        wire.clone().all(&[(1, segment(RST, from(1, 0, 250_000, 0, 0).1.sequence, 0, 0))]),
        TcpState::Closed
    );
    assert_eq!(wire.all(&[from(0, FIN_ACK, 801_000, 251_000, 0)]), TcpState::HalfClosed);
    assert_eq!(
        wire.all(&[from(1, FIN_ACK, 251_000, 801_001, 0), from(0, ACK, 801_001, 251_001, 0)]),
        TcpState::TimeWait
    );
    assert_eq!(Wire::established().asked(1, from(1, ACK, 250_000, 300_000, 1000).1), Refuse);
    let wire = Wire { track: pick_up(&from(0, ACK, 100_000, 50_000, 1000).1) };
    assert_eq!(
        wire.asked(1, segment(ACK, from(1, ACK, 0, 0, 0).1.sequence.wrapping_add(1 << 31), A, 0)),
        Refuse
    );
    // One side alone may say anything; the other side has to confirm that there is a connection.
    for flags in [ACK, FIN_ACK] {
        let mut wire = Wire { track: pick_up(&from(0, flags, 1, 1, 1).1) };
        assert_eq!(
            wire.all(&[from(0, flags, 1, 1, 1), from(0, flags, 2, 1, 1)]),
            TcpState::PickedUp
        );
        let answered = if flags == ACK { TcpState::Established } else { TcpState::HalfClosed };
        assert_eq!(wire.all(&[from(1, ACK, 1, 3, 0)]), answered);
    }
}

#[test]
fn quotes() {
    let mut wire = Wire::open();
    assert!(
        quoted_in_window(&wire.track, 0, A)
            && !quoted_in_window(&wire.track, 0, A + 1)
            && !quoted_in_window(&wire.track, 1, 0)
    );
    wire = Wire::established();
    wire.all(&[from(0, ACK, 0, 0, 10_000), from(1, ACK, 0, 5000, 0)]);
    for (direction, sent, good) in [
        (0, 5000, true),
        (0, 9999, true),
        (0, 0, true),
        (0, 1 << 20, false),
        (0, 1 << 31, false),
        (1, 0, true),
        (1, 3 << 30, false),
    ] {
        assert_eq!(
            quoted_in_window(&wire.track, direction, from(direction, 0, sent, 0, 0).1.sequence),
            good,
            "{direction} {sent}"
        );
    }
}

/// Sends 4096 segments of one kind, spread over all sequence numbers, as an attacker who sees
/// nothing. Returns how many passed, and whether one of them would end the connection.
fn spray(wire: &Wire, direction: usize, flags: u8, payload: u32) -> (u32, bool) {
    let (mut passed, mut ended) = (0, false);
    for at in 0..1 << 12 {
        let found = segment(flags, (at << 20) + 77, at.wrapping_mul(0x9e37_79b9), payload);
        let (after, outcome) = step(wire.track, direction, &found);
        passed += u32::from(outcome == Pass);
        ended |= after.state > TcpState::Established;
        assert_ne!(outcome, Reopen);
    }
    (passed, ended)
}

#[test]
fn the_blind_change_nothing() {
    for wire in [Wire::answered(), Wire::established()] {
        for direction in [0, 1] {
            for flags in [ACK, RST, RST | ACK, FIN_ACK, SYN, SYN_ACK] {
                assert_eq!(spray(&wire, direction, flags, 0), (0, false), "{direction} {flags:#x}");
                assert_eq!(
                    spray(&wire, direction, flags, 1000),
                    (0, false),
                    "{direction} {flags:#x}"
                );
            }
        }
    }
}

prop_compose! {
    fn any_track()(state in 0u8..7, fins in 0u8..4, scale in prop::array::uniform2(prop_oneof![0u8..15, Just(UNKNOWN)]),
        end: [u32; 2], allow: [u32; 2], acked: [u32; 2]) -> Track {
        let state = [TcpState::New, TcpState::SynReceived, TcpState::Established, TcpState::HalfClosed, TcpState::Closing,
            TcpState::TimeWait, TcpState::Closed][usize::from(state)];
        Track { state, fins, scale, end, allow, acked }
    }
}

fn any_segment() -> impl Strategy<Value = Segment> {
    let near = prop_oneof![any::<u32>(), (0u32..100_000).prop_map(|n| n.wrapping_sub(5000))];
    let flags =
        prop::sample::select(vec![ACK, ACK, FIN_ACK, RST, RST | ACK, SYN, SYN_ACK, 0, 0xff]);
    (flags, near.clone(), near, any::<u16>(), 0u32..65_536, prop::option::of(0u8..15)).prop_map(
        |(flags, sequence, acknowledgement, window, length, scale)| Segment {
            sequence,
            acknowledgement,
            window,
            length,
            flags,
            scale,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// Any track, any segments: nothing but what passes changes anything, a state never goes back,
    /// and a Reopen is of a SYN.
    #[test]
    fn anything(track in any_track(), segments in prop::collection::vec((0usize..2, any_segment()), 1..40)) {
        let mut track = track;
        for (direction, segment) in segments {
            let (after, outcome) = step(track, direction, &segment);
            prop_assert_eq!((after, outcome), any_step(track, direction, &segment));
            prop_assert!(outcome == Pass || after == track);
            prop_assert!(after.state >= track.state);
            prop_assert!(outcome != Reopen || segment.opens());
            quoted_in_window(&track, direction, segment.sequence);
            track = after;
        }
    }

    /// Of all numbers, those near the window and no others.
    #[test]
    fn exactly_these_numbers(direction in 0usize..2, scale in 0u8..15, number: u32, part in 0u32..8, near in 0u32..300_000) {
        let wire = Wire::scaled(scale);
        let window = 64_000u32 << scale;
        let widest = 0xffff_u32.checked_shl(scale.into()).unwrap().max(66_000);
        let (low, high) = (widest, window + window.max(66_000) / 4);
        for number in [number, (part << 29).wrapping_add(near), (part << 29).wrapping_sub(near), high.wrapping_add(near).wrapping_sub(150_000)] {
            let sent = wire.asked(direction, from(direction, ACK, number, 0, 0).1);
            prop_assert_eq!(sent != Refuse, number <= high || number.wrapping_neg() <= low, "sent {:#x}", number);
            let acknowledged = wire.asked(direction, from(direction, ACK, 0, number, 0).1);
            let good = number <= high - window || number.wrapping_neg() <= low;
            prop_assert_eq!(acknowledged != Refuse, good, "acknowledged {:#x}", number);
            let reset = wire.asked(direction, from(direction, RST, number, 0, 0).1);
            prop_assert_eq!(reset == Pass, number == 0);
            prop_assert_eq!(reset == Refuse, sent == Refuse);
        }
    }

    /// The same connection with other first sequence numbers is the same connection.
    #[test]
    fn numbers_have_no_beginning(
        shift: [u32; 2],
        segments in prop::collection::vec((0usize..2, any_segment()), 1..40),
    ) {
        let moved = |direction: usize, segment: &Segment| Segment {
            sequence: segment.sequence.wrapping_add(shift[direction]),
            acknowledgement: segment.acknowledgement.wrapping_add(shift[1 - direction]),
            ..*segment
        };
        let start = Wire::established().track;
        let mut track = start;
        let mut other = Track {
            end: [start.end[0].wrapping_add(shift[0]), start.end[1].wrapping_add(shift[1])],
            allow: [start.allow[0].wrapping_add(shift[1]), start.allow[1].wrapping_add(shift[0])],
            acked: [start.acked[0].wrapping_add(shift[1]), start.acked[1].wrapping_add(shift[0])],
            ..start
        };
        for (direction, segment) in segments {
            let near = Segment {
                sequence: segment.sequence.wrapping_add(if direction == 0 { A } else { B }),
                acknowledgement: segment.acknowledgement.wrapping_add(if direction == 0 { B } else { A }),
                ..segment
            };
            let (a, b) = (step(track, direction, &near), step(other, direction, &moved(direction, &near)));
            prop_assert_eq!((a.0.state, a.1), (b.0.state, b.1));
            (track, other) = (a.0, b.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8192))]

    /// The short way says what the long one does, near all marks.
    #[test]
    fn in_line_is_a_shortcut(track in any_track(), base: u32, near in prop::array::uniform4(0u32..200_000), direction in 0usize..2,
        window: u16, length in 0u32..3000, offset in 0u32..200_000, acked in 0u32..200_000) {
        let [end, allow, other_end, other_acked] = near;
        let at = |n: u32| base.wrapping_add(n);
        let track = Track { state: TcpState::Established, fins: 0, end: [at(end), at(other_end)], allow: [at(other_end + allow), at(end + allow)],
            acked: [at(other_acked), at(acked)], ..track };
        let segment = Segment { sequence: at(offset), acknowledgement: at(acked), window, length, flags: ACK, scale: None };
        prop_assert_eq!(step(track, direction, &segment), any_step(track, direction, &segment));
    }
}

/// RFC 7323, 2.2: the window of a SYN is as it stands; all others are scaled, by 14 at most, if
/// both offered.
#[test]
fn windows_are_scaled() {
    for (flags, scale, expected) in [
        (ACK, 7, 64_000 << 7),
        (FIN_ACK, 7, 64_000 << 7),
        (RST | ACK, 7, 64_000 << 7),
        (ACK, 0, 64_000),
        (ACK, 14, 64_000 << 14),
        (ACK, 15, 64_000),
        (ACK, UNKNOWN, 64_000),
        (SYN, 7, 64_000),
        (SYN_ACK, 7, 64_000),
    ] {
        let side = Side { fin: false, scale, end: 0, allow: 0, acked: 0 };
        assert_eq!(window(&segment(flags, 1, 1, 0), &side), expected, "{flags:#x} {scale}");
    }
}

/// The exact record after the SYN, after its answer, and after a pick-up.
#[test]
fn records_begin_with_what_was_said() {
    let opened = open(&Segment { scale: Some(3), ..segment(SYN, A, 0, 10) });
    let expected = Track {
        state: TcpState::New,
        fins: 0,
        scale: [3, UNKNOWN],
        end: [A.wrapping_add(11), 0],
        allow: [64_000, 0],
        acked: [0, A],
    };
    assert_eq!(opened, expected);
    assert_eq!(open(&syn()).scale, [UNKNOWN; 2]);
    // A repetition without the option, and with a smaller window: what was offered holds.
    let (again, _) = step(opened, 0, &Segment { window: 100, ..syn() });
    assert_eq!(again, expected);
    // One that offers what the first did not.
    let (offers, _) = step(open(&syn()), 0, &Segment { scale: Some(5), window: 64_001, ..syn() });
    assert_eq!((offers.scale, offers.allow), ([5, UNKNOWN], [64_001, 0]));
    let (answered, outcome) =
        step(opened, 1, &Segment { scale: Some(2), window: 500, ..segment(SYN_ACK, B, A + 1, 20) });
    let expected = Track {
        state: TcpState::SynReceived,
        scale: [3, 2],
        end: [A.wrapping_add(11), B + 21],
        allow: [B + 1 + 64_000, (A + 1).wrapping_add(500)],
        acked: [B + 1, A + 1],
        ..expected
    };
    assert_eq!((answered, outcome), (expected, Pass));
    let picked = pick_up(&Segment { window: 300, ..segment(FIN_ACK, A, B, 10) });
    let expected = Track {
        state: TcpState::PickedUp,
        fins: 1,
        scale: [UNKNOWN; 2],
        end: [A.wrapping_add(11), B],
        allow: [B + 300, A.wrapping_add(11).wrapping_add(0xffff)],
        acked: [B, A],
    };
    assert_eq!(picked, expected);
    assert!(picked.is_possible() && !Track { fins: 8, ..picked }.is_possible());
    assert!(
        Track { scale: [14, 0], ..picked }.is_possible()
            && !Track { scale: [0, 15], ..picked }.is_possible()
    );
}

/// Marks that came from another host are set once by what they refuse, whichever side it is of, and
/// then hold like any others.
#[test]
fn a_connection_that_moved_catches_up_once() {
    const FAR: u32 = 3_000_000_000;
    let still = Wire::scaled(7).track;
    let adrift = Track { fins: ADRIFT, ..still };
    for direction in [0, 1] {
        let [own, other] = if direction == 0 { [A + 1, B + 1] } else { [B + 1, A + 1] };
        let far = segment(ACK, own.wrapping_add(FAR), other.wrapping_add(FAR / 2), 1000);
        assert_eq!(step(adrift, direction, &far).1, Refuse);
        assert_eq!(catch_up(&still, direction, &far), None, "it never moved");
        let caught = catch_up(&adrift, direction, &far).unwrap();
        assert!(!caught.is_adrift() && caught.is_possible() && caught.scale == [7, 7]);
        // The segment itself, and what the other side says to it.
        let (next, outcome) = step(caught, direction, &far);
        assert_eq!((outcome, next.state), (Pass, TcpState::Established));
        let answer = segment(ACK, far.acknowledgement, far.end(), 1000);
        assert_eq!(step(next, 1 - direction, &answer).1, Pass);
        // Another jump is one too many.
        let again = segment(ACK, far.sequence.wrapping_add(FAR), far.acknowledgement, 1000);
        assert_eq!(step(next, direction, &again).1, Refuse);
        assert_eq!(catch_up(&next, direction, &again), None);
        for flags in [RST, RST | ACK, SYN, SYN_ACK, FIN] {
            assert_eq!(catch_up(&adrift, direction, &Segment { flags, ..far }), None, "{flags:#x}");
        }
    }
    // What fits needs no other marks, and the doubt is gone.
    let (next, outcome) = step(adrift, 0, &segment(ACK, A + 1, B + 1, 10));
    assert_eq!((outcome, next.is_adrift()), (Pass, false));
    for state in [TcpState::New, TcpState::SynReceived, TcpState::TimeWait, TcpState::Cut] {
        let far = segment(ACK, A.wrapping_add(FAR), B, 1);
        assert_eq!(catch_up(&Track { state, ..adrift }, 0, &far), None, "{state:?}");
    }
}

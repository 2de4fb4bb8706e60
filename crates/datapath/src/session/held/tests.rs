use super::*;
use crate::ip::tcp::{ACK, ADRIFT, FIN, RST, SYN, open};
use crate::session::{
    key::{Key, SAMPLE, Zone},
    memory::Unit,
    record::{Admitted, Life, NO_TRACK, Past},
};

const ADMISSION: Admitted = Admitted { stamp: 5, cells: [6, 7], answers: false };

const TRACK: Track = Track {
    state: TcpState::Established,
    fins: 0,
    scale: [7, 0xff],
    end: [1000, 5000],
    allow: [70_000, 60_000],
    acked: [5000, 1000],
};

fn key() -> Key {
    Key::new(&SAMPLE, Zone::of(7), 8, 9)
}

fn write(record: &Record<'_>, state: State, track: Track) {
    record.write(&key(), ADMISSION, &Life { now: 100, state, track, past: Past::NONE });
}

fn segment(sequence: u32, acknowledgement: u32, flags: u8) -> Segment {
    let length = u32::from(flags & (SYN | FIN) != 0);
    Segment { sequence, acknowledgement, window: 1000, length, flags, scale: None }
}

fn changes<'a>(direction: usize, track: Option<&'a Track>) -> BatchChanges<'a> {
    let seen = track.map(|track| (101, track.state as u8));
    BatchChanges { direction, packets: 2, bytes: 20, track, seen }
}

#[test]
fn directions_are_counted_apart() {
    let unit = Unit::default();
    let record = Record::of(&unit);
    write(&record, State::UdpNew, NO_TRACK);
    let count = |direction, packets, bytes| {
        let changes = BatchChanges { direction, packets, bytes, track: None, seen: None };
        record.settle(0, || changes);
    };
    count(0, 3, 300);
    count(1, 5, u64::MAX);
    count(1, 1, 2);
    // 48 bits of packets go round; what stands above them stays.
    count(0, PACKETS, 0);
    let line = record.line2();
    assert_eq!((line.packets, line.bytes, line.made), ([2, 6], [300, 1], 100));
    assert_eq!((line.track.end, record.read()), ([0; 2], Some((key(), ADMISSION))));
    assert_eq!((line.seen, line.state), (100, State::UdpNew));
}

/// Times of late notes, and states of notes that began earlier, change nothing.
#[test]
fn the_later_time_and_the_higher_state_stay() {
    let unit = Unit::default();
    let record = Record::of(&unit);
    write(&record, State::UdpNew, NO_TRACK);
    for ((now, state), expected) in [
        ((101, State::UdpAnswered), (101, State::UdpAnswered)),
        ((103, State::UdpNew), (103, State::UdpAnswered)),
        ((102, State::UdpAnswered), (103, State::UdpAnswered)),
    ] {
        let seen = Some((now, state.number()));
        let none = BatchChanges { direction: 0, packets: 0, bytes: 0, track: None, seen };
        record.settle(0, || none);
        assert_eq!(record.seen(), expected);
    }
    assert_eq!((record.track().fins, record.line2().made), (0, 100));
}

#[test]
fn a_session_that_is_over_changes_no_more() {
    let unit = Unit::default();
    let record = Record::of(&unit);
    write(&record, State::Tcp(TRACK.state), TRACK);
    record.erase();
    write(&record, State::Tcp(TcpState::New), open(&segment(7, 0, SYN)));
    let words = || unit.0.each_ref().map(|word| word.load(Relaxed));
    let before = words();
    let later = Track { end: [1100, 5000], state: TcpState::Closed, ..TRACK };
    record.settle(0, || changes(0, Some(&later)));
    let answer = segment(9, 8, SYN | ACK);
    assert_eq!(record.step(0, 1, &answer, 100), None);
    assert_eq!(record.outcome(0, 1, &answer), None);
    assert!(!record.catch_up(0, 1, &answer, 100) && !record.take_error(0, 100));
    assert!(record.line2_of(0).is_none() && record.copy(0, &mut NO_TRACK.clone()).is_none());
    assert_eq!(words(), before);
    assert_eq!(record.outcome(1, 1, &answer), Some(Outcome::Pass));
    assert_eq!(words(), before);
    assert!(record.line2_of(1).is_some_and(|line| line.state == State::Tcp(TcpState::New)));
}

/// No reader sees the lock, or waits for it.
#[test]
fn a_line_that_is_held_is_read() {
    let unit = Unit::default();
    let record = Record::of(&unit);
    let track = Track { fins: 3 | ADRIFT, state: TcpState::Closing, ..TRACK };
    write(&record, State::Tcp(track.state), track);
    let held = record.hold();
    assert!(record.is_held() && record.try_hold().is_none());
    assert_eq!((record.track(), record.line2().track, held.track()), (track, track, track));
    assert_eq!(record.seen(), (100, State::Tcp(TcpState::Closing)));
    let mut copy = NO_TRACK;
    assert_eq!((record.copy(0, &mut copy), copy), (Some((100, 5)), track));
    drop(held);
    assert!(!record.is_held());
    assert_eq!((record.track(), record.seen().0), (track, 100));
}

/// Each direction's end and FIN were noted by another worker.
#[test]
fn two_notes_of_fins_close_a_connection() {
    let unit = Unit::default();
    let record = Record::of(&unit);
    let settled = |segments: [&[(usize, Segment)]; 2]| {
        write(&record, State::Tcp(TRACK.state), TRACK);
        // Both workers copied the marks before the other one wrote.
        let notes = segments.map(|segments| {
            segments.iter().fold((0, TRACK), |(_, track), (direction, segment)| {
                let (next, outcome) = tcp::step(track, *direction, segment);
                assert_eq!(outcome, Outcome::Pass);
                (*direction, next)
            })
        });
        for (direction, track) in notes {
            record.settle(0, || changes(direction, Some(&track)));
        }
        record.track()
    };
    let fins = [segment(1000, 5000, FIN | ACK), segment(5000, 1000, FIN | ACK)];
    let both = settled([&[(0, fins[0])], &[(1, fins[1])]]);
    assert_eq!((both.state, both.fins, both.end), (TcpState::Closing, 3, [1001, 5001]));
    // The other side's FIN and its acknowledgement by this side are of two notes.
    for (direction, last) in [(0, segment(1001, 5001, ACK)), (1, segment(5001, 1001, ACK))] {
        let (next, outcome) = tcp::step(record.track(), direction, &last);
        assert_eq!(outcome, Outcome::Pass);
        record.settle(0, || changes(direction, Some(&next)));
    }
    assert_eq!(record.track().state, TcpState::TimeWait);
    assert_eq!(record.seen(), (101, State::Tcp(TcpState::TimeWait)));
    // The acknowledgement of a FIN that this worker did not see yet.
    let early = settled([
        &[(0, segment(1000, 5000, FIN | ACK)), (0, segment(1001, 5001, ACK))],
        &[(1, segment(5000, 1000, FIN | ACK)), (1, segment(5001, 1001, ACK))],
    ]);
    assert_eq!((early.state, early.fins), (TcpState::TimeWait, 3));
}

/// Data behind a number show that no FIN was there, in whichever order notes are written.
#[test]
fn the_fin_of_the_later_end_counts() {
    let fin = Track { end: [1001, 5000], fins: 1, state: TcpState::HalfClosed, ..TRACK };
    let data = Track { end: [1500, 5000], ..TRACK };
    let less = Track { end: [900, 5000], ..TRACK };
    let same = Track { end: [1001, 5000], ..TRACK };
    for (a, b, fins, end) in
        [(fin, data, 0, 1500), (fin, less, 1, 1001), (fin, same, 1, 1001), (data, less, 0, 1500)]
    {
        for merged in [a.merged(0, &b), b.merged(0, &a)] {
            assert_eq!((merged.fins, merged.end), (fins, [end, 5000]), "{a:?} {b:?}");
        }
    }
    // Numbers go round.
    let round = Track { end: [u32::MAX, 5000], ..TRACK };
    let merged = round.merged(0, &Track { end: [3, 5000], ..TRACK });
    assert_eq!(merged.end, [3, 5000]);
}

#[test]
fn a_note_of_one_direction_leaves_the_other_as_it_is() {
    let now = Track { end: [1300, 5900], allow: [90_000, 80_000], acked: [5900, 1300], ..TRACK };
    for direction in [0, 1] {
        let merged = now.merged(direction, &TRACK);
        assert_eq!(merged, now, "an old copy");
        let copy = Track {
            end: [1400, 6000],
            allow: [91_000, 81_000],
            acked: [6000, 1400],
            scale: [1, 2],
            ..TRACK
        };
        let mut expected = now;
        expected.end[direction] = copy.end[direction];
        expected.allow[direction] = copy.allow[direction];
        expected.acked[direction] = copy.acked[direction];
        assert_eq!(now.merged(direction, &copy), expected);
    }
    let reset = Track { state: TcpState::Closed, ..TRACK };
    assert_eq!(now.merged(0, &reset).state, TcpState::Closed);
    assert_eq!(reset.merged(1, &now).state, TcpState::Closed);
}

/// A handshake by segments that are judged one after the other, then a reset.
#[test]
fn a_handshake_is_written_at_once() {
    let unit = Unit::default();
    let record = Record::of(&unit);
    write(&record, State::Tcp(TcpState::New), open(&segment(999, 0, SYN)));
    let step = |direction, segment| record.step(0, direction, &segment, 102).unwrap();
    let refused = step(1, segment(4999, 77, SYN | ACK));
    assert_eq!((refused.1, record.seen().0), (Outcome::Refuse, 100));
    for (direction, segment, state) in [
        (1, segment(4999, 1000, SYN | ACK), TcpState::SynReceived),
        (0, segment(1000, 5000, ACK), TcpState::Established),
        (1, segment(5000, 1000, RST), TcpState::Closed),
    ] {
        let (track, outcome) = step(direction, segment);
        assert_eq!((track.state, outcome), (state, Outcome::Pass));
        assert_eq!((record.track(), record.seen()), (track, (102, State::Tcp(state))));
        assert_eq!(is_unsettled(&track), state == TcpState::SynReceived);
    }
}

#[test]
fn a_connection_that_is_adrift_is_set_anew_once() {
    let unit = Unit::default();
    let record = Record::of(&unit);
    let adrift = Track { fins: ADRIFT, ..TRACK };
    assert!(is_unsettled(&adrift));
    write(&record, State::Tcp(adrift.state), adrift);
    let far = segment(1 << 30, 3 << 29, ACK);
    assert_eq!(record.outcome(0, 0, &far), Some(Outcome::Refuse));
    assert!(!record.catch_up(0, 0, &far, 103));
    assert!(!record.track().is_adrift());
    assert_eq!((record.track().end[0], record.seen().0), (1 << 30, 103));
    // It is not adrift any more: no segment sets it anew.
    let before = record.track();
    assert!(!record.catch_up(0, 0, &segment(3 << 30, 1 << 29, ACK), 104));
    assert_eq!((record.track(), record.seen().0), (before, 103));
}

#[test]
fn four_errors_in_a_second_and_nothing_else_is_touched() {
    let unit = Unit::default();
    let record = Record::of(&unit);
    write(&record, State::UdpNew, NO_TRACK);
    record.settle(0, || changes(0, None));
    let taken = |now| (0..6).filter(|_| record.take_error(0, now)).count();
    assert_eq!([taken(100), taken(100), taken(101), taken(200)], [4, 0, 4, 4]);
    let line = record.line2();
    assert_eq!(
        (line.packets, line.bytes, line.seen, line.made, line.state),
        ([2, 0], [20, 0], 100, 100, State::UdpNew)
    );
    assert_eq!(record.read(), Some((key(), ADMISSION)));
}

/// Threads that note changes of both directions, two for each.
#[test]
fn threads_lose_no_change() {
    const ROUNDS: u32 = 20_000;
    let unit = Unit::default();
    let record = Record::of(&unit);
    write(&record, State::Tcp(TRACK.state), TRACK);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let direction = thread % 2;
            scope.spawn(move || {
                for n in 1..=ROUNDS {
                    let mut copy = NO_TRACK;
                    assert!(record.copy(0, &mut copy).is_some());
                    let at = |mark: u32| mark + n * if thread < 2 { 3 } else { 2 };
                    copy.end[direction] = at(TRACK.end[direction]);
                    copy.allow[direction] = at(TRACK.allow[direction]);
                    copy.acked[direction] = at(TRACK.acked[direction]);
                    record.settle(0, || changes(direction, Some(&copy)));
                }
            });
        }
    });
    let sum = |mark: [u32; 2]| mark.map(|mark| mark + 3 * ROUNDS);
    let line = record.line2();
    assert_eq!(line.packets, [u64::from(ROUNDS) * 4; 2]);
    assert_eq!(line.bytes, [u64::from(ROUNDS) * 40; 2]);
    assert_eq!(
        line.track,
        Track { end: sum(TRACK.end), allow: sum(TRACK.allow), acked: sum(TRACK.acked), ..TRACK }
    );
}

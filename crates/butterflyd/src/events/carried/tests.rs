use super::{super::*, *};
use butterfly_api::Caller;
use proptest::prelude::*;

const ROOM: usize = 8 << 20;

fn all(events: &Events) -> Listing {
    events.list(&Query { limit: usize::MAX, ..Query::default() })
}

fn note(events: &Events, kind: Kind, nic: &str, text: &str) {
    let caller = Some(Caller::Host([192, 0, 2, 7].into()));
    let origin = Some(Origin { request: Some("nic_add"), caller });
    events.note(Note { origin, ..Note::new(kind, text).nic(nic, 7) });
}

/// Numbers, times, texts and repeats are what they were; what was noted meanwhile comes behind.
#[test]
fn the_record_goes_on_with_its_numbers() {
    let first = Events::default();
    (0..150).for_each(|n| note(&first, Kind::NicAdded, "a", &format!("é{n}")));
    first.note(Note::new(Kind::DaemonStarted, "started"));
    let mark = first.mark("nic_add");
    note(&first, Kind::NicRemoved, "b", "gone");
    first.take_back(mark, "nic_add");
    let (text, version) = first.note_record(ROOM);
    assert_eq!(version, first.version());
    let before = all(&first);
    let second = Events::default();
    second.note(Note::new(Kind::UplinkUp, "up"));
    let taken = second.take_over(&text);
    assert_eq!(taken, RecordTaken { events: before.events.len(), refused: 0, problem: None });
    let after = all(&second);
    let (newest, older) = after.events.split_last().unwrap();
    assert_eq!(older, before.events);
    assert!(older.iter().any(|event| event.more > 0) && older.iter().any(|e| e.taken_back));
    assert_eq!((newest.seq, newest.kind), (before.next + 1, Kind::UplinkUp));
    assert_eq!(second.started(), first.started());
    // A reader that had read all of the first one gets what came after that.
    let query = Query { since: before.next, limit: 10, ..Query::default() };
    assert_eq!(second.list(&query).events.first(), Some(newest));
}

#[test]
fn the_oldest_find_no_room() {
    let first = Events::default();
    (0..90).for_each(|n| note(&first, Kind::NicAdded, "a", &n.to_string()));
    let whole = first.note_record(ROOM).0.len();
    let (text, _) = first.note_record(whole / 2);
    assert!(text.len() <= whole / 2);
    let second = Events::default();
    let kept = second.take_over(&text).events;
    assert!((30..45).contains(&kept), "{kept}");
    let listing = all(&second);
    assert_eq!((listing.next, listing.lost), (90, 90 - kept as u64));
    assert_eq!(listing.events.last().unwrap().text, "89");
    assert_eq!(first.note_record(3).0, b"");
}

#[test]
fn what_is_no_event_is_left_out() {
    let event = |seq: u64, kind: &str, more: &str| {
        format!("{{\"seq\":{seq},\"time\":1,\"kind\":\"{kind}\",\"text\":\"x\"{more}}}")
    };
    let long = format!(",\"nic\":\"{}\"", "n".repeat(513));
    let events = [
        event(5, "nic-added", ""),
        event(5, "nic-added", ""),
        event(4, "nic-added", ""),
        event(6, "nic-sold", ""),
        event(7, "nic-added", ",\"client\":\"nobody\""),
        event(8, "nic-added", &long),
        event(9, "nic-added", ",\"request\":\"nic_paint\",\"client\":\"local\""),
        event(11, "nic-added", ""),
    ];
    let text =
        format!("{{\"layout\":1,\"started\":3,\"last\":10,\"events\":[{}]}}", events.join(","));
    let second = Events::default();
    let taken = second.take_over(text.as_bytes());
    assert_eq!((taken.events, taken.refused), (2, 6));
    let listing = all(&second);
    let numbers: Vec<u64> = listing.events.iter().map(|event| event.seq).collect();
    assert_eq!((numbers, listing.next, listing.lost), (vec![5, 9], 10, 8));
    let huge = format!("{{\"layout\":1,\"started\":3,\"last\":{},\"events\":[]}}", u64::MAX);
    let second = Events::default();
    second.take_over(huge.as_bytes());
    second.note(Note::new(Kind::UplinkUp, "up"));
    assert_eq!(all(&second).events.last().unwrap().seq, u64::MAX / 2 + 1);
    for text in ["{", "[]", "{\"layout\":2,\"started\":1,\"last\":1,\"events\":[]}"] {
        let fresh = Events::default();
        assert!(fresh.take_over(text.as_bytes()).problem.is_some(), "{text}");
        assert_eq!(all(&fresh).events, []);
    }
}

proptest! {
    /// No text is a fault, and the record keeps its bounds.
    #[test]
    fn any_bytes_are_read_without_fault(
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let first = Events::default();
        (0..20).for_each(|n| note(&first, Kind::NicAdded, "a", &n.to_string()));
        let (mut text, _) = first.note_record(ROOM);
        for (at, byte) in cuts {
            let at = at.index(text.len());
            text[at] = byte;
        }
        let second = Events::default();
        let taken = second.take_over(&text);
        prop_assert!(taken.events <= 20);
        note(&second, Kind::NicAdded, "a", "after");
        let newest = all(&second).events.pop().unwrap();
        prop_assert_eq!(newest.text, "after");
    }
}

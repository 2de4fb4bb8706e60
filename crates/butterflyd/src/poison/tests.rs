use super::history::*;
use butterfly_mem::blackbox::{Blamed, Cause, Notes, Side};
use std::time::Duration;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;

/// A service whose processes end, one after the other.
struct Service {
    history: History,
    term: u64,
    now: u64,
}

fn vnic(id: &str) -> Side {
    match id {
        "" => Side::Nobody,
        "uplink" => Side::Uplink,
        "switch" => Side::Switch,
        id => Side::Vnic(id.to_owned()),
    }
}

impl Service {
    fn new() -> Self {
        Self { history: History::new(0), term: 1, now: 1_000_000 }
    }

    /// The process lives for so many seconds after it was ready, and ends like that.
    fn ends(
        &mut self,
        lived: Option<u64>,
        cause: Option<Cause>,
        blamed: Option<(&str, &str)>,
    ) -> Vec<Verdict> {
        self.now += lived.unwrap_or(0) * SECOND;
        let blamed = blamed.map(|(served, written)| Blamed {
            cause: Cause::Panic,
            served: vnic(served),
            written: vnic(written),
        });
        let alive = Duration::from_millis(self.now);
        let notes = Notes {
            term: self.term,
            ready: lived.map(|lived| alive - Duration::from_secs(lived)),
            alive,
            degraded: self.history.order().degraded,
            cause,
            blamed,
        };
        self.term += 1;
        // What is kept for a successor says the same.
        self.history = History::read(&self.history.text(), self.now).unwrap();
        self.history.count(self.term, Some(&notes), self.now)
    }

    /// A worker ends it after so many seconds.
    fn crash(&mut self, lived: u64, served: &str, written: &str) -> Vec<Verdict> {
        self.ends(Some(lived), Some(Cause::Signal(6)), Some((served, written)))
    }

    fn held(&self) -> Vec<&str> {
        self.history.held().map(|(id, _)| id).collect()
    }

    /// Seconds for which a vnic is still held.
    fn left(&self, id: &str) -> u64 {
        (self.history.hold_of(id).unwrap().until - self.now) / SECOND
    }
}

fn was_held(id: &str) -> Vec<Verdict> {
    vec![Verdict::Held(id.to_owned())]
}

#[test]
fn a_sender_is_held_by_the_second_point_within_ten_minutes() {
    let mut service = Service::new();
    assert_eq!(service.crash(100, "a", "b"), []);
    assert_eq!(service.crash(601, "a", "b"), [], "the first is too old");
    assert_eq!(service.crash(599, "a", "c"), was_held("a"));
    assert_eq!((service.held(), service.left("a")), (vec!["a"], 60));
    assert_eq!(service.history.hold_of("b"), None);
    // Others have nothing to do with it.
    assert_eq!(service.crash(10, "d", ""), []);
    assert_eq!(service.held(), ["a"]);
}

#[test]
fn a_receiver_of_different_senders_is_held_instead_of_them() {
    let mut service = Service::new();
    assert_eq!(service.crash(5, "a", "m"), []);
    assert_eq!(service.crash(5, "b", "m"), was_held("m"));
    assert_eq!(service.held(), ["m"]);
    let mut service = Service::new();
    service.crash(5, "a", "m");
    assert_eq!(service.crash(5, "a", "m"), was_held("a"));
    // The second sender shows who it was.
    let verdicts = service.crash(5, "b", "m");
    assert_eq!(verdicts, [Verdict::Held("m".into()), Verdict::Released("a".into())]);
    assert_eq!(service.held(), ["m"]);
    // A sender that ended it by something else, too, stays.
    let mut service = Service::new();
    service.crash(5, "a", "");
    service.crash(5, "a", "m");
    assert_eq!(service.crash(5, "b", "m"), was_held("m"));
    assert_eq!(service.held(), ["a", "m"]);
}

#[test]
fn the_uplink_is_held_by_the_third_and_its_receiver_by_the_second() {
    let mut service = Service::new();
    assert_eq!(service.crash(5, "uplink", ""), []);
    assert!(service.history.order().skip_uplink);
    assert_eq!(service.crash(5, "uplink", "b"), []);
    assert_eq!(service.crash(5, "uplink", ""), [Verdict::UplinkHeld]);
    assert_eq!(service.held(), Vec::<&str>::new());
    let left = service.history.uplink_held().unwrap().until - service.now;
    assert_eq!(left, MINUTE);
    let mut service = Service::new();
    service.crash(5, "uplink", "m");
    assert_eq!(service.crash(5, "uplink", "m"), was_held("m"));
    service.crash(5, "uplink", "b");
    assert_eq!(service.crash(5, "uplink", ""), [], "two points are explained by m");
    assert_eq!(service.history.uplink_held(), None);
    let mut service = Service::new();
    service.crash(5, "switch", "m");
    assert_eq!(service.crash(5, "switch", "m"), was_held("m"));
}

#[test]
fn pauses_grow_up_to_an_hour_and_are_forgotten_after_a_day() {
    let mut service = Service::new();
    service.crash(5, "a", "");
    for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
        while service.held().is_empty() {
            service.crash(1, "a", "");
        }
        assert_eq!(service.left("a"), 60 * minutes);
        service.now += minutes * MINUTE - 1;
        assert_eq!(service.history.end_due(service.now).0, Vec::<String>::new());
        service.now += 1;
        assert_eq!(service.history.end_due(service.now).0, ["a"]);
        assert_eq!(service.held(), Vec::<&str>::new());
    }
    service.now += 24 * 60 * MINUTE + 1;
    service.crash(100, "a", "");
    service.crash(5, "a", "");
    assert_eq!(service.left("a"), 60);
}

#[test]
fn an_operator_lets_go_and_the_points_with_it() {
    let mut service = Service::new();
    service.crash(5, "a", "");
    service.crash(5, "a", "");
    assert_eq!(service.history.forget("a"), (true, true));
    assert_eq!(service.history.forget("a"), (false, false));
    assert_eq!(service.crash(5, "a", ""), []);
    assert_eq!(service.crash(5, "a", ""), was_held("a"));
    assert_eq!(service.left("a"), 60, "as if it were the first time");
}

#[test]
fn nobody_is_blamed_for_other_ends() {
    let mut service = Service::new();
    for _ in 0..100 {
        assert_eq!(service.ends(Some(1), None, None), [], "kill -9");
    }
    assert_eq!(service.history.order(), StartOrder::default());
    for _ in 0..2 {
        assert_eq!(service.ends(Some(1), Some(Cause::Panic), None), [], "the API");
    }
    assert_eq!(service.held(), Vec::<&str>::new());
    // Between turns.
    for _ in 0..2 {
        assert_eq!(service.ends(Some(100), Some(Cause::Signal(6)), Some(("", "b"))), []);
    }
}

#[test]
fn bad_starts_lead_to_starts_with_less() {
    let mut service = Service::new();
    let order = |service: &Service| {
        let StartOrder { degraded, set_aside, .. } = service.history.order();
        (degraded, service.history.all_held().is_some(), set_aside)
    };
    for n in 1..=12 {
        service.ends(None, None, None);
        let wanted = (n >= 3, (6..9).contains(&n), n >= 9);
        // The hold of all is over, but not forgotten.
        if n == 9 {
            service.history.end_due(service.now + MINUTE);
        }
        assert_eq!(order(&service), wanted, "{n}");
    }
    // One that ran for a minute with less shows nothing.
    service.ends(Some(3600), None, None);
    assert!(order(&service).0);
    // An operator stops it, who may have changed something.
    service.ends(Some(5), Some(Cause::Stopped), None);
    assert_eq!(order(&service), (false, false, false));
}

#[test]
fn only_ends_of_its_own_count_once_it_was_ready() {
    let mut service = Service::new();
    let count = |service: &Service| service.history.bad_starts;
    service.ends(Some(59), Some(Cause::Panic), None);
    service.ends(Some(59), None, None);
    assert_eq!(count(&service), 1);
    service.ends(Some(60), Some(Cause::Panic), None);
    assert_eq!(count(&service), 0, "it was steady");
    service.ends(None, None, None);
    service.ends(None, Some(Cause::Stopped), None);
    assert_eq!(count(&service), 1, "it gave up in good order");
    // Processes that ended before they had a box.
    service.term += 2;
    service.history.count(service.term, None, service.now);
    assert_eq!(count(&service), 3);
    service.ends(Some(5), Some(Cause::Panic), None);
    assert_eq!(count(&service), 4);
    let before = count(&service);
    service.history.count(service.term, None, service.now);
    assert_eq!(count(&service), before, "each end counts once");
}

#[test]
fn a_hold_is_an_attempt_to_mend_it() {
    let mut service = Service::new();
    for n in 0..20 {
        let id = format!("vm-{n}");
        service.crash(1, &id, "");
        assert_eq!(service.crash(1, &id, ""), was_held(&id));
        assert!(!service.history.order().degraded, "{n}");
    }
    // Ends for which each time another one seems to blame.
    for n in 0..3 {
        service.crash(1, &format!("other-{n}"), "");
    }
    assert!(service.history.order().degraded);
}

#[test]
fn another_release_begins_with_a_clean_record() {
    let mut service = Service::new();
    service.crash(1, "a", "");
    service.crash(1, "a", "");
    let text = String::from_utf8(service.history.text()).unwrap();
    let other = text.replace(butterfly_version::VERSION, "0.0.1");
    let read = History::read(other.as_bytes(), service.now).unwrap();
    assert_eq!(read.held().count(), 0);
    assert!(read.text() != service.history.text());
}

#[test]
fn a_text_is_not_believed() {
    let mut service = Service::new();
    service.crash(1, "a", "b");
    service.crash(1, "a", "b");
    let text = String::from_utf8(service.history.text()).unwrap();
    let now = service.now;
    let held = |text: &str| History::read(text.as_bytes(), now).map(|read| read.held().count());
    assert_eq!(held(&text), Ok(1));
    let until = (now + MINUTE).to_string();
    assert_eq!(held(&text.replace(&until, &u64::MAX.to_string())), Ok(0));
    assert_eq!(held(&text.replace("\"a\"", "\"\"")), Ok(0));
    assert_eq!(held(&text.replace("\"a\"", &format!("{:?}", "x".repeat(300)))), Ok(0));
    for broken in ["", "{}", "[]", &text[1..], &text.replace("\"layout\":1", "\"layout\":2")] {
        assert!(History::read(broken.as_bytes(), now).is_err(), "{broken}");
    }
    // More than is kept.
    let mut service = Service::new();
    for n in 0..200 {
        service.crash(0, &format!("{n}"), "");
    }
    assert!(service.history.text().len() < 10_000);
}

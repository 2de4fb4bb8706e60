use super::*;
use crate::events::{Kind, Note, Query};
use butterfly_api::{RequestCount, proto::EventListReq};
use butterfly_datapath::{Front, Mac, Role, SwitchConfig, VnicPolicy, VnicSpec};
use butterfly_model::Vni;
use std::path::Path;

/// A process: what it has, declared anew each time.
struct Process {
    switch: Arc<Switch>,
    events: Events,
    requests: Arc<Requests>,
}

impl Process {
    fn new(folder: &Path) -> Process {
        let config = SwitchConfig { sessions: 64, ..SwitchConfig::default() };
        let switch = Switch::prepare(config, None, Arc::new(())).unwrap();
        let front = Front::Socket { path: folder.join("a"), role: Role::Server };
        let spec = VnicSpec {
            id: "a".into(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            vni: Vni::new(7).unwrap(),
            front,
            policy: VnicPolicy::default(),
            sniff_target: None,
            order: 1,
            birth: 1,
        };
        switch.add_vnic(spec).unwrap();
        Process { switch: Arc::new(switch), events: Events::default(), requests: Arc::default() }
    }

    fn keep(&self, checkpoint: &Checkpoint, life: Life) -> Kept {
        let kept = checkpoint.keep(life, self.switch.clone(), self.events.clone());
        kept.count(self.requests.clone());
        kept
    }

    fn resume(&self, checkpoint: &Checkpoint) -> Resumed {
        let resumed = checkpoint.resume(&self.switch, &self.events, &self.requests);
        self.events.note(Note::new(Kind::DaemonResumed, resumed.to_string()));
        resumed
    }

    fn added(&self) -> u64 {
        self.switch.observe().updates[0].1
    }

    fn last_event(&self) -> (u64, String) {
        let query = Query { limit: 1, newest: true, ..Query::default() };
        let event = self.events.list(&query).events.pop().unwrap();
        (event.seq, format!("{} {}", event.kind.name(), event.text))
    }
}

fn handed_on(checkpoint: &Checkpoint) -> Checkpoint {
    Checkpoint::open(checkpoint.as_fd().try_clone_to_owned().unwrap()).unwrap()
}

fn sequences(checkpoint: &Checkpoint) -> [u64; HALVES.len()] {
    let sheets = [Sheet::Life, Sheet::Counters, Sheet::Rules, Sheet::Stations, Sheet::Events];
    sheets.map(|sheet| checkpoint.sheet(sheet).newest().map_or(0, |newest| newest.sequence))
}

#[test]
fn the_sheets_fit_the_file() {
    assert!(2 * HALVES.iter().sum::<usize>() as u64 <= SIZE);
}

/// Three processes, each of which goes on for the one before.
#[test]
fn a_process_goes_on_for_the_one_that_died() {
    let folder = tempfile::tempdir().unwrap();
    let first = Process::new(folder.path());
    let checkpoint = Checkpoint::create().unwrap();
    first.events.note(Note::new(Kind::DaemonStarted, "started"));
    let answered =
        |request| RequestCount { request, succeeded: 4, failed: 2, time: Duration::from_millis(3) };
    assert!(first.requests.add_former(&answered("nic_list")));
    let life = Life::begin();
    first.keep(&checkpoint, life.clone()).keep_all();
    drop(first);
    for restarts in 1..3 {
        let next = Process::new(folder.path());
        let before = handed_on(&checkpoint);
        let resumed = next.resume(&before);
        assert!(resumed.is_whole(), "{resumed}");
        assert_eq!(resumed.life, Life { restarts, ..life.clone() });
        assert!(resumed.stood_still.unwrap() < Duration::from_secs(60));
        assert_eq!((resumed.taken.vnics, resumed.record.events as u64), (1, restarts));
        // Its own vnic, and those of the processes before.
        assert_eq!(next.added(), restarts + 1);
        let counted = next.requests.list().find(|count| count.request == "nic_list").unwrap();
        assert_eq!(counted, answered("nic_list"));
        let (seq, text) = next.last_event();
        assert_eq!(seq, restarts + 1);
        let begin = format!("daemon-resumed restart {restarts}, ");
        assert!(text.starts_with(&begin), "{text}");
        let end = format!(
            "; taken over: {restarts} events, counters of 1 vnics and of 0 that are gone, 0 learnt addresses, 0 hosts, 0 link-local addresses, admissions of 0 rules"
        );
        assert!(text.ends_with(&end), "{text}");
        next.keep(&checkpoint, resumed.life).keep_all();
    }
}

/// Each answer writes what it tells, and nothing else.
#[test]
fn an_answer_is_written_before_it_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::new(folder.path());
    let checkpoint = Checkpoint::create().unwrap();
    let kept = process.keep(&checkpoint, Life::begin());
    process.events.note(Note::new(Kind::DaemonStarted, "started"));
    let list = EventListReq::default();
    let cases: [(Action<'_>, [u64; HALVES.len()]); 5] = [
        (Action::NicStats("a"), [1, 1, 0, 0, 0]),
        (Action::SgRuleStats("g"), [1, 1, 1, 0, 0]),
        (Action::EventList(&list), [1, 1, 1, 0, 1]),
        // Nothing has happened since.
        (Action::EventList(&list), [1, 1, 1, 0, 1]),
        (Action::NicDel("a"), [1, 1, 1, 0, 1]),
    ];
    for (action, expected) in cases {
        kept.before_answer(&action);
        assert_eq!(sequences(&checkpoint), expected, "{action:?}");
    }
    process.events.note(Note::new(Kind::UplinkUp, "up"));
    kept.keep_all();
    assert_eq!(sequences(&checkpoint), [2, 2, 2, 1, 2]);
}

#[test]
fn everything_is_written_once_per_second_and_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::new(folder.path());
    let checkpoint = Checkpoint::create().unwrap();
    let writing = process.keep(&checkpoint, Life::begin()).start().unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(30);
    while sequences(&checkpoint)[Sheet::Stations as usize] < 2 {
        assert!(std::time::Instant::now() < end, "{:?}", sequences(&checkpoint));
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = sequences(&checkpoint)[Sheet::Counters as usize];
    drop(writing);
    assert!(sequences(&checkpoint)[Sheet::Counters as usize] > before);
}

/// A checkpoint that holds anything else begins anew, and says so.
#[test]
fn a_checkpoint_that_is_none_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    for text in ["", "{", "[]", "{\"layout\":1}", "{\"layout\":9,\"boot\":\"\"}", "nonsense"] {
        let checkpoint = Checkpoint::create().unwrap();
        for sheet in [Sheet::Life, Sheet::Counters, Sheet::Rules, Sheet::Stations, Sheet::Events] {
            checkpoint.sheet(sheet).write(text.as_bytes()).unwrap();
        }
        let process = Process::new(folder.path());
        let resumed = process.resume(&checkpoint);
        assert_eq!(resumed.is_whole(), text.is_empty(), "{text}: {resumed}");
        assert_eq!((resumed.life.restarts, resumed.stood_still), (0, None));
        assert_eq!((process.added(), process.last_event().0), (1, 1), "{text}");
    }
    let wrong = rustix::fs::memfd_create("wrong", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert!(Checkpoint::open(wrong).is_err());
}

/// A life that was forged, or of another start of the host.
#[test]
fn a_forged_life_is_read_with_care() {
    let requests = Requests::default();
    let text = |boot: &str, written: u64, count: u64| {
        format!(
            "{{\"layout\":1,\"boot\":\"{boot}\",\"started\":{},\"restarts\":{},\"written\":{written},\"requests\":[{{\"request\":\"nic_list\",\"succeeded\":{count},\"failed\":0,\"nanoseconds\":0}}]}}",
            u64::MAX,
            u64::MAX
        )
    };
    let here = Life::begin().boot;
    for (text, problems) in [
        (text(&here, u64::MAX, 1), 0),
        (text("another", 1, 1), 0),
        (text(&here, u64::MAX, u64::MAX), 1),
    ] {
        let resumed = Resumed::of(text.as_bytes(), &requests);
        assert_eq!((resumed.stood_still, resumed.problems.len()), (None, problems), "{text}");
        assert_eq!(resumed.life.restarts, u64::MAX);
        assert!(resumed.life.started < u64::MAX);
    }
}

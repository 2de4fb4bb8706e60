//! Deaths of a host in this process: its thread unwinds at a random point, and another host goes on
//! with the guests' rings and the table of sessions, both as they were at that point.
//!
//! One thread does everything, so each frame is accounted for: it arrived, or a death cost it.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    time::Instant,
};

use butterfly_datapath::{GroupChange, Mac, SessionConfig, VnicPolicy, harness::Host};
use butterfly_guest_driver::Guest;
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::build;
use butterfly_point::{Died, Point, doom, spare};
use butterfly_tests::frames::{mac, pattern};
use butterfly_vhost::net::NetHeader;
use fastrand::Rng;

/// Most frames that one death costs: a batch. One thread does all turns, so only one worker has
/// frames in hand.
const BATCH: u64 = 64;
/// Workers of a host, which serve each guest in turn.
const WORKERS: usize = 2;
/// Frames under way at once: each receiver has room for them.
const UNDER_WAY: u64 = 180;
/// Most points that a host passes before it dies.
const LONGEST: u64 = 3000;
/// Guests: the name, the address, whether there is a filter, the network.
const GUESTS: [(&str, u32, bool, u32); 5] = [
    ("a", 1, true, 1),
    ("b", 2, true, 1),
    ("c", 3, false, 1),
    ("d", 4, false, 1),
    // Another network: nothing may ever come here. Its address is one of the first.
    ("e", 1, false, 2),
];
/// A mirror of the first.
const MIRROR: &str = "m";
/// Directions of unicast frames: indices of guests.
const WAYS: [(usize, usize); 6] = [(0, 1), (1, 0), (2, 3), (3, 2), (0, 3), (2, 1)];
/// Points that such a host passes.
const POINTS: [Point; 13] = [
    Point::TxTaken,
    Point::RxWritten,
    Point::RxEntry,
    Point::TxEntries,
    Point::TxReleased,
    Point::RxPublished,
    Point::RingLeaves,
    Point::GivenUp,
    Point::Taken,
    Point::SessionWritten,
    Point::SessionCounted,
    Point::SessionLinked,
    Point::SessionUnlinked,
];
/// Number of the stream of floods, which the third guest sends.
const FLOODS: u64 = 100;

fn group() -> GroupName {
    GroupName::new("g").expect("a name")
}

fn file(name: &str) -> PathBuf {
    Path::new("/dev/shm").join(name)
}

/// Address of a guest.
fn address(guest: usize) -> Mac {
    mac(GUESTS.get(guest).expect("a guest").1)
}

/// A frame of a stream: its number, and bytes that follow from both.
fn frame(stream: u64, number: u64) -> Vec<u8> {
    let mut payload = stream.to_be_bytes().to_vec();
    payload.extend(number.to_be_bytes());
    // Now and then more than a slot holds, or than a descriptor's usual buffer does.
    let len = if number.is_multiple_of(7) { 900 } else { 10 + number % 90 };
    payload.extend(pattern(number, len as usize));
    let ports = (1024 + (number / 4 % 500) as u16, 7);
    let (from, to) = match WAYS.get(stream as usize) {
        Some(&(from, to)) => ((address(from), from), (address(to), to)),
        None => ((address(2), 2), (Mac::BROADCAST, 254)),
    };
    let ip = |guest: usize| [10, 0, 0, 1 + guest as u8];
    build::ethernet(from.0, to.0).ipv4(ip(from.1), ip(to.1)).udp(ports.0, ports.1, &payload)
}

/// Reads and checks a frame. Returns its stream and number.
fn read(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    let (stream, number) = (word(42).map(u64::from_be_bytes), word(50).map(u64::from_be_bytes));
    let (stream, number) = stream.zip(number).unwrap_or_else(|| panic!("foreign: {bytes:02x?}"));
    assert_eq!(bytes, frame(stream, number), "frame {number} of {stream} was changed");
    (stream, number)
}

/// Numbers of a stream.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    sent: u64,
    next: u64,
}

/// Counts of everything that was seen.
#[derive(Debug, Default)]
struct Seen {
    arrived: u64,
    lost: u64,
    most: u64,
    floods: u64,
    floods_again: u64,
    mirrored: u64,
    mirrored_again: u64,
    sessions: u64,
    moves: u64,
    deaths: BTreeMap<&'static str, u64>,
}

/// A host, or what a dead one left; its guests; what they sent.
struct World {
    host: Option<Host>,
    /// Guests without a host.
    guests: BTreeMap<String, Guest>,
    /// File of the table of sessions, and the one to which a dying host copies it.
    table: String,
    copy: String,
    ways: [Numbers; WAYS.len()],
    /// Floods, as each of their receivers sees them, and as the sender.
    floods: BTreeMap<String, Numbers>,
    flooded: u64,
    /// Copies for the mirror, by stream.
    mirrored: BTreeMap<u64, u64>,
    under_way: u64,
    /// Deaths since all frames were accounted for.
    died: u64,
    seen: Seen,
}

/// Dies `count` deaths.
pub fn run(count: u64, random: &mut Rng) {
    let begun = Instant::now();
    let name = |which| format!("butterfly-test-inside-{}-{which}", std::process::id());
    let mut world = World {
        host: None,
        guests: BTreeMap::new(),
        table: name("a"),
        copy: name("b"),
        ways: Default::default(),
        floods: BTreeMap::new(),
        flooded: 0,
        mirrored: BTreeMap::new(),
        under_way: 0,
        died: 0,
        seen: Seen::default(),
    };
    for _ in 0..count {
        world.live_and_die(random);
    }
    world.go_on();
    world.settle();
    for name in [&world.table, &world.copy] {
        let _ = std::fs::remove_file(file(name));
    }
    let Seen { arrived, lost, most, .. } = world.seen;
    println!("{:?}", world.seen);
    println!(
        "{count} deaths in {:.1} s: {arrived} frames arrived, {lost} were lost, {most} at most by \
         one death",
        begun.elapsed().as_secs_f64()
    );
}

impl World {
    /// Goes on with what is there, works, and dies at a random point.
    fn live_and_die(&mut self, random: &mut Rng) {
        let (point, passages) = match random.u32(..8) {
            // While it takes over.
            0 => (None, random.u64(1..40)),
            1..4 => (None, random.u64(1..LONGEST)),
            // Those of one frame are passed far more often than others.
            _ => (Some(*random.choice(&POINTS).expect("some")), random.u64(1..100)),
        };
        let (from, to) = (file(&self.table), file(&self.copy));
        let copy = move || _ = std::fs::copy(&from, &to).expect("a copy of the table");
        doom(point, passages, copy.clone());
        let lived = catch_unwind(AssertUnwindSafe(|| {
            self.go_on();
            self.settle();
            for _ in 0..400 {
                self.act(random);
            }
        }));
        let point = match lived {
            Ok(()) => {
                assert!(spare());
                // Between two turns.
                copy();
                "none"
            }
            Err(died) => match died.downcast::<Died>() {
                Ok(died) => died.0.name(),
                Err(failed) => resume_unwind(failed),
            },
        };
        self.died += 1;
        *self.seen.deaths.entry(point).or_default() += 1;
        if let Some(host) = self.host.take() {
            self.guests.extend(host.die());
        }
        std::mem::swap(&mut self.table, &mut self.copy);
    }

    /// Begins, or goes on for a host that died.
    fn go_on(&mut self) {
        let sessions = SessionConfig {
            capacity: 2048,
            share: 100,
            file: Some(self.table.clone()),
            adopt: true,
            ..SessionConfig::default()
        };
        let host = self.host.insert(Host::with(sessions, None, WORKERS).expect("a host"));
        let any = Cidr::new("0.0.0.0", 0).expect("a prefix");
        let udp = Rule::new(Direction::Inbound, 17, (Some(7), Some(7)), Some(any), None);
        let rules = [udp.expect("a rule")];
        let declared = SecurityGroup::new(group(), &[] as &[&str], rules).expect("a group");
        host.change_group(&group(), GroupChange::Declare(declared)).expect("a group");
        for (guest, (id, _, filtered, vni)) in GUESTS.into_iter().enumerate() {
            let policy = VnicPolicy {
                bypass: !filtered,
                ips: vec![[10, 0, 0, 1 + guest as u8].into()],
                groups: filtered.then(group).into_iter().collect(),
                ..VnicPolicy::default()
            };
            host.declare(id, address(guest), vni, &policy).expect("a vnic");
        }
        host.declare_mirror(MIRROR, mac(9), 1, "a").expect("a mirror");
        host.all_declared();
        self.seen.sessions = self.seen.sessions.max(host.count_sessions().expect("exact counts"));
        for id in GUESTS.iter().map(|guest| guest.0).chain([MIRROR]) {
            match self.guests.remove(id) {
                Some(guest) => host.go_on(id, guest).expect("its rings"),
                None => {
                    let config = butterfly_guest_driver::GuestConfig::default();
                    let memory = butterfly_guest_driver::MemoryConfig::new(config.memory_needed());
                    let features = butterfly_datapath::harness::LINUX;
                    host.attach(id, features, &config, &memory).expect("a guest");
                }
            }
        }
    }

    fn host(&mut self) -> &mut Host {
        self.host.as_mut().expect("it lives")
    }

    /// Does something.
    fn act(&mut self, random: &mut Rng) {
        match random.u32(..100) {
            0..60 => {
                let way = random.usize(..WAYS.len());
                self.send(way as u64, random.u64(1..40));
            }
            60..66 => self.send(FLOODS, random.u64(1..4)),
            66..80 => drop(self.host().turn()),
            80..90 => self.move_ring(random),
            90..96 => self.settle(),
            96 => self.host().pass(random.u32(1..20)),
            97 => {
                let rule = Rule::new(
                    Direction::Inbound,
                    6,
                    (Some(random.u16(1..9).into()), Some(99)),
                    Cidr::new("10.0.0.0", 8).ok(),
                    None,
                );
                let change = GroupChange::AddRule(rule.expect("a rule"));
                self.host().change_group(&group(), change).expect("a change");
            }
            _ => {
                let counted = self.host().count_sessions();
                counted.expect("exact counts");
            }
        }
    }

    /// Moves a guest's ring, which may have frames.
    fn move_ring(&mut self, random: &mut Rng) {
        let (id, ..) = *random.choice(&GUESTS).expect("some");
        let moved = self.host().move_to(id, random.usize(..WORKERS));
        self.seen.moves += u64::from(moved);
    }

    /// Sends frames of a stream.
    fn send(&mut self, stream: u64, count: u64) {
        if self.under_way + count > UNDER_WAY {
            self.settle();
        }
        let from = WAYS.get(stream as usize).map_or(2, |way| way.0);
        let first = match self.ways.get(stream as usize) {
            Some(way) => way.sent,
            None => self.flooded,
        };
        let host = self.host.as_mut().expect("it lives");
        let guest = host.guest(GUESTS[from].0).expect("a guest");
        guest.reclaim().expect("a sound ring");
        let mut sent = 0;
        while sent < count
            && guest.enqueue(&frame(stream, first + sent), NetHeader::default()).is_ok()
        {
            sent += 1;
        }
        // Counted before anybody can die of it.
        match self.ways.get_mut(stream as usize) {
            Some(way) => way.sent += sent,
            None => self.flooded += sent,
        }
        self.under_way += sent;
        guest.flush();
    }

    /// Works until nothing is left to do, and takes all that arrived. Each death since the last
    /// time may have cost a batch of unicast frames; without one, all are there.
    fn settle(&mut self) {
        self.host().settle();
        let before = self.seen.lost;
        let received = self.host().received().expect("sound rings");
        for (id, frames) in received {
            assert_ne!(id, "e", "a frame crossed networks");
            for (_, bytes) in frames {
                self.take(&id, &bytes);
            }
        }
        for (id, ..) in GUESTS {
            self.host().guest(id).expect("a guest").refill(usize::MAX);
        }
        self.host().guest(MIRROR).expect("a guest").refill(usize::MAX);
        // What did not arrive by now never will.
        let lost: u64 = self.ways.iter().map(|way| way.sent - way.next).sum();
        self.seen.lost += lost;
        self.ways.iter_mut().for_each(|way| way.next = way.sent);
        self.under_way = 0;
        let cost = self.seen.lost - before;
        assert!(cost <= BATCH * self.died, "{} deaths cost {cost} frames", self.died);
        if self.died == 1 {
            self.seen.most = self.seen.most.max(cost);
        }
        self.died = 0;
    }

    fn take(&mut self, id: &str, bytes: &[u8]) {
        let (stream, number) = read(bytes);
        if id == MIRROR {
            self.seen.mirrored += 1;
            let next = self.mirrored.entry(stream).or_default();
            self.seen.mirrored_again += u64::from(number < *next);
            *next = (*next).max(number + 1);
            return;
        }
        let Some(&(_, to)) = WAYS.get(stream as usize) else {
            assert_eq!(stream, FLOODS, "no such stream");
            assert!(number < self.flooded, "flood {number} was never sent");
            self.seen.floods += 1;
            let numbers = self.floods.entry(id.to_owned()).or_default();
            self.seen.floods_again += u64::from(number < numbers.next);
            numbers.next = numbers.next.max(number + 1);
            return;
        };
        assert_eq!(id, GUESTS[to].0, "stream {stream} goes to another guest");
        let way = &mut self.ways[stream as usize];
        assert!(number < way.sent, "frame {number} of {stream} was never sent");
        assert!(number >= way.next, "frame {number} of {stream} again: {} was next", way.next);
        self.seen.lost += number - way.next;
        way.next = number + 1;
        self.seen.arrived += 1;
    }
}

//! Tables that are too small for the traffic. The choice of refused sessions may change, but these
//! sentences hold.
//!
//! A conversation that was answered goes on until it times out or policy ends it, however many
//! others open. A packet that was let in may be answered. No vnic has more sessions than its share.
//! A vnic that asks for little gets it.

use std::collections::BTreeMap;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, SessionFilter, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

use crate::random::Random;

const CAPACITY: u32 = 256;
/// A quarter, as the configuration below says.
const SHARE: u64 = 64;
/// Seconds that UDP lasts without and with an answer.
const UNANSWERED: u32 = 30;
const ANSWERED: u32 = 60;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const SERVICE: u16 = 9;

fn mac(vnic: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, 0xa + vnic as u8])
}

/// Three vnics in each of two networks. All of them are filtered, let in one UDP port, and let
/// everything out.
fn host() -> Host {
    let sessions = SessionConfig { capacity: CAPACITY, share: 25, ..SessionConfig::default() };
    let mut host = Host::with_sessions(sessions).unwrap();
    let group = GroupName::new("service").unwrap();
    for (i, name) in NAMES.iter().enumerate() {
        let policy = VnicPolicy {
            ip_anti_spoof: true,
            ips: vec![[10, 0, 0, i as u8 + 1].into()],
            groups: vec![group.clone()],
            ..VnicPolicy::default()
        };
        let config = GuestConfig::default().rings(64);
        host.declare(name, mac(i), 1 + i as u32 / 3, &policy).unwrap();
        host.attach(name, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
    }
    let any = Cidr::new("0.0.0.0", 0).unwrap();
    let rule = Rule::new(
        Direction::Inbound,
        17,
        (Some(SERVICE.into()), Some(SERVICE.into())),
        Some(any),
        None,
    )
    .unwrap();
    let group = SecurityGroup::new(group, Vec::<String>::new(), [rule]).unwrap();
    host.change_group(&group.name().clone(), GroupChange::Declare(group)).unwrap();
    host.settle();
    host.moved();
    host
}

/// A client's port towards a server, both by index.
type Talk = (usize, usize, u16);

struct Ledger {
    host: Host,
    now: u32,
    /// When something passed last, of those that were answered.
    answered: BTreeMap<Talk, u32>,
    /// When something passed last, of all that may be in the table.
    open: BTreeMap<Talk, u32>,
    refused: u64,
}

impl Ledger {
    /// Returns whether a frame of a conversation arrives.
    fn passes(&mut self, (client, server, port): Talk, back: bool) -> bool {
        let (from, to, ports) = if back {
            (server, client, (SERVICE, port))
        } else {
            (client, server, (port, SERVICE))
        };
        let ip = |vnic: usize| [10, 0, 0, vnic as u8 + 1];
        let frame =
            build::ethernet(mac(from), mac(to)).ipv4(ip(from), ip(to)).udp(ports.0, ports.1, b"");
        self.host.send(NAMES[from], &frame, NetHeader::default()).unwrap();
        let received = self.host.received().unwrap();
        received.iter().any(|(name, frames)| name == NAMES[to] && !frames.is_empty())
    }

    /// Returns whether it was let in.
    fn ask(&mut self, talk: Talk) -> bool {
        let known = self.answered.get(&talk).is_some_and(|seen| self.now - seen < ANSWERED);
        let little = self.open.len() < 8;
        let passed = self.passes(talk, false);
        assert!(passed || !known, "{talk:?} was answered, and its client is refused");
        assert!(
            passed || !little,
            "{talk:?} is refused, and there are {} conversations",
            self.open.len()
        );
        if passed {
            self.open.insert(talk, self.now);
            self.answered.entry(talk).and_modify(|seen| *seen = self.now);
        } else {
            self.refused += 1;
        }
        passed
    }

    fn answer(&mut self, talk: Talk, just_asked: bool) {
        let known = self.answered.get(&talk).is_some_and(|seen| self.now - seen < ANSWERED);
        let passed = self.passes(talk, true);
        assert!(passed || !known, "{talk:?} was answered before, and its server is refused");
        assert!(passed || !just_asked, "{talk:?} was let in, and its answer is refused");
        // An answer without a question is let in by nothing: the rule is about the service's port.
        assert!(
            !passed || self.open.contains_key(&talk),
            "{talk:?} was never let in, and its answer passes"
        );
        if passed {
            self.open.insert(talk, self.now);
            self.answered.insert(talk, self.now);
        }
    }

    fn pass(&mut self, seconds: u32) {
        self.host.pass(seconds);
        // After a search in vain the next one is 100 us later, on the processor's own clock.
        std::thread::sleep(std::time::Duration::from_millis(1));
        self.now += seconds;
        let now = self.now;
        self.answered.retain(|_, seen| now - *seen < ANSWERED);
        // A second more: of whole ones, the last may count.
        let answered = &self.answered;
        self.open.retain(|talk, seen| {
            now - *seen <= if answered.contains_key(talk) { ANSWERED } else { UNANSWERED } + 1
        });
    }

    fn check_shares(&self) {
        for name in NAMES {
            let filter = SessionFilter { nic: Some(name.to_owned()), ..SessionFilter::default() };
            let count = self.host.sessions(&filter, 0).0;
            assert!(count <= SHARE, "{name} has {count} sessions, its share is {SHARE}");
        }
        let all = self.host.sessions(&SessionFilter::default(), 0).0;
        assert!(all <= u64::from(CAPACITY), "{all} sessions");
    }
}

#[test]
fn small_tables_keep_their_promises() {
    let mut refused = 0;
    for seed in 0..12 {
        let mut random = Random(seed);
        let mut ledger = Ledger {
            host: host(),
            now: 1,
            answered: BTreeMap::new(),
            open: BTreeMap::new(),
            refused: 0,
        };
        for turn in 0..1200 {
            let network = 3 * random.below(2);
            let client = random.below(3);
            let server = network + (client + 1 + random.below(2)) % 3;
            let talk = (network + client, server, 100 + random.below(60) as u16);
            let known = random.below(ledger.answered.len().max(1));
            match random.below(20) {
                // Asked and answered, or asked only: most of the time more than there is room for.
                0..6 => {
                    let passed = ledger.ask(talk);
                    if passed {
                        ledger.answer(talk, true);
                    }
                }
                6..14 => {
                    ledger.ask(talk);
                }
                14 => ledger.answer(talk, false),
                15..18 => {
                    if let Some(talk) = ledger.answered.keys().nth(known).copied() {
                        if random.percent(50) {
                            ledger.ask(talk);
                        } else {
                            ledger.answer(talk, false);
                        }
                    }
                }
                18 => ledger.pass(1 + random.below(3) as u32),
                _ if random.percent(10) => ledger.pass(ANSWERED + 2),
                _ => {}
            }
            if turn % 20 == 0 {
                ledger.check_shares();
            }
        }
        // What was answered is there to the last.
        for talk in ledger.answered.keys().copied().collect::<Vec<_>>() {
            ledger.answer(talk, false);
        }
        refused += ledger.refused;
    }
    assert!(refused > 100, "the tables were large enough: only {refused} were refused");
}

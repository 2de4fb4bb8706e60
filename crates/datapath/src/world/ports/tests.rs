use std::collections::BTreeSet;

use butterfly_packet::tcp::{ACK, FIN, RST, SYN};
use proptest::prelude::*;

use super::*;

const KEY_HERE: [u64; 2] = [0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321];
/// The time of most tests: seconds and tenths.
const NOW: (u32, u32) = (100_000, 7);

fn ports() -> PortTable {
    PortTable::new(KEY_HERE).unwrap()
}

fn end(machine: u32, port: u16, protocol: PortProtocol) -> InsideEnd {
    InsideEnd { address: 0x0a00_0000 + machine, port, protocol }
}

fn nobody(_: u16) -> bool {
    false
}

fn give(ports: &PortTable, end: InsideEnd) -> Result<u16, NoPort> {
    ports.give(end, 0, NOW, nobody)
}

/// Has others, of another machine each, have all these ports.
fn fill(ports: &PortTable, protocol: PortProtocol, of: impl Iterator<Item = u16>, now: u32) {
    for port in of {
        let owner = end(0xf_0000 + u32::from(port), 5, protocol).owner();
        let word = PortUse { owner, state: PortState::New, time: time(now) }.word();
        ports.word(protocol, port).unwrap().store(word, Relaxed);
    }
}

#[test]
fn an_end_has_its_own_port_if_it_can() {
    let ports = ports();
    let (one, other) = (end(1, 5000, PortProtocol::Udp), end(2, 5000, PortProtocol::Udp));
    assert_eq!(give(&ports, one), Ok(5000));
    assert_eq!(ports.inside_of(PortProtocol::Udp, 5000, NOW.0), Some(one));
    // Two machines have two ports, of the same parity, and keep them.
    let second = give(&ports, other).unwrap();
    assert!(second != 5000 && second.is_multiple_of(2) && second >= FIRST, "{second}");
    assert_eq!([give(&ports, one), give(&ports, other)], [Ok(5000), Ok(second)]);
    assert_eq!(ports.inside_of(PortProtocol::Udp, second, NOW.0), Some(other));
    // Ports of another protocol are others.
    assert_eq!(give(&ports, end(2, 5000, PortProtocol::Tcp)), Ok(5000));
    assert_eq!(ports.inside_of(PortProtocol::Echo, 5000, NOW.0), None);
    // Nobody has one of those that hosts trust.
    let low = give(&ports, end(1, 53, PortProtocol::Udp)).unwrap();
    assert!(low >= FIRST && low % 2 == 1, "{low}");
    assert!(give(&ports, end(1, 0, PortProtocol::Echo)).unwrap() >= FIRST);
}

#[test]
fn a_forwarded_port_is_nobodys() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Tcp);
    let taken = |port| port == 5000;
    let given = ports.give(one, SYN, NOW, taken).unwrap();
    assert_ne!(given, 5000);
    assert_eq!(ports.outside_of(one, NOW.0, taken), Some(given));
    // One that is forwarded later is not its own any more.
    assert_eq!(ports.give(end(2, 6000, PortProtocol::Tcp), SYN, NOW, nobody), Ok(6000));
    assert_ne!(
        ports.give(end(2, 6000, PortProtocol::Tcp), SYN, NOW, |port| port == 6000),
        Ok(6000)
    );
}

/// A free candidate before its own does not end the search: the end keeps its port.
#[test]
fn the_search_goes_to_the_end() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Tcp);
    let candidates: Vec<u16> = ports.candidates(one).collect();
    assert_eq!((candidates.len(), candidates[0]), (64, 5000));
    fill(&ports, PortProtocol::Tcp, candidates[..63].iter().copied(), NOW.0);
    let last = give(&ports, one).unwrap();
    assert_eq!(last, candidates[63]);
    candidates[..63].iter().filter(|port| **port != last).for_each(|port| {
        ports.word(PortProtocol::Tcp, *port).unwrap().store(0, Relaxed);
    });
    assert_eq!(give(&ports, one), Ok(last));
    assert_eq!(ports.outside_of(one, NOW.0, nobody), Some(last));
}

#[test]
fn a_full_table_takes_nobodys_port() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Tcp);
    fill(&ports, PortProtocol::Tcp, 0..=u16::MAX, NOW.0);
    assert_eq!(give(&ports, one), Err(NoPort::Full));
    assert_eq!(ports.would_give(one, NOW.0, nobody), Err(NoPort::Full));
    assert_eq!(give(&ports, end(1, 5000, PortProtocol::Udp)), Ok(5000));
    // What is over is taken, and its time is that of the new one.
    let later = NOW.0 + 300;
    assert_eq!(ports.give(one, SYN, (later, 7), nobody), Ok(5000));
    assert_eq!(ports.inside_of(PortProtocol::Tcp, 5000, later), Some(one));
}

/// Searches in vain cost a machine its own: it looks no more until the next tenth of a second.
#[test]
fn searches_in_vain_are_bounded() {
    let ports = ports();
    let has = end(1, 7000, PortProtocol::Udp);
    assert_eq!(give(&ports, has), Ok(7000));
    fill(&ports, PortProtocol::Tcp, 0..=u16::MAX, NOW.0);
    for port in 0..2 * VAIN as u16 {
        assert_eq!(give(&ports, end(1, 2000 + port, PortProtocol::Tcp)), Err(NoPort::Full));
    }
    // Now there is room, and it does not look. What it has stays.
    ports.word(PortProtocol::Tcp, 9000).unwrap().store(0, Relaxed);
    assert_eq!(give(&ports, end(1, 9000, PortProtocol::Tcp)), Err(NoPort::Full));
    assert_eq!(give(&ports, has), Ok(7000));
    assert_eq!(give(&ports, end(2, 9000, PortProtocol::Tcp)), Ok(9000));
    assert_eq!(ports.give(end(1, 7002, PortProtocol::Udp), 0, (NOW.0, 8), nobody), Ok(7002));
}

/// Never shorter than the standards want, and at most 16 seconds longer.
#[test]
fn ports_last_for_their_time() {
    let syn_answered = |ports: &PortTable, one| ports.came(one, 5000, SYN | ACK);
    type Then = fn(&PortTable, InsideEnd);
    let cases: [(PortProtocol, u8, Then, u32); 7] = [
        (PortProtocol::Udp, 0, |_, _| {}, 300),
        (PortProtocol::Udp, 0, |ports, one| ports.came(one, 5000, 0), 300),
        (PortProtocol::Echo, 0, |_, _| {}, 60),
        (PortProtocol::Tcp, SYN, |_, _| {}, 240),
        (PortProtocol::Tcp, SYN, syn_answered, 7440),
        (PortProtocol::Tcp, FIN, syn_answered, 240),
        (
            PortProtocol::Tcp,
            SYN,
            |ports, one| [ACK, RST].map(|it| ports.came(one, 5000, it)).into_iter().for_each(drop),
            240,
        ),
    ];
    for (n, (protocol, flags, then, lasts)) in cases.into_iter().enumerate() {
        for begun in [NOW.0, NOW.0 + 7, 5, 8 * 0x3fff - 1] {
            let ports = ports();
            let one = end(1, 5000, protocol);
            assert_eq!(ports.give(one, flags, (begun, 0), nobody), Ok(5000));
            then(&ports, one);
            let at = |seconds| ports.inside_of(protocol, 5000, begun + seconds);
            assert_eq!((at(0), at(lasts)), (Some(one), Some(one)), "{n}");
            assert_eq!((at(lasts + 16), at(100_000)), (None, None), "{n}");
            assert_eq!(ports.outside_of(one, begun + lasts + 16, nobody), None);
        }
    }
}

#[test]
fn its_own_packets_alone_prolong_it() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Tcp);
    let from = |seconds, flags| ports.give(one, flags, (NOW.0 + seconds, 0), nobody).unwrap();
    from(0, SYN);
    for seconds in [100, 200] {
        ports.came(one, 5000, RST);
        from(seconds, ACK);
    }
    let lasts = |seconds| ports.inside_of(PortProtocol::Tcp, 5000, NOW.0 + seconds).is_some();
    assert!(lasts(440) && !lasts(456));
    // A new connection begins anew.
    from(300, SYN);
    ports.came(one, 5000, ACK);
    assert!(lasts(7000));
    ports.came(one, 5000, FIN);
    assert!(!lasts(556));
    // Another's packet is not its.
    from(600, SYN);
    ports.came(end(2, 5000, PortProtocol::Tcp), 5000, ACK);
    assert!(!lasts(856));
    // In one unit of time the word is only read.
    let word = || ports.word(PortProtocol::Tcp, 5000).unwrap().load(Relaxed);
    let before = word();
    from(601, ACK);
    assert_eq!(word(), before);
}

/// Another process's clock may be a little ahead.
#[test]
fn a_time_to_come_is_now() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Echo);
    ports.give(one, 0, (NOW.0 + 20, 0), nobody).unwrap();
    assert_eq!(ports.inside_of(PortProtocol::Echo, 5000, NOW.0), Some(one));
    assert_eq!(ports.inside_of(PortProtocol::Echo, 5000, NOW.0 - 1000), None);
}

/// A machine has its share, others have theirs, and what was miscounted is counted again.
#[test]
fn a_machine_has_a_share() {
    let ports = ports();
    let mut given = BTreeSet::new();
    for port in 0..SHARE {
        given.insert(give(&ports, end(1, 10_000 + port as u16, PortProtocol::Udp)).unwrap());
    }
    assert_eq!(given.len(), SHARE as usize);
    let next = end(1, 2000, PortProtocol::Tcp);
    assert_eq!(give(&ports, next), Err(NoPort::Share));
    assert_eq!(ports.would_give(next, NOW.0, nobody), Err(NoPort::Share));
    assert_eq!(give(&ports, end(2, 2000, PortProtocol::Tcp)), Ok(2000));
    assert_eq!(give(&ports, end(1, 10_000, PortProtocol::Udp)), Ok(10_000));
    // Half of a sweep decides nothing, a whole one counts.
    ports.sweep(0, 2, NOW.0 + 400);
    assert_eq!(give(&ports, next), Err(NoPort::Share));
    ports.sweep(1, 2, NOW.0 + 400);
    // Another machine has that port meanwhile and beyond.
    let given = ports.give(next, SYN, (NOW.0 + 400, 8), nobody).unwrap();
    assert_eq!(ports.outside_of(next, NOW.0 + 400, nobody), Some(given));
    // A count that is wrong does not last.
    let hash = ports.hash_of(end(3, 0, PortProtocol::Tcp).address);
    ports.shares.each(hash).for_each(|cell| cell.store(u32::MAX, Relaxed));
    assert_eq!(give(&ports, end(3, 2000, PortProtocol::Udp)), Err(NoPort::Share));
    (0..7).for_each(|n| ports.sweep(n, 7, NOW.0));
    assert_eq!(ports.give(end(3, 2000, PortProtocol::Udp), 0, (NOW.0, 9), nobody), Ok(2000));
    assert_eq!(ports.shares.count(hash), 1);
}

/// Of many workers at once each end has one port, no port two ends, and no word is torn.
#[test]
fn workers_claim_at_once() {
    const WORKERS: u32 = 4;
    let ports = ports();
    // Few ports are free, so that all meet.
    fill(&ports, PortProtocol::Tcp, (0..=u16::MAX).filter(|port| port % 8 != 0), NOW.0);
    let given: Vec<Vec<(InsideEnd, u16)>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let ports = &ports;
                scope.spawn(move || {
                    let ends = (0..20_000).map(|n: u32| {
                        // Two workers have each end, at about the same time.
                        end(1 + (n + worker / 2) % 200, (n / 100) as u16, PortProtocol::Tcp)
                    });
                    ends.filter_map(|end| Some((end, give(ports, end).ok()?))).collect()
                })
            })
            .collect();
        let sweeper = scope.spawn(|| (0..50).for_each(|_| ports.sweep(0, 1, NOW.0)));
        let all = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        sweeper.join().unwrap();
        all
    });
    let all: Vec<_> = given.into_iter().flatten().collect();
    assert!(all.len() > 4000, "{}", all.len());
    for (end, port) in all {
        assert_eq!(ports.inside_of(PortProtocol::Tcp, port, NOW.0), Some(end));
        assert_eq!(ports.outside_of(end, NOW.0, nobody), Some(port));
    }
}

/// A file that goes when the test ends, whatever becomes of it.
struct Name(String);

impl Name {
    fn new(what: &str) -> Name {
        Name(format!("butterfly-test-ports-{what}-{}", std::process::id()))
    }

    fn path(&self) -> std::path::PathBuf {
        Path::new("/dev/shm").join(&self.0)
    }

    fn open(&self, of: PortsOf, adopt: bool) -> PortTable {
        PortTable::in_file(&self.0, of, KEY_HERE, adopt, NOW.0).unwrap()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

const OF: PortsOf = PortsOf { router: 7, vni: 77, address: 0xc000_0209 };

/// A successor finds the ports as they were; of another router, address
/// or file there is nothing to find.
#[test]
fn a_successor_has_the_same_ports() {
    let (name, copy) = (Name::new("first"), Name::new("second"));
    let ports = name.open(OF, true);
    assert!(!ports.adopted());
    let ends: Vec<_> = (1..20).map(|n| end(n, 5000, PortProtocol::Udp)).collect();
    let given: Vec<_> = ends.iter().map(|end| give(&ports, *end).unwrap()).collect();
    let died = || _ = std::fs::copy(name.path(), copy.path()).unwrap();
    died();
    let next = PortTable::in_file(&copy.0, OF, [9, 9], true, NOW.0).unwrap();
    assert!(next.adopted());
    let again: Vec<_> = ends.iter().map(|end| give(&next, *end).unwrap()).collect();
    assert_eq!((again, next.shares.count(next.hash_of(ends[0].address))), (given, 1));
    drop(next);
    assert!(!copy.path().exists(), "it goes with its rule");
    for (of, adopt) in [
        (OF, false),
        (PortsOf { router: 8, ..OF }, true),
        (PortsOf { vni: 78, ..OF }, true),
        (PortsOf { address: 1, ..OF }, true),
    ] {
        died();
        let next = copy.open(of, adopt);
        assert!(!next.adopted());
        assert_eq!(next.inside_of(PortProtocol::Udp, 5000, NOW.0), None);
    }
    std::fs::write(copy.path(), [7; 4096]).unwrap();
    assert!(!copy.open(OF, true).adopted());
}

/// A file says what it likes: impossible words are free, and nobody is locked out by them.
#[test]
fn garbage_in_a_file_is_free() {
    let (name, copy) = (Name::new("garbage"), Name::new("read"));
    let ports = name.open(OF, true);
    let mut seed = 1_u64;
    for at in 0..PROTOCOLS * PORTS {
        let (protocol, port) = place_of(at).unwrap();
        seed = mix(KEY_HERE, [seed, at as u64]);
        ports.word(protocol, port).unwrap().store(seed, Relaxed);
    }
    let word = |end: InsideEnd, seconds| {
        PortUse { owner: end.owner(), state: PortState::New, time: time(seconds) }.word()
    };
    let put = |port: u16, end, seconds| {
        ports.word(PortProtocol::Udp, port).unwrap().store(word(end, seconds), Relaxed);
    };
    let loopback = InsideEnd { address: 0x7f00_0001, port: 3000, protocol: PortProtocol::Udp };
    put(3000, loopback, NOW.0);
    put(4000, end(1, 4000, PortProtocol::Udp), NOW.0 - 1000);
    put(5001, end(1, 5000, PortProtocol::Udp), NOW.0);
    put(6000, end(1, 6000, PortProtocol::Udp), NOW.0);
    std::fs::copy(name.path(), copy.path()).unwrap();
    let next = copy.open(OF, true);
    assert!(next.adopted());
    let found = |port| next.inside_of(PortProtocol::Udp, port, NOW.0);
    assert_eq!([found(3000), found(4000), found(5001)], [None; 3]);
    assert_eq!(found(6000), Some(end(1, 6000, PortProtocol::Udp)));
    let used = (0..PROTOCOLS * PORTS).filter(|at| {
        let (protocol, port) = place_of(*at).unwrap();
        next.word(protocol, port).unwrap().load(Relaxed) != 0
    });
    // Of random words hardly any is where its owner would look.
    assert!(used.count() < 1000);
    assert_eq!(give(&next, end(2, 3000, PortProtocol::Udp)), Ok(3000));
}

proptest! {
    /// Of any packets, what leaves by a port comes back by it.
    #[test]
    fn there_and_back(steps in prop::collection::vec((1_u32..6, 0_u16..2000, 0_u8..3, 0_u8..64, 0_u32..400), 1..200)) {
        let ports = ports();
        let mut now = NOW.0;
        for (machine, port, protocol, flags, passes) in steps {
            now += passes;
            let protocol = [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Echo][usize::from(protocol)];
            let one = end(machine, port, protocol);
            let told = ports.would_give(one, now, nobody);
            let given = ports.give(one, flags, (now, 0), nobody).unwrap();
            prop_assert_eq!(told, Ok(given));
            prop_assert!(given >= FIRST);
            prop_assert_eq!(ports.inside_of(protocol, given, now), Some(one));
            ports.came(one, given, flags.rotate_left(3));
            prop_assert_eq!(ports.outside_of(one, now, nobody), Some(given));
            if passes % 7 == 0 {
                ports.sweep(0, 1, now);
            }
        }
    }

    #[test]
    fn a_word_is_read_as_it_was_written(word: u64) {
        match PortUse::read(word) {
            Some(own) => prop_assert_eq!(own.word(), word),
            None => prop_assert_eq!(word >> 14 & 3, 0),
        }
    }
}

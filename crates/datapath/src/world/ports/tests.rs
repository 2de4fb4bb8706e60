use std::collections::BTreeSet;

use butterfly_packet::tcp::{ACK, FIN, RST, SYN};
use proptest::prelude::*;

use super::*;

const KEY_HERE: [u64; 2] = [0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321];
/// The vnic and the second of most tests.
const NOW: (PortRef, u32) = (PortRef { slot: 7, incarnation: 1 }, 100_000);
const OF: PortsOf = PortsOf { router: 0xb2f0_0000_0001, vni: 77, address: 0xc000_0209 };

fn ports() -> PortTable {
    PortTable::create(OF, KEY_HERE, NOW.1).unwrap().1
}

fn says(flags: u8) -> Said {
    Said { flags, has_payload: false }
}

fn end(machine: u32, port: u16, protocol: PortProtocol) -> InsideEnd {
    InsideEnd { address: 0x0a00_0000 + machine, port, protocol }
}

fn nobody(_: u16) -> bool {
    false
}

fn give(ports: &PortTable, end: InsideEnd) -> Result<u16, NoPort> {
    give_to(ports, end, says(0), NOW)
}

fn give_to(
    ports: &PortTable,
    end: InsideEnd,
    said: Said,
    by: (PortRef, u32),
) -> Result<u16, NoPort> {
    ports.give(end, said, by, nobody, || true)
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
    assert_eq!(ports.inside_of(PortProtocol::Udp, 5000, NOW.1), Some(one));
    // Two machines have two ports, of the same parity, and keep them.
    let second = give(&ports, other).unwrap();
    assert!(second != 5000 && second.is_multiple_of(2) && second >= FIRST, "{second}");
    assert_eq!([give(&ports, one), give(&ports, other)], [Ok(5000), Ok(second)]);
    assert_eq!(ports.inside_of(PortProtocol::Udp, second, NOW.1), Some(other));
    // Ports of another protocol are others.
    assert_eq!(give(&ports, end(2, 5000, PortProtocol::Tcp)), Ok(5000));
    assert_eq!(ports.inside_of(PortProtocol::Echo, 5000, NOW.1), None);
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
    let given = ports.give(one, says(SYN), NOW, taken, || true).unwrap();
    assert_ne!(given, 5000);
    assert_eq!(ports.outside_of(one, NOW.1, taken), Some(given));
    // One that is forwarded later is not its own any more.
    let six = end(2, 6000, PortProtocol::Tcp);
    assert_eq!(give(&ports, six), Ok(6000));
    let other = ports.give(six, says(SYN), NOW, |port| port == 6000, || true).unwrap();
    assert_ne!(other, 6000);
    // Later it would have two: that which is forwarded is freed.
    ports.forward(PortProtocol::Tcp, 6000);
    assert_eq!(give(&ports, six), Ok(other));
}

/// A free candidate before its own does not end the search: the end keeps its port.
#[test]
fn the_search_goes_to_the_end() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Tcp);
    let candidates: Vec<u16> = ports.candidates(one).collect();
    assert_eq!((candidates.len(), candidates[0]), (65, 5000));
    fill(&ports, PortProtocol::Tcp, candidates[..64].iter().copied(), NOW.1);
    let last = give(&ports, one).unwrap();
    assert_eq!(last, candidates[64]);
    candidates[..64].iter().for_each(|port| {
        ports.word(PortProtocol::Tcp, *port).unwrap().store(0, Relaxed);
    });
    assert_eq!(give(&ports, one), Ok(last));
    assert_eq!(ports.outside_of(one, NOW.1, nobody), Some(last));
}

#[test]
fn a_full_table_takes_nobodys_port() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Tcp);
    fill(&ports, PortProtocol::Tcp, 0..=u16::MAX, NOW.1);
    assert_eq!(give(&ports, one), Err(NoPort::Full));
    assert_eq!(ports.would_give(one, NOW.0, NOW.1, nobody), Err(NoPort::Full));
    assert_eq!(give(&ports, end(1, 5000, PortProtocol::Udp)), Ok(5000));
    // What is over is taken, and its time is that of the new one.
    let later = NOW.1 + 300;
    assert_eq!(give_to(&ports, one, says(SYN), (NOW.0, later)), Ok(5000));
    assert_eq!(ports.inside_of(PortProtocol::Tcp, 5000, later), Some(one));
}

/// Never shorter than the standards want, and at most 16 seconds longer. What a machine says
/// decides, and that its session was ended.
#[test]
fn ports_last_for_their_time() {
    let payload = Said { flags: ACK, has_payload: true };
    let cases: [(PortProtocol, &[Said], u32); 11] = [
        (PortProtocol::Udp, &[says(0)], 300),
        (PortProtocol::Echo, &[says(0)], 60),
        (PortProtocol::Tcp, &[says(SYN)], 240),
        (PortProtocol::Tcp, &[says(SYN), says(SYN)], 240),
        (PortProtocol::Tcp, &[says(SYN), says(ACK)], 7440),
        (PortProtocol::Tcp, &[says(ACK)], 7440),
        (PortProtocol::Tcp, &[says(SYN), says(ACK), says(SYN)], 7440),
        (PortProtocol::Tcp, &[says(SYN), says(ACK), says(FIN | ACK), says(ACK)], 240),
        (PortProtocol::Tcp, &[says(SYN), says(ACK), says(RST)], 240),
        (PortProtocol::Tcp, &[says(SYN), says(ACK), says(FIN | ACK), payload], 7440),
        (PortProtocol::Tcp, &[says(SYN), says(ACK), says(FIN | ACK), says(SYN)], 240),
    ];
    for (n, (protocol, said, lasts)) in cases.into_iter().enumerate() {
        for begun in [NOW.1, NOW.1 + 7, 5, 8 * 0x3fff - 1] {
            let ports = ports();
            let one = end(1, 5000, protocol);
            for said in said {
                assert_eq!(give_to(&ports, one, *said, (NOW.0, begun)), Ok(5000));
            }
            let at = |seconds| ports.inside_of(protocol, 5000, begun + seconds);
            assert_eq!((at(0), at(lasts)), (Some(one), Some(one)), "{n}");
            assert_eq!((at(lasts + 16), at(100_000)), (None, None), "{n}");
            assert_eq!(ports.outside_of(one, begun + lasts + 16, nobody), None);
            if lasts == 7440 {
                ports.ended(end(2, 5000, protocol), 5000);
                assert_eq!(at(lasts), Some(one), "another's");
                ports.ended(one, 5000);
                assert_eq!((at(240), at(256)), (Some(one), None));
            }
        }
    }
}

/// In one unit of time the word is only read, and later its own packets prolong it.
#[test]
fn its_own_packets_prolong_it() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Udp);
    let from = |seconds| {
        give_to(&ports, one, says(0), (NOW.0, NOW.1 + seconds)).unwrap();
        ports.word(PortProtocol::Udp, 5000).unwrap().load(Relaxed)
    };
    assert_eq!(from(0), from(1));
    from(200);
    let lasts = |seconds| ports.inside_of(PortProtocol::Udp, 5000, NOW.1 + seconds).is_some();
    assert!(lasts(500) && !lasts(520));
    // One that is over stays the same port, if nobody else has it.
    assert_eq!(give_to(&ports, one, says(0), (NOW.0, NOW.1 + 900)), Ok(5000));
    assert_eq!(ports.used(), [0, 1, 0]);
}

/// Another process's clock may be a little ahead.
#[test]
fn a_time_to_come_is_now() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Echo);
    give_to(&ports, one, says(0), (NOW.0, NOW.1 + 20)).unwrap();
    assert_eq!(ports.inside_of(PortProtocol::Echo, 5000, NOW.1), Some(one));
    assert_eq!(ports.inside_of(PortProtocol::Echo, 5000, NOW.1 - 1000), None);
}

/// A vnic has its share, however many addresses it writes, and others have theirs.
#[test]
fn a_vnic_has_a_share() {
    let ports = ports();
    let other = (PortRef { slot: 8, incarnation: 1 }, NOW.1);
    for n in 0..SHARE {
        let one = end(1 + n % 200, 10_000 + (n / 200) as u16, PortProtocol::Udp);
        assert!(give(&ports, one).is_ok());
    }
    assert_eq!(ports.used(), [0, SHARE, 0]);
    // Of each protocol.
    let mine = end(1, 3000, PortProtocol::Tcp);
    assert_eq!(give(&ports, mine), Ok(3000));
    ports.sweep(0, 1, NOW.1 + 8000);
    assert_eq!(ports.used(), [0; 3]);
    for n in 0..SHARE {
        let one = end(1 + n % 200, 10_000 + (n / 200) as u16, PortProtocol::Udp);
        assert!(give(&ports, one).is_ok());
    }
    let next = end(1, 2000, PortProtocol::Udp);
    assert_eq!(give(&ports, next), Err(NoPort::Share));
    assert_eq!(ports.would_give(next, NOW.0, NOW.1, nobody), Err(NoPort::Share));
    let would_be = ports.would_give(next, other.0, NOW.1, nobody);
    assert!(would_be.is_ok());
    assert_eq!(give_to(&ports, next, says(0), other), would_be);
    // The vnic that sends has a port: it passes on with its address.
    assert_eq!(ports.holders.count(PortProtocol::Udp, Holder::of(NOW.0)), SHARE);
    let moved = (other.0, NOW.1 + 8);
    give_to(&ports, end(1, 10_000, PortProtocol::Udp), says(0), moved).unwrap();
    assert_eq!(
        [NOW.0, other.0].map(|it| ports.holders.count(PortProtocol::Udp, Holder::of(it))),
        [SHARE - 1, 2]
    );
    // One that comes to the place of another begins anew, and ends of the former change nothing.
    let heir = PortRef { incarnation: 2, ..NOW.0 };
    assert!(give_to(&ports, end(9, 9, PortProtocol::Tcp), says(0), (heir, NOW.1)).is_ok());
    (0..7).for_each(|n| ports.sweep(n, 7, NOW.1 + 400));
    assert_eq!(ports.holders.count(PortProtocol::Tcp, Holder::of(heir)), 1);
    assert_eq!(ports.used(), [1, 0, 0]);
    assert!(give(&ports, end(1, 10_000, PortProtocol::Udp)).is_ok());
}

/// A packet that cannot leave gets no port, and one that has a port is not asked.
#[test]
fn what_cannot_leave_opens_nothing() {
    let ports = ports();
    let one = end(1, 5000, PortProtocol::Tcp);
    assert_eq!(ports.give(one, says(SYN), NOW, nobody, || false), Err(NoPort::Unfit));
    assert_eq!((ports.used(), ports.outside_of(one, NOW.1, nobody)), ([0; 3], None));
    assert_eq!(ports.keep(one, says(SYN), NOW, nobody), None);
    assert_eq!(give(&ports, one), Ok(5000));
    assert_eq!(ports.give(one, says(SYN), NOW, nobody, || false), Ok(5000));
    assert_eq!(ports.keep(one, says(SYN), NOW, nobody), Some(5000));
    assert_eq!(ports.keep(one, says(SYN), (NOW.0, NOW.1 + 7500), nobody), None, "it is over");
}

/// A vnic that goes takes its ports along, and nobody else's.
#[test]
fn a_vnic_that_goes_frees_its_ports() {
    let ports = ports();
    let other = PortRef { slot: 8, incarnation: 1 };
    let (one, two) = (end(1, 5000, PortProtocol::Udp), end(2, 6000, PortProtocol::Tcp));
    give(&ports, one).unwrap();
    give_to(&ports, two, says(SYN), (other, NOW.1)).unwrap();
    ports.release(PortRef { slot: 7, incarnation: 2 });
    assert_eq!(ports.used(), [1, 1, 0]);
    ports.release(NOW.0);
    assert_eq!(
        (ports.used(), ports.holders.count(PortProtocol::Udp, Holder::of(NOW.0))),
        ([1, 0, 0], 0)
    );
    assert_eq!(ports.inside_of(PortProtocol::Udp, 5000, NOW.1), None);
    assert_eq!(ports.inside_of(PortProtocol::Tcp, 6000, NOW.1), Some(two));
}

/// Sixteen vnics that take all that they can leave enough for more of them.
#[test]
fn a_full_table_has_room_for_who_has_less() {
    let ports = ports();
    let by = |slot| (PortRef { slot, incarnation: 1 }, NOW.1);
    for slot in 1..=16 {
        let one = |n| end(slot, n, PortProtocol::Tcp);
        (0..SHARE as u16).for_each(|n| _ = give_to(&ports, one(n), says(ACK), by(slot)));
    }
    let [used, ..] = ports.used();
    assert!((48_000..60_000).contains(&used), "{used}");
    assert_eq!(
        give_to(&ports, end(1, 5000, PortProtocol::Tcp), says(SYN), by(1)),
        Err(NoPort::Share)
    );
    let given = (0..500).filter(|n| {
        give_to(&ports, end(99, 20_000 + n, PortProtocol::Tcp), says(SYN), by(99)).is_ok()
    });
    assert_eq!(given.count(), 500);
}

/// Candidates lie in few lines, none twice, all of them above the ports that hosts trust.
#[test]
fn candidates_are_near_to_each_other() {
    let ports = ports();
    for n in 0..2000_u16 {
        for (protocol, lines) in
            [(PortProtocol::Tcp, 8), (PortProtocol::Udp, 16), (PortProtocol::Echo, 8)]
        {
            let one = end(u32::from(n) % 7, n.wrapping_mul(31), protocol);
            let own = usize::from(one.port >= FIRST);
            let all: Vec<u16> = ports.candidates(one).skip(own).collect();
            let each: BTreeSet<u16> = all.iter().copied().collect();
            let of: BTreeSet<u16> = all.iter().map(|port| port / LINE as u16).collect();
            assert_eq!((all.len(), each.len(), of.len()), (CANDIDATES, CANDIDATES, lines));
            assert!(each.first().is_some_and(|first| *first >= FIRST));
        }
    }
}

/// Nearly all ports can be given away before one that asks finds none.
#[test]
fn a_table_becomes_full_late() {
    let ports = ports();
    let mut given = 0_u32;
    for n in 0.. {
        let one = end(n / 1000, (n % 1000) as u16, PortProtocol::Tcp);
        let vnic = PortRef { slot: n / 1000, incarnation: 1 };
        match give_to(&ports, one, says(SYN), (vnic, NOW.1)) {
            Ok(_) => given += 1,
            Err(why) => {
                assert_eq!(why, NoPort::Full);
                break;
            }
        }
    }
    assert!(given > 64_512 * 9 / 10, "{given}");
    assert_eq!(ports.used(), [given, 0, 0]);
}

/// Of many workers at once each end has one port, no port two ends, and no word is torn.
#[test]
fn workers_claim_at_once() {
    const WORKERS: u32 = 4;
    let ports = ports();
    // Few ports are free, so that all meet.
    fill(&ports, PortProtocol::Tcp, (0..=u16::MAX).filter(|port| port % 8 != 0), NOW.1);
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
        let sweeper = scope.spawn(|| (0..50).for_each(|_| ports.sweep(0, 1, NOW.1)));
        let all = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        sweeper.join().unwrap();
        all
    });
    let all: Vec<_> = given.into_iter().flatten().collect();
    assert!(all.len() > 4000, "{}", all.len());
    for (end, port) in all {
        assert_eq!(ports.inside_of(PortProtocol::Tcp, port, NOW.1), Some(end));
        assert_eq!(ports.outside_of(end, NOW.1, nobody), Some(port));
    }
}

#[test]
fn a_successor_has_the_same_ports() {
    let (file, first) = PortTable::create(OF, KEY_HERE, NOW.1).unwrap();
    let ends: Vec<InsideEnd> = (1..40).map(|n| end(n, 5000, PortProtocol::Udp)).collect();
    let given: Vec<u16> = ends.iter().map(|end| give(&first, *end).unwrap()).collect();
    let over = end(1, 99, PortProtocol::Echo);
    give(&first, over).unwrap();
    drop(first);
    let later = NOW.1 + 100;
    let second = PortTable::adopt(&file, OF, later).unwrap();
    assert_eq!(second.used(), [0, 39, 0]);
    for (end, port) in ends.iter().zip(&given) {
        assert_eq!(second.inside_of(PortProtocol::Udp, *port, later), Some(*end));
        assert_eq!(second.give(*end, says(0), (NOW.0, later), nobody, || false), Ok(*port));
    }
    assert_eq!(second.holders.count(PortProtocol::Udp, Holder::of(NOW.0)), 39);
    assert_eq!(second.outside_of(over, later, nobody), None);
    // It is nobody else's, and not for ever: times are told for so long.
    for other in
        [PortsOf { router: 1, ..OF }, PortsOf { vni: 78, ..OF }, PortsOf { address: 1, ..OF }]
    {
        assert!(PortTable::adopt(&file, other, later).is_none());
    }
    assert!(PortTable::adopt(&file, OF, NOW.1 - 1).is_none(), "it was swept in time to come");
    assert!(PortTable::adopt(&file, OF, NOW.1 + LONGEST + 1).is_none());
    second.sweep(0, 1, NOW.1 + LONGEST);
    assert!(PortTable::adopt(&file, OF, NOW.1 + LONGEST + 1).is_some());
    Words::map(&file, WORDS).unwrap()[1].store(VERSION + 1, Relaxed);
    assert!(PortTable::adopt(&file, OF, NOW.1 + LONGEST + 1).is_none(), "another layout");
    let (short, _words) = Words::create("short", WORDS - 8).unwrap();
    assert!(PortTable::adopt(&short, OF, NOW.1).is_none());
}

/// Each word of a file, whatever is in it, is an end's that could have it, or free.
#[test]
fn garbage_in_a_file_is_free() {
    let (file, first) = PortTable::create(OF, KEY_HERE, NOW.1).unwrap();
    let good = end(1, 7000, PortProtocol::Tcp);
    assert_eq!(give(&first, good), Ok(7000));
    let mut seed = 1_u64;
    for (at, word) in first.words.iter().enumerate().skip(HEAD) {
        if at != HEAD + 7000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let recent = seed & !TIME | time(NOW.1);
            word.store(if at % 3 == 0 { recent } else { seed }, Relaxed);
        }
    }
    drop(first);
    let ports = PortTable::adopt(&file, OF, NOW.1).unwrap();
    assert_eq!(ports.inside_of(PortProtocol::Tcp, 7000, NOW.1), Some(good));
    for at in 0..PROTOCOLS * PORTS {
        let (protocol, port) = place_of(at).unwrap();
        if let Some(end) = ports.inside_of(protocol, port, NOW.1) {
            assert!(port >= FIRST && ports.candidates(end).any(|it| it == port));
        }
    }
    let used: u32 = ports.used().iter().sum();
    assert!((1..5000).contains(&used), "{used}");
}

proptest! {
    /// Of any packets, what leaves by a port comes back by it.
    #[test]
    fn there_and_back(steps in prop::collection::vec((1_u32..6, 0_u16..2000, 0_u8..3, 0_u8..64, 0_u32..400), 1..200)) {
        let ports = ports();
        let mut now = NOW.1;
        for (machine, port, protocol, flags, passes) in steps {
            now += passes;
            let protocol = [PortProtocol::Tcp, PortProtocol::Udp, PortProtocol::Echo][usize::from(protocol)];
            let one = end(machine, port, protocol);
            let said = Said { flags, has_payload: passes % 2 == 0 };
            let told = ports.would_give(one, NOW.0, now, nobody);
            let given = give_to(&ports, one, said, (NOW.0, now)).unwrap();
            prop_assert_eq!(told, Ok(given));
            prop_assert!(given >= FIRST);
            prop_assert_eq!(ports.inside_of(protocol, given, now), Some(one));
            if passes % 5 == 0 {
                ports.ended(one, given);
            }
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

/// Machines of a network on other hosts have a share each, and half of all together.
#[test]
fn addresses_on_other_hosts_have_shares() {
    let ports = ports();
    let trunk = Sharer { port: PortRef { slot: 3, incarnation: 1 }, is_trunk: true };
    let give = |machine: u32, port: u16| {
        let one = end(machine, port, PortProtocol::Udp);
        ports.give(one, says(0), (trunk, NOW.1), nobody, || true)
    };
    let count = |machine: u32| {
        ports.holders.count_of(PortProtocol::Udp, 0x0a00_0000 + machine).unwrap_or_default()
    };
    for n in 0..SHARE {
        assert!(give(1, 10_000 + n as u16).is_ok());
    }
    assert_eq!((give(1, 9000), count(1)), (Err(NoPort::Share), SHARE));
    let next = end(1, 9000, PortProtocol::Udp);
    assert_eq!(ports.would_give(next, trunk, NOW.1, nobody), Err(NoPort::Share));
    // Others have theirs, and a vnic here is another one, whatever address it has.
    assert_eq!((give(2, 9000), count(2)), (Ok(9000), 1));
    assert!(give_to(&ports, end(1, 9002, PortProtocol::Udp), says(0), NOW).is_ok());
    assert_eq!(count(1), SHARE);
    // A machine that moves here takes its ports along, and back.
    let one = end(1, 10_000, PortProtocol::Udp);
    give_to(&ports, one, says(0), (NOW.0, NOW.1 + 8)).unwrap();
    assert_eq!(count(1), SHARE - 1);
    ports.give(one, says(0), (trunk, NOW.1 + 16), nobody, || true).unwrap();
    assert_eq!(count(1), SHARE);
    // Some that take all they can leave others theirs.
    for machine in 3..=7 {
        let given = (0..SHARE).filter(|n| give(machine, 10_000 + *n as u16).is_ok()).count();
        assert!(given > 1000, "{machine} {given}");
    }
    assert_eq!((give(8, 9000).is_ok(), count(8)), (true, 1));
    // All of a network together.
    let mut given = 0;
    for n in 0..60_000_u32 {
        given += u32::from(give(10 + n % 500, 20_000 + (n / 500) as u16 * 2).is_ok());
    }
    let all = ports.holders.count(PortProtocol::Udp, Holder::of(trunk.port));
    assert!(given > 0);
    assert_eq!(all, SHARE_OF_TRUNK);
    ports.sweep(0, 1, NOW.1 + 8000);
    assert_eq!(ports.used(), [0; 3]);
    assert_eq!([1, 2, 10].map(count), [0; 3]);
    assert!(ports.holders.addresses.iter().all(|word| word.load(Relaxed) as u32 == 0));
}

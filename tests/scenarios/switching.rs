//! Networks are isolated. Within a network, a frame goes to its destination if the switch knows it.

use std::collections::BTreeMap;

use butterfly_guest_driver::{GuestConfig, VmConfig};
use butterfly_packet::{build, ethernet, mac::Mac};
use butterfly_tests::{
    Host, HostOptions, Nic, Station, eventually,
    frames::{Choices, EXPERIMENT, mac, numbered, read_numbered},
    station::{features, machine, usual},
    traffic::{exchange, streams},
};

/// Returns a guest with little memory, for scenarios with many guests.
fn small() -> VmConfig {
    let mut config = machine(features::MODERN, 1524);
    config.guest = GuestConfig { rx_buffer: 1536, ..config.guest }.rings(64);
    config
}

fn stations(host: &Host, vni: u32, count: u32) -> Vec<Station> {
    (1..=count)
        .map(|n| host.station(&Nic::bypass(&format!("{vni}-{n}"), mac(n), vni), &small()))
        .collect()
}

/// Networks whose numbers have parts in common, with the same addresses in each.
#[test]
fn networks_do_not_meet() {
    const VNIS: [u32; 6] = [0, 0x2a, 0x01_002a, 0x02_002a, 0xff_002a, 0xff_ffff];
    let host = Host::new();
    let mut networks: Vec<Vec<Station>> = VNIS.iter().map(|vni| stations(&host, *vni, 3)).collect();
    let stranger = mac(99);
    let group = Mac([1, 0, 0x5e, 0, 0, 1]);
    let mut number = 0;
    for round in 0..20 {
        let mut expected: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (network, vni) in networks.iter_mut().zip(VNIS) {
            for (to, receivers) in [
                (mac(2), vec![1]),
                (mac(3), vec![2]),
                (Mac::BROADCAST, vec![1, 2]),
                (group, vec![1, 2]),
                (stranger, vec![1, 2]),
            ] {
                // The stranger is unknown in the first rounds; then it is behind the third station
                // of each network.
                let receivers = if to == stranger && round >= 10 { vec![2] } else { receivers };
                let mut frame = numbered(mac(1), to, vni.into(), number, 100);
                if number % 2 == 1 {
                    // A VLAN tag with the number of another network is only a part of the frame.
                    let tag = VNIS[(round + 1) % VNIS.len()] as u16 & 0xfff;
                    frame = build::ethernet(mac(1), to).vlan(tag).payload(EXPERIMENT, &frame[14..]);
                }
                network[0].send(&frame);
                for receiver in receivers {
                    expected.entry(network[receiver].nic.id.clone()).or_default().push(number);
                }
                number += 1;
            }
            if round == 9 {
                host.settle(&mut [&mut network[0]]); // it sends after all others have sent
                network[2].send(&numbered(stranger, mac(1), vni.into(), number, 60));
                expected.entry(network[0].nic.id.clone()).or_default().push(number);
                number += 1;
            }
        }
        let mut all: Vec<&mut Station> = networks.iter_mut().flatten().collect();
        host.settle(&mut all);
        let mut received: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for station in all {
            for frame in station.pending() {
                let tags = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
                let bare = [&frame[..12], &frame[12 + tags..]].concat();
                let (stream, number) = read_numbered(&bare).expect("the frame was not changed");
                assert_eq!(stream, u64::from(station.nic.vni), "a frame of another network");
                received.entry(station.nic.id.clone()).or_default().push(number);
            }
        }
        // Floods may overtake unicast of the same batch.
        received.values_mut().for_each(|numbers| numbers.sort());
        assert_eq!(received, expected, "round {round}");
    }
    for vni in VNIS {
        assert_eq!(host.learnt(vni), [(stranger.to_string(), format!("{vni}-3"))].into());
    }
}

/// 60 vnics in one network, more than the original could hold. Frames from each sender arrive at
/// each receiver in order, also from batches to many receivers.
#[test]
fn many_in_one_network() {
    let host = Host::new();
    let mut all = stations(&host, 5, 60);
    let mut choices = Choices::new(1);
    let mut number = 0;
    for _ in 0..30 {
        let mut expected: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        let sender = choices.below(all.len());
        let mut batch = Vec::new();
        for _ in 0..50 {
            let to = choices.below(all.len() + 2);
            let destination = if to < all.len() { all[to].mac() } else { Mac::BROADCAST };
            batch.push(numbered(
                all[sender].mac(),
                destination,
                1,
                number,
                choices.between(60, 1500),
            ));
            if to >= all.len() {
                (0..all.len())
                    .filter(|n| *n != sender)
                    .for_each(|n| expected.entry(n).or_default().push(number));
            } else if to != sender {
                expected.entry(to).or_default().push(number);
            }
            number += 1;
        }
        assert_eq!(all[sender].vm.guest.send_batch(&batch).unwrap(), batch.len());
        host.settle(&mut [&mut all[sender]]);
        for (n, station) in all.iter_mut().enumerate() {
            let (mut unicast, mut floods): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
            for frame in station.pending() {
                let (_, number) = read_numbered(&frame).expect("the frame was not changed");
                if frame[0] & 1 == 0 { unicast.push(number) } else { floods.push(number) }
            }
            assert!(unicast.is_sorted() && floods.is_sorted(), "order: {unicast:?} {floods:?}");
            let mut received = [unicast, floods].concat();
            received.sort();
            assert_eq!(received, expected.remove(&n).unwrap_or_default(), "station {n}");
        }
    }
}

/// Link-local groups, frames to the sender itself, malformed frames and lonely vnics: no frame is
/// forwarded.
#[test]
fn frames_that_go_nowhere() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut lonely = host.station(&Nic::bypass("lonely", mac(1), 2), &usual());
    let mut before = host.counters();
    for last in 0..=0xf {
        a.send(
            &build::ethernet(mac(1), Mac([1, 0x80, 0xc2, 0, 0, last]))
                .payload(ethernet::LLDP, &[0; 46]),
        );
    }
    host.settle(&mut [&mut a]);
    host.moved(&mut before, &[("a.in", 16), ("a.drop.link-local-group", 16)]);
    a.send(
        &build::ethernet(mac(1), Mac([1, 0x80, 0xc2, 0, 0, 0x10]))
            .payload(ethernet::LLDP, &[0; 46]),
    );
    a.send(&numbered(mac(1), mac(1), 1, 1, 60));
    lonely.send(&numbered(mac(1), mac(2), 1, 1, 60));
    lonely.send(&numbered(mac(1), Mac::BROADCAST, 1, 1, 60));
    host.settle(&mut [&mut a, &mut lonely]);
    assert_eq!(b.pending().len(), 1);
    let expected = [
        ("a.in", 2),
        ("a.flooded", 1),
        ("a.drop.same-port", 1),
        ("b.out", 1),
        ("lonely.in", 2),
        ("lonely.drop.no-receiver", 2),
        ("lonely.flooded", 2),
    ];
    host.moved(&mut before, &expected);
    // Too short and too long.
    a.vm.guest.enqueue(&[0; 13], Default::default()).unwrap();
    a.vm.guest.flush();
    host.settle(&mut [&mut a]);
    host.moved(&mut before, &[("a.in", 1), ("a.drop.short", 1)]);
}

/// The switch learns an address behind an unfiltered vnic, moves it when another vnic sends with
/// it, and forgets it when the vnic is removed.
#[test]
fn addresses_are_learnt_and_move() {
    let host = Host::new();
    let mut all = stations(&host, 1, 4);
    let [guest_of_a, guest_of_b] = [mac(100), mac(101)];
    let hear = |all: &mut [Station], frame: &[u8]| -> Vec<usize> {
        let heard = all.iter_mut().enumerate().map(|(n, station)| (n, station.pending()));
        heard
            .filter(|(_, frames)| frames.iter().any(|other| other == frame))
            .map(|(n, _)| n)
            .collect()
    };
    let mut number = 0;
    let mut say = |all: &mut Vec<Station>, n: usize, from: Mac, to: Mac| -> Vec<usize> {
        number += 1;
        let frame = numbered(from, to, 1, number, 60);
        all[n].send(&frame);
        host.settle(&mut [&mut all[n]]);
        hear(all, &frame)
    };
    assert_eq!(say(&mut all, 3, mac(4), guest_of_a), [0, 1, 2], "nobody knows it");
    assert_eq!(say(&mut all, 0, guest_of_a, mac(4)), [3]);
    assert_eq!(say(&mut all, 1, guest_of_b, guest_of_a), [0]);
    assert_eq!(say(&mut all, 3, mac(4), guest_of_a), [0]);
    assert_eq!(say(&mut all, 2, guest_of_a, Mac::BROADCAST), [0, 1, 3], "it moved");
    assert_eq!(say(&mut all, 3, mac(4), guest_of_a), [2]);
    assert_eq!(say(&mut all, 2, mac(3), guest_of_a), [] as [usize; 0], "same-port");
    let learnt =
        [(guest_of_a.to_string(), "1-3".to_owned()), (guest_of_b.to_string(), "1-2".to_owned())];
    assert_eq!(host.learnt(1), learnt.into());
    // A declared address does not move when another vnic sends with it.
    assert_eq!(say(&mut all, 2, mac(1), mac(4)), [3]);
    assert_eq!(say(&mut all, 3, mac(4), mac(1)), [0]);
    // The switch does not learn group addresses and the zero address.
    assert_eq!(say(&mut all, 2, Mac::BROADCAST, mac(4)), [3]);
    assert_eq!(say(&mut all, 2, Mac([3, 0, 0, 0, 0, 1]), mac(4)), [3]);
    assert_eq!(say(&mut all, 2, Mac::ZERO, mac(4)), [3]);
    assert_eq!(host.learnt(1).len(), 2);
    let gone = all.remove(2);
    drop(gone);
    assert_eq!(host.learnt(1).len(), 2, "a guest that leaves keeps its addresses");
    host.remove("1-3");
    assert_eq!(host.learnt(1).into_keys().collect::<Vec<_>>(), [guest_of_b.to_string()]);
    assert_eq!(say(&mut all, 2, mac(4), guest_of_a), [0, 1]);
    // A new vnic is declared with a learnt address, and owns it from then on.
    let new = host.station(&Nic::filtered("1-9", guest_of_b, 1), &small());
    assert!(host.learnt(1).is_empty());
    all.push(new);
    assert_eq!(say(&mut all, 2, mac(4), guest_of_b), [3]);
    assert_eq!(say(&mut all, 1, guest_of_b, mac(4)), [] as [usize; 0], "mac-claimed");
    assert_eq!(host.show("1-2").drops("mac-claimed"), 1);
}

/// The switch forgets an address that was silent for the configured time.
#[test]
fn addresses_age() {
    let host = Host::with(&HostOptions { fdb_ageing: Some(2), ..HostOptions::default() });
    let mut all = stations(&host, 1, 3);
    let [silent, talking] = [mac(100), mac(101)];
    let begin = std::time::Instant::now();
    all[0].send(&numbered(silent, mac(2), 1, 0, 60));
    let mut number = 0;
    eventually("the silent address is forgotten", || {
        number += 1;
        all[0].send(&numbered(talking, mac(2), 1, number, 60));
        host.settle(&mut [&mut all[0]]);
        all[1].pending();
        let learnt = host.learnt(1);
        assert!(learnt.contains_key(&talking.to_string()), "it speaks all the time");
        !learnt.contains_key(&silent.to_string())
    });
    let took = begin.elapsed().as_millis();
    assert!((1000..6000).contains(&took), "{took} ms");
    // The switch floods frames to it again.
    all[2].pending();
    all[1].send(&numbered(mac(2), silent, 1, 0, 60));
    host.settle(&mut [&mut all[1]]);
    assert_eq!((all[0].pending().len(), all[2].pending().len()), (1, 1));
    all[1].send(&numbered(mac(2), talking, 1, 0, 60));
    host.settle(&mut [&mut all[1]]);
    assert_eq!((all[0].pending().len(), all[2].pending().len()), (1, 0));
}

/// Learning is bounded: the switch does not learn further addresses, and their frames still pass.
#[test]
fn learning_is_bounded() {
    let host = Host::new();
    let mut all = stations(&host, 1, 4);
    let mut other = stations(&host, 2, 2);
    let many = |station: &mut Station, receiver: &mut Station, from: u32, count: u32| {
        for n in from..from + count {
            station.send(&numbered(mac(n), receiver.mac(), 1, n.into(), 60));
            if n % 32 == 0 {
                host.settle(&mut [&mut *station]);
                receiver.pending();
            }
        }
        host.settle(&mut [&mut *station]);
        receiver.pending();
    };
    let [a, b, c, d] = &mut all[..] else { panic!() };
    let count = |vni: u32, id: &str| host.learnt(vni).values().filter(|owner| *owner == id).count();
    // The bound of one vnic.
    many(a, d, 10_000, 4000);
    // The switch does not learn an address while it ages the neighbours in the table, and each
    // address sends only once here.
    let of_a = count(1, "1-1");
    assert!((3990..=4000).contains(&of_a), "{of_a}");
    assert_eq!(host.show("1-1").learn_refused, 4000 - of_a as u64);
    many(a, d, 14_000, 1000);
    let of_a = count(1, "1-1");
    assert!((4050..=4096).contains(&of_a), "{of_a}");
    assert_eq!(host.show("1-1").learn_refused, 5000 - of_a as u64);
    // The bound of one network.
    many(b, d, 20_000, 5000);
    many(c, d, 30_000, 1000);
    let learnt = host.learnt(1);
    assert!((8000..=8192).contains(&learnt.len()), "{}", learnt.len());
    assert!(host.show("1-3").learn_refused > 0);
    // Known addresses stay known and may move. Another network has its own room.
    assert!(learnt.contains_key(&mac(10_000).to_string()));
    c.send(&numbered(mac(10_000), d.mac(), 1, 1, 60));
    host.settle(&mut [&mut *c]);
    assert_eq!(host.learnt(1).get(&mac(10_000).to_string()).map(String::as_str), Some("1-3"));
    let [e, f] = &mut other[..] else { panic!() };
    many(e, f, 10_000, 1000);
    assert!(count(2, "2-1") >= 990);
    // All frames passed.
    for id in host.ids() {
        assert!(host.show(&id).dropped().is_empty(), "{id}: {:?}", host.show(&id).dropped());
    }
    assert_eq!(host.show("1-4").delivered.0, 11_001);
    // Removed vnics make room.
    host.remove("1-1");
    host.remove("1-2");
    let before = host.show("1-3").learn_refused;
    many(c, d, 40_000, 1000);
    let refused = host.show("1-3").learn_refused - before;
    assert!(refused < 10, "{refused}");
}

/// The switch limits the floods of a vnic to its share; others do not notice.
#[test]
fn floods_are_limited() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    for n in 0..100 {
        host.add(&Nic::bypass(&format!("r{n:02}"), mac(100 + n), 1)).unwrap();
    }
    let mut c = host.station(&Nic::bypass("c", mac(1), 2), &usual());
    let mut d = host.station(&Nic::bypass("d", mac(2), 2), &usual());
    let mut both = streams(&c, &d);
    let mut before = host.counters();
    let frames: Vec<Vec<u8>> =
        (0..100).map(|n| numbered(mac(1), Mac::BROADCAST, 1, n, 60)).collect();
    let mut sent = 0;
    for _ in 0..300 {
        sent += a.vm.guest.send_batch(&frames).unwrap() as u64;
        exchange(&mut c, &mut d, &mut both, &[60, 1514]);
    }
    host.settle(&mut [&mut a, &mut c, &mut d]);
    let limited = host.show("a").drops("flood-limit");
    let passed = host.show("r00").drops("not-attached");
    assert_eq!(sent, limited + passed);
    assert!(limited > 0, "{passed} frames to 100 receivers passed");
    assert!(passed >= 600, "a burst of 65,536 copies is free: {passed}");
    let moved = [
        ("a.in", sent),
        ("a.flooded", sent),
        ("a.drop.flood-limit", limited),
        ("c.in", 600),
        ("c.out", 600),
        ("d.in", 600),
        ("d.out", 600),
    ];
    let mut moved: Vec<(String, u64)> =
        moved.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
    moved.extend((0..100).map(|n| (format!("r{n:02}.drop.not-attached"), passed)));
    let moved: Vec<(&str, u64)> = moved.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    host.moved(&mut before, &moved);
    // Unicast of the same vnic is not limited.
    a.send(&numbered(mac(1), mac(100), 1, 1, 60));
    host.settle(&mut [&mut a]);
    host.moved(&mut before, &[("a.in", 1), ("r00.drop.not-attached", 1)]);
}

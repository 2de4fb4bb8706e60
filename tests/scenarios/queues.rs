//! Machines with several pairs of queues: each sends, flows come back by the pair by which they
//! went, the machine uses more and fewer pairs while it runs, and a successor goes on with all.

use std::collections::{BTreeMap, BTreeSet};

use crate::lasting::{Place, die};
use butterfly_guest_driver::VmConfig;
use butterfly_packet::{build, mac::Mac};
use butterfly_tests::{
    Host, Nic, Station, eventually,
    frames::mac,
    station::{features, machine},
};
use butterfly_vhost::net::{Features, NetHeader};

const VNI: u32 = 7;

fn many(pairs: usize) -> VmConfig {
    let usual = machine(features::MODERN.with(Features::MQ), 1514);
    VmConfig { pairs, ..usual }
}

/// A packet of a flow, with its number in the flow.
fn packet(from: Mac, to: Mac, (source, destination): (u16, u16), number: u32) -> Vec<u8> {
    let last = |mac: Mac| [10, 0, 0, mac.0[5]];
    build::ethernet(from, to).ipv4(last(from), last(to)).udp(
        source,
        destination,
        &[&number.to_be_bytes()[..], &[7; 40]].concat(),
    )
}

/// Returns the ports and the number of a packet.
fn read(frame: &[u8]) -> Option<((u16, u16), u32)> {
    let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let number = u32::from_be_bytes(frame.get(42..46)?.try_into().ok()?);
    (word(12)? == 0x0800).then_some(((word(34)?, word(36)?), number))
}

fn send(station: &mut Station, pair: usize, frame: &[u8]) {
    let guest = station.vm.pair(pair);
    assert!(guest.send_wait(frame, NetHeader::default(), butterfly_tests::PATIENCE).is_ok());
}

/// Takes what waits in the receive rings of all pairs: pair, flow and number.
fn received(station: &mut Station, pairs: usize) -> Vec<(usize, (u16, u16), u32)> {
    let mut all = Vec::new();
    for pair in 0..pairs {
        while let Some((_, frame)) = station.vm.pair(pair).recv().unwrap() {
            all.extend(read(&frame).map(|(ports, number)| (pair, ports, number)));
        }
    }
    all
}

/// Takes so many packets.
fn receive(station: &mut Station, pairs: usize, count: usize) -> Vec<(usize, (u16, u16), u32)> {
    let mut all = Vec::new();
    eventually("packets", || {
        all.extend(received(station, pairs));
        all.len() >= count
    });
    assert_eq!(all.len(), count);
    all
}

#[test]
fn flows_come_back_by_the_pair_by_which_they_went() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), VNI), &many(4));
    let mut b = host.station(&Nic::bypass("b", mac(2), VNI), &many(1));
    for round in 0..3 {
        for flow in 0..40u16 {
            // In each round by another pair.
            let pair = usize::from(flow + round) % 4;
            let out = packet(mac(1), mac(2), (1000 + flow, 53), round.into());
            send(&mut a, pair, &out);
            assert_eq!(receive(&mut b, 1, 1), [(0, (1000 + flow, 53), round.into())]);
            b.send(&packet(mac(2), mac(1), (53, 1000 + flow), round.into()));
            let [(by, ports, _)] = receive(&mut a, 4, 1)[..] else { panic!("one") };
            assert_eq!((by, ports), (pair, (53, 1000 + flow)), "round {round}");
        }
    }
    // Flows that the machine never sent are spread.
    let mut by = BTreeMap::<usize, u32>::new();
    for flow in 0..200 {
        b.send(&packet(mac(2), mac(1), (9, 2000 + flow), 0));
        receive(&mut a, 4, 1).iter().for_each(|(pair, ..)| *by.entry(*pair).or_default() += 1);
    }
    assert!(by.len() == 4 && by.values().all(|flows| *flows >= 20), "{by:?}");
    // So are those between two machines with several.
    let mut c = host.station(&Nic::bypass("c", mac(3), VNI), &many(16));
    for flow in 0..16 {
        send(&mut c, usize::from(flow), &packet(mac(3), mac(1), (flow, 3000), 1));
        receive(&mut a, 4, 1);
        send(&mut a, 3, &packet(mac(1), mac(3), (3000, flow), 1));
        assert_eq!(receive(&mut c, 16, 1), [(usize::from(flow), (3000, flow), 1)]);
    }
}

/// Filters see one session, whichever pairs its packets come by.
#[test]
fn a_session_is_one_whichever_pairs_it_uses() {
    let host = Host::new();
    let mut a = host.station(&Nic::filtered("a", mac(1), VNI).ips(&["10.0.0.1"]), &many(4));
    let mut b = host.station(&Nic::bypass("b", mac(2), VNI), &many(1));
    b.send(&packet(mac(2), mac(1), (53, 1000), 0));
    eventually("the drop", || host.show("a").all_drops() == 1);
    for number in 1..20 {
        send(&mut a, number as usize % 4, &packet(mac(1), mac(2), (1000, 53), number));
        receive(&mut b, 1, 1);
        b.send(&packet(mac(2), mac(1), (53, 1000), number));
        let [(pair, ports, got)] = receive(&mut a, 4, 1)[..] else { panic!("one") };
        assert_eq!((pair, ports, got), (number as usize % 4, (53, 1000), number));
    }
    assert_eq!(host.show("a").all_drops(), 1);
}

/// Each flow is in order while the machine uses more and fewer pairs.
#[test]
fn a_machine_uses_more_and_fewer_pairs_while_it_runs() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), VNI), &many(4));
    let mut b = host.station(&Nic::bypass("b", mac(2), VNI), &many(1));
    let mut next = BTreeMap::<(u16, u16), u32>::new();
    let mut used = BTreeSet::new();
    let mut number = 0;
    for (round, pairs) in [4, 1, 2, 4, 3, 1, 4].into_iter().cycle().take(70).enumerate() {
        a.vm.use_pairs(pairs).unwrap();
        for step in 0..20u32 {
            number += 1;
            for flow in 0..8u16 {
                let pair = (usize::from(flow) + round) % pairs;
                send(&mut a, pair, &packet(mac(1), mac(2), (1000 + flow, 53), number));
                b.send(&packet(mac(2), mac(1), (53, 1000 + flow), number));
            }
            if step % 5 == 4 {
                for (_, ports, got) in receive(&mut b, 1, 40) {
                    let last = next.insert(ports, got).unwrap_or(0);
                    assert!(got > last, "{ports:?}: {got} after {last}");
                }
                for (pair, ports, got) in receive(&mut a, 4, 40) {
                    assert!(pair < pairs, "{pairs} pairs are used, not {pair}");
                    used.insert(pair);
                    let last = next.insert(ports, got).unwrap_or(0);
                    assert!(got > last, "{ports:?}: {got} after {last}");
                }
            }
        }
        host.settle(&mut [&mut a, &mut b]);
    }
    assert_eq!(used.len(), 4);
    let show = host.show("a");
    assert_eq!(show.dropped(), BTreeMap::new());
}

/// A frame that was left in a ring which the machine gave up is not sent after newer ones.
#[test]
fn what_is_left_behind_is_discarded() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), VNI), &many(2));
    let mut b = host.station(&Nic::bypass("b", mac(2), VNI), &many(1));
    a.vm.use_pairs(1).unwrap();
    let flow = (1, 2);
    send(&mut a, 1, &packet(mac(1), mac(2), flow, 1));
    send(&mut a, 0, &packet(mac(1), mac(2), flow, 2));
    assert_eq!(receive(&mut b, 1, 1), [(0, flow, 2)]);
    a.vm.use_pairs(2).unwrap();
    eventually("the old one to be discarded", || host.show("a").drops("tx-disabled") == 1);
    send(&mut a, 1, &packet(mac(1), mac(2), flow, 3));
    assert_eq!(receive(&mut b, 1, 1), [(0, flow, 3)]);
}

/// A daemon dies, and its successor goes on with all pairs, those in use and others.
#[test]
fn a_successor_goes_on_with_all_pairs() {
    let Some(place) = Place::new() else { return };
    let mut host = place.start();
    let mut a = host.station(&Nic::bypass("a", mac(1), VNI), &many(4));
    let mut b = host.station(&Nic::bypass("b", mac(2), VNI), &many(16));
    for (round, pairs) in [3, 1, 4, 2].into_iter().enumerate() {
        a.vm.use_pairs(pairs).unwrap();
        for pair in 0..pairs {
            let flow = (pair as u16, 100 + round as u16);
            send(&mut a, pair, &packet(mac(1), mac(2), flow, 1));
            receive(&mut b, 16, 1);
            send(&mut b, 15 - pair, &packet(mac(2), mac(1), (flow.1, flow.0), 1));
            assert_eq!(receive(&mut a, 4, 1)[0].0, pair);
        }
        die(&mut host);
        // Sent while nobody serves it.
        for pair in 0..pairs {
            send(&mut a, pair, &packet(mac(1), mac(2), (pair as u16, 1000), 2));
        }
        host = place.start();
        let mut came = receive(&mut b, 16, pairs);
        came.sort_unstable_by_key(|(_, ports, _)| *ports);
        let expected = (0..pairs as u16).map(|pair| (pair, 1000));
        assert!(came.into_iter().map(|(_, ports, _)| ports).eq(expected));
    }
    assert_eq!(host.show("b").queues.len(), 32);
    assert!(a.vm.connection.sync().is_ok() && b.vm.connection.sync().is_ok());
    host.daemon_mut().quit();
}

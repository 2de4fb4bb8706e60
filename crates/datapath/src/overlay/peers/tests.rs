//! The table of peers: found, full, shared by networks.

use std::net::IpAddr;

use butterfly_packet::mac::Mac;

use super::*;
use crate::world::rules::number as number_of_ip;

fn ip(n: u32) -> IpAddr {
    IpAddr::V4(n.into())
}

#[test]
fn peers_are_found_until_they_are_silent_for_too_long() {
    let peers = PeerTable::new(1);
    let a = peers.try_add(number_of_ip(ip(1)), 42, 100).unwrap();
    assert_eq!(peers.try_add(number_of_ip(ip(1)), 42, 100), Some(a));
    assert_eq!(peers.find(number_of_ip(ip(1))), Some(a));
    peers.get(a).unwrap().heard(Mac([2, 0, 0, 0, 0, 1]), 100);
    let b = peers.configure(ip(2)).unwrap();
    peers.expire(400, 300);
    assert!(peers.get(a).is_some());
    peers.expire(401, 300);
    assert!(peers.get(a).is_none() && peers.find(number_of_ip(ip(1))).is_none());
    assert_eq!(peers.list(401).len(), 1);
    // The next peer in its place is another one.
    let c = peers.try_add(number_of_ip(ip(3)), 42, 401).unwrap();
    assert!(peers.get(a).is_none() && peers.get(c).is_some() && peers.get(b).is_some());
    peers.unconfigure(ip(2));
    peers.expire(402, 300);
    assert!(peers.get(b).is_none());
}

#[test]
fn a_full_table_refuses_and_keeps() {
    let peers = PeerTable::new(1);
    let known: Vec<_> = (1..10_000)
        .filter_map(|n| Some((n, peers.try_add(number_of_ip(ip(n)), 42, 600)?)))
        .collect();
    assert_eq!(known.len(), MAX_PEERS);
    assert_eq!(peers.try_add(number_of_ip(ip(20_000)), 42, 600), None);
    assert!(known.iter().all(|(n, at)| peers.find(number_of_ip(ip(*n))) == Some(*at)));
    // A named peer comes in, in place of a learnt one; named peers stay.
    let first = peers.configure(ip(30_000)).unwrap();
    for n in 30_001..30_000 + MAX_PEERS as u32 / 2 {
        assert!(peers.configure(ip(n)).is_some(), "{n}");
    }
    assert!(peers.get(first).is_some());
    assert_eq!(peers.list(600).len(), MAX_PEERS);
    peers.expire(1000, 300);
    assert!(peers.try_add(number_of_ip(ip(20_000)), 42, 1000).is_some());
}

/// An attacker forges outer sources of one network until there is no more room. Peers of other
/// networks are learnt all the same.
#[test]
fn who_fills_the_table_in_one_network_leaves_others_their_part() {
    let mut peers = PeerTable::new(1);
    // With one of 200 keys some bucket overflows, and a forged peer gives way to a new one.
    peers.seeds = [1, 2];
    peers.settle(&(0..8).map(|vni| (vni, vni)).collect());
    let forged =
        (1..20_000).filter(|n| peers.try_add(number_of_ip(ip(*n)), 7, 600).is_some()).count();
    let part = MAX_PEERS / 2 / 8;
    assert_eq!(forged, part + MAX_PEERS / 2);
    for vni in 0..7u32 {
        for n in 0..part as u32 {
            let address = number_of_ip(ip(100_000 + 1000 * vni + n));
            assert!(peers.try_add(address, vni, 600).is_some(), "network {vni}, peer {n}");
        }
        assert_eq!(peers.try_add(number_of_ip(ip(200_000)), vni, 600), None);
    }
    // A named peer needs no share. Forged peers give way, and peers of other networks within
    // their parts do not.
    for n in 0..100 {
        assert!(peers.configure(ip(300_000 + n)).is_some(), "{n}");
    }
    let kept = |vni: u32| {
        let addresses = (0..part as u32).map(|n| number_of_ip(ip(100_000 + 1000 * vni + n)));
        addresses.filter(|address| peers.find(*address).is_some()).count()
    };
    // A part is smaller by now: of what is left by those that were named.
    assert!(
        (0..7).all(|vni| kept(vni) >= (MAX_PEERS - 100) / 2 / 8),
        "{:?}",
        (0..7).map(kept).collect::<Vec<_>>()
    );
}

#[test]
fn a_network_more_finds_room_at_once_and_one_that_went_holds_nothing() {
    let peers = PeerTable::new(1);
    let add = |range: std::ops::Range<u32>, vni| {
        range.filter(|n| peers.try_add(number_of_ip(ip(*n)), vni, *n).is_some()).count()
    };
    assert_eq!(add(1..5_000, 7), MAX_PEERS);
    peers.settle(&[(7, 0), (8, 1)].into());
    assert_eq!(add(10_000..15_000, 8), MAX_PEERS / 4);
    // Those that were heard last stayed.
    assert!(
        peers.find(number_of_ip(ip(MAX_PEERS as u32))).is_some()
            && peers.find(number_of_ip(ip(1))).is_none()
    );
    peers.settle(&[(8, 1)].into());
    assert!(add(20_000..25_000, 8) >= MAX_PEERS / 2);
    peers.expire(100_000, 300);
    assert_eq!((peers.list(0).len(), peers.room().held.len()), (0, 0));
    assert_eq!(add(30_000..35_000, 8), MAX_PEERS);
}

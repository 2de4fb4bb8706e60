//! The keeper's turns, with a tunnel in memory and a clock of the test's.

use butterfly_packet::mac::Mac;

use super::*;
use crate::endpoint::{control::ControlEvent, keeper::hops::MEET};
use crate::overlay::{TunnelConfig, UplinkPort};
use crate::plane::{PlaneConfig, nowhere};
use crate::session::SessionConfig;

fn keeper() -> Keeper {
    let (endpoint, mac) = (IpAddr::from([10, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 1]));
    let tunnel =
        Tunnel::new(&TunnelConfig::new(endpoint, mac), UplinkPort::Ring(Arc::default()), 1)
            .unwrap();
    let sessions = SessionConfig { capacity: 1024, ..SessionConfig::default() };
    let plane = Plane::new(PlaneConfig {
        workers: 1,
        fdb_ageing: 300,
        sessions,
        tunnel: Some(tunnel),
        black_box: nowhere(),
    })
    .unwrap();
    let config = ControlConfig {
        mac,
        endpoint,
        prefix: None,
        answers: true,
        gateways: Vec::new(),
        group6: std::net::Ipv6Addr::LOCALHOST,
    };
    Keeper::new(Arc::new(plane), config, None, Arc::new(()))
}

#[test]
fn whoever_sends_much_is_not_heard_to_the_end() {
    let keeper = keeper();
    let tunnel = keeper.plane.shared.tunnel.as_ref().unwrap();
    let put =
        || (0..HEAR + 1).for_each(|_| assert!(tunnel.punt.put(Punted::Control, 60, |_| true)));
    put();
    let mut state = keeper.state();
    assert!(state.hear(tunnel, &mut [], 0));
    assert!(!state.hear(tunnel, &mut [], 0));
    put();
    assert!(state.hear(tunnel, &mut [], 0));
}

#[test]
fn named_peers_are_looked_for_until_they_are_found() {
    let keeper = keeper();
    let (plane, tunnel) = (&keeper.plane, keeper.plane.shared.tunnel.as_ref().unwrap());
    let named = |n| IpAddr::from([10, 0, 0, n]);
    let first = tunnel.peers.configure(named(2)).unwrap();
    tunnel.peers.try_add(crate::world::rules::number(named(3)), 42, 1).unwrap();
    let mut state = keeper.state();
    let mut asks = |seconds: std::ops::Range<u64>| {
        let asked: Vec<u64> = seconds
            .filter(|second| {
                let State { control, out, .. } = &mut *state;
                control.tick(1000 * second, out);
                out.frames.clear();
                state.every_second(plane, tunnel, 300, 1000 * second);
                !std::mem::take(&mut state.out.frames).is_empty()
            })
            .collect();
        asked
    };
    // Each time three questions, a second apart, of which the first is seen here; then it is
    // not asked for a while.
    let asked = asks(0..300);
    assert!(
        asked.len() >= 5 && asked[0] == 0 && asked.is_sorted() && asked[asked.len() - 1] >= 180,
        "{asked:?}"
    );
    assert!(asked.len() <= 12, "{asked:?}");
    tunnel.peers.get(first).unwrap().set_mac(Some(Mac([2, 0, 0, 0, 0, 9])));
    assert_eq!(asks(300..500), [0; 0]);
    // As many as there may be are not all asked for at once.
    (4..=250).for_each(|n| assert!(tunnel.peers.configure(named(n)).is_some()));
    let counts: Vec<usize> = (500..506)
        .map(|second| {
            state.every_second(plane, tunnel, 300, 1000 * second);
            std::mem::take(&mut state.out.frames).len()
        })
        .collect();
    assert!(counts[0] == MEET && counts.iter().all(|n| *n <= MEET), "{counts:?}");
    assert!(counts.iter().sum::<usize>() >= 247, "{counts:?}");
}

#[test]
fn a_next_hop_that_was_heard_of_stays_though_nobody_answers() {
    let keeper = keeper();
    let tunnel = keeper.plane.shared.tunnel.as_ref().unwrap();
    let now = keeper.plane.shared.clock.now();
    let (heard, named) = (IpAddr::from([10, 0, 1, 2]), IpAddr::from([10, 0, 1, 3]));
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let at = tunnel.peers.try_add(crate::world::rules::number(heard), 42, now).unwrap();
    tunnel.peers.get(at).unwrap().heard(mac, now);
    let other = tunnel.peers.configure(named).unwrap();
    tunnel.peers.get(other).unwrap().set_mac(Some(mac));
    let mut state = keeper.state();
    for peer in [at, other] {
        assert!(tunnel.peers.get(peer).unwrap().may_wait());
    }
    state.out.events.extend([ControlEvent::Unreachable(heard), ControlEvent::Unreachable(named)]);
    state.carry_out(&keeper.plane, tunnel, 300);
    let known = |at| tunnel.peers.get(at).unwrap();
    assert_eq!((known(at).mac(), known(other).mac()), (Some(mac), None));
    assert!(known(at).may_wait() && known(other).may_wait());
}

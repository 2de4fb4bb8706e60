//! Next hops: found, checked, taken over, lost.

use super::*;
use crate::endpoint::control::neighbours::{MAX_PEERS, MAX_WAITING, REACHABLE};

fn waiting(text: &str) -> Vec<u8> {
    build::ethernet(A, Mac::ZERO).payload(0x88b5, text.as_bytes())
}

fn sent(mac: Mac, text: &str) -> Vec<u8> {
    build::ethernet(A, mac).payload(0x88b5, text.as_bytes())
}

fn question(host: &Host, hop: &str, station: Option<Mac>) -> Vec<u8> {
    host.control.link.who_has(ip(hop), station)
}

/// Frames that are said, with their times.
fn said(happened: &[(u64, Output)]) -> Vec<(u64, Vec<u8>)> {
    happened
        .iter()
        .flat_map(|(at, out)| out.frames.iter().map(|frame| (*at, frame.clone())))
        .collect()
}

fn events(happened: &[(u64, Output)]) -> Vec<(u64, ControlEvent)> {
    happened.iter().flat_map(|(at, out)| out.events.iter().map(|event| (*at, *event))).collect()
}

/// A host that has just heard an answer of `B` for a neighbour, and knew nothing else.
fn known() -> [(Host, &'static str); 2] {
    Host::both().map(|(mut host, peer, ..)| {
        host.resolve(peer, None);
        let out = host.hears(&answer(B, peer));
        assert_eq!((out.frames.len(), out.events), (0, vec![ControlEvent::Resolved(ip(peer), B)]));
        assert_eq!(host.state(peer), Some(("reachable", Some(B))));
        (host, peer)
    })
}

#[test]
fn it_asks_three_times_and_gives_up_for_a_second() {
    for (mut host, peer, ..) in Host::both() {
        let asked = question(&host, peer, None);
        for _ in 0..2 {
            let out = host.resolve(peer, Some(waiting("one")));
            assert_eq!((&out.frames[..], &out.events[..]), (&[asked.clone()][..], &[][..]));
            assert_eq!(host.state(peer), Some(("asking", None)));
            let happened = host.pass(3500);
            assert_eq!(said(&happened), [(1000, asked.clone()), (2000, asked.clone())]);
            assert_eq!(events(&happened), [(3000, ControlEvent::Unreachable(ip(peer)))]);
            // Half a second later it is still not asked again.
            let out = host.resolve(peer, Some(waiting("two")));
            assert_eq!(
                (out.frames.len(), out.events),
                (0, vec![ControlEvent::Unreachable(ip(peer))])
            );
            assert_eq!(host.state(peer), Some(("unreachable", None)));
            host.pass(500);
        }
        assert_eq!(host.count(Count::NoAnswer), 4);
        // An answer that comes too late is not believed.
        host.refuses(&answer(B, peer), Count::Unasked, "too late");
    }
}

#[test]
fn the_newest_frame_waits_and_goes_out_with_the_answer() {
    for (mut host, peer, ..) in Host::both() {
        host.resolve(peer, Some(waiting("old")));
        assert!(host.resolve(peer, Some(waiting("new"))).frames.is_empty());
        assert!(host.resolve(peer, None).frames.is_empty());
        assert!(host.resolve(peer, Some(Vec::new())).frames.is_empty());
        assert_eq!(host.count(Count::NoAnswer), 1);
        host.pass(2500);
        let out = host.hears(&answer(B, peer));
        assert_eq!(
            (out.frames, out.events),
            (vec![sent(B, "new")], vec![ControlEvent::Resolved(ip(peer), B)])
        );
        // From now on nothing waits.
        let out = host.resolve(peer, Some(waiting("later")));
        assert_eq!(
            (out.frames, out.events),
            (vec![sent(B, "later")], vec![ControlEvent::Resolved(ip(peer), B)])
        );
        assert_eq!(host.control.neighbours.len(), (1, 1, 0));
        assert!(host.resolve(peer, Some(vec![1, 2, 3])).frames.is_empty(), "no frame at all");
    }
}

#[test]
fn an_old_entry_is_used_and_checked_when_it_is_used() {
    for (mut host, peer) in known() {
        host.pass(REACHABLE - 1);
        assert!(host.used(peer).frames.is_empty());
        host.pass(1);
        assert_eq!(host.state(peer), Some(("stale", Some(B))));
        assert!(host.pass(100_000).is_empty(), "nobody needs it");
        let asked = question(&host, peer, Some(B));
        let out = host.resolve(peer, Some(waiting("goes")));
        assert_eq!(
            (out.frames, out.events),
            (vec![sent(B, "goes"), asked.clone()], vec![ControlEvent::Resolved(ip(peer), B)])
        );
        assert!(host.used(peer).frames.is_empty(), "asked already");
        assert_eq!(host.state(peer), Some(("probing", Some(B))));
        let out = host.hears(&answer(B, peer));
        assert_eq!((out.frames.len(), out.events.len()), (0, 0));
        assert_eq!(host.state(peer), Some(("reachable", Some(B))));
        // What comes from it spares the question.
        for _ in 0..10 {
            host.pass(REACHABLE - 1);
            host.confirmed(peer, B);
            assert!(host.used(peer).frames.is_empty());
        }
        host.pass(REACHABLE);
        host.confirmed(peer, B);
        assert_eq!(host.state(peer), Some(("reachable", Some(B))));
    }
}

#[test]
fn one_that_is_gone_is_noticed() {
    for (mut host, peer) in known() {
        host.pass(REACHABLE);
        let (one, all) = (question(&host, peer, Some(B)), question(&host, peer, None));
        assert_eq!(host.used(peer).frames, std::slice::from_ref(&one));
        let happened = host.pass(10_000);
        assert_eq!(said(&happened), [(1000, one), (2000, all.clone())]);
        assert_eq!(events(&happened), [(3000, ControlEvent::Unreachable(ip(peer)))]);
        // It is back, on another machine.
        assert_eq!(host.used(peer).frames, [all]);
        assert_eq!(host.hears(&answer(C, peer)).events, [ControlEvent::Resolved(ip(peer), C)]);
    }
}

#[test]
fn one_that_moved_is_found_by_asking_everyone() {
    for (mut host, peer) in known() {
        host.pass(REACHABLE);
        host.used(peer);
        host.pass(2000);
        assert_eq!(host.hears(&answer(C, peer)).events, [ControlEvent::Resolved(ip(peer), C)]);
        assert_eq!(host.state(peer), Some(("reachable", Some(C))));
    }
}

#[test]
fn a_claim_does_not_take_an_address_from_who_answers() {
    for (mut host, peer) in known() {
        host.pass(500);
        for frame in [claim(C, peer), answer(C, peer)] {
            let out = host.hears(&frame);
            assert_eq!((out.frames.len(), out.events.len()), (0, 0), "just confirmed");
        }
        host.pass(500);
        let asked = question(&host, peer, Some(B));
        for (n, frame) in [claim(C, peer), answer(C, peer)].into_iter().enumerate() {
            let out = host.hears(&frame);
            assert_eq!((&out.frames[..], out.events.len()), (&[asked.clone()][..], 0));
            // While it is asked, the claimant insists, and answers what it was not asked.
            for frame in [claim(C, peer), answer(C, peer)] {
                let out = host.hears(&frame);
                assert_eq!((out.frames.len(), out.events.len()), (0, 0));
            }
            host.pass(900);
            let out = host.hears(&answer(B, peer));
            assert_eq!((out.frames.len(), out.events.len()), (0, 0));
            assert_eq!(host.state(peer), Some(("reachable", Some(B))));
            assert!(host.pass(1000).is_empty());
            assert_eq!(host.count(Count::Unasked), 2 + 2 * n as u64);
        }
    }
}

#[test]
fn a_claim_is_believed_when_the_old_station_is_silent_and_the_new_one_answers() {
    for (mut host, peer) in known() {
        host.pass(1000);
        let old = question(&host, peer, Some(B));
        let new = question(&host, peer, Some(C));
        assert_eq!(host.hears(&claim(C, peer)).frames, [old]);
        assert_eq!(said(&host.pass(1000)), [(1000, new)]);
        // Neither a claim nor a third station is an answer.
        assert!(host.hears(&claim(C, peer)).events.is_empty());
        assert!(host.hears(&answer(Mac([2, 0, 0, 0, 0, 0xd]), peer)).events.is_empty());
        assert_eq!(host.state(peer), Some(("probing", Some(B))));
        assert_eq!(host.hears(&answer(C, peer)).events, [ControlEvent::Resolved(ip(peer), C)]);
        assert_eq!(host.state(peer), Some(("reachable", Some(C))));
    }
}

#[test]
fn frames_from_another_station_are_a_claim() {
    for (mut host, peer) in known() {
        host.pass(1000);
        let out = host.confirmed(peer, C);
        assert_eq!((&out.frames[..], out.events.len()), (&[question(&host, peer, Some(B))][..], 0));
        // The old one is heard again: nothing has changed.
        assert!(host.confirmed(peer, B).events.is_empty());
        assert_eq!(host.state(peer), Some(("reachable", Some(B))));
        for mac in [A, Mac::ZERO, Mac::BROADCAST] {
            host.pass(1000);
            assert!(host.confirmed(peer, mac).frames.is_empty());
        }
        assert!(host.confirmed("10.1.0.77", C).frames.is_empty(), "nobody knows it");
    }
}

#[test]
fn only_answers_to_questions_are_believed() {
    for (mut host, peer, ..) in Host::both() {
        host.refuses(&answer(B, peer), Count::Unasked, "nothing is known of it");
        host.resolve(peer, None);
        host.hears(&claim(B, peer));
        host.confirmed(peer, B);
        assert_eq!(host.state(peer), Some(("asking", None)), "nobody was asked by these");
        let mut other = answer(B, peer);
        other[..6].copy_from_slice(&Mac::BROADCAST.0);
        host.hears(&other);
        assert_eq!(host.state(peer), Some(("asking", None)), "an answer goes to who asked");
        host.hears(&answer(B, peer));
        assert_eq!(host.state(peer), Some(("reachable", Some(B))));
    }
}

#[test]
fn peers_behind_a_gateway_share_its_address() {
    for (mut host, _, one, two) in Host::both() {
        let [gateway, second] =
            if one.contains(':') { ["fd00::fe", "fd00::fd"] } else { ["10.1.0.254", "10.1.0.253"] };
        assert_eq!(
            host.resolve(one, Some(waiting("one"))).frames,
            [question(&host, gateway, None)]
        );
        assert!(host.resolve(two, Some(waiting("two"))).frames.is_empty());
        let out = host.hears(&answer(B, gateway));
        assert_eq!(
            out.events,
            [ControlEvent::Resolved(ip(one), B), ControlEvent::Resolved(ip(two), B)]
        );
        assert_eq!(out.frames, [sent(B, "one"), sent(B, "two")]);
        // Answers may come by another way; frames that come by ours confirm it.
        host.pass(REACHABLE);
        assert!(host.confirmed(one, C).frames.is_empty());
        host.confirmed(two, B);
        assert_eq!(host.state(gateway), Some(("reachable", Some(B))));
        assert_eq!(host.control.neighbours(host.now)[0].peers, 2);
        // It is gone: both are told, and the second gateway is asked.
        host.pass(REACHABLE);
        host.used(two);
        let happened = host.pass(3000);
        assert_eq!(
            events(&happened),
            [
                (3000, ControlEvent::Unreachable(ip(one))),
                (3000, ControlEvent::Unreachable(ip(two)))
            ]
        );
        assert_eq!(host.used(one).frames, [question(&host, second, None)]);
        assert_eq!(host.hears(&answer(C, second)).events, [ControlEvent::Resolved(ip(one), C)]);
    }
}

#[test]
fn one_peer_too_many_replaces_the_one_that_was_not_used_for_longest() {
    let mut host = Host::new(false, true);
    let peer = |n: usize| format!("10.1.{}.{}", n >> 8, n & 0xff);
    let config = ControlConfig {
        mac: A,
        endpoint: ip("10.1.255.1"),
        prefix: Some(16),
        answers: false,
        gateways: Vec::new(),
        group6: Ipv6Addr::UNSPECIFIED,
    };
    host.control = Control::new(config);
    for n in 0..MAX_PEERS {
        host.resolve(&peer(n), Some(waiting("waits")));
        host.now += 1;
    }
    host.resolve(&peer(0), None);
    host.now += 1;
    assert_eq!(
        (host.control.neighbours.len().0, host.control.neighbours.len().1),
        (MAX_PEERS, MAX_PEERS)
    );
    let out = host.resolve(&peer(MAX_PEERS), None);
    assert_eq!(out.events, [ControlEvent::Unreachable(ip(&peer(1)))]);
    assert_eq!(
        (host.control.neighbours.len().0, host.control.neighbours.len().1),
        (MAX_PEERS, MAX_PEERS)
    );
    assert_eq!((host.state(&peer(1)), host.count(Count::NeighboursFull)), (None, 1));
    assert!(host.state(&peer(0)).is_some() && host.state(&peer(MAX_PEERS)).is_some());
    // All of them time out, and are forgotten after a long time without use.
    host.pass(700_000);
    assert_eq!(host.control.neighbours.len(), (0, 0, 0));
    assert_eq!(host.control.next_tick(), None);
}

#[test]
fn frames_that_wait_are_bounded_in_bytes() {
    let mut host = Host::new(false, true);
    let large = vec![0; 0xffff];
    let fit = MAX_WAITING / large.len();
    for n in 0..=fit {
        host.resolve(&format!("10.1.0.{}", 2 + n), Some(large.clone()));
    }
    assert_eq!(host.count(Count::WaitingFull), 1);
    assert_eq!(host.control.neighbours.len().2, fit * large.len());
    // One in the place of another is as long.
    host.resolve("10.1.0.2", Some(large.clone()));
    assert_eq!(
        (host.count(Count::WaitingFull), host.control.neighbours.len().2),
        (1, fit * large.len())
    );
    host.pass(3000);
    assert_eq!(host.control.neighbours.len().2, 0);
}

#[test]
fn what_cannot_be_a_peer_is_refused_at_once() {
    for (mut host, ..) in Host::both() {
        let peers = if host.control.link.endpoint.is_ipv4() {
            ["10.1.0.1", "10.1.0.255", "230.0.0.1", "fd00::2"]
        } else {
            ["fd00::1", "::", "ff05::1", "10.1.0.2"]
        };
        for peer in peers {
            let out = host.resolve(peer, Some(waiting("never")));
            assert_eq!(
                (out.frames.len(), out.events),
                (0, vec![ControlEvent::Unreachable(ip(peer))])
            );
            assert_eq!(host.used(peer).events, [ControlEvent::Unreachable(ip(peer))]);
        }
        assert_eq!((host.count(Count::BadPeer), host.control.neighbours.len()), (8, (0, 0, 0)));
    }
}

//! The model of two hosts: each sentence of what goes on between them, by hand; and that the
//! comparison notices switches that are wrong.

use butterfly_packet::{Mac, build};

use crate::{
    cases::{
        A, A4, B, B80, C, IP_A, IP_B, IP_C, STATION, disagreements, disagreements_among, rule, say,
        tcp, udp, vnic,
    },
    choices::Choices,
    generate,
    policy::{Declared, Direction::Inbound, Group},
    switch::{Mistake, Model, Outcome},
    tcp::{ACK, SYN},
    world::{self, TRUNKS},
};

/// a: filtered, without groups. b: filtered, of group "web", which is open at port 80. c: bypasses
/// filters. Each on this host, long there.
fn world(placed: [usize; 3]) -> Vec<Model> {
    let mut world = world::hosts(2);
    for model in &mut world {
        let rules =
            [6, 17].map(|protocol| rule(Inbound, Some(protocol), (80, 80), "0.0.0.0", 0)).to_vec();
        model.groups.push(Group { name: "web", members: vec![], rules });
    }
    world[placed[0]].insert("a", vnic(A, 1, &[]));
    world[placed[1]].insert("b", vnic(B, 2, &["web"]));
    world[placed[2]].insert("c", Declared { bypass: true, ..vnic(C, 3, &[]) });
    pass(&mut world, 1000);
    world
}

pub fn pass(world: &mut [Model], seconds: u32) {
    world.iter_mut().for_each(|model| model.pass(seconds));
}

/// b goes to this host, and says so.
fn move_b(world: &mut [Model], to: usize) {
    world[1 - to].remove("b");
    world[to].insert("b", vnic(B, 2, &["web"]));
    send(world, to, "b", &build::ethernet(B, Mac::BROADCAST).arp_request(IP_B, IP_A));
}

/// Sends a frame with exactly one right outcome. Returns the receivers, or the drops.
#[track_caller]
pub fn send(world: &mut [Model], host: usize, from: &str, frame: &[u8]) -> String {
    let results = Choices::all(|choices| {
        let mut world = world.to_vec();
        let outcomes = world::send(&mut world, host, from, frame, choices);
        (world, outcomes)
    });
    assert_eq!(
        results.len(),
        1,
        "{:?}",
        results.iter().map(|(_, outcome)| outcome).collect::<Vec<_>>()
    );
    let (after, outcomes) = results.into_iter().next().unwrap();
    world.clone_from_slice(&after);
    let mut both = Outcome::default();
    for outcome in [host, 1 - host].map(|host| &outcomes[host]) {
        both.receivers
            .extend(outcome.receivers.iter().filter(|name| !TRUNKS.as_flattened().contains(name)));
        both.drops.extend(outcome.drops.clone());
    }
    say(&both)
}

#[test]
fn what_nobody_here_owns_is_one_conversation_with_the_others() {
    let mut world = world([0, 1, 1]);
    // b's address is not known there yet; a's is here, by then.
    assert_eq!(send(&mut world, 0, "a", &udp(A4, B80)), "> b");
    assert_eq!(send(&mut world, 1, "b", &udp(B80, A4)), "> a");
    assert_eq!(send(&mut world, 1, "c", &udp((C, IP_C, 80), A4)), "a: ingress-denied");
    assert_eq!(send(&mut world, 0, "a", &udp(A4, (B, IP_B, 81))), "b: ingress-denied");
}

#[test]
fn nothing_returns_to_the_host_that_it_came_from() {
    let mut world = world([0, 1, 1]);
    let all = build::ethernet(C, Mac::BROADCAST).payload(0x88b5, &[0; 46]);
    assert_eq!(send(&mut world, 1, "c", &all), "> b, > a");
    // No vnic of host one has the address, and those of host two were asked there.
    assert_eq!(
        send(&mut world, 1, "c", &build::ethernet(C, STATION).payload(0x88b5, &[0; 46])),
        "one/vni-1: no-receiver"
    );
    // What host two believes to be at host one.
    send(&mut world, 0, "a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B));
    world[0].remove("a");
    world[0].insert("d", Declared { bypass: true, ..vnic(STATION, 4, &[]) });
    assert_eq!(send(&mut world, 1, "c", &build::ethernet(C, A).payload(0x88b5, &[0; 46])), "> d");
    world[0].remove("d");
    assert_eq!(
        send(&mut world, 1, "c", &build::ethernet(C, A).payload(0x88b5, &[0; 46])),
        "one/uplink: unknown-vni"
    );
}

#[test]
fn other_hosts_do_not_have_addresses_of_filtered_vnics() {
    let mut world = world([0, 1, 1]);
    let frame = build::ethernet(A, Mac::BROADCAST).payload(0x88b5, &[0; 46]);
    assert_eq!(send(&mut world, 1, "c", &frame), "> b, one/vni-1: mac-claimed");
}

/// A connection from a to port 80 of b, and its first data.
fn connect(world: &mut [Model], [a, b]: [usize; 2]) {
    // Each knows where the other is.
    send(world, a, "a", &build::ethernet(A, Mac::BROADCAST).arp_request(IP_A, IP_B));
    send(world, b, "b", &build::ethernet(B, Mac::BROADCAST).arp_request(IP_B, IP_A));
    assert_eq!(send(world, a, "a", &tcp(A4, B80, SYN, 99, 0)), "> b");
    assert_eq!(send(world, b, "b", &tcp(B80, A4, SYN | ACK, 499, 100)), "> a");
    assert_eq!(send(world, a, "a", &tcp(A4, B80, ACK, 100, 500)), "> b");
}

#[test]
fn a_vnic_that_moves_takes_its_connections_along() {
    let mut world = world([0, 1, 1]);
    connect(&mut world, [0, 1]);
    move_b(&mut world, 0);
    // A packet that no conversation could begin with.
    assert_eq!(send(&mut world, 0, "b", &tcp(B80, A4, ACK, 500, 100)), "> a");
    assert_eq!(send(&mut world, 0, "a", &tcp(A4, B80, ACK, 100, 500)), "> b");
    pass(&mut world, 1000);
    move_b(&mut world, 1);
    // Where a is was forgotten there.
    assert_eq!(send(&mut world, 1, "b", &tcp(B80, A4, ACK, 500, 100)), "> c, > a");
    // What is no part of it is none after it moved either.
    let far = tcp(A4, B80, ACK, 0x4000_0000, 500);
    assert_eq!(send(&mut world, 0, "a", &far), "a: tcp-window or one/vni-1: tcp-window");
    assert_eq!(send(&mut world, 0, "a", &tcp(A4, B80, ACK, 100, 500)), "> b");
}

#[test]
fn what_a_vnic_left_behind_is_known_for_two_minutes() {
    for (wait, goes_on) in [(119, true), (120, false)] {
        let mut world = world([0, 0, 1]);
        connect(&mut world, [0, 0]);
        move_b(&mut world, 1);
        pass(&mut world, wait);
        let result = send(&mut world, 1, "b", &tcp(B80, A4, ACK, 500, 100));
        assert_eq!(result.ends_with("> a"), goes_on, "{wait}: {result}");
    }
}

#[test]
fn whether_it_may_go_on_is_decided_again() {
    let mut world = world([0, 1, 1]);
    connect(&mut world, [0, 1]);
    world[0].groups[0].rules.clear();
    move_b(&mut world, 0);
    let refused = "a: ingress-denied or b: tcp-no-session or a: tcp-no-session";
    // Like a connection of a, which the rules of b's group on this host do not let in.
    world.iter_mut().for_each(|model| model.pass(1000));
    assert_eq!(send(&mut world, 0, "b", &tcp(B80, A4, ACK, 500, 100)), refused);
}

#[test]
fn only_connections_move_and_only_between_hosts() {
    let mut world = world([0, 0, 1]);
    send(&mut world, 0, "a", &udp(A4, B80));
    move_b(&mut world, 1);
    assert_eq!(send(&mut world, 1, "b", &udp(B80, A4)), "> c, a: ingress-denied");
}

#[test]
fn a_vnic_that_is_here_did_not_move() {
    let mut world = world([0, 0, 1]);
    connect(&mut world, [0, 0]);
    let claim = tcp((C, IP_B, 80), A4, ACK, 500, 100);
    assert_eq!(send(&mut world, 1, "c", &claim), "one/vni-1: ip-claimed");
    assert_eq!(send(&mut world, 0, "b", &tcp(B80, A4, ACK, 500, 100)), "> a");
    // Its addresses are shared: c may have them, too, but not its connections.
    world[0].vnic("b").unwrap().declared.shared_ip = true;
    let refused = "a: ingress-denied or one/vni-1: tcp-no-session or a: tcp-no-session";
    assert_eq!(send(&mut world, 1, "c", &claim), refused);
}

#[test]
fn switches_that_are_right_are_found_right() {
    assert_eq!(disagreements(generate::case_of_two, |_| {}), 0);
}

#[test]
fn switches_that_are_wrong_are_found_wrong() {
    let found = [
        disagreements(generate::case_of_two, |model| model.errs(Mistake::MovedIsForgotten)),
        disagreements(generate::case_of_two, |model| model.errs(Mistake::MovedIsAdmitted)),
        disagreements_among(240, generate::case_of_two, |model| model.errs(Mistake::AnybodyMoved)),
        disagreements(generate::case_of_two, |model| model.errs(Mistake::TrunkIsBelieved)),
        disagreements(generate::case_of_two, |model| model.errs(Mistake::ClaimsAreBelieved)),
        disagreements(generate::case_of_two, Model::forget_sessions),
        disagreements(generate::case_of_two, Model::learn_nothing),
    ];
    assert!(found.iter().all(|cases| *cases >= 2), "{found:?}");
}

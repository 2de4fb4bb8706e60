//! The model of routers on two hosts: each sentence of what they do for each other, by hand; and
//! that the comparison notices switches that are wrong.

use butterfly_packet::{
    Mac,
    build::{self, Tcp},
};

use crate::{
    cases::{disagreements, disagreements_among, rule, say, vnic},
    choices::Choices,
    policy::{Declared, Direction::Inbound, Group},
    routed::{block, case_of_two, router},
    router::{Change, Net, Resident, gateway_mac, host_mac},
    spanning::{pass, send},
    switch::{Mistake, Model},
    tcp::{ACK, SYN},
    world::{self, arrive},
};

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 1, 2];

/// a in network 1 and b in network 2, both filtered, on these hosts; b's group lets in UDP and TCP
/// to port 80. Both hosts have the router "r", and know where both machines are.
fn world(placed: [usize; 2]) -> Vec<Model> {
    let mut world = world::hosts(2);
    for host in 0..2 {
        let rules =
            [6, 17].map(|protocol| rule(Inbound, Some(protocol), (80, 80), "10.0.0.0", 24)).into();
        world[host].groups.push(Group { name: "web", members: vec![], rules });
        for (vni, byte) in [(1, 0), (2, 1)] {
            let blocks = vec![block(byte, false)];
            declare(&mut world, host, Change::Net(Net { vni, blocks, mtu: None, public: false }));
        }
        declare(&mut world, host, router(0, &[0, 1], &[1, 2]));
    }
    for (name, host) in [("a", placed[0]), ("b", placed[1])] {
        run(&mut world, name, host);
    }
    pass(&mut world, 1000);
    world
}

fn declare(world: &mut [Model], host: usize, change: Change) {
    let mut routes = world[host].routes.clone();
    assert!(routes.apply(&change));
    world[host].declare(&routes);
}

/// Starts a machine on a host, and tells both of it.
fn run(world: &mut [Model], name: &'static str, host: usize) {
    let (mac, vni, ip) = if name == "a" { (A, 1, IP_A) } else { (B, 2, IP_B) };
    let groups: &[_] = if name == "a" { &[] } else { &["web"] };
    let declared = Declared { vni, ips: vec![ip.into()], ..vnic(mac, vni as u8, groups) };
    world[1 - host].remove(name);
    world[host].insert(name, declared);
    let resident = Resident { vni, ip: ip.into(), mac: mac.0, host: Some(host as u8 + 1) };
    (0..2).for_each(|told| declare(world, told, Change::Resident(resident.clone())));
}

fn gateway() -> Mac {
    Mac(gateway_mac("r"))
}

fn there() -> build::Ip {
    build::ethernet(A, gateway()).ipv4(IP_A, IP_B)
}

fn back() -> build::Ip {
    build::ethernet(B, gateway()).ipv4(IP_B, IP_A)
}

#[test]
fn each_host_routes_what_its_own_machines_send() {
    let mut world = world([0, 1]);
    let (sent, mut choices) = (there().udp(9, 80, b"?"), Choices::default());
    let outcomes = world::send(&mut world.clone(), 0, "a", &sent, &mut choices);
    // On the wire, and at the machine: one hop less in all.
    let on_wire = build::ethernet(Mac(host_mac(1)), B).ipv4(IP_A, IP_B).ttl(63).udp(9, 80, b"?");
    let arrives = build::ethernet(gateway(), B).ipv4(IP_A, IP_B).ttl(63).udp(9, 80, b"?");
    assert_eq!([&outcomes[0], &outcomes[1]].map(say), ["> one/vni-2", "> b"]);
    assert_eq!(outcomes[0].becomes, Some(on_wire));
    assert_eq!(outcomes[1].becomes, Some(arrives));
    assert_eq!(send(&mut world, 1, "b", &back().udp(80, 9, b"!")), "a: ingress-denied");
    assert_eq!(send(&mut world, 0, "a", &sent), "> b");
    assert_eq!(send(&mut world, 1, "b", &back().udp(80, 9, b"!")), "> a");
    assert!(world.iter().all(|model| model.sessions() == 1));
}

#[test]
fn a_machine_is_where_it_is_declared_to_be() {
    let mut world = world([0, 1]);
    let sent = there().udp(9, 80, b"?");
    let at = |host| Change::Resident(Resident { vni: 2, ip: IP_B.into(), mac: B.0, host });
    declare(&mut world, 0, at(None));
    assert_eq!(send(&mut world, 0, "a", &sent), "> a, a: next-hop-unknown");
    // It is heard.
    let hello = build::ethernet(B, Mac::BROADCAST).arp_request(IP_B, [10, 0, 1, 9]);
    assert_eq!(send(&mut world, 1, "b", &hello), "one/vni-2: no-receiver");
    assert_eq!(send(&mut world, 0, "a", &sent), "> b");
    declare(&mut world, 0, at(Some(3)));
    assert_eq!(send(&mut world, 0, "a", &sent), "> one/away-2");
    declare(&mut world, 0, Change::NoResident(2, IP_B.into()));
    assert_eq!(send(&mut world, 0, "a", &sent), "> a, a: next-hop-unknown");
}

/// Frames of network 2 that arrive at the second host, from the first one.
#[test]
fn what_a_host_takes_from_routers_of_others() {
    let world = world([0, 1]);
    let said = |world: &[Model], frame: &[u8]| {
        let outcome = arrive(&mut world[1].clone(), (1, 1), 2, frame, &mut Choices::default());
        say(&outcome)
    };
    let of = |host: u8, to: Mac| build::ethernet(Mac(host_mac(host)), to);
    let udp = |source: [u8; 4]| of(1, B).ipv4(source, IP_B).udp(9, 80, b"?");
    assert_eq!(said(&world, &udp(IP_A)), "> b");
    let forged = of(3, B).ipv4(IP_A, IP_B).udp(9, 80, b"?");
    assert_eq!(said(&world, &forged), "two/vni-2: forged-router");
    for source in [[10, 0, 1, 9], [10, 0, 2, 1], [10, 0, 0, 254], [224, 0, 0, 1]] {
        assert_eq!(said(&world, &udp(source)), "two/vni-2: foreign-source");
    }
    assert_eq!(said(&world, &of(1, B).arp_request(IP_A, IP_B)), "two/vni-2: router-mac");
    let tagged = of(1, B).vlan(5).ipv4(IP_A, IP_B).udp(9, 80, b"?");
    assert_eq!(said(&world, &tagged), "two/vni-2: router-mac");
    let group = of(1, Mac([1, 0, 0x5e, 0, 0, 5])).ipv4(IP_A, IP_B).udp(9, 80, b"?");
    assert_eq!(said(&world, &group), "two/vni-2: route-group");
    // Whoever is filtered and here speaks here.
    let mut here = world.clone();
    here[1].insert("c", Declared { vni: 1, ips: vec![IP_A.into()], ..vnic(A, 1, &[]) });
    assert_eq!(said(&here, &udp(IP_A)), "two/vni-2: own-source-routed");
    here[1].vnic("c").unwrap().declared.shared_ip = true;
    assert_eq!(said(&here, &udp(IP_A)), "> b");
    // So does whoever has the address in the receiver's own network.
    let mut near = world.clone();
    near[1].insert("c", Declared { vni: 2, ips: vec![IP_A.into()], ..vnic(A, 2, &[]) });
    let to_web = of(1, B).ipv4(IP_A, IP_B).udp(9, 80, b"?");
    assert_eq!(said(&near, &to_web), "two/vni-2: ip-claimed");
    // Without a router none leads back. Of a network that is not declared here nobody knows better.
    let mut without = world.clone();
    declare(&mut without, 1, Change::NoRouter("r"));
    for source in [[10, 0, 1, 9], IP_A] {
        assert_eq!(said(&without, &udp(source)), "two/vni-2: foreign-source");
    }
    declare(&mut without, 1, Change::NoNet(2));
    let mut model = without[1].clone();
    let outcome = arrive(&mut model, (1, 1), 2, &udp(IP_A), &mut Choices::default());
    assert_eq!((say(&outcome), outcome.becomes), ("> b".into(), None));
}

#[test]
fn a_network_is_here_while_a_router_joins_it() {
    let mut world = world([0, 1]);
    let stray = build::ethernet(A, B).payload(0x88b5, &[0; 46]);
    let said = |world: &[Model]| {
        let outcome = arrive(&mut world[1].clone(), (1, 1), 1, &stray, &mut Choices::default());
        say(&outcome)
    };
    assert_eq!(said(&world), "two/vni-1: no-receiver");
    declare(&mut world, 1, router(0, &[0, 1], &[2]));
    assert_eq!(said(&world), "two/uplink: unknown-vni");
}

/// From a host to another, and back: both ends are here, or one is.
#[test]
fn a_routed_connection_goes_along() {
    let tcp = |ip: build::Ip, from_a: bool, flags, (sequence, acknowledgement)| {
        let ports = if from_a { (4000, 80) } else { (80, 4000) };
        let segment = Tcp { sequence, acknowledgement, ..Tcp::new(ports.0, ports.1, flags) };
        ip.tcp(&segment, b"")
    };
    let mut world = world([0, 0]);
    assert_eq!(send(&mut world, 0, "a", &tcp(there(), true, SYN, (99, 0))), "> b");
    assert_eq!(send(&mut world, 0, "b", &tcp(back(), false, SYN | ACK, (499, 100))), "> a");
    let data = tcp(there(), true, ACK, (100, 500));
    let answer = tcp(back(), false, ACK, (500, 100));
    assert_eq!(send(&mut world, 0, "a", &data), "> b");
    pass(&mut world, 60);
    run(&mut world, "b", 1);
    assert_eq!(send(&mut world, 1, "b", &answer), "> a");
    assert_eq!(send(&mut world, 0, "a", &data), "> b");
    pass(&mut world, 60);
    run(&mut world, "b", 0);
    assert_eq!(send(&mut world, 0, "a", &data), "> b");
    assert_eq!(send(&mut world, 0, "b", &answer), "> a");
}

#[test]
fn routers_that_are_right_are_found_right() {
    assert_eq!(disagreements(case_of_two, |_| {}), 0);
}

#[test]
fn routers_that_are_wrong_are_found_wrong() {
    let found = [
        disagreements(case_of_two, |model| model.errs(Mistake::AnyFarSource)),
        disagreements(case_of_two, |model| model.errs(Mistake::ForgedIsBelieved)),
        disagreements(case_of_two, |model| model.errs(Mistake::ResidentsAreHere)),
        disagreements_among(180, case_of_two, |model| model.errs(Mistake::MovedIsForgotten)),
    ];
    assert!(found.iter().all(|cases| *cases >= 5), "{found:?}");
}

//! Plans between any two states, and what is true of every state.

use butterfly_control::{
    Change, Declaration, Desired, NicChange, Refused, TunnelPeer, Unnamed, differences, plan,
};
use butterfly_model::{
    Cidr, Dhcp, Direction, External, ExternalId, ForwardProtocol, GroupName, GroupNames, IpSet,
    Kind, Mac, Member, Nat, NatRule, Neighbour, Network, Nic, NicId, Peer, PrefixSet, Role, Route,
    Router, RouterAddresses, RouterId, Rule, SecurityGroup, SocketPath, Subnet, TraceOptions, Vni,
    WireDevice, parse_endpoint,
};
use proptest::{collection::vec, prelude::*, sample::select};
use std::{collections::BTreeSet, path::Path};

/// So few ids, addresses, sockets and groups that they meet.
fn any_vnic() -> impl Strategy<Value = Nic> {
    let id = select(vec!["a", "b", "c", "d", "e", "f"]);
    let mac = select(vec!["02:00:00:00:00:0a", "02:00:00:00:00:0A", "02:00:00:00:00:0b"]);
    let socket = prop_oneof![
        2 => Just(None),
        3 => select(vec!["/p", "/q", "/r", "/s"]).prop_map(Some)
    ];
    let target = prop_oneof![3 => Just(None), 1 => select(vec!["a", "b", "x"]).prop_map(Some)];
    let groups = select(vec![vec![], vec!["g"], vec!["h"], vec!["h", "g"], vec!["g", "k"]]);
    let flags = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.2));
    let six = vec(select(vec!["fd00:1::7", "fd00:2::7"]), 0..2);
    let prefixes = vec(select(vec!["fd00:1::/64", "fd00:2::/64", "fd00:3::/64"]), 0..3);
    (id, mac, 1..3u32, socket, target, groups, flags, six, prefixes).prop_map(
        |(id, mac, vni, socket, target, groups, (spoof, second, bypass), six, prefixes)| Nic {
            id: NicId::new(id).unwrap(),
            mac: Mac::parse(mac).unwrap(),
            vni: Vni::new(vni).unwrap(),
            ips: {
                let four = ["10.0.0.1", "10.0.0.2"].into_iter().take(1 + usize::from(second));
                IpSet::parse(four.chain(six)).unwrap()
            },
            security_groups: GroupNames::parse(groups).unwrap(),
            prefixes: match target {
                Some(_) => Default::default(),
                None => PrefixSet::parse(prefixes).unwrap(),
            },
            ip_anti_spoof: spoof,
            bypass_filtering: bypass,
            forwards: false,
            shared_ip: false,
            limits: Default::default(),
            router: false,
            sniff_target: target.map(str::to_owned),
            kind: match socket {
                Some(path) => Kind::VhostUser {
                    role: Role::Client,
                    socket: SocketPath::new(Path::new(path)).unwrap(),
                },
                None => Kind::Tap { netns: None },
            },
            packet_trace: false,
            packet_trace_path: None,
            trace_options: TraceOptions::default(),
        },
    )
}

fn rule(direction: Direction, protocol: i32, ports: (Option<u32>, Option<u32>), of: &str) -> Rule {
    let cidr = of.contains('.').then(|| Cidr::new(of, 24).unwrap());
    let group = (!of.contains('.')).then(|| GroupName::new(of).unwrap());
    Rule::new(direction, protocol, ports, cidr, group).unwrap()
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let of = select(vec!["10.0.0.7", "g", "h", "k"]);
    let ports = select(vec![(6, (Some(1), Some(2))), (-1, (None, None)), (1, (Some(8), None))]);
    let direction = select(vec![Direction::Inbound, Direction::Outbound]);
    (direction, of, ports)
        .prop_map(|(direction, of, (protocol, ports))| rule(direction, protocol, ports, of))
}

fn any_group() -> impl Strategy<Value = SecurityGroup> {
    let members = vec(select(vec!["10.0.0.1", "10.0.0.2", "::1", "fd00:1::/64"]), 0..4);
    (select(vec!["g", "h", "k"]), members, vec(any_rule(), 0..4)).prop_map(
        |(name, members, rules)| {
            SecurityGroup::new(GroupName::new(name).unwrap(), members, rules).unwrap()
        },
    )
}

fn peer(address: &str, vni: Option<u32>) -> TunnelPeer {
    TunnelPeer::new(address.parse().unwrap(), vni.map(|vni| Vni::new(vni).unwrap())).unwrap()
}

fn any_peer() -> impl Strategy<Value = TunnelPeer> {
    (select(vec!["192.0.2.1", "192.0.2.2"]), select(vec![None, Some(1), Some(2)]))
        .prop_map(|(address, vni)| peer(address, vni))
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// So few subnets, gateways and networks that they meet, and meet addresses of vnics.
fn any_network() -> impl Strategy<Value = Network> {
    let subnet = select(vec![
        ("10.0.0.0/24", Some("10.0.0.1")),
        ("10.0.0.0/24", Some("10.0.0.3")),
        ("10.0.0.0/24", None),
        ("10.0.0.0/25", Some("10.0.0.4")),
        ("10.0.1.0/24", Some("10.0.1.1")),
        ("10.0.2.0/24", Some("10.0.2.1")),
        ("fd00::/64", Some("fd00::1")),
    ]);
    let mtu = select(vec![None, Some(1400), Some(1500)]);
    let lease = select(vec![None, None, Some(60), Some(3600)]);
    (1..5u32, vec(subnet, 0..3), mtu, lease).prop_map(|(number, subnets, mtu, lease)| {
        let read = |(block, gateway)| Subnet::parse(block, gateway).unwrap();
        let subnets = subnets.into_iter().map(read).collect();
        let network = Network::new(vni(number), subnets, mtu).unwrap();
        let dhcp = lease.map(|lease| Dhcp::new(Some(lease)).unwrap());
        // Without a subnet that has a gateway it leases nothing.
        network.clone().with_dhcp(dhcp).unwrap_or(network)
    })
}

fn any_router() -> impl Strategy<Value = Router> {
    let given = select(vec![
        vec![],
        vec![],
        vec![],
        vec![],
        vec![],
        vec!["10.0.0.3"],
        vec!["10.0.0.9"],
        vec!["10.0.1.2"],
        vec!["10.0.2.2"],
        vec!["fd00::2"],
    ]);
    // So few blocks that they are in each other, and in subnets.
    let to = select(vec![
        "0.0.0.0/0",
        "10.0.0.0/16",
        "10.0.0.0/24",
        "10.0.0.128/25",
        "10.0.2.0/25",
        "192.0.2.0/24",
        "fd00::/65",
        "::/0",
    ]);
    let via = select(vec![
        vec![],
        vec!["10.0.0.7"],
        vec!["10.0.1.7"],
        vec!["10.0.0.7", "10.0.1.7"],
        vec!["10.0.0.9"],
        vec!["fd00::7"],
        vec!["192.0.2.7"],
    ]);
    let own = select(vec![vec![], vec![], vec!["192.0.2.1"], vec!["192.0.2.2", "2001:db8::1"]]);
    let outside = vec((select(vec!["x", "y"]), own), 0..3);
    let all = (select(vec!["r", "s"]), vec((1..5u32, given), 0..4), vec((to, via), 0..4), outside);
    all.prop_map(|(id, attachments, routes, outside)| {
        let mut router = Router::new(RouterId::new(id).unwrap());
        for (id, own) in outside {
            let own = RouterAddresses::parse(own).unwrap();
            router.attach_external(ExternalId::new(id).unwrap(), own);
        }
        for route in routes.iter().filter_map(|(to, via)| Route::parse(to, via).ok()) {
            router.add_route(route);
        }
        for (number, given) in attachments {
            router.attach(vni(number), RouterAddresses::parse(given).unwrap());
        }
        router
    })
}

/// So few that they meet in numbers, wires, addresses and subnets of networks.
fn any_external() -> impl Strategy<Value = External> {
    let addresses = select(vec![
        vec!["192.0.2.1/24"],
        vec!["192.0.2.1/24"],
        vec!["192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64"],
        vec!["192.0.2.2/24", "2001:db8::1/64"],
        vec!["192.0.2.2/25", "2001:db8::1/64"],
        vec!["10.0.0.2/24"],
    ]);
    let gateways = select(vec![
        vec![],
        vec!["192.0.2.9"],
        vec!["192.0.2.7"],
        vec!["2001:db8::9", "192.0.2.9"],
    ]);
    let wire = select(vec![None, Some("eth1"), Some("eth2"), Some("tap:eth1"), Some("tap")]);
    let vlan = select(vec![None, Some(7)]);
    let mtu = select(vec![None, Some(1400)]);
    let via = select(vec![None, None, None, Some([198, 18, 0, 1]), Some([198, 18, 0, 2])]);
    let all = (select(vec!["x", "y"]), 3..7u32, addresses, gateways, wire, (vlan, mtu, via));
    let made = all.prop_map(|(id, number, addresses, gateways, wire, (vlan, mtu, via))| {
        let id = ExternalId::new(id).unwrap();
        if let Some(host) = via {
            return External::over(id, vni(number), host.into(), mtu).ok();
        }
        let external = External::parse(id, vni(number), addresses, gateways).ok()?;
        let external = external.with_mtu(mtu).unwrap();
        let Some(wire) = wire.map(|text| WireDevice::parse(text).unwrap()) else {
            return Some(external);
        };
        let external = external.with_wire(wire, vlan).unwrap();
        Some(if number % 2 == 0 { external.with_chosen_vni().unwrap() } else { external })
    });
    made.prop_filter_map("gateways fit", |external| external)
}

/// So few that they meet addresses of each other, routers and gateways.
fn any_nat() -> impl Strategy<Value = NatRule> {
    let outside = select(vec!["192.0.2.1", "192.0.2.9", "192.0.2.20", "192.0.2.21", "10.0.0.7"]);
    let all = (select(vec!["r", "s"]), select(vec!["x", "y"]), outside, 0..4, 1..3u16);
    all.prop_map(|(router, external, outside, kind, port)| {
        let ends = (format!("{outside}:{port}"), format!("10.0.0.8:{port}"));
        let ends = (parse_endpoint(&ends.0).unwrap(), parse_endpoint(&ends.1).unwrap());
        let outside = outside.parse().unwrap();
        let inside = format!("10.0.0.{}", 10 + port).parse().unwrap();
        let nat = match kind {
            0 => Nat::floating(outside, inside),
            1 => Nat::snat(outside),
            2 => Nat::forward(ForwardProtocol::Tcp, ends.0, ends.1),
            _ => Nat::forward(ForwardProtocol::Udp, ends.0, ends.1),
        };
        let (router, external) = (RouterId::new(router), ExternalId::new(external));
        NatRule { router: router.unwrap(), external: external.unwrap(), nat: nat.unwrap() }
    })
}

/// So few that they meet addresses of routers and vnics.
fn any_neighbour() -> impl Strategy<Value = Neighbour> {
    let address =
        select(vec!["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.2.2", "fd00::2", "fd00:1::9"]);
    let mac = select(vec!["02:00:00:00:00:0a", "02:00:00:00:00:0c"]);
    let host = select(vec![None, Some("192.0.2.1"), Some("2001:db8::1")]);
    (1..5u32, address, mac, host).prop_map(|(number, address, mac, host)| {
        Neighbour::parse(vni(number), address, mac, host).unwrap()
    })
}

/// Any state: what came of declarations that were taken or refused one after the other.
fn any_state() -> impl Strategy<Value = Desired> {
    let routed = (vec(any_network(), 0..10), vec(any_router(), 0..10), vec(any_neighbour(), 0..8));
    let outside = (vec(any_external(), 0..6), vec(any_nat(), 0..12));
    let all = (vec(any_vnic(), 0..12), vec(any_group(), 0..4), vec(any_peer(), 0..4));
    (all, routed, outside).prop_map(
        |((vnics, groups, peers), (networks, routers, neighbours), (externals, nats))| {
            let mut state = Desired::default();
            let mut add = |declaration| {
                if let Ok(next) = state.with(declaration, Unnamed::Stay) {
                    state = next;
                }
            };
            let one = |vnics, groups, peers| Declaration {
                vnics,
                groups,
                peers,
                ..Declaration::default()
            };
            let routed =
                |networks, routers| Declaration { networks, routers, ..Declaration::default() };
            let outside =
                |externals, nats| Declaration { externals, nats, ..Declaration::default() };
            let beside = |neighbours| Declaration { neighbours, ..Declaration::default() };
            let (first, last) = neighbours.split_at(neighbours.len() / 2);
            first.iter().for_each(|neighbour| add(beside(vec![neighbour.clone()])));
            // Some of them before the vnics, which they are in the way of; else behind.
            let (mut early, late): (Vec<_>, Vec<_>) =
                networks.into_iter().partition(|network| network.mtu().is_none());
            early.drain(..).for_each(|network| add(routed(vec![network], vec![])));
            externals.iter().cloned().for_each(|external| add(outside(vec![external], vec![])));
            routers.iter().cloned().for_each(|router| add(routed(vec![], vec![router])));
            nats.iter().cloned().for_each(|nat| add(outside(vec![], vec![nat])));
            vnics.into_iter().for_each(|vnic| add(one(vec![vnic], vec![], vec![])));
            groups.into_iter().for_each(|group| add(one(vec![], vec![group], vec![])));
            peers.into_iter().for_each(|peer| add(one(vec![], vec![], vec![peer])));
            late.into_iter().for_each(|network| add(routed(vec![network], vec![])));
            routers.into_iter().for_each(|router| add(routed(vec![], vec![router])));
            externals.into_iter().for_each(|external| add(outside(vec![external], vec![])));
            nats.into_iter().for_each(|nat| add(outside(vec![], vec![nat])));
            last.iter().for_each(|neighbour| add(beside(vec![neighbour.clone()])));
            state
        },
    )
}

fn any_change() -> impl Strategy<Value = Change> {
    let name = || select(vec!["g", "h"]).prop_map(|name| GroupName::new(name).unwrap());
    let member = || {
        select(vec!["10.0.0.1", "::1", "fd00:1::/64"]).prop_map(|text| Member::parse(text).unwrap())
    };
    let id = select(vec!["a", "b", "c"]).prop_map(|id| NicId::new(id).unwrap());
    prop_oneof![
        1 => any_vnic().prop_map(|nic| Change::AddVnic(nic.into())),
        1 => any_vnic().prop_map(|nic| Change::ChangeVnic(nic.into())),
        1 => any_vnic().prop_map(|nic| Change::RemakeVnic(nic.into())),
        1 => id.prop_map(Change::RemoveVnic),
        1 => any_group().prop_map(Change::DeclareGroup),
        1 => name().prop_map(Change::RemoveGroup),
        1 => (name(), any_rule()).prop_map(|(name, rule)| Change::AddRule(name, rule)),
        1 => (name(), any_rule()).prop_map(|(name, rule)| Change::RemoveRule(name, rule)),
        1 => (name(), member()).prop_map(|(name, member)| Change::AddMember(name, member)),
        1 => (name(), member()).prop_map(|(name, member)| Change::RemoveMember(name, member)),
        1 => any_peer().prop_map(Change::NamePeer),
        1 => any_peer().prop_map(Change::UnnamePeer),
        6 => any_network().prop_map(Change::DeclareNetwork),
        1 => (1..5u32).prop_map(|number| Change::RemoveNetwork(vni(number))),
        6 => any_router().prop_map(Change::DeclareRouter),
        1 => any_router().prop_map(|router| Change::RemoveRouter(router.id().clone())),
        3 => any_neighbour().prop_map(Change::DeclareNeighbour),
        1 => any_neighbour().prop_map(|it| Change::RemoveNeighbour(it.vni(), it.address())),
        4 => any_external().prop_map(Change::DeclareExternal),
        1 => any_external().prop_map(|it| Change::RemoveExternal(it.id().clone())),
        4 => vec(any_nat(), 0..4).prop_map(|rules| {
            let (router, external) = match rules.first() {
                Some(first) => (first.router.clone(), first.external.clone()),
                None => (RouterId::new("r").unwrap(), ExternalId::new("x").unwrap()),
            };
            Change::DeclareNat(router, external, rules.into_iter().map(|rule| rule.nat).collect())
        }),
    ]
}

/// Everything that is said of a state, in the order of declaration.
fn said(state: &Desired) -> Declaration {
    let mut vnics: Vec<Nic> = state.vnics().iter().cloned().collect();
    vnics.sort_by_key(|nic| state.vnics().order(nic));
    let groups = state.groups().values().cloned().collect();
    Declaration {
        vnics,
        groups,
        peers: state.peers().iter().collect(),
        networks: state.routed().networks().cloned().collect(),
        routers: state.routed().routers().cloned().collect(),
        neighbours: state.routed().neighbours().cloned().collect(),
        externals: state.routed().externals().cloned().collect(),
        nats: state.routed().all_nats().collect(),
    }
}

/// The rules of the state, held against each pair of vnics.
fn assert_valid(state: &Desired) {
    for one in state.vnics().iter() {
        for other in state.vnics().iter().filter(|other| other.id != one.id) {
            let socket = one.kind.socket();
            assert!(socket.is_none() || socket != other.kind.socket(), "{one:?} {other:?}");
            if one.sniff_target.as_deref() == Some(other.id.as_str()) {
                assert!(one.vni == other.vni && other.sniff_target.is_none(), "{one:?} {other:?}");
            }
        }
        assert_ne!(one.sniff_target.as_deref(), Some(one.id.as_str()));
        let line = state.vnics().sharing(one);
        assert_eq!(line.contains(&&one.id), one.sniff_target.is_none());
    }
    for router in state.routed().routers() {
        for (vni, given) in router.attachments() {
            let network = state.routed().network(vni).expect("it is declared");
            assert!(given.in_network(network).next().is_some(), "{router:?} {network:?}");
            for address in given.in_network(network) {
                let owner = state.routed().has_address(vni, address);
                assert_eq!(owner, Some(router.id()), "{address} {state:#?}");
                assert!(network.subnet_of(address).is_some(), "{address} {network:?}");
                let has = |nic: &Nic| {
                    nic.sniff_target.is_none() && nic.vni == vni && nic.ips.contains(address)
                };
                assert!(!state.vnics().iter().any(has), "{address} {state:#?}");
                assert_eq!(state.routed().neighbour(vni, address), None, "{state:#?}");
                assert!(!router.routes().any(|route| route.via().contains(&address)));
            }
        }
        for via in router.routes().flat_map(|route| route.via()) {
            let networks = router.attachments().filter_map(|(vni, _)| state.routed().network(vni));
            let externals = router.externals();
            let outside = externals.filter_map(|(id, _)| state.routed().external(id.as_str()));
            let networks = networks.chain(outside.map(External::network));
            let mut subnets = networks.filter_map(|network| network.subnet_of(*via));
            assert!(subnets.next().is_some_and(|it| it.cidr().is_host(*via)), "{via} {router:?}");
        }
    }
    assert_valid_outside(state);
    for one in state.routed().networks() {
        let mut beside: BTreeSet<Vni> = BTreeSet::from([one.vni()]);
        for near in state.routed().routers_of(one.vni()).flat_map(|router| router.attachments()) {
            for router in state.routed().routers_of(near.0) {
                beside.extend(router.attachments().map(|(vni, _)| vni));
            }
        }
        for other in beside.iter().filter_map(|vni| state.routed().network(*vni)) {
            for (place, subnet) in one.subnets().iter().enumerate() {
                let clash = |(other_place, there): (usize, &Subnet)| {
                    (other.vni() != one.vni() || other_place != place)
                        && there.cidr().overlaps(&subnet.cidr())
                };
                assert!(!other.subnets().iter().enumerate().any(clash), "{one:?} {other:?}");
            }
        }
    }
}

/// The rules of externals and translations.
fn assert_valid_outside(state: &Desired) {
    let all = state.routed();
    for external in all.externals() {
        let vni = external.vni();
        assert_eq!(all.network(vni), None, "{external:?}");
        assert_eq!(all.externals().filter(|other| other.vni() == vni).count(), 1);
        let wire =
            |it: &External| (it.wire().and_then(|wire| wire.name().map(str::to_owned)), it.vlan());
        let same = |other: &&External| wire(external).0.is_some() && wire(other) == wire(external);
        assert!(all.externals().filter(same).count() <= 1, "{state:#?}");
        for nic in state.vnics().iter().filter(|nic| nic.vni == vni) {
            assert!(external.is_provider(), "{nic:?}");
            let is_mirror = nic.sniff_target.is_some();
            assert!(
                is_mirror || !nic.ips.addresses().any(|ip| external.has_address(ip)),
                "{nic:?}"
            );
        }
    }
    for router in all.routers() {
        for (id, given) in router.externals() {
            let external = all.external(id.as_str()).expect("it is declared");
            for address in given.iter() {
                assert!(external.has_address(address), "{router:?} {external:?}");
                let has = |other: &&Router| {
                    other.external(id.as_str()).is_some_and(|it| it.iter().any(|it| it == address))
                };
                assert_eq!(all.routers().filter(has).count(), 1);
                let nats = all.all_nats().filter(|rule| rule.external == *id);
                assert!(!nats.into_iter().any(|rule| rule.nat.outside() == address), "{state:#?}");
            }
        }
    }
    for rule in all.all_nats() {
        let router = all.router(rule.router.as_str()).expect("it is declared");
        let external = all.external(rule.external.as_str()).expect("it is declared");
        assert!(router.external(rule.external.as_str()).is_some(), "{rule:?}");
        assert!(!external.gateways().any(|gateway| gateway == rule.nat.outside()), "{rule:?}");
        for other in
            all.all_nats().filter(|other| *other != rule && other.external == rule.external)
        {
            let same = other.nat.outside() == rule.nat.outside();
            assert!(!same || other.router == rule.router, "{rule} {other}");
            let alone = matches!(rule.nat, Nat::Floating { .. });
            assert!(!same || (!alone && other.nat.place() != rule.nat.place()), "{rule} {other}");
        }
    }
}

/// Everything that is routed: by which router, from which network, to which block, by which of its
/// addresses.
fn routed(state: &Desired) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for router in state.routed().routers() {
        for (from, given) in router.attachments() {
            let Some(network) = state.routed().network(from) else { continue };
            for address in given.in_network(network) {
                all.insert(format!("{} has {address} in {from}", router.id()));
            }
            for (to, _) in router.attachments() {
                for subnet in state.routed().network(to).iter().flat_map(|to| to.subnets()) {
                    all.insert(format!("{} from {from} to {} in {to}", router.id(), subnet.cidr()));
                }
            }
        }
        for (id, given) in router.externals() {
            let Some(external) = state.routed().external(id.as_str()) else { continue };
            for subnet in external.network().subnets() {
                all.insert(format!("{} to {} at {id} as {given:?}", router.id(), subnet.cidr()));
            }
            for nat in state.routed().nats(router.id(), id) {
                all.insert(format!("{} at {id}: {nat}", router.id()));
            }
        }
    }
    all
}

/// Ways by which routers lead to addresses: that of the longest block that has it, of one length
/// the network itself.
fn led(state: &Desired) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for router in state.routed().routers() {
        let lowered = state.routed().lowered(router, None, |_| true);
        for address in ["10.0.0.7", "10.0.0.200", "10.0.2.7", "10.0.2.200", "192.0.2.7", "fd00::7"]
        {
            let address = address.parse().unwrap();
            let networks = router
                .attachments()
                .filter_map(|(vni, _)| Some((vni, state.routed().network(vni)?)));
            let externals = router.externals();
            let outside = externals.filter_map(|(id, _)| state.routed().external(id.as_str()));
            let networks = networks.chain(outside.map(|it| (it.vni(), it.network())));
            let own = networks.flat_map(|(vni, network)| {
                let blocks = network.subnets().iter().map(|subnet| subnet.cidr());
                blocks.map(move |block| (block, 1, vec![format!("in {vni}")]))
            });
            let routes = lowered.routes().map(|route| {
                let ways = route.via().iter().map(|via| format!("via {via}")).collect();
                (route.to(), 0, ways)
            });
            // Of one length a declared route comes before another host.
            let everything = ["0.0.0.0", "::"].map(|all| Cidr::new(all, 0).unwrap());
            let over = lowered.second_hop().map(|it| vec![format!("over {}", it.host)]);
            let over =
                over.into_iter().flat_map(|ways| everything.map(|all| (all, -1, ways.clone())));
            let blocks = own.chain(routes).chain(over);
            let has = blocks.filter(|(block, ..)| block.contains(address));
            let longest = has.max_by_key(|(block, own, _)| (block.mask_size(), *own));
            if let Some((block, _, ways)) = longest {
                let text = |way| format!("{} to {address} by {block} {way}", router.id());
                all.extend(ways.into_iter().map(text));
            }
        }
    }
    all
}

/// Everything that each vnic may get and send: by what it is, its rules and the addresses that
/// these mean. Without an OUTBOUND rule it may send everything.
fn admitted(state: &Desired) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for nic in state.vnics().iter() {
        let who = format!(
            "{} {:?} {} {:?} {} {}",
            nic.id,
            nic.mac.octets(),
            nic.vni,
            nic.ips,
            nic.ip_anti_spoof,
            nic.bypass_filtering
        );
        if nic.bypass_filtering {
            all.insert(who);
            continue;
        }
        let groups = nic.security_groups.names().iter();
        let rules: Vec<&Rule> = groups
            .filter_map(|name| state.groups().get(name))
            .flat_map(|group| group.rules())
            .collect();
        if !rules.iter().any(|rule| rule.direction() == Direction::Outbound) {
            all.insert(format!("{who} Outbound"));
        }
        for rule in rules {
            let what = format!("{:?} {:?} {:?}", rule.direction(), rule.protocol(), rule.ports());
            match rule.peer() {
                Peer::Cidr(cidr) => drop(all.insert(format!("{who} {what} {cidr}"))),
                Peer::SecurityGroup(name) => {
                    let members = state.groups().get(name).map(|group| group.members().texts());
                    for member in members.into_iter().flatten() {
                        all.insert(format!("{who} {what} {member}"));
                    }
                }
            }
        }
    }
    all
}

/// Returns the admissions of a state that `may` lacks: those of the two states it is between.
fn leaks(state: &Desired, may: &BTreeSet<String>) -> Vec<String> {
    let open = |what: &String| {
        let who = what.split_once(" Outbound").map(|(who, _)| who);
        who.is_some_and(|who| may.contains(&format!("{who} Outbound")))
    };
    admitted(state).into_iter().filter(|what| !may.contains(what) && !open(what)).collect()
}

/// Makes the changes of a plan, each of which must be valid.
fn carried_out(old: &Desired, changes: Vec<Change>, mut see: impl FnMut(&Desired)) -> Desired {
    let mut state = old.clone();
    for change in changes {
        let told = format!("{change:?}");
        let prepared = state.prepare(change).unwrap_or_else(|why| panic!("{told}: {why}"));
        state.commit(prepared);
        see(&state);
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_plan_leads_from_any_state_to_any_other(old in any_state(), new in any_state()) {
        let may = &admitted(&old) | &admitted(&new);
        let (was, will) = (routed(&old), routed(&new));
        let led_somewhen = &led(&old) | &led(&new);
        let changes = plan(&old, &new);
        let mut come = false;
        let made = carried_out(&old, changes.clone(), |state| {
            assert_valid(state);
            let leaks = leaks(state, &may);
            assert!(leaks.is_empty(), "{leaks:?}\nin {changes:#?}");
            // First less and less of the old state is routed, then more and more of the new one.
            let now = routed(state);
            come |= !now.is_subset(&was);
            assert!(now.is_subset(if come { &will } else { &was }), "{now:#?}\nin {changes:#?}");
            // Where both lease addresses there is no time in which nobody does.
            for network in old.routed().networks().filter(|network| network.dhcp().is_some()) {
                let of = |state: &Desired| {
                    let network = state.routed().network(network.vni());
                    network.is_some_and(|network| network.dhcp().is_some())
                };
                assert!(!of(&new) || of(state), "{network:?}\nin {changes:#?}");
            }
            // Nothing goes by a way that neither state has.
            let now = led(state);
            assert!(now.is_subset(&led_somewhen), "{now:#?}\nin {changes:#?}");
        });
        prop_assert_eq!(&made, &new);
        prop_assert!(plan(&new, &made).is_empty());
        prop_assert_eq!(differences(&old, &new, &changes).is_empty(), old == new);
    }

    #[test]
    fn a_state_that_was_read_back_is_the_same(state in any_state(), other in any_state()) {
        for unnamed in [Unnamed::Stay, Unnamed::Go] {
            let again = state.with(said(&state), unnamed).unwrap();
            prop_assert!(plan(&state, &again).is_empty(), "{:#?}", plan(&state, &again));
            prop_assert_eq!(&again, &state);
        }
        let fresh = Desired::default().with(said(&state), Unnamed::Stay).unwrap();
        prop_assert_eq!(&fresh, &state);
        let pruned = other.with(said(&state), Unnamed::Go).unwrap();
        prop_assert_eq!(pruned.vnics().len(), state.vnics().len());
        prop_assert_eq!(pruned.groups(), state.groups());
        prop_assert_eq!(pruned.peers(), state.peers());
        prop_assert_eq!(pruned.routed(), state.routed());
    }

    #[test]
    fn what_is_not_named_stays(old in any_state(), more in any_state()) {
        let Ok(new) = old.with(said(&more), Unnamed::Stay) else { return Ok(()) };
        for nic in old.vnics().iter().filter(|nic| more.vnics().get(nic.id.as_str()).is_none()) {
            prop_assert_eq!(new.vnics().get(nic.id.as_str()), Some(nic));
        }
        let changes = plan(&old, &new);
        // Nobody is cut off who need not be: only where vnics exchange what only one can have.
        let gave_way = changes.iter().any(|change| matches!(change, Change::RemoveVnic(_)));
        for change in changes.iter().filter(|_| !gave_way) {
            if let Change::RemakeVnic(nic) = change {
                let old = old.vnics().get(nic.id.as_str()).unwrap();
                prop_assert!(matches!(NicChange::between(old, nic), NicChange::Recreate(_)));
            }
        }
    }

    #[test]
    fn a_refused_change_leaves_the_state(
        state in any_state(),
        changes in vec(any_change(), 1..20),
    ) {
        let mut state = state;
        for change in changes {
            let before = state.clone();
            match state.prepare(change) {
                Ok(prepared) => {
                    state.commit(prepared);
                    assert_valid(&state);
                    let changes = plan(&before, &state);
                    prop_assert_eq!(&carried_out(&before, changes, |_| ()), &state);
                }
                Err(_) => prop_assert_eq!(&state, &before),
            }
        }
    }
}

fn tap(id: &str, vni: u32) -> Nic {
    Nic {
        id: NicId::new(id).unwrap(),
        mac: Mac::parse("02:00:00:00:00:0a").unwrap(),
        vni: Vni::new(vni).unwrap(),
        ips: IpSet::default(),
        security_groups: GroupNames::default(),
        prefixes: Default::default(),
        ip_anti_spoof: false,
        bypass_filtering: false,
        forwards: false,
        shared_ip: false,
        limits: Default::default(),
        router: false,
        sniff_target: None,
        kind: Kind::Tap { netns: None },
        packet_trace: false,
        packet_trace_path: None,
        trace_options: TraceOptions::default(),
    }
}

fn vnics(vnics: Vec<Nic>) -> Declaration {
    Declaration { vnics, ..Declaration::default() }
}

/// Networks 42 and 50, joined by a router with routes.
fn leading(routes: &[(&str, &[&str])]) -> Desired {
    let network = |number, subnet: &str, gateway: &str| {
        Network::new(vni(number), vec![Subnet::parse(subnet, Some(gateway)).unwrap()], None)
    };
    let networks =
        vec![network(42, "10.0.0.0/24", "10.0.0.1"), network(50, "10.0.1.0/24", "10.0.1.1")];
    let mut router = Router::new(RouterId::new("r").unwrap());
    router.attach(vni(42), RouterAddresses::default());
    router.attach(vni(50), RouterAddresses::default());
    for (to, via) in routes {
        router.add_route(Route::parse(to, *via).unwrap());
    }
    let networks = networks.into_iter().collect::<Result<_, _>>().unwrap();
    let file = Declaration { networks, routers: vec![router], ..Declaration::default() };
    Desired::default().with(file, Unnamed::Stay).unwrap()
}

/// Returns the routes of the router in each state in between.
fn routes_between(old: &Desired, new: &Desired) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let made = carried_out(old, plan(old, new), |state| {
        let router = state.routed().router("r").unwrap();
        all.push(router.routes().map(|route| route.to_string()).collect());
    });
    assert_eq!(&made, new);
    all
}

/// A connection by a way that both states have goes on; a route without one is closed in between.
#[test]
fn a_route_keeps_the_ways_that_it_has_in_both_states() {
    let state = |ways: &[&str]| leading(&[("0.0.0.0/0", ways)]);
    let (both, one, other) = (
        state(&["10.0.1.8", "10.0.1.9"]),
        state(&["10.0.1.9"]),
        state(&["10.0.1.7", "10.0.1.9", "10.0.0.9"]),
    );
    let after = |states: Vec<Vec<String>>| states.concat();
    let kept = "0.0.0.0/0 via 10.0.1.9";
    assert_eq!(after(routes_between(&both, &one)), [kept]);
    let more = "0.0.0.0/0 via 10.0.1.7 10.0.1.9 10.0.0.9";
    assert_eq!(after(routes_between(&both, &other)), [kept, more]);
    assert_eq!(after(routes_between(&one, &other)), [more]);
}

/// A router may have as many routes before and after as there can be: none is in the way in
/// between that hides nothing.
#[test]
fn all_routes_of_a_router_may_be_others() {
    let state = |second: u32| {
        let all: Vec<String> =
            (0..1024).map(|n| format!("100.{}.{}.0/24", second + (n >> 8), n & 0xff)).collect();
        let routes: Vec<(&str, &[&str])> =
            all.iter().map(|to| (&**to, &["10.0.1.9"][..])).collect();
        leading(&routes)
    };
    let between = routes_between(&state(64), &state(80));
    assert_eq!(between.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1024]);
    // Without the block in between, what is for it would go by the larger one.
    let old = leading(&[("100.0.0.0/8", &["10.0.1.9"]), ("100.1.0.0/16", &["10.0.1.8"])]);
    let new = leading(&[("100.0.0.0/8", &["10.0.1.9"]), ("100.1.0.0/16", &["10.0.0.8"])]);
    let closed = ["100.0.0.0/8 via 10.0.1.9", "100.1.0.0/16 blackhole"];
    assert_eq!(routes_between(&old, &new)[0], closed);
}

#[test]
fn an_invalid_state_cannot_be_made() {
    let empty = Desired::default();
    let refused = |nic: Nic| {
        let by_change = empty.prepare(Change::AddVnic(nic.clone().into())).unwrap_err();
        assert_eq!(empty.with(vnics(vec![nic]), Unnamed::Stay), Err(by_change.clone()));
        by_change
    };
    let forwards = Nic { forwards: true, ..tap("a", 1) };
    assert_eq!(refused(forwards.clone()), Refused::CannotForward("a".into()));
    let bypasses = Nic { bypass_filtering: true, ..forwards };
    assert!(empty.with(vnics(vec![bypasses]), Unnamed::Stay).is_ok());
    let receiver = Kind::Bench(butterfly_model::Bench::IcmpReceiver);
    let silent = Nic { kind: receiver, ..tap("a", 1) };
    assert_eq!(refused(silent), Refused::BenchWithoutAddress);
    let twice = empty.with(vnics(vec![tap("a", 1), tap("a", 2)]), Unnamed::Stay);
    assert_eq!(twice, Err(Refused::NicTwice("a".into())));
    let group = SecurityGroup::empty(GroupName::new("g").unwrap());
    let groups = Declaration { groups: vec![group.clone(), group], ..Declaration::default() };
    assert_eq!(empty.with(groups, Unnamed::Stay), Err(Refused::GroupTwice("g".into())));
    let missing = empty.prepare(Change::RemoveVnic(NicId::new("a").unwrap()));
    assert_eq!(missing.unwrap_err(), Refused::NicMissing("a".into()));
}

#[test]
fn who_is_declared_keeps_its_place_and_others_come_in_order() {
    let old = Desired::default().with(vnics(vec![tap("c", 1), tap("b", 1)]), Unnamed::Stay);
    let file = vnics(["b", "z", "a", "c"].map(|id| tap(id, 1)).into());
    let new = old.unwrap().with(file, Unnamed::Stay).unwrap();
    let line: Vec<&str> = new.vnics().sharing(&tap("x", 1)).iter().map(|id| id.as_str()).collect();
    assert_eq!(line, ["c", "b", "z", "a"]);
}

#[test]
fn who_waits_for_an_address_goes_before_who_has_it() {
    let empty = Desired::default();
    let full = empty.with(vnics(vec![tap("a", 1), tap("b", 1)]), Unnamed::Stay).unwrap();
    let gone = ["b", "a"].map(|id| Change::RemoveVnic(NicId::new(id).unwrap()));
    assert_eq!(plan(&full, &empty), gone);
}

/// The first OUTBOUND rule of a vnic's groups ends "everything may leave". The rule goes from one
/// group to another, whose rules change after the vnics do as a vnic leaves it.
#[test]
fn egress_is_never_open_in_between() {
    let state = |limiting: &str, of_b: Vec<&str>| {
        let group = |name: &str| {
            let only = rule(Direction::Outbound, 6, (Some(1), Some(1)), "10.0.0.7");
            let rules = (name == limiting).then_some(only);
            SecurityGroup::new(GroupName::new(name).unwrap(), [""; 0], rules).unwrap()
        };
        let of = |nic: Nic, names: Vec<&str>| Nic {
            security_groups: GroupNames::parse(names).unwrap(),
            ..nic
        };
        let vnics = vec![of(tap("a", 1), vec!["g", "h"]), of(tap("b", 1), of_b)];
        let groups = vec![group("g"), group("h")];
        let all = Declaration { vnics, groups, ..Declaration::default() };
        Desired::default().with(all, Unnamed::Stay).unwrap()
    };
    for (from, to) in [("g", "h"), ("h", "g")] {
        for leaves in [vec![from], vec![to], vec![]] {
            let (old, new) = (state(from, leaves), state(to, vec![]));
            for (old, new) in [(&old, &new), (&new, &old)] {
                let may = &admitted(old) | &admitted(new);
                let made = carried_out(old, plan(old, new), |state| {
                    assert_eq!(leaks(state, &may), [""; 0]);
                });
                assert_eq!(made, *new);
            }
        }
    }
}

/// The addresses of two VMs are exchanged: each is in the other's way.
#[test]
fn sockets_are_exchanged() {
    let client = |id: &str, path: &str| Nic {
        kind: Kind::VhostUser {
            role: Role::Client,
            socket: SocketPath::new(Path::new(path)).unwrap(),
        },
        ..tap(id, 1)
    };
    let state = |a, b| {
        let both = vnics(vec![client("a", a), client("b", b)]);
        Desired::default().with(both, Unnamed::Stay).unwrap()
    };
    let (old, new) = (state("/p", "/q"), state("/q", "/p"));
    let changes = plan(&old, &new);
    let moved_on = plan(&old, &state("/q", "/r"));
    assert_eq!(carried_out(&old, changes, assert_valid), new);
    // The one in the way goes first, and nobody is removed.
    let told: Vec<String> = moved_on
        .iter()
        .map(|change| match change {
            Change::RemakeVnic(nic) => nic.id.as_str().to_owned(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, ["b", "a"]);
}

/// A dump does not tell ports of protocols that have none.
#[test]
fn rules_whose_ports_are_not_echoed_are_meant_all() {
    let name = || GroupName::new("g").unwrap();
    let icmp = |ports| rule(Direction::Inbound, 1, ports, "10.0.0.7");
    let state = |rules: Vec<Rule>| {
        let group = SecurityGroup::new(name(), [""; 0], rules).unwrap();
        Desired::default()
            .with(Declaration { groups: vec![group], ..Declaration::default() }, Unnamed::Stay)
            .unwrap()
    };
    let (one, two, none) = (icmp((Some(1), None)), icmp((Some(2), Some(3))), icmp((None, None)));
    let file = |rules: Vec<Rule>| said(&state(rules));
    for rules in
        [vec![one.clone(), two.clone()], vec![one.clone(), none.clone()], vec![none.clone()]]
    {
        let old = state(rules);
        assert_eq!(old.with(file(vec![none.clone()]), Unnamed::Go).unwrap(), old);
    }
    let old = state(vec![one.clone()]);
    let new = old.with(file(vec![two.clone()]), Unnamed::Stay).unwrap();
    assert_eq!(new, state(vec![two]), "said is said");
}

/// A prefix passes from one vnic to another that comes before it or behind it, and so does an
/// address in one; nobody is cut off.
#[test]
fn a_prefix_passes_from_vnic_to_vnic() {
    let nic = |id: &str, mac: &str, ips: &[&str], prefixes: &[&str]| Nic {
        id: NicId::new(id).unwrap(),
        mac: Mac::parse(mac).unwrap(),
        vni: vni(1),
        ips: IpSet::parse(ips).unwrap(),
        prefixes: PrefixSet::parse(prefixes).unwrap(),
        security_groups: GroupNames::default(),
        ip_anti_spoof: false,
        bypass_filtering: false,
        forwards: false,
        shared_ip: false,
        router: false,
        limits: Default::default(),
        sniff_target: None,
        kind: Kind::Tap { netns: None },
        packet_trace: false,
        packet_trace_path: None,
        trace_options: TraceOptions::default(),
    };
    let state = |a: (&[&str], &[&str]), b: (&[&str], &[&str])| {
        let vnics =
            vec![nic("a", "42:00:00:00:00:01", a.0, a.1), nic("b", "42:00:00:00:00:02", b.0, b.1)];
        let declared = Declaration { vnics, ..Declaration::default() };
        Desired::default().with(declared, Unnamed::Go).unwrap()
    };
    let (one, two) = ("fd00:1::/64", "fd00:2::/64");
    let states = [
        state((&[], &[one]), (&[], &[two])),
        state((&[], &[two]), (&[], &[one])),
        state((&[], &[]), (&[], &[one, two])),
        state((&["fd00:2::9"], &[one]), (&["fd00:3::9"], &[])),
        state((&["fd00:3::9"], &[two]), (&["fd00:1::9"], &[])),
    ];
    for (old, new) in states.iter().flat_map(|old| states.iter().map(move |new| (old, new))) {
        let mut now = old.clone();
        for change in plan(old, new) {
            assert!(matches!(change, Change::ChangeVnic(_)), "{change:?}");
            let prepared = now.prepare(change).unwrap();
            now.commit(prepared);
        }
        assert_eq!(now, *new);
    }
}

/// A neighbour that gets the MAC address of a vnic with its prefix makes way for it, and comes back
/// after it; the other way round the prefix goes first.
#[test]
fn a_prefix_meets_no_neighbour_of_before() {
    let (one, two) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
    let state = |mac: &str, prefixes: &[&str]| {
        let at = Neighbour::parse(vni(42), "fd00:1::9", mac, None).unwrap();
        let prefixes = PrefixSet::parse(prefixes).unwrap();
        let nic = Nic { prefixes, mac: Mac::parse(one).unwrap(), ..tap("a", 42) };
        let file = Declaration { neighbours: vec![at], ..vnics(vec![nic]) };
        Desired::default().with(file, Unnamed::Stay).unwrap()
    };
    let (without, with) = (state(two, &[]), state(one, &["fd00:1::/64"]));
    for (old, new) in [(&without, &with), (&with, &without)] {
        assert_eq!(&carried_out(old, plan(old, new), |_| {}), new);
    }
}

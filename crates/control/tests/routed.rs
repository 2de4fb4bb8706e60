//! Refusals of networks and routers, one by one. Each leaves the state as it was.

use butterfly_control::{
    Change, Declaration, Desired, Object, Refused, Unnamed, What, about_router, differences, plan,
};
use butterfly_model::{
    Bench, Dhcp, GroupNames, IpSet, Kind, Mac, Neighbour, Network, Nic, NicId, PrefixSet, Route,
    Router, RouterAddresses, RouterId, Subnet, TraceOptions, Vni,
};

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// A network with subnets, as `10.0.0.0/24` or `10.0.0.0/24 10.0.0.1` with a gateway.
fn network(number: u32, subnets: &[&str]) -> Network {
    let read = |text: &&str| match text.split_once(' ') {
        Some((block, gateway)) => Subnet::parse(block, Some(gateway)).unwrap(),
        None => Subnet::parse(text, None).unwrap(),
    };
    Network::new(vni(number), subnets.iter().map(read).collect(), None).unwrap()
}

/// A router in networks, in each with these addresses.
fn router(id: &str, attachments: &[(u32, &[&str])]) -> Router {
    let mut router = Router::new(RouterId::new(id).unwrap());
    for (number, given) in attachments {
        router.attach(vni(*number), RouterAddresses::parse(*given).unwrap());
    }
    router
}

/// The router that joins networks 42 and 50, with routes.
fn leading(routes: &[(&str, &[&str])]) -> Router {
    let mut router = router("r", &[(42, &[]), (50, &[])]);
    for (to, via) in routes {
        router.add_route(Route::parse(to, *via).unwrap());
    }
    router
}

const MAC: &str = "02:00:00:00:00:09";

/// A neighbour, maybe on a host.
fn neighbour(number: u32, address: &str, host: Option<&str>) -> Neighbour {
    Neighbour::parse(vni(number), address, MAC, host).unwrap()
}

fn vnic(id: &str, mac: &str, number: u32, ips: &[&str]) -> Nic {
    Nic {
        id: NicId::new(id).unwrap(),
        mac: Mac::parse(mac).unwrap(),
        vni: vni(number),
        ips: IpSet::parse(ips).unwrap(),
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

/// A state that changes made one after the other.
fn state(changes: impl IntoIterator<Item = Change>) -> Desired {
    let mut state = Desired::default();
    for change in changes {
        let prepared = state.prepare(change).unwrap();
        state.commit(prepared);
    }
    state
}

/// Networks 42 and 50 with gateways, joined by a router.
fn joined() -> Desired {
    state([
        Change::DeclareNetwork(network(42, &["10.0.0.0/24 10.0.0.1", "fd00::/64 fd00::1"])),
        Change::DeclareNetwork(network(50, &["10.0.1.0/24 10.0.1.1"])),
        Change::DeclareRouter(router("r", &[(42, &[]), (50, &[])])),
    ])
}

/// The refusal of a change, alone and as part of a declaration, where it can be one.
fn refused(state: &Desired, change: Change) -> Refused {
    let why = state.prepare(change.clone()).unwrap_err();
    let declaration = match change {
        Change::DeclareNetwork(network) => {
            Declaration { networks: vec![network], ..Declaration::default() }
        }
        Change::DeclareRouter(router) => {
            Declaration { routers: vec![router], ..Declaration::default() }
        }
        Change::DeclareNeighbour(neighbour) => {
            Declaration { neighbours: vec![neighbour], ..Declaration::default() }
        }
        Change::AddVnic(nic) => Declaration { vnics: vec![*nic], ..Declaration::default() },
        _ => return why,
    };
    assert_eq!(state.with(declaration, Unnamed::Stay).as_ref(), Err(&why));
    why
}

fn declared(router: Router) -> Change {
    Change::DeclareRouter(router)
}

#[test]
fn a_reserved_mac_address_is_no_vnic_s() {
    let empty = Desired::default();
    for mac in ["b2:f0:00:00:00:01", "B2:F1:00:00:00:01"] {
        let why = refused(&empty, Change::AddVnic(vnic("a", mac, 1, &[]).into()));
        assert_eq!(why, Refused::ReservedMac { nic: "a".into(), mac: mac.into() });
        let mac = Mac::parse(mac).unwrap();
        let bench = Kind::Bench(Bench::IcmpSender { ip: [10, 0, 0, 9].into(), mac });
        let sender = Nic { kind: bench, ..vnic("a", "02:00:00:00:00:01", 1, &["10.0.0.1"]) };
        let why = refused(&empty, Change::AddVnic(sender.into()));
        assert!(matches!(why, Refused::ReservedMac { .. }), "{why}");
    }
    let near = vnic("a", "b2:f2:00:00:00:01", 1, &[]);
    assert!(empty.prepare(Change::AddVnic(near.into())).is_ok());
}

#[test]
fn an_address_of_a_router_is_a_host_s_in_a_subnet() {
    let joined = joined();
    for address in ["10.0.7.2", "fd00:7::2"] {
        let why = refused(&joined, declared(router("s", &[(42, &[address])])));
        let address = address.parse().unwrap();
        assert_eq!(why, Refused::NotInSubnet { address, vni: vni(42) });
    }
    for address in ["10.0.0.0", "10.0.0.255", "fd00::"] {
        let why = refused(&joined, declared(router("s", &[(42, &[address])])));
        assert_eq!(why, Refused::NotAHost(address.parse().unwrap()));
    }
    let given = router("s", &[(42, &["10.0.0.3", "fd00::2"])]);
    let prepared = joined.prepare(declared(given)).unwrap();
    let mut both = joined.clone();
    both.commit(prepared);
    // The subnet of an address cannot go, nor shrink so that it is no host's any more.
    let why = refused(&both, Change::DeclareNetwork(network(42, &["10.0.0.0/24 10.0.0.1"])));
    let address = "fd00::2".parse().unwrap();
    assert_eq!(why, Refused::NotInSubnet { address, vni: vni(42) });
    let smaller = network(42, &["10.0.0.0/30 10.0.0.1", "fd00::/64 fd00::1"]);
    let why = refused(&both, Change::DeclareNetwork(smaller));
    assert_eq!(why, Refused::NotAHost("10.0.0.3".parse().unwrap()));
}

#[test]
fn a_router_has_an_address_in_each_network() {
    let silent = state([Change::DeclareNetwork(network(42, &["10.0.0.0/24"]))]);
    let missing = Refused::NoGateway { router: "r".into(), vni: vni(42) };
    assert_eq!(refused(&silent, declared(router("r", &[(42, &[])]))), missing);
    assert!(silent.prepare(declared(router("r", &[(42, &["10.0.0.2"])]))).is_ok());
    let why = refused(&joined(), Change::DeclareNetwork(network(42, &["10.0.0.0/24"])));
    assert_eq!(why, missing);
}

#[test]
fn subnets_that_meet_do_not_overlap() {
    let empty = Desired::default();
    let own = network(42, &["10.0.0.0/16", "10.0.7.0/24"]);
    let why = refused(&empty, Change::DeclareNetwork(own));
    let text = why.to_string();
    assert!(matches!(why, Refused::Overlap { .. }) && text.contains("10.0.7.0/24"), "{text}");

    // Those of one router: whichever comes last is refused.
    let nets = [
        network(42, &["10.0.0.0/24 10.0.0.1"]),
        network(50, &["10.0.1.0/24 10.0.1.1"]),
        network(60, &["10.0.0.128/25 10.0.0.129"]),
    ];
    let apart = state(nets.clone().map(Change::DeclareNetwork));
    let overlap = |why: &Refused| matches!(why, Refused::Overlap { .. });
    assert!(overlap(&refused(&apart, declared(router("r", &[(42, &[]), (60, &[])])))));
    let wide = network(50, &["10.0.0.0/8 10.0.1.1"]);
    assert!(overlap(&refused(&joined(), Change::DeclareNetwork(wide))));

    // Those of two routers that have a network in common: both blocks lead out of it.
    let mut two = apart;
    let first = two.prepare(declared(router("r", &[(42, &[]), (50, &[])]))).unwrap();
    two.commit(first);
    let second = router("s", &[(50, &["10.0.1.2"]), (60, &[])]);
    assert!(overlap(&refused(&two, declared(second.clone()))));
    let alone = two.prepare(declared(router("s", &[(60, &[])]))).unwrap();
    two.commit(alone);
    let elsewhere = two.prepare(Change::DeclareNetwork(network(60, &["10.0.2.0/24 10.0.2.1"])));
    two.commit(elsewhere.unwrap());
    let joins = two.prepare(declared(second)).unwrap();
    two.commit(joins);
    let [.., back] = nets;
    assert!(overlap(&refused(&two, Change::DeclareNetwork(back))));
}

#[test]
fn an_address_is_a_router_s_or_a_vnic_s() {
    let joined = joined();
    let mac = "02:00:00:00:00:01";
    let taken = |owner: &str, address: &str| Refused::AddressTaken {
        address: address.parse().unwrap(),
        vni: vni(42),
        owner: owner.to_owned(),
    };
    let nic = |ips: &[&str]| vnic("a", mac, 42, ips);
    for (address, shares) in [("10.0.0.1", false), ("10.0.0.1", true), ("fd00::1", false)] {
        let nic = Nic { shared_ip: shares, ..nic(&[address]) };
        let why = refused(&joined, Change::AddVnic(nic.into()));
        assert_eq!(why, taken("router \"r\"", address));
    }
    let elsewhere = vnic("a", mac, 50, &["10.0.0.1"]);
    assert!(joined.prepare(Change::AddVnic(elsewhere.into())).is_ok(), "another network");
    let mirror = Nic { sniff_target: Some("x".into()), ..nic(&["10.0.0.1"]) };
    assert!(joined.prepare(Change::AddVnic(mirror.into())).is_ok(), "a mirror has none");

    let mut both = joined;
    let prepared = both.prepare(Change::AddVnic(nic(&["10.0.0.2"]).into())).unwrap();
    both.commit(prepared);
    for change in [Change::ChangeVnic, Change::RemakeVnic] {
        let why = refused(&both, change(nic(&["10.0.0.2", "fd00::1"]).into()));
        assert_eq!(why, taken("router \"r\"", "fd00::1"));
    }
    let why = refused(&both, declared(router("s", &[(42, &["10.0.0.2"])])));
    assert_eq!(why, taken("nic \"a\"", "10.0.0.2"));
    let why = refused(&both, declared(router("s", &[(42, &["10.0.0.1"])])));
    assert_eq!(why, taken("router \"r\"", "10.0.0.1"));
    let other_gateway = network(42, &["10.0.0.0/24 10.0.0.2"]);
    assert_eq!(
        refused(&both, Change::DeclareNetwork(other_gateway)),
        taken("nic \"a\"", "10.0.0.2")
    );
    let gone = both.prepare(Change::RemoveVnic(NicId::new("a").unwrap())).unwrap();
    both.commit(gone);
    assert!(both.prepare(declared(router("s", &[(42, &["10.0.0.2"])]))).is_ok());
}

/// The ids are a known collision of the hash.
#[test]
fn two_routers_of_a_network_have_two_mac_addresses() {
    let mut state = joined();
    let there = state.prepare(declared(router("liquid", &[(42, &["10.0.0.2"])]))).unwrap();
    state.commit(there);
    let why = refused(&state, declared(router("costarring", &[(42, &["10.0.0.3"])])));
    let (router_id, other) = ("costarring".to_owned(), "liquid".to_owned());
    assert_eq!(why, Refused::MacClash { vni: vni(42), router: router_id, other });
    assert!(state.prepare(declared(router("costarring", &[(50, &["10.0.1.3"])]))).is_ok());
}

/// The machines of a route are hosts in subnets that its router joins, and not the router itself.
#[test]
fn a_route_leads_by_hosts_of_the_routers_networks() {
    let state = joined();
    let routes: &[(&str, &[&str])] = &[
        ("192.0.2.0/24", &["10.0.0.9", "10.0.1.9"]),
        ("0.0.0.0/0", &[]),
        ("::/0", &["fd00::9"]),
        ("10.0.0.0/24", &["10.0.1.9"]),
    ];
    assert!(state.prepare(declared(leading(routes))).is_ok());
    let why = |to, via: &[&str]| refused(&state, declared(leading(&[(to, via)]))).to_string();
    for (to, via, text) in [
        (
            "192.0.2.0/24",
            "10.0.2.9",
            "10.0.2.9, by which router \"r\" leads to 192.0.2.0/24, is in no subnet",
        ),
        ("::/0", "fd01::9", "fd01::9, by which router \"r\" leads to ::/0, is in no subnet"),
        ("192.0.2.0/24", "10.0.0.0", "10.0.0.0 is not the address of a host"),
        ("192.0.2.0/24", "10.0.0.255", "10.0.0.255 is not the address of a host"),
        (
            "192.0.2.0/24",
            "10.0.1.1",
            "10.0.1.1, by which router \"r\" would lead to 192.0.2.0/24, is the router's own",
        ),
    ] {
        assert!(why(to, &[via]).starts_with(text), "{}", why(to, &[via]));
        assert!(
            why(to, &[&via.replace(via, if to == "::/0" { "fd00::9" } else { "10.0.0.9" }), via])
                .starts_with(text)
        );
    }
}

/// Networks and attachments stay while a route needs them.
#[test]
fn what_a_route_needs_stays() {
    let mut state = joined();
    let with = leading(&[("192.0.2.0/24", &["10.0.1.9"])]);
    let prepared = state.prepare(declared(with)).unwrap();
    state.commit(prepared);
    let mut detached = leading(&[("192.0.2.0/24", &["10.0.1.9"])]);
    detached.detach(vni(50));
    let is_missed = |why: Refused| matches!(why, Refused::ViaNotConnected { .. });
    assert!(is_missed(refused(&state, declared(detached))));
    let other = network(50, &["10.0.2.0/24 10.0.2.1"]);
    assert!(is_missed(refused(&state, Change::DeclareNetwork(other))));
    let gateway = network(50, &["10.0.1.0/24 10.0.1.9"]);
    let why = refused(&state, Change::DeclareNetwork(gateway));
    assert!(matches!(why, Refused::ViaIsRouter { .. }), "{why}");
    let more = network(50, &["10.0.1.0/24 10.0.1.1", "10.0.2.0/24"]);
    assert!(state.prepare(Change::DeclareNetwork(more)).is_ok());
}

#[test]
fn routes_and_their_ways_are_bounded() {
    let mut state = joined();
    let ways: Vec<String> = (2..19).map(|n| format!("10.0.0.{n}")).collect();
    let ways: Vec<&str> = ways.iter().map(String::as_str).collect();
    assert!(state.prepare(declared(leading(&[("0.0.0.0/0", &ways[..16])]))).is_ok());
    let why = refused(&state, declared(leading(&[("0.0.0.0/0", &ways)])));
    assert_eq!(too_many(why), ("the route of router \"r\" to 0.0.0.0/0".into(), "ways", 16));
    let many = |id: &str, count: u32| {
        let mut router = router(id, &[]);
        for n in 0..count {
            let to = format!("100.{}.{}.0/24", n >> 8, n & 0xff);
            router.add_route(Route::parse(&to, [""; 0]).unwrap());
        }
        router
    };
    let why = refused(&state, declared(many("s", 1025)));
    assert_eq!(too_many(why), ("router \"s\"".into(), "routes", 1024));
    for n in 0..64 {
        let prepared = state.prepare(declared(many(&format!("s{n}"), 1024))).unwrap();
        state.commit(prepared);
    }
    let why = refused(&state, declared(many("s64", 1)));
    assert_eq!(too_many(why), ("this host".into(), "routes", 65_536));
    // Instead of others there are as many as before.
    for (router, fits) in
        [(many("s7", 1023), true), (many("s64", 1), true), (many("s65", 1), false)]
    {
        match (state.prepare(declared(router)), fits) {
            (Ok(prepared), true) => state.commit(prepared),
            (refused, _) => assert!(refused.is_err() && !fits),
        }
    }
    let prepared = state.prepare(Change::RemoveRouter(RouterId::new("s3").unwrap())).unwrap();
    state.commit(prepared);
    assert!(state.prepare(declared(many("s65", 1024))).is_ok());
}

/// All routers fit one answer.
#[test]
fn the_ways_of_a_host_are_bounded() {
    let mut state = joined();
    let ways: Vec<String> = (2..18).map(|n| format!("10.0.0.{n}")).collect();
    let many = |id: &str, own: &str, count: u32| {
        let mut router = router(id, &[(42, &[own])]);
        for n in 0..count {
            let to = format!("100.{}.{}.0/24", n >> 8, n & 0xff);
            router.add_route(Route::parse(&to, &ways).unwrap());
        }
        router
    };
    let own = ["10.0.0.20", "10.0.0.21", "10.0.0.22", "10.0.0.23", "10.0.0.24"];
    for (n, own) in own.iter().take(4).enumerate() {
        let prepared = state.prepare(declared(many(&format!("s{n}"), own, 1024))).unwrap();
        state.commit(prepared);
    }
    let why = refused(&state, declared(many("s4", own[4], 1)));
    assert_eq!(too_many(why), ("this host".into(), "ways of routes", 65_536));
    let prepared = state.prepare(declared(many("s0", own[0], 1023))).unwrap();
    state.commit(prepared);
    assert!(state.prepare(declared(many("s4", own[4], 1))).is_ok());
}

/// A route that changes leads nowhere in between, as a larger block would lead elsewhere. One that
/// stays does.
#[test]
fn a_route_that_changes_leads_nowhere_in_between() {
    let with = |routes: &[(&str, &[&str])]| {
        let mut state = joined();
        let prepared = state.prepare(declared(leading(routes))).unwrap();
        state.commit(prepared);
        state
    };
    let default: (&str, &[&str]) = ("0.0.0.0/0", &["10.0.0.9"]);
    let old = with(&[default, ("192.0.2.0/24", &["10.0.0.8"]), ("192.0.3.0/24", &[])]);
    let new = with(&[default, ("192.0.2.0/24", &["10.0.0.7"]), ("192.0.4.0/24", &[])]);
    let between = leading(&[default, ("192.0.2.0/24", &[]), ("192.0.3.0/24", &[])]);
    let last = new.routed().router("r").unwrap().clone();
    assert_eq!(plan(&old, &new), [declared(between), declared(last)]);
    let text = &differences(&old, &new, &[])[0].text;
    let expected = "+route 192.0.2.0/24 via 10.0.0.7, +route 192.0.4.0/24 blackhole, \
                    -route 192.0.2.0/24 via 10.0.0.8, -route 192.0.3.0/24 blackhole";
    assert_eq!(text, expected);
}

#[test]
fn a_text_names_some_routes_and_counts_the_rest() {
    let mut router = router("r", &[]);
    assert_eq!(about_router(&router), "attached to no network");
    for n in 0..20 {
        router.add_route(Route::parse(&format!("10.{n}.0.0/16"), [""; 0]).unwrap());
    }
    let text = about_router(&router);
    assert!(text.starts_with("attached to no network, route 10.0.0.0/16 blackhole, "), "{text}");
    assert!(text.ends_with(", route 10.15.0.0/16 blackhole, 4 more routes"), "{text}");
}

#[test]
fn what_is_missing_is_named() {
    let empty = Desired::default();
    assert_eq!(refused(&empty, Change::RemoveNetwork(vni(42))), Refused::NetworkMissing(vni(42)));
    let id = RouterId::new("r").unwrap();
    assert_eq!(refused(&empty, Change::RemoveRouter(id)), Refused::RouterMissing("r".into()));
    let why = refused(&empty, declared(router("r", &[(42, &[])])));
    assert_eq!(why, Refused::NetworkMissing(vni(42)));
    let text = "network 42 is not declared: declare it first, `butterfly network add --vni 42 --subnet CIDR`";
    assert_eq!(why.to_string(), text);
}

#[test]
fn a_network_with_a_router_stays() {
    let mut state = joined();
    let why = refused(&state, Change::RemoveNetwork(vni(42)));
    assert_eq!(why, Refused::StillAttached { vni: vni(42), router: "r".into() });
    // One file cannot leave the router without its network, either.
    let routers =
        Declaration { routers: vec![router("r", &[(42, &[])])], ..Declaration::default() };
    assert_eq!(state.with(routers, Unnamed::Go), Err(Refused::NetworkMissing(vni(42))));
    let detached = state.prepare(declared(router("r", &[(50, &[])]))).unwrap();
    state.commit(detached);
    assert!(state.prepare(Change::RemoveNetwork(vni(42))).is_ok());
}

#[test]
fn one_declaration_names_each_once() {
    let empty = Desired::default();
    let networks = vec![network(42, &[]), network(42, &["10.0.0.0/24"])];
    let twice = Declaration { networks, ..Declaration::default() };
    assert_eq!(empty.with(twice, Unnamed::Stay), Err(Refused::NetworkTwice(vni(42))));
    let twice =
        Declaration { routers: vec![router("r", &[]), router("r", &[])], ..Declaration::default() };
    assert_eq!(empty.with(twice, Unnamed::Stay), Err(Refused::RouterTwice("r".into())));
}

fn too_many(why: Refused) -> (String, &'static str, usize) {
    match why {
        Refused::TooMany { owner, what, most } => (owner, what, most),
        other => panic!("{other}"),
    }
}

#[test]
fn subnets_and_routers_of_a_network_are_bounded() {
    let blocks: Vec<String> = (0..9).map(|n| format!("10.0.{n}.0/24 10.0.{n}.1")).collect();
    let blocks: Vec<&str> = blocks.iter().map(String::as_str).collect();
    let empty = Desired::default();
    let why = refused(&empty, Change::DeclareNetwork(network(42, &blocks)));
    assert_eq!(too_many(why), ("network 42".into(), "subnets", 8));
    let mut full = state([Change::DeclareNetwork(network(42, &blocks[..8]))]);
    let nth = |n: u32, rest: &str| {
        let address = format!("10.0.0.{}", n + 2);
        router(&format!("r{n}{rest}"), &[(42, &[address.as_str()])])
    };
    for n in 0..8 {
        let prepared = full.prepare(declared(nth(n, ""))).unwrap();
        full.commit(prepared);
    }
    let why = refused(&full, declared(nth(8, "")));
    assert_eq!(too_many(why), ("network 42".into(), "routers", 8));
    assert!(full.prepare(declared(nth(7, ""))).is_ok(), "it is there");
    let gone = full.prepare(Change::RemoveRouter(RouterId::new("r0").unwrap())).unwrap();
    full.commit(gone);
    assert!(full.prepare(declared(nth(8, ""))).is_ok());
}

#[test]
fn networks_of_a_router_are_bounded() {
    let nth = |n: u32| network(n, &[format!("10.0.{n}.0/24 10.0.{n}.1").as_str()]);
    let state = state((0..65).map(nth).map(Change::DeclareNetwork));
    let of = |count: u32| {
        let mut router = router("r", &[]);
        for n in 0..count {
            router.attach(vni(n), RouterAddresses::default());
        }
        router
    };
    assert!(state.prepare(declared(of(64))).is_ok());
    let why = refused(&state, declared(of(65)));
    assert_eq!(too_many(why), ("router \"r\"".into(), "networks", 64));
}

#[test]
fn networks_and_routers_of_a_host_are_bounded() {
    let networks = (0..16_384).map(|n| network(n, &[])).collect();
    let routers = (0..4096).map(|n| router(&format!("r{n}"), &[])).collect();
    let all = Declaration { networks, routers, ..Declaration::default() };
    let full = Desired::default().with(all, Unnamed::Stay).unwrap();
    let why = refused(&full, Change::DeclareNetwork(network(16_384, &[])));
    assert_eq!(too_many(why), ("this host".into(), "networks", 16_384));
    let why = refused(&full, declared(router("another", &[])));
    assert_eq!(too_many(why), ("this host".into(), "routers", 4096));
    assert!(full.prepare(Change::DeclareNetwork(network(7, &["10.0.0.0/24"]))).is_ok());
    assert!(full.prepare(declared(router("r7", &[]))).is_ok());
}

/// An address that both states have is in no subnet that both have: it goes and comes again.
#[test]
fn an_address_goes_with_its_subnet() {
    let with = |subnet: &str| {
        state([
            Change::DeclareNetwork(network(42, &[subnet])),
            declared(router("r", &[(42, &["10.0.0.3"])])),
        ])
    };
    let (old, new) = (with("10.0.0.0/24"), with("10.0.0.0/25"));
    let expected = [
        declared(router("r", &[])),
        Change::DeclareNetwork(network(42, &[])),
        Change::DeclareNetwork(network(42, &["10.0.0.0/25"])),
        declared(router("r", &[(42, &["10.0.0.3"])])),
    ];
    assert_eq!(plan(&old, &new), expected);
    let mut made = old;
    for change in expected {
        let prepared = made.prepare(change).unwrap();
        made.commit(prepared);
    }
    assert_eq!(made, new);
}

/// Attachments go before vnics change, and come after that; what stays is not touched.
#[test]
fn a_plan_detaches_first_and_attaches_last() {
    let nic = |ip| vnic("a", "02:00:00:00:00:01", 50, &[ip]);
    let with = |routed: Desired, nic: Nic| {
        let vnics = Declaration { vnics: vec![nic], ..Declaration::default() };
        routed.with(vnics, Unnamed::Stay).unwrap()
    };
    let old = with(joined(), nic("10.0.1.2"));
    let moved = state([
        Change::DeclareNetwork(network(42, &["10.0.0.0/24 10.0.0.1", "fd00::/64 fd00::1"])),
        Change::DeclareNetwork(network(50, &["10.0.1.0/24 10.0.1.2"])),
        Change::DeclareRouter(router("r", &[(42, &[]), (50, &[])])),
    ]);
    // The vnic and the router exchange their addresses.
    let new = with(moved, nic("10.0.1.1"));
    let expected = [
        declared(router("r", &[(42, &[])])),
        Change::DeclareNetwork(network(50, &["10.0.1.0/24"])),
        Change::ChangeVnic(nic("10.0.1.1").into()),
        Change::DeclareNetwork(network(50, &["10.0.1.0/24 10.0.1.2"])),
        declared(router("r", &[(42, &[]), (50, &[])])),
    ];
    assert_eq!(plan(&old, &new), expected);
    let told = differences(&old, &new, &plan(&old, &new));
    let rows: Vec<_> = told.iter().map(|row| (row.object, row.name.as_str(), row.what)).collect();
    let changed = What::Changed;
    assert_eq!(rows, [(Object::Network, "50", changed), (Object::Vnic, "a", changed)]);
    let text = "+subnet 10.0.1.0/24 gateway 10.0.1.2, -subnet 10.0.1.0/24 gateway 10.0.1.1";
    assert_eq!(told[0].text, text);

    // Another subnet, or another MTU, detaches nobody.
    let more = network(50, &["10.0.1.0/24 10.0.1.1", "10.0.2.0/24 10.0.2.1"]);
    let more = Network::new(vni(50), more.subnets().to_vec(), Some(1400)).unwrap();
    let file = Declaration { networks: vec![more.clone()], ..Declaration::default() };
    let grown = old.with(file, Unnamed::Stay).unwrap();
    assert_eq!(plan(&old, &grown), [Change::DeclareNetwork(more)]);
    let text = &differences(&old, &grown, &[])[0].text;
    assert_eq!(text, "+subnet 10.0.2.0/24 gateway 10.0.2.1, MTU none -> 1400");
}

/// A vnic that is made asks for its address at once: its network is there to answer then, and as
/// long as the vnic is.
#[test]
fn a_network_that_leases_comes_before_its_vnics_and_goes_after_them() {
    let leasing =
        |subnet| network(42, &[subnet]).with_dhcp(Some(Dhcp::new(None).unwrap())).unwrap();
    let nic = vnic("a", "02:00:00:00:00:01", 42, &["10.0.0.2"]);
    let first = leasing("10.0.0.0/24 10.0.0.1");
    let joins = router("r", &[(42, &[])]);
    let steps = [
        Change::DeclareNetwork(first.clone()),
        Change::AddVnic(nic.clone().into()),
        declared(joins.clone()),
    ];
    let (none, full) = (Desired::default(), state(steps.clone()));
    assert_eq!(plan(&none, &full), steps);
    let back = [
        Change::RemoveRouter(RouterId::new("r").unwrap()),
        Change::RemoveVnic(nic.id.clone()),
        Change::RemoveNetwork(vni(42)),
    ];
    assert_eq!(plan(&full, &none), back);
    // Another gateway: DHCP stays on in between, with nothing to lease.
    let other = leasing("10.0.0.0/24 10.0.0.3");
    let file = Declaration { networks: vec![other.clone()], ..Declaration::default() };
    let changes = plan(&full, &full.with(file, Unnamed::Stay).unwrap());
    let networks: Vec<_> = changes
        .iter()
        .filter_map(|change| match change {
            Change::DeclareNetwork(network) => Some(network),
            _ => None,
        })
        .collect();
    assert_eq!((networks.len(), networks[1]), (2, &other));
    assert!(networks[0].dhcp().is_some() && networks[0].gateways().next().is_none());
}

#[test]
fn what_comes_and_goes_is_told_in_words() {
    let (empty, full) = (Desired::default(), joined());
    let told = |old: &Desired, new: &Desired| -> Vec<String> {
        let all = differences(old, new, &plan(old, new));
        all.into_iter()
            .map(|row| format!("{:?} {} {:?}: {}", row.object, row.name, row.what, row.text))
            .collect()
    };
    let come = [
        "Network 42 Added: subnet 10.0.0.0/24 gateway 10.0.0.1, subnet fd00::/64 gateway fd00::1",
        "Network 50 Added: subnet 10.0.1.0/24 gateway 10.0.1.1",
        "Router r Added: network 42, network 50",
    ];
    assert_eq!(told(&empty, &full), come);
    let gone = ["Network 42 Removed: ", "Network 50 Removed: ", "Router r Removed: "];
    assert_eq!(told(&full, &empty), gone);
    let mut other = full.clone();
    let given = router("r", &[(42, &["fd00::2", "10.0.0.2"])]);
    let prepared = other.prepare(declared(given)).unwrap();
    other.commit(prepared);
    let text = "Router r Changed: +network 42 as 10.0.0.2 fd00::2, -network 42, -network 50";
    assert_eq!(told(&full, &other), [text]);
}

/// Neighbours may be declared before their network, and beside a vnic with the address.
#[test]
fn an_address_is_a_router_s_or_a_neighbour_s() {
    let taken = |owner: &str, address: &str| Refused::AddressTaken {
        address: address.parse().unwrap(),
        vni: vni(42),
        owner: owner.to_owned(),
    };
    let joined = joined();
    for address in ["10.0.0.1", "fd00::1"] {
        let why = refused(&joined, Change::DeclareNeighbour(neighbour(42, address, None)));
        assert_eq!(why, taken("router \"r\"", address));
    }
    let elsewhere = neighbour(50, "10.0.0.1", None);
    assert!(joined.prepare(Change::DeclareNeighbour(elsewhere)).is_ok(), "another network");

    let mut both = joined;
    let there = Change::DeclareNeighbour(neighbour(42, "10.0.0.2", Some("192.0.2.2")));
    let prepared = both.prepare(there).unwrap();
    both.commit(prepared);
    let owner = format!("the declared neighbour {MAC}");
    let why = refused(&both, declared(router("s", &[(42, &["10.0.0.2"])])));
    assert_eq!(why, taken(&owner, "10.0.0.2"));
    let text = "10.0.0.2 of network 42 belongs to the declared neighbour 02:00:00:00:00:09: choose another address";
    assert_eq!(why.to_string(), text);
    let other_gateway = network(42, &["10.0.0.0/24 10.0.0.2"]);
    let why = refused(&both, Change::DeclareNetwork(other_gateway));
    assert_eq!(why, taken(&owner, "10.0.0.2"));

    let nic = vnic("a", "02:00:00:00:00:01", 42, &["10.0.0.2"]);
    let prepared = both.prepare(Change::AddVnic(nic.into())).unwrap();
    both.commit(prepared);
    let again = Change::DeclareNeighbour(neighbour(42, "10.0.0.2", None));
    assert!(both.prepare(again).is_ok(), "a vnic has it, too");

    let gone = Change::RemoveNeighbour(vni(42), "10.0.0.2".parse().unwrap());
    let prepared = both.prepare(gone).unwrap();
    both.commit(prepared);
    let why = refused(&both, declared(router("s", &[(42, &["10.0.0.2"])])));
    assert_eq!(why, taken("nic \"a\"", "10.0.0.2"));
    let early = state([Change::DeclareNeighbour(neighbour(7, "10.7.0.2", None))]);
    assert!(early.prepare(Change::DeclareNetwork(network(7, &["10.7.0.0/24 10.7.0.1"]))).is_ok());
}

#[test]
fn a_neighbour_that_is_missing_is_named_and_none_is_named_twice() {
    let (one, other) = (neighbour(42, "10.0.0.2", None), neighbour(42, "fd00::2", None));
    let mut state = state([Change::DeclareNeighbour(one.clone())]);
    let (vni, address) = (one.vni(), one.address());
    for (number, text) in [(42, "10.0.0.3"), (7, "10.0.0.2"), (42, "fd00::2")] {
        let (vni, address) = (self::vni(number), text.parse().unwrap());
        let why = refused(&state, Change::RemoveNeighbour(vni, address));
        assert_eq!(why, Refused::NeighbourMissing { address, vni });
        let text = format!(
            "there is no neighbour {text} of network {number}: `butterfly neighbour list --vni {number}` has those that there are"
        );
        assert_eq!(why.to_string(), text);
    }
    let neighbours = vec![one.clone(), other, neighbour(42, "10.0.0.2", Some("192.0.2.2"))];
    let twice = Declaration { neighbours, ..Declaration::default() };
    let why = state.with(twice, Unnamed::Stay).unwrap_err();
    assert_eq!(why, Refused::NeighbourTwice { address, vni });
    assert_eq!(why.to_string(), "neighbour 10.0.0.2 of network 42 is declared twice");
    let gone = state.prepare(Change::RemoveNeighbour(vni, address)).unwrap();
    state.commit(gone);
    assert_eq!(state, Desired::default());
}

/// Neighbours go before routers do, and come after them; one that changes comes again.
#[test]
fn a_plan_has_neighbours_first_and_last() {
    let with = |mut state: Desired, neighbours: &[Neighbour]| {
        for neighbour in neighbours {
            let prepared = state.prepare(Change::DeclareNeighbour(neighbour.clone())).unwrap();
            state.commit(prepared);
        }
        state
    };
    let moved = state([
        Change::DeclareNetwork(network(42, &["10.0.0.0/24 10.0.0.2", "fd00::/64 fd00::1"])),
        Change::DeclareNetwork(network(50, &["10.0.1.0/24 10.0.1.1"])),
        declared(router("r", &[(42, &[]), (50, &[])])),
    ]);
    let (here, there) = (neighbour(50, "10.0.1.9", None), neighbour(50, "10.0.1.9", Some("::9")));
    let old = with(joined(), &[neighbour(42, "10.0.0.2", None), here.clone()]);
    let new = with(moved.clone(), &[there.clone(), neighbour(42, "10.0.0.1", None)]);
    let changes = plan(&old, &new);
    let first = Change::RemoveNeighbour(vni(42), "10.0.0.2".parse().unwrap());
    let last = [neighbour(42, "10.0.0.1", None), there].map(Change::DeclareNeighbour);
    assert_eq!(changes.first(), Some(&first));
    assert!(changes.ends_with(&last), "{changes:#?}");
    let mut made = old.clone();
    for change in changes.clone() {
        let prepared = made.prepare(change).unwrap();
        made.commit(prepared);
    }
    assert_eq!(made, new);
    let told: Vec<String> = differences(&old, &new, &changes)
        .into_iter()
        .filter(|row| row.object == Object::Neighbour)
        .map(|row| format!("{} {:?}: {}", row.name, row.what, row.text))
        .collect();
    let expected = [
        "10.0.0.1 of network 42 Added: MAC 02:00:00:00:00:09",
        "10.0.0.2 of network 42 Removed: ",
        "10.0.1.9 of network 50 Changed: host none -> ::9",
    ];
    assert_eq!(told, expected);
    let other = Neighbour::parse(vni(50), "10.0.1.9", "02:00:00:00:00:08", Some("192.0.2.2"));
    let other = with(old.clone(), &[other.unwrap()]);
    let text = "MAC 02:00:00:00:00:09 -> 02:00:00:00:00:08, host none -> 192.0.2.2";
    assert_eq!(differences(&old, &other, &[])[0].text, text);
    // What is not named goes, or stays.
    let file = Declaration { neighbours: vec![here], ..Declaration::default() };
    assert_eq!(old.with(file.clone(), Unnamed::Stay).unwrap(), old);
    assert_eq!(old.with(file, Unnamed::Go).unwrap().routed().neighbours().len(), 1);
}

#[test]
fn neighbours_are_listed_in_the_order_of_networks_and_addresses() {
    let all = [(7, "10.0.0.9"), (7, "fd00::1"), (9, "9.0.0.9"), (9, "10.0.0.1"), (9, "::2")];
    let reversed = all.into_iter().rev().map(|(number, text)| neighbour(number, text, None));
    let state = state(reversed.map(Change::DeclareNeighbour));
    let listed = |vni: Option<u32>, after: Option<(u32, &str)>| -> Vec<String> {
        let after = after.map(|(number, text)| (self::vni(number), text.parse().unwrap()));
        let listed = state.routed().neighbours_after(vni.map(self::vni), after);
        listed.map(|it| format!("{} {}", it.vni(), it.address())).collect()
    };
    let expected = all.map(|(number, text)| format!("{number} {text}"));
    assert_eq!(listed(None, None), expected);
    assert_eq!(listed(None, Some((7, "10.0.0.9"))), expected[1..]);
    assert_eq!(listed(None, Some((8, "::"))), expected[2..], "it is none of them");
    assert_eq!(listed(Some(7), None), expected[..2]);
    assert_eq!(listed(Some(9), Some((7, "fd00::1"))), expected[2..]);
    assert_eq!(listed(Some(9), Some((9, "10.0.0.1"))), expected[4..]);
    assert_eq!(listed(Some(7), Some((9, "10.0.0.1"))), [""; 0]);
    assert_eq!(listed(Some(8), None), [""; 0]);
}

/// The most that there can be come one by one, and at once, without a look at all others for each:
/// that would take hours.
#[test]
fn neighbours_of_a_host_are_bounded_and_none_costs_a_look_at_all() {
    let nth = |n: u32| {
        Neighbour::new(
            vni(42 + n % 3),
            std::net::Ipv4Addr::from_bits(0x0a00_0000 + n).into(),
            Mac::parse(MAC).unwrap(),
            None,
        )
        .unwrap()
    };
    let mut full = joined();
    for n in 2..262_146 {
        let prepared = full.prepare(Change::DeclareNeighbour(nth(n))).unwrap();
        full.commit(prepared);
    }
    let neighbours: Vec<Neighbour> = full.routed().neighbours().cloned().collect();
    let file = Declaration { neighbours, ..Declaration::default() };
    let at_once = joined().with(file, Unnamed::Stay).unwrap();
    assert_eq!(at_once, full);
    assert_eq!(plan(&joined(), &full).len(), 262_144);
    let why = refused(&full, Change::DeclareNeighbour(nth(262_146)));
    assert_eq!(too_many(why), ("this host".into(), "neighbours", 262_144));
    assert!(full.prepare(Change::DeclareNeighbour(nth(7))).is_ok(), "it is there");
    // Routers are checked against addresses of theirs alone.
    for n in 0..1000 {
        let id = format!("r{n}");
        let prepared = full.prepare(declared(router(&id, &[(50, &["10.0.1.7"])]))).unwrap();
        full.commit(prepared);
        let gone = full.prepare(Change::RemoveRouter(RouterId::new(&id).unwrap())).unwrap();
        full.commit(gone);
    }
}

/// Whichever of two is declared first, the other one is refused by name.
#[test]
fn a_prefix_is_of_one_vnic_alone() {
    let prefixes = |texts: &[&str]| PrefixSet::parse(texts).unwrap();
    let with = |id: &str, mac: &str, ips: &[&str], own: &[&str]| Nic {
        prefixes: prefixes(own),
        ..vnic(id, mac, 42, ips)
    };
    let (a, b) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
    let one = with("a", a, &[], &["fd00:0:0:1::/64"]);
    let add = |state: &mut Desired, change: Change| {
        let prepared = state.prepare(change).unwrap();
        state.commit(prepared);
    };
    let others: [(Nic, &str); 2] = [
        (with("b", b, &[], &["fd00:0:0:2::/64", "fd00:0:0:1::/64"]), "fd00:0:0:1::/64"),
        (with("b", b, &["fd00:0:0:1::9"], &[]), "fd00:0:0:1::9"),
    ];
    for (other, what) in others {
        for (first, second) in [(&one, &other), (&other, &one)] {
            let mut state = Desired::default();
            add(&mut state, Change::AddVnic(first.clone().into()));
            let why = refused(&state, Change::AddVnic(second.clone().into()));
            let Refused::PrefixTaken { nic, owner, .. } = &why else { panic!("{why}") };
            assert_eq!((nic.as_str(), owner.as_str()), (second.id.as_str(), first.id.as_str()));
            if second.id == other.id {
                assert!(why.to_string().contains(what), "{why}");
            }
            let elsewhere = Nic { vni: vni(43), ..second.clone() };
            assert!(state.prepare(Change::AddVnic(elsewhere.into())).is_ok(), "another network");
            let line = Nic { mac: first.mac.clone(), ..second.clone() };
            assert!(state.prepare(Change::AddVnic(line.into())).is_ok(), "they stand in line");
            let mirror =
                Nic { sniff_target: Some("a".into()), ..with("m", b, &["fd00:0:0:1::9"], &[]) };
            assert!(state.prepare(Change::AddVnic(mirror.into())).is_ok(), "a mirror has none");
        }
    }
    // A router: its gateway, an address of its own, by the network, by itself.
    let of_router = with("a", a, &[], &["fd00::/64"]);
    let why = refused(&joined(), Change::AddVnic(of_router.clone().into()));
    let Refused::PrefixHasOther { owner, address, .. } = why else { panic!("{why}") };
    assert_eq!((owner.as_str(), address.to_string()), ("router \"r\"", "fd00::1".into()));
    let mut state = Desired::default();
    add(&mut state, Change::AddVnic(of_router.into()));
    add(&mut state, Change::DeclareNetwork(network(42, &["fd00::/63"])));
    let taken = Refused::AddressTaken {
        address: "fd00::9".parse().unwrap(),
        vni: vni(42),
        owner: "nic \"a\"".into(),
    };
    assert_eq!(refused(&state, declared(router("s", &[(42, &["fd00::9"])]))), taken);
    add(&mut state, declared(router("s", &[(42, &["fd00:0:0:1::9"])])));
    let moved = with("a", a, &[], &["fd00:0:0:1::/64"]);
    let why = refused(&state, Change::ChangeVnic(moved.into()));
    assert!(matches!(why, Refused::PrefixHasOther { .. }), "{why}");
    add(&mut state, declared(router("s", &[(42, &["fd00:0:0:1::9"])])));
    add(&mut state, declared(router("t", &[])));
    let gateway = Change::DeclareNetwork(network(42, &["fd00::/63 fd00::9"]));
    add(&mut state, gateway);
    assert_eq!(refused(&state, declared(router("t", &[(42, &[])]))), taken);
    // A neighbour of another MAC address; one of the same is the vnic's machine.
    let at = |mac: &str| Neighbour::parse(vni(42), "fd00:0:0:8::9", mac, None).unwrap();
    let owner = with("p", a, &[], &["fd00:0:0:8::/64"]);
    for (mac, allowed) in [(a, true), (b, false)] {
        let mut neighbour_first = Desired::default();
        add(&mut neighbour_first, Change::DeclareNeighbour(at(mac)));
        let added = Change::AddVnic(owner.clone().into());
        let mut vnic_first = Desired::default();
        add(&mut vnic_first, added.clone());
        let elsewhere = Nic { vni: vni(43), ..owner.clone() };
        assert!(neighbour_first.prepare(Change::AddVnic(elsewhere.into())).is_ok());
        if allowed {
            assert!(neighbour_first.prepare(added).is_ok());
            assert!(vnic_first.prepare(Change::DeclareNeighbour(at(mac))).is_ok());
            continue;
        }
        let why = refused(&neighbour_first, added);
        let Refused::PrefixHasOther { owner, address, .. } = why else { panic!("{why}") };
        assert_eq!(owner, format!("the declared neighbour {b}"));
        let vni = vni(42);
        let owner = "nic \"p\", by its prefix".to_owned();
        let why = refused(&vnic_first, Change::DeclareNeighbour(at(mac)));
        assert_eq!(why, Refused::AddressTaken { address, vni, owner });
    }
    // By itself.
    let alone = [
        Nic { shared_ip: true, ..with("x", b, &[], &["fd00:0:0:7::/64"]) },
        Nic { sniff_target: Some("a".into()), ..with("x", b, &[], &["fd00:0:0:7::/64"]) },
    ];
    for nic in alone {
        let why = refused(&state, Change::AddVnic(nic.into()));
        assert!(matches!(why, Refused::NoPrefix { .. }), "{why}");
    }
    let many: Vec<String> = (0..5).map(|n| format!("fd01:0:0:{n}::/64")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let why = refused(&state, Change::AddVnic(with("x", b, &[], &many).into()));
    assert!(matches!(why, Refused::TooMany { what: "prefixes", most: 4, .. }), "{why}");
    assert!(state.prepare(Change::AddVnic(with("x", b, &[], &many[..4]).into())).is_ok());
}

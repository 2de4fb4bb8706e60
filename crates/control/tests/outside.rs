//! Refusals of externals and translations, one by one, and what the data path gets of them.

use butterfly_control::{Change, Declaration, Desired, Refused, Unnamed, differences, plan};
use butterfly_model::{
    External, ExternalId, ForwardProtocol, GroupNames, IpSet, Kind, Mac, Nat, NatRule, Neighbour,
    Network, Nic, NicId, PrefixSet, Route, Router, RouterAddresses, RouterId, Subnet, TraceOptions,
    Vni, WireDevice, parse_endpoint,
};

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn id(text: &str) -> ExternalId {
    ExternalId::new(text).unwrap()
}

fn network(number: u32, block: &str, gateway: &str) -> Network {
    let subnet = Subnet::parse(block, Some(gateway)).unwrap();
    Network::new(vni(number), vec![subnet], None).unwrap()
}

/// An external by an interface, with a chosen number.
fn external(name: &str, number: u32, wire: &str, addresses: &[&str]) -> External {
    let gateways: &[&str] = if addresses[0] == "192.0.2.7/24" { &["192.0.2.1"] } else { &[] };
    let made = External::parse(id(name), vni(number), addresses, gateways).unwrap();
    let made = made.with_wire(WireDevice::parse(wire).unwrap(), None).unwrap();
    made.with_chosen_vni().unwrap()
}

/// The external of [`joined`].
fn internet() -> External {
    external("internet", 900, "eth1", &["192.0.2.7/24"])
}

/// A router in network 42, attached to externals.
fn router(name: &str, networks: &[u32], externals: &[(&str, &[&str])]) -> Router {
    let mut router = Router::new(RouterId::new(name).unwrap());
    for number in networks {
        router.attach(vni(*number), RouterAddresses::default());
    }
    for (name, given) in externals {
        router.attach_external(id(name), RouterAddresses::parse(*given).unwrap());
    }
    router
}

fn vnic(number: u32, ip: &str) -> Change {
    let nic = Nic {
        id: NicId::new("a").unwrap(),
        mac: Mac::parse("02:00:00:00:00:0a").unwrap(),
        vni: vni(number),
        ips: IpSet::parse([ip]).unwrap(),
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
    };
    Change::AddVnic(nic.into())
}

fn floating(outside: &str, inside: &str) -> Nat {
    Nat::floating(outside.parse().unwrap(), inside.parse().unwrap()).unwrap()
}

fn snat(outside: &str) -> Nat {
    Nat::snat(outside.parse().unwrap()).unwrap()
}

fn forward(outside: &str, inside: &str) -> Nat {
    let ends = (parse_endpoint(outside).unwrap(), parse_endpoint(inside).unwrap());
    Nat::forward(ForwardProtocol::Tcp, ends.0, ends.1).unwrap()
}

fn nats(router: &str, external: &str, nats: &[Nat]) -> Change {
    Change::DeclareNat(RouterId::new(router).unwrap(), id(external), nats.to_vec())
}

fn state(changes: impl IntoIterator<Item = Change>) -> Desired {
    with(Desired::default(), changes)
}

fn with(mut state: Desired, changes: impl IntoIterator<Item = Change>) -> Desired {
    for change in changes {
        let prepared = state.prepare(change).unwrap();
        state.commit(prepared);
    }
    state
}

/// Network 42 with a router that is attached to an external and has an address there.
fn joined() -> Desired {
    state([
        Change::DeclareNetwork(network(42, "10.0.0.0/24", "10.0.0.1")),
        Change::DeclareExternal(internet()),
        Change::DeclareRouter(router("r", &[42], &[("internet", &["192.0.2.7"])])),
    ])
}

/// The refusal of a change, alone and as part of a declaration, where it can be one. It leaves the
/// state as it was.
fn refused(state: &Desired, change: Change) -> String {
    let why = state.prepare(change.clone()).unwrap_err();
    let none = Declaration::default();
    let declaration = match change {
        Change::DeclareNetwork(it) => Declaration { networks: vec![it], ..none },
        Change::DeclareRouter(it) => Declaration { routers: vec![it], ..none },
        Change::DeclareExternal(it) => Declaration { externals: vec![it], ..none },
        Change::DeclareNeighbour(it) => Declaration { neighbours: vec![it], ..none },
        Change::AddVnic(nic) => Declaration { vnics: vec![*nic], ..none },
        _ => return why.to_string(),
    };
    // A file may give an external another number: it is made anew.
    if !matches!(why, Refused::OtherNumber { .. }) {
        assert_eq!(state.with(declaration, Unnamed::Stay).as_ref(), Err(&why));
    }
    why.to_string()
}

#[track_caller]
fn assert_refused(state: &Desired, change: Change, text: &str) {
    let why = refused(state, change);
    assert!(why.contains(text), "{why}");
}

#[test]
fn a_number_is_one_thing() {
    let there = with(joined(), [vnic(7, "10.0.9.9")]);
    let network = Change::DeclareNetwork(network(900, "10.0.7.0/24", "10.0.7.1"));
    assert_refused(&there, network, "VNI 900 is that of external \"internet\"");
    let attached = Change::DeclareRouter(router("s", &[900], &[]));
    assert_refused(&there, attached, "attach routers to it with --external");
    let other =
        |number| Change::DeclareExternal(external("x", number, "eth2", &["198.51.100.7/24"]));
    assert_refused(&there, other(42), "cannot have VNI 42, in which network 42 is");
    assert_refused(&there, other(900), "in which external \"internet\" is");
    assert_refused(&there, other(7), "in which nic \"a\" is");
    let renumbered = external("internet", 901, "eth1", &["192.0.2.7/24"]);
    let renumbered = Change::DeclareExternal(renumbered);
    assert_refused(&there, renumbered, "has VNI 900: delete it first to give it VNI 901");
    let far = Neighbour::parse(vni(900), "192.0.2.9", "02:00:00:00:00:09", None).unwrap();
    assert_refused(&joined(), Change::DeclareNeighbour(far), "no vnics or neighbours are in it");
    assert_refused(&joined(), vnic(900, "192.0.2.9"), "VNI 900 was chosen for external");
}

#[test]
fn the_highest_free_number_is_chosen_and_kept() {
    let top = Vni::MAX;
    let there = state([
        vnic(top, "10.0.0.9"),
        Change::DeclareNetwork(network(top - 1, "10.0.0.0/24", "10.0.0.1")),
    ]);
    assert_eq!(there.number_for("x", |_| false), Ok(vni(top - 2)));
    assert_eq!(there.number_for("x", |vni| vni.number() > 1000), Ok(vni(1000)));
    let far = Neighbour::parse(vni(top - 2), "192.0.2.9", "02:00:00:00:00:09", None).unwrap();
    let there = with(there, [Change::DeclareNeighbour(far)]);
    assert_eq!(there.number_for("x", |_| false), Ok(vni(top - 3)));
    assert_eq!(joined().number_for("internet", |_| true), Ok(vni(900)));
    assert_eq!(joined().number_for("x", |_| true), Err(Refused::NoNumber("x".into())));
}

#[test]
fn a_wire_belongs_to_one_external() {
    let other = |wire: &str| external("x", 901, wire, &["198.51.100.7/24"]);
    let text = "eth1 without a VLAN belongs to external \"internet\"";
    assert_refused(&joined(), Change::DeclareExternal(other("eth1")), text);
    assert_refused(&joined(), Change::DeclareExternal(other("tap:eth1")), "belongs to external");
    let eth1 = || WireDevice::parse("eth1").unwrap();
    let tagged = other("eth1").with_wire(eth1(), Some(7)).unwrap();
    let there = with(joined(), [Change::DeclareExternal(tagged.clone())]);
    let third = external("y", 902, "eth1", &["203.0.113.7/24"]).with_wire(eth1(), Some(7)).unwrap();
    assert_refused(
        &there,
        Change::DeclareExternal(third),
        "VLAN 7 of eth1 belongs to external \"x\"",
    );
    // TAP devices without names are different ones, 15 interfaces of a host at most.
    let tap = |n: u32| {
        Change::DeclareExternal(external(&format!("t{n}"), 100 + n, "tap", &["198.51.100.7/24"]))
    };
    let there = with(joined(), (0..14).map(tap));
    assert_refused(&there, tap(14), "more than 15 interfaces of externals");
    let vlan = |n: u32| {
        let vlan = external(&format!("v{n}"), 200 + n, "eth1", &["198.51.100.7/24"]);
        Change::DeclareExternal(vlan.with_wire(eth1(), Some(n + 1)).unwrap())
    };
    let there = with(joined(), (0..31).map(vlan));
    assert_refused(&there, vlan(31), "more than 32 externals");
}

#[test]
fn addresses_outside_have_one_owner() {
    let there = joined();
    let attach =
        |name, given: &[&str]| Change::DeclareRouter(router(name, &[], &[("internet", given)]));
    assert_refused(&there, attach("s", &["192.0.2.8"]), "192.0.2.8 is none of the addresses");
    assert_refused(&there, attach("s", &["192.0.2.7"]), "belongs to router \"r\"");
    assert_refused(&there, nats("r", "internet", &[snat("192.0.2.7")]), "belongs to router \"r\"");
    assert_refused(&there, nats("r", "internet", &[snat("192.0.2.1")]), "belongs to its gateway");
    for address in ["192.0.2.0", "192.0.2.255"] {
        let text = format!("{address} is not the address of a host");
        assert_refused(&there, nats("r", "internet", &[snat(address)]), &text);
    }
    let there = with(there, [attach("s", &[]), nats("r", "internet", &[snat("192.0.2.8")])]);
    let text = "192.0.2.8 of external \"internet\" belongs to a translation of router \"r\"";
    assert_refused(&there, nats("s", "internet", &[snat("192.0.2.8")]), text);
    let shared = nats("s", "internet", &[forward("192.0.2.8:80", "10.0.0.9:80")]);
    assert_refused(&there, shared, text);
    let grown = external("internet", 900, "eth1", &["192.0.2.7/24", "192.0.2.8/24"]);
    let there = with(there, [Change::DeclareExternal(grown)]);
    assert_refused(&there, attach("s", &["192.0.2.8"]), "belongs to a translation of router \"r\"");
    // A router without an address of its own may translate to one of the host's.
    let free = nats("s", "internet", &[snat("203.0.113.9")]);
    with(there, [free]);
}

#[test]
fn machines_of_a_provider_network_have_no_address_of_the_host() {
    let provider = |addresses: &[&str]| {
        let made = External::parse(id("p"), vni(77), addresses, ["192.0.2.1"]).unwrap();
        Change::DeclareExternal(made)
    };
    let there = with(joined(), [provider(&["192.0.2.7/24"])]);
    assert_refused(&there, vnic(77, "192.0.2.7"), "belongs to external \"p\"");
    // Without a wire, the vnic with the gateway's address is the way out.
    let there = with(there, [vnic(77, "192.0.2.1")]);
    let own = External::parse(id("p"), vni(77), ["192.0.2.1/24"], [""; 0]).unwrap();
    assert_refused(&there, Change::DeclareExternal(own), "belongs to nic \"a\"");
    let wired = External::parse(id("p"), vni(77), ["192.0.2.7/24"], ["192.0.2.1"]).unwrap();
    let wired = wired.with_wire(WireDevice::parse("eth9").unwrap(), None).unwrap();
    let wired = Change::DeclareExternal(wired);
    assert_refused(&there, wired.clone(), "192.0.2.1 of external \"p\" belongs to nic \"a\"");
    let there = with(joined(), [wired]);
    assert_refused(&there, vnic(77, "192.0.2.1"), "belongs to a gateway of external \"p\"");
}

#[test]
fn a_prefix_of_a_vnic_has_no_address_of_the_outside() {
    let prefixed = || {
        let Change::AddVnic(nic) = vnic(77, "fd00:2::9") else { unreachable!() };
        let prefixes = PrefixSet::parse(["fd00:1::/64"]).unwrap();
        Change::AddVnic(Nic { prefixes, ..*nic }.into())
    };
    let wired = |address: &str, gateway: &str| {
        let made = External::parse(id("p"), vni(77), [address], [gateway]).unwrap();
        made.with_wire(WireDevice::parse("eth9").unwrap(), None).unwrap()
    };
    for (external, what) in [
        (wired("fd00:1::7/63", "fd00:1:0:1::1"), "fd00:1::7"),
        (wired("fd00:1:0:1::7/63", "fd00:1::1"), "fd00:1::1"),
    ] {
        let declared = Change::DeclareExternal(external);
        let there = with(joined(), [declared.clone()]);
        assert_refused(&there, prefixed(), &format!("has {what}, which belongs to"));
        let there = with(joined(), [prefixed()]);
        assert_refused(&there, declared, &format!("{what} of external \"p\" belongs to nic"));
    }
    let external = Change::DeclareExternal(wired("fd00:1:0:1::7/63", "fd00:1:0:1::1"));
    let attached = Change::DeclareRouter(router("r", &[42], &[("internet", &[]), ("p", &[])]));
    let nat = nats("r", "p", &[floating("fd00:1::8", "fd00:9::8")]);
    let there = with(joined(), [external.clone(), attached.clone(), nat.clone()]);
    assert_refused(&there, prefixed(), "has fd00:1::8, which belongs to a translation");
    let there = with(joined(), [external, attached, prefixed()]);
    assert_refused(&there, nat, "belongs to nic");
}

#[test]
fn translations_share_no_address_but_ports() {
    let (there, here) = (joined(), |all: &[Nat]| nats("r", "internet", all));
    let (web, db) =
        (forward("192.0.2.9:80", "10.0.0.9:8080"), forward("192.0.2.9:443", "10.0.0.9:8443"));
    with(there.clone(), [here(&[snat("192.0.2.9"), web, db, floating("192.0.2.10", "10.0.0.8")])]);
    let twice = forward("192.0.2.9:80", "10.0.0.8:80");
    for all in [
        &[web, twice][..],
        &[floating("192.0.2.9", "10.0.0.7"), web],
        &[snat("192.0.2.9"), snat("192.0.2.9")],
        &[floating("192.0.2.9", "10.0.0.9"), snat("192.0.2.9")],
    ] {
        assert_refused(&there, here(all), "and another translation with that");
    }
    let again = forward("192.0.2.9:81", "10.0.0.9:8080");
    for all in [
        &[floating("192.0.2.9", "10.0.0.9"), floating("192.0.2.10", "10.0.0.9")][..],
        &[web, floating("192.0.2.10", "10.0.0.9")],
        &[floating("192.0.2.10", "10.0.0.9"), web],
        &[web, again],
    ] {
        assert_refused(&there, here(all), "leads to the same port of 10.0.0.9");
    }
    let far = nats("r", "internet", &[floating("203.0.113.9", "10.9.9.9")]);
    with(there.clone(), [far]);
    assert_refused(&there, nats("s", "internet", &[web]), "there is no router \"s\"");
    assert_refused(&there, nats("r", "x", &[web]), "there is no external \"x\"");
    let many: Vec<Nat> = (10..75).map(|n| snat(&format!("203.0.113.{n}"))).collect();
    with(there.clone(), [here(&many[..64])]);
    assert_refused(&there, here(&many), "more than 64 addresses of SNAT");
}

#[test]
fn what_is_in_use_stays() {
    let there = with(joined(), [nats("r", "internet", &[snat("192.0.2.9")])]);
    let gone = Change::RemoveExternal(id("internet"));
    assert_refused(&there, gone.clone(), "router \"r\" is attached to external \"internet\"");
    let text = "router \"r\" has 1 translations at external \"internet\": delete them first";
    assert_refused(&there, Change::RemoveRouter(RouterId::new("r").unwrap()), text);
    assert_refused(&there, Change::DeclareRouter(router("r", &[42], &[])), text);
    let moved = external("internet", 900, "eth1", &["192.0.2.8/24"]);
    assert_refused(&there, Change::DeclareExternal(moved), "192.0.2.7 is none of the addresses");
    assert_refused(&there, Change::RemoveExternal(id("x")), "there is no external \"x\"");
    let empty = with(
        there,
        [
            nats("r", "internet", &[]),
            Change::DeclareRouter(router("r", &[42], &[])),
            gone,
            Change::RemoveRouter(RouterId::new("r").unwrap()),
        ],
    );
    let left = [Change::DeclareNetwork(network(42, "10.0.0.0/24", "10.0.0.1"))];
    assert_eq!(empty, state(left));
    let lonely = nats("r", "internet", &[snat("192.0.2.9")]);
    let apart = with(joined(), [Change::DeclareRouter(router("r", &[42], &[]))]);
    assert_refused(&apart, lonely, "is not attached to external \"internet\": attach it first");
}

#[test]
fn nothing_has_two_ways() {
    let there = joined();
    let text = "subnet 192.0.2.0/25 of network 50 overlaps 192.0.2.0/24 of network 900";
    let with_network =
        with(there.clone(), [Change::DeclareNetwork(network(50, "192.0.2.0/25", "192.0.2.1"))]);
    let both = router("s", &[50], &[("internet", &[])]);
    let why = refused(&with_network, Change::DeclareRouter(both));
    assert!(
        why.contains("192.0.2.0/24 of network 900 overlaps 192.0.2.0/25 of network 50"),
        "{why}"
    );
    let joined =
        with(there.clone(), [Change::DeclareNetwork(network(50, "10.0.7.0/24", "10.0.7.1"))]);
    let joined = with(joined, [Change::DeclareRouter(router("s", &[50], &[("internet", &[])]))]);
    let overlapping = Change::DeclareNetwork(network(50, "192.0.2.0/25", "192.0.2.1"));
    let why = refused(&joined, overlapping);
    assert!(why.contains("overlaps") && why.contains("192.0.2.0/24"), "{why} {text}");
    // Private networks of two routers may have the same addresses behind one external, public ones
    // may not.
    let same =
        |public| Change::DeclareNetwork(network(51, "10.0.0.0/24", "10.0.0.1").with_public(public));
    let tenants =
        with(there, [same(false), Change::DeclareRouter(router("s", &[51], &[("internet", &[])]))]);
    let tenants = with(tenants, [same(true)]);
    let first = network(42, "10.0.0.0/24", "10.0.0.1").with_public(true);
    let text =
        "packets from external \"internet\" to 10.0.0.0/24 of network 42 would have two ways";
    assert_refused(&tenants, Change::DeclareNetwork(first), text);
}

#[test]
fn the_data_path_gets_numbers_and_default_routes() {
    let there = joined();
    let lowered = |router: &Router| there.routed().lowered(router, None, |_| true);
    let r = lowered(there.routed().router("r").unwrap());
    let joins: Vec<_> = r.attachments().map(|(vni, given)| (vni.number(), given.texts())).collect();
    assert_eq!(joins, [(42, vec![]), (900, vec!["192.0.2.7".to_owned()])]);
    assert_eq!(r.externals().len(), 0);
    let routes: Vec<String> = r.routes().map(Route::to_string).collect();
    assert_eq!(routes, ["0.0.0.0/0 via 192.0.2.1"]);
    // A declared one counts; without the external nothing leads out.
    let mut own = there.routed().router("r").unwrap().clone();
    own.add_route(Route::parse("0.0.0.0/0", ["10.0.0.9"]).unwrap());
    let routes: Vec<String> = lowered(&own).routes().map(Route::to_string).collect();
    assert_eq!(routes, ["0.0.0.0/0 via 10.0.0.9"]);
    let router = there.routed().router("r").unwrap();
    let without = there.routed().lowered(router, None, |_| false);
    assert_eq!((without.attachments().len(), without.routes().len()), (1, 0));
    let moved = external("internet", 900, "eth1", &["192.0.2.7/25"]);
    let moved = there.routed().lowered(router, Some(&moved), |_| true);
    assert_eq!(moved.routes().len(), 0);
}

#[test]
fn a_file_may_hand_translations_over() {
    let file = |rules: Vec<NatRule>| Declaration { nats: rules, ..Declaration::default() };
    let rule = |router: &str, nat| NatRule {
        router: RouterId::new(router).unwrap(),
        external: id("internet"),
        nat,
    };
    let other = Change::DeclareRouter(router("s", &[], &[("internet", &[])]));
    let (web, db) =
        (forward("192.0.2.9:80", "10.0.0.9:8080"), forward("192.0.2.9:443", "10.0.0.9:8443"));
    let old = with(joined(), [other, nats("r", "internet", &[web, db])]);
    // A part of an address is not handed over.
    let part = old.with(file(vec![rule("s", web)]), Unnamed::Stay);
    assert!(matches!(part, Err(Refused::OutsideTaken { .. })));
    let new = old.with(file(vec![rule("s", web), rule("s", db)]), Unnamed::Stay).unwrap();
    let changes = plan(&old, &new);
    assert_eq!(changes, [nats("r", "internet", &[]), nats("s", "internet", &[web, db])]);
    let told: Vec<String> = differences(&old, &new, &changes)
        .into_iter()
        .map(|it| format!("{}: {}", it.name, it.text))
        .collect();
    assert_eq!(
        told[0],
        "tcp 192.0.2.9:80 at external \"internet\": -forward tcp 192.0.2.9:80 to 10.0.0.9:8080 of router \"r\", +forward tcp 192.0.2.9:80 to 10.0.0.9:8080 of router \"s\""
    );
    let twice = old.with(file(vec![rule("r", web), rule("s", web)]), Unnamed::Stay);
    assert!(matches!(twice, Err(Refused::NatTwice { .. })));
    let both = Declaration { externals: vec![internet(), internet()], ..Declaration::default() };
    assert_eq!(old.with(both, Unnamed::Stay), Err(Refused::ExternalTwice("internet".into())));
}

/// Another gateway ends no translation, and in between no other way out is taken.
#[test]
fn an_external_changes_in_place() {
    let old = with(joined(), [nats("r", "internet", &[snat("192.0.2.9")])]);
    let other = External::parse(id("internet"), vni(900), ["192.0.2.7/24"], ["192.0.2.2"]).unwrap();
    let other = other.with_wire(WireDevice::parse("eth1").unwrap(), None).unwrap();
    let other = other.with_chosen_vni().unwrap();
    let file = Declaration { externals: vec![other.clone()], ..Declaration::default() };
    let new = old.with(file, Unnamed::Stay).unwrap();
    let between = External::parse(id("internet"), vni(900), ["192.0.2.7/24"], [""; 0]).unwrap();
    let between = between.with_wire(WireDevice::parse("eth1").unwrap(), None).unwrap();
    let between = between.with_chosen_vni().unwrap();
    let changes = plan(&old, &new);
    assert_eq!(changes, [Change::DeclareExternal(between), Change::DeclareExternal(other)]);
    // A new wire is made once everything is off the old one.
    let moved = external("internet", 900, "eth2", &["192.0.2.7/24"]);
    let file = Declaration { externals: vec![moved.clone()], ..Declaration::default() };
    let new = old.with(file, Unnamed::Stay).unwrap();
    let r = || router("r", &[42], &[("internet", &["192.0.2.7"])]);
    assert_eq!(
        plan(&old, &new),
        [
            nats("r", "internet", &[]),
            Change::DeclareRouter(router("r", &[42], &[])),
            Change::RemoveExternal(id("internet")),
            Change::DeclareExternal(moved),
            Change::DeclareRouter(r()),
            nats("r", "internet", &[snat("192.0.2.9")]),
        ]
    );
}

/// The ids are a known collision of the hash: what is for one of them would reach the other.
#[test]
fn two_routers_of_an_external_have_two_mac_addresses() {
    let at = |name: &str| Change::DeclareRouter(router(name, &[], &[("internet", &[])]));
    let there = with(joined(), [at("liquid")]);
    let text = "\"costarring\" and \"liquid\" would have one MAC address at external \"internet\"";
    assert_refused(&there, at("costarring"), text);
    let other = Change::DeclareExternal(external("x", 901, "eth2", &["198.51.100.7/24"]));
    let apart = Change::DeclareRouter(router("costarring", &[], &[("x", &[])]));
    let there = with(there, [other, apart]);
    let both = router("costarring", &[], &[("internet", &[]), ("x", &[])]);
    assert_refused(&there, Change::DeclareRouter(both), text);
    let both = vec![
        router("liquid", &[], &[("internet", &[])]),
        router("costarring", &[], &[("internet", &[])]),
    ];
    let file = Declaration { routers: both, ..Declaration::default() };
    let why = joined().with(file, Unnamed::Stay).unwrap_err();
    assert!(matches!(why, Refused::MacClashOutside { .. }), "{why}");
}

#[test]
fn an_external_has_few_routers() {
    let at = |n: u32| Change::DeclareRouter(router(&format!("t{n}"), &[], &[("internet", &[])]));
    let there = with(joined(), (0..63).map(at));
    let text = "external \"internet\" would have more than 64 routers";
    assert_refused(&there, at(63), text);
    with(there, [at(62), Change::RemoveRouter(RouterId::new("t5").unwrap()), at(63)]);
}

/// An address outside is nobody's inside, from whichever side it would become both.
#[test]
fn an_address_outside_is_none_that_the_outside_reaches_as_it_is() {
    let declared = |public| {
        let subnet = Subnet::parse("198.51.100.0/24", Some("198.51.100.1")).unwrap();
        let subnets =
            vec![subnet, Subnet::parse("2001:db8:9::/64", Some("2001:db8:9::1")).unwrap()];
        let network = Network::new(vni(50), subnets, None).unwrap();
        Change::DeclareNetwork(network.with_public(public))
    };
    let attached = || Change::DeclareRouter(router("s", &[50], &[("internet", &[])]));
    let (four, six) = (
        floating("198.51.100.9", "10.0.0.9"),
        Nat::floating("2001:db8:9::9".parse().unwrap(), "fd00::9".parse().unwrap()).unwrap(),
    );
    let text = |address: &str, block: &str| {
        format!(
            "{address} cannot be translated at external \"internet\": it is in {block} of network \
             50, which router \"s\" has the outside reach as it is"
        )
    };
    let (of_four, of_six) =
        (text("198.51.100.9", "198.51.100.0/24"), text("2001:db8:9::9", "2001:db8:9::/64"));

    // The network is there first; its own router takes none of its addresses, either.
    let there = with(joined(), [declared(true), attached()]);
    for taker in ["r", "s"] {
        assert_refused(&there, nats(taker, "internet", &[four]), &of_four);
        assert_refused(&there, nats(taker, "internet", &[snat("198.51.100.9")]), &of_four);
        assert_refused(&there, nats(taker, "internet", &[six]), &of_six);
    }
    let private = with(joined(), [declared(false), attached()]);
    assert_refused(&private, nats("r", "internet", &[six]), &of_six);
    // Private addresses of IPv4 are none of the outside.
    let first = with(private, [nats("r", "internet", &[four])]);
    assert_refused(&first, declared(true), &of_four);

    // The translation is there first.
    let first = with(joined(), [nats("r", "internet", &[four, six])]);
    let other = with(first.clone(), [declared(true)]);
    assert_refused(&other, attached(), &of_four);
    let other = with(first.clone(), [declared(false)]);
    assert_refused(&other, attached(), &of_six);
    let empty = Change::DeclareNetwork(network(50, "10.7.0.0/24", "10.7.0.1"));
    let other = with(first, [empty, attached()]);
    assert_refused(&other, declared(true), &of_four);
    assert_refused(&other, declared(false), &of_six);

    // At another external it is another address.
    let x = Change::DeclareExternal(external("x", 901, "eth2", &["203.0.113.7/24"]));
    let elsewhere = Change::DeclareRouter(router("s", &[50], &[("x", &[])]));
    let elsewhere = with(joined(), [x, declared(true), elsewhere]);
    let elsewhere = with(elsewhere, [nats("r", "internet", &[four, six])]);
    let both = router("s", &[50], &[("x", &[]), ("internet", &[])]);
    assert_refused(&elsewhere, Change::DeclareRouter(both), &of_four);

    // A file gets no further.
    let rule = NatRule { router: RouterId::new("r").unwrap(), external: id("internet"), nat: four };
    let file = Declaration { nats: vec![rule], ..Declaration::default() };
    let why = there.with(file, Unnamed::Stay).unwrap_err();
    assert!(matches!(why, Refused::OutsideInside { .. }), "{why}");
}

/// An external by another host.
fn over(name: &str, number: u32, host: &str) -> External {
    External::over(id(name), vni(number), host.parse().unwrap(), None).unwrap()
}

#[test]
fn what_is_translated_at_another_host_is_declared_there() {
    let by_host = || over("far", 901, "198.18.0.1");
    let there = with(
        joined(),
        [
            Change::DeclareExternal(by_host()),
            Change::DeclareRouter(router(
                "r",
                &[42],
                &[("internet", &["192.0.2.7"]), ("far", &[])],
            )),
        ],
    );
    let text = "external \"far\" leads out by host 198.18.0.1, which translates";
    assert_refused(&there, nats("r", "far", &[snat("192.0.2.9")]), text);
    assert_refused(&there, nats("r", "far", &[floating("192.0.2.80", "10.0.0.10")]), text);
    let named = router("r", &[42], &[("far", &["192.0.2.8"])]);
    assert_refused(&there, Change::DeclareRouter(named), "192.0.2.8 is none of the addresses");
    // One that translates here does not change its way out.
    let there = with(there, [nats("r", "internet", &[snat("192.0.2.9")])]);
    let change = || Change::DeclareExternal(over("internet", 900, "198.18.0.1"));
    let given = Change::DeclareRouter(router("r", &[42], &[("internet", &[])]));
    let text = "external \"internet\" leads out by host 198.18.0.1, which translates";
    let free = with(there.clone(), [given.clone()]);
    assert_refused(&free, change(), text);
    let free = with(joined(), [given]);
    let there = with(free, [change()]);
    assert_eq!(
        there.routed().external("internet").unwrap().via(),
        Some("198.18.0.1".parse().unwrap())
    );
    assert_eq!(
        with(there, [Change::DeclareExternal(internet())]).routed().external("internet"),
        Some(&internet())
    );
}

#[test]
fn a_router_leads_out_by_another_host() {
    let there = state([
        Change::DeclareNetwork(network(42, "10.0.0.0/24", "10.0.0.1")),
        Change::DeclareExternal(over("b", 901, "198.18.0.2")),
        Change::DeclareExternal(over("a", 902, "198.18.0.1")),
        Change::DeclareRouter(router("r", &[42], &[("a", &[]), ("b", &[])])),
    ]);
    let lowered = |has: fn(&ExternalId) -> bool| {
        let routed = there.routed();
        let lowered = routed.lowered(routed.router("r").unwrap(), None, has);
        assert_eq!((lowered.attachments().count(), lowered.externals().len()), (1, 0));
        lowered.second_hop().map(|it| it.host.to_string())
    };
    assert_eq!(lowered(|_| true), Some("198.18.0.1".to_owned()), "the first one");
    assert_eq!(lowered(|id| id.as_str() == "b"), Some("198.18.0.2".to_owned()));
    assert_eq!(lowered(|_| false), None);
}

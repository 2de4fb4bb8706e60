//! Shares of the table of sessions: the bounds of vnics and networks, and that other networks
//! cannot take them.

use butterfly_datapath::{
    GroupChange, Mac, RoutingChange, SessionConfig, SessionFilter, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{
    Cidr, Direction, GroupName, Network, Router, RouterAddresses, RouterId, Rule, SecurityGroup,
    Subnet, Vni,
};
use butterfly_packet::build::{self, Ip};
use butterfly_vhost::net::NetHeader;
use proptest::prelude::*;

const CAPACITY: u32 = 128;

struct Hosted {
    host: Host,
    /// The next source port, so that each flow is a new one.
    port: u16,
}

fn mac(vnic: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, vnic])
}

fn between(from: u8, to: u8) -> Ip {
    build::ethernet(mac(from), mac(to)).ipv4([10, 0, 0, from], [10, 0, 0, to])
}

fn id(vni: u32, vnic: u8) -> String {
    format!("{vni}-{vnic}")
}

impl Hosted {
    fn new(sessions: SessionConfig) -> Hosted {
        Hosted::on(Host::with_sessions(sessions).unwrap())
    }

    fn on(host: Host) -> Hosted {
        let name = GroupName::new("g").unwrap();
        let any = Rule::new(
            Direction::Inbound,
            17,
            (Some(0), Some(65_535)),
            Some(Cidr::new("0.0.0.0", 0).unwrap()),
            None,
        );
        let group = SecurityGroup::new(name.clone(), Vec::<String>::new(), [any.unwrap()]).unwrap();
        host.change_group(&name, GroupChange::Declare(group)).unwrap();
        Hosted { host, port: 1 }
    }

    /// A vnic of a network, filtered by a group that lets UDP in, or not filtered.
    fn vnic(&mut self, vni: u32, vnic: u8, filtered: bool) {
        let groups = if filtered { vec![GroupName::new("g").unwrap()] } else { Vec::new() };
        let ips = vec![[10, 0, 0, vnic].into()];
        let policy = VnicPolicy { bypass: !filtered, ips, groups, ..VnicPolicy::default() };
        let config = GuestConfig::default();
        let id = id(vni, vnic);
        self.host.declare(&id, mac(vnic), vni, &policy).unwrap();
        self.host.attach(&id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        self.host.settle();
        self.host.moved();
    }

    /// Sends a frame. Returns the receivers, or the drop.
    fn send(&mut self, vni: u32, from: u8, frame: &[u8]) -> String {
        self.host.send(&id(vni, from), frame, NetHeader::default()).unwrap();
        let received = self.host.received().unwrap();
        let moved = self.host.moved();
        let drops = moved
            .keys()
            .filter(|name| name.contains(".drop."))
            .map(|name| name.replace("drop.", ""));
        received.keys().cloned().chain(drops).collect::<Vec<_>>().join(" ")
    }

    /// One more flow, and its answer if it is to be established.
    fn open(&mut self, vni: u32, (from, to): (u8, u8), answered: bool) -> String {
        self.port += 1;
        let outcome = self.send(vni, from, &between(from, to).udp(self.port, 53, b"?"));
        if answered && outcome == id(vni, to) {
            assert_eq!(
                self.send(vni, to, &between(to, from).udp(53, self.port, b"!")),
                id(vni, from)
            );
        }
        outcome
    }

    fn sessions(&self, vni: u32) -> u32 {
        self.host.sessions(&SessionFilter { vni: Some(vni), ..SessionFilter::default() }, 0).0
            as u32
    }
}

fn config(capacity: u32, share: u32) -> SessionConfig {
    SessionConfig { capacity, share, ..SessionConfig::default() }
}

/// Steps in a host of several networks.
#[derive(Clone, Debug)]
enum Step {
    /// So many flows of a network, answered or not.
    Open(u32, u8, bool),
    /// A network with two vnics comes, or goes.
    Toggle(u32),
    Pass(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    let vni = 1u32..5;
    prop_oneof![
        8 => (vni.clone(), 1u8..40, any::<bool>()).prop_map(|(vni, flows, answered)| Step::Open(vni, flows, answered)),
        1 => vni.prop_map(Step::Toggle),
        1 => prop_oneof![Just(1u32), Just(31), Just(61)].prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// docs/architecture.md: half of the table is reserved in equal parts for the networks with
    /// filtered vnics, and a network within its part neither is refused a session nor loses one
    /// because of others, as soon as what they had beyond theirs when it came is over.
    #[test]
    fn a_network_within_its_part_is_never_refused_because_of_others(steps in prop::collection::vec(any_step(), 10..40)) {
        let mut net = Hosted::new(config(CAPACITY, 100));
        let mut there: Vec<u32> = Vec::new();
        for step in std::iter::once(Step::Toggle(1)).chain(steps) {
            match step {
                Step::Toggle(vni) if there.contains(&vni) => {
                    there.retain(|other| *other != vni);
                    [1, 2].into_iter().for_each(|vnic| net.host.remove(&id(vni, vnic)));
                    net.host.pass(0);
                }
                Step::Toggle(vni) => {
                    there.push(vni);
                    net.vnic(vni, 1, false);
                    net.vnic(vni, 2, true);
                }
                Step::Pass(seconds) => net.host.pass(seconds),
                Step::Open(vni, ..) if !there.contains(&vni) => {}
                Step::Open(vni, flows, answered) => for _ in 0..flows {
                    let before: Vec<(u32, u32)> = there.iter().map(|vni| (*vni, net.sessions(*vni))).collect();
                    let part = CAPACITY / 2 / there.len() as u32;
                    let beyond: u32 = before.iter().map(|(_, sessions)| sessions.saturating_sub(part)).sum();
                    let drained = beyond <= CAPACITY - part * there.len() as u32;
                    let own = net.sessions(vni);
                    let outcome = net.open(vni, (1, 2), answered);
                    if own < part && drained {
                        prop_assert_eq!(&outcome, &id(vni, 2), "{} of {} sessions, {:?}", own, part, &before);
                    } else {
                        let known = [id(vni, 2), format!("{}.sessions-full", id(vni, 1))];
                        prop_assert!(known.contains(&outcome), "{}", outcome);
                    }
                    for (other, sessions) in before.iter().filter(|(other, _)| *other != vni) {
                        if *sessions <= part {
                            prop_assert_eq!(net.sessions(*other), *sessions, "network {} lost one", other);
                        }
                    }
                },
            }
        }
    }
}

/// The purpose of the other half: two networks that have nothing in common but this table.
#[test]
fn a_network_that_floods_takes_what_is_common_and_no_more() {
    let mut net = Hosted::new(config(CAPACITY, 100));
    for vni in [1, 2] {
        net.vnic(vni, 1, false);
        net.vnic(vni, 2, true);
    }
    // All of it answered, so none may go for another one.
    let outcomes: Vec<String> = (0..200).map(|_| net.open(1, (1, 2), true)).collect();
    assert_eq!(net.sessions(1), 96);
    assert_eq!(outcomes.last().unwrap(), "1-1.sessions-full");
    for n in 0..32 {
        assert_eq!(net.open(2, (1, 2), n % 2 == 0), "2-2", "{n}");
    }
    assert_eq!((net.sessions(1), net.sessions(2)), (96, 32));
    // Beyond its part it is refused, or gives up its own.
    assert_eq!(net.open(2, (1, 2), true), "2-2");
    assert_eq!((net.sessions(1), net.sessions(2)), (96, 32));
    // A third one: parts are smaller, and the first network's excess is not thrown out.
    net.vnic(3, 1, false);
    net.vnic(3, 2, true);
    assert_eq!(net.sessions(1), 96);
    net.host.pass(61);
    assert_eq!(net.open(3, (1, 2), true), "3-2");
}

/// Half-open sessions that a network has beyond its part make way for those of others within
/// theirs.
#[test]
fn what_nobody_answers_makes_way() {
    let mut net = Hosted::new(config(CAPACITY, 100));
    net.vnic(1, 1, false);
    net.vnic(1, 2, true);
    (0..300).for_each(|_| assert_eq!(net.open(1, (1, 2), false), "1-2"));
    assert_eq!(net.sessions(1), CAPACITY);
    net.vnic(2, 1, false);
    net.vnic(2, 2, true);
    let made = (0..32).filter(|_| net.open(2, (1, 2), true) == "2-2").count();
    assert_eq!(made, 32);
    assert_eq!((net.sessions(1), net.sessions(2)), (96, 32));
}

/// A quarter of what a vnic may receive is the most that one opener takes; what it receives takes
/// nothing of what it opens.
#[test]
fn one_opener_has_a_quarter_of_what_a_vnic_receives() {
    // A network: 512; a vnic: 256; an opener: 64.
    let mut net = Hosted::new(config(2048, 25));
    net.vnic(1, 2, true);
    for vnic in 10..16 {
        net.vnic(1, vnic, false);
    }
    let opened = |net: &mut Hosted, from, to| {
        (0..100).filter(|_| net.open(1, (from, to), true) == id(1, to)).count()
    };
    assert_eq!([10, 11, 12].map(|from| opened(&mut net, from, 2)), [64, 64, 64]);
    assert_eq!(net.open(1, (10, 2), true), "1-10.session-share");
    // The receiver's own are not theirs, and others are served.
    assert_eq!(opened(&mut net, 2, 10), 64);
    assert_eq!(opened(&mut net, 13, 2), 64);
    // Now the receiver has what it may receive, which is told of it.
    assert_eq!(net.open(1, (14, 2), true), "1-2.session-share");
    assert_eq!(opened(&mut net, 2, 11), 64);
    // Sessions that are over count for no vnic.
    net.host.pass(61);
    assert_eq!(opened(&mut net, 10, 2), 64);
}

/// A vnic that has used up its rate opens nothing. With a rate of zero, that is from the start.
#[test]
fn new_sessions_have_a_rate() {
    let mut net = Hosted::new(SessionConfig { rate: 0, ..config(4096, 100) });
    net.vnic(1, 1, false);
    net.vnic(1, 2, true);
    net.vnic(1, 3, true);
    assert_eq!(net.open(1, (1, 2), true), "1-1.session-rate");
    assert_eq!(net.sessions(1), 0);
    // What is refused by a rule is told so.
    let refused = net.send(1, 1, &between(1, 2).tcp(&build::Tcp::new(1, 2, 2), b""));
    assert_eq!(refused, "1-2.ingress-denied");
}

/// One flow to many MAC addresses: each would be a session of the same addresses and ports.
#[test]
fn one_tuple_has_four_sessions_in_a_network() {
    let mut net = Hosted::new(config(4096, 25));
    (1..=8).for_each(|vnic| net.vnic(1, vnic, vnic == 1));
    let to = |vnic: u8| {
        build::ethernet(mac(1), mac(vnic)).ipv4([10, 0, 0, 1], [10, 9, 9, 9]).udp(1, 53, b"?")
    };
    let outcomes: Vec<String> = (2..=8).map(|vnic| net.send(1, 1, &to(vnic))).collect();
    let refused = "1-1.session-copies";
    assert_eq!(outcomes, ["1-2", "1-3", "1-4", "1-5", refused, refused, refused]);
    // They end as any.
    net.host.pass(61);
    assert_eq!(net.send(1, 1, &to(8)), "1-8");
}

/// A receiver with its share gives up one that it received, from whomever, and nothing that it
/// opened.
#[test]
fn a_receiver_gives_up_what_it_received() {
    // A network: 512; a vnic: 256; an opener: 64.
    let mut net = Hosted::new(config(2048, 25));
    net.vnic(1, 2, true);
    net.vnic(1, 3, true);
    [10, 11, 12, 13, 14].into_iter().for_each(|vnic| net.vnic(1, vnic, false));
    for opener in [10, 11, 12, 13] {
        (0..64).for_each(|n| assert_eq!(net.open(1, (opener, 2), false), "1-2", "{opener} {n}"));
    }
    let before = net.sessions(1);
    let passed = (0..100).filter(|_| net.open(1, (14, 2), false) == "1-2").count();
    // Not each finds one near its own place.
    assert!(passed > 10, "{passed}");
    assert_eq!(net.sessions(1), before, "each took the place of another one");
}

/// An opener with its part of a receiver gives up one of these, and nothing that others opened or
/// that it opened elsewhere.
#[test]
fn an_opener_gives_up_what_it_opened_there() {
    // A network: 512; a vnic: 256; an opener: 64.
    let mut net = Hosted::new(config(2048, 25));
    net.vnic(1, 2, true);
    net.vnic(1, 3, true);
    [10, 11].into_iter().for_each(|vnic| net.vnic(1, vnic, false));
    // Packets without an answer.
    for _ in 0..20 {
        assert_eq!([net.open(1, (11, 2), false), net.open(1, (10, 3), false)], ["1-2", "1-3"]);
    }
    (0..64).for_each(|n| assert_eq!(net.open(1, (10, 2), true), "1-2", "{n}"));
    for _ in 0..20 {
        assert_eq!(net.open(1, (10, 2), true), "1-10.session-share");
        assert_eq!(net.sessions(1), 20 + 20 + 64);
    }
}

/// A vnic is one opener, however many addresses it speaks with.
#[test]
fn an_opener_on_this_host_is_its_vnic() {
    let mut net = Hosted::new(config(2048, 25));
    net.vnic(1, 2, true);
    net.vnic(1, 10, false);
    let outcomes: Vec<String> = (0..100u8)
        .map(|n| {
            let ip = |from, to, source, destination| {
                build::ethernet(mac(from), mac(to)).ipv4(source, destination)
            };
            let (address, own) = ([10, 9, 0, n], [10, 0, 0, 2]);
            let outcome = net.send(1, 10, &ip(10, 2, address, own).udp(7, 53, b"?"));
            if outcome == "1-2" {
                assert_eq!(net.send(1, 2, &ip(2, 10, own, address).udp(53, 7, b"!")), "1-10");
            }
            outcome
        })
        .collect();
    assert_eq!(outcomes.iter().take_while(|outcome| *outcome == "1-2").count(), 64);
    assert!(outcomes[64..].iter().all(|outcome| outcome == "1-10.session-share"), "{outcomes:?}");
}

/// A network's share is for all its openers and receivers together. An opener of one session more
/// is refused, unless another session of the network may go.
#[test]
fn a_network_has_its_share() {
    // A network: 64; a vnic: 32; an opener: 8.
    let mut net = Hosted::new(config(256, 25));
    (2..=5).for_each(|vnic| net.vnic(1, vnic, true));
    (10..=12).for_each(|vnic| net.vnic(1, vnic, false));
    for from in [10, 11] {
        for to in 2..=5 {
            (0..8).for_each(|n| {
                assert_eq!(
                    net.open(1, (from, to), (from, to, n) != (11, 5, 7)),
                    id(1, to),
                    "{from} {to} {n}"
                )
            });
        }
    }
    assert_eq!(net.sessions(1), 64);
    // One of them was not answered.
    assert_eq!(net.open(1, (12, 2), true), "1-2");
    assert_eq!((net.open(1, (12, 2), true).as_str(), net.sessions(1)), ("1-12.session-share", 64));
    // Another network has its own.
    net.vnic(2, 2, true);
    net.vnic(2, 1, false);
    assert_eq!(net.open(2, (1, 2), true), "2-2");
}

/// A routed session counts in the network with the smaller VNI, which has its part for it although
/// its own vnic bypasses filters.
#[test]
fn a_network_has_its_part_for_sessions_by_a_router() {
    let tunnel = TunnelConfig::new([192, 168, 0, 1].into(), Mac([2, 0xbf, 0, 0, 0, 1]));
    let host = Host::with_tunnel(config(CAPACITY, 100), Some(&tunnel)).unwrap();
    let mut net = Hosted::on(host);
    net.vnic(60, 1, false);
    net.vnic(60, 2, true);
    let router = RouterId::new("r").unwrap();
    let gateway = Mac(router.gateway_mac());
    let mut router = Router::new(router);
    for (vni, vnic, filtered) in [(10u8, 1, false), (51, 2, true)] {
        let groups = if filtered { vec![GroupName::new("g").unwrap()] } else { Vec::new() };
        let ips = vec![[10, vni, 0, vnic].into()];
        let policy = VnicPolicy { bypass: !filtered, ips, groups, ..VnicPolicy::default() };
        net.host.vnic(&id(vni.into(), vnic), mac(vnic), vni.into(), &policy).unwrap();
        let own = format!("10.{vni}.0.254");
        let subnet = Subnet::parse(&format!("10.{vni}.0.0/24"), Some(&own)).unwrap();
        let vni = Vni::new(vni.into()).unwrap();
        let network = Network::new(vni, vec![subnet], None).unwrap();
        net.host.change_routing(RoutingChange::DeclareNetwork(network));
        router.attach(vni, RouterAddresses::default());
    }
    net.host.change_routing(RoutingChange::DeclareRouter(router));
    // Networks without vnics here have no sessions, and no part.
    let mut elsewhere = Router::new(RouterId::new("elsewhere").unwrap());
    for vni in 100..150u32 {
        let vni = Vni::new(vni).unwrap();
        let (block, own) = (format!("10.{vni}.0.0/24"), format!("10.{vni}.0.254"));
        let network = Network::new(vni, vec![Subnet::parse(&block, Some(&own)).unwrap()], None);
        net.host.change_routing(RoutingChange::DeclareNetwork(network.unwrap()));
        elsewhere.attach(vni, RouterAddresses::default());
    }
    net.host.change_routing(RoutingChange::DeclareRouter(elsewhere));
    net.host.settle();
    net.host.pass(0);
    net.host.moved();
    // Another tenant takes its own part and all that is common.
    let outcomes: Vec<String> = (0..200).map(|_| net.open(60, (1, 2), true)).collect();
    assert_eq!(outcomes.last().unwrap(), "60-1.sessions-full");
    let part = CAPACITY / 2 / 3;
    assert_eq!(net.sessions(60), CAPACITY - 2 * part);
    for port in 0..part as u16 {
        let frame = build::ethernet(mac(1), gateway).ipv4([10, 10, 0, 1], [10, 51, 0, 2]);
        assert_eq!(net.send(10, 1, &frame.udp(1000 + port, 53, b"?")), "51-2", "{port}");
    }
}

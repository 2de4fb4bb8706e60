//! Budgets that are kept for several machines: one machine cannot use up the share of all others.

use std::net::Ipv6Addr;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Cidr, Direction, GroupName, Rule, SecurityGroup};
use butterfly_packet::build::{self, Link};
use butterfly_vhost::net::NetHeader;

const VNI: u32 = 7;
const MINE: Mac = Mac([2, 0xbf, 0, 0, 0, 1]);

fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

fn v4(n: u8) -> [u8; 4] {
    [10, 0, 0, n]
}

fn v6(n: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n.into())
}

fn link(from: u8, to: u8) -> Link {
    build::ethernet(mac(from), mac(to))
}

struct World(Host);

impl World {
    /// Vnics 1 to `n` are filtered and let all UDP in; those on other hosts have higher numbers.
    fn new(n: u8, sessions: SessionConfig) -> World {
        let config = TunnelConfig::new([192, 168, 0, 1].into(), MINE);
        let host = Host::with_tunnel(sessions, Some(&config)).unwrap();
        let name = GroupName::new("g").unwrap();
        let any = |net| Some(Cidr::new(net, 0).unwrap());
        let udp = |net| Rule::new(Direction::Inbound, 17, (Some(0), Some(65_535)), any(net), None);
        let rules = [udp("0.0.0.0").unwrap(), udp("::").unwrap()];
        let group = SecurityGroup::new(name.clone(), Vec::<String>::new(), rules).unwrap();
        host.change_group(&name, GroupChange::Declare(group)).unwrap();
        let mut world = World(host);
        (1..=n).for_each(|vnic| world.vnic(vnic));
        world
    }

    fn vnic(&mut self, n: u8) {
        let ips = vec![v4(n).into(), v6(n).into()];
        let groups = vec![GroupName::new("g").unwrap()];
        let policy = VnicPolicy { ip_anti_spoof: true, ips, groups, ..VnicPolicy::default() };
        let config = GuestConfig::default();
        let id = n.to_string();
        self.0.declare(&id, mac(n), VNI, &policy).unwrap();
        self.0.attach(&id, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        self.0.settle();
    }

    /// Returns how many of these frames arrived at a vnic.
    fn send(&mut self, from: u8, to: u8, frame: &[u8], times: usize) -> usize {
        let all = (0..times).map(|_| {
            self.0.send(&from.to_string(), frame, NetHeader::default()).unwrap();
            self.0.received().unwrap().get(&to.to_string()).map_or(0, Vec::len)
        });
        all.sum()
    }

    /// Returns the same for frames from another host.
    fn arrive(&mut self, to: u8, frames: &[Vec<u8>]) -> usize {
        let mut got = 0;
        for some in frames.chunks(32) {
            let outer: Vec<Vec<u8>> = some.iter().map(|inner| outer(inner)).collect();
            self.0.arrive(&outer).unwrap();
            got += self.0.received().unwrap().get(&to.to_string()).map_or(0, Vec::len);
            self.0.left().unwrap();
        }
        got
    }
}

fn outer(inner: &[u8]) -> Vec<u8> {
    let vxlan = [&[8, 0, 0, 0, 0, 0, VNI as u8, 0][..], inner].concat();
    let link = build::ethernet(Mac([2, 0xbf, 0, 0, 0, 2]), MINE);
    link.ipv4([192, 168, 0, 2], [192, 168, 0, 1]).udp(50_000, 4789, &vxlan)
}

/// A solicitation (135) for the other end, or an advertisement (136) of oneself to it.
fn discovery(kind: u8, from: u8, to: u8) -> Vec<u8> {
    let (target, option) = if kind == 135 { (v6(to), 1) } else { (v6(from), 2) };
    let body = [&target.octets()[..], &[option, 1], &mac(from).0].concat();
    let flags = if kind == 136 { 0x6000_0000 } else { 0 };
    link(from, to).ipv6(v6(from), v6(to)).ttl(255).icmp(kind, 0, flags, &body)
}

fn world(n: u8) -> World {
    World::new(n, SessionConfig { capacity: 4096, ..SessionConfig::default() })
}

/// A vnic that is asked for its address without end still answers and asks all others.
#[test]
fn who_is_asked_without_end_can_still_talk() {
    const OTHERS: std::ops::Range<u8> = 10..40;
    let mut world = world(40);
    let (mut all, mut answered, mut asked) = (0, 0, 0);
    for _ in 0..12 {
        // 1 asks 2 as often as it may, and 2 answers as every kernel does.
        let questions = world.send(1, 2, &discovery(135, 1, 2), 1100);
        assert!(questions >= 132);
        let answers = world.send(2, 1, &discovery(136, 2, 1), questions);
        assert!(answers <= questions);
        // Others ask once, and are asked once.
        for other in OTHERS {
            assert_eq!(world.send(other, 2, &discovery(135, other, 2), 1), 1);
            all += 1;
            answered += world.send(2, other, &discovery(136, 2, other), 1);
            asked += world.send(2, other, &discovery(135, 2, other), 1);
        }
        world.0.pass(1);
    }
    // One in 32 shares its part with 1, for four seconds.
    assert!(answered > all * 7 / 8 && asked > all * 7 / 8, "{answered} and {asked} of {all}");
}

/// All machines of other hosts are one sender, which may have 64 packets in fragments. One of them
/// that sends first fragments without end takes the places of its own.
#[test]
fn who_never_ends_its_packets_elsewhere_ends_nobody_elses() {
    let mut world = world(1);
    let piece = |from: u8, id: u16, at: usize, more: bool| {
        let whole = link(from, 1).ipv4(v4(from), v4(1)).udp(9, 53, &[7; 64]);
        link(from, 1)
            .ipv4(v4(from), v4(1))
            .fragment(id.into(), at, more)
            .payload(17, &whole[34 + at..34 + at + 32])
    };
    assert_eq!(world.arrive(1, &[piece(101, 5, 0, true)]), 1);
    let endless: Vec<Vec<u8>> = (0..64).map(|id| piece(102, id, 0, true)).collect();
    assert_eq!(world.arrive(1, &endless), 64);
    assert_eq!(world.arrive(1, &[piece(101, 5, 32, false)]), 1);
}

/// One machine of another host broadcasts without end: those of others are heard.
#[test]
fn a_storm_of_one_machine_elsewhere_leaves_others_their_voice() {
    let mut world = world(1);
    for n in 2..=50 {
        let policy = VnicPolicy { bypass: true, ..VnicPolicy::default() };
        world.0.declare(&n.to_string(), mac(n), VNI, &policy).unwrap();
    }
    let asks = |from: u8, whom: u8| {
        build::ethernet(mac(from), Mac::BROADCAST).arp_request(v4(from), v4(whom))
    };
    let storm = vec![asks(100, 99); 3000];
    assert!(world.arrive(1, &storm) < 3000);
    let heard = (101..141).map(|from| {
        world.arrive(1, &storm[..300]);
        world.arrive(1, &[asks(from, 1)])
    });
    let heard: usize = heard.sum();
    assert!(heard > 30, "{heard} of 40");
}

/// One machine of another host opens sessions without end: others open theirs.
#[test]
fn one_machine_elsewhere_opens_no_more_than_leaves_room() {
    let sessions = SessionConfig { capacity: 4096, rate: 640, ..SessionConfig::default() };
    let mut world = World::new(1, sessions);
    let flow = |from: u8, port: u32| {
        let ports = (port as u16, (port >> 16) as u16);
        link(from, 1).ipv4(v4(from), v4(1)).udp(ports.0, ports.1, b"x")
    };
    let many: Vec<Vec<u8>> = (0..120_000).map(|port| flow(100, port)).collect();
    assert!(world.arrive(1, &many) < 60_000);
    let others: usize = (101..141).map(|from| world.arrive(1, &[flow(from, 7)])).sum();
    assert!(others > 30, "{others} of 40");
}

/// A multicast packet in fragments reaches all receivers, although policies change while its pieces
/// go out in several turns. It reaches no more of them when the sender's rule ends.
#[test]
fn fragments_go_on_while_others_are_changed() {
    let group = |name: &str, rules: Vec<Rule>| {
        let name = GroupName::new(name).unwrap();
        SecurityGroup::new(name, ["10.9.9.9"], rules).unwrap()
    };
    let out = || {
        let to = Cidr::new("239.1.1.1", 32).unwrap();
        Rule::new(Direction::Outbound, 17, (Some(53), Some(53)), Some(to), None).unwrap()
    };
    for own in [false, true] {
        let mut world = world(0);
        let declare = |world: &World, group: SecurityGroup| {
            world.0.change_group(&group.name().clone(), GroupChange::Declare(group)).unwrap();
        };
        declare(&world, group("out", vec![out()]));
        let config = GuestConfig { max_frame: 1514, ..GuestConfig::default() }.rings(128);
        for n in 1..=200 {
            let policy = match n {
                1 => VnicPolicy {
                    ips: vec![v4(1).into()],
                    groups: vec![GroupName::new("out").unwrap()],
                    ..VnicPolicy::default()
                },
                _ => VnicPolicy { bypass: true, ..VnicPolicy::default() },
            };
            let id = n.to_string();
            world.0.declare(&id, mac(n), VNI, &policy).unwrap();
            let memory = MemoryConfig::new(config.memory_needed());
            world.0.attach(&id, LINUX, &config, &memory).unwrap();
        }
        world.0.settle();
        world.0.received().unwrap();
        let ip = || build::ethernet(mac(1), Mac([1, 0, 0x5e, 1, 1, 1])).ipv4(v4(1), [239, 1, 1, 1]);
        let whole = ip().udp(53, 53, &[7; 64]);
        let piece =
            |at: usize, more| ip().fragment(5, at, more).payload(17, &whole[34 + at..34 + at + 32]);
        for (n, frame) in [piece(0, true), piece(32, false)].into_iter().enumerate() {
            let guest = world.0.guest("1").unwrap();
            guest.enqueue(&frame, NetHeader::default()).unwrap();
            guest.flush();
            world.0.turn();
            if own && n == 1 {
                let to = Some(Cidr::new("10.0.0.9", 32).unwrap());
                let other = Rule::new(Direction::Outbound, 6, (Some(1), Some(1)), to, None);
                declare(&world, group("out", vec![other.unwrap()]));
            }
            declare(&world, group(&format!("other{n}"), Vec::new()));
            world.0.settle();
            let got: usize = world.0.received().unwrap().values().map(Vec::len).sum();
            assert_eq!(got == 199, !own || n == 0, "{got} of piece {n}");
        }
    }
}

//! Cases of declared networks, which routers join or not, and the model's own tests of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use butterfly_packet::{Mac, build};

use crate::{
    cases::{disagreements, disagreements_among, rule, say, vnic},
    choices::Choices,
    commands::{
        Arrival, Case, Command, Flow, GROUPS, Host, Part, Shot, Step, To, Twist, What, station,
    },
    generate,
    policy::{Declared, Direction::Inbound, Group, Peer, Rule},
    random::Random,
    router::{Block, Change, Led, Net, ROUTERS, Resident, Router, gateway_mac},
    switch::{Mistake, Model},
};

/// Networks of a case: the third byte of their addresses, by VNI from 1 on.
type Bytes = &'static [u8];

/// Routers by index into [`ROUTERS`], and the networks that each joins.
type Joins = &'static [(usize, &'static [u32])];

/// Worlds: one router, of two networks or of three; two that share a network, or both; two of which
/// each has the addresses of the other one's networks; a network apart that has those of another.
const WORLDS: [(Bytes, Joins); 7] = [
    (&[0, 1], &[(0, &[1, 2])]),
    (&[0, 1], &[(0, &[1, 2])]),
    (&[0, 1, 2], &[(0, &[1, 2, 3])]),
    (&[0, 1, 2], &[(0, &[1, 2]), (1, &[2, 3])]),
    (&[0, 1], &[(0, &[1, 2]), (1, &[1, 2])]),
    (&[0, 1, 0, 1], &[(0, &[1, 2]), (1, &[3, 4])]),
    (&[0, 1, 0], &[(0, &[1, 2])]),
];

/// Addresses that no machine has, or a router.
fn odd_address(random: &mut Random) -> Host {
    let four = random.pick(&[
        Ipv4Addr::new(10, 0, 0, 0),
        Ipv4Addr::new(10, 0, 1, 255),
        Ipv4Addr::new(10, 0, 0, 254),
        Ipv4Addr::new(10, 0, 1, 254),
        Ipv4Addr::new(10, 0, 0, 254),
        Ipv4Addr::new(10, 0, 1, 254),
        Ipv4Addr::new(10, 0, 9, 0),
        Ipv4Addr::new(10, 0, 9, 3),
        Ipv4Addr::new(192, 0, 2, 1),
        Ipv4Addr::new(224, 0, 0, 5),
        Ipv4Addr::new(127, 0, 0, 1),
        Ipv4Addr::BROADCAST,
        Ipv4Addr::UNSPECIFIED,
    ]);
    let six = random.pick(&[
        six(0, 0),
        six(0, 0xfe),
        six(1, 0xfe),
        six(0, 0xfe),
        six(1, 0xfe),
        six(9, 3),
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 5),
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 5),
        Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0x0a00, 0x0101),
        Ipv6Addr::LOCALHOST,
        Ipv6Addr::UNSPECIFIED,
    ]);
    Host(four, six)
}

fn address(byte: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, byte, host)
}

fn six(byte: u8, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, byte.into(), 0, 0, 0, host)
}

fn host(byte: u8, number: u8) -> Host {
    Host(address(byte, number), six(byte, number.into()))
}

/// A block of 256 addresses of IPv4, and one of IPv6.
pub fn block(byte: u8, of_six: bool) -> Block {
    let Host(four, six) = host(byte, 254);
    match of_six {
        false => Block { first: address(byte, 0).into(), mask: 24, gateway: Some(four.into()) },
        true => Block { first: self::six(byte, 0).into(), mask: 64, gateway: Some(six.into()) },
    }
}

/// A network of 256 addresses, and maybe another few, and of some of IPv6, which needs an MTU.
fn net(random: &mut Random, vni: u32, byte: u8, further: Option<u8>) -> Net {
    let families: &[bool] =
        random.pick(&[&[false], &[false, true], &[false, true], &[false, true], &[true]]);
    let mut blocks: Vec<Block> = families.iter().map(|of_six| block(byte, *of_six)).collect();
    if let Some(mask) = further {
        blocks.push(Block { first: address(9, 0).into(), mask, gateway: None });
    }
    Net { vni, mtu: mtu(random, &blocks), blocks, public: false }
}

fn mtu(random: &mut Random, blocks: &[Block]) -> Option<u16> {
    let least = if blocks.iter().any(|block| block.first.is_ipv6()) { 1280 } else { 68 };
    random.pick(&[None, None, Some(least), Some(1400)])
}

/// A router of some networks. The second one of a network has addresses of its own: of both
/// families, also where the network has blocks of one.
pub fn router(at: usize, bytes: Bytes, joins: &[u32]) -> Change {
    let own = |vni: &u32| {
        let Host(four, six) = host(bytes[*vni as usize - 1], 253);
        if at > 0 { vec![four.into(), six.into()] } else { Vec::new() }
    };
    let joins = joins.iter().map(|vni| (*vni, own(vni))).collect();
    Change::Router(Router { name: ROUTERS[at], joins, routes: Vec::new() })
}

/// Blocks of routes: in each other, parts of networks, and the networks themselves.
const BLOCKS: [(&str, u8); 11] = [
    ("0.0.0.0", 0),
    ("10.0.0.0", 16),
    ("10.0.1.0", 24),
    ("10.0.1.2", 31),
    ("10.0.2.1", 32),
    ("192.0.2.0", 24),
    ("192.0.2.0", 31),
    ("::", 0),
    ("2001:db8:0:9::", 64),
    ("2001:db8:0:1::2", 127),
    ("2001:db8:0:1::", 64),
];

/// Gives a router some routes, by machines of its networks and by addresses that nobody has.
fn lead(random: &mut Random, change: &mut Change, vnics: &[Declared]) {
    let Change::Router(router) = change else { return };
    for _ in 0..random.below(5) {
        let (to, mask) = random.pick(&BLOCKS);
        let to: IpAddr = to.parse().unwrap();
        let joined = |vnic: &&Declared| router.joins.iter().any(|(vni, _)| *vni == vnic.vni);
        let ips = vnics.iter().filter(joined).flat_map(|vnic| vnic.ips.iter().copied());
        let nobody = host(random.below(2) as u8, 77);
        let odd = random.percent(20).then(|| [nobody.0.into(), nobody.1.into()]);
        let all = ips.chain(odd.into_iter().flatten());
        let all: Vec<IpAddr> = all.filter(|ip| ip.is_ipv4() == to.is_ipv4()).collect();
        let mut via: Vec<IpAddr> = Vec::new();
        for _ in 0..random.pick(&[0, 1, 1, 1, 2, 3, 4]) {
            let way = all.get(random.below(all.len().max(1)));
            via.extend(way.filter(|way| !via.contains(way)));
        }
        router.routes.retain(|led| (led.to, led.mask) != (to, mask));
        router.routes.push(Led { to, mask, via });
    }
    if random.percent(50) {
        // By all that there are, so that flows have a choice.
        for (to, mask) in [("192.0.2.0", 24), ("2001:db8:0:9::", 64)] {
            let to: IpAddr = to.parse().unwrap();
            let joined = |vnic: &&Declared| router.joins.iter().any(|(vni, _)| *vni == vnic.vni);
            let ips = vnics.iter().filter(joined).flat_map(|vnic| vnic.ips.iter().copied());
            let mut via: Vec<IpAddr> = Vec::new();
            for ip in ips.filter(|ip| ip.is_ipv4() == to.is_ipv4()) {
                via.extend(Some(ip).filter(|ip| !via.contains(ip)));
            }
            via.truncate(16);
            router.routes.retain(|led| (led.to, led.mask) != (to, mask));
            router.routes.push(Led { to, mask, via });
        }
    }
}

/// Everything of a case but what happens.
struct RoutedWorld {
    bytes: Bytes,
    joins: Joins,
    vnics: Vec<Declared>,
    outbound: usize,
    groups: Vec<Group>,
    nets: Vec<Net>,
}

fn random_world(random: &mut Random) -> RoutedWorld {
    let (bytes, joins) = random.pick(&WORLDS);
    let networks = bytes.len();
    let count = networks.max(3 + random.below(4));
    let further = random.percent(30).then(|| random.pick(&[30, 31]));
    let byte_of = |vnic: usize| bytes[vnic % networks];
    let mut vnics: Vec<Declared> =
        (0..count).map(|i| generate::vnic(random, i, networks)).collect();
    for (i, vnic) in vnics.iter_mut().enumerate() {
        vnic.shared_ip &= random.percent(30);
        vnic.ips.iter_mut().for_each(|ip| move_to(ip, byte_of(i)));
    }
    if further.is_some() {
        vnics[1].ips.push(address(9, 1).into());
    }
    let outbound = random.pick(&[0, 0, 4, 25]);
    let mut groups: Vec<Group> = Vec::new();
    for name in GROUPS {
        let mut group = generate::group(random, name, outbound);
        group.rules.iter_mut().for_each(|rule| widen(random, rule));
        group.members.iter_mut().for_each(|ip| move_to(ip, random.pick(bytes)));
        if random.percent(40) {
            // Much has to pass, so that there are conversations.
            let protocol = random.pick(&[None, Some(6), Some(17)]);
            group.rules.push(rule(Inbound, protocol, (0, 65535), "10.0.0.0", 16));
            group.rules.push(rule(Inbound, protocol, (0, 65535), "2001:db8::", 48));
        }
        groups.push(group);
    }
    let nets: Vec<Net> = (1..)
        .zip(bytes)
        .map(|(vni, byte)| net(random, vni, *byte, further.filter(|_| vni == 2)))
        .collect();
    RoutedWorld { bytes, joins, vnics, outbound, groups, nets }
}

pub fn case(seed: u64) -> Case {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x726f_7574);
    let RoutedWorld { bytes, joins, vnics, outbound, groups, nets } = random_world(&mut random);
    let byte_of = |vnic: usize| bytes[vnic % bytes.len()];
    let routers: Vec<Change> = joins.iter().map(|(at, joins)| router(*at, bytes, joins)).collect();
    let mut routes: Vec<Change> = nets.iter().cloned().map(Change::Net).collect();
    if random.percent(95) {
        routes.extend(routers.clone());
    }
    let leads = random.percent(60);
    if leads {
        routes.iter_mut().for_each(|change| lead(&mut random, change, &vnics));
    }
    let mut flows: Vec<Flow> = (0..8).map(|_| flow(&mut random, &vnics, joins)).collect();
    if leads {
        flows.iter_mut().for_each(|flow| go_behind(&mut random, flow));
    }
    let mut commands =
        generate::commands(&mut random, &vnics, &flows, 20, |random| match random.below(100) {
            0..25 => {
                let mut change = route(random, bytes, joins, &nets);
                if let Command::Route(change) = &mut change
                    && leads
                {
                    lead(random, change, &vnics);
                }
                vec![change]
            }
            25..50 => vec![speak(random, &flows)],
            _ => vec![changed(random, &vnics, &byte_of, bytes, outbound)],
        });
    for command in &mut commands {
        if let Command::Send(shots) = command {
            shots.iter_mut().for_each(|shot| twist(&mut random, shot));
        }
    }
    if random.percent(40) {
        // No guest attached a moment ago: connections need a beginning.
        commands.insert(0, Command::Pass(130));
    }
    let placed = vec![0; vnics.len()];
    Case { hosts: 1, vnics, placed, groups, routes, flows, commands }
}

/// Makes a case in the same worlds, spread over two hosts, which know of each other's machines what
/// is declared to them: right, wrong, or nothing at all.
pub fn case_of_two(seed: u64) -> Case {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x686f_7374);
    let RoutedWorld { bytes, joins, vnics, outbound, groups, nets } = random_world(&mut random);
    let byte_of = |vnic: usize| bytes[vnic % bytes.len()];
    let placed: Vec<usize> = vnics.iter().map(|_| random.below(2)).collect();
    let mut routes: Vec<Change> = nets.iter().cloned().map(Change::Net).collect();
    routes.extend(joins.iter().map(|(at, joins)| router(*at, bytes, joins)));
    let leads = random.percent(30);
    if leads {
        routes.iter_mut().for_each(|change| lead(&mut random, change, &vnics));
    }
    for (vnic, host) in vnics.iter().zip(&placed) {
        routes.extend(vnic.ips.iter().map(|ip| resident(&mut random, vnic, *ip, *host)));
    }
    let mut flows: Vec<Flow> = (0..10).map(|_| flow(&mut random, &vnics, joins)).collect();
    if leads {
        flows.iter_mut().for_each(|flow| go_behind(&mut random, flow));
    }
    let mut now = placed.clone();
    let mut commands =
        generate::commands(&mut random, &vnics, &flows, 40, |random| match random.below(100) {
            0..10 => {
                let mut change = route(random, bytes, joins, &nets);
                if let Command::Route(change) = &mut change
                    && leads
                {
                    lead(random, change, &vnics);
                }
                vec![if random.percent(50) { on_one(random, change) } else { change }]
            }
            10..25 => vec![told(random, &vnics, &now)],
            25..50 => moved(random, &vnics, &mut now, &flows),
            50..60 => vec![speak(random, &flows)],
            60..75 => vec![forged(random, &vnics, &flows)],
            75..80 => {
                let changed = changed(random, &vnics, &byte_of, bytes, outbound);
                vec![match changed {
                    Command::AddRule(..) | Command::RemoveRule(..) => on_one(random, changed),
                    changed => changed,
                }]
            }
            _ => vec![changed(random, &vnics, &byte_of, bytes, outbound)],
        });
    for command in &mut commands {
        if let Command::Send(shots) = command {
            shots.iter_mut().for_each(|shot| twist(&mut random, shot));
            shots.iter_mut().for_each(|shot| fit(shot, &flows));
        }
    }
    if random.percent(60) {
        // No guest attached a moment ago: connections need a beginning.
        commands.insert(0, Command::Pass(130));
    }
    if random.percent(15) {
        // A host that has no router, or another one than the other.
        let (at, joins) = random.pick(joins);
        let change = match random.percent(60) {
            true => Change::NoRouter(ROUTERS[at]),
            false => router(at, bytes, &joins[..1]),
        };
        commands.insert(0, on_one(&mut random, Command::Route(change)));
    }
    Case { hosts: 2, vnics, placed, groups, routes, flows, commands }
}

/// Makes a change one that a single host is told.
fn on_one(random: &mut Random, change: Command) -> Command {
    Command::At(random.below(2), Box::new(change))
}

/// Packets have to fit into the tunnel, unless a router tells that they do not.
fn fit(shot: &mut Shot, flows: &[Flow]) {
    let is_switched = flows[shot.flow].via.is_none();
    if let What::Long(len) = &mut shot.what
        && (is_switched || shot.to != To::Receiver || shot.twist != Twist::None)
    {
        *len = (*len).min(1373);
    }
}

/// Declares the machine that has an address: where it is, in most cases.
fn resident(random: &mut Random, vnic: &Declared, ip: IpAddr, host: usize) -> Change {
    let right = host as u8 + 1;
    let host = match random.below(20) {
        0..14 => Some(right),
        14..17 => None,
        17 => Some(3 - right),
        18 => Some(3),
        _ => return Change::NoResident(vnic.vni, ip),
    };
    Change::Resident(Resident { vni: vnic.vni, ip, mac: vnic.mac, host })
}

/// A change of what is declared of a machine, to both hosts or to one.
fn told(random: &mut Random, vnics: &[Declared], placed: &[usize]) -> Command {
    let at = random.below(vnics.len());
    let vnic = &vnics[at];
    let ip = match vnic.ips[..] {
        [] => address(0, 1).into(),
        _ => random.pick(&vnic.ips),
    };
    let mut change = resident(random, vnic, ip, placed[at]);
    if let Change::Resident(resident) = &mut change
        && random.percent(10)
    {
        // Another machine of the network, or one behind it.
        let of = |other: &&Declared| other.vni == vnic.vni;
        let macs: Vec<[u8; 6]> = vnics.iter().filter(of).map(|other| other.mac).collect();
        resident.mac = random.pick(&macs);
        if random.percent(40) {
            resident.mac = station(random.below(2) as u8);
        }
    }
    let change = Command::Route(change);
    if random.percent(30) { on_one(random, change) } else { change }
}

/// A vnic goes to the other host, of which operators tell before, after, or never.
fn moved(
    random: &mut Random,
    vnics: &[Declared],
    now: &mut [usize],
    flows: &[Flow],
) -> Vec<Command> {
    let before = now.to_vec();
    let mut commands = generate::moved(random, now, flows);
    let Some(vnic) = (0..now.len()).find(|vnic| before[*vnic] != now[*vnic]) else {
        return commands;
    };
    let told = |ip: &IpAddr| {
        let Declared { vni, mac, .. } = vnics[vnic];
        let host = Some(now[vnic] as u8 + 1);
        Command::Route(Change::Resident(Resident { vni, ip: *ip, mac, host }))
    };
    let told: Vec<Command> = vnics[vnic].ips.iter().map(told).collect();
    match random.below(10) {
        0..4 => {
            commands.splice(0..0, told);
        }
        4..8 => commands.extend(told),
        _ => {}
    }
    commands
}

/// A frame from the wire that says which router sent it on, and may lie.
fn forged(random: &mut Random, vnics: &[Declared], flows: &[Flow]) -> Command {
    let host = random.below(2);
    let other = 2 - host as u8;
    let flow = random.below(flows.len());
    let back = random.percent(50);
    let receiver = flows[flow].vnics[usize::from(!back)];
    let what = match random.below(16) {
        0..6 => What::Udp(4),
        6..10 => What::Tcp(random.pick(&[Step::Syn, Step::Ack, Step::Data])),
        10..12 => What::Echo { request: true, id: 1 },
        12 => What::Arp { reply: false },
        13 => What::Type(0x88b5),
        14 => What::Way(random.pick(&[0, 2]), 0),
        _ => What::Fragment { protocol: 17, id: 1, part: random.pick(&[Part::First, Part::Last]) },
    };
    let to = match random.below(16) {
        0 => To::Broadcast,
        1 => To::Multicast,
        2 => To::Station(random.below(2) as u8),
        3 => To::Receiver,
        4 => To::Vnic(random.below(vnics.len())),
        _ => To::Vnic(receiver),
    };
    let mut shot = Shot { flow, back, what, to, twist: Twist::None };
    if random.percent(60) {
        shot.twist = match random.below(9) {
            0..2 => Twist::From(host_of(random)),
            2..4 => Twist::From(gateway_of(random)),
            4 => Twist::From(odd_address(random)),
            5 => Twist::Hops(random.pick(&[0, 1, 255])),
            6 => Twist::Vlan(random.pick(&[None, Some(5)])),
            7 => Twist::Byte(2 + random.below(20) as u16, 1 << random.below(8)),
            _ => Twist::Towards(host_of(random)),
        };
    }
    let says = match random.below(20) {
        0..2 => Some(3),
        2 => Some(3 - other),
        3 => None,
        _ => Some(other),
    };
    let from = if random.percent(95) { other } else { 3 };
    Command::Wire(Arrival { host, from, vni: vnics[receiver].vni, says, shot })
}

/// Some router's address in some network.
fn gateway_of(random: &mut Random) -> Host {
    host(random.below(3) as u8, random.pick(&[253, 254]))
}

/// Some machine of some network.
fn host_of(random: &mut Random) -> Host {
    host(random.below(3) as u8, 1 + random.below(4) as u8)
}

/// Moves an address of the first network to another one.
fn move_to(ip: &mut IpAddr, byte: u8) {
    match ip {
        IpAddr::V4(four) => {
            if let [10, 0, 0, host] = four.octets() {
                *four = address(byte, host);
            }
        }
        IpAddr::V6(it) => {
            if let [0x2001, 0xdb8, 0, 0, 0, 0, 0, host] = it.segments() {
                *it = six(byte, host);
            }
        }
    }
}

/// Makes a rule one about other networks, in most cases.
fn widen(random: &mut Random, rule: &mut Rule) {
    let block = |text: &str, mask| Peer::Cidr(text.parse().unwrap(), mask);
    match random.below(12) {
        8 | 9 => rule.peer = block("2001:db8::", 48),
        10 => rule.peer = block("2001:db8:0:1::7", 64),
        11 => rule.peer = block("2001:db8:0:1::1", 128),
        0 | 1 => rule.peer = block("10.0.0.0", 16),
        2 => rule.peer = block("10.0.1.7", 24),
        3 => rule.peer = block("10.0.1.1", 32),
        4 => rule.peer = block("10.0.2.0", 24),
        _ => {}
    }
}

/// A conversation, in most cases of two networks by a router.
fn flow(random: &mut Random, vnics: &[Declared], joins: Joins) -> Flow {
    let a = random.below(vnics.len());
    let others: Vec<usize> = (0..vnics.len()).filter(|b| vnics[*b].vni != vnics[a].vni).collect();
    let neighbours = vnics.iter().filter(|vnic| vnic.vni == vnics[a].vni).count() > 1;
    if neighbours && random.percent(20) || others.is_empty() {
        let mut flow = generate::flow(random, vnics);
        // To a neighbour by the gateway, now and then.
        flow.via = random.percent(10).then_some(0);
        return flow;
    }
    let joined = |b: &usize| {
        let both = [vnics[a].vni, vnics[*b].vni];
        joins.iter().find(|(_, nets)| both.iter().all(|vni| nets.contains(vni)))
    };
    let near: Vec<usize> = others.iter().copied().filter(|b| joined(b).is_some()).collect();
    let among = if near.is_empty() || random.percent(10) { &others } else { &near };
    let b = random.pick(among);
    let leads = joined(&b).map_or(0, |(at, _)| *at);
    let via = if random.percent(96) { leads } else { random.below(ROUTERS.len()) };
    let is_v4 = random.percent(50);
    let mut ip = |vnic: usize| {
        let own = vnics[vnic].ips.iter().copied().filter(|ip| ip.is_ipv4() == is_v4);
        let own: Vec<IpAddr> = own.collect();
        if own.is_empty() || random.percent(4) {
            let Host(four, six) = host(random.below(3) as u8, 1 + random.below(4) as u8);
            return if is_v4 { four.into() } else { six.into() };
        }
        random.pick(&own)
    };
    let mut ips = [ip(a), ip(b)];
    if random.percent(4) {
        // Those that no router passes on.
        ips = [a, b].map(|vnic| vnics[vnic].link_local());
    }
    let mut station =
        |vnic: usize| (vnics[vnic].bypass && random.percent(15)).then(|| random.below(2) as u8);
    let stations = [station(a), station(b)];
    Flow {
        vnics: [a, b],
        ips,
        ports: [random.pick(&[4000, 4001, 80]), random.pick(&[80, 80, 22, 53])],
        vlan: random.percent(3).then(|| random.pick(&[5, 0])),
        stations,
        via: Some(via),
        outside: None,
    }
}

/// Has an end of a conversation behind the machine that would have it, now and then.
fn go_behind(random: &mut Random, flow: &mut Flow) {
    if random.percent(40) {
        let end = random.pick(&[0, 1, 1, 1]);
        let (last, ip) = (random.below(4) as u8, &mut flow.ips[end]);
        *ip = match ip.is_ipv4() {
            true => Ipv4Addr::new(192, 0, 2, last).into(),
            false => six(9, last.into()).into(),
        };
    }
}

/// A change of what is declared: a router or a network goes, comes back, or is another one.
fn route(random: &mut Random, bytes: Bytes, joins: Joins, nets: &[Net]) -> Command {
    let (at, all) = random.pick(joins);
    let net = random.pick(nets);
    Command::Route(match random.below(24) {
        0 => Change::NoRouter(ROUTERS[at]),
        1..17 => router(at, bytes, all),
        17 => {
            let some: Vec<u32> = all.iter().copied().filter(|_| random.percent(60)).collect();
            router(at, bytes, &some)
        }
        18 => Change::NoNet(net.vni),
        19..22 => Change::Net(net),
        _ => Change::Net(Net { mtu: mtu(random, &net.blocks), ..net }),
    })
}

/// ARP or discovery about a gateway, or a packet of a length that just passes, or just not, or that
/// says by which way it goes.
fn speak(random: &mut Random, flows: &[Flow]) -> Command {
    let gateway =
        |random: &mut Random| host(random.below(3) as u8, random.pick(&[254, 254, 254, 253, 1]));
    let index = random.below(flows.len());
    let via = flows[index].via.unwrap_or(0);
    let (what, to) = match random.below(12) {
        0..4 => {
            let to = if random.percent(70) { To::Broadcast } else { To::Router(via) };
            (What::Ask(gateway(random)), to)
        }
        4..7 => {
            let address = random.percent(60).then(|| gateway(random));
            let router = random.percent(30).then_some(via);
            let hardware = random.pick(&[1, 1, 6]);
            let to = random.pick(&[To::Broadcast, To::Broadcast, To::Receiver]);
            (What::Claim { address, router, hardware }, to)
        }
        7 => (What::Udp(random.pick(&[40, 40, 41])), To::Receiver),
        8..10 => {
            (What::Long(random.pick(&[1232, 1233, 1352, 1353, 1372, 1373, 1460])), To::Receiver)
        }
        _ => {
            let behind = random.pick(&[0, 0, 6, 60, 130, 180, 230]);
            (What::Way(random.pick(&[0, 0, 2, 4]), behind), To::Receiver)
        }
    };
    let back = random.percent(50);
    let mut twist = Twist::None;
    if matches!(what, What::Ask(_) | What::Claim { .. }) && random.percent(30) {
        // Who has no address yet, or has one that no machine has; or some bit is wrong.
        twist = match random.below(3) {
            0 => Twist::From(Host(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED)),
            1 => Twist::From(odd_address(random)),
            _ => Twist::Byte(random.below(74) as u16, 1 << random.below(8)),
        };
    }
    Command::Send(vec![Shot { flow: index, back, what, to, twist }])
}

/// A change of groups and vnics, about addresses of all networks.
fn changed(
    random: &mut Random,
    vnics: &[Declared],
    byte_of: &dyn Fn(usize) -> u8,
    bytes: Bytes,
    outbound: usize,
) -> Command {
    let mut change = generate::change(random, vnics, outbound);
    match &mut change {
        Command::AddRule(_, rule) | Command::RemoveRule(_, rule) => widen(random, rule),
        Command::AddMember(_, ip) | Command::RemoveMember(_, ip) => {
            move_to(ip, random.pick(bytes));
        }
        Command::Declare(group) => {
            group.rules.iter_mut().for_each(|rule| widen(random, rule));
            group.members.iter_mut().for_each(|ip| move_to(ip, random.pick(bytes)));
        }
        Command::Addresses(vnic, ips) => {
            let byte = byte_of(*vnic);
            ips.iter_mut().for_each(|ip| move_to(ip, byte));
        }
        _ => {}
    }
    change
}

/// Makes something wrong with some frames that others have no chance to be wrong with.
fn twist(random: &mut Random, shot: &mut Shot) {
    if random.percent(3) {
        shot.to = To::Router(random.below(ROUTERS.len()));
    }
    if shot.twist != Twist::None || !random.percent(8) {
        return;
    }
    shot.twist = match random.below(8) {
        0..2 => Twist::Hops(random.pick(&[0, 1, 2, 255])),
        2 => Twist::SourceRouter(random.below(ROUTERS.len())),
        3 => Twist::From(host(random.below(3) as u8, 1 + random.below(4) as u8)),
        4 => Twist::From(odd_address(random)),
        5 => Twist::Towards(host(random.below(3) as u8, 1 + random.below(4) as u8)),
        6 => Twist::Towards(odd_address(random)),
        // Some bit of the header.
        _ => Twist::Byte(2 + random.below(20) as u16, 1 << random.below(8)),
    };
}

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 1, 2];

/// a in network 1, b in network 2, of group "web", and the router "r" between them. a bypasses
/// filters, or not.
fn world(bypass: bool) -> Model {
    let mut model = Model::new();
    let declared = |mac, n, vni, ip: [u8; 4], groups: &[&'static str]| Declared {
        vni,
        ips: vec![ip.into()],
        ..vnic(mac, n, groups)
    };
    model.insert("a", Declared { bypass, ..declared(A, 1, 1, IP_A, &[]) });
    model.insert("b", declared(B, 2, 2, IP_B, &["web"]));
    let rules = vec![rule(Inbound, Some(17), (80, 80), "10.0.0.0", 24)];
    model.groups.push(Group { name: "web", members: vec![], rules });
    for (vni, byte) in [(1, 0), (2, 1)] {
        let blocks = vec![block(byte, false)];
        assert!(model.routes.apply(&Change::Net(Net {
            vni,
            blocks,
            mtu: Some(100),
            public: false
        })));
    }
    assert!(model.routes.apply(&router(0, &[0, 1], &[1, 2])));
    model.pass(1000);
    model
}

/// Sends a frame with exactly one right outcome. Returns the receivers or drops, and what arrives.
#[track_caller]
pub fn send(model: &mut Model, from: &str, frame: &[u8]) -> (String, Option<Vec<u8>>) {
    let mut results = Choices::all(|choices| {
        let mut model = model.clone();
        let outcome = model.send(from, frame, choices);
        (model, outcome)
    });
    assert_eq!(results.len(), 1);
    let (after, outcome) = results.remove(0);
    *model = after;
    (say(&outcome), outcome.becomes)
}

const SIX_A: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1];
const SIX_B: [u16; 8] = [0x2001, 0xdb8, 0, 1, 0, 0, 0, 2];
const SIX_OWN: [u16; 8] = [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0xfe];

/// The same world with both families, and rules that let in all of the second one.
fn world_of_six(bypass: bool) -> Model {
    let mut model = world(bypass);
    for (name, ip) in [("a", SIX_A), ("b", SIX_B)] {
        model.vnic(name).unwrap().declared.ips.push(Ipv6Addr::from(ip).into());
    }
    model.group("web").rules.push(rule(Inbound, None, (0, 0), "2001:db8::", 48));
    for (vni, byte) in [(1, 0), (2, 1)] {
        let blocks = vec![block(byte, false), block(byte, true)];
        assert!(model.routes.apply(&Change::Net(Net {
            vni,
            blocks,
            mtu: Some(1280),
            public: false
        })));
    }
    model.changed();
    model
}

fn gateway() -> Mac {
    Mac(gateway_mac("r"))
}

fn there() -> build::Ip {
    build::ethernet(A, gateway()).ipv4(IP_A, IP_B)
}

#[test]
fn a_routed_conversation_is_one_session() {
    let mut model = world(false);
    assert_eq!(
        send(&mut model, "b", &build::ethernet(B, gateway()).ipv4(IP_B, IP_A).udp(80, 9, b"")).0,
        "a: ingress-denied"
    );
    let arrives = build::ethernet(gateway(), B).ipv4(IP_A, IP_B).ttl(63).udp(9, 80, b"?");
    assert_eq!(send(&mut model, "a", &there().udp(9, 80, b"?")), ("> b".into(), Some(arrives)));
    let back = build::ethernet(B, gateway()).ipv4(IP_B, IP_A).udp(80, 9, b"!");
    let arrives = build::ethernet(gateway(), A).ipv4(IP_B, IP_A).ttl(63).udp(80, 9, b"!");
    assert_eq!(send(&mut model, "b", &back), ("> a".into(), Some(arrives)));
    assert_eq!(model.sessions(), 1);
}

#[test]
fn what_a_router_refuses() {
    let model = world(true);
    let said = |frame: &[u8]| send(&mut model.clone(), "a", frame).0;
    let udp = |ip: build::Ip| ip.udp(9, 80, b"?");
    let from_to = |from: [u8; 4], to: [u8; 4]| build::ethernet(A, gateway()).ipv4(from, to);
    assert_eq!(said(&udp(from_to([10, 0, 1, 9], IP_B))), "a: foreign-source");
    assert_eq!(said(&udp(from_to([10, 0, 0, 255], IP_B))), "a: foreign-source");
    assert_eq!(said(&udp(from_to(IP_A, [10, 0, 2, 1]))), "> a, a: no-route");
    assert_eq!(said(&udp(from_to(IP_A, IP_A))), "a: route-back");
    assert_eq!(said(&udp(from_to(IP_A, [10, 0, 1, 3]))), "> a, a: next-hop-unknown");
    assert_eq!(said(&udp(from_to(IP_A, [224, 0, 0, 1]))), "a: route-group");
    assert_eq!(said(&udp(there().ttl(1))), "> a, a: ttl-expired");
    assert_eq!(said(&there().udp(9, 80, &[0; 72])), "> b");
    assert_eq!(said(&there().udp(9, 80, &[0; 73])), "> b");
    assert_eq!(said(&there().dont_fragment().udp(9, 80, &[0; 73])), "> a, a: route-too-big");
    let odd = there().fragment(1, 0, true).payload(17, &[0; 81]);
    assert_eq!(said(&odd), "a: malformed-ip");
    let mut wrong = udp(there());
    wrong[24] ^= 1;
    assert_eq!(said(&wrong), "a: ip-checksum");
    let tagged = build::ethernet(A, gateway()).vlan(0).ipv4(IP_A, IP_B);
    assert_eq!(said(&udp(tagged)), "a: gateway-tagged");
    assert_eq!(said(&build::ethernet(A, gateway()).payload(0x88b5, &[0; 46])), "a: gateway-not-ip");
    let nobody = build::ethernet(A, Mac(gateway_mac("s"))).ipv4(IP_A, IP_B);
    assert_eq!(said(&udp(nobody)), "a: gateway-not-here");
    assert_eq!(said(&udp(build::ethernet(gateway(), B).ipv4(IP_A, IP_B))), "a: router-mac");
    let own = [10, 0, 0, 254];
    assert_eq!(said(&udp(from_to(IP_A, own))), "> a, a: gateway-no-service");
    assert_eq!(said(&from_to(IP_A, own).icmp(3, 3, 0, &[0; 28])), "a: gateway-no-service");
    let later = there().ttl(1).fragment(1, 1480, false).payload(17, &[0; 64]);
    assert_eq!(said(&later), "a: ttl-expired");
}

/// From its own address and in all its networks, whatever hops are left.
#[test]
fn a_router_says_that_it_is_there() {
    for bypass in [true, false] {
        let mut model = world(bypass);
        for own in [[10, 0, 0, 254], [10, 0, 1, 254]] {
            let ask = build::ethernet(A, gateway()).ipv4(IP_A, own).ttl(1).ping(7, 1, b"there?");
            let answer = build::ethernet(gateway(), A).ipv4(own, IP_A).dont_fragment();
            let answer = answer.icmp(0, 0, 7 << 16 | 1, b"there?");
            assert_eq!(send(&mut model, "a", &ask), ("> a".into(), Some(answer)));
        }
        assert_eq!(model.sessions(), 0);
    }
}

#[test]
fn a_router_answers_for_itself_and_for_nobody_else() {
    let mut model = world(true);
    let all = build::ethernet(A, Mac::BROADCAST);
    let answer = build::ethernet(gateway(), A).arp_reply([10, 0, 0, 254], IP_A);
    let asked = send(&mut model, "a", &all.arp_request(IP_A, [10, 0, 0, 254]));
    assert_eq!(asked, ("> a".into(), Some(answer)));
    assert_eq!(send(&mut model, "a", &all.arp_request(IP_A, [10, 0, 1, 254])).0, "a: no-receiver");
    assert_eq!(
        send(&mut model, "a", &all.arp_reply([10, 0, 0, 254], IP_A)).0,
        "a: gateway-claimed"
    );
}

#[test]
fn what_a_router_makes_of_ipv6() {
    let model = world_of_six(true);
    let said = |frame: &[u8]| send(&mut model.clone(), "a", frame).0;
    let udp = |ip: build::Ip| ip.udp(9, 80, b"?");
    let from_to = |from: [u16; 8], to: [u16; 8]| build::ethernet(A, gateway()).ipv6(from, to);
    let there = || from_to(SIX_A, SIX_B);
    let local = [0xfe80, 0, 0, 0, 0, 0, 0, 1];
    let other = |last| [0x2001, 0xdb8, 0, 1, 0, 0, 0, last];
    assert_eq!(said(&udp(there())), "> b");
    assert_eq!(said(&udp(from_to(other(9), SIX_B))), "a: foreign-source");
    assert_eq!(said(&udp(from_to(local, SIX_B))), "a: foreign-source");
    assert_eq!(said(&udp(from_to(SIX_A, [0xfd00; 8]))), "> a, a: no-route");
    assert_eq!(said(&udp(from_to(SIX_A, SIX_A))), "a: route-back");
    assert_eq!(said(&udp(from_to(SIX_A, other(3)))), "> a, a: next-hop-unknown");
    assert_eq!(said(&udp(from_to(SIX_A, local))), "a: route-group");
    assert_eq!(said(&udp(there().ttl(1))), "> a, a: ttl-expired");
    assert_eq!(said(&there().udp(9, 80, &[0; 1232])), "> b");
    assert_eq!(said(&there().udp(9, 80, &[0; 1233])), "> a, a: route-too-big");
    assert_eq!(said(&udp(from_to(SIX_A, SIX_OWN))), "> a, a: gateway-no-service");
    assert_eq!(said(&from_to(SIX_A, SIX_OWN).icmp(1, 4, 0, &[0; 28])), "a: gateway-no-service");
    let via = |kind| udp(there().extension(43, &[kind, 0, 0, 0, 0, 0]));
    assert_eq!(said(&via(0)), "a: source-routed");
    assert_eq!(said(&via(2)), "> b");
    let later = there().ttl(1).fragment(1, 1480, false).payload(17, &[0; 64]);
    assert_eq!(said(&later), "a: ttl-expired");
}

#[test]
fn a_router_is_found_by_ipv6() {
    let solicited = |to: [u16; 8]| {
        build::ethernet(A, Mac([0x33, 0x33, 0xff, 0, 0, 0xfe]))
            .ipv6(to, [0xff02, 0, 0, 0, 0, 1, 0xff00, 0xfe])
    };
    let about =
        |link: Mac, kind| [&Ipv6Addr::from(SIX_OWN).octets()[..], &[kind, 1], &link.0].concat();
    for bypass in [true, false] {
        let mut model = world_of_six(bypass);
        let ask = solicited(SIX_A).ttl(255).icmp(135, 0, 0, &about(A, 1));
        let answer = build::ethernet(gateway(), A).ipv6(SIX_OWN, SIX_A).ttl(255);
        let answer = answer.icmp(136, 0, 0xe000_0000, &about(gateway(), 2));
        assert_eq!(send(&mut model, "a", &ask), ("> a".into(), Some(answer)));
        let claim = solicited(SIX_A).ttl(255).icmp(136, 0, 0, &about(A, 2));
        assert_eq!(send(&mut model, "a", &claim).0, "a: gateway-claimed");
        let far = solicited(SIX_A).ttl(254).icmp(135, 0, 0, &about(A, 1));
        assert!(["a: no-listener", "a: bad-discovery"].contains(&&*send(&mut model, "a", &far).0));
        let ping = build::ethernet(A, gateway()).ipv6(SIX_A, SIX_OWN).ttl(1).ping(7, 1, b"?");
        let pong =
            build::ethernet(gateway(), A).ipv6(SIX_OWN, SIX_A).icmp(129, 0, 7 << 16 | 1, b"?");
        assert_eq!(send(&mut model, "a", &ping), ("> a".into(), Some(pong)));
    }
}

#[test]
fn a_switch_that_is_right_is_found_right() {
    assert_eq!(disagreements(case, |_| {}), 0);
}

#[test]
fn a_switch_that_is_wrong_is_found_wrong() {
    let found = [
        disagreements(case, |model| model.errs(Mistake::AnySource)),
        disagreements(case, |model| model.errs(Mistake::KeepsHops)),
        disagreements(case, |model| model.errs(Mistake::ZoneOfSender)),
        disagreements(case, |model| model.routes.routers.clear()),
        disagreements(case, |model| {
            model.routes.routers.iter_mut().for_each(|router| router.routes.clear())
        }),
        disagreements_among(400, case, |model| model.errs(Mistake::AnyWay)),
    ];
    assert!(found.iter().all(|cases| *cases >= 5), "{found:?}");
}

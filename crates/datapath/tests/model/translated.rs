//! Cases of translations at an external, and the model's own tests of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    cases::rule,
    commands::{Case, Command, Flow, GROUPS, Host, Shot, To, Twist, What},
    generate,
    nat::Rule,
    policy::{Declared, Direction::Inbound, Group},
    random::Random,
    routed,
    router::{Block, Change, Led, Net, ROUTERS, Router},
};

/// Number of the external's network, whose vnics are the outside.
const OUT: u32 = 3;

/// Machines outside.
const WORLD: [Host; 3] = [
    Host(Ipv4Addr::new(198, 51, 100, 9), Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 9)),
    Host(Ipv4Addr::new(198, 51, 100, 10), Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 10)),
    OUTSIDE[0],
];
/// Vnics of the external's network: the router outside, and another machine there.
const OUTSIDE: [Host; 2] = [at_link(1), at_link(2)];

const fn at_link(last: u8) -> Host {
    Host(Ipv4Addr::new(192, 0, 2, last), Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, last as u16))
}

/// Routers by index into [`ROUTERS`], and the networks inside that each joins: one joins both, or
/// each has one.
type Joins = &'static [(usize, &'static [u32])];
const JOINS: [Joins; 3] = [&[(0, &[1, 2])], &[(0, &[1, 2])], &[(0, &[1]), (1, &[2])]];

fn outside_net() -> Net {
    let block = |ip: IpAddr, mask| Block { first: ip, mask, gateway: None };
    let six = Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 0);
    let blocks = vec![block(Ipv4Addr::new(192, 0, 2, 0).into(), 24), block(six.into(), 64)];
    Net { vni: OUT, mtu: None, blocks, public: false }
}

fn inside_net(random: &mut Random, vni: u32) -> Net {
    let byte = vni as u8 - 1;
    let blocks = vec![routed::block(byte, false), routed::block(byte, true)];
    Net { vni, mtu: None, blocks, public: random.percent(12) }
}

/// A router of networks inside and of the external, by whose gateway all else is.
fn router(at: usize, inside: &[u32]) -> Change {
    let joins = inside.iter().chain(&[OUT]).map(|vni| (*vni, Vec::new())).collect();
    let Host(four, six) = OUTSIDE[0];
    let by = |to: IpAddr, via: IpAddr| Led { to, mask: 0, via: vec![via] };
    let routes = vec![
        by(Ipv4Addr::UNSPECIFIED.into(), four.into()),
        by(Ipv6Addr::UNSPECIFIED.into(), six.into()),
    ];
    Change::Router(Router { name: ROUTERS[at], joins, routes })
}

/// Machines inside of a router, now or at some time.
fn machines(vnics: &[Declared], inside: &[u32]) -> Vec<Host> {
    let of = vnics.iter().filter(|vnic| inside.contains(&vnic.vni));
    let own = |vnic: &Declared| {
        let byte = vnic.vni as u8 - 1;
        let last = vnic.mac[5] - 0xa + 1;
        Host(
            Ipv4Addr::new(10, 0, byte, last),
            Ipv6Addr::new(0x2001, 0xdb8, 0, byte.into(), 0, 0, 0, last.into()),
        )
    };
    of.map(own).collect()
}

/// Ports that flows have inside.
const PORTS: [u16; 4] = [4000, 4000, 4001, 80];

/// Rules of a router: some of all kinds, in most cases an address that machines share.
fn rules(random: &mut Random, at: usize, machines: &[Host]) -> Vec<Rule> {
    let base = 10 * at as u8;
    let mut rules = Vec::new();
    if random.percent(75) {
        rules.push(Rule::Shared(at_link(11 + base).0));
    }
    if random.percent(15) {
        rules.push(Rule::Shared(at_link(12 + base).0));
    }
    for n in 0..2 {
        let (outside, inside) = (at_link(80 + base + n), random.pick(machines));
        if random.percent(30) {
            rules.push(Rule::Floating(outside.0.into(), inside.0.into()));
        }
        if random.percent(30) {
            rules.push(Rule::Floating(outside.1.into(), inside.1.into()));
        }
    }
    for _ in 0..random.below(4) {
        let to = (random.pick(machines).0, random.pick(&PORTS));
        let outside = (
            random.pick(&[at_link(11 + base).0, at_link(13 + base).0]),
            random.pick(&[4000, 4000, 4001, 80, 53]),
        );
        rules.push(Rule::Forward(random.pick(&[6, 17]), outside, to));
    }
    // Each that contradicts one before is left out.
    let mut fit: Vec<Rule> = Vec::new();
    for rule in rules {
        fit.push(rule);
        if !crate::nat::may_be(&fit) {
            fit.pop();
        }
    }
    fit
}

/// A conversation of a machine inside with one outside, in most cases.
fn flow(random: &mut Random, vnics: &[Declared], joins: Joins) -> Flow {
    let inside: Vec<usize> = (0..vnics.len()).filter(|at| vnics[*at].vni != OUT).collect();
    let outside: Vec<usize> = (0..vnics.len()).filter(|at| vnics[*at].vni == OUT).collect();
    let (a, x) = (random.pick(&inside), random.pick(&outside));
    if random.percent(12) {
        let mut flow = generate::flow(random, vnics);
        let both = flow.vnics.map(|vnic| vnics[vnic].vni);
        flow.vlan = None;
        if both[0] != both[1] {
            flow.via = Some(0);
        }
        return flow;
    }
    let (at, joined) = *joins.iter().find(|(_, nets)| nets.contains(&vnics[a].vni)).unwrap();
    let is_v4 = random.percent(85);
    let own: Vec<IpAddr> =
        vnics[a].ips.iter().copied().filter(|ip| ip.is_ipv4() == is_v4).collect();
    let all = machines(vnics, joined);
    let like = |host: Host| if is_v4 { IpAddr::from(host.0) } else { host.1.into() };
    let ip = if own.is_empty() || random.percent(3) {
        like(random.pick(&all))
    } else {
        random.pick(&own)
    };
    let world = if vnics[x].ips.contains(&like(OUTSIDE[0])) {
        like(random.pick(&WORLD))
    } else {
        like(OUTSIDE[1])
    };
    let ports = [random.pick(&PORTS), random.pick(&[80, 53, 4000])];
    let base = 10 * at as u8;
    let n = random.below(2) as u8;
    let to = match random.below(10) {
        0..4 => like(at_link(80 + base + n)),
        4..6 => like(at_link(11 + base)),
        6 => like(at_link(13 + base)),
        7 => like(at_link(12 + base)),
        _ => ip,
    };
    Flow {
        vnics: [a, x],
        ips: [ip, world],
        ports,
        vlan: None,
        stations: [None, random.percent(5).then_some(0)],
        via: Some(if random.percent(98) { at } else { random.below(2) }),
        outside: Some((to, random.pick(&[ports[0], ports[0], 4000, 53]))),
    }
}

pub fn case(seed: u64) -> Case {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x6e61_7421);
    let joins = random.pick(&JOINS);
    let count = 4 + random.below(3);
    let mut vnics: Vec<Declared> =
        (0..count).map(|i| generate::vnic(&mut random, i, OUT as usize)).collect();
    for (i, vnic) in vnics.iter_mut().enumerate() {
        vnic.shared_ip &= random.percent(10);
        move_in(vnic.vni, &mut vnic.ips, i / OUT as usize);
        if vnic.vni == OUT {
            (vnic.bypass, vnic.shared_ip, vnic.groups) = (true, false, vec![]);
            vnic.forwards = random.percent(90);
        }
    }
    let outbound = random.pick(&[0, 0, 0, 10]);
    let mut groups: Vec<Group> = Vec::new();
    for name in GROUPS {
        let mut group = generate::group(&mut random, name, outbound);
        if random.percent(40) {
            let protocol = random.pick(&[None, Some(6), Some(17)]);
            let (block, mask) = random.pick(&[("0.0.0.0", 0), ("198.51.100.0", 24)]);
            group.rules.push(rule(Inbound, protocol, (0, 65535), block, mask));
        }
        if random.percent(30) {
            group.members.push(WORLD[0].0.into());
        }
        groups.push(group);
    }
    let mut routes: Vec<Change> =
        [1, 2].map(|vni| Change::Net(inside_net(&mut random, vni))).to_vec();
    routes.push(Change::External(outside_net()));
    routes.extend(joins.iter().map(|(at, inside)| router(*at, inside)));
    for (at, inside) in joins {
        let rules = rules(&mut random, *at, &machines(&vnics, inside));
        routes.push(Change::Nat(ROUTERS[*at], OUT, rules));
    }
    let mut now: Vec<Change> = routes.clone();
    let flows: Vec<Flow> = (0..8).map(|_| flow(&mut random, &vnics, joins)).collect();
    let mut commands = generate::commands(&mut random, &vnics, &flows, 20, |random| {
        vec![match random.below(100) {
            0..45 => Command::Route(translate(random, &vnics, joins, &mut now)),
            45..50 => {
                let (at, inside) = random.pick(joins);
                Command::Route(router(at, inside))
            }
            50..55 => {
                let vni = 1 + random.below(2) as u32;
                Command::Route(Change::Net(inside_net(random, vni)))
            }
            55..60 => Command::Pass(random.pick(&[240, 296, 304, 7400, 7500])),
            _ => changed(random, &vnics, outbound),
        }]
    });
    for command in &mut commands {
        if let Command::Send(shots) = command {
            shots.iter_mut().for_each(|shot| twist(&mut random, shot, &flows));
        }
    }
    if random.percent(40) {
        // No guest attached a moment ago: connections need a beginning.
        commands.insert(0, Command::Pass(130));
    }
    let placed = vec![0; vnics.len()];
    Case { hosts: 1, vnics, placed, groups, routes, flows, commands }
}

/// Rules come, go, or are others: all of a router, or one.
fn translate(random: &mut Random, vnics: &[Declared], joins: Joins, now: &mut [Change]) -> Change {
    let (at, inside) = random.pick(joins);
    let (at, machines) = (at, machines(vnics, inside));
    let name = ROUTERS[at];
    let is_it = |change: &&mut Change| matches!(change, Change::Nat(of, ..) if *of == name);
    let Some(Change::Nat(_, _, before)) = now.iter_mut().find(is_it) else { unreachable!() };
    let mut after = before.clone();
    match random.below(8) {
        0 => after = rules(random, at, &machines),
        1..4 if !after.is_empty() => _ = after.remove(random.below(after.len())),
        4 => {
            // An address moves to another machine.
            if let Some(Rule::Floating(_, inside)) =
                after.iter_mut().find(|rule| matches!(rule, Rule::Floating(..)))
            {
                *inside = random.pick(&machines).like(*inside);
            }
        }
        _ => after.extend(rules(random, at, &machines)),
    }
    let mut fit: Vec<Rule> = Vec::new();
    for rule in after {
        fit.push(rule);
        if !crate::nat::may_be(&fit) {
            fit.pop();
        }
    }
    before.clone_from(&fit);
    Change::Nat(name, OUT, fit)
}

/// Moves addresses of the first network to where a vnic is; outside are those of two machines.
fn move_in(vni: u32, ips: &mut Vec<IpAddr>, within: usize) {
    if vni == OUT {
        let Host(four, six) = OUTSIDE[within % 2];
        *ips = vec![four.into(), six.into()];
        return;
    }
    for ip in ips {
        match ip {
            IpAddr::V4(ip) => {
                let [.., last] = ip.octets();
                *ip = Ipv4Addr::new(10, 0, vni as u8 - 1, last);
            }
            IpAddr::V6(ip) => {
                let last = ip.segments()[7];
                *ip = Ipv6Addr::new(0x2001, 0xdb8, 0, vni as u16 - 1, 0, 0, 0, last);
            }
        }
    }
}

/// A change of groups and vnics. Of those outside little changes.
fn changed(random: &mut Random, vnics: &[Declared], outbound: usize) -> Command {
    let change = generate::change(random, vnics, outbound);
    match change {
        Command::Addresses(vnic, mut ips) => {
            move_in(vnics[vnic].vni, &mut ips, vnic / OUT as usize);
            Command::Addresses(vnic, ips)
        }
        Command::Shared(vnic, on) if vnics[vnic].vni == OUT => Command::Forwards(vnic, on),
        Command::Remove(vnic) if vnics[vnic].vni == OUT => Command::Insert(vnic),
        Command::Groups(vnic, _) if vnics[vnic].vni == OUT => Command::Insert(vnic),
        Command::AddMember(name, ip) if ip.is_ipv4() && random.percent(30) => {
            Command::AddMember(name, WORLD[0].0.into())
        }
        other => other,
    }
}

/// Makes something wrong with some frames, and has no fragments of IPv4 cross the outside.
fn twist(random: &mut Random, shot: &mut Shot, flows: &[Flow]) {
    if random.percent(2) {
        shot.to = To::Router(random.below(ROUTERS.len()));
    }
    if shot.twist == Twist::None && random.percent(6) {
        let known = random.pick(&[1, 7, 11, 12, 13, 21, 80, 81, 90]);
        shot.twist = match random.below(8) {
            0..3 => Twist::Towards(at_link(known)),
            3 => Twist::Towards(Host(
                Ipv4Addr::new(10, 0, random.below(2) as u8, 1 + random.below(2) as u8),
                Ipv6Addr::new(0x2001, 0xdb8, 0, random.below(2) as u16, 0, 0, 0, 1),
            )),
            4 => Twist::From(at_link(known)),
            5 => Twist::From(Host(
                Ipv4Addr::new(10, 0, random.below(2) as u8, 1 + random.below(2) as u8),
                Ipv6Addr::new(0x2001, 0xdb8, 0, random.below(2) as u16, 0, 0, 0, 1),
            )),
            _ => Twist::Hops(random.pick(&[0, 1, 2, 255])),
        };
    }
    if matches!(shot.what, What::Fragment { .. }) && flows[shot.flow].ips[0].is_ipv4() {
        shot.what = What::Udp(20);
    }
}

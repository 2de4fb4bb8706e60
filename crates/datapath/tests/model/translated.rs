//! Cases of translations at an external, and the model's own tests of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use butterfly_packet::{
    Mac,
    build::{self, Ip, Tcp},
};

use crate::{
    cases::{disagreements, rule, vnic},
    commands::{Case, Command, Flow, GROUPS, Host, Shot, Step, To, Twist, What},
    generate,
    nat::Rule,
    policy::{self, Declared, Direction::Inbound, Group, Peer},
    random::Random,
    routed::{self, send},
    router::{Block, Change, Led, Net, ROUTERS, Router, gateway_mac},
    switch::{Mistake, Model},
    tcp::{ACK, FIN, RST, SYN},
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

/// A network inside, which the outside knows in so many of a hundred cases.
fn inside_net(random: &mut Random, vni: u32, public: usize) -> Net {
    let byte = vni as u8 - 1;
    let blocks = vec![routed::block(byte, false), routed::block(byte, true)];
    Net { vni, mtu: None, blocks, public: random.percent(public) }
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
        if random.percent(40) {
            // Nobody outside is a member, whatever address it writes.
            group.members.push(WORLD[0].0.into());
            let member = rule(Inbound, None, (0, 65535), "0.0.0.0", 0);
            group.rules.push(policy::Rule { peer: Peer::Group(name), ..member });
        }
        groups.push(group);
    }
    let mut routes: Vec<Change> =
        [1, 2].map(|vni| Change::Net(inside_net(&mut random, vni, 12))).to_vec();
    routes.push(Change::External(outside_net()));
    routes.extend(joins.iter().map(|(at, inside)| router(*at, inside)));
    for (at, inside) in joins {
        let rules = rules(&mut random, *at, &machines(&vnics, inside));
        routes.push(Change::Nat(ROUTERS[*at], OUT, rules));
    }
    let mut now: Vec<Change> = routes.clone();
    let flows: Vec<Flow> = (0..8).map(|_| flow(&mut random, &vnics, joins)).collect();
    let mut commands = generate::commands(&mut random, &vnics, &flows, 20, |random| {
        if random.percent(15) {
            return ask(random, &flows);
        }
        if random.percent(10) {
            return silent(random, &flows);
        }
        if random.percent(15) {
            let change = match random.percent(50) {
                true => translate(random, &vnics, joins, &mut now),
                false => {
                    let vni = 1 + random.below(2) as u32;
                    Change::Net(inside_net(random, vni, 50))
                }
            };
            return amid(random, &flows, Command::Route(change));
        }
        vec![match random.below(100) {
            0..45 => Command::Route(translate(random, &vnics, joins, &mut now)),
            45..50 => {
                let (at, inside) = random.pick(joins);
                Command::Route(router(at, inside))
            }
            50..58 => {
                let vni = 1 + random.below(2) as u32;
                Command::Route(Change::Net(inside_net(random, vni, 50)))
            }
            58..62 => Command::Pass(random.pick(&[240, 296, 304, 7400, 7500])),
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

/// A connection that is silent for a while, ended or not.
fn silent(random: &mut Random, flows: &[Flow]) -> Vec<Command> {
    let flow = random.below(flows.len());
    let shot = |(back, step)| {
        let (what, to) = (What::Tcp(step), To::Receiver);
        Shot { flow, back, what, to, twist: Twist::None }
    };
    let says = |step| Command::Send(vec![shot(step)]);
    let mut steps = vec![(false, Step::Syn), (true, Step::SynAck), (false, Step::Ack)];
    steps.extend(random.pick(&[None, Some((true, Step::Rst)), Some((false, Step::Fin))]));
    let mut commands: Vec<Command> = steps.into_iter().map(says).collect();
    if random.percent(30) {
        // One ends, and the next one begins at once.
        commands.push(Command::Send([Step::Rst, Step::Syn].map(|step| shot((false, step))).into()));
        commands.extend([(true, Step::SynAck), (false, Step::Ack)].map(says));
    }
    commands.push(Command::Pass(random.pick(&[130, 270, 600, 7480])));
    commands.push(says((true, Step::Ack)));
    commands
}

/// A change while both ends of a conversation speak.
fn amid(random: &mut Random, flows: &[Flow], change: Command) -> Vec<Command> {
    let flow = random.below(flows.len());
    let what = random.pick(&[What::Udp(4), What::Udp(4), What::Tcp(Step::Ack)]);
    let says = |back| {
        let (what, to) = (what.clone(), To::Receiver);
        Command::Send(vec![Shot { flow, back, what, to, twist: Twist::None }])
    };
    vec![says(false), says(true), change, says(true), says(false), says(true)]
}

/// A machine asks for an echo, and somebody outside does by the same identifier.
fn ask(random: &mut Random, flows: &[Flow]) -> Vec<Command> {
    let of: Vec<usize> = (0..flows.len()).filter(|at| flows[*at].outside.is_some()).collect();
    let Some(flow) = (!of.is_empty()).then(|| random.pick(&of)) else { return vec![] };
    let shot = |back| Shot {
        flow,
        back,
        what: What::Echo { request: true, id: 2 },
        to: To::Receiver,
        twist: Twist::None,
    };
    [false, true].map(|back| Command::Send(vec![shot(back)])).to_vec()
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
    if let What::Error { far, .. } = &mut shot.what
        && !shot.back
    {
        *far = random.percent(40);
    }
    if matches!(shot.what, What::Error { .. }) && shot.back && random.percent(20) {
        // An error that finds another machine than the one of which it tells.
        let known = random.pick(&[11, 13, 80, 81]);
        shot.twist = Twist::Towards(at_link(known));
    }
    if matches!(shot.what, What::Fragment { .. }) && flows[shot.flow].ips[0].is_ipv4() {
        shot.what = What::Udp(20);
    }
}

const A: Mac = Mac([2, 0, 0, 0, 0, 0xa]);
const B: Mac = Mac([2, 0, 0, 0, 0, 0xb]);
const X: Mac = Mac([2, 0, 0, 0, 0, 0xe]);
const IP_A: [u8; 4] = [10, 0, 0, 1];
const IP_B: [u8; 4] = [10, 0, 0, 2];
const THERE: [u8; 4] = [198, 51, 100, 9];
/// Addresses outside: one with forwards that is shared, and a floating one.
const SHARED: [u8; 4] = [192, 0, 2, 11];
const FLOATS: [u8; 4] = [192, 0, 2, 80];

/// a and b in network 1, which bypass filters or not, and x outside, by the router "r".
fn world(bypass: bool, rules: &[Rule]) -> Model {
    let mut model = Model::new();
    let machine = |mac, n, vni, ip: [u8; 4]| Declared {
        vni,
        bypass,
        ips: vec![ip.into()],
        ..vnic(mac, n, &["web"])
    };
    model.insert("a", machine(A, 1, 1, IP_A));
    model.insert("b", machine(B, 2, 1, IP_B));
    let outside = machine(X, 3, OUT, at_link(1).0.octets());
    model.insert("c", Declared { bypass: true, forwards: true, ..outside });
    model.groups.push(Group { name: "web", members: vec![], rules: vec![] });
    let net = Net { vni: 1, blocks: vec![routed::block(0, false)], mtu: None, public: false };
    for change in [Change::Net(net), Change::External(outside_net()), router(0, &[1])] {
        assert!(model.routes.apply(&change));
    }
    translates(&mut model, rules);
    model.pass(1000);
    model
}

fn translates(model: &mut Model, rules: &[Rule]) {
    let mut routes = model.routes.clone();
    assert!(routes.apply(&Change::Nat("r", OUT, rules.to_vec())));
    model.declare(&routes);
}

fn gateway() -> Mac {
    Mac(gateway_mac("r"))
}

fn out(from: Mac, ip: [u8; 4]) -> Ip {
    build::ethernet(from, gateway()).ipv4(ip, THERE)
}

fn back(to: [u8; 4]) -> Ip {
    build::ethernet(X, gateway()).ipv4(THERE, to)
}

/// The packet as the router sends it on.
fn left(from: [u8; 4]) -> Ip {
    build::ethernet(gateway(), X).ipv4(from, THERE).ttl(63)
}

fn came(to: Mac, ip: [u8; 4]) -> Ip {
    build::ethernet(gateway(), to).ipv4(THERE, ip).ttl(63)
}

fn passes(to: &str, frame: Vec<u8>) -> (String, Option<Vec<u8>>) {
    (format!("> {to}"), Some(frame))
}

#[test]
fn machines_that_share_an_address_have_ports_of_their_own() {
    let mut model = world(true, &[Rule::Shared(SHARED.into())]);
    let udp = |ip: Ip, from: u16| ip.udp(from, 53, b"?");
    let first = send(&mut model, "a", &udp(out(A, IP_A), 4000));
    assert_eq!(first, passes("c", udp(left(SHARED), 4000)));
    // The port is a's. Of UDP another one has the same parity, and none is below 1,024.
    let second = send(&mut model, "b", &udp(out(B, IP_B), 4000));
    assert_eq!(second, passes("c", udp(left(SHARED), 1024)));
    assert_eq!(send(&mut model, "b", &udp(out(B, IP_B), 4000)), second);
    let third = send(&mut model, "b", &udp(out(B, IP_B), 53));
    assert_eq!(third, passes("c", udp(left(SHARED), 1025)));
    let answer = send(&mut model, "c", &back(SHARED).udp(53, 1024, b"!"));
    assert_eq!(answer, passes("b", came(B, IP_B).udp(53, 4000, b"!")));
    assert_eq!(send(&mut model, "c", &back(SHARED).udp(53, 1026, b"!")).0, "c: nat-no-mapping");
    // An identifier is one of who asks.
    let asks = send(&mut model, "a", &out(A, IP_A).ping(7, 1, b"?"));
    assert_eq!(asks, passes("c", left(SHARED).ping(1024, 1, b"?")));
    assert_eq!(send(&mut model, "c", &back(SHARED).ping(1024, 1, b"?")).0, "c: nat-no-mapping");
    let reply = send(&mut model, "c", &back(SHARED).icmp(0, 0, 1024 << 16 | 1, b"!"));
    assert_eq!(reply, passes("a", came(A, IP_A).icmp(0, 0, 7 << 16 | 1, b"!")));
    assert_eq!(send(&mut model, "a", &out(A, IP_A).payload(50, &[0; 12])).0, "a: nat-protocol");
    model.pass(299);
    assert_eq!(send(&mut model, "c", &back(SHARED).udp(53, 1024, b"!")), answer);
    model.pass(18);
    assert_eq!(send(&mut model, "c", &back(SHARED).udp(53, 1024, b"!")).0, "c: nat-no-mapping");
}

/// Answers prolong nothing, and who goes takes its ports along.
#[test]
fn a_port_goes_with_its_time_its_vnic_or_its_rule() {
    let rules = [Rule::Shared(SHARED.into())];
    let start = || {
        let mut model = world(true, &rules);
        send(&mut model, "a", &out(A, IP_A).udp(4000, 53, b"?"));
        model
    };
    let comes = |model: &mut Model| send(model, "c", &back(SHARED).udp(53, 4000, b"!")).0;
    let mut model = start();
    model.remove("a");
    assert_eq!(comes(&mut model), "c: nat-no-mapping");
    let mut model = start();
    translates(&mut model, &[]);
    assert_eq!(comes(&mut model), "c: no-route");
    assert_eq!(send(&mut model, "a", &out(A, IP_A).udp(1, 2, b"")).0, "a: nat-no-rule");
    model.pass(1);
    translates(&mut model, &rules);
    assert_eq!(comes(&mut model), "c: nat-no-mapping");
    // Somebody with an address of its own has no other one.
    let mut model = start();
    let floats = Rule::Floating(Ipv4Addr::from(FLOATS).into(), Ipv4Addr::from(IP_A).into());
    translates(&mut model, &[rules[0], floats]);
    assert_eq!(comes(&mut model), "c: nat-no-mapping");
    translates(&mut model, &rules);
    assert_eq!(comes(&mut model), "> a");
    // Nor does it get back a port that was another one's.
    let forward = Rule::Forward(17, (SHARED.into(), 4000), (IP_B.into(), 53));
    translates(&mut model, &[rules[0], forward]);
    assert_eq!(comes(&mut model), "> b");
    translates(&mut model, &rules);
    assert_eq!(comes(&mut model), "c: nat-no-mapping");
}

/// Of TCP the machine says how long a port lasts.
#[test]
fn a_port_of_tcp_lasts_as_its_machine_says() {
    let says = |model: &mut Model, flags, payload: &[u8]| {
        let tcp = out(A, IP_A).tcp(&Tcp::new(4000, 80, flags), payload);
        assert_eq!(send(model, "a", &tcp).0, "> c");
    };
    let lasts = |said: &[(u8, &[u8])], seconds| {
        let mut model = world(true, &[Rule::Shared(SHARED.into())]);
        said.iter().for_each(|(flags, payload)| says(&mut model, *flags, payload));
        model.pass(seconds);
        let tcp = back(SHARED).tcp(&Tcp::new(80, 4000, ACK), b"");
        send(&mut model, "c", &tcp).0 == "> a"
    };
    let acked: &[(u8, &[u8])] = &[(SYN, b""), (ACK, b"")];
    let ended: &[(u8, &[u8])] = &[(SYN, b""), (ACK, b""), (FIN, b""), (ACK, b"")];
    let again: &[(u8, &[u8])] = &[(SYN, b""), (ACK, b""), (RST, b""), (ACK, b"more")];
    for (said, last) in [(&acked[..1], 240), (acked, 7440), (ended, 240), (again, 7440)] {
        assert!(lasts(said, last), "{said:?}");
        assert!(!lasts(said, last + 17), "{said:?}");
    }
}

#[test]
fn addresses_and_ports_that_are_declared_are_one_machines() {
    let rules = [
        Rule::Floating(Ipv4Addr::from(FLOATS).into(), Ipv4Addr::from(IP_A).into()),
        Rule::Forward(6, (SHARED.into(), 80), (IP_B.into(), 8080)),
    ];
    let mut model = world(true, &rules);
    let sctp = |ip: Ip| ip.sctp((1, 2), 7, 1, &[0; 16]);
    assert_eq!(send(&mut model, "a", &sctp(out(A, IP_A))), passes("c", sctp(left(FLOATS))));
    assert_eq!(send(&mut model, "c", &sctp(back(FLOATS))), passes("a", sctp(came(A, IP_A))));
    let tcp = |ip: Ip, from, to| ip.tcp(&Tcp::new(from, to, SYN), b"");
    let sent = send(&mut model, "c", &tcp(back(SHARED), 9, 80));
    assert_eq!(sent, passes("b", tcp(came(B, IP_B), 9, 8080)));
    let sent = send(&mut model, "b", &tcp(out(B, IP_B), 8080, 9));
    assert_eq!(sent, passes("c", tcp(left(SHARED), 80, 9)));
    assert_eq!(send(&mut model, "c", &tcp(back(SHARED), 9, 81)).0, "c: nat-no-mapping");
    assert_eq!(send(&mut model, "b", &tcp(out(B, IP_B), 8081, 9)).0, "b: nat-no-rule");
    assert_eq!(send(&mut model, "c", &tcp(back(IP_A), 9, 80)).0, "c: no-route");
    let turns = build::ethernet(B, gateway()).ipv4(IP_B, FLOATS).udp(1, 2, b"");
    assert_eq!(send(&mut model, "b", &turns).0, "b: nat-hairpin");
    for (source, why) in [(IP_B, "inside-source"), (FLOATS, "foreign-source")] {
        let forged = build::ethernet(X, gateway()).ipv4(source, FLOATS).udp(1, 2, b"");
        assert_eq!(send(&mut model, "c", &forged).0, format!("c: {why}"));
    }
    // An error finds the machine by what it quotes, which is translated, too.
    let quoted = |from: [u8; 4], port| {
        let quoted = build::ethernet(X, X).ipv4(from, THERE).udp(port, 53, b"?");
        quoted[14..].to_vec()
    };
    let error = |ip: Ip, quoted: Vec<u8>| ip.icmp(3, 3, 0, &quoted);
    let told = send(&mut model, "c", &error(back(FLOATS), quoted(FLOATS, 9)));
    assert_eq!(told, passes("a", error(came(A, IP_A), quoted(IP_A, 9))));
    let other = error(back(FLOATS), quoted(SHARED, 9));
    assert_eq!(send(&mut model, "c", &other).0, "c: nat-quote");
    let answer = build::ethernet(X, X).ipv4(THERE, IP_A).udp(53, 9, b"!")[14..].to_vec();
    let outside = build::ethernet(X, X).ipv4(THERE, FLOATS).udp(53, 9, b"!")[14..].to_vec();
    let told = send(&mut model, "a", &error(out(A, IP_A), answer));
    assert_eq!(told, passes("c", error(left(FLOATS), outside)));
}

/// Groups and sessions know addresses inside alone, and no member is outside.
#[test]
fn filters_see_what_is_inside() {
    let mut model = world(false, &[Rule::Forward(17, (SHARED.into(), 53), (IP_A.into(), 1053))]);
    let question = back(SHARED).udp(9, 53, b"?");
    assert_eq!(send(&mut model, "c", &question).0, "a: ingress-denied");
    let member = policy::Rule {
        peer: policy::Peer::Group("web"),
        ..rule(Inbound, Some(17), (1053, 1053), "0.0.0.0", 0)
    };
    model.group("web").members.push(Ipv4Addr::from(THERE).into());
    model.group("web").rules.push(member);
    model.changed();
    assert_eq!(send(&mut model, "c", &question).0, "a: ingress-denied");
    model.group("web").rules.push(rule(Inbound, Some(17), (1053, 1053), "198.51.100.9", 32));
    model.changed();
    assert_eq!(send(&mut model, "c", &question).0, "> a");
    let (session, sure) = model.routed_sessions().remove(0);
    let ends = [("c", Ipv4Addr::from(THERE).into(), 9), ("a", Ipv4Addr::from(IP_A).into(), 1053)];
    assert_eq!((session.ends, sure), (ends, true));
    let answer = send(&mut model, "a", &out(A, IP_A).udp(1053, 9, b"!"));
    assert_eq!(answer, passes("c", left(SHARED).udp(53, 9, b"!")));
}

#[test]
fn translations_that_are_right_are_found_right() {
    assert_eq!(disagreements(case, |_| {}), 0);
}

#[test]
fn translations_that_are_wrong_are_found_wrong() {
    let found = [
        disagreements(case, |model| model.errs(Mistake::PortsChange)),
        disagreements(case, |model| model.errs(Mistake::EchoesComeIn)),
        disagreements(case, |model| model.errs(Mistake::QuotesStay)),
        disagreements(case, |model| model.errs(Mistake::UntranslatedLeave)),
        disagreements(case, |model| model.errs(Mistake::StrangersAreMembers)),
        disagreements(case, |model| model.mappings.clear()),
        disagreements(case, |model| without(model, |rule| matches!(rule, Rule::Floating(..)))),
        disagreements(case, |model| without(model, |rule| matches!(rule, Rule::Forward(..)))),
        disagreements(case, |model| without(model, |rule| matches!(rule, Rule::Shared(..)))),
    ];
    assert!(found.iter().all(|cases| *cases >= 3), "{found:?}");
}

/// A mistake to be found: rules of a kind are not there.
fn without(model: &mut Model, kind: fn(&Rule) -> bool) {
    model.routes.nats.iter_mut().for_each(|(.., rules)| rules.retain(|rule| !kind(rule)));
}

//! Random cases: orderly conversations among disorderly ones, while policy changes.

use std::{collections::VecDeque, net::IpAddr};

use crate::{
    claims::Bound,
    commands::{
        Case, Command, Defect, Flow, GROUPS, NAMES, Part, Shot, Step, To, Twist, What, made_up, v4,
        v6,
    },
    policy::{Declared, Direction, Group, Peer, Rule},
    random::Random,
};

/// Commands of a case.
const LENGTH: usize = 160;

pub fn case(seed: u64) -> Case {
    let mut random = Random(seed);
    let count = 3 + random.below(4);
    let networks = 1 + random.below(2);
    let vnics: Vec<Declared> = (0..count).map(|i| vnic(&mut random, i, networks)).collect();
    // The first one shuts out all else: in some cases there is none, in some many.
    let outbound = random.pick(&[0, 0, 4, 25]);
    let mut groups = Vec::new();
    for name in GROUPS {
        if random.percent(85) {
            groups.push(group(&mut random, name, outbound));
        }
    }
    let flows: Vec<Flow> = (0..6).map(|_| flow(&mut random, &vnics)).collect();
    let commands =
        commands(&mut random, &vnics, &flows, 0, |random| vec![change(random, &vnics, outbound)]);
    let placed = vec![0; vnics.len()];
    Case { hosts: 1, vnics, placed, groups, routes: vec![], flows, commands }
}

/// Makes a case in the same worlds, spread over two hosts. Vnics go from one to the other, and an
/// operator may configure the hosts differently.
pub fn case_of_two(seed: u64) -> Case {
    let mut random = Random(!seed);
    let count = 3 + random.below(4);
    let networks = 1 + usize::from(random.percent(20));
    let vnics: Vec<Declared> = (0..count).map(|i| vnic(&mut random, i, networks)).collect();
    let placed: Vec<usize> = (0..count).map(|_| random.below(2)).collect();
    let outbound = random.pick(&[0, 0, 0, 4]);
    let mut groups = Vec::new();
    for name in GROUPS {
        if random.percent(90) {
            groups.push(group(&mut random, name, outbound));
        }
    }
    let flows: Vec<Flow> = (0..10).map(|_| flow(&mut random, &vnics)).collect();
    let mut now = placed.clone();
    let mut commands =
        commands(&mut random, &vnics, &flows, 40, |random| match random.below(100) {
            0..40 => moved(random, &mut now, &flows),
            40..55 => vec![Command::At(random.below(2), Box::new(change_group(random, outbound)))],
            55..70 => vec![claim(random, &vnics, &flows)],
            // A day goes by: everything may begin again.
            70..80 => vec![Command::Pass(86_500)],
            _ => vec![change(random, &vnics, outbound)],
        });
    if random.percent(60) {
        // No guest attached a moment ago: connections need a beginning.
        commands.insert(0, Command::Pass(130));
    }
    Case { hosts: 2, vnics, placed, groups, routes: vec![], flows, commands }
}

/// A vnic goes to the other host, where in most cases it says at once that it is there.
pub fn moved(random: &mut Random, placed: &mut [usize], flows: &[Flow]) -> Vec<Command> {
    let vnic = random.below(placed.len());
    placed[vnic] = 1 - placed[vnic];
    let mut commands = vec![Command::Move(vnic, placed[vnic])];
    let speaks = |flow: &Flow| {
        flow.vnics.iter().position(|end| *end == vnic).filter(|side| flow.stations[*side].is_none())
    };
    if random.percent(75)
        && let Some((flow, side)) =
            flows.iter().enumerate().find_map(|(index, flow)| Some((index, speaks(flow)?)))
    {
        let (what, to) = match flows[flow].ips[side] {
            IpAddr::V4(_) => (What::Arp { reply: false }, To::Broadcast),
            IpAddr::V6(_) => (What::Discovery { kind: 136, defect: Defect::None }, To::Multicast),
        };
        commands.push(Command::Send(vec![Shot {
            flow,
            back: side == 1,
            what,
            to,
            twist: Twist::None,
        }]));
    }
    commands
}

/// Makes a claim to another vnic's address, or a frame in a conversation of other vnics.
fn claim(random: &mut Random, vnics: &[Declared], flows: &[Flow]) -> Command {
    let vnic = random.below(vnics.len());
    let (what, to, twist) = if random.percent(40) {
        let what = random.pick(&[
            What::Arp { reply: true },
            What::Udp(4),
            What::Tcp(Step::Data),
            What::Type(0x88b5),
        ]);
        (what, random.pick(&[To::Receiver, To::Broadcast]), Twist::SourceMac(vnic))
    } else {
        (
            What::Tcp(random.pick(&[Step::Ack, Step::Ack, Step::Data])),
            To::Receiver,
            Twist::Posing(vnic),
        )
    };
    Command::Send(vec![Shot {
        flow: random.below(flows.len()),
        back: random.percent(50),
        what,
        to,
        twist,
    }])
}

pub fn vnic(random: &mut Random, index: usize, networks: usize) -> Declared {
    // Networks repeat each other's addresses.
    let (within, vni) = (index / networks, 1 + (index % networks) as u32);
    let mut declared = Declared {
        mac: [2, 0, 0, 0, 0, 0xa + within as u8],
        vni,
        bypass: random.percent(30),
        ip_anti_spoof: random.percent(50),
        forwards: random.percent(20),
        shared_ip: random.percent(20),
        router: random.percent(30),
        ips: Vec::new(),
        groups: Vec::new(),
        bound: Bound::default(),
    };
    declared.ips = addresses(random, within);
    declared.groups = groups(random);
    declared
}

/// Those that a vnic has, and now and then one that another has too.
fn addresses(random: &mut Random, within: usize) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    for make in [v4, v6] {
        if random.percent(95) {
            ips.push(make(within % 4));
        }
        if random.percent(15) {
            ips.push(make(random.below(5)));
        }
    }
    ips.dedup();
    ips
}

fn groups(random: &mut Random) -> Vec<&'static str> {
    GROUPS.iter().copied().filter(|_| random.percent(55)).collect()
}

pub fn group(random: &mut Random, name: &'static str, outbound: usize) -> Group {
    let mut members = Vec::new();
    let mut rules: Vec<Rule> = Vec::new();
    for n in 0..5 {
        if random.percent(40) {
            members.push(v4(n));
        }
        if random.percent(40) {
            members.push(v6(n));
        }
    }
    for _ in 0..random.below(7) {
        let rule = rule(random, outbound);
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    Group { name, members, rules }
}

fn rule(random: &mut Random, outbound: usize) -> Rule {
    let direction =
        if random.percent(100 - outbound) { Direction::Inbound } else { Direction::Outbound };
    let protocol = random.pick(&[
        None,
        Some(6),
        Some(6),
        Some(17),
        Some(17),
        Some(1),
        Some(58),
        Some(132),
        Some(47),
    ]);
    let ports = match protocol {
        Some(6 | 17) => random.pick(&[
            (0, 65535),
            (80, 80),
            (80, 4000),
            (22, 80),
            (4001, 65535),
            (67, 68),
            (546, 547),
        ]),
        _ => (0, 0),
    };
    let block = |text: &str, mask| Peer::Cidr(text.parse().unwrap(), mask);
    let peer = match random.below(12) {
        0 | 1 => block("0.0.0.0", 0),
        2 | 3 => block("::", 0),
        4 => block("10.0.0.3", 24),
        5 => block("10.0.0.1", 32),
        6 => block("10.0.0.3", 31),
        7 => block("2001:db8::5", 64),
        8 => block("2001:db8::2", 128),
        9 => Peer::Group("nobody"),
        _ => Peer::Group(random.pick(&GROUPS)),
    };
    Rule { direction, protocol, ports, peer }
}

pub fn flow(random: &mut Random, vnics: &[Declared]) -> Flow {
    let a = random.below(vnics.len());
    let others: Vec<usize> =
        (0..vnics.len()).filter(|b| *b != a && vnics[*b].vni == vnics[a].vni).collect();
    let b = if others.is_empty() { (a + 1) % vnics.len() } else { random.pick(&others) };
    let is_v4 = random.percent(50);
    let mut ip = |vnic: usize| {
        let own: Vec<IpAddr> =
            vnics[vnic].ips.iter().copied().filter(|ip| ip.is_ipv4() == is_v4).collect();
        if random.percent(8) && !is_v4 {
            return vnics[vnic].link_local();
        }
        if random.percent(8) && !is_v4 {
            return made_up(random.below(7));
        }
        if own.is_empty() || random.percent(4) {
            let n = random.below(5);
            return if is_v4 { v4(n) } else { v6(n) };
        }
        random.pick(&own)
    };
    let ips = [ip(a), ip(b)];
    let mut station =
        |vnic: usize| (vnics[vnic].bypass && random.percent(25)).then(|| random.below(2) as u8);
    let stations = [station(a), station(b)];
    let ports = [random.pick(&[4000, 4001, 80]), random.pick(&[80, 80, 22, 53])];
    Flow {
        vnics: [a, b],
        ips,
        ports,
        vlan: random.pick(&[None, None, None, Some(5), Some(6), Some(0)]),
        stations,
        via: None,
        outside: None,
    }
}

/// Conversations, so many of a hundred of which are orderly TCP at least, among what `other` does.
pub fn commands(
    random: &mut Random,
    vnics: &[Declared],
    flows: &[Flow],
    tcp: usize,
    mut other: impl FnMut(&mut Random) -> Vec<Command>,
) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut scripts: Vec<VecDeque<Shot>> = Vec::new();
    while commands.len() < LENGTH {
        let roll = random.below(100);
        let command = match roll {
            0..9 => {
                commands.extend(other(random));
                continue;
            }
            9..13 => {
                Command::Pass(random.pick(&[1, 1, 2, 5, 9, 11, 25, 31, 35, 61, 130, 241, 301, 601]))
            }
            _ => {
                while scripts.len() < 3 {
                    let flow = random.below(flows.len());
                    let mut next = script(random, flow);
                    if tcp > 0 && random.percent(tcp) {
                        while !is_orderly_tcp(&next) {
                            next = script(random, flow);
                        }
                    }
                    scripts.push(next.into());
                }
                let which = random.below(scripts.len());
                let mut shots = Vec::new();
                let burst = if random.percent(15) { 4 } else { 1 };
                for _ in 0..burst {
                    let Some(mut shot) = scripts[which].pop_front() else { break };
                    twist(random, &mut shot, vnics.len(), flows.len());
                    shots.push(shot);
                }
                if scripts[which].is_empty() {
                    scripts.remove(which);
                }
                Command::Send(shots)
            }
        };
        commands.push(command);
    }
    commands
}

/// Returns whether it is a connection from its beginning, without any fault.
fn is_orderly_tcp(script: &[Shot]) -> bool {
    use Step::*;
    matches!(script, [Shot { what: What::Tcp(Syn), .. }, ..])
        && script
            .iter()
            .all(|shot| matches!(shot.what, What::Tcp(Syn | SynAck | Ack | Data | Fin | Rst)))
}

/// A change of one of the groups.
fn change_group(random: &mut Random, outbound: usize) -> Command {
    let name = random.pick(&GROUPS);
    let n = random.below(5);
    let ip = if random.percent(50) { v4(n) } else { v6(n) };
    match random.below(12) {
        0..3 => Command::AddRule(name, rule(random, outbound)),
        3..6 => Command::RemoveRule(name, rule(random, outbound)),
        6..8 => Command::AddMember(name, ip),
        8..10 => Command::RemoveMember(name, ip),
        10 => Command::Declare(group(random, name, outbound)),
        _ => Command::Forget(name),
    }
}

pub fn change(random: &mut Random, vnics: &[Declared], outbound: usize) -> Command {
    let name = random.pick(&GROUPS);
    let vnic = random.below(vnics.len());
    let n = random.below(5);
    let ip = if random.percent(50) { v4(n) } else { v6(n) };
    match random.below(20) {
        0..4 => Command::AddRule(name, rule(random, outbound)),
        4..7 => Command::RemoveRule(name, rule(random, outbound)),
        7..9 => Command::AddMember(name, ip),
        9..12 => Command::RemoveMember(name, ip),
        12 => Command::Declare(group(random, name, outbound)),
        13 => Command::Forget(name),
        14 => {
            let own = usize::from(vnics[vnic].mac[5] - 0xa);
            let base = if random.percent(85) { own } else { random.below(4) };
            Command::Addresses(vnic, addresses(random, base))
        }
        15 | 16 => Command::Groups(vnic, groups(random)),
        17 => match random.below(3) {
            0 => Command::Forwards(vnic, random.percent(50)),
            1 => Command::Shared(vnic, random.percent(50)),
            _ => Command::AntiSpoof(vnic, random.percent(50)),
        },
        18 => Command::Remove(vnic),
        _ => Command::Insert(vnic),
    }
}

/// Frames that belong together, in the order in which they should come.
fn script(random: &mut Random, flow: usize) -> Vec<Shot> {
    let shot =
        |back: bool, what: What| Shot { flow, back, what, to: To::Receiver, twist: Twist::None };
    let opener = random.percent(20);
    let tcp = |steps: &[(bool, Step)]| {
        steps.iter().map(|(back, step)| shot(*back ^ opener, What::Tcp(*step))).collect::<Vec<_>>()
    };
    let id = random.pick(&[1, 2]);
    match random.below(28) {
        0..4 => {
            use Step::*;
            let mut steps = vec![
                (false, Syn),
                (true, SynAck),
                (false, Ack),
                (false, Data),
                (true, Ack),
                (true, Data),
                (false, Ack),
            ];
            match random.below(4) {
                0 => steps.extend([
                    (false, Fin),
                    (true, Ack),
                    (true, Data),
                    (false, Ack),
                    (true, Fin),
                    (false, Ack),
                ]),
                1 => steps.extend([(true, Fin), (false, Fin), (true, Ack), (false, Ack)]),
                2 => steps.extend([(true, Rst), (false, Data)]),
                _ => steps.extend([(false, Ack), (false, Rst)]),
            }
            if random.percent(50) {
                steps.extend([(false, Syn), (true, SynAck), (false, Ack), (true, Data)]);
            }
            tcp(&steps)
        }
        4 | 5 => {
            use Step::*;
            let odd = [
                RstAhead, RstFar, DataFar, AckFar, DataBeyond, AckBeyond, DataBehind, Again,
                SynAgain, Syn,
            ];
            let scaled = random.percent(50);
            let (syn, answer) = if scaled { (SynScaled, SynAckScaled) } else { (Syn, SynAck) };
            let mut steps = vec![(false, syn), (true, answer), (false, Ack), (false, Data)];
            for _ in 0..4 {
                steps
                    .insert(random.below(steps.len() + 1), (random.percent(50), random.pick(&odd)));
                steps.push((random.percent(50), random.pick(&[Data, Ack])));
            }
            tcp(&steps)
        }
        6 => tcp(&[
            (false, Step::Syn),
            (true, Step::Refuse),
            (false, Step::Syn),
            (true, Step::SynAck),
        ]),
        // From the middle.
        7 => tcp(&[(false, Step::Data), (true, Step::Ack), (true, Step::Data), (false, Step::Rst)]),
        8 => tcp(&[
            (random.percent(50), Step::Flags(random.next() as u8)),
            (random.percent(50), Step::Flags(random.next() as u8)),
        ]),
        9..13 => {
            (0..3).map(|_| shot(random.percent(40), What::Udp(random.below(30) as u8))).collect()
        }
        13..15 => {
            let back = random.percent(30);
            let mut both = vec![
                shot(back, What::Echo { request: true, id }),
                shot(!back, What::Echo { request: false, id }),
            ];
            if random.percent(30) {
                both.swap(0, 1);
            }
            both.push(shot(random.percent(50), What::Echo { request: true, id }));
            both
        }
        15..18 => {
            let kind = random.pick(&[3, 11, 12, 1, 2, 4, 5]);
            let (protocol, far) = (random.pick(&[6, 17, 132, 1, 47]), random.percent(20));
            let first = match protocol {
                6 => What::Tcp(Step::Syn),
                17 => What::Udp(4),
                132 => What::Sctp(1),
                1 => What::Echo { request: true, id: 1 },
                other => What::Protocol(other),
            };
            let back = random.percent(30);
            let error = shot(!back, What::Error { kind, protocol, far });
            vec![shot(back, first), error.clone(), error]
        }
        18..20 => {
            let protocol = random.pick(&[17, 17, 6, 1]);
            let back = random.percent(30);
            let parts = random.pick(&[
                vec![Part::First, Part::Second, Part::Third, Part::Last],
                vec![Part::First, Part::Last, Part::Third, Part::Second],
                vec![Part::First, Part::Across, Part::Second],
                // An end before what is there already, and something behind the end.
                vec![Part::First, Part::Third, Part::Early, Part::Second],
                vec![Part::First, Part::Early, Part::Third],
                vec![Part::Last, Part::First, Part::Last, Part::Second],
                vec![Part::First, Part::Second, Part::Second],
                vec![Part::Second, Part::First, Part::Second],
                vec![Part::Tiny, Part::Second],
            ]);
            let mut shots: Vec<Shot> = parts
                .into_iter()
                .map(|part| shot(back, What::Fragment { protocol, id, part }))
                .collect();
            if random.percent(40) {
                // One goes elsewhere, or all do.
                let to = if random.percent(70) {
                    To::Vnic(random.below(NAMES.len()))
                } else {
                    To::Broadcast
                };
                let last = shots.len();
                let first = random.below(last);
                let one = random.percent(70);
                shots[first..if one { first + 1 } else { last }]
                    .iter_mut()
                    .for_each(|shot| shot.to = to);
            }
            shots
        }
        20 => {
            let mut shots = vec![
                shot(false, What::Sctp(1)),
                shot(true, What::Sctp(2)),
                shot(false, What::Sctp(0)),
            ];
            if random.percent(30) {
                shots.remove(0);
            }
            shots
        }
        21 => (0..2)
            .map(|_| {
                shot(
                    random.percent(50),
                    What::Protocol(random.pick(&[47, 50, 99, 2, 1, 58, 4, 41, 59])),
                )
            })
            .collect(),
        22 | 23 => {
            let kind = random.pick(&[133, 134, 135, 135, 136, 136, 137, 130, 131, 132, 143]);
            let defects = [
                Defect::Hops,
                Defect::Code,
                Defect::Target,
                Defect::LinkAddress,
                Defect::EmptyOption,
                Defect::LongOption,
                Defect::Fragmented,
                Defect::Short,
            ];
            let defect = if random.percent(50) { Defect::None } else { random.pick(&defects) };
            let mut all = vec![shot(random.percent(50), What::Discovery { kind, defect })];
            if random.percent(40) {
                all[0].to = To::Multicast;
            }
            all
        }
        24 => {
            let (own, back) = (random.percent(85), random.percent(50));
            let ask = shot(
                back,
                What::Dhcp4 { op: 1, xid: id.into(), own, unspecified: random.percent(60) },
            );
            let answer = shot(
                !back,
                What::Dhcp4 {
                    op: 2,
                    xid: random.pick(&[1, 2]),
                    own,
                    unspecified: random.percent(30),
                },
            );
            let ask6 = shot(
                back,
                What::Dhcp6 { kind: random.pick(&[1, 3, 5, 11]), transaction: id.into() },
            );
            let answer6 = shot(
                !back,
                What::Dhcp6 { kind: random.pick(&[2, 7]), transaction: random.pick(&[1, 2]) },
            );
            let mut all = if random.percent(50) {
                vec![ask, answer.clone(), answer]
            } else {
                vec![ask6, answer6.clone(), answer6]
            };
            if random.percent(40) {
                all[0].to = To::Broadcast;
            }
            if random.percent(20) {
                all[1].to = To::Broadcast;
            }
            all
        }
        25 => vec![
            shot(random.percent(50), What::Probe),
            shot(false, What::Arp { reply: false }),
            shot(true, What::Arp { reply: true }),
            shot(
                random.percent(50),
                What::Type(random.pick(&[0x88cc, 0x8035, 0x88b5, 0x0806, 0x22, 0x0800, 0x86dd])),
            ),
        ],
        26 => vec![shot(random.percent(50), What::Hidden(random.below(4) as u8))],
        _ => vec![
            shot(random.percent(50), What::Icmp { kind: random.next() as u8 & 0x8f, code: 0 }),
            shot(
                random.percent(50),
                What::Options(random.pick(&[6, 20, 40, 110, 160, 200, 240, 300])),
            ),
        ],
    }
}

/// Makes something wrong with some.
fn twist(random: &mut Random, shot: &mut Shot, vnics: usize, flows: usize) {
    if random.percent(4) {
        shot.to = match random.below(8) {
            0..2 => To::Broadcast,
            2..4 => To::Multicast,
            4 => To::LinkLocalGroup,
            5..7 => To::Vnic(random.below(vnics)),
            _ => To::Station(random.below(3) as u8),
        };
    }
    if random.percent(2) {
        // Another conversation.
        shot.flow = random.below(flows);
    }
    if !random.percent(10) {
        return;
    }
    let vnic = random.below(vnics.min(NAMES.len()));
    shot.twist = match random.below(14) {
        0 => Twist::Sender(vnic),
        1 | 2 => Twist::Posing(vnic),
        3 => Twist::SourceMac(vnic),
        4 => Twist::SourceStation(random.below(2) as u8),
        5 => Twist::SourceIp(random.below(5)),
        6 => Twist::DestinationIp(random.below(5)),
        7 => Twist::Vlan(random.pick(&[None, Some(5), Some(6), Some(0)])),
        8 | 9 => Twist::Cut(random.below(128) as u16),
        10 => Twist::Pad(random.below(20) as u8),
        _ => Twist::Byte(random.below(64) as u16, 1 << random.below(8)),
    };
}

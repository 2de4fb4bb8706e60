//! Runs a case through a switch and through the model, and makes a case that fails as short as it
//! gets.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    choices::Choices,
    commands::{Arrival, Case, Command, NAMES, Shot},
    frames::{Frames, source_of},
    policy::Declared,
    router::{Change, Routes},
    switch::{Drop, Model, Outcome, RoutedSession},
    world::{TRUNKS, arrive, hosts},
};

/// Effects of one host's switch on the frames of one vnic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Receivers, trunks among them, with the frames that each got, in order.
    pub received: Vec<(String, Vec<u8>)>,
    /// Frames dropped by vnic and reason.
    pub drops: BTreeMap<(String, String), u64>,
}

/// The side that is compared with the model: the switches of a case's hosts.
pub trait Switch {
    /// Fragments of a burst that may wait for their first ones in it; 0 if each frame of it is sent
    /// alone.
    const EARLY: usize;
    fn insert(&mut self, host: usize, name: &str, declared: &Declared);
    fn remove(&mut self, host: usize, name: &str);
    fn update(&mut self, host: usize, name: &str, declared: &Declared);
    /// One of the commands about groups.
    fn change(&mut self, host: usize, change: &Command);
    /// A change of declared networks and routers, of which a host is told `routes` so far.
    fn route(&mut self, host: usize, change: &Change, routes: &Routes);
    /// Returns the sessions between networks of one host whose ends are there, that did not time
    /// out and that policy did not take back.
    fn routed_sessions(&mut self, host: usize) -> Vec<RoutedSession>;
    fn pass(&mut self, seconds: u32);
    /// Sends frames that are all in the vnic's ring when the switch looks. Frames that leave their
    /// host arrive at the other one. Returns the effects on each host.
    fn send(&mut self, host: usize, name: &str, frames: &[Vec<u8>]) -> Vec<Seen>;
    /// Has a frame of a network arrive at a host, from the host of a number. Returns the effects on
    /// each host.
    fn arrive(&mut self, host: usize, from: u8, vni: u32, frame: &[u8]) -> Vec<Seen>;
}

/// How much a run tried.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub cases: u64,
    pub frames: u64,
    pub delivered: u64,
    /// Frames that left one host for the other.
    pub crossed: u64,
    /// By reason.
    pub dropped: BTreeMap<String, u64>,
    /// Bursts after which more than one model was possible.
    pub open: u64,
    /// Times that TCP connections were given up because there were too many possible models.
    pub blurred: u64,
    /// Cases that were left because too many were.
    pub lost: u64,
}

impl Tally {
    fn count(&mut self, burst: &[Vec<u8>], seen: &[Seen]) {
        self.frames += burst.len() as u64;
        for (name, _) in seen.iter().flat_map(|seen| &seen.received) {
            *if TRUNKS.as_flattened().contains(&&**name) {
                &mut self.crossed
            } else {
                &mut self.delivered
            } += 1;
        }
        for ((_, reason), n) in seen.iter().flat_map(|seen| &seen.drops) {
            *self.dropped.entry(reason.clone()).or_default() += n;
        }
    }
}

/// The point at which a switch and the model part.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Index of the command.
    pub at: usize,
    pub text: String,
}

/// Most possible models that are worth following.
const POSSIBLE: usize = 64;

/// Returns whether the effects are those that a model predicts for a burst.
fn agrees(seen: &Seen, frames: &[Vec<u8>], outcomes: &[Outcome]) -> bool {
    let mut expected: Vec<(String, Vec<u8>)> = outcomes
        .iter()
        .zip(frames)
        .flat_map(|(outcome, frame)| {
            let arrives = outcome.arrives(frame);
            let each = |name: &&'static str| {
                let name = (*name).to_owned();
                arrives.clone().into_iter().map(move |frame| (name.clone(), frame))
            };
            outcome.receivers.iter().flat_map(each).collect::<Vec<_>>()
        })
        .collect();
    let mut received = seen.received.clone();
    expected.sort();
    received.sort();
    let drops: Vec<Drop> = outcomes.iter().flat_map(|outcome| outcome.drops.clone()).collect();
    expected == received
        && drops.len() as u64 == seen.drops.values().sum::<u64>()
        && fits(&drops, &mut seen.drops.clone())
}

/// Returns whether every drop can be counted under one of its names, with nothing left.
fn fits(drops: &[Drop], left: &mut BTreeMap<(String, String), u64>) -> bool {
    let Some((drop, rest)) = drops.split_first() else { return left.values().all(|n| *n == 0) };
    drop.iter().any(|(vnic, reason)| {
        let key = ((*vnic).to_owned(), (*reason).to_owned());
        if left.get(&key).is_none_or(|n| *n == 0) {
            return false;
        }
        *left.get_mut(&key).unwrap() -= 1;
        let fit = fits(rest, left);
        *left.get_mut(&key).unwrap() += 1;
        fit
    })
}

/// Runs a case to its end or to the first frame about which they disagree.
pub fn run<S: Switch>(case: &Case, switch: &mut S, tally: &mut Tally) -> Result<(), Failure> {
    // What each host may know: all that is known of one is what frames of its vnics and frames that
    // arrive at it tell.
    let mut possible: Vec<Vec<Model>> =
        hosts(case.hosts).into_iter().map(|model| vec![model]).collect();
    let mut frames = Frames::new(case);
    let mut declared = case.vnics.clone();
    let mut placed = case.placed.clone();
    let mut here = vec![true; declared.len()];
    let mut routes = vec![Routes::default(); case.hosts];
    tally.cases += 1;
    for change in &case.routes {
        (0..case.hosts).for_each(|host| declare(host, change, &mut routes, switch, &mut possible));
    }
    for group in &case.groups {
        for (host, models) in possible.iter_mut().enumerate() {
            switch.change(host, &Command::Declare(group.clone()));
            models[0].groups.push(group.clone());
        }
    }
    for (i, name) in NAMES.into_iter().enumerate().take(declared.len()) {
        switch.insert(placed[i], name, &declared[i]);
        possible[placed[i]][0].insert(name, declared[i].clone());
    }
    for (at, command) in case.commands.iter().enumerate() {
        match command {
            Command::Send(shots) => {
                let Some(sender) = shots.first().map(|shot| frames.sender(shot)) else { continue };
                let vnic = NAMES.iter().position(|name| *name == sender).unwrap();
                let shots: Vec<&Shot> =
                    shots.iter().filter(|shot| frames.sender(shot) == sender).collect();
                let burst: Vec<Vec<u8>> = shots.iter().map(|shot| frames.frame(shot)).collect();
                if !here[vnic] {
                    continue;
                }
                let host = placed[vnic];
                let seen = switch.send(host, sender, &burst);
                tally.count(&burst, &seen);
                for (_, frame) in &seen[host].received {
                    frames.hear(&shots, frame);
                }
                leaves_translated(&declared, vnic, &seen, &routes[host])
                    .map_err(|text| Failure { at, text })?;
                stays_among_joined(&declared, vnic, &seen, &routes[host])
                    .map_err(|text| Failure { at, text })?;
                let (what, early) = ((sender, &burst[..], &seen[host]), S::EARLY);
                let send = |model: &mut Model, at: usize, choices: &mut Choices| {
                    model.send(sender, &burst[at], choices)
                };
                possible[host] = follow(&possible[host], what, early, send)
                    .map_err(|text| Failure { at, text })?;
                // What left is what arrives, frame by frame.
                if let Some(other) = (0..case.hosts).find(|other| *other != host) {
                    let of = |name: &str| TRUNKS[host].iter().position(|trunk| *trunk == name);
                    let crossed = seen[host].received.iter();
                    let (vnis, crossed): (Vec<u32>, Vec<Vec<u8>>) = crossed
                        .filter_map(|(name, frame)| Some((of(name)? as u32 + 1, frame.clone())))
                        .unzip();
                    let what = ("the other host", &crossed[..], &seen[other]);
                    let from = host as u8 + 1;
                    let arrive = |model: &mut Model, at: usize, choices: &mut Choices| {
                        arrive(model, (other, from), vnis[at], &crossed[at], choices)
                    };
                    possible[other] = follow(&possible[other], what, 0, arrive)
                        .map_err(|text| Failure { at, text })?;
                }
                for (host, models) in possible.iter().enumerate() {
                    if !case.routes.is_empty() {
                        same_sessions(models, &switch.routed_sessions(host))
                            .map_err(|text| Failure { at, text })?;
                    }
                }
                tally.open += u64::from(possible.iter().any(|models| models.len() > 1));
                for models in &mut possible {
                    if models.len() > POSSIBLE {
                        tally.blurred += 1;
                        models.iter_mut().for_each(Model::blur);
                        *models = distinct(std::mem::take(models));
                    }
                    if models.len() > POSSIBLE {
                        tally.lost += 1;
                        return Ok(());
                    }
                }
            }
            Command::Pass(seconds) => {
                switch.pass(*seconds);
                possible.iter_mut().flatten().for_each(|model| model.pass(*seconds));
            }
            Command::Wire(arrival) => {
                let Arrival { host, from, vni, .. } = *arrival;
                let frame = frames.arrival(arrival);
                let seen = switch.arrive(host, from, vni, &frame);
                tally.count(std::slice::from_ref(&frame), &seen);
                let what = ("the wire", std::slice::from_ref(&frame), &seen[host]);
                let take = |model: &mut Model, _: usize, choices: &mut Choices| {
                    arrive(model, (host, from), vni, &frame, choices)
                };
                possible[host] =
                    follow(&possible[host], what, 0, take).map_err(|text| Failure { at, text })?;
            }
            Command::Route(change) => {
                for host in 0..case.hosts {
                    declare(host, change, &mut routes, switch, &mut possible);
                }
            }
            Command::At(host, change) if matches!(**change, Command::Route(_)) => {
                let Command::Route(change) = &**change else { unreachable!() };
                declare(*host, change, &mut routes, switch, &mut possible);
            }
            Command::Move(i, host) if here[*i] && placed[*i] == *host => {}
            Command::Remove(i) | Command::Insert(i) | Command::Move(i, _) => {
                if here[*i] {
                    switch.remove(placed[*i], NAMES[*i]);
                    possible[placed[*i]].iter_mut().for_each(|model| model.remove(NAMES[*i]));
                }
                if let Command::Move(_, host) = command {
                    placed[*i] = *host;
                }
                here[*i] = !matches!(command, Command::Remove(_));
                if here[*i] {
                    switch.insert(placed[*i], NAMES[*i], &declared[*i]);
                    possible[placed[*i]]
                        .iter_mut()
                        .for_each(|model| model.insert(NAMES[*i], declared[*i].clone()));
                }
            }
            Command::Addresses(i, _)
            | Command::Groups(i, _)
            | Command::AntiSpoof(i, _)
            | Command::Forwards(i, _)
            | Command::Shared(i, _) => {
                match command {
                    Command::Addresses(_, ips) => declared[*i].ips.clone_from(ips),
                    Command::Groups(_, groups) => declared[*i].groups.clone_from(groups),
                    Command::AntiSpoof(_, on) => declared[*i].ip_anti_spoof = *on,
                    Command::Forwards(_, on) => declared[*i].forwards = *on,
                    Command::Shared(_, on) => declared[*i].shared_ip = *on,
                    _ => {}
                }
                if here[*i] {
                    switch.update(placed[*i], NAMES[*i], &declared[*i]);
                    for model in &mut possible[placed[*i]] {
                        model.changed();
                        let vnic = model.vnic(NAMES[*i]).unwrap();
                        let bound = std::mem::take(&mut vnic.declared.bound);
                        vnic.declared = Declared { bound, ..declared[*i].clone() };
                    }
                }
            }
            change => {
                let (hosts, change) = match change {
                    Command::At(host, change) => (*host..host + 1, &**change),
                    change => (0..case.hosts, change),
                };
                for host in hosts {
                    switch.change(host, change);
                    possible[host].iter_mut().for_each(|model| change_groups(model, change));
                }
            }
        }
    }
    Ok(())
}

/// Checks that a switch has the sessions between networks that one of the models has. Where a TCP
/// connection stands decides when it times out, and models may have forgotten that.
fn same_sessions(possible: &[Model], has: &[RoutedSession]) -> Result<(), String> {
    let agrees = |model: &Model| {
        let known = model.routed_sessions();
        has.iter().all(|session| known.iter().any(|(other, _)| other == session))
            && known.iter().all(|(other, sure)| !sure || other.protocol == 6 || has.contains(other))
    };
    if possible.iter().any(agrees) {
        return Ok(());
    }
    let known: Vec<_> = possible.iter().map(Model::routed_sessions).collect();
    Err(format!("switch: sessions {has:#?}\nmodel:  {known:#?}"))
}

/// Declares something to the switch of a host and to its models, or removes it.
fn declare<S: Switch>(
    host: usize,
    change: &Change,
    routes: &mut [Routes],
    switch: &mut S,
    possible: &mut [Vec<Model>],
) {
    let routes = &mut routes[host];
    if routes.apply(change) {
        switch.route(host, change, routes);
        possible[host].iter_mut().for_each(|model| model.declare(routes));
    }
}

/// Checks, by nothing but what is declared, that nobody got a frame from a network that no router
/// joins to the own one.
fn stays_among_joined(
    declared: &[Declared],
    sender: usize,
    seen: &[Seen],
    routes: &Routes,
) -> Result<(), String> {
    let from = declared[sender].vni;
    for (name, frame) in seen.iter().flat_map(|seen| &seen.received) {
        let Some(receiver) = NAMES.iter().position(|known| known == name) else { continue };
        let to = declared[receiver].vni;
        if to != from && !routes.are_joined(from, to) {
            return Err(format!(
                "{name} of network {to} got a frame of {} of network {from}: {frame:02x?}",
                NAMES[sender]
            ));
        }
    }
    Ok(())
}

/// Checks, by nothing but what is declared, that no address of a network that is not public leaves
/// it for an outside.
fn leaves_translated(
    declared: &[Declared],
    sender: usize,
    seen: &[Seen],
    routes: &Routes,
) -> Result<(), String> {
    let from = declared[sender].vni;
    let Some(net) = routes.net(from).filter(|net| !net.public && !routes.is_outside(from)) else {
        return Ok(());
    };
    for (name, frame) in seen.iter().flat_map(|seen| &seen.received) {
        let receiver = NAMES.iter().position(|known| known == name);
        let is_out = receiver.is_some_and(|it| routes.is_outside(declared[it].vni));
        if let (true, Some((_, [source, _], _))) = (is_out, source_of(frame))
            && source.is_ipv4()
            && net.blocks.iter().any(|block| block.has(source))
        {
            return Err(format!("{name} outside got a frame from {source}: {frame:02x?}"));
        }
    }
    Ok(())
}

/// Returns the models that are still possible after some frames from a sender, given the effects.
/// If there is none, returns what they all predict. So many fragments that came before their first
/// ones wait until all frames were judged.
fn follow(
    possible: &[Model],
    (from, burst, seen): (&str, &[Vec<u8>], &Seen),
    places: usize,
    send: impl Fn(&mut Model, usize, &mut Choices) -> Outcome,
) -> Result<Vec<Model>, String> {
    let received = seen.received.iter().filter_map(|(_, frame)| source_of(frame));
    let mut shown: Vec<_> =
        received.map(|(protocol, [source, _], port)| (protocol, source, port)).collect();
    shown.sort();
    shown.dedup();
    let one = |model: &Model| {
        Choices::all_showing(&shown, |choices| {
            let mut model = model.clone();
            let mut outcomes: Vec<Outcome> =
                (0..burst.len()).map(|at| send(&mut model, at, choices)).collect();
            let early = (0..burst.len()).filter(|at| outcomes[*at].waits).take(places);
            for at in early.collect::<Vec<_>>() {
                outcomes[at] = send(&mut model, at, choices);
            }
            (model, outcomes)
        })
    };
    let all: Vec<(Model, Vec<Outcome>)> = possible.iter().flat_map(one).collect();
    let agreeing = all
        .iter()
        .filter(|(_, outcomes)| agrees(seen, burst, outcomes))
        .map(|(model, _)| model.clone());
    let next = distinct(agreeing.collect());
    if next.is_empty() { Err(explain(from, burst, seen, &all)) } else { Ok(next) }
}

fn distinct(models: Vec<Model>) -> Vec<Model> {
    let mut distinct: Vec<Model> = Vec::new();
    for model in models {
        if !distinct.contains(&model) {
            distinct.push(model);
        }
    }
    distinct
}

/// Applies a command about groups to a model.
pub fn change_groups(model: &mut Model, change: &Command) {
    model.changed();
    match change {
        Command::AddRule(name, rule) => {
            let group = model.group(name);
            if !group.rules.contains(rule) {
                group.rules.push(rule.clone());
            }
        }
        Command::AddMember(name, ip) => {
            let group = model.group(name);
            if !group.members.contains(ip) {
                group.members.push(*ip);
            }
        }
        Command::Declare(group) => *model.group(group.name) = group.clone(),
        Command::Forget(name) => model.groups.retain(|group| group.name != *name),
        _ => {}
    }
    for group in &mut model.groups {
        match change {
            Command::RemoveRule(name, rule) if group.name == *name => {
                group.rules.retain(|other| other != rule)
            }
            Command::RemoveMember(name, ip) if group.name == *name => {
                group.members.retain(|other| other != ip)
            }
            _ => {}
        }
    }
}

fn explain(sender: &str, burst: &[Vec<u8>], seen: &Seen, all: &[(Model, Vec<Outcome>)]) -> String {
    use std::fmt::Write;
    let mut text = format!("{sender} sent");
    let hex =
        |frame: &[u8]| frame.iter().take(110).map(|byte| format!("{byte:02x}")).collect::<String>();
    burst
        .iter()
        .for_each(|frame| write!(text, "\n    {} ({} bytes)", hex(frame), frame.len()).unwrap());
    let who: Vec<&str> = seen.received.iter().map(|(name, _)| name.as_str()).collect();
    write!(text, "\nswitch: received by {who:?}, drops {:?}", seen.drops).unwrap();
    for (name, frame) in seen.received.iter().filter(|(_, frame)| !burst.contains(frame)) {
        write!(text, "\n{name} got {} ({} bytes)", hex(frame), frame.len()).unwrap();
    }
    let mut said: Vec<&Vec<Outcome>> = Vec::new();
    for (_, outcomes) in all {
        if !said.contains(&outcomes) {
            said.push(outcomes);
        }
    }
    said.iter().for_each(|outcomes| write!(text, "\nmodel:  {outcomes:?}").unwrap());
    text
}

/// Leaves out what a failure does not need.
pub fn shrink<S: Switch>(mut case: Case, make: impl Fn() -> S, limit: Duration) -> (Case, Failure) {
    let start = Instant::now();
    let fails = |case: &Case| run(case, &mut make(), &mut Tally::default()).err();
    let mut failure = fails(&case).expect("a case that fails");
    case.commands.truncate(failure.at + 1);
    let mut size = case.commands.len().div_ceil(2);
    while start.elapsed() < limit {
        let mut smaller = false;
        let mut at = 0;
        while at < case.commands.len() && start.elapsed() < limit {
            let mut without = case.clone();
            without.commands.drain(at..(at + size).min(case.commands.len()));
            match fails(&without) {
                Some(found) => {
                    without.commands.truncate(found.at + 1);
                    (case, failure, smaller) = (without, found, true);
                }
                None => at += size,
            }
        }
        if size > 1 {
            size = size.div_ceil(2);
        } else if !smaller {
            break;
        }
    }
    for simpler in simplifications(&case) {
        let mut tried = case.clone();
        simpler.apply(&mut tried);
        if start.elapsed() < limit
            && let Some(found) = fails(&tried)
        {
            (case, failure) = (tried, found);
        }
    }
    (case, failure)
}

/// One thing less in the world.
enum Simpler {
    Shot(usize, usize),
    Untwisted(usize, usize),
    Rule(usize, usize),
    Members(usize),
    NoGroups(usize),
    NoStation(usize, usize),
    NoVlan(usize),
}

impl Simpler {
    fn apply(&self, case: &mut Case) {
        let shots =
            |case: &mut Case, at: usize, do_it: &dyn Fn(&mut Vec<crate::commands::Shot>)| {
                if let Some(Command::Send(shots)) = case.commands.get_mut(at) {
                    do_it(shots);
                }
            };
        match *self {
            Simpler::Shot(at, which) => shots(case, at, &|shots| {
                if which < shots.len() {
                    shots.remove(which);
                }
            }),
            Simpler::Untwisted(at, which) => shots(case, at, &|shots| {
                if let Some(shot) = shots.get_mut(which) {
                    shot.twist = crate::commands::Twist::None;
                }
            }),
            Simpler::Rule(group, rule) => {
                case.groups[group].rules.remove(rule);
            }
            Simpler::Members(group) => case.groups[group].members.clear(),
            Simpler::NoGroups(vnic) => case.vnics[vnic].groups.clear(),
            Simpler::NoStation(flow, side) => case.flows[flow].stations[side] = None,
            Simpler::NoVlan(flow) => case.flows[flow].vlan = None,
        }
    }
}

/// All that can be tried, each from the end, so that what is left keeps its place.
fn simplifications(case: &Case) -> Vec<Simpler> {
    let mut all = Vec::new();
    for (at, command) in case.commands.iter().enumerate() {
        if let Command::Send(shots) = command {
            (0..shots.len())
                .rev()
                .filter(|_| shots.len() > 1)
                .for_each(|which| all.push(Simpler::Shot(at, which)));
            (0..shots.len()).for_each(|which| all.push(Simpler::Untwisted(at, which)));
        }
    }
    for (group, of) in case.groups.iter().enumerate() {
        (0..of.rules.len()).rev().for_each(|rule| all.push(Simpler::Rule(group, rule)));
        all.push(Simpler::Members(group));
    }
    (0..case.vnics.len()).for_each(|vnic| all.push(Simpler::NoGroups(vnic)));
    for flow in 0..case.flows.len() {
        all.extend([
            Simpler::NoStation(flow, 0),
            Simpler::NoStation(flow, 1),
            Simpler::NoVlan(flow),
        ]);
    }
    all
}

#[test]
fn what_arrives_where_no_router_leads_is_found() {
    use crate::router::{Net, Router};

    let mut declared = vec![crate::cases::vnic(crate::cases::A, 1, &[]); 3];
    (declared[1].vni, declared[2].vni) = (1, 2);
    let got = |name: &str| {
        vec![Seen { received: vec![(name.to_owned(), vec![0; 60])], ..Seen::default() }]
    };
    let mut routes = Routes::default();
    for vni in [1, 2, 3] {
        assert!(routes.apply(&Change::Net(Net { vni, blocks: vec![], mtu: None, public: false })));
    }
    let joined = |joins: &[u32]| {
        let joins = joins.iter().map(|vni| (*vni, vec![])).collect();
        Change::Router(Router { name: "r", joins, routes: vec![] })
    };
    let checked = |name, routes: &Routes| stays_among_joined(&declared, 0, &got(name), routes);
    for (joins, leads) in [(&[][..], false), (&[1, 3], false), (&[2], false), (&[1, 2], true)] {
        assert!(routes.apply(&joined(joins)));
        assert!(checked("b", &routes).is_ok(), "{joins:?}");
        assert_eq!(checked("c", &routes).is_ok(), leads, "{joins:?}");
    }
}

//! The real switches, with guests in memory, and the wire between them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, SessionEnd, SessionFilter, TunnelConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_guest_driver::{guest::GuestConfig, memory::MemoryConfig};
use butterfly_model::{Cidr, GroupName, SecurityGroup};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

use crate::{
    check::{Seen, Switch},
    commands::{Command, NAMES},
    policy::{Declared, Direction, Peer, Rule},
    router::{self, Change, Routes},
    switch::RoutedSession,
};

pub struct Real {
    pub hosts: Vec<Host>,
    /// Network of each vnic that was ever there.
    networks: BTreeMap<String, u32>,
    workers: usize,
    /// Times that frames were sent.
    sent: usize,
}

/// Tunnel endpoint of a host, by its number from 1 on, and its address on the wire.
fn endpoint(number: u8) -> (Ipv4Addr, Mac) {
    (Ipv4Addr::new(192, 168, 0, number), Mac([2, 0xbf, 0, 0, 0, number]))
}

/// Prefixes of the counters of joined hosts, where their names are the same on both.
pub const PREFIXES: [&str; 2] = ["one/", "two/"];

impl Real {
    pub fn new(hosts: usize, workers: usize) -> Real {
        let host = |n: usize| {
            let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
            let (own, link) = endpoint(n as u8 + 1);
            let tunnel = TunnelConfig::new(own.into(), link);
            Host::with(sessions, Some(&tunnel).filter(|_| hosts > 1), workers).unwrap()
        };
        Real { hosts: (0..hosts).map(host).collect(), networks: BTreeMap::new(), workers, sent: 0 }
    }

    /// Has each worker serve the sender in turn: the frames of a conversation, of which one worker
    /// may know what another one noted. Two in a row stay with the same one.
    fn move_sender(&mut self, host: usize, name: &str) {
        self.sent += 1;
        self.hosts[host].move_to(name, self.sent / 2 % self.workers);
    }

    /// Carries frames from host to host until nothing moves. A trunk counts as their receiver.
    fn carry(&mut self, seen: &mut [Seen]) {
        let [one, two] = &mut self.hosts[..] else { return };
        loop {
            let left = [one.left().unwrap(), two.left().unwrap()];
            if left.iter().all(Vec::is_empty) {
                return;
            }
            for (host, frame) in left
                .iter()
                .enumerate()
                .flat_map(|(host, frames)| frames.iter().map(move |frame| (host, frame)))
            {
                // Ethernet, IPv4, UDP and VXLAN, whose last bytes name the network.
                let (vni, inner) = (frame[48], frame[50..].to_vec());
                let way = if is_elsewhere(frame) { "away" } else { "vni" };
                seen[host].received.push((format!("{}{way}-{vni}", PREFIXES[host]), inner));
            }
            let [from_one, from_two] = left.map(|mut frames| {
                frames.retain(|frame| !is_elsewhere(frame));
                frames
            });
            two.arrive(&from_one).unwrap();
            one.arrive(&from_two).unwrap();
        }
    }
}

/// Returns whether a frame on the wire is for a host that is not there.
fn is_elsewhere(frame: &[u8]) -> bool {
    frame[30..34] == [192, 168, 0, 3]
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn policy(declared: &Declared) -> VnicPolicy {
    VnicPolicy {
        bypass: declared.bypass,
        ip_anti_spoof: declared.ip_anti_spoof,
        forwards: declared.forwards,
        shared_ip: declared.shared_ip,
        limits: Default::default(),
        router: declared.router,
        ips: declared.ips.clone(),
        prefixes: Vec::new(),
        groups: declared.groups.iter().map(|name| group(name)).collect(),
    }
}

fn rule(rule: &Rule) -> butterfly_model::Rule {
    let direction = match rule.direction {
        Direction::Inbound => butterfly_model::Direction::Inbound,
        Direction::Outbound => butterfly_model::Direction::Outbound,
    };
    let (cidr, named) = match &rule.peer {
        Peer::Cidr(address, mask) => {
            (Some(Cidr::new(&address.to_string(), (*mask).into()).unwrap()), None)
        }
        Peer::Group(name) => (None, Some(group(name))),
    };
    let ports = (Some(rule.ports.0.into()), Some(rule.ports.1.into()));
    butterfly_model::Rule::new(direction, rule.protocol.map_or(-1, i32::from), ports, cidr, named)
        .unwrap()
}

impl Switch for Real {
    const EARLY: usize = 8;

    fn insert(&mut self, host: usize, name: &str, declared: &Declared) {
        self.networks.insert(name.to_owned(), declared.vni);
        let host = &mut self.hosts[host];
        host.declare(name, Mac(declared.mac), declared.vni, &policy(declared)).unwrap();
        let config = GuestConfig { rx_buffer: 2048, ..GuestConfig::default() }.rings(64);
        host.attach(name, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        host.settle();
        host.moved();
    }

    fn remove(&mut self, host: usize, name: &str) {
        self.hosts[host].remove(name);
        // The counters of a network that is not here any more are gone, too: the next ones start at
        // zero.
        self.hosts[host].moved();
    }

    fn update(&mut self, host: usize, name: &str, declared: &Declared) {
        self.hosts[host].update(name, &policy(declared)).unwrap();
    }

    fn change(&mut self, host: usize, change: &Command) {
        let change_group =
            |name: &str, change| self.hosts[host].change_group(&group(name), change).unwrap();
        match change {
            Command::AddRule(name, added) => change_group(name, GroupChange::AddRule(rule(added))),
            Command::RemoveRule(name, removed) => {
                change_group(name, GroupChange::RemoveRule(rule(removed)))
            }
            Command::AddMember(name, ip) => {
                change_group(name, GroupChange::AddMember((*ip).into()))
            }
            Command::RemoveMember(name, ip) => {
                change_group(name, GroupChange::RemoveMember((*ip).into()))
            }
            Command::Declare(declared) => {
                let members = declared.members.iter().map(IpAddr::to_string);
                let declared = SecurityGroup::new(
                    group(declared.name),
                    members,
                    declared.rules.iter().map(rule),
                )
                .unwrap();
                change_group(declared.name().as_str(), GroupChange::Declare(declared.clone()));
            }
            Command::Forget(name) => change_group(name, GroupChange::Forget),
            _ => {}
        }
    }

    fn route(&mut self, host: usize, change: &Change, _: &Routes) {
        for change in router::declaration(change) {
            self.hosts[host].change_routing(change);
        }
        self.meet();
        // A network that is not here any more takes its counters along.
        self.hosts[host].moved();
    }

    fn routed_sessions(&mut self, host: usize) -> Vec<RoutedSession> {
        let (_, rows) = self.hosts[host].sessions(&SessionFilter::default(), usize::MAX);
        let end = |end: &SessionEnd| {
            let nic = NAMES.into_iter().find(|name| end.nic.as_deref() == Some(*name))?;
            Some((nic, end.address, end.port))
        };
        let routed = rows.iter().filter_map(|row| {
            let ends = [end(&row.opener)?, end(&row.responder)?];
            let vnis = ends.map(|(nic, ..)| self.networks[nic]);
            let there = row.expires > 0 && row.state != "cut" && vnis[0] != vnis[1];
            there.then_some(RoutedSession { vni: row.vni, protocol: row.protocol, ends })
        });
        routed.collect()
    }

    fn pass(&mut self, seconds: u32) {
        self.hosts.iter_mut().for_each(|host| host.pass(seconds));
        self.meet();
    }

    fn send(&mut self, host: usize, name: &str, frames: &[Vec<u8>]) -> Vec<Seen> {
        self.move_sender(host, name);
        for frame in frames {
            self.hosts[host].guest(name).unwrap().send(frame, NetHeader::default()).unwrap();
        }
        self.hosts[host].settle();
        self.effects()
    }

    fn arrive(&mut self, host: usize, from: u8, vni: u32, frame: &[u8]) -> Vec<Seen> {
        let [(source, link), (own, own_link)] = [from, host as u8 + 1].map(endpoint);
        let outer = build::ethernet(link, own_link).ipv4(source, own).vxlan(50_000, vni, frame);
        self.hosts[host].arrive(&[outer]).unwrap();
        self.effects()
    }
}

impl Real {
    /// Has each host know the address on the wire of all hosts that were declared to it.
    fn meet(&mut self) {
        for (host, own) in self.hosts.iter().zip(1..) {
            for (ip, link) in (1..4).filter(|other| *other != own).map(endpoint) {
                // It is no peer, or there is no tunnel.
                let _ = host.set_neighbour(ip.into(), link);
            }
        }
    }

    /// Carries what left, and returns what happened on each host.
    fn effects(&mut self) -> Vec<Seen> {
        let mut all = vec![Seen::default(); self.hosts.len()];
        self.carry(&mut all);
        for ((host, prefix), seen) in self.hosts.iter_mut().zip(PREFIXES).zip(&mut all) {
            for (receiver, frames) in host.received().unwrap() {
                seen.received
                    .extend(frames.into_iter().map(|(_, frame)| (receiver.clone(), frame)));
            }
            for (counter, increase) in host.moved() {
                if let Some((name, reason)) = counter.split_once(".drop.") {
                    let shared = name.starts_with("vni-") || name == "uplink";
                    let name = if shared { format!("{prefix}{name}") } else { name.to_owned() };
                    seen.drops.insert((name, reason.to_owned()), increase);
                }
            }
        }
        all
    }
}

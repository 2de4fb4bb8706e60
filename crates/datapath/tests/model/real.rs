//! The switch itself, with guests in memory.

use std::net::IpAddr;

use butterfly_datapath::{
    GroupChange, Mac, SessionConfig, VnicPolicy,
    harness::{Host, LINUX},
};
use butterfly_model::{Cidr, GroupName, SecurityGroup};
use butterfly_vhost::{
    driver::{guest::GuestConfig, memory::MemoryConfig},
    net::NetHeader,
};

use crate::{
    check::{Seen, Switch},
    commands::Command,
    policy::{Declared, Direction, Peer, Rule},
};

pub struct Real {
    host: Host,
}

impl Real {
    pub fn new() -> Real {
        let sessions = SessionConfig { capacity: 4096, ..SessionConfig::default() };
        Real { host: Host::with_sessions(sessions).unwrap() }
    }

    fn change_group(&self, name: &str, change: GroupChange) {
        self.host.change_group(&group(name), change).unwrap();
    }
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn policy(declared: &Declared) -> VnicPolicy {
    VnicPolicy {
        bypass: declared.bypass,
        ip_anti_spoof: declared.ip_anti_spoof,
        ips: declared.ips.clone(),
        groups: declared.groups.iter().map(|name| group(name)).collect(),
    }
}

fn rule(rule: &Rule) -> butterfly_model::Rule {
    let direction = match rule.direction {
        Direction::Inbound => butterfly_model::Direction::Inbound,
        Direction::Outbound => butterfly_model::Direction::Outbound,
    };
    let (cidr, named) = match &rule.peer {
        Peer::Cidr(address, mask) => (Some(Cidr::new(&address.to_string(), (*mask).into()).unwrap()), None),
        Peer::Group(name) => (None, Some(group(name))),
    };
    let ports = (Some(rule.ports.0.into()), Some(rule.ports.1.into()));
    butterfly_model::Rule::new(direction, rule.protocol.map_or(-1, i32::from), ports, cidr, named).unwrap()
}

impl Switch for Real {
    fn insert(&mut self, name: &str, declared: &Declared) {
        self.host.declare(name, Mac(declared.mac), declared.vni, &policy(declared)).unwrap();
        let config = GuestConfig { rx_buffer: 2048, ..GuestConfig::default() }.rings(64);
        self.host.attach(name, LINUX, &config, &MemoryConfig::new(config.memory_needed())).unwrap();
        self.host.settle();
        self.host.moved();
    }

    fn remove(&mut self, name: &str) {
        self.host.remove(name);
    }

    fn update(&mut self, name: &str, declared: &Declared) {
        self.host.update(name, &policy(declared)).unwrap();
    }

    fn change(&mut self, change: &Command) {
        match change {
            Command::AddRule(name, added) => self.change_group(name, GroupChange::AddRule(rule(added))),
            Command::RemoveRule(name, removed) => self.change_group(name, GroupChange::RemoveRule(rule(removed))),
            Command::AddMember(name, ip) => self.change_group(name, GroupChange::AddMember(*ip)),
            Command::RemoveMember(name, ip) => self.change_group(name, GroupChange::RemoveMember(*ip)),
            Command::Declare(declared) => {
                let members = declared.members.iter().map(IpAddr::to_string);
                let declared = SecurityGroup::new(group(declared.name), members, declared.rules.iter().map(rule)).unwrap();
                self.change_group(declared.name().as_str(), GroupChange::Declare(declared.clone()));
            }
            Command::Forget(name) => self.change_group(name, GroupChange::Forget),
            _ => {}
        }
    }

    fn pass(&mut self, seconds: u32) {
        self.host.pass(seconds);
    }

    fn send(&mut self, name: &str, frames: &[Vec<u8>]) -> Seen {
        for frame in frames {
            self.host.guest(name).unwrap().send(frame, NetHeader::default()).unwrap();
        }
        self.host.settle();
        let mut seen = Seen::default();
        for (receiver, frames) in self.host.received().unwrap() {
            seen.received.extend(frames.into_iter().map(|(_, frame)| (receiver.clone(), frame)));
        }
        for (counter, increase) in self.host.moved() {
            if let Some((vnic, reason)) = counter.split_once(".drop.") {
                seen.drops.insert((vnic.to_owned(), reason.to_owned()), increase);
            }
        }
        seen
    }
}

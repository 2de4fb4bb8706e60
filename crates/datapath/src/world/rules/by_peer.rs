//! Rules of one direction by their peers, and their compiled form. Control side only.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use butterfly_model::Cidr;

use super::{
    blocks::Blocks,
    layers::{Allowance, number},
    ports::{Allowed, Ports},
};
use crate::ip::{Address, is_v4};

/// Peer of a rule.
#[derive(Clone, Copy)]
pub(super) enum RulePeer {
    Block(Address, Address),
    /// The members of the group with this number.
    Group(u32),
}

impl RulePeer {
    pub fn block(cidr: &Cidr) -> RulePeer {
        let first = number(cidr.network());
        let bits = match cidr.network() {
            IpAddr::V4(_) => 96 + u32::from(cidr.mask_size()),
            IpAddr::V6(_) => u32::from(cidr.mask_size()),
        };
        RulePeer::Block(first, first | u128::MAX.checked_shr(bits).unwrap_or(0))
    }
}

/// The rules with one peer.
#[derive(Clone, Debug, Default)]
struct Peer {
    allowed: Vec<Allowed>,
    ports: Ports,
}

/// Rules of one group in one direction. Compiled parts are kept: a change compiles only the parts
/// that it changes.
#[derive(Default)]
pub(super) struct ByPeer {
    blocks: BTreeMap<(Address, Address), Peer>,
    groups: BTreeMap<u32, Peer>,
    rules: usize,
    side: Option<Arc<Allowance>>,
}

impl ByPeer {
    /// Returns the number of rules.
    pub fn rules(&self) -> usize {
        self.rules
    }

    pub fn add(&mut self, about: RulePeer, allowed: Allowed) {
        self.change(about, |rules| rules.push(allowed));
    }

    /// Removes the rule with this cell.
    pub fn remove(&mut self, about: RulePeer, cell: u32) {
        self.change(about, |rules| rules.retain(|rule| rule.cell != cell));
    }

    fn change(&mut self, about: RulePeer, change: impl FnOnce(&mut Vec<Allowed>)) {
        let peer = match about {
            RulePeer::Block(first, last) => self.blocks.entry((first, last)).or_default(),
            RulePeer::Group(group) => self.groups.entry(group).or_default(),
        };
        let before = peer.allowed.len();
        change(&mut peer.allowed);
        self.rules = self.rules + peer.allowed.len() - before;
        peer.ports = Ports::new(&peer.allowed);
        if peer.allowed.is_empty() {
            match about {
                RulePeer::Block(first, last) => self.blocks.remove(&(first, last)),
                RulePeer::Group(group) => self.groups.remove(&group),
            };
        }
        self.side = None;
    }

    /// Returns the compiled rules, the same for all callers until they change.
    pub fn side(&mut self) -> Arc<Allowance> {
        let (blocks, groups) = (&self.blocks, &self.groups);
        let compiled = self.side.get_or_insert_with(|| {
            let blocks = blocks.iter().map(|(range, peer)| (*range, peer.ports.clone()));
            Arc::new(compile(
                blocks,
                groups.iter().map(|(group, peer)| (*group, peer.ports.clone())),
            ))
        });
        compiled.clone()
    }

    /// Compiles all as one.
    pub fn merged<'a>(all: impl Iterator<Item = &'a ByPeer>) -> Allowance {
        let (mut blocks, mut groups) =
            (BTreeMap::<_, Vec<Allowed>>::new(), BTreeMap::<_, Vec<Allowed>>::new());
        for one in all {
            one.blocks.iter().for_each(|(range, peer)| {
                blocks.entry(*range).or_default().extend_from_slice(&peer.allowed)
            });
            one.groups.iter().for_each(|(group, peer)| {
                groups.entry(*group).or_default().extend_from_slice(&peer.allowed)
            });
        }
        let blocks = blocks.into_iter().map(|(range, rules)| (range, Ports::new(&rules)));
        compile(blocks, groups.into_iter().map(|(group, rules)| (group, Ports::new(&rules))))
    }
}

fn compile(
    blocks: impl Iterator<Item = ((Address, Address), Ports)>,
    groups: impl Iterator<Item = (u32, Ports)>,
) -> Allowance {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for ((first, last), ports) in blocks {
        // An IPv6 block around all of IPv4's numbers does not include IPv4.
        let family = if is_v4(first) && is_v4(last) { &mut v4 } else { &mut v6 };
        family.push((first, last, ports));
    }
    Allowance { v4: Blocks::new(v4), v6: Blocks::new(v6), groups: groups.collect() }
}

//! The groups as declared, and which compiled policies follow from them. Control side only.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Weak},
};

use butterfly_model::{Cidr, Direction, GroupName, Peer, Rule, SecurityGroup};

use super::number;
use super::{
    Allowed, Blocks, Members, Policy, Ports, Side,
    cells::{Cells, MAX_CELLS},
};
use crate::flow::{Address, is_v4};

/// A change of one group.
#[derive(Clone, Debug)]
pub enum GroupChange {
    /// It is this from now on.
    Declare(SecurityGroup),
    /// It does not exist any more. Vnics and rules may go on naming it.
    Forget,
    /// One more member.
    AddMember(IpAddr),
    /// One member less.
    RemoveMember(IpAddr),
    /// One more rule.
    AddRule(Rule),
    /// One rule less.
    RemoveRule(Rule),
}

/// There are more rules than cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyRules;

type RuleKey = (u64, String);

#[derive(Default)]
struct Declared {
    members: HashSet<Address>,
    rules: BTreeMap<RuleKey, (Rule, u32)>,
}

/// What a change means for vnics and sessions.
#[derive(Default)]
pub(crate) struct Effect {
    /// Policies by the groups that they are of, compiled anew.
    pub policies: Vec<(Arc<[u32]>, Arc<Policy>)>,
    /// Cells of rules whose sessions are to be decided again.
    pub taken_back: Vec<u32>,
    /// Members of which group came (true) or went.
    members: Vec<(Address, u32, bool)>,
}

impl Effect {
    /// Whether nothing follows.
    pub fn is_nothing(&self) -> bool {
        self.policies.is_empty() && self.taken_back.is_empty() && self.members.is_empty()
    }

    /// Carries the change of members out.
    pub fn change_members(&self, members: &mut Members) {
        for (address, group, came) in &self.members {
            let mut of: Vec<u32> = members.get(address).map(|of| of.to_vec()).unwrap_or_default();
            match (of.binary_search(group), came) {
                (Err(at), true) => of.insert(at, *group),
                (Ok(at), false) => drop(of.remove(at)),
                _ => continue,
            }
            if of.is_empty() {
                members.remove(address)
            } else {
                members.insert(*address, of.into())
            };
        }
    }
}

/// All groups.
#[derive(Default)]
pub(crate) struct Groups {
    /// A number for each name that was ever used.
    numbers: HashMap<GroupName, u32>,
    declared: HashMap<u32, Declared>,
    /// Compiled policies in use, by the groups they are of, ascending.
    compiled: HashMap<Arc<[u32]>, Weak<Policy>>,
    /// Cells of the rules whose peers are a group's members.
    about: HashMap<u32, HashSet<u32>>,
    free_cells: Vec<u32>,
    /// Cells that were in use.
    used_cells: u32,
}

impl Groups {
    fn number_of(&mut self, name: &GroupName) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(name.clone()).or_insert(next)
    }

    /// The policy of a vnic with these groups, and their numbers.
    pub fn policy(&mut self, names: &[GroupName]) -> (Arc<[u32]>, Arc<Policy>) {
        let mut numbers: Vec<u32> = names.iter().map(|name| self.number_of(name)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let numbers: Arc<[u32]> = numbers.into();
        if let Some(policy) = self.compiled.get(&numbers).and_then(Weak::upgrade) {
            return (numbers, policy);
        }
        let policy = Arc::new(self.compile(&numbers));
        self.compiled.retain(|_, policy| policy.strong_count() > 0);
        self.compiled.insert(numbers.clone(), Arc::downgrade(&policy));
        (numbers, policy)
    }

    fn compile(&mut self, numbers: &[u32]) -> Policy {
        let (mut inbound, mut outbound) = (SideBuilder::default(), SideBuilder::default());
        for number in numbers {
            let Some(group) = self.declared.get(number) else { continue };
            for (rule, cell) in group.rules.values() {
                let allowed = Allowed { protocol: rule.protocol(), ports: rule.ports(), cell: *cell };
                let side = match rule.direction() {
                    Direction::Inbound => &mut inbound,
                    Direction::Outbound => &mut outbound,
                };
                match rule.peer() {
                    Peer::Cidr(cidr) => side.blocks.entry(range(cidr)).or_default().push(allowed),
                    Peer::SecurityGroup(name) => {
                        // Named by a rule: it has its number since the rule was added.
                        if let Some(group) = self.numbers.get(name) {
                            side.groups.entry(*group).or_default().push(allowed);
                        }
                    }
                }
                side.any = true;
            }
        }
        let egress = outbound.any.then(|| outbound.build());
        Policy { ingress: inbound.build(), egress }
    }

    /// Changes a group. On an error nothing has changed.
    pub fn change(&mut self, name: &GroupName, change: GroupChange, cells: &Cells) -> Result<Effect, TooManyRules> {
        let group = self.number_of(name);
        let mut effect = Effect::default();
        let mut rules_changed = false;
        match change {
            GroupChange::AddMember(ip) => self.member(group, number(ip), true, &mut effect),
            GroupChange::RemoveMember(ip) => self.member(group, number(ip), false, &mut effect),
            GroupChange::AddRule(rule) => {
                self.room(1)?;
                rules_changed = self.add_rule(group, rule, cells);
            }
            GroupChange::RemoveRule(rule) => rules_changed = self.remove_rule(group, &rule.key(), &mut effect),
            GroupChange::Forget => {
                rules_changed = self.declare(group, &HashSet::new(), BTreeMap::new(), cells, &mut effect);
                self.declared.remove(&group);
            }
            GroupChange::Declare(new) => {
                self.room(new.rules().len())?;
                let members = new.members().addresses().map(number).collect();
                let rules = new.rules().map(|rule| (rule.key(), rule.clone())).collect();
                rules_changed = self.declare(group, &members, rules, cells, &mut effect);
            }
        }
        if rules_changed {
            self.compile_again(group, &mut effect);
        }
        Ok(effect)
    }

    fn room(&self, rules: usize) -> Result<(), TooManyRules> {
        let free = self.free_cells.len() + (MAX_CELLS - 1 - self.used_cells) as usize;
        if rules > free { Err(TooManyRules) } else { Ok(()) }
    }

    fn declare(
        &mut self,
        number: u32,
        members: &HashSet<Address>,
        rules: BTreeMap<RuleKey, Rule>,
        cells: &Cells,
        effect: &mut Effect,
    ) -> bool {
        let old = self.declared.entry(number).or_default();
        let gone: Vec<Address> = old.members.difference(members).copied().collect();
        let come: Vec<Address> = members.difference(&old.members).copied().collect();
        let obsolete: Vec<RuleKey> = old.rules.keys().filter(|key| !rules.contains_key(*key)).cloned().collect();
        gone.into_iter().for_each(|member| self.member(number, member, false, effect));
        come.into_iter().for_each(|member| self.member(number, member, true, effect));
        let mut changed = false;
        for key in obsolete {
            changed |= self.remove_rule(number, &key, effect);
        }
        for rule in rules.into_values() {
            changed |= self.add_rule(number, rule, cells);
        }
        changed
    }

    fn member(&mut self, number: u32, address: Address, come: bool, effect: &mut Effect) {
        let members = &mut self.declared.entry(number).or_default().members;
        let changed = if come { members.insert(address) } else { members.remove(&address) };
        if changed {
            effect.members.push((address, number, come));
            if !come {
                effect.taken_back.extend(self.about.get(&number).into_iter().flatten());
            }
        }
    }

    fn add_rule(&mut self, number: u32, rule: Rule, cells: &Cells) -> bool {
        let key = rule.key();
        if self.declared.entry(number).or_default().rules.contains_key(&key) {
            return false;
        }
        let cell = self.free_cells.pop().unwrap_or_else(|| {
            self.used_cells += 1;
            self.used_cells
        });
        cells.reset_count(cell);
        if let Peer::SecurityGroup(peer) = rule.peer() {
            let peer = self.number_of(peer);
            self.about.entry(peer).or_default().insert(cell);
        }
        self.declared.entry(number).or_default().rules.insert(key, (rule, cell));
        true
    }

    fn remove_rule(&mut self, number: u32, key: &RuleKey, effect: &mut Effect) -> bool {
        let Some((rule, cell)) = self.declared.get_mut(&number).and_then(|group| group.rules.remove(key)) else { return false };
        if let Peer::SecurityGroup(peer) = rule.peer() {
            let peer = self.number_of(peer);
            if let Some(about) = self.about.get_mut(&peer) {
                about.remove(&cell);
            }
        }
        effect.taken_back.push(cell);
        // Whatever it admitted is older than what took it back: the next rule may have the cell.
        self.free_cells.push(cell);
        true
    }

    fn compile_again(&mut self, number: u32, effect: &mut Effect) {
        let affected: Vec<Arc<[u32]>> = self
            .compiled
            .iter()
            .filter(|(groups, policy)| groups.binary_search(&number).is_ok() && policy.strong_count() > 0)
            .map(|(groups, _)| groups.clone())
            .collect();
        for groups in affected {
            let policy = Arc::new(self.compile(&groups));
            self.compiled.insert(groups.clone(), Arc::downgrade(&policy));
            effect.policies.push((groups, policy));
        }
    }

    /// The rule of a cell, and its group.
    pub fn rules_by_cell(&self) -> HashMap<u32, (GroupName, Rule)> {
        let names: HashMap<u32, &GroupName> = self.numbers.iter().map(|(name, number)| (*number, name)).collect();
        let rules = self.declared.iter().flat_map(|(number, group)| group.rules.values().map(move |rule| (number, rule)));
        rules.filter_map(|(number, (rule, cell))| Some((*cell, ((*names.get(number)?).clone(), rule.clone())))).collect()
    }

    /// The names of groups by their numbers, in byte order, and the rules of those that exist.
    pub fn declared(&self, numbers: &[u32]) -> Vec<(GroupName, Option<Vec<Rule>>)> {
        let wanted = self.numbers.iter().filter(|(_, number)| numbers.contains(number));
        let rules = |number: &u32| Some(self.declared.get(number)?.rules.values().map(|(rule, _)| rule.clone()).collect());
        let mut all: Vec<_> = wanted.map(|(name, number)| (name.clone(), rules(number))).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// The number of a group, if its name was ever used.
    pub fn known_number(&self, name: &GroupName) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The rules of a group with their cells.
    pub fn rules_of(&self, name: &GroupName) -> impl Iterator<Item = (&Rule, u32)> {
        let declared = self.numbers.get(name).and_then(|number| self.declared.get(number));
        declared.into_iter().flat_map(|group| group.rules.values().map(|(rule, cell)| (rule, *cell)))
    }
}

/// First and last address of a block.
fn range(cidr: &Cidr) -> (Address, Address) {
    let first = number(cidr.network());
    let bits = match cidr.network() {
        IpAddr::V4(_) => 96 + u32::from(cidr.mask_size()),
        IpAddr::V6(_) => u32::from(cidr.mask_size()),
    };
    (first, first | u128::MAX.checked_shr(bits).unwrap_or(0))
}

#[derive(Default)]
struct SideBuilder {
    blocks: BTreeMap<(Address, Address), Vec<Allowed>>,
    groups: BTreeMap<u32, Vec<Allowed>>,
    any: bool,
}

impl SideBuilder {
    fn build(self) -> Side {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for ((first, last), rules) in self.blocks {
            // A block of IPv6 around all of IPv4's numbers does not mean those.
            let family = if is_v4(first) && is_v4(last) { &mut v4 } else { &mut v6 };
            family.push((first, last, Ports::new(&rules)));
        }
        let groups = self.groups.into_iter().map(|(group, rules)| (group, Ports::new(&rules))).collect();
        Side { v4: Blocks::new(v4), v6: Blocks::new(v6), groups }
    }
}

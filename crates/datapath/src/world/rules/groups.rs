//! The groups as declared, and the compiled policies that follow from them. Control side only.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Weak},
};

use butterfly_model::{Direction, GroupName, Member, Peer, Protocol, Rule, SecurityGroup};
use butterfly_packet::protocol::{ICMP, ICMPV6, UDP};

use crate::ip::Dhcp;
use crate::world::rules::{
    Allowance, Allowed, Layers, Members, NARROW, Policy,
    by_peer::{ByPeer, RulePeer},
    cells::{Cells, MAX_CELLS},
};

/// Number of rules from which a group is compiled once for all vnics that have it. Smaller groups
/// are faster to merge than to search one by one.
const LARGE: usize = 64;
/// Most of a vnic's groups that are compiled separately: the largest ones. Each takes a search for
/// every new session.
const MOST_SHARED: usize = 3;

/// A change of one group.
#[derive(Clone, Debug)]
pub enum GroupChange {
    /// Declares the group, or replaces it.
    Declare(SecurityGroup),
    /// Deletes the group. Vnics and rules may go on naming it.
    Forget,
    /// Adds a member.
    AddMember(Member),
    /// Removes a member.
    RemoveMember(Member),
    /// Adds a rule.
    AddRule(Rule),
    /// Removes a rule.
    RemoveRule(Rule),
}

/// There are more rules than cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooManyRules;

type RuleKey = (u64, String);

#[derive(Default)]
struct Declared {
    members: HashSet<Member>,
    rules: BTreeMap<RuleKey, (Rule, u32)>,
    inbound: ByPeer,
    outbound: ByPeer,
    /// Rules of [`Policy::serves`] or [`Policy::names`], by direction.
    serves: ByPeer,
    names: ByPeer,
}

/// Returns whether a rule is one of [`Policy::serves`] or [`Policy::names`], by its direction.
fn is_infrastructure(direction: Direction, allowed: &Allowed) -> bool {
    let narrow = allowed.ports.as_ref().filter(|ports| ports.len() <= NARROW);
    match (direction, allowed.protocol) {
        (Direction::Inbound, Protocol::Number(UDP)) => narrow.is_some_and(Dhcp::names_server),
        (Direction::Outbound, Protocol::Number(UDP)) => narrow.is_some_and(Dhcp::names_client),
        (Direction::Outbound, Protocol::Number(ICMP | ICMPV6)) => true,
        _ => false,
    }
}

impl Declared {
    fn by_peer(&self, direction: Direction) -> &ByPeer {
        match direction {
            Direction::Inbound => &self.inbound,
            Direction::Outbound => &self.outbound,
        }
    }

    fn by_peer_mut(&mut self, direction: Direction) -> &mut ByPeer {
        match direction {
            Direction::Inbound => &mut self.inbound,
            Direction::Outbound => &mut self.outbound,
        }
    }

    fn infrastructure(&mut self, direction: Direction) -> &mut ByPeer {
        match direction {
            Direction::Inbound => &mut self.serves,
            Direction::Outbound => &mut self.names,
        }
    }
}

/// Effect of a change on vnics and sessions.
#[derive(Default)]
pub(crate) struct Effect {
    /// Policies that were compiled again, by their groups.
    pub policies: Vec<(Arc<[u32]>, Arc<Policy>)>,
    /// Cells of rules whose sessions are to be decided again.
    pub taken_back: Vec<u32>,
    /// Members that came (true) or went, with their group.
    members: Vec<(Member, u32, bool)>,
}

impl Effect {
    /// Returns whether there is no effect.
    pub fn is_nothing(&self) -> bool {
        self.policies.is_empty() && self.taken_back.is_empty() && self.members.is_empty()
    }

    /// Applies the change of members.
    pub fn change_members(&self, members: &mut Members) {
        self.members
            .iter()
            .for_each(|(member, group, came)| members.change(*member, *group, *came));
    }
}

/// All groups.
#[derive(Default)]
pub(crate) struct Groups {
    /// A number for each name that was ever used.
    numbers: HashMap<GroupName, u32>,
    declared: HashMap<u32, Declared>,
    /// Compiled policies in use, by their groups, ascending.
    compiled: HashMap<Arc<[u32]>, Weak<Policy>>,
    /// Cells of the rules whose peers are a group's members.
    members_of: HashMap<u32, HashSet<u32>>,
    free_cells: Vec<u32>,
    /// Number of cells that were ever used.
    used_cells: u32,
}

impl Groups {
    fn number_of(&mut self, name: &GroupName) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(name.clone()).or_insert(next)
    }

    /// Returns the policy of a vnic with these groups, and their numbers.
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
        Policy {
            ingress: self.layers(numbers, Direction::Inbound).unwrap_or_default(),
            egress: self.layers(numbers, Direction::Outbound),
            serves: self.merged(numbers, |group| &group.serves),
            names: self.merged(numbers, |group| &group.names),
        }
    }

    /// Merges some of the rules of groups, of which there are few.
    fn merged(&self, numbers: &[u32], rules: impl Fn(&Declared) -> &ByPeer) -> Allowance {
        ByPeer::merged(numbers.iter().filter_map(|number| self.declared.get(number)).map(rules))
    }

    /// Returns the rules of groups in one direction; `None` if they have no rule of it.
    fn layers(&mut self, numbers: &[u32], direction: Direction) -> Option<Layers> {
        let rules = |number: &u32| {
            self.declared.get(number).map_or(0, |group| group.by_peer(direction).rules())
        };
        let mut groups: Vec<(usize, u32)> =
            numbers.iter().map(|number| (rules(number), *number)).collect();
        groups.retain(|(rules, _)| *rules > 0);
        groups.sort_unstable_by(|a, b| b.cmp(a));
        let large =
            groups.iter().take(MOST_SHARED).take_while(|(rules, _)| *rules >= LARGE).count();
        let (large, small) = groups.split_at(large);
        let small = small.iter().filter_map(|(_, number)| self.declared.get(number));
        let merged = ByPeer::merged(small.map(|group| group.by_peer(direction)));
        let mut side = |number| Some(self.declared.get_mut(number)?.by_peer_mut(direction).side());
        let shared = large.iter().filter_map(|(_, number)| side(number)).collect();
        (!groups.is_empty()).then_some(Layers { merged, shared })
    }

    /// Changes a group. On an error nothing has changed.
    pub fn change(
        &mut self,
        name: &GroupName,
        change: GroupChange,
        cells: &Cells,
    ) -> Result<Effect, TooManyRules> {
        let group = self.number_of(name);
        let mut effect = Effect::default();
        let mut rules_changed = false;
        match change {
            GroupChange::AddMember(member) => self.member(group, member, true, &mut effect),
            GroupChange::RemoveMember(member) => self.member(group, member, false, &mut effect),
            GroupChange::AddRule(rule) => {
                self.room(1, 0)?;
                rules_changed = self.add_rule(group, rule, cells);
            }
            GroupChange::RemoveRule(rule) => {
                rules_changed = self.remove_rule(group, &rule.key(), &mut effect)
            }
            GroupChange::Forget => {
                rules_changed =
                    self.declare(group, &HashSet::new(), BTreeMap::new(), cells, &mut effect);
                self.declared.remove(&group);
            }
            GroupChange::Declare(new) => {
                let members = new.members().iter().collect();
                let rules: BTreeMap<RuleKey, Rule> =
                    new.rules().map(|rule| (rule.key(), rule.clone())).collect();
                let old = self.declared.get(&group);
                let stay = old.map_or(0, |old| {
                    old.rules.keys().filter(|key| rules.contains_key(*key)).count()
                });
                self.room(rules.len() - stay, old.map_or(0, |old| old.rules.len()) - stay)?;
                rules_changed = self.declare(group, &members, rules, cells, &mut effect);
            }
        }
        if rules_changed {
            self.compile_again(group, &mut effect);
        }
        Ok(effect)
    }

    fn room(&self, rules: usize, freed: usize) -> Result<(), TooManyRules> {
        let free = self.free_cells.len() + (MAX_CELLS - 1 - self.used_cells) as usize + freed;
        if rules > free { Err(TooManyRules) } else { Ok(()) }
    }

    fn declare(
        &mut self,
        number: u32,
        members: &HashSet<Member>,
        rules: BTreeMap<RuleKey, Rule>,
        cells: &Cells,
        effect: &mut Effect,
    ) -> bool {
        let old = self.declared.entry(number).or_default();
        let gone: Vec<Member> = old.members.difference(members).copied().collect();
        let come: Vec<Member> = members.difference(&old.members).copied().collect();
        let obsolete: Vec<RuleKey> =
            old.rules.keys().filter(|key| !rules.contains_key(*key)).cloned().collect();
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

    fn member(&mut self, number: u32, member: Member, come: bool, effect: &mut Effect) {
        let members = &mut self.declared.entry(number).or_default().members;
        let changed = if come { members.insert(member) } else { members.remove(&member) };
        if changed {
            effect.members.push((member, number, come));
            if !come {
                effect.taken_back.extend(self.members_of.get(&number).into_iter().flatten());
            }
        }
    }

    fn about(&mut self, rule: &Rule) -> RulePeer {
        match rule.peer() {
            Peer::Cidr(cidr) => RulePeer::block(cidr),
            Peer::SecurityGroup(name) => RulePeer::Group(self.number_of(name)),
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
        let about = self.about(&rule);
        if let RulePeer::Group(peer) = about {
            self.members_of.entry(peer).or_default().insert(cell);
        }
        let group = self.declared.entry(number).or_default();
        let allowed = Allowed { protocol: rule.protocol(), ports: rule.ports(), cell };
        if is_infrastructure(rule.direction(), &allowed) {
            group.infrastructure(rule.direction()).add(about, allowed.clone());
        }
        group.by_peer_mut(rule.direction()).add(about, allowed);
        group.rules.insert(key, (rule, cell));
        true
    }

    fn remove_rule(&mut self, number: u32, key: &RuleKey, effect: &mut Effect) -> bool {
        let Some((rule, cell)) =
            self.declared.get_mut(&number).and_then(|group| group.rules.remove(key))
        else {
            return false;
        };
        let about = self.about(&rule);
        if let RulePeer::Group(peer) = about
            && let Some(cells) = self.members_of.get_mut(&peer)
        {
            cells.remove(&cell);
        }
        if let Some(group) = self.declared.get_mut(&number) {
            group.by_peer_mut(rule.direction()).remove(about, cell);
            group.infrastructure(rule.direction()).remove(about, cell);
        }
        effect.taken_back.push(cell);
        // The rule's admissions are older than this change, so the next rule may have the cell.
        self.free_cells.push(cell);
        true
    }

    fn compile_again(&mut self, number: u32, effect: &mut Effect) {
        let affected: Vec<Arc<[u32]>> = self
            .compiled
            .iter()
            .filter(|(groups, policy)| {
                groups.binary_search(&number).is_ok() && policy.strong_count() > 0
            })
            .map(|(groups, _)| groups.clone())
            .collect();
        for groups in affected {
            let policy = Arc::new(self.compile(&groups));
            self.compiled.insert(groups.clone(), Arc::downgrade(&policy));
            effect.policies.push((groups, policy));
        }
    }

    /// Returns all rules by their cells, with their groups.
    pub fn rules_by_cell(&self) -> HashMap<u32, (GroupName, Rule)> {
        let names: HashMap<u32, &GroupName> =
            self.numbers.iter().map(|(name, number)| (*number, name)).collect();
        let rules = self
            .declared
            .iter()
            .flat_map(|(number, group)| group.rules.values().map(move |rule| (number, rule)));
        rules
            .filter_map(|(number, (rule, cell))| {
                Some((*cell, ((*names.get(number)?).clone(), rule.clone())))
            })
            .collect()
    }

    /// Returns the names of groups by their numbers, in byte order, and the rules of groups that
    /// exist.
    pub fn declared(&self, numbers: &[u32]) -> Vec<(GroupName, Option<Vec<Rule>>)> {
        let wanted = self.numbers.iter().filter(|(_, number)| numbers.contains(number));
        let rules = |number: &u32| {
            Some(self.declared.get(number)?.rules.values().map(|(rule, _)| rule.clone()).collect())
        };
        let mut all: Vec<_> = wanted.map(|(name, number)| (name.clone(), rules(number))).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// Returns the number of a group, if its name was ever used.
    pub fn known_number(&self, name: &GroupName) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns the rules of a group with their cells.
    pub fn rules_of(&self, name: &GroupName) -> impl Iterator<Item = (&Rule, u32)> {
        let declared = self.numbers.get(name).and_then(|number| self.declared.get(number));
        declared
            .into_iter()
            .flat_map(|group| group.rules.values().map(|(rule, cell)| (rule, *cell)))
    }
}

#[cfg(test)]
mod tests;

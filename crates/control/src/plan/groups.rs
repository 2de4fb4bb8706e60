//! Security groups: what changes before the vnics, and what after them.

use crate::{change::Change, desired::Desired, vnics::Vnics};
use butterfly_model::{
    Direction, GroupName, GroupNames, Member, MemberSet, Nic, Peer, Rule, SecurityGroup,
    TraceOptions,
};
use std::collections::{BTreeSet, HashSet};

/// Changes of security groups, by when they are made.
#[derive(Default)]
pub(super) struct Stages {
    /// Groups that nothing mentions yet.
    pub fresh: Vec<Change>,
    /// Members go.
    pub shrink: Vec<Change>,
    /// Rules change before the vnics do. From then on until the vnics have changed a group with
    /// OUTBOUND rules in one of the states has one.
    pub early: Vec<Change>,
    /// Rules change after the vnics did.
    pub late: Vec<Change>,
    /// Members come.
    pub grow: Vec<Change>,
}

impl Stages {
    pub fn between(old: &Desired, new: &Desired) -> Stages {
        let mut stages = Stages::default();
        let names: BTreeSet<&GroupName> = old.groups().keys().chain(new.groups().keys()).collect();
        let changed = |name: &&GroupName| old.groups().get(*name) != new.groups().get(*name);
        let changed: Vec<&GroupName> = names.into_iter().filter(changed).collect();
        if changed.is_empty() {
            return stages;
        }
        let closed = closed(old, new);
        let mentioned = mentioned(old);
        let leavers = only_in(old.vnics(), new.vnics());
        let joiners = only_in(new.vnics(), old.vnics());
        for name in changed {
            let (was, will) = (old.groups().get(name), new.groups().get(name));
            match will.filter(|_| was.is_none() && !mentioned.contains(name)) {
                Some(group) => stages.fresh.push(Change::DeclareGroup(group.clone())),
                None => stages.change(
                    name,
                    was,
                    will,
                    (leavers.contains(name), joiners.contains(name)),
                    closed.as_ref(),
                ),
            }
        }
        stages
    }

    /// Adds what has to happen with one group that vnics leave or join.
    fn change(
        &mut self,
        name: &GroupName,
        was: Option<&SecurityGroup>,
        will: Option<&SecurityGroup>,
        (left, joined): (bool, bool),
        closed: Option<&Rule>,
    ) {
        let members: Vec<Member> = members(was).filter(|member| has(will, *member)).collect();
        let with = |rules: Vec<&Rule>| group(name, &members, rules);
        let all = |group: Option<&SecurityGroup>| -> Vec<Rule> {
            group.into_iter().flat_map(SecurityGroup::rules).cloned().collect()
        };
        let (old, new) = (all(was), all(will));
        let known: HashSet<(u64, String)> = new.iter().map(Rule::key).collect();
        let stay = || old.iter().filter(|rule| known.contains(&rule.key())).collect();
        let shrunk = with(old.iter().collect());
        let mut early = match (left, joined) {
            (false, _) => with(new.iter().collect()),
            (true, false) => shrunk.clone(),
            (true, true) => with(stay()),
        };
        let late = with(new.iter().collect());
        let limits = [was, will].into_iter().flatten().any(limits_egress);
        if let Some(closed) = closed.filter(|_| limits && !limits_egress(&early)) {
            early.add_rule(closed.clone());
        }
        let mut state = was.cloned();
        let mut step = |stage: &mut Vec<Change>, next: Option<SecurityGroup>| {
            if next != state {
                stage.push(match &next {
                    Some(group) => Change::DeclareGroup(group.clone()),
                    None => Change::RemoveGroup(name.clone()),
                });
                state = next;
            }
        };
        // A group without anything in it is as good as none.
        let step_to = |group: &SecurityGroup| {
            let empty = group.members().is_empty() && group.rules().len() == 0;
            (!empty || (was.is_some() && will.is_some())).then(|| group.clone())
        };
        step(&mut self.shrink, step_to(&shrunk));
        step(&mut self.early, step_to(&early));
        step(&mut self.late, step_to(&late));
        step(&mut self.grow, will.cloned());
    }
}

/// True if the vnics of a group need a rule to send.
fn limits_egress(group: &SecurityGroup) -> bool {
    group.rules().any(|rule| rule.direction() == Direction::Outbound)
}

/// A rule that lets nothing out: it is about a group that neither state has.
fn closed(old: &Desired, new: &Desired) -> Option<Rule> {
    let mut name = "nobody".to_owned();
    while [old, new].iter().any(|state| state.groups().contains_key(name.as_str())) {
        name.push('-');
    }
    let nobody = GroupName::new(&name).ok();
    Rule::new(Direction::Outbound, -1, (None, None), None, nobody).ok()
}

fn group(name: &GroupName, members: &[Member], rules: Vec<&Rule>) -> SecurityGroup {
    let mut group = SecurityGroup::empty(name.clone());
    for member in members {
        group.add_member(*member);
    }
    for rule in rules {
        group.add_rule(rule.clone());
    }
    group
}

fn members(group: Option<&SecurityGroup>) -> impl Iterator<Item = Member> {
    group.map(SecurityGroup::members).into_iter().flat_map(MemberSet::iter)
}

fn has(group: Option<&SecurityGroup>, member: Member) -> bool {
    group.is_some_and(|group| group.members().contains(member))
}

/// Groups that vnics or rules name.
fn mentioned(state: &Desired) -> HashSet<&GroupName> {
    let by_vnics = state.vnics().iter().flat_map(|nic| nic.security_groups.names());
    let by_rules = state.groups().values().flat_map(SecurityGroup::rules);
    let by_rules = by_rules.filter_map(|rule| match rule.peer() {
        Peer::SecurityGroup(name) => Some(name),
        Peer::Cidr(_) => None,
    });
    by_vnics.chain(by_rules).collect()
}

/// Groups of vnics that are not in `others`, or are others there, or do not have the group there.
fn only_in<'a>(vnics: &'a Vnics, others: &Vnics) -> HashSet<&'a GroupName> {
    let groups = vnics.iter().flat_map(|nic| {
        let other = others.get(nic.id.as_str()).filter(|other| is_alike(nic, other));
        let kept: HashSet<&GroupName> =
            other.into_iter().flat_map(|other| other.security_groups.names()).collect();
        nic.security_groups.names().iter().filter(move |name| !kept.contains(name))
    });
    groups.collect()
}

/// True if two vnics have the same properties that rules depend on, apart from their groups.
fn is_alike(one: &Nic, other: &Nic) -> bool {
    let bare = |nic: &Nic| Nic {
        security_groups: GroupNames::default(),
        kind: one.kind.clone(),
        packet_trace: false,
        packet_trace_path: None,
        trace_options: TraceOptions::default(),
        mac: one.mac.clone(),
        ..nic.clone()
    };
    one.mac.octets() == other.mac.octets() && bare(one) == bare(other)
}

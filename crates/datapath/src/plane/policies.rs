//! Policies: the rules of vnics, and of the security groups that they are made of.

use std::{collections::HashMap, sync::Arc};

use butterfly_model::{GroupName, Rule};

use crate::engine::mac::number;
use crate::plane::{
    AddError, Plane,
    networks::{rebuild_network, rehold},
    updates::Update,
};
use crate::world::{
    policy::VnicPolicy,
    rules::{GroupChange, Groups},
    snapshot::{Rules, Snapshot, Vnic, VnicShared},
};

pub(super) fn rules(policy: &VnicPolicy, groups: &mut Groups) -> Rules {
    Rules::new(policy, groups.policy(&policy.groups))
}

impl Plane {
    /// Gives a vnic another policy. When this returns, no worker uses the old one.
    pub fn update(&self, id: &str, policy: &VnicPolicy) -> Result<(), AddError> {
        let mut state = self.state();
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        let place = state.by_id.get(id).copied();
        let Some(old) = place.and_then(|place| next.vnic(place).cloned()) else {
            return Err(AddError::Unknown(id.to_owned()));
        };
        let mut rules = rules(policy, &mut state.groups);
        rules.bypass &= !old.is_mirror();
        if rules.declared_like(&old.rules) {
            return Ok(());
        }
        self.next_version(&mut next);
        // Its numbers may have begun again.
        let old = next.vnic(old.place).cloned().unwrap_or(old);
        let rebuild = rules.bypass != old.rules.bypass;
        state.routed.untold_prefixes(old.place, &old.rules, &rules);
        let new = Arc::new(changed(&old, rules, next.version));
        next.vnics.set(old.place.slot, Some(new.clone()));
        if rebuild {
            let remote = self.remote(&state, &next, old.vni, old.network);
            rebuild_network(&mut next, old.vni, old.network, remote);
        }
        rehold(&mut next, Some(&old), &new);
        let waited = self.waiting_in(old.network);
        self.publish(next);
        self.take_over(old.network, &waited);
        self.updates.add(Update::VnicChanged);
        if !policy.bypass && old.rules.bypass {
            self.forget(|learnt| {
                learnt.place == old.place
                    || (learnt.vni == old.vni && learnt.mac == number(old.mac))
            });
        }
        Ok(())
    }

    /// Changes a security group. When this returns, no worker uses the old one. On an error nothing
    /// has changed.
    pub fn change_group(&self, name: &GroupName, change: GroupChange) -> Result<(), AddError> {
        let mut state = self.state();
        let effect = state
            .groups
            .change(name, change, &self.shared.cells)
            .map_err(|_| AddError::TooManyRules)?;
        if effect.is_nothing() {
            return Ok(());
        }
        let mut next = Snapshot::clone(&self.shared.snapshot.load());
        self.next_version(&mut next);
        effect.change_members(&mut next.members);
        for (groups, policy) in &effect.policies {
            let affected: Vec<Arc<Vnic>> = next
                .vnics
                .iter()
                .map(|(_, vnic)| vnic)
                .filter(|vnic| vnic.rules.groups == *groups)
                .cloned()
                .collect();
            for old in affected {
                let rules = Rules { policy: policy.clone(), ..old.rules.clone() };
                next.vnics.set(old.place.slot, Some(Arc::new(changed(&old, rules, next.version))));
            }
        }
        // Before workers have the new rules: a decision by the old ones is older than this.
        for cell in &effect.taken_back {
            self.shared.cells.take_back(*cell, next.version);
        }
        self.publish(next);
        self.updates.add(Update::GroupChanged);
        Ok(())
    }

    /// Returns the rules of a group, each with the number of sessions it admitted.
    pub fn admissions(&self, name: &GroupName) -> Vec<(Rule, u64)> {
        let state = self.state();
        state
            .groups
            .rules_of(name)
            .map(|(rule, cell)| (rule.clone(), self.shared.cells.counted(cell)))
            .collect()
    }

    /// Returns all rules by their cells, each with the name of its group.
    pub fn rules_by_cell(&self) -> HashMap<u32, (GroupName, Rule)> {
        self.state().groups.rules_by_cell()
    }

    /// Returns the names of groups by their numbers, and the rules of groups that exist.
    pub fn groups_of(&self, numbers: &[u32]) -> Vec<(GroupName, Option<Vec<Rule>>)> {
        self.state().groups.declared(numbers)
    }

    /// Returns the number of a group, if its name was ever used.
    pub fn group_number(&self, name: &GroupName) -> Option<u32> {
        self.state().groups.known_number(name)
    }
}

/// Returns a vnic with other rules.
pub(crate) fn copy_with(old: &Vnic, rules: Rules) -> Vnic {
    Vnic {
        id: old.id.clone(),
        place: old.place,
        mac: old.mac,
        order: old.order,
        vni: old.vni,
        network: old.network,
        kind: old.kind.clone(),
        born: old.born,
        since: old.since,
        rules,
        shared: old.shared.clone(),
    }
}

/// Makes what a vnic's rules need on the packet path.
pub(super) fn prepare(rules: &Rules, shared: &VnicShared) {
    if !rules.bypass && !rules.policy.serves.is_empty() {
        shared.dhcp.serve();
    }
}

/// Returns a vnic with other rules, as of a version.
fn changed(old: &Vnic, rules: Rules, version: u32) -> Vnic {
    prepare(&rules, &old.shared);
    let since = if rules.takes_back(&old.rules) { version } else { old.since };
    Vnic { since, ..copy_with(old, rules) }
}

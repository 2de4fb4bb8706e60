//! Vnics: who goes, changes and comes, and in which order.

use crate::{
    change::{Change, NicChange},
    vnics::{Vnics, station},
};
use butterfly_model::{Nic, NicId};
use std::collections::{BTreeMap, HashMap};

/// So many vnics that wait for each other's sockets give way one after the other; more are removed
/// first. Bounds the depth of a recursion.
const LONGEST_CHAIN: usize = 32;

pub(super) fn plan(old: &Vnics, new: &Vnics) -> Vec<Change> {
    let mut plan = Plan {
        now: old.clone(),
        new,
        orders: new.by_order().into_iter().map(|(order, id)| (id, order)).collect(),
        pending: BTreeMap::new(),
        changes: Vec::new(),
    };
    // The last declared first: nobody has the address that it waited for until it goes itself.
    for id in old.by_order().into_values().rev().filter(|id| new.get(id.as_str()).is_none()) {
        plan.remove(id);
    }
    for (station, line) in new.lines() {
        let stay: Vec<&NicId> = plan.now.line(station).filter(|id| plan.keeps_place(id)).collect();
        // The first of the new line stay if they were the first of those who stay.
        let first = line.zip(&stay).take_while(|(new, old)| new == *old).count();
        let doomed: Vec<NicId> = stay.into_iter().skip(first).cloned().collect();
        doomed.iter().for_each(|id| plan.remove(id));
    }
    for nic in new.iter() {
        match plan.now.get(nic.id.as_str()).map(|old| NicChange::between(old, nic)) {
            Some(NicChange::Nothing) => {}
            Some(NicChange::InPlace) => plan.change(nic),
            Some(NicChange::Recreate(_)) | None => plan.wait(&nic.id),
        }
    }
    while let Some(id) = plan.pending.first_key_value().map(|(_, id)| *id) {
        plan.place(id, &mut Vec::new());
    }
    plan.changes
}

struct Plan<'a> {
    /// The state after `changes`.
    now: Vnics,
    new: &'a Vnics,
    orders: HashMap<&'a NicId, u64>,
    /// Those to be made or made anew, by their order in the new state.
    pending: BTreeMap<u64, &'a NicId>,
    changes: Vec<Change>,
}

impl<'a> Plan<'a> {
    fn wait(&mut self, id: &NicId) {
        if let Some((id, order)) = self.orders.get_key_value(id) {
            self.pending.insert(*order, id);
        }
    }

    fn remove(&mut self, id: &NicId) {
        self.now.remove(id.as_str());
        self.changes.push(Change::RemoveVnic(id.clone()));
    }

    fn put(&mut self, change: Change, nic: &Nic) {
        self.now.insert(nic.clone());
        self.changes.push(change);
    }

    /// Changes a vnic in place. Others give back addresses of its before, or give way.
    fn change(&mut self, nic: &Nic) {
        while let Err(conflict) = self.now.check(nic) {
            // The new state is valid: what is in the way is one of the old state.
            let other = conflict.other().and_then(|other| self.now.get(other)).cloned();
            let Some(other) = other else { break };
            if !self.shrink(&other) {
                self.give_way(&other.id);
            }
        }
        self.put(Change::ChangeVnic(nic.clone().into()), nic);
    }

    /// Leaves a vnic that changes in place the addresses and prefixes that it has in both states.
    /// Returns whether it lost some by that.
    fn shrink(&mut self, old: &Nic) -> bool {
        let Some(new) = self.new.get(old.id.as_str()) else { return false };
        let mut left = old.clone();
        left.ips = old.ips.iter().filter(|it| new.ips.contains(*it)).collect();
        left.prefixes = old.prefixes.iter().filter(|it| new.prefixes.contains(*it)).collect();
        let shrinks = NicChange::between(old, new) == NicChange::InPlace
            && left != *old
            && self.now.check(&left).is_ok();
        if shrinks {
            self.put(Change::ChangeVnic(left.clone().into()), &left);
        }
        shrinks
    }

    /// True if a vnic that is there now is in the same line in the new state.
    fn keeps_place(&self, id: &NicId) -> bool {
        let (now, new) = (self.now.get(id.as_str()), self.new.get(id.as_str()));
        now.zip(new).is_some_and(|(now, new)| station(now) == station(new))
    }

    /// Makes a vnic as it is to be. Those in its way, which are to be made anew themselves, give
    /// way before: they go first if that changes no line, else they are removed and come later.
    fn place(&mut self, id: &'a NicId, before: &mut Vec<&'a NicId>) {
        let Some(nic) = self.new.get(id.as_str()) else { return };
        before.push(id);
        while let Err(conflict) = self.now.check(nic) {
            let other = conflict.other().and_then(|other| self.new.get(other));
            // The new state is valid: whatever is in the way is one of the old state.
            let Some(other) = other.map(|other| &other.id) else { break };
            let may_go_first =
                before.len() < LONGEST_CHAIN && !before.contains(&other) && self.keeps_place(other);
            match may_go_first {
                true => self.place(other, before),
                false => self.give_way(other),
            }
        }
        before.pop();
        let there = self.now.get(id.as_str()).is_some();
        if !there && !before.is_empty() {
            // It gave way itself, and comes when it is its turn.
            return;
        }
        let change = if there { Change::RemakeVnic } else { Change::AddVnic };
        self.put(change(nic.clone().into()), nic);
        self.orders.get(id).map(|order| self.pending.remove(order));
    }

    /// Removes a vnic that comes again later, and those behind it in its line, which have to come
    /// after it again.
    fn give_way(&mut self, id: &NicId) {
        let line: Vec<NicId> = match self.new.get(id.as_str()).and_then(station) {
            Some(station) if self.keeps_place(id) => {
                self.now.line(&station).skip_while(|other| *other != id).cloned().collect()
            }
            _ => vec![id.clone()],
        };
        for id in &line {
            // One that leaves the line does not matter to it.
            if self.keeps_place(id) || line.len() == 1 {
                self.remove(id);
                self.wait(id);
            }
        }
    }
}

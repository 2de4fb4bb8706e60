//! The number of sessions that each rule admitted.
//!
//! Apart from the other counters: it is read under a lock that a request may hold while it waits
//! for workers, for which no page of metrics waits.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Noted, TakenOver, Text, fitting};
use crate::plane::Plane;

#[derive(Serialize, Deserialize)]
struct OfRule {
    group: String,
    rule: String,
    admitted: u64,
}

/// The whole text.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RulesText {
    layout: u32,
    rules: Vec<OfRule>,
}

impl Text for RulesText {
    fn layout(&self) -> u32 {
        self.layout
    }
}

/// Notes the admissions of all rules. If there is no room for all, those that admitted least are
/// left out.
pub(crate) fn note(plane: &Plane, room: usize) -> Noted {
    let cells = plane.rules_by_cell();
    let mut rules: Vec<OfRule> = cells
        .iter()
        .map(|(cell, (group, rule))| OfRule {
            group: group.to_string(),
            rule: format!("{rule:?}"),
            admitted: plane.shared.cells.counted(*cell),
        })
        .filter(|rule| rule.admitted > 0)
        .collect();
    rules.sort_by(|a, b| b.admitted.cmp(&a.admitted).then_with(|| a.rule.cmp(&b.rule)));
    let all = rules.len();
    fitting(RulesText { layout: butterfly_layout::in_force(), rules }, room, |text, keep| {
        text.rules.truncate(text.rules.len() * keep / 1000);
        all - text.rules.len()
    })
}

/// Adds what a former process counted for rules that are declared here.
pub(super) fn take_over(plane: &Plane, text: RulesText, taken: &mut TakenOver) {
    let cells = plane.rules_by_cell();
    let mut cells: HashMap<(String, String), u32> = cells
        .into_iter()
        .map(|(cell, (group, rule))| ((group.to_string(), format!("{rule:?}")), cell))
        .collect();
    for OfRule { group, rule, admitted } in text.rules {
        match cells.remove(&(group, rule)) {
            Some(cell) if admitted < 1 << 62 => {
                plane.shared.cells.add_former(cell, admitted);
                taken.rules += 1;
            }
            Some(_) => taken.refuse("impossible count"),
            None => taken.refuse("rule that is not declared"),
        }
    }
}

//! Account of what was taken over of a former process.

use std::{collections::BTreeMap, fmt};

/// Problems that are told in words; more are only counted.
const MOST_PROBLEMS: usize = 8;
/// Letters of a name in them: it comes from outside.
const LONGEST: usize = 80;

/// Account of what was taken over of a former process, and of what was not.
#[derive(Clone, Debug, Default)]
pub struct TakenOver {
    /// Vnics whose counters go on.
    pub vnics: usize,
    /// Vnics that are not declared any more: they count for the host.
    pub vnics_gone: usize,
    /// Learnt addresses.
    pub stations: usize,
    /// Other hosts.
    pub peers: usize,
    /// Link-local addresses that machines made up.
    pub bound: usize,
    /// Rules whose admissions go on.
    pub rules: usize,
    /// Entries that were not taken over, by reason.
    pub refused: BTreeMap<&'static str, usize>,
    /// Texts that were not read, and names that nothing has here; the first ones.
    pub problems: Vec<String>,
}

impl TakenOver {
    pub(super) fn refuse(&mut self, why: &'static str) {
        *self.refused.entry(why).or_default() += 1;
    }

    pub(super) fn problem(&mut self, text: String) {
        if self.problems.len() < MOST_PROBLEMS && !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    pub(super) fn unknown(&mut self, kind: &str, name: &str) {
        self.refuse("unknown name");
        let name: String = name.chars().take(LONGEST).collect();
        self.problem(format!("there is no {kind} {name:?} here"));
    }

    /// Returns the number of entries that were not taken over.
    pub fn not_taken(&self) -> usize {
        self.refused.values().sum()
    }
}

impl fmt::Display for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vnics, vnics_gone, stations, peers, bound, rules, .. } = self;
        write!(
            f,
            "counters of {vnics} vnics and of {vnics_gone} that are gone, {stations} learnt addresses, {peers} hosts, {bound} link-local addresses, admissions of {rules} rules"
        )?;
        if self.not_taken() > 0 {
            write!(f, "; not taken over: ")?;
        }
        for (n, (why, count)) in self.refused.iter().enumerate() {
            write!(f, "{}{count} ({why})", if n == 0 { "" } else { ", " })?;
        }
        self.problems.iter().try_for_each(|problem| write!(f, "; {problem}"))
    }
}

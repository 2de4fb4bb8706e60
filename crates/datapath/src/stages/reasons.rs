//! Reasons of drops: each is declared once, in the stage that drops. The declaration makes a
//! counter and a section of docs/drops.md.

mod document;

pub use document::drops_document;

use crate::engine::counters::Totals;
use crate::engine::reason::{DropReason, ReasonInfo};
use crate::stages::pipeline::STAGES;

/// Reasons of delivery, which ends the pipeline, and of code that reads and carries packets for
/// several stages.
const OTHERS: [&[ReasonInfo]; 7] = [
    crate::stages::outward::REASONS,
    crate::stages::asks::REASONS,
    crate::stages::leases::REASONS,
    crate::stages::answers::REASONS,
    crate::stages::deliver::REASONS,
    crate::ip::REASONS,
    crate::overlay::REASONS,
];

impl DropReason {
    /// Returns its name in every output.
    pub fn name(self) -> &'static str {
        info(self).name
    }
}

/// Returns the description of a reason.
pub(crate) fn info(reason: DropReason) -> ReasonInfo {
    let unknown = ReasonInfo {
        reason,
        name: "unknown",
        description: "",
        cause: "",
        remedy: "",
        charged: "",
        harmless: false,
        file: "",
    };
    reasons().find(|info| info.reason == reason).unwrap_or(unknown)
}

/// Returns the lists of reasons, in the order of the stages.
fn lists() -> impl Iterator<Item = &'static [ReasonInfo]> {
    STAGES.iter().map(|stage| stage.reasons).chain(OTHERS)
}

/// Returns all reasons, in the order of the stages.
pub fn reasons() -> impl Iterator<Item = ReasonInfo> {
    lists().flatten().copied()
}

/// Returns reasons with their drops, without those that did not occur.
pub(crate) fn counted(totals: &Totals) -> impl Iterator<Item = (ReasonInfo, u64)> {
    reasons().map(|info| (info, totals.drops(info.reason))).filter(|(_, count)| *count > 0)
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::reason::PER_STAGE;
    use std::collections::HashSet;

    #[test]
    fn every_reason_has_its_own_number_and_name() {
        let all: Vec<_> = reasons().collect();
        assert_eq!(all.iter().map(|r| r.reason).collect::<HashSet<_>>().len(), all.len());
        assert_eq!(all.iter().map(|r| r.name).collect::<HashSet<_>>().len(), all.len());
        let mut numbers = HashSet::new();
        for list in lists() {
            let Some(number) = list.first().map(|info| info.reason.index() / PER_STAGE) else {
                continue;
            };
            assert!(numbers.insert(number), "{list:?} has the number of another stage");
            for info in list {
                assert_eq!(
                    info.reason.index() / PER_STAGE,
                    number,
                    "{} declares another stage's number",
                    info.name
                );
                assert!(!info.description.trim().is_empty());
                assert!(info.file.ends_with(".rs"), "{}", info.file);
                for text in [info.cause, info.remedy, info.charged] {
                    assert!(
                        !text.trim().is_empty() && text.trim() == text && !text.contains('\n'),
                        "{}: {text:?}",
                        info.name
                    );
                    assert!(
                        !text.ends_with('.') && !text.contains("  "),
                        "{}: the end of a sentence: {text:?}",
                        info.name
                    );
                }
            }
        }
    }
}

//! Why packets are dropped: every reason is declared once, in the stage that drops, and is a counter by that, and a section of
//! docs/drops.md.

mod document;

pub use document::drops_document;

/// Reasons of one stage at most.
const PER_STAGE: usize = 16;

/// Number of distinct values a [`DropReason`] can have.
pub(crate) const CAPACITY: usize = PER_STAGE * STAGES.len();

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct DropReason(u8);

/// What is known of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonInfo {
    /// The reason.
    pub reason: DropReason,
    /// Its name in every output.
    pub name: &'static str,
    /// What it means, for the operator.
    pub description: &'static str,
    /// What usually is behind it.
    pub cause: &'static str,
    /// What the operator does about it. The words NIC and VNI stand for the vnic that is charged and for its network.
    pub remedy: &'static str,
    /// Who it is charged to.
    pub charged: &'static str,
    /// What machines do by themselves and nobody misses: no trouble, however much of it there is.
    pub harmless: bool,
    /// The source file that it is declared in.
    pub file: &'static str,
}

impl DropReason {
    pub(crate) const fn new(stage: usize, index: usize) -> DropReason {
        assert!(index < PER_STAGE && stage * PER_STAGE + index < 256);
        DropReason((stage * PER_STAGE + index) as u8)
    }

    /// The reason at a position.
    pub(crate) const fn of_index(index: usize) -> DropReason {
        DropReason(index as u8)
    }

    /// Position in a table of [`CAPACITY`].
    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The reason at a position, if it may be one.
    pub(crate) fn at(index: usize) -> Option<DropReason> {
        u8::try_from(index).ok().filter(|_| index < CAPACITY).map(DropReason)
    }

    /// Its name in every output.
    pub fn name(self) -> &'static str {
        info(self).name
    }
}

/// Declares the reasons of a stage: `drop_reasons! { NUMBER; /// Meaning. NAME = "name" { cause: "..", remedy: "..", charged: ".." } .. }`.
/// The number is the stage's position in the list below. Cause and charged are the ends of sentences, the remedy is one line; `harmless: true`
/// may stand before them; see [`ReasonInfo`].
macro_rules! drop_reasons {
    ($stage:literal; $(
        $(#[doc = $doc:literal])+ $name:ident = $text:literal {
            $(harmless: $harmless:literal,)? cause: $cause:literal, remedy: $remedy:literal, charged: $charged:literal $(,)?
        }
    )+) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum ReasonIndex { $($name),+ }
        $($(#[doc = $doc])+ pub(crate) const $name: $crate::drops::DropReason =
            $crate::drops::DropReason::new($stage, ReasonIndex::$name as usize);)+
        pub(crate) const REASONS: &[$crate::drops::ReasonInfo] = &[$($crate::drops::ReasonInfo {
            reason: $name,
            name: $text,
            description: concat!($($doc),+).trim_ascii(),
            cause: $cause,
            remedy: $remedy,
            charged: $charged,
            harmless: false $(|| $harmless)?,
            file: file!(),
        }),+];
    };
}
pub(crate) use drop_reasons;

/// The stages, by the number they declare.
const STAGES: &[&[ReasonInfo]] = &[
    crate::headers::REASONS,
    crate::antispoof::REASONS,
    crate::offload::REASONS,
    crate::forward::REASONS,
    crate::filter::REASONS,
    crate::deliver::REASONS,
    crate::flow::REASONS,
    crate::tunnel::REASONS,
    crate::claims::REASONS,
];

/// What is known of a reason.
pub(crate) fn info(reason: DropReason) -> ReasonInfo {
    let unknown =
        ReasonInfo { reason, name: "unknown", description: "", cause: "", remedy: "", charged: "", harmless: false, file: "" };
    reasons().find(|info| info.reason == reason).unwrap_or(unknown)
}

/// All reasons there are, in the order of the stages.
pub fn reasons() -> impl Iterator<Item = ReasonInfo> {
    STAGES.iter().flat_map(|stage| stage.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_reason_has_its_own_number_and_name() {
        let all: Vec<_> = reasons().collect();
        assert_eq!(all.iter().map(|r| r.reason).collect::<HashSet<_>>().len(), all.len());
        assert_eq!(all.iter().map(|r| r.name).collect::<HashSet<_>>().len(), all.len());
        for (stage, list) in STAGES.iter().enumerate() {
            for info in *list {
                assert_eq!(info.reason.index() / PER_STAGE, stage, "{} declares another stage's number", info.name);
                assert!(!info.description.trim().is_empty());
                assert!(info.file.ends_with(".rs"), "{}", info.file);
                for text in [info.cause, info.remedy, info.charged] {
                    assert!(!text.trim().is_empty() && text.trim() == text && !text.contains('\n'), "{}: {text:?}", info.name);
                    assert!(!text.ends_with('.') && !text.contains("  "), "{}: the end of a sentence: {text:?}", info.name);
                }
            }
        }
    }
}

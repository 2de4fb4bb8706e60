//! What a stage says when it drops a packet: reasons, declared where they are used, and what an
//! operator is told of each.

/// Reasons of one stage at most.
pub(crate) const PER_STAGE: usize = 16;

/// Lists of reasons there may be, each with a number of its own.
const LISTS: usize = 16;

/// Number of distinct values a [`DropReason`] can have.
pub(crate) const CAPACITY: usize = PER_STAGE * LISTS;

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
    /// What the operator does about it. The words NIC and VNI stand for the vnic that is charged
    /// and for its network.
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
}

/// Declares the reasons of a stage: `drop_reasons! { NUMBER; /// Meaning. NAME = "name" { cause:
/// "..", remedy: "..", charged: ".." } .. }`. The number is the stage's position in the list below.
/// Cause and charged are the ends of sentences, the remedy is one line; `harmless: true`
/// may stand before them; see [`ReasonInfo`].
macro_rules! drop_reasons {
    ($stage:literal; $(
        $(#[doc = $doc:literal])+ $name:ident = $text:literal {
            $(harmless: $harmless:literal,)? cause: $cause:literal, remedy: $remedy:literal, charged: $charged:literal $(,)?
        }
    )+) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum ReasonIndex { $($name),+ }
        $($(#[doc = $doc])+ pub(crate) const $name: $crate::engine::reason::DropReason =
            $crate::engine::reason::DropReason::new($stage, ReasonIndex::$name as usize);)+
        pub(crate) const REASONS: &[$crate::engine::reason::ReasonInfo] = &[$($crate::engine::reason::ReasonInfo {
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

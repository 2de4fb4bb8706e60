//! Drop reasons: each stage declares its own, with a text for the operator.

/// Most reasons of one stage.
pub(crate) const PER_STAGE: usize = 16;

/// Most lists of reasons. Each has a number of its own.
const LISTS: usize = 16;

/// Number of distinct values that a [`DropReason`] can have.
pub(crate) const CAPACITY: usize = PER_STAGE * LISTS;

/// Reason for the drop of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct DropReason(u8);

/// Description of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasonInfo {
    /// The reason.
    pub reason: DropReason,
    /// Its name in every output.
    pub name: &'static str,
    /// Meaning, for the operator.
    pub description: &'static str,
    /// Usual cause.
    pub cause: &'static str,
    /// Remedy, for the operator. The words NIC and VNI stand for the vnic that is charged and for
    /// its network.
    pub remedy: &'static str,
    /// The vnic, network or uplink that is charged.
    pub charged: &'static str,
    /// True for packets that machines send by themselves and that no user misses. Any number of
    /// these drops is no trouble.
    pub harmless: bool,
    /// The source file that declares it.
    pub file: &'static str,
}

impl DropReason {
    pub(crate) const fn new(stage: usize, index: usize) -> DropReason {
        assert!(index < PER_STAGE, "a list has PER_STAGE reasons at most");
        assert!(stage < LISTS, "a list's number is below LISTS: raise it, to 16 at most");
        DropReason((stage * PER_STAGE + index) as u8)
    }

    /// Returns the reason at a position.
    pub(crate) const fn of_index(index: usize) -> DropReason {
        DropReason(index as u8)
    }

    /// Returns its position in a table of [`CAPACITY`].
    #[inline(always)]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the reason at a position below [`CAPACITY`]; none beyond.
    pub(crate) fn at(index: usize) -> Option<DropReason> {
        u8::try_from(index).ok().filter(|_| index < CAPACITY).map(DropReason)
    }
}

/// Declares the reasons of a stage: `drop_reasons! { NUMBER; /// Meaning. NAME = "name" { cause:
/// "..", remedy: "..", charged: ".." } .. }`. The number is the list's own, below
/// [`LISTS`]; a test compares them. Cause and charged are the ends of sentences, the remedy is one
/// line; `harmless: true` may stand before them; see [`ReasonInfo`].
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

//! Records, and the changes of them that are one commit.

/// Sort of an object that has a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sort {
    /// A vnic.
    Vnic,
    /// A security group.
    Group,
    /// A tunnel endpoint of another host.
    Peer,
    /// A declared network.
    Network,
    /// A router, with its attachments.
    Router,
    /// An external.
    External,
    /// A translation of a router at an external.
    Nat,
    /// A declared neighbour.
    Neighbour,
}

impl Sort {
    /// All sorts, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Vnic,
        Self::Group,
        Self::Peer,
        Self::Network,
        Self::Router,
        Self::External,
        Self::Nat,
        Self::Neighbour,
    ];

    /// Its number in files and frames, which never changes.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Vnic => 0,
            Self::Group => 1,
            Self::Peer => 2,
            Self::Network => 3,
            Self::Router => 4,
            // The one between is of a sort that no object has (docs/design/routed.md).
            Self::External => 6,
            Self::Nat => 7,
            Self::Neighbour => 8,
        }
    }

    /// The sort with this number.
    pub(crate) fn numbered(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.number() == number)
    }
}

/// Name of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Sort of the object.
    pub sort: Sort,
    /// Name of the object among those of its sort.
    pub name: String,
}

/// One record that is written, or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The record.
    pub key: Key,
    /// Its content from now on; none: the record goes.
    pub value: Option<Vec<u8>>,
}

/// Changes that are made together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Its number: one above that of the commit before.
    pub sequence: u64,
    /// The next birth number. Birth numbers are never reused.
    pub next_birth: u64,
    /// Layout of the store from now on. Another one than before comes with all records.
    pub layout: u32,
    /// True if all records that are not written here go.
    pub whole: bool,
    /// The records that change.
    pub edits: Vec<Edit>,
}

/// Everything in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Number of the last commit.
    pub sequence: u64,
    /// The next birth number.
    pub next_birth: u64,
    /// Layout of the records.
    pub layout: u32,
    /// All records, in the order of their keys.
    pub records: Vec<(Key, Vec<u8>)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files have these numbers.
    #[test]
    fn a_sort_keeps_its_number() {
        let numbered = [
            (0, Sort::Vnic),
            (1, Sort::Group),
            (2, Sort::Peer),
            (3, Sort::Network),
            (4, Sort::Router),
            (6, Sort::External),
            (7, Sort::Nat),
            (8, Sort::Neighbour),
        ];
        for (number, sort) in numbered {
            assert_eq!((sort.number(), Sort::numbered(number)), (number, Some(sort)));
        }
        for number in [5].into_iter().chain(9..=u8::MAX) {
            assert_eq!(Sort::numbered(number), None);
        }
        assert_eq!(Sort::ALL, numbered.map(|(_, sort)| sort));
        assert!(Sort::ALL.is_sorted(), "sorts have the order of their numbers");
    }
}

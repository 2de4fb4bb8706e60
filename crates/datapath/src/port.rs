//! Places of vnics.

/// A vnic's place, with a number that tells successive users of the place apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct PortRef {
    pub slot: u32,
    pub incarnation: u32,
}

//! The search for neighbours that nobody declared.

use crate::harness::Host;
use crate::plane::seek::SoughtNeighbour;

impl Host {
    /// Has routers ask for machines from now on, as a switch does: in [`Self::seek`].
    pub fn begin_seeking(&mut self) {
        self.plane.shared.asking.begin(None);
    }

    /// Does once what the thread does that looks for neighbours, and takes the turns that follow.
    pub fn seek(&mut self) {
        self.plane.seek();
        self.settle();
    }

    /// Returns machines that were found, and addresses that are asked for.
    pub fn sought(&self) -> Vec<SoughtNeighbour> {
        self.plane.sought()
    }
}

//! The operator's questions to a host.

use std::{path::Path, sync::Arc};

use crate::harness::{Host, error::Error};
use crate::plane::sessions::{SessionFilter, SessionRow};
use crate::report::{
    drops::DropReport,
    explain::{Explanation, NoAnswer, Origin, Question, Walk},
};
use crate::session::FormerTable;

impl Host {
    fn taps(&self) -> crate::report::taps::Taps {
        crate::report::taps::Taps::new(self.plane.clone())
    }

    /// Explains the fate of a packet.
    pub fn explain(&self, question: &Question) -> Result<Explanation, NoAnswer> {
        crate::report::explain::explain(&self.plane, question)
    }

    /// Explains the fate of a frame, from this vnic, or from the other hosts of a network.
    pub fn explain_frame(&self, from: &Origin, frame: &[u8]) -> Option<Walk> {
        crate::report::explain::explain_frame(&self.plane, from, frame)
    }

    /// Returns the tables of sessions that were found at the start.
    pub fn former_tables(&self) -> &[FormerTable] {
        &self.plane.former
    }

    /// Returns the file of the table of sessions.
    pub fn session_file(&self) -> Option<&Path> {
        self.plane.shared.table.units().path()
    }

    /// Removes sessions. Returns their number.
    pub fn flush_sessions(&self, filter: &SessionFilter) -> u64 {
        self.plane.flush_sessions(filter)
    }

    /// Returns the number of sessions that match, and the first `limit` of them.
    pub fn sessions(&self, filter: &SessionFilter, limit: usize) -> (u64, Vec<SessionRow>) {
        self.plane.list_sessions(filter, limit)
    }

    /// Sets the sinks of the tap.
    pub fn watch(&mut self, sinks: &[Arc<crate::engine::tap::TapSink>]) {
        self.taps().select(sinks);
        self.settle();
    }

    /// Visits what was copied since the last call.
    pub fn watched(&self, mut visit: impl FnMut(&crate::report::taps::TapPacket<'_>)) {
        let mut read = crate::report::taps::TapRead::default();
        while {
            let more = self.taps().take(&mut read, std::time::Duration::ZERO);
            self.taps().visit(&mut read, &mut visit);
            more
        } {}
    }

    /// Returns the drops of one vnic, which must exist, or of all.
    pub fn drop_report(&self, id: Option<&str>) -> Result<DropReport, Error> {
        crate::report::drops::drop_report(&self.plane, id).ok_or_else(|| "no such vnic".into())
    }

    /// Returns the number of learnt addresses in force.
    pub fn learnt(&self) -> usize {
        self.plane.shared.fdb.list(self.plane.shared.clock.now()).len()
    }
}

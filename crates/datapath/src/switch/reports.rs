//! The operator's questions: [`crate::report`] reads each answer.

use butterfly_model::{GroupName, Rule};

use crate::endpoint::{
    link::LinkState,
    open::{is_as_opened, try_open},
    side::EndpointSide,
};
use crate::plane::sessions::{SessionFilter, SessionRow, SessionTable};
use crate::report::{
    drops::{DropReport, drop_report},
    explain::{Explanation, NoAnswer, Question, explain},
    observe::{Observation, observe, observe_wire},
    taps::Taps,
    tunnel::{TunnelReport, UplinkReport, tunnel, uplink},
};
use crate::session::FormerTable;
use crate::switch::Switch;

impl Switch {
    /// Returns machines that routers of this host found or ask for, though nobody declared them, by
    /// network and address.
    pub fn sought_neighbours(&self) -> Vec<crate::plane::seek::SoughtNeighbour> {
        self.plane().sought()
    }

    /// Returns how many ports are in use of each address that machines share.
    pub fn ports_in_use(&self) -> Vec<crate::plane::ports::PortsInUse> {
        self.plane().ports_in_use()
    }

    /// Changes a security group. When this returns, no worker uses the old one. On an error nothing
    /// has changed.
    pub fn change_group(
        &self,
        name: &GroupName,
        change: crate::world::rules::GroupChange,
    ) -> Result<(), crate::plane::AddError> {
        self.plane().change_group(name, change)
    }

    /// Returns the rules of a group, each with the number of sessions it admitted.
    pub fn rule_admissions(&self, name: &GroupName) -> Vec<(Rule, u64)> {
        self.plane().admissions(name)
    }

    /// Returns the number of sessions that match, and the first `limit` of them.
    pub fn sessions(&self, filter: &SessionFilter, limit: usize) -> (u64, Vec<SessionRow>) {
        self.plane().list_sessions(filter, limit)
    }

    /// Returns why the uplink could not be opened, if it could not. Nothing leaves this host then.
    pub fn missing_uplink(&self) -> Option<&str> {
        self.side()?.missing.as_deref()
    }

    /// Returns whether this process's memory may stay mapped when another program goes on: not if
    /// that has to open the uplink's interface anew.
    pub fn memory_may_stay(&self) -> bool {
        let Some(side) = self.side() else { return true };
        let is_as_opened =
            side.wire.as_ref().is_none_or(|(info, _)| is_as_opened(&side.spec, info));
        !side.opened_anew && is_as_opened
    }

    /// Returns whether the uplink is an interface that could not be opened, or was removed.
    pub fn uplink_is_gone(&self) -> bool {
        let state = self.side().and_then(EndpointSide::link);
        matches!(state, Some(LinkState::NotOpen | LinkState::Removed))
    }

    /// Returns whether an uplink that is gone can be opened now: it is opened, and closed again.
    /// May take a second.
    pub fn uplink_can_be_opened(&self) -> bool {
        self.side().is_some_and(|side| try_open(&side.spec).is_ok())
    }

    /// Returns tables of sessions that were found at the start and not used.
    pub fn former_tables(&self) -> &[FormerTable] {
        &self.plane().former
    }

    /// Says what became of the uplink on an interface that a former process left, if one did.
    pub fn former_uplink(&self) -> Option<String> {
        Some(self.side()?.former_uplink.as_ref()?.to_string())
    }

    /// Removes sessions: their next frames are decided like first ones. Returns the number of
    /// removed ones.
    pub fn flush_sessions(&self, filter: &SessionFilter) -> u64 {
        self.plane().flush_sessions(filter)
    }

    /// Returns the state of the table of sessions.
    pub fn session_table(&self) -> SessionTable {
        self.plane().session_table()
    }

    /// Returns the file of the table of sessions, if it has one.
    pub fn session_file(&self) -> Option<std::path::PathBuf> {
        self.plane().shared.table.units().path().map(std::path::Path::to_owned)
    }

    /// Returns the drops of one vnic, or of the whole host. `None` if there is no such vnic.
    pub fn drop_report(&self, only: Option<&str>) -> Option<DropReport> {
        drop_report(self.plane(), only)
    }

    /// Explains the fate of a packet, without sending or changing anything.
    pub fn explain(&self, question: &Question) -> Result<Explanation, NoAnswer> {
        explain(self.plane(), question)
    }

    /// Returns the tap.
    pub fn taps(&self) -> Taps {
        Taps::new(self.shared_plane())
    }

    /// Reads all counters. Takes some microseconds per vnic, and holds up no other thread.
    pub fn observe(&self) -> Observation {
        let guests: Vec<_> = self.wire_guests().clone().into_iter().collect();
        let wires = guests.iter().filter_map(|(id, guest)| observe_wire(id, guest)).collect();
        Observation { wires, ..observe(self.plane(), self.workers(), self.side()) }
    }

    pub(crate) fn side(&self) -> Option<&EndpointSide> {
        self.side.as_ref()
    }

    /// Returns the tunnel endpoint; `None` if networks end at this host.
    pub fn tunnel(&self) -> Option<TunnelReport> {
        tunnel(self.plane(), self.side()?)
    }

    /// Returns the largest IP packet of a virtual machine that reaches other hosts, in bytes;
    /// `None` if there is no uplink.
    pub fn inner_mtu(&self) -> Option<u32> {
        self.plane().shared.tunnel.as_ref().map(|tunnel| tunnel.inner_mtu())
    }

    /// Returns the address of the tunnel endpoint; `None` if there is no uplink.
    pub fn endpoint(&self) -> Option<std::net::IpAddr> {
        self.plane().shared.tunnel.as_ref().map(|tunnel| crate::world::rules::address(tunnel.own))
    }

    /// Returns the uplink; `None` if there is none.
    pub fn uplink(&self) -> Option<UplinkReport> {
        uplink(self.plane(), self.side()?)
    }
}

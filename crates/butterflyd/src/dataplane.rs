//! Interface of the daemon to a data path.

use butterfly_datapath::{
    AddError, DropReport, Explanation, ExportedVnic, FdbRow, GroupChange, Imported, Moved,
    MovedVnic, NoAnswer, NotAHost, NotInEffect, PortsInUse, Question, RoutingChange, SessionFilter,
    SessionRow, SessionTable, SoughtNeighbour, Switch, Timeouts, TunnelError, TunnelReport,
    UplinkReport, VnicPolicy, VnicReport, VnicSpec, WorkerReport,
};
use butterfly_model::{GroupName, Rule, Vni};
use std::{net::IpAddr, sync::Arc};

/// Something that moves frames between vnics. Every call returns when its effect is complete.
pub trait Dataplane {
    /// Makes a vnic. On an error nothing has changed.
    fn add_vnic(&mut self, spec: VnicSpec) -> Result<(), AddError>;

    /// Checks that a vnic could be made in place of the one with its id, which goes on meanwhile.
    fn may_replace(&self, spec: &VnicSpec) -> Result<(), AddError>;

    /// Checks whether a vnic could be added, as far as that can be tried before others go.
    fn may_add(&self, spec: &VnicSpec) -> Result<(), AddError>;

    /// Keeps a vnic's MAC address for it while it is made anew, until
    /// [`Dataplane::give_up_address`].
    fn keep_address(&mut self, id: &str);

    /// Gives an address that was kept to a vnic that waits for it, if the old one did not come
    /// back.
    fn give_up_address(&mut self);

    /// True if no VM can attach to a vnic any more: its socket was removed.
    fn socket_is_gone(&self, id: &str) -> bool;

    /// Gives a vnic another policy while its machine stays attached. On an error nothing has
    /// changed.
    fn update_vnic(&mut self, id: &str, policy: VnicPolicy) -> Result<(), AddError>;

    /// Notes that a vnic's machine leaves for another host, whose tunnel endpoint may be named.
    /// When it is gone here, its addresses may be there.
    fn vnic_leaves(&self, id: &str, to: Option<IpAddr>) -> Result<(), NotAHost>;

    /// Returns all that another host needs to go on with a vnic.
    fn export_vnic(&self, vnic: MovedVnic) -> Option<ExportedVnic>;

    /// Takes over what a vnic was on another host, where it was declared alike.
    fn import_vnic(&self, moved: &Moved) -> Option<Imported>;

    /// Forgets a vnic: its machine is cut off and its socket is gone.
    fn remove_vnic(&mut self, id: &str);

    /// Changes one security group for all vnics that obey it or whose rules name it. On an error
    /// nothing has changed.
    fn change_group(&mut self, name: &GroupName, change: GroupChange) -> Result<(), AddError>;

    /// Everything known about a vnic.
    fn vnic(&self, id: &str) -> Option<VnicReport>;

    /// Returns the vnic that has the MAC address for which a vnic waits.
    fn waits_for(&self, id: &str) -> Option<String>;

    /// The addresses known in one network or in all.
    fn fdb(&self, vni: Option<u32>) -> Vec<FdbRow>;

    /// Returns the work of the workers so far.
    fn workers(&self) -> Vec<WorkerReport>;

    /// Returns how many sessions match `filter`, and the first `limit` of them.
    fn sessions(&self, filter: &SessionFilter, limit: usize) -> (u64, Vec<SessionRow>);

    /// Ends the sessions that `filter` means and returns how many they were.
    fn flush_sessions(&mut self, filter: &SessionFilter) -> u64;

    /// Returns how many sessions each rule of a group admitted since it was added.
    fn rule_admissions(&self, name: &GroupName) -> Vec<(Rule, u64)>;

    /// The table that holds the sessions.
    fn session_table(&self) -> SessionTable;

    /// Gives sessions, also those that there are, other time-outs, and other seconds after an
    /// attachment in which connections may be picked up.
    fn set_session_times(&mut self, timeouts: Timeouts, tcp_pickup: u32);

    /// Gives learnt addresses so many silent seconds.
    fn set_fdb_ageing(&mut self, seconds: u32);
    /// Changes the number of workers, and their cores. What is refused changes nothing.
    fn set_workers(&mut self, workers: usize, cores: &[usize]) -> Result<(), String>;

    /// The tunnel endpoint, if there is an uplink.
    fn tunnel(&self) -> Option<TunnelReport>;

    /// The port that leads out of the host, if there is one.
    fn uplink(&self) -> Option<UplinkReport>;

    /// Returns the drops of one vnic, which must exist, or of the complete host.
    fn drops(&self, id: Option<&str>) -> Option<DropReport>;

    /// The largest IP packet of a virtual machine that reaches other hosts, if there is an uplink.
    fn inner_mtu(&self) -> Option<u32>;

    /// The address of the tunnel endpoint, if there is an uplink.
    fn endpoint(&self) -> Option<IpAddr>;

    /// Names a peer for one network or for all. Says whether it was not named before.
    fn add_peer(&mut self, peer: IpAddr, vni: Option<Vni>) -> Result<bool, TunnelError>;

    /// Takes that back. Says whether it was named.
    fn remove_peer(&mut self, peer: IpAddr, vni: Option<Vni>) -> Result<bool, TunnelError>;

    /// Changes what is routed. On an error nothing has changed, but that an external may have lost
    /// its wire.
    fn change_routing(&mut self, change: RoutingChange) -> Result<(), NotInEffect>;

    /// Returns whether an external with this number is in effect.
    fn leads_out(&self, vni: Vni) -> bool;

    /// Returns machines that routers of this host found or ask for, though nobody declared them, by
    /// network and address.
    fn sought_neighbours(&self) -> Vec<SoughtNeighbour>;

    /// Returns how many ports are in use of each address that machines share.
    fn ports_in_use(&self) -> Vec<PortsInUse>;

    /// Gives what outlasts the process the layout in force.
    fn follow_layout(&self);

    /// Says what would happen to a packet, without sending or changing anything.
    fn explain(&self, question: &Question) -> Result<Explanation, NoAnswer>;
}

impl Dataplane for Arc<Switch> {
    fn add_vnic(&mut self, spec: VnicSpec) -> Result<(), AddError> {
        Switch::add_vnic(self, spec)
    }

    fn may_replace(&self, spec: &VnicSpec) -> Result<(), AddError> {
        Switch::may_replace(self, spec)
    }

    fn may_add(&self, spec: &VnicSpec) -> Result<(), AddError> {
        Switch::may_add(self, spec)
    }

    fn keep_address(&mut self, id: &str) {
        Switch::keep_address(self, id);
    }

    fn give_up_address(&mut self) {
        Switch::give_up_address(self);
    }

    fn socket_is_gone(&self, id: &str) -> bool {
        Switch::socket_is_gone(self, id)
    }

    fn update_vnic(&mut self, id: &str, policy: VnicPolicy) -> Result<(), AddError> {
        Switch::update_vnic(self, id, policy)
    }

    fn vnic_leaves(&self, id: &str, to: Option<IpAddr>) -> Result<(), NotAHost> {
        Switch::vnic_leaves(self, id, to)
    }

    fn export_vnic(&self, vnic: MovedVnic) -> Option<ExportedVnic> {
        Switch::export_vnic(self, vnic)
    }

    fn import_vnic(&self, moved: &Moved) -> Option<Imported> {
        Switch::import_vnic(self, moved)
    }

    fn remove_vnic(&mut self, id: &str) {
        Switch::remove_vnic(self, id);
    }

    fn change_group(&mut self, name: &GroupName, change: GroupChange) -> Result<(), AddError> {
        Switch::change_group(self, name, change)
    }

    fn vnic(&self, id: &str) -> Option<VnicReport> {
        Switch::vnic(self, id)
    }

    fn waits_for(&self, id: &str) -> Option<String> {
        Switch::waits_for(self, id)
    }

    fn fdb(&self, vni: Option<u32>) -> Vec<FdbRow> {
        Switch::fdb(self, vni)
    }

    fn workers(&self) -> Vec<WorkerReport> {
        Switch::workers(self)
    }

    fn sessions(&self, filter: &SessionFilter, limit: usize) -> (u64, Vec<SessionRow>) {
        Switch::sessions(self, filter, limit)
    }

    fn flush_sessions(&mut self, filter: &SessionFilter) -> u64 {
        Switch::flush_sessions(self, filter)
    }

    fn rule_admissions(&self, name: &GroupName) -> Vec<(Rule, u64)> {
        Switch::rule_admissions(self, name)
    }

    fn session_table(&self) -> SessionTable {
        Switch::session_table(self)
    }

    fn set_session_times(&mut self, timeouts: Timeouts, tcp_pickup: u32) {
        Switch::set_session_times(self, timeouts, tcp_pickup);
    }

    fn set_workers(&mut self, workers: usize, cores: &[usize]) -> Result<(), String> {
        Switch::set_workers(self, workers, cores)
    }

    fn set_fdb_ageing(&mut self, seconds: u32) {
        Switch::set_fdb_ageing(self, seconds);
    }

    fn tunnel(&self) -> Option<TunnelReport> {
        Switch::tunnel(self)
    }

    fn uplink(&self) -> Option<UplinkReport> {
        Switch::uplink(self)
    }

    fn drops(&self, id: Option<&str>) -> Option<DropReport> {
        Switch::drop_report(self, id)
    }

    fn inner_mtu(&self) -> Option<u32> {
        Switch::inner_mtu(self)
    }

    fn endpoint(&self) -> Option<IpAddr> {
        Switch::endpoint(self)
    }

    fn add_peer(&mut self, peer: IpAddr, vni: Option<Vni>) -> Result<bool, TunnelError> {
        Switch::add_peer(self, peer, vni)
    }

    fn remove_peer(&mut self, peer: IpAddr, vni: Option<Vni>) -> Result<bool, TunnelError> {
        Switch::remove_peer(self, peer, vni)
    }

    fn change_routing(&mut self, change: RoutingChange) -> Result<(), NotInEffect> {
        Switch::change_routing(self, change)
    }

    fn leads_out(&self, vni: Vni) -> bool {
        Switch::leads_out(self, vni)
    }

    fn sought_neighbours(&self) -> Vec<SoughtNeighbour> {
        Switch::sought_neighbours(self)
    }

    fn ports_in_use(&self) -> Vec<PortsInUse> {
        Switch::ports_in_use(self)
    }

    fn follow_layout(&self) {
        Switch::follow_layout(self);
    }

    fn explain(&self, question: &Question) -> Result<Explanation, NoAnswer> {
        Switch::explain(self, question)
    }
}

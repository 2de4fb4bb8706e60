//! What the daemon needs from a data path.

use butterfly_datapath::{AddError, FdbRow, Switch, VnicPolicy, VnicReport, VnicSpec, WorkerReport};

/// Something that moves frames between vnics. Every call returns when its effect is complete.
pub trait Dataplane {
    /// Makes a vnic. On an error nothing has changed.
    fn add_vnic(&mut self, spec: VnicSpec) -> Result<(), AddError>;

    /// Gives a vnic another policy while its machine stays attached. On an error nothing has changed.
    fn update_vnic(&mut self, id: &str, policy: VnicPolicy) -> Result<(), AddError>;

    /// Forgets a vnic: its machine is cut off and its socket is gone.
    fn remove_vnic(&mut self, id: &str);

    /// Everything known about a vnic.
    fn vnic(&self, id: &str) -> Option<VnicReport>;

    /// The addresses known in one network or in all.
    fn fdb(&self, vni: Option<u32>) -> Vec<FdbRow>;

    /// What the workers did.
    fn workers(&self) -> Vec<WorkerReport>;
}

impl Dataplane for Switch {
    fn add_vnic(&mut self, spec: VnicSpec) -> Result<(), AddError> {
        Switch::add_vnic(self, spec)
    }

    fn update_vnic(&mut self, id: &str, policy: VnicPolicy) -> Result<(), AddError> {
        Switch::update_vnic(self, id, policy)
    }

    fn remove_vnic(&mut self, id: &str) {
        Switch::remove_vnic(self, id);
    }

    fn vnic(&self, id: &str) -> Option<VnicReport> {
        Switch::vnic(self, id)
    }

    fn fdb(&self, vni: Option<u32>) -> Vec<FdbRow> {
        Switch::fdb(self, vni)
    }

    fn workers(&self) -> Vec<WorkerReport> {
        Switch::workers(self)
    }
}

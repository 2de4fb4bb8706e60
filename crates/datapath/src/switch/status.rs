//! A vnic's row for the operator: its declaration, device, guest and counters.

use butterfly_guest::{Guest, Report as GuestReport};
use butterfly_vhost::control::{DeviceStatus, Role};

use crate::engine::{
    counters::{Counter, Totals},
    reason::ReasonInfo,
};
use crate::stages::reasons::reasons;
use crate::switch::{
    Switch,
    declared::{Declared, VnicSpec},
    front::Front,
};

/// Row of a vnic, for the operator.
#[derive(Clone, Debug)]
pub struct VnicReport {
    /// As declared.
    pub spec: VnicSpec,
    /// The vnic that has its MAC address, if it waits for that.
    pub waits_for: Option<String>,
    /// Its socket, guest and rings.
    pub device: DeviceStatus,
    /// The daemon's own guest.
    pub guest: Option<GuestReport>,
    /// Frames and bytes received from the guest.
    pub received: (u64, u64),
    /// Frames and bytes delivered to the guest.
    pub delivered: (u64, u64),
    /// Frames of the guest that went to several receivers.
    pub flooded: u64,
    /// Source addresses that were not learnt because a bound was reached.
    pub learn_refused: u64,
    /// Frames that the switch sent in the guest's name to announce its place, as after a live
    /// migration.
    pub announced: u64,
    /// Frames of other hosts that were passed on to the host for which the guest left.
    pub passed_on: u64,
    /// Times that its transmit ring had to wait, as the guest sent more than its limit allows.
    pub limit_waits: u64,
    /// Sessions that it is an end of.
    pub sessions: u32,
    /// Count of every reason.
    pub drops: Vec<(ReasonInfo, u64)>,
}

impl Switch {
    /// Returns the vnic with the MAC address for which another vnic waits.
    pub fn waits_for(&self, id: &str) -> Option<String> {
        self.plane.vnic(id).and_then(|vnic| self.plane.waits_for(&vnic))
    }

    /// Returns whether no machine can attach to a vnic any more: no guest is attached, and the
    /// socket that was made for it is gone.
    pub fn socket_is_gone(&self, id: &str) -> bool {
        let vnics = self.vnics();
        let Some(Declared { spec, open }) = vnics.get(id) else { return false };
        match &spec.front {
            Front::Socket { role: Role::Server, path } => {
                open.device.status().attached.is_none() && !path.exists()
            }
            Front::Socket { .. } | Front::Inside(_) => false,
        }
    }

    /// Returns a vnic for the operator.
    pub fn vnic(&self, id: &str) -> Option<VnicReport> {
        let (spec, device, guest) = {
            let vnics = self.vnics();
            let Declared { spec, open } = vnics.get(id)?;
            (spec.clone(), open.device.status(), open.guest.as_ref().map(Guest::report))
        };
        let vnic = self.plane.vnic(id);
        let totals = vnic.as_ref().map(|vnic| vnic.shared.counters.totals()).unwrap_or_default();
        Some(VnicReport {
            spec,
            waits_for: vnic.as_ref().and_then(|vnic| self.plane.waits_for(vnic)),
            device,
            guest,
            received: (totals.get(Counter::InPackets), totals.get(Counter::InBytes)),
            delivered: (totals.get(Counter::OutPackets), totals.get(Counter::OutBytes)),
            flooded: totals.get(Counter::Flooded),
            learn_refused: totals.get(Counter::LearnRefused),
            announced: totals.get(Counter::Announced),
            passed_on: totals.get(Counter::PassedOn),
            limit_waits: vnic.as_ref().map_or(0, |vnic| vnic.shared.limits.from_guest.waits()),
            sessions: vnic.map_or(0, |vnic| vnic.shared.sessions.count()),
            drops: drops(&totals),
        })
    }

    /// Returns the drops of the whole host since it started, including vnics that are gone.
    pub fn host_drops(&self) -> Vec<(ReasonInfo, u64)> {
        drops(&self.plane.totals())
    }
}

fn drops(totals: &Totals) -> Vec<(ReasonInfo, u64)> {
    reasons().map(|info| (info, totals.drops(info.reason))).collect()
}

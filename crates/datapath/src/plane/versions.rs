//! Versions: the numbers of changes of policy, which session stamps name, and their start from the
//! beginning.

use std::sync::{Arc, PoisonError};

use crate::plane::{FIRST_VERSION, Plane, policies::copy_with};
use crate::session::{Admitted, Name};
use crate::world::snapshot::{Network, Snapshot, Vnic};

/// Last version of a policy, after which the numbers begin again.
const LAST_VERSION: u32 = u32::MAX - 1;

impl Plane {
    /// Counts a change of policy. When the numbers are used up, they begin again, and every session
    /// is decided again.
    pub(super) fn next_version(&self, next: &mut Snapshot) {
        if next.version < LAST_VERSION {
            next.version += 1;
            return;
        }
        // Workers' decisions from now on have small numbers. Earlier decisions have large ones, and
        // are marked below.
        let before = self.shared.snapshot.load_full();
        // Their numbers mean nothing any more, and no vnic can take over their sessions.
        self.departed.lock().unwrap_or_else(PoisonError::into_inner).0.clear();
        let all: Vec<Arc<Vnic>> = next.vnics.iter().map(|(_, vnic)| vnic.clone()).collect();
        for vnic in all {
            let anew = Vnic {
                born: FIRST_VERSION,
                since: FIRST_VERSION + 1,
                ..copy_with(&vnic, vnic.rules.clone())
            };
            next.vnics.set(vnic.place.slot, Some(Arc::new(anew)));
        }
        let all: Vec<(u32, Arc<Network>)> =
            next.networks.iter().map(|(at, network)| (at, network.clone())).collect();
        for (at, network) in all {
            next.networks.set(
                at,
                Some(Arc::new(Network { born: FIRST_VERSION, ..Network::clone(&network) })),
            );
        }
        self.shared.cells.take_back_all(FIRST_VERSION);
        next.version = FIRST_VERSION + 1;
        self.publish(next.clone());
        let here = |slot, stamp| before.vnics.get(slot).is_some_and(|vnic| vnic.born <= stamp);
        self.shared.table.for_each(|index, _, key, admission| {
            let (opener, responder) = key.slots();
            // A session of earlier, of a vnic that is gone: numbers do not tell that vnic from its
            // successor in the slot any more.
            let of_somebody_gone =
                !here(opener, admission.stamp) || !here(responder, admission.stamp);
            if admission.stamp > FIRST_VERSION + 1 && of_somebody_gone {
                if self.shared.table.remove(index, &key) {
                    self.shared.released(&before, &key, admission.stamp);
                }
                return;
            }
            // A number that stays large would count as new after any change. The table refuses only
            // records that a worker holds at this moment.
            let mut left = (admission.stamp > FIRST_VERSION).then_some(admission);
            while let Some(admission) = left {
                if self.shared.table.readmit(
                    index,
                    &key,
                    Admitted { stamp: FIRST_VERSION, ..admission },
                ) {
                    break;
                }
                let now = self.shared.table.record(index).read_surely();
                left = now
                    .filter(|(found, now)| *found == key && now.stamp > FIRST_VERSION)
                    .map(|(_, now)| now);
            }
        });
        // Not before the records: so the sessions of departed vnics belong to no vnic, whenever
        // this process dies.
        self.name_slots(next.vnics.iter().map(|(slot, _)| slot), next);
        next.version += 1;
    }

    /// Writes the vnics of these slots into the table, for a process that finds it.
    pub(super) fn name_slots(&self, slots: impl Iterator<Item = u32>, snapshot: &Snapshot) {
        for slot in slots {
            let name = snapshot.vnics.get(slot).map(|vnic| Name {
                id: vnic.id.as_ref().into(),
                vni: vnic.vni,
                born: vnic.born,
            });
            self.shared.table.name(slot, name.as_ref());
        }
    }

    /// Moves the version near its end, for the harness.
    #[cfg(feature = "harness")]
    pub fn near_last_version(&self) {
        let next = Snapshot::clone(&self.shared.snapshot.load());
        self.publish(Snapshot { version: LAST_VERSION - 1, ..next });
    }
}

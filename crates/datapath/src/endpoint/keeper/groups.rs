//! Groups: joined and left with the networks of this host.

use std::collections::BTreeSet;

use butterfly_packet::mac::Mac;

use crate::endpoint::keeper::State;
use crate::plane::Plane;

impl State {
    /// Joins the groups of new networks, and leaves those of networks that are gone.
    pub(super) fn follow_networks(&mut self, plane: &Plane, now: u64) {
        let snapshot = plane.shared.snapshot.load();
        let alone = |at: &u32| {
            // A network with nothing but mirrors has no receiver.
            let network = snapshot.networks.get(*at).filter(|network| !network.members.is_empty());
            network
                .and_then(|network| network.remote.as_ref())
                .is_some_and(|remote| remote.peers.is_empty())
        };
        let wanted: BTreeSet<u32> =
            snapshot.by_vni.iter().filter(|(_, at)| alone(at)).map(|(vni, _)| *vni).collect();
        if wanted == self.joined && !self.failed_groups {
            return;
        }
        let before = self.joined.len();
        self.joined.retain(|vni| {
            let stays = wanted.contains(vni);
            if !stays {
                self.control.leave(*vni, &mut self.out);
            }
            stays
        });
        let mut changed = self.joined.len() != before;
        let mut refused = None;
        for vni in &wanted {
            if self.joined.contains(vni) {
                continue;
            }
            if !self.control.join(*vni, now, &mut self.out) {
                // The others would not be joined either. They are joined as soon as there is room.
                refused = Some(*vni);
                break;
            }
            self.joined.insert(*vni);
            changed = true;
        }
        if let Some(vni) = refused.filter(|_| !self.full) {
            tracing::warn!(
                vni,
                "too many groups: those of this network and of the ones after it are not joined"
            );
        }
        self.full = refused.is_some();
        if !changed && !self.failed_groups {
            return;
        }
        if let Some(filter) = self.host.as_mut().and_then(|host| host.groups.as_mut()) {
            // The groups of networks and of the endpoint's own address, and those of queriers.
            let own = self.control.groups(now).into_iter().map(|row| Mac::of_group(row.address));
            let macs = own.chain([Mac([1, 0, 0x5e, 0, 0, 1]), Mac([0x33, 0x33, 0, 0, 0, 1])]);
            let failed = filter.set(macs);
            if let Err(why) = &failed
                && !std::mem::replace(&mut self.warned, true)
            {
                tracing::warn!(%why, "the network card may not hear the groups of networks");
            }
            self.failed_groups = failed.is_err();
        }
    }
}

//! A vnic's link: what its control thread tells the worker and the daemon.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use butterfly_vhost::{control::DeviceEvents, net::Features, port::PortEvents};

use crate::engine::events::{About, Happening, SwitchEvents};
use crate::plane::{Plane, attachment::Attachment};
use crate::world::{snapshot::VnicShared, steering::Steering};

/// One vnic's link from its control thread to the worker and to the daemon.
pub(super) struct VnicLink {
    pub(super) id: String,
    pub(super) vni: u32,
    pub(super) offered: Features,
    pub(super) attachment: Attachment,
    pub(super) events: Arc<dyn SwitchEvents>,
    pub(super) shared: Arc<VnicShared>,
    pub(super) plane: Arc<Plane>,
    /// A former front end is being taken up, for which nothing happens.
    pub(super) quiet: AtomicBool,
}

impl PortEvents for VnicLink {
    fn tx_started(&self, pair: usize, kick: Option<&Arc<OwnedFd>>) {
        if pair > 0 {
            self.shared.steering.get_or_init(Arc::<Steering>::default);
        }
        self.attachment.tx_started(pair, kick);
    }

    fn tx_stopped(&self, pair: usize, kick: Option<&Arc<OwnedFd>>) {
        self.attachment.tx_stopped(pair, kick);
    }
}

impl VnicLink {
    /// Gives up the addresses of a machine that was about to leave for another host and stopped.
    fn may_have_left(&self) {
        if self.shared.leaving.load(Ordering::Relaxed) {
            self.attachment.vnic().into_iter().for_each(|place| self.plane.left(place));
        }
    }

    fn happened(&self, what: Happening<'_>) {
        if self.quiet.load(Ordering::Relaxed) {
            return;
        }
        self.events.happened(About { nic: Some(&self.id), vni: Some(self.vni) }, what);
    }
}

impl DeviceEvents for VnicLink {
    fn attached(&self) {
        self.shared.guest_came(self.plane.shared.clock.now());
        self.shared.presence.came();
        self.happened(Happening::Attached);
    }

    fn resuming(&self, under_way: bool) {
        self.quiet.store(under_way, Ordering::Relaxed);
    }

    fn resumed(&self) {
        // This guest did not come, it was here. The next one is one like any other.
        self.shared.inherits.store(false, Ordering::Relaxed);
        self.shared.presence.came();
    }

    fn detached(&self, reason: &str) {
        self.shared.driving.store(false, Ordering::Relaxed);
        self.shared.presence.went();
        self.may_have_left();
        self.happened(Happening::Detached(reason));
    }

    fn negotiated(&self, accepted: Features) {
        self.happened(Happening::Negotiated { accepted, refused: self.offered.without(accepted) });
    }

    fn driving(&self, both: bool) {
        self.shared.driving.store(both, Ordering::Relaxed);
        if both {
            self.attachment.vnic().into_iter().for_each(|place| self.plane.is_here(place));
        } else {
            self.may_have_left();
        }
        self.happened(Happening::Driving(both));
    }

    fn announce(&self) {
        self.shared.announcing.begin();
    }

    fn trouble(&self, why: &str) {
        self.happened(Happening::Trouble(why));
    }
}

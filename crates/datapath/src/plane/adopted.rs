//! Adoption: vnics of an adopted table of sessions wait until they are declared again.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use crate::plane::{FIRST_VERSION, Plane};
use crate::stages::filter::opener_number;
use crate::world::{
    adopted::{Adopted, Waiting},
    snapshot::Snapshot,
};

impl Plane {
    /// Has the vnics of an adopted table wait until they are declared again, with the counts of
    /// their sessions. Before the first vnic and the first frame.
    pub(super) fn await_adopted(&self) {
        let table = &self.shared.table;
        let vnics = (0..).zip(table.owners()).filter_map(|(slot, name)| {
            let name = name?;
            let shared = self.vnic_state(name.id.is_empty());
            shared.inherits.store(true, Relaxed);
            Some((slot, Waiting { id: name.id, vni: name.vni, shared }))
        });
        let adopted = Adopted::new(vnics);
        table.for_each(|_, _, key, _| {
            let (opener, responder) = key.slots();
            let Some(opener) = adopted.waiting(opener) else { return };
            opener.shared.sessions.opened.fetch_add(1, Relaxed);
            if let Some(responder) = adopted.waiting(responder) {
                let counts = &responder.shared.sessions;
                counts.received.fetch_add(1, Relaxed);
                counts.openers.add(opener_number(table, &key, opener.id.is_empty()));
            }
            if let Some(sessions) = adopted.sessions_in(key.vni()) {
                sessions.fetch_add(1, Relaxed);
            }
        });
        let next = Snapshot::clone(&self.shared.snapshot.load());
        self.publish(Snapshot { adopted: Some(Arc::new(adopted)), ..next });
    }

    /// Gives up the slots and the sessions of an adopted table whose vnics were not declared again.
    /// Does nothing without one. Returns the number of sessions that ended.
    pub fn all_declared(&self) -> u64 {
        let _state = self.state();
        let before = self.shared.snapshot.load_full();
        let Some(adopted) = before.adopted.as_deref() else { return 0 };
        // No vnic that comes from now on can take them over: its first version is a later one.
        self.publish(Snapshot { adopted: None, ..Snapshot::clone(&before) });
        let mut ended = 0;
        if adopted.iter().next().is_none() {
            return ended;
        }
        self.shared.table.for_each(|index, _, key, admission| {
            let (opener, responder) = key.slots();
            let gone = |slot| adopted.waiting(slot).is_some();
            if admission.stamp == FIRST_VERSION
                && (gone(opener) || gone(responder))
                && self.shared.table.remove(index, &key)
            {
                self.shared.released(&before, &key, admission.stamp);
                ended += 1;
            }
        });
        // Their names last, so that a process that dies before leaves them to the next one.
        adopted.iter().for_each(|(slot, _)| self.shared.table.name(slot, None));
        ended
    }
}

//! Vnics that are held, for the operator.

use super::{Daemon, nic::unknown};
use crate::{
    dataplane::Dataplane,
    events::Kind,
    poison::{HeldFor, Poison},
};
use butterfly_api::{
    Answer, Failure,
    proto::{NicReleaseRes, Response},
};
use protobuf::MessageField;
use tracing::warn;

impl<D: Dataplane> Daemon<D> {
    pub(super) fn nic_release(&mut self, id: &str) -> Answer {
        if !id.is_empty() && self.desired.vnics().get(id).is_none() {
            return Err(unknown(id));
        }
        if !id.is_empty() && self.poison.as_ref().is_some_and(Poison::holds_all) {
            return Err(Failure::new("the rings of all nics are held together")
                .with_help("butterfly nic release --all lets them go"));
        }
        let was_held = self.poison.as_ref().is_some_and(|poison| match id {
            "" => poison.release_all(),
            id => poison.release(id),
        });
        let text = "served again, as an operator asked for it";
        match self.desired.vnics().get(id).cloned().filter(|_| was_held) {
            Some(nic) => self.tell_nic(Kind::NicReleased, &nic, text.to_owned()),
            None if was_held => self.tell(Kind::NicReleased, format!("all vnics: {text}")),
            None => {}
        }
        let result = NicReleaseRes { was_held: Some(was_held), ..Default::default() };
        Ok(Response { nic_release: MessageField::some(result), ..Default::default() })
    }

    /// Forgets what a vnic did that is deleted. Another one may get its name.
    pub(super) fn forget_held(&self, id: &str) {
        if self.poison.as_ref().is_some_and(|poison| poison.release(id)) {
            warn!(NIC = id, "nic {id} was held, and is deleted");
        }
    }

    /// Returns why a vnic's rings are held, if they are, and for how many seconds.
    pub(super) fn held_for(&self, id: &str) -> Option<HeldFor> {
        self.poison.as_ref().and_then(|poison| poison.hold_of(id))
    }
}

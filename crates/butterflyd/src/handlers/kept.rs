//! The declared state as a successor of this process reads it.
//!
//! The form is a request `apply`, and it is taken up as one: everything in it is checked like a
//! client's word.

use super::Daemon;
use crate::{dataplane::Dataplane, events::Kind, handlers::convert, holding::Holding};
use butterfly_api::{
    Failure,
    proto::{ApplyReq, TunnelPeer},
};
use butterfly_model::canonical;
use protobuf::Message;
use tracing::error;

/// Name of the part.
const PART: &str = "declaration";

impl<D: Dataplane> Daemon<D> {
    /// Has what is declared now kept for a successor. Whoever was answered finds it there.
    pub(super) fn keep_declared(&mut self) {
        let Some(holding) = &self.holding else { return };
        if let Err(why) = self.declaration_bytes().and_then(|bytes| holding.keep(PART, &bytes)) {
            let text = format!("what is declared is not kept for a restart: {why}");
            error!("{text}");
            self.note(Kind::NotKept, text);
        }
    }

    /// Takes up what a dead process had declared. Nothing new happens by that, so no event tells
    /// of it.
    pub fn take_up(&mut self, holding: &mut Holding) -> Result<(), Failure> {
        let Some(bytes) = holding.take(PART).map_err(|why| Failure::new(why.to_string()))? else {
            return Ok(());
        };
        let request = ApplyReq::parse_from_bytes(&bytes)
            .map_err(|why| Failure::new(format!("it cannot be read: {why}")))?;
        let told = std::mem::take(&mut self.events);
        let done = if request.nic.is_empty()
            && request.security_group.is_empty()
            && request.peer.is_empty()
        {
            Ok(())
        } else {
            self.apply(&request).map(drop)
        };
        self.events = told;
        done
    }

    /// The declaration for a successor.
    pub(super) fn declaration_bytes(&self) -> std::io::Result<Vec<u8>> {
        self.everything().write_to_bytes().map_err(std::io::Error::other)
    }

    fn everything(&self) -> ApplyReq {
        let mut vnics: Vec<_> = self.desired.vnics().iter().collect();
        // Of several with one MAC address, the first has it.
        vnics.sort_by_key(|nic| self.desired.vnics().order(nic));
        let peer = |peer: butterfly_control::TunnelPeer| TunnelPeer {
            address: Some(canonical(peer.address())),
            vni: peer.vni().map(|vni| vni.number()),
            ..Default::default()
        };
        ApplyReq {
            nic: vnics.into_iter().map(|nic| self.details(nic)).collect(),
            security_group: self.desired.groups().values().map(convert::group_details).collect(),
            peer: self.desired.peers().iter().map(peer).collect(),
            ..Default::default()
        }
    }
}

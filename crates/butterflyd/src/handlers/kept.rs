//! The declared state as a successor of this process reads it.
//!
//! The form is a request `apply`: everything in it is checked like a client's word.

use super::Daemon;
use crate::{
    dataplane::Dataplane,
    events::Kind,
    handlers::{
        convert,
        keep::{NAMES, valid},
    },
    holding::Holding,
};
use butterfly_api::{
    Failure, knows_all,
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

    /// Takes up what a dead process had declared, object by object: one that this host does not
    /// take any more leaves the others alone. Returns why some were not taken. Nothing new happens
    /// by that, so no event tells of it.
    pub fn take_up(&mut self, holding: &mut Holding) -> Result<Vec<String>, Failure> {
        match holding.take(PART).map_err(|why| Failure::new(why.to_string()))? {
            Some(bytes) => self.take_up_bytes(&bytes),
            None => Ok(Vec::new()),
        }
    }

    pub(super) fn take_up_bytes(&mut self, bytes: &[u8]) -> Result<Vec<String>, Failure> {
        let request = ApplyReq::parse_from_bytes(bytes)
            .map_err(|why| Failure::new(format!("it cannot be read: {why}")))?;
        let (mut objects, mut lost) = (Vec::new(), Vec::new());
        // Machines go on all the same: what is known of them is more than nothing.
        if !knows_all(&request) {
            lost.push("fields that this release does not know".to_owned());
        }
        for object in self.objects(&request) {
            match object {
                Ok(object) => objects.push(object),
                Err(failure) => lost.push(failure.description.unwrap_or_default()),
            }
        }
        let state = valid(self.desired.clone(), objects, &mut lost);
        let told = std::mem::take(&mut self.events);
        lost.extend(self.carry_out_all(&state));
        self.events = told;
        let more = lost.len().saturating_sub(NAMES);
        lost.truncate(NAMES);
        lost.extend((more > 0).then(|| format!("and {more} more")));
        Ok(lost)
    }

    /// The declaration for a successor.
    pub(super) fn declaration_bytes(&self) -> std::io::Result<Vec<u8>> {
        self.everything().write_to_bytes().map_err(std::io::Error::other)
    }

    fn everything(&self) -> ApplyReq {
        // What this host does not take is declared all the same.
        let missing = self.keeper.as_ref().and_then(|keeper| keeper.missing.as_ref());
        let state = missing.map_or(&self.desired, |missing| &missing.state);
        let mut vnics: Vec<_> = state.vnics().iter().collect();
        // Of several with one MAC address, the first has it.
        vnics.sort_by_key(|nic| state.vnics().order(nic));
        let peer = |peer: butterfly_control::TunnelPeer| TunnelPeer {
            address: Some(canonical(peer.address())),
            vni: peer.vni().map(|vni| vni.number()),
            ..Default::default()
        };
        ApplyReq {
            nic: vnics.into_iter().map(|nic| self.details(nic)).collect(),
            security_group: state.groups().values().map(convert::group_details).collect(),
            peer: state.peers().iter().map(peer).collect(),
            network: state.routed().networks().map(convert::network_details).collect(),
            router: state.routed().routers().map(convert::router_details).collect(),
            external: state.routed().externals().map(convert::external_details).collect(),
            nat: state.routed().all_nats().map(|it| convert::nat_details(&it)).collect(),
            neighbour: state.routed().neighbours().map(convert::neighbour_details).collect(),
            ..Default::default()
        }
    }
}

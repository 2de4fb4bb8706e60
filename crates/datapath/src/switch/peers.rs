//! Peers that an operator names.

use std::{net::IpAddr, sync::PoisonError};

use butterfly_model::Vni;

use crate::endpoint::open::{Peers, TunnelError, check_peer};
use crate::switch::Switch;

impl Switch {
    /// Returns the named peers.
    pub fn peers(&self) -> Peers {
        let (all, of) = self.plane().peers();
        Peers { all, of }
    }

    /// Names a peer for all networks, or for one. Returns whether it was not named before.
    pub fn add_peer(&self, peer: IpAddr, vni: Option<Vni>) -> Result<bool, TunnelError> {
        let side = self.side().ok_or(TunnelError::NoUplink)?;
        check_peer(peer, side.spec.endpoint)?;
        self.change_peers(vni, |list| {
            let new = !list.contains(&peer);
            if new {
                list.push(peer);
            }
            new
        })
    }

    /// Undoes [`Self::add_peer`]. Returns whether the peer was named.
    pub fn remove_peer(&self, peer: IpAddr, vni: Option<Vni>) -> Result<bool, TunnelError> {
        self.side().ok_or(TunnelError::NoUplink)?;
        self.change_peers(vni, |list| {
            let before = list.len();
            list.retain(|other| *other != peer);
            list.len() != before
        })
    }

    fn change_peers(
        &self,
        vni: Option<Vni>,
        change: impl FnOnce(&mut Vec<IpAddr>) -> bool,
    ) -> Result<bool, TunnelError> {
        // One change at a time: each starts from a list that was read a moment ago.
        let _held = self.changing_peers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut peers = self.peers();
        let changed = match vni {
            None => change(&mut peers.all),
            Some(vni) => change(peers.of.entry(vni.number()).or_default()),
        };
        peers.of.retain(|_, list| !list.is_empty());
        if changed {
            let Peers { all, of } = peers;
            let refused = self.plane().set_peers(all, of);
            refused.map_err(|refused| {
                refused.first().copied().map_or(TunnelError::NoUplink, TunnelError::Full)
            })?;
        }
        Ok(changed)
    }
}

//! The wire of a host that is a tunnel endpoint: frames in and out, other hosts.

use std::{collections::BTreeMap, net::IpAddr};

use butterfly_guest_driver::guest::Guest;
use butterfly_packet::mac::Mac;
use butterfly_vhost::net::NetHeader;

use crate::harness::{Host, error::Error};
use crate::world::rules::number as number_of_ip;

impl Host {
    /// Sets the tunnel endpoints that get floods, in all networks and in some.
    pub fn set_peers(
        &self,
        all: Vec<IpAddr>,
        of: BTreeMap<u32, Vec<IpAddr>>,
    ) -> Result<(), Vec<IpAddr>> {
        self.plane.set_peers(all, of)
    }

    /// Sets the link address of a peer's next hop.
    pub fn set_neighbour(&self, peer: IpAddr, mac: Mac) -> Result<(), Error> {
        let tunnel = self.plane.shared.tunnel.as_ref().ok_or("no tunnel")?;
        let peer = tunnel
            .peers
            .find(number_of_ip(peer))
            .and_then(|at| tunnel.peers.get(at))
            .ok_or("no such peer")?;
        peer.set_mac(Some(mac));
        peer.stop_waiting();
        Ok(())
    }

    /// Returns the other end of the uplink.
    pub fn wire(&mut self) -> Option<&mut Guest> {
        self.wire.as_mut()
    }

    /// Returns the frames that left through the uplink since the last call.
    pub fn left(&mut self) -> Result<Vec<Vec<u8>>, Error> {
        let wire = self.wire.as_mut().ok_or("no tunnel")?;
        let mut frames = Vec::new();
        while let Some((_, frame)) = wire.recv()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Puts frames into the uplink, as if they arrived.
    pub fn arrive(&mut self, frames: &[Vec<u8>]) -> Result<(), Error> {
        for frame in frames {
            self.wire.as_mut().ok_or("no tunnel")?.send(frame, NetHeader::default())?;
            self.settle();
        }
        Ok(())
    }

    /// Puts frames into the uplink, as if they arrived at once.
    pub fn arrive_together(&mut self, frames: &[Vec<u8>]) -> Result<(), Error> {
        let wire = self.wire.as_mut().ok_or("no tunnel")?;
        frames.iter().try_for_each(|frame| wire.enqueue(frame, NetHeader::default()))?;
        wire.flush();
        self.settle();
        Ok(())
    }

    /// Returns frames for the endpoint itself, and frames that wait for a next hop, as the control
    /// thread would get them.
    pub fn punted(&self) -> Vec<Vec<u8>> {
        let Some(tunnel) = &self.plane.shared.tunnel else { return Vec::new() };
        let mut frames = Vec::new();
        while let Some((_, frame)) = tunnel.punt.take() {
            frames.push(frame.clone());
            tunnel.punt.give_back(frame);
        }
        frames
    }
}

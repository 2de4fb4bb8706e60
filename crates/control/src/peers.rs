//! Tunnel endpoints of other hosts that were named.

use crate::refused::Refused;
use butterfly_model::{IpSet, Vni, may_be_endpoint};
use std::{collections::BTreeMap, net::IpAddr};

/// Most pairs of one network and a peer of it: an API client may name one for each of 16 million
/// networks.
pub(crate) const MAX_NAMED: usize = 1 << 16;

/// A tunnel endpoint that frames for several receivers are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelPeer {
    vni: Option<Vni>,
    address: IpAddr,
}

impl TunnelPeer {
    /// The endpoint at `address`, for the frames of one network or (`None`) of all.
    ///
    /// Fails with [`Refused::NotAHost`] for addresses that no host can have: multicast, broadcast,
    /// loopback, unspecified, and IPv4 in the form of IPv6.
    ///
    /// ```
    /// # use butterfly_control::{Refused, TunnelPeer};
    /// let group = "239.0.0.1".parse().unwrap();
    /// assert_eq!(TunnelPeer::new(group, None), Err(Refused::NotAHost(group)));
    /// assert!(TunnelPeer::new("192.0.2.1".parse().unwrap(), None).is_ok());
    /// ```
    pub fn new(address: IpAddr, vni: Option<Vni>) -> Result<Self, Refused> {
        if !may_be_endpoint(address) {
            return Err(Refused::NotAHost(address));
        }
        Ok(Self { vni, address })
    }

    /// Its address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The network that it is named for; `None`: all networks.
    pub fn vni(&self) -> Option<Vni> {
        self.vni
    }
}

/// All peers that were named. Lists are equal if they have the same peers: their order means
/// nothing, but is echoed.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// Never with an empty list.
    of: BTreeMap<Option<Vni>, IpSet>,
    /// Pairs of one network and a peer.
    named: usize,
}

impl PartialEq for Peers {
    fn eq(&self, other: &Self) -> bool {
        let subset = |one: &Self, other: &Self| one.iter().all(|peer| other.contains(&peer));
        self.len() == other.len() && subset(self, other)
    }
}

impl Eq for Peers {}

impl Peers {
    /// Those for all networks first, then in the order of the networks; each list in the order in
    /// which they were named.
    pub fn iter(&self) -> impl Iterator<Item = TunnelPeer> {
        self.of.iter().flat_map(|(vni, list)| {
            list.addresses().map(|address| TunnelPeer { vni: *vni, address })
        })
    }

    /// True if `peer` is named, for exactly the network that it says.
    pub fn contains(&self, peer: &TunnelPeer) -> bool {
        self.of.get(&peer.vni).is_some_and(|list| list.contains(peer.address))
    }

    /// The number of peers, each once for each network that it is named for.
    pub fn len(&self) -> usize {
        self.of.values().map(IpSet::len).sum()
    }

    /// True if none is named.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(crate) fn check(&self, peer: &TunnelPeer) -> Result<(), Refused> {
        let full = self.named >= MAX_NAMED && peer.vni.is_some() && !self.contains(peer);
        if full { Err(Refused::TooManyPeers) } else { Ok(()) }
    }

    pub(crate) fn insert(&mut self, peer: TunnelPeer) {
        let new = self.of.entry(peer.vni).or_default().insert(peer.address);
        self.named += usize::from(new && peer.vni.is_some());
    }

    pub(crate) fn remove(&mut self, peer: &TunnelPeer) {
        let Some(list) = self.of.get_mut(&peer.vni) else { return };
        let gone = list.remove(peer.address);
        self.named -= usize::from(gone && peer.vni.is_some());
        if list.is_empty() {
            self.of.remove(&peer.vni);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(host: u16, vni: u32) -> TunnelPeer {
        let [high, low] = host.to_be_bytes();
        TunnelPeer::new([10, 1, high, low].into(), Some(Vni::new(vni).unwrap())).unwrap()
    }

    #[test]
    fn addresses_of_no_host_are_refused() {
        for text in ["0.0.0.0", "255.255.255.255", "239.0.0.1", "127.0.0.1", "::", "::1", "ff02::1"]
            .into_iter()
            .chain(["::ffff:10.0.0.1"])
        {
            let address = text.parse().unwrap();
            assert_eq!(TunnelPeer::new(address, None), Err(Refused::NotAHost(address)), "{text}");
        }
    }

    #[test]
    fn peers_of_single_networks_are_bounded() {
        let mut peers = Peers::default();
        (0..MAX_NAMED as u32).for_each(|vni| peers.insert(peer(1, vni)));
        assert_eq!(peers.check(&peer(2, 0)), Err(Refused::TooManyPeers));
        assert_eq!(peers.check(&peer(1, 0)), Ok(()), "it is there");
        let of_all = TunnelPeer::new([10, 1, 0, 2].into(), None).unwrap();
        assert_eq!(peers.check(&of_all), Ok(()));
        peers.insert(peer(1, 7));
        peers.remove(&peer(1, 7));
        peers.remove(&peer(1, 7));
        assert_eq!(peers.check(&peer(2, 0)), Ok(()));
        assert_eq!(peers.len(), MAX_NAMED - 1);
    }

    #[test]
    fn they_are_echoed_in_order_and_compared_without() {
        let (mut one, mut other) = (Peers::default(), Peers::default());
        [peer(2, 7), peer(1, 7), peer(3, 1)].into_iter().for_each(|peer| one.insert(peer));
        [peer(1, 7), peer(3, 1), peer(2, 7)].into_iter().for_each(|peer| other.insert(peer));
        assert_eq!(one.iter().collect::<Vec<_>>(), [peer(3, 1), peer(2, 7), peer(1, 7)]);
        assert_eq!(one, other);
        other.remove(&peer(1, 7));
        assert_ne!(one, other);
        other.insert(peer(1, 8));
        assert_ne!(one, other);
    }
}

//! Requests about other hosts: the tunnel endpoint, the uplink, peers.

use super::{Daemon, report::drops};
use crate::{dataplane::Dataplane, handlers::convert};
use butterfly_api::{
    Answer, Failure,
    proto::{Counter, Response, TunnelPeer, TunnelShow, TunnelShowReq, UplinkShow, tunnel_show},
};
use butterfly_control::Change;
use butterfly_datapath::{
    GroupRow, NeighbourRow, NetworkReport, PeerReport, RemoteMac, TunnelError, TunnelReport,
    UplinkReport,
};
use butterfly_model::{Vni, canonical};

impl<D: Dataplane> Daemon<D> {
    pub(super) fn tunnel_show(&self, request: &TunnelShowReq) -> Answer {
        let vni = request.vni.map(convert::network).transpose()?;
        let tunnel_show = self.dataplane.tunnel().map(|report| show(report, vni)).into();
        Ok(Response { tunnel_show, ..Default::default() })
    }

    pub(super) fn uplink_show(&self) -> Answer {
        Ok(Response {
            uplink_show: self.dataplane.uplink().map(uplink).into(),
            ..Default::default()
        })
    }

    pub(super) fn peer_add(&mut self, peer: &TunnelPeer) -> Answer {
        let peer = convert::peer(peer)?;
        self.with_uplink()?;
        if !self.desired.peers().contains(&peer) {
            self.change(Change::NamePeer(peer))?;
        }
        Ok(Response::new())
    }

    pub(super) fn peer_del(&mut self, peer: &TunnelPeer) -> Answer {
        let peer = convert::peer(peer)?;
        self.with_uplink()?;
        if self.desired.peers().contains(&peer) {
            self.change(Change::UnnamePeer(peer))?;
        }
        Ok(Response::new())
    }

    pub(super) fn with_uplink(&self) -> Result<(), Failure> {
        match self.dataplane.inner_mtu() {
            Some(_) => Ok(()),
            None => Err(Failure::new(TunnelError::NoUplink.to_string())),
        }
    }

    pub(super) fn peer_list(&self) -> Answer {
        let peer_list = self.desired.peers().iter().map(convert::peer_details).collect();
        Ok(Response { peer_list, ..Default::default() })
    }
}

/// Returns the part of `report` about one network, or all of it.
fn show(report: TunnelReport, vni: Option<Vni>) -> TunnelShow {
    let vni = vni.map(|vni| vni.number());
    let wanted = |of: u32| vni.is_none_or(|vni| vni == of);
    let learnt: Vec<_> = report.learnt.into_iter().filter(|row| wanted(row.vni)).collect();
    let concerned = |peer: &PeerReport| {
        let named = peer.named && (peer.vnis.is_empty() || peer.vnis.iter().any(|of| wanted(*of)));
        vni.is_none() || named || learnt.iter().any(|row| row.peer == peer.address)
    };
    TunnelShow {
        endpoint: Some(canonical(report.endpoint)),
        mac: Some(report.mac.to_string()),
        answers: Some(report.answers),
        strict_peers: Some(report.strict_peers),
        host_mtu: Some(report.inner_mtu),
        groups: report.groups.into_iter().filter(|row| wanted(row.vni)).map(group).collect(),
        peers: report.peers.into_iter().filter(concerned).map(peer).collect(),
        neighbours: report.neighbours.into_iter().map(neighbour).collect(),
        networks: report.networks.into_iter().filter(|row| wanted(row.vni)).map(traffic).collect(),
        control: report.control.into_iter().map(counter).collect(),
        learnt: learnt.into_iter().map(remote_mac).collect(),
        ..Default::default()
    }
}

fn group(row: GroupRow) -> tunnel_show::Group {
    tunnel_show::Group {
        vni: Some(row.vni),
        address: Some(canonical(row.group)),
        ..Default::default()
    }
}

fn peer(peer: PeerReport) -> tunnel_show::Peer {
    tunnel_show::Peer {
        address: Some(canonical(peer.address)),
        mac: peer.mac.map(|mac| mac.to_string()),
        named: Some(peer.named),
        vni: peer.vnis,
        of_neighbours: Some(true).filter(|_| peer.of_neighbours),
        idle: peer.idle.map(u64::from),
        in_packets: Some(peer.received.0),
        in_bytes: Some(peer.received.1),
        out_packets: Some(peer.sent.0),
        out_bytes: Some(peer.sent.1),
        drops: Some(peer.drops),
        unanswered_since: peer.unanswered.map(|(since, _)| since.into()),
        unanswered_packets: peer.unanswered.map(|(_, packets)| packets),
        trouble: peer.refusal.map(|(why, _)| why.told().to_owned()),
        trouble_since: peer.refusal.map(|(_, since)| since.into()),
        ..Default::default()
    }
}

fn remote_mac(row: RemoteMac) -> tunnel_show::RemoteMac {
    tunnel_show::RemoteMac {
        vni: Some(row.vni),
        mac: Some(row.mac.to_string()),
        peer: Some(canonical(row.peer)),
        age: Some(row.idle.into()),
        ..Default::default()
    }
}

fn neighbour(row: NeighbourRow) -> tunnel_show::Neighbour {
    tunnel_show::Neighbour {
        address: Some(canonical(row.address)),
        mac: row.mac.map(|mac| mac.to_string()),
        state: Some(row.state),
        age: row.age.map(u64::from),
        ..Default::default()
    }
}

fn traffic(network: NetworkReport) -> tunnel_show::Network {
    tunnel_show::Network {
        vni: Some(network.vni),
        in_packets: Some(network.received.0),
        in_bytes: Some(network.received.1),
        out_packets: Some(network.sent.0),
        out_bytes: Some(network.sent.1),
        drops: drops(&network.drops),
        ..Default::default()
    }
}

fn counter((name, description, value): (&str, &str, u64)) -> Counter {
    Counter {
        name: Some(name.to_owned()),
        value: Some(value),
        description: Some(description.to_owned()),
        ..Default::default()
    }
}

fn uplink(report: UplinkReport) -> UplinkShow {
    UplinkShow {
        kind: Some(report.kind),
        interface: Some(report.interface),
        mode: Some(report.mode),
        note: report.note,
        queues: Some(report.queues),
        mac: Some(report.mac.to_string()),
        mtu: Some(report.mtu),
        host_mtu: Some(report.inner_mtu),
        offloads: report.offloads,
        in_packets: Some(report.received.0),
        in_bytes: Some(report.received.1),
        out_packets: Some(report.sent.0),
        out_bytes: Some(report.sent.1),
        drops: drops(&report.drops),
        counters: report.counters.into_iter().map(counter).collect(),
        attached: report.attached,
        state: report.state.map(|state| state.name().to_owned()),
        vlan: (report.vlan != 0).then_some(report.vlan.into()),
        vlan_doubt: report.vlan_doubt,
        ..Default::default()
    }
}

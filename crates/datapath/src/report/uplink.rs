//! The uplink and the tunnel endpoint, for monitoring: see [`crate::report::observe`].

use std::sync::atomic::Ordering;

use crate::endpoint::side::EndpointSide;
use crate::engine::counters::Counter;
use crate::plane::Plane;
use crate::report::tunnel::sent;
use crate::report::{
    counts::{happened, pair},
    observe::{PeerObservation, UplinkObservation},
};

/// Reads the counters of the uplink; `None` if networks end at this host.
pub(crate) fn observe_uplink(plane: &Plane, side: &EndpointSide) -> Option<UplinkObservation> {
    let shared = &plane.shared;
    let tunnel = shared.tunnel.as_ref()?;
    let port = side.port()?;
    let totals = tunnel.totals();
    let peers = tunnel.peers.list(shared.clock.now());
    let peer = |row: &crate::overlay::peers::PeerRow| PeerObservation {
        address: row.address,
        named: row.configured,
        neighbour_known: row.mac.is_some(),
        idle: row.idle,
        received: row.received(),
        sent: (row.sent(), row.sent_bytes()),
        drops: row.drops(),
    };
    Some(UplinkObservation {
        kind: port.kind,
        interface: port.interface,
        mode: port.mode,
        up: match &side.wire {
            Some(_) => !tunnel.down.load(Ordering::Relaxed),
            None => side.attached.load(Ordering::Relaxed),
        },
        mtu: tunnel.mtu.load(Ordering::Relaxed),
        received: pair(&totals, Counter::InPackets, Counter::InBytes),
        sent: sent(plane, &totals),
        drops: happened(&totals),
        port: side.counted().into_iter().map(|(name, _, count)| (name, count)).collect(),
        control: side.control_counts().into_iter().map(|(name, _, count)| (name, count)).collect(),
        peers: peers.iter().map(peer).collect(),
    })
}

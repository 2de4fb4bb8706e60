//! `butterfly tunnels --json`.

use butterfly_api::proto::{Counter, TunnelShow, nic_show};
use serde_json::{Value, json};

/// Everything the daemon told, under the field names of the protocol.
pub fn json(show: &TunnelShow) -> Value {
    json!({
        "endpoint": show.endpoint(),
        "mac": show.mac(),
        "answers": show.answers(),
        "strict_peers": show.strict_peers(),
        "host_mtu": show.host_mtu(),
        "groups": show.groups.iter().map(|group| json!({
            "vni": group.vni(),
            "address": group.address(),
        })).collect::<Vec<_>>(),
        "peers": show.peers.iter().map(|peer| json!({
            "address": peer.address(),
            "mac": peer.mac,
            "named": peer.named(),
            "of_neighbours": peer.of_neighbours(),
            "vni": peer.vni,
            "idle_s": peer.idle,
            "in_packets": peer.in_packets(),
            "in_bytes": peer.in_bytes(),
            "out_packets": peer.out_packets(),
            "out_bytes": peer.out_bytes(),
            "drops": peer.drops(),
            "unanswered_since_s": peer.unanswered_since,
            "unanswered_packets": peer.unanswered_packets,
            "trouble": peer.trouble,
            "trouble_since_s": peer.trouble_since,
        })).collect::<Vec<_>>(),
        "learnt": show.learnt.iter().map(|row| json!({
            "vni": row.vni(),
            "mac": row.mac(),
            "peer": row.peer(),
            "age_s": row.age(),
        })).collect::<Vec<_>>(),
        "neighbours": show.neighbours.iter().map(|row| json!({
            "address": row.address(),
            "mac": row.mac,
            "state": row.state,
            "age_s": row.age,
        })).collect::<Vec<_>>(),
        "networks": show.networks.iter().map(|network| json!({
            "vni": network.vni(),
            "in_packets": network.in_packets(),
            "in_bytes": network.in_bytes(),
            "out_packets": network.out_packets(),
            "out_bytes": network.out_bytes(),
            "drops": drops(&network.drops),
        })).collect::<Vec<_>>(),
        "control": counters(&show.control),
    })
}

/// Every reason, with its count and meaning.
pub fn drops(drops: &[nic_show::Drop]) -> Value {
    let row = |drop: &nic_show::Drop| {
        json!({
            "reason": drop.reason(),
            "count": drop.count(),
            "description": drop.description(),
            "harmless": drop.harmless(),
        })
    };
    drops.iter().map(row).collect()
}

/// Every counter, with its meaning.
pub fn counters(counters: &[Counter]) -> Value {
    let row = |counter: &Counter| {
        json!({
            "name": counter.name(),
            "value": counter.value(),
            "description": counter.description(),
        })
    };
    counters.iter().map(row).collect()
}

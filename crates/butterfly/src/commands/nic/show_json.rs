//! `butterfly nic show --json`.

use super::limits;
use super::list::{State, trouble};
use crate::commands::tunnels::drops_json;
use crate::text::json::seconds;
use butterfly_api::proto::{NicShow, Pings, nic::Type, nic_show};
use protobuf::EnumOrUnknown;
use serde_json::{Value, json};

/// Everything the daemon told, under the field names of the protocol. What it
/// did not tell is null, an empty list, or 0 for a counter.
pub fn json(show: &NicShow) -> Value {
    let kind = show.type_.map(kind);
    let mirror = show
        .mirror
        .as_ref()
        .map(|mirror| json!({ "target": mirror.target(), "idle": mirror.idle }));
    let pings = show.pings.as_ref().map(pings);
    let packet_trace = show.packet_trace.as_ref().map(|trace| {
        json!({
            "on": trace.on(),
            "path": trace.path,
            "packets": trace.packets(),
            "bytes": trace.bytes(),
            "lost": trace.lost(),
            "trouble": trace.trouble,
        })
    });
    let interrupts = show.interrupts.as_ref().map(|interrupts| {
        json!({
            "costly": interrupts.costly(),
            "confirmed": interrupts.confirmed(),
            "apart": interrupts.apart(),
            "worst_ns": interrupts.worst_ns(),
        })
    });
    let first_touches = show.first_touches.as_ref().map(|touches| {
        json!({
            "pages": touches.pages(),
            "rests": touches.rests(),
            "stalls": touches.stalls(),
            "stalled_us": touches.stalled_us(),
        })
    });
    let mut page = json!({
        "id": show.id(),
        "mac": show.mac(),
        "vni": show.vni(),
        "ip": show.ip,
        "security_group": show.security_group,
        "ip_anti_spoof": show.ip_anti_spoof(),
        "bypass_filtering": show.bypass_filtering(),
        "forwards": show.forwards(),
        "shared_ip": show.shared_ip(),
        "router": show.router(),
        "limits": limits::json_of(show.limits.as_ref()),
        "limit_waits": show.limits.waits(),
        "waits_for": show.waits_for,
        "held": show.held,
        "held_for_s": show.held_for_s,
        "type": kind,
        "path": show.path,
        "role": show.role,
        "attached": show.attached(),
        "attached_since": show.attached_since.map(seconds),
        "attached_since_s": show.attached_since,
        "peer_pid": show.peer_pid,
        "migrating": show.migrating(),
        "others_waiting": show.others_waiting(),
        "attach_count": show.attach_count(),
        "last_detach_reason": show.last_detach_reason,
        "last_detach_time": show.last_detach_time.map(seconds),
        "last_detach_time_s": show.last_detach_time,
        "features_offered": show.features_offered,
        "features_negotiated": show.features_negotiated,
        "features_refused": show.features_refused,
        "protocol_features": show.protocol_features,
        "queues": show.queues.iter().map(|queue| json!({
            "name": queue.name(),
            "pair": queue.pair(),
            "size": queue.size,
            "running": queue.running(),
            "enabled": queue.enabled(),
            "broken": queue.broken(),
            "trouble": queue.trouble,
            "next_avail": queue.next_avail,
            "used": queue.used,
            "guest_avail": queue.guest_avail,
            "pending": pending(queue),
            "packed": queue.packed(),
        })).collect::<Vec<_>>(),
        "memory_regions": show.memory_regions.iter().map(|region| json!({
            "guest_addr": region.guest_addr(),
            "size": region.size(),
            "page_size": region.page_size,
        })).collect::<Vec<_>>(),
        "in_packets": show.in_packets(),
        "in_bytes": show.in_bytes(),
        "out_packets": show.out_packets(),
        "out_bytes": show.out_bytes(),
        "flooded": show.flooded(),
        "learn_refused": show.learn_refused(),
        "announced": show.announced(),
        "passed_on": show.passed_on(),
        "sessions": show.sessions(),
        "host_mtu": show.host_mtu,
        "mirror": mirror,
        "mirrored_by": show.mirrored_by,
        "packet_trace": packet_trace,
        "netns": show.netns,
        "interface_refused": show.interface_refused,
        "pings": pings,
        "drops": drops_json(&show.drops),
    });
    // As many as the macro can take are above.
    page["interrupts"] = interrupts.into();
    page["first_touches"] = first_touches.into();
    page["state"] = State::of(show).name().into();
    page["trouble"] = trouble(show).into();
    page["missing_groups"] = json!(show.missing_group);
    page["prefix"] = json!(show.prefix);
    page["prefix_unrouted"] = json!(show.prefix_unrouted);
    page
}

/// The name of a type, or its number.
pub fn kind(kind: EnumOrUnknown<Type>) -> Value {
    match kind.enum_value() {
        Ok(kind) => json!(format!("{kind:?}")),
        Err(number) => json!(number),
    }
}

/// Results of a BENCH vnic.
pub fn pings(pings: &Pings) -> Value {
    json!({
        "requests": pings.requests(),
        "replies": pings.replies(),
        "min_ns": pings.min_ns,
        "mean_ns": pings.mean_ns,
        "max_ns": pings.max_ns,
    })
}

/// Entries that the guest has made available and the switch has not taken.
pub(super) fn pending(queue: &nic_show::Queue) -> Option<u32> {
    // A daemon that does not say it has split rings alone: their indices are 16 bits wide and wrap.
    let distance = queue
        .guest_avail
        .zip(queue.next_avail)
        .map(|(guest, ours)| u32::from((guest as u16).wrapping_sub(ours as u16)));
    queue.pending.or(distance)
}

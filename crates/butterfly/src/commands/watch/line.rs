//! One packet of a trace: a line for people, or for programs.

use crate::text::json::nanoseconds;
use crate::text::table::safe;
use butterfly_api::proto::{TracedPacket, traced_packet::Verdict};
use serde_json::{Value, json};
use std::fmt::Write;

fn verdict(packet: &TracedPacket) -> Option<Verdict> {
    packet.verdict.and_then(|verdict| verdict.enum_value().ok())
}

/// Returns time (UTC), sender and receiver, the packet, its fate, the rule and the cost.
pub fn text(packet: &TracedPacket) -> String {
    let seconds = packet.time() / 1_000_000_000;
    let micros = packet.time() / 1000 % 1_000_000;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let mut line = format!("{hour:02}:{minute:02}:{second:02}.{micros:06} ");
    // A string takes what is written.
    let _ = match (&packet.from_nic, &packet.from_host) {
        (Some(nic), _) => write!(line, "{}", safe(nic)),
        (None, Some(host)) => write!(line, "host {}", safe(host)),
        (None, None) => write!(line, "?"),
    };
    line.push_str(" -> ");
    let mut to = String::new();
    match verdict(packet) {
        Some(Verdict::DELIVERED) => {
            line.push_str(&packet.to_nic.as_deref().map_or("?".into(), safe));
            to.push_str("delivered");
        }
        Some(Verdict::TUNNELLED) => {
            let _ = write!(line, "host {}", safe(packet.to_host()));
            to.push_str("tunnelled");
        }
        Some(Verdict::FLOODED) => {
            line.push('*');
            let _ = write!(
                to,
                "flooded to {} nics, {} hosts",
                packet.flooded_nics(),
                packet.flooded_hosts()
            );
            if packet.refused() > 0 {
                let _ = write!(to, "; {} copies dropped", packet.refused());
                if let Some(reason) = &packet.reason {
                    let _ = write!(to, ": {}", safe(reason));
                }
            }
        }
        Some(Verdict::DROPPED) => {
            line.push_str("dropped");
            let _ = write!(
                to,
                "DROPPED {}, charged to {}",
                safe(packet.reason()),
                safe(packet.charged())
            );
            if !packet.tried.is_empty() {
                let names: Vec<_> = packet.tried.iter().map(|name| safe(name)).collect();
                let _ = write!(to, ", no rule of {}", names.join(", "));
            }
        }
        Some(Verdict::ANSWERED) => {
            line.push_str("router");
            let _ = write!(to, "for the router or the network itself");
        }
        Some(Verdict::SEEN) | None => line.push_str(&safe(packet.point())),
    }
    if let Some(vni) = packet.vni {
        let _ = write!(line, " vni {vni}");
    }
    let _ = write!(line, " | {} | {to}", safe(packet.summary()));
    if packet.point() == "answer" {
        line.push_str(", answered by the switch");
    }
    if packet.reply() {
        line.push_str(", reply");
    }
    for rule in &packet.rule {
        let _ = write!(line, ", rule {}", safe(rule));
    }
    if let Some(cycles) = packet.cycles {
        let _ = write!(line, ", {cycles} cycles");
    }
    line
}

/// The same under the field names of the protocol.
pub fn json(packet: &TracedPacket) -> Value {
    json!({
        "time": packet.time.map(nanoseconds),
        "time_ns": packet.time,
        "point": packet.point,
        "vni": packet.vni,
        "from_nic": packet.from_nic,
        "from_host": packet.from_host,
        "verdict": verdict(packet).map(|verdict| format!("{verdict:?}").to_lowercase()),
        "to_nic": packet.to_nic,
        "to_host": packet.to_host,
        "flooded_nics": packet.flooded_nics,
        "flooded_hosts": packet.flooded_hosts,
        "refused": packet.refused,
        "reason": packet.reason,
        "charged": packet.charged,
        "tried": packet.tried,
        "reply": packet.reply,
        "rule": packet.rule,
        "cycles": packet.cycles,
        "length": packet.length,
        "summary": packet.summary,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> TracedPacket {
        TracedPacket {
            time: Some(1_700_000_000_123_456_789),
            point: Some("network".into()),
            vni: Some(42),
            from_nic: Some("vm-1".into()),
            verdict: Some(Verdict::DELIVERED.into()),
            to_nic: Some("vm-2".into()),
            rule: vec!["web: in tcp 443 from 0.0.0.0/0".into()],
            reply: Some(false),
            cycles: Some(412),
            length: Some(66),
            summary: Some("tcp 10.0.0.1:1 > 10.0.0.2:443 [S], 66 bytes".into()),
            ..TracedPacket::default()
        }
    }

    #[test]
    fn a_packet_is_one_line() {
        assert_eq!(
            text(&packet()),
            "22:13:20.123456 vm-1 -> vm-2 vni 42 | tcp 10.0.0.1:1 > 10.0.0.2:443 [S], 66 bytes | delivered, \
             rule web: in tcp 443 from 0.0.0.0/0, 412 cycles"
        );
        let dropped = TracedPacket {
            verdict: Some(Verdict::DROPPED.into()),
            to_nic: None,
            rule: vec![],
            reply: None,
            cycles: None,
            reason: Some("ingress-denied".into()),
            charged: Some("nic vm-2".into()),
            ..packet()
        };
        assert!(
            text(&dropped).ends_with("| DROPPED ingress-denied, charged to nic vm-2"),
            "{}",
            text(&dropped)
        );
        let denied = TracedPacket { tried: vec!["web".into(), "d\nb".into()], ..dropped };
        assert!(
            text(&denied).contains("charged to nic vm-2, no rule of web, d\\nb"),
            "{}",
            text(&denied)
        );
        let flood = TracedPacket {
            verdict: Some(Verdict::FLOODED.into()),
            flooded_nics: Some(3),
            refused: Some(1),
            ..packet()
        };
        assert!(
            text(&flood).contains("vm-1 -> * vni 42")
                && text(&flood).contains("3 nics, 0 hosts; 1 copies dropped")
        );
        let seen = TracedPacket {
            verdict: Some(Verdict::SEEN.into()),
            from_nic: None,
            summary: Some("a\nb".into()),
            ..packet()
        };
        assert!(!text(&seen).contains('\n'), "no packet breaks a line");
    }

    #[test]
    fn programs_get_every_field() {
        let value = json(&packet());
        assert_eq!(value["verdict"], "delivered");
        assert_eq!(value["rule"][0], "web: in tcp 443 from 0.0.0.0/0");
        assert_eq!(value["reason"], Value::Null);
    }
}

//! `butterfly sessions --json`.

use crate::commands::sg::rule_hash;
use butterfly_api::proto::{
    Session, SessionAdmission, SessionListRes, SessionTable, session::End, session_admission::Kind,
};
use serde_json::{Map, Value, json};

/// The table and the sessions, under the field names of the protocol.
pub fn sessions(state: &SessionTable, found: &SessionListRes) -> Value {
    json!({
        "table": table(state),
        "matching": found.matching(),
        "sessions": found.session.iter().map(session).collect::<Vec<_>>(),
    })
}

/// The table, with its time-outs by name in seconds.
pub fn table(state: &SessionTable) -> Value {
    let timeouts: Map<String, Value> = state
        .timeout
        .iter()
        .map(|timeout| (timeout.name().to_owned(), timeout.seconds().into()))
        .collect();
    json!({
        "capacity": state.capacity(),
        "used": state.used(),
        "memory": state.memory,
        "tcp_pickup_s": state.tcp_pickup(),
        "share": Some(state.share()).filter(|share| *share != u32::MAX),
        "timeouts_s": timeouts,
    })
}

fn session(session: &Session) -> Value {
    json!({
        "vni": session.vni(),
        "vlan": session.vlan,
        "protocol": session.protocol(),
        "opener": end(&session.opener),
        "responder": end(&session.responder),
        "state": session.state,
        "age_s": session.age(),
        "idle_s": session.idle(),
        "expires_s": session.expires(),
        "opener_packets": session.opener_packets(),
        "opener_bytes": session.opener_bytes(),
        "responder_packets": session.responder_packets(),
        "responder_bytes": session.responder_bytes(),
        "egress": admission(&session.egress),
        "ingress": admission(&session.ingress),
    })
}

fn end(end: &End) -> Value {
    let outside = end.outside.as_ref().map(|outside| {
        json!({ "external": outside.external, "address": outside.address(), "port": outside.port() })
    });
    json!({ "nic_id": end.nic_id, "address": end.address, "port": end.port(), "outside": outside })
}

/// Returns the rule that lets a session's packets out or in.
pub fn admission(admission: &SessionAdmission) -> Value {
    let kind = admission.kind.map(|kind| match kind.enum_value() {
        Ok(kind) => json!(format!("{kind:?}")),
        Err(number) => json!(number),
    });
    match admission.kind.map(|kind| kind.enum_value()) {
        Some(Ok(Kind::RULE)) => json!({
            "kind": kind,
            "security_group": admission.security_group,
            "hash": rule_hash(&admission.rule),
        }),
        _ => json!({ "kind": kind }),
    }
}

//! An explanation for programs.

use crate::commands::sessions::admission_json;
use butterfly_api::proto::{
    ExplainReq, ExplainRes, ExplainWalk, SessionAdmission, explain_walk::step::Mark,
};
use protobuf::MessageField;
use serde_json::{Value, json};

/// Returns the answers of each daemon that was asked: `endpoint` is null for that of this host.
pub fn json(answers: &[(String, ExplainReq, ExplainRes)]) -> Value {
    let host = |(endpoint, _, answer): &(String, ExplainReq, ExplainRes)| {
        json!({
            "endpoint": Some(endpoint).filter(|endpoint| !endpoint.is_empty()),
            "allowed": answer.allowed(),
            "vni": answer.vni(),
            "external": answer.external,
            "destination_mac": answer.destination_mac(),
            "walks": answer.walk.iter().map(walk).collect::<Value>(),
        })
    };
    json!({
        "allowed": answers.iter().all(|(_, _, answer)| answer.allowed()),
        "hosts": answers.iter().map(host).collect::<Value>(),
    })
}

fn walk(way: &ExplainWalk) -> Value {
    let steps = way.step.iter().map(|step| {
        let mark = match step.mark.map(|mark| mark.enum_value()) {
            Some(Ok(Mark::PASS)) => "pass".to_owned(),
            Some(Ok(Mark::STOP)) => "stop".to_owned(),
            Some(Ok(Mark::NOTE)) => "note".to_owned(),
            Some(Err(number)) => number.to_string(),
            None => "unknown".to_owned(),
        };
        json!({ "stage": step.stage(), "mark": mark, "text": step.text(), "details": step.detail })
    });
    let fate = match way.fate.map(|fate| fate.enum_value()) {
        Some(Ok(fate)) => format!("{fate:?}").to_lowercase().replace('_', "-"),
        Some(Err(number)) => number.to_string(),
        None => "unknown".to_owned(),
    };
    let drops =
        way.drop.iter().map(|drop| json!({ "reason": drop.reason(), "nic_id": drop.nic_id, "description": drop.description(), "remedy": drop.remedy() }));
    let admission = |by: &MessageField<SessionAdmission>| by.as_ref().map(admission_json);
    json!({
        "packet": way.packet(),
        "steps": steps.collect::<Value>(),
        "routed": way.routed.as_ref().map(|way| json!({ "vni": way.vni(), "external": way.external, "source_mac": way.source_mac(), "destination_mac": way.destination_mac() })),
        "egress": admission(&way.egress),
        "ingress": admission(&way.ingress),
        "fate": fate,
        "nics": way.nic_id,
        "hosts": way.host,
        "drops": drops.collect::<Value>(),
    })
}

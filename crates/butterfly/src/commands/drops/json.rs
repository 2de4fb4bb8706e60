//! `butterfly drops --json`.

use super::page::{kind, remedy};
use super::rates::DropRates;
use super::reasons::Reasons;
use butterfly_api::proto::DropListRes;
use butterfly_api::proto::drop_list_res::{Drop, Place, Reason};
use serde_json::{Value, json};

/// Everything the daemon told, with the rates and in the remedies the names put in.
pub fn json(found: &DropListRes, rates: &DropRates) -> Value {
    let (reasons, unknown) = (Reasons::of(found), Reason::default());
    let drop = |place: &Place, drop: &Drop| {
        let reason = reasons.get(drop).unwrap_or(&unknown);
        json!({
            "reason": drop.reason(),
            "count": drop.count(),
            "rate": rates.of(place, drop),
            "last_age_ms": drop.last_ms,
            "last_packet": drop.last_packet,
            "description": reason.description,
            "cause": reason.cause,
            "remedy": drop.remedy.as_deref().or(reason.remedy.as_deref()).map(|text| remedy(text, place)),
            "charged": reason.charged,
            "harmless": reason.harmless(),
        })
    };
    let place = |place: &Place| {
        json!({
            "kind": kind(place).map(|kind| format!("{kind:?}").to_lowercase()),
            "nic_id": place.nic_id,
            "vni": place.vni,
            "drops": place.drop.iter().map(|row| drop(place, row)).collect::<Vec<_>>(),
        })
    };
    json!({
        "uptime_ms": found.time_ms(),
        "rate_window_ms": rates.window,
        "total": found.total(),
        "places": found.place.iter().map(place).collect::<Vec<_>>(),
        "left_out": found.left_out(),
    })
}

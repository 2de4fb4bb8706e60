//! Externals of a host: a line for each.

use crate::commands::external::{lost, trouble, wire_json};
use crate::text::page::title;
use crate::text::table::{Align, safe, table};
use butterfly_api::proto::External;
use serde_json::{Value, json};

/// Adds a table of externals, if there are any.
pub fn section(page: &mut String, externals: &[External]) {
    if externals.is_empty() {
        return;
    }
    title(page, "externals");
    let heading = [
        ("external", Align::Left),
        ("wire", Align::Left),
        ("in effect", Align::Left),
        ("in", Align::Right),
        ("bytes", Align::Right),
        ("out", Align::Right),
        ("bytes", Align::Right),
        ("drops", Align::Right),
        ("lost", Align::Right),
    ];
    let rows: Vec<_> = externals.iter().map(row).collect();
    page.push_str(&table(2, heading, &rows));
}

fn row(external: &External) -> [String; 9] {
    let wire = external.wire.as_ref();
    let count = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let place = external.uplink.as_ref().map(|uplink| {
        let name = wire.and_then(|wire| wire.interface.as_ref()).unwrap_or(uplink);
        match external.vlan {
            Some(vlan) => format!("{} vlan {vlan}", safe(name)),
            None => safe(name),
        }
    });
    let by_host = external.via.as_ref().map(|host| format!("by {}", safe(host)));
    let place = place.or(by_host);
    [
        safe(external.id()),
        place.unwrap_or_else(|| "-".to_owned()),
        if trouble(external).is_none() { "yes" } else { "no" }.to_owned(),
        count(wire.map(|wire| wire.in_packets())),
        count(wire.map(|wire| wire.in_bytes())),
        count(wire.map(|wire| wire.out_packets())),
        count(wire.map(|wire| wire.out_bytes())),
        count(wire.map(|wire| wire.drop.iter().map(|drop| drop.count()).sum())),
        count(wire.map(|_| lost(external))),
    ]
}

/// Returns the same for programs.
pub fn json(externals: &[External]) -> Value {
    let external = |external: &External| {
        json!({
            "id": external.id(),
            "uplink": external.uplink,
            "vlan": external.vlan,
            "via": external.via,
            "in_effect": trouble(external).is_none(),
            "trouble": trouble(external),
            "wire": external.wire.as_ref().map(wire_json),
        })
    };
    externals.iter().map(external).collect()
}

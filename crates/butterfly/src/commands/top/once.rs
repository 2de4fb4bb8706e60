//! One page, for scripts and for users without a terminal.

use super::board::{Board, Rates, Sort, short};
use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::text::table::{Align, counted, safe, table};
use serde_json::{Value, json};
use std::time::Duration;

/// Looks, waits, looks again, and prints.
pub fn once(
    session: &mut Session,
    interval: Duration,
    sort: Sort,
    json: bool,
) -> Result<(), Failure> {
    let mut board = Board::new(sort);
    super::look_twice(session, &mut board, interval)?;
    match json {
        true => session.json(&self::json(&board)),
        false => session.print(page(&board)),
    }
}

fn page(board: &Board) -> String {
    let Some(now) = &board.now else { return String::new() };
    let rows: Vec<_> = board
        .order()
        .into_iter()
        .filter_map(|id| {
            let (nic, rates) =
                (now.nics.get(id)?, board.rates.get(id).copied().unwrap_or_default());
            Some([
                safe(id),
                nic.vni.to_string(),
                nic.behind().to_owned(),
                short(rates.from.0),
                short(rates.from.1 * 8.0),
                short(rates.to.0),
                short(rates.to.1 * 8.0),
                short(rates.drops),
                nic.sessions.to_string(),
            ])
        })
        .collect();
    let heading = [
        ("nic", Align::Left),
        ("vni", Align::Right),
        ("machine", Align::Left),
        ("in/s", Align::Right),
        ("bit/s", Align::Right),
        ("out/s", Align::Right),
        ("bit/s", Align::Right),
        ("drops/s", Align::Right),
        ("sessions", Align::Right),
    ];
    format!("{}\n\n{}", summary(board), table(0, heading, &rows))
}

/// The host in a line.
pub fn summary(board: &Board) -> String {
    let Some(now) = &board.now else { return "no answer yet".into() };
    let sum = |of: &dyn Fn(&Rates) -> f64| board.rates.values().map(of).sum::<f64>();
    let (used, capacity) = now.sessions;
    format!(
        "{}  {} packets/s  {}bit/s  {} drops/s  sessions {used} of {capacity}  workers {:.0} % busy",
        counted(now.nics.values().filter(|nic| !nic.is_wire).count() as u64, "NIC"),
        short(sum(&|rates| rates.from.0)),
        short(sum(&|rates| rates.from.1 * 8.0)),
        short(sum(&|rates| rates.drops)),
        board.load * 100.0
    )
}

fn json(board: &Board) -> Value {
    let Some(now) = &board.now else { return Value::Null };
    let nic = |id: &str| {
        let (nic, rates) = (now.nics.get(id)?, board.rates.get(id).copied().unwrap_or_default());
        Some(json!({
            "id": id,
            "vni": nic.vni,
            "attached": nic.attached,
            "is_wire": nic.is_wire,
            "in_packets_per_second": rates.from.0,
            "in_bytes_per_second": rates.from.1,
            "out_packets_per_second": rates.to.0,
            "out_bytes_per_second": rates.to.1,
            "drops_per_second": rates.drops,
            "drops_by_reason_per_second": board.drop_rates.get(id),
            "sessions": nic.sessions,
        }))
    };
    json!({
        "sessions": now.sessions.0,
        "sessions_capacity": now.sessions.1,
        "workers_busy": board.load,
        "nics": board.order().into_iter().filter_map(nic).collect::<Value>(),
    })
}

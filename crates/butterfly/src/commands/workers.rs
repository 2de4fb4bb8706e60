//! `butterfly workers`: what the threads that move packets did.

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::json;
use crate::line::reader::Arguments;
use crate::text::table::{Align, table};
use crate::tree::Node;
use butterfly_api::proto::{Request, Worker};
use clap::Command;
use serde_json::{Value, json};

/// `workers`.
pub fn node() -> Node {
    Node::run(
        Command::new("workers")
            .about(
                "Prints what each worker did since the daemon started. All counts are cumulative.",
            )
            .arg(json())
            .after_help(
                "butterfly workers\n\
                 butterfly workers --json | jq '.workers[].busy_cycles'",
            ),
        print_workers,
    )
}

fn print_workers(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let json = session.wants_json(arguments);
    let response = session.ask(Request { worker_list: Some(true), ..Request::default() })?;
    let workers = response.worker_list;
    match json {
        true => {
            session.json(&json!({ "workers": workers.iter().map(worker_json).collect::<Value>() }))
        }
        false => session.print(page(&workers)),
    }
}

fn page(workers: &[Worker]) -> String {
    let rows: Vec<_> = workers
        .iter()
        .map(|worker| {
            [
                worker.id().to_string(),
                worker.core.map_or("any".into(), |core| core.to_string()),
                if worker.polling() { "polls" } else { "sleeps" }.to_owned(),
                worker.active_rings().to_string(),
                worker.packets().to_string(),
                worker.batches().to_string(),
                ratio(worker.packets(), worker.batches()),
                worker.busy_cycles().to_string(),
                ratio(worker.busy_cycles(), worker.packets()),
                busy_time(worker),
                worker.sleeps().to_string(),
                worker.idle_polls().to_string(),
            ]
        })
        .collect();
    let heading = [
        ("worker", Align::Right),
        ("core", Align::Right),
        ("idle", Align::Left),
        ("rings", Align::Right),
        ("packets", Align::Right),
        ("batches", Align::Right),
        ("per batch", Align::Right),
        ("busy cycles", Align::Right),
        ("per packet", Align::Right),
        ("busy s", Align::Right),
        ("sleeps", Align::Right),
        ("idle polls", Align::Right),
    ];
    let mut page = table(0, heading, &rows);
    for worker in workers {
        page.push_str(&batch_sizes(worker));
    }
    page
}

/// Returns how many batches of each size a worker had; empty when it had none.
fn batch_sizes(worker: &Worker) -> String {
    let rows: Vec<_> = worker
        .batch_sizes
        .iter()
        .enumerate()
        .filter(|(_, count)| **count != 0)
        .map(|(place, count)| [frames(place), count.to_string()])
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = [("frames", Align::Right), ("batches", Align::Right)];
    format!("\nbatches of worker {} by size\n{}", worker.id(), table(2, heading, &rows))
}

/// The batch sizes that entry `place` of the histogram counts.
fn frames(place: usize) -> String {
    let limit = |place: usize| {
        1u64.checked_shl(u32::try_from(place).unwrap_or(u32::MAX)).unwrap_or(u64::MAX)
    };
    match place {
        0 => "1".into(),
        1 => "2".into(),
        _ => format!("{}-{}", limit(place - 1).saturating_add(1), limit(place)),
    }
}

fn ratio(of: u64, per: u64) -> String {
    match per {
        0 => "-".into(),
        per => format!("{:.1}", of as f64 / per as f64),
    }
}

/// Seconds spent on batches.
fn busy_time(worker: &Worker) -> String {
    match worker.tsc_hz() {
        0 => "-".into(),
        frequency => format!("{:.3}", worker.busy_cycles() as f64 / frequency as f64),
    }
}

fn worker_json(worker: &Worker) -> Value {
    json!({
        "id": worker.id(),
        "core": worker.core,
        "polling": worker.polling(),
        "busy_cycles": worker.busy_cycles(),
        "packets": worker.packets(),
        "batches": worker.batches(),
        "sleeps": worker.sleeps(),
        "idle_polls": worker.idle_polls(),
        "batch_sizes": worker.batch_sizes,
        "tsc_hz": worker.tsc_hz,
        "active_rings": worker.active_rings,
    })
}

//! `butterfly workers`: what the threads that move packets did.

use crate::daemon::session::Session;
use crate::failure::Failure;
use crate::line::options::json;
use crate::line::reader::Arguments;
use crate::text::table::{Align, safe, table};
use crate::tree::Node;
use butterfly_api::proto::{Request, Worker, WorkerRing};
use clap::Command;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// `workers`.
pub fn node() -> Node {
    Node::run(
        Command::new("workers")
            .about(
                "Prints what each worker did since the daemon started, its load of late, and, if there \
                 are several, which queues of NICs and of the uplink each serves. All counts are \
                 cumulative.",
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
                format!("{:.1}", f64::from(worker.load()) / 10.0),
                (worker.rings.len() + worker.uplink_queues.len()).to_string(),
                worker.active_rings().to_string(),
                worker.moves().to_string(),
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
        ("load %", Align::Right),
        ("rings", Align::Right),
        ("polled", Align::Right),
        ("moves", Align::Right),
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
    if workers.len() > 1 {
        page.push_str(&served(workers));
    }
    page
}

/// Returns who serves what: the NICs of each worker, with those of their queues that it has, and
/// its queues of the uplink.
fn served(workers: &[Worker]) -> String {
    let mut rows = Vec::new();
    for worker in workers {
        let mut nics: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ring in &worker.rings {
            nics.entry(ring.nic_id()).or_default().push(ring.pair().to_string());
        }
        let nics = nics.into_iter();
        rows.extend(
            nics.map(|(nic, pairs)| {
                [worker.id().to_string(), safe(nic).to_string(), pairs.join(",")]
            }),
        );
        if !worker.uplink_queues.is_empty() {
            let queues: Vec<String> = worker.uplink_queues.iter().map(u32::to_string).collect();
            rows.push([worker.id().to_string(), "(the uplink)".to_owned(), queues.join(",")]);
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let heading = [("worker", Align::Right), ("nic", Align::Left), ("pairs", Align::Left)];
    format!("\nserves\n{}", table(2, heading, &rows))
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

fn ring_json(ring: &WorkerRing) -> Value {
    json!({ "nic_id": ring.nic_id(), "pair": ring.pair() })
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
        "load": worker.load,
        "moves": worker.moves,
        "rings": worker.rings.iter().map(ring_json).collect::<Value>(),
        "uplink_queues": worker.uplink_queues,
    })
}

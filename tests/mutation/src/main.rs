//! Mutation tests: would a test notice if this line were wrong?
//!
//! A seed draws mutants of the packet path's deciding parts, which are built into one set of test
//! programs. An environment variable switches one on. Unit tests, packet walks and the model run
//! against each mutant until one of them fails. A mutant that no test notices is a survivor.

#![forbid(unsafe_code)]

mod draw;
mod points;
mod rewrite;
mod table;
mod trial;
mod words;
mod workshop;

use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use crate::{
    draw::{File, Place, files, order},
    table::Row,
    trial::{Ending, Step, run},
    workshop::{Program, Workshop},
};

/// Puts mistakes into a copy of the packet path and writes down which test notices them.
#[derive(Parser)]
struct Options {
    /// Seed of the draw
    #[arg(long, default_value_t = 2)]
    seed: u64,
    /// Number of mutants to draw
    #[arg(long, default_value_t = 300)]
    count: usize,
    /// Numbers of the mutants to try; all of the draw by default
    #[arg(long, value_delimiter = ',')]
    only: Vec<u32>,
    /// Fails if more than this many in a hundred survive
    #[arg(long)]
    survivors: Option<usize>,
    /// Number of mutants to try at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Test programs beside the unit tests; all by default
    #[arg(long, value_delimiter = ',')]
    tests: Vec<String>,
    /// Shows the draw and builds nothing
    #[arg(long)]
    list: bool,
    /// File to write the table to
    #[arg(long)]
    table: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let files = files(&repository.join("crates/datapath/src"))?;
    let order = order(&files, options.seed);
    eprintln!("{} places for a mistake in {} files", order.len(), files.len());
    if options.list {
        for (number, place) in (1..).zip(order.iter().take(options.count)) {
            println!("{}", Row::new(number, *place, &files));
        }
        return Ok(());
    }
    let workshop = Workshop::new(&repository)?;
    let places = workshop.settle(&files, &order, options.count)?;
    let programs = workshop.programs(&options.tests)?;
    let trials = Trials::new(&workshop, &programs)?;
    let path = options
        .table
        .clone()
        .unwrap_or_else(|| repository.join(format!("target/mutation/draw-{}.md", options.seed)));
    let rows = trials.all(&options, &files, &places, &path)?;
    let survived = rows.iter().filter(|row| row.noticed.is_none()).count();
    println!("{survived} of {} survived; {}", rows.len(), path.display());
    if let Some(most) = options.survivors {
        ensure!(survived * 100 <= rows.len() * most, "more than {most} in a hundred survived");
    }
    Ok(())
}

/// Test programs that run against each mutant.
struct Trials {
    home: PathBuf,
    library: Program,
    steps: Vec<Step>,
}

impl Trials {
    /// Runs all tests without a mistake first. They have to pass, and show how long a step takes.
    fn new(workshop: &Workshop, programs: &[Program]) -> Result<Trials> {
        let home = workshop.package_home();
        let mut measured = Vec::new();
        for program in programs {
            let step =
                Step { program: program.clone(), only: None, limit: Duration::from_secs(600) };
            let (ending, spent) = run(&step, 0, &home)?;
            ensure!(ending == Ending::Passed, "fails without a mistake: {ending:?}");
            eprintln!("{}: {:.1} s", program.name, spent.as_secs_f64());
            measured.push((spent, Step { limit: allowed(spent), ..step }));
        }
        measured.sort_by_key(|(spent, _)| *spent);
        let library = programs
            .iter()
            .find(|program| program.name == "lib")
            .context("there are no unit tests")?;
        let steps = measured.into_iter().map(|(_, step)| step).collect();
        Ok(Trials { home, library: library.clone(), steps })
    }

    fn all(
        &self,
        options: &Options,
        files: &[File],
        places: &[Place],
        path: &Path,
    ) -> Result<Vec<Row>> {
        let wanted = |number: &u32| options.only.is_empty() || options.only.contains(number);
        let rows = (1..).zip(places).map(|(number, place)| Row::new(number, *place, files));
        let rows: Vec<Row> = rows.filter(|row| wanted(&row.number)).collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            let worker = || -> Result<()> {
                while let Some(row) = rows.get(next.fetch_add(1, Relaxed)) {
                    let row = Row { noticed: self.one(row)?, tried: true, ..row.clone() };
                    eprintln!("{row}");
                    let mut done = done.lock().map_err(|_| anyhow::anyhow!("a trial failed"))?;
                    done.push(row);
                    done.sort_by_key(|row| row.number);
                    table::write(path, options.seed, &done)?;
                }
                Ok(())
            };
            let workers: Vec<_> = (0..options.jobs.max(1)).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().unwrap_or_else(|_| anyhow::bail!("a trial panicked"))
            })
        })?;
        done.into_inner().map_err(|_| anyhow::anyhow!("a trial failed"))
    }

    /// Returns the test that notices a mutant. Runs the tests of its own module first, then the
    /// others, quick ones first.
    fn one(&self, row: &Row) -> Result<Option<String>> {
        let near = Step {
            program: self.library.clone(),
            only: Some(row.module()),
            limit: Duration::from_secs(40),
        };
        for step in std::iter::once(&near).chain(&self.steps) {
            if let (Ending::Noticed(by), _) = run(step, row.number, &self.home)? {
                return Ok(Some(by));
            }
        }
        Ok(None)
    }
}

/// Time limit of a step that took `spent` without a mistake.
fn allowed(spent: Duration) -> Duration {
    spent * 2 + Duration::from_secs(10)
}

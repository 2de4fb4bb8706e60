//! Runs every file of a corpus through its target: `butterfly-fuzz-replay CORPUS`, whose
//! directories have the targets' names; or `butterfly-fuzz-replay TARGET FILE..`. The first failure
//! is a panic, after a line that names the file.

#![forbid(unsafe_code)]

use std::{fs, io, path::PathBuf, process::ExitCode, time::Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome =
        match arguments.as_slice() {
            [name, files @ ..] if !files.is_empty() => {
                run(name, files.iter().map(PathBuf::from).collect())
            }
            [corpus] => all(&PathBuf::from(corpus)),
            _ => Err("say: butterfly-fuzz-replay CORPUS, or: butterfly-fuzz-replay TARGET FILE.."
                .to_owned()),
        };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn all(corpus: &PathBuf) -> Result<(), String> {
    for (name, _) in butterfly_fuzz::TARGETS {
        let directory = corpus.join(name);
        let failed = |error: io::Error| format!("{}: {error}", directory.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        if files.is_empty() {
            return Err(format!("{} is empty: there is nothing to replay", directory.display()));
        }
        files.sort();
        run(name, files)?;
    }
    Ok(())
}

fn run(name: &str, files: Vec<PathBuf>) -> Result<(), String> {
    let target = butterfly_fuzz::target(name).ok_or_else(|| {
        format!("there is no target {name}: {:?}", butterfly_fuzz::TARGETS.map(|(name, _)| name))
    })?;
    let begun = Instant::now();
    for file in &files {
        let data = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        if let Err(panic) = std::panic::catch_unwind(|| target(&data)) {
            eprintln!("this file did it: butterfly-fuzz-replay {name} {}", file.display());
            std::panic::resume_unwind(panic);
        }
    }
    println!("{name}: {} files in {:.1} s", files.len(), begun.elapsed().as_secs_f32());
    Ok(())
}

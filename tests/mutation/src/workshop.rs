//! A copy of the sources with switches, and the test programs built from it.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{
    draw::{File, Place, drawn},
    points::Point,
    rewrite::{MODULE, Rewritten, rewrite},
};

const PACKAGE: &str = "butterfly-datapath";

/// A test program.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub path: PathBuf,
}

/// The copy of the sources.
pub struct Workshop {
    home: PathBuf,
    repository: PathBuf,
}

impl Workshop {
    /// Copies the sources that the packet path needs. An unchanged file keeps its time, so that
    /// cargo builds little again.
    pub fn new(repository: &Path) -> Result<Workshop> {
        let home = repository.join("target/mutation/copy");
        let listed = Command::new("git")
            .args(["ls-files", "crates", "docs", "Cargo.toml", "Cargo.lock"])
            .current_dir(repository)
            .output()
            .context("cannot run git")?;
        ensure!(listed.status.success(), "git ls-files failed in {}", repository.display());
        let mut kept = HashSet::new();
        for name in String::from_utf8(listed.stdout)?.lines() {
            let Ok(mut bytes) = fs::read(repository.join(name)) else { continue };
            if name == "Cargo.toml" {
                let text = String::from_utf8(bytes)?;
                let members = text.lines().map(|line| match line.starts_with("members =") {
                    true => "members = [\"crates/datapath\"]",
                    false => line,
                });
                bytes = members.collect::<Vec<_>>().join("\n").into_bytes();
            }
            let in_scope = name.strip_prefix("crates/datapath/src/").is_some();
            let path = home.join(name);
            if !in_scope || !path.exists() {
                write(&path, &bytes)?;
            }
            kept.insert(path);
        }
        remove_others(&home.join("crates"), &kept)?;
        Ok(Workshop { home, repository: repository.to_owned() })
    }

    fn sources(&self) -> PathBuf {
        self.home.join("crates/datapath/src")
    }

    /// Writes the packet path's sources with switches at these places.
    fn furnish(&self, files: &[File], places: &[Place]) -> Result<HashMap<String, Rewritten>> {
        let original = self.repository.join("crates/datapath/src");
        let mut rewritten = HashMap::new();
        for (at, file) in files.iter().enumerate() {
            let mut numbered: Vec<(u32, usize)> = (1..)
                .zip(places)
                .filter(|(_, place)| place.0 == at)
                .map(|(n, place)| (n, place.1))
                .collect();
            numbered.sort_by_key(|(_, point)| *point);
            let numbered: Vec<(u32, &Point)> = numbered
                .into_iter()
                .filter_map(|(n, point)| Some((n, file.points.get(point)?)))
                .collect();
            let result = rewrite(&file.source, &numbered);
            write(&self.sources().join(&file.name), result.text.as_bytes())?;
            rewritten.insert(format!("crates/datapath/src/{}", file.name), result);
        }
        self.copy_others(&original, &original, files)?;
        // A mutant may overflow or panic in constants: a test should notice that, not the compiler.
        let forbids = "#![forbid(unsafe_code)]";
        let allows = format!("{forbids}\n#![allow(arithmetic_overflow, unconditional_panic)]");
        let mut root = fs::read_to_string(original.join("lib.rs"))?.replacen(forbids, &allows, 1);
        root.push_str("\n#[allow(missing_docs, dead_code)]\npub mod mutant;\n");
        write(&self.sources().join("lib.rs"), root.as_bytes())?;
        write(&self.sources().join("mutant.rs"), MODULE.as_bytes())?;
        Ok(rewritten)
    }

    fn copy_others(&self, from: &Path, original: &Path, files: &[File]) -> Result<()> {
        for entry in fs::read_dir(from)? {
            let path = entry?.path();
            let name = path.strip_prefix(original)?.to_owned();
            if path.is_dir() {
                self.copy_others(&path, original, files)?;
            } else if name != Path::new("lib.rs")
                && !files.iter().any(|file| Path::new(&file.name) == name)
            {
                write(&self.sources().join(name), &fs::read(&path)?)?;
            }
        }
        Ok(())
    }

    /// Draws until `count` mutants compile together. Refuses mutants that do not compile.
    pub fn settle(&self, files: &[File], order: &[Place], count: usize) -> Result<Vec<Place>> {
        let mut refused = HashSet::new();
        for round in 1..=30 {
            let places = drawn(order, &refused, count);
            let rewritten = self.furnish(files, &places)?;
            let errors = self.cargo(&["check", "--profile", "test", "--lib"])?.1;
            if errors.is_empty() {
                return Ok(places);
            }
            let blamed = blame(&errors, &rewritten, files, &places)?;
            eprintln!(
                "round {round}: {} of {} mutants are no Rust; others are drawn",
                blamed.len(),
                places.len()
            );
            refused.extend(blamed);
        }
        bail!("after 30 rounds there are still mutants that do not compile")
    }

    /// Builds the test programs: the unit tests, and all others or those that are named.
    pub fn programs(&self, named: &[String]) -> Result<Vec<Program>> {
        let mut arguments = vec!["test", "--no-run", "--lib"];
        match named {
            [] => arguments.push("--tests"),
            _ => named.iter().for_each(|name| arguments.extend(["--test", name])),
        }
        let (programs, errors) = self.cargo(&arguments)?;
        ensure!(
            errors.is_empty(),
            "the tests do not compile with switches: {}",
            errors[0].rendered
        );
        Ok(programs)
    }

    fn cargo(&self, arguments: &[&str]) -> Result<(Vec<Program>, Vec<CompilerError>)> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let output = Command::new(cargo)
            .args(arguments)
            .args(["--offline", "--package", PACKAGE, "--message-format", "json"])
            .env("CARGO_TARGET_DIR", self.target())
            .current_dir(&self.home)
            .stderr(Stdio::piped())
            .output()
            .context("cannot run cargo")?;
        let (mut programs, mut errors) = (Vec::new(), Vec::new());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            programs.extend(program(&message));
            errors.extend(CompilerError::of(&message));
        }
        if !output.status.success() && errors.is_empty() {
            bail!("cargo failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok((programs, errors))
    }

    /// The repository's own target directory, so that other crates are not built again.
    fn target(&self) -> PathBuf {
        self.repository
            .join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
    }

    /// The directory in which tests run.
    pub fn package_home(&self) -> PathBuf {
        self.home.join("crates/datapath")
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn remove_others(directory: &Path, kept: &HashSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, kept)?;
        } else if !kept.contains(&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn program(message: &Value) -> Option<Program> {
    let path = PathBuf::from(message.get("executable")?.as_str()?);
    let target = message.get("target")?;
    let library = target.get("kind")?.get(0)?.as_str()? == "lib";
    let name = if library { "lib" } else { target.get("name")?.as_str()? };
    message.get("profile")?.get("test")?.as_bool()?.then(|| Program { name: name.to_owned(), path })
}

/// An error of the compiler.
struct CompilerError {
    code: String,
    message: String,
    rendered: String,
    /// Files with the first byte of the error, primary places first.
    places: Vec<(String, usize)>,
}

impl CompilerError {
    fn of(message: &Value) -> Option<CompilerError> {
        let message = message.get("message")?;
        if message.get("level")?.as_str()? != "error" {
            return None;
        }
        let mut spans: Vec<&Value> = message.get("spans")?.as_array()?.iter().collect();
        spans.sort_by_key(|span| span.get("is_primary").and_then(Value::as_bool) != Some(true));
        let place = |span: &&Value| {
            Some((
                span.get("file_name")?.as_str()?.to_owned(),
                span.get("byte_start")?.as_u64()? as usize,
            ))
        };
        let text =
            |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(CompilerError {
            code: text(message.get("code").and_then(|code| code.get("code"))),
            message: text(message.get("message")),
            rendered: text(message.get("rendered")),
            places: spans.iter().filter_map(place).collect(),
        })
    }
}

/// Finds the mutants that cause errors: the innermost switch around one of their places, or all
/// mutants of a `const fn` that a constant's definition calls.
fn blame(
    errors: &[CompilerError],
    rewritten: &HashMap<String, Rewritten>,
    files: &[File],
    places: &[Place],
) -> Result<HashSet<Place>> {
    let mut blamed = HashSet::new();
    for error in errors {
        let around = |(file, byte): &(String, usize)| {
            let switches = &rewritten.get(file)?.switches;
            let holding = switches.iter().filter(|(_, range)| range.contains(byte));
            holding.min_by_key(|(_, range)| range.len()).map(|(number, _)| *number)
        };
        let not_constant =
            (error.code == "E0015").then(|| error.message.split('`').nth(1)).flatten();
        if let Some(name) = not_constant {
            let function = name.rsplit("::").next().unwrap_or(name);
            let point =
                |(file, point): &Place| files.get(*file).and_then(|file| file.points.get(*point));
            let of = |place: &&Place| {
                point(place).is_some_and(|p| p.constant.is_some() && p.function == function)
            };
            let before = blamed.len();
            blamed.extend(places.iter().filter(of));
            if blamed.len() > before {
                continue;
            }
        }
        if let Some(number) = error.places.iter().find_map(around) {
            blamed.extend(places.get(number as usize - 1));
        }
    }
    if blamed.is_empty() {
        // If the last statement of a branch is left out, the compiler reports the error before it.
        for error in errors {
            for (file, first) in &error.places {
                let last = error
                    .places
                    .iter()
                    .filter(|(of, _)| of == file)
                    .map(|(_, byte)| *byte)
                    .max()
                    .unwrap_or(*first);
                let switches = rewritten.get(file).into_iter().flat_map(|file| &file.switches);
                let between =
                    switches.filter(|(_, range)| *first <= range.start && range.end <= last);
                blamed.extend(between.filter_map(|(number, _)| places.get(*number as usize - 1)));
            }
        }
    }
    if blamed.is_empty() {
        bail!(
            "no mutant is to blame for: {}",
            errors.iter().map(|error| error.rendered.as_str()).collect::<String>()
        );
    }
    Ok(blamed)
}

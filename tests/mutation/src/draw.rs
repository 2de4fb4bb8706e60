//! Draws mutants by a seed.
//!
//! The order depends on the text of a point and its function, not on its line, so that a line added
//! above changes nothing.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::points::{Point, points};

/// Directories and files that are mutated, below the packet path's sources.
pub const SCOPE: [&str; 8] = [
    "engine/pace.rs",
    "ip",
    "plane/sessions.rs",
    "session",
    "stages/filter",
    "stages/filter.rs",
    "world/dhcp.rs",
    "world/rules",
];

/// A source file with its points.
pub struct File {
    /// Path below the packet path's sources.
    pub name: String,
    pub source: String,
    pub points: Vec<Point>,
}

/// A point: the indices of its file and of the point in it.
pub type Place = (usize, usize);

/// Reads the files to mutate. Files of tests have no points.
pub fn files(sources: &Path) -> Result<Vec<File>> {
    let mut paths = Vec::new();
    for entry in SCOPE {
        collect(&sources.join(entry), &mut paths)?;
    }
    paths.sort();
    let read = |path: PathBuf| {
        let source =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let points = points(&source).with_context(|| path.display().to_string())?;
        let name = path.strip_prefix(sources).unwrap_or(&path).display().to_string();
        Ok(File { name, source, points })
    };
    paths.into_iter().map(read).collect()
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if ["tests", "tests.rs", "loom_tests.rs", "stress.rs", "audit.rs"].contains(&name.as_str()) {
        return Ok(());
    }
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            collect(&entry?.path(), found)?;
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") && path.exists() {
        found.push(path.to_owned());
    }
    Ok(())
}

/// Returns all places in the order that a seed draws them.
pub fn order(files: &[File], seed: u64) -> Vec<Place> {
    let mut ranked = Vec::new();
    for (at, file) in files.iter().enumerate() {
        // Equal points in one function differ by their order.
        let mut twins: HashMap<String, u32> = HashMap::new();
        for (number, point) in file.points.iter().enumerate() {
            let original = file.source.get(point.range.clone()).unwrap_or_default();
            let what = format!(
                "{}|{}|{}|{original}|{}",
                file.name, point.function, point.operator, point.replacement
            );
            let twin = twins.entry(what.clone()).or_default();
            ranked.push((rank(&format!("{what}|{twin}"), seed), (at, number)));
            *twin += 1;
        }
    }
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, place)| place).collect()
}

/// Hashes by FNV-1a and the finish of splitmix64. The result is the same with every compiler.
fn rank(text: &str, seed: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325_u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut x = text
        .bytes()
        .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the first `count` places of an order that are not refused. A mutant's number is its
/// position in this list, from 1.
pub fn drawn(order: &[Place], refused: &HashSet<Place>, count: usize) -> Vec<Place> {
    order.iter().copied().filter(|place| !refused.contains(place)).take(count).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::rewrite::rewrite;

    fn sources() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/datapath/src")
    }

    /// A file with a switch at each of its points is still Rust, for every file of the packet path.
    #[test]
    fn the_packet_path_with_all_switches_is_rust() {
        let files = files(&sources()).unwrap();
        assert!(files.iter().map(|file| file.points.len()).sum::<usize>() > 600);
        for file in &files {
            let numbered: Vec<(u32, &Point)> = (1..).zip(&file.points).collect();
            let rewritten = rewrite(&file.source, &numbered);
            assert_eq!(rewritten.switches.len(), file.points.len(), "{}", file.name);
            syn::parse_file(&rewritten.text)
                .unwrap_or_else(|error| panic!("{}: {error}", file.name));
        }
    }

    #[test]
    fn seeds_draw_different_mutants_and_always_the_same() {
        let files = files(&sources()).unwrap();
        let draw = |seed| drawn(&order(&files, seed), &HashSet::new(), 300);
        let (first, second): (HashSet<_>, HashSet<_>) =
            (draw(1).into_iter().collect(), draw(2).into_iter().collect());
        assert_eq!(draw(1), draw(1));
        assert!(first.len() == 300 && first.intersection(&second).count() < 250);
    }
}

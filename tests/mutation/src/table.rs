//! Table of the mutants and the tests that noticed them, for people to read.

use std::{fmt, fs, path::Path};

use anyhow::{Context as _, Result};

use crate::draw::{File, Place};

/// A mutant in the table.
#[derive(Clone)]
pub struct Row {
    pub number: u32,
    pub file: String,
    pub line: usize,
    pub function: String,
    pub operator: &'static str,
    pub original: String,
    pub replacement: String,
    pub tried: bool,
    /// The test that noticed the mutant. None if it was not tried, or survived.
    pub noticed: Option<String>,
}

impl Row {
    /// Describes the mutant at a place. It is not tried yet.
    pub fn new(number: u32, (file, point): Place, files: &[File]) -> Row {
        let file = &files[file];
        let point = &file.points[point];
        Row {
            number,
            file: file.name.clone(),
            line: point.line,
            function: point.function.clone(),
            operator: point.operator,
            original: short(&file.source[point.range.clone()]),
            replacement: short(&point.replacement.replace("crate::mutant::Changed::", "")),
            tried: false,
            noticed: None,
        }
    }

    /// The module of the mutant, whose unit tests run first.
    pub fn module(&self) -> String {
        let path = self.file.trim_end_matches(".rs").trim_end_matches("/mod");
        format!("{}::", path.replace('/', "::"))
    }

    fn change(&self) -> String {
        match self.operator {
            "remove a statement" => format!("without `{}`", self.original),
            _ => format!("`{}` becomes `{}`", self.original, self.replacement),
        }
    }
}

/// Shortens a text to one line of about 70 characters.
fn short(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(70) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text,
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match &self.noticed {
            Some(by) => by.as_str(),
            None if self.tried => "**survived**",
            None => "",
        };
        let change = self.change().replace('|', "\\|");
        write!(
            f,
            "| {} | {}:{} `{}` | {change} | {fate} |",
            self.number, self.file, self.line, self.function
        )
    }
}

/// Writes the table of a draw.
pub fn write(path: &Path, seed: u64, rows: &[Row]) -> Result<()> {
    let survived = rows.iter().filter(|row| row.noticed.is_none()).count();
    let mut text = format!(
        "# Mutants of draw {seed}\n\n{} mutants, {survived} survived. Written by `make mutation SEED={seed}`.\n\n\
         | mutant | place | change | killed by |\n|---|---|---|---|\n",
        rows.len()
    );
    for row in rows {
        text.push_str(&format!("{row}\n"));
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

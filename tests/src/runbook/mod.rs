//! Follows a page of the manual word by word: runs its commands, looks for its lines, and goes on
//! where its tables lead.
//!
//! The top of docs/troubleshooting.md says how to read the page. This module knows no more.

mod document;
mod pattern;

use std::collections::BTreeMap;

pub use document::{Command, Document, Place, Section};
use pattern::{Words, put_in};

/// Largest number of sections on the way to a cause.
const STEPS: usize = 10;

/// Start of an expected line that the answer must not have.
const NOTHING: &str = "(nothing about ";

/// The hosts and the VM where commands run.
pub trait Site {
    /// Runs a command to its end. Returns its output.
    fn run(&mut self, place: Place, command: &str) -> String;
}

/// A reader of the page, who knows a few words from the start.
pub struct Reader<'a> {
    document: &'a Document,
    words: Words,
    /// The sections that were read, the last one at the end.
    pub path: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Returns a reader who knows the words `given`, which the page does not tell.
    pub fn new(document: &'a Document, given: &[(&str, &str)]) -> Reader<'a> {
        let words = given.iter().map(|(word, is)| ((*word).to_owned(), (*is).to_owned())).collect();
        Reader { document, words, path: Vec::new() }
    }

    /// Follows the page from its first step to a cause, whose lines must all be there.
    pub fn follow(&mut self, site: &mut dyn Site) -> Result<&'a Section, String> {
        let mut section = self.document.entry()?;
        for _ in 0..STEPS {
            self.path.push(section.title.clone());
            let answer = self
                .look(section, site)
                .map_err(|why| format!("{} says: {why}", self.path.join(" > ")))?;
            let rows = match &section.table_of {
                Some(other) => &self.document.section(other)?.rows,
                None => &section.rows,
            };
            if rows.is_empty() {
                return Ok(section);
            }
            let fits = rows.iter().find_map(|row| match &row.pattern {
                None => Some((self.words.clone(), row)),
                Some(pattern) => {
                    Some((self.document.find_part(pattern, &answer, &self.words)?, row))
                }
            });
            let (words, row) =
                fits.ok_or_else(|| format!("no row of {} fits:\n{answer}", section.title))?;
            self.words = words;
            section = self.document.section(&row.to)?;
        }
        Err(format!("no end: {}", self.path.join(" > ")))
    }

    /// Runs the commands that show the state, and checks their lines. Returns the last answer.
    fn look(&mut self, section: &Section, site: &mut dyn Site) -> Result<String, String> {
        let mut answer = String::new();
        for command in &section.looks {
            answer = self.run(command, site)?;
            for line in &command.expected {
                let found = match line.strip_prefix(NOTHING).and_then(|line| line.strip_suffix(')'))
                {
                    Some(line) => self
                        .document
                        .find_line(line, &answer, &self.words)
                        .is_none()
                        .then(|| self.words.clone()),
                    None => self.document.find_line(line, &answer, &self.words),
                };
                self.words = found.ok_or_else(|| {
                    format!("{:?} answers no {line:?}, but:\n{answer}", command.line)
                })?;
            }
        }
        Ok(answer)
    }

    fn run(&self, command: &Command, site: &mut dyn Site) -> Result<String, String> {
        Ok(site.run(command.place, &put_in(&command.line, &self.words, &self.document.words)?))
    }

    /// Runs the commands of a section's fix.
    pub fn mend(&mut self, section: &Section, site: &mut dyn Site) -> Result<(), String> {
        if section.fixes.is_empty() {
            return Err(format!("{} has no fix", section.title));
        }
        section.fixes.iter().try_for_each(|command| self.run(command, site).map(drop))
    }

    /// Returns all causes whose expected lines are there now, also those off the path.
    pub fn proved(&self, site: &mut dyn Site) -> Vec<String> {
        let proofs = self.document.sections.iter().filter(|section| section.is_cause());
        let holds = |section: &&Section| {
            let mut fresh =
                Reader { document: self.document, words: self.words.clone(), path: Vec::new() };
            fresh.look(section, site).is_ok()
        };
        proofs.filter(holds).map(|section| section.title.clone()).collect()
    }

    /// The words in capitals that are known, with their values.
    pub fn words(&self) -> &BTreeMap<String, String> {
        &self.words
    }
}

#[cfg(test)]
mod tests;

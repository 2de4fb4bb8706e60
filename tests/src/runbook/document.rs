//! The page: its sections with their commands, expected lines, and tables of sections to go to.

use std::collections::BTreeSet;

use super::pattern::{Words, find};

/// Place where a command runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the sender's host.
    Here,
    /// On the receiver's host.
    Far,
    /// In the VM that sends.
    Machine,
}

const PROMPTS: [(&str, Place); 3] =
    [("$ ", Place::Here), ("FAR# ", Place::Far), ("SENDER# ", Place::Machine)];
/// Commands below this line are a fix.
const FIX: &str = "**Fix.**";
const TABLE_OF: &str = "Go on with the table of [";
const OTHERWISE: &str = "anything else";

/// A command and the lines that its output must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Place where the command runs.
    pub place: Place,
    /// The command, as written on the page.
    pub line: String,
    /// The expected lines, as written on the page.
    pub expected: Vec<String>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Text that the answer must have. `None` fits any answer.
    pub pattern: Option<String>,
    /// The section to go to.
    pub to: String,
}

/// A part under a heading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// Commands that show the state.
    pub looks: Vec<Command>,
    /// Commands that fix the trouble.
    pub fixes: Vec<Command>,
    /// The table of the next sections. A cause has none.
    pub rows: Vec<Row>,
    /// Another section whose table applies here.
    pub table_of: Option<String>,
}

impl Section {
    /// Returns true if the section names a cause that its own expected lines prove.
    pub fn is_cause(&self) -> bool {
        !self.fixes.is_empty() && self.looks.iter().any(|command| !command.expected.is_empty())
    }
}

/// The whole page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The sections in the order of the page.
    pub sections: Vec<Section>,
    /// Words in capitals, for which the reader puts in others.
    pub words: BTreeSet<String>,
}

impl Document {
    /// Reads a page.
    pub fn read(text: &str) -> Document {
        let mut sections = vec![Section::default()];
        let (mut words, mut inside, mut fix) = (BTreeSet::new(), false, false);
        for line in text.lines() {
            let Some(section) = sections.last_mut() else { break };
            if line.starts_with("```") {
                inside = !inside;
            } else if inside {
                let list = if fix { &mut section.fixes } else { &mut section.looks };
                let prompt = PROMPTS
                    .iter()
                    .find_map(|(prompt, place)| Some((line.strip_prefix(prompt)?, *place)));
                match (prompt, list.last_mut()) {
                    (Some((line, place)), _) => {
                        list.push(Command { place, line: line.to_owned(), expected: Vec::new() })
                    }
                    (None, Some(command)) => command.expected.push(line.to_owned()),
                    (None, None) => {}
                }
            } else if line.starts_with('#') {
                fix = false;
                sections.push(Section {
                    title: line.trim_start_matches('#').trim().to_owned(),
                    ..Section::default()
                });
            } else if line.starts_with(FIX) {
                fix = true;
            } else if let Some(rest) = line.strip_prefix(TABLE_OF) {
                section.table_of = link(rest);
            } else if let Some((seen, to)) =
                line.strip_prefix("| ").and_then(|line| line.split_once(" | ["))
                && let Some(to) = link(to)
            {
                section.rows.push(Row {
                    pattern: (seen != OTHERWISE).then(|| seen.trim_matches('`').to_owned()),
                    to,
                });
            } else if sections.len() == 2 {
                // The introduction names the words in capitals.
                let quoted = line.split('`').skip(1).step_by(2);
                words.extend(
                    quoted
                        .filter(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()))
                        .map(str::to_owned),
                );
            }
        }
        Document { sections, words }
    }

    /// Returns the first section with commands.
    pub fn entry(&self) -> Result<&Section, String> {
        self.sections
            .iter()
            .find(|section| !section.looks.is_empty())
            .ok_or_else(|| "there is no first step".to_owned())
    }

    /// Returns the section that a link leads to.
    pub fn section(&self, link: &str) -> Result<&Section, String> {
        let mut found = self.sections.iter().filter(|section| anchor(&section.title) == link);
        match (found.next(), found.next()) {
            (Some(section), None) => Ok(section),
            (None, _) => Err(format!("nothing is called #{link}")),
            (Some(_), Some(_)) => Err(format!("two are called #{link}")),
        }
    }

    /// Looks for a line in an answer. Returns the words that are known then.
    pub(super) fn find_line(&self, line: &str, answer: &str, known: &Words) -> Option<Words> {
        find(line, answer, known, &self.words, true)
    }

    /// Looks for the pattern of a table's row in an answer. Returns the words that are known then.
    pub(super) fn find_part(&self, part: &str, answer: &str, known: &Words) -> Option<Words> {
        find(part, answer, known, &self.words, false)
    }
}

fn link(rest: &str) -> Option<String> {
    Some(rest.split_once("](#")?.1.split_once(')')?.0.to_owned())
}

/// Returns the link to a heading, as GitHub makes it.
fn anchor(title: &str) -> String {
    let kept = title
        .chars()
        .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

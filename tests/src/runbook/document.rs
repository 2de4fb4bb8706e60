//! The page: its sections with their commands, the lines that are looked for, and where tables
//! lead.

use std::collections::BTreeSet;

use super::pattern::{Words, find};

/// Where a command is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the sender's host.
    Here,
    /// On the receiver's host.
    Far,
    /// In the machine that sends.
    Machine,
}

const PROMPTS: [(&str, Place); 3] =
    [("$ ", Place::Here), ("FAR# ", Place::Far), ("SENDER# ", Place::Machine)];
/// What is run from here on mends.
const FIX: &str = "**Fix.**";
const TABLE_OF: &str = "Go on with the table of [";
const OTHERWISE: &str = "anything else";

/// A command, and lines of its answer that matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Where it is run.
    pub place: Place,
    /// As it stands there.
    pub line: String,
    /// As they stand there.
    pub expected: Vec<String>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What the answer has; `None`: anything.
    pub pattern: Option<String>,
    /// The section to go to.
    pub to: String,
}

/// A part under a heading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// Commands that look.
    pub looks: Vec<Command>,
    /// Commands that mend.
    pub fixes: Vec<Command>,
    /// Where to go on; nowhere from a cause.
    pub rows: Vec<Row>,
    /// The section whose table counts here.
    pub table_of: Option<String>,
}

impl Section {
    /// Whether it names a cause that its own lines prove.
    pub fn is_cause(&self) -> bool {
        !self.fixes.is_empty() && self.looks.iter().any(|command| !command.expected.is_empty())
    }
}

/// The whole page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// In order.
    pub sections: Vec<Section>,
    /// Words that stand for others.
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
                // How to read the page: the words in it.
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

    /// The first step.
    pub fn entry(&self) -> Result<&Section, String> {
        self.sections
            .iter()
            .find(|section| !section.looks.is_empty())
            .ok_or_else(|| "there is no first step".to_owned())
    }

    /// The section that a link leads to.
    pub fn section(&self, link: &str) -> Result<&Section, String> {
        let mut found = self.sections.iter().filter(|section| anchor(&section.title) == link);
        match (found.next(), found.next()) {
            (Some(section), None) => Ok(section),
            (None, _) => Err(format!("nothing is called #{link}")),
            (Some(_), Some(_)) => Err(format!("two are called #{link}")),
        }
    }

    /// Looks for a line in an answer; the words known then.
    pub(super) fn find_line(&self, line: &str, answer: &str, known: &Words) -> Option<Words> {
        find(line, answer, known, &self.words, true)
    }

    /// Looks for what a row of a table asks for; the words known then.
    pub(super) fn find_part(&self, part: &str, answer: &str, known: &Words) -> Option<Words> {
        find(part, answer, known, &self.words, false)
    }
}

fn link(rest: &str) -> Option<String> {
    Some(rest.split_once("](#")?.1.split_once(')')?.0.to_owned())
}

/// As GitHub makes links of headings.
fn anchor(title: &str) -> String {
    let kept = title
        .chars()
        .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
}

//! Unknown lines of the configuration file: slips, and lines of another program.

use std::collections::BTreeSet;

use crate::config::{ini::Ini, problems::Problems};

pub(super) fn unknown_lines(ini: &Ini, problems: &mut Problems) {
    for (group, key, line) in ini.rest() {
        let unknown =
            format!("line {line} of the configuration file: there is no option {key} in [{group}]");
        match slip(group, key, &ini.asked) {
            Some(Slip::Of(meant)) => problems.add(format!("{unknown}; did you mean {meant}?")),
            Some(Slip::InOurs) => problems.add(unknown),
            None => problems.notice(format!("{unknown}: it has no effect")),
        }
    }
}

/// Reason for refusing an unknown line of the configuration file.
enum Slip {
    /// A name written much like another.
    Of(String),
    /// A name that the original does not have. An operator who writes it has this program in mind,
    /// and safety may hang on it.
    InOurs,
}

/// Finds the mistake in an unknown line, if it looks like one.
///
/// Lines that mean something to another program have no effect, as in the original. An operator who
/// only misspelt one learns of it before it hurts: else the API would be open, or an underlay would
/// believe every host.
fn slip(group: &str, key: &str, known: &BTreeSet<(String, String)>) -> Option<Slip> {
    let plain = |text: &str| text.to_lowercase().replace(['_', ' '], "-");
    let alike = |one: &str, other: &str| {
        let (one, other) = (plain(one), plain(other));
        strsim::damerau_levenshtein(&one, &other) <= other.len() / 4
    };
    // Groups of another program may have keys like ours.
    let secret = plain(key).contains("encrypt");
    let near =
        known.iter().filter(|(ours, known)| alike(key, known) && (secret || alike(group, ours)));
    if let Some((group, key)) =
        near.min_by_key(|(_, known)| strsim::damerau_levenshtein(&plain(key), known))
    {
        return Some(Slip::Of(format!("{key} in [{group}]")));
    }
    let ours = secret || ["security", "timeouts"].iter().any(|ours| alike(group, ours));
    ours.then_some(Slip::InOurs)
}

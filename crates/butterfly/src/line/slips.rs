//! Words that a command does not take, and what was probably meant.

use crate::line::options::is_list;
use clap::{Arg, Command};

/// Guesses below this are worse than none.
const LIKELY: f64 = 0.8;

/// A word that means nothing where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slip {
    /// An option that the command does not have, with the words up to the next option.
    Unknown { option: String, after: Vec<String>, meant: Option<String> },
    /// A word behind an option that takes no value.
    NoValue { option: String, word: String },
    /// A word behind the last one that the command takes.
    Superfluous { word: String },
    /// A value of an option that was given again.
    Replaced { option: String, value: String, by: String },
}

impl Slip {
    /// An option that is none of `known`.
    pub fn unknown<'a>(word: &str, known: impl Iterator<Item = &'a Arg>) -> Self {
        Self::Unknown { option: word.to_owned(), after: Vec::new(), meant: meant(word, known) }
    }

    /// Returns the words that `command` does not take, and likely meanings.
    pub fn told(&self, command: &str) -> String {
        match self {
            Self::Unknown { option, after, meant } => {
                let words: Vec<&str> = std::iter::once(option.as_str())
                    .chain(after.iter().map(String::as_str))
                    .collect();
                let advice = match meant {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => format!("`butterfly {command} help` lists those it has"),
                };
                format!("{}: `{command}` has no such option; {advice}", words.join(" "))
            }
            Self::NoValue { option, word } if is_switch(word) => {
                format!("{word}: {option} takes no value, it is on as soon as it is given")
            }
            Self::NoValue { option, word } => {
                format!("{word}: words come before the options, and {option} takes no value")
            }
            Self::Superfluous { word } => {
                format!("{word}: `{command}` takes no such word; words come before the options")
            }
            Self::Replaced { option, value, by } => {
                format!("{option} {value}: given again as {by}, and the last one counts")
            }
        }
    }
}

/// True if a word is meant to switch an option on or off.
fn is_switch(word: &str) -> bool {
    ["true", "false", "yes", "no", "on", "off", "1", "0"].contains(&word.to_lowercase().as_str())
}

/// Words behind the last one that `command` takes.
pub fn superfluous(command: &Command, words: &[String]) -> Vec<Slip> {
    let most = match command.get_positionals().last() {
        Some(last) if is_list(last) => usize::MAX,
        _ => command.get_positionals().count(),
    };
    words.iter().skip(most).map(|word| Slip::Superfluous { word: word.clone() }).collect()
}

/// The option of `known` that `word` is most like.
pub fn meant<'a>(word: &str, known: impl Iterator<Item = &'a Arg>) -> Option<String> {
    let name = word
        .split('=')
        .next()
        .unwrap_or(word)
        .trim_start_matches('-')
        .to_lowercase()
        .replace('_', "-");
    let score = |option: &Arg| match (option.get_long(), option.get_short()) {
        (_, Some(letter)) if name == letter.to_string() => (1.0, format!("-{letter}")),
        (Some(long), _) => (likeness(&name, long), format!("--{long}")),
        (None, _) => (0.0, String::new()),
    };
    best(known.map(score))
}

/// The one of `names` that `word` is most like.
pub fn meant_word<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let word = word.to_lowercase();
    best(names.map(|name| (likeness(&word, name), name.to_owned())))
}

/// The one of the ids or names that operators gave which `word` is nearest to, as the daemon judges
/// it: of three letters one may be wrong.
pub fn meant_name<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    const RIGHT: usize = 3;
    const MOST: usize = 1000;
    let lower = word.to_lowercase();
    let most = |name: &str| name.len() / RIGHT;
    let alike = names.filter(|name| name.len().abs_diff(word.len()) <= most(name)).take(MOST);
    let compared =
        alike.map(|name| (name, strsim::damerau_levenshtein(&name.to_lowercase(), &lower)));
    let near = compared.filter(|(name, wrong)| *wrong <= most(name));
    near.min_by_key(|(_, wrong)| *wrong).map(|(name, _)| name.to_owned())
}

fn best(rated: impl Iterator<Item = (f64, String)>) -> Option<String> {
    let likely = rated.filter(|(score, _)| *score >= LIKELY);
    likely.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}

/// Returns from 0 to 1 how likely a user who wrote `word` means `name`.
fn likeness(word: &str, name: &str) -> f64 {
    let is_part =
        |whole: &str, part: &str| part.len() > 1 && whole.split('-').any(|piece| piece == part);
    // Longer or shorter than it is, as --direction for --dir and --proto for --ip-proto.
    let related =
        word.len() > 1 && (name.starts_with(word) || (name.len() > 2 && word.starts_with(name)));
    let known = if word == name {
        1.0
    } else if related {
        0.95
    } else if is_part(name, word) || is_part(word, name) {
        0.9
    } else {
        0.0
    };
    f64::max(known, strsim::jaro_winkler(word, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::options::{flag, option};

    #[test]
    fn the_commonest_slips_are_understood() {
        let known = [
            "id",
            "ip",
            "dip",
            "mac",
            "dir",
            "ip-proto",
            "port",
            "port-start",
            "sg-members",
            "address",
            "enable-antispoof",
        ]
        .map(|name| option(name, "X"));
        let endpoint = option("endpoint", "EP").short('e');
        for (word, expected) in [
            ("--direction", Some("--dir")),
            ("--adress", Some("--address")),
            ("--addr", Some("--address")),
            ("--proto", Some("--ip-proto")),
            ("--members", Some("--sg-members")),
            ("--antispoof", Some("--enable-antispoof")),
            ("--enable-antispof", Some("--enable-antispoof")),
            ("--enable_antispoof=true", Some("--enable-antispoof")),
            ("-mac", Some("--mac")),
            ("--IP", Some("--ip")),
            ("--ips", Some("--ip")),
            ("--mac-address", Some("--mac")),
            ("--endpont", Some("--endpoint")),
            ("-E", Some("-e")),
            ("--colour", None),
            ("-x", None),
            ("-", None),
        ] {
            assert_eq!(meant(word, known.iter().chain([&endpoint])).as_deref(), expected, "{word}");
        }
        assert_eq!(meant_word("lst", ["add", "list", "del"].into_iter()).as_deref(), Some("list"));
        assert_eq!(meant_word("bogus", ["add", "list", "del"].into_iter()), None);
    }

    #[test]
    fn the_nearest_name_is_meant() {
        let names = ["a", "db", "vm-1", "vm-10", "web"];
        for (word, meant) in [
            ("wbe", Some("web")),
            ("vm1", Some("vm-1")),
            ("WEB", Some("web")),
            ("dc", None),
            ("", None),
        ] {
            assert_eq!(meant_name(word, names.into_iter()).as_deref(), meant, "{word}");
        }
    }

    #[test]
    fn slips_are_told_with_what_to_write() {
        let known = [option("dir", "in|out"), flag("fast")];
        let Slip::Unknown { option, meant, .. } = Slip::unknown("--direction", known.iter()) else {
            panic!()
        };
        let unknown = Slip::Unknown { option, after: vec!["out".into()], meant };
        assert_eq!(
            unknown.told("sg rule add"),
            "--direction out: `sg rule add` has no such option; did you mean --dir?"
        );
        let unknown = Slip::unknown("--colour", known.iter());
        assert_eq!(
            unknown.told("nic list"),
            "--colour: `nic list` has no such option; `butterfly nic list help` lists those it has"
        );
        let value = Slip::NoValue { option: "--fast".into(), word: "false".into() };
        assert_eq!(
            value.told("x"),
            "false: --fast takes no value, it is on as soon as it is given"
        );
    }
}

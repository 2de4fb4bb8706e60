//! Reads the words after a command, as leniently as the client always did.
//!
//! Positional words come first and end at the first word that starts with a dash. Options follow in
//! any order, and the word after an option is its value in any form (`--ip-proto -1`). A word that
//! is not understood is kept as a [`Slip`]: it stops a command of ours, and is reported beside one
//! of the original.

use crate::failure::Failure;
use crate::line::slips::{Slip, superfluous};
use clap::{Arg, ArgAction, Command};
use std::collections::BTreeMap;

/// The words after a command, sorted by the command's model.
#[derive(Debug, Default)]
pub struct Arguments {
    positionals: Vec<String>,
    options: BTreeMap<String, Vec<String>>,
    words: usize,
    slips: Vec<Slip>,
}

impl Arguments {
    /// Reads `words` by the arguments of `command` and the options `globals`.
    /// Fails when a known option lacks its value.
    pub fn read(command: &Command, globals: &[Arg], words: &[String]) -> Result<Self, Failure> {
        let known = || command.get_arguments().chain(globals);
        // Standard input is a file with the name -.
        let takes_file = command.get_positionals().any(|word| word.get_id() == "FILE");
        let ends = |word: &String| is_option(word) && !(takes_file && word == "-");
        let first_option = words.iter().position(ends).unwrap_or(words.len());
        let (positionals, options) = words.split_at(first_option);
        let mut read = Self {
            positionals: positionals.to_vec(),
            options: BTreeMap::new(),
            words: words.len(),
            slips: superfluous(command, positionals),
        };

        let mut rest = options.iter();
        while let Some(word) = rest.next() {
            let (name, attached) = split_value(word);
            let Some(argument) = known().find(|argument| is_named(argument, name)) else {
                about_the_key(word)?;
                let mut slip = Slip::unknown(word, known());
                if let Slip::Unknown { after, .. } = &mut slip {
                    *after = values(&mut rest);
                }
                read.slips.push(slip);
                continue;
            };
            let given = read.options.entry(argument.get_id().to_string()).or_default();
            if matches!(argument.get_action(), ArgAction::SetTrue) {
                if attached.is_some() {
                    return Err(Failure::usage(format!("{name} takes no value\nnothing was sent")));
                }
                let stray = values(&mut rest).into_iter();
                read.slips
                    .extend(stray.map(|word| Slip::NoValue { option: name.to_owned(), word }));
                continue;
            }
            let Some(value) = attached.map(str::to_owned).or_else(|| rest.next().cloned()) else {
                return Err(Failure::usage(format!("{name} needs a value")));
            };
            if matches!(argument.get_action(), ArgAction::Append) {
                given.push(value);
                given.extend(values(&mut rest));
                continue;
            }
            // Of a global option the last one counts, as scripts that wrap the client rely on: see
            // `settings`.
            let own = !globals.iter().any(|global| global.get_id() == argument.get_id());
            if let Some(before) = given.last().filter(|before| own && **before != value) {
                let option = name.to_owned();
                read.slips.push(Slip::Replaced {
                    option,
                    value: before.clone(),
                    by: value.clone(),
                });
            }
            given.push(value);
            read.slips.extend(values(&mut rest).into_iter().map(|word| Slip::Superfluous { word }));
        }
        Ok(read)
    }

    /// Returns the words that were not understood.
    pub fn slips(&self) -> &[Slip] {
        &self.slips
    }

    /// Fails, naming them, when mandatory arguments of `command` are missing.
    pub fn check_mandatory(&self, command: &Command) -> Result<(), Failure> {
        let positionals = command
            .get_positionals()
            .enumerate()
            .filter(|(place, word)| word.is_required_set() && *place >= self.positionals.len())
            .map(|(_, word)| word.get_id().to_string());
        let options = command
            .get_opts()
            .filter(|option| {
                option.is_required_set() && self.value(option.get_id().as_str()).is_none()
            })
            .map(|option| format!("--{}", option.get_id()));
        let missing: Vec<String> = positionals.chain(options).collect();
        match missing.as_slice() {
            [] => Ok(()),
            [one] => Err(Failure::usage(format!("{one} is mandatory"))),
            several => Err(Failure::usage(format!("{} are mandatory", several.join(", ")))),
        }
    }

    /// The positional word at `place`, counted from zero.
    pub fn word(&self, place: usize) -> Option<&str> {
        self.positionals.get(place).map(String::as_str)
    }

    /// The positional words from `place` on.
    pub fn words_from(&self, place: usize) -> &[String] {
        self.positionals.get(place..).unwrap_or_default()
    }

    /// Returns how many words followed the command, options included.
    pub fn count(&self) -> usize {
        self.words
    }

    /// True if the option `name` was given.
    pub fn has(&self, name: &str) -> bool {
        self.options.contains_key(name)
    }

    /// The last value given for `name`.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values(name).last().map(String::as_str)
    }

    /// All values given for `name`, in order.
    pub fn values(&self, name: &str) -> &[String] {
        self.options.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the value of `name`, read as `T`. The failure for another value says `expected`.
    pub fn parsed<T: std::str::FromStr>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, Failure> {
        let parse =
            |value: &str| value.parse().map_err(|_| Failure::not_recognized(name, value, expected));
        self.value(name).map(parse).transpose()
    }
}

/// The words up to the next option.
fn values(rest: &mut std::slice::Iter<String>) -> Vec<String> {
    let values: Vec<String> =
        rest.as_slice().iter().take_while(|word| !is_option(word)).cloned().collect();
    *rest = rest.as_slice().get(values.len()..).unwrap_or_default().iter();
    values
}

/// Fails for an option that was to be about the key: it must not turn into a request in clear text.
fn about_the_key(word: &str) -> Result<(), Failure> {
    let lower = word.to_lowercase();
    let about_the_key =
        ["--key", "--encr", "--legacy", "--no-legacy"].iter().any(|start| lower.starts_with(start));
    if about_the_key || (lower.starts_with("-k") && lower.len() > 2) {
        return Err(Failure::usage(format!(
            "{word} is no option: a key is named with -k PATH\nnothing was sent"
        )));
    }
    Ok(())
}

/// Returns how many of `words` are options of `globals` and their values, before the first word of
/// a command.
pub fn count_leading(words: &[String], globals: &[Arg]) -> usize {
    let mut count = 0;
    while let Some(word) = words.get(count) {
        let (name, attached) = split_value(word);
        let Some(argument) = globals.iter().find(|argument| is_named(argument, name)) else {
            break;
        };
        let has_value = attached.is_none() && !matches!(argument.get_action(), ArgAction::SetTrue);
        count += if has_value { 2 } else { 1 };
    }
    count.min(words.len())
}

/// True if a word ends a list of positional words.
pub fn is_option(word: &str) -> bool {
    word.starts_with('-')
}

/// `--name=value` is understood besides `--name value`.
fn split_value(word: &str) -> (&str, Option<&str>) {
    match word.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (name, Some(value)),
        _ => (word, None),
    }
}

fn is_named(argument: &Arg, word: &str) -> bool {
    let long = word.strip_prefix("--");
    let mut short = word.strip_prefix('-').unwrap_or_default().chars();
    (long.is_some() && long == argument.get_long())
        || (short.next().is_some_and(|letter| Some(letter) == argument.get_short())
            && short.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::options::{flag, list, option, word};

    fn command() -> Command {
        Command::new("try")
            .arg(word("NIC"))
            .arg(option("mac", "MAC").required(true))
            .arg(option("vni", "VNI").required(true))
            .arg(list("ip", "IP"))
            .arg(flag("fast"))
    }

    fn globals() -> Vec<Arg> {
        vec![option("endpoint", "EP").short('e')]
    }

    fn read(words: &str) -> Result<Arguments, Failure> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        Arguments::read(&command(), &globals(), &words)
    }

    fn complaint(result: Result<(), Failure>) -> String {
        match result {
            Err(Failure::Usage(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn positionals_end_at_the_first_option() {
        let read = read("a b --mac m c").unwrap();
        assert_eq!(read.words_from(0), ["a", "b"]);
        assert_eq!(read.word(1), Some("b"));
        assert_eq!(read.word(2), None);
        assert_eq!(read.words_from(5).len(), 0);
        assert_eq!(read.count(), 5);
    }

    #[test]
    fn a_value_may_look_like_an_option() {
        let read = read("--ip -e -e tcp://h:1 --mac --vni").unwrap();
        assert_eq!(read.values("ip"), ["-e"]);
        assert_eq!(read.value("endpoint"), Some("tcp://h:1"));
        assert_eq!(read.value("mac"), Some("--vni"));
        assert_eq!(read.value("vni"), None);
    }

    #[test]
    fn lists_take_words_and_repeat() {
        let read = read("--ip 1.1.1.1 2.2.2.2 --fast --ip=::1 ::2").unwrap();
        assert_eq!(read.values("ip"), ["1.1.1.1", "2.2.2.2", "::1", "::2"]);
        assert!(read.has("fast"));
    }

    #[test]
    fn the_last_value_counts() {
        assert_eq!(read("--mac a --mac=b").unwrap().value("mac"), Some("b"));
    }

    #[test]
    fn what_is_not_understood_is_kept() {
        let read = read("a b --colour red --mac m n -x --fast yes --mac=m --mac=o -").unwrap();
        assert_eq!(read.value("mac"), Some("o"));
        let told: Vec<String> = read.slips().iter().map(|slip| slip.told("try")).collect();
        let beginnings = [
            "b:",
            "--colour red:",
            "n:",
            "-x:",
            "yes: --fast takes no value",
            "--mac m: given again as o",
            "-:",
        ];
        assert_eq!(told.len(), beginnings.len(), "{told:?}");
        for (told, beginning) in told.iter().zip(beginnings) {
            assert!(told.starts_with(beginning), "{told}");
        }
    }

    #[test]
    fn a_known_option_without_its_value_is_refused() {
        let words = ["--mac".to_owned()];
        let refused = Arguments::read(&command(), &globals(), &words).map(|_| ());
        assert_eq!(complaint(refused), "--mac needs a value");
    }

    #[test]
    fn every_missing_mandatory_argument_is_named() {
        let check = |words| read(words).unwrap().check_mandatory(&command());
        assert_eq!(complaint(check("")), "NIC, --mac, --vni are mandatory");
        assert_eq!(complaint(check("n --mac m")), "--vni is mandatory");
        check("n --mac m --vni 1").unwrap();
    }

    #[test]
    fn values_are_parsed_or_named() {
        let read = read("--vni x --mac 7").unwrap();
        assert_eq!(
            complaint(read.parsed::<u32>("vni", "a number").map(|_| ())),
            "--vni argument not recognized\nhelp: \"x\" is not a number"
        );
        assert_eq!(read.parsed::<u32>("mac", "a number").unwrap(), Some(7));
        assert_eq!(read.parsed::<u32>("endpoint", "a number").unwrap(), None);
    }

    #[test]
    fn slips_about_the_key_are_no_options_to_pass_over() {
        let globals = [option("key", "PATH").short('k'), flag("legacy-encryption")];
        let read = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            Arguments::read(&command(), &globals, &words)
                .err()
                .map(|failure| format!("{failure:?}"))
        };
        for slip in [
            "-k/etc/key",
            "-k=/etc/key",
            "-Kx",
            "--keyfile x",
            "--Key x",
            "--encryption-key x",
            "--legacy",
            "--legacy-encryption=false",
        ] {
            let said = read(&format!("--mac m --vni 1 {slip}"));
            assert!(
                said.as_ref().is_some_and(|said| said.contains("nothing was sent")),
                "{slip}: {said:?}"
            );
        }
        for fine in [
            "-k /etc/key",
            "--key /etc/key",
            "--key=/etc/key",
            "--legacy-encryption",
            "--unknown",
            "-x",
            "-K",
        ] {
            assert_eq!(read(&format!("--mac m --vni 1 {fine}")), None, "{fine}");
        }
    }
}

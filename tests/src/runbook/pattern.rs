//! Compares a line of the page with lines of an answer. Words in capitals stand for others, `...`
//! for any text.

use std::collections::{BTreeMap, BTreeSet};

/// Words in capitals with their values.
pub type Words = BTreeMap<String, String>;

enum Part<'a> {
    Text(&'a str),
    Word(&'a str),
    Anything,
}

/// Cuts a line at its words in capitals.
fn parts<'a>(line: &'a str, vocabulary: &BTreeSet<String>) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    let mut rest = line;
    let mut text = 0;
    while let Some(next) = rest[text..].chars().next() {
        let at = &rest[text..];
        let letters = at.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (len, part) = match &at[..letters] {
            word if vocabulary.contains(word) => (letters, Part::Word(word)),
            _ if at.starts_with("...") => (3, Part::Anything),
            _ => {
                text += letters.max(next.len_utf8());
                continue;
            }
        };
        if text > 0 {
            parts.push(Part::Text(&rest[..text]));
        }
        parts.push(part);
        rest = &at[len..];
        text = 0;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    parts
}

fn one_line(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Puts values for the words into a command. Fails with the word that is not known.
pub fn put_in(
    command: &str,
    known: &Words,
    vocabulary: &BTreeSet<String>,
) -> Result<String, String> {
    let text = |part: &Part<'_>| match part {
        Part::Text(text) => Ok((*text).to_owned()),
        Part::Anything => Ok("...".to_owned()),
        // A printed list has commas between its items.
        Part::Word(word) => known
            .get(*word)
            .map(|is| is.replace(',', ""))
            .ok_or(format!("{word} is not known in {command:?}")),
    };
    parts(command, vocabulary).iter().map(text).collect()
}

/// Looks for a line in an answer. Returns the words that are known then. If `whole`, a word at the
/// end of the line takes the rest of the answer's line, which may be a list.
pub fn find(
    line: &str,
    answer: &str,
    known: &Words,
    vocabulary: &BTreeSet<String>,
    whole: bool,
) -> Option<Words> {
    let line = one_line(line);
    let parts = parts(&line, vocabulary);
    answer.lines().find_map(|answer| {
        let answer = one_line(answer);
        let starts = answer
            .char_indices()
            .map(|(at, _)| at)
            .filter(|at| begins(&answer, *at))
            .collect::<Vec<_>>();
        starts.into_iter().find_map(|at| fits(&parts, &answer[at..], known, whole))
    })
}

fn is_part_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '-'
}

fn begins(answer: &str, at: usize) -> bool {
    !answer[..at].chars().next_back().is_some_and(is_part_of_word)
}

fn fits(parts: &[Part<'_>], rest: &str, known: &Words, whole: bool) -> Option<Words> {
    let ends = || rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    match parts {
        [] => (!rest.chars().next().is_some_and(is_part_of_word)).then(|| known.clone()),
        [Part::Text(text), more @ ..] => fits(more, rest.strip_prefix(text)?, known, whole),
        // `...` may stand for nothing.
        [Part::Anything] => Some(known.clone()),
        [Part::Anything, more @ ..] => ends().find_map(|at| fits(more, &rest[at..], known, whole)),
        [Part::Word(word), more @ ..] => match known.get(*word) {
            Some(is) => fits(more, rest.strip_prefix(is.as_str())?, known, whole),
            None if whole && more.is_empty() && !rest.is_empty() => Some(with(known, word, rest)),
            None => {
                let letters = rest.find(' ').unwrap_or(rest.len());
                let lens = ends().filter(|at| (1..=letters).contains(at));
                lens.into_iter()
                    .find_map(|at| fits(more, &rest[at..], &with(known, word, &rest[..at]), whole))
            }
        },
    }
}

fn with(known: &Words, word: &str, is: &str) -> Words {
    let mut words = known.clone();
    words.insert(word.to_owned(), is.to_owned());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str, answer: &str) -> Option<String> {
        let vocabulary = ["GROUP", "A", "B"].map(str::to_owned).into();
        let known = [("A".to_owned(), "vm-1".to_owned())].into();
        let words = find(line, answer, &known, &vocabulary, true)?;
        Some(
            ["GROUP", "B"]
                .iter()
                .filter_map(|word| words.get(*word))
                .cloned()
                .collect::<Vec<_>>()
                .join("|"),
        )
    }

    #[test]
    fn lines_fit_or_do_not() {
        for (line, answer, want) in [
            ("in  A:", "x\n  in   vm-1: here", Some("")),
            ("in A", "in vm-10", None),
            ("in A", "begin vm-1", None),
            ("dropped: full", "dropped: full, at vm-2", Some("")),
            ("dropped: full", "dropped: fullest", None),
            ("dropped: full", "dropped: full-2", None),
            ("group GROUP: ...", "group web: 1 rule", Some("web")),
            ("group GROUP would do", "group web: 1 rule\ngroup db would do", Some("db")),
            ("... A > B, ...", "vni 1: vm-1 > x, tcp", Some("x")),
            ("GROUP A B", "1 vm-1 2", Some("1|2")),
            ("GROUP GROUP", "1 2", None),
            ("GROUP GROUP x", "1 1 x", Some("1")),
            ("names B", "names: a", None),
            ("names B", "names a, b", Some("a, b")),
            ("GROUPS", "GROUPS", Some("")),
            ("spoofed-... frames", "spoofed-ip  3 frames", Some("")),
            ("B", "", None),
        ] {
            assert_eq!(said(line, answer).as_deref(), want, "{line:?} in {answer:?}");
        }
    }

    #[test]
    fn a_part_of_a_line_ends_with_its_word() {
        let vocabulary = ["WHY".to_owned()].into();
        let why = |answer| {
            find("dropped: WHY", answer, &Words::new(), &vocabulary, false)
                .map(|words| words["WHY"].clone())
        };
        assert_eq!(why("dropped: ring-full, counted at b").as_deref(), Some("ring-full"));
        assert_eq!(why("copies dropped: too-big").as_deref(), Some("too-big"));
        assert_eq!(why("dropped:"), None);
    }

    #[test]
    fn words_are_put_in_whole() {
        let vocabulary = ["GROUP", "A"].map(str::to_owned).into();
        let known: Words = [("A".to_owned(), "1, 2".to_owned())].into();
        assert_eq!(
            put_in("x --ip A /A AB a", &known, &vocabulary),
            Ok("x --ip 1 2 /1 2 AB a".to_owned())
        );
        assert_eq!(put_in("y ... A", &known, &vocabulary), Ok("y ... 1 2".to_owned()));
        assert!(put_in("x GROUP", &known, &vocabulary).is_err());
    }
}

//! A reader follows a right page to its end, and fails on a page with any mistake.

use super::*;

const PAGE: &str = "# When it hurts\n\nWords: `WHO`, `WHERE`.\n\n## 1. Ask\n\n```\n$ ask WHO\n```\n\n| the answer has | go to |\n|---|---|\n\
    | `hurts at WHERE` | [Doctor's help](#doctors-help) |\n| `fine` | [Home](#home) |\n| anything else | [Again](#again) |\n\n\
    ## Again\n\n```\n$ shout WHO\n```\n\nGo on with the table of [1. Ask](#1-ask).\n\n\
    ## Doctor's help\n\n```\n$ look WHERE\nred\n```\n\n**Fix.** So:\n\n```\n$ cool WHERE\n```\n\n## Home\n\nRest.\n";

/// A patient who gives these answers.
#[derive(Default)]
struct Patient {
    answers: Vec<(&'static str, &'static str)>,
    ran: Vec<String>,
}

impl Site for Patient {
    fn run(&mut self, _: Place, command: &str) -> String {
        self.ran.push(command.to_owned());
        self.answers
            .iter()
            .find(|(of, _)| *of == command)
            .map_or(String::new(), |(_, answer)| (*answer).to_owned())
    }
}

fn followed(
    page: &str,
    answers: &[(&'static str, &'static str)],
) -> (Result<String, String>, Vec<String>) {
    let document = Document::read(page);
    let mut patient = Patient { answers: answers.to_vec(), ran: Vec::new() };
    let mut reader = Reader::new(&document, &[("WHO", "ann")]);
    let end = reader.follow(&mut patient);
    let end = end.and_then(|section| {
        if !section.fixes.is_empty() {
            reader.mend(section, &mut patient)?;
        }
        Ok(section.title.clone())
    });
    (end, patient.ran)
}

const HURTS: [(&str, &str); 2] =
    [("ask ann", "well:\n  hurts at knee, says ann"), ("look knee", "it is red")];

#[test]
fn a_page_is_followed_to_its_end() {
    let (end, ran) = followed(PAGE, &HURTS);
    assert_eq!(end.as_deref(), Ok("Doctor's help"));
    assert_eq!(ran, ["ask ann", "look knee", "cool knee"]);
    // Through a second section, which uses the table of the first one.
    let (end, ran) = followed(PAGE, &[("ask ann", "what?"), ("shout ann", "FINE\nfine")]);
    assert_eq!((end.as_deref(), ran.len()), (Ok("Home"), 2));
}

#[test]
fn a_wrong_page_fails() {
    // A table that leads to the wrong section or to none; a line that never comes; an unknown word;
    // no end; no fix.
    for (right, wrong, why) in [
        ("red\n", "blue\n", "answers no"),
        ("red\n", "(nothing about red)\n", "answers no"),
        ("red\n", "(nothing about blue)\n", ""),
        ("(#doctors-help)", "(#doctor)", "nothing is called"),
        ("$ look WHERE", "$ look WHAT", "answers no"),
        ("hurts at WHERE", "hurts at all", "no end"),
        ("$ ask WHO", "$ ask WHERE", "is not known"),
        ("## Home", "## Doctor's help", "two are called"),
        ("| anything else | [Again](#again) |", "| anything else | [1. Ask](#1-ask) |", ""),
    ] {
        let page = PAGE.replacen(right, wrong, 1);
        assert_ne!(page, PAGE, "{right}");
        let (end, _) = followed(&page, &HURTS);
        match why {
            "" => assert!(end.is_ok()),
            why => assert!(end.as_ref().is_err_and(|said| said.contains(why)), "{right}: {end:?}"),
        }
    }
    let (end, _) = followed(PAGE, &[("ask ann", "what?"), ("shout ann", "what?")]);
    assert!(end.is_err_and(|why| why.starts_with("no end")));
    // The patient has another trouble than the page expects.
    let (end, _) = followed(PAGE, &[HURTS[0], ("look knee", "it is green")]);
    assert!(end.is_err_and(|why| why.contains("it is green")));
    let without = PAGE.replace("$ cool WHERE\n", "");
    let document = Document::read(&without);
    let section = document.section("doctors-help").unwrap();
    assert!(Reader::new(&document, &[]).mend(section, &mut Patient::default()).is_err());
}

#[test]
fn causes_are_proved_by_their_own_lines() {
    let document = Document::read(PAGE);
    let proved = |answers: &[(&'static str, &'static str)]| {
        let mut patient = Patient { answers: answers.to_vec(), ran: Vec::new() };
        Reader::new(&document, &[("WHERE", "knee")]).proved(&mut patient)
    };
    assert_eq!(proved(&HURTS), ["Doctor's help"]);
    assert!(proved(&[]).is_empty());
}

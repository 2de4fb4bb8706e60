//! A manual page in the man(7) macros.

use clap::{Arg, ArgAction};
use roff::{Inline, Roff, bold, roman};

/// A page that grows from top to bottom. In texts, what stands between backquotes is bold.
#[derive(Debug)]
pub struct Page {
    roff: Roff,
    /// True while nothing has come after the last heading, which begins a paragraph itself.
    fresh: bool,
}

impl Page {
    /// The page of `name` in a section of the manual, with the line that `whatis` shows.
    pub fn new(name: &str, section: u8, manual: &str, about: &str) -> Self {
        let mut roff = Roff::new();
        let version = format!("butterfly {}", butterfly_version::VERSION);
        let section = section.to_string();
        roff.control(
            "TH",
            [&*name.to_uppercase(), &section, butterfly_version::DAY, &version, manual],
        );
        let mut page = Self { roff, fresh: true };
        page.section("NAME");
        // As it stands, or `whatis` does not find it.
        page.roff.text([roman(format!("{name} - {about}"))]);
        page
    }

    /// Begins a section.
    pub fn section(&mut self, heading: &str) {
        self.roff.control("SH", [heading]);
        self.fresh = true;
    }

    /// Begins a part of a section.
    pub fn subsection(&mut self, heading: &str) {
        self.roff.control("SS", [heading]);
        self.fresh = true;
    }

    /// A paragraph, or several with an empty line between.
    pub fn text(&mut self, text: &str) {
        for paragraph in text.split("\n\n") {
            self.paragraph();
            self.roff.text(inlines(&paragraph.replace('\n', " ")));
        }
    }

    fn paragraph(&mut self) {
        if !std::mem::take(&mut self.fresh) {
            self.roff.control("PP", []);
        }
    }

    /// A term and, indented, what it means.
    pub fn term(&mut self, term: &str, meaning: &str) {
        self.fresh = false;
        self.roff.control("TP", []);
        self.roff.text(inlines(term));
        self.roff.text(inlines(&meaning.replace('\n', " ")));
    }

    /// Lines that are to be typed, as they are.
    pub fn example(&mut self, lines: &str) {
        self.paragraph();
        self.roff.control("RS", ["4"]);
        self.roff.control("nf", []);
        for line in lines.lines() {
            self.roff.text([roman(line)]);
        }
        self.roff.control("fi", []);
        self.roff.control("RE", []);
    }

    /// A term for each argument, with its help text.
    pub fn arguments<'a>(&mut self, arguments: impl IntoIterator<Item = &'a Arg>) {
        for argument in arguments {
            if argument.is_hide_set() {
                continue;
            }
            let mut meaning = argument.get_help().map(ToString::to_string).unwrap_or_default();
            if argument.is_required_set() && !argument.is_positional() {
                meaning.push_str(" (mandatory)");
            }
            self.term(&term(argument), &meaning);
        }
    }

    /// The page, for `man -l -`.
    pub fn finish(self) -> String {
        self.roff.render()
    }
}

/// An argument as it is written: `-e, --endpoint EP`.
fn term(argument: &Arg) -> String {
    let short = argument.get_short().map(|letter| format!("`-{letter}`"));
    let long = argument.get_long().map(|name| format!("`--{name}`"));
    let mut term = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    if argument.is_positional()
        || !matches!(argument.get_action(), ArgAction::SetTrue | ArgAction::Help)
    {
        let value = argument
            .get_value_names()
            .unwrap_or_default()
            .first()
            .map(ToString::to_string)
            .unwrap_or_default();
        let more = argument.get_num_args().is_some_and(|range| range.max_values() > 1);
        let space = if term.is_empty() { "" } else { " " };
        term.push_str(&format!("{space}{value}{}", if more { "..." } else { "" }));
    }
    term
}

fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(place, part)| if place % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_roff_would_read_as_its_own_is_text() {
        let mut page = Page::new("x", 1, "Manual", "does it");
        page.text("`-a` is\n'not' a request.\n\n.SH is not, either: \\n");
        page.arguments([&Arg::new("ip")
            .long("ip")
            .short('i')
            .value_name("IP")
            .num_args(1..)
            .required(true)
            .help("an address")]);
        let text = page.finish();
        assert!(text.contains("\n.SH NAME\nx \\- does it\n"), "{text}");
        assert!(text.contains("\n.PP\n\\&.SH is not, either: \\\\n\n"), "{text}");
        assert!(
            text.contains("\n\\fB\\-a\\fR is \\*(Aqnot\\*(Aq a request.\n")
                || text.contains("is \\*(Aq"),
            "{text}"
        );
        assert!(
            text.contains("\n.TP\n\\fB\\-i\\fR, \\fB\\-\\-ip\\fR IP...\nan address (mandatory)\n"),
            "{text}"
        );
    }
}

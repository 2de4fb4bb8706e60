//! The version line that all programs of Butterfly print.
//!
//! A package of its own: every commit changes it, and only what needs it is built again.

#![forbid(unsafe_code)]

/// The version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that was built, or `unknown`.
pub const COMMIT: &str = env!("BUTTERFLY_COMMIT");
/// The day of that commit, as in 2026-11-22, or nothing.
pub const DAY: &str = env!("BUTTERFLY_COMMIT_DAY");

/// Version, protocol revision, commit and its date, in the form programs parse: all on one line,
/// without its newline.
///
/// Commit and date are `unknown` for a build outside a git checkout.
pub fn line(revision: u32) -> String {
    format!(
        "butterfly version: \"{}\" proto revision: \"{revision}\" commit: \"{}\" date: \"{} \"",
        VERSION,
        COMMIT,
        env!("BUTTERFLY_COMMIT_DATE"),
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_line_has_the_form_that_programs_parse() {
        let line = super::line(6);
        let words: Vec<_> = line.split('"').collect();
        assert_eq!(words.len(), 9, "{line}");
        let fixed: Vec<_> = words.iter().step_by(2).copied().collect();
        assert_eq!(fixed, ["butterfly version: ", " proto revision: ", " commit: ", " date: ", ""]);
        assert_eq!(words[3], "6");
        assert!(
            words[5] == "unknown" || words[5].bytes().all(|letter| letter.is_ascii_hexdigit()),
            "{line}"
        );
        let date = words[7].strip_suffix(' ').expect("the date ends with a space");
        assert!(date == "unknown" || date.split_whitespace().count() == 5, "{line}");
    }
}

//! The version line.

/// Version, protocol revision and commit, in the form programs parse; the client prints the same.
pub fn line() -> String {
    format!(
        "butterfly version: \"{}\" proto revision: \"{}\" commit: \"{}\" date: \"{} \"",
        env!("CARGO_PKG_VERSION"),
        butterfly_api::REVISION,
        env!("BUTTERFLY_COMMIT"),
        env!("BUTTERFLY_COMMIT_DATE"),
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_line_has_the_form_that_programs_parse() {
        let line = super::line();
        let words: Vec<_> = line.split('"').collect();
        assert_eq!(words.len(), 9, "{line}");
        let fixed: Vec<_> = words.iter().step_by(2).copied().collect();
        assert_eq!(fixed, ["butterfly version: ", " proto revision: ", " commit: ", " date: ", ""]);
        assert_eq!(words[3], "6");
        assert!(words[7].ends_with(' '), "the date ends with a space");
    }
}

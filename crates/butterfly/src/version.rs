//! The version line.

use butterfly_api::REVISION;

/// Version, protocol revision and commit, in the form programs parse.
pub fn line() -> String {
    format!(
        "butterfly version: \"{}\" proto revision: \"{REVISION}\" commit: \"{}\" date: \"{} \"",
        env!("CARGO_PKG_VERSION"),
        env!("BUTTERFLY_COMMIT"),
        env!("BUTTERFLY_COMMIT_DATE"),
    )
}

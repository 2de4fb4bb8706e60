//! Errors of a harness.

/// Any error of a harness ends a test.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

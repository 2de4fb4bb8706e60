//! The JSON that commands print: an object at the top, field names of the protocol, times in words
//! and as numbers.
//!
//! A time is two fields: `NAME` in the form of RFC 3339, and `NAME_s`, `NAME_ms` or `NAME_ns`, its
//! number since 1970. A span of time is a number under a name that ends in its unit.

use crate::text::table::date;

/// A moment in seconds since 1970, in the form of RFC 3339.
pub fn seconds(seconds: u64) -> String {
    format!("{}Z", date(seconds).trim_end_matches(" UTC").replace(' ', "T"))
}

/// A moment in milliseconds since 1970, in the form of RFC 3339.
pub fn milliseconds(milliseconds: u64) -> String {
    let whole = seconds(milliseconds / 1000);
    format!("{}.{:03}Z", whole.trim_end_matches('Z'), milliseconds % 1000)
}

/// A moment in nanoseconds since 1970, in the form of RFC 3339.
pub fn nanoseconds(nanoseconds: u64) -> String {
    let whole = seconds(nanoseconds / 1_000_000_000);
    format!("{}.{:09}Z", whole.trim_end_matches('Z'), nanoseconds % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        assert_eq!(seconds(1_000_000_000), "2001-09-09T01:46:40Z");
        assert_eq!(milliseconds(1_000_000_000_007), "2001-09-09T01:46:40.007Z");
        assert_eq!(nanoseconds(1_000_000_000_000_000_008), "2001-09-09T01:46:40.000000008Z");
        // No number the daemon could send may stop the client.
        assert!(seconds(u64::MAX).ends_with('Z'));
    }
}

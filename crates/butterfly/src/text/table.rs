//! Pages for people: aligned columns, safe text, dates.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Alignment of a column's text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Lines of `cells` under `heading`, columns aligned, two spaces apart, each
/// line indented by `indent` spaces and ended by a newline.
pub fn table<const N: usize>(
    indent: usize,
    heading: [(&str, Align); N],
    rows: &[[String; N]],
) -> String {
    let titles = heading.map(|(title, _)| title.to_owned());
    let lines: Vec<&[String; N]> = std::iter::once(&titles).chain(rows).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for line in lines {
        let mut row = " ".repeat(indent);
        for ((cell, width), (_, align)) in line.iter().zip(widths).zip(heading) {
            // Writing to a string cannot fail.
            let _ = match align {
                Align::Left => write!(row, "{cell:<width$}  "),
                Align::Right => write!(row, "{cell:>width$}  "),
            };
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// `text` without anything a terminal would act on.
pub fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => safe.extend(letter.escape_default()),
            false => safe.push(letter),
        }
    }
    safe
}

/// A number of things: `1 frame`, `2 frames`.
pub fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// `yes` or `no`.
pub fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// The date of `seconds` since 1970, in UTC.
pub fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of the proleptic Gregorian calendar, `days` after
/// 1970-01-01. Counts in years that begin in March, so that a leap day is the
/// last day of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from 0000-03-01
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + next, month, day)
}

/// Seconds since 1970, by the clock of this host.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Returns `seconds` in the two largest units.
pub fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest} s"),
        (0, 0, _) => format!("{minutes} min {rest} s"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

/// `bytes` in the largest binary unit that divides it.
pub fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |shift: u32| bytes != 0 && bytes.trailing_zeros() >= shift;
    match units.into_iter().find(|(shift, _)| fits(*shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_blanks() {
        let rows = [["é".into(), "7".into()], ["long".into(), "1234".into()]];
        assert_eq!(
            table(2, [("name", Align::Left), ("n", Align::Right)], &rows),
            "  name     n\n  é        7\n  long  1234\n"
        );
        let empty_end = [["a".into(), String::new()]];
        assert_eq!(table(0, [("x", Align::Left), ("y", Align::Left)], &empty_end), "x  y\na\n");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!(
            [0, 1, 2].map(|number| counted(number, "frame")),
            ["0 frames", "1 frame", "2 frames"]
        );
    }

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        assert_eq!(safe("vm\u{1b}[2J\n\u{7f}é"), "vm\\u{1b}[2J\\n\\u{7f}é");
    }

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_000_000_000, "2001-09-09 01:46:40 UTC"),
            (1_704_067_199, "2023-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
        // No number the daemon could send may stop the client.
        assert!(date(u64::MAX).ends_with(" UTC"));
    }

    #[test]
    fn durations() {
        for (seconds, expected) in
            [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(duration(seconds), expected);
        }
    }

    #[test]
    fn sizes() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1 << 21, "2 MiB"),
            (3 << 30, "3 GiB"),
            (1 << 40, "1024 GiB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }
}

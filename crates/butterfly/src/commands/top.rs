//! `butterfly top`: traffic at this moment, vnic by vnic, in a terminal.

mod board;
mod detail;
mod once;
mod sample;
mod screen;
mod view;

use crate::daemon::session::Session;
use crate::daemon::settings::Settings;
use crate::failure::Failure;
use crate::line::options::{flag, json, option};
use crate::line::reader::Arguments;
use crate::tree::Node;
use board::{Board, Sort};
use clap::Command;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// `top`.
pub fn node() -> Node {
    Node::run(
        Command::new("top")
            .about(
                "Shows what passes now: NICs by rate, drops and sessions, and of one NIC its drops, rules and sessions. \
                 Keys: arrows choose, Enter opens, Esc goes back, s sorts, p pauses, q ends.",
            )
            .args([
                option("interval", "MS").help("milliseconds between two looks, 200 to 60000 (default: 1000)"),
                option("sort", "COLUMN").help("rate, drops, sessions or id (default: rate)"),
                flag("ascii").help("no other characters than ASCII"),
                flag("once").help("print one interval as a page and end; without a terminal"),
                json(),
            ])
            .after_help("butterfly top\nbutterfly top --once --interval 5000 --sort drops"),
        top,
    )
}

/// A daemon that does not answer for so long is said to be silent.
const PATIENCE_MS: u32 = 1500;

fn top(arguments: &Arguments, session: &mut Session) -> Result<(), Failure> {
    let interval = arguments.parsed::<u64>("interval", INTERVAL)?.unwrap_or(1000);
    if !(200..=60_000).contains(&interval) {
        return Err(Failure::not_recognized("interval", &interval.to_string(), INTERVAL));
    }
    let interval = Duration::from_millis(interval);
    let sort = arguments.value("sort").map(sort).transpose()?.unwrap_or(Sort::Rate);
    if arguments.has("once") || arguments.has("json") {
        let json = session.wants_json(arguments);
        return once::once(session, interval, sort, json);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::said(
            "standard input and output are no terminal\nhelp: butterfly top --once prints a page, --json the same for programs",
        ));
    }
    let settings = match session.settings() {
        // Waiting for ever would be a screen that stands still.
        settings @ Settings { timeout: None, .. } => {
            Settings { timeout: Some(PATIENCE_MS), verbose: false, ..settings.clone() }
        }
        settings => Settings { verbose: false, ..settings.clone() },
    };
    let mut board = Board::new(sort);
    let ascii = arguments.has("ascii") || !speaks_utf8();
    screen::run(&mut session.with(&settings), &mut board, interval, ascii)
}

const INTERVAL: &str = "a number of milliseconds from 200 to 60000";

fn sort(word: &str) -> Result<Sort, Failure> {
    Sort::ALL
        .into_iter()
        .find(|sort| sort.name() == word)
        .ok_or_else(|| Failure::not_recognized("sort", word, "rate, drops, sessions or id"))
}

/// True if the locale's characters are UTF-8 (POSIX: the first that is set counts).
fn speaks_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty());
    set.is_some_and(|value| value.to_lowercase().replace('-', "").contains("utf8"))
}

/// Two looks, so that there are rates.
fn look_twice(session: &mut Session, board: &mut Board, interval: Duration) -> Result<(), Failure> {
    let begin = Instant::now();
    board.add(sample::take(session)?);
    // The next look is at a time, not after an event.
    std::thread::sleep(interval.saturating_sub(begin.elapsed()));
    board.add(sample::take(session)?);
    Ok(())
}

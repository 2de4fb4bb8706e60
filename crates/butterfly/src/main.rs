//! `butterfly`: drives the Butterfly virtual switch of a host, from a shell.
//!
//! Folders and files are floors, and imports go down only (`tests/lib/imports.py`):
//!
//! | floor | holds |
//! |---|---|
//! | [`run`] | the way from the words of a command line to a chain of commands that ran |
//! | [`commands`] | each command: its model beside what it does, in a file of its own |
//! | [`help`] | help pages, made of the model |
//! | [`tree`] | what the model of the commands is made of |
//! | [`daemon`] | settings, the connection, questions and replies |
//! | [`mod@line`] | the words of a command, and slips in them |
//! | [`text`] | what is printed: pages, tables, JSON |
//! | [`failure`] | how a command ends that does not succeed |

#![forbid(unsafe_code)]
#![recursion_limit = "256"] // of json!

mod commands;
mod daemon;
mod failure;
mod help;
mod line;
mod run;
mod text;
mod tree;

use run::End;
use std::io::ErrorKind;
use std::process::ExitCode;
use text::output::Output;

/// Exit code of a question whose answer is no.
const NEGATIVE: u8 = 2;

fn main() -> ExitCode {
    let mut output = Output::new();
    let words: Result<Vec<String>, _> =
        std::env::args_os().skip(1).map(|word| word.into_string()).collect();
    let outcome = match words {
        Ok(words) => run::run(&words, &mut output),
        Err(word) => {
            output.complain(&format!("argument {word:?} is not UTF-8"));
            Ok(End::Failed)
        }
    };
    match outcome.and_then(|end| output.flush().map(|()| end)) {
        Ok(End::Succeeded) => ExitCode::SUCCESS,
        Ok(End::Failed) => ExitCode::FAILURE,
        Ok(End::Negative) => ExitCode::from(NEGATIVE),
        Err(error) => {
            // A reader that has seen enough (`| head`) needs no explanation.
            if error.kind() != ErrorKind::BrokenPipe {
                output.complain(&format!("cannot write to standard output: {error}"));
            }
            ExitCode::FAILURE
        }
    }
}

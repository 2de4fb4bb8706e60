//! `butterfly`: drives the Butterfly virtual switch of a host, from a shell.
//!
//! [`tree`] holds the commands, [`reader`] reads words by it, [`run`] goes
//! through a chain of commands, [`session`] talks to the daemon. Each command
//! has its model and what it does side by side in a file of its own subject.

#![forbid(unsafe_code)]
#![recursion_limit = "256"] // of json!

mod apply;
mod commands;
mod connection;
mod diagnosis;
mod drops;
mod encryption;
mod events;
mod explain;
mod failure;
mod fdb;
mod help;
mod json;
mod manual;
mod nic;
mod notes;
mod options;
mod output;
mod page;
mod peer;
mod process;
mod protocol;
mod reader;
mod replay;
mod reply;
mod run;
mod session;
mod sessions;
mod settings;
mod sg;
mod show;
mod shown;
mod slips;
mod table;
mod top;
mod tree;
mod tunnels;
mod uplink;
mod watch;
mod words;
mod workers;

use output::Output;
use run::End;
use std::io::ErrorKind;
use std::process::ExitCode;

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
